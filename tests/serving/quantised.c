/* SPDX-License-Identifier: Apache-2.0 */
/* K and V of 8 bits in a cache: tess_append writes the codes and scales that its description says,
 * however the rows were divided into calls, and attention reads them from pages as from a tensor
 * without pages, with lengths of the host as with those of the device. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache.h"
#include "common/quantised.h"

enum { TOKENS = 37, KV_HEADS = 2, HEADS = 4, DIM = 24, PAGE = 16, PAGES = 5, ROWS = PAGES * PAGE };
enum { ROW = KV_HEADS * DIM, SIDES = 2 };

/* The table of pages of the only sequence; what lies in other pages is nobody's. */
static const int32_t table[3] = {3, 0, 4};

typedef struct pools {
    uint8_t codes[SIDES][ROWS * ROW];
    float scales[SIDES][ROWS * KV_HEADS];
} pools;

typedef struct fixture {
    tess_device *device;
    tess_layout *layout;
    uint32_t dtype, kv_dtype;
    int page;
    int is_static;
    uint8_t rows[SIDES][TOKENS * ROW * 4]; /* of dtype */
    tess_buffer codes[SIDES], scales[SIDES], table;
    /* One plan whose lengths come from the device; NULL: a plan for each call. */
    tess_plan *steps;
    tess_buffer step, cu_rows, kv_lens;
} fixture;

static int place_of(const fixture *f, int t) {
    return f->page ? table[t / PAGE] * PAGE + t % PAGE : t;
}

/* Numbers of all sizes, and rows that have a rule of their own. */
static void fill_rows(fixture *f, int plain) {
    uint64_t random = 5;
    for (int v = 0; v < SIDES; v++)
        for (int n = 0; n < TOKENS * ROW; n++) {
            const int t = n / ROW, special = plain ? 0 : (t + v) % 9;
            float x = (float)test_between(&random, -4096, 4096) * 0x1p-11f;
            if (n % 7 == 0) x = ldexpf(x, -(int)test_between(&random, 0, 16));
            if (special == 1) x = 0;
            if (special == 2 && n % DIM == 3) x = INFINITY;
            if (special == 3 && n % DIM == DIM - 1) x = NAN;
            if (special == 4) x = ldexpf(x, f->dtype == TESS_F16 ? -14 : -100);
            if (special == 5) x = ldexpf(x, f->dtype == TESS_F16 ? 14 : 120);
            /* Halves between codes. */
            if (special == 6) x = n % DIM == 0 ? 127 : (float)(n % 64) * 0.5f;
            if (special == 7) x = n % DIM == 0 ? 448 : ldexpf((float)(n % 64), n % 14 - 10);
            element_store(f->dtype, f->rows[v], n, x);
        }
}

static void create(fixture *f, const test_target *target, uint32_t dtype, uint32_t kv_dtype,
                   int page) {
    *f = (fixture){.device = target->device, .dtype = dtype, .kv_dtype = kv_dtype, .page = page};
    const tess_pattern pattern = test_s2_pattern(4, 2, 4);
    const tess_layout_desc d = test_layout_desc(&pattern, HEADS, KV_HEADS, TOKENS);
    tess_runtime *runtime = test_runtime(0);
    assert_ok(tess_layout_create(runtime, &d, &f->layout));
    tess_runtime_release(runtime);
    pools *is = malloc(sizeof *is);
    assert_non_null(is);
    memset(is, 0xff, sizeof *is); /* NaN of E4M3 and of scales */
    for (int v = 0; v < SIDES; v++) {
        f->codes[v] = test_upload(f->device, is->codes[v], sizeof is->codes[v]);
        f->scales[v] = test_upload(f->device, is->scales[v], sizeof is->scales[v]);
    }
    if (page) f->table = test_upload(f->device, table, sizeof table);
    free(is);
}

static void destroy(fixture *f) {
    for (int v = 0; v < SIDES; v++) {
        assert_ok(tess_free(f->device, &f->codes[v]));
        assert_ok(tess_free(f->device, &f->scales[v]));
    }
    assert_ok(tess_free(f->device, &f->table));
    assert_ok(tess_free(f->device, &f->step));
    assert_ok(tess_free(f->device, &f->cu_rows));
    assert_ok(tess_free(f->device, &f->kv_lens));
    tess_plan_release(f->steps);
    tess_layout_release(f->layout);
}

static tess_plan *make_plan(const fixture *f, uint32_t flags, int rows, int tokens) {
    const int steps = (flags & TESS_PLAN_DEVICE_LENGTHS) != 0;
    const tess_plan_desc d = {.struct_size = sizeof d,
                              .flags = TESS_PLAN_APPEND | TESS_PLAN_BATCH_INVARIANT | flags,
                              .dtype = f->dtype,
                              .kv_dtype = f->kv_dtype,
                              .head_dim = DIM,
                              .batch = 1,
                              .q_len = rows,
                              .kv_len = tokens,
                              .page = f->page ? PAGE : 0,
                              .max_rows = steps ? rows : 0};
    tess_plan *plan = NULL;
    assert_ok(tess_plan_create(f->device, f->layout, &d, &plan));
    return plan;
}

static void create_steps(fixture *f) {
    tess_plan_info info = {.struct_size = sizeof info};
    f->steps = make_plan(f, TESS_PLAN_DEVICE_LENGTHS, TOKENS, TOKENS);
    assert_ok(tess_plan_query(f->steps, &info));
    f->step = test_upload(f->device, NULL, info.step_bytes);
    f->cu_rows = test_upload(f->device, NULL, 2 * sizeof(int32_t));
    f->kv_lens = test_upload(f->device, NULL, sizeof(int32_t));
}

/* A plan for so many rows of so many tokens, or the plan of steps once a step is prepared. */
static tess_plan *take_plan(const fixture *f, int rows, int tokens) {
    if (!f->steps) return make_plan(f, 0, rows, tokens);
    const int32_t cu_rows[2] = {0, rows}, kv_lens[1] = {tokens};
    assert_ok(tess_copy(f->device, f->cu_rows, tess_host_buffer(cu_rows, sizeof cu_rows),
                        sizeof cu_rows));
    assert_ok(tess_copy(f->device, f->kv_lens, tess_host_buffer(kv_lens, sizeof kv_lens),
                        sizeof kv_lens));
    const tess_prepare_desc d = {.struct_size = sizeof d,
                                 .batch = 1,
                                 .cu_rows = f->cu_rows,
                                 .kv_lens = f->kv_lens,
                                 .step = f->step};
    assert_ok(tess_prepare(f->steps, &d));
    assert_ok(tess_wait(f->device, UINT64_MAX));
    return f->steps;
}

static void give_plan(const fixture *f, tess_plan *plan) {
    if (plan != f->steps) tess_plan_release(plan);
}

/* Rows in a buffer of as many bytes as a tensor of the plan may have. */
static tess_buffer upload_rows(const fixture *f, const tess_plan *plan, uint32_t role,
                               const uint8_t *rows, uint64_t bytes, tess_tensor *tensor) {
    uint64_t room;
    const tess_buffer none = {0};
    assert_ok(tess_plan_tensor(plan, role, none, tensor, &room));
    tess_buffer buffer = test_upload(f->device, NULL, room);
    assert_ok(tess_copy(f->device, buffer, tess_host_buffer(rows, bytes), bytes));
    tensor->buffer = buffer;
    return buffer;
}

/* K or V of the cache, or their scales. */
static tess_tensor pool_of(const fixture *f, int v, int scales) {
    const int64_t row = scales ? KV_HEADS : ROW;
    tess_tensor t = {.buffer = scales ? f->scales[v] : f->codes[v],
                     .stride_batch = (f->page ? PAGE : ROWS) * row,
                     .stride_token = row,
                     .stride_head = scales ? 1 : DIM};
    if (scales && f->is_static) t.stride_batch = t.stride_token = 0;
    return t;
}

static void append(const fixture *f, int first, int end) {
    const uint64_t size = f->dtype == TESS_F32 ? 4 : 2, at = (uint64_t)first * ROW * size;
    tess_plan *plan = take_plan(f, end - first, end);
    tess_tensor rows[SIDES], all[2][SIDES];
    for (int v = 0; v < SIDES; v++) {
        upload_rows(f, plan, v ? TESS_ROLE_NEW_V : TESS_ROLE_NEW_K, f->rows[v] + at,
                    (uint64_t)(end - first) * ROW * size, &rows[v]);
        for (int scales = 0; scales < 2; scales++) all[scales][v] = pool_of(f, v, scales);
    }
    const tess_append_desc d = {.struct_size = sizeof d,
                                .k = rows[0],
                                .v = rows[1],
                                .k_pools = &all[0][0],
                                .v_pools = &all[0][1],
                                .step = f->step,
                                .block_table = f->table,
                                .table_stride = f->page ? 3 : 0,
                                .pages = f->page ? PAGES : 0,
                                .k_scale_pools = &all[1][0],
                                .v_scale_pools = &all[1][1]};
    assert_ok(tess_append(plan, &d));
    assert_ok(tess_wait(f->device, UINT64_MAX));
    for (int v = 0; v < SIDES; v++) assert_ok(tess_free(f->device, &rows[v].buffer));
    give_plan(f, plan);
}

static void fetch(const fixture *f, pools *got) {
    for (int v = 0; v < SIDES; v++) {
        test_download(f->device, f->codes[v], got->codes[v], sizeof got->codes[v]);
        test_download(f->device, f->scales[v], got->scales[v], sizeof got->scales[v]);
    }
}

/* What the pools must hold after all tokens, from what they held before. */
static void expect(const fixture *f, pools *x) {
    for (int v = 0; v < SIDES; v++)
        for (int t = 0; t < TOKENS; t++)
            for (int h = 0; h < KV_HEADS; h++) {
                const int at = place_of(f, t) * KV_HEADS + h;
                quantised_row(f->dtype, f->rows[v], (t * KV_HEADS + h) * DIM, DIM, f->kv_dtype,
                              f->is_static, &x->scales[v][f->is_static ? h : at],
                              x->codes[v] + (size_t)at * DIM);
            }
}

static void compare(const fixture *f, const pools *got, const pools *wanted, const char *what) {
    for (int v = 0; v < SIDES; v++) {
        for (int n = 0; n < ROWS * ROW; n++)
            if (got->codes[v][n] != wanted->codes[v][n])
                fail_msg("%s: code %d of row %d of %c is 0x%02x and should be 0x%02x (dtype %u, "
                         "kv_dtype %u, page %d)",
                         what, n % DIM, n / DIM, "KV"[v], got -> codes[v][n], wanted -> codes[v][n],
                         (unsigned)f -> dtype, (unsigned)f -> kv_dtype, f -> page);
        for (int n = 0; n < ROWS * KV_HEADS; n++) {
            const float a = got->scales[v][n], b = wanted->scales[v][n];
            if (memcmp(&a, &b, sizeof a) != 0 && !(isnan(a) && isnan(b)))
                fail_msg("%s: scale of row %d of %c is %a and should be %a", what, n, "KV"[v],
                         (double)a, (double)b);
        }
    }
}

static void append_all(const fixture *f, int chunk) {
    for (int t = 0; t < TOKENS; t += chunk) append(f, t, t + chunk < TOKENS ? t + chunk : TOKENS);
}

/* In one call, token by token, and in parts; and by steps of one plan. */
static void check_appends(const test_target *target, uint32_t dtype, uint32_t kv_dtype, int page) {
    static const struct {
        int chunk, steps;
    } ways[] = {{TOKENS, 0}, {5, 1}, {1, 0}, {7, 0}, {TOKENS, 1}};
    pools *all = malloc(2 * sizeof *all);
    assert_non_null(all);
    for (int n = 0; n < (target->software ? 3 : 5); n++) {
        fixture f;
        create(&f, target, dtype, kv_dtype, page);
        if (ways[n].steps) create_steps(&f);
        fill_rows(&f, 0);
        append_all(&f, ways[n].chunk);
        fetch(&f, &all[0]);
        memset(&all[1], 0xff, sizeof all[1]);
        expect(&f, &all[1]);
        compare(&f, &all[0], &all[1], "appended");
        destroy(&f);
    }
    free(all);
}

static void test_append(void **state) {
    for (uint32_t dtype = TESS_F32; dtype <= TESS_BF16; dtype++)
        for (uint32_t kv_dtype = TESS_F8E4M3; kv_dtype <= TESS_I8; kv_dtype++)
            for (int page = 0; page < 2; page++) check_appends(*state, dtype, kv_dtype, page);
}

/* Scales of heads are read, and stay as they are; what they cannot hold saturates. */
static void test_static(void **state) {
    static const float scales[SIDES][KV_HEADS] = {{0.01f, 3}, {0x1p-101f, 0x1p-7f}};
    pools *all = malloc(2 * sizeof *all);
    assert_non_null(all);
    for (uint32_t kv_dtype = TESS_F8E4M3; kv_dtype <= TESS_I8; kv_dtype++) {
        fixture f;
        create(&f, *state, TESS_BF16, kv_dtype, 1);
        f.is_static = 1;
        fill_rows(&f, 0);
        fetch(&f, &all[1]);
        for (int v = 0; v < SIDES; v++) {
            memcpy(all[1].scales[v], scales[v], sizeof scales[v]);
            assert_ok(tess_copy(f.device, f.scales[v],
                                tess_host_buffer(scales[v], sizeof scales[v]), sizeof scales[v]));
        }
        append(&f, 0, TOKENS);
        fetch(&f, &all[0]);
        expect(&f, &all[1]);
        compare(&f, &all[0], &all[1], "static scales");
        destroy(&f);
    }
    free(all);
}

/* O of a few rows over what was appended. Places that no key went to hold NaN. */
static void attend(const fixture *f, uint8_t *out, uint64_t bytes) {
    enum { QUERIES = 3 };
    static const uint8_t zeros[QUERIES * HEADS * DIM * 4];
    tess_plan *plan = take_plan(f, QUERIES, TOKENS);
    tess_plan_info info = {.struct_size = sizeof info};
    assert_ok(tess_plan_query(plan, &info));
    tess_run_desc run = {.struct_size = sizeof run,
                         .k = pool_of(f, 0, 0),
                         .v = pool_of(f, 1, 0),
                         .k_scale = pool_of(f, 0, 1),
                         .v_scale = pool_of(f, 1, 1),
                         .step = f->step,
                         .block_table = f->table,
                         .table_stride = f->page ? 3 : 0,
                         .pages = f->page ? PAGES : 0};
    tess_buffer q = upload_rows(f, plan, TESS_ROLE_Q, f->rows[0], bytes, &run.q),
                o = upload_rows(f, plan, TESS_ROLE_O, zeros, bytes, &run.o), work = {0};
    if (info.workspace_bytes) assert_ok(tess_alloc(f->device, info.workspace_bytes, &work));
    run.workspace = work;
    assert_ok(tess_run(plan, &run));
    assert_ok(tess_wait(f->device, UINT64_MAX));
    test_download(f->device, o, out, bytes);
    assert_ok(tess_free(f->device, &q));
    assert_ok(tess_free(f->device, &o));
    assert_ok(tess_free(f->device, &work));
    give_plan(f, plan);
}

static void test_attend(void **state) {
    enum { MOST = 3 * HEADS * DIM * 4 };
    uint8_t out[4][MOST];
    for (uint32_t kv_dtype = TESS_F8E4M3; kv_dtype <= TESS_I8; kv_dtype++) {
        const uint32_t dtype = kv_dtype == TESS_I8 ? TESS_F32 : TESS_F16;
        const uint64_t bytes = dtype == TESS_F32 ? MOST : MOST / 2;
        for (int n = 0; n < 4; n++) {
            fixture f;
            create(&f, *state, dtype, kv_dtype, n % 2);
            if (n / 2) create_steps(&f);
            fill_rows(&f, 1);
            append(&f, 0, TOKENS);
            attend(&f, out[n], bytes);
            assert_memory_equal(out[0], out[n], bytes);
            destroy(&f);
        }
        for (int n = 0; n < 3 * HEADS * DIM; n++)
            assert_true(isfinite(element_load(dtype, out[0], n)));
    }
}

/* A page of codes and its scales, in calls of their own. */
static void test_copy(void **state) {
    static const int32_t pair[2] = {3, 1};
    fixture f;
    create(&f, *state, TESS_BF16, TESS_F8E4M3, 1);
    fill_rows(&f, 1);
    append(&f, 0, TOKENS);
    pools *all = malloc(2 * sizeof *all);
    assert_non_null(all);
    fetch(&f, &all[1]);
    for (int v = 0; v < SIDES; v++) {
        memcpy(all[1].codes[v] + PAGE * ROW, all[1].codes[v] + 3 * PAGE * ROW, PAGE * ROW);
        memcpy(all[1].scales[v] + PAGE * KV_HEADS, all[1].scales[v] + 3 * PAGE * KV_HEADS,
               PAGE * KV_HEADS * sizeof(float));
    }
    tess_buffer pairs = test_upload(f.device, pair, sizeof pair);
    for (int scales = 0; scales < 2; scales++) {
        const tess_tensor tensors[SIDES] = {pool_of(&f, 0, scales), pool_of(&f, 1, scales)};
        const tess_copy_desc d = {.struct_size = sizeof d,
                                  .dtype = scales ? TESS_F32 : TESS_F8E4M3,
                                  .n_pools = SIDES,
                                  .n_heads = KV_HEADS,
                                  .head_dim = scales ? 1 : DIM,
                                  .page = PAGE,
                                  .pages = PAGES,
                                  .n_pairs = 1,
                                  .pools = tensors,
                                  .pairs = pairs};
        assert_ok(tess_copy_pages(f.device, &d));
        assert_ok(tess_wait(f.device, UINT64_MAX));
    }
    fetch(&f, &all[0]);
    compare(&f, &all[0], &all[1], "copied");
    assert_ok(tess_free(f.device, &pairs));
    free(all);
    destroy(&f);
}

/* ------------------------------------------------------------------ refusals */

static void refuse_append(const tess_plan *plan, const char *field, tess_append_desc wrong) {
    assert_error(tess_append(plan, &wrong), TESS_ERROR_INVALID, "tess_append", field);
}

/* Each field is named, whether it is missing, needless or out of place. */
static void test_refusals(void **state) {
    fixture f, plain;
    create(&f, *state, TESS_BF16, TESS_I8, 0);
    create(&plain, *state, TESS_BF16, 0, 0);
    tess_plan *plan = make_plan(&f, 0, 1, TOKENS), *without = make_plan(&plain, 0, 1, TOKENS);
    const tess_tensor rows = {test_upload(f.device, f.rows[0], sizeof f.rows[0]), 0, ROW, DIM};
    tess_tensor k = pool_of(&f, 0, 0), v = pool_of(&f, 1, 0), k_scale = pool_of(&f, 0, 1),
                v_scale = pool_of(&f, 1, 1), t;
    tess_append_desc d = {.struct_size = sizeof d, .k = rows, .v = rows};
    d.k_pools = &k;
    d.v_pools = &v;
    refuse_append(plan, "k_scale_pools", d);
    d.k_scale_pools = &k_scale;
    refuse_append(plan, "v_scale_pools", d);
    refuse_append(without, "k_scale_pools", d);
    d.v_scale_pools = &v_scale;
    t = k;
    t.stride_token += 4;
    d.k_pools = &t;
    refuse_append(plan, "k_pools", d);
    t = k;
    t.buffer.offset += 4;
    refuse_append(plan, "k_pools", d);
    d.k_pools = &k;
    t = k_scale;
    t.buffer = v.buffer;
    d.k_scale_pools = &t;
    refuse_append(plan, "v_pools", d);
    t = v_scale;
    refuse_append(plan, "k_scale_pools", d);

    tess_run_desc run = {.struct_size = sizeof run, .q = rows, .o = rows, .k = k, .v = v};
    assert_error(tess_run(plan, &run), TESS_ERROR_INVALID, "tess_run", "k_scale");
    run.k_scale = k_scale;
    assert_error(tess_run(plan, &run), TESS_ERROR_INVALID, "tess_run", "v_scale");
    run.v_scale = v_scale;
    run.k.stride_head = DIM + 4;
    assert_error(tess_run(plan, &run), TESS_ERROR_INVALID, "tess_run", "k");
    run.k = k;
    assert_error(tess_run(without, &run), TESS_ERROR_INVALID, "tess_run", "k_scale");
    assert_error(tess_plan_tensor(without, TESS_ROLE_K_SCALE, f.codes[0], &t, NULL),
                 TESS_ERROR_INVALID, "tess_plan_tensor", "role");
    assert_ok(tess_plan_tensor(plan, TESS_ROLE_V_SCALE, f.scales[1], &t, NULL));
    assert_true(t.stride_token == KV_HEADS && t.stride_head == 1);
    t = rows;
    assert_ok(tess_free(f.device, &t.buffer));
    tess_plan_release(plan);
    tess_plan_release(without);
    destroy(&plain);
    destroy(&f);
}

static void test_types(void **state) {
    fixture f;
    create(&f, *state, TESS_BF16, TESS_I8, 0);
    tess_plan_desc d = {.struct_size = sizeof d,
                        .dtype = TESS_BF16,
                        .head_dim = DIM,
                        .batch = 1,
                        .q_len = 1,
                        .kv_len = TOKENS,
                        .kv_dtype = TESS_F16};
    tess_plan *plan = NULL;
    assert_error(tess_plan_create(f.device, f.layout, &d, &plan), TESS_ERROR_UNSUPPORTED,
                 "tess_plan_create", "kv_dtype");
    d.kv_dtype = TESS_I8 + 1;
    assert_error(tess_plan_create(f.device, f.layout, &d, &plan), TESS_ERROR_INVALID,
                 "tess_plan_create", "kv_dtype");
    d.dtype = TESS_F8E4M3;
    assert_error(tess_plan_create(f.device, f.layout, &d, &plan), TESS_ERROR_INVALID,
                 "tess_plan_create", NULL);
    destroy(&f);
}

int main(int argc, char **argv) {
    static const serving_test all[] = {{"codes and scales of appended rows", test_append},
                                       {"scales that are given", test_static},
                                       {"attention over pages and steps", test_attend},
                                       {"copies of pages", test_copy},
                                       {"scales that are missing or needless", test_refusals},
                                       {"types that are refused", test_types}};
    return serving_main(argc, argv, all, sizeof all / sizeof *all);
}
