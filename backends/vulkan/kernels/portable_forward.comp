/* SPDX-License-Identifier: Apache-2.0 */
/* The portable forward kernel for Vulkan, one module for each TESS_DTYPE (0, 1, 2: f32, f16, bf16).
 * The shape is specialised: see bindings.h. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "bindings.h"
#include "dialect_glsl.h"

layout(constant_id = 0) const uint TESS_DIMS = 64u;
layout(constant_id = 1) const uint TESS_ROWS = 32u;
layout(constant_id = 2) const uint TESS_KEYS = 32u;
layout(constant_id = 3) const uint TESS_THREADS = 64u;
layout(local_size_x_id = 3) in;

#include "forward.inl"
