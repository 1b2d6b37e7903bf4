/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The columns of backward on Hopper, step by step: a warp walks the rows of a column's segments on
 * the grid of strips, and at each strip all heads of the segment. Without turns it goes from the
 * last strip to the first, so that thread blocks on one head begin with the same rows. Each lane
 * has one piece of the column's keys, up to 64 consecutive ones within a block, and tells which
 * steps the piece takes part in.
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

/* By one warp. */
template <typename Shape> struct scheduler {
    backward_memory<Shape> *m;
    const tess_sm90_backward_args *a;
    int lane;
    /* of the column: the lane's piece; NO_KEY: there is none */
    int32_t first_key, last_key, q_first;
    /* of the segment: rows that keep any key of the piece, and all of them */
    key_rows any, all;
    uint32_t head;
    int32_t begin, end; /* rows of the run that remain to be walked */
    bool upward;        /* from the first to the last */
    bool used;          /* steps in flight may still use the latest mask's description */

    __device__ __forceinline__ const uint32_t *tables() const {
        return (const uint32_t *)a->tables;
    }
    __device__ __forceinline__ const uint32_t *segment_words() const {
        return tables() + a->segments_at + (uint64_t)m->walk.segment * TESS_SEGMENT_WORDS;
    }

    __device__ __forceinline__ void begin_column(const uint32_t *column, uint32_t number_in_plan,
                                                 column_info *to) {
        const uint32_t number = column[TESS_WORD_COLUMN_SEQUENCE],
                       keys = TESS_HIGH_HALF(column[TESS_WORD_COLUMN_KEYS]),
                       piece = 1u << a->piece_shift, k = (uint32_t)lane << a->piece_shift,
                       segment = column[TESS_WORD_COLUMN_SEGMENT],
                       end_segment = segment + column[TESS_WORD_COLUMN_SEGMENTS];
        const uint32_t *sequence = tables() + a->sequences_at + number * TESS_SEQUENCE_WORDS;
        q_first = sequence[TESS_WORD_SEQUENCE_Q_FIRST];
        first_key = last_key = NO_KEY;
        if (k < keys) {
            first_key = column_token(column, a->block, k);
            last_key = first_key + (int32_t)min(piece, keys - k) - 1;
        }
        for (uint32_t n = lane; n < COLUMN_KEYS; n += 32)
            to->token[n] = n < keys ? column_token(column, a->block, n) : NO_KEY;
        if (lane == 0) {
            const int64_t start = word64(sequence + TESS_WORD_SEQUENCE_Q_START);
            walk_info *w = &m->walk;
            w->segment = segment;
            w->end_segment = end_segment;
            w->first_strip = tables()[a->first_strips_at + number];
            w->batch = sequence[TESS_WORD_SEQUENCE_BATCH];
            w->q_len = sequence[TESS_WORD_SEQUENCE_Q_LEN];
            w->ends_tensor = (uint32_t)(start + w->q_len) == a->q_tokens;
            w->q_start = start;
            to->keys = keys;
            to->kv_head = TESS_LOW_HALF(column[TESS_WORD_COLUMN_KV_HEAD]);
            const bool cut = number_in_plan < a->cut_columns;
            const uint32_t part = cut ? number_in_plan % a->parts : 0;
            w->leave = number_in_plan - part + 1;
            to->sum = (int32_t)(number_in_plan / a->parts % a->n_sums);
            to->before =
                cut ? (int32_t)(number_in_plan / a->parts / a->n_sums * a->parts + part) : -1;
            to->kv_batch = sequence[TESS_WORD_SEQUENCE_KV_BATCH];
            to->kv_len = sequence[TESS_WORD_SEQUENCE_KV_LEN];
            to->kv_start = word64(sequence + TESS_WORD_SEQUENCE_KV_START);
        }
        __syncwarp();
        begin = end = 0;
        if (segment < end_segment) begin_segment();
    }

    __device__ __forceinline__ void begin_segment() {
        const uint32_t *words = segment_words(),
                       *cls = tables() + a->classes_at +
                              TESS_LOW_HALF(words[TESS_WORD_SEGMENT_CLS]) * TESS_CLASS_WORDS,
                       blocks = TESS_HIGH_HALF(words[TESS_WORD_SEGMENT_BLOCKS]);
        segment_mask mask;
        mask.flags = cls[TESS_WORD_CLASS_FLAGS];
        mask.local = cls[TESS_WORD_CLASS_LOCAL];
        mask.stride = cls[TESS_WORD_CLASS_STRIDE];
        mask.shift = cls[TESS_WORD_CLASS_SHIFT];
        mask.left = cls[TESS_WORD_CLASS_LEFT];
        mask.right = cls[TESS_WORD_CLASS_RIGHT];
        mask.sinks = cls[TESS_WORD_CLASS_SINKS];
        mask.first = blocks & 0xff;
        mask.blocks = blocks >> 8;
        find_rows(mask);
        head = TESS_LOW_HALF(words[TESS_WORD_SEGMENT_HEAD]);
        const uint32_t step = words[TESS_WORD_SEGMENT_STEP];
        const bool listed = mask.flags & TESS_CLASS_BITS || (!a->turns && step != 0);
        upward = a->turns && (step & TESS_TURN_UPWARD);
        const uint32_t slot = (m->walk.mask + used) % STEPS;
        used = false;
        __syncwarp();
        if (lane == 0) {
            m->walk.first_head = head;
            m->walk.end_head = head + TESS_HIGH_HALF(words[TESS_WORD_SEGMENT_HEAD]);
            m->walk.wait = step & TESS_TURN_WAIT;
            m->walk.runs = listed ? words[TESS_WORD_SEGMENT_ROWS] : 1;
            m->walk.mask = slot;
            m->masks[slot] = mask;
        }
        begin_run(0);
    }

    /* The rows that keep the lane's piece. */
    __device__ __forceinline__ void find_rows(const segment_mask &mask) {
        const uint32_t block = ((uint32_t)lane << a->piece_shift) / a->block - mask.first;
        key_rows first, last;
        any.low = all.low = INT32_MAX;
        any.high = all.high = INT32_MIN;
        if (first_key == NO_KEY || block >= mask.blocks) return;
        first.find(mask, first_key, a->block);
        last.find(mask, last_key, a->block);
        any.low = min(first.low, last.low);
        any.high = max(first.high, last.high);
        const bool crosses = (mask.flags & TESS_CLASS_WINDOW) && first_key < mask.sinks &&
                             last_key >= mask.sinks,
                   whole = last_key - first_key + 1 == 1 << a->piece_shift;
        if (crosses || !whole) return;
        all.low = max(first.low, last.low);
        all.high = min(first.high, last.high);
    }

    __device__ __forceinline__ void begin_run(uint32_t run) {
        const uint32_t *words = segment_words();
        const int32_t row = words[TESS_WORD_SEGMENT_ROW];
        const uint32_t step = a->turns ? 0 : words[TESS_WORD_SEGMENT_STEP],
                       *cls = tables() + a->classes_at +
                              TESS_LOW_HALF(words[TESS_WORD_SEGMENT_CLS]) * TESS_CLASS_WORDS;
        uint32_t bits = ~0u;
        if (cls[TESS_WORD_CLASS_FLAGS] & TESS_CLASS_BITS) {
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
        end = min(end, m->walk.q_len);
        __syncwarp();
        if (lane == 0) {
            m->walk.run = run;
            m->walk.bits = bits;
        }
        __syncwarp();
    }

    /* Advances to the next run; false: there is none. */
    __device__ __forceinline__ bool next_run() {
        const uint32_t run = m->walk.run + 1;
        if (run < m->walk.runs) {
            begin_run(run);
            return true;
        }
        const uint32_t segment = m->walk.segment + 1;
        if (segment >= m->walk.end_segment) return false;
        __syncwarp();
        if (lane == 0) m->walk.segment = segment;
        __syncwarp();
        begin_segment();
        return true;
    }

    /* Describes the next step with anything to do; false: there is none. */
    __device__ __forceinline__ bool next(step_info *to) {
        while (true) {
            if (begin >= end) {
                if (m->walk.segment >= m->walk.end_segment || !next_run()) return false;
                continue;
            }
            const int32_t row = (upward ? begin : end - 1) / Shape::ROWS * Shape::ROWS,
                          row_begin = max(begin, row), row_end = min(end, row + Shape::ROWS);
            const bool described = describe(to, row, row_begin, row_end);
            used |= described;
            if (described && ++head < m->walk.end_head) return true;
            head = m->walk.first_head;
            if (upward)
                begin = row_end;
            else
                end = row_begin;
            if (described) return true;
        }
    }

    __device__ __forceinline__ bool describe(step_info *to, int32_t row, int32_t row_begin,
                                             int32_t row_end) const {
        const int32_t from = q_first + row_begin, last = q_first + row_end - 1;
        const uint32_t bits = m->walk.bits;
        bool reads = any.low <= last && any.high >= from;
        if (bits != ~0u) {
            const uint32_t block = ((uint32_t)lane << a->piece_shift) / a->block;
            reads = reads && (bits >> (block & 31) & 1);
        }
        /* Zeros stand for the keys that a column lacks. They may be part of any product, and only
         * mask the step. */
        const uint32_t pieces = __ballot_sync(~0u, first_key != NO_KEY),
                       active = __ballot_sync(~0u, reads),
                       kept = __ballot_sync(~0u, reads && all.low <= from && all.high >= last);
        /* With turns, a column comes to every strip that a segment says. */
        if (active == 0 && !a->turns) return false;
        if (lane != 0) return true;
        const uint32_t half = (1u << (HALF_KEYS >> a->piece_shift)) - 1,
                       both = half << (HALF_KEYS >> a->piece_shift) | half,
                       lower_half = pieces & half, upper_half = pieces & ~half;
        const bool upper = active == upper_half;
        to->kind =
            active == 0 ? STEP_EMPTY
            : active == pieces && lower_half && upper_half
                ? kept == both && row_end - row_begin == Shape::ROWS ? STEP_FULL : STEP_MASKED
            : active == lower_half || upper ? STEP_HALF
                                            : STEP_PARTIAL;
        to->has_strip = true;
        to->half = upper;
        to->begin16 = (__ffs(active) - 1) << a->piece_shift >> 4;
        to->end16 = (((32 - __clz(active)) << a->piece_shift) + 15) >> 4;
        to->row_begin = row_begin - row;
        to->row_end = row_end - row;
        to->position = q_first + row;
        to->head = head;
        to->bits = bits;
        const walk_info *w = &m->walk;
        to->mask = w->mask;
        to->rows = w->q_len - row;
        to->boxed = to->rows >= Shape::ROWS || w->ends_tensor;
        to->batch = w->batch;
        to->token = w->q_start + row;
        to->wait = w->wait;
        to->leave = w->leave;
        to->strip = head * a->strips + w->first_strip + (uint32_t)row / Shape::ROWS;
        return true;
    }

    __device__ __forceinline__ void publish(uint64_t *full) {
        __syncwarp();
        if (lane == 0) mbarrier_arrive(full);
    }
    /* Waits until step n may be described. */
    __device__ __forceinline__ void wait_room(uint32_t n) {
        if (n <= STEPS_AHEAD) return;
        const uint32_t before = n - STEPS_AHEAD - 1;
        mbarrier_wait(&m->step_done[before % STEPS], before / STEPS & 1);
    }

    __device__ __forceinline__ uint32_t claim() const {
        uint32_t item;
        if (lane == 0) item = atomicAdd((uint32_t *)a->counter, 1u);
        return __shfl_sync(~0u, item, 0);
    }

    __device__ __forceinline__ void run() {
        uint32_t n = 0, number = 0;
        if (lane == 0) m->walk.mask = 0;
        used = false;
        /* Claim columns in order and late, so that nobody waits for the turn of a column that has
         * not begun. */
        for (uint32_t item; (item = claim()) < a->items; number++) {
            const uint32_t *column = tables() + a->items_at + (uint64_t)item * TESS_COLUMN_WORDS;
            column_info *c = &m->columns[number % COLUMNS];
            wait_room(n);
            begin_column(column, a->first_item + item, c);
            bool more = next(&m->steps[n % STEPS]);
            if (lane == 0) {
                c->loads = more;
                if (!more) {
                    m->steps[n % STEPS].kind = STEP_EMPTY;
                    m->steps[n % STEPS].has_strip = false;
                }
            }
            publish(&m->column_full[number % COLUMNS]);
            for (int32_t ends = STEP_FIRST;; ends = 0, n++) {
                step_info *x = &m->steps[n % STEPS], *y = &m->steps[(n + 1) % STEPS];
                wait_room(n + 1);
                more = more && next(y);
                if (lane == 0) {
                    const bool both = more && (y->kind == STEP_FULL || y->kind == STEP_MASKED);
                    x->ends = ends | (more ? 0 : STEP_LAST) | (both ? STEP_CHAINED : 0);
                    x->column = number % COLUMNS;
                }
                publish(&m->step_full[n % STEPS]);
                if (!more) break;
            }
            n++;
        }
        wait_room(n);
        if (lane == 0) {
            m->steps[n % STEPS].kind = STEP_STOP;
            m->columns[number % COLUMNS].keys = -1;
        }
        publish(&m->column_full[number % COLUMNS]);
        publish(&m->step_full[n % STEPS]);
    }
};

} // namespace tess

#endif // TESS_CUDA_SM90_SCHEDULE_BACKWARD_CUH
