/* SPDX-License-Identifier: Apache-2.0 */
/* The plots of the page, as inline SVG. Colours come from the page's style sheet, so they follow
 * the reader's light or dark scheme. */
#ifndef TESSERA_BENCH_CHARTS_H
#define TESSERA_BENCH_CHARTS_H

#include <stdio.h>

#include "results.h"

enum { CHART_COLOURS = 6 };

/* Each writes nothing and returns 0 when the report holds nothing to draw, else 1. */
/* measured and ideal speed-up against length, one panel a family */
int chart_speedup(const bench_report *r, FILE *f);
/* FLOP/s by family and device, with ceilings */
int chart_throughput(const bench_report *r, FILE *f);
/* B/s of problems with one new token, with the copy ceiling */
int chart_decode(const bench_report *r, FILE *f);
/* B/s and time of decode problems against context, two panels a family */
int chart_context(const bench_report *r, FILE *f);
int chart_roofline(const bench_report *r, FILE *f);

/* One horizontal bar chart. Values and marks share one unit and scale. */
typedef struct chart_bar {
    char label[192];
    char text[96]; /* after the bar */
    double value;
    double mark;      /* a ceiling; NaN: none */
    int colour;       /* 0 .. CHART_COLOURS - 1 */
    int begins_group; /* 1: some room above */
} chart_bar;

void chart_bars(const chart_bar *bars, int n, const char *unit, const char *title, FILE *f);

#endif
