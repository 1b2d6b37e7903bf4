/* SPDX-License-Identifier: Apache-2.0 */
/* A stage of the kernel for few rows: adds up what the teams have of a row, normalises it, and
 * writes O and LSE, or a part of a partial result. */

#define TESS_WEIGH_ROW(n, c)                                                     \
    {                                                                            \
        const float rescale = tess_exp2((row_max.c - total_max.c) * scale_log2); \
        const float norm = total_sum.c > 0.0f ? rescale / total_sum.c : 0.0f;    \
        products[2u * n * TESS_THREADS + thread] = o[2u * n] * norm;             \
        products[(2u * n + 1u) * TESS_THREADS + thread] = o[2u * n + 1u] * norm; \
    }
#define TESS_ADD_SUM(n, c) \
    total_sum.c += other_sum.c * tess_exp2((other_max.c - total_max.c) * scale_log2);
#define TESS_STORE_TEAMS_SUMS(n, c) \
    if (first_row + n < used) { TESS_STORE_SUMS(first_row + n, total_max.c, total_sum.c) }

#include "forward_result.inl"

if (slice == 0u) scores[team] = row_max;
products[thread] = row_sum;
TESS_BARRIER;
vec4 total_max = row_max, total_sum = VEC4_OF(0.0f);
TESS_NO_UNROLL for (uint n = 0u; n < lanes; n++) total_max =
    tess_max4(total_max, scores[(n << shift) + row_group]);
TESS_NO_UNROLL for (uint n = 0u; n < lanes; n++) {
    const vec4 other_max = scores[(n << shift) + row_group];
    vec4 other_sum = VEC4_OF(0.0f);
    TESS_NO_UNROLL for (uint at = 0u; at < TESS_AHEAD; at++) other_sum +=
        products[((n * TESS_SLICES + at) << shift) + row_group];
    TESS_EACH_ROW(TESS_ADD_SUM)
}
TESS_BARRIER;
TESS_EACH_ROW(TESS_WEIGH_ROW)
TESS_BARRIER;
if (lane == 0u && slice == 0u) { TESS_EACH_ROW(TESS_STORE_TEAMS_SUMS) }
/* Group n of 4 dims of the slice, of which each row has two. */
TESS_NO_UNROLL for (uint n = lane; n < 8u; n += lanes) {
    const uint r = first_row + n / 2u, dim = slice * 8u + n % 2u * 4u;
    vec4 four = VEC4_OF(0.0f);
    TESS_NO_UNROLL for (uint other = 0u; other < lanes; other++) four +=
        products[n * TESS_THREADS + ((other * TESS_SLICES + slice) << shift) + row_group];
    if (r < used && inside) { TESS_STORE_DIMS(r, dim, four) }
}
