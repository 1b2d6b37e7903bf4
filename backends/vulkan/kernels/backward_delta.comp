/* SPDX-License-Identifier: Apache-2.0 */
/* The first stage of the portable backward kernel, as portable_merge.comp is the merge. */
#version 450
#extension GL_GOOGLE_include_directive : require
#define TESS_BACKWARD 1
#include "bindings.h"
#include "dialect_glsl.h"

layout(local_size_x = 64) in;

#include "backward_delta.inl"
