/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every call of the OpenCL backend to the driver fails once, or from then on, over a whole life
 * cycle: lack of memory, a device that is gone, and an error that nobody expects. Nothing may leak
 * or hang, the status has to be right, and afterwards a whole cycle works. FAULTS_KERNEL names a
 * kernel of float16 that the device must choose, and then nothing but runs and life cycles fails.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cl.h"
#include "common/again.h"
#include "common/gradients_again.h"
#include "common/life.h"
#include "common/merging.h"
#include "common/serve.h"
#include "common/serving_again.h"
#include "common/testlib.h"
#include "instance.h"
#include "loader.h"
#include <tessera/tessera_opencl.h>

enum { MOST_CALLS = 2000 };

static loader_control *control;
static char cache_folder[512];
static char line[] =
    "pattern=s2 block=16 local=2 stride=3 heads=2 q_len=40 kv_len=90 head_dim=24 kv_split=3 "
    "dtype=f32 ";
static const char *kernel; /* NULL: any */

static void check_kernel(const instance *x) {
    tess_plan_info info = {.struct_size = sizeof info};
    assert_ok(tess_plan_query(x->plan, &info));
    if (kernel) assert_string_equal(info.kernel, kernel);
}

/* One life cycle up to the first failure, everything released; `seen` says whether a result was
 * checked. Statuses of listing and opening differ from those of a device that works, so they are
 * told apart by `opened`. */
static tess_status live_once(test_heap *heap, int *opened, int *seen) {
    tess_runtime_desc rd = {.struct_size = sizeof rd,
                            .allocator = heap->allocator,
                            .log = test_log_nothing,
                            .cpu_threads = 1};
    tess_device_desc dd = {.struct_size = sizeof dd, .id = "opencl:0"};
    tess_runtime *runtime = NULL;
    tess_device *device = NULL;
    problem p;
    instance x;
    char error[256];
    double seconds = -1;
    *opened = *seen = 0;
    assert_int_equal(problem_parse(&p, line, error, sizeof error), 0);
    assert_ok(tess_runtime_create(&rd, &runtime));
    tess_status status = tess_device_open(runtime, &dd, &device);
    if (status == TESS_OK) {
        *opened = 1;
        tess_buffer one = {0}, two = {0};
        status = tess_alloc(device, 4096, &one);
        if (status == TESS_OK) status = tess_alloc(device, 4096, &two);
        if (status == TESS_OK)
            status = tess_copy(device, one, tess_host_buffer(line, sizeof line), sizeof line);
        if (status == TESS_OK) status = tess_copy(device, two, one, sizeof line);
        if (status == TESS_OK) status = tess_wait(device, 10000000000u);
        /* Buffers are freed whatever happened, and on a lost device too. */
        const tess_status first = tess_free(device, &one), second = tess_free(device, &two);
        if (status == TESS_OK) status = first != TESS_OK ? first : second;
    }
    if (status == TESS_OK) {
        status = instance_create(&x, device, &p, NULL, INSTANCE_GUARDS | INSTANCE_POISON);
        if (status == TESS_OK) {
            if (control->failures == 0) check_kernel(&x); /* what nobody can ask for is not there */
            status = again_run_both(&x, &seconds);
            if (status == TESS_OK) {
                instance_verdict verdict = {0};
                const int before = control->failures;
                instance_check(&x, 0, &verdict); /* reads guard words, which may fail as well */
                *seen = verdict.pass;
                if (!verdict.pass && control->failures == before) fail_msg("%s", verdict.what);
            }
            instance_release(&x);
        }
    }
    if (status == TESS_OK && !kernel) status = serve_once(runtime, device);
    if (status == TESS_OK && !kernel) {
        const int before = control->failures;
        int right = 0;
        status = test_merge(device, &right);
        if (status == TESS_OK && !right && control->failures == before) fail_msg("a wrong merge");
    }
    problem_free(&p);
    tess_device_release(device);
    tess_runtime_release(runtime);
    return status;
}

static void nothing_lives(const test_heap *heap, int k) {
    static const char *const names[LOADER_KINDS] = {
        "contexts", "queues", "buffers", "programs", "kernels", "events", "device references"};
    for (int n = 0; n < LOADER_KINDS; n++)
        if (control->live[n] != 0)
            fail_msg("call %d (%s) fails: %d %s leak", k, control->failed, control->live[n],
                     names[n]);
    if (heap->live || heap->bytes || heap->damaged)
        fail_msg("call %d (%s) fails: %lld allocations leak", k, control->failed,
                 (long long)heap->live);
}

static void reset(void) { memset(control, 0, sizeof *control); }

static void live_well(void) {
    test_heap heap;
    int opened, seen;
    test_heap_init(&heap, 0, 0);
    reset();
    assert_ok(live_once(&heap, &opened, &seen));
    assert_true(seen);
    nothing_lives(&heap, 0);
}

/* The status that a failing call has to give once the device is open. Before that a device that
 * does not answer is not available. */
static int is_right(tess_status status, int code, int opened, int seen) {
    (void)seen;
    if (status == TESS_OK) return 1; /* what only informs may fail */
    if (!opened) return status == TESS_ERROR_UNAVAILABLE || status == TESS_ERROR_OUT_OF_MEMORY;
    if (code == CL_OUT_OF_RESOURCES) return status == TESS_ERROR_OUT_OF_MEMORY;
    if (code == CL_DEVICE_NOT_AVAILABLE) return status == TESS_ERROR_DEVICE_LOST;
    return status == TESS_ERROR_NATIVE || status == TESS_ERROR_INVALID;
}

/* After a failing allocation, what the cache lacks is compiled again. */
LIFE_TESTS(control, 50, MOST_CALLS)

/* Work that never ends: a wait ends at its limit. Work that failed: a wait says so at once. The
 * device stays usable. */
static void test_wait_ends(void **state) {
    (void)state;
    test_heap heap;
    tess_runtime *runtime = NULL;
    tess_device *device = NULL;
    tess_device_desc dd = {.struct_size = sizeof dd, .id = "opencl:0"};
    test_heap_init(&heap, 0, 0);
    reset();
    tess_runtime_desc rd = {.struct_size = sizeof rd,
                            .allocator = heap.allocator,
                            .log = test_log_nothing,
                            .cpu_threads = 1};
    assert_ok(tess_runtime_create(&rd, &runtime));
    assert_ok(tess_device_open(runtime, &dd, &device));
    control->shown = CL_RUNNING;
    assert_error(tess_wait(device, 0), TESS_ERROR_TIMEOUT, "tess_wait", NULL);
    assert_error(tess_wait(device, 20000000), TESS_ERROR_TIMEOUT, "tess_wait", NULL);
    /* Work that failed shows the error in place of its state, and is not waited for any longer. */
    control->shown = CL_OUT_OF_RESOURCES;
    assert_error(tess_wait(device, 1000000000), TESS_ERROR_OUT_OF_MEMORY, "tess_wait", NULL);
    assert_error_has("the work failed");
    control->shown = 0;
    assert_ok(tess_wait(device, 10000000000u));
    assert_ok(tess_wait(device, UINT64_MAX));
    tess_device_release(device);
    tess_runtime_release(runtime);
    nothing_lives(&heap, 0);
}

/* ------------------------------------------------------------------ the same plan again */

/* The application's side: a context with a queue that keeps no order, made through the loader under
 * test. */
static struct {
#define MEMBER(result, name, parameters) result(*name) parameters;
    TESS_OPENCL_FUNCTIONS(MEMBER)
} cl;
static cl_context context;
static cl_device_id cl_device;
static cl_command_queue unordered;

static void application_begin(void) {
    cl_platform_id platform;
    void *library = dlopen("libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL);
#define FIND(result, name, parameters)                        \
    {                                                         \
        void *symbol = dlsym(library, #name);                 \
        if (symbol) memcpy(&cl.name, &symbol, sizeof symbol); \
    }
    TESS_OPENCL_FUNCTIONS(FIND)
    cl_int code = CL_SUCCESS;
    assert_int_equal(cl.clGetPlatformIDs(1, &platform, NULL), CL_SUCCESS);
    assert_int_equal(cl.clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &cl_device, NULL),
                     CL_SUCCESS);
    context = cl.clCreateContext(NULL, 1, &cl_device, NULL, NULL, &code);
    assert_int_equal(code, CL_SUCCESS);
    unordered = cl.clCreateCommandQueue(
        context, cl_device, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE | CL_QUEUE_PROFILING_ENABLE,
        &code);
    assert_int_equal(code, CL_SUCCESS);
}

static void application_end(void) {
    cl.clReleaseCommandQueue(unordered);
    cl.clReleaseContext(context);
}

static int again_code;
static void again_fail(int call) { AGAIN_INJECT(control, again_code, call); }
static long again_live(void) {
    long sum = 0;
    for (int n = 0; n < LOADER_KINDS; n++) sum += control->live[n];
    return sum;
}

/* On the application's queue: an event is given by a run that works, and by no other. The fault
 * ends before the wait. */
static tess_status run_unordered(instance *x, int with_event, double *seconds) {
    cl_event event = NULL;
    const tess_opencl_submit submit = {.struct_size = sizeof submit, .event = &event};
    tess_run_desc run = x->run;
    run.stream = (tess_stream){TESS_STREAM_SUBMIT, 0, (uint64_t)(uintptr_t)unordered,
                               with_event ? &submit : NULL};
    run.device_seconds = seconds;
    const tess_status status = tess_run(x->plan, &run);
    control->fail_at = 0;
    assert_int_equal(event != NULL, with_event && status == TESS_OK);
    if (event) {
        assert_int_equal(cl.clWaitForEvents(1, &event), CL_SUCCESS);
        assert_int_equal(cl.clReleaseEvent(event), CL_SUCCESS);
    }
    /* Without an event of its own the queue is asked for one. */
    assert_int_equal(cl.clEnqueueMarkerWithWaitList(unordered, 0, NULL, &event), CL_SUCCESS);
    assert_int_equal(cl.clWaitForEvents(1, &event), CL_SUCCESS);
    assert_int_equal(cl.clReleaseEvent(event), CL_SUCCESS);
    return status;
}
static tess_status run_without_event(instance *x) { return run_unordered(x, 0, NULL); }
static tess_status run_with_event(instance *x) { return run_unordered(x, 1, NULL); }
static tess_status run_with_event_timed(instance *x) {
    double seconds = -1;
    const tess_status status = run_unordered(x, 1, &seconds);
    if (status == TESS_OK) assert_true(seconds >= 0);
    return status;
}

static void test_same_plan_again(void **state) {
    (void)state;
    static const again_fault codes[] = {{CL_OUT_OF_RESOURCES, TESS_ERROR_OUT_OF_MEMORY},
                                        {CL_INVALID_OPERATION, TESS_ERROR_NATIVE}};
    static tess_status (*const ways[])(instance * x) = {
        again_run, again_run_timed, run_without_event, run_with_event, run_with_event_timed};
    test_heap heap;
    tess_runtime *runtime = NULL;
    tess_device *device = NULL;
    problem p;
    instance x;
    char error[256];
    test_heap_init(&heap, 0, 0);
    reset();
    application_begin();
    const tess_opencl_native native = {
        .struct_size = sizeof native, .context = context, .device = cl_device};
    tess_runtime_desc rd = {.struct_size = sizeof rd,
                            .allocator = heap.allocator,
                            .log = test_log_nothing,
                            .cpu_threads = 1};
    tess_device_desc dd = {.struct_size = sizeof dd, .id = "opencl:0", .native = &native};
    assert_int_equal(problem_parse(&p, line, error, sizeof error), 0);
    assert_ok(tess_runtime_create(&rd, &runtime));
    assert_ok(tess_device_open(runtime, &dd, &device));
    assert_ok(instance_create(&x, device, &p, NULL, INSTANCE_GUARDS | INSTANCE_POISON));
    check_kernel(&x);
    /* Each way meets one of the codes; on stand-ins for GPUs, which take their time, half do. */
    for (size_t c = kernel && !test_full(); c < sizeof codes / sizeof *codes; c++)
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
            if (!test_full() && (c + w) % 2) continue;
            const again a = {again_fail, failures, failed, ways[w], again_live};
            again_code = codes[c].code;
            assert_in_range(again_runs(&x, &a, codes[c].status), 10, 100);
        }
    instance_release(&x);
    tess_device_release(device);
    tess_runtime_release(runtime);
    problem_free(&p);
    application_end();
    nothing_lives(&heap, 0);
}

/* Somebody with a device, of Tessera's own or with `native`, and a problem. */
typedef struct user {
    tess_runtime *runtime;
    tess_device *device;
    problem p;
} user;

static void user_begin(user *u, const tess_opencl_native *native) {
    const tess_runtime_desc rd = {
        .struct_size = sizeof rd, .log = test_log_nothing, .cpu_threads = 1};
    const tess_device_desc dd = {.struct_size = sizeof dd, .id = "opencl:0", .native = native};
    char error[256];
    assert_int_equal(problem_parse(&u->p, line, error, sizeof error), 0);
    assert_ok(tess_runtime_create(&rd, &u->runtime));
    assert_ok(tess_device_open(u->runtime, &dd, &u->device));
}

static void user_end(user *u) {
    tess_device_release(u->device);
    tess_runtime_release(u->runtime);
    problem_free(&u->p);
}

/* The kernel of a new plan, which is released. */
static void plan_takes(const user *u, const char *wanted) {
    instance x;
    tess_plan_info info = {.struct_size = sizeof info};
    assert_ok(instance_create(&x, u->device, &u->p, NULL, 0));
    assert_ok(tess_plan_query(x.plan, &info));
    assert_string_equal(info.kernel, wanted);
    instance_release(&x);
}

/* Where the driver's compiler does not take the kernel, the next row takes the plans. It is not
 * asked for each of them: once where its error speaks of the program, else twice. What it takes the
 * second time is taken from then on. */
static void test_refusals(void **state) {
    (void)state;
    static const struct {
        const char *mode, *later; /* LOADER_NVIDIA for the first plan, and for the others */
        int asked, taken;
    } cases[] = {{"refuses", "8.0", 1, 0},
                 {"refuses newer", "refuses newer", 2, 0},
                 {"refuses newer", "8.0", 1, 1}};
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        user u;
        reset();
        assert_int_equal(setenv("LOADER_NVIDIA", cases[n].mode, 1), 0);
        user_begin(&u, NULL);
        plan_takes(&u, "opencl/portable");
        assert_int_equal(setenv("LOADER_NVIDIA", cases[n].later, 1), 0);
        for (int plans = 0; plans < 3; plans++)
            plan_takes(&u, cases[n].taken ? kernel : "opencl/portable");
        assert_int_equal(control->refused, cases[n].asked);
        user_end(&u);
    }
    assert_int_equal(unsetenv("LOADER_NVIDIA"), 0);
}

/* A kernel that has to check itself does so on a device of Tessera's own, and on a wrapped one with
 * a queue. Without a queue nothing runs unasked: it is taken only with a verdict. */
static void test_checks_with_a_queue(void **state) {
    (void)state;
    user u;
    assert_int_equal(setenv("LOADER_NVIDIA", "8.0 unproved", 1), 0);
    application_begin();
    const tess_opencl_native native = {
        .struct_size = sizeof native, .context = context, .device = cl_device};
    tess_opencl_native with_queue = native;
    cl_int code = CL_SUCCESS;
    with_queue.queue =
        cl.clCreateCommandQueue(context, cl_device, CL_QUEUE_PROFILING_ENABLE, &code);
    assert_int_equal(code, CL_SUCCESS);
    const tess_opencl_native *const devices[] = {&native, &with_queue, &native};
    for (int n = 0; n < 3; n++) {
        user_begin(&u, devices[n]);
        plan_takes(&u, n ? kernel : "opencl/portable");
        user_end(&u);
    }
    cl.clReleaseCommandQueue(with_queue.queue);
    application_end();
    assert_int_equal(unsetenv("LOADER_NVIDIA"), 0);
}

static void test_gradients_again(void **state) {
    (void)state;
    static const again a = {again_fail, failures, failed, again_run, again_live};
    static const gradients_again g = {"opencl:0", &a, TESS_ERROR_OUT_OF_MEMORY, nothing_lives};
    again_code = CL_OUT_OF_RESOURCES;
    gradients_fail(&g, 9);
}

SERVER_TEST(CL_OUT_OF_RESOURCES, "opencl:0")

static int setup(void **state) {
    (void)state;
    const char *folder = getenv("TMPDIR");
    snprintf(cache_folder, sizeof cache_folder, "%s/tessera-faults-XXXXXX",
             folder ? folder : "/tmp");
    return mkdtemp(cache_folder) ? setenv("TESSERA_CACHE_DIR", cache_folder, 1) : -1;
}

static int teardown(void **state) {
    char command[sizeof cache_folder + 16];
    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", cache_folder);
    return system(command);
}

int main(void) {
    void *library = dlopen("libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL);
    union {
        void *symbol;
        loader_control_fn *function;
    } get = {library ? dlsym(library, "loader_control_get") : NULL};
    if (!get.symbol) {
        fprintf(stderr, "the loader of this test is not the first libOpenCL.so.1 that is found; "
                        "see LD_LIBRARY_PATH in tests/opencl/CMakeLists.txt\n");
        return 1;
    }
    control = get.function();
    kernel = getenv("FAULTS_KERNEL");
    if (kernel) {
        memcpy(strstr(line, "f32"), "f16", 3);
        memcpy(strstr(line, "heads=2"), "heads=1", 7);
    }
    tess_runtime *runtime = test_runtime(1);
    tess_backend_info info = {.struct_size = sizeof info};
    uint32_t n = 0;
    while (tess_runtime_backend(runtime, n, &info) == TESS_OK && strcmp(info.name, "opencl") != 0)
        n++;
    tess_runtime_release(runtime);
    if (strcmp(info.name, "opencl") != 0 || info.status != TESS_OK) {
        printf("skipped: %s\n", info.reason);
        return 77;
    }
    /* The quick ones first: they find most of what is wrong. */
    const struct CMUnitTest tests[] = {
        TEST(test_wait_ends),
        TEST(test_same_plan_again),
        TEST(test_server_again),
        TEST(test_gradients_again),
        LIFE_TEST("no memory, once", test_calls_fail, CL_OUT_OF_RESOURCES, 0, 0),
        LIFE_TEST("no memory from then on", test_calls_fail, CL_OUT_OF_RESOURCES, 1, 1),
        LIFE_TEST("device gone", test_calls_fail, CL_DEVICE_NOT_AVAILABLE, 1, 3),
        LIFE_TEST("unexpected, once", test_calls_fail, CL_INVALID_OPERATION, 0, 2),
        TEST(test_no_host_memory),
    };
    const struct CMUnitTest kernel_tests[] = {
        TEST(test_refusals),
        TEST(test_checks_with_a_queue),
        TEST(test_same_plan_again),
        LIFE_TEST("no memory, once", test_calls_fail, CL_OUT_OF_RESOURCES, 0, 0),
        LIFE_TEST("device gone", test_calls_fail, CL_DEVICE_NOT_AVAILABLE, 1, 1),
    };
    if (kernel)
        return cmocka_run_group_tests_name("faults of a kernel", kernel_tests, setup, teardown);
    return cmocka_run_group_tests_name("faults of OpenCL", tests, setup, teardown);
}
