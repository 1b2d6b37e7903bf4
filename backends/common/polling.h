/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting with a limit where the driver has no such wait: asking again and again. */
#ifndef TESS_COMMON_POLLING_H
#define TESS_COMMON_POLLING_H

#include <stdint.h>
#include <time.h>

static inline uint64_t tess_polling_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Sleeps before the work is asked for once more: an eighth of the time waited so far, between 10 us
 * and 1 ms. So what is done is noticed at most about an eighth late, and long waits cost little CPU
 * time. */
static inline void tess_polling_nap(uint64_t waited_ns) {
    enum { LEAST = 10000, MOST = 1000000 };
    const uint64_t part = waited_ns / 8;
    const struct timespec nap = {0, part < LEAST ? LEAST : part > MOST ? MOST : (long)part};
    nanosleep(&nap, NULL);
}

#endif
