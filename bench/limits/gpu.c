/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tessera/tessera.h>

#include "clock.h"
#include "stats.h"

enum { MIN_SAMPLES = 5, MAX_SAMPLES = 16, BURSTS = 4, MOST_TURNS = 1 << 20 };
static const double WARM_UP = 0.15, REST = 0.1, LEAST_RUN = 2e-3;
enum { PRODUCT_SMALL = 2048, PRODUCT_MIDDLE = 4096, PRODUCT_LARGE = 8192 };
/* A product of PRODUCT_SMALL that is faster than this says little; larger ones follow. The largest
 * shows what power allows, the one in the middle takes as long as a run of attention does. */
static const double FAST_PRODUCT = 5e-3;

static const gpu_driver *const drivers[] = {&gpu_cuda, &gpu_hip, &gpu_opencl, &gpu_vulkan};
static const gpu_library *const libraries[] = {&gpu_cublas, &gpu_rocblas, &gpu_hipblaslt,
                                               &gpu_clblast};

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

double gpu_work(const gpu_job *job, uint64_t bytes, uint64_t groups, double flop) {
    if (job->loop == GPU_COPY || job->loop == GPU_READ)
        return (job->loop == GPU_COPY ? 2.0 : 1.0) * (double)bytes;
    return (double)groups * GPU_GROUP * job->turns * flop;
}

void *gpu_open(const gpu_driver *driver, const bench_device *d, char *why, size_t size) {
    void *gpu = calloc(1, driver->size);
    if (!gpu) return snprintf(why, size, "out of memory"), NULL;
    if (driver->open(gpu, d, why, size) == 0) return gpu;
    gpu_close(driver, gpu);
    return NULL;
}

void gpu_close(const gpu_driver *driver, void *gpu) {
    driver->close(gpu);
    free(gpu);
}

/* ------------------------------------------------------------------ samples */

/* A few runs one after the other. They become the ceiling where they are faster than those that it
 * has; 0 after a failure. */
static int sample_burst(double (*run)(void *what), void *what, double seconds, double work,
                        bench_ceiling *c) {
    const double start = clock_now();
    double samples[MAX_SAMPLES], best = INFINITY;
    int n = 0;
    while (n < MIN_SAMPLES || (n < MAX_SAMPLES && clock_now() - start < seconds)) {
        const double t = run(what);
        if (!(t > 0)) return 0;
        samples[n++] = t;
        best = fmin(best, t);
    }
    const double rate = work / stats_median(samples, (size_t)n);
    if (rate <= c->rate) return 1;
    memcpy(c->samples, samples, (size_t)n * sizeof *samples);
    c->n_samples = n;
    c->rate = rate;
    c->best = work / best;
    return 1;
}

/* Warms up, samples `run` in bursts, and gives the ceiling; 0 after a failure. The rest between
 * bursts is as problems have it while their inputs are made: without one a GPU lowers its clock to
 * keep to its power, and the limit would lie below what a short problem reaches. */
static int sample(double (*run)(void *what), void *what, double seconds, double work,
                  bench_ceiling *c) {
    const double start = clock_now(), most = fmin(WARM_UP, seconds) + seconds;
    while (clock_now() - start < fmin(WARM_UP, seconds))
        if (isnan(run(what))) return 0;
    for (int burst = 0; burst < BURSTS; burst++) {
        if (burst) clock_rest(fmin(REST, seconds));
        if (!sample_burst(run, what, seconds / BURSTS, work, c)) return 0;
        if (clock_now() - start > most) break;
    }
    return 1;
}

/* ------------------------------------------------------------------ own loops */

/* A tenth of the memory, a gigabyte at most: far more than any cache, and soon filled. */
static uint64_t bytes_to_move(const bench_device *d) {
    uint64_t bytes = d->memory_bytes / 10;
    if (bytes > (1u << 30)) bytes = 1u << 30;
    if (strcmp(d->kind, "gpu") != 0 && bytes > (128u << 20)) bytes = 128u << 20;
    return bytes / GPU_TILE * GPU_TILE;
}

static void measure_loop(const gpu_driver *driver, void *gpu, const bench_device *d, int loop,
                         double seconds, const gpu_sink *sink) {
    static const uint32_t dtypes[GPU_LOOPS] = {0, 0, TESS_F32, TESS_F16, TESS_BF16};
    const int moves = loop == GPU_COPY || loop == GPU_READ;
    gpu_job job = {.loop = loop, .bytes = bytes_to_move(d), .turns = 64};
    bench_ceiling c = {.unit = loop == GPU_COPY   ? BENCH_COPY
                               : loop == GPU_READ ? BENCH_READ
                                                  : BENCH_GEMM,
                       .dtype = dtypes[loop],
                       .size = moves ? (int64_t)job.bytes : 0,
                       .own_loop = 1,
                       .library = "own loop"};
    double work = 0, once = 0;
    for (; job.turns <= MOST_TURNS; job.turns *= 4) {
        work = driver->prepare(gpu, &job);
        if (!(work > 0)) break;
        once = driver->run(gpu);
        if (moves || !(once < LEAST_RUN)) break;
    }
    snprintf(c.method, sizeof c.method, "%s", job.method);
    if (work > 0 && !isnan(once) && sample(driver->run, gpu, seconds, work, &c))
        sink->found(sink->user, &c);
    else if (job.why[0])
        sink->note(sink->user, job.why);
}

/* ------------------------------------------------------------------ libraries */

struct gpu_products {
    const gpu_library *library;
    operands rows; /* of A, which B repeats */
    void *p;
};

gpu_products *gpu_products_open(const gpu_library *library, const bench_device *d, uint32_t dtype,
                                int64_t n, bench_ceiling *c, char *why, size_t size) {
    gpu_products *x = calloc(1, sizeof *x);
    if (!x || !(x->p = calloc(1, library->size)) || operands_make(&x->rows, dtype, n) != 0) {
        snprintf(why, size, "out of memory");
        if (x) {
            free(x->p);
            free(x);
        }
        return NULL;
    }
    x->library = library;
    if (library->open(x->p, d, &x->rows, c, why, size) == 0) {
        gpu_products_run(x); /* loads code */
        return x;
    }
    gpu_products_close(x);
    return NULL;
}

double gpu_products_run(gpu_products *x) { return x->library->run(x->p); }
static double run_products(void *x) { return gpu_products_run(x); }

int gpu_products_check(gpu_products *x) {
    return operands_check(&x->rows, x->library->fetch, x->p);
}

void gpu_products_close(gpu_products *x) {
    x->library->close(x->p);
    operands_free(&x->rows);
    free(x->p);
    free(x);
}

/* Products of one size. Returns 1 when the library gave them; `*fast` where they say little, and
 * nothing was measured then. */
static int measure_size(const gpu_library *library, const bench_device *d, uint32_t dtype,
                        int64_t size, double seconds, int *fast, const gpu_sink *sink) {
    char why[256] = "";
    bench_ceiling c = {.unit = BENCH_GEMM, .dtype = dtype, .size = size};
    gpu_products *x = gpu_products_open(library, d, dtype, size, &c, why, sizeof why);
    if (x && fast && gpu_products_run(x) < FAST_PRODUCT) {
        gpu_products_close(x);
        *fast = 1;
        return 1;
    }
    const double n = (double)size;
    const int done =
        x && sample(run_products, x, seconds, 2 * n * n * n, &c) && gpu_products_check(x);
    if (done)
        sink->found(sink->user, &c);
    else
        sink->note(sink->user, why[0] ? why : "a product of the library failed or was wrong");
    if (x) gpu_products_close(x);
    return done;
}

/* Returns 1 when the library gave a product of the type. */
static int measure_products(const gpu_library *library, const bench_device *d, uint32_t dtype,
                            double seconds, const gpu_sink *sink) {
    int fast = 0;
    const int done = measure_size(library, d, dtype, PRODUCT_SMALL, seconds, &fast, sink);
    if (!done || !fast) return done;
    const int large = measure_size(library, d, dtype, PRODUCT_LARGE, seconds, NULL, sink);
    return measure_size(library, d, dtype, PRODUCT_MIDDLE, seconds, NULL, sink) || large;
}

void gpu_limits(const bench_device *d, double seconds, const gpu_sink *sink) {
    /* Every library has f32. */
    static const uint32_t dtypes[] = {TESS_F32, TESS_BF16, TESS_F16};
    char why[256] = "";
    for (size_t i = 0; i < sizeof libraries / sizeof *libraries; i++)
        for (int t = 0; t < 3 && strcmp(libraries[i]->backend, d->backend) == 0; t++) {
            const int found = measure_products(libraries[i], d, dtypes[t], seconds / 8, sink);
            if (t == 0 && !found) break; /* the library is not there */
        }
    const gpu_driver *driver = gpu_driver_of(d);
    void *gpu = driver ? gpu_open(driver, d, why, sizeof why) : NULL;
    if (!gpu) {
        sink->note(sink->user, driver ? why : "no loops are known for this backend");
        return;
    }
    for (int loop = GPU_COPY; loop < GPU_LOOPS; loop++)
        measure_loop(driver, gpu, d, loop, seconds / 8, sink);
    gpu_close(driver, gpu);
}
