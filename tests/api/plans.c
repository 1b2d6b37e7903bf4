/* SPDX-License-Identifier: Apache-2.0 */
/* Every bad argument of the functions of plan, run and memory. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "bad.h"

enum { HEADS = 4, KV_HEADS = 2, D = 32, BATCH = 2, Q = 8, KV = 40 };

static tess_runtime *runtime;
static tess_device *device;
static tess_layout *layout;
static tess_plan *plan;
static tess_plan_info info;
static float *q, *k, *v, *o, *lse, *work;

static tess_plan_desc base_plan(void) {
    tess_plan_desc desc = {.struct_size = sizeof desc};
    desc.head_dim = D;
    desc.batch = BATCH;
    desc.q_len = Q;
    desc.kv_len = KV;
    desc.kv_split = 3; /* so that there is a workspace to get wrong */
    return desc;
}

static float *floats(size_t count) {
    float *memory = aligned_alloc(256, (count * sizeof *memory + 511) / 256 * 256);
    if (!memory) {
        fail_msg("out of memory");
        return NULL;
    }
    for (size_t n = 0; n < count; n++) memory[n] = 0.25f;
    return memory;
}

static int setup(void **state) {
    (void)state;
    tess_pattern pattern = {.struct_size = sizeof pattern};
    tess_layout_desc desc = {.struct_size = sizeof desc};
    pattern.kind = TESS_PATTERN_S2;
    pattern.block = 16;
    pattern.local = 2;
    pattern.stride = 3;
    desc.pattern = &pattern;
    desc.n_heads = HEADS;
    desc.n_kv_heads = KV_HEADS;
    desc.max_tokens = 4096;
    runtime = test_runtime(2);
    device = test_cpu(runtime);
    assert_ok(tess_layout_create(runtime, &desc, &layout));
    const tess_plan_desc p = base_plan();
    assert_ok(tess_plan_create(device, layout, &p, &plan));
    info.struct_size = sizeof info;
    assert_ok(tess_plan_query(plan, &info));
    assert_true(info.workspace_bytes > 0 && info.n_jobs > 1);
    q = floats(BATCH * Q * HEADS * D);
    o = floats(BATCH * Q * HEADS * D);
    k = floats(BATCH * KV * KV_HEADS * D);
    v = floats(BATCH * KV * KV_HEADS * D);
    lse = floats(BATCH * Q * HEADS);
    work = floats(info.workspace_bytes / sizeof *work + 1);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    free(q);
    free(k);
    free(v);
    free(o);
    free(lse);
    free(work);
    tess_plan_release(plan);
    tess_layout_release(layout);
    tess_device_release(device);
    tess_runtime_release(runtime);
    return 0;
}

/* ------------------------------------------------------------------ plan */

#define P(member, value, statuses, field)  BAD(tess_plan_desc, member, value, statuses, field)
#define PR(member, value, statuses, field) BAD_REAL(tess_plan_desc, member, value, statuses, field)
static const bad_value plan_numbers[] = {
    P(struct_size, 0, VER, "desc"),
    P(struct_size, UINT32_MAX, VER, "desc"),
    P(flags, 1u << 7, INV, "flags"),
    P(flags, 1u << 10, INV, "flags"),
    P(flags, TESS_PLAN_DEVICE_PARTS, INV, "flags: TESS_PLAN_DEVICE_PARTS needs"),
    P(flags, 0x80000000u, INV, "flags"),
    P(page, 8, INV, "page"),
    P(page, 48, INV, "page"),
    P(page, 512, INV, "page"),
    P(page, -16, INV, "page"),
    P(op, TESS_OP_BACKWARD, INV, "kv_split"), /* which is forward's */
    P(op, 2, INV, "op"),
    P(op, UINT32_MAX, INV, "op"),
    P(dtype, 3, INV, "dtype"),
    P(dtype, UINT32_MAX, INV, "dtype"),
    P(head_dim, 0, INV, "head_dim"),
    P(head_dim, -8, INV, "head_dim"),
    P(head_dim, INT32_MIN, INV, "head_dim"),
    P(head_dim, 1, UNS, "head_dim"),
    P(head_dim, 12, UNS, "head_dim"),
    P(head_dim, 264, UNS, "head_dim"),
    P(head_dim, INT32_MAX, UNS, "head_dim"),
    P(head_dim, 256, FINE, NULL),
    P(value_head_dim, D, FINE, NULL),
    P(value_head_dim, D + 8, UNS, "value_head_dim"),
    P(value_head_dim, -1, INV, "value_head_dim"),
    PR(scale, NAN, INV, "scale"),
    PR(scale, INFINITY, INV, "scale"),
    PR(scale, -INFINITY, INV, "scale"),
    PR(scale, -1, FINE, NULL),
    PR(scale, 3e38f, UNS, "scale"),
    PR(scale, -3e38f, UNS, "scale"),
    PR(scale, 1e-39f, UNS, "scale"),
    PR(scale, 0x1p120f, FINE, NULL),
    PR(scale, -0x1p-120f, FINE, NULL),
    PR(softcap, 30, UNS, "softcap"),
    PR(softcap, NAN, UNS | INV, "softcap"),
    P(batch, -1, INV, "batch"),
    P(batch, INT64_MIN, INV, "batch"),
    P(batch, INT64_MAX, INV | UNS | OOM, "batch"),
    P(batch, 1LL << 40, INV | UNS | OOM, NULL),
    P(batch, 0, FINE, NULL),
    P(q_len, -1, INV, "q_len"),
    P(q_len, INT64_MIN, INV, "q_len"),
    P(q_len, INT32_MAX, UNS, "q_len"),
    P(q_len, INT32_MAX - 65536 + 1, UNS, "q_len"),
    P(q_len, 1LL << 32, UNS, "q_len"),
    P(q_len, INT64_MAX, UNS | INV, "q_len"),
    P(q_len, 0, FINE, NULL),
    P(q_len, 5000, FINE, NULL), /* more than max_tokens, which bounds keys alone */
    P(kv_len, -1, INV, "kv_len"),
    P(kv_len, INT64_MIN, INV, "kv_len"),
    P(kv_len, 4097, INV, "kv_len"),
    P(kv_len, 1LL << 33, UNS | INV, "kv_len"),
    P(kv_len, INT64_MAX, UNS | INV, "kv_len"),
    P(kv_len, 0, FINE, NULL),
    P(kv_split, -1, INV, "kv_split"),
    P(kv_split, INT32_MIN, INV, "kv_split"),
    P(kv_split, INT32_MAX, FINE, NULL),
    P(tile_rows, -1, INV, "tile_rows"),
    P(tile_rows, INT32_MIN, INV, "tile_rows"),
    P(tile_rows, INT32_MAX, FINE, NULL),
    P(tile_rows, 1, FINE, NULL),
    P(determinism, 1, INV, "determinism"),
    P(determinism, UINT32_MAX, INV, "determinism"),
};

static void check_plans(const bad_value *rows, size_t count) {
    for (size_t n = 0; n < count; n++) {
        tess_plan_desc desc = base_plan();
        bad_apply(&rows[n], &desc);
        tess_plan *made = (tess_plan *)&desc;
        const tess_status status = tess_plan_create(device, layout, &desc, &made);
        bad_check(&rows[n], status, "tess_plan_create");
        if (status == TESS_OK) {
            tess_plan_info got = {.struct_size = sizeof got};
            assert_ok(tess_plan_query(made, &got));
            tess_plan_release(made);
        } else
            assert_ptr_equal(made, &desc);
    }
}

static void test_plan_create(void **state) {
    (void)state;
    static const int64_t negative[2] = {3, -1}, longer[2] = {9, 1}, longer_kv[2] = {1, 41},
                         fine_q[2] = {0, 8}, fine_kv[2] = {40, 0};
    const bad_value pointers[] = {
        P(q_lens, (intptr_t)negative, INV, "q_lens"),
        P(kv_lens, (intptr_t)negative, INV, "kv_lens"),
        P(q_lens, (intptr_t)longer, INV, "q_lens"),
        P(kv_lens, (intptr_t)longer_kv, INV, "kv_lens"),
        P(q_lens, (intptr_t)fine_q, FINE, NULL),
        P(kv_lens, (intptr_t)fine_kv, FINE, NULL),
        P(cu_q_lens, (intptr_t)fine_q, INV, NULL), /* one of two */
        P(cu_kv_lens, (intptr_t)fine_q, INV, NULL),
        P(kernel, (intptr_t) "nonsense", INV, "kernel"),
        P(kernel, (intptr_t) "", INV | FINE, "kernel"),
        P(kernel, (intptr_t) "/", INV, "kernel"),
        P(kernel, (intptr_t) "cpu/", INV, "kernel"),
        P(kernel, (intptr_t) "cpu/nonsense", INV | UNS, "cpu: kernel"),
        P(kernel, (intptr_t) "nonsense/portable", INV | UNS, "kernel"),
    };
    check_plans(plan_numbers, COUNT(plan_numbers));
    check_plans(pointers, COUNT(pointers));
    tess_plan_desc desc = base_plan();
    tess_plan *made = NULL;
    assert_error(tess_plan_create(NULL, layout, &desc, &made), TESS_ERROR_INVALID,
                 "tess_plan_create", "device");
    assert_error(tess_plan_create(device, NULL, &desc, &made), TESS_ERROR_INVALID,
                 "tess_plan_create", "layout");
    assert_error(tess_plan_create(device, layout, NULL, &made), TESS_ERROR_INVALID,
                 "tess_plan_create", "desc");
    assert_error(tess_plan_create(device, layout, &desc, NULL), TESS_ERROR_INVALID,
                 "tess_plan_create", "plan");
    assert_null(made);
    tess_plan_release(NULL);
}

/* A device without tables of its own releases a plan in the order of a stream as ever; a stream
 * that is none leaves it alive. */
static void test_release_after(void **state) {
    (void)state;
    const tess_plan_desc desc = base_plan();
    tess_stream stream = {.kind = TESS_STREAM_RECORD};
    tess_plan *made = NULL;
    assert_ok(tess_plan_create(device, layout, &desc, &made));
    assert_error(tess_plan_release_after(made, &stream), TESS_ERROR_INVALID,
                 "tess_plan_release_after", "stream.kind");
    stream.kind = TESS_STREAM_DEFAULT;
    assert_ok(tess_plan_release_after(made, &stream));
    assert_ok(tess_plan_create(device, layout, &desc, &made));
    assert_ok(tess_plan_release_after(made, NULL));
    assert_ok(tess_plan_release_after(NULL, NULL));
}

static void test_packed_lengths(void **state) {
    (void)state;
    static const int64_t fine[3] = {0, 5, 9}, kv[3] = {0, 5, 49}, falling[3] = {0, 9, 5},
                         late[3] = {1, 5, 9}, negative[3] = {0, -5, 9},
                         long_kv[3] = {0, 4097, 5000}, huge[3] = {0, 5, INT64_MAX};
    static const struct {
        const int64_t *q, *kv, *q_lens;
        int statuses;
        const char *field;
    } rows[] = {
        {fine, kv, NULL, FINE, NULL},
        {falling, kv, NULL, INV, "cu_q_lens"},
        {fine, falling, NULL, INV, "cu_kv_lens"},
        {late, kv, NULL, INV, "cu_q_lens"},
        {fine, late, NULL, INV, "cu_kv_lens"},
        {negative, kv, NULL, INV, "cu_q_lens"},
        {fine, negative, NULL, INV, "cu_kv_lens"},
        {fine, long_kv, NULL, INV, "cu_kv_lens"},
        {huge, kv, NULL, UNS | INV, "cu_q_lens"},
        {fine, huge, NULL, UNS | INV, "cu_kv_lens"},
        {fine, NULL, NULL, INV, NULL},
        {NULL, kv, NULL, INV, NULL},
        {fine, kv, fine, INV, NULL}, /* packed and padded at once */
    };
    for (size_t n = 0; n < COUNT(rows); n++) {
        tess_plan_desc desc = base_plan();
        desc.q_len = desc.kv_len = 0;
        desc.cu_q_lens = rows[n].q;
        desc.cu_kv_lens = rows[n].kv;
        desc.q_lens = rows[n].q_lens;
        char title[32];
        snprintf(title, sizeof title, "row %zu", n);
        const bad_value bad = {
            .title = title, .statuses = rows[n].statuses, .field = rows[n].field};
        tess_plan *made = NULL;
        const tess_status status = tess_plan_create(device, layout, &desc, &made);
        bad_check(&bad, status, "tess_plan_create");
        tess_plan_release(made);
    }
}

static void test_plan_queries(void **state) {
    (void)state;
    uint64_t first = 77, count = 77, bytes = 77;
    tess_tensor tensor;
    tess_plan_info got = {.struct_size = sizeof got};
    memset(&tensor, 0x11, sizeof tensor);
    const tess_tensor before = tensor;
    assert_error(tess_plan_query(NULL, &got), TESS_ERROR_INVALID, "tess_plan_query", "plan");
    assert_error(tess_plan_query(plan, NULL), TESS_ERROR_INVALID, "tess_plan_query", "info");
    assert_error(tess_plan_range(NULL, 0, &first, &count), TESS_ERROR_INVALID, "tess_plan_range",
                 "plan");
    assert_error(tess_plan_range(plan, info.n_ranges, &first, &count), TESS_ERROR_INVALID,
                 "tess_plan_range", "index");
    assert_error(tess_plan_range(plan, UINT64_MAX, &first, &count), TESS_ERROR_INVALID,
                 "tess_plan_range", "index");
    assert_error(tess_plan_range(plan, 0, NULL, &count), TESS_ERROR_INVALID, "tess_plan_range",
                 "first_job");
    assert_error(tess_plan_range(plan, 0, &first, NULL), TESS_ERROR_INVALID, "tess_plan_range",
                 "job_count");
    assert_true(first == 77 && count == 77);
    const tess_buffer buffer = tess_host_buffer(q, 0);
    assert_error(tess_plan_tensor(NULL, TESS_ROLE_Q, buffer, &tensor, &bytes), TESS_ERROR_INVALID,
                 "tess_plan_tensor", "plan");
    assert_error(tess_plan_tensor(plan, (tess_role)5, buffer, &tensor, &bytes), TESS_ERROR_INVALID,
                 "tess_plan_tensor", "role");
    assert_error(tess_plan_tensor(plan, (tess_role)-1, buffer, &tensor, &bytes), TESS_ERROR_INVALID,
                 "tess_plan_tensor", "role");
    assert_error(tess_plan_tensor(plan, TESS_ROLE_Q, buffer, NULL, &bytes), TESS_ERROR_INVALID,
                 "tess_plan_tensor", "tensor");
    assert_memory_equal(&before, &tensor, sizeof tensor);
    assert_true(bytes == 77);
    assert_ok(tess_plan_tensor(plan, TESS_ROLE_K, tess_host_buffer(k, 0), &tensor, NULL));
    assert_ok(tess_plan_tensor(plan, TESS_ROLE_LSE, tess_host_buffer(lse, 0), &tensor, &bytes));
    assert_true(bytes == BATCH * HEADS * Q * 4 && tensor.stride_token == 1 &&
                tensor.stride_head == Q && tensor.stride_batch == HEADS * Q);
    assert_true(tensor.buffer.handle == (uintptr_t)lse);
}

/* ------------------------------------------------------------------ run */

static tess_run_desc base_run(void) {
    tess_run_desc run = {.struct_size = sizeof run};
    assert_ok(tess_plan_tensor(plan, TESS_ROLE_Q, tess_host_buffer(q, BATCH * Q * HEADS * D * 4),
                               &run.q, NULL));
    assert_ok(tess_plan_tensor(plan, TESS_ROLE_K,
                               tess_host_buffer(k, BATCH * KV * KV_HEADS * D * 4), &run.k, NULL));
    assert_ok(tess_plan_tensor(plan, TESS_ROLE_V,
                               tess_host_buffer(v, BATCH * KV * KV_HEADS * D * 4), &run.v, NULL));
    assert_ok(tess_plan_tensor(plan, TESS_ROLE_O, tess_host_buffer(o, BATCH * Q * HEADS * D * 4),
                               &run.o, NULL));
    assert_ok(tess_plan_tensor(plan, TESS_ROLE_LSE, tess_host_buffer(lse, BATCH * Q * HEADS * 4),
                               &run.lse, NULL));
    run.workspace = tess_host_buffer(work, info.workspace_bytes);
    return run;
}

#define R(member, value, statuses, field) BAD(tess_run_desc, member, value, statuses, field)
/* Rows that every tensor has. */
#define TENSOR(name, text)                                                                     \
    R(name.buffer.kind, TESS_BUFFER_POINTER, INV, text),                                       \
        R(name.buffer.kind, TESS_BUFFER_OBJECT, INV, text), R(name.buffer.kind, 4, INV, text), \
        R(name.buffer.kind, UINT32_MAX, INV, text), R(name.buffer.reserved, 1, INV, text),     \
        R(name.buffer.handle, 0, INV, text), R(name.buffer.handle, UINT64_MAX - 3, INV, text), \
        R(name.buffer.offset, 1, INV, text), R(name.buffer.offset, 2, INV, text),              \
        R(name.buffer.offset, 4, INV, text), R(name.buffer.offset, UINT64_MAX - 3, INV, text), \
        R(name.buffer.size, 64, INV, text), R(name.buffer.size, 1, INV, text),                 \
        R(name.stride_batch, -1, INV, text), R(name.stride_token, -1, INV, text),              \
        R(name.stride_head, INT64_MIN, INV, text), R(name.stride_batch, INT64_MAX, INV, text), \
        R(name.stride_token, INT64_MAX, INV, text), R(name.stride_head, INT64_MAX, INV, text), \
        R(name.stride_token, INT64_MAX / 4, INV, text), R(name.stride_batch, 1LL << 40, INV, text)
#define RESERVED_TENSOR(name)                          \
    R(name.buffer.kind, TESS_BUFFER_HOST, UNS, #name), \
        R(name.buffer.kind, UINT32_MAX, UNS | INV, #name)
#define RESERVED_BUFFER(name) \
    R(name.kind, TESS_BUFFER_HOST, UNS, #name), R(name.kind, UINT32_MAX, UNS | INV, #name)

static const bad_value run_fields[] = {
    R(struct_size, 0, VER, "desc"),
    R(struct_size, UINT32_MAX, VER, "desc"),
    R(flags, 1, INV, "flags"),
    TENSOR(q, "q"),
    TENSOR(k, "k"),
    TENSOR(v, "v"),
    TENSOR(o, "o"),
    TENSOR(lse, "lse"),
    R(q.buffer.kind, TESS_BUFFER_NONE, INV, "q"),
    R(k.buffer.kind, TESS_BUFFER_NONE, INV, "k"),
    R(v.buffer.kind, TESS_BUFFER_NONE, INV, "v"),
    R(o.buffer.kind, TESS_BUFFER_NONE, INV, "o"),
    R(lse.buffer.kind, TESS_BUFFER_NONE, FINE, NULL),
    /* Outputs must keep their elements apart. */
    R(o.stride_batch, 0, INV, "o"),
    R(o.stride_token, 0, INV, "o"),
    R(o.stride_head, 0, INV, "o"),
    R(o.stride_head, D - 1, INV, "o"),
    R(o.stride_token, HEADS *D - 1, INV, "o"),
    R(o.stride_batch, Q *HEADS *D - 1, INV, "o"),
    R(o.stride_token, 1, INV, "o"),
    R(lse.stride_batch, 0, INV, "lse"),
    R(lse.stride_token, 0, INV, "lse"),
    R(lse.stride_head, 0, INV, "lse"),
    R(lse.stride_head, Q - 1, INV, "lse"),
    R(lse.stride_batch, HEADS *Q - 1, INV, "lse"),
    R(q.stride_head, 0, FINE, NULL),
    R(k.stride_batch, 0, FINE, NULL),
    R(v.stride_token, 1, FINE, NULL),
    R(workspace.kind, TESS_BUFFER_NONE, INV, "workspace"),
    R(workspace.kind, TESS_BUFFER_POINTER, INV, "workspace"),
    R(workspace.kind, 9, INV, "workspace"),
    R(workspace.reserved, 1, INV, "workspace"),
    R(workspace.handle, 0, INV, "workspace"),
    R(workspace.offset, 1, INV, "workspace"),
    R(workspace.offset, UINT64_MAX, INV, "workspace"),
    R(workspace.size, 1, INV, "workspace"),
    R(stream.kind, TESS_STREAM_SUBMIT, INV | UNS, "cpu: stream"),
    R(stream.kind, TESS_STREAM_RECORD, INV | UNS, "cpu: stream"),
    R(stream.kind, 3, INV, "stream"),
    R(stream.kind, UINT32_MAX, INV, "stream"),
    R(stream.reserved, 1, INV, "stream"),
    R(first_job, 1000000, INV, "first_job"),
    R(first_job, UINT64_MAX, INV, "first_job"),
    R(job_count, 1000000, INV, "job_count"),
    R(job_count, UINT64_MAX, INV, "job_count"),
    RESERVED_TENSOR(sink_logits),
    R(k_scale.buffer.kind, TESS_BUFFER_HOST, INV, "k_scale"),
    R(v_scale.buffer.kind, TESS_BUFFER_HOST, INV, "v_scale"),
    RESERVED_BUFFER(q_lens),
    RESERVED_BUFFER(kv_lens),
    R(step.kind, TESS_BUFFER_HOST, INV, "step"),
    R(block_table.kind, TESS_BUFFER_HOST, INV, "block_table"),
    R(table_stride, 1, INV, "table_stride"),
    R(pages, 1, INV, "pages"),
    R(pages, -1, INV, "pages"),
    R(d_o.buffer.kind, TESS_BUFFER_HOST, INV, "d_o"),
    R(d_q.buffer.kind, TESS_BUFFER_HOST, INV, "d_q"),
    R(d_k.buffer.kind, TESS_BUFFER_HOST, INV, "d_k"),
    R(d_v.buffer.kind, TESS_BUFFER_HOST, INV, "d_v"),
    R(d_lse.buffer.kind, TESS_BUFFER_HOST, INV, "d_lse"),
};

static void test_run(void **state) {
    (void)state;
    for (size_t n = 0; n < COUNT(run_fields); n++) {
        tess_run_desc run = base_run();
        bad_apply(&run_fields[n], &run);
        o[0] = -7;
        const tess_status status = tess_run(plan, &run);
        bad_check(&run_fields[n], status, "tess_run");
        if (status != TESS_OK && o[0] != -7)
            fail_msg("%s: refused, and o was written", run_fields[n].title);
    }
    tess_run_desc run = base_run();
    assert_error(tess_run(NULL, &run), TESS_ERROR_INVALID, "tess_run", "plan");
    assert_error(tess_run(plan, NULL), TESS_ERROR_INVALID, "tess_run", "desc");
    run.workspace.size = info.workspace_bytes - 1;
    assert_error(tess_run(plan, &run), TESS_ERROR_INVALID, "tess_run", "workspace");
    run = base_run();
    run.o.buffer.size -= 1;
    assert_error(tess_run(plan, &run), TESS_ERROR_INVALID, "tess_run", "o");
    run = base_run();
    run.first_job = 1;
    run.job_count = info.n_jobs;
    assert_error(tess_run(plan, &run), TESS_ERROR_INVALID, "tess_run", "job_count");
    run = base_run();
    run.first_job = info.n_jobs + 1;
    assert_error(tess_run(plan, &run), TESS_ERROR_INVALID, "tess_run", "first_job");
}

/* Inputs may be the same memory. */
static void test_shared_inputs(void **state) {
    (void)state;
    tess_run_desc run = base_run();
    run.k = run.v;
    assert_ok(tess_run(plan, &run));
}

/* ------------------------------------------------------------------ memory */

static void test_memory(void **state) {
    (void)state;
    tess_buffer a, b, none;
    memset(&none, 0, sizeof none);
    memset(&a, 0x11, sizeof a);
    assert_error(tess_alloc(NULL, 10, &a), TESS_ERROR_INVALID, "tess_alloc", "device");
    assert_error(tess_alloc(device, 10, NULL), TESS_ERROR_INVALID, "tess_alloc", "buffer");
    assert_true(tess_alloc(device, UINT64_MAX, &a) == TESS_ERROR_OUT_OF_MEMORY);
    /* AddressSanitizer aborts on such a size instead of returning NULL. */
    if (!test_sanitized())
        assert_true(tess_alloc(device, 1ULL << 62, &a) == TESS_ERROR_OUT_OF_MEMORY);
    assert_int_equal(a.kind, 0x11111111);
    assert_ok(tess_alloc(device, 0, &a));
    assert_int_equal(a.kind, TESS_BUFFER_NONE);
    assert_ok(tess_free(device, &a));
    assert_ok(tess_alloc(device, 1000, &a));
    assert_ok(tess_alloc(device, 1000, &b));
    assert_true(a.kind == TESS_BUFFER_HOST && a.size >= 1000 && (a.handle + a.offset) % 256 == 0 &&
                a.reserved == 0);
    assert_error(tess_free(NULL, &a), TESS_ERROR_INVALID, "tess_free", "device");
    assert_error(tess_free(device, NULL), TESS_ERROR_INVALID, "tess_free", "buffer");
    tess_buffer wrong = a;
    wrong.kind = TESS_BUFFER_POINTER;
    assert_error(tess_free(device, &wrong), TESS_ERROR_INVALID, "tess_free", "buffer");
    wrong = a;
    wrong.kind = 77;
    assert_error(tess_free(device, &wrong), TESS_ERROR_INVALID, "tess_free", "buffer");

    assert_error(tess_copy(NULL, a, b, 10), TESS_ERROR_INVALID, "tess_copy", "device");
    assert_error(tess_copy(device, none, b, 10), TESS_ERROR_INVALID, "tess_copy", "destination");
    assert_error(tess_copy(device, a, none, 10), TESS_ERROR_INVALID, "tess_copy", "source");
    assert_ok(tess_copy(device, none, none, 0));
    wrong = b;
    wrong.kind = TESS_BUFFER_OBJECT;
    assert_error(tess_copy(device, a, wrong, 10), TESS_ERROR_INVALID, "tess_copy", "source");
    assert_error(tess_copy(device, wrong, a, 10), TESS_ERROR_INVALID, "tess_copy", "destination");
    wrong = b;
    wrong.reserved = 1;
    assert_error(tess_copy(device, a, wrong, 10), TESS_ERROR_INVALID, "tess_copy", "source");
    wrong = b;
    wrong.offset = 1;
    wrong.size = 1000;
    assert_error(tess_copy(device, wrong, a, 1000), TESS_ERROR_INVALID, "tess_copy", "destination");
    assert_error(tess_copy(device, a, wrong, 1000), TESS_ERROR_INVALID, "tess_copy", "source");
    wrong.offset = UINT64_MAX;
    assert_error(tess_copy(device, a, wrong, 2), TESS_ERROR_INVALID, "tess_copy", "source");
    assert_error(tess_copy(device, a, b, UINT64_MAX), TESS_ERROR_INVALID, "tess_copy", NULL);
    char text[1000];
    memset(text, 7, sizeof text);
    assert_ok(tess_copy(device, a, tess_host_buffer(text, sizeof text), sizeof text));
    assert_ok(tess_copy(device, b, a, 1000));
    memset(text, 0, sizeof text);
    assert_ok(tess_copy(device, tess_host_buffer(text, sizeof text), b, 1000));
    assert_true(text[0] == 7 && text[999] == 7);
    assert_error(tess_wait(NULL, 0), TESS_ERROR_INVALID, "tess_wait", "device");
    assert_ok(tess_wait(device, 0));
    assert_ok(tess_free(device, &a));
    assert_ok(tess_free(device, &b));
    assert_int_equal(a.kind, TESS_BUFFER_NONE);
    assert_ok(tess_free(device, &a));
}

/* A kernel that exists only for tests is not taken, even when a tune file prefers it. */
static void test_only_named(void **state) {
    (void)state;
    char path[] = "/tmp/tessera-plans-XXXXXX";
    const int file = mkstemp(path);
    static const char rules[] = "tessera-tune 1\nkernel=cpu/amx_bf16_soft,cpu/portable\n";
    assert_true(file >= 0 && write(file, rules, sizeof rules - 1) == (ssize_t)sizeof rules - 1 &&
                close(file) == 0);
    const tess_runtime_desc rd = {.struct_size = sizeof rd,
                                  .log = test_log_nothing,
                                  .cpu_threads = 1,
                                  .kernel = "",
                                  .tune_file = path};
    tess_runtime *tuned = NULL;
    assert_ok(tess_runtime_create(&rd, &tuned));
    unlink(path);
    tess_device *cpu = test_cpu(tuned);
    tess_plan_desc desc = base_plan();
    desc.dtype = TESS_BF16;
    static const char *const taken[] = {"cpu/portable", "cpu/amx_bf16_soft"};
    for (int named = 0; named < 2; named++) {
        tess_plan *made = NULL;
        tess_plan_info of = {.struct_size = sizeof of};
        desc.kernel = named ? taken[1] : NULL;
        assert_ok(tess_plan_create(cpu, layout, &desc, &made));
        assert_ok(tess_plan_query(made, &of));
        assert_string_equal(of.kernel, taken[named]);
        tess_plan_release(made);
    }
    tess_device_release(cpu);
    tess_runtime_release(tuned);
}

int main(void) {
    return RUN_GROUP("bad arguments: plan, run, memory", setup, teardown, TEST(test_plan_create),
                     TEST(test_release_after), TEST(test_packed_lengths), TEST(test_plan_queries),
                     TEST(test_run), TEST(test_shared_inputs), TEST(test_memory),
                     TEST(test_only_named));
}
