/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the text of a page smaller without a change of what it shows. */
#ifndef TESSERA_BENCH_PAGE_COMPACT_H
#define TESSERA_BENCH_PAGE_COMPACT_H

#include <stdio.h>

/* Leaves out what HTML lets one leave out: end tags of cells, rows and items; quotes around plain
 * words; line ends within pictures, bars, data and the tables below the first; in style and scripts
 * indents and lines that are comments. */
void page_compact(const char *page, size_t size, FILE *f);

#endif
