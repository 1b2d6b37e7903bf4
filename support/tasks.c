/* SPDX-License-Identifier: Apache-2.0 */
#include "tasks.h"

#include <pthread.h>
#include <unistd.h>

int64_t tasks_at_once(int64_t elements) {
    enum { WORTH_A_THREAD = 1 << 19 };
    const long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    if (elements < WORTH_A_THREAD || cpus < 2) return 1;
    return cpus < TASKS_MOST ? cpus : TASKS_MOST;
}

void tasks_run(void *(*work)(void *task), void *tasks, size_t size, int64_t n) {
    pthread_t threads[TASKS_MOST];
    int started[TASKS_MOST] = {0};
    /* This thread takes the first task, and those for which there was no thread. */
    for (int64_t i = 1; i < n; i++)
        started[i] = pthread_create(&threads[i], NULL, work, (char *)tasks + (size_t)i * size) == 0;
    for (int64_t i = 0; i < n; i++)
        if (!started[i]) work((char *)tasks + (size_t)i * size);
    for (int64_t i = 1; i < n; i++)
        if (started[i]) pthread_join(threads[i], NULL);
}
