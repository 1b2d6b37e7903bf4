/* SPDX-License-Identifier: Apache-2.0 */
/* tess_merge_parts on every device: against sums in double, and results over parts of the keys that
 * tess_run gave against those over all of them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache.h"
#include "reference.h"

enum { GUARD = 256, MOST_PARTS = 256 };

/* ------------------------------------------------------------------ given parts */

typedef struct merge_case {
    const char *name;
    uint32_t dtype, parts, heads, head_dim;
    int64_t rows;
    int64_t gap; /* elements between vectors */
    int head_major, without_lse;
} merge_case;

static const merge_case cases[] = {
    {"one part, f32", TESS_F32, 1, 3, 64, 5, 0, 0, 0},
    {"two parts, bf16", TESS_BF16, 2, 2, 128, 7, 0, 0, 0},
    {"33 parts, f16", TESS_F16, 33, 2, 40, 3, 0, 1, 0},
    {"256 parts, f32", TESS_F32, 256, 1, 8, 4, 0, 0, 0},
    {"256 parts, bf16", TESS_BF16, 256, 3, 256, 2, 0, 1, 1},
    {"gaps of an element, f16", TESS_F16, 4, 5, 24, 9, 1, 0, 0},
    {"gaps of an element, f32", TESS_F32, 5, 2, 256, 3, 1, 1, 0},
    {"many rows, bf16", TESS_BF16, 3, 7, 8, 900, 0, 0, 0},
};
enum { CASES = sizeof cases / sizeof *cases };

/* A tensor on the device and what it holds, guards before and after it included. */
typedef struct held {
    tess_tensor tensor;
    uint64_t bytes, item;
    unsigned char *host;
} held;

static void hold(held *h, const merge_case *x, int64_t parts, int64_t row, uint64_t item) {
    const int64_t step = row + x->gap, rows = x->rows, heads = x->heads;
    h->item = item;
    h->bytes = 2 * GUARD + (uint64_t)(parts * rows * heads * step) * item;
    h->host = malloc(h->bytes);
    if (!h->host) fail_msg("out of memory");
    memset(h->host, 0xff, h->bytes); /* NaN */
    h->tensor.stride_batch = rows * heads * step;
    h->tensor.stride_token = x->head_major ? step : heads * step;
    h->tensor.stride_head = x->head_major ? rows * step : step;
}

static void send(held *h, tess_device *device) {
    h->tensor.buffer = test_upload(device, h->host, h->bytes);
    h->tensor.buffer.offset = GUARD;
}

static void let_go(held *h, tess_device *device) {
    h->tensor.buffer.offset = 0;
    assert_ok(tess_free(device, &h->tensor.buffer));
    free(h->host);
}

static void fetch(held *h, tess_device *device) {
    tess_buffer whole = h->tensor.buffer;
    whole.offset = 0;
    test_download(device, whole, h->host, h->bytes);
}

static int64_t index_of(const held *h, int64_t part, int64_t row, int64_t head) {
    return part * h->tensor.stride_batch + row * h->tensor.stride_token +
           head * h->tensor.stride_head;
}

static void *element(const held *h, int64_t at) { return h->host + GUARD + (uint64_t)at * h->item; }

/* The LSE of a part: near 0, 80 above that, or -inf for none; in some rows for none of them. */
static float random_lse(uint64_t *random, int64_t row) {
    if (row % 5 == 4) return -INFINITY;
    switch (test_between(random, 0, 3)) {
    case 0: return -INFINITY;
    case 1: return 80;
    default: return (float)test_between(random, -4000, 4000) * 1e-3f;
    }
}

static void fill_parts(const merge_case *x, held *o, held *lse, uint64_t *random) {
    for (int64_t n = 0; n < x->parts; n++)
        for (int64_t row = 0; row < x->rows; row++)
            for (int64_t head = 0; head < x->heads; head++) {
                const float own = x->parts == 1 ? 1.5f : random_lse(random, row);
                memcpy(element(lse, index_of(lse, n, row, head)), &own, sizeof own);
                /* Of a part without keys, O stays NaN: nobody may read it. */
                if (own == -INFINITY) continue;
                fill_normal(x->dtype, element(o, index_of(o, n, row, head)), x->head_dim,
                            test_random(random), 1);
            }
}

static double part_lse(const held *lse, int64_t n, int64_t row, int64_t head) {
    float f;
    memcpy(&f, element(lse, index_of(lse, n, row, head)), sizeof f);
    return f;
}

/* The row in double, and the largest element of its parts. */
static double merge_row(const merge_case *x, const held *o, const held *lse, int64_t row,
                        int64_t head, double *out, double *largest) {
    double most = -INFINITY, sum = 0;
    *largest = 0;
    for (uint32_t d = 0; d < x->head_dim; d++) out[d] = 0;
    for (int64_t n = 0; n < x->parts; n++) most = fmax(most, part_lse(lse, n, row, head));
    for (int64_t n = 0; n < x->parts; n++) {
        if (part_lse(lse, n, row, head) == -INFINITY) continue;
        const double weight = exp(part_lse(lse, n, row, head) - most);
        sum += weight;
        for (uint32_t d = 0; d < x->head_dim; d++) {
            const double own =
                load_element(x->dtype, o->host + GUARD, index_of(o, n, row, head) + d);
            out[d] += weight * own;
            *largest = fmax(*largest, fabs(own));
        }
    }
    for (uint32_t d = 0; d < x->head_dim && sum > 0; d++) out[d] /= sum;
    return sum > 0 ? most + log(sum) : -INFINITY;
}

/* Half a unit in the last place of a number of at most `size`, and what float32 sums lose. */
static double tolerance(uint32_t dtype, double size) {
    const double digits = dtype == TESS_F32 ? 0x1p-24 : dtype == TESS_F16 ? 0x1p-11 : 0x1p-8;
    return size * (digits + 4e-6) + 1e-6;
}

static void check_rows(const merge_case *x, const held *o_parts, const held *lse_parts,
                       const held *o, const held *lse) {
    for (int64_t row = 0; row < x->rows; row++)
        for (int64_t head = 0; head < x->heads; head++) {
            double want[256], largest;
            const double want_lse = merge_row(x, o_parts, lse_parts, row, head, want, &largest);
            for (uint32_t d = 0; d < x->head_dim; d++) {
                const double got =
                    load_element(x->dtype, o->host + GUARD, index_of(o, 0, row, head) + d);
                if (!(fabs(got - want[d]) <= tolerance(x->dtype, largest)) ||
                    (largest == 0 && got != 0))
                    fail_msg("%s: row %d, head %d, element %u: %g, wanted %g", x->name, (int)row,
                             (int)head, d, got, want[d]);
            }
            if (x->without_lse) continue;
            const double got = part_lse(lse, 0, row, head);
            if (got != want_lse && !(fabs(got - want_lse) <= 1e-5 + 4e-7 * fabs(want_lse)))
                fail_msg("%s: row %d, head %d: LSE %g, wanted %g", x->name, (int)row, (int)head,
                         got, want_lse);
        }
}

/* Gaps and guards are as they were. */
static void check_rest(const merge_case *x, const held *h, int64_t row) {
    const int64_t step = row + x->gap,
                  end = (int64_t)((h->bytes - GUARD) / h->item) - (int64_t)(GUARD / h->item);
    for (int64_t at = -(int64_t)(GUARD / h->item); at < end + (int64_t)(GUARD / h->item); at++) {
        if (at >= 0 && at < end && at % step < row) continue;
        const unsigned char *byte = element(h, at);
        for (uint64_t n = 0; n < h->item; n++)
            if (byte[n] != 0xff) fail_msg("%s: element %d was written", x->name, (int)at);
    }
}

static void test_given_parts(void **state) {
    const test_target *target = *state;
    uint64_t random = 5;
    for (int n = 0; n < CASES; n++) {
        const merge_case *x = &cases[n];
        const uint64_t item = x->dtype == TESS_F32 ? 4 : 2;
        held o_parts, lse_parts, o, lse;
        hold(&o_parts, x, x->parts, x->head_dim, item);
        hold(&lse_parts, x, x->parts, 1, 4);
        hold(&o, x, 1, x->head_dim, item);
        hold(&lse, x, 1, 1, 4);
        fill_parts(x, &o_parts, &lse_parts, &random);
        held *all[] = {&o_parts, &lse_parts, &o, &lse};
        for (int h = 0; h < 4; h++) send(all[h], target->device);
        tess_parts_desc d = {.struct_size = sizeof d,
                             .n_parts = x->parts,
                             .n_heads = x->heads,
                             .head_dim = x->head_dim,
                             .dtype = x->dtype,
                             .rows = x->rows,
                             .o_parts = o_parts.tensor,
                             .lse_parts = lse_parts.tensor,
                             .o = o.tensor};
        if (!x->without_lse) d.lse = lse.tensor;
        unsigned char *first = malloc(o.bytes);
        for (int round = 0; round < 2; round++) {
            assert_ok(tess_merge_parts(target->device, &d));
            assert_ok(tess_wait(target->device, UINT64_MAX));
            fetch(&o, target->device);
            if (round) assert_memory_equal(first, o.host, o.bytes);
            memcpy(first, o.host, o.bytes);
        }
        fetch(&lse, target->device);
        check_rows(x, &o_parts, &lse_parts, &o, &lse);
        check_rest(x, &o, x->head_dim);
        check_rest(x, &lse, 1);
        free(first);
        for (int h = 0; h < 4; h++) let_go(all[h], target->device);
    }
}

/* ------------------------------------------------------------------ parts of tess_run */

enum { HEADS = 6, KV_HEADS = 2, DIM = 40, KEYS = 700, BLOCK = 32, PLACES = 8 };

typedef struct split_case {
    const char *name;
    uint32_t dtype;
    int64_t q_len, part_keys, parts;
    tess_pattern pattern;
} split_case;

#define DENSE  .kind = TESS_PATTERN_DENSE
#define S2     .kind = TESS_PATTERN_S2, .local = 3, .stride = 4
#define WINDOW .kind = TESS_PATTERN_WINDOW
#define BLOCKS .kind = TESS_PATTERN_BLOCKS, .mask = mask, .mask_heads = 1
static uint8_t mask[22 * 22];
static const split_case splits[] = {
    {"dense, 4 parts", TESS_F32, 130, 192, 4, {DENSE}},
    {"dense, 8 parts", TESS_BF16, 700, 96, 8, {DENSE}},
    {"decode, 8 parts, 2 empty", TESS_F16, 1, 128, 8, {DENSE}},
    {"S2, 4 parts", TESS_F16, 700, 192, 4, {S2}},
    {"S2, 8 parts, 2 empty", TESS_F32, 200, 128, 8, {S2, .dense_heads = 1}},
    {"both ways, 8 parts",
     TESS_F32,
     333,
     96,
     8,
     {S2, .flags = TESS_PATTERN_BIDIRECTIONAL, .local_right = 2}},
    {"window, 4 parts", TESS_F32, 700, 192, 4, {WINDOW, .left = 150, .sinks = 50}},
    {"window both ways, 8 parts",
     TESS_F32,
     400,
     96,
     8,
     {WINDOW, .flags = TESS_PATTERN_BIDIRECTIONAL, .left = 60, .right = 90, .sinks = 200}},
    {"blocks, 4 parts",
     TESS_F32,
     500,
     192,
     4,
     {BLOCKS, .mask_query_blocks = 22, .mask_key_blocks = 22}},
};

static tess_plan *plan_of(const test_target *target, const tess_layout *layout, const split_case *x,
                          int parts) {
    int64_t lens[PLACES], kv_first[PLACES], q_first[PLACES];
    tess_plan_desc d = {.struct_size = sizeof d,
                        .dtype = x->dtype,
                        .head_dim = DIM,
                        .batch = 1,
                        .q_len = x->q_len,
                        .kv_len = KEYS};
    for (int64_t n = 0; n < x->parts; n++) {
        const int64_t first = n * x->part_keys < KEYS ? n * x->part_keys : 0,
                      rest = n * x->part_keys < KEYS ? KEYS - first : 0;
        kv_first[n] = first;
        lens[n] = rest < x->part_keys ? rest : x->part_keys;
        q_first[n] = KEYS - x->q_len;
    }
    if (parts) {
        d.batch = x->parts;
        d.kv_len = x->part_keys;
        d.kv_lens = lens;
        d.q_first = q_first;
        d.kv_first = kv_first;
    }
    tess_plan *plan = NULL;
    assert_ok(tess_plan_create(target->device, layout, &d, &plan));
    return plan;
}

static tess_buffer memory(tess_device *device, uint64_t bytes) {
    tess_buffer buffer;
    assert_ok(tess_alloc(device, bytes, &buffer));
    return buffer;
}

/* Runs a plan; K and V of the parts follow each other as those of the whole do. */
static void run(const test_target *target, const tess_plan *plan, const split_case *x, int parts,
                const tess_buffer inputs[3], tess_tensor *o, tess_tensor *lse) {
    tess_plan_info info = {.struct_size = sizeof info};
    tess_run_desc d = {.struct_size = sizeof d};
    tess_tensor *const tensors[] = {&d.q, &d.k, &d.v, o, lse};
    assert_ok(tess_plan_query(plan, &info));
    for (int role = TESS_ROLE_Q; role <= TESS_ROLE_LSE; role++) {
        uint64_t bytes;
        const tess_buffer none = {0};
        assert_ok(tess_plan_tensor(plan, (tess_role)role, none, tensors[role], &bytes));
        tensors[role]->buffer = role < 3 ? inputs[role] : memory(target->device, bytes);
    }
    if (parts) d.q.stride_batch = 0;
    if (parts) d.k.stride_batch = d.v.stride_batch = x->part_keys * KV_HEADS * DIM;
    d.o = *o;
    d.lse = *lse;
    if (info.workspace_bytes) d.workspace = memory(target->device, info.workspace_bytes);
    assert_ok(tess_run(plan, &d));
    assert_ok(tess_wait(target->device, UINT64_MAX));
    assert_ok(tess_free(target->device, &d.workspace));
}

static void compare(const split_case *x, const void *o, const float *lse, const void *want,
                    const float *want_lse) {
    const double digits = x->dtype == TESS_F32 ? 2e-6 : x->dtype == TESS_F16 ? 0x1p-10 : 0x1p-7;
    for (int64_t n = 0; n < x->q_len * HEADS * DIM; n++) {
        const double a = load_element(x->dtype, o, n), b = load_element(x->dtype, want, n);
        if (!(fabs(a - b) <= digits * 4))
            fail_msg("%s: element %d is %g, and %g over all keys", x->name, (int)n, a, b);
    }
    for (int64_t n = 0; n < x->q_len * HEADS; n++)
        if (lse[n] != want_lse[n] && !(fabs((double)lse[n] - want_lse[n]) <= 1e-5))
            fail_msg("%s: LSE %d is %g, and %g over all keys", x->name, (int)n, (double)lse[n],
                     (double)want_lse[n]);
}

static void check_split(const test_target *target, const split_case *x) {
    const uint64_t item = x->dtype == TESS_F32 ? 4 : 2, rows = (uint64_t)x->q_len * HEADS,
                   counts[3] = {rows * DIM, KEYS * KV_HEADS * DIM, KEYS * KV_HEADS * DIM};
    tess_pattern pattern = x->pattern;
    tess_layout *layout = NULL;
    tess_buffer inputs[3];
    tess_tensor o[3], lse[3]; /* whole, parts, merged */
    pattern.struct_size = sizeof pattern;
    pattern.block = BLOCK;
    const tess_layout_desc desc = {.struct_size = sizeof desc,
                                   .pattern = &pattern,
                                   .n_heads = HEADS,
                                   .n_kv_heads = KV_HEADS,
                                   .max_tokens = KEYS};
    tess_runtime *runtime = test_runtime(0);
    assert_ok(tess_layout_create(runtime, &desc, &layout));
    for (uint32_t n = 0; n < 3; n++) {
        void *host = malloc(counts[n] * item);
        fill_normal(x->dtype, host, (int64_t)counts[n], 9, n);
        inputs[n] = test_upload(target->device, host, counts[n] * item);
        free(host);
    }
    for (int parts = 0; parts < 2; parts++) {
        tess_plan *plan = plan_of(target, layout, x, parts);
        run(target, plan, x, parts, inputs, &o[parts], &lse[parts]);
        tess_plan_release(plan);
    }
    o[2] = o[0];
    lse[2] = lse[0];
    o[2].buffer = memory(target->device, counts[0] * item);
    lse[2].buffer = memory(target->device, rows * 4);
    const tess_parts_desc d = {.struct_size = sizeof d,
                               .n_parts = (uint32_t)x->parts,
                               .n_heads = HEADS,
                               .head_dim = DIM,
                               .dtype = x->dtype,
                               .rows = x->q_len,
                               .o_parts = o[1],
                               .lse_parts = lse[1],
                               .o = o[2],
                               .lse = lse[2]};
    assert_ok(tess_merge_parts(target->device, &d));
    assert_ok(tess_wait(target->device, UINT64_MAX));
    void *results[2] = {malloc(counts[0] * item), malloc(counts[0] * item)};
    float *sums[2] = {malloc(rows * 4), malloc(rows * 4)};
    for (int n = 0; n < 2; n++) {
        test_download(target->device, o[2 * n].buffer, results[n], counts[0] * item);
        test_download(target->device, lse[2 * n].buffer, sums[n], rows * 4);
    }
    compare(x, results[1], sums[1], results[0], sums[0]);
    for (int n = 0; n < 3; n++) {
        assert_ok(tess_free(target->device, &inputs[n]));
        assert_ok(tess_free(target->device, &o[n].buffer));
        assert_ok(tess_free(target->device, &lse[n].buffer));
        if (n < 2) free(results[n]), free(sums[n]);
    }
    tess_layout_release(layout);
    tess_runtime_release(runtime);
}

static void test_split_keys(void **state) {
    uint64_t random = 3;
    for (size_t n = 0; n < sizeof mask; n++) mask[n] = test_between(&random, 0, 2) == 0;
    for (size_t n = 0; n < sizeof splits / sizeof *splits; n++) check_split(*state, &splits[n]);
}

/* ------------------------------------------------------------------ bad arguments */

/* Places in one buffer of 4 KiB, in floats: 3 parts of 2 rows and 2 heads of 8 elements. */
enum { AT_LSE = 256, AT_O = 512, AT_SUM = 768, ALL = 1024 };

static tess_parts_desc right_arguments(tess_buffer memory) {
    tess_parts_desc d = {.struct_size = sizeof d,
                         .n_parts = 3,
                         .n_heads = 2,
                         .head_dim = 8,
                         .dtype = TESS_F32,
                         .rows = 2,
                         .o_parts = {memory, 32, 16, 8},
                         .lse_parts = {memory, 4, 2, 1},
                         .o = {memory, 0, 16, 8},
                         .lse = {memory, 0, 2, 1}};
    d.lse_parts.buffer.offset = AT_LSE * 4;
    d.o.buffer.offset = AT_O * 4;
    d.lse.buffer.offset = AT_SUM * 4;
    return d;
}

/* Each changes one thing. */
static void no_parts(tess_parts_desc *d) { d->n_parts = 0; }
static void many_parts(tess_parts_desc *d) { d->n_parts = 65536; }
static void no_heads(tess_parts_desc *d) { d->n_heads = 0; }
static void no_dim(tess_parts_desc *d) { d->head_dim = 0; }
static void odd_dim(tess_parts_desc *d) { d->head_dim = 12; }
static void bad_dtype(tess_parts_desc *d) { d->dtype = 3; }
static void bad_flags(tess_parts_desc *d) { d->flags = 1; }
static void few_rows(tess_parts_desc *d) { d->rows = -1; }
static void many_rows(tess_parts_desc *d) { d->rows = INT64_C(1) << 30; }
static void no_input(tess_parts_desc *d) { d->o_parts.buffer.kind = TESS_BUFFER_NONE; }
static void no_lse(tess_parts_desc *d) { d->lse_parts.buffer.kind = TESS_BUFFER_NONE; }
static void no_output(tess_parts_desc *d) { d->o.buffer.kind = TESS_BUFFER_NONE; }
static void odd_place(tess_parts_desc *d) { d->lse.buffer.offset += 2; }
static void negative(tess_parts_desc *d) { d->o_parts.stride_batch = -1; }
static void too_far(tess_parts_desc *d) { d->o_parts.stride_batch = INT64_MAX; }
static void past_end(tess_parts_desc *d) { d->lse_parts.stride_batch = ALL; }
static void no_room(tess_parts_desc *d) { d->o.stride_token = 4; }
static void on_input(tess_parts_desc *d) { d->o.buffer.offset = 64 * 4; }
static void on_sums(tess_parts_desc *d) { d->lse.buffer.offset = AT_LSE * 4 + 8; }
static void on_output(tess_parts_desc *d) { d->lse.buffer.offset = AT_O * 4; }
static void bad_stream(tess_parts_desc *d) { d->stream.kind = 7; }

static const struct {
    void (*change)(tess_parts_desc *d);
    tess_status status;
    const char *text;
} mistakes[] = {
    {no_parts, TESS_ERROR_INVALID, "n_parts: must be 1 to 65535, got 0"},
    {many_parts, TESS_ERROR_INVALID, "n_parts: must be 1 to 65535, got 65536"},
    {no_heads, TESS_ERROR_INVALID, "n_heads: must be 1 to 65535, got 0"},
    {no_dim, TESS_ERROR_INVALID, "head_dim: must be at least 1"},
    {odd_dim, TESS_ERROR_UNSUPPORTED, "head_dim: must be a multiple of 8"},
    {bad_dtype, TESS_ERROR_INVALID, "dtype: 3 is no tess_dtype"},
    {bad_flags, TESS_ERROR_INVALID, "flags: must be 0"},
    {few_rows, TESS_ERROR_INVALID, "rows: must be at least 0, got -1"},
    {many_rows, TESS_ERROR_UNSUPPORTED, "rows: times n_heads it must be less than 2^31"},
    {no_input, TESS_ERROR_INVALID, "o_parts.buffer.kind"},
    {no_lse, TESS_ERROR_INVALID, "lse_parts.buffer.kind"},
    {no_output, TESS_ERROR_INVALID, "o.buffer.kind"},
    {odd_place, TESS_ERROR_INVALID, "lse.buffer: its address must be a multiple of 4"},
    {negative, TESS_ERROR_INVALID, "o_parts.stride_batch: must be at least 0, got -1"},
    {too_far, TESS_ERROR_INVALID, "o_parts: its strides overflow"},
    {past_end, TESS_ERROR_INVALID, "lse_parts.buffer.size"},
    {no_room, TESS_ERROR_INVALID, "o.stride_token: must be at least"},
    {on_input, TESS_ERROR_INVALID, "o: must not overlap o_parts"},
    {on_sums, TESS_ERROR_INVALID, "lse: must not overlap lse_parts"},
    {on_output, TESS_ERROR_INVALID, "lse: must not overlap o"},
    {bad_stream, TESS_ERROR_INVALID, "stream.kind: 7 is no tess_stream_kind"},
};

static void test_mistakes(void **state) {
    const test_target *target = *state;
    float was[ALL], is[ALL];
    for (int n = 0; n < ALL; n++) was[n] = 1;
    tess_buffer buffer = test_upload(target->device, was, sizeof was);
    buffer.size = sizeof was;
    for (size_t n = 0; n < sizeof mistakes / sizeof *mistakes; n++) {
        tess_parts_desc d = right_arguments(buffer);
        mistakes[n].change(&d);
        assert_int_equal(tess_merge_parts(target->device, &d), mistakes[n].status);
        if (!strstr(tess_last_error(), mistakes[n].text))
            fail_msg("'%s' has no '%s'", tess_last_error(), mistakes[n].text);
    }
    assert_int_equal(tess_merge_parts(NULL, NULL), TESS_ERROR_INVALID);
    assert_int_equal(tess_merge_parts(target->device, NULL), TESS_ERROR_INVALID);
    test_download(target->device, buffer, is, sizeof is);
    assert_memory_equal(was, is, sizeof is);
    /* No rows need no tensors. */
    tess_parts_desc none = {
        .struct_size = sizeof none, .n_parts = 1, .n_heads = 1, .head_dim = 8, .dtype = TESS_F32};
    assert_ok(tess_merge_parts(target->device, &none));
    const tess_parts_desc right = right_arguments(buffer);
    assert_ok(tess_merge_parts(target->device, &right));
    assert_ok(tess_wait(target->device, UINT64_MAX));
    test_download(target->device, buffer, is, sizeof is);
    for (int n = AT_O; n < AT_O + 32; n++) assert_true(fabsf(is[n] - 1) < 1e-5f);
    assert_ok(tess_free(target->device, &buffer));
}

int main(int argc, char **argv) {
    static const serving_test all[] = {{"given parts", test_given_parts},
                                       {"split keys", test_split_keys},
                                       {"mistakes", test_mistakes}};
    return serving_main(argc, argv, all, sizeof all / sizeof *all);
}
