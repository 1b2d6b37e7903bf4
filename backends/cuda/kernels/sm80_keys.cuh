/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of a job in the kernel for Ampere and later: their list, and which of them a row
 * keeps. */
#ifndef TESS_CUDA_SM80_KEYS_CUH
#define TESS_CUDA_SM80_KEYS_CUH

#include "jobs.cuh"

namespace tess {

/* A key of a stage: its token, and (bit n) whether rows of the tile's n-th query block keep it, as
 * far as token bounds allow. */
struct key {
    int32_t token;
    uint32_t kept;
};

/* The keys of a job in the order in which the kernel takes them (a softmax allows any order). Empty
 * keys come first and fill up the first stage. Then come the keys that need a mask, beginning with
 * the block that the sequence's end cuts short, if the job has it. All others follow and need no
 * test. */
struct key_list {
    int32_t stages, masked_stages; /* the first masked_stages need a mask */
    int32_t empty, short_keys;
    uint32_t first_following;          /* see find_following */
    uint32_t short_block, short_entry; /* a key block; where it is listed, or 0 */
    block_order order;                 /* whole blocks */
    int32_t block, block_shift;        /* tokens of a block; log2 of that, or -1 */
    int32_t first_block;               /* the query block of the tile's first row */
    uint32_t flags, local, stride, shift;

    __device__ __forceinline__ void make(const job_words *j, const uint32_t *entries,
                                         int32_t block_tokens, int32_t stage_keys) {
        tess_key_walk w = j->walk;
        block = block_tokens;
        block_shift = block & (block - 1) ? -1 : 31 - __clz(block);
        first_block = floor_div(j->q_first + j->row, block);
        flags = j->flags;
        local = j->local;
        stride = j->stride;
        shift = j->shift;
        short_keys = 0;
        short_block = j->kv_len / block;
        short_entry = 0;
        const int32_t rest = j->kv_len % block;
        if (rest) { /* lists rise, so the short block can only be the last entry */
            if (w.interval_blocks > 0 && w.interval_start + w.interval_blocks - 1 == short_block) {
                short_keys = rest;
                w.interval_blocks--;
                w.mask_tail -= w.mask_tail > 0;
                w.mask_head = min(w.mask_head, w.interval_blocks);
            } else if (w.left_count > 0 &&
                       table_word(entries + w.left_offset + w.left_count - 1) == short_block) {
                short_keys = rest;
                short_entry = w.left_offset + --w.left_count;
            } else if (w.right_count > 0 &&
                       table_word(entries + w.right_offset + w.right_count - 1) == short_block) {
                short_keys = rest;
                short_entry = w.right_offset + --w.right_count;
            }
        }
        order.walk = w;
        order.masked_left = w.mask_entries ? w.left_count : 0;
        order.masked_right = w.mask_entries ? w.right_count : 0;
        const int32_t masked = short_keys + order.masked() * block,
                      total = short_keys + tess_key_blocks(w) * block;
        stages = (int32_t)(((uint32_t)total + stage_keys - 1) / stage_keys);
        empty = (int32_t)((uint32_t)stages * stage_keys - total);
        masked_stages = (int32_t)(((uint32_t)empty + masked + stage_keys - 1) / stage_keys);
    }

    /* Finds first_following: from that key on, each `run` keys, counted from key 0, are consecutive
     * within one block. This holds because whole blocks end the list and `run` divides the keys of
     * all stages. With `run` 0 there are no such keys. */
    __device__ __forceinline__ void find_following(int32_t run) {
        const uint32_t first = (uint32_t)(empty + short_keys);
        first_following = !run || block % run ? ~0u : (first + run - 1) / run * run;
    }

    /* The n-th key of the list. Its `kept` is found only where it is `masked`. */
    __device__ __forceinline__ key find(uint32_t n, const uint32_t *entries, const uint32_t *bits,
                                        bool masked) const {
        key x = {NO_TOKEN, ~0u};
        int32_t i = (int32_t)(n - empty);
        if (i < 0) return x;
        uint32_t j = short_block, entry = short_entry;
        if (i >= short_keys) {
            i -= short_keys;
            const int32_t nth = block_shift >= 0 ? i >> block_shift : i / block;
            i -= nth * block;
            j = order.at(nth, entries, &entry);
        }
        x.token = (int32_t)(j * block) + i;
        if (!masked) return x;
        if ((flags & TESS_CLASS_LOCAL) && (j + shift) % stride != 0)
            x.kept = blocks_below((int64_t)j + local - first_block);
        if (flags & TESS_CLASS_BITS) x.kept &= bits[entry]; /* all its blocks are listed */
        return x;
    }
};

/* What a row of a tile compares keys with. */
struct row_bounds {
    int32_t cap, low, high; /* largest kept sink; smallest and largest other kept token */
    int32_t block;          /* the row's query block, counted from the tile's first one */

    /* Has no branches, because it runs for every score of a masked stage. */
    __device__ __forceinline__ bool keeps(const key &x, int32_t sinks) const {
        const bool sink = x.token < sinks;
        const int32_t least = sink ? 0 : low, most = x.kept >> block & 1 ? (sink ? cap : high) : -1;
        return (x.token >= least) & (x.token <= most);
    }
    /* where there is no window */
    __device__ __forceinline__ bool keeps(const key &x) const {
        return x.token <= (x.kept >> block & 1 ? high : -1);
    }
};

/* The bounds of the row at position p. */
__device__ __forceinline__ row_bounds bounds_of(int32_t p, int32_t block, uint32_t flags,
                                                int32_t kv_len, int32_t left, int32_t right) {
    row_bounds b;
    b.cap = flags & TESS_CLASS_CAUSAL ? min(p, kv_len - 1) : kv_len - 1;
    b.low = 0;
    b.high = b.cap;
    b.block = block;
    if (flags & TESS_CLASS_WINDOW) {
        if (left != 0x7fffffff) b.low = (int32_t)max((long long)p - left, 0ll);
        if (right != 0x7fffffff) b.high = (int32_t)min((long long)b.cap, (long long)p + right);
    }
    return b;
}

} // namespace tess

#endif // TESS_CUDA_SM80_KEYS_CUH
