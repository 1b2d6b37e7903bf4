/* SPDX-License-Identifier: Apache-2.0 */
/* The rows that read a column's keys, as segments, while the columns of a kv head are walked. */
#ifndef TESSERA_CORE_COLUMN_ROWS_H
#define TESSERA_CORE_COLUMN_ROWS_H

#include "columns.h"

/* Past every position, and far from overflow. */
#define TESS_NO_END (INT64_C(1) << 40)

/* What the rows at positions [begin, end) read of the blocks [first, first + blocks); all of it
 * where they are in [whole, whole_end). */
typedef struct tess_stretch {
    int64_t begin, end, whole, whole_end;
    int64_t first, blocks;
} tess_stretch;

/* One kv head of one sequence, whose columns and segments are added to those of *x. */
typedef struct tess_column_walk {
    tess_columns *x;
    const tess_layout *layout;
    tess_status status; /* OK, or why the walk ends */
    uint32_t sequence, kv_head;
    int64_t block, p0, p1;      /* positions of the rows, [p0, p1) */
    int64_t kv_len, first, end; /* positions of keys end at kv_len; their blocks are [first, end) */
    const tess_head_run *run, *last_run; /* [run, last_run) */
    uint64_t cost;                       /* rows of query heads of the column at hand */
    uint32_t *starts;                    /* of tess_columns, at the kv head */
    /* In plans with turns: */
    uint64_t first_column; /* of the kv head */
    uint64_t least;        /* no column of the kv head comes before one that is walked earlier */
    uint32_t near_shift;   /* from positions to places of near columns */
    bool upward;
    tess_turn_map *map; /* of the run of heads at hand */
    tess_stretch held;  /* its last rows, which the next ones may touch; empty: begin is end */
} tess_column_walk;

/* The key blocks of a column: two runs with the same step. */
typedef struct tess_column_keys {
    int64_t block, step, blocks, first_blocks, next;
    int64_t begin, last; /* positions of the first and of the last key */
    bool strided;        /* to some heads of the kv head, if blocks are strided at all */
} tess_column_keys;

static inline int64_t tess_block_of(const tess_column_keys *k, int64_t m) {
    return m < k->first_blocks ? k->block + m * k->step : k->next + (m - k->first_blocks) * k->step;
}

/* Adds the segments of the column with these keys, and sets walk->cost. */
void tess_column_rows(tess_column_walk *w, const tess_column_keys *k);
/* Adds up to `most` near columns, each the last one moved down by its keys, as far as they differ
 * in nothing else. Returns how many. */
int64_t tess_column_repeat(tess_column_walk *w, int64_t most);

/* Writes those columns to their places, which x->places gets instead of their buckets. Returns the
 * number of the column after them. */
uint32_t tess_column_copies_place(const tess_columns *x, const tess_column_copies *copies,
                                  uint32_t *bucket, tess_column *out);
/* Writes their segments, when all columns have places. Returns the number of the one after them. */
uint64_t tess_column_copies_segments(const tess_columns *x, const tess_column_copies *copies,
                                     tess_segment *out);

/* A turn that names a column by its place in the table rather than by its number. */
static inline uint32_t tess_column_turn(const tess_columns *x, uint32_t turn) {
    const uint32_t wait = turn & TESS_TURN_WAIT;
    return wait == 0 ? turn : (turn & TESS_TURN_UPWARD) | (x->places[wait - 1] + 1);
}

/* Moves a list with room for *room items to where there is room for more; NULL without memory. */
void *tess_column_grow(tess_column_walk *w, void *list, uint64_t *room, size_t size);

/* The list of `count` items, with room for another one; NULL without memory. */
static inline void *tess_column_more(tess_column_walk *w, void *list, uint64_t *room,
                                     uint64_t count, size_t size) {
    return count < *room ? list : tess_column_grow(w, list, room, size);
}

#endif
