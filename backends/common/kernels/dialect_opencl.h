/* SPDX-License-Identifier: Apache-2.0 */
/* The dialect of the portable kernels in OpenCL C 1.2. Needs neither cl_khr_fp16 nor subgroups. */
#ifndef TESS_DIALECT_OPENCL_H
#define TESS_DIALECT_OPENCL_H

#include "words_opencl.h"

#pragma OPENCL FP_CONTRACT ON

typedef float4 vec4;

/* What a function is handed behind its other arguments to read the tables and the block table. */
#define TESS_PAGES           , const __global int *block_table TESS_TABLES
#define TESS_PAGES_OF_KERNEL , block_table TESS_TABLES_OF_KERNEL
#define TESS_PAGE_ID(at)     (block_table[at])
/* Of conditions, without branches. */
#define TESS_AND(a, b)      ((a) & (b))
#define TESS_OR(a, b)       ((a) | (b))
#define VEC4(a, b, c, d)    ((float4)((a), (b), (c), (d)))
#define VEC4_OF(a)          ((float4)(a))
#define TESS_NO_UNROLL      _Pragma("unroll 1")
#define TESS_UNROLL_4       _Pragma("unroll 4")
#define TESS_GROUP          ((uint)(get_group_id(0) + get_group_id(1) * get_num_groups(0)))
#define TESS_HEAD_DIM       (args.head_dim)
#define TESS_FLAGS          (args.flags)
#define TESS_MINUS_INFINITY (-INFINITY)

#ifdef TESS_ON_CPU
/* What lives past a barrier is in memory on a CPU, indexed by constants or not: unrolled loops make
 * the driver's compiler take half as long again, for code that is no faster. */
#define TESS_UNROLL
#else
#define TESS_UNROLL _Pragma("unroll")
#endif

TESS_FUNCTION float tess_max(float a, float b) { return a > b ? a : b; }
TESS_FUNCTION vec4 tess_max4(vec4 a, vec4 b) { return max(a, b); }
TESS_FUNCTION float tess_max_of(vec4 a) { return max(max(a.x, a.y), max(a.z, a.w)); }
/* The native exponential may be off by any amount, but on NVIDIA's devices it is the instruction
 * that the kernels of CUDA have. */
#ifdef TESS_ON_NVIDIA
#define TESS_EXP2 native_exp2
#else
#define TESS_EXP2 exp2
#endif
TESS_FUNCTION float tess_exp2(float x) { return TESS_EXP2(x); }
TESS_FUNCTION vec4 tess_exp_scores(vec4 scores, vec4 row_max, float scale_log2) {
    return select((float4)(0.0f), TESS_EXP2((scores - row_max) * scale_log2), scores > TESS_LOWEST);
}
TESS_FUNCTION float tess_log2(float x) { return log2(x); }

#if TESS_DTYPE == 0
typedef float tess_element;
typedef float4 tess_element4;
TESS_FUNCTION vec4 tess_widen(float4 four) { return four; }
TESS_FUNCTION float4 tess_narrow4(vec4 x) { return x; }
TESS_FUNCTION float tess_narrow(float x) { return x; }
#elif TESS_DTYPE == 1
typedef ushort tess_element;
typedef ushort4 tess_element4;
#if defined(TESS_ON_CPU)
/* What vload_half4 does, in far less code: the exponent is moved by a product, which is right for
 * subnormals, and stays all ones where it was. */
TESS_FUNCTION vec4 tess_widen(ushort4 four) {
    const uint4 all = convert_uint4(four), size = (all & 0x7fffu) << 13;
    const uint4 bits =
        select(as_uint4(as_float4(size) * 0x1p112f), size | 0x7f800000u, size >= 0x0f800000u);
    return as_float4(bits | (all & 0x8000u) << 16);
}
#else
TESS_FUNCTION vec4 tess_widen(ushort4 four) { return vload_half4(0, (const half *)&four); }
#endif
TESS_FUNCTION ushort4 tess_narrow4(vec4 x) {
    ushort4 four;
    vstore_half4_rte(x, 0, (half *)&four);
    return four;
}
TESS_FUNCTION ushort tess_narrow(float x) {
    ushort one;
    vstore_half_rte(x, 0, (half *)&one);
    return one;
}
#else
typedef ushort tess_element;
typedef ushort4 tess_element4;
TESS_FUNCTION vec4 tess_widen(ushort4 four) { return as_float4(convert_uint4(four) << 16); }
/* To nearest even; a NaN stays one. */
TESS_FUNCTION ushort4 tess_narrow4(vec4 x) {
    const uint4 bits = as_uint4(x);
    return convert_ushort4(
        select((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16, bits >> 16 | 0x40u, isnan(x)));
}
TESS_FUNCTION ushort tess_narrow(float x) { return tess_narrow4((float4)(x)).x; }
#endif

/* Four codes from byte `at` on, which is a multiple of 4. */
#define TESS_LOAD_CODES(buffer, at, scale)                                                     \
    tess_decode(*(const __global uint *)((const __global uchar *)(buffer) + (at)), TESS_FLAGS, \
                (scale))
#define TESS_LOAD_SCALE(buffer, at) ((buffer)[at])
/* Any element's address will do for vload4. Where the vector type itself may be used, GPUs load it
 * at once; CPUs do that anyway. */
#define TESS_LOAD4(buffer, at) tess_widen(vload4(0, (buffer) + (at)))
#if defined(TESS_ON_CPU)
#define TESS_LOAD4_ALIGNED(buffer, at)       TESS_LOAD4(buffer, at)
#define TESS_IS_ALIGNED(buffer, at, strides) true
#else
#define TESS_LOAD4_ALIGNED(buffer, at) \
    tess_widen(*(const __global tess_element4 *)((buffer) + (at)))
/* Whether groups of 4 elements from `at` on, and those any number of `strides` away, have the
 * vector type's alignment. */
#define TESS_IS_ALIGNED(buffer, at, strides) \
    ((((uintptr_t)((buffer) + (at))) % sizeof(tess_element4)) == 0u && ((strides)&3) == 0)
#endif

/* 8 elements as they are in memory, which take few registers until they are used. Those of 16 bits
 * are loaded as words: GPUs have no longer load of halves than 8 bytes. */
#if TESS_DTYPE == 0
typedef float8 tess_eight;
#define TESS_LOW4(eight)       ((eight).lo)
#define TESS_HIGH4(eight)      ((eight).hi)
#define TESS_LOAD8(buffer, at) vload8(0, (buffer) + (at))
#define TESS_LOAD8_ALIGNED_(from) \
    ((float8)(*(const __global float4 *)(from), *(const __global float4 *)((from) + 4)))
#define TESS_AHEAD 4u
#else
typedef uint4 tess_eight;
#define TESS_LOW4(eight)          tess_widen(as_ushort4((eight).lo))
#define TESS_HIGH4(eight)         tess_widen(as_ushort4((eight).hi))
#define TESS_LOAD8(buffer, at)    as_uint4(vload8(0, (buffer) + (at)))
#define TESS_LOAD8_ALIGNED_(from) (*(const __global uint4 *)(from))
#define TESS_AHEAD                8u
#endif
#define TESS_EIGHT       tess_eight
#define TESS_EIGHT_ZEROS ((tess_eight)(0))
#if defined(TESS_ON_CPU)
#define TESS_LOAD8_ALIGNED(buffer, at)        TESS_LOAD8(buffer, at)
#define TESS_IS_ALIGNED8(buffer, at, strides) true
#else
#define TESS_LOAD8_ALIGNED(buffer, at) TESS_LOAD8_ALIGNED_((buffer) + (at))
/* Whether 8 elements from `at` on, and those any number of `strides` away, are aligned to 16
 * bytes. */
#define TESS_IS_ALIGNED8(buffer, at, strides) \
    ((((uintptr_t)((buffer) + (at))) & 15u) == 0u && ((strides)&7) == 0)
#endif
#define TESS_STORE_O(at, x)        (O[at] = tess_narrow(x))
#define TESS_STORE4_O(at, x)       vstore4(tess_narrow4(x), 0, O + (at))
#define TESS_STORE4_PARTIAL(at, x) vstore4((x), 0, workspace + (at))
#define TESS_STORE_PARTIAL(at, x)  (workspace[at] = (x))
#define TESS_LOAD_PARTIAL(at)      (workspace[at])
#define TESS_LOAD4_PARTIAL(at)     vload4(0, workspace + (at))
#define TESS_STORE_LSE(at, x)      (LSE[at] = (x))

#define TESS_BUFFERS                                                                           \
    const __global tess_element *Q, const __global tess_element *K,                            \
        const __global tess_element *V, __global tess_element *O, __global float *LSE,         \
        const __global int *block_table, const __global float *K_SCALE,                        \
        const __global float *V_SCALE, const __global uint *tables, __global float *workspace, \
        const tess_args args
#define TESS_DEPENDENCIES_WAIT
/* Compilers for CPUs do badly with a return before a barrier. */
#ifdef TESS_ON_CPU
#define TESS_LEAVE_UNLESS(present)
#else
#define TESS_LEAVE_UNLESS(present) \
    if (!(present)) return
#endif
/* A compiler that is told how many registers a thread may have (-cl-nv-maxrregcount) does not
 * listen where the size of a workgroup is told as well. */
#ifdef TESS_ON_NVIDIA
#define TESS_SIZE_OF_GROUP(threads)
#else
#define TESS_SIZE_OF_GROUP(threads) __attribute__((reqd_work_group_size(threads, 1, 1)))
#endif
#define TESS_FORWARD_KERNEL \
    __kernel TESS_SIZE_OF_GROUP(TESS_THREADS) void tess_forward(TESS_BUFFERS)
#define TESS_FEW_KERNEL TESS_FORWARD_KERNEL
#define TESS_MERGE_KERNEL \
    __kernel TESS_SIZE_OF_GROUP(TESS_MERGE_THREADS) void tess_merge(TESS_BUFFERS)

#define TESS_PARTS_KERNEL \
    __kernel TESS_SIZE_OF_GROUP(TESS_PARTS_THREADS) void tess_merge_parts(TESS_BUFFERS)

/* ------------------------------------------------------------------ backward */

#define TESS_LOAD_FLOAT(buffer, at)       ((buffer)[at])
#define TESS_LOAD4_FLOATS(buffer, at)     vload4(0, (buffer) + (at))
#define TESS_STORE4_FLOATS(buffer, at, x) vstore4((x), 0, (buffer) + (at))
/* To a buffer of floats that holds elements. */
#define TESS_STORE4_NARROW(buffer, at, x) \
    vstore4(tess_narrow4(x), 0, (__global tess_element *)(buffer) + (at))
#define TESS_BACKWARD_OF(name, threads)                                                          \
    __kernel __attribute__((reqd_work_group_size(threads, 1, 1))) void name(                     \
        const __global tess_element *Q, const __global tess_element *K,                          \
        const __global tess_element *V, const __global tess_element *O, __global float *LSE,     \
        const __global int *block_table, const __global float *K_SCALE, __global float *V_SCALE, \
        const __global uint *tables, __global float *workspace, const tess_args args)
#define TESS_BACKWARD_DELTA_KERNEL   TESS_BACKWARD_OF(tess_backward_delta, TESS_STRIP_THREADS)
#define TESS_BACKWARD_ROWS_KERNEL    TESS_BACKWARD_OF(tess_backward_rows, TESS_THREADS)
#define TESS_BACKWARD_COLUMNS_KERNEL TESS_BACKWARD_OF(tess_backward_columns, TESS_THREADS)

#endif /* TESS_DIALECT_OPENCL_H */
