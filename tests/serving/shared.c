/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What serving shares, on every device: a prefix that sequences have in common is read once and
 * merged with what each has of its own, and a caller's mask lies by slot as the layout's patterns
 * do.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/elements.h"
#include "kv_cache.h"

/* ------------------------------------------------------------------ a shared prefix */

enum { HEADS = 4, KV_HEADS = 2, DIM = 16, BLOCK = 16, LOCAL = 3 };
enum { PREFIX = 256, SHARERS = 5, OWN = 160, KV_ROW = KV_HEADS * DIM, ROW = HEADS * DIM };

typedef struct cascade {
    const test_target *target;
    tess_layout *layout;
    int steps;
    uint32_t dtype, item;
    int64_t own[SHARERS]; /* tokens that each has behind the prefix */
    void *q, *k[2], *v[2];
    tess_buffer q_at, k_at[2], v_at[2], o_at, lse_at; /* of the prefix, and of the rest */
} cascade;

static void *random_elements(const cascade *x, int64_t count, uint64_t seed) {
    void *to = malloc((size_t)count * x->item);
    assert_non_null(to);
    for (int64_t n = 0; n < count; n++)
        element_store(x->dtype, to, n, (float)test_between(&seed, -1000, 1000) / 700);
    return to;
}

/* 0: the prefix, whose sequence has a row of every sharer; 1: what each has of its own. False: the
 * kernel that is named refuses it. */
static int run_part(cascade *x, int part) {
    tess_device *device = x->target->device;
    tess_plan_desc d = {.struct_size = sizeof d, .dtype = x->dtype, .head_dim = DIM};
    int64_t q_first[SHARERS] = {PREFIX + LOCAL * BLOCK}, kv_first[SHARERS] = {0},
            lens[SHARERS] = {PREFIX};
    int32_t words[4][SHARERS + 1] = {{0}};
    tess_buffer at[4] = {{0}}, step = {0}, work = {0};
    tess_plan_info info = {.struct_size = sizeof info};
    tess_plan *plan;
    d.batch = part ? SHARERS : 1;
    d.q_len = part ? 1 : SHARERS;
    d.kv_len = part ? OWN : PREFIX;
    for (int n = 0; n < SHARERS && part; n++) {
        q_first[n] = PREFIX + x->own[n] - 1;
        kv_first[n] = PREFIX;
        lens[n] = x->own[n];
    }
    for (int n = 0; n < d.batch; n++) {
        words[0][n + 1] = (int32_t)((n + 1) * d.q_len);
        words[1][n] = (int32_t)lens[n];
        words[2][n] = (int32_t)q_first[n];
        words[3][n] = (int32_t)kv_first[n];
    }
    if (x->steps) {
        d.flags = TESS_PLAN_DEVICE_LENGTHS | TESS_PLAN_DEVICE_PARTS;
    } else {
        d.kv_lens = lens;
        d.q_first = q_first;
        d.kv_first = kv_first;
    }
    const tess_status status = tess_plan_create(device, x->layout, &d, &plan);
    if (status == TESS_ERROR_UNSUPPORTED && test_kernel_is_named()) return 0;
    assert_ok(status);
    assert_ok(tess_plan_query(plan, &info));
    if (x->steps) {
        for (int n = 0; n < 4; n++) at[n] = test_upload(device, words[n], sizeof words[n]);
        step = test_upload(device, NULL, info.step_bytes);
        const tess_prepare_desc p = {.struct_size = sizeof p,
                                     .batch = (uint32_t)d.batch,
                                     .cu_rows = at[0],
                                     .kv_lens = at[1],
                                     .q_first = at[2],
                                     .kv_first = at[3],
                                     .step = step};
        assert_ok(tess_prepare(plan, &p));
    }
    if (info.workspace_bytes) work = test_upload(device, NULL, info.workspace_bytes);
    const int64_t rows = part ? 1 : SHARERS, keys = part ? OWN : PREFIX;
    tess_run_desc r = {.struct_size = sizeof r,
                       .q = {x->q_at, rows * ROW, ROW, DIM},
                       .k = {x->k_at[part], keys * KV_ROW, KV_ROW, DIM},
                       .v = {x->v_at[part], keys * KV_ROW, KV_ROW, DIM},
                       .o = {x->o_at, rows * ROW, ROW, DIM},
                       .lse = {x->lse_at, rows * HEADS, HEADS, 1},
                       .workspace = work,
                       .step = step};
    r.o.buffer.offset += (uint64_t)(part * SHARERS * ROW) * x->item;
    r.lse.buffer.offset += (uint64_t)(part * SHARERS * HEADS) * sizeof(float);
    assert_ok(tess_run(plan, &r));
    assert_ok(tess_wait(device, UINT64_MAX));
    for (int n = 0; n < 4; n++) assert_ok(tess_free(device, &at[n]));
    assert_ok(tess_free(device, &step));
    assert_ok(tess_free(device, &work));
    tess_plan_release(plan);
    return 1;
}

/* The largest difference of a sharer's row from attention over the prefix and its own keys. */
static double difference_of(const cascade *x, int n, int32_t head, const void *o) {
    const int64_t length = PREFIX + x->own[n];
    double most = -INFINITY, sum = 0, wanted[DIM] = {0}, worst = 0;
    for (int64_t t = 0; t < length; t++) {
        int kept;
        assert_ok(tess_layout_kept(x->layout, head, length - 1, t, &kept));
        if (!kept) continue;
        const int part = t >= PREFIX, group = head / (HEADS / KV_HEADS);
        const int64_t at = (part ? n * OWN + t - PREFIX : t) * KV_ROW + group * DIM;
        const double score =
            vector_dot(x->dtype, DIM, x->q, n * ROW + head * DIM, x->k[part], at) / 4;
        const double next = fmax(most, score), keep = exp(most - next), weight = exp(score - next);
        for (int e = 0; e < DIM; e++) wanted[e] *= keep;
        vector_add(x->dtype, DIM, wanted, weight, x->v[part], at);
        sum = sum * keep + weight;
        most = next;
    }
    for (int e = 0; e < DIM; e++) {
        const double got = element_load(x->dtype, o, n * ROW + head * DIM + e),
                     off = fabs(got - wanted[e] / sum);
        if (!(off <= worst)) worst = isnan(off) ? INFINITY : off;
    }
    return worst;
}

static int n_shared; /* cascades that kernels took */

/* Kernels on matrix units take no float32: one that is named gets float16. */
static void share(const test_target *target, uint32_t kind, int steps) {
    tess_runtime *runtime = test_runtime(0);
    cascade x = {.target = target, .steps = steps};
    x.dtype = test_kernel_is_named() ? TESS_F16 : TESS_F32;
    x.item = x.dtype == TESS_F32 ? 4 : 2;
    tess_device *device = target->device;
    tess_pattern pattern = test_s2_pattern(BLOCK, LOCAL, 4);
    uint64_t random = 5;
    float o[SHARERS * ROW];
    pattern.kind = kind;
    const tess_layout_desc d = test_layout_desc(&pattern, HEADS, KV_HEADS, 2048);
    assert_ok(tess_layout_create(runtime, &d, &x.layout));
    tess_runtime_release(runtime);
    /* A local window begins behind the prefix, however few keys a row has of its own. */
    for (int n = 0; n < SHARERS; n++) x.own[n] = test_between(&random, LOCAL * BLOCK + 1, OWN);
    x.q = random_elements(&x, SHARERS * ROW, 7);
    x.q_at = test_upload(device, x.q, SHARERS * ROW * x.item);
    for (int part = 0; part < 2; part++) {
        const int64_t count = (part ? SHARERS * OWN : PREFIX) * KV_ROW;
        x.k[part] = random_elements(&x, count, 11 + (uint64_t)part);
        x.v[part] = random_elements(&x, count, 13 + (uint64_t)part);
        x.k_at[part] = test_upload(device, x.k[part], (uint64_t)count * x.item);
        x.v_at[part] = test_upload(device, x.v[part], (uint64_t)count * x.item);
    }
    const uint64_t bytes = SHARERS * ROW * x.item;
    x.o_at = test_upload(device, NULL, 2 * bytes);
    x.lse_at = test_upload(device, NULL, 2 * SHARERS * HEADS * sizeof(float));
    tess_buffer merged = test_upload(device, NULL, bytes);
    const int taken = run_part(&x, 0) && run_part(&x, 1);
    n_shared += taken;
    const tess_parts_desc m = {.struct_size = sizeof m,
                               .n_parts = 2,
                               .n_heads = HEADS,
                               .head_dim = DIM,
                               .dtype = x.dtype,
                               .rows = SHARERS,
                               .o_parts = {x.o_at, SHARERS * ROW, ROW, DIM},
                               .lse_parts = {x.lse_at, SHARERS * HEADS, HEADS, 1},
                               .o = {merged, 0, ROW, DIM}};
    assert_ok(tess_merge_parts(device, &m));
    assert_ok(tess_wait(device, UINT64_MAX));
    test_download(device, merged, o, bytes);
    /* O is rounded twice, before and after it is merged. */
    const double most = x.dtype == TESS_F32 ? 2e-5 : 4e-3;
    for (int n = 0; n < SHARERS && taken; n++)
        for (int32_t head = 0; head < HEADS; head++)
            if (!(difference_of(&x, n, head, o) <= most))
                fail_msg("%s: pattern %u, steps %d, sharer %d of %d own keys, head %d: off by %g",
                         target->id, (unsigned)kind, steps, n, (int)x.own[n], head,
                         difference_of(&x, n, head, o));
    tess_buffer *const all[8] = {&x.q_at,    &x.k_at[0], &x.k_at[1], &x.v_at[0],
                                 &x.v_at[1], &x.o_at,    &x.lse_at,  &merged};
    for (int n = 0; n < 8; n++) assert_ok(tess_free(device, all[n]));
    void *const arrays[5] = {x.q, x.k[0], x.k[1], x.v[0], x.v[1]};
    for (int n = 0; n < 5; n++) free(arrays[n]);
    tess_layout_release(x.layout);
}

static void test_prefix(void **state) {
    for (int steps = 0; steps < 2; steps++) {
        share(*state, TESS_PATTERN_DENSE, steps);
        share(*state, TESS_PATTERN_S2, steps);
    }
}

/* ------------------------------------------------------------------ masks by slot */

/* A mask of sinks, a local window and stripes of some heads: appended in chunks of any size, by
 * slot, in storage groups, in place and in pages. Steps of such a layout are refused by name. */
static void test_masks(void **state) {
    enum { BLOCKS = 24, SIDE = 8, TOKENS = BLOCKS * SIDE };
    static uint8_t mask[HEADS][BLOCKS][BLOCKS];
    const test_target *target = *state;
    for (int n = 0; n < (target->software ? 2 : 9); n++) {
        uint64_t random = (uint64_t)n + 3;
        const int local = (int)test_between(&random, 1, 4);
        for (int h = 0; h < HEADS; h++)
            for (int i = 0; i < BLOCKS; i++)
                for (int j = 0; j < BLOCKS; j++)
                    mask[h][i][j] =
                        j <= i && (i - j < local || j == 0 || (h / 2 && j % 5 == h % 5));
        kv_problem p = {.dtype = TESS_F16, .heads = HEADS, .kv_heads = KV_HEADS, .head_dim = 8};
        p.pattern = (tess_pattern){.struct_size = sizeof p.pattern,
                                   .kind = TESS_PATTERN_BLOCKS,
                                   .block = SIDE,
                                   .mask = &mask[0][0][0],
                                   .mask_heads = HEADS,
                                   .mask_query_blocks = BLOCKS,
                                   .mask_key_blocks = BLOCKS};
        p.flags = TESS_PLAN_BATCH_INVARIANT;
        p.max_tokens = TOKENS;
        p.max_chunk = test_between(&random, 1, 2 * SIDE + 1);
        const kv_form form = {.page = n % 3 * 16, .compact = 1}, without = {.page = 0};
        kv_cache c, plain;
        if (!kv_open(&c, target, &p, &form, 1, TOKENS, 1)) continue;
        assert_int_equal(2, c.n_storage);
        if (form.page) assert_true(c.columns * form.page < TOKENS);
        assert_int_equal(1, kv_open(&plain, target, &p, &without, 1, TOKENS, 1));
        while (c.lens[0] < TOKENS) {
            const int64_t left = TOKENS - c.lens[0];
            int64_t rows = c.lens[0] ? test_between(&random, 1, p.max_chunk) : TOKENS / 3;
            kv_result got, wanted;
            if (rows > left) rows = left;
            kv_append(&c, &rows);
            kv_append(&plain, &rows);
            if (rows > p.max_chunk) rows = p.max_chunk;
            kv_attend(&c, &rows, &got);
            kv_attend(&plain, &rows, &wanted);
            kv_same("a mask by slot", &got, 0, &wanted, 0, rows, &c);
            if (c.lens[0] == TOKENS) kv_check(&c, &got, 0, 0, rows, 1, "a mask by slot");
            kv_result_free(&got);
            kv_result_free(&wanted);
        }
        const tess_plan_desc d = {.struct_size = sizeof d,
                                  .flags = TESS_PLAN_DEVICE_LENGTHS | TESS_PLAN_COMPACT,
                                  .dtype = p.dtype,
                                  .head_dim = p.head_dim,
                                  .batch = 1,
                                  .q_len = 1,
                                  .kv_len = TOKENS};
        tess_plan *steps = NULL;
        assert_error(tess_plan_create(target->device, c.layout, &d, &steps), TESS_ERROR_UNSUPPORTED,
                     "tess_plan_create", "flags");
        kv_close(&plain);
        kv_close(&c);
    }
}

int main(int argc, char **argv) {
    static const serving_test all[] = {{"a shared prefix", test_prefix},
                                       {"masks by slot", test_masks}};
    const int status = serving_main(argc, argv, all, sizeof all / sizeof *all);
    return status ? status : n_shared == 0 && kv_none_opened();
}
