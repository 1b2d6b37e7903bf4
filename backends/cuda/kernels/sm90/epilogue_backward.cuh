/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients out of registers: an accumulator of a warpgroup product has, for each thread, columns
 * 8 n + lane % 4 * 2 + {0, 1} of two rows, lane / 4 and that + 8 of the warp's 16. */
#ifndef TESS_CUDA_SM90_EPILOGUE_BACKWARD_CUH
#define TESS_CUDA_SM90_EPILOGUE_BACKWARD_CUH

#include "kernels/mma.cuh"
#include "kernels/sm90_backward_args.h"

namespace tess {

/* Transposes among four lanes. Each has one word of each of four 16-byte units before, and the
 * whole unit of its own number after. */
__device__ __forceinline__ uint4 gather_unit(const uint32_t (&w)[4], int lane) {
    uint32_t x[4] = {w[0], w[1], w[2], w[3]};
    const bool odd = lane & 1, upper = lane & 2;
    const uint32_t a = __shfl_xor_sync(~0u, odd ? x[0] : x[1], 1),
                   b = __shfl_xor_sync(~0u, odd ? x[2] : x[3], 1);
    if (odd) {
        x[0] = a;
        x[2] = b;
    } else {
        x[1] = a;
        x[3] = b;
    }
    const uint32_t c = __shfl_xor_sync(~0u, upper ? x[0] : x[2], 2),
                   d = __shfl_xor_sync(~0u, upper ? x[1] : x[3], 2);
    return upper ? make_uint4(c, d, x[2], x[3]) : make_uint4(x[0], x[1], c, d);
}

/* Where two rows of a gradient go; NULL: nowhere. `columns` of them exist. */
struct gradient_rows {
    uint64_t row[2];
    int32_t columns;
    bool f32, add, wide;
};

template <int N>
__device__ __forceinline__ void store_floats(const float (&x)[N], float scale,
                                             const gradient_rows &to, int lane) {
#pragma unroll
    for (int n = 0; n < N / 4; n++) {
        const int column = n * 8 + lane % 4 * 2;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float *at = (float *)to.row[r] + column;
            if (!to.row[r] || column >= to.columns) continue;
            float2 y = make_float2(x[4 * n + 2 * r] * scale, x[4 * n + 2 * r + 1] * scale);
            if (to.wide) {
                if (to.add) {
                    const float2 old = *(const float2 *)at;
                    y = make_float2(old.x + y.x, old.y + y.y);
                }
                *(float2 *)at = y;
            } else {
                at[0] = to.add ? at[0] + y.x : y.x;
                at[1] = to.add ? at[1] + y.y : y.y;
            }
        }
    }
}

/* Stores an accumulator of 2 N columns, times `scale`. By whole warps. */
template <typename T, int N>
__device__ __forceinline__ void store_gradient(const float (&x)[N], float scale,
                                               const gradient_rows &to, int lane) {
    if (to.f32) {
        store_floats(x, scale, to, lane);
        return;
    }
#pragma unroll
    for (int n = 0; n < N / 4; n += 4) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            uint32_t words[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                words[i] =
                    pack<T>(x[4 * (n + i) + 2 * r] * scale, x[4 * (n + i) + 2 * r + 1] * scale);
            const uint4 unit = gather_unit(words, lane);
            const int column = (n + lane % 4) * 8;
            if (to.row[r] && column < to.columns)
                write_unit((uint16_t *)to.row[r] + column, unit, to.wide);
        }
    }
}

/* The description of a gradient, without its rows. */
__device__ __forceinline__ gradient_rows gradient_of(const tess_sm90_backward_args *a, int tensor,
                                                     uint32_t kind, int32_t columns) {
    gradient_rows to;
    to.row[0] = to.row[1] = 0;
    to.columns = columns;
    to.f32 = a->f32 & kind;
    to.add = a->add & kind;
    to.wide = a->wide >> tensor & 1;
    return to;
}

} // namespace tess

#endif // TESS_CUDA_SM90_EPILOGUE_BACKWARD_CUH
