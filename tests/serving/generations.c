/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps over a KV cache as a server makes them, on every device: random generations, one plan at
 * every length, steps that are stale, and lengths, positions and page ids that are hostile.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kv_cache.h"

enum { MOST_BATCH = 4 };

/* ------------------------------------------------------------------ random generations */

typedef struct generation {
    kv_problem p;
    kv_form form;
    int32_t batch;
    int64_t keys;
} generation;

static int64_t one_of(uint64_t *random, const int64_t *list, int64_t count) {
    return list[test_between(random, 0, count - 1)];
}
#define ONE_OF(...)                                \
    one_of(random, (const int64_t[]){__VA_ARGS__}, \
           (int64_t)(sizeof(int64_t[]){__VA_ARGS__} / sizeof(int64_t)))

/* V of 1 and above the heads, local above all blocks, windows with sinks, dense heads. */
static void draw_pattern(uint64_t *random, kv_problem *p, int64_t keys) {
    tess_pattern *x = &p->pattern;
    const int64_t kind = test_between(random, 0, 5), stride = test_between(random, 0, 3);
    *x = (tess_pattern){.struct_size = sizeof *x, .kind = TESS_PATTERN_DENSE};
    x->block = (int32_t)ONE_OF(4, 5, 8, 16, 32);
    if (p->dtype != TESS_F32 && x->block < 8) x->block = 8; /* as kernels for full tiles want it */
    if (kind == 0) return;
    if (kind == 1) {
        x->kind = TESS_PATTERN_WINDOW;
        x->left = test_between(random, 0, keys / 2);
        x->sinks = test_between(random, 0, 1) * test_between(random, 1, 40);
        return;
    }
    x->kind = TESS_PATTERN_S2;
    x->local = (int32_t)(test_between(random, 0, 5) ? test_between(random, 1, 4) : 1000);
    x->stride = (int32_t)(stride == 0   ? 1
                          : stride == 1 ? p->heads + test_between(random, 1, 20)
                                        : test_between(random, 2, 9));
    x->offset = (int32_t)test_between(random, 0, 3);
    if (test_between(random, 0, 2) == 0)
        x->dense_heads = (int32_t)test_between(random, 0, p->heads);
    if (test_between(random, 0, 2) == 0) x->flags |= TESS_PATTERN_PER_KV_HEAD;
}

static generation draw(uint64_t seed, const test_target *target) {
    uint64_t state = seed * 1234567 + 99, *random = &state;
    generation g = {.keys = 200, .batch = (int32_t)test_between(random, 1, MOST_BATCH)};
    g.p.dtype = (uint32_t)test_between(random, test_kernel_is_named() ? 1 : 0, 2);
    g.p.kv_dtype = (uint32_t)ONE_OF(0, 0, 0, TESS_F8E4M3, TESS_I8);
    g.p.head_dim = target->software ? 8 : (int32_t)ONE_OF(8, 16, 32, 64, 128);
    g.p.kv_heads = (int32_t)test_between(random, 1, 3);
    g.p.heads = g.p.kv_heads * (int32_t)test_between(random, 1, 3);
    g.form.page = (int32_t)ONE_OF(0, 16, 32, 64, 128, 256);
    if (g.form.page > 64) g.keys = 3 * g.form.page / 2;
    draw_pattern(random, &g.p, g.keys);
    g.p.max_tokens = g.keys;
    g.p.max_chunk = test_between(random, 1, 2 * g.p.pattern.block + 1);
    if (test_between(random, 0, 1) || g.p.kv_dtype)
        g.p.flags = TESS_PLAN_BATCH_INVARIANT;
    else
        g.p.kv_split = (int32_t)test_between(random, 0, 3);
    g.form.compact = test_between(random, 0, 3) > 0;
    g.form.steps = 1;
    g.form.head_major = (int)test_between(random, 0, 1);
    g.form.q_len = test_between(random, 0, 1) ? g.keys : g.p.max_chunk;
    g.form.spare = test_between(random, 0, 2);
    if (test_between(random, 0, 2) == 0) { /* one rank of several that share the heads */
        const int32_t ranks = (int32_t)test_between(random, 2, 8);
        g.p.heads_total = ranks * g.p.heads;
        g.p.head_first = (int32_t)test_between(random, 0, ranks - 1) * g.p.heads;
    }
    return g;
}

/* Takes tokens back, as many as max_chunk below the longest that the sequence was, or all. */
static void draw_falls(kv_cache *c, kv_cache *plain, int64_t *longest, uint64_t *random) {
    for (int32_t b = 0; b < c->batch; b++) {
        const int64_t least = longest[b] > c->p->max_chunk ? longest[b] - c->p->max_chunk : 0;
        const int64_t kind = test_between(random, 0, 9);
        if (kind > 2) continue;
        const int64_t left =
            kind == 0 || least > c->lens[b] ? 0 : test_between(random, least, c->lens[b]);
        kv_fall(c, b, left);
        kv_fall(plain, b, left);
        if (left == 0) longest[b] = 0;
    }
}

/* Rows to append: none, one, a chunk, and at first any number. A sequence may be told a length that
 * is none. */
static void draw_rows(kv_cache *c, int first, uint64_t *random, int64_t *rows) {
    const int32_t wrong[] = {-1, INT32_MIN, INT32_MAX, (int32_t)c->keys + 1};
    for (int32_t b = 0; b < c->batch; b++) {
        const int64_t kind = test_between(random, 0, 5), left = c->keys - c->lens[b];
        rows[b] = first       ? test_between(random, 0, c->keys / 2)
                  : kind == 0 ? 0
                  : kind < 3  ? test_between(random, 0, c->p->max_chunk)
                              : 1;
        if (rows[b] > left) rows[b] = left;
        if (first && rows[b] > c->form.q_len) rows[b] = c->form.q_len;
        c->given[b] =
            c->batch > 1 && test_between(random, 0, 9) == 0 ? wrong[test_between(random, 0, 3)] : 0;
    }
}

/* The bits of the same tokens without a cache, or attention in double. */
static void compare(kv_cache *c, kv_cache *plain, const int64_t *rows, const char *what) {
    kv_result got = {0}, wanted = {0};
    kv_attend(c, rows, &got);
    if (c->p->flags & TESS_PLAN_BATCH_INVARIANT) {
        kv_attend(plain, rows, &wanted);
        kv_same(what, &got, 0, &wanted, 0, got.rows, c);
        kv_result_free(&wanted);
    } else {
        int64_t at = 0;
        for (int32_t b = 0; b < c->batch; at += rows[b++])
            kv_check(c, &got, b, at, rows[b], 1, what);
    }
    kv_result_free(&got);
}

static void generate(const test_target *target, uint64_t seed) {
    const generation g = draw(seed, target);
    const kv_form without = {.page = 0};
    uint64_t random = seed * 77 + 5;
    int64_t longest[MOST_BATCH] = {0};
    char what[64];
    kv_cache c, plain;
    if (!kv_open(&c, target, &g.p, &g.form, g.batch, g.keys, seed)) return;
    if (!kv_open(&plain, target, &g.p, &without, g.batch, g.keys, seed)) {
        kv_close(&c);
        return;
    }
    for (int turn = 0; turn < 8; turn++) {
        int64_t rows[MOST_BATCH], last[MOST_BATCH];
        snprintf(what, sizeof what, "generation %d, turn %d", (int)seed, turn);
        draw_falls(&c, &plain, longest, &random);
        draw_rows(&c, turn == 0, &random, rows);
        kv_append(&c, rows);
        for (int32_t b = 0; b < g.batch; b++) {
            if (c.given[b]) rows[b] = 0;
            c.given[b] = 0;
        }
        kv_append(&plain, rows);
        for (int32_t b = 0; b < g.batch; b++) {
            if (c.lens[b] > longest[b]) longest[b] = c.lens[b];
            /* rows whose keys are still there, and how many of them a step may ask for */
            const int64_t deep = c.lens[b] - longest[b] + g.p.max_chunk;
            last[b] = test_between(&random, 0, 1)   ? 1
                      : test_between(&random, 0, 1) ? g.p.max_chunk
                                                    : test_between(&random, 0, g.p.max_chunk);
            if (last[b] > deep) last[b] = deep;
            if (last[b] > c.lens[b]) last[b] = c.lens[b];
        }
        compare(&c, &plain, last, what);
        kv_check_guards(&c, what);
    }
    kv_close(&plain);
    kv_close(&c);
}

static void test_generations(void **state) {
    const test_target *target = *state;
    const int count = 4 * kv_repeats(target->software ? 1 : test_sanitized() ? 3 : 25);
    const uint64_t first = target->software ? 1000 + (uint64_t)target->turn * 100 : 1;
    for (int n = 0; n < count; n++) generate(target, first + (uint64_t)n);
}

/* ------------------------------------------------------------------ every length */

/* One plan of a compact cache replayed from the first token on: every length, so every border of a
 * block, a page, the ring and a part. Sequences end, and others take their place. */
static void replay(const test_target *target, const kv_problem *p, const kv_form *form,
                   int64_t from, int64_t end, int64_t every) {
    enum { BATCH = 3 };
    kv_cache c;
    int64_t all[BATCH] = {from, 0, 0};
    const int64_t none[BATCH] = {0};
    if (!kv_open(&c, target, p, form, BATCH, end, 11)) return;
    kv_append(&c, all);
    while (c.lens[0] < end) {
        int64_t rows[BATCH] = {1, 1, c.lens[0] % 5 == 0};
        kv_result r;
        char what[48];
        if (c.lens[1] == 37) kv_fall(&c, 1, 0);
        if (c.lens[2] == 11) kv_fall(&c, 2, 0);
        kv_append(&c, rows);
        if (c.lens[0] % every != 0) continue;
        kv_attend(&c, rows, &r);
        snprintf(what, sizeof what, "at %d, %d and %d tokens", (int)c.lens[0], (int)c.lens[1],
                 (int)c.lens[2]);
        for (int32_t b = 0, at = 0; b < BATCH; at += (int32_t)rows[b++])
            kv_check(&c, &r, b, at, rows[b], 1, what);
        kv_result_free(&r);
        if (c.lens[0] % 16 == 0) { /* no sequence has rows */
            kv_attend(&c, none, &r);
            kv_result_free(&r);
        }
    }
    kv_close(&c);
}

static void test_every_length(void **state) {
    const test_target *target = *state;
    kv_problem p = {.dtype = TESS_F16, .heads = 4, .kv_heads = 2, .head_dim = 8, .max_chunk = 8};
    p.pattern = test_s2_pattern(8, 2, 5);
    p.pattern.dense_heads = 2;
    p.max_tokens = 4096;
    p.kv_split = 5;
    const kv_form form = {.page = 16, .compact = 1, .steps = 1, .q_len = 8, .max_rows = 16};
    replay(target, &p, &form, 0, target->software || test_sanitized() ? 90 : 300,
           target->software || test_sanitized() ? 9 : 1);
    /* Parts of batch-invariant mode end every 1,024 keys. */
    p.kv_split = 0;
    p.flags = TESS_PLAN_BATCH_INVARIANT;
    for (int64_t border = 1024; border <= (target->software ? 1024 : 3072); border += 1024)
        replay(target, &p, &form, border - 3, border + 4, 1);
}

/* A step that was prepared for earlier lengths computes these, whatever was appended since, as long
 * as the ring has their keys; and a batch that shrinks to one sequence and to none leaves the rows
 * of the others alone. */
static void test_stale(void **state) {
    enum { BATCH = 3 };
    static const int64_t all[BATCH] = {61, 20, 7}, last[BATCH] = {3, 1, 2}, more[BATCH] = {5, 8, 1},
                         one[BATCH] = {2, 0, 0}, none[BATCH] = {0};
    static const int32_t cu_rows[BATCH + 1] = {0, 2};
    const test_target *target = *state;
    kv_problem p = {.dtype = TESS_BF16, .heads = 4, .kv_heads = 2, .head_dim = 8, .max_chunk = 17};
    p.pattern = test_s2_pattern(8, 2, 4);
    p.max_tokens = 512;
    p.kv_split = 2;
    for (int page = 0; page <= 32; page += 16) {
        const kv_form form = {.page = page, .compact = 1, .steps = 1, .q_len = 20};
        kv_cache c;
        kv_result first, stale, shrunk;
        int32_t lens[BATCH];
        if (target->software && page != 16) continue;
        if (!kv_open(&c, target, &p, &form, BATCH, 300, 5)) return;
        kv_append(&c, all);
        kv_attend(&c, last, &first);
        c.by_host = 1; /* no step is prepared */
        kv_append(&c, more);
        c.by_host = 0;
        /* Q follows from the position, which is that of the step. */
        for (int b = 0; b < BATCH; b++) c.lens[b] -= more[b];
        kv_run_step(&c, last, &stale);
        kv_same("a stale step", &first, 0, &stale, 0, first.rows, &c);
        kv_result_free(&stale);
        kv_result_free(&first);
        for (int b = 0; b < BATCH; b++) lens[b] = (int32_t)(c.lens[b] += more[b]);
        kv_prepare(&c, 1, cu_rows, lens);
        kv_run_step(&c, one, &shrunk);
        kv_check(&c, &shrunk, 0, 0, 2, 1, "one sequence is left");
        kv_result_free(&shrunk);
        kv_prepare(&c, 0, cu_rows, lens);
        assert_int_equal(0, c.head[TESS_STEP_JOBS]);
        kv_run_step(&c, none, &shrunk); /* fails if a row is written */
        kv_result_free(&shrunk);
        kv_close(&c);
    }
}

/* ------------------------------------------------------------------ hostile values */

enum { ROWS = 40, Q_LEN = 15, KEYS = 90 };

typedef struct hostile_step {
    int32_t cu_rows[MOST_BATCH + 1], kv_lens[MOST_BATCH], q_first[MOST_BATCH];
} hostile_step;

/* What tess_prepare says that such a step counts as. */
typedef struct legal_step {
    hostile_step step;
    int32_t starts[MOST_BATCH]; /* where the rows of each sequence begin in the hostile step */
    int64_t rows[MOST_BATCH];
    int dirty[MOST_BATCH]; /* appends nothing */
    uint32_t clamped;
} legal_step;

static int32_t hostile_value(uint64_t *random, int32_t most) {
    switch (test_between(random, 0, 9)) {
    case 0: return INT32_MIN;
    case 1: return INT32_MAX;
    case 2: return (int32_t)test_between(random, -most - 3, -1);
    case 3: return most + (int32_t)test_between(random, 0, 3);
    default: return (int32_t)test_between(random, 0, most);
    }
}

static int32_t clamped(int32_t x, int32_t most) { return x < 0 ? 0 : x > most ? most : x; }

static legal_step legal_of(const hostile_step *h, int has_first) {
    legal_step l = {.clamped = h->cu_rows[0] < 0 || h->cu_rows[0] > ROWS};
    int32_t largest = clamped(h->cu_rows[0], ROWS);
    for (int b = 0; b < MOST_BATCH; b++) {
        const int32_t end = clamped(h->cu_rows[b + 1], ROWS), first = largest;
        if (end > largest) largest = end;
        const int32_t rows = clamped(largest - first, Q_LEN), keys = clamped(h->kv_lens[b], KEYS),
                      at = has_first ? clamped(h->q_first[b], KEYS) : keys - rows;
        const int moved = has_first && at != h->q_first[b], other = keys != h->kv_lens[b],
                  cut = h->cu_rows[b + 1] != first + rows;
        l.clamped += (uint32_t)(moved + other + cut);
        l.dirty[b] = moved || other || cut || h->cu_rows[b] != first;
        l.starts[b] = first;
        l.rows[b] = rows;
        l.step.cu_rows[b + 1] = l.step.cu_rows[b] + rows;
        l.step.kv_lens[b] = keys;
        l.step.q_first[b] = at;
    }
    return l;
}

/* A cache of which each sequence holds keys already, and whose table has holes. */
static int open_holed(kv_cache *c, const test_target *target, const kv_problem *p,
                      const kv_form *form, uint64_t seed) {
    int64_t all[MOST_BATCH];
    uint64_t random = seed;
    if (!kv_open(c, target, p, form, MOST_BATCH, KEYS, seed)) return 0;
    for (int b = 0; b < MOST_BATCH; b++) all[b] = KEYS;
    kv_append(c, all); /* names and pages for all that may come */
    for (uint32_t s = 0; s < c->n_storage; s++)
        for (int n = 0; n < 4; n++)
            kv_punch(c, s, (int32_t)test_between(&random, 0, MOST_BATCH - 1),
                     test_between(&random, 0, c->columns - 1));
    return 1;
}

/* The rows of sequences without a right to it go nowhere: their pages are holes while others
 * append. */
static void append_legal(kv_cache *c, const legal_step *l) {
    const uint64_t entries = (uint64_t)(c->n_storage * MOST_BATCH * c->columns);
    int32_t *table = malloc(entries * sizeof *table);
    assert_non_null(table);
    memcpy(table, c->table, entries * sizeof *table);
    for (int b = 0; b < MOST_BATCH; b++)
        for (uint32_t s = 0; s < c->n_storage; s++)
            for (int64_t n = 0; n < c->columns && l->dirty[b]; n++) kv_punch(c, s, b, n);
    kv_append_step(c, l->rows);
    memcpy(c->table, table, entries * sizeof *table);
    kv_punch(c, 0, 0, c->columns - 1); /* in both caches, and the table goes to the device */
    free(table);
}

/* Values out of range make no wild access. The step is the one of the nearest legal values, which
 * it counts, and what it appends and computes is that of them. */
static void hostile(const test_target *target, const kv_problem *p, const kv_form *form,
                    uint64_t seed) {
    uint64_t random = seed * 31 + 7;
    kv_cache bad, good;
    if (!open_holed(&bad, target, p, form, seed)) return;
    assert_true(open_holed(&good, target, p, form, seed));
    for (int turn = 0; turn < (target->software ? 4 : 10); turn++) {
        hostile_step h;
        kv_result got, wanted;
        char what[64];
        h.cu_rows[0] = turn % 3 ? 0 : hostile_value(&random, ROWS);
        for (int b = 0; b < MOST_BATCH; b++) {
            const int64_t next = h.cu_rows[b] + test_between(&random, 0, Q_LEN);
            h.cu_rows[b + 1] = turn % 3 == 1 && next > 0 && next <= ROWS
                                   ? (int32_t)next
                                   : hostile_value(&random, ROWS);
            h.kv_lens[b] = hostile_value(&random, KEYS);
            h.q_first[b] = hostile_value(&random, KEYS);
        }
        const int has_first = turn % 2;
        const legal_step l = legal_of(&h, has_first);
        bad.q_firsts = has_first ? h.q_first : NULL;
        good.q_firsts = has_first ? l.step.q_first : NULL;
        bad.starts = (int32_t *)l.starts;
        snprintf(what, sizeof what, "hostile step %d of cache %d", turn, (int)seed);
        kv_prepare(&bad, MOST_BATCH, h.cu_rows, h.kv_lens);
        kv_prepare(&good, MOST_BATCH, l.step.cu_rows, l.step.kv_lens);
        if (bad.head[TESS_STEP_CLAMPED] != l.clamped || good.head[TESS_STEP_CLAMPED] != 0)
            fail_msg("%s: %u values were clamped, and should be %u", kv_line(&bad, what),
                     bad.head[TESS_STEP_CLAMPED], l.clamped);
        kv_append_step(&bad, l.rows);
        kv_punch(&bad, 0, 0, bad.columns - 1);
        append_legal(&good, &l);
        kv_same_pools(what, &bad, &good);
        kv_run_step(&bad, l.rows, &got);
        kv_run_step(&good, l.rows, &wanted);
        kv_same(what, &got, 0, &wanted, 0, got.rows, &bad);
        kv_check_guards(&bad, what);
        kv_result_free(&got);
        kv_result_free(&wanted);
    }
    kv_close(&good);
    kv_close(&bad);
}

static void test_hostile(void **state) {
    const test_target *target = *state;
    for (int n = 0; n < 6; n++) {
        kv_problem p = {.dtype = n % 2 ? TESS_F16 : TESS_BF16, .heads = 4, .kv_heads = 2};
        p.pattern = test_s2_pattern(8, 2, 3);
        if (n / 2 == 0) p.pattern.kind = TESS_PATTERN_DENSE;
        p.pattern.dense_heads = n / 2 == 2 ? 2 : 0;
        p.head_dim = 8;
        p.max_tokens = 2 * KEYS;
        p.max_chunk = Q_LEN;
        p.kv_dtype = n == 3 ? TESS_F8E4M3 : 0;
        p.flags = TESS_PLAN_BATCH_INVARIANT;
        const kv_form form = {.page = n % 3 ? 16 : 32,
                              .compact = n >= 2,
                              .steps = 1,
                              .q_len = Q_LEN,
                              .max_rows = ROWS,
                              .spare = 1};
        if (target->software && !test_full() && n % 3 != 2 * target->turn % 3) continue;
        hostile(target, &p, &form, (uint64_t)n + 3);
    }
}

int main(int argc, char **argv) {
    static const serving_test all[] = {{"random generations", test_generations},
                                       {"every length", test_every_length},
                                       {"stale steps and smaller batches", test_stale},
                                       {"hostile steps and tables", test_hostile}};
    const int status = serving_main(argc, argv, all, sizeof all / sizeof *all);
    return status ? status : kv_none_opened();
}
