/* SPDX-License-Identifier: Apache-2.0 */
/* Results that another run or arithmetic alone predicts: partitions of the keys merged by (O, LSE),
 * rows without keys, large scores. And the check itself must notice a wrong pattern. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/elements.h"
#include "instance.h"
#include "npy.h"
#include "properties.h"
#include "rig.h"

/* ------------------------------------------------------------------ partitions */

/* A row of partial results, added up in double. */
typedef struct sums {
    int64_t rows;
    int elements;
    double *o, *lse;
} sums;

static sums sums_of(int64_t rows, int elements) {
    sums s = {rows, elements, rig_room((uint64_t)(rows * elements) * sizeof(double)),
              rig_room((uint64_t)rows * sizeof(double))};
    for (int64_t n = 0; n < rows; n++) s.lse[n] = -INFINITY;
    return s;
}

static void sums_add(sums *s, int64_t row, const float *o, float lse) {
    const double a = s->lse[row], b = lse, most = a > b ? a : b;
    if (most == -INFINITY) {
        for (int e = 0; e < s->elements; e++) assert_true(o[e] == 0);
        return;
    }
    const double x = exp(a - most), y = exp(b - most);
    for (int e = 0; e < s->elements; e++)
        s->o[row * s->elements + e] = (x * s->o[row * s->elements + e] + y * o[e]) / (x + y);
    s->lse[row] = most + log(x + y);
}

static void sums_equal(const sums *s, const float *o, const float *lse) {
    for (int64_t n = 0; n < s->rows; n++) {
        if (isinf(s->lse[n]) ? lse[n] != -INFINITY
                             : !(fabs(lse[n] - s->lse[n]) <= 1e-5 * (1 + fabs(s->lse[n]))))
            fail_msg("row %d: LSE of the whole is %.9g and of its parts %.9g", (int)n,
                     (double)lse[n], s->lse[n]);
        for (int e = 0; e < s->elements; e++)
            if (!(fabs(o[n * s->elements + e] - s->o[n * s->elements + e]) <= 1e-5))
                fail_msg("row %d element %d: the whole is %.9g and its parts %.9g", (int)n, e,
                         (double)o[n * s->elements + e], s->o[n * s->elements + e]);
    }
}

static void sums_free(sums *s) {
    free(s->o);
    free(s->lse);
}

/* Each rank holds one run of keys and queries. It sees the keys of earlier ranks whole and its own
 * in causal order. There is one head, so that a run of rows is contiguous. */
void test_context_parallel_dense(void **state) {
    enum { RANKS = 4, SHARE = 75, D = 64, ALL = RANKS * SHARE };
    rig whole;
    char line[256];
    snprintf(line, sizeof line, "pattern=dense heads=1 head_dim=%d q_len=%d seed=5", D, ALL);
    rig_create(&whole, *state, line, NULL, NULL);
    if (whole.refused) return;
    float *o = rig_room(ALL * D * 4), *lse = rig_room(ALL * 4), *part_o = rig_room(SHARE * D * 4),
          *part_lse = rig_room(SHARE * 4);
    rig_run(&whole, NULL, o, lse);
    sums s = sums_of(ALL, D);
    for (int q = 0; q < RANKS; q++)
        for (int k = 0; k <= q; k++) {
            rig part;
            snprintf(line, sizeof line, "pattern=dense causal=%d heads=1 head_dim=%d q_len=%d",
                     q == k, D, SHARE);
            rig_create(&part, *state, line, NULL, NULL);
            const rig_options options = {.data = {(float *)whole.data[0] + q * SHARE * D,
                                                  (float *)whole.data[1] + k * SHARE * D,
                                                  (float *)whole.data[2] + k * SHARE * D}};
            rig_run(&part, &options, part_o, part_lse);
            for (int n = 0; n < SHARE; n++)
                sums_add(&s, q * SHARE + n, part_o + n * D, part_lse[n]);
            rig_release(&part);
        }
    sums_equal(&s, o, lse);
    sums_free(&s);
    free(o);
    free(lse);
    free(part_o);
    free(part_lse);
    rig_release(&whole);
}

/* The blocks of an S2 pattern dealt to three ranks, each with a block mask of its own; some rows
 * see no key of some rank. */
void test_context_parallel_s2(void **state) {
    enum {
        HEADS = 3,
        D = 32,
        TOKENS = 330,
        BLOCK = 16,
        BLOCKS = (TOKENS + BLOCK - 1) / BLOCK,
        RANKS = 3
    };
    rig whole;
    rig_create(&whole, *state,
               "pattern=s2 block=16 local=1 stride=4 offset=1 heads=3 head_dim=32 q_len=330 seed=6",
               NULL, NULL);
    if (whole.refused) return;
    float *o = rig_room(HEADS * TOKENS * D * 4), *lse = rig_room(HEADS * TOKENS * 4),
          *part_o = rig_room(HEADS * TOKENS * D * 4), *part_lse = rig_room(HEADS * TOKENS * 4);
    rig_run(&whole, NULL, o, lse);
    sums s = sums_of(HEADS * TOKENS, D);
    int empty_rows = 0;
    for (int rank = 0; rank < RANKS; rank++) {
        static uint8_t mask[HEADS][BLOCKS][BLOCKS];
        char path[128], line[256], error[256];
        memset(mask, 0, sizeof mask);
        for (int h = 0; h < HEADS; h++)
            for (int i = 0; i < BLOCKS; i++) {
                uint8_t row[BLOCKS];
                assert_ok(tess_layout_row(whole.layout, h, i, row, BLOCKS));
                for (int j = 0; j < BLOCKS; j++)
                    mask[h][i][j] = row[j] && j * RANKS / BLOCKS == rank;
            }
        snprintf(path, sizeof path, "/tmp/tessera-test-%ld-rank%d.npy", (long)getpid(), rank);
        const int64_t shape[3] = {HEADS, BLOCKS, BLOCKS};
        if (npy_write(path, NPY_BOOL, 3, shape, mask, error, sizeof error) != 0)
            fail_msg("%s", error);
        snprintf(line, sizeof line,
                 "pattern=blocks block=16 mask=%s heads=3 head_dim=32 q_len=330 seed=6", path);
        rig part;
        rig_create(&part, *state, line, NULL, NULL);
        remove(path);
        rig_run(&part, NULL, part_o, part_lse);
        for (int h = 0; h < HEADS; h++)
            for (int n = 0; n < TOKENS; n++) {
                const float value = part_lse[h * TOKENS + n];
                empty_rows += value == -INFINITY;
                sums_add(&s, n * HEADS + h, part_o + (n * HEADS + h) * D, value);
            }
        rig_release(&part);
    }
    assert_true(empty_rows > 50);
    float *in_rows = rig_room(HEADS * TOKENS * 4); /* LSE as [token, head] */
    for (int h = 0; h < HEADS; h++)
        for (int n = 0; n < TOKENS; n++) in_rows[n * HEADS + h] = lse[h * TOKENS + n];
    sums_equal(&s, o, in_rows);
    sums_free(&s);
    free(in_rows);
    free(o);
    free(lse);
    free(part_o);
    free(part_lse);
    rig_release(&whole);
}

/* ---------------------------------------------------------- rows without keys, lengths of zero */

typedef struct empty_case {
    const char *line;
    int64_t empty; /* rows of each head that keep no key, from the first one */
} empty_case;

void test_rows_without_keys(void **state) {
    static const empty_case cases[] = {
        {"pattern=s2 block=16 local=2 stride=3 heads=4 kv_heads=2 head_dim=32 q_len=90 kv_len=31",
         59},
        {"pattern=s2 block=16 local=2 stride=3 heads=4 kv_heads=2 head_dim=32 q_len=90 kv_len=31 "
         "kv_split=3 dtype=f16",
         59},
        {"pattern=dense heads=2 head_dim=24 q_len=5 kv_len=4 dtype=bf16", 1},
        {"pattern=dense heads=2 head_dim=24 q_len=5 kv_len=0", 5},
        {"pattern=dense causal=0 heads=2 head_dim=24 q_len=70 kv_len=0 kv_split=2", 70},
        {"pattern=s2 causal=0 block=16 local=1 stride=3 heads=2 head_dim=24 q_len=7 kv_len=0", 7},
        {"pattern=window left=2 right=0 sinks=3 heads=2 head_dim=24 q_len=40 kv_len=10", 30},
        {"pattern=window causal=0 left=2 right=3 heads=2 head_dim=24 q_len=40 kv_len=10", 27},
    };
    for (size_t n = 0; n < sizeof cases / sizeof cases[0]; n++) {
        rig r;
        rig_create(&r, *state, cases[n].line, NULL, NULL);
        if (r.refused) continue;
        unsigned char *o = rig_room(r.bytes[TESS_ROLE_O]);
        float *lse = rig_room(r.bytes[TESS_ROLE_LSE]);
        const rig_options options = {.workspace_byte = 0xff};
        rig_run(&r, &options, o, lse);
        const size_t row = (size_t)(r.p.heads * r.p.head_dim) * r.size[TESS_ROLE_O];
        for (size_t byte = 0; byte < row * (size_t)cases[n].empty; byte++)
            if (o[byte]) fail_msg("%s: o of a row without keys is not 0", cases[n].line);
        for (int32_t h = 0; h < r.p.heads; h++)
            for (int64_t t = 0; t < r.p.q_len; t++) {
                const float value = lse[h * r.p.q_len + t];
                if (t < cases[n].empty ? value != -INFINITY : !isfinite(value))
                    fail_msg("%s: LSE of row %d is %g", cases[n].line, (int)t, (double)value);
            }
        rig_check(&r, o, lse, r.p.dtype == TESS_F32 ? 1e-5 : r.p.dtype == TESS_F16 ? 4e-3 : 3e-2);
        free(o);
        free(lse);
        rig_release(&r);
    }
}

void test_nothing_to_do(void **state) {
    static const char *const cases[] = {
        ("pattern=s2 block=16 local=2 stride=3 heads=4 kv_heads=2 head_dim=32 batch=0 q_len=5 "
         "kv_len=9"),
        "pattern=dense heads=4 head_dim=32 q_len=0 kv_len=9",
        "pattern=window left=3 right=0 heads=4 head_dim=32 q_len=0 kv_len=0",
        "pattern=dense heads=4 head_dim=32 q_lens=0,0,0 kv_lens=0,5,0",
        "pattern=dense causal=0 heads=4 head_dim=32 batch=0 q_len=0 kv_len=0 kv_split=4",
    };
    for (size_t n = 0; n < sizeof cases / sizeof cases[0]; n++) {
        rig r;
        float none[2] = {0};
        rig_create(&r, *state, cases[n], NULL, NULL);
        if (r.refused) continue;
        assert_true(r.info.kept_pairs == 0 && r.info.flops == 0);
        rig_run(&r, NULL, none, none);
        rig_release(&r);
    }
}

/* ------------------------------------------------------------------ scores */

void test_scores_of_any_size(void **state) {
    static const char *const cases[] = {
        "pattern=s2 block=16 local=2 stride=3 heads=2 head_dim=64 q_len=40 kv_len=300 scale=40",
        "pattern=s2 block=16 local=2 stride=3 heads=2 head_dim=64 q_len=40 kv_len=300 scale=1e-30",
        "pattern=dense heads=2 head_dim=64 q_len=1 kv_len=300 scale=40 kv_split=3",
        "pattern=dense heads=2 head_dim=64 q_len=40 kv_len=300 scale=1e10",
        "pattern=dense heads=2 head_dim=64 q_len=1 kv_len=300 scale=1e30 kv_split=3",
        "pattern=dense heads=2 head_dim=64 q_len=40 kv_len=300 scale=1e10 dtype=bf16",
        /* Scores grow by more than a float's exponent range from one stage of keys to the next. */
        "pattern=dense heads=2 head_dim=64 q_len=40 kv_len=1500 scale=20 dtype=bf16",
        "pattern=dense heads=4 kv_heads=1 head_dim=128 q_len=40 kv_len=1500 scale=20 dtype=f16",
        "pattern=dense causal=0 heads=2 head_dim=192 q_len=70 kv_len=700 scale=20 dtype=bf16",
    };
    for (size_t n = 0; n < sizeof cases / sizeof cases[0]; n++) {
        rig r;
        rig_create(&r, *state, cases[n], NULL, NULL);
        if (r.refused) continue;
        float *o = rig_room(r.bytes[TESS_ROLE_O]), *lse = rig_room(r.bytes[TESS_ROLE_LSE]);
        rig_run(&r, NULL, o, lse);
        /* A score near 1000 in float32 is off by up to 1e-4, and its exponential by as much. bf16
         * rounds exponentials and results by up to 2^-8 each. */
        rig_check(&r, o, lse, n == 1 ? 1e-5 : r.p.dtype == TESS_F32 ? 2e-3 : 2e-3 + 0x1p-7);
        free(o);
        free(lse);
        rig_release(&r);
    }
}

/* Scores of `size` and more whose differences are small and exact, whatever adds them up: whole
 * numbers in the first 33 elements, of which one is large. */
static void exact_scores(rig *r, float size) {
    uint64_t seed = 7;
    for (int role = 0; role < 2; role++) {
        const rig_dims *d = &r->dims[role];
        const int64_t rows = d->batch * d->tokens * d->heads;
        for (int64_t row = 0; row < rows; row++)
            for (int64_t e = 0; e < d->elements; e++) {
                seed = seed * 6364136223846793005u + 1442695040888963407u;
                const float x = e == 0    ? (role ? size / 512 : 512)
                                : e <= 32 ? (float)((int)(seed >> 60) % 3 - 1) * (role ? 0.25f : 1)
                                          : 0;
                element_store(r->p.dtype, r->data[role], row * d->elements + e, x);
            }
    }
}

/* Only differences of scores count, however large the scores are. Splitting the keys must not lose
 * them. */
void test_large_scores_split(void **state) {
    static const char *const dtypes[] = {"f32", "f16", "bf16"};
    static const int splits[] = {1, 2, 3, 7, 33};
    for (int d = 0; d < 3; d++)
        for (int s = 0; s < 5; s++)
            for (int power = 10; power <= 18; power += 4) {
                char line[256];
                snprintf(line, sizeof line,
                         "pattern=dense heads=2 kv_heads=1 head_dim=64 q_len=%d kv_len=%d scale=1 "
                         "dtype=%s kv_split=%d",
                         power == 14 ? 70 : 3, power == 14 ? 600 : 2200, dtypes[d], splits[s]);
                rig r;
                rig_create(&r, *state, line, NULL, NULL);
                if (r.refused) continue;
                exact_scores(&r, ldexpf(1, power));
                float *o = rig_room(r.bytes[TESS_ROLE_O]), *lse = rig_room(r.bytes[TESS_ROLE_LSE]);
                rig_run(&r, NULL, o, lse);
                rig_check(&r, o, lse,
                          r.p.dtype == TESS_F32   ? 1e-5
                          : r.p.dtype == TESS_F16 ? 2e-3
                                                  : 0x1p-7);
                free(o);
                free(lse);
                rig_release(&r);
            }
}

/* The largest legal scale, with scores whose product with it overflows a float. Only the keys with
 * the highest scores count, and those scores are equal here. */
void test_scale_beyond_floats(void **state) {
    for (int split = 1; split <= 3; split += 2) {
        char line[256];
        snprintf(line, sizeof line,
                 "pattern=dense heads=2 kv_heads=1 head_dim=64 q_len=3 kv_len=900 scale=1.3e36 "
                 "kv_split=%d",
                 split);
        rig r;
        rig_create(&r, *state, line, NULL, NULL);
        if (r.refused) continue;
        exact_scores(&r, 0x1p18f);
        float *o = rig_room(r.bytes[TESS_ROLE_O]);
        const rig_options options = {.without_lse = 1};
        rig_run(&r, &options, o, NULL);
        const reference_inputs in = {r.data[0], r.data[1], r.data[2]};
        for (int h = 0; h < 2; h++)
            for (int n = 0; n < 3; n++) {
                double row[256], lse;
                reference_row(&r.p, &in, 0, h, n, row, &lse);
                for (int e = 0; e < 64; e++)
                    if (!(fabs(o[(n * 2 + h) * 64 + e] - row[e]) <= 1e-5 * (1 + fabs(row[e]))))
                        fail_msg("%s: row %d of head %d: %g instead of %g", line, n, h,
                                 (double)o[(n * 2 + h) * 64 + e], row[e]);
            }
        free(o);
        rig_release(&r);
    }
}

/* Elements of V that are not finite reach their own element of O alone, and their own heads.
 * Kernels that multiply V by zeros to skip elements would spread them. */
void test_values_not_finite(void **state) {
    const test_target *target = *state;
    static const char *const cases[] = {"head_dim=128 q_len=1 kv_len=700 dtype=bf16",
                                        "head_dim=40 q_len=1 kv_len=300 dtype=bf16 kv_split=3",
                                        "head_dim=64 q_len=9 kv_len=300 dtype=bf16"};
    enum { HEADS = 4, KV_HEADS = 2, KEY = 77, INFINITE = 5, NONE = 36 };
    if (!target->host_memory) return; /* other devices promise nothing of the kind */
    for (size_t n = 0; n < sizeof cases / sizeof cases[0]; n++) {
        char line[160];
        snprintf(line, sizeof line, "pattern=dense heads=4 kv_heads=2 %s", cases[n]);
        rig_pair x;
        if (!rig_pair_create(&x, target, line)) continue;
        const rig *r = &x.r;
        const int64_t head_dim = r->p.head_dim, row = (int64_t)KEY * KV_HEADS * head_dim;
        element_store(r->p.dtype, r->data[TESS_ROLE_V], row + INFINITE, INFINITY);
        element_store(r->p.dtype, r->data[TESS_ROLE_V], row + NONE, NAN);
        rig_run(r, NULL, x.got.o, x.got.lse);
        rig_same_bits(line, x.got.lse, x.plain.lse, r->bytes[TESS_ROLE_LSE]);
        for (int64_t q = 0; q < r->p.q_len; q++)
            for (int64_t h = 0; h < HEADS; h++)
                for (int64_t d = 0; d < head_dim; d++) {
                    const int64_t at = (q * HEADS + h) * head_dim + d;
                    const float got = element_load(r->p.dtype, x.got.o, at),
                                plain = element_load(r->p.dtype, x.plain.o, at);
                    const int own = h < HEADS / KV_HEADS, hit = d == INFINITE || d == NONE;
                    if (own && hit ? isfinite(got)
                                   : !(fabsf(got - plain) <= (own ? 0x1p-7f : 0.0f)))
                        fail_msg("%s: element %d of head %d: %g, without them %g", line, (int)d,
                                 (int)h, (double)got, (double)plain);
                }
        rig_pair_release(&x);
    }
}

/* The scale of a row of V reaches the rows of Q that see it, and no others: they keep their bits
 * when it is far above the scales beside it. */
void test_scales_apart(void **state) {
    static const char *const types[] = {"i8", "e4m3"};
    enum { ROWS = 4, KEYS = 301, D = 64 };
    for (int n = 0; n < 2; n++) {
        char line[160];
        snprintf(line, sizeof line,
                 "pattern=dense heads=1 head_dim=%d q_len=%d kv_len=%d dtype=bf16 kv_dtype=%s", D,
                 ROWS, KEYS, types[n]);
        rig_pair x;
        if (!rig_pair_create(&x, *state, line)) continue;
        x.r.scales[1][KEYS - 1] *= 0x1p30f;
        rig_run(&x.r, NULL, x.got.o, x.got.lse);
        const int64_t row = D * (int64_t)x.r.size[TESS_ROLE_O];
        rig_same_bits(line, x.got.o, x.plain.o, (uint64_t)((ROWS - 1) * row));
        if (memcmp((char *)x.got.o + (ROWS - 1) * row, (char *)x.plain.o + (ROWS - 1) * row,
                   (size_t)row) == 0)
            fail_msg("%s: the last row does not see its key", line);
        rig_pair_release(&x);
    }
}

static void negative_scale(tess_plan_desc *desc, void *user) {
    (void)user;
    desc->scale = -0.25f;
}

void test_negative_scale(void **state) {
    static const char *const dtypes[] = {"f32", "f16", "bf16"};
    static const double tolerances[] = {1e-5, 2e-3, 0x1p-7};
    for (int n = 0; n < 6; n++) {
        char line[256];
        snprintf(
            line, sizeof line,
            "pattern=s2 block=16 local=2 stride=3 heads=2 head_dim=64 q_len=%d kv_len=300 dtype=%s",
            n < 3 ? 40 : 2, dtypes[n % 3]);
        rig r;
        rig_create(&r, *state, line, negative_scale, NULL);
        if (r.refused) continue;
        r.p.scale = -0.25;
        float *o = rig_room(r.bytes[TESS_ROLE_O]), *lse = rig_room(r.bytes[TESS_ROLE_LSE]);
        rig_run(&r, NULL, o, lse);
        rig_check(&r, o, lse, tolerances[n % 3]);
        free(o);
        free(lse);
        rig_release(&r);
    }
}

/* Scales of V that rise from key to key, by far more than f16 has exponents. */
void test_rising_scales(void **state) {
    for (int n = 0; n < 8; n++) {
        char line[256];
        snprintf(line, sizeof line,
                 "pattern=dense heads=4 kv_heads=2 head_dim=%d q_len=3 kv_len=900 kv_split=1 "
                 "dtype=%s kv_dtype=%s",
                 n / 4 ? 128 : 48, n / 2 % 2 ? "bf16" : "f16", n % 2 ? "i8" : "e4m3");
        rig r;
        rig_create(&r, *state, line, NULL, NULL);
        if (r.refused) continue;
        for (int i = 0; i < 900 * 2; i++)
            r.scales[1][i] = ldexpf(r.scales[1][i], (i / 2 - 899) * 90 / 899);
        float *o = rig_room(r.bytes[TESS_ROLE_O]), *lse = rig_room(r.bytes[TESS_ROLE_LSE]);
        rig_run(&r, NULL, o, lse);
        rig_check(&r, o, lse, n / 2 % 2 ? 0x1p-7 : 2e-3);
        free(o);
        free(lse);
        rig_release(&r);
    }
}

/* ------------------------------------------------------------------ the check itself */

typedef struct wrong_case {
    const char *right, *wrong; /* the same shape, another pattern */
} wrong_case;

#define SHAPE  " heads=4 kv_heads=2 head_dim=128 q_len=48 kv_len=1030 scale=0.0078125 "
#define SHAPE0 " heads=4 kv_heads=2 head_dim=128 q_len=200 scale=0.0078125 "
static const wrong_case wrong_cases[] = {
    {"pattern=s2 block=16 local=2 stride=4" SHAPE,
     "pattern=s2 block=16 local=2 stride=4 offset=1" SHAPE},
    {"pattern=s2 block=16 local=2 stride=4 offset=1" SHAPE,
     "pattern=s2 block=16 local=2 stride=4 offset=2" SHAPE},
    {"pattern=s2 block=16 local=2 stride=4" SHAPE, "pattern=s2 block=16 local=3 stride=4" SHAPE},
    {"pattern=s2 block=16 local=2 stride=4" SHAPE, "pattern=s2 block=16 local=1 stride=4" SHAPE},
    {"pattern=s2 block=16 local=2 stride=4" SHAPE, "pattern=s2 block=16 local=2 stride=5" SHAPE},
    {"pattern=s2 block=16 local=2 stride=4" SHAPE, "pattern=s2 block=17 local=2 stride=4" SHAPE},
    {"pattern=s2 block=16 local=2 stride=4" SHAPE,
     "pattern=s2 block=16 local=2 stride=4 per_kv_head=1" SHAPE},
    {"pattern=s2 block=16 local=2 stride=4" SHAPE,
     "pattern=s2 block=16 local=2 stride=4 homo=1" SHAPE},
    {"pattern=s2 block=16 local=2 stride=4" SHAPE,
     "pattern=s2 block=16 local=2 stride=4 dense_heads=1" SHAPE},
    {"pattern=s2 block=16 local=2 stride=8" SHAPE,
     "pattern=s2 block=16 local=2 stride=8 head_first=4 heads_total=8" SHAPE},
    {"pattern=s2 block=16 local=2 stride=8 head_ids=6,7,1,0 heads_total=8" SHAPE,
     "pattern=s2 block=16 local=2 stride=8 head_ids=6,7,0,1 heads_total=8" SHAPE},
    {"pattern=s2 block=16 local=2 stride=4 causal=0" SHAPE,
     "pattern=s2 block=16 local=2 local_right=3 stride=4 causal=0" SHAPE},
    {"pattern=dense" SHAPE0, "pattern=dense causal=0" SHAPE0},
    {"pattern=window left=40 right=0" SHAPE, "pattern=window left=41 right=0" SHAPE},
    {"pattern=window left=40 right=0" SHAPE, "pattern=window left=39 right=0" SHAPE},
    {"pattern=window left=40 right=0 sinks=4" SHAPE,
     "pattern=window left=40 right=0 sinks=3" SHAPE},
    {"pattern=window left=40 right=9 causal=0" SHAPE,
     "pattern=window left=40 right=10 causal=0" SHAPE},
    {"pattern=dense" SHAPE0,
     "pattern=window left=198 right=0" SHAPE0}, /* one pair in a whole head is missing */
};

/* A result must not pass against the reference of another pattern, in any type, even with the scale
 * that flattens the softmax most. The check is the host's, so results of the CPU are enough where a
 * device would compile kernels for them; under a sanitizer types take turns. */
void test_wrong_pattern_is_seen(void **state) {
    static const char *const dtypes[] = {"f32", "f16", "bf16"};
    const test_target *target = *state;
    if (test_is_repetition(target)) return;
    for (size_t n = 0; n < sizeof wrong_cases / sizeof wrong_cases[0]; n++)
        for (int d = 0; d < 3; d++) {
            char line[512], error[512];
            problem right, wrong;
            if (test_sanitized() && !test_full() && (n + (size_t)d) % 3 != 0) continue;
            snprintf(line, sizeof line, "%s dtype=%s", wrong_cases[n].right, dtypes[d]);
            if (problem_parse(&right, line, error, sizeof error) != 0)
                fail_msg("%s: %s", line, error);
            snprintf(line, sizeof line, "%s dtype=%s", wrong_cases[n].wrong, dtypes[d]);
            if (problem_parse(&wrong, line, error, sizeof error) != 0)
                fail_msg("%s: %s", line, error);
            instance x;
            instance_verdict verdict;
            assert_ok(instance_create(&x, target->device, &right, NULL, INSTANCE_GUARDS));
            assert_ok(instance_run(&x, NULL));
            assert_ok(instance_fetch(&x));
            instance_check(&x, 0, &verdict);
            if (!verdict.pass) fail_msg("%s: %s", wrong_cases[n].right, verdict.what);
            x.problem = &wrong;
            instance_check(&x, 0, &verdict);
            if (verdict.pass)
                fail_msg("the result of '%s' passes as that of '%s'", wrong_cases[n].right, line);
            x.problem = &right;
            instance_release(&x);
            problem_free(&right);
            problem_free(&wrong);
        }
}

/* With these inputs a wrong offset must not hide: most elements are off by more than the original's
 * own tolerance. */
void test_wrong_offset_shows_everywhere(void **state) {
    rig r;
    if (test_is_repetition(*state)) return;
    rig_create(&r, *state, "pattern=s2 block=16 local=2 stride=4" SHAPE "dtype=f16", NULL, NULL);
    uint16_t *o = rig_room(r.bytes[TESS_ROLE_O]);
    float *lse = rig_room(r.bytes[TESS_ROLE_LSE]);
    rig_run(&r, NULL, o, lse);
    const reference_inputs in = {r.data[0], r.data[1], r.data[2]};
    int64_t off[2] = {0, 0}, all = 0;
    for (int wrong = 0; wrong < 2; wrong++) {
        r.p.offset = wrong;
        for (int32_t h = 0; h < r.p.heads; h++)
            for (int64_t n = 0; n < r.p.q_len; n++) {
                double row[256], value;
                reference_row(&r.p, &in, 0, h, n, row, &value);
                for (int e = 0; e < r.p.head_dim; e++, all += wrong)
                    off[wrong] += fabs(half_to_float(o[(n * r.p.heads + h) * r.p.head_dim + e]) -
                                       row[e]) > 1e-2;
            }
    }
    assert_int_equal(off[0], 0);
    assert_true(off[1] > all / 2);
    free(o);
    free(lse);
    rig_release(&r);
}

/* A damaged byte in an output, an LSE that is off, and a guard word that was hit are seen as
 * well. */
void test_damaged_output_is_seen(void **state) {
    const test_target *target = *state;
    char error[512];
    problem p;
    if (problem_parse(&p,
                      "pattern=s2 block=16 local=2 stride=4 heads=4 kv_heads=2 head_dim=64 "
                      "q_len=50 kv_len=200",
                      error, sizeof error) != 0)
        fail_msg("%s", error);
    instance x;
    instance_verdict verdict;
    assert_ok(instance_create(&x, target->device, &p, NULL, INSTANCE_GUARDS | INSTANCE_POISON));
    assert_ok(instance_run(&x, NULL));
    assert_ok(instance_fetch(&x));
    instance_check(&x, 0, &verdict);
    assert_true(verdict.pass);
    float *o = x.o, kept = o[777];
    o[777] = kept + 1e-3f;
    instance_check(&x, 0, &verdict);
    assert_false(verdict.pass);
    o[777] = NAN;
    instance_check(&x, 0, &verdict);
    assert_false(verdict.pass);
    o[777] = kept;
    kept = x.lse[99];
    x.lse[99] = kept + 1e-3f;
    instance_check(&x, 0, &verdict);
    assert_false(verdict.pass);
    x.lse[99] = NAN;
    instance_check(&x, 0, &verdict);
    assert_false(verdict.pass);
    x.lse[99] = -INFINITY;
    instance_check(&x, 0, &verdict);
    assert_false(verdict.pass);
    x.lse[99] = kept;
    instance_check(&x, 0, &verdict);
    assert_true(verdict.pass);
    /* The four bytes in front of O and behind it belong to the guards. */
    const float hit = 1.0f;
    for (int side = 0; side < 2; side++) {
        tess_buffer at = x.run.o.buffer;
        at.size = 0; /* which ends where O does */
        float was;
        at.offset = side ? at.offset + x.o_bytes : at.offset - sizeof hit;
        assert_ok(tess_copy(target->device, tess_host_buffer(&was, sizeof was), at, sizeof was));
        assert_ok(tess_copy(target->device, at, tess_host_buffer(&hit, sizeof hit), sizeof hit));
        instance_fetch(&x);
        instance_check(&x, 0, &verdict);
        assert_false(verdict.pass);
        assert_ok(tess_copy(target->device, at, tess_host_buffer(&was, sizeof was), sizeof was));
    }
    instance_fetch(&x);
    instance_check(&x, 0, &verdict);
    assert_true(verdict.pass);
    instance_release(&x);
    problem_free(&p);
}
