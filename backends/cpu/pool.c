/* SPDX-License-Identifier: Apache-2.0 */
#include "pool.h"

#if TESS_CPU_PTHREADPOOL
#include <pthread.h>
#include <pthreadpool.h>

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

/* The caller of a launch is one of its threads. */
void *tess_cpu_pool_create(uint32_t threads) {
    return threads_start(threads - 1) ? pthreadpool_create(threads) : NULL;
}
void tess_cpu_pool_destroy(void *pool) { pthreadpool_destroy(pool); }
const char *tess_cpu_pool_name(void) { return "pthreadpool"; }

typedef struct shares {
    cpu_share_fn share;
    void *context;
} shares;

static void do_share(void *of, size_t worker) {
    const shares *s = of;
    TAKE_OVER(of);
    s->share(s->context, (uint32_t)worker);
    HAND_OVER(of);
}

static void spread(void *pool, cpu_share_fn share, void *context, uint32_t workers) {
    shares s = {share, context};
    HAND_OVER(&s);
    pthreadpool_parallelize_1d(pool, do_share, &s, workers, PTHREADPOOL_FLAG_YIELD_WORKERS);
    TAKE_OVER(&s);
}
#else
/* One thread: the caller's. Any pointer that is not NULL stands for the pool. */
void *tess_cpu_pool_create(uint32_t threads) {
    static char one;
    (void)threads;
    return &one;
}
void tess_cpu_pool_destroy(void *pool) { (void)pool; }
const char *tess_cpu_pool_name(void) { return "one thread (built without pthreadpool)"; }

static void spread(void *pool, cpu_share_fn share, void *context, uint32_t workers) {
    (void)pool;
    for (uint32_t n = 0; n < workers; n++) share(context, n);
}
#endif

void tess_cpu_pool_run(void *pool, cpu_share_fn share, void *context, uint32_t workers) {
    if (workers <= 1)
        share(context, 0);
    else
        spread(pool, share, context, workers);
}
