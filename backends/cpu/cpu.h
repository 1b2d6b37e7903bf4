/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of the CPU backend: the table of kernels, what the processor can do, and the work of one
 * launch. */
#ifndef TESSERA_CPU_CPU_H
#define TESSERA_CPU_CPU_H

#include <sys/types.h>

#include "kernels/kernel.h"
#include "pool.h"
#include "row.h"

/* isa.c: whether this process may use an instruction set; `reason` tells why not. */
enum cpu_isa {
    CPU_ISA_ANY,
    CPU_ISA_AVX2,
    CPU_ISA_AVX512,
    CPU_ISA_AVX512_BF16,
    CPU_ISA_AVX512_VBMI,
    CPU_ISA_AMX_BF16,
    CPU_ISA_AMX_INT8,
    CPU_ISA_NEON
};
int tess_cpu_isa_usable(enum cpu_isa isa, const char **reason);
/* Asks the system for what the set needs at run time, once its kernel is chosen; the permission for
 * AMX holds for the whole process and for good. */
int tess_cpu_isa_request(enum cpu_isa isa, const char **reason);
void tess_cpu_isa_list(char *text, size_t size);   /* names of the usable sets, blanks between */
void tess_cpu_model_name(char *text, size_t size); /* as the system tells it */

/* table.c: one implementation. Forward has `jobs`, backward `job`, and other operations have `item`
 * alone. */
typedef void (*cpu_item_fn)(const tess_launch *launch, uint64_t item);

typedef struct cpu_row {
    tess_row_head head;
    enum cpu_isa isa;
    uint32_t dtypes; /* bit n: tess_dtype n */
    /* GFLOP/s of a thread, about: for the plan's choice of parts, and so a constant */
    uint32_t rate;
    cpu_jobs_fn jobs; /* NULL: not built for this processor */
    cpu_scratch_fn scratch;
    cpu_rows_fn rows;
    cpu_thread_fn enter, leave;
    cpu_item_fn item; /* does one of launch->n_jobs */
    cpu_job_fn job;   /* does one of a stage's */
} cpu_row;

/* a constant: how a plan splits keys must not depend on the number of threads */
enum { CPU_PARALLEL_JOBS = 64 };

typedef struct cpu_device {
    const tess_host *host;
    cpu_pool *pool;
    uint32_t threads;
    pid_t pid; /* of the process that opened it: the pool's threads do not survive fork() */
} cpu_device;

/* Workers of a launch of n_jobs jobs, at `rate` FLOPs a nanosecond: `threads`, or fewer where its
 * work takes less than `worth_ns`. */
uint32_t tess_cpu_workers(const tess_launch *launch, uint32_t rate, uint64_t n_jobs,
                          uint32_t threads, uint32_t worth_ns);

/* The jobs of a launch that each of `workers` workers takes before those of others: up to end[n],
 * for workers in turn. Returns the number of workers, or 1 if they share all jobs. */
enum { CPU_HOMES = 16 };
uint32_t tess_cpu_homes(const tess_launch *launch, uint32_t rate, uint64_t n_jobs, uint32_t workers,
                        uint32_t worth_ns, uint64_t *end);

/* The same as tess_cpu_workers for a stage of backward. */
uint32_t tess_cpu_stage_workers(const tess_launch *launch, uint32_t rate, uint32_t threads,
                                uint32_t worth_ns);

/* Workers that a plan splits keys for, if a job has so many rows: 1 to CPU_PARALLEL_JOBS. */
uint32_t tess_cpu_split_workers(const tess_kernel_key *key, uint64_t rows, uint32_t rate);

tess_status tess_cpu_kernel(void *device, uint32_t index, const tess_kernel_key *key,
                            tess_kernel_info *info, tess_kernel *kernel);

/* run.c */
tess_status tess_cpu_launch(void *device, const tess_launch *launch);

/* merge.c: one merge job. */
void tess_cpu_merge(const tess_launch *launch, const tess_merge *merge);

/* merge.c: merges one vector of all parts. */
void tess_cpu_merge_parts(const tess_launch *launch, uint64_t vector);

/* paging.c: appends a row; copies a token of a page. */
void tess_cpu_append(const tess_launch *launch, uint64_t row);
void tess_cpu_copy_pages(const tess_launch *launch, uint64_t token);

/* step.c */
void tess_cpu_prepare(const tess_launch *launch, uint64_t group);

/* Bytes of scratch memory of one thread, rounded so that the slices of all threads are aligned. */
static inline size_t cpu_thread_bytes(const cpu_row *row, int32_t head_dim) {
    return (row->scratch(head_dim) + 4095) / 4096 * 4096;
}

#endif
