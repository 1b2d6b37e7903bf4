/* SPDX-License-Identifier: Apache-2.0 */
#include "mask.h"

#include <string.h>

int64_t tess_mask_below(const uint32_t *columns, int64_t count, int64_t end) {
    int64_t low = 0, high = count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (columns[middle] < end)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static const uint8_t *mask_row(const tess_mask *mask, int64_t head, int64_t i) {
    return mask->data + ((uint64_t)head * (uint64_t)mask->query_blocks + (uint64_t)i) *
                            tess_mask_row_bytes(mask);
}

/* How many columns query block i can see. */
static int64_t row_columns(const tess_mask *mask, int64_t i, bool causal, int64_t n_blocks) {
    int64_t columns = mask->key_blocks < n_blocks ? mask->key_blocks : n_blocks;
    return causal && columns > i + 1 ? i + 1 : columns;
}

static uint64_t head_hash(const tess_mask *mask, int64_t head, bool causal, int64_t n_blocks,
                          uint64_t *count) {
    uint64_t hash = UINT64_C(0x9e3779b97f4a7c15);
    *count = 0;
    for (int64_t i = 0; i < mask->query_blocks; i++) {
        const uint8_t *row = mask_row(mask, head, i);
        int64_t columns = row_columns(mask, i, causal, n_blocks);
        for (int64_t j = 0; j < columns; j++) {
            if (!tess_mask_get(mask, row, j)) continue;
            hash = (hash ^ ((uint64_t)i << 32 ^ (uint64_t)j)) * UINT64_C(0x100000001b3);
            hash ^= hash >> 29;
            ++*count;
        }
    }
    return hash;
}

static bool head_equal(const tess_mask *mask, int64_t a, int64_t b, bool causal, int64_t n_blocks) {
    for (int64_t i = 0; i < mask->query_blocks; i++) {
        const uint8_t *x = mask_row(mask, a, i), *y = mask_row(mask, b, i);
        int64_t columns = row_columns(mask, i, causal, n_blocks);
        for (int64_t j = 0; j < columns; j++) {
            if (tess_mask_get(mask, x, j) != tess_mask_get(mask, y, j)) return false;
        }
    }
    return true;
}

typedef struct mask_group {
    uint64_t hash, count;
    int64_t head;
} mask_group;

/* Finds the group of each head, by open addressing in a table with at least twice as many elements
 * as heads. An element holds a class plus 1. */
static uint32_t group_heads(const tess_mask *mask, bool causal, int64_t n_blocks,
                            uint16_t *head_class, mask_group *groups, uint32_t *table,
                            uint64_t table_size) {
    uint32_t n = 0;
    for (int64_t head = 0; head < mask->heads; head++) {
        uint64_t count, hash = head_hash(mask, head, causal, n_blocks, &count),
                        at = hash & (table_size - 1);
        while (table[at] != 0) {
            const mask_group *group = &groups[table[at] - 1];
            if (group->hash == hash && group->count == count &&
                head_equal(mask, group->head, head, causal, n_blocks))
                break;
            at = (at + 1) & (table_size - 1);
        }
        if (table[at] == 0) {
            groups[n].hash = hash;
            groups[n].count = count;
            groups[n].head = head;
            table[at] = ++n;
        }
        head_class[head] = (uint16_t)(table[at] - 1);
    }
    return n;
}

static void compress_head(const tess_mask *mask, int64_t head, bool causal, int64_t n_blocks,
                          uint64_t *start, uint32_t *columns) {
    uint64_t n = 0;
    for (int64_t i = 0; i < mask->query_blocks; i++) {
        const uint8_t *row = mask_row(mask, head, i);
        int64_t end = row_columns(mask, i, causal, n_blocks);
        start[i] = n;
        for (int64_t j = 0; j < end; j++) {
            if (tess_mask_get(mask, row, j)) columns[n++] = (uint32_t)j;
        }
    }
    start[mask->query_blocks] = n;
}

static tess_status compress_groups(tess_runtime *runtime, const char *function,
                                   const tess_mask *mask, bool causal, int64_t n_blocks,
                                   const mask_group *groups, tess_mask_set *set) {
    /* This cannot overflow: the caller's mask lies in memory and has a bit or a byte for everything
     * counted here. */
    uint64_t starts = (uint64_t)mask->query_blocks + 1, columns = 0;
    for (uint32_t c = 0; c < set->n_classes; c++) columns += groups[c].count;
    uint64_t bytes = starts * set->n_classes * sizeof(uint64_t) + columns * sizeof(uint32_t);
    set->bytes = bytes;
    set->rows_bytes = set->n_classes * sizeof(tess_mask_rows);
    set->memory = bytes > SIZE_MAX ? NULL : tess_mem_alloc(runtime, (size_t)bytes, 64);
    set->rows = tess_mem_alloc(runtime, (size_t)set->rows_bytes, 64);
    if (!set->memory || !set->rows) {
        tess_mask_release(runtime, set);
        return tess_fail(TESS_ERROR_OUT_OF_MEMORY, "%s: mask: no memory for %llu bytes", function,
                         (unsigned long long)bytes);
    }
    uint64_t *start = set->memory;
    uint32_t *column = (uint32_t *)(start + starts * set->n_classes);
    for (uint32_t c = 0; c < set->n_classes; c++) {
        compress_head(mask, groups[c].head, causal, n_blocks, start, column);
        set->rows[c].query_blocks = mask->query_blocks;
        set->rows[c].start = start;
        set->rows[c].columns = column;
        start += starts;
        column += groups[c].count;
    }
    return TESS_OK;
}

tess_status tess_mask_compress(tess_runtime *runtime, const char *function, const tess_mask *mask,
                               bool causal, int64_t n_blocks, tess_mask_set *set) {
    uint64_t table_size = 2;
    while (table_size < 2 * (uint64_t)mask->heads) table_size *= 2;
    size_t groups_bytes = (size_t)mask->heads * sizeof(mask_group),
           table_bytes = (size_t)table_size * sizeof(uint32_t);
    mask_group *groups = tess_mem_alloc(runtime, groups_bytes, 64);
    uint32_t *table = tess_mem_alloc(runtime, table_bytes, 64);
    tess_status status = TESS_OK;
    set->memory = NULL;
    set->rows = NULL;
    if (groups && table) {
        memset(table, 0, table_bytes);
        set->n_classes =
            group_heads(mask, causal, n_blocks, set->head_class, groups, table, table_size);
        status = compress_groups(runtime, function, mask, causal, n_blocks, groups, set);
    } else {
        status = tess_fail(TESS_ERROR_OUT_OF_MEMORY, "%s: mask: no memory to compare %lld heads",
                           function, (long long)mask->heads);
    }
    tess_mem_free(runtime, table, table_bytes);
    tess_mem_free(runtime, groups, groups_bytes);
    return status;
}

void tess_mask_release(tess_runtime *runtime, tess_mask_set *set) {
    tess_mem_free(runtime, set->rows, (size_t)set->rows_bytes);
    tess_mem_free(runtime, set->memory, (size_t)set->bytes);
    set->rows = NULL;
    set->memory = NULL;
}

bool tess_mask_kv_efficient(const tess_mask_rows *rows, int64_t n_blocks) {
    int64_t end = rows->query_blocks < n_blocks ? rows->query_blocks : n_blocks;
    for (int64_t i = 2; i < end; i++) {
        int64_t count, before, b = 0;
        const uint32_t *columns = tess_mask_row(rows, i, &count),
                       *previous = tess_mask_row(rows, i - 1, &before);
        /* Row i - 1 must have read what row i reads below block i - 1. */
        for (int64_t c = 0; c < count && columns[c] + 1 < i; c++) {
            while (b < before && previous[b] < columns[c]) b++;
            if (b == before || previous[b] != columns[c]) return false;
        }
    }
    return true;
}
