/* SPDX-License-Identifier: Apache-2.0 */
/* Tiles: how the rows of a sequence are cut, and which key blocks a tile reads. */
#ifndef TESSERA_CORE_TILE_H
#define TESSERA_CORE_TILE_H

#include "layout.h"

/* Tiles are cut at fixed absolute positions, so that equal rows of different sequences make equal
 * tiles. Cells of `unit` tokens begin at multiples of `unit`, and each is cut into tiles of `step`
 * rows. A cell is one tile of whole blocks, or one block of several tiles. Where whole blocks would
 * leave much of a tile empty, a cell is one full tile and its limits lie inside blocks. */
typedef struct tess_grid {
    int64_t block, unit, step;
    int64_t blocks; /* of a cell; 0: its limits lie inside blocks */
    /* of the layout's causal S2 classes, all of which share them; stride 0: it has none */
    int64_t local, stride;
    bool from_end; /* cells are counted from a sequence's last row instead */
} tess_grid;

/* `tile_rows` is at least 1. At most 32 blocks make a tile, and one where the layout's pattern is
 * relative to the query block. */
void tess_grid_set(tess_grid *grid, const tess_layout *layout, int64_t tile_rows);

/* Makes the last tile of a sequence full and the first one short, because the last tile reads the
 * most keys. Only where all heads are dense. Equal rows of sequences with other lengths then make
 * other tiles. */
void tess_grid_count_from_end(tess_grid *grid, const tess_layout *layout, int64_t tile_rows);

/* An upper bound on the tiles that `rows` rows make at any position. */
uint64_t tess_grid_tiles(const tess_grid *grid, int64_t rows);

/* One tile: query positions first .. last of query blocks i_first .. i_last. Either all are
 * negative or none is. */
typedef struct tess_tile {
    int64_t first, last, i_first, i_last;
    int64_t cell_end, end; /* where the cell and the sequence's rows end */
    int64_t blocks;        /* of a cell; 0: its limits lie inside blocks */
    int64_t start;         /* causal S2: the first local block of the first row, at least 0 */
    /* `start` divided by the stride; a vertical list has quotient + (first < rest) entries below
     * `start` */
    int64_t quotient, rest;
} tess_tile;

/* The first tile of the rows [begin, end), begin < end. */
void tess_tile_begin(const tess_grid *grid, int64_t begin, int64_t end, tess_tile *tile);

/* Moves `start` on. Two tiles are at most a few blocks apart. */
static inline void tess_tile_move_start(const tess_grid *grid, tess_tile *tile) {
    int64_t start = tile->i_first - grid->local + 1 > 0 ? tile->i_first - grid->local + 1 : 0;
    tile->rest += start - tile->start;
    tile->start = start;
    while (tile->rest >= grid->stride) {
        tile->rest -= grid->stride;
        tile->quotient++;
    }
}

/* The next tile of the sequence; false after the last. */
static inline bool tess_tile_next(const tess_grid *grid, tess_tile *tile) {
    int64_t first = tile->last + 1;
    if (first >= tile->end) return false;
    /* Nearly every step goes from one whole cell to the next. */
    if (tile->blocks && grid->step == grid->unit && first == tile->cell_end &&
        first + grid->unit <= tile->end) {
        tile->first = first;
        tile->last += grid->unit;
        tile->cell_end += grid->unit;
        tile->i_first = tile->i_last + 1;
        tile->i_last += tile->blocks;
        if (grid->stride) tess_tile_move_start(grid, tile);
        return true;
    }
    tile->first = first;
    const bool next_cell = first == tile->cell_end;
    if (next_cell) tile->cell_end += grid->unit;
    int64_t end = first + grid->step < tile->cell_end ? first + grid->step : tile->cell_end;
    tile->last = (end < tile->end ? end : tile->end) - 1;
    if (next_cell) tile->i_first = tile->blocks ? tile->i_last + 1 : floor_div(first, grid->block);
    /* Only the last tile of a sequence may end before a cell of several blocks does. */
    if (tile->blocks == 1 || (tile->blocks && tile->last + 1 == tile->cell_end))
        tile->i_last = tile->i_first + tile->blocks - 1;
    else
        tile->i_last = floor_div(tile->last, grid->block);
    if (grid->stride) tess_tile_move_start(grid, tile);
    return true;
}

/* The keys of a sequence: those below kv_len in the key blocks [first, end). */
typedef struct tess_key_span {
    int64_t kv_len, first, end;
    bool whole; /* from block 0 on, and no row lies past the last key */
} tess_key_span;

/* `first` is the block of the sequence's first key. */
static inline tess_key_span tess_key_span_of(const tess_sequence *s, int64_t first, int64_t block) {
    const int64_t kv_len = s->kv_len;
    return (tess_key_span){kv_len, first, (kv_len + block - 1) / block,
                           first == 0 && (int64_t)s->q_first + s->q_len <= kv_len};
}

/* The key blocks of a tile, as tess_job says. */
typedef struct tess_keys {
    uint32_t left_offset, left_count, right_offset, right_count;
    uint32_t interval_start, interval_blocks, mask_head, mask_tail;
} tess_keys;

static inline uint64_t tess_keys_blocks(const tess_keys *keys) {
    return (uint64_t)keys->left_count + keys->right_count + keys->interval_blocks;
}

/* The joined columns of the query blocks i_first .. i_first + span of a BLOCKS class, and where
 * they stand in the entries. */
typedef struct tess_joined {
    uint64_t key;
    uint32_t offset, count;
} tess_joined;

/* Turns tiles into key blocks: the layout, the lists of its classes, and the joined rows of block
 * masks. */
typedef struct tess_tiler {
    tess_runtime *runtime;
    const tess_layout *layout;
    int64_t n_blocks; /* key blocks of the longest sequence: where lists end */
    uint64_t n_entries;
    uint32_t *list; /* [n_classes] where the list of a class begins in the entries */
    /* BLOCKS: a growing array, and a hash table with open addressing that holds indices plus 1. */
    tess_joined *joined;
    uint32_t *table;
    uint64_t n_joined, joined_room, table_size;
} tess_tiler;

/* `max_keys`: of the longest sequence. UNSUPPORTED when the lists need 2^32 entries. */
tess_status tess_tiler_create(tess_tiler *tiler, tess_runtime *runtime, const tess_layout *layout,
                              int64_t max_keys);
void tess_tiler_release(tess_tiler *tiler);

/* BLOCKS: joins the rows of a tile and counts their entries. To be called before tess_tile_keys.
 */
tess_status tess_tiler_join(tess_tiler *tiler, uint32_t cls, const tess_tile *tile);

/* The key blocks of one tile of a sequence that has the keys `span`, for every pattern. */
void tess_tile_keys_of(const tess_tiler *tiler, uint32_t cls, const tess_tile *tile,
                       const tess_key_span *span, tess_keys *keys);

/* What determines the key blocks of a causal S2 or dense class. These are copies, which stay in
 * registers while tens of thousands of jobs are written. */
typedef struct tess_causal {
    int64_t local, first, block;
    uint32_t list;
    bool strided;
} tess_causal;

/* False for classes of another kind, and for rows and keys that need the general way. */
static inline bool tess_tiler_causal(const tess_tiler *tiler, uint32_t cls, const tess_tile *tile,
                                     const tess_key_span *span, tess_causal *causal) {
    const tess_head_pattern *pattern = &tiler->layout->patterns[cls];
    *causal = (tess_causal){pattern->local, pattern->first, pattern->block, tiler->list[cls],
                            pattern->kind == TESS_HEAD_STRIDED};
    return pattern->causal && (causal->strided || pattern->kind == TESS_HEAD_DENSE) &&
           span->whole && tile->first >= 0;
}

static inline uint64_t tess_causal_blocks(const tess_causal *c, const tess_tile *tile) {
    const uint64_t blocks = (uint64_t)(tile->i_last + 1);
    return c->strided ? blocks + (uint64_t)(tile->quotient + (c->first < tile->rest) - tile->start)
                      : blocks;
}

/* Where tess_tiler_causal allows it. Left: the list below the interval. Interval: from the
 * first local block of the first row (dense: from block 0) to the diagonal. */
static inline void tess_causal_keys(const tess_causal *c, const tess_tile *tile, int64_t kv_len,
                                    tess_keys *keys) {
    int64_t start = c->strided ? tile->start : 0, blocks = tile->i_last + 1 - start;
    /* Blocks whose end the first row does not see. A tile that begins with the last row of a block
     * sees that block whole. */
    int64_t tail =
        tile->i_last + 1 - tile->i_first - (tile->first + 1 == (tile->i_first + 1) * c->block);
    if (tile->first >= kv_len - 1) tail = 0;
    /* Blocks that are local to the first row but not to the last. */
    int64_t head = c->strided ? tile->i_last - c->local + 1 - start : 0;
    if (head > blocks - tail) head = blocks - tail;
    keys->left_offset = c->list;
    keys->left_count = c->strided ? (uint32_t)(tile->quotient + (c->first < tile->rest)) : 0;
    keys->right_offset = keys->right_count = 0;
    keys->interval_start = (uint32_t)start;
    keys->interval_blocks = (uint32_t)blocks;
    keys->mask_head = head > 0 ? (uint32_t)head : 0;
    keys->mask_tail = (uint32_t)tail;
}

/* The key blocks of one tile of a sequence that has the keys `span`. The call gets copies, so that
 * the caller's variables stay in registers. */
static inline void tess_tile_keys(const tess_tiler *tiler, uint32_t cls, const tess_tile *tile,
                                  const tess_key_span *span, tess_keys *keys) {
    tess_causal causal;
    if (tess_tiler_causal(tiler, cls, tile, span, &causal)) {
        tess_causal_keys(&causal, tile, span->kv_len, keys);
        return;
    }
    const tess_tile copy = *tile;
    const tess_key_span all = *span;
    tess_keys found;
    tess_tile_keys_of(tiler, cls, &copy, &all, &found);
    *keys = found;
}

/* How many key blocks tess_tile_keys finds. */
static inline uint64_t tess_tile_blocks(const tess_tiler *tiler, uint32_t cls,
                                        const tess_tile *tile, const tess_key_span *span) {
    tess_causal causal;
    if (tess_tiler_causal(tiler, cls, tile, span, &causal))
        return tess_causal_blocks(&causal, tile);
    const tess_tile copy = *tile;
    const tess_key_span all = *span;
    tess_keys keys;
    tess_tile_keys_of(tiler, cls, &copy, &all, &keys);
    return tess_keys_blocks(&keys);
}

/* What kernels see of a class, its list included. */
void tess_tiler_class(const tess_tiler *tiler, uint32_t cls, tess_class *words);

/* Writes all entries, and their bits where `bits` is not NULL. */
void tess_tiler_entries(const tess_tiler *tiler, uint32_t *entries, uint32_t *bits);

#endif
