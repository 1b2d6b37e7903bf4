/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In causal S2 a key block is read by the query blocks of an interval: up to the last one to which
 * it is local or, where it is strided, up to the end. So a column needs no list, and its cost is
 * linear in the number of key tiles, whatever the length of the sequence.
 */
#include "column_rows.h"

#include <string.h>

#include "spare.h"

/* The position of the last key of block m. */
static int64_t last_key(const tess_column_walk *w, const tess_column_keys *k, int64_t m) {
    if (m + 1 == k->blocks) return k->last;
    return (tess_block_of(k, m) + 1) * w->block - 1;
}

/* ------------------------------------------------------------------ segments */

void *tess_column_grow(tess_column_walk *w, void *list, uint64_t *room, size_t size) {
    tess_runtime *runtime = w->x->runtime;
    /* Most columns have one segment, or two where they take turns. */
    const uint64_t expected = w->x->expected,
                   least = size == sizeof(tess_column_copies) ? expected / 32 + 16
                                                              : expected + expected / 8 + 16,
                   more = *room == 0 ? (size == sizeof(tess_segment) && w->x->turns ? 2 : 1) * least
                                     : *room + *room / 2;
    void *moved = w->status == TESS_OK && more <= SIZE_MAX / size
                      ? tess_spare_take(runtime, (size_t)more * size)
                      : NULL;
    if (!moved) {
        if (w->status == TESS_OK) w->status = tess_columns_no_memory(more * size);
        return NULL;
    }
    if (*room > 0) memcpy(moved, list, (size_t)*room * size);
    tess_spare_give(runtime, list, (size_t)*room * size);
    *room = more;
    return moved;
}

/* A segment with `rows` rows of each of the run's heads, whose other fields are 0; NULL without
 * memory. */
static tess_segment *add_segment(tess_column_walk *w, const tess_head_run *run, uint64_t rows) {
    tess_columns *x = w->x;
    tess_segment *list =
        tess_column_more(w, x->segments, &x->segments_room, x->n_segments, sizeof *list);
    if (!list) return NULL;
    x->segments = list;
    list += x->n_segments++;
    memset(list, 0, sizeof *list);
    list->head = run->head;
    list->heads = run->heads;
    list->cls = run->cls;
    w->cost += rows * run->heads;
    return list;
}

/* The rows [begin, end) of a stretch. */
static void add_rows(tess_column_walk *w, const tess_head_run *run, const tess_stretch *x,
                     int64_t begin, int64_t end, uint32_t turn) {
    const int64_t whole = larger(begin, x->whole), whole_end = smaller(end, x->whole_end);
    int64_t head = whole - begin, tail = end - whole_end;
    if (whole >= whole_end || head >= TESS_ALL_ROWS || tail >= TESS_ALL_ROWS) {
        head = TESS_ALL_ROWS;
        tail = 0;
    }
    tess_segment *s = add_segment(w, run, (uint64_t)(end - begin));
    if (!s) return;
    s->first = (uint8_t)x->first;
    s->blocks = (uint8_t)x->blocks;
    s->row = (int32_t)(begin - w->p0);
    s->rows = (uint32_t)(end - begin);
    s->step = turn;
    s->mask_head = (uint16_t)head;
    s->mask_tail = (uint16_t)tail;
}

/* Of a row. Strips mostly have a power of two rows, and this is asked twice for every stretch. */
static uint32_t strip_of(const tess_columns *x, int64_t row) {
    return x->strip_shift != 0 ? (uint32_t)row >> x->strip_shift : (uint32_t)row / x->step_rows;
}

/* A segment for each of the columns before, if any, that came last to some of the rows' strips. */
static void add_turns(tess_column_walk *w, const tess_head_run *run, const tess_stretch *x) {
    const uint32_t strip = w->x->step_rows, column = (uint32_t)w->x->n_columns + 1,
                   upward = w->upward ? TESS_TURN_UPWARD : 0,
                   end = strip_of(w->x, x->end - 1 - w->p0) + 1;
    uint32_t at = strip_of(w->x, x->begin - w->p0), last;
    tess_turn_seek(w->map, at);
    for (int64_t begin = x->begin; at < end;) {
        at = tess_turn_take(w->map, at, end, column, &last);
        const int64_t next = smaller(x->end, w->p0 + (int64_t)at * strip);
        add_rows(w, run, x, begin, next, last | upward);
        begin = next;
    }
}

/* Separates the rows that are held from those of *x, which lie above, where both have rows of a
 * strip. Such rows join the one of the two that reads all blocks, or become a stretch of their own.
 * More is masked there than in either. */
static void separate_stretches(tess_column_walk *w, const tess_head_run *run, tess_stretch *x) {
    const int64_t strip = w->x->step_rows;
    tess_stretch *held = &w->held;
    const int64_t begin = w->p0 + (x->begin - w->p0) / strip * strip;
    if (held->end <= begin) return;
    const int64_t first = smaller(held->first, x->first),
                  blocks = larger(held->first + held->blocks, x->first + x->blocks) - first;
    const tess_stretch both = {.begin = larger(held->begin, begin),
                               .end = smaller(x->end, begin + strip),
                               .whole = x->end,
                               .whole_end = held->begin,
                               .first = first,
                               .blocks = blocks};
    if (x->blocks == blocks) {
        held->end = x->begin = both.begin;
        return;
    }
    if (held->blocks == blocks) {
        held->whole_end = smaller(held->whole_end, held->end);
        held->end = x->begin = both.end;
        return;
    }
    held->end = both.begin;
    if (held->begin < held->end) add_turns(w, run, held);
    *held = both;
    x->begin = both.end;
}

static void add_stretch(tess_column_walk *w, const tess_head_run *run, const tess_stretch *rows) {
    const int64_t begin = larger(rows->begin, w->p0), end = smaller(rows->end, w->p1);
    tess_stretch *held = &w->held;
    if (begin >= end) return;
    if (!w->x->turns) {
        add_rows(w, run, rows, begin, end, 0);
        return;
    }
    tess_stretch x = *rows;
    x.begin = begin;
    x.end = end;
    x.whole = larger(x.whole, begin);
    if (held->begin < held->end) {
        separate_stretches(w, run, &x);
        if (x.begin >= x.end) return;
        if (held->begin < held->end) add_turns(w, run, held);
    }
    *held = x;
}

/* The rows of a run of heads are complete. */
static void end_run(tess_column_walk *w, const tess_head_run *run) {
    if (w->held.begin < w->held.end) add_turns(w, run, &w->held);
    w->held.begin = w->held.end = 0;
}

/* Cuts the rows of segment n that lie below row c off as a segment of their own. */
static bool cut_segment(tess_column_walk *w, uint64_t n, int64_t c) {
    tess_columns *x = w->x;
    tess_segment *list =
        tess_column_more(w, x->segments, &x->segments_room, x->n_segments, sizeof *list);
    if (!list) return false;
    x->segments = list;
    tess_segment *lower = &list[n], *upper = &list[x->n_segments++];
    const uint32_t above = (uint32_t)((int64_t)lower->row + lower->rows - c);
    *upper = *lower;
    upper->row = (int32_t)c;
    upper->rows = above;
    lower->rows -= above;
    if (lower->mask_head == TESS_ALL_ROWS) return true;
    const int64_t head = lower->mask_head, tail = lower->mask_tail;
    upper->mask_head = (uint16_t)larger(0, head - lower->rows);
    upper->mask_tail = (uint16_t)smaller(tail, above);
    lower->mask_head = (uint16_t)smaller(head, lower->rows);
    lower->mask_tail = (uint16_t)larger(0, tail - above);
    return true;
}

/*
 * Heads of a kv head with patterns of their own take turns with other columns at different rows.
 * If a column took one head after the other, a column with higher keys would wait at the near rows
 * of the last head until this one is done with all others, and in turn keep the next one waiting.
 * So near rows are cut on one grid for all heads, coarse enough for a few segments each, and the
 * column goes from piece to piece. Rows that only far segments have are left whole. Returns the
 * rows of a piece.
 */
static int64_t cut_near_rows(tess_column_walk *w, uint64_t first) {
    enum { STRIPS = 8, PIECES = 8 };
    tess_columns *x = w->x;
    const uint64_t last = x->n_segments;
    const int64_t rows = w->p1 - w->p0;
    int64_t low = rows, high = 0, piece = (int64_t)STRIPS * x->step_rows;
    for (uint64_t n = first; n < last; n++) {
        const int64_t begin = x->segments[n].row, end = begin + x->segments[n].rows;
        low = smaller(low, begin);
        if (end < rows || w->upward) high = larger(high, end);
    }
    while (piece * PIECES < high - low) piece *= 2;
    for (uint64_t n = first; n < last && high > low; n++) {
        const int64_t begin = x->segments[n].row,
                      end = smaller(begin + x->segments[n].rows, high + piece);
        int64_t c = (end - 1) / piece * piece;
        for (; c > begin; c -= piece)
            if (!cut_segment(w, n, c)) return piece;
    }
    return piece;
}

/* Whether segment a comes before b on the way through the rows: piece by piece, and in each piece
 * one head after the other. */
static bool comes_before(const tess_segment *a, const tess_segment *b, int64_t piece, bool upward) {
    const int64_t x = upward ? a->row : -((int64_t)a->row + a->rows - 1),
                  y = upward ? b->row : -((int64_t)b->row + b->rows - 1),
                  x_piece = floor_div(x, piece), y_piece = floor_div(y, piece);
    if (x_piece != y_piece) return x_piece < y_piece;
    return a->head != b->head ? a->head < b->head : x < y;
}

/* Shell's sort: a column has a few dozen segments. */
static void sort_segments(tess_segment *list, uint64_t n, int64_t piece, bool upward) {
    for (uint64_t gap = n / 2; gap > 0; gap /= 2)
        for (uint64_t i = gap; i < n; i++) {
            const tess_segment own = list[i];
            uint64_t to = i;
            for (; to >= gap && comes_before(&own, &list[to - gap], piece, upward); to -= gap)
                list[to] = list[to - gap];
            list[to] = own;
        }
}

/* Puts the segments of a column in the order in which it goes through the rows: that of all heads
 * together, since the columns after it wait for each of them. Those of a run of heads rise. */
static void order_segments(const tess_column_walk *w, uint64_t from, int64_t piece) {
    tess_segment *first = w->x->segments + from, *last = w->x->segments + w->x->n_segments;
    if (w->last_run - w->run > 1) {
        sort_segments(first, (uint64_t)(last - first), piece, w->upward);
        return;
    }
    if (w->upward) return;
    for (; last - first > 1; first++) {
        const tess_segment segment = *--last;
        *last = *first;
        *first = segment;
    }
}

/* Where the rows to which a block is local end. */
static int64_t local_end(const tess_column_walk *w, const tess_head_pattern *pattern, int64_t block,
                         bool to_the_end) {
    return to_the_end ? TESS_NO_END : (block + pattern->local) * w->block;
}

/* Blocks far from each other: each stretch of rows reads those whose rows have begun and not yet
 * ended. In causal order, the block that began last is masked up to its last key. */
static void far_blocks(tess_column_walk *w, const tess_head_run *run,
                       const tess_head_pattern *pattern, const tess_column_keys *k,
                       bool to_the_end) {
    int64_t at = k->begin, from = 0, to = 1;
    while (from < k->blocks && at < w->p1) {
        const int64_t end = from < to ? local_end(w, pattern, tess_block_of(k, from), to_the_end)
                                      : TESS_NO_END,
                      begin = to < k->blocks ? tess_block_of(k, to) * w->block : TESS_NO_END,
                      next = smaller(end, begin);
        const tess_stretch x = {at,   next, to > from ? last_key(w, k, to - 1) : at,
                                next, from, to - from};
        if (to > from) add_stretch(w, run, &x);
        at = next;
        if (end == next && from < to) from++;
        if (begin == next && to < k->blocks) to++;
    }
}

/* Causal S2 and dense heads. */
static void causal_rows(tess_column_walk *w, const tess_head_run *run,
                        const tess_head_pattern *pattern, const tess_column_keys *k) {
    const bool to_the_end =
        pattern->kind == TESS_HEAD_DENSE ||
        (k->strided && (uint32_t)k->block % (uint32_t)pattern->stride == (uint32_t)pattern->first);
    if (k->strided && k->blocks > 1 && k->step * w->block >= w->x->step_rows) {
        far_blocks(w, run, pattern, k, to_the_end);
        return;
    }
    const tess_stretch x = {.begin = k->begin,
                            .end =
                                local_end(w, pattern, tess_block_of(k, k->blocks - 1), to_the_end),
                            .whole = k->last,
                            .whole_end = local_end(w, pattern, k->block, to_the_end),
                            .blocks = k->blocks};
    add_stretch(w, run, &x);
}

/* Neighbours that are near to all of their rows, of a kv head with one causal S2 pattern: most
 * columns there are, and each has a single stretch of rows. False: the column is of another kind.
 */
static bool near_rows(tess_column_walk *w, const tess_column_keys *k) {
    const tess_head_run *run = w->run;
    const tess_head_pattern *pattern = &w->layout->patterns[run->cls];
    if (!w->upward || k->strided || w->last_run - run != 1 || pattern->kind != TESS_HEAD_STRIDED)
        return false;
    const int64_t top = tess_block_of(k, k->blocks - 1);
    tess_stretch x = {.begin = larger(k->begin, w->p0),
                      .end = smaller((top + pattern->local) * w->block, w->p1),
                      .whole_end = (k->block + pattern->local) * w->block,
                      .blocks = k->blocks};
    x.whole = larger(k->last, x.begin);
    w->map = w->x->maps;
    if (x.begin < x.end) add_turns(w, run, &x);
    return true;
}

/* A window, then the rows before and after it, which read the sinks alone. */
static void window_rows(tess_column_walk *w, const tess_head_run *run,
                        const tess_head_pattern *pattern, const tess_column_keys *k) {
    const tess_stretch x = {.begin = k->begin - pattern->right,
                            .end = k->last + pattern->left + 1,
                            .whole = k->last - pattern->right,
                            .whole_end = k->begin + pattern->left + 1,
                            .blocks = k->blocks};
    if (pattern->sinks <= k->begin) {
        add_stretch(w, run, &x);
        return;
    }
    /* Within the window rows keep all keys, so that only those beside it meet the end of the sinks.
     */
    const int64_t of_sinks = pattern->sinks - k->begin,
                  blocks = smaller(k->blocks, (of_sinks - 1) / w->block + 1),
                  last = smaller(k->last, k->begin + blocks * w->block - 1);
    const bool whole = pattern->sinks > last;
    tess_stretch beside = {.blocks = blocks};
    if (!pattern->causal) {
        beside.end = beside.whole_end = x.begin;
        beside.begin = -TESS_NO_END;
        beside.whole = whole ? beside.begin : beside.end;
        add_stretch(w, run, &beside);
    }
    add_stretch(w, run, &x);
    beside.begin = larger(x.begin, x.end);
    beside.end = beside.whole_end = TESS_NO_END;
    beside.whole = whole ? beside.begin : beside.end;
    add_stretch(w, run, &beside);
}

/* The query blocks i, i + stride, ... below `end`, of which all rows read the blocks [first, first
 * + blocks). */
static void add_blocks(tess_column_walk *w, const tess_head_run *run, int64_t i, int64_t end,
                       int64_t stride, int64_t first, int64_t blocks) {
    const int64_t i_first = floor_div(w->p0, w->block), i_end = floor_div(w->p1 - 1, w->block) + 1;
    if (i < i_first) i += (i_first - i + stride - 1) / stride * stride;
    end = smaller(end, i_end);
    if (i >= end) return;
    const int64_t count = (end - i - 1) / stride + 1;
    if (count == 1) {
        const tess_stretch x = {.begin = i * w->block,
                                .end = (i + 1) * w->block,
                                .whole = i * w->block,
                                .whole_end = (i + 1) * w->block,
                                .first = first,
                                .blocks = blocks};
        add_stretch(w, run, &x);
        return;
    }
    tess_segment *s = add_segment(w, run, (uint64_t)(count * w->block));
    if (!s) return;
    s->first = (uint8_t)first;
    s->blocks = (uint8_t)blocks;
    s->row = (int32_t)(i * w->block - w->p0);
    s->rows = (uint32_t)count;
    s->step = (uint32_t)(stride * w->block);
}

/* Bidirectional S2. A block is read by the query blocks of an interval and by those at the stride
 * from both of its ends. The column's blocks are a stride apart, so these are the same ones, but
 * for those that lie between the blocks. */
static void both_rows(tess_column_walk *w, const tess_head_run *run,
                      const tess_head_pattern *pattern, const tess_column_keys *k) {
    const int64_t stride = pattern->stride, n = k->blocks,
                  before = tess_block_of(k, n - 1) - pattern->local_right + 1,
                  after = k->block + pattern->local - 1, many = TESS_NO_END / w->block;
    const int64_t i_first = floor_div(w->p0, w->block), low = before - n * stride;
    if (low >= i_first)
        add_blocks(w, run, low - (low - i_first) / stride * stride, low + 1, stride, 0, n);
    for (int64_t m = 1; m < n; m++)
        add_blocks(w, run, before - (n - m) * stride, before - (n - m) * stride + 1, stride, m,
                   n - m);
    for (int64_t m = 0; m < n; m++) {
        const int64_t j = tess_block_of(k, m);
        const tess_stretch x = {.begin = (j - pattern->local_right + 1) * w->block,
                                .end = (j + pattern->local) * w->block,
                                .whole = -TESS_NO_END,
                                .whole_end = TESS_NO_END,
                                .first = m,
                                .blocks = 1};
        add_stretch(w, run, &x);
    }
    for (int64_t m = 1; m < n; m++)
        add_blocks(w, run, after + m * stride, after + m * stride + 1, stride, 0, m);
    add_blocks(w, run, after + n * stride, many, stride, 0, n);
}

/* How many of the query blocks in [from, to) of a list lie below `end`. */
static uint32_t entries_below(const tess_columns *x, uint32_t from, uint32_t to, int64_t end) {
    return from + (uint32_t)tess_mask_below(x->entries + from, (int64_t)to - from, end);
}

/* A caller's mask. */
static void mask_rows(tess_column_walk *w, const tess_head_run *run,
                      const tess_head_pattern *pattern, const tess_column_keys *k) {
    const tess_columns *x = w->x;
    const int64_t width = larger(x->tile_blocks, 1), tile = k->block / width;
    const uint32_t *start = &x->list_start[(int64_t)run->cls * x->n_tiles + tile];
    const uint32_t from = entries_below(x, start[0], start[1], floor_div(w->p0, w->block)),
                   to = entries_below(x, from, start[1], floor_div(w->p1 - 1, w->block) + 1);
    if (from == to) return;
    const uint32_t masked =
        pattern->causal ? entries_below(x, from, to, k->block + k->blocks) - from : 0;
    tess_segment *s = add_segment(w, run, (uint64_t)(to - from) * (uint64_t)w->block);
    if (!s) return;
    s->blocks = (uint8_t)k->blocks;
    s->row = (int32_t)(x->entries_at + from);
    s->rows = to - from;
    s->step = (uint32_t)(k->block - tile * width);
    s->mask_head = (uint16_t)masked;
}

/* ------------------------------------------------------------------ all of a column */

static void run_rows(tess_column_walk *w, const tess_head_run *run, const tess_column_keys *k) {
    const tess_head_pattern *pattern = &w->layout->patterns[run->cls];
    if (w->x->turns) w->map = &w->x->maps[run - w->run];
    switch (pattern->kind) {
    case TESS_HEAD_WINDOW: window_rows(w, run, pattern, k); break;
    case TESS_HEAD_STRIDED_BOTH: both_rows(w, run, pattern, k); break;
    case TESS_HEAD_BLOCKS: mask_rows(w, run, pattern, k); break;
    default:
        if (pattern->causal) {
            causal_rows(w, run, pattern, k);
        } else {
            const tess_stretch all = {-TESS_NO_END, TESS_NO_END, -TESS_NO_END,
                                      TESS_NO_END,  0,           k->blocks};
            add_stretch(w, run, &all);
        }
    }
    if (w->x->turns) end_run(w, run);
}

void tess_column_rows(tess_column_walk *w, const tess_column_keys *k) {
    tess_columns *x = w->x;
    const uint64_t first = x->n_segments;
    w->cost = 0;
    if (x->turns && near_rows(w, k)) return;
    for (const tess_head_run *run = w->run; run < w->last_run && w->p0 < w->p1; run++)
        run_rows(w, run, k);
    if (!x->turns || x->n_segments == first) return;
    order_segments(w, first, w->last_run - w->run > 1 ? cut_near_rows(w, first) : 1);
}
