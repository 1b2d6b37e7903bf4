/* SPDX-License-Identifier: Apache-2.0 */
/* The backward kernel for Ampere and later from the host's side: which problems it takes, the shape
 * that it has on a device, and the launches of its stages. Delta comes from the portable kernel. */
#include <stdio.h>
#include <string.h>

#include "cuda.h"
#include "kernels/sm80_backward_args.h"
#include "shapes.h"

/* The kernels of a plan, in two passes or in a single one. */
enum { DELTA, ROWS, COLUMNS, FINISH = ROWS };

typedef struct instance {
    int32_t head_dim;
    uint32_t tile, step, threads;
    unsigned shared_bytes[TESS_BACKWARD_STAGES];
} instance;

#define INSTANCE(head_dim, tile, step, warps, stages, ...)             \
    {head_dim,                                                         \
     tile,                                                             \
     step,                                                             \
     (warps)*32,                                                       \
     {0, TESS_SM80_BACKWARD_ROWS_SHARED(head_dim, tile, step, stages), \
      TESS_SM80_BACKWARD_COLUMNS_SHARED(head_dim, tile, step, stages)}},
static const instance instances[] = {TESS_SM80_BACKWARD_SHAPES(INSTANCE)};
#define SKEWED(head_dim, tile, step, warps, stages, ...) \
    {head_dim,                                           \
     tile,                                               \
     step,                                               \
     (warps)*32,                                         \
     {0, 0, TESS_SM80_BACKWARD_SKEWED_SHARED(head_dim, tile, step, stages)}},
static const instance skewed[] = {TESS_SM80_BACKWARD_SKEWED_SHAPES(SKEWED)};

#define MOST(head_dim, tile, step, warps, stages, ...)                                           \
    _Static_assert(TESS_SM80_BACKWARD_COLUMNS_SHARED(head_dim, tile, step, stages) <= 163 << 10, \
                   "an A100 has this much shared memory");
TESS_SM80_BACKWARD_SHAPES(MOST)

static int fits(const tess_driver_device *d, const instance *x) {
    const unsigned most = tess_cuda_shared_bytes(d);
    return x->shared_bytes[ROWS] <= most && x->shared_bytes[COLUMNS] <= most;
}

/* The first one for a head_dim that the device has the memory for, or NULL. */
static const instance *find_in(const instance *all, size_t count, const tess_driver_device *d,
                               int32_t head_dim) {
    for (size_t n = 0; n < count; n++)
        if (head_dim <= all[n].head_dim && fits(d, &all[n])) return &all[n];
    return NULL;
}

/* The shape of a plan. The last instance of each head_dim fits every device. */
static const instance *find(const tess_driver_device *d, int32_t head_dim, int single) {
    const instance *x =
        single ? find_in(skewed, sizeof skewed / sizeof *skewed, d, head_dim) : NULL;
    return x ? x : find_in(instances, sizeof instances / sizeof *instances, d, head_dim);
}
static int is_skewed(const instance *x) { return x->shared_bytes[ROWS] == 0; }

static const char *refuses(const tess_driver_device *d, const tess_kernel_key *key, char *buffer,
                           size_t size) {
    const char *why = tess_cuda_image_refusal(d, tess_cuda_sm80_backward_images, key, buffer, size);
    return why || !key ? why : tess_portable_refusal(key);
}

/* Whether a plan has a single pass, which adds dQ without an order. In blocks whose bounds lie
 * within 16 keys, or between which a mask chooses, a key that no row keeps could reach dQ. */
static int is_single(const tess_kernel_key *key) {
    return key->determinism == 1 && !(key->class_flags & TESS_CLASS_BITS) && key->block % 16 == 0;
}

static tess_status find_pass(tess_driver_device *d, const char *pass, const char *shape,
                             unsigned shared_bytes, void **function) {
    char name[64];
    snprintf(name, sizeof name, "tess_sm80_backward_%s_%s", pass, shape);
    TESS_RETURN_IF_ERROR(tess_driver_function(d, CUDA_SM80_BACKWARD_MODULE,
                                              tess_cuda_image(d, tess_cuda_sm80_backward_images),
                                              name, function));
    return shared_bytes ? tess_cuda_set_shared(d, *function, shared_bytes, name) : TESS_OK;
}

static tess_status find_passes(tess_driver_device *d, const tess_kernel_key *key, const instance *x,
                               tess_driver_state *state) {
    const int single = is_single(key);
    char of_dim[16], of_tile[32];
    snprintf(of_dim, sizeof of_dim, "%s_%d", tess_portable_dtype(key->dtype), (int)x->head_dim);
    snprintf(of_tile, sizeof of_tile, "%s_%u", of_dim, (unsigned)x->tile);
    if (single) {
        TESS_RETURN_IF_ERROR(find_pass(d, "delta", of_dim, 0, &state->passes[DELTA]));
        TESS_RETURN_IF_ERROR(find_pass(d, "finish", of_dim, 0, &state->passes[FINISH]));
    } else {
        TESS_RETURN_IF_ERROR(
            find_pass(d, "rows", of_tile, x->shared_bytes[ROWS], &state->passes[ROWS]));
    }
    return find_pass(d,
                     is_skewed(x) ? "skewed"
                     : single     ? "single"
                                  : "columns",
                     of_tile, x->shared_bytes[COLUMNS], &state->passes[COLUMNS]);
}

static tess_status prepare(tess_driver_device *d, const tess_kernel_key *key, tess_kernel *kernel) {
    const instance *x = find(d, key->head_dim, is_single(key));
    char name[64];
    snprintf(name, sizeof name, "tess_backward_delta_%s", tess_portable_dtype(key->dtype));
    TESS_RETURN_IF_ERROR(tess_driver_state_portable(d, key, name, kernel));
    tess_driver_state *state = kernel->state;
    state->passes[DELTA] = state->forward;
    const tess_status status = find_passes(d, key, x, state);
    if (status != TESS_OK) tess_driver_state_release(kernel);
    tess_backward_describe(tess_backward_find(key->head_dim), kernel);
    kernel->tile_rows = kernel->pack_rows = kernel->tile_keys = x->tile;
    kernel->step_rows = x->step;
    if (!is_single(key)) return status;
    kernel->stages = TESS_STAGE_DELTA | TESS_STAGE_COLUMNS | TESS_STAGE_FINISH;
    kernel->strip_bytes += (uint64_t)TESS_STRIP_ROWS * (uint32_t)x->head_dim * sizeof(float);
    return status;
}

/* Whether rows start on 16-byte boundaries, which wide copies need. */
static uint32_t wide_of(const tess_launch *as) {
    static const uint32_t roles[] = {TESS_ROLE_Q, TESS_ROLE_K,   TESS_ROLE_V,
                                     TESS_ROLE_O, TESS_ROLE_LSE, TESS_ROLE_V_SCALE};
    uint32_t wide = 0;
    for (size_t n = 0; n < sizeof roles / sizeof *roles; n++)
        if (tess_cuda_is_wide(&as->tensor[roles[n]], 8, as->batch_strided != 0)) wide |= 1u << n;
    return wide;
}

static void fill_args(const tess_launch *as, uint64_t done, uint64_t items,
                      tess_sm80_backward_args *args) {
    memset(args, 0, sizeof *args);
    tess_backward_args(as, done, items, 1, &args->common);
    args->q = tess_driver_address(&as->tensor[TESS_ROLE_Q].buffer);
    args->k = tess_driver_address(
        &as->tensor[as->stage == TESS_STAGE_DELTA ? TESS_ROLE_K_SCALE : TESS_ROLE_K].buffer);
    args->v = tess_driver_address(&as->tensor[TESS_ROLE_V].buffer);
    args->d_o = tess_driver_address(&as->tensor[TESS_ROLE_O].buffer);
    args->out = tess_driver_address(&as->tensor[TESS_ROLE_LSE].buffer);
    args->out_v = tess_driver_address(&as->tensor[TESS_ROLE_V_SCALE].buffer);
    args->tables = tess_driver_address(&as->tables->device);
    args->workspace = tess_driver_address(&as->workspace);
    args->wide = wide_of(as);
    args->scale_log2 = as->scale * 1.44269504088896341f;
}

/* The kernel of a stage; its threads and shared memory. */
static void *pass_of(const tess_launch *l, const instance *x, uint32_t *threads,
                     unsigned *shared_bytes) {
    const tess_driver_state *state = l->kernel->state;
    *threads = TESS_SM80_BACKWARD_STRIP_THREADS;
    *shared_bytes = 0;
    if (l->stage == TESS_STAGE_DELTA) return state->passes[DELTA];
    if (l->stage == TESS_STAGE_FINISH) return state->passes[FINISH];
    const int pass = l->stage == TESS_STAGE_ROWS ? ROWS : COLUMNS;
    *threads = x->threads;
    *shared_bytes = x->shared_bytes[pass];
    return state->passes[pass];
}

static tess_status backward(tess_driver_device *d, const tess_launch *l, void *stream) {
    const int single = (l->kernel->stages & TESS_STAGE_FINISH) != 0;
    if (l->stage == TESS_STAGE_DELTA && !single) return tess_driver_backward.launch(d, l, stream);
    uint32_t threads;
    unsigned shared_bytes;
    void *const pass = pass_of(l, find(d, l->head_dim, single), &threads, &shared_bytes);
    tess_launch as;
    tess_backward_stage(l, &as);
    for (uint64_t done = 0; done < l->n_jobs;) {
        const uint64_t items = l->n_jobs - done < INT32_MAX ? l->n_jobs - done : INT32_MAX;
        tess_sm80_backward_args args;
        fill_args(&as, done, items, &args);
        args.wants_q = l->tensor[TESS_ROLE_D_Q].buffer.kind != TESS_BUFFER_NONE;
        void *parameters[] = {&args};
        const int code = d->driver->call.launch(pass, (unsigned)items, 1, 1, threads, 1, 1,
                                                shared_bytes, stream, parameters, NULL);
        if (code != DRIVER_OK)
            return tess_driver_fail(d, "cuLaunchKernel", "the backward kernel for sm_80", code);
        done += items;
    }
    return TESS_OK;
}

const tess_driver_row tess_cuda_sm80_backward = {
    {TESS_OP_BACKWARD, "sm80", 0}, refuses, prepare, backward};
