/* SPDX-License-Identifier: Apache-2.0 */
/* The body with 128-bit vectors of any processor. */
#define KERNEL(x) tess_cpu_portable_##x
#define VL        4
#define NV        2
#define KB        4
#define DB        4
#define PAIRS     0
#define TILES     0
#include "body.inl"
