/* SPDX-License-Identifier: Apache-2.0 */
/* The time of a layer in a model that decodes: layers with K and V of their own take turns, so that
 * none of them finds its keys in a cache of the processor. */
#ifndef TESSERA_BENCH_LAYERS_H
#define TESSERA_BENCH_LAYERS_H

#include "measure.h"

/* What the turns over all layers of a CPU read at most, if one layer is not more. */
#define LAYERS_BYTES 134217728.0

/* Adds layers, takes a turn over them, and times the host. Sets `layers`, `cache_bytes` and
 * `host_seconds` of the result, and how long the turn took. Returns how many turns make a sample,
 * or -1 with the reason in x->error. */
int layers_prepare(instance *x, const measure_limits *limits, bench_result *result,
                   double *turn_seconds);

/* Seconds of a layer in `turns` turns over all of them, from the first call until the device is
 * idle; NaN after a failure, which x->error tells. */
double layers_time(instance *x, int turns);

#endif
