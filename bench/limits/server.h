/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process that measures limits. It is started before this one opens any driver, since drivers of
 * GPUs do not survive a fork, and gives each job a child of its own: libraries bring thread pools
 * whose idle threads spin, and one that crashes or hangs must not take the suite with it.
 */
#ifndef TESSERA_BENCH_LIMITS_SERVER_H
#define TESSERA_BENCH_LIMITS_SERVER_H

#include "results.h"

typedef struct limits_job {
    int kind, provider, threads; /* what they mean is the work's affair */
    bench_ceiling again;         /* rate above 0: another round of this one alone */
    double seconds;
    double limit;        /* after so many seconds the child is killed */
    char name[64];       /* for messages about the child */
    bench_device device; /* its lists are not there */
} limits_job;

typedef struct limits_message {
    bench_ceiling ceiling; /* rate 0: there is none */
    char note[256];        /* "": there is none */
    int last;
} limits_message;

typedef struct limits_server limits_server;

/* `work` runs in the children and sends what it finds; it leaves by returning. NULL when no process
 * can be started. */
limits_server *limits_start(void (*work)(const limits_job *job, int out));
void limits_send(int out, const limits_message *m);
/* Runs a job, and gives `found` each of its messages until the last. An interrupt of the suite ends
 * it. Returns 0, or -1 when the server is gone. */
int limits_run(limits_server *s, const limits_job *job,
               void (*found)(void *user, const limits_message *m), void *user);
void limits_stop(limits_server *s);

#endif
