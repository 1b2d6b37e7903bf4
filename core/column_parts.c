/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Columns that are cut by query heads. A column of a kv head goes through the rows of all of its
 * query heads. Where the longest one takes longer than a device's share of all, it becomes several
 * columns with the same keys, each with some of the heads. Their rows and turns are the same. So
 * nothing is walked again: the columns are written several times, with other heads.
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

/* Goes through the columns that are to be cut, and lists them if there is a list. Returns how many
 * they are. */
static uint64_t long_columns(const tess_columns *x, uint64_t least, tess_cut_column *list) {
    /* Columns that repeat the one before are not there to be read. */
    const int behind = x->n_copies == 0 ? 2 : 1;
    uint64_t n = 0;
    for (uint64_t head = 0; head < tess_columns_heads(x); head++) {
        const uint32_t *starts = &x->starts[2 * head];
        uint64_t rows = INT64_MAX;
        for (uint32_t c = starts[0]; c < starts[behind]; c++, n++) {
            rows = smaller(rows, rows_of(x, &x->columns[c]));
            if (rows <= least) break;
            if (list) list[n] = (tess_cut_column){rows, c, (uint32_t)head};
        }
    }
    return n;
}

uint64_t tess_columns_longer(const tess_columns *x, uint64_t least) {
    return long_columns(x, least, NULL);
}

/* Longest first; those of a kv head are as long as the ones before them at most, and stay in their
 * order. */
static int compare_cut(const void *a, const void *b) {
    const tess_cut_column *x = a, *y = b;
    if (x->rows != y->rows) return x->rows < y->rows ? 1 : -1;
    return (x->column > y->column) - (x->column < y->column);
}

tess_status tess_columns_cut(tess_columns *x, uint32_t parts, uint64_t least) {
    const uint64_t heads = tess_columns_heads(x), n = long_columns(x, least, NULL);
    if (n == 0 || n * (parts - 1) > INT32_MAX - (uint64_t)smaller(x->n_columns, INT32_MAX))
        return TESS_OK;
    x->cut_columns = tess_mem_alloc(x->runtime, (size_t)n * sizeof *x->cut_columns, 64);
    x->n_list = n;
    x->cut = tess_mem_alloc(x->runtime, (size_t)heads * sizeof *x->cut, 64);
    if (!x->cut_columns || !x->cut) return tess_columns_no_memory(n * sizeof *x->cut_columns);
    memset(x->cut, 0, (size_t)heads * sizeof *x->cut);
    (void)long_columns(x, least, x->cut_columns);
    qsort(x->cut_columns, (size_t)n, sizeof *x->cut_columns, compare_cut);
    x->parts = parts;
    x->n_cut = n;
    for (uint64_t c = 0; c < n; c++) {
        const tess_cut_column *own = &x->cut_columns[c];
        x->cut[own->head]++;
        x->more_segments += (uint64_t)x->columns[own->column].segments * (parts - 1);
        x->far_cost -= smaller(x->far_cost, own->rows);
    }
    x->more_columns = n * (parts - 1);
    x->most_cost = smaller(x->most_cost, larger(least, x->most_cost / parts));
    return TESS_OK;
}

uint32_t tess_cut_columns_place(tess_columns *x, tess_column *out) {
    uint32_t segment = (uint32_t)x->n_segments;
    for (uint64_t c = 0; c < x->n_cut; c++) {
        const uint32_t number = x->cut_columns[c].column, at = (uint32_t)c * x->parts;
        tess_column column = x->columns[number];
        /* Turns name the first of the columns with the same keys. */
        x->places[number] = at;
        out[at] = column;
        for (uint32_t part = 1; part < x->parts; part++, segment += column.segments) {
            out[at + part] = column;
            out[at + part].segment = segment;
        }
    }
    return (uint32_t)x->n_cut * x->parts;
}

void tess_cut_segments_place(const tess_columns *x, const tess_column *columns,
                             tess_segment *segments) {
    for (uint64_t c = 0; c < x->n_cut * x->parts; c++) {
        const tess_column *first = &columns[c / x->parts * x->parts];
        const uint32_t part = (uint32_t)(c % x->parts);
        for (uint32_t n = 0; n < first->segments; n++) {
            const tess_segment *whole = &segments[first->segment + n];
            tess_segment *own = &segments[columns[c].segment + n];
            if (part == 0) continue;
            *own = *whole;
            own->heads = (uint16_t)(whole->heads / x->parts);
            own->head = (uint16_t)(whole->head + part * own->heads);
        }
        /* The first part is what the others are made of, until they are there. */
        for (uint32_t n = 0; part + 1 == x->parts && n < first->segments; n++)
            segments[first->segment + n].heads /= (uint16_t)x->parts;
    }
}
