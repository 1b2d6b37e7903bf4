/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contestants are timed in rounds: each has one sample in every round. What else the machine does
 * at some moment then meets all of them, and the ratio of two medians is not that of a good second
 * to a bad one. Every round has the same order: were it turned round, a sample would find its own
 * keys in the last cache after itself and not after another, and the median would lie between both.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "layers.h"
#include "measure.h"
#include "options.h"
#include "sensors.h"
#include "text.h"

enum { MIN_ROUNDS = 3, GOOD_ROUNDS = 7, MOST_RUNS = 64 };
static const double GPU_WARM_UP = 0.1, CPU_WARM_UP = 0.03;
/* A GPU that has rested raises its clock while work goes on, in steps, some longer than 0.25 s. It
 * is warm when its clock is that near to the highest one, or has not risen for a while. */
static const double AWAKE = 0.75, STEADY = 0.5, GPU_WARM_UP_MOST = 2, LOOK_EVERY = 0.02;
/* No run just to warm up is worth that much. */
static const double SLOW_RUN = CONTEST_SLOW_RUN, SLOW_AGAIN = 0.3;
/* Runs of a sample together take so long at least, where they are short. */
static const double SAMPLE_SECONDS = 1e-3;
/* A contest whose results are noisy may go on for so many times its time. */
static const double PATIENCE = 2;

static int lose(contestant *c, int status, const char *why) {
    c->result.status = status;
    snprintf(c->result.note, sizeof c->result.note, "%s", why);
    cli_one_line(c->result.note);
    return -1;
}

static int is_in(const contestant *c) { return c->open && c->result.status == BENCH_OK; }

/* Seconds of a run, by one sample. */
static double sample(contestant *c) {
    if (c->turns) {
        c->result.runs += (int64_t)c->turns * c->x.n_layers;
        return layers_time(&c->x, c->turns);
    }
    double sum = 0;
    for (int i = 0; i < c->at_once; i++) sum += measure_run(&c->x);
    c->result.runs += c->at_once;
    return sum / c->at_once;
}

/* What the first sample took. */
static double sample_seconds(const contestant *c) {
    return c->result.samples[0] * (c->turns ? (double)c->turns * c->x.n_layers : c->at_once);
}

/* How fast a GPU is while it warms up: its clock, or where that cannot be read, rounds a second. */
typedef struct pace {
    double looked, rose, fastest;
} pace;

static int is_warm(pace *p, const bench_device *d, double round_seconds) {
    const double now = clock_now();
    if (now - p->looked < LOOK_EVERY) return 0;
    p->looked = now;
    const double clock = sensors_read(d).clock_hz, rate = isnan(clock) ? 1 / round_seconds : clock;
    if (clock >= AWAKE * sensors_top_clock(d)) return 1;
    if (!(rate <= 1.02 * p->fastest)) {
        p->fastest = rate;
        p->rose = now;
    }
    return now - p->rose >= STEADY;
}

/* Runs all in turns until the device is warm. A run of a CPU that takes longer than that has warmed
 * it. */
static void warm_up(contestant *const *all, int n, const bench_device *d) {
    const int gpu = d && strcmp(d->kind, "gpu") == 0;
    const double start = clock_now(), seconds = gpu ? GPU_WARM_UP : CPU_WARM_UP;
    pace p = {0};
    for (int round = 0, warm = 0; !warm && !clock_interrupted(); round++) {
        const double begin = clock_now();
        int any = 0;
        for (int i = 0; i < n && !clock_interrupted(); i++) {
            contestant *c = all[i];
            /* The first run of all may have loaded code for a while; a turn came after it. */
            if (!is_in(c) || c->latest > (round ? gpu ? SLOW_AGAIN : seconds : SLOW_RUN) ||
                (!gpu && c->turn > seconds))
                continue;
            c->at_once = 1;
            c->latest = c->turns ? layers_time(&c->x, 1) : measure_run(&c->x);
            if (isnan(c->latest)) lose(c, BENCH_FAILED, c->x.error);
            any = 1;
        }
        if (!any) break;
        const double now = clock_now();
        warm = now - start >= seconds &&
               (!gpu || now - start >= GPU_WARM_UP_MOST || is_warm(&p, d, now - begin));
    }
    for (int i = 0; i < n; i++) {
        const double runs = SAMPLE_SECONDS / all[i]->latest;
        all[i]->at_once = runs >= MOST_RUNS ? MOST_RUNS : runs > 1 ? (int)runs : 1;
        all[i]->result.runs = 0;
    }
}

static int any_noisy(contestant *const *all, int n) {
    int noisy = 0;
    for (int i = 0; i < n; i++) {
        bench_result *r = &all[i]->result;
        if (is_in(all[i]) && result_summarize(r) == 0)
            noisy |= r->q3 - r->q1 > BENCH_NOISY * r->median;
    }
    return noisy;
}

static int goes_on(contestant *const *all, int n, int round, double elapsed, double seconds) {
    if (round < MIN_ROUNDS) return 1;
    if (round >= BENCH_MAX_SAMPLES) return 0;
    if (elapsed < seconds) return 1;
    if (elapsed >= PATIENCE * seconds) return 0;
    return round < GOOD_ROUNDS || any_noisy(all, n);
}

/* Runs may take longer than foretold. Where those of the first round show that the fewest rounds
 * would not fit, the slowest leave. */
static void keep_to(contestant *const *all, int n, double most, double elapsed) {
    for (;;) {
        contestant *slowest = NULL;
        double sum = 0;
        char run[TEXT_SIZE], left[TEXT_SIZE], why[128];
        for (int i = 0; i < n; i++) {
            if (!is_in(all[i])) continue;
            sum += sample_seconds(all[i]);
            if (!slowest || sample_seconds(all[i]) > sample_seconds(slowest)) slowest = all[i];
        }
        if (!slowest || (MIN_ROUNDS - 1) * sum <= most - elapsed) return;
        bench_result *r = &slowest->result;
        r->need_seconds = MIN_ROUNDS * sample_seconds(slowest);
        r->estimate_seconds = r->samples[0];
        snprintf(why, sizeof why, "a run takes %s, %s are left for it",
                 text_seconds(run, sizeof run, r->samples[0]),
                 text_seconds(left, sizeof left, fmax(most - elapsed, 0)));
        r->n_samples = 0;
        lose(slowest, BENCH_SLOW, why);
    }
}

/* Joules of a run, over half a second or more: counters of energy move a few times a second. */
static void measure_energy(contestant *c, const bench_device *d, double seconds) {
    const double start = clock_now(), before = sensors_joules(d);
    const int64_t timed = c->result.runs;
    if (isnan(before)) return;
    c->result.runs = 0;
    while (clock_now() - start < seconds)
        if (isnan(sample(c))) break;
    const double joules = sensors_joules(d) - before;
    if (joules > 0 && c->result.runs) c->result.joules = joules / (double)c->result.runs;
    c->result.runs = timed;
}

void contest(contestant *const *all, int n, const bench_device *d, const measure_limits *limits) {
    const bench_stage stage = stage_enter(STAGE_WARM_UP);
    warm_up(all, n, d);
    stage_enter(STAGE_ROUNDS);
    const bench_sensors before = sensors_read(d);
    const double start = clock_now();
    for (int round = 0; goes_on(all, n, round, clock_now() - start, limits->seconds * n); round++) {
        if (round == 1 && limits->most > 0) keep_to(all, n, limits->most, clock_now() - start);
        for (int i = 0; i < n; i++) {
            contestant *c = all[i];
            if (!is_in(c)) continue;
            if (clock_interrupted()) {
                lose(c, BENCH_INTERRUPTED, "interrupted");
                continue;
            }
            const double t = sample(c);
            if (isnan(t))
                lose(c, BENCH_FAILED, c->x.error);
            else
                c->result.samples[c->result.n_samples++] = t;
        }
    }
    const bench_sensors after = sensors_read(d);
    stage_enter(STAGE_ENERGY);
    for (int i = 0; i < n; i++) {
        contestant *c = all[i];
        if (!is_in(c)) continue;
        c->result.before = before;
        c->result.after = after;
        if (result_summarize(&c->result) != 0) lose(c, BENCH_FAILED, "out of memory");
        if (limits->energy_seconds > 0 && !clock_interrupted())
            measure_energy(c, d, limits->energy_seconds);
    }
    stage_enter(stage);
}
