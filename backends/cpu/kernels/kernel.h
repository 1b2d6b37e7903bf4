/* SPDX-License-Identifier: Apache-2.0 */
/* The interface of one instruction set: functions that run jobs, and the scratch memory that they
 * need. */
#ifndef TESSERA_CPU_KERNEL_H
#define TESSERA_CPU_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#include <tessera/tessera_backend.h>

/* The rows of a job of few rows, and the most such jobs that take turns on a thread. */
enum { CPU_FEW_ROWS = 4, CPU_JOBS_AT_ONCE = 8 };

/* Runs `count` jobs (at least one) on the calling thread. They are `apart` jobs from each other.
 * Several jobs must all have the same few rows, and read the same keys of different kv heads.
 * `scratch` is 64-byte aligned and as large as the kernel's `scratch` says; its contents do not
 * matter. */
typedef void (*cpu_jobs_fn)(const tess_launch *launch, const tess_job *jobs, uint32_t count,
                            uint64_t apart, void *scratch);
typedef size_t (*cpu_scratch_fn)(int32_t head_dim);

/* Most packed rows of a job. */
typedef uint32_t (*cpu_rows_fn)(int32_t head_dim);

/* Runs job n of the launch's stage of TESS_OP_BACKWARD. `scratch` is as above, and begins with the
 * worker's turn. `turn` points to that turn if several workers add to dQ, else it is NULL. */
typedef struct cpu_turn cpu_turn;
typedef void (*cpu_job_fn)(const tess_launch *launch, uint64_t n, void *scratch, cpu_turn *turn);

/* For backward: about how many rows a column multiplies together, and the rows of a strip. For each
 * row of a strip a run keeps LSE, Delta and an accumulator of dQ for every head. */
enum { CPU_STEP_ROWS = 64, CPU_STRIP_ROWS = 32 };
static inline int32_t cpu_accumulator_floats(int32_t head_dim) { return (head_dim + 15) / 16 * 16; }

/* Prepares the calling thread before its first job of a launch and tidies it after the last one
 * (AMX tile state); may be NULL. */
typedef void (*cpu_thread_fn)(void);

#define CPU_DECLARE_KERNEL(name)                                                                 \
    void tess_cpu_##name##_jobs(const tess_launch *launch, const tess_job *jobs, uint32_t count, \
                                uint64_t apart, void *scratch);                                  \
    size_t tess_cpu_##name##_scratch(int32_t head_dim);                                          \
    uint32_t tess_cpu_##name##_rows(int32_t head_dim);                                           \
    void tess_cpu_##name##_backward_job(const tess_launch *launch, uint64_t n, void *scratch,    \
                                        cpu_turn *turn);                                         \
    size_t tess_cpu_##name##_backward_scratch(int32_t head_dim);                                 \
    uint32_t tess_cpu_##name##_backward_lanes(int32_t head_dim)
CPU_DECLARE_KERNEL(portable);
CPU_DECLARE_KERNEL(avx2);
CPU_DECLARE_KERNEL(avx512);
CPU_DECLARE_KERNEL(avx512_bf16);
CPU_DECLARE_KERNEL(neon);
CPU_DECLARE_KERNEL(amx_bf16);
CPU_DECLARE_KERNEL(amx_bf16_soft);

void tess_cpu_amx_bf16_enter(void);
void tess_cpu_amx_bf16_leave(void);

#endif
