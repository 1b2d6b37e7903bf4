/* SPDX-License-Identifier: Apache-2.0 */
#include "session.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ceilings.h"
#include "clock.h"
#include "layers.h"
#include "line.h"
#include "options.h"
#include "report.h"
#include "text.h"

/* The first run, one that warms up or finds the time of a decode's turn, three timed ones. */
enum { RUNS_AT_LEAST = 5 };
/* Bytes and FLOP a second before anything is known. */
static const double DECODE_GUESS = 4e9, SPEED_GUESS = 1e9;
/* What kernels reach of their dense speed where they pay for edges of masks, and with gradients. */
static const double SPARSE_SHARE = 0.6, BACKWARD_SHARE = 0.4;
/* Tensors are filled, read back and compared: all in all so much a byte on a slow core, until so
 * many bytes have shown how long it takes here. */
static const double SECONDS_A_BYTE = 3e-9, BYTES_TO_KNOW = 1e8;
/* Of the time for a group, inputs included, its rounds have this part at least. */
static const double LEAST_OF_MOST = 0.25;
/* A way of a peer may take this part of the time that is left. */
static const double MOST_OF_PEERS = 0.25;
/* Rounds of limits lie so far apart. */
static const double LIMITS_EVERY = 25, ROUND_COSTS = 12;

/* The budget does not pay for a share of itself that goes to compiling: an eighth for each device
 * and kernel, a fifth for all. */
enum { FREE_TO_COMPILE = 8, FREE_FOR_ALL = 5 };
/* A device whose predecessors took too long has this part of the budget all the same. */
enum { LEAST_OF_BUDGET = 10 };

void session_begin(session *s, double start) {
    const double budget = s->options->budget;
    /* However long the limits took, at least half of the budget belongs to the problems. */
    s->end = fmax(start + budget, clock_now() + budget / 2);
    s->unpaid = budget / FREE_FOR_ALL;
}

double session_share(const session *s, int devices) {
    return fmax((s->end - clock_now()) / devices, s->options->budget / LEAST_OF_BUDGET);
}

void session_begin_kernel(session *s, const char *kernel) {
    s->kernel = kernel;
    s->compiling = 0;
    s->n_compiled = 0;
    s->patience = fmin(s->options->budget / FREE_TO_COMPILE, s->unpaid);
    session_reset_speeds(s);
}

/* What compiling took and the budget does not pay for. */
static double unpaid_compiling(const session *s) { return fmin(s->compiling, s->patience); }

double session_end_kernel(session *s) {
    const double unpaid = unpaid_compiling(s);
    s->unpaid -= unpaid;
    s->end += unpaid;
    return unpaid;
}

double session_rest(const session *s) { return s->deadline + unpaid_compiling(s) - clock_now(); }

int session_limits(session *s, double age) {
    bench_device *d = &s->report->devices[s->index];
    if (!s->limits || clock_now() - s->limits_at < age) return 0;
    progress_now(&s->bar, "another round of the limits");
    const double start = clock_now();
    const bench_stage stage = stage_enter(STAGE_LIMITS);
    const int status = ceilings_again(s->limits, d);
    stage_enter(stage);
    /* Where a round takes long, on a busy machine, the next one waits for longer. */
    s->limits_at = clock_now() + fmax(ROUND_COSTS * (clock_now() - start) - LIMITS_EVERY, 0);
    return status;
}

/* ------------------------------------------------------------------ compiling */

static session_compiled kernels_of(const bench_result *x) {
    return (session_compiled){x->backward ? 2 : x->decode, x->dtype, x->head_dim, 0, 0};
}

static int same_kernels(const session_compiled *a, const session_compiled *b) {
    return a->op == b->op && a->dtype == b->dtype && a->head_dim == b->head_dim;
}

/* What is noted of the kernels of a result; NULL where nothing is, and there is no room. */
static session_compiled *compiled_of(session *s, const bench_result *x) {
    const session_compiled now = kernels_of(x);
    for (int i = 0; i < s->n_compiled; i++)
        if (same_kernels(&s->compiled[i], &now)) return &s->compiled[i];
    if (s->n_compiled == SESSION_COMPILED) return NULL;
    s->compiled[s->n_compiled] = now;
    return &s->compiled[s->n_compiled++];
}

static void note_compiling(session *s, const bench_result *x, double seconds) {
    session_compiled *c = compiled_of(s, x);
    s->compiling += seconds;
    if (c) c->seconds += seconds;
}

void session_tell_compiling(session *s, bench_result *x) {
    session_compiled *c = compiled_of(s, x);
    if (!c || !(x->compile_seconds >= 0)) return;
    x->compile_seconds += c->unsaid;
    c->unsaid = 0;
}

/* What is not compiled yet will take as long as the slowest of the same op has, or of any. */
double session_foretell_compiling(const session *s, const bench_result *shape) {
    const session_compiled next = kernels_of(shape);
    double same_op = 0, any = 0;
    for (int i = 0; i < s->n_compiled; i++) {
        const session_compiled *c = &s->compiled[i];
        if (same_kernels(c, &next)) return 0;
        any = fmax(any, c->seconds);
        if (c->op == next.op) same_op = fmax(same_op, c->seconds);
    }
    return fmax((same_op > 0 ? same_op : any) - fmax(s->patience - s->compiling, 0), 0);
}

/* ------------------------------------------------------------------ foretelling */

void session_reset_speeds(session *s) {
    memset(s->speed, 0, sizeof s->speed);
    memset(s->backward_speed, 0, sizeof s->backward_speed);
    s->decode_rate = 0;
    s->prepare_seconds = SECONDS_A_BYTE * BYTES_TO_KNOW;
    s->prepare_bytes = BYTES_TO_KNOW;
}

void session_find_speed(session *s, uint32_t dtype) {
    if (s->speed[dtype] != 0) return;
    const bench_result small = {.dtype = dtype, .head_dim = 128};
    double compiling = 0;
    progress_now(&s->bar, "measuring the speed of a small problem");
    s->speed[dtype] = measure_speed(s->runtime, s->device, &s->report->devices[s->index], s->kernel,
                                    dtype, &compiling);
    note_compiling(s, &small, compiling);
    session_compiled *c = compiled_of(s, &small);
    if (c) c->unsaid += compiling;
    if (!(s->speed[dtype] > 0)) s->speed[dtype] = -1;
}

/* FLOP/s of dense problems in a type, or in another one of which some have run; 0: of none. */
static double speed_of(const session *s, uint32_t dtype) {
    static const uint32_t near[3][3] = {[TESS_F32] = {TESS_F32, TESS_F16, TESS_BF16},
                                        [TESS_F16] = {TESS_F16, TESS_BF16, TESS_F32},
                                        [TESS_BF16] = {TESS_BF16, TESS_F16, TESS_F32}};
    for (int i = 0; i < 3; i++)
        if (s->speed[near[dtype][i]] > 0) return s->speed[near[dtype][i]];
    return 0;
}

static double decode_rate(const session *s) {
    return s->decode_rate > 0 ? s->decode_rate : DECODE_GUESS;
}

static double run_seconds(const session *s, const measure_cost *cost, uint32_t dtype) {
    if (cost->decode) return (double)cost->bytes_min / decode_rate(s);
    double speed = speed_of(s, dtype) > 0 ? speed_of(s, dtype) : SPEED_GUESS;
    if (cost->backward)
        speed = s->backward_speed[dtype] > 0 ? s->backward_speed[dtype] : BACKWARD_SHARE * speed;
    return cost->flops / (cost->ideal > 1 ? SPARSE_SHARE * speed : speed);
}

/* Joules are counted over a while of their own, one run at least. */
static double energy_seconds(const session *s, double once) {
    const double seconds = s->options ? s->options->energy : 0;
    return seconds > 0 && s->report->devices[s->index].energy[0] ? fmax(seconds, once) : 0;
}

/* What a plan of some device tells of a line. A run that nothing like it has shown is not told. */
static int foretell_by(session *s, tess_device *device, const char *kernel, const char *line,
                       session_forecast *f, bench_result *shape) {
    measure_cost cost;
    memset(f, 0, sizeof *f);
    memset(shape, 0, sizeof *shape);
    f->ideal = f->run = NAN;
    measure_describe(line, shape);
    if (shape->status == BENCH_FAILED) {
        snprintf(f->why, sizeof f->why, "%s", shape->note);
        return -1;
    }
    if (measure_estimate(s->runtime, device, kernel, line, &cost, f->why, sizeof f->why) != 0)
        return -1;
    f->planned = 1;
    f->ideal = cost.ideal;
    const double run = run_seconds(s, &cost, shape->dtype);
    if (cost.decode ? s->decode_rate > 0 : s->speed[shape->dtype] > 0) f->run = run;
    /* Layers of decode take turns, and all of them are read. */
    const double once =
        cost.decode ? fmax((double)cost.bytes_min, LAYERS_BYTES) / decode_rate(s) : run;
    const int runs = RUNS_AT_LEAST - (!cost.decode && once > CONTEST_SLOW_RUN);
    f->seconds = runs * once + s->prepare_seconds / s->prepare_bytes * (double)cost.bytes +
                 energy_seconds(s, once);
    f->first_plan = cost.plan_seconds;
    snprintf(f->kernel, sizeof f->kernel, "%s", cost.kernel);
    return 0;
}

void session_foretell(session *s, const char *line, session_forecast *f) {
    bench_result shape;
    if (foretell_by(s, s->device, s->kernel, line, f, &shape) == 0)
        note_compiling(s, &shape, f->first_plan);
}

/* What a plan counts is the same on every device, and the CPU compiles nothing. */
void session_foretell_uncompiled(session *s, const char *line, double compiling,
                                 session_forecast *f) {
    const tess_device_desc cpu = {.struct_size = sizeof cpu, .id = "cpu"};
    bench_result shape;
    if (!s->counter && tess_device_open(s->runtime, &cpu, &s->counter) != TESS_OK)
        s->counter = NULL;
    if (!s->counter || foretell_by(s, s->counter, NULL, line, f, &shape) != 0)
        *f = (session_forecast){.ideal = NAN};
    f->seconds += compiling;
    f->run = NAN;
    f->kernel[0] = 0;
}

/* Also of a problem that left its contest, since one run of it is known. */
static void learn(session *s, const bench_result *x) {
    const double run = x->status == BENCH_OK     ? x->median
                       : x->status == BENCH_SLOW ? x->estimate_seconds
                                                 : NAN;
    if (!(run > 0)) return;
    if (x->decode)
        s->decode_rate = (double)x->bytes_min / run;
    else if (!x->twin_line[0] && !result_is_decode(x))
        (x->backward ? s->backward_speed : s->speed)[x->dtype] = x->flops / run;
}

/* ------------------------------------------------------------------ results */

const bench_result *session_find(const session *s, const char *family, const char *line) {
    for (int i = 0; i < s->report->n_results; i++) {
        const bench_result *x = &s->report->results[i];
        if (x->device == s->index && !x->peer[0] && strcmp(x->family, family) == 0 &&
            strcmp(x->line, line) == 0 && (!s->kernel || strcmp(x->kernel, s->kernel) == 0))
            return x;
    }
    return NULL;
}

/* Adds a result with the family, the twin and the kernel that is asked for. */
static bench_result *new_result(session *s, const char *family, const char *line) {
    bench_result *x = report_add_result(s->report);
    if (!x) return NULL;
    x->device = s->index;
    snprintf(x->family, sizeof x->family, "%s", family);
    if (s->kernel) snprintf(x->kernel, sizeof x->kernel, "%s", s->kernel);
    suite_twin(line, x->twin_line, sizeof x->twin_line);
    return x;
}

int session_skip(session *s, const char *family, const char *line, int status,
                 const session_forecast *f) {
    bench_result *x = new_result(s, family, line);
    if (!x) return -1;
    measure_describe(line, x);
    x->status = status;
    x->need_seconds = status == BENCH_SLOW ? f->seconds : 0;
    x->estimate_seconds = status == BENCH_SLOW ? f->run : NAN;
    x->ideal_speedup = f->ideal;
    if (f->kernel[0]) snprintf(x->kernel, sizeof x->kernel, "%s", f->kernel);
    snprintf(x->note, sizeof x->note, "%s", f->why);
    session_tell(s, family, line);
    return 0;
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

void session_tell(session *s, const char *family, const char *line) {
    results_derive(s->report);
    const bench_result *x = session_find(s, family, line);
    char text[640], tokens[24], time[TEXT_SIZE], rate[TEXT_SIZE], ratio[24], ideal[24], heads[32];
    if (!x) return;
    int n = snprintf(text, sizeof text, "%s %s %s, %s tokens, %s heads: ", family, x->pattern,
                     dtype_name(x->dtype), short_tokens(tokens, sizeof tokens, x->kv_len),
                     result_heads(x, heads, sizeof heads));
    if (x->status != BENCH_OK)
        snprintf(text + n, sizeof text - (size_t)n, "%s: %s",
                 status_skipped(x->status) ? "skipped" : "failed", x->note);
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

/* ------------------------------------------------------------------ measuring */

/* Contestants that are open together, and where their results go. */
typedef struct field {
    contestant *all[SESSION_MOST];
    int at[SESSION_MOST]; /* in the report */
    int n;
    uint64_t bytes;
    double prepared; /* seconds that inputs and checks have taken */
} field;

/* Opens one more. Returns 1 when there is no room beside the others, -1 when out of memory. */
static int join(session *s, field *f, const session_entry *e, double seconds,
                double check_seconds) {
    measure_limits limits = {seconds, check_seconds, s->host_bytes, s->device_bytes, 0};
    limits.host_bytes -= f->bytes < limits.host_bytes ? f->bytes : limits.host_bytes;
    limits.device_bytes -= f->bytes < limits.device_bytes ? f->bytes : limits.device_bytes;
    contestant *c = calloc(1, sizeof *c);
    bench_result *x = c ? new_result(s, e->family, e->line) : NULL;
    if (!x) {
        free(c);
        return -1;
    }
    c->result = *x;
    const double start = clock_now();
    contestant_open(c, s->runtime, s->device, s->kernel, e->line, &limits);
    const double compiled = c->result.compile_seconds;
    if (c->open) {
        const double runs = c->result.first_seconds + c->turn + fmax(compiled, 0);
        const double prepared = fmax(clock_now() - start - runs, 0);
        f->prepared += prepared;
        s->prepare_seconds += prepared;
        s->prepare_bytes += (double)c->bytes;
    }
    if (compiled > 0) note_compiling(s, &c->result, compiled);
    /* Where the forecast made the first plan, that one compiled. */
    if (compiled >= 0)
        c->result.compile_seconds = fmax(compiled, e->first_plan - c->result.plan_seconds);
    if (c->open) session_tell_compiling(s, &c->result);
    if (!c->open && c->result.status == BENCH_MEMORY && f->n > 0) {
        s->report->n_results--; /* it comes again, alone */
        free(c);
        return 1;
    }
    /* Inputs have copies on the host. */
    if (c->open) f->bytes += 2 * contestant_bytes(c);
    f->all[f->n] = c;
    f->at[f->n++] = s->report->n_results - 1;
    return 0;
}

static void finish(session *s, field *f, double seconds, double check_seconds) {
    /* What inputs took is gone; problems that are open by now may have a part all the same. */
    const double most = fmax(s->most - f->prepared, LEAST_OF_MOST * s->most);
    const measure_limits limits = {
        .seconds = seconds, .energy_seconds = s->options->energy, .most = most};
    contest(f->all, f->n, &s->report->devices[s->index], &limits);
    for (int i = 0; i < f->n; i++) {
        contestant *c = f->all[i];
        const bench_stage stage = stage_enter(STAGE_PEERS);
        for (int k = 0; k < peers_count(s->peers) && !clock_interrupted(); k++)
            peers_measure(s->peers, k, c, s->report, seconds, check_seconds,
                          fmax(session_rest(s) * MOST_OF_PEERS, 1));
        stage_enter(stage);
        contestant_close(c);
        s->report->results[f->at[i]] = c->result;
        if (c->result.status == BENCH_OK)
            note_compiling(s, &c->result, fmax(c->result.first_seconds - c->result.median, 0));
        if (c->result.status == BENCH_FAILED) say_failure(s, &c->result);
        learn(s, &c->result);
        free(c);
    }
    *f = (field){.n = 0};
}

int session_measure(session *s, const session_entry *entries, int n, int twin, double seconds,
                    double check_seconds) {
    field f = {.n = 0};
    int status = session_limits(s, LIMITS_EVERY);
    for (int i = 0; i < n && status == 0 && !clock_interrupted(); i++) {
        char now[160];
        if (!entries[i].line[0] || session_find(s, entries[i].family, entries[i].line)) continue;
        /* Where the problem itself has no numbers, its twin would stand alone. */
        if (twin && i == 1 && f.n == 1 && !f.all[0]->open) break;
        snprintf(now, sizeof now, "%s %.90s", s->report->devices[s->index].id, entries[i].line);
        progress_now(&s->bar, now);
        status = join(s, &f, &entries[i], seconds, check_seconds);
        if (status != 1) continue;
        finish(s, &f, seconds, check_seconds);
        status = join(s, &f, &entries[i], seconds, check_seconds);
    }
    finish(s, &f, seconds, check_seconds);
    return status;
}
