/* SPDX-License-Identifier: Apache-2.0 */
/* What a run of the suite knows while it goes from device to device, and the steps that series and
 * fixed lines share: foretelling, skipping, measuring in turns, telling. */
#ifndef TESSERA_BENCH_SESSION_H
#define TESSERA_BENCH_SESSION_H

#include <tessera/tessera.h>

#include "measure.h"
#include "peers.h"
#include "progress.h"
#include "runner.h"

/* Kernels of what differs in more than lengths are compiled apart. */
typedef struct session_compiled {
    int op; /* 0 forward, 1 decode, 2 gradients */
    uint32_t dtype;
    int head_dim;
    double seconds;
    double unsaid; /* of these, what stands in no result's column yet */
} session_compiled;
enum { SESSION_COMPILED = 32 };

typedef struct session {
    const run_options *options;
    bench_report *report;
    tess_runtime *runtime;
    tess_device *device;
    tess_device *counter; /* a CPU; NULL: not needed so far */
    int index;            /* of the device in the report */
    const char *kernel;   /* NULL: the device's choice */
    /* FLOP/s of the last dense problem in each dtype, forward and backward; 0: not known yet,
     * negative: the kernel does not take the dtype */
    double speed[3], backward_speed[3];
    double decode_rate; /* B/s of the last decode problem; 0: not known yet */
    double deadline;    /* for this device and kernel */
    double most;        /* seconds that a group, inputs included, may take; 0: whatever it takes */
    double compiling;   /* seconds that went to kernels' first plans and runs */
    double patience;    /* so many of them the budget does not pay for */
    double unpaid;      /* how many more it does not pay for, of all devices and kernels */
    double end;         /* of the run: the budget, and what it has not paid for so far */
    /* What compiling for a type, a head_dim and an op took; 0: not seen yet. */
    session_compiled compiled[SESSION_COMPILED];
    int n_compiled;
    struct limits_server *limits; /* NULL: none are measured */
    double limits_at;             /* when they had their latest round */
    /* Time that inputs and checks of contestants took besides runs, and the bytes of their tensors:
     * what the same will take of others follows. */
    double prepare_seconds, prepare_bytes;
    uint64_t host_bytes; /* that a problem may take */
    uint64_t device_bytes;
    peers *peers; /* NULL: none are wanted */
    progress bar;
    int failed;
} session;

/* What a line would take. `why` says what is wrong when it cannot be planned. */
typedef struct session_forecast {
    int planned;
    double seconds;    /* runs, inputs, check; not compilation */
    double run;        /* one run; NaN: nothing like it has run */
    double ideal;      /* speed-up */
    double first_plan; /* seconds, compilation included */
    char kernel[64];
    char why[512];
} session_forecast;

/* The time of all devices begins now; the run did at `start`. */
void session_begin(session *s, double start);
/* Seconds for the next device, where so many are left. */
double session_share(const session *s, int devices);
/* Around the problems of a kernel, NULL: the device's choice. */
void session_begin_kernel(session *s, const char *kernel);
/* Returns the seconds of compilation that the budget does not pay for. */
double session_end_kernel(session *s);

/* Seconds that are left for the device's problems; compilation counts beyond s->patience. */
double session_rest(const session *s);
/* Another round of the device's limits, where the latest is `age` seconds old. -1: out of memory.
 */
int session_limits(session *s, double age);

void session_reset_speeds(session *s);
/* Measures the speed of a small problem in `dtype` unless it is known. */
void session_find_speed(session *s, uint32_t dtype);
/* What compiling would take beyond what the budget does not pay for. Nothing is compiled. */
double session_foretell_compiling(const session *s, const bench_result *shape);
/* Adds what compiling for the problem that foretells times took to the first result of the same
 * kernels. */
void session_tell_compiling(session *s, bench_result *x);
/* Plans the line, which compiles. */
void session_foretell(session *s, const char *line, session_forecast *f);
/* The same without compiling, which is known to take so long and counts in f->seconds. */
void session_foretell_uncompiled(session *s, const char *line, double compiling,
                                 session_forecast *f);

/* The result of a line on the device and kernel of now, or NULL. */
const bench_result *session_find(const session *s, const char *family, const char *line);

/* Adds a result without numbers, with the reason in f->why. Returns -1 when out of memory. */
int session_skip(session *s, const char *family, const char *line, int status,
                 const session_forecast *f);

typedef struct session_entry {
    const char *family, *line;
    double first_plan; /* of the forecast, else 0 */
} session_entry;

enum { SESSION_MOST = 16 }; /* contestants at once */

/* Measures lines in turns, as many of them at once as memory holds, and leaves out what is measured
 * already. `seconds` is for each. With `twin`, the second line is measured only beside the first.
 * Returns -1 when out of memory. */
int session_measure(session *s, const session_entry *entries, int n, int twin, double seconds,
                    double check_seconds);
/* Prints one line about a result that is there. */
void session_tell(session *s, const char *family, const char *line);

/* The fixed lines, and a series of rising lengths, within the time until s->deadline. */
int run_fixed(session *s);
int run_series(session *s, const suite_series *e, double share);

#endif
