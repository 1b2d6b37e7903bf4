/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel for Ampere and later is given. Shared by host and device. */
#ifndef TESS_CUDA_SM80_ARGS_H
#define TESS_CUDA_SM80_ARGS_H

#include "args.h"

typedef unsigned long long tess_arg_u64;

typedef struct tess_sm80_args {
    /* *_at are 0 but for partials_at: the pointers below hold the offsets */
    tess_args common;
    tess_arg_u64 q, k, v, o, lse; /* device pointers to element 0 */
    tess_arg_u64 block_table, tables, workspace;
    /* bit 0: rows of Q, bit 1: of K and V, bit 2: of O are aligned to 16 bytes */
    tess_arg_u32 wide;
    tess_arg_u32 stages; /* 1 or 2, of keys and values in shared memory */
    float scale_log2;    /* |scale| in exponents of 2 */
} tess_sm80_args;

/* The compiled shapes: X(largest head_dim, rows of a tile, stages that fit the 99 KiB which a
 * thread block may have on every device, thread blocks of a multiprocessor at most). */
#define TESS_SM80_INSTANCES(X) \
    X(64, 128, 2, 3) X(96, 128, 2, 2) X(128, 128, 2, 2) X(192, 64, 1, 3) X(256, 64, 1, 2)

#define TESS_SM80_KEYS    64  /* of a stage */
#define TESS_SM80_THREADS 128 /* four warps of 16 rows, or of twice 16 */

/* Bytes of shared memory of a shape: Q, and stages of K and V, and 3 KiB for descriptions. */
#define TESS_SM80_SHARED(head_dim, rows, stages) \
    (2 * (head_dim) * ((rows) + 2 * (stages)*TESS_SM80_KEYS) + 3072)

#endif /* TESS_CUDA_SM80_ARGS_H */
