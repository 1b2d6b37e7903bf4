/* SPDX-License-Identifier: Apache-2.0 */
/* What a job asks for: its words, the list of its keys in the order in which they are taken, and
 * which keys a row keeps. Only integers; nothing of one architecture. */
#ifndef TESS_CUDA_TILE_CUH
#define TESS_CUDA_TILE_CUH

#include "args.h"
#include "types.cuh"

namespace tess {

enum { NO_PARTIAL = -1, NO_TOKEN = 0x7fff0000 /* token of an empty key; past every length */ };

enum {
    CLASS_CAUSAL = 1,
    CLASS_LOCAL = 2,
    CLASS_WINDOW = 4,
    CLASS_BITS = 8,
    CLASS_MASK_ENTRIES = 16
};

__device__ __forceinline__ int32_t floor_div(int32_t a, int32_t b) { return a / b - (a % b < 0); }

/* The words of a job, of its sequence and of its class. */
struct job_words {
    int64_t q_start, kv_start;
    int32_t head, heads, row, rows, partial;
    int32_t batch, q_len, kv_len;
    uint32_t flags, local, stride, shift;
    int32_t left, right, sinks;
    uint32_t left_offset, left_count, right_offset, right_count, interval_start, interval,
        mask_head, mask_tail;

    __device__ __forceinline__ void read(const uint32_t *tables, const tess_args *c,
                                         uint32_t index) {
        const uint32_t *job = tables + c->items_at + (uint64_t)index * 12;
        const uint32_t *sequence = tables + c->sequences_at + (uint64_t)job[0] * 10,
                       *cls = tables + c->classes_at + (job[3] >> 16) * 12;
        head = job[1] & 0xffff;
        heads = job[1] >> 16;
        row = job[2];
        rows = job[3] & 0xffff;
        left_offset = job[4];
        left_count = job[5];
        right_offset = job[6];
        right_count = job[7];
        interval_start = job[8];
        interval = job[9];
        mask_head = job[10] & 0xffff;
        mask_tail = job[10] >> 16;
        partial = job[11];
        q_start = (int64_t)((uint64_t)sequence[1] << 32 | sequence[0]);
        kv_start = (int64_t)((uint64_t)sequence[3] << 32 | sequence[2]);
        batch = sequence[4];
        q_len = sequence[5];
        kv_len = sequence[6];
        flags = cls[0];
        local = cls[1];
        stride = cls[2];
        shift = cls[3];
        left = cls[4];
        right = cls[5];
        sinks = cls[6];
    }
};

/* A key of a stage: its token, and (bit n) whether rows of the tile's n-th query block keep it, as
 * far as token bounds allow. */
struct key {
    int32_t token;
    uint32_t kept;
};

/* The keys of a job in the order in which they are taken, which does not matter to a softmax: empty
 * ones, so that stages are full; then those that must be masked, beginning with the block that the
 * sequence's end cuts short, if the job has it; then all others, which need no test. */
struct key_list {
    int32_t stages, masked_stages; /* the first ones are masked */
    int32_t empty, short_keys;
    /* whole blocks; at last come those of the right list */
    int32_t tail, head, masked_left, masked_right, middle, left;
    uint32_t short_block, tail_start, head_start, middle_start; /* key blocks */
    uint32_t short_entry, left_entry, masked_left_entry, right_entry, masked_right_entry;
    int32_t block, block_shift; /* tokens; their log2, or -1 */
    int32_t first_block;        /* the query block of the tile's first row */
    uint32_t flags, local, stride, shift;

    static const uint32_t NO_ENTRY = ~0u;

    __device__ __forceinline__ void make(const job_words *j, const uint32_t *entries,
                                         int32_t block_tokens, int32_t stage_keys) {
        int32_t interval = j->interval, lefts = j->left_count, rights = j->right_count,
                heads = j->mask_head, tails = j->mask_tail;
        block = block_tokens;
        block_shift = block & (block - 1) ? -1 : 31 - __clz(block);
        first_block = floor_div(j->kv_len - j->q_len + j->row, block);
        flags = j->flags;
        local = j->local;
        stride = j->stride;
        shift = j->shift;
        short_keys = 0;
        short_block = j->kv_len / block;
        short_entry = NO_ENTRY;
        const int32_t rest = j->kv_len % block;
        if (rest) { /* lists rise, so that block is at their end */
            if (interval > 0 && j->interval_start + interval - 1 == short_block) {
                short_keys = rest;
                interval--;
                tails = max(tails - 1, 0);
                heads = min(heads, interval);
            } else if (lefts > 0 && entries[j->left_offset + lefts - 1] == short_block) {
                short_keys = rest;
                short_entry = j->left_offset + --lefts;
            } else if (rights > 0 && entries[j->right_offset + rights - 1] == short_block) {
                short_keys = rest;
                short_entry = j->right_offset + --rights;
            }
        }
        const bool all = flags & CLASS_MASK_ENTRIES;
        tail = tails;
        head = heads;
        masked_left = all ? lefts : 0;
        masked_right = all ? rights : 0;
        middle = interval - heads - tails;
        left = lefts - masked_left;
        tail_start = j->interval_start + interval - tails;
        head_start = j->interval_start;
        middle_start = j->interval_start + heads;
        masked_left_entry = left_entry = j->left_offset;
        masked_right_entry = right_entry = j->right_offset;
        const int32_t masked = short_keys + (tails + heads + masked_left + masked_right) * block,
                      total = short_keys + (interval + lefts + rights) * block;
        stages = (int32_t)(((uint32_t)total + stage_keys - 1) / stage_keys);
        empty = (int32_t)((uint32_t)stages * stage_keys - total);
        masked_stages = (int32_t)(((uint32_t)empty + masked + stage_keys - 1) / stage_keys);
    }

    /* The n-th block after the short one. `entry`: where it is listed, if it is. */
    __device__ __forceinline__ uint32_t at(int32_t n, const uint32_t *entries,
                                           uint32_t *entry) const {
        *entry = NO_ENTRY;
        if (n < tail) return tail_start + n;
        n -= tail;
        if (n < head) return head_start + n;
        n -= head;
        if (n < masked_left) return entries[*entry = masked_left_entry + n];
        n -= masked_left;
        if (n < masked_right) return entries[*entry = masked_right_entry + n];
        n -= masked_right;
        if (n < middle) return middle_start + n;
        n -= middle;
        if (n < left) return entries[*entry = left_entry + n];
        return entries[*entry = right_entry + (n - left)];
    }

    /* The n-th key of all; what it is kept by is only found where it is `masked`. */
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
            j = at(nth, entries, &entry);
        }
        x.token = (int32_t)(j * block) + i;
        if (!masked) return x;
        if ((flags & CLASS_LOCAL) && (j + shift) % stride != 0) {
            /* query blocks below it keep the block */
            const int64_t blocks = (int64_t)j + local - first_block;
            x.kept = blocks <= 0 ? 0 : blocks >= 32 ? ~0u : (1u << blocks) - 1;
        }
        if ((flags & CLASS_BITS) && entry != NO_ENTRY) x.kept &= bits[entry];
        return x;
    }
};

/* What a row of a tile compares keys with. */
struct row_bounds {
    int32_t cap, low, high; /* most token of sinks; least and most of others */
    int32_t block;          /* the row's query block, counted from the tile's first one */

    /* Without branches, as these are asked for every score of a masked stage. */
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
    b.cap = flags & CLASS_CAUSAL ? min(p, kv_len - 1) : kv_len - 1;
    b.low = 0;
    b.high = b.cap;
    b.block = block;
    if (flags & CLASS_WINDOW) {
        if (left != 0x7fffffff) b.low = (int32_t)max((long long)p - left, 0ll);
        if (right != 0x7fffffff) b.high = (int32_t)min((long long)b.cap, (long long)p + right);
    }
    return b;
}

/* Where row `in_tile` of a tile lies in a tensor with the given strides, from the tile's first row
 * and head on. */
__device__ __forceinline__ int64_t row_at(int32_t in_tile, int32_t rows, bool one_head,
                                          int64_t token, int64_t head) {
    const int32_t h = one_head ? 0 : in_tile / rows;
    return (in_tile - h * rows) * token + h * head;
}

} // namespace tess

#endif // TESS_CUDA_TILE_CUH
