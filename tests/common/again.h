/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One plan that outlives its failures: each call that a run makes to its driver fails several
 * times, more often than max_in_flight says and than the device has timers, and after that the same
 * plan on the same device has to compute. Whatever a failing run forgot to give back has run out by
 * then.
 */
#ifndef TESSERA_TESTS_AGAIN_H
#define TESSERA_TESTS_AGAIN_H

#include <string.h>

#include "common/testlib.h"
#include "instance.h"

enum { AGAIN_TIMES = 9, AGAIN_MOST_CALLS = 500 };

/* What a test tells of its driver and of its way to run. */
typedef struct again {
    /* the call of that number, counted from now on from 1, fails once; 0: none does */
    void (*inject)(int call);
    int (*failures)(void); /* how many have failed since then */
    const char *(*failed)(void);
    tess_status (*run)(instance *x); /* runs and waits */
    /* objects that live: as many after a failure as before it; NULL: not counted */
    long (*live)(void);
} again;

/* An error of a driver, and what it means. */
typedef struct again_fault {
    int code;
    tess_status status;
} again_fault;

/* Tells a driver's control what fails: the call of that number from now on, with that code. */
#define AGAIN_INJECT(control, with, call)           \
    do {                                            \
        (control)->calls = (control)->failures = 0; \
        (control)->failed = NULL;                   \
        (control)->sticky = 0;                      \
        (control)->code = (with);                   \
        (control)->fail_at = (call);                \
    } while (0)

/* Runs with and without a measured time, and fetches. */
static inline tess_status again_run_both(instance *x, double *seconds) {
    tess_status status = instance_run(x, seconds);
    if (status == TESS_OK) status = instance_run(x, NULL);
    return status == TESS_OK ? instance_fetch(x) : status;
}

static inline tess_status again_run(instance *x) { return instance_run(x, NULL); }
static inline tess_status again_run_timed(instance *x) {
    double seconds = -1;
    const tess_status status = instance_run(x, &seconds);
    if (status == TESS_OK) assert_true(seconds >= 0);
    return status;
}

static inline void again_poison_part(const instance *x, void *host, uint64_t bytes,
                                     tess_buffer device) {
    memset(host, 0xff, (size_t)bytes); /* NaN in every type */
    assert_ok(tess_copy(x->device, device, tess_host_buffer(host, bytes), bytes));
}

static inline void again_poison(instance *x) {
    const tess_buffer gradients[] = {x->run.d_q.buffer, x->run.d_k.buffer, x->run.d_v.buffer};
    if (x->problem->op != PROBLEM_BACKWARD) {
        again_poison_part(x, x->o, x->o_bytes, x->run.o.buffer);
        again_poison_part(x, x->lse, x->lse_bytes, x->run.lse.buffer);
        return;
    }
    for (int n = 0; n < 3; n++)
        again_poison_part(x, x->backward.host[INSTANCE_D_Q + n],
                          x->backward.bytes[INSTANCE_D_Q + n], gradients[n]);
}

/* The run computes, and not what an earlier one left there. */
static inline void again_works(instance *x, const again *a, const char *failed) {
    instance_verdict verdict = {0};
    again_poison(x);
    const tess_status status = a->run(x);
    if (status != TESS_OK)
        fail_msg("after %s failed: %s: %s", failed, tess_status_name(status), tess_last_error());
    assert_ok(instance_fetch(x));
    instance_check(x, 0, &verdict);
    if (!verdict.pass) fail_msg("after %s failed: %s", failed, verdict.what);
}

/* Returns how many calls a run makes. `code_status` is what the injected error means. */
static inline int again_runs(instance *x, const again *a, tess_status code_status) {
    char failed[96] = "nothing";
    a->inject(0);
    again_works(x, a, failed);
    const long live = a->live ? a->live() : 0;
    int call = 1;
    for (; call < AGAIN_MOST_CALLS; call++) {
        int happened = 0;
        for (int n = 0; n < AGAIN_TIMES; n++) {
            a->inject(call);
            const tess_status status = a->run(x);
            if (!a->failures()) break;
            happened = 1;
            snprintf(failed, sizeof failed, "%s (call %d of a run)", a->failed(), call);
            if (status != TESS_OK && status != code_status)
                fail_msg("time %d that %s fails: %s: %s", n + 1, failed, tess_status_name(status),
                         tess_last_error());
            a->inject(0);
            /* What was enqueued before the failure may still run. */
            const tess_status waited = tess_wait(x->device, UINT64_C(60000000000));
            if (waited != TESS_OK)
                fail_msg("after %s failed: tess_wait: %s", failed, tess_last_error());
            if (a->live && a->live() != live)
                fail_msg("time %d that %s fails: %ld objects leak", n + 1, failed,
                         a->live() - live);
        }
        a->inject(0);
        if (!happened) return call - 1;
        again_works(x, a, failed);
    }
    fail_msg("a run makes more than %d calls", AGAIN_MOST_CALLS);
    return 0;
}

#endif
