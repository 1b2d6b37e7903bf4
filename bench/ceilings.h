/* SPDX-License-Identifier: Apache-2.0 */
/* The limits that devices show by themselves: matrix products by the best library at hand, and
 * copying and reading memory. */
#ifndef TESSERA_BENCH_CEILINGS_H
#define TESSERA_BENCH_CEILINGS_H

#include "results.h"

typedef struct limits_server limits_server;

/* Before the first driver is opened; NULL when no process can be started. */
limits_server *ceilings_start(void);
void ceilings_stop(limits_server *s);

/* Sets uuid and pci of a GPU where its driver tells them. */
void ceilings_identify(bench_device *d);

/* Measures all devices of the report and appends to their ceilings, before the first of them is
 * opened, while this process is still quiet. Where several are one GPU, its limits count for all of
 * them. `seconds` is for one device. Returns 0, or -1 when out of memory; what could not be
 * measured is told in ceiling_note. `tell` says what is done now. */
int ceilings_measure(limits_server *s, bench_report *r, double seconds,
                     void (*tell)(void *user, const char *text), void *user);

/* Another round of the limits of a CPU, or of a device that it emulates, between its problems:
 * other work may have slowed the first one down. The best round counts as the limit, and what
 * rounds differ by as the device's drift. Returns -1 when out of memory; GPUs have one round. */
int ceilings_again(limits_server *s, bench_device *d);

#endif
