/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fixed lines: each of them becomes a result on every device, if only one that says why there is no
 * number. Lines with one dense twin are measured in turns with it. A line is measured where its
 * runs fit what is left of the time, of which no line may take all; those that do not come once
 * more at the end, the shortest first, when whatever is left may be spent.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "session.h"
#include "text.h"

/* What one line may take of the time that is left. */
static const double MOST_OF_REST = 0.25;
/* What a group may take of it that turns out to be slower than foretold. */
static const double MOST_MISTAKEN = 0.5;
/* Seconds of a contestant's rounds: a GPU has as many as are kept after that. */
static const double GPU_SECONDS = 0.12, CPU_SECONDS = 0.6;

typedef struct fixed {
    session *s;
    const bench_line *lines;
    char (*twins)[BENCH_LINE];
    char *done;
    double *needs; /* seconds that were foretold for each */
    int n, left;
    int again; /* 1: what was postponed has its last turn */
} fixed;

enum { POSTPONED = 2 };

static int related(const fixed *x, int i, int j) {
    const char *a = x->lines[i].line, *b = x->lines[j].line;
    return strcmp(x->twins[j], a) == 0 || strcmp(x->twins[i], b) == 0 ||
           (x->twins[i][0] && strcmp(x->twins[i], x->twins[j]) == 0);
}

/* Seconds that a line may take, with so many left. */
static double may_take(const fixed *x, double rest) {
    return fmax(fmin(fmax(MOST_OF_REST * rest, 2 * rest / x->left), rest), 0);
}

/* Whether a line fits the time. Otherwise it is postponed, and the second time it becomes a result
 * without numbers. Returns -1 when out of memory. */
static int admit(fixed *x, int i, double already, double *need, double *first_plan) {
    session *s = x->s;
    const bench_line *l = &x->lines[i];
    char would[TEXT_SIZE], may[TEXT_SIZE];
    session_forecast f;
    bench_result shape;
    memset(&shape, 0, sizeof shape);
    measure_describe(l->line, &shape);
    double rest = session_rest(s) - already, most = may_take(x, rest);
    const double compiling = session_foretell_compiling(s, &shape);
    if (compiling > 0 && compiling > (x->again ? rest : most)) {
        session_foretell_uncompiled(s, l->line, compiling, &f);
        x->needs[i] = f.seconds;
        if (!x->again) return POSTPONED;
        snprintf(f.why, sizeof f.why,
                 "its kernels would take about %s to compile, %s are left for it",
                 text_seconds(would, sizeof would, compiling),
                 text_seconds(may, sizeof may, fmax(rest, 0)));
        return session_skip(s, l->family, l->line, BENCH_SLOW, &f) ? -1 : 0;
    }
    if (!shape.decode) session_find_speed(s, shape.dtype);
    session_foretell(s, l->line, &f);
    if (!f.planned) return session_skip(s, l->family, l->line, BENCH_REFUSED, &f) ? -1 : 0;
    rest = session_rest(s) - already;
    most = may_take(x, rest);
    *need = x->needs[i] = f.seconds;
    *first_plan = f.first_plan;
    if (f.seconds <= (x->again ? rest : most)) return 1;
    if (!x->again) return POSTPONED;
    snprintf(f.why, sizeof f.why, "would take about %s, %s are left for it",
             text_seconds(would, sizeof would, f.seconds),
             text_seconds(may, sizeof may, fmax(rest, 0)));
    return session_skip(s, l->family, l->line, BENCH_SLOW, &f) ? -1 : 0;
}

static int run_group(fixed *x, int first) {
    session *s = x->s;
    session_entry entries[SESSION_MOST];
    int n = 0, status = 0;
    double need = 0, first_plan = 0, sum = 0;
    /* The second time each stands alone: its twin may need more than is left. */
    const int end = x->again ? first + 1 : x->n;
    for (int i = first; i < end && n < SESSION_MOST && status >= 0; i++) {
        if (x->done[i] || (i != first && !related(x, first, i))) continue;
        x->done[i] = 1;
        status = admit(x, i, sum, &need, &first_plan);
        x->left--;
        if (status == POSTPONED) x->done[i] = POSTPONED;
        if (status != 1) continue;
        sum += need;
        entries[n++] = (session_entry){x->lines[i].family, x->lines[i].line, first_plan};
    }
    if (status < 0) return -1;
    const double rest = session_rest(s), part = fmax(rest, 0) / (x->left + n + 1),
                 most = strcmp(s->report->devices[s->index].kind, "gpu") == 0 ? GPU_SECONDS
                                                                              : CPU_SECONDS;
    /* What was foretold wrongly must not take the time of all others. */
    s->most = fmax(x->again ? rest : rest * MOST_MISTAKEN, 1);
    status = session_measure(s, entries, n, 0, fmin(fmax(part / 4, 0.05), most),
                             fmin(fmax(part / 10, 0.02), 0.3));
    for (int i = 0; i < n; i++) session_tell(s, entries[i].family, entries[i].line);
    return status;
}

/* Of the lines that are left the next one, or, the second time, the one that needs least: as many
 * as the time holds have numbers then. -1: none is left. */
static int next_line(const fixed *x) {
    int next = -1;
    for (int i = 0; i < x->n; i++) {
        if (x->done[i]) continue;
        if (!x->again) return i;
        if (next < 0 || x->needs[i] < x->needs[next]) next = i;
    }
    return next;
}

int run_fixed(session *s) {
    fixed x = {.s = s, .lines = s->options->lines, .n = s->options->n_lines};
    int status = 0;
    x.left = x.n;
    x.twins = calloc((size_t)x.n + 1, sizeof *x.twins);
    x.done = calloc((size_t)x.n + 1, 1);
    x.needs = calloc((size_t)x.n + 1, sizeof *x.needs);
    if (!x.twins || !x.done || !x.needs) status = -1;
    for (int i = 0; i < x.n && status == 0; i++)
        status = suite_twin(x.lines[i].line, x.twins[i], sizeof x.twins[i]);
    /* Postponed lines come again, and may take whatever is left then. */
    for (; x.again < 2 && status == 0; x.again++) {
        for (int i; status == 0 && !clock_interrupted() && (i = next_line(&x)) >= 0;)
            status = run_group(&x, i);
        for (int i = 0; i < x.n; i++)
            if (x.done[i] == POSTPONED) {
                x.done[i] = 0;
                x.left++;
            }
    }
    s->most = 0;
    free(x.twins);
    free(x.done);
    free(x.needs);
    return status;
}
