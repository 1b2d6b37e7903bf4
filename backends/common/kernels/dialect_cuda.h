/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The dialect of the portable kernels in CUDA and HIP. One translation unit may hold instances of
 * every TESS_DTYPE.
 */
#ifndef TESS_DIALECT_CUDA_H
#define TESS_DIALECT_CUDA_H

#include "numbers_cuda.h"

#define TESS_UNROLL          _Pragma("unroll")
#define TESS_NO_UNROLL       _Pragma("unroll 1")
#define TESS_UNROLL_4        _Pragma("unroll 4")
#define TESS_MERGE_AHEAD     16u
#define TESS_SHARED(t, n, c) __shared__ t n[c];
/* What a function is handed behind its other arguments to read the tables. */
#define TESS_TABLES           , const uint *__restrict__ tables, const tess_args &args
#define TESS_TABLES_OF_KERNEL , tables, args
/* The same to read the block table too. */
#define TESS_PAGES           , const int *__restrict__ block_table TESS_TABLES
#define TESS_PAGES_OF_KERNEL , block_table TESS_TABLES_OF_KERNEL
#define TESS_PAGE_ID(at)     (block_table[at])
#define TESS_WORD(at)        (tables[at])
#define TESS_WORD64(at) \
    ((tess_offset)((unsigned long long)tables[at] | (unsigned long long)tables[(at) + 1u] << 32))
#define TESS_HEAD_DIM (args.head_dim)
#define TESS_FLAGS    (args.flags)

/* ------------------------------------------------------------------ vectors */

#if defined(__clang__)
typedef float vec4 __attribute__((ext_vector_type(4)));
typedef uint tess_uint2 __attribute__((ext_vector_type(2)));
typedef uint tess_uint4 __attribute__((ext_vector_type(4)));
#define VEC4(a, b, c, d) ((vec4){(a), (b), (c), (d)})
#else
struct alignas(16) vec4 {
    float x, y, z, w;
};
struct alignas(8) tess_uint2 {
    uint x, y;
};
struct alignas(16) tess_uint4 {
    uint x, y, z, w;
};
#define VEC4(a, b, c, d) (vec4{(a), (b), (c), (d)})
TESS_FUNCTION vec4 operator*(vec4 a, float b) { return VEC4(a.x * b, a.y * b, a.z * b, a.w * b); }
TESS_FUNCTION vec4 operator+(vec4 a, vec4 b) {
    return VEC4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}
TESS_FUNCTION void operator*=(vec4 &a, float b) { a = a * b; }
TESS_FUNCTION void operator+=(vec4 &a, vec4 b) { a = a + b; }
#endif

#define VEC4_OF(a) VEC4(a, a, a, a)

/* ------------------------------------------------------------------ the machine */

/* TESS_BOUNDS_OF: threads of a workgroup, and workgroups of a multiprocessor, whose registers they
 * share. AMD's compiler finds the second for itself. */
#define TESS_BOUNDS(threads) TESS_BOUNDS_OF(threads, 3)

#if defined(__HIP__) || defined(__HIP_PLATFORM_AMD__)
#define TESS_THREAD ((uint)__builtin_amdgcn_workitem_id_x())
#define TESS_GROUPS_X \
    (((const __attribute__((address_space(4))) uint *)__builtin_amdgcn_implicitarg_ptr())[0])
#define TESS_GROUP                             \
    ((uint)__builtin_amdgcn_workgroup_id_x() + \
     (uint)__builtin_amdgcn_workgroup_id_y() * TESS_GROUPS_X)
#define TESS_GROUPS  TESS_GROUPS_X
#define TESS_BARRIER tess_barrier()
#define TESS_BOUNDS_OF(threads, groups) \
    __attribute__((amdgpu_flat_work_group_size(threads, threads)))
TESS_FUNCTION void tess_barrier() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
TESS_FUNCTION float tess_exp2(float x) { return __builtin_amdgcn_exp2f(x); }
TESS_FUNCTION float tess_log2(float x) { return __builtin_amdgcn_logf(x); }
TESS_FUNCTION float tess_max(float a, float b) { return a > b ? a : b; }
TESS_FUNCTION float tess_half_to_float(uint bits) {
    return (float)__builtin_bit_cast(_Float16, (unsigned short)bits);
}
TESS_FUNCTION uint tess_float_to_half(float x) {
    return __builtin_bit_cast(unsigned short, (_Float16)x);
}
#else
#define TESS_THREAD                     tess_thread_x()
#define TESS_GROUP                      tess_group()
#define TESS_GROUPS                     tess_groups()
#define TESS_BARRIER                    __syncthreads()
#define TESS_BOUNDS_OF(threads, groups) __attribute__((launch_bounds(threads, groups)))
TESS_FUNCTION uint tess_thread_x() {
    uint x;
    asm("mov.u32 %0, %%tid.x;" : "=r"(x));
    return x;
}
TESS_FUNCTION uint tess_groups() {
    uint groups;
    asm("mov.u32 %0, %%nctaid.x;" : "=r"(groups));
    return groups;
}
TESS_FUNCTION uint tess_group() {
    uint x, y, groups;
    asm("mov.u32 %0, %%ctaid.x;" : "=r"(x));
    asm("mov.u32 %0, %%ctaid.y;" : "=r"(y));
    asm("mov.u32 %0, %%nctaid.x;" : "=r"(groups));
    return x + y * groups;
}
TESS_FUNCTION float tess_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
TESS_FUNCTION float tess_log2(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
TESS_FUNCTION float tess_max(float a, float b) {
    float y;
    asm("max.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}
TESS_FUNCTION float tess_half_to_float(uint bits) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"((unsigned short)bits));
    return y;
}
TESS_FUNCTION uint tess_float_to_half(float x) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
#endif

TESS_FUNCTION float tess_from_bits(uint bits) { return __builtin_bit_cast(float, bits); }
TESS_FUNCTION uint tess_to_bits(float x) { return __builtin_bit_cast(uint, x); }
#define TESS_MINUS_INFINITY tess_from_bits(0xff800000u)
/* Waits for what earlier kernels have written, where the host may have begun this one before they
 * ended (tess_driver_vendor.start). The next kernel, which may be attention again, gets ready at
 * the same time: it waits for this one, which cannot end before what it waits for itself. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define TESS_DEPENDENCIES_WAIT \
    asm volatile("griddepcontrol.launch_dependents;\n\tgriddepcontrol.wait;" ::: "memory")
#else
#define TESS_DEPENDENCIES_WAIT
#endif
/* What follows in the stream must not go on before what this kernel waits for. */
#define TESS_LEAVE_UNLESS(present) \
    if (!(present)) {              \
        TESS_DEPENDENCIES_WAIT;    \
        return;                    \
    }
/* Only a compiler of OpenCL C for CPUs needs it: see dialect_opencl.h. */
#define TESS_LOOP_ENTERS(first) false

TESS_FUNCTION uint tess_min(uint a, uint b) { return a < b ? a : b; }
TESS_FUNCTION vec4 tess_max4(vec4 a, vec4 b) {
    return VEC4(tess_max(a.x, b.x), tess_max(a.y, b.y), tess_max(a.z, b.z), tess_max(a.w, b.w));
}
TESS_FUNCTION float tess_max_of(vec4 a) { return tess_max(tess_max(a.x, a.y), tess_max(a.z, a.w)); }
TESS_FUNCTION float tess_exp_score(float score, float row_max, float scale_log2) {
    return score > TESS_LOWEST ? tess_exp2((score - row_max) * scale_log2) : 0.0f;
}
TESS_FUNCTION vec4 tess_exp_scores(vec4 scores, vec4 row_max, float scale_log2) {
    return VEC4(tess_exp_score(scores.x, row_max.x, scale_log2),
                tess_exp_score(scores.y, row_max.y, scale_log2),
                tess_exp_score(scores.z, row_max.z, scale_log2),
                tess_exp_score(scores.w, row_max.w, scale_log2));
}

/* ------------------------------------------------------------------ elements */

struct tess_f16 {
    unsigned short bits;
};
struct tess_bf16 {
    unsigned short bits;
};

TESS_FUNCTION float tess_widen(float x) { return x; }
TESS_FUNCTION float tess_widen(tess_f16 x) { return tess_half_to_float(x.bits); }
TESS_FUNCTION float tess_widen(tess_bf16 x) { return tess_from_bits((uint)x.bits << 16); }

TESS_FUNCTION vec4 tess_load4_aligned(const float *from) { return *(const vec4 *)from; }
TESS_FUNCTION vec4 tess_load4_aligned(const tess_f16 *from) {
    const tess_uint2 four = *(const tess_uint2 *)from;
    return VEC4(tess_half_to_float(four.x & 0xffffu), tess_half_to_float(four.x >> 16),
                tess_half_to_float(four.y & 0xffffu), tess_half_to_float(four.y >> 16));
}
TESS_FUNCTION vec4 tess_load4_aligned(const tess_bf16 *from) {
    const tess_uint2 four = *(const tess_uint2 *)from;
    return VEC4(tess_from_bits(four.x << 16), tess_from_bits(four.x & 0xffff0000u),
                tess_from_bits(four.y << 16), tess_from_bits(four.y & 0xffff0000u));
}
template <typename T> TESS_FUNCTION vec4 tess_load4(const T *from) {
    return VEC4(tess_widen(from[0]), tess_widen(from[1]), tess_widen(from[2]), tess_widen(from[3]));
}

/* 8 elements as they are in memory, which take few registers until they are used. */
template <typename T> struct tess_eight { tess_uint4 bits; };
template <> struct tess_eight<float> { vec4 low, high; };
TESS_FUNCTION vec4 tess_low4(tess_eight<float> e) { return e.low; }
TESS_FUNCTION vec4 tess_high4(tess_eight<float> e) { return e.high; }
TESS_FUNCTION vec4 tess_widen2(uint a, uint b, const tess_f16 *) {
    return VEC4(tess_half_to_float(a & 0xffffu), tess_half_to_float(a >> 16),
                tess_half_to_float(b & 0xffffu), tess_half_to_float(b >> 16));
}
TESS_FUNCTION vec4 tess_widen2(uint a, uint b, const tess_bf16 *) {
    return VEC4(tess_from_bits(a << 16), tess_from_bits(a & 0xffff0000u), tess_from_bits(b << 16),
                tess_from_bits(b & 0xffff0000u));
}
template <typename T> TESS_FUNCTION vec4 tess_low4(tess_eight<T> e) {
    return tess_widen2(e.bits.x, e.bits.y, (const T *)0);
}
template <typename T> TESS_FUNCTION vec4 tess_high4(tess_eight<T> e) {
    return tess_widen2(e.bits.z, e.bits.w, (const T *)0);
}
TESS_FUNCTION tess_eight<float> tess_load8_aligned(const float *from) {
    return tess_eight<float>{*(const vec4 *)from, *(const vec4 *)(from + 4)};
}
template <typename T> TESS_FUNCTION tess_eight<T> tess_load8_aligned(const T *from) {
    return tess_eight<T>{*(const tess_uint4 *)from};
}
TESS_FUNCTION tess_eight<float> tess_load8(const float *from) {
    return tess_eight<float>{tess_load4(from), tess_load4(from + 4)};
}
template <typename T> TESS_FUNCTION uint tess_load2(const T *from) {
    return (uint)from[0].bits | (uint)from[1].bits << 16;
}
template <typename T> TESS_FUNCTION tess_eight<T> tess_load8(const T *from) {
    return tess_eight<T>{tess_uint4{tess_load2(from), tess_load2(from + 2), tess_load2(from + 4),
                                    tess_load2(from + 6)}};
}

/* To nearest even; a NaN stays one. */
TESS_FUNCTION void tess_store(float *to, float x) { *to = x; }
TESS_FUNCTION void tess_store(tess_f16 *to, float x) {
    to->bits = (unsigned short)tess_float_to_half(x);
}
TESS_FUNCTION void tess_store(tess_bf16 *to, float x) {
    const uint bits = tess_to_bits(x);
    to->bits =
        (unsigned short)(x != x ? bits >> 16 | 0x40u : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
template <typename T> TESS_FUNCTION void tess_store4(T *to, vec4 x) {
    tess_store(to, x.x);
    tess_store(to + 1, x.y);
    tess_store(to + 2, x.z);
    tess_store(to + 3, x.w);
}

/* Four codes from byte `at` on, which is a multiple of 4. */
#define TESS_LOAD_CODES(buffer, at, scale) \
    tess_decode(*(const uint *)((const unsigned char *)(buffer) + (at)), TESS_FLAGS, (scale))
#define TESS_LOAD_SCALE(buffer, at)    ((buffer)[at])
#define TESS_LOAD4(buffer, at)         tess_load4((buffer) + (at))
#define TESS_LOAD4_ALIGNED(buffer, at) tess_load4_aligned((buffer) + (at))
/* Whether groups of 4 elements from `at` on, and those any number of `strides` away, may be loaded
 * at once. */
#define TESS_IS_ALIGNED(buffer, at, strides)                                       \
    (((unsigned long long)((buffer) + (at)) & (4u * sizeof *(buffer)-1u)) == 0u && \
     ((strides)&3) == 0)
#define TESS_EIGHT tess_eight<TESS_ELEMENT>
#define TESS_EIGHT_ZEROS \
    TESS_EIGHT {}
#define TESS_LOW4(eight)               tess_low4(eight)
#define TESS_HIGH4(eight)              tess_high4(eight)
#define TESS_LOAD8(buffer, at)         tess_load8((buffer) + (at))
#define TESS_LOAD8_ALIGNED(buffer, at) tess_load8_aligned((buffer) + (at))
/* Whether 8 elements from `at` on, and those any number of `strides` away, are aligned to 16 bytes,
 * which is the longest load. */
#define TESS_IS_ALIGNED8(buffer, at, strides) \
    (((unsigned long long)((buffer) + (at)) & 15u) == 0u && ((strides)&7) == 0)
/* Such loads of K, and as many of V, that a thread has in flight: 128 bytes of each. */
#define TESS_AHEAD                (16u / (uint)sizeof(TESS_ELEMENT))
#define TESS_STORE_O(at, x)       tess_store(O + (at), (x))
#define TESS_STORE4_O(at, x)      tess_store4(O + (at), (x))
#define TESS_STORE_LSE(at, x)     (LSE[at] = (x))
#define TESS_STORE_PARTIAL(at, x) (workspace[at] = (x))
#define TESS_LOAD_PARTIAL(at)     (workspace[at])
/* Rows of a partial result start on 16-byte boundaries. */
#define TESS_STORE4_PARTIAL(at, x) (*(vec4 *)(workspace + (at)) = (x))
#define TESS_LOAD4_PARTIAL(at)     (*(const vec4 *)(workspace + (at)))

#define TESS_OUTPUTS_(element)                                                             \
    element *__restrict__ O, float *__restrict__ LSE, const int *__restrict__ block_table, \
        const float *__restrict__ K_SCALE, const float *__restrict__ V_SCALE,              \
        const uint *__restrict__ tables
#define TESS_FORWARD_BUFFERS(element)                                                            \
    const element *__restrict__ Q, const element *__restrict__ K, const element *__restrict__ V, \
        TESS_OUTPUTS_(element), float *__restrict__ workspace, const tess_args args
/* An earlier kernel may still write the workspace when the merge begins. Were that restrict, the
 * compiler would take it for read-only as long as the merge runs: such loads need not stay behind
 * the wait, and may hit what a cache still holds from before it. */
#define TESS_MERGE_BUFFERS(element)                                                              \
    const element *, const element *, const element *, TESS_OUTPUTS_(element), float *workspace, \
        const tess_args args
#define TESS_FORWARD_NAME_(dtype, dims) tess_forward_##dtype##_##dims
#define TESS_FORWARD_NAME(dtype, dims)  TESS_FORWARD_NAME_(dtype, dims)
#define TESS_MERGE_NAME_(dtype)         tess_merge_##dtype
#define TESS_MERGE_NAME(dtype)          TESS_MERGE_NAME_(dtype)
/* TESS_DTYPE_NAME and TESS_ELEMENT go with the instance. */
#define TESS_FORWARD_KERNEL                                                 \
    extern "C" __global__ TESS_BOUNDS(TESS_THREADS) void TESS_FORWARD_NAME( \
        TESS_DTYPE_NAME, TESS_DIMS)(TESS_FORWARD_BUFFERS(TESS_ELEMENT))
#define TESS_FEW_NAME_(dtype, dims) tess_forward_few_##dtype##_##dims
#define TESS_FEW_NAME(dtype, dims)  TESS_FEW_NAME_(dtype, dims)
#define TESS_FEW_KERNEL                                                                     \
    extern "C" __global__ TESS_BOUNDS_OF(TESS_THREADS, TESS_FEW_GROUPS) void TESS_FEW_NAME( \
        TESS_DTYPE_NAME, TESS_DIMS)(TESS_FORWARD_BUFFERS(TESS_ELEMENT))
#define TESS_MERGE_KERNEL                                                                        \
    extern "C" __global__ TESS_BOUNDS(TESS_MERGE_THREADS) void TESS_MERGE_NAME(TESS_DTYPE_NAME)( \
        TESS_MERGE_BUFFERS(TESS_ELEMENT))

/* Without a step there is a workgroup for all rows. Those that follow in a step take the place of
 * these in shared memory. */
#define TESS_MERGE_LOOP(number) for (uint number = TESS_GROUP;; number += TESS_GROUPS)
#define TESS_MERGE_NEXT_OR_LEAVE                     \
    if ((args.flags & TESS_ARGS_STEP) == 0u) return; \
    TESS_BARRIER

#define TESS_PARTS_NAME_(dtype) tess_merge_parts_##dtype
#define TESS_PARTS_NAME(dtype)  TESS_PARTS_NAME_(dtype)
#define TESS_PARTS_KERNEL                                                                        \
    extern "C" __global__ TESS_BOUNDS(TESS_PARTS_THREADS) void TESS_PARTS_NAME(TESS_DTYPE_NAME)( \
        TESS_FORWARD_BUFFERS(TESS_ELEMENT))

/* ------------------------------------------------------------------ backward */

#define TESS_LOAD_FLOAT(buffer, at)       ((buffer)[at])
#define TESS_LOAD4_FLOATS(buffer, at)     tess_load4((const float *)(buffer) + (at))
#define TESS_STORE4_FLOATS(buffer, at, x) tess_store4((buffer) + (at), (x))
/* To a buffer of floats that holds elements. */
#define TESS_STORE4_NARROW(buffer, at, x)       tess_store4((TESS_ELEMENT *)(buffer) + (at), (x))
#define TESS_BACKWARD_NAME_(stage, dtype, dims) tess_backward_##stage##_##dtype##_##dims
#define TESS_BACKWARD_NAME(stage, dtype, dims)  TESS_BACKWARD_NAME_(stage, dtype, dims)
#define TESS_DELTA_NAME_(dtype)                 tess_backward_delta_##dtype
#define TESS_DELTA_NAME(dtype)                  TESS_DELTA_NAME_(dtype)
/* Workgroups of a multiprocessor of which the compiler is to leave room for in registers: with
 * fewer loads are not hidden. */
#define TESS_BACKWARD_GROUPS 4
#define TESS_BACKWARD_OF(name, threads)                                                         \
    extern "C" __global__ TESS_BOUNDS_OF(threads, TESS_BACKWARD_GROUPS) void name(              \
        const TESS_ELEMENT *__restrict__ Q, const TESS_ELEMENT *__restrict__ K,                 \
        const TESS_ELEMENT *__restrict__ V, const TESS_ELEMENT *__restrict__ O, float *LSE,     \
        const int *__restrict__ block_table, const float *__restrict__ K_SCALE, float *V_SCALE, \
        const uint *__restrict__ tables, float *workspace, const tess_args args)
#define TESS_BACKWARD_DELTA_KERNEL \
    TESS_BACKWARD_OF(TESS_DELTA_NAME(TESS_DTYPE_NAME), TESS_STRIP_THREADS)
#define TESS_BACKWARD_ROWS_KERNEL \
    TESS_BACKWARD_OF(TESS_BACKWARD_NAME(rows, TESS_DTYPE_NAME, TESS_DIMS), TESS_THREADS)
#define TESS_BACKWARD_COLUMNS_KERNEL \
    TESS_BACKWARD_OF(TESS_BACKWARD_NAME(columns, TESS_DTYPE_NAME, TESS_DIMS), TESS_THREADS)

#endif /* TESS_DIALECT_CUDA_H */
