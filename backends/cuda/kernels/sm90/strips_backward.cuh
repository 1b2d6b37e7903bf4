/* SPDX-License-Identifier: Apache-2.0 */
/* The first and the last stage of backward on Hopper: Delta of each row, and dQ out of its
 * accumulators. A thread block takes a strip of one query head. */
#ifndef TESS_CUDA_SM90_STRIPS_BACKWARD_CUH
#define TESS_CUDA_SM90_STRIPS_BACKWARD_CUH

#include "epilogue_backward.cuh"
#include "schedule_backward.cuh"

namespace tess {

/* A strip of one head. */
struct head_strip {
    int32_t head, rows; /* that exist */
    int64_t batch, token;
    uint64_t number; /* among those of all heads */
};

template <typename Shape>
__device__ __forceinline__ head_strip read_strip(const tess_sm90_backward_args *a) {
    const uint32_t item = blockIdx.x, *tables = (const uint32_t *)a->tables,
                   *strip = tables + a->items_at + item / a->heads * TESS_STRIP_WORDS,
                   sequence_number = strip[TESS_WORD_STRIP_SEQUENCE],
                   row = strip[TESS_WORD_STRIP_ROW],
                   *sequence = tables + a->sequences_at + sequence_number * TESS_SEQUENCE_WORDS;
    head_strip s;
    s.head = item % a->heads;
    s.rows = min((int32_t)(sequence[TESS_WORD_SEQUENCE_Q_LEN] - row), (int32_t)Shape::ROWS);
    s.batch = sequence[TESS_WORD_SEQUENCE_BATCH];
    s.token = word64(sequence + TESS_WORD_SEQUENCE_Q_START) + row;
    s.number = (uint64_t)s.head * a->strips + tables[a->first_strips_at + sequence_number] +
               row / Shape::ROWS;
    return s;
}

__device__ __forceinline__ bool is_infinite(float x) {
    return (__float_as_uint(x) & 0x7fffffff) == 0x7f800000;
}

/* Writes LSE and Delta of the strip's rows, and clears the accumulators if dQ is wanted. Of rows
 * that contribute nothing, only LSE is read. */
template <typename T, typename Shape>
__device__ __forceinline__ void strip_delta(const tess_sm90_backward_args *a) {
    constexpr int ROWS = Shape::ROWS, LANES = Shape::D / 8, PASS = TESS_SM90_DELTA_THREADS / LANES;
    const int thread = threadIdx.x, unit = thread % LANES;
    const head_strip s = read_strip<Shape>(a);
    grid_dependency_wait();
    float *rows = (float *)a->rows + s.number * (2 * ROWS);
    if (a->tensor[TESS_SM90_D_Q].address) {
        if (a->turns && thread == 0) ((uint32_t *)a->turns)[s.number] = 0;
        float4 *to = (float4 *)((float *)a->accumulators + s.number * (2 * Shape::DQ_FLOATS));
#pragma unroll
        for (int n = 0; n < 2 * Shape::DQ_FLOATS / 4 / TESS_SM90_DELTA_THREADS; n++)
            to[n * TESS_SM90_DELTA_THREADS + thread] = make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int n = 0; n < ROWS / PASS; n++) {
        const int row = n * PASS + thread / LANES;
        float lse = -MINUS_INFINITY, sum = 0;
        if (row < s.rows)
            lse = *(const float *)element_at(&a->tensor[TESS_SM90_LSE], s.batch, s.token + row,
                                             s.head, 0, 4);
        const bool dead = is_infinite(lse);
        if (!dead && unit * 8 < (int)a->head_dim) {
            const uint4 x =
                read_unit((const uint16_t *)element_at(&a->tensor[TESS_SM90_O], s.batch,
                                                       s.token + row, s.head, unit * 8, 2),
                          a->wide >> TESS_SM90_O & 1);
            const uint4 y =
                read_unit((const uint16_t *)element_at(&a->tensor[TESS_SM90_D_O], s.batch,
                                                       s.token + row, s.head, unit * 8, 2),
                          a->wide >> TESS_SM90_D_O & 1);
            const uint32_t xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
            for (int i = 0; i < 4; i++)
                sum += unpack<T>(xs[i], 0) * unpack<T>(ys[i], 0) +
                       unpack<T>(xs[i], 1) * unpack<T>(ys[i], 1);
        }
#pragma unroll
        for (int lanes = LANES / 2; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
        if (unit != 0) continue;
        if (!dead && a->tensor[TESS_SM90_D_LSE].address)
            sum -= *(const float *)element_at(&a->tensor[TESS_SM90_D_LSE], s.batch, s.token + row,
                                              s.head, 0, 4);
        rows[row] = dead ? -MINUS_INFINITY : lse * LOG2_E;
        rows[ROWS + row] = sum;
    }
}

/* Writes dQ of the strip's rows. Rows that contribute nothing get 0. */
template <typename T, typename Shape>
__device__ __forceinline__ void strip_finish(const tess_sm90_backward_args *a) {
    constexpr int ROWS = Shape::ROWS, CHUNKS = Shape::CHUNKS;
    const int thread = threadIdx.x % 128, part = threadIdx.x / 128, lane = thread % 32,
              dim = CHUNKS == 2 ? part * 64 : 0,
              first = (CHUNKS == 2 ? 0 : part * 64) + thread / 32 * 16 + lane / 4;
    const head_strip s = read_strip<Shape>(a);
    grid_dependency_wait();
    const float *rows = (const float *)a->rows + s.number * (2 * ROWS);
    const float4 *from =
        (const float4 *)((const float *)a->accumulators + (s.number * 2 + part) * Shape::DQ_FLOATS);
    const tess_sm90_tensor *d_q = &a->tensor[TESS_SM90_D_Q];
    gradient_rows to = gradient_of(a, TESS_SM90_D_Q, TESS_SM90_DQ, (int32_t)a->head_dim - dim);
    float x[32];
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const float4 four = from[n * 128 + thread];
        x[4 * n] = four.x;
        x[4 * n + 1] = four.y;
        x[4 * n + 2] = four.z;
        x[4 * n + 3] = four.w;
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = first + 8 * r;
        if (row < s.rows)
            to.row[r] = element_at(d_q, s.batch, s.token + row, s.head, dim, to.f32 ? 4 : 2);
        if (is_infinite(rows[row])) {
#pragma unroll
            for (int n = 0; n < 8; n++) x[4 * n + 2 * r] = x[4 * n + 2 * r + 1] = 0;
        }
    }
    store_gradient<T>(x, a->scale, to, lane);
}

} // namespace tess

#endif // TESS_CUDA_SM90_STRIPS_BACKWARD_CUH
