/* SPDX-License-Identifier: Apache-2.0 */
/* The stretch of a job's keys that needs no search: consecutive tokens, or whole blocks at equal
 * distances. */
#ifndef TESS_CUDA_DECODE_STRETCH_CUH
#define TESS_CUDA_DECODE_STRETCH_CUH

#include "sm80_keys.cuh"

namespace tess {

/* Most keys of a job are in the unmasked middle of its interval, or in the list of strided blocks
 * before it. The longer one of the two is the stretch. Its keys follow each other in runs, and need
 * no mask. */
struct key_stretch {
    uint32_t first, count; /* places in the list where a warp's stage may begin */
    uint32_t origin;       /* a place in the list, and ... */
    int32_t token;         /* ... the token there, which begins a block */
    uint32_t shift;        /* log2 of a block's keys; past all keys if tokens follow each other */
    int32_t step;          /* tokens from block to block */
    int32_t end;           /* past all of its tokens */

    /* `keys`: of a warp's stage. `stage_keys`: of those of all warps. */
    __device__ __forceinline__ void make(const key_list &list, const uint32_t *entries,
                                         uint32_t keys, uint32_t stage_keys) {
        const tess_key_walk &w = list.order.walk;
        const uint32_t masked = list.order.masked(),
                       middle = w.interval_blocks - w.mask_head - w.mask_tail,
                       listed = w.left_count - list.order.masked_left;
        const bool strided = listed > middle && list.flags & TESS_CLASS_LOCAL &&
                             !(list.flags & TESS_CLASS_BITS) && list.block_shift >= 0;
        const uint32_t before = strided ? masked + middle : masked,
                       blocks = strided ? listed : middle;
        origin = list.empty + list.short_keys + before * list.block;
        token = (strided ? table_word(entries + w.left_offset) : w.interval_start + w.mask_head) *
                list.block;
        shift = strided ? list.block_shift : 31;
        step = strided ? list.stride * list.block : 0;
        end = token + (int32_t)(strided ? (blocks - 1) * step + list.block : blocks * list.block);
        first = max(max(origin, list.first_following), (uint32_t)list.masked_stages * stage_keys);
        const uint32_t past = origin + blocks * list.block;
        count = first + keys <= past && first < past ? past - keys - first + 1 : 0;
    }

    __device__ __forceinline__ bool has(uint32_t n) const { return n - first < count; }

    /* The token of the list's n-th key, which is in the stretch. */
    __device__ __forceinline__ int32_t token_of(uint32_t n) const {
        const uint32_t i = n - origin, block = i >> shift;
        return token + (int32_t)(block * step + i - (block << shift));
    }
};

} // namespace tess

#endif // TESS_CUDA_DECODE_STRETCH_CUH
