/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tessera/tessera.h>

#include "clock.h"
#include "stats.h"

enum { MIN_SAMPLES = 5, MAX_SAMPLES = 16, MOST_TURNS = 1 << 20 };
static const double WARM_UP = 0.15, LEAST_RUN = 2e-3;
enum { PRODUCT_SMALL = 2048, PRODUCT_LARGE = 8192 };
/* A product of PRODUCT_SMALL that is faster than this says little; one of PRODUCT_LARGE follows. */
static const double FAST_PRODUCT = 5e-3;

static const gpu_driver *const drivers[] = {&gpu_cuda, &gpu_hip, &gpu_opencl, &gpu_vulkan};
static const gpu_library *const libraries[] = {&gpu_cublas, &gpu_rocblas, &gpu_clblast};

const gpu_driver *gpu_driver_of(const bench_device *d) {
    for (size_t i = 0; i < sizeof drivers / sizeof *drivers; i++)
        if (strcmp(drivers[i]->backend, d->backend) == 0) return drivers[i];
    return NULL;
}

int gpu_library_rank(const bench_device *d) {
    for (size_t i = 0; i < sizeof libraries / sizeof *libraries; i++)
        if (strcmp(libraries[i]->backend, d->backend) == 0) return libraries[i]->rank;
    return 0;
}

int gpu_index(const bench_device *d) {
    const char *colon = strchr(d->id, ':');
    return colon ? atoi(colon + 1) : 0;
}

void gpu_uuid_text(const unsigned char uuid[16], char text[40]) {
    size_t n = 0;
    for (int i = 0; i < 16; i++)
        n += (size_t)snprintf(text + n, 40 - n, "%s%02x",
                              i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
}

/* ------------------------------------------------------------------ samples */

/* One run, whatever it is that runs. */
typedef struct runner {
    double (*run)(void *what);
    void *what;
} runner;

/* Warms up and samples; returns the number of samples, 0 after a failure. */
static int collect(const runner *r, double seconds, bench_ceiling *c) {
    double start = clock_now();
    while (clock_now() - start < fmin(WARM_UP, seconds))
        if (isnan(r->run(r->what))) return 0;
    start = clock_now();
    while (c->n_samples < MIN_SAMPLES ||
           (c->n_samples < MAX_SAMPLES && clock_now() - start < seconds)) {
        const double t = r->run(r->what);
        if (!(t > 0)) return 0;
        c->samples[c->n_samples++] = t;
    }
    return c->n_samples;
}

static void give(const gpu_sink *sink, bench_ceiling *c, double work) {
    double best = c->samples[0];
    for (int i = 1; i < c->n_samples; i++) best = fmin(best, c->samples[i]);
    c->rate = work / stats_median(c->samples, (size_t)c->n_samples);
    c->best = work / best;
    sink->found(sink->user, c);
}

/* ------------------------------------------------------------------ own loops */

typedef struct loops {
    const gpu_driver *driver;
    void *gpu;
} loops;

static double run_loop(void *what) {
    loops *l = what;
    return l->driver->run(l->gpu);
}

/* A tenth of the memory, a gigabyte at most: far more than any cache, and soon filled. */
static uint64_t bytes_to_move(const bench_device *d) {
    uint64_t bytes = d->memory_bytes / 10;
    if (bytes > (1u << 30)) bytes = 1u << 30;
    if (strcmp(d->kind, "gpu") != 0 && bytes > (128u << 20)) bytes = 128u << 20;
    return bytes / GPU_TILE * GPU_TILE;
}

static void measure_loop(loops *l, const bench_device *d, int loop, double seconds,
                         const gpu_sink *sink) {
    static const uint32_t dtypes[GPU_LOOPS] = {0, 0, TESS_F32, TESS_F16, TESS_BF16};
    const int moves = loop == GPU_COPY || loop == GPU_READ;
    const uint64_t bytes = bytes_to_move(d);
    char why[256] = "";
    bench_ceiling c = {.unit = loop == GPU_COPY   ? BENCH_COPY
                               : loop == GPU_READ ? BENCH_READ
                                                  : BENCH_GEMM,
                       .dtype = dtypes[loop],
                       .size = moves ? (int64_t)bytes : 0,
                       .own_loop = 1};
    double work = 0, once = 0;
    for (int turns = 64; turns <= MOST_TURNS; turns *= 4) {
        work = l->driver->prepare(l->gpu, loop, bytes, turns, why, sizeof why);
        if (!(work > 0)) break;
        once = l->driver->run(l->gpu);
        if (moves || !(once < LEAST_RUN)) break;
    }
    const runner r = {run_loop, l};
    if (work > 0 && !isnan(once) && collect(&r, seconds, &c)) {
        snprintf(c.library, sizeof c.library, "own loop");
        snprintf(c.method, sizeof c.method, "%s", l->driver->method(loop));
        give(sink, &c, work);
    } else if (why[0]) {
        sink->note(sink->user, why);
    }
}

/* ------------------------------------------------------------------ libraries */

typedef struct products {
    const gpu_library *library;
    gpu_products *p;
} products;

static double run_products(void *what) {
    products *x = what;
    return x->library->run(x->p);
}

/* Returns 1 when the library gave a product of the type. */
static int measure_products(const gpu_library *library, const bench_device *d, uint32_t dtype,
                            double seconds, const gpu_sink *sink) {
    char why[256] = "";
    int64_t n = PRODUCT_SMALL;
    products x = {library, library->open(d, dtype, n, why, sizeof why)};
    double once = NAN;
    if (x.p) {
        run_products(&x); /* loads code */
        once = run_products(&x);
    }
    if (once < FAST_PRODUCT) {
        library->close(x.p);
        n = PRODUCT_LARGE;
        x.p = library->open(d, dtype, n, why, sizeof why);
    }
    bench_ceiling c = {.unit = BENCH_GEMM, .dtype = dtype, .size = n};
    const runner r = {run_products, &x};
    int done = x.p && collect(&r, seconds, &c) && library->check(x.p);
    if (done) {
        snprintf(c.library, sizeof c.library, "%s", library->name(x.p));
        snprintf(c.method, sizeof c.method, "%s", library->method(x.p));
        give(sink, &c, 2.0 * (double)n * (double)n * (double)n);
    } else {
        sink->note(sink->user, why[0] ? why : "a product of the library failed or was wrong");
    }
    if (x.p) library->close(x.p);
    return done;
}

void gpu_limits(const bench_device *d, double seconds, const gpu_sink *sink) {
    /* Every library has f32. */
    static const uint32_t dtypes[] = {TESS_F32, TESS_BF16, TESS_F16};
    int found = 0;
    char why[256] = "";
    for (size_t i = 0; i < sizeof libraries / sizeof *libraries; i++)
        for (int t = 0; t < 3 && strcmp(libraries[i]->backend, d->backend) == 0; t++) {
            if (t > 0 && !found) break; /* the library is not there */
            found += measure_products(libraries[i], d, dtypes[t], seconds / 8, sink);
        }
    loops l = {gpu_driver_of(d), NULL};
    if (l.driver) l.gpu = l.driver->open(d, why, sizeof why);
    if (!l.gpu) {
        sink->note(sink->user, l.driver ? why : "no loops are known for this backend");
        return;
    }
    measure_loop(&l, d, GPU_COPY, seconds / 8, sink);
    measure_loop(&l, d, GPU_READ, seconds / 8, sink);
    for (int loop = GPU_F32; loop < GPU_LOOPS && !found; loop++)
        measure_loop(&l, d, loop, seconds / 8, sink);
    l.driver->close(l.gpu);
}
