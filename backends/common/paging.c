/* SPDX-License-Identifier: Apache-2.0 */
#include "paging.h"

#include <string.h>

#define TENSOR(role, name, field, element)                           \
    {                                                                \
        role, name, element, offsetof(tess_paging_args, field##_at), \
            offsetof(tess_paging_args, field##_batch)                \
    }

const tess_portable_tensor tess_paging_tensors[TESS_PAGING_TENSORS] = {
    TENSOR(TESS_ROLE_NEW_K, "k", new_k, 0),
    TENSOR(TESS_ROLE_NEW_V, "v", new_v, 0),
    TENSOR(TESS_ROLE_K, "k_pools", k, 0),
    TENSOR(TESS_ROLE_V, "v_pools", v, 0),
    TENSOR(TESS_ROLE_BLOCK_TABLE, "block_table", table, sizeof(int32_t)),
    TENSOR(TESS_ROLE_K_SCALE, "k_scale_pools", k_scale, sizeof(float)),
    TENSOR(TESS_ROLE_V_SCALE, "v_scale_pools", v_scale, sizeof(float))};

const char *tess_paging_refusal(const tess_kernel_key *key) {
    if (key->dtype > TESS_BF16) return "dtype is none of f32, f16 and bf16";
    if (key->kv_dtype != key->dtype && !tess_portable_has_codes(key->kv_dtype))
        return "kv_dtype is neither dtype nor one of 8 bits";
    return NULL;
}

/* Whether all rows of a tensor consist of aligned groups of 16 bytes. */
static int is_wide(const tess_launch *l, const tess_tensor *t, uint32_t item) {
    const uint64_t base = t->buffer.kind == TESS_BUFFER_OBJECT ? 0 : t->buffer.handle,
                   strides = (uint64_t)(t->stride_batch | t->stride_token | t->stride_head) * item;
    return ((base + t->buffer.offset) | strides | (uint64_t)l->head_dim * item) % 16 == 0;
}

static void fill_tensor(const tess_launch *l, const tess_portable_tensor *p, int base_in_handle,
                        tess_paging_args *a) {
    const tess_tensor *t = &l->tensor[p->role];
    const uint32_t item = tess_portable_item(l, p);
    tess_arg_i64 *at = (tess_arg_i64 *)(void *)((char *)a + p->at),
                 *strides = (tess_arg_i64 *)(void *)((char *)a + p->strides);
    if (t->buffer.kind == TESS_BUFFER_NONE) return;
    *at = base_in_handle ? 0 : (tess_arg_i64)(t->buffer.offset / item);
    strides[0] = t->stride_batch;
    /* A table has rows of words, and no more strides. */
    if (p->role == TESS_ROLE_BLOCK_TABLE) return;
    strides[1] = t->stride_token;
    strides[2] = t->stride_head;
    if (!p->element && !is_wide(l, t, item)) a->flags &= ~(tess_arg_u32)TESS_PAGING_WIDE;
}

/* How new rows become codes. */
static tess_arg_u32 code_flags(const tess_launch *l) {
    tess_arg_u32 flags = TESS_PAGING_CODES;
    if (l->kv_dtype == TESS_I8) flags |= TESS_PAGING_I8;
    if (l->dtype != TESS_F32) flags |= l->dtype == TESS_F16 ? TESS_PAGING_F16 : TESS_PAGING_BF16;
    if (l->tensor[TESS_ROLE_K_SCALE].stride_token == 0) flags |= TESS_PAGING_STATIC_K;
    if (l->tensor[TESS_ROLE_V_SCALE].stride_token == 0) flags |= TESS_PAGING_STATIC_V;
    return flags;
}

void tess_paging_fill(const tess_launch *l, uint64_t skip, uint64_t items, int base_in_handle,
                      tess_paging_args *a) {
    const tess_tables *tables = l->tables;
    const int64_t stride = l->tensor[TESS_ROLE_BLOCK_TABLE].stride_batch;
    memset(a, 0, sizeof *a);
    a->flags = TESS_PAGING_WIDE | (l->compact ? TESS_PAGING_COMPACT : 0);
    for (size_t n = 0; n < TESS_PAGING_TENSORS; n++)
        fill_tensor(l, &tess_paging_tensors[n], base_in_handle, a);
    if (tess_portable_has_codes(l->kv_dtype)) a->flags |= code_flags(l);
    a->sequences_at = (tess_arg_u32)(tables->sequences_at / 4);
    a->slots_at = (tess_arg_u32)(tables->slots_at / 4);
    a->kv_heads_at = (tess_arg_u32)(tables->kv_heads_at / 4);
    if (tables->has_step) a->flags |= TESS_PAGING_STEP;
    a->step_at = (tess_arg_u32)(tables->step_at / 4);
    a->first = (tess_arg_u32)(l->first_job + skip);
    a->items = (tess_arg_u32)items;
    a->n_sequences = l->n_sequences;
    a->sequence_rows = l->batch_strided ? (tess_arg_u32)l->q_tokens : 0;
    a->heads = l->n_heads / l->group;
    a->head_dim = (tess_arg_u32)l->head_dim;
    a->block = (tess_arg_u32)l->block;
    a->page = (tess_arg_u32)l->page;
    /* No position reaches 2^31, and one before the first key counts as at least that. */
    const int64_t most = l->page ? INT64_C(0x80000000) / l->page : 0;
    a->columns = l->trusted ? UINT32_MAX : (tess_arg_u32)(stride < most ? stride : most);
    a->pages = tess_portable_pages(l);
    a->storage = l->storage;
}
