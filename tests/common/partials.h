/* SPDX-License-Identifier: Apache-2.0 */
/* Partials of a row in double precision, as simulated devices write and merge them. A partial is
 * `rows` rows of head_dim floats, then their maxima, then their sums. */
#ifndef TESSERA_TESTS_COMMON_PARTIALS_H
#define TESSERA_TESTS_COMMON_PARTIALS_H

#include <math.h>
#include <stdint.h>

#include "key_blocks.h"

static inline float *partial_of(float *first, uint64_t number, uint64_t rows, int head_dim) {
    return first + number * rows * (uint64_t)(head_dim + 2);
}

static inline void partial_write(float *partial, uint64_t rows, int head_dim, int64_t row,
                                 const row_softmax *r) {
    for (int e = 0; e < head_dim; e++) partial[row * head_dim + e] = (float)r->o[e];
    partial[(int64_t)rows * head_dim + row] = (float)r->most;
    partial[(int64_t)rows * (head_dim + 1) + row] = (float)r->sum;
}

/* Merges a row of `parts` partials, which follow each other, into o, and returns its LSE. */
static inline double partials_merge(float *partials, uint32_t parts, uint64_t rows, int head_dim,
                                    int64_t row, double scale, double *o) {
    const int64_t most_at = (int64_t)rows * head_dim + row, sum_at = most_at + (int64_t)rows;
    double most = -INFINITY, sum = 0;
    for (int e = 0; e < head_dim; e++) o[e] = 0;
    for (uint32_t n = 0; n < parts; n++)
        most = fmax(most, partial_of(partials, n, rows, head_dim)[most_at]);
    for (uint32_t n = 0; n < parts; n++) {
        const float *partial = partial_of(partials, n, rows, head_dim);
        if (partial[sum_at] == 0) continue;
        const double weight = partial[sum_at] * exp(scale * (partial[most_at] - most));
        sum += weight;
        for (int e = 0; e < head_dim; e++) o[e] += weight * partial[row * head_dim + e];
    }
    for (int e = 0; e < head_dim; e++) o[e] = sum > 0 ? o[e] / sum : 0;
    return sum > 0 ? scale * most + log(sum) : -INFINITY;
}

#endif
