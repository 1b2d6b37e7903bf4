/* SPDX-License-Identifier: Apache-2.0 */
#include "ceilings.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "gemm.h"
#include "machine.h"
#include "options.h"
#include "stats.h"

enum {
    GEMM_SIZE = 2048,
    GEMM_SMALL = 1024,
    GEMM_LARGE = 4096,
    MIN_SAMPLES = 3,
    MAX_SAMPLES = 16,
    COPY_PROVIDER = -1
};
/* seconds of one product of GEMM_SIZE */
static const double FAST_PRODUCT = 10e-3, SLOW_PRODUCT = 0.4;

static void note(bench_device *d, const char *text) {
    size_t used = strlen(d->ceiling_note);
    if (used + 1 < sizeof d->ceiling_note)
        snprintf(d->ceiling_note + used, sizeof d->ceiling_note - used, "%s%s", used ? "; " : "",
                 text);
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
    const char *p = (const char *)c;
    for (size_t left = sizeof *c; left;) {
        ssize_t n = write(out, p, left);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) _exit(1);
        p += n;
        left -= (size_t)n;
    }
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
    int rounds;
} copy_work;

static void *copy_thread(void *argument) {
    copy_work *w = argument;
    memset(w->from, 1, w->bytes); /* pages belong to the thread that uses them */
    memset(w->to, 2, w->bytes);
    for (int i = 0; i < w->rounds; i++) {
        pthread_barrier_wait(w->barrier);
        memcpy(w->to, w->from, w->bytes);
        __asm__ volatile("" : : "r"(w->to) : "memory");
        pthread_barrier_wait(w->barrier);
    }
    return NULL;
}

/* Failures end the child, and its memory goes with it. */
static void measure_copy(int threads, int out) {
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
    bench_ceiling c = {.unit = BENCH_COPY,
                       .size = (int64_t)(share * (size_t)threads),
                       .threads = threads,
                       .own_loop = 0};
    snprintf(c.library, sizeof c.library, "C library");
    snprintf(c.method, sizeof c.method, "memcpy, read + written bytes");
    for (int t = 0; t < threads; t++) {
        works[t] = (copy_work){&barrier, NULL, NULL, share, MAX_SAMPLES + 1};
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
    finish(&c, 2.0 * (double)c.size);
    send_ceiling(out, &c);
}

static void child_main(int provider, int threads, double seconds, int out) {
    char text[16];
    snprintf(text, sizeof text, "%d", threads);
    /* Read by the libraries when they are opened, so this comes first. */
    static const char *const variables[] = {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS",
                                            "MKL_NUM_THREADS", "BLIS_NUM_THREADS"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) setenv(variables[i], text, 1);
    setenv("OMP_DYNAMIC", "false", 1);
    if (provider == COPY_PROVIDER) {
        measure_copy(threads, out);
    } else {
        static const uint32_t dtypes[] = {TESS_F32, TESS_BF16, TESS_F16};
        for (int i = 0; i < 3; i++)
            for (int variant = 0; variant < 2; variant++)
                measure_gemm(provider, dtypes[i], variant, threads, seconds / 6, out);
    }
    _exit(0);
}

/* ------------------------------------------------------------------ in the parent */

/* Reads whole ceilings until the child ends or `limit` seconds have passed, then reaps it. Returns
 * -1 when out of memory. */
static int collect(bench_device *d, int in, pid_t child, const char *name, double limit) {
    double end = clock_now() + limit;
    bench_ceiling c;
    size_t have = 0;
    int killed = 0, status = 0, result = 0;
    for (;;) {
        double left = end - clock_now();
        struct pollfd p = {.fd = in, .events = POLLIN};
        int ready = left > 0 ? poll(&p, 1, (int)(left * 1000) + 1) : 0;
        if (ready < 0 && errno == EINTR) {
            if (clock_interrupted())
                ready = 0;
            else
                continue;
        }
        if (ready <= 0) {
            killed = 1;
            kill(child, SIGKILL);
            break;
        }
        ssize_t n = read(in, (char *)&c + have, sizeof c - have);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        have += (size_t)n;
        if (have == sizeof c) {
            bench_ceiling *to = device_add_ceiling(d);
            if (to)
                *to = c;
            else
                result = -1;
            have = 0;
        }
    }
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    char text[96];
    if (killed && !clock_interrupted()) {
        snprintf(text, sizeof text, "%s took longer than %.0f s", name, limit);
        note(d, text);
    } else if (!killed && WIFSIGNALED(status)) {
        snprintf(text, sizeof text, "%s ended by signal %d", name, WTERMSIG(status));
        note(d, text);
    } else if (!killed && WEXITSTATUS(status) != 0) {
        snprintf(text, sizeof text, "%s could not be measured", name);
        note(d, text);
    }
    return result;
}

static int measure_in_child(bench_device *d, int provider, const char *name, int threads,
                            double seconds) {
    int pipe_ends[2];
    if (pipe(pipe_ends) != 0) return note(d, "pipe() failed"), 0;
    fflush(NULL);
    pid_t child = fork();
    if (child < 0) {
        close(pipe_ends[0]);
        close(pipe_ends[1]);
        note(d, "fork() failed");
        return 0;
    }
    if (child == 0) {
        close(pipe_ends[0]);
        child_main(provider, threads, seconds, pipe_ends[1]);
    }
    close(pipe_ends[1]);
    int result = collect(d, pipe_ends[0], child, name, 20 + 2 * seconds);
    close(pipe_ends[0]);
    return result;
}

int ceilings_cpu(bench_device *d, int threads, double seconds) {
    int status = measure_in_child(d, COPY_PROVIDER, "the copy", threads, seconds / 4);
    for (int p = 0; p < GEMM_PROVIDERS && status == 0 && !clock_interrupted(); p++) {
        int any = 0;
        for (int i = 0; i < d->n_ceilings; i++) any |= d->ceilings[i].unit == BENCH_GEMM;
        if (gemm_provider_is_own(p) && any) break;
        status = measure_in_child(d, p, gemm_provider_name(p), threads, seconds / 3);
    }
    return status;
}

int ceilings_device_copy(bench_device *d, tess_device *device, double seconds) {
    enum { BYTES = 256 << 20 };
    tess_buffer a = {0}, b = {0};
    bench_ceiling c = {.unit = BENCH_COPY, .size = BYTES};
    snprintf(c.library, sizeof c.library, "%s", d->backend);
    snprintf(c.method, sizeof c.method, "tess_copy, read + written bytes");
    tess_status status = tess_alloc(device, BYTES, &a);
    if (status == TESS_OK) status = tess_alloc(device, BYTES, &b);
    if (status == TESS_OK) status = tess_copy(device, b, a, BYTES);
    double start = clock_now();
    while (status == TESS_OK && (c.n_samples < MIN_SAMPLES ||
                                 (c.n_samples < MAX_SAMPLES && clock_now() - start < seconds))) {
        double t = clock_now();
        status = tess_copy(device, b, a, BYTES);
        c.samples[c.n_samples++] = clock_now() - t;
    }
    if (status != TESS_OK) note(d, cli_why());
    tess_free(device, &a);
    tess_free(device, &b);
    if (status != TESS_OK) return 0;
    finish(&c, 2.0 * BYTES);
    bench_ceiling *to = device_add_ceiling(d);
    if (!to) return -1;
    *to = c;
    return 0;
}
