/* SPDX-License-Identifier: Apache-2.0 */
/* What tessera.h promises for numbers at the ends of their range, on every CPU kernel: V near the
 * largest finite value, and denormal numbers. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/elements.h"
#include "common/testlib.h"

enum { D = 16, KEYS = 300, MOST_ROWS = 40 };

static test_targets targets;

/* One head whose rows keep all keys. All rows of Q are equal, and so are all elements of a row of Q
 * or K. */
typedef struct problem {
    uint32_t dtype;
    int rows;
    double q, k[KEYS], v[KEYS][D];
    double o[MOST_ROWS][D], lse[MOST_ROWS]; /* the results */
} problem;

static void fill(problem *p, double q, double k, double even, double odd) {
    p->q = q;
    for (int t = 0; t < KEYS; t++) {
        p->k[t] = k;
        for (int d = 0; d < D; d++) p->v[t][d] = d % 2 ? odd : even;
    }
}

static tess_tensor place(const test_target *target, const tess_plan *plan, tess_role role,
                         const void *data) {
    tess_tensor tensor;
    uint64_t bytes;
    assert_ok(tess_plan_tensor(plan, role, (tess_buffer){0}, &tensor, &bytes));
    tensor.buffer = test_upload(target->device, data, bytes);
    return tensor;
}

/* Runs it on one kernel. Returns false if the kernel does not take the type. */
static int solve(const test_target *target, problem *p) {
    static uint8_t q[MOST_ROWS * D * 4], k[KEYS * D * 4], v[KEYS * D * 4], o[MOST_ROWS * D * 4];
    static float lse[MOST_ROWS];
    const tess_pattern pattern = {.struct_size = sizeof pattern,
                                  .flags = TESS_PATTERN_BIDIRECTIONAL};
    const tess_layout_desc ld = {.struct_size = sizeof ld,
                                 .pattern = &pattern,
                                 .n_heads = 1,
                                 .n_kv_heads = 1,
                                 .max_tokens = KEYS};
    const tess_plan_desc pd = {.struct_size = sizeof pd,
                               .dtype = p->dtype,
                               .head_dim = D,
                               .batch = 1,
                               .q_len = p->rows,
                               .kv_len = KEYS,
                               .kernel = target->kernel};
    tess_layout *layout;
    tess_plan *plan;
    tess_plan_info info = {.struct_size = sizeof info};
    tess_run_desc run = {.struct_size = sizeof run};
    for (int n = 0; n < p->rows * D; n++) element_store(p->dtype, q, n, (float)p->q);
    for (int n = 0; n < KEYS * D; n++) {
        element_store(p->dtype, k, n, (float)p->k[n / D]);
        element_store(p->dtype, v, n, (float)p->v[n / D][n % D]);
    }
    assert_ok(tess_layout_create(targets.runtime, &ld, &layout));
    const tess_status status = tess_plan_create(target->device, layout, &pd, &plan);
    tess_layout_release(layout);
    if (status == TESS_ERROR_UNSUPPORTED) return 0;
    assert_ok(status);
    assert_ok(tess_plan_query(plan, &info));
    run.q = place(target, plan, TESS_ROLE_Q, q);
    run.k = place(target, plan, TESS_ROLE_K, k);
    run.v = place(target, plan, TESS_ROLE_V, v);
    run.o = place(target, plan, TESS_ROLE_O, NULL);
    run.lse = place(target, plan, TESS_ROLE_LSE, NULL);
    assert_ok(tess_alloc(target->device, info.workspace_bytes, &run.workspace));
    assert_ok(tess_run(plan, &run));
    assert_ok(tess_wait(target->device, UINT64_MAX));
    test_download(target->device, run.o.buffer, o,
                  (uint64_t)p->rows * D * (p->dtype == TESS_F32 ? 4 : 2));
    test_download(target->device, run.lse.buffer, lse, (uint64_t)p->rows * sizeof *lse);
    for (int n = 0; n < p->rows * D; n++) p->o[n / D][n % D] = (double)element_load(p->dtype, o, n);
    for (int r = 0; r < p->rows; r++) p->lse[r] = (double)lse[r];
    tess_buffer *const buffers[] = {&run.q.buffer, &run.k.buffer,   &run.v.buffer,
                                    &run.o.buffer, &run.lse.buffer, &run.workspace};
    for (int n = 0; n < 6; n++) assert_ok(tess_free(target->device, buffers[n]));
    tess_plan_release(plan);
    return 1;
}

static void wrong(const test_target *target, const problem *p, int r, int d) {
    fail_msg("%s, type %u, %d rows: O[%d][%d] is %g, LSE %g", target->kernel, p->dtype, p->rows, r,
             d, p->o[r][d], p->lse[r]);
}

/* What a problem's results should be. */
typedef struct expected {
    double even, odd;    /* elements of O */
    int may_be_infinite; /* the even ones, with the same sign */
    double lse;
} expected;

static void is_near(const test_target *target, const problem *p, int r, int d, double wanted) {
    if (!(fabs(p->o[r][d] - wanted) <= fabs(wanted) / 64)) wrong(target, p, r, d);
}

/* Solves it on every kernel, once with a single row, which reads keys in place, and once with a
 * tile. */
static void solve_all(problem *p, const expected *e) {
    int solved = 0;
    for (int n = 0; n < targets.count; n++) {
        const test_target *target = &targets.items[n];
        for (p->rows = 1; p->rows <= MOST_ROWS; p->rows += MOST_ROWS - 1) {
            if (!solve(target, p)) continue;
            solved++;
            for (int r = 0; r < p->rows; r++) {
                for (int d = 0; d < D; d++) {
                    const int infinite = e->may_be_infinite && d % 2 == 0 && isinf(p->o[r][d]) &&
                                         (p->o[r][d] > 0) == (e->even > 0);
                    if (!infinite) is_near(target, p, r, d, d % 2 ? e->odd : e->even);
                }
                if (!(fabs(p->lse[r] - e->lse) <= 1e-4)) wrong(target, p, r, 0);
            }
        }
    }
    assert_true(solved > 0);
}

static const uint32_t wide[] = {TESS_F32, TESS_BF16}; /* types with float32's range */
#define FOR_WIDE(p) for (int type = 0; type < 2 && ((p).dtype = wide[type], 1); type++)

/* The result may be an infinity of the right sign but no NaN, and the elements beside it are
 * right. */
static void test_largest_values(void **state) {
    static problem p;
    (void)state;
    FOR_WIDE(p) {
        for (int sign = -1; sign <= 1; sign += 2) {
            const expected e = {sign * 0x1.ep127, 1, 1, log(KEYS)};
            fill(&p, 1, 0, e.even, e.odd);
            solve_all(&p, &e);
        }
    }
}

/* Up to 2^80 nothing becomes infinite, whatever the scores. Here the scores grow, so the weights of
 * later keys are much larger than those of the first. */
static void test_values_in_bounds(void **state) {
    static problem p;
    (void)state;
    FOR_WIDE(p) {
        double sum = 0;
        fill(&p, 1, 0, 0x1p80, -0x1p80);
        for (int t = 0; t < KEYS; t++) {
            const int step = t / 8;
            p.k[t] = step / 8.0;
            sum += exp(p.k[t] * D / sqrt(D));
        }
        const expected e = {0x1p80, -0x1p80, 0, log(sum)};
        solve_all(&p, &e);
    }
}

/* No float16 is near the largest float32. */
static void test_largest_halves(void **state) {
    static problem p = {.dtype = TESS_F16};
    const expected e = {65504, -65504, 0, log(KEYS)};
    (void)state;
    fill(&p, 1, 0, e.even, e.odd);
    solve_all(&p, &e);
}

/* On these CPUs denormal numbers always count as 0: those of V, those of Q, and those that would
 * be a result. */
static void test_denormals(void **state) {
#if !defined(__x86_64__) && !defined(__aarch64__)
    skip();
#endif
    static problem p;
    const expected zero = {0, 1, 0, log(KEYS)}, one = {1, 1, 0, log(KEYS)};
    (void)state;
    FOR_WIDE(p) {
        fill(&p, 1, 0, 0x1p-130, 1);
        solve_all(&p, &zero);
        fill(&p, 0x1p-130, 0x1p127, 1, 1); /* else a score of 0.5 */
        solve_all(&p, &one);
        fill(&p, 1, 0, 0x1p-126, 1);
        for (int t = 0; t < KEYS; t++)
            for (int d = 0; d < D && t % 4; d += 2) p.v[t][d] = 0;
        solve_all(&p, &zero);
    }
}

/* Denormal float16 numbers are ordinary ones as float32, and the CPU keeps them. */
static void test_denormal_halves(void **state) {
    static problem p = {.dtype = TESS_F16};
    const expected e = {0x1p-20, 0x1p-15, 0, log(KEYS)};
    (void)state;
    fill(&p, 1, 0, e.even, e.odd);
    solve_all(&p, &e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_largest_values), TEST(test_values_in_bounds), TEST(test_largest_halves),
        TEST(test_denormals),      TEST(test_denormal_halves),
    };
    const int status = test_targets_open(&targets, "cpu", TEST_EACH_KERNEL);
    if (status != 0) return status;
    const int failed = cmocka_run_group_tests_name("ends of the range", tests, NULL, NULL);
    test_targets_close(&targets);
    return failed;
}
