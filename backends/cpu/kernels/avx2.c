/* SPDX-License-Identifier: Apache-2.0 */
/* The body with 256-bit vectors. */
#define KERNEL(x) tess_cpu_avx2_##x
#define VL        8
#define NV        2
#define KB        4
#define DB        4
#define PAIRS     0
#define TILES     0
#include "body.inl"
