/* SPDX-License-Identifier: Apache-2.0 */
#include "clock.h"

#include <signal.h>
#include <stddef.h>
#include <time.h>

static volatile sig_atomic_t interrupted;
static struct sigaction previous[2];
static const int signals[2] = {SIGINT, SIGTERM};

double clock_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void on_signal(int number) {
    (void)number;
    interrupted = 1;
}

void clock_catch_interrupt(void) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&action.sa_mask);
    interrupted = 0;
    for (int i = 0; i < 2; i++) sigaction(signals[i], &action, &previous[i]);
}

void clock_release_interrupt(void) {
    for (int i = 0; i < 2; i++) sigaction(signals[i], &previous[i], NULL);
}

int clock_interrupted(void) { return interrupted; }
