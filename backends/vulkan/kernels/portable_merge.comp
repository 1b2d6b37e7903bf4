/* SPDX-License-Identifier: Apache-2.0 */
/* The portable merge kernel for Vulkan, one module for each TESS_DTYPE (0, 1, 2: f32, f16,
 * bf16). */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "bindings.h"
#include "dialect_glsl.h"

layout(local_size_x = 128) in;

#include "merge.inl"
