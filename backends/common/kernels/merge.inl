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
 *
 * A step may have far fewer merges than it has room for. Where a language loops over them, a launch
 * has as many workgroups as run at a time, and each takes all that are left to it.
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

#ifndef TESS_MERGE_LOOP
#define TESS_MERGE_LOOP(number) const uint number = TESS_GROUP;
#define TESS_MERGE_NEXT_OR_LEAVE
#endif

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
    TESS_MERGE_LOOP(number) {
        /* Workgroups past the last merge read the first one's words and then find no rows. A merge
         * has `groups` groups of rows. */
        const bool present = number / groups < tess_present_items(args.items TESS_TABLES_OF_KERNEL);
        TESS_LEAVE_UNLESS(present);
        const tess_merged merge = tess_read_merge(
            tess_find_item(number / groups, present, TESS_MERGE_WORDS TESS_TABLES_OF_KERNEL)
                TESS_TABLES_OF_KERNEL);
        TESS_LEAVE_UNLESS_BOUND(merge.sequence, merge.row, merge.head / args.group)
        const uint first_row = number % groups * TESS_MERGE_ROWS, head_dim = TESS_HEAD_DIM;
        const uint used = present ? merge.packed_rows : 0u, parts = present ? merge.parts : 0u;
        const tess_offset o_base = TESS_FIRST(o, merge, merge.q_start, merge.head);
        const tess_offset lse_base = TESS_FIRST(lse, merge, merge.q_start, merge.head);
        const tess_offset step = TESS_OFFSET(args.partial_rows) * TESS_OFFSET(head_dim + 2u);
        const tess_offset first_o = args.partials_at + TESS_OFFSET(merge.partial) * step;
        const tess_offset first_max =
            first_o + TESS_OFFSET(args.partial_rows) * TESS_OFFSET(head_dim);
        const tess_offset first_sum = first_max + TESS_OFFSET(args.partial_rows);
        const float scale_log2 = (args.scale < 0.0f ? -args.scale : args.scale) * TESS_LOG2E;
#include "merge_rows.inl"
        TESS_MERGE_NEXT_OR_LEAVE;
    }
}
