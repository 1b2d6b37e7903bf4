/* SPDX-License-Identifier: Apache-2.0 */
/* What the backward kernel for Ampere and later is given. Shared by host and device. */
#ifndef TESS_CUDA_SM80_BACKWARD_ARGS_H
#define TESS_CUDA_SM80_BACKWARD_ARGS_H

#include "args.h"

typedef unsigned long long tess_arg_u64;

typedef struct tess_sm80_backward_args {
    /* Filled as for the portable kernel of the stage (backends/common/backward.h): dO stands in the
     * place of O, the stage's gradient in that of LSE, and dV in that of V's scales. All *_at but
     * partials_at are 0: the pointers below include the offsets. */
    tess_args common;
    tess_arg_u64 q, k, v,
        d_o; /* device pointers to element 0; in DELTA q is O, k is dLSE, and v is unused */
    tess_arg_u64 out, out_v; /* the stage's gradient, or LSE in DELTA; dV */
    tess_arg_u64 tables, workspace;
    /* rows are aligned to 16 bytes; bit 0: of Q, bit 1: of K, bit 2: of V, bit 3: of dO, bit 4: of
     * the stage's gradient, bit 5: of dV */
    tess_arg_u32 wide;
    tess_arg_u32 wants_q; /* a single pass computes dQ, too */
    float scale_log2;     /* scale * log2(e) */
} tess_sm80_backward_args;

/*
 * The compiled shapes. The compiled shapes. A thread block holds a tile of rows or keys and walks
 * over the other side in steps. X(largest head_dim, tile, step, warps, pipeline stages of a step's
 * items, and three divisions among warps: of the tile for scores, of the tile for sums, and of the
 * step for sums of its items). The first shape of a head_dim needs more shared memory than the
 * second.
 */
#define TESS_SM80_BACKWARD_SHAPES(X) \
    X(64, 128, 64, 8, 2, 4, 4, 2)    \
    X(128, 128, 64, 8, 2, 4, 4, 2)   \
    X(128, 64, 32, 8, 2, 4, 2, 2)    \
    X(256, 64, 32, 8, 2, 4, 2, 2)    \
    X(256, 32, 32, 4, 1, 2, 1, 2)

/* Shapes of the single pass in which half of the warps run ahead, for devices with the most shared
 * memory. */
#define TESS_SM80_BACKWARD_SKEWED_SHAPES(X) \
    X(64, 128, 64, 8, 2, 4, 4, 2)           \
    X(128, 128, 64, 8, 2, 4, 4, 2)          \
    X(256, 64, 64, 8, 2, 4, 2, 2)

#define TESS_SM80_BACKWARD_STRIP_THREADS 256 /* of a thread block that takes a strip */

/* Shared memory that comes before the matrices. */
#define TESS_SM80_BACKWARD_ROWS_HEADER    4096
#define TESS_SM80_BACKWARD_COLUMNS_HEADER 3072
#define TESS_SM80_BACKWARD_SKEWED_HEADER  6144

/* Bytes of shared memory of a shape: both tensors of the tile and of each stage, dS, and for
 * columns P; dS of two steps where warps run ahead. */
#define TESS_SM80_BACKWARD_MATRICES(head_dim, tile, step, stages, weights) \
    (4 * (head_dim) * ((tile) + (stages) * (step)) + 2 * (weights) * (tile) * (step))
#define TESS_SM80_BACKWARD_ROWS_SHARED(head_dim, tile, step, stages) \
    (TESS_SM80_BACKWARD_MATRICES(head_dim, tile, step, stages, 1) + TESS_SM80_BACKWARD_ROWS_HEADER)
#define TESS_SM80_BACKWARD_COLUMNS_SHARED(head_dim, tile, step, stages) \
    (TESS_SM80_BACKWARD_MATRICES(head_dim, tile, step, stages, 2) +     \
     TESS_SM80_BACKWARD_COLUMNS_HEADER)
#define TESS_SM80_BACKWARD_SKEWED_SHARED(head_dim, tile, step, stages) \
    (TESS_SM80_BACKWARD_MATRICES(head_dim, tile, step, stages, 3) +    \
     TESS_SM80_BACKWARD_SKEWED_HEADER)

#endif /* TESS_CUDA_SM80_BACKWARD_ARGS_H */
