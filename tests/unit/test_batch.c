/* SPDX-License-Identifier: Apache-2.0 */
/* Batches with sequences that have no rows: they cost nothing, are checked all the same, and change
 * nothing for the others. */
#include "fixtures/plans.h"

LAYOUT_FIXTURE(s2_pattern(16, 2, 4, 0), 8, 2, 1000)

/* Host memory of a plan, and the peak while it was created. */
static uint64_t cost(const tess_plan_desc *d, uint64_t *peak) {
    const uint64_t before = heap.bytes;
    heap.peak = before;
    tess_plan *plan = make_plan(device, layout, d);
    const uint64_t bytes = heap.bytes - before;
    *peak = heap.peak - before;
    tess_plan_release(plan);
    return bytes;
}

static void test_cost(void **state) {
    (void)state;
    enum { MANY = 100000000, SOME = 100000 };
    uint64_t none_peak, peak;
    tess_plan_desc d = plan_desc(0, 0, 1000);
    const uint64_t none = cost(&d, &none_peak);
    d.batch = MANY;
    assert_int_equal(none, cost(&d, &peak));
    assert_int_equal(none_peak, peak);
    /* Lengths in arrays are read, and take no memory either. */
    int64_t *zeros = calloc(SOME + 1, sizeof *zeros);
    assert_non_null(zeros);
    d.batch = SOME;
    d.q_lens = d.kv_lens = zeros;
    assert_int_equal(none, cost(&d, &peak));
    assert_int_equal(none_peak, peak);
    d.q_lens = d.kv_lens = NULL;
    d.cu_q_lens = d.cu_kv_lens = zeros;
    assert_int_equal(none, cost(&d, &peak));
    assert_int_equal(none_peak, peak);
    /* One row among many sequences costs what it costs alone. */
    uint64_t one_peak;
    zeros[SOME] = 1;
    const uint64_t among = cost(&d, &peak);
    tess_plan_desc alone = plan_desc(1, 1, 1);
    assert_int_equal(cost(&alone, &one_peak), among);
    assert_int_equal(one_peak, peak);
    free(zeros);
}

/* What no row needs is checked as well. */
static void test_checks(void **state) {
    (void)state;
    const int64_t zeros[3] = {0}, long_keys[3] = {5, 1001, 5}, negative[3] = {0, 0, -1},
                  cu_zeros[4] = {0}, cu_falls[4] = {0, 5, 4, 5};
    tess_plan *plan = NULL;
    tess_plan_desc d = plan_desc(3, 0, 0);
    d.q_lens = zeros;
    d.kv_lens = long_keys;
    assert_error(tess_plan_create(device, layout, &d, &plan), TESS_ERROR_INVALID,
                 "tess_plan_create", "kv_lens");
    d.kv_lens = negative;
    assert_error(tess_plan_create(device, layout, &d, &plan), TESS_ERROR_INVALID,
                 "tess_plan_create", "kv_lens");
    d = plan_desc(3, 0, 0);
    d.cu_q_lens = cu_zeros;
    d.cu_kv_lens = cu_falls;
    assert_error(tess_plan_create(device, layout, &d, &plan), TESS_ERROR_INVALID,
                 "tess_plan_create", "cu_kv_lens");
    d = plan_desc(100000000, 0, 1001);
    assert_error(tess_plan_create(device, layout, &d, &plan), TESS_ERROR_INVALID,
                 "tess_plan_create", "kv_len");
}

/* The tables hold the sequences that have rows, each with its own place in the batch. */
static void test_places(void **state) {
    (void)state;
    const int64_t q_lens[] = {0, 3, 0, 0, 2, 0}, kv_lens[] = {9, 40, 0, 7, 50, 1},
                  cu_q[] = {0, 0, 3, 3, 3, 5, 5}, cu_kv[] = {0, 9, 49, 49, 56, 106, 107};
    for (int packed = 0; packed < 2; packed++) {
        tess_plan_desc d = plan_desc(6, 0, 0);
        if (packed) d.cu_q_lens = cu_q, d.cu_kv_lens = cu_kv;
        if (!packed) d.q_lens = q_lens, d.kv_lens = kv_lens;
        tess_plan *plan = make_plan(device, layout, &d);
        assert_int_equal(2, plan->n_sequences);
        const tess_sequence *s = plan->tables.sequences;
        for (int n = 0; n < 2; n++) {
            const int b = n ? 4 : 1;
            assert_int_equal(packed ? 0 : b, s[n].batch);
            assert_int_equal(q_lens[b], s[n].q_len);
            assert_int_equal(kv_lens[b], s[n].kv_len);
            assert_int_equal(packed ? cu_q[b] : 0, s[n].q_start);
            assert_int_equal(packed ? cu_kv[b] : 0, s[n].kv_start);
        }
        for (uint64_t j = 0; j < plan->memory.n_jobs; j++)
            assert_in_range(plan->tables.jobs[j].sequence, 0, 1);
        uint64_t bytes;
        tess_tensor t;
        assert_int_equal(TESS_OK,
                         tess_plan_tensor(plan, TESS_ROLE_Q, (tess_buffer){0}, &t, &bytes));
        assert_int_equal((packed ? 5 : 6 * 3) * 8 * 16 * 4, bytes);
        tess_plan_release(plan);
    }
}

/* With positions, keys of a sequence in memory begin where its kv_first says. */
static void test_positions(void **state) {
    (void)state;
    const int64_t cu_q[] = {0, 3, 3, 5}, cu_kv[] = {0, 40, 57, 60}, q_first[] = {700, 0, 0},
                  kv_first[] = {640, 0, 128};
    for (int given = 0; given < 4; given++) {
        tess_plan_desc d = plan_desc(3, 0, 0);
        d.cu_q_lens = cu_q, d.cu_kv_lens = cu_kv;
        if (given & 1) d.q_first = q_first;
        if (given & 2) d.kv_first = kv_first;
        tess_plan *plan = make_plan(device, layout, &d);
        assert_int_equal(2, plan->n_sequences);
        for (uint32_t n = 0; n < 2; n++) {
            const int b = n ? 2 : 0;
            const tess_sequence *s = &plan->tables.sequences[n];
            const int64_t first = given & 2 ? kv_first[b] : 0,
                          end = first + cu_kv[b + 1] - cu_kv[b];
            assert_int_equal(end, s->kv_len);
            assert_int_equal(cu_kv[b] - first, s->kv_start);
            assert_int_equal(given & 1 ? q_first[b] : end - s->q_len, s->q_first);
            assert_int_equal(first, tess_plan_kv_first(plan, n));
            assert_int_equal(cu_kv[b + 1] - cu_kv[b], tess_plan_keys(plan, n));
        }
        assert_int_equal(60, plan->kv_len);
        assert_int_equal(40, plan->max_kv_len);
        tess_plan_release(plan);
    }
}

/* The largest positions are taken, one more is refused. */
static void test_position_checks(void **state) {
    (void)state;
    static const int64_t end = TESS_LENGTH_END;
    const struct {
        int64_t q_first, kv_first;
        tess_status status;
        const char *field;
    } cases[] = {{-1, 0, TESS_ERROR_INVALID, "q_first[1]: must be at least 0, got -1"},
                 {end - 5, 0, TESS_ERROR_UNSUPPORTED, "q_first[1]: must be less than"},
                 {INT64_MAX, 0, TESS_ERROR_UNSUPPORTED, "q_first[1]: must be less than"},
                 {end - 6, 0, TESS_OK, ""},
                 {0, -64, TESS_ERROR_INVALID, "kv_first[1]: must be at least 0, got -64"},
                 {0, 72, TESS_ERROR_INVALID, "kv_first[1]: must be a multiple of block (16)"},
                 {0, 976, TESS_OK, ""},
                 {0, 1024, TESS_ERROR_INVALID, "kv_first[1]: must be at most 990, for 10 keys"},
                 {0, INT64_MAX - 63, TESS_ERROR_UNSUPPORTED, "kv_first[1]: must be less than"}};
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        const int64_t q_first[] = {0, cases[n].q_first}, kv_first[] = {0, cases[n].kv_first};
        tess_plan_desc d = plan_desc(2, 5, 10);
        tess_plan *plan = NULL;
        d.q_first = q_first;
        d.kv_first = kv_first;
        assert_int_equal(cases[n].status, tess_plan_create(device, layout, &d, &plan));
        if (cases[n].status != TESS_OK) assert_non_null(strstr(tess_last_error(), cases[n].field));
        tess_plan_release(plan);
    }
}

/* A backend that knows no positions gets none. */
static void test_positions_unknown(void **state) {
    (void)state;
    const int64_t positions[] = {64};
    tess_plan *plan = NULL;
    rig.caps.features = 0;
    tess_device *old = open_device(runtime);
    for (int keys = 0; keys < 2; keys++) {
        tess_plan_desc d = plan_desc(1, 5, 10);
        if (keys)
            d.kv_first = positions;
        else
            d.q_first = positions;
        assert_error(tess_plan_create(old, layout, &d, &plan), TESS_ERROR_UNSUPPORTED,
                     "tess_plan_create", keys ? "kv_first" : "q_first");
        d.q_first = d.kv_first = NULL;
        tess_plan_release(make_plan(old, layout, &d));
    }
    tess_device_release(old);
}

/* A backend whose caches keep no parts gets none, of the host's positions or the device's. */
static void test_parts_unknown(void **state) {
    (void)state;
    const int64_t positions[] = {64};
    tess_plan *plan = NULL;
    rig.caps.features =
        TESS_FEATURE_POSITIONS | TESS_FEATURE_PAGES | TESS_FEATURE_APPEND | TESS_FEATURE_STEPS;
    tess_device *old = open_device(runtime);
    for (int n = 0; n < 3; n++) {
        tess_plan_desc d = plan_desc(1, 5, 10);
        d.flags = n == 0   ? TESS_PLAN_COMPACT
                  : n == 1 ? TESS_PLAN_APPEND
                           : TESS_PLAN_DEVICE_LENGTHS | TESS_PLAN_DEVICE_PARTS;
        if (n < 2) d.kv_first = positions;
        assert_error(tess_plan_create(old, layout, &d, &plan), TESS_ERROR_UNSUPPORTED,
                     "tess_plan_create", n < 2 ? "kv_first" : "flags");
    }
    tess_device_release(old);
}

/* Positions of parts reach to max_tokens, which is then bounded like a length. */
static void test_parts_too_far(void **state) {
    (void)state;
    const tess_pattern pattern = {.struct_size = sizeof pattern,
                                  .kind = TESS_PATTERN_S2,
                                  .block = 64,
                                  .local = 2,
                                  .stride = 4};
    const int64_t end = INT64_C(2147483648) - 65536;
    rig.caps.features = UINT32_MAX;
    tess_device *all = open_device(runtime);
    for (int n = 0; n < 2; n++) {
        const tess_layout_desc wide = test_layout_desc(&pattern, 2, 2, end - 1 + n);
        tess_plan_desc d = plan_desc(1, 5, 10);
        tess_layout *far = NULL;
        tess_plan *plan = NULL;
        assert_ok(tess_layout_create(runtime, &wide, &far));
        d.flags = TESS_PLAN_DEVICE_LENGTHS | TESS_PLAN_DEVICE_PARTS;
        const tess_status status = tess_plan_create(all, far, &d, &plan);
        if (n)
            assert_error(status, TESS_ERROR_UNSUPPORTED, "tess_plan_create", "flags");
        else
            assert_null(strstr(tess_last_error(), "max_tokens"));
        tess_plan_release(plan);
        tess_layout_release(far);
    }
    tess_device_release(all);
}

/* The caller's allocator runs between the two readings of the lengths, and other threads may run at
 * any time. */
static int64_t changing[3], changed_to;
static uint64_t change_at;
static void change(void) {
    if (heap.calls == change_at) changing[1] = changed_to;
}

static void test_lengths_that_change(void **state) {
    (void)state;
    static const struct {
        int64_t others, before, after;
        int refused; /* however often it changes: there is one moment between the readings */
    } cases[] = {{1, 3, 0, 1}, {1, 0, 3, 1}, {0, 3, 0, 1}, {1, 3, 2, 0}};
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        int refused = 0;
        for (uint64_t call = 1; call < 10; call++) {
            tess_plan_desc d = plan_desc(3, 0, 5);
            tess_plan *plan = NULL;
            changing[0] = changing[2] = cases[n].others;
            changing[1] = cases[n].before;
            changed_to = cases[n].after;
            d.q_lens = changing;
            change_at = heap.calls + call;
            heap.during = change;
            const tess_status status = tess_plan_create(device, layout, &d, &plan);
            heap.during = NULL;
            if (status != TESS_OK) {
                assert_error(status, TESS_ERROR_INVALID, "tess_plan_create", "q_lens");
                refused++;
            }
            tess_plan_release(plan);
        }
        assert_int_equal(cases[n].refused, refused);
    }
}

/* A batch that was forgotten is told of, and no other. */
static void test_log(void **state) {
    (void)state;
    static const char line[] = "batch is 0, so nothing is computed although q_len is 5";
    tess_runtime *loud;
    tess_runtime_desc rd = {.struct_size = sizeof rd,
                            .backend = "",
                            .kernel = "",
                            .verbose = "plan",
                            .log = test_log_keep};
    assert_int_equal(TESS_OK, tess_runtime_create(&rd, &loud));
    tess_device *heard = open_device(loud);
    const int64_t cu[] = {0};
    for (int n = 0; n < 4; n++) {
        tess_plan_desc d = plan_desc(n == 1, n == 2 ? 0 : 5, 10);
        if (n == 3) d.cu_q_lens = d.cu_kv_lens = cu;
        test_logged[0] = 0;
        tess_plan *plan = make_plan(heard, layout, &d);
        assert_logged("tiles of");
        assert_int_equal(n == 0 || n == 3, strstr(test_logged, line) != NULL);
        tess_plan_release(plan);
    }
    tess_device_release(heard);
    tess_runtime_release(loud);
}

int main(void) {
    return RUN_TESTS_BETWEEN(setup, teardown, TEST(test_cost), TEST(test_checks), TEST(test_places),
                             TEST(test_positions), TEST(test_position_checks),
                             TEST(test_positions_unknown), TEST(test_parts_unknown),
                             TEST(test_parts_too_far), TEST(test_lengths_that_change),
                             TEST(test_log));
}
