/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel for Ampere and later does differently for float32: elements of 32 bits, and
 * products in three passes of TF32. */
#ifndef TESS_CUDA_ELEMENTS_CUH
#define TESS_CUDA_ELEMENTS_CUH

#include "fragments.cuh"

namespace tess {

/* A float as the sum of a TF32 number, rounded to nearest, and a rest, of which TF32 holds all but
 * two bits. */
struct tf32_pair {
    uint32_t high, low;

    __device__ __forceinline__ void split(uint32_t bits) {
        high = (bits + 0x1000) & 0xffffe000;
        low = __float_as_uint(__uint_as_float(bits) - __uint_as_float(high));
    }
};

/* c += a b, and what is small of it to `rest`, which may be c: 16 rows times 8 columns, of 8
 * elements. The product of both rests, 2^-22 of the whole, is left out. */
__device__ __forceinline__ void multiply_tf32(float (&c)[4], float (&rest)[4],
                                              const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    uint32_t high[4], low[4];
    tf32_pair x, y;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x.split(a[i]);
        high[i] = x.high;
        low[i] = x.low;
    }
    x.split(b0);
    y.split(b1);
    mma_tf32(rest, low, x.high, y.high);
    mma_tf32(rest, high, x.low, y.low);
    mma_tf32(c, high, x.high, y.high);
}

/* HALVES: 16-bit words of an element, by which rows are copied. `rest`: a way to multiply. */
template <typename T> struct elements {
    typedef uint16_t stored;
    static constexpr int HALVES = 1;

    template <int TILES, int N> struct rest {
        __device__ __forceinline__ void reset() {}
        __device__ __forceinline__ void multiply(float (&s)[TILES][N][4], int t, int n,
                                                 const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
            mma<T>(s[t][n], a, b0, b1);
        }
        __device__ __forceinline__ void add_to(float (&)[TILES][N][4]) {}
    };
};

/* Tensor cores cut sums off instead of rounding them. What is small has sums of its own, so that
 * less is cut off. */
template <> struct elements<f32_t> {
    typedef float stored;
    static constexpr int HALVES = 2;

    template <int TILES, int N> struct rest {
        float sums[TILES][N][4];

        __device__ __forceinline__ void reset() { clear(sums); }
        __device__ __forceinline__ void multiply(float (&s)[TILES][N][4], int t, int n,
                                                 const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
            multiply_tf32(s[t][n], sums[t][n], a, b0, b1);
        }
        __device__ __forceinline__ void add_to(float (&s)[TILES][N][4]) {
#pragma unroll
            for (int t = 0; t < TILES; t++)
#pragma unroll
                for (int n = 0; n < N; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++) s[t][n][e] = __fadd_rn(s[t][n][e], sums[t][n][e]);
        }
    };
};

} // namespace tess

#endif // TESS_CUDA_ELEMENTS_CUH
