/* SPDX-License-Identifier: Apache-2.0 */
/* A small step, for tests of failures and of threads: lengths from the device, prepared and run. */
#ifndef TESSERA_TESTS_STEPPING_H
#define TESSERA_TESTS_STEPPING_H

#include <math.h>
#include <string.h>

#include "common/testlib.h"

/* Places in one buffer, in floats. */
enum {
    STEPPED_DIM = 8,
    STEPPED_BATCH = 2,
    STEPPED_ROWS = 3,
    STEPPED_KEYS = 40,
    STEPPED_Q = 0,
    STEPPED_K = 64,
    STEPPED_V = STEPPED_K + STEPPED_BATCH * STEPPED_KEYS * STEPPED_DIM,
    STEPPED_O = STEPPED_V + STEPPED_BATCH * STEPPED_KEYS * STEPPED_DIM,
    STEPPED_CU_ROWS = STEPPED_O + 64,
    STEPPED_KV_LENS = STEPPED_CU_ROWS + 64,
    STEPPED_FLOATS = STEPPED_KV_LENS + 64
};

typedef struct stepping {
    tess_layout *layout;
    tess_plan *plan;
    tess_plan_info info;
    tess_buffer memory, step, work;
    float image[STEPPED_FLOATS];
} stepping;

static inline tess_buffer stepping_at(const stepping *s, uint64_t place) {
    tess_buffer buffer = s->memory;
    buffer.offset += place * sizeof(float);
    return buffer;
}

static inline tess_status stepping_create(tess_runtime *runtime, tess_device *device, stepping *s) {
    static const int32_t cu_rows[STEPPED_BATCH + 1] = {0, 1, 3}, kv_lens[STEPPED_BATCH] = {37, 2};
    const tess_pattern pattern = {.struct_size = sizeof pattern, .kind = TESS_PATTERN_DENSE};
    const tess_layout_desc ld = test_layout_desc(&pattern, 1, 1, STEPPED_KEYS);
    const tess_plan_desc pd = {.struct_size = sizeof pd,
                               .flags = TESS_PLAN_DEVICE_LENGTHS,
                               .head_dim = STEPPED_DIM,
                               .batch = STEPPED_BATCH,
                               .q_len = 2,
                               .kv_len = STEPPED_KEYS,
                               .max_in_flight = 2,
                               .max_rows = STEPPED_ROWS};
    const uint64_t bytes = sizeof s->image;
    s->info.struct_size = sizeof s->info;
    for (int n = STEPPED_V; n < STEPPED_O; n++) s->image[n] = 3;
    memcpy(s->image + STEPPED_CU_ROWS, cu_rows, sizeof cu_rows);
    memcpy(s->image + STEPPED_KV_LENS, kv_lens, sizeof kv_lens);
    tess_status status = tess_layout_create(runtime, &ld, &s->layout);
    if (status == TESS_OK) status = tess_plan_create(device, s->layout, &pd, &s->plan);
    if (status == TESS_OK) status = tess_plan_query(s->plan, &s->info);
    if (status == TESS_OK) status = tess_alloc(device, bytes, &s->memory);
    if (status == TESS_OK) status = tess_alloc(device, s->info.step_bytes, &s->step);
    if (status == TESS_OK) status = tess_alloc(device, s->info.workspace_bytes, &s->work);
    return status == TESS_OK
               ? tess_copy(device, s->memory, tess_host_buffer(s->image, bytes), bytes)
               : status;
}

static inline tess_status stepping_release(tess_device *device, stepping *s) {
    tess_buffer *const buffers[3] = {&s->memory, &s->step, &s->work};
    tess_status status = TESS_OK;
    tess_plan_release(s->plan);
    tess_layout_release(s->layout);
    for (int n = 0; n < 3; n++) {
        const tess_status freed = tess_free(device, buffers[n]);
        if (status == TESS_OK) status = freed;
    }
    return status;
}

/* Prepares a step and runs it. *right: every row is the mean of values that are all 3, or could not
 * be read. The first failure comes back. */
static inline tess_status stepping_run(tess_device *device, stepping *s, int *right) {
    const tess_prepare_desc prepare = {.struct_size = sizeof prepare,
                                       .batch = STEPPED_BATCH,
                                       .cu_rows = stepping_at(s, STEPPED_CU_ROWS),
                                       .kv_lens = stepping_at(s, STEPPED_KV_LENS),
                                       .step = s->step};
    tess_run_desc run = {.struct_size = sizeof run, .workspace = s->work, .step = s->step};
    static const uint64_t places[4] = {STEPPED_Q, STEPPED_K, STEPPED_V, STEPPED_O};
    tess_tensor *const tensors[4] = {&run.q, &run.k, &run.v, &run.o};
    const uint64_t bytes = sizeof s->image;
    tess_status status = TESS_OK;
    for (int n = 0; n < 4 && status == TESS_OK; n++)
        status =
            tess_plan_tensor(s->plan, (tess_role)n, stepping_at(s, places[n]), tensors[n], NULL);
    if (status == TESS_OK) status = tess_prepare(s->plan, &prepare);
    if (status == TESS_OK) status = tess_run(s->plan, &run);
    if (status == TESS_OK) status = tess_wait(device, UINT64_C(60000000000));
    if (status == TESS_OK)
        status = tess_copy(device, tess_host_buffer(s->image, bytes), s->memory, bytes);
    if (status != TESS_OK) return status;
    *right = 1;
    for (int n = 0; n < STEPPED_ROWS * STEPPED_DIM; n++)
        *right = *right && fabsf(s->image[STEPPED_O + n] - 3) < 1e-5f;
    return TESS_OK;
}

#endif
