/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel for Ampere and later is given. Shared by host and device. */
#ifndef TESS_CUDA_SM80_ARGS_H
#define TESS_CUDA_SM80_ARGS_H

#include "args.h"

typedef unsigned long long tess_arg_u64;

typedef struct tess_sm80_args {
    /* all *_at but partials_at are 0: the pointers below include the offsets */
    /* for float32, strides of Q, K and V count halves of elements */
    tess_args common;
    tess_arg_u64 q, k, v, o, lse; /* device pointers to element 0 */
    tess_arg_u64 block_table, tables, workspace;
    /* bit 0: rows of Q, bit 1: of K and V, bit 2: of O are aligned to 16 bytes */
    tess_arg_u32 wide;
    tess_arg_u32 stages; /* pipeline stages of K and V in shared memory: 1 or 2 */
    float scale_log2;    /* |scale| * log2(e) */
} tess_sm80_args;

/* The compiled shapes: X(largest head_dim, rows of a tile, pipeline stages, most thread blocks of a
 * multiprocessor). The stages fit 99 KiB, which a thread block may have on every device. */
#define TESS_SM80_INSTANCES(X) \
    X(64, 128, 2, 3) X(96, 128, 2, 2) X(128, 128, 2, 2) X(192, 64, 1, 3) X(256, 64, 1, 2)

/* Those for float32, whose rows are copied as if they had twice as many elements of 16 bits. */
#define TESS_TF32_INSTANCES(X) X(64, 64, 2, 3) X(128, 64, 1, 2)

#define TESS_SM80_KEYS    64  /* of a stage */
#define TESS_SM80_THREADS 128 /* four warps with 16 or 32 rows each */

/* Bytes of shared memory of a shape: Q, the stages of K and V, and a header of 3 KiB. */
#define TESS_SM80_SHARED(head_dim, rows, stages) \
    (2 * (head_dim) * ((rows) + 2 * (stages)*TESS_SM80_KEYS) + 3072)
#define TESS_TF32_SHARED(head_dim, rows, stages) TESS_SM80_SHARED(2 * (head_dim), rows, stages)

#endif /* TESS_CUDA_SM80_ARGS_H */
