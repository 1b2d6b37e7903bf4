/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The merge of partial results: one body for every language (see forward.inl). A workgroup of
 * TESS_MERGE_THREADS threads takes TESS_MERGE_ROWS rows of one merge.
 *
 * TESS_MERGE_PARTS threads for each row look for row_max, and then find the weights of as many
 * parts at a time. After each such step, all threads share out the elements in groups of 4 and add
 * the parts in rising order. The rows of a workgroup follow each other in a partial result: they
 * are TESS_MERGE_ROWS * head_dim consecutive floats, of which thread t takes the groups number t,
 * t + TESS_MERGE_THREADS, ...
 */
#ifndef TESS_MERGE_ONCE
#define TESS_MERGE_ONCE

#include "items.h"

/* Groups of 4 elements of a thread: TESS_MERGE_ROWS * 256 / 4 / TESS_MERGE_THREADS. */
#define TESS_MERGE_GROUPS 2u

/* Parts whose elements a thread asks for before it adds the first of them: a merge is as fast as
 * its reads follow each other. A divisor of TESS_MERGE_PARTS. */
#ifndef TESS_MERGE_AHEAD
#define TESS_MERGE_AHEAD 4u
#endif

/* Shared memory: m of parts, and later of rows; weights of parts. */
#define TESS_MERGE_SHARED                                           \
    TESS_SHARED(float, part_max, TESS_MERGE_ROWS *TESS_MERGE_PARTS) \
    TESS_SHARED(float, part_weight, TESS_MERGE_ROWS *TESS_MERGE_PARTS)

/* The fields of a tess_merge. */
TESS_STRUCT(tess_merged) {
    uint sequence; /* word where it begins in the tables */
    uint batch, head, row, rows, packed_rows;
    uint partial, parts;
    tess_offset q_start; /* of the first row */
};

TESS_FUNCTION tess_merged tess_read_merge(uint merge TESS_TABLES) {
    tess_merged m;
    const uint sequence =
        args.sequences_at + TESS_WORD(merge + TESS_WORD_MERGE_SEQUENCE) * TESS_SEQUENCE_WORDS;
    m.sequence = sequence;
    m.batch = TESS_WORD(sequence + TESS_WORD_SEQUENCE_BATCH);
    m.head = TESS_LOW_HALF(TESS_WORD(merge + TESS_WORD_MERGE_HEAD));
    m.row = TESS_WORD(merge + TESS_WORD_MERGE_ROW);
    m.rows = TESS_LOW_HALF(TESS_WORD(merge + TESS_WORD_MERGE_ROWS));
    m.packed_rows = TESS_HIGH_HALF(TESS_WORD(merge + TESS_WORD_MERGE_HEADS)) * m.rows;
    m.partial = TESS_WORD(merge + TESS_WORD_MERGE_PARTIAL);
    m.parts = TESS_WORD(merge + TESS_WORD_MERGE_PARTS);
    m.q_start = TESS_WORD64(sequence + TESS_WORD_SEQUENCE_Q_START) + TESS_OFFSET(m.row);
    return m;
}

/* row_max of part n of this thread's row. */
#define TESS_ROW_MAX_OF(n) \
    TESS_LOAD_PARTIAL(first_max + TESS_OFFSET(n) * step + TESS_OFFSET(own_row))
/* Where a row of O or of LSE is. */
#define TESS_MERGED_AT(tensor)                                  \
    (tensor##_base + TESS_OFFSET(packed) * args.tensor##_head + \
     TESS_OFFSET(own) * args.tensor##_token)

#endif

#ifdef TESS_SHARED_OUTSIDE
TESS_MERGE_SHARED
#endif

TESS_MERGE_KERNEL {
#ifndef TESS_SHARED_OUTSIDE
    TESS_MERGE_SHARED
#endif
    /* A step's tables come from a kernel. */
    if ((args.flags & TESS_ARGS_STEP) != 0u) { TESS_DEPENDENCIES_WAIT; }
    const uint thread = TESS_THREAD,
               groups = (args.partial_rows + TESS_MERGE_ROWS - 1u) / TESS_MERGE_ROWS;
    /* Workgroups past the last merge read the first one's words and then find no rows. */
    const bool present = TESS_GROUP / groups < tess_present_items(args.items TESS_TABLES_OF_KERNEL);
    TESS_LEAVE_UNLESS(present);
    const tess_merged merge = tess_read_merge(
        tess_find_item(TESS_GROUP / groups, present, TESS_MERGE_WORDS TESS_TABLES_OF_KERNEL)
            TESS_TABLES_OF_KERNEL);
    TESS_LEAVE_UNLESS_BOUND(merge.sequence, merge.row, merge.head / args.group)
    const uint first_row = TESS_GROUP % groups * TESS_MERGE_ROWS, head_dim = TESS_HEAD_DIM;
    const uint used = present ? merge.packed_rows : 0u, parts = present ? merge.parts : 0u;
    const tess_offset o_base = TESS_FIRST(o, merge, merge.q_start, merge.head);
    const tess_offset lse_base = TESS_FIRST(lse, merge, merge.q_start, merge.head);
    const tess_offset step = TESS_OFFSET(args.partial_rows) * TESS_OFFSET(head_dim + 2u);
    const tess_offset first_o = args.partials_at + TESS_OFFSET(merge.partial) * step;
    const tess_offset first_max = first_o + TESS_OFFSET(args.partial_rows) * TESS_OFFSET(head_dim);
    const tess_offset first_sum = first_max + TESS_OFFSET(args.partial_rows);
    const float scale_log2 = (args.scale < 0.0f ? -args.scale : args.scale) * TESS_LOG2E;

    /* row_max of each row. That of a part without keys is at or below TESS_LOWEST, and its sum is
     * 0. */
    const uint line = thread / TESS_MERGE_PARTS, lane = thread % TESS_MERGE_PARTS,
               own_row = first_row + line;
    const bool weighs = own_row < used;
    /* part_max_0 and part_sum_0 are of the first part of this thread. */
    float row_max = TESS_LOWEST, part_max_0 = TESS_LOWEST, part_sum_0 = 0.0f;
    TESS_DEPENDENCIES_WAIT; /* nothing before this reads what another kernel writes */
    if (weighs && lane < parts) {
        const tess_offset at = TESS_OFFSET(lane) * step + TESS_OFFSET(own_row);
        part_max_0 = TESS_LOAD_PARTIAL(first_max + at);
        part_sum_0 = TESS_LOAD_PARTIAL(first_sum + at);
        row_max = tess_max(row_max, part_max_0);
        for (uint n = lane + TESS_MERGE_PARTS; n < parts; n += TESS_MERGE_PARTS)
            row_max = tess_max(row_max, TESS_ROW_MAX_OF(n));
    }
    part_max[thread] = row_max;
    TESS_BARRIER;
    TESS_UNROLL for (uint n = 0u; n < TESS_MERGE_PARTS; n++) row_max =
        tess_max(row_max, part_max[line * TESS_MERGE_PARTS + n]);
    TESS_BARRIER;
    if (lane == 0u) part_max[line] = row_max; /* of the row from here on */

    vec4 o[TESS_MERGE_GROUPS];
    float row_sum[TESS_MERGE_GROUPS];
    TESS_UNROLL for (uint g = 0u; g < TESS_MERGE_GROUPS; g++) {
        o[g] = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
        row_sum[g] = 0.0f;
    }
    for (uint first = 0u; TESS_LOOP_ENTERS(first == 0u) || first < parts;
         first += TESS_MERGE_PARTS) {
        float weight = 0.0f;
        if (weighs && first + lane < parts) {
            float max_ = part_max_0, sum = part_sum_0;
            if (first != 0u) {
                const tess_offset at = TESS_OFFSET(first + lane) * step + TESS_OFFSET(own_row);
                max_ = TESS_LOAD_PARTIAL(first_max + at);
                sum = TESS_LOAD_PARTIAL(first_sum + at);
            }
            /* Where the sum is 0, the difference may be infinite. */
            if (sum != 0.0f) weight = sum * tess_exp2((max_ - row_max) * scale_log2);
        }
        part_weight[thread] = weight;
        TESS_BARRIER;
        const uint count = tess_min(parts - first, TESS_UINT(TESS_MERGE_PARTS));
        TESS_UNROLL for (uint g = 0u; g < TESS_MERGE_GROUPS; g++) {
            const uint e = (g * TESS_MERGE_THREADS + thread) * 4u, r = e / head_dim;
            if (r < TESS_MERGE_ROWS && first_row + r < used) {
                const tess_offset from =
                    first_o + TESS_OFFSET(first) * step + TESS_OFFSET(first_row * head_dim + e);
                for (uint n = 0u; n < count; n += TESS_MERGE_AHEAD) {
                    vec4 x[TESS_MERGE_AHEAD];
                    TESS_UNROLL for (uint i = 0u; i < TESS_MERGE_AHEAD; i++) {
                        x[i] = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
                        if (n + i < count)
                            x[i] = TESS_LOAD4_PARTIAL(from + TESS_OFFSET(n + i) * step);
                    }
                    /* the weights of parts past the last one are 0 */
                    TESS_UNROLL for (uint i = 0u; i < TESS_MERGE_AHEAD; i++) {
                        const float w = part_weight[r * TESS_MERGE_PARTS + n + i];
                        o[g] += x[i] * w;
                        row_sum[g] += w;
                    }
                }
            }
        }
        TESS_BARRIER;
    }

    TESS_UNROLL for (uint g = 0u; g < TESS_MERGE_GROUPS; g++) {
        const uint e = (g * TESS_MERGE_THREADS + thread) * 4u, r = e / head_dim,
                   dim = e - r * head_dim;
        if (r < TESS_MERGE_ROWS && first_row + r < used) {
            const uint packed = (first_row + r) / merge.rows,
                       own = first_row + r - packed * merge.rows;
            const vec4 out4 = o[g] * (row_sum[g] != 0.0f ? 1.0f / row_sum[g] : 0.0f);
            TESS_STORE4_O(TESS_MERGED_AT(o) + TESS_OFFSET(dim), out4);
            if (dim == 0u && (TESS_FLAGS & TESS_ARGS_LSE) != 0u)
                TESS_STORE_LSE(TESS_MERGED_AT(lse),
                               row_sum[g] != 0.0f
                                   ? (part_max[r] * scale_log2 + tess_log2(row_sum[g])) * TESS_LN2
                                   : TESS_MINUS_INFINITY);
        }
    }
}
