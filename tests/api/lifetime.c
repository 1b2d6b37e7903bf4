/* SPDX-License-Identifier: Apache-2.0 */
/* Handles: released in any order, used in a forked child, and the message of the last failure on
 * each thread. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/child.h"
#include "common/testlib.h"

typedef struct handles {
    tess_runtime *runtime;
    tess_device *device;
    tess_layout *layout;
    tess_plan *plan;
} handles;

static handles make(test_heap *heap) {
    handles h = {0};
    tess_runtime_desc runtime = {
        .struct_size = sizeof runtime, .log = test_log_nothing, .cpu_threads = 2};
    if (heap) runtime.allocator = heap->allocator;
    tess_pattern pattern = test_s2_pattern(16, 2, 3);
    tess_layout_desc layout = test_layout_desc(&pattern, 4, 2, 500);
    tess_plan_desc plan = {.struct_size = sizeof plan,
                           .head_dim = 16,
                           .batch = 1,
                           .q_len = 30,
                           .kv_len = 300,
                           .kv_split = 3};
    assert_ok(tess_runtime_create(&runtime, &h.runtime));
    h.device = test_cpu(h.runtime);
    assert_ok(tess_layout_create(h.runtime, &layout, &h.layout));
    assert_ok(tess_plan_create(h.device, h.layout, &plan, &h.plan));
    return h;
}

static void use_plan(const tess_plan *plan) {
    tess_plan_info info = {.struct_size = sizeof info};
    tess_run_desc run = {.struct_size = sizeof run};
    assert_ok(tess_plan_query(plan, &info));
    float *memory =
        aligned_alloc(256, (4 * 300 * 64 * sizeof(float) + info.workspace_bytes + 511) / 256 * 256);
    assert_non_null(memory);
    memset(memory, 0, 3 * 300 * 64 * sizeof(float));
    assert_ok(tess_plan_tensor(plan, TESS_ROLE_Q, tess_host_buffer(memory, 0), &run.q, NULL));
    assert_ok(
        tess_plan_tensor(plan, TESS_ROLE_K, tess_host_buffer(memory + 300 * 64, 0), &run.k, NULL));
    assert_ok(tess_plan_tensor(plan, TESS_ROLE_V, tess_host_buffer(memory + 2 * 300 * 64, 0),
                               &run.v, NULL));
    assert_ok(tess_plan_tensor(plan, TESS_ROLE_O, tess_host_buffer(memory + 3 * 300 * 64, 0),
                               &run.o, NULL));
    run.workspace = tess_host_buffer(memory + 4 * 300 * 64, 0);
    assert_ok(tess_run(plan, &run));
    free(memory);
}

/* Releases one handle; `which` is 0 for the runtime, then device, layout, plan. */
static void release(handles *h, int which) {
    switch (which) {
    case 0: tess_runtime_release(h->runtime); break;
    case 1: tess_device_release(h->device); break;
    case 2: tess_layout_release(h->layout); break;
    default: tess_plan_release(h->plan);
    }
}

/* All 24 orders of release: the remaining handles must work until they are released, and nothing
 * may leak. */
static void test_release_orders(void **state) {
    (void)state;
    for (int code = 0; code < 256; code++) {
        const int order[4] = {code & 3, code >> 2 & 3, code >> 4 & 3, code >> 6 & 3};
        if ((1 << order[0] | 1 << order[1] | 1 << order[2] | 1 << order[3]) != 15) continue;
        test_heap heap;
        test_heap_init(&heap, 0, 0);
        handles h = make(&heap);
        int released = 0;
        for (int n = 0; n < 4; n++) {
            release(&h, order[n]);
            released |= 1 << order[n];
            if (!(released & 8)) use_plan(h.plan);
            if (!(released & 4)) {
                tess_layout_info info = {.struct_size = sizeof info};
                assert_ok(tess_layout_query(h.layout, &info));
            }
            if (!(released & 2)) {
                tess_device_info info = {.struct_size = sizeof info};
                assert_ok(tess_device_query(h.device, &info));
                assert_ok(tess_wait(h.device, 0));
            }
        }
        assert_int_equal(heap.live, 0);
        assert_int_equal(heap.bytes, 0);
        assert_int_equal(heap.damaged, 0);
    }
}

/* ------------------------------------------------------------------ fork */

static int says_fork(void) { return strstr(tess_last_error(), "fork") != NULL; }

static void in_child(handles *h) {
    tess_buffer buffer = {0};
    tess_device_info device = {.struct_size = sizeof device};
    tess_layout_info layout = {.struct_size = sizeof layout};
    tess_plan_info plan = {.struct_size = sizeof plan};
    tess_run_desc run = {.struct_size = sizeof run};
    tess_plan_desc desc = {
        .struct_size = sizeof desc, .head_dim = 16, .batch = 1, .q_len = 3, .kv_len = 30};
    tess_layout *made_layout = NULL;
    tess_device *made_device = NULL;
    tess_plan *made_plan = NULL;
    char bytes[64] = {0};
    CHILD(tess_runtime_device(h->runtime, 0, &device) == TESS_ERROR_INVALID && says_fork());
    CHILD(tess_device_open(h->runtime, NULL, &made_device) == TESS_ERROR_INVALID && says_fork());
    CHILD(tess_device_query(h->device, &device) == TESS_ERROR_INVALID && says_fork());
    CHILD(tess_alloc(h->device, 10, &buffer) == TESS_ERROR_INVALID && says_fork());
    CHILD(tess_free(h->device, &buffer) == TESS_ERROR_INVALID && says_fork());
    CHILD(tess_wait(h->device, 0) == TESS_ERROR_INVALID && says_fork());
    CHILD(tess_layout_query(h->layout, &layout) == TESS_ERROR_INVALID && says_fork());
    CHILD(tess_layout_deserialize(h->runtime, bytes, sizeof bytes, &made_layout) ==
              TESS_ERROR_INVALID &&
          says_fork());
    CHILD(tess_plan_create(h->device, h->layout, &desc, &made_plan) == TESS_ERROR_INVALID &&
          says_fork());
    CHILD(tess_plan_query(h->plan, &plan) == TESS_ERROR_INVALID && says_fork());
    CHILD(tess_run(h->plan, &run) == TESS_ERROR_INVALID && says_fork());
    CHILD(!made_layout && !made_device && !made_plan);
    for (int n = 3; n >= 0; n--) release(h, n);
    /* What the child makes itself works. */
    handles own = make(NULL);
    use_plan(own.plan);
    for (int n = 0; n < 4; n++) release(&own, n);
    _exit(0);
}

static void test_fork(void **state) {
    (void)state;
    handles h = make(NULL);
    use_plan(h.plan); /* threads of a pool are running now */
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        alarm(60); /* a hang is a failure */
        in_child(&h);
    }
    assert_true(child > 0);
    int status = 0;
    assert_true(waitpid(child, &status, 0) == child);
    if (WIFSIGNALED(status)) fail_msg("the child ended by signal %d", WTERMSIG(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    use_plan(h.plan);
    for (int n = 0; n < 4; n++) release(&h, n);
}

/* ------------------------------------------------------------------ tess_last_error */

static void *fresh_thread(void *unused) {
    (void)unused;
    if (tess_last_error()[0]) return "a new thread has a message";
    tess_layout_query(NULL, NULL);
    if (!strstr(tess_last_error(), "tess_layout_query"))
        return "the message of the thread's own failure is missing";
    return NULL;
}

static void test_last_error(void **state) {
    (void)state;
    tess_plan_query(NULL, NULL);
    char before[512];
    snprintf(before, sizeof before, "%s", tess_last_error());
    assert_non_null(strstr(before, "tess_plan_query"));
    pthread_t thread;
    void *complaint = NULL;
    assert_int_equal(pthread_create(&thread, NULL, fresh_thread, NULL), 0);
    assert_int_equal(pthread_join(thread, &complaint), 0);
    if (complaint) fail_msg("%s", (const char *)complaint);
    assert_string_equal(tess_last_error(), before);
    /* A call that succeeds leaves the message as it was. */
    handles h = make(NULL);
    use_plan(h.plan);
    for (int n = 0; n < 4; n++) release(&h, n);
    assert_string_equal(tess_last_error(), before);
}

int main(void) {
    const struct CMUnitTest tests[] = {TEST(test_release_orders), TEST(test_fork),
                                       TEST(test_last_error)};
    return cmocka_run_group_tests_name("lifetime of handles", tests, NULL, NULL);
}
