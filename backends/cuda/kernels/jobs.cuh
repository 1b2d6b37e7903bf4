/* SPDX-License-Identifier: Apache-2.0 */
/* What the tensor-core kernels read of a job: its words, and its key blocks in the order in which
 * they are taken. Only integers; nothing of one architecture. */
#ifndef TESS_CUDA_JOBS_CUH
#define TESS_CUDA_JOBS_CUH

#include "args.h"
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

/* The key blocks of a job, as its words name them. */
struct job_blocks {
    uint32_t left_offset, right_offset; /* into entries */
    int32_t left, right;                /* entries */
    uint32_t interval_start;            /* key block */
    int32_t interval;                   /* blocks */
    int32_t mask_head, mask_tail;       /* blocks of the interval */
};

/* The words of a job, of its sequence and of its class. */
struct job_words {
    int64_t q_start, kv_start;
    int32_t head, heads, row, rows, partial;
    int32_t batch, q_len, kv_len;
    uint32_t flags, local, stride, shift;
    int32_t left, right, sinks;
    job_blocks blocks;

    /* `words` has job(n), sequence(n) and cls(n): the n-th word of each. */
    template <typename Words> __device__ __forceinline__ void read(const Words &words) {
        const uint32_t heads_word = words.job(TESS_WORD_JOB_HEAD),
                       masks = words.job(TESS_WORD_JOB_MASK_HEAD);
        head = TESS_LOW_HALF(heads_word);
        heads = TESS_HIGH_HALF(heads_word);
        row = words.job(TESS_WORD_JOB_ROW);
        rows = TESS_LOW_HALF(words.job(TESS_WORD_JOB_ROWS));
        partial = words.job(TESS_WORD_JOB_PARTIAL);
        blocks.left_offset = words.job(TESS_WORD_JOB_LEFT_OFFSET);
        blocks.left = words.job(TESS_WORD_JOB_LEFT_COUNT);
        blocks.right_offset = words.job(TESS_WORD_JOB_RIGHT_OFFSET);
        blocks.right = words.job(TESS_WORD_JOB_RIGHT_COUNT);
        blocks.interval_start = words.job(TESS_WORD_JOB_INTERVAL_START);
        blocks.interval = words.job(TESS_WORD_JOB_INTERVAL_BLOCKS);
        blocks.mask_head = TESS_LOW_HALF(masks);
        blocks.mask_tail = TESS_HIGH_HALF(masks);
        q_start = (int64_t)((uint64_t)words.sequence(TESS_WORD_SEQUENCE_Q_START + 1) << 32 |
                            words.sequence(TESS_WORD_SEQUENCE_Q_START));
        kv_start = (int64_t)((uint64_t)words.sequence(TESS_WORD_SEQUENCE_KV_START + 1) << 32 |
                             words.sequence(TESS_WORD_SEQUENCE_KV_START));
        batch = words.sequence(TESS_WORD_SEQUENCE_BATCH);
        q_len = words.sequence(TESS_WORD_SEQUENCE_Q_LEN);
        kv_len = words.sequence(TESS_WORD_SEQUENCE_KV_LEN);
        flags = words.cls(TESS_WORD_CLASS_FLAGS);
        local = words.cls(TESS_WORD_CLASS_LOCAL);
        stride = words.cls(TESS_WORD_CLASS_STRIDE);
        shift = words.cls(TESS_WORD_CLASS_SHIFT);
        left = words.cls(TESS_WORD_CLASS_LEFT);
        right = words.cls(TESS_WORD_CLASS_RIGHT);
        sinks = words.cls(TESS_WORD_CLASS_SINKS);
    }
};

/* The key blocks of a job in the order in which they are taken, which does not matter to a softmax:
 * those that must be masked, and then all others, which need no test. */
struct block_order {
    int32_t tail, head, masked_left, masked_right, middle, left; /* blocks; the rest is right */
    uint32_t tail_start, head_start, middle_start;               /* key blocks */
    uint32_t left_entry, masked_left_entry, right_entry, masked_right_entry;

    /* The last `masked_lefts` entries of the left list are masked, and so on. */
    __device__ __forceinline__ void make(const job_blocks &b, int32_t masked_lefts,
                                         int32_t masked_rights) {
        tail = b.mask_tail;
        head = b.mask_head;
        masked_left = masked_lefts;
        masked_right = masked_rights;
        middle = b.interval - b.mask_head - b.mask_tail;
        left = b.left - masked_lefts;
        tail_start = b.interval_start + b.interval - b.mask_tail;
        head_start = b.interval_start;
        middle_start = b.interval_start + b.mask_head;
        left_entry = b.left_offset;
        masked_left_entry = b.left_offset + b.left - masked_lefts;
        right_entry = b.right_offset;
        masked_right_entry = b.right_offset + b.right - masked_rights;
    }

    /* The n-th block. `entry` is where it is listed, or 0 if it is in the interval. */
    __device__ __forceinline__ uint32_t at(int32_t n, const uint32_t *entries,
                                           uint32_t *entry) const {
        *entry = 0;
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
        n -= left;
        return entries[*entry = right_entry + n];
    }
};

/* Where row `in_tile` of a tile lies in a tensor with the given strides, from the tile's first row
 * and head on. */
__device__ __forceinline__ int64_t row_at(int32_t in_tile, int32_t rows, bool one_head,
                                          int64_t token, int64_t head) {
    const int32_t h = one_head ? 0 : in_tile / rows;
    return (in_tile - h * rows) * token + h * head;
}

} // namespace tess

#endif // TESS_CUDA_JOBS_CUH
