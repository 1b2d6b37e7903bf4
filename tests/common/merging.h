/* SPDX-License-Identifier: Apache-2.0 */
/* A small merge of parts, for tests of failures and of threads. */
#ifndef TESSERA_TESTS_MERGING_H
#define TESSERA_TESTS_MERGING_H

#include <math.h>
#include <string.h>
#include <tessera/tessera.h>

/* Places in one buffer, in floats. */
enum {
    MERGED_PARTS = 3,
    MERGED_DIM = 8,
    MERGED_LSE = 64,
    MERGED_O = 128,
    MERGED_SUM = 192,
    MERGED_FLOATS = 256
};

/* Merges three parts, of which the last one saw no key, and looks at the result. *right: it is, or
 * could not be read. The first failure comes back, and the memory is freed in any case. */
static inline tess_status test_merge(tess_device *device, int *right) {
    float image[MERGED_FLOATS] = {0};
    tess_buffer memory = {0};
    const uint64_t bytes = sizeof image;
    for (int n = 0; n < MERGED_PARTS; n++)
        for (int e = 0; e < MERGED_DIM; e++)
            image[n * MERGED_DIM + e] = n == 2 ? NAN : n ? 3.0f : 1.0f;
    image[MERGED_LSE] = image[MERGED_LSE + 1] = 2;
    image[MERGED_LSE + 2] = -INFINITY;
    tess_status status = tess_alloc(device, bytes, &memory);
    if (status != TESS_OK) return status;
    tess_parts_desc d = {.struct_size = sizeof d,
                         .n_parts = MERGED_PARTS,
                         .n_heads = 1,
                         .head_dim = MERGED_DIM,
                         .dtype = TESS_F32,
                         .rows = 1};
    tess_tensor *const tensors[4] = {&d.o_parts, &d.lse_parts, &d.o, &d.lse};
    static const uint64_t places[4] = {0, MERGED_LSE, MERGED_O, MERGED_SUM};
    for (int n = 0; n < 4; n++) {
        tensors[n]->buffer = memory;
        tensors[n]->buffer.offset += places[n] * sizeof(float);
    }
    d.o_parts.stride_batch = MERGED_DIM;
    d.lse_parts.stride_batch = 1;
    status = tess_copy(device, memory, tess_host_buffer(image, bytes), bytes);
    if (status == TESS_OK) status = tess_merge_parts(device, &d);
    if (status == TESS_OK) status = tess_wait(device, UINT64_MAX);
    if (status == TESS_OK) {
        memset(image, 0, sizeof image);
        status = tess_copy(device, tess_host_buffer(image, bytes), memory, bytes);
    }
    if (status == TESS_OK) {
        *right = fabsf(image[MERGED_SUM] - 2 - logf(2)) < 1e-5f;
        for (int e = 0; e < MERGED_DIM; e++)
            *right = *right && fabsf(image[MERGED_O + e] - 2) < 1e-5f;
    }
    /* The merge may still run where the wait for it failed. */
    if (status != TESS_OK) (void)tess_wait(device, UINT64_C(60000000000));
    const tess_status freed = tess_free(device, &memory);
    return status != TESS_OK ? status : freed;
}

#endif
