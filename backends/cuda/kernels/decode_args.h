/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel for few rows is given. Shared by host and device. */
#ifndef TESS_CUDA_DECODE_ARGS_H
#define TESS_CUDA_DECODE_ARGS_H

#include "args.h"

typedef unsigned long long tess_arg_u64;

typedef struct tess_decode_args {
    /* *_at are 0 but for partials_at: the pointers below hold the offsets */
    tess_args common;
    tess_arg_u64 q, k, v, o, lse; /* device pointers to element 0 */
    tess_arg_u64 block_table, tables, workspace;
    /* bit 0: rows of Q, bit 1: of K and V, bit 2: of O are aligned to 16 bytes */
    tess_arg_u32 wide;
    tess_arg_u32 warps;  /* of a thread block; of a merge: rows that one takes at a time */
    tess_arg_u32 stages; /* of a warp, from 1 to TESS_DECODE_STAGES */
    float scale_log2;    /* |scale| in exponents of 2 */
    /* of K and V that are codes of 8 bits */
    tess_arg_u64 k_scale, v_scale;
} tess_decode_args;

/* The compiled shapes: X(largest head_dim, rows of a tile, thread blocks of a multiprocessor, of
 * TESS_DECODE_WARPS warps each). O of 32 rows leaves no registers for more than 128 elements.
 * Several thread blocks hide each other's first and last keys, and the latency of a stage: with
 * fewer bytes of a row, it takes more of them. Where jobs are few, the same warps form fewer thread
 * blocks: a job's keys have fewer parts then, and there is less to merge. */
#define TESS_DECODE_INSTANCES(X) \
    X(64, 16, 4)                 \
    X(96, 16, 3) X(128, 16, 3) X(192, 16, 2) X(256, 16, 1) X(64, 32, 3) X(96, 32, 2) X(128, 32, 2)

/* The same for K and V of 8 bits. */
#define TESS_DECODE_CODED_INSTANCES(X) X(64, 16, 4) X(128, 16, 3)

#define TESS_DECODE_WARPS  4  /* of the smallest thread block, each with its own keys */
#define TESS_DECODE_RUN    16 /* keys that follow each other in one block and one page */
#define TESS_DECODE_STAGES 4  /* at most */
/* Keys of a stage of a warp, where one of K and V has `element` bytes: as many bytes, so that
 * finding keys and the softmax cost as much a byte. */
#define TESS_DECODE_KEYS(element) (2 * TESS_DECODE_RUN / (element))

/* Bytes of shared memory of a thread block: descriptions, Q, and of each stage K, V, scales, and
 * what its keys are. `most` is how many warps the shape has at most, and `element` the bytes of one
 * of K and V. */
#define TESS_DECODE_HEADER(rows, most) (1024 + 8 * (rows) * (most))
#define TESS_DECODE_SCALES(element)    ((element) == 1 ? 8 : 0)
#define TESS_DECODE_SHARED(head_dim, rows, most, element, warps, stages) \
    (TESS_DECODE_HEADER(rows, most) + 2 * (head_dim) * (rows) +          \
     (warps) * (stages)*TESS_DECODE_KEYS(element) *                      \
         (2 * (element) * (head_dim) + TESS_DECODE_SCALES(element) + 8))

/* The merge: a thread has 4 elements of the rows of its block, of which there is one or as many as
 * these, where they have at most 4 elements a thread. */
#define TESS_DECODE_MERGE_THREADS 128
#define TESS_DECODE_MERGE_ROWS    4
#define TESS_DECODE_MERGE_GROUPS  3 /* thread blocks that a multiprocessor runs at a time */
#define TESS_DECODE_MERGE_SHARED  (11 << 10)

#endif /* TESS_CUDA_DECODE_ARGS_H */
