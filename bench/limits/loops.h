/* SPDX-License-Identifier: Apache-2.0 */
/* Loops in the C that OpenCL C and HIP C++ have in common, compiled when they run. */
#ifndef TESSERA_BENCH_LIMITS_LOOPS_H
#define TESSERA_BENCH_LIMITS_LOOPS_H

#include "gpu.h"

/* A loop as a driver runs it: its name in the program, what the suite calls it, and FLOP of a
 * thread in a turn. Without a name the device has no such thing. */
typedef struct loops_kind {
    const char *name, *method;
    double flop;
} loops_kind;

/* loops.cl, which the build puts into the program. */
extern const char loops_source[];

/* What both drivers launch: groups of threads on two arrays of so many bytes. */
typedef struct loops_launch {
    loops_kind kind;
    int moves, turns;
    size_t groups;
    uint64_t bytes;
} loops_launch;
/* Of a kernel that stores what a thread does on matrix units in a turn, in FLOP; 0: there are none.
 */
extern const loops_launch loops_unit_flop;
loops_launch loops_launch_of(const gpu_job *job, loops_kind kind, uint32_t compute_units);
/* Names the method, behind the language. Returns the work of a run; after the error `code` of an
 * interface, 0 and the reason. */
double loops_ready(gpu_job *job, const loops_launch *l, const char *language, const char *interface,
                   int code);

/* `unit_flop`: what that kernel stored; `half`: whether there is arithmetic of f16. */
loops_kind loops_kind_of(int loop, uint32_t unit_flop, int half);

#endif
