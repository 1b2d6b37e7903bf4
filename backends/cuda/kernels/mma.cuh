/* SPDX-License-Identifier: Apache-2.0 */
/* Instructions of sm_80 and later, one function each: matrix products of a warp, matrices out of
 * shared memory, asynchronous copies, and fast arithmetic. */
#ifndef TESS_CUDA_MMA_CUH
#define TESS_CUDA_MMA_CUH

#include "types.cuh"

#define MINUS_INFINITY __int_as_float(0xff800000)
#define LN_2           0.69314718055994531f
#define LOG2_E         1.44269504088896341f

namespace tess {

__device__ __forceinline__ uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* The lane, read as volatile so that the compiler keeps nothing computed from it in registers. */
__device__ __forceinline__ uint32_t lane_volatile() {
    uint32_t lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}

/* Copies 16 bytes, or with `bytes` 0 makes them zeros and reads nothing. */
__device__ __forceinline__ void cp_async_unit(uint32_t to, const void *from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes)
                 : "memory");
}
/* The same with an L2 policy: cache_evict_first() for data that nobody reads again, or
 * cache_usual(). */
__device__ __forceinline__ void cp_async_unit(uint32_t to, const void *from, int bytes,
                                              uint64_t policy) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes), "l"(policy)
                 : "memory");
}
__device__ __forceinline__ uint64_t cache_evict_first() {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
__device__ __forceinline__ uint64_t cache_usual() {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
/* Copies 4 bytes, or with `bytes` 0 makes them zeros and reads nothing. */
__device__ __forceinline__ void cp_async_word(uint32_t to, const void *from, int bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes)
                 : "memory");
}
/* Ends a group of copies of this thread, which may be empty. */
__device__ __forceinline__ void cp_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* Waits for all groups of this thread but the last N. */
template <int N> __device__ __forceinline__ void cp_async_wait_but() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
/* Waits at a named barrier until `threads` threads, in whole warps, have arrived; barrier 0 is that
 * of __syncthreads(). */
__device__ __forceinline__ void barrier_of(int number, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
/* Waits for all copies of this thread. */
__device__ __forceinline__ void cp_async_wait_all() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

__device__ __forceinline__ void store_unit(uint32_t to, uint4 x) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z),
                 "r"(x.w)
                 : "memory");
}
__device__ __forceinline__ void store_word(uint32_t to, uint32_t x) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}
__device__ __forceinline__ void store_pair(uint32_t to, float x, float y) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(x), "f"(y) : "memory");
}
__device__ __forceinline__ uint4 load_shared_unit(uint32_t from) {
    uint4 x;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(from)
                 : "memory");
    return x;
}

__device__ __forceinline__ uint32_t load_shared_word(uint32_t from) {
    uint32_t x;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(from) : "memory");
    return x;
}

__device__ __forceinline__ uint2 load_shared_pair(uint32_t from) {
    uint2 x;
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(from) : "memory");
    return x;
}

/* A volatile load: the compiler reuses no earlier value. */
__device__ __forceinline__ uint4 load_shared_volatile(uint32_t from) {
    uint4 x;
    asm volatile("ld.volatile.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(from)
                 : "memory");
    return x;
}

/* Four matrices of 8 x 8; lane n gives the address of row n % 8 of matrix n / 8. */
__device__ __forceinline__ void ldmatrix(uint32_t (&m)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(at)
                 : "memory");
}
__device__ __forceinline__ void ldmatrix_transposed(uint32_t (&m)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(at)
                 : "memory");
}

/* c += a b for 16 x 16 times 16 x 8. Rows of c: lane / 4 and that + 8; columns lane % 4 * 2 + {0,
 * 1}. */
template <typename T>
__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1);
template <>
__device__ __forceinline__ void mma<bf16_t>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                            uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void mma<f16_t>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                           uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* The same for 16 x 8 times 8 x 8 elements of TF32: floats of which the low 13 bits do not count.
 */
__device__ __forceinline__ void mma_tf32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* The same for 8-bit integers, 16 x 32 times 32 x 8. b is signed, and a is if SIGNED. */
template <bool SIGNED>
__device__ __forceinline__ void mma_bytes(int32_t (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                          uint32_t b1) {
    if (SIGNED)
        asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* A unit of 16 bytes of a row. Unless `wide`, it may be aligned to its elements only. */
__device__ __forceinline__ uint4 read_unit(const uint16_t *p, bool wide) {
    if (wide) return *(const uint4 *)p;
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; i++) w[i] = (uint32_t)p[2 * i] | (uint32_t)p[2 * i + 1] << 16;
    return make_uint4(w[0], w[1], w[2], w[3]);
}
__device__ __forceinline__ void write_unit(uint16_t *p, uint4 x, bool wide) {
    if (wide) {
        *(uint4 *)p = x;
        return;
    }
    const uint32_t w[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int e = 0; e < 8; e++) p[e] = (uint16_t)(w[e / 2] >> (e % 2 * 16));
}

template <typename T> __device__ __forceinline__ uint32_t pack(float low, float high);
template <> __device__ __forceinline__ uint32_t pack<bf16_t>(float low, float high) {
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
template <> __device__ __forceinline__ uint32_t pack<f16_t>(float low, float high) {
    uint32_t r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

/* The element in half 0 or 1 of a word. */
template <typename T> __device__ __forceinline__ float unpack(uint32_t word, int half);
template <> __device__ __forceinline__ float unpack<bf16_t>(uint32_t word, int half) {
    return __uint_as_float(half ? word & 0xffff0000 : word << 16);
}
template <> __device__ __forceinline__ float unpack<f16_t>(uint32_t word, int half) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"((uint16_t)(word >> half * 16)));
    return x;
}

/* Bytes of a (0 to 3) and b (4 to 7), picked by the hexadecimal digits of `which`. */
__device__ __forceinline__ uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t which) {
    uint32_t r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(which));
    return r;
}
__device__ __forceinline__ uint32_t add_f16_pairs(uint32_t a, uint32_t b) {
    uint32_t r;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
/* Whether the device has an instruction that converts E4M3 to f16. */
__device__ __forceinline__ constexpr bool converts_e4m3() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    return true;
#else
    return false;
#endif
}
/* The two codes in a half of a word as f16; only where converts_e4m3(). */
template <int HALF> __device__ __forceinline__ uint32_t convert_e4m3(uint32_t word) {
    uint32_t r = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    asm("{\n"
        ".reg .b16 half<2>;\n"
        "mov.b32 {half0, half1}, %1;\n"
        "cvt.rn.f16x2.e4m3x2 %0, half%2;\n"
        "}"
        : "=r"(r)
        : "r"(word), "n"(HALF));
#endif
    return r;
}

/* Whether the device adds four floats in memory at once. */
__device__ __forceinline__ constexpr bool adds_vectors() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    return true;
#else
    return false;
#endif
}
/* Atomic additions to floats in memory, in no fixed order. add_four() needs adds_vectors(). */
__device__ __forceinline__ void add_float(float *to, float x) {
    asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(__cvta_generic_to_global(to)),
                 "f"(x)
                 : "memory");
}
__device__ __forceinline__ void add_four(float *to, float x, float y, float z, float w) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(
                     __cvta_generic_to_global(to)),
                 "f"(x), "f"(y), "f"(z), "f"(w)
                 : "memory");
#endif
}

__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float log2_fast(float x) {
    float y;
    asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/*
 * Programmatic dependent launch: with code for sm_90 or later, the host launches some kernels
 * before earlier ones in the stream have ended (tess_driver_vendor.start). Before a thread has
 * waited, it reads only tables: the plan's, which are older, or a step's, by table_word() of
 * jobs.cuh. After grid_dependents_launch() the next kernel may begin as early. In every kernel that
 * begins early the first thread block waits, and each that has work, so none ends before its
 * predecessors: to wait for the last one is to wait for all. Other thread blocks without work may
 * leave at once.
 */
__device__ __forceinline__ void grid_dependency_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void grid_dependents_launch() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

} // namespace tess

#endif // TESS_CUDA_MMA_CUH
