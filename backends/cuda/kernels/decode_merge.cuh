/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The merge for plans of the kernel for few rows. Such rows have few elements but many parts, so
 * reads that wait for each other would take most of the time: here none does.
 *
 * A thread block takes one row of a merge, or a few. Its warps divide the parts: warp n %
 * MERGE_WARPS takes part n. A warp loads the elements of its first parts together with row_max and
 * row_sum of all its parts. It reduces row_max, a lane for each part, and adds the parts in rising
 * order, 4 elements of a row to a lane. Then the block adds its warps' results in order. So the
 * order of additions depends on the number of parts alone, and not on how many rows a block has.
 */
#ifndef TESS_CUDA_DECODE_MERGE_CUH
#define TESS_CUDA_DECODE_MERGE_CUH

#include "decode_args.h"
#include "jobs.cuh"
#include "mma.cuh"

namespace tess {

enum {
    MERGE_WARPS = TESS_DECODE_MERGE_THREADS / 32,
    MERGE_ROWS = TESS_DECODE_MERGE_ROWS,
    MERGE_LOADS = 16 /* loads of 4 elements that a lane has in flight */
};

struct merge_memory {
    float weight[MERGE_WARPS][MERGE_ROWS][32]; /* of up to 32 parts of each warp */
    /* the warps' results */
    float row_max[MERGE_WARPS][MERGE_ROWS], row_sum[MERGE_WARPS][MERGE_ROWS];
    float4 o[MERGE_WARPS][TESS_DECODE_MERGE_THREADS];
};
static_assert(sizeof(merge_memory) <= TESS_DECODE_MERGE_SHARED, "the host asks for enough");

/* The factor that makes exponentials relative to row_max. They are relative to `max` and add up to
 * `sum`. Where the sum is 0, the difference of both may be infinite. */
__device__ __forceinline__ float merge_weight(float max, float sum, float row_max,
                                              float scale_log2) {
    return sum != 0 ? exp2_fast(__fmul_rn(max - row_max, scale_log2)) : 0;
}
/* Each fmaf rounds once, so the compiler cannot fuse differently in different places. */
__device__ __forceinline__ void merge_add(float4 &sum, const float4 &x, float weight) {
    sum.x = fmaf(x.x, weight, sum.x);
    sum.y = fmaf(x.y, weight, sum.y);
    sum.z = fmaf(x.z, weight, sum.z);
    sum.w = fmaf(x.w, weight, sum.w);
}

/* The rows of a merge that a thread block takes at a time. */
struct merge_rows {
    const float *o, *row_max; /* of the first part; row_sum is partial_rows behind row_max */
    uint32_t step;            /* floats from part to part */
    int32_t rows, parts;
    /* The thread's 4 elements of the result: their row, and where they and its LSE go. */
    int32_t row, dim;
    int64_t o_at, lse_at;

    /* Finds the n-th group of rows of a launch. A merge has `groups` of them, each of a->warps
     * rows. */
    __device__ __forceinline__ void find(const tess_decode_args *a, uint32_t n, uint32_t groups) {
        const tess_args *c = &a->common;
        const uint32_t *tables = (const uint32_t *)a->tables,
                       *merge = tables + c->items_at + (uint64_t)(n / groups) * TESS_MERGE_WORDS,
                       *sequence = tables + c->sequences_at +
                                   (uint64_t)table_word(merge + TESS_WORD_MERGE_SEQUENCE) *
                                       TESS_SEQUENCE_WORDS;
        const int32_t rows_of_head = TESS_LOW_HALF(table_word(merge + TESS_WORD_MERGE_ROWS)),
                      all =
                          TESS_HIGH_HALF(table_word(merge + TESS_WORD_MERGE_HEADS)) * rows_of_head,
                      head_dim = c->head_dim, first = n % groups * a->warps;
        rows = max(min((int32_t)a->warps, all - first), 0);
        parts = table_word(merge + TESS_WORD_MERGE_PARTS);
        step = c->partial_rows * (head_dim + 2);
        o = (const float *)a->workspace + c->partials_at +
            (uint64_t)table_word(merge + TESS_WORD_MERGE_PARTIAL) * step;
        row_max = o + c->partial_rows * head_dim + first;
        o += first * head_dim;
        row = threadIdx.x * 4 / head_dim;
        dim = threadIdx.x * 4 - row * head_dim;
        const int32_t in_tile = first + row, packed = in_tile / max(rows_of_head, 1);
        const uint32_t *const q_start = sequence + TESS_WORD_SEQUENCE_Q_START;
        const int64_t token =
                          (int64_t)((uint64_t)table_word(q_start + 1) << 32 | table_word(q_start)) +
                          table_word(merge + TESS_WORD_MERGE_ROW) + in_tile - packed * rows_of_head,
                      head = TESS_LOW_HALF(table_word(merge + TESS_WORD_MERGE_HEAD)) + packed,
                      batch = table_word(sequence + TESS_WORD_SEQUENCE_BATCH);
        o_at = batch * c->o_batch + token * c->o_token + head * c->o_head + dim;
        lse_at = batch * c->lse_batch + token * c->lse_token + head * c->lse_head;
    }
};

/* Reduces row_max over all parts of a warp. It holds that of the lane's first part before. */
__device__ __forceinline__ void merge_row_max(float &row_max, const float *from, uint32_t stride,
                                              int32_t lane, int32_t count) {
#pragma unroll 1
    for (int n = lane + 32; n < count; n += 32)
        row_max = fmaxf(row_max, from[(uint64_t)(uint32_t)n * stride]);
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2)
        row_max = fmaxf(row_max, __shfl_xor_sync(~0u, row_max, lanes));
}

/* Finds row_max, row_sum and O over a warp's parts. ROWS: the most rows. GROUPS: how many times 4
 * elements a lane has. */
template <int ROWS, int GROUPS>
__device__ __forceinline__ void merge_parts(const tess_decode_args *a, const merge_rows &x,
                                            merge_memory *m) {
    enum { AHEAD = MERGE_LOADS / GROUPS };
    const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32,
                  count = x.parts > warp ? (x.parts - warp - 1) / MERGE_WARPS + 1 : 0,
                  head_dim = a->common.head_dim;
    const uint32_t stride = x.step * MERGE_WARPS, sums = a->common.partial_rows;
    const float *const from = x.o + (uint64_t)warp * x.step + lane * 4, *const max_from =
                                                                            x.row_max +
                                                                            (uint64_t)warp * x.step;
    int32_t row[GROUPS];
    bool has[GROUPS];
    float4 o[GROUPS], under_way[AHEAD][GROUPS];
    float sum[GROUPS], part_max[ROWS], part_sum[ROWS], row_max[ROWS];
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        const int32_t e = (g * 32 + lane) * 4;
        row[g] = ROWS == 1 ? 0 : e / head_dim;
        has[g] = ROWS == 1 ? e < head_dim : row[g] < x.rows;
        o[g] = make_float4(0, 0, 0, 0);
        sum[g] = 0;
    }
    /* lane n loads the n-th of each 32 parts */
    const auto load_sums = [&](int r, int first) {
        const bool has_part = r < x.rows && first + lane < count;
        const float *const at = max_from + (uint64_t)(first + lane) * stride + r;
        part_max[r] = has_part ? at[0] : MINUS_INFINITY;
        part_sum[r] = has_part ? at[sums] : 0;
    };
    const auto load = [&](int i, int n) {
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
            under_way[i][g] =
                has[g] && n < count
                    ? *(const float4 *)(from + (uint64_t)(uint32_t)n * stride + g * 128)
                    : make_float4(0, 0, 0, 0);
    };
#pragma unroll
    for (int r = 0; r < ROWS; r++) load_sums(r, 0);
#pragma unroll
    for (int i = 0; i < AHEAD; i++) load(i, i);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        row_max[r] = part_max[r];
        if (r < x.rows) merge_row_max(row_max[r], max_from + r, stride, lane, count);
    }
#pragma unroll 1
    for (int first = 0; first < count; first += 32) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (first > 0) load_sums(r, first);
            m->weight[warp][r][lane] = __fmul_rn(
                part_sum[r], merge_weight(part_max[r], part_sum[r], row_max[r], a->scale_log2));
        }
        __syncwarp();
        const int end = min(count - first, 32);
#pragma unroll 1
        for (int n = 0; n < end; n += AHEAD) {
            /* the weights of parts past the last one are 0 */
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
#pragma unroll
                for (int g = 0; g < GROUPS; g++) {
                    const float weight = m->weight[warp][min(row[g], ROWS - 1)][n + i];
                    merge_add(o[g], under_way[i][g], weight);
                    sum[g] = __fadd_rn(sum[g], weight);
                }
            }
#pragma unroll
            for (int i = 0; i < AHEAD; i++) load(i, first + n + AHEAD + i);
        }
        __syncwarp();
    }
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        m->o[warp][g * 32 + lane] = o[g];
        if (has[g] && (g * 32 + lane) * 4 == row[g] * head_dim) m->row_sum[warp][row[g]] = sum[g];
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        if (lane == r) m->row_max[warp][r] = row_max[r];
}

/* Adds the warps' results, and writes O and LSE. */
template <typename T>
__device__ __forceinline__ void merge_warps(const tess_decode_args *a, const merge_rows &x,
                                            const merge_memory *m) {
    const tess_args *c = &a->common;
    if (x.row >= x.rows) return;
    float row_max = m->row_max[0][x.row], row_sum = 0;
    float4 o = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int w = 1; w < MERGE_WARPS; w++) row_max = fmaxf(row_max, m->row_max[w][x.row]);
#pragma unroll
    for (int w = 0; w < MERGE_WARPS; w++) {
        const float sum = m->row_sum[w][x.row],
                    weight = merge_weight(m->row_max[w][x.row], sum, row_max, a->scale_log2);
        row_sum = fmaf(sum, weight, row_sum);
        merge_add(o, m->o[w][threadIdx.x], weight);
    }
    /* A row without keys becomes 0, whatever its parts hold. */
    const float inverse = row_sum == 0 ? 0 : reciprocal(row_sum);
    const uint32_t words[2] = {pack<T>(o.x * inverse, o.y * inverse),
                               pack<T>(o.z * inverse, o.w * inverse)};
    uint16_t *const to = (uint16_t *)a->o + x.o_at;
    if (a->wide & 4) {
        *(uint2 *)to = {words[0], words[1]};
    } else {
#pragma unroll
        for (int e = 0; e < 4; e++) to[e] = (uint16_t)(words[e / 2] >> e % 2 * 16);
    }
    if (x.dim == 0 && c->flags & TESS_ARGS_LSE)
        ((float *)a->lse)[x.lse_at] =
            row_sum == 0 ? MINUS_INFINITY
                         : fmaf(row_max, fabsf(c->scale), __fmul_rn(log2_fast(row_sum), LN_2));
}

/* A step launches as many thread blocks as run at a time, and they divide the rows. */
template <typename T> __device__ __forceinline__ void merge(const tess_decode_args *a) {
    extern __shared__ __align__(128) uint8_t raw[];
    merge_memory *const m = (merge_memory *)raw;
    const tess_args *c = &a->common;
    const uint32_t groups = (c->partial_rows + a->warps - 1) / a->warps,
                   all = groups * present_jobs((const uint32_t *)a->tables, c);
    merge_rows x;
    uint32_t n = blockIdx.x;
    if (n >= all && blockIdx.x > 0) return; /* see grid_dependency_wait() */
    if (n < all) x.find(a, n, groups);
    grid_dependents_launch();
    grid_dependency_wait();
    while (n < all) {
        if (x.rows > 1)
            merge_parts<MERGE_ROWS, MERGE_ROWS>(a, x, m);
        else if (c->head_dim > 128)
            merge_parts<1, 2>(a, x, m);
        else
            merge_parts<1, 1>(a, x, m);
        __syncthreads();
        merge_warps<T>(a, x, m);
        n += gridDim.x;
        if (n >= all) break;
        __syncthreads();
        x.find(a, n, groups);
    }
}

} // namespace tess

#define TESS_DECODE_MERGE(T)                                                   \
    extern "C" __global__ void __launch_bounds__(TESS_DECODE_MERGE_THREADS,    \
                                                 TESS_DECODE_MERGE_GROUPS)     \
        tess_decode_merge_##T(const __grid_constant__ tess_decode_args args) { \
        tess::merge<tess::T##_t>(&args);                                       \
    }

#endif // TESS_CUDA_DECODE_MERGE_CUH
