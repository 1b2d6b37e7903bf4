/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a step knows of its jobs: how the rows of a sequence are cut into tiles, and which key
 * blocks a tile reads of a class. core/tile.c and core/jobs.c are the same for plans whose lengths
 * the host knows; here every tile is found by itself, so that threads can share them out. Only
 * causal patterns without a caller's mask come here.
 */
#ifndef TESS_PREPARE_UNIT_H
#define TESS_PREPARE_UNIT_H

#include "floor_div.h"

/* A field of the tess_step_plan. */
#define TESS_PLAN(field) TESS_WORD(args.items_at + TESS_WORD_PLAN_##field)

/* Sums and products that stop at the largest number. */
TESS_FUNCTION uint tess_sum(uint a, uint b) { return a > 0xffffffffu - b ? 0xffffffffu : a + b; }
TESS_FUNCTION uint tess_product(uint a, uint b) {
    return b != 0u && a > 0xffffffffu / b ? 0xffffffffu : a * b;
}
TESS_FUNCTION uint tess_quotient_up(uint a, uint b) { return a / b + (a % b != 0u ? 1u : 0u); }
TESS_FUNCTION uint tess_larger(uint a, uint b) { return a > b ? a : b; }
TESS_FUNCTION int tess_clamp(int x, int low, int high) {
    return x < low ? low : x > high ? high : x;
}

/* ------------------------------------------------------------------ tiles */

/* Tiles have numbers: those of a cell follow each other, and cell 0 begins at `origin`. */
TESS_STRUCT(tess_cut) {
    int begin, end; /* positions of the sequence's rows */
    int origin;
    int first; /* number of the first tile */
    uint tiles;
    uint heads; /* query heads of a job at most */
};

TESS_FUNCTION int tess_tile_number(int from_origin, int cell, int tile) {
    const int n = tess_floor_div(from_origin, cell);
    return n * ((cell - 1) / tile + 1) + (from_origin - n * cell) / tile;
}

/* Of q_len rows from position `first` on. */
TESS_FUNCTION tess_cut tess_cut_rows(int q_len, int first TESS_TABLES) {
    tess_cut cut;
    const int cell = TESS_INT(TESS_PLAN(CELL)), tile = TESS_INT(TESS_PLAN(TILE));
    const uint rows = TESS_UINT(q_len < tile ? q_len : tile);
    cut.begin = first;
    cut.end = first + q_len;
    cut.origin = TESS_PLAN(FROM_END) != 0u && cut.begin >= 0 ? cut.end % cell : 0;
    cut.first = tess_tile_number(cut.begin - cut.origin, cell, tile);
    cut.tiles = 0u;
    cut.heads = rows == 0u ? 1u : tess_larger(TESS_PLAN(PACK_ROWS) / rows, 1u);
    if (q_len > 0)
        cut.tiles =
            TESS_UINT(tess_tile_number(cut.end - 1 - cut.origin, cell, tile) - cut.first) + 1u;
    return cut;
}

/* ------------------------------------------------------------------ keys */

/* How many blocks so many tokens begin. */
TESS_FUNCTION int tess_blocks_of(int tokens, int block) {
    return tokens / block + (tokens % block != 0 ? 1 : 0);
}

/* The key blocks of a job, as tess_job says. In causal order nothing is listed on the right. */
TESS_STRUCT(tess_keys) {
    uint left_offset, left_count, right_offset;
    uint start, blocks, mask_head, mask_tail;
};

/* The interval of the blocks [start, end), less those that the sequence does not have: rows may lie
 * past its last key. */
TESS_FUNCTION tess_keys tess_interval(int start, int end, int kv_blocks, int head, int tail) {
    tess_keys keys;
    const int to = end < kv_blocks ? end : kv_blocks, blocks = to > start ? to - start : 0;
    tail = tess_clamp(tail - (end - to), 0, blocks);
    keys.left_offset = keys.left_count = keys.right_offset = 0u;
    keys.start = blocks > 0 ? TESS_UINT(start) : 0u;
    keys.blocks = TESS_UINT(blocks);
    keys.mask_tail = TESS_UINT(tail);
    keys.mask_head = TESS_UINT(tess_clamp(head, 0, blocks - tail));
    return keys;
}

/* The first local blocks are those of the first row, at position `first`; the last one is the last
 * row's. */
TESS_FUNCTION tess_keys tess_local_keys(int first, int last, int kv_len, uint cls,
                                        uint entries TESS_TABLES) {
    const int block = TESS_INT(TESS_PLAN(BLOCK)), i_first = first / block, i_last = last / block,
              kv_blocks = tess_blocks_of(kv_len, block);
    const bool strided = (TESS_WORD(cls + TESS_WORD_CLASS_FLAGS) & TESS_CLASS_LOCAL) != 0u;
    int start = 0, head = 0;
    uint listed_before = 0u; /* entries before the interval */
    /* A tile that begins with the last row of a block sees that block whole. */
    int tail = i_last + 1 - i_first - (first + 1 == (i_first + 1) * block ? 1 : 0);
    if (first >= kv_len - 1) tail = 0;
    if (strided) {
        const uint stride = TESS_WORD(cls + TESS_WORD_CLASS_STRIDE),
                   shift = TESS_WORD(cls + TESS_WORD_CLASS_SHIFT),
                   listed = shift == 0u ? 0u : stride - shift; /* the list's first block */
        const int near_blocks = TESS_INT(TESS_WORD(cls + TESS_WORD_CLASS_LOCAL));
        start = i_first < near_blocks ? 0 : i_first - near_blocks + 1;
        head = i_last - near_blocks + 1 - start;
        const uint before = TESS_UINT(start < kv_blocks ? start : kv_blocks);
        if (before > listed) listed_before = (before - listed - 1u) / stride + 1u;
    }
    tess_keys keys = tess_interval(start, i_last + 1, kv_blocks, head, tail);
    keys.left_offset = entries;
    keys.left_count = listed_before;
    return keys;
}

TESS_FUNCTION tess_keys tess_window_keys(int first, int last, int kv_len, uint cls,
                                         uint entries TESS_TABLES) {
    const int block = TESS_INT(TESS_PLAN(BLOCK)),
              left = TESS_INT(TESS_WORD(cls + TESS_WORD_CLASS_LEFT)),
              sinks = TESS_INT(TESS_WORD(cls + TESS_WORD_CLASS_SINKS)),
              sink_blocks = sinks / block + (sinks % block != 0 ? 1 : 0),
              kv_blocks = tess_blocks_of(kv_len, block);
    const bool bounded = left != TESS_INT_MAX;
    const int low = bounded && first > left ? first - left : 0, start = low / block,
              high = last < kv_len - 1 ? last : kv_len - 1, end = high / block + 1;
    const int seen = bounded ? last - left : 0; /* the last row sees nothing before this */
    const int head = seen <= 0 ? 0 : (seen - 1) / block + 1 - start,
              tail = first >= kv_len - 1 ? 0 : end - (first + 1) / block,
              listed = sink_blocks < kv_blocks ? sink_blocks : kv_blocks;
    /* Where the window lies behind the last key, only sinks are seen. */
    const bool some = high >= low;
    tess_keys keys = tess_interval(some ? start : 0, some ? end : 0, kv_blocks, head, tail);
    keys.left_offset = keys.right_offset = entries;
    keys.left_count = TESS_UINT(some ? tess_clamp(listed, 0, start) : listed);
    return keys;
}

/* The key blocks [begin, end) of `whole`. */
TESS_FUNCTION tess_keys tess_part_of(tess_keys whole, uint begin, uint end) {
    tess_keys part;
    const int count = TESS_INT(whole.left_count), blocks = TESS_INT(whole.blocks);
    const uint listed = tess_min(begin, whole.left_count);
    const int a = tess_clamp(TESS_INT(begin) - count, 0, blocks),
              b = tess_clamp(TESS_INT(end) - count, 0, blocks);
    part.left_offset = whole.left_offset + listed;
    part.left_count = tess_min(end, whole.left_count) - listed;
    part.right_offset = whole.right_offset;
    part.start = whole.start + TESS_UINT(a);
    part.blocks = TESS_UINT(b - a);
    part.mask_head = TESS_UINT(tess_clamp(TESS_INT(whole.mask_head) - a, 0, b - a));
    part.mask_tail = TESS_UINT(tess_clamp(b - (blocks - TESS_INT(whole.mask_tail)), 0, b - a));
    return part;
}

/* ------------------------------------------------------------------ units */

/* A tess_step_group. */
TESS_STRUCT(tess_storage_group) { uint first_run, end_run, first_job, end_job; };

TESS_FUNCTION tess_storage_group tess_find_group(uint n TESS_TABLES) {
    tess_storage_group group;
    const uint at = args.items_at + TESS_STEP_PLAN_WORDS + TESS_PLAN(RUNS) * TESS_STEP_RUN_WORDS +
                    n * TESS_STEP_GROUP_WORDS;
    group.first_run = TESS_WORD(at + TESS_WORD_GROUP_FIRST_RUN);
    group.end_run = TESS_WORD(at + TESS_WORD_GROUP_END_RUN);
    group.first_job = TESS_WORD(at + TESS_WORD_GROUP_FIRST_JOB);
    group.end_job = TESS_WORD(at + TESS_WORD_GROUP_END_JOB);
    return group;
}

/* The jobs that one tile makes of one run of heads. They read the same key blocks. */
TESS_STRUCT(tess_unit) {
    uint run;
    uint head, heads; /* of the run */
    uint packed;      /* heads of a job, of the last one perhaps fewer */
    uint jobs;        /* without the split */
    uint cls, row, rows;
    tess_keys keys;
    uint blocks;      /* key blocks of a job */
    uint parts;       /* of each job */
    uint part_blocks; /* key blocks of a part; 0: the parts are equal */
    uint grows;       /* 1: part_blocks are those of the first parts, and later ones are longer */
};

/* How many parts a job of so many key blocks has, where parts have `length` blocks. */
TESS_FUNCTION uint tess_parts_of(uint blocks, uint length) {
    return length == 0u || blocks <= length ? 1u : (blocks - 1u) / length + 1u;
}

/* The same of parts that grow, as TESS_SHORT_ROWS says. */
TESS_FUNCTION uint tess_short_parts_of(uint blocks, uint length) {
    const uint once = TESS_SHORT_PARTS, twice = TESS_SHORT_TWICE_PARTS, far = once + 2u * twice,
               n = tess_larger(tess_quotient_up(blocks, length), 1u);
    return n <= once  ? n
           : n <= far ? once + (n - once + 1u) / 2u
                      : once + twice + (n - far + 3u) / 4u;
}

/* Where such a part begins. */
TESS_FUNCTION uint tess_short_begin(uint part, uint length) {
    const uint once = TESS_SHORT_PARTS, all = once + TESS_SHORT_TWICE_PARTS;
    return length *
           (part + (part > once ? part - once : 0u) + (part > all ? 2u * (part - all) : 0u));
}

/* Unit `n` of a sequence, of the n_runs runs from first_run on: the last tiles, which read most,
 * come first. `length` is what the rule chose. */
TESS_FUNCTION tess_unit tess_find_unit(uint n, int q_len, int q_first, int kv_len, uint first_run,
                                       uint n_runs, uint length TESS_TABLES) {
    tess_unit unit;
    const tess_cut cut = tess_cut_rows(q_len, q_first TESS_TABLES_OF_KERNEL);
    const int cell = TESS_INT(TESS_PLAN(CELL)), tile = TESS_INT(TESS_PLAN(TILE)),
              of_cell = (cell - 1) / tile + 1;
    const uint max_parts = TESS_PLAN(MAX_PARTS), number_of_run = first_run + n % n_runs,
               run = args.items_at + TESS_STEP_PLAN_WORDS + number_of_run * TESS_STEP_RUN_WORDS,
               cls = TESS_WORD(run + TESS_WORD_RUN_CLS),
               at = args.classes_at + cls * TESS_CLASS_WORDS,
               entries = TESS_WORD(run + TESS_WORD_RUN_ENTRIES);
    const int number = cut.first + TESS_INT(cut.tiles - 1u - n / n_runs),
              in_cell = tess_floor_div(number, of_cell), origin = in_cell * cell + cut.origin,
              top = origin + (number - in_cell * of_cell) * tile,
              bottom = top + tile < origin + cell ? top + tile : origin + cell;
    const int first = top > cut.begin ? top : cut.begin,
              last = (bottom < cut.end ? bottom : cut.end) - 1;
    unit.run = number_of_run;
    unit.head = TESS_LOW_HALF(TESS_WORD(run + TESS_WORD_RUN_HEAD));
    unit.heads = TESS_HIGH_HALF(TESS_WORD(run + TESS_WORD_RUN_HEADS));
    unit.packed = tess_min(cut.heads, unit.heads);
    unit.jobs = (unit.heads - 1u) / unit.packed + 1u;
    unit.cls = cls;
    unit.row = TESS_UINT(first - cut.begin);
    unit.rows = TESS_UINT(last - first) + 1u;
    unit.keys.left_offset = unit.keys.left_count = unit.keys.right_offset = 0u;
    unit.keys.start = unit.keys.blocks = unit.keys.mask_head = unit.keys.mask_tail = 0u;
    /* Rows before the first key keep nothing, and no tile has others beside them. */
    if (first >= 0) {
        if ((TESS_WORD(at + TESS_WORD_CLASS_FLAGS) & TESS_CLASS_WINDOW) != 0u)
            unit.keys = tess_window_keys(first, last, kv_len, at, entries TESS_TABLES_OF_KERNEL);
        else
            unit.keys = tess_local_keys(first, last, kv_len, at, entries TESS_TABLES_OF_KERNEL);
    }
    unit.blocks = unit.keys.left_count + unit.keys.blocks;
    unit.grows = TESS_PLAN(SHORT_LENGTH) != 0u && TESS_UINT(q_len) <= TESS_SHORT_ROWS ? 1u : 0u;
    if (TESS_PLAN(SHORT_LENGTH) != 0u)
        length = unit.grows != 0u ? TESS_PLAN(SHORT_LENGTH) : TESS_PLAN(LONG_LENGTH);
    unit.part_blocks = length;
    unit.parts = unit.grows != 0u  ? tess_short_parts_of(unit.blocks, length)
                 : max_parts == 0u ? tess_parts_of(unit.blocks, length)
                                   : tess_larger(tess_min(max_parts, unit.blocks), 1u);
    return unit;
}

/* Where a part begins among the key blocks of its job. */
TESS_FUNCTION uint tess_part_begin(tess_unit unit, uint part) {
    const uint rest = unit.blocks % unit.parts;
    if (unit.grows != 0u) return tess_min(tess_short_begin(part, unit.part_blocks), unit.blocks);
    return unit.part_blocks != 0u ? tess_min(part * unit.part_blocks, unit.blocks)
                                  : unit.blocks / unit.parts * part + rest * part / unit.parts;
}

/* ------------------------------------------------------------------ lengths of jobs */

/* Jobs are counted in bins by their key blocks: one each below 8, and then eight for each power of
 * two. */
#define TESS_STEP_BINS 240u
/* Lengths of parts that the rule tries in one round. */
#define TESS_STEP_TRIALS 256u

TESS_FUNCTION uint tess_bin_of(uint blocks) {
    uint bin = 0u;
    for (; blocks >= 16u; blocks >>= 1) bin += 8u;
    return bin + blocks;
}

/* The fewest key blocks of a bin. */
TESS_FUNCTION uint tess_bin_start(uint bin) {
    return bin < 16u ? bin : (8u + bin % 8u) << (bin / 8u - 1u);
}

/* What a job takes in the plan's model. */
TESS_FUNCTION uint tess_job_ticks(uint blocks TESS_TABLES) {
    const uint steps = tess_quotient_up(blocks * TESS_PLAN(BLOCK), TESS_PLAN(STEP_KEYS));
    return TESS_PLAN(JOB_TICKS) + steps * TESS_PLAN(STEP_TICKS);
}

#endif /* TESS_PREPARE_UNIT_H */
