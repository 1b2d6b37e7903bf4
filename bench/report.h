/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of a report, and its forms for people and spreadsheets. */
#ifndef TESSERA_BENCH_REPORT_H
#define TESSERA_BENCH_REPORT_H

#include <stdio.h>

#include "results.h"

/* Indices of the results in reading order: families as measured; in each by device, kernel, dtype
 * and length, the sparse problem before its dense twin. NULL when out of memory; freed with
 * free(). */
int *report_order(const bench_report *r);

void report_text(const bench_report *r, FILE *f); /* at most 120 columns */
void report_markdown(const bench_report *r, FILE *f);
void report_csv(const bench_report *r, FILE *f);

/* Parts that the page uses too. Each writes an HTML table. */
void report_html_results(const bench_report *r, FILE *f);
void report_html_planning(const bench_report *r, FILE *f);
void report_html_ceilings(const bench_report *r, FILE *f);
void report_html_skipped(const bench_report *r, FILE *f);
int report_count(const bench_report *r, int status);
int report_count_skipped(const bench_report *r); /* neither measured nor failed */

/* "32k", "4097": tokens in a few characters. Returns the buffer. */
const char *short_tokens(char *buffer, size_t size, int64_t tokens);
/* A ratio as "14.3x"; "-" for NaN. Returns the buffer. */
const char *short_ratio(char *buffer, size_t size, double ratio);
/* "70 %"; "-" for NaN. Returns the buffer. */
const char *short_percent(char *buffer, size_t size, double share);
/* A warning when other work disturbed the run; returns 0 and leaves the buffer empty on a quiet
 * machine. */
int report_disturbed(const bench_report *r, char *buffer, size_t size);
int result_is_decode(const bench_result *r);
/* Where K and V of a decode problem lie: "in place", "page 64", "slots", "slots 64". Returns the
 * buffer. */
const char *result_cache(const bench_result *r, char *buffer, size_t size);

#endif
