/* SPDX-License-Identifier: Apache-2.0 */
/* The warps of backward on Hopper that copy: one loads the rows of each step, one K and V of each
 * column, and one adds dQ to its accumulators. */
#ifndef TESS_CUDA_SM90_LOAD_BACKWARD_CUH
#define TESS_CUDA_SM90_LOAD_BACKWARD_CUH

#include "load.cuh"
#include "schedule_backward.cuh"

namespace tess {

/* Copies a step's rows by plain loads to where a TMA load would put them. Rows that are not `live`
 * become 0 (a bit for each row of a group of 32), and so do elements past head_dim. */
template <typename Shape>
__device__ __forceinline__ void copy_live_rows(uint8_t *to, const uint16_t *from, int64_t stride,
                                               const uint32_t (&live)[Shape::ROWS / 32],
                                               int32_t head_dim, bool wide, int lane) {
    for (int group = 0; group < Shape::ROWS / 32; group++) {
        for (int n = lane; n < 32 * Shape::D / 8; n += 32) {
            const int own = n / (Shape::D / 8), unit = n % (Shape::D / 8), row = group * 32 + own;
            uint4 x = make_uint4(0, 0, 0, 0);
            if ((live[group] >> own & 1) && unit * 8 < head_dim)
                x = read_unit(from + row * stride + unit * 8, wide);
            *(uint4 *)(to + unit / 8 * Shape::ROW_BYTES + row * 128 +
                       ((unit % 8) ^ (row % 8)) * 16) = x;
        }
    }
}

/* The warp that loads the rows of each step. */
template <typename Shape> struct row_loader {
    static constexpr int ROWS = Shape::ROWS, GROUPS = ROWS / 32;

    backward_memory<Shape> *m;
    const tess_sm90_backward_maps *maps;
    const tess_sm90_backward_args *a;
    int lane;

    /* Loads rows of Q or of dO into a stage. */
    __device__ __forceinline__ void load_rows(uint8_t *to, uint64_t *full, int tensor,
                                              const tess_tensor_map *map, const step_info *x,
                                              const uint32_t (&live)[GROUPS], bool boxed) {
        const tess_sm90_tensor *t = &a->tensor[tensor];
        if (boxed && (a->tma >> tensor & 1)) {
            __syncwarp();
            if (lane == 0) {
                mbarrier_arrive_expect_tx(full, Shape::CHUNKS * Shape::ROW_BYTES);
#pragma unroll
                for (int chunk = 0; chunk < Shape::CHUNKS; chunk++)
                    tma_load(to + chunk * Shape::ROW_BYTES, map, full, chunk * 64,
                             (int32_t)x->token, x->head, x->batch);
            }
            __syncwarp();
        } else {
            copy_live_rows<Shape>(
                to, (const uint16_t *)element_at(t, x->batch, x->token, x->head, 0, 2), t->token,
                live, a->head_dim, a->wide >> tensor & 1, lane);
            fence_async_proxy();
            __syncwarp();
            if (lane == 0) mbarrier_arrive(full);
        }
    }

    /* Waits until the stage of step n is free. */
    __device__ __forceinline__ void wait_empty_q(uint32_t n) {
        mbarrier_wait(&m->q_empty[n % STEP_STAGES], (n / STEP_STAGES & 1) ^ 1);
    }
    __device__ __forceinline__ void wait_empty_d_o(uint32_t n) {
        mbarrier_wait(&m->d_o_empty[n % D_O_STAGES], (n / D_O_STAGES & 1) ^ 1);
    }

    __device__ __forceinline__ void load_step(uint32_t n, const step_info *x) {
        const int q = n % STEP_STAGES, d_o = n % D_O_STAGES;
        const float *rows = (const float *)a->rows + (uint64_t)x->strip * (2 * ROWS) + lane;
        float lse[GROUPS], delta[GROUPS];
        uint32_t live[GROUPS];
        bool boxed = x->boxed;
#pragma unroll
        for (int group = 0; group < GROUPS; group++) {
            lse[group] = rows[group * 32];
            delta[group] = rows[ROWS + group * 32];
        }
        /* Rows that contribute nothing may hold anything, so a box must not bring them; past the
         * tensor's end a box brings zeros. */
#pragma unroll
        for (int group = 0; group < GROUPS; group++) {
            const bool dead = lse[group] == -MINUS_INFINITY;
            live[group] = __ballot_sync(~0u, !dead);
            boxed &= !__any_sync(~0u, dead && group * 32 + lane < x->rows);
        }
        wait_empty_q(n);
#pragma unroll
        for (int group = 0; group < GROUPS; group++)
            m->lse[q][Shape::place_of_row(group * 32 + lane)] = lse[group];
        load_rows(m->q[q][0], &m->q_full[q], TESS_SM90_Q, &maps->q, x, live, boxed);
        wait_empty_d_o(n);
#pragma unroll
        for (int group = 0; group < GROUPS; group++)
            m->delta[d_o][Shape::place_of_row(group * 32 + lane)] = delta[group];
        load_rows(m->d_o[d_o][0], &m->d_o_full[d_o], TESS_SM90_D_O, &maps->d_o, x, live, boxed);
    }

    __device__ __forceinline__ void run() {
        for (uint32_t n = 0;; n++) {
            const step_info *x = &m->steps[n % STEPS];
            mbarrier_wait(&m->step_full[n % STEPS], n / STEPS & 1);
            const int32_t kind = x->kind;
            if (kind == STEP_EMPTY || kind == STEP_STOP) {
                wait_empty_q(n);
                wait_empty_d_o(n);
                __syncwarp();
                if (lane == 0) {
                    mbarrier_arrive(&m->q_full[n % STEP_STAGES]);
                    mbarrier_arrive(&m->d_o_full[n % D_O_STAGES]);
                }
                if (kind == STEP_STOP) return;
            } else {
                load_step(n, x);
            }
            __syncwarp();
            if (lane == 0) mbarrier_arrive(&m->step_done[n % STEPS]);
        }
    }
};

/* The warp that loads K and V. */
template <typename Shape>
__device__ __forceinline__ void load_keys(backward_memory<Shape> *m,
                                          const tess_sm90_backward_maps *maps,
                                          const tess_sm90_backward_args *a, int lane) {
    constexpr int CHUNKS = Shape::CHUNKS;
    uint32_t loads = 0;
    for (uint32_t number = 0;; number++) {
        const column_info *x = &m->columns[number % COLUMNS];
        mbarrier_wait(&m->column_full[number % COLUMNS], number / COLUMNS & 1);
        const int32_t keys = x->keys;
        if (keys < 0) return;
        if (!x->loads) continue;
        const int piece = 1 << a->piece_shift, k = lane << a->piece_shift;
        const bool own = k < COLUMN_KEYS, absent = k >= keys;
        const int32_t token = own ? x->token[k] : NO_KEY,
                      valid = min(piece, keys - k); /* negative: none */
        const int64_t start = x->kv_start;
        const bool ends = (uint32_t)(start + x->kv_len) == a->kv_tokens,
                   cut = own && !absent && valid < piece && !(ends && token + valid == x->kv_len);
        for (int tensor = TESS_SM90_K; tensor <= TESS_SM90_V; tensor++) {
            const bool of_k = tensor == TESS_SM90_K;
            uint64_t *full = of_k ? &m->k_full : &m->v_full;
            uint8_t *to = of_k ? m->k[0] : m->v[0];
            const tess_sm90_tensor *t = &a->tensor[tensor];
            const uint32_t plain = __ballot_sync(~0u, own && (!(a->tma >> tensor & 1) || cut));
            mbarrier_wait(of_k ? &m->k_empty : &m->v_empty, (loads & 1) ^ 1);
            if (plain) {
                for (int p = 0; p < COLUMN_KEYS >> a->piece_shift; p++) {
                    if (!(plain >> p & 1)) continue;
                    const int32_t first = __shfl_sync(~0u, token, p);
                    copy_rows<CHUNKS>(to, Shape::KEY_BYTES, p * piece,
                                      (const uint16_t *)element_at(t, x->kv_batch, start + first,
                                                                   x->kv_head, 0, 2),
                                      t->token, piece, __shfl_sync(~0u, valid, p), a->head_dim,
                                      a->wide >> tensor & 1);
                }
                cp_async_wait_all();
                fence_async_proxy();
            }
            __syncwarp();
            if (lane == 0)
                mbarrier_arrive_expect_tx(full, ((COLUMN_KEYS >> a->piece_shift) - __popc(plain)) *
                                                    piece * 128 * CHUNKS);
            __syncwarp();
            if (own && !(plain >> lane & 1)) {
#pragma unroll
                for (int chunk = 0; chunk < CHUNKS; chunk++)
                    tma_load(to + chunk * Shape::KEY_BYTES + k * 128, of_k ? &maps->k : &maps->v,
                             full, chunk * 64, absent ? NO_KEY : (int32_t)start + token, x->kv_head,
                             x->kv_batch);
            }
        }
        loads++;
    }
}

/* Waits until it is the column's turn at a strip. */
__device__ __forceinline__ void wait_turn(const uint32_t *word, uint32_t wanted) {
    delay();
    while (load_acquire(word) != wanted) {}
    fence_proxies();
}
/* Gives the turn to the next column, once everything that was added is in memory. */
__device__ __forceinline__ void leave_turn(uint32_t *word, uint32_t leaves) {
    delay();
    tma_store_wait();
    fence_proxies();
    store_release(word, leaves);
}

/* The warp that adds dQ of each step to its accumulators. */
template <typename Shape>
__device__ __forceinline__ void add_dq(backward_memory<Shape> *m, const tess_sm90_backward_args *a,
                                       int lane) {
    for (uint32_t n = 0;; n++) {
        const step_info *x = &m->steps[n % STEPS];
        mbarrier_wait(&m->dq_full[0], n & 1);
        const int32_t kind = x->kind;
        if (kind == STEP_STOP) break;
        const bool comes = x->has_strip && lane == 0, adds = comes && kind != STEP_EMPTY;
        const uint32_t strip = x->strip, leaves = x->leave;
        float *to = (float *)a->accumulators + (uint64_t)strip * (2 * Shape::DQ_FLOATS);
        uint32_t *const word = (uint32_t *)a->turns + strip;
        if (comes && a->turns) wait_turn(word, x->wait);
        if (adds) {
            bulk_add(to, m->dq[0], Shape::DQ_FLOATS * 4);
            tma_store_commit();
        }
        mbarrier_wait(&m->dq_full[1], n & 1);
        if (adds) {
            bulk_add(to + Shape::DQ_FLOATS, m->dq[1], Shape::DQ_FLOATS * 4);
            tma_store_commit();
            tma_store_wait_read();
        }
        __syncwarp();
        if (lane == 0) {
            mbarrier_arrive(&m->dq_empty[0]);
            mbarrier_arrive(&m->dq_empty[1]);
        }
        if (comes && a->turns) leave_turn(word, leaves);
    }
    tma_store_wait();
}

} // namespace tess

#endif // TESS_CUDA_SM90_LOAD_BACKWARD_CUH
