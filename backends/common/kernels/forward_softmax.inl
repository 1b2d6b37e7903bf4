/* SPDX-License-Identifier: Apache-2.0 */
/* A stage of the forward kernel: masks the scores of a chunk, raises row_max to them, rescales
 * row_sum and O, and leaves P in shared memory. */

#define TESS_MASK_ROW(n, c)                                                \
    {                                                                      \
        const uint r = first_row + 4u * g + n;                             \
        TESS_READ_ROW(row, r);                                             \
        const vec4 a = s[4u * g + n];                                      \
        s[4u * g + n] = VEC4(tess_masked(a.x, key0, row, sinks, i_first),  \
                             tess_masked(a.y, key1, row, sinks, i_first),  \
                             tess_masked(a.z, key2, row, sinks, i_first),  \
                             tess_masked(a.w, key3, row, sinks, i_first)); \
    }

#define TESS_SOFTMAX_ROW(n, c)                                                         \
    {                                                                                  \
        const vec4 p = tess_exp_scores(s[4u * g + n], VEC4_OF(new_max.c), scale_log2); \
        const float rescale = tess_exp2((row_max[g].c - new_max.c) * scale_log2);      \
        row_sum[g].c = row_sum[g].c * rescale + ((p.x + p.y) + (p.z + p.w));           \
        TESS_UNROLL for (uint d = 0u; d < TESS_THREAD_GROUPS; d++)                     \
            o[(4u * g + n) * TESS_THREAD_GROUPS + d] *= rescale;                       \
        qkp[(first_row + 4u * g + n) * TESS_COLUMNS + column] = p;                     \
    }

/* A thread masks its own keys only, and so needs to know of these alone whether some are absent. */
if (masked ||
    (TESS_IS_PAGED && (TESS_IS_ABSENT(column * 4u) || TESS_IS_ABSENT(column * 4u + 1u) ||
                       TESS_IS_ABSENT(column * 4u + 2u) || TESS_IS_ABSENT(column * 4u + 3u)))) {
    TESS_READ_MASK;
    TESS_READ_KEY(key0, column * 4u);
    TESS_READ_KEY(key1, column * 4u + 1u);
    TESS_READ_KEY(key2, column * 4u + 2u);
    TESS_READ_KEY(key3, column * 4u + 3u);
    TESS_UNROLL for (uint g = 0u; g < TESS_THREAD_ROWS / 4u; g++) { TESS_EACH_ROW(TESS_MASK_ROW) }
}
TESS_UNROLL for (uint g = 0u; g < TESS_THREAD_ROWS / 4u; g++)
    reduce[(column * TESS_ROWS + first_row) / 4u + g] =
        VEC4(tess_max_of(s[4u * g]), tess_max_of(s[4u * g + 1u]), tess_max_of(s[4u * g + 2u]),
             tess_max_of(s[4u * g + 3u]));
TESS_BARRIER;
/* Everyone has done with Q and K, whose memory P takes. */
TESS_UNROLL for (uint g = 0u; g < TESS_THREAD_ROWS / 4u; g++) {
    vec4 new_max = row_max[g];
    TESS_UNROLL_4 for (uint c = 0u; c < TESS_COLUMNS; c++) new_max =
        tess_max4(new_max, reduce[(c * TESS_ROWS + first_row) / 4u + g]);
    TESS_EACH_ROW(TESS_SOFTMAX_ROW)
    row_max[g] = new_max;
}
