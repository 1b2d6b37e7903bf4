/* SPDX-License-Identifier: Apache-2.0 */
/* tess_run: each check of each tensor, the ranges that reach the backend, and that nothing is
 * allocated. */
#include "fixtures/runs.h"

enum { HEADS = 4, KV_HEADS = 2, DIM = 16, BATCH = 2, ROWS = 6, KEYS = 20 };

enum { REGION = 1 << 15 };
/* never touched: the backend of the test only remembers */
static _Alignas(256) char memory[6 * REGION];

static tess_plan_desc plan_desc(void) {
    tess_plan_desc d = plan_of(DIM, BATCH, ROWS, KEYS);
    d.kv_split = 2;
    return d;
}

static tess_buffer region(int n) { return tess_host_buffer(memory + (size_t)n * REGION, REGION); }

static void fill(const tess_plan *p) {
    memset(&run, 0, sizeof run);
    run.struct_size = sizeof run;
    tess_tensor *const tensors[] = {&run.q, &run.k, &run.v, &run.o, &run.lse};
    for (int n = 0; n < 5; n++)
        assert_int_equal(TESS_OK, tess_plan_tensor(p, (tess_role)n, region(n), tensors[n], NULL));
    run.workspace = region(5);
}

static void remake(const tess_plan_desc *d) {
    run_replan(d);
    fill(plan);
}

static int setup(void **state) {
    runtime_setup(state);
    device = open_device(runtime);
    const tess_pattern p = s2_pattern(4, 2, 3, 0);
    layout = make_layout(runtime, &p, HEADS, KV_HEADS, 100);
    tess_plan_desc d = plan_desc();
    plan = NULL;
    remake(&d);
    return 0;
}

static void accepted(void) {
    int launches = rig.launches;
    uint64_t calls = heap.calls;
    if (tess_run(plan, &run) != TESS_OK) fail_msg("%s", tess_last_error());
    assert_int_equal(launches + 1, rig.launches);
    assert_int_equal(calls, heap.calls);
}

static void refused(tess_status status, const char *field) {
    int launches = rig.launches;
    assert_error(tess_run(plan, &run), status, "tess_run", field);
    assert_int_equal(launches, rig.launches);
    fill(plan);
}

/* ------------------------------------------------------------------ what reaches the backend */

static void test_launch(void **state) {
    (void)state;
    double seconds = 5;
    run.device_seconds = &seconds;
    run.stream.kind = TESS_STREAM_SUBMIT;
    run.stream.handle = 99;
    accepted();
    const tess_launch *l = &rig.launch;
    assert_int_equal(sizeof *l, l->struct_size);
    assert_int_equal(TESS_OP_FORWARD, l->op);
    assert_int_equal(TESS_F32, l->dtype);
    assert_int_equal(DIM, l->head_dim);
    assert_int_equal(DIM, l->value_head_dim);
    assert_int_equal(4, l->block);
    assert_int_equal(HEADS / KV_HEADS, l->group);
    assert_int_equal(1, l->batch_strided);
    assert_true(l->scale == 0.25f);
    assert_ptr_equal(&plan->shares[0].kernel, l->kernel);
    assert_ptr_equal(&plan->tables, l->tables);
    assert_int_equal(0, l->first_job);
    assert_int_equal(plan->memory.n_jobs, l->n_jobs);
    assert_int_equal(0, l->first_merge);
    assert_int_equal(plan->memory.n_merges, l->n_merges);
    assert_memory_equal(&run.q, &l->tensor[TESS_ROLE_Q], sizeof l->tensor[TESS_ROLE_Q]);
    assert_memory_equal(&run.k, &l->tensor[TESS_ROLE_K], sizeof l->tensor[TESS_ROLE_K]);
    assert_memory_equal(&run.v, &l->tensor[TESS_ROLE_V], sizeof l->tensor[TESS_ROLE_V]);
    assert_memory_equal(&run.o, &l->tensor[TESS_ROLE_O], sizeof l->tensor[TESS_ROLE_O]);
    assert_memory_equal(&run.lse, &l->tensor[TESS_ROLE_LSE], sizeof l->tensor[TESS_ROLE_LSE]);
    assert_memory_equal(&run.workspace, &l->workspace, sizeof l->workspace);
    assert_int_equal(plan->memory.partials[0].at, l->partials_at);
    assert_int_equal(plan->memory.partials[0].rows, l->partial_rows);
    assert_int_equal(99, l->stream.handle);
    assert_ptr_equal(&seconds, l->seconds);
    run.lse.buffer.kind = TESS_BUFFER_NONE;
    accepted();
    tess_plan_desc d = plan_desc();
    d.scale = -2;
    remake(&d);
    accepted();
    assert_true(rig.launch.scale == -2);
}

static void test_ranges(void **state) {
    (void)state;
    uint64_t jobs = plan->memory.n_jobs, merges = plan->memory.n_merges, total = jobs + merges;
    assert_true(jobs > 2 && merges > 2);
    for (uint64_t first = 0; first < total; first++) {
        for (uint64_t count = 0; count <= total - first; count++) {
            fill(plan);
            run.first_job = first;
            run.job_count = count;
            accepted();
            uint64_t n = count ? count : total - first, seen = 0;
            const tess_launch *l = &rig.launch;
            assert_true(l->first_job + l->n_jobs <= jobs && l->first_merge + l->n_merges <= merges);
            for (uint64_t j = 0; j < jobs; j++)
                seen += (j >= first && j < first + n) ==
                        (j >= l->first_job && j < l->first_job + l->n_jobs);
            for (uint64_t m = 0; m < merges; m++)
                seen += (jobs + m >= first && jobs + m < first + n) ==
                        (m >= l->first_merge && m < l->first_merge + l->n_merges);
            assert_int_equal(total, seen);
        }
    }
    run.first_job = total;
    run.job_count = 0;
    refused(TESS_ERROR_INVALID, "first_job");
    run.first_job = UINT64_MAX;
    refused(TESS_ERROR_INVALID, "first_job");
    run.first_job = 1;
    run.job_count = total;
    refused(TESS_ERROR_INVALID, "job_count");
    run.first_job = 1;
    run.job_count = UINT64_MAX;
    refused(TESS_ERROR_INVALID, "job_count");
}

/* ------------------------------------------------------------------ tensors */

static void check_input(const char *name, tess_tensor *t) {
    char field[64];
    int64_t batch = t->stride_batch;
    t->buffer.kind = TESS_BUFFER_POINTER;
    snprintf(field, sizeof field, "%s.buffer.kind", name);
    refused(TESS_ERROR_INVALID, field);
    t->buffer.kind = 77;
    refused(TESS_ERROR_INVALID, field);
    t->buffer.reserved = 1;
    snprintf(field, sizeof field, "%s.buffer.reserved", name);
    refused(TESS_ERROR_INVALID, field);
    t->buffer.handle = 0;
    snprintf(field, sizeof field, "%s.buffer.handle", name);
    refused(TESS_ERROR_INVALID, field);
    t->buffer.offset = UINT64_MAX - 3;
    snprintf(field, sizeof field, "%s.buffer.offset", name);
    refused(TESS_ERROR_INVALID, field);
    t->buffer.handle = UINT64_MAX - 15;
    t->buffer.size = 0;
    snprintf(field, sizeof field, "%s.buffer.handle", name);
    refused(TESS_ERROR_INVALID, field);
    for (uint64_t offset = 1; offset < 9; offset++) {
        t->buffer.offset = offset;
        if (offset % 4 == 0) {
            accepted();
        } else {
            snprintf(field, sizeof field, "%s.buffer", name);
            refused(TESS_ERROR_INVALID, field);
        }
    }
    fill(plan);
    t->buffer.handle += 2;
    t->buffer.offset = 2; /* their sum counts */
    accepted();
    fill(plan);
    t->stride_batch = -1;
    snprintf(field, sizeof field, "%s.stride_batch", name);
    refused(TESS_ERROR_INVALID, field);
    t->stride_token = -1;
    snprintf(field, sizeof field, "%s.stride_token", name);
    refused(TESS_ERROR_INVALID, field);
    t->stride_head = INT64_MIN;
    snprintf(field, sizeof field, "%s.stride_head", name);
    refused(TESS_ERROR_INVALID, field);
    t->stride_batch = INT64_MAX;
    refused(TESS_ERROR_INVALID, name);
    t->stride_token = INT64_MAX;
    refused(TESS_ERROR_INVALID, name);
    t->stride_head = INT64_MAX;
    refused(TESS_ERROR_INVALID, name);
    t->stride_head = INT64_MAX / 4;
    refused(TESS_ERROR_INVALID, name);
    t->stride_batch = t->stride_token = t->stride_head = INT64_MAX / 8;
    refused(TESS_ERROR_INVALID, name);
    /* The size to the byte. */
    uint64_t bytes = (uint64_t)batch * BATCH * 4;
    t->buffer.size = bytes;
    accepted();
    t->buffer.size = bytes - 1;
    snprintf(field, sizeof field, "%s.buffer.size", name);
    refused(TESS_ERROR_INVALID, field);
    t->buffer.offset = 8;
    t->buffer.size = bytes + 7;
    refused(TESS_ERROR_INVALID, field);
    t->buffer.offset = 8;
    t->buffer.size = bytes + 8;
    accepted();
    t->buffer.size = 0; /* unknown: not checked */
    accepted();
    t->buffer.kind = TESS_BUFFER_NONE;
    if (strcmp(name, "lse") == 0) {
        accepted();
    } else {
        snprintf(field, sizeof field, "%s.buffer.kind", name);
        refused(TESS_ERROR_INVALID, field);
    }
    fill(plan);
}

static void test_tensors(void **state) {
    (void)state;
    check_input("q", &run.q);
    check_input("k", &run.k);
    check_input("v", &run.v);
    check_input("o", &run.o);
    check_input("lse", &run.lse);
    /* Inputs may repeat. */
    run.q.stride_batch = run.q.stride_token = run.q.stride_head = 0;
    run.k.stride_batch = run.k.stride_token = run.k.stride_head = 0;
    accepted();
    fill(plan);
}

/* Whether two elements of an output share a place, by marking all of them. */
static bool overlaps(const tess_tensor *t, int64_t row) {
    static uint8_t marks[1 << 16];
    memset(marks, 0, sizeof marks);
    for (int64_t b = 0; b < BATCH; b++) {
        for (int64_t r = 0; r < ROWS; r++) {
            for (int64_t h = 0; h < HEADS; h++) {
                for (int64_t e = 0; e < row; e++) {
                    int64_t at = b * t->stride_batch + r * t->stride_token + h * t->stride_head + e;
                    if (marks[at]++) return true;
                }
            }
        }
    }
    return false;
}

/* No overlap is ever accepted, and the orders of dimensions that exist in practice are. */
static void test_outputs_apart(void **state) {
    (void)state;
    uint64_t seed = 61, taken = 0;
    for (int n = 0; n < 20000; n++) {
        bool lse = test_between(&seed, 0, 1);
        tess_tensor *t = lse ? &run.lse : &run.o;
        int64_t row = lse ? 1 : DIM;
        t->stride_head = test_between(&seed, 0, 12) * row +
                         test_between(&seed, -1, 1) * (test_between(&seed, 0, 5) == 0);
        t->stride_token = test_between(&seed, 0, 12) * row;
        t->stride_batch = test_between(&seed, 0, 60) * row;
        if (t->stride_head < 0) t->stride_head = 0;
        t->buffer.size = 0;
        tess_status status = tess_run(plan, &run);
        if (status == TESS_OK) {
            assert_false(overlaps(t, row));
            taken++;
        } else {
            assert_int_equal(TESS_ERROR_INVALID, status);
            assert_error_has(lse ? "lse.stride_" : "o.stride_");
        }
        fill(plan);
    }
    assert_true(taken > 500);
    /* Every order of the dimensions, tight. */
    const int64_t counts[3] = {BATCH, ROWS, HEADS};
    const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (int n = 0; n < 6; n++) {
        int64_t strides[3], stride = DIM;
        for (int d = 2; d >= 0; d--) {
            strides[orders[n][d]] = stride;
            stride *= counts[orders[n][d]];
        }
        run.o.stride_batch = strides[0];
        run.o.stride_token = strides[1];
        run.o.stride_head = strides[2];
        accepted();
    }
    /* A dimension of one element has no stride to speak of. */
    tess_plan_desc d = plan_desc();
    d.batch = 1;
    d.q_len = 1;
    remake(&d);
    run.o.stride_batch = run.o.stride_token = 0;
    run.lse.stride_batch = run.lse.stride_token = 0;
    accepted();
}

/* Lengths that differ: what is touched decides, not what would fit the longest. */
static void test_lengths(void **state) {
    (void)state;
    const int64_t q_lens[] = {6, 2, 0}, kv_lens[] = {20, 5, 20};
    tess_plan_desc d = plan_desc();
    d.batch = 3;
    d.q_len = d.kv_len = 0;
    d.q_lens = q_lens;
    d.kv_lens = kv_lens;
    remake(&d);
    run.k.buffer.size = (uint64_t)(20 + 5) * KV_HEADS * DIM * 4;
    accepted();
    run.k.buffer.size--;
    refused(TESS_ERROR_INVALID, "k.buffer.size");
    run.q.buffer.size = (uint64_t)(6 + 2) * HEADS * DIM * 4;
    accepted();
    run.q.buffer.size--;
    refused(TESS_ERROR_INVALID, "q.buffer.size");
    run.q.stride_batch = INT64_MAX;
    run.q.stride_token = INT64_MAX;
    refused(TESS_ERROR_INVALID, "q");
    /* Sequences without rows after the last one with rows have nothing to be kept apart from. */
    const int64_t first_only[] = {4, 0, 0};
    d.q_lens = first_only;
    remake(&d);
    run.o.stride_batch = run.lse.stride_batch = 0;
    accepted();
    const int64_t first_two[] = {4, 4, 0};
    d.q_lens = first_two;
    remake(&d);
    run.o.stride_batch = 0;
    refused(TESS_ERROR_INVALID, "o.stride_batch");
    /* Packed: the batch's stride is not looked at. */
    const int64_t cu_q[] = {0, 6, 8, 8}, cu_kv[] = {0, 20, 25, 45};
    d = plan_desc();
    d.batch = 3;
    d.cu_q_lens = cu_q;
    d.cu_kv_lens = cu_kv;
    remake(&d);
    run.q.stride_batch = run.o.stride_batch = run.k.stride_batch = -5;
    accepted();
    assert_int_equal(0, rig.launch.batch_strided);
    run.k.buffer.size = (uint64_t)45 * KV_HEADS * DIM * 4;
    accepted();
    run.k.buffer.size--;
    refused(TESS_ERROR_INVALID, "k.buffer.size");
    run.o.stride_token = DIM;
    refused(TESS_ERROR_INVALID, "o.stride_token");
    run.k.stride_token = INT64_MAX;
    refused(TESS_ERROR_INVALID, "k");
}

static void test_empty(void **state) {
    (void)state;
    double seconds = 5;
    tess_plan_desc d = plan_desc();
    d.kv_len = 0; /* rows without keys are written, and need no memory for keys */
    remake(&d);
    accepted();
    assert_true(rig.launch.n_jobs > 0);
    run.k.buffer = run.v.buffer = (tess_buffer){.kind = TESS_BUFFER_NONE};
    accepted();
    run.k.buffer.kind = TESS_BUFFER_OBJECT;
    refused(TESS_ERROR_INVALID, "k.buffer.kind");
    run.q.buffer.kind = TESS_BUFFER_NONE;
    refused(TESS_ERROR_INVALID, "q.buffer.kind");
    for (int n = 0; n < 2; n++) {
        d = plan_desc();
        if (n) d.batch = 0;
        if (!n) d.q_len = 0;
        remake(&d);
        int launches = rig.launches;
        memset(&run, 0, sizeof run);
        run.struct_size = sizeof run;
        assert_int_equal(TESS_OK, tess_run(plan, &run));
        run.device_seconds = &seconds;
        seconds = 5;
        assert_int_equal(TESS_OK, tess_run(plan, &run));
        assert_true(seconds == 0);
        assert_int_equal(launches, rig.launches);
        run.flags = 1;
        assert_error(tess_run(plan, &run), TESS_ERROR_INVALID, "tess_run", "flags");
    }
}

static void test_workspace(void **state) {
    (void)state;
    assert_true(plan->memory.workspace_bytes > 0);
    run.workspace.offset = 32;
    refused(TESS_ERROR_INVALID, "workspace");
    run.workspace.kind = TESS_BUFFER_NONE;
    refused(TESS_ERROR_INVALID, "workspace.kind");
    run.workspace.handle = 0;
    refused(TESS_ERROR_INVALID, "workspace.handle");
    run.workspace.offset = 64;
    run.workspace.size = plan->memory.workspace_bytes + 63;
    refused(TESS_ERROR_INVALID, "workspace.size");
    run.workspace.offset = 64;
    run.workspace.size = plan->memory.workspace_bytes + 64;
    accepted();
    run.workspace.size = 0;
    accepted();
    tess_plan_desc d = plan_desc();
    d.kv_split = 1;
    remake(&d);
    run.workspace = (tess_buffer){.kind = TESS_BUFFER_NONE};
    accepted();
}

static void test_reserved(void **state) {
    (void)state;
    const struct {
        const char *field;
        tess_buffer *at;
    } list[] = {
        {"sink_logits", &run.sink_logits.buffer},
        {"q_lens", &run.q_lens},
        {"kv_lens", &run.kv_lens},
        {"d_o", &run.d_o.buffer},
        {"d_q", &run.d_q.buffer},
        {"d_k", &run.d_k.buffer},
        {"d_v", &run.d_v.buffer},
        {"d_lse", &run.d_lse.buffer},
    };
    for (size_t n = 0; n < sizeof list / sizeof *list; n++) {
        *list[n].at = region(0);
        refused(n < 3 ? TESS_ERROR_UNSUPPORTED : TESS_ERROR_INVALID, list[n].field);
    }
    run.block_table = region(0);
    refused(TESS_ERROR_INVALID, "block_table");
    run.table_stride = 1;
    refused(TESS_ERROR_INVALID, "table_stride");
    run.pages = 1;
    refused(TESS_ERROR_INVALID, "pages");
    const tess_tensor pool = run.k;
    run.k_pools = &pool;
    refused(TESS_ERROR_INVALID, "k_pools");
    run.v_pools = &pool;
    refused(TESS_ERROR_INVALID, "v_pools");
    run.k_scale.buffer = region(0);
    refused(TESS_ERROR_INVALID, "k_scale");
    run.v_scale.buffer = region(0);
    refused(TESS_ERROR_INVALID, "v_scale");
    run.k_scale_pools = &pool;
    refused(TESS_ERROR_INVALID, "k_scale_pools");
    run.v_scale_pools = &pool;
    refused(TESS_ERROR_INVALID, "v_scale_pools");
    run.flags = 4;
    refused(TESS_ERROR_INVALID, "flags");
    run.stream.kind = 3;
    refused(TESS_ERROR_INVALID, "stream.kind");
    run.stream.reserved = 1;
    refused(TESS_ERROR_INVALID, "stream.reserved");
    assert_error(tess_run(NULL, &run), TESS_ERROR_INVALID, "tess_run", "plan");
    assert_int_equal(TESS_ERROR_INVALID, tess_run(plan, NULL));
    run.struct_size = 0;
    assert_int_equal(TESS_ERROR_VERSION, tess_run(plan, &run));
}

/* Objects have no address, so only the offset has to be aligned. */
static void test_objects(void **state) {
    (void)state;
    rig.caps.buffer_kind = TESS_BUFFER_OBJECT;
    tess_device_release(device);
    device = open_device(runtime);
    tess_plan_desc d = plan_desc();
    remake(&d);
    tess_tensor *const tensors[] = {&run.q, &run.k, &run.v, &run.o, &run.lse};
    for (int n = 0; n < 5; n++) {
        tensors[n]->buffer.kind = TESS_BUFFER_OBJECT;
        tensors[n]->buffer.handle = 3 + (uint64_t)n;
    }
    run.workspace.kind = TESS_BUFFER_OBJECT;
    run.workspace.handle = 8;
    accepted();
    run.q.buffer.offset = 4;
    accepted();
    run.q.buffer.offset = (uint64_t)INT64_MAX - 3;
    run.q.buffer.size = 0;
    refused(TESS_ERROR_INVALID, "q.buffer.offset");
}

static void test_failures(void **state) {
    (void)state;
    rig.fail_call = rig.calls + 1;
    rig.fail_status = TESS_ERROR_BUSY;
    assert_int_equal(TESS_ERROR_BUSY, tess_run(plan, &run));
    accepted();
    rig.fail_call = rig.calls + 1;
    rig.fail_status = TESS_ERROR_DEVICE_LOST;
    assert_int_equal(TESS_ERROR_DEVICE_LOST, tess_run(plan, &run));
    int launches = rig.launches;
    assert_int_equal(TESS_ERROR_DEVICE_LOST, tess_run(plan, &run));
    assert_int_equal(launches, rig.launches);
}

int main(void) {
    return RUN_TESTS_BETWEEN(setup, run_teardown, TEST(test_launch), TEST(test_ranges),
                             TEST(test_tensors), TEST(test_outputs_apart), TEST(test_lengths),
                             TEST(test_empty), TEST(test_workspace), TEST(test_reserved),
                             TEST(test_objects), TEST(test_failures));
}
