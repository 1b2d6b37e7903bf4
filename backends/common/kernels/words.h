/* SPDX-License-Identifier: Apache-2.0 */
/* Constants of the portable kernels in every language: the words of the tables, sizes of the merge,
 * and numbers of the softmax. */
#ifndef TESS_KERNEL_WORDS_H
#define TESS_KERNEL_WORDS_H

#include "tessera/tessera_job_words.h"

/* A workgroup of the merge takes so many rows, and weighs so many parts of each at a time. */
#define TESS_MERGE_THREADS 64u
#define TESS_MERGE_ROWS    4u
#define TESS_MERGE_PARTS   (TESS_MERGE_THREADS / TESS_MERGE_ROWS)

#define TESS_INT_MAX 0x7fffffff
#define TESS_INT_MIN (-0x7fffffff - 1)
#define TESS_LOG2E   1.44269504088896340736f
#define TESS_LN2     0.69314718055994530942f
/* Stands for minus infinity where no result shows it. */
#define TESS_LOWEST (-3.0e38f)

#endif /* TESS_KERNEL_WORDS_H */
