/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of text cells that are written as aligned text, Markdown or HTML. */
#ifndef TESSERA_BENCH_TABLE_H
#define TESSERA_BENCH_TABLE_H

#include <stdio.h>

typedef struct table {
    int columns;
    /* a head that begins with '<' is aligned to the left, others to the right */
    const char *const *heads;
    char **cells; /* owned, row by row */
    int n_cells;
    /* out of memory at some time; what is written then is incomplete and table_free returns -1 */
    int failed;
} table;

void table_init(table *t, int columns, const char *const *heads);
/* Adds one cell; rows fill up from left to right. */
void table_cell(table *t, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;
/* columns move together where the lines would be longer than 120 */
void table_text(const table *t, FILE *f);
void table_markdown(const table *t, FILE *f);
void table_html(const table *t, FILE *f);
/* Frees the cells; -1 if memory ran out while the table was filled. */
int table_free(table *t);

/* Text made safe for each form. */
void write_html_escaped(FILE *f, const char *text);
void write_markdown_escaped(FILE *f, const char *text);

#endif
