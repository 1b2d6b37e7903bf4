/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The threads of an open device. Between launches they sleep instead of spinning, because an
 * application has other threads that need the cores.
 */
#ifndef TESSERA_CPU_POOL_H
#define TESSERA_CPU_POOL_H

#include <tessera/tessera_backend.h>

/* A worker's share of a launch. Workers count from 0. */
typedef void (*cpu_share_fn)(void *context, uint32_t worker);

enum { TESS_CPU_MAX_THREADS = 1024 };

typedef struct cpu_pool cpu_pool;

/* A pool of `threads` threads, the one that launches among them. NULL, and the host has the
 * message, if memory or threads are short. */
cpu_pool *tess_cpu_pool_create(const tess_host *host, uint32_t threads);
void tess_cpu_pool_destroy(cpu_pool *pool);
const char *tess_cpu_pool_name(void);

/* The least work, in nanoseconds of one thread, for which waking the threads pays: 10 to 100 us,
 * measured when the pool was created; 0 if it has one thread. */
uint32_t tess_cpu_pool_worth(const cpu_pool *pool);

/* Calls `share` once for each of `workers` workers, this thread among those that call it, and
 * returns when all are done. Launches of several threads queue; one for a single worker runs on its
 * caller alone, and does not. */
void tess_cpu_pool_run(cpu_pool *pool, cpu_share_fn share, void *context, uint32_t workers);

#endif
