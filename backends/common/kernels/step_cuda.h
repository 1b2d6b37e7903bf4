/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel that prepares steps needs of CUDA and HIP, beside the dialect. */
#ifndef TESS_STEP_CUDA_H
#define TESS_STEP_CUDA_H

#include "dialect_cuda.h"
#include "step_shape.h"

#define TESS_PREPARE_THREADS TESS_STEP_THREADS
#define TESS_PREPARE_SHARES  TESS_STEP_SHARES

#if defined(__HIP__) || defined(__HIP_PLATFORM_AMD__)
#define TESS_PREPARE_BOUNDS TESS_BOUNDS(TESS_PREPARE_THREADS)
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
#define TESS_PREPARE_BOUNDS __attribute__((launch_bounds(TESS_PREPARE_THREADS, 1)))
#define TESS_ALL_LANES      0xffffffffu

TESS_FUNCTION uint tess_shared_address(const uint *of) {
    unsigned long long at;
    asm("cvta.to.shared.u64 %0, %1;" : "=l"(at) : "l"(of));
    return (uint)at;
}
TESS_FUNCTION void tess_most_shared(uint *to, uint x) {
    asm volatile("red.shared.max.u32 [%0], %1;" ::"r"(tess_shared_address(to)), "r"(x) : "memory");
}
TESS_FUNCTION void tess_least_shared(uint *to, uint x) {
    asm volatile("red.shared.min.u32 [%0], %1;" ::"r"(tess_shared_address(to)), "r"(x) : "memory");
}
TESS_FUNCTION uint tess_lanes_equal(uint active, uint x) {
    uint equal;
    asm volatile("{\n\t.reg .pred all;\n\tmatch.all.sync.b32 %0|all, %1, %2;\n\t}"
                 : "=r"(equal)
                 : "r"(x), "r"(active)
                 : "memory");
    return equal;
}
/* Where all lanes add the same to one word, which jobs of equal length make usual, one of them does
 * it for all: the words of a warp's atomics are otherwise worked on one after the other. */
TESS_FUNCTION uint tess_add_shared(uint *to, uint x) {
    const uint at = tess_shared_address(to);
    uint active, below, before = 0u, count;
    asm volatile("activemask.b32 %0;" : "=r"(active) : : "memory");
    asm("mov.u32 %0, %%lanemask_lt;" : "=r"(below));
    const bool equal = (tess_lanes_equal(active, at) & tess_lanes_equal(active, x)) != 0u;
    below = equal ? active & below : 0u;
    asm("popc.b32 %0, %1;" : "=r"(count) : "r"(active));
    if (below == 0u)
        asm volatile("atom.shared.add.u32 %0, [%1], %2;"
                     : "=r"(before)
                     : "r"(at), "r"(equal ? x * count : x)
                     : "memory");
    if (!equal) return before;
    uint leader, rank;
    asm("popc.b32 %0, %1;" : "=r"(rank) : "r"(below));
    asm("popc.b32 %0, %1;" : "=r"(leader) : "r"((active & (0u - active)) - 1u));
    asm volatile("shfl.sync.idx.b32 %0, %1, %2, 31, %3;"
                 : "=r"(before)
                 : "r"(before), "r"(leader), "r"(active)
                 : "memory");
    return before + rank * x;
}

/* The x of the lane so far before this one; 0 before the first. */
TESS_FUNCTION uint tess_lane_before(uint x, uint gap) {
    uint y;
    asm volatile("{\n\t.reg .pred there;\n\tshfl.sync.up.b32 %0|there, %1, %2, 0, %3;\n\t"
                 "@!there mov.u32 %0, 0;\n\t}"
                 : "=&r"(y)
                 : "r"(x), "r"(gap), "r"(TESS_ALL_LANES)
                 : "memory");
    return y;
}
TESS_FUNCTION uint tess_sum_of_warp(uint x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    uint sum;
    asm volatile("redux.sync.add.u32 %0, %1, %2;"
                 : "=r"(sum)
                 : "r"(x), "r"(TESS_ALL_LANES)
                 : "memory");
    return sum;
#else
    for (uint gap = 1u; gap < 32u; gap <<= 1) x += tess_lane_before(x, gap);
    return x; /* in the last lane */
#endif
}
#define TESS_ADD_ALL(to, x)                                                                \
    {                                                                                      \
        const uint sum = tess_sum_of_warp(x);                                              \
        if ((thread & 31u) == 31u && sum != 0u)                                            \
            asm volatile("red.shared.add.u32 [%0], %1;" ::"r"(tess_shared_address(&(to))), \
                         "r"(sum)                                                          \
                         : "memory");                                                      \
    }
TESS_FUNCTION bool tess_holds_for_all(bool x) {
    uint all;
    asm volatile("{\n\t.reg .pred own, all;\n\tsetp.ne.u32 own, %1, 0;\n\t"
                 "bar.red.and.pred all, 0, own;\n\tselp.u32 %0, 1, 0, all;\n\t}"
                 : "=r"(all)
                 : "r"(x ? 1u : 0u)
                 : "memory");
    return all != 0u;
}
#define TESS_HOLDS_FOR_ALL(x) tess_holds_for_all(x)
/* The last one of each warp in a scan. */
TESS_FUNCTION uint *tess_warp_ends() {
    __shared__ static uint ends[32];
    return ends;
}
/* Each warp scans its own, and then the ends of all warps: two barriers in all. */
#define TESS_SCAN(array, combine)                                                                 \
    {                                                                                             \
        uint x = array[thread], end;                                                              \
        for (uint gap = 1u; gap < 32u; gap <<= 1) x = combine(x, tess_lane_before(x, gap));       \
        if ((thread & 31u) == 31u) tess_warp_ends()[thread / 32u] = x;                            \
        TESS_BARRIER;                                                                             \
        end = (thread & 31u) < thread / 32u ? tess_warp_ends()[thread & 31u] : 0u;                \
        for (uint gap = 16u; gap > 0u; gap >>= 1) end = combine(end, tess_lane_across(end, gap)); \
        array[thread] = combine(x, end);                                                          \
        TESS_BARRIER;                                                                             \
    }
TESS_FUNCTION uint tess_lane_across(uint x, uint bits) {
    uint y;
    asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, %3;"
                 : "=r"(y)
                 : "r"(x), "r"(bits), "r"(TESS_ALL_LANES)
                 : "memory");
    return y;
}
#endif

/* CUDA's kernels that begin early read the step before they wait (kernels/jobs.cuh). */
#if !defined(__HIP__) && !defined(__HIP_PLATFORM_AMD__)
#define TESS_END_PREPARE asm volatile("membar.gl;" : : : "memory");
#endif

#define TESS_ADD_SHARED(to, x)           tess_add_shared(&(to), (x))
#define TESS_MOST_SHARED(to, x)          tess_most_shared(&(to), (x))
#define TESS_LEAST_SHARED(to, x)         tess_least_shared(&(to), (x))
#define TESS_CU_ROWS(n)                  (cu_rows[n])
#define TESS_KV_LENS(n)                  (kv_lens_in[n])
#define TESS_Q_FIRST(n)                  (q_first_in[n])
#define TESS_KV_FIRST(n)                 (kv_first_in[n])
#define TESS_STEP                        , uint *__restrict__ step
#define TESS_STEP_OF_KERNEL              , step
#define TESS_STORE_STEP(at, x)           (step[at] = (x))
#define TESS_HIGH_PRODUCT(a, b)          ((uint)((unsigned long long)(a) * (b) >> 32))
#define TESS_STORE_STEP4(at, a, b, c, d) (*(tess_uint4 *)(step + (at)) = tess_uint4{a, b, c, d})
#define TESS_PREPARE_KERNEL                                                   \
    extern "C" __global__ TESS_PREPARE_BOUNDS void tess_prepare(              \
        const int *__restrict__ cu_rows, const int *__restrict__ kv_lens_in,  \
        uint *__restrict__ step, const int *__restrict__ q_first_in,          \
        const int *__restrict__ kv_first_in, const uint *__restrict__ tables, \
        const tess_args args)

#endif /* TESS_STEP_CUDA_H */
