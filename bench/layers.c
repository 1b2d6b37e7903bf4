/* SPDX-License-Identifier: Apache-2.0 */
#include "layers.h"

#include <math.h>

#include "clock.h"
#include "machine.h"
#include "stats.h"

enum { MOST_LAYERS = 64, MOST_TURNS = 1000, HOST_CALLS = 256, CALLS_AT_ONCE = 8 };
/* A sample is so long that its first call and the wait for its last one hardly show. */
static const double SAMPLE_SECONDS = 10e-3;
static const double HOST_SECONDS = 0.25;

/* Bytes that all layers together read at least: enough for the caches that GPUs have, and some
 * times a CPU's. Virtual machines may name the cache of all processors together. */
static uint64_t bytes_to_read(const instance *x) {
    enum { GPU_BYTES = 512 << 20, CPU_LEAST = 64 << 20, CPU_MOST = (int)LAYERS_BYTES };
    tess_device_info info = {.struct_size = sizeof info};
    tess_device_query(x->device, &info);
    if (info.kind == TESS_DEVICE_GPU) return GPU_BYTES;
    const uint64_t last = machine_cache_bytes(3) ? machine_cache_bytes(3) : machine_cache_bytes(2);
    return 4 * last > CPU_MOST ? CPU_MOST : 4 * last < CPU_LEAST ? CPU_LEAST : 4 * last;
}

/* Memory of one layer. */
static uint64_t layer_bytes(const instance *x) {
    uint64_t sum = 0;
    const int scales = problem_has_scales(x->problem);
    if (!problem_cached(x->problem))
        return x->k_bytes + x->v_bytes + x->k_scale_bytes + x->v_scale_bytes;
    for (uint32_t n = 0; n < x->cache.n_groups; n++)
        sum += 2 * (cache_pool_bytes(&x->cache, n, CACHE_ELEMENTS) +
                    (scales ? cache_pool_bytes(&x->cache, n, CACHE_SCALES) : 0));
    return sum;
}

static int add_layers(instance *x, const measure_limits *limits, bench_result *r) {
    const uint64_t own = layer_bytes(x),
                   room = (x->host_memory ? limits->host_bytes : limits->device_bytes) / 2;
    uint64_t wanted = r->bytes_min ? bytes_to_read(x) / r->bytes_min + 1 : 1;
    if (wanted > MOST_LAYERS) wanted = MOST_LAYERS;
    while ((uint64_t)x->n_layers < wanted && own > 0 && ((uint64_t)x->n_layers + 1) * own <= room) {
        const tess_status status = instance_add_layer(x);
        /* Fewer layers are better than no number. */
        if (status == TESS_ERROR_OUT_OF_MEMORY) break;
        if (status != TESS_OK) return -1;
    }
    r->layers = x->n_layers;
    r->cache_bytes = problem_cached(x->problem) ? cache_bytes(&x->cache) : own;
    return 0;
}

/* Where so many runs are under way as the plan allows, the next one waits for them. */
static tess_status launch(instance *x, int layer) {
    tess_status status = instance_launch(x, layer);
    if (status != TESS_ERROR_BUSY) return status;
    status = instance_wait(x);
    return status == TESS_OK ? instance_launch(x, layer) : status;
}

double layers_time(instance *x, int turns) {
    const double start = clock_now();
    for (int n = 0; n < turns; n++)
        for (int layer = 0; layer < x->n_layers; layer++)
            if (launch(x, layer) != TESS_OK) return NAN;
    if (instance_wait(x) != TESS_OK) return NAN;
    return (clock_now() - start) / ((double)turns * x->n_layers);
}

/* One turn; the median time of its calls on the host too. */
static double first_turn(instance *x, double *host) {
    double calls[MOST_LAYERS];
    const double start = clock_now();
    for (int layer = 0; layer < x->n_layers; layer++) {
        const double before = clock_now();
        if (launch(x, layer) != TESS_OK) return NAN;
        calls[layer] = clock_now() - before;
    }
    if (instance_wait(x) != TESS_OK) return NAN;
    *host = stats_median(calls, (size_t)x->n_layers);
    return (clock_now() - start) / x->n_layers;
}

/* The median time of the call alone, while the device has little to do: a driver whose queue is
 * full makes the caller wait. A slow device has fewer calls at once. */
static double host_time(instance *x, double run) {
    double seconds[HOST_CALLS];
    const double begin = clock_now();
    const int at_once = run * CALLS_AT_ONCE > HOST_SECONDS ? 1 : CALLS_AT_ONCE;
    int n = 0;
    while (n < HOST_CALLS && (n == 0 || clock_now() - begin < HOST_SECONDS)) {
        for (int i = 0; i < at_once && n < HOST_CALLS; i++) {
            const int layer = n % x->n_layers;
            const double start = clock_now();
            const tess_status status = instance_launch(x, layer);
            const double end = clock_now();
            if (status == TESS_ERROR_BUSY) break;
            if (status != TESS_OK) return -1;
            seconds[n++] = end - start;
        }
        if (instance_wait(x) != TESS_OK) return -1;
    }
    return stats_median(seconds, (size_t)n);
}

int layers_prepare(instance *x, const measure_limits *limits, bench_result *r,
                   double *turn_seconds) {
    if (add_layers(x, limits, r) != 0) return -1;
    double host = NAN;
    const double once = first_turn(x, &host);
    if (isnan(once)) return -1;
    *turn_seconds = once * x->n_layers;
    tess_device_info info = {.struct_size = sizeof info};
    tess_device_query(x->device, &info);
    /* Runs of a slow device are too dear to be made for the time of the call alone. */
    r->host_seconds = info.kind == TESS_DEVICE_CPU ? NAN
                      : 4 * once > HOST_SECONDS    ? host
                                                   : host_time(x, once);
    if (r->host_seconds < 0) return -1;
    const double turns = SAMPLE_SECONDS / *turn_seconds;
    return turns > MOST_TURNS ? MOST_TURNS : turns < 1 ? 1 : (int)turns + 1;
}
