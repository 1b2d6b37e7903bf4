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

enum { TOKENS = 2048, HEADS = 8, KV_HEADS = 2, DIM = 64 };
static float q[TOKENS * HEADS * DIM], k[TOKENS * KV_HEADS * DIM], v[TOKENS * KV_HEADS * DIM], o[TOKENS * HEADS * DIM];

int main(void) {
    for (int n = 0; n < TOKENS * HEADS * DIM; n++) q[n] = (float)(n % 7 - 3) / 3;
    for (int n = 0; n < TOKENS * KV_HEADS * DIM; n++) k[n] = (float)(n % 5 - 2) / 2, v[n] = (float)(n % 11) / 11;

    /* A device: the best one that works, or what TESSERA_BACKEND asks for. */
    tess_runtime *runtime;
    tess_device *device;
    check(tess_runtime_create(NULL, &runtime));
    check(tess_device_open(runtime, NULL, &device));

    /* A layout: each head sees its last 4 blocks of 64 tokens and every 8th block before them, shifted from head to head. */
    tess_pattern pattern = {.struct_size = sizeof pattern, .kind = TESS_PATTERN_S2, .block = 64, .local = 4, .stride = 8};
    tess_layout_desc layout_desc = {
        .struct_size = sizeof layout_desc, .pattern = &pattern, .n_heads = HEADS, .n_kv_heads = KV_HEADS, .max_tokens = TOKENS};
    tess_layout *layout;
    check(tess_layout_create(runtime, &layout_desc, &layout));

    /* A plan: this layout for one sequence on this device. Made once for each batch shape, run every step. */
    tess_plan_desc plan_desc = {.struct_size = sizeof plan_desc, .dtype = TESS_F32, .head_dim = DIM, .batch = 1, .q_len = TOKENS, .kv_len = TOKENS};
    tess_plan *plan;
    tess_plan_info info = {.struct_size = sizeof info};
    check(tess_plan_create(device, layout, &plan_desc, &plan));
    check(tess_plan_query(plan, &info));

    /* A run: on arrays that belong to the application, workspace included. A GPU takes its own kinds of buffers instead. */
    tess_run_desc run = {.struct_size = sizeof run};
    check(tess_plan_tensor(plan, TESS_ROLE_Q, tess_host_buffer(q, sizeof q), &run.q, NULL));
    check(tess_plan_tensor(plan, TESS_ROLE_K, tess_host_buffer(k, sizeof k), &run.k, NULL));
    check(tess_plan_tensor(plan, TESS_ROLE_V, tess_host_buffer(v, sizeof v), &run.v, NULL));
    check(tess_plan_tensor(plan, TESS_ROLE_O, tess_host_buffer(o, sizeof o), &run.o, NULL));
    check(tess_alloc(device, info.workspace_bytes, &run.workspace));
    check(tess_run(plan, &run));

    double sum = 0;
    for (int n = 0; n < TOKENS * HEADS * DIM; n++) sum += o[n];
    printf("%s: checksum %.3f, %.2f times less work than dense\n", info.kernel, sum, (double)info.dense_pairs / (double)info.kept_pairs);

    check(tess_free(device, &run.workspace));
    tess_plan_release(plan);
    tess_layout_release(layout);
    tess_device_release(device);
    tess_runtime_release(runtime);
    return 0;
}
