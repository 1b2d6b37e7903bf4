/* SPDX-License-Identifier: Apache-2.0 */
/* The pass over rows of the backward kernel for Ampere and later, which makes dQ: a thread block
 * takes one of forward's jobs, and walks over its keys as forward does (sm80_keys.cuh). */
#ifndef TESS_CUDA_SM80_BACKWARD_ROWS_CUH
#define TESS_CUDA_SM80_BACKWARD_ROWS_CUH

#include "backward_strips.h"
#include "sm80_backward_pass.cuh"
#include "sm80_keys.cuh"

namespace tess {

/* A row of the tile: LSE in base 2, Delta, its position, and its query block, counted from the
 * tile's first. */
struct alignas(16) tile_row {
    float lse, delta;
    int32_t position, block;
};

/* The head of shared memory; the matrices follow. */
template <int TILE, int STEP> struct alignas(128) rows_memory {
    key keys[3][STEP]; /* of this step, of the next one, and of the third */
    tile_row rows[TILE];
    job_words job;
    key_list list;
    uint32_t masked[3][STEP / 32];
};

template <typename Pass> struct rows_pass : Pass {
    typedef typename Pass::T T;
    typedef rows_memory<Pass::TILE, Pass::STEP> memory;
    static_assert(sizeof(memory) <= TESS_SM80_BACKWARD_ROWS_HEADER,
                  "the host asks for enough shared memory");
    using Pass::a, Pass::dp, Pass::lane, Pass::s, Pass::thread, Pass::warp;

    memory *m;
    float sums[Pass::UM][Pass::UN][4]; /* dQ */

    __device__ __forceinline__ bool is_dead(int e) const { return m->rows[e].lse == TESS_DEAD_LSE; }

    /* The offset of the tile's entry e in a tensor; negative past the last entry. */
    __device__ __forceinline__ int64_t place_of(int e, int64_t batch, int64_t token,
                                                int64_t head) const {
        const job_words *j = &m->job;
        const int32_t all = j->rows * j->heads;
        if (e >= all) return -1;
        return j->batch * batch + (j->q_start + j->row) * token + j->head * head +
               row_at(e, j->rows, all == j->rows, token, head);
    }

    __device__ __forceinline__ void copy_tile() const {
        const tess_args *c = &a->common;
        Pass::template copy<Pass::TILE>(
            Pass::tile_at(0), (const void *)a->q, a->wide & 1, [&](int e) -> const uint16_t * {
                if (is_dead(e)) return 0;
                return (const uint16_t *)a->q + place_of(e, c->q_batch, c->q_token, c->q_head);
            });
        Pass::template copy<Pass::TILE>(
            Pass::tile_at(1), (const void *)a->d_o, a->wide & 8, [&](int e) -> const uint16_t * {
                if (is_dead(e)) return 0;
                return (const uint16_t *)a->d_o + place_of(e, c->o_batch, c->o_token, c->o_head);
            });
    }

    __device__ __forceinline__ void copy_items(int stage, int list) const {
        const tess_args *c = &a->common;
        const job_words *j = &m->job;
        const int64_t kv_head = j->head / (int32_t)c->group;
        const uint16_t *k = (const uint16_t *)a->k + j->kv_batch * c->k_batch +
                            j->kv_start * c->k_token + kv_head * c->k_head,
                       *v = (const uint16_t *)a->v + j->kv_batch * c->v_batch +
                            j->kv_start * c->v_token + kv_head * c->v_head;
        Pass::template copy<Pass::STEP>(Pass::items_at(stage, 0), (const void *)a->k, a->wide & 2,
                                        [&](int i) -> const uint16_t * {
                                            const int32_t token = m->keys[list][i].token;
                                            return token == NO_TOKEN ? 0 : k + token * c->k_token;
                                        });
        Pass::template copy<Pass::STEP>(Pass::items_at(stage, 1), (const void *)a->v, a->wide & 4,
                                        [&](int i) -> const uint16_t * {
                                            const int32_t token = m->keys[list][i].token;
                                            return token == NO_TOKEN ? 0 : v + token * c->v_token;
                                        });
    }

    /* Writes the key list of a step. */
    __device__ __forceinline__ void list_keys(int step, int list) const {
        const uint32_t *tables = (const uint32_t *)a->tables;
        if (thread >= Pass::STEP || step >= m->list.stages) return;
        const bool masked = step < m->list.masked_stages;
        m->keys[list][thread] =
            m->list.find((uint32_t)step * Pass::STEP + thread, tables + a->common.entries_at,
                         tables + a->common.bits_at, masked);
        if (thread % 32 == 0) m->masked[list][thread / 32] = masked;
    }

    /* dS of a step, from S and dP. */
    template <bool MASKED> __device__ __forceinline__ void weigh(int list) const {
        const job_words *j = &m->job;
        const uint32_t flags = j->flags;
        const int32_t sinks = flags & TESS_CLASS_WINDOW ? j->sinks : 0;
#pragma unroll
        for (int t = 0; t < Pass::SM; t++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const tile_row row = m->rows[Pass::entry_of(t, r)];
                row_bounds b;
                if (MASKED)
                    b = bounds_of(row.position, row.block, flags, j->kv_len, j->left, j->right);
#pragma unroll
                for (int n = 0; n < Pass::SN; n++) {
                    float d[2];
#pragma unroll
                    for (int c = 0; c < 2; c++) {
                        const float p =
                            exp2_fast(fmaf(s[t][n][2 * r + c], a->scale_log2, -row.lse));
                        d[c] = p * (dp[t][n][2 * r + c] - row.delta);
                        if (MASKED && !b.keeps(m->keys[list][Pass::item_of(n) + c], sinks))
                            d[c] = 0;
                    }
                    Pass::put(0, t, n, r, d[0], d[1]);
                }
            }
    }

    __device__ __forceinline__ void find_row(int e) const {
        const tess_args &args = a->common;
        const uint32_t *tables = (const uint32_t *)a->tables;
        const job_words *j = &m->job;
        tile_row row = {TESS_DEAD_LSE, 0, 0, 0};
        if (e < j->rows * j->heads) {
            const int32_t own = e % j->rows;
            const float *strips =
                (const float *)a->workspace +
                tess_strip_at(
                    tables[args.items_at + blockIdx.x * TESS_JOB_WORDS + TESS_WORD_JOB_SEQUENCE],
                    j->head + e / j->rows, j->row + own, tables, args);
            row.lse = strips[0];
            row.delta = strips[TESS_TO_DELTA];
            row.position = j->q_first + j->row + own;
            row.block = floor_div(row.position, args.block) - m->list.first_block;
        }
        m->rows[e] = row;
    }

    __device__ __forceinline__ void prologue() {
        const tess_args *c = &a->common;
        const uint32_t *tables = (const uint32_t *)a->tables;
        if (thread == 0) {
            job_words j;
            j.read(table_words(tables, c, blockIdx.x));
            m->job = j;
            m->list.make(&j, tables + c->entries_at, c->block, Pass::STEP);
        }
        __syncthreads();
        for (int e = thread; e < Pass::TILE; e += Pass::THREADS) find_row(e);
        list_keys(0, 0);
        list_keys(1, 1);
        __syncthreads();
        clear(sums);
    }

    __device__ __forceinline__ void epilogue() {
        const tess_args *c = &a->common;
        Pass::store(
            sums, (void *)a->out, a->wide & 16,
            [&](int e) { return place_of(e, c->lse_batch, c->lse_token, c->lse_head); },
            [&](int e) { return is_dead(e) ? 0.0f : c->scale; });
    }

    __device__ __forceinline__ void run() {
        prologue();
        const int32_t steps = __shfl_sync(~0u, m->list.stages, 0);
        if (steps > 0) {
            copy_tile();
            copy_items(0, 0);
        }
        int list = 0; /* of this step's keys */
        for (int32_t i = 0; i < steps; i++) {
            const int next = list == 2 ? 0 : list + 1, third = next == 2 ? 0 : next + 1,
                      stage = Pass::STAGES == 2 ? i & 1 : 0;
            cp_async_wait_all();
            __syncthreads();
            if (Pass::STAGES == 2 && i + 1 < steps) copy_items(stage ^ 1, next);
            Pass::score(s, stage, 0);
            Pass::score(dp, stage, 1);
            if (m->masked[list][0] | m->masked[list][Pass::STEP / 32 - 1])
                weigh<true>(list);
            else
                weigh<false>(list);
            __syncthreads();
            list_keys(i + 2, third);
            Pass::add_items(sums, 0, stage, 0);
            if (Pass::STAGES == 1 && i + 1 < steps) {
                __syncthreads();
                copy_items(0, next);
            }
            list = next;
        }
        epilogue();
    }
};

} // namespace tess

#endif // TESS_CUDA_SM80_BACKWARD_ROWS_CUH
