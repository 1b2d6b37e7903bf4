/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every call of the CUDA and HIP backends to their driver fails once, or from then on, over a whole
 * life cycle: lack of memory, code that the driver refuses, a lost device, and an error that nobody
 * expects. Nothing may leak or hang, the status has to be right, the thread's current context has
 * to be restored, and afterwards a whole cycle works.
 *
 *   driver_faults cuda|hip ARCHITECTURE
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/again.h"
#include "common/life.h"
#include "common/merging.h"
#include "common/serve.h"
#include "common/serving_again.h"
#include "common/testlib.h"
#include "fake_find.h"
#include "instance.h"

enum {
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    INVALID_IMAGE = 200,
    ILLEGAL_ADDRESS = 700,
    LAUNCH_FAILED = 719,
    MOST_CALLS = 3000,
    DISTURBED = 2
};

static const fake_exports *driver;
static fake_control *control;
static const char *backend, *arch;

/* Two bytes an element, so that the kernels for tensor cores take it where they are; more rows than
 * the decode kernel takes, and beside them as few as it does; enough jobs for Hopper's job counter,
 * and merges. */
#define LINE(lengths)                                                  \
    "pattern=s2 block=16 local=2 stride=3 heads=4 kv_heads=1 " lengths \
    " head_dim=16 dtype=f16 kv_split=3"
static const char line[] = LINE("q_len=9 kv_len=90"),
                  mixed_line[] = LINE("q_lens=9,1 kv_lens=90,70"),
                  backward_line[] = "pattern=s2 block=16 local=2 stride=3 heads=4 kv_heads=2 "
                                    "op=bwd q_len=9 kv_len=40 head_dim=8 dtype=f32";

static void reset(void) {
    memset(control, 0, sizeof *control);
    control->only_device = -1;
    for (int n = 0; n < FAKE_DEVICES; n++)
        snprintf(control->arch[n], sizeof control->arch[n], "%s", arch);
    driver->make_current(1); /* what the application has been doing */
}

static const char *id_of(int index) {
    static char text[2][32];
    snprintf(text[index], sizeof text[index], "%s:%d", backend, index);
    return text[index];
}

static tess_runtime *runtime_with(test_heap *heap) {
    tess_runtime_desc desc = {.struct_size = sizeof desc,
                              .allocator = heap->allocator,
                              .log = test_log_nothing,
                              .cpu_threads = 1};
    tess_runtime *runtime = NULL;
    assert_ok(tess_runtime_create(&desc, &runtime));
    return runtime;
}

static tess_status open_device(tess_runtime *runtime, int index, tess_device **device) {
    tess_device_desc desc = {.struct_size = sizeof desc, .id = id_of(index)};
    *device = NULL;
    return tess_device_open(runtime, &desc, device);
}

/* A lost device says so at once, without asking the driver. */
static void stays_lost(tess_device *device) {
    const int calls = control->calls;
    tess_buffer buffer = {0};
    assert_error(tess_alloc(device, 64, &buffer), TESS_ERROR_DEVICE_LOST, "tess_alloc", NULL);
    assert_error(tess_wait(device, 0), TESS_ERROR_DEVICE_LOST, "tess_wait", NULL);
    assert_int_equal(control->calls, calls);
}

static tess_status use_memory(tess_device *device) {
    char back[sizeof line] = "";
    tess_buffer one = {0}, two = {0};
    tess_status status = tess_alloc(device, 4096, &one);
    if (status == TESS_OK) status = tess_alloc(device, 4096, &two);
    if (status == TESS_OK)
        status = tess_copy(device, one, tess_host_buffer(line, sizeof line), sizeof line);
    if (status == TESS_OK) status = tess_copy(device, two, one, sizeof line);
    if (status == TESS_OK)
        status = tess_copy(device, tess_host_buffer(back, sizeof back), two, sizeof line);
    if (status == TESS_OK) assert_memory_equal(back, line, sizeof line);
    if (status == TESS_OK) status = tess_wait(device, 10000000000u);
    /* Buffers are freed whatever happened, and on a lost device too. */
    const tess_status first = tess_free(device, &one), second = tess_free(device, &two);
    if (status == TESS_ERROR_DEVICE_LOST) assert_true(first == TESS_OK && second == TESS_OK);
    if (status == TESS_OK) status = first != TESS_OK ? first : second;
    return status;
}

static tess_status use_plan(tess_device *device, const problem *p, int *seen) {
    instance x;
    double seconds = -1;
    tess_status status = instance_create(&x, device, p, NULL, INSTANCE_GUARDS | INSTANCE_POISON);
    if (status != TESS_OK) return status;
    status = again_run_both(&x, &seconds);
    if (status == TESS_OK) {
        assert_true(seconds > 0);
        instance_verdict verdict = {0};
        const int before = control->failures;
        instance_check(&x, 0, &verdict); /* reads guard words, which may fail as well */
        *seen = control->failures == before ? verdict.pass : DISTURBED;
        if (!*seen) fail_msg("%s", verdict.what);
    }
    instance_release(&x);
    if (status != TESS_OK) return status;
    const int before = control->failures;
    int right = 0;
    status = test_merge(device, &right);
    if (status == TESS_OK && !right && control->failures == before) fail_msg("the merge is wrong");
    return status;
}

/* One life cycle up to the first failure, everything released. `opened`: the device was open by
 * then; `seen`: a result was right, or could not be read. */
static tess_status live_once(test_heap *heap, int *opened, int *seen) {
    tess_runtime *runtime = runtime_with(heap);
    tess_device *device = NULL;
    problem p, mixed, backward;
    int mixed_seen = 0, backward_seen = 0;
    char error[256];
    assert_int_equal(problem_parse(&p, line, error, sizeof error), 0);
    assert_int_equal(problem_parse(&mixed, mixed_line, error, sizeof error), 0);
    assert_int_equal(problem_parse(&backward, backward_line, error, sizeof error), 0);
    *seen = 0;
    tess_status status = open_device(runtime, 0, &device);
    *opened = status == TESS_OK;
    if (status == TESS_OK) status = use_memory(device);
    if (status == TESS_OK) status = use_plan(device, &p, seen);
    if (status == TESS_OK) status = use_plan(device, &mixed, &mixed_seen);
    if (status == TESS_OK) status = use_plan(device, &backward, &backward_seen);
    if (status == TESS_OK) status = serve_once(runtime, device);
    if (*opened && status == TESS_ERROR_DEVICE_LOST) stays_lost(device);
    tess_device_release(device);
    tess_runtime_release(runtime);
    problem_free(&p);
    problem_free(&mixed);
    problem_free(&backward);
    if (status == TESS_OK && mixed_seen != 1) *seen = mixed_seen;
    if (status == TESS_OK && backward_seen != 1) *seen = backward_seen;
    return status;
}

static void nothing_lives(const test_heap *heap, int k) {
    static const char *const names[FAKE_KINDS] = {"contexts", "streams", "events",
                                                  "modules",  "buffers", "graphs"};
    const char *failed = control->failed ? control->failed : "none";
    for (int n = 0; n < FAKE_KINDS; n++)
        if (control->live[n] != 0)
            fail_msg("call %d (%s) fails: %d %s leak", k, failed, control->live[n], names[n]);
    if (heap->live || heap->bytes || heap->damaged)
        fail_msg("call %d (%s) fails: %lld allocations leak", k, failed, (long long)heap->live);
    if (control->depth)
        fail_msg("call %d (%s) fails: %d contexts stay on the stack", k, failed, control->depth);
    if (control->wrong) fail_msg("call %d (%s) fails: %s", k, failed, control->what);
    /* The call that puts back what was current may be one that fails. */
    if (driver->current_device() != 1 && strcmp(failed, "hipSetDevice") != 0 &&
        !(control->sticky && strcmp(backend, "hip") == 0))
        fail_msg("call %d (%s) fails: device %d is current, not the application's", k, failed,
                 driver->current_device());
}

static void live_well(void) {
    test_heap heap;
    int opened, seen;
    test_heap_init(&heap, 0, 0);
    reset();
    control->logging = 1;
    assert_ok(live_once(&heap, &opened, &seen));
    assert_int_equal(seen, 1);
    nothing_lives(&heap, 0);
    /* The problems are ones that take every way. */
    assert_non_null(strstr(control->log, "tess_merge_f16"));
    assert_non_null(strstr(control->log, "tess_merge_parts_f32"));
    assert_non_null(strstr(control->log, "tess_backward_columns_f32"));
    if (strcmp(backend, "cuda") == 0) assert_non_null(strstr(control->log, "tess_decode"));
    if (strcmp(arch, "sm_80") == 0) assert_non_null(strstr(control->log, "tess_sm80_f16"));
    if (strcmp(arch, "sm_90") == 0)
        assert_true(strstr(control->log, "tess_sm90_f16") &&
                    strstr(control->log, "cuMemsetD32Async"));
}

static int holds_one(const char *call, const char *const *parts) {
    for (; call && *parts; parts++)
        if (strstr(call, *parts)) return 1;
    return 0;
}

/* Calls whose failure may go unnoticed: queries for information, calls that free something, and
 * entering the context for those. */
static int may_fail(void) {
    static const char *const informing[] = {"DeviceGet",        "DeviceTotalMem",
                                            "DriverGetVersion", "GetDeviceProperties",
                                            "TensorMapEncode",  NULL};
    static const char *const releasing[] = {"Destroy", "Unload",     "Free",
                                            "Release", "PopCurrent", NULL};
    static const char *const entering[] = {"PushCurrent", "hipGetDevice", "hipSetDevice", NULL};
    if (holds_one(control->failed, informing) || holds_one(control->failed, releasing)) return 1;
    /* hipSetDevice may also have been putting back. */
    return holds_one(control->failed, entering) &&
           (strcmp(control->failed, "hipSetDevice") == 0 || holds_one(control->next, releasing));
}

/* The status that a failing call has to give. */
static int is_right(tess_status status, int code, int opened, int seen) {
    if (status == TESS_OK && strstr(control->failed, "ModuleLoadData") && code != OUT_OF_MEMORY &&
        code < ILLEGAL_ADDRESS)
        return seen == 1; /* there was other code for the device */
    if (status == TESS_OK) return seen == DISTURBED || may_fail();
    /* a device that cannot be asked or opened */
    if (!opened && status == TESS_ERROR_UNAVAILABLE) return 1;
    switch (code) {
    case OUT_OF_MEMORY: return status == TESS_ERROR_OUT_OF_MEMORY;
    case ILLEGAL_ADDRESS:
    case LAUNCH_FAILED: return status == TESS_ERROR_DEVICE_LOST;
    default:
        return status == TESS_ERROR_NATIVE ||
               (status == TESS_ERROR_UNAVAILABLE && strstr(control->failed, "ModuleLoadData"));
    }
}

LIFE_TESTS(control, 100, MOST_CALLS)

/* Two devices of one backend: one is lost in its k-th call, the other goes on, and the first can be
 * opened again. */
static void test_other_device_goes_on(void **state) {
    (void)state;
    const int step = test_sanitized() && !test_full() ? 21 : 7;
    for (int k = 1, failed_calls = 1; failed_calls; k += step) {
        test_heap heap;
        tess_device *devices[2];
        problem p;
        char error[256];
        int seen = 0;
        test_heap_init(&heap, 0, 0);
        reset();
        assert_int_equal(problem_parse(&p, line, error, sizeof error), 0);
        tess_runtime *runtime = runtime_with(&heap);
        for (int n = 0; n < 2; n++) assert_ok(open_device(runtime, n, &devices[n]));
        control->calls = 0;
        control->fail_at = k;
        control->sticky = 1;
        control->only_device = 0;
        control->code = LAUNCH_FAILED;
        const tess_status status = use_plan(devices[0], &p, &seen);
        failed_calls = control->failures;
        if (failed_calls && status != TESS_OK) {
            assert_int_equal(status, TESS_ERROR_DEVICE_LOST);
            stays_lost(devices[0]);
        }
        seen = 0;
        assert_ok(use_plan(devices[1], &p, &seen));
        assert_int_equal(seen, 1);
        tess_device_release(devices[0]);
        control->fail_at = 0;
        assert_ok(open_device(runtime, 0, &devices[0]));
        assert_ok(use_plan(devices[0], &p, &seen));
        for (int n = 0; n < 2; n++) tess_device_release(devices[n]);
        tess_runtime_release(runtime);
        problem_free(&p);
        nothing_lives(&heap, k);
    }
}

/* ------------------------------------------------------------------ the same objects again */

static int again_code;
static void again_fail(int call) {
    AGAIN_INJECT(control, again_code, call);
    /* HIP's call that puts back what was current may have been the one that failed */
    driver->make_current(1);
}
static long again_live(void) {
    long sum = 0;
    for (int n = 0; n < FAKE_KINDS; n++) sum += control->live[n];
    return sum;
}

static void test_same_plan_again(void **state) {
    (void)state;
    static const again_fault codes[] = {{OUT_OF_MEMORY, TESS_ERROR_OUT_OF_MEMORY},
                                        {INVALID_VALUE, TESS_ERROR_NATIVE}};
    const again ways[] = {{again_fail, failures, failed, again_run, again_live},
                          {again_fail, failures, failed, again_run_timed, again_live}};
    test_heap heap;
    tess_device *device;
    problem p;
    instance x;
    char error[256];
    test_heap_init(&heap, 0, 0);
    reset();
    assert_int_equal(problem_parse(&p, line, error, sizeof error), 0);
    tess_runtime *runtime = runtime_with(&heap);
    assert_ok(open_device(runtime, 0, &device));
    assert_ok(instance_create(&x, device, &p, NULL, INSTANCE_GUARDS | INSTANCE_POISON));
    for (int c = 0; c < 2; c++)
        for (int w = 0; w < 2; w++) {
            again_code = codes[c].code;
            assert_in_range(again_runs(&x, &ways[w], codes[c].status), 3, 100);
        }
    /* Without an LSE tensor a kernel gets no address to write it to. */
    memset(&x.run.lse, 0, sizeof x.run.lse);
    assert_ok(instance_run(&x, NULL));
    assert_int_equal(control->wrong, 0);
    instance_release(&x);
    tess_device_release(device);
    tess_runtime_release(runtime);
    problem_free(&p);
    nothing_lives(&heap, 0);
}

/* A plan that could not be made can be made on the same device as soon as there is memory, and
 * memory can be used. Calls fail with one of the codes by turns, under a sanitizer every third
 * one. */
static void test_same_device_again(void **state) {
    (void)state;
    static const int codes[] = {OUT_OF_MEMORY, INVALID_VALUE};
    for (int c = 0; c < 2; c++) {
        test_heap heap;
        tess_device *device;
        problem p;
        char error[256];
        test_heap_init(&heap, 0, 0);
        reset();
        again_code = codes[c];
        assert_int_equal(problem_parse(&p, line, error, sizeof error), 0);
        tess_runtime *runtime = runtime_with(&heap);
        const int step = test_full() ? 1 : test_sanitized() ? 6 : 2;
        for (int call = 1 + c * step / 2, failed_calls = 1; failed_calls; call += step) {
            int seen = 0;
            assert_ok(open_device(runtime, 0, &device));
            again_fail(call);
            tess_status status = use_memory(device);
            if (status == TESS_OK) status = use_plan(device, &p, &seen);
            failed_calls = control->failures;
            char name[64];
            snprintf(name, sizeof name, "%s", failed());
            again_fail(0);
            status = use_memory(device);
            if (status == TESS_OK) status = use_plan(device, &p, &seen);
            if (status != TESS_OK || seen != 1)
                fail_msg("the same device after call %d (%s) failed: %s: %s", call, name,
                         tess_status_name(status), tess_last_error());
            tess_device_release(device);
        }
        tess_runtime_release(runtime);
        problem_free(&p);
        nothing_lives(&heap, 0);
    }
}

SERVER_TEST(OUT_OF_MEMORY, id_of(0))

/* Work that never ends: a wait ends at its limit, and the device stays usable. */
static void test_wait_ends(void **state) {
    (void)state;
    test_heap heap;
    tess_device *device;
    test_heap_init(&heap, 0, 0);
    reset();
    tess_runtime *runtime = runtime_with(&heap);
    assert_ok(open_device(runtime, 0, &device));
    control->hold = 1;
    assert_error(tess_wait(device, 0), TESS_ERROR_TIMEOUT, "tess_wait", NULL);
    assert_error(tess_wait(device, 20000000), TESS_ERROR_TIMEOUT, "tess_wait", NULL);
    control->hold = 0;
    assert_ok(tess_wait(device, 10000000000u));
    assert_ok(tess_wait(device, UINT64_MAX));
    assert_ok(use_memory(device));
    tess_device_release(device);
    tess_runtime_release(runtime);
    nothing_lives(&heap, 0);
}

/* Asking for more memory than the device has, at any point of a plan's life, gives OUT_OF_MEMORY
 * and nothing worse. */
static void test_little_memory(void **state) {
    (void)state;
    for (uint64_t bytes = 256; bytes < 1 << 20; bytes *= 2) {
        test_heap heap;
        int opened, seen;
        test_heap_init(&heap, 0, 0);
        reset();
        control->most_bytes = bytes;
        const tess_status status = live_once(&heap, &opened, &seen);
        if (status != TESS_OK && status != TESS_ERROR_OUT_OF_MEMORY)
            fail_msg("%s: %s", tess_status_name(status), tess_last_error());
        nothing_lives(&heap, 0);
    }
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    backend = argv[1];
    arch = argv[2];
    void *library;
    driver = fake_find(backend, &library);
    if (!driver) return 1;
    control = driver->control;
    /* The quick ones first: they find most of what is wrong. */
    const struct CMUnitTest tests[] = {
        TEST(test_wait_ends),
        TEST(test_little_memory),
        TEST(test_same_plan_again),
        TEST(test_same_device_again),
        TEST(test_server_again),
        LIFE_TEST("no memory, once", test_calls_fail, OUT_OF_MEMORY, 0, 0),
        LIFE_TEST("no memory from then on", test_calls_fail, OUT_OF_MEMORY, 1, 1),
        LIFE_TEST("lost, once", test_calls_fail, LAUNCH_FAILED, 0, 2),
        LIFE_TEST("lost from then on", test_calls_fail, ILLEGAL_ADDRESS, 1, 3),
        LIFE_TEST("invalid image, once", test_calls_fail, INVALID_IMAGE, 0, 4),
        LIFE_TEST("invalid image from then on", test_calls_fail, INVALID_IMAGE, 1, 5),
        LIFE_TEST("unexpected, once", test_calls_fail, INVALID_VALUE, 0, 6),
        LIFE_TEST("unexpected from then on", test_calls_fail, INVALID_VALUE, 1, 7),
        TEST(test_no_host_memory),
        TEST(test_other_device_goes_on),
    };
    return cmocka_run_group_tests_name("faults of a driver", tests, NULL, NULL);
}
