/* SPDX-License-Identifier: Apache-2.0 */
/* How far the suite is: a bar on a terminal, plain lines otherwise; all on standard error. */
#ifndef TESSERA_BENCH_PROGRESS_H
#define TESSERA_BENCH_PROGRESS_H

typedef struct progress {
    int terminal, done, total;
    double start, budget;
} progress;

void progress_begin(progress *p, int total, double budget);
/* What is being done now; shown by the bar only. */
void progress_now(progress *p, const char *what);
/* A step is over; `line` is printed where there is no bar. */
void progress_step(progress *p, const char *line);
/* A line that is printed in any case, above the bar. */
void progress_say(progress *p, const char *line);
void progress_end(progress *p);

#endif
