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
#include "machine.h"
#include "options.h"
#include "planning.h"
#include "report.h"
#include "sensors.h"
#include "session.h"
#include "vendors.h"

/* Timing the plans takes about so long where their kernels are there. */
static const double PLANNING_SECONDS = 2;
/* A device that was busy for so many seconds, and has some left, has a last round of its limits. */
static const double LAST_LIMITS = 10;

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

/* ------------------------------------------------------------------ a kernel, a device, all */

static int run_problem(session *s) {
    const double budget = s->options->budget;
    char twin[BENCH_LINE];
    if (suite_twin(s->options->line, twin, sizeof twin) != 0) return -1;
    const session_entry pair[2] = {{"problem", s->options->line}, {"problem", twin}};
    const int status =
        session_measure(s, pair, 2, 1, fmin(2.0, budget / 30), fmin(1.0, budget / 60));
    session_tell(s, "problem", s->options->line);
    return status;
}

static int run_lines(session *s) {
    const run_options *o = s->options;
    if (o->line) return run_problem(s);
    if (o->n_lines && run_fixed(s) != 0) return -1;
    for (int i = 0; i < o->n_series && !clock_interrupted(); i++) {
        double share = session_rest(s) / (o->n_series - i);
        if (run_series(s, &o->series[i], share) != 0) return -1;
    }
    return 0;
}

/* What the budget does not pay for is no loss of the kernels that follow. */
static int run_kernel(session *s, const char *kernel, double *end) {
    session_begin_kernel(s, kernel);
    const int status = run_lines(s);
    *end += session_end_kernel(s);
    return status;
}

static int count_points(const run_options *o) {
    int n = o->n_lines;
    if (o->line) return 1;
    for (int i = 0; i < o->n_series; i++) n += o->series[i].n_lengths;
    return n;
}

/* Plans come last: their kernels are compiled by then where a problem needs them, and the problem's
 * own column tells how long that took. Where no time is left to compile for a plan alone, it is
 * left out. */
static int run_planning(session *s) {
    char error[512] = "", line[640];
    unsigned ops = 0;
    progress_now(&s->bar, "planning");
    for (uint32_t op = TESS_OP_FORWARD; op <= TESS_OP_BACKWARD; op++) {
        const bench_result shape = {.dtype = PLANNING_DTYPE,
                                    .head_dim = PLANNING_HEAD_DIM,
                                    .backward = op == TESS_OP_BACKWARD};
        const double compiling = session_foretell_compiling(s, &shape);
        if (compiling <= fmax(session_rest(s), 0))
            ops |= 1u << op;
        else
            planning_leave_out(&s->report->devices[s->index], op, compiling);
    }
    const bench_stage stage = stage_enter(STAGE_PLANNING);
    const int status = planning_measure(s->report, s->runtime, s->device, s->index, NULL, ops,
                                        error, sizeof error);
    stage_enter(stage);
    if (status != -2) return status;
    snprintf(line, sizeof line, "tessera bench: %s: %s", s->report->devices[s->index].id, error);
    progress_say(&s->bar, line);
    s->failed = 1;
    return 0;
}

static int run_device(session *s, double seconds) {
    char names[DEVICES_KERNELS][64], error[512] = "";
    bench_device *d = &s->report->devices[s->index];
    const tess_device_desc desc = {.struct_size = sizeof desc, .id = d->id};
    const double reserve = s->options->planning ? fmin(PLANNING_SECONDS, seconds / 20) : 0;
    double end = clock_now() + seconds - reserve;
    int status = 0;
    s->limits_at = clock_now();
    stages_of(d->stages);
    if (tess_device_open(s->runtime, &desc, &s->device) != TESS_OK) {
        snprintf(error, sizeof error, "tessera bench: %s: %s", d->id, cli_why());
        progress_say(&s->bar, error);
        s->failed = 1;
        return 0;
    }
    int n = s->options->all_kernels ? devices_kernels(s->device, DEVICES_ALL_KERNELS, names) : 1;
    s->bar.total += (n - 1) * count_points(s->options);
    for (int k = 0; k < n && status == 0 && !clock_interrupted(); k++) {
        s->deadline = clock_now() + (end - clock_now()) / (n - k);
        status = run_kernel(s, s->options->all_kernels ? names[k] : NULL, &end);
    }
    s->deadline += reserve;
    if (s->options->planning && status == 0 && !clock_interrupted()) status = run_planning(s);
    tess_device_release(s->device);
    s->device = NULL;
    if (status == 0 && session_rest(s) > 0) status = session_limits(s, LAST_LIMITS);
    return status;
}

static void tell_now(void *user, const char *text) { progress_now(user, text); }

/* The problems that were asked for, as a page lists them. */
static int list_lines(const run_options *o, bench_report *report) {
    for (int i = 0; i < o->n_lines; i++) {
        bench_line *l = report_add_line(report);
        if (!l) return -1;
        *l = o->lines[i];
    }
    for (int i = 0; i < o->n_series; i++)
        for (int k = 0; k < o->series[i].n_lengths; k++) {
            const suite_series *e = &o->series[i];
            bench_line *l = report_add_line(report);
            if (!l) return -1;
            snprintf(l->family, sizeof l->family, "%s", e->family->name);
            if (suite_line(e, e->lengths[k], e->family->heads, l->line, sizeof l->line) != 0 ||
                vendors_title(l->line, l->title, sizeof l->title) != 0)
                return -1;
        }
    if (!o->line) return 0;
    bench_line *l = report_add_line(report);
    if (!l) return -1;
    snprintf(l->family, sizeof l->family, "problem");
    snprintf(l->line, sizeof l->line, "%s", o->line);
    if (vendors_title(l->line, l->title, sizeof l->title) != 0) l->title[0] = 0;
    return 0;
}

int run_suite(const run_options *options, bench_report *report) {
    session s = {.options = options, .report = report};
    double start = clock_now();
    limits_server *limits = options->ceilings ? ceilings_start() : NULL;
    if (tess_runtime_create(NULL, &s.runtime) != TESS_OK) {
        ceilings_stop(limits);
        return cli_error(CLI_FAILED, "bench", "%s", cli_why());
    }
    machine_describe(&report->machine);
    s.host_bytes = machine_memory_available() / 10 * 6;
    int status = read_settings(s.runtime, report) == 0 && list_lines(options, report) == 0
                     ? devices_choose(s.runtime, "bench", options->backends, report)
                     : out_of_memory();
    if (status != 0) {
        ceilings_stop(limits);
        tess_runtime_release(s.runtime);
        return status;
    }
    for (int i = 0; i < report->n_devices; i++) {
        ceilings_identify(&report->devices[i]);
        sensors_find(&report->devices[i]);
        if (options->energy > 0 && !report->devices[i].energy[0])
            fprintf(stderr, "tessera bench: --energy: %s has no counter that can be read\n",
                    report->devices[i].id);
    }
    clock_catch_interrupt();
    progress_begin(&s.bar, count_points(options) * report->n_devices, options->budget);
    if (limits)
        status = ceilings_measure(limits, report, fmin(8, options->budget / 8), tell_now, &s.bar);
    s.limits = limits;
    /* However long peers take to begin, or to be given up, half of the budget is left. */
    if (options->peers && status == 0 && !(s.peers = peers_start(options->peers, report)))
        status = -1;
    session_begin(&s, start);
    for (s.index = 0; s.index < report->n_devices && status == 0 && !clock_interrupted();
         s.index++) {
        s.device_bytes = report->devices[s.index].memory_bytes / 10 * 8;
        status = run_device(&s, session_share(&s, report->n_devices - s.index));
    }
    stages_of(NULL);
    tess_device_release(s.counter);
    ceilings_stop(limits);
    peers_stop(s.peers);
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
