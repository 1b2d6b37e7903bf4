/* SPDX-License-Identifier: Apache-2.0 */
#include "runner.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tessera/tessera.h>

#include "ceilings.h"
#include "clock.h"
#include "devices.h"
#include "layers.h"
#include "machine.h"
#include "measure.h"
#include "options.h"
#include "planning.h"
#include "progress.h"
#include "report.h"
#include "text.h"

enum { RUNS_AT_LEAST = 4 /* the first and three timed ones */ };
static const double DECODE_GUESS = 4e9;

/* Everything a step needs to know. */
typedef struct session {
    const run_options *options;
    bench_report *report;
    tess_runtime *runtime;
    tess_device *device;
    int index;          /* of the device in the report */
    const char *kernel; /* NULL: the device's choice */
    /* FLOP/s of the last dense problem in each dtype; 0: not known yet, negative: the kernel
     * does not take the dtype */
    double speed[3];
    double decode_rate;  /* B/s of the last decode problem, at first a guess */
    double deadline;     /* for this device and kernel */
    uint64_t host_bytes; /* that a problem may take */
    uint64_t device_bytes;
    progress bar;
    int failed;
} session;

static int out_of_memory(void) { return cli_error(CLI_FAILED, "bench", "out of memory"); }

/* ------------------------------------------------------------------ settings */

static int read_settings(tess_runtime *runtime, bench_report *report) {
    tess_setting_info s = {.struct_size = sizeof s};
    for (uint32_t i = 0; tess_runtime_setting(runtime, i, &s) == TESS_OK; i++) {
        bench_setting *to = report_add_setting(report);
        if (!to) return -1;
        snprintf(to->name, sizeof to->name, "%s", s.name);
        snprintf(to->value, sizeof to->value, "%s", s.value);
        snprintf(to->source, sizeof to->source, "%s", s.source);
    }
    return 0;
}

/* ------------------------------------------------------------------ one problem */

static const bench_result *already_measured(const session *s, const char *family,
                                            const char *line) {
    for (int i = 0; i < s->report->n_results; i++) {
        const bench_result *x = &s->report->results[i];
        if (x->device == s->index && strcmp(x->family, family) == 0 && strcmp(x->line, line) == 0 &&
            (!s->kernel || strcmp(x->kernel, s->kernel) == 0))
            return x;
    }
    return NULL;
}

static void say_failure(session *s, const bench_result *x) {
    char line[BENCH_LINE + 1024];
    const bench_device *d = &s->report->devices[s->index];
    const char *kernel = x->kernel[0] ? x->kernel : s->kernel ? s->kernel : "";
    snprintf(line, sizeof line,
             "tessera bench: FAILED on %s%s%s: %s\n  reproduce: TESSERA_BACKEND=%s %s%s%stessera "
             "bench %s",
             d->id, kernel[0] ? ", " : "", kernel, x->note, d->id,
             kernel[0] ? "TESSERA_KERNEL=" : "", kernel, kernel[0] ? " " : "", x->line);
    progress_say(&s->bar, line);
    s->failed = 1;
}

/* Adds a result with the family and the twin set. */
static bench_result *new_result(session *s, const char *family, const char *line) {
    bench_result *x = report_add_result(s->report);
    if (!x) return NULL;
    x->device = s->index;
    snprintf(x->family, sizeof x->family, "%s", family);
    if (s->kernel) snprintf(x->kernel, sizeof x->kernel, "%s", s->kernel);
    suite_twin(line, x->twin_line, sizeof x->twin_line);
    return x;
}

static int skip(session *s, const char *family, const char *line, double need, double ideal,
                const char *why) {
    bench_result *x = new_result(s, family, line);
    if (!x) return -1;
    measure_describe(line, x);
    x->status = need > 0 ? BENCH_SLOW : BENCH_REFUSED;
    x->need_seconds = need;
    x->ideal_speedup = ideal;
    snprintf(x->note, sizeof x->note, "%s", why);
    char text[700], tokens[24];
    snprintf(text, sizeof text, "%s %s, %s tokens: skipped: %s", family, dtype_name(x->dtype),
             short_tokens(tokens, sizeof tokens, x->kv_len), why);
    progress_step(&s->bar, text);
    return 0;
}

static int measure_one(session *s, const char *family, const char *line, double seconds,
                       double check_seconds) {
    if (already_measured(s, family, line)) return 0;
    bench_result *x = new_result(s, family, line);
    if (!x) return -1;
    measure_limits limits = {seconds, check_seconds, s->host_bytes, s->device_bytes};
    measure_problem(s->runtime, s->device, s->kernel, line, &limits, x);
    if (x->status == BENCH_FAILED) say_failure(s, x);
    if (x->status == BENCH_OK && !x->twin_line[0] && x->median > 0 && !result_is_decode(x))
        s->speed[x->dtype] = x->flops / x->median;
    if (x->status == BENCH_OK && x->decode && x->median > 0)
        s->decode_rate = (double)x->bytes_min / x->median;
    return 0;
}

/* One line about a point that is done. */
static void tell(session *s, const char *family, const char *line) {
    results_derive(s->report);
    const bench_result *x = already_measured(s, family, line);
    char text[640], tokens[24], time[TEXT_SIZE], rate[TEXT_SIZE], ratio[24], ideal[24], heads[32];
    if (!x) return;
    int n = snprintf(text, sizeof text, "%s %s, %s tokens, %s heads: ", family,
                     dtype_name(x->dtype), short_tokens(tokens, sizeof tokens, x->kv_len),
                     result_heads(x, heads, sizeof heads));
    if (x->status != BENCH_OK)
        snprintf(text + n, sizeof text - (size_t)n, "%s: %s", status_word(x->status), x->note);
    else if (isfinite(x->speedup))
        snprintf(text + n, sizeof text - (size_t)n, "%s, %s, %s over dense (ideal %s)",
                 text_seconds(time, sizeof time, x->median),
                 x->decode ? text_rate(rate, sizeof rate, x->byte_rate, "B/s")
                           : text_rate(rate, sizeof rate, x->flop_rate, "FLOP/s"),
                 short_ratio(ratio, sizeof ratio, x->speedup),
                 short_ratio(ideal, sizeof ideal, x->ideal_speedup));
    else
        snprintf(text + n, sizeof text - (size_t)n, "%s, %s",
                 text_seconds(time, sizeof time, x->median),
                 x->decode ? text_rate(rate, sizeof rate, x->byte_rate, "B/s")
                           : text_rate(rate, sizeof rate, x->flop_rate, "FLOP/s"));
    progress_step(&s->bar, text);
}

/* A problem and its dense twin. The twin comes right after, so both see the same state of the
 * machine. */
static int measure_pair(session *s, const char *family, const char *line, double seconds,
                        double check_seconds) {
    char twin[BENCH_LINE], now[160];
    if (suite_twin(line, twin, sizeof twin) != 0) return -1;
    snprintf(now, sizeof now, "%s %.90s", s->report->devices[s->index].id, line);
    progress_now(&s->bar, now);
    int status = measure_one(s, family, line, seconds, check_seconds);
    /* Where the problem itself has no numbers, its twin would stand alone. */
    const bench_result *x = status == 0 ? already_measured(s, family, line) : NULL;
    if (x && x->status == BENCH_OK && twin[0] && !clock_interrupted())
        status = measure_one(s, family, twin, seconds, check_seconds);
    tell(s, family, line);
    return status;
}

/* ------------------------------------------------------------------ a series within its time */

/* Seconds that a point will take: runs, inputs, check; and the ideal speed-up. Negative with the
 * reason when it cannot be planned. */
static double foretell(session *s, const char *family, const char *line, uint32_t dtype,
                       double *ideal, char *why, size_t why_size) {
    char twin[BENCH_LINE];
    measure_cost cost;
    double seconds = 0;
    if (suite_twin(line, twin, sizeof twin) != 0) return -1;
    const char *const lines[2] = {line, twin};
    for (int i = 0; i < 2; i++) {
        if (!lines[i][0] || already_measured(s, family, lines[i])) continue;
        if (measure_estimate(s->runtime, s->device, s->kernel, lines[i], &cost, why, why_size) != 0)
            return -1;
        if (i == 0) *ideal = cost.ideal;
        /* Tensors are filled, read back and compared: about 3 ns a byte all in all on a slow
         * core. */
        seconds += 3e-9 * (double)cost.bytes;
        seconds += cost.decode
                       ? RUNS_AT_LEAST * fmax((double)cost.bytes, LAYERS_BYTES) / s->decode_rate
                       : RUNS_AT_LEAST * cost.flops / s->speed[dtype];
    }
    return seconds;
}

/* Whether the length after `k` fits into `seconds` with the fewest heads. */
static int longer_fits(session *s, const suite_series *e, int k, double seconds) {
    char line[BENCH_LINE], why[512];
    int choice = 0;
    double ideal;
    while (suite_heads(e->family, choice + 1)) choice++;
    if (k + 1 >= e->n_lengths ||
        suite_line(e, e->lengths[k + 1], suite_heads(e->family, choice), line, sizeof line) != 0)
        return 0;
    double need = foretell(s, e->family->name, line, e->dtype, &ideal, why, sizeof why);
    return need >= 0 && need <= seconds;
}

static int run_point(session *s, const suite_series *e, int k, double *share) {
    char line[BENCH_LINE], why[512] = "", need[TEXT_SIZE], left[TEXT_SIZE];
    const char *family = e->family->name;
    double allowed = *share, seconds = 0, ideal = NAN;
    int choice = 0;
    /* Fewer heads now where that lets a longer context be seen. */
    if (e->may_slice && longer_fits(s, e, k, 0.6 * *share)) allowed = 0.4 * *share;
    /* Every family is to be seen, even after others took longer than foretold; where heads cannot
     * be cut, the shortest length may take more than its part. */
    if (k == 0) allowed = fmax(e->may_slice ? allowed : 2 * *share, s->options->budget / 50);
    for (int heads; (heads = suite_heads(e->family, choice)) != 0; choice++) {
        if (suite_line(e, e->lengths[k], heads, line, sizeof line) != 0) return -1;
        seconds = foretell(s, family, line, e->dtype, &ideal, why, sizeof why);
        if (!e->may_slice || seconds <= allowed) break;
    }
    if (seconds < 0) return skip(s, family, line, 0, NAN, why);
    if (seconds > allowed) {
        snprintf(why, sizeof why, "would take about %s, %s are left for it",
                 text_seconds(need, sizeof need, seconds),
                 text_seconds(left, sizeof left, fmax(allowed, 0)));
        return skip(s, family, line, seconds, ideal, why);
    }
    double start = clock_now(), part = *share / (e->n_lengths - k);
    int status = measure_pair(s, family, line, fmin(fmax(part / 8, 0.1), 1.0),
                              fmin(fmax(part / 16, 0.05), 0.5));
    *share -= clock_now() - start;
    return status;
}

static int run_series(session *s, const suite_series *e, double share) {
    if (e->n_lengths > 0 && s->speed[e->dtype] == 0) {
        progress_now(&s->bar, "measuring the speed of a small problem");
        s->speed[e->dtype] = measure_speed(s->runtime, s->device, s->kernel, e->dtype);
        if (!(s->speed[e->dtype] > 0)) s->speed[e->dtype] = -1;
    }
    for (int k = 0; k < e->n_lengths && !clock_interrupted(); k++) {
        char line[BENCH_LINE];
        int status;
        if (s->speed[e->dtype] < 0) {
            if (suite_line(e, e->lengths[k], e->family->heads, line, sizeof line) != 0) return -1;
            status = skip(s, e->family->name, line, 0, NAN,
                          "this kernel does not run the small problem that foretells times");
        } else {
            status = run_point(s, e, k, &share);
        }
        if (status != 0) return status;
    }
    return 0;
}

/* ------------------------------------------------------------------ a kernel, a device, all */

static int run_kernel(session *s, const char *kernel) {
    const run_options *o = s->options;
    s->kernel = kernel;
    memset(s->speed, 0, sizeof s->speed);
    s->decode_rate = DECODE_GUESS;
    if (o->line)
        return measure_pair(s, "problem", o->line, fmin(2.0, o->budget / 30),
                            fmin(1.0, o->budget / 60));
    for (int i = 0; i < o->n_series && !clock_interrupted(); i++) {
        double share = (s->deadline - clock_now()) / (o->n_series - i);
        if (run_series(s, &o->series[i], share) != 0) return -1;
    }
    return 0;
}

static int count_points(const run_options *o) {
    int n = 0;
    if (o->line) return 1;
    for (int i = 0; i < o->n_series; i++) n += o->series[i].n_lengths;
    return n;
}

static int run_device(session *s, double seconds) {
    char names[DEVICES_KERNELS][64], error[512] = "";
    bench_device *d = &s->report->devices[s->index];
    const tess_device_desc desc = {.struct_size = sizeof desc, .id = d->id};
    double end = clock_now() + seconds;
    int status = 0;
    if (tess_device_open(s->runtime, &desc, &s->device) != TESS_OK) {
        snprintf(error, sizeof error, "tessera bench: %s: %s", d->id, cli_why());
        progress_say(&s->bar, error);
        s->failed = 1;
        return 0;
    }
    if (s->options->ceilings && strcmp(d->kind, "gpu") == 0)
        status = ceilings_device_copy(d, s->device, 1.0);
    if (s->options->planning && status == 0) {
        progress_now(&s->bar, "planning");
        status =
            planning_measure(s->report, s->runtime, s->device, s->index, NULL, error, sizeof error);
        if (status == -2) {
            char line[640];
            snprintf(line, sizeof line, "tessera bench: %s: %s", d->id, error);
            progress_say(&s->bar, line);
            s->failed = 1;
            status = 0;
        }
    }
    int n = s->options->all_kernels ? devices_kernels(s->device, DEVICES_ALL_KERNELS, names) : 1;
    s->bar.total += (n - 1) * count_points(s->options);
    for (int k = 0; k < n && status == 0 && !clock_interrupted(); k++) {
        s->deadline = clock_now() + (end - clock_now()) / (n - k);
        status = run_kernel(s, s->options->all_kernels ? names[k] : NULL);
    }
    tess_device_release(s->device);
    s->device = NULL;
    return status;
}

static int measure_ceilings(session *s) {
    bench_report *r = s->report;
    for (int i = 0; i < r->n_devices && !clock_interrupted(); i++) {
        bench_device *d = &r->devices[i];
        if (strcmp(d->kind, "gpu") == 0) {
            snprintf(d->ceiling_note, sizeof d->ceiling_note,
                     "no library for matrix products is known for this backend");
            continue;
        }
        /* Software devices run on the CPUs that this process may use. */
        int threads = strcmp(d->kind, "cpu") == 0 && d->compute_units ? (int)d->compute_units
                                                                      : r->machine.cpus_allowed;
        char text[96];
        snprintf(text, sizeof text, "ceilings of %s", d->id);
        progress_now(&s->bar, text);
        if (ceilings_cpu(d, threads, fmin(8, s->options->budget / 6)) != 0) return -1;
    }
    return 0;
}

int run_suite(const run_options *options, bench_report *report) {
    session s = {.options = options, .report = report};
    double start = clock_now();
    if (tess_runtime_create(NULL, &s.runtime) != TESS_OK)
        return cli_error(CLI_FAILED, "bench", "%s", cli_why());
    machine_describe(&report->machine);
    s.host_bytes = machine_memory_available() / 10 * 6;
    int status = read_settings(s.runtime, report) == 0
                     ? devices_choose(s.runtime, "bench", options->backends, report)
                     : out_of_memory();
    if (status != 0) {
        tess_runtime_release(s.runtime);
        return status;
    }
    clock_catch_interrupt();
    progress_begin(&s.bar, count_points(options) * report->n_devices, options->budget);
    status = options->ceilings ? measure_ceilings(&s) : 0;
    for (s.index = 0; s.index < report->n_devices && status == 0 && !clock_interrupted();
         s.index++) {
        s.device_bytes = report->devices[s.index].memory_bytes / 10 * 8;
        /* However long the ceilings took, at least half of the budget belongs to the problems. */
        status = run_device(&s, fmax(options->budget - (clock_now() - start), options->budget / 2) /
                                    (report->n_devices - s.index));
    }
    progress_end(&s.bar);
    results_derive(report);
    report->complete = !clock_interrupted();
    clock_release_interrupt();
    tess_runtime_release(s.runtime);
    if (status != 0) return out_of_memory();
    if (report->complete && !s.failed && report_count(report, BENCH_OK) == 0)
        return cli_error(CLI_FAILED, "bench", "nothing could be measured; the reasons stand above");
    return s.failed || !report->complete ? 1 : 0;
}
