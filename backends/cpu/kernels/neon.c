/* SPDX-License-Identifier: Apache-2.0 */
/* The body with the 128-bit vectors of aarch64: 32 registers allow a block of 8 x 2
 * accumulators. */
#define KERNEL(x) tess_cpu_neon_##x
#define VL        4
#define NV        2
#define KB        8
#define DB        8
#define PAIRS     0
#define TILES     0
#include "body.inl"
