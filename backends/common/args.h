/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a portable kernel is given besides its ten buffers (Q, K, V, O, LSE, block table, scales of
 * K and of V, tables, workspace). Host code and the kernels in CUDA, HIP, OpenCL C and GLSL share
 * this structure. It is read by compilers of devices too: only fields here.
 *
 * GLSL without shaderInt64 has no 64-bit members: there each of them is two words, and the low one
 * has the name. Indices are taken modulo 2^32, which gives the right element as long as a bound
 * range holds at most 2^32 of them. Without vectors and arrays, std140 gives the offsets of C.
 */
#ifndef TESS_COMMON_ARGS_H
#define TESS_COMMON_ARGS_H

/* flags */
#define TESS_ARGS_LSE     1u  /* LSE is wanted */
#define TESS_ARGS_PAGED   2u  /* K and V lie in pages, and the block table is there */
#define TESS_ARGS_COMPACT 4u  /* K and V lie by slot */
#define TESS_ARGS_STEP    8u  /* the tables are a step's, which says how many items there are */
#define TESS_ARGS_FIRST   16u /* of a step that is prepared: positions of first rows are given */
#define TESS_ARGS_E4M3    32u /* K and V are such codes, and have scales ... */
#define TESS_ARGS_I8      64u /* ... or these */
/* Of the stages of backward (kernels/backward_strips.h): dLSE is given, dK and dV are wanted, and
 * gradients are float32 or are added to float32. */
#define TESS_ARGS_D_LSE 128u
#define TESS_ARGS_D_K   256u
#define TESS_ARGS_D_V   512u
#define TESS_ARGS_F32   1024u
#define TESS_ARGS_ADD   2048u
#define TESS_ARGS_TRUST 4096u /* of a step that is prepared: its lengths need no check, ... */
#define TESS_ARGS_PARTS 8192u /* ... and positions of first keys are given */

#if defined(GL_core_profile)
#define TESS_ARG_I64(name) uint name, name##_high
#define tess_arg_u32       uint
#else
#if defined(__OPENCL_VERSION__)
typedef long tess_arg_i64;
typedef uint tess_arg_u32;
#else
typedef long long tess_arg_i64;
typedef unsigned int tess_arg_u32;
#endif
#define TESS_ARG_I64(name) tess_arg_i64 name
typedef struct tess_args tess_args;
#endif

/* Of tensor q: q_batch, q_token and q_head. */
#define TESS_ARG_STRIDES(tensor)  \
    TESS_ARG_I64(tensor##_batch); \
    TESS_ARG_I64(tensor##_token); \
    TESS_ARG_I64(tensor##_head)

struct tess_args {
    /* Index of the first element, counted from the start of the buffer that the kernel gets. */
    TESS_ARG_I64(q_at);
    TESS_ARG_I64(k_at);
    TESS_ARG_I64(v_at);
    TESS_ARG_I64(o_at);
    TESS_ARG_I64(lse_at);
    TESS_ARG_I64(partials_at); /* floats */
    /* Strides in elements. Packed batches have batch strides of 0. */
    TESS_ARG_STRIDES(q);
    TESS_ARG_STRIDES(k);
    TESS_ARG_STRIDES(v);
    TESS_ARG_STRIDES(o);
    TESS_ARG_STRIDES(lse);
    /* Of the block table: 32-bit words, of which a token and a head would have 1 and 0. */
    TESS_ARG_I64(block_table_at);
    TESS_ARG_STRIDES(block_table);
    TESS_ARG_I64(k_scale_at);
    TESS_ARG_STRIDES(k_scale);
    TESS_ARG_I64(v_scale_at);
    TESS_ARG_STRIDES(v_scale);
    /* 32-bit words from the start of the tables; items_at is the first job (forward) or merge
     * (merge) of this launch. */
    tess_arg_u32 items_at, sequences_at, classes_at, entries_at, bits_at;
    tess_arg_u32 items;    /* jobs or merges of this launch; workgroups past them do nothing */
    tess_arg_u32 head_dim; /* the real one, at most the instance's */
    tess_arg_u32 block;    /* tokens */
    tess_arg_u32 group;    /* query heads per kv head */
    /* Rows of a partial. Partial n starts at partials_at + n * partial_rows * (head_dim + 2). */
    tess_arg_u32 partial_rows;
    tess_arg_u32 flags; /* TESS_ARGS_* */
    float scale;        /* of the scores, natural base */
    /* With TESS_ARGS_STEP: the word of the tables that holds the number of the item after the last
     * one of the step, or of the launch's storage group, and the number of the launch's first
     * one. */
    tess_arg_u32 count_at, first_item;
    /* Words from the start of the tables: COMPACT only. */
    tess_arg_u32 slots_at, kv_heads_at;
    tess_arg_u32 page;  /* PAGED: tokens of a page, ... */
    tess_arg_u32 pages; /* ... and pages of K and V */
};

#endif /* TESS_COMMON_ARGS_H */
