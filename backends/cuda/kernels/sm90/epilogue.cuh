/* SPDX-License-Identifier: Apache-2.0 */
/* The epilogue of the kernel for Hopper: a consumer divides O by row_sum and leaves it in shared
 * memory, in the place of Q. The fourth producer warp writes it from there. */
#ifndef TESS_CUDA_SM90_EPILOGUE_CUH
#define TESS_CUDA_SM90_EPILOGUE_CUH

#include "ptx.cuh"
#include "softmax.cuh"
#include "tile.cuh"

namespace tess {

/* A thread's place among the consumers. `row` is its first row in the tile; its other row is 8
 * below. */
struct consumer_place {
    int warpgroup, warp, lane, row;
};

template <typename T, typename Shape> struct epilogue {
    static constexpr int D = Shape::D, CHUNK_BYTES = Shape::ROWS * 128;

    /* Divides O by row_sum and stores it in shared memory. A warp writes its own 16 rows in the
     * place of the same rows of Q. */
    static __device__ __forceinline__ void store_o_shared(shared_memory<Shape> *m, int q_stage,
                                                          const consumer_place &at,
                                                          const float (&row_sum)[2],
                                                          float (&o)[D / 2]) {
        const float inverse[2] = {reciprocal(row_sum[0]), reciprocal(row_sum[1])};
#pragma unroll
        for (int x = 0; x < D / 2; x++) o[x] *= inverse[x / 2 % 2];
        /* a row without keys becomes 0, whatever its registers hold */
        if (__any_sync(~0u, row_sum[0] == 0 || row_sum[1] == 0)) {
#pragma unroll
            for (int x = 0; x < D / 2; x++) o[x] = row_sum[x / 2 % 2] == 0 ? 0.0f : o[x];
        }
        uint8_t *rows = m->q[q_stage][0] + (at.warpgroup * 64 + at.warp * 16) * 128;
        const int matrix_row = at.lane % 16; /* of the 8 x 8 matrices that this lane addresses */
#pragma unroll
        for (int x = 0; x < D / 16; x++) {
            const int unit = 2 * x + at.lane / 16;
            stmatrix(rows + unit / 8 * CHUNK_BYTES + matrix_row * 128 +
                         ((unit % 8) ^ (matrix_row % 8)) * 16,
                     pack<T>(o[8 * x], o[8 * x + 1]), pack<T>(o[8 * x + 2], o[8 * x + 3]),
                     pack<T>(o[8 * x + 4], o[8 * x + 5]), pack<T>(o[8 * x + 6], o[8 * x + 7]));
        }
        fence_async_proxy();
    }

    /* Writes row_max (m) and row_sum (l) of a row into a partial. Exponentials are relative to the
     * rounded product of m and scale_log2, so l is corrected for the rounding. */
    static __device__ __forceinline__ void store_max_sum(const softmax_state &softmax, int r,
                                                         float *to, uint32_t partial_rows) {
        const float row_max = softmax.row_max[r], row_sum = softmax.row_sum[r];
        to[0] = row_max;
        to[partial_rows] =
            row_sum == 0 || softmax.is_large(row_max)
                ? row_sum
                : row_sum * exp2_fast(-fmaf(row_max, softmax.scale_log2, -softmax.max_scaled[r]));
    }

    static __device__ __forceinline__ void store_partial_o(const tess_args *c,
                                                           const consumer_place &at, float *partial,
                                                           int32_t all_rows,
                                                           const float (&o)[D / 2]) {
        const uint32_t head_dim = c->head_dim;
#pragma unroll
        for (int x = 0; x < D / 2; x += 2) {
            const int element = x / 4 * 8 + at.lane % 4 * 2, in_tile = at.row + x / 2 % 2 * 8;
            if (element >= (int)head_dim || in_tile >= all_rows) continue;
            *(float2 *)(partial + (uint64_t)in_tile * head_dim + element) =
                make_float2(o[x], o[x + 1]);
        }
    }

    /* Writes LSE, or a partial: O, row_max and row_sum. */
    static __device__ __forceinline__ void store_lse(const tess_sm90_args *a, const tile_info *t,
                                                     const consumer_place &at, float scale,
                                                     const softmax_state &softmax,
                                                     const float (&o)[D / 2]) {
        const tess_args *c = &a->common;
        const int32_t rows = t->rows, all_rows = rows * t->heads, partial = t->partial;
        float *const to = (float *)a->workspace + c->partials_at +
                          (uint64_t)(uint32_t)partial * c->partial_rows * (c->head_dim + 2);
        if (partial != NO_PARTIAL || (c->flags & TESS_ARGS_LSE)) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const float lse =
                    softmax.row_sum[r] == 0
                        ? MINUS_INFINITY
                        : softmax.row_max[r] * scale + log2_fast(softmax.row_sum[r]) * LN_2;
                const int in_tile = at.row + 8 * r;
                if (at.lane % 4 != 0 || in_tile >= all_rows) continue;
                if (partial != NO_PARTIAL)
                    store_max_sum(softmax, r,
                                  to + (uint64_t)c->partial_rows * c->head_dim + in_tile,
                                  c->partial_rows);
                else
                    ((float *)
                         a->lse)[t->batch * c->lse_batch + (t->q_start + t->row) * c->lse_token +
                                 t->head * c->lse_head +
                                 row_at(in_tile, rows, t->heads == 1, c->lse_token, c->lse_head)] =
                        lse;
            }
        }
        if (partial != NO_PARTIAL) store_partial_o(c, at, to, all_rows, o);
    }
};

/* The fourth producer warp writes O from shared memory and releases the stages of Q. It writes
 * boxes of BOX_ROWS rows by TMA, and other rows by plain stores of ROW_LANES lanes each. */
template <typename Shape>
__device__ __forceinline__ void write_o(shared_memory<Shape> *m, const tess_tensor_map *o_map,
                                        const tess_sm90_args *a) {
    constexpr int CHUNKS = Shape::CHUNKS, ROWS = Shape::ROWS, Q_STAGES = Shape::Q_STAGES;
    constexpr int BOX_ROWS = 16, ROW_LANES = CHUNKS * 8 < 32 ? CHUNKS * 8 : 32,
                  AT_ONCE = 32 / ROW_LANES,
                  AHEAD = Shape::CONSUMERS == 2 ? 4 : 2; /* loads in flight; registers are few */
    const tess_args *c = &a->common;
    const int lane = threadIdx.x % 32, units = (int)c->head_dim / 8, unit = lane % ROW_LANES;
    grid_dependency_wait();
    grid_dependents_launch();
    for (uint32_t tile = 0;; tile++) {
        const tile_info *t = &m->tiles[tile % TILES];
        mbarrier_wait(&m->tile_full[tile % TILES], tile / TILES & 1);
        if (__shfl_sync(~0u, t->stages, 0) < 0) break;
        const int q_stage = tile % Q_STAGES;
        const int32_t rows = t->rows, head = t->head, batch = t->batch;
        const int32_t all = __shfl_sync(~0u, t->partial == NO_PARTIAL ? rows * t->heads : 0, 0);
        const int64_t first = t->q_start + t->row;
        const bool one_head = t->heads == 1;
        const uint32_t rows_inverse = one_head ? 0 : t->rows_inverse;
        /* A box may reach past the rows only where that is outside of the tensor: TMA leaves those
         * rows out. */
        const bool boxed = (a->tma & 4) && one_head && lane < ROWS / BOX_ROWS &&
                           lane * BOX_ROWS < all &&
                           (lane * BOX_ROWS + BOX_ROWS <= all || t->ends_tensor);
        const uint32_t boxes = __ballot_sync(~0u, boxed);
        mbarrier_wait(&m->o_full[q_stage], tile / Q_STAGES & 1);
        if (boxed) {
#pragma unroll
            for (int chunk = 0; chunk < CHUNKS; chunk++)
                tma_store(o_map, m->q[q_stage][chunk] + lane * BOX_ROWS * 128, chunk * 64,
                          (int32_t)first + lane * BOX_ROWS, head, batch);
            tma_store_commit();
        }
        /* The next tile of Q waits for this stage: skip the rows that boxes hold, and load several
         * rows before the first of them is stored. */
        const bool none = boxes == (1u << (all + BOX_ROWS - 1) / BOX_ROWS) - 1 || unit >= units;
        uint16_t *const o = (uint16_t *)a->o + batch * c->o_batch + first * c->o_token +
                            head * c->o_head + unit * 8;
        for (int next = none ? all : lane / ROW_LANES; next < all; next += AHEAD * AT_ONCE) {
            uint4 x[AHEAD];
#pragma unroll
            for (int n = 0; n < AHEAD; n++) {
                const int r = min(next + n * AT_ONCE, ROWS - 1);
                x[n] = *(const uint4 *)(m->q[q_stage][unit / 8] + r * 128 +
                                        ((unit % 8) ^ (r % 8)) * 16);
            }
#pragma unroll
            for (int n = 0; n < AHEAD; n++) {
                const int r = next + n * AT_ONCE, h = (uint32_t)r * rows_inverse >> 20;
                if (r >= all || (boxes >> r / BOX_ROWS & 1)) continue;
                write_unit(o + (r - h * rows) * c->o_token + h * c->o_head, x[n], a->wide & 4);
            }
        }
        tma_store_wait_read();
        /* plain loads have read what TMA will overwrite with the next tile of Q */
        fence_async_proxy();
        __syncwarp();
        if (lane == 0) {
            mbarrier_arrive(&m->q_empty[q_stage]);
            mbarrier_arrive(&m->tile_empty[tile % TILES]);
        }
    }
    tma_store_wait();
}

} // namespace tess

#endif // TESS_CUDA_SM90_EPILOGUE_CUH
