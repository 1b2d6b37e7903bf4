/* SPDX-License-Identifier: Apache-2.0 */
/* Time, and the wish of the user to stop. */
#ifndef TESSERA_BENCH_CLOCK_H
#define TESSERA_BENCH_CLOCK_H

double clock_now(void); /* seconds on a clock that never jumps */
void clock_rest(double seconds);

/* From now on the first Ctrl-C (or SIGTERM) is noted, and one that comes a second later or more
 * ends the process as usual. */
void clock_catch_interrupt(void);
void clock_release_interrupt(void);
int clock_interrupted(void);

#endif
