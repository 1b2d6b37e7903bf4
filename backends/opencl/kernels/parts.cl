/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel that merges parts of keys in OpenCL C 1.2, tess_merge_parts, in a program of its own
 * for each TESS_DTYPE (0, 1, 2: f32, f16, bf16). */
#include "dialect_opencl.h"

#include "merge_parts.inl"
