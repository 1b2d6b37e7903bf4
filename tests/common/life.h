/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole life cycles of a device under failures: every call to its driver fails once, or from then
 * on, and every allocation of host memory fails. Nothing may leak, and the status has to be right.
 */
#ifndef TESSERA_TESTS_LIFE_H
#define TESSERA_TESTS_LIFE_H

#include "common/testlib.h"

enum { LIFE_WAYS = 8 }; /* of failing, at most */

/* What a test tells of its driver and of its life cycle. */
typedef struct life {
    /* forgets what happened; then call number `call`, from 1 on, fails with `code`; 0: none does */
    void (*inject)(int call, int code, int sticky);
    int (*failures)(void);
    const char *(*failed)(void);
    /* up to the first failure, everything released. `opened`: the device was open by then; `seen`:
     * a result was checked */
    tess_status (*once)(test_heap *heap, int *opened, int *seen);
    int (*is_right)(tess_status status, int code, int opened, int seen);
    void (*nothing_lives)(const test_heap *heap, int call);
    int least_calls, most_calls; /* of a life cycle */
} life;

/* A test that fails calls with `code`; `function` finds a life_fault in its state. Tests take
 * turns, of which each has a number from 0 on, those with sticky faults odd ones: of eight ways
 * each call fails in two, of four in one, and where there are fewer, some calls do. Under a
 * sanitizer, where the release build beside it has looked at statuses, each call fails in one of
 * eight. With TESSERA_TEST_FULL=1 it fails in every one. */
typedef struct life_fault {
    int code, sticky, turn;
} life_fault;
#define LIFE_TEST(name, function, code, sticky, turn)                    \
    {                                                                    \
        name, function, NULL, NULL, &(life_fault) { code, sticky, turn } \
    }

static inline void life_calls_fail(const life *l, const life_fault *fault) {
    const int step = test_full()        ? 1
                     : test_sanitized() ? LIFE_WAYS
                                        : LIFE_WAYS / 2,
              code = fault->code;
    int k = 1 + fault->turn % step;
    for (; k < l->most_calls; k += step) {
        test_heap heap;
        int opened, seen;
        test_heap_init(&heap, 0, 0);
        l->inject(k, code, fault->sticky);
        const tess_status status = l->once(&heap, &opened, &seen);
        if (!l->failures()) break;
        if (!l->is_right(status, code, opened, seen))
            fail_msg("call %d (%s) fails: %s: %s", k, l->failed(), tess_status_name(status),
                     tess_last_error());
        if (status != TESS_OK && !tess_last_error()[0])
            fail_msg("call %d (%s) fails without a message", k, l->failed());
        l->nothing_lives(&heap, k);
    }
    assert_in_range(k, l->least_calls, l->most_calls - 1);
}

/* Every allocation of host memory fails once; under a sanitizer every third one. */
static inline void life_allocations_fail(const life *l) {
    const int step = test_sanitized() && !test_full() ? 3 : 1;
    int k = 1;
    for (; k < l->most_calls; k += step) {
        test_heap heap;
        int opened, seen;
        l->inject(0, 0, 0);
        test_heap_init(&heap, k, 0);
        tess_runtime_desc rd = {.struct_size = sizeof rd,
                                .allocator = heap.allocator,
                                .log = test_log_nothing,
                                .cpu_threads = 1};
        tess_runtime *runtime = NULL;
        /* the core's own, tested elsewhere */
        if (tess_runtime_create(&rd, &runtime) != TESS_OK) continue;
        tess_runtime_release(runtime);
        if (heap.failures) continue;
        test_heap_init(&heap, k, 0);
        const tess_status status = l->once(&heap, &opened, &seen);
        if (!heap.failures) break;
        if (status != TESS_OK && status != TESS_ERROR_OUT_OF_MEMORY)
            fail_msg("allocation %d fails: %s: %s", k, tess_status_name(status), tess_last_error());
        l->nothing_lives(&heap, k);
    }
    assert_in_range(k, 10, l->most_calls - 1);
}

/* The tests of a program whose driver is told by `control` what to fail. The program defines the
 * other functions of a life, reset(), which forgets what happened, and live_well(), a life cycle
 * without failures. */
#define LIFE_TESTS(control, least_calls, most_calls)                                              \
    static void inject(int call, int code, int sticky) {                                          \
        reset();                                                                                  \
        (control)->fail_at = call;                                                                \
        (control)->code = code;                                                                   \
        (control)->sticky = sticky;                                                               \
    }                                                                                             \
    static int failures(void) { return (control)->failures; }                                     \
    static const char *failed(void) { return (control)->failed ? (control)->failed : "nothing"; } \
    static const life cycle = {inject,   failures,      failed,        live_once,                 \
                               is_right, nothing_lives, (least_calls), (most_calls)};             \
    static void test_calls_fail(void **state) {                                                   \
        live_well();                                                                              \
        life_calls_fail(&cycle, *state);                                                          \
        live_well();                                                                              \
    }                                                                                             \
    static void test_no_host_memory(void **state) {                                               \
        (void)state;                                                                              \
        life_allocations_fail(&cycle);                                                            \
    }

#endif
