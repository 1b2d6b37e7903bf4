/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel for few rows is given. Shared by host and device. */
#ifndef TESS_CUDA_DECODE_ARGS_H
#define TESS_CUDA_DECODE_ARGS_H

#include "args.h"

typedef unsigned long long tess_arg_u64;

typedef struct tess_decode_args {
    /* all *_at but partials_at are 0: the pointers below include the offsets */
    tess_args common;
    tess_arg_u64 q, k, v, o, lse; /* device pointers to element 0 */
    tess_arg_u64 block_table, tables, workspace;
    /* bit 0: rows of Q, bit 1: of K and V, bit 2: of O are aligned to 16 bytes */
    tess_arg_u32 wide;
    tess_arg_u32 warps;  /* of a thread block; of a merge: rows that one takes at a time */
    tess_arg_u32 stages; /* of a warp, from 1 to TESS_DECODE_STAGES */
    float scale_log2;    /* |scale| * log2(e) */
    /* of K and V that are codes of 8 bits */
    tess_arg_u64 k_scale, v_scale;
} tess_decode_args;

/* The compiled shapes: X(largest head_dim, rows of a tile, thread blocks of a multiprocessor, of
 * TESS_DECODE_WARPS warps each, keys of a warp's stage). O of 32 rows leaves no registers for more
 * than 128 elements. Several thread blocks hide each other's start and end, and the latency of a
 * stage; the fewer bytes a row has, the more of them it takes. Above 192 elements each has a warp
 * less, so that two stages fit (decode.c). Where jobs are few, the same warps form fewer thread
 * blocks: a job's keys have fewer parts then, and there is less to merge. */
#define TESS_DECODE_INSTANCES(X) \
    X(64, 16, 4, 16)             \
    X(96, 16, 3, 16)             \
    X(128, 16, 3, 32)            \
    X(192, 16, 2, 16)            \
    X(256, 16, 2, 16)            \
    X(64, 32, 3, 16)             \
    X(96, 32, 2, 16)             \
    X(128, 32, 2, 32)

/* The same for K and V of 8 bits. */
#define TESS_DECODE_CODED_INSTANCES(X) X(64, 16, 4, 32) X(128, 16, 3, 32)

#define TESS_DECODE_WARPS 4  /* of the smallest thread block, each with its own keys */
#define TESS_DECODE_RUN   16 /* consecutive keys within one block and one page */
/* The most stages. One of 32 keys of 16 bits has as many bytes as two others, and is alone. */
#define TESS_DECODE_STAGES(element, keys) ((element) * (keys) > 32 ? 1 : 4)

/* Bytes of shared memory of a thread block: the header, Q, and for each stage K, V, scales and the
 * key list. `most` is the most warps that the shape has, `element` the bytes of an element of K and
 * V, and `keys` those of a stage. */
#define TESS_DECODE_HEADER(rows, most) (1024 + 8 * (rows) * (most))
#define TESS_DECODE_SCALES(element)    ((element) == 1 ? 8 : 0)
#define TESS_DECODE_SHARED(head_dim, rows, most, keys, element, warps, stages) \
    (TESS_DECODE_HEADER(rows, most) + 2 * (head_dim) * (rows) +                \
     (warps) * (stages) * (keys) * (2 * (element) * (head_dim) + TESS_DECODE_SCALES(element) + 8))

/* The merge: a thread has 4 elements of its block's rows. A block has one row, or up to
 * TESS_DECODE_MERGE_ROWS while 4 elements a thread are enough for them. */
#define TESS_DECODE_MERGE_THREADS 128
#define TESS_DECODE_MERGE_ROWS    4
#define TESS_DECODE_MERGE_GROUPS  3 /* thread blocks that a multiprocessor runs at a time */
#define TESS_DECODE_MERGE_SHARED  (11 << 10)

#endif /* TESS_CUDA_DECODE_ARGS_H */
