/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The backend on a libvulkan that misleads it. Every Vulkan call fails once: out of memory, after
 * which the same step is tried again and works, or the device is lost for good. Whatever fails,
 * statuses say so, nothing hangs, and no object is left. Runs against the library of shim.c, which
 * the loader finds in place of libvulkan.so.1.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/again.h"
#include "common/elements.h"
#include "common/gradients_again.h"
#include "common/merging.h"
#include "common/serving_again.h"
#include "common/testlib.h"
#include "reference.h"
#include "shim_calls.h"

static test_heap heap;

enum {
    OUT_OF_HOST_MEMORY = -1,
    OUT_OF_DEVICE_MEMORY = -2,
    DEVICE_LOST = -4,
    INTEGRATED = 1,
    DISCRETE = 2,
    NVIDIA = 0x10de,
    NVIDIA_PROPRIETARY = 4,
    MOST_DIMS = 128
};

static const char small_line[] =
    "pattern=dense heads=1 q_len=3 kv_len=40 head_dim=8 kv_split=2 block=8";
/* More jobs than fit one submission to an integrated GPU. */
static const char long_line[] =
    "pattern=dense heads=500 kv_heads=1 q_len=2 kv_len=70 head_dim=8 batch=6 tile_rows=1";

/* The same with little to do, without --all: so many keys that a submission may hold only a few
 * jobs, of which each reads a few. Parts are merged behind the last submission. */
static const char far_line[] = "pattern=s2 block=16 local=1 stride=128 heads=8 kv_heads=1 q_len=2 "
                               "kv_len=30000 head_dim=8 tile_rows=1 kv_split=2";

/* Of the kernel on matrix units, with a merge. */
static const char matrix_line[] =
    "pattern=dense heads=1 q_len=40 kv_len=70 head_dim=128 kv_split=2 dtype=f16";

/* A device on which that kernel has run takes it without a check; shim.h has what runs there. */
static void pretend_matrices(int are) {
    shim.pretend(are ? DISCRETE : 0, 0);
    shim.pretend_vendor(are ? NVIDIA : 0);
    shim.pretend_driver(are ? NVIDIA_PROPRIETARY : 0);
    shim.pretend_matrices(are ? 16 : 0, 16, 16, 1, NULL);
    shim.pretend_shared(are ? 65536 : 0);
    shim.pretend_kernel(are ? SHIM_WORKS : SHIM_NO_STAND_IN);
}

/* How a step that failed may answer. */
typedef struct rule {
    int again;          /* try once more */
    tess_status wanted; /* ... or the only status, and the end */
} rule;

/* Opening goes on to other devices when one is lost, and says so of all in the end. */
static int search_ended(tess_status wanted, const char *what, tess_status status) {
    return wanted == TESS_ERROR_DEVICE_LOST && status == TESS_ERROR_UNAVAILABLE &&
           strstr(what, "tess_device_open") && strstr(tess_last_error(), "DEVICE_LOST");
}

/* 1: the step is done; 0: it failed as it should, and nothing more can be done. */
static int step(const rule *r, const char *what, tess_status status) {
    if (status == TESS_OK) return 1;
    if (shim.failures() + heap.failures == 0)
        fail_msg("%s: %s without any failure: %s", what, tess_status_name(status),
                 tess_last_error());
    if (status != r->wanted && !search_ended(r->wanted, what, status))
        fail_msg("%s: %s after %s failed: %s", what, tess_status_name(status), shim.failed(),
                 tess_last_error());
    return 0;
}

#define STEP(call)                                                                            \
    do {                                                                                      \
        if (!step(r, #call, call)) {                                                          \
            if (!r->again) goto end;                                                          \
            const tess_status second = (call);                                                \
            if (second != TESS_OK)                                                            \
                fail_msg("%s: %s again after %s failed: %s", #call, tess_status_name(second), \
                         shim.failed(), tess_last_error());                                   \
        }                                                                                     \
    } while (0)

/* Sequences and heads at both ends are those of the reference. */
static void check_result(const problem *p, void *const host[5]) {
    const reference_inputs in = {host[0], host[1], host[2]};
    for (int64_t b = 0; b<p->batch; b += p->batch> 1 ? p->batch - 1 : 1)
        for (int32_t h = 0; h<p->heads; h += p->heads> 1 ? p->heads - 1 : 1)
            for (int64_t q = 0; q < p->q_len; q++) {
                double row[MOST_DIMS], lse;
                reference_row(p, &in, b, h, q, row, &lse);
                for (int e = 0; e < p->head_dim; e++) {
                    const int64_t at = ((b * p->q_len + q) * p->heads + h) * p->head_dim + e;
                    const double got = p->dtype == TESS_F32
                                           ? ((float *)host[3])[at]
                                           : element_from_half(((uint16_t *)host[3])[at]);
                    if (!(fabs(got - row[e]) < (p->dtype == TESS_F32 ? 1e-5 : 2e-3)))
                        fail_msg("wrong result after %s failed", shim.failed());
                }
            }
}

/* How many calls a scenario makes before it merges. */
static long before_merge;

/* Everything that an application does, from the first call to the last. */
static void scenario(const char *line, const rule *r) {
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
    int merged = 0;
    memset(buffers, 0, sizeof buffers);
    const tess_runtime_desc desc = {
        .struct_size = sizeof desc, .allocator = heap.allocator, .log = test_log_nothing};
    assert_int_equal(problem_parse(&p, line, error, sizeof error), 0);
    const tess_device_desc open = {.struct_size = sizeof open, .id = "vulkan"};
    tess_run_desc run = {.struct_size = sizeof run};
    tess_tensor *const tensors[5] = {&run.q, &run.k, &run.v, &run.o, &run.lse};
    tess_plan_desc plan_desc;
    tess_plan_info info = {.struct_size = sizeof info};
    int64_t *cu = NULL;
    STEP(tess_runtime_create(&desc, &runtime));
    STEP(tess_device_open(runtime, &open, &device));
    STEP(problem_layout(&p, runtime, &layout));
    assert_int_equal(problem_plan_desc(&p, &plan_desc, &cu), 0);
    plan_desc.max_in_flight = 2;
    STEP(tess_plan_create(device, layout, &plan_desc, &plan));
    assert_ok(tess_plan_query(plan, &info));
    assert_true(info.n_merge_jobs > 0 || line == long_line);
    if (line == matrix_line && strcmp(info.kernel, "vulkan/coopmat") != 0)
        /* what cannot be asked for is not there */
        assert_string_equal(shim.failed(), "vkEnumerateDeviceExtensionProperties");
    for (int n = 0; n < 6; n++) {
        if (n < 5) assert_ok(tess_plan_tensor(plan, (tess_role)n, none, tensors[n], &bytes[n]));
        STEP(tess_alloc(device, n < 5 ? bytes[n] : info.workspace_bytes, &buffers[n]));
        if (n == 5) continue;
        tensors[n]->buffer = buffers[n];
        host[n] = calloc(1, bytes[n]);
        assert_non_null(host[n]);
        const int64_t count = (int64_t)bytes[n] / (p.dtype == TESS_F32 ? 4 : 2);
        if (n < 3) fill_normal(p.dtype, host[n], count, 1, (uint32_t)n);
        STEP(tess_copy(device, buffers[n], tess_host_buffer(host[n], bytes[n]), bytes[n]));
    }
    run.workspace = buffers[5];
    STEP(tess_run(plan, &run));
    STEP(tess_wait(device, UINT64_C(60000000000)));
    for (int n = 0; n < 3; n++) { /* resources are used again */
        STEP(tess_run(plan, &run));
        if (n == 1) STEP(tess_wait(device, UINT64_MAX));
    }
    STEP(tess_wait(device, UINT64_MAX));
    run.device_seconds = &seconds;
    STEP(tess_run(plan, &run));
    STEP(tess_copy(device, tess_host_buffer(host[3], bytes[3]), buffers[3], bytes[3]));
    before_merge = shim.calls();
    STEP(test_merge(device, &merged));
    if (!merged) fail_msg("wrong merge after %s failed", shim.failed());
    check_result(&p, host);
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

/* Nothing is left of a scenario, and fences were used as they may be. */
static void check_left(long k) {
    char text[400];
    if (shim.signalled())
        fail_msg("call %ld, %s: %ld submissions with a signalled fence", k, shim.failed(),
                 shim.signalled());
    if (shim.live(text, sizeof text))
        fail_msg("call %ld, %s: left behind: %s", k, shim.failed(), text);
    if (heap.live || heap.damaged)
        fail_msg("call %ld, %s: %lld pieces of host memory are left", k, shim.failed(),
                 (long long)heap.live);
}

/* With --all each call fails in both ways, on each kind of device, and submissions are long. */
static int all;

static const rule nothing_fails = {0, TESS_OK}, once_more = {1, TESS_ERROR_OUT_OF_MEMORY},
                  lost = {0, TESS_ERROR_DEVICE_LOST};

static void without_failure(const char *line) {
    test_heap_init(&heap, 0, 0);
    shim.reset(0, 0, 0);
    scenario(line, &nothing_fails);
    check_left(0);
    assert_true(shim.calls() > 60);
}

/* From call `first` on. Without --all a call fails in one of the two ways. Devices with memory of
 * their own differ in few calls, so there some are enough. A merge makes the same four calls for
 * each of the 32 that may run at a time. Away from its two ends every fifth of these that would
 * fail does, so that each of the four meets a failure. */
static void each_call(long first, int sticky, int code, int kind, const rule *r) {
    enum { ENDS = 24, FIFTH = 5 };
    const long step = all ? 1 : kind ? 11 : 2;
    long most = 0;
    shim.pretend(kind, 0);
    without_failure(small_line);
    const long repeated = before_merge + ENDS, last = shim.calls() - ENDS;
    for (long k = all ? 1 : first;;
         k += !all && !kind && k > repeated && k + FIFTH * step < last ? FIFTH * step : step) {
        test_heap_init(&heap, 0, 0);
        shim.pretend(kind, 0);
        shim.reset(k, sticky, code);
        scenario(small_line, r);
        const long failures = shim.failures();
        check_left(k);
        if (failures == 0) break;
        most++;
    }
    shim.pretend(0, 0);
    printf("%ld calls failed, one after the other\n", most);
    assert_true(most > (kind ? 60 / step : 80));
}

/* The same with the kernel on matrix units chosen. Software takes long to compile what stands in
 * for it, so few calls fail without --all; test_same_plan_again has all those of a run. */
static void each_matrix_call(long first, int sticky, int code, const rule *r) {
    const long step = all ? 1 : 41, ran = shim.kernel_runs();
    long most = 0;
    pretend_matrices(1);
    for (long k = all ? 1 : first;; k += step, most++) {
        test_heap_init(&heap, 0, 0);
        shim.reset(k, sticky, code);
        scenario(matrix_line, r);
        const long failures = shim.failures();
        check_left(k);
        if (failures == 0) break;
    }
    pretend_matrices(0);
    printf("%ld calls failed with matrices, one after the other\n", most);
    assert_true(most > 200 / step && shim.kernel_runs() > ran + 9);
}

static void test_no_failure(void **state) {
    (void)state;
    without_failure(small_line);
}

/* A device with memory of its own has other calls: copies go through staging memory. */
static void test_out_of_memory(void **state) {
    (void)state;
    each_call(1, 0, OUT_OF_HOST_MEMORY, 0, &once_more);
    each_call(1, 0, OUT_OF_DEVICE_MEMORY, DISCRETE, &once_more);
}

static void test_lost(void **state) {
    (void)state;
    each_call(2, 1, DEVICE_LOST, 0, &lost);
    each_call(2, 1, DEVICE_LOST, DISCRETE, &lost);
}

static void test_matrices_fail(void **state) {
    (void)state;
    each_matrix_call(3, 0, OUT_OF_DEVICE_MEMORY, &once_more);
    each_matrix_call(6, 1, DEVICE_LOST, &lost);
}

static void test_host_memory(void **state) {
    (void)state;
    for (int64_t k = 1;; k++) {
        test_heap_init(&heap, k, 0);
        shim.reset(0, 0, 0);
        scenario(small_line, &once_more);
        check_left((long)k);
        if (heap.failures == 0) break;
    }
}

static int again_code;
static void again_fail(int call) { shim.reset(call, 0, again_code); }
static int again_failures(void) { return (int)shim.failures(); }
static const char *again_failed(void) { return shim.failed(); }
/* One plan through all its failures, on a device that takes a run whole, on one that gets it in
 * several submissions, and with the kernel on matrix units. Objects are counted at the end only:
 * waits share a pool of fences, which grows where one cannot be reset. */
static void test_same_plan_again(void **state) {
    (void)state;
    static const struct {
        int kind, matrices;
        const char *line;
    } devices[] = {{0, 0, small_line}, {INTEGRATED, 0, far_line}, {DISCRETE, 1, matrix_line}};
    for (int k = 0; k < 3; k++) {
        test_heap_init(&heap, 0, 0);
        const long ran = shim.kernel_runs();
        const again ways[] = {{again_fail, again_failures, again_failed, again_run, NULL},
                              {again_fail, again_failures, again_failed, again_run_timed, NULL}};
        const tess_runtime_desc desc = {
            .struct_size = sizeof desc, .allocator = heap.allocator, .log = test_log_nothing};
        const tess_device_desc open = {.struct_size = sizeof open, .id = "vulkan"};
        tess_runtime *runtime = NULL;
        tess_device *device = NULL;
        problem p;
        instance x;
        char error[256];
        pretend_matrices(devices[k].matrices);
        shim.pretend(devices[k].kind, 0);
        shim.reset(0, 0, 0);
        assert_int_equal(problem_parse(&p, devices[k].line, error, sizeof error), 0);
        assert_ok(tess_runtime_create(&desc, &runtime));
        assert_ok(tess_device_open(runtime, &open, &device));
        assert_ok(instance_create(&x, device, &p, NULL, INSTANCE_GUARDS | INSTANCE_POISON));
        for (int w = 0; w < 2; w++) {
            again_code = w ? OUT_OF_DEVICE_MEMORY : OUT_OF_HOST_MEMORY;
            const int calls = again_runs(&x, &ways[w], TESS_ERROR_OUT_OF_MEMORY);
            printf("each of %d calls of a run failed\n", calls);
            assert_in_range(calls, 3, 100);
        }
        instance_release(&x);
        tess_device_release(device);
        tess_runtime_release(runtime);
        problem_free(&p);
        pretend_matrices(0);
        assert_true((shim.kernel_runs() > ran) == devices[k].matrices);
        check_left(0);
    }
}

static void test_server_again(void **state) {
    (void)state;
    const again a = {.inject = again_fail, .failures = again_failures, .failed = again_failed};
    test_heap_init(&heap, 0, 0);
    shim.reset(0, 0, 0);
    again_code = OUT_OF_DEVICE_MEMORY;
    server_again(&heap, "vulkan", &a, TESS_ERROR_OUT_OF_MEMORY);
    check_left(0);
}

static void no_object_lives(const test_heap *used, int call) {
    heap = *used;
    check_left(call);
}

static void test_gradients_again(void **state) {
    (void)state;
    static const again a = {
        .inject = again_fail, .failures = again_failures, .failed = again_failed, .run = again_run};
    static const gradients_again g = {"vulkan", &a, TESS_ERROR_OUT_OF_MEMORY, no_object_lives};
    again_code = OUT_OF_DEVICE_MEMORY;
    gradients_fail(&g, 37);
}

/* Memory is taken, written, read and given back, up to the first failure. */
static tess_status use_memory(tess_device *device) {
    const char sent[] = "there and back";
    char got[sizeof sent] = "";
    tess_buffer buffer = {0};
    tess_status status = tess_alloc(device, 4096, &buffer);
    if (status == TESS_OK)
        status = tess_copy(device, buffer, tess_host_buffer(sent, sizeof sent), sizeof sent);
    if (status == TESS_OK)
        status = tess_copy(device, tess_host_buffer(got, sizeof got), buffer, sizeof got);
    if (status == TESS_OK) assert_string_equal(got, sent);
    assert_ok(tess_free(device, &buffer));
    return status;
}

/* The same device again after each call for its memory failed, with copies that are the host's own
 * and with such that go through staging memory. */
static void test_memory_again(void **state) {
    (void)state;
    static const int kinds[] = {0, DISCRETE}, fewest[] = {5, 12};
    for (int k = 0; k < 2; k++) {
        const tess_runtime_desc desc = {
            .struct_size = sizeof desc, .allocator = heap.allocator, .log = test_log_nothing};
        const tess_device_desc open = {.struct_size = sizeof open, .id = "vulkan"};
        tess_runtime *runtime = NULL;
        tess_device *device = NULL;
        long call = 1;
        test_heap_init(&heap, 0, 0);
        shim.pretend(kinds[k], 0);
        shim.reset(0, 0, 0);
        assert_ok(tess_runtime_create(&desc, &runtime));
        assert_ok(tess_device_open(runtime, &open, &device));
        for (;; call++) {
            shim.reset(call, 0, OUT_OF_DEVICE_MEMORY);
            const tess_status status = use_memory(device);
            if (shim.failures() == 0) break;
            if (status != TESS_OK && status != TESS_ERROR_OUT_OF_MEMORY)
                fail_msg("%s failed: %s: %s", shim.failed(), tess_status_name(status),
                         tess_last_error());
            shim.reset(0, 0, 0);
            assert_ok(use_memory(device));
        }
        assert_in_range(call, fewest[k], 100);
        tess_device_release(device);
        tess_runtime_release(runtime);
        shim.pretend(0, 0);
        check_left(0);
    }
}

/* Work for a display's GPU is cut into short submissions, and grids into as many rows as the device
 * needs. */
static void test_submissions(void **state) {
    (void)state;
    const char *line = all ? long_line : far_line;
    long before = shim.submits();
    without_failure(line);
    const long whole = shim.submits() - before;
    assert_int_equal(shim.rows(), 0);
    shim.pretend(INTEGRATED, 0);
    before = shim.submits();
    without_failure(line);
    if (shim.submits() - before < whole + 5)
        fail_msg("%ld submissions instead of %ld", shim.submits() - before, whole);
    shim.pretend(0, 7);
    without_failure(line);
    assert_true(shim.rows() > 0);
    shim.pretend(0, 0);
}

static void open_device(tess_runtime **runtime, tess_device **device) {
    const tess_runtime_desc desc = {.struct_size = sizeof desc, .log = test_log_nothing};
    const tess_device_desc open = {.struct_size = sizeof open, .id = "vulkan"};
    assert_ok(tess_runtime_create(&desc, runtime));
    assert_ok(tess_device_open(*runtime, &open, device));
}

/* Bytes of one allocation to another, of which all but those copied stay. Large copies at aligned
 * offsets are a kernel's on NVIDIA's devices, and in as many rows as the device needs; nobody
 * else's are. */
static void test_copies(void **state) {
    (void)state;
    enum { MIB = 1 << 20, ROOM = 3 * MIB, VENDOR_NVIDIA = 0x10de };
    static const struct {
        unsigned vendor;
        uint64_t from, to, bytes;
        int by_kernel;
    } cases[] = {{VENDOR_NVIDIA, 0, 0, MIB, 1},
                 {VENDOR_NVIDIA, 4096, 8192, MIB + 4096 + 7, 1},
                 {VENDOR_NVIDIA, 256, MIB, 2 * MIB, 1},
                 {VENDOR_NVIDIA, 4096, 8, MIB + 7, 0},
                 {VENDOR_NVIDIA, 3, 4096, MIB + 7, 0},
                 {VENDOR_NVIDIA, 0, 0, MIB - 1, 0},
                 {0, 0, 0, MIB, 0}};
    unsigned char *from = malloc(ROOM), *to = malloc(ROOM);
    assert_non_null(from);
    assert_non_null(to);
    shim.reset(0, 0, 0);
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        tess_runtime *runtime = NULL;
        tess_device *device = NULL;
        tess_buffer source, target;
        shim.pretend(DISCRETE, 7);
        shim.pretend_vendor(cases[n].vendor);
        open_device(&runtime, &device);
        for (size_t i = 0; i < ROOM; i++) from[i] = (unsigned char)(i * 2654435761u >> 15);
        memset(to, 0xee, ROOM);
        assert_ok(tess_alloc(device, ROOM, &source));
        assert_ok(tess_alloc(device, ROOM, &target));
        assert_ok(tess_copy(device, source, tess_host_buffer(from, ROOM), ROOM));
        assert_ok(tess_copy(device, target, tess_host_buffer(to, ROOM), ROOM));
        const long rows = shim.rows();
        source.offset = cases[n].from;
        target.offset = cases[n].to;
        assert_ok(tess_copy(device, target, source, cases[n].bytes));
        assert_int_equal(shim.rows() - rows, cases[n].by_kernel);
        source.offset = target.offset = 0;
        assert_ok(tess_copy(device, tess_host_buffer(to, ROOM), target, ROOM));
        for (uint64_t i = 0; i < ROOM; i++) {
            const uint64_t at = i - cases[n].to;
            const unsigned char wanted =
                i >= cases[n].to && at < cases[n].bytes ? from[cases[n].from + at] : 0xee;
            if (to[i] != wanted)
                fail_msg("copy %zu: byte %llu is 0x%02x, not 0x%02x", n, (unsigned long long)i,
                         to[i], wanted);
        }
        assert_ok(tess_free(device, &source));
        assert_ok(tess_free(device, &target));
        tess_device_release(device);
        tess_runtime_release(runtime);
        check_left(0);
    }
    shim.pretend(0, 0);
    shim.pretend_vendor(0);
    free(from);
    free(to);
}

/* A copy by the kernel, of which each call fails once on a new device, and again without failure.
 */
static void test_copies_again(void **state) {
    (void)state;
    enum { BYTES = 1 << 20, LEAST_CALLS = 12 };
    long call = 1;
    shim.pretend(DISCRETE, 7);
    shim.pretend_vendor(0x10de);
    for (int failed = 1; failed; call++) {
        tess_runtime *runtime = NULL;
        tess_device *device = NULL;
        tess_buffer source, target;
        shim.reset(0, 0, 0);
        open_device(&runtime, &device);
        assert_ok(tess_alloc(device, BYTES, &source));
        assert_ok(tess_alloc(device, BYTES, &target));
        shim.reset(call, 0, OUT_OF_DEVICE_MEMORY);
        const tess_status status = tess_copy(device, target, source, BYTES);
        failed = shim.failures() != 0;
        /* Kernels are made without a pipeline cache where there is none. */
        if (status != TESS_OK && !(failed && status == TESS_ERROR_OUT_OF_MEMORY))
            fail_msg("call %ld, %s: %s: %s", call, shim.failed(), tess_status_name(status),
                     tess_last_error());
        shim.reset(0, 0, 0);
        const long rows = shim.rows();
        assert_ok(tess_copy(device, target, source, BYTES));
        assert_int_equal(shim.rows() - rows, 1);
        assert_ok(tess_free(device, &source));
        assert_ok(tess_free(device, &target));
        tess_device_release(device);
        tess_runtime_release(runtime);
        check_left(call);
    }
    assert_in_range(call, LEAST_CALLS, 40);
    shim.pretend(0, 0);
    shim.pretend_vendor(0);
}

/* Vulkan calls that it takes to make a plan for so many runs at a time. */
static long calls_of_plan(tess_device *device, problem *p, tess_layout *layout, uint32_t runs) {
    tess_plan_desc desc;
    tess_plan *plan = NULL;
    int64_t *cu = NULL;
    assert_int_equal(problem_plan_desc(p, &desc, &cu), 0);
    desc.max_in_flight = runs;
    const long before = shim.calls();
    assert_ok(tess_plan_create(device, layout, &desc, &plan));
    const long calls = shim.calls() - before;
    tess_plan_release(plan);
    free(cu);
    return calls;
}

/* What runs need is kept for the next plan that needs as much, and for no other. */
static void test_kept_resources(void **state) {
    (void)state;
    enum { OF_A_RUN = 4 }; /* its descriptor set, fence, pool of commands, and commands */
    tess_runtime *runtime = NULL;
    tess_device *device = NULL;
    tess_layout *layout = NULL;
    problem p;
    char error[256];
    shim.reset(0, 0, 0);
    open_device(&runtime, &device);
    assert_int_equal(problem_parse(&p, small_line, error, sizeof error), 0);
    assert_ok(problem_layout(&p, runtime, &layout));
    const long first = calls_of_plan(device, &p, layout, 2),
               other = calls_of_plan(device, &p, layout, 5),
               kept = calls_of_plan(device, &p, layout, 2);
    assert_true(first > kept);
    assert_true(other - kept >= 5 * OF_A_RUN);
    for (uint32_t runs = 6; runs < 20; runs++) calls_of_plan(device, &p, layout, runs);
    assert_true(calls_of_plan(device, &p, layout, 5) >= other);
    tess_layout_release(layout);
    problem_free(&p);
    tess_device_release(device);
    tess_runtime_release(runtime);
    check_left(0);
}

/* A device that binds as few storage buffers as Vulkan promises wants tensors in two VkBuffers: the
 * one that lies elsewhere is refused with both numbers. So is a device that binds fewer. */
static void test_few_buffers(void **state) {
    (void)state;
    tess_runtime *runtime = NULL;
    tess_device *device = NULL;
    problem p;
    instance x;
    char error[256];
    const tess_runtime_desc desc = {.struct_size = sizeof desc, .log = test_log_nothing};
    const tess_device_desc open = {.struct_size = sizeof open, .id = "vulkan"};
    shim.reset(0, 0, 0);
    assert_ok(tess_runtime_create(&desc, &runtime));
    shim.pretend_buffers(4);
    assert_ok(tess_device_open(runtime, &open, &device));
    assert_int_equal(problem_parse(&p, small_line, error, sizeof error), 0);
    assert_ok(instance_create(&x, device, &p, NULL, 0));
    assert_int_equal(tess_run(x.plan, &x.run), TESS_ERROR_UNSUPPORTED);
    assert_error_has("v: must be in the VkBuffer of k: they share a binding, since "
                     "maxPerStageDescriptorStorageBuffers is 4, and all apart are 10");
    instance_release(&x);
    problem_free(&p);
    tess_device_release(device);
    device = NULL;
    shim.pretend_buffers(3);
    assert_int_equal(tess_device_open(runtime, &open, &device), TESS_ERROR_UNAVAILABLE);
    assert_error_has("its maxPerStageDescriptorStorageBuffers is 3, and 4 are needed");
    assert_null(device);
    shim.pretend_buffers(0);
    tess_runtime_release(runtime);
}

/* Modules are copied there, and each allocation of the host fails once. */
static void test_few_buffers_memory(void **state) {
    (void)state;
    problem p;
    char error[256];
    assert_int_equal(problem_parse(&p, small_line, error, sizeof error), 0);
    shim.reset(0, 0, 0);
    shim.pretend_buffers(4);
    for (int64_t k = 1;; k++) {
        tess_runtime *runtime = NULL;
        tess_device *device = NULL;
        instance x;
        test_heap_init(&heap, k, 0);
        const tess_runtime_desc desc = {
            .struct_size = sizeof desc, .allocator = heap.allocator, .log = test_log_nothing};
        const tess_device_desc open = {.struct_size = sizeof open, .id = "vulkan"};
        tess_status status = tess_runtime_create(&desc, &runtime);
        if (status == TESS_OK) status = tess_device_open(runtime, &open, &device);
        if (status == TESS_OK) status = instance_create(&x, device, &p, NULL, 0);
        if (status == TESS_OK) instance_release(&x);
        if (status != TESS_OK && status != TESS_ERROR_OUT_OF_MEMORY)
            fail_msg("allocation %lld failed: %s: %s", (long long)k, tess_status_name(status),
                     tess_last_error());
        tess_device_release(device);
        tess_runtime_release(runtime);
        check_left((long)k);
        if (heap.failures == 0) {
            assert_int_equal(status, TESS_OK);
            break;
        }
    }
    shim.pretend_buffers(0);
    problem_free(&p);
}

/* Elements of 16 bits on a device whose buffers have none: words of two, so rows that begin at an
 * odd element are refused by name. */
static void test_wide_only(void **state) {
    (void)state;
    static const char line[] = "pattern=dense heads=2 q_len=9 kv_len=40 head_dim=8 dtype=bf16";
    const tess_runtime_desc desc = {.struct_size = sizeof desc, .log = test_log_nothing};
    const tess_device_desc open = {.struct_size = sizeof open, .id = "vulkan"};
    shim.reset(0, 0, 0);
    for (int wide_only = 0; wide_only < 2; wide_only++) {
        tess_runtime *runtime = NULL;
        tess_device *device = NULL;
        problem p;
        instance x;
        instance_verdict verdict;
        char error[256];
        shim.pretend_wide_only(wide_only);
        assert_int_equal(problem_parse(&p, line, error, sizeof error), 0);
        assert_ok(tess_runtime_create(&desc, &runtime));
        assert_ok(tess_device_open(runtime, &open, &device));
        assert_ok(instance_create(&x, device, &p, NULL, INSTANCE_GUARDS | INSTANCE_POISON));
        assert_ok(instance_run(&x, NULL));
        assert_ok(instance_fetch(&x));
        instance_check(&x, 0, &verdict);
        assert_true(verdict.pass);
        const tess_status wanted = wide_only ? TESS_ERROR_UNSUPPORTED : TESS_OK;
        x.run.k.buffer.offset += 2;
        assert_int_equal(tess_run(x.plan, &x.run), wanted);
        if (wide_only)
            assert_error_has("k.buffer.offset: must be a multiple of 4 without "
                             "storageBuffer16BitAccess, got ");
        x.run.k.buffer.offset -= 2;
        x.run.k.stride_token++;
        assert_int_equal(tess_run(x.plan, &x.run), wanted);
        if (wide_only)
            assert_error_has("k.stride_token: must be a multiple of 2 without "
                             "storageBuffer16BitAccess, got 17");
        instance_release(&x);
        tess_device_release(device);
        tess_runtime_release(runtime);
        problem_free(&p);
    }
    shim.pretend_wide_only(0);
}

/* What one process compiled the next one finds on disk. */
static void test_cache(void **state) {
    (void)state;
    without_failure(small_line);
    without_failure(small_line);
    assert_true(shim.cache_bytes() > 0);
}

/* Makes a plan by such a runtime and returns the status, and in `kernel` unless NULL its kernel. */
static tess_status make_plan(const tess_runtime_desc *desc, const char *line, char *kernel) {
    tess_runtime *runtime = NULL;
    tess_device *device = NULL;
    tess_layout *layout = NULL;
    tess_plan *plan = NULL;
    tess_plan_desc plan_desc;
    tess_plan_info info = {.struct_size = sizeof info};
    int64_t *cu = NULL;
    char error[256];
    problem p;
    const tess_device_desc open = {.struct_size = sizeof open, .id = "vulkan"};
    assert_int_equal(problem_parse(&p, line, error, sizeof error), 0);
    assert_ok(tess_runtime_create(desc, &runtime));
    assert_ok(tess_device_open(runtime, &open, &device));
    assert_ok(problem_layout(&p, runtime, &layout));
    assert_int_equal(problem_plan_desc(&p, &plan_desc, &cu), 0);
    const tess_status status = tess_plan_create(device, layout, &plan_desc, &plan);
    if (kernel) {
        assert_ok(tess_plan_query(plan, &info));
        memcpy(kernel, info.kernel, sizeof info.kernel);
    }
    free(cu);
    tess_plan_release(plan);
    tess_layout_release(layout);
    tess_device_release(device);
    tess_runtime_release(runtime);
    problem_free(&p);
    return status;
}

/* Makes a plan on the kernel on matrix units and returns the status. */
static tess_status plan_on_matrices(const char *line) {
    const tess_runtime_desc desc = {
        .struct_size = sizeof desc, .log = test_log_nothing, .kernel = "vulkan/coopmat"};
    return make_plan(&desc, line, NULL);
}

static void plan_kernel(const char *line, char kernel[64]) {
    const tess_runtime_desc desc = {.struct_size = sizeof desc,
                                    .log = test_log_keep,
                                    .verbose = "dispatch",
                                    .tune_file = "",
                                    .kernel = ""};
    test_logged[0] = '\0';
    assert_ok(make_plan(&desc, line, kernel));
}

/* Workgroups with less memory or fewer threads than a row's tiles have: the next row takes the
 * problem, or none does, and each says by which number. */
static void test_small_groups(void **state) {
    (void)state;
    static const char line[] = "pattern=dense heads=1 q_len=40 head_dim=64";
    static const struct {
        unsigned shared, threads;
        const char *portable, *small; /* why the row refuses, or NULL */
    } cases[] = {
        {16384, 0, "bytes of shared memory, maxComputeSharedMemorySize is 16384", NULL},
        {8192, 0, "maxComputeSharedMemorySize is 8192", "maxComputeSharedMemorySize is 8192"},
        {0, 64, "needs workgroups of 128, maxComputeWorkGroupInvocations is 64", NULL},
        {0, 32, "maxComputeWorkGroupInvocations is 32", "needs workgroups of 64"},
    };
    shim.reset(0, 0, 0);
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        const char *const reasons[] = {cases[n].portable, cases[n].small};
        shim.pretend_shared(cases[n].shared);
        shim.pretend_threads(cases[n].threads);
        for (int row = 0; row < 2; row++) {
            const tess_runtime_desc desc = {.struct_size = sizeof desc,
                                            .log = test_log_nothing,
                                            .kernel =
                                                row ? "vulkan/portable_small" : "vulkan/portable"};
            const tess_status status = make_plan(&desc, line, NULL);
            assert_int_equal(status, reasons[row] ? TESS_ERROR_UNSUPPORTED : TESS_OK);
            if (reasons[row]) assert_error_has(reasons[row]);
        }
    }
    shim.pretend_shared(0);
    shim.pretend_threads(0);
}

/* Matrices announced in every way that their kernel cannot use: each is refused by name, and so is
 * each problem. */
static void test_matrices(void **state) {
    (void)state;
    enum { F16 = 0, F32 = 1, MANY = 65536 };
    static const char usual[] = "pattern=dense heads=1 q_len=40 head_dim=128 dtype=f16";
    static const struct {
        unsigned m, n, k, result, shared, wide_only;
        const char *without, *line, *why;
    } cases[] = {
        {8, 8, 8, F32, MANY, 0, "VK_KHR_cooperative_matrix", usual, "no VK_KHR_cooperative_matrix"},
        {8, 8, 8, F32, MANY, 0, "VK_EXT_subgroup_size_control", usual, "no VK_EXT_subgroup_size"},
        {8, 8, 8, F32, MANY, 0, "cooperativeMatrix", usual, "no cooperativeMatrix"},
        {8, 8, 8, F32, MANY, 0, "vulkanMemoryModel", usual, "no vulkanMemoryModel"},
        {8, 8, 8, F32, MANY, 0, "shaderFloat16", usual, "no shaderFloat16"},
        {8, 8, 8, F32, MANY, 0, "subgroupSizeControl", usual, "no subgroupSizeControl"},
        {8, 8, 8, F32, MANY, 0, "computeFullSubgroups", usual, "no computeFullSubgroups"},
        {8, 8, 8, F32, MANY, 1, NULL, usual, "no storageBuffer16BitAccess"},
        {8, 8, 8, F16, MANY, 0, NULL, usual, "no size of float16 or bfloat16 matrices"},
        {12, 8, 8, F32, MANY, 0, NULL, usual, "no size of float16 or bfloat16 matrices"},
        {8, 8, 24, F32, MANY, 0, NULL, usual, "no size of float16 or bfloat16 matrices"},
        {16, 16, 8, F32, MANY, 0, NULL, usual, "no size of float16 or bfloat16 matrices"},
        {16, 16, 16, F32, 16000, 0, NULL, usual, "bytes of shared memory, maxComputeSharedMemory"},
        {8, 8, 8, F32, MANY, 0, NULL, "pattern=dense heads=1 q_len=40 head_dim=128 dtype=f32",
         "dtype is f32"},
        {8, 8, 8, F32, MANY, 0, NULL, "pattern=dense heads=1 q_len=40 head_dim=128 dtype=bf16",
         "shaderBFloat16CooperativeMatrix"},
        {8, 8, 8, F32, MANY, 0, NULL, "pattern=dense heads=1 q_len=40 head_dim=136 dtype=f16",
         "head_dim is larger than 128"},
        {8, 8, 8, F32, MANY, 0, NULL,
         "op=decode pattern=dense heads=1 q_len=40 kv_len=64 head_dim=64 dtype=f16 kv_dtype=i8",
         "codes of 8 bits"},
        {8, 8, 8, F32, MANY, 0, NULL, usual, "does not compile"}};
    shim.reset(0, 0, 0);
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        shim.pretend_matrices(cases[n].m, cases[n].n, cases[n].k, cases[n].result,
                              cases[n].without);
        shim.pretend_shared(cases[n].shared);
        shim.pretend_wide_only((int)cases[n].wide_only);
        assert_int_equal(plan_on_matrices(cases[n].line), TESS_ERROR_UNSUPPORTED);
        assert_error_has(cases[n].why);
    }
    /* Where the kernel does not compile, the next row takes the problem, and the log says why. A
     * software device does not come so far, nor do few rows: the kernel gains nothing there. */
    static const char few[] = "pattern=dense heads=1 q_len=16 head_dim=64 dtype=f16";
    static const struct {
        int kind;
        unsigned vendor;
        const char *line, *why;
    } devices[] = {{0, 0, usual, "taken only when named"},
                   {DISCRETE, 0, usual, "the driver does not compile the kernel"},
                   {DISCRETE, NVIDIA, usual, "the driver does not compile the kernel"},
                   {DISCRETE, NVIDIA, few, "taken only when named"}};
    for (size_t n = 0; n < sizeof devices / sizeof *devices; n++) {
        char kernel[64];
        shim.pretend(devices[n].kind, 0);
        shim.pretend_vendor(devices[n].vendor);
        shim.pretend_driver(devices[n].vendor ? NVIDIA_PROPRIETARY : 0);
        plan_kernel(devices[n].line, kernel);
        assert_string_equal(kernel, "vulkan/portable");
        assert_non_null(strstr(test_logged, devices[n].why));
    }
    pretend_matrices(0);
    shim.pretend_wide_only(0);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--all") == 0) all = 1;
    const int status = shim_find_device();
    if (status != 0) return status;
    if (argc > 1 && strcmp(argv[1], "--again") == 0) {
        const struct CMUnitTest again_tests[] = {
            TEST(test_same_plan_again), TEST(test_server_again), TEST(test_memory_again),
            TEST(test_copies_again), TEST(test_gradients_again)};
        return cmocka_run_group_tests(again_tests, NULL, NULL);
    }
    return RUN_TESTS(TEST(test_no_failure), TEST(test_submissions), TEST(test_copies),
                     TEST(test_kept_resources), TEST(test_cache), TEST(test_few_buffers),
                     TEST(test_few_buffers_memory), TEST(test_wide_only), TEST(test_small_groups),
                     TEST(test_matrices), TEST(test_host_memory), TEST(test_out_of_memory),
                     TEST(test_lost), TEST(test_matrices_fail));
}
