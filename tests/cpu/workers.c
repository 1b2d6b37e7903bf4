/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers that change nothing but the speed of the CPU backend: how many workers a launch wakes,
 * and for how many a plan splits keys. */
#include "common/testlib.h"

#include "cpu.h"

enum { DIM = 128, BLOCK = 64, RATE = 100, THREADS = 8, WORTH_NS = 10000 };

/* A job of so many rows and key blocks, half of which lie in its interval. */
static tess_job job_of(uint32_t rows, uint32_t blocks) {
    tess_job job = {.rows = (uint16_t)rows, .heads = 1};
    job.left_count = blocks / 4;
    job.right_count = blocks / 2 - blocks / 4;
    job.interval_blocks = blocks - blocks / 2;
    return job;
}

static uint32_t workers_of(const tess_job *jobs, uint64_t first, uint64_t n, uint32_t kv_dtype) {
    const tess_tables tables = {.jobs = jobs};
    const tess_launch launch = {.tables = &tables,
                                .first_job = first,
                                .n_jobs = n,
                                .head_dim = DIM,
                                .block = BLOCK,
                                .kv_dtype = kv_dtype};
    return tess_cpu_workers(&launch, RATE, n, THREADS, WORTH_NS);
}

/* 1,024 keys of 128 elements: 1 row takes 5.2 us at 100 FLOPs a nanosecond, and its softmax
 * 1 us. Reading K and V takes 26 us as f32, 6.6 us as codes. */
static void test_small_launches_run_alone(void **state) {
    (void)state;
    tess_job jobs[4] = {job_of(1, 1), job_of(1, 1), job_of(1, 1), job_of(1, 16)};
    assert_int_equal(workers_of(jobs, 0, 3, TESS_F32), 1);
    /* The long job comes last, and counts. */
    assert_int_equal(workers_of(jobs, 0, 4, TESS_F32), 4);
    /* Only what is of the launch counts. */
    assert_int_equal(workers_of(jobs, 1, 2, TESS_F32), 1);
    assert_int_equal(workers_of(jobs, 2, 2, TESS_F32), 2);
}

static void test_rows_and_bytes_count(void **state) {
    (void)state;
    tess_job jobs[2] = {job_of(1, 4), job_of(1, 4)};
    /* 2 x (0.3 + 1.6 + 1.6) us of codes, and 2 x (0.3 + 1.6 + 6.6) us of f32 */
    assert_int_equal(workers_of(jobs, 0, 2, TESS_I8), 1);
    assert_int_equal(workers_of(jobs, 0, 2, TESS_F32), 2);
    jobs[1].rows = 4; /* 4.7 us more */
    assert_int_equal(workers_of(jobs, 0, 2, TESS_I8), 2);
    jobs[1].rows = 1;
    jobs[1].heads = 4;
    assert_int_equal(workers_of(jobs, 0, 2, TESS_I8), 2);
}

/* What waking takes is a machine's own; short heads take time for their softmax. */
static void test_work_is_compared_with_waking(void **state) {
    (void)state;
    const tess_job jobs[2] = {job_of(4, 16), job_of(4, 16)};
    const tess_tables tables = {.jobs = jobs};
    const tess_launch launch = {
        .tables = &tables, .n_jobs = 2, .head_dim = 8, .block = BLOCK, .kv_dtype = TESS_F32};
    /* 2 x (0.3 + 1.3 + 4.1 + 1.6) us */
    assert_int_equal(tess_cpu_workers(&launch, RATE, 2, THREADS, 14000), 2);
    assert_int_equal(tess_cpu_workers(&launch, RATE, 2, THREADS, 15500), 1);
    assert_int_equal(tess_cpu_workers(&launch, RATE, 2, THREADS, 0), 2);
}

/* Where the homes of `workers` workers end, of n jobs from `first` on. */
static uint32_t homes_of(const tess_job *jobs, uint64_t first, uint64_t n, uint32_t workers,
                         uint32_t worth_ns, uint64_t *end) {
    const tess_tables tables = {.jobs = jobs};
    const tess_launch launch = {.tables = &tables,
                                .first_job = first,
                                .n_jobs = n,
                                .head_dim = DIM,
                                .block = BLOCK,
                                .kv_dtype = TESS_F32};
    return tess_cpu_homes(&launch, RATE, n, workers, worth_ns, end);
}

/* A job of 16 blocks takes 32.7 us. */
static void test_workers_have_jobs_of_their_own(void **state) {
    (void)state;
    tess_job jobs[13];
    uint64_t end[CPU_HOMES];
    jobs[0] = job_of(1, 64); /* of another launch */
    for (int n = 1; n < 13; n++) jobs[n] = job_of(1, 16);
    assert_int_equal(homes_of(jobs, 1, 12, 3, 30000, end), 3);
    assert_int_equal(end[0], 4);
    assert_int_equal(end[1], 8);
    assert_int_equal(end[2], 12);
    /* The others wake 133 us late, which is four jobs: they have fewer. */
    assert_int_equal(homes_of(jobs, 1, 12, 3, 400000, end), 3);
    assert_int_equal(end[0], 7);
    assert_int_equal(end[1], 9);
    assert_int_equal(end[2], 12);
    assert_int_equal(homes_of(jobs, 1, 12, 3, 4000000, end), 3);
    assert_int_equal(end[0], 12);
    assert_int_equal(end[1], 12);
    assert_int_equal(end[2], 12);
}

static void test_workers_share_unequal_or_long_jobs(void **state) {
    (void)state;
    tess_job jobs[4] = {job_of(1, 20), job_of(1, 18), job_of(1, 16), job_of(1, 16)};
    uint64_t end[CPU_HOMES];
    assert_int_equal(homes_of(jobs, 0, 4, 1, 100000, end), 1);
    assert_int_equal(homes_of(jobs, 0, 4, 2, 100000, end), 2);
    jobs[0] = job_of(1, 21);
    assert_int_equal(homes_of(jobs, 0, 4, 2, 100000, end), 1);
    assert_int_equal(homes_of(jobs, 1, 3, 2, 100000, end), 2);
    /* 65 us are less than 16 times what waking is worth, or not. */
    assert_int_equal(homes_of(jobs, 2, 2, 2, 5000, end), 2);
    assert_int_equal(end[0], 1);
    assert_int_equal(homes_of(jobs, 2, 2, 2, 4000, end), 1);
    assert_int_equal(homes_of(jobs, 2, 2, CPU_HOMES + 1, 100000, end), 1);
}

/* Columns of so many keys, each of which has one segment of so many rows. */
static uint32_t column_workers(uint32_t n, uint16_t keys, uint32_t rows, uint32_t flags,
                               uint32_t heads, uint32_t step) {
    enum { MOST = 12, FIRST = 1 };
    tess_column columns[MOST] = {{0}};
    const tess_segment segment = {.rows = rows, .heads = (uint16_t)heads, .step = step};
    const tess_class cls = {.flags = flags};
    const tess_tables tables = {.columns = columns, .segments = &segment, .classes = &cls};
    const tess_launch launch = {.tables = &tables,
                                .stage = TESS_STAGE_COLUMNS,
                                .first_job = FIRST,
                                .n_jobs = n,
                                .head_dim = DIM,
                                .block = BLOCK};
    for (uint32_t i = FIRST; i < MOST; i++)
        columns[i] = (tess_column){.keys = keys, .segments = rows > 0};
    return tess_cpu_stage_workers(&launch, RATE, THREADS, WORTH_NS);
}

/* 10 us for waking are worth it from 17.5 us on. 16 keys take 0.3 us and 1.4 us to pack, and 43 ns
 * and 102 ns of products for each row. */
static void test_columns_are_compared_with_waking(void **state) {
    (void)state;
    assert_int_equal(column_workers(10, 16, 0, 0, 1, 0), 1);
    assert_int_equal(column_workers(11, 16, 0, 0, 1, 0), THREADS);
    assert_int_equal(column_workers(2, 16, 48, 0, 1, 0), 1);
    assert_int_equal(column_workers(2, 16, 50, 0, 1, 0), 2);
    assert_int_equal(column_workers(2, 16, 25, 0, 2, 0), 2); /* of two heads */
    assert_int_equal(column_workers(2, 16, 1, 0, 1, 2), 2);  /* a row is a block */
    assert_int_equal(column_workers(2, 16, 1, TESS_CLASS_BITS, 1, 0), 2);
    assert_int_equal(column_workers(2, 17, 24, 0, 1, 0), 2); /* as many as 32 */
    /* Panels above the diagonal are not multiplied. */
    assert_int_equal(column_workers(2, 64, 7, 0, 1, 0), 2);
    assert_int_equal(column_workers(2, 64, 7, TESS_CLASS_CAUSAL, 1, 0), 1);
}

/* A strip of 32 rows of 2 heads takes 0.3 us and 1.6 us. */
static void test_strips_are_compared_with_waking(void **state) {
    (void)state;
    tess_launch launch = {
        .stage = TESS_STAGE_DELTA, .n_jobs = 9, .n_heads = 2, .head_dim = DIM, .block = BLOCK};
    assert_int_equal(tess_cpu_stage_workers(&launch, RATE, THREADS, WORTH_NS), 1);
    launch.n_jobs = 10;
    assert_int_equal(tess_cpu_stage_workers(&launch, RATE, THREADS, WORTH_NS), THREADS);
}

static void test_many_jobs_take_all_threads(void **state) {
    (void)state;
    tess_job jobs[40];
    for (int n = 0; n < 40; n++) jobs[n] = job_of(1, 0);
    assert_int_equal(workers_of(jobs, 0, 33, TESS_F32), 1); /* 300 ns each */
    assert_int_equal(workers_of(jobs, 0, 34, TESS_F32), THREADS);
    assert_int_equal(workers_of(jobs, 0, 0, TESS_F32), 1);
}

static tess_kernel_key key_of(int64_t q_len, int64_t keys, uint32_t heads, uint32_t group) {
    return (tess_kernel_key){.head_dim = DIM,
                             .max_q_len = q_len,
                             .kv_keys = keys,
                             .n_heads = heads,
                             .group = group,
                             .kv_dtype = TESS_F32};
}

static void test_plans_split_for_what_the_work_is_worth(void **state) {
    (void)state;
    /* One row of a head: 2 x 128 floats of a key take 41 ns to read. 50 us are worth a worker. */
    tess_kernel_key key = key_of(1, 1200, 1, 1);
    assert_int_equal(tess_cpu_split_workers(&key, 1, RATE), 1);
    key.kv_keys = 1300;
    assert_int_equal(tess_cpu_split_workers(&key, 1, RATE), 2);
    key.kv_dtype = TESS_I8; /* 13.3 us */
    assert_int_equal(tess_cpu_split_workers(&key, 1, RATE), 1);
    key.kv_dtype = TESS_F32;
    key.n_heads = 8; /* of 8 kv heads, and of one */
    assert_int_equal(tess_cpu_split_workers(&key, 1, RATE), 8);
    key.group = 8;
    assert_int_equal(tess_cpu_split_workers(&key, 8, RATE), 2);
    key.kv_keys = 1 << 20;
    assert_int_equal(tess_cpu_split_workers(&key, 8, RATE), CPU_PARALLEL_JOBS);
    /* Lengths that are not known, or must not matter. */
    key.kv_keys = 0;
    assert_int_equal(tess_cpu_split_workers(&key, 8, RATE), CPU_PARALLEL_JOBS);
}

/* 256 rows of 128 elements take 30 us beside their steps, so 307 us are worth a worker. */
static void test_jobs_of_many_rows_are_split_less(void **state) {
    (void)state;
    tess_kernel_key key = key_of(256, 2048, 1, 1); /* 2.7 ms */
    assert_int_equal(tess_cpu_split_workers(&key, 1, RATE), 64);
    assert_int_equal(tess_cpu_split_workers(&key, 256, RATE), 8);
}

/* Threads get equal numbers of parts. */
static void test_parts_are_a_power_of_two(void **state) {
    (void)state;
    tess_kernel_key key = key_of(1, 0, 1, 1); /* 1,221 keys are worth a worker */
    static const uint32_t wanted[][2] = {{2, 2}, {3, 2}, {4, 4}, {6, 4}, {7, 8}, {12, 8}, {13, 16}};
    for (size_t n = 0; n < sizeof wanted / sizeof *wanted; n++) {
        key.kv_keys = (int64_t)wanted[n][0] * 1221 - 600;
        assert_int_equal(tess_cpu_split_workers(&key, 1, RATE), wanted[n][1]);
    }
}

int main(void) {
    return RUN_TESTS(
        TEST(test_small_launches_run_alone), TEST(test_rows_and_bytes_count),
        TEST(test_work_is_compared_with_waking), TEST(test_workers_have_jobs_of_their_own),
        TEST(test_workers_share_unequal_or_long_jobs), TEST(test_columns_are_compared_with_waking),
        TEST(test_strips_are_compared_with_waking), TEST(test_many_jobs_take_all_threads),
        TEST(test_plans_split_for_what_the_work_is_worth),
        TEST(test_jobs_of_many_rows_are_split_less), TEST(test_parts_are_a_power_of_two));
}
