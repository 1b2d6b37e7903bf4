/* SPDX-License-Identifier: Apache-2.0 */
#include "measure.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "instance.h"
#include "layers.h"
#include "line.h"
#include "options.h"
#include "stats.h"
#include "text.h"

enum { MIN_PLANS = 3, PLAN_RUNS = 7, MIN_CHECK_ROWS = 8, MAX_CHECK_ROWS = 256 };

/* Seconds in which the reference, a plain loop in double, visits one (row, key, element). Only the
 * number of rows checked depends on it. */
static const double REFERENCE_SECONDS = 6e-9;

static int fail(bench_result *r, int status, const char *text) {
    r->status = status;
    snprintf(r->note, sizeof r->note, "%s", text);
    cli_one_line(r->note);
    return -1;
}

static int parse(problem *p, const char *line, bench_result *r) {
    char error[256];
    if (line_parse(p, line, error, sizeof error) == 0) return 0;
    return fail(r, BENCH_FAILED, error);
}

static void describe(const problem *p, bench_result *r) {
    static const char *const patterns[] = {"dense", "s2", "window", "blocks"};
    snprintf(r->pattern, sizeof r->pattern, "%s", p->pattern < 4 ? patterns[p->pattern] : "?");
    r->dtype = p->dtype;
    r->batch = p->batch;
    r->q_len = p->q_len;
    r->kv_len = problem_max_kv(p);
    for (int64_t b = 0; p->q_lens && b < p->batch; b++)
        if (p->q_lens[b] > r->q_len) r->q_len = p->q_lens[b];
    r->heads = p->heads;
    r->heads_total = p->heads_total;
    r->kv_heads = p->kv_heads;
    r->head_dim = p->head_dim;
    r->decode = p->op == PROBLEM_DECODE;
    r->backward = p->op == PROBLEM_BACKWARD;
    r->page = p->page;
    r->compact = p->compact;
}

static uint64_t tensor_bytes(const problem *p) {
    uint64_t q = (uint64_t)problem_q_tokens(p) * (uint64_t)p->heads,
             kv = (uint64_t)problem_kv_tokens(p) * (uint64_t)p->kv_heads;
    const uint64_t times = p->op == PROBLEM_BACKWARD ? 2 : 1; /* each has a gradient, LSE too */
    return times *
           ((2 * q + 2 * kv) * (uint64_t)p->head_dim * dtype_size(p->dtype) + q * sizeof(float));
}

tess_status measure_plan(tess_runtime *runtime, tess_device *device, const char *kernel,
                         const problem *p, tess_layout **layout, tess_plan **plan) {
    tess_plan_desc desc;
    int64_t *cu = NULL;
    *layout = NULL;
    *plan = NULL;
    tess_status status = problem_layout(p, runtime, layout);
    if (status != TESS_OK) return status;
    if (problem_plan_desc(p, &desc, &cu) != 0) return TESS_ERROR_OUT_OF_MEMORY;
    desc.kernel = kernel;
    status = tess_plan_create(device, *layout, &desc, plan);
    free(cu);
    return status;
}

int measure_estimate(tess_runtime *runtime, tess_device *device, const char *kernel,
                     const char *line, measure_cost *cost, char *reason, size_t reason_size) {
    problem p;
    tess_layout *layout = NULL;
    tess_plan *plan = NULL;
    tess_plan_info info = {.struct_size = sizeof info};
    if (line_parse(&p, line, reason, reason_size) != 0) {
        problem_free(&p);
        return -1;
    }
    const bench_stage stage = stage_enter(STAGE_PLANS);
    const double start = clock_now();
    tess_status status = measure_plan(runtime, device, kernel, &p, &layout, &plan);
    const double seconds = clock_now() - start;
    if (status == TESS_OK) status = tess_plan_query(plan, &info);
    if (status == TESS_OK) {
        *cost = (measure_cost){
            .flops = info.flops,
            .decode = p.op == PROBLEM_DECODE,
            .backward = p.op == PROBLEM_BACKWARD,
            .bytes = tensor_bytes(&p),
            .bytes_min = info.bytes_min,
            .ideal = info.kept_pairs ? (double)info.dense_pairs / (double)info.kept_pairs : NAN,
            .plan_seconds = seconds};
        snprintf(cost->kernel, sizeof cost->kernel, "%s", info.kernel);
    } else {
        snprintf(reason, reason_size, "%s", cli_why());
    }
    tess_plan_release(plan);
    tess_layout_release(layout);
    problem_free(&p);
    stage_enter(stage);
    return status == TESS_OK ? 0 : -1;
}

/* Times layout and plan on their own. Planning again is what an application does when lengths
 * change, so the median of a few is told. */
static tess_status time_planning(tess_runtime *runtime, tess_device *device, const char *kernel,
                                 const problem *p, bench_result *r) {
    tess_plan_desc desc;
    int64_t *cu = NULL;
    double layouts[PLAN_RUNS], plans[PLAN_RUNS], start = clock_now();
    int n = 0;
    if (problem_plan_desc(p, &desc, &cu) != 0) return TESS_ERROR_OUT_OF_MEMORY;
    desc.kernel = kernel;
    tess_status status = TESS_OK;
    while (n < PLAN_RUNS && status == TESS_OK && (n < MIN_PLANS || clock_now() - start < 0.1)) {
        tess_layout *layout = NULL;
        tess_plan *plan = NULL;
        double t0 = clock_now();
        status = problem_layout(p, runtime, &layout);
        double t1 = clock_now();
        if (status == TESS_OK) status = tess_plan_create(device, layout, &desc, &plan);
        double t2 = clock_now();
        tess_plan_release(plan);
        tess_layout_release(layout);
        layouts[n] = t1 - t0;
        plans[n] = t2 - t1;
        n++;
    }
    free(cu);
    if (status == TESS_OK) {
        r->layout_seconds = stats_median(layouts, (size_t)n);
        r->plan_seconds = stats_median(plans, (size_t)n);
        r->compile_seconds = fmax(plans[0] - r->plan_seconds, 0);
    }
    return status;
}

/* K and V of one sequence: all of it, what some head can still see, and what slots take. */
static tess_status kv_bytes(const instance *x, const problem *p, bench_result *r) {
    uint64_t block = (uint64_t)p->head_dim * dtype_size(p->dtype) * 2 * (uint64_t)p->block,
             token = (uint64_t)p->head_dim * dtype_size(p->dtype) * 2;
    for (int32_t g = 0; g < p->kv_heads; g++) {
        tess_kv_info kv = {.struct_size = sizeof kv};
        tess_status status = tess_layout_kv(x->layout, g, &kv);
        if (status != TESS_OK) return status;
        r->kv_bytes += (uint64_t)problem_max_kv(p) * token;
        r->kv_bytes_kept += (uint64_t)kv.blocks_kept * block;
        r->kv_bytes_allocated += (uint64_t)kv.blocks_allocated * block;
    }
    return TESS_OK;
}

/* Into how many parts the keys of a row are cut, on average: jobs over those of a plan that cuts
 * none. */
static tess_status count_parts(tess_runtime *runtime, tess_device *device, const char *kernel,
                               const problem *p, const instance *x, bench_result *r) {
    problem whole = *p;
    tess_layout *layout = NULL;
    tess_plan *plan = NULL;
    tess_plan_info info = {.struct_size = sizeof info};
    whole.kv_split = 1;
    tess_status status = measure_plan(runtime, device, kernel, &whole, &layout, &plan);
    if (status == TESS_OK) status = tess_plan_query(plan, &info);
    tess_plan_release(plan);
    tess_layout_release(layout);
    if (status == TESS_OK && info.n_jobs)
        r->parts = (double)(x->info.n_jobs - x->info.n_merge_jobs) / (double)info.n_jobs;
    return status;
}

double measure_run(instance *x) {
    double device = 0, start = clock_now();
    if (instance_run(x, &device) != TESS_OK) return NAN;
    double wall = clock_now() - start;
    return device > 0 ? device : wall;
}

int64_t measure_check_rows(const problem *p, double seconds) {
    double row = (double)problem_max_kv(p) * p->head_dim * REFERENCE_SECONDS *
                 (p->dtype == TESS_F32 ? 1 : 2);
    double rows = row > 0 ? seconds / row : MAX_CHECK_ROWS;
    return rows < MIN_CHECK_ROWS   ? MIN_CHECK_ROWS
           : rows > MAX_CHECK_ROWS ? MAX_CHECK_ROWS
                                   : (int64_t)rows;
}

int measure_check(instance *x, double seconds, instance_verdict *verdict, char *why,
                  size_t why_size) {
    if (instance_fetch(x) != TESS_OK) return text_error(why, why_size, "%s", x->error);
    instance_check(x, measure_check_rows(x->problem, seconds), verdict);
    return verdict->pass ? 0 : text_error(why, why_size, "wrong result: %s", verdict->what);
}

/* A kernel that does not take the problem is nothing wrong, nor is a device that is full;
 * everything else is. */
static int failure(tess_status status) {
    return status == TESS_ERROR_UNSUPPORTED     ? BENCH_REFUSED
           : status == TESS_ERROR_OUT_OF_MEMORY ? BENCH_MEMORY
                                                : BENCH_FAILED;
}

static int run_and_check(contestant *c, const measure_limits *limits) {
    instance *x = &c->x;
    bench_result *r = &c->result;
    stage_enter(STAGE_FIRST);
    double start = clock_now();
    /* Some limits of a device show only when tensors are bound to a kernel. */
    const tess_status status = instance_run(x, NULL);
    if (status != TESS_OK) return fail(r, failure(status), x->error);
    r->first_seconds = c->latest = clock_now() - start;
    stage_enter(STAGE_CHECKS);
    instance_verdict verdict = {0};
    char why[sizeof x->error];
    if (measure_check(x, limits->check_seconds, &verdict, why, sizeof why) != 0)
        return fail(r, BENCH_FAILED, why);
    r->checked_rows = verdict.rows;
    r->check_error = c->p.dtype == TESS_F32 ? verdict.nmse : verdict.worst;
    r->check_allowed = c->p.dtype == TESS_F32 ? 1e-10 : verdict.allowed;
    if (c->p.op != PROBLEM_DECODE) return 0;
    stage_enter(STAGE_LAYERS);
    c->turns = layers_prepare(x, limits, r, &c->turn);
    return c->turns < 0 ? fail(r, BENCH_FAILED, x->error) : 0;
}

/* Whether the tensors fit the memory that may be used. */
static int fits(const problem *p, tess_device *device, const measure_limits *limits,
                bench_result *r) {
    char need[TEXT_SIZE], have[TEXT_SIZE];
    const uint64_t bytes = tensor_bytes(p);
    tess_device_info info = {.struct_size = sizeof info};
    tess_device_query(device, &info);
    const int host = info.kind == TESS_DEVICE_CPU;
    if (bytes <= limits->host_bytes / (host ? 2 : 1) && (host || bytes <= limits->device_bytes))
        return 1;
    snprintf(r->note, sizeof r->note, "needs about %s of memory, %s may be used",
             text_bytes(need, sizeof need, (double)bytes * (host ? 2 : 1)),
             text_bytes(have, sizeof have,
                        (double)(host || bytes > limits->host_bytes ? limits->host_bytes
                                                                    : limits->device_bytes)));
    r->status = BENCH_MEMORY;
    return 0;
}

static int open_in_stages(contestant *c, tess_runtime *runtime, tess_device *device,
                          const char *kernel, const char *line, const measure_limits *limits) {
    bench_result *r = &c->result;
    problem *p = &c->p;
    instance *x = &c->x;
    snprintf(r->line, sizeof r->line, "%s", line);
    r->status = BENCH_OK;
    int ready = parse(p, line, r) == 0;
    if (ready) {
        describe(p, r);
        ready = fits(p, device, limits, r);
    }
    if (!ready) {
        problem_free(p);
        return -1;
    }
    stage_enter(STAGE_PLANS);
    tess_status status = time_planning(runtime, device, kernel, p, r);
    const char *why = cli_why();
    if (status == TESS_OK) {
        stage_enter(STAGE_INPUTS);
        status = instance_create(x, device, p, kernel, INSTANCE_GUARDS);
        why = x->error;
    }
    if (status != TESS_OK) {
        fail(r, failure(status), why);
        problem_free(p);
        return -1;
    }
    stage_enter(STAGE_PLANS);
    c->open = 1;
    c->bytes = tensor_bytes(p);
    snprintf(r->kernel, sizeof r->kernel, "%s", x->info.kernel);
    r->flops = x->info.flops;
    r->bytes_min = x->info.bytes_min;
    r->kept_pairs = x->info.kept_pairs;
    r->dense_pairs = x->info.dense_pairs;
    r->n_jobs = x->info.n_jobs;
    r->workspace_bytes = x->info.workspace_bytes;
    r->plan_bytes = x->info.host_bytes + x->info.device_bytes;
    r->ideal_speedup =
        x->info.kept_pairs ? (double)x->info.dense_pairs / (double)x->info.kept_pairs : NAN;
    int bad = kv_bytes(x, p, r) != TESS_OK ||
              (r->decode && count_parts(runtime, device, kernel, p, x, r) != TESS_OK);
    if (bad) fail(r, BENCH_FAILED, cli_why());
    if (!bad && run_and_check(c, limits) == 0) return 0;
    contestant_close(c);
    return -1;
}

int contestant_open(contestant *c, tess_runtime *runtime, tess_device *device, const char *kernel,
                    const char *line, const measure_limits *limits) {
    const bench_stage stage = stage_enter(STAGE_REST);
    const int status = open_in_stages(c, runtime, device, kernel, line, limits);
    stage_enter(stage);
    return status;
}

uint64_t contestant_bytes(const contestant *c) {
    const uint64_t layers = c->x.n_layers > 1 ? (uint64_t)c->x.n_layers - 1 : 0;
    return c->bytes + c->x.info.workspace_bytes + layers * c->result.cache_bytes;
}

void contestant_close(contestant *c) {
    if (!c->open) return;
    instance_release(&c->x);
    problem_free(&c->p);
    c->open = 0;
}

void measure_describe(const char *line, bench_result *r) {
    problem p;
    snprintf(r->line, sizeof r->line, "%s", line);
    if (parse(&p, line, r) == 0) describe(&p, r);
    problem_free(&p);
}

double measure_speed(tess_runtime *runtime, tess_device *device, const bench_device *d,
                     const char *kernel, uint32_t dtype, double *compiling) {
    char line[128];
    contestant *c = calloc(1, sizeof *c);
    const measure_limits limits = {0, 0, UINT64_MAX, UINT64_MAX};
    double speed = 0;
    if (!c) return 0;
    snprintf(line, sizeof line, "dtype=%s heads=4 head_dim=128 q_len=512 pattern=dense",
             dtype_name(dtype));
    if (contestant_open(c, runtime, device, kernel, line, &limits) == 0) {
        contest(&c, 1, d, &limits);
        *compiling += c->result.compile_seconds;
        if (c->result.status == BENCH_OK && c->result.median > 0) {
            speed = c->result.flops / c->result.median;
            *compiling += fmax(c->result.first_seconds - c->result.median, 0);
        }
        contestant_close(c);
    }
    free(c);
    return speed;
}
