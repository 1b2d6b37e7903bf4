/* SPDX-License-Identifier: Apache-2.0 */
/* A stage of coopmat_forward.comp: raises the reference of each row that has a score more than
 * MOST_RISE above it. row_factor is then what earlier exponentials are multiplied by, and risen_at
 * says that there is such a row. Once a reference is large (IS_LARGE), it is subtracted from the
 * scores themselves. Leaves the matrices `reference`, whose memory the next stage takes. */

/* most: the largest of the scores that lie in the same place of their matrices. */
MATRIX_C most[ROW_FRAGMENTS], reference[ROW_FRAGMENTS];
bool rises = false;
[[unroll]] for (uint t = 0u; t < ROW_FRAGMENTS; t++) {
    coopMatLoad(reference[t], row_reference, first_row + t * M, 0u, COLUMN_MAJOR);
    most[t] = s[t * KEY_FRAGMENTS];
    [[unroll]] for (uint n = 1u; n < KEY_FRAGMENTS; n++) {
        [[unroll]] for (uint i = 0u; i < most[t].length(); i++) {
            most[t][i] = max(most[t][i], s[t * KEY_FRAGMENTS + n][i]);
        }
    }
    [[unroll]] for (uint i = 0u; i < most[t].length(); i++) {
        rises = rises || (most[t][i] - reference[t][i]) * scale_log2 > MOST_RISE;
    }
}
const bool rises_here = subgroupAny(rises);
if (rises_here || large) {
    /* Maxima go through shared memory, where an invocation sees a whole row. */
    [[unroll]] for (uint t = 0u; t < ROW_FRAGMENTS; t++) {
        coopMatStore(most[t], places, own, PLACE, ROW_MAJOR);
        OWN_BARRIER
        for (uint e = lane; e < M; e += SUBGROUP) {
            const uint r = first_row + t * M + e;
            float largest = TESS_LOWEST;
            [[unroll]] for (uint c = 0u; c < N; c++) largest =
                max(largest, places[own + e * PLACE + c]);
            const float rise = (largest - row_reference[r]) * scale_log2;
            if (rise > MOST_RISE) {
                row_factor[r] = exp2(-rise);
                row_reference[r] = largest;
                row_product[r] = IS_LARGE(largest) ? 0.0 : largest * scale_log2;
            }
            large = large || IS_LARGE(row_reference[r]);
        }
        OWN_BARRIER
    }
    if (rises_here) risen_at.x = first;
    large = subgroupAny(large);
    if (large) {
        [[unroll]] for (uint n = 0u; n < ROW_FRAGMENTS * KEY_FRAGMENTS; n++) {
            MATRIX_C score;
            coopMatLoad(score, row_reference, first_row + n / KEY_FRAGMENTS * M, 0u, COLUMN_MAJOR);
            [[unroll]] for (uint i = 0u; i < s[n].length(); i++) {
                s[n][i] -= IS_LARGE(score[i]) ? score[i] : 0.0;
            }
        }
    }
}
