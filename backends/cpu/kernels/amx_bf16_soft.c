/* SPDX-License-Identifier: Apache-2.0 */
/* The AMX kernel with its tile operations in plain C. It is slow, and tests the tile products on
 * processors without AMX. */
#define KERNEL(x)  tess_cpu_amx_bf16_soft_##x
#define VL         4
#define NV         8
#define KB         8
#define DB         8
#define PAIRS      1
#define TILES      1
#define SOFT_TILES 1
#include "body.inl"
