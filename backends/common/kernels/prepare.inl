/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Turns the lengths of a step into its sequences, jobs and merges: one body for every language, C
 * included (dialect_c.h). A workgroup writes the jobs of one storage group.
 *
 * The work is a list of units: what one tile makes of one run of heads. It is walked up to three
 * times. The first walk counts jobs by length, from which the rule chooses the length of parts
 * (prepare_rule.inl), unless the plan gives one. The second walk counts parts, and unsplit jobs by
 * length. The third writes: all parts first, in the order of their units, then the unsplit jobs,
 * longer bins first. Parts write partial results in their order, those of all storage groups one
 * after the other. Only integers decide, so every device and the host make the same set of jobs.
 *
 * Workgroups know nothing of each other: each one finds the same length of parts, and counts what
 * the storage groups before its own have. The first one also writes what all have in common.
 */
#ifndef TESS_PREPARE_ONCE
#define TESS_PREPARE_ONCE

#include "prepare_unit.h"

/* The walks. */
#define TESS_PHASE_LENGTHS 0u
#define TESS_PHASE_COUNT   1u
#define TESS_PHASE_WRITE   2u

/* In shared memory: of the sequences and of the units that threads work on, of the bins, and some
 * sums. */
#define TESS_PREPARE_SHARED                            \
    TESS_SHARED(uint, row_end, TESS_PREPARE_THREADS)   \
    TESS_SHARED(uint, unit_end, TESS_PREPARE_THREADS)  \
    TESS_SHARED(int, q_lens, TESS_PREPARE_THREADS)     \
    TESS_SHARED(int, kv_lens, TESS_PREPARE_THREADS)    \
    TESS_SHARED(int, firsts, TESS_PREPARE_THREADS)     \
    TESS_SHARED(uint, part_end, TESS_PREPARE_THREADS)  \
    TESS_SHARED(uint, merge_end, TESS_PREPARE_THREADS) \
    TESS_SHARED(uint, bin_count, TESS_STEP_BINS)       \
    TESS_SHARED(uint, bin_least, TESS_STEP_BINS)       \
    TESS_SHARED(uint, bin_most, TESS_STEP_BINS)        \
    TESS_SHARED(uint, sums, TESS_PREPARE_SUMS)         \
    TESS_SHARED(uint, best, TESS_PREPARE_THREADS)

/* Places in `sums`. */
#define TESS_PREPARE_SUMS      9u
#define TESS_SUM_PARTS         0u
#define TESS_SUM_MERGES        1u
#define TESS_SUM_WHOLE         2u /* jobs that are not split */
#define TESS_SUM_CLAMPED       3u
#define TESS_SUM_TICKS         4u
#define TESS_SUM_UNSPLIT       5u
#define TESS_SUM_OWN_PARTS     6u /* of the storage group */
#define TESS_SUM_PARTS_BEFORE  7u /* of those before it */
#define TESS_SUM_MERGES_BEFORE 8u

/* array[n] becomes the sum, or whatever `combine` finds, of array[0 .. n]. */
#define TESS_SCAN(array, combine)                                     \
    for (uint gap = 1u; gap < TESS_PREPARE_THREADS; gap <<= 1) {      \
        TESS_BARRIER;                                                 \
        const uint before = thread >= gap ? array[thread - gap] : 0u; \
        TESS_BARRIER;                                                 \
        array[thread] = combine(array[thread], before);               \
    }                                                                 \
    TESS_BARRIER

/* The first place of `ends`, which rise, that is above `value`. */
#define TESS_FIND(place, ends, value)                               \
    uint place = 0u;                                                \
    for (uint gap = TESS_PREPARE_THREADS / 2u; gap > 0u; gap >>= 1) \
        if (ends[place + gap - 1u] <= (value)) place += gap

/* `end`: where the room for the storage group's jobs does. */
TESS_FUNCTION void tess_write_job(uint n, uint end, uint sequence, uint job, tess_unit unit,
                                  tess_keys keys, uint partial TESS_TABLES TESS_STEP) {
    const uint at = TESS_PLAN(JOBS_AT) + n * TESS_JOB_WORDS, done = job * unit.packed;
    if (n >= end) return; /* never, as long as the plan's sums are right */
    TESS_STORE_STEP(at + TESS_WORD_JOB_SEQUENCE, sequence);
    TESS_STORE_STEP(at + TESS_WORD_JOB_HEAD,
                    (unit.head + done) | tess_min(unit.packed, unit.heads - done) << 16);
    TESS_STORE_STEP(at + TESS_WORD_JOB_ROW, unit.row);
    TESS_STORE_STEP(at + TESS_WORD_JOB_ROWS, unit.rows | unit.cls << 16);
    TESS_STORE_STEP(at + TESS_WORD_JOB_LEFT_OFFSET, keys.left_offset);
    TESS_STORE_STEP(at + TESS_WORD_JOB_LEFT_COUNT, keys.left_count);
    TESS_STORE_STEP(at + TESS_WORD_JOB_RIGHT_OFFSET, keys.right_offset);
    TESS_STORE_STEP(at + TESS_WORD_JOB_RIGHT_COUNT, 0u);
    TESS_STORE_STEP(at + TESS_WORD_JOB_INTERVAL_START, keys.start);
    TESS_STORE_STEP(at + TESS_WORD_JOB_INTERVAL_BLOCKS, keys.blocks);
    TESS_STORE_STEP(at + TESS_WORD_JOB_MASK_HEAD,
                    TESS_LOW_HALF(keys.mask_head) | keys.mask_tail << 16);
    TESS_STORE_STEP(at + TESS_WORD_JOB_PARTIAL, partial);
}

TESS_FUNCTION void tess_write_merge(uint n, uint sequence, uint job, tess_unit unit,
                                    uint partial TESS_TABLES TESS_STEP) {
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
TESS_FUNCTION void tess_clear_item(bool merge TESS_TABLES TESS_STEP) {
    const uint at = merge ? TESS_PLAN(MERGES_AT) : TESS_PLAN(JOBS_AT),
               words = merge ? TESS_MERGE_WORDS : TESS_JOB_WORDS;
    if ((merge ? TESS_PLAN(MOST_MERGES) : TESS_PLAN(MOST_JOBS)) == 0u) return;
    for (uint n = 0u; n < words; n++) TESS_STORE_STEP(at + n, 0u);
    TESS_STORE_STEP(at + TESS_WORD_JOB_HEADS, 1u << 16);
    TESS_STORE_STEP(at + TESS_WORD_JOB_ROWS, 1u);
}

/* Sequences are addressed by their place in the batch. Those without rows are in the table too, and
 * no job names them. */
TESS_FUNCTION void tess_write_sequence(uint n, uint row, int q_len, int q_first, int kv_len,
                                       uint flags TESS_TABLES TESS_STEP) {
    const uint at = TESS_PLAN(SEQUENCES_AT) + n * TESS_SEQUENCE_WORDS;
    TESS_STORE_STEP(at + TESS_WORD_SEQUENCE_Q_START, row);
    TESS_STORE_STEP(at + TESS_WORD_SEQUENCE_Q_START + 1u, 0u);
    TESS_STORE_STEP(at + TESS_WORD_SEQUENCE_KV_START, 0u);
    TESS_STORE_STEP(at + TESS_WORD_SEQUENCE_KV_START + 1u, 0u);
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
    const uint thread = TESS_THREAD, group = TESS_GROUP,
               batch = tess_min(args.items, TESS_PLAN(BATCH)), chooses = TESS_PLAN(CHOOSES);
    const tess_storage_group own = tess_find_group(group TESS_TABLES_OF_KERNEL);
    uint length = 0u, own_jobs = 0u, all_rows = 0u;
    for (uint n = thread; n < TESS_PREPARE_SUMS; n += TESS_PREPARE_THREADS) sums[n] = 0u;
    for (uint n = group * TESS_PREPARE_THREADS + thread; n < TESS_PLAN(COPY_WORDS);
         n += TESS_PLAN(GROUPS) * TESS_PREPARE_THREADS)
        TESS_STORE_STEP(TESS_PLAN(COPY_TO) + n, TESS_WORD(TESS_PLAN(COPY_FROM) + n));

    for (uint phase = chooses != 0u ? TESS_PHASE_LENGTHS : TESS_PHASE_COUNT;
         phase <= TESS_PHASE_WRITE; phase++) {
        /* The last row of the sequences before; parts and merges that are written. */
        uint rows_before =
            TESS_UINT(tess_clamp(batch != 0u ? TESS_CU_ROWS(0u) : 0, 0, TESS_INT(TESS_PLAN(ROWS))));
        uint parts_done = 0u, merges_done = sums[TESS_SUM_MERGES_BEFORE];
        /* Those whose units are walked. */
        const uint first_run = phase == TESS_PHASE_WRITE ? own.first_run : 0u,
                   n_runs = phase == TESS_PHASE_WRITE ? own.end_run - first_run : TESS_PLAN(RUNS);
        uint ticks = 0u, blocks = 0u, shared_blocks = 0u; /* of this thread, in phase LENGTHS */
        if (phase != TESS_PHASE_WRITE) {
            for (uint b = thread; b < TESS_STEP_BINS; b += TESS_PREPARE_THREADS) {
                bin_count[b] = bin_most[b] = 0u;
                bin_least[b] = 0xffffffffu;
            }
        }
        for (uint first = 0u; TESS_LOOP_ENTERS(first == 0u) || first < batch;
             first += TESS_PREPARE_THREADS) {
#include "prepare_sequences.inl"
            const uint n_units = unit_end[TESS_PREPARE_THREADS - 1u];
            if (phase == TESS_PHASE_WRITE) {
                for (uint chunk = 0u; TESS_LOOP_ENTERS(chunk == 0u) || chunk < n_units;
                     chunk += TESS_PREPARE_THREADS) {
#include "prepare_write.inl"
                }
            } else {
                for (uint u = thread; u < n_units; u += TESS_PREPARE_THREADS) {
#include "prepare_count.inl"
                }
            }
            TESS_BARRIER;
        }
        all_rows = rows_before;
        TESS_BARRIER;
        if (phase == TESS_PHASE_LENGTHS) {
#include "prepare_rule.inl"
        }
        if (phase == TESS_PHASE_COUNT) {
            /* Where the unsplit jobs of each bin begin: behind the parts and all longer bins. */
            for (uint b = thread; b < TESS_STEP_BINS; b += TESS_PREPARE_THREADS) {
                uint at = own.first_job + sums[TESS_SUM_OWN_PARTS];
                for (uint longer = b + 1u; longer < TESS_STEP_BINS; longer++)
                    at += bin_count[longer];
                bin_most[b] = at;
                if (b == 0u) own_jobs = at + bin_count[0] - own.first_job; /* of thread 0 */
            }
            TESS_BARRIER;
        }
    }
    if (thread == 0u) {
        TESS_STORE_STEP(TESS_PLAN(ENDS_AT) + group,
                        own.first_job + tess_min(own_jobs, own.end_job - own.first_job));
    }
    if (thread == 0u && group == 0u) {
        const uint jobs = sums[TESS_SUM_PARTS] + sums[TESS_SUM_WHOLE];
        /* Workgroups without an item of their own read the first one, which then has to be there.
         */
        if (own_jobs == 0u) tess_clear_item(false TESS_TABLES_OF_KERNEL TESS_STEP_OF_KERNEL);
        if (sums[TESS_SUM_MERGES] == 0u)
            tess_clear_item(true TESS_TABLES_OF_KERNEL TESS_STEP_OF_KERNEL);
        TESS_STORE_STEP(TESS_WORD_STEP_JOBS, tess_min(jobs, TESS_PLAN(MOST_JOBS)));
        TESS_STORE_STEP(TESS_WORD_STEP_MERGES,
                        tess_min(sums[TESS_SUM_MERGES], TESS_PLAN(MOST_MERGES)));
        TESS_STORE_STEP(TESS_WORD_STEP_PARTIALS, sums[TESS_SUM_PARTS]);
        TESS_STORE_STEP(TESS_WORD_STEP_CLAMPED, sums[TESS_SUM_CLAMPED]);
        TESS_STORE_STEP(TESS_WORD_STEP_LENGTH, length);
        TESS_STORE_STEP(TESS_WORD_STEP_UNSPLIT_TICKS, sums[TESS_SUM_UNSPLIT]);
        TESS_STORE_STEP(TESS_WORD_STEP_TICKS, sums[TESS_SUM_TICKS]);
        TESS_STORE_STEP(TESS_WORD_STEP_SEQUENCES, batch);
        TESS_STORE_STEP(TESS_WORD_STEP_ROWS, all_rows);
        TESS_STORE_STEP(TESS_WORD_STEP_PLAN, TESS_PLAN(ID));
        TESS_STORE_STEP(TESS_WORD_STEP_PLAN_AT,
                        TESS_PLAN(COPY_TO) + args.items_at - TESS_PLAN(COPY_FROM));
    }
}
