/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans of one step, as packed batches with new lengths make them, on the stand-ins of the CUDA and
 * HIP drivers: tables are taken again, only after the runs that read them, without a call that
 * waits for the device; few are kept; and nothing leaks when calls fail.
 *
 *   driver_turnover cuda|hip
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/testlib.h"
#include "fake_find.h"
#include "instance.h"

static const fake_exports *driver;
static fake_control *control;
static const char *backend;
static int (*make_stream)(void **stream, unsigned flags), (*drop_stream)(void *stream),
    (*wait_stream)(void *stream);

typedef struct scene {
    test_heap heap;
    tess_runtime *runtime;
    tess_device *device;
    void *stream;
    tess_stream on;
} scene;

static void open_scene(scene *s) {
    char id[32];
    memset(s, 0, sizeof *s);
    memset(control, 0, sizeof *control);
    control->only_device = -1;
    driver->make_current(0);
    test_heap_init(&s->heap, 0, 0);
    snprintf(id, sizeof id, "%s:0", backend);
    const tess_runtime_desc desc = {
        .struct_size = sizeof desc, .allocator = s->heap.allocator, .log = test_log_nothing};
    const tess_device_desc open = {.struct_size = sizeof open, .id = id};
    assert_ok(tess_runtime_create(&desc, &s->runtime));
    assert_ok(tess_device_open(s->runtime, &open, &s->device));
    assert_int_equal(make_stream(&s->stream, 1), 0);
    s->on = (tess_stream){.kind = TESS_STREAM_SUBMIT, .handle = (uint64_t)(uintptr_t)s->stream};
}

static void close_scene(scene *s) {
    assert_int_equal(drop_stream(s->stream), 0);
    tess_device_release(s->device);
    tess_runtime_release(s->runtime);
    assert_int_equal(s->heap.live, 0);
    assert_int_equal(s->heap.damaged, 0);
    if (control->wrong) fail_msg("the driver was misused: %s", control->what);
    assert_int_equal(control->live[FAKE_EVENT], 0);
    assert_int_equal(control->live[FAKE_MEMORY], 0);
    control->logging = 0;
}

/* A plan of so many rows. Lengths are packed, so that the tables hold them. */
static tess_status make_plan(const scene *s, int rows, tess_plan **plan) {
    char line[200], error[256];
    problem p;
    tess_layout *layout = NULL;
    tess_plan_desc desc;
    int64_t *lengths = NULL;
    snprintf(line, sizeof line,
             "pattern=s2 block=16 local=2 stride=3 heads=2 head_dim=16 q_lens=%d,1 kv_lens=%d,9",
             rows, rows + 30);
    assert_int_equal(problem_parse(&p, line, error, sizeof error), 0);
    assert_ok(problem_layout(&p, s->runtime, &layout));
    assert_int_equal(problem_plan_desc(&p, &desc, &lengths), 0);
    const tess_status status = tess_plan_create(s->device, layout, &desc, plan);
    tess_layout_release(layout);
    free(lengths);
    problem_free(&p);
    return status;
}

static tess_plan *plan_of(const scene *s, int rows) {
    tess_plan *plan = NULL;
    assert_ok(make_plan(s, rows, &plan));
    return plan;
}

static int logged(const char *what) {
    int n = 0;
    for (const char *at = control->log; (at = strstr(at, what)) != NULL; at++) n++;
    return n;
}

static void start_log(void) {
    control->used = 0;
    control->log[0] = '\0';
    control->logging = 1;
}

static int memory_calls(void) {
    return logged("cuMemAlloc ") + logged("cuMemFree ") + logged("hipMalloc ") + logged("hipFree ");
}

/* Lengths that rise and fall: after a few steps no memory is asked for and none is freed, and
 * nothing waits but the copy of the tables, on the device's own queue. */
static void test_steps_are_flat(void **state) {
    (void)state;
    scene s;
    open_scene(&s);
    for (int step = 0; step < 300; step++) {
        if (step == 40) start_log();
        tess_plan *plans[2] = {plan_of(&s, 100 + step * 7 % 41), plan_of(&s, 300 - step % 23)};
        for (int n = 0; n < 2; n++) assert_ok(tess_plan_release_after(plans[n], &s.on));
        if (step == 60) assert_int_equal(memory_calls(), 0);
        if (step >= 60) control->logging = 0;
        assert_int_equal(wait_stream(s.stream), 0);
    }
    assert_in_range(control->live[FAKE_MEMORY], 1, 6);
    assert_in_range(control->live[FAKE_EVENT], 1, 16 + 6); /* timers of the device */
    close_scene(&s);
}

/* Runs that have not begun when their plan is released still find their tables: results of many
 * plans in flight are right. The stand-in does work when it is waited for, so tables that were
 * taken too early hold those of another plan by then. */
static void test_runs_in_flight(void **state) {
    (void)state;
    enum { AHEAD = 6 };
    scene s;
    open_scene(&s);
    for (int round = 0; round < 3; round++) {
        instance x[AHEAD];
        problem p[AHEAD];
        tess_plan *later[AHEAD];
        for (int n = 0; n < AHEAD; n++) {
            char line[200], error[256];
            snprintf(line, sizeof line,
                     "pattern=s2 block=16 local=2 stride=3 heads=2 head_dim=16 q_lens=%d,1 "
                     "kv_lens=%d,9 seed=%d",
                     40 - 3 * n, 60 - 2 * n, n);
            assert_int_equal(problem_parse(&p[n], line, error, sizeof error), 0);
            assert_ok(instance_create(&x[n], s.device, &p[n], NULL, INSTANCE_GUARDS));
            x[n].run.stream = s.on;
        }
        for (int n = 0; n < AHEAD; n++) {
            assert_ok(tess_run(x[n].plan, &x[n].run));
            assert_ok(tess_plan_release_after(x[n].plan, &s.on));
            x[n].plan = NULL;
            later[n] = plan_of(&s, 39 - 3 * n);
        }
        assert_int_equal(wait_stream(s.stream), 0);
        for (int n = 0; n < AHEAD; n++) {
            instance_verdict verdict = {0};
            assert_ok(instance_fetch(&x[n]));
            instance_check(&x[n], 0, &verdict);
            if (!verdict.pass) fail_msg("round %d, plan %d: %s", round, n, verdict.what);
            instance_release(&x[n]);
            problem_free(&p[n]);
            assert_ok(tess_plan_release_after(later[n], &s.on));
        }
    }
    close_scene(&s);
}

/* While the stream does not get on, tables are kept up to their most and further ones are freed;
 * later they are taken again, and a plan that needs more than all of them gets it. */
static void test_bounds(void **state) {
    (void)state;
    enum { MOST = 64, PLANS = MOST + 9 };
    scene s;
    tess_plan *plans[PLANS], *none = NULL;
    open_scene(&s);
    for (int n = 0; n < PLANS; n++) plans[n] = plan_of(&s, 20 + n);
    control->hold = 1;
    for (int n = 0; n < PLANS; n++) assert_ok(tess_plan_release_after(plans[n], &s.on));
    assert_int_equal(control->live[FAKE_MEMORY], MOST);
    control->hold = 0;
    assert_int_equal(wait_stream(s.stream), 0);
    start_log();
    tess_plan *plan = plan_of(&s, 30);
    assert_int_equal(memory_calls(), 0);
    /* A full pool takes a larger table for a smaller one. */
    assert_ok(tess_plan_release_after(plan, &s.on));
    tess_plan *large = plan_of(&s, 2000);
    assert_int_equal(wait_stream(s.stream), 0);
    assert_ok(tess_plan_release_after(large, &s.on));
    assert_int_equal(control->live[FAKE_MEMORY], MOST);
    assert_int_equal(wait_stream(s.stream), 0);
    start_log();
    large = plan_of(&s, 2000);
    assert_int_equal(memory_calls(), 0);
    assert_ok(tess_plan_release_after(large, &s.on));
    control->logging = 0;
    /* Where there is no memory for a new table, kept ones are freed first. */
    assert_int_equal(wait_stream(s.stream), 0);
    control->most_bytes = 4096;
    assert_error(make_plan(&s, 9000, &none), TESS_ERROR_OUT_OF_MEMORY, "tess_plan_create", NULL);
    assert_int_equal(control->live[FAKE_MEMORY], 0);
    control->most_bytes = 0;
    tess_plan_release(plan_of(&s, 9000));
    close_scene(&s);
}

/* Behind a mark that its stream has not passed none is asked for, and one of another stream is. */
static void test_marks_in_order(void **state) {
    (void)state;
    enum { PLANS = 12 };
    scene s;
    tess_plan *plans[PLANS];
    open_scene(&s);
    for (int n = 0; n < PLANS; n++) plans[n] = plan_of(&s, 20 + n);
    for (int n = 0; n < PLANS; n++)
        assert_ok(tess_plan_release_after(plans[n], n < PLANS - 1 ? &s.on : NULL));
    start_log();
    tess_plan *plan = plan_of(&s, 20);
    assert_int_equal(logged("EventQuery "), 2);
    assert_int_equal(wait_stream(s.stream), 0);
    start_log();
    tess_plan *later = plan_of(&s, 20);
    assert_int_equal(memory_calls(), 0);
    control->logging = 0;
    tess_plan_release(plan);
    tess_plan_release(later);
    close_scene(&s);
}

/* Call k of a plan fails behind three kept tables. Whether it is the one that asks for a mark: the
 * plan then asks for the others, and takes a table. */
static bool fails_to_ask(int k) {
    enum { PLANS = 3 };
    scene s;
    tess_plan *plans[PLANS], *plan = NULL;
    open_scene(&s);
    for (int n = 0; n < PLANS; n++) plans[n] = plan_of(&s, 20 + n);
    for (int n = 0; n < PLANS; n++) assert_ok(tess_plan_release_after(plans[n], &s.on));
    assert_int_equal(wait_stream(s.stream), 0);
    start_log();
    control->calls = control->failures = 0;
    control->fail_at = k;
    control->code = 700;
    const tess_status status = make_plan(&s, 20, &plan);
    control->fail_at = 0;
    const bool asks = control->failures == 1 && strstr(control->failed, "EventQuery") != NULL;
    if (asks) {
        assert_ok(status);
        assert_int_equal(logged("EventQuery "), PLANS);
        assert_int_equal(memory_calls(), 0);
    }
    control->logging = 0;
    tess_plan_release(plan);
    close_scene(&s);
    return asks;
}

/* A mark that the driver cannot tell about keeps its own table alone: those after it on its stream
 * are asked for. */
static void test_mark_unknown(void **state) {
    (void)state;
    enum { MOST_CALLS = 20 };
    int k = 1;
    while (k < MOST_CALLS && !fails_to_ask(k)) k++;
    assert_in_range(k, 1, MOST_CALLS - 1);
}

/* Streams that cannot be marked are refused, and the plan lives on. */
static void test_arguments(void **state) {
    (void)state;
    scene s;
    open_scene(&s);
    tess_plan *plan = plan_of(&s, 20);
    tess_stream stream = {.kind = 9};
    static const char function[] = "tess_plan_release_after";
    assert_ok(tess_plan_release_after(NULL, &s.on));
    assert_error(tess_plan_release_after(plan, &stream), TESS_ERROR_INVALID, function,
                 "stream.kind");
    stream.kind = TESS_STREAM_RECORD;
    assert_error(tess_plan_release_after(plan, &stream), TESS_ERROR_INVALID, function,
                 "stream.kind");
    stream = s.on;
    stream.extra = &s;
    assert_error(tess_plan_release_after(plan, &stream), TESS_ERROR_INVALID, function,
                 "stream.extra");
    stream.extra = NULL;
    stream.reserved = 1;
    assert_error(tess_plan_release_after(plan, &stream), TESS_ERROR_INVALID, function,
                 "stream.reserved");
    tess_plan_info info = {.struct_size = sizeof info};
    assert_ok(tess_plan_query(plan, &info));
    assert_ok(tess_plan_release_after(plan, NULL));
    close_scene(&s);
}

/* Each call to the driver fails once, or all from then on: the plan is released all the same, and
 * nothing leaks. */
static void test_failing_calls(void **state) {
    (void)state;
    enum { NOT_PERMITTED = 800, LAUNCH_FAILED = 719 };
    for (int sticky = 0; sticky < 2; sticky++)
        for (int k = 1, failures = 1; failures; k++) {
            scene s;
            open_scene(&s);
            tess_plan *plans[2] = {plan_of(&s, 50), plan_of(&s, 60)};
            control->calls = 0;
            control->fail_at = k;
            control->sticky = sticky;
            control->code = sticky ? LAUNCH_FAILED : NOT_PERMITTED;
            for (int n = 0; n < 2; n++) assert_ok(tess_plan_release_after(plans[n], &s.on));
            failures = control->failures;
            if (!sticky) control->fail_at = 0;
            if (!sticky) tess_plan_release(plan_of(&s, 55));
            driver->make_current(0);
            assert_true(k < 40);
            control->fail_at = 0;
            assert_int_equal(drop_stream(s.stream), 0);
            tess_device_release(s.device);
            tess_runtime_release(s.runtime);
            assert_int_equal(s.heap.live, 0);
            assert_int_equal(control->live[FAKE_EVENT], 0);
            /* A call that frees and fails frees all the same. */
            assert_int_equal(control->live[FAKE_MEMORY], 0);
            if (control->wrong) fail_msg("call %d: the driver was misused: %s", k, control->what);
        }
}

static void *symbol(void *library, const char *cuda, const char *hip) {
    void *found = dlsym(library, strcmp(backend, "cuda") == 0 ? cuda : hip);
    if (!found) exit(1);
    return found;
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    backend = argv[1];
    void *library;
    driver = fake_find(backend, &library);
    if (!driver) return 1;
    control = driver->control;
    *(void **)&make_stream = symbol(library, "cuStreamCreate", "hipStreamCreateWithFlags");
    *(void **)&drop_stream = symbol(library, "cuStreamDestroy_v2", "hipStreamDestroy");
    *(void **)&wait_stream = symbol(library, "cuStreamSynchronize", "hipStreamSynchronize");
    const struct CMUnitTest tests[] = {TEST(test_steps_are_flat), TEST(test_runs_in_flight),
                                       TEST(test_bounds),         TEST(test_marks_in_order),
                                       TEST(test_mark_unknown),   TEST(test_arguments),
                                       TEST(test_failing_calls)};
    return cmocka_run_group_tests_name("plans of one step", tests, NULL, NULL);
}
