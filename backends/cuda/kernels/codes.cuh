/* SPDX-License-Identifier: Apache-2.0 */
/*
 * 8-bit K and V as f16 operands: how codes become numbers, and where their scales are applied.
 *
 * A scale may have any exponent, and f16 has few. So scales are applied in f32: those of K to the
 * scores, those of V to P. O is kept relative to a power of two for each row, which follows the
 * row's largest product of P and a scale.
 */
#ifndef TESS_CUDA_CODES_CUH
#define TESS_CUDA_CODES_CUH

#include "fragments.cuh"

namespace tess {

template <typename KV> struct codes { static constexpr bool CODED = false, INTEGERS = false; };

/* Swaps the two middle bytes of a word. */
__device__ __forceinline__ uint32_t exchange_middle(uint32_t word) {
    return pick_bytes(word, 0, 0x3120);
}

/* Conversion is exact. Where bits are merely moved, the different exponent bias of f16 leaves a
 * factor, which is multiplied into the scale. */
template <> struct codes<e4m3_t> {
    static constexpr bool CODED = true, INTEGERS = false;

    static __device__ __forceinline__ float factor() { return converts_e4m3() ? 1.0f : 256.0f; }

    /* Bytes 0 and 1, and bytes 2 and 3. */
    static __device__ __forceinline__ void neighbours(uint32_t word, uint32_t (&to)[2]) {
        if (converts_e4m3())
            convert(word, to);
        else
            move(exchange_middle(word), to);
    }
    /* Bytes 0 and 2, and bytes 1 and 3. */
    static __device__ __forceinline__ void alternate(uint32_t word, uint32_t (&to)[2]) {
        if (converts_e4m3())
            convert(exchange_middle(word), to);
        else
            move(word, to);
    }

  private:
    static __device__ __forceinline__ void convert(uint32_t word, uint32_t (&to)[2]) {
        to[0] = convert_e4m3<0>(word);
        to[1] = convert_e4m3<1>(word);
    }
    static __device__ __forceinline__ void move(uint32_t word, uint32_t (&to)[2]) {
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const uint32_t high = n ? word : word << 8;
            uint32_t x = high >> 1 & 0x3f803f80;
            /* of all codes, only NaN has all these bits: it gets the highest exponent */
            x |= (x + 0x00800080) & 0x40004000;
            to[n] = x | (high & 0x80008000);
        }
    }
};

/* A code c with its sign bit flipped is c + 128. As the low byte of the f16 1024, it makes 1152 +
 * c. */
template <> struct codes<i8_t> {
    static constexpr bool CODED = true, INTEGERS = true;

    static __device__ __forceinline__ float factor() { return 1; }

    static __device__ __forceinline__ uint32_t pair(uint32_t turned, uint32_t which) {
        return add_f16_pairs(pick_bytes(turned, 0x64646464, which), 0xe480e480);
    }
    static __device__ __forceinline__ void alternate(uint32_t word, uint32_t (&to)[2]) {
        to[0] = pair(word ^ 0x80808080, 0x4240);
        to[1] = pair(word ^ 0x80808080, 0x4341);
    }
};

/* Reads half a unit of a row of codes, aligned to 2 bytes only, and fills the rest with zeros. */
__device__ __forceinline__ uint4 read_half(const uint16_t *p) {
    return make_uint4((uint32_t)p[0] | (uint32_t)p[1] << 16, (uint32_t)p[2] | (uint32_t)p[3] << 16,
                      0, 0);
}

/* 2^(field - 127), with the exponent field clamped to [1, 254]. */
__device__ __forceinline__ float power_of_two(int field) {
    return __uint_as_float((uint32_t)min(max(field, 1), 254) << 23);
}
__device__ __forceinline__ int exponent_field(float x) {
    return (int)(__float_as_uint(x) >> 23 & 0xff);
}

/* The scales of a thread's columns of N times 8 scores, or of P: two neighbours of each 8. */
template <int N> struct stage_scales {
    float x[N][2];

    __device__ __forceinline__ void load(uint32_t at, uint32_t lane, float factor) {
#pragma unroll
        for (int n = 0; n < N; n++) {
            const uint2 two = load_shared_pair(at + (n * 8 + lane % 4 * 2) * 4);
            x[n][0] = __uint_as_float(two.x) * factor;
            x[n][1] = __uint_as_float(two.y) * factor;
        }
    }
};

/* The unit of O, a power of two, for each of a thread's two rows in each tile. It changes when the
 * row's largest product of P and a scale leaves its range. */
template <int TILES> struct value_units {
    enum { MOST = 14, LEAST = -4 }; /* exponents, so that f16 holds what matters */
    float most[TILES][2];           /* the largest product of this thread, relative to row_max */
    float inverse[TILES][2];        /* of the unit */

    __device__ __forceinline__ void reset() {
#pragma unroll
        for (int n = 0; n < 2 * TILES; n++) {
            most[n / 2][n % 2] = 0;
            inverse[n / 2][n % 2] = 1;
        }
    }

    /* Multiplies P of a row by the scales. `factor` is what the row is rescaled by for row_max. */
    template <int N>
    __device__ __forceinline__ void scale_row(float (&p)[N][4], int t, int r, float factor,
                                              const stage_scales<N> &scales) {
        float largest = __fmul_rn(most[t][r], factor);
#pragma unroll
        for (int n = 0; n < 2 * N; n++) {
            float &x = p[n / 2][2 * r + n % 2];
            x = __fmul_rn(x, scales.x[n / 2][n % 2]);
            largest = fmaxf(largest, fabsf(x));
        }
        most[t][r] = largest;
    }

    /* Whether a row of the warp has left its range: any of its four threads is above it, or all of
     * them are below. */
    __device__ __forceinline__ bool leaves(int t, int r) const {
        const float size = __fmul_rn(most[t][r], inverse[t][r]);
        uint32_t within = __ballot_sync(~0u, size >= exp2_constant(LEAST));
        within |= within >> 1;
        within |= within >> 2;
        return (within & 0x11111111) != 0x11111111 ||
               __any_sync(~0u, size >= exp2_constant(MOST + 1));
    }

    /* Picks a new unit if the row needs one, and returns the factor that rescales O for it. */
    __device__ __forceinline__ float change(int t, int r) {
        float largest = most[t][r];
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
        /* clamp, so that the unit's inverse is a normal number, too */
        const int now = min(max(exponent_field(largest), 1), 253),
                  over = now + exponent_field(inverse[t][r]) - 254;
        if (over <= MOST && over >= LEAST) return 1;
        inverse[t][r] = power_of_two(254 - now);
        return power_of_two(127 - over);
    }
    __device__ __forceinline__ float unit(int t, int r) const {
        return power_of_two(254 - exponent_field(inverse[t][r]));
    }

    /* Multiplies P by V's scales and makes it relative to the units. Rescales O by `factor`, which
     * stands for row_max, and by any change of unit. */
    template <int N, int O>
    __device__ __forceinline__ void scale(float (&p)[TILES][N][4], float (&o)[TILES][O][4],
                                          float (&factor)[TILES][2],
                                          const stage_scales<N> &scales) {
#pragma unroll
        for (int t = 0; t < TILES; t++) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                scale_row(p[t], t, r, factor[t][r], scales);
                if (leaves(t, r)) factor[t][r] = __fmul_rn(factor[t][r], change(t, r));
            }
#pragma unroll
            for (int n = 0; n < 4 * N; n++)
                p[t][n / 4][n % 4] = __fmul_rn(p[t][n / 4][n % 4], inverse[t][n % 4 / 2]);
        }
        rescale(o, factor);
    }

  private:
    static __device__ __forceinline__ float exp2_constant(int x) { return power_of_two(127 + x); }
};

/* What a kernel without scales holds instead. */
struct no_scales {};

template <bool CODED, int TILES> struct coded_state { no_scales units; };
template <int TILES> struct coded_state<true, TILES> {
    value_units<TILES> units;
    float q_unit[TILES][2]; /* what rows of Q are relative to */
};

} // namespace tess

#endif // TESS_CUDA_CODES_CUH
