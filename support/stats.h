/* SPDX-License-Identifier: Apache-2.0 */
/* Order statistics of small samples, for timings. */
#ifndef TESSERA_SUPPORT_STATS_H
#define TESSERA_SUPPORT_STATS_H

#include <stddef.h>

typedef struct stats_summary {
    size_t count;
    double min, q10, q25, median, q75, q90, max, mean;
    double spread; /* (q75 - q25) / median; 0 when the median is 0 */
} stats_summary;

/* Values need not be sorted and are not changed. An empty sample, or one that holds a NaN, gives
 * NaN. */
double stats_median(const double *values, size_t count);
/* Linear interpolation between order statistics (NumPy's default); `q` is clamped to [0, 1]. */
double stats_quantile(const double *values, size_t count, double q);
/* Returns -1 when out of memory, else 0. */
int stats_summarize(const double *values, size_t count, stats_summary *summary);

#endif
