/* SPDX-License-Identifier: Apache-2.0 */
#include "stages.h"

#include <stddef.h>

#include "clock.h"

static double *seconds, since;
static bench_stage now;

bench_stage stage_enter(bench_stage next) {
    const bench_stage before = now;
    const double time = clock_now();
    if (seconds) seconds[before] += time - since;
    since = time;
    now = next;
    return before;
}

void stages_of(double *to) {
    stage_enter(STAGE_REST);
    seconds = to;
}

const char *stage_name(int stage) {
#define STAGE(upper, lower) #lower,
    static const char *const names[] = {BENCH_STAGES(STAGE)};
#undef STAGE
    return stage >= 0 && stage < N_STAGES ? names[stage] : NULL;
}
