/* SPDX-License-Identifier: Apache-2.0 */
#include "stats.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A sorted copy that the caller frees; NULL when the sample is empty, holds a NaN (which has no
 * order), or memory is out. */
static double *sorted_copy(const double *values, size_t count) {
    if (count == 0 || count > SIZE_MAX / sizeof *values) return NULL;
    for (size_t i = 0; i < count; i++)
        if (isnan(values[i])) return NULL;
    double *copy = malloc(count * sizeof *copy);
    if (!copy) return NULL;
    memcpy(copy, values, count * sizeof *copy);
    qsort(copy, count, sizeof *copy, compare_doubles);
    return copy;
}

static double quantile_sorted(const double *sorted, size_t count, double q) {
    if (!(q > 0)) q = 0;
    if (q > 1) q = 1;
    double at = q * (double)(count - 1);
    size_t low = (size_t)at;
    if (low >= count - 1) return sorted[count - 1];
    double share = at - (double)low;
    if (share == 0) return sorted[low]; /* keeps infinities of the neighbour out */
    return sorted[low] * (1 - share) + sorted[low + 1] * share;
}

double stats_quantile(const double *values, size_t count, double q) {
    double *sorted = sorted_copy(values, count);
    if (!sorted) return NAN;
    double result = quantile_sorted(sorted, count, q);
    free(sorted);
    return result;
}

double stats_median(const double *values, size_t count) {
    return stats_quantile(values, count, 0.5);
}

int stats_summarize(const double *values, size_t count, stats_summary *summary) {
    double *const numbers[] = {&summary->min,    &summary->q10,  &summary->q25,
                               &summary->median, &summary->q75,  &summary->q90,
                               &summary->max,    &summary->mean, &summary->spread};
    *summary = (stats_summary){.count = count};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) *numbers[i] = NAN;
    for (size_t i = 0; i < count; i++)
        if (isnan(values[i])) return 0;
    if (count == 0) return 0;
    double *sorted = sorted_copy(values, count);
    if (!sorted) return -1;
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += sorted[i];
    summary->min = sorted[0];
    summary->q10 = quantile_sorted(sorted, count, 0.10);
    summary->q25 = quantile_sorted(sorted, count, 0.25);
    summary->median = quantile_sorted(sorted, count, 0.50);
    summary->q75 = quantile_sorted(sorted, count, 0.75);
    summary->q90 = quantile_sorted(sorted, count, 0.90);
    summary->max = sorted[count - 1];
    summary->mean = sum / (double)count;
    summary->spread = summary->median != 0 ? (summary->q75 - summary->q25) / summary->median : 0;
    free(sorted);
    return 0;
}
