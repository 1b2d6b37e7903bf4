/* SPDX-License-Identifier: Apache-2.0 */
#include "layout.h"

#include <stdlib.h>
#include <string.h>

#include "head_ids.h"

/* ------------------------------------------------------------------ checks */

/* Fills the defaults of the heads, and the number of blocks once the pattern is checked. */
static tess_status check_heads(const char *function, tess_layout *x, const tess_layout_desc *d) {
    if (d->flags != 0)
        return tess_invalid("%s: flags: must be 0, got 0x%x", function, (unsigned)d->flags);
    if (d->reserved != 0)
        return tess_invalid("%s: reserved: must be 0, got %d", function, (int)d->reserved);
    if (d->n_heads < 1 || d->n_heads > 65535)
        return tess_invalid("%s: n_heads: must be 1 to 65535, got %d", function, (int)d->n_heads);
    if (d->n_kv_heads < 1)
        return tess_invalid("%s: n_kv_heads: must be at least 1, got %d", function,
                            (int)d->n_kv_heads);
    if (d->n_heads % d->n_kv_heads != 0)
        return tess_invalid("%s: n_heads: must be a multiple of n_kv_heads (%d), got %d", function,
                            (int)d->n_kv_heads, (int)d->n_heads);
    TESS_RETURN_IF_ERROR(tess_check_not_negative(function, "head_first", d->head_first));
    if (d->head_ids && d->head_first != 0)
        return tess_invalid("%s: head_first: must be 0 with head_ids, got %d", function,
                            (int)d->head_first);
    int64_t end = (int64_t)d->head_first + d->n_heads;
    if (end > INT32_MAX)
        return tess_invalid("%s: head_first: head_first + n_heads overflows, got %d", function,
                            (int)d->head_first);
    if (d->heads_total != 0 && d->heads_total < end)
        return tess_invalid("%s: heads_total: must be at least %lld (head_first + n_heads), got %d",
                            function, (long long)end, (int)d->heads_total);
    TESS_RETURN_IF_ERROR(tess_check_not_negative(function, "max_tokens", d->max_tokens));
    TESS_RETURN_IF_ERROR(tess_check_not_negative(function, "max_chunk", d->max_chunk));
    x->n_heads = d->n_heads;
    x->n_kv_heads = d->n_kv_heads;
    x->head_first = d->head_first;
    x->heads_total = d->heads_total ? d->heads_total : (int32_t)end;
    x->max_tokens = d->max_tokens;
    x->max_chunk = d->max_chunk ? d->max_chunk : 1;
    if (d->kv_heads_total < 0 || (d->kv_heads_total > 0 && x->heads_total % d->kv_heads_total != 0))
        return tess_invalid("%s: kv_heads_total: must divide heads_total (%d), got %d", function,
                            (int)x->heads_total, (int)d->kv_heads_total);
    x->kv_heads_total = d->kv_heads_total;
    return TESS_OK;
}

static tess_status check_blocks(const char *function, tess_layout *x, bool has_ids) {
    int64_t block = x->pattern.block;
    x->n_blocks = x->max_tokens / block + (x->max_tokens % block != 0);
    if (x->n_blocks > INT32_MAX)
        return tess_unsupported(
            "%s: max_tokens: %lld tokens are more than 2147483647 blocks of %lld", function,
            (long long)x->max_tokens, (long long)block);
    if (x->kv_heads_total == 0) {
        /* Only patterns per kv head and lists of heads need it. For the others it stays 0 where the
         * heads do not split evenly. */
        int32_t group = x->n_heads / x->n_kv_heads;
        if (x->heads_total % group == 0)
            x->kv_heads_total = x->heads_total / group;
        else if (has_ids || (x->pattern.flags & TESS_PATTERN_PER_KV_HEAD))
            return tess_invalid(
                "%s: kv_heads_total: must be given, since %d heads, %d of each kv head, make no "
                "whole number of kv heads",
                function, (int)x->heads_total, (int)group);
    }
    return TESS_OK;
}

/* ------------------------------------------------------------------ classes */

static void class_pattern(const tess_layout *x, bool dense, int64_t first,
                          tess_head_pattern *pattern) {
    const tess_pattern *p = &x->pattern;
    memset(pattern, 0, sizeof *pattern);
    pattern->causal = !(p->flags & TESS_PATTERN_BIDIRECTIONAL);
    pattern->block = p->block;
    pattern->left = TESS_UNBOUNDED;
    pattern->right = pattern->causal ? 0 : TESS_UNBOUNDED;
    pattern->kind = TESS_HEAD_DENSE;
    if (p->kind == TESS_PATTERN_S2 && !dense) {
        pattern->kind = pattern->causal ? TESS_HEAD_STRIDED : TESS_HEAD_STRIDED_BOTH;
        pattern->local = p->local;
        pattern->local_right = p->local_right;
        pattern->stride = p->stride;
        pattern->first = first;
    } else if (p->kind == TESS_PATTERN_WINDOW) {
        int64_t left = p->left < 0 || p->left > TESS_UNBOUNDED ? TESS_UNBOUNDED : p->left;
        int64_t right = p->right < 0 || p->right > TESS_UNBOUNDED ? TESS_UNBOUNDED : p->right;
        if (left == TESS_UNBOUNDED && (pattern->causal || right == TESS_UNBOUNDED)) return;
        pattern->kind = TESS_HEAD_WINDOW;
        pattern->left = left;
        pattern->right = right;
        pattern->sinks = p->sinks < TESS_UNBOUNDED ? p->sinks : TESS_UNBOUNDED;
    } else if (p->kind == TESS_PATTERN_BLOCKS) {
        pattern->kind = TESS_HEAD_BLOCKS;
    }
}

/* The first block of a head's vertical list, or -1 for a dense head. */
static int64_t head_first_block(const tess_layout *x, int32_t head) {
    const tess_pattern *p = &x->pattern;
    int64_t id = x->head_ids ? x->head_ids[head] : (int64_t)x->head_first + head;
    if (p->kind != TESS_PATTERN_S2) return 0;
    if (p->stride == 1 || id >= x->heads_total - p->dense_heads) return -1;
    if (p->flags & TESS_PATTERN_BIDIRECTIONAL) return 0;
    int64_t step = p->flags & TESS_PATTERN_HOMOGENEOUS ? 0 : p->stride / x->heads_total;
    if (step == 0 && !(p->flags & TESS_PATTERN_HOMOGENEOUS)) step = 1;
    int64_t g =
        p->flags & TESS_PATTERN_PER_KV_HEAD ? id / (x->heads_total / x->kv_heads_total) : id;
    return (p->stride - (g * step + p->offset) % p->stride) % p->stride;
}

/* Groups heads whose lists begin alike, by open addressing in a table with at least twice as many
 * elements as heads. An element holds a class plus 1. */
static void group_heads(tess_layout *x, uint32_t *table, uint64_t table_size) {
    x->n_classes = 0;
    for (int32_t head = 0; head < x->n_heads; head++) {
        int64_t first = head_first_block(x, head);
        uint64_t at =
            ((uint64_t)(first + 1) * UINT64_C(0x9e3779b97f4a7c15) >> 32) & (table_size - 1);
        while (table[at] != 0) {
            const tess_head_pattern *pattern = &x->patterns[table[at] - 1];
            if ((pattern->kind == TESS_HEAD_DENSE ? -1 : pattern->first) == first ||
                x->pattern.kind != TESS_PATTERN_S2)
                break;
            at = (at + 1) & (table_size - 1);
        }
        if (table[at] == 0) {
            class_pattern(x, first < 0, first, &x->patterns[x->n_classes]);
            table[at] = ++x->n_classes;
        }
        x->head_class[head] = (uint16_t)(table[at] - 1);
    }
}

/* Lists the distinct classes of each kv head. `seen` holds for each class the last kv head that
 * uses it, plus 1. */
static void list_groups(tess_layout *x, uint32_t *seen) {
    int32_t group = x->n_heads / x->n_kv_heads;
    uint32_t n = 0;
    for (int32_t kv_head = 0; kv_head < x->n_kv_heads; kv_head++) {
        x->group_start[kv_head] = n;
        for (int32_t h = kv_head * group; h < (kv_head + 1) * group; h++) {
            uint16_t cls = x->head_class[h];
            if (seen[cls] == (uint32_t)kv_head + 1) continue;
            seen[cls] = (uint32_t)kv_head + 1;
            x->group_classes[n++] = cls;
        }
    }
    x->group_start[x->n_kv_heads] = n;
}

static int by_key(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Heads of a list have their residues in any order. The classes of each kv head are put into the
 * order of falling residues, which they have without a list, but for where they begin. `keys` has
 * room for as many as there are heads. */
static void sort_groups(tess_layout *x, uint64_t *keys) {
    for (int32_t kv_head = 0; kv_head < x->n_kv_heads; kv_head++) {
        uint16_t *classes = x->group_classes + x->group_start[kv_head];
        const uint32_t n = x->group_start[kv_head + 1] - x->group_start[kv_head];
        for (uint32_t c = 0; c < n; c++)
            keys[c] = (uint64_t)(INT32_MAX - x->patterns[classes[c]].first) << 16 | classes[c];
        qsort(keys, n, sizeof *keys, by_key);
        for (uint32_t c = 0; c < n; c++) classes[c] = (uint16_t)keys[c];
    }
}

/* BLOCKS: one class for each distinct mask. */
static tess_status make_mask_classes(tess_layout *x, const char *function, const tess_mask *mask) {
    const bool causal = !(x->pattern.flags & TESS_PATTERN_BIDIRECTIONAL);
    x->mask.head_class = x->head_class;
    TESS_RETURN_IF_ERROR(
        tess_mask_compress(x->runtime, function, mask, causal, x->n_blocks, &x->mask));
    x->n_classes = x->mask.n_classes;
    for (uint32_t c = 0; c < x->n_classes; c++) {
        class_pattern(x, false, 0, &x->patterns[c]);
        x->patterns[c].rows = x->mask.rows[c];
    }
    /* Where all heads share one mask, only the first has its class yet. */
    for (int64_t h = mask->heads; h < x->n_heads; h++) x->head_class[h] = 0;
    return TESS_OK;
}

static tess_status make_classes(tess_layout *x, const char *function, const tess_mask *mask) {
    size_t heads = (size_t)x->n_heads, table_size = 2;
    while (table_size < 2 * heads) table_size *= 2;
    size_t bytes = table_size * sizeof(uint32_t);
    uint32_t *table = tess_mem_alloc(x->runtime, bytes, 64);
    if (!table)
        return tess_fail(TESS_ERROR_OUT_OF_MEMORY, "%s: no memory to group %d heads", function,
                         (int)x->n_heads);
    tess_status status = TESS_OK;
    memset(table, 0, bytes);
    if (mask)
        status = make_mask_classes(x, function, mask);
    else
        group_heads(x, table, table_size);
    if (status == TESS_OK) {
        memset(table, 0, bytes);
        list_groups(x, table);
        if (x->head_ids) sort_groups(x, (uint64_t *)(void *)table);
        for (size_t h = 0; h < heads; h++) x->class_heads[x->head_class[h]]++;
    }
    tess_mem_free(x->runtime, table, bytes);
    return status;
}

/* Allocates all arrays of heads and classes as one; n_classes is at most n_heads. */
static tess_status allocate(tess_layout *x, const char *function, bool listed) {
    size_t heads = (size_t)x->n_heads, kv_heads = (size_t)x->n_kv_heads;
    size_t patterns = heads * sizeof(tess_head_pattern), counts = heads * sizeof(uint32_t),
           starts = (kv_heads + 1) * sizeof(uint32_t), ids = listed ? heads * sizeof(int32_t) : 0;
    size_t bytes = patterns + counts + starts + ids + 2 * heads * sizeof(uint16_t);
    char *memory = tess_mem_alloc(x->runtime, bytes, 64);
    if (!memory)
        return tess_fail(TESS_ERROR_OUT_OF_MEMORY, "%s: no memory for %d heads", function,
                         (int)x->n_heads);
    memset(memory, 0, bytes);
    x->memory = memory;
    x->memory_bytes = bytes;
    x->patterns = (tess_head_pattern *)memory;
    x->class_heads = (uint32_t *)(memory + patterns);
    x->group_start = (uint32_t *)(memory + patterns + counts);
    x->head_ids = listed ? (int32_t *)(memory + patterns + counts + starts) : NULL;
    x->head_class = (uint16_t *)(memory + patterns + counts + starts + ids);
    x->group_classes = x->head_class + heads;
    return TESS_OK;
}

/* ------------------------------------------------------------------ life */

static void destroy(tess_layout *x) {
    tess_runtime *runtime = x->runtime;
    tess_mem_free(runtime, x->fixed, (size_t)x->fixed_bytes);
    tess_mem_free(runtime, x->stores, (size_t)x->stores_bytes);
    tess_mask_release(runtime, &x->mask);
    tess_mem_free(runtime, x->memory, (size_t)x->memory_bytes);
    tess_mem_free(runtime, x, sizeof *x);
    tess_runtime_release(runtime);
}

/* Fills a layout of which the pattern and the runtime are known. */
static tess_status fill(tess_layout *x, const char *function, const tess_layout_desc *desc,
                        const tess_mask *mask) {
    TESS_RETURN_IF_ERROR(check_heads(function, x, desc));
    TESS_RETURN_IF_ERROR(tess_pattern_check(function, &x->pattern, x->n_heads, x->heads_total));
    TESS_RETURN_IF_ERROR(check_blocks(function, x, desc->head_ids != NULL));
    bool listed = false;
    if (desc->head_ids) {
        TESS_RETURN_IF_ERROR(tess_head_ids_check(x, function, desc->head_ids));
        listed = !tess_head_ids_follow(desc->head_ids, x->n_heads);
        x->head_first = listed ? 0 : desc->head_ids[0];
    }
    TESS_RETURN_IF_ERROR(allocate(x, function, listed));
    if (listed) memcpy(x->head_ids, desc->head_ids, (size_t)x->n_heads * sizeof *x->head_ids);
    const tess_mask bytes = {(const uint8_t *)x->pattern.mask, false, x->pattern.mask_heads,
                             x->pattern.mask_query_blocks, x->pattern.mask_key_blocks};
    const bool blocks = x->pattern.kind == TESS_PATTERN_BLOCKS;
    TESS_RETURN_IF_ERROR(make_classes(x, function, !blocks ? NULL : mask ? mask : &bytes));
    TESS_RETURN_IF_ERROR(tess_layout_examine(x, function));
    x->pattern.mask = NULL; /* the caller's */
    return TESS_OK;
}

tess_status tess_layout_build(tess_runtime *runtime, const char *function,
                              const tess_layout_desc *desc, const tess_pattern *pattern,
                              const tess_mask *mask, tess_layout **layout) {
    tess_layout *x = tess_mem_alloc(runtime, sizeof *x, 64);
    if (!x) return tess_fail(TESS_ERROR_OUT_OF_MEMORY, "%s: no memory for the layout", function);
    memset(x, 0, sizeof *x);
    atomic_init(&x->refs, 1);
    x->runtime = runtime;
    tess_runtime_retain(runtime);
    x->pattern = *pattern;
    const tess_status status = fill(x, function, desc, mask);
    if (status != TESS_OK) {
        destroy(x);
        return status;
    }
    if (x->coverage < 1)
        tess_log(runtime, "plan",
                 "layout: %.1f %% of the blocks that a query could see are seen by some head%s",
                 100 * x->coverage,
                 x->pattern.kind == TESS_PATTERN_S2
                     ? "; S2 covers all when its heads have at least `stride` residues"
                     : "");
    *layout = x;
    return TESS_OK;
}

tess_status tess_layout_create(tess_runtime *runtime, const tess_layout_desc *desc,
                               tess_layout **layout) {
    static const char *const function = "tess_layout_create";
    tess_layout_desc d;
    tess_pattern p;
    TESS_RETURN_IF_ERROR(tess_runtime_check(runtime, function));
    if (!layout) return tess_invalid("%s: layout: must not be NULL", function);
    TESS_RETURN_IF_ERROR(tess_desc_read(function, "desc", desc, &d, TESS_LAYOUT_DESC));
    if (!d.pattern) return tess_invalid("%s: pattern: must not be NULL", function);
    TESS_RETURN_IF_ERROR(tess_desc_read(function, "pattern", d.pattern, &p, TESS_PATTERN));
    return tess_layout_build(runtime, function, &d, &p, NULL, layout);
}

void tess_layout_retain(const tess_layout *layout) {
    atomic_fetch_add_explicit(&((tess_layout *)layout)->refs, 1, memory_order_relaxed);
}

void tess_layout_release(tess_layout *layout) {
    if (!layout || atomic_fetch_sub_explicit(&layout->refs, 1, memory_order_acq_rel) != 1) return;
    destroy(layout);
}

tess_status tess_layout_check(const tess_layout *layout, const char *function) {
    return layout ? tess_runtime_check(layout->runtime, function)
                  : tess_handle_missing(function, "layout");
}
