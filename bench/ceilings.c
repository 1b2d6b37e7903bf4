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
enum { AGAIN_COPIES = 5 }; /* in another round */
static const double AGAIN_SECONDS = 0.2;
/* After so many seconds of a device, on a busy machine, its loops alone follow. */
static const double MOST_FOR_LIBRARIES = 15;
/* seconds of one product of GEMM_SIZE */
static const double FAST_PRODUCT = 20e-3, SLOW_PRODUCT = 0.4;

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

/* Returns the seconds of a product; 0: there is none. */
static double measure_gemm(int provider, uint32_t dtype, int variant, int64_t n, int threads,
                           double seconds, int out) {
    const int own = gemm_provider_is_own(provider);
    char reason[256];
    gemm *g = gemm_open(provider, dtype, variant, n, threads, reason, sizeof reason);
    if (!g) return 0;
    if (gemm_run(g) != 0) return 0; /* first use: code generation, page faults */
    double start = clock_now();
    if (gemm_run(g) != 0) return 0;
    const double one = clock_now() - start;
    /* A slow product would eat the time of the others. */
    if (one > SLOW_PRODUCT && n > GEMM_SMALL && !own) {
        gemm_close(g);
        return measure_gemm(provider, dtype, variant, GEMM_SMALL, threads, seconds, out);
    }
    bench_ceiling c = {.unit = BENCH_GEMM,
                       .dtype = dtype,
                       .size = own ? 0 : n,
                       .threads = threads,
                       .own_loop = own,
                       .provider = provider,
                       .variant = variant};
    snprintf(c.library, sizeof c.library, "%s", gemm_library(g));
    snprintf(c.method, sizeof c.method, "%s", gemm_method(g));
    start = clock_now();
    while (c.n_samples < MIN_SAMPLES ||
           (c.n_samples < MAX_SAMPLES && clock_now() - start < seconds)) {
        double t = clock_now();
        if (gemm_run(g) != 0) return 0;
        c.samples[c.n_samples++] = clock_now() - t;
    }
    if (!gemm_check(g)) return 0; /* a wrong product is no ceiling */
    finish(&c, gemm_flops(g));
    send_ceiling(out, &c);
    gemm_close(g);
    return own ? INFINITY : one;
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
static void measure_copy(int reads, int n_samples, int threads, int out) {
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
        works[t] = (copy_work){&barrier, NULL, NULL, share, n_samples + 1, reads};
        void *to = NULL, *from = NULL;
        if (posix_memalign(&to, 4096, share) != 0 || posix_memalign(&from, 4096, share) != 0)
            _exit(1);
        works[t].to = to;
        works[t].from = from;
        if (machine_thread(&ids[t], t, copy_thread, &works[t]) != 0) _exit(1);
    }
    for (int i = 0; i <= n_samples; i++) {
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
    const bench_ceiling *again = &job->again;
    if (again->rate > 0) {
        measure_gemm(job->provider, again->dtype, again->variant,
                     again->size ? again->size : GEMM_SIZE, job->threads, job->seconds, out);
        return;
    }
    for (int i = 0; i < 3; i++)
        for (int variant = 0; variant < 2; variant++) {
            const double part = job->seconds / 6,
                         one = measure_gemm(job->provider, dtypes[i], variant, GEMM_SIZE,
                                            job->threads, part, out);
            /* One that is over soon says little about a machine of many cores. */
            if (one > 0 && one < FAST_PRODUCT)
                measure_gemm(job->provider, dtypes[i], variant, GEMM_LARGE, job->threads, part,
                             out);
        }
}

static void child_main(const limits_job *job, int out) {
    char text[16];
    snprintf(text, sizeof text, "%d", job->threads);
    /* Read by the libraries when they are opened, so this comes first. */
    static const char *const variables[] = {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS",
                                            "MKL_NUM_THREADS", "BLIS_NUM_THREADS"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) setenv(variables[i], text, 1);
    setenv("OMP_DYNAMIC", "false", 1);
    setenv("OMP_PLACES", "threads", 1); /* a CPU for each, as loops and kernels have it */
    setenv("OMP_PROC_BIND", "true", 1);
    const gpu_sink sink = {found_on_gpu, note_on_gpu, &out};
    if (job->kind == GPU_ALL)
        gpu_limits(&job->device, job->seconds, &sink);
    else if (job->kind == CPU_PRODUCTS)
        measure_products(job, out);
    else
        measure_copy(job->kind == CPU_READ, job->again.rate > 0 ? AGAIN_COPIES : MAX_SAMPLES,
                     job->threads, out);
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

/* Notes what a round showed; the best one stays. */
static void take_round(void *user, const limits_message *m) {
    bench_ceiling *c = user;
    const bench_ceiling *next = &m->ceiling;
    if (!(next->rate > 0) || c->n_rounds == BENCH_MAX_ROUNDS) return;
    c->rounds[c->n_rounds++] = next->rate;
    if (next->rate <= c->rate) return;
    c->rate = next->rate;
    c->best = next->best;
    c->n_samples = next->n_samples;
    memcpy(c->samples, next->samples, sizeof c->samples);
}

static int any_of(const bench_device *d, int unit) {
    for (int i = 0; i < d->n_ceilings; i++)
        if (d->ceilings[i].unit == unit) return 1;
    return 0;
}

static int measure_cpu(limits_server *s, bench_device *d, int threads, double seconds) {
    const double start = clock_now();
    limits_job job = {.kind = CPU_COPY, .threads = threads, .seconds = seconds / 4};
    snprintf(job.name, sizeof job.name, "the copy");
    int status = run_job(s, d, &job);
    job.kind = CPU_READ;
    snprintf(job.name, sizeof job.name, "reading");
    if (status == 0) status = run_job(s, d, &job);
    for (int p = 0; p < GEMM_PROVIDERS && status == 0 && !clock_interrupted(); p++) {
        if (!gemm_provider_is_own(p) && clock_now() - start > MOST_FOR_LIBRARIES) {
            char text[64];
            snprintf(text, sizeof text, "no time for %s", gemm_provider_name(p));
            note(d, text);
            continue;
        }
        job = (limits_job){
            .kind = CPU_PRODUCTS, .provider = p, .threads = threads, .seconds = seconds / 3};
        snprintf(job.name, sizeof job.name, "%s", gemm_provider_name(p));
        status = run_job(s, d, &job);
    }
    return status;
}

static int is_gpu(const bench_device *d) { return strcmp(d->kind, "gpu") == 0; }

/* The best product of each type, the copy and the read: what shares may refer to. */
static int counts(const bench_device *d, int i) {
    const bench_ceiling *c = &d->ceilings[i];
    for (int k = 0; k < d->n_ceilings; k++) {
        const bench_ceiling *o = &d->ceilings[k];
        if (o->unit == c->unit && (c->unit != BENCH_GEMM || o->dtype == c->dtype) &&
            (o->rate > c->rate || (o->rate == c->rate && k < i)))
            return 0;
    }
    return 1;
}

/* The largest of what the rounds of any limit differ by. */
static int find_drift(bench_device *d) {
    d->drift = NAN;
    for (int i = 0; i < d->n_ceilings; i++) {
        const bench_ceiling *c = &d->ceilings[i];
        stats_summary rounds;
        if (c->n_rounds < 2) continue;
        if (stats_summarize(c->rounds, (size_t)c->n_rounds, &rounds) != 0) return -1;
        if (!(d->drift >= rounds.spread)) d->drift = rounds.spread;
        if (d->rounds < c->n_rounds) d->rounds = c->n_rounds;
    }
    return 0;
}

int ceilings_again(limits_server *s, bench_device *d) {
    if (!s || is_gpu(d)) return 0;
    for (int i = 0; i < d->n_ceilings && !clock_interrupted(); i++) {
        bench_ceiling *c = &d->ceilings[i];
        if (!c->n_rounds && !counts(d, i)) continue;
        if (!c->n_rounds) c->rounds[c->n_rounds++] = c->rate;
        limits_job job = {.kind = c->unit == BENCH_GEMM   ? CPU_PRODUCTS
                                  : c->unit == BENCH_COPY ? CPU_COPY
                                                          : CPU_READ,
                          .provider = c->provider,
                          .threads = c->threads,
                          .again = *c,
                          .seconds = AGAIN_SECONDS,
                          .limit = 20};
        snprintf(job.name, sizeof job.name, "another round of %.30s", c->library);
        if (limits_run(s, &job, take_round, c) != 0) break;
    }
    return find_drift(d);
}

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
        stages_of(d->stages);
        stage_enter(STAGE_LIMITS);
        snprintf(text, sizeof text, "limits of %s", d->id);
        tell(user, text);
        /* Software devices run on the CPUs that this process may use. */
        status = is_gpu(d) ? measure_gpu(s, r, i, seconds)
                           : measure_cpu(s, d,
                                         strcmp(d->kind, "cpu") == 0 && d->compute_units
                                             ? (int)d->compute_units
                                             : r->machine.cpus_allowed,
                                         seconds);
        stages_of(NULL);
    }
    return status;
}
