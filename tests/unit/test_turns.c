/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Turns of columns that add to dQ in a fixed order: that the words of thousands of random layouts
 * give every strip an order in which nobody waits for a later column; the protocol itself, with
 * threads; and how long columns wait in the problems that matter, by simulation. With
 * TESSERA_TURNS_TIMES the program prints the latter.
 */
#include "fixtures/column_cases.h"

#include <pthread.h>
#include <stdatomic.h>
#include <tessera/tessera_turns.h>

/* ------------------------------------------------------------------ all strips of a plan */

/* Where the words of a sequence's strips begin. */
static uint64_t strips_before(const instance *c, uint32_t sequence) {
    uint64_t strips = 0;
    for (uint32_t s = 0; s < sequence; s++)
        strips += ((uint64_t)c->b.sequences[s].q_len + c->step_rows - 1) / c->step_rows;
    return strips * (uint64_t)c->b.x.layout.n_heads;
}

typedef struct visit {
    uint64_t word; /* of the strip and the query head */
    uint32_t wait;
    uint64_t steps; /* rows times key blocks */
} visit;

typedef struct visitor {
    const instance *c;
    uint64_t column;
    uint64_t base; /* of the sequence's words */
    uint32_t segment, head, strip;
} visitor;

static visitor visit_column(const instance *c, uint64_t column) {
    return (visitor){.c = c, .column = column, .base = strips_before(c, c->out[column].sequence)};
}

/* The next strip of the column, as a kernel walks them; false after the last. */
static bool next_visit(visitor *v, visit *out) {
    const instance *c = v->c;
    const tess_column *column = &c->out[v->column];
    while (v->segment < column->segments) {
        const tess_segment *s = &c->segments[column->segment + v->segment];
        const tess_turn turn = tess_turn_of(s, c->step_rows);
        if (v->strip < turn.strips) {
            const uint32_t strip =
                turn.first + (turn.upward ? v->strip : turn.strips - 1 - v->strip);
            out->word =
                v->base + (uint64_t)strip * (uint64_t)c->b.x.layout.n_heads + s->head + v->head;
            out->wait = turn.wait;
            out->steps = (uint64_t)tess_turn_rows_at(s, c->step_rows, v->strip).rows * s->blocks;
            if (++v->head == s->heads) {
                v->head = 0;
                v->strip++;
            }
            return true;
        }
        v->segment++;
        v->strip = 0;
    }
    return false;
}

static uint32_t leave_of(const instance *c, uint32_t column) {
    const uint32_t parts = c->columns.n_cut > 0 ? c->columns.parts : 1;
    return tess_turn_leave(tess_turn_column(column, (uint32_t)c->columns.n_cut, parts));
}

/* In the order of the table, every column finds the word that it is to wait for. */
static uint64_t check_turns(const instance *c) {
    const uint64_t words = strips_before(c, c->b.n_sequences);
    const tess_tables tables = {.classes = c->b.classes, .segments = c->segments};
    uint32_t *word = calloc(words + 1, sizeof *word);
    uint64_t waits = 0;
    assert_non_null(word);
    for (uint64_t n = 0; n < c->n_columns; n++) {
        uint64_t steps = 0;
        visit at;
        for (visitor v = visit_column(c, n); next_visit(&v, &at);) {
            steps += at.steps;
            assert_true(at.word < words);
            if (at.wait > n)
                FAIL(&c->b, "column %llu waits for %u", (unsigned long long)n, at.wait);
            if (word[at.word] != at.wait)
                FAIL(&c->b, "column %llu waits for %u, where %u was last", (unsigned long long)n,
                     at.wait, word[at.word]);
            word[at.word] = leave_of(c, (uint32_t)n);
            waits += at.wait != 0;
        }
        assert_int_equal(steps,
                         tess_column_steps(&tables, &c->out[n], block_size(&c->b.x), 1, true));
    }
    free(word);
    return waits;
}

static void test_order_of_random_layouts(void **state) {
    (void)state;
    uint64_t seed = 151, waits = 0, columns = 0, segments = 0, without = 0;
    for (int n = 0; n < 4000; n++) {
        instance c;
        instance_random(&c, &seed, test_between(&seed, 0, 3) ? 90 : 400);
        c.turns = tess_columns_turns(c.b.layout);
        if (test_between(&seed, 0, 1)) c.step_rows = (uint32_t)block_size(&c.b.x);
        instance_plan(&c);
        if (c.turns) {
            waits += check_turns(&c);
            columns += c.n_columns;
            segments += c.n_segments;
        }
        without += !c.turns;
        instance_free(&c);
    }
    assert_true(waits > 100000 && columns > 50000 && without > 100 && without < 3000);
    assert_true(segments > columns / 2);
}

/* Columns that repeat the one before. Every sixteenth of small sequences is made without a walk
 * over its rows, and most of a long one. */
static void test_order_of_repeated_columns(void **state) {
    (void)state;
    uint64_t seed = 157, columns = 0, repeated = 0;
    for (int n = 0; n < 1500; n++) {
        instance c;
        instance_repeating(&c, &seed, 600);
        instance_plan(&c);
        (void)check_turns(&c);
        columns += c.columns.n_columns;
        repeated += c.columns.n_repeated;
        instance_free(&c);
    }
    assert_true(columns > 50000);
    assert_true(repeated > columns / 16);
    instance c;
    known(&c, s2_pattern(64, 8, 64, 0), 1, 1, 32768, true, 0);
    assert_true(c.columns.n_repeated > c.n_columns / 2);
    instance_free(&c);
}

/* ------------------------------------------------------------------ with threads */

typedef struct shared {
    const instance *c;
    _Atomic uint32_t *word;
    float *sum;
    atomic_uint next;
    atomic_uint delays; /* seed */
} shared;

static float addend(uint64_t column, uint64_t word) {
    uint64_t seed = column * 7919 + word;
    return (float)test_between(&seed, -1000000, 1000000) * 1e-3f;
}

static void add_column_of(shared *x, uint32_t n, uint64_t *seed) {
    visit at;
    for (visitor v = visit_column(x->c, n); next_visit(&v, &at);) {
        while (atomic_load_explicit(&x->word[at.word], memory_order_acquire) != at.wait)
            sched_yield();
        if (test_between(seed, 0, 40) == 0) sched_yield();
        x->sum[at.word] += addend(n, at.word);
        atomic_store_explicit(&x->word[at.word], leave_of(x->c, n), memory_order_release);
    }
}

static void *add_columns(void *context) {
    shared *x = context;
    uint64_t seed = atomic_fetch_add(&x->delays, 1);
    for (uint32_t n; (n = atomic_fetch_add(&x->next, 1)) < x->c->n_columns;)
        add_column_of(x, n, &seed);
    return NULL;
}

/* Sums have the same bits with one thread and with several that take columns from a counter. */
static void test_threads(void **state) {
    (void)state;
    enum { MOST = 6 };
    uint64_t seed = 152;
    for (int n = 0; n < 60; n++) {
        instance c;
        instance_random(&c, &seed, 300);
        c.turns = tess_columns_turns(c.b.layout);
        instance_plan(&c);
        const uint64_t words = strips_before(&c, c.b.n_sequences);
        float *expected = NULL;
        for (int threads = 1; c.turns && threads <= MOST; threads += MOST - 1) {
            pthread_t thread[MOST];
            shared x = {.c = &c, .delays = (uint32_t)n};
            x.word = calloc(words + 1, sizeof *x.word);
            x.sum = calloc(words + 1, sizeof *x.sum);
            assert_true(x.word && x.sum);
            for (int t = 0; t < threads; t++)
                assert_int_equal(0, pthread_create(&thread[t], NULL, add_columns, &x));
            for (int t = 0; t < threads; t++) pthread_join(thread[t], NULL);
            free((void *)x.word);
            if (expected) assert_memory_equal(expected, x.sum, words * sizeof *x.sum);
            free(expected);
            expected = x.sum;
        }
        free(expected);
        instance_free(&c);
    }
}

/* ------------------------------------------------------------------ how long columns wait */

enum {
    WORKERS = 132,
    /* thousandths of a step of one strip */
    STEP = 1000,
    COLUMN = 3000, /* the beginning and the end of a column */
    SIGNAL = 1000  /* from one addition to when the next one is allowed */
};

/*
 * The time that WORKERS workgroups take that go through the columns in order. As all waits are for
 * columns before, one pass over the table is enough. A step's time varies by a tenth.
 */
static double simulate(const instance *c, bool turns, double *waited) {
    double worker[WORKERS] = {0}, end = 0;
    double *left = calloc(strips_before(c, 1) + 1, sizeof *left);
    uint64_t seed = 9;
    assert_non_null(left);
    *waited = 0;
    for (uint64_t n = 0; n < c->n_columns; n++) {
        const double step = STEP + (double)test_between(&seed, -STEP / 20, STEP / 20);
        int next = 0;
        visit at;
        for (int w = 1; w < WORKERS; w++)
            if (worker[w] < worker[next]) next = w;
        double time = worker[next] + COLUMN;
        for (visitor v = visit_column(c, n); next_visit(&v, &at);) {
            time += step;
            if (!turns) continue;
            if (at.wait != 0 && left[at.word] + SIGNAL > time) {
                *waited += left[at.word] + SIGNAL - time;
                time = left[at.word] + SIGNAL;
            }
            left[at.word] = time;
        }
        worker[next] = time;
        if (time > end) end = time;
    }
    free(left);
    return end;
}

typedef struct problem {
    const char *name;
    int32_t tokens, heads, kv_heads;
    double most; /* of the time without waiting, in the order of columns without turns */
    tess_pattern pattern;
} problem;

#define PATTERN(which, size, ...)                                                         \
    {                                                                                     \
        .struct_size = sizeof(tess_pattern), .kind = TESS_PATTERN_##which, .block = size, \
        __VA_ARGS__                                                                       \
    }

#define S2(block, near, far, tokens, heads, kv_heads, most)                                   \
    {                                                                                         \
        "S2 B=" #block " L=" #near " V=" #far ", " #tokens " tokens, " #heads " / " #kv_heads \
        " heads",                                                                             \
            tokens, heads, kv_heads, most, PATTERN(S2, block, .local = near, .stride = far)   \
    }

static const problem problems[] = {
    {"dense 16k, 32 heads", 16384, 32, 32, 1.05, PATTERN(DENSE, 64, .flags = 0)},
    {"dense 16k, 16 heads", 16384, 16, 16, 1.05, PATTERN(DENSE, 64, .flags = 0)},
    {"dense 16k, 32 heads, not causal", 16384, 32, 32, 1.05,
     PATTERN(DENSE, 64, .flags = TESS_PATTERN_BIDIRECTIONAL)},
    {"dense 8k, 32 / 8 heads", 8192, 32, 8, 1.1, PATTERN(DENSE, 64, .flags = 0)},
    S2(64, 8, 16, 131072, 16, 16, 1.05),
    S2(64, 8, 32, 131072, 32, 32, 1.05),
    S2(64, 8, 64, 131072, 64, 64, 1.05),
    S2(16, 32, 16, 131072, 16, 16, 1.05),
    S2(256, 2, 16, 131072, 16, 16, 1.05),
    S2(64, 8, 16, 16384, 16, 16, 1.1),
    S2(64, 16, 8, 8192, 32, 8, 1.1),
    S2(64, 16, 8, 131072, 32, 8, 1.05),
    S2(64, 8, 32, 32768, 32, 2, 1.1),
    {"window 1024 32k, 16 heads", 32768, 16, 16, 1.05, PATTERN(WINDOW, 64, .left = 1023)},
    {"window 1024, 4 sinks, 32k, 16 heads", 32768, 16, 16, 1.05,
     PATTERN(WINDOW, 64, .left = 1023, .sinks = 4)},
};

/* The time that a problem takes; *segments of a column, and *waited. Sections have so many kv
 * heads; 0: there is one. */
static double time_of(const problem *p, bool turns, int32_t kv_heads, bool waits, double *segments,
                      double *waited) {
    instance c;
    known(&c, p->pattern, p->heads, p->kv_heads, p->tokens, turns,
          (uint64_t)kv_heads * (uint64_t)p->tokens * (uint64_t)(p->heads / p->kv_heads));
    const double time = simulate(&c, waits, waited);
    *segments = (double)c.n_segments / (double)c.n_columns;
    instance_free(&c);
    return time;
}

/* How many kv heads core/backward.c puts into a section, of a cache that is not large. */
static int32_t section_of(const problem *p) {
    const int32_t strips = p->tokens / 64, patterns = p->pattern.local ? p->heads / p->kv_heads : 1,
                  wanted = (strips / 16 < 64 ? strips / 16 : 64) / patterns,
                  columns = wanted < 8 ? 8 : wanted;
    instance c;
    known(&c, p->pattern, p->heads, p->kv_heads, p->tokens, true, 0);
    const bool few = tess_columns_far(&c.columns) <= (uint64_t)columns;
    instance_free(&c);
    return few ? 1 : WORKERS / columns + 1;
}

static void run_problem(const problem *p, bool print) {
    double segments, waited;
    const int32_t section = section_of(p);
    const double longest = time_of(p, false, 0, false, &segments, &waited),
                 small = time_of(p, false, 1, false, &segments, &waited) / longest,
                 order = time_of(p, true, section, false, &segments, &waited) / longest,
                 turns = time_of(p, true, section, true, &segments, &waited) / longest;
    if (print)
        printf("%-36s sections of a head %.3f of the time; with turns %.3f segments a column, "
               "order %.3f, %.3f of the time, waiting %.1f %%\n",
               p->name, small, segments, order, turns, 100 * waited / WORKERS / (turns * longest));
    if (turns > p->most || small > 1.06) {
        print_error("%s: %.3f of the time, in small sections %.3f\n", p->name, turns, small);
        fail();
    }
}

static void test_waiting(void **state) {
    (void)state;
    for (size_t n = 0; n < sizeof problems / sizeof *problems; n++)
        run_problem(&problems[n], getenv("TESSERA_TURNS_TIMES") != NULL);
}

int main(void) {
    return RUN_TESTS_BETWEEN(runtime_setup, runtime_teardown, TEST(test_order_of_random_layouts),
                             TEST(test_order_of_repeated_columns), TEST(test_threads),
                             TEST(test_waiting));
}
