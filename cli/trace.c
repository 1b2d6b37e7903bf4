/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the rows of one head to outlines. A row is cut into runs of equal cells; runs that touch
 * from row to row grow into one band, whose left and right edges are kept only where they move. A
 * column of strided blocks is thus four numbers whatever its height, and the diagonal staircase a
 * few bytes a row. Nothing needs memory in proportion to the area.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "pattern.h"

block_kind pattern_kind_of(const problem *p, int32_t head, int64_t i, int64_t j) {
    switch (p->pattern) {
    case TESS_PATTERN_S2:
        if ((p->head_ids ? p->head_ids[head] : p->head_first + (int64_t)head) >=
            (int64_t)p->heads_total - p->dense_heads)
            return KIND_DENSE;
        return i - j < p->local && j - i < (p->causal ? 1 : p->local_right) ? KIND_LOCAL
                                                                            : KIND_STRIDED;
    case TESS_PATTERN_WINDOW: {
        /* Both may hold; the window is what moves, so it has the say. */
        int64_t first = i * p->block, last = first + p->block - 1, key = j * p->block,
                key_last = key + p->block - 1;
        int inside = (p->left < 0 || first - key_last <= p->left) &&
                     (p->causal || p->right < 0 || key - last <= p->right);
        return inside ? KIND_WINDOW : KIND_SINK;
    }
    case TESS_PATTERN_BLOCKS: return KIND_MASK;
    default: return KIND_DENSE;
    }
}

/* ------------------------------------------------------------------ growing text */

enum { N_CODES = N_KINDS * TRACE_LEVELS, NO_CODE = -1 };

typedef struct text_buffer {
    char *data;
    size_t length, room;
} text_buffer;

typedef struct edge {
    int64_t row, left, right;
} edge;

/* A run followed downwards. Edges hold the first row and every row where a side moves. */
typedef struct band {
    int code;
    int64_t last_row, end_left, end_right;
    edge *edges;
    size_t count, room;
} band;

typedef struct tracer {
    text_buffer out[N_CODES];
    band *bands, *spare; /* of the row above, from left to right, and room for those of the next */
    size_t n_bands, bands_room, spare_room;
    size_t bytes, budget;
    int failed; /* out of memory */
} tracer;

static void *grow(tracer *tr, void *data, size_t *room, size_t wanted, size_t size) {
    if (wanted <= *room) return data;
    size_t next = *room ? *room * 2 : 8;
    while (next < wanted) next *= 2;
    void *grown = realloc(data, next * size);
    if (!grown) {
        tr->failed = 1;
        return data;
    }
    *room = next;
    return grown;
}

static void put(tracer *tr, text_buffer *out, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void put(tracer *tr, text_buffer *out, const char *format, ...) {
    char piece[96];
    va_list arguments;
    va_start(arguments, format);
    size_t n = (size_t)vsnprintf(piece, sizeof piece, format, arguments);
    va_end(arguments);
    out->data = grow(tr, out->data, &out->room, out->length + n + 1, 1);
    if (tr->failed) return;
    memcpy(out->data + out->length, piece, n + 1);
    out->length += n;
    tr->bytes += n;
}

/* ------------------------------------------------------------------ bands */

/* Writes the outline: down the right edges, back up the left ones. */
static void emit(tracer *tr, const band *b) {
    text_buffer *out = &tr->out[b->code];
    const edge *e = b->edges;
    put(tr, out, "M%" PRId64 " %" PRId64 "h%" PRId64, e[0].left, e[0].row, e[0].right - e[0].left);
    int64_t row = e[0].row;
    for (size_t n = 1; n < b->count; n++) {
        if (e[n].right == e[n - 1].right) continue;
        put(tr, out, "v%" PRId64 "h%" PRId64, e[n].row - row, e[n].right - e[n - 1].right);
        row = e[n].row;
    }
    size_t last = b->count - 1;
    put(tr, out, "v%" PRId64 "h%" PRId64, b->last_row + 1 - row, e[last].left - e[last].right);
    row = b->last_row + 1;
    for (size_t n = last; n > 0; n--) {
        if (e[n].left == e[n - 1].left) continue;
        put(tr, out, "v%" PRId64 "h%" PRId64, e[n].row - row, e[n - 1].left - e[n].left);
        row = e[n].row;
    }
    put(tr, out, "z");
}

static void add_edge(tracer *tr, band *b, int64_t row, int64_t left, int64_t right) {
    if (b->count == 0 || left != b->end_left || right != b->end_right) {
        b->edges = grow(tr, b->edges, &b->room, b->count + 1, sizeof *b->edges);
        if (tr->failed) return;
        b->edges[b->count++] = (edge){row, left, right};
    }
    b->last_row = row;
    b->end_left = left;
    b->end_right = right;
}

static void close_band(tracer *tr, band *b) {
    if (!tr->failed && b->count) emit(tr, b);
    free(b->edges);
    b->edges = NULL;
}

static void close_all(tracer *tr) {
    band *bands = tr->bands;
    size_t count = tr->n_bands;
    tr->bands = NULL;
    tr->n_bands = 0;
    for (size_t n = 0; n < count; n++) close_band(tr, &bands[n]);
    free(bands);
    free(tr->spare);
    tr->spare = NULL;
}

/* One row of cells. Runs and bands are both ordered from left to right, so that one walk for each
 * code matches them; corners that touch are enough. */
static void add_row(tracer *tr, const uint8_t *codes, int64_t cells, int64_t row) {
    band *old = tr->bands;
    size_t n_old = tr->n_bands, old_room = tr->bands_room, at[N_CODES] = {0};
    tr->bands = tr->spare;
    tr->bands_room = tr->spare_room;
    tr->n_bands = 0;
    for (int64_t left = 0, right; left < cells && !tr->failed; left = right) {
        int code = codes[left];
        for (right = left + 1; right < cells && codes[right] == code; right++) {}
        if (code < TRACE_LEVELS) continue; /* KIND_NONE */
        tr->bands = grow(tr, tr->bands, &tr->bands_room, tr->n_bands + 1, sizeof *tr->bands);
        if (tr->failed) break;
        band *b = &tr->bands[tr->n_bands++];
        size_t n = at[code];
        while (n < n_old && (old[n].code != code || old[n].end_right < left)) n++;
        if (n < n_old && old[n].end_left <= right) {
            *b = old[n];
            old[n++] = (band){.code = NO_CODE}; /* it lives on in the new list */
        } else {
            *b = (band){.code = code};
        }
        at[code] = n;
        add_edge(tr, b, row, left, right);
    }
    for (size_t n = 0; n < n_old; n++) close_band(tr, &old[n]);
    tr->spare = old;
    tr->spare_room = old_room;
}

/* ------------------------------------------------------------------ cells */

/* Counts of each kind in the cells of one row of the picture, filled from the rows of blocks below
 * it; `counts` is [cells][N_KINDS]. */
static tess_status count_cells(const trace *t, const problem *p, const tess_layout *layout,
                               int32_t head, int64_t blocks, int64_t shown, int64_t row,
                               uint8_t *kept, uint32_t *counts, cli_progress *progress, double done,
                               double share) {
    memset(counts, 0, (size_t)t->cells * N_KINDS * sizeof *counts);
    for (int64_t i = row * t->cell; i < (row + 1) * t->cell && i < shown; i++) {
        tess_status status = tess_layout_row(layout, head, i, kept, blocks);
        if (status != TESS_OK) return status;
        for (int64_t j = 0; j < shown; j++)
            if (kept[j]) counts[j / t->cell * N_KINDS + pattern_kind_of(p, head, i, j)]++;
        cli_progress_show(progress, done + share * (double)i / (double)shown);
    }
    return TESS_OK;
}

/* The kind with most blocks, at a level by the share of all kept blocks, so that sparse cells look
 * light. */
static uint8_t cell_code(const uint32_t *counts, int64_t area) {
    int kind = KIND_NONE;
    int64_t total = 0;
    for (int k = 1; k < N_KINDS; k++) {
        total += counts[k];
        if (counts[k] > counts[kind]) kind = k;
    }
    if (total == 0) return 0;
    int64_t level = (total * TRACE_LEVELS + area - 1) / area - 1;
    return (uint8_t)(kind * TRACE_LEVELS + (level < TRACE_LEVELS ? level : TRACE_LEVELS - 1));
}

int trace_head(trace *t, const problem *p, const tess_layout *layout, int32_t head, int64_t blocks,
               int64_t shown, int64_t cell, size_t budget, cli_progress *progress, double done,
               double share) {
    *t = (trace){.cell = cell, .cells = (shown + cell - 1) / cell};
    tracer tr = {.budget = budget};
    uint8_t *kept = malloc((size_t)blocks + 1), *codes = malloc((size_t)t->cells + 1);
    uint32_t *counts = malloc(((size_t)t->cells + 1) * N_KINDS * sizeof *counts);
    int result = kept && codes && counts ? 0 : -1;
    for (int64_t row = 0; row < t->cells && result == 0; row++) {
        if (count_cells(t, p, layout, head, blocks, shown, row, kept, counts, progress, done,
                        share) != TESS_OK)
            result = -1;
        for (int64_t c = 0; c < t->cells; c++)
            codes[c] = cell_code(counts + c * N_KINDS, cell * cell);
        add_row(&tr, codes, t->cells, row);
        /* What is still open counts as well: the staircase of the diagonal is one band to the
         * end. */
        size_t open = 0;
        for (size_t n = 0; n < tr.n_bands; n++) open += tr.bands[n].count * 8;
        if (tr.bytes + open > budget) result = 1;
        if (tr.failed) result = -1;
    }
    if (result != 0) tr.failed = 1; /* what is still open needs no outline */
    close_all(&tr);
    free(kept);
    free(codes);
    free(counts);
    if (tr.failed && result == 0) result = -1;
    if (result == 0 && tr.bytes > budget) result = 1;
    for (int code = 0; code < N_CODES; code++)
        t->paths[code / TRACE_LEVELS][code % TRACE_LEVELS] = tr.out[code].data;
    t->bytes = tr.bytes;
    return result;
}

int trace_equal(const trace *a, const trace *b) {
    if (a->cell != b->cell || a->cells != b->cells || a->bytes != b->bytes) return 0;
    for (int kind = 0; kind < N_KINDS; kind++)
        for (int level = 0; level < TRACE_LEVELS; level++) {
            const char *x = a->paths[kind][level], *y = b->paths[kind][level];
            if (!x != !y || (x && strcmp(x, y) != 0)) return 0;
        }
    return 1;
}

void trace_free(trace *t) {
    for (int kind = 0; kind < N_KINDS; kind++)
        for (int level = 0; level < TRACE_LEVELS; level++) free(t->paths[kind][level]);
    *t = (trace){0};
}
