/* SPDX-License-Identifier: Apache-2.0 */
/* The portable kernel append.inl for Vulkan, one module for each TESS_BITS (16, 32). */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "bindings.h"
#include "paging_glsl.h"

layout(local_size_x = 64) in;

#include "append.inl"
