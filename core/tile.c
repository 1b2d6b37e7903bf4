/* SPDX-License-Identifier: Apache-2.0 */
#include "tile.h"

#include <string.h>

enum {
    MAX_TILE_BLOCKS = 32,
    MAX_TILE_ROWS = 32768,
    MOST_UNUSED = 8 /* whole blocks may leave an eighth of a tile's rows unused */
};

/* ------------------------------------------------------------------ rows */

void tess_grid_set(tess_grid *grid, const tess_layout *layout, int64_t tile_rows) {
    int64_t block = layout->pattern.block, most = MAX_TILE_BLOCKS;
    bool cut = true; /* inside blocks: neighbours read about the same keys */
    memset(grid, 0, sizeof *grid);
    for (uint32_t c = 0; c < layout->n_classes; c++) {
        const tess_head_pattern *pattern = &layout->patterns[c];
        if (pattern->kind == TESS_HEAD_STRIDED_BOTH) most = 1;
        if (pattern->kind == TESS_HEAD_STRIDED_BOTH || pattern->kind == TESS_HEAD_BLOCKS)
            cut = false;
        if (pattern->kind == TESS_HEAD_STRIDED) {
            grid->local = pattern->local;
            grid->stride = pattern->stride;
        }
    }
    tile_rows = smaller(tile_rows, MAX_TILE_ROWS);
    grid->block = block;
    if (tile_rows < block) {
        grid->unit = block;
        grid->step = tile_rows;
        grid->blocks = 1;
    } else if (cut && tile_rows / block <= most && tile_rows % block > tile_rows / MOST_UNUSED) {
        /* fewer than eight blocks, so that partial blocks at its ends do not exceed the limit */
        grid->unit = grid->step = tile_rows;
    } else {
        grid->blocks = smaller(most, tile_rows / block);
        grid->unit = grid->step = block * grid->blocks;
    }
}

void tess_grid_count_from_end(tess_grid *grid, const tess_layout *layout, int64_t tile_rows) {
    tile_rows = smaller(tile_rows, MAX_TILE_ROWS);
    for (uint32_t c = 0; c < layout->n_classes; c++) {
        if (layout->patterns[c].kind != TESS_HEAD_DENSE) return;
    }
    if (tile_rows / grid->block + 2 > MAX_TILE_BLOCKS) return;
    grid->unit = grid->step = tile_rows;
    grid->blocks = tile_rows % grid->block ? 0 : tile_rows / grid->block;
    grid->from_end = true;
}

uint64_t tess_grid_tiles(const tess_grid *grid, int64_t rows) {
    return (uint64_t)smaller(rows, rows / grid->step + 2 * (rows / grid->unit + 2));
}

void tess_tile_begin(const tess_grid *grid, int64_t begin, int64_t end, tess_tile *tile) {
    /* A tile always ends at position 0. */
    int64_t origin = grid->from_end && begin >= 0 ? end % grid->unit : 0;
    int64_t cell = floor_div(begin - origin, grid->unit) * grid->unit + origin;
    int64_t cut = cell + ((begin - cell) / grid->step + 1) * grid->step;
    tile->cell_end = cell + grid->unit;
    tile->end = end;
    tile->blocks = origin % grid->block ? 0 : grid->blocks;
    tile->first = begin;
    tile->last = smaller(smaller(cut, tile->cell_end), end) - 1;
    tile->i_first = floor_div(begin, grid->block);
    tile->i_last = floor_div(tile->last, grid->block);
    tile->start = larger(0, tile->i_first - grid->local + 1);
    tile->quotient = grid->stride ? tile->start / grid->stride : 0;
    tile->rest = grid->stride ? tile->start % grid->stride : 0;
}

/* ------------------------------------------------------------------ lists and joined rows */

static uint64_t list_length(const tess_tiler *tiler, const tess_head_pattern *pattern) {
    switch (pattern->kind) {
    case TESS_HEAD_STRIDED: return (uint64_t)tess_vertical_count(pattern, tiler->n_blocks);
    /* a list for each residue, one after the other */
    case TESS_HEAD_STRIDED_BOTH: return (uint64_t)tiler->n_blocks;
    case TESS_HEAD_WINDOW:
        return (uint64_t)smaller(pattern->sinks / pattern->block +
                                     (pattern->sinks % pattern->block != 0),
                                 tiler->n_blocks);
    default: return 0;
    }
}

static tess_status too_many(void) {
    return tess_unsupported(
        "tess_plan_create: the lists of the layout's classes need 2^32 entries or more");
}

tess_status tess_tiler_create(tess_tiler *tiler, tess_runtime *runtime, const tess_layout *layout,
                              int64_t max_keys) {
    int64_t block = layout->pattern.block;
    memset(tiler, 0, sizeof *tiler);
    tiler->runtime = runtime;
    tiler->layout = layout;
    tiler->n_blocks = (max_keys + block - 1) / block;
    tiler->list = tess_mem_alloc(runtime, layout->n_classes * sizeof *tiler->list, 64);
    if (!tiler->list)
        return tess_fail(TESS_ERROR_OUT_OF_MEMORY, "tess_plan_create: no memory for %u classes",
                         (unsigned)layout->n_classes);
    for (uint32_t c = 0; c < layout->n_classes; c++) {
        uint64_t length = list_length(tiler, &layout->patterns[c]);
        tiler->list[c] = (uint32_t)tiler->n_entries;
        if (length > UINT32_MAX - tiler->n_entries) return too_many();
        tiler->n_entries += length;
    }
    return TESS_OK;
}

void tess_tiler_release(tess_tiler *tiler) {
    if (!tiler->runtime) return;
    tess_mem_free(tiler->runtime, tiler->list, tiler->layout->n_classes * sizeof *tiler->list);
    tess_mem_free(tiler->runtime, tiler->joined,
                  (size_t)tiler->joined_room * sizeof *tiler->joined);
    tess_mem_free(tiler->runtime, tiler->table, (size_t)tiler->table_size * sizeof *tiler->table);
    memset(tiler, 0, sizeof *tiler);
}

/* Tiles before the first key keep nothing and are never joined, so i_first fits 31 bits. */
static uint64_t joined_key(uint32_t cls, int64_t i_first, int64_t i_last) {
    return (uint64_t)cls << 40 | (uint64_t)i_first << 5 | (uint64_t)(i_last - i_first);
}

/* The element of the hash table that holds `key`, or the empty one where it belongs. */
static uint64_t joined_find(const tess_tiler *tiler, uint64_t key) {
    uint64_t at = (key * UINT64_C(0x9e3779b97f4a7c15)) >> 32 & (tiler->table_size - 1);
    while (tiler->table[at] != 0 && tiler->joined[tiler->table[at] - 1].key != key)
        at = (at + 1) & (tiler->table_size - 1);
    return at;
}

/* Doubles the room. The old arrays stay valid until both new ones are there. There are at most as
 * many joined rows as jobs, so an index fits 32 bits. */
static tess_status joined_grow(tess_tiler *tiler) {
    uint64_t room = tiler->joined_room ? 2 * tiler->joined_room : 64, table_size = 2 * room;
    tess_joined *joined = tess_mem_alloc(tiler->runtime, (size_t)room * sizeof *joined, 64);
    uint32_t *table = tess_mem_alloc(tiler->runtime, (size_t)table_size * sizeof *table, 64);
    if (!joined || !table) {
        tess_mem_free(tiler->runtime, joined, (size_t)room * sizeof *joined);
        tess_mem_free(tiler->runtime, table, (size_t)table_size * sizeof *table);
        return tess_fail(TESS_ERROR_OUT_OF_MEMORY,
                         "tess_plan_create: no memory for %llu merged rows of the mask",
                         (unsigned long long)room);
    }
    if (tiler->n_joined) memcpy(joined, tiler->joined, (size_t)tiler->n_joined * sizeof *joined);
    tess_mem_free(tiler->runtime, tiler->joined, (size_t)tiler->joined_room * sizeof *joined);
    tess_mem_free(tiler->runtime, tiler->table, (size_t)tiler->table_size * sizeof *table);
    memset(table, 0, (size_t)table_size * sizeof *table);
    tiler->joined = joined;
    tiler->table = table;
    tiler->joined_room = room;
    tiler->table_size = table_size;
    for (uint64_t n = 0; n < tiler->n_joined; n++)
        table[joined_find(tiler, joined[n].key)] = (uint32_t)n + 1;
    return TESS_OK;
}

/* Joins the columns of the rows i_first .. i_first + span, from column `from` on, in rising order.
 * Each joined column has a bit for every row that contains it. Returns how many there are, and
 * writes them unless `entries` is NULL. */
static uint64_t join_rows(const tess_mask_rows *rows, int64_t i_first, int64_t span, int64_t from,
                          uint32_t *entries, uint32_t *bits) {
    const uint32_t *next[MAX_TILE_BLOCKS], *end[MAX_TILE_BLOCKS];
    uint64_t n = 0;
    for (int64_t r = 0; r <= span; r++) {
        int64_t count;
        const uint32_t *columns = tess_mask_row(rows, i_first + r, &count);
        next[r] = columns + (from ? tess_mask_below(columns, count, from) : 0);
        end[r] = columns + count;
    }
    for (;;) {
        uint64_t column = UINT64_MAX;
        uint32_t word = 0;
        for (int64_t r = 0; r <= span; r++) {
            if (next[r] < end[r] && *next[r] < column) column = *next[r];
        }
        if (column == UINT64_MAX) return n;
        for (int64_t r = 0; r <= span; r++) {
            if (next[r] < end[r] && *next[r] == column) {
                word |= UINT32_C(1) << r;
                next[r]++;
            }
        }
        if (entries) {
            entries[n] = (uint32_t)column;
            bits[n] = word;
        }
        n++;
    }
}

tess_status tess_tiler_join(tess_tiler *tiler, uint32_t cls, const tess_tile *tile) {
    if (tile->i_first < 0) return TESS_OK;
    if (tiler->n_joined == tiler->joined_room) { TESS_RETURN_IF_ERROR(joined_grow(tiler)); }
    uint64_t key = joined_key(cls, tile->i_first, tile->i_last), at = joined_find(tiler, key);
    if (tiler->table[at] != 0) return TESS_OK;
    uint64_t count = join_rows(&tiler->layout->patterns[cls].rows, tile->i_first,
                               tile->i_last - tile->i_first, 0, NULL, NULL);
    if (count > UINT32_MAX - tiler->n_entries) return too_many();
    tess_joined *joined = &tiler->joined[tiler->n_joined++];
    joined->key = key;
    joined->offset = (uint32_t)tiler->n_entries;
    joined->count = (uint32_t)count;
    tiler->n_entries += count;
    tiler->table[at] = (uint32_t)tiler->n_joined;
    return TESS_OK;
}

/* How many joined columns lie in key blocks from `from` on. */
static uint32_t joined_from(const tess_tiler *tiler, uint32_t cls, const tess_tile *tile,
                            int64_t from) {
    return (uint32_t)join_rows(&tiler->layout->patterns[cls].rows, tile->i_first,
                               tile->i_last - tile->i_first, from, NULL, NULL);
}

void tess_tiler_class(const tess_tiler *tiler, uint32_t cls, tess_class *words) {
    const tess_head_pattern *pattern = &tiler->layout->patterns[cls];
    tess_class_words(pattern, words);
    words->list_count = (uint32_t)list_length(tiler, pattern);
    words->list_offset = words->list_count ? tiler->list[cls] : 0;
}

void tess_tiler_entries(const tess_tiler *tiler, uint32_t *entries, uint32_t *bits) {
    const tess_layout *layout = tiler->layout;
    for (uint32_t c = 0; c < layout->n_classes; c++) {
        const tess_head_pattern *pattern = &layout->patterns[c];
        uint32_t *list = entries + tiler->list[c];
        if (pattern->kind == TESS_HEAD_STRIDED) {
            for (int64_t j = pattern->first; j < tiler->n_blocks; j += pattern->stride)
                *list++ = (uint32_t)j;
        } else if (pattern->kind == TESS_HEAD_STRIDED_BOTH) {
            for (int64_t residue = 0; residue < smaller(pattern->stride, tiler->n_blocks);
                 residue++) {
                for (int64_t j = residue; j < tiler->n_blocks; j += pattern->stride)
                    *list++ = (uint32_t)j;
            }
        } else {
            for (uint64_t j = 0; j < list_length(tiler, pattern); j++) *list++ = (uint32_t)j;
        }
    }
    for (uint64_t n = 0; n < tiler->n_joined; n++) {
        const tess_joined *joined = &tiler->joined[n];
        const tess_mask_rows *rows = &layout->patterns[joined->key >> 40].rows;
        join_rows(rows, (int64_t)(joined->key >> 5 & 0x7fffffff), (int64_t)(joined->key & 31), 0,
                  entries + joined->offset, bits + joined->offset);
    }
}

/* ------------------------------------------------------------------ keys of a tile */

/* How many blocks need a mask at the end of an interval whose last block is `last`: those whose end
 * the first row does not see. It sees the keys up to `reach`. */
static int64_t masked_tail(int64_t reach, int64_t last, int64_t block, int64_t kv_len) {
    return reach >= kv_len - 1 ? 0 : last + 1 - floor_div(reach + 1, block);
}

/* The interval of the blocks [start, end), less those that the sequence does not have. */
static void set_interval(tess_keys *keys, const tess_key_span *span, int64_t start, int64_t end,
                         int64_t head, int64_t tail) {
    const int64_t from = larger(start, span->first), to = smaller(end, span->end),
                  blocks = larger(0, to - from);
    head = larger(0, head - (from - start));
    tail = smaller(larger(0, tail - (end - to)), blocks);
    keys->interval_start = blocks ? (uint32_t)from : 0;
    keys->interval_blocks = (uint32_t)blocks;
    keys->mask_tail = (uint32_t)tail;
    keys->mask_head = (uint32_t)smaller(head, blocks - tail);
}

/* For causal S2 and dense tiles that tess_causal_keys does not serve. In causal order rows before
 * the first key see nothing. */
static void causal_keys(const tess_tiler *tiler, uint32_t cls, const tess_head_pattern *pattern,
                        const tess_tile *tile, const tess_key_span *span, tess_keys *keys) {
    if (tile->last < 0) return;
    const int64_t end = tile->i_last + 1,
                  tail = masked_tail(tile->first, tile->i_last, pattern->block, span->kv_len);
    if (pattern->kind == TESS_HEAD_DENSE) {
        set_interval(keys, span, 0, end, 0, tail);
        return;
    }
    const int64_t start = tile->start,
                  skipped = tess_vertical_count(pattern, smaller(start, span->first));
    set_interval(keys, span, start, end, tile->i_last - pattern->local + 1 - start, tail);
    keys->left_offset = tiler->list[cls] + (uint32_t)skipped;
    keys->left_count =
        (uint32_t)(tess_vertical_count(pattern, smaller(start, span->end)) - skipped);
}

/* The slice of entries in [begin, end) with the residue of `block`. `end` is at most the end of the
 * lists. */
static void residue_slice(const tess_tiler *tiler, uint32_t cls, int64_t stride, int64_t block,
                          int64_t begin, int64_t end, uint32_t *offset, uint32_t *count) {
    int64_t residue = block % stride, n = tiler->n_blocks;
    if (residue < 0) residue += stride;
    int64_t skipped = begin <= residue ? 0 : (begin - residue - 1) / stride + 1;
    int64_t below = end <= residue ? 0 : (end - residue - 1) / stride + 1;
    *offset = *count = 0;
    if (below <= skipped) return;
    *offset = tiler->list[cls] +
              (uint32_t)(residue * (n / stride) + smaller(residue, n % stride) + skipped);
    *count = (uint32_t)(below - skipped);
}

static void strided_both_keys(const tess_tiler *tiler, uint32_t cls,
                              const tess_head_pattern *pattern, const tess_tile *tile,
                              const tess_key_span *span, tess_keys *keys) {
    int64_t start = tile->i_first - pattern->local + 1, end = tile->i_first + pattern->local_right;
    set_interval(keys, span, start, end, 0, 0);
    residue_slice(tiler, cls, pattern->stride, start, span->first, smaller(start, span->end),
                  &keys->left_offset, &keys->left_count);
    residue_slice(tiler, cls, pattern->stride, end - 1, larger(end, span->first), span->end,
                  &keys->right_offset, &keys->right_count);
}

/* The window is the interval; the sinks on both sides of it are slices. */
static void window_keys(const tess_tiler *tiler, uint32_t cls, const tess_head_pattern *pattern,
                        const tess_tile *tile, const tess_key_span *span, tess_keys *keys) {
    int64_t block = pattern->block, first = span->first, kv_len = span->kv_len,
            sinks = smaller(pattern->sinks / block + (pattern->sinks % block != 0), span->end);
    int64_t low = larger(0, tile->first - pattern->left),
            high = smaller(kv_len - 1, tile->last + pattern->right);
    if (pattern->causal && tile->last < 0) return;
    keys->left_offset = keys->right_offset = tiler->list[cls] + (uint32_t)smaller(first, sinks);
    if (high < low) { /* the window lies before the first key or after the last: sinks only */
        keys->left_count = (uint32_t)larger(0, sinks - first);
        return;
    }
    int64_t start = low / block, end = high / block + 1, seen = tile->last - pattern->left;
    int64_t head = seen <= 0 ? 0 : (seen + block - 1) / block - start;
    set_interval(keys, span, start, end, head,
                 masked_tail(tile->first + pattern->right, end - 1, block, kv_len));
    keys->left_count = (uint32_t)larger(0, smaller(sinks, start) - first);
    const int64_t after = larger(end, first);
    if (!pattern->causal && sinks > after) {
        keys->right_offset = tiler->list[cls] + (uint32_t)after;
        keys->right_count = (uint32_t)(sinks - after);
    }
}

/* In causal order no column lies past the query block anyway. */
static void joined_keys(const tess_tiler *tiler, uint32_t cls, const tess_head_pattern *pattern,
                        const tess_tile *tile, const tess_key_span *span, tess_keys *keys) {
    if (tile->i_first < 0) return;
    const uint64_t at = joined_find(tiler, joined_key(cls, tile->i_first, tile->i_last));
    const tess_joined *joined = &tiler->joined[tiler->table[at] - 1];
    uint32_t from = joined->count, after = 0;
    if (span->first > 0) from = joined_from(tiler, cls, tile, span->first);
    if (!pattern->causal || tile->i_last >= span->end)
        after = joined_from(tiler, cls, tile, span->end);
    keys->left_offset = joined->offset + (joined->count - from);
    keys->left_count = from > after ? from - after : 0;
}

void tess_tile_keys_of(const tess_tiler *tiler, uint32_t cls, const tess_tile *tile,
                       const tess_key_span *span, tess_keys *keys) {
    const tess_head_pattern *pattern = &tiler->layout->patterns[cls];
    memset(keys, 0, sizeof *keys);
    switch (pattern->kind) {
    case TESS_HEAD_STRIDED_BOTH: strided_both_keys(tiler, cls, pattern, tile, span, keys); break;
    case TESS_HEAD_WINDOW: window_keys(tiler, cls, pattern, tile, span, keys); break;
    case TESS_HEAD_BLOCKS: joined_keys(tiler, cls, pattern, tile, span, keys); break;
    default:
        if (pattern->causal)
            causal_keys(tiler, cls, pattern, tile, span, keys);
        else
            set_interval(keys, span, 0, span->end, 0, 0);
    }
}
