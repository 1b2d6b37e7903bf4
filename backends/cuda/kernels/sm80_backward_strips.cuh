/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The accumulators of dQ in a single pass, and the stages that begin and end with them: a thread
 * block takes a strip, and a group of lanes takes its rows one by one.
 */
#ifndef TESS_CUDA_SM80_BACKWARD_STRIPS_CUH
#define TESS_CUDA_SM80_BACKWARD_STRIPS_CUH

#include "backward_strips.h"
#include "fragments.cuh"
#include "jobs.cuh"
#include "sm80_backward_args.h"

namespace tess {

/*
 * Accumulators are [strips][n_heads][TESS_STRIP_ROWS][D] floats behind LSE and Delta of all strips.
 * Of 16 dims, a lane of a fragment has 2 pairs, 8 apart. Their order is the one that the device
 * adds fastest: where it adds 4 floats at once, the 4 of a lane are neighbours; elsewhere those of
 * 4 lanes are.
 */
template <int D> struct accumulators {
    float *first; /* of the sequence */
    uint32_t heads;

    static __device__ __forceinline__ accumulators of(const tess_sm80_backward_args *a,
                                                      uint32_t sequence) {
        const tess_args *c = &a->common;
        const uint64_t strips = c->pages,
                       strip = ((const uint32_t *)a->tables)[c->slots_at + sequence];
        const uint64_t heads = c->page;
        return {(float *)a->workspace + c->partials_at +
                    heads * TESS_STRIP_ROWS * (2 * strips + strip * D),
                (uint32_t)heads};
    }
    __device__ __forceinline__ float *row(uint32_t head, uint32_t r) const {
        return first + ((uint64_t)(r / TESS_STRIP_ROWS * heads + head) * TESS_STRIP_ROWS +
                        r % TESS_STRIP_ROWS) *
                           D;
    }

    /* The place, within 16 dims, of float n of lane `quarter`, of the four lanes that share a
     * row. */
    static __device__ __forceinline__ int place(int quarter, int n) {
        return adds_vectors() ? quarter * 4 + n : n * 4 + quarter;
    }

    /* Adds the pairs (x, y) and (z, w) of a lane to 16 dims. */
    static __device__ __forceinline__ void add(float *to, int quarter, float x, float y, float z,
                                               float w) {
        to += place(quarter, 0);
        if (adds_vectors()) {
            add_four(to, x, y, z, w);
        } else {
            add_float(to, x);
            add_float(to + 4, y);
            add_float(to + 8, z);
            add_float(to + 12, w);
        }
    }
    /* The sums of dims [unit * 8, + 8) of a row. */
    static __device__ __forceinline__ void read(const float *row, int unit, float (&x)[8]) {
        row += unit / 2 * 16;
#pragma unroll
        for (int n = 0; n < 8; n++) x[n] = row[place(n / 2, unit % 2 * 2 + n % 2)];
    }
};

/* Calls work(there, number, sequence, head, row, unit) for each unit of 8 dims of a strip's
 * rows. */
template <int D, typename Work>
__device__ __forceinline__ void each_unit(const tess_sm80_backward_args *a, const Work &work) {
    enum { LANES = D / 8 };
    const tess_args *c = &a->common;
    const uint32_t *tables = (const uint32_t *)a->tables,
                   *strip = tables + c->items_at + blockIdx.x * TESS_STRIP_WORDS;
    const uint32_t number = strip[TESS_WORD_STRIP_SEQUENCE], first = strip[TESS_WORD_STRIP_ROW];
    const uint32_t *sequence = tables + c->sequences_at + number * TESS_SEQUENCE_WORDS;
    const uint32_t rows =
                       min(sequence[TESS_WORD_SEQUENCE_Q_LEN] - first, (uint32_t)TESS_STRIP_ROWS),
                   count = rows * c->page, step = blockDim.x / LANES;
    /* All lanes of a warp loop equally often, because `work` may sum across them. */
    for (uint32_t at = 0; at < count; at += step) {
        const uint32_t n = at + threadIdx.x / LANES;
        const bool there = n < count;
        const uint32_t head = there ? n / rows : 0, row = first + (there ? n % rows : 0);
        work(there, number, sequence, head, row, (int)(threadIdx.x % LANES));
    }
}

/* Where a row is in a tensor. */
__device__ __forceinline__ int64_t row_place(const uint32_t *sequence, uint32_t head, uint32_t row,
                                             int64_t batch, int64_t token, int64_t head_stride) {
    const int64_t start = (int64_t)((uint64_t)sequence[TESS_WORD_SEQUENCE_Q_START + 1] << 32 |
                                    sequence[TESS_WORD_SEQUENCE_Q_START]);
    return sequence[TESS_WORD_SEQUENCE_BATCH] * batch + (start + row) * token + head * head_stride;
}

/* Writes LSE in base 2 and Delta of each row, as the portable kernel does, and clears the
 * accumulators. */
template <typename T, int D> struct delta_stage {
    static __device__ __forceinline__ void run(const tess_sm80_backward_args *a) {
        const tess_args &args = a->common;
        const uint32_t *tables = (const uint32_t *)a->tables;
        each_unit<D>(a, [&](bool there, uint32_t number, const uint32_t *sequence, uint32_t head,
                            uint32_t row, int unit) {
            const float lse = ((const float *)a->out)[row_place(sequence, head, row, args.lse_batch,
                                                                args.lse_token, args.lse_head)];
            const bool dead = (__float_as_uint(lse) & 0x7fffffff) == 0x7f800000;
            float sum = 0;
            if (there && !dead && unit * 8 < (int)args.head_dim) {
                const uint4 o = read_unit((const uint16_t *)a->q + unit * 8 +
                                              row_place(sequence, head, row, args.q_batch,
                                                        args.q_token, args.q_head),
                                          a->wide & 1),
                            d_o = read_unit((const uint16_t *)a->d_o + unit * 8 +
                                                row_place(sequence, head, row, args.o_batch,
                                                          args.o_token, args.o_head),
                                            a->wide & 8);
                const uint32_t x[4] = {o.x, o.y, o.z, o.w}, y[4] = {d_o.x, d_o.y, d_o.z, d_o.w};
#pragma unroll
                for (int n = 0; n < 8; n++)
                    sum = fmaf(unpack<T>(x[n / 2], n % 2), unpack<T>(y[n / 2], n % 2), sum);
            }
#pragma unroll
            for (int n = 1; n < D / 8; n *= 2) sum += __shfl_xor_sync(~0u, sum, n);
            if (!there) return;
            if (a->wants_q) {
                float4 *const to =
                    (float4 *)accumulators<D>::of(a, number).row(head, row) + unit * 2;
                to[0] = to[1] = make_float4(0, 0, 0, 0);
            }
            if (unit) return;
            if (!dead && args.flags & TESS_ARGS_D_LSE)
                sum -= ((const float *)a->k)[row_place(sequence, head, row, args.k_scale_batch,
                                                       args.k_scale_token, args.k_scale_head)];
            float *const strips =
                (float *)a->workspace + tess_strip_at(number, head, row, tables, args);
            strips[0] = dead ? TESS_DEAD_LSE : lse * LOG2_E;
            strips[TESS_TO_DELTA] = sum;
        });
    }
};

/* dQ from its accumulators. */
template <typename T, int D> struct finish_stage {
    static __device__ __forceinline__ void run(const tess_sm80_backward_args *a) {
        const tess_args &args = a->common;
        each_unit<D>(a, [&](bool there, uint32_t number, const uint32_t *sequence, uint32_t head,
                            uint32_t row, int unit) {
            if (!there || unit * 8 >= (int)args.head_dim) return;
            const int64_t at = unit * 8 + row_place(sequence, head, row, args.lse_batch,
                                                    args.lse_token, args.lse_head);
            float x[8];
            accumulators<D>::read(accumulators<D>::of(a, number).row(head, row), unit, x);
#pragma unroll
            for (int n = 0; n < 8; n++) x[n] *= args.scale;
            if (args.flags & TESS_ARGS_F32) {
                float *const to = (float *)a->out + at;
#pragma unroll
                for (int n = 0; n < 8; n++)
                    to[n] = args.flags & TESS_ARGS_ADD ? to[n] + x[n] : x[n];
                return;
            }
            write_unit((uint16_t *)a->out + at,
                       make_uint4(pack<T>(x[0], x[1]), pack<T>(x[2], x[3]), pack<T>(x[4], x[5]),
                                  pack<T>(x[6], x[7])),
                       a->wide & 16);
        });
    }
};

} // namespace tess

#endif // TESS_CUDA_SM80_BACKWARD_STRIPS_CUH
