/* SPDX-License-Identifier: Apache-2.0 */
/* What the tensor-core kernels read of a job: its words, and its key blocks in the order in which
 * they are taken. Integers only, and nothing specific to one architecture. */
#ifndef TESS_CUDA_JOBS_CUH
#define TESS_CUDA_JOBS_CUH

#include "language_cuda.h"

#include "args.h"
#include "key_walk.h"
#include "tessera/tessera_job_words.h"
#include "types.cuh"

namespace tess {

enum {
    NO_PARTIAL = -1,      /* TESS_NO_PARTIAL as a signed word */
    NO_TOKEN = 0x7fff0000 /* token of an empty key; past every length */
};

__device__ __forceinline__ int32_t floor_div(int32_t a, int32_t b) { return a / b - (a % b < 0); }

/* A bit for each of the first `blocks` query blocks of a tile, which has at most 32. */
template <typename Int> __device__ __forceinline__ uint32_t blocks_below(Int blocks) {
    return blocks <= 0 ? 0 : blocks >= 32 ? ~0u : (1u << blocks) - 1;
}

/* The words of a job, of its sequence and of its class. */
struct job_words {
    int64_t q_start, kv_start;
    int32_t head, heads, row, rows, partial;
    int32_t batch, q_len, kv_len, q_first, kv_batch;
    uint32_t flags, local, stride, shift;
    int32_t left, right, sinks;
    tess_key_walk walk;

    /* `words` has job(n), sequence(n) and cls(n): the n-th word of each. */
    template <typename Words> __device__ __forceinline__ void read(const Words &words) {
        const uint32_t heads_word = words.job(TESS_WORD_JOB_HEAD),
                       masks = words.job(TESS_WORD_JOB_MASK_HEAD);
        head = TESS_LOW_HALF(heads_word);
        heads = TESS_HIGH_HALF(heads_word);
        row = words.job(TESS_WORD_JOB_ROW);
        rows = TESS_LOW_HALF(words.job(TESS_WORD_JOB_ROWS));
        partial = words.job(TESS_WORD_JOB_PARTIAL);
        walk.left_offset = words.job(TESS_WORD_JOB_LEFT_OFFSET);
        walk.left_count = words.job(TESS_WORD_JOB_LEFT_COUNT);
        walk.right_offset = words.job(TESS_WORD_JOB_RIGHT_OFFSET);
        walk.right_count = words.job(TESS_WORD_JOB_RIGHT_COUNT);
        walk.interval_start = words.job(TESS_WORD_JOB_INTERVAL_START);
        walk.interval_blocks = words.job(TESS_WORD_JOB_INTERVAL_BLOCKS);
        walk.mask_head = TESS_LOW_HALF(masks);
        walk.mask_tail = TESS_HIGH_HALF(masks);
        walk.mask_entries = words.cls(TESS_WORD_CLASS_FLAGS) & TESS_CLASS_MASK_ENTRIES;
        q_start = (int64_t)((uint64_t)words.sequence(TESS_WORD_SEQUENCE_Q_START + 1) << 32 |
                            words.sequence(TESS_WORD_SEQUENCE_Q_START));
        kv_start = (int64_t)((uint64_t)words.sequence(TESS_WORD_SEQUENCE_KV_START + 1) << 32 |
                             words.sequence(TESS_WORD_SEQUENCE_KV_START));
        batch = words.sequence(TESS_WORD_SEQUENCE_BATCH);
        q_len = words.sequence(TESS_WORD_SEQUENCE_Q_LEN);
        kv_len = words.sequence(TESS_WORD_SEQUENCE_KV_LEN);
        q_first = words.sequence(TESS_WORD_SEQUENCE_Q_FIRST);
        kv_batch = words.sequence(TESS_WORD_SEQUENCE_KV_BATCH);
        flags = words.cls(TESS_WORD_CLASS_FLAGS);
        local = words.cls(TESS_WORD_CLASS_LOCAL);
        stride = words.cls(TESS_WORD_CLASS_STRIDE);
        shift = words.cls(TESS_WORD_CLASS_SHIFT);
        left = words.cls(TESS_WORD_CLASS_LEFT);
        right = words.cls(TESS_WORD_CLASS_RIGHT);
        sinks = words.cls(TESS_WORD_CLASS_SINKS);
    }
};

/* A word of the tables, from where all multiprocessors see the same. So a kernel that begins early
 * may read a step's words before it waits: the kernel that wrote them ends with a fence, and none
 * behind it begins before that, but the cache of a multiprocessor may hold older words. */
__device__ __forceinline__ uint32_t table_word(const uint32_t *at) {
#ifdef __CUDA_ARCH__
    uint32_t word;
    asm("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(__cvta_generic_to_global(at)));
    return word;
#else
    return *at;
#endif
}

/* The number of jobs in this launch. A step may have fewer than it has room for. */
__device__ __forceinline__ uint32_t present_jobs(const uint32_t *tables, const tess_args *c) {
    if (!(c->flags & TESS_ARGS_STEP)) return c->items;
    const uint32_t end = table_word(tables + c->count_at);
    return end > c->first_item ? min(c->items, end - c->first_item) : 0;
}

/* The words of a job, of its sequence and of its class, in the plan's tables. */
struct table_words {
    const uint32_t *job_at, *sequence_at, *class_at;

    __device__ __forceinline__ table_words(const uint32_t *tables, const tess_args *c,
                                           uint32_t index) {
        job_at = tables + c->items_at + (uint64_t)index * TESS_JOB_WORDS;
        sequence_at =
            tables + c->sequences_at + (uint64_t)job(TESS_WORD_JOB_SEQUENCE) * TESS_SEQUENCE_WORDS;
        class_at =
            tables + c->classes_at + TESS_HIGH_HALF(job(TESS_WORD_JOB_CLS)) * TESS_CLASS_WORDS;
    }
    __device__ __forceinline__ uint32_t job(uint32_t n) const { return table_word(job_at + n); }
    __device__ __forceinline__ uint32_t sequence(uint32_t n) const {
        return table_word(sequence_at + n);
    }
    __device__ __forceinline__ uint32_t cls(uint32_t n) const { return table_word(class_at + n); }
};

/* The key blocks of a job in the order in which these kernels take them (a softmax allows any
 * order): first those that need a mask, then all others. */
struct alignas(16) block_order {
    tess_key_walk walk;
    uint32_t masked_left, masked_right; /* masked entries at the end of each list */

    __device__ __forceinline__ uint32_t masked() const {
        return walk.mask_tail + walk.mask_head + masked_left + masked_right;
    }

    /* The place of the n-th block in the walk. */
    __device__ __forceinline__ uint32_t place(uint32_t n) const {
        const uint32_t interval = walk.left_count, right = interval + walk.interval_blocks,
                       middle = walk.interval_blocks - walk.mask_head - walk.mask_tail,
                       left = walk.left_count - masked_left;
        if (n < walk.mask_tail) return right - walk.mask_tail + n;
        n -= walk.mask_tail;
        if (n < walk.mask_head) return interval + n;
        n -= walk.mask_head;
        if (n < masked_left) return left + n;
        n -= masked_left;
        if (n < masked_right) return right + walk.right_count - masked_right + n;
        n -= masked_right;
        if (n < middle) return interval + walk.mask_head + n;
        n -= middle;
        return n < left ? n : right + n - left;
    }

    /* The n-th block. If it is listed, *entry is its place in the list. */
    __device__ __forceinline__ uint32_t at(uint32_t n, const uint32_t *entries,
                                           uint32_t *entry) const {
        const tess_key_block block = tess_key_block_at(walk, place(n));
        *entry = block.at;
        return block.listed ? entries[block.at] : block.at;
    }
};

/* The offset of row `in_tile` of a tile in a tensor with the given strides, from the tile's first
 * row and head. */
__device__ __forceinline__ int64_t row_at(int32_t in_tile, int32_t rows, bool one_head,
                                          int64_t token, int64_t head) {
    const int32_t h = one_head ? 0 : in_tile / rows;
    return (in_tile - h * rows) * token + h * head;
}

} // namespace tess

#endif // TESS_CUDA_JOBS_CUH
