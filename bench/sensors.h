/* SPDX-License-Identifier: Apache-2.0 */
/* Clock, power, temperature and energy of a device, where the system lets this process read them:
 * NVML for NVIDIA's GPUs, AMD SMI for the joules of AMD's, else what Linux shows of a PCI device or
 * of the processor. */
#ifndef TESSERA_BENCH_SENSORS_H
#define TESSERA_BENCH_SENSORS_H

#include "results.h"

/* Sets `sensors` and `energy` of a device to what they can be read from. */
void sensors_find(bench_device *d);
/* NaN for what cannot be read, and for d NULL. */
bench_sensors sensors_read(const bench_device *d);
/* The highest clock of a GPU; NaN where it is not known. */
double sensors_top_clock(const bench_device *d);
/* A counter of joules that rises; NaN where there is none. */
double sensors_joules(const bench_device *d);
/* The same of the processor's packages, by the folder in which Linux shows RAPL. */
double sensors_packages(const char *folder);

#endif
