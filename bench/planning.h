/* SPDX-License-Identifier: Apache-2.0 */
/* How long planning takes, and how large plans are. */
#ifndef TESSERA_BENCH_PLANNING_H
#define TESSERA_BENCH_PLANNING_H

#include <tessera/tessera.h>

#include "results.h"

/* The bars of the design, shown beside the figures. */
#define PLANNING_BAR_SECONDS     2e-3
#define PLANNING_BAR_BYTES       (4.0 * 1024 * 1024)
#define PLANNING_BAR_COLUMNS     3e-3 /* as many jobs with the columns of gradients */
#define PLANNING_BAR_JOB_SECONDS 40e-9
#define PLANNING_BAR_JOB_BYTES   64.0

/* Of all plans that are timed. */
enum { PLANNING_DTYPE = TESS_BF16, PLANNING_HEAD_DIM = 128 };

/* Times the plans of some ops, a mask of 1 << TESS_OP_*, on one device and appends them. `kernel`
 * may be NULL. Returns 0; -1 when out of memory; -2 with the reason in `error` when a plan failed.
 */
int planning_measure(bench_report *report, tess_runtime *runtime, tess_device *device,
                     int device_index, const char *kernel, unsigned ops, char *error,
                     size_t error_size);
/* Notes that plans of an op are not made, since compiling for them would take so long. */
void planning_leave_out(bench_device *d, uint32_t op, double compiling);

#endif
