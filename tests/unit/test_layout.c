/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts against the formulas of tessera.h: thousands of random patterns, each pair of positions
 * by brute force, and the known rows and sizes. */
#include "fixtures/planner.h"

#include "layout.h"

/* ------------------------------------------------------------------ known values */

/* Eight rows of eight blocks, as the golden rows are written. */
static void assert_rows(const tess_pattern *pattern, int32_t kv_heads, int32_t head,
                        const char *wanted) {
    tess_layout *layout = make_layout(runtime, pattern, 4, kv_heads, 8 * pattern->block);
    char got[80];
    size_t at = 0;
    for (int64_t i = 0; i < 8; i++) {
        uint8_t row[8];
        assert_int_equal(TESS_OK, tess_layout_row(layout, head, i, row, 8));
        for (int j = 0; j < 8; j++) got[at++] = (char)('0' + row[j]);
        got[at++] = i < 7 ? ' ' : '\0';
    }
    assert_string_equal(wanted, got);
    tess_layout_release(layout);
}

static void test_golden_rows(void **state) {
    (void)state;
    static const char *const first =
        "10000000 11000000 01100000 00110000 00011000 00011100 00010110 00010011";
    static const char *const second =
        "10000000 11000000 11100000 10110000 10011000 10001100 10001110 10001011";
    const int32_t blocks[] = {1, 16, 64, 100};
    for (size_t n = 0; n < 4; n++) {
        tess_pattern p = s2_pattern(blocks[n], 2, 4, 0);
        assert_rows(&p, 4, 1, first);
        p.offset = 1;
        assert_rows(&p, 4, 0, first);
        assert_rows(&p, 4, 3, second);
        p.offset = 0;
        p.flags = TESS_PATTERN_PER_KV_HEAD;
        assert_rows(&p, 2, 2, first);
        assert_rows(&p, 2, 3, first);
        tess_layout *layout = make_layout(runtime, &p, 4, 2, 8 * p.block);
        assert_int_equal(layout->head_class[0], layout->head_class[1]);
        assert_int_equal(layout->head_class[2], layout->head_class[3]);
        assert_int_equal(2, layout->n_classes);
        tess_layout_release(layout);
    }
}

static void assert_kv(const tess_pattern *p, int64_t tokens, int64_t kept, int64_t allocated) {
    tess_layout *layout = make_layout(runtime, p, 32, 8, tokens);
    for (int32_t g = 0; g < 8; g++) {
        tess_kv_info info = {.struct_size = sizeof info};
        assert_int_equal(TESS_OK, tess_layout_kv(layout, g, &info));
        assert_int_equal(tokens / 64, info.blocks);
        assert_int_equal(kept, info.blocks_kept);
        assert_int_equal(allocated, info.blocks_allocated);
        assert_int_equal(allocated, info.slots_fixed + info.slots_ring);
    }
    tess_layout_info info = {.struct_size = sizeof info};
    assert_int_equal(TESS_OK, tess_layout_query(layout, &info));
    assert_int_equal(8, info.n_classes);
    assert_int_equal(8, info.residues);
    assert_int_equal(8, info.residues_total);
    assert_int_equal(1, info.kv_efficient);
    assert_true(info.coverage == 1);
    tess_layout_release(layout);
}

/* Phi-3-small: a kv head keeps 56 % of its blocks at 8k and 50 % at 128k. */
static void test_phi3_storage(void **state) {
    (void)state;
    tess_pattern p = s2_pattern(64, 16, 8, 1);
    assert_kv(&p, 8192, 72, 64 + 9);
    assert_kv(&p, 131072, 1024 + 8, 1024 + 9);
    /* Ideal saving, dense causal blocks over kept blocks, as published: 3.04 and 7.21. */
    for (int n = 0; n < 2; n++) {
        int64_t tokens = n ? 131072 : 8192, blocks = tokens / 64;
        tess_layout *layout = make_layout(runtime, &p, 32, 8, tokens);
        double kept = 0;
        for (uint32_t c = 0; c < layout->n_classes; c++)
            kept += (double)layout->class_heads[c] *
                    (double)tess_head_block_pairs(&layout->patterns[c], tokens) / 32;
        double saving = (double)blocks * (double)(blocks + 1) / 2 / kept;
        assert_true(saving > (n ? 7.205 : 3.035) && saving < (n ? 7.215 : 3.045));
        tess_layout_release(layout);
    }
}

/* With more heads than the stride only some residues are covered when the heads' step does not
 * divide it. */
static void test_coverage_of_residues(void **state) {
    (void)state;
    tess_pattern p = s2_pattern(16, 1, 8, 0);
    p.flags = TESS_PATTERN_HOMOGENEOUS;
    tess_layout *layout = make_layout(runtime, &p, 8, 8, 4096);
    tess_layout_info info = {.struct_size = sizeof info};
    assert_int_equal(TESS_OK, tess_layout_query(layout, &info));
    assert_int_equal(1, info.residues);
    assert_true(info.coverage > 0.12 && info.coverage < 0.14);
    tess_layout_release(layout);
    p.flags = 0;
    p.dense_heads = 1;
    layout = make_layout(runtime, &p, 2, 1, 4096);
    assert_int_equal(TESS_OK, tess_layout_query(layout, &info));
    assert_int_equal(8, info.residues);
    assert_true(info.coverage == 1);
    assert_int_equal(2, info.n_classes);
    tess_layout_release(layout);
}

/* -------------------------------------------------------- random patterns against the formulas */

/* KV-efficiency by its definition: no later query block reads again what one after the key block
 * did not. */
static bool formula_efficient(const spec *x, int64_t blocks) {
    if (x->pattern.flags & TESS_PATTERN_BIDIRECTIONAL) return false;
    for (int32_t h = 0; h < x->layout.n_heads; h++) {
        for (int64_t j = 0; j < blocks; j++) {
            bool ended = false;
            for (int64_t i = j + 1; i < blocks; i++) {
                bool read = formula_block(x, h, i, j, x->layout.max_tokens);
                if (read && ended) return false;
                ended = ended || !read;
            }
        }
    }
    return true;
}

static void check_report(const spec *x, const tess_layout *layout) {
    int64_t tokens = x->layout.max_tokens, blocks = (tokens + block_size(x) - 1) / block_size(x);
    bool both = x->pattern.flags & TESS_PATTERN_BIDIRECTIONAL;
    int64_t kept = 0, dense = 0, seen = 0, visible = 0;
    uint8_t *row = malloc((size_t)blocks + 2);
    assert_non_null(row);
    for (int32_t h = 0; h < x->layout.n_heads; h++) {
        for (int64_t p = -3; p < tokens; p++) {
            for (int64_t t = 0; t < tokens; t++) {
                int got = -1;
                bool wanted = formula_kept(x, h, p, t);
                assert_int_equal(TESS_OK, tess_layout_kept(layout, h, p, t, &got));
                if (got != wanted)
                    fail_msg("%s: head %d, query %lld, key %lld: got %d", spec_text(x), h,
                             (long long)p, (long long)t, got);
                kept += wanted && p >= 0;
                dense += p >= 0 && (both || t <= p);
            }
        }
        for (int64_t i = 0; i < blocks; i++) {
            memset(row, 7, (size_t)blocks + 2);
            assert_int_equal(TESS_OK, tess_layout_row(layout, h, i, row, blocks + 1));
            assert_int_equal(7, row[blocks]);
            for (int64_t j = 0; j < blocks; j++) {
                if (row[j] != formula_block(x, h, i, j, tokens))
                    fail_msg("%s: head %d, row %lld, block %lld: got %d", spec_text(x), h,
                             (long long)i, (long long)j, row[j]);
            }
        }
    }
    free(row);
    for (int64_t i = 0; i < blocks; i++) {
        for (int64_t j = 0; j < (both ? blocks : i + 1); j++) {
            bool any = false;
            for (int32_t h = 0; h < x->layout.n_heads && !any; h++)
                any = formula_block(x, h, i, j, tokens);
            seen += any;
            visible++;
        }
    }
    tess_layout_info info = {.struct_size = sizeof info};
    assert_int_equal(TESS_OK, tess_layout_query(layout, &info));
    double coverage = visible ? (double)seen / (double)visible : 1,
           share = dense ? (double)kept / (double)dense : 1;
    if (info.coverage - coverage > 1e-12 || coverage - info.coverage > 1e-12)
        fail_msg("%s: coverage %.15g, wanted %.15g", spec_text(x), info.coverage, coverage);
    if (info.kept_share - share > 1e-12 || share - info.kept_share > 1e-12)
        fail_msg("%s: kept_share %.15g, wanted %.15g", spec_text(x), info.kept_share, share);
    if (info.kv_efficient != formula_efficient(x, blocks))
        fail_msg("%s: kv_efficient %u", spec_text(x), info.kv_efficient);
    assert_int_equal(blocks, info.n_blocks);
    assert_int_equal(x->layout.n_heads, info.n_heads);
    assert_true(info.host_bytes > 0 && info.host_bytes <= heap.bytes);
}

static void test_against_formulas(void **state) {
    (void)state;
    uint64_t seed = 11;
    for (int n = 0; n < 3000; n++) {
        spec x;
        spec_random(&x, &seed, n % 10 ? 24 : 90);
        tess_layout *layout = spec_layout(&x, runtime);
        check_report(&x, layout);
        tess_layout_release(layout);
        spec_free(&x);
    }
}

/* Residues and classes by counting distinct heads. */
static void test_residues(void **state) {
    (void)state;
    uint64_t seed = 12;
    for (int n = 0; n < 3000; n++) {
        spec x;
        spec_random(&x, &seed, 50);
        if (x.pattern.kind == TESS_PATTERN_S2 && !(x.pattern.flags & TESS_PATTERN_BIDIRECTIONAL)) {
            /* Query block `local + stride` sees of its remote blocks exactly its residue. */
            tess_layout *layout = spec_layout(&x, runtime);
            int64_t i = x.pattern.local + x.pattern.stride - 1, residues = 0;
            for (int64_t r = 0; r < x.pattern.stride; r++) {
                bool any = false;
                for (int32_t h = 0; h < x.layout.n_heads; h++)
                    any = any || formula_kept(&x, h, i * x.pattern.block, r * x.pattern.block);
                residues += any;
            }
            tess_layout_info info = {.struct_size = sizeof info};
            assert_int_equal(TESS_OK, tess_layout_query(layout, &info));
            if (info.residues != residues)
                fail_msg("%s: residues %u, wanted %lld", spec_text(&x), info.residues,
                         (long long)residues);
            assert_int_equal(x.pattern.stride, info.residues_total);
            tess_layout_release(layout);
        }
        spec_free(&x);
    }
}

/* ------------------------------------------------------------------ sizes */

/* Layouts cost nothing per token, and their sums do not overflow. */
static void test_large(void **state) {
    (void)state;
    tess_pattern p = s2_pattern(1, 1, 2, 0);
    uint64_t before = heap.bytes;
    tess_layout *layout = make_layout(runtime, &p, 1, 1, INT32_MAX);
    assert_true(heap.bytes - before < 8192);
    tess_layout_info info = {.struct_size = sizeof info};
    assert_int_equal(TESS_OK, tess_layout_query(layout, &info));
    assert_true(info.kept_share > 0.49 && info.kept_share < 0.51);
    tess_layout_release(layout);
    for (int flags = 0; flags < 2; flags++) { /* 2^31 - 1 blocks of 2^31 - 1 tokens */
        const int64_t most = (int64_t)INT32_MAX * INT32_MAX;
        p = s2_pattern(INT32_MAX, 3, 7, 0);
        p.flags = flags ? TESS_PATTERN_BIDIRECTIONAL : 0;
        layout = make_layout(runtime, &p, 7, 7, most);
        assert_int_equal(TESS_OK, tess_layout_query(layout, &info));
        assert_true(info.kept_share > 0.142 && info.kept_share < 0.143);
        assert_true(flags ? info.coverage < 0.15 : info.coverage == 1);
        int kept = -1;
        assert_int_equal(TESS_OK, tess_layout_kept(layout, 0, INT64_MAX, most - 1, &kept));
        assert_int_equal(TESS_OK, tess_layout_kept(layout, 0, INT64_MIN, most - 1, &kept));
        if (!flags) assert_int_equal(0, kept);
        int64_t slot = -1;
        assert_int_equal(TESS_OK, tess_layout_slot(layout, 6, INT32_MAX - 1, &slot));
        tess_layout_release(layout);
        p = (tess_pattern){.struct_size = sizeof p,
                           .kind = TESS_PATTERN_WINDOW,
                           .flags = p.flags,
                           .block = INT32_MAX};
        p.left = p.right = INT64_MAX;
        p.sinks = INT64_MAX;
        layout = make_layout(runtime, &p, 1, 1, most);
        assert_int_equal(TESS_OK, tess_layout_query(layout, &info));
        assert_true(info.kept_share == 1 && info.coverage == 1);
        assert_int_equal(TESS_OK, tess_layout_kept(layout, 0, INT64_MAX, most - 1, &kept));
        assert_int_equal(1, kept);
        tess_layout_release(layout);
    }
    for (int side = 0; side < 2; side++) { /* a window without one of its bounds */
        p = (tess_pattern){.struct_size = sizeof p,
                           .kind = TESS_PATTERN_WINDOW,
                           .flags = TESS_PATTERN_BIDIRECTIONAL,
                           .left = side ? 5 : -1,
                           .right = side ? -1 : 5};
        layout = make_layout(runtime, &p, 1, 1, 100);
        int before_all = -1, after_all = -1;
        assert_int_equal(TESS_OK, tess_layout_kept(layout, 0, INT64_MIN, 50, &before_all));
        assert_int_equal(TESS_OK, tess_layout_kept(layout, 0, INT64_MAX, 50, &after_all));
        assert_int_equal(side, before_all);
        assert_int_equal(!side, after_all);
        tess_layout_release(layout);
    }
    p = s2_pattern(2, 1, 2, 0);
    tess_layout_desc d = {.struct_size = sizeof d,
                          .pattern = &p,
                          .n_heads = 1,
                          .n_kv_heads = 1,
                          .max_tokens = 2 * (int64_t)INT32_MAX + 1};
    assert_error(tess_layout_create(runtime, &d, &layout), TESS_ERROR_UNSUPPORTED,
                 "tess_layout_create", "max_tokens");
    d.max_tokens--;
    assert_int_equal(TESS_OK, tess_layout_create(runtime, &d, &layout));
    tess_layout_release(layout);
    /* As many heads and classes as there can be. */
    p = s2_pattern(1, 1, INT32_MAX, INT32_MAX);
    layout = make_layout(runtime, &p, 65535, 1, 100);
    assert_int_equal(65535, layout->n_classes);
    tess_layout_release(layout);
}

/* ------------------------------------------------------------------ refusals */

typedef struct refusal {
    const char *field;
    tess_status status;
    void (*spoil)(tess_layout_desc *d, tess_pattern *p);
} refusal;

#define SPOIL(name, statement)                               \
    static void name(tess_layout_desc *d, tess_pattern *p) { \
        (void)d;                                             \
        (void)p;                                             \
        statement;                                           \
    }
SPOIL(flags_set, d->flags = 1)
SPOIL(reserved_set, d->reserved = 1)
SPOIL(no_heads, d->n_heads = 0)
SPOIL(many_heads, d->n_heads = 65536)
SPOIL(no_kv_heads, d->n_kv_heads = 0)
SPOIL(odd_heads, d->n_kv_heads = 3)
SPOIL(negative_first, d->head_first = -1)
SPOIL(huge_first, d->head_first = INT32_MAX - 3)
SPOIL(few_total, d->heads_total = 3)
SPOIL(negative_total, d->heads_total = -1)
SPOIL(odd_kv_total, d->kv_heads_total = 3)
SPOIL(negative_kv_total, d->kv_heads_total = -1)
SPOIL(missing_kv_total, d->n_kv_heads = 1; d->heads_total = 7; p->flags = TESS_PATTERN_PER_KV_HEAD;
      d->n_kv_heads = 2)
SPOIL(uneven_kv_total, d->n_kv_heads = 1; d->heads_total = 9; p->flags = TESS_PATTERN_PER_KV_HEAD)
static const int32_t ids_high[] = {4, 5, 6, 8}, ids_low[] = {-1, 0, 2, 3},
                     ids_mixed[] = {0, 2, 4, 5}, ids_twice[] = {0, 1, 0, 1},
                     ids_pair[] = {6, 6, 0, 1}, ids_fine[] = {7, 6, 0, 1};
static void list_heads(tess_layout_desc *d, const int32_t *ids) {
    d->heads_total = 8;
    d->head_ids = ids;
}
SPOIL(id_past_total, list_heads(d, ids_high))
SPOIL(id_past_default, list_heads(d, ids_fine); d->heads_total = 0)
SPOIL(id_negative, list_heads(d, ids_low))
SPOIL(id_of_other_group, list_heads(d, ids_mixed))
SPOIL(id_of_other_group_dense, list_heads(d, ids_mixed); p->kind = TESS_PATTERN_DENSE)
SPOIL(id_of_small_group, list_heads(d, ids_fine); d->kv_heads_total = 8)
SPOIL(ids_far_twice, list_heads(d, ids_twice))
SPOIL(ids_near_twice, list_heads(d, ids_pair))
SPOIL(ids_and_first, list_heads(d, ids_fine); d->head_first = 1)
SPOIL(ids_uneven_total, list_heads(d, ids_fine); d->heads_total = 9)
SPOIL(pattern_size, p->struct_size = 0)
SPOIL(negative_tokens, d->max_tokens = -1)
SPOIL(negative_chunk, d->max_chunk = -1)
SPOIL(bad_kind, p->kind = 4)
SPOIL(bad_flags, p->flags = 8)
SPOIL(flags_of_s2, p->kind = TESS_PATTERN_DENSE; p->flags = TESS_PATTERN_HOMOGENEOUS)
SPOIL(no_block, p->block = 0)
SPOIL(no_mask_block, p->kind = TESS_PATTERN_BLOCKS; p->block = 0)
SPOIL(negative_block, p->kind = TESS_PATTERN_DENSE; p->block = -1)
SPOIL(no_local, p->local = 0)
SPOIL(no_stride, p->stride = 0)
SPOIL(negative_offset, p->offset = -1)
SPOIL(negative_dense, p->dense_heads = -1)
SPOIL(many_dense, p->dense_heads = 5)
SPOIL(right_causal, p->local_right = 1)
SPOIL(right_negative, p->flags = TESS_PATTERN_BIDIRECTIONAL; p->local_right = -1)
SPOIL(right_dense, p->kind = TESS_PATTERN_DENSE; p->local_right = 1)
SPOIL(both_per_kv, p->flags = TESS_PATTERN_BIDIRECTIONAL | TESS_PATTERN_PER_KV_HEAD)
SPOIL(both_homogeneous, p->flags = TESS_PATTERN_BIDIRECTIONAL | TESS_PATTERN_HOMOGENEOUS)
SPOIL(both_offset, p->flags = TESS_PATTERN_BIDIRECTIONAL; p->offset = 1)
SPOIL(window_left, p->kind = TESS_PATTERN_WINDOW; p->left = -2)
SPOIL(window_right, p->kind = TESS_PATTERN_WINDOW; p->right = -2)
SPOIL(window_sinks, p->kind = TESS_PATTERN_WINDOW; p->sinks = -1)
SPOIL(no_mask, p->kind = TESS_PATTERN_BLOCKS; p->mask = NULL)
SPOIL(mask_heads, p->kind = TESS_PATTERN_BLOCKS; p->mask_heads = 3)
SPOIL(mask_rows, p->kind = TESS_PATTERN_BLOCKS; p->mask_query_blocks = -1)
SPOIL(mask_columns, p->kind = TESS_PATTERN_BLOCKS; p->mask_key_blocks = -1)
SPOIL(mask_many_rows, p->kind = TESS_PATTERN_BLOCKS; p->mask_query_blocks = INT64_C(1) << 31)
SPOIL(mask_many_columns, p->kind = TESS_PATTERN_BLOCKS; p->mask_key_blocks = INT64_C(1) << 31)
SPOIL(mask_overflow, p->kind = TESS_PATTERN_BLOCKS;
      p->mask_query_blocks = p->mask_key_blocks = INT32_MAX; p->mask_heads = 4)
SPOIL(mask_half_overflow, p->kind = TESS_PATTERN_BLOCKS;
      p->mask_query_blocks = p->mask_key_blocks = INT32_MAX; p->mask_heads = d->n_heads = 8)
SPOIL(pattern_null, d->pattern = NULL)

static void test_refusals(void **state) {
    (void)state;
    static const refusal list[] = {
        {"flags", TESS_ERROR_INVALID, flags_set},
        {"reserved", TESS_ERROR_INVALID, reserved_set},
        {"n_heads", TESS_ERROR_INVALID, no_heads},
        {"n_heads", TESS_ERROR_INVALID, many_heads},
        {"n_kv_heads", TESS_ERROR_INVALID, no_kv_heads},
        {"n_heads", TESS_ERROR_INVALID, odd_heads},
        {"head_first", TESS_ERROR_INVALID, negative_first},
        {"head_first", TESS_ERROR_INVALID, huge_first},
        {"heads_total", TESS_ERROR_INVALID, few_total},
        {"heads_total", TESS_ERROR_INVALID, negative_total},
        {"kv_heads_total", TESS_ERROR_INVALID, odd_kv_total},
        {"kv_heads_total", TESS_ERROR_INVALID, negative_kv_total},
        {"kv_heads_total", TESS_ERROR_INVALID, missing_kv_total},
        {"kv_heads_total", TESS_ERROR_INVALID, uneven_kv_total},
        {"head_ids", TESS_ERROR_INVALID, id_past_total},
        {"head_ids", TESS_ERROR_INVALID, id_past_default},
        {"head_ids", TESS_ERROR_INVALID, id_negative},
        {"head_ids", TESS_ERROR_INVALID, id_of_other_group},
        {"head_ids", TESS_ERROR_INVALID, id_of_other_group_dense},
        {"head_ids", TESS_ERROR_INVALID, id_of_small_group},
        {"head_ids", TESS_ERROR_INVALID, ids_far_twice},
        {"head_ids", TESS_ERROR_INVALID, ids_near_twice},
        {"head_first", TESS_ERROR_INVALID, ids_and_first},
        {"kv_heads_total", TESS_ERROR_INVALID, ids_uneven_total},
        {"pattern.struct_size", TESS_ERROR_VERSION, pattern_size},
        {"max_tokens", TESS_ERROR_INVALID, negative_tokens},
        {"max_chunk", TESS_ERROR_INVALID, negative_chunk},
        {"kind", TESS_ERROR_INVALID, bad_kind},
        {"flags", TESS_ERROR_INVALID, bad_flags},
        {"flags", TESS_ERROR_INVALID, flags_of_s2},
        {"block", TESS_ERROR_INVALID, no_block},
        {"block", TESS_ERROR_INVALID, no_mask_block},
        {"block", TESS_ERROR_INVALID, negative_block},
        {"local", TESS_ERROR_INVALID, no_local},
        {"stride", TESS_ERROR_INVALID, no_stride},
        {"offset", TESS_ERROR_INVALID, negative_offset},
        {"dense_heads", TESS_ERROR_INVALID, negative_dense},
        {"dense_heads", TESS_ERROR_INVALID, many_dense},
        {"local_right", TESS_ERROR_INVALID, right_causal},
        {"local_right", TESS_ERROR_INVALID, right_negative},
        {"local_right", TESS_ERROR_INVALID, right_dense},
        {"flags", TESS_ERROR_INVALID, both_per_kv},
        {"flags", TESS_ERROR_INVALID, both_homogeneous},
        {"offset", TESS_ERROR_INVALID, both_offset},
        {"left", TESS_ERROR_INVALID, window_left},
        {"right", TESS_ERROR_INVALID, window_right},
        {"sinks", TESS_ERROR_INVALID, window_sinks},
        {"mask", TESS_ERROR_INVALID, no_mask},
        {"mask_heads", TESS_ERROR_INVALID, mask_heads},
        {"mask_query_blocks", TESS_ERROR_INVALID, mask_rows},
        {"mask_key_blocks", TESS_ERROR_INVALID, mask_columns},
        {"mask_query_blocks", TESS_ERROR_UNSUPPORTED, mask_many_rows},
        {"mask_key_blocks", TESS_ERROR_UNSUPPORTED, mask_many_columns},
        {"mask", TESS_ERROR_INVALID, mask_overflow},
        {"mask", TESS_ERROR_INVALID, mask_half_overflow},
        {"pattern", TESS_ERROR_INVALID, pattern_null},
    };
    for (size_t n = 0; n < sizeof list / sizeof *list; n++) {
        const uint8_t mask[4] = {1, 0, 1, 1};
        tess_pattern p = s2_pattern(16, 2, 4, 0);
        p.mask = mask;
        p.mask_heads = 1;
        p.mask_query_blocks = p.mask_key_blocks = 2;
        tess_layout_desc d = {.struct_size = sizeof d,
                              .pattern = &p,
                              .n_heads = 4,
                              .n_kv_heads = 2,
                              .max_tokens = 100};
        uint64_t live = heap.live;
        tess_layout *layout = NULL;
        list[n].spoil(&d, &p);
        assert_error(tess_layout_create(runtime, &d, &layout), list[n].status, "tess_layout_create",
                     list[n].field);
        assert_null(layout);
        assert_int_equal(live, heap.live);
    }
}

/* Messages about a list name the head and the ids at fault. */
static void test_list_messages(void **state) {
    (void)state;
    static const struct {
        const int32_t ids[4];
        const char *has;
    } list[] = {
        {{4, 5, 6, 8}, "must be 0 to 7 (heads_total - 1), got 8 for head 3"},
        {{0, 1, 4, 3}, "head 3 has id 3, which is not of the group of 2 query heads that id 4"},
        {{2, 3, 3, 2}, "heads 1 and 2 both have id 3"},
    };
    const tess_pattern p = s2_pattern(16, 2, 4, 0);
    for (size_t n = 0; n < sizeof list / sizeof *list; n++) {
        const tess_layout_desc d = {.struct_size = sizeof d,
                                    .pattern = &p,
                                    .n_heads = 4,
                                    .n_kv_heads = 2,
                                    .heads_total = 8,
                                    .head_ids = list[n].ids};
        tess_layout *layout = NULL;
        assert_error(tess_layout_create(runtime, &d, &layout), TESS_ERROR_INVALID,
                     "tess_layout_create", "head_ids");
        assert_error_has(list[n].has);
    }
}

/* A rank with fewer heads than the model has for a kv head, and two kv heads here that are one of
 * the model: each head follows its id, and takes the row of the whole model's head. */
static void test_listed_heads(void **state) {
    (void)state;
    enum { TOTAL = 24, BLOCKS = 40 };
    static const struct {
        int32_t n_heads, n_kv_heads, kv_total, ids[12];
    } list[] = {
        {3, 1, 4, {11, 6, 8}},
        {4, 2, 4, {3, 1, 0, 5}},
        {12, 2, 4, {23, 22, 21, 20, 19, 18, 0, 1, 2, 4, 3, 5}},
        {6, 6, 0, {23, 0, 9, 8, 7, 22}},
    };
    for (size_t n = 0; n < sizeof list / sizeof *list; n++)
        for (uint32_t per_kv = 0; per_kv < 2; per_kv++) {
            tess_pattern p = s2_pattern(16, 2, 31, 1);
            p.dense_heads = 2;
            p.flags = per_kv ? TESS_PATTERN_PER_KV_HEAD : 0;
            tess_layout_desc d = {.struct_size = sizeof d,
                                  .pattern = &p,
                                  .n_heads = TOTAL,
                                  .n_kv_heads = list[n].kv_total ? list[n].kv_total : TOTAL,
                                  .max_tokens = 16 * BLOCKS};
            tess_layout *whole = NULL, *part = NULL;
            assert_int_equal(TESS_OK, tess_layout_create(runtime, &d, &whole));
            d.n_heads = list[n].n_heads;
            d.n_kv_heads = list[n].n_kv_heads;
            d.heads_total = TOTAL;
            d.kv_heads_total = list[n].kv_total;
            d.head_ids = list[n].ids;
            if (tess_layout_create(runtime, &d, &part) != TESS_OK)
                fail_msg("list %d: %s", (int)n, tess_last_error());
            for (int32_t h = 0; h < d.n_heads; h++)
                for (int64_t i = 0; i < BLOCKS; i++) {
                    uint8_t a[BLOCKS], b[BLOCKS];
                    assert_int_equal(TESS_OK, tess_layout_row(whole, list[n].ids[h], i, a, BLOCKS));
                    assert_int_equal(TESS_OK, tess_layout_row(part, h, i, b, BLOCKS));
                    assert_memory_equal(a, b, BLOCKS);
                }
            tess_layout_release(part);
            tess_layout_release(whole);
        }
}

/* What a compact cache keeps follows the ids: each kv head as in the whole model, and kv heads with
 * a dense head in a storage group of their own, wherever they stand. */
static void test_listed_storage(void **state) {
    (void)state;
    static const int32_t ids[] = {14, 15, 2, 3, 12, 13, 0, 1};
    tess_pattern p = s2_pattern(16, 2, 16, 0);
    p.dense_heads = 2;
    tess_layout_desc d = {.struct_size = sizeof d,
                          .pattern = &p,
                          .n_heads = 16,
                          .n_kv_heads = 8,
                          .max_tokens = 16 * 200};
    tess_layout *whole = NULL, *part = NULL;
    assert_int_equal(TESS_OK, tess_layout_create(runtime, &d, &whole));
    d.n_heads = 8;
    d.n_kv_heads = 4;
    d.heads_total = 16;
    d.head_ids = ids;
    assert_int_equal(TESS_OK, tess_layout_create(runtime, &d, &part));
    for (int32_t g = 0; g < 4; g++) {
        tess_kv_info a = {.struct_size = sizeof a}, b = {.struct_size = sizeof b};
        assert_int_equal(TESS_OK, tess_layout_kv(whole, ids[2 * g] / 2, &a));
        assert_int_equal(TESS_OK, tess_layout_kv(part, g, &b));
        assert_memory_equal(&a, &b, sizeof a);
        for (int64_t block = 0; block < 200; block++) {
            int64_t slot_a = -1, slot_b = -2;
            assert_int_equal(TESS_OK, tess_layout_slot(whole, ids[2 * g] / 2, block, &slot_a));
            assert_int_equal(TESS_OK, tess_layout_slot(part, g, block, &slot_b));
            assert_int_equal(slot_a, slot_b);
        }
    }
    tess_layout_info info = {.struct_size = sizeof info};
    assert_int_equal(TESS_OK, tess_layout_query(part, &info));
    assert_int_equal(2, info.n_storage);
    assert_int_equal(7, info.n_classes);
    tess_layout_release(part);
    tess_layout_release(whole);
}

#define REFUSED(function, arguments, field) \
    assert_error(function arguments, TESS_ERROR_INVALID, #function, field)

static void test_bad_arguments(void **state) {
    (void)state;
    tess_pattern p = s2_pattern(16, 2, 4, 0);
    tess_layout *layout = make_layout(runtime, &p, 4, 2, 100);
    tess_layout_desc d = {.struct_size = sizeof d, .pattern = &p, .n_heads = 4, .n_kv_heads = 2};
    tess_kv_info kv = {.struct_size = sizeof kv};
    tess_layout_info info = {.struct_size = 4};
    uint8_t row[7];
    int64_t slot;
    int kept;
    assert_int_equal(TESS_ERROR_INVALID, tess_layout_create(NULL, &d, &layout));
    REFUSED(tess_layout_create, (runtime, &d, NULL), "layout");
    assert_int_equal(TESS_ERROR_INVALID, tess_layout_create(runtime, NULL, &layout));
    p.struct_size = 3;
    assert_int_equal(TESS_ERROR_VERSION, tess_layout_create(runtime, &d, &layout));
    REFUSED(tess_layout_query, (NULL, &info), "layout");
    assert_int_equal(TESS_ERROR_VERSION, tess_layout_query(layout, &info));
    REFUSED(tess_layout_kv, (NULL, 0, &kv), "layout");
    REFUSED(tess_layout_kv, (layout, 2, &kv), "kv_head");
    REFUSED(tess_layout_kv, (layout, -1, &kv), "kv_head");
    REFUSED(tess_layout_slot, (layout, 2, 0, &slot), "kv_head");
    REFUSED(tess_layout_slot, (layout, 0, 7, &slot), "block");
    REFUSED(tess_layout_slot, (layout, 0, -1, &slot), "block");
    REFUSED(tess_layout_slot, (layout, 0, 0, NULL), "slot");
    REFUSED(tess_layout_row, (NULL, 0, 0, row, 7), "layout");
    REFUSED(tess_layout_row, (layout, 4, 0, row, 7), "head");
    REFUSED(tess_layout_row, (layout, -1, 0, row, 7), "head");
    REFUSED(tess_layout_row, (layout, 0, 7, row, 7), "query_block");
    REFUSED(tess_layout_row, (layout, 0, -1, row, 7), "query_block");
    REFUSED(tess_layout_row, (layout, 0, 0, NULL, 7), "row");
    REFUSED(tess_layout_row, (layout, 0, 0, row, 6), "row_blocks");
    REFUSED(tess_layout_kept, (layout, 4, 0, 0, &kept), "head");
    REFUSED(tess_layout_kept, (layout, 0, 0, 100, &kept), "key");
    REFUSED(tess_layout_kept, (layout, 0, 0, -1, &kept), "key");
    REFUSED(tess_layout_kept, (layout, 0, 0, 0, NULL), "kept");
    tess_layout_release(layout);
    tess_layout_release(NULL);
}

/* Fields of other kinds do not matter, and heads that share a mask are found. */
static void test_classes(void **state) {
    (void)state;
    uint64_t seed = 5;
    uint8_t mask[6 * 10];
    tess_pattern p = mask_pattern(4, mask, 6, 2, 5);
    p.left = 77;
    p.stride = -9;
    for (int n = 0; n < 60; n++) mask[n] = (uint8_t)test_between(&seed, 0, 1);
    memcpy(mask + 20, mask, 10);
    memcpy(mask + 50, mask + 10, 10);
    mask[50 + 4] ^= 1; /* past the diagonal: of no effect in causal order */
    tess_layout *layout = make_layout(runtime, &p, 6, 3, 20);
    assert_int_equal(layout->head_class[2], layout->head_class[0]);
    assert_int_equal(layout->head_class[5], layout->head_class[1]);
    tess_layout_release(layout);
    p.flags = TESS_PATTERN_BIDIRECTIONAL;
    layout = make_layout(runtime, &p, 6, 3, 20);
    assert_int_equal(layout->head_class[2], layout->head_class[0]);
    assert_true(layout->head_class[5] != layout->head_class[1]);
    tess_layout_release(layout);
}

/* ------------------------------------------------------------------ failing memory */

static void test_failing_memory(void **state) {
    (void)state;
    spec x;
    uint64_t seed = 14;
    for (int n = 0; n < 60; n++) {
        spec_random(&x, &seed, 80);
        x.layout.pattern = &x.pattern;
        for (int sticky = 0; sticky < 2; sticky++) {
            for (uint64_t k = 1;; k++) {
                uint64_t live = heap.live, bytes = heap.bytes;
                tess_layout *layout = NULL;
                heap.calls = 0;
                heap.fail_at = k;
                heap.sticky = sticky;
                tess_status status = tess_layout_create(runtime, &x.layout, &layout);
                heap.fail_at = 0;
                if (status == TESS_OK) {
                    tess_layout_release(layout);
                } else {
                    assert_int_equal(TESS_ERROR_OUT_OF_MEMORY, status);
                    assert_null(layout);
                }
                assert_int_equal(live, heap.live);
                assert_int_equal(bytes, heap.bytes);
                if (status == TESS_OK) break;
            }
        }
        spec_free(&x);
    }
}

int main(void) {
    return RUN_TESTS_BETWEEN(runtime_setup, runtime_teardown, TEST(test_golden_rows),
                             TEST(test_phi3_storage), TEST(test_coverage_of_residues),
                             TEST(test_against_formulas), TEST(test_residues), TEST(test_large),
                             TEST(test_refusals), TEST(test_list_messages), TEST(test_listed_heads),
                             TEST(test_listed_storage), TEST(test_bad_arguments),
                             TEST(test_classes), TEST(test_failing_memory));
}
