/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mainloop of backward on Hopper: a consumer warpgroup computes its 64 keys of each column.
 *
 * S^T = K Q^T and dP^T = V dO^T have keys as rows, so that P^T is the left operand of
 * dV += P^T dO as it is, in registers, and dS^T that of dK += dS^T Q. Both warpgroups also leave
 * dS^T in shared memory. From there each takes all keys for its half of dQ = dS K: 64 of its dims,
 * or 64 rows.
 *
 * Products overlap with exponentials. Behind dV and dQ of a step, S^T of the next one is issued,
 * then the step's own dK and the next dP^T: while these are in flight, P^T of the next step is
 * computed. At head_dim 64 a step has 128 rows, and there are no registers for dS^T. There dK takes
 * the own keys' dS^T out of shared memory, and is issued in the middle of the next step's
 * exponentials, behind dP^T.
 *
 * WANTED says which gradients a run wants: TESS_SM90_DQ, TESS_SM90_DKV or both. What nobody wants
 * has neither products nor room in registers, and what is left is computed as it is with all of
 * them, bit for bit. Without dQ the two warpgroups share nothing but stages, and do not meet.
 */
#ifndef TESS_CUDA_SM90_MAINLOOP_BACKWARD_CUH
#define TESS_CUDA_SM90_MAINLOOP_BACKWARD_CUH

#include "epilogue_backward.cuh"
#include "tile_backward.cuh"
#include "wgmma.cuh"

namespace tess {

enum { DS_BARRIER = 1, SUM_BARRIER = 3 /* and the next one: of a warpgroup each */ };

template <typename T, typename Shape, unsigned WANTED> struct mainloop_backward {
    static constexpr int D = Shape::D, ROWS = Shape::ROWS, KEY_BYTES = Shape::KEY_BYTES,
                         ROW_BYTES = Shape::ROW_BYTES;
    static constexpr bool LOADS_AHEAD = Shape::LOADS_AHEAD;
    /* dK takes dS^T out of registers, 16 of a thread, instead of shared memory. At head_dim 64
     * these were 32, and there is no room. */
    static constexpr bool DS_IN_REGISTERS = D > 64;
    static constexpr bool QUERIES = WANTED & TESS_SM90_DQ, KEYS = WANTED & TESS_SM90_DKV,
                          SHARES_DS = QUERIES || !DS_IN_REGISTERS;

    backward_memory<Shape> *m;
    const tess_sm90_backward_args *a;
    int warpgroup, warp, lane;
    float scale_log2;
    uint32_t active; /* steps with products: with any, or without dQ with those of the own keys */
    float dk[D / 2], dv[D / 2];
    float s[ROWS / 2], dp[ROWS / 2]; /* S^T and then P^T; dP^T */
    float dq[32];
    uint32_t p[ROWS / 16][4], ds[ROWS / 16][4]; /* P^T and dS^T as left operands */
    float2 ahead[ROWS / 8];                     /* LSE or Delta */

    /* ---------------------------------------------------------------- products */

    /* A descriptor's low word, made uniform across the warp by a shuffle. */
    __device__ __forceinline__ uint32_t operand(const void *at, uint32_t leading = 16) const {
        return __shfl_sync(~0u, descriptor_low(at, leading), 0);
    }

    /* The own 64 keys of K or V times the rows of Q or dO. */
    __device__ __forceinline__ void issue_scores(float (&to)[ROWS / 2], const uint8_t *keys,
                                                 const uint8_t *rows) {
        const uint32_t left = operand(keys + warpgroup * 64 * 128), right = operand(rows);
        warpgroup_arrive();
#pragma unroll
        for (int x = 0; x < D / 16; x++)
            wgmma<T, ROWS>::template ss<K_MAJOR>(
                to, matrix_descriptor(left + (x / 4 * KEY_BYTES + x % 4 * 32 >> 4)),
                matrix_descriptor(right + (x / 4 * ROW_BYTES + x % 4 * 32 >> 4)), x > 0);
        warpgroup_commit();
    }

    /* dV += P^T dO. */
    __device__ __forceinline__ void issue_dv(uint32_t n) {
        const uint32_t right = operand(m->d_o[n % D_O_STAGES][0], ROW_BYTES);
        warpgroup_arrive();
#pragma unroll
        for (int x = 0; x < ROWS / 16; x++)
            wgmma<T, D>::rs(dv, p[x], matrix_descriptor(right + (x * 16 * 128 >> 4)), 1);
        warpgroup_commit();
    }
    /* dK += dS^T Q. */
    __device__ __forceinline__ void issue_dk(uint32_t n) {
        const uint32_t right = operand(m->q[n % STEP_STAGES][0], ROW_BYTES);
        if (DS_IN_REGISTERS) {
            warpgroup_arrive();
#pragma unroll
            for (int x = 0; x < ROWS / 16; x++)
                wgmma<T, D>::rs(dk, ds[x], matrix_descriptor(right + (x * 16 * 128 >> 4)), 1);
        } else {
            const uint32_t left = operand(m->ds[active % 2][0] + warpgroup * 64 * 128);
            warpgroup_arrive();
#pragma unroll
            for (int x = 0; x < ROWS / 16; x++)
                wgmma<T, D>::template ss<N_MAJOR>(
                    dk, matrix_descriptor(left + (x / 4 * KEY_BYTES + x % 4 * 32 >> 4)),
                    matrix_descriptor(right + (x * 16 * 128 >> 4)), 1);
        }
        warpgroup_commit();
    }
    /* Waits for dV, behind which `others` groups of products are in flight. */
    template <int OTHERS> __device__ __forceinline__ void end_dv(uint32_t n) {
        warpgroup_wait<OTHERS>();
        register_fence(dv);
        release(&m->d_o_empty[n % D_O_STAGES]);
    }
    __device__ __forceinline__ void finish_dk(uint32_t n) {
        register_fence(dk);
        release(&m->q_empty[n % STEP_STAGES]);
    }

    /* The own half of dQ = dS K, over `units` of 16 keys each. */
    __device__ __forceinline__ void issue_dq(int first, const int units) {
        const uint32_t left = operand(m->ds[active % 2][Shape::ROW_CHUNKS == 2 ? warpgroup : 0] +
                                      first * 16 * 128),
                       right = operand(m->k[Shape::CHUNKS == 2 ? warpgroup : 0] + first * 16 * 128);
        warpgroup_arrive();
#pragma unroll
        for (int x = 0; x < units; x++)
            wgmma<T, 64>::template ss<N_MAJOR, N_MAJOR>(
                dq, matrix_descriptor(left + (x * 16 * 128 >> 4)),
                matrix_descriptor(right + (x * 16 * 128 >> 4)), x > 0);
        warpgroup_commit();
    }

    /* ---------------------------------------------------------------- between them */

    /* This thread's LSE or Delta of rows [8 n, 8 n + 8). */
    __device__ __forceinline__ float2 of_rows(const float *values, int n) const {
        return LOADS_AHEAD ? ahead[n] : *(const float2 *)(values + 8 * n + lane % 4 * 2);
    }
    __device__ __forceinline__ void load_ahead(const float *values) {
        if (LOADS_AHEAD) {
#pragma unroll
            for (int n = 0; n < ROWS / 8; n += 2) {
                const float4 x = *(const float4 *)(values + 8 * n + lane % 4 * 4);
                ahead[n] = make_float2(x.x, x.y);
                ahead[n + 1] = make_float2(x.z, x.w);
            }
        }
    }

    /* P^T out of S^T, of rows [8 first, 8 last). */
    __device__ __forceinline__ void exponentiate(uint32_t step, const int first, const int last) {
#pragma unroll
        for (int n = first; n < last; n++) {
            const float2 x = of_rows(m->lse[step % STEP_STAGES], n);
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[4 * n + i] = exp2_fast(s[4 * n + i] * scale_log2 - (i % 2 ? x.y : x.x));
        }
    }

    /* dS^T out of P^T and dP^T. Of each 64 rows, a row of 128 bytes for each key goes to shared
     * memory, to place `buffer`. MASKED: it is 0 where P is, whatever dP holds. P^T becomes a left
     * operand. */
    template <bool MASKED>
    __device__ __forceinline__ void differentiate(uint32_t step, uint32_t buffer) {
        const int key = warpgroup * 64 + warp * 16 + lane % 16;
        uint8_t *const to = m->ds[buffer % 2][0] + key * 128;
#pragma unroll
        for (int n = 0; n < ROWS / 16; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int at = 8 * n + 2 * i;
                const float2 x = of_rows(m->delta[step % D_O_STAGES], 2 * n + i / 2);
                float y[2] = {s[at] * (dp[at] - x.x), s[at + 1] * (dp[at + 1] - x.y)};
                if (MASKED) {
                    if (s[at] == 0) y[0] = 0;
                    if (s[at + 1] == 0) y[1] = 0;
                }
                ds[n][i] = pack<T>(y[0], y[1]);
                p[n][i] = pack<T>(s[at], s[at + 1]);
            }
            const int unit = 2 * n + lane / 16;
            if (SHARES_DS)
                stmatrix(to + unit / 8 * KEY_BYTES + ((unit % 8) ^ (key % 8)) * 16, ds[n][0],
                         ds[n][1], ds[n][2], ds[n][3]);
        }
        if (SHARES_DS) fence_async_proxy();
    }

    /* The rows of the step that keep this thread's two keys: columns [first, first + count). */
    struct kept_rows {
        int32_t first[2];
        uint32_t count[2];
    };
    __device__ __forceinline__ kept_rows find_kept(const step_info *x) const {
        const column_info *c = &m->columns[x->column];
        const segment_mask *mask = &m->masks[x->mask];
        kept_rows kept;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const uint32_t k = warpgroup * 64 + warp * 16 + lane / 4 + 8 * r, block = k / a->block;
            const int32_t t = c->token[k];
            key_rows rows;
            rows.low = INT32_MAX;
            rows.high = INT32_MIN;
            if (t != NO_KEY && block - mask->first < mask->blocks && (x->bits >> (block & 31) & 1))
                rows.find(*mask, t, a->block);
            const int32_t first = max(rows.low, x->position + x->row_begin),
                          last = min(rows.high, x->position + x->row_end - 1);
            kept.first[r] = first - x->position - lane % 4 * 2;
            kept.count[r] = last >= first ? last - first + 1 : 0;
        }
        return kept;
    }
    template <int N>
    static __device__ __forceinline__ void apply(const kept_rows &kept, float (&x)[N]) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            const int r = i / 2 % 2;
            if ((uint32_t)(i / 4 * 8 + i % 2 - kept.first[r]) >= kept.count[r]) x[i] = 0;
        }
    }

    __device__ __forceinline__ void wait_dq_empty(uint32_t n) {
        mbarrier_wait(&m->dq_empty[warpgroup], (n & 1) ^ 1);
    }
    __device__ __forceinline__ void give_dq() {
        fence_async_proxy();
        __syncwarp();
        if (lane == 0) mbarrier_arrive(&m->dq_full[warpgroup]);
    }
    /* The warp that adds comes to every step. */
    __device__ __forceinline__ void give_nothing(uint32_t n) {
        wait_dq_empty(n);
        give_dq();
    }
    /* Hands the own half of dQ to the warp that adds it. */
    __device__ __forceinline__ void store_dq(uint32_t n) {
        wait_dq_empty(n);
        float4 *const to = (float4 *)m->dq[warpgroup] + warp * 32 + lane;
#pragma unroll
        for (int i = 0; i < 8; i++)
            to[i * 128] = make_float4(dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]);
        give_dq();
    }

    __device__ __forceinline__ void release(uint64_t *barrier) {
        if (lane == 0) mbarrier_arrive(barrier);
    }
    /* The step's rows are read by nothing after its scores, unless dK and dV are wanted. */
    __device__ __forceinline__ void release_scored(uint32_t n) {
        if (KEYS) return;
        release(&m->q_empty[n % STEP_STAGES]);
        release(&m->d_o_empty[n % D_O_STAGES]);
    }
    /* Behind this dS^T can be read: of all keys, or without dQ of the own ones. */
    __device__ __forceinline__ void wait_ds() {
        if (QUERIES)
            named_barrier_sync(DS_BARRIER);
        else if (SHARES_DS)
            named_barrier_sync<128>(DS_BARRIER + warpgroup);
    }

    /* ---------------------------------------------------------------- steps */

    __device__ __forceinline__ static bool is_masked(const step_info *x) {
        return __shfl_sync(~0u, x->kind, 0) != STEP_FULL;
    }

    __device__ __forceinline__ void wait_q(uint32_t n) {
        mbarrier_wait(&m->q_full[n % STEP_STAGES], n / STEP_STAGES & 1);
    }
    __device__ __forceinline__ void wait_d_o(uint32_t n) {
        mbarrier_wait(&m->d_o_full[n % D_O_STAGES], n / D_O_STAGES & 1);
    }
    __device__ __forceinline__ void issue_s(uint32_t n) {
        issue_scores(s, m->k[0], m->q[n % STEP_STAGES][0]);
    }
    __device__ __forceinline__ void issue_dp(uint32_t n) {
        wait_d_o(n);
        issue_scores(dp, m->v[0], m->d_o[n % D_O_STAGES][0]);
    }

    /* Computes P^T and dS^T of step n, whose S^T is in flight. TRAILED: dK of the step before is in
     * flight behind it (BEFORE dP^T), or is issued here (AMID the exponentials: a thread has 64 of
     * them at head_dim 64, so half need not wait until dK can be queued). */
    template <bool TRAILED> __device__ __forceinline__ void finish_scores(uint32_t n) {
        constexpr bool DK = TRAILED && KEYS, BEFORE = DK && DS_IN_REGISTERS,
                       AMID = DK && !DS_IN_REGISTERS;
        const step_info *x = &m->steps[n % STEPS];
        issue_dp(n);
        const bool masked = is_masked(x);
        load_ahead(m->lse[n % STEP_STAGES]);
        warpgroup_wait<1 + BEFORE>();
        register_fence(s);
        exponentiate(n, 0, ROWS / 16);
        if (AMID) issue_dk(n - 1);
        exponentiate(n, ROWS / 16, ROWS / 8);
        if (BEFORE) {
            warpgroup_wait<1>();
            finish_dk(n - 1);
        }
        if (masked) apply(find_kept(x), s);
        load_ahead(m->delta[n % D_O_STAGES]);
        warpgroup_wait<AMID>();
        register_fence(dp);
        if (masked)
            differentiate<true>(n, active + TRAILED);
        else
            differentiate<false>(n, active + TRAILED);
        release_scored(n);
        if (AMID) {
            warpgroup_wait<0>();
            finish_dk(n - 1);
        }
    }

    /* The gradients of a step whose P^T and dS^T are there, dQ out of `units` of 16 keys from
     * `first` on. CHAINED: P^T and dS^T of the next step are computed meanwhile. No product is in
     * flight before or after: the compiler would not keep one in flight across a loop. Nor would it
     * while left operands of others are computed into registers (C7513). So dK with dS^T out of
     * registers precedes the next dP^T, and has ended before the next dS^T is computed. */
    template <bool CHAINED>
    __device__ __forceinline__ void finish_step(uint32_t n, int first, const int units, bool last) {
        constexpr bool DK = KEYS && (DS_IN_REGISTERS || !CHAINED);
        if (last) release(&m->v_empty);
        if (KEYS) issue_dv(n);
        wait_ds();
        if (QUERIES) issue_dq(first, units);
        /* S^T of the next step takes the registers of P^T (otherwise C7512). */
        if (KEYS && DS_IN_REGISTERS) end_dv<QUERIES>(n);
        if (CHAINED) {
            wait_q(n + 1);
            issue_s(n + 1);
        }
        if (DK) issue_dk(n);
        if (KEYS && !DS_IN_REGISTERS) end_dv<QUERIES + CHAINED + DK>(n);
        if (QUERIES) {
            warpgroup_wait<CHAINED + DK>();
            register_fence(dq);
        }
        if (last) release(&m->k_empty);
        if (QUERIES) store_dq(n);
        if (CHAINED) {
            finish_scores<true>(n + 1);
        } else if (KEYS) {
            warpgroup_wait<0>();
            finish_dk(n);
        }
    }

    /* Computes P^T and dS^T of a step in which not all keys take part. */
    __device__ __forceinline__ void score_masked(uint32_t n, const step_info *x) {
        issue_s(n);
        issue_dp(n);
        const kept_rows kept = find_kept(x);
        load_ahead(m->lse[n % STEP_STAGES]);
        warpgroup_wait<1>();
        register_fence(s);
        exponentiate(n, 0, ROWS / 8);
        apply(kept, s);
        load_ahead(m->delta[n % D_O_STAGES]);
        warpgroup_wait<0>();
        register_fence(dp);
        differentiate<true>(n, active);
        release_scored(n);
    }

    /* A step without products of the warpgroup. `last`: that of a column that has loaded keys. */
    __device__ __forceinline__ void idle_step(uint32_t n, bool last) {
        wait_d_o(n);
        release(&m->q_empty[n % STEP_STAGES]);
        release(&m->d_o_empty[n % D_O_STAGES]);
        if (!last) return;
        release(&m->k_empty);
        release(&m->v_empty);
    }

    /* A step in which the warpgroup's own keys contribute to nothing, and it only computes its half
     * of dQ. The other warpgroup has waited for dO, so dO is released after the barrier: dO has
     * fewer stages than Q, and before the barrier the other warpgroup may not have released the
     * stage's last rows. */
    __device__ __forceinline__ void other_step(uint32_t n, bool last) {
        if (!QUERIES) {
            idle_step(n, last);
            return;
        }
        release(&m->q_empty[n % STEP_STAGES]);
        if (last) release(&m->v_empty);
        wait_ds();
        release(&m->d_o_empty[n % D_O_STAGES]);
        issue_dq((1 - warpgroup) * 4, 4);
        warpgroup_wait<0>();
        register_fence(dq);
        if (last) release(&m->k_empty);
        store_dq(n);
    }

    /* dQ from some pieces of the keys. */
    __device__ __forceinline__ void partial_step(uint32_t n, const step_info *x, bool last) {
        const int begin = x->begin16, end = x->end16;
        score_masked(n, x);
        if (last) release(&m->v_empty);
        if (KEYS) issue_dv(n);
        wait_ds();
        if (KEYS) {
            issue_dk(n);
            end_dv<0>(n);
            finish_dk(n);
        }
        if (QUERIES) partial_dq(begin, end);
        if (last) release(&m->k_empty);
        if (QUERIES) store_dq(n);
    }
    /* dQ from the keys of `begin` to `end`, in units of 16. */
    __device__ __forceinline__ void partial_dq(const int begin, const int end) {
#pragma unroll
        for (int i = 0; i < 32; i++) dq[i] = 0;
        const uint32_t left = operand(m->ds[active % 2][Shape::ROW_CHUNKS == 2 ? warpgroup : 0]),
                       right = operand(m->k[Shape::CHUNKS == 2 ? warpgroup : 0]);
#pragma unroll 1
        for (int i = begin; i < end; i++) {
            register_fence(dq);
            warpgroup_arrive();
            wgmma<T, 64>::template ss<N_MAJOR, N_MAJOR>(
                dq, matrix_descriptor(left + (i * 16 * 128 >> 4)),
                matrix_descriptor(right + (i * 16 * 128 >> 4)), 1);
            warpgroup_commit();
            warpgroup_wait<0>();
            register_fence(dq);
        }
    }

    /* dV or dK of the own keys, added to from where another column left them, or left there for the
     * next one, in the order of the registers: each 8 rows of an accumulator, 8 consecutive keys,
     * have a place of their own. Not from the L1 cache, which does not see what other
     * multiprocessors write. */
    template <bool ADD>
    __device__ __forceinline__ void exchange(float (&x)[D / 2], float4 *const (&place)[2], int at) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (!place[r]) continue;
#pragma unroll
            for (int n = 0; n < D / 8; n += 2) {
                float *const own = x + 4 * n + 2 * r;
                float4 *const to = place[r] + at + n / 2 * 32;
                if (ADD) {
                    const float4 y = __ldcg(to);
                    own[0] += y.x;
                    own[1] += y.y;
                    own[4] += y.z;
                    own[5] += y.w;
                } else {
                    *to = make_float4(own[0], own[1], own[4], own[5]);
                }
            }
        }
    }

    /* Adds dK and dV of the own keys to those of the columns with the same keys and other query
     * heads or rows, in the order of the parts. True for the last one, which has the sums. Before
     * the first one, others may have used the place. */
    __device__ __forceinline__ bool add_up(const column_info *c, uint32_t before) {
        const uint32_t part = before % a->parts;
        const bool ends = part + 1 == a->parts;
        uint32_t *turn = (uint32_t *)a->sum_turns + c->sum * 2 + warpgroup;
        float4 *place[2] = {NULL, NULL};
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int key = warpgroup * 64 + warp * 16 + 8 * r;
            if (c->token[key] != NO_KEY)
                place[r] =
                    (float4 *)a->sums + ((int64_t)c->sum * COLUMN_KEYS + key) * (D / 2) + lane;
        }
        if (before > 0) {
            delay();
            if (threadIdx.x % 128 == 0)
                while (load_acquire(turn) != before) {}
            named_barrier_sync<128>(SUM_BARRIER + warpgroup);
        }
        if (part > 0) {
            exchange<true>(dv, place, 0);
            exchange<true>(dk, place, 2 * D);
        }
        if (!ends) {
            exchange<false>(dv, place, 0);
            exchange<false>(dk, place, 2 * D);
            __threadfence();
        }
        named_barrier_sync<128>(SUM_BARRIER + warpgroup);
        if (threadIdx.x % 128 == 0) store_release(turn, before + 1);
        return ends;
    }

    /* Writes dK and dV of the own keys. */
    __device__ __forceinline__ void store_column(const column_info *c) {
        const int32_t kv_head = c->kv_head, batch = c->kv_batch, before = c->before;
        const int64_t start = c->kv_start;
        if (before >= 0 && !add_up(c, (uint32_t)before)) return;
#pragma unroll
        for (int tensor = TESS_SM90_D_V; tensor >= TESS_SM90_D_K; tensor--) {
            const tess_sm90_tensor *t = &a->tensor[tensor];
            if (!t->address) continue;
            gradient_rows to = gradient_of(a, tensor, TESS_SM90_DKV, a->head_dim);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int32_t token = c->token[warpgroup * 64 + warp * 16 + lane / 4 + 8 * r];
                if (token != NO_KEY)
                    to.row[r] = element_at(t, batch, start + token, kv_head, 0, to.f32 ? 4 : 2);
            }
            if (tensor == TESS_SM90_D_V)
                store_gradient<T>(dv, 1.0f, to, lane);
            else
                store_gradient<T>(dk, a->scale, to, lane);
        }
    }

    __device__ __forceinline__ void run() {
        uint32_t loads = 0;
        bool loaded = false;
        active = 0;
        for (uint32_t n = 0;; n++) {
            const step_info *x = &m->steps[n % STEPS];
            wait_q(n);
            const int32_t kind = __shfl_sync(~0u, x->kind, 0);
            if (kind == STEP_STOP) {
                if (QUERIES) give_nothing(n);
                return;
            }
            int32_t ends = __shfl_sync(~0u, x->ends, 0);
            bool last = ends & STEP_LAST;
            bool works = true; /* in a step with products, the warpgroup has some of them */
            if (ends & STEP_FIRST) {
                if (KEYS) {
#pragma unroll
                    for (int i = 0; i < D / 2; i++) dk[i] = dv[i] = 0;
                }
                loaded = __shfl_sync(~0u, m->columns[x->column].loads, 0);
                if (loaded) {
                    mbarrier_wait(&m->k_full, loads & 1);
                    mbarrier_wait(&m->v_full, loads & 1);
                    loads++;
                }
            }
            if (kind == STEP_FULL || kind == STEP_MASKED) {
                issue_s(n);
                finish_scores<false>(n);
                while (ends & STEP_CHAINED) {
                    finish_step<true>(n, 0, 8, false);
                    active++;
                    n++;
                    x = &m->steps[n % STEPS];
                    ends = __shfl_sync(~0u, x->ends, 0);
                }
                last = ends & STEP_LAST;
                finish_step<false>(n, 0, 8, last);
            } else if (kind == STEP_HALF) {
                if (__shfl_sync(~0u, x->half, 0) == warpgroup) {
                    score_masked(n, x);
                    finish_step<false>(n, warpgroup * 4, 4, last);
                } else {
                    works = QUERIES;
                    other_step(n, last);
                }
            } else if (kind == STEP_PARTIAL) {
                partial_step(n, x, last);
            } else {
                idle_step(n, last && loaded);
                if (QUERIES) give_nothing(n);
            }
            active += works && kind != STEP_EMPTY;
            if (KEYS && last) store_column(&m->columns[__shfl_sync(~0u, x->column, 0)]);
        }
    }
};

} // namespace tess

#endif // TESS_CUDA_SM90_MAINLOOP_BACKWARD_CUH
