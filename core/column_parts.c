/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Columns that are cut. A column of a kv head goes through all rows of all of its query heads.
 * Where the longest one takes longer than a device's share of all, it becomes several columns with
 * the same keys, each with some of the heads, some of the rows, or both. Turns stay what they are:
 * they name the first of these columns. So nothing is walked again: columns and segments are
 * written several times, with other heads and rows.
 */
#include "columns.h"

#include <stdlib.h>
#include <string.h>

/* Rows of query heads. */
static uint64_t rows_of(const tess_columns *x, const tess_column *column) {
    const tess_layout *layout = x->jobs->tiler->layout;
    const tess_segment *s = x->segments + column->segment;
    const bool masked = layout->patterns[0].kind == TESS_HEAD_BLOCKS;
    uint64_t rows = 0;
    for (uint32_t n = 0; n < column->segments; n++, s++)
        rows += (uint64_t)s->rows * s->heads *
                (masked || (!x->turns && s->step != 0) ? (uint64_t)layout->pattern.block : 1);
    return rows;
}

/* Goes through the columns that are to be cut, and lists them if there is a list. With turns those
 * of a kv head keep their order, so they end with one that is shorter. Returns how many they are.
 */
static uint64_t long_columns(const tess_columns *x, uint64_t least, tess_cut_column *list) {
    /* Columns that repeat the one before are not there to be read. */
    const int behind = x->n_copies == 0 ? 2 : 1;
    uint64_t n = 0;
    for (uint64_t head = 0; head < tess_columns_heads(x); head++) {
        const uint32_t *starts = &x->starts[2 * head];
        uint64_t most = INT64_MAX;
        for (uint32_t c = starts[0]; c < starts[behind]; c++) {
            const uint64_t rows = smaller(most, rows_of(x, &x->columns[c]));
            if (rows <= least && x->turns) break;
            if (rows <= least) continue;
            if (list) list[n] = (tess_cut_column){rows, c, c >= starts[1]};
            if (x->turns) most = rows;
            n++;
        }
    }
    return n;
}

uint64_t tess_columns_longer(const tess_columns *x, uint64_t least) {
    return long_columns(x, least, NULL);
}

/* Longest first. With turns, those of a kv head stay in their order. */
static int compare_cut(const void *a, const void *b) {
    const tess_cut_column *x = a, *y = b;
    if (x->rows != y->rows) return x->rows < y->rows ? 1 : -1;
    return (x->column > y->column) - (x->column < y->column);
}

/* The rows [*begin, *end) of a sequence that belong to a part: as many strips as the others have,
 * give or take one, and the same ones for all of its columns. */
static void part_rows(const tess_columns *x, const tess_column *column, uint32_t part,
                      uint32_t *begin, uint32_t *end) {
    const uint64_t rows = (uint64_t)x->jobs->sequences[column->sequence].q_len,
                   strips = (rows + x->step_rows - 1) / x->step_rows, n = part / x->head_parts,
                   row_parts = x->parts / x->head_parts;
    *begin = (uint32_t)(strips * n / row_parts) * x->step_rows;
    *end = (uint32_t)smaller(rows, strips * (n + 1) / row_parts * x->step_rows);
}

/* What a part has of a whole segment, of which it has the rows [from, to). */
static tess_segment part_of(const tess_columns *x, const tess_segment *whole, uint32_t part,
                            uint32_t from, uint32_t to) {
    const int64_t rows = (int64_t)to - from, above = from - (int64_t)whole->row,
                  below = (int64_t)whole->row + whole->rows - to;
    tess_segment own = *whole;
    own.heads = (uint16_t)(whole->heads / x->head_parts);
    own.head = (uint16_t)(whole->head + part % x->head_parts * own.heads);
    if (x->parts == x->head_parts) return own;
    own.row = (int32_t)from;
    own.rows = (uint32_t)rows;
    if (whole->mask_head == TESS_ALL_ROWS) return own;
    own.mask_head = (uint16_t)smaller(rows, larger(0, whole->mask_head - above));
    own.mask_tail = (uint16_t)smaller(rows, larger(0, whole->mask_tail - below));
    return own;
}

/* Writes a part's segments of `n` whole ones, if there is a place for them; they may be written
 * over these. Returns how many they are. */
static uint32_t part_segments(const tess_columns *x, const tess_column *column, uint32_t part,
                              const tess_segment *whole, uint32_t n, tess_segment *out) {
    uint32_t begin, end, count = 0;
    part_rows(x, column, part, &begin, &end);
    for (uint32_t s = 0; s < n; s++) {
        uint32_t from = 0, to = 1;
        if (x->parts != x->head_parts) {
            from = (uint32_t)larger(begin, whole[s].row);
            to = (uint32_t)smaller(end, (int64_t)whole[s].row + whole[s].rows);
        }
        if (from >= to) continue;
        if (out) out[count] = part_of(x, &whole[s], part, from, to);
        count++;
    }
    return count;
}

/* The same of a column as it was counted. */
static uint32_t count_segments(const tess_columns *x, uint32_t number, uint32_t part) {
    const tess_column *column = &x->columns[number];
    return part_segments(x, column, part, x->segments + column->segment, column->segments, NULL);
}

tess_status tess_columns_cut(tess_columns *x, uint32_t head_parts, uint32_t row_parts,
                             uint64_t least) {
    const uint64_t n = long_columns(x, least, NULL), parts = (uint64_t)head_parts * row_parts;
    uint64_t segments = 0;
    if (n == 0 || n * (parts - 1) > INT32_MAX - (uint64_t)smaller(x->n_columns, INT32_MAX))
        return TESS_OK;
    x->cut_columns = tess_mem_alloc(x->runtime, (size_t)n * sizeof *x->cut_columns, 64);
    if (!x->cut_columns) return tess_columns_no_memory(n * sizeof *x->cut_columns);
    x->n_cut = n;
    x->parts = (uint32_t)parts;
    x->head_parts = head_parts;
    (void)long_columns(x, least, x->cut_columns);
    qsort(x->cut_columns, (size_t)n, sizeof *x->cut_columns, compare_cut);
    for (uint64_t c = 0; c < n; c++) {
        const tess_cut_column *own = &x->cut_columns[c];
        uint64_t *cost = own->near ? &x->near_cost : &x->far_cost;
        for (uint32_t part = 1; part < x->parts; part++)
            segments += count_segments(x, own->column, part);
        *cost -= rows_of(x, &x->columns[own->column]);
        x->places[own->column] = TESS_CUT_PLACE;
    }
    x->more_columns = n * (parts - 1);
    x->more_segments = segments;
    x->most_cost = smaller(x->most_cost, larger(least, x->most_cost / parts));
    if (x->n_segments + segments > UINT32_MAX)
        return tess_unsupported("tess_plan_create: batch: its columns make 2^32 segments or more");
    return TESS_OK;
}

void tess_cut_columns_place(tess_columns *x, tess_column *out) {
    uint32_t segment = (uint32_t)x->n_segments;
    for (uint64_t c = 0; c < x->n_cut; c++) {
        const uint32_t number = x->cut_columns[c].column, at = (uint32_t)c * x->parts;
        /* Turns name the first of the columns with the same keys. */
        x->places[number] = at;
        for (uint32_t part = 0; part < x->parts; part++) {
            tess_column *column = &out[at + part];
            *column = x->columns[number];
            column->segments = count_segments(x, number, part);
            if (part == 0) continue;
            column->segment = segment;
            segment += column->segments;
        }
    }
}

void tess_cut_segments_place(const tess_columns *x, const tess_column *columns,
                             tess_segment *segments) {
    for (uint64_t c = 0; c < x->n_cut; c++) {
        const tess_column *first = &columns[c * x->parts],
                          *counted = &x->columns[x->cut_columns[c].column];
        tess_segment *whole = segments + first->segment;
        /* The first part comes last: it is written over the whole ones. */
        for (uint32_t part = x->parts; part-- > 0;)
            (void)part_segments(x, first, part, whole, counted->segments,
                                segments + first[part].segment);
    }
}
