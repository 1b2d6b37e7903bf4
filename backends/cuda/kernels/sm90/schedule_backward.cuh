/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The columns of backward on Hopper, step by step: a walk goes through the rows of a column's
 * segments on the grid of strips, from the last strip to the first, so that thread blocks on one
 * head begin with the same rows. Each lane looks after one piece of the column's keys, up to 64
 * that follow each other within a block, and tells which steps it takes part in.
 */
#ifndef TESS_CUDA_SM90_SCHEDULE_BACKWARD_CUH
#define TESS_CUDA_SM90_SCHEDULE_BACKWARD_CUH

#include "tile_backward.cuh"

namespace tess {

__device__ __forceinline__ int64_t word64(const uint32_t *words) {
    return (int64_t)((uint64_t)words[1] << 32 | words[0]);
}

/* The position of key k of a column. */
__device__ __forceinline__ int32_t column_token(const uint32_t *column, uint32_t block,
                                                uint32_t k) {
    const uint32_t m = k / block, own = k - m * block,
                   first = TESS_HIGH_HALF(column[TESS_WORD_COLUMN_FIRST_BLOCKS]),
                   step = column[TESS_WORD_COLUMN_STEP];
    return (int32_t)(own + (m < first ? column[TESS_WORD_COLUMN_KEY] + m * step
                                      : column[TESS_WORD_COLUMN_NEXT_KEY] + (m - first) * step));
}

/* By one warp. What differs between lanes is the lane's piece. */
template <typename Shape> struct column_walk {
    const tess_sm90_backward_args *a;
    int lane;
    /* of the column */
    const uint32_t *sequence;
    uint32_t segment, end_segment, first_strip;
    int32_t q_len, q_first;
    int32_t first_key, last_key; /* of the piece; NO_KEY: there is none */
    uint32_t piece_block;        /* of the column */
    bool whole_piece;            /* none of its keys is missing */
    /* of the segment */
    segment_mask mask;
    key_rows of_first, of_last;
    uint32_t head, end_head, run, runs;
    /* of the run: rows that are still to be walked */
    int32_t begin, end;
    uint32_t bits;

    __device__ __forceinline__ const uint32_t *tables() const {
        return (const uint32_t *)a->tables;
    }
    __device__ __forceinline__ const uint32_t *segment_words() const {
        return tables() + a->segments_at + (uint64_t)segment * TESS_SEGMENT_WORDS;
    }

    __device__ __forceinline__ void begin_column(const uint32_t *column) {
        const uint32_t number = column[TESS_WORD_COLUMN_SEQUENCE],
                       keys = TESS_HIGH_HALF(column[TESS_WORD_COLUMN_KEYS]),
                       piece = 1u << a->piece_shift, k = (uint32_t)lane << a->piece_shift;
        sequence = tables() + a->sequences_at + number * TESS_SEQUENCE_WORDS;
        first_strip = tables()[a->first_strips_at + number];
        q_len = sequence[TESS_WORD_SEQUENCE_Q_LEN];
        q_first = sequence[TESS_WORD_SEQUENCE_Q_FIRST];
        first_key = last_key = NO_KEY;
        piece_block = k / a->block;
        whole_piece = k + piece <= keys;
        if (k < keys) {
            first_key = column_token(column, a->block, k);
            last_key = first_key + (int32_t)min(piece, keys - k) - 1;
        }
        segment = column[TESS_WORD_COLUMN_SEGMENT];
        end_segment = segment + column[TESS_WORD_COLUMN_SEGMENTS];
        begin = end = 0;
        run = runs = 0;
        head = end_head = 0;
        if (segment < end_segment) begin_segment();
    }

    __device__ __forceinline__ void begin_segment() {
        const uint32_t *words = segment_words(),
                       *cls = tables() + a->classes_at +
                              TESS_LOW_HALF(words[TESS_WORD_SEGMENT_CLS]) * TESS_CLASS_WORDS,
                       blocks = TESS_HIGH_HALF(words[TESS_WORD_SEGMENT_BLOCKS]);
        mask.flags = cls[TESS_WORD_CLASS_FLAGS];
        mask.local = cls[TESS_WORD_CLASS_LOCAL];
        mask.stride = cls[TESS_WORD_CLASS_STRIDE];
        mask.shift = cls[TESS_WORD_CLASS_SHIFT];
        mask.left = cls[TESS_WORD_CLASS_LEFT];
        mask.right = cls[TESS_WORD_CLASS_RIGHT];
        mask.sinks = cls[TESS_WORD_CLASS_SINKS];
        mask.first = blocks & 0xff;
        mask.blocks = blocks >> 8;
        if (first_key != NO_KEY) {
            of_first.find(mask, first_key, a->block);
            of_last.find(mask, last_key, a->block);
        }
        head = TESS_LOW_HALF(words[TESS_WORD_SEGMENT_HEAD]);
        end_head = head + TESS_HIGH_HALF(words[TESS_WORD_SEGMENT_HEADS]);
        const bool listed = mask.flags & TESS_CLASS_BITS || words[TESS_WORD_SEGMENT_STEP] != 0;
        runs = listed ? words[TESS_WORD_SEGMENT_ROWS] : 1;
        run = 0;
        begin_run();
    }

    __device__ __forceinline__ void begin_run() {
        const uint32_t *words = segment_words();
        const int32_t row = words[TESS_WORD_SEGMENT_ROW];
        const uint32_t step = words[TESS_WORD_SEGMENT_STEP];
        bits = ~0u;
        if (mask.flags & TESS_CLASS_BITS) {
            const uint32_t at = (uint32_t)row + run;
            begin = (int32_t)(tables()[a->entries_at + at] * a->block) - q_first;
            end = begin + (int32_t)a->block;
            bits = tables()[a->bits_at + at] >> step;
        } else if (step != 0) {
            begin = row + (int32_t)(run * step);
            end = begin + (int32_t)a->block;
        } else {
            begin = row;
            end = row + (int32_t)words[TESS_WORD_SEGMENT_ROWS];
        }
        begin = max(begin, 0);
        end = min(end, q_len);
    }

    /* Goes to the next run that there is. */
    __device__ __forceinline__ bool next_run() {
        if (++run < runs) {
            begin_run();
        } else if (++head < end_head) {
            run = 0;
            begin_run();
        } else if (++segment < end_segment) {
            begin_segment();
        } else {
            return false;
        }
        return true;
    }

    /* Describes the next step with anything to do; false: there is none. Only lane 0 writes it. */
    __device__ __forceinline__ bool next(step_info *to) {
        while (segment < end_segment) {
            if (begin >= end) {
                if (!next_run()) return false;
                continue;
            }
            const int32_t row = (end - 1) / Shape::ROWS * Shape::ROWS, row_begin = max(begin, row),
                          row_end = end;
            end = row_begin;
            if (describe(to, row, row_begin, row_end)) return true;
        }
        return false;
    }

    __device__ __forceinline__ bool describe(step_info *to, int32_t row, int32_t row_begin,
                                             int32_t row_end) const {
        const int32_t from = q_first + row_begin, last = q_first + row_end - 1;
        const bool read = first_key != NO_KEY && piece_block - mask.first < mask.blocks &&
                          (bits >> (piece_block & 31) & 1),
                   some = read && min(of_first.low, of_last.low) <= last &&
                          max(of_first.high, of_last.high) >= from,
                   crosses = (mask.flags & TESS_CLASS_WINDOW) && first_key < mask.sinks &&
                             last_key >= mask.sinks,
                   all = some && whole_piece && !crosses && of_last.low <= from &&
                         of_first.low <= from && of_first.high >= last && of_last.high >= last;
        const uint32_t active = __ballot_sync(~0u, some), kept = __ballot_sync(~0u, all),
                       half = (1u << (HALF_KEYS >> a->piece_shift)) - 1,
                       both = half << (HALF_KEYS >> a->piece_shift) | half;
        if (active == 0) return false;
        if (lane != 0) return true;
        const bool upper = active == (both ^ half);
        to->kind = active == both ? kept == both && row_end - row_begin == Shape::ROWS ? STEP_FULL
                                                                                       : STEP_MASKED
                   : active == half || upper ? STEP_HALF
                                             : STEP_PARTIAL;
        to->half = upper;
        to->begin16 = (__ffs(active) - 1) << a->piece_shift >> 4;
        to->end16 = (((32 - __clz(active)) << a->piece_shift) + 15) >> 4;
        to->row = row;
        to->row_begin = row_begin - row;
        to->row_end = row_end - row;
        to->position = q_first + row;
        to->head = head;
        to->bits = bits;
        to->strip = head * a->strips + first_strip + (uint32_t)row / Shape::ROWS;
        to->mask = mask;
        return true;
    }
};

} // namespace tess

#endif // TESS_CUDA_SM90_SCHEDULE_BACKWARD_CUH
