/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel that prepares steps needs of CUDA and HIP, beside the dialect. */
#ifndef TESS_STEP_CUDA_H
#define TESS_STEP_CUDA_H

#include "dialect_cuda.h"

#define TESS_PREPARE_THREADS 256u

#if defined(__HIP__) || defined(__HIP_PLATFORM_AMD__)
TESS_FUNCTION uint tess_add_shared(uint *to, uint x) {
    return __atomic_fetch_add(to, x, __ATOMIC_RELAXED);
}
TESS_FUNCTION void tess_most_shared(uint *to, uint x) {
    __atomic_fetch_max(to, x, __ATOMIC_RELAXED);
}
TESS_FUNCTION void tess_least_shared(uint *to, uint x) {
    __atomic_fetch_min(to, x, __ATOMIC_RELAXED);
}
#else
TESS_FUNCTION uint tess_add_shared(uint *to, uint x) {
    uint before;
    asm volatile("atom.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(to), "r"(x) : "memory");
    return before;
}
TESS_FUNCTION void tess_most_shared(uint *to, uint x) {
    asm volatile("red.max.u32 [%0], %1;" ::"l"(to), "r"(x) : "memory");
}
TESS_FUNCTION void tess_least_shared(uint *to, uint x) {
    asm volatile("red.min.u32 [%0], %1;" ::"l"(to), "r"(x) : "memory");
}
#endif

#define TESS_ADD_SHARED(to, x)   tess_add_shared(&(to), (x))
#define TESS_MOST_SHARED(to, x)  tess_most_shared(&(to), (x))
#define TESS_LEAST_SHARED(to, x) tess_least_shared(&(to), (x))
#define TESS_CU_ROWS(n)          (cu_rows[n])
#define TESS_KV_LENS(n)          (kv_lens_in[n])
#define TESS_Q_FIRST(n)          (q_first_in[n])
#define TESS_STEP                , uint *__restrict__ step
#define TESS_STEP_OF_KERNEL      , step
#define TESS_STORE_STEP(at, x)   (step[at] = (x))
#define TESS_PREPARE_KERNEL                                                  \
    extern "C" __global__ TESS_BOUNDS(256) void tess_prepare(                \
        const int *__restrict__ cu_rows, const int *__restrict__ kv_lens_in, \
        uint *__restrict__ step, const int *__restrict__ q_first_in,         \
        const uint *__restrict__ tables, const tess_args args)

#endif /* TESS_STEP_CUDA_H */
