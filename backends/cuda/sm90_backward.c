/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients on Hopper from the host's side: which problems its kernels take, and the launches of
 * their stages. */
#include <stdio.h>
#include <string.h>

#include "kernels/sm90_backward_args.h"
#include "sm90_maps.h"

typedef struct instance {
    int32_t head_dim;
    unsigned rows; /* of a step and of a strip */
    unsigned shared_bytes;
} instance;

#define INSTANCE(head_dim, rows) {head_dim, rows, TESS_SM90_BACKWARD_SHARED(head_dim, rows)},
static const instance instances[] = {TESS_SM90_BACKWARD_INSTANCES(INSTANCE)};

enum {
    INSTANCES = sizeof instances / sizeof *instances,
    COUNTER_BYTES = 256, /* of the workspace */
};

/* Places in tess_driver_state.passes. The last two leave out what a run does not want. */
enum { DELTA, COLUMNS, FINISH, COLUMNS_DQ, COLUMNS_DKV, KERNELS };
_Static_assert((int)KERNELS <= (int)TESS_DRIVER_PASSES, "every kernel has a place");

static const instance *find(int32_t head_dim) {
    for (size_t n = 0; n < INSTANCES; n++)
        if (head_dim <= instances[n].head_dim) return &instances[n];
    return NULL;
}

static const char *refuses(const tess_driver_device *d, const tess_kernel_key *key, char *buffer,
                           size_t size) {
    const char *why =
        tess_cuda_hopper_refusal(d, tess_cuda_sm90_backward_images, key, buffer, size);
    if (why || !key) return why;
    if (key->head_dim > instances[INSTANCES - 1].head_dim) return "head_dim is above 128";
    if (key->determinism == 0 && !key->turns)
        return "determinism 0: rows at strides have no turns to add to dQ";
    return tess_cuda_refusal(NULL, key);
}

/* Those of columns need as much shared memory as the one of all gradients. */
static tess_status find_pass(tess_driver_device *d, const tess_kernel_key *key, const instance *x,
                             const char *kernel, void **function) {
    char name[64];
    snprintf(name, sizeof name, "tess_sm90_%s_%s_%d", kernel, tess_portable_dtype(key->dtype),
             (int)x->head_dim);
    TESS_RETURN_IF_ERROR(tess_driver_function(d, CUDA_SM90_BACKWARD_MODULE,
                                              &tess_cuda_sm90_backward_images[0], name, function));
    return strncmp(kernel, "columns", strlen("columns")) == 0
               ? tess_cuda_set_shared(d, *function, x->shared_bytes, name)
               : TESS_OK;
}

static tess_status prepare(tess_driver_device *d, const tess_kernel_key *key, tess_kernel *kernel) {
    static const char *const kernels[KERNELS] = {"delta", NULL, "finish", "columns_dq",
                                                 "columns_dkv"};
    static const tess_kernel_costs none = {0}; /* keys are never split */
    const instance *x = find(key->head_dim);
    TESS_RETURN_IF_ERROR(tess_cuda_prepare(d, key, CUDA_SM90_BACKWARD_MODULE,
                                           &tess_cuda_sm90_backward_images[0], "sm90_columns",
                                           x->head_dim, x->shared_bytes, kernel));
    tess_driver_state *state = kernel->state;
    tess_status status = TESS_OK;
    state->passes[COLUMNS] = state->forward;
    for (int n = DELTA; n < KERNELS && status == TESS_OK; n++)
        if (kernels[n]) status = find_pass(d, key, x, kernels[n], &state->passes[n]);
    if (status != TESS_OK) tess_driver_state_release(kernel);
    tess_portable_tiles((int32_t)x->rows, 8, &none, kernel);
    kernel->scratch_bytes = COUNTER_BYTES;
    kernel->stages = TESS_STAGE_DELTA | TESS_STAGE_COLUMNS | TESS_STAGE_FINISH;
    kernel->tile_keys = TESS_SM90_COLUMN_KEYS;
    kernel->step_rows = kernel->strip_rows = x->rows;
    kernel->turns = key->determinism == 0;
    kernel->sum_bytes =
        2 * sizeof(uint32_t) + TESS_SM90_COLUMN_KEYS * 2 * (uint32_t)x->head_dim * sizeof(float);
    kernel->strip_bytes = (x->rows * (2 + (uint64_t)x->head_dim) + kernel->turns) * sizeof(float);
    return status;
}

static const struct {
    int place;
    tess_role role;
} tensors[] = {{TESS_SM90_Q, TESS_ROLE_Q},         {TESS_SM90_K, TESS_ROLE_K},
               {TESS_SM90_V, TESS_ROLE_V},         {TESS_SM90_O, TESS_ROLE_O},
               {TESS_SM90_LSE, TESS_ROLE_LSE},     {TESS_SM90_D_O, TESS_ROLE_D_O},
               {TESS_SM90_D_LSE, TESS_ROLE_D_LSE}, {TESS_SM90_D_Q, TESS_ROLE_D_Q},
               {TESS_SM90_D_K, TESS_ROLE_D_K},     {TESS_SM90_D_V, TESS_ROLE_D_V}};

/* What all stages are given. */
static void fill(const tess_launch *l, const instance *x, tess_sm90_backward_args *a) {
    const tess_tables *t = l->tables;
    const uint64_t workspace = tess_driver_address(&l->workspace);
    memset(a, 0, sizeof *a);
    for (size_t n = 0; n < sizeof tensors / sizeof *tensors; n++) {
        const tess_tensor *from = &l->tensor[tensors[n].role];
        if (from->buffer.kind == TESS_BUFFER_NONE) continue;
        a->tensor[tensors[n].place] = (tess_sm90_tensor){tess_driver_address(&from->buffer),
                                                         l->batch_strided ? from->stride_batch : 0,
                                                         from->stride_token, from->stride_head};
        if (tess_cuda_is_wide(from, 8, l->batch_strided != 0)) a->wide |= 1u << tensors[n].place;
    }
    a->tables = tess_driver_address(&t->device);
    a->rows = workspace + l->strips_at;
    a->accumulators = a->rows + (uint64_t)l->n_strips * l->n_heads * x->rows * 2 * sizeof(float);
    if (l->kernel->turns)
        a->turns = a->accumulators + (uint64_t)l->n_strips * l->n_heads * x->rows *
                                         (uint64_t)x->head_dim * sizeof(float);
    a->sums = workspace + l->sums_at;
    a->sum_turns =
        a->sums + l->n_sums * TESS_SM90_COLUMN_KEYS * 2 * (uint64_t)x->head_dim * sizeof(float);
    a->parts = l->column_parts;
    a->cut_columns = (uint32_t)l->n_cut_columns * a->parts;
    a->n_sums = l->n_sums > 0 ? (uint32_t)l->n_sums : 1;
    a->sequences_at = (uint32_t)(t->sequences_at / 4);
    a->classes_at = (uint32_t)(t->classes_at / 4);
    a->segments_at = (uint32_t)(t->segments_at / 4);
    a->entries_at = (uint32_t)(t->entries_at / 4);
    a->bits_at = (uint32_t)(t->bits_at / 4);
    a->first_strips_at = (uint32_t)(t->first_strips_at / 4);
    a->head_dim = (uint32_t)l->head_dim;
    a->block = (uint32_t)l->block;
    a->group = l->group;
    a->heads = l->n_heads;
    a->strips = l->n_strips;
    a->scale = l->scale;
    a->f32 = (l->gradients & TESS_PLAN_DQ_F32 ? TESS_SM90_DQ : 0) |
             (l->gradients & TESS_PLAN_DKV_F32 ? TESS_SM90_DKV : 0);
    a->add = (l->gradients & TESS_PLAN_DQ_ADD ? TESS_SM90_DQ : 0) |
             (l->gradients & TESS_PLAN_DKV_ADD ? TESS_SM90_DKV : 0);
    a->q_tokens = (uint32_t)l->q_tokens;
    a->kv_tokens = (uint32_t)l->kv_tokens;
}

static void make_maps(const tess_driver_device *d, const tess_launch *l, const instance *x,
                      tess_sm90_backward_args *a, tess_sm90_backward_maps *maps) {
    const uint32_t kv_heads = l->n_heads / l->group;
    const struct {
        int place;
        tess_role role;
        tess_tensor_map *map;
        int of_keys;
    } all[] = {{TESS_SM90_Q, TESS_ROLE_Q, &maps->q, 0},
               {TESS_SM90_D_O, TESS_ROLE_D_O, &maps->d_o, 0},
               {TESS_SM90_K, TESS_ROLE_K, &maps->k, 1},
               {TESS_SM90_V, TESS_ROLE_V, &maps->v, 1}};
    a->piece_shift = 6;
    while (l->block % (1 << a->piece_shift) != 0) a->piece_shift--;
    memset(maps, 0, sizeof *maps);
    for (size_t n = 0; n < sizeof all / sizeof *all; n++) {
        const int keys = all[n].of_keys;
        if (!(a->wide >> all[n].place & 1)) continue;
        if (tess_cuda_make_map(d, l, &l->tensor[all[n].role], keys ? l->kv_tokens : l->q_tokens,
                               keys ? kv_heads : l->n_heads, l->batch,
                               keys ? 1u << a->piece_shift : x->rows, 1, 0, all[n].map))
            a->tma |= 1u << all[n].place;
    }
}

/* DELTA and FINISH: a workgroup for each strip of each query head. */
static tess_status launch_strips(tess_driver_device *d, const tess_launch *l, void *function,
                                 unsigned threads, tess_sm90_backward_args *a, void *stream) {
    const uint64_t most = INT32_MAX / l->n_heads;
    for (uint64_t done = 0; done < l->n_jobs;) {
        const uint64_t items = l->n_jobs - done < most ? l->n_jobs - done : most;
        void *parameters[] = {a};
        a->items_at =
            (uint32_t)((l->tables->strips_at + (l->first_job + done) * sizeof(tess_strip)) / 4);
        a->items = (uint32_t)items;
        TESS_RETURN_IF_ERROR(tess_driver_start(d, CUDA_SM90_BACKWARD_MODULE, function,
                                               (unsigned)(items * l->n_heads), threads, 0, stream,
                                               parameters));
        done += items;
    }
    return TESS_OK;
}

static tess_status launch_columns(tess_driver_device *d, const tess_launch *l, const instance *x,
                                  void *function, tess_sm90_backward_args *a, void *stream) {
    tess_sm90_backward_maps maps;
    make_maps(d, l, x, a, &maps);
    a->counter = tess_driver_address(&l->workspace);
    for (uint64_t done = 0; done < l->n_jobs;) {
        const uint64_t items = l->n_jobs - done < INT32_MAX ? l->n_jobs - done : INT32_MAX;
        const unsigned groups = items < (uint64_t)d->units ? (unsigned)items : (unsigned)d->units;
        void *parameters[] = {&maps, a};
        const int code = d->driver->call.fill(a->counter, 0, 1, stream);
        if (code != DRIVER_OK)
            return tess_driver_fail(d, "cuMemsetD32Async", "the counter of columns", code);
        a->items_at =
            (uint32_t)((l->tables->columns_at + (l->first_job + done) * sizeof(tess_column)) / 4);
        a->items = (uint32_t)items;
        a->first_item = (uint32_t)(l->first_job + done);
        TESS_RETURN_IF_ERROR(tess_driver_start(d, CUDA_SM90_BACKWARD_MODULE, function, groups,
                                               TESS_SM90_COLUMN_THREADS, x->shared_bytes, stream,
                                               parameters));
        done += items;
    }
    return TESS_OK;
}

/* No column has added to sums yet. */
static tess_status clear_sum_turns(tess_driver_device *d, const tess_launch *l,
                                   const tess_sm90_backward_args *a, void *stream) {
    if (l->n_sums == 0 || l->first_job != 0) return TESS_OK;
    const int code = d->driver->call.fill(a->sum_turns, 0, 2 * l->n_sums, stream);
    return code == DRIVER_OK ? TESS_OK
                             : tess_driver_fail(d, "cuMemsetD32Async", "turns of sums", code);
}

/* The kernel of columns for the gradients that the run wants. */
static void *columns_of(const tess_launch *l) {
    const tess_driver_state *state = l->kernel->state;
    const uint32_t none = TESS_BUFFER_NONE;
    if (l->tensor[TESS_ROLE_D_Q].buffer.kind == none) return state->passes[COLUMNS_DKV];
    return l->tensor[TESS_ROLE_D_K].buffer.kind == none &&
                   l->tensor[TESS_ROLE_D_V].buffer.kind == none
               ? state->passes[COLUMNS_DQ]
               : state->passes[COLUMNS];
}

static tess_status launch(tess_driver_device *d, const tess_launch *l, void *stream) {
    const tess_driver_state *state = l->kernel->state;
    const instance *x = find(l->head_dim);
    tess_sm90_backward_args args;
    fill(l, x, &args);
    switch (l->stage) {
    case TESS_STAGE_DELTA:
        TESS_RETURN_IF_ERROR(clear_sum_turns(d, l, &args, stream));
        return launch_strips(d, l, state->passes[DELTA], TESS_SM90_DELTA_THREADS, &args, stream);
    case TESS_STAGE_FINISH:
        return launch_strips(d, l, state->passes[FINISH], TESS_SM90_FINISH_THREADS, &args, stream);
    default: return launch_columns(d, l, x, columns_of(l), &args, stream);
    }
}

const tess_driver_row tess_cuda_sm90_backward = {
    {TESS_OP_BACKWARD, "sm90", 0}, refuses, prepare, launch};
