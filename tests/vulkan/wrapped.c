/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An application's own device, wrapped with the bits of matrix units, on the libvulkan of shim.c:
 * the kernel checks itself through the application's queue and under its lock, and bits that claim
 * what the device lacks are not believed. tests/interop/vulkan.c has such devices without pretence.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/tessera_vulkan.h>
#include <unistd.h>

#include "api.h"
#include "common/testlib.h"
#include "instance.h"
#include "problem.h"
#include "shim_calls.h"

enum { DISCRETE = 2, F32 = 1, VERSION_1_2 = 1 << 22 | 2 << 12 };
enum { ALL = TESS_VULKAN_STORAGE_16BIT | TESS_VULKAN_TIMELINE | TESS_VULKAN_MATRIX };

static const char line[] = "pattern=dense heads=2 q_len=40 kv_len=70 head_dim=128 dtype=f16";
static char folder[64];

/* ------------------------------------------------------------------ the application */

static struct {
    vk_get_instance_proc get;
    vk_api vk;
    vk_instance instance;
    vk_physical physical;
    vk_device device;
    vk_queue queue;
    pthread_mutex_t lock; /* of the queue */
    pthread_t holder;
    int held, locked; /* now, and how often */
} app;

static void take_lock(void *user) {
    assert_ptr_equal(user, &app);
    assert_int_equal(pthread_mutex_lock(&app.lock), 0); /* no thread takes it twice */
    app.holder = pthread_self();
    app.held = 1;
    app.locked++;
}

static void drop_lock(void *user) {
    assert_ptr_equal(user, &app);
    app.held = 0;
    assert_int_equal(pthread_mutex_unlock(&app.lock), 0);
}

static int holds_lock(void) { return app.held && pthread_equal(app.holder, pthread_self()); }

static vk_function load(const char *name) {
    const vk_function found = app.get(app.instance, name);
    if (!found) fail_msg("there is no %s", name);
    return found;
}
#define LOAD(to, name)                        \
    do {                                      \
        const vk_function found = load(name); \
        memcpy(&(to), &found, sizeof found);  \
    } while (0)

static void make_device(void) {
    const float priority = 1;
    const vk_application_info application = {.type = TVK_TYPE_APPLICATION_INFO,
                                             .api_version = VERSION_1_2};
    const vk_instance_create_info create = {.type = TVK_TYPE_INSTANCE_CREATE_INFO,
                                            .application = &application};
    const vk_16bit_features narrow = {.type = TVK_TYPE_16BIT_STORAGE_FEATURES, .storage = 1};
    const vk_queue_create_info queues = {
        .type = TVK_TYPE_DEVICE_QUEUE_CREATE_INFO, .count = 1, .priorities = &priority};
    const vk_device_create_info device = {.type = TVK_TYPE_DEVICE_CREATE_INFO,
                                          .next = (void *)&narrow,
                                          .queue_count = 1,
                                          .queues = &queues};
    uint32_t count = 1;
    LOAD(app.vk.CreateInstance, "vkCreateInstance");
    assert_int_equal(app.vk.CreateInstance(&create, NULL, &app.instance), TVK_SUCCESS);
    LOAD(app.vk.EnumeratePhysicalDevices, "vkEnumeratePhysicalDevices");
    LOAD(app.vk.CreateDevice, "vkCreateDevice");
    LOAD(app.vk.GetDeviceQueue, "vkGetDeviceQueue");
    LOAD(app.vk.DestroyDevice, "vkDestroyDevice");
    LOAD(app.vk.DestroyInstance, "vkDestroyInstance");
    assert_true(app.vk.EnumeratePhysicalDevices(app.instance, &count, &app.physical) >= 0);
    assert_int_equal(app.vk.CreateDevice(app.physical, &device, NULL, &app.device), TVK_SUCCESS);
    app.vk.GetDeviceQueue(app.device, 0, 0, &app.queue);
}

static int setup(void **state) {
    (void)state;
    pthread_mutexattr_t checked;
    memset(&app, 0, sizeof app);
    snprintf(folder, sizeof folder, "/tmp/tessera-wrapped-XXXXXX");
    assert_non_null(mkdtemp(folder));
    pthread_mutexattr_init(&checked);
    pthread_mutexattr_settype(&checked, PTHREAD_MUTEX_ERRORCHECK);
    pthread_mutex_init(&app.lock, &checked);
    pthread_mutexattr_destroy(&checked);
    shim.reset(0, 0, 0);
    shim.pretend(DISCRETE, 0);
    shim.pretend_matrices(16, 16, 16, F32, NULL);
    shim.pretend_shared(65536);
    shim.pretend_kernel(SHIM_WORKS);
    void *symbol = dlsym(dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL), "vkGetInstanceProcAddr");
    assert_non_null(symbol);
    memcpy(&app.get, &symbol, sizeof symbol);
    make_device();
    shim.watch(holds_lock);
    test_logged[0] = '\0';
    return 0;
}

static int teardown(void **state) {
    (void)state;
    char command[128], text[400];
    shim.watch(NULL);
    app.vk.DestroyDevice(app.device, NULL);
    app.vk.DestroyInstance(app.instance, NULL);
    pthread_mutex_destroy(&app.lock);
    shim.pretend(0, 0);
    shim.pretend_matrices(0, 0, 0, 0, NULL);
    shim.pretend_shared(0);
    shim.pretend_kernel(SHIM_NO_STAND_IN);
    if (shim.live(text, sizeof text)) fail_msg("left behind: %s", text);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

/* ------------------------------------------------------------------ Tessera on it */

typedef struct process {
    tess_runtime *runtime;
    tess_device *device;
    problem p;
} process;

/* Wraps the device with these bits. */
static void begin(process *x, uint32_t features) {
    char error[256];
    const tess_runtime_desc desc = {.struct_size = sizeof desc,
                                    .log = test_log_keep,
                                    .verbose = "dispatch",
                                    .tune_file = "",
                                    .cache_dir = folder,
                                    .kernel = ""};
    const tess_vulkan_device native = {.struct_size = sizeof native,
                                       .features = features,
                                       .get_instance_proc_addr = app.get,
                                       .instance = app.instance,
                                       .physical_device = app.physical,
                                       .device = app.device,
                                       .queue = app.queue,
                                       .lock_queue = take_lock,
                                       .unlock_queue = drop_lock,
                                       .lock_user = &app};
    const tess_device_desc open = {.struct_size = sizeof open, .id = "vulkan:0", .native = &native};
    assert_int_equal(problem_parse(&x->p, line, error, sizeof error), 0);
    assert_ok(tess_runtime_create(&desc, &x->runtime));
    assert_ok(tess_device_open(x->runtime, &open, &x->device));
}

static void end(process *x) {
    tess_device_release(x->device);
    tess_runtime_release(x->runtime);
    problem_free(&x->p);
}

/* Makes a plan, runs it and looks at the result; which kernel it was. */
static void solve(process *x, const char *wanted) {
    instance i;
    instance_verdict verdict = {0};
    tess_plan_info info = {.struct_size = sizeof info};
    const tess_status status =
        instance_create(&i, x->device, &x->p, NULL, INSTANCE_GUARDS | INSTANCE_POISON);
    if (status != TESS_OK) fail_msg("%s: %s", tess_status_name(status), i.error);
    assert_ok(tess_plan_query(i.plan, &info));
    assert_string_equal(info.kernel, wanted);
    assert_ok(instance_run(&i, NULL));
    assert_ok(instance_fetch(&i));
    instance_check(&i, 0, &verdict);
    if (!verdict.pass) fail_msg("%s", verdict.what);
    instance_release(&i);
}

/* The kernel checks itself once, and works from then on. Whatever is submitted, the application's
 * lock is held by the thread that does it. */
static void test_check_under_lock(void **state) {
    (void)state;
    process x;
    const long runs = shim.kernel_runs(), unwanted = shim.unwanted();
    begin(&x, ALL);
    solve(&x, "vulkan/coopmat");
    assert_logged("vulkan/coopmat checked itself in ");
    assert_int_equal(shim.kernel_runs() - runs, 2); /* the check and the run */
    const int locked = app.locked;
    assert_true(locked > 0);
    solve(&x, "vulkan/coopmat");
    assert_int_equal(shim.kernel_runs() - runs, 3);
    assert_true(app.locked > locked);
    end(&x);
    assert_int_equal(shim.unwanted(), unwanted);
}

/* A kernel that is wrong is found out there, too. */
static void test_wrong(void **state) {
    (void)state;
    process x;
    shim.pretend_kernel(SHIM_LEAVES_JOBS_OUT);
    begin(&x, ALL);
    solve(&x, "vulkan/portable");
    assert_logged("vulkan/coopmat gives wrong results on this device and is not used");
    end(&x);
}

typedef struct busy {
    atomic_int stop;
    long submitted;
} busy;

/* The application goes on with its own work. */
static void *submit_often(void *argument) {
    busy *b = argument;
    const vk_submit_info nothing = {.type = TVK_TYPE_SUBMIT_INFO};
    while (!atomic_load(&b->stop)) {
        take_lock(&app);
        if (app.vk.QueueSubmit(app.queue, 1, &nothing, 0) == TVK_SUCCESS) b->submitted++;
        drop_lock(&app);
        usleep(100);
    }
    return NULL;
}

static void test_busy_application(void **state) {
    (void)state;
    pthread_t thread;
    process x;
    busy b = {0};
    const long unwanted = shim.unwanted();
    LOAD(app.vk.QueueSubmit, "vkQueueSubmit");
    assert_int_equal(pthread_create(&thread, NULL, submit_often, &b), 0);
    begin(&x, ALL);
    solve(&x, "vulkan/coopmat");
    end(&x);
    atomic_store(&b.stop, 1);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(b.submitted > 0);
    assert_int_equal(shim.unwanted(), unwanted);
}

/* Without a bit its feature is not used, and a bit alone does not make a feature. */
static void test_bits(void **state) {
    (void)state;
    static const struct {
        uint32_t features;
        const char *without, *why;
    } cases[] = {
        {ALL & ~TESS_VULKAN_MATRIX, NULL, "TESS_VULKAN_MATRIX is not among native.features"},
        {ALL & ~TESS_VULKAN_STORAGE_16BIT, NULL, "the device has no storageBuffer16BitAccess"},
        {ALL, "VK_KHR_cooperative_matrix", "the driver has no VK_KHR_cooperative_matrix"},
        {ALL, "shaderFloat16", "the driver has no shaderFloat16"},
    };
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        process x;
        const long runs = shim.kernel_runs();
        shim.pretend_matrices(16, 16, 16, F32, cases[n].without);
        test_logged[0] = '\0';
        begin(&x, cases[n].features);
        solve(&x, "vulkan/portable");
        assert_logged(cases[n].why);
        assert_int_equal(shim.kernel_runs(), runs);
        end(&x);
    }
}

/* A semaphore with a value, on a device that has them or claims so. */
static void test_timeline(void **state) {
    (void)state;
    static const struct {
        uint32_t features;
        const char *without;
    } cases[] = {{ALL & ~TESS_VULKAN_TIMELINE, NULL}, {ALL, "timelineSemaphore"}};
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        process x;
        instance i;
        const tess_vulkan_semaphore signal = {.semaphore = 1, .value = 7};
        const tess_vulkan_submit submit = {
            .struct_size = sizeof submit, .n_signals = 1, .signals = &signal};
        shim.pretend_matrices(16, 16, 16, F32, cases[n].without);
        begin(&x, cases[n].features);
        assert_ok(instance_create(&i, x.device, &x.p, NULL, 0));
        i.run.stream = (tess_stream){.kind = TESS_STREAM_SUBMIT, .extra = &submit};
        assert_int_equal(tess_run(i.plan, &i.run), TESS_ERROR_UNSUPPORTED);
        assert_error_has("stream.extra.signals[0].value: the device has no timeline semaphores");
        instance_release(&i);
        end(&x);
    }
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const int status = shim_find_device();
    if (status != 0) return status;
    const struct CMUnitTest tests[] = {CASE(test_check_under_lock), CASE(test_wrong),
                                       CASE(test_busy_application), CASE(test_bits),
                                       CASE(test_timeline)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
