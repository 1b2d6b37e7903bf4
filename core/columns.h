/* SPDX-License-Identifier: Apache-2.0 */
/* Columns: the keys of all sequences and kv heads, cut into tiles of keys that go together, and the
 * rows that read them as segments. They are counted first and placed then. */
#ifndef TESSERA_CORE_COLUMNS_H
#define TESSERA_CORE_COLUMNS_H

#include "jobs.h"
#include "turns.h"

_Static_assert(sizeof(tess_column) == 4 * TESS_COLUMN_WORDS, "a column is eight words");
_Static_assert(sizeof(tess_segment) == 4 * TESS_SEGMENT_WORDS, "a segment is six words");
_Static_assert(sizeof(tess_strip) == 4 * TESS_STRIP_WORDS, "a strip is two words");

/* Columns that are the one before them moved down, each by its keys, and have two segments. They
 * have numbers like all others, but are only written where they are placed. */
typedef struct tess_column_copies {
    uint64_t column, segment, n; /* numbers of the first ones, and how many columns */
    uint32_t moved;              /* keys and rows from one to the next */
    tess_column model;           /* the column before the first, */
    tess_segment segments[2];    /* and its segments */
    uint32_t wait; /* of the lower segments; the upper ones wait for the column before */
} tess_column_copies;

/* A column that is cut. */
typedef struct tess_cut_column {
    uint64_t rows;   /* of query heads; with turns, no more than columns before it in the kv head */
    uint32_t column; /* its number as they were counted */
    uint32_t near;   /* 1: it is one of those that come last where there are turns */
} tess_cut_column;

/* What `places` has of such a column, until all others have theirs. */
#define TESS_CUT_PLACE UINT32_MAX

typedef struct tess_columns {
    tess_runtime *runtime;
    const tess_jobs *jobs; /* of the same sequences; has the layout and the runs of heads */
    uint32_t tile_keys, step_rows;
    int64_t tile_blocks; /* most key blocks of a column; 0: a block is cut into columns */
    /* [n_kv_heads + 1] of the runs of heads, and room for the residues of one kv head */
    uint32_t *run_start;
    int64_t *residues;
    tess_order order; /* by rows of query heads */
    uint64_t most;    /* no bucket is for more */

    /* BLOCKS: of each class and tile of tile_blocks key blocks, the query blocks that read some of
     * them, and a word of bits for each. */
    uint32_t *list_start; /* [n_classes * n_tiles + 1] */
    uint32_t *entries, *bits;
    int64_t n_tiles;
    uint64_t n_entries;
    uint64_t entries_at; /* where they begin among the entries of the plan */

    /* Segments have turns, and each run of heads of a kv head a map of who came last. */
    bool turns;
    tess_turn_map *maps; /* [n_maps], with map_runs each of turn_runs */
    tess_turn_run *turn_runs;
    uint64_t map_runs;
    uint32_t strip_shift; /* [0: not so] strips have 2^strip_shift rows */
    uint32_t n_maps;

    /* What tess_columns_count found, one kv head after the other: columns with room for more than
     * there are, where they are to be placed (their bucket first), and segments, whose turns name
     * columns by their number here. */
    uint64_t expected; /* columns, about */
    uint64_t n_columns, n_segments, columns_room, places_room, segments_room;
    tess_column_copies *copies; /* whose columns and segments are not in the lists below */
    uint64_t n_copies, copies_room;
    uint64_t n_repeated; /* columns of all of them, which tests look at */
    tess_column *columns;
    uint32_t *places;
    tess_segment *segments;
    /* [2 for each kv head of each sequence, and 1] where its columns begin, and those of them that
     * come after all others where there are turns. */
    uint32_t *starts;
    uint64_t most_cost, far_cost, near_cost; /* of a column; of all: rows of query heads */

    /* What tess_columns_cut cut into `parts` columns each, in the order of the table. */
    uint32_t parts, head_parts; /* parts of the query heads, and of the rows: parts / head_parts */
    tess_cut_column *cut_columns; /* [n_cut] */
    uint64_t n_cut;
    uint64_t more_columns, more_segments; /* than were counted */

    /* [0: one section] Set between count and place. Columns come in sections of about equal size,
     * longest first in each, that take kv heads with about this many rows of query heads. */
    uint64_t section_rows;
    uint64_t near_rows; /* with turns: the same for the columns that come after all others */
    uint64_t parallel;  /* columns that the device works on at a time */
} tess_columns;

/* Whether all patterns of the layout are read by intervals of rows, so that turns can be had. */
bool tess_columns_turns(const tess_layout *layout);

enum {
    TESS_COLUMNS_TURNS = 1, /* the layout has to allow them, and strips have step_rows rows */
    /* The order of a kv head's columns is the same in every batch, since that of additions to dQ
     * may follow from it. With turns it always is. */
    TESS_COLUMNS_INVARIANT = 2
};

/* Prepares the count. `jobs` are counted already, and must outlive the columns. */
tess_status tess_columns_create(tess_columns *columns, const tess_jobs *jobs, uint32_t tile_keys,
                                uint32_t step_rows, uint32_t flags);
void tess_columns_release(tess_columns *columns);

tess_status tess_columns_count(tess_columns *columns);

/* Between count and place: cuts the columns of more than `least` rows of query heads into columns
 * with the same keys; with turns, of each kv head the first ones up to one that is shorter. Each
 * has one of `head_parts` parts of the query heads, if each kv head has a single run of heads,
 * whose number they divide; and one of `row_parts` parts of the rows, if tess_columns_turns(). They
 * come first in the table, longest first, and columns with the same keys one after the other. */
tess_status tess_columns_cut(tess_columns *columns, uint32_t head_parts, uint32_t row_parts,
                             uint64_t least);
/* How many columns that would be. */
uint64_t tess_columns_longer(const tess_columns *columns, uint64_t least);

/* For tess_columns_place: writes those columns to the first places, when all others have theirs;
 * then their segments, when those of all columns are there. */
void tess_cut_columns_place(tess_columns *columns, tess_column *out);
void tess_cut_segments_place(const tess_columns *columns, const tess_column *out,
                             tess_segment *segments);

/* How many kv heads all sequences have. */
static inline uint64_t tess_columns_heads(const tess_columns *columns) {
    const tess_jobs *jobs = columns->jobs;
    return jobs->n_sequences * (uint64_t)jobs->tiler->layout->n_kv_heads;
}

/* The failure of so many bytes. */
tess_status tess_columns_no_memory(uint64_t bytes);

/* With turns: the most columns of a kv head that come neither before all others nor after them. */
uint64_t tess_columns_far(const tess_columns *columns);

/* Writes what the last count counted, and the entries that segments name. */
void tess_columns_place(tess_columns *columns, tess_column *out, tess_segment *segments);
void tess_columns_entries(const tess_columns *columns, uint32_t *entries, uint32_t *bits);

/* (row, key block) steps of a column, of tiles of `tile_rows` rows. */
uint64_t tess_column_steps(const tess_tables *tables, const tess_column *column, int64_t block,
                           uint32_t tile_rows, bool turns);

#endif
