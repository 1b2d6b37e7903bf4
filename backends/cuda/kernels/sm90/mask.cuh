/* SPDX-License-Identifier: Apache-2.0 */
/* Masks of the kernel for Hopper: which scores of a stage are kept. */
#ifndef TESS_CUDA_SM90_MASK_CUH
#define TESS_CUDA_SM90_MASK_CUH

#include "kernels/mma.cuh"
#include "tile.cuh"

namespace tess {

/* One bit for each of a thread's columns below the n-th of a piece. */
__device__ __forceinline__ uint32_t columns_below(int32_t n) {
    const uint32_t x = max(n - (int32_t)(threadIdx.x % 4 * 2), 0);
    return (1u << (x / 8 * 2 + min(x % 8, 2u))) - 1;
}

/* The kept scores of a thread's two rows: a bit for each of its columns. An accumulator has the
 * thread's columns 8 n + lane % 4 * 2 + {0, 1} of rows lane / 4 and that + 8. */
struct score_mask {
    uint32_t kept[2];

    /* Finds which of KEYS scores are kept in `row` of the tile and in the row 8 below it. It has no
     * branches, because all lanes would wait for the longest one. */
    template <int KEYS, bool WINDOW>
    __device__ __forceinline__ void find(const piece *pieces, const tile_info *t, int piece_shift,
                                         int row) {
        const int32_t tokens = 1 << piece_shift, kv_len = t->kv_len;
        int32_t from[2], to[2], cap[2];
        int shift[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            /* Multiply by the inverse in place of a division: it is exact for numbers this
             * small. */
            int32_t in_head = min(row + 8 * r, t->last_row);
            in_head -= (int32_t)((uint32_t)in_head * t->rows_inverse >> 20) * t->rows;
            const int32_t p = t->position + in_head;
            /* the first token that is not kept */
            to[r] = cap[r] = max(t->flags & TESS_CLASS_CAUSAL ? min(p + 1, kv_len) : kv_len, 0);
            if (WINDOW) {
                from[r] = max(max(p, 0) - t->left, 0);
                to[r] = max(p + 1 + min(cap[r] - 1 - p, t->right), 0);
                cap[r] = min(cap[r], t->sinks);
            }
            /* the row's query block, counted from the tile's first */
            shift[r] = (int)(((uint32_t)t->in_block + in_head) * t->block_inverse >> 20) +
                       (in_head >= t->block_edge);
            kept[r] = 0;
        }
#pragma unroll 2
        for (int n = 0; n < KEYS >> piece_shift; n++) {
            const piece x = pieces[n];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                uint32_t bits = columns_below(min(to[r] - x.token, tokens));
                if (WINDOW)
                    bits = (bits & ~columns_below(min(from[r] - x.token, tokens))) |
                           columns_below(min(cap[r] - x.token, tokens));
                kept[r] |= (bits & 0 - (x.kept >> shift[r] & 1)) << (n << piece_shift >> 2);
            }
        }
    }

    /* Sets masked scores to -inf. */
    template <int N> __device__ __forceinline__ void apply(float (&s)[N]) const {
#pragma unroll
        for (int x = 0; x < N; x++)
            if (!(kept[x / 2 % 2] & 1u << (x / 4 * 2 + x % 2))) s[x] = MINUS_INFINITY;
    }

    /* The same in some rows only. */
    template <int N>
    __device__ __forceinline__ void apply_to_rows(float (&s)[N], const bool (&rows)[2]) const {
#pragma unroll
        for (int x = 0; x < N; x++)
            if (rows[x / 2 % 2] && !(kept[x / 2 % 2] & 1u << (x / 4 * 2 + x % 2)))
                s[x] = MINUS_INFINITY;
    }
};

} // namespace tess

#endif // TESS_CUDA_SM90_MASK_CUH
