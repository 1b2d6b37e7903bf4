/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forward attention for few rows (decoding, drafts, small chunks) on Ampere and later. It runs at
 * the speed of reading K and V once.
 *
 * A thread block takes a job of up to 16 or 32 rows: the query heads of one kv head, and the rows
 * of each. Its warps divide the keys. In each stage a warp has 16 or 32 keys of its own. It copies
 * them by cp.async into its own shared memory, one stage or several ahead, and keeps row_max,
 * row_sum and O of all rows over its keys. So no warp waits for another until the epilogue, which
 * combines the warps' results in a fixed order.
 *
 * K and V of a stage are two cp.async groups: S = Q K^T begins as soon as K has arrived, and the
 * place of K is filled again while V may still be on its way.
 */
#include "decode_args.h"
#include "decode_codes.cuh"
#include "decode_merge.cuh"
#include "decode_stretch.cuh"
#include "fragments.cuh"
#include "key_places.cuh"
#include "sm80_keys.cuh"

namespace tess {

enum { RUN = TESS_DECODE_RUN };

/* What codes need in shared memory. */
template <bool CODED, int ROWS> struct coded_memory {};
template <int ROWS> struct coded_memory<true, ROWS> {
    scale_places scales;
    float q_unit[ROWS]; /* what the row of Q is relative to */
};
/* The type of the products' operands: that of Q, or f16 for codes. */
template <bool CODED, typename T> struct operand { typedef T type; };
template <typename T> struct operand<true, T> { typedef f16_t type; };

template <typename A, typename B> struct same { static constexpr bool value = false; };
template <typename A> struct same<A, A> { static constexpr bool value = true; };

/* The head of shared memory. Q follows, then the stages of each warp, then the key list and the
 * scales of each stage. */
template <bool CODED, int ROWS, int WARPS>
struct alignas(128) shared_memory : coded_memory<CODED, ROWS> {
    struct {
        /* the row's position among the keys; its query block, counted from the tile's first */
        int32_t position, block;
    } rows[ROWS];
    float row_max[WARPS][ROWS], row_sum[WARPS][ROWS]; /* of each warp's keys */
    float row_total[ROWS];                            /* row_sum of all keys */
    job_words job;
    key_list list;
    key_stretch stretch;
    key_places places;
};

/* The mainloop of a warp for one job: a thread's state and its steps. */
template <typename T, typename KV, int D, int TILES, int WARPS, int KEYS> struct mainloop {
    static constexpr bool CODED = codes<KV>::CODED;
    typedef typename operand<CODED, T>::type M;
    /* of Q, and of K and V, where two codes are as large as one element */
    typedef row_places<D> q_place;
    typedef row_places<(CODED ? D / 2 : D)> place;
    typedef shared_memory<CODED, 16 * TILES, WARPS> memory;
    enum {
        UNITS = place::UNITS,
        ROW = place::ROW,
        GROUP = place::GROUP,
        Q_UNITS = q_place::UNITS,
        Q_ROW = q_place::ROW,
        RUNS = KEYS / RUN,
        STAGES = TESS_DECODE_STAGES(CODED ? 1 : 2, KEYS), /* at most */
        PASS = 32 / GROUP,                                /* rows that the warp copies at a time */
        HALF = KEYS * ROW,                                /* bytes of K or V of a stage */
        X = D / 16,                                       /* steps of 16 elements */
        O = D / 8,                                        /* fragments of O: 8 elements each */
        HELD = TILES * D <= 128 && STAGES > 1,            /* Q stays in registers */
        INTEGERS = codes<KV>::INTEGERS,                   /* S is computed in integers */
        /* rows of Q are relative to a power of two */
        Q_UNIT = CODED && (INTEGERS || !same<T, M>::value),
    };

    memory *m;
    const tess_decode_args *a;
    uint32_t q_at,
        stages_at;      /* in shared memory: Q, and this warp's stages, each of K and then V */
    key *keys;          /* of this warp's stages */
    uint32_t scales_at; /* likewise: for each stage those of K, then those of V */
    uint32_t warp, lane;
    int32_t own_below; /* no other job reads keys below this token */
    uint32_t complete; /* bit n: every row keeps every key of stage n */
    uint32_t q[HELD ? TILES : 1][HELD ? X : 1][4];
    float s[TILES][KEYS / 8][4], o[TILES][O][4]; /* S, and then P, of 8 keys each; O */
    row_state<TILES> state;
    coded_state<CODED, TILES> coded;

    /* A stage that is to be copied. Most often each RUN of its keys is consecutive within one block
     * and one page, and a lane copies rows of one run. Otherwise each lane describes one key and
     * has its row. With 16 keys a stage, lanes below 16 have that of K and the others that of V.
     * With 32 keys, each lane has both. */
    struct upcoming {
        bool follow;
        key x;                 /* the lane's key, or the first of its run */
        const uint16_t *row;   /* NULL: no such key. With runs: in K, ... */
        const uint16_t *v;     /* ... and in V, the first row that this lane copies */
        bool again;            /* other jobs may read them, too; the same in all lanes */
        const float *scale[2]; /* of the lane's key in K and V, if there is a row */
    };

    __device__ __forceinline__ uint32_t k_at(int slot) const { return stages_at + slot * 2 * HALF; }
    __device__ __forceinline__ uint32_t v_at(int slot) const { return k_at(slot) + HALF; }

    /* The tile's row that s[t][n] and o[t][n] hold at 2 * r and 2 * r + 1. */
    __device__ __forceinline__ int row_of(int t, int r) const { return t * 16 + r * 8 + lane / 4; }

    __device__ __forceinline__ int32_t ahead() const { return STAGES == 1 ? 1 : a->stages; }

    /* ---------------------------------------------------------------- copies */

    /* This lane's run, and the first row of it that the lane copies. */
    __device__ __forceinline__ int own_run() const { return RUNS == 1 ? 0 : lane / RUN; }
    __device__ __forceinline__ int own_row() const {
        return RUNS == 1 ? lane / GROUP : lane % RUN / GROUP;
    }

    /* The place in the list of the warp's first key of a stage. */
    __device__ __forceinline__ uint32_t first_key(int32_t stage) const {
        return ((uint32_t)stage * a->warps + warp) * KEYS;
    }

    /* IN_PLACE: K and V have neither pages nor slots. */
    template <bool IN_PLACE = false>
    __device__ __forceinline__ upcoming find_keys(int stage) const {
        const uint32_t *tables = (const uint32_t *)a->tables;
        const uint32_t first = first_key(stage);
        upcoming u = {};
        u.follow = first >= m->list.first_following;
        if (m->stretch.has(first))
            u.x = {m->stretch.token_of(first + own_run() * RUN), ~0u};
        else
            u.x = m->list.find(first + (u.follow ? own_run() * RUN : lane % KEYS),
                               tables + a->common.entries_at, tables + a->common.bits_at,
                               stage < m->list.masked_stages);
        if (u.follow) {
            const key_place at = m->places.template find<IN_PLACE>(u.x.token);
            u.follow = RUNS == 1 ? at.there : !__any_sync(~0u, !at.there);
            /* data that nobody reads again must not evict shared data from L2 */
            u.again = any_run(u.x.token + RUN > own_below);
            if (u.follow) {
                u.row = m->places.template row<IN_PLACE>(at, own_row(), 0) + lane % GROUP * 8;
                u.v = m->places.template row<IN_PLACE>(at, own_row(), 1) + lane % GROUP * 8;
                if constexpr (CODED) find_scales(u, at, lane % RUN);
                return u;
            }
            u.x.token += lane % RUN;
        }
        u.again = __any_sync(~0u, u.x.token >= own_below);
        if (u.x.token == NO_TOKEN) return u;
        const key_place at = m->places.template find<IN_PLACE>(u.x.token);
        if (at.there) {
            u.row = m->places.template row<IN_PLACE>(at, 0, RUNS == 1 ? lane / RUN : 0);
            if (RUNS > 1) u.v = m->places.template row<IN_PLACE>(at, 0, 1);
            if constexpr (CODED) find_scales(u, at, 0);
        } else {
            u.x.token = NO_TOKEN;
        }
        return u;
    }
    /* Whether `own` holds for any run of the stage. */
    __device__ __forceinline__ bool any_run(bool own) const {
        return RUNS == 1 ? own : __any_sync(~0u, own);
    }
    __device__ __forceinline__ void find_scales(upcoming &u, const key_place &at, int next) const {
#pragma unroll
        for (int n = 0; n < 2; n++) u.scale[n] = m->scales.scale(&m->places, at, next, n);
    }

    /* Keeps a stage's keys for its mask, unless every row keeps all of them. */
    __device__ __forceinline__ void keep_keys(int slot, int stage, upcoming u) {
        const uint32_t keys_of_all = KEYS == 32 ? ~0u : (1u << KEYS) - 1;
        const bool all = u.follow || (__ballot_sync(~0u, u.row != 0) & keys_of_all) == keys_of_all;
        complete &= ~(1u << slot);
        if (all && stage >= m->list.masked_stages) {
            complete |= 1u << slot;
            return;
        }
        if (u.follow) u.x.token += lane % RUN;
        if (lane < KEYS) keys[slot * KEYS + lane] = u.x;
    }

    /* The units of a row of K or V. With codes, the last one may be half a unit. */
    __device__ __forceinline__ int row_units() const {
        return CODED ? (a->common.head_dim + 15) / 16 : a->common.head_dim / 8;
    }
    __device__ __forceinline__ uint4 read_row_unit(const uint16_t *row, int unit) const {
        if (CODED && unit * 16 + 8 == (int)a->common.head_dim) return read_half(row + unit * 8);
        return read_unit(row + unit * 8, false);
    }

    /* Where this lane's first row of a tensor's stage goes, from the stage's start. */
    __device__ __forceinline__ uint32_t own_place() const {
        return place::place(own_run() * RUN + own_row(), lane % GROUP);
    }

    /* Copies runs of rows. `from` is the first that this lane copies, and `to` its place. */
    __device__ __forceinline__ void copy_runs(uint32_t to, const uint16_t *from, int64_t token,
                                              uint64_t policy) const {
        const int unit = lane % GROUP, units = row_units();
#pragma unroll
        for (int n = 0; n < RUN; n += PASS / RUNS) {
#pragma unroll
            for (int c = 0; c < UNITS; c += GROUP)
                cp_async_unit(place::below(to, n) + c * 16, from + c * 8, c + unit < units ? 16 : 0,
                              policy);
            from += PASS / RUNS * token;
        }
    }

    /* Copies the rows of a stage. Lane `first` and those after it hold their addresses. A missing
     * row becomes zeros. */
    __device__ __forceinline__ void copy_rows(uint32_t to, const uint16_t *row, int first,
                                              uint64_t policy) const {
        const int unit = lane % GROUP, units = row_units();
        if (a->wide & 2) {
#pragma unroll(STAGES == 1 ? 1 : KEYS)
            for (int n = 0; n < KEYS; n += PASS) {
                const int r = n + lane / GROUP;
                const uint16_t *from = row_of_lane(row, first + r);
                const int last = from ? units : 0;
                if (!from) from = m->places.first[0];
#pragma unroll
                for (int c = 0; c < UNITS; c += GROUP)
                    cp_async_unit(to + place::place(r, unit) + c * 16, from + (c + unit) * 8,
                                  c + unit < last ? 16 : 0, policy);
            }
        } else {
#pragma unroll 1
            for (int n = 0; n < KEYS; n += PASS) {
                const int r = n + lane / GROUP;
                const uint16_t *from = row_of_lane(row, first + r);
                const int last = from ? units : 0;
#pragma unroll 1
                for (int c = 0; c < UNITS; c += GROUP)
                    store_unit(to + place::place(r, unit) + c * 16,
                               c + unit < last ? read_row_unit(from, c + unit)
                                               : make_uint4(0, 0, 0, 0));
            }
        }
    }
    static __device__ __forceinline__ const uint16_t *row_of_lane(const uint16_t *row, int from) {
        return (const uint16_t *)__shfl_sync(~0u, (unsigned long long)row, from);
    }
    /* Copies K (0) or V (1). For codes the policy is a constant in each call, which saves
     * instructions. */
    __device__ __forceinline__ void copy(uint32_t to, const upcoming &u, int tensor) const {
        const uint16_t *row = RUNS == 1 && !u.follow ? u.row : tensor ? u.v : u.row;
        const int64_t token = m->places.token[tensor];
        if (!u.follow)
            copy_rows(to, row, RUNS == 1 ? tensor * RUN : 0,
                      u.again ? cache_usual() : cache_evict_first());
        else if (!CODED)
            copy_runs(to + own_place(), row, token, u.again ? cache_usual() : cache_evict_first());
        else if (u.again)
            copy_runs(to + own_place(), row, token, cache_usual());
        else
            copy_runs(to + own_place(), row, token, cache_evict_first());
    }
    __device__ __forceinline__ void copy_k(int slot, const upcoming &u) const {
        copy(k_at(slot), u, 0);
        if constexpr (CODED) copy_scales(slot, u, 0);
    }
    __device__ __forceinline__ void copy_v(int slot, const upcoming &u) const {
        copy(v_at(slot), u, 1);
        if constexpr (CODED) copy_scales(slot, u, 1);
    }
    __device__ __forceinline__ void copy_scales(int slot, const upcoming &u, int tensor) const {
        cp_async_word(scales_of(slot, tensor) + lane * 4,
                      u.row ? u.scale[tensor] : m->scales.first[tensor], u.row ? 4 : 0);
    }

    /* Copies the rows of Q, with all warps. Missing rows become zeros. */
    __device__ __forceinline__ void copy_q() const {
        const tess_args *c = &a->common;
        const job_words *j = &m->job;
        const uint16_t *first = (const uint16_t *)a->q + j->batch * c->q_batch +
                                (j->q_start + j->row) * c->q_token + j->head * c->q_head;
        const int32_t rows = j->rows, all = rows * j->heads, units = c->head_dim / 8;
        for (int n = threadIdx.x; n < 16 * TILES * Q_UNITS; n += blockDim.x) {
            const int r = n / Q_UNITS, unit = n % Q_UNITS;
            const bool there = r < all && unit < units;
            const uint16_t *from =
                there ? first + row_at(r, rows, rows == all, c->q_token, c->q_head) + unit * 8
                      : first;
            const uint32_t to = q_at + q_place::place(r, unit);
            if (a->wide & 1)
                cp_async_unit(to, from, there ? 16 : 0);
            else
                store_unit(to, there ? read_unit(from, false) : make_uint4(0, 0, 0, 0));
        }
    }

    /* Waits for the oldest cp.async group. Later ones may stay in flight: two for each stage, and
     * MORE. */
    template <int MORE, int N = STAGES> __device__ __forceinline__ void wait_oldest() const {
        if (N == 1 || ahead() == N)
            cp_async_wait_but<2 * N - 1 + MORE>();
        else
            wait_oldest<MORE, (N > 1 ? N - 1 : 1)>();
    }

    /* ---------------------------------------------------------------- one stage */

    __device__ __forceinline__ void load_q(uint32_t (&rows)[4], int t, int x) const {
        ldmatrix(rows, q_place::step(q_at + t * 16 * Q_ROW + q_place::own_rows(lane), x));
    }

    /* Where the scales of K (0) or V (1) of a stage are. */
    __device__ __forceinline__ uint32_t scales_of(int slot, int tensor) const {
        return scales_at + (2 * slot + tensor) * KEYS * 4;
    }
    __device__ __forceinline__ stage_scales<KEYS / 8> load_scales(int slot, int tensor) const {
        stage_scales<KEYS / 8> scales;
        scales.load(scales_of(slot, tensor), lane, codes<KV>::factor());
        return scales;
    }

    /* S = Q K^T, with codes converted to f16. */
    __device__ __forceinline__ void float_products(uint32_t k) {
        clear(s);
#pragma unroll
        for (int x = 0; x < X; x += 2)
#pragma unroll
            for (int run = 0; run < RUNS; run++) {
                uint32_t words[4];
                ldmatrix(words, place::step(k, x / 2) + run * RUN * ROW);
#pragma unroll
                for (int n = 0; n < 4; n++) {
                    uint32_t elements[2];
                    codes<KV>::neighbours(words[n], elements);
#pragma unroll
                    for (int t = 0; t < TILES; t++)
                        mma<M>(s[t][2 * run + n / 2], q[t][x + n % 2], elements[0], elements[1]);
                }
            }
    }

    /* S = Q K^T in integers, with the high and with the low bytes of Q. Sums of 128 elements stay
     * below 2^31. */
    __device__ __forceinline__ void integer_products(uint32_t k) {
#pragma unroll
        for (int run = 0; run < RUNS; run++) {
            int32_t sums[TILES][2][2][4] = {};
#pragma unroll
            for (int x = 0; x < X; x += 2) {
                uint32_t words[4];
                ldmatrix(words, place::step(k, x / 2) + run * RUN * ROW);
#pragma unroll
                for (int t = 0; t < TILES; t++)
#pragma unroll
                    for (int n = 0; n < 2; n++) {
                        mma_bytes<true>(sums[t][n][0], q[t][x], words[2 * n], words[2 * n + 1]);
                        mma_bytes<false>(sums[t][n][1], q[t][x + 1], words[2 * n],
                                         words[2 * n + 1]);
                    }
            }
#pragma unroll
            for (int t = 0; t < TILES; t++)
#pragma unroll
                for (int n = 0; n < 8; n++)
                    s[t][2 * run + n / 4][n % 4] =
                        (float)(sums[t][n / 4][0][n % 4] * 256 + sums[t][n / 4][1][n % 4]);
        }
    }

    /* S of a stage of codes, times the scales of K and the units of Q. */
    __device__ __forceinline__ void coded_scores(int slot) {
        const uint32_t k = k_at(slot) + place::own_keys(lane);
        const stage_scales<KEYS / 8> scales = load_scales(slot, 0);
        if constexpr (INTEGERS)
            integer_products(k);
        else
            float_products(k);
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int n = 0; n < KEYS / 2; n++) {
                float &score = s[t][n / 4][n % 4];
                if (Q_UNIT) score = __fmul_rn(score, coded.q_unit[t][n % 4 / 2]);
                score = __fmul_rn(score, scales.x[n / 4][n % 2]);
            }
    }

    __device__ __forceinline__ void scores(int slot) {
        if constexpr (CODED) {
            coded_scores(slot);
            if (a->common.scale < 0) negate(s);
            return;
        }
        const uint32_t k = k_at(slot) + place::own_keys(lane);
        clear(s);
#pragma unroll
        for (int x = 0; x < X; x++)
#pragma unroll
            for (int run = 0; run < RUNS; run++) {
                uint32_t words[4];
                ldmatrix(words, place::step(k, x) + run * RUN * ROW);
#pragma unroll
                for (int t = 0; t < TILES; t++) {
                    uint32_t rows[4];
                    if (!HELD) load_q(rows, t, x);
                    const uint32_t(&operand)[4] = HELD ? q[t][x] : rows;
                    mma<T>(s[t][2 * run], operand, words[0], words[1]);
                    mma<T>(s[t][2 * run + 1], operand, words[2], words[3]);
                }
            }
        if (a->common.scale < 0) negate(s);
    }

    /* Sets masked scores to -inf. */
    __device__ __forceinline__ void mask(int slot) {
        const job_words *j = &m->job;
        const key *stage_keys = keys + slot * KEYS;
        const bool window = j->flags & TESS_CLASS_WINDOW;
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int in_tile = row_of(t, r);
                const row_bounds b = bounds_of(m->rows[in_tile].position, m->rows[in_tile].block,
                                               j->flags, j->kv_len, j->left, j->right);
#pragma unroll
                for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        const key x = stage_keys[n * 8 + lane % 4 * 2 + e];
                        if (!(window ? b.keeps(x, j->sinks) : b.keeps(x)))
                            s[t][n][2 * r + e] = MINUS_INFINITY;
                    }
            }
    }

    /* Rounds P of a run of keys into an operand. */
    __device__ __forceinline__ void load_p(uint32_t (&p)[TILES][4], int run) const {
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float(&pair)[4] = s[t][2 * run + i / 2];
                p[t][i] = pack<M>(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
            }
    }

    /* O += P V for codes of a run. A transposed word has two elements of two keys, so fragments of
     * O alternate between even and odd elements. */
    __device__ __forceinline__ void coded_values(uint32_t v, const uint32_t (&p)[TILES][4]) {
#pragma unroll
        for (int y = 0; y < O; y += 4) {
            uint32_t words[4];
            ldmatrix_transposed(words, place::step(v, y / 4));
#pragma unroll
            for (int h = 0; h < 2; h++) {
                uint32_t low[2], high[2];
                codes<KV>::alternate(words[2 * h], low);
                codes<KV>::alternate(words[2 * h + 1], high);
#pragma unroll
                for (int t = 0; t < TILES; t++)
#pragma unroll
                    for (int n = 0; n < 2; n++) mma<M>(o[t][y + 2 * h + n], p[t], low[n], high[n]);
            }
        }
    }

    /* O += P V */
    __device__ __forceinline__ void values(int slot) {
        const uint32_t v = v_at(slot) + place::own_rows(lane);
#pragma unroll
        for (int run = 0; run < RUNS; run++) {
            uint32_t p[TILES][4];
            load_p(p, run);
            if constexpr (CODED)
                coded_values(v + run * RUN * ROW, p);
            else
                float_values(v + run * RUN * ROW, p);
        }
    }
    __device__ __forceinline__ void float_values(uint32_t v, const uint32_t (&p)[TILES][4]) {
#pragma unroll
        for (int y = 0; y < O; y += 2) {
            uint32_t elements[4];
            ldmatrix_transposed(elements, place::step(v, y / 2));
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                mma<T>(o[t][y], p[t], elements[0], elements[1]);
                mma<T>(o[t][y + 1], p[t], elements[2], elements[3]);
            }
        }
    }

    /* ---------------------------------------------------------------- mainloop */

    /* Q is the cp.async group before the first K. */
    __device__ __forceinline__ void await_q() {
        wait_oldest<1>();
        __syncthreads();
        if constexpr (CODED) {
            coded_q<T, D, 16 * TILES, INTEGERS, Q_UNIT>{q_at, m->q_unit}.arrange();
            __syncthreads();
        }
        if constexpr (Q_UNIT)
#pragma unroll
            for (int n = 0; n < 2 * TILES; n++)
                coded.q_unit[n / 2][n % 2] = m->q_unit[row_of(n / 2, n % 2)];
        if (HELD) {
#pragma unroll
            for (int t = 0; t < TILES; t++)
#pragma unroll
                for (int x = 0; x < X; x++) load_q(q[t][x], t, x);
        }
    }

    /* Iterations in which the stage that is copied lies in the stretch, from i on, where the stage
     * ahead of it needs no mask. They end where a page does not exist. No other job reads these
     * keys. */
    __device__ __forceinline__ void run_stretch(int32_t &i) {
        const int64_t k_token = m->places.token[0], v_token = m->places.token[1];
        const bool in_place = !m->places.table && !m->places.slots;
        const int64_t first = m->places.start + own_row();
        const uint16_t *const k_first = m->places.first[0] + first * k_token + lane % GROUP * 8,
                              *const v_first =
                                  m->places.first[1] + first * v_token + lane % GROUP * 8;
#pragma unroll 1
        for (;; i++) {
            const uint32_t n = first_key(i + 1);
            if (!m->stretch.has(n)) return;
            const int32_t t = m->stretch.token_of(n + own_run() * RUN);
            const uint16_t *k = k_first + t * k_token, *v = v_first + t * v_token;
            if (!in_place) {
                const key_place at = m->places.find(t);
                if (__any_sync(~0u, !at.there)) return;
                k = m->places.row(at, own_row(), 0) + lane % GROUP * 8;
                v = m->places.row(at, own_row(), 1) + lane % GROUP * 8;
            }
            float factor[TILES][2];
            wait_oldest<0>();
            __syncwarp();
            scores(0);
            __syncwarp();
            copy_runs(k_at(0) + own_place(), k, k_token, cache_evict_first());
            cp_async_commit();
            state.exponentiate(s, factor, a->scale_log2);
            rescale(o, factor);
            wait_oldest<0>();
            __syncwarp();
            values(0);
            __syncwarp();
            copy_runs(v_at(0) + own_place(), v, v_token, cache_evict_first());
            cp_async_commit();
        }
    }

    /* The first iterations only copy. A prologue of their own would be more code, and a job is so
     * short that fetching its instructions counts. */
    __device__ __forceinline__ void run() {
        /* the shuffle tells the compiler that the value is uniform across the warp */
        const int32_t stages = __shfl_sync(~0u, m->list.stages, 0), ahead = this->ahead();
        complete = 0;
        state.reset();
        if constexpr (CODED) coded.units.reset();
        clear(o);
        /* The first keys are found before the wait, unless earlier kernels may still write where
         * they lie, or have written the lists. That is off the path from one kernel's end to the
         * next one's first bytes. */
        const bool early = !CODED && stages > 0 && !m->places.table && !m->places.slots &&
                           !(a->common.flags & TESS_ARGS_STEP);
        upcoming next = {};
        if (early) next = find_keys<true>(0);
        grid_dependency_wait();
        grid_dependents_launch();
        if (stages > 0) copy_q();
        cp_async_commit();
        int slot = 0;
        bool found = early;
#pragma unroll 1
        for (int32_t i = -ahead; i < stages; i++) {
            if (!found) {
                if constexpr (STAGES == 1 && !CODED)
                    if (i > 0 && complete && m->stretch.end <= own_below) run_stretch(i);
                next = {};
                if (!CODED && i + ahead < stages) next = find_keys(i + ahead);
            }
            found = false;
            const bool more = i + ahead < stages;
            if (i == 0) await_q();
            if (i >= 0) {
                wait_oldest<0>();
                __syncwarp();
                scores(slot);
                if (!(complete >> slot & 1)) mask(slot);
                __syncwarp();
            }
            if (more) {
                /* not earlier: a stage of codes has more scores in registers */
                if (CODED) next = find_keys(i + ahead);
                keep_keys(slot, i + ahead, next);
                copy_k(slot, next);
            }
            cp_async_commit();
            if (i >= 0) {
                float factor[TILES][2];
                state.exponentiate(s, factor, a->scale_log2);
                if (!CODED) rescale(o, factor);
                wait_oldest<0>();
                __syncwarp();
                if constexpr (CODED) coded.units.scale(s, o, factor, load_scales(slot, 1));
                values(slot);
                __syncwarp();
            }
            if (more) copy_v(slot, next);
            cp_async_commit();
            slot = slot + 1 == ahead ? 0 : slot + 1;
        }
        epilogue();
    }

    /* ---------------------------------------------------------------- epilogue */

    /* The weight of a warp's result for a row. `max` is row_max over all keys. */
    __device__ __forceinline__ float weight(float warp_max, float max) const {
        if (warp_max == MINUS_INFINITY) return 0;
        return exp2_fast(__fmul_rn(warp_max - max, a->scale_log2) -
                         rounding_of(warp_max, a->scale_log2));
    }

    /* How many warps' numbers are read at a time. Codes leave no registers for all of them. */
    static constexpr int AT_ONCE = CODED ? 4 : WARPS;

    __device__ __forceinline__ float max_of(int row) const {
        float max = m->row_max[0][row];
#pragma unroll(AT_ONCE)
        for (int w = 1; w < WARPS; w++)
            if (w < (int)a->warps) max = fmaxf(max, m->row_max[w][row]);
        return max;
    }

    /* Where a warp's O lies while it is combined: as floats, in the place of its stages. Units of
     * 16 bytes are swizzled, so that 4 rows of one column are in different banks. */
    __device__ __forceinline__ uint32_t o_unit(uint32_t w, int row, int unit) const {
        return stages_at + (w - warp) * ahead() * 2 * HALF + row * D * 4 +
               ((unit ^ (row & 3) << 1) * 16);
    }

    /* Stores a half of a tile's O where it is combined. Of each 16 elements, a thread has 4
     * consecutive ones. */
    __device__ __forceinline__ void store_coded(const float (&x)[O][4], int r, float factor) const {
#pragma unroll
        for (int y = 0; y < O; y += 2)
            store_unit(o_unit(warp, r * 8 + lane / 4, 2 * y + lane % 4),
                       make_uint4(__float_as_uint(x[y][2 * r] * factor),
                                  __float_as_uint(x[y + 1][2 * r] * factor),
                                  __float_as_uint(x[y][2 * r + 1] * factor),
                                  __float_as_uint(x[y + 1][2 * r + 1] * factor)));
    }

    /* Combines the warps' results and writes O and LSE of the tile, or a partial. */
    __device__ __forceinline__ void epilogue() {
        const int32_t all = m->job.rows * m->job.heads;
        state.reduce_sums();
#pragma unroll
        for (int n = 0; n < 2 * TILES; n++)
            if (lane % 4 == 0) {
                m->row_max[warp][row_of(n / 2, n % 2)] = state.max[n / 2][n % 2];
                m->row_sum[warp][row_of(n / 2, n % 2)] = state.sum[n / 2][n % 2];
            }
        __syncthreads();
        store_sums();
#pragma unroll
        for (int t = 0; t < TILES; t++) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                if (t * 16 + r * 8 >= all) continue; /* no such rows */
                float factor = weight(state.max[t][r], max_of(row_of(t, r)));
                if constexpr (CODED) factor *= coded.units.unit(t, r);
                if constexpr (CODED)
                    store_coded(o[t], r, factor);
                else
#pragma unroll
                    for (int y = 0; y < O; y++)
                        store_pair(o_unit(warp, r * 8 + lane / 4, 2 * y + lane % 4 / 2) +
                                       lane % 2 * 8,
                                   o[t][y][2 * r] * factor, o[t][y][2 * r + 1] * factor);
            }
            __syncthreads();
            store_rows(t * 16);
            if (t + 1 < TILES) __syncthreads();
        }
    }

    __device__ __forceinline__ float *partial() const {
        const tess_args *c = &a->common;
        return (float *)a->workspace + c->partials_at +
               (uint64_t)(uint32_t)m->job.partial * c->partial_rows * (c->head_dim + 2);
    }

    /* Adds the warps' row sums, one thread a row, and writes LSE, or row_max and row_sum of a
     * partial. */
    __device__ __forceinline__ void store_sums() const {
        const tess_args *c = &a->common;
        const job_words *j = &m->job;
        const int row = threadIdx.x, all = j->rows * j->heads;
        if (row >= 16 * TILES) return;
        const float max = max_of(row);
        float total = 0;
#pragma unroll(AT_ONCE)
        for (int w = 0; w < WARPS; w++)
            if (w < (int)a->warps)
                total = __fadd_rn(total,
                                  __fmul_rn(m->row_sum[w][row], weight(m->row_max[w][row], max)));
        m->row_total[row] = total;
        if (row >= all) return;
        if (j->partial != NO_PARTIAL) {
            float *to = partial() + (uint64_t)c->partial_rows * c->head_dim + row;
            to[0] = max;
            to[c->partial_rows] = total;
        } else if (c->flags & TESS_ARGS_LSE) {
            const int64_t first = j->batch * c->lse_batch + (j->q_start + j->row) * c->lse_token +
                                  j->head * c->lse_head;
            ((float *)
                 a->lse)[first + row_at(row, j->rows, j->heads == 1, c->lse_token, c->lse_head)] =
                total == 0 ? MINUS_INFINITY
                           : fmaf(max, fabsf(c->scale), __fmul_rn(log2_fast(total), LN_2));
        }
    }

    /* Adds O of the warps in order, and writes 16 rows of it. A row without keys becomes 0,
     * whatever its registers held. */
    __device__ __forceinline__ void store_rows(int first_row) const {
        const tess_args *c = &a->common;
        const job_words *j = &m->job;
        const int32_t rows = j->rows, all = rows * j->heads, units = c->head_dim / 8;
        uint16_t *const first = (uint16_t *)a->o + j->batch * c->o_batch +
                                (j->q_start + j->row) * c->o_token + j->head * c->o_head;
#pragma unroll 1
        for (int n = threadIdx.x; n < 16 * Q_UNITS; n += blockDim.x) {
            const int r = n / Q_UNITS, unit = n % Q_UNITS, row = first_row + r;
            if (row >= all || unit >= units) continue;
            const float total = m->row_total[row], inverse = reciprocal(total);
            float x[8] = {};
#pragma unroll 4
            for (int w = 0; w < (int)a->warps; w++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const uint4 four = load_shared_unit(o_unit(w, r, 2 * unit + h));
                    x[4 * h] += __uint_as_float(four.x);
                    x[4 * h + 1] += __uint_as_float(four.y);
                    x[4 * h + 2] += __uint_as_float(four.z);
                    x[4 * h + 3] += __uint_as_float(four.w);
                }
#pragma unroll
            for (int e = 0; e < 8; e++) x[e] = total == 0 ? 0.0f : x[e] * inverse;
            if (j->partial != NO_PARTIAL) {
                float *to = partial() + (uint64_t)row * c->head_dim + unit * 8;
                *(float4 *)to = make_float4(x[0], x[1], x[2], x[3]);
                *(float4 *)(to + 4) = make_float4(x[4], x[5], x[6], x[7]);
            } else {
                write_unit(first + row_at(row, rows, rows == all, c->o_token, c->o_head) + unit * 8,
                           make_uint4(pack<T>(x[0], x[1]), pack<T>(x[2], x[3]), pack<T>(x[4], x[5]),
                                      pack<T>(x[6], x[7])),
                           a->wide & 4);
            }
        }
    }
};

/* The first token that other jobs may read, too. It is 0 if this job has only some of the rows, and
 * past all tokens if it has all rows and all heads of the group. Otherwise heads of other classes
 * read the blocks near their rows, and strided blocks of their own. */
__device__ __forceinline__ int32_t own_below(const job_words *j, const tess_args *c, int rows) {
    if (j->rows != j->q_len) return 0;
    if (j->heads == (int32_t)c->group) return 0x7fffffff;
    if (!(j->flags & TESS_CLASS_LOCAL) || j->q_len * (int32_t)c->group > rows) return 0;
    const int32_t first = floor_div(j->q_first + j->row, c->block) - (int32_t)j->local + 1;
    return max(first, 0) * (int32_t)c->block;
}

template <typename T, typename KV, int D, int ROWS, int WARPS, int KEYS>
__device__ __forceinline__ void run_job(const tess_decode_args *a, uint8_t *raw, uint32_t number) {
    constexpr bool CODED = codes<KV>::CODED;
    typedef shared_memory<CODED, ROWS, WARPS> memory;
    enum { HEADER = TESS_DECODE_HEADER(ROWS, WARPS) };
    static_assert(sizeof(memory) <= HEADER && HEADER % 128 == 0,
                  "the host asks for enough shared memory");
    memory *m = (memory *)raw;
    const tess_args *c = &a->common;
    const uint32_t *tables = (const uint32_t *)a->tables;
    const int thread = threadIdx.x;
    if (thread == 0) {
        job_words j;
        j.read(table_words(tables, c, number));
        m->job = j;
        m->list.make(&j, tables + c->entries_at, c->block, a->warps * KEYS);
        m->list.find_following(a->wide & 2 ? RUN : 0);
        m->stretch.make(m->list, tables + c->entries_at, KEYS, a->warps * KEYS);
        m->places.make(a, &j, m->list.block_shift, CODED);
        if constexpr (CODED) m->scales.make(a, &m->places, &j);
    }
    __syncthreads();
    const int32_t rows = m->job.rows, all = rows * m->job.heads;
    if (thread < ROWS) {
        m->rows[thread].position = m->job.q_first + m->job.row + min(thread, all - 1) % rows;
        m->rows[thread].block = floor_div(m->rows[thread].position, c->block) - m->list.first_block;
    }
    mainloop<T, KV, D, ROWS / 16, WARPS, KEYS> w;
    w.m = m;
    w.a = a;
    w.warp = __shfl_sync(~0u, thread / 32, 0);
    w.lane = thread % 32;
    const uint32_t stages_at = HEADER + ROWS * D * 2, stage_bytes = 2 * w.HALF, ahead = w.ahead();
    w.q_at = shared_address(raw) + HEADER;
    w.stages_at = shared_address(raw) + stages_at + w.warp * ahead * stage_bytes;
    w.keys = (key *)(raw + stages_at + a->warps * ahead * stage_bytes) + w.warp * ahead * KEYS;
    if (CODED)
        w.scales_at = shared_address(raw) + stages_at +
                      a->warps * ahead * (stage_bytes + KEYS * sizeof(key)) +
                      w.warp * ahead * KEYS * TESS_DECODE_SCALES(1);
    w.own_below = own_below(&m->job, c, ROWS);
    w.run();
}

/* A thread block takes one job of a plan. A step has fewer thread blocks than it may have jobs, so
 * each takes several: they are dealt to and fro, since jobs come longest first. */
template <typename T, typename KV, int D, int ROWS, int WARPS, int KEYS>
__device__ __forceinline__ void forward(const tess_decode_args *a) {
    extern __shared__ __align__(128) uint8_t raw[];
    const uint32_t jobs = present_jobs((const uint32_t *)a->tables, &a->common);
    if (blockIdx.x >= jobs && blockIdx.x > 0) return; /* see grid_dependency_wait() */
    uint32_t number = blockIdx.x, stride = 2 * (gridDim.x - blockIdx.x) - 1;
    while (number < jobs) {
        run_job<T, KV, D, ROWS, WARPS, KEYS>(a, raw, number);
        number += stride;
        stride = 2 * gridDim.x - stride;
        if (number < jobs) __syncthreads();
    }
    grid_dependency_wait(); /* where there was no job */
}

} // namespace tess

#define INSTANCE(T, D, ROWS, GROUPS, KEYS)                                                         \
    extern "C" __global__ void __launch_bounds__(32 * TESS_DECODE_WARPS * GROUPS)                  \
        tess_decode##ROWS##_##T##_##D(const __grid_constant__ tess_decode_args args) {             \
        tess::forward<tess::T##_t, tess::T##_t, D, ROWS, TESS_DECODE_WARPS * GROUPS, KEYS>(&args); \
    }
#define CODED_INSTANCE(T, KV, D, ROWS, GROUPS, KEYS)                                          \
    extern "C" __global__ void __launch_bounds__(32 * TESS_DECODE_WARPS * GROUPS)             \
        tess_decode##ROWS##_##KV##_##T##_##D(const __grid_constant__ tess_decode_args args) { \
        tess::forward<tess::T##_t, tess::KV##_t, D, ROWS, TESS_DECODE_WARPS * GROUPS, KEYS>(  \
            &args);                                                                           \
    }
#define BF16(...) INSTANCE(bf16, __VA_ARGS__)
#define F16(...)  INSTANCE(f16, __VA_ARGS__)
TESS_DECODE_INSTANCES(BF16)
TESS_DECODE_INSTANCES(F16)
#define E4M3_BF16(...) CODED_INSTANCE(bf16, e4m3, __VA_ARGS__)
#define E4M3_F16(...)  CODED_INSTANCE(f16, e4m3, __VA_ARGS__)
#define I8_BF16(...)   CODED_INSTANCE(bf16, i8, __VA_ARGS__)
#define I8_F16(...)    CODED_INSTANCE(f16, i8, __VA_ARGS__)
TESS_DECODE_CODED_INSTANCES(E4M3_BF16)
TESS_DECODE_CODED_INSTANCES(E4M3_F16)
TESS_DECODE_CODED_INSTANCES(I8_BF16)
TESS_DECODE_CODED_INSTANCES(I8_F16)

TESS_DECODE_MERGE(f16)
TESS_DECODE_MERGE(bf16)
