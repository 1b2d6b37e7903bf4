/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of additions to dQ. Columns of one kv head add to the same rows, and sums of floats
 * depend on their order. So a worker with job n adds to a row only when all workers with earlier
 * jobs of that sequence and kv head are past the row. Jobs are taken in order. So the earliest one
 * never waits, and the order of additions is that of the jobs, with any number of workers. Columns
 * are spread over kv heads, so no worker waits unless there are more workers than heads.
 *
 * A turn counts rows of query heads: see cpu_turn_at.
 */
#ifndef TESSERA_CPU_TURNS_H
#define TESSERA_CPU_TURNS_H

#include <stdatomic.h>

#include "kernel.h"

enum { CPU_TURN_BYTES = 2304, CPU_MAX_WORKERS = 1024 };

/* Of one worker, at the beginning of its scratch memory. */
struct cpu_turn {
    atomic_uint_fast64_t job;  /* or CPU_TURN_NONE, CPU_TURN_TAKING */
    atomic_uint_fast64_t done; /* the job adds to no row before this any more */
    /* only the worker itself uses the rest */
    char *first; /* the turns of all workers ... */
    size_t apart;
    uint32_t workers, n_before;
    uint16_t before[CPU_MAX_WORKERS]; /* workers that had earlier jobs of the kv head */
};
_Static_assert(sizeof(struct cpu_turn) <= CPU_TURN_BYTES, "scratch begins behind a turn");

/* The place of a row of a query head in the order of rows. */
static inline uint64_t cpu_turn_at(uint32_t head, int32_t row) {
    return (uint64_t)head << 32 | (uint32_t)row;
}

/* Prepares the turns of all workers of a launch. */
void tess_cpu_turns_begin(char *first, size_t apart, uint32_t workers);

/* Takes the next job, of those up to `end`; false: there is none. */
int tess_cpu_turn_take(cpu_turn *turn, const tess_launch *launch, atomic_uint_fast64_t *next,
                       uint64_t end, uint64_t *job);

/* Waits until all rows before `row` may be added to. */
void tess_cpu_turn_wait(cpu_turn *turn, uint64_t row);

/* Says that the job is done with the rows before `row`. */
static inline void tess_cpu_turn_done(cpu_turn *turn, uint64_t row) {
    atomic_store_explicit(&turn->done, row, memory_order_release);
}

#endif
