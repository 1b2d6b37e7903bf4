/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The softmax rule of kernels on matrix units, for one row: its bits do not depend on other rows.
 *
 * Given: MATRIX_MULTIPLY(a, b) and MATRIX_FMA(a, b, c), rounded once, MATRIX_EXP2(x) and
 * MATRIX_LOG2(x).
 */
#ifndef TESS_OPENCL_MATRIX_SOFTMAX_H
#define TESS_OPENCL_MATRIX_SOFTMAX_H

/* A product of score and scale that large has lost bits which the difference of scores keeps. */
#define MATRIX_LARGE 16384.0f

MATRIX_FUNCTION bool matrix_is_large(float product) {
    return product > MATRIX_LARGE || product < -MATRIX_LARGE;
}

/* row_max rises to `most` only when that makes a factor of more than 2^8: exponentials stay
 * bounded, and O is rarely rescaled. Returns the factor for what was summed up before. */
MATRIX_FUNCTION float matrix_rescale(float most, float *row_max, float scale_log2) {
    if (!(MATRIX_MULTIPLY(most - *row_max, scale_log2) > 8.0f)) return 1.0f;
    const float factor = MATRIX_EXP2(MATRIX_MULTIPLY(*row_max - most, scale_log2));
    *row_max = most;
    return factor;
}

/* What is subtracted from products of scores and the scale, unless it is large. */
MATRIX_FUNCTION float matrix_reference(float row_max, float scale_log2) {
    return row_max == TESS_MINUS_INFINITY ? 0.0f : MATRIX_MULTIPLY(row_max, scale_log2);
}

/* Writes row_max and row_sum of a row into a partial. Exponentials are relative to a rounded
 * product of row_max and the scale, unless that is large, and row_sum makes up for the rounding. */
MATRIX_FUNCTION void matrix_store_sums(__global float *to, uint partial_rows, float row_max,
                                       float row_sum, float scale_log2) {
    const float product = MATRIX_MULTIPLY(row_max, scale_log2),
                rounding =
                    matrix_is_large(product) ? 0.0f : MATRIX_FMA(row_max, scale_log2, -product);
    to[0] = row_max;
    to[partial_rows] = row_sum == 0.0f ? row_sum : row_sum * MATRIX_EXP2(-rounding);
}

MATRIX_FUNCTION float matrix_lse(float row_max, float row_sum, float scale) {
    return row_sum == 0.0f
               ? TESS_MINUS_INFINITY
               : MATRIX_FMA(row_max, scale, MATRIX_MULTIPLY(MATRIX_LOG2(row_sum), TESS_LN2));
}

#endif /* TESS_OPENCL_MATRIX_SOFTMAX_H */
