/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A server that outlives its failures: each call to the driver that appending, copying pages,
 * merging and preparing a step make fails, while their kernels are made ready and later. The same
 * plans on the same device work then.
 */
#ifndef TESSERA_TESTS_SERVING_AGAIN_H
#define TESSERA_TESTS_SERVING_AGAIN_H

#include "common/again.h"
#include "common/merging.h"
#include "common/serve.h"
#include "common/stepping.h"

typedef struct server {
    tess_device *device;
    serve cache;
    stepping steps;
    int right; /* results were, as far as they could be read */
} server;

/* All of it, up to the first failure. */
static inline tess_status server_work(server *x) {
    int merged = 1, stepped = 1;
    tess_status status = serve_work(x->device, &x->cache);
    if (status == TESS_OK) status = test_merge(x->device, &merged);
    if (status == TESS_OK) status = stepping_run(x->device, &x->steps, &stepped);
    x->right = merged && stepped;
    return status;
}

static inline void server_works(server *x, const again *a, const char *failed) {
    a->inject(0);
    /* What was enqueued before the failure may still run. */
    const tess_status waited = tess_wait(x->device, UINT64_C(60000000000)),
                      status = waited == TESS_OK ? server_work(x) : waited;
    if (status != TESS_OK)
        fail_msg("after %s failed: %s: %s", failed, tess_status_name(status), tess_last_error());
    if (!x->right) fail_msg("after %s failed: wrong results", failed);
    assert_ok(serve_check(x->device, &x->cache));
}

/* A server on the device of that id. `code_status` is what the injected error means. */
static inline void server_again(test_heap *heap, const char *id, const again *a,
                                tess_status code_status) {
    const tess_runtime_desc rd = {.struct_size = sizeof rd,
                                  .allocator = heap->allocator,
                                  .log = test_log_nothing,
                                  .cpu_threads = 1};
    const tess_device_desc dd = {.struct_size = sizeof dd, .id = id};
    tess_runtime *runtime = NULL;
    tess_device *device = NULL;
    char failed[96] = "nothing";
    int call = 1;
    a->inject(0);
    assert_ok(tess_runtime_create(&rd, &runtime));
    assert_ok(tess_device_open(runtime, &dd, &device));
    server x = {.device = device};
    assert_ok(serve_layout(runtime, &x.cache));
    assert_ok(serve_plan(device, &x.cache));
    assert_ok(serve_memory(device, &x.cache));
    assert_ok(stepping_create(runtime, device, &x.steps));
    /* At first kernels are not ready, until a call behind that fails. */
    for (int warm = 0; warm < 2; warm++) {
        for (call = 1; call < AGAIN_MOST_CALLS; call++) {
            a->inject(call);
            const tess_status status = server_work(&x);
            if (!a->failures()) break;
            snprintf(failed, sizeof failed, "%s (call %d of a server)", a->failed(), call);
            if (status != TESS_OK && status != code_status)
                fail_msg("%s fails: %s: %s", failed, tess_status_name(status), tess_last_error());
            if (warm) server_works(&x, a, failed);
        }
        server_works(&x, a, failed);
    }
    a->inject(0);
    tess_plan_release(x.cache.plan);
    tess_layout_release(x.cache.layout);
    tess_buffer *const buffers[4] = {&x.cache.rows, &x.cache.pools[0], &x.cache.pools[1],
                                     &x.cache.words};
    for (int n = 0; n < 4; n++) assert_ok(tess_free(device, buffers[n]));
    assert_ok(stepping_release(device, &x.steps));
    tess_device_release(device);
    tess_runtime_release(runtime);
    assert_in_range(call, 20, 200);
}

/* The test of a program that has the functions of LIFE_TESTS, and again_fail(), which fails a call
 * with again_code; `code` is a lack of memory. */
#define SERVER_TEST(code, id)                                                           \
    static void test_server_again(void **state) {                                       \
        (void)state;                                                                    \
        const again a = {.inject = again_fail, .failures = failures, .failed = failed}; \
        test_heap heap;                                                                 \
        test_heap_init(&heap, 0, 0);                                                    \
        reset();                                                                        \
        again_code = (code);                                                            \
        server_again(&heap, (id), &a, TESS_ERROR_OUT_OF_MEMORY);                        \
        nothing_lives(&heap, 0);                                                        \
    }

#endif
