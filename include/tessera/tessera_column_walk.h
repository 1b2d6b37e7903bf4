/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tessera: the rows of a column in their order, for kernels in C. For each segment and each of its
 * heads, a kernel asks for one run of rows after the other:
 *
 *     for (uint32_t n = 0; n < segment->rows;) {
 *         const tess_row_run run = tess_row_run_at(segment, cls, sequence, block, entries, bits,
 * n);
 *         ... rows [run.row, run.row + run.rows) against the keys
 *             tess_column_key(column, block, k), segment_begin <= k < segment_end ...
 *         n += run.taken;
 *     }
 *
 * where the segment's keys are from k = first * block to k = min(keys, (first + blocks) * block).
 */
#ifndef TESSERA_TESSERA_COLUMN_WALK_H
#define TESSERA_TESSERA_COLUMN_WALK_H

#include "tessera_backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The position of key k of a column. */
static inline int64_t tess_column_key(const tess_column *column, uint32_t block, uint32_t k) {
    const uint32_t m = k / block, at = k % block;
    if (m < column->first_blocks) return (int64_t)column->key + (int64_t)m * column->step + at;
    return (int64_t)column->next_key + (int64_t)(m - column->first_blocks) * column->step + at;
}

typedef struct tess_row_run {
    int32_t row;     /* the first row of the sequence */
    uint32_t rows;   /* may be 0 */
    uint32_t masked; /* 1: tess_kept decides; 0: the rows keep all of the keys that `bits` allows */
    uint32_t bits;   /* bit m: the rows read block m of the column; all ones but for a mask */
    uint32_t taken;  /* to be added to n */
} tess_row_run;

/* The run that begins with number n of the segment, n < segment->rows. `cls` and `sequence` are the
 * segment's and the column's; `entries` and `bits` are the tables. */
static inline tess_row_run tess_row_run_at(const tess_segment *segment, const tess_class *cls,
                                           const tess_sequence *sequence, uint32_t block,
                                           const uint32_t *entries, const uint32_t *bits,
                                           uint32_t n) {
    tess_row_run run = {0, 0, 0, 0xffffffffu, 1};
    int64_t begin, end;
    if (!(cls->flags & TESS_CLASS_BITS) && segment->step == 0) {
        const uint32_t head =
                           segment->mask_head == TESS_ALL_ROWS ? segment->rows : segment->mask_head,
                       tail = segment->rows - segment->mask_tail;
        run.masked = n < head || n >= tail;
        run.taken = run.rows = (n < head ? head : n < tail ? tail : segment->rows) - n;
        run.row = (int32_t)(segment->row + (int64_t)n);
        return run;
    }
    if (cls->flags & TESS_CLASS_BITS) {
        const uint64_t at = (uint64_t)segment->row + n;
        begin = (int64_t)entries[at] * block - sequence->q_first;
        run.bits = bits[at] >> segment->step;
        if (segment->blocks < 32) run.bits &= (1u << segment->blocks) - 1;
        run.masked = n < segment->mask_head;
    } else {
        begin = segment->row + (int64_t)n * segment->step;
    }
    end = begin + block < sequence->q_len ? begin + block : sequence->q_len;
    if (begin < 0) begin = 0;
    run.row = (int32_t)begin;
    run.rows = end > begin ? (uint32_t)(end - begin) : 0;
    return run;
}

#ifdef __cplusplus
}
#endif

#endif /* TESSERA_TESSERA_COLUMN_WALK_H */
