/* SPDX-License-Identifier: Apache-2.0 */
/* One step of a server, for tests of failures: new keys are appended to a compact cache in pages,
 * and a page is copied. Everything is released whatever fails. */
#ifndef TESSERA_TESTS_SERVE_H
#define TESSERA_TESTS_SERVE_H

#include <string.h>

#include "common/testlib.h"

enum { SERVE_ROWS = 6, SERVE_KEYS = 38, SERVE_PAGE = 16, SERVE_PAGES = 4, SERVE_ROW = 2 * 8 };

/* Buffers of the step: the new rows, K, V, and the words of the block table and of a pair. */
typedef struct serve {
    tess_layout *layout;
    tess_plan *plan;
    tess_buffer rows, pools[2], words;
    uint16_t is[SERVE_PAGES * SERVE_PAGE * SERVE_ROW];
} serve;

static inline tess_status serve_layout(tess_runtime *runtime, serve *s) {
    const tess_pattern pattern = test_s2_pattern(4, 2, 4);
    tess_layout_desc d = test_layout_desc(&pattern, 2, 2, 64);
    d.max_chunk = SERVE_ROWS;
    return tess_layout_create(runtime, &d, &s->layout);
}

static inline tess_status serve_plan(tess_device *device, serve *s) {
    const tess_plan_desc d = {.struct_size = sizeof d,
                              .flags = TESS_PLAN_COMPACT | TESS_PLAN_APPEND,
                              .dtype = TESS_F16,
                              .head_dim = 8,
                              .batch = 1,
                              .q_len = SERVE_ROWS,
                              .kv_len = SERVE_KEYS,
                              .max_in_flight = 2,
                              .page = SERVE_PAGE};
    return tess_plan_create(device, s->layout, &d, &s->plan);
}

static inline tess_status serve_fill(tess_device *device, tess_buffer *buffer, const void *data,
                                     uint64_t bytes) {
    const tess_status status = tess_alloc(device, bytes, buffer);
    return status == TESS_OK ? tess_copy(device, *buffer, tess_host_buffer(data, bytes), bytes)
                             : status;
}

static inline tess_status serve_memory(tess_device *device, serve *s) {
    /* Pages 2, 0 and 3 are the sequence's; the first of them is copied to page 1. */
    static const int32_t words[8] = {2, 0, 3, -1, 2, 1};
    uint16_t rows[SERVE_ROWS * SERVE_ROW];
    for (int n = 0; n < SERVE_ROWS * SERVE_ROW; n++) rows[n] = (uint16_t)(n + 1);
    memset(s->is, 0, sizeof s->is);
    tess_status status = serve_fill(device, &s->rows, rows, sizeof rows);
    for (int n = 0; n < 2 && status == TESS_OK; n++)
        status = serve_fill(device, &s->pools[n], s->is, sizeof s->is);
    return status == TESS_OK ? serve_fill(device, &s->words, words, sizeof words) : status;
}

static inline tess_status serve_work(tess_device *device, serve *s) {
    tess_tensor pools[2];
    for (int n = 0; n < 2; n++)
        pools[n] = (tess_tensor){.buffer = s->pools[n],
                                 .stride_batch = SERVE_PAGE * SERVE_ROW,
                                 .stride_token = SERVE_ROW,
                                 .stride_head = 8};
    const tess_tensor rows = {.buffer = s->rows, .stride_token = SERVE_ROW, .stride_head = 8};
    const tess_append_desc append = {.struct_size = sizeof append,
                                     .k = rows,
                                     .v = rows,
                                     .k_pools = &pools[0],
                                     .v_pools = &pools[1],
                                     .block_table = s->words,
                                     .table_stride = 4,
                                     .pages = SERVE_PAGES};
    tess_copy_desc copy = {.struct_size = sizeof copy,
                           .dtype = TESS_F16,
                           .n_pools = 2,
                           .n_heads = 2,
                           .head_dim = 8,
                           .page = SERVE_PAGE,
                           .pages = SERVE_PAGES,
                           .n_pairs = 1,
                           .pools = pools,
                           .pairs = s->words};
    copy.pairs.offset = 4 * sizeof(int32_t);
    tess_status status = tess_append(s->plan, &append);
    if (status == TESS_OK) status = tess_copy_pages(device, &copy);
    return status == TESS_OK ? tess_wait(device, UINT64_C(60000000000)) : status;
}

/* Whether both pools hold what they have to, as far as they can be read. */
static inline tess_status serve_check(tess_device *device, serve *s) {
    static const int32_t pages[3] = {2, 0, 3};
    for (int n = 0; n < 2; n++) {
        const tess_status status =
            tess_copy(device, tess_host_buffer(s->is, sizeof s->is), s->pools[n], sizeof s->is);
        if (status != TESS_OK) return status;
        for (int r = 0; r < SERVE_ROWS; r++)
            for (int32_t head = 0; head < 2; head++) {
                const int64_t t = SERVE_KEYS - SERVE_ROWS + r;
                int64_t slot;
                assert_ok(tess_layout_slot(s->layout, head, t / 4, &slot));
                const int64_t place = slot * 4 + t % 4;
                const uint16_t *at = s->is +
                                     (pages[place / SERVE_PAGE] * SERVE_PAGE + place % SERVE_PAGE) *
                                         SERVE_ROW +
                                     head * 8,
                               first = (uint16_t)(r * SERVE_ROW + head * 8 + 1);
                assert_int_equal(at[0], first);
                assert_int_equal(at[7], first + 7);
            }
        assert_memory_equal(s->is + SERVE_PAGE * SERVE_ROW, s->is + 2 * SERVE_PAGE * SERVE_ROW,
                            SERVE_PAGE * SERVE_ROW * sizeof *s->is);
    }
    return TESS_OK;
}

static inline tess_status serve_once(tess_runtime *runtime, tess_device *device) {
    serve s;
    memset(&s, 0, sizeof s);
    tess_status status = serve_layout(runtime, &s);
    if (status == TESS_OK) status = serve_plan(device, &s);
    if (status == TESS_OK) status = serve_memory(device, &s);
    if (status == TESS_OK) status = serve_work(device, &s);
    if (status == TESS_OK) status = serve_check(device, &s);
    tess_buffer *const buffers[4] = {&s.rows, &s.pools[0], &s.pools[1], &s.words};
    tess_plan_release(s.plan);
    for (int n = 0; n < 4; n++) {
        const tess_status freed = tess_free(device, buffers[n]);
        if (status == TESS_OK) status = freed;
    }
    tess_layout_release(s.layout);
    return status;
}

#endif
