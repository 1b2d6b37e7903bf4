/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for another thread that is about to be done. */
#ifndef TESSERA_CPU_PAUSE_H
#define TESSERA_CPU_PAUSE_H

#include <sched.h>
#include <stdint.h>

/* One look of many. A neighbour that does not run, as on a busy machine, gets the processor. */
static inline void tess_pause_briefly(uint32_t *spins) {
    enum { SPINS = 256 };
    if (++*spins % SPINS == 0) sched_yield();
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

#endif
