/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What intel_dpas.cl needs of Intel's extensions to OpenCL C, one function each:
 * cl_intel_subgroup_matrix_multiply_accumulate, cl_intel_subgroup_local_block_io,
 * cl_intel_bfloat16_conversions and subgroups.
 *
 * A product is C += A B of 8 x 16 times 16 x N, where N is the size of the subgroup. A lane holds a
 * column of B and of C, and 16 / N neighbouring columns of A.
 */
#ifndef TESS_OPENCL_INTEL_INSTRUCTIONS_H
#define TESS_OPENCL_INTEL_INSTRUCTIONS_H

#if TESS_DTYPE == 1
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#define INTEL_MAD intel_sub_group_f16_f16_matrix_mad_k16
#else
#define INTEL_MAD intel_sub_group_bf16_bf16_matrix_mad_k16
#endif

#if TESS_LANES == 16u
typedef short8 intel_a;
#else
typedef int8 intel_a;
#endif

#ifndef INTEL_UNIT
#define INTEL_UNIT(a, b, c, d) ((uint4)((a), (b), (c), (d)))
#define INTEL_UNITS(x)         ((uint4)(x))
#define INTEL_WORDS(a, b)      as_int8((uint8)((a), (b)))
#define INTEL_FLOATS(x)        ((float8)(x))
#define INTEL_PAIR(a, b)       ((float2)((a), (b)))
#define INTEL_NARROW(x)        as_uint4((ushort8)(tess_narrow4((x).lo), tess_narrow4((x).hi)))
#endif

/* A thread of the workgroup is a lane of a subgroup, however the driver numbers work-items. */
MATRIX_FUNCTION uint intel_thread(void) {
    return (uint)get_sub_group_id() * TESS_LANES + (uint)get_sub_group_local_id();
}

MATRIX_FUNCTION float8 intel_mad(intel_a a, int8 b, float8 c) { return INTEL_MAD(a, b, c); }

/* 8 rows of 16 elements that follow each other, as A. */
MATRIX_FUNCTION intel_a intel_load_rows(const __local ushort *from) {
#if TESS_LANES == 16u
    return as_short8(intel_sub_group_block_read_us8(from));
#else
    return as_int8(intel_sub_group_block_read8((const __local uint *)from));
#endif
}

/* 16 rows of 8 elements that follow each other, as the transposed A. Columns 2 n and 2 n + 1 of A
 * are rows n and n + 8. */
MATRIX_FUNCTION intel_a intel_load_columns(const __local ushort *from) {
    const uint lane = (uint)get_sub_group_local_id();
#if TESS_LANES == 16u
    return as_short8(*(const __local uint4 *)(from + (lane / 2u + lane % 2u * 8u) * 8u));
#else
    const ushort8 a = as_ushort8(*(const __local uint4 *)(from + lane * 8u)),
                  b = as_ushort8(*(const __local uint4 *)(from + (lane + 8u) * 8u));
    return as_int8(convert_uint8(a) | convert_uint8(b) << 16);
#endif
}

/* Two numbers as elements of a word, the first in its low half. */
MATRIX_FUNCTION uint intel_pack(float low, float high) {
#if TESS_DTYPE == 1
    return as_uint(convert_half2(INTEL_PAIR(low, high)));
#else
    return as_uint(intel_convert_bfloat162_as_ushort2(INTEL_PAIR(low, high)));
#endif
}

/* Eight numbers as elements of four words. Where subgroups are of 8, the builtin makes all of O
 * wait in registers that it does not have. */
MATRIX_FUNCTION uint4 intel_pack_unit(float8 x) {
#if TESS_DTYPE == 1
    return as_uint4(convert_half8(x));
#elif TESS_LANES == 8u
    return INTEL_NARROW(x);
#else
    return as_uint4(intel_convert_bfloat168_as_ushort8(x));
#endif
}

/* Over the lanes of the subgroup. */
MATRIX_FUNCTION int intel_least(int x) { return sub_group_reduce_min(x); }
MATRIX_FUNCTION int intel_most(int x) { return sub_group_reduce_max(x); }
MATRIX_FUNCTION bool intel_any(bool x) { return sub_group_any(x) != 0; }
MATRIX_FUNCTION uint intel_union(uint x) {
    TESS_UNROLL for (uint n = 1u; n < TESS_LANES; n *= 2u) x |= intel_sub_group_shuffle_xor(x, n);
    return x;
}

MATRIX_FUNCTION float intel_multiply(float a, float b) { return a * b; }
MATRIX_FUNCTION float intel_fma(float a, float b, float c) { return fma(a, b, c); }
MATRIX_FUNCTION float intel_exp2(float x) { return exp2(x); }
MATRIX_FUNCTION float intel_log2(float x) { return log2(x); }

#endif /* TESS_OPENCL_INTEL_INSTRUCTIONS_H */
