/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel for Intel's matrix engines from the host's side: which devices and problems it takes,
 * its instances, and what they cost. */
#include <stdio.h>

#include "opencl.h"

extern const unsigned char tess_opencl_intel_dpas[];
extern const size_t tess_opencl_intel_dpas_size;

/* A workgroup takes 64 rows, as many for each lane of a subgroup as there are subgroups. */
typedef struct shape {
    int32_t head_dim;
    uint32_t keys; /* of a stage */
} shape;

enum { THREADS = 64, MOST_SIZES = 16 };
static const shape shapes[OPENCL_INTEL_SHAPES] = {{64, 64}, {128, 64}};

/* Those of all types first, and then one for each. */
static const char *const needed[] = {
    "cl_intel_subgroup_matrix_multiply_accumulate",
    "cl_intel_required_subgroup_size",
    "cl_intel_subgroups",
    "cl_intel_subgroups_short",
    "cl_intel_subgroup_local_block_io",
};
static const char *const of_dtype[OPENCL_DTYPES] = {NULL, "cl_khr_fp16",
                                                    "cl_intel_bfloat16_conversions"};

void tess_opencl_intel_find(opencl_device *d) {
    size_t sizes[MOST_SIZES] = {0}, bytes = 0;
    for (size_t n = 0; n < sizeof needed / sizeof *needed; n++)
        if (!tess_opencl_has(d->cl, d->device, needed[n])) {
            d->intel.lacks = needed[n];
            return;
        }
    for (int n = 0; n < OPENCL_DTYPES; n++)
        d->intel.lacks_dtype[n] =
            of_dtype[n] && !tess_opencl_has(d->cl, d->device, of_dtype[n]) ? of_dtype[n] : NULL;
    if (d->cl->clGetDeviceInfo(d->device, CL_DEVICE_SUB_GROUP_SIZES_INTEL, sizeof sizes, sizes,
                               &bytes) != CL_SUCCESS)
        return;
    /* Products are of the smallest size alone. */
    for (size_t n = 0; n < MOST_SIZES && n < bytes / sizeof *sizes; n++)
        if (!d->intel.lanes || sizes[n] < d->intel.lanes) d->intel.lanes = (uint32_t)sizes[n];
}

/* Of local memory: K and V, Q where registers do not hold it, rows, and what is known of keys. */
static uint32_t local_bytes(const shape *x) {
    const uint32_t dims = (uint32_t)x->head_dim, q = x->head_dim > 64 ? 2 * dims * THREADS : 16;
    return 4 * dims * (x->keys + 1) + q + 16 * THREADS + 48 * x->keys + 512;
}

static const shape *find(int32_t head_dim) {
    for (int n = 0; n < OPENCL_INTEL_SHAPES; n++)
        if (head_dim <= shapes[n].head_dim) return &shapes[n];
    return NULL;
}

static const char *refuses_device(const opencl_device *d, char *buffer, size_t size) {
    if (d->intel.lacks) {
        snprintf(buffer, size, "needs a GPU with matrix engines of Intel, and the device has no %s",
                 d->intel.lacks);
        return buffer;
    }
    if (d->intel.lanes != 8 && d->intel.lanes != 16) {
        snprintf(buffer, size, "needs subgroups of 8 or 16, and the device's smallest have %u",
                 (unsigned)d->intel.lanes);
        return buffer;
    }
    return tess_opencl_fits(d, THREADS, local_bytes(&shapes[0]), buffer, size) ? NULL : buffer;
}

static const char *refuses(const opencl_device *d, const tess_kernel_key *key, char *buffer,
                           size_t size) {
    const char *why = refuses_device(d, buffer, size);
    if (why || !key) return why;
    why = tess_portable_refusal(key);
    if (why) return why;
    if (key->dtype == TESS_F32) return "dtype is f32, and matrix units take f16 and bf16";
    if (d->intel.lacks_dtype[key->dtype]) {
        snprintf(buffer, size, "the device has no %s", d->intel.lacks_dtype[key->dtype]);
        return buffer;
    }
    if (tess_portable_has_codes(key->kv_dtype))
        return "kv_dtype: K and V of 8 bits are read by portable";
    const shape *x = find(key->head_dim);
    if (!x) {
        snprintf(buffer, size, "head_dim is %d, and registers hold at most %d", (int)key->head_dim,
                 (int)shapes[OPENCL_INTEL_SHAPES - 1].head_dim);
        return buffer;
    }
    return tess_opencl_fits(d, THREADS, local_bytes(x), buffer, size) ? NULL : buffer;
}

static opencl_program *instance(opencl_device *d, const tess_kernel_key *key, char *options,
                                size_t size, uint32_t *threads) {
    const shape *x = find(key->head_dim);
    snprintf(options, size,
             "-cl-std=CL3.0 -cl-intel-256-GRF-per-thread -D TESS_DTYPE=%u -D TESS_LANES=%uu "
             "-D TESS_DIMS=%uu -D TESS_KEYS=%uu",
             (unsigned)key->dtype, (unsigned)d->intel.lanes, (unsigned)x->head_dim,
             (unsigned)x->keys);
    *threads = THREADS;
    return &d->intel_dpas[key->dtype][x - shapes];
}

/* Reasoned from the data sheet of an Arc B580: 117 TFLOP/s of 20 cores, of which a third is taken
 * to be reached with four workgroups on each, and 456 GB/s. Nobody has measured it. */
static void describe(const opencl_device *d, const tess_kernel_key *key, tess_kernel *kernel) {
    enum { FLOP_PER_NS = 2000, GROUPS = 4 }; /* of a core, which has eight units */
    const shape *x = find(key->head_dim);
    const uint32_t cores = d->compute_units / 8 ? d->compute_units / 8 : 1;
    tess_kernel_costs costs = {.job_ns = 5000,
                               .merge_ns = 10000,
                               .part_ns = 300,
                               .partial_bandwidth = 200000,
                               .bandwidth = 400000};
    costs.workers = GROUPS * cores;
    costs.step_keys = x->keys;
    costs.step_ns = GROUPS * 4 * THREADS * x->keys * (uint32_t)x->head_dim / FLOP_PER_NS;
    tess_portable_tiles(THREADS, 1, &costs, kernel);
    d->host->log(d->host, "dispatch",
                 "intel_dpas runs in an instance for a head_dim of %d and subgroups of %u",
                 (int)x->head_dim, (unsigned)d->intel.lanes);
}

const opencl_matrix_row tess_opencl_intel_dpas_row = {.source = tess_opencl_intel_dpas,
                                                      .source_size = &tess_opencl_intel_dpas_size,
                                                      .refuses = refuses,
                                                      .instance = instance,
                                                      .describe = describe};
