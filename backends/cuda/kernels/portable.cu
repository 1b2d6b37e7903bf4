/* SPDX-License-Identifier: Apache-2.0 */
/* The portable kernels in CUDA, all instances: tess_forward_<f32|f16|bf16>_<64|128|256> and
 * tess_merge_<f32|f16|bf16>, tess_merge_parts_<f32|f16|bf16>, tess_backward_delta_<f32|f16|bf16>,
 * tess_backward_<rows|columns>_<f32|f16|bf16>_<64|128|256>, tess_append_<16|32>,
 * tess_copy_pages_<16|32> and tess_prepare. */
#include "dialect_cuda.h"
#include "paging_cuda.h"
#include "step_cuda.h"

#ifndef TESS_FEWEST /* few.cuh: a type of 16 bits is enough */
#define TESS_DTYPE_NAME f32
#define TESS_ELEMENT    float
#include "instances.inl"

#include "backward_instances.inl"
#undef TESS_DTYPE_NAME
#undef TESS_ELEMENT

#define TESS_DTYPE_NAME f16
#define TESS_ELEMENT    tess_f16
#include "instances.inl"

#include "backward_instances.inl"
#undef TESS_DTYPE_NAME
#undef TESS_ELEMENT
#endif

#define TESS_DTYPE_NAME bf16
#define TESS_ELEMENT    tess_bf16
#include "instances.inl"

#include "backward_instances.inl"
#undef TESS_DTYPE_NAME
#undef TESS_ELEMENT

#include "paging_instances.inl"
#include "prepare.inl"
