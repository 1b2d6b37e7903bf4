/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients on a driver that fails: each of its calls for a plan and its runs, and each allocation
 * of the host, fails once on a device of its own. Nothing may leak, the status has to be right, and
 * the same device computes then. At last one plan goes through all failures of its runs.
 */
#ifndef TESSERA_TESTS_GRADIENTS_AGAIN_H
#define TESSERA_TESTS_GRADIENTS_AGAIN_H

#include <stdlib.h>

#include "common/again.h"

enum { GRADIENTS_MOST_CALLS = 2000 };

/* What a test tells of its driver. */
typedef struct gradients_again {
    const char *id;
    const again *again;
    tess_status wanted; /* what the injected error means */
    /* After a device and its runtime are gone; `call` failed. */
    void (*nothing_lives)(const test_heap *heap, int call);
} gradients_again;

/* A plan with its programs, two runs, and the check, up to the first failure. */
static inline tess_status gradients_once(tess_device *device, const problem *p, int *right) {
    instance x;
    double seconds = -1;
    instance_verdict verdict = {0};
    tess_status status = instance_create(&x, device, p, NULL, INSTANCE_GUARDS | INSTANCE_POISON);
    if (status != TESS_OK) return status;
    status = again_run_both(&x, &seconds);
    if (status == TESS_OK) instance_check(&x, 0, &verdict);
    *right = verdict.pass;
    /* What was enqueued before the failure may still run, and reads what is released here. */
    const tess_status waited =
        status == TESS_OK ? TESS_OK : tess_wait(device, UINT64_C(60000000000));
    instance_release(&x);
    assert_int_equal(waited, TESS_OK);
    return status;
}

/* Call `call` of the driver fails, or of the host's allocations where `of_host`. 0: there are
 * fewer. */
static inline int gradients_fail_at(const gradients_again *g, const problem *p, int call,
                                    int of_host) {
    const again *a = g->again;
    test_heap heap;
    tess_runtime *runtime = NULL;
    tess_device *device = NULL;
    char failed[96];
    int right = 0;
    test_heap_init(&heap, 0, 0);
    const tess_runtime_desc rd = {.struct_size = sizeof rd,
                                  .allocator = heap.allocator,
                                  .log = test_log_nothing,
                                  .cpu_threads = 1};
    const tess_device_desc dd = {.struct_size = sizeof dd, .id = g->id};
    a->inject(0);
    assert_ok(tess_runtime_create(&rd, &runtime));
    assert_ok(tess_device_open(runtime, &dd, &device));
    if (of_host)
        heap.fail_at = heap.calls + call;
    else
        a->inject(call);
    const tess_status status = gradients_once(device, p, &right),
                      wanted = of_host ? TESS_ERROR_OUT_OF_MEMORY : g->wanted;
    const int happened = of_host ? heap.failures > 0 : a->failures() > 0;
    snprintf(failed, sizeof failed, "%s (call %d)", of_host ? "an allocation" : a->failed(), call);
    a->inject(0);
    heap.fail_at = 0;
    if (status != TESS_OK && (!happened || status != wanted || !tess_last_error()[0]))
        fail_msg("after %s failed: %s: %s", failed, tess_status_name(status), tess_last_error());
    if (happened) assert_ok(gradients_once(device, p, &right));
    if (!right) fail_msg("after %s failed: wrong gradients", failed);
    tess_device_release(device);
    tess_runtime_release(runtime);
    g->nothing_lives(&heap, call);
    return happened;
}

/* Every `step`-th call fails, all of them with TESSERA_TEST_FULL=1. */
static inline void gradients_fail(const gradients_again *g, int step) {
    const char *full = getenv("TESSERA_TEST_FULL");
    const int by = full && *full == '1' ? 1 : step;
    problem p;
    char error[256];
    assert_int_equal(problem_parse(&p,
                                   "op=bwd pattern=s2 block=16 local=2 stride=3 heads=4 "
                                   "kv_heads=2 q_len=9 kv_len=40 head_dim=8",
                                   error, sizeof error),
                     0);
    for (int of_host = 0; of_host < 2; of_host++) {
        int call = 1;
        while (call < GRADIENTS_MOST_CALLS && gradients_fail_at(g, &p, call, of_host)) call += by;
        printf("%s: %d calls, every %d-th failed\n", of_host ? "allocations" : "driver", call, by);
        assert_in_range(call, 10, GRADIENTS_MOST_CALLS - 1);
    }
    test_heap heap;
    tess_runtime *runtime = NULL;
    tess_device *device = NULL;
    instance x;
    test_heap_init(&heap, 0, 0);
    const tess_runtime_desc rd = {
        .struct_size = sizeof rd, .allocator = heap.allocator, .log = test_log_nothing};
    const tess_device_desc dd = {.struct_size = sizeof dd, .id = g->id};
    g->again->inject(0);
    assert_ok(tess_runtime_create(&rd, &runtime));
    assert_ok(tess_device_open(runtime, &dd, &device));
    assert_ok(instance_create(&x, device, &p, NULL, INSTANCE_GUARDS | INSTANCE_POISON));
    assert_in_range(again_runs(&x, g->again, g->wanted), 3, 100);
    instance_release(&x);
    tess_device_release(device);
    tess_runtime_release(runtime);
    problem_free(&p);
    g->nothing_lives(&heap, 0);
}

#endif
