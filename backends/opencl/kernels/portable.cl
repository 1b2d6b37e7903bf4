/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The portable kernels in OpenCL C 1.2: tess_forward and tess_merge. One program is one instance,
 * chosen by macros: TESS_DTYPE (0, 1, 2: f32, f16, bf16), TESS_FEW, TESS_DIMS, TESS_ROWS, TESS_KEYS
 * and TESS_THREADS (tess_portable_shape).
 */
#include "dialect_opencl.h"

#if TESS_FEW
#include "forward_few.inl"
#else
#include "forward.inl"
#endif

#include "merge.inl"
