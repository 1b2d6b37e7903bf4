/* SPDX-License-Identifier: Apache-2.0 */
/* What one instruction set offers to the backend: a function that does one job, and how much
 * scratch memory it needs for it. */
#ifndef TESSERA_CPU_KERNEL_H
#define TESSERA_CPU_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#include <tessera/tessera_backend.h>

/* Rows of a job that has few, and most of such jobs that take turns on a thread. */
enum { CPU_FEW_ROWS = 4, CPU_JOBS_AT_ONCE = 8 };

/* Does `count` jobs on the calling thread, at least one, which lie `apart` jobs from each other. If
 * there are more, all have as many rows, few, and read the same keys of different kv heads.
 * `scratch` is 64-byte aligned and has the bytes that `scratch` of the same kernel names; its
 * contents do not matter. */
typedef void (*cpu_jobs_fn)(const tess_launch *launch, const tess_job *jobs, uint32_t count,
                            uint64_t apart, void *scratch);
typedef size_t (*cpu_scratch_fn)(int32_t head_dim);

/* Most packed rows of a job. */
typedef uint32_t (*cpu_rows_fn)(int32_t head_dim);

/* Does job n of the launch's stage of TESS_OP_BACKWARD. `scratch` as above; its first bytes are the
 * worker's turn. `turn` is the same where several workers add to dQ, else NULL. */
typedef struct cpu_turn cpu_turn;
typedef void (*cpu_job_fn)(const tess_launch *launch, uint64_t n, void *scratch, cpu_turn *turn);

/* Of backward: rows that a column works on together, about; and rows of a strip, for each of which
 * a run keeps LSE, Delta and an accumulator of dQ of every head. */
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
