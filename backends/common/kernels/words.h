/* SPDX-License-Identifier: Apache-2.0 */
/* What the portable kernels share in every language: the words of the tables, sizes of the merge,
 * numbers of the softmax, and where rows are. */
#ifndef TESS_KERNEL_WORDS_H
#define TESS_KERNEL_WORDS_H

#include "tessera/tessera_job_words.h"

/* A workgroup of the merge takes so many rows, and weighs so many parts of each at a time. */
#define TESS_MERGE_THREADS 128u
#define TESS_MERGE_ROWS    4u
#define TESS_MERGE_PARTS   (TESS_MERGE_THREADS / TESS_MERGE_ROWS)

/* Stands for the page of a key that has none. */
#define TESS_ABSENT 0xffffffffu

/* Of a workgroup that merges parts: 4 elements each of the longest vector. */
#define TESS_PARTS_THREADS 64u

#define TESS_INT_MAX 0x7fffffff
#define TESS_INT_MIN (-0x7fffffff - 1)
#define TESS_LOG2E   1.44269504088896340736f
#define TESS_LN2     0.69314718055994530942f
/* Stands for minus infinity where no result shows it. */
#define TESS_LOWEST (-3.0e38f)

/* Where row `start` and head `head` of a job or merge are in tensor x of the arguments, and how far
 * from there another of its rows is: head_row is head * 65536 + row, counted within the job. */
#define TESS_FIRST(x, tile_, start, head_) TESS_FIRST_OF(x, (tile_).batch, start, head_)
/* The same of any entry of the batch dimension. */
#define TESS_FIRST_OF(x, batch, start, head_)                                     \
    (args.x##_at + TESS_OFFSET(batch) * args.x##_batch + (start)*args.x##_token + \
     TESS_OFFSET(head_) * args.x##_head)
#define TESS_ROW_OFFSET(x, head_row)                         \
    (TESS_OFFSET(TESS_HIGH_HALF(head_row)) * args.x##_head + \
     TESS_OFFSET(TESS_LOW_HALF(head_row)) * args.x##_token)

#endif /* TESS_KERNEL_WORDS_H */
