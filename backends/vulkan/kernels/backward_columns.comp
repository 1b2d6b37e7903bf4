/* SPDX-License-Identifier: Apache-2.0 */
/* The pass over columns of the portable backward kernel, as portable_forward.comp is forward's. */
#version 450
#extension GL_GOOGLE_include_directive : require
#define TESS_BACKWARD 1
#include "bindings.h"
#include "dialect_glsl.h"

layout(constant_id = 0) const uint TESS_DIMS = 64u;
layout(constant_id = 1) const uint TESS_TILE = 32u;
layout(constant_id = 3) const uint TESS_THREADS = 64u;
layout(local_size_x_id = 3) in;

#include "backward_columns.inl"
