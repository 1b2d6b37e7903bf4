/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Turns the lengths of a step into its sequences, jobs and merges: one body for every language, C
 * included (dialect_c.h). A workgroup writes the jobs that one of the plan's kernels has of one
 * storage group, or a share of them: those of some consecutive sequences.
 *
 * The work is a list of units: what one tile makes of one run of heads. It is walked up to three
 * times. The first walk counts jobs by length, from which the rule chooses the length of parts
 * (prepare_rule.inl), unless the plan gives one. The second walk counts parts, and unsplit jobs by
 * length. The third writes: all parts first, in the order of their tiles, then the unsplit jobs,
 * longer bins first. Parts write partial results in their order, those of all storage groups one
 * after the other. Only integers decide, so every device and the host make the same set of jobs.
 *
 * Workgroups know nothing of each other: each one counts all units of its kernel, finds the same
 * length of parts, and knows what those before it write. The first one also writes what all have in
 * common. Counting is quick, and one multiprocessor would take long to store all jobs.
 */
#ifndef TESS_PREPARE_ONCE
#define TESS_PREPARE_ONCE

#include "prepare_unit.h"

/* The walks. */
#define TESS_PHASE_LENGTHS 0u
#define TESS_PHASE_COUNT   1u
#define TESS_PHASE_WRITE   2u

/* In shared memory: of the sequences that threads work on (row_end to tile_end), of the tiles and
 * runs that they write (part_end to places, which the rule takes for its trials), of the bins, and
 * some sums. */
#define TESS_PREPARE_SHARED                            \
    TESS_SHARED(uint, row_end, TESS_PREPARE_THREADS)   \
    TESS_SHARED(int, q_lens, TESS_PREPARE_THREADS)     \
    TESS_SHARED(int, kv_lens, TESS_PREPARE_THREADS)    \
    TESS_SHARED(int, firsts, TESS_PREPARE_THREADS)     \
    TESS_SHARED(int, numbers, TESS_PREPARE_THREADS)    \
    TESS_SHARED(uint, packs, TESS_PREPARE_THREADS)     \
    TESS_SHARED(uint, tile_end, TESS_PREPARE_THREADS)  \
    TESS_SHARED(uint, part_end, TESS_PREPARE_SCRATCH)  \
    TESS_SHARED(uint, merge_end, TESS_PREPARE_SCRATCH) \
    TESS_SHARED(uint, places, TESS_PREPARE_SCRATCH)    \
    TESS_SHARED(uint, bin_count, TESS_STEP_BINS)       \
    TESS_SHARED(uint, bin_least, TESS_STEP_BINS)       \
    TESS_SHARED(uint, bin_most, TESS_STEP_BINS)        \
    TESS_SHARED(uint, bin_above, TESS_STEP_BINS)       \
    TESS_SHARED(uint, bin_before, TESS_STEP_BINS)      \
    TESS_SHARED(uint, held, TESS_STEP_BINS)            \
    TESS_SHARED(uint, sums, TESS_PREPARE_SUMS)
#define TESS_PREPARE_SCRATCH \
    (TESS_PREPARE_THREADS > TESS_STEP_TRIALS ? TESS_PREPARE_THREADS : TESS_STEP_TRIALS)

/* Places in `sums`. */
#define TESS_SUM_PARTS         0u
#define TESS_SUM_MERGES        1u
#define TESS_SUM_WHOLE         2u /* jobs that are not split */
#define TESS_SUM_CLAMPED       3u
#define TESS_SUM_OWN_PARTS     4u /* of the storage group */
#define TESS_SUM_OWN_BEFORE    5u /* those of them that the workgroups before this one write */
#define TESS_SUM_PARTS_BEFORE  6u /* of these and of the storage groups before */
#define TESS_SUM_MERGES_BEFORE 7u
/* Those of the rule. Sums of any size take two words, and what each round finds, one a round. */
#define TESS_SUM_ALL_TICKS 8u
#define TESS_SUM_BLOCKS    10u
#define TESS_SUM_SHARED    12u /* blocks, where all heads of a group read K and V together */
#define TESS_SUM_HELD      14u
#define TESS_SUM_BOUND     15u
#define TESS_SUM_LONGEST   16u
#define TESS_SUM_BEST      17u /* the least cost, all bits turned */
#define TESS_SUM_FOUND     19u
#define TESS_SUM_UNSPLIT   21u
#define TESS_SUM_TICKS     22u
#define TESS_PREPARE_SUMS  23u

/* Four words from a multiple of four on; a language may have one store for them. */
#ifndef TESS_STORE_STEP4
#define TESS_STORE_STEP4(at, a, b, c, d) \
    TESS_STORE_STEP(at, a);              \
    TESS_STORE_STEP((at) + 1u, b);       \
    TESS_STORE_STEP((at) + 2u, c);       \
    TESS_STORE_STEP((at) + 3u, d)
#endif

/* A language with shuffles has its own of these two. */
#ifndef TESS_SCAN
/* array[n] becomes the sum, or whatever `combine` finds, of array[0 .. n]. */
#define TESS_SCAN(array, combine)                                     \
    for (uint gap = 1u; gap < TESS_PREPARE_THREADS; gap <<= 1) {      \
        TESS_BARRIER;                                                 \
        const uint before = thread >= gap ? array[thread - gap] : 0u; \
        TESS_BARRIER;                                                 \
        array[thread] = combine(array[thread], before);               \
    }                                                                 \
    TESS_BARRIER
/* Adds the x of all threads. */
#define TESS_ADD_ALL(to, x) \
    if (TESS_LOOP_ENTERS(true) || (x) != 0u) TESS_ADD_SHARED(to, x)
#endif

/* A barrier, and whether `x` holds for all threads. A language without a barrier that tells says
 * that it does not. */
#ifndef TESS_HOLDS_FOR_ALL
#define TESS_HOLDS_FOR_ALL(x) false
#endif

/* The same in two words, so that nothing is lost, and the sum, which stops at the largest number.
 */
#define TESS_ADD_WIDE(place, x)             \
    TESS_ADD_ALL(sums[place], (x)&0xffffu); \
    TESS_ADD_ALL(sums[(place) + 1u], (x) >> 16)
#define TESS_WIDE_SUM(place) tess_sum(tess_product(sums[(place) + 1u], 0x10000u), sums[place])

/* Ends the kernel. A language whose kernels read the step before this one counts as completed makes
 * it visible to them here. */
#ifndef TESS_END_PREPARE
#define TESS_END_PREPARE
#endif

/* A condition that was found before a barrier; a language may find it again. */
#ifndef TESS_FOUND
#define TESS_FOUND(before, again) (before)
#endif

/* The first place of `ends`, which rise, that is above `value`. */
#define TESS_FIND(place, ends, value)                               \
    uint place = 0u;                                                \
    for (uint gap = TESS_PREPARE_THREADS / 2u; gap > 0u; gap >>= 1) \
        if (ends[place + gap - 1u] <= (value)) place += gap

/* How many of the tiles at hand are of sequences before number `sequence` of the batch. */
#define TESS_TILES_BEFORE(sequence) \
    ((sequence) <= first ? 0u : tile_end[tess_min((sequence)-first, TESS_PREPARE_THREADS) - 1u])

/* The sequence of tile `t`. Where each one has one tile, as in decoding, no search is needed. */
#define TESS_FIND_SEQUENCE(place, t)                                                               \
    uint place = t;                                                                                \
    if (t >= TESS_PREPARE_THREADS || tile_end[t] != t + 1u || (t > 0u && tile_end[t - 1u] != t)) { \
        TESS_FIND(found_##place, tile_end, t);                                                     \
        place = found_##place;                                                                     \
    }

/* Where the keys of sequence `s` begin, of which there are so many. */
#define TESS_FIRST_KEY(s, keys)                                             \
    ((args.flags & TESS_ARGS_PARTS) != 0u                                   \
         ? tess_first_key(TESS_KV_FIRST(s), keys, grid TESS_PLAN_OF_KERNEL) \
         : 0)

/* Tile `t` of those at hand, of the sequence at `place`. */
#define TESS_TILE_AT(tile, place, t)                                                            \
    const uint tile##_before = place > 0u ? tile_end[place - 1u] : 0u;                          \
    const tess_cut tile##_cut =                                                                 \
        tess_find_cut(q_lens[place], firsts[place], numbers[place],                             \
                      tile_end[place] - tile##_before, packs[place], grid TESS_PLAN_OF_KERNEL); \
    const int tile##_first_key = TESS_FIRST_KEY(first + place, kv_lens[place]);                 \
    const tess_step_tile tile =                                                                 \
        tess_find_step_tile(tile##_cut, (t)-tile##_before, tile##_first_key, kv_lens[place], grid)

/* `end`: where the room for the storage group's jobs does. */
TESS_FUNCTION void tess_write_job(uint n, uint end, uint sequence, uint job, tess_unit unit,
                                  tess_keys keys, uint partial TESS_OF_PLAN TESS_STEP) {
    const uint at = TESS_PLAN(JOBS_AT) + n * TESS_JOB_WORDS, done = job * unit.packed;
    if (n >= end) return; /* never, as long as the plan's sums are right */
    /* In the order of tessera_job_words.h. */
    TESS_STORE_STEP4(at, sequence,
                     (unit.head + done) | tess_min(unit.packed, unit.heads - done) << 16, unit.row,
                     unit.rows | unit.cls << 16);
    TESS_STORE_STEP4(at + 4u, keys.left_offset, keys.left_count, keys.right_offset, 0u);
    TESS_STORE_STEP4(at + 8u, keys.start, keys.blocks,
                     TESS_LOW_HALF(keys.mask_head) | keys.mask_tail << 16, partial);
}

TESS_FUNCTION void tess_write_merge(uint n, uint sequence, uint job, tess_unit unit,
                                    uint partial TESS_OF_PLAN TESS_STEP) {
    const uint at = TESS_PLAN(MERGES_AT) + n * TESS_MERGE_WORDS, done = job * unit.packed;
    if (n >= TESS_PLAN(MOST_MERGES)) return; /* likewise */
    TESS_STORE_STEP(at + TESS_WORD_MERGE_SEQUENCE, sequence);
    TESS_STORE_STEP(at + TESS_WORD_MERGE_HEAD,
                    (unit.head + done) | tess_min(unit.packed, unit.heads - done) << 16);
    TESS_STORE_STEP(at + TESS_WORD_MERGE_ROW, unit.row);
    TESS_STORE_STEP(at + TESS_WORD_MERGE_ROWS, unit.rows);
    TESS_STORE_STEP(at + TESS_WORD_MERGE_PARTIAL, partial);
    TESS_STORE_STEP(at + TESS_WORD_MERGE_PARTS, unit.parts);
}

/* The first job or merge: one row of the first sequence and head, and no keys. */
TESS_FUNCTION void tess_clear_item(bool merge TESS_OF_PLAN TESS_STEP) {
    const uint at = merge ? TESS_PLAN(MERGES_AT) : TESS_PLAN(JOBS_AT),
               words = merge ? TESS_MERGE_WORDS : TESS_JOB_WORDS;
    if ((merge ? TESS_PLAN(MOST_MERGES) : TESS_PLAN(MOST_JOBS)) == 0u) return;
    for (uint n = 0u; n < words; n++) TESS_STORE_STEP(at + n, 0u);
    TESS_STORE_STEP(at + TESS_WORD_JOB_HEADS, 1u << 16);
    TESS_STORE_STEP(at + TESS_WORD_JOB_ROWS, 1u);
}

/* Sequences are addressed by their place in the batch. Those without rows are in the table too, and
 * no job names them. */
TESS_FUNCTION void tess_write_sequence(uint n, uint row, int q_len, int q_first, int kv_start,
                                       int kv_len, uint flags TESS_OF_PLAN TESS_STEP) {
    const uint at = TESS_PLAN(SEQUENCES_AT) + n * TESS_SEQUENCE_WORDS;
    TESS_STORE_STEP(at + TESS_WORD_SEQUENCE_Q_START, row);
    TESS_STORE_STEP(at + TESS_WORD_SEQUENCE_Q_START + 1u, 0u);
    TESS_STORE_STEP(at + TESS_WORD_SEQUENCE_KV_START, TESS_UINT(kv_start));
    TESS_STORE_STEP(at + TESS_WORD_SEQUENCE_KV_START + 1u, kv_start < 0 ? 0xffffffffu : 0u);
    TESS_STORE_STEP(at + TESS_WORD_SEQUENCE_BATCH, 0u);
    TESS_STORE_STEP(at + TESS_WORD_SEQUENCE_Q_LEN, TESS_UINT(q_len));
    TESS_STORE_STEP(at + TESS_WORD_SEQUENCE_KV_LEN, TESS_UINT(kv_len));
    TESS_STORE_STEP(at + TESS_WORD_SEQUENCE_Q_FIRST, TESS_UINT(q_first));
    TESS_STORE_STEP(at + TESS_WORD_SEQUENCE_KV_BATCH, n);
    TESS_STORE_STEP(at + TESS_WORD_SEQUENCE_FLAGS, flags);
}

#endif

#ifdef TESS_SHARED_OUTSIDE
TESS_PREPARE_SHARED
#endif

TESS_PREPARE_KERNEL {
#ifndef TESS_SHARED_OUTSIDE
    TESS_PREPARE_SHARED
#endif
    /* The workgroups of the plan's second kernel follow those of the first one, and so on. */
    const uint thread = TESS_THREAD, workgroups = args.group * TESS_PREPARE_SHARES,
               kernel_number = TESS_GROUP / workgroups,
               workgroup = TESS_GROUP - kernel_number * workgroups,
               group = workgroup / TESS_PREPARE_SHARES, share = workgroup % TESS_PREPARE_SHARES;
    TESS_SET_PLAN = args.items_at + kernel_number * args.first_item;
    const uint batch = tess_min(args.items, TESS_PLAN(BATCH)), chooses = TESS_PLAN(CHOOSES),
               first_phase = chooses != 0u ? TESS_PHASE_LENGTHS : TESS_PHASE_COUNT;
    /* Of the first sequences: these loads need not wait for the plan's words. */
    const bool is_early = thread < args.items;
    const int early_begin = is_early ? TESS_CU_ROWS(thread) : 0,
              early_end = is_early ? TESS_CU_ROWS(thread + 1u) : 0,
              early_kv = is_early ? TESS_KV_LENS(thread) : 0;
    const tess_storage_group own = tess_find_group(group TESS_PLAN_OF_KERNEL);
    const tess_grid grid = tess_find_grid(TESS_PLAN(CELL) TESS_PLAN_OF_KERNEL);
    tess_divisor length =
        tess_divisor_of(TESS_PLAN(SHORT_LENGTH) != 0u ? TESS_PLAN(LONG_LENGTH) : TESS_WHOLE);
    /* The sequences whose jobs this workgroup writes. */
    const uint own_first = tess_share_begin(share, batch),
               own_end = tess_share_begin(share + 1u, batch);
    uint chosen = 0u, own_jobs = 0u, all_rows = 0u;
    for (uint n = thread; n < TESS_PREPARE_SUMS; n += TESS_PREPARE_THREADS) sums[n] = 0u;
    for (uint n = thread; n < TESS_STEP_TRIALS; n += TESS_PREPARE_THREADS)
        part_end[n] = merge_end[n] = places[n] = 0u;
    for (uint n = workgroup * TESS_PREPARE_THREADS + thread; n < TESS_PLAN(COPY_WORDS);
         n += workgroups * TESS_PREPARE_THREADS)
        TESS_STORE_STEP(TESS_PLAN(COPY_TO) + n, TESS_WORD(TESS_PLAN(COPY_FROM) + n));

    for (uint phase = first_phase; phase <= TESS_PHASE_WRITE; phase++) {
        /* The last row of the sequences before; parts and merges that are written. */
        uint rows_before =
            TESS_UINT(tess_clamp(batch != 0u ? TESS_CU_ROWS(0u) : 0, 0, TESS_INT(TESS_PLAN(ROWS))));
        uint parts_done = 0u, merges_done = sums[TESS_SUM_MERGES_BEFORE];
        /* Those whose units are walked. */
        const uint first_run = phase == TESS_PHASE_WRITE ? own.first_run : 0u,
                   end_run = phase == TESS_PHASE_WRITE ? own.end_run : TESS_PLAN(RUNS);
        uint ticks = 0u, blocks = 0u, shared_blocks = 0u; /* of this thread, in phase LENGTHS */
        uint parts = 0u, merges = 0u, whole = 0u, own_parts = 0u; /* and in phase COUNT */
        uint parts_before = 0u, merges_before = 0u, own_before = 0u;
        if (phase != TESS_PHASE_WRITE) {
            for (uint b = thread; b < TESS_STEP_BINS; b += TESS_PREPARE_THREADS) {
                bin_count[b] = bin_most[b] = bin_before[b] = 0u;
                bin_least[b] = 0xffffffffu;
            }
        }
        TESS_BARRIER;
        for (uint first = 0u; TESS_LOOP_ENTERS(first == 0u) || first < batch;
             first += TESS_PREPARE_THREADS) {
            if (TESS_LOOP_ENTERS(true) || phase == first_phase || batch > TESS_PREPARE_THREADS) {
#include "prepare_sequences.inl"
            }
            /* Where there are few tiles, several threads share the runs of each. */
            const uint end_tile = phase == TESS_PHASE_WRITE ? TESS_TILES_BEFORE(own_end)
                                                            : tile_end[TESS_PREPARE_THREADS - 1u],
                       first_tile = phase == TESS_PHASE_WRITE ? TESS_TILES_BEFORE(own_first) : 0u,
                       n_tiles = end_tile - first_tile;
            const tess_divisor lanes = tess_divisor_of(
                tess_min(tess_larger(TESS_PREPARE_THREADS / tess_larger(n_tiles, 1u), 1u),
                         end_run - first_run));
            const uint tiles = tess_divide(TESS_PREPARE_THREADS, lanes),
                       own_tile = tess_divide(thread, lanes),
                       own_run = first_run + thread - own_tile * lanes.by;
            if (phase == TESS_PHASE_WRITE) {
                for (uint chunk = first_tile;
                     TESS_LOOP_ENTERS(chunk == first_tile) || chunk < end_tile; chunk += tiles) {
#include "prepare_write.inl"
                }
            } else {
                for (uint t = own_tile; own_tile < tiles && t < end_tile; t += tiles) {
#include "prepare_count.inl"
                }
            }
            TESS_BARRIER;
        }
        if (phase != TESS_PHASE_WRITE) {
#include "prepare_bins.inl"
            if (phase == TESS_PHASE_LENGTHS) {
#include "prepare_rule.inl"
                /* Of one storage group that stays whole, everything is counted. */
                if (chosen == 0u && args.group == 1u) {
                    if (thread == 0u) sums[TESS_SUM_WHOLE] = binned;
                    for (uint b = thread; b < TESS_STEP_BINS; b += TESS_PREPARE_THREADS)
                        bin_above[b] += own.first_job + bin_before[b];
                    phase = TESS_PHASE_COUNT;
                }
            }
        }
    }
#include "prepare_head.inl"
    TESS_END_PREPARE
}
