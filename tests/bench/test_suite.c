/* SPDX-License-Identifier: Apache-2.0 */
/* The fixed suite: what its lines cover, and that they are the lines of other files too. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/testlib.h"

#include "clock.h"
#include "line.h"
#include "measure.h"
#include "planning.h"
#include "session.h"
#include "stages.h"
#include "suite.h"
#include "vendors.h"

static bench_line *lines;
static int n_lines;

static int setup(void **state) {
    (void)state;
    return vendors_lines(NULL, &lines, &n_lines);
}

static int teardown(void **state) {
    (void)state;
    free(lines);
    return 0;
}

static int count(const char *word) {
    int n = 0;
    for (int i = 0; i < n_lines; i++) n += strstr(lines[i].line, word) != NULL;
    return n;
}

/* A problem given by words is written as the suite writes it, so that both meet in a comparison. */
static void test_lines_are_canonical(void **state) {
    (void)state;
    assert_true(n_lines >= 36);
    for (int i = 0; i < n_lines; i++) {
        char error[256], line[BENCH_LINE];
        problem p;
        assert_int_equal(line_parse(&p, lines[i].line, error, sizeof error), 0);
        assert_int_equal(line_format(&p, line, sizeof line), 0);
        assert_string_equal(line, lines[i].line);
        problem_free(&p);
        assert_true(lines[i].title[0]);
        for (int j = 0; j < i; j++) {
            assert_string_not_equal(lines[j].line, lines[i].line);
            assert_string_not_equal(lines[j].title, lines[i].title);
        }
    }
}

static void test_twins_are_in_the_suite(void **state) {
    (void)state;
    for (int i = 0; i < n_lines; i++) {
        char twin[BENCH_LINE];
        int found = 0;
        assert_int_equal(suite_twin(lines[i].line, twin, sizeof twin), 0);
        for (int j = 0; j < n_lines; j++)
            found |= !twin[0] || (strcmp(lines[j].line, twin) == 0 &&
                                  strcmp(lines[j].family, lines[i].family) == 0);
        if (!found) fail_msg("no dense twin of %s", lines[i].line);
    }
}

static void test_coverage(void **state) {
    (void)state;
    static const char *const words[] = {
        "dtype=f16",      "dtype=bf16",   "head_dim=64 ", "head_dim=128 ",         "kv_heads=8",
        "q_len=1024 ",    "q_len=4096 ",  "q_len=16384 ", "kv_len=4096 op=decode", "page=64",
        "kv_len=131072 ", "op=bwd",       "local=8",      "pattern=window",        "compact=1",
        "q_len=512 ",     "pattern=dense"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!count(words[i])) fail_msg("no line has %s", words[i]);
    assert_true(count("dtype=") < n_lines);     /* f32 */
    assert_true(count("kv_heads=8") < n_lines); /* heads with K and V of their own too */
    assert_int_equal(count("heads_total"), 0);
}

static void test_types(void **state) {
    (void)state;
    bench_line *some = NULL;
    int n = 0;
    assert_int_equal(vendors_lines("f16", &some, &n), 0);
    assert_int_equal(n, count("dtype=f16"));
    assert_int_equal(vendors_lines("f32,bf16", &some, &n), 0); /* appends */
    assert_int_equal(n, n_lines);
    assert_int_equal(vendors_lines("f64", &some, &n), -3);
    assert_int_equal(vendors_lines("f16,f16", &some, &n), -3);
    assert_int_equal(n, n_lines);
    free(some);
}

static void test_titles(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"heads=32 kv_heads=8 head_dim=128 q_len=4096 dtype=bf16 local=8 stride=16",
         "Prefill 4k, S2, bf16, 32/8 x 128"},
        {"heads=4 head_dim=64 batch=2 kv_len=4096 op=decode page=64 pattern=dense",
         "Decode 4k, dense, f32, 4/4 x 64, 2 sequences, pages"},
        {"heads=4 head_dim=64 q_len=512 kv_len=1024 pattern=dense",
         "Chunk 512 on 1k, dense, f32, 4/4 x 64"},
    };
    char title[96];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(vendors_title(cases[i][0], title, sizeof title), 0);
        assert_string_equal(title, cases[i][1]);
    }
    assert_int_equal(vendors_title("heads=0", title, sizeof title), -1);
}

/* Compiling is free up to a bound; kernels that are not there yet are foretold by those that are.
 */
static void test_compiling(void **state) {
    (void)state;
    session s = {.deadline = clock_now() + 100, .patience = 15};
    const bench_result forward = {.dtype = 2, .head_dim = 128},
                       narrow = {.dtype = 2, .head_dim = 64},
                       decode = {.dtype = 1, .head_dim = 64, .decode = 1},
                       gradients = {.dtype = 2, .head_dim = 128, .backward = 1};
    assert_true(session_foretell_compiling(&s, &forward) == 0); /* nothing is known */
    s.compiled[s.n_compiled++] = (session_compiled){0, 2, 128, 9};
    s.compiled[s.n_compiled++] = (session_compiled){1, 2, 128, 4};
    s.compiling = 13;
    assert_true(fabs(session_rest(&s) - 113) < 5);
    assert_true(session_foretell_compiling(&s, &forward) == 0); /* compiled */
    assert_true(session_foretell_compiling(&s, &narrow) == 9 - 2);
    assert_true(session_foretell_compiling(&s, &decode) == 4 - 2);
    assert_true(session_foretell_compiling(&s, &gradients) == 9 - 2); /* as the slowest of all */
    s.compiling = 40;
    assert_true(fabs(session_rest(&s) - 115) < 5);
    assert_true(session_foretell_compiling(&s, &narrow) == 9);
}

/* The devices of a run share its time. What compiling takes beyond the budget is bounded for all of
 * them, and no device has time that an earlier one has used, except a little. */
static void test_shares(void **state) {
    (void)state;
    static const double compiling[] = {1, 40, 12, 30}, unpaid[] = {1, 15, 8, 0};
    const run_options options = {.budget = 120};
    session s = {.options = &options};
    const double now = clock_now(), near = 1;
    session_begin(&s, now - 20);
    assert_true(fabs(session_share(&s, 4) - 25) < near);
    double end = now + 100;
    for (int i = 0; i < 4; i++) {
        session_begin_kernel(&s, NULL);
        s.compiling = compiling[i];
        s.deadline = now + 10;
        assert_true(fabs(session_rest(&s) - 10 - unpaid[i]) < near);
        assert_true(fabs(session_end_kernel(&s) - unpaid[i]) < 1e-9);
        end += unpaid[i];
        assert_true(fabs(s.end - end) < near);
    }
    assert_true(fabs(session_share(&s, 2) - 124.0 / 2) < near);
    session_begin(&s, now - 100); /* the limits took long */
    assert_true(fabs(session_share(&s, 1) - 60) < near);
    s.end = now - 50; /* and so did the first devices */
    assert_true(session_share(&s, 2) == 12);
}

/* What the problem that foretells times has compiled stands in the column of the first result of
 * the same kernels, once. */
static void test_compiling_is_told(void **state) {
    (void)state;
    session s = {.n_compiled = 0};
    bench_result narrow = {.dtype = 1, .head_dim = 64, .compile_seconds = 1},
                 first = {.dtype = 1, .head_dim = 128, .compile_seconds = 0.5},
                 later = {.dtype = 1, .head_dim = 128, .compile_seconds = 0.25};
    s.compiled[s.n_compiled++] = (session_compiled){0, 1, 128, 7, 6};
    session_tell_compiling(&s, &narrow);
    session_tell_compiling(&s, &first);
    session_tell_compiling(&s, &later);
    assert_true(narrow.compile_seconds == 1);
    assert_true(first.compile_seconds == 6.5);
    assert_true(later.compile_seconds == 0.25);
}

static tess_runtime *runtime;
static tess_device *device;

static int open_cpu(void **state) {
    (void)state;
    const tess_device_desc desc = {.struct_size = sizeof desc, .id = "cpu"};
    return tess_runtime_create(NULL, &runtime) != TESS_OK ||
           tess_device_open(runtime, &desc, &device) != TESS_OK;
}

static int close_cpu(void **state) {
    (void)state;
    tess_device_release(device);
    tess_runtime_release(runtime);
    return 0;
}

/* Plans of an op that is not asked for are not made: on some devices that compiles for long. */
static void test_planning_ops(void **state) {
    (void)state;
    char error[256] = "";
    bench_report r = {.n_devices = 0};
    assert_int_equal(planning_measure(&r, runtime, device, 0, NULL, 0, error, sizeof error), 0);
    assert_int_equal(r.n_planning, 0);
    assert_int_equal(
        planning_measure(&r, runtime, device, 0, NULL, 1u << TESS_OP_BACKWARD, error, sizeof error),
        0);
    assert_true(r.n_planning > 0);
    for (int i = 0; i < r.n_planning; i++) {
        assert_non_null(strstr(r.planning[i].name, "gradients"));
        assert_true(r.planning[i].runs >= 5 && r.planning[i].runs <= 15);
    }
    bench_device *d = report_add_device(&r);
    planning_leave_out(d, TESS_OP_FORWARD, 2);
    planning_leave_out(d, TESS_OP_BACKWARD, 30);
    assert_string_equal(d->planning_note,
                        "forward left out, about 2.00 s to compile; gradients left "
                        "out, about 30.0 s to compile");
    report_free(&r);
}

/* Runs that take long are not made to warm up, and not foretold. */
static void test_foretelling(void **state) {
    (void)state;
    static const char line[] = "heads=1 q_len=256 head_dim=32 pattern=dense";
    static const double runs[][2] = {{0.5, 5}, {2, 4}};
    session s = {.runtime = runtime, .device = device, .prepare_bytes = 1};
    session_forecast f;
    s.speed[TESS_F32] = 1;
    session_foretell(&s, line, &f);
    const double flops = f.run;
    for (int i = 0; i < 2; i++) {
        s.speed[TESS_F32] = flops / runs[i][0];
        session_foretell(&s, line, &f);
        assert_true(f.planned && fabs(f.run / runs[i][0] - 1) < 1e-9);
        assert_true(fabs(f.seconds / f.run - runs[i][1]) < 1e-9);
    }
    /* Joules take their own while, where something counts them. */
    bench_report r = {.n_devices = 0};
    const run_options options = {.energy = 3};
    bench_device *d = report_add_device(&r);
    s.options = &options;
    s.report = &r;
    for (int counted = 0; counted < 2; counted++) {
        if (counted) snprintf(d->energy, sizeof d->energy, "a counter");
        session_foretell(&s, line, &f);
        assert_true(fabs(f.seconds - 4 * 2 - 3 * counted) < 1e-6);
    }
    report_free(&r);
}

/* A line whose kernels would take too long to compile is not planned on its device, and still says
 * what all of it would take. One run of what nothing like it has run is not told. */
static void test_uncompiled(void **state) {
    (void)state;
    bench_line line = {"prefill", "", "heads=1 q_len=4096 head_dim=128 dtype=f16 pattern=dense"};
    const run_options options = {.budget = 1, .lines = &line, .n_lines = 1};
    bench_report r = {.n_devices = 0};
    session_forecast f;
    assert_non_null(report_add_device(&r));
    session s = {.options = &options, .report = &r, .runtime = runtime, .device = device};
    session_reset_speeds(&s);
    s.deadline = clock_now() + 5;
    s.compiled[s.n_compiled++] = (session_compiled){0, TESS_BF16, 128, 50, 0};
    s.speed[TESS_F32] = 1e9;
    s.speed[TESS_BF16] = 1e8; /* nearer to f16 */
    assert_int_equal(run_fixed(&s), 0);
    assert_int_equal(r.n_results, 1);
    assert_int_equal(r.results[0].status, BENCH_SLOW);
    assert_non_null(strstr(r.results[0].note, "its kernels would take about 50.0 s to compile"));
    assert_true(isnan(r.results[0].estimate_seconds));
    assert_true(r.results[0].kernel[0] == 0 && s.compiling == 0);
    session_foretell(&s, line.line, &f);
    assert_true(f.planned && isnan(f.run) && f.seconds > 4 * 40);
    assert_true(fabs(r.results[0].need_seconds - 50 - f.seconds) < 1e-6);
    session_foretell(&s, "heads=1 kv_len=4096 op=decode head_dim=128 pattern=dense", &f);
    assert_true(f.planned && isnan(f.run) && f.seconds > 0);
    tess_device_release(s.counter);
    report_free(&r);
}

/* What a problem turns out to take foretells the next one, also where it left its contest. What
 * inputs took of a group's time is not there for its rounds. */
static void test_learning(void **state) {
    (void)state;
    static const char line[] = "heads=1 q_len=256 head_dim=32 pattern=dense";
    static const double mosts[] = {0, 1e-9};
    const run_options options = {.budget = 1};
    for (int i = 0; i < 2; i++) {
        bench_report r = {.n_devices = 0};
        assert_non_null(report_add_device(&r));
        session s = {.options = &options,
                     .report = &r,
                     .runtime = runtime,
                     .device = device,
                     .most = mosts[i],
                     .host_bytes = 1u << 30,
                     .device_bytes = 1u << 30};
        const session_entry entry = {"problem", line, 0};
        assert_int_equal(session_measure(&s, &entry, 1, 0, 0.01, 0.01), 0);
        assert_int_equal(r.n_results, 1);
        const bench_result *x = &r.results[0];
        assert_int_equal(x->status, i ? BENCH_SLOW : BENCH_OK);
        assert_true(s.speed[TESS_F32] == x->flops / (i ? x->estimate_seconds : x->median));
        report_free(&r);
    }
}

/* Rows of the reference are made by several threads where each takes long. */
static void test_long_rows(void **state) {
    (void)state;
    static const char *const problems[] = {
        "heads=1 q_len=4096 head_dim=128 dtype=bf16 pattern=dense",
        "op=bwd heads=1 q_len=4096 head_dim=128 dtype=bf16 pattern=dense"};
    const measure_limits limits = {.host_bytes = 1u << 30, .device_bytes = 1u << 30};
    for (int i = 0; i < 2; i++) {
        contestant *c = calloc(1, sizeof *c);
        assert_non_null(c);
        if (contestant_open(c, runtime, device, NULL, problems[i], &limits) != 0)
            fail_msg("%s: %s", problems[i], c->result.note);
        assert_int_equal(c->result.checked_rows, i ? 8 + 16 : 8);
        contestant_close(c);
        free(c);
    }
}

/* Every moment is in one stage, and one that was entered in another goes back to it. */
static void test_stages(void **state) {
    (void)state;
    double seconds[N_STAGES] = {0};
    const double start = clock_now();
    stages_of(seconds);
    const bench_stage outer = stage_enter(STAGE_CHECKS);
    clock_rest(2e-3);
    const bench_stage inner = stage_enter(STAGE_PLANS);
    clock_rest(2e-3);
    assert_int_equal(stage_enter(inner), STAGE_PLANS);
    clock_rest(2e-3);
    stage_enter(outer);
    stages_of(NULL);
    double sum = 0;
    for (int i = 0; i < N_STAGES; i++) sum += seconds[i];
    assert_true(sum > 0 && sum <= clock_now() - start);
    assert_true(seconds[STAGE_CHECKS] >= 4e-3 && seconds[STAGE_PLANS] >= 2e-3);
    assert_true(seconds[STAGE_ROUNDS] == 0);
    assert_string_equal(stage_name(STAGE_WARM_UP), "warm_up");
    assert_null(stage_name(N_STAGES));
}

/* What turns out to need more than a contest may take leaves it, and says what a run takes. */
static void test_foretold_wrongly(void **state) {
    (void)state;
    static const double mosts[] = {0, 1e6, 1e-9};
    for (int i = 0; i < 3; i++) {
        const measure_limits limits = {
            .host_bytes = 1u << 30, .device_bytes = 1u << 30, .most = mosts[i]};
        contestant *c = calloc(1, sizeof *c);
        assert_non_null(c);
        assert_int_equal(contestant_open(c, runtime, device, NULL,
                                         "heads=1 q_len=64 head_dim=32 pattern=dense", &limits),
                         0);
        contest(&c, 1, NULL, &limits);
        const bench_result *x = &c->result;
        assert_int_equal(x->status, i < 2 ? BENCH_OK : BENCH_SLOW);
        assert_int_equal(x->n_samples >= 3, i < 2);
        if (i == 2) {
            assert_true(x->estimate_seconds > 0 && x->need_seconds > x->estimate_seconds);
            assert_non_null(strstr(x->note, "a run takes "));
        }
        contestant_close(c);
        free(c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines_are_canonical),
        cmocka_unit_test(test_twins_are_in_the_suite),
        cmocka_unit_test(test_coverage),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_titles),
        cmocka_unit_test(test_compiling),
        cmocka_unit_test(test_shares),
        cmocka_unit_test(test_compiling_is_told),
        cmocka_unit_test_setup_teardown(test_planning_ops, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(test_foretold_wrongly, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(test_foretelling, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(test_uncompiled, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(test_learning, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(test_long_rows, open_cpu, close_cpu),
        cmocka_unit_test(test_stages),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
