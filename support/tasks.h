/* SPDX-License-Identifier: Apache-2.0 */
/* Work in equal pieces, a thread each: what the reference computes for several rows. */
#ifndef TESSERA_SUPPORT_TASKS_H
#define TESSERA_SUPPORT_TASKS_H

#include <stddef.h>
#include <stdint.h>

enum { TASKS_MOST = 32 };

/* How many tasks to run at once where each visits so many elements: 1 where that is not worth a
 * thread. */
int64_t tasks_at_once(int64_t elements);
/* Calls `work` with each of `n` tasks (TASKS_MOST at most) of `size` bytes; returns when all have
 * ended. */
void tasks_run(void *(*work)(void *task), void *tasks, size_t size, int64_t n);

#endif
