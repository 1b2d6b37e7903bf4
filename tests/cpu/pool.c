/* SPDX-License-Identifier: Apache-2.0 */
/* Which CPUs the pool leaves to its threads, and when it is worth waking them, on a pretended
 * machine of 8 CPUs. The functions below take the place of the system's. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* affinities of threads */
#endif
#include "common/testlib.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "pool.h"

#ifdef __linux__
enum { THREADS = 2, WORKER_CPU = 2 };

static _Thread_local int own_cpu = WORKER_CPU;
static unsigned allowed; /* of the pool's thread, a bit for each CPU */
static pthread_t caller;
static int refuses, others; /* 1: affinities cannot be set; how often the caller's was asked for */

int sched_getcpu(void) { return own_cpu; }

/* How long the threads take to meet, one trial after the other. */
static const int64_t *taken;
static int times_read;
static int64_t now;

int clock_gettime(clockid_t clock, struct timespec *t) {
    (void)clock;
    if (taken && times_read % 2 != 0) now += taken[times_read / 2];
    times_read++;
    *t = (struct timespec){.tv_sec = now / 1000000000, .tv_nsec = now % 1000000000};
    return 0;
}

int pthread_getaffinity_np(pthread_t thread, size_t size, cpu_set_t *set) {
    others += pthread_equal(thread, caller) != 0;
    memset(set, 0, size);
    for (int n = 0; n < 8; n++)
        if (allowed >> n & 1) CPU_SET(n, set);
    return 0;
}

int pthread_setaffinity_np(pthread_t thread, size_t size, const cpu_set_t *set) {
    (void)size;
    others += pthread_equal(thread, caller) != 0;
    if (refuses) return 22;
    allowed = 0;
    for (int n = 0; n < 8; n++) allowed |= (unsigned)CPU_ISSET(n, set) << n;
    return 0;
}

static void *take(const tess_host *host, size_t size, size_t alignment) {
    (void)host;
    return aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

static void give(const tess_host *host, void *pointer, size_t size) {
    (void)host, (void)size;
    free(pointer);
}

static const tess_host host = {.alloc = take, .free = give};

/* Each thread takes one share, since it waits for the other one. */
static void meet(void *context, uint32_t worker) {
    atomic_uint *arrived = context;
    (void)worker;
    atomic_fetch_add(arrived, 1);
    while (atomic_load(arrived) < THREADS) sched_yield();
}

/* The CPUs that the pool's thread may use after a launch from CPU `cpu`. */
static unsigned after_launch(cpu_pool *pool, int cpu) {
    atomic_uint arrived = 0;
    own_cpu = cpu;
    tess_cpu_pool_run(pool, meet, &arrived, THREADS);
    return allowed;
}

static cpu_pool *pool_with(unsigned cpus) {
    caller = pthread_self();
    refuses = others = 0;
    allowed = cpus;
    if (strcmp(tess_cpu_pool_name(), "pthreadpool") != 0) return NULL; /* no threads of its own */
    cpu_pool *pool = tess_cpu_pool_create(&host, THREADS);
    assert_non_null(pool);
    assert_int_equal(after_launch(pool, 3), cpus); /* which tells where the thread runs */
    return pool;
}

static void test_threads_keep_off_the_callers_cpu(void **state) {
    (void)state;
    cpu_pool *pool = pool_with(0x0f);
    if (!pool) return;
    assert_int_equal(after_launch(pool, 1), 0x0f); /* it runs elsewhere */
    assert_int_equal(after_launch(pool, WORKER_CPU), 0x0b);
    assert_int_equal(after_launch(pool, 1), 0x0d);
    assert_int_equal(after_launch(pool, 0), 0x0e);
    assert_int_equal(others, 0);
    tess_cpu_pool_destroy(pool);
}

/* A caller may run where the pool may not. */
static void test_threads_get_no_other_cpus(void **state) {
    (void)state;
    cpu_pool *pool = pool_with(0x0f);
    if (!pool) return;
    assert_int_equal(after_launch(pool, WORKER_CPU), 0x0b);
    assert_int_equal(after_launch(pool, 5), 0x0f);
    assert_int_equal(after_launch(pool, WORKER_CPU), 0x0b);
    tess_cpu_pool_destroy(pool);
}

static void test_changes_by_others_stay(void **state) {
    (void)state;
    cpu_pool *pool = pool_with(0x0f);
    if (!pool) return;
    assert_int_equal(after_launch(pool, WORKER_CPU), 0x0b);
    allowed = 0x03;
    assert_int_equal(after_launch(pool, 0), 0x02);
    assert_int_equal(after_launch(pool, 1), 0x01);
    allowed = 0x10; /* no other one is left */
    assert_int_equal(after_launch(pool, 4), 0x10);
    allowed = 0xf0;
    assert_int_equal(after_launch(pool, 6), 0xb0);
    tess_cpu_pool_destroy(pool);
}

static void test_affinities_that_cannot_be_set(void **state) {
    (void)state;
    cpu_pool *pool = pool_with(0x0f);
    if (!pool) return;
    refuses = 1;
    assert_int_equal(after_launch(pool, WORKER_CPU), 0x0f);
    refuses = 0;
    assert_int_equal(after_launch(pool, WORKER_CPU), 0x0b);
    refuses = 1;
    assert_int_equal(after_launch(pool, 3), 0x0b);
    refuses = 0;
    assert_int_equal(after_launch(pool, 3), 0x07);
    tess_cpu_pool_destroy(pool);
}

static void test_waking_is_measured(void **state) {
    (void)state;
    static const struct {
        int64_t taken[3];
        uint32_t worth;
    } cases[] = {{{40000, 25000, 70000}, 50000}, /* both threads lose the least of them */
                 {{9000, 4000, 4500}, 10000},
                 {{90000, 80000, 60000}, 100000},
                 {{9000000000, 8000000000, 7000000000}, 100000}};
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        taken = cases[n].taken;
        times_read = 0;
        cpu_pool *pool = pool_with(0x0f);
        taken = NULL;
        if (!pool) return;
        assert_int_equal(tess_cpu_pool_worth(pool), cases[n].worth);
        tess_cpu_pool_destroy(pool);
    }
    cpu_pool *pool = tess_cpu_pool_create(&host, 1);
    assert_non_null(pool);
    assert_int_equal(tess_cpu_pool_worth(pool), 0); /* nobody to wake */
    tess_cpu_pool_destroy(pool);
}

int main(void) {
    return RUN_TESTS(TEST(test_threads_keep_off_the_callers_cpu),
                     TEST(test_threads_get_no_other_cpus), TEST(test_changes_by_others_stay),
                     TEST(test_affinities_that_cannot_be_set), TEST(test_waking_is_measured));
}
#else
int main(void) { return 0; }
#endif
