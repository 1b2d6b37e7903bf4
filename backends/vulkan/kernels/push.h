/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The push constants of the portable kernels in GLSL: tess_args in 32 words, which is all that
 * Vulkan promises. The shaders declare the same block in the same order (dialect_glsl.h). Indices
 * and strides are kept modulo 2^32, which gives the right element as long as every bound range
 * holds at most 2^32 of them.
 *
 * Descriptors: set 0, storage buffers, bindings 0..6 = Q, K, V, O, LSE, tables, workspace. Indices
 * (*_at) count elements from the start of the bound range: 32-bit words for tables, floats for LSE
 * and workspace. A binding that a launch does not use (LSE or the workspace) still needs some
 * buffer behind it. Specialization constants: 0 = head_dim of the instance, 1 = rows, 2 = keys, 3 =
 * threads (of tess_portable_shape). The merge has none; its workgroups have TESS_MERGE_THREADS
 * threads. Workgroup n is x + y * (workgroups in x).
 */
#ifndef TESS_VULKAN_KERNELS_PUSH_H
#define TESS_VULKAN_KERNELS_PUSH_H

#include "args.h"

#include <stdint.h>

#define TESS_PUSH_BYTES 128u

typedef struct tess_push {
    uint32_t q_at, k_at, v_at, o_at, lse_at, partials_at;
    uint32_t q_batch, q_token, q_head;
    uint32_t k_batch, k_token, k_head;
    uint32_t v_batch, v_token, v_head;
    uint32_t o_batch, o_token, o_head;
    uint32_t lse_batch, lse_token, lse_head;
    uint32_t items_at, sequences_at, classes_at, entries_at, bits_at;
    uint32_t items;
    uint32_t head_dim_flags; /* head_dim + flags * 65536 */
    uint32_t block, group, partial_rows;
    float scale;
} tess_push;

_Static_assert(sizeof(tess_push) == TESS_PUSH_BYTES, "the push constants fill 128 bytes");

static inline tess_push tess_push_of(const tess_args *a) {
    const tess_push push = {
        .q_at = (uint32_t)a->q_at,
        .k_at = (uint32_t)a->k_at,
        .v_at = (uint32_t)a->v_at,
        .o_at = (uint32_t)a->o_at,
        .lse_at = (uint32_t)a->lse_at,
        .partials_at = (uint32_t)a->partials_at,
        .q_batch = (uint32_t)a->q_batch,
        .q_token = (uint32_t)a->q_token,
        .q_head = (uint32_t)a->q_head,
        .k_batch = (uint32_t)a->k_batch,
        .k_token = (uint32_t)a->k_token,
        .k_head = (uint32_t)a->k_head,
        .v_batch = (uint32_t)a->v_batch,
        .v_token = (uint32_t)a->v_token,
        .v_head = (uint32_t)a->v_head,
        .o_batch = (uint32_t)a->o_batch,
        .o_token = (uint32_t)a->o_token,
        .o_head = (uint32_t)a->o_head,
        .lse_batch = (uint32_t)a->lse_batch,
        .lse_token = (uint32_t)a->lse_token,
        .lse_head = (uint32_t)a->lse_head,
        .items_at = a->items_at,
        .sequences_at = a->sequences_at,
        .classes_at = a->classes_at,
        .entries_at = a->entries_at,
        .bits_at = a->bits_at,
        .items = a->items,
        .head_dim_flags = a->head_dim | a->flags << 16,
        .block = a->block,
        .group = a->group,
        .partial_rows = a->partial_rows,
        .scale = a->scale,
    };
    return push;
}

#endif /* TESS_VULKAN_KERNELS_PUSH_H */
