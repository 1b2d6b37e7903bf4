/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels on mma.sync share: copies of rows, where matrices lie in shared memory, and the
 * online softmax of scores in the registers of an accumulator. */
#ifndef TESS_CUDA_FRAGMENTS_CUH
#define TESS_CUDA_FRAGMENTS_CUH

#include "mma.cuh"

namespace tess {

/* Copies a thread's elements of a row of UNITS units into shared memory: its unit `unit` and every
 * GROUP-th from there on; zeros past `units`. */
template <int UNITS, int GROUP>
__device__ __forceinline__ void copy_units(uint32_t to, const uint16_t *row, int unit, int units,
                                           bool wide) {
    if (wide) {
#pragma unroll
        for (int c = 0; c < UNITS; c += GROUP)
            cp_async_unit(to + c * 16, row + (c + unit) * 8, c + unit < units ? 16 : 0);
    } else {
#pragma unroll 1
        for (int c = 0; c < UNITS; c += GROUP)
            store_unit(to + c * 16, c + unit < units ? read_unit(row + (c + unit) * 8, false)
                                                     : make_uint4(0, 0, 0, 0));
    }
}

/* Rows of D elements in shared memory, swizzled: within a row, units of 16 bytes are permuted
 * inside their group, so that 8 rows of one column are in different banks. */
template <int D> struct row_places {
    static constexpr int UNITS = D / 8, ROW = D * 2;
    /* units that a swizzle permutes; neighbouring rows permuted alike; steps of 16 elements until
     * the permutation repeats */
    static constexpr int GROUP = UNITS % 8 == 0 ? 8 : 4, SAME = 8 / GROUP, TURNS = GROUP / 2;

    static __device__ __forceinline__ uint32_t place(uint32_t row, uint32_t unit) {
        return row * ROW + (unit / GROUP * GROUP + ((unit ^ row / SAME) % GROUP)) * 16;
    }
    /* The place of the row n below the one at `at`. n and that row's number share no bit. */
    static __device__ __forceinline__ uint32_t below(uint32_t at, int n) {
        return (at ^ (n / SAME % GROUP * 16)) + n * ROW;
    }
    /* A lane's address for ldmatrix: of the first 16 rows of Q or V, and of the first 16 keys of
     * K. */
    static __device__ __forceinline__ uint32_t own_rows(uint32_t lane) {
        return place(lane % 16, lane / 16);
    }
    static __device__ __forceinline__ uint32_t own_keys(uint32_t lane) {
        return place(lane / 16 * 8 + lane % 8, lane / 8 % 2);
    }
    /* Element columns 16 x .. 16 x + 15 of rows that begin at `at`, which is a multiple of 128 but
     * for the lane's own place. */
    static __device__ __forceinline__ uint32_t step(uint32_t at, int x) {
        return (at ^ (x % TURNS * 32)) + x / TURNS * GROUP * 16;
    }
};

/* Whether a product of score and scale is so large that it has lost bits which the difference of
 * two scores keeps. */
__device__ __forceinline__ bool is_large_product(float product) { return fabsf(product) > 0x1p14f; }

/* The rounding error of max * scale_log2, which exponentials are relative to. It is 0 for a large
 * product: then they come from differences of scores. */
__device__ __forceinline__ float rounding_of(float max, float scale_log2) {
    const float product = __fmul_rn(max, scale_log2);
    return is_large_product(product) ? 0.0f : fmaf(max, scale_log2, -product);
}

/* Rescales the rows of O. Most often all factors of a warp are 1, and there is nothing to do. */
template <int TILES, int O>
__device__ __forceinline__ void rescale(float (&o)[TILES][O][4], const float (&factor)[TILES][2]) {
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        if (!__any_sync(~0u, factor[t][0] != 1.0f || factor[t][1] != 1.0f)) continue;
#pragma unroll
        for (int y = 0; y < O; y++)
#pragma unroll
            for (int e = 0; e < 4; e++) o[t][y][e] *= factor[t][e / 2];
    }
}

/* row_max and row_sum of the two rows of a thread in each tile. */
template <int TILES> struct row_state {
    /* m: the score that exponentials are relative to; l: this thread's part of their sum */
    float max[TILES][2], sum[TILES][2];

    __device__ __forceinline__ void reset() {
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                max[t][r] = MINUS_INFINITY;
                sum[t][r] = 0;
            }
    }

    /* Turns a row's scores into exponentials, and returns the factor that rescales earlier sums.
     * Each row is treated alone, so its bits do not depend on its neighbours. Sums and products are
     * rounded one by one, because the compiler would fuse different ones in each instance. */
    template <int N>
    __device__ __forceinline__ float exponentiate(float (&s)[N][4], int t, int r,
                                                  float scale_log2) {
        float largest = s[0][2 * r];
#pragma unroll
        for (int n = 0; n < N; n++) largest = fmaxf(largest, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
        /* raise row_max only when the factor would exceed 2^8: exponentials stay bounded, and O is
         * rarely rescaled */
        const bool rises = (largest - max[t][r]) * scale_log2 > 8.0f;
        const float factor = rises ? exp2_fast((max[t][r] - largest) * scale_log2) : 1.0f;
        if (rises) max[t][r] = largest;
        float max_scaled = max[t][r] == MINUS_INFINITY ? 0.0f : max[t][r] * scale_log2;
        if (is_large_product(max_scaled)) {
#pragma unroll
            for (int n = 0; n < N; n++) {
                s[n][2 * r] -= max[t][r];
                s[n][2 * r + 1] -= max[t][r];
            }
            max_scaled = 0;
        }
        float total = __fmul_rn(sum[t][r], factor);
#pragma unroll
        for (int n = 0; n < N; n++) {
            s[n][2 * r] = exp2_fast(fmaf(s[n][2 * r], scale_log2, -max_scaled));
            s[n][2 * r + 1] = exp2_fast(fmaf(s[n][2 * r + 1], scale_log2, -max_scaled));
            total = __fadd_rn(total, __fadd_rn(s[n][2 * r], s[n][2 * r + 1]));
        }
        sum[t][r] = total;
        return factor;
    }

    /* Turns S of a stage into P. `factor` receives what rescales O. */
    template <int N>
    __device__ __forceinline__ void exponentiate(float (&s)[TILES][N][4], float (&factor)[TILES][2],
                                                 float scale_log2) {
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int r = 0; r < 2; r++) factor[t][r] = exponentiate(s[t], t, r, scale_log2);
    }

    /* The online softmax of a stage: S becomes P, and O is rescaled where row_max rises. */
    template <int N, int O>
    __device__ __forceinline__ void softmax(float (&s)[TILES][N][4], float (&o)[TILES][O][4],
                                            float scale_log2) {
        float factor[TILES][2];
        exponentiate(s, factor, scale_log2);
        rescale(o, factor);
    }

    /* Adds the sums of the four threads that share a row. */
    __device__ __forceinline__ void reduce_sums() {
#pragma unroll
        for (int n = 0; n < 2 * TILES; n++)
#pragma unroll
            for (int x = 1; x < 4; x *= 2)
                sum[n / 2][n % 2] =
                    __fadd_rn(sum[n / 2][n % 2], __shfl_xor_sync(~0u, sum[n / 2][n % 2], x));
    }
};

template <int TILES, int N, typename Change>
__device__ __forceinline__ void for_each(float (&x)[TILES][N][4], const Change &change) {
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) change(x[t][n][e]);
}
template <int TILES, int N> __device__ __forceinline__ void clear(float (&x)[TILES][N][4]) {
    for_each(x, [](float &e) { e = 0; });
}
/* Negates scores, for a negative scale: the softmax uses its magnitude. */
template <int TILES, int N> __device__ __forceinline__ void negate(float (&s)[TILES][N][4]) {
    for_each(s, [](float &e) { e = -e; });
}

} // namespace tess

#endif // TESS_CUDA_FRAGMENTS_CUH
