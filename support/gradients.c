/* SPDX-License-Identifier: Apache-2.0 */
#include "gradients.h"

#include <math.h>
#include <string.h>

static float rounded(uint32_t dtype, float f) {
    if (dtype == TESS_F16) return half_to_float(float_to_half(f));
    return dtype == TESS_BF16 ? bf16_to_float(float_to_bf16(f)) : f;
}

static void load(const problem *p, const void *base, int64_t vector, float *out) {
    load_elements(p->dtype, base, vector * p->head_dim, p->head_dim, out);
}

int64_t gradient_row(const problem *p, int64_t sequence, int32_t head, int64_t row) {
    const int64_t token =
        p->q_lens ? problem_q_start(p, sequence) + row : sequence * p->q_len + row;
    return token * p->heads + head;
}

int64_t gradient_key(const problem *p, int64_t sequence, int32_t kv_head, int64_t key) {
    const int64_t token =
        p->kv_lens ? problem_kv_start(p, sequence) + key : sequence * p->kv_len + key;
    return token * p->kv_heads + kv_head;
}

/* LSE lies by head and then by row. */
int64_t gradient_lse_element(const problem *p, int64_t sequence, int32_t head, int64_t row) {
    if (p->q_lens) return head * problem_q_tokens(p) + problem_q_start(p, sequence) + row;
    return (sequence * p->heads + head) * p->q_len + row;
}

void gradient_rows(const problem *p, const void *o, const float *lse, const void *d_o,
                   const float *d_lse, double *lse_out, double *delta) {
    float x[GRADIENT_MOST], y[GRADIENT_MOST];
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t row = 0; row < problem_q_len(p, b); row++)
            for (int32_t head = 0; head < p->heads; head++) {
                const int64_t n = gradient_row(p, b, head, row),
                              at = gradient_lse_element(p, b, head, row);
                lse_out[n] = lse[at];
                delta[n] = d_lse ? -(double)d_lse[at] : 0;
                load(p, o, n, x);
                load(p, d_o, n, y);
                for (int32_t d = 0; d < p->head_dim; d++) delta[n] += (double)x[d] * y[d];
            }
}

/* ------------------------------------------------------------------ a pair */

/* What one pair of a row and a key contributes. */
typedef struct pair {
    double p, ds, terms; /* scale is in ds; terms: the squares that ds is the difference of */
    float p_low, ds_low;
} pair;

static double dot(const float *x, const float *y, int32_t n) {
    double sum = 0;
    for (int32_t d = 0; d < n; d++) sum += (double)x[d] * y[d];
    return sum;
}

static float dot_float(const float *x, const float *y, int32_t n) {
    float sum = 0;
    for (int32_t d = 0; d < n; d++) sum += x[d] * y[d];
    return sum;
}

static pair pair_of(const problem *p, const float *q, const float *k, const float *v,
                    const float *d_o, double lse, double delta) {
    pair x;
    const double weight = exp(p->scale * dot(q, k, p->head_dim) - lse),
                 dp = dot(d_o, v, p->head_dim), scaled = p->scale * weight;
    x.p = weight;
    x.ds = scaled * (dp - delta);
    x.terms = scaled * scaled * (dp * dp + delta * delta);
    x.p_low = x.ds_low = 0;
    if (p->dtype != TESS_F32) {
        const uint32_t type = p->dtype;
        const float s = rounded(type, dot_float(q, k, p->head_dim)),
                    scaled_s = rounded(type, s * (float)p->scale),
                    dp_low = rounded(type, dot_float(d_o, v, p->head_dim));
        x.p_low = rounded(type, expf(scaled_s - (float)lse));
        const float ds = rounded(type, x.p_low * (dp_low - (float)delta));
        x.ds_low = rounded(type, ds * (float)p->scale);
    }
    return x;
}

static void add(gradient *g, const float *x, int32_t n, double weight, double terms, float low) {
    for (int32_t d = 0; d < n; d++) {
        g->exact[d] += weight * x[d];
        g->terms[d] += terms * x[d] * x[d];
        g->same[d] = (float)g->same[d] + low * x[d];
    }
}

static void finish(const problem *p, gradient *g) {
    for (int32_t d = 0; d < p->head_dim; d++) g->same[d] = rounded(p->dtype, (float)g->same[d]);
}

/* ------------------------------------------------------------------ rows of gradients */

void reference_d_q(const problem *p, const gradient_inputs *in, int64_t sequence, int32_t head,
                   int64_t row, gradient *d_q) {
    float q[GRADIENT_MOST], d_o[GRADIENT_MOST], k[GRADIENT_MOST], v[GRADIENT_MOST];
    const int64_t n = gradient_row(p, sequence, head, row), first = problem_kv_first(p, sequence),
                  keys = problem_kv_len(p, sequence), position = problem_q_first(p, sequence) + row;
    const int32_t kv_head = head / (p->heads / p->kv_heads);
    memset(d_q, 0, sizeof *d_q);
    if (isinf(in->lse[n])) return;
    load(p, in->q, n, q);
    load(p, in->d_o, n, d_o);
    for (int64_t t = 0; t < keys; t++) {
        if (!reference_kept(p, head, position, first + t, first + keys)) continue;
        load(p, in->k, gradient_key(p, sequence, kv_head, t), k);
        load(p, in->v, gradient_key(p, sequence, kv_head, t), v);
        const pair x = pair_of(p, q, k, v, d_o, in->lse[n], in->delta[n]);
        add(d_q, k, p->head_dim, x.ds, x.terms, x.ds_low);
    }
    finish(p, d_q);
}

void reference_d_kv(const problem *p, const gradient_inputs *in, int64_t sequence, int32_t kv_head,
                    int64_t key, gradient *d_k, gradient *d_v) {
    float q[GRADIENT_MOST], d_o[GRADIENT_MOST], k[GRADIENT_MOST], v[GRADIENT_MOST];
    const int64_t first = problem_kv_first(p, sequence), keys = problem_kv_len(p, sequence),
                  q_first = problem_q_first(p, sequence), rows = problem_q_len(p, sequence);
    const int32_t group = p->heads / p->kv_heads;
    memset(d_k, 0, sizeof *d_k);
    memset(d_v, 0, sizeof *d_v);
    load(p, in->k, gradient_key(p, sequence, kv_head, key), k);
    load(p, in->v, gradient_key(p, sequence, kv_head, key), v);
    for (int32_t head = kv_head * group; head < (kv_head + 1) * group; head++)
        for (int64_t row = 0; row < rows; row++) {
            const int64_t n = gradient_row(p, sequence, head, row);
            if (isinf(in->lse[n]) ||
                !reference_kept(p, head, q_first + row, first + key, first + keys))
                continue;
            load(p, in->q, n, q);
            load(p, in->d_o, n, d_o);
            const pair x = pair_of(p, q, k, v, d_o, in->lse[n], in->delta[n]);
            add(d_k, q, p->head_dim, x.ds, x.terms, x.ds_low);
            add(d_v, d_o, p->head_dim, x.p, x.p * x.p, x.p_low);
        }
    finish(p, d_k);
    finish(p, d_v);
}
