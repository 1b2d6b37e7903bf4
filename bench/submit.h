/* SPDX-License-Identifier: Apache-2.0 */
/* A result file for the public table in bench/results. */
#ifndef TESSERA_BENCH_SUBMIT_H
#define TESSERA_BENCH_SUBMIT_H

#include "results.h"

/* "nvidia-h200-20260102T030405Z.json": what the file of a run is called. */
void submit_name(const bench_report *r, char *name, size_t size);

/* Takes out what is nobody's affair: paths and options of the command, settings that name folders,
 * and paths in messages. */
void submit_clean(bench_report *r);

#endif
