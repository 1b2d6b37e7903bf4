// SPDX-License-Identifier: Apache-2.0
// Products on matrix units in GLSL (VK_KHR_cooperative_matrix): of f16, or of bf16 with BF16. A
// product is of one subgroup, with operands and sums in registers. All elements that a thread holds
// are different, or a compiler makes one of two products or of their halves. Sums are stored only
// if they have a value that they never have: the loop must not be left out.
#version 450
#pragma use_vulkan_memory_model
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#ifdef BF16
#extension GL_EXT_bfloat16 : require
#define NUMBER bfloat16_t
#else
#define NUMBER float16_t
#endif
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint M = 16;
layout(constant_id = 1) const uint N = 16;
layout(constant_id = 2) const uint K = 16;
layout(std430, set = 0, binding = 0) readonly buffer From { uvec4 from[]; };
layout(std430, set = 0, binding = 1) writeonly buffer To { uvec4 to[]; };
layout(push_constant) uniform Constants { uint turns; };

#define MATRIX(type, rows, columns, use) \
    coopmat<type, gl_ScopeSubgroup, rows, columns, gl_MatrixUse##use>
#define EACH(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define START(i) \
    MATRIX(float, M, N, Accumulator) c##i = start + MATRIX(float, M, N, Accumulator)(float(i));
#define MULTIPLY(i) c##i = coopMatMulAdd(a, b, c##i);
#define SUM(i) start += c##i;

void main() {
    const float first = 0.001 * float(gl_WorkGroupID.x + gl_LocalInvocationID.x);
    MATRIX(NUMBER, M, K, A) a = MATRIX(NUMBER, M, K, A)(NUMBER(0.0));
    MATRIX(NUMBER, K, N, B) b = MATRIX(NUMBER, K, N, B)(NUMBER(0.0));
    MATRIX(float, M, N, Accumulator) start = MATRIX(float, M, N, Accumulator)(0.0);
    for (int k = 0; k < a.length(); k++) a[k] = NUMBER(first + 0.01 * float(k));
    for (int k = 0; k < b.length(); k++) b[k] = NUMBER(0.5 - 0.02 * float(k));
    for (int k = 0; k < start.length(); k++) start[k] = first + float(k);
    EACH(START)
    for (uint n = 0u; n < turns; n++) {
        EACH(MULTIPLY)
    }
    EACH(SUM)
    float sum = 0.0;
    for (int k = 0; k < start.length(); k++) sum += start[k];
    if (sum == 1.2345) to[0] = uvec4(1u);
}
