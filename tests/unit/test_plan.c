/* SPDX-License-Identifier: Apache-2.0 */
/* Plans: splitting, kernels, ranges and tensors, tables on a device, and failures. */
#include <math.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fixtures/plans.h"

/* A device with other capabilities than the last one. */
static void reopen(void) {
    tess_device_release(device);
    device = open_device(runtime);
}

static tess_layout *s2_layout(int32_t block, int64_t max_tokens) {
    const tess_pattern p = s2_pattern(block, 2, 4, 0);
    return make_layout(runtime, &p, 8, 2, max_tokens);
}

/* ------------------------------------------------------------------ splitting and shapes */

static void test_auto_split(void **state) {
    (void)state;
    tess_layout *layout = s2_layout(64, 200000);
    tess_plan_desc d = plan_desc(1, 1, 131072);
    tess_plan *plan = make(layout, &d);
    tess_plan_info info = query(plan);
    /* Eight heads and classes: few jobs, so parts, no shorter than 512 keys, and about as many as
     * the device wants. */
    assert_int_equal(8, info.n_merge_jobs);
    uint64_t parts = info.n_jobs - info.n_merge_jobs;
    assert_true(parts >= 56 && parts <= 72);
    assert_int_equal(parts * 2 * 18 * 4, info.workspace_bytes - plan->memory.partials[0].at);
    for (uint64_t n = 0; n < parts; n++)
        assert_in_range(tess_job_blocks(&plan->tables.jobs[n]), 8, 512 * 8);
    tess_plan_release(plan);
    d.kv_len = 1000;
    plan = make(layout, &d);
    assert_int_equal(0, query(plan).n_merge_jobs); /* too short to be worth it */
    tess_plan_release(plan);
    d.kv_len = 131072;
    d.kv_split = 1;
    plan = make(layout, &d);
    assert_int_equal(8, query(plan).n_jobs);
    assert_int_equal(0, query(plan).workspace_bytes);
    tess_plan_release(plan);
    d.kv_split = 3;
    plan = make(layout, &d);
    assert_int_equal(8 * 3 + 8, query(plan).n_jobs);
    tess_plan_release(plan);
    d.kv_split = 0;
    d.batch = 8; /* enough jobs */
    plan = make(layout, &d);
    assert_int_equal(64, query(plan).n_jobs);
    tess_plan_release(plan);
    tess_layout_release(layout);
    layout = s2_layout(5000, 200000); /* one block is more than a part */
    d.batch = 1;
    plan = make(layout, &d);
    assert_true(query(plan).n_merge_jobs > 0);
    tess_plan_release(plan);
    tess_layout_release(layout);
}

static int by_place(const void *a, const void *b) { return memcmp(a, b, sizeof(tess_job)); }

/* The jobs of one sequence, apart from its number and from where its partials lie, in an order of
 * their own. */
static tess_job *jobs_of(const tess_plan *plan, uint32_t sequence, uint64_t *count) {
    tess_job *list = malloc((size_t)(plan->memory.n_jobs + 1) * sizeof *list);
    assert_non_null(list);
    *count = 0;
    for (uint64_t n = 0; n < plan->memory.n_jobs; n++) {
        if (plan->tables.jobs[n].sequence != sequence) continue;
        tess_job *job = &list[(*count)++];
        *job = plan->tables.jobs[n];
        job->sequence = 0;
        /* of lists that begin elsewhere in a longer batch */
        job->left_offset = job->right_offset = 0;
        if (job->partial != TESS_NO_PARTIAL) job->partial = 0;
    }
    qsort(list, (size_t)*count, sizeof *list, by_place);
    return list;
}

/* A sequence's jobs are the same alone and among others, whatever these are. */
static void test_batch_invariant(void **state) {
    (void)state;
    for (int32_t block = 48; block <= 9600; block *= 200) {
        tess_layout *layout = s2_layout(block, 200000);
        const int64_t q_lens[] = {1, 130, 700, 0, 16}, kv_lens[] = {90000, 31000, 700, 50, 131072};
        tess_plan_desc d = plan_desc(5, 0, 0);
        d.q_lens = q_lens;
        d.kv_lens = kv_lens;
        d.flags = TESS_PLAN_BATCH_INVARIANT;
        tess_plan *all = make(layout, &d);
        /* The batch does not choose the kernel. */
        tess_kernel_key key = rig.key;
        assert_true(key.max_q_len > 1000000 && key.max_kv_len > 1000000 && key.batch > 1000000);
        assert_true(query(all).n_merge_jobs > 0);
        uint32_t place = 0; /* of the sequence among those with rows */
        for (uint32_t s = 0; s < 5; s++) {
            tess_plan_desc one = plan_desc(1, q_lens[s], kv_lens[s]);
            one.flags = TESS_PLAN_BATCH_INVARIANT;
            tess_plan *alone = make(layout, &one);
            assert_memory_equal(&key, &rig.key, sizeof key);
            uint64_t n_all, n_alone;
            tess_job *a = jobs_of(all, q_lens[s] ? place++ : UINT32_MAX, &n_all),
                     *b = jobs_of(alone, 0, &n_alone);
            assert_int_equal(n_alone, n_all);
            assert_memory_equal(a, b, (size_t)n_all * sizeof *a);
            for (uint64_t n = 0; n < n_all; n++)
                assert_true(tess_job_blocks(&a[n]) <= (block < 4096 ? 4096u / (uint32_t)block : 1));
            free(a);
            free(b);
            tess_plan_release(alone);
        }
        tess_plan_release(all);
        tess_layout_release(layout);
    }
}

static void test_tile_rows(void **state) {
    (void)state;
    tess_layout *layout = s2_layout(16, 1000);
    const struct {
        int32_t asked;
        uint32_t got;
    } list[] = {{0, 128}, {1, 1},     {15, 15},   {16, 16},   {17, 16},
                {47, 32}, {127, 112}, {128, 128}, {129, 128}, {INT32_MAX, 128}};
    for (size_t n = 0; n < sizeof list / sizeof *list; n++) {
        tess_plan_desc d = plan_desc(1, 500, 900);
        d.tile_rows = list[n].asked;
        tess_plan *plan = make(layout, &d);
        assert_int_equal(list[n].got, query(plan).tile_rows);
        for (uint64_t j = 0; j < plan->memory.n_jobs; j++)
            assert_true(plan->tables.jobs[j].rows <= list[n].got);
        tess_plan_release(plan);
    }
    tess_layout_release(layout);
}

static void test_key(void **state) {
    (void)state;
    tess_layout *layout = s2_layout(16, 1000);
    tess_plan_desc d = plan_desc(2, 70, 900);
    d.dtype = TESS_BF16;
    d.head_dim = 72;
    tess_plan_release(make(layout, &d));
    assert_int_equal(TESS_BF16, rig.key.dtype);
    assert_int_equal(72, rig.key.head_dim);
    assert_int_equal(72, rig.key.value_head_dim);
    assert_int_equal(16, rig.key.block);
    assert_int_equal(TESS_CLASS_CAUSAL | TESS_CLASS_LOCAL, rig.key.class_flags);
    assert_int_equal(1, rig.key.has_entries);
    assert_int_equal(70, rig.key.max_q_len);
    assert_int_equal(4, rig.key.group);
    assert_int_equal(4, rig.key.max_in_flight);
    assert_int_equal(900, rig.key.max_kv_len);
    assert_int_equal(2, rig.key.batch);
    assert_int_equal(8, rig.key.n_heads);
    assert_int_equal(0, rig.key.packed);
    const int64_t cu_q[] = {0, 3, 10, 10}, cu_kv[] = {0, 40, 60, 90};
    tess_plan_desc packed = plan_desc(3, 0, 0);
    packed.cu_q_lens = cu_q;
    packed.cu_kv_lens = cu_kv;
    tess_plan_release(make(layout, &packed));
    assert_int_equal(7, rig.key.max_q_len);
    assert_int_equal(40, rig.key.max_kv_len);
    assert_int_equal(3, rig.key.batch);
    assert_int_equal(1, rig.key.packed);
    d.max_in_flight = 9;
    d.value_head_dim = 72;
    tess_plan_release(make(layout, &d));
    assert_int_equal(9, rig.key.max_in_flight);
    tess_layout_release(layout);
}

/* The lists that a class names: every block of its rule that a job may list, and nothing else. */
static void test_class_lists(void **state) {
    (void)state;
    const tess_pattern patterns[] = {
        {.struct_size = sizeof *patterns,
         .kind = TESS_PATTERN_S2,
         .block = 16,
         .local = 2,
         .stride = 4,
         .dense_heads = 1},
        {.struct_size = sizeof *patterns,
         .kind = TESS_PATTERN_S2,
         .flags = TESS_PATTERN_BIDIRECTIONAL,
         .block = 16,
         .local = 2,
         .stride = 4},
        {.struct_size = sizeof *patterns,
         .kind = TESS_PATTERN_WINDOW,
         .block = 16,
         .left = 50,
         .sinks = 40},
    };
    for (int n = 0; n < 3; n++) {
        tess_layout *layout = make_layout(runtime, &patterns[n], 8, 2, 4000);
        tess_plan_desc d = plan_desc(1, 10, 1000); /* 63 blocks */
        tess_plan *plan = make(layout, &d);
        const tess_tables *t = &plan->tables;
        uint64_t entries = 0;
        assert_int_equal(n == 0 ? 5 : 1, plan->memory.n_classes);
        assert_int_equal(n == 0 ? 4 : 0, t->list_step);
        for (uint64_t c = 0; c < plan->memory.n_classes; c++) {
            const tess_class *words = &t->classes[c];
            if (words->list_count > 0) assert_int_equal(entries, words->list_offset);
            for (uint32_t e = 0, j = 0; n == 0 && e < words->list_count; e++, j += words->stride) {
                while ((j + words->shift) % words->stride != 0) j++;
                assert_int_equal(j, t->entries[words->list_offset + e]);
            }
            if (n == 0)
                assert_int_equal(words->flags & TESS_CLASS_LOCAL
                                     ? (62 - t->entries[words->list_offset]) / 4 + 1
                                     : 0,
                                 words->list_count);
            if (n == 1) assert_int_equal(63, words->list_count);
            if (n == 2) assert_int_equal(3, words->list_count);
            entries += words->list_count;
        }
        assert_int_equal(plan->memory.n_entries, entries);
        tess_plan_release(plan);
        tess_layout_release(layout);
    }
}

/* ------------------------------------------------------------------ ranges */

static void check_ranges(const tess_plan *plan, uint64_t limit) {
    tess_plan_info info = query(plan);
    uint64_t next = 0, first, count;
    for (uint64_t r = 0; r < info.n_ranges; r++) {
        assert_int_equal(TESS_OK, tess_plan_range(plan, r, &first, &count));
        assert_int_equal(next, first);
        assert_true(count > 0);
        uint64_t sum = 0;
        for (uint64_t n = first; n < first + count; n++) {
            uint64_t blocks = n < plan->memory.n_jobs
                                  ? tess_job_blocks(&plan->tables.jobs[n])
                                  : plan->tables.merges[n - plan->memory.n_jobs].parts;
            sum += blocks ? blocks : 1;
        }
        assert_true(count == 1 || sum <= limit);
        next = first + count;
    }
    assert_int_equal(info.n_jobs, next);
    assert_error(tess_plan_range(plan, info.n_ranges, &first, &count), TESS_ERROR_INVALID,
                 "tess_plan_range", "index");
}

static void test_ranges(void **state) {
    (void)state;
    tess_layout *layout = s2_layout(16, 4000);
    tess_plan_desc d = plan_desc(2, 500, 4000);
    d.kv_split = 2;
    tess_plan *plan = make(layout, &d);
    assert_int_equal(1, query(plan).n_ranges);
    check_ranges(plan, UINT64_MAX);
    uint64_t number;
    assert_error(tess_plan_range(plan, 0, NULL, &number), TESS_ERROR_INVALID, "tess_plan_range",
                 "first_job");
    assert_error(tess_plan_range(plan, 0, &number, NULL), TESS_ERROR_INVALID, "tess_plan_range",
                 "job_count");
    assert_error(tess_plan_range(NULL, 0, &number, &number), TESS_ERROR_INVALID, "tess_plan_range",
                 "plan");
    tess_plan_release(plan);
    rig.caps.range_blocks = 100;
    reopen();
    plan = make(layout, &d);
    assert_true(query(plan).n_ranges > 3);
    check_ranges(plan, 100);
    tess_plan_release(plan);
    d.time_limit_us = 1000; /* without a rate the device's own limit holds */
    plan = make(layout, &d);
    check_ranges(plan, 100);
    tess_plan_release(plan);
    rig.caps.steps_per_second = 300000;
    reopen();
    plan = make(layout, &d);
    check_ranges(plan, 300);
    assert_true(query(plan).n_ranges > 3);
    tess_plan_release(plan);
    rig.caps.steps_per_second = 1;
    reopen();
    plan = make(layout, &d);
    assert_int_equal(query(plan).n_jobs, query(plan).n_ranges);
    check_ranges(plan, 1);
    tess_plan_release(plan);
    rig.caps.steps_per_second = UINT64_MAX;
    reopen();
    d.time_limit_us = UINT64_MAX;
    plan = make(layout, &d);
    assert_int_equal(1, query(plan).n_ranges);
    check_ranges(plan, UINT64_MAX);
    tess_plan_release(plan);
    d.batch = 0;
    plan = make(layout, &d);
    assert_int_equal(0, query(plan).n_ranges);
    check_ranges(plan, UINT64_MAX);
    tess_plan_release(plan);
    tess_layout_release(layout);
}

/* ------------------------------------------------------------------ tensors */

static void assert_tensor(const tess_plan *plan, tess_role role, int64_t batch, int64_t token,
                          int64_t head, uint64_t bytes) {
    tess_tensor t = {0};
    uint64_t got;
    tess_buffer buffer = tess_host_buffer(&t, 77);
    assert_int_equal(TESS_OK, tess_plan_tensor(plan, role, buffer, &t, &got));
    assert_memory_equal(&buffer, &t.buffer, sizeof buffer);
    assert_int_equal(batch, t.stride_batch);
    assert_int_equal(token, t.stride_token);
    assert_int_equal(head, t.stride_head);
    assert_int_equal(bytes, got);
    assert_int_equal(TESS_OK, tess_plan_tensor(plan, role, buffer, &t, NULL));
}

static void test_tensors(void **state) {
    (void)state;
    tess_layout *layout = s2_layout(16, 4000);
    tess_plan_desc d = plan_desc(3, 7, 50);
    d.dtype = TESS_F16;
    tess_plan *plan = make(layout, &d);
    assert_tensor(plan, TESS_ROLE_Q, 7 * 8 * 16, 8 * 16, 16, 3 * 7 * 8 * 16 * 2);
    assert_tensor(plan, TESS_ROLE_O, 7 * 8 * 16, 8 * 16, 16, 3 * 7 * 8 * 16 * 2);
    assert_tensor(plan, TESS_ROLE_K, 50 * 2 * 16, 2 * 16, 16, 3 * 50 * 2 * 16 * 2);
    assert_tensor(plan, TESS_ROLE_V, 50 * 2 * 16, 2 * 16, 16, 3 * 50 * 2 * 16 * 2);
    assert_tensor(plan, TESS_ROLE_LSE, 7 * 8, 1, 7, 3 * 7 * 8 * 4);
    tess_tensor t;
    assert_error(tess_plan_tensor(NULL, TESS_ROLE_Q, tess_host_buffer(NULL, 0), &t, NULL),
                 TESS_ERROR_INVALID, "tess_plan_tensor", "plan");
    assert_error(tess_plan_tensor(plan, (tess_role)5, tess_host_buffer(NULL, 0), &t, NULL),
                 TESS_ERROR_INVALID, "tess_plan_tensor", "role");
    assert_error(tess_plan_tensor(plan, TESS_ROLE_Q, tess_host_buffer(NULL, 0), NULL, NULL),
                 TESS_ERROR_INVALID, "tess_plan_tensor", "tensor");
    tess_plan_release(plan);
    const int64_t q_lens[] = {3, 5, 0}, kv_lens[] = {9, 0, 20}, cu_q[] = {0, 3, 8, 8},
                  cu_kv[] = {0, 9, 9, 29};
    d = plan_desc(3, 0, 0);
    d.q_lens = q_lens;
    d.kv_lens = kv_lens;
    plan = make(layout, &d);
    assert_tensor(plan, TESS_ROLE_Q, 5 * 8 * 16, 8 * 16, 16, 3 * 5 * 8 * 16 * 4);
    assert_tensor(plan, TESS_ROLE_K, 20 * 2 * 16, 2 * 16, 16, 3 * 20 * 2 * 16 * 4);
    tess_plan_release(plan);
    d.q_len = 6;
    d.kv_len = 21;
    plan = make(layout, &d);
    assert_tensor(plan, TESS_ROLE_LSE, 6 * 8, 1, 6, 3 * 6 * 8 * 4);
    assert_tensor(plan, TESS_ROLE_V, 21 * 2 * 16, 2 * 16, 16, 3 * 21 * 2 * 16 * 4);
    tess_plan_release(plan);
    d = plan_desc(3, 0, 0);
    d.cu_q_lens = cu_q;
    d.cu_kv_lens = cu_kv;
    plan = make(layout, &d);
    assert_tensor(plan, TESS_ROLE_Q, 0, 8 * 16, 16, 8 * 8 * 16 * 4);
    assert_tensor(plan, TESS_ROLE_K, 0, 2 * 16, 16, 29 * 2 * 16 * 4);
    assert_tensor(plan, TESS_ROLE_LSE, 0, 1, 8, 8 * 8 * 4);
    tess_plan_release(plan);
    tess_layout_release(layout);
    /* A batch whose tensors no memory can hold, in as few jobs as it takes. */
    tess_pattern p = {.struct_size = sizeof p, .block = 1 << 20};
    layout = make_layout(runtime, &p, 65535, 65535, INT32_MAX);
    /* past 2^63 bytes, and past 2^64 in one more product each */
    const int64_t batches[] = {100, 1 << 8, 1 << 20};
    for (int n = 0; n < 3; n++) {
        d = plan_desc(batches[n], 0, 2147418111);
        d.head_dim = 256;
        plan = make(layout, &d);
        assert_error(tess_plan_tensor(plan, TESS_ROLE_K, tess_host_buffer(NULL, 0), &t, NULL),
                     TESS_ERROR_UNSUPPORTED, "tess_plan_tensor", "role");
        tess_plan_release(plan);
    }
    int64_t *cumulative = malloc(2 * ((1 << 20) + 1) * sizeof *cumulative),
            *none = cumulative + (1 << 20) + 1;
    assert_non_null(cumulative);
    for (int64_t n = 0; n <= 1 << 20; n++) {
        cumulative[n] = n * 2147418111;
        none[n] = 0;
    }
    d.cu_q_lens = none;
    d.cu_kv_lens = cumulative;
    plan = make(layout, &d);
    assert_error(tess_plan_tensor(plan, TESS_ROLE_K, tess_host_buffer(NULL, 0), &t, NULL),
                 TESS_ERROR_UNSUPPORTED, "tess_plan_tensor", "role");
    tess_plan_release(plan);
    free(cumulative);
    tess_layout_release(layout);
}

/* ------------------------------------------------------------------ refusals */

#define SPOIL(name, statement) \
    static void name(tess_plan_desc *d) { statement; }
static const int64_t falling[] = {0, 5, 4}, late[] = {1, 5, 9}, negative[] = {3, -1},
                     longer[] = {3, 11}, good[] = {0, 3, 6};
static const int64_t huge_lens[] = {3, 2147418112}, huge_cu[] = {0, 3, 2147418115},
                     lower[] = {0, -1, 0};
SPOIL(flags_set, d->flags = 1u << 7)
SPOIL(op_backward, d->op = TESS_OP_BACKWARD)
SPOIL(op_bad, d->op = 2)
SPOIL(dtype_bad, d->dtype = 3)
SPOIL(dim_zero, d->head_dim = 0)
SPOIL(dim_negative, d->head_dim = -8)
SPOIL(dim_odd, d->head_dim = 20)
SPOIL(dim_large, d->head_dim = 264)
SPOIL(value_dim, d->value_head_dim = 8)
SPOIL(value_dim_negative, d->value_head_dim = -16)
SPOIL(scale_nan, d->scale = NAN)
SPOIL(scale_infinite, d->scale = INFINITY)
SPOIL(softcap_set, d->softcap = 1)
SPOIL(softcap_nan, d->softcap = NAN)
SPOIL(split_negative, d->kv_split = -1)
SPOIL(rows_negative, d->tile_rows = -1)
SPOIL(determinism_set, d->determinism = 1)
SPOIL(batch_negative, d->batch = -1)
SPOIL(batch_huge, d->batch = INT64_MAX)
SPOIL(q_negative, d->q_len = -1)
SPOIL(q_huge, d->q_len = 2147418112)
SPOIL(kv_negative, d->kv_len = -1)
SPOIL(kv_huge, d->kv_len = 2147418112)
SPOIL(kv_past, d->kv_len = 101)
SPOIL(q_item, d->q_lens = negative)
SPOIL(kv_item, d->kv_lens = negative)
SPOIL(q_longer, d->q_lens = longer)
SPOIL(kv_longer, d->kv_lens = longer; d->kv_len = 10)
SPOIL(q_item_huge, d->q_lens = huge_lens; d->q_len = 0)
SPOIL(only_q, d->cu_q_lens = good)
SPOIL(only_kv, d->cu_kv_lens = good)
SPOIL(both_q, d->cu_q_lens = d->cu_kv_lens = good; d->q_lens = good)
SPOIL(both_kv, d->cu_q_lens = d->cu_kv_lens = good; d->kv_lens = good)
SPOIL(q_falls, d->cu_q_lens = falling; d->cu_kv_lens = good)
SPOIL(kv_falls, d->cu_q_lens = good; d->cu_kv_lens = falling)
SPOIL(q_late, d->cu_q_lens = late; d->cu_kv_lens = good)
SPOIL(kv_late, d->cu_q_lens = good; d->cu_kv_lens = late)
SPOIL(q_lower, d->cu_q_lens = lower; d->cu_kv_lens = good)
SPOIL(kv_cu_huge, d->cu_q_lens = good; d->cu_kv_lens = huge_cu)

static void test_refusals(void **state) {
    (void)state;
    static const struct {
        const char *field;
        tess_status status;
        void (*spoil)(tess_plan_desc *d);
    } list[] = {
        {"flags", TESS_ERROR_INVALID, flags_set},
        {"op", TESS_ERROR_UNSUPPORTED, op_backward},
        {"op", TESS_ERROR_INVALID, op_bad},
        {"dtype", TESS_ERROR_INVALID, dtype_bad},
        {"head_dim", TESS_ERROR_INVALID, dim_zero},
        {"head_dim", TESS_ERROR_INVALID, dim_negative},
        {"head_dim", TESS_ERROR_UNSUPPORTED, dim_odd},
        {"head_dim", TESS_ERROR_UNSUPPORTED, dim_large},
        {"value_head_dim", TESS_ERROR_UNSUPPORTED, value_dim},
        {"value_head_dim", TESS_ERROR_INVALID, value_dim_negative},
        {"scale", TESS_ERROR_INVALID, scale_nan},
        {"scale", TESS_ERROR_INVALID, scale_infinite},
        {"softcap", TESS_ERROR_UNSUPPORTED, softcap_set},
        {"softcap", TESS_ERROR_INVALID, softcap_nan},
        {"kv_split", TESS_ERROR_INVALID, split_negative},
        {"tile_rows", TESS_ERROR_INVALID, rows_negative},
        {"determinism", TESS_ERROR_INVALID, determinism_set},
        {"batch", TESS_ERROR_INVALID, batch_negative},
        {"batch", TESS_ERROR_UNSUPPORTED, batch_huge},
        {"q_len", TESS_ERROR_INVALID, q_negative},
        {"q_len", TESS_ERROR_UNSUPPORTED, q_huge},
        {"kv_len", TESS_ERROR_INVALID, kv_negative},
        {"kv_len", TESS_ERROR_UNSUPPORTED, kv_huge},
        {"kv_len", TESS_ERROR_INVALID, kv_past},
        {"q_lens", TESS_ERROR_INVALID, q_item},
        {"kv_lens", TESS_ERROR_INVALID, kv_item},
        {"q_lens", TESS_ERROR_INVALID, q_longer},
        {"kv_lens", TESS_ERROR_INVALID, kv_longer},
        {"q_lens", TESS_ERROR_UNSUPPORTED, q_item_huge},
        {"cu_kv_lens", TESS_ERROR_INVALID, only_q},
        {"cu_q_lens", TESS_ERROR_INVALID, only_kv},
        {"q_lens", TESS_ERROR_INVALID, both_q},
        {"kv_lens", TESS_ERROR_INVALID, both_kv},
        {"cu_q_lens", TESS_ERROR_INVALID, q_falls},
        {"cu_kv_lens", TESS_ERROR_INVALID, kv_falls},
        {"cu_q_lens", TESS_ERROR_INVALID, q_late},
        {"cu_kv_lens", TESS_ERROR_INVALID, kv_late},
        {"cu_q_lens", TESS_ERROR_INVALID, q_lower},
        {"cu_kv_lens", TESS_ERROR_UNSUPPORTED, kv_cu_huge},
    };
    tess_layout *layout = s2_layout(16, 100);
    for (size_t n = 0; n < sizeof list / sizeof *list; n++) {
        tess_plan_desc d = plan_desc(2, 10, 100);
        tess_plan *plan = NULL;
        uint64_t live = heap.live;
        list[n].spoil(&d);
        assert_error(tess_plan_create(device, layout, &d, &plan), list[n].status,
                     "tess_plan_create", list[n].field);
        assert_null(plan);
        assert_int_equal(live, heap.live);
    }
    tess_layout_release(layout);
}

static void test_refused_calls(void **state) {
    (void)state;
    tess_layout *layout = s2_layout(16, 100);
    tess_plan_desc d = plan_desc(2, 10, 100);
    tess_plan *plan = NULL;
    tess_plan_info info = {.struct_size = 1};
    assert_int_equal(TESS_ERROR_INVALID, tess_plan_create(NULL, layout, &d, &plan));
    assert_error(tess_plan_create(device, NULL, &d, &plan), TESS_ERROR_INVALID, "tess_plan_create",
                 "layout");
    assert_error(tess_plan_create(device, layout, &d, NULL), TESS_ERROR_INVALID, "tess_plan_create",
                 "plan");
    assert_int_equal(TESS_ERROR_INVALID, tess_plan_create(device, layout, NULL, &plan));
    assert_error(tess_plan_query(NULL, &info), TESS_ERROR_INVALID, "tess_plan_query", "plan");
    plan = make(layout, &d);
    assert_int_equal(TESS_ERROR_VERSION, tess_plan_query(plan, &info));
    tess_plan_release(plan);
    tess_plan_release(NULL);
    tess_layout_release(layout);
}

/* More than memory or 64 bits can hold. */
static void test_refused_sizes(void **state) {
    (void)state;
    tess_layout *layout = s2_layout(16, 100);
    tess_plan_desc d = plan_desc(2, 10, 100);
    tess_plan *plan = NULL;
    d.batch = INT32_MAX - 70000;
    assert_error(tess_plan_create(device, layout, &d, &plan), TESS_ERROR_OUT_OF_MEMORY,
                 "tess_plan_create", "batch");
    d.batch = 2;
    d.kv_split = 2;
    rig.kernel.scratch_bytes = UINT64_MAX - 5;
    assert_error(tess_plan_create(device, layout, &d, &plan), TESS_ERROR_UNSUPPORTED,
                 "tess_plan_create", "batch");
    rig.kernel.scratch_bytes = (uint64_t)INT64_MAX + 1;
    assert_error(tess_plan_create(device, layout, &d, &plan), TESS_ERROR_UNSUPPORTED,
                 "tess_plan_create", "batch");
    rig.kernel.scratch_bytes = 0;
    tess_layout_release(layout);
    /* 2^47 parts are not counted one by one, not even those of one sequence. */
    tess_pattern dense = {.struct_size = sizeof dense, .block = 1};
    layout = make_layout(runtime, &dense, 1, 1, 1 << 24);
    rig.kernel.tile_rows = 1;
    d = plan_desc(1, 1 << 24, 1 << 24);
    d.kv_split = 1 << 24;
    assert_error(tess_plan_create(device, layout, &d, &plan), TESS_ERROR_UNSUPPORTED,
                 "tess_plan_create", "kv_split");
    tess_layout_release(layout);
}

/* ------------------------------------------------------------------ devices and faults */

/* On a device with memory of its own the tables lie there, and the host keeps the lengths alone. */
static void test_tables_on_device(void **state) {
    (void)state;
    tess_layout *layout = s2_layout(16, 4000);
    tess_plan_desc d = plan_desc(2, 500, 4000);
    d.kv_split = 2;
    tess_plan *here = make(layout, &d);
    rig.caps.host_memory = 0;
    rig.caps.buffer_kind = TESS_BUFFER_POINTER;
    reopen();
    uint64_t before = heap.bytes;
    tess_plan *there = make(layout, &d);
    tess_plan_info a = query(here), b = query(there);
    assert_int_equal(heap.bytes - before - 100, b.host_bytes);
    assert_true(b.host_bytes < sizeof *there + 200);
    assert_int_equal(rig.live_bytes, b.device_bytes);
    assert_int_equal(a.kept_pairs, b.kept_pairs);
    assert_int_equal(a.bytes_min, b.bytes_min);
    assert_int_equal(a.n_jobs, b.n_jobs);
    assert_null(there->tables.jobs);
    const char *tables = (const char *)(uintptr_t)there->tables.device.handle;
    assert_memory_equal(here->tables.jobs, tables + there->tables.jobs_at,
                        here->memory.n_jobs * sizeof(tess_job));
    assert_memory_equal(here->tables.merges, tables + there->tables.merges_at,
                        here->memory.n_merges * sizeof(tess_merge));
    assert_memory_equal(here->tables.sequences, tables + there->tables.sequences_at,
                        2 * sizeof(tess_sequence));
    assert_memory_equal(here->tables.classes, tables + there->tables.classes_at,
                        4 * sizeof(tess_class));
    assert_memory_equal(here->tables.entries, tables + there->tables.entries_at,
                        here->memory.n_entries * 4);
    tess_plan_release(there);
    assert_int_equal(0, rig.live_buffers);
    tess_plan_release(here);
    tess_layout_release(layout);
}

/* Each host allocation and each call of the backend fails once, and from then on. */
static void test_faults(void **state) {
    (void)state;
    uint64_t seed = 52;
    rig.caps.host_memory = 0;
    rig.caps.buffer_kind = TESS_BUFFER_POINTER;
    rig.caps.range_blocks = 3;
    reopen();
    for (int n = 0; n < 40; n++) {
        spec x;
        lengths b;
        spec_random(&x, &seed, 60);
        lengths_random(&b, &seed, &x);
        tess_layout *layout = spec_layout(&x, runtime);
        for (int sticky = 0; sticky < 2; sticky++) {
            tess_plan *plan = NULL;
            for (uint64_t k = 1; !plan; k++) {
                uint64_t live = heap.live;
                heap.calls = 0;
                heap.fail_at = k;
                heap.sticky = sticky;
                tess_status status = tess_plan_create(device, layout, &b.desc, &plan);
                heap.fail_at = 0;
                if (status == TESS_OK) break;
                assert_int_equal(TESS_ERROR_OUT_OF_MEMORY, status);
                assert_int_equal(live, heap.live);
                assert_int_equal(0, rig.live_kernels);
                assert_int_equal(0, rig.live_buffers);
            }
            tess_plan_info info = {.struct_size = sizeof info};
            heap.calls = 0;
            heap.fail_at = 1;
            tess_status status = tess_plan_query(plan, &info);
            assert_int_equal(heap.calls ? TESS_ERROR_OUT_OF_MEMORY : TESS_OK, status);
            heap.fail_at = 0;
            tess_plan_release(plan);
        }
        for (uint64_t k = 1;; k++) {
            tess_plan *plan = NULL;
            uint64_t live = heap.live;
            rig.calls = 0;
            rig.fail_call = k;
            rig.fail_status = TESS_ERROR_OUT_OF_MEMORY;
            tess_status status = tess_plan_create(device, layout, &b.desc, &plan);
            rig.fail_call = 0;
            tess_plan_release(plan);
            assert_int_equal(live, heap.live);
            assert_int_equal(0, rig.live_kernels);
            assert_int_equal(0, rig.live_buffers);
            if (status == TESS_OK) break;
            assert_int_equal(TESS_ERROR_OUT_OF_MEMORY, status);
        }
        tess_layout_release(layout);
        spec_free(&x);
    }
}

static void test_device_lost(void **state) {
    (void)state;
    tess_layout *layout = s2_layout(16, 100);
    tess_plan_desc d = plan_desc(1, 10, 100);
    tess_plan *plan = make(layout, &d), *other = NULL;
    rig.fail_call = rig.calls + 1;
    rig.fail_status = TESS_ERROR_DEVICE_LOST;
    assert_int_equal(TESS_ERROR_DEVICE_LOST, tess_plan_create(device, layout, &d, &other));
    rig.fail_call = 0;
    assert_int_equal(TESS_ERROR_DEVICE_LOST, tess_plan_create(device, layout, &d, &other));
    tess_run_desc run = {.struct_size = sizeof run};
    assert_int_equal(TESS_ERROR_DEVICE_LOST, tess_run(plan, &run));
    assert_int_equal(0, rig.launches);
    tess_plan_info info = query(plan); /* what a plan knows by itself it still tells */
    assert_true(info.n_jobs > 0);
    tess_plan_release(plan);
    tess_layout_release(layout);
}

/* A plan keeps what it was made from. */
static void test_references(void **state) {
    (void)state;
    tess_layout *layout = s2_layout(16, 100);
    tess_plan_desc d = plan_desc(1, 10, 100);
    tess_plan *plan = make(layout, &d);
    tess_layout_release(layout);
    tess_device_release(device);
    tess_runtime_release(runtime);
    assert_true(query(plan).kept_pairs > 0);
    tess_plan_release(plan);
    assert_int_equal(0, heap.live);
    device_setup(state);
}

/* In a child of fork() a handle says so, and may be released without a call to the backend. */
static void test_fork(void **state) {
    (void)state;
    tess_layout *layout = s2_layout(16, 100);
    tess_plan_desc d = plan_desc(1, 10, 100);
    tess_plan *plan = make(layout, &d), *other = NULL;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        tess_plan_info info = {.struct_size = sizeof info};
        tess_run_desc run = {.struct_size = sizeof run};
        int ok = tess_plan_query(plan, &info) == TESS_ERROR_INVALID &&
                 tess_run(plan, &run) == TESS_ERROR_INVALID;
        ok = ok && tess_plan_create(device, layout, &d, &other) == TESS_ERROR_INVALID &&
             strstr(tess_last_error(), "fork");
        ok = ok && tess_layout_kv(layout, 0, NULL) == TESS_ERROR_INVALID &&
             strstr(tess_last_error(), "fork");
        tess_plan_release(plan);
        tess_layout_release(layout);
        ok = ok && rig.live_kernels == 1; /* the parent's */
        _exit(ok ? 0 : 1);
    }
    assert_true(child > 0);
    int status = -1;
    assert_int_equal(child, waitpid(child, &status, 0));
    assert_true(WIFEXITED(status));
    assert_int_equal(0, WEXITSTATUS(status));
    tess_plan_release(plan);
    tess_layout_release(layout);
}

int main(void) {
    return RUN_TESTS_BETWEEN(
        device_setup, device_teardown, TEST(test_auto_split), TEST(test_batch_invariant),
        TEST(test_class_lists), TEST(test_tile_rows), TEST(test_key), TEST(test_ranges),
        TEST(test_tensors), TEST(test_refusals), TEST(test_refused_calls), TEST(test_refused_sizes),
        TEST(test_tables_on_device), TEST(test_faults), TEST(test_device_lost),
        TEST(test_references), TEST(test_fork));
}
