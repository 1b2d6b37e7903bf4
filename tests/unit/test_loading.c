/* SPDX-License-Identifier: Apache-2.0 */
/* Backends from libraries outside the tree: good ones are used, bad ones are explained, and none is
 * searched for. */
#include "fixtures/fake_backend.h"

#include <dlfcn.h>

#include "common.h"

#define FIXTURE(name) TESSERA_FIXTURE_DIR "/" name ".so"

static tess_runtime *load(const char *paths) {
    tess_runtime_desc desc = {sizeof desc, .backend_path = paths, .cpu_threads = 5};
    tess_runtime *runtime = NULL;
    assert_status(TESS_OK, tess_runtime_create(&desc, &runtime));
    return runtime;
}

/* Backend `index` after those of the registry. */
static tess_backend_info loaded(tess_runtime *runtime, uint32_t index) {
    tess_backend_info info = {sizeof info};
    assert_status(TESS_OK, tess_runtime_backend(runtime, FAKE_COUNT + index, &info));
    return info;
}

static void assert_bad(const char *path, const char *name, tess_status status, const char *reason) {
    tess_runtime *runtime = load(path);
    tess_backend_info info = loaded(runtime, 0);
    assert_string_equal(name, info.name);
    assert_status(status, info.status);
    assert_int_equal(0, info.device_count);
    if (strncmp(info.reason, path, strlen(path)) != 0 || strstr(info.reason, reason) == NULL)
        fail_msg("'%s' and '%s' are not in '%s'", path, reason, info.reason);
    /* The rest of the runtime works. */
    tess_device_info device = {sizeof device};
    assert_status(TESS_OK, tess_runtime_device(runtime, 3, &device));
    assert_status(TESS_ERROR_INVALID, tess_runtime_device(runtime, 4, &device));
    tess_runtime_release(runtime);
}

static void test_good_library(void **state) {
    (void)state;
    tess_runtime *runtime = load(FIXTURE("plugin_good"));
    tess_backend_info info = loaded(runtime, 0);
    assert_string_equal("outside", info.name);
    assert_status(TESS_OK, info.status);
    assert_int_equal(1, info.device_count);
    /* It ranks by kind like any other: after the GPUs of the registry, before the CPU. */
    tess_device_info device = {sizeof device};
    assert_status(TESS_OK, tess_runtime_device(runtime, 2, &device));
    assert_string_equal("outside:0", device.id);
    assert_string_equal("outside", device.backend);
    assert_string_equal("A device from outside, 5", device.name);
    tess_device *opened = NULL;
    assert_status(TESS_OK,
                  tess_device_open(
                      runtime, &(tess_device_desc){sizeof(tess_device_desc), .id = "delta,outside"},
                      &opened));
    assert_status(TESS_OK, tess_wait(opened, 0));
    tess_buffer buffer;
    assert_status(TESS_ERROR_OUT_OF_MEMORY, tess_alloc(opened, 1, &buffer));
    assert_error_has("tess_alloc: outside: alloc: none");
    tess_device_release(opened);
    tess_runtime_release(runtime);
}

/* Symbols that a backend exports must not replace any in the process. */
static void test_symbols_stay_inside(void **state) {
    (void)state;
    tess_runtime *runtime = load(FIXTURE("plugin_good"));
    assert_status(TESS_OK, loaded(runtime, 0).status);
    /* NULL: what the program and its own libraries see */
    assert_null(dlsym(NULL, TESS_BACKEND_ENTRY));
    tess_runtime_release(runtime);
}

static void capture(void *user, const char *line) {
    assert_null(strchr(line, '\n'));
    if (strstr(line, "listed") != NULL)
        *(int *)user = strcmp(line, "device: outside: listed with 1 threads") == 0;
}

static void test_it_may_log(void **state) {
    (void)state;
    static const char *const verbose[] = {"device", "plan"};
    for (int n = 0; n < 2; n++) {
        int heard = 0;
        tess_runtime_desc desc = {sizeof desc, .backend_path = FIXTURE("plugin_good"),
                                  .cpu_threads = 1, .verbose = verbose[n], .log = capture};
        desc.log_user = &heard;
        tess_runtime *runtime = NULL;
        assert_status(TESS_OK, tess_runtime_create(&desc, &runtime));
        assert_status(TESS_OK, loaded(runtime, 0).status);
        assert_int_equal(n == 0, heard);
        tess_runtime_release(runtime);
    }
}

static void test_settings_may_name_it(void **state) {
    (void)state;
    setenv("TESSERA_BACKEND_PATH", FIXTURE("plugin_good"), 1);
    setenv("TESSERA_BACKEND", "outside:0", 1);
    setenv("TESSERA_KERNEL", "outside/fast", 1);
    tess_runtime *runtime = NULL;
    tess_device *device = NULL;
    assert_status(TESS_OK, tess_runtime_create(NULL, &runtime));
    assert_status(TESS_OK, tess_device_open(runtime, NULL, &device));
    tess_device_release(device);
    tess_runtime_release(runtime);
}

static void test_bad_libraries(void **state) {
    (void)state;
    char text[] = "/tmp/tessera-not-a-library-XXXXXX";
    int file = mkstemp(text);
    assert_true(file >= 0);
    assert_int_equal(6, write(file, "hello\n", 6));
    close(file);
    assert_bad(text, strrchr(text, '/') + 1, TESS_ERROR_UNAVAILABLE, ": ");
    unlink(text);
    assert_bad("/nowhere/libmissing.so", "libmissing.so", TESS_ERROR_UNAVAILABLE, "No such file");
    assert_bad("/tmp/", "/tmp/", TESS_ERROR_UNAVAILABLE, ": ");
    assert_bad("/nowhere/a-file-name-of-more-than-31-characters.so",
               "a-file-name-of-more-than-31-cha", TESS_ERROR_UNAVAILABLE, "No such file");
    assert_bad(FIXTURE("plugin_symbol"), "plugin_symbol.so", TESS_ERROR_INVALID,
               "does not export tess_backend_entry");
    assert_bad(FIXTURE("plugin_null"), "plugin_null.so", TESS_ERROR_INVALID, "returned NULL");
    assert_bad(FIXTURE("plugin_abi"), "plugin_abi.so", TESS_ERROR_VERSION,
               "it has backend ABI 1, but this library needs 2");
    assert_bad(FIXTURE("plugin_size"), "plugin_size.so", TESS_ERROR_VERSION, "struct_size is 16");
    assert_bad(FIXTURE("plugin_nameless"), "plugin_nameless.so", TESS_ERROR_INVALID,
               "its name is not");
    assert_bad(FIXTURE("plugin_upper"), "plugin_upper.so", TESS_ERROR_INVALID, "its name is not");
    assert_bad(FIXTURE("plugin_comma"), "plugin_comma.so", TESS_ERROR_INVALID, "its name is not");
    assert_bad(FIXTURE("plugin_long"), "plugin_long.so", TESS_ERROR_INVALID, "its name is not");
    assert_bad(FIXTURE("plugin_incomplete"), "plugin_incomplete.so", TESS_ERROR_INVALID,
               "a function of the backend is NULL");
    assert_bad(FIXTURE("plugin_clash"), "plugin_clash.so", TESS_ERROR_INVALID,
               "its name 'beta' is taken");
}

/* A backend may have a tune table; one that was built before there were tables still works. */
static void test_tables(void **state) {
    (void)state;
    tess_rule_info rule = {sizeof rule};
    tess_runtime *runtime = load(FIXTURE("plugin_older"));
    assert_status(TESS_OK, loaded(runtime, 0).status);
    assert_status(TESS_ERROR_INVALID, tess_runtime_rule(runtime, NULL, 0, &rule));
    tess_runtime_release(runtime);
    runtime = load(FIXTURE("plugin_tune"));
    assert_status(TESS_OK, loaded(runtime, 0).status);
    assert_status(TESS_OK, tess_runtime_rule(runtime, NULL, 0, &rule));
    assert_string_equal("outside", rule.table);
    assert_string_equal("kernel=outside/fast basis=reasoned", rule.text);
    tess_runtime_release(runtime);
    assert_bad(FIXTURE("plugin_tune_bad"), "plugin_tune_bad.so", TESS_ERROR_INVALID,
               ": its tune table: line 2: kernel: 'other/fast' is not the backend's own");
}

static void test_several_libraries(void **state) {
    (void)state;
    tess_runtime *runtime = load(FIXTURE("plugin_good") ":" FIXTURE("plugin_abi") ":" FIXTURE(
        "plugin_good") ":" FIXTURE("plugin_other"));
    assert_string_equal("outside", loaded(runtime, 0).name);
    assert_status(TESS_ERROR_VERSION, loaded(runtime, 1).status);
    assert_status(TESS_ERROR_INVALID, loaded(runtime, 2).status);
    assert_string_equal("plugin_good.so", loaded(runtime, 2).name);
    assert_string_equal("other-1", loaded(runtime, 3).name);
    tess_backend_info info = {sizeof info};
    assert_status(TESS_ERROR_INVALID, tess_runtime_backend(runtime, FAKE_COUNT + 4, &info));
    /* A bad library may be named, and is then skipped like any backend that is not available. */
    tess_device *device = NULL;
    tess_device_info opened = {sizeof opened};
    assert_status(TESS_OK, tess_device_open(runtime,
                                            &(tess_device_desc){sizeof(tess_device_desc),
                                                                .id = "plugin_abi.so,other-1"},
                                            &device));
    assert_status(TESS_OK, tess_device_query(device, &opened));
    assert_string_equal("other-1:0", opened.id);
    tess_device_release(device);
    assert_status(TESS_ERROR_UNAVAILABLE,
                  tess_device_open(runtime,
                                   &(tess_device_desc){sizeof(tess_device_desc),
                                                       .id = "plugin_abi.so:0", .native = &opened},
                                   &device));
    assert_error_has("backend ABI 1");
    tess_runtime_release(runtime);
}

/* A library in the current directory is not opened, whatever its name is in the setting. */
static void test_current_directory(void **state) {
    (void)state;
    static const char *const paths[] = {"plugin_good.so", "./plugin_good.so", ".", ":",
                                        FIXTURE("plugin_other") ":plugin_good.so"};
    assert_int_equal(0, chdir(TESSERA_FIXTURE_DIR));
    assert_int_equal(0, access("plugin_good.so", R_OK));
    for (size_t n = 0; n < sizeof paths / sizeof paths[0]; n++) {
        setenv("TESSERA_BACKEND_PATH", paths[n], 1);
        tess_runtime *runtime = NULL;
        assert_status(TESS_ERROR_INVALID, tess_runtime_create(NULL, &runtime));
        assert_error_has("tess_runtime_create: TESSERA_BACKEND_PATH: ");
        assert_error_has("is not an absolute path");
        assert_null(runtime);
    }
    unsetenv("TESSERA_BACKEND_PATH");
    /* Nor is anything found without the setting. */
    tess_runtime *runtime = load(NULL);
    tess_backend_info info = {sizeof info};
    assert_status(TESS_ERROR_INVALID, tess_runtime_backend(runtime, FAKE_COUNT, &info));
    tess_runtime_release(runtime);
}

static void test_allocations_fail(void **state) {
    (void)state;
    tess_status status = TESS_ERROR_OUT_OF_MEMORY;
    for (int k = 1; status != TESS_OK; k++) {
        tess_runtime_desc desc = {sizeof desc, .allocator = counting_allocator(),
                                  .backend_path = FIXTURE("plugin_good") ":" FIXTURE("plugin_abi")};
        tess_runtime *runtime = NULL;
        tess_device *device = NULL;
        counting.fail_at = k;
        status = tess_runtime_create(&desc, &runtime);
        if (status == TESS_OK)
            status = tess_device_open(
                runtime, &(tess_device_desc){sizeof(tess_device_desc), .id = "outside"}, &device);
        if (status != TESS_OK) assert_status(TESS_ERROR_OUT_OF_MEMORY, status);
        tess_device_release(device);
        tess_runtime_release(runtime);
        assert_int_equal(0, counting.live);
    }
}

int main(void) {
    return RUN_TESTS_BETWEEN(fake_setup, NULL, TEST(test_good_library),
                             TEST(test_symbols_stay_inside), TEST(test_it_may_log),
                             TEST(test_settings_may_name_it), TEST(test_bad_libraries),
                             TEST(test_tables), TEST(test_several_libraries),
                             TEST(test_current_directory), TEST(test_allocations_fail));
}
