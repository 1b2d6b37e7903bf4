// SPDX-License-Identifier: Apache-2.0
// Loops in what OpenCL C and HIP C++ have in common. The program holds this text and gives it to
// the device's compiler, with LOOPS_HALF (arithmetic of f16 in OpenCL C), LOOPS_NV (mma.sync in
// OpenCL C) or LOOPS_LANES (of a subgroup, where Intel's matrix units are to be used).
//
// A thread moves vectors a group apart. Sums are stored only if they have a value that they never
// have: the loop must not be left out.
#if defined(__OPENCL_VERSION__) || defined(__OPENCL_C_VERSION__)
#define KERNEL   kernel
#define FUNCTION static
#define GLOBAL   global
#define GROUP    get_group_id(0)
#define THREAD   get_local_id(0)
#define FLOAT4   float4
#define FMA      fma
#ifdef LOOPS_HALF
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#define HALF  half
#define HALF2 half2
#endif
#else
#define KERNEL   extern "C" __global__
#define FUNCTION static __device__
#define GLOBAL
#define GROUP        ((size_t)blockIdx.x)
#define THREAD       threadIdx.x
#define FMA(a, b, c) ((a) * (b) + (c))
#define HALF         _Float16
typedef _Float16 HALF2 __attribute__((ext_vector_type(2)));
typedef float FLOAT4 __attribute__((ext_vector_type(4)));
#endif

FUNCTION unsigned mix(uint4 v) { return v.x ^ v.y ^ v.z ^ v.w; }

KERNEL void copy_loop(GLOBAL const uint4 *from, GLOBAL uint4 *to) {
    size_t at = GROUP * 1024 + THREAD;
    uint4 a = from[at], b = from[at + 256], c = from[at + 512], d = from[at + 768];
    to[at] = a;
    to[at + 256] = b;
    to[at + 512] = c;
    to[at + 768] = d;
}

KERNEL void read_loop(GLOBAL const uint4 *from, GLOBAL uint4 *to) {
    size_t at = GROUP * 1024 + THREAD;
    unsigned x = mix(from[at]) ^ mix(from[at + 256]) ^ mix(from[at + 512]) ^ mix(from[at + 768]);
    if (x == 0x9e3779b9u) to[at].x = x;
}

// Eight chains, none of which waits for another.
#define EACH(X)  X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define START(i) a##i = x + i,
#define ADD(i)   a##i = FMA(a##i, y, x);
#define SUM(i)   sum += a##i;
// Elements of a vector differ, or a compiler computes one for all of them.
#define PAIR x.y += 1;
#define FOUR x.y += 1, x.z += 2, x.w += 3;
#define FMA_LOOP(name, VECTOR, SCALAR, DIFFER)                             \
    KERNEL void name(GLOBAL float *to, unsigned turns) {                   \
        VECTOR x = (VECTOR)((SCALAR)THREAD), y = (VECTOR)((SCALAR)0.999f); \
        DIFFER                                                             \
        VECTOR EACH(START) sum = x;                                        \
        for (unsigned n = 0; n < turns; n++) { EACH(ADD) }                 \
        EACH(SUM)                                                          \
        if (LANES(sum) == (SCALAR)1.2345f) to[0] = 1;                      \
    }
#define LANES(v) (v.x + v.y + v.z + v.w)
FMA_LOOP(fma_f32, FLOAT4, float, FOUR)
#ifdef HALF
#undef LANES
#define LANES(v) (v.x + v.y)
FMA_LOOP(fma_f16, HALF2, HALF, PAIR)
#endif

// Matrix units: a product is of one subgroup, with operands and sums in registers. Sums begin with
// different values, or a compiler may make one of two. UNIT_FLOP is what a thread of it does.
#if defined(LOOPS_NV)
#define UNIT_FLOP 128
#define SUMS      float4
#define NV_PRODUCT(name, type)                                                                  \
    FUNCTION SUMS name(SUMS c, unsigned a, unsigned b) {                                        \
        __asm__ volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                 \
                         ".f32 {%0, %1, %2, %3}, {%4, %5, %5, %4}, {%5, %4}, {%0, %1, %2, %3};" \
                         : "+f"(c.x), "+f"(c.y), "+f"(c.z), "+f"(c.w)                           \
                         : "r"(a), "r"(b));                                                     \
        return c;                                                                               \
    }
NV_PRODUCT(product_f16, "f16")
NV_PRODUCT(product_bf16, "bf16")
#elif defined(__gfx90a__) || defined(__gfx940__) || defined(__gfx941__) || defined(__gfx942__)
#define UNIT_FLOP         128
#define AMD_SUMS          4
#define AMD_ELEMENTS      4
#define AMD_F16(x, y, c)  __builtin_amdgcn_mfma_f32_16x16x16f16(x, y, c, 0, 0, 0)
#define AMD_BF16(x, y, c) __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(x, y, c, 0, 0, 0)
#elif (defined(__gfx1100__) || defined(__gfx1101__) || defined(__gfx1102__) ||  \
       defined(__gfx1103__) || defined(__gfx1150__) || defined(__gfx1151__)) && \
    (!defined(__AMDGCN_WAVEFRONT_SIZE) || __AMDGCN_WAVEFRONT_SIZE == 32)
#define UNIT_FLOP         256
#define AMD_SUMS          8
#define AMD_ELEMENTS      16
#define AMD_F16(x, y, c)  __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(x, y, c)
#define AMD_BF16(x, y, c) __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(x, y, c)
#elif defined(LOOPS_LANES)
#define UNIT_FLOP 256
#define SUMS      float8
#define SUBGROUP  __attribute__((intel_reqd_sub_group_size(LOOPS_LANES)))
#if LOOPS_LANES == 8
#define ROWS int8
#else
#define ROWS short8
#endif
FUNCTION SUMS product_f16(SUMS c, unsigned a, unsigned b) {
    return intel_sub_group_f16_f16_matrix_mad_k16((ROWS)(a), (int8)(b), c);
}
FUNCTION SUMS product_bf16(SUMS c, unsigned a, unsigned b) {
    return intel_sub_group_bf16_bf16_matrix_mad_k16((ROWS)(a), (int8)(b), c);
}
#endif

#ifdef AMD_SUMS
typedef float SUMS __attribute__((ext_vector_type(AMD_SUMS)));
typedef HALF HALVES __attribute__((ext_vector_type(AMD_ELEMENTS)));
typedef short BRAINS __attribute__((ext_vector_type(AMD_ELEMENTS)));
FUNCTION SUMS product_f16(SUMS c, unsigned a, unsigned b) {
    return AMD_F16((HALVES)((HALF)a), (HALVES)((HALF)b), c);
}
FUNCTION SUMS product_bf16(SUMS c, unsigned a, unsigned b) {
    return AMD_BF16((BRAINS)((short)a), (BRAINS)((short)b), c);
}
#endif

#ifndef SUBGROUP
#define SUBGROUP
#endif
#ifdef UNIT_FLOP
#define NEXT(i) a##i = sum + (float)(i),
#define UNIT_LOOP(name, PRODUCT)                                  \
    KERNEL SUBGROUP void name(GLOBAL float *to, unsigned turns) { \
        unsigned x = THREAD, y = x + 1;                           \
        SUMS sum = (SUMS)(0.0f), EACH(NEXT) last = sum;           \
        for (unsigned n = 0; n < turns; n++) { EACH(PRODUCT) }    \
        EACH(SUM)                                                 \
        if (sum.x == 1.2345f) to[0] = last.x;                     \
    }
#define WITH_F16(i)  a##i = product_f16(a##i, x, y);
#define WITH_BF16(i) a##i = product_bf16(a##i, x, y);
UNIT_LOOP(units_f16, WITH_F16)
UNIT_LOOP(units_bf16, WITH_BF16)
#else
#define UNIT_FLOP 0
#endif

// What a thread does on matrix units in a turn.
KERNEL void unit_flop(GLOBAL unsigned *to, unsigned turns) { to[turns] = 8 * UNIT_FLOP; }
