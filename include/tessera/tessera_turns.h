/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tessera: turns, for kernels of a single pass whose columns add to dQ in a fixed order.
 *
 * A kernel that sets tess_kernel.turns gets segments that are cut as strips are: in each strip of a
 * query head, a column has rows of one segment at most, and adds to it once. In the workspace the
 * kernel keeps a word for each strip and query head, which DELTA sets to 0. It says which column
 * has added there last: its number in the plan's table of columns, plus 1. To get the same bits
 * every time, a column
 *
 *   1. waits at (strip, query head) until the word is the segment's `wait`, then
 *   2. adds its rows and, once they are in memory,
 *   3. sets the word to its own number plus 1 (tess_turn_leave). Columns that are cut set it to
 *      that of the first one with their keys (tess_turn_column).
 *
 * It does so at each strip and query head of its segments, also where it finds nothing to add: the
 * column after it waits for its word. A run without d_q needs no turns.
 *
 * So additions into a strip come in the order of the table, and a column waits only for columns
 * before it. Nobody waits for ever where workgroups take the columns in the order of the table,
 * from a counter for instance: whoever waits has begun after all that it waits for. Workgroups that
 * have columns of their own from the start (n, n + workgroups, ...) must all run at a time.
 *
 * Segments come in the order in which a column is to walk them, and each says whether its strips
 * rise or fall. At each strip a column takes all query heads of the segment:
 *
 *     for (uint32_t n = 0; n < column->segments; n++) {
 *         const tess_segment *s = &segments[column->segment + n];
 *         const tess_turn turn = tess_turn_of(s, strip_rows);
 *         for (uint32_t m = 0; m < turn.strips; m++) {
 *             const tess_turn_rows at = tess_turn_rows_at(s, strip_rows, m);
 *             for (uint32_t head = s->head; head < s->head + s->heads; head++)
 *                 ... rows [at.row, at.row + at.rows), of strip first_strips[sequence] + at.strip
 *         }
 *     }
 *
 * Another order is right too, but waits longer. In this one, columns that run at the same time all
 * begin with the last strip, and each finds that the one before it has just been there. That also
 * keeps what they read and add to together in a cache, whether or not bits have to be the same.
 */
#ifndef TESSERA_TESSERA_TURNS_H
#define TESSERA_TESSERA_TURNS_H

#include "tessera_tables.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tess_turn {
    uint32_t wait;          /* the word to wait for */
    uint32_t upward;        /* 1: strips rise; 0: from the last to the first */
    uint32_t first, strips; /* strips of the sequence that the segment touches */
} tess_turn;

static inline tess_turn tess_turn_of(const tess_segment *segment, uint32_t strip_rows) {
    const uint32_t row = (uint32_t)segment->row, first = row / strip_rows;
    tess_turn turn;
    turn.wait = segment->step & TESS_TURN_WAIT;
    turn.upward = (segment->step & TESS_TURN_UPWARD) != 0;
    turn.first = first;
    turn.strips = (row + segment->rows - 1) / strip_rows - first + 1;
    return turn;
}

/* The word that a column leaves, whose number is `column`; or that of the first column with the
 * same keys, of those that are cut. */
static inline uint32_t tess_turn_leave(uint32_t column) { return column + 1; }

/* That first column, where `cut` columns have become `parts` each (tess_launch.n_cut_columns).
 * Other columns are the first ones themselves. */
static inline uint32_t tess_turn_column(uint32_t column, uint32_t cut, uint32_t parts) {
    return column / parts < cut ? column - column % parts : column;
}

typedef struct tess_turn_rows {
    uint32_t strip;  /* of the sequence */
    uint32_t row;    /* the first row of the sequence that the segment has in the strip */
    uint32_t rows;   /* 1 to strip_rows */
    uint32_t masked; /* 1: tess_kept decides; 0: the rows keep all keys */
} tess_turn_rows;

/* The strip that comes as number m, m < strips, in the order of walking. */
static inline tess_turn_rows tess_turn_rows_at(const tess_segment *segment, uint32_t strip_rows,
                                               uint32_t m) {
    const tess_turn turn = tess_turn_of(segment, strip_rows);
    const uint32_t first = (uint32_t)segment->row, end = first + segment->rows;
    uint32_t last;
    tess_turn_rows at;
    at.strip = turn.first + (turn.upward ? m : turn.strips - 1 - m);
    at.row = at.strip * strip_rows;
    last = end - at.row < strip_rows ? end : at.row + strip_rows;
    if (at.row < first) at.row = first;
    at.rows = last - at.row;
    at.masked = segment->mask_head == TESS_ALL_ROWS || at.row < first + segment->mask_head ||
                last > end - segment->mask_tail;
    return at;
}

#ifdef __cplusplus
}
#endif

#endif /* TESSERA_TESSERA_TURNS_H */
