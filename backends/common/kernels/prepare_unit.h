/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a step knows of its jobs: how the rows of a sequence are cut into tiles, and which key
 * blocks a tile reads of a class. core/tile.c and core/jobs.c do the same for plans whose lengths
 * the host knows. Here every tile is found on its own, so that threads can divide them. Only causal
 * patterns without a caller's mask come here.
 */
#ifndef TESS_PREPARE_UNIT_H
#define TESS_PREPARE_UNIT_H

/* The word of the tables where the kernel's tess_step_plan is, plan_at: TESS_SET_PLAN begins its
 * assignment, TESS_OF_PLAN and TESS_PLAN_OF_KERNEL hand it to functions behind the tables. A
 * language whose tables are global has it in a global variable as well. */
#ifndef TESS_OF_PLAN
#define TESS_OF_PLAN        TESS_TABLES, uint plan_at
#define TESS_PLAN_OF_KERNEL TESS_TABLES_OF_KERNEL, plan_at
#define TESS_SET_PLAN       const uint plan_at
#endif
/* A field of it. */
#define TESS_PLAN(field) TESS_WORD(plan_at + TESS_WORD_PLAN_##field)

/* Saturating sums and products. */
TESS_FUNCTION uint tess_sum(uint a, uint b) { return a > 0xffffffffu - b ? 0xffffffffu : a + b; }
TESS_FUNCTION uint tess_product(uint a, uint b) {
    return TESS_HIGH_PRODUCT(a, b) != 0u ? 0xffffffffu : a * b;
}
TESS_FUNCTION uint tess_quotient_up(uint a, uint b) { return a / b + (a % b != 0u ? 1u : 0u); }
TESS_FUNCTION uint tess_larger(uint a, uint b) { return a > b ? a : b; }
TESS_FUNCTION int tess_clamp(int x, int low, int high) {
    return x < low ? low : x > high ? high : x;
}

/* ------------------------------------------------------------------ divisions */

/* A divisor of many numbers: `inverse` is (2^32 - 1) / by. Without an instruction for it, a
 * division takes some twenty others, and a unit needs a dozen divisions. */
TESS_STRUCT(tess_divisor) { uint by, inverse; };

TESS_FUNCTION tess_divisor tess_divisor_of(uint by) {
    tess_divisor d;
    d.by = by;
    d.inverse = 0xffffffffu / by;
    return d;
}
/* The first quotient is right or one too small. */
TESS_FUNCTION uint tess_divide(uint x, tess_divisor d) {
    const uint quotient = TESS_HIGH_PRODUCT(x, d.inverse);
    return x - quotient * d.by >= d.by ? quotient + 1u : quotient;
}
TESS_FUNCTION uint tess_divide_up(uint x, tess_divisor d) {
    const uint quotient = tess_divide(x, d);
    return quotient * d.by != x ? quotient + 1u : quotient;
}
/* Of a position, which may be before the first key; rounded down. */
TESS_FUNCTION int tess_divide_position(int x, tess_divisor d) {
    const int quotient = TESS_INT(tess_divide(TESS_UINT(x >= 0 ? x : -1 - x), d));
    return x >= 0 ? quotient : -1 - quotient;
}
/* Of a number of keys or blocks, which is not negative. */
TESS_FUNCTION int tess_divide_int(int x, tess_divisor d) {
    return TESS_INT(tess_divide(TESS_UINT(x), d));
}

/* Divisors that the plan gives. */
TESS_STRUCT(tess_grid) {
    tess_divisor block, cell, tile, tiles; /* tiles of a cell */
    tess_divisor step_keys;
};
TESS_FUNCTION tess_grid tess_find_grid(uint cell TESS_OF_PLAN) {
    tess_grid grid;
    grid.block = tess_divisor_of(TESS_PLAN(BLOCK));
    grid.cell = tess_divisor_of(cell);
    grid.tile = tess_divisor_of(TESS_PLAN(TILE));
    grid.tiles = tess_divisor_of(tess_divide(cell - 1u, grid.tile) + 1u);
    grid.step_keys = tess_divisor_of(TESS_PLAN(STEP_KEYS));
    return grid;
}

/* ------------------------------------------------------------------ tiles */

/* How a sequence's rows are cut into tiles. Tiles are numbered cell by cell, and cell 0 begins at
 * `origin`. */
TESS_STRUCT(tess_cut) {
    int begin, end; /* positions of the sequence's rows */
    int origin;
    int first; /* number of the first tile */
    uint tiles;
    uint heads; /* query heads of a job at most */
};

TESS_FUNCTION int tess_tile_number(int from_origin, tess_grid grid) {
    const int cell = tess_divide_position(from_origin, grid.cell);
    return cell * TESS_INT(grid.tiles.by) +
           tess_divide_int(from_origin - cell * TESS_INT(grid.cell.by), grid.tile);
}

/* Where cell 0 of the rows [begin, end) begins. */
TESS_FUNCTION int tess_origin(int begin, int end, tess_grid grid TESS_OF_PLAN) {
    if (TESS_PLAN(FROM_END) == 0u || begin < 0) return 0;
    return end - tess_divide_int(end, grid.cell) * TESS_INT(grid.cell.by);
}

/* The cut of q_len rows from position `first` on, from what tess_cut_rows() has found. */
TESS_FUNCTION tess_cut tess_find_cut(int q_len, int first, int number, uint tiles, uint heads,
                                     tess_grid grid TESS_OF_PLAN) {
    tess_cut cut;
    cut.begin = first;
    cut.end = first + q_len;
    cut.origin = tess_origin(cut.begin, cut.end, grid TESS_PLAN_OF_KERNEL);
    cut.first = number;
    cut.tiles = tiles;
    cut.heads = heads;
    return cut;
}

TESS_FUNCTION tess_cut tess_cut_rows(int q_len, int first, tess_grid grid TESS_OF_PLAN) {
    tess_cut cut = tess_find_cut(q_len, first, 0, 0u, 1u, grid TESS_PLAN_OF_KERNEL);
    const int begin = cut.begin - cut.origin;
    cut.first = tess_tile_number(begin, grid);
    if (q_len <= 0) return cut;
    cut.tiles = TESS_UINT(tess_tile_number(begin + q_len - 1, grid) - cut.first) + 1u;
    cut.heads = tess_larger(TESS_PLAN(PACK_ROWS) / tess_min(TESS_UINT(q_len), grid.tile.by), 1u);
    return cut;
}

/* ------------------------------------------------------------------ keys */

/* Where the keys of a sequence begin, of which there are so many: `given` to the nearest legal
 * multiple of a block below, unless it is trusted. */
TESS_FUNCTION int tess_first_key(int given, int keys, tess_grid grid TESS_OF_PLAN) {
    if ((args.flags & TESS_ARGS_TRUST) != 0u) return given;
    const int legal = tess_clamp(given, 0, TESS_INT(TESS_PLAN(POSITIONS)) - keys);
    return tess_divide_int(legal, grid.block) * TESS_INT(grid.block.by);
}

/* tess_sequence.kv_start: in place or in pages, token 0 is before the first key in memory; by slot,
 * the list of the part's phase follows those of the phases before. */
TESS_FUNCTION int tess_kv_start(int first_key, uint first_block TESS_OF_PLAN) {
    const uint phases = TESS_PLAN(PHASES);
    if (phases == 0u) return -first_key;
    const uint phase =
        TESS_PLAN(PHASES_WRAP) != 0u ? first_block % phases : tess_min(first_block, phases - 1u);
    return TESS_INT(phase * TESS_PLAN(SLOT_BLOCKS)) - TESS_INT(first_block);
}

/* How many blocks so many tokens take. */
TESS_FUNCTION int tess_blocks_of(int tokens, tess_grid grid) {
    return TESS_INT(tess_divide_up(TESS_UINT(tokens), grid.block));
}

/* The key blocks of a job, as tess_job says. In causal order nothing is listed on the right. */
TESS_STRUCT(tess_keys) {
    uint left_offset, left_count, right_offset;
    uint start, blocks, mask_head, mask_tail;
};

/* The words of a tess_class that decide which keys it keeps, and where its list begins. */
TESS_STRUCT(tess_key_class) { uint flags, near_blocks, stride, shift, left, sinks, entries; };

TESS_FUNCTION tess_key_class tess_find_class(uint n, uint entries TESS_TABLES) {
    tess_key_class cls;
    const uint at = args.classes_at + n * TESS_CLASS_WORDS;
    cls.flags = TESS_WORD(at + TESS_WORD_CLASS_FLAGS);
    cls.near_blocks = TESS_WORD(at + TESS_WORD_CLASS_LOCAL);
    cls.stride = TESS_WORD(at + TESS_WORD_CLASS_STRIDE);
    cls.shift = TESS_WORD(at + TESS_WORD_CLASS_SHIFT);
    cls.left = TESS_WORD(at + TESS_WORD_CLASS_LEFT);
    cls.sinks = TESS_WORD(at + TESS_WORD_CLASS_SINKS);
    cls.entries = entries;
    return cls;
}

/* The key blocks that a sequence has, and where its keys end. */
TESS_STRUCT(tess_span) { int first, end, kv_len; };

/* The interval of the blocks [start, end), less those that the sequence does not have: rows may lie
 * past its last key, and keys may be a part of its own. */
TESS_FUNCTION tess_keys tess_interval(int start, int end, tess_span span, int head, int tail) {
    tess_keys keys;
    const int from = start > span.first ? start : span.first, to = end < span.end ? end : span.end,
              blocks = to > from ? to - from : 0;
    tail = tess_clamp(tail - (end - to), 0, blocks);
    keys.left_offset = keys.left_count = keys.right_offset = 0u;
    keys.start = blocks > 0 ? TESS_UINT(from) : 0u;
    keys.blocks = TESS_UINT(blocks);
    keys.mask_tail = TESS_UINT(tail);
    keys.mask_head = TESS_UINT(tess_clamp(head - (from - start), 0, blocks - tail));
    return keys;
}

/* How many entries of a strided list are below block `end`. */
TESS_FUNCTION uint tess_listed_below(int end, tess_key_class cls) {
    /* the list's first block */
    const uint listed = cls.shift == 0u ? 0u : cls.stride - cls.shift, before = TESS_UINT(end);
    return before > listed ? (before - listed - 1u) / cls.stride + 1u : 0u;
}

/* The first local blocks are those of the first row, at position `first`; the last one is the last
 * row's. */
TESS_FUNCTION tess_keys tess_local_keys(int first, int last, tess_span span, tess_key_class cls,
                                        tess_grid grid) {
    const int i_first = tess_divide_int(first, grid.block),
              i_last = tess_divide_int(last, grid.block);
    const bool strided = (cls.flags & TESS_CLASS_LOCAL) != 0u;
    int start = 0, head = 0;
    uint skipped = 0u, listed_before = 0u; /* entries before the part and before the interval */
    /* A tile that begins with the last row of a block sees that block whole. */
    int tail =
        i_last + 1 - i_first - (first + 1 == (i_first + 1) * TESS_INT(grid.block.by) ? 1 : 0);
    if (first >= span.kv_len - 1) tail = 0;
    if (strided) {
        const int near_blocks = TESS_INT(cls.near_blocks);
        start = i_first < near_blocks ? 0 : i_first - near_blocks + 1;
        head = i_last - near_blocks + 1 - start;
        listed_before = tess_listed_below(start < span.end ? start : span.end, cls);
        if (span.first > 0)
            skipped = tess_listed_below(start < span.first ? start : span.first, cls);
    }
    tess_keys keys = tess_interval(start, i_last + 1, span, head, tail);
    keys.left_offset = cls.entries + skipped;
    keys.left_count = listed_before - skipped;
    return keys;
}

TESS_FUNCTION tess_keys tess_window_keys(int first, int last, tess_span span, tess_key_class cls,
                                         tess_grid grid) {
    const int left = TESS_INT(cls.left), sink_blocks = tess_blocks_of(TESS_INT(cls.sinks), grid);
    const bool bounded = left != TESS_INT_MAX;
    const int low = bounded && first > left ? first - left : 0,
              start = tess_divide_int(low, grid.block),
              high = last < span.kv_len - 1 ? last : span.kv_len - 1,
              end = tess_divide_position(high, grid.block) + 1;
    const int seen = bounded ? last - left : 0; /* the last row sees nothing before this */
    const int head = seen <= 0 ? 0 : tess_divide_int(seen - 1, grid.block) + 1 - start,
              tail = first >= span.kv_len - 1 ? 0 : end - tess_divide_int(first + 1, grid.block),
              listed = sink_blocks < span.end ? sink_blocks : span.end,
              skipped = span.first < listed ? span.first : listed;
    /* Where the window lies behind the last key, only sinks are seen. */
    const bool some = high >= low;
    tess_keys keys = tess_interval(some ? start : 0, some ? end : 0, span, head, tail);
    keys.left_offset = keys.right_offset = cls.entries + TESS_UINT(skipped);
    const int before = some && start < listed ? start : listed;
    keys.left_count = before > skipped ? TESS_UINT(before - skipped) : 0u;
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

TESS_FUNCTION tess_storage_group tess_find_group(uint n TESS_OF_PLAN) {
    tess_storage_group group;
    const uint at = plan_at + TESS_STEP_PLAN_WORDS + TESS_PLAN(RUNS) * TESS_STEP_RUN_WORDS +
                    n * TESS_STEP_GROUP_WORDS;
    group.first_run = TESS_WORD(at + TESS_WORD_GROUP_FIRST_RUN);
    group.end_run = TESS_WORD(at + TESS_WORD_GROUP_END_RUN);
    group.first_job = TESS_WORD(at + TESS_WORD_GROUP_FIRST_JOB);
    group.end_job = TESS_WORD(at + TESS_WORD_GROUP_END_JOB);
    return group;
}

/* Some rows of a sequence. */
TESS_STRUCT(tess_step_tile) {
    int first, last; /* positions */
    uint row, rows;
    uint q_len; /* of the sequence, and what follows too */
    tess_span span;
    uint heads; /* query heads of a job at most */
};

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
#define TESS_NO_CLASS 0xffffffffu

/* In place of a part's length: jobs stay whole. */
#define TESS_WHOLE 0xffffffffu

/* How many parts a job of so many key blocks has, where parts have `length` blocks. */
TESS_FUNCTION uint tess_parts_of(uint blocks, tess_divisor length) {
    return blocks <= length.by ? 1u : tess_divide(blocks - 1u, length) + 1u;
}

/* The same of parts that grow, as TESS_SHORT_ROWS says. */
TESS_FUNCTION uint tess_short_parts_of(uint blocks, uint length) {
    uint before = 0u;
    const uint growth = TESS_SHORT_GROWTH(length);
    while (blocks > TESS_SHORT_PARTS * length) {
        blocks -= TESS_SHORT_PARTS * length;
        before += TESS_SHORT_PARTS;
        length += growth;
    }
    return before + tess_larger(tess_quotient_up(blocks, length), 1u);
}

/* Where such a part begins. */
TESS_FUNCTION uint tess_short_begin(uint part, uint length) {
    const uint longer = part / TESS_SHORT_PARTS, growth = TESS_SHORT_GROWTH(length);
    return part * length +
           growth * longer *
               (TESS_SHORT_PARTS / 2u * (longer > 0u ? longer - 1u : 0u) + part % TESS_SHORT_PARTS);
}

/* The n-th tile of a sequence, counted from the last one, since that reads most. */
TESS_FUNCTION tess_step_tile tess_find_step_tile(tess_cut cut, uint n, int first_key, int keys,
                                                 tess_grid grid) {
    tess_step_tile tile;
    const int cell = TESS_INT(grid.cell.by), rows = TESS_INT(grid.tile.by),
              number = cut.first + TESS_INT(cut.tiles - 1u - n),
              in_cell = tess_divide_position(number, grid.tiles),
              origin = in_cell * cell + cut.origin,
              tile_begin = origin + (number - in_cell * TESS_INT(grid.tiles.by)) * rows,
              tile_end = tile_begin + rows < origin + cell ? tile_begin + rows : origin + cell;
    tile.first = tile_begin > cut.begin ? tile_begin : cut.begin;
    tile.last = (tile_end < cut.end ? tile_end : cut.end) - 1;
    tile.row = TESS_UINT(tile.first - cut.begin);
    tile.rows = TESS_UINT(tile.last - tile.first) + 1u;
    tile.q_len = TESS_UINT(cut.end - cut.begin);
    tile.span.first = first_key == 0 ? 0 : tess_divide_int(first_key, grid.block);
    tile.span.kv_len = first_key + keys;
    tile.span.end = tess_blocks_of(tile.span.kv_len, grid);
    tile.heads = cut.heads;
    return tile;
}

/* A unit of no run so far. Parts are equal, unless they have fixed lengths. */
TESS_FUNCTION tess_unit tess_begin_unit(tess_step_tile tile, tess_divisor length TESS_OF_PLAN) {
    tess_unit unit;
    unit.run = unit.head = unit.heads = unit.packed = unit.jobs = 0u;
    unit.cls = TESS_NO_CLASS;
    unit.row = tile.row;
    unit.rows = tile.rows;
    unit.keys.left_offset = unit.keys.left_count = unit.keys.right_offset = 0u;
    unit.keys.start = unit.keys.blocks = unit.keys.mask_head = unit.keys.mask_tail = 0u;
    unit.blocks = 0u;
    unit.parts = 1u;
    unit.grows = TESS_PLAN(SHORT_LENGTH) != 0u && tile.q_len <= TESS_SHORT_ROWS ? 1u : 0u;
    unit.part_blocks = unit.grows != 0u                ? TESS_PLAN(SHORT_LENGTH)
                       : TESS_PLAN(SHORT_LENGTH) != 0u ? length.by
                                                       : 0u;
    return unit;
}

/* `unit` of another run of the same tile. What depends on the class stays if that does. */
TESS_FUNCTION tess_unit tess_find_unit(tess_unit unit, tess_step_tile tile, uint number_of_run,
                                       tess_divisor length, tess_grid grid TESS_OF_PLAN) {
    const uint run = plan_at + TESS_STEP_PLAN_WORDS + number_of_run * TESS_STEP_RUN_WORDS,
               number_of_class = TESS_WORD(run + TESS_WORD_RUN_CLS);
    unit.run = number_of_run;
    unit.head = TESS_LOW_HALF(TESS_WORD(run + TESS_WORD_RUN_HEAD));
    unit.heads = TESS_HIGH_HALF(TESS_WORD(run + TESS_WORD_RUN_HEADS));
    unit.packed = tess_min(tile.heads, unit.heads);
    unit.jobs = unit.packed == unit.heads ? 1u : (unit.heads - 1u) / unit.packed + 1u;
    if (number_of_class == unit.cls) return unit;
    unit.cls = number_of_class;
    /* Rows before the first key keep nothing, and no tile has others beside them. */
    if (tile.first < 0) return unit;
    const tess_key_class cls = tess_find_class(
        number_of_class, TESS_WORD(run + TESS_WORD_RUN_ENTRIES) TESS_TABLES_OF_KERNEL);
    if ((cls.flags & TESS_CLASS_WINDOW) != 0u)
        unit.keys = tess_window_keys(tile.first, tile.last, tile.span, cls, grid);
    else
        unit.keys = tess_local_keys(tile.first, tile.last, tile.span, cls, grid);
    unit.blocks = unit.keys.left_count + unit.keys.blocks;
    const uint max_parts = TESS_PLAN(MAX_PARTS);
    unit.parts = unit.grows != 0u  ? tess_short_parts_of(unit.blocks, unit.part_blocks)
                 : max_parts == 0u ? tess_parts_of(unit.blocks, length)
                                   : tess_larger(tess_min(max_parts, unit.blocks), 1u);
    return unit;
}

/* The first sequence of a workgroup's share. */
TESS_FUNCTION uint tess_share_begin(uint share, uint batch) {
    return batch / TESS_PREPARE_SHARES * share + tess_min(batch % TESS_PREPARE_SHARES, share);
}

/* Whether two runs make jobs of the same key blocks that are counted together. */
TESS_FUNCTION bool tess_are_alike(uint a, uint b, tess_storage_group own TESS_OF_PLAN) {
    const uint runs = plan_at + TESS_STEP_PLAN_WORDS + TESS_WORD_RUN_CLS;
    return TESS_WORD(runs + a * TESS_STEP_RUN_WORDS) == TESS_WORD(runs + b * TESS_STEP_RUN_WORDS) &&
           (a < own.first_run) == (b < own.first_run) && (a < own.end_run) == (b < own.end_run);
}

/* Where a part begins among the key blocks of its job. */
TESS_FUNCTION uint tess_part_begin(tess_unit unit, uint part) {
    if (unit.grows != 0u) return tess_min(tess_short_begin(part, unit.part_blocks), unit.blocks);
    if (unit.part_blocks != 0u) return tess_min(part * unit.part_blocks, unit.blocks);
    const uint rest = unit.blocks % unit.parts;
    return unit.blocks / unit.parts * part + rest * part / unit.parts;
}

/* ------------------------------------------------------------------ lengths of jobs */

/* Jobs are counted in bins by their key blocks: one each below 8, and then eight for each power of
 * two. */
#define TESS_STEP_BINS 240u
/* Lengths of parts that the rule tries in one round. */
#define TESS_STEP_TRIALS 256u
/* More partial results than any workspace of such plans holds, so that sums of all bins fit. */
#define TESS_STEP_PARTIALS 0xffffffu

TESS_FUNCTION uint tess_bin_of(uint blocks) {
    uint bin = 0u;
    for (uint shift = 16u; shift > 0u; shift >>= 1) {
        const bool fits = blocks >> shift >= 8u;
        bin += fits ? 8u * shift : 0u;
        blocks = fits ? blocks >> shift : blocks;
    }
    return bin + blocks;
}

/* The fewest key blocks of a bin. */
TESS_FUNCTION uint tess_bin_start(uint bin) {
    return bin < 16u ? bin : (8u + bin % 8u) << (bin / 8u - 1u);
}

/* What a job takes in the plan's model. */
TESS_FUNCTION uint tess_job_ticks(uint blocks, tess_grid grid TESS_OF_PLAN) {
    return TESS_PLAN(JOB_TICKS) +
           tess_divide_up(blocks * grid.block.by, grid.step_keys) * TESS_PLAN(STEP_TICKS);
}

#endif /* TESS_PREPARE_UNIT_H */
