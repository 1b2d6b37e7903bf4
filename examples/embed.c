/* SPDX-License-Identifier: Apache-2.0 */
/* Attention with a sparse pattern on an application's own arrays. */
#include <stdio.h>
#include <stdlib.h>

#include <tessera/tessera.h>

static void check(tess_status status) {
    if (status == TESS_OK) return;
    fprintf(stderr, "%s: %s\n", tess_status_name(status), tess_last_error());
    exit(1);
}

/* A tensor of the plan in the device's own memory, which on a CPU is the host's. An application
 * that has its arrays there already passes those instead. */
static tess_tensor place(tess_device *device, const tess_plan *plan, tess_role role,
                         const void *data) {
    tess_tensor tensor;
    tess_buffer memory;
    uint64_t bytes;
    check(tess_plan_tensor(plan, role, (tess_buffer){0}, &tensor, &bytes));
    check(tess_alloc(device, bytes, &memory));
    if (data) check(tess_copy(device, memory, tess_host_buffer(data, bytes), bytes));
    tensor.buffer = memory;
    return tensor;
}

enum { TOKENS = 2048, HEADS = 8, KV_HEADS = 2, DIM = 64 };
static float q[TOKENS * HEADS * DIM], k[TOKENS * KV_HEADS * DIM], v[TOKENS * KV_HEADS * DIM],
    o[TOKENS * HEADS * DIM];

int main(void) {
    for (int n = 0; n < TOKENS * HEADS * DIM; n++) q[n] = (float)(n % 7 - 3) / 3;
    for (int n = 0; n < TOKENS * KV_HEADS * DIM; n++)
        k[n] = (float)(n % 5 - 2) / 2, v[n] = (float)(n % 11) / 11;

    /* A device: the best one that works, or what TESSERA_BACKEND asks for. */
    tess_runtime *runtime;
    tess_device *device;
    check(tess_runtime_create(NULL, &runtime));
    check(tess_device_open(runtime, NULL, &device));

    /* A layout: each head sees its last 4 blocks of 64 tokens and every 8th block before them,
     * shifted from head to head. */
    tess_pattern pattern = {.struct_size = sizeof pattern, .kind = TESS_PATTERN_S2};
    pattern.block = 64, pattern.local = 4, pattern.stride = 8;
    tess_layout_desc layout_desc = {.struct_size = sizeof layout_desc, .pattern = &pattern};
    layout_desc.n_heads = HEADS, layout_desc.n_kv_heads = KV_HEADS, layout_desc.max_tokens = TOKENS;
    tess_layout *layout;
    check(tess_layout_create(runtime, &layout_desc, &layout));

    /* A plan: this layout for one sequence on this device. Made once for each batch shape, run
     * every step. `batch` has no default: left 0 it is legal, and nothing is computed. */
    tess_plan_desc plan_desc = {.struct_size = sizeof plan_desc, .dtype = TESS_F32};
    plan_desc.head_dim = DIM, plan_desc.batch = 1, plan_desc.q_len = plan_desc.kv_len = TOKENS;
    tess_plan *plan;
    tess_plan_info info = {.struct_size = sizeof info};
    check(tess_plan_create(device, layout, &plan_desc, &plan));
    check(tess_plan_query(plan, &info));

    /* A run: on memory that belongs to the application, workspace included. */
    tess_run_desc run = {.struct_size = sizeof run};
    run.q = place(device, plan, TESS_ROLE_Q, q);
    run.k = place(device, plan, TESS_ROLE_K, k);
    run.v = place(device, plan, TESS_ROLE_V, v);
    run.o = place(device, plan, TESS_ROLE_O, NULL);
    check(tess_alloc(device, info.workspace_bytes, &run.workspace));
    check(tess_run(plan, &run));
    check(tess_wait(device, UINT64_MAX));
    check(tess_copy(device, tess_host_buffer(o, sizeof o), run.o.buffer, sizeof o));

    double sum = 0;
    for (int n = 0; n < TOKENS * HEADS * DIM; n++) sum += o[n];
    printf("%s: checksum %.3f, %.2f times less work than dense\n", info.kernel, sum,
           (double)info.dense_pairs / (double)info.kept_pairs);

    tess_tensor *tensors[] = {&run.q, &run.k, &run.v, &run.o};
    for (int n = 0; n < 4; n++) check(tess_free(device, &tensors[n]->buffer));
    check(tess_free(device, &run.workspace));
    tess_plan_release(plan);
    tess_layout_release(layout);
    tess_device_release(device);
    tess_runtime_release(runtime);
    return 0;
}
