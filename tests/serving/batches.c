/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One batch over a KV cache in every form, on every device: attention in double, equal bits in
 * batch-invariant mode whatever the form and the other sequences, repeats of a step, and merges of
 * 1 to 256 parts within a plan.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kv_cache.h"

enum { MOST_BATCH = 8 };

static const int32_t pages[] = {0, 16, 32, 64, 128, 256};
enum { PAGES = sizeof pages / sizeof *pages };

/* What is left out is filled in below. */
#define DENSE  .pattern = {.kind = TESS_PATTERN_DENSE, .block = 16}
#define SPARSE .pattern = {.kind = TESS_PATTERN_S2, .block = 16, .local = 3, .stride = 4}
#define MIXED \
    .pattern = {.kind = TESS_PATTERN_S2, .block = 16, .local = 2, .stride = 5, .dense_heads = 2}
#define WINDOW .pattern = {.kind = TESS_PATTERN_WINDOW, .block = 16, .left = 700, .sinks = 20}

static kv_problem problem_of(kv_problem p) {
    p.pattern.struct_size = sizeof p.pattern;
    if (!p.heads) p.heads = 4;
    if (!p.kv_heads) p.kv_heads = 2;
    if (!p.head_dim) p.head_dim = 8;
    if (!p.max_tokens) p.max_tokens = 4096;
    if (!p.max_chunk) p.max_chunk = 64;
    return p;
}

static int has_slots(const kv_problem *p) { return p->pattern.kind != TESS_PATTERN_DENSE; }

/* TESSERA_TEST_REPEATS, or as given here. */
static int repeats_of(const test_target *target, int elsewhere, int of_software) {
    return kv_repeats(target->software   ? of_software
                      : test_sanitized() ? (elsewhere + 7) / 8
                                         : elsewhere);
}

/* Kernels of software devices are compiled for each type and range of head_dim: types of others
 * are left to them. */
static int is_left_out(const test_target *target, const kv_problem *p, int n) {
    return (target->software && !test_full() && (n + target->turn) % 2) ||
           (p->dtype == TESS_F32 && test_kernel_is_named());
}

/* ------------------------------------------------------------------ every form */

/* 8 bits with slots, storage groups and pages of every size, scales of rows and of heads: appended
 * at once, by a plan or a step, and compared with attention in double. */
static void test_forms(void **state) {
    static const kv_problem listed[] = {
        {MIXED, .dtype = TESS_BF16, .kv_dtype = TESS_F8E4M3},
        {WINDOW, .dtype = TESS_F32, .kv_dtype = TESS_I8},
        {SPARSE, .dtype = TESS_F16, .kv_dtype = TESS_I8},
        {DENSE, .dtype = TESS_F16, .kv_dtype = TESS_F8E4M3},
        {MIXED, .dtype = TESS_F32},
    };
    static const int64_t all[3] = {150, 0, 333}, last[3] = {2, 0, 9};
    const test_target *target = *state;
    for (int n = 0; n < (int)(sizeof listed / sizeof *listed); n++) {
        const kv_problem p = problem_of(listed[n]);
        if (is_left_out(target, &p, n)) continue;
        for (int i = 0; i < PAGES * 4; i++) {
            const kv_form form = {.page = pages[i % PAGES],
                                  .compact = has_slots(&p) && (i + i / PAGES) % 3 != 0,
                                  .steps = i / PAGES % 2,
                                  .is_static = p.kv_dtype && i / PAGES / 2,
                                  .head_major = i % 2,
                                  .q_len = 400,
                                  .spare = i % 3};
            kv_cache c;
            kv_result r;
            if (!test_full() && i % (target->software || test_sanitized() ? 8 : 4) != n % 4)
                continue;
            if (!kv_open(&c, target, &p, &form, 3, 400, (uint64_t)i)) continue;
            kv_append(&c, all);
            kv_attend(&c, last, &r);
            kv_check(&c, &r, 0, 0, 2, 1, "every form");
            kv_check(&c, &r, 2, 2, 9, 8, "every form");
            kv_result_free(&r);
            kv_close(&c);
        }
    }
}

/* ------------------------------------------------------------------ bits */

/* The sequence that is looked at, and what else is in its batch. */
typedef struct company {
    int32_t batch, own; /* how many sequences, and which of them it is */
    int64_t rows[MOST_BATCH], lens[MOST_BATCH];
} company;

enum { OWN_SEED = 1000003, MOST_KEYS = 3000 };

static kv_result attend_in(const test_target *target, const kv_problem *p, const kv_form *form,
                           const company *x, uint64_t seed, int *refused) {
    kv_cache c;
    kv_result r = {0};
    int64_t most = 0;
    for (int32_t b = 0; b < x->batch; b++)
        if (x->lens[b] > most) most = x->lens[b];
    if (form->steps && seed % 2) most = MOST_KEYS + 200;
    *refused = !kv_open(&c, target, p, form, x->batch, most, seed);
    if (*refused) return r;
    for (int32_t b = 0; b < x->batch; b++)
        c.seeds[b] = (uint32_t)(seed * 131 + (uint64_t)b * 7 + 1);
    c.seeds[x->own] = OWN_SEED;
    kv_append(&c, x->lens);
    kv_attend(&c, x->rows, &r);
    kv_close(&c);
    return r;
}

/* Any form, any other sequences, any capacities; the sequence is anywhere among them. */
static void draw(const kv_problem *p, uint64_t *random, kv_form *form, company *x, int64_t rows,
                 int64_t keys) {
    *form = (kv_form){.page = pages[test_between(random, 0, PAGES - 1)],
                      .compact = has_slots(p) && test_between(random, 0, 2) > 0,
                      .steps = (int)test_between(random, 0, 1),
                      .head_major = (int)test_between(random, 0, 1),
                      .spare = test_between(random, 0, 3)};
    x->batch = (int32_t)test_between(random, 1, MOST_BATCH);
    x->own = (int32_t)test_between(random, 0, x->batch - 1);
    int64_t most = rows, all = 0;
    for (int32_t b = 0; b < x->batch; b++) {
        const int64_t kind = test_between(random, 0, 3);
        x->rows[b] = kind == 0 ? test_between(random, 0, 40) : kind == 1 ? 0 : 1;
        x->lens[b] = test_between(random, 0, kind == 2 ? 1500 : 300);
        if (b == x->own) {
            x->rows[b] = rows;
            x->lens[b] = keys;
        }
        if (x->rows[b] > x->lens[b]) x->rows[b] = x->lens[b];
        if (x->rows[b] > most) most = x->rows[b];
        all += x->rows[b];
    }
    form->q_len = most + test_between(random, 0, 1) * test_between(random, 0, 200);
    form->max_rows = test_between(random, 0, 1) ? all : 0;
}

/* Bits of a sequence in batch-invariant mode are those of it alone, contiguous, with a plan that
 * knows its lengths: in 50 random batches where tests repeat 100 times. */
static void test_same_bits(void **state) {
    static const kv_problem listed[] = {
        {DENSE, .dtype = TESS_BF16},
        {SPARSE, .dtype = TESS_F32},
        {MIXED, .dtype = TESS_F16},
        {MIXED, .dtype = TESS_BF16, .kv_dtype = TESS_F8E4M3},
        {WINDOW, .dtype = TESS_F16, .kv_dtype = TESS_I8},
        {DENSE, .dtype = TESS_BF16, .head_dim = 64, .heads = 8},
        {SPARSE, .dtype = TESS_F16, .head_dim = 128, .heads = 8},
    };
    /* several parts, and one */
    static const int64_t lengths[][2] = {{1, 2600}, {5, 1025}, {40, 2900}, {16, 700}};
    enum { LENGTHS = sizeof lengths / sizeof *lengths };
    const test_target *target = *state;
    const int draws = repeats_of(target, 8, 2);
    for (int n = 0; n < (int)(sizeof listed / sizeof *listed); n++) {
        kv_problem p = problem_of(listed[n]);
        uint64_t random = (uint64_t)n + 5;
        p.flags = TESS_PLAN_BATCH_INVARIANT;
        if (is_left_out(target, &p, n) || (target->software && p.head_dim > 8)) continue;
        for (int i = 0; i < LENGTHS; i++) {
            const int64_t rows = lengths[i][0], keys = lengths[i][1];
            const kv_form plain = {.page = 0};
            const company alone = {.batch = 1, .rows = {rows}, .lens = {keys}};
            kv_cache line = {.p = &p};
            int refused;
            if (target->software && i != n % LENGTHS) continue;
            kv_result wanted = attend_in(target, &p, &plain, &alone, 0, &refused);
            for (int k = 0; k < draws / 2 && !refused; k++) {
                kv_form form;
                company x;
                draw(&p, &random, &form, &x, rows, keys);
                line.form = form;
                line.batch = x.batch;
                kv_result got = attend_in(target, &p, &form, &x, (uint64_t)k + 1, &refused);
                int64_t at = 0;
                char what[96];
                for (int32_t b = 0; b < x.own; b++) at += x.rows[b];
                snprintf(what, sizeof what, "draw %d, %d rows on %d keys, sequence %d of %d", k,
                         (int)rows, (int)keys, (int)x.own, (int)x.batch);
                if (!refused) kv_same(what, &wanted, 0, &got, at, rows, &line);
                kv_result_free(&got);
                refused = 0;
            }
            kv_result_free(&wanted);
        }
    }
}

/* The same step, prepared and run again and again. */
static void test_repeats(void **state) {
    static const kv_problem listed[] = {
        {MIXED, .dtype = TESS_BF16},
        {DENSE, .dtype = TESS_F16, .kv_split = 5},
        {SPARSE, .dtype = TESS_F16, .kv_dtype = TESS_F8E4M3},
        {DENSE, .dtype = TESS_BF16, .head_dim = 64, .heads = 8},
    };
    static const int64_t all[5] = {1300, 3, 200, 64, 500}, last[5] = {1, 1, 33, 16, 5};
    const test_target *target = *state;
    for (int n = 0; n < (int)(sizeof listed / sizeof *listed); n++) {
        const kv_problem p = problem_of(listed[n]);
        const kv_form form = {.page = n % 2 ? 16 : 64,
                              .compact = has_slots(&p),
                              .steps = 1,
                              .q_len = 40,
                              .max_rows = 100};
        kv_cache c;
        kv_result first, again;
        if (is_left_out(target, &p, n) || (target->software && p.head_dim > 8)) continue;
        if (!kv_open(&c, target, &p, &form, 5, 2000, 3)) continue;
        kv_append(&c, all);
        kv_attend(&c, last, &first);
        for (int k = 1; k < repeats_of(target, 100, 4); k++) {
            if (k % 2)
                kv_attend(&c, last, &again);
            else
                kv_run_step(&c, last, &again);
            kv_same("a repeat", &first, 0, &again, 0, first.rows, &c);
            kv_result_free(&again);
        }
        kv_check(&c, &first, 0, 0, 1, 1, "the first time");
        kv_result_free(&first);
        kv_close(&c);
    }
}

/* ------------------------------------------------------------------ merges */

/* Plans that cut keys into so many parts, which have scores 80 apart in turn. Parts of a sequence
 * are empty, at random, all or all but one: their pages are holes. */
static void merge(const test_target *target, const kv_problem *p, int parts, int steps) {
    enum { BATCH = 4, PAGE = 16 };
    const int64_t keys = parts < 64 ? 64 * parts + 5 : 16 * parts + 5,
                  columns = (keys + PAGE - 1) / PAGE;
    const int64_t all[BATCH] = {keys, keys, keys, keys}, last[BATCH] = {2, 1, 1, 2};
    const kv_form form = {.page = PAGE, .steps = steps, .q_len = 4};
    char what[48];
    kv_cache c;
    kv_result r;
    uint64_t random = (uint64_t)parts;
    if (!kv_open(&c, target, p, &form, BATCH, keys, 9)) return;
    kv_append(&c, all);
    for (int64_t n = 0; n < columns; n++) {
        if (test_between(&random, 0, 1)) kv_punch(&c, 0, 1, n);
        kv_punch(&c, 0, 2, n);
        if (n != columns / 2) kv_punch(&c, 0, 3, n);
    }
    kv_attend(&c, last, &r);
    snprintf(what, sizeof what, "%d parts", parts);
    const uint64_t jobs = steps ? c.head[TESS_STEP_JOBS] : c.info.n_jobs - c.info.n_merge_jobs,
                   merges = steps ? c.head[TESS_STEP_MERGES] : c.info.n_merge_jobs;
    if (merges != (parts > 1 ? jobs / (uint64_t)parts : 0) || jobs % (uint64_t)parts)
        fail_msg("%s: there are %u jobs and %u merges", kv_line(&c, what), (unsigned)jobs,
                 (unsigned)merges);
    for (int32_t b = 0, at = 0; b < BATCH; at += (int32_t)last[b++])
        kv_check(&c, &r, b, at, last[b], 1, what);
    kv_result_free(&r);
    kv_close(&c);
}

static void test_merges(void **state) {
    static const int counts[] = {1, 2, 33, 256};
    const test_target *target = *state;
    for (int n = 0; n < 4; n++)
        for (int steps = 0; steps < 2; steps++) {
            kv_problem p = problem_of((kv_problem){DENSE});
            p.dtype = n % 2 ? TESS_F16 : TESS_F32;
            p.heads = p.kv_heads = 1 + n % 2;
            p.max_tokens = 8192;
            p.kv_split = counts[n];
            p.rise = counts[n] < 64 ? 64 : 16;
            if (target->software && (n + steps + target->turn) % 2) continue;
            if (p.dtype == TESS_F32 && test_kernel_is_named()) continue;
            merge(target, &p, counts[n], steps);
        }
}

/* More merges of a step than workgroups that run at a time, which take one after the other. */
static void test_many_merges(void **state) {
    enum { ROWS = 64, KEYS = 300 };
    const test_target *target = *state;
    kv_problem p = problem_of((kv_problem){DENSE, .dtype = TESS_F16});
    const kv_form form = {.page = 16, .steps = 1, .q_len = ROWS};
    int64_t all[MOST_BATCH], last[MOST_BATCH];
    kv_cache c;
    kv_result r;
    if (target->software && !test_full()) return;
    p.heads = p.kv_heads = KV_MOST_HEADS;
    p.max_chunk = ROWS;
    p.kv_split = 2;
    for (int b = 0; b < MOST_BATCH; b++) {
        all[b] = KEYS - 7 * b;
        last[b] = ROWS - b % 3;
    }
    if (!kv_open(&c, target, &p, &form, MOST_BATCH, KEYS, 21)) return;
    kv_append(&c, all);
    kv_attend(&c, last, &r);
    for (int b = 0, at = 0; b < MOST_BATCH; at += (int)last[b++])
        kv_check(&c, &r, b, at, last[b], 9, "many merges");
    kv_result_free(&r);
    kv_close(&c);
}

/* ------------------------------------------------------------------ unequal lengths */

/* Sequences without keys or rows beside one of 131,072 keys, before and behind it. */
static void test_none_beside_many(void **state) {
    static const kv_problem listed[] = {{DENSE, .dtype = TESS_F32}, {SPARSE, .dtype = TESS_F32}};
    static const int64_t all[5] = {0, 131072, 1, 0, 40}, last[5] = {0, 1, 1, 0, 0};
    const test_target *target = *state;
    for (int n = 0; n < 2; n++) {
        kv_problem p = problem_of(listed[n]);
        p.max_tokens = all[1];
        if (target->software && !test_full()) continue; /* writes so many keys slowly */
        if (is_left_out(target, &p, n)) continue;
        for (int steps = 0; steps < 2; steps++) {
            const kv_form form = {.page = 64, .compact = n, .steps = steps, .q_len = 1};
            kv_cache c;
            kv_result r;
            if (!kv_open(&c, target, &p, &form, 5, all[1], 7)) continue;
            kv_append(&c, all);
            kv_attend(&c, last, &r);
            kv_check(&c, &r, 1, 0, 1, 1, "none beside many");
            kv_check(&c, &r, 2, 1, 1, 1, "none beside many");
            kv_result_free(&r);
            kv_close(&c);
        }
    }
}

int main(int argc, char **argv) {
    static const serving_test all[] = {{"every form", test_forms},
                                       {"bits in any batch and form", test_same_bits},
                                       {"repeats of a step", test_repeats},
                                       {"merges of 1 to 256 parts", test_merges},
                                       {"many merges of a step", test_many_merges},
                                       {"none beside many", test_none_beside_many}};
    const int status = serving_main(argc, argv, all, sizeof all / sizeof *all);
    return status ? status : kv_none_opened();
}
