/* SPDX-License-Identifier: Apache-2.0 */
/* Where plans cut the keys of a sequence when the mode is given: batch-invariant plans, and plans
 * with a number of parts. And the ranges of their jobs. */
#include "fixtures/planner.h"

#include "plan.h"

/* Key blocks of a part of a batch-invariant plan: for few rows 16 of 384 keys, 16 of 448, ... */
static uint64_t fixed_length(int64_t q_len, uint32_t part) {
    return q_len > 16 ? 4096 / 64 : 384 / 64 + part / 16;
}

/* Parts of a batch-invariant plan are cut at fixed places: all but the last of a job are as long as
 * their number says, whatever the number of keys, so that a longer sequence keeps the parts of a
 * shorter one. */
static void test_fixed_parts(void **state) {
    (void)state;
    const tess_pattern p = s2_pattern(64, 2, 4, 0);
    tess_device *device = open_device(runtime);
    tess_layout *layout = make_layout(runtime, &p, 8, 2, 600000);
    uint32_t most_parts = 0;
    for (int64_t kv_len = 20000; kv_len <= 600000; kv_len += 5777) {
        const tess_plan_desc d = {.struct_size = sizeof d,
                                  .flags = TESS_PLAN_BATCH_INVARIANT,
                                  .head_dim = 16,
                                  .batch = 1,
                                  .q_len = kv_len % 2 ? 16 : 17,
                                  .kv_len = kv_len};
        tess_plan *plan = make_plan(device, layout, &d);
        const uint64_t n_jobs = plan->memory.n_jobs;
        uint64_t blocks[16 * 256];
        assert_true(plan->memory.n_merges > 0 && n_jobs <= sizeof blocks / sizeof *blocks);
        for (uint64_t n = 0; n < n_jobs; n++) {
            const tess_job *job = &plan->tables.jobs[n];
            if (job->partial != TESS_NO_PARTIAL) blocks[job->partial] = tess_job_blocks(job);
        }
        for (uint64_t n = 0; n < plan->memory.n_merges; n++) {
            const tess_merge *merge = &plan->tables.merges[n];
            for (uint32_t part = 0; part + 1 < merge->parts; part++)
                assert_int_equal(fixed_length(d.q_len, part), blocks[merge->partial + part]);
            assert_in_range(blocks[merge->partial + merge->parts - 1], 1,
                            fixed_length(d.q_len, merge->parts - 1));
            if (merge->parts > most_parts) most_parts = merge->parts;
        }
        tess_plan_release(plan);
    }
    assert_true(most_parts > 124);
    tess_layout_release(layout);
    tess_device_release(device);
}

/* As many parts as were asked for, two included. */
static void test_asked_parts(void **state) {
    (void)state;
    const tess_pattern p = s2_pattern(64, 2, 4, 0);
    tess_device *device = open_device(runtime);
    tess_layout *layout = make_layout(runtime, &p, 8, 2, 20000);
    for (int32_t parts = 1; parts < 6; parts++) {
        const tess_plan_desc d = {.struct_size = sizeof d,
                                  .head_dim = 16,
                                  .batch = 1,
                                  .q_len = 1,
                                  .kv_len = 20000,
                                  .kv_split = parts};
        tess_plan *plan = make_plan(device, layout, &d);
        assert_int_equal(parts > 1 ? 8 : 0, plan->memory.n_merges);
        assert_int_equal(8 * parts, plan->memory.n_jobs);
        tess_plan_release(plan);
    }
    tess_layout_release(layout);
    tess_device_release(device);
}

/* Jobs whose rows see no key take time too: a range holds no more of them than of jobs with one
 * block. */
static void test_empty_jobs_count(void **state) {
    (void)state;
    enum { LIMIT = 3 };
    const tess_pattern p = {.struct_size = sizeof p, .kind = TESS_PATTERN_DENSE, .block = 16};
    rig.caps.range_blocks = LIMIT;
    rig.kernel.tile_rows = 16;
    tess_device *device = open_device(runtime);
    tess_layout *layout = make_layout(runtime, &p, 2, 2, 320);
    const tess_plan_desc d = {.struct_size = sizeof d,
                              .head_dim = 16,
                              .batch = 1,
                              .q_len = 320,
                              .kv_len = 16,
                              .kv_split = 1};
    tess_plan *plan = make_plan(device, layout, &d);
    assert_int_equal(2 * 20, plan->memory.n_jobs);
    for (uint64_t r = 0; r < plan->n_ranges; r++) {
        uint64_t first, count;
        assert_int_equal(TESS_OK, tess_plan_range(plan, r, &first, &count));
        assert_in_range(count, 1, LIMIT);
    }
    tess_plan_release(plan);
    tess_layout_release(layout);
    tess_device_release(device);
}

int main(void) {
    return RUN_TESTS_BETWEEN(runtime_setup, runtime_teardown, TEST(test_fixed_parts),
                             TEST(test_asked_parts), TEST(test_empty_jobs_count));
}
