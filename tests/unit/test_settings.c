/* SPDX-License-Identifier: Apache-2.0 */
/* The settings of a runtime: where values come from, which are refused, and what the log shows. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "fixtures/fake_backend.h"

#include <sched.h>
#include <sys/stat.h>

#include "common.h"
#include "runtime.h"

static tess_status create(tess_runtime_desc desc, tess_runtime **runtime) {
    desc.struct_size = sizeof desc;
    return tess_runtime_create(&desc, runtime);
}

static tess_setting_info find(tess_runtime *runtime, const char *name) {
    tess_setting_info info = {sizeof info};
    for (uint32_t n = 0; tess_runtime_setting(runtime, n, &info) == TESS_OK; n++)
        if (strcmp(info.name, name) == 0) return info;
    fail_msg("no setting %s", name);
    return info;
}

static void assert_setting(tess_runtime *runtime, const char *name, const char *value,
                           const char *source) {
    tess_setting_info info = find(runtime, name);
    assert_string_equal(value, info.value);
    assert_string_equal(source, info.source);
    assert_string_equal(value, tess_setting(runtime, name));
}

static void assert_refused(tess_runtime_desc desc, const char *text) {
    tess_runtime *runtime = NULL;
    desc.allocator = counting_allocator();
    assert_status(TESS_ERROR_INVALID, create(desc, &runtime));
    assert_error_has(text);
    assert_null(runtime);
    assert_int_equal(0, counting.live);
}

/* The value of an environment variable is refused under its own name. */
static void assert_environment_refused(const char *name, const char *value, const char *text) {
    setenv(name, value, 1);
    assert_refused((tess_runtime_desc){0}, name);
    assert_error_has(text);
    unsetenv(name);
}

static void test_defaults(void **state) {
    (void)state;
    static const char *const names[] = {
        "TESSERA_BACKEND",   "TESSERA_KERNEL",       "TESSERA_VERBOSE",    "TESSERA_CACHE_DIR",
        "TESSERA_TUNE_FILE", "TESSERA_BACKEND_PATH", "TESSERA_CPU_THREADS"};
    tess_runtime *runtime = NULL;
    assert_status(TESS_OK, create((tess_runtime_desc){0}, &runtime));
    tess_setting_info info = {sizeof info};
    for (uint32_t n = 0; n < 7; n++) {
        assert_status(TESS_OK, tess_runtime_setting(runtime, n, &info));
        assert_string_equal(names[n], info.name);
        assert_string_equal("default", info.source);
        assert_true(strlen(info.meaning) > 20 && info.meaning[strlen(info.meaning) - 1] == '.');
        if (n != 6) assert_string_equal("", info.value);
    }
    assert_status(TESS_ERROR_INVALID, tess_runtime_setting(runtime, 7, &info));
    assert_error_has("tess_runtime_setting: index: 7 is past the last");
    assert_status(TESS_ERROR_INVALID, tess_runtime_setting(runtime, 0, NULL));
    assert_string_equal("", tess_setting(runtime, "TESSERA_NO_SUCH_SETTING"));

    cpu_set_t set;
    assert_int_equal(0, sched_getaffinity(0, sizeof set, &set));
    unsigned long threads = strtoul(tess_setting(runtime, "TESSERA_CPU_THREADS"), NULL, 10);
    assert_in_range(threads, 1, CPU_COUNT(&set));
    tess_runtime_release(runtime);
}

static void test_affinity_limits_the_threads(void **state) {
    (void)state;
    cpu_set_t before, one;
    assert_int_equal(0, sched_getaffinity(0, sizeof before, &before));
    CPU_ZERO(&one);
    for (int n = 0; n < CPU_SETSIZE; n++)
        if (CPU_ISSET(n, &before)) {
            CPU_SET(n, &one);
            break;
        }
    assert_int_equal(0, sched_setaffinity(0, sizeof one, &one));
    assert_int_equal(1, tess_cpus_usable());
    assert_int_equal(0, sched_setaffinity(0, sizeof before, &before));
}

/* The setting is a bound: what a backend is told is never more than the CPUs. */
static void test_cpus_limit_the_setting(void **state) {
    (void)state;
    static const uint32_t asked[] = {0, 1, 2, 3, 4, 256, 1024};
    test_pretend_cpus(3);
    const uint32_t cpus = tess_cpus_usable(); /* 3, unless a quota allows fewer */
    assert_in_range(cpus, 1, 3);
    for (size_t n = 0; n < sizeof asked / sizeof asked[0]; n++) {
        tess_runtime *runtime = NULL;
        assert_status(TESS_OK, create((tess_runtime_desc){.cpu_threads = asked[n]}, &runtime));
        assert_int_equal(asked[n] != 0 && asked[n] < cpus ? asked[n] : cpus,
                         runtime->settings.cpu_threads);
        tess_runtime_release(runtime);
    }
    test_pretend_cpus(0);
}

static void put(const char *folder, const char *name, const char *text) {
    char path[300];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (text == NULL)
        assert_int_equal(0, mkdir(path, 0700));
    else {
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        fputs(text, file);
        fclose(file);
    }
}

static void test_quota_limits_the_threads(void **state) {
    (void)state;
    char mount[] = "/tmp/tessera-groups-XXXXXX", member[100], command[100];
    assert_non_null(mkdtemp(mount));
    snprintf(member, sizeof member, "%s/cgroup", mount);
    assert_int_equal(UINT32_MAX, tess_cpus_quota(member, mount)); /* no such files */
    put(mount, "cgroup", "12:pids:/x\n0::/outer/inner\n");
    put(mount, "outer", NULL);
    put(mount, "outer/inner", NULL);
    assert_int_equal(UINT32_MAX, tess_cpus_quota(member, mount));
    put(mount, "outer/inner/cpu.max", "max 100000\n");
    assert_int_equal(UINT32_MAX, tess_cpus_quota(member, mount));
    put(mount, "cpu.max", "900000 100000\n");
    assert_int_equal(9, tess_cpus_quota(member, mount));
    put(mount, "outer/cpu.max", "250000 100000\n");
    assert_int_equal(3, tess_cpus_quota(member, mount)); /* two and a half, rounded up */
    put(mount, "outer/inner/cpu.max", "1000 100000\n");
    assert_int_equal(1, tess_cpus_quota(member, mount));
    put(mount, "cgroup", "0::/\n");
    assert_int_equal(9, tess_cpus_quota(member, mount));
    put(mount, "cpu.max", "nonsense\n");
    assert_int_equal(UINT32_MAX, tess_cpus_quota(member, mount));
    put(mount, "cpu.max", "9223372036854775807 1\n");
    assert_int_equal(TESS_CPU_THREADS_MOST, tess_cpus_quota(member, mount));
    put(mount, "cgroup", "4:cpu:/x\n");
    put(mount, "cpu", NULL);
    put(mount, "cpu/cpu.cfs_quota_us", "400000\n");
    assert_int_equal(UINT32_MAX, tess_cpus_quota(member, mount));
    put(mount, "cpu/cpu.cfs_period_us", "100000\n");
    assert_int_equal(4, tess_cpus_quota(member, mount));
    put(mount, "cpu/cpu.cfs_quota_us", "-1\n");
    assert_int_equal(UINT32_MAX, tess_cpus_quota(member, mount));
    snprintf(command, sizeof command, "rm -r %s", mount);
    assert_int_equal(0, system(command));
}

/* A tune file without rules: the runtime reads the file that it is given. */
static const char *tune_file(void) {
    static char path[64];
    snprintf(path, sizeof path, "/tmp/tessera-settings-tune-XXXXXX");
    int file = mkstemp(path);
    assert_true(file >= 0);
    assert_int_equal(15, write(file, "tessera-tune 1\n", 15));
    close(file);
    return path;
}

static void test_environment(void **state) {
    (void)state;
    const char *tune = tune_file();
    setenv("TESSERA_BACKEND", "delta,beta:0", 1);
    setenv("TESSERA_KERNEL", "beta/fast", 1);
    setenv("TESSERA_CACHE_DIR", "/tmp/cache", 1);
    setenv("TESSERA_TUNE_FILE", tune, 1);
    setenv("TESSERA_CPU_THREADS", "1024", 1);
    setenv("TESSERA_VERBOSE", "", 1);
    tess_runtime *runtime = NULL;
    assert_status(TESS_OK, create((tess_runtime_desc){0}, &runtime));
    setenv("TESSERA_BACKEND", "alpha", 1); /* too late */
    setenv("TESSERA_CPU_THREADS", "2", 1);
    assert_setting(runtime, "TESSERA_BACKEND", "delta,beta:0", "environment");
    assert_setting(runtime, "TESSERA_KERNEL", "beta/fast", "environment");
    assert_setting(runtime, "TESSERA_CACHE_DIR", "/tmp/cache", "environment");
    assert_setting(runtime, "TESSERA_TUNE_FILE", tune, "environment");
    unlink(tune); /* it was read once */
    assert_setting(runtime, "TESSERA_CPU_THREADS", "1024", "environment");
    assert_setting(runtime, "TESSERA_VERBOSE", "", "default");
    tess_device *device = NULL;
    tess_device_info info = {sizeof info};
    assert_status(TESS_OK, tess_device_open(runtime, NULL, &device));
    assert_status(TESS_OK, tess_device_query(device, &info));
    assert_string_equal("beta:0", info.id);
    tess_device_release(device);
    tess_runtime_release(runtime);
}

static void test_descriptor_beats_environment(void **state) {
    (void)state;
    setenv("TESSERA_BACKEND", "beta", 1);
    setenv("TESSERA_KERNEL", "malformed", 1);
    setenv("TESSERA_CPU_THREADS", "nonsense", 1);
    setenv("TESSERA_CACHE_DIR", "/from/environment", 1);
    setenv("TESSERA_TUNE_FILE", "/from/nowhere", 1);
    char backend[] = "gamma";
    tess_runtime_desc desc = {.backend = backend, .kernel = "", .tune_file = "", .cpu_threads = 7};
    tess_runtime *runtime = NULL;
    assert_status(TESS_OK, create(desc, &runtime));
    memset(backend, '?', sizeof backend - 1); /* the runtime has a copy */
    assert_setting(runtime, "TESSERA_BACKEND", "gamma", "descriptor");
    /* "" means unset, and hides the environment */
    assert_setting(runtime, "TESSERA_KERNEL", "", "descriptor");
    assert_setting(runtime, "TESSERA_CPU_THREADS", "7", "descriptor");
    assert_setting(runtime, "TESSERA_CACHE_DIR", "/from/environment", "environment");
    assert_setting(runtime, "TESSERA_TUNE_FILE", "", "descriptor");
    tess_runtime_release(runtime);
}

static void test_malformed_environment(void **state) {
    (void)state;
    assert_environment_refused("TESSERA_BACKEND", "omega",
                               "'omega' names no backend; known are: gamma, beta, delta, alpha");
    assert_environment_refused("TESSERA_BACKEND", "beta,,alpha", "empty item");
    assert_environment_refused("TESSERA_BACKEND", "beta:one", "name:index");
    assert_environment_refused("TESSERA_BACKEND", ",", "empty item");
    assert_environment_refused("TESSERA_KERNEL", "fast",
                               "'fast' is not of the form backend/kernel");
    assert_environment_refused("TESSERA_KERNEL", "/fast", "not of the form");
    assert_environment_refused("TESSERA_KERNEL", "beta/", "not of the form");
    assert_environment_refused("TESSERA_KERNEL", "omega/fast",
                               "names no backend; known are: gamma");
    assert_environment_refused("TESSERA_VERBOSE", "loud",
                               "'loud' is none of errors, device, dispatch, plan, all");
    assert_environment_refused("TESSERA_VERBOSE", "errors,", "empty item");
    assert_environment_refused("TESSERA_VERBOSE", "device,al", "'al' is none of");
    assert_environment_refused("TESSERA_VERBOSE", "Device", "is none of");
    assert_environment_refused("TESSERA_CACHE_DIR", "cache", "'cache' is not an absolute path");
    assert_environment_refused("TESSERA_TUNE_FILE", "./tune", "not an absolute path");
    static const struct {
        const char *value, *item;
    } paths[] = {{"libfoo.so", "'libfoo.so'"}, {"/a/lib.so:lib.so:/b/lib.so", "'lib.so'"},
                 {"./lib.so", "'./lib.so'"},   {"/a/lib.so:../lib.so", "'../lib.so'"},
                 {"/a/lib.so:", "''"},         {":/a/lib.so", "''"}};
    for (size_t n = 0; n < sizeof paths / sizeof *paths; n++) {
        char message[64];
        snprintf(message, sizeof message, "%s is not an absolute path", paths[n].item);
        assert_environment_refused("TESSERA_BACKEND_PATH", paths[n].value, message);
    }
    static const char *const numbers[] = {"0",   "-1",   "+1",         " 1",
                                          "1 ",  "1025", "4294967297", "99999999999999999999",
                                          "two", "1.5",  "0x4"};
    for (size_t n = 0; n < sizeof numbers / sizeof numbers[0]; n++)
        assert_environment_refused("TESSERA_CPU_THREADS", numbers[n],
                                   "is not an integer from 1 to 1024");
}

static void test_malformed_descriptor(void **state) {
    (void)state;
    assert_refused((tess_runtime_desc){.backend = "omega"},
                   "tess_runtime_create: backend: 'omega'");
    assert_refused((tess_runtime_desc){.kernel = "fast"}, "tess_runtime_create: kernel:");
    assert_refused((tess_runtime_desc){.kernel = "omega/fast"},
                   "tess_runtime_create: kernel: 'omega/fast' names no backend");
    assert_refused((tess_runtime_desc){.verbose = "loud"}, "tess_runtime_create: verbose:");
    assert_refused((tess_runtime_desc){.cache_dir = "x"}, "tess_runtime_create: cache_dir:");
    assert_refused((tess_runtime_desc){.tune_file = "x"}, "tess_runtime_create: tune_file:");
    assert_refused((tess_runtime_desc){.backend_path = "x"}, "tess_runtime_create: backend_path:");
    assert_refused((tess_runtime_desc){.cpu_threads = 1025},
                   "tess_runtime_create: cpu_threads: '1025'");
    char *large = malloc(100001);
    memset(large, 'x', 100000);
    large[100000] = '\0';
    assert_refused((tess_runtime_desc){.backend = large}, "names no backend");
    assert_refused((tess_runtime_desc){.kernel = large}, "not of the form");
    assert_refused((tess_runtime_desc){.verbose = large}, "is none of");
    assert_refused((tess_runtime_desc){.cpu_threads = UINT32_MAX}, "4294967295");
    free(large);
}

/* ------------------------------------------------------------------ log */

static char captured[8192];

static void capture(void *user, const char *line) {
    assert_string_equal("log", user);
    assert_null(strchr(line, '\n'));
    const size_t length = strlen(captured);
    snprintf(captured + length, sizeof captured - length, "%s\n", line);
}

static void use_logged(const char *verbose) {
    tess_runtime_desc desc = {
        .verbose = verbose, .log = capture, .log_user = (void *)(uintptr_t) "log"};
    tess_runtime *runtime = NULL;
    tess_device *device = NULL;
    captured[0] = '\0';
    assert_status(TESS_OK, create(desc, &runtime));
    assert_status(TESS_OK, tess_device_open(runtime,
                                            &(tess_device_desc){sizeof(tess_device_desc),
                                                                .id = "delta,alpha:5,alpha"},
                                            &device));
    assert_status(TESS_ERROR_TIMEOUT, tess_wait(device, 0));
    assert_status(TESS_ERROR_INVALID, tess_alloc(device, 1, NULL));
    tess_device_release(device);
    tess_runtime_release(runtime);
    /* belongs to no runtime, so nobody logs it */
    assert_status(TESS_ERROR_INVALID, tess_runtime_create(NULL, NULL));
}

static bool has(const char *text) {
    if (strstr(captured, text) != NULL) return true;
    print_message("'%s' is not in:\n%s", text, captured);
    return false;
}

static void test_log_topics(void **state) {
    (void)state;
    use_logged("");
    assert_string_equal("", captured);
    use_logged("dispatch,plan");
    assert_string_equal("", captured);
    use_logged("device");
    assert_true(has("device: delta skipped: fakeGetDeviceCount"));
    assert_true(has("device: alpha:5 skipped: alpha has only 2 devices"));
    assert_true(has("device: alpha:0 taken"));
    assert_null(strstr(captured, "errors:"));
    /* Failures that a call recovers from are no errors. */
    use_logged("errors");
    assert_string_equal("errors: tess_wait: alpha: fakeWait: code 7\nerrors: tess_alloc: buffer: "
                        "must not be NULL\n",
                        captured);
    use_logged("all");
    assert_true(has("device: alpha:0 taken"));
    assert_true(has("errors: tess_wait"));
}

/* Without a log function lines go to standard error, each in one piece with its newline. */
static void test_default_log(void **state) {
    (void)state;
    FILE *file = tmpfile();
    assert_non_null(file);
    int standard_error = dup(STDERR_FILENO);
    tess_runtime *runtime = NULL;
    assert_status(TESS_OK, create((tess_runtime_desc){.verbose = "errors"}, &runtime));
    fflush(stderr);
    assert_true(dup2(fileno(file), STDERR_FILENO) >= 0);
    /* the end of an enumeration is no error to log */
    tess_status past = tess_runtime_device(runtime, 9, NULL);
    tess_status status = tess_device_open(runtime, NULL, NULL);
    fflush(stderr);
    assert_true(dup2(standard_error, STDERR_FILENO) >= 0);
    close(standard_error);
    assert_status(TESS_ERROR_INVALID, past);
    assert_status(TESS_ERROR_INVALID, status);
    rewind(file);
    char line[200] = "";
    assert_int_equal(1, fread(line, 1, sizeof line - 1, file) > 0);
    assert_string_equal("tessera: errors: tess_device_open: device: must not be NULL\n", line);
    fclose(file);
    tess_runtime_release(runtime);
}

static void test_best_device_is_explained(void **state) {
    (void)state;
    fake.open_status[FAKE_ALPHA][0] = TESS_ERROR_NATIVE;
    fake.open_status[FAKE_ALPHA][1] = TESS_ERROR_NATIVE;
    tess_runtime_desc desc = {
        .verbose = "device", .log = capture, .log_user = (void *)(uintptr_t) "log"};
    tess_runtime *runtime = NULL;
    tess_device *device = NULL;
    captured[0] = '\0';
    assert_status(TESS_OK, create(desc, &runtime));
    assert_status(TESS_OK, tess_device_open(runtime, NULL, &device));
    assert_true(has("device: delta skipped: fakeGetDeviceCount"));
    assert_true(has("device: alpha:0 skipped: fakeOpen: code 10"));
    assert_true(has("device: alpha:1 skipped: fakeOpen: code 10"));
    assert_true(has("device: beta:0 taken: it is the best that works"));
    tess_device_release(device);
    tess_runtime_release(runtime);
}

int main(void) {
    return RUN_TESTS_BETWEEN(
        fake_setup, NULL, TEST(test_defaults), TEST(test_affinity_limits_the_threads),
        TEST(test_cpus_limit_the_setting), TEST(test_quota_limits_the_threads),
        TEST(test_environment), TEST(test_descriptor_beats_environment),
        TEST(test_malformed_environment), TEST(test_malformed_descriptor), TEST(test_log_topics),
        TEST(test_default_log), TEST(test_best_device_is_explained));
}
