/* SPDX-License-Identifier: Apache-2.0 */
/* Which devices and kernels a command measures. */
#ifndef TESSERA_BENCH_DEVICES_H
#define TESSERA_BENCH_DEVICES_H

#include <tessera/tessera.h>

#include "results.h"

/* Appends the devices of `list`, the value of --backends, to the report: 'hardware', 'all',
 * backends and devices by name. NULL: the setting TESSERA_BACKEND if it is set, else 'hardware'.
 * Returns 0, or the exit status after a message of `command`: 1 when a known device is not there, 2
 * when a name is unknown. */
int devices_choose(tess_runtime *runtime, const char *command, const char *list,
                   bench_report *report);

enum { DEVICES_KERNELS = 32 };
/* the latter with those that are taken only when named */
enum { DEVICES_USUAL_KERNELS, DEVICES_ALL_KERNELS };

/* Names of the kernels that are available on the device, in the order in which they are tried;
 * returns how many. */
int devices_kernels(const tess_device *device, unsigned which, char names[DEVICES_KERNELS][64]);

#endif
