/* SPDX-License-Identifier: Apache-2.0 */
/* The matrix as text, Markdown, CSV and JSON. */
#ifndef TESSERA_BENCH_MATRIX_FORMS_H
#define TESSERA_BENCH_MATRIX_FORMS_H

#include <stdio.h>

#include "matrix.h"

void matrix_text(const matrix *m, FILE *f); /* at most three columns beside each other */
void matrix_markdown(const matrix *m, FILE *f);
/* The same without the lines about files. */
void matrix_text_tables(const matrix *m, FILE *f);
void matrix_markdown_tables(const matrix *m, FILE *f);
void matrix_csv(const matrix *m, FILE *f); /* a line for each cell */
void matrix_json(const matrix *m, FILE *f);
/* What the page's script reads. Returns 0, or -1 when out of memory. */
int matrix_brief_json(const matrix *m, FILE *f);

/* One line about a file: its letter and path, library, machine, time. */
void matrix_file_line(const matrix *m, int file, char *text, size_t size);
/* What is to be known before numbers of a file are believed: changed, interrupted, disturbed; ""
 * where there is nothing. */
void matrix_file_warning(const matrix *m, int file, char *text, size_t size);
/* Rows that a column won, its shares of the limits, and its mean against the base. */
void matrix_column_line(const matrix *m, int column, char *text, size_t size);
/* "0.38x", "no difference"; "" without a ratio. */
const char *matrix_ratio_text(const matrix_ratio *r, char *buffer, size_t size);

#endif
