/* SPDX-License-Identifier: Apache-2.0 */
/* Q of the kernel for few rows where K and V are codes of 8 bits. */
#ifndef TESS_CUDA_DECODE_CODES_CUH
#define TESS_CUDA_DECODE_CODES_CUH

#include "codes.cuh"

namespace tess {

/* Q of a tile in shared memory, as the warps' products with codes need it. */
template <typename T, int D, int ROWS, bool INTEGERS, bool Q_UNIT> struct coded_q {
    typedef row_places<D> place;

    uint32_t q_at;
    float *unit; /* of each row: what it is relative to */

    /* Rearranges and converts Q to match codes. Eight threads take a row. */
    __device__ __forceinline__ void arrange() const {
        enum { PARTS = 8, STEP = INTEGERS ? 2 : 1 };
#pragma unroll 1
        for (int n = threadIdx.x; n < ROWS * PARTS; n += blockDim.x) {
            const int r = n / PARTS;
            const float factor = Q_UNIT ? q_factor(r, n % PARTS, PARTS) : 1.0f;
#pragma unroll 1
            for (int x = n % PARTS * STEP; x < D / 16; x += PARTS * STEP)
                if (INTEGERS)
                    split_q(r, x, factor);
                else
                    narrow_q(r, x, factor);
        }
    }

  private:
    /* Of four lanes, the n-th gets a word of codes with elements 4 n to 4 n + 3 of a key: put the
     * same elements of Q where that lane loads them. bf16 becomes f16, which has enough bits for
     * all elements that count beside the row's largest. */
    __device__ __forceinline__ void narrow_q(int r, int x, float factor) const {
        const uint32_t first = q_at + place::place(r, 2 * x),
                       second = q_at + place::place(r, 2 * x + 1);
        const uint4 low = load_shared_unit(first), high = load_shared_unit(second);
        store_unit(first, make_uint4(narrowed(low.x, factor), narrowed(low.z, factor),
                                     narrowed(high.x, factor), narrowed(high.z, factor)));
        store_unit(second, make_uint4(narrowed(low.y, factor), narrowed(low.w, factor),
                                      narrowed(high.y, factor), narrowed(high.w, factor)));
    }
    static __device__ __forceinline__ uint32_t narrowed(uint32_t word, float factor) {
        if (!Q_UNIT) return word;
        return pack<f16_t>(unpack<T>(word, 0) * factor, unpack<T>(word, 1) * factor);
    }

    /* Turns 32 elements into 16-bit integers: first their high bytes, which have the sign, and then
     * their low bytes. */
    __device__ __forceinline__ void split_q(int r, int x, float factor) const {
        uint32_t bytes[2][8];
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const uint4 unit = load_shared_unit(q_at + place::place(r, 2 * x + n));
            const uint32_t words[4] = {unit.x, unit.y, unit.z, unit.w};
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t v[4];
#pragma unroll
                for (int e = 0; e < 4; e++)
                    v[e] =
                        (uint32_t)__float2int_rn(unpack<T>(words[2 * i + e / 2], e % 2) * factor);
                const uint32_t first = pick_bytes(v[0], v[1], 0x5140),
                               second = pick_bytes(v[2], v[3], 0x5140);
                bytes[0][2 * n + i] = pick_bytes(first, second, 0x7632);
                bytes[1][2 * n + i] = pick_bytes(first, second, 0x5410);
            }
        }
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const uint32_t(&four)[8] = bytes[n / 2];
            store_unit(q_at + place::place(r, 2 * x + n),
                       make_uint4(four[n % 2 * 4], four[n % 2 * 4 + 1], four[n % 2 * 4 + 2],
                                  four[n % 2 * 4 + 3]));
        }
    }

    /* What a row of Q is multiplied by: a power of two. */
    __device__ __forceinline__ float q_factor(int r, int part, int parts) const {
        enum { LARGEST = 127 + 14, INFINITE = 0x7f800000 };
        uint32_t most = 0;
#pragma unroll 1
        for (int n = part; n < place::UNITS; n += parts) {
            const uint4 x = load_shared_unit(q_at + place::place(r, n));
            const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
            for (int i = 0; i < 8; i++)
                most = max(most, __float_as_uint(fabsf(unpack<T>(words[i / 2], i % 2))));
        }
#pragma unroll
        for (int x = 1; x < parts; x *= 2) most = max(most, __shfl_xor_sync(~0u, most, x));
        const int field = min(LARGEST + 127 - exponent_field(__uint_as_float(most)), 253);
        /* integers have no infinity and no NaN, so the unit becomes NaN */
        if (part == 0)
            unit[r] = INTEGERS && most >= INFINITE ? __uint_as_float(0x7fffffff)
                                                   : power_of_two(254 - field);
        return power_of_two(field);
    }
};

} // namespace tess

#endif // TESS_CUDA_DECODE_CODES_CUH
