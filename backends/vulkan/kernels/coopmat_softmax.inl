/* SPDX-License-Identifier: Apache-2.0 */
/* A stage of coopmat_forward.comp: turns S into exponentials, adds them to row_sum, which it
 * rescales first, and leaves P in p, an operand of 16 bits. */

/* `reference` is row_product here: the reference times the scale. */
[[unroll]] for (uint t = 0u; t < ROW_FRAGMENTS; t++) {
    MATRIX_C factor;
    coopMatLoad(reference[t], row_product, first_row + t * M, 0u, COLUMN_MAJOR);
    coopMatLoad(factor, row_factor, first_row + t * M, 0u, COLUMN_MAJOR);
    row_sum[t] = row_sum[t] * factor;
    [[unroll]] for (uint n = 0u; n < KEY_FRAGMENTS; n++) {
        const uint at = t * KEY_FRAGMENTS + n;
        [[unroll]] for (uint i = 0u; i < s[at].length(); i++) {
            s[at][i] = exp2(fma(s[at][i], scale_log2, -reference[t][i]));
        }
        row_sum[t] = row_sum[t] + s[at];
    }
}
if (DIRECT != 0u) {
    [[unroll]] for (uint n = 0u; n < ROW_FRAGMENTS * STEPS; n++) {
        [[unroll]] for (uint i = 0u; i < p[n].length(); i++) { p[n][i] = NARROW_P(s[n][i]); }
    }
} else {
    /* Through shared memory, the keys of one step at a time. */
    [[unroll]] for (uint x = 0u; x < ROW_FRAGMENTS * STEPS; x++) {
        [[unroll]] for (uint c = 0u; c < K / N; c++) {
            const uint n = x * (K / N) + c;
            MATRIX_P narrow;
            [[unroll]] for (uint i = 0u; i < narrow.length(); i++) {
#if TESS_DTYPE == 1
                narrow[i] = float16_t(s[n][i]);
#else
                narrow[i] = unpackFloat2x16(tess_narrow(s[n][i])).x;
#endif
            }
            coopMatStore(narrow, places, own + c * (N / 2u), PLACE, ROW_MAJOR);
        }
        OWN_BARRIER
        coopMatLoad(p[x], places, own, PLACE, ROW_MAJOR);
        OWN_BARRIER
    }
}
