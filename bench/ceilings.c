/* SPDX-License-Identifier: Apache-2.0 */
#include "ceilings.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tessera/tessera.h>

#include "clock.h"
#include "gemm.h"
#include "limits/gpu.h"
#include "limits/server.h"
#include "machine.h"
#include "read_loop.h"
#include "stats.h"

enum { GEMM_SIZE = 2048, GEMM_SMALL = 1024, GEMM_LARGE = 4096, MIN_SAMPLES = 3, MAX_SAMPLES = 16 };
/* seconds of one product of GEMM_SIZE */
static const double FAST_PRODUCT = 10e-3, SLOW_PRODUCT = 0.4;

/* Kinds of jobs. */
enum { CPU_COPY, CPU_READ, CPU_PRODUCTS, GPU_ALL };

static void note(bench_device *d, const char *text) {
    size_t used = strlen(d->ceiling_note);
    if (used + 1 < sizeof d->ceiling_note)
        snprintf(d->ceiling_note + used, sizeof d->ceiling_note - used, "%s%.200s",
                 used ? "; " : "", text);
}

/* Turns samples in seconds into rates. `work` is FLOP or bytes of one sample. */
static void finish(bench_ceiling *c, double work) {
    double best = c->samples[0];
    for (int i = 1; i < c->n_samples; i++)
        if (c->samples[i] < best) best = c->samples[i];
    c->rate = work / stats_median(c->samples, (size_t)c->n_samples);
    c->best = work / best;
}

/* ------------------------------------------------------------------ in the child */

static void send_ceiling(int out, const bench_ceiling *c) {
    limits_message m = {.ceiling = *c};
    limits_send(out, &m);
}

static void measure_gemm(int provider, uint32_t dtype, int variant, int threads, double seconds,
                         int out) {
    char reason[256];
    int64_t n = GEMM_SIZE;
    gemm *g = gemm_open(provider, dtype, variant, n, threads, reason, sizeof reason);
    if (!g) return;
    if (gemm_run(g) != 0) return; /* first use: code generation, page faults */
    double start = clock_now();
    if (gemm_run(g) != 0) return;
    double one = clock_now() - start;
    /* A product that is over in no time says little about a many-core machine, and a slow one would
     * eat the time of the others. */
    int64_t better = one > SLOW_PRODUCT ? GEMM_SMALL : one < FAST_PRODUCT ? GEMM_LARGE : n;
    if (better != n && !gemm_provider_is_own(provider)) {
        gemm_close(g);
        g = gemm_open(provider, dtype, variant, better, threads, reason, sizeof reason);
        if (!g || gemm_run(g) != 0) return;
        n = better;
    }
    bench_ceiling c = {.unit = BENCH_GEMM,
                       .dtype = dtype,
                       .size = n,
                       .threads = threads,
                       .own_loop = gemm_provider_is_own(provider)};
    snprintf(c.library, sizeof c.library, "%s", gemm_library(g));
    snprintf(c.method, sizeof c.method, "%s", gemm_method(g));
    start = clock_now();
    while (c.n_samples < MIN_SAMPLES ||
           (c.n_samples < MAX_SAMPLES && clock_now() - start < seconds)) {
        double t = clock_now();
        if (gemm_run(g) != 0) return;
        c.samples[c.n_samples++] = clock_now() - t;
    }
    if (!gemm_check(g)) return; /* a wrong product is no ceiling */
    finish(&c, gemm_flops(g));
    send_ceiling(out, &c);
    gemm_close(g);
}

typedef struct copy_work {
    pthread_barrier_t *barrier;
    char *to, *from;
    size_t bytes;
    int rounds, reads;
} copy_work;

static void *copy_thread(void *argument) {
    copy_work *w = argument;
    memset(w->from, 1, w->bytes); /* pages belong to the thread that uses them */
    if (!w->reads) memset(w->to, 2, w->bytes);
    for (int i = 0; i < w->rounds; i++) {
        pthread_barrier_wait(w->barrier);
        if (w->reads)
            w->to[0] = (char)read_loop(w->from, w->bytes);
        else
            memcpy(w->to, w->from, w->bytes);
        __asm__ volatile("" : : "r"(w->to) : "memory");
        pthread_barrier_wait(w->barrier);
    }
    return NULL;
}

/* Failures end the child, and its memory goes with it. */
static void measure_copy(int reads, int threads, int out) {
    /* Several times the last cache, so that the copy is about memory, yet small enough to touch
     * quickly. */
    uint64_t bytes = 4 * machine_cache_bytes(3), memory = machine_memory_bytes();
    if (bytes < (64u << 20)) bytes = 64u << 20;
    if (bytes > (512u << 20)) bytes = 512u << 20;
    if (memory && bytes > memory / 8) bytes = memory / 8;
    size_t share = (size_t)(bytes / (uint64_t)threads) & ~(size_t)4095;
    pthread_barrier_t barrier;
    pthread_t *ids = calloc((size_t)threads, sizeof *ids);
    copy_work *works = calloc((size_t)threads, sizeof *works);
    if (share == 0 || !ids || !works ||
        pthread_barrier_init(&barrier, NULL, (unsigned)threads + 1) != 0)
        _exit(1);
    bench_ceiling c = {.unit = reads ? BENCH_READ : BENCH_COPY,
                       .size = (int64_t)(share * (size_t)threads),
                       .threads = threads,
                       .own_loop = reads};
    snprintf(c.library, sizeof c.library, reads ? "own loop" : "C library");
    snprintf(c.method, sizeof c.method,
             reads ? "sum of words of 64 bits" : "memcpy, read + written bytes");
    for (int t = 0; t < threads; t++) {
        works[t] = (copy_work){&barrier, NULL, NULL, share, MAX_SAMPLES + 1, reads};
        void *to = NULL, *from = NULL;
        if (posix_memalign(&to, 4096, share) != 0 || posix_memalign(&from, 4096, share) != 0)
            _exit(1);
        works[t].to = to;
        works[t].from = from;
        if (pthread_create(&ids[t], NULL, copy_thread, &works[t]) != 0) _exit(1);
    }
    for (int i = 0; i <= MAX_SAMPLES; i++) {
        pthread_barrier_wait(&barrier);
        double start = clock_now();
        pthread_barrier_wait(&barrier);
        if (i > 0) c.samples[c.n_samples++] = clock_now() - start; /* the first one warms up */
    }
    for (int t = 0; t < threads; t++) pthread_join(ids[t], NULL);
    finish(&c, (reads ? 1.0 : 2.0) * (double)c.size);
    send_ceiling(out, &c);
}

static void found_on_gpu(void *user, const bench_ceiling *c) { send_ceiling(*(int *)user, c); }

static void note_on_gpu(void *user, const char *text) {
    limits_message m = {.last = 0};
    snprintf(m.note, sizeof m.note, "%s", text);
    limits_send(*(int *)user, &m);
}

static void measure_products(const limits_job *job, int out) {
    static const uint32_t dtypes[] = {TESS_F32, TESS_BF16, TESS_F16};
    for (int i = 0; i < 3; i++)
        for (int variant = 0; variant < 2 && !(job->known >> dtypes[i] & 1); variant++)
            measure_gemm(job->provider, dtypes[i], variant, job->threads, job->seconds / 6, out);
}

static void child_main(const limits_job *job, int out) {
    char text[16];
    snprintf(text, sizeof text, "%d", job->threads);
    /* Read by the libraries when they are opened, so this comes first. */
    static const char *const variables[] = {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS",
                                            "MKL_NUM_THREADS", "BLIS_NUM_THREADS"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) setenv(variables[i], text, 1);
    setenv("OMP_DYNAMIC", "false", 1);
    const gpu_sink sink = {found_on_gpu, note_on_gpu, &out};
    if (job->kind == GPU_ALL)
        gpu_limits(&job->device, job->seconds, &sink);
    else if (job->kind == CPU_PRODUCTS)
        measure_products(job, out);
    else
        measure_copy(job->kind == CPU_READ, job->threads, out);
}

/* ------------------------------------------------------------------ in the parent */

limits_server *ceilings_start(void) { return limits_start(child_main); }
void ceilings_stop(limits_server *s) { limits_stop(s); }

void ceilings_identify(bench_device *d) {
    const gpu_driver *driver = gpu_driver_of(d);
    if (driver && strcmp(d->kind, "gpu") == 0) driver->identify(d);
}

/* Where the messages of a job go. */
typedef struct target {
    bench_device *d;
    int failed;
} target;

static void take(void *user, const limits_message *m) {
    target *t = user;
    if (m->note[0]) note(t->d, m->note);
    if (!(m->ceiling.rate > 0)) return;
    bench_ceiling *to = device_add_ceiling(t->d);
    if (to)
        *to = m->ceiling;
    else
        t->failed = -1;
}

static int run_job(limits_server *s, bench_device *d, limits_job *job) {
    target t = {d, 0};
    job->device = *d;
    job->limit = 20 + 2 * job->seconds;
    if (limits_run(s, job, take, &t) != 0 && !clock_interrupted())
        note(d, "the process that measures limits has ended");
    return t.failed;
}

static int any_of(const bench_device *d, int unit) {
    for (int i = 0; i < d->n_ceilings; i++)
        if (d->ceilings[i].unit == unit) return 1;
    return 0;
}

/* Types that have a product, a bit each. */
static int types_of_products(const bench_device *d) {
    int types = 0;
    for (int i = 0; i < d->n_ceilings; i++)
        if (d->ceilings[i].unit == BENCH_GEMM) types |= 1 << d->ceilings[i].dtype;
    return types;
}

static int measure_cpu(limits_server *s, bench_device *d, int threads, double seconds) {
    limits_job job = {.kind = CPU_COPY, .threads = threads, .seconds = seconds / 4};
    snprintf(job.name, sizeof job.name, "the copy");
    int status = run_job(s, d, &job);
    job.kind = CPU_READ;
    snprintf(job.name, sizeof job.name, "reading");
    if (status == 0) status = run_job(s, d, &job);
    for (int p = 0; p < GEMM_PROVIDERS && status == 0 && !clock_interrupted(); p++) {
        job = (limits_job){.kind = CPU_PRODUCTS,
                           .provider = p,
                           .threads = threads,
                           .seconds = seconds / 3,
                           .known = gemm_provider_is_own(p) ? types_of_products(d) : 0};
        snprintf(job.name, sizeof job.name, "%s", gemm_provider_name(p));
        status = run_job(s, d, &job);
    }
    return status;
}

static int is_gpu(const bench_device *d) { return strcmp(d->kind, "gpu") == 0; }

/* Whether a device before this one is the same GPU. */
static int is_known(const bench_report *r, int index) {
    for (int i = 0; i < index; i++)
        if (device_same(&r->devices[i], &r->devices[index])) return 1;
    return 0;
}

/* Gives a device what another interface of the same GPU has shown. */
static int share_ceilings(const bench_device *from, bench_device *to) {
    free(to->ceilings);
    to->ceilings = NULL;
    to->n_ceilings = 0;
    for (int i = 0; i < from->n_ceilings; i++) {
        bench_ceiling *c = device_add_ceiling(to);
        if (!c) return -1;
        *c = from->ceilings[i];
        snprintf(c->via, sizeof c->via, "%s", from->id);
    }
    to->ceiling_note[0] = 0; /* what its own job lacked is there now */
    return 0;
}

/* One GPU: through the interface that has a vendor's library, else through the first that gives
 * anything. What is found counts for the others. */
static int measure_gpu(limits_server *s, bench_report *r, int first, double seconds) {
    int status = 0, found = -1;
    for (int rank = GPU_RANKS - 1; rank >= 0; rank--)
        for (int i = first; i < r->n_devices && status == 0 && found < 0; i++) {
            bench_device *d = &r->devices[i];
            if ((i != first && !device_same(&r->devices[first], d)) || clock_interrupted() ||
                gpu_library_rank(d) != rank)
                continue;
            limits_job job = {.kind = GPU_ALL, .seconds = seconds};
            snprintf(job.name, sizeof job.name, "limits of %.40s", d->id);
            status = run_job(s, d, &job);
            if (any_of(d, BENCH_GEMM)) found = i;
        }
    for (int i = first; i < r->n_devices && status == 0 && found >= 0; i++)
        if (i != found && device_same(&r->devices[found], &r->devices[i]))
            status = share_ceilings(&r->devices[found], &r->devices[i]);
    return status;
}

int ceilings_measure(limits_server *s, bench_report *r, double seconds,
                     void (*tell)(void *user, const char *text), void *user) {
    int status = 0;
    for (int i = 0; i < r->n_devices && status == 0 && !clock_interrupted(); i++) {
        bench_device *d = &r->devices[i];
        char text[96];
        if (is_gpu(d) && is_known(r, i)) continue;
        snprintf(text, sizeof text, "limits of %s", d->id);
        tell(user, text);
        /* Software devices run on the CPUs that this process may use. */
        status = is_gpu(d) ? measure_gpu(s, r, i, seconds)
                           : measure_cpu(s, d,
                                         strcmp(d->kind, "cpu") == 0 && d->compute_units
                                             ? (int)d->compute_units
                                             : r->machine.cpus_allowed,
                                         seconds);
    }
    return status;
}
