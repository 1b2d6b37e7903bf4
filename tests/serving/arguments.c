/* SPDX-License-Identifier: Apache-2.0 */
/* Bad arguments of tess_append and tess_copy_pages: one line that names the field, and nothing is
 * written. */
#include <stdio.h>
#include <string.h>

#include "common/testlib.h"

enum { HEADS = 2, DIM = 8, BATCH = 2, ROWS = 3, KEYS = 20, ROW = HEADS * DIM };
enum { NEW = BATCH * ROWS * ROW, CACHE = BATCH * KEYS * ROW, ALL = 2 * NEW + 2 * CACHE };

/* New K, new V, K and V of the cache, one after the other. */
static float memory[ALL], before[ALL];

typedef struct scene {
    tess_runtime *runtime;
    tess_device *device;
    tess_layout *layout;
    tess_plan *plan;
    tess_tensor pools[2];
    tess_append_desc d;
    int32_t pairs[2][2];
    tess_copy_desc copy;
} scene;

static tess_status make_plan(const scene *s, uint32_t flags, int64_t batch, int64_t kv_len,
                             tess_plan **plan) {
    tess_plan_desc d = {.struct_size = sizeof d, .flags = flags, .head_dim = DIM, .q_len = ROWS};
    d.batch = batch;
    d.kv_len = kv_len;
    return tess_plan_create(s->device, s->layout, &d, plan);
}

static tess_tensor tensor_at(int first, int tokens) {
    tess_tensor t = {.buffer = tess_host_buffer(memory, sizeof memory),
                     .stride_batch = tokens * ROW,
                     .stride_token = ROW,
                     .stride_head = DIM};
    t.buffer.offset = (uint64_t)first * sizeof *memory;
    return t;
}

/* Arguments that are right. */
static void reset(scene *s) {
    s->pools[0] = tensor_at(2 * NEW, KEYS);
    s->pools[1] = tensor_at(2 * NEW + CACHE, KEYS);
    s->d = (tess_append_desc){.struct_size = sizeof s->d,
                              .k = tensor_at(0, ROWS),
                              .v = tensor_at(NEW, ROWS),
                              .k_pools = &s->pools[0],
                              .v_pools = &s->pools[1]};
    s->copy = (tess_copy_desc){.struct_size = sizeof s->copy,
                               .n_pools = 2,
                               .n_heads = HEADS,
                               .head_dim = DIM,
                               .page = KEYS,
                               .pages = BATCH,
                               .n_pairs = 2,
                               .pools = s->pools,
                               .pairs = tess_host_buffer(s->pairs, sizeof s->pairs)};
}

static int set_up(void **state) {
    static scene s;
    const tess_pattern pattern = {.struct_size = sizeof pattern, .kind = TESS_PATTERN_DENSE};
    const tess_layout_desc layout = test_layout_desc(&pattern, 2 * HEADS, HEADS, KEYS);
    s.runtime = test_runtime(1);
    s.device = test_cpu(s.runtime);
    assert_ok(tess_layout_create(s.runtime, &layout, &s.layout));
    assert_ok(make_plan(&s, TESS_PLAN_APPEND, BATCH, KEYS, &s.plan));
    for (int n = 0; n < ALL; n++) memory[n] = (float)n;
    memcpy(before, memory, sizeof memory);
    s.pairs[0][1] = 1; /* and nothing else: the other pair copies a page to itself */
    reset(&s);
    *state = &s;
    return 0;
}

static int tear_down(void **state) {
    scene *s = *state;
    tess_plan_release(s->plan);
    tess_layout_release(s->layout);
    tess_device_release(s->device);
    tess_runtime_release(s->runtime);
    return 0;
}

/* Calls with what `change` made of right arguments, and puts these back. */
#define REFUSED(call, status, function, field, change)       \
    do {                                                     \
        change;                                              \
        assert_error((call), (status), (function), (field)); \
        assert_memory_equal(memory, before, sizeof memory);  \
        reset(s);                                            \
    } while (0)
#define INVALID(field, change) \
    REFUSED(tess_append(s->plan, &s->d), TESS_ERROR_INVALID, "tess_append", field, change)
#define UNSUPPORTED(field, change) \
    REFUSED(tess_append(s->plan, &s->d), TESS_ERROR_UNSUPPORTED, "tess_append", field, change)

static void test_append(void **state) {
    scene *s = *state;
    assert_error(tess_append(NULL, &s->d), TESS_ERROR_INVALID, "tess_append", "plan");
    assert_error(tess_append(s->plan, NULL), TESS_ERROR_INVALID, "tess_append", "desc");
    INVALID("flags", s->d.flags = 1);
    INVALID("step", s->d.step.kind = TESS_BUFFER_HOST);
    UNSUPPORTED("k_scale", s->d.k_scale = s->d.k);
    UNSUPPORTED("v_scale", s->d.v_scale = s->d.k);
    INVALID("k_pools", s->d.k_pools = NULL);
    INVALID("v_pools", s->d.v_pools = NULL);
    INVALID("block_table", s->d.block_table = s->copy.pairs);
    INVALID("table_stride", s->d.table_stride = 4);
    INVALID("pages", s->d.pages = 4);
    INVALID("stream", s->d.stream.kind = 9);
    INVALID("stream", s->d.stream.reserved = 1);
    INVALID("k", s->d.k.buffer.kind = TESS_BUFFER_OBJECT);
    INVALID("v", s->d.v.buffer.kind = TESS_BUFFER_NONE);
    INVALID("v", s->d.v.buffer.handle = 0);
    INVALID("v", s->d.v.buffer.offset += 2);
    INVALID("k", s->d.k.stride_token = -1);
    INVALID("k", s->d.k.stride_batch = INT64_MAX / 2);
    INVALID("k", s->d.k.buffer.offset = sizeof memory - 16);
    INVALID("k_pools", s->pools[0].stride_head = -1);
    INVALID("v_pools", s->pools[1].stride_token = ROW - 1);
    INVALID("k_pools", s->pools[0].stride_batch = 0);
    INVALID("v_pools", s->pools[1].buffer.offset += sizeof *memory);
    INVALID("v_pools", s->pools[1].buffer.reserved = 1);
    INVALID("k_pools", s->pools[0] = s->pools[1]);
    INVALID("k_pools", s->pools[1].buffer.offset = s->pools[0].buffer.offset + 64);
    INVALID("v_pools", s->d.v.buffer.offset = s->pools[1].buffer.offset);
    INVALID("k_pools", s->d.v.buffer.offset = s->pools[0].buffer.offset);
}

static void test_plans(void **state) {
    scene *s = *state;
    tess_plan *plan = NULL;
    assert_ok(make_plan(s, 0, BATCH, KEYS, &plan));
    assert_error(tess_append(plan, &s->d), TESS_ERROR_INVALID, "tess_append", "plan");
    tess_plan_release(plan);
    /* Nothing to append: memory may be missing, but not the descriptor. */
    for (int n = 0; n < 2; n++) {
        const tess_append_desc none = {
            .struct_size = sizeof none, .k_pools = s->pools, .v_pools = s->pools};
        assert_ok(make_plan(s, TESS_PLAN_APPEND, n ? BATCH : 0, n ? 0 : KEYS, &plan));
        assert_ok(tess_append(plan, &none));
        assert_error(tess_append(plan, NULL), TESS_ERROR_INVALID, "tess_append", "desc");
        tess_plan_release(plan);
    }
    /* The same of a cache in pages, whose table has no row. */
    const tess_plan_desc paged = {.struct_size = sizeof paged,
                                  .flags = TESS_PLAN_APPEND | TESS_PLAN_COMPACT,
                                  .head_dim = DIM,
                                  .q_len = ROWS,
                                  .kv_len = KEYS,
                                  .page = 16};
    tess_append_desc append = {
        .struct_size = sizeof append, .k_pools = s->pools, .v_pools = s->pools, .pages = 1};
    tess_run_desc run = {.struct_size = sizeof run, .pages = 1};
    assert_ok(tess_plan_create(s->device, s->layout, &paged, &plan));
    assert_ok(tess_append(plan, &append));
    assert_ok(tess_run(plan, &run));
    append.pages = run.pages = 0;
    assert_ok(tess_append(plan, &append));
    assert_ok(tess_run(plan, &run));
    append.flags = run.flags = 1;
    assert_error(tess_append(plan, &append), TESS_ERROR_INVALID, "tess_append", "flags");
    assert_error(tess_run(plan, &run), TESS_ERROR_INVALID, "tess_run", "flags");
    tess_plan_release(plan);
}

#undef INVALID
#undef UNSUPPORTED
#define INVALID(field, change)                                                                  \
    REFUSED(tess_copy_pages(s->device, &s->copy), TESS_ERROR_INVALID, "tess_copy_pages", field, \
            change)
#define UNSUPPORTED(field, change)                                                           \
    REFUSED(tess_copy_pages(s->device, &s->copy), TESS_ERROR_UNSUPPORTED, "tess_copy_pages", \
            field, change)

static void test_copy(void **state) {
    scene *s = *state;
    assert_error(tess_copy_pages(NULL, &s->copy), TESS_ERROR_INVALID, "tess_copy_pages", "device");
    assert_error(tess_copy_pages(s->device, NULL), TESS_ERROR_INVALID, "tess_copy_pages", "desc");
    INVALID("flags", s->copy.flags = 2);
    INVALID("dtype", s->copy.dtype = TESS_I8 + 1);
    UNSUPPORTED("head_dim", (s->copy.dtype = TESS_I8, s->copy.head_dim = 1));
    INVALID("pools", (s->copy.dtype = TESS_I8, s->pools[0].stride_head = DIM + 1));
    INVALID("n_pools", s->copy.n_pools = 33);
    INVALID("pools", s->copy.pools = NULL);
    INVALID("n_heads", s->copy.n_heads = 0);
    INVALID("n_heads", s->copy.n_heads = 65536);
    INVALID("head_dim", s->copy.head_dim = 0);
    UNSUPPORTED("head_dim", s->copy.head_dim = 12);
    UNSUPPORTED("head_dim", s->copy.head_dim = 264);
    INVALID("page", s->copy.page = 0);
    INVALID("page", s->copy.page = INT64_C(1) << 31);
    INVALID("pages", s->copy.pages = 0);
    INVALID("pages", s->copy.pages = INT64_C(1) << 31);
    INVALID("n_pairs", s->copy.n_pairs = -1);
    UNSUPPORTED("n_pairs", s->copy.n_pairs = INT32_MAX / KEYS + 1);
    INVALID("pairs", s->copy.n_pairs = 3);
    INVALID("pairs", s->copy.pairs.kind = TESS_BUFFER_NONE);
    INVALID("pairs", s->copy.pairs.offset = 2);
    INVALID("stream", s->copy.stream.kind = 4);
    UNSUPPORTED("stream", s->copy.stream.extra = s);
    INVALID("pools", s->copy.pages = BATCH + 1); /* the second would reach past the memory */
    INVALID("pools", s->pools[1].stride_batch = -1);
    INVALID("pools", s->pools[0].stride_head = 1);
    INVALID("pools", s->pools[1] = s->pools[0]);
    INVALID("pools", s->copy.pairs = s->pools[1].buffer);
}

int main(void) {
    const struct CMUnitTest tests[] = {TEST(test_append), TEST(test_plans), TEST(test_copy)};
    return cmocka_run_group_tests_name("arguments of caches", tests, set_up, tear_down);
}
