/* SPDX-License-Identifier: Apache-2.0 */
/* Families of problems: lengths in rising order, each beside its dense twin, within a share of the
 * time. */
#include <math.h>
#include <stdio.h>

#include "clock.h"
#include "session.h"
#include "text.h"

/* A problem and its dense twin. */
static int measure_pair(session *s, const char *family, const char *line, double seconds,
                        double check_seconds) {
    char twin[BENCH_LINE];
    if (suite_twin(line, twin, sizeof twin) != 0) return -1;
    const session_entry pair[2] = {{family, line}, {family, twin}};
    const int status = session_measure(s, pair, 2, 1, seconds, check_seconds);
    session_tell(s, family, line);
    return status;
}

/* The same for a point and its dense twin, what is measured already left out. */
static void foretell_pair(session *s, const char *family, const char *line, session_forecast *f) {
    char twin[BENCH_LINE];
    session_forecast other;
    session_foretell(s, line, f);
    if (!f->planned || suite_twin(line, twin, sizeof twin) != 0 || !twin[0]) return;
    if (session_find(s, family, twin)) return;
    session_foretell(s, twin, &other);
    f->seconds += other.planned ? other.seconds : 0;
}

/* Whether the length after `k` fits into `seconds` with the fewest heads. */
static int longer_fits(session *s, const suite_series *e, int k, double seconds) {
    char line[BENCH_LINE];
    session_forecast f;
    int choice = 0;
    while (suite_heads(e->family, choice + 1)) choice++;
    if (k + 1 >= e->n_lengths ||
        suite_line(e, e->lengths[k + 1], suite_heads(e->family, choice), line, sizeof line) != 0)
        return 0;
    foretell_pair(s, e->family->name, line, &f);
    return f.planned && f.seconds <= seconds;
}

static int run_point(session *s, const suite_series *e, int k, double *share) {
    char line[BENCH_LINE], need[TEXT_SIZE], left[TEXT_SIZE];
    const char *family = e->family->name;
    session_forecast f = {.planned = 0};
    double allowed = *share;
    int choice = 0;
    /* Fewer heads now where that lets a longer context be seen. */
    if (e->may_slice && longer_fits(s, e, k, 0.6 * *share)) allowed = 0.4 * *share;
    /* Every family is to be seen, even after others took longer than foretold; where heads cannot
     * be cut, the shortest length may take more than its part. */
    if (k == 0) allowed = fmax(e->may_slice ? allowed : 2 * *share, s->options->budget / 50);
    for (int heads; (heads = suite_heads(e->family, choice)) != 0; choice++) {
        if (suite_line(e, e->lengths[k], heads, line, sizeof line) != 0) return -1;
        foretell_pair(s, family, line, &f);
        if (!e->may_slice || f.seconds <= allowed) break;
    }
    if (!f.planned) return session_skip(s, family, line, BENCH_REFUSED, &f);
    if (f.seconds > allowed) {
        snprintf(f.why, sizeof f.why, "would take about %s, %s are left for it",
                 text_seconds(need, sizeof need, f.seconds),
                 text_seconds(left, sizeof left, fmax(allowed, 0)));
        return session_skip(s, family, line, BENCH_SLOW, &f);
    }
    const double start = clock_now(), part = *share / (e->n_lengths - k);
    const int status = measure_pair(s, family, line, fmin(fmax(part / 8, 0.1), 1.0),
                                    fmin(fmax(part / 16, 0.05), 0.5));
    *share -= clock_now() - start;
    return status;
}

int run_series(session *s, const suite_series *e, double share) {
    if (e->n_lengths > 0) session_find_speed(s, e->dtype);
    for (int k = 0; k < e->n_lengths && !clock_interrupted(); k++) {
        char line[BENCH_LINE];
        session_forecast f = {
            .ideal = NAN, .why = "this kernel does not run the small problem that foretells times"};
        if (suite_line(e, e->lengths[k], e->family->heads, line, sizeof line) != 0) return -1;
        const int status = s->speed[e->dtype] < 0
                               ? session_skip(s, e->family->name, line, BENCH_REFUSED, &f)
                               : run_point(s, e, k, &share);
        if (status != 0) return status;
    }
    return 0;
}
