/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps from end to end, on every device and kernel that has them: tess_prepare and tess_run
 * against plain attention in double, against plans that know the lengths on the host, with hostile
 * lengths, several steps at once, and steps that shrink to nothing.
 */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/testlib.h"
#include "prepare.h"

enum {
    D = 16,
    HEADS = 4,
    KV_HEADS = 2,
    BATCH = 4,
    Q_LEN = 20,
    KV_LEN = 2300,
    ROWS = 30,
    STEPS = 14
};

/* One plan with its tensors, in the device's memory. K and V hold NaN where a sequence has no
 * keys. */
typedef struct rig {
    const test_target *target;
    tess_layout *layout;
    tess_plan *plan;
    tess_plan_info info;
    float *q, *k, *v, *o, *lse;
    tess_buffer q_at, k_at, v_at, o_at, lse_at, work, step, cu_at, kv_at, first_at;
    int32_t cu_rows[BATCH + 1], kv_lens[BATCH], q_first[BATCH], kv_first[BATCH];
    bool has_first; /* the step is given q_first */
    bool has_parts; /* and kv_first */
    bool trusted;   /* the plan has TESS_PLAN_TRUST_DEVICE */
} rig;

static uint64_t bytes_of(tess_role role) {
    switch (role) {
    case TESS_ROLE_K:
    case TESS_ROLE_V: return (uint64_t)BATCH * KV_LEN * KV_HEADS * D * sizeof(float);
    case TESS_ROLE_LSE: return (uint64_t)HEADS * ROWS * sizeof(float);
    default: return (uint64_t)ROWS * HEADS * D * sizeof(float);
    }
}

static float *room(uint64_t bytes) {
    float *memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (!memory) fail_msg("out of memory");
    return memory;
}

static void fill(float *x, uint64_t bytes, uint64_t *seed) {
    for (uint64_t n = 0; n < bytes / sizeof *x; n++)
        x[n] = (float)test_between(seed, -1000, 1000) / 500;
}

static tess_plan_desc plan_desc(const test_target *target, uint32_t flags, int32_t kv_split) {
    return (tess_plan_desc){.struct_size = sizeof(tess_plan_desc),
                            .flags = flags,
                            .head_dim = D,
                            .kv_split = kv_split,
                            .kernel = target->kernel[0] ? target->kernel : NULL};
}

/* False: the kernel or the device has no steps. */
static bool rig_create(rig *r, tess_runtime *runtime, const test_target *target,
                       const tess_pattern *pattern, uint32_t flags, int32_t kv_split) {
    uint64_t seed = 11;
    const tess_layout_desc ld = {.struct_size = sizeof ld,
                                 .pattern = pattern,
                                 .n_heads = HEADS,
                                 .n_kv_heads = KV_HEADS,
                                 .max_tokens = KV_LEN};
    memset(r, 0, sizeof *r);
    r->target = target;
    r->info.struct_size = sizeof r->info;
    r->trusted = (flags & TESS_PLAN_TRUST_DEVICE) != 0;
    assert_ok(tess_layout_create(runtime, &ld, &r->layout));
    tess_plan_desc d = plan_desc(target, flags | TESS_PLAN_DEVICE_LENGTHS, kv_split);
    d.batch = BATCH;
    d.q_len = Q_LEN;
    d.kv_len = KV_LEN;
    d.max_rows = ROWS;
    const tess_status status = tess_plan_create(target->device, r->layout, &d, &r->plan);
    if (status == TESS_ERROR_UNSUPPORTED) {
        tess_layout_release(r->layout);
        return false;
    }
    assert_ok(status);
    assert_ok(tess_plan_query(r->plan, &r->info));
    r->q = room(bytes_of(TESS_ROLE_Q));
    r->k = room(bytes_of(TESS_ROLE_K));
    r->v = room(bytes_of(TESS_ROLE_V));
    r->o = room(bytes_of(TESS_ROLE_O));
    r->lse = room(bytes_of(TESS_ROLE_LSE));
    fill(r->q, bytes_of(TESS_ROLE_Q), &seed);
    fill(r->k, bytes_of(TESS_ROLE_K), &seed);
    fill(r->v, bytes_of(TESS_ROLE_V), &seed);
    r->q_at = test_upload(target->device, r->q, bytes_of(TESS_ROLE_Q));
    r->k_at = test_upload(target->device, r->k, bytes_of(TESS_ROLE_K));
    r->v_at = test_upload(target->device, r->v, bytes_of(TESS_ROLE_V));
    r->o_at = test_upload(target->device, NULL, bytes_of(TESS_ROLE_O));
    r->lse_at = test_upload(target->device, NULL, bytes_of(TESS_ROLE_LSE));
    if (r->info.workspace_bytes)
        r->work = test_upload(target->device, NULL, r->info.workspace_bytes);
    r->step = test_upload(target->device, NULL, r->info.step_bytes);
    r->cu_at = test_upload(target->device, NULL, sizeof r->cu_rows);
    r->kv_at = test_upload(target->device, NULL, sizeof r->kv_lens);
    r->first_at = test_upload(target->device, NULL, sizeof r->q_first);
    return true;
}

static void rig_release(rig *r) {
    tess_buffer *const all[] = {&r->q_at, &r->k_at, &r->v_at,  &r->o_at,  &r->lse_at,
                                &r->work, &r->step, &r->cu_at, &r->kv_at, &r->first_at};
    for (size_t n = 0; n < sizeof all / sizeof *all; n++)
        assert_ok(tess_free(r->target->device, all[n]));
    tess_plan_release(r->plan);
    tess_layout_release(r->layout);
    void *const arrays[] = {r->q, r->k, r->v, r->o, r->lse};
    for (size_t n = 0; n < sizeof arrays / sizeof *arrays; n++) free(arrays[n]);
}

static void copy_in(const rig *r, tess_buffer to, const void *from, uint64_t bytes) {
    assert_ok(tess_copy(r->target->device, to, tess_host_buffer(from, bytes), bytes));
}

/* Prepares `step` for the rig's lengths. */
static void prepare(const rig *r, uint32_t batch, tess_buffer step) {
    const tess_prepare_desc d = {.struct_size = sizeof d,
                                 .batch = batch,
                                 .cu_rows = r->cu_at,
                                 .kv_lens = r->kv_at,
                                 .q_first = r->has_first ? r->first_at : (tess_buffer){0},
                                 .step = step};
    copy_in(r, r->first_at, r->q_first, sizeof r->q_first);
    copy_in(r, r->cu_at, r->cu_rows, sizeof r->cu_rows);
    copy_in(r, r->kv_at, r->kv_lens, sizeof r->kv_lens);
    assert_ok(tess_prepare(r->plan, &d));
}

static tess_run_desc run_desc(const rig *r, tess_buffer step) {
    tess_run_desc d = {.struct_size = sizeof d, .workspace = r->work, .step = step};
    assert_ok(tess_plan_tensor(r->plan, TESS_ROLE_Q, r->q_at, &d.q, NULL));
    assert_ok(tess_plan_tensor(r->plan, TESS_ROLE_K, r->k_at, &d.k, NULL));
    assert_ok(tess_plan_tensor(r->plan, TESS_ROLE_V, r->v_at, &d.v, NULL));
    assert_ok(tess_plan_tensor(r->plan, TESS_ROLE_O, r->o_at, &d.o, NULL));
    assert_ok(tess_plan_tensor(r->plan, TESS_ROLE_LSE, r->lse_at, &d.lse, NULL));
    return d;
}

/* Runs the step, and brings O and LSE to the host; what no row of it covers must stay NaN. */
static void run(const rig *r, tess_buffer step) {
    const tess_run_desc d = run_desc(r, step);
    memset(r->o, 0xff, bytes_of(TESS_ROLE_O));
    memset(r->lse, 0xff, bytes_of(TESS_ROLE_LSE));
    copy_in(r, r->o_at, r->o, bytes_of(TESS_ROLE_O));
    copy_in(r, r->lse_at, r->lse, bytes_of(TESS_ROLE_LSE));
    assert_ok(tess_run(r->plan, &d));
    assert_ok(tess_wait(r->target->device, UINT64_MAX));
    test_download(r->target->device, r->o_at, r->o, bytes_of(TESS_ROLE_O));
    test_download(r->target->device, r->lse_at, r->lse, bytes_of(TESS_ROLE_LSE));
}

/* ------------------------------------------------------------------ the same step in C */

/* A job, with its part of the row's keys instead of its place among the partial results. */
static int compare_jobs(const void *a, const void *b) { return memcmp(a, b, sizeof(tess_job)); }

static tess_job *sorted_jobs(const uint32_t *step, const tess_step_plan *plan) {
    const tess_step_head *head = (const tess_step_head *)step;
    const tess_merge *merge = (const tess_merge *)(step + plan->merges_at);
    const uint64_t bytes = (head->n_jobs + UINT64_C(1)) * sizeof(tess_job);
    tess_job *jobs = (tess_job *)room(bytes);
    memcpy(jobs, step + plan->jobs_at, bytes - sizeof *jobs);
    for (uint32_t n = 0; n < head->n_jobs; n++) {
        if (jobs[n].partial == TESS_NO_PARTIAL) continue;
        uint32_t m = 0;
        while (m < head->n_merges && jobs[n].partial - merge[m].partial >= merge[m].parts) m++;
        assert_true(m < head->n_merges && merge[m].sequence == jobs[n].sequence &&
                    merge[m].head == jobs[n].head && merge[m].row == jobs[n].row);
        jobs[n].partial -= merge[m].partial;
    }
    qsort(jobs, head->n_jobs, sizeof *jobs, compare_jobs);
    return jobs;
}

/* The device has made the set of jobs that the kernel in C makes. Returns the length of parts that
 * the step has chosen. */
static uint32_t same_step(const rig *r, uint32_t batch, tess_buffer at, const int32_t *cu_rows,
                          const int32_t *kv_lens) {
    const uint64_t bytes = r->info.step_bytes;
    uint32_t *step = (uint32_t *)room(bytes), *own = (uint32_t *)room(bytes);
    test_download(r->target->device, at, step, bytes);
    const tess_step_head *head = (const tess_step_head *)step;
    assert_true(head->plan_at < bytes / 4 - TESS_STEP_PLAN_WORDS);
    const tess_step_plan *plan = (const tess_step_plan *)(step + head->plan_at);
    tess_args args;
    memset(&args, 0, sizeof args);
    args.items = batch;
    args.items_at = head->plan_at;
    args.group = plan->n_groups;
    args.classes_at = plan->copy_to;
    args.flags = (r->has_first ? TESS_ARGS_FIRST : 0) | (r->trusted ? TESS_ARGS_TRUST : 0);
    tess_prepare_on_host(&args, 1, step, cu_rows, kv_lens, r->q_first, r->kv_first, own);
    assert_memory_equal(own, step, 7 * sizeof *step);
    assert_memory_equal(own + plan->sequences_at, step + plan->sequences_at,
                        batch * sizeof(tess_sequence));
    tess_job *a = sorted_jobs(step, plan), *b = sorted_jobs(own, plan);
    assert_memory_equal(a, b, head->n_jobs * sizeof *a);
    const uint32_t length = head->length;
    free(a);
    free(b);
    free(step);
    free(own);
    return length;
}

/* ------------------------------------------------------------------ plain attention */

static void check_row(const rig *r, uint32_t b, int32_t row, int32_t position, int32_t kv_len,
                      int32_t head) {
    static double score[KV_LEN];
    double most = -INFINITY, sum = 0, o[D] = {0};
    const float *q = r->q + ((size_t)row * HEADS + (size_t)head) * D;
    const size_t first = (size_t)b * KV_LEN * KV_HEADS + (size_t)(head / (HEADS / KV_HEADS));
    for (int32_t t = 0; t < kv_len; t++) {
        int kept = 0;
        assert_ok(tess_layout_kept(r->layout, head, position, t, &kept));
        score[t] = -INFINITY;
        if (!kept) continue;
        score[t] = 0;
        for (int d = 0; d < D; d++)
            score[t] += (double)q[d] * r->k[(first + (size_t)t * KV_HEADS) * D + (size_t)d] / 4;
        if (score[t] > most) most = score[t];
    }
    for (int32_t t = 0; t < kv_len; t++) {
        const double weight = score[t] == -INFINITY ? 0 : exp(score[t] - most);
        sum += weight;
        for (int d = 0; d < D; d++)
            o[d] += weight * r->v[(first + (size_t)t * KV_HEADS) * D + (size_t)d];
    }
    const float *got = r->o + ((size_t)row * HEADS + (size_t)head) * D,
                lse = r->lse[(size_t)head * ROWS + (size_t)row];
    for (int d = 0; d < D; d++) {
        const double want = sum == 0 ? 0 : o[d] / sum;
        if (!(fabs((double)got[d] - want) <= 2e-5 * (1 + fabs(want))))
            fail_msg("%s %s: sequence %u, row %d, head %d, element %d: %g, not %g", r->target->id,
                     r->target->kernel, b, row, head, d, (double)got[d], want);
    }
    const double want = sum == 0 ? -INFINITY : most + log(sum);
    if (sum == 0 ? lse != -INFINITY : !(fabs((double)lse - want) <= 2e-5 * (1 + fabs(want))))
        fail_msg("%s: LSE of row %d, head %d: %g, not %g", r->target->id, row, head, (double)lse,
                 want);
}

/* Rows that belong to a sequence, and those that none of the step's has. */
static void check_rows(const rig *r, uint32_t b, int32_t begin, int32_t q_len, int32_t first,
                       int32_t keys) {
    for (int32_t row = 0; row < q_len; row++)
        for (int32_t head = 0; head < HEADS; head++)
            check_row(r, b, begin + row, first + row, keys, head);
}
static void check_alone(const rig *r, int32_t from, int32_t to) {
    for (int32_t n = from * HEADS * D; n < to * HEADS * D; n++) assert_true(isnan(r->o[n]));
}

/* Every row of the step, and that all others were left alone. */
static void check(const rig *r, uint32_t batch) {
    for (uint32_t b = 0; b < batch; b++) {
        const int32_t q_len = r->cu_rows[b + 1] - r->cu_rows[b];
        check_rows(r, b, r->cu_rows[b], q_len, r->has_first ? r->q_first[b] : r->kv_lens[b] - q_len,
                   r->kv_lens[b]);
    }
    check_alone(r, batch ? r->cu_rows[batch] : 0, ROWS);
}

/* Lengths of step number `n`; some have no rows, no keys, or more rows than keys. */
static uint32_t random_lengths(rig *r, uint64_t *seed, int n) {
    const uint32_t batch = n % 5 == 4 ? (uint32_t)test_between(seed, 0, BATCH) : BATCH;
    memset(r->cu_rows, 0, sizeof r->cu_rows);
    memset(r->kv_lens, 0, sizeof r->kv_lens);
    for (uint32_t b = 0; b < batch; b++) {
        const int64_t left = ROWS - r->cu_rows[b], most = n % 3 == 0 ? 1 : n % 3 == 1 ? 8 : Q_LEN;
        r->cu_rows[b + 1] =
            r->cu_rows[b] + (int32_t)test_between(seed, n % 3 == 0, left < most ? left : most);
        r->kv_lens[b] = (int32_t)test_between(seed, 0, n % 4 == 0 ? 9 : KV_LEN);
    }
    for (uint32_t b = batch; b < BATCH; b++) r->cu_rows[b + 1] = r->cu_rows[b];
    return batch;
}

/* NaN past the keys of each sequence, in blocks that no row reads. */
static void spoil_rest(const rig *r) {
    const size_t row = KV_HEADS * D;
    float *k = room(bytes_of(TESS_ROLE_K)), *v = room(bytes_of(TESS_ROLE_V));
    memcpy(k, r->k, bytes_of(TESS_ROLE_K));
    memcpy(v, r->v, bytes_of(TESS_ROLE_V));
    for (uint32_t b = 0; b < BATCH; b++)
        for (size_t n = ((size_t)b * KV_LEN + (size_t)r->kv_lens[b]) * row;
             n < ((size_t)b + 1) * KV_LEN * row; n++)
            k[n] = v[n] = NAN;
    copy_in(r, r->k_at, k, bytes_of(TESS_ROLE_K));
    copy_in(r, r->v_at, v, bytes_of(TESS_ROLE_V));
    free(k);
    free(v);
}

/* ------------------------------------------------------------------ the tests */

static test_targets targets;

static const tess_pattern patterns[] = {
    {.struct_size = sizeof(tess_pattern), .kind = TESS_PATTERN_DENSE, .block = 32},
    {.struct_size = sizeof(tess_pattern),
     .kind = TESS_PATTERN_S2,
     .block = 16,
     .local = 3,
     .stride = 4,
     .dense_heads = 1},
    {.struct_size = sizeof(tess_pattern),
     .kind = TESS_PATTERN_WINDOW,
     .block = 16,
     .left = 100,
     .sinks = 20},
};
enum { PATTERNS = sizeof patterns / sizeof *patterns };

static void on_every_target(void (*test)(rig *r), uint32_t flags, int32_t kv_split) {
    int n_steps = 0;
    for (int t = 0; t < targets.count; t++) {
        for (int p = 0; p < PATTERNS; p++) {
            rig r;
            if (!rig_create(&r, targets.runtime, &targets.items[t], &patterns[p], flags, kv_split))
                continue;
            n_steps++;
            test(&r);
            rig_release(&r);
        }
    }
    assert_true(n_steps > 0);
}

/* Merges of the steps that many_steps has run. */
static uint64_t merges;

static void many_steps(rig *r) {
    uint64_t seed = 4;
    uint32_t head[8];
    for (int n = 0; n < (r->target->software ? STEPS / 3 : STEPS); n++) {
        const uint32_t batch = random_lengths(r, &seed, n);
        spoil_rest(r);
        prepare(r, batch, r->step);
        run(r, r->step);
        check(r, batch);
        (void)same_step(r, batch, r->step, r->cu_rows, r->kv_lens);
        test_download(r->target->device, r->step, head, sizeof head);
        assert_int_equal(0, head[TESS_STEP_CLAMPED]);
        merges += head[TESS_STEP_MERGES];
    }
}

/* Rows lie where q_first says: before, within and past the keys. */
static void positions(rig *r) {
    uint64_t seed = 14;
    r->has_first = true;
    for (int n = 0; n < (r->target->software ? 2 : STEPS); n++) {
        const uint32_t batch = random_lengths(r, &seed, n);
        for (uint32_t b = 0; b < BATCH; b++)
            r->q_first[b] = (int32_t)test_between(&seed, 0, KV_LEN - Q_LEN);
        spoil_rest(r);
        prepare(r, batch, r->step);
        run(r, r->step);
        check(r, batch);
        (void)same_step(r, batch, r->step, r->cu_rows, r->kv_lens);
    }
}
static void test_positions(void **state) {
    (void)state;
    on_every_target(positions, 0, 3);
}

static void with_parts(uint32_t flags, int32_t kv_split) {
    merges = 0;
    on_every_target(many_steps, flags, kv_split);
    /* Of so few keys a GPU's kernel need not make parts by itself: see test_long_steps. */
    if (kv_split != 0 || flags != 0 || targets.items[0].host_memory) assert_true(merges > 0);
}
static void test_free_split(void **state) {
    (void)state;
    with_parts(0, 0);
}
static void test_equal_parts(void **state) {
    (void)state;
    with_parts(0, 3);
}
static void test_invariant(void **state) {
    (void)state;
    with_parts(TESS_PLAN_BATCH_INVARIANT, 0);
}

/* A plan of capacities without tensors, for what is prepared alone. False: no kernel has steps. */
static bool capacity_open(rig *r, const test_target *target, const tess_pattern *pattern,
                          const tess_plan_desc *capacities) {
    const tess_layout_desc ld = {.struct_size = sizeof ld,
                                 .pattern = pattern,
                                 .n_heads = HEADS,
                                 .n_kv_heads = KV_HEADS,
                                 .max_tokens = capacities->kv_len};
    tess_plan_desc d = plan_desc(target, TESS_PLAN_DEVICE_LENGTHS, 0);
    *r = (rig){.target = target, .info = {.struct_size = sizeof r->info}};
    d.batch = capacities->batch;
    d.q_len = capacities->q_len;
    d.kv_len = capacities->kv_len;
    d.max_rows = capacities->max_rows;
    assert_ok(tess_layout_create(targets.runtime, &ld, &r->layout));
    const tess_status status = tess_plan_create(target->device, r->layout, &d, &r->plan);
    if (status == TESS_OK) {
        /* Without parts a plan needs scratch memory alone. */
        tess_plan *whole = NULL;
        d.kv_split = 1;
        assert_ok(tess_plan_create(target->device, r->layout, &d, &whole));
        assert_ok(tess_plan_query(whole, &r->info));
        const uint64_t scratch = target->host_memory ? r->info.workspace_bytes : 0;
        tess_plan_release(whole);
        assert_ok(tess_plan_query(r->plan, &r->info));
        assert_true(r->info.workspace_bytes <= scratch + (24 << 20));
        r->step = test_upload(target->device, NULL, r->info.step_bytes);
        return true;
    }
    assert_int_equal(TESS_ERROR_UNSUPPORTED, status);
    tess_layout_release(r->layout);
    return false;
}

static void capacity_close(rig *r) {
    assert_ok(tess_free(r->target->device, &r->step));
    tess_plan_release(r->plan);
    tess_layout_release(r->layout);
}

/* Prepares these lengths, and compares the step. Returns the length of parts in it. */
static uint32_t capacity_step(rig *r, uint32_t batch, const int32_t *cu_rows,
                              const int32_t *kv_lens) {
    r->cu_at = test_upload(r->target->device, cu_rows, (batch + 1) * sizeof *cu_rows);
    r->kv_at = test_upload(r->target->device, kv_lens, batch * sizeof *kv_lens);
    const tess_prepare_desc x = {.struct_size = sizeof x,
                                 .batch = batch,
                                 .cu_rows = r->cu_at,
                                 .kv_lens = r->kv_at,
                                 .step = r->step};
    assert_ok(tess_prepare(r->plan, &x));
    assert_ok(tess_wait(r->target->device, UINT64_MAX));
    const uint32_t length = same_step(r, batch, r->step, cu_rows, kv_lens);
    assert_ok(tess_free(r->target->device, &r->cu_at));
    assert_ok(tess_free(r->target->device, &r->kv_at));
    return length;
}

/* Long contexts, of which the step makes parts by itself, and many sequences: without a run, since
 * their keys would take much memory. */
static void test_long_steps(void **state) {
    (void)state;
    enum { MOST = 700 };
    static const tess_plan_desc capacities = {
        .batch = MOST, .q_len = 40, .kv_len = 1 << 19, .max_rows = 2 * MOST};
    static int32_t cu_rows[MOST + 1], kv_lens[MOST];
    uint64_t seed = 31, parts = 0;
    for (int t = 0; t < targets.count; t++)
        for (int p = 0; p < PATTERNS; p++) {
            rig r;
            if (!capacity_open(&r, &targets.items[t], &patterns[p], &capacities)) continue;
            for (int n = 0; n < 4; n++) {
                const uint32_t batch = n == 0 ? 1 : n == 1 ? 4 : n == 2 ? 300 : MOST;
                for (uint32_t b = 0; b < batch; b++) {
                    cu_rows[b + 1] =
                        cu_rows[b] + (int32_t)test_between(&seed, n % 2, n == 2 ? 3 : 1);
                    kv_lens[b] = (int32_t)test_between(&seed, n < 2 ? 1 << 18 : 0, 1 << 19);
                }
                parts += capacity_step(&r, batch, cu_rows, kv_lens);
            }
            capacity_close(&r);
        }
    assert_true(parts > 0);
}

/* A step of 65,536 sequences, some of them without rows or without keys. */
static void test_many_sequences(void **state) {
    (void)state;
    enum { MOST = 65536, KEYS = 300 };
    static const tess_plan_desc capacities = {
        .batch = MOST, .q_len = 2, .kv_len = KEYS, .max_rows = 2 * MOST};
    static int32_t cu_rows[MOST + 1], kv_lens[MOST];
    uint64_t seed = 37;
    for (uint32_t b = 0; b < MOST; b++) {
        cu_rows[b + 1] = cu_rows[b] + (int32_t)test_between(&seed, 0, 2);
        kv_lens[b] = (int32_t)test_between(&seed, 0, KEYS);
    }
    for (int t = 0; t < targets.count; t++) {
        rig r;
        if (t > 0 && targets.items[t].device == targets.items[t - 1].device) continue;
        if (!capacity_open(&r, &targets.items[t], &patterns[1], &capacities)) continue;
        (void)capacity_step(&r, MOST, cu_rows, kv_lens);
        capacity_close(&r);
    }
}

/* In batch-invariant mode the bits of a sequence are those of a plan for it alone whose lengths the
 * host knows. */
static void same_bits(rig *r) {
    uint64_t seed = 9;
    for (int n = 0; n < STEPS / 2; n++) {
        const uint32_t batch = random_lengths(r, &seed, n);
        prepare(r, batch, r->step);
        run(r, r->step);
        for (uint32_t b = 0; b < batch; b++) {
            const int32_t q_len = r->cu_rows[b + 1] - r->cu_rows[b];
            tess_plan_desc d = plan_desc(r->target, TESS_PLAN_BATCH_INVARIANT, 0);
            tess_plan *plan = NULL;
            tess_plan_info info = {.struct_size = sizeof info};
            if (q_len == 0) continue;
            d.batch = 1;
            d.q_len = q_len;
            d.kv_len = r->kv_lens[b];
            assert_ok(tess_plan_create(r->target->device, r->layout, &d, &plan));
            assert_ok(tess_plan_query(plan, &info));
            tess_run_desc x = run_desc(r, r->step);
            tess_buffer work = {0};
            if (info.workspace_bytes)
                work = test_upload(r->target->device, NULL, info.workspace_bytes);
            x.step = (tess_buffer){0};
            x.workspace = work;
            const uint64_t rows = (uint64_t)r->cu_rows[b] * HEADS * D * sizeof(float),
                           keys = (uint64_t)b * KV_LEN * KV_HEADS * D * sizeof(float);
            x.q.buffer.offset += rows;
            x.o.buffer.offset += rows;
            x.k.buffer.offset += keys;
            x.v.buffer.offset += keys;
            x.lse.buffer.offset += (uint64_t)r->cu_rows[b] * sizeof(float);
            assert_ok(tess_run(plan, &x));
            assert_ok(tess_wait(r->target->device, UINT64_MAX));
            float *o = room(bytes_of(TESS_ROLE_O));
            test_download(r->target->device, r->o_at, o, bytes_of(TESS_ROLE_O));
            assert_memory_equal(o, r->o, bytes_of(TESS_ROLE_O));
            free(o);
            assert_ok(tess_free(r->target->device, &work));
            tess_plan_release(plan);
        }
    }
}
static void test_same_bits(void **state) {
    (void)state;
    on_every_target(same_bits, TESS_PLAN_BATCH_INVARIANT, 0);
}

/* A plan has two steps at once; each keeps its lengths, whatever is prepared or run meanwhile, and
 * a batch that shrinks to 0 writes nothing. */
static void two_steps(rig *r) {
    uint64_t seed = 21;
    tess_buffer other = test_upload(r->target->device, NULL, r->info.step_bytes);
    rig first, second;
    first = *r;
    const uint32_t batch_first = random_lengths(&first, &seed, 1);
    prepare(&first, batch_first, r->step);
    second = *r;
    const uint32_t batch_second = random_lengths(&second, &seed, 2);
    prepare(&second, batch_second, other);
    for (int n = 0; n < 2; n++) {
        run(&first, r->step);
        check(&first, batch_first);
        run(&second, other);
        check(&second, batch_second);
    }
    prepare(&second, 0, other);
    run(&second, other);
    check(&second, 0);
    run(&first, r->step);
    check(&first, batch_first);
    assert_ok(tess_free(r->target->device, &other));
}
static void test_two_steps(void **state) {
    (void)state;
    on_every_target(two_steps, 0, 0);
}

/* Lengths out of range count as the nearest legal ones, and the step tells how many were. */
static void hostile(rig *r) {
    static const int32_t cu_rows[BATCH + 1] = {0, 7, -3, 90, 5}, kv_lens[BATCH] = {-1, 5000, 50, 9},
                                         q_first[BATCH] = {INT32_MIN, 7, INT32_MAX, -1};
    uint32_t head[8];
    memcpy(r->cu_rows, cu_rows, sizeof cu_rows);
    memcpy(r->kv_lens, kv_lens, sizeof kv_lens);
    memcpy(r->q_first, q_first, sizeof q_first);
    r->has_first = true;
    prepare(r, BATCH, r->step);
    run(r, r->step);
    (void)same_step(r, BATCH, r->step, r->cu_rows, r->kv_lens);
    test_download(r->target->device, r->step, head, sizeof head);
    assert_int_equal(5 + 3, head[TESS_STEP_CLAMPED]);
    /* 7 rows without keys; none, of 5000 keys; 20 rows (its capacity) of 50 keys; none. The third
     * one's are at the end of the keys. */
    const int32_t legal_rows[BATCH + 1] = {0, 7, 7, 27, 27}, legal_keys[BATCH] = {0, KV_LEN, 50, 9},
                                     legal_first[BATCH] = {0, 7, KV_LEN, 0};
    memcpy(r->cu_rows, legal_rows, sizeof legal_rows);
    memcpy(r->kv_lens, legal_keys, sizeof legal_keys);
    memcpy(r->q_first, legal_first, sizeof legal_first);
    check(r, BATCH);
}
static void test_hostile(void **state) {
    (void)state;
    on_every_target(hostile, 0, 0);
}

/* In every other place a legal value, else any other. */
static int32_t hostile_value(uint64_t *seed, int32_t most) {
    const int32_t ends[] = {INT32_MIN, INT32_MIN + 1, -1, most + 1, INT32_MAX - 1, INT32_MAX};
    const int64_t n = test_between(seed, 0, 13);
    if (n < 6) return ends[n];
    return (int32_t)(n < 7 ? test_between(seed, INT32_MIN, INT32_MAX)
                           : test_between(seed, 0, most));
}

static int32_t nearest(int32_t x, int32_t most) { return x < 0 ? 0 : x > most ? most : x; }

/* Values of every kind at once, against what the header says that they count as. */
static void random_hostile(rig *r) {
    uint64_t seed = 15;
    uint32_t head[8];
    for (int n = 0; n < (r->target->software ? 2 : 8); n++) {
        for (int b = 0; b <= BATCH; b++) r->cu_rows[b] = hostile_value(&seed, ROWS);
        for (int b = 0; b < BATCH; b++) {
            r->kv_lens[b] = hostile_value(&seed, KV_LEN);
            r->q_first[b] = hostile_value(&seed, KV_LEN);
        }
        r->has_first = n % 4 != 3;
        prepare(r, BATCH, r->step);
        run(r, r->step);
        (void)same_step(r, BATCH, r->step, r->cu_rows, r->kv_lens);
        test_download(r->target->device, r->step, head, sizeof head);
        int32_t begin = nearest(r->cu_rows[0], ROWS), covered = 0;
        uint32_t changed = begin != r->cu_rows[0];
        for (uint32_t b = 0; b < BATCH; b++) {
            const int32_t next = nearest(r->cu_rows[b + 1], ROWS),
                          end = next > begin ? next : begin, q_len = nearest(end - begin, Q_LEN),
                          keys = nearest(r->kv_lens[b], KV_LEN),
                          first = r->has_first ? nearest(r->q_first[b], KV_LEN) : keys - q_len;
            changed += (begin + q_len != r->cu_rows[b + 1]) + (keys != r->kv_lens[b]) +
                       (r->has_first && first != r->q_first[b]);
            check_alone(r, covered, begin);
            check_rows(r, b, begin, q_len, first, keys);
            covered = begin + q_len;
            begin = end;
        }
        check_alone(r, covered, ROWS);
        assert_int_equal(changed, head[TESS_STEP_CLAMPED]);
    }
}
static void test_random_hostile(void **state) {
    (void)state;
    on_every_target(random_hostile, 0, 0);
}

/* With TESS_PLAN_TRUST_DEVICE legal lengths make the same step, and nothing is clamped or counted:
 * a length above the capacity, of a sequence without rows, stands in the step as it is. */
static void trusted(rig *r) {
    uint64_t seed = 4;
    uint32_t *step = (uint32_t *)room(r->info.step_bytes);
    for (int n = 0; n < 2; n++) {
        const uint32_t batch = random_lengths(r, &seed, n);
        spoil_rest(r);
        prepare(r, batch, r->step);
        run(r, r->step);
        check(r, batch);
    }
    for (uint32_t b = 0; b <= BATCH; b++) r->cu_rows[b] = b < 2 ? 0 : 3;
    r->kv_lens[0] = KV_LEN + 5;
    prepare(r, BATCH, r->step);
    assert_ok(tess_wait(r->target->device, UINT64_MAX));
    (void)same_step(r, BATCH, r->step, r->cu_rows, r->kv_lens);
    test_download(r->target->device, r->step, step, r->info.step_bytes);
    const tess_step_head *head = (const tess_step_head *)step;
    const tess_step_plan *plan = (const tess_step_plan *)(step + head->plan_at);
    const tess_sequence *first = (const tess_sequence *)(step + plan->sequences_at);
    assert_int_equal(0, head->n_clamped);
    assert_int_equal(KV_LEN + 5, first->kv_len);
    assert_int_equal(0, first->flags);
    free(step);
}
static void test_trusted(void **state) {
    (void)state;
    on_every_target(trusted, TESS_PLAN_TRUST_DEVICE, 3);
}

/* ------------------------------------------------------------------ bad arguments */

static void spoiled(rig *r) {
    tess_device *device = r->target->device;
    tess_prepare_desc d = {.struct_size = sizeof d,
                           .batch = BATCH,
                           .cu_rows = r->cu_at,
                           .kv_lens = r->kv_at,
                           .step = r->step};
    tess_prepare_desc x;
    prepare(r, 0, r->step);
#define REFUSED(status, field, change)                                                       \
    do {                                                                                     \
        x = d;                                                                               \
        change;                                                                              \
        assert_error(tess_prepare(r->plan, &x), TESS_ERROR_##status, "tess_prepare", field); \
    } while (0)
    REFUSED(INVALID, "batch", x.batch++);
    REFUSED(INVALID, "cu_rows", x.cu_rows.kind = TESS_BUFFER_NONE);
    REFUSED(INVALID, "cu_rows", x.cu_rows.offset += 2);
    REFUSED(INVALID, "kv_lens", x.kv_lens.size = 4 * BATCH - 1);
    REFUSED(INVALID, "step", x.step.offset += 4);
    REFUSED(INVALID, "step", x.step.size = r->info.step_bytes - 1);
    REFUSED(INVALID, "step", x.step = x.kv_lens; x.step.size = 0);
    REFUSED(INVALID, "q_first", x.q_first = r->kv_at; x.q_first.size = 4 * BATCH - 1);
    REFUSED(INVALID, "step", x.q_first = x.step);
    REFUSED(INVALID, "kv_first", x.kv_first = r->cu_at);
    REFUSED(INVALID, "stream", x.stream.kind = 7);
    REFUSED(VERSION, "desc", x.struct_size--);
    assert_error(tess_prepare(NULL, &d), TESS_ERROR_INVALID, "tess_prepare", "plan");
    tess_run_desc run_it = run_desc(r, r->step);
    run_it.step.size = r->info.step_bytes - 1;
    assert_error(tess_run(r->plan, &run_it), TESS_ERROR_INVALID, "tess_run", "step");
    run_it.step = (tess_buffer){0};
    assert_error(tess_run(r->plan, &run_it), TESS_ERROR_INVALID, "tess_run", "step");
    run_it = run_desc(r, r->step);
    run_it.k.buffer.size = run_it.k.buffer.offset + bytes_of(TESS_ROLE_K) - 1;
    assert_error(tess_run(r->plan, &run_it), TESS_ERROR_INVALID, "tess_run", "k.buffer");
    run_it = run_desc(r, r->step);
    run_it.o.buffer = run_it.v.buffer;
    assert_error(tess_run(r->plan, &run_it), TESS_ERROR_INVALID, "tess_run", "o: must not");
    run_it = run_desc(r, r->step);
    run_it.lse.buffer = r->step;
    assert_error(tess_run(r->plan, &run_it), TESS_ERROR_INVALID, "tess_run", "lse: must not");
    run_it = run_desc(r, r->step);
    run_it.workspace = r->step;
    if (r->info.workspace_bytes && r->info.workspace_bytes <= r->info.step_bytes)
        assert_error(tess_run(r->plan, &run_it), TESS_ERROR_INVALID, "tess_run", "workspace");
    run_it = run_desc(r, r->step);
    run_it.k.stride_batch = -1;
    assert_error(tess_run(r->plan, &run_it), TESS_ERROR_INVALID, "tess_run", "k");

    const int64_t lens[BATCH + 1] = {0};
    tess_plan_desc p = plan_desc(r->target, TESS_PLAN_DEVICE_LENGTHS, 0), y;
    tess_plan *plan = NULL;
    p.batch = BATCH;
    p.q_len = 2;
    p.kv_len = KV_LEN;
#define NO_PLAN(status, field, change)                                                    \
    do {                                                                                  \
        y = p;                                                                            \
        change;                                                                           \
        assert_error(tess_plan_create(device, r->layout, &y, &plan), TESS_ERROR_##status, \
                     "tess_plan_create", field);                                          \
    } while (0)
    NO_PLAN(INVALID, "q_lens", y.q_lens = lens);
    NO_PLAN(INVALID, "kv_lens", y.kv_lens = lens);
    NO_PLAN(INVALID, "cu_q_lens", y.cu_q_lens = y.cu_kv_lens = lens);
    NO_PLAN(INVALID, "q_first", y.q_first = lens);
    NO_PLAN(INVALID, "kv_first", y.kv_first = lens);
    NO_PLAN(INVALID, "kv_len", y.kv_len = KV_LEN + 1);
    NO_PLAN(INVALID, "max_rows", y.max_rows = 2 * BATCH + 1);
    NO_PLAN(INVALID, "max_rows", y.max_rows = -1);
    NO_PLAN(UNSUPPORTED, "kv_split", y.kv_split = 4097);
    NO_PLAN(INVALID, "max_rows", y.flags = 0; y.max_rows = 1);
    NO_PLAN(INVALID, "flags", y.flags = TESS_PLAN_DEVICE_PARTS);

    /* Outputs may not lie over the step of a plan that has no room for keys either. */
    p.kv_len = 0;
    assert_ok(tess_plan_create(device, r->layout, &p, &plan));
    assert_ok(tess_prepare(plan, &d));
    run_it = run_desc(r, r->step);
    run_it.lse.buffer = r->step;
    assert_error(tess_run(plan, &run_it), TESS_ERROR_INVALID, "tess_run", "lse: must not");
    tess_plan_release(plan);
    p.kv_len = KV_LEN;

    /* A plan without device lengths takes no step and cannot be prepared. */
    p.flags = 0;
    assert_ok(tess_plan_create(device, r->layout, &p, &plan));
    assert_error(tess_prepare(plan, &d), TESS_ERROR_INVALID, "tess_prepare", "plan");
    tess_plan_release(plan);
}
static void test_spoiled(void **state) {
    (void)state;
    on_every_target(spoiled, 0, 0);
}

/* Memory that is missing anywhere in making a plan fails the call and leaves nothing behind. */
static void test_no_memory(void **state) {
    (void)state;
    for (int64_t fail_at = 1;; fail_at++) {
        test_heap heap;
        tess_runtime *runtime = NULL;
        tess_device *device = NULL;
        tess_layout *layout = NULL;
        tess_plan *plan = NULL;
        test_heap_init(&heap, 0, 0);
        const tess_runtime_desc rd = {.struct_size = sizeof rd,
                                      .allocator = heap.allocator,
                                      .log = test_log_nothing,
                                      .cpu_threads = 1};
        const tess_device_desc dd = {.struct_size = sizeof dd, .id = "cpu"};
        const tess_layout_desc ld = {.struct_size = sizeof ld,
                                     .pattern = &patterns[1],
                                     .n_heads = HEADS,
                                     .n_kv_heads = KV_HEADS,
                                     .max_tokens = KV_LEN};
        const tess_plan_desc pd = {.struct_size = sizeof pd,
                                   .flags = TESS_PLAN_DEVICE_LENGTHS,
                                   .head_dim = D,
                                   .batch = BATCH,
                                   .q_len = Q_LEN,
                                   .kv_len = KV_LEN};
        assert_ok(tess_runtime_create(&rd, &runtime));
        assert_ok(tess_device_open(runtime, &dd, &device));
        assert_ok(tess_layout_create(runtime, &ld, &layout));
        heap.fail_at = heap.calls + fail_at;
        const int64_t live = heap.live;
        const tess_status status = tess_plan_create(device, layout, &pd, &plan);
        if (status == TESS_OK)
            tess_plan_release(plan);
        else
            assert_int_equal(TESS_ERROR_OUT_OF_MEMORY, status);
        assert_int_equal(live, heap.live);
        tess_layout_release(layout);
        tess_device_release(device);
        tess_runtime_release(runtime);
        assert_int_equal(0, heap.damaged);
        if (status != TESS_OK) continue;
        assert_true(fail_at > 4);
        return;
    }
}

/* Patterns that no step can have are refused by name. */
static void test_patterns(void **state) {
    (void)state;
    static const uint8_t mask[4] = {1, 0, 1, 1};
    tess_device *device = targets.devices[0];
    tess_pattern list[] = {{.struct_size = sizeof(tess_pattern),
                            .kind = TESS_PATTERN_BLOCKS,
                            .block = 8,
                            .mask_heads = 1,
                            .mask = mask,
                            .mask_query_blocks = 2,
                            .mask_key_blocks = 2},
                           patterns[0]};
    list[1].flags = TESS_PATTERN_BIDIRECTIONAL;
    for (int n = 0; n < 2; n++) {
        tess_layout_desc ld = {.struct_size = sizeof ld,
                               .pattern = &list[n],
                               .n_heads = 1,
                               .n_kv_heads = 1,
                               .max_tokens = 16};
        tess_layout *layout = NULL;
        tess_plan *plan = NULL;
        const tess_plan_desc d = {.struct_size = sizeof d,
                                  .flags = TESS_PLAN_DEVICE_LENGTHS,
                                  .head_dim = D,
                                  .batch = 1,
                                  .q_len = 1,
                                  .kv_len = 16};
        assert_ok(tess_layout_create(targets.runtime, &ld, &layout));
        assert_error(tess_plan_create(device, layout, &d, &plan), TESS_ERROR_UNSUPPORTED,
                     "tess_plan_create", "flags");
        tess_layout_release(layout);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        TEST(test_free_split),     TEST(test_equal_parts), TEST(test_invariant),
        TEST(test_same_bits),      TEST(test_two_steps),   TEST(test_long_steps),
        TEST(test_many_sequences), TEST(test_positions),   TEST(test_hostile),
        TEST(test_random_hostile), TEST(test_trusted),     TEST(test_spoiled),
        TEST(test_patterns),       TEST(test_no_memory),
    };
    const char *backend = argc > 1 ? argv[1] : "cpu";
    /* The kernels of other devices are instances of one body, which some compile in every test. */
    const int status =
        test_targets_open(&targets, backend, strcmp(backend, "cpu") == 0 ? TEST_EACH_KERNEL : 0);
    if (status != 0) return status;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    test_targets_close(&targets);
    return failed;
}
