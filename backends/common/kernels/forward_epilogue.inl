/* SPDX-License-Identifier: Apache-2.0 */
/* A stage of the forward kernel: adds up row_sum of all columns, normalises O, and writes O and LSE
 * of each row, or its part of a partial result. */

#define TESS_STORE_ROW(n, c)                                                       \
    {                                                                              \
        const uint r = first_row + 4u * g + n;                                     \
        if (r < used) {                                                            \
            const float norm = total.c > 0.0f ? 1.0f / total.c : 0.0f;             \
            if (column == 0u) { TESS_STORE_SUMS(r, row_max[g].c, total.c) }        \
            TESS_UNROLL for (uint d = 0u; d < TESS_THREAD_GROUPS; d++) {           \
                const uint dim = (d * TESS_COLUMNS + column) * 4u;                 \
                const vec4 out4 = o[(4u * g + n) * TESS_THREAD_GROUPS + d] * norm; \
                if (dim < head_dim) { TESS_STORE_DIMS(r, dim, out4) }              \
            }                                                                      \
        }                                                                          \
    }

/* Of rows, of which a thread has one or two. Compilers leave a loop over them as it is, whatever it
 * asks for, where the code for one is long; O would then be in memory throughout the kernel. */
#define TESS_STORE_GROUP(number)                                        \
    {                                                                   \
        const uint g = number;                                          \
        vec4 total = VEC4(0.0f, 0.0f, 0.0f, 0.0f);                      \
        TESS_UNROLL_4 for (uint c = 0u; c < TESS_COLUMNS; c++) total += \
            reduce[(c * TESS_ROWS + first_row) / 4u + g];               \
        TESS_EACH_ROW(TESS_STORE_ROW)                                   \
    }

#include "forward_result.inl"
TESS_UNROLL for (uint g = 0u; g < TESS_THREAD_ROWS / 4u; g++)
    reduce[(column * TESS_ROWS + first_row) / 4u + g] = row_sum[g];
TESS_BARRIER;
TESS_STORE_GROUP(0u)
if (TESS_THREAD_ROWS > 4u) TESS_STORE_GROUP(TESS_THREAD_ROWS / 4u - 1u)
