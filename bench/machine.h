/* SPDX-License-Identifier: Apache-2.0 */
/* What the operating system tells about the machine. Nothing that names its owner or its place in a
 * network. */
#ifndef TESSERA_BENCH_MACHINE_H
#define TESSERA_BENCH_MACHINE_H

#include <pthread.h>

#include "results.h"

void machine_describe(bench_machine *m);
/* Processor seconds that everything on the machine but this process and its ended children has used
 * so far, time taken by neighbours of a virtual machine included; NaN: unknown. */
double machine_other_seconds(void);
uint64_t machine_memory_bytes(void);     /* 0: unknown */
uint64_t machine_memory_available(void); /* without swapping; 0: unknown */
uint64_t machine_cache_bytes(int level); /* data cache of level 2 or 3; 0: unknown */
/* Starts a thread that stays on one of the CPUs that the process may use: threads with other
 * numbers get others, as far as there are any. Returns 0 or -1. */
int machine_thread(pthread_t *id, int thread, void *(*work)(void *), void *of);

#endif
