/* SPDX-License-Identifier: Apache-2.0 */
/* What a layout finds out at creation about the storage of its kv heads: which blocks stay for
 * good, how long the ring of the others is, and which kv heads are stored alike. */
#include <string.h>

#include "kv_slots.h"

/* Scratch memory of the examination. */
typedef struct scratch {
    uint32_t *table; /* of first_alike() */
    uint64_t n_table;
    uint32_t *reach;           /* BLOCKS: of each column */
    uint64_t *histogram;       /* BLOCKS: columns of each reach */
    int64_t n_rows, n_columns; /* BLOCKS: of the mask, as far as the layout's tokens go */
} scratch;

static uint32_t group_size(const tess_layout *x, int32_t kv_head) {
    return x->group_start[kv_head + 1] - x->group_start[kv_head];
}

static const uint16_t *group_of(const tess_layout *x, int32_t kv_head) {
    return x->group_classes + x->group_start[kv_head];
}

/* ------------------------------------------------------------------ kv heads that are alike */

typedef bool alike_function(const tess_layout *x, int32_t a, int32_t b);

/* The first kv head that is like this one, which may be itself. An open-addressing table holds the
 * first kv head of each kind plus 1, and has at least twice as many elements as kv heads. */
static int32_t first_alike(const tess_layout *x, int32_t kv_head, uint64_t hash,
                           alike_function *alike, scratch *s) {
    uint64_t at = (hash * UINT64_C(0x9e3779b97f4a7c15) >> 32) & (s->n_table - 1);
    while (s->table[at] != 0) {
        const int32_t first = (int32_t)(s->table[at] - 1);
        if (alike(x, first, kv_head)) return first;
        at = (at + 1) & (s->n_table - 1);
    }
    s->table[at] = (uint32_t)kv_head + 1;
    return kv_head;
}

/* Equal classes make equal slots, and so does keeping everything. */
static bool same_list(const tess_layout *x, int32_t a, int32_t b) {
    if (!x->stores[a].ring || !x->stores[b].ring) return x->stores[a].ring == x->stores[b].ring;
    return group_size(x, a) == group_size(x, b) &&
           memcmp(group_of(x, a), group_of(x, b), group_size(x, a) * sizeof(uint16_t)) == 0;
}

static uint64_t list_hash(const tess_layout *x, int32_t kv_head) {
    uint64_t hash = 0;
    if (!x->stores[kv_head].ring) return hash;
    for (uint32_t n = 0; n < group_size(x, kv_head); n++)
        hash = (hash ^ (group_of(x, kv_head)[n] + UINT64_C(1))) * UINT64_C(0x100000001b3);
    return hash;
}

static bool same_storage(const tess_layout *x, int32_t a, int32_t b) {
    return x->stores[a].ring == x->stores[b].ring && x->stores[a].fixed == x->stores[b].fixed;
}

static void group_storages(tess_layout *x, scratch *s) {
    memset(s->table, 0, (size_t)s->n_table * sizeof *s->table);
    for (int32_t kv_head = 0; kv_head < x->n_kv_heads; kv_head++) {
        tess_kv_store *store = &x->stores[kv_head];
        const uint64_t hash =
            (uint64_t)store->ring * UINT64_C(0x100000001b3) ^ (uint64_t)store->fixed;
        const int32_t first = first_alike(x, kv_head, hash, same_storage, s);
        if (first == kv_head) x->stores[first].storage = x->n_storages++;
        store->storage = x->stores[first].storage;
        store->pool_head = x->stores[first].members++;
    }
}

/* ------------------------------------------------------------------ masks of a caller's */

/* How many blocks later, its own included, the heads of a kv head read each column for the last
 * time. */
static void measure_reach(const tess_layout *x, int32_t kv_head, scratch *s) {
    memset(s->reach, 0, (size_t)s->n_columns * sizeof *s->reach);
    for (uint32_t g = 0; g < group_size(x, kv_head); g++) {
        const tess_mask_rows *mask = &x->patterns[group_of(x, kv_head)[g]].rows;
        for (int64_t i = 0; i < s->n_rows; i++) {
            int64_t count;
            const uint32_t *column = tess_mask_row(mask, i, &count);
            for (int64_t c = 0; c < count; c++) {
                uint32_t distance = (uint32_t)(i - column[c] + 1);
                if (distance > s->reach[column[c]]) s->reach[column[c]] = distance;
            }
        }
    }
}

/* Chooses `local` so that the ring, and the columns that are read later and need slots of their
 * own, take the fewest slots together. */
static void choose_local(const tess_layout *x, int32_t kv_head, scratch *s, tess_kv_store *store) {
    measure_reach(x, kv_head, s);
    memset(s->histogram, 0, (size_t)(s->n_rows + 1) * sizeof *s->histogram);
    for (int64_t j = 0; j < s->n_columns; j++) s->histogram[s->reach[j]]++;
    int64_t beyond = s->n_columns - (int64_t)s->histogram[0];
    store->local = 1;
    store->fixed = INT64_MAX - 1;
    for (int64_t local = 1; local <= s->n_rows || local == 1; local++) {
        if (local <= s->n_rows) beyond -= (int64_t)s->histogram[local];
        if (local + beyond < store->local + store->fixed) {
            store->local = local;
            store->fixed = beyond;
        }
    }
}

/* Lists the fixed blocks of all kv heads. */
static tess_status list_fixed(tess_layout *x, const char *function, scratch *s) {
    uint64_t total = 0;
    for (int32_t kv_head = 0; kv_head < x->n_kv_heads; kv_head++) {
        tess_kv_store *store = &x->stores[kv_head];
        const bool first = store->list_head == kv_head;
        store->fixed_begin = first ? total : x->stores[store->list_head].fixed_begin;
        if (first && store->ring) total += (uint64_t)store->fixed;
    }
    if (total == 0) return TESS_OK;
    x->fixed_bytes = total * sizeof *x->fixed;
    x->fixed = tess_mem_alloc(x->runtime, (size_t)x->fixed_bytes, 64);
    if (!x->fixed)
        return tess_fail(TESS_ERROR_OUT_OF_MEMORY, "%s: mask: no memory for %llu slots", function,
                         (unsigned long long)total);
    for (int32_t kv_head = 0; kv_head < x->n_kv_heads; kv_head++) {
        const tess_kv_store *store = &x->stores[kv_head];
        if (store->list_head != kv_head || !store->ring) continue;
        uint32_t *list = x->fixed + store->fixed_begin;
        measure_reach(x, kv_head, s);
        for (int64_t j = 0; j < s->n_columns; j++) {
            if (s->reach[j] > store->local) *list++ = (uint32_t)j;
        }
    }
    return TESS_OK;
}

/* ------------------------------------------------------------------ rings */

/* Without causal order, or where a dropped block might be read again, everything is kept; and so it
 * is where some head is dense or the heads cover all residues. */
static bool keeps_all(const tess_layout *x, int32_t kv_head) {
    if (!x->kv_efficient) return true;
    for (uint32_t g = 0; g < group_size(x, kv_head); g++)
        if (x->patterns[group_of(x, kv_head)[g]].kind == TESS_HEAD_DENSE) return true;
    return x->pattern.kind == TESS_PATTERN_S2 &&
           (int64_t)group_size(x, kv_head) == x->pattern.stride;
}

/* S2: the fewest strided blocks of a kv head among any `count` blocks in a row.
 *
 * A kv head's query heads follow each other at equal steps and go around the stride once at most,
 * or are sorted, so the residues of its classes, last to first, rise around the circle. The run
 * with the fewest strided blocks begins right behind one of them. */
static int64_t fewest_strided(const tess_layout *x, int32_t kv_head, int64_t count) {
    const uint16_t *classes = group_of(x, kv_head);
    const int64_t n = group_size(x, kv_head), stride = x->pattern.stride, rest = count % stride;
    int64_t fewest = n;
    for (int64_t from = 0, to = 1; from < n; from++) {
        const int64_t start = x->patterns[classes[n - 1 - from]].first;
        for (; to < from + n; to++) {
            const int64_t next = x->patterns[classes[n - 1 - to % n]].first;
            if ((next - start + stride) % stride > rest) break;
        }
        fewest = smaller(fewest, to - from - 1);
    }
    return count / stride * n + fewest;
}

/* Fills local, fixed and ring. No length enters but INT32_MAX, which no number of blocks passes. */
static void examine_store(const tess_layout *x, int32_t kv_head, scratch *s, tess_kv_store *store) {
    const tess_head_pattern *pattern = &x->patterns[group_of(x, kv_head)[0]];
    const int64_t chunk = smaller(ceil_div(x->max_chunk, x->pattern.block), INT32_MAX);
    if (pattern->kind == TESS_HEAD_STRIDED) {
        store->local = pattern->local;
        store->fixed = group_size(x, kv_head);
        store->ring = store->local + chunk - fewest_strided(x, kv_head, store->local + chunk);
        return;
    }
    if (pattern->kind == TESS_HEAD_WINDOW) {
        store->local = smaller(ceil_div(pattern->left, pattern->block) + 1, INT32_MAX);
        store->fixed = smaller(ceil_div(pattern->sinks, pattern->block), INT32_MAX);
    } else {
        choose_local(x, kv_head, s, store);
    }
    store->ring = store->local + chunk;
}

static tess_status examine_stores(tess_layout *x, const char *function, scratch *s) {
    memset(s->table, 0, (size_t)s->n_table * sizeof *s->table);
    for (int32_t kv_head = 0; kv_head < x->n_kv_heads; kv_head++) {
        tess_kv_store *store = &x->stores[kv_head];
        store->ring = !keeps_all(x, kv_head); /* until it is known better */
        const int32_t first = first_alike(x, kv_head, list_hash(x, kv_head), same_list, s);
        if (first != kv_head) {
            *store = x->stores[first];
            continue;
        }
        if (store->ring) examine_store(x, kv_head, s, store);
        store->list = x->n_slot_lists++;
        store->list_head = kv_head;
    }
    group_storages(x, s);
    return x->pattern.kind == TESS_PATTERN_BLOCKS ? list_fixed(x, function, s) : TESS_OK;
}

tess_status tess_kv_slots_examine(tess_layout *x, const char *function) {
    const bool blocks = x->pattern.kind == TESS_PATTERN_BLOCKS;
    scratch s;
    memset(&s, 0, sizeof s);
    s.n_table = 2;
    while (s.n_table < 2 * (uint64_t)x->n_kv_heads) s.n_table *= 2;
    s.n_rows = blocks ? smaller(x->pattern.mask_query_blocks, x->n_blocks) : 0;
    s.n_columns = blocks ? smaller(x->pattern.mask_key_blocks, x->n_blocks) : 0;
    const size_t table_bytes = (size_t)s.n_table * sizeof *s.table,
                 reach_bytes = (size_t)(s.n_columns + 1) * sizeof *s.reach,
                 histogram_bytes = (size_t)(s.n_rows + 1) * sizeof *s.histogram;
    x->stores_bytes = (uint64_t)x->n_kv_heads * sizeof *x->stores;
    x->stores = tess_mem_alloc(x->runtime, (size_t)x->stores_bytes, 64);
    s.table = tess_mem_alloc(x->runtime, table_bytes, 64);
    s.reach = tess_mem_alloc(x->runtime, reach_bytes, 64);
    s.histogram = tess_mem_alloc(x->runtime, histogram_bytes, 64);
    tess_status status;
    if (x->stores && s.table && s.reach && s.histogram) {
        memset(x->stores, 0, (size_t)x->stores_bytes);
        status = examine_stores(x, function, &s);
    } else {
        status = tess_fail(TESS_ERROR_OUT_OF_MEMORY, "%s: no memory for the storage of %d kv heads",
                           function, (int)x->n_kv_heads);
    }
    tess_mem_free(x->runtime, s.histogram, histogram_bytes);
    tess_mem_free(x->runtime, s.reach, reach_bytes);
    tess_mem_free(x->runtime, s.table, table_bytes);
    return status;
}
