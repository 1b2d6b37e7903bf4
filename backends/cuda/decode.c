/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel for few rows from the host's side: which problems it takes, and the launch. */
#include <stdio.h>
#include <string.h>

#include "cuda.h"
#include "kernels/decode_args.h"

typedef struct instance {
    int32_t head_dim;
    uint32_t rows;
    uint32_t groups;  /* workgroups of least size that a multiprocessor has registers for */
    uint32_t warps;   /* of each of them: as many as have two stages of a Hopper's memory */
    uint32_t keys;    /* of a warp's stage */
    uint32_t element; /* bytes of an element of K and V */
} instance;

#define WARPS_OF(head_dim) (TESS_DECODE_WARPS - ((head_dim) > 192))
#define INSTANCE(head_dim, rows, groups, keys) \
    {head_dim, rows, groups, WARPS_OF(head_dim), keys, 2},
#define CODED_INSTANCE(head_dim, rows, groups, keys) \
    {head_dim, rows, groups, WARPS_OF(head_dim), keys, 1},
static const instance instances[] = {TESS_DECODE_INSTANCES(INSTANCE)
                                         TESS_DECODE_CODED_INSTANCES(CODED_INSTANCE)};

#define FITS_WITH(head_dim, rows, groups, keys, element)                                           \
    _Static_assert(TESS_DECODE_SHARED(head_dim, rows, TESS_DECODE_WARPS * (groups), keys, element, \
                                      TESS_DECODE_WARPS, 1) <= 99 << 10,                           \
                   "every device has this much workgroup memory");
#define FITS(head_dim, rows, groups, keys)       FITS_WITH(head_dim, rows, groups, keys, 2)
#define CODED_FITS(head_dim, rows, groups, keys) FITS_WITH(head_dim, rows, groups, keys, 1)
TESS_DECODE_INSTANCES(FITS)
TESS_DECODE_CODED_INSTANCES(CODED_FITS)

enum { INSTANCES = sizeof instances / sizeof *instances };

/* An architecture's shared memory of a multiprocessor, and the bandwidth that the kernel reaches
 * there. */
typedef struct machine {
    const char *arch;
    unsigned shared_bytes;
    uint32_t bandwidth; /* MB/s */
    int one_stage;      /* see suits_one_stage; where it was measured */
} machine;

static const machine *machine_of(const tess_driver_device *d) {
    static const machine machines[] = {
        {"sm_80", 164 << 10, 1500000, 0},  {"sm_87", 164 << 10, 180000, 0},
        {"sm_90", 228 << 10, 4300000, 1},  {"sm_100", 228 << 10, 7000000, 0},
        {"sm_103", 228 << 10, 7000000, 0}, {"", 100 << 10, 850000, 0}};
    const machine *x = machines;
    while (x->arch[0] && strcmp(d->arch, x->arch) != 0) x++;
    return x;
}

static uint32_t element_of(uint32_t kv_dtype) { return tess_portable_has_codes(kv_dtype) ? 1 : 2; }

/* The shape for a head_dim and an element of K and V. It has 16 rows, or 32 where a job would have
 * more than 16 and O of 32 fits the registers. */
static const instance *find(int32_t head_dim, int64_t rows, uint32_t element) {
    const instance *best = NULL;
    for (size_t n = 0; n < INSTANCES; n++) {
        const instance *x = &instances[n];
        if (x->element != element || head_dim > x->head_dim) continue;
        if (best && x->head_dim > best->head_dim) continue;
        if (!best || (rows > best->rows && x->rows > best->rows)) best = x;
    }
    return best;
}

/* The workgroups that a multiprocessor runs at a time, the warps of each, and their stages. */
typedef struct launch_shape {
    uint32_t groups, warps, stages;
} launch_shape;

static unsigned shared_bytes(const instance *x, const launch_shape *s) {
    return TESS_DECODE_SHARED((unsigned)x->head_dim, x->rows, TESS_DECODE_WARPS * x->groups,
                              x->keys, x->element, s->warps, s->stages);
}

/* `groups` workgroups of `warps` warps; as many stages as there is memory. */
static launch_shape shape_of(const tess_driver_device *d, const instance *x, uint32_t groups,
                             uint32_t warps) {
    enum { DRIVERS_OWN = 1 << 10 /* of each workgroup's memory */ };
    const unsigned bytes = machine_of(d)->shared_bytes / groups - DRIVERS_OWN;
    launch_shape s = {groups, warps, TESS_DECODE_STAGES(x->element, x->keys)};
    while (s.stages > 0 && shared_bytes(x, &s) > bytes) s.stages--;
    return s;
}

/* The most workgroups that leave each warp two stages, or one that has as many bytes. */
static launch_shape smallest_shape(const tess_driver_device *d, const instance *x) {
    enum { LEAST_BYTES = 64 /* of an element of each key */ };
    for (uint32_t groups = x->groups; groups > 1; groups--) {
        const launch_shape s = shape_of(d, x, groups, x->warps);
        if (s.stages * x->keys * x->element >= LEAST_BYTES) return s;
    }
    return shape_of(d, x, 1, TESS_DECODE_WARPS);
}

static uint64_t units_of(const tess_driver_device *d) {
    return d->units > 0 ? (uint64_t)d->units : 1;
}

/* The largest workgroup: one for a multiprocessor. Of long rows it has fewer warps and a stage
 * more. */
static launch_shape largest_shape(const tess_driver_device *d, const instance *x) {
    const launch_shape least = smallest_shape(d, x);
    return shape_of(d, x, 1,
                    x->warps < TESS_DECODE_WARPS ? TESS_DECODE_WARPS : least.warps * least.groups);
}

/* The workgroup memory of a launch. Where a workgroup has a single stage, more of them would fit
 * than are meant to run at a time, and the device would not deal them out evenly. */
static unsigned launch_bytes(const tess_driver_device *d, const instance *x,
                             const launch_shape *by) {
    const unsigned bytes = shared_bytes(x, by), share = machine_of(d)->shared_bytes;
    return by->stages > 1 || bytes > share / (by->groups + 1) || by->groups == 1
               ? bytes
               : share / (by->groups + 1);
}

/* The number of jobs before any split. A job has rows of the heads of one class of a kv head. Past
 * MANY the number does not matter. */
static uint64_t jobs_of(const instance *x, const tess_kernel_key *key) {
    enum { MANY = 1 << 20 };
    const uint32_t runs = key->head_classes > 0 ? key->head_classes : 1;
    const uint64_t heads = (key->n_heads + runs - 1) / runs,
                   tiles = ((uint64_t)key->max_q_len * heads + x->rows - 1) / x->rows;
    return tiles < MANY && key->batch < MANY ? tiles * key->batch * runs : MANY;
}

/* Whether workgroups with a single stage read as fast as the memory allows: four warps of a
 * multiprocessor, or with codes all of one workgroup. With more in flight, some multiprocessors get
 * more than their share of the bandwidth, and the last ones end later. Lengths of a step may
 * differ, and stages of sparse patterns wait for entries and slots. Pages and slots must not
 * decide: which warp has a key changes bits, and these do not depend on where K and V lie. */
static int suits_one_stage(const tess_driver_device *d, const instance *x,
                           const tess_kernel_key *key, uint32_t groups) {
    return machine_of(d)->one_stage && x->head_dim == 128 &&
           (x->element == 1 ? groups == 1 : x->keys > TESS_DECODE_RUN) && !key->has_entries &&
           !key->steps;
}

/* Chooses workgroups by the number of unsplit jobs. If larger workgroups nearly fill the device,
 * once or a few times over, jobs need no merge and keep it busy to the end. With more jobs, smaller
 * workgroups hide each other's start and end. Fewer jobs have to be split: fewer workgroups make
 * fewer parts, which are merged sooner. They have all of a multiprocessor's memory among them, so
 * that the device deals them out evenly. A step counts as having equal lengths, since it splits
 * longer ones. */
static launch_shape shape_for(const tess_driver_device *d, const instance *x,
                              const tess_kernel_key *key) {
    const launch_shape least = smallest_shape(d, x);
    const uint64_t jobs = jobs_of(x, key), batch = key->batch > 0 ? key->batch : 1,
                   even = key->steps ||
                          4 * ((uint64_t)key->kv_keys / batch) >= 3 * (uint64_t)key->max_kv_len,
                   fewer = (least.groups - 1) * units_of(d);
    if (x->warps < TESS_DECODE_WARPS) return jobs > units_of(d) ? least : largest_shape(d, x);
    for (uint32_t waves = 1; waves <= 4; waves++)
        for (uint32_t groups = 1; groups < least.groups; groups++) {
            const uint64_t room = waves * groups * units_of(d);
            const int fits = waves == 1 ? 4 * jobs >= 3 * room : even && 10 * jobs >= 9 * room;
            if (jobs > room || waves > 2 * groups || !fits) continue;
            const uint32_t all = TESS_DECODE_WARPS * least.groups,
                           warps = x->element == 1 ? all : TESS_DECODE_WARPS;
            if (even && (groups == 1 || 10 * jobs >= 9 * room) &&
                suits_one_stage(d, x, key, groups))
                return (launch_shape){groups, warps / groups, 1};
            return shape_of(d, x, groups, all / groups);
        }
    if (least.groups > 2 && jobs > 0 && 4 * jobs <= fewer && 10 * (fewer % jobs) <= fewer)
        return shape_of(d, x, least.groups - 1, TESS_DECODE_WARPS);
    return least;
}

static const char *refuses(const tess_driver_device *d, const tess_kernel_key *key, char *buffer,
                           size_t size) {
    const char *why = tess_cuda_image_refusal(d, tess_cuda_decode_images, key, buffer, size);
    if (why || !key) return why;
    if (tess_portable_has_codes(key->kv_dtype) && key->head_dim > 128)
        return "reads K and V of 8 bits up to head_dim 128";
    return tess_portable_refusal(key);
}

/* With more rows, each tile would read the keys again, and a kernel for long queries is faster.
 * Where 16 rows are enough, more workgroups hide each other's latency. */
static uint32_t most_rows(const tess_kernel_key *key) {
    if (!key) return 32;
    if (tess_portable_has_codes(key->kv_dtype)) return 0; /* no kernel for long queries does */
    return key->head_dim <= 128 && key->max_q_len * key->group > 16 ? 32 : 16;
}

/* Measured on an H200; derived for other devices. Memory bounds the speed: a step takes its
 * worker's share of the bandwidth, and never less than the latency. A job costs more than its start
 * and end, because jobs too few or too many for whole waves still share the memory. */
static tess_kernel_costs costs_of(const tess_driver_device *d, const instance *x,
                                  const tess_kernel_key *key, const launch_shape *by) {
    enum { LEAST_STEP_NS = 1400 };
    const uint32_t element = element_of(key->kv_dtype),
                   workers = by->groups * (uint32_t)units_of(d), keys = by->warps * x->keys,
                   bandwidth = machine_of(d)->bandwidth;
    const uint32_t row = element * (uint32_t)key->head_dim + (element == 1 ? sizeof(float) : 0);
    const uint64_t bytes = (uint64_t)keys * 2 * row, ns = 1000 * workers * bytes / bandwidth;
    return (tess_kernel_costs){.workers = workers,
                               .step_keys = keys,
                               .step_ns = (uint32_t)(ns > LEAST_STEP_NS ? ns : LEAST_STEP_NS),
                               .job_ns = 8000,
                               .merge_ns = 2400,
                               .part_ns = 45,
                               .partial_bandwidth = bandwidth / 3,
                               .bandwidth = bandwidth};
}

static tess_status prepare(tess_driver_device *d, const tess_kernel_key *key, tess_kernel *kernel) {
    const uint32_t element = element_of(key->kv_dtype);
    const instance *x = find(key->head_dim, key->max_q_len * key->group, element);
    const launch_shape by = shape_for(d, x, key), largest = largest_shape(d, x);
    char name[24];
    snprintf(name, sizeof name, "decode%u%s", (unsigned)x->rows,
             element != 1               ? ""
             : key->kv_dtype == TESS_I8 ? "_i8"
                                        : "_e4m3");
    kernel->tile_rows = kernel->pack_rows = x->rows;
    kernel->tile_step = 1;
    kernel->costs = costs_of(d, x, key, &by);
    /* The limit on memory is the function's, for the launches of all plans. */
    TESS_RETURN_IF_ERROR(tess_cuda_prepare(d, key, CUDA_DECODE_MODULE,
                                           tess_cuda_image(d, tess_cuda_decode_images), name,
                                           x->head_dim, shared_bytes(x, &largest), kernel));
    tess_driver_state *state = kernel->state;
    state->groups = by.groups;
    state->warps = by.warps;
    state->stages = by.stages;
    snprintf(name, sizeof name, "tess_decode_merge_%s", tess_portable_dtype(key->dtype));
    const tess_status status = tess_driver_function(
        d, CUDA_DECODE_MODULE, tess_cuda_image(d, tess_cuda_decode_images), name, &state->merge);
    if (status != TESS_OK) tess_driver_state_release(kernel);
    return status;
}

/* The arguments that the forward kernel and the merge share. */
static void fill_args(const tess_launch *l, uint64_t done, uint64_t items, tess_decode_args *args) {
    CUDA_FORWARD_ARGS(args, l, done, items);
    args->scale_log2 = (l->scale < 0 ? -l->scale : l->scale) * 1.44269504088896341f;
}

static tess_status forward(tess_driver_device *d, const tess_launch *l, void *stream) {
    const tess_driver_state *state = l->kernel->state;
    const instance *x = find(l->head_dim, l->kernel->tile_rows, element_of(l->kv_dtype));
    const launch_shape by = {state->groups, state->warps, state->stages};
    const uint64_t workers = by.groups * units_of(d);
    for (uint64_t done = 0; done < l->n_jobs;) {
        const uint64_t items = l->n_jobs - done < INT32_MAX ? l->n_jobs - done : INT32_MAX;
        const uint32_t groups =
            (uint32_t)(l->tables->has_step && items > workers ? workers : items);
        tess_decode_args args;
        fill_args(l, done, items, &args);
        if (l->head_dim * (int32_t)x->element % 16 != 0) args.wide &= ~2u; /* half a unit */
        args.warps = by.warps;
        args.stages = by.stages;
        args.k_scale = tess_driver_address(&l->tensor[TESS_ROLE_K_SCALE].buffer);
        args.v_scale = tess_driver_address(&l->tensor[TESS_ROLE_V_SCALE].buffer);
        args.block_table = tess_driver_address(&l->tensor[TESS_ROLE_BLOCK_TABLE].buffer);
        void *parameters[] = {&args};
        TESS_RETURN_IF_ERROR(tess_driver_start(d, CUDA_DECODE_MODULE, state->forward, groups,
                                               32 * by.warps, launch_bytes(d, x, &by), stream,
                                               parameters));
        done += items;
    }
    return TESS_OK;
}

/* Rows that a thread block merges at a time: one, unless that makes more blocks than run at a time.
 * Which rows a block has changes no bits. */
static uint32_t merge_rows(const tess_driver_device *d, const tess_launch *l) {
    const uint32_t fit = 4 * TESS_DECODE_MERGE_THREADS / (uint32_t)l->head_dim,
                   many = fit < TESS_DECODE_MERGE_ROWS ? fit : TESS_DECODE_MERGE_ROWS;
    return l->n_merges * l->partial_rows > 2 * units_of(d) ? many : 1;
}

static tess_status merge(tess_driver_device *d, const tess_launch *l, void *stream) {
    const tess_driver_state *state = l->kernel->state;
    const uint64_t rows = merge_rows(d, l),
                   row_groups = l->partial_rows > 0 ? (l->partial_rows - 1) / rows + 1 : 1,
                   workers = TESS_DECODE_MERGE_GROUPS * units_of(d), most = INT32_MAX / row_groups;
    for (uint64_t done = 0; done < l->n_merges;) {
        const uint64_t items = l->n_merges - done < most ? l->n_merges - done : most,
                       groups = items * row_groups;
        tess_decode_args args;
        fill_args(l, 0, 0, &args);
        tess_portable_merge_args(l, done, items, 1, &args.common);
        args.warps = (uint32_t)rows;
        void *parameters[] = {&args};
        TESS_RETURN_IF_ERROR(tess_driver_start(
            d, CUDA_DECODE_MODULE, state->merge,
            (uint32_t)(l->tables->has_step && groups > workers ? workers : groups),
            TESS_DECODE_MERGE_THREADS, TESS_DECODE_MERGE_SHARED, stream, parameters));
        done += items;
    }
    return TESS_OK;
}

const tess_driver_row tess_cuda_decode = {
    {TESS_OP_FORWARD, "decode", 0}, refuses, prepare, forward, most_rows, merge};
