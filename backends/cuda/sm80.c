/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel for Ampere and later from the host's side: which problems it takes, and the launch. */
#include <string.h>

#include "cuda.h"
#include "kernels/sm80_args.h"

typedef struct instance {
    int32_t head_dim;
    uint32_t rows, stages, groups;
} instance;

#define INSTANCE(head_dim, rows, stages, groups) {head_dim, rows, stages, groups},
static const instance instances[] = {TESS_SM80_INSTANCES(INSTANCE)};
/* Of float32; head_dim counts halves of elements, as strides do. */
#define TF32_INSTANCE(head_dim, rows, stages, groups) {2 * (head_dim), rows, stages, groups},
static const instance tf32_instances[] = {TESS_TF32_INSTANCES(TF32_INSTANCE)};

#define FITS(head_dim, rows, stages, groups)                              \
    _Static_assert(TESS_SM80_SHARED(head_dim, rows, stages) <= 99 * 1024, \
                   "every device has this much workgroup memory");
TESS_SM80_INSTANCES(FITS)
#define TF32_FITS(head_dim, ...) FITS(2 * (head_dim), __VA_ARGS__)
TESS_TF32_INSTANCES(TF32_FITS)

enum {
    INSTANCES = sizeof instances / sizeof *instances,
    TF32_INSTANCES = sizeof tf32_instances / sizeof *tf32_instances,
    TF32_DIMS = 128 /* the largest head_dim */
};

/* The smallest one that takes a head_dim; the last takes every one that is not refused. */
static const instance *find(int32_t head_dim, uint32_t dtype) {
    const int wide = dtype == TESS_F32;
    const instance *all = wide ? tf32_instances : instances;
    const size_t count = wide ? TF32_INSTANCES : INSTANCES;
    for (size_t n = 0; n < count; n++)
        if (head_dim * (wide ? 2 : 1) <= all[n].head_dim) return &all[n];
    return NULL;
}

static unsigned bytes_with(const instance *x, uint32_t stages) {
    return TESS_SM80_SHARED((unsigned)x->head_dim, x->rows, stages);
}

/* Workgroups for which a multiprocessor has the memory. */
static uint32_t groups_with(const tess_driver_device *d, const instance *x, uint32_t stages) {
    /* the driver takes 1 KiB for each */
    const uint32_t fit = (tess_cuda_shared_bytes(d) + 1024) / (bytes_with(x, stages) + 1024);
    return fit < x->groups ? fit : x->groups;
}

/* With two stages copies have longer to arrive, but a second workgroup on the multiprocessor is
 * worth more. */
static uint32_t stages_on(const tess_driver_device *d, const instance *x) {
    if (x->stages == 1) return 1;
    return groups_with(d, x, 2) >= 2 || groups_with(d, x, 1) < 2 ? 2 : 1;
}

static unsigned shared_bytes(const tess_driver_device *d, const instance *x) {
    return bytes_with(x, stages_on(d, x));
}

static const char *refuses(const tess_driver_device *d, const tess_kernel_key *key, char *buffer,
                           size_t size) {
    return tess_cuda_refusal(tess_cuda_image_refusal(d, tess_cuda_sm80_images, key, buffer, size),
                             key);
}

static const char *tf32_refuses(const tess_driver_device *d, const tess_kernel_key *key,
                                char *buffer, size_t size) {
    const char *why = tess_cuda_image_refusal(d, tess_cuda_sm80_images, NULL, buffer, size);
    if (why || !key) return why;
    if (key->dtype != TESS_F32) return "takes f32 only";
    why = tess_cuda_refusal(NULL, key);
    if (why) return why;
    return key->head_dim > TF32_DIMS ? "head_dim is larger than 128" : NULL;
}

/* Portable kernels for few rows read K and V at the speed of the memory. Batch-invariant plans,
 * which do not tell lengths, ask about the fewest rows and mean all. */
static int tf32_yields(const tess_kernel_key *key) {
    return key->max_kv_len <= INT32_MAX / 2 && tess_portable_choose(&tess_portable, key)->few;
}

/* Reasoned from an A100: 312 TFLOP/s of 108 multiprocessors, of which the kernel reaches a bit more
 * than half, and 1.5 TB/s. */
static tess_kernel_costs costs_of(const tess_driver_device *d, const instance *x) {
    enum { FLOP_PER_NS = 1600 }; /* of a multiprocessor, of 16 bits */
    const uint32_t groups = groups_with(d, x, stages_on(d, x)),
                   flop = 4 * x->rows * TESS_SM80_KEYS * (uint32_t)x->head_dim;
    tess_kernel_costs costs = {.job_ns = 3000,
                               .merge_ns = 7000,
                               .part_ns = 200,
                               .partial_bandwidth = 500000,
                               .bandwidth = 1500000};
    costs.workers = groups * (uint32_t)(d->units > 0 ? d->units : 1);
    costs.step_keys = TESS_SM80_KEYS;
    costs.step_ns = groups * flop / FLOP_PER_NS;
    return costs;
}

/* Three products, at half the rate; costs_of counts twice the head_dim already. */
enum { TF32_PASSES = 3 };

static tess_status prepare(tess_driver_device *d, const tess_kernel_key *key, tess_kernel *kernel) {
    const instance *x = find(key->head_dim, key->dtype);
    tess_kernel_costs costs = costs_of(d, x);
    if (key->dtype == TESS_F32) costs.step_ns *= TF32_PASSES;
    tess_portable_tiles(x->rows, 1, &costs, kernel);
    kernel->short_rows = x->rows > 64 ? 64 : 0; /* 16 of each warp */
    return tess_cuda_prepare(d, key, CUDA_SM80_MODULE, tess_cuda_image(d, tess_cuda_sm80_images),
                             "sm80", key->dtype == TESS_F32 ? x->head_dim / 2 : x->head_dim,
                             shared_bytes(d, x), kernel);
}

static void count_halves(tess_args *a) {
    tess_arg_i64 *const strides[] = {&a->q_batch, &a->q_token, &a->q_head,
                                     &a->k_batch, &a->k_token, &a->k_head,
                                     &a->v_batch, &a->v_token, &a->v_head};
    for (size_t n = 0; n < sizeof strides / sizeof *strides; n++) *strides[n] *= 2;
}

static tess_status forward(tess_driver_device *d, const tess_launch *l, void *stream) {
    const tess_driver_state *state = l->kernel->state;
    const instance *x = find(l->head_dim, l->dtype);
    for (uint64_t done = 0; done < l->n_jobs;) {
        const uint64_t items = l->n_jobs - done < INT32_MAX ? l->n_jobs - done : INT32_MAX;
        tess_sm80_args args;
        CUDA_FORWARD_ARGS(&args, l, done, items);
        args.block_table = tess_driver_address(&l->tensor[TESS_ROLE_BLOCK_TABLE].buffer);
        if (l->dtype == TESS_F32) count_halves(&args.common);
        args.stages = stages_on(d, x);
        args.scale_log2 = (l->scale < 0 ? -l->scale : l->scale) * 1.44269504088896341f;
        void *parameters[] = {&args};
        TESS_RETURN_IF_ERROR(tess_driver_start(d, CUDA_SM80_MODULE, state->forward, (unsigned)items,
                                               TESS_SM80_THREADS, shared_bytes(d, x), stream,
                                               parameters));
        done += items;
    }
    return TESS_OK;
}

const tess_driver_row tess_cuda_sm80 = {{TESS_OP_FORWARD, "sm80", 0}, refuses, prepare, forward};
const tess_driver_row tess_cuda_tf32 = {
    {TESS_OP_FORWARD, "tf32", 0}, tf32_refuses, prepare, forward, .yields = tf32_yields};
