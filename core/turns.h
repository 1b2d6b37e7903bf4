/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who has added to the strips of a sequence last, while columns are walked in their order: runs of
 * strips with the same column. A column takes one interval after the other and finds the runs that
 * it covers; they become one. So all columns together find at most two runs for each interval, and
 * the one that is covered whole.
 */
#ifndef TESSERA_CORE_TURNS_H
#define TESSERA_CORE_TURNS_H

#include "common.h"

/* From strip `begin` to where the next run begins. */
typedef struct tess_turn_run {
    uint32_t begin;
    uint32_t column; /* 0: none yet */
} tess_turn_run;

/* The runs lie in an array with a gap where the last change was, since the next one is near. */
typedef struct tess_turn_map {
    tess_turn_run *runs;      /* [0, low) and [high, room); there is always one in front */
    uint32_t low, high, room; /* room for the strips of the longest sequence and 2 */
    uint32_t strips;          /* of the sequence at hand */
} tess_turn_map;

static inline void tess_turn_reset(tess_turn_map *map, uint32_t strips) {
    map->runs[0] = (tess_turn_run){0, 0};
    map->low = 1;
    map->high = map->room;
    map->strips = strips;
}

static inline uint32_t tess_turn_next(const tess_turn_map *map) {
    return map->high < map->room ? map->runs[map->high].begin : map->strips;
}

/* Moves the gap behind the run that has strip `at`. */
static inline void tess_turn_seek(tess_turn_map *map, uint32_t at) {
    while (map->runs[map->low - 1].begin > at) map->runs[--map->high] = map->runs[--map->low];
    while (map->high < map->room && map->runs[map->high].begin <= at)
        map->runs[map->low++] = map->runs[map->high++];
}

/*
 * Gives the first strips of [at, end) with the same last column to `column`: their end is returned,
 * and who that was in *last. The gap is behind the run that has `at`.
 */
static inline uint32_t tess_turn_take(tess_turn_map *map, uint32_t at, uint32_t end,
                                      uint32_t column, uint32_t *last) {
    tess_turn_run *front = &map->runs[map->low - 1];
    const uint32_t next = tess_turn_next(map);
    *last = front->column;
    if (end < next) map->runs[--map->high] = (tess_turn_run){end, front->column};
    if (front->begin < at)
        map->runs[map->low++] = (tess_turn_run){at, column};
    else
        front->column = column;
    /* It joins the strips below that it has taken before. */
    if (map->low > 1 && map->runs[map->low - 2].column == column) map->low--;
    if (next <= end && next < map->strips) map->runs[map->low++] = map->runs[map->high++];
    return next < end ? next : end;
}

#endif
