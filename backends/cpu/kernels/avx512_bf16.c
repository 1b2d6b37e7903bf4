/* SPDX-License-Identifier: Apache-2.0 */
/* The body on bf16 storage with 512-bit dot products of bf16 pairs. */
#define KERNEL(x) tess_cpu_avx512_bf16_##x
#define VL        16
#define NV        2
#define KB        8
#define DB        8
#define PAIRS     1
#define TILES     0
#include <immintrin.h>
#define DOT(acc, a, b) ((vf)_mm512_dpbf16_ps((__m512)(acc), (__m512bh)(a), (__m512bh)(b)))
#include "body.inl"
