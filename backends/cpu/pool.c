/* SPDX-License-Identifier: Apache-2.0 */
#include "pool.h"

#include <pthread.h>
#include <stdatomic.h>

#include "object.h"
#include "pause.h"

struct cpu_pool {
    const tess_host *host;
    size_t bytes;
    pthread_mutex_t launching; /* held by the thread whose launch it is */
    pthread_mutex_t lock;      /* of what follows */
    pthread_cond_t wake, done;
    cpu_share_fn share;
    void *context;
    /* Of the workers but the launching thread: how many may still begin, how many of these nobody
     * has woken, and the number of the one that began last. */
    uint32_t open, asleep, begun;
    atomic_uint running; /* of them; read without the lock too */
    uint64_t launches;   /* so far: a thread that slept sees that there is another one */
    int ending;
    uint32_t n_threads;
    pthread_t thread[];
};

/* Leaves the lock and wakes two threads, each of which wakes two more. So the launching thread gets
 * to work soon, and the last thread wakes after few others. */
static void unlock_and_wake(cpu_pool *pool) {
    const uint32_t count = pool->asleep < 2 ? pool->asleep : 2;
    pool->asleep -= count;
    pthread_mutex_unlock(&pool->lock);
    for (uint32_t n = 0; n < count; n++) pthread_cond_signal(&pool->wake);
}

static void *work(void *context) {
    cpu_pool *pool = context;
    uint64_t seen = 0;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (pool->launches == seen && !pool->ending) pthread_cond_wait(&pool->wake, &pool->lock);
        if (pool->ending) break;
        seen = pool->launches;
        if (pool->open == 0) continue;
        pool->open--;
        const uint32_t worker = ++pool->begun;
        const cpu_share_fn share = pool->share;
        void *const of = pool->context;
        atomic_fetch_add_explicit(&pool->running, 1, memory_order_relaxed);
        unlock_and_wake(pool);
        share(of, worker);
        pthread_mutex_lock(&pool->lock);
        if (atomic_fetch_sub_explicit(&pool->running, 1, memory_order_release) == 1)
            pthread_cond_signal(&pool->done);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

cpu_pool *tess_cpu_pool_create(const tess_host *host, uint32_t threads) {
    const size_t bytes = sizeof(cpu_pool) + (threads - 1) * sizeof(pthread_t);
    cpu_pool *pool = tess_object(host, bytes, "the thread pool");
    if (!pool) return NULL;
    pool->host = host;
    pool->bytes = bytes;
    pthread_mutex_init(&pool->launching, NULL);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->done, NULL);
    atomic_init(&pool->running, 0);
    while (pool->n_threads < threads - 1 &&
           pthread_create(&pool->thread[pool->n_threads], NULL, work, pool) == 0)
        pool->n_threads++;
    if (pool->n_threads == threads - 1) return pool;
    host->fail(host, TESS_ERROR_OUT_OF_MEMORY, "pthread_create: %u threads of %u started",
               pool->n_threads, threads - 1);
    tess_cpu_pool_destroy(pool);
    return NULL;
}

void tess_cpu_pool_destroy(cpu_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    pool->ending = 1;
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    for (uint32_t n = 0; n < pool->n_threads; n++) pthread_join(pool->thread[n], NULL);
    pthread_cond_destroy(&pool->done);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    pthread_mutex_destroy(&pool->launching);
    pool->host->free(pool->host, pool, pool->bytes);
}

/* Waits for those that began. Shares end at about one time, so this thread looks for a while before
 * it sleeps. */
static void wait_for_all(cpu_pool *pool) {
    enum { LOOKS = 4096 };
    uint32_t spins = 0;
    while (spins < LOOKS && atomic_load_explicit(&pool->running, memory_order_acquire) > 0)
        tess_pause_briefly(&spins);
    pthread_mutex_lock(&pool->lock);
    while (atomic_load_explicit(&pool->running, memory_order_acquire) > 0)
        pthread_cond_wait(&pool->done, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

void tess_cpu_pool_run(cpu_pool *pool, cpu_share_fn share, void *context, uint32_t workers) {
    if (workers > pool->n_threads + 1) workers = pool->n_threads + 1;
    if (workers <= 1) {
        share(context, 0);
        return;
    }
    pthread_mutex_lock(&pool->launching);
    pthread_mutex_lock(&pool->lock);
    pool->share = share;
    pool->context = context;
    pool->open = pool->asleep = workers - 1;
    pool->begun = 0;
    pool->launches++;
    unlock_and_wake(pool);
    share(context, 0);
    pthread_mutex_lock(&pool->lock);
    pool->open = pool->asleep = 0;
    pthread_mutex_unlock(&pool->lock);
    wait_for_all(pool);
    pthread_mutex_unlock(&pool->launching);
}
