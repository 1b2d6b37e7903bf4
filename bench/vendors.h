/* SPDX-License-Identifier: Apache-2.0 */
/* The fixed suite: the same problems on every machine and device, so that what one vendor's device
 * does stands beside what any other does. */
#ifndef TESSERA_BENCH_VENDORS_H
#define TESSERA_BENCH_VENDORS_H

#include "results.h"

/* Appends the lines of the suite, the most telling first. `dtypes` is a comma list that the lines
 * are limited to, or NULL. Returns 0; -1 when out of memory; -3 for a list that cannot be
 * understood. The lines are freed with free(). */
int vendors_lines(const char *dtypes, bench_line **lines, int *n_lines);

/* What a problem line is called on a page: "Prefill 4k, S2, bf16, 32/8 x 128". Returns -1 for a
 * line that cannot be parsed. */
int vendors_title(const char *line, char *title, size_t size);

#endif
