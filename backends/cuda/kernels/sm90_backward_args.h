/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels of backward for Hopper are given. Shared by host and device. */
#ifndef TESS_CUDA_SM90_BACKWARD_ARGS_H
#define TESS_CUDA_SM90_BACKWARD_ARGS_H

#include "sm90_args.h"

/* The tensors of backward, in this order. */
enum {
    TESS_SM90_Q,
    TESS_SM90_K,
    TESS_SM90_V,
    TESS_SM90_O,
    TESS_SM90_LSE,
    TESS_SM90_D_O,
    TESS_SM90_D_LSE,
    TESS_SM90_D_Q,
    TESS_SM90_D_K,
    TESS_SM90_D_V,
    TESS_SM90_TENSORS
};

typedef struct tess_sm90_tensor {
    tess_arg_u64 address;            /* of element 0; 0: not given, or not wanted */
    tess_arg_i64 batch, token, head; /* strides in elements; packed batches have none of batch */
} tess_sm90_tensor;

/* Of Q and dO: boxes of a step's rows; of K and V: of a piece of a block. */
typedef struct tess_sm90_backward_maps {
    tess_tensor_map q, d_o, k, v;
} tess_sm90_backward_maps;

/* Of `f32` and `add`: gradients that are float32, and that are added to. */
#define TESS_SM90_DQ  1u
#define TESS_SM90_DKV 2u

typedef struct tess_sm90_backward_args {
    tess_sm90_tensor tensor[TESS_SM90_TENSORS];
    tess_arg_u64 tables;
    /* LSE in base 2 and Delta of each row: for each query head and strip, first LSE of its rows and
     * then their Delta. A row that contributes nothing, or does not exist, has an infinite LSE and
     * a Delta of 0. */
    tess_arg_u64 rows;
    /* dQ of each query head and strip, in float32 and without the scale, in the order of the
     * registers that it is summed in (epilogue_backward.cuh). */
    tess_arg_u64 accumulators;
    /* u32 that is 0 before the launch: columns claimed */
    tess_arg_u64 counter;
    /* [0: additions to dQ have no order] u32 of each query head and strip: tessera_turns.h */
    tess_arg_u64 turns;
    /* Of columns that are cut, `n_sums` times (tess_launch.n_cut_columns): dV and dK
     * so far, in float32 and without the scale, of 8 keys each in the order of the registers; and
     * how many columns have added there, u32 of either warpgroup, 0 before the first launch. */
    tess_arg_u64 sums, sum_turns;
    /* 32-bit words from the start of the tables; items_at is the first job of this launch. */
    tess_arg_u32 items_at, sequences_at, classes_at, segments_at, entries_at, bits_at,
        first_strips_at;
    tess_arg_u32 items, first_item; /* columns of the launch; the first among the plan's */
    tess_arg_u32 head_dim;          /* the real one, at most the instance's */
    tess_arg_u32 block, group, heads, strips;
    tess_arg_u32 cut_columns, parts; /* the first ones of the plan: `parts` have the same keys */
    tess_arg_u32 n_sums;             /* at least 1 */
    float scale;
    tess_arg_u32 f32, add;
    /* log2 of the tokens of a piece: the largest power of two, at most 64, that divides the block
     */
    tess_arg_u32 piece_shift;
    tess_arg_u32 q_tokens, kv_tokens; /* extents of the tensor maps */
    /* A bit for each tensor: its rows are aligned to 16 bytes; it is read through its map. */
    tess_arg_u32 wide, tma;
} tess_sm90_backward_args;

/* The compiled shapes: X(largest head_dim, rows of a step and of a strip). A column has 128 keys.
 * In both shapes S, dP and dQ of a step fit the registers that dK and dV leave. */
#define TESS_SM90_BACKWARD_INSTANCES(X) X(64, 128) X(128, 64)

enum {
    TESS_SM90_COLUMN_KEYS = 128,
    TESS_SM90_COLUMN_THREADS = 384,
    TESS_SM90_DELTA_THREADS = 128,
    TESS_SM90_FINISH_THREADS = 256
};

/* Bytes of shared memory: K and V; three stages of Q and two of dO; two of dS; dQ until it is
 * added; and 12 KiB for rows, barriers and descriptions. */
#define TESS_SM90_BACKWARD_SHARED(head_dim, rows) \
    (2 * 128 * 2 * (head_dim) + 5 * 2 * (rows) * (head_dim) + 2 * 2 * 128 * (rows) + 32768 + 12288)

#endif /* TESS_CUDA_SM90_BACKWARD_ARGS_H */
