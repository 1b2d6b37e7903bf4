/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the portable forward kernel finds in the tables: the tile of query rows that a job is of,
 * and what the mask compares of its rows and of its keys. TESS_TABLES hands the tables and the
 * arguments to a function, in languages where they are not global.
 */
#ifndef TESS_FORWARD_JOB_H
#define TESS_FORWARD_JOB_H

#include "floor_div.h"
#include "items.h"
#include "key_walk.h"

TESS_STRUCT(tess_tile) {
    uint sequence, cls; /* words where they begin in the tables */
    uint batch, head, row;
    uint rows, packed_rows; /* rows of a head; of all heads of the job */
    uint flags;             /* TESS_CLASS_* */
    int position;           /* of the first row */
    int kv_len;
};

TESS_FUNCTION tess_tile tess_read_tile(uint job TESS_TABLES) {
    tess_tile tile;
    tile.sequence =
        args.sequences_at + TESS_WORD(job + TESS_WORD_JOB_SEQUENCE) * TESS_SEQUENCE_WORDS;
    tile.cls =
        args.classes_at + TESS_HIGH_HALF(TESS_WORD(job + TESS_WORD_JOB_CLS)) * TESS_CLASS_WORDS;
    tile.batch = TESS_WORD(tile.sequence + TESS_WORD_SEQUENCE_BATCH);
    tile.head = TESS_LOW_HALF(TESS_WORD(job + TESS_WORD_JOB_HEAD));
    tile.row = TESS_WORD(job + TESS_WORD_JOB_ROW);
    tile.rows = TESS_LOW_HALF(TESS_WORD(job + TESS_WORD_JOB_ROWS));
    tile.packed_rows = TESS_HIGH_HALF(TESS_WORD(job + TESS_WORD_JOB_HEADS)) * tile.rows;
    tile.flags = TESS_WORD(tile.cls + TESS_WORD_CLASS_FLAGS);
    tile.kv_len = TESS_INT(TESS_WORD(tile.sequence + TESS_WORD_SEQUENCE_KV_LEN));
    tile.position =
        TESS_INT(TESS_WORD(tile.sequence + TESS_WORD_SEQUENCE_Q_FIRST)) + TESS_INT(tile.row);
    return tile;
}

TESS_FUNCTION tess_key_walk tess_read_key_walk(uint job, tess_tile tile TESS_TABLES) {
    tess_key_walk walk;
    walk.left_offset = TESS_WORD(job + TESS_WORD_JOB_LEFT_OFFSET);
    walk.left_count = TESS_WORD(job + TESS_WORD_JOB_LEFT_COUNT);
    walk.right_offset = TESS_WORD(job + TESS_WORD_JOB_RIGHT_OFFSET);
    walk.right_count = TESS_WORD(job + TESS_WORD_JOB_RIGHT_COUNT);
    walk.interval_start = TESS_WORD(job + TESS_WORD_JOB_INTERVAL_START);
    walk.interval_blocks = TESS_WORD(job + TESS_WORD_JOB_INTERVAL_BLOCKS);
    walk.mask_head = TESS_LOW_HALF(TESS_WORD(job + TESS_WORD_JOB_MASK_HEAD));
    walk.mask_tail = TESS_HIGH_HALF(TESS_WORD(job + TESS_WORD_JOB_MASK_TAIL));
    walk.mask_entries = (tile.flags & TESS_CLASS_MASK_ENTRIES) != 0u;
    return walk;
}

/* The key block that block n of the job is. */
TESS_FUNCTION uint tess_read_key_block(tess_key_block b TESS_TABLES) {
    return b.listed ? TESS_WORD(args.entries_at + b.at) : b.at;
}

/* Keys of the job. Only the last block of a sequence may be short, and blocks come in rising
 * order. */
TESS_FUNCTION uint tess_count_keys(tess_key_walk walk, tess_tile tile TESS_TABLES) {
    const uint blocks = tess_key_blocks(walk);
    if (blocks == 0u) return 0u;
    const uint last =
        tess_read_key_block(tess_key_block_at(walk, blocks - 1u) TESS_TABLES_OF_KERNEL);
    const uint rest = TESS_UINT(tile.kv_len) - last * args.block;
    return (blocks - 1u) * args.block + tess_min(rest, args.block);
}

/* ------------------------------------------------------------------ what the mask compares */

/* The window is [low, high]; where there is no bound, it is that of the type. */
TESS_STRUCT(tess_row) {
    uint head_row; /* head within the job * 65536 + row */
    int causal, window_low, window_high;
    int block; /* the query block */
};

TESS_FUNCTION tess_row tess_find_row(uint r, tess_tile tile TESS_TABLES) {
    tess_row row;
    const uint head = r / tile.rows, own = r - head * tile.rows;
    const int p = tile.position + TESS_INT(own),
              left = TESS_INT(TESS_WORD(tile.cls + TESS_WORD_CLASS_LEFT)),
              right = TESS_INT(TESS_WORD(tile.cls + TESS_WORD_CLASS_RIGHT));
    const bool window = (tile.flags & TESS_CLASS_WINDOW) != 0u;
    row.head_row = head << 16 | own;
    row.causal = (tile.flags & TESS_CLASS_CAUSAL) != 0u ? p : TESS_INT_MAX;
    row.window_low =
        !window || left == TESS_INT_MAX || p < TESS_INT_MIN + left ? TESS_INT_MIN : p - left;
    row.window_high =
        !window || right == TESS_INT_MAX || p > TESS_INT_MAX - right ? TESS_INT_MAX : p + right;
    row.block = tess_floor_div(p, TESS_INT(args.block));
    return row;
}

/* A key that needs no mask passes every comparison. */
TESS_STRUCT(tess_key) {
    uint token;
    int position;   /* what the bounds of rows are compared with: the token */
    int last_block; /* the last query block that keeps the key */
    uint bits;      /* query blocks of the tile that keep it, from that of its first row on */
};

/* Key number u of the job. */
TESS_FUNCTION tess_key tess_find_key(uint u, tess_key_walk walk, tess_tile tile TESS_TABLES) {
    tess_key key;
    const uint n = u / args.block;
    const tess_key_block b = tess_key_block_at(walk, n);
    const uint j = tess_read_key_block(b TESS_TABLES_OF_KERNEL);
    key.token = j * args.block + (u - n * args.block);
    key.position = TESS_INT_MIN;
    key.last_block = TESS_INT_MAX;
    key.bits = 0xffffffffu;
    if (b.masked) {
        key.position = TESS_INT(key.token);
        if ((tile.flags & TESS_CLASS_BITS) != 0u && b.listed)
            key.bits = TESS_WORD(args.bits_at + b.at);
        if ((tile.flags & TESS_CLASS_LOCAL) != 0u) {
            const uint near_blocks = TESS_WORD(tile.cls + TESS_WORD_CLASS_LOCAL),
                       stride = TESS_WORD(tile.cls + TESS_WORD_CLASS_STRIDE),
                       shift = TESS_WORD(tile.cls + TESS_WORD_CLASS_SHIFT);
            /* (j + shift) mod stride == 0 without a sum that could overflow */
            const bool on_stride = j % stride == (shift == 0u ? 0u : stride - shift);
            if (!on_stride && near_blocks <= TESS_UINT(TESS_INT_MAX) - j)
                key.last_block = TESS_INT(j + near_blocks) - 1;
        }
    }
    return key;
}

/* ------------------------------------------------------------------ where keys lie */

/* Whether K and V lie in pages or by slot, and not one token after the other. */
#define TESS_IS_CACHED ((TESS_FLAGS & (TESS_ARGS_PAGED | TESS_ARGS_COMPACT)) != 0u)
#define TESS_IS_PAGED  ((TESS_FLAGS & TESS_ARGS_PAGED) != 0u)
/* Whether K and V are codes of 8 bits. */
#define TESS_IS_CODED ((TESS_FLAGS & (TESS_ARGS_E4M3 | TESS_ARGS_I8)) != 0u)

/* A token of a page or TESS_ABSENT; without pages, of the sequence. */
TESS_STRUCT(tess_place) { uint page, token; };

/* Where keys are found from: in place, token 0 of the sequence; by slot, that of its entry in the
 * batch; in pages, that of page 0. */
TESS_STRUCT(tess_origin) {
    uint batch, head;
    tess_offset start;
};

TESS_FUNCTION tess_origin tess_find_origin(uint job TESS_TABLES) {
    tess_origin origin;
    const uint sequence = args.sequences_at +
                          TESS_WORD(job + TESS_WORD_JOB_SEQUENCE) * TESS_SEQUENCE_WORDS,
               kv_head = TESS_LOW_HALF(TESS_WORD(job + TESS_WORD_JOB_HEAD)) / args.group;
    origin.head = (TESS_FLAGS & TESS_ARGS_COMPACT) != 0u
                      ? TESS_WORD(args.kv_heads_at + kv_head * TESS_KV_HEAD_WORDS +
                                  TESS_WORD_KV_HEAD_POOL_HEAD)
                      : kv_head;
    origin.batch = TESS_IS_PAGED ? 0u : TESS_WORD(sequence + TESS_WORD_SEQUENCE_KV_BATCH);
    origin.start =
        TESS_IS_CACHED ? TESS_OFFSET(0) : TESS_WORD64(sequence + TESS_WORD_SEQUENCE_KV_START);
    return origin;
}

/* Where key t lies, if TESS_IS_CACHED: tess_launch.page. */
TESS_FUNCTION tess_place tess_find_place(uint t, uint job TESS_PAGES) {
    tess_place place;
    /* Read again, to hold fewer values where K and V lie in place. */
    const uint sequence =
        args.sequences_at + TESS_WORD(job + TESS_WORD_JOB_SEQUENCE) * TESS_SEQUENCE_WORDS;
    place.page = 0u;
    if ((TESS_FLAGS & TESS_ARGS_COMPACT) != 0u) {
        const uint own = args.kv_heads_at + TESS_LOW_HALF(TESS_WORD(job + TESS_WORD_JOB_HEAD)) /
                                                args.group * TESS_KV_HEAD_WORDS,
                   j = t / args.block, /* modulo 2^32, as below */
            slot = TESS_WORD(own + TESS_WORD_KV_HEAD_SLOTS_OFFSET) +
                   TESS_WORD(sequence + TESS_WORD_SEQUENCE_KV_START) + j;
        place.token =
            TESS_WORD(args.slots_at + slot * TESS_SLOT_WORDS + TESS_WORD_SLOT_SLOT) * args.block +
            (t - j * args.block);
    } else {
        /* Modulo 2^32: the sum is the number of a token, which is less. */
        place.token = t + TESS_WORD(sequence + TESS_WORD_SEQUENCE_KV_START);
    }
    if (TESS_IS_PAGED) {
        const uint number = place.token / args.page;
        const tess_offset row =
            args.block_table_at +
            TESS_OFFSET(TESS_WORD(sequence + TESS_WORD_SEQUENCE_KV_BATCH)) * args.block_table_batch;
        const uint id = TESS_UINT(TESS_PAGE_ID(row + TESS_OFFSET(number)));
        place.token -= number * args.page;
        place.page = id < args.pages ? id : TESS_ABSENT;
    }
    return place;
}

/* ------------------------------------------------------------------ codes */

/* The number of a code of E4M3, of which there are no infinite ones. One without exponent is the
 * difference of two numbers that have one: denormal floats may count as 0. */
TESS_FUNCTION float tess_from_e4m3(uint code) {
    const uint size = code & 0x7fu, e = size < 8u ? 121u : 120u;
    const float number = tess_from_bits((e << 23) + (size << 20)) - (size < 8u ? 0.015625f : 0.0f);
    return tess_from_bits(size == 0x7fu ? 0x7fc00000u
                                        : tess_to_bits(number) | (code & 0x80u) << 24);
}

/* The four codes of a word, the lowest byte first, times their scale. */
TESS_FUNCTION vec4 tess_decode(uint word, uint flags, float scale) {
    const vec4 four =
        (flags & TESS_ARGS_I8) != 0u
            ? VEC4(TESS_FLOAT(TESS_INT(word << 24) >> 24), TESS_FLOAT(TESS_INT(word << 16) >> 24),
                   TESS_FLOAT(TESS_INT(word << 8) >> 24), TESS_FLOAT(TESS_INT(word) >> 24))
            : VEC4(tess_from_e4m3(word & 0xffu), tess_from_e4m3(word >> 8 & 0xffu),
                   tess_from_e4m3(word >> 16 & 0xffu), tess_from_e4m3(word >> 24));
    return four * scale;
}

/* ------------------------------------------------------------------ the mask */

/* Whether the row keeps the key: tess_kept() of tessera_tables.h. */
TESS_FUNCTION bool tess_is_kept(tess_key key, tess_row row, int sinks, int i_first) {
    const bool near = TESS_OR(key.position < sinks, TESS_AND(key.position >= row.window_low,
                                                             key.position <= row.window_high)),
               listed = ((key.bits >> (TESS_UINT(row.block - i_first) & 31u)) & 1u) != 0u;
    return TESS_AND(TESS_AND(key.position <= row.causal, near),
                    TESS_AND(row.block <= key.last_block, listed));
}

/* The score, or TESS_LOWEST if the row does not keep the key. */
TESS_FUNCTION float tess_masked(float score, tess_key key, tess_row row, int sinks, int i_first) {
    return tess_is_kept(key, row, sinks, i_first) ? score : TESS_LOWEST;
}

#endif /* TESS_FORWARD_JOB_H */
