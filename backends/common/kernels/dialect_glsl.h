/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The dialect of the portable kernels in GLSL 4.5 for Vulkan 1.1. Bindings are those of
 * backends/vulkan/kernels/bindings.h, indices have 32 bits. 16-bit elements need
 * storageBuffer16BitAccess, but no arithmetic on 16 bits. Without that feature TESS_PAIRS reads and
 * writes words of two elements, at even indices, and one module is for both types.
 */
#extension GL_EXT_control_flow_attributes : require
#if defined(TESS_PAIRS)
#define TESS_DTYPE 3
layout(constant_id = 4) const uint TESS_PAIRS_DTYPE = 1u; /* 1 or 2, as TESS_DTYPE */
#elif TESS_DTYPE != 0
#extension GL_EXT_shader_16bit_storage : require
#endif
#include "args.h"
#include "words.h"

#define tess_offset uint
#define TESS_FUNCTION
#define TESS_STRUCT(name) struct name
/* The tables and the arguments are global. */
#define TESS_TABLES
#define TESS_TABLES_OF_KERNEL
#define TESS_PAGES
#define TESS_PAGES_OF_KERNEL
/* Of conditions, without branches. */
#define TESS_AND(a, b)          ((a) && (b))
#define TESS_OR(a, b)           ((a) || (b))
#define TESS_OFFSET(x)          uint(x)
#define TESS_INT(x)             int(x)
#define TESS_UINT(x)            uint(x)
#define TESS_FLOAT(x)           float(x)
#define tess_from_bits(x)       uintBitsToFloat(x)
#define tess_to_bits(x)         floatBitsToUint(x)
#define VEC4                    vec4
#define VEC4_OF                 vec4
#define TESS_UNROLL             [[unroll]]
#define TESS_NO_UNROLL          [[dont_unroll]]
#define TESS_LOOP_ENTERS(first) false /* no compiler needs it here: see dialect_opencl.h */
#define TESS_UNROLL_4
#define TESS_THREAD  gl_LocalInvocationIndex
#define TESS_GROUP   (gl_WorkGroupID.x + gl_WorkGroupID.y * gl_NumWorkGroups.x)
#define TESS_BARRIER barrier()
#define TESS_SHARED_OUTSIDE
#define TESS_SHARED(t, n, c) shared t n[c];
#define TESS_WORD(at)        tables_[at]
#define TESS_WORD64(at)      tables_[at] /* the low half */
#define TESS_PAGE_ID(at)     block_table_[at]
#define TESS_HEAD_DIM        (args.head_dim)
#define TESS_FLAGS           (args.flags)
#define TESS_MINUS_INFINITY  uintBitsToFloat(0xff800000u)

#if TESS_DTYPE == 0
#define TESS_ELEMENT  float
#define TESS_ELEMENT4 vec4
#elif TESS_DTYPE == 3
#define TESS_ELEMENT  uint
#define TESS_ELEMENT4 uvec2
#else
#define TESS_ELEMENT  uint16_t
#define TESS_ELEMENT4 uvec2
#endif

/* Whose jobs find all that they need bound (backends/vulkan/bind_ranges.c): entries of the batch
 * dimension of K and V, first rows of jobs, ends of packed keys, and kv heads. */
struct tess_bound {
    uint first_batch, last_batch, first_row, last_row, first_key, last_key;
    uint first_kv_head, last_kv_head;
};
layout(set = 0, binding = TESS_BIND_ARGS, std140) uniform tess_args_block {
    tess_args args;
    tess_bound bound;
};

/* Inputs are seen twice, as elements and as groups of 4. */
layout(set = 0, binding = TESS_BIND_Q) readonly buffer tess_q { TESS_ELEMENT Q_[]; };
layout(set = 0, binding = TESS_BIND_Q) readonly buffer tess_q4 { TESS_ELEMENT4 Q4_[]; };
layout(set = 0, binding = TESS_BIND_K) readonly buffer tess_k { TESS_ELEMENT K_[]; };
layout(set = 0, binding = TESS_BIND_K) readonly buffer tess_k4 { TESS_ELEMENT4 K4_[]; };
layout(set = 0, binding = TESS_BIND_V) readonly buffer tess_v { TESS_ELEMENT V_[]; };
layout(set = 0, binding = TESS_BIND_V) readonly buffer tess_v4 { TESS_ELEMENT4 V4_[]; };
/* Those of 8 bits as words. */
layout(set = 0, binding = TESS_BIND_K) readonly buffer tess_k_codes { uint K_codes_[]; };
layout(set = 0, binding = TESS_BIND_V) readonly buffer tess_v_codes { uint V_codes_[]; };
layout(set = 0, binding = TESS_BIND_K_SCALE) readonly buffer tess_k_scale { float K_SCALE_[]; };
#if defined(TESS_BACKWARD)
/* dO in the place of O, and gradients in those of LSE and of scales of V, as floats and as
 * elements. */
layout(set = 0, binding = TESS_BIND_O) readonly buffer tess_o { TESS_ELEMENT O_[]; };
layout(set = 0, binding = TESS_BIND_O) readonly buffer tess_o4 { TESS_ELEMENT4 O4_[]; };
layout(set = 0, binding = TESS_BIND_LSE) buffer tess_lse { float LSE_[]; };
layout(set = 0, binding = TESS_BIND_V_SCALE) buffer tess_v_scale { float V_SCALE_[]; };
layout(set = 0, binding = TESS_BIND_LSE) writeonly buffer tess_lse_narrow {
    TESS_ELEMENT LSE_narrow_[];
};
layout(set = 0, binding = TESS_BIND_V_SCALE) writeonly buffer tess_v_scale_narrow {
    TESS_ELEMENT V_SCALE_narrow_[];
};
#else
layout(set = 0, binding = TESS_BIND_O) writeonly buffer tess_o { TESS_ELEMENT O_[]; };
layout(set = 0, binding = TESS_BIND_LSE) writeonly buffer tess_lse { float LSE_[]; };
layout(set = 0, binding = TESS_BIND_V_SCALE) readonly buffer tess_v_scale { float V_SCALE_[]; };
#endif
layout(set = 0, binding = TESS_BIND_TABLE) readonly buffer tess_block_table { int block_table_[]; };
layout(set = 0, binding = TESS_BIND_TABLES) readonly buffer tess_tables { uint tables_[]; };
layout(set = 0, binding = TESS_BIND_WORKSPACE) buffer tess_workspace { float workspace_[]; };
layout(set = 0, binding = TESS_BIND_WORKSPACE) readonly buffer tess_workspace4 {
    vec4 workspace4_[];
};

bool tess_is_bound(uint sequence, uint row, uint kv_head) {
    const uint batch = tables_[sequence + TESS_WORD_SEQUENCE_KV_BATCH],
               first_row = tables_[sequence + TESS_WORD_SEQUENCE_Q_START] + row,
               end = tables_[sequence + TESS_WORD_SEQUENCE_KV_START] +
                     tables_[sequence + TESS_WORD_SEQUENCE_KV_LEN],
               last_key = max(end, 1u) - 1u;
    return batch >= bound.first_batch && batch <= bound.last_batch &&
           first_row >= bound.first_row && first_row <= bound.last_row &&
           last_key >= bound.first_key && last_key <= bound.last_key &&
           kv_head >= bound.first_kv_head && kv_head <= bound.last_kv_head;
}
#define TESS_LEAVE_UNLESS_BOUND(sequence, row, kv_head) \
    if (!tess_is_bound(sequence, row, kv_head)) return;
#define TESS_FIRST_BOUND_HEAD     (bound.first_kv_head * args.group)
#define TESS_BOUND_HEADS(n_heads) ((bound.last_kv_head + 1u - bound.first_kv_head) * args.group)

#define tess_min(a, b)  min(a, b)
#define tess_max(a, b)  max(a, b)
#define tess_max4(a, b) max(a, b)
#define tess_exp2(x)    exp2(x)
#define tess_log2(x)    log2(x)
vec4 tess_exp_scores(vec4 scores, vec4 row_max, float scale_log2) {
    return mix(vec4(0.0), exp2((scores - row_max) * scale_log2),
               greaterThan(scores, vec4(TESS_LOWEST)));
}
float tess_max_of(vec4 a) { return max(max(a.x, a.y), max(a.z, a.w)); }

#if TESS_DTYPE == 0
#define TESS_LOAD4(buffer, at) \
    vec4(buffer##_[at], buffer##_[(at) + 1u], buffer##_[(at) + 2u], buffer##_[(at) + 3u])
#define TESS_LOAD4_ALIGNED(buffer, at) buffer##4_ [(at) / 4u]
#define TESS_STORE_O(at, value)        O_[at] = (value)
#else
#if TESS_DTYPE != 3
uvec2 tess_pack4(uint a, uint b, uint c, uint d) { return uvec2(a | b << 16, c | d << 16); }
#endif
#if TESS_DTYPE != 2
vec4 tess_widen_f16(uvec2 four) { return vec4(unpackHalf2x16(four.x), unpackHalf2x16(four.y)); }
/* packHalf2x16 may round in any direction; this is to nearest even, subnormals included. */
uint tess_narrow_f16(float x) {
    const uint bits = floatBitsToUint(x), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return sign | 0x7e00u;
    if (size >= 0x477ff000u) return sign | 0x7c00u;
    if (size >= 0x38800000u) return sign | (size - 0x38000000u + 0xfffu + (size >> 13 & 1u)) >> 13;
    if (size < 0x33000000u) return sign;
    const uint shift = 126u - (size >> 23), fraction = (size & 0x7fffffu) | 0x800000u,
               whole = fraction >> shift;
    const uint rest = fraction & ((1u << shift) - 1u), half_way = 1u << (shift - 1u);
    return sign | (whole + uint(rest > half_way || (rest == half_way && (whole & 1u) != 0u)));
}
#endif
#if TESS_DTYPE != 1
vec4 tess_widen_bf16(uvec2 four) {
    return vec4(uintBitsToFloat(four.x << 16), uintBitsToFloat(four.x & 0xffff0000u),
                uintBitsToFloat(four.y << 16), uintBitsToFloat(four.y & 0xffff0000u));
}
/* To nearest even; a NaN stays one. */
uint tess_narrow_bf16(float x) {
    const uint bits = floatBitsToUint(x);
    return (bits & 0x7fffffffu) > 0x7f800000u ? bits >> 16 | 0x40u
                                              : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}
#endif
#if TESS_DTYPE == 1
#define tess_widen  tess_widen_f16
#define tess_narrow tess_narrow_f16
#elif TESS_DTYPE == 2
#define tess_widen  tess_widen_bf16
#define tess_narrow tess_narrow_bf16
#else
vec4 tess_widen(uvec2 four) {
    if (TESS_PAIRS_DTYPE == 1u) return tess_widen_f16(four);
    return tess_widen_bf16(four);
}
uint tess_narrow(float x) {
    if (TESS_PAIRS_DTYPE == 1u) return tess_narrow_f16(x);
    return tess_narrow_bf16(x);
}
#endif
#if TESS_DTYPE == 3
uint tess_pair(float low, float high) { return tess_narrow(low) | tess_narrow(high) << 16; }
#define TESS_PACK4(buffer, at) uvec2(buffer##_[(at) / 2u], buffer##_[(at) / 2u + 1u])
#else
#define TESS_PACK4(buffer, at)                                                              \
    tess_pack4(uint(buffer##_[at]), uint(buffer##_[(at) + 1u]), uint(buffer##_[(at) + 2u]), \
               uint(buffer##_[(at) + 3u]))
#define TESS_STORE_O(at, value) O_[at] = uint16_t(tess_narrow(value))
#endif
#define TESS_LOAD4(buffer, at)         tess_widen(TESS_PACK4(buffer, at))
#define TESS_LOAD4_ALIGNED(buffer, at) tess_widen(buffer##4_ [(at) / 4u])
#endif

/* 8 elements as they are in memory, which take few registers until they are used: of 16 bits, one
 * more view of the inputs; of 32 bits, two groups of 4. */
#if TESS_DTYPE == 0
struct tess_eight {
    vec4 low, high;
};
#define TESS_EIGHT             tess_eight
#define TESS_EIGHT_ZEROS       tess_eight(vec4(0.0), vec4(0.0))
#define TESS_LOW4(eight)       (eight).low
#define TESS_HIGH4(eight)      (eight).high
#define TESS_LOAD8(buffer, at) tess_eight(TESS_LOAD4(buffer, at), TESS_LOAD4(buffer, (at) + 4u))
#define TESS_LOAD8_ALIGNED(buffer, at) \
    tess_eight(TESS_LOAD4_ALIGNED(buffer, at), TESS_LOAD4_ALIGNED(buffer, (at) + 4u))
#define TESS_AHEAD 4u
#elif defined(TESS_FEW)
layout(set = 0, binding = TESS_BIND_Q) readonly buffer tess_q8 { uvec4 Q8_[]; };
layout(set = 0, binding = TESS_BIND_K) readonly buffer tess_k8 { uvec4 K8_[]; };
layout(set = 0, binding = TESS_BIND_V) readonly buffer tess_v8 { uvec4 V8_[]; };
#define TESS_EIGHT                     uvec4
#define TESS_EIGHT_ZEROS               uvec4(0u)
#define TESS_LOW4(eight)               tess_widen((eight).xy)
#define TESS_HIGH4(eight)              tess_widen((eight).zw)
#define TESS_LOAD8(buffer, at)         uvec4(TESS_PACK4(buffer, at), TESS_PACK4(buffer, (at) + 4u))
#define TESS_LOAD8_ALIGNED(buffer, at) buffer##8_ [(at) / 8u]
#define TESS_AHEAD                     8u
#endif
#if TESS_DTYPE == 3
/* Words serve every even index: modules without a second way are a third smaller. */
#define TESS_IS_ALIGNED(buffer, at, strides)  false
#define TESS_IS_ALIGNED8(buffer, at, strides) false
#else
#define TESS_IS_ALIGNED(buffer, at, strides)  ((((at) | (strides)) & 3u) == 0u)
#define TESS_IS_ALIGNED8(buffer, at, strides) ((((at) | (strides)) & 7u) == 0u)
#endif

/* Four codes from byte `at` on, which is a multiple of 4. */
#define TESS_LOAD_CODES(buffer, at, scale) \
    tess_decode(buffer##_codes_[(at) / 4u], TESS_FLAGS, scale)
#define TESS_LOAD_SCALE(buffer, at)   buffer##_[at]
#define TESS_STORE_LSE(at, value)     LSE_[at] = (value)
#define TESS_STORE_PARTIAL(at, value) workspace_[at] = (value)
#define TESS_LOAD_PARTIAL(at)         workspace_[at]
#define TESS_LOAD4_PARTIAL(at)        workspace4_[(at) / 4u]
#define TESS_STORE4(store, at, four) \
    store(at, (four).x);             \
    store((at) + 1u, (four).y);      \
    store((at) + 2u, (four).z);      \
    store((at) + 3u, (four).w)
#if TESS_DTYPE == 3
#define TESS_STORE4_O(at, four)                    \
    O_[(at) / 2u] = tess_pair((four).x, (four).y); \
    O_[(at) / 2u + 1u] = tess_pair((four).z, (four).w)
#else
#define TESS_STORE4_O(at, four) TESS_STORE4(TESS_STORE_O, at, four)
#endif
#define TESS_STORE4_PARTIAL(at, four) TESS_STORE4(TESS_STORE_PARTIAL, at, four)
#define TESS_FORWARD_KERNEL           void main()
#define TESS_FEW_KERNEL               void main()
#define TESS_MERGE_KERNEL             void main()
#define TESS_PARTS_KERNEL             void main()
#define TESS_DEPENDENCIES_WAIT
#define TESS_LEAVE_UNLESS(present) \
    if (!(present)) return
/* Only a compiler of OpenCL C for CPUs needs it: see dialect_opencl.h. */
#define TESS_LOOP_ENTERS(first) false

#if defined(TESS_BACKWARD)
#define TESS_LOAD_FLOAT(buffer, at) buffer##_[at]
#define TESS_LOAD4_FLOATS(buffer, at) \
    vec4(buffer##_[at], buffer##_[(at) + 1u], buffer##_[(at) + 2u], buffer##_[(at) + 3u])
#define TESS_STORE4_FLOATS(buffer, at, four) tess_store4_##buffer(at, four)
#define TESS_STORE4_NARROW(buffer, at, four) tess_store4_narrow_##buffer(at, four)
#define TESS_STORE4_FUNCTION(buffer)                \
    void tess_store4_##buffer(uint at, vec4 four) { \
        buffer##_[at] = four.x;                     \
        buffer##_[at + 1u] = four.y;                \
        buffer##_[at + 2u] = four.z;                \
        buffer##_[at + 3u] = four.w;                \
    }
#if TESS_DTYPE == 3
#define TESS_STORE4_NARROW_FUNCTION(buffer)                         \
    void tess_store4_narrow_##buffer(uint at, vec4 four) {          \
        buffer##_narrow_[at / 2u] = tess_pair(four.x, four.y);      \
        buffer##_narrow_[at / 2u + 1u] = tess_pair(four.z, four.w); \
    }
#else
#if TESS_DTYPE == 0
#define TESS_NARROW_ELEMENT(x) (x)
#else
#define TESS_NARROW_ELEMENT(x) uint16_t(tess_narrow(x))
#endif
#define TESS_STORE4_NARROW_FUNCTION(buffer)                      \
    void tess_store4_narrow_##buffer(uint at, vec4 four) {       \
        buffer##_narrow_[at] = TESS_NARROW_ELEMENT(four.x);      \
        buffer##_narrow_[at + 1u] = TESS_NARROW_ELEMENT(four.y); \
        buffer##_narrow_[at + 2u] = TESS_NARROW_ELEMENT(four.z); \
        buffer##_narrow_[at + 3u] = TESS_NARROW_ELEMENT(four.w); \
    }
#endif
TESS_STORE4_FUNCTION(LSE)
TESS_STORE4_NARROW_FUNCTION(LSE)
TESS_STORE4_FUNCTION(V_SCALE)
TESS_STORE4_NARROW_FUNCTION(V_SCALE)
#define TESS_BACKWARD_DELTA_KERNEL   void main()
#define TESS_BACKWARD_ROWS_KERNEL    void main()
#define TESS_BACKWARD_COLUMNS_KERNEL void main()
#endif
