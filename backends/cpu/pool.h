/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The threads of an open device. A launch asks for some of them and begins without them: whoever
 * wakes in time takes part, and nobody waits for a thread that does not. Between launches they
 * sleep, because an application has other threads that need the cores.
 */
#ifndef TESSERA_CPU_POOL_H
#define TESSERA_CPU_POOL_H

#include <tessera/tessera_backend.h>

typedef struct cpu_pool cpu_pool;

/* A worker's share of a launch. Workers count from 0, which is the thread that launches. A share
 * may only wait for one that has begun: others may never do. */
typedef void (*cpu_share_fn)(void *context, uint32_t worker);

/* A pool of `threads` threads, the one that launches among them. NULL, and the host has the
 * message, if memory or threads are short. */
cpu_pool *tess_cpu_pool_create(const tess_host *host, uint32_t threads);
void tess_cpu_pool_destroy(cpu_pool *pool);

/* Calls `share` on this thread and on up to `workers` - 1 others, and returns when all that began
 * are done. Launches of several threads queue; one for a single worker does not. */
void tess_cpu_pool_run(cpu_pool *pool, cpu_share_fn share, void *context, uint32_t workers);

#endif
