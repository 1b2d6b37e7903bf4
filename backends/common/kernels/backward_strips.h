/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the stages of the portable backward kernel hand on: LSE in exponents of 2 and Delta of each
 * row and head, as [2][n_heads][strips * TESS_STRIP_ROWS] floats at args.partials_at. Some fields
 * of tess_args have another meaning for these kernels.
 */
#ifndef TESS_BACKWARD_STRIPS_H
#define TESS_BACKWARD_STRIPS_H

#include "shapes.h"

#define TESS_ARGS_STRIPS       (args.pages)       /* of the plan */
#define TESS_ARGS_HEADS        (args.page)        /* query heads */
#define TESS_ARGS_FIRST_STRIPS (args.slots_at)    /* words: tess_tables.first_strips */
#define TESS_ARGS_SEGMENTS     (args.kv_heads_at) /* words: tess_tables.segments */

/* Stands for the LSE of rows that contribute nothing, of which nothing else is read. */
#define TESS_DEAD_LSE 3.0e38f

/* Where LSE of a row is; `number` is that of its sequence. */
TESS_FUNCTION tess_offset tess_strip_at(uint number, uint head, uint row TESS_TABLES) {
    const uint strip = TESS_WORD(TESS_ARGS_FIRST_STRIPS + number);
    return args.partials_at + TESS_OFFSET(row) +
           (TESS_OFFSET(head) * TESS_OFFSET(TESS_ARGS_STRIPS) + TESS_OFFSET(strip)) *
               TESS_OFFSET(TESS_STRIP_ROWS);
}

/* How far Delta is from there. */
#define TESS_TO_DELTA \
    (TESS_OFFSET(TESS_ARGS_HEADS) * TESS_OFFSET(TESS_ARGS_STRIPS) * TESS_OFFSET(TESS_STRIP_ROWS))

/* A group of 4 elements, which may be aligned to 4 of them. */
#define TESS_LOAD_GROUP(x, aligned, at) ((aligned) ? TESS_LOAD4_ALIGNED(x, at) : TESS_LOAD4(x, at))

#endif /* TESS_BACKWARD_STRIPS_H */
