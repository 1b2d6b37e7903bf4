// SPDX-License-Identifier: Apache-2.0
// Loops in GLSL: LOOP 0 copies, 1 reads, 2 multiplies and adds in f32, 3 in f16. A thread moves
// vectors a group apart. Sums are stored only if they have a value that they never have: the loop
// must not be left out.
#version 450
#if LOOP == 3
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#define SCALAR f16vec2
#define NUMBER float16_t
#define DIFFER f16vec2(0, 1)
#else
#define SCALAR vec4
#define NUMBER float
#define DIFFER vec4(0, 1, 2, 3)
#endif
layout(local_size_x = 256) in;
layout(std430, set = 0, binding = 0) readonly buffer From { uvec4 from[]; };
layout(std430, set = 0, binding = 1) writeonly buffer To { uvec4 to[]; };
layout(push_constant) uniform Constants { uint turns; };

void main() {
#if LOOP < 2
    const uint step = 256u;
    const uint at = gl_WorkGroupID.x * (step * 4u) + gl_LocalInvocationID.x;
    const uvec4 a = from[at], b = from[at + step], c = from[at + 2u * step],
                d = from[at + 3u * step];
#if LOOP == 0
    to[at] = a;
    to[at + step] = b;
    to[at + 2u * step] = c;
    to[at + 3u * step] = d;
#else
    const uvec4 x = a ^ b ^ c ^ d;
    if ((x.x ^ x.y ^ x.z ^ x.w) == 0x9e3779b9u) to[at] = x;
#endif
#else
    // Elements differ, or a compiler computes one for all of them.
    const SCALAR x = SCALAR(NUMBER(gl_LocalInvocationID.x)) + DIFFER, y = SCALAR(NUMBER(0.999));
    SCALAR a = x, b = x + y, c = y, d = -x, e = -y, f = x - y, g = x * y, h = y * y;
    for (uint n = 0u; n < turns; n++) {
        a = fma(a, y, x);
        b = fma(b, y, x);
        c = fma(c, y, x);
        d = fma(d, y, x);
        e = fma(e, y, x);
        f = fma(f, y, x);
        g = fma(g, y, x);
        h = fma(h, y, x);
    }
    a += b + c + d + e + f + g + h;
    if (dot(a, SCALAR(NUMBER(1))) == NUMBER(1.2345)) to[0] = uvec4(1u);
#endif
}
