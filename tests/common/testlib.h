/* SPDX-License-Identifier: Apache-2.0 */
/* What every test program shares: devices and kernels found on this machine, memory on a device, a
 * counting allocator, and reading error messages and logs. */
#ifndef TESSERA_TESTS_TESTLIB_H
#define TESSERA_TESTS_TESTLIB_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <tessera/tessera.h>

/* One thing that a property is tested on: a device, and a kernel forced by name or "" for the
 * plan's own choice. */
typedef struct test_target {
    tess_device *device;
    char id[40];
    char backend[32];
    char kernel[64];
    int host_memory; /* tensors are host memory */
    int software;    /* a GPU interface emulated on the CPU, which takes its time */
    int kernels;     /* targets of its device that force a kernel */
    int turn;        /* whose turn it is among them, or TEST_NO_TURN */
    int narrow;      /* of its turn it takes the smallest range of head_dim alone */
    /* the kernel is the portable body, which may refuse nothing; the plan's own choice may not
     * either */
    int portable;
} test_target;

typedef struct test_targets {
    tess_runtime *runtime;
    int n_devices, count;
    tess_device *devices[16];
    test_target items[64];
} test_targets;

enum {
    TEST_EACH_KERNEL = 1, /* one target for each available kernel as well */
    TEST_BACKWARD = 2,    /* devices and kernels that compute gradients */
    TEST_SKIPPED = 77,    /* exit status of a test that has nothing to look at */
};

/* Opens every device found: with `backend`, only those of that backend, or the one of that id, and
 * with "BACKEND/KERNEL" that kernel alone, forced by name; without, software devices only if
 * TESSERA_REQUIRE (a comma list of backends) names them, and not under a sanitizer. Returns 0, or
 * an exit status after printing why: 1 if there is no device at all or one that TESSERA_REQUIRE
 * names is missing, TEST_SKIPPED if there is none of `backend`. */
int test_targets_open(test_targets *targets, const char *backend, unsigned flags);
void test_targets_close(test_targets *targets);

/* The kernels of a software device are instances of one body, which it compiles for seconds, one
 * for each type and range of head_dim. They take turns: the larger kernels of OpenCL and of Vulkan
 * have a third of the instances each, and OpenCL's smaller one has one more, so that each type and
 * each range runs twice at least. With TESSERA_TEST_FULL=1 nothing is left out. */
enum { TEST_TURNS = 3, TEST_NO_TURN = -1 };

/* Whether problems of that type and head_dim are not for the kernel that a target forces. Under a
 * sanitizer, where a release build beside it runs them all, so it is with two of three kernels of
 * any device. With TESSERA_TEST_HEAD_DIM=N so it is with larger head_dims on every target. */
int test_other_turn(const test_target *target, uint32_t dtype, int32_t head_dim);

/* Whether a device's own choice compiles the instance for that type and head_dim: a software device
 * with several kernels, those that are its first kernel's turn. */
int test_has_instance(const test_target *target, uint32_t dtype, int32_t head_dim);

/* Whether a target leaves out problem `n` of a list: if it is not its turn, or, for a device's own
 * choice, which is one of the kernels, if it is none of each seventh. Kernels of the CPU that use
 * no special instructions take a third of the problems, and so do all kernels under a sanitizer. */
int test_leaves_out(const test_target *target, int n, uint32_t dtype, int32_t head_dim);
/* Whether a target leaves out heavy item `n`, on which such a device works for seconds, since it is
 * the device's own choice. Under a sanitizer a heavy item goes to one kernel. */
int test_leaves_heavy(const test_target *target, int n);
/* The same of an item whose work is mostly padding of tiles and vectors: it goes to OpenCL, which
 * is ten times faster at these. */
int test_leaves_padded(const test_target *target);

/* Whether a target is a software device's own choice, and so one of its kernels over again. Never
 * with TESSERA_TEST_FULL=1. */
int test_is_repetition(const test_target *target);

/* cpus.c: makes the process believe that it may run on that many CPUs (0: the true ones), so that a
 * test may have more workers than there are. A quota of control groups still counts. */
void test_pretend_cpus(int cpus);

/* A runtime with `threads` CPU threads (0: default) whose log is dropped, and its first CPU device.
 * Both fail the test when they cannot be had. */
tess_runtime *test_runtime(uint32_t threads);
tess_device *test_cpu(tess_runtime *runtime);

/* Device memory holding a copy of `bytes` bytes of host memory (NULL: left as it is), and back. */
tess_buffer test_upload(tess_device *device, const void *data, uint64_t bytes);
void test_download(tess_device *device, tess_buffer buffer, void *data, uint64_t bytes);

/* An allocator that counts, fails on request, and verifies that sizes given back are the sizes
 * taken. All counters may be read at any time. */
typedef struct test_heap {
    tess_allocator allocator;
    int64_t calls;    /* allocations asked for */
    int64_t live;     /* allocations not given back */
    int64_t bytes;    /* bytes not given back */
    int64_t fail_at;  /* the call that fails, counted from 1; 0: none */
    int sticky;       /* every later call fails as well */
    int64_t failures; /* how many calls failed */
    /* a free with another size, a foreign pointer, or an alignment that is not a power of two */
    int damaged;
} test_heap;
void test_heap_init(test_heap *heap, int64_t fail_at, int sticky);

/* Drops a line of log. */
void test_log_nothing(void *user, const char *line);

/* Keeps the log, each line with its end, in a text that the test empties when it begins to listen.
 * What no longer fits is cut off. */
extern char test_logged[16384];
void test_log_keep(void *user, const char *line);
#define assert_logged(text) test_assert_logged((text), __FILE__, __LINE__)
void test_assert_logged(const char *text, const char *file, int line);

/* Whether a message begins with "function: field", where the field ends at ':', '.', '[' or a
 * blank. */
int test_names_field(const char *text, const char *function, const char *field);

/* Asserts a status and that the last error names `function` and `field` (NULL: any field). */
#define assert_error(status, wanted, function, field) \
    test_assert_error((status), (wanted), (function), (field), __FILE__, __LINE__)
void test_assert_error(tess_status status, tess_status wanted, const char *function,
                       const char *field, const char *file, int line);
/* Asserts that the last error contains a text. */
#define assert_error_has(text) test_assert_error_has((text), __FILE__, __LINE__)
void test_assert_error_has(const char *text, const char *file, int line);
#define assert_ok(status) test_assert_ok((status), __FILE__, __LINE__)
void test_assert_ok(tess_status status, const char *file, int line);

/* Deterministic random numbers. */
uint64_t test_random(uint64_t *state);
int64_t test_between(uint64_t *state, int64_t low, int64_t high); /* both included */

/* Whether this build has a sanitizer, which makes everything many times slower and keeps freed
 * memory for a while. */
int test_sanitized(void);
/* Whether TESSERA_TEST_FULL=1 asks for everything, whatever it takes. */
int test_full(void);

/* Whether TESSERA_KERNEL names the kernel of all plans, which may refuse problems. */
int test_kernel_is_named(void);

/* Calls a function in six threads at once, and asserts that each call returns NULL. */
void test_in_threads(void *(*function)(void *argument), void *argument);

/* Open file descriptors, mappings and resident bytes of this process. */
int test_open_descriptors(void);
int test_mappings(void);
int64_t test_resident(void);

/* A row of a table of tests; and of one whose test gets `state`, between the file's setup() and
 * teardown(). */
#define TEST(function) cmocka_unit_test(function)
#define TEST_ON(state, function) \
    { #function, function, setup, teardown, state }

/* Runs a program's tests and returns the number of those that failed. */
#define RUN_TESTS(...)                                   \
    __extension__({                                      \
        const struct CMUnitTest tests[] = {__VA_ARGS__}; \
        cmocka_run_group_tests(tests, NULL, NULL);       \
    })

/* The same as a group with a name, with `before` and `after` around the group. */
#define RUN_GROUP(name, before, after, ...)                        \
    __extension__({                                                \
        const struct CMUnitTest tests[] = {__VA_ARGS__};           \
        cmocka_run_group_tests_name((name), tests, before, after); \
    })

/* The same, with `before` and `after`, which may be NULL, around each test. */
#define RUN_TESTS_BETWEEN(before, after, ...)                                \
    __extension__({                                                          \
        struct CMUnitTest tests[] = {__VA_ARGS__};                           \
        for (size_t test = 0; test < sizeof tests / sizeof *tests; test++) { \
            tests[test].setup_func = (before);                               \
            tests[test].teardown_func = (after);                             \
        }                                                                    \
        cmocka_run_group_tests(tests, NULL, NULL);                           \
    })

/* Descriptors of a causal S2 pattern, and of a layout. */
static inline tess_pattern test_s2_pattern(int32_t block, int32_t local, int32_t stride) {
    tess_pattern p = {.struct_size = sizeof p, .kind = TESS_PATTERN_S2};
    p.block = block;
    p.local = local;
    p.stride = stride;
    return p;
}
static inline tess_layout_desc test_layout_desc(const tess_pattern *pattern, int32_t heads,
                                                int32_t kv_heads, int64_t tokens) {
    tess_layout_desc d = {.struct_size = sizeof d, .pattern = pattern};
    d.n_heads = heads;
    d.n_kv_heads = kv_heads;
    d.max_tokens = tokens;
    return d;
}

#endif
