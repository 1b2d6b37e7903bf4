/* SPDX-License-Identifier: Apache-2.0 */
/* The producer warps of backward on Hopper: one walks columns and loads the rows of each step, one
 * loads K and V of each column, and one adds dQ to its accumulators. */
#ifndef TESS_CUDA_SM90_LOAD_BACKWARD_CUH
#define TESS_CUDA_SM90_LOAD_BACKWARD_CUH

#include "load.cuh"
#include "schedule_backward.cuh"

namespace tess {

/* Copies a step's rows by plain loads to where a TMA load would have put them. Rows that are not
 * `live` become 0 (a bit for each row of a group of 32), and so do elements past head_dim. */
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

/* The first producer warp. */
template <typename Shape> struct step_loader {
    static constexpr int ROWS = Shape::ROWS, GROUPS = ROWS / 32;

    backward_memory<Shape> *m;
    const tess_sm90_backward_maps *maps;
    const tess_sm90_backward_args *a;
    int lane;
    column_walk<Shape> walk;

    /* Loads rows of Q or of dO, with their LSE or Delta, into a stage. */
    __device__ __forceinline__ void load_rows(uint8_t *to, uint64_t *full, int tensor,
                                              const tess_tensor_map *map, const step_info *x,
                                              const uint32_t (&live)[GROUPS], bool boxed,
                                              int32_t batch, int64_t token) {
        const tess_sm90_tensor *t = &a->tensor[tensor];
        if (boxed && (a->tma >> tensor & 1)) {
            __syncwarp();
            if (lane == 0) {
                mbarrier_arrive_expect_tx(full, Shape::CHUNKS * Shape::ROW_BYTES);
#pragma unroll
                for (int chunk = 0; chunk < Shape::CHUNKS; chunk++)
                    tma_load(to + chunk * Shape::ROW_BYTES, map, full, chunk * 64, (int32_t)token,
                             x->head, batch);
            }
        } else {
            copy_live_rows<Shape>(to, (const uint16_t *)element_at(t, batch, token, x->head, 0, 2),
                                  t->token, live, a->head_dim, a->wide >> tensor & 1, lane);
            fence_async_proxy();
            __syncwarp();
            if (lane == 0) mbarrier_arrive(full);
        }
    }

    /* Loads step n, whose description is complete. */
    __device__ __forceinline__ void load_step(uint32_t n) {
        const int stage = n % STEP_STAGES;
        const uint32_t parity = (n / STEP_STAGES & 1) ^ 1;
        step_info *x = &m->steps[n % STEPS];
        const int32_t kind = x->kind;
        if (kind == STEP_EMPTY || kind == STEP_STOP) {
            mbarrier_wait(&m->q_empty[stage], parity);
            mbarrier_wait(&m->d_o_empty[stage], parity);
            __syncwarp();
            if (lane == 0) {
                mbarrier_arrive(&m->q_full[stage]);
                mbarrier_arrive(&m->d_o_full[stage]);
            }
            return;
        }
        const float *rows = (const float *)a->rows + (uint64_t)x->strip * (2 * ROWS);
        float lse[GROUPS], delta[GROUPS];
        uint32_t live[GROUPS];
        bool all_live = true;
#pragma unroll
        for (int group = 0; group < GROUPS; group++) {
            lse[group] = rows[group * 32 + lane];
            delta[group] = rows[ROWS + group * 32 + lane];
        }
        const int32_t batch = walk.sequence[TESS_WORD_SEQUENCE_BATCH];
        const int64_t start = word64(walk.sequence + TESS_WORD_SEQUENCE_Q_START),
                      token = start + x->row;
        /* A box that reaches past the sequence is read only where that is past the map, too. */
        const bool inside = x->row + ROWS <= walk.q_len,
                   ends = (uint32_t)(start + walk.q_len) == a->q_tokens;
#pragma unroll
        for (int group = 0; group < GROUPS; group++) {
            live[group] = __ballot_sync(~0u, lse[group] != -MINUS_INFINITY);
            all_live &= live[group] == ~0u;
        }
        /* the rows behind the last one have no LSE either */
        if (!inside && ends) {
            all_live = true;
#pragma unroll
            for (int group = 0; group < GROUPS; group++) {
                const int32_t there = walk.q_len - x->row - group * 32;
                const uint32_t absent = there >= 32 ? 0 : there <= 0 ? ~0u : ~0u << there;
                all_live &= (live[group] | absent) == ~0u;
            }
        }
        const bool boxed = (inside || ends) && all_live;
        mbarrier_wait(&m->q_empty[stage], parity);
#pragma unroll
        for (int group = 0; group < GROUPS; group++) m->lse[stage][group * 32 + lane] = lse[group];
        load_rows(m->q[stage][0], &m->q_full[stage], TESS_SM90_Q, &maps->q, x, live, boxed, batch,
                  token);
        mbarrier_wait(&m->d_o_empty[stage], parity);
#pragma unroll
        for (int group = 0; group < GROUPS; group++)
            m->delta[stage][group * 32 + lane] = delta[group];
        load_rows(m->d_o[stage][0], &m->d_o_full[stage], TESS_SM90_D_O, &maps->d_o, x, live, boxed,
                  batch, token);
    }

    /* Hands a column to the warp that loads K and V, and to the consumers. */
    __device__ __forceinline__ void describe_column(column_info *to, const uint32_t *column,
                                                    bool loads) {
        const uint32_t keys = TESS_HIGH_HALF(column[TESS_WORD_COLUMN_KEYS]);
#pragma unroll
        for (int n = 0; n < COLUMN_KEYS / 32; n++) {
            const uint32_t k = n * 32 + lane;
            to->token[k] = k < keys ? column_token(column, a->block, k) : NO_KEY;
        }
        if (lane != 0) return;
        to->keys = keys;
        to->loads = loads;
        to->kv_head = TESS_LOW_HALF(column[TESS_WORD_COLUMN_KV_HEAD]);
        to->kv_batch = walk.sequence[TESS_WORD_SEQUENCE_KV_BATCH];
        to->kv_len = walk.sequence[TESS_WORD_SEQUENCE_KV_LEN];
        to->kv_start = word64(walk.sequence + TESS_WORD_SEQUENCE_KV_START);
    }

    __device__ __forceinline__ void publish_column(uint32_t number) {
        __syncwarp();
        if (lane == 0) mbarrier_arrive(&m->column_full[number % COLUMNS]);
    }

    __device__ __forceinline__ void run() {
        uint32_t n = 0, number = 0, item = blockIdx.x;
        for (; item < a->items; number++) {
            const uint32_t *column =
                (const uint32_t *)a->tables + a->items_at + (uint64_t)item * TESS_COLUMN_WORDS;
            uint32_t next;
            if (lane == 0) next = atomicAdd((uint32_t *)a->counter, 1u) + gridDim.x;
            walk.begin_column(column);
            step_info *x = &m->steps[n % STEPS];
            const bool any = walk.next(x);
            if (!any && lane == 0) x->kind = STEP_EMPTY;
            describe_column(&m->columns[number % COLUMNS], column, any);
            publish_column(number);
            for (bool first = true, more = any;; first = false, n++) {
                more = more && walk.next(&m->steps[(n + 1) % STEPS]);
                x = &m->steps[n % STEPS];
                if (lane == 0) {
                    x->ends = (first ? STEP_FIRST : 0) | (more ? 0 : STEP_LAST);
                    x->column = number % COLUMNS;
                }
                __syncwarp();
                load_step(n);
                if (!more) break;
            }
            n++;
            item = __shfl_sync(~0u, next, 0);
        }
        if (lane == 0) {
            m->steps[n % STEPS].kind = STEP_STOP;
            m->columns[number % COLUMNS].keys = -1;
        }
        publish_column(number);
        load_step(n);
    }
};

/* The second one: K and V. */
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

/* The third one: adds dQ of each step to its accumulators. */
template <typename Shape>
__device__ __forceinline__ void add_dq(backward_memory<Shape> *m, const tess_sm90_backward_args *a,
                                       int lane) {
    const bool wanted = a->tensor[TESS_SM90_D_Q].address != 0;
    for (uint32_t n = 0;; n++) {
        const step_info *x = &m->steps[n % STEPS];
        mbarrier_wait(&m->dq_full[0], n & 1);
        const int32_t kind = x->kind;
        if (kind == STEP_STOP) break;
        float *to = (float *)a->accumulators + (uint64_t)x->strip * (2 * Shape::DQ_FLOATS);
        const bool adds = wanted && kind != STEP_EMPTY && lane == 0;
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
    }
    tma_store_wait();
}

} // namespace tess

#endif // TESS_CUDA_SM90_LOAD_BACKWARD_CUH
