/* SPDX-License-Identifier: Apache-2.0 */
#include "portable.h"

#include "shapes.h"

#include <string.h>

/* Sizes of the arrays in workgroup memory. kernels/forward.inl derives them likewise from the same
 * numbers. */
#define COLUMNS(keys) ((keys) / 4)
#define SLICE(rows)   ((rows) >= 32 ? 32 : 16)
#define SCORES(rows, keys)                                                               \
    (((rows) + (keys)) * SLICE(rows) > (rows) * (keys) ? ((rows) + (keys)) * SLICE(rows) \
                                                       : (rows) * (keys))
#define SHARED(rows, keys) \
    (4 *                   \
     (SCORES(rows, keys) + COLUMNS(keys) * 128 + (rows)*COLUMNS(keys) + 5 * (keys) + 5 * (rows)))
#define SHAPE(dims, rows, keys, threads) \
    { dims, rows, keys, threads, SHARED(rows, keys), 0 }
/* kernels/forward_few.inl: ten vectors of 4 floats a thread, two chunks' states of keys, the rows'
 * and the walk's. */
#define FEW_SHARED(rows, keys, threads) \
    (160 * (threads) + 2 * 32 * (keys) + 4 * 5 * (rows) + 4 * 12)
/* 0: tiles take problems of few rows as well, as they take all others. */
enum { TAKE_FEW = 1 };

#define FEW_OF(dims)                                                                           \
    {                                                                                          \
        dims, TESS_FEW_ROWS_##dims, TESS_FEW_KEYS_##dims, TESS_FEW_THREADS_##dims,             \
            FEW_SHARED(TESS_FEW_ROWS_##dims, TESS_FEW_KEYS_##dims, TESS_FEW_THREADS_##dims), 1 \
    }
#define OF(dims) SHAPE(dims, TESS_ROWS_##dims, TESS_KEYS_##dims, TESS_THREADS_##dims)
#define SMALL_OF(dims) \
    SHAPE(dims, TESS_SMALL_ROWS_##dims, TESS_SMALL_KEYS_##dims, TESS_SMALL_THREADS_##dims)

const tess_portable_variant tess_portable = {{OF(64), OF(128), OF(256)}};
const tess_portable_variant tess_portable_tall = {{SHAPE(64, 128, 32, 128), OF(128), OF(256)}};
const tess_portable_variant tess_portable_small = {{SMALL_OF(64), SMALL_OF(128), SMALL_OF(256)}};
const tess_portable_variant tess_portable_few = {{FEW_OF(64), FEW_OF(128), FEW_OF(256)}};

_Static_assert(SHARED(TESS_SMALL_ROWS_64, TESS_SMALL_KEYS_64) <= 16384 &&
                   SHARED(TESS_SMALL_ROWS_128, TESS_SMALL_KEYS_128) <= 16384 &&
                   SHARED(TESS_SMALL_ROWS_256, TESS_SMALL_KEYS_256) <= 16384,
               "the small variant fits 16 KiB of workgroup memory");

#define FEW_FITS(dims)                                                                           \
    (FEW_SHARED(TESS_FEW_ROWS_##dims, TESS_FEW_KEYS_##dims, TESS_FEW_THREADS_##dims) <= 16384 && \
     TESS_FEW_KEYS_##dims * (dims) == 64 * TESS_FEW_THREADS_##dims &&                            \
     TESS_FEW_ROWS_##dims * (dims) <= 32 * TESS_FEW_THREADS_##dims)
_Static_assert(FEW_FITS(64) && FEW_FITS(128) && FEW_FITS(256),
               "that for few rows does as well, and its threads are enough for its rows");

#define TENSOR(role, field, element) \
    { role, #field, element, offsetof(tess_args, field##_at), offsetof(tess_args, field##_batch) }

const tess_portable_tensor tess_portable_tensors[TESS_PORTABLE_TENSORS] = {
    TENSOR(TESS_ROLE_Q, q, 0),
    TENSOR(TESS_ROLE_K, k, 0),
    TENSOR(TESS_ROLE_V, v, 0),
    TENSOR(TESS_ROLE_O, o, 0),
    TENSOR(TESS_ROLE_LSE, lse, sizeof(float)),
    TENSOR(TESS_ROLE_BLOCK_TABLE, block_table, sizeof(int32_t)),
    TENSOR(TESS_ROLE_K_SCALE, k_scale, sizeof(float)),
    TENSOR(TESS_ROLE_V_SCALE, v_scale, sizeof(float))};

static const char *const dtype_names[] = {"f32", "f16", "bf16"};

const char *tess_portable_dtype(uint32_t dtype) {
    return dtype <= TESS_BF16 ? dtype_names[dtype] : "?";
}

uint32_t tess_portable_element(uint32_t dtype) { return dtype == TESS_F32 ? 4 : 2; }

uint32_t tess_portable_item(const tess_launch *l, const tess_portable_tensor *t) {
    if (l->op == TESS_OP_BACKWARD) return tess_backward_item(l, t);
    if (t->element) return t->element;
    if ((t->role == TESS_ROLE_K || t->role == TESS_ROLE_V) && tess_portable_has_codes(l->kv_dtype))
        return 1;
    return tess_portable_element(l->dtype);
}

const char *tess_portable_refusal(const tess_kernel_key *key) {
    if (key->dtype > TESS_BF16) return "dtype is none of f32, f16 and bf16";
    if (key->head_dim < 8 || key->head_dim > 256 || key->head_dim % 8 != 0)
        return "head_dim is not a multiple of 8 from 8 to 256";
    if (key->value_head_dim != key->head_dim) return "value_head_dim differs from head_dim";
    return NULL;
}

const tess_portable_shape *tess_portable_find(const tess_portable_variant *variant,
                                              int32_t head_dim) {
    for (size_t n = 0; n < TESS_PORTABLE_BUCKETS; n++)
        if (head_dim <= (int32_t)variant->shapes[n].head_dim) return &variant->shapes[n];
    return NULL;
}

const tess_portable_shape *tess_portable_choose(const tess_portable_variant *tiles,
                                                const tess_kernel_key *key) {
    const tess_portable_shape *few = tess_portable_find(&tess_portable_few, key->head_dim);
    const int fits =
        few && key->max_q_len * key->group <= few->rows && !tess_portable_has_codes(key->kv_dtype);
    return TAKE_FEW && fits ? few : tess_portable_find(tiles, key->head_dim);
}

void tess_portable_caps(uint32_t buffer_kind, uint32_t parallel_jobs, tess_caps *caps) {
    const uint32_t size = caps->struct_size;
    memset(caps, 0, sizeof *caps);
    caps->struct_size = size;
    caps->buffer_kind = buffer_kind;
    caps->features = TESS_FEATURE_POSITIONS | TESS_FEATURE_PAGES | TESS_FEATURE_APPEND |
                     TESS_FEATURE_MERGE | TESS_FEATURE_STEPS | TESS_FEATURE_KV_8BIT |
                     TESS_FEATURE_PARTS | TESS_FEATURE_BACKWARD;
    caps->parallel_jobs = parallel_jobs;
    caps->workspace_align = 256;
}

void tess_portable_tiles(uint32_t rows, uint32_t tile_step, const tess_kernel_costs *costs,
                         tess_kernel *kernel) {
    kernel->tile_rows = kernel->pack_rows = rows;
    kernel->tile_step = tile_step;
    kernel->costs = *costs;
}

/* Few rows: the speed is that of the memory, of which each worker has its share. */
static uint32_t few_ns(const tess_portable_shape *shape, const tess_kernel_key *key) {
    enum { BYTES_PER_NS = 7 }; /* of a workgroup: 3.5 TB/s of an H200, which runs 528 of them */
    return shape->keys * 2 * tess_portable_element(key->dtype) * (uint32_t)key->head_dim /
           BYTES_PER_NS;
}

void tess_portable_describe(const tess_portable_shape *shape, const tess_kernel_key *key,
                            uint32_t workers, tess_kernel *kernel) {
    enum { FLOP_PER_NS = 60 }; /* of a workgroup: 15 TFLOP/s of an H200, which runs 264 of them */
    const uint32_t flop = 4 * shape->rows * shape->keys * shape->head_dim;
    tess_kernel_costs costs = {
        .job_ns = 4000, .merge_ns = 8000, .part_ns = 200, .partial_bandwidth = 500000};
    costs.workers = shape->few ? TESS_FEW_GROUPS * workers / 2 : workers;
    costs.step_keys = shape->keys;
    costs.step_ns = shape->few ? few_ns(shape, key) : flop / FLOP_PER_NS;
    costs.bandwidth = shape->few ? 4000000 : 1000000;
    tess_portable_tiles(shape->rows, 1, &costs, kernel);
}

static int has_keys(uint32_t role) {
    return role == TESS_ROLE_K || role == TESS_ROLE_V || role == TESS_ROLE_BLOCK_TABLE ||
           role == TESS_ROLE_K_SCALE || role == TESS_ROLE_V_SCALE;
}

int tess_portable_has_batches(const tess_launch *l, uint32_t role) {
    return l->batch_strided || (has_keys(role) && (l->page || l->compact || l->kv_batch));
}

void tess_portable_args(const tess_launch *l, int base_in_handle, uint64_t table_at, uint64_t first,
                        size_t record, uint64_t items, tess_args *a) {
    const tess_tables *tables = l->tables;
    memset(a, 0, sizeof *a);
    for (size_t n = 0; n < TESS_PORTABLE_TENSORS; n++) {
        const tess_portable_tensor *p = &tess_portable_tensors[n];
        const tess_tensor *t = &l->tensor[p->role];
        tess_arg_i64 *at = (tess_arg_i64 *)(void *)((char *)a + p->at),
                     *strides = (tess_arg_i64 *)(void *)((char *)a + p->strides);
        *at = base_in_handle ? 0 : (tess_arg_i64)(t->buffer.offset / tess_portable_item(l, p));
        strides[0] = tess_portable_has_batches(l, p->role) ? t->stride_batch : 0;
        strides[1] = t->stride_token;
        strides[2] = t->stride_head;
    }
    a->partials_at = (tess_arg_i64)((l->partials_at + (base_in_handle ? 0 : l->workspace.offset)) /
                                    sizeof(float));
    a->sequences_at = (tess_arg_u32)(tables->sequences_at / 4);
    a->classes_at = (tess_arg_u32)(tables->classes_at / 4);
    a->entries_at = (tess_arg_u32)(tables->entries_at / 4);
    a->bits_at = (tess_arg_u32)(tables->bits_at / 4);
    a->head_dim = (tess_arg_u32)l->head_dim;
    a->block = (tess_arg_u32)l->block;
    a->group = l->group;
    a->partial_rows = l->partial_rows;
    a->flags = l->tensor[TESS_ROLE_LSE].buffer.kind != TESS_BUFFER_NONE ? TESS_ARGS_LSE : 0;
    a->flags |= (l->page ? TESS_ARGS_PAGED : 0) | (l->compact ? TESS_ARGS_COMPACT : 0);
    if (tess_portable_has_codes(l->kv_dtype))
        a->flags |= l->kv_dtype == TESS_I8 ? TESS_ARGS_I8 : TESS_ARGS_E4M3;
    a->slots_at = (tess_arg_u32)(tables->slots_at / 4);
    a->kv_heads_at = (tess_arg_u32)(tables->kv_heads_at / 4);
    a->page = (tess_arg_u32)l->page;
    a->pages = tess_portable_pages(l);
    a->scale = l->scale;
    a->items = (tess_arg_u32)items;
    a->items_at = (tess_arg_u32)((table_at + first * record) / 4);
    if (!tables->has_step) return;
    a->flags |= TESS_ARGS_STEP;
    a->count_at = table_at == tables->jobs_at
                      ? (tess_arg_u32)(tables->step_ends_at / 4) + l->storage
                      : (tess_arg_u32)(tables->step_at / 4) + TESS_WORD_STEP_MERGES;
    a->first_item = (tess_arg_u32)first;
}

void tess_portable_forward_args(const tess_launch *l, uint64_t skip, uint64_t items,
                                int base_in_handle, tess_args *a) {
    tess_portable_args(l, base_in_handle, l->tables->jobs_at, l->first_job + skip, sizeof(tess_job),
                       items, a);
}

uint32_t tess_portable_merge_groups(const tess_launch *l) {
    return l->partial_rows > 0 ? (l->partial_rows - 1) / TESS_MERGE_ROWS + 1 : 1;
}

void tess_portable_merge_args(const tess_launch *l, uint64_t skip, uint64_t items,
                              int base_in_handle, tess_args *a) {
    tess_portable_args(l, base_in_handle, l->tables->merges_at, l->first_merge + skip,
                       sizeof(tess_merge), items, a);
}

void tess_portable_parts(const tess_launch *l, tess_launch *as) {
    static const tess_tensor none = {.buffer = {.kind = TESS_BUFFER_NONE}};
    *as = *l;
    as->tensor[TESS_ROLE_Q] = l->tensor[TESS_ROLE_O_PARTS];
    as->bytes[TESS_ROLE_Q] = l->bytes[TESS_ROLE_O_PARTS];
    as->tensor[TESS_ROLE_K] = l->tensor[TESS_ROLE_LSE_PARTS];
    as->tensor[TESS_ROLE_K].buffer = none.buffer;
    as->workspace = l->tensor[TESS_ROLE_LSE_PARTS].buffer;
    as->workspace_bytes = l->bytes[TESS_ROLE_LSE_PARTS];
}

void tess_portable_parts_args(const tess_launch *l, uint64_t skip, uint64_t items,
                              int base_in_handle, tess_args *a) {
    tess_portable_args(l, base_in_handle, 0, 0, 0, items, a);
    a->items_at = (tess_arg_u32)(l->first_job + skip);
    a->group = l->n_heads;
    a->partial_rows = l->batch;
}
