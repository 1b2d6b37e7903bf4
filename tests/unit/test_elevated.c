/* SPDX-License-Identifier: Apache-2.0 */
/* A process with more rights than its user: backends that open drivers are not opened until a
 * descriptor names them. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "fixtures/fake_backend.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/auxv.h>

static int elevated;

/* Stands before the C library's, for the core in this program. */
unsigned long getauxval(unsigned long type) {
    unsigned long (*real)(unsigned long);
    if (type == AT_SECURE) return (unsigned long)elevated;
    *(void **)&real = dlsym(RTLD_NEXT, "getauxval");
    return real(type);
}

static int setup(void **state) {
    elevated = 1;
    return fake_setup(state);
}

static tess_runtime *runtime_for(const char *backend) {
    tess_runtime *runtime = NULL;
    const tess_runtime_desc desc = {.struct_size = sizeof desc,
                                    .allocator = counting_allocator(),
                                    .backend = backend,
                                    .log = test_log_nothing};
    assert_ok(tess_runtime_create(&desc, &runtime));
    return runtime;
}

static void release(tess_runtime *runtime) {
    tess_runtime_release(runtime);
    assert_int_equal(counting.live, 0);
}

/* Opens a device, whose id must be `wanted`; NULL: there must be none. */
static void opens(tess_runtime *runtime, const char *id, const char *wanted) {
    tess_device *device = NULL;
    tess_device_info info = {sizeof info};
    const tess_device_desc desc = {.struct_size = sizeof desc, .id = id};
    const tess_status status = tess_device_open(runtime, &desc, &device);
    assert_int_equal(status, wanted ? TESS_OK : TESS_ERROR_UNAVAILABLE);
    if (!wanted) return;
    assert_ok(tess_device_query(device, &info));
    assert_string_equal(info.id, wanted);
    tess_device_release(device);
}

static void listed(int alpha, int beta, int gamma, int delta) {
    const int wanted[FAKE_COUNT] = {alpha, beta, gamma, delta};
    for (int n = 0; n < FAKE_COUNT; n++)
        if ((fake.list_calls[n] != 0) != wanted[n])
            fail_msg("%s was %s", fake_names[n], wanted[n] ? "left alone" : "listed");
}

static uint32_t count_devices(tess_runtime *runtime) {
    tess_device_info info = {sizeof info};
    uint32_t count = 0;
    while (tess_runtime_device(runtime, count, &info) == TESS_OK) count++;
    return count;
}

static void test_nothing_is_named(void **state) {
    (void)state;
    tess_runtime *runtime = runtime_for(NULL);
    tess_backend_info info = {sizeof info};
    opens(runtime, NULL, "beta:0");
    assert_int_equal(count_devices(runtime), 1);
    for (uint32_t n = 0; tess_runtime_backend(runtime, n, &info) == TESS_OK; n++) {
        const int cpu = strcmp(info.name, "beta") == 0;
        assert_int_equal(info.status, cpu ? TESS_OK : TESS_ERROR_UNAVAILABLE);
        if (!cpu) assert_non_null(strstr(info.reason, "more rights than its user"));
    }
    listed(0, 1, 0, 0);
    release(runtime);
}

static void test_the_device_names_it(void **state) {
    (void)state;
    tess_runtime *runtime = runtime_for(NULL);
    opens(runtime, NULL, "beta:0");
    opens(runtime, "alpha", "alpha:0");
    listed(1, 1, 0, 0);
    assert_int_equal(count_devices(runtime), 3); /* two of alpha's */
    opens(runtime, "delta,gamma:0", "gamma:0");
    listed(1, 1, 1, 1);
    release(runtime);
}

/* The message lists what there is, and to find that out nothing else is opened. */
static void test_a_name_that_fails_opens_no_other(void **state) {
    (void)state;
    tess_runtime *runtime = runtime_for(NULL);
    opens(runtime, "delta", NULL);
    listed(0, 1, 0, 1);
    assert_error_has("devices here: beta:0;");
    release(runtime);
}

static void test_the_runtime_names_it(void **state) {
    (void)state;
    tess_runtime *runtime = runtime_for("gamma,alpha:1");
    opens(runtime, NULL, "gamma:0");
    opens(runtime, "alpha:1", "alpha:1");
    assert_int_equal(count_devices(runtime), 4);
    listed(1, 1, 1, 0);
    release(runtime);
}

/* One thread lists what there is while another names a backend. */
static void *list_again_and_again(void *runtime) {
    for (int n = 0; n < 50; n++)
        if (count_devices(runtime) < 1) return NULL;
    return runtime;
}

static void test_threads_list_and_name(void **state) {
    (void)state;
    for (int round = 0; round < 20; round++) {
        tess_runtime *runtime = runtime_for(NULL);
        pthread_t thread;
        void *listed_well;
        assert_int_equal(pthread_create(&thread, NULL, list_again_and_again, runtime), 0);
        opens(runtime, "alpha", "alpha:0");
        opens(runtime, "gamma", "gamma:0");
        opens(runtime, NULL, "alpha:0");
        assert_int_equal(pthread_join(thread, &listed_well), 0);
        assert_ptr_equal(listed_well, runtime);
        assert_int_equal(count_devices(runtime), 4);
        release(runtime);
    }
}

static void test_ordinary_rights(void **state) {
    (void)state;
    elevated = 0;
    tess_runtime *runtime = runtime_for(NULL);
    opens(runtime, NULL, "alpha:0");
    listed(1, 1, 1, 1);
    release(runtime);
}

int main(void) {
    return RUN_TESTS_BETWEEN(
        setup, NULL, TEST(test_nothing_is_named), TEST(test_the_device_names_it),
        TEST(test_a_name_that_fails_opens_no_other), TEST(test_the_runtime_names_it),
        TEST(test_threads_list_and_name), TEST(test_ordinary_rights));
}
