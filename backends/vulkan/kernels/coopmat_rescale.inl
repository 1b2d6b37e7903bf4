/* SPDX-License-Identifier: Apache-2.0 */
/* A stage of coopmat_forward.comp for a chunk in which a reference rose: rescales O. row_sum is
 * rescaled already, so the factors become 1 again. */

[[unroll]] for (uint t = 0u; t < ROW_FRAGMENTS; t++) {
    MATRIX_C factor;
    coopMatLoad(factor, row_factor, first_row + t * M, 0u, COLUMN_MAJOR);
    [[unroll]] for (uint y = 0u; y < O_FRAGMENTS; y++) {
        o[t * O_FRAGMENTS + y] = o[t * O_FRAGMENTS + y] * factor;
    }
}
OWN_BARRIER
for (uint r = lane; r < SUBGROUP_ROWS; r += SUBGROUP) row_factor[first_row + r] = 1.0;
OWN_BARRIER
