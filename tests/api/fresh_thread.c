/* SPDX-License-Identifier: Apache-2.0 */
/* A thread's first run allocates nothing, even when the library was opened with dlopen and its
 * thread-local variables do not exist yet. Its first failure allocates the message, and without
 * memory the message says less. */
#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <tessera/tessera.h>

/* The C library's own functions: the ones below stand before them for the whole process, the
 * dynamic linker included. */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *pointer, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
#define EXPORTED __attribute__((visibility("default")))
EXPORTED void *malloc(size_t size);
EXPORTED void *calloc(size_t count, size_t size);
EXPORTED void *realloc(void *pointer, size_t size);
EXPORTED void *memalign(size_t alignment, size_t size);
EXPORTED void *aligned_alloc(size_t alignment, size_t size);
EXPORTED int posix_memalign(void **pointer, size_t alignment, size_t size);

static _Thread_local int counting;
static _Thread_local int refusing; /* there is no memory */
static int taken;

void *malloc(size_t size) { return taken += counting, refusing ? NULL : __libc_malloc(size); }
void *calloc(size_t count, size_t size) {
    return taken += counting, refusing ? NULL : __libc_calloc(count, size);
}
void *realloc(void *pointer, size_t size) {
    return taken += counting, refusing ? NULL : __libc_realloc(pointer, size);
}
void *memalign(size_t alignment, size_t size) {
    return taken += counting, refusing ? NULL : __libc_memalign(alignment, size);
}
void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }
int posix_memalign(void **pointer, size_t alignment, size_t size) {
    return (*pointer = memalign(alignment, size)) == NULL;
}

enum { HEADS = 2, TOKENS = 40, D = 16, FLOATS = HEADS * TOKENS * D };
static float inputs[FLOATS], outputs[FLOATS];
static _Alignas(4096) char workspace[1 << 22];

static tess_status (*run)(const tess_plan *plan, const tess_run_desc *desc);
static tess_plan *plan;
static tess_run_desc desc = {.struct_size = sizeof desc};
static tess_status result;

static void *run_counted(void *unused) {
    counting = 1;
    result = run(plan, &desc);
    counting = 0;
    return unused;
}

/* The message of a failing run: first without memory, then with it, then without it again, when the
 * message already has its buffer. */
static char messages[3][500];
static const char *(*last_error)(void);

static void *run_failing(void *unused) {
    tess_run_desc bad = desc;
    bad.flags = 1;
    for (int n = 0; n < 3; n++) {
        counting = 1;
        refusing = n != 1;
        result = run(plan, &bad);
        counting = refusing = 0;
        snprintf(messages[n], sizeof messages[n], "%s", last_error());
        if (result != TESS_ERROR_INVALID) return unused;
    }
    bad.flags = 0;
    result = run(plan, &bad);
    return unused;
}

#define LOAD(name)                               \
    __typeof__(&(name)) p_##name;                \
    *(void **)&p_##name = dlsym(library, #name); \
    assert_non_null(p_##name)

static void test_first_run(void **state) {
    void *library = dlopen(*state, RTLD_NOW | RTLD_LOCAL);
    if (!library) fail_msg("%s", dlerror());
    LOAD(tess_runtime_create);
    LOAD(tess_runtime_release);
    LOAD(tess_device_open);
    LOAD(tess_device_release);
    LOAD(tess_layout_create);
    LOAD(tess_layout_release);
    LOAD(tess_plan_create);
    LOAD(tess_plan_release);
    LOAD(tess_plan_query);
    LOAD(tess_plan_tensor);
    LOAD(tess_run);
    LOAD(tess_last_error);
    run = p_tess_run;
    last_error = p_tess_last_error;
    tess_runtime_desc rd = {.struct_size = sizeof rd, .cpu_threads = 1};
    tess_device_desc dd = {.struct_size = sizeof dd, .id = "cpu"};
    tess_pattern pattern = {.struct_size = sizeof pattern,
                            .kind = TESS_PATTERN_S2,
                            .block = 8,
                            .local = 2,
                            .stride = 2};
    tess_layout_desc ld = {.struct_size = sizeof ld,
                           .pattern = &pattern,
                           .n_heads = HEADS,
                           .n_kv_heads = HEADS,
                           .max_tokens = TOKENS};
    tess_plan_desc pd = {
        .struct_size = sizeof pd, .head_dim = D, .batch = 1, .q_len = TOKENS, .kv_len = TOKENS};
    tess_runtime *runtime;
    tess_device *device;
    tess_layout *layout;
    assert_int_equal(TESS_OK, p_tess_runtime_create(&rd, &runtime));
    assert_int_equal(TESS_OK, p_tess_device_open(runtime, &dd, &device));
    assert_int_equal(TESS_OK, p_tess_layout_create(runtime, &ld, &layout));
    assert_int_equal(TESS_OK, p_tess_plan_create(device, layout, &pd, &plan));
    tess_plan_info info = {.struct_size = sizeof info};
    assert_int_equal(TESS_OK, p_tess_plan_query(plan, &info));
    assert_in_range(info.workspace_bytes, 0, sizeof workspace);
    const tess_buffer in = tess_host_buffer(inputs, sizeof inputs);
    assert_int_equal(TESS_OK, p_tess_plan_tensor(plan, TESS_ROLE_Q, in, &desc.q, NULL));
    assert_int_equal(TESS_OK, p_tess_plan_tensor(plan, TESS_ROLE_K, in, &desc.k, NULL));
    assert_int_equal(TESS_OK, p_tess_plan_tensor(plan, TESS_ROLE_V, in, &desc.v, NULL));
    assert_int_equal(TESS_OK,
                     p_tess_plan_tensor(plan, TESS_ROLE_O,
                                        tess_host_buffer(outputs, sizeof outputs), &desc.o, NULL));
    desc.workspace = tess_host_buffer(workspace, sizeof workspace);
    pthread_t thread;
    assert_int_equal(0, pthread_create(&thread, NULL, run_counted, NULL));
    assert_int_equal(0, pthread_join(thread, NULL));
    assert_int_equal(TESS_OK, result);
    assert_int_equal(0, taken);
    assert_int_equal(0, pthread_create(&thread, NULL, run_failing, NULL));
    assert_int_equal(0, pthread_join(thread, NULL));
    assert_int_equal(TESS_OK, result);
    assert_string_equal(messages[0],
                        "invalid argument; there is no memory for a message that says more");
    assert_string_equal(messages[1], "tess_run: flags: must be 0, got 0x1");
    assert_string_equal(messages[2], messages[1]);
    assert_int_equal(2, taken); /* one refused, one kept */
    taken = 0;
    counting = 1; /* and what counts, counts */
    assert_int_equal(TESS_OK, p_tess_runtime_create(&rd, &runtime));
    counting = 0;
    assert_true(taken > 0);
    p_tess_runtime_release(runtime);
    p_tess_plan_release(plan);
    p_tess_layout_release(layout);
    p_tess_device_release(device);
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: %s LIBRARY\n", argv[0]);
        return 2;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test_prestate(test_first_run, argv[1])};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
