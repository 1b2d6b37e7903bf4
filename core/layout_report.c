/* SPDX-License-Identifier: Apache-2.0 */
/* What a layout reports of its pattern: coverage, KV-efficiency, kept pairs, and single rows and
 * pairs. */
#include <string.h>

#include "kv_slots.h"

/* Without 128-bit integers, sums of pairs are rounded and may come out a little below 0 or above
 * the whole. */
static double share_of(double part, double whole) {
    const double share = part / whole;
    return share < 0 ? 0 : share > 1 ? 1 : share;
}

static bool in_causal_order(const tess_layout *x) {
    return !(x->pattern.flags & TESS_PATTERN_BIDIRECTIONAL);
}

/* ------------------------------------------------------------------ examination at creation */

/* Pairs of blocks that some class of a BLOCKS layout keeps. For each row the columns of all classes
 * are marked, counted and cleared again. */
static tess_status union_of_rows(const tess_layout *x, const char *function, tess_wide *pairs) {
    int64_t rows = smaller(x->pattern.mask_query_blocks, x->n_blocks),
            columns = smaller(x->pattern.mask_key_blocks, x->n_blocks);
    uint8_t *mark = tess_mem_alloc(x->runtime, (size_t)columns + 1, 64);
    if (!mark)
        return tess_fail(TESS_ERROR_OUT_OF_MEMORY, "%s: mask: no memory for %lld columns", function,
                         (long long)columns);
    memset(mark, 0, (size_t)columns + 1);
    *pairs = 0;
    for (int64_t i = 0; i < rows; i++) {
        for (uint32_t c = 0; c < x->n_classes; c++) {
            int64_t count;
            const uint32_t *column = tess_mask_row(&x->patterns[c].rows, i, &count);
            for (int64_t n = 0; n < count; n++) {
                *pairs += !mark[column[n]];
                mark[column[n]] = 1;
            }
        }
        for (uint32_t c = 0; c < x->n_classes; c++) {
            int64_t count;
            const uint32_t *column = tess_mask_row(&x->patterns[c].rows, i, &count);
            for (int64_t n = 0; n < count; n++) mark[column[n]] = 0;
        }
    }
    tess_mem_free(x->runtime, mark, (size_t)columns + 1);
    return TESS_OK;
}

static tess_status examine_coverage(tess_layout *x, const char *function) {
    tess_head_pattern dense;
    memset(&dense, 0, sizeof dense);
    dense.kind = TESS_HEAD_DENSE;
    dense.causal = in_causal_order(x);
    dense.block = x->pattern.block;
    dense.left = TESS_UNBOUNDED;
    dense.right = dense.causal ? 0 : TESS_UNBOUNDED;
    tess_wide visible = tess_head_block_pairs(&dense, x->max_tokens), seen = 0;
    bool strided = x->pattern.kind == TESS_PATTERN_S2;
    x->residues = strided ? (in_causal_order(x) ? x->n_classes : 1) : 0;
    for (uint32_t c = 0; c < x->n_classes; c++) {
        if (x->patterns[c].kind == TESS_HEAD_DENSE) {
            if (strided) x->residues = (uint32_t)x->pattern.stride;
            seen = visible;
        }
    }
    if (seen == visible) {
        x->coverage = 1;
        return TESS_OK;
    }
    if (x->pattern.kind == TESS_PATTERN_BLOCKS) {
        TESS_RETURN_IF_ERROR(union_of_rows(x, function, &seen));
    } else {
        /* Classes of S2 have their local blocks in common and nothing else. */
        tess_head_pattern local = x->patterns[0];
        if (local.kind == TESS_HEAD_STRIDED) {
            local.kind = TESS_HEAD_WINDOW;
            local.left = (local.local - 1) * local.block;
        }
        tess_wide shared = tess_head_block_pairs(&local, x->max_tokens);
        for (uint32_t c = 0; c < x->n_classes; c++)
            seen += tess_head_block_pairs(&x->patterns[c], x->max_tokens) - shared;
        seen += shared;
    }
    x->coverage = share_of((double)seen, (double)visible);
    return TESS_OK;
}

tess_status tess_layout_examine(tess_layout *x, const char *function) {
    x->kv_efficient = in_causal_order(x);
    for (uint32_t c = 0; c < x->n_classes && x->kv_efficient; c++)
        if (x->patterns[c].kind == TESS_HEAD_BLOCKS)
            x->kv_efficient = tess_mask_kv_efficient(&x->patterns[c].rows, x->n_blocks);
    TESS_RETURN_IF_ERROR(examine_coverage(x, function));
    return tess_kv_slots_examine(x, function);
}

/* ------------------------------------------------------------------ public */

tess_status tess_layout_query(const tess_layout *x, tess_layout_info *info) {
    static const char *const function = "tess_layout_query";
    TESS_RETURN_IF_ERROR(tess_layout_check(x, function));
    tess_layout_info full;
    memset(&full, 0, sizeof full);
    full.n_classes = x->n_classes;
    full.n_heads = (uint32_t)x->n_heads;
    full.n_kv_heads = (uint32_t)x->n_kv_heads;
    full.max_tokens = x->max_tokens;
    full.n_blocks = x->n_blocks;
    full.block = x->pattern.block;
    full.kv_efficient = x->kv_efficient;
    full.residues = x->residues;
    full.residues_total = x->pattern.kind == TESS_PATTERN_S2 ? (uint32_t)x->pattern.stride : 0;
    full.coverage = x->coverage;
    full.n_storage = x->n_storages;
    double kept = 0, tokens = (double)x->max_tokens;
    double dense = in_causal_order(x) ? tokens * (tokens + 1) / 2 : tokens * tokens;
    for (uint32_t c = 0; c < x->n_classes; c++)
        kept += (double)x->class_heads[c] *
                (double)tess_head_pairs(&x->patterns[c], 0, x->max_tokens, x->max_tokens);
    full.kept_share = x->max_tokens ? share_of(kept, dense * x->n_heads) : 1;
    full.host_bytes = sizeof *x + x->memory_bytes + x->mask.bytes + x->mask.rows_bytes +
                      x->stores_bytes + x->fixed_bytes;
    return tess_info_write(function, info, &full, TESS_LAYOUT_INFO);
}

static tess_status check_head(const tess_layout *x, const char *function, int32_t head) {
    TESS_RETURN_IF_ERROR(tess_layout_check(x, function));
    TESS_RETURN_IF_ERROR(tess_check_index(function, "head", head, x->n_heads));
    return TESS_OK;
}

tess_status tess_layout_row(const tess_layout *x, int32_t head, int64_t query_block, uint8_t *row,
                            int64_t row_blocks) {
    static const char *const function = "tess_layout_row";
    TESS_RETURN_IF_ERROR(check_head(x, function, head));
    TESS_RETURN_IF_ERROR(tess_check_index(function, "query_block", query_block, x->n_blocks));
    if (!row) return tess_invalid("%s: row: must not be NULL", function);
    if (row_blocks < x->n_blocks)
        return tess_invalid("%s: row_blocks: must be at least %lld, got %lld", function,
                            (long long)x->n_blocks, (long long)row_blocks);
    tess_head_row(&x->patterns[x->head_class[head]], query_block, x->max_tokens, row);
    return TESS_OK;
}

tess_status tess_layout_kept(const tess_layout *x, int32_t head, int64_t query, int64_t key,
                             int *kept) {
    static const char *const function = "tess_layout_kept";
    TESS_RETURN_IF_ERROR(check_head(x, function, head));
    TESS_RETURN_IF_ERROR(tess_check_index(function, "key", key, x->max_tokens));
    if (!kept) return tess_invalid("%s: kept: must not be NULL", function);
    *kept = tess_head_keeps(&x->patterns[x->head_class[head]], query, key);
    return TESS_OK;
}
