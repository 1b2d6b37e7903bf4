/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a portable kernel is given besides its seven buffers (Q, K, V, O, LSE, tables, workspace).
 * Host code and the kernels in CUDA, HIP and OpenCL C share this structure; GLSL has the same
 * fields as push constants of 32 bits (backends/vulkan). Read by compilers of devices too: only
 * fields here.
 */
#ifndef TESS_COMMON_ARGS_H
#define TESS_COMMON_ARGS_H

#if defined(__OPENCL_VERSION__)
typedef long tess_arg_i64;
typedef uint tess_arg_u32;
#else
typedef long long tess_arg_i64;
typedef unsigned int tess_arg_u32;
#endif

#define TESS_ARGS_LSE 1u /* flags: LSE is wanted */

typedef struct tess_args {
    /* Index of the first element, counted from the start of the buffer that the kernel gets. */
    tess_arg_i64 q_at, k_at, v_at, o_at, lse_at, partials_at; /* partials_at: floats */
    /* Strides in elements. Packed batches have batch strides of 0. */
    tess_arg_i64 q_batch, q_token, q_head;
    tess_arg_i64 k_batch, k_token, k_head;
    tess_arg_i64 v_batch, v_token, v_head;
    tess_arg_i64 o_batch, o_token, o_head;
    tess_arg_i64 lse_batch, lse_token, lse_head;
    /* 32-bit words from the start of the tables; items_at is the first job (forward) or merge
     * (merge) of this launch. */
    tess_arg_u32 items_at, sequences_at, classes_at, entries_at, bits_at;
    tess_arg_u32 items;    /* jobs or merges of this launch; workgroups past them do nothing */
    tess_arg_u32 head_dim; /* the real one, at most the instance's */
    tess_arg_u32 block;    /* tokens */
    tess_arg_u32 group;    /* query heads per kv head */
    /* rows of a partial: partial n starts at float partials_at + n * partial_rows * (head_dim +
     * 2) */
    tess_arg_u32 partial_rows;
    tess_arg_u32 flags; /* TESS_ARGS_* */
    float scale;        /* of the scores, natural base */
} tess_args;

#endif /* TESS_COMMON_ARGS_H */
