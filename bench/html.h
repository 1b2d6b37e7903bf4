/* SPDX-License-Identifier: Apache-2.0 */
/* One self-contained page: no scripts, no other files, readable in light and dark. */
#ifndef TESSERA_BENCH_HTML_H
#define TESSERA_BENCH_HTML_H

#include <stdio.h>

#include "results.h"

void html_report(const bench_report *r, FILE *f);

/* Frame of any page. */
void html_begin(FILE *f, const char *title);
void html_end(FILE *f);

#endif
