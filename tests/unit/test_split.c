/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether keys are split: the bounds of the rule against a simulation of its model, which takes the
 * plan's jobs one by one and gives each to the worker that is free first.
 */
#include "fixtures/h200.h"
#include "fixtures/planner.h"

enum { ROWS = 128, MOST_SEQUENCES = 2 * UNITS + 1, MOST_CANDIDATES = 1 + 240 + 256 };

/* ------------------------------------------------------------------ the second reckoning */

static double longest_first(const tess_job *jobs, uint64_t n, const tess_split_model *m) {
    double *busy = calloc(m->costs.workers, sizeof *busy), last = 0;
    assert_non_null(busy);
    for (uint64_t j = 0; j < n; j++) {
        uint32_t free_first = 0;
        for (uint32_t w = 1; w < m->costs.workers; w++)
            if (busy[w] < busy[free_first]) free_first = w;
        if (j > 0) assert_true(tess_job_blocks(&jobs[j]) <= tess_job_blocks(&jobs[j - 1]));
        uint64_t steps =
            (tess_job_blocks(&jobs[j]) * m->block + m->costs.step_keys - 1) / m->costs.step_keys;
        busy[free_first] += m->costs.job_ns + (double)steps * m->costs.step_ns;
        if (busy[free_first] > last) last = busy[free_first];
    }
    free(busy);
    return last;
}

typedef struct batch {
    const tess_layout *layout;
    tess_sequence sequences[MOST_SEQUENCES];
    uint32_t n;
} batch;

/* What a run with parts of `length` key blocks takes. */
static double reckon(const batch *b, const tess_split_model *m, uint32_t length, uint64_t *n_jobs) {
    tess_jobs jobs;
    assert_int_equal(TESS_OK,
                     tess_jobs_create(&jobs, runtime, b->layout, b->sequences, b->n, ROWS, ROWS));
    jobs.split.length = length;
    assert_int_equal(TESS_OK, tess_jobs_count(&jobs));
    tess_job *out = malloc((jobs.n_jobs + 1) * sizeof *out);
    tess_merge *merges = malloc((jobs.n_merges + 1) * sizeof *merges);
    assert_true(out && merges);
    tess_jobs_place(&jobs, out, merges);
    double ns = longest_first(out, jobs.n_jobs, m), read_ns = 0, partial_bytes = 0, keys = 0;
    uint32_t most_parts = 0;
    for (uint32_t s = 0; s < b->n; s++)
        keys += b->sequences[s].q_len ? (b->sequences[s].kv_len + m->block - 1) / m->block : 0;
    if (m->costs.bandwidth)
        read_ns = 1e3 * keys * b->layout->n_kv_heads * (double)m->block_bytes / m->costs.bandwidth;
    if (read_ns > ns) ns = read_ns;
    for (uint64_t j = 0; j < jobs.n_jobs; j++)
        if (out[j].partial != TESS_NO_PARTIAL)
            partial_bytes += (double)(out[j].rows * out[j].heads) * (double)m->row_bytes;
    for (uint64_t n = 0; n < jobs.n_merges; n++)
        if (merges[n].parts > most_parts) most_parts = merges[n].parts;
    if (jobs.n_merges)
        ns += m->costs.merge_ns + (double)most_parts * m->costs.part_ns +
              (m->costs.partial_bandwidth ? 2e3 * partial_bytes / m->costs.partial_bandwidth : 0);
    *n_jobs = jobs.n_jobs;
    free(out);
    free(merges);
    tess_jobs_release(&jobs);
    return ns;
}

static tess_split_choice choose(const batch *b, const tess_split_model *m, int32_t kv_split,
                                bool invariant, tess_split *split) {
    tess_jobs jobs;
    tess_split_choice choice;
    assert_int_equal(TESS_OK,
                     tess_jobs_create(&jobs, runtime, b->layout, b->sequences, b->n, ROWS, ROWS));
    assert_int_equal(TESS_OK, tess_split_count(m, kv_split, invariant, &jobs, &choice));
    *split = jobs.split;
    tess_jobs_release(&jobs);
    return choice;
}

/* The time of reading 64 key blocks is rounded. */
#define ROUNDED 1.005

/* Returns the number of jobs, parts included. */
static uint64_t check(const batch *b, const tess_split_model *m, tess_split_choice *out) {
    tess_split split;
    uint64_t n_jobs, n_parts;
    tess_split_choice choice = choose(b, m, 0, false, &split);
    double unsplit = reckon(b, m, 0, &n_jobs), chosen = reckon(b, m, choice.length, &n_parts);
    assert_in_range(choice.candidates, 1, MOST_CANDIDATES);
    assert_int_equal(choice.length, split.length);
    assert_true(!split.fixed && split.max_parts == 0);
    if (choice.unsplit_ns > unsplit * ROUNDED)
        fail_msg("unsplit %.1f ns, the rule says %.1f at least", unsplit, choice.unsplit_ns);
    if (choice.length && choice.ns * ROUNDED < chosen)
        fail_msg("parts of %u: %.1f ns, the rule says %.1f at most", choice.length, chosen,
                 choice.ns);
    if (chosen > unsplit)
        fail_msg("parts of %u blocks take %.1f ns, none %.1f", choice.length, chosen, unsplit);
    if (choice.length) assert_true(chosen < unsplit && n_parts > n_jobs);
    if (out) *out = choice;
    return n_parts;
}

static tess_layout *dense(int32_t heads, int32_t kv_heads) {
    tess_pattern pattern = {
        .struct_size = sizeof pattern, .kind = TESS_PATTERN_DENSE, .block = BLOCK};
    return make_layout(runtime, &pattern, heads, kv_heads, 1 << 21);
}

static tess_sequence lengths_of(int32_t q_len, int32_t kv_len) {
    return (tess_sequence){.q_len = q_len, .kv_len = kv_len, .q_first = kv_len - q_len};
}

static void one_sequence(batch *b, int32_t q_len, int32_t kv_len) {
    memset(b->sequences, 0, sizeof b->sequences);
    b->n = 1;
    b->sequences[0] = lengths_of(q_len, kv_len);
}

/* ------------------------------------------------------------------ the tests */

/* One job each of `n` sequences, around one wave and two. */
static void test_counts_around_a_wave(void **state) {
    (void)state;
    static const uint32_t counts[] = {
        1, 2, 8, 66, UNITS - 1, UNITS, UNITS + 1, 2 * UNITS - 1, 2 * UNITS, 2 * UNITS + 1};
    tess_layout *layout = dense(1, 1);
    static batch b;
    uint64_t seed = 5, split = 0, unsplit = 0;
    b.layout = layout;
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        for (int lengths = 0; lengths < 4; lengths++) {
            for (int32_t most = 64; most <= 1 << 19; most *= 8) {
                tess_split_choice choice;
                memset(b.sequences, 0, sizeof b.sequences);
                b.n = counts[c];
                for (uint32_t s = 0; s < b.n; s++) {
                    /* Equal; two lengths; a few; one long one among short ones. */
                    const int32_t keys = lengths == 0   ? most
                                         : lengths == 1 ? (s % 3 ? most : most / 2)
                                         : lengths == 2
                                             ? (int32_t)test_between(&seed, 1, 32) * (most / 32)
                                             : (s == 0 ? most : 64);
                    b.sequences[s] = lengths_of(1, keys);
                }
                check(&b, &h200, &choice);
                if (lengths == 0 && b.n <= UNITS) { /* lengths are tried an eighth apart */
                    const uint32_t parts = UNITS / b.n, blocks = (uint32_t)most / BLOCK,
                                   length = (blocks + parts - 1) / parts;
                    uint64_t n_jobs;
                    if (length > 1)
                        assert_true(choice.ns <= reckon(&b, &h200, length, &n_jobs) * 1.125);
                }
                split += choice.length != 0;
                unsplit += choice.length == 0;
            }
        }
    }
    assert_true(split > 20 && unsplit > 20);
    tess_layout_release(layout);
}

/* More lengths than the rule tells apart. */
static void test_many_lengths(void **state) {
    (void)state;
    tess_layout *layout = dense(3, 1);
    static batch b;
    uint64_t seed = 77;
    b.layout = layout;
    for (int round = 0; round < 200; round++) {
        memset(b.sequences, 0, sizeof b.sequences);
        b.n = (uint32_t)test_between(&seed, 1, MOST_SEQUENCES);
        for (uint32_t s = 0; s < b.n; s++) {
            b.sequences[s] =
                lengths_of(1, (int32_t)test_between(&seed, 1, 1 << test_between(&seed, 6, 17)));
        }
        check(&b, &h200, NULL);
    }
    tess_layout_release(layout);
}

/* Only steps cost time. */
static const tess_split_model only_steps = {
    .costs = {.workers = 4, .step_keys = 64, .step_ns = 1000},
    .block = BLOCK,
    .block_bytes = 1,
    .row_bytes = 1};

/* Sequences of 16 steps of keys. */
static void one_row_each(batch *b, const tess_layout *layout, uint32_t n) {
    b->layout = layout;
    b->n = n;
    for (uint32_t s = 0; s < n; s++) b->sequences[s] = lengths_of(1, 64 * 16);
}

/* A plan that would need more memory for its partial results has fewer of them, or none. */
static void test_memory(void **state) {
    (void)state;
    tess_layout *layout = dense(1, 1);
    static batch b;
    tess_split split;
    tess_split_model m = only_steps;
    one_row_each(&b, layout, 7);
    assert_int_equal(4, choose(&b, &m, 0, false, &split).length);
    m.partial_bytes = 56; /* 28 parts, whose places have an even number of rows */
    assert_int_equal(4, choose(&b, &m, 0, false, &split).length);
    m.partial_bytes = 55;
    const tess_split_choice less = choose(&b, &m, 0, false, &split);
    assert_true(less.length == 0 || less.length > 4);
    m.partial_bytes = 1;
    assert_int_equal(0, choose(&b, &m, 0, false, &split).length);
    tess_layout_release(layout);
    /* Partial results have the rows of these sequences: 384 of 100 rows fit 24 MiB, which as many
     * of 32 rows of 4 heads would not. */
    layout = dense(32, 8);
    b.layout = layout;
    b.n = 3;
    for (uint32_t s = 0; s < b.n; s++) b.sequences[s] = lengths_of(100, 32768);
    m = h200;
    m.partial_bytes = 24 << 20;
    assert_int_equal(384, check(&b, &m, NULL));
    tess_layout_release(layout);
}

/* The same of contexts whose lengths the order of jobs does not tell apart. */
static void test_memory_of_long_contexts(void **state) {
    (void)state;
    const tess_pattern pattern = {
        .struct_size = sizeof pattern, .kind = TESS_PATTERN_DENSE, .block = 16};
    tess_layout *layout = make_layout(runtime, &pattern, 1, 1, 1 << 20);
    static tess_sequence sequences[32];
    uint64_t seed = 9, split = 0;
    for (int n = 0; n < 1500; n++) {
        tess_split_model m = h200;
        tess_split_choice choice;
        tess_jobs jobs;
        const uint32_t count = (uint32_t)test_between(&seed, 1, 32);
        m.block = 16;
        m.block_bytes /= BLOCK / 16;
        m.partial_bytes =
            (uint64_t)(test_between(&seed, 0, 1) ? 24 << 20
                                                 : test_between(&seed, 1 << 20, 24 << 20));
        for (uint32_t s = 0; s < count; s++)
            sequences[s] = lengths_of((int32_t)test_between(&seed, 1, 100),
                                      (int32_t)test_between(&seed, 1 << 18, 1 << 20));
        assert_int_equal(TESS_OK, tess_jobs_create(&jobs, runtime, layout, sequences,
                                                   n % 2 ? count : 1, ROWS, ROWS));
        assert_true(jobs.order.shift != 0);
        assert_int_equal(TESS_OK, tess_split_count(&m, 0, false, &jobs, &choice));
        const uint64_t rows = jobs.partial_rows + jobs.partial_rows % 2,
                       bytes = jobs.n_partials * rows * m.row_bytes;
        if (bytes > m.partial_bytes)
            fail_msg("%d bytes of partial results, and room for %d", (int)bytes,
                     (int)m.partial_bytes);
        split += choice.length != 0;
        tess_jobs_release(&jobs);
    }
    assert_true(split > 100);
    tess_layout_release(layout);
}

static void test_ties(void **state) {
    (void)state;
    tess_layout *layout = dense(1, 1);
    static batch b;
    tess_split_choice choice;
    tess_split_model m = only_steps; /* so parts in whole waves take just as long */
    one_row_each(&b, layout, 8);
    assert_int_equal(8, check(&b, &m, &choice));
    assert_int_equal(0, choice.length);
    b.n = 7; /* the last wave is not full: 28 parts are 7 waves of 4 blocks */
    assert_int_equal(28, check(&b, &m, &choice));
    assert_int_equal(4, choice.length);
    /* Memory is the limit, and parts do not read less. */
    m.costs.bandwidth = 1;
    assert_int_equal(7, check(&b, &m, &choice));
    tess_layout_release(layout);
}

static void test_shapes(void **state) {
    (void)state;
    static const struct {
        int32_t heads, kv_heads, rows, keys;
        uint64_t least, most; /* jobs */
    } shapes[] = {
        {16, 16, 1024, 1024, 128, 128},
        {8, 8, 512, 512, 32, 32},
        {32, 8, 512, 4096, 128, 128},
        {32, 8, 512, 32768, 128, 128},
        {32, 8, 128, 32768, 96, UNITS},
        {32, 8, 1, 131072, 96, 4 * UNITS},
        {32, 8, 1, 4096, 128, UNITS},
        {32, 8, 16, 4096, 64, 64},
        {32, 8, 64, 4096, 64, 64},
        {32, 8, 256, 4096, 128, 128},
        {16, 16, 131072, 131072, 16384, 16384},
    };
    static batch b;
    for (size_t n = 0; n < sizeof shapes / sizeof *shapes; n++) {
        tess_layout *layout = dense(shapes[n].heads, shapes[n].kv_heads);
        b.layout = layout;
        one_sequence(&b, shapes[n].rows, shapes[n].keys);
        uint64_t parts = check(&b, &h200, NULL);
        if (parts < shapes[n].least || parts > shapes[n].most)
            fail_msg("%d rows on %d keys: %llu jobs", shapes[n].rows, shapes[n].keys,
                     (unsigned long long)parts);
        /* The device is full to the last wave. */
        if (parts > 128)
            assert_true(parts % UNITS == 0 || parts % UNITS > UNITS * 9 / 10 ||
                        shapes[n].rows > 8192);
        tess_layout_release(layout);
    }
}

/* Neither an explicit kv_split nor batch-invariant mode asks the model. */
static void test_orders(void **state) {
    (void)state;
    tess_layout *layout = dense(1, 1);
    static batch b;
    tess_split split;
    b.layout = layout;
    one_sequence(&b, 1, 1 << 20);
    assert_int_equal(0, choose(&b, &h200, 1, false, &split).candidates);
    assert_true(split.length == 0 && split.max_parts == 0);
    assert_int_equal(0, choose(&b, &h200, 5, false, &split).candidates);
    assert_true(split.length == 0 && split.max_parts == 5);
    assert_int_equal(0, choose(&b, &h200, 0, true, &split).candidates);
    assert_true(split.long_length == 4096 / BLOCK && split.short_length == 384 / BLOCK &&
                split.length == split.short_length && split.fixed && split.grows);
    assert_true(choose(&b, &h200, 0, false, &split).candidates > 1);
    assert_true(split.length > 0);
    tess_layout_release(layout);
}

/* A kernel that says nothing, and one that says absurd things. */
static void test_costs(void **state) {
    (void)state;
    const tess_kernel_costs none = {0}, absurd = {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX,
                                                  UINT32_MAX, UINT32_MAX, 1,          1},
                            idle = {.workers = 7};
    tess_layout *layout = dense(1, 1);
    static batch b;
    tess_split split;
    tess_split_model m = h200;
    b.layout = layout;
    one_sequence(&b, 1, 1 << 20);
    m.costs = tess_split_costs(&none, 64);
    assert_int_equal(64, m.costs.workers);
    assert_true(m.costs.step_keys > 0 && m.costs.step_ns > 0);
    assert_int_equal(64, check(&b, &m, NULL));
    m.costs = tess_split_costs(&none, 0);
    assert_int_equal(1, check(&b, &m, NULL));
    m.costs = tess_split_costs(&absurd, 64);
    assert_in_range(choose(&b, &m, 0, false, &split).candidates, 1, MOST_CANDIDATES);
    m.costs = tess_split_costs(&idle, 64);
    assert_int_equal(7, m.costs.workers);
    assert_in_range(choose(&b, &m, 0, false, &split).candidates, 1, MOST_CANDIDATES);
    b.n = 0;
    assert_int_equal(0, choose(&b, &h200, 0, false, &split).candidates);
    one_sequence(&b, 10, 0);
    assert_int_equal(0, choose(&b, &h200, 0, false, &split).length);
    tess_layout_release(layout);
}

/* ------------------------------------------------------------------ short tiles */

static uint32_t tile_rows_of(const tess_plan_desc *d, uint64_t *n_jobs) {
    tess_layout *layout = dense(2, 2);
    tess_device *device = open_device(runtime);
    tess_plan *plan = make_plan(device, layout, d);
    tess_plan_info info = {sizeof info};
    assert_int_equal(TESS_OK, tess_plan_query(plan, &info));
    assert_int_equal(0, info.n_merge_jobs);
    *n_jobs = info.n_jobs;
    tess_plan_release(plan);
    tess_device_release(device);
    tess_layout_release(layout);
    return info.tile_rows;
}

/* Few short jobs are cut into short tiles if as many run at a time, and only where the plan
 * decides. */
static void test_short_tiles(void **state) {
    (void)state;
    rig.kernel.tile_rows = 128;
    rig.kernel.short_rows = 64;
    rig.caps.parallel_jobs = 16;
    tess_plan_desc d = {.struct_size = sizeof d,
                        .dtype = TESS_BF16,
                        .head_dim = 64,
                        .batch = 1,
                        .q_len = 512,
                        .kv_len = 512};
    uint64_t n_jobs;
    /* 2 heads of 4 tiles, or of 8: as many as there are workers */
    assert_int_equal(64, tile_rows_of(&d, &n_jobs));
    assert_int_equal(16, n_jobs);
    rig.caps.parallel_jobs = 15;
    assert_int_equal(128, tile_rows_of(&d, &n_jobs));
    assert_int_equal(8, n_jobs);
    rig.caps.parallel_jobs = 16;
    d.kv_split = 1;
    assert_int_equal(128, tile_rows_of(&d, &n_jobs));
    d.kv_split = 0;
    d.tile_rows = 128;
    assert_int_equal(128, tile_rows_of(&d, &n_jobs));
    d.tile_rows = 0;
    d.flags = TESS_PLAN_BATCH_INVARIANT;
    assert_int_equal(128, tile_rows_of(&d, &n_jobs));
    d.flags = 0;
    rig.kernel.short_rows = 0;
    assert_int_equal(128, tile_rows_of(&d, &n_jobs));
    rig.kernel.short_rows = 128;
    assert_int_equal(128, tile_rows_of(&d, &n_jobs));
}

int main(void) {
    return RUN_TESTS_BETWEEN(runtime_setup, runtime_teardown, TEST(test_counts_around_a_wave),
                             TEST(test_many_lengths), TEST(test_memory),
                             TEST(test_memory_of_long_contexts), TEST(test_ties), TEST(test_shapes),
                             TEST(test_orders), TEST(test_costs), TEST(test_short_tiles));
}
