/* SPDX-License-Identifier: Apache-2.0 */
/* The memory plan: counting and placing agree, tables are aligned and do not overlap, and sizes
 * past 64 bits are refused. */
#include "fixtures/planner.h"

#include "memory_plan.h"

typedef struct table {
    uint64_t at, bytes;
    const void *pointer;
} table;

static void tables_of(const tess_memory_plan *l, const tess_tables *t, table *list) {
    list[0] = (table){t->sequences_at, l->n_sequences * sizeof(tess_sequence), t->sequences};
    list[1] = (table){t->classes_at, l->n_classes * sizeof(tess_class), t->classes};
    list[2] = (table){t->jobs_at, l->n_jobs * sizeof(tess_job), t->jobs};
    list[3] = (table){t->merges_at, l->n_merges * sizeof(tess_merge), t->merges};
    list[4] = (table){t->entries_at, l->n_entries * sizeof(uint32_t), t->entries};
    list[5] = (table){t->bits_at, l->n_bits * sizeof(uint32_t), t->bits};
}

static void test_tables(void **state) {
    (void)state;
    uint64_t seed = 41;
    for (int n = 0; n < 2000; n++) {
        tess_memory_plan l;
        tess_tables counted, placed;
        memset(&l, 0, sizeof l);
        memset(&counted, 0, sizeof counted);
        l.n_sequences = (uint64_t)test_between(&seed, 0, 20);
        l.n_classes = (uint64_t)test_between(&seed, 0, 20);
        l.n_jobs = (uint64_t)test_between(&seed, 0, 200);
        l.n_merges = (uint64_t)test_between(&seed, 0, 200);
        l.n_entries = (uint64_t)test_between(&seed, 0, 500);
        l.n_bits = (uint64_t)test_between(&seed, 0, 500);
        l.workspace_align = 64;
        assert_true(tess_memory_settle(&l, &counted, NULL));
        assert_null(counted.jobs);
        uint64_t bytes = l.table_bytes;
        char *memory = aligned_alloc(256, bytes + 256);
        assert_non_null(memory);
        placed = counted;
        assert_true(tess_memory_settle(&l, &placed, memory));
        assert_int_equal(bytes, l.table_bytes);
        assert_int_equal(sizeof placed, placed.struct_size);
        table list[6];
        tables_of(&l, &placed, list);
        for (int a = 0; a < 6; a++) {
            assert_int_equal(0, list[a].at % 256);
            assert_ptr_equal(memory + list[a].at, list[a].pointer);
            assert_true(list[a].at + list[a].bytes <= bytes);
            for (int b = 0; b < a; b++)
                assert_true(list[a].at >= list[b].at + list[b].bytes ||
                            list[b].at >= list[a].at + list[a].bytes);
        }
        table same[6];
        tables_of(&l, &counted, same);
        for (int a = 0; a < 6; a++) assert_int_equal(list[a].at, same[a].at);
        /* Nothing is wasted but the alignment. */
        uint64_t sum = 0;
        for (int a = 0; a < 6; a++) sum += (list[a].bytes + 255) / 256 * 256;
        assert_int_equal(sum, bytes);
        free(memory);
    }
}

static void test_workspace(void **state) {
    (void)state;
    tess_tables t;
    tess_memory_plan l = {.scratch_bytes = 100, .workspace_align = 64};
    assert_true(tess_memory_settle(&l, &t, NULL));
    assert_int_equal(100, l.workspace_bytes);
    l.partials[0].n = 3;
    l.partials[0].rows = 5;
    l.value_head_dim = 8;
    assert_true(tess_memory_settle(&l, &t, NULL));
    assert_int_equal(128, l.partials[0].at);
    assert_int_equal(128 + 3 * 5 * 10 * 4, l.workspace_bytes);
    l.scratch_bytes = 0;
    assert_true(tess_memory_settle(&l, &t, NULL));
    assert_int_equal(0, l.partials[0].at);
    assert_int_equal(3 * 5 * 10 * 4, l.workspace_bytes);
}

/* Each product and sum, one past what fits. */
static void test_overflow(void **state) {
    (void)state;
    tess_tables t;
    const uint64_t huge = UINT64_MAX / 8;
    for (int field = 0; field < 6; field++) {
        for (int step = 0; step < 3; step++) {
            tess_memory_plan l = {.workspace_align = 64};
            uint64_t *const counts[6] = {&l.n_sequences, &l.n_classes, &l.n_jobs,
                                         &l.n_merges,    &l.n_entries, &l.n_bits};
            const uint64_t sizes[6] = {sizeof(tess_sequence),
                                       sizeof(tess_class),
                                       sizeof(tess_job),
                                       sizeof(tess_merge),
                                       4,
                                       4};
            /* The product, the sum with what stands before, and the alignment. */
            if (step == 0) *counts[field] = UINT64_MAX / sizes[field] + 1;
            if (step == 1) {
                *counts[field] = UINT64_MAX / sizes[field];
                l.n_sequences = field ? 100 : UINT64_MAX / sizes[0];
            }
            if (step == 2) *counts[field] = (UINT64_MAX - 100) / sizes[field];
            assert_false(tess_memory_settle(&l, &t, NULL));
        }
    }
    tess_memory_plan l = {.workspace_align = 64,
                          .partials = {{.n = 1, .rows = 1}},
                          .value_head_dim = 6,
                          .scratch_bytes = UINT64_MAX - 10};
    assert_false(tess_memory_settle(&l, &t, NULL)); /* aligning the scratch */
    l.scratch_bytes = UINT64_MAX - 63;
    assert_true(tess_memory_settle(&l, &t, NULL));
    l.partials[0].rows = 3;
    assert_false(tess_memory_settle(&l, &t, NULL)); /* adding the partials */
    l.scratch_bytes = 0;
    l.partials[0].rows = huge;
    assert_false(tess_memory_settle(&l, &t, NULL)); /* bytes of a partial */
    l.value_head_dim = 62;
    assert_false(tess_memory_settle(&l, &t, NULL)); /* floats of a partial */
    l.partials[0].rows = 1;
    l.partials[0].n = huge;
    assert_false(tess_memory_settle(&l, &t, NULL)); /* all partials */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_tables),
        TEST(test_workspace),
        TEST(test_overflow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
