/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The self-check of the kernel on matrix units, on a libvulkan whose device has matrices and is of
 * a vendor on which the kernel has not run: shim.c lets the portable kernel stand in for it, which
 * works or leaves something out. tests/unit/test_self_check.c has the mechanism without Vulkan.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/testlib.h"
#include "problem.h"
#include "shim_calls.h"

enum { DISCRETE = 2, F32 = 1 };
enum { /* VkResult */
       OUT_OF_HOST_MEMORY = -1,
       OUT_OF_DEVICE_MEMORY = -2,
       INITIALIZATION_FAILED = -3,
       DEVICE_LOST = -4,
       FEATURE_NOT_PRESENT = -8,
       UNKNOWN = -13,
       INVALID_SHADER_NV = -1000012000
};
enum { NVIDIA = 0x10de, NVIDIA_PROPRIETARY = 4, MESA_NVK = 24 };

static const char line[] = "pattern=dense heads=1 q_len=40 head_dim=128 dtype=f16";
static char folder[64];

static void forget(void) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s/*", folder);
    assert_int_equal(system(command), 0);
}

static int setup(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/tessera-check-XXXXXX");
    assert_non_null(mkdtemp(folder));
    shim.reset(0, 0, 0);
    shim.pretend(DISCRETE, 0);
    shim.pretend_matrices(16, 16, 16, F32, NULL);
    shim.pretend_shared(65536);
    shim.pretend_kernel(SHIM_WORKS);
    test_logged[0] = '\0';
    return 0;
}

static int teardown(void **state) {
    (void)state;
    char text[400];
    forget();
    shim.pretend(0, 0);
    shim.pretend_vendor(0);
    shim.pretend_driver(0);
    shim.pretend_matrices(0, 0, 0, 0, NULL);
    shim.pretend_shared(0);
    shim.pretend_kernel(SHIM_NO_STAND_IN);
    shim.pretend_refusal(0);
    if (shim.live(text, sizeof text)) fail_msg("left behind: %s", text);
    return rmdir(folder);
}

/* A device and what plans on it need. */
typedef struct process {
    tess_runtime *runtime;
    tess_device *device;
    tess_layout *layout;
    tess_plan_desc desc;
} process;

static void begin(process *x, const char *kernel, const tess_allocator *allocator) {
    tess_runtime_desc desc = {.struct_size = sizeof desc,
                              .log = allocator ? test_log_nothing : test_log_keep,
                              .verbose = "dispatch",
                              .tune_file = "",
                              .cache_dir = folder,
                              .kernel = kernel};
    const tess_device_desc open = {.struct_size = sizeof open, .id = "vulkan"};
    problem p;
    char error[256];
    int64_t *cu = NULL;
    memset(x, 0, sizeof *x);
    if (allocator) desc.allocator = *allocator;
    assert_int_equal(problem_parse(&p, line, error, sizeof error), 0);
    assert_ok(tess_runtime_create(&desc, &x->runtime));
    assert_ok(tess_device_open(x->runtime, &open, &x->device));
    assert_ok(problem_layout(&p, x->runtime, &x->layout));
    assert_int_equal(problem_plan_desc(&p, &x->desc, &cu), 0);
    assert_null(cu);
    problem_free(&p);
}

static void end(process *x) {
    tess_layout_release(x->layout);
    tess_device_release(x->device);
    tess_runtime_release(x->runtime);
}

/* The status of making a plan, and its kernel. */
static tess_status plan(const process *x, char kernel[64]) {
    tess_plan *made = NULL;
    tess_plan_info info = {.struct_size = sizeof info};
    const tess_status status = tess_plan_create(x->device, x->layout, &x->desc, &made);
    kernel[0] = '\0';
    if (status != TESS_OK) return status;
    assert_ok(tess_plan_query(made, &info));
    memcpy(kernel, info.kernel, sizeof info.kernel);
    tess_plan_release(made);
    return status;
}

/* One process makes a plan; what it takes. */
static void expect(const char *wanted) {
    char kernel[64];
    process x;
    begin(&x, "", NULL);
    assert_ok(plan(&x, kernel));
    assert_string_equal(kernel, wanted);
    end(&x);
}

static long runs_of(const char *wanted) {
    const long before = shim.kernel_runs();
    expect(wanted);
    return shim.kernel_runs() - before;
}

/* The kernel is checked once, is taken from then on, and not checked where it is known. */
static void test_right(void **state) {
    (void)state;
    assert_int_equal(runs_of("vulkan/coopmat"), 1);
    assert_logged("vulkan/coopmat checked itself in ");
    assert_int_equal(runs_of("vulkan/coopmat"), 0);
    forget();
    shim.pretend_vendor(NVIDIA);
    shim.pretend_driver(NVIDIA_PROPRIETARY);
    assert_int_equal(runs_of("vulkan/coopmat"), 0);
    shim.pretend_driver(MESA_NVK); /* another compiler for the same GPUs */
    assert_int_equal(runs_of("vulkan/coopmat"), 1);
    shim.pretend_driver(0);
    shim.pretend_vendor(0);
    shim.pretend(0, 0); /* a software device */
    assert_int_equal(runs_of("vulkan/portable"), 0);
    assert_logged("vulkan/coopmat refuses: taken only when named");
}

/* One that is wrong is not taken, by later processes either; the list of kernels says why. */
static void test_wrong(void **state) {
    (void)state;
    static const int faults[] = {SHIM_DOES_NOTHING, SHIM_LEAVES_JOBS_OUT};
    for (int n = 0; n < 2; n++) {
        char kernel[64];
        process x;
        tess_kernel_info info = {.struct_size = sizeof info};
        forget();
        shim.pretend_kernel(faults[n]);
        test_logged[0] = '\0';
        assert_int_equal(runs_of("vulkan/portable"), 1);
        assert_logged("vulkan/coopmat gives wrong results on this device and is not used. Please "
                      "report this");
        shim.pretend_kernel(SHIM_WORKS);
        assert_int_equal(runs_of("vulkan/portable"), 0);
        begin(&x, "vulkan/coopmat", NULL);
        assert_ok(tess_device_kernel(x.device, 0, &info));
        assert_string_equal(info.name, "vulkan/coopmat");
        assert_int_equal(info.status, TESS_ERROR_UNAVAILABLE);
        assert_non_null(strstr(info.reason, "self-check (f16, head_dim 128): O is off by inf"));
        assert_int_equal(plan(&x, kernel), TESS_ERROR_UNSUPPORTED);
        assert_error_has("please report");
        end(&x);
    }
}

/* Who wants no check names another kernel. */
static void test_way_round(void **state) {
    (void)state;
    char kernel[64];
    process x;
    const long before = shim.kernel_runs();
    begin(&x, "vulkan/portable", NULL);
    assert_ok(plan(&x, kernel));
    assert_string_equal(kernel, "vulkan/portable");
    assert_int_equal(shim.kernel_runs(), before);
    end(&x);
}

/* Where the driver does not compile the kernel, the next row takes the plans. It is not asked for
 * each of them: once where its result speaks of the code, else twice. */
static void test_refusals_stay(void **state) {
    (void)state;
    static const struct {
        int result, asked;
        const char *name;
    } refusals[] = {{INVALID_SHADER_NV, 1, "VK_ERROR_INVALID_SHADER_NV"},
                    {FEATURE_NOT_PRESENT, 1, "VK_ERROR_FEATURE_NOT_PRESENT"},
                    {INITIALIZATION_FAILED, 2, "VK_ERROR_INITIALIZATION_FAILED"},
                    {UNKNOWN, 2, "VK_ERROR_UNKNOWN"},
                    {-4711, 2, "VkResult"}};
    enum { COUNT = sizeof refusals / sizeof *refusals };
    process x;
    shim.pretend_kernel(SHIM_NO_STAND_IN);
    for (int n = 0; n < 2 * COUNT; n++) {
        const int checks = n % 2;
        const long before = shim.kernel_modules();
        shim.pretend_vendor(checks ? 0 : NVIDIA);
        shim.pretend_driver(checks ? 0 : NVIDIA_PROPRIETARY);
        shim.pretend_refusal(refusals[n / 2].result);
        begin(&x, "", NULL);
        for (int plans = 0; plans < 4; plans++) {
            char kernel[64];
            test_logged[0] = '\0';
            assert_ok(plan(&x, kernel));
            assert_string_equal(kernel, "vulkan/portable");
            assert_logged("the driver does not compile the kernel");
            assert_logged(refusals[n / 2].name);
        }
        assert_int_equal(shim.kernel_modules(), before + refusals[n / 2].asked);
        end(&x);
    }
}

/* A cause that passes does not keep the kernel out: a refusal that says little is tried again, and
 * lack of memory fails the plan and is no refusal, however often. */
static void test_refusals_pass(void **state) {
    (void)state;
    char kernel[64];
    process x;
    for (int checks = 0; checks < 2; checks++) {
        shim.pretend_vendor(checks ? 0 : NVIDIA);
        shim.pretend_driver(checks ? 0 : NVIDIA_PROPRIETARY);
        begin(&x, "", NULL);
        shim.pretend_kernel(SHIM_NO_STAND_IN);
        for (int n = 0; n < 3; n++) {
            shim.pretend_refusal(n % 2 ? OUT_OF_DEVICE_MEMORY : OUT_OF_HOST_MEMORY);
            assert_int_equal(plan(&x, kernel), TESS_ERROR_OUT_OF_MEMORY);
        }
        shim.pretend_refusal(UNKNOWN);
        assert_ok(plan(&x, kernel));
        assert_string_equal(kernel, "vulkan/portable");
        shim.pretend_kernel(SHIM_WORKS);
        for (int n = 0; n < 2; n++) {
            assert_ok(plan(&x, kernel));
            assert_string_equal(kernel, "vulkan/coopmat");
        }
        end(&x);
    }
}

/* A later process that knows nothing of this one. */
static void again(process *x, const tess_allocator *allocator) {
    end(x);
    forget();
    begin(x, "", allocator);
}

/* Each call during the check fails once, one after the other: the same device goes on, without a
 * verdict until nothing fails. */
static void test_out_of_memory(void **state) {
    (void)state;
    char kernel[64];
    process x;
    begin(&x, "", NULL);
    for (long k = 1;; k++) {
        shim.reset(k, 0, OUT_OF_DEVICE_MEMORY);
        const tess_status status = plan(&x, kernel);
        const long failures = shim.failures();
        if (status == TESS_ERROR_OUT_OF_MEMORY && failures) continue;
        if (status != TESS_OK || strcmp(kernel, "vulkan/coopmat") != 0)
            fail_msg("call %ld, %s: %s %s: %s", k, shim.failed(), tess_status_name(status), kernel,
                     tess_last_error());
        if (failures) { /* of the cache, without which plans are made */
            shim.reset(0, 0, 0);
            again(&x, NULL);
            continue;
        }
        printf("each of %ld calls failed\n", k - 1);
        assert_in_range(k, 25, 200); /* fewer than without what is kept of calls that failed */
        break;
    }
    shim.reset(0, 0, 0);
    end(&x);
}

static void test_host_memory(void **state) {
    (void)state;
    char kernel[64];
    process x;
    test_heap heap;
    test_heap_init(&heap, 0, 0);
    begin(&x, "", &heap.allocator);
    for (int64_t k = 1;; k++) {
        const int64_t before = heap.failures;
        heap.fail_at = heap.calls + k;
        const tess_status status = plan(&x, kernel);
        if (status == TESS_ERROR_OUT_OF_MEMORY) continue;
        assert_ok(status);
        assert_string_equal(kernel, "vulkan/coopmat");
        if (heap.failures > before) {
            again(&x, &heap.allocator);
            continue;
        }
        assert_in_range(k, 8, 99);
        break;
    }
    heap.fail_at = 0;
    end(&x);
    assert_int_equal(heap.live, 0);
}

/* The device is lost at each call, or at some, since each takes a new device: if the kernel was
 * running, that is a verdict, and else there is none. */
static void test_lost(void **state) {
    (void)state;
    const long step = test_full() ? 1 : 37;
    long verdicts = 0;
    for (long k = 1;; k += step) {
        char kernel[64], text[400];
        process x;
        tess_kernel_info info = {.struct_size = sizeof info};
        forget();
        begin(&x, "", NULL);
        shim.reset(k, 1, DEVICE_LOST);
        const tess_status status = plan(&x, kernel);
        const long failures = shim.failures();
        if (status != (failures ? TESS_ERROR_DEVICE_LOST : TESS_OK))
            fail_msg("call %ld, %s: %s: %s", k, shim.failed(), tess_status_name(status),
                     tess_last_error());
        shim.reset(0, 0, 0);
        end(&x);
        if (shim.live(text, sizeof text)) fail_msg("call %ld: left behind: %s", k, text);
        if (!failures) break;
        begin(&x, "", NULL);
        assert_ok(tess_device_kernel(x.device, 0, &info));
        end(&x);
        if (info.status == TESS_OK) continue;
        assert_non_null(strstr(info.reason, "the device was lost"));
        verdicts++;
    }
    assert_true(verdicts < 8 && (verdicts > 0 || !test_full()));
}

static void *plan_in_thread(void *argument) {
    char kernel[64];
    const process *x = argument;
    return plan(x, kernel) == TESS_OK && strcmp(kernel, "vulkan/coopmat") == 0 ? NULL : argument;
}

/* Plans are made at once: one thread checks, the others wait for its verdict. */
static void test_threads(void **state) {
    (void)state;
    process x;
    const long before = shim.kernel_runs();
    begin(&x, "", NULL);
    test_in_threads(plan_in_thread, &x);
    assert_int_equal(shim.kernel_runs(), before + 1);
    end(&x);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const int status = shim_find_device();
    if (status != 0) return status;
    const struct CMUnitTest tests[] = {
        CASE(test_right),         CASE(test_wrong),         CASE(test_way_round),
        CASE(test_threads),       CASE(test_refusals_stay), CASE(test_refusals_pass),
        CASE(test_out_of_memory), CASE(test_lost),          CASE(test_host_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
