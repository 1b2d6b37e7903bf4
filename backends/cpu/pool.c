/* SPDX-License-Identifier: Apache-2.0 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sched_getcpu, affinities of threads */
#endif
#include "pool.h"

#include "object.h"

#if TESS_CPU_PTHREADPOOL
#include <pthread.h>
#include <pthreadpool.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

/* The pool itself is not instrumented, so ThreadSanitizer has to be told where work is handed
 * over. */
#if defined(__SANITIZE_THREAD__)
#define SANITIZE_THREAD 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SANITIZE_THREAD 1
#endif
#endif
#if SANITIZE_THREAD
void __tsan_acquire(void *address);
void __tsan_release(void *address);
#define HAND_OVER(address) __tsan_release(address)
#define TAKE_OVER(address) __tsan_acquire(address)
#else
#define HAND_OVER(address) (void)(address)
#define TAKE_OVER(address) (void)(address)
#endif

static void *wait_for_start(void *gate) {
    pthread_mutex_lock(gate);
    pthread_mutex_unlock(gate);
    return NULL;
}

/* pthreadpool_create does not look whether its threads start, and then waits for them without end.
 * So as many are started, and ended, before it. */
static int threads_start(uint32_t threads) {
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    pthread_t started[TESS_CPU_MAX_THREADS];
    uint32_t n = 0;
    pthread_mutex_lock(&gate);
    while (n < threads && pthread_create(&started[n], NULL, wait_for_start, &gate) == 0) n++;
    pthread_mutex_unlock(&gate);
    for (uint32_t i = 0; i < n; i++) pthread_join(started[i], NULL);
    return n == threads;
}

/* A thread of the pool. */
typedef struct member {
    pthread_t thread;
    atomic_int cpu; /* where its last share ran */
    int away;       /* the CPU that it is kept away from, or -1 */
#ifdef __linux__
    cpu_set_t allowed, kept; /* the CPUs it may use apart from that, and those that are left */
#endif
} member;

struct cpu_pool {
    const tess_host *host;
    size_t bytes;
    pthreadpool_t pool;
    pthread_mutex_t launching;
    pthread_t creator;
    uint32_t threads; /* the one that launches among them */
    uint32_t worth_ns;
    atomic_uint joined, n_members;
    member member[];
};

/* Waits for all other threads. One that does not wait may take the share of another one. */
static void meet(void *of, size_t worker) {
    cpu_pool *pool = of;
    (void)worker;
    atomic_fetch_add(&pool->joined, 1);
    while (atomic_load(&pool->joined) < pool->threads) sched_yield();
}

/* Makes a thread known. */
static void join(void *of, size_t worker) {
    cpu_pool *pool = of;
    if (!pthread_equal(pthread_self(), pool->creator)) {
        member *m = &pool->member[atomic_fetch_add(&pool->n_members, 1)];
        m->thread = pthread_self();
        atomic_init(&m->cpu, -1);
        m->away = -1;
    }
    meet(pool, worker);
}

static void call_all(cpu_pool *pool, pthreadpool_task_1d_t task) {
    atomic_store(&pool->joined, 0);
    HAND_OVER(pool);
    pthreadpool_parallelize_1d(pool->pool, task, pool, pool->threads,
                               PTHREADPOOL_FLAG_YIELD_WORKERS);
    TAKE_OVER(pool);
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/*
 * The work, in nanoseconds of one thread, that is worth waking the threads for. Machines differ
 * tenfold, so it is measured: the least time that all threads take to meet after a rest of a
 * millisecond. Each thread loses about that much, the caller because it wakes the others.
 */
static uint32_t measure_worth(cpu_pool *pool) {
    enum { TRIALS = 3, LEAST_NS = 10000, MOST_NS = 100000 };
    const struct timespec rest = {.tv_nsec = 1000000};
    int64_t least = INT64_MAX;
    for (int n = 0; n < TRIALS; n++) {
        nanosleep(&rest, NULL);
        const int64_t begin = now_ns();
        call_all(pool, meet);
        const int64_t taken = now_ns() - begin;
        if (taken < least) least = taken;
    }
    if (least > MOST_NS) return MOST_NS;
    const int64_t worth = least * pool->threads / (pool->threads - 1);
    return (uint32_t)(worth < LEAST_NS ? LEAST_NS : worth > MOST_NS ? MOST_NS : worth);
}

cpu_pool *tess_cpu_pool_create(const tess_host *host, uint32_t threads) {
    const size_t bytes = sizeof(cpu_pool) + threads * sizeof(member);
    cpu_pool *pool = tess_object(host, bytes, "the thread pool");
    if (!pool) return NULL;
    pool->host = host;
    pool->bytes = bytes;
    pool->creator = pthread_self();
    pool->threads = threads;
    pthread_mutex_init(&pool->launching, NULL);
    if (threads_start(threads - 1)) pool->pool = pthreadpool_create(threads);
    if (!pool->pool) {
        tess_cpu_pool_destroy(pool);
        host->fail(host, TESS_ERROR_OUT_OF_MEMORY, "pthreadpool_create: no pool of %u threads",
                   threads);
        return NULL;
    }
    if (threads > 1) {
        call_all(pool, join);
        pool->worth_ns = measure_worth(pool);
    }
    return pool;
}

void tess_cpu_pool_destroy(cpu_pool *pool) {
    if (pool->pool) pthreadpool_destroy(pool->pool);
    pthread_mutex_destroy(&pool->launching);
    pool->host->free(pool->host, pool, pool->bytes);
}

uint32_t tess_cpu_pool_worth(const cpu_pool *pool) { return pool->worth_ns; }

const char *tess_cpu_pool_name(void) { return "pthreadpool"; }

#ifdef __linux__
static int own_cpu(void) { return sched_getcpu(); }

/*
 * Keeps a thread that last ran on the caller's CPU away from it. The scheduler of a virtual machine
 * may take an idle CPU for a busy one, since the host has it back. It then wakes a thread on the
 * CPU of the one that it is to work beside, launch after launch. Other CPUs stay allowed as they
 * were, and once a thread is kept away, that follows the caller from CPU to CPU. A thread gets no
 * CPU that it did not have, and where somebody else has changed its CPUs, those count from then on.
 */
static void keep_away(member *m, int cpu) {
    cpu_set_t now;
    if (cpu < 0 || m->away == cpu) return;
    if (m->away < 0 && atomic_load_explicit(&m->cpu, memory_order_relaxed) != cpu) return;
    if (pthread_getaffinity_np(m->thread, sizeof now, &now) != 0) return;
    if (m->away < 0 || !CPU_EQUAL(&now, &m->kept)) m->allowed = now;
    now = m->allowed;
    CPU_CLR(cpu, &now);
    if (CPU_COUNT(&now) == 0 || pthread_setaffinity_np(m->thread, sizeof now, &now) != 0) return;
    m->kept = now;
    m->away = cpu;
}
#else
static int own_cpu(void) { return -1; }
static void keep_away(member *m, int cpu) { (void)m, (void)cpu; }
#endif

typedef struct shares {
    cpu_share_fn share;
    void *context;
    cpu_pool *pool;
} shares;

static void do_share(void *of, size_t worker) {
    const shares *s = of;
    TAKE_OVER(of);
    const uint32_t n_members = atomic_load_explicit(&s->pool->n_members, memory_order_relaxed);
    for (uint32_t n = 0; n < n_members; n++)
        if (pthread_equal(s->pool->member[n].thread, pthread_self()))
            atomic_store_explicit(&s->pool->member[n].cpu, own_cpu(), memory_order_relaxed);
    s->share(s->context, (uint32_t)worker);
    HAND_OVER(of);
}

static void spread(cpu_pool *pool, cpu_share_fn share, void *context, uint32_t workers) {
    shares s = {share, context, pool};
    pthread_mutex_lock(&pool->launching);
    const int cpu = own_cpu();
    const uint32_t n_members = atomic_load_explicit(&pool->n_members, memory_order_relaxed);
    for (uint32_t n = 0; n < n_members; n++) keep_away(&pool->member[n], cpu);
    HAND_OVER(&s);
    pthreadpool_parallelize_1d(pool->pool, do_share, &s, workers, PTHREADPOOL_FLAG_YIELD_WORKERS);
    TAKE_OVER(&s);
    pthread_mutex_unlock(&pool->launching);
}
#else
/* One thread: the caller's. */
struct cpu_pool {
    const tess_host *host;
};
cpu_pool *tess_cpu_pool_create(const tess_host *host, uint32_t threads) {
    (void)threads;
    cpu_pool *pool = tess_object(host, sizeof *pool, "the thread pool");
    if (pool) pool->host = host;
    return pool;
}
void tess_cpu_pool_destroy(cpu_pool *pool) { pool->host->free(pool->host, pool, sizeof *pool); }
uint32_t tess_cpu_pool_worth(const cpu_pool *pool) {
    (void)pool;
    return 0;
}
const char *tess_cpu_pool_name(void) { return "one thread (built without pthreadpool)"; }

static void spread(cpu_pool *pool, cpu_share_fn share, void *context, uint32_t workers) {
    (void)pool;
    for (uint32_t n = 0; n < workers; n++) share(context, n);
}
#endif

void tess_cpu_pool_run(cpu_pool *pool, cpu_share_fn share, void *context, uint32_t workers) {
    if (workers <= 1)
        share(context, 0);
    else
        spread(pool, share, context, workers);
}
