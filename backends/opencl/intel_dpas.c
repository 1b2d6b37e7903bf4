/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel for Intel's matrix engines from the host's side: which devices and problems it takes,
 * its instances, and what they cost. */
#include <stdio.h>

#include "opencl.h"

extern const unsigned char tess_opencl_intel_dpas[];
extern const size_t tess_opencl_intel_dpas_size;

/* A workgroup takes 64 rows. An instance is for heads up to each of these. */
enum { THREADS = 64, MOST_SIZES = 16 };
static const int32_t shapes[OPENCL_INTEL_SHAPES] = {64, 128};

/* Keys of a stage: with 64, registers would spill where subgroups are of 8. */
static uint32_t keys_of(const opencl_device *d) { return d->intel.lanes == 16 ? 64 : 32; }

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

/* Of local memory: K and V, Q, rows, and what is known of keys. */
static uint32_t local_bytes(const opencl_device *d, const int32_t *shape) {
    const uint32_t dims = (uint32_t)*shape, keys = keys_of(d);
    return 4 * dims * (keys + 1) + 2 * dims * THREADS + 16 * THREADS + 48 * keys + 512;
}

static const int32_t *find(int32_t head_dim) {
    for (int n = 0; n < OPENCL_INTEL_SHAPES; n++)
        if (head_dim <= shapes[n]) return &shapes[n];
    return NULL;
}

static const char *refuses(const opencl_device *d, const tess_kernel_key *key, char *buffer,
                           size_t size) {
    const char *why = NULL,
               *lacks = d->intel.lacks || !key ? d->intel.lacks : d->intel.lacks_dtype[key->dtype];
    if (lacks)
        snprintf(buffer, size, "needs a GPU with matrix engines of Intel, and the device has no %s",
                 lacks);
    else if (d->intel.lanes != 8 && d->intel.lanes != 16)
        snprintf(buffer, size, "needs subgroups of 8 or 16, and the device's smallest have %u",
                 (unsigned)d->intel.lanes);
    else if (!key)
        return tess_opencl_fits(d, THREADS, local_bytes(d, shapes), buffer, size) ? NULL : buffer;
    else if ((why = tess_portable_refusal(key)) != NULL)
        return why;
    else if (key->dtype == TESS_F32)
        return "dtype is f32, and matrix units take f16 and bf16";
    else if (tess_portable_has_codes(key->kv_dtype))
        return "kv_dtype: K and V of 8 bits are read by portable";
    else if (!find(key->head_dim))
        snprintf(buffer, size, "head_dim is %d, and registers hold at most %d", (int)key->head_dim,
                 (int)shapes[OPENCL_INTEL_SHAPES - 1]);
    else if (tess_opencl_fits(d, THREADS, local_bytes(d, find(key->head_dim)), buffer, size))
        return NULL;
    return buffer;
}

static opencl_program *instance(opencl_device *d, const tess_kernel_key *key, char *options,
                                size_t size, uint32_t *threads) {
    const int32_t *x = find(key->head_dim);
    snprintf(options, size,
             "-cl-std=CL3.0 -cl-intel-256-GRF-per-thread -D TESS_DTYPE=%u -D TESS_LANES=%uu "
             "-D TESS_DIMS=%uu -D TESS_KEYS=%uu",
             (unsigned)key->dtype, (unsigned)d->intel.lanes, (unsigned)*x, (unsigned)keys_of(d));
    *threads = THREADS;
    return &d->intel_dpas[key->dtype][x - shapes];
}

/* Reasoned from the data sheet of an Arc B580: 117 TFLOP/s of 20 cores, of which a third is taken
 * to be reached with four workgroups on each, and 456 GB/s. Nobody has measured it. */
static void describe(const opencl_device *d, const tess_kernel_key *key, tess_kernel *kernel) {
    enum { FLOP_PER_NS = 2000, GROUPS = 4 }; /* of a core, which has eight units */
    const int32_t *x = find(key->head_dim);
    const uint32_t cores = d->compute_units / 8 + (d->compute_units < 8);
    tess_kernel_costs costs = {.workers = GROUPS * cores,
                               .job_ns = 5000,
                               .merge_ns = 10000,
                               .part_ns = 300,
                               .partial_bandwidth = 200000,
                               .bandwidth = 400000};
    costs.step_keys = keys_of(d);
    costs.step_ns = GROUPS * 4 * THREADS * costs.step_keys * (uint32_t)*x / FLOP_PER_NS;
    tess_portable_tiles(THREADS, 1, &costs, kernel);
}

const opencl_matrix_row tess_opencl_intel_dpas_row = {.source = tess_opencl_intel_dpas,
                                                      .source_size = &tess_opencl_intel_dpas_size,
                                                      .refuses = refuses,
                                                      .instance = instance,
                                                      .describe = describe};
