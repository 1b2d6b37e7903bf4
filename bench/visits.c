/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Second visits. What shares a processor slows it down for seconds, so a problem that is measured
 * in one go may meet a bad moment whole. Groups of contestants that stay open are measured again
 * after all others, far away in time, and the faster visit of a group counts, as the best round of
 * a limit does. It counts for all of the group: ratios are of times that were taken in turns.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "session.h"

/* Of the memory that a problem may take, groups that wait for their next visit hold this part. */
enum { KEPT_PART = 2 };

static void close_group(session_group *g) {
    for (int i = 0; i < g->n; i++) {
        contestant_close(g->all[i]);
        free(g->all[i]);
    }
    free(g);
}

void session_release_group(session *s, session_group *g) {
    int open = 0;
    for (int i = 0; i < g->n; i++) open |= g->all[i]->open && g->all[i]->result.status == BENCH_OK;
    if (!s->revisits || !open || s->kept_bytes + g->bytes > s->host_bytes / KEPT_PART) {
        close_group(g);
        return;
    }
    session_group **last = &s->kept;
    while (*last) last = &(*last)->next;
    *last = g;
    s->kept_bytes += g->bytes;
}

void session_close_groups(session *s) {
    while (s->kept) {
        session_group *next = s->kept->next;
        close_group(s->kept);
        s->kept = next;
    }
    s->kept_bytes = 0;
}

/* Whether a contestant takes part: the others have no numbers. */
static int is_in(const contestant *c) { return c->open && c->result.status == BENCH_OK; }

/* Another contest. What it shows stays where the group was faster in it, and failures do. */
static void visit(session *s, session_group *g, bench_result *before) {
    const measure_limits limits = {.seconds = g->rounds_seconds};
    double ratio = 0; /* the logarithm of all together */
    for (int i = 0; i < g->n; i++) {
        before[i] = g->all[i]->result;
        g->all[i]->result.n_samples = 0;
    }
    contest(g->all, g->n, &s->report->devices[s->index], &limits);
    for (int i = 0; i < g->n; i++)
        if (before[i].status == BENCH_OK)
            ratio += is_in(g->all[i]) ? log(g->all[i]->result.median / before[i].median) : INFINITY;
    for (int i = 0; i < g->n; i++) {
        bench_result *x = &g->all[i]->result;
        if (x->status == BENCH_FAILED && before[i].status == BENCH_OK)
            session_say_failure(s, x);
        else if (!(ratio < 0))
            *x = before[i];
        s->report->results[g->at[i]] = *x;
    }
}

int session_visit_again(session *s) {
    bench_result *before = malloc(SESSION_MOST * sizeof *before);
    int status = before ? 0 : -1;
    for (session_group *g = s->kept; g && status == 0 && !clock_interrupted(); g = g->next) {
        if (session_rest(s) < g->seconds) continue;
        progress_now(&s->bar, "once more");
        visit(s, g, before);
        status = session_limits_in_time(s);
    }
    free(before);
    return status;
}
