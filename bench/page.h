/* SPDX-License-Identifier: Apache-2.0 */
/* One page of result files, self-contained but where it is told not to be: the matrix first, plots
 * and details below it. It works without a script, as tables and pictures, and opens no connection.
 */
#ifndef TESSERA_BENCH_PAGE_H
#define TESSERA_BENCH_PAGE_H

#include <stdio.h>

#include "matrix.h"

typedef struct page_options {
    const char *title;
    int plain; /* 1: without the chart library, also where there is one */
    /* Where bench/page lies, as seen from the page: style and scripts are taken from there. NULL:
     * they are in the page. */
    const char *assets;
} page_options;

/* Returns 0, or -1 when out of memory. */
int page_write(const matrix *m, const page_options *options, FILE *f);
/* The page of one run. Returns 0, or -1 with one line in `error`. */
int page_of_report(const bench_report *r, FILE *f, char *error, size_t error_size);

#endif
