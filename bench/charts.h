/* SPDX-License-Identifier: Apache-2.0 */
/* The plots of the page as inline SVG, for readers without a script and for paper. Colours come
 * from the page's style sheet, so they follow the reader's light or dark scheme. */
#ifndef TESSERA_BENCH_CHARTS_H
#define TESSERA_BENCH_CHARTS_H

#include <stdio.h>

#include "matrix.h"

/* Each writes nothing and returns 0 when the matrix holds nothing to draw, else 1. */
int chart_lengths(const matrix *m, FILE *f); /* time against length, a panel for each shape */
int chart_speedup(const matrix *m, FILE *f); /* over dense, with the ideal */
int chart_roofline(const matrix *m, FILE *f);

#endif
