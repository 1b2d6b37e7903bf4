/* SPDX-License-Identifier: Apache-2.0 */
#include "progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"

void progress_begin(progress *p, int total, double budget) {
    const char *term = getenv("TERM");
    *p = (progress){.terminal = isatty(STDERR_FILENO) && !(term && strcmp(term, "dumb") == 0),
                    .total = total,
                    .start = clock_now(),
                    .budget = budget};
}

void progress_now(progress *p, const char *what) {
    enum { WIDTH = 24 };
    if (!p->terminal) return;
    int filled = p->total > 0 ? p->done * WIDTH / p->total : 0;
    char bar[WIDTH + 1];
    for (int i = 0; i < WIDTH; i++) bar[i] = i < filled ? '#' : '.';
    bar[WIDTH] = 0;
    fprintf(stderr, "\r\033[K[%s] %d/%d  %.0f s of about %.0f  %.60s", bar, p->done, p->total,
            clock_now() - p->start, p->budget, what);
    fflush(stderr);
}

void progress_step(progress *p, const char *line) {
    p->done++;
    if (!p->terminal) fprintf(stderr, "[%d/%d] %s\n", p->done, p->total, line);
}

void progress_say(progress *p, const char *line) {
    fprintf(stderr, "%s%s\n", p->terminal ? "\r\033[K" : "", line);
}

void progress_end(progress *p) {
    if (p->terminal) fputs("\r\033[K", stderr);
    fflush(stderr);
}
