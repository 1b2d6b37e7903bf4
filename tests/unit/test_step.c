/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps: the jobs that the kernel in C makes from lengths against those of the planner, the room of
 * a step against every step that fits its limits, hostile lengths, and the rule that chooses parts
 * against a simulation.
 */
#include "fixtures/h200.h"
#include "fixtures/planner.h"

#include "paging.h"
#include "prepare.h"
#include "step.h"

/* ------------------------------------------------------------------ one case */

enum { MOST_BATCH = 6, HEAD_DIM = 16 };

typedef struct instance {
    spec x;
    tess_layout *layout;
    tess_step_limits limits;
    tess_jobs jobs;
    int32_t kv_split;
    bool invariant;
    tess_split_model model;
    uint64_t partial_bytes;
    tess_step_room room;
    uint32_t *tables; /* classes, then the tess_step_plan, its runs and storage groups */
    tess_pools pools;
    tess_args args;
    tess_step_plan *words;
    /* a step and its lengths, of exactly the bytes that it may have */
    uint32_t batch, *step;
    int32_t *cu_rows, *kv_lens, *q_first, *kv_first;
    bool given_first, parts;
    /* Of a kernel behind others: its sequences, and how many jobs and merges the others have. */
    bool later;
    int64_t q_above, q_most;
    uint32_t first_job, first_merge;
} instance;

#define FAIL(c, ...)                                                                               \
    do {                                                                                           \
        print_message("%s; tile_rows=%u pack_rows=%u kv_split=%d invariant=%d\n",                  \
                      spec_text(&(c)->x), (c)->jobs.tile_rows, (c)->jobs.pack_rows, (c)->kv_split, \
                      (c)->invariant);                                                             \
        fail_msg(__VA_ARGS__);                                                                     \
    } while (0)

/* Costs by which splitting pays soon. */
static tess_split_model cheap_model(uint32_t block, uint32_t workers) {
    return (tess_split_model){.costs = {.workers = workers,
                                        .step_keys = 8,
                                        .step_ns = 1000,
                                        .job_ns = 100,
                                        .merge_ns = 200,
                                        .part_ns = 5,
                                        .partial_bandwidth = 1000000,
                                        .bandwidth = 1000000},
                              .block = block,
                              .block_bytes = 2 * (uint64_t)block * HEAD_DIM * 4,
                              .row_bytes = (HEAD_DIM + 2) * 4};
}

/* The plan's tables, and an empty step. The layout, limits, split and model are given. */
static void instance_plan(instance *c, uint32_t tile_rows, uint32_t pack_rows, bool from_end) {
    const tess_sequence longest = {.q_len = (int32_t)larger(1, c->limits.q_len),
                                   .kv_len = (int32_t)c->limits.positions};
    tess_step_plan words;
    assert_int_equal(
        TESS_OK, tess_jobs_create(&c->jobs, runtime, c->layout, &longest, 1, tile_rows, pack_rows));
    tess_jobs_group(&c->jobs, &c->pools);
    if (from_end) tess_grid_count_from_end(&c->jobs.grid, c->layout, tile_rows);
    assert_int_equal(TESS_OK, tess_step_measure(&c->jobs, &c->limits, &c->model, c->kv_split,
                                                c->invariant, c->partial_bytes, &c->room, &words));
    const uint32_t n_classes = c->layout->n_classes,
                   plan_at = n_classes * (uint32_t)TESS_CLASS_WORDS,
                   runs_at = plan_at + TESS_STEP_PLAN_WORDS;
    const uint32_t groups_at = runs_at + c->jobs.n_runs * TESS_STEP_RUN_WORDS,
                   tables_end = groups_at + words.n_groups * TESS_STEP_GROUP_WORDS;
    c->tables = exact(tables_end, 4);
    for (uint32_t n = 0; n < n_classes; n++)
        tess_tiler_class(c->jobs.tiler, n, (tess_class *)c->tables + n);
    words.sequences_at = TESS_STEP_HEAD_WORDS + TESS_STEP_HEAD_WORDS % 2; /* have 64-bit words */
    words.jobs_at = words.sequences_at + words.batch * TESS_SEQUENCE_WORDS;
    words.merges_at = words.jobs_at + (c->first_job + words.most_jobs) * TESS_JOB_WORDS;
    words.ends_at = words.merges_at + words.most_merges * TESS_MERGE_WORDS;
    words.copy_to = words.ends_at + words.n_groups;
    words.copy_words = tables_end;
    words.id = 77;
    words.first_merge = c->first_merge;
    if (c->later) {
        words.q_above = (uint32_t)(c->jobs.q_above = c->q_above);
        words.q_most = (uint32_t)(c->jobs.q_most = c->q_most);
    }
    if (c->pools.compact) {
        words.slot_blocks = c->pools.n_blocks;
        words.phases = c->pools.n_phases;
        words.phases_wrap = c->layout->pattern.kind == TESS_PATTERN_S2;
    }
    c->words = (tess_step_plan *)(c->tables + plan_at);
    memcpy(c->words, &words, sizeof words);
    tess_step_runs(&c->jobs, &words, c->first_job, (tess_step_run *)(c->tables + runs_at),
                   (tess_step_group *)(c->tables + groups_at));
    memset(&c->args, 0, sizeof c->args);
    c->args.items_at = plan_at;
    c->args.group = words.n_groups;
    c->step = exact(words.copy_to + words.copy_words, 4);
    c->cu_rows = exact(words.batch + 1, 4);
    c->kv_lens = exact(words.batch, 4);
    c->q_first = exact(words.batch, 4);
    c->kv_first = exact(words.batch, 4);
}

static void instance_free(instance *c) {
    tess_jobs_release(&c->jobs);
    tess_pools_release(&c->pools, runtime);
    tess_layout_release(c->layout);
    spec_free(&c->x);
    void *const memory[] = {c->tables, c->step, c->cu_rows, c->kv_lens, c->q_first, c->kv_first};
    for (size_t n = 0; n < sizeof memory / sizeof *memory; n++) free(memory[n]);
}

static void instance_random(instance *c, uint64_t *seed, bool later) {
    memset(c, 0, sizeof *c);
    if (later) {
        c->later = true;
        c->q_above = test_between(seed, 0, 6);
        c->q_most = c->q_above + test_between(seed, 1, 30);
        c->first_job = (uint32_t)test_between(seed, 0, 5);
        c->first_merge = (uint32_t)test_between(seed, 0, 5);
    }
    /* fixed parts are longer than most random contexts */
    c->invariant = test_between(seed, 0, 2) == 0;
    const int64_t most_tokens = c->invariant && test_between(seed, 0, 2) == 0 ? 12000
                                : test_between(seed, 0, 3)                    ? 70
                                                                              : 400;
    do {
        spec_free(&c->x);
        spec_random(&c->x, seed, most_tokens);
    } while (c->x.pattern.kind == TESS_PATTERN_BLOCKS ||
             (c->x.pattern.flags & TESS_PATTERN_BIDIRECTIONAL));
    c->layout = spec_layout(&c->x, runtime);
    c->limits.batch = test_between(seed, 0, MOST_BATCH);
    c->limits.q_len = test_between(seed, 0, test_between(seed, 0, 1) ? 40 : 4);
    c->limits.kv_len = test_between(seed, 0, c->layout->max_tokens);
    c->parts = test_between(seed, 0, 2) == 0;
    c->limits.positions = c->parts ? c->layout->max_tokens : c->limits.kv_len;
    c->limits.rows = test_between(seed, 0, 1)
                         ? c->limits.batch * c->limits.q_len
                         : test_between(seed, 0, c->limits.batch * c->limits.q_len);
    c->kv_split = (int32_t)(test_between(seed, 0, 1) ? 0 : test_between(seed, 1, 5));
    c->model = cheap_model((uint32_t)c->layout->pattern.block,
                           (uint32_t)test_between(seed, 1, test_between(seed, 0, 1) ? 4 : 80));
    c->partial_bytes = (uint64_t)test_between(seed, 0, 200000);
    c->pools.compact = c->layout->kv_efficient && test_between(seed, 0, 3);
    const tess_part_starts starts = {.any = c->parts};
    if (c->pools.compact)
        assert_int_equal(
            TESS_OK, tess_pools_create(&c->pools, runtime, c->layout, c->limits.kv_len, &starts));
    const uint32_t tile_rows = (uint32_t)test_between(seed, 1, test_between(seed, 0, 1) ? 12 : 90);
    instance_plan(c, tile_rows, (uint32_t)test_between(seed, 0, 20),
                  !c->invariant && test_between(seed, 0, 1));
}

/* Lengths within the limits. */
static void random_lengths(instance *c, uint64_t *seed) {
    int64_t left = c->limits.rows;
    c->batch = (uint32_t)test_between(seed, 0, c->limits.batch);
    c->given_first = test_between(seed, 0, 2) == 0;
    c->cu_rows[0] = 0;
    for (uint32_t s = 0; s < c->batch; s++) {
        int64_t q_len = test_between(seed, 0, smaller(left, c->limits.q_len));
        if (test_between(seed, 0, 3) == 0) q_len = smaller(left, 1);
        left -= q_len;
        c->cu_rows[s + 1] = c->cu_rows[s] + (int32_t)q_len;
        c->kv_lens[s] = (int32_t)test_between(
            seed, test_between(seed, 0, 3) ? c->limits.kv_len / 2 : 0, c->limits.kv_len);
        c->q_first[s] = (int32_t)test_between(seed, 0, c->limits.positions);
        c->kv_first[s] = (int32_t)(test_between(seed, 0, c->limits.positions - c->kv_lens[s]) /
                                   c->layout->pattern.block * c->layout->pattern.block);
    }
}

static const tess_step_head *prepare(instance *c) {
    c->args.items = c->batch;
    c->args.flags = (c->given_first ? TESS_ARGS_FIRST : 0) | (c->parts ? TESS_ARGS_PARTS : 0);
    tess_prepare_on_host(&c->args, 1, c->tables, c->cu_rows, c->kv_lens, c->q_first, c->kv_first,
                         c->step);
    return (const tess_step_head *)c->step;
}

/* ------------------------------------------------------------------ sets of jobs */

/* A job, and which part of how many it is instead of where its partial result lies. */
typedef struct item {
    tess_job job;
    uint32_t part, parts;
} item;

/* The jobs of all storage groups, in their order. Those of a group are of its heads, and there are
 * as many as the planner has placed there last, if it has. */
static tess_job *gather_jobs(instance *c, const tess_step_head *head, bool placed) {
    const tess_step_plan *w = c->words;
    const uint32_t *ends = c->step + w->ends_at,
                   group = (uint32_t)c->layout->n_heads / (uint32_t)c->layout->n_kv_heads;
    const tess_step_group *room =
        (const tess_step_group *)(const void *)((const uint32_t *)(w + 1) +
                                                w->n_runs * TESS_STEP_RUN_WORDS);
    tess_job *all = exact(head->n_jobs, sizeof *all);
    uint32_t n = 0;
    for (uint32_t g = 0; g < w->n_groups; g++) {
        const tess_job *jobs = (const tess_job *)(c->step + w->jobs_at) + room[g].first_job;
        const uint32_t count = ends[g] - room[g].first_job;
        if (ends[g] < room[g].first_job || ends[g] > room[g].end_job || count > head->n_jobs - n)
            FAIL(c, "group %u ends at job %u", g, ends[g]);
        if (placed && count != c->pools.all[g + 1].first_job[0] - c->pools.all[g].first_job[0])
            FAIL(c, "group %u has %u jobs", g, count);
        for (uint32_t j = 0; j < count; j++)
            if (c->pools.compact && c->pools.kv_heads[jobs[j].head / group].storage != g)
                FAIL(c, "a job of head %u in group %u", jobs[j].head, g);
        memcpy(all + n, jobs, count * sizeof *all);
        n += count;
    }
    if (n != head->n_jobs) FAIL(c, "%u jobs of groups, %u in all", n, head->n_jobs);
    return all;
}

static int compare_items(const void *a, const void *b) { return memcmp(a, b, sizeof(item)); }

/* The items of a set in a fixed order. Every partial result belongs to one merge. */
static item *sorted_items(instance *c, const tess_job *jobs, uint64_t n_jobs,
                          const tess_merge *merges, uint64_t n_merges, uint64_t n_partials) {
    item *items = exact(n_jobs, sizeof *items);
    uint64_t *of_merge = exact(n_partials, sizeof *of_merge);
    memset(of_merge, 0xff, n_partials * sizeof *of_merge);
    for (uint64_t m = 0; m < n_merges; m++)
        for (uint32_t part = 0; part < merges[m].parts; part++) {
            const uint64_t n = merges[m].partial + (uint64_t)part;
            if (n >= n_partials || of_merge[n] != UINT64_MAX) FAIL(c, "partial %d", (int)n);
            of_merge[n] = m;
        }
    for (uint64_t n = 0; n < n_jobs; n++) {
        items[n] = (item){.job = jobs[n], .parts = 1};
        if (jobs[n].left_count == 0) items[n].job.left_offset = 0; /* of no meaning */
        if (jobs[n].partial == TESS_NO_PARTIAL) continue;
        if (jobs[n].partial >= n_partials || of_merge[jobs[n].partial] == UINT64_MAX)
            FAIL(c, "job %d writes partial %u", (int)n, jobs[n].partial);
        const tess_merge *merge = &merges[of_merge[jobs[n].partial]];
        if (merge->sequence != jobs[n].sequence || merge->head != jobs[n].head ||
            merge->heads != jobs[n].heads || merge->row != jobs[n].row ||
            merge->rows != jobs[n].rows || merge->reserved != 0)
            FAIL(c, "job %d has another merge", (int)n);
        items[n].part = jobs[n].partial - merge->partial;
        items[n].parts = merge->parts;
        items[n].job.partial = 0;
    }
    free(of_merge);
    qsort(items, n_jobs, sizeof *items, compare_items);
    return items;
}

/* Where partial results have as many rows as those of the longest sequences that the plan takes,
 * the planner chooses the parts of the step. Returns whether that is so. */
static bool check_choice(instance *c, const tess_step_head *head) {
    tess_split_model model = c->model;
    tess_split_choice choice;
    model.partial_bytes = c->partial_bytes;
    c->jobs.split = (tess_split){0};
    assert_int_equal(TESS_OK, tess_jobs_count(&c->jobs));
    if (!c->words->chooses || c->jobs.most_rows != tess_jobs_most_rows(&c->jobs, c->limits.q_len))
        return false;
    tess_split_choose(&model, &c->jobs, &choice);
    if (choice.length != head->length)
        FAIL(c, "parts of %u blocks; the planner chooses %u", head->length, choice.length);
    return true;
}

/* Counts and places the same lengths with the planner, whose table holds every sequence too. */
static bool check_against_planner(instance *c, const tess_step_head *head) {
    tess_sequence sequences[MOST_BATCH + 1];
    const tess_sequence *own = (const tess_sequence *)(c->step + c->words->sequences_at);
    memset(sequences, 0, sizeof sequences);
    uint32_t first_block[MOST_BATCH + 1];
    for (uint32_t s = 0; s < c->batch; s++) {
        const int32_t first = c->parts ? c->kv_first[s] : 0, end = first + c->kv_lens[s],
                      q_len = c->cu_rows[s + 1] - c->cu_rows[s];
        first_block[s] = (uint32_t)(first / c->layout->pattern.block);
        sequences[s] = (tess_sequence){
            .q_start = c->cu_rows[s],
            .kv_start = c->pools.compact ? tess_pools_kv_start(&c->pools, c->layout, first_block[s])
                                         : -first,
            .q_len = q_len,
            .kv_len = end,
            .q_first = c->given_first ? c->q_first[s] : end - q_len,
            .kv_batch = s,
            .flags = TESS_SEQUENCE_FIRST(first_block[s])};
        assert_memory_equal(&sequences[s], &own[s], sizeof *own);
    }
    tess_jobs *jobs = &c->jobs;
    jobs->sequences = sequences;
    jobs->n_sequences = c->batch;
    jobs->first_block = c->parts ? first_block : NULL;
    const bool chosen = check_choice(c, head);
    jobs->split = (tess_split){.max_parts = c->words->max_parts,
                               .length = head->length,
                               .short_length = c->words->short_length,
                               .long_length = c->words->long_length,
                               .fixed = c->words->short_length != 0};
    assert_int_equal(TESS_OK, tess_jobs_count(jobs));
    tess_job *out = exact(jobs->n_jobs, sizeof *out);
    tess_merge *merges = exact(jobs->n_merges, sizeof *merges);
    tess_jobs_place(jobs, out, merges);
    const uint32_t n_merges = head->n_merges - c->first_merge;
    if (head->n_jobs != jobs->n_jobs || n_merges != jobs->n_merges ||
        head->n_partials != jobs->n_partials)
        FAIL(c, "%u jobs, %u merges, %u partials; the planner has %d, %d, %d", head->n_jobs,
             n_merges, head->n_partials, (int)jobs->n_jobs, (int)jobs->n_merges,
             (int)jobs->n_partials);
    if (jobs->partial_rows > c->room.partial_rows)
        FAIL(c, "%u rows of a partial, room for %u", jobs->partial_rows, c->room.partial_rows);
    tess_job *own_jobs = gather_jobs(c, head, c->pools.compact);
    item *a = sorted_items(c, own_jobs, head->n_jobs,
                           (const tess_merge *)(c->step + c->words->merges_at), n_merges,
                           head->n_partials),
         *b = sorted_items(c, out, jobs->n_jobs, merges, jobs->n_merges, jobs->n_partials);
    for (uint64_t n = 0; n < jobs->n_jobs; n++)
        if (memcmp(&a[n], &b[n], sizeof *a) != 0) FAIL(c, "another job, %d in order", (int)n);
    free(a);
    free(b);
    free(own_jobs);
    free(out);
    free(merges);
    return chosen;
}

/* ------------------------------------------------------------------ the tests */

/* Given equal lengths, the step and the planner make the same set of jobs. */
static void same_jobs(bool later) {
    uint64_t seed = 20, agreed_split = 0, agreed_whole = 0, split = 0, fixed = 0, chosen = 0,
             jobs = 0, grouped = 0, parts = 0;
    for (int n = 0; n < 3000; n++) {
        instance c;
        instance_random(&c, &seed, later);
        for (int again = 0; again < 3; again++) {
            random_lengths(&c, &seed);
            const tess_step_head *head = prepare(&c);
            if (head->n_jobs > c.room.jobs || head->n_merges - c.first_merge > c.room.merges ||
                head->n_partials > c.room.partials)
                FAIL(&c, "%u jobs, %u merges, %u partials, and room for %d, %d, %d", head->n_jobs,
                     head->n_merges, head->n_partials, (int)c.room.jobs, (int)c.room.merges,
                     (int)c.room.partials);
            assert_int_equal(0, head->n_clamped);
            assert_int_equal(77, head->plan);
            const bool agreed = check_against_planner(&c, head);
            split += head->n_merges != c.first_merge;
            fixed += head->n_merges != c.first_merge && c.words->short_length != 0;
            chosen += head->length != 0;
            agreed_split += agreed && head->length != 0;
            agreed_whole += agreed && head->length == 0;
            jobs += head->n_jobs;
            grouped += c.words->n_groups > 1 && head->n_jobs > 0;
            parts += c.parts && head->n_jobs > 0;
        }
        assert_memory_equal(c.step + c.words->copy_to, c.tables, c.words->copy_words * 4);
        instance_free(&c);
    }
    /* or else the test has not met what it is about */
    const uint64_t rarer = later ? 4 : 1; /* there are fewer sequences */
    assert_true(rarer * split > 500 && rarer * fixed > 50 && rarer * chosen > 100 &&
                rarer * jobs > 50000 && rarer * grouped > 40 && rarer * parts > 1000);
    assert_true(rarer * agreed_split > 80 && rarer * agreed_whole > 150);
}

static void test_same_jobs(void **state) {
    (void)state;
    same_jobs(false);
}

/* So do those of a kernel that has only some of the sequences, behind the jobs of another one. */
static void test_later_kernel(void **state) {
    (void)state;
    same_jobs(true);
}

/* ------------------------------------------------------------------ room */

typedef struct most {
    uint64_t jobs, merges, partials;
} most;

/* Tries every length of the sequences from `s` on. */
static void try_all(instance *c, uint32_t s, most *m) {
    if (s == c->batch) {
        const tess_step_head *head = prepare(c);
        m->jobs = (uint64_t)larger((int64_t)m->jobs, head->n_jobs);
        m->merges = (uint64_t)larger((int64_t)m->merges, head->n_merges);
        m->partials = (uint64_t)larger((int64_t)m->partials, head->n_partials);
        return;
    }
    for (int32_t q_len = 0; q_len <= c->limits.q_len; q_len++) {
        c->cu_rows[s + 1] = c->cu_rows[s] + q_len;
        if (c->cu_rows[s + 1] > c->limits.rows) break;
        for (c->kv_lens[s] = 0; c->kv_lens[s] <= c->limits.kv_len; c->kv_lens[s]++)
            try_all(c, s + 1, m);
    }
}

/* No step within the limits has more jobs, merges or partial results than there is room for. Where
 * every sequence may have all its rows and tiles are equally long, some step fills the room. */
static void test_room(void **state) {
    (void)state;
    uint64_t seed = 3;
    int full = 0;
    for (int n = 0; n < 120; n++) {
        instance c;
        most m = {0};
        memset(&c, 0, sizeof c);
        const tess_pattern p = n % 3 ? s2_pattern((int32_t)test_between(&seed, 1, 3), 1, 2, 0)
                                     : (tess_pattern){.struct_size = sizeof p,
                                                      .kind = TESS_PATTERN_DENSE,
                                                      .block = (int32_t)test_between(&seed, 1, 4)};
        c.layout = make_layout(runtime, &p, 4, (int32_t)(n % 2 ? 2 : 1), 64);
        c.batch = (uint32_t)test_between(&seed, 1, 2);
        c.limits.batch = c.batch;
        c.limits.q_len = test_between(&seed, 1, 7);
        c.limits.kv_len = c.limits.positions = test_between(&seed, 4, 9);
        const bool all = test_between(&seed, 0, 1);
        c.limits.rows = all ? c.limits.batch * c.limits.q_len
                            : test_between(&seed, 1, c.limits.batch * c.limits.q_len);
        c.kv_split = (int32_t)test_between(&seed, 0, 3);
        c.model = cheap_model((uint32_t)p.block, (uint32_t)test_between(&seed, 1, 6));
        c.partial_bytes = (uint64_t)test_between(&seed, 0, 20000);
        instance_plan(&c, (uint32_t)test_between(&seed, 1, 6), (uint32_t)test_between(&seed, 0, 8),
                      test_between(&seed, 0, 1));
        c.cu_rows[0] = 0;
        try_all(&c, 0, &m);
        if (m.jobs > c.room.jobs || m.merges > c.room.merges || m.partials > c.room.partials)
            FAIL(&c, "%d jobs, %d merges, %d partials, and room for %d, %d, %d", (int)m.jobs,
                 (int)m.merges, (int)m.partials, (int)c.room.jobs, (int)c.room.merges,
                 (int)c.room.partials);
        const tess_grid *grid = &c.jobs.grid;
        if (c.kv_split == 1 && all && grid->unit % grid->step == 0 &&
            c.limits.kv_len >= grid->unit) {
            full++;
            if (m.jobs != c.room.jobs)
                FAIL(&c, "%d jobs, and room for %d", (int)m.jobs, (int)c.room.jobs);
        }
        instance_free(&c);
    }
    assert_true(full > 8);
}

/* ------------------------------------------------------------------ hostile lengths */

static int32_t hostile(uint64_t *seed, int64_t limit) {
    switch (test_between(seed, 0, 5)) {
    case 0: return INT32_MIN;
    case 1: return INT32_MAX;
    case 2: return (int32_t)test_between(seed, -limit - 3, -1);
    case 3: return (int32_t)(limit + test_between(seed, 0, 3));
    default: return (int32_t)test_between(seed, 0, limit);
    }
}

/* Whatever the lengths are, everything stays within the limits, no two sequences share a row, and
 * the step tells that some were clamped. A sanitizer sees any access outside the exact buffers. */
static void test_hostile_lengths(void **state) {
    (void)state;
    uint64_t seed = 8, clamped = 0;
    for (int n = 0; n < 2000; n++) {
        instance c;
        instance_random(&c, &seed, false);
        c.batch = (uint32_t)test_between(&seed, 0, c.limits.batch);
        c.given_first = test_between(&seed, 0, 3) == 0;
        bool legal = true;
        for (uint32_t s = 0; s <= c.batch; s++) {
            c.cu_rows[s] = hostile(&seed, c.limits.rows);
            if (s == 0 ? c.batch && (c.cu_rows[0] < 0 || c.cu_rows[0] > c.limits.rows)
                       : c.cu_rows[s] < c.cu_rows[s - 1] || c.cu_rows[s] > c.limits.rows ||
                             (int64_t)c.cu_rows[s] - c.cu_rows[s - 1] > c.limits.q_len)
                legal = false;
        }
        for (uint32_t s = 0; s < c.batch; s++) {
            c.kv_lens[s] = hostile(&seed, c.limits.kv_len);
            if (c.kv_lens[s] < 0 || c.kv_lens[s] > c.limits.kv_len) legal = false;
            c.q_first[s] = hostile(&seed, c.limits.positions);
            if (c.given_first && (c.q_first[s] < 0 || c.q_first[s] > c.limits.positions))
                legal = false;
            c.kv_first[s] = hostile(&seed, c.limits.positions);
            const int64_t keys = larger(0, smaller(c.kv_lens[s], c.limits.kv_len));
            if (c.parts && (c.kv_first[s] < 0 || c.kv_first[s] > c.limits.positions - keys ||
                            c.kv_first[s] % c.layout->pattern.block))
                legal = false;
        }
        const tess_step_head *head = prepare(&c);
        const tess_sequence *own = (const tess_sequence *)(c.step + c.words->sequences_at);
        tess_job *jobs = gather_jobs(&c, head, false);
        int64_t end = 0;
        for (uint32_t s = 0; s < c.batch; s++) {
            assert_true(own[s].q_start >= end && own[s].q_len >= 0 &&
                        own[s].q_len <= c.limits.q_len);
            const int64_t first =
                (int64_t)TESS_SEQUENCE_FIRST_BLOCK(own[s].flags) * c.layout->pattern.block;
            assert_true(own[s].kv_len >= first && own[s].kv_len - first <= c.limits.kv_len &&
                        own[s].kv_len <= c.limits.positions && (c.parts || first == 0));
            end = own[s].q_start + own[s].q_len;
        }
        assert_true(end <= c.limits.rows);
        assert_true(head->n_jobs <= c.room.jobs && head->n_merges <= c.room.merges);
        for (uint32_t j = 0; j < head->n_jobs; j++)
            assert_true(jobs[j].sequence < c.batch &&
                        (int64_t)jobs[j].row + jobs[j].rows <= own[jobs[j].sequence].q_len);
        free(jobs);
        if (legal != (head->n_clamped == 0)) FAIL(&c, "%u clamped", head->n_clamped);
        clamped += !legal;
        instance_free(&c);
    }
    assert_true(clamped > 500);
}

/* ------------------------------------------------------------------ the rule */

/* When the last of the workers ends that take the jobs in their order, in ticks of the model. */
static uint64_t makespan(const instance *c, const tess_job *jobs, uint32_t n) {
    const tess_step_plan *w = c->words;
    uint64_t *busy = exact(w->workers, sizeof *busy), last = 0;
    memset(busy, 0, w->workers * sizeof *busy);
    for (uint32_t j = 0; j < n; j++) {
        uint32_t first = 0;
        for (uint32_t k = 1; k < w->workers; k++)
            if (busy[k] < busy[first]) first = k;
        const uint64_t keys = tess_job_blocks(&jobs[j]) * w->block;
        busy[first] += w->job_ticks + (keys + w->step_keys - 1) / w->step_keys * w->step_ticks;
        last = (uint64_t)larger((int64_t)last, (int64_t)busy[first]);
    }
    free(busy);
    return last;
}

/* Prepares with the rule and without it, and checks both of its numbers. Returns the share of the
 * unsplit time that the step takes. */
static double check_rule(instance *c) {
    const tess_step_plan *w = c->words;
    const tess_merge *merges = (const tess_merge *)(c->step + w->merges_at);
    c->words->chooses = 0;
    const tess_step_head *head = prepare(c);
    tess_job *jobs = gather_jobs(c, head, false);
    const uint64_t unsplit = makespan(c, jobs, head->n_jobs);
    free(jobs);
    c->words->chooses = 1;
    prepare(c);
    jobs = gather_jobs(c, head, false);
    uint64_t ticks = makespan(c, jobs, head->n_jobs), most_parts = 0, read = 0;
    free(jobs);
    for (uint32_t s = 0; s < c->batch; s++)
        read += (uint64_t)ceil_div(c->kv_lens[s], w->block) * w->n_kv_heads;
    read = read / 64 * w->read_ticks + read % 64 * w->read_ticks / 64;
    for (uint32_t m = 0; m < head->n_merges; m++)
        most_parts = (uint64_t)larger((int64_t)most_parts, merges[m].parts);
    const uint64_t whole = (uint64_t)larger((int64_t)unsplit, (int64_t)read);
    ticks = (uint64_t)larger((int64_t)ticks, (int64_t)read);
    if (head->n_merges)
        ticks += w->merge_ticks + most_parts * w->part_ticks +
                 (uint64_t)head->n_partials * w->partial_ticks;
    if (head->unsplit_ticks > whole)
        fail_msg("%u ticks at least, and %d suffice", head->unsplit_ticks, (int)whole);
    if (head->length && head->ticks < ticks)
        fail_msg("%u ticks at most, and it takes %d", head->ticks, (int)ticks);
    if (ticks > whole)
        fail_msg("parts of %u blocks take %d ticks, none %d", head->length, (int)ticks, (int)whole);
    return (double)ticks / (double)whole;
}

/* Decoding with about what an H200 takes, for one query head. */
static void rule_instance(instance *c, int64_t batch, int64_t kv_len) {
    const tess_pattern p = {.struct_size = sizeof p, .kind = TESS_PATTERN_DENSE, .block = BLOCK};
    memset(c, 0, sizeof *c);
    c->layout = make_layout(runtime, &p, 1, 1, kv_len);
    c->limits = (tess_step_limits){batch, 1, kv_len, batch, kv_len};
    c->partial_bytes = 24 << 20;
    c->model = h200;
    instance_plan(c, 16, 16, true);
    assert_int_equal(1, c->words->chooses);
    c->batch = (uint32_t)batch;
    for (int32_t s = 0; s <= batch; s++) c->cu_rows[s] = s;
}

/* Numbers of jobs about one wave and two, of equal and of other lengths: parts never take longer
 * than whole jobs in the model, and where a wave is far from full they take much less. */
static void test_rule(void **state) {
    (void)state;
    static const int64_t counts[] = {1,
                                     2,
                                     8,
                                     33,
                                     66,
                                     UNITS - 1,
                                     UNITS,
                                     UNITS + 1,
                                     2 * UNITS - 1,
                                     2 * UNITS,
                                     2 * UNITS + 1,
                                     3 * UNITS + 7};
    uint64_t seed = 5;
    for (size_t n = 0; n < sizeof counts / sizeof *counts; n++) {
        instance c;
        rule_instance(&c, counts[n], 1 << 19);
        for (int32_t keys = 64; keys <= 1 << 19; keys *= 2) {
            for (int kind = 0; kind < 5; kind++) {
                for (uint32_t s = 0; s < c.batch; s++)
                    c.kv_lens[s] = kind == 0   ? keys
                                   : kind == 1 ? (s ? keys / 64 : keys)
                                   : kind == 2 ? (s % 3 ? keys / 3 : keys)
                                               : (int32_t)test_between(&seed, 0, keys);
                const double share = check_rule(&c);
                if (kind == 0 && keys == 1 << 19 && counts[n] <= UNITS / 2 && share > 0.70)
                    fail_msg("%d jobs take %.2f of the unsplit time", (int)counts[n], share);
                if (kind == 0 && keys == 1 << 19 && counts[n] == UNITS + 1 && share > 0.70)
                    fail_msg("a job more than workers takes %.2f of two waves", share);
            }
        }
        instance_free(&c);
    }
}

/* ------------------------------------------------------------------ device values that are trusted
 */

/* Of a plan with TESS_PLAN_TRUST_DEVICE kernels get bounds that every page id and column is below,
 * and no order to clamp lengths. */
static void test_trusted(void **state) {
    (void)state;
    const tess_tables tables = {.struct_size = sizeof tables, .n_step_plans = 1};
    tess_launch l = {.struct_size = sizeof l,
                     .tables = &tables,
                     .group = 1,
                     .n_heads = 1,
                     .head_dim = 8,
                     .page = 16,
                     .pages = 9};
    l.tensor[TESS_ROLE_BLOCK_TABLE].stride_batch = 5;
    for (l.trusted = 0; l.trusted < 2; l.trusted++) {
        tess_args args;
        tess_paging_args append;
        tess_portable_forward_args(&l, 0, 1, 1, &args);
        tess_paging_fill(&l, 0, 1, 1, &append);
        assert_int_equal(l.trusted ? UINT32_MAX : 9, args.pages);
        assert_int_equal(l.trusted ? UINT32_MAX : 9, append.pages);
        assert_int_equal(l.trusted ? UINT32_MAX : 5, append.columns);
        tess_prepare_args(&l, 1, &args);
        assert_int_equal(l.trusted ? TESS_ARGS_TRUST : 0, args.flags & TESS_ARGS_TRUST);
    }
}

int main(void) {
    return RUN_TESTS_BETWEEN(runtime_setup, runtime_teardown, TEST(test_same_jobs),
                             TEST(test_later_kernel), TEST(test_room), TEST(test_hostile_lengths),
                             TEST(test_rule), TEST(test_trusted));
}
