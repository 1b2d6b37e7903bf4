/* SPDX-License-Identifier: Apache-2.0 */
#include "clock.h"

#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <time.h>

/* `timeout` and supervisors send a signal to a process and to its group */
enum { ONE_WISH_MS = 1000 };

static atomic_llong asked_at; /* in milliseconds; 0: nobody has asked for an end */
static struct sigaction previous[2];
static const int signals[2] = {SIGINT, SIGTERM};

double clock_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void clock_rest(double seconds) {
    const struct timespec t = {(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))};
    nanosleep(&t, NULL);
}

/* The first signal asks for an end with results, and one that comes later for an end at once. */
static void on_signal(int number) {
    const long long now = (long long)(1e3 * clock_now()) + 1;
    long long first = 0;
    if (atomic_compare_exchange_strong(&asked_at, &first, now) || now - first < ONE_WISH_MS) return;
    signal(number, SIG_DFL);
    raise(number);
}

void clock_catch_interrupt(void) {
    struct sigaction action = {.sa_handler = on_signal};
    sigemptyset(&action.sa_mask);
    atomic_store(&asked_at, 0);
    for (int i = 0; i < 2; i++) sigaction(signals[i], &action, &previous[i]);
}

/* After a wish the rule stays in force, since the files are still to be written. */
void clock_release_interrupt(void) {
    if (clock_interrupted()) return;
    for (int i = 0; i < 2; i++) sigaction(signals[i], &previous[i], NULL);
}

int clock_interrupted(void) { return atomic_load(&asked_at) != 0; }
