/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pass over columns of the backward kernel for Ampere and later, which makes dK and dV: a
 * thread block takes a column, and walks over the rows of its segments, head after head
 * (backward_columns.h). As a single pass it also adds dQ to the rows' accumulators, in no fixed
 * order.
 *
 * Steps are pipelined. While one is multiplied, the next is copied by its row numbers, the rows of
 * the third are found with their LSE and Delta, and so is the start of the fourth.
 */
#ifndef TESS_CUDA_SM80_BACKWARD_COLUMNS_CUH
#define TESS_CUDA_SM80_BACKWARD_COLUMNS_CUH

#include "backward_columns.h"
#include "backward_strips.h"
#include "jobs.cuh"
#include "sm80_backward_pass.cuh"
#include "sm80_backward_strips.cuh"

namespace tess {

/* Where a step begins: rows from number `first` on of a head of a segment. */
struct column_step {
    uint32_t segment; /* NO_SEGMENT: there is no step */
    uint32_t first;
    uint16_t head, last_head;
    uint32_t cls, flags, step, count; /* as in tess_rows */
    int32_t row;
    uint16_t first_block, blocks;
    uint32_t whole, whole_end; /* rows with these numbers need no mask */
    int32_t q_len;             /* of the sequence */
};
enum : uint32_t { NO_SEGMENT = ~0u };

/* The head of shared memory; the matrices follow. */
template <int TILE, int STEP, bool SKEWED> struct alignas(16) columns_memory {
    /* Step n uses entry n modulo these. Without SKEWED, an A100 has room for no more. */
    enum {
        STEPS = SKEWED ? 8 : 4,
        ROWS = SKEWED ? 4 : 3,
        LSES = SKEWED ? 4 : 2,
        BOUNDS = SKEWED ? 2 : 1, /* of segments */
        KEPT = SKEWED ? 2 : 1
    };
    const uint16_t *q, *d_o; /* row 0 of head 0 of the sequence */
    const float *lses;       /* likewise in the strips ... */
    float *sums;             /* ... and among the accumulators of dQ */
    column_step steps[STEPS];
    int32_t rows[ROWS][STEP]; /* of the sequence; below 0: none, and nothing is read for it */
    float lse[LSES][STEP];    /* in base 2 */
    float delta[LSES][STEP];
    int32_t low[BOUNDS][TILE], high[BOUNDS][TILE]; /* rows at these positions keep the key */
    uint32_t absent[LSES][2]; /* some of a step's rows are absent; a word a warp */
    /* Of a masked step: whether any row keeps any of 16 keys; one flag for each warp that shares
     * them. */
    uint8_t kept[KEPT][2][TILE / 16];
};

/* SINGLE: makes dQ, too. SKEWED: half of the warps add dQ of the last step before they begin this
 * one, and the others after it, so that products of one half hide exponentials of the other. */
template <typename Pass, bool SINGLE, bool SKEWED> struct columns_walk : Pass {
    typedef typename Pass::T T;
    typedef columns_memory<Pass::TILE, Pass::STEP, SKEWED> memory;
    static_assert(sizeof(memory) <= (SKEWED ? TESS_SM80_BACKWARD_SKEWED_HEADER
                                            : TESS_SM80_BACKWARD_COLUMNS_HEADER),
                  "the host asks for enough shared memory");
    static_assert(Pass::SCORE_N == 2, "two warps have the same keys");
    static_assert(Pass::STEP <= 64 && Pass::STEP % 32 == 0 && Pass::TILE <= Pass::THREADS,
                  "threads have one row and one key at most");
    using Pass::a, Pass::dp, Pass::lane, Pass::s, Pass::thread, Pass::warp;

    enum {
        P_WEIGHTS = SKEWED ? 2 : 1, /* behind dS of one or two steps */
        HALF = Pass::THREADS / 2
    };
    memory *m;
    float d_k[Pass::UM][Pass::UN][4], d_v[Pass::UM][Pass::UN][4];

    __device__ __forceinline__ const uint32_t *tables() const {
        return (const uint32_t *)a->tables;
    }
    __device__ __forceinline__ uint32_t column_at() const {
        return a->common.items_at + blockIdx.x * TESS_COLUMN_WORDS;
    }
    __device__ __forceinline__ uint32_t column(uint32_t word) const {
        return tables()[column_at() + word];
    }
    __device__ __forceinline__ uint32_t keys() const {
        return TESS_HIGH_HALF(column(TESS_WORD_COLUMN_KEYS));
    }
    __device__ __forceinline__ const uint32_t *sequence() const {
        return tables() + a->common.sequences_at +
               column(TESS_WORD_COLUMN_SEQUENCE) * TESS_SEQUENCE_WORDS;
    }
    static __device__ __forceinline__ int64_t start_of(const uint32_t *words) {
        return (int64_t)((uint64_t)words[1] << 32 | words[0]);
    }
    __device__ __forceinline__ uint32_t token_of(uint32_t k) const {
        return tess_column_token(column_at(), k, tables(), a->common);
    }
    /* The offset of the kv head's key 0 in a tensor. */
    __device__ __forceinline__ int64_t first_key(int64_t batch, int64_t token, int64_t head) const {
        const uint32_t *words = sequence();
        return words[TESS_WORD_SEQUENCE_KV_BATCH] * batch +
               start_of(words + TESS_WORD_SEQUENCE_KV_START) * token +
               TESS_LOW_HALF(column(TESS_WORD_COLUMN_KV_HEAD)) * head;
    }

    /* ---------------------------------------------------------------- steps */

    static __device__ __forceinline__ tess_rows rows_of(const column_step &x, uint32_t block) {
        const bool runs = (x.flags & TESS_CLASS_BITS) != 0 || x.step != 0;
        tess_rows rows;
        rows.cls = x.cls;
        rows.flags = x.flags;
        rows.head = x.head;
        rows.heads = 1;
        rows.first = x.first_block;
        rows.blocks = x.blocks;
        rows.row = x.row;
        rows.step = x.step;
        rows.run = runs ? block : x.count;
        rows.count = x.count;
        return rows;
    }

    /* The first step of a segment. */
    __device__ __forceinline__ column_step begin_segment(uint32_t segment) const {
        const uint32_t first = column(TESS_WORD_COLUMN_SEGMENT),
                       count = column(TESS_WORD_COLUMN_SEGMENTS);
        column_step x;
        x.segment = NO_SEGMENT;
        if (segment >= count) return x;
        const uint32_t at = a->common.kv_heads_at + (first + segment) * TESS_SEGMENT_WORDS,
                       masks = tables()[at + TESS_WORD_SEGMENT_MASK_HEAD];
        const tess_rows rows = tess_read_rows(at, tables(), a->common);
        x.segment = segment;
        x.first = 0;
        x.head = rows.head;
        x.last_head = rows.head + rows.heads - 1;
        x.cls = rows.cls;
        x.flags = rows.flags;
        x.step = rows.step;
        x.count = rows.count;
        x.row = rows.row;
        x.first_block = rows.first;
        x.blocks = rows.blocks;
        x.q_len = sequence()[TESS_WORD_SEQUENCE_Q_LEN];
        /* Only a full tile, all of it in the segment, can go without a mask. */
        const bool all = keys() == Pass::TILE && !(rows.flags & TESS_CLASS_BITS) &&
                         TESS_LOW_HALF(masks) != TESS_ALL_ROWS && rows.first == 0 &&
                         rows.blocks == TESS_LOW_HALF(column(TESS_WORD_COLUMN_BLOCKS));
        const bool runs = rows.step != 0;
        x.whole = !all ? ~0u : runs ? 0 : TESS_LOW_HALF(masks);
        x.whole_end = runs ? rows.count : rows.count - TESS_HIGH_HALF(masks);
        return x;
    }

    __device__ __forceinline__ void find_step(uint32_t n) const {
        column_step x = m->steps[(n - 1) % memory::STEPS];
        if (x.segment != NO_SEGMENT) {
            x.first += Pass::STEP;
            if (x.first >= x.count) {
                x.first = 0;
                if (x.head++ == x.last_head) x = begin_segment(x.segment + 1);
            }
        }
        m->steps[n % memory::STEPS] = x;
    }

    /* A row of a step. Thread n finds the n-th. */
    struct found_row {
        int32_t row;
        float lse, delta;
    };
    __device__ __forceinline__ found_row find_row(uint32_t n) const {
        found_row found = {-1, TESS_DEAD_LSE, 0};
        const column_step &x = m->steps[n % memory::STEPS];
        if (thread >= Pass::STEP || x.segment == NO_SEGMENT) return found;
        const int32_t q_first =
            x.flags & TESS_CLASS_BITS ? sequence()[TESS_WORD_SEQUENCE_Q_FIRST] : 0;
        found.row = tess_find_column_row(x.first + thread, rows_of(x, a->common.block), q_first,
                                         x.q_len, tables(), a->common)
                        .row;
        if (found.row >= 0) {
            const tess_args &args = a->common;
            const float *lse =
                m->lses + (uint64_t)x.head * TESS_ARGS_STRIPS * TESS_STRIP_ROWS + found.row;
            found.lse = lse[0];
            found.delta = lse[TESS_TO_DELTA];
        }
        return found;
    }
    __device__ __forceinline__ void keep_row(uint32_t n, const found_row &found) const {
        if (thread >= Pass::STEP) return;
        const bool dead = found.lse == TESS_DEAD_LSE;
        m->rows[n % memory::ROWS][thread] = dead ? -1 : found.row;
        m->lse[n % memory::LSES][thread] = found.lse;
        m->delta[n % memory::LSES][thread] = found.delta;
        const bool absent = __any_sync(~0u, dead);
        if (lane == 0) m->absent[n % memory::LSES][warp] = absent;
    }

    /* Which rows of a step's segment keep each key. */
    __device__ __forceinline__ void find_bounds(uint32_t n) const {
        if (thread >= Pass::TILE) return;
        const column_step &x = m->steps[n % memory::STEPS];
        int32_t low = 0x7fffffff, high = -0x7fffffff - 1;
        if (thread < keys()) {
            const tess_key_bounds found = tess_find_bounds(
                thread, token_of(thread), rows_of(x, a->common.block), tables(), a->common);
            low = found.low;
            high = found.high;
        }
        m->low[x.segment % memory::BOUNDS][thread] = low;
        m->high[x.segment % memory::BOUNDS][thread] = high;
    }

    /* ---------------------------------------------------------------- copies */

    /* Whether some row may keep a key. */
    __device__ __forceinline__ bool is_read(uint32_t k) const {
        const tess_args &args = a->common;
        const uint32_t first = column(TESS_WORD_COLUMN_SEGMENT),
                       count = column(TESS_WORD_COLUMN_SEGMENTS), token = token_of(k);
        const int32_t q_first = sequence()[TESS_WORD_SEQUENCE_Q_FIRST];
        for (uint32_t n = 0; n < count; n++) {
            const tess_rows rows =
                tess_read_rows(args.kv_heads_at + (first + n) * TESS_SEGMENT_WORDS, tables(), args);
            const tess_key_bounds x = tess_find_bounds(k, token, rows, tables(), args);
            const int64_t from = (int64_t)q_first + rows.row, last = from + rows.count - 1;
            if (rows.step ? x.low <= x.high : x.low <= last && x.high >= from) return true;
        }
        return false;
    }

    /* Copies zeros for a key that no row keeps: its contents must not reach dQ of other keys'
     * rows. */
    __device__ __forceinline__ void copy_tile() const {
        const tess_args *c = &a->common;
        const uint32_t used = keys();
        if (SINGLE) {
            if (thread < Pass::TILE) m->low[0][thread] = thread < used && is_read(thread);
            __syncthreads();
        }
        const uint16_t *k = (const uint16_t *)a->k + first_key(c->k_batch, c->k_token, c->k_head),
                       *v = (const uint16_t *)a->v + first_key(c->v_batch, c->v_token, c->v_head);
        Pass::template copy<Pass::TILE>(
            Pass::tile_at(0), (const void *)a->k, a->wide & 2, [&](uint32_t e) -> const uint16_t * {
                return (SINGLE ? m->low[0][e] : e < used) ? k + (int64_t)token_of(e) * c->k_token
                                                          : 0;
            });
        Pass::template copy<Pass::TILE>(
            Pass::tile_at(1), (const void *)a->v, a->wide & 4, [&](uint32_t e) -> const uint16_t * {
                return e < used ? v + (int64_t)token_of(e) * c->v_token : 0;
            });
    }

    __device__ __forceinline__ void copy_items(uint32_t n) const {
        const tess_args *c = &a->common;
        const int64_t head = m->steps[n % memory::STEPS].head;
        const int stage = Pass::STAGES == 2 ? n % 2 : 0;
        const int32_t *rows = m->rows[n % memory::ROWS];
        const uint16_t *q = m->q + head * c->q_head, *d_o = m->d_o + head * c->o_head;
        Pass::template copy<Pass::STEP>(
            Pass::items_at(stage, 0), (const void *)a->q, a->wide & 1,
            [&](int i) -> const uint16_t * { return rows[i] < 0 ? 0 : q + rows[i] * c->q_token; });
        Pass::template copy<Pass::STEP>(Pass::items_at(stage, 1), (const void *)a->d_o, a->wide & 8,
                                        [&](int i) -> const uint16_t * {
                                            return rows[i] < 0 ? 0 : d_o + rows[i] * c->o_token;
                                        });
    }

    /* ---------------------------------------------------------------- one step */

    /* The bits of a row in a mask: which blocks of the column it reads. */
    __device__ __forceinline__ uint32_t bits_of(const column_step &x, int item) const {
        const uint32_t u = x.first + item;
        if (!(x.flags & TESS_CLASS_BITS) || u >= x.count) return ~0u;
        return tables()[a->common.bits_at + x.row + u / a->common.block] >> x.step;
    }

    /* P and dS of a step, from S and dP. */
    template <bool MASKED> __device__ __forceinline__ void weigh(uint32_t n) const {
        const column_step &x = m->steps[n % memory::STEPS];
        const int32_t q_first = MASKED ? sequence()[TESS_WORD_SEQUENCE_Q_FIRST] : 0;
        const float *lse = m->lse[n % memory::LSES], *delta = m->delta[n % memory::LSES];
        const int32_t *low = m->low[x.segment % memory::BOUNDS],
                      *high = m->high[x.segment % memory::BOUNDS];
        const int d_s = SKEWED ? n % 2 : 0;
        bool any[Pass::SM] = {};
#pragma unroll
        for (int i = 0; i < Pass::SN; i++) {
            const int item = Pass::item_of(i);
            const float2 lses = *(const float2 *)(lse + item),
                         deltas = *(const float2 *)(delta + item);
            int32_t row[2];
            uint32_t bits[2];
            if (MASKED)
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    row[c] = m->rows[n % memory::ROWS][item + c];
                    bits[c] = bits_of(x, item + c);
                }
#pragma unroll
            for (int t = 0; t < Pass::SM; t++)
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const int entry = Pass::entry_of(t, r);
                    float p[2], d[2];
#pragma unroll
                    for (int c = 0; c < 2; c++) {
                        p[c] = exp2_fast(
                            fmaf(s[t][i][2 * r + c], a->scale_log2, c ? -lses.y : -lses.x));
                        d[c] = p[c] * (dp[t][i][2 * r + c] - (c ? deltas.y : deltas.x));
                        if (MASKED) {
                            const int32_t position = q_first + row[c];
                            const bool kept = (row[c] >= 0) & (position >= low[entry]) &
                                              (position <= high[entry]) &
                                              (bits[c] >> (entry / a->common.block & 31)) & 1;
                            p[c] = kept ? p[c] : 0.0f;
                            d[c] = kept ? d[c] : 0.0f;
                            any[t] |= kept;
                        }
                    }
                    Pass::put(P_WEIGHTS, t, i, r, p[0], p[1]);
                    Pass::put(d_s, t, i, r, d[0], d[1]);
                }
        }
        if (SINGLE && MASKED)
#pragma unroll
            for (int t = 0; t < Pass::SM; t++) {
                const bool kept = __any_sync(~0u, any[t]);
                if (lane == 0)
                    m->kept[n % memory::KEPT][warp % Pass::SCORE_N][Pass::entry_of(t, 0) / 16] =
                        kept;
            }
    }

    /* Adds dQ of a step to its accumulators. */
    __device__ __forceinline__ void add_rows(uint32_t n, bool masked) const {
        float sums[Pass::IM][Pass::IN][4];
        clear(sums);
        const int d_s = SKEWED ? n % 2 : 0;
        const uint8_t(*const kept)[Pass::TILE / 16] = m->kept[n % memory::KEPT];
        if (masked)
            Pass::add_tile(sums, d_s, 0, [&](int k) { return (kept[0][k] | kept[1][k]) != 0; });
        else
            Pass::add_tile(sums, d_s, 0);
        const accumulators<Pass::D> to = {m->sums, a->common.page};
        const uint32_t head = m->steps[n % memory::STEPS].head, quarter = lane % 4;
        const int item = warp / Pass::ITEM_N * Pass::IM * 16 + lane / 4,
                  unit = warp % Pass::ITEM_N * Pass::IN;
#pragma unroll
        for (int t = 0; t < Pass::IM; t++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int32_t row = m->rows[n % memory::ROWS][item + t * 16 + r * 8];
                if (row < 0) continue;
                float *const at = to.row(head, row) + unit * 8;
#pragma unroll
                for (int i = 0; i < Pass::IN; i += 2)
                    if ((unit + i) * 8 < (int)a->common.head_dim)
                        accumulators<Pass::D>::add(at + i * 8, quarter, sums[t][i][2 * r],
                                                   sums[t][i][2 * r + 1], sums[t][i + 1][2 * r],
                                                   sums[t][i + 1][2 * r + 1]);
            }
    }

    __device__ __forceinline__ bool is_masked(uint32_t n) const {
        const column_step &x = m->steps[n % memory::STEPS];
        uint32_t masked = m->absent[n % memory::LSES][0] | (x.first < x.whole) |
                          (x.first + Pass::STEP > x.whole_end);
        if (Pass::STEP > 32) masked |= m->absent[n % memory::LSES][1];
        return masked;
    }

    __device__ __forceinline__ void epilogue() {
        const tess_args *c = &a->common;
        const int64_t k = first_key(c->lse_batch, c->lse_token, c->lse_head),
                      v = first_key(c->v_scale_batch, c->v_scale_token, c->v_scale_head);
        const uint32_t used = keys();
        if (c->flags & TESS_ARGS_D_K)
            Pass::store(
                d_k, (void *)a->out, a->wide & 16,
                [&](uint32_t e) { return e < used ? k + token_of(e) * c->lse_token : -1; },
                [&](uint32_t e) { return c->scale; });
        if (c->flags & TESS_ARGS_D_V)
            Pass::store(
                d_v, (void *)a->out_v, a->wide & 32,
                [&](uint32_t e) { return e < used ? v + token_of(e) * c->v_scale_token : -1; },
                [&](uint32_t e) { return 1.0f; });
    }

    __device__ __forceinline__ void prologue() {
        if (thread == 0) {
            const tess_args *c = &a->common;
            const uint32_t *words = sequence(), number = column(TESS_WORD_COLUMN_SEQUENCE);
            const int64_t batch = words[TESS_WORD_SEQUENCE_BATCH],
                          start = start_of(words + TESS_WORD_SEQUENCE_Q_START);
            m->q = (const uint16_t *)a->q + batch * c->q_batch + start * c->q_token;
            m->d_o = (const uint16_t *)a->d_o + batch * c->o_batch + start * c->o_token;
            m->lses = (const float *)a->workspace + tess_strip_at(number, 0, 0, tables(), *c);
            m->sums = accumulators<Pass::D>::of(a, number).first;
            m->steps[0] = begin_segment(0);
            find_step(1);
            find_step(2);
        }
        clear(d_k);
        clear(d_v);
        __syncthreads();
        for (uint32_t n = 0; n < 2; n++) keep_row(n, find_row(n));
        if (m->steps[0].segment == NO_SEGMENT) return;
        copy_tile();
        __syncthreads();
        find_bounds(0);
        copy_items(0);
    }

    /* Prepares later steps. It loads before `work` and stores after, so that products hide the
     * latency. */
    template <typename Work>
    __device__ __forceinline__ void find_next(uint32_t n, uint32_t segment, uint32_t next,
                                              const Work &work) const {
        const found_row found = find_row(n + 2);
        work();
        keep_row(n + 2, found);
        if (thread == 0) find_step(n + 3);
        if (next != segment && next != NO_SEGMENT) find_bounds(n + 1);
    }

    __device__ __forceinline__ void run() {
        const bool wants_k = a->common.flags & TESS_ARGS_D_K,
                   wants_v = a->common.flags & TESS_ARGS_D_V, wants_q = SINGLE && a->wants_q,
                   ahead = SKEWED && thread >= HALF;
        bool last_masked = false; /* the last step was */
        prologue();
        uint32_t n = 0;
        for (;; n++) {
            const int stage = Pass::STAGES == 2 ? n % 2 : 0;
            cp_async_wait_all();
            __syncthreads();
            const uint32_t segment = m->steps[n % memory::STEPS].segment,
                           next = m->steps[(n + 1) % memory::STEPS].segment;
            if (segment == NO_SEGMENT) break;
            const bool masked = is_masked(n);
            if (Pass::STAGES == 2 && next != NO_SEGMENT) copy_items(n + 1);
            if (SKEWED && wants_q && ahead && n > 0) add_rows(n - 1, last_masked);
            Pass::score(s, stage, 0);
            Pass::score(dp, stage, 1);
            if (masked)
                weigh<true>(n);
            else
                weigh<false>(n);
            if (SKEWED)
                barrier_of(1 + ahead, HALF); /* a warp sums over P and dS of its own half only */
            else
                __syncthreads();
            find_next(n, segment, next, [&]() {
                if (wants_v) Pass::add_items(d_v, P_WEIGHTS, stage, 1);
                if (wants_k) Pass::add_items(d_k, SKEWED ? n % 2 : 0, stage, 0);
                if (!SKEWED && wants_q) add_rows(n, masked);
            });
            if (SKEWED && wants_q && !ahead && n > 0) add_rows(n - 1, last_masked);
            last_masked = masked;
            if (Pass::STAGES == 1 && next != NO_SEGMENT) {
                __syncthreads();
                copy_items(n + 1);
            }
        }
        if (SKEWED && wants_q && n > 0) add_rows(n - 1, last_masked);
        epilogue();
    }
};

template <typename Pass> using columns_pass = columns_walk<Pass, false, false>;
template <typename Pass> using single_pass = columns_walk<Pass, true, false>;
template <typename Pass> using skewed_pass = columns_walk<Pass, true, true>;

} // namespace tess

#endif // TESS_CUDA_SM80_BACKWARD_COLUMNS_CUH
