/* SPDX-License-Identifier: Apache-2.0 */
/* Status, runtime and devices, on backends made for the test. */
#include "fixtures/fake_backend.h"

#include <pthread.h>
#include <sys/wait.h>

#include "common.h"
#include "common/child.h"
#include "status.h"

static void assert_device_id(const tess_device *device, const char *id) {
    tess_device_info info = {sizeof info};
    assert_status(TESS_OK, tess_device_query(device, &info));
    assert_string_equal(id, info.id);
}

/* ------------------------------------------------------------------ status */

static void test_status(void **state) {
    (void)state;
#define STATUS(name, text)                              \
    assert_string_equal(#name, tess_status_name(name)); \
    assert_string_equal(text, tess_status_text(name));
    TESS_STATUS_LIST(STATUS)
    assert_string_equal("unknown status", tess_status_text((tess_status)99));
    assert_string_equal("TESS_ERROR_?", tess_status_name((tess_status)11));
    assert_string_equal("TESS_ERROR_?", tess_status_name((tess_status)-1));
    assert_int_equal(TESS_VERSION_NUMBER, tess_version());
    assert_status(TESS_ERROR_BUSY, tess_fail(TESS_ERROR_BUSY, "a\nb\t%d \n", 7));
    assert_string_equal("a b 7", tess_last_error());
    tess_fail(TESS_ERROR_BUSY, "again: %s", tess_last_error());
    assert_string_equal("again: a b 7", tess_last_error());
    tess_fail(TESS_ERROR_BUSY, "%5000s", "x");
    assert_int_equal(0, strlen(tess_last_error())); /* 1023 spaces, and spaces at the end go */
    static const wchar_t no_character[] = {0x7fffffff, 0};
    tess_fail(TESS_ERROR_BUSY, "a wide %ls", no_character);
    assert_string_equal("a wide %ls", tess_last_error());
}

static void *other_thread_error(void *unused) {
    (void)unused;
    return tess_last_error()[0] == '\0' ? "" : NULL;
}

static void test_last_error_is_per_thread(void **state) {
    (void)state;
    pthread_t thread;
    void *empty = NULL;
    assert_status(TESS_ERROR_INVALID, tess_runtime_create(NULL, NULL));
    assert_error_has("tess_runtime_create: runtime:");
    assert_int_equal(0, pthread_create(&thread, NULL, other_thread_error, NULL));
    pthread_join(thread, &empty);
    assert_non_null(empty);
    /* A successful call leaves the message, although it meets a backend that is not available on
     * its way. */
    tess_runtime *runtime = make_runtime();
    tess_device_release(open_device(runtime, "delta,beta"));
    tess_runtime_release(runtime);
    assert_error_has("tess_runtime_create: runtime:");
}

/* ------------------------------------------------------------------ versions of structures */

static void test_descriptor_versions(void **state) {
    (void)state;
    struct {
        tess_runtime_desc known;
        unsigned char tail[64];
    } larger;
    tess_runtime *runtime = NULL;
    static const uint32_t wrong[] = {0, 1, 4, 7, 100000, UINT32_MAX};
    for (size_t n = 0; n < sizeof wrong / sizeof wrong[0]; n++) {
        tess_runtime_desc desc = {wrong[n]};
        assert_status(TESS_ERROR_VERSION, tess_runtime_create(&desc, &runtime));
        assert_error_has("tess_runtime_create: desc.struct_size:");
    }
    memset(&larger, 0, sizeof larger);
    larger.known.struct_size = sizeof larger;
    assert_status(TESS_OK, tess_runtime_create(&larger.known, &runtime));
    tess_runtime_release(runtime);
    larger.tail[63] = 1;
    assert_status(TESS_ERROR_VERSION, tess_runtime_create(&larger.known, &runtime));

    /* An old structure ends before `backend`; what lies behind it is not read. */
    tess_runtime_desc old = {offsetof(tess_runtime_desc, backend), .backend = (const char *)1,
                             .reserved = 9};
    assert_status(TESS_OK, tess_runtime_create(&old, &runtime));
    tess_runtime_release(runtime);
}

static void test_info_versions(void **state) {
    (void)state;
    tess_runtime *runtime = make_runtime();
    struct {
        tess_device_info known;
        unsigned char tail[32];
    } info;
    memset(&info, 0xee, sizeof info);
    info.known.struct_size = sizeof info;
    assert_status(TESS_OK, tess_runtime_device(runtime, 0, &info.known));
    assert_int_equal(sizeof info, info.known.struct_size);
    for (size_t n = 0; n < sizeof info.tail; n++) assert_int_equal(0, info.tail[n]);

    memset(&info, 0xee, sizeof info);
    info.known.struct_size = offsetof(tess_device_info, memory_bytes);
    assert_status(TESS_OK, tess_runtime_device(runtime, 0, &info.known));
    assert_int_equal(TESS_DEVICE_GPU, info.known.kind);
    assert_int_equal(0xee, (unsigned char)info.known.id[0]);
    assert_true(info.known.memory_bytes == 0xeeeeeeeeeeeeeeeeu);

    info.known.struct_size = 4;
    assert_status(TESS_ERROR_VERSION, tess_runtime_device(runtime, 0, &info.known));
    assert_int_equal(4, info.known.struct_size);
    assert_status(TESS_ERROR_INVALID, tess_runtime_device(runtime, 0, NULL));
    assert_error_has("tess_runtime_device: info: must not be NULL");
    tess_runtime_release(runtime);
}

/* ------------------------------------------------------------------ runtime */

static void test_create_arguments(void **state) {
    (void)state;
    tess_runtime *untouched = (tess_runtime *)1, *runtime = untouched;
    tess_runtime_desc desc = {sizeof desc, .flags = 4};
    assert_status(TESS_ERROR_INVALID, tess_runtime_create(&desc, &runtime));
    assert_error_has("flags");
    desc = (tess_runtime_desc){sizeof desc, .reserved = 1};
    assert_status(TESS_ERROR_INVALID, tess_runtime_create(&desc, &runtime));
    assert_error_has("reserved");
    desc = (tess_runtime_desc){sizeof desc, .allocator = {.alloc = counting_alloc}};
    assert_status(TESS_ERROR_INVALID, tess_runtime_create(&desc, &runtime));
    assert_error_has("allocator: give both functions or neither; free is missing");
    desc = (tess_runtime_desc){sizeof desc, .allocator = {.free = counting_free}};
    assert_status(TESS_ERROR_INVALID, tess_runtime_create(&desc, &runtime));
    assert_error_has("alloc is missing");
    assert_ptr_equal(untouched, runtime);
    tess_runtime_release(NULL);
    tess_device_release(NULL);
}

static void test_null_handles(void **state) {
    (void)state;
    tess_backend_info backend = {sizeof backend};
    tess_device_info device = {sizeof device};
    tess_kernel_info kernel = {sizeof kernel};
    tess_setting_info setting = {sizeof setting};
    tess_device *opened = NULL;
    tess_buffer buffer = {0};
    assert_status(TESS_ERROR_INVALID, tess_runtime_backend(NULL, 0, &backend));
    assert_error_has("tess_runtime_backend: runtime: must not be NULL");
    assert_status(TESS_ERROR_INVALID, tess_runtime_device(NULL, 0, &device));
    assert_status(TESS_ERROR_INVALID, tess_runtime_setting(NULL, 0, &setting));
    assert_status(TESS_ERROR_INVALID, tess_device_open(NULL, NULL, &opened));
    assert_status(TESS_ERROR_INVALID, tess_device_query(NULL, &device));
    assert_error_has("tess_device_query: device: must not be NULL");
    assert_status(TESS_ERROR_INVALID, tess_device_kernel(NULL, 0, &kernel));
    assert_status(TESS_ERROR_INVALID, tess_alloc(NULL, 1, &buffer));
    assert_status(TESS_ERROR_INVALID, tess_free(NULL, &buffer));
    assert_status(TESS_ERROR_INVALID, tess_copy(NULL, buffer, buffer, 0));
    assert_status(TESS_ERROR_INVALID, tess_wait(NULL, 0));
}

static void test_enumeration(void **state) {
    (void)state;
    static const char *const ids[] = {"alpha:0", "alpha:1", "beta:0", "gamma:0"};
    static const char *const names[] = {"gamma", "beta", "delta", "alpha"};
    tess_runtime *runtime = make_runtime();
    for (size_t n = 0; n < FAKE_COUNT; n++) assert_int_equal(0, fake.list_calls[n]);
    for (uint32_t n = 0; n < 4; n++) {
        tess_backend_info info = {sizeof info};
        assert_status(TESS_OK, tess_runtime_backend(runtime, n, &info));
        assert_string_equal(names[n], info.name);
        assert_status(n == 2 ? TESS_ERROR_UNAVAILABLE : TESS_OK, info.status);
        assert_string_equal(n == 2 ? "fakeGetDeviceCount: no more than 0; libfake.so.1 was tried"
                                   : "",
                            info.reason);
        assert_int_equal(n == 2 ? 0 : n == 3 ? 2 : 1, info.device_count);
    }
    tess_backend_info past = {sizeof past};
    assert_status(TESS_ERROR_INVALID, tess_runtime_backend(runtime, 4, &past));
    assert_error_has("index: 4 is past the last");
    for (uint32_t n = 0; n < 4; n++) {
        tess_device_info info = {sizeof info};
        assert_status(TESS_OK, tess_runtime_device(runtime, n, &info));
        assert_string_equal(ids[n], info.id);
        /* the backend forgot to end this one */
        assert_int_equal(sizeof info.driver - 1, strlen(info.driver));
    }
    tess_device_info info = {sizeof info};
    assert_status(TESS_ERROR_INVALID, tess_runtime_device(runtime, 4, &info));
    assert_int_equal(3, fake.list_calls[FAKE_ALPHA]); /* two devices and the end, once */
    tess_runtime_release(runtime);
}

/* A backend whose second device is emulated: kind decides before number. */
static void test_preference_within_a_backend(void **state) {
    (void)state;
    fake.kind_of_device_1 = TESS_DEVICE_SOFTWARE + 1;
    tess_runtime *runtime = make_runtime();
    tess_device_info info = {sizeof info};
    assert_status(TESS_OK, tess_runtime_device(runtime, 3, &info));
    assert_string_equal("alpha:1", info.id);
    fake.open_status[FAKE_ALPHA][0] = TESS_ERROR_NATIVE;
    tess_device *device = open_device(runtime, "alpha"); /* named, so the emulated one will do */
    assert_device_id(device, "alpha:1");
    tess_device_release(device);
    device = open_device(runtime, NULL);
    assert_device_id(device, "beta:0");
    tess_device_release(device);
    tess_runtime_release(runtime);
}

static void test_broken_device_ends_the_list(void **state) {
    (void)state;
    fake.fail_call = 2;
    fake.fail_status = TESS_ERROR_NATIVE;
    tess_runtime *runtime = make_runtime();
    tess_backend_info info = {sizeof info};
    assert_status(TESS_OK, tess_runtime_backend(runtime, 3, &info));
    assert_int_equal(1, info.device_count);
    assert_status(TESS_OK, info.status);
    fake.calls = 1;
    assert_status(TESS_OK, tess_runtime_backend(runtime, 1, &info));
    assert_status(TESS_ERROR_NATIVE, info.status);
    assert_string_equal("fakeGetDevice: code 10", info.reason);
    fake.silent = true;
    fake.calls = 1;
    assert_status(TESS_OK, tess_runtime_backend(runtime, 0, &info));
    assert_string_equal("native call failed", info.reason);
    tess_runtime_release(runtime);
}

/* ------------------------------------------------------------------ opening */

static void assert_opens(tess_runtime *runtime, const char *id, const char *expected) {
    tess_device *device = open_device(runtime, id);
    assert_device_id(device, expected);
    tess_device_release(device);
}

static void assert_refused(tess_runtime *runtime, const char *id, tess_status status,
                           const char *text) {
    tess_device *untouched = (tess_device *)1, *device = untouched;
    assert_status(status,
                  tess_device_open(runtime, &(tess_device_desc){sizeof(tess_device_desc), .id = id},
                                   &device));
    assert_error_has(text);
    assert_ptr_equal(untouched, device);
}

static void test_open(void **state) {
    (void)state;
    tess_runtime *runtime = make_runtime();
    tess_device *device = NULL;
    assert_status(TESS_OK, tess_device_open(runtime, NULL, &device));
    assert_device_id(device, "alpha:0");
    tess_device_release(device);
    assert_opens(runtime, NULL, "alpha:0");
    assert_opens(runtime, "beta", "beta:0");
    assert_opens(runtime, "alpha:1", "alpha:1");
    assert_opens(runtime, "alpha:00001", "alpha:1");
    assert_opens(runtime, "delta,gamma,beta", "gamma:0");
    assert_opens(runtime, "alpha:2,beta:0", "beta:0");

    assert_refused(runtime, "", TESS_ERROR_INVALID, "tess_device_open: id: must not be empty");
    assert_refused(
        runtime, "omega", TESS_ERROR_INVALID,
        "tess_device_open: id: 'omega' names no backend; known are: gamma, beta, delta, alpha");
    assert_refused(runtime, "beta,omega", TESS_ERROR_INVALID, "omega");
    assert_refused(runtime, "beta,", TESS_ERROR_INVALID, "empty item");
    assert_refused(runtime, ",beta", TESS_ERROR_INVALID, "empty item");
    assert_refused(runtime, "beta:", TESS_ERROR_INVALID, "name:index");
    assert_refused(runtime, "beta:x", TESS_ERROR_INVALID, "name:index");
    assert_refused(runtime, "beta:-1", TESS_ERROR_INVALID, "name:index");
    assert_refused(runtime, "beta:0:0", TESS_ERROR_INVALID, "name:index");
    assert_refused(runtime, "beta:99999999999999999999", TESS_ERROR_INVALID, "name:index");
    assert_refused(runtime, " beta", TESS_ERROR_INVALID, "' beta' names no backend");
    assert_refused(runtime, "Beta", TESS_ERROR_INVALID, "names no backend");
    assert_refused(runtime, ":0", TESS_ERROR_INVALID, "names no backend");
    assert_refused(runtime, "delta", TESS_ERROR_UNAVAILABLE,
                   "tess_device_open: id: no device can be opened; devices here: alpha:0, alpha:1, "
                   "beta:0, gamma:0; tried: delta: fakeGetDeviceCount");
    assert_refused(runtime, "delta:0,beta:7", TESS_ERROR_UNAVAILABLE,
                   "beta:7: beta has only 1 device");

    assert_status(TESS_ERROR_INVALID, tess_device_open(runtime, NULL, NULL));
    assert_error_has("tess_device_open: device: must not be NULL");
    tess_device_desc desc = {sizeof desc, .flags = 1};
    assert_status(TESS_ERROR_INVALID, tess_device_open(runtime, &desc, &device));
    assert_error_has("flags");
    desc = (tess_device_desc){3};
    assert_status(TESS_ERROR_VERSION, tess_device_open(runtime, &desc, &device));
    tess_runtime_release(runtime);
    assert_int_equal(0, fake.live_devices);
}

static void test_open_skips_what_does_not_work(void **state) {
    (void)state;
    fake.open_status[FAKE_ALPHA][0] = TESS_ERROR_NATIVE;
    tess_runtime *runtime = make_runtime();
    assert_opens(runtime, NULL, "alpha:1");
    assert_opens(runtime, "alpha", "alpha:1");
    fake.open_status[FAKE_ALPHA][1] = TESS_ERROR_DEVICE_LOST;
    assert_opens(runtime, NULL, "beta:0");
    assert_opens(runtime, "alpha,gamma", "gamma:0");
    assert_refused(runtime, "alpha", TESS_ERROR_UNAVAILABLE,
                   "alpha:0: fakeOpen: code 10; alpha:1: fakeOpen: code 8");
    fake.silent = true;
    assert_refused(runtime, "alpha:1", TESS_ERROR_UNAVAILABLE, "alpha:1: device lost");
    /* Lack of memory says nothing about which device works, so no other device is opened
     * silently. */
    fake.silent = false;
    fake.open_status[FAKE_ALPHA][0] = TESS_ERROR_OUT_OF_MEMORY;
    assert_refused(runtime, NULL, TESS_ERROR_OUT_OF_MEMORY, "tess_device_open: alpha:0: fakeOpen");
    tess_runtime_release(runtime);
}

static void test_no_device_at_all(void **state) {
    (void)state;
    memset(fake.n_devices, 0, sizeof fake.n_devices);
    tess_runtime *runtime = make_runtime();
    assert_refused(runtime, NULL, TESS_ERROR_UNAVAILABLE,
                   "tess_device_open: id: no device can be opened; devices here: none; tried: "
                   "gamma: fakeGetDeviceCount");
    tess_runtime_release(runtime);

    /* Memory that runs out while the message is made shortens the message and changes nothing
     * else. */
    fake.n_devices[FAKE_BETA] = 1;
    tess_runtime_desc desc = {sizeof desc, .allocator = counting_allocator()};
    assert_status(TESS_OK, tess_runtime_create(&desc, &runtime));
    tess_backend_info info = {sizeof info};
    assert_status(TESS_OK, tess_runtime_backend(runtime, 2, &info));
    counting.fail_at = counting.number + 1;
    counting.sticky = true;
    assert_refused(runtime, "delta", TESS_ERROR_UNAVAILABLE, "devices here: none; tried: delta");
    counting.fail_at = 0;
    assert_refused(runtime, "delta", TESS_ERROR_UNAVAILABLE, "devices here: beta:0; tried: delta");
    tess_runtime_release(runtime);
    assert_int_equal(0, counting.live);
}

static void test_wrap(void **state) {
    (void)state;
    tess_runtime *runtime = make_runtime();
    int context = 0;
    tess_device *device = NULL;
    tess_device_desc desc = {sizeof desc, .native = &context};
    assert_status(TESS_ERROR_INVALID, tess_device_open(runtime, &desc, &device));
    assert_error_has("tess_device_open: id: must name the backend that `native` belongs to");
    desc.id = "alpha,beta";
    assert_status(TESS_ERROR_INVALID, tess_device_open(runtime, &desc, &device));
    desc.id = "omega";
    assert_status(TESS_ERROR_INVALID, tess_device_open(runtime, &desc, &device));
    desc.id = "delta";
    assert_status(TESS_ERROR_UNAVAILABLE, tess_device_open(runtime, &desc, &device));
    desc.id = "alpha:9";
    assert_status(TESS_ERROR_UNAVAILABLE, tess_device_open(runtime, &desc, &device));
    desc.id = "alpha:1";
    fake.open_status[FAKE_ALPHA][1] = TESS_ERROR_INVALID; /* the context is of another device */
    assert_status(TESS_ERROR_INVALID, tess_device_open(runtime, &desc, &device));
    assert_error_has("tess_device_open: alpha: fakeOpen: code 1");
    fake.silent = true;
    assert_status(TESS_ERROR_INVALID, tess_device_open(runtime, &desc, &device));
    assert_error_has("tess_device_open: alpha:1: invalid argument");
    fake.silent = false;
    fake.caps.buffer_kind = 9;
    desc.id = "gamma";
    assert_status(TESS_ERROR_NATIVE, tess_device_open(runtime, &desc, &device));
    assert_error_has("tess_device_open: gamma: query: buffer_kind");
    fake.caps.buffer_kind = 0;
    desc.id = "alpha:1";
    assert_null(device);
    fake.open_status[FAKE_ALPHA][1] = TESS_OK;
    assert_status(TESS_OK, tess_device_open(runtime, &desc, &device));
    assert_ptr_equal(&context, fake.wrapped);
    assert_device_id(device, "alpha:1");
    tess_device_release(device);
    desc.id = "beta";
    assert_status(TESS_OK, tess_device_open(runtime, &desc, &device));
    tess_device_release(device);
    tess_runtime_release(runtime);
}

static void test_nonsense_from_query(void **state) {
    (void)state;
    tess_runtime *runtime = make_runtime();
    fake.caps.buffer_kind = 9;
    assert_refused(runtime, "beta", TESS_ERROR_UNAVAILABLE,
                   "beta:0: query: buffer_kind has no legal value");
    fake.caps = (tess_caps){.workspace_align = 48};
    assert_refused(runtime, "beta", TESS_ERROR_UNAVAILABLE, "workspace_align");
    fake.caps = (tess_caps){.parallel_jobs = UINT32_MAX};
    assert_refused(runtime, "beta", TESS_ERROR_UNAVAILABLE, "parallel_jobs");
    assert_int_equal(0, fake.live_devices);
    fake.caps = (tess_caps){.workspace_align = 1};
    assert_opens(runtime, "beta", "beta:0");
    tess_runtime_release(runtime);
}

static void test_kernels(void **state) {
    (void)state;
    tess_runtime *runtime = make_runtime();
    tess_device *device = open_device(runtime, "alpha");
    tess_kernel_info info = {sizeof info};
    assert_status(TESS_OK, tess_device_kernel(device, 0, &info));
    assert_string_equal("alpha/fast", info.name);
    assert_status(TESS_OK, tess_device_kernel(device, 1, &info));
    assert_string_equal("alpha/plain", info.name);
    assert_status(TESS_ERROR_INVALID, tess_device_kernel(device, 2, &info));
    assert_error_has("tess_device_kernel: alpha: index: 2 is past the last kernel");
    assert_status(TESS_ERROR_INVALID, tess_device_kernel(device, 0, NULL));
    tess_device_release(device);
    tess_runtime_release(runtime);
}

static void test_release_in_any_order(void **state) {
    (void)state;
    tess_runtime_desc desc = {sizeof desc, .allocator = counting_allocator()};
    tess_runtime *runtime = NULL;
    assert_status(TESS_OK, tess_runtime_create(&desc, &runtime));
    tess_device *first = open_device(runtime, "alpha:0"), *second = open_device(runtime, "alpha:1");
    tess_runtime_release(runtime);
    tess_device_release(first);
    assert_device_id(second, "alpha:1");
    assert_true(counting.live > 0);
    tess_device_retain(second); /* as a plan does */
    tess_device_release(second);
    assert_device_id(second, "alpha:1");
    tess_device_release(second);
    assert_int_equal(0, counting.live);
    assert_int_equal(0, fake.live_devices);
}

/* ------------------------------------------------------------------ faults */

static void test_device_lost_is_sticky(void **state) {
    (void)state;
    tess_runtime *runtime = make_runtime();
    tess_device *lost = open_device(runtime, "alpha:0"), *other = open_device(runtime, "alpha:1");
    tess_buffer buffer = {0}, memory, kept;
    tess_device_info info = {sizeof info};
    tess_kernel_info kernel = {sizeof kernel};
    assert_status(TESS_OK, tess_alloc(other, 8, &memory));
    assert_status(TESS_OK, tess_alloc(lost, 8, &kept));
    fake.call_status[FAKE_ALPHA][0] = TESS_ERROR_DEVICE_LOST;
    assert_status(TESS_ERROR_DEVICE_LOST, tess_alloc(lost, 8, &buffer));
    assert_error_has("tess_alloc: alpha: fakeAlloc: code 8");
    fake.call_status[FAKE_ALPHA][0] = TESS_OK;
    fake.device_calls = 0;
    assert_status(TESS_ERROR_DEVICE_LOST, tess_alloc(lost, 8, &buffer));
    assert_error_has("tess_alloc: device: alpha:0 was lost in an earlier call");
    assert_status(TESS_ERROR_DEVICE_LOST, tess_copy(lost, buffer, buffer, 0));
    assert_status(TESS_ERROR_DEVICE_LOST, tess_wait(lost, 0));
    assert_status(TESS_ERROR_DEVICE_LOST, tess_device_query(lost, &info));
    assert_status(TESS_ERROR_DEVICE_LOST, tess_device_kernel(lost, 0, &kernel));
    assert_int_equal(0, fake.device_calls); /* the driver is not asked again */
    assert_status(TESS_OK, tess_free(lost, &kept));
    assert_int_equal(TESS_BUFFER_NONE, kept.kind);

    assert_status(TESS_OK, tess_wait(other, 1));
    assert_status(TESS_OK, tess_free(other, &memory));
    assert_int_equal(0, fake.live_buffers);
    tess_device *again = open_device(runtime, "alpha:0");
    assert_status(TESS_OK, tess_wait(again, 1));
    tess_device_release(again);
    tess_device_release(lost);
    tess_device_release(other);
    tess_runtime_release(runtime);
    assert_int_equal(0, fake.live_devices);
}

static void test_other_failures_are_not_sticky(void **state) {
    (void)state;
    tess_runtime *runtime = make_runtime();
    tess_device *device = open_device(runtime, "alpha:0");
    fake.call_status[FAKE_ALPHA][0] = TESS_ERROR_NATIVE;
    assert_status(TESS_ERROR_NATIVE, tess_wait(device, 1));
    assert_error_has("tess_wait: alpha: fakeWait: code 10");
    fake.silent = true;
    assert_status(TESS_ERROR_NATIVE, tess_wait(device, 1));
    assert_string_equal("tess_wait: alpha:0: native call failed", tess_last_error());
    fake.call_status[FAKE_ALPHA][0] = TESS_OK;
    assert_status(TESS_OK, tess_wait(device, 1));
    tess_device_release(device);
    tess_runtime_release(runtime);
}

/* One pass over the interface. Returns the first failure; what was made is released either way. */
static tess_status use_everything(tess_allocator allocator) {
    tess_runtime_desc desc = {sizeof desc, .allocator = allocator, .backend = "delta,alpha:1,alpha",
                              .kernel = "alpha/fast", .cpu_threads = 3};
    tess_runtime *runtime = NULL;
    tess_device *first = NULL, *second = NULL;
    tess_buffer buffer = {0};
    char data[16] = "data";
    tess_status status = tess_runtime_create(&desc, &runtime);
    tess_backend_info backend = {sizeof backend};
    tess_device_info info = {sizeof info};
    for (uint32_t n = 0; n < FAKE_COUNT && status == TESS_OK; n++)
        status = tess_runtime_backend(runtime, n, &backend);
    if (status == TESS_OK) status = tess_runtime_device(runtime, 0, &info);
    if (status == TESS_OK) status = tess_device_open(runtime, NULL, &first);
    if (status == TESS_OK)
        status = tess_device_open(
            runtime, &(tess_device_desc){sizeof(tess_device_desc), .id = "beta"}, &second);
    if (status == TESS_OK) status = tess_alloc(first, sizeof data, &buffer);
    if (status == TESS_OK)
        status = tess_copy(first, buffer, tess_host_buffer(data, sizeof data), sizeof data);
    if (status == TESS_OK) status = tess_wait(first, 1);
    if (buffer.kind != TESS_BUFFER_NONE && tess_free(first, &buffer) == TESS_ERROR_DEVICE_LOST) {
        /* The application's last resort: with the device its memory is gone. */
        free((void *)(uintptr_t)buffer.handle);
        fake.live_buffers--;
    }
    tess_device_release(second);
    tess_runtime_release(runtime);
    tess_device_release(first);
    return status;
}

static void test_every_allocation_fails_once(void **state) {
    (void)state;
    tess_allocator allocator = counting_allocator();
    assert_status(TESS_OK, use_everything(allocator));
    int total = counting.number;
    assert_true(total > 8);
    for (int sticky = 0; sticky < 2; sticky++)
        for (int k = 1; k <= total; k++) {
            allocator = counting_allocator();
            counting.fail_at = k;
            counting.sticky = sticky != 0;
            assert_status(TESS_ERROR_OUT_OF_MEMORY, use_everything(allocator));
            assert_non_null(strchr(tess_last_error(), ':'));
            assert_int_equal(0, counting.live);
            assert_int_equal(0, fake.live_devices);
            assert_int_equal(0, fake.live_buffers);
        }
}

/* After a failed allocation the same handles go on. */
static void test_objects_stay_usable(void **state) {
    (void)state;
    for (int k = 1;; k++) {
        tess_runtime_desc desc = {sizeof desc, .allocator = counting_allocator()};
        tess_runtime *runtime = NULL;
        tess_device *device = NULL;
        assert_status(TESS_OK, tess_runtime_create(&desc, &runtime));
        counting.fail_at = counting.number + k;
        tess_status status = tess_device_open(runtime, NULL, &device);
        bool failed = status != TESS_OK;
        if (failed) {
            assert_status(TESS_ERROR_OUT_OF_MEMORY, status);
            assert_status(TESS_OK, tess_device_open(runtime, NULL, &device));
        }
        assert_device_id(device, "alpha:0");
        tess_device_release(device);
        tess_runtime_release(runtime);
        assert_int_equal(0, counting.live);
        if (!failed) break;
    }
}

static void test_every_driver_call_fails(void **state) {
    (void)state;
    static const tess_status statuses[] = {TESS_ERROR_NATIVE, TESS_ERROR_DEVICE_LOST,
                                           TESS_ERROR_OUT_OF_MEMORY, TESS_ERROR_UNAVAILABLE};
    assert_status(TESS_OK, use_everything(counting_allocator()));
    int total = fake.calls;
    for (size_t s = 0; s < sizeof statuses / sizeof statuses[0]; s++)
        for (int mode = 0; mode < 4; mode++)
            for (int k = 1; k <= total; k++) {
                fake_reset();
                fake.fail_call = k;
                fake.fail_sticky = (mode & 1) != 0;
                fake.silent = (mode & 2) != 0;
                fake.fail_status = statuses[s];
                tess_status status = use_everything(counting_allocator());
                if (fake.fail_sticky) assert_int_not_equal(TESS_OK, status);
                if (status != TESS_OK) assert_non_null(strchr(tess_last_error(), ':'));
                assert_int_equal(0, counting.live);
                assert_int_equal(0, fake.live_devices);
                assert_int_equal(0, fake.live_buffers);
            }
}

static void swallow(void *user, const char *line) {
    (void)line;
    atomic_fetch_add((atomic_int *)user, 1);
}

static void test_host_memory(void **state) {
    (void)state;
    static const size_t alignments[] = {1, 8, 64, 4096};
    tess_runtime *runtime = make_runtime();
    for (size_t n = 0; n < 4; n++) {
        void *memory = tess_mem_alloc(runtime, 100, alignments[n]),
             *nothing = tess_mem_alloc(runtime, 0, alignments[n]);
        assert_true(memory != NULL && (uintptr_t)memory % alignments[n] == 0);
        assert_true(nothing != NULL && (uintptr_t)nothing % alignments[n] == 0);
        tess_mem_free(runtime, memory, 100);
        tess_mem_free(runtime, nothing, 0);
        assert_null(tess_mem_alloc(runtime, SIZE_MAX, alignments[n]));
    }
    tess_mem_free(runtime, NULL, 1);
    tess_runtime_release(runtime);
}

/* A thread may fail for a runtime that is gone, or that never logged, while others log. */
static void test_errors_go_to_their_runtime(void **state) {
    (void)state;
    atomic_int lines[2] = {0, 0};
    tess_runtime *logging[2], *quiet = make_runtime();
    for (int n = 0; n < 2; n++) {
        tess_runtime_desc desc = {sizeof desc, .verbose = "errors", .log = swallow,
                                  .log_user = &lines[n]};
        assert_status(TESS_OK, tess_runtime_create(&desc, &logging[n]));
    }
    assert_status(TESS_ERROR_INVALID, tess_device_open(quiet, NULL, NULL));
    assert_true(lines[0] == 0 && lines[1] == 0);
    assert_status(TESS_ERROR_INVALID, tess_device_open(logging[0], NULL, NULL));
    assert_true(lines[0] == 1 && lines[1] == 0);
    assert_status(TESS_ERROR_INVALID, tess_device_open(logging[1], NULL, NULL));
    assert_true(lines[0] == 1 && lines[1] == 1);
    assert_status(TESS_ERROR_INVALID, tess_device_open(NULL, NULL, NULL));
    assert_status(TESS_ERROR_INVALID, tess_device_open(logging[0], NULL, NULL));
    /* Without a handle it is nobody's. */
    tess_layout_info layout = {sizeof layout};
    uint64_t first, count;
    assert_status(TESS_ERROR_INVALID, tess_run(NULL, NULL));
    assert_status(TESS_ERROR_INVALID, tess_plan_range(NULL, 0, &first, &count));
    assert_status(TESS_ERROR_INVALID, tess_layout_query(NULL, &layout));
    assert_true(lines[0] == 2 && lines[1] == 1);
    tess_runtime_release(logging[0]);
    tess_fail(TESS_ERROR_INVALID, "a failure after the runtime of this thread is gone");
    assert_true(lines[0] == 2 && lines[1] == 1);
    tess_runtime_release(logging[1]);
    tess_runtime_release(quiet);
}

static void test_thousand_cycles_are_flat(void **state) {
    (void)state;
    tess_allocator allocator = counting_allocator();
    for (int n = 0; n < 1000; n++) assert_status(TESS_OK, use_everything(allocator));
    assert_int_equal(0, counting.live);
}

/* ------------------------------------------------------------------ fork and threads */

static atomic_bool stop;

/* Fails, and is logged, again and again, so that a fork is likely to come while the lock of the log
 * is held. */
static void *keep_failing(void *runtime) {
    while (!stop) tess_device_open(runtime, NULL, NULL);
    return NULL;
}

static void test_fork(void **state) {
    (void)state;
    atomic_int lines = 0;
    tess_runtime_desc desc = {sizeof desc,         .allocator = counting_allocator(),
                              .verbose = "errors", .log = swallow,
                              .log_user = &lines,  .backend = "alpha"};
    tess_runtime *runtime = NULL;
    assert_status(TESS_OK, tess_runtime_create(&desc, &runtime));
    tess_device *device = open_device(runtime, NULL);
    pthread_t thread;
    stop = false;
    assert_int_equal(0, pthread_create(&thread, NULL, keep_failing, runtime));
    for (int n = 0; n < 5; n++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            tess_device_info info = {sizeof info};
            tess_setting_info setting = {sizeof setting};
            tess_buffer buffer = {0};
            tess_device *opened = NULL;
            fake.device_calls = 0;
            CHILD(tess_runtime_device(runtime, 0, &info) == TESS_ERROR_INVALID);
            CHILD(strstr(tess_last_error(),
                         "tess_runtime_device: the handle was made before fork()") != NULL);
            CHILD(tess_runtime_setting(runtime, 0, &setting) == TESS_ERROR_INVALID);
            CHILD(tess_device_open(runtime, NULL, &opened) == TESS_ERROR_INVALID);
            CHILD(tess_device_query(device, &info) == TESS_ERROR_INVALID);
            CHILD(tess_alloc(device, 1, &buffer) == TESS_ERROR_INVALID);
            CHILD(tess_wait(device, 1) == TESS_ERROR_INVALID);
            int live = fake.live_devices;
            tess_device_release(device);
            tess_runtime_release(runtime);
            CHILD(fake.live_devices == live && fake.device_calls == 0); /* no backend was called */
            /* A runtime of the child's own works. */
            tess_runtime *own = NULL;
            CHILD(tess_runtime_create(NULL, &own) == TESS_OK);
            CHILD(tess_device_open(own, NULL, &opened) == TESS_OK);
            CHILD(tess_wait(opened, 1) == TESS_OK);
            tess_device_release(opened);
            tess_runtime_release(own);
            /* What the parent's backend owns is not given back here, on purpose; another program's
             * exit keeps leak checkers from counting it. */
            execlp("true", "true", (char *)NULL);
            _exit(0);
        }
        int result = -1;
        assert_int_equal(child, waitpid(child, &result, 0));
        assert_int_equal(0, result);
    }
    stop = true;
    pthread_join(thread, NULL);
    assert_true(lines > 0);
    assert_status(TESS_OK, tess_wait(device, 1)); /* the parent goes on */
    tess_device_release(device);
    tess_runtime_release(runtime);
    assert_int_equal(0, counting.live);
}

static pthread_barrier_t barrier;

static void *race(void *argument) {
    tess_runtime *runtime = argument;
    tess_device_info info = {sizeof info};
    tess_backend_info backend = {sizeof backend};
    tess_device *device = NULL;
    intptr_t good = 0;
    pthread_barrier_wait(&barrier);
    good += tess_runtime_device(runtime, 3, &info) == TESS_OK && strcmp(info.id, "gamma:0") == 0;
    good += tess_runtime_backend(runtime, 3, &backend) == TESS_OK && backend.device_count == 2;
    good += tess_device_open(runtime,
                             &(tess_device_desc){sizeof(tess_device_desc), .id = "delta,alpha:1"},
                             &device) == TESS_OK;
    good += tess_wait(device, 1) == TESS_OK;
    good += tess_runtime_device(runtime, 99, &info) == TESS_ERROR_INVALID;
    tess_device_release(device);
    return (void *)good;
}

static void test_threads_race_on_the_first_probe(void **state) {
    (void)state;
    enum { THREADS = 4 };
    for (int round = 0; round < 50; round++) {
        pthread_t threads[THREADS];
        atomic_int lines = 0;
        fake_reset();
        tess_runtime_desc desc = {sizeof desc, .verbose = "all", .log = swallow,
                                  .log_user = &lines};
        tess_runtime *runtime = NULL;
        assert_status(TESS_OK, tess_runtime_create(&desc, &runtime));
        pthread_barrier_init(&barrier, NULL, THREADS);
        for (int n = 0; n < THREADS; n++)
            assert_int_equal(0, pthread_create(&threads[n], NULL, race, runtime));
        for (int n = 0; n < THREADS; n++) {
            void *good = NULL;
            pthread_join(threads[n], &good);
            assert_int_equal(5, (intptr_t)good);
        }
        pthread_barrier_destroy(&barrier);
        assert_int_equal(3, fake.list_calls[FAKE_ALPHA]);
        assert_int_equal(1, fake.list_calls[FAKE_DELTA]);
        assert_true(lines > THREADS);
        tess_runtime_release(runtime);
    }
}

int main(void) {
    return RUN_TESTS_BETWEEN(
        fake_setup, NULL, TEST(test_status), TEST(test_last_error_is_per_thread),
        TEST(test_descriptor_versions), TEST(test_info_versions), TEST(test_create_arguments),
        TEST(test_null_handles), TEST(test_enumeration), TEST(test_preference_within_a_backend),
        TEST(test_broken_device_ends_the_list), TEST(test_open),
        TEST(test_open_skips_what_does_not_work), TEST(test_no_device_at_all), TEST(test_wrap),
        TEST(test_nonsense_from_query), TEST(test_kernels), TEST(test_release_in_any_order),
        TEST(test_device_lost_is_sticky), TEST(test_other_failures_are_not_sticky),
        TEST(test_every_allocation_fails_once), TEST(test_objects_stay_usable),
        TEST(test_every_driver_call_fails), TEST(test_host_memory),
        TEST(test_errors_go_to_their_runtime), TEST(test_thousand_cycles_are_flat), TEST(test_fork),
        TEST(test_threads_race_on_the_first_probe));
}
