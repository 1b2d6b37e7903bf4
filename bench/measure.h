/* SPDX-License-Identifier: Apache-2.0 */
/* One problem on one device: planned, run, checked against the reference, timed. */
#ifndef TESSERA_BENCH_MEASURE_H
#define TESSERA_BENCH_MEASURE_H

#include <tessera/tessera.h>

#include "instance.h"
#include "results.h"

/* A run of so many seconds is not made just to warm up. */
#define CONTEST_SLOW_RUN 1.0

typedef struct measure_limits {
    /* time to spend on timed runs of one contestant; at least three are made whatever they take */
    double seconds;
    double check_seconds; /* about how long the check against the reference may take */
    uint64_t host_bytes;  /* memory that a problem may take on the host, and on the device */
    uint64_t device_bytes;
    double most;           /* what a contest may take at all; 0: whatever it takes */
    double energy_seconds; /* to run for a reading of energy; 0: none is wanted */
} measure_limits;

/* What a problem costs, before anything is allocated. */
typedef struct measure_cost {
    double flops; /* useful, of one run */
    int decode;   /* bound by memory */
    int backward;
    uint64_t bytes;      /* tensors of all roles, once */
    uint64_t bytes_min;  /* that a run has to move */
    double ideal;        /* dense pairs / kept pairs */
    double plan_seconds; /* of the first plan, compilation included */
    char kernel[64];     /* that the plan takes */
} measure_cost;

/* A problem that is ready to be timed beside others. It stays where it is while it is open. */
typedef struct contestant {
    problem p;
    instance x;
    bench_result result;
    int open;
    int turns;      /* of decode: over all layers in a sample; else 0 */
    int at_once;    /* else: runs in a sample */
    uint64_t bytes; /* tensors of all roles, once */
    double latest;  /* seconds of the latest run */
    double turn;    /* seconds of the turn over all layers that has been taken */
} contestant;

/* Parses, plans, fills, runs once and checks. `line` and the shape of the result are set in any
 * case, and its status and note when something is wrong; it returns 0 when the contestant is open,
 * and -1 otherwise. `kernel` NULL: what the device picks. */
int contestant_open(contestant *c, tess_runtime *runtime, tess_device *device, const char *kernel,
                    const char *line, const measure_limits *limits);
/* Times open contestants in turns: each has one sample in every round, so that a bad second of the
 * machine is shared by all. Sets times, sensors and status of their results. `d` NULL: nothing is
 * read from sensors. */
void contest(contestant *const *all, int n, const bench_device *d, const measure_limits *limits);
void contestant_close(contestant *c);
/* Memory that an open one takes on the device. */
uint64_t contestant_bytes(const contestant *c);

/* The pairs are counted by a plan, so the device is needed; nothing is run. On failure returns -1
 * with the reason. */
int measure_estimate(tess_runtime *runtime, tess_device *device, const char *kernel,
                     const char *line, measure_cost *cost, char *reason, size_t reason_size);

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
/* How many rows the reference compares in about so many seconds. */
int64_t measure_check_rows(const problem *p, double seconds);
/* Compares the result of the last run with the reference in so many rows as fit about `seconds`.
 * Returns 0, or -1 with the reason in `why`. */
int measure_check(instance *x, double seconds, instance_verdict *verdict, char *why,
                  size_t why_size);

/* Useful FLOP/s of a small dense problem, to foretell how long others take. 0 when the kernel does
 * not run it. Adds the seconds that went to compilation to *compiling. */
double measure_speed(tess_runtime *runtime, tess_device *device, const bench_device *d,
                     const char *kernel, uint32_t dtype, double *compiling);

#endif
