/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the passes of the backward kernel for Ampere and later. A thread block holds a tile of
 * rows or keys, and walks over the items of the other side in steps:
 *
 *     pass       tile           items          sums of the tile
 *     rows       Q, dO          K, V           dQ += dS K
 *     columns    K, V           Q, dO          dK += dS^T Q, dV += P^T dO
 *
 * S and dP are products of the tile's two tensors with those of the items. P and dS go through
 * shared memory as [tile][item], rounded to the tensors' type: warps divide the sums in another way
 * than the scores, so that each reads as little as possible.
 */
#ifndef TESS_CUDA_SM80_BACKWARD_PASS_CUH
#define TESS_CUDA_SM80_BACKWARD_PASS_CUH

#include "fragments.cuh"
#include "sm80_backward_args.h"

namespace tess {

/* An operand of a product in shared memory, with rows of COLUMNS elements. The product sums along
 * its rows or, with DOWN, along its columns. */
template <int COLUMNS, bool DOWN> struct operand {
    typedef row_places<COLUMNS> places;

    /* A lane's first address, from a row and a column that are multiples of 16. LEFT: the left
     * operand, whose fragments have 16 of its rows (those of the right one, 16 of its columns). */
    template <bool LEFT>
    static __device__ __forceinline__ uint32_t begin(uint32_t matrix, int row, int column,
                                                     uint32_t lane) {
        const uint32_t own = LEFT != DOWN ? places::own_rows(lane) : places::own_keys(lane);
        return places::step(matrix + row * places::ROW + own, column / 16);
    }
    /* Fragment `tile` at step `k` of the sum. */
    static __device__ __forceinline__ void load(uint32_t (&m)[4], uint32_t at, int tile, int k) {
        if (DOWN)
            ldmatrix_transposed(m, places::step(at, tile) + k * 16 * places::ROW);
        else
            ldmatrix(m, places::step(at, k) + tile * 16 * places::ROW);
    }
};

/* Takes every step of 16 of a sum. */
struct every_step {
    __device__ __forceinline__ bool operator()(int) const { return true; }
};

/* c += a b, with sums of length 16 K. Steps of 16 that are not `kept` are skipped. */
template <typename T, typename A, typename B, int K, int M, int N, typename Kept = every_step>
__device__ __forceinline__ void multiply(float (&c)[M][N][4], uint32_t a, uint32_t b,
                                         const Kept &kept = Kept()) {
#pragma unroll
    for (int k = 0; k < K; k++) {
        if (!kept(k)) continue;
        uint32_t left[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) A::load(left[m], a, m, k);
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            uint32_t right[4];
            B::load(right, b, n / 2, k);
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma<T>(c[m][n], left[m], right[0], right[1]);
                mma<T>(c[m][n + 1], left[m], right[2], right[3]);
            }
        }
    }
}

template <typename T_, int D_, int TILE_, int STEP_, int WARPS_, int STAGES_, int SCORE_M,
          int SUM_M, int ITEM_M>
struct backward_pass {
    typedef T_ T;
    typedef row_places<D_> places;
    typedef row_places<STEP_> weight_places;
    enum {
        D = D_,
        TILE = TILE_,
        STEP = STEP_,
        WARPS = WARPS_,
        STAGES = STAGES_,
        THREADS = WARPS * 32,
        UNITS = places::UNITS,
        ROW = places::ROW,
        GROUP = places::GROUP,
        PASS = THREADS / GROUP, /* rows that the block copies at a time */
        MATRIX = TILE * ROW,    /* bytes of a tensor of the tile */
        ITEMS = STEP * ROW,     /* and of a step */
        WEIGHTS = TILE * STEP * 2,
        /* A warp's fragments: 16 entries of the tile, and 8 items or elements. */
        SCORE_N = WARPS / SCORE_M,
        SM = TILE / SCORE_M / 16,
        SN = STEP / SCORE_N / 8,
        SUM_N = WARPS / SUM_M,
        UM = TILE / SUM_M / 16,
        UN = D / SUM_N / 8,
        ITEM_N = WARPS / ITEM_M,
        IM = STEP / ITEM_M / 16,
        IN = D / ITEM_N / 8,
    };
    static_assert(SM > 0 && UM > 0 && IM > 0 && SN % 2 == 0 && UN % 2 == 0 && IN % 2 == 0,
                  "warps have whole fragments");

    const tess_sm80_backward_args *a;
    uint32_t matrices; /* in shared memory: the tile, the stages, dS and P */
    uint32_t thread, warp, lane;
    float s[SM][SN][4], dp[SM][SN][4];

    __device__ __forceinline__ void begin(const tess_sm80_backward_args *args, uint32_t at) {
        a = args;
        matrices = at;
        thread = threadIdx.x;
        warp = threadIdx.x / 32;
        lane = threadIdx.x % 32;
    }

    /* The tile's tensors: Q and dO, or K and V. */
    __device__ __forceinline__ uint32_t tile_at(int tensor) const {
        return matrices + tensor * MATRIX;
    }
    __device__ __forceinline__ uint32_t items_at(int stage, int tensor) const {
        return matrices + 2 * MATRIX + (stage * 2 + tensor) * ITEMS;
    }
    /* Weights as a pass numbers them: dS is 0. */
    __device__ __forceinline__ uint32_t weights_at(int which) const {
        return matrices + 2 * MATRIX + STAGES * 2 * ITEMS + which * WEIGHTS;
    }

    /* The tile's entry at s[t][n][2 * r] and the next one, and the item of the first of both. */
    __device__ __forceinline__ int entry_of(int t, int r) const {
        return (warp / SCORE_N * SM + t) * 16 + r * 8 + lane / 4;
    }
    __device__ __forceinline__ int item_of(int n) const {
        return (warp % SCORE_N * SN + n) * 8 + lane % 4 * 2;
    }

    /* ---------------------------------------------------------------- copies */

    /* Copies COUNT rows, where `find` gives the first element of a row, or NULL for zeros. */
    template <int COUNT, typename Find>
    __device__ __forceinline__ void copy(uint32_t to, const void *first, bool wide,
                                         const Find &find) const {
        to += places::place(thread / GROUP, thread % GROUP);
        if (wide && COUNT == STEP) {
#pragma unroll
            for (int r = 0; r < COUNT; r += PASS)
                copy_row(to + r * ROW, find(r + thread / GROUP), first, true);
        } else {
#pragma unroll 1
            for (int r = 0; r < COUNT; r += PASS)
                copy_row(to + r * ROW, find(r + thread / GROUP), first, wide);
        }
    }
    __device__ __forceinline__ void copy_row(uint32_t to, const uint16_t *row, const void *first,
                                             bool wide) const {
        const int unit = thread % GROUP, units = row ? a->common.head_dim / 8 : 0;
        if (!row) row = (const uint16_t *)first;
        copy_units<UNITS, GROUP>(to, row, unit, units, wide);
    }

    /* ---------------------------------------------------------------- products */

    /* S (0) or dP (1) of a step. */
    __device__ __forceinline__ void score(float (&c)[SM][SN][4], int stage, int tensor) const {
        typedef operand<D, false> across;
        const uint32_t now = lane_volatile();
        clear(c);
        multiply<T, across, across, D / 16>(
            c, across::template begin<true>(tile_at(tensor), warp / SCORE_N * SM * 16, 0, now),
            across::template begin<false>(items_at(stage, tensor), warp % SCORE_N * SN * 8, 0,
                                          now));
    }

    /* Adds weights times a tensor of the items to sums of the tile. */
    __device__ __forceinline__ void add_items(float (&sums)[UM][UN][4], int which, int stage,
                                              int tensor) const {
        typedef operand<STEP, false> left;
        typedef operand<D, true> right;
        const uint32_t now = lane_volatile();
        multiply<T, left, right, STEP / 16>(
            sums, left::template begin<true>(weights_at(which), warp / SUM_N * UM * 16, 0, now),
            right::template begin<false>(items_at(stage, tensor), 0, warp % SUM_N * UN * 8, now));
    }

    /* Sums of the items: weights times a tensor of the tile, summed over its entries. */
    template <typename Kept = every_step>
    __device__ __forceinline__ void add_tile(float (&sums)[IM][IN][4], int which, int tensor,
                                             const Kept &kept = Kept()) const {
        typedef operand<STEP, true> left;
        typedef operand<D, true> right;
        const uint32_t now = lane_volatile();
        multiply<T, left, right, TILE / 16>(
            sums, left::template begin<true>(weights_at(which), 0, warp / ITEM_N * IM * 16, now),
            right::template begin<false>(tile_at(tensor), 0, warp % ITEM_N * IN * 8, now), kept);
    }

    /* Puts a pair of weights at s[t][n][2 * r] into weights. */
    __device__ __forceinline__ void put(int which, int t, int n, int r, float x, float y) const {
        store_word(weights_at(which) + weight_places::place(entry_of(t, r), item_of(n) / 8) +
                       lane % 4 * 4,
                   pack<T>(x, y));
    }

    /* ---------------------------------------------------------------- results */

    /* Writes the tile's sums times their factors, rounded or in float32, through the shared
     * memory of its two tensors. `find` returns where an entry's row begins in the gradient, or
     * a negative number if it has none. `factor` returns what multiplies it: 0 gives 0, whatever
     * the sum is. */
    template <typename Find, typename Factor>
    __device__ __forceinline__ void store(const float (&sums)[UM][UN][4], void *out, bool wide,
                                          const Find &find, const Factor &factor) const {
        const bool floats = a->common.flags & TESS_ARGS_F32;
        const int entry = warp / SUM_N * UM * 16 + lane / 4, unit = warp % SUM_N * UN;
        __syncthreads();
#pragma unroll
        for (int t = 0; t < UM; t++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int e = entry + t * 16 + r * 8;
                const float times = factor(e);
#pragma unroll
                for (int n = 0; n < UN; n++) {
                    const float x = times == 0 ? 0.0f : sums[t][n][2 * r] * times,
                                y = times == 0 ? 0.0f : sums[t][n][2 * r + 1] * times;
                    if (floats)
                        store_pair(tile_at(0) + e * 2 * ROW + (unit + n) * 32 + lane % 4 * 8, x, y);
                    else
                        store_word(tile_at(0) + places::place(e, unit + n) + lane % 4 * 4,
                                   pack<T>(x, y));
                }
            }
        __syncthreads();
        const int units = a->common.head_dim / 8;
#pragma unroll 1
        for (int n = thread; n < TILE * UNITS; n += THREADS) {
            const int e = n / UNITS, own = n % UNITS;
            const int64_t at = find(e);
            if (at < 0 || own >= units) continue;
            if (floats)
                store_floats((float *)out + at + own * 8, tile_at(0) + e * 2 * ROW + own * 32);
            else
                write_unit((uint16_t *)out + at + own * 8,
                           load_shared_unit(tile_at(0) + places::place(e, own)), wide);
        }
    }
    __device__ __forceinline__ void store_floats(float *to, uint32_t from) const {
        const bool adds = a->common.flags & TESS_ARGS_ADD;
#pragma unroll
        for (int n = 0; n < 8; n += 4) {
            const uint4 four = load_shared_unit(from + n * 4);
            const uint32_t x[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int i = 0; i < 4; i++)
                to[n + i] = adds ? to[n + i] + __uint_as_float(x[i]) : __uint_as_float(x[i]);
        }
    }
};

} // namespace tess

#endif // TESS_CUDA_SM80_BACKWARD_PASS_CUH
