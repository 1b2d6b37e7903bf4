/* SPDX-License-Identifier: Apache-2.0 */
/* The consuming warpgroups of the kernel for Hopper: 64 query rows each. */
#ifndef TESS_CUDA_SM90_CONSUME_CUH
#define TESS_CUDA_SM90_CONSUME_CUH

#include "sm90_ptx.cuh"
#include "sm90_tile.cuh"
#include "wgmma.cuh"

namespace tess {

/* Thread layout of an accumulator: rows lane / 4 and that + 8 of the warp's 16, columns 8 n + lane
 * % 4 * 2 + {0, 1}. One bit for each of a thread's columns below the n-th of a piece. */
__device__ __forceinline__ uint32_t columns_below(int32_t n) {
    const uint32_t x = max(n - (int32_t)(threadIdx.x % 4 * 2), 0);
    return (1u << (x / 8 * 2 + min(x % 8, 2u))) - 1;
}

/* Which of a thread's scores count, in two rows of a tile: a bit for each column of KEYS. Without
 * branches, since all that wait for it wait together. */
template <int KEYS, bool WINDOW>
__device__ __forceinline__ void find_kept(uint32_t (&kept)[2], const piece *pieces, const tile *t,
                                          int piece_shift, int row) {
    const int32_t tokens = 1 << piece_shift, kv_len = t->kv_len;
    int32_t from[2], to[2], cap[2];
    int shift[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        /* A product stands for a quotient, which is exact for numbers this small. */
        int32_t in_head = min(row + 8 * r, t->last_row);
        in_head -= (int32_t)((uint32_t)in_head * t->rows_inverse >> 20) * t->rows;
        const int32_t p = t->position + in_head;
        /* tokens from here on are not kept */
        to[r] = cap[r] = max(t->flags & CLASS_CAUSAL ? p + 1 : kv_len, 0);
        if (WINDOW) {
            from[r] = max(max(p, 0) - t->left, 0);
            to[r] = max(p + 1 + min(cap[r] - 1 - p, t->right), 0);
            cap[r] = min(cap[r], t->sinks);
        }
        /* query blocks from the first on */
        shift[r] = (int)(((uint32_t)t->in_block + in_head) * t->block_inverse >> 20) +
                   (in_head >= t->block_edge);
        kept[r] = 0;
    }
#pragma unroll 2
    for (int n = 0; n < KEYS >> piece_shift; n++) {
        const piece x = pieces[n];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            uint32_t bits = columns_below(min(to[r] - x.token, tokens));
            if (WINDOW)
                bits = (bits & ~columns_below(min(from[r] - x.token, tokens))) |
                       columns_below(min(cap[r] - x.token, tokens));
            kept[r] |= (bits & 0 - (x.kept >> shift[r] & 1)) << (n << piece_shift >> 2);
        }
    }
}

/* One of the consuming warpgroups: what a thread holds, and the steps that it takes. */
template <typename T, typename X> struct consumer {
    /* The reference follows exponentials which add up to more than this in a thread, and of large
     * scores those that make a factor of more than 2^8. They stay bounded, also as f16, and O is
     * rarely multiplied. */
    static constexpr float RISE = 8, LARGE = 0x1p14f;
    enum {
        D = X::D,
        KEYS = X::KEYS,
        ROWS = X::ROWS,
        Q_SLOTS = X::Q_SLOTS,
        K_STAGES = X::K_STAGES,
        V_STAGES = X::V_STAGES
    };
    enum {
        S = KEYS / 2,
        O = D / 2,
        PRIMES = Q_SLOTS > 1,
        PARTS = KEYS == 128 && X::GROUPS == 2,
        COLUMN = ROWS * 128
    };

    memory<X> *m;
    const tess_sm90_args *a;
    /* row: the thread's first one in the tile, the other is 8 below */
    int group, warp, lane, row;
    float scale, slope;       /* of the scores; the same in exponents of 2 */
    float s[S], o[O];         /* scores and then exponentials; results */
    uint32_t p[KEYS / 16][4]; /* exponentials as the operand of the second product */
    /* of the two rows: the score that exponentials are relative to, their sum, and what O has to
     * be multiplied by */
    float top[2], sum[2], factor[2];
    /* the exponent of 2 that belongs to `top`, or 0 where that is -inf or large */
    float base[2];
    bool settled;   /* no row of the warp has such a top */
    bool keys_here; /* of the next stage, as seen before they are needed */
    /* some factor of the warp is not 1, and only then factors are set */
    bool rescale;
    uint32_t kept[2];      /* which scores count in a masked stage */
    int32_t masked_stages; /* of the tile, from its first one on */
    bool parted, window;   /* its first stage is parted; its mask is a window */

    /* Where a tile's rows are, and a stage's keys. Asked for ahead of a product, and the same for
     * all lanes, so that issuing one takes few instructions. */
    __device__ __forceinline__ uint32_t q_matrix(uint32_t taken) const {
        return __shfl_sync(~0u, matrix(q_rows(taken % Q_SLOTS), 16), 0);
    }
    __device__ __forceinline__ uint32_t k_matrix(uint32_t stage, int first = 0) const {
        return __shfl_sync(~0u, matrix(m->k[stage % K_STAGES][0] + first * 128, 16), 0);
    }

    __device__ __forceinline__ void issue_scores(uint32_t q, uint32_t k) { /* S = Q K^T */
        products_begin();
#pragma unroll
        for (int x = 0; x < (D + 15) / 16; x++)
            wgmma<T, KEYS>::template ss<K_MAJOR>(
                s, description_of(q + (x / 4 * ROWS * 128 + x % 4 * 32 >> 4)),
                description_of(k + (x / 4 * KEYS * 128 + x % 4 * 32 >> 4)), x > 0);
        products_commit();
    }

    /* O += P V, or = for the first keys of a tile. HALF: of a parted stage, the warpgroup's own
     * half. */
    template <bool HALF> __device__ __forceinline__ void issue_values(uint32_t n, bool first) {
        const uint32_t v =
            matrix(m->v[n % V_STAGES][0] + (HALF ? (1 - group) * 64 * 128 : 0), KEYS * 128);
        products_begin();
#pragma unroll
        for (int x = 0; x < KEYS / (HALF ? 32 : 16); x++)
            wgmma<T, D>::rs(o, p[x], description_of(v + (x * 16 * 128 >> 4)), x > 0 || !first);
        products_commit();
    }

    __device__ __forceinline__ const uint8_t *q_rows(int slot) const {
        return m->q[slot][0] + group * 64 * 128;
    }

    /* Of a parted stage the product begins at the warpgroup's own half, and what follows that is
     * not used. */
    __device__ __forceinline__ int first_key() const { return parted ? (1 - group) * 64 : 0; }
    __device__ __forceinline__ float (&half_scores())[32] {
        return reinterpret_cast<float(&)[32]>(s);
    }

    /* Finds which of N scores count, from a key of stage n on. */
    template <int N> __device__ __forceinline__ void find(const tile *t, uint32_t n, int first) {
        const piece *pieces = m->pieces[n % X::PIECE_STAGES] + (first >> a->piece_shift);
        if (window)
            find_kept<N, true>(kept, pieces, t, a->piece_shift, row);
        else
            find_kept<N, false>(kept, pieces, t, a->piece_shift, row);
    }
    /* of a tile's first stage */
    __device__ __forceinline__ void find_first(const tile *t, uint32_t n) {
        if (parted)
            find<64>(t, n, first_key());
        else if (masked_stages > 0)
            find<KEYS>(t, n, 0);
    }

    /* Replaces scores that must not count by -inf. */
    template <int N> __device__ __forceinline__ void mask(float (&s)[N]) const {
#pragma unroll
        for (int x = 0; x < N; x++)
            if (!(kept[x / 2 % 2] & 1u << (x / 4 * 2 + x % 2))) s[x] = MINUS_INFINITY;
    }

    /* The largest score of each row. */
    template <int N>
    static __device__ __forceinline__ void largest(const float (&s)[N], float (&most)[2]) {
        most[0] = s[0];
        most[1] = s[2];
#pragma unroll
        for (int x = 0; x < N; x += 4) {
            most[0] = fmaxf(most[0], fmaxf(s[x], s[x + 1]));
            most[1] = fmaxf(most[1], fmaxf(s[x + 2], s[x + 3]));
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 1));
            most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 2));
        }
    }

    /* Turns scores into exponentials. Any reference near the largest score does for a softmax. The
     * largest one is looked for only for rows that have seen none or whose exponents are large.
     * Elsewhere exponentials are relative to the reference of old, and looked at afterwards. What
     * becomes of a row depends on that row alone. */
    __device__ __forceinline__ void softmax(const uint8_t *q, bool masked, uint32_t n) {
        if (a->common.scale < 0) {
#pragma unroll
            for (int x = 0; x < S; x++) s[x] = -s[x];
        }
        rescale = false;
        if (masked) mask(s);
        if (!settled) {
            float most[2];
            largest(s, most);
#pragma unroll
            for (int r = 0; r < 2; r++) factor[r] = rise(r, most[r]);
            rescale = __any_sync(~0u, (factor[0] != 1.0f) | (factor[1] != 1.0f));
            subtract(s);
        }
        float part[2] = {0, 0};
#pragma unroll
        for (int x = 0; x < S; x += 4) {
            s[x] = exp2_fast(fmaf(s[x], slope, -base[0]));
            s[x + 1] = exp2_fast(fmaf(s[x + 1], slope, -base[0]));
            s[x + 2] = exp2_fast(fmaf(s[x + 2], slope, -base[1]));
            s[x + 3] = exp2_fast(fmaf(s[x + 3], slope, -base[1]));
            part[0] += s[x] + s[x + 1];
            part[1] += s[x + 2] + s[x + 3];
        }
        if (__any_sync(~0u, part[0] > LARGE || part[1] > LARGE)) lower(part, q, masked, n);
        if (lane == 0) barrier_arrive(&m->k_empty[n % K_STAGES]);
#pragma unroll
        for (int r = 0; r < 2; r++) sum[r] = (rescale ? sum[r] * factor[r] : sum[r]) + part[r];
    }

    /* The same for a tile's first stage if that is parted: scores of the warpgroup's own half are
     * the first half of S. */
    __device__ __forceinline__ void half_softmax(uint32_t n) {
        float(&s)[32] = half_scores(), most[2];
        if (a->common.scale < 0) {
#pragma unroll
            for (int x = 0; x < 32; x++) s[x] = -s[x];
        }
        mask(s);
        largest(s, most);
        if (lane == 0) barrier_arrive(&m->k_empty[n % K_STAGES]);
#pragma unroll
        for (int r = 0; r < 2; r++) follow(r, most[r]);
        subtract(s);
#pragma unroll
        for (int x = 0; x < 32; x++) {
            s[x] = exp2_fast(fmaf(s[x], slope, -base[x / 2 % 2]));
            sum[x / 2 % 2] += s[x];
        }
    }

    /* A product of score and scale that large has lost bits which the difference of scores
     * keeps. */
    __device__ __forceinline__ bool is_large(float score) const {
        return fabsf(score * slope) > 0x1p14f;
    }

    /* Makes exponentials of a row relative to another score; what earlier ones are worth then. */
    __device__ __forceinline__ float follow(int r, float score) {
        const float before = top[r], base_before = base[r];
        const bool unseen = before == MINUS_INFINITY, none = score == MINUS_INFINITY,
                   apart = is_large(before) | is_large(score);
        top[r] = score;
        base[r] = none | is_large(score) ? 0.0f : score * slope;
        const float factor =
            exp2_fast(apart | none ? (before - score) * slope : base_before - base[r]);
        return unseen ? 1.0f : factor;
    }

    /* Follows a score if its row has seen none, or if it is much higher than a large one. */
    __device__ __forceinline__ float rise(int r, float score) {
        const bool rises =
            (top[r] == MINUS_INFINITY) | (is_large(top[r]) & ((score - top[r]) * slope > RISE));
        const float factor = follow(r, rises ? score : top[r]);
        return rises ? factor : 1.0f;
    }

    /* Takes large references off their scores. */
    template <int N> __device__ __forceinline__ void subtract(float (&s)[N]) {
        const bool large[2] = {is_large(top[0]), is_large(top[1])};
        settled = !__any_sync(~0u, large[0] | large[1] | (top[0] == MINUS_INFINITY) |
                                       (top[1] == MINUS_INFINITY));
        if (settled) return;
#pragma unroll
        for (int x = 0; x < N; x++)
            s[x] -= large[x / 2 % 2] && top[x / 2 % 2] != MINUS_INFINITY ? top[x / 2 % 2] : 0.0f;
    }

    /* Follows rows whose exponentials have become large. Those relative to another score are
     * multiples of them, by no less than 2^-120 since smaller numbers are flushed, unless they are
     * infinite. */
    __device__ __forceinline__ void lower(float (&part)[2], const uint8_t *q, bool masked,
                                          uint32_t n) {
        float most[2], times[2];
        bool lost[2];
        largest(s, most);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const bool large = __ballot_sync(~0u, part[r] > LARGE) >> (lane & 28) & 15;
            if (!rescale) factor[r] = 1.0f;
            lost[r] = large && most[r] == -MINUS_INFINITY;
            times[r] =
                large && !lost[r]
                    ? follow(r, top[r] +
                                    (float)min((__float_as_int(most[r]) >> 23) - 127, 120) / slope)
                    : 1.0f;
            factor[r] *= times[r];
            part[r] = 0;
        }
#pragma unroll
        for (int x = 0; x < S; x++) s[x] *= times[x / 2 % 2];
        if (__any_sync(~0u, lost[0] || lost[1])) {
            scores_again(lost, q, n);
            if (masked) mask_rows(lost);
            largest(s, most);
            if (lost[0]) factor[0] *= follow(0, most[0]);
            if (lost[1]) factor[1] *= follow(1, most[1]);
#pragma unroll
            for (int x = 0; x < S; x++) {
                const int r = x / 2 % 2;
                if (lost[r]) s[x] = exp2_fast((s[x] - top[r]) * slope);
            }
        }
#pragma unroll
        /* in the order of softmax(), since rows whose exponentials are not large are summed
         * again too */
        for (int x = 0; x < S; x += 4) {
            part[0] += s[x] + s[x + 1];
            part[1] += s[x + 2] + s[x + 3];
        }
        rescale = true;
        settled = !__any_sync(~0u, is_large(top[0]) || is_large(top[1]));
    }

    __device__ __forceinline__ void mask_rows(const bool (&which)[2]) {
#pragma unroll
        for (int x = 0; x < S; x++)
            if (which[x / 2 % 2] && !(kept[x / 2 % 2] & 1u << (x / 4 * 2 + x % 2)))
                s[x] = MINUS_INFINITY;
    }

    /* The scores of some rows once more, by a warp for itself. */
    __device__ __forceinline__ void scores_again(const bool (&which)[2], const uint8_t *q,
                                                 uint32_t n) {
        const uint32_t q_at = shared_address(q + warp * 16 * 128),
                       k_at = shared_address(m->k[n % K_STAGES][0]);
        const int q_row = lane % 16, k_row = lane % 8 + lane / 16 * 8;
#pragma unroll
        for (int keys = 0; keys < KEYS / 16; keys++) {
            float c[2][4] = {};
#pragma unroll 1
            for (int x = 0; x < (D + 15) / 16; x++) {
                uint32_t qs[4], ks[4];
                load_matrices(qs, q_at + x / 4 * ROWS * 128 + q_row * 128 +
                                      ((x % 4 * 2 + lane / 16) ^ q_row % 8) * 16);
                load_matrices(ks, k_at + x / 4 * KEYS * 128 + (keys * 16 + k_row) * 128 +
                                      ((x % 4 * 2 + lane / 8 % 2) ^ k_row % 8) * 16);
                multiply<T>(c[0], qs, ks[0], ks[1]);
                multiply<T>(c[1], qs, ks[2], ks[3]);
            }
#pragma unroll
            for (int e = 0; e < 8; e++)
                if (which[e / 2 % 2])
                    s[8 * keys + e] = a->common.scale < 0 ? -c[e / 4][e % 4] : c[e / 4][e % 4];
        }
    }

    __device__ __forceinline__ void scale_results() {
#pragma unroll
        for (int x = 0; x < O; x++) o[x] *= factor[x / 2 % 2];
    }

    __device__ __forceinline__ void to_operand() {
#pragma unroll
        for (int x = 0; x < KEYS / 16; x++) {
#pragma unroll
            for (int y = 0; y < 4; y++) p[x][y] = pack<T>(s[8 * x + 2 * y], s[8 * x + 2 * y + 1]);
        }
    }

    __device__ __forceinline__ void half_to_operand() {
#pragma unroll
        for (int x = 0; x < KEYS / 32; x++) {
#pragma unroll
            for (int y = 0; y < 4; y++) p[x][y] = pack<T>(s[8 * x + 2 * y], s[8 * x + 2 * y + 1]);
        }
    }

    __device__ __forceinline__ void complete_sums() {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
            sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
        }
    }

    /* Divides O by the sums and lays it out in workgroup memory, a warp's 16 rows for itself, in
     * the place of the same rows of Q. */
    __device__ __forceinline__ void stage_results(int slot) {
        const float inverse[2] = {reciprocal(sum[0]), reciprocal(sum[1])};
#pragma unroll
        for (int x = 0; x < O; x++) o[x] *= inverse[x / 2 % 2];
        /* a row that has seen no key is 0, whatever its registers hold */
        if (__any_sync(~0u, sum[0] == 0 || sum[1] == 0)) {
#pragma unroll
            for (int x = 0; x < O; x++) o[x] = sum[x / 2 % 2] == 0 ? 0.0f : o[x];
        }
        uint8_t *staged = m->q[slot][0] + (group * 64 + warp * 16) * 128;
        const int matrix_row = lane % 16; /* of the 8 x 8 matrices that this lane addresses */
#pragma unroll
        for (int x = 0; x < D / 16; x++) {
            const int unit = 2 * x + lane / 16;
            store_matrices(staged + unit / 8 * COLUMN + matrix_row * 128 +
                               ((unit % 8) ^ (matrix_row % 8)) * 16,
                           pack<T>(o[8 * x], o[8 * x + 1]), pack<T>(o[8 * x + 2], o[8 * x + 3]),
                           pack<T>(o[8 * x + 4], o[8 * x + 5]),
                           pack<T>(o[8 * x + 6], o[8 * x + 7]));
        }
        fence_async_proxy();
    }

    /* Writes LSE, and O if that is a partial result, and hands the tile on to the warp that writes
     * the others. */
    __device__ __forceinline__ void finish(const tile *t, int slot) {
        const tess_args *c = &a->common;
        const int32_t rows = t->rows, all = rows * t->heads, partial = t->partial;
        float *const partials = (float *)a->workspace + c->partials_at +
                                (uint64_t)(uint32_t)partial * c->partial_rows * (c->head_dim + 2);
        if (partial != NO_PARTIAL || (c->flags & TESS_ARGS_LSE)) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const float lse =
                    sum[r] == 0 ? MINUS_INFINITY : top[r] * scale + log2_fast(sum[r]) * LN_2;
                const int in_tile = row + 8 * r;
                if (lane % 4 != 0 || in_tile >= all) continue;
                if (partial != NO_PARTIAL)
                    store_reference(partials + (uint64_t)c->partial_rows * c->head_dim + in_tile,
                                    top[r], sum[r], base[r]);
                else
                    ((float *)
                         a->lse)[t->batch * c->lse_batch + (t->q_start + t->row) * c->lse_token +
                                 t->head * c->lse_head +
                                 row_at(in_tile, rows, t->heads == 1, c->lse_token, c->lse_head)] =
                        lse;
            }
        }
        if (partial != NO_PARTIAL) store_partial(partials, all);
        __syncwarp();
        if (lane == 0) barrier_arrive(&m->o_full[slot]);
    }

    /* The reference and the sum of a row. Exponentials are relative to a rounded product of
     * reference and scale, which the sum makes up for. */
    __device__ __forceinline__ void store_reference(float *to, float most, float total,
                                                    float product) const {
        to[0] = most;
        to[a->common.partial_rows] =
            total == 0 || is_large(most) ? total : total * exp2_fast(-fmaf(most, slope, -product));
    }

    __device__ __forceinline__ void store_partial(float *partials, int32_t all) const {
        const uint32_t head_dim = a->common.head_dim;
#pragma unroll
        for (int x = 0; x < O; x += 2) {
            const int element = x / 4 * 8 + lane % 4 * 2, in_tile = row + x / 2 % 2 * 8;
            if (element >= (int)head_dim || in_tile >= all) continue;
            *(float2 *)(partials + (uint64_t)in_tile * head_dim + element) =
                make_float2(o[x], o[x + 1]);
        }
    }

    /* Waits for the description of a tile; its number of stages, negative if there is none. */
    __device__ __forceinline__ int32_t next_tile(uint32_t taken) {
        barrier_wait(&m->tile_full[taken % TILES], taken / TILES & 1);
        const tile *t = &m->tiles[taken % TILES];
        masked_stages = t->masked_stages;
        parted = PARTS && __shfl_sync(~0u, t->parted, 0);
        window = __shfl_sync(~0u, t->flags & CLASS_WINDOW, 0);
        /* the same for all, and the compiler shall know it */
        return __shfl_sync(~0u, t->stages, 0);
    }

    /* Waits for the rows of a tile and its first keys. */
    __device__ __forceinline__ void await(uint32_t taken, uint32_t n) {
        barrier_wait(&m->q_full[taken % Q_SLOTS], taken / Q_SLOTS & 1);
        await_keys(n);
    }
    __device__ __forceinline__ void await_keys(uint32_t n) {
        if (!keys_here) barrier_wait(&m->k_full[n % K_STAGES], n / K_STAGES & 1);
    }
    __device__ __forceinline__ void look_for_keys(uint32_t n) {
        keys_here = barrier_passed(&m->k_full[n % K_STAGES], n / K_STAGES & 1);
    }

    /* A stage of keys after the first one of a tile, the n + 1-th of all: its scores, and the
     * values of the stage before. */
    template <bool HALF>
    __device__ __forceinline__ void step(const tile *t, uint32_t q, int slot, int32_t i,
                                         uint32_t n) {
        const uint32_t k = k_matrix(n + 1);
        await_keys(n + 1);
        turn_wait(1 + group);
        issue_scores(q, k);
        /* The search for masks lasts about as long as a product: two warpgroups wait less for each
         * other if it is made before the second product, and three if that is not kept waiting. */
        if (X::GROUPS == 2 && i < masked_stages) find<KEYS>(t, n + 1, 0);
        barrier_wait(&m->v_full[n % V_STAGES], n / V_STAGES & 1);
        issue_values<HALF>(n, i == 1);
        turn_give(1 + (group + 1) % X::GROUPS);
        if (X::GROUPS > 2 && i < masked_stages) find<KEYS>(t, n + 1, 0);
        products_wait<1>();
        keep_below(s);
        look_for_keys(n + 2);
        softmax(q_rows(slot), i < masked_stages, n + 1);
        products_wait<0>();
        keep_below(o);
        if (lane == 0) barrier_arrive(&m->v_empty[n % V_STAGES]);
        if (rescale) scale_results();
        to_operand();
    }

    /* All tiles. Where there is room for two tiles of Q, the first product of a tile is issued
     * before the results of the one before are stored, so that storing leaves the tensor cores
     * busy. The turn is given away before, since looking for the tile takes longer than the product
     * under way. */
    __device__ __forceinline__ void run() {
        dependencies_wait();
        const int own_turn = 1 + group, other_turn = 1 + (group + 1) % X::GROUPS;
        uint32_t n = 0, taken = 0; /* stages and tiles so far */
        keys_here = false;
        if (group == X::GROUPS - 1) turn_give(1);
        int32_t stages = next_tile(0);
        if (stages < 0) return;
        if (PRIMES) {
            await(0, n);
            find_first(&m->tiles[0], n);
            turn_wait(own_turn);
            issue_scores(q_matrix(0), k_matrix(n, first_key()));
            turn_give(other_turn);
        }
        for (;;) {
            const int slot = taken % Q_SLOTS;
            const tile *t = &m->tiles[taken % TILES];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                top[r] = MINUS_INFINITY;
                base[r] = 0;
                sum[r] = 0;
            }
            settled = false;
            if (!PRIMES) {
                await(taken, n);
                find_first(t, n);
                turn_wait(own_turn);
                issue_scores(q_matrix(taken), k_matrix(n));
                turn_give(other_turn);
            }
            products_wait<0>();
            keep_below(s);
            look_for_keys(n + 1);
            if (parted) {
                half_softmax(n);
                half_to_operand();
            } else {
                softmax(q_rows(slot), masked_stages > 0, n);
                to_operand();
            }
            const uint32_t q = q_matrix(taken);
            int32_t i = 1;
            if (parted) step<true>(t, q, slot, i++, n++);
            for (; i < stages; i++, n++) step<false>(t, q, slot, i, n);
            const bool first = stages == 1;
            barrier_wait(&m->v_full[n % V_STAGES], n / V_STAGES & 1);
            taken++;
            complete_sums();
            if (PRIMES) {
                turn_wait(own_turn);
                issue_values<false>(n, first);
                turn_give(other_turn);
                stages = next_tile(taken);
                /* else a product of what is there, since the compiler wants one on every way */
                if (stages >= 0) {
                    await(taken, n + 1);
                    find_first(&m->tiles[taken % TILES], n + 1);
                }
                const uint32_t q = q_matrix(taken), k = k_matrix(n + 1, first_key());
                issue_scores(q, k);
                products_wait<1>();
                keep_below(o);
                if (lane == 0) barrier_arrive(&m->v_empty[n % V_STAGES]);
                stage_results(slot);
                products_wait<0>();
                keep_below(s);
                finish(t, slot);
            } else {
                issue_values<false>(n, first);
                products_wait<0>();
                keep_below(o);
                if (lane == 0) barrier_arrive(&m->v_empty[n % V_STAGES]);
                stage_results(slot);
                finish(t, slot);
                stages = next_tile(taken);
            }
            if (stages < 0) return;
            n++;
        }
    }
};

} // namespace tess

#endif // TESS_CUDA_SM90_CONSUME_CUH
