/* SPDX-License-Identifier: Apache-2.0 */
/* Copies all of one binding to the other, in groups of 16 bytes. A thread has TESS_COPY_EACH of
 * them in flight, without a branch between the loads. */
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "bindings.h"
#include "copy_shape.h"

layout(local_size_x = TESS_COPY_THREADS) in;
layout(set = 0, binding = TESS_BIND_TABLES) restrict readonly buffer tess_from { uvec4 from_[]; };
layout(set = 0, binding = TESS_BIND_WORKSPACE) restrict writeonly buffer tess_to { uvec4 to_[]; };

void main() {
    const uint group = gl_WorkGroupID.x + gl_WorkGroupID.y * gl_NumWorkGroups.x,
               first = group * TESS_COPY_EACH * TESS_COPY_THREADS + gl_LocalInvocationIndex,
               end = uint(from_.length());
    if ((group + 1u) * TESS_COPY_EACH * TESS_COPY_THREADS <= end) {
        uvec4 held[TESS_COPY_EACH];
        [[unroll]] for (uint n = 0u; n < TESS_COPY_EACH; n++)
            held[n] = from_[first + n * TESS_COPY_THREADS];
        [[unroll]] for (uint n = 0u; n < TESS_COPY_EACH; n++)
            to_[first + n * TESS_COPY_THREADS] = held[n];
    } else {
        for (uint n = 0u; n < TESS_COPY_EACH; n++) {
            const uint at = first + n * TESS_COPY_THREADS;
            if (at < end) to_[at] = from_[at];
        }
    }
}
