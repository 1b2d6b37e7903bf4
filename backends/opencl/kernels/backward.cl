/* SPDX-License-Identifier: Apache-2.0 */
/* The portable kernels of backward in OpenCL C 1.2: tess_backward_delta, _rows and _columns. One
 * program is one instance, chosen by macros: TESS_DTYPE (0, 1, 2: f32, f16, bf16), TESS_DIMS,
 * TESS_TILE and TESS_THREADS (tess_backward_shape). */
#include "dialect_opencl.h"

#include "backward_delta.inl"

#include "backward_rows.inl"

#include "backward_columns.inl"
