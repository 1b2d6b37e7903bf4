/* SPDX-License-Identifier: Apache-2.0 */
/* A stage of the forward kernel: adds up row_sum of all columns, normalises O, and writes O and LSE
 * of each row, or its part of a partial result. */

#define TESS_STORE_SUMS(c)                                                                       \
    if (partial != TESS_NO_PARTIAL) {                                                            \
        TESS_STORE_PARTIAL(max_base + TESS_OFFSET(r), row_max[g].c);                             \
        TESS_STORE_PARTIAL(max_base + TESS_OFFSET(args.partial_rows) + TESS_OFFSET(r), total.c); \
    } else if ((TESS_FLAGS & TESS_ARGS_LSE) != 0u)                                               \
        TESS_STORE_LSE(lse_base + TESS_ROW_OFFSET(lse, at),                                      \
                       total.c > 0.0f                                                            \
                           ? (row_max[g].c * scale_log2 + tess_log2(total.c)) * TESS_LN2         \
                           : TESS_MINUS_INFINITY);

#define TESS_STORE_ROW(n, c)                                                                   \
    {                                                                                          \
        const uint r = first_row + 4u * g + n;                                                 \
        if (r < used) {                                                                        \
            const float norm = total.c > 0.0f ? 1.0f / total.c : 0.0f;                         \
            const uint at = row_head_row[r];                                                   \
            if (column == 0u) { TESS_STORE_SUMS(c) }                                           \
            const tess_offset to = partial != TESS_NO_PARTIAL                                  \
                                       ? partial_base + TESS_OFFSET(r) * TESS_OFFSET(head_dim) \
                                       : o_base + TESS_ROW_OFFSET(o, at);                      \
            TESS_UNROLL for (uint d = 0u; d < TESS_THREAD_GROUPS; d++) {                       \
                const uint dim = (d * TESS_COLUMNS + column) * 4u;                             \
                const vec4 out4 = o[(4u * g + n) * TESS_THREAD_GROUPS + d] * norm;             \
                if (dim < head_dim) {                                                          \
                    if (partial != TESS_NO_PARTIAL) {                                          \
                        TESS_STORE4_PARTIAL(to + TESS_OFFSET(dim), out4);                      \
                    } else {                                                                   \
                        TESS_STORE4_O(to + TESS_OFFSET(dim), out4);                            \
                    }                                                                          \
                }                                                                              \
            }                                                                                  \
        }                                                                                      \
    }

/* Found only now, to hold fewer values throughout. */
const uint partial = TESS_WORD(job + TESS_WORD_JOB_PARTIAL);
const tess_offset o_base = TESS_FIRST(o, tile, q_start, tile.head);
const tess_offset lse_base = TESS_FIRST(lse, tile, q_start, tile.head);
const tess_offset partial_base = args.partials_at + TESS_OFFSET(partial) *
                                                        TESS_OFFSET(args.partial_rows) *
                                                        TESS_OFFSET(head_dim + 2u);
const tess_offset max_base = partial_base + TESS_OFFSET(args.partial_rows) * TESS_OFFSET(head_dim);

TESS_UNROLL for (uint g = 0u; g < TESS_THREAD_ROWS / 4u; g++)
    reduce[(column * TESS_ROWS + first_row) / 4u + g] = row_sum[g];
TESS_BARRIER;
TESS_UNROLL for (uint g = 0u; g < TESS_THREAD_ROWS / 4u; g++) {
    vec4 total = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
    TESS_UNROLL_4 for (uint c = 0u; c < TESS_COLUMNS; c++) total +=
        reduce[(c * TESS_ROWS + first_row) / 4u + g];
    TESS_EACH_ROW(TESS_STORE_ROW)
}
