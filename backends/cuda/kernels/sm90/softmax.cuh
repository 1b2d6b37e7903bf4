/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The online softmax of the kernel for Hopper: two rows a thread, scores and exponentials in the
 * registers of an accumulator.
 *
 * A softmax needs only some row_max near the largest score. So only rows that have seen no key, or
 * whose exponents are large, are searched for their largest score. All others keep their row_max,
 * and their sums are checked afterwards: a sum above OVERFLOW_SUM raises row_max. The result of a
 * row depends on that row alone.
 */
#ifndef TESS_CUDA_SM90_SOFTMAX_CUH
#define TESS_CUDA_SM90_SOFTMAX_CUH

#include "kernels/mma.cuh"

namespace tess {

/* The largest score of each row. */
template <int N>
__device__ __forceinline__ void reduce_max(const float (&s)[N], float (&largest)[2]) {
    largest[0] = s[0];
    largest[1] = s[2];
#pragma unroll
    for (int x = 0; x < N; x += 4) {
        largest[0] = fmaxf(largest[0], fmaxf(s[x], s[x + 1]));
        largest[1] = fmaxf(largest[1], fmaxf(s[x + 2], s[x + 3]));
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        largest[r] = fmaxf(largest[r], __shfl_xor_sync(~0u, largest[r], 1));
        largest[r] = fmaxf(largest[r], __shfl_xor_sync(~0u, largest[r], 2));
    }
}

struct softmax_state {
    /* A large row_max rises when exponentials would exceed 2^RESCALE_LOG2. A thread's sum of a
     * stage stays below OVERFLOW_SUM. So exponentials are bounded, also as f16, and O is rarely
     * rescaled. */
    static constexpr float RESCALE_LOG2 = 8, OVERFLOW_SUM = 0x1p14f;

    float scale_log2;    /* |scale| * log2(e) */
    float row_max[2];    /* m: the score that exponentials are relative to */
    float row_sum[2];    /* l: of this thread's columns, until reduce_sum() */
    float max_scaled[2]; /* m * scale_log2, or 0 where m is -inf or large */
    float o_scale[2];    /* the factor that rescales O, where `rescale` is set */
    bool rescale;        /* some o_scale of the warp is not 1 */
    bool keep_max;       /* every row of the warp has a row_max, and none is large */

    __device__ __forceinline__ void reset() {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            row_max[r] = MINUS_INFINITY;
            max_scaled[r] = 0;
            row_sum[r] = 0;
        }
        keep_max = false;
    }

    /* Whether the product of score and scale is so large that it has lost bits which the difference
     * of two scores keeps. */
    __device__ __forceinline__ bool is_large(float score) const {
        return fabsf(score * scale_log2) > 0x1p14f;
    }

    /* Makes exponentials of a row relative to another score. Returns the factor that rescales
     * earlier ones. */
    __device__ __forceinline__ float set_max(int r, float score) {
        const float before = row_max[r], scaled_before = max_scaled[r];
        const bool unseen = before == MINUS_INFINITY, none = score == MINUS_INFINITY,
                   apart = is_large(before) | is_large(score);
        row_max[r] = score;
        max_scaled[r] = none | is_large(score) ? 0.0f : score * scale_log2;
        const float factor =
            exp2_fast(apart | none ? (before - score) * scale_log2 : scaled_before - max_scaled[r]);
        return unseen ? 1.0f : factor;
    }

    /* Makes a score row_max if the row has seen no key, or if row_max is large and the score far
     * above it. */
    __device__ __forceinline__ float raise_max(int r, float score) {
        const bool rises =
            (row_max[r] == MINUS_INFINITY) |
            (is_large(row_max[r]) & ((score - row_max[r]) * scale_log2 > RESCALE_LOG2));
        const float factor = set_max(r, rises ? score : row_max[r]);
        return rises ? factor : 1.0f;
    }

    /* Subtracts every large row_max from its scores. */
    template <int N> __device__ __forceinline__ void subtract_large_max(float (&s)[N]) {
        const bool large[2] = {is_large(row_max[0]), is_large(row_max[1])};
        keep_max = !__any_sync(~0u, large[0] | large[1] | (row_max[0] == MINUS_INFINITY) |
                                        (row_max[1] == MINUS_INFINITY));
        if (keep_max) return;
#pragma unroll
        for (int x = 0; x < N; x++)
            s[x] -= large[x / 2 % 2] && row_max[x / 2 % 2] != MINUS_INFINITY ? row_max[x / 2 % 2]
                                                                             : 0.0f;
    }

    /* Finds row_max of rows that need a search. */
    template <int N> __device__ __forceinline__ void update_max(float (&s)[N]) {
        rescale = false;
        if (keep_max) return;
        float largest[2];
        reduce_max(s, largest);
#pragma unroll
        for (int r = 0; r < 2; r++) o_scale[r] = raise_max(r, largest[r]);
        rescale = __any_sync(~0u, (o_scale[0] != 1.0f) | (o_scale[1] != 1.0f));
        subtract_large_max(s);
    }

    /* Turns S into P, and sums up this thread's exponentials. */
    template <int N>
    __device__ __forceinline__ void exponentiate(float (&s)[N], float (&stage_sum)[2]) const {
        stage_sum[0] = stage_sum[1] = 0;
#pragma unroll
        for (int x = 0; x < N; x += 4) {
            s[x] = exp2_fast(fmaf(s[x], scale_log2, -max_scaled[0]));
            s[x + 1] = exp2_fast(fmaf(s[x + 1], scale_log2, -max_scaled[0]));
            s[x + 2] = exp2_fast(fmaf(s[x + 2], scale_log2, -max_scaled[1]));
            s[x + 3] = exp2_fast(fmaf(s[x + 3], scale_log2, -max_scaled[1]));
            stage_sum[0] += s[x] + s[x + 1];
            stage_sum[1] += s[x + 2] + s[x + 3];
        }
    }

    __device__ __forceinline__ bool overflows(const float (&stage_sum)[2]) const {
        return __any_sync(~0u, stage_sum[0] > OVERFLOW_SUM || stage_sum[1] > OVERFLOW_SUM);
    }

    /* Raises row_max where exponentials have become large. They are rescaled in place, by no less
     * than 2^-120 since smaller numbers are flushed. Where some of a row's exponentials are
     * infinite, `recompute(rows)` computes its scores again. */
    template <int N, typename Recompute>
    __device__ __forceinline__ void rescale_overflow(float (&s)[N], float (&stage_sum)[2],
                                                     const Recompute &recompute) {
        float largest[2], factor[2];
        bool lost[2];
        const int lane = threadIdx.x % 32;
        reduce_max(s, largest);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const bool large = __ballot_sync(~0u, stage_sum[r] > OVERFLOW_SUM) >> (lane & 28) & 15;
            if (!rescale) o_scale[r] = 1.0f;
            lost[r] = large && largest[r] == -MINUS_INFINITY;
            factor[r] =
                large && !lost[r]
                    ? set_max(r, row_max[r] +
                                     (float)min((__float_as_int(largest[r]) >> 23) - 127, 120) /
                                         scale_log2)
                    : 1.0f;
            o_scale[r] *= factor[r];
            stage_sum[r] = 0;
        }
#pragma unroll
        for (int x = 0; x < N; x++) s[x] *= factor[x / 2 % 2];
        if (__any_sync(~0u, lost[0] || lost[1])) {
            recompute(lost);
            reduce_max(s, largest);
            if (lost[0]) o_scale[0] *= set_max(0, largest[0]);
            if (lost[1]) o_scale[1] *= set_max(1, largest[1]);
#pragma unroll
            for (int x = 0; x < N; x++) {
                const int r = x / 2 % 2;
                if (lost[r]) s[x] = exp2_fast((s[x] - row_max[r]) * scale_log2);
            }
        }
#pragma unroll
        /* sum in the order of exponentiate(): rows without large exponentials are summed again,
         * too */
        for (int x = 0; x < N; x += 4) {
            stage_sum[0] += s[x] + s[x + 1];
            stage_sum[1] += s[x + 2] + s[x + 3];
        }
        rescale = true;
        keep_max = !__any_sync(~0u, is_large(row_max[0]) || is_large(row_max[1]));
    }

    __device__ __forceinline__ void add(const float (&stage_sum)[2]) {
#pragma unroll
        for (int r = 0; r < 2; r++)
            row_sum[r] = (rescale ? row_sum[r] * o_scale[r] : row_sum[r]) + stage_sum[r];
    }

    /* update_max() for rows that have seen no key and are masked already. */
    template <int N> __device__ __forceinline__ void first_max(float (&s)[N]) {
        float largest[2];
        reduce_max(s, largest);
#pragma unroll
        for (int r = 0; r < 2; r++) set_max(r, largest[r]);
        subtract_large_max(s);
    }
    template <int N> __device__ __forceinline__ void exponentiate_first(float (&s)[N]) {
#pragma unroll
        for (int x = 0; x < N; x++) {
            s[x] = exp2_fast(fmaf(s[x], scale_log2, -max_scaled[x / 2 % 2]));
            row_sum[x / 2 % 2] += s[x];
        }
    }

    /* Adds the sums of the four threads that share a row. */
    __device__ __forceinline__ void reduce_sum() {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            row_sum[r] += __shfl_xor_sync(~0u, row_sum[r], 1);
            row_sum[r] += __shfl_xor_sync(~0u, row_sum[r], 2);
        }
    }

    template <int N> __device__ __forceinline__ void rescale_o(float (&o)[N]) const {
#pragma unroll
        for (int x = 0; x < N; x++) o[x] *= o_scale[x / 2 % 2];
    }
};

} // namespace tess

#endif // TESS_CUDA_SM90_SOFTMAX_CUH
