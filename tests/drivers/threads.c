/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA and HIP backends from many threads at once: one plan run by all of them, with and
 * without times; plans made at the same moment, so that code is loaded once; devices opened and
 * closed.
 *
 *   driver_threads cuda|hip
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/testlib.h"
#include "instance.h"

enum { THREADS = 12, ROUNDS = 6 };

static const char *backend;
static const char line[] = "pattern=s2 block=16 local=2 stride=3 heads=4 kv_heads=2 q_len=9 "
                           "kv_len=60 head_dim=16 kv_split=2";

typedef struct worker {
    tess_runtime *runtime;
    tess_device *device;
    pthread_barrier_t *start;
    const problem *p;
    pthread_t thread;
    int busy;
    char complaint[512];
} worker;

/* cmocka's assertions belong to the main thread: workers leave a complaint instead. */
#define WANT(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            snprintf(w->complaint, sizeof w->complaint, "%s (%s)", #condition, tess_last_error()); \
            return 0;                                                                              \
        }                                                                                          \
    } while (0)

static int run_often(worker *w, instance *x) {
    for (int n = 0; n < ROUNDS; n++) {
        double seconds = -1;
        const tess_status status = instance_run(x, n % 2 ? &seconds : NULL);
        /* more calls with times than the device has timers for */
        if (status == TESS_ERROR_BUSY && n % 2) {
            w->busy++;
            continue;
        }
        WANT(status == TESS_OK);
        if (n % 2) WANT(seconds > 0);
        WANT(tess_wait(w->device, 10000000000u) == TESS_OK);
    }
    return 1;
}

static int use_device(worker *w) {
    instance x;
    instance_verdict verdict = {0};
    WANT(instance_create(&x, w->device, w->p, NULL, INSTANCE_GUARDS | INSTANCE_POISON) == TESS_OK);
    const int fine = run_often(w, &x) && instance_fetch(&x) == TESS_OK;
    if (fine) instance_check(&x, 0, &verdict);
    instance_release(&x);
    WANT(fine);
    if (!verdict.pass) snprintf(w->complaint, sizeof w->complaint, "%s", verdict.what);
    return verdict.pass;
}

static void *share_device(void *argument) {
    worker *w = argument;
    pthread_barrier_wait(w->start);
    use_device(w);
    return NULL;
}

static tess_status open_device(tess_runtime *runtime, int index, tess_device **device) {
    char id[32];
    snprintf(id, sizeof id, "%s:%d", backend, index);
    tess_device_desc desc = {.struct_size = sizeof desc, .id = id};
    return tess_device_open(runtime, &desc, device);
}

static void *own_device(void *argument) {
    worker *w = argument;
    pthread_barrier_wait(w->start);
    for (int n = 0; n < 3; n++) {
        if (open_device(w->runtime, n % 2, &w->device) != TESS_OK) {
            snprintf(w->complaint, sizeof w->complaint, "%s", tess_last_error());
            return NULL;
        }
        const int fine = use_device(w);
        tess_device_release(w->device);
        if (!fine) return NULL;
    }
    return NULL;
}

static void in_threads(void *(*body)(void *worker), tess_runtime *runtime, tess_device *device) {
    worker workers[THREADS];
    pthread_barrier_t start;
    problem p;
    char error[256];
    assert_int_equal(problem_parse(&p, line, error, sizeof error), 0);
    assert_int_equal(pthread_barrier_init(&start, NULL, THREADS), 0);
    memset(workers, 0, sizeof workers);
    for (int n = 0; n < THREADS; n++) {
        workers[n].runtime = runtime;
        workers[n].device = device;
        workers[n].start = &start;
        workers[n].p = &p;
        assert_int_equal(pthread_create(&workers[n].thread, NULL, body, &workers[n]), 0);
    }
    for (int n = 0; n < THREADS; n++) assert_int_equal(pthread_join(workers[n].thread, NULL), 0);
    pthread_barrier_destroy(&start);
    problem_free(&p);
    for (int n = 0; n < THREADS; n++)
        if (workers[n].complaint[0]) fail_msg("thread %d: %s", n, workers[n].complaint);
}

static void test_one_device(void **state) {
    (void)state;
    tess_runtime *runtime = test_runtime(1);
    tess_device *device = NULL;
    assert_ok(open_device(runtime, 0, &device));
    in_threads(share_device, runtime, device);
    tess_device_release(device);
    tess_runtime_release(runtime);
}

static void test_many_devices(void **state) {
    (void)state;
    tess_runtime *runtime = test_runtime(1);
    in_threads(own_device, runtime, NULL);
    tess_runtime_release(runtime);
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    backend = argv[1];
    const struct CMUnitTest tests[] = {TEST(test_one_device), TEST(test_many_devices)};
    return cmocka_run_group_tests_name("a driver and many threads", tests, NULL, NULL);
}
