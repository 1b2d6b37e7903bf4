/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel for NVIDIA's tensor cores from the host's side: which devices and problems it takes,
 * its instances, and what they cost. */
#include <stdio.h>

#include "opencl.h"

extern const unsigned char tess_opencl_nv_mma[];
extern const size_t tess_opencl_nv_mma_size;

/* A workgroup takes 64 * tiles rows, `keys` at a time, and holds operands of Q for `held` times 16
 * elements in registers. */
typedef struct shape {
    int32_t head_dim;
    uint32_t tiles, keys, held;
} shape;

enum { THREADS = 128, SHAPES = 3, LEAST_MAJOR = 8, VENDOR_NVIDIA = 0x10de };
static const shape shapes[SHAPES] = {{64, 2, 64, 4}, {128, 2, 32, 5}, {256, 1, 16, 16}};
_Static_assert((int)SHAPES == (int)TESS_PORTABLE_BUCKETS, "there is a program for each");

/* Of local memory: two stages of K and V, operands of Q, rows, and what is known of keys. */
static uint32_t local_bytes(const shape *x) {
    const uint32_t dims = (uint32_t)x->head_dim, spare = dims / 16 - x->held;
    return 8 * x->keys * dims + 16 * x->tiles * spare * THREADS + 16 * 64 * x->tiles +
           56 * x->keys + 256;
}

static const shape *find(int32_t head_dim) {
    for (int n = 0; n < SHAPES; n++)
        if (head_dim <= shapes[n].head_dim) return &shapes[n];
    return NULL;
}

static const char *refuses_device(const opencl_device *d, char *buffer, size_t size) {
    if (!d->nv[0])
        return "needs a GPU of NVIDIA, and the device has no cl_nv_device_attribute_query";
    if (d->nv[0] < LEAST_MAJOR) {
        snprintf(buffer, size, "needs compute capability %d.0, and the device has %u.%u",
                 LEAST_MAJOR, (unsigned)d->nv[0], (unsigned)d->nv[1]);
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
    if (tess_portable_has_codes(key->kv_dtype))
        return "kv_dtype: K and V of 8 bits are read by portable";
    const shape *x = find(key->head_dim);
    return tess_opencl_fits(d, THREADS, local_bytes(x), buffer, size) ? NULL : buffer;
}

static opencl_program *instance(opencl_device *d, const tess_kernel_key *key, char *options,
                                size_t size, uint32_t *threads) {
    const shape *x = find(key->head_dim);
    snprintf(options, size,
             "-cl-std=CL3.0 -D TESS_DTYPE=%u -D TESS_DIMS=%uu -D TESS_TILES=%uu -D TESS_KEYS=%uu "
             "-D TESS_HELD=%uu",
             (unsigned)key->dtype, (unsigned)x->head_dim, (unsigned)x->tiles, (unsigned)x->keys,
             (unsigned)x->held);
    *threads = THREADS;
    return &d->nv_mma[key->dtype][x - shapes];
}

/* Reasoned from an A100: 312 TFLOP/s of 108 multiprocessors, of which the kernel reaches about
 * half with two workgroups on each, and 1.5 TB/s. */
static void describe(const opencl_device *d, const tess_kernel_key *key, tess_kernel *kernel) {
    enum { FLOP_PER_NS = 1500, GROUPS = 2 }; /* of a multiprocessor */
    const shape *x = find(key->head_dim);
    tess_kernel_costs costs = {.job_ns = 3000,
                               .merge_ns = 8000,
                               .part_ns = 200,
                               .partial_bandwidth = 500000,
                               .bandwidth = 1500000};
    costs.workers = GROUPS * (d->compute_units ? d->compute_units : 1);
    costs.step_keys = x->keys;
    costs.step_ns = GROUPS * 4 * 64 * x->tiles * x->keys * (uint32_t)x->head_dim / FLOP_PER_NS;
    tess_portable_tiles(64 * x->tiles, 1, &costs, kernel);
    d->host->log(d->host, "dispatch", "nv_mma runs in an instance for a head_dim of %d and %u rows",
                 (int)x->head_dim, (unsigned)(64 * x->tiles));
}

const opencl_matrix_row tess_opencl_nv_mma_row = {.proved_on = VENDOR_NVIDIA,
                                                  .source = tess_opencl_nv_mma,
                                                  .source_size = &tess_opencl_nv_mma_size,
                                                  .refuses = refuses,
                                                  .instance = instance,
                                                  .describe = describe};
