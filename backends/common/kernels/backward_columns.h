/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rows and keys of a column in their order, for device code: tessera_column_walk.h is the same
 * for C. The rows that a segment has of a head are numbered through in the order of its runs.
 */
#ifndef TESS_BACKWARD_COLUMNS_H
#define TESS_BACKWARD_COLUMNS_H

#include "forward_job.h"

TESS_STRUCT(tess_rows) {
    uint cls;   /* where its words begin */
    uint flags; /* TESS_CLASS_* */
    uint head, heads;
    uint first, blocks; /* of the column */
    int row;
    uint step;
    uint run;   /* rows of a run */
    uint count; /* of one head, those that do not exist among them */
};

/* The segment whose words begin at `at`. */
TESS_FUNCTION tess_rows tess_read_rows(uint at TESS_TABLES) {
    tess_rows rows;
    const uint count = TESS_WORD(at + TESS_WORD_SEGMENT_ROWS),
               blocks = TESS_HIGH_HALF(TESS_WORD(at + TESS_WORD_SEGMENT_BLOCKS));
    rows.cls =
        args.classes_at + TESS_LOW_HALF(TESS_WORD(at + TESS_WORD_SEGMENT_CLS)) * TESS_CLASS_WORDS;
    rows.flags = TESS_WORD(rows.cls + TESS_WORD_CLASS_FLAGS);
    rows.head = TESS_LOW_HALF(TESS_WORD(at + TESS_WORD_SEGMENT_HEAD));
    rows.heads = TESS_HIGH_HALF(TESS_WORD(at + TESS_WORD_SEGMENT_HEAD));
    rows.first = blocks & 0xffu;
    rows.blocks = blocks >> 8;
    rows.row = TESS_INT(TESS_WORD(at + TESS_WORD_SEGMENT_ROW));
    rows.step = TESS_WORD(at + TESS_WORD_SEGMENT_STEP);
    const bool runs = (rows.flags & TESS_CLASS_BITS) != 0u || rows.step != 0u;
    rows.run = runs ? args.block : count;
    rows.count = runs ? count * args.block : count;
    return rows;
}

/* Row number u of a head; -1 if there is none. `bits` says which blocks of the column it reads. */
TESS_STRUCT(tess_column_row) {
    int row;
    uint bits;
};

TESS_FUNCTION tess_column_row tess_find_column_row(uint u, tess_rows rows, int q_first,
                                                   int q_len TESS_TABLES) {
    tess_column_row found;
    found.row = -1;
    found.bits = 0xffffffffu;
    if (u < rows.count) {
        const uint n = u / rows.run, own = u - n * rows.run;
        if ((rows.flags & TESS_CLASS_BITS) != 0u) {
            const uint at = TESS_UINT(rows.row) + n;
            found.bits = TESS_WORD(args.bits_at + at) >> rows.step;
            found.row = TESS_INT(TESS_WORD(args.entries_at + at) * args.block + own) - q_first;
        } else {
            found.row = rows.row + TESS_INT(n * rows.step + own);
        }
        if (found.row < 0 || found.row >= q_len) found.row = -1;
    }
    return found;
}

/* Which rows keep a key: those at positions [low, high] whose word has the key's bit. */
TESS_STRUCT(tess_key_bounds) {
    int low, high;
    uint bit;
};

/* Of key `k` of a column at position t. Keys that are not of the segment have no rows. */
TESS_FUNCTION tess_key_bounds tess_find_bounds(uint k, uint t, tess_rows rows TESS_TABLES) {
    tess_key_bounds found;
    const uint m = k / args.block, j = t / args.block;
    const int at = TESS_INT(t);
    found.low = TESS_INT_MIN;
    found.high = TESS_INT_MAX;
    found.bit = m & 31u;
    if ((rows.flags & TESS_CLASS_CAUSAL) != 0u) found.low = at;
    if ((rows.flags & TESS_CLASS_LOCAL) != 0u) {
        const uint near_blocks = TESS_WORD(rows.cls + TESS_WORD_CLASS_LOCAL),
                   stride = TESS_WORD(rows.cls + TESS_WORD_CLASS_STRIDE),
                   shift = TESS_WORD(rows.cls + TESS_WORD_CLASS_SHIFT);
        /* (j + shift) mod stride == 0 without a sum that could overflow */
        const bool on_stride = j % stride == (shift == 0u ? 0u : stride - shift);
        if (!on_stride && near_blocks <= TESS_UINT(TESS_INT_MAX) / args.block - j)
            found.high = TESS_INT((j + near_blocks) * args.block) - 1;
    }
    if ((rows.flags & TESS_CLASS_WINDOW) != 0u &&
        at >= TESS_INT(TESS_WORD(rows.cls + TESS_WORD_CLASS_SINKS))) {
        const int left = TESS_INT(TESS_WORD(rows.cls + TESS_WORD_CLASS_LEFT)),
                  right = TESS_INT(TESS_WORD(rows.cls + TESS_WORD_CLASS_RIGHT));
        if (left < TESS_INT_MAX - at && at + left < found.high) found.high = at + left;
        if (right != TESS_INT_MAX && at - right > found.low) found.low = at - right;
    }
    if (m < rows.first || m >= rows.first + rows.blocks) {
        found.low = TESS_INT_MAX;
        found.high = TESS_INT_MIN;
    }
    return found;
}

/* The position of key k of the column whose words begin at `column`. */
TESS_FUNCTION uint tess_column_token(uint column, uint k TESS_TABLES) {
    const uint m = k / args.block, own = k - m * args.block,
               first = TESS_HIGH_HALF(TESS_WORD(column + TESS_WORD_COLUMN_FIRST_BLOCKS)),
               step = TESS_WORD(column + TESS_WORD_COLUMN_STEP);
    return own + (m < first ? TESS_WORD(column + TESS_WORD_COLUMN_KEY) + m * step
                            : TESS_WORD(column + TESS_WORD_COLUMN_NEXT_KEY) + (m - first) * step);
}

#endif /* TESS_BACKWARD_COLUMNS_H */
