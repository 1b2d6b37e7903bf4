/* SPDX-License-Identifier: Apache-2.0 */
/* The body with 512-bit vectors. */
#define KERNEL(x) tess_cpu_avx512_##x
#define VL        16
#define NV        2
#define KB        8
#define DB        8
#define PAIRS     0
#define TILES     0
#include "body.inl"
