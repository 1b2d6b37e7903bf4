/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernels that write a cache are given: tess_append and tess_copy_pages, which share this
 * structure. Their buffers are the new K and V, K and V of the cache, the block table or the list
 * of pairs, the scales of K and of V, and the tables of the plan; a copy has only K and the list.
 * Read by compilers of devices too: see args.h.
 */
#ifndef TESS_COMMON_PAGING_ARGS_H
#define TESS_COMMON_PAGING_ARGS_H

#include "args.h"

/* flags */
#define TESS_PAGING_WIDE    1u /* rows are a whole number of aligned groups of 16 bytes */
#define TESS_PAGING_COMPACT 2u
#define TESS_PAGING_STEP    4u /* the tables are a step's, which counts its sequences and rows */
/* K and V of the cache are codes of 8 bits: E4M3, or with I8 as well, integers. */
#define TESS_PAGING_CODES    8u
#define TESS_PAGING_I8       16u
#define TESS_PAGING_F16      32u  /* codes are made from float16, ... */
#define TESS_PAGING_BF16     64u  /* ... or bfloat16, or else float32 */
#define TESS_PAGING_STATIC_K 128u /* scales of K are read and not written; */
#define TESS_PAGING_STATIC_V 256u /* likewise of V */

/* Codes that a thread writes at a time. */
#define TESS_PAGING_RUN 8u

/* Elements that a thread moves at a time where rows are not aligned. */
#ifndef TESS_PAGING_LEAST
#define TESS_PAGING_LEAST 1u
#endif

#define TESS_PAGING_THREADS 64u

#if !defined(GL_core_profile)
typedef struct tess_paging_args tess_paging_args;
#endif

struct tess_paging_args {
    /* Index of the first element, counted from the start of the buffer that the kernel gets. */
    TESS_ARG_I64(new_k_at);
    TESS_ARG_I64(new_v_at);
    TESS_ARG_I64(k_at);
    TESS_ARG_I64(v_at);
    TESS_ARG_I64(table_at); /* words */
    TESS_ARG_I64(k_scale_at);
    TESS_ARG_I64(v_scale_at);
    /* Strides in elements; of the table, in words. Packed batches have batch strides of 0. */
    TESS_ARG_STRIDES(new_k);
    TESS_ARG_STRIDES(new_v);
    TESS_ARG_STRIDES(k);
    TESS_ARG_STRIDES(v);
    TESS_ARG_I64(table_batch);
    TESS_ARG_I64(k_scale_batch);
    TESS_ARG_I64(k_scale_token);
    TESS_ARG_I64(k_scale_head);
    TESS_ARG_I64(v_scale_batch);
    TESS_ARG_I64(v_scale_token);
    TESS_ARG_I64(v_scale_head);
    /* 32-bit words from the start of the tables. */
    tess_arg_u32 sequences_at, slots_at, kv_heads_at;
    tess_arg_u32 step_at;         /* STEP: the tess_step_head */
    tess_arg_u32 first, items;    /* rows or tokens of this launch; workgroups past them rest */
    tess_arg_u32 n_sequences;     /* in the table, at least 1; with STEP, the step says it */
    tess_arg_u32 sequence_rows;   /* items of each sequence; 0: packed */
    tess_arg_u32 heads, head_dim; /* kv heads, and elements of a row */
    tess_arg_u32 block, page;     /* tokens; page 0: contiguous */
    tess_arg_u32 columns;         /* of a row of the block table that are addressed */
    tess_arg_u32 pages;           /* ids are below it */
    tess_arg_u32 storage;         /* whose kv heads this launch writes */
    tess_arg_u32 flags;           /* TESS_PAGING_* */
};

#endif /* TESS_COMMON_PAGING_ARGS_H */
