/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Most columns of causal S2 with turns hold neighbours between the same two strided blocks as those
 * of the column before, and their rows have two segments: at the bottom as many as the keys have
 * moved down, which a far column had last, and above them those that the column before has taken.
 * So such a column is the last one moved down, turns included. It takes a fraction of a walk, and
 * is written once, to its place.
 */
#include "column_rows.h"

/* The last column, as what the next ones are made of. */
typedef struct model {
    tess_column column;
    tess_segment segments[2];
    uint32_t moved;           /* rows and keys from one column to the next */
    uint32_t at, strips, end; /* strips: where it begins, how far it moves, and past its last one */
    const tess_turn_run *free; /* the strips below it */
} model;

/* Whether the last column has what the next one is to have: neighbours alone, rows in two segments
 * of which the lower one is as long as the keys, and nothing cut off by an end of the sequence. */
static bool read_model(const tess_column_walk *w, model *m) {
    const tess_columns *x = w->x;
    const tess_turn_map *map = &x->maps[0];
    const uint32_t number = (uint32_t)x->n_columns; /* of the last column, in turns */
    const tess_head_pattern *pattern = &w->layout->patterns[w->run->cls];
    if (w->last_run - w->run != 1 || number == 0 || map->low < 2) return false;
    const tess_column *c = &x->columns[number - 1];
    const tess_segment *s = &x->segments[c->segment];
    m->moved = (uint32_t)(x->tile_blocks * w->block);
    m->strips = m->moved / x->step_rows;
    if (c->segments != 2 || c->blocks != x->tile_blocks || c->first_blocks != c->blocks ||
        c->keys != m->moved || m->moved % x->step_rows != 0)
        return false;
    const int64_t end = (int64_t)s[1].row + s[1].rows,
                  local = (int64_t)c->key / w->block + c->blocks - 1 + pattern->local;
    m->at = (uint32_t)s[0].row / x->step_rows;
    m->end = (uint32_t)((end - 1) / x->step_rows + 1);
    m->free = &map->runs[map->low - 2];
    m->column = *c;
    m->segments[0] = s[0];
    m->segments[1] = s[1];
    return end == local * w->block - w->p0 && s[1].row == s[0].row + (int32_t)m->moved &&
           m->free[1].begin == m->at && m->free[1].column == number &&
           m->end - m->strips < tess_turn_next(map);
}

/* How many columns there is room for, in the lists and in the strips below. */
static uint64_t room_below(const tess_columns *x, const model *m, uint64_t most) {
    const uint64_t columns = smaller(x->columns_room, x->places_room) - x->n_columns,
                   segments = (x->segments_room - x->n_segments) / 2,
                   runs = x->maps[0].high - x->maps[0].low,
                   strips = (m->at - m->free->begin) / m->strips;
    return smaller(smaller(most, strips), smaller(runs, smaller(columns, segments)));
}

int64_t tess_column_repeat(tess_column_walk *w, int64_t most) {
    tess_columns *x = w->x;
    model m;
    if (most <= 0 || !read_model(w, &m)) return 0;
    tess_turn_map *map = &x->maps[0];
    const uint64_t n = room_below(x, &m, (uint64_t)most), rows = m.segments[0].rows;
    if (n == 0) return 0;
    tess_column_copies *copies =
        tess_column_more(w, x->copies, &x->copies_room, x->n_copies, sizeof *copies);
    if (!copies) return 0;
    x->copies = copies;
    copies[x->n_copies++] = (tess_column_copies){.column = x->n_columns,
                                                 .segment = x->n_segments,
                                                 .n = n,
                                                 .moved = m.moved,
                                                 .model = m.column,
                                                 .segments = {m.segments[0], m.segments[1]},
                                                 .wait = m.free->column};
    for (uint64_t c = x->n_columns; c < x->n_columns + n; c++) {
        m.column.key -= m.moved;
        x->places[c] = m.column.key >> w->near_shift >> x->order.shift;
        m.end -= m.strips;
        map->runs[--map->high] = (tess_turn_run){m.end, (uint32_t)c};
    }
    x->n_columns += n;
    x->n_repeated += n;
    x->n_segments += 2 * n;
    x->near_cost += n * (rows + m.segments[1].rows) * w->run->heads;
    /* The last of them is in front, and has taken all that was below it or a part. */
    tess_turn_run *front = &map->runs[map->low - 1];
    *front = (tess_turn_run){m.at - (uint32_t)n * m.strips, (uint32_t)x->n_columns};
    if (front[-1].begin == front->begin) {
        front[-1] = *front;
        map->low--;
    }
    return (int64_t)n;
}

uint32_t tess_column_copies_place(const tess_columns *x, const tess_column_copies *copies,
                                  uint32_t *bucket, tess_column *out) {
    tess_column column = copies->model;
    for (uint64_t n = copies->column; n < copies->column + copies->n; n++) {
        column.key -= copies->moved;
        column.segment += 2;
        x->places[n] = bucket[x->places[n]]++;
        out[x->places[n]] = column;
    }
    return (uint32_t)(copies->column + copies->n);
}

uint64_t tess_column_copies_segments(const tess_columns *x, const tess_column_copies *copies,
                                     tess_segment *out) {
    const uint32_t *before = &x->places[copies->column - 1];
    tess_segment lower = copies->segments[0], upper = copies->segments[1];
    lower.step = tess_column_turn(x, copies->wait | TESS_TURN_UPWARD);
    out += copies->segment;
    for (uint64_t n = 0; n < copies->n; n++) {
        lower.row -= (int32_t)copies->moved;
        upper.row -= (int32_t)copies->moved;
        upper.step = TESS_TURN_UPWARD | (before[n] + 1);
        *out++ = lower;
        *out++ = upper;
    }
    return copies->segment + 2 * copies->n;
}
