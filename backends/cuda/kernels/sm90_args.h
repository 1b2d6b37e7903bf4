/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel for Hopper is given. Shared by host and device. */
#ifndef TESS_CUDA_SM90_ARGS_H
#define TESS_CUDA_SM90_ARGS_H

#include "args.h"

typedef unsigned long long tess_arg_u64;

/* CUtensorMap: opaque. A map's dimensions are [batch][head][box][token][element]. A copy takes all
 * of its boxes, which overlap in the tensor. The batch of K and V in pages is the page. */
#ifdef __cplusplus
#define TESS_ALIGN_MAP alignas(64)
#else
#define TESS_ALIGN_MAP _Alignas(64)
#endif
typedef struct tess_tensor_map {
    TESS_ALIGN_MAP tess_arg_u64 words[16];
} tess_tensor_map;

/* The maps of K and V: for the pieces of a stage one by one; for all at once where they are
 * neighbours; and for all at once where each is `step` tokens behind the one before. */
enum { TESS_SM90_PIECES, TESS_SM90_RUN, TESS_SM90_LIST, TESS_SM90_MAPS };

typedef struct tess_sm90_maps {
    tess_tensor_map q, o, k[TESS_SM90_MAPS], v[TESS_SM90_MAPS];
} tess_sm90_maps;

typedef struct tess_sm90_args {
    /* *_at are 0 but for partials_at: the pointers below hold the offsets */
    tess_args common;
    tess_arg_u64 q, k, v, o, lse; /* device pointers to element 0 */
    tess_arg_u64 block_table, tables, workspace;
    /* u32 that is 0 before the launch: jobs claimed beyond the first of each thread block */
    tess_arg_u64 counter;
    /* log2 of the tokens of a piece: the largest power of two, at most 64, that divides the block
     * and the page */
    tess_arg_u32 piece_shift;
    /* token extents of the tensor maps of Q, and of K and V unless these are in pages or by slot */
    tess_arg_u32 q_tokens, kv_tokens;
    /* tokens from a piece to the next that a map copies with it; 0: there is no such map */
    tess_arg_u32 step[TESS_SM90_MAPS];
    /* bit 0: Q, bit 1: K and V are read and bit 2: O is written through tensor maps; else by
     * plain loads and stores */
    tess_arg_u32 tma;
    /* bit 0: rows of Q, bit 1: of K and V, bit 2: of O are aligned to 16 bytes */
    tess_arg_u32 wide;
} tess_sm90_args;

/* The compiled shapes: X(largest head_dim, keys of a stage, consumer warpgroups, tiles of Q in
 * flight, stages of K, stages of V). V is held longer than K, so it has one stage more. A small
 * head_dim leaves registers for a third warpgroup, whose softmax overlaps with the others' work. */
#define TESS_SM90_INSTANCES(X) \
    X(64, 128, 3, 2, 4, 5)     \
    X(96, 128, 2, 2, 2, 3) X(128, 128, 2, 2, 2, 3) X(192, 64, 2, 1, 3, 4) X(256, 64, 2, 1, 2, 3)

#define TESS_SM90_ROWS(groups)    (64 * (groups)) /* of a tile */
#define TESS_SM90_THREADS(groups) (128 + 128 * (groups))

/* Bytes of shared memory of a shape: rows of 128 bytes for Q, K and V, and 3 KiB for alignment,
 * mbarriers and tile descriptions. */
#define TESS_SM90_SHARED(head_dim, keys, groups, q_stages, k_stages, v_stages)      \
    (((head_dim) + 63) / 64 * 128 *                                                 \
         ((q_stages)*TESS_SM90_ROWS(groups) + ((k_stages) + (v_stages)) * (keys)) + \
     3072)

#endif /* TESS_CUDA_SM90_ARGS_H */
