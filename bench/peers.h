/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tools that a user would pick instead, measured beside our kernels. A peer is a program that reads
 * requests and writes answers, one JSON object a line (docs/bench.md); bench/peers has some in
 * Python. Its results are compared with the reference here, like our own.
 */
#ifndef TESSERA_BENCH_PEERS_H
#define TESSERA_BENCH_PEERS_H

#include "measure.h"

typedef struct peers peers;

/* Starts the programs of a comma list, and adds each to the report's peers, with a note about why
 * if it cannot be used. Returns NULL when out of memory. */
peers *peers_start(const char *list, bench_report *report);
int peers_count(const peers *p);
/* Lets peer `index` compute and time the problem of an open contestant, on the inputs of that one,
 * and appends what it gives to the report. It times for `seconds`, and leaves out what would take
 * longer than `most`. Returns -1 when out of memory. */
int peers_measure(peers *p, int index, contestant *c, bench_report *report, double seconds,
                  double check_seconds, double most);
void peers_stop(peers *p);

#endif
