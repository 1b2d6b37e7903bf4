/* SPDX-License-Identifier: Apache-2.0 */
/* The limits that a device shows by itself: matrix products by the best library at hand, and a copy
 * of memory. */
#ifndef TESSERA_BENCH_CEILINGS_H
#define TESSERA_BENCH_CEILINGS_H

#include <tessera/tessera.h>

#include "results.h"

/*
 * Measures the CPU with `threads` threads and appends to the device's ceilings. Each library works
 * in a child process of its own with a time limit: libraries bring thread pools whose idle threads
 * spin, and one that crashes or hangs must not take the suite with it. Called before the first
 * device is opened, while this process is still quiet. `seconds` bounds the whole. Returns 0, or -1
 * when out of memory; what could not be measured is told in ceiling_note.
 */
int ceilings_cpu(bench_device *d, int threads, double seconds);

/* The copy ceiling of a device that has memory of its own: tess_copy between two of its buffers.
 * Failures go to ceiling_note. Returns as above. */
int ceilings_device_copy(bench_device *d, tess_device *device, double seconds);

#endif
