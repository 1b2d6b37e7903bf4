/* SPDX-License-Identifier: Apache-2.0 */
/* Tiles: how the rows of a sequence are cut, and which key blocks the rows of a tile read. */
#ifndef TESSERA_CORE_TILE_H
#define TESSERA_CORE_TILE_H

#include "layout.h"

/* Tiles are cut at fixed absolute positions, so that equal rows of different sequences make equal tiles: cells of `unit` tokens begin at multiples of `unit`,
 * and each is cut into tiles of `step` rows. Either a cell is one tile of whole blocks, or it is one block of several tiles. */
typedef struct tess_grid {
    int64_t block, unit, step;
    int64_t blocks; /* of a cell */
} tess_grid;

/* `tile_rows` is at least 1. At most 32 blocks make a tile, and one where the layout's rule is relative to the query block. */
void tess_grid_set(tess_grid *grid, const tess_layout *layout, int64_t tile_rows);

/* A bound on the tiles that `rows` rows make, whatever their position. */
uint64_t tess_grid_tiles(const tess_grid *grid, int64_t rows);

/* One tile: query positions first .. last of query blocks i_first .. i_last. Either all are negative or none is. */
typedef struct tess_tile {
    int64_t first, last, i_first, i_last;
    int64_t cell_end, end; /* where the cell and the sequence's rows end */
} tess_tile;

/* The first tile of the rows [begin, end), begin < end; then the next one, false after the last. */
void tess_tile_begin(const tess_grid *grid, int64_t begin, int64_t end, tess_tile *tile);
bool tess_tile_next(const tess_grid *grid, tess_tile *tile);

/* The key blocks of a tile, as tess_job says. `vertical` is kept from tile to tile of one sequence and class. */
typedef struct tess_keys {
    uint32_t left_offset, left_count, right_offset, right_count;
    uint32_t interval_start, interval_blocks, mask_head, mask_tail;
    int64_t vertical; /* STRIDED: entries of the list below the interval */
} tess_keys;

static inline uint64_t tess_keys_blocks(const tess_keys *keys) { return (uint64_t)keys->left_count + keys->right_count + keys->interval_blocks; }

/* The merged columns of the query blocks i_first .. i_first + span of a BLOCKS class, and where they stand in the entries. */
typedef struct tess_merged {
    uint64_t key;
    uint32_t offset, count;
} tess_merged;

/* What turns tiles into key blocks: the layout, the lists behind the entries of its classes, and the merged rows of block masks. */
typedef struct tess_tiler {
    tess_runtime *runtime;
    const tess_layout *layout;
    int64_t n_blocks; /* key blocks of the longest sequence: where lists end */
    uint64_t n_entries;
    uint32_t *list; /* [n_classes] where the list of a class begins in the entries */
    /* BLOCKS: a growing array and an open-addressing index over it (place plus 1). */
    tess_merged *merged;
    uint32_t *slots;
    uint64_t n_merged, merged_room, n_slots;
} tess_tiler;

/* `max_keys`: of the longest sequence. UNSUPPORTED when the lists need 2^32 entries. */
tess_status tess_tiler_create(tess_tiler *tiler, tess_runtime *runtime, const tess_layout *layout, int64_t max_keys);
void tess_tiler_release(tess_tiler *tiler);

/* BLOCKS: makes the merged rows of a tile known before tess_tile_keys asks for them, and counts their entries. */
tess_status tess_tiler_merge(tess_tiler *tiler, uint32_t cls, const tess_tile *tile);

/* Starts `keys` for a class and the first tile of a sequence. */
void tess_keys_begin(const tess_tiler *tiler, uint32_t cls, const tess_tile *tile, tess_keys *keys);

/* The key blocks of one tile of a sequence of `kv_len` keys in `kv_blocks` blocks. */
void tess_tile_keys(const tess_tiler *tiler, uint32_t cls, const tess_tile *tile, int64_t kv_len, int64_t kv_blocks, tess_keys *keys);

/* Writes all entries, and their bits where `bits` is not NULL. */
void tess_tiler_entries(const tess_tiler *tiler, uint32_t *entries, uint32_t *bits);

#endif
