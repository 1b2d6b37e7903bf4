/* SPDX-License-Identifier: Apache-2.0 */
/* The dialect of the portable kernels in OpenCL C 1.2. Needs neither cl_khr_fp16 nor subgroups. */
#ifndef TESS_DIALECT_OPENCL_H
#define TESS_DIALECT_OPENCL_H

#include "args.h"

#pragma OPENCL FP_CONTRACT ON

typedef float4 vec4;
typedef long tess_offset;

#define TESS_FUNCTION        static inline
#define TESS_OFFSET(x)       ((tess_offset)(x))
#define TESS_INT(x)          ((int)(x))
#define TESS_UINT(x)         ((uint)(x))
#define VEC4(a, b, c, d)     ((float4)((a), (b), (c), (d)))
#define TESS_UNROLL          _Pragma("unroll")
#define TESS_THREAD          ((uint)get_local_id(0))
#define TESS_GROUP           ((uint)(get_group_id(0) + get_group_id(1) * get_num_groups(0)))
#define TESS_BARRIER         barrier(CLK_LOCAL_MEM_FENCE)
#define TESS_SHARED(t, n, c) __local t n[c];
#define TESS_WORD(at)        (tables[at])
#define TESS_WIDE(at)        ((long)((ulong)tables[at] | (ulong)tables[(at) + 1u] << 32))
#define TESS_HEAD_DIM        (args.head_dim)
#define TESS_FLAGS           (args.flags)
#define TESS_LOG2E           1.44269504088896340736f
#define TESS_LN2             0.69314718055994530942f
#define TESS_MINUS_INFINITY  (-INFINITY)

TESS_FUNCTION float tess_max(float a, float b) { return a > b ? a : b; }
TESS_FUNCTION vec4 tess_max4(vec4 a, vec4 b) { return max(a, b); }
TESS_FUNCTION float tess_highest(vec4 a) { return max(max(a.x, a.y), max(a.z, a.w)); }
/* The native one may be off by any amount. */
TESS_FUNCTION float tess_exp2(float x) { return exp2(x); }
TESS_FUNCTION float tess_log2(float x) { return log2(x); }

#if TESS_DTYPE == 0
typedef float tess_element;
TESS_FUNCTION vec4 tess_load4(const __global float *from) { return (float4)(from[0], from[1], from[2], from[3]); }
TESS_FUNCTION vec4 tess_load4_aligned(const __global float *from) { return *(const __global float4 *)from; }
TESS_FUNCTION void tess_store(__global float *to, float x) { *to = x; }
#elif TESS_DTYPE == 1
typedef ushort tess_element;
TESS_FUNCTION vec4 tess_load4(const __global ushort *from) {
    const __global half *at = (const __global half *)from;
    return (float4)(vload_half(0, at), vload_half(1, at), vload_half(2, at), vload_half(3, at));
}
TESS_FUNCTION vec4 tess_load4_aligned(const __global ushort *from) { return vload_half4(0, (const __global half *)from); }
TESS_FUNCTION void tess_store(__global ushort *to, float x) { vstore_half_rte(x, 0, (__global half *)to); }
#else
typedef ushort tess_element;
TESS_FUNCTION vec4 tess_load4(const __global ushort *from) {
    return (float4)(as_float((uint)from[0] << 16), as_float((uint)from[1] << 16), as_float((uint)from[2] << 16), as_float((uint)from[3] << 16));
}
TESS_FUNCTION vec4 tess_load4_aligned(const __global ushort *from) { return as_float4(convert_uint4(*(const __global ushort4 *)from) << 16); }
/* To nearest even; a NaN stays one. */
TESS_FUNCTION void tess_store(__global ushort *to, float x) {
    const uint bits = as_uint(x);
    *to = (ushort)(isnan(x) ? bits >> 16 | 0x40u : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
#endif

#define TESS_LOAD4(buffer, at)         tess_load4((buffer) + (at))
#define TESS_LOAD4_ALIGNED(buffer, at) tess_load4_aligned((buffer) + (at))
/* Whether groups of 4 elements from `at` on, and those any number of `strides` away, may be loaded at once. */
#define TESS_IS_ALIGNED(buffer, at, strides) ((((uintptr_t)((buffer) + (at))) % (4u * sizeof(tess_element))) == 0u && ((strides)&3) == 0)
#define TESS_STORE_O(at, x)                  tess_store(O + (at), (x))
#define TESS_STORE_LSE(at, x)                (LSE[at] = (x))
#define TESS_STORE_PARTIAL(at, x)            (workspace[at] = (x))
#define TESS_LOAD_PARTIAL(at)                (workspace[at])

#define TESS_BUFFERS                                                                                                                               \
    const __global tess_element *Q, const __global tess_element *K, const __global tess_element *V, __global tess_element *O, __global float *LSE, \
        const __global uint *tables, __global float *workspace, const tess_args args
#define TESS_FORWARD_KERNEL __kernel __attribute__((reqd_work_group_size(TESS_THREADS, 1, 1))) void tess_forward(TESS_BUFFERS)
#define TESS_MERGE_KERNEL   __kernel __attribute__((reqd_work_group_size(TESS_MERGE_THREADS, 1, 1))) void tess_merge(TESS_BUFFERS)

#endif /* TESS_DIALECT_OPENCL_H */
