/* SPDX-License-Identifier: Apache-2.0 */
/* Backward instances: a forward pass gives O and LSE, and the gradients are compared with those of
 * gradients.h. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gradients.h"
#include "instance_parts.h"
#include "tasks.h"
#include "text.h"

/* Streams of fill_normal; that of what a gradient is added to is STREAM_BEFORE and its part. */
enum { STREAM_D_O = 4, STREAM_D_LSE = 5, STREAM_BEFORE = 6 };

static const struct {
    const char *name;
    tess_role role;
    size_t at; /* of the tensor in tess_run_desc */
    int output;
} parts[N_BACKWARD] = {
    [INSTANCE_D_O] = {"dO", TESS_ROLE_D_O, offsetof(tess_run_desc, d_o), 0},
    [INSTANCE_D_Q] = {"dQ", TESS_ROLE_D_Q, offsetof(tess_run_desc, d_q), 1},
    [INSTANCE_D_K] = {"dK", TESS_ROLE_D_K, offsetof(tess_run_desc, d_k), 1},
    [INSTANCE_D_V] = {"dV", TESS_ROLE_D_V, offsetof(tess_run_desc, d_v), 1},
    [INSTANCE_D_LSE] = {"dLSE", TESS_ROLE_D_LSE, offsetof(tess_run_desc, d_lse), 0},
};

static tess_tensor *tensor_of(const instance *x, int part) {
    return (tess_tensor *)(void *)((char *)(uintptr_t)&x->run + parts[part].at);
}

static uint32_t type_of(const problem *p, int part) {
    const int32_t wide = part == INSTANCE_D_Q                           ? p->dq_f32
                         : part == INSTANCE_D_K || part == INSTANCE_D_V ? p->dkv_f32
                                                                        : part == INSTANCE_D_LSE;
    return wide ? TESS_F32 : p->dtype;
}

static uint64_t size_of(const problem *p, int part) {
    return type_of(p, part) == TESS_F32 ? sizeof(float) : problem_size(p);
}

static int adds(const problem *p, int part) {
    return part == INSTANCE_D_Q ? p->dq_add : parts[part].output && p->dkv_add;
}

/* ------------------------------------------------------------------ inputs */

/* O and LSE by a forward plan, into the tensors of the run and to the host. */
static tess_status run_forward(instance *x, tess_plan *plan, tess_buffer *work) {
    tess_plan_info info = {.struct_size = sizeof info};
    tess_run_desc run = x->run;
    tess_status status = tess_plan_query(plan, &info);
    if (status == TESS_OK && info.workspace_bytes)
        status = tess_alloc(x->device, info.workspace_bytes, work);
    run.workspace = *work;
    if (status == TESS_OK) status = tess_run(plan, &run);
    if (status == TESS_OK) status = tess_wait(x->device, UINT64_MAX);
    if (status == TESS_OK) return instance_fetch_outputs(x);
    instance_fail(x, status, NULL);
    /* Memory that is released now may still be read, if waiting is what failed. */
    tess_wait(x->device, UINT64_MAX);
    return status;
}

static tess_status forward(instance *x) {
    tess_plan_desc desc;
    int64_t *cu = NULL;
    tess_plan *plan = NULL;
    tess_buffer work = {0};
    if (problem_plan_desc(x->problem, &desc, &cu) != 0)
        return instance_fail(x, TESS_ERROR_OUT_OF_MEMORY, "out of memory for the lengths");
    desc.op = TESS_OP_FORWARD;
    desc.determinism = 0;
    desc.flags &=
        ~(uint32_t)(TESS_PLAN_DQ_F32 | TESS_PLAN_DKV_F32 | TESS_PLAN_DQ_ADD | TESS_PLAN_DKV_ADD);
    tess_status status = tess_plan_create(x->device, x->layout, &desc, &plan);
    free(cu);
    if (status != TESS_OK) return instance_fail(x, status, NULL);
    status = run_forward(x, plan, &work);
    if (work.kind != TESS_BUFFER_NONE) tess_free(x->device, &work);
    tess_plan_release(plan);
    return status;
}

/* Rows without keys may hold anything but in LSE: NaN in O, dO and dLSE. */
static tess_status poison_empty_rows(instance *x) {
    const problem *p = x->problem;
    const uint64_t row_bytes = (uint64_t)p->head_dim * problem_size(p);
    int any = 0;
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t row = 0; row < problem_q_len(p, b); row++)
            for (int32_t head = 0; head < p->heads; head++) {
                const int64_t at = gradient_lse_element(p, b, head, row);
                if (!isinf(x->lse[at])) continue;
                const uint64_t o_at = (uint64_t)gradient_row(p, b, head, row) * row_bytes;
                memset((char *)x->o + o_at, NAN_BYTE, (size_t)row_bytes);
                memset((char *)x->backward.host[INSTANCE_D_O] + o_at, NAN_BYTE, (size_t)row_bytes);
                if (x->backward.host[INSTANCE_D_LSE])
                    ((float *)x->backward.host[INSTANCE_D_LSE])[at] = NAN;
                any = 1;
            }
    if (!any) return TESS_OK;
    const tess_status status =
        tess_copy(x->device, x->run.o.buffer, tess_host_buffer(x->o, x->o_bytes), x->o_bytes);
    return status == TESS_OK ? TESS_OK : instance_fail(x, status, NULL);
}

/* Guarded, and where the plan adds to it, with something in it, of which `before` is a copy. */
static tess_status place_output(instance *x, int part, int fill) {
    instance_backward *b = &x->backward;
    tess_buffer *buffer = &tensor_of(x, part)->buffer;
    tess_status status = instance_guarded(x, b->bytes[part], 16, fill, &b->memory[part], buffer);
    if (status != TESS_OK || !adds(x->problem, part)) return status;
    b->before[part] = instance_host_alloc(b->bytes[part]);
    if (!b->before[part])
        return instance_fail(x, TESS_ERROR_OUT_OF_MEMORY, "out of memory for gradients");
    fill_normal(TESS_F32, b->before[part], (int64_t)(b->bytes[part] / sizeof(float)),
                x->problem->seed, (uint32_t)(STREAM_BEFORE + part));
    status = tess_copy(x->device, *buffer, tess_host_buffer(b->before[part], b->bytes[part]),
                       b->bytes[part]);
    return status == TESS_OK ? TESS_OK : instance_fail(x, status, NULL);
}

tess_status instance_place_gradients(instance *x) {
    const problem *p = x->problem;
    instance_backward *b = &x->backward;
    const int fill = x->flags & INSTANCE_POISON ? NAN_BYTE : 0;
    tess_status status = forward(x);
    for (int n = 0; n < N_BACKWARD && status == TESS_OK; n++) {
        if (n == INSTANCE_D_LSE && !(x->flags & INSTANCE_WITH_D_LSE)) continue;
        status = tess_plan_tensor(x->plan, parts[n].role, (tess_buffer){0}, tensor_of(x, n),
                                  &b->bytes[n]);
        if (status != TESS_OK) return instance_fail(x, status, NULL);
        b->host[n] = instance_host_alloc(b->bytes[n]);
        if (!b->host[n])
            return instance_fail(x, TESS_ERROR_OUT_OF_MEMORY, "out of memory for gradients");
        memset(b->host[n], NAN_BYTE, (size_t)b->bytes[n]);
        if (parts[n].output)
            status = place_output(x, n, fill);
        else if (n == INSTANCE_D_O)
            fill_normal(p->dtype, b->host[n], (int64_t)(b->bytes[n] / problem_size(p)), p->seed,
                        STREAM_D_O);
        else
            fill_normal(TESS_F32, b->host[n], (int64_t)(b->bytes[n] / sizeof(float)), p->seed,
                        STREAM_D_LSE);
    }
    if (status == TESS_OK && x->flags & INSTANCE_POISON) status = poison_empty_rows(x);
    for (int n = 0; n < N_BACKWARD && status == TESS_OK; n++)
        if (!parts[n].output && b->host[n])
            status = instance_upload(x, b->host[n], b->bytes[n], &b->memory[n], tensor_of(x, n));
    return status;
}

tess_status instance_fetch_gradients(instance *x) {
    const instance_backward *b = &x->backward;
    for (int n = 0; n < N_BACKWARD; n++) {
        if (!parts[n].output || !b->bytes[n]) continue;
        const tess_status status = tess_copy(x->device, tess_host_buffer(b->host[n], b->bytes[n]),
                                             tensor_of(x, n)->buffer, b->bytes[n]);
        if (status != TESS_OK) return instance_fail(x, status, NULL);
    }
    return TESS_OK;
}

void instance_release_gradients(instance *x) {
    instance_backward *b = &x->backward;
    for (int n = 0; n < N_BACKWARD; n++) {
        if (b->memory[n].kind != TESS_BUFFER_NONE) tess_free(x->device, &b->memory[n]);
        free(b->host[n]);
        free(b->before[n]);
    }
}

/* ------------------------------------------------------------------ the check */

/* What the comparison of one gradient gathers. */
typedef struct tally {
    double difference2, reference2, terms;
    double worst, largest, same_type, rounding, largest_terms;
    char where[160];
} tally;

typedef struct checker {
    const instance *x;
    gradient_inputs in;
    tally of[N_BACKWARD];
    instance_verdict *verdict;
    int failed;
} checker;

/* One row of a gradient, at vector `at` of its array. */
static void compare(checker *c, int part, int64_t at, const char *where, const gradient *g) {
    const problem *p = c->x->problem;
    tally *t = &c->of[part];
    const float *all = c->x->backward.before[part];
    for (int32_t d = 0; d < p->head_dim; d++) {
        const int64_t element = at * p->head_dim + d;
        const double got = load_element(type_of(p, part), c->x->backward.host[part], element),
                     before = all ? (double)all[element] : 0, wanted = before + g->exact[d],
                     difference = fabs(got - wanted);
        if (!c->failed && (!isfinite(got) || (g->terms[d] == 0 && got != before))) {
            c->failed = 1;
            text_error(c->verdict->what, sizeof c->verdict->what,
                       "%s: %s, element %" PRId32 ": got %g, wanted %g", parts[part].name, where, d,
                       got, wanted);
        }
        if (!(difference <= t->worst)) {
            t->worst = difference;
            snprintf(t->where, sizeof t->where, "%s, element %" PRId32 ": got %.9g, wanted %.9g",
                     where, d, got, wanted);
        }
        t->difference2 += difference * difference;
        t->reference2 += wanted * wanted;
        t->terms += g->terms[d];
        if (fabs(wanted) > t->largest) t->largest = fabs(wanted);
        if (g->terms[d] > t->largest_terms) t->largest_terms = g->terms[d];
        if (p->dtype == TESS_F32) continue;
        const float rounded = instance_rounded(p->dtype, (float)g->exact[d]),
                    there = instance_rounded(p->dtype, rounded + 0.3f),
                    back = instance_rounded(p->dtype, there - 0.3f);
        t->same_type = fmax(t->same_type, fabs(g->same[d] - g->exact[d]));
        t->rounding = fmax(t->rounding, fabs((double)back - rounded));
    }
}

/* Where one of the vectors of an array lies, counted by sequence, then head, then row or key. */
typedef struct place {
    int64_t sequence, before; /* vectors of the sequences before it */
    int32_t head;
    int64_t row;
} place;

/* The place of vector `at`, which is not before that of the last call. `length` is that of a
 * sequence. */
static void find_place(place *w, const problem *p, int64_t (*length)(const problem *, int64_t),
                       int32_t heads, int64_t at) {
    while (at - w->before >= length(p, w->sequence) * heads)
        w->before += length(p, w->sequence++) * heads;
    w->head = (int32_t)((at - w->before) / length(p, w->sequence));
    w->row = (at - w->before) % length(p, w->sequence);
}

/* A row to compare: of dQ, or of dK and dV. */
typedef struct row_task {
    const checker *c;
    place w;
    int keys;
    gradient g[2]; /* dQ; dK, dV */
} row_task;

static void *make_task(void *argument) {
    row_task *t = argument;
    const problem *p = t->c->x->problem;
    if (t->keys)
        reference_d_kv(p, &t->c->in, t->w.sequence, t->w.head, t->w.row, &t->g[0], &t->g[1]);
    else
        reference_d_q(p, &t->c->in, t->w.sequence, t->w.head, t->w.row, &t->g[0]);
    return NULL;
}

static void compare_task(checker *c, const row_task *t) {
    const problem *p = c->x->problem;
    const place *w = &t->w;
    char where[96];
    snprintf(where, sizeof where, "sequence %" PRId64 ", %s %" PRId32 ", %s %" PRId64, w->sequence,
             t->keys ? "kv head" : "head", w->head, t->keys ? "key" : "row", w->row);
    if (!t->keys) {
        compare(c, INSTANCE_D_Q, gradient_row(p, w->sequence, w->head, w->row), where, &t->g[0]);
        return;
    }
    const int64_t at = gradient_key(p, w->sequence, w->head, w->row);
    compare(c, INSTANCE_D_K, at, where, &t->g[0]);
    compare(c, INSTANCE_D_V, at, where, &t->g[1]);
}

/* Compares `wanted` of the rows of dQ, or of the keys of dK and dV. */
static void compare_rows(checker *c, int keys, int64_t wanted, int64_t total) {
    const problem *p = c->x->problem;
    /* A key meets the rows of all heads of its group. */
    const int64_t group = p->heads / p->kv_heads,
                  meets = keys ? problem_q_tokens(p) / (p->batch ? p->batch : 1) * group
                               : problem_max_kv(p),
                  at_once = tasks_at_once(meets * p->head_dim);
    row_task *tasks = calloc((size_t)at_once, sizeof *tasks);
    place w = {0};
    if (!tasks) {
        c->failed = 1;
        text_error(c->verdict->what, sizeof c->verdict->what, "out of memory for the reference");
        return;
    }
    for (int64_t first = 0; first < wanted; first += at_once) {
        const int64_t count = wanted - first < at_once ? wanted - first : at_once;
        for (int64_t i = 0; i < count; i++) {
            find_place(&w, p, keys ? problem_kv_len : problem_q_len, keys ? p->kv_heads : p->heads,
                       instance_nth_row(first + i, wanted, total));
            tasks[i].c = c;
            tasks[i].w = w;
            tasks[i].keys = keys;
        }
        tasks_run(make_task, tasks, sizeof *tasks, count);
        for (int64_t i = 0; i < count; i++) compare_task(c, &tasks[i]);
    }
    free(tasks);
}

/* Where terms cancel, float sums keep errors of the terms: 2^-20 of each is far below what the rule
 * leaves to any problem in which they do not. */
static int judge(checker *c, int part) {
    const tally *t = &c->of[part];
    instance_verdict *v = c->verdict;
    v->worst = fmax(v->worst, t->worst);
    if (c->x->problem->dtype == TESS_F32) {
        const double allowed = 1e-10 * t->reference2 + 0x1p-40 * t->terms;
        if (t->reference2 > 0) v->nmse = fmax(v->nmse, t->difference2 / t->reference2);
        if (t->largest > 0) v->max_rel = fmax(v->max_rel, t->worst / t->largest);
        if (t->difference2 <= allowed) return 0;
        return text_error(v->what, sizeof v->what, "%s: nmse %.3g (at most 1e-10); worst at %s",
                          parts[part].name, t->difference2 / t->reference2, t->where);
    }
    const double allowed = 3 * t->same_type + 2 * t->rounding + 0x1p-20 * sqrt(t->largest_terms);
    v->allowed = fmax(v->allowed, allowed);
    if (t->worst <= allowed) return 0;
    return text_error(v->what, sizeof v->what, "%s: error %.3g (at most %.3g) at %s",
                      parts[part].name, t->worst, allowed, t->where);
}

/* Also rows that are not compared must have been written. */
static int all_written(const instance *x, int part, char *what, size_t size) {
    const uint64_t n = x->backward.bytes[part] / size_of(x->problem, part);
    for (uint64_t i = 0; i < n; i++)
        if (isnan(load_element(type_of(x->problem, part), x->backward.host[part], (int64_t)i)))
            return text_error(what, size, "%s: element %" PRIu64 " of the whole array is NaN",
                              parts[part].name, i);
    return 0;
}

static int guards_intact(const instance *x, char *what, size_t size) {
    if (!(x->flags & INSTANCE_GUARDS)) return 0;
    for (int n = 0; n < N_BACKWARD; n++)
        if (parts[n].output && instance_guards_intact(x, parts[n].name, &x->backward.memory[n],
                                                      &tensor_of(x, n)->buffer, what, size) != 0)
            return -1;
    return instance_guards_intact(x, "workspace", &x->dwork, &x->run.workspace, what, size);
}

void instance_check_gradients(const instance *x, int64_t max_rows, instance_verdict *verdict) {
    const problem *p = x->problem;
    const instance_backward *b = &x->backward;
    const int64_t rows = problem_q_tokens(p) * p->heads, keys = problem_kv_tokens(p) * p->kv_heads,
                  wanted = max_rows > 0 && max_rows < rows ? max_rows : rows,
                  /* as large a share of the keys */
        of_keys = wanted == rows ? keys : (int64_t)((double)wanted / (double)rows * (double)keys),
                  wanted_keys = of_keys < 16 && keys > 16 ? 16
                                : of_keys > keys          ? keys
                                                          : of_keys;
    checker c = {.x = x, .verdict = verdict};
    double *numbers = malloc(((size_t)rows * 2 + 1) * sizeof *numbers);
    if (!numbers) {
        text_error(verdict->what, sizeof verdict->what, "out of memory for the reference");
        return;
    }
    c.in = (gradient_inputs){.q = x->q,
                             .k = x->k,
                             .v = x->v,
                             .d_o = b->host[INSTANCE_D_O],
                             .lse = numbers,
                             .delta = numbers + rows};
    gradient_rows(p, x->o, x->lse, b->host[INSTANCE_D_O], b->host[INSTANCE_D_LSE], numbers,
                  numbers + rows);
    if (guards_intact(x, verdict->what, sizeof verdict->what) != 0) c.failed = 1;
    if (!c.failed) compare_rows(&c, 0, wanted, rows);
    if (!c.failed) compare_rows(&c, 1, wanted_keys, keys);
    free(numbers);
    verdict->rows = wanted + wanted_keys;
    for (int n = INSTANCE_D_Q; n <= INSTANCE_D_V && !c.failed; n++) {
        c.failed = judge(&c, n) != 0;
        if (!c.failed && x->flags & INSTANCE_POISON)
            c.failed = all_written(x, n, verdict->what, sizeof verdict->what) != 0;
    }
    verdict->pass = !c.failed;
}
