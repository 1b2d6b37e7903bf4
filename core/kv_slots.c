/* SPDX-License-Identifier: Apache-2.0 */
/* How a kv head stores its key blocks: which blocks keep a slot of their own, how long the ring of
 * the others is, and which slot a block has. */
#include <string.h>

#include "layout.h"

/* ------------------------------------------------------------------ storage of a kv head */

/* Keeps everything: slot = block. */
static void store_whole(const tess_layout *x, tess_kv_store *store) {
    store->local = store->fixed = store->kept = x->n_blocks;
    store->ring = 0;
}

/* Completes a store whose `local` and `fixed` are known. `late` of the fixed blocks are among the
 * last `local` ones. */
static void store_finish(const tess_layout *x, tess_kv_store *store, int64_t late) {
    int64_t chunk = ceil_div(x->max_chunk, x->pattern.block);
    store->kept = store->fixed + smaller(store->local, x->n_blocks) - late;
    store->ring = store->local + smaller(chunk, x->n_blocks);
    if (store->fixed + store->ring >= x->n_blocks) {
        store->fixed = x->n_blocks;
        store->ring = 0;
    }
}

static void store_of_pattern(const tess_layout *x, int32_t kv_head, tess_kv_store *store) {
    int64_t late = 0, n = x->n_blocks;
    store->local = store->fixed = 0;
    for (uint32_t g = x->group_start[kv_head]; g < x->group_start[kv_head + 1]; g++) {
        const tess_head_pattern *pattern = &x->patterns[x->group_classes[g]];
        if (pattern->kind == TESS_HEAD_DENSE) {
            store_whole(x, store);
            return;
        }
        if (pattern->kind == TESS_HEAD_STRIDED) {
            store->local = smaller(pattern->local, n);
            store->fixed += tess_vertical_count(pattern, n);
            late +=
                tess_vertical_count(pattern, n) - tess_vertical_count(pattern, n - store->local);
        } else {
            store->local = smaller(ceil_div(pattern->left, pattern->block) + 1, n);
            store->fixed = smaller(ceil_div(pattern->sinks, pattern->block), n);
            late = store->fixed > n - store->local ? store->fixed - (n - store->local) : 0;
        }
    }
    store_finish(x, store, late);
}

/* BLOCKS: how many blocks later, its own included, the heads of a kv head read each column for the
 * last time. */
static void measure_reach(const tess_layout *x, int32_t kv_head, uint32_t *reach, int64_t columns) {
    int64_t rows = smaller(x->pattern.mask_query_blocks, x->n_blocks);
    memset(reach, 0, (size_t)columns * sizeof *reach);
    for (uint32_t g = x->group_start[kv_head]; g < x->group_start[kv_head + 1]; g++) {
        const tess_mask_rows *mask = &x->patterns[x->group_classes[g]].rows;
        for (int64_t i = 0; i < rows; i++) {
            int64_t count;
            const uint32_t *column = tess_mask_row(mask, i, &count);
            for (int64_t c = 0; c < count; c++) {
                uint32_t distance = (uint32_t)(i - column[c] + 1);
                if (distance > reach[column[c]]) reach[column[c]] = distance;
            }
        }
    }
}

/* Chooses `local` so that the ring, and the columns that are read later and need slots of their
 * own, take the fewest slots together. */
static void store_of_reach(const tess_layout *x, const uint32_t *reach, int64_t columns,
                           uint64_t *histogram, int64_t rows, tess_kv_store *store) {
    memset(histogram, 0, (size_t)(rows + 1) * sizeof *histogram);
    for (int64_t j = 0; j < columns; j++) histogram[reach[j]]++;
    int64_t beyond = columns - (int64_t)histogram[0], late = 0;
    store->local = 1;
    store->fixed = INT64_MAX - 1;
    for (int64_t local = 1; local <= rows || local == 1; local++) {
        if (local <= rows) beyond -= (int64_t)histogram[local];
        if (local + beyond < store->local + store->fixed) {
            store->local = local;
            store->fixed = beyond;
        }
    }
    for (int64_t j = x->n_blocks - smaller(store->local, x->n_blocks); j < columns; j++)
        late += reach[j] > store->local;
    store_finish(x, store, late);
}

static bool same_classes(const tess_layout *x, int32_t a, int32_t b) {
    uint32_t n = x->group_start[a + 1] - x->group_start[a];
    if (n != x->group_start[b + 1] - x->group_start[b]) return false;
    return memcmp(&x->group_classes[x->group_start[a]], &x->group_classes[x->group_start[b]],
                  n * sizeof *x->group_classes) == 0;
}

/* Counts the fixed blocks in a first pass and lists them in a second. Neighbours with equal classes
 * share a list. */
static tess_status examine_stores(tess_layout *x, const char *function, uint32_t *reach,
                                  int64_t columns, uint64_t *histogram, int64_t rows) {
    uint64_t total = 0;
    for (int32_t kv_head = 0; kv_head < x->n_kv_heads; kv_head++) {
        if (kv_head > 0 && same_classes(x, kv_head - 1, kv_head)) {
            x->stores[kv_head] = x->stores[kv_head - 1];
            continue;
        }
        measure_reach(x, kv_head, reach, columns);
        store_of_reach(x, reach, columns, histogram, rows, &x->stores[kv_head]);
        x->stores[kv_head].fixed_begin = total;
        if (x->stores[kv_head].ring) total += (uint64_t)x->stores[kv_head].fixed;
    }
    if (total == 0) return TESS_OK;
    x->fixed_bytes = total * sizeof *x->fixed;
    x->fixed = tess_mem_alloc(x->runtime, (size_t)x->fixed_bytes, 64);
    if (!x->fixed)
        return tess_fail(TESS_ERROR_OUT_OF_MEMORY, "%s: mask: no memory for %llu slots", function,
                         (unsigned long long)total);
    for (int32_t kv_head = 0; kv_head < x->n_kv_heads; kv_head++) {
        const tess_kv_store *store = &x->stores[kv_head];
        if (!store->ring || (kv_head > 0 && same_classes(x, kv_head - 1, kv_head))) continue;
        uint32_t *list = x->fixed + store->fixed_begin;
        measure_reach(x, kv_head, reach, columns);
        for (int64_t j = 0; j < columns; j++) {
            if (reach[j] > store->local) *list++ = (uint32_t)j;
        }
    }
    return TESS_OK;
}

tess_status tess_kv_slots_examine(tess_layout *x, const char *function) {
    int64_t rows = smaller(x->pattern.mask_query_blocks, x->n_blocks),
            columns = smaller(x->pattern.mask_key_blocks, x->n_blocks);
    size_t reach_bytes = (size_t)(columns + 1) * sizeof(uint32_t),
           histogram_bytes = (size_t)(rows + 1) * sizeof(uint64_t);
    x->stores_bytes = (uint64_t)x->n_kv_heads * sizeof *x->stores;
    x->stores = tess_mem_alloc(x->runtime, (size_t)x->stores_bytes, 64);
    uint32_t *reach = tess_mem_alloc(x->runtime, reach_bytes, 64);
    uint64_t *histogram = tess_mem_alloc(x->runtime, histogram_bytes, 64);
    tess_status status;
    if (x->stores && reach && histogram)
        status = examine_stores(x, function, reach, columns, histogram, rows);
    else
        status = tess_fail(TESS_ERROR_OUT_OF_MEMORY,
                           "%s: mask: no memory for the storage of %d kv heads", function,
                           (int)x->n_kv_heads);
    tess_mem_free(x->runtime, histogram, histogram_bytes);
    tess_mem_free(x->runtime, reach, reach_bytes);
    return status;
}

/* The storage of a kv head. Without causal order, or where a dropped block might be read again,
 * everything is kept. */
static void kv_store(const tess_layout *x, int32_t kv_head, tess_kv_store *store) {
    if (!x->kv_efficient)
        store_whole(x, store);
    else if (x->stores)
        *store = x->stores[kv_head];
    else
        store_of_pattern(x, kv_head, store);
}

/* Whether a block has a slot of its own, and *rank: how many blocks before it have one. */
static bool fixed_rank(const tess_layout *x, int32_t kv_head, const tess_kv_store *store,
                       int64_t block, int64_t *rank) {
    if (x->stores) {
        *rank = 0;
        if (!x->fixed) return false;
        const uint32_t *list = x->fixed + store->fixed_begin;
        *rank = tess_mask_below(list, store->fixed, block);
        return *rank < store->fixed && list[*rank] == block;
    }
    bool fixed = false;
    *rank = 0;
    for (uint32_t g = x->group_start[kv_head]; g < x->group_start[kv_head + 1]; g++) {
        const tess_head_pattern *pattern = &x->patterns[x->group_classes[g]];
        if (pattern->kind == TESS_HEAD_STRIDED) {
            *rank += tess_vertical_count(pattern, block);
            fixed = fixed || block % pattern->stride == pattern->first;
        } else {
            *rank = smaller(block, store->fixed);
            fixed = block < store->fixed;
        }
    }
    return fixed;
}

/* ------------------------------------------------------------------ public */

static tess_status check_kv_head(const tess_layout *x, const char *function, int32_t kv_head) {
    TESS_RETURN_IF_ERROR(tess_layout_check(x, function));
    TESS_RETURN_IF_ERROR(tess_check_index(function, "kv_head", kv_head, x->n_kv_heads));
    return TESS_OK;
}

tess_status tess_layout_kv(const tess_layout *x, int32_t kv_head, tess_kv_info *info) {
    static const char *const function = "tess_layout_kv";
    TESS_RETURN_IF_ERROR(check_kv_head(x, function, kv_head));
    tess_kv_store store;
    tess_kv_info full;
    memset(&full, 0, sizeof full);
    kv_store(x, kv_head, &store);
    full.blocks = x->n_blocks;
    full.blocks_kept = store.kept;
    full.blocks_allocated = store.fixed + store.ring;
    full.slots_fixed = store.fixed;
    full.slots_ring = store.ring;
    return tess_info_write(function, info, &full, TESS_KV_INFO);
}

tess_status tess_layout_slot(const tess_layout *x, int32_t kv_head, int64_t block, int64_t *slot) {
    static const char *const function = "tess_layout_slot";
    TESS_RETURN_IF_ERROR(check_kv_head(x, function, kv_head));
    TESS_RETURN_IF_ERROR(tess_check_index(function, "block", block, x->n_blocks));
    if (!slot) return tess_invalid("%s: slot: must not be NULL", function);
    tess_kv_store store;
    int64_t rank;
    kv_store(x, kv_head, &store);
    if (store.ring == 0)
        *slot = block;
    else
        *slot =
            fixed_rank(x, kv_head, &store, block, &rank) ? rank : store.fixed + block % store.ring;
    return TESS_OK;
}
