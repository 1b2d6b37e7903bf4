/* SPDX-License-Identifier: Apache-2.0 */
/* Plans with a kernel for few rows beside another: which sequences each of them gets, what their
 * jobs, workspace and launches are, and that other sequences of a batch-invariant plan change
 * nothing. */
#include "fixtures/plans.h"

enum { HEADS = 4, KV_HEADS = 2, GROUP = HEADS / KV_HEADS, TOKENS = 4096, FEW = 16, DIM = 16 };

LAYOUT_FIXTURE(s2_pattern(16, 2, 3, 0), HEADS, KV_HEADS, TOKENS)

/* A kernel for 8 rows of a sequence, one for 16, and one for any. */
static int setup_rows(void **state) {
    setup(state);
    const rig_row rows[] = {{.name = "eight", .most_rows = 8 * GROUP, .tile_rows = 16},
                            {.name = "few", .most_rows = FEW * GROUP, .tile_rows = 32},
                            {.name = "tiles", .tile_rows = 64}};
    memcpy(rig.rows, rows, sizeof rows);
    rig.n_rows = 3;
    rig.kernel.pack_rows = 64;
    rig.kernel.scratch_bytes = 100;
    return 0;
}

/* A padded batch. */
typedef struct batch {
    int64_t n, q_lens[8], kv_lens[8];
} batch;

static tess_plan_desc desc_of(const batch *b, uint32_t flags) {
    tess_plan_desc d = plan_desc(b->n, 0, 0);
    d.q_lens = b->q_lens;
    d.kv_lens = b->kv_lens;
    d.flags = flags;
    return d;
}

static tess_plan *make_batch(const batch *b, uint32_t flags, int32_t kv_split) {
    tess_plan_desc d = desc_of(b, flags);
    d.kv_split = kv_split;
    return make(layout, &d);
}

static const batch mixed = {6, {1, 300, 9, 8, 16, 17}, {4000, 300, 2000, 8, 900, 700}};

/* The share that a plan must have for so many rows. */
static const tess_share *share_of(const tess_plan *plan, int64_t q_len) {
    for (uint32_t n = 0; n < plan->n_shares; n++)
        if (q_len > plan->shares[n].above && q_len <= plan->shares[n].most) return &plan->shares[n];
    fail_msg("no kernel for %lld rows", (long long)q_len);
    return NULL;
}

/* Each sequence's jobs and merges lie in the range of the kernel that it must have, and no tile is
 * higher than that kernel's. */
static void check_tables(const tess_plan *plan) {
    uint64_t jobs = 0, merges = 0;
    for (uint32_t n = 0; n < plan->n_shares; n++) {
        const tess_share *share = &plan->shares[n];
        assert_int_equal(jobs, share->first_job);
        assert_int_equal(merges, share->first_merge);
        assert_true(share->n_jobs > 0);
        jobs += share->n_jobs;
        merges += share->n_merges;
        uint64_t rows = 0, wanted = 0, partials = 0;
        for (uint64_t j = share->first_job; j < jobs; j++) {
            const tess_job *job = &plan->tables.jobs[j];
            assert_ptr_equal(share, share_of(plan, plan->sequences[job->sequence].q_len));
            assert_true((uint32_t)job->rows * job->heads <= share->tile_rows);
            if (job->partial == TESS_NO_PARTIAL)
                rows += (uint64_t)job->rows * job->heads;
            else {
                assert_true(job->partial < plan->memory.partials[n].n);
                assert_true((uint64_t)job->rows * job->heads <= plan->memory.partials[n].rows);
                partials++;
            }
        }
        for (uint64_t m = share->first_merge; m < merges; m++) {
            const tess_merge *merge = &plan->tables.merges[m];
            assert_ptr_equal(share, share_of(plan, plan->sequences[merge->sequence].q_len));
            assert_true(merge->partial + merge->parts <= plan->memory.partials[n].n);
            rows += (uint64_t)merge->rows * merge->heads;
        }
        for (uint32_t s = 0; s < plan->n_sequences; s++)
            if (share_of(plan, plan->sequences[s].q_len) == share)
                wanted += (uint64_t)plan->sequences[s].q_len * HEADS;
        assert_int_equal(wanted, rows);
        assert_int_equal(plan->memory.partials[n].n, partials);
    }
    assert_int_equal(plan->memory.n_jobs, jobs);
    assert_int_equal(plan->memory.n_merges, merges);
}

/* ------------------------------------------------------------------ who gets what */

static void is_share(const tess_plan *plan, uint32_t n, const char *name, uint32_t tile_rows) {
    assert_true(n < plan->n_shares);
    assert_string_equal(name, plan->shares[n].kernel_name);
    assert_int_equal(tile_rows, plan->shares[n].tile_rows);
}

static void test_mixed(void **state) {
    (void)state;
    for (int32_t kv_split = 0; kv_split < 4; kv_split++) {
        tess_plan *plan = make_batch(&mixed, 0, kv_split);
        assert_int_equal(3, plan->n_shares);
        assert_int_equal(3, rig.live_kernels);
        is_share(plan, 0, "rig/eight", 16);
        is_share(plan, 1, "rig/few", 32);
        is_share(plan, 2, "rig/tiles", 64);
        check_tables(plan);
        const tess_plan_info info = query(plan);
        assert_string_equal("rig/tiles", info.kernel);
        assert_string_equal("rig/eight", info.few_kernel);
        assert_int_equal(64, info.tile_rows);
        assert_int_equal(16, info.few_tile_rows);
        tess_plan_release(plan);
        assert_int_equal(0, rig.live_kernels);
    }
}

/* A batch of one kind needs one kernel, and the key has the longest of the sequences it serves. */
static void test_alone(void **state) {
    (void)state;
    static const struct {
        int64_t q_lens[2];
        const char *kernel;
    } cases[] = {{{1, 8}, "rig/eight"},
                 {{9, 16}, "rig/few"},
                 {{17, 300}, "rig/tiles"},
                 {{0, 0}, "rig/eight"}};
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        const batch b = {2, {cases[n].q_lens[0], cases[n].q_lens[1]}, {500, 500}};
        tess_plan *plan = make_batch(&b, 0, 0);
        assert_int_equal(1, plan->n_shares);
        assert_string_equal(cases[n].kernel, plan->shares[0].kernel_name);
        assert_int_equal(b.q_lens[1], rig.key.max_q_len);
        assert_string_equal("", query(plan).few_kernel);
        tess_plan_release(plan);
    }
    tess_plan_desc d = desc_of(&mixed, 0);
    d.kernel = "rig/few";
    tess_plan *plan = make(layout, &d);
    assert_int_equal(1, plan->n_shares);
    is_share(plan, 0, "rig/few", 32);
    assert_int_equal(300, rig.key.max_q_len);
    check_tables(plan);
    tess_plan_release(plan);
}

/* Where no kernel takes the long sequences, the plan fails and keeps none. */
static void test_refused(void **state) {
    (void)state;
    tess_plan_desc d = desc_of(&mixed, 0);
    tess_plan *plan = NULL;
    rig.n_rows = 2;
    assert_int_equal(TESS_ERROR_UNSUPPORTED, tess_plan_create(device, layout, &d, &plan));
    assert_error_has("no rig kernel accepts the problem: eight: is for 16 rows or fewer of a kv "
                     "head; few: is for 32 rows or fewer of a kv head");
    assert_int_equal(0, rig.live_kernels);
    rig.n_rows = 3;
    rig.rows[2].prepared = TESS_ERROR_OUT_OF_MEMORY;
    assert_int_equal(TESS_ERROR_OUT_OF_MEMORY, tess_plan_create(device, layout, &d, &plan));
    assert_int_equal(0, rig.live_kernels);
    /* One that turns out not to run leaves its sequences to the next. */
    rig.rows[2].prepared = TESS_OK;
    rig.rows[0].prepared = TESS_ERROR_UNAVAILABLE;
    plan = make(layout, &d);
    assert_int_equal(2, plan->n_shares);
    is_share(plan, 0, "rig/few", 32);
    check_tables(plan);
    tess_plan_release(plan);
}

/* Where K and V lie changes nothing. */
static void test_compact(void **state) {
    (void)state;
    static const uint32_t flags[] = {0, TESS_PLAN_BATCH_INVARIANT};
    rig.caps.features |= TESS_FEATURE_POSITIONS | TESS_FEATURE_PAGES;
    tess_device_release(device);
    device = open_device(runtime);
    for (size_t n = 0; n < sizeof flags / sizeof *flags; n++) {
        tess_plan *plain = make_batch(&mixed, flags[n], 0),
                  *plan = make_batch(&mixed, TESS_PLAN_COMPACT | flags[n], 0);
        assert_int_equal(3, plan->n_shares);
        for (uint32_t s = 0; s < 3; s++) {
            is_share(plan, s, plain->shares[s].kernel_name, plain->shares[s].tile_rows);
            assert_int_equal(plain->shares[s].most, plan->shares[s].most);
        }
        check_tables(plan);
        tess_plan_release(plain);
        tess_plan_release(plan);
    }
}

/* ------------------------------------------------------------------ batch-invariant plans */

static bool same_job(const tess_job *a, const tess_job *b) {
    return a->head == b->head && a->heads == b->heads && a->row == b->row && a->rows == b->rows &&
           a->cls == b->cls && a->left_count == b->left_count &&
           a->interval_start == b->interval_start && a->interval_blocks == b->interval_blocks &&
           a->mask_head == b->mask_head && a->mask_tail == b->mask_tail &&
           (a->partial == TESS_NO_PARTIAL) == (b->partial == TESS_NO_PARTIAL);
}

/* A sequence has the kernel, the key and the jobs that it has alone, in any batch. */
static void test_invariant(void **state) {
    (void)state;
    uint64_t seed = 23;
    for (int n = 0; n < 60; n++) {
        batch b = {test_between(&seed, 1, 8), {0}, {0}};
        for (int64_t s = 0; s < b.n; s++) {
            b.q_lens[s] = test_between(&seed, 0, 3) ? test_between(&seed, 1, 24)
                                                    : test_between(&seed, 25, 400);
            b.kv_lens[s] = test_between(&seed, 0, TOKENS);
        }
        tess_plan *all = make_batch(&b, TESS_PLAN_BATCH_INVARIANT, 0);
        check_tables(all);
        for (uint32_t s = 0; s < all->n_sequences; s++) {
            const batch one = {1, {b.q_lens[s]}, {b.kv_lens[s]}};
            tess_plan *alone = make_batch(&one, TESS_PLAN_BATCH_INVARIANT, 0);
            const tess_share *in_all = share_of(all, b.q_lens[s]);
            assert_int_equal(1, alone->n_shares);
            assert_string_equal(alone->shares[0].kernel_name, in_all->kernel_name);
            assert_int_equal(alone->shares[0].most, in_all->most);
            assert_int_equal(in_all->most, rig.key.max_q_len);
            uint64_t found = 0, wanted = 0;
            for (uint64_t j = 0; j < all->memory.n_jobs; j++)
                wanted += all->tables.jobs[j].sequence == s;
            assert_int_equal(wanted, alone->memory.n_jobs);
            for (uint64_t i = 0; i < alone->memory.n_jobs; i++)
                for (uint64_t j = 0; j < all->memory.n_jobs; j++)
                    found += all->tables.jobs[j].sequence == s &&
                             same_job(&alone->tables.jobs[i], &all->tables.jobs[j]);
            assert_true(found >= wanted);
            tess_plan_release(alone);
        }
        tess_plan_release(all);
    }
}

static uint64_t partial_bytes(const tess_plan *plan, uint32_t n) {
    const tess_partials *p = &plan->memory.partials[n];
    return p->n * p->rows * (DIM + 2) * sizeof(float);
}

/* Steps of up to `q_len` rows a sequence. */
static tess_plan *make_steps(int64_t q_len) {
    tess_plan_desc d = plan_desc(4, q_len, TOKENS);
    d.flags = TESS_PLAN_DEVICE_LENGTHS;
    d.max_rows = q_len + 3;
    return make(layout, &d);
}

/* One launch prepares the steps of all kernels, each from a tess_step_plan of its own. */
static void check_prepare(const tess_plan *plan) {
    static _Alignas(256) char step[16 << 20];
    static int32_t zeros[8];
    const tess_tables *t = &plan->tables;
    const tess_prepare_desc d = {.struct_size = sizeof d,
                                 .batch = 4,
                                 .cu_rows = tess_host_buffer(zeros, sizeof zeros),
                                 .kv_lens = tess_host_buffer(zeros, sizeof zeros),
                                 .step = tess_host_buffer(step, sizeof step)};
    rig.launches = 0;
    if (tess_prepare(plan, &d) != TESS_OK) fail_msg("%s", tess_last_error());
    assert_int_equal(1, rig.launches);
    assert_int_equal(plan->n_shares * plan->pools.n, rig.ranges[0].n_jobs);
    assert_int_equal(plan->n_shares, t->n_step_plans);
    for (uint32_t n = 0; n < plan->n_shares; n++) {
        const char *at = (const char *)t->step_plan + n * t->step_plan_bytes;
        const tess_step_plan *words = (const tess_step_plan *)(const void *)at;
        assert_int_equal(plan->shares[n].above, words->q_above);
        assert_int_equal(plan->pools.n, words->n_groups);
    }
}

/* A row that has a shape for fewer rows serves all its sequences with one of them. In
 * batch-invariant plans each has its own, and in steps where another kernel follows: most of their
 * sequences have few rows, whatever the capacity is. The kernel for most rows has half of the room
 * for partial results. */
static void test_shapes(void **state) {
    (void)state;
    const batch b = {3, {3, 300, 12}, {40, 300, 70}}, few = {2, {3, 12}, {40, 70}};
    rig.rows[0] = (rig_row){
        .name = "few", .most_rows = FEW * GROUP, .fewer_rows = 4 * GROUP, .tile_rows = 32};
    rig.rows[1] = rig.rows[2];
    rig.n_rows = 2;
    tess_plan *plan = make_batch(&b, 0, 0);
    assert_int_equal(2, plan->n_shares);
    assert_int_equal(FEW, plan->shares[0].most);
    is_share(plan, 1, "rig/tiles", 64);
    tess_plan_release(plan);
    for (int n = 0; n < 2; n++) {
        plan = make_batch(n ? &few : &b, TESS_PLAN_BATCH_INVARIANT, 0);
        assert_int_equal(n ? 2 : 3, plan->n_shares);
        is_share(plan, 0, "rig/few", 32);
        is_share(plan, 1, "rig/few", 32);
        assert_int_equal(4, plan->shares[0].most);
        assert_int_equal(FEW, plan->shares[1].most);
        check_tables(plan);
        tess_plan_release(plan);
    }
    plan = make_batch(&few, 0, 0);
    assert_int_equal(1, plan->n_shares);
    assert_int_equal(12, rig.key.max_q_len);
    tess_plan_release(plan);
    rig.rows[2] = (rig_row){.name = "prepare", .op = TESS_OP_PREPARE};
    rig.n_rows = 3;
    rig.caps.features = UINT32_MAX;
    rig.caps.parallel_jobs = 1 << 16;
    tess_device_release(device);
    device = open_device(runtime);
    plan = make_steps(FEW);
    assert_int_equal(1, plan->n_shares);
    tess_plan_release(plan);
    plan = make_steps(300);
    assert_int_equal(3, plan->n_shares);
    is_share(plan, 0, "rig/few", 32);
    is_share(plan, 1, "rig/few", 32);
    is_share(plan, 2, "rig/tiles", 64);
    assert_int_equal(4, plan->shares[0].most);
    assert_int_equal(FEW, plan->shares[1].most);
    for (uint32_t n = 0; n < 3; n++)
        assert_in_range(partial_bytes(plan, n), 1, (24 << 20) / (n == 2 ? 2 : 4));
    assert_in_range(partial_bytes(plan, 2), (24 << 20) / 4, 24 << 20);
    check_prepare(plan);
    tess_plan_release(plan);
    /* The scratch memory of a CPU grows with its threads, which must not decide about parts. */
    plan = make_steps(300);
    const uint64_t jobs = query(plan).n_jobs;
    assert_in_range(query(plan).workspace_bytes, 20 << 20, 24 << 20);
    tess_plan_release(plan);
    rig.kernel.scratch_bytes = 100 << 20;
    plan = make_steps(300);
    assert_int_equal(jobs, query(plan).n_jobs);
    assert_in_range(query(plan).workspace_bytes, 120 << 20, 124 << 20);
    tess_plan_release(plan);
}

/* ------------------------------------------------------------------ workspace and launches */

static uint64_t aligned(uint64_t bytes) { return (bytes + 63) / 64 * 64; }

static void test_workspace(void **state) {
    (void)state;
    for (int32_t kv_split = 1; kv_split < 4; kv_split++) {
        tess_plan *plan = make_batch(&mixed, 0, kv_split);
        uint64_t end = 100;
        for (uint32_t n = 0; n < plan->n_shares; n++) {
            assert_int_equal(kv_split > 1, plan->memory.partials[n].n > 0);
            if (plan->memory.partials[n].n == 0) continue;
            assert_int_equal(aligned(end), plan->memory.partials[n].at);
            end = aligned(end) + partial_bytes(plan, n);
        }
        assert_int_equal(end, query(plan).workspace_bytes);
        tess_plan_release(plan);
    }
}

/* Each kernel gets what the range has of its jobs and merges, and nothing is launched in vain. */
static void check_range(const tess_plan *plan, const tess_run_desc *run) {
    const uint64_t jobs = plan->memory.n_jobs, total = jobs + plan->memory.n_merges,
                   end = run->job_count ? run->first_job + run->job_count : total;
    uint64_t seen = 0;
    rig.launches = 0;
    if (tess_run(plan, run) != TESS_OK) fail_msg("%s", tess_last_error());
    assert_in_range(rig.launches, 1, plan->n_shares);
    for (int n = 0; n < rig.launches; n++) {
        const rig_range *r = &rig.ranges[n];
        uint32_t s = 0;
        while (&plan->shares[s].kernel != r->kernel) assert_true(++s < plan->n_shares);
        const tess_share *share = &plan->shares[s];
        assert_true(n == 0 || r[-1].kernel < r->kernel);
        assert_true(r->n_jobs + r->n_merges > 0);
        assert_int_equal(plan->memory.partials[s].at, r->partials_at);
        assert_int_equal(plan->memory.partials[s].rows, r->partial_rows);
        if (r->n_jobs)
            assert_true(r->first_job >= share->first_job && r->first_job >= run->first_job &&
                        r->first_job + r->n_jobs <= share->first_job + share->n_jobs &&
                        r->first_job + r->n_jobs <= end);
        if (r->n_merges)
            assert_true(r->first_merge >= share->first_merge &&
                        jobs + r->first_merge >= run->first_job &&
                        r->first_merge + r->n_merges <= share->first_merge + share->n_merges &&
                        jobs + r->first_merge + r->n_merges <= end);
        seen += r->n_jobs + r->n_merges;
    }
    assert_int_equal(end - run->first_job, seen);
}

static void test_launches(void **state) {
    (void)state;
    const batch b = {3, {1, 12, 70}, {200, 100, 130}};
    tess_plan *plan = make_batch(&b, 0, 2);
    const tess_plan_info info = query(plan);
    static _Alignas(64) char memory[6][1 << 20];
    tess_run_desc run = {.struct_size = sizeof run,
                         .workspace = tess_host_buffer(memory[5], sizeof memory[5])};
    tess_tensor *const tensors[] = {&run.q, &run.k, &run.v, &run.o, &run.lse};
    for (int n = 0; n < 5; n++)
        assert_int_equal(TESS_OK, tess_plan_tensor(plan, (tess_role)n,
                                                   tess_host_buffer(memory[n], sizeof memory[n]),
                                                   tensors[n], NULL));
    assert_int_equal(3, plan->n_shares);
    check_range(plan, &run);
    assert_int_equal(3, rig.launches);
    for (run.first_job = 0; run.first_job < info.n_jobs; run.first_job++)
        for (run.job_count = 1; run.first_job + run.job_count <= info.n_jobs; run.job_count++)
            check_range(plan, &run);
    /* Signals would come once for each kernel. */
    run.first_job = run.job_count = 0;
    run.stream.kind = TESS_STREAM_SUBMIT;
    run.stream.extra = memory;
    rig.launches = 0;
    assert_error(tess_run(plan, &run), TESS_ERROR_UNSUPPORTED, "tess_run", "stream.extra");
    assert_int_equal(0, rig.launches);
    tess_plan_release(plan);
}

/* More kernels for few rows than a plan has room for: which of them a sequence gets follows from
 * its own rows also where the others have none of these. */
static void test_many_kernels(void **state) {
    (void)state;
    const rig_row rows[] = {{.name = "four", .most_rows = 4 * GROUP, .tile_rows = 16},
                            {.name = "eight", .most_rows = 8 * GROUP, .tile_rows = 16},
                            {.name = "few", .most_rows = FEW * GROUP, .tile_rows = 32},
                            {.name = "tiles", .tile_rows = 64}};
    static const batch batches[] = {{3, {4, 8, 16}, {100, 100, 100}},
                                    {2, {4, 16}, {100, 100}},
                                    {1, {16}, {100}},
                                    {2, {16, 300}, {100, 300}}};
    memcpy(rig.rows, rows, sizeof rows);
    rig.n_rows = 4;
    for (size_t n = 0; n < sizeof batches / sizeof *batches; n++) {
        tess_plan *plan = make_batch(&batches[n], TESS_PLAN_BATCH_INVARIANT, 0);
        assert_string_equal("tiles", strchr(share_of(plan, 16)->kernel_name, '/') + 1);
        tess_plan_release(plan);
    }
    /* Where bits may depend on the others, the kernels go to whoever is there. */
    tess_plan *plan = make_batch(&batches[3], 0, 0);
    assert_string_equal("few", strchr(share_of(plan, 16)->kernel_name, '/') + 1);
    tess_plan_release(plan);
}

int main(void) {
    return RUN_TESTS_BETWEEN(setup_rows, teardown, TEST(test_mixed), TEST(test_alone),
                             TEST(test_refused), TEST(test_compact), TEST(test_invariant),
                             TEST(test_many_kernels), TEST(test_shapes), TEST(test_workspace),
                             TEST(test_launches));
}
