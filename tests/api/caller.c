/* SPDX-License-Identifier: Apache-2.0 */
/* What a run on the CPU may use: a bounded part of the caller's stack, and no more threads than
 * there are CPUs. */
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/testlib.h"

enum { HEADS = 4, KV_HEADS = 2, TOKENS = 512, STACK = 256 << 10, BOUND = 16 << 10 };

typedef struct problem {
    tess_plan *plan;
    tess_run_desc run;
    tess_status status;
    char *frame; /* of the function that calls tess_run */
} problem;

static void *take(uint64_t bytes) {
    void *memory = aligned_alloc(4096, (bytes / 4096 + 1) * 4096);
    assert_non_null(memory);
    memset(memory, 0, bytes);
    return memory;
}

/* False when the kernel does not take the problem. */
static int problem_create(problem *p, tess_device *device, const tess_layout *layout,
                          const tess_plan_desc *d) {
    memset(p, 0, sizeof *p);
    tess_status status = tess_plan_create(device, layout, d, &p->plan);
    if (status == TESS_ERROR_UNSUPPORTED) return 0;
    assert_ok(status);
    tess_plan_info info = {.struct_size = sizeof info};
    assert_ok(tess_plan_query(p->plan, &info));
    p->run.struct_size = sizeof p->run;
    tess_tensor *const tensors[] = {&p->run.q, &p->run.k, &p->run.v, &p->run.o, &p->run.lse};
    for (int role = 0; role < 5; role++) {
        uint64_t bytes;
        assert_ok(
            tess_plan_tensor(p->plan, (tess_role)role, (tess_buffer){0}, tensors[role], &bytes));
        tensors[role]->buffer = tess_host_buffer(take(bytes), bytes);
    }
    p->run.workspace = tess_host_buffer(take(info.workspace_bytes), info.workspace_bytes);
    return 1;
}

static void problem_release(problem *p) {
    const tess_buffer *const buffers[] = {&p->run.q.buffer, &p->run.k.buffer,   &p->run.v.buffer,
                                          &p->run.o.buffer, &p->run.lse.buffer, &p->run.workspace};
    for (int n = 0; n < 6; n++) free((void *)(uintptr_t)buffers[n]->handle);
    tess_plan_release(p->plan);
}

static tess_layout *make_layout(tess_runtime *runtime) {
    const tess_pattern pattern = test_s2_pattern(16, 2, 3);
    const tess_layout_desc d = test_layout_desc(&pattern, HEADS, KV_HEADS, TOKENS);
    tess_layout *layout = NULL;
    assert_ok(tess_layout_create(runtime, &d, &layout));
    return layout;
}

/* ------------------------------------------------------------------ stack */

static void *run_on_own_stack(void *argument) {
    problem *p = argument;
    p->frame = __builtin_frame_address(0);
    p->status = tess_run(p->plan, &p->run);
    return NULL;
}

/* Bytes of stack that tess_run used: paint a new thread's stack, run, and see how much of the paint
 * is gone. */
static int64_t stack_of(problem *p, char *stack) {
    pthread_attr_t attributes;
    pthread_t thread;
    memset(stack, 0xa5, STACK);
    assert_int_equal(0, pthread_attr_init(&attributes));
    assert_int_equal(0, pthread_attr_setstack(&attributes, stack, STACK));
    assert_int_equal(0, pthread_create(&thread, &attributes, run_on_own_stack, p));
    assert_int_equal(0, pthread_join(thread, NULL));
    pthread_attr_destroy(&attributes);
    assert_ok(p->status);
    const char *touched = stack;
    while ((unsigned char)*touched == 0xa5) touched++;
    return p->frame - touched;
}

static void test_stack(void **state) {
    (void)state;
    if (test_sanitized()) skip(); /* their frames are larger, and they want a larger stack */
    test_targets targets;
    assert_int_equal(0, test_targets_open(&targets, "cpu", TEST_EACH_KERNEL));
    tess_layout *layout = make_layout(targets.runtime);
    char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(stack != MAP_FAILED);
    int64_t most = 0;
    int runs = 0;
    for (int t = 0; t < targets.count; t++) {
        const test_target *target = &targets.items[t];
        for (uint32_t n = 0; n < 3 * 2 * 3 * 2; n++) {
            const tess_plan_desc d = {.struct_size = sizeof d,
                                      .dtype = n % 3,
                                      .head_dim = n / 3 % 2 ? 256 : 40,
                                      .batch = 1,
                                      .q_len = (const int64_t[]){1, 3, 70}[n / 6 % 3],
                                      .kv_len = TOKENS,
                                      .kv_split = n / 18 ? 3 : 1,
                                      .kernel = *target->kernel ? target->kernel : NULL};
            problem p;
            if (!problem_create(&p, target->device, layout, &d)) continue;
            const int64_t bytes = stack_of(&p, stack);
            assert_true(bytes > 0);
            if (bytes > most) most = bytes;
            if (bytes > BOUND)
                fail_msg("%s, dtype %u, head_dim %d, %d rows: %d bytes of stack", target->kernel,
                         (unsigned)d.dtype, (int)d.head_dim, (int)d.q_len, (int)bytes);
            runs++;
            problem_release(&p);
        }
    }
    print_message("at most %d bytes of stack in %d runs\n", (int)most, runs);
    assert_true(runs > 0);
    munmap(stack, STACK);
    tess_layout_release(layout);
    test_targets_close(&targets);
}

/* ------------------------------------------------------------------ threads */

static int threads_now(void) {
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    for (const struct dirent *entry; (entry = readdir(tasks)) != NULL;)
        count += entry->d_name[0] != '.';
    closedir(tasks);
    return count;
}

/* A thread that was joined is listed for a moment longer. */
static int threads_are(int count) {
    for (int tries = 0; tries < 10000; tries++) {
        if (threads_now() == count) return 1;
        usleep(1000);
    }
    return 0;
}

/* The setting is a bound, and so are the CPUs: however many threads are asked for, a device has no
 * more workers, its caller included. */
static void test_threads(void **state) {
    (void)state;
    static const uint32_t asked[] = {1, 2, 3, 4, 256, 1024, 0};
    const int before = threads_now();
    for (int cpus = 1; cpus <= 3; cpus++) {
        test_pretend_cpus(cpus);
        for (size_t n = 0; n < sizeof asked / sizeof asked[0]; n++) {
            const uint32_t most =
                asked[n] != 0 && asked[n] < (uint32_t)cpus ? asked[n] : (uint32_t)cpus;
            tess_runtime *runtime = test_runtime(asked[n]);
            tess_device *device = test_cpu(runtime);
            tess_layout *layout = make_layout(runtime);
            tess_device_info info = {.struct_size = sizeof info};
            assert_ok(tess_device_query(device, &info));
            /* fewer with a quota, or without a thread pool */
            assert_in_range(info.compute_units, 1, most);
            const tess_plan_desc d = {
                .struct_size = sizeof d, .head_dim = 64, .batch = 1, .q_len = 64, .kv_len = TOKENS};
            problem p;
            assert_true(problem_create(&p, device, layout, &d));
            assert_ok(tess_run(p.plan, &p.run));
            assert_true(threads_are(before + (int)info.compute_units - 1));
            problem_release(&p);
            tess_layout_release(layout);
            tess_device_release(device);
            tess_runtime_release(runtime);
        }
    }
    test_pretend_cpus(0);
}

int main(void) {
    const struct CMUnitTest tests[] = {TEST(test_stack), TEST(test_threads)};
    return cmocka_run_group_tests_name("caller", tests, NULL, NULL);
}
