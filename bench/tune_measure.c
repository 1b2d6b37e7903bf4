/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "devices.h"
#include "line.h"
#include "measure.h"
#include "options.h"
#include "stats.h"
#include "text.h"
#include "tune.h"

/* A kernel so many times slower than the best one is not timed any further: no spread makes up for
 * it. */
static const double HOPELESS = 3;
enum { RUNS_AT_LEAST = 7, RUNS_OF_HOPELESS = 3 };

/* ------------------------------------------------------------------ shapes */

/* Sizes that keep a kind of device busy without taking seconds on its slowest kernel. */
typedef struct sizes {
    const char *kind;
    int heads, kv_heads, tokens;       /* as many queries as keys */
    int few_heads, few_kv_heads, keys; /* one query */
    int local, stride;
} sizes;

static const sizes all_sizes[] = {{"cpu", 4, 2, 512, 8, 2, 2048, 2, 4},
                                  {"gpu", 16, 4, 4096, 32, 8, 16384, 8, 8},
                                  {"software", 2, 1, 128, 2, 1, 256, 1, 2}};

static void fill_line(const sizes *s, tune_shape *x) {
    char pattern[64] = "pattern=dense";
    if (x->sparse)
        snprintf(pattern, sizeof pattern, "block=64 local=%d stride=%d", s->local, s->stride);
    if (x->few)
        snprintf(x->line, sizeof x->line,
                 "dtype=%s heads=%d kv_heads=%d head_dim=%d q_len=1 kv_len=%d %s",
                 dtype_name(x->dtype), s->few_heads, s->few_kv_heads, x->head_dim, s->keys,
                 pattern);
    else
        snprintf(x->line, sizeof x->line, "%sdtype=%s heads=%d kv_heads=%d head_dim=%d q_len=%d %s",
                 x->backward ? "op=bwd " : "", dtype_name(x->dtype), s->heads, s->kv_heads,
                 x->head_dim, s->tokens, pattern);
}

int tune_shapes(const char *kind, int quick, tune_shape shapes[TUNE_SHAPES]) {
    static const int few_dims[] = {64, 128, 0}, many_dims[] = {32, 64, 96, 128, 256, 0};
    enum { CLASSES = 6 }; /* dense and sparse: many rows, few rows, gradients */
    const sizes *s = &all_sizes[0];
    int n = 0;
    for (size_t i = 0; i < sizeof all_sizes / sizeof *all_sizes; i++)
        if (strcmp(all_sizes[i].kind, kind) == 0) s = &all_sizes[i];
    for (uint32_t dtype = TESS_F32; dtype <= TESS_BF16; dtype++) {
        int least = 1;
        for (const int *dim = quick ? few_dims : many_dims; *dim; least = *dim++ + 1)
            for (int which = 0; which < CLASSES && n < TUNE_SHAPES; which++) {
                tune_shape *x = &shapes[n++];
                *x = (tune_shape){.dtype = dtype,
                                  .head_dim = *dim,
                                  .least_head_dim = least,
                                  .sparse = which % 2,
                                  .few = which / 2 == 1,
                                  .backward = which / 2 == 2};
                fill_line(s, x);
            }
    }
    return n;
}

/* ------------------------------------------------------------------ one shape */

typedef struct candidate {
    tune_kernel kernel;
    instance x;
    double samples[TUNE_SAMPLES];
    int hopeless;
} candidate;

/* Timed runs in turns, so that whatever else happens on the machine meets all kernels alike; every
 * other round goes backwards. Returns the index of a kernel that failed, n if none did, -1 when
 * interrupted. */
static int time_in_turns(candidate *all, int n, double end) {
    double best = INFINITY;
    for (int i = 0; i < n; i++) best = fmin(best, all[i].samples[0]);
    for (int i = 0; i < n; i++) {
        all[i].hopeless = all[i].samples[0] > HOPELESS * best;
        all[i].kernel.n_samples = 0; /* the run before was to foretell */
    }
    for (int round = 0; round < TUNE_SAMPLES && (round < RUNS_AT_LEAST || clock_now() < end);
         round++)
        for (int k = 0; k < n; k++) {
            candidate *c = &all[round % 2 ? n - 1 - k : k];
            if (clock_interrupted()) return -1;
            if (c->hopeless && round >= RUNS_OF_HOPELESS) continue;
            const double seconds = measure_run(&c->x);
            if (isnan(seconds)) return (int)(c - all);
            c->samples[c->kernel.n_samples++] = seconds;
        }
    return n;
}

static int summarize(candidate *c) {
    stats_summary s;
    if (stats_summarize(c->samples, (size_t)c->kernel.n_samples, &s) != 0) return -1;
    c->kernel.median = s.median;
    c->kernel.spread = s.q75 - s.q25;
    return 0;
}

static uint64_t tensor_bytes(const problem *p) {
    /* Q, O, K and V; or with dO and the gradients */
    const int backward = p->op == PROBLEM_BACKWARD;
    const uint64_t rows =
        (backward ? 4 : 2) * (uint64_t)problem_q_tokens(p) * (uint64_t)p->heads +
        (backward ? 4 : 2) * (uint64_t)problem_kv_tokens(p) * (uint64_t)p->kv_heads;
    return rows * (uint64_t)p->head_dim * dtype_size(p->dtype);
}

/* What measuring one shape is about. */
typedef struct scene {
    tess_runtime *runtime;
    tess_device *device;
    const char *id;
    const problem *p;
    const tune_limits *limits;
    progress *bar;
    tune_result *result;
    int *failures;
    candidate *all;
    int n;
    int choice; /* more than one kernel takes the shape, though some of them may fail afterwards */
} scene;

/* Kernel `index` of the scene failed: it is told, and taken out if it was taken in (index below
 * n). */
static void fail(scene *s, int index, const char *kernel, const char *why) {
    char line[1024];
    snprintf(line, sizeof line,
             "tessera tune: FAILED on %.39s, %.63s: %.400s\n  reproduce: TESSERA_BACKEND=%.39s "
             "TESSERA_KERNEL=%.63s tessera bench %.255s",
             s->id, kernel, why, s->id, kernel, s->result->shape.line);
    progress_say(s->bar, line);
    ++*s->failures;
    if (index == s->n) return;
    instance_release(&s->all[index].x);
    memmove(&s->all[index], &s->all[index + 1], (size_t)(s->n - index - 1) * sizeof *s->all);
    s->n--;
}

/* Plans the shape with one kernel, or with none named; `taken` (64 bytes) is the one that it
 * got. */
static tess_status plan(const scene *s, const char *kernel, char *taken) {
    tess_layout *layout = NULL;
    tess_plan *plan = NULL;
    tess_plan_info info = {.struct_size = sizeof info};
    tess_status status = measure_plan(s->runtime, s->device, kernel, s->p, &layout, &plan);
    if (status == TESS_OK) status = tess_plan_query(plan, &info);
    snprintf(taken, 64, "%s", status == TESS_OK ? info.kernel : "");
    tess_plan_release(plan);
    tess_layout_release(layout);
    return status;
}

/* The kernels that take the shape, which plans without any memory tell. */
static void gather(scene *s) {
    char names[DEVICES_KERNELS][64], usual[DEVICES_KERNELS][64];
    const int n_names = devices_kernels(s->device, s->limits->which, names),
              n_usual = devices_kernels(s->device, DEVICES_USUAL_KERNELS, usual);
    for (int i = 0; i < n_names && s->n < TUNE_KERNELS; i++) {
        candidate *c = &s->all[s->n];
        const tess_status status = plan(s, names[i], c->kernel.name);
        if (status != TESS_OK && status != TESS_ERROR_UNSUPPORTED)
            fail(s, s->n, names[i], cli_why());
        if (status != TESS_OK) continue;
        c->kernel.only_named = 1;
        for (int k = 0; k < n_usual; k++)
            if (strcmp(usual[k], names[i]) == 0) c->kernel.only_named = 0;
        s->n++;
    }
    s->choice = s->n > 1;
}

/* Tensors, the first run, its check, and a second run that tells about how long the others will
 * take. Returns 0, or -1 with the reason. */
static int prepare(const scene *s, candidate *c, double check_seconds, char *why, size_t why_size) {
    instance_verdict verdict = {0};
    if (instance_create(&c->x, s->device, s->p, c->kernel.name, INSTANCE_GUARDS) != TESS_OK)
        return text_error(why, why_size, "%s", c->x.error);
    if (instance_run(&c->x, NULL) != TESS_OK) return text_error(why, why_size, "%s", c->x.error);
    if (measure_check(&c->x, check_seconds, &verdict, why, why_size) != 0) return -1;
    c->samples[0] = measure_run(&c->x);
    return isnan(c->samples[0]) ? text_error(why, why_size, "%s", c->x.error) : 0;
}

/* Returns 0, or -1 when interrupted. Where there is nothing to choose from, nothing is run. */
static int measure_candidates(scene *s) {
    const double end = clock_now() + s->limits->seconds;
    /* on the host, on the device, and in the making */
    const uint64_t each = 3 * tensor_bytes(s->p);
    char why[512];
    gather(s);
    for (int i = 0; i < s->n && s->choice;) {
        if (clock_interrupted()) return -1;
        if (s->limits->host_bytes && each * (uint64_t)(i + 1) > s->limits->host_bytes) {
            s->n = i; /* the last ones are seldom the fastest */
            break;
        }
        if (prepare(s, &s->all[i], 0.05, why, sizeof why) == 0)
            i++;
        else
            fail(s, i, s->all[i].kernel.name, why);
    }
    /* One that fails later takes itself out, and the others start anew. */
    for (int failed;
         s->choice && s->n > 0 && (failed = time_in_turns(s->all, s->n, end)) != s->n;) {
        if (failed < 0) return -1;
        snprintf(why, sizeof why, "%s", s->all[failed].x.error);
        fail(s, failed, s->all[failed].kernel.name, why);
    }
    return 0;
}

int tune_measure(tess_runtime *runtime, tess_device *device, const char *id,
                 const tune_limits *limits, progress *bar, tune_result *r, int *failures) {
    problem p;
    char error[256] = "";
    int status = 0;
    scene s = {
        runtime, device, id, &p, limits, bar, r, failures, calloc(TUNE_KERNELS, sizeof *s.all),
        0,       0};
    if (line_parse(&p, r->shape.line, error, sizeof error) != 0 || !s.all) {
        snprintf(r->note, sizeof r->note, "%s", s.all ? error : "out of memory");
        ++*failures;
    } else if (plan(&s, NULL, r->usual) == TESS_OK) {
        status = measure_candidates(&s);
    } else {
        snprintf(r->note, sizeof r->note, "%.200s", cli_why());
    }
    for (int i = 0; i < s.n; i++) {
        if (status == 0 && s.choice && summarize(&s.all[i]) == 0)
            r->kernels[r->n_kernels++] = s.all[i].kernel;
        instance_release(&s.all[i].x);
    }
    if (!r->note[0] && !r->n_kernels)
        snprintf(r->note, sizeof r->note, s.n ? "only %.64s takes it" : "no kernel is left",
                 s.n ? s.all[0].kernel.name : "");
    tune_order(r);
    free(s.all);
    problem_free(&p);
    return status;
}

/* ------------------------------------------------------------------ the order */

static int slower(const void *a, const void *b) {
    const tune_kernel *x = a, *y = b;
    if (x->only_named != y->only_named) return x->only_named - y->only_named;
    return (x->median > y->median) - (x->median < y->median);
}

void tune_order(tune_result *r) {
    qsort(r->kernels, (size_t)r->n_kernels, sizeof *r->kernels, slower);
    int usual = 0;
    while (usual < r->n_kernels && strcmp(r->kernels[usual].name, r->usual) != 0) usual++;
    r->displaced = r->n_kernels > 0 && usual > 0;
    /* it failed, so whatever is left takes its place */
    if (!r->displaced || usual == r->n_kernels) return;
    const tune_kernel best = r->kernels[0], own = r->kernels[usual];
    const double gain = own.median - best.median;
    if (gain > best.spread && gain > own.spread && gain > 0.02 * own.median) return;
    memmove(&r->kernels[1], &r->kernels[0], (size_t)usual * sizeof *r->kernels);
    r->kernels[0] = own;
    r->displaced = 0;
}
