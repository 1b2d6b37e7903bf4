/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel for few rows from the host's side: which problems it takes, and the launch. */
#include <stdio.h>
#include <string.h>

#include "cuda.h"
#include "kernels/decode_args.h"

typedef struct instance {
    int32_t head_dim;
    uint32_t rows;
    uint32_t groups; /* workgroups that a multiprocessor has registers for */
} instance;

#define INSTANCE(head_dim, rows, groups) {head_dim, rows, groups},
static const instance instances[] = {TESS_DECODE_INSTANCES(INSTANCE)};

#define FITS(head_dim, rows, groups)                                  \
    _Static_assert(TESS_DECODE_SHARED(head_dim, rows, 1) <= 99 << 10, \
                   "every device has this much workgroup memory");
TESS_DECODE_INSTANCES(FITS)

enum { INSTANCES = sizeof instances / sizeof *instances };

/* What the kernel reaches of the memory of an architecture, and what a multiprocessor has. */
typedef struct machine {
    const char *arch;
    unsigned shared_bytes;
    uint32_t bandwidth; /* MB/s */
} machine;

static const machine *machine_of(const tess_driver_device *d) {
    static const machine machines[] = {
        {"sm_80", 164 << 10, 1500000},  {"sm_87", 164 << 10, 180000},
        {"sm_90", 228 << 10, 4300000},  {"sm_100", 228 << 10, 7000000},
        {"sm_103", 228 << 10, 7000000}, {"", 100 << 10, 850000}};
    const machine *x = machines;
    while (x->arch[0] && strcmp(d->arch, x->arch) != 0) x++;
    return x;
}

/* The shape for a head_dim and the rows that a job would have if it could: 16 rows, or 32 where
 * there are more and O of 32 fits the registers. */
static const instance *find(int32_t head_dim, int64_t rows) {
    const instance *best = NULL;
    for (size_t n = 0; n < INSTANCES; n++) {
        const instance *x = &instances[n];
        if (head_dim > x->head_dim || (best && x->head_dim > best->head_dim)) continue;
        if (!best || (rows > best->rows && x->rows > best->rows)) best = x;
    }
    return best;
}

static uint32_t stages_with(const instance *x, unsigned bytes) {
    uint32_t stages = TESS_DECODE_STAGES;
    while (stages > 0 && TESS_DECODE_SHARED((unsigned)x->head_dim, x->rows, stages) > bytes)
        stages--;
    return stages;
}

/* How the workgroups of a multiprocessor share its memory. */
typedef struct sharing {
    uint32_t groups, stages;
} sharing;

/* As many workgroups as have two stages each. */
static sharing share(const tess_driver_device *d, const instance *x) {
    enum { LEAST_STAGES = 2, DRIVERS_OWN = 1 << 10 /* of each workgroup's memory */ };
    const unsigned bytes = machine_of(d)->shared_bytes;
    for (uint32_t groups = x->groups; groups > 1; groups--) {
        const uint32_t stages = stages_with(x, bytes / groups - DRIVERS_OWN);
        if (stages >= LEAST_STAGES) return (sharing){groups, stages};
    }
    return (sharing){1, stages_with(x, bytes - DRIVERS_OWN)};
}

static unsigned shared_bytes(const tess_driver_device *d, const instance *x) {
    return TESS_DECODE_SHARED((unsigned)x->head_dim, x->rows, share(d, x).stages);
}

static const char *refuses(const tess_driver_device *d, const tess_kernel_key *key, char *buffer,
                           size_t size) {
    const char *why = tess_cuda_image_refusal(d, tess_cuda_decode_images, key, buffer, size);
    if (why || !key) return why;
    if (key->kv_dtype != key->dtype) return "does not read K and V of 8 bits";
    return tess_portable_refusal(key);
}

/* Workgroups that run at a time. */
static uint32_t workers_of(const tess_driver_device *d, const instance *x) {
    return share(d, x).groups * (uint32_t)(d->units > 0 ? d->units : 1);
}

/* Of more rows, each job would read the keys again, and a kernel for long queries is faster, if it
 * reads such K and V. */
static int is_only_named(const tess_kernel_key *key) {
    if (key->steps || key->page || key->compact) return 0;
    return key->max_q_len * key->group > (key->head_dim <= 128 ? 32 : 16);
}

/* Measured on an H200; elsewhere reasoned. The speed is that of the memory: a step takes a worker's
 * share of it, or its latency, however few bytes it has. A job costs more than its first and last
 * keys take: that many jobs too few or too many for whole waves still share the memory. */
static tess_kernel_costs costs_of(const tess_driver_device *d, const tess_kernel_key *key,
                                  const instance *x) {
    enum { LEAST_STEP_NS = 1400 };
    const uint32_t workers = workers_of(d, x), bandwidth = machine_of(d)->bandwidth;
    const uint64_t bytes = (uint64_t)TESS_DECODE_KEYS * 2 * 2 * (uint32_t)key->head_dim,
                   ns = 1000 * workers * bytes / bandwidth;
    return (tess_kernel_costs){.workers = workers,
                               .step_keys = TESS_DECODE_KEYS,
                               .step_ns = (uint32_t)(ns > LEAST_STEP_NS ? ns : LEAST_STEP_NS),
                               .job_ns = 8000,
                               .merge_ns = 2400,
                               .part_ns = 45,
                               .partial_bandwidth = bandwidth / 3,
                               .bandwidth = bandwidth};
}

static tess_status prepare(tess_driver_device *d, const tess_kernel_key *key, tess_kernel *kernel) {
    const instance *x = find(key->head_dim, key->max_q_len * key->group);
    char name[16];
    snprintf(name, sizeof name, "decode%u", (unsigned)x->rows);
    kernel->tile_rows = kernel->pack_rows = x->rows;
    kernel->tile_step = 1;
    kernel->costs = costs_of(d, key, x);
    return tess_cuda_prepare(d, key, CUDA_DECODE_MODULE,
                             tess_cuda_image(d, tess_cuda_decode_images), name, x->head_dim,
                             shared_bytes(d, x), kernel);
}

static tess_status forward(tess_driver_device *d, const tess_launch *l, void *stream) {
    const tess_driver_state *state = l->kernel->state;
    const instance *x = find(l->head_dim, l->kernel->tile_rows);
    for (uint64_t done = 0; done < l->n_jobs;) {
        const uint64_t items = l->n_jobs - done < INT32_MAX ? l->n_jobs - done : INT32_MAX;
        const uint32_t groups =
            l->tables->has_step && items > workers_of(d, x) ? workers_of(d, x) : (uint32_t)items;
        tess_decode_args args;
        CUDA_FORWARD_ARGS(&args, l, done, items);
        args.stages = share(d, x).stages;
        args.scale_log2 = (l->scale < 0 ? -l->scale : l->scale) * 1.44269504088896341f;
        args.block_table = tess_driver_address(&l->tensor[TESS_ROLE_BLOCK_TABLE].buffer);
        void *parameters[] = {&args};
        TESS_RETURN_IF_ERROR(tess_driver_start(d, CUDA_DECODE_MODULE, state->forward, groups,
                                               TESS_DECODE_THREADS, shared_bytes(d, x), stream,
                                               parameters));
        done += items;
    }
    return TESS_OK;
}

const tess_driver_row tess_cuda_decode = {
    {TESS_OP_FORWARD, "decode", 0}, refuses, prepare, forward, is_only_named};
