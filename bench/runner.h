/* SPDX-License-Identifier: Apache-2.0 */
/* Runs suites or one problem over devices and kernels within a time budget. */
#ifndef TESSERA_BENCH_RUNNER_H
#define TESSERA_BENCH_RUNNER_H

#include "results.h"
#include "suite.h"

typedef struct run_options {
    const char *backends; /* NULL: the setting TESSERA_BACKEND if it is set, else as "all" */
    int all_kernels;      /* every kernel of a device instead of the one that it picks */
    const char *peers;    /* programs, a comma list; NULL: none */
    int ceilings, planning;
    double budget;     /* seconds */
    double energy;     /* seconds to run each problem for a reading of energy; 0: none */
    bench_line *lines; /* either these, the same on every device, ... */
    int n_lines;
    suite_series *series; /* ... and these, cut to the time, ... */
    int n_series;
    const char *line; /* ... or one problem, whatever it takes */
} run_options;

/* Fills devices, settings, planning and results. Returns the exit status: 0; 1 when a check or a
 * call failed, no device is there, or the run was interrupted (then report->complete is 0); 2 when
 * `backends` names something unknown. Messages go to standard error. */
int run_suite(const run_options *options, bench_report *report);

#endif
