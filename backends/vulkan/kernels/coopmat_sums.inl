/* SPDX-License-Identifier: Apache-2.0 */
/* A stage of coopmat_forward.comp: adds up row_sum over columns, through the subgroup's place in
 * shared memory, and stores what a row has beside O: its maximum and sum for a partial, and LSE
 * otherwise. Leaves 1 / sum in row_factor, 0 where a row has no key. */

[[unroll]] for (uint t = 0u; t < ROW_FRAGMENTS; t++) {
    coopMatStore(row_sum[t], places, own, PLACE, ROW_MAJOR);
    OWN_BARRIER
    for (uint e = lane; e < M; e += SUBGROUP) {
        float sum = 0.0;
        [[unroll]] for (uint c = 0u; c < N; c++) sum += places[own + e * PLACE + c];
        row_factor[first_row + t * M + e] = sum;
    }
    OWN_BARRIER
}

for (uint r = lane; r < SUBGROUP_ROWS; r += SUBGROUP) {
    const uint in_tile = first_row + r;
    const float score = row_reference[in_tile], sum = row_factor[in_tile];
    row_factor[in_tile] = sum == 0.0 ? 0.0 : 1.0 / sum; /* NaN stays */
    if (in_tile < used && partial != TESS_NO_PARTIAL) {
        /* Exponentials are relative to a rounded product, unless that is large. The sum makes up
         * for the rounding. */
        const bool exact = IS_LARGE(score) || !(sum > 0.0);
        const float rounding = exact ? 0.0 : fma(score, scale_log2, -row_product[in_tile]);
        TESS_STORE_PARTIAL(max_base + in_tile, sum > 0.0 ? score : TESS_LOWEST);
        TESS_STORE_PARTIAL(max_base + args.partial_rows + in_tile, sum * exp2(-rounding));
    } else if (in_tile < used && (TESS_FLAGS & TESS_ARGS_LSE) != 0u) {
        TESS_STORE_LSE(lse_base + TESS_ROW_OFFSET(lse, row_head_row[in_tile]),
                       sum > 0.0 ? fma(score, abs(args.scale), log2(sum) * TESS_LN2)
                                 : TESS_MINUS_INFINITY);
    }
}
OWN_BARRIER
