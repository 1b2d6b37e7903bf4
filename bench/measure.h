/* SPDX-License-Identifier: Apache-2.0 */
/* One problem on one device: planned, run, checked against the reference, timed. */
#ifndef TESSERA_BENCH_MEASURE_H
#define TESSERA_BENCH_MEASURE_H

#include <tessera/tessera.h>

#include "instance.h"
#include "results.h"

typedef struct measure_limits {
    /* time to spend on timed runs; at least three are made whatever they take */
    double seconds;
    double check_seconds; /* about how long the check against the reference may take */
    uint64_t host_bytes;  /* memory that a problem may take on the host, and on the device */
    uint64_t device_bytes;
} measure_limits;

/* What a problem costs, before anything is allocated. */
typedef struct measure_cost {
    double flops;   /* useful, of one run */
    int decode;     /* bound by memory */
    uint64_t bytes; /* tensors of all roles, once */
    double ideal;   /* dense pairs / kept pairs */
} measure_cost;

/* The pairs are counted by a plan, so the device is needed; nothing is run. On failure returns -1
 * with the reason. */
int measure_estimate(tess_runtime *runtime, tess_device *device, const char *kernel,
                     const char *line, measure_cost *cost, char *reason, size_t reason_size);

/* Fills every measured field of `result`, and its status and note; `line`, `device` and the like
 * are set by this function too. `kernel` NULL: what the device picks. Nothing is reported by the
 * return value: a failure is a result. */
void measure_problem(tess_runtime *runtime, tess_device *device, const char *kernel,
                     const char *line, const measure_limits *limits, bench_result *result);

/* The fields that follow from the line alone: shape, pattern, dtype. What cannot be parsed makes
 * the result a failed one. */
void measure_describe(const char *line, bench_result *result);

/* Layout and plan of a problem, without any memory for tensors; the caller releases what is not
 * NULL, also after a failure. `kernel` may be NULL. */
tess_status measure_plan(tess_runtime *runtime, tess_device *device, const char *kernel,
                         const problem *p, tess_layout **layout, tess_plan **plan);
/* Runs once; the device's own time where it gives one. Returns seconds, or NaN after a failure,
 * which x->error tells. */
double measure_run(instance *x);
/* Compares the result of the last run with the reference in so many rows as fit about `seconds`.
 * Returns 0, or -1 with the reason in `why`. */
int measure_check(instance *x, double seconds, instance_verdict *verdict, char *why,
                  size_t why_size);

/* Useful FLOP/s of a small dense problem, to foretell how long others take. 0 when the kernel does
 * not run it. */
double measure_speed(tess_runtime *runtime, tess_device *device, const char *kernel,
                     uint32_t dtype);

#endif
