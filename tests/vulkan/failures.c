/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every Vulkan call fails once: out of memory, after which the same step is tried again and works, or the device is lost for good. Whatever fails, statuses say so,
 * nothing hangs, and no object is left. Runs against the library of shim.c, which the loader finds in place of libvulkan.so.1.
 */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/testlib.h"
#include "reference.h"
#include "shim.h"

static struct {
    void (*reset)(long, int, int);
    long (*calls)(void), (*failures)(void), (*live)(char *, size_t);
    const char *(*failed)(void);
} shim;

enum { OUT_OF_HOST_MEMORY = -1, OUT_OF_DEVICE_MEMORY = -2, DEVICE_LOST = -4 };

static const char line[] = "pattern=dense heads=1 q_len=3 kv_len=40 head_dim=8 kv_split=2 block=8";

/* How a step that failed may answer. */
typedef struct rule {
    int again;          /* try once more */
    tess_status wanted; /* ... or the only status, and the end */
} rule;

/* Opening goes on to other devices when one is lost, and says so of all in the end. */
static int search_ended(tess_status wanted, const char *what, tess_status status) {
    return wanted == TESS_ERROR_DEVICE_LOST && status == TESS_ERROR_UNAVAILABLE && strstr(what, "tess_device_open") &&
           strstr(tess_last_error(), "DEVICE_LOST");
}

/* 1: the step is done; 0: it failed as it should, and nothing more can be done. */
static int step(const rule *r, const char *what, tess_status status) {
    if (status == TESS_OK) return 1;
    if (shim.failures() == 0) fail_msg("%s: %s without any failure: %s", what, tess_status_name(status), tess_last_error());
    if (status != r->wanted && !search_ended(r->wanted, what, status))
        fail_msg("%s: %s after %s failed: %s", what, tess_status_name(status), shim.failed(), tess_last_error());
    return 0;
}

#define STEP(call)                                                                                                                                  \
    do {                                                                                                                                            \
        if (!step(r, #call, call)) {                                                                                                                \
            if (!r->again) goto end;                                                                                                                \
            const tess_status second = (call);                                                                                                      \
            if (second != TESS_OK) fail_msg("%s: %s again after %s failed: %s", #call, tess_status_name(second), shim.failed(), tess_last_error()); \
        }                                                                                                                                           \
    } while (0)

/* Everything that an application does, from the first call to the last. */
static void scenario(const rule *r) {
    tess_runtime *runtime = NULL;
    tess_device *device = NULL;
    tess_layout *layout = NULL;
    tess_plan *plan = NULL;
    problem p;
    char error[256];
    uint64_t bytes[5];
    void *host[5] = {NULL};
    tess_buffer buffers[6], none = {0};
    double seconds;
    memset(buffers, 0, sizeof buffers);
    const tess_runtime_desc desc = {.struct_size = sizeof desc, .log = test_log_nothing};
    assert_ok(tess_runtime_create(&desc, &runtime));
    assert_int_equal(problem_parse(&p, line, error, sizeof error), 0);
    const tess_device_desc open = {.struct_size = sizeof open, .id = "vulkan"};
    tess_run_desc run = {.struct_size = sizeof run};
    tess_tensor *const tensors[5] = {&run.q, &run.k, &run.v, &run.o, &run.lse};
    tess_plan_desc plan_desc;
    tess_plan_info info = {.struct_size = sizeof info};
    int64_t *cu = NULL;
    STEP(tess_device_open(runtime, &open, &device));
    STEP(problem_layout(&p, runtime, &layout));
    assert_int_equal(problem_plan_desc(&p, &plan_desc, &cu), 0);
    plan_desc.max_in_flight = 2;
    STEP(tess_plan_create(device, layout, &plan_desc, &plan));
    assert_ok(tess_plan_query(plan, &info));
    assert_true(info.n_merge_jobs > 0);
    for (int n = 0; n < 6; n++) {
        if (n < 5) assert_ok(tess_plan_tensor(plan, (tess_role)n, none, tensors[n], &bytes[n]));
        STEP(tess_alloc(device, n < 5 ? bytes[n] : info.workspace_bytes, &buffers[n]));
        if (n == 5) continue;
        tensors[n]->buffer = buffers[n];
        host[n] = calloc(1, bytes[n]);
        assert_non_null(host[n]);
        if (n < 3) fill_normal(p.dtype, host[n], (int64_t)bytes[n] / 4, 1, (uint32_t)n);
        STEP(tess_copy(device, buffers[n], tess_host_buffer(host[n], bytes[n]), bytes[n]));
    }
    run.workspace = buffers[5];
    STEP(tess_run(plan, &run));
    STEP(tess_wait(device, UINT64_C(60000000000)));
    for (int n = 0; n < 3; n++) { /* slots come round */
        STEP(tess_run(plan, &run));
        if (n == 1) STEP(tess_wait(device, UINT64_MAX));
    }
    STEP(tess_wait(device, UINT64_MAX));
    run.device_seconds = &seconds;
    STEP(tess_run(plan, &run));
    STEP(tess_copy(device, tess_host_buffer(host[3], bytes[3]), buffers[3], bytes[3]));
    const reference_inputs in = {host[0], host[1], host[2]};
    for (int64_t q = 0; q < p.q_len; q++) {
        double row[8], lse;
        reference_row(&p, &in, 0, 0, q, row, &lse);
        for (int e = 0; e < 8; e++)
            if (!(fabs(((float *)host[3])[q * 8 + e] - row[e]) < 1e-5)) fail_msg("wrong result after %s failed", shim.failed());
    }
end:
    free(cu);
    tess_plan_release(plan);
    tess_layout_release(layout);
    for (int n = 0; n < 6 && device; n++) assert_ok(tess_free(device, &buffers[n]));
    for (int n = 0; n < 5; n++) free(host[n]);
    tess_device_release(device);
    tess_runtime_release(runtime);
    problem_free(&p);
}

static void each_call(int sticky, int code, const rule *r) {
    char text[400];
    long most = 0;
    for (long k = 1;; k++) {
        shim.reset(k, sticky, code);
        scenario(r);
        const long failures = shim.failures();
        if (shim.live(text, sizeof text)) fail_msg("call %ld, %s: left behind: %s", k, shim.failed(), text);
        if (failures == 0) break;
        most = k;
    }
    printf("%ld calls failed, one after the other\n", most);
    assert_true(most > 60);
}

static void test_no_failure(void **state) {
    (void)state;
    char text[400];
    const rule none = {0, TESS_OK};
    shim.reset(0, 0, 0);
    scenario(&none);
    assert_int_equal(shim.live(text, sizeof text), 0);
    assert_true(shim.calls() > 60);
}

static void test_out_of_memory(void **state) {
    (void)state;
    const rule again = {1, TESS_ERROR_OUT_OF_MEMORY};
    each_call(0, OUT_OF_HOST_MEMORY, &again);
}

static void test_lost(void **state) {
    (void)state;
    const rule lost = {0, TESS_ERROR_DEVICE_LOST};
    each_call(1, DEVICE_LOST, &lost);
}

/* Whether there is a device to test on at all. */
static int have_device(void) {
    tess_runtime *runtime = NULL;
    tess_device *device = NULL;
    const tess_runtime_desc desc = {.struct_size = sizeof desc, .log = test_log_nothing};
    const tess_device_desc open = {.struct_size = sizeof open, .id = "vulkan"};
    if (tess_runtime_create(&desc, &runtime) != TESS_OK) return 0;
    const tess_status status = tess_device_open(runtime, &open, &device);
    if (status != TESS_OK) printf("skipped: %s\n", tess_last_error());
    tess_device_release(device);
    tess_runtime_release(runtime);
    return status == TESS_OK;
}

int main(void) {
    void *library = dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL);
    void *const symbols[] = {library ? dlsym(library, "shim_reset") : NULL, library ? dlsym(library, "shim_calls") : NULL,
                             library ? dlsym(library, "shim_failures") : NULL, library ? dlsym(library, "shim_live") : NULL,
                             library ? dlsym(library, "shim_failed") : NULL};
    for (int n = 0; n < 5; n++)
        if (!symbols[n]) {
            puts("libvulkan.so.1 is not the library of this test; run it through ctest");
            return 1;
        }
    memcpy(&shim.reset, &symbols[0], sizeof symbols[0]);
    memcpy(&shim.calls, &symbols[1], sizeof symbols[0]);
    memcpy(&shim.failures, &symbols[2], sizeof symbols[0]);
    memcpy(&shim.live, &symbols[3], sizeof symbols[0]);
    memcpy(&shim.failed, &symbols[4], sizeof symbols[0]);
    const char *require = getenv("TESSERA_REQUIRE");
    if (!have_device()) return require && strstr(require, "vulkan") ? 1 : 77;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_failure), cmocka_unit_test(test_out_of_memory), cmocka_unit_test(test_lost)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
