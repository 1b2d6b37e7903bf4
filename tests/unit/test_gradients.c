/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fp64 reference of backward against finite differences of the forward one: for each element of
 * Q, K and V, the change of
 *     sum of dO * O + sum of dLSE * LSE
 * when that element changes a little.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/testlib.h"
#include "gradients.h"

enum { SEED = 7, STREAM_Q = 1, STREAM_K, STREAM_V, STREAM_D_O, STREAM_D_LSE };

typedef struct rig {
    problem p;
    int64_t rows, keys; /* vectors of head_dim */
    float *q, *k, *v, *d_o, *d_lse;
    double *lse, *delta;
} rig;

static float *normal(int64_t count, uint32_t stream) {
    float *x = malloc((size_t)count * sizeof *x);
    assert_non_null(x);
    fill_normal(TESS_F32, x, count, SEED, stream);
    return x;
}

static reference_inputs forward_inputs(const rig *r) {
    return (reference_inputs){.q = r->q, .k = r->k, .v = r->v};
}

/* The sum that is differentiated. */
static double loss(const rig *r) {
    const problem *p = &r->p;
    const reference_inputs in = forward_inputs(r);
    double sum = 0, o[GRADIENT_MOST], lse;
    for (int64_t b = 0; b < p->batch; b++)
        for (int32_t head = 0; head < p->heads; head++)
            for (int64_t row = 0; row < problem_q_len(p, b); row++) {
                const int64_t n = gradient_row(p, b, head, row);
                reference_row(p, &in, b, head, row, o, &lse);
                if (isinf(lse)) continue;
                sum += lse * r->d_lse[n];
                for (int32_t d = 0; d < p->head_dim; d++) sum += o[d] * r->d_o[n * p->head_dim + d];
            }
    return sum;
}

static void setup(rig *r, const char *line) {
    char error[256];
    if (problem_parse(&r->p, line, error, sizeof error) != 0) fail_msg("%s: %s", line, error);
    const problem *p = &r->p;
    r->rows = problem_q_tokens(p) * p->heads;
    r->keys = problem_kv_tokens(p) * p->kv_heads;
    r->q = normal(r->rows * p->head_dim, STREAM_Q);
    r->k = normal(r->keys * p->head_dim, STREAM_K);
    r->v = normal(r->keys * p->head_dim, STREAM_V);
    r->d_o = normal(r->rows * p->head_dim, STREAM_D_O);
    r->d_lse = normal(r->rows, STREAM_D_LSE);
    r->lse = calloc((size_t)r->rows, sizeof *r->lse);
    r->delta = calloc((size_t)r->rows, sizeof *r->delta);
    assert_non_null(r->lse);
    assert_non_null(r->delta);
    const reference_inputs in = forward_inputs(r);
    for (int64_t b = 0; b < p->batch; b++)
        for (int32_t head = 0; head < p->heads; head++)
            for (int64_t row = 0; row < problem_q_len(p, b); row++) {
                const int64_t n = gradient_row(p, b, head, row);
                double o[GRADIENT_MOST];
                reference_row(p, &in, b, head, row, o, &r->lse[n]);
                r->delta[n] = -(double)r->d_lse[n];
                for (int32_t d = 0; d < p->head_dim; d++)
                    r->delta[n] += o[d] * r->d_o[n * p->head_dim + d];
            }
}

static void teardown(rig *r) {
    void *const arrays[] = {r->q, r->k, r->v, r->d_o, r->d_lse, r->lse, r->delta};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) free(arrays[i]);
    problem_free(&r->p);
}

/* The change of the loss as elements [at, at + head_dim) of x change, against `wanted`. */
static void compare(const rig *r, const char *name, float *x, int64_t at, const double *wanted) {
    const float step = 0x1p-8f;
    for (int32_t d = 0; d < r->p.head_dim; d++) {
        const float before = x[at + d], above = before + step, below = before - step;
        x[at + d] = above;
        const double up = loss(r);
        x[at + d] = below;
        const double down = loss(r);
        x[at + d] = before;
        const double slope = (up - down) / ((double)above - (double)below);
        if (!(fabs(slope - wanted[d]) <= 1e-4 * (1 + fabs(slope))))
            fail_msg("%s, element %lld: %.9g, by differences %.9g", name, (long long)(at + d),
                     wanted[d], slope);
    }
}

static void check(const char *line) {
    rig r;
    setup(&r, line);
    const problem *p = &r.p;
    const gradient_inputs in = {r.q, r.k, r.v, r.d_o, r.lse, r.delta};
    gradient x, y;
    for (int64_t b = 0; b < p->batch; b++) {
        for (int32_t head = 0; head < p->heads; head++)
            for (int64_t row = 0; row < problem_q_len(p, b); row++) {
                reference_d_q(p, &in, b, head, row, &x);
                compare(&r, "d_q", r.q, gradient_row(p, b, head, row) * p->head_dim, x.exact);
            }
        for (int32_t head = 0; head < p->kv_heads; head++)
            for (int64_t key = 0; key < problem_kv_len(p, b); key++) {
                const int64_t token = (p->kv_lens ? problem_kv_start(p, b) : b * p->kv_len) + key;
                const int64_t at = (token * p->kv_heads + head) * p->head_dim;
                reference_d_kv(p, &in, b, head, key, &x, &y);
                compare(&r, "d_k", r.k, at, x.exact);
                compare(&r, "d_v", r.v, at, y.exact);
            }
    }
    teardown(&r);
}

static void test_patterns(void **state) {
    (void)state;
    static const char *const lines[] = {
        "heads=1 q_len=5 kv_len=5 head_dim=8 dtype=f32 pattern=dense",
        "heads=1 q_len=3 kv_len=6 head_dim=8 dtype=f32 pattern=dense causal=0",
        /* two query heads to a KV head */
        "heads=4 kv_heads=2 q_len=7 kv_len=9 head_dim=8 dtype=f32 pattern=s2 block=2 local=1 "
        "stride=4",
        /* packed */
        "heads=2 kv_heads=1 q_lens=3,0,2 kv_lens=4,2,1 head_dim=8 dtype=f32 pattern=window left=1 "
        "sinks=1",
        /* a chunk of a sequence */
        "heads=1 q_len=4 kv_len=4 head_dim=8 dtype=f32 pattern=s2 q_first=3 kv_first=2 block=2 "
        "local=1 stride=3",
    };
    for (size_t n = 0; n < sizeof lines / sizeof *lines; n++) check(lines[n]);
}

/* Rows and keys without a partner get exactly 0. */
static void test_nothing_to_add(void **state) {
    (void)state;
    rig r;
    setup(&r, "heads=1 q_len=6 kv_len=4 head_dim=8 dtype=bf16 pattern=window left=0 causal=0 "
              "right=0");
    /* The floats of the rig serve as any numbers do; what matters is which rows are empty. */
    r.p.dtype = TESS_F32;
    const gradient_inputs in = {r.q, r.k, r.v, r.d_o, r.lse, r.delta};
    gradient x;
    assert_true(isinf(r.lse[0]) && isinf(r.lse[1]) && !isinf(r.lse[2]));
    reference_d_q(&r.p, &in, 0, 0, 1, &x);
    for (int d = 0; d < 8; d++) assert_true(x.exact[d] == 0 && x.same[d] == 0);
    teardown(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_patterns),
        cmocka_unit_test(test_nothing_to_add),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
