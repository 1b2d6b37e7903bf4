/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels that write a cache need of GLSL 4.5 for Vulkan 1.1; indices have 32 bits.
 * TESS_BITS is the size of an element: 16 needs storageBuffer16BitAccess, or TESS_PAIRS, which
 * moves words of two elements at even indices. */
#if defined(TESS_PAIRS)
#define TESS_BITS         16
#define TESS_PAGING_LEAST 2u
#elif TESS_BITS == 16
#extension GL_EXT_shader_16bit_storage : require
#endif
#include "paging_args.h"
#include "words.h"

#define tess_offset    uint
#define TESS_OFFSET(x) uint(x)
#define TESS_INT(x)    int(x)
#define TESS_UINT(x)   uint(x)
#define TESS_FLOAT(x)  float(x)
#define TESS_FUNCTION
#define TESS_STRUCT(name) struct name
#define tess_from_bits(x) uintBitsToFloat(x)
#define tess_to_bits(x)   floatBitsToUint(x)
#define TESS_THREAD       gl_LocalInvocationIndex
#define TESS_GROUP        (gl_WorkGroupID.x + gl_WorkGroupID.y * gl_NumWorkGroups.x)
#define TESS_WORD(at)     tables_[at]
#define TESS_WORD64(at)   tables_[at] /* the low half */

#if TESS_BITS == 16 && !defined(TESS_PAIRS)
#define TESS_UNIT uint16_t
#else
#define TESS_UNIT uint
#endif
#define TESS_PAGING_GROUP (128u / TESS_BITS)

layout(set = 0, binding = TESS_BIND_ARGS, std140) uniform tess_args_block {
    tess_paging_args args;
};
/* Each tensor is seen twice, as elements and as groups of 16 bytes, and those of the cache as words
 * of codes. */
layout(set = 0, binding = TESS_BIND_POOL_K) writeonly buffer tess_kc { uint K_codes_[]; };
layout(set = 0, binding = TESS_BIND_POOL_V) writeonly buffer tess_vc { uint V_codes_[]; };
layout(set = 0, binding = TESS_BIND_POOL_K_SCALE) buffer tess_ks { uint K_SCALE_[]; };
layout(set = 0, binding = TESS_BIND_POOL_V_SCALE) buffer tess_vs { uint V_SCALE_[]; };
layout(set = 0, binding = TESS_BIND_NEW_K) readonly buffer tess_nk { TESS_UNIT NEW_K_[]; };
layout(set = 0, binding = TESS_BIND_NEW_K) readonly buffer tess_nkw { uvec4 NEW_K_wide_[]; };
layout(set = 0, binding = TESS_BIND_NEW_V) readonly buffer tess_nv { TESS_UNIT NEW_V_[]; };
layout(set = 0, binding = TESS_BIND_NEW_V) readonly buffer tess_nvw { uvec4 NEW_V_wide_[]; };
layout(set = 0, binding = TESS_BIND_POOL_K) buffer tess_k { TESS_UNIT K_[]; };
layout(set = 0, binding = TESS_BIND_POOL_K) buffer tess_kw { uvec4 K_wide_[]; };
layout(set = 0, binding = TESS_BIND_POOL_V) buffer tess_v { TESS_UNIT V_[]; };
layout(set = 0, binding = TESS_BIND_POOL_V) buffer tess_vw { uvec4 V_wide_[]; };
layout(set = 0, binding = TESS_BIND_PAGES) readonly buffer tess_pages { uint table_words_[]; };
layout(set = 0, binding = TESS_BIND_TABLES) readonly buffer tess_tables { uint tables_[]; };

#define TESS_PAGING_BUFFERS_ALIGNED true /* the host has looked at the offsets */
#define TESS_PAGING_POOL_ALIGNED    true
#define TESS_PAGING_TABLE(at)       table_words_[at]
#if defined(TESS_PAIRS)
#define TESS_PAGING_COPY(to, at, from, place) to##_[(at) / 2u] = from##_[(place) / 2u]
#define TESS_PAGING_LOAD(from, place) \
    bitfieldExtract(from##_[(place) / 2u], int((place)&1u) * 16, 16)
#else
#define TESS_PAGING_COPY(to, at, from, place) to##_[at] = from##_[place]
#define TESS_PAGING_LOAD(from, place)         uint(from##_[place])
#endif
#define TESS_PAGING_SCALE(scales, at)         scales##_[at]
#define TESS_PAGING_STORE_CODES(to, at, word) to##_codes_[(at) / 4u] = (word)
#define TESS_PAGING_COPY_WIDE(to, at, from, place) \
    to##_wide_[(at) / TESS_PAGING_GROUP] = from##_wide_[(place) / TESS_PAGING_GROUP]
#define TESS_APPEND_KERNEL     void main()
#define TESS_COPY_PAGES_KERNEL void main()
