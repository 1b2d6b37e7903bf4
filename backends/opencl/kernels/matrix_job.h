/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The job of a workgroup in kernels on matrix units: its rows, its keys by stages, and which stages
 * need a mask. Subgroups take TESS_OWN rows each. A stage is TESS_KEYS keys of the job, numbered
 * through its key blocks, which need not be neighbours: each has an entry in a list.
 *
 * Given: TESS_ROWS, TESS_OWN, TESS_KEYS, TESS_LISTS (lists that are kept at a time), TESS_LANES of
 * a subgroup and TESS_THREADS. Over the lanes of a subgroup: MATRIX_LEAST(x) and MATRIX_MOST(x) of
 * an int, MATRIX_UNION(x) of bits, MATRIX_ANY(x). MATRIX_FUNCTION declares a function that is
 * inlined: arrays stay in registers only where all is one function.
 */
#ifndef TESS_OPENCL_MATRIX_JOB_H
#define TESS_OPENCL_MATRIX_JOB_H

#include "forward_job.h"

/* Where a key is that is not there: behind all others. */
#define MATRIX_NOT_THERE TESS_INT_MAX

TESS_STRUCT(matrix_row) {
    int low, high; /* the keys that it keeps, as far as their positions tell, ... */
    int last;      /* ... but among the sinks all up to this */
    uint block;    /* a bit for its query block, counted from that of the tile's first row */
};
TESS_STRUCT(matrix_key) {
    int position; /* the token */
    uint kept;    /* query blocks of the tile that keep it */
};
TESS_STRUCT(matrix_place) { tess_offset k, v; }; /* elements of K and V; negative: zeros */
/* Of the rows of a subgroup. */
TESS_STRUCT(matrix_bounds) {
    int low, high, last; /* the most that any row keeps */
    int first, final;    /* what all rows keep, ... */
    uint blocks;         /* ... of their query blocks */
};

/* What finding keys needs. */
TESS_STRUCT(matrix_source) {
    uint job, count;        /* where the job's words begin; its keys */
    int first_block, sinks; /* the query block of the tile's first row; of a window */
    tess_offset k, v;       /* where keys are found from */
    tess_tile tile;
    tess_key_walk walk;
};

/* Aligned to 16 bytes, if the structure is, are `rows` and every list of `keys`. */
TESS_STRUCT(matrix_job) {
    matrix_row rows[TESS_ROWS];
    matrix_key keys[TESS_LISTS][TESS_KEYS];
    matrix_place places[2][TESS_KEYS];
    matrix_bounds bounds[TESS_THREADS / TESS_LANES];
    uint masked[TESS_LISTS]; /* the list's stage, if any of its keys needs the mask */
    matrix_source source;
};

/* The job that a workgroup has found. */
TESS_STRUCT(matrix_found) {
    uint job;            /* where its words begin */
    tess_offset q_start; /* of the tile's first row among rows of Q */
    tess_tile tile;
};

/* Reads the workgroup's job, and empties the lists of keys. A barrier comes next. */
MATRIX_FUNCTION matrix_found matrix_read_job(__local matrix_job *m TESS_TABLES) {
    matrix_found found;
    found.job = tess_find_item(TESS_GROUP, true, TESS_JOB_WORDS TESS_TABLES_OF_KERNEL);
    found.tile = tess_read_tile(found.job TESS_TABLES_OF_KERNEL);
    found.q_start =
        TESS_WORD64(found.tile.sequence + TESS_WORD_SEQUENCE_Q_START) + TESS_OFFSET(found.tile.row);
    if (TESS_THREAD < TESS_LISTS) m->masked[TESS_THREAD] = ~0u;
    return found;
}

/* Whether a row starts on a 16-byte boundary, and with it all that are `strides` away. */
#define MATRIX_IS_WIDE(first, strides) ((((uintptr_t)(first)) & 15u) == 0u && ((strides)&7) == 0)

/* Head and row of a row of the tile, as TESS_ROW_OFFSET takes them. Rows past the last are it. */
MATRIX_FUNCTION uint matrix_head_row(uint in_tile, tess_tile tile) {
    const uint r = tess_min(in_tile, tile.packed_rows - 1u), head = r / tile.rows;
    return head << 16 | (r - head * tile.rows);
}

/* All threads find the same at once: a branch for one of them would make the others wait. */
MATRIX_FUNCTION matrix_source matrix_find(uint job, tess_tile tile TESS_TABLES) {
    const tess_origin origin = tess_find_origin(job TESS_TABLES_OF_KERNEL);
    matrix_source source;
    source.job = job;
    source.tile = tile;
    source.walk = tess_read_key_walk(job, tile TESS_TABLES_OF_KERNEL);
    source.count = tess_count_keys(source.walk, tile TESS_TABLES_OF_KERNEL);
    source.first_block = tess_floor_div(tile.position, TESS_INT(args.block));
    source.sinks = (tile.flags & TESS_CLASS_WINDOW) != 0u
                       ? TESS_INT(TESS_WORD(tile.cls + TESS_WORD_CLASS_SINKS))
                       : 0;
    source.k = TESS_FIRST_OF(k, origin.batch, origin.start, origin.head);
    source.v = TESS_FIRST_OF(v, origin.batch, origin.start, origin.head);
    return source;
}

MATRIX_FUNCTION void matrix_find_row(__local matrix_job *m, const matrix_source *source,
                                     uint r TESS_TABLES) {
    const tess_row row = tess_find_row(tess_min(r, source->tile.packed_rows - 1u),
                                       source->tile TESS_TABLES_OF_KERNEL);
    matrix_row own;
    own.low = row.window_low;
    own.last = row.causal < MATRIX_NOT_THERE ? row.causal : MATRIX_NOT_THERE - 1;
    own.high = row.window_high < own.last ? row.window_high : own.last;
    own.block = 1u << (row.block - source->first_block);
    m->rows[r] = own;
}

/* Key number u of the job. Those of the interval are neighbours: most are found without a division
 * and without a load, on which all subgroups would wait. */
MATRIX_FUNCTION tess_key matrix_find_key(uint u, tess_key_walk walk, tess_tile tile TESS_TABLES) {
    const uint inside = u - walk.left_count * args.block, end = walk.interval_blocks * args.block;
    const bool masked =
        inside < walk.mask_head * args.block || inside >= end - walk.mask_tail * args.block;
    if (inside >= end || (masked && (tile.flags & TESS_CLASS_LOCAL) != 0u))
        return tess_find_key(u, walk, tile TESS_TABLES_OF_KERNEL);
    tess_key key;
    key.token = walk.interval_start * args.block + inside;
    key.position = masked ? TESS_INT(key.token) : TESS_INT_MIN;
    key.last_block = TESS_INT_MAX;
    key.bits = 0xffffffffu;
    return key;
}

/* Writes an entry of a stage's list. */
MATRIX_FUNCTION void matrix_list_key(__local matrix_job *m, const matrix_source *source, uint stage,
                                     uint nth TESS_PAGES) {
    const uint u = stage * TESS_KEYS + nth, count = source->count, list = stage % TESS_LISTS;
    const tess_key key =
        matrix_find_key(tess_min(u, count - 1u), source->walk, source->tile TESS_TABLES_OF_KERNEL);
    /* query blocks of the tile up to the last that keeps the key */
    const tess_offset blocks = TESS_OFFSET(key.last_block) - source->first_block + 1;
    tess_place place;
    place.page = 0u;
    place.token = key.token;
    if (TESS_IS_CACHED) place = tess_find_place(key.token, source->job TESS_PAGES_OF_KERNEL);
    const bool there = u < count && place.page != TESS_ABSENT;
    matrix_place at;
    at.k = source->k + TESS_OFFSET(place.page) * args.k_batch +
           TESS_OFFSET(place.token) * args.k_token;
    at.v = source->v + TESS_OFFSET(place.page) * args.v_batch +
           TESS_OFFSET(place.token) * args.v_token;
    if (!there) at.k = at.v = TESS_OFFSET(-1);
    matrix_key own;
    own.position = there ? TESS_INT(key.token) : MATRIX_NOT_THERE;
    own.kept = blocks <= 0 ? 0u : blocks >= 32 ? key.bits : key.bits & ((1u << blocks) - 1u);
    m->places[stage % 2u][nth] = at;
    m->keys[list][nth] = own;
    /* Others may write the same here. */
    if (!there || key.position != TESS_INT_MIN) m->masked[list] = stage;
}

/* Prepares the first stage: bounds of rows, what finds keys, and the lists of two stages, or of as
 * many as there are threads for. A barrier comes next. */
MATRIX_FUNCTION void matrix_begin(__local matrix_job *m, const matrix_source *source TESS_PAGES) {
    const uint stage = TESS_THREAD / TESS_KEYS;
    if (TESS_THREAD == 0u) m->source = *source;
    for (uint r = TESS_THREAD; r < TESS_ROWS; r += TESS_THREADS)
        matrix_find_row(m, source, r TESS_TABLES_OF_KERNEL);
    if (stage < 2u && stage * TESS_KEYS < source->count)
        matrix_list_key(m, source, stage, TESS_THREAD % TESS_KEYS TESS_PAGES_OF_KERNEL);
}

/* Leaves the bounds of the rows of a subgroup, which alone reads them. */
MATRIX_FUNCTION void matrix_bound_rows(__local matrix_job *m) {
    const uint own = TESS_THREAD / TESS_LANES, lane = TESS_THREAD % TESS_LANES;
    matrix_bounds all = {TESS_INT_MAX, TESS_INT_MIN, TESS_INT_MIN, TESS_INT_MIN, TESS_INT_MAX, 0u};
    TESS_UNROLL for (uint n = 0u; n < TESS_OWN; n += TESS_LANES) {
        const matrix_row row = m->rows[own * TESS_OWN + (n + lane) % TESS_OWN];
        all.low = row.low < all.low ? row.low : all.low;
        all.high = row.high > all.high ? row.high : all.high;
        all.last = row.last > all.last ? row.last : all.last;
        all.first = row.low > all.first ? row.low : all.first;
        all.final = row.high < all.final ? row.high : all.final;
        all.blocks |= row.block;
    }
    all.low = MATRIX_LEAST(all.low);
    all.high = MATRIX_MOST(all.high);
    all.last = MATRIX_MOST(all.last);
    all.first = MATRIX_MOST(all.first);
    all.final = MATRIX_LEAST(all.final);
    all.blocks = MATRIX_UNION(all.blocks);
    if (lane == 0u) m->bounds[own] = all;
}

/* What a subgroup's rows keep of a stage: of a span, whose keys are neighbours, each row keeps
 * those within its window, whatever else masks say. */
#define MATRIX_NONE 0u
#define MATRIX_SOME 1u
#define MATRIX_SPAN 2u
#define MATRIX_ALL  3u
MATRIX_FUNCTION uint matrix_keeps(const __local matrix_job *m, uint stage) {
    const uint list = stage % TESS_LISTS;
    if (m->masked[list] != stage) return MATRIX_ALL;
    const matrix_bounds own = m->bounds[TESS_THREAD / TESS_LANES];
    const int sinks = m->source.sinks, begin = m->keys[list][0].position;
    bool some = false, span = true, all = true;
    TESS_UNROLL for (uint n = 0u; n < TESS_KEYS; n += TESS_LANES) {
        const uint nth = (n + TESS_THREAD % TESS_LANES) % TESS_KEYS;
        const matrix_key key = m->keys[list][nth];
        const uint blocks = key.kept & own.blocks;
        const int p = key.position;
        some |=
            (blocks != 0u) & (((p < sinks) & (p <= own.last)) | ((p >= own.low) & (p <= own.high)));
        span &= (blocks == own.blocks) & (p >= sinks) & (p - begin == TESS_INT(nth));
        all &= (blocks == own.blocks) & (p >= own.first) & (p <= own.final);
    }
    return !MATRIX_ANY(some)   ? MATRIX_NONE
           : !MATRIX_ANY(!all) ? MATRIX_ALL
           : MATRIX_ANY(!span) ? MATRIX_SOME
                               : MATRIX_SPAN;
}

/* Whether the row keeps a key. */
MATRIX_FUNCTION bool matrix_is_kept(matrix_row row, int position, uint kept, int sinks) {
    return ((kept & row.block) != 0u) & (position <= row.last) &
           ((position < sinks) | ((position >= row.low) & (position <= row.high)));
}

#endif /* TESS_OPENCL_MATRIX_JOB_H */
