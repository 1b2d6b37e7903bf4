/* SPDX-License-Identifier: Apache-2.0 */
/* The portable forward kernel for few rows, as portable_forward.comp is that for tiles. */
#version 450
#extension GL_GOOGLE_include_directive : require
#define TESS_FEW 1
#include "bindings.h"
#include "dialect_glsl.h"

layout(constant_id = 0) const uint TESS_DIMS = 64u;
layout(constant_id = 1) const uint TESS_ROWS = 16u;
layout(constant_id = 2) const uint TESS_KEYS = 64u;
layout(constant_id = 3) const uint TESS_THREADS = 64u;
layout(local_size_x_id = 3) in;

#include "forward_few.inl"
