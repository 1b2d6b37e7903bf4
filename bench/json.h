/* SPDX-License-Identifier: Apache-2.0 */
/* Reports as JSON. docs/bench.md documents the schema; bench/schema/tessera-bench-2.json states it
 * for validators. */
#ifndef TESSERA_BENCH_JSON_H
#define TESSERA_BENCH_JSON_H

#include <stdio.h>

#include "results.h"

int json_write(const bench_report *r, FILE *f); /* -1 when out of memory */

/* Reads a file of version 1 or 2, which is not trusted; one whose checksum is wrong is read too,
 * and says so in `changed`. Returns 0, or -1 with one line in `error` that names the file and the
 * field; the report is empty then. */
int json_read(bench_report *r, const char *path, char *error, size_t error_size);
int json_parse(bench_report *r, const char *text, size_t size, char *error, size_t error_size);

#endif
