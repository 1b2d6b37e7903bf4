/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In causal S2 a key block is read by the query blocks of an interval: up to the last one to which
 * it is local or, where it is strided, up to the end. So a column needs no list, and its cost is
 * linear in the number of key tiles, whatever the length of the sequence.
 */
#include "columns.h"

#include <stdlib.h>
#include <string.h>

enum {
    MOST_BLOCKS = 128,      /* of a column, since a segment counts them in 8 bits */
    MOST_MASKED_BLOCKS = 32 /* of a mask, which has a bit for each */
};

/* Past every position, and far from overflow. */
#define NO_END (INT64_C(1) << 40)

/* ------------------------------------------------------------------ a walk */

/* One kv head of one sequence, whose columns are counted or, with somewhere to write them, placed.
 */
typedef struct walk {
    tess_columns *x;
    const tess_layout *layout;
    uint32_t sequence, kv_head;
    int64_t block, p0, p1;      /* positions of the rows, [p0, p1) */
    int64_t kv_len, first, end; /* positions of keys end at kv_len; their blocks are [first, end) */
    const tess_head_run *run, *last_run; /* [run, last_run) */
    tess_column *columns;                /* NULL: they are counted */
    tess_segment *segments;              /* likewise */
    uint64_t n_columns, n_segments;
    uint64_t cost; /* rows of query heads of the column at hand */
} walk;

/* The key blocks of a column: two runs with the same step. */
typedef struct keys {
    int64_t block, step, blocks, first_blocks, next;
    int64_t begin, last; /* positions of the first and of the last key */
    bool strided;        /* gathered from a list of the kv head */
} keys;

static int64_t block_of(const keys *k, int64_t m) {
    return m < k->first_blocks ? k->block + m * k->step : k->next + (m - k->first_blocks) * k->step;
}

/* The position of the last key of block m. */
static int64_t last_key(const walk *w, const keys *k, int64_t m) {
    if (m + 1 == k->blocks) return k->last;
    return (block_of(k, m) + 1) * w->block - 1;
}

/* ------------------------------------------------------------------ segments */

static void add_segment(walk *w, const tess_head_run *run, const tess_segment *s, uint64_t rows) {
    if (w->segments) {
        tess_segment *to = &w->segments[w->n_segments];
        *to = *s;
        to->head = run->head;
        to->heads = run->heads;
        to->cls = run->cls;
    }
    w->n_segments++;
    w->cost += rows * run->heads;
}

/* What the rows at positions [begin, end) read of the blocks [first, first + blocks); all of it
 * where they are in [whole, whole_end). */
typedef struct stretch {
    int64_t begin, end, whole, whole_end;
    int64_t first, blocks;
} stretch;

static void add_stretch(walk *w, const tess_head_run *run, const stretch *x) {
    const int64_t begin = larger(x->begin, w->p0), end = smaller(x->end, w->p1);
    if (begin >= end) return;
    const int64_t whole = larger(begin, x->whole), whole_end = smaller(end, x->whole_end);
    int64_t head = whole - begin, tail = end - whole_end;
    if (whole >= whole_end || head >= TESS_ALL_ROWS || tail >= TESS_ALL_ROWS) {
        head = TESS_ALL_ROWS;
        tail = 0;
    }
    const tess_segment segment = {.first = (uint8_t)x->first,
                                  .blocks = (uint8_t)x->blocks,
                                  .row = (int32_t)(begin - w->p0),
                                  .rows = (uint32_t)(end - begin),
                                  .mask_head = (uint16_t)head,
                                  .mask_tail = (uint16_t)tail};
    add_segment(w, run, &segment, (uint64_t)(end - begin));
}

/* Where the rows to which a block is local end. */
static int64_t local_end(const walk *w, const tess_head_pattern *pattern, int64_t block,
                         bool to_the_end) {
    return to_the_end ? NO_END : (block + pattern->local) * w->block;
}

/* Blocks far from each other: each stretch of rows reads those whose rows have begun and not yet
 * ended. In causal order, the block that began last is masked up to its last key. */
static void far_blocks(walk *w, const tess_head_run *run, const tess_head_pattern *pattern,
                       const keys *k, bool to_the_end) {
    int64_t at = k->begin, from = 0, to = 1;
    while (from < k->blocks && at < w->p1) {
        const int64_t end =
                          from < to ? local_end(w, pattern, block_of(k, from), to_the_end) : NO_END,
                      begin = to < k->blocks ? block_of(k, to) * w->block : NO_END,
                      next = smaller(end, begin);
        const stretch x = {at,   next, to > from ? last_key(w, k, to - 1) : at,
                           next, from, to - from};
        if (to > from) add_stretch(w, run, &x);
        at = next;
        if (end == next && from < to) from++;
        if (begin == next && to < k->blocks) to++;
    }
}

/* Causal S2 and dense heads. */
static void causal_rows(walk *w, const tess_head_run *run, const tess_head_pattern *pattern,
                        const keys *k) {
    const bool to_the_end =
        pattern->kind == TESS_HEAD_DENSE || k->block % pattern->stride == pattern->first;
    if (k->strided && k->blocks > 1 && k->step * w->block >= w->x->step_rows) {
        far_blocks(w, run, pattern, k, to_the_end);
        return;
    }
    const stretch x = {.begin = k->begin,
                       .end = local_end(w, pattern, block_of(k, k->blocks - 1), to_the_end),
                       .whole = k->last,
                       .whole_end = local_end(w, pattern, k->block, to_the_end),
                       .blocks = k->blocks};
    add_stretch(w, run, &x);
}

/* A window, then the rows before and after it, which read the sinks alone. */
static void window_rows(walk *w, const tess_head_run *run, const tess_head_pattern *pattern,
                        const keys *k) {
    const stretch x = {.begin = k->begin - pattern->right,
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
    stretch beside = {.blocks = blocks};
    if (!pattern->causal) {
        beside.end = beside.whole_end = x.begin;
        beside.begin = -NO_END;
        beside.whole = whole ? beside.begin : beside.end;
        add_stretch(w, run, &beside);
    }
    add_stretch(w, run, &x);
    beside.begin = larger(x.begin, x.end);
    beside.end = beside.whole_end = NO_END;
    beside.whole = whole ? beside.begin : beside.end;
    add_stretch(w, run, &beside);
}

/* The query blocks i, i + stride, ... below `end`, of which all rows read the blocks [first, first
 * + blocks). */
static void add_blocks(walk *w, const tess_head_run *run, int64_t i, int64_t end, int64_t stride,
                       int64_t first, int64_t blocks) {
    const int64_t i_first = floor_div(w->p0, w->block), i_end = floor_div(w->p1 - 1, w->block) + 1;
    if (i < i_first) i += (i_first - i + stride - 1) / stride * stride;
    end = smaller(end, i_end);
    if (i >= end) return;
    const int64_t count = (end - i - 1) / stride + 1;
    if (count == 1) {
        const stretch x = {.begin = i * w->block,
                           .end = (i + 1) * w->block,
                           .whole = i * w->block,
                           .whole_end = (i + 1) * w->block,
                           .first = first,
                           .blocks = blocks};
        add_stretch(w, run, &x);
        return;
    }
    const tess_segment segment = {.first = (uint8_t)first,
                                  .blocks = (uint8_t)blocks,
                                  .row = (int32_t)(i * w->block - w->p0),
                                  .rows = (uint32_t)count,
                                  .step = (uint32_t)(stride * w->block)};
    add_segment(w, run, &segment, (uint64_t)(count * w->block));
}

/* Bidirectional S2. A block is read by the query blocks of an interval and by those at the stride
 * from both of its ends. The column's blocks are a stride apart, so these are the same ones, but
 * for those that lie between the blocks. */
static void both_rows(walk *w, const tess_head_run *run, const tess_head_pattern *pattern,
                      const keys *k) {
    const int64_t stride = pattern->stride, n = k->blocks,
                  before = block_of(k, n - 1) - pattern->local_right + 1,
                  after = k->block + pattern->local - 1, many = NO_END / w->block;
    const int64_t i_first = floor_div(w->p0, w->block), low = before - n * stride;
    if (low >= i_first)
        add_blocks(w, run, low - (low - i_first) / stride * stride, low + 1, stride, 0, n);
    for (int64_t m = 1; m < n; m++)
        add_blocks(w, run, before - (n - m) * stride, before - (n - m) * stride + 1, stride, m,
                   n - m);
    for (int64_t m = 0; m < n; m++) {
        const int64_t j = block_of(k, m);
        const stretch x = {.begin = (j - pattern->local_right + 1) * w->block,
                           .end = (j + pattern->local) * w->block,
                           .whole = -NO_END,
                           .whole_end = NO_END,
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
static void mask_rows(walk *w, const tess_head_run *run, const tess_head_pattern *pattern,
                      const keys *k) {
    const tess_columns *x = w->x;
    const int64_t width = larger(x->tile_blocks, 1), tile = k->block / width;
    const uint32_t *start = &x->list_start[(int64_t)run->cls * x->n_tiles + tile];
    const uint32_t from = entries_below(x, start[0], start[1], floor_div(w->p0, w->block)),
                   to = entries_below(x, from, start[1], floor_div(w->p1 - 1, w->block) + 1);
    if (from == to) return;
    const uint32_t masked =
        pattern->causal ? entries_below(x, from, to, k->block + k->blocks) - from : 0;
    const tess_segment segment = {.blocks = (uint8_t)k->blocks,
                                  .row = (int32_t)(x->entries_at + from),
                                  .rows = to - from,
                                  .step = (uint32_t)(k->block - tile * width),
                                  .mask_head = (uint16_t)masked};
    add_segment(w, run, &segment, (uint64_t)(to - from) * (uint64_t)w->block);
}

/* ------------------------------------------------------------------ columns */

static void add_column(walk *w, const keys *k, uint32_t n_keys) {
    tess_columns *x = w->x;
    const uint64_t before = w->n_segments;
    w->cost = 0;
    for (const tess_head_run *run = w->run; run < w->last_run && w->p0 < w->p1; run++) {
        const tess_head_pattern *pattern = &w->layout->patterns[run->cls];
        switch (pattern->kind) {
        case TESS_HEAD_WINDOW: window_rows(w, run, pattern, k); break;
        case TESS_HEAD_STRIDED_BOTH: both_rows(w, run, pattern, k); break;
        case TESS_HEAD_BLOCKS: mask_rows(w, run, pattern, k); break;
        default:
            if (pattern->causal) {
                causal_rows(w, run, pattern, k);
            } else {
                const stretch all = {-NO_END, NO_END, -NO_END, NO_END, 0, k->blocks};
                add_stretch(w, run, &all);
            }
        }
    }
    w->n_columns++;
    uint32_t *bucket = tess_order_bucket(&x->order, (uint64_t)smaller(w->cost, x->most));
    if (w->columns)
        w->columns[*bucket] = (tess_column){.sequence = w->sequence,
                                            .kv_head = (uint16_t)w->kv_head,
                                            .keys = (uint16_t)n_keys,
                                            .key = (uint32_t)k->begin,
                                            .step = (uint32_t)(k->step * w->block),
                                            .next_key = (uint32_t)(k->next * w->block),
                                            .blocks = (uint16_t)k->blocks,
                                            .first_blocks = (uint16_t)k->first_blocks,
                                            .segment = (uint32_t)before,
                                            .segments = (uint32_t)(w->n_segments - before)};
    ++*bucket;
}

/* A column of whole blocks: `first_blocks` of them from `block` on, then others from `next` on. */
static void add_blocks_column(walk *w, int64_t block, int64_t first_blocks, int64_t next,
                              int64_t blocks, int64_t step, bool strided) {
    keys k = {.block = block,
              .step = step,
              .blocks = blocks,
              .first_blocks = first_blocks,
              .next = next,
              .begin = block * w->block,
              .strided = strided};
    k.last = smaller(w->kv_len, (block_of(&k, blocks - 1) + 1) * w->block) - 1;
    const int64_t missing = (block_of(&k, blocks - 1) + 1) * w->block - 1 - k.last;
    add_column(w, &k, (uint32_t)(blocks * w->block - missing));
}

/* Blocks larger than a column. */
static void cut_blocks(walk *w) {
    const int64_t tile_keys = w->x->tile_keys;
    for (int64_t j = w->first; j < w->end; j++) {
        const int64_t end = smaller(w->kv_len, (j + 1) * w->block);
        for (int64_t t = j * w->block; t < end; t += tile_keys) {
            const keys k = {.block = j,
                            .step = 1,
                            .blocks = 1,
                            .first_blocks = 1,
                            .begin = t,
                            .last = smaller(end, t + tile_keys) - 1};
            add_column(w, &k, (uint32_t)(k.last + 1 - t));
        }
    }
}

/* Neighbours, cut at fixed positions: sequences share the lists of a mask. */
static void neighbours(walk *w) {
    const int64_t most = w->x->tile_blocks;
    for (int64_t j = w->first, next; j < w->end; j = next) {
        next = smaller(w->end, (j / most + 1) * most);
        add_blocks_column(w, j, next - j, 0, next - j, 1, false);
    }
}

/* The blocks of a residue, as many as fit a column. */
static void residue_columns(walk *w, int64_t residue, int64_t stride) {
    const int64_t most = w->x->tile_blocks;
    int64_t j = residue + (w->first > residue ? (w->first - residue - 1) / stride + 1 : 0) * stride;
    while (j < w->end) {
        const int64_t blocks = smaller(most, (w->end - j - 1) / stride + 1);
        add_blocks_column(w, j, blocks, 0, blocks, stride, true);
        j += blocks * stride;
    }
}

/* The runs of blocks between those of some residues, which rise. */
typedef struct gaps {
    const int64_t *residues;
    int64_t n, stride, end;
    int64_t base, at; /* base + residues[at] is the block that ends the run */
    int64_t begin;    /* of the run */
} gaps;

/* The next run, [*first, *end); false after the last. */
static bool next_gap(gaps *g, int64_t *first, int64_t *end) {
    while (g->begin < g->end) {
        const int64_t taken = g->base + g->residues[g->at];
        *first = g->begin;
        *end = smaller(taken, g->end);
        g->begin = larger(g->begin, taken + 1);
        if (++g->at == g->n) {
            g->at = 0;
            g->base += g->stride;
        }
        if (*first < *end) return true;
    }
    return false;
}

/* Neighbours between the strided blocks, also across one of these where few lie between. */
static void gap_columns(walk *w, gaps *g) {
    const int64_t most = w->x->tile_blocks;
    int64_t a = 0, b = 0;
    while (a < b || next_gap(g, &a, &b)) {
        const int64_t block = a, first = smaller(most, b - a);
        int64_t second = 0, next = 0;
        a += first;
        if (first < most && next_gap(g, &a, &b) && a - (block + first) < most) {
            next = a;
            second = smaller(most - first, b - a);
            a += second;
        }
        add_blocks_column(w, block, first, next, first + second, 1, false);
    }
}

static int compare_residues(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The residues of the blocks that are strided for a head of the kv head, each once and in rising
 * order. */
static int64_t find_residues(walk *w, int64_t *stride) {
    int64_t *list = w->x->residues, n = 0;
    for (const tess_head_run *run = w->run; run < w->last_run; run++) {
        const tess_head_pattern *pattern = &w->layout->patterns[run->cls];
        if (pattern->kind != TESS_HEAD_STRIDED) continue;
        *stride = pattern->stride;
        list[n++] = pattern->first;
    }
    if (n < 2) return n;
    qsort(list, (size_t)n, sizeof *list, compare_residues);
    int64_t kept = 1;
    for (int64_t r = 1; r < n; r++)
        if (list[r] != list[r - 1]) list[kept++] = list[r];
    return kept;
}

/* The stride of a kv head with bidirectional S2; 0: it has none. */
static int64_t both_stride(const walk *w) {
    for (const tess_head_run *run = w->run; run < w->last_run; run++) {
        const tess_head_pattern *pattern = &w->layout->patterns[run->cls];
        if (pattern->kind == TESS_HEAD_STRIDED_BOTH) return pattern->stride;
    }
    return 0;
}

static void kv_head_columns(walk *w) {
    int64_t stride = both_stride(w);
    if (w->x->tile_blocks == 0) {
        cut_blocks(w);
        return;
    }
    if (stride != 0) {
        for (int64_t r = 0; r < smaller(stride, w->end); r++) residue_columns(w, r, stride);
        return;
    }
    const int64_t n = find_residues(w, &stride);
    if (n == 0) {
        neighbours(w);
        return;
    }
    for (int64_t r = 0; r < n; r++) residue_columns(w, w->x->residues[r], stride);
    gaps g = {.residues = w->x->residues,
              .n = n,
              .stride = stride,
              .end = w->end,
              .base = w->first / stride * stride,
              .begin = w->first};
    if (n < stride) gap_columns(w, &g);
}

/* ------------------------------------------------------------------ all of them */

/* The columns of the kv heads [begin, end), counted over all sequences. Both modes are this one
 * walk. */
static void walk_heads(walk *w, uint64_t begin, uint64_t end) {
    const tess_jobs *jobs = w->x->jobs;
    const uint64_t heads = (uint64_t)w->layout->n_kv_heads;
    for (uint64_t n = begin; n < end; n++) {
        const uint32_t s = (uint32_t)(n / heads), g = (uint32_t)(n % heads);
        const tess_sequence *sequence = &jobs->sequences[s];
        const tess_key_span span = tess_jobs_span(jobs, s);
        w->sequence = s;
        w->kv_head = g;
        w->p0 = sequence->q_first;
        w->p1 = w->p0 + sequence->q_len;
        w->kv_len = span.kv_len;
        w->first = span.first;
        w->end = span.end;
        w->run = jobs->runs + w->x->run_start[g];
        w->last_run = jobs->runs + w->x->run_start[g + 1];
        if (w->first < w->end) kv_head_columns(w);
        if (w->n_columns > UINT32_MAX || w->n_segments > UINT32_MAX) return; /* refused anyway */
    }
}

static uint64_t all_heads(const tess_columns *x) {
    return x->jobs->n_sequences * (uint64_t)x->jobs->tiler->layout->n_kv_heads;
}

static walk walk_of(tess_columns *x) {
    const tess_layout *layout = x->jobs->tiler->layout;
    return (walk){.x = x, .layout = layout, .block = layout->pattern.block};
}

static tess_status too_many(void) {
    return tess_unsupported(
        "tess_plan_create: batch: its keys and heads make 2^32 columns or segments or more");
}

/* Refuses at once what could not be counted in reasonable time. */
static tess_status check_count(const tess_columns *x) {
    const tess_jobs *jobs = x->jobs;
    const uint64_t heads = (uint64_t)jobs->tiler->layout->n_kv_heads;
    uint64_t least = 0;
    for (uint32_t s = 0; s < jobs->n_sequences; s++) {
        const tess_key_span span = tess_jobs_span(jobs, s);
        least +=
            (uint64_t)larger(0, span.kv_len - span.first * jobs->grid.block) / x->tile_keys * heads;
        if (least > UINT32_MAX) return too_many();
    }
    return TESS_OK;
}

tess_status tess_columns_count(tess_columns *x) {
    walk w = walk_of(x);
    TESS_RETURN_IF_ERROR(check_count(x));
    tess_order_begin(&x->order);
    walk_heads(&w, 0, all_heads(x));
    tess_order_end(&x->order);
    x->n_columns = w.n_columns;
    x->n_segments = w.n_segments;
    return x->n_columns > UINT32_MAX || x->n_segments > UINT32_MAX ? too_many() : TESS_OK;
}

/* Where the section that begins with kv head `at` ends: after the one whose rows bring *sum to
 * `target`. */
static uint64_t section_end(const tess_columns *x, uint64_t at, uint64_t target, uint64_t *sum) {
    const tess_jobs *jobs = x->jobs;
    const uint64_t heads = (uint64_t)jobs->tiler->layout->n_kv_heads,
                   group = (uint64_t)jobs->tiler->layout->n_heads / heads;
    for (; at < all_heads(x) && *sum < target; at++)
        *sum += group * (uint64_t)jobs->sequences[at / heads].q_len;
    return at;
}

void tess_columns_place(tess_columns *x, tess_column *out, tess_segment *segments) {
    uint64_t total = 0, sum = 0, begin = 0;
    uint32_t places = 0;
    (void)section_end(x, 0, UINT64_MAX, &total);
    const uint64_t sections = x->section_rows == 0 || total == 0
                                  ? 1
                                  : smaller((total - 1) / x->section_rows + 1, all_heads(x));
    walk place = walk_of(x);
    place.columns = out;
    place.segments = segments;
    for (uint64_t n = 1; n <= sections; n++) {
        const uint64_t target = total / sections * n + total % sections * n / sections,
                       end = n == sections ? all_heads(x) : section_end(x, begin, target, &sum);
        if (begin == end) continue;
        /* Of a single section, the buckets hold what the count left there. */
        if (sections > 1) {
            walk count = walk_of(x);
            tess_order_again(&x->order);
            walk_heads(&count, begin, end);
        }
        places = tess_order_places(&x->order, places);
        walk_heads(&place, begin, end);
        begin = end;
    }
}

/* ------------------------------------------------------------------ lists of masks */

/* Adds the query block i to the lists of the tiles that it reads. Counts, or writes too. */
static void list_row(tess_columns *x, uint32_t *next, const tess_mask_rows *rows, int64_t i,
                     bool write) {
    const int64_t width = larger(x->tile_blocks, 1);
    int64_t count;
    const uint32_t *columns = tess_mask_row(rows, i, &count);
    for (int64_t c = 0; c < count && columns[c] / width < x->n_tiles;) {
        const int64_t tile = columns[c] / width;
        uint32_t word = 0;
        for (; c < count && columns[c] / width == tile; c++)
            word |= UINT32_C(1) << (columns[c] - tile * width);
        if (write) {
            x->entries[next[tile]] = (uint32_t)i;
            x->bits[next[tile]] = word;
        }
        next[tile]++;
    }
}

static void list_rows(tess_columns *x, uint32_t *next, int64_t rows_end, bool write) {
    const tess_layout *layout = x->jobs->tiler->layout;
    for (uint32_t c = 0; c < layout->n_classes; c++) {
        const tess_mask_rows *rows = &layout->patterns[c].rows;
        for (int64_t i = 0; i < smaller(rows->query_blocks, rows_end); i++)
            list_row(x, next + (int64_t)c * x->n_tiles, rows, i, write);
    }
}

static tess_status no_memory(uint64_t bytes) {
    return tess_fail(TESS_ERROR_OUT_OF_MEMORY,
                     "tess_plan_create: no memory for %llu bytes of columns",
                     (unsigned long long)bytes);
}

static uint64_t list_starts(const tess_columns *x) {
    return (uint64_t)x->n_tiles * x->jobs->tiler->layout->n_classes + 1;
}

/* Turns the mask of each class around: from the key blocks of rows to the rows of key tiles. */
static tess_status make_lists(tess_columns *x) {
    const tess_jobs *jobs = x->jobs;
    const int64_t block = jobs->grid.block, width = larger(x->tile_blocks, 1);
    int64_t rows_end = 0, keys_end = 0;
    for (uint32_t s = 0; s < jobs->n_sequences; s++) {
        const tess_sequence *sequence = &jobs->sequences[s];
        if (sequence->q_len == 0) continue;
        rows_end = larger(rows_end, (int64_t)sequence->q_first + sequence->q_len);
        keys_end = larger(keys_end, sequence->kv_len);
    }
    rows_end = (rows_end + block - 1) / block;
    x->n_tiles = ((keys_end + block - 1) / block + width - 1) / width;
    const uint64_t starts = list_starts(x), bytes = starts * sizeof *x->list_start;
    x->list_start = tess_mem_alloc(x->runtime, (size_t)bytes, 64);
    if (!x->list_start) return no_memory(bytes);
    memset(x->list_start, 0, (size_t)bytes);
    list_rows(x, x->list_start, rows_end, false);
    for (uint64_t n = 0; n < starts; n++) {
        const uint32_t count = x->list_start[n];
        x->list_start[n] = (uint32_t)x->n_entries;
        x->n_entries += count;
    }
    if (x->entries_at + x->n_entries > INT32_MAX)
        return tess_unsupported("tess_plan_create: the mask's columns need 2^31 entries or more");
    x->entries = tess_mem_alloc(x->runtime, (size_t)x->n_entries * sizeof *x->entries, 64);
    x->bits = tess_mem_alloc(x->runtime, (size_t)x->n_entries * sizeof *x->bits, 64);
    if (!x->entries || !x->bits) return no_memory(2 * x->n_entries * sizeof *x->entries);
    /* Writing moves each start to the next one, from where it is moved back. */
    list_rows(x, x->list_start, rows_end, true);
    memmove(x->list_start + 1, x->list_start, (size_t)(bytes - sizeof *x->list_start));
    x->list_start[0] = 0;
    return TESS_OK;
}

void tess_columns_entries(const tess_columns *x, uint32_t *entries, uint32_t *bits) {
    if (x->n_entries == 0) return;
    memcpy(entries + x->entries_at, x->entries, (size_t)x->n_entries * sizeof *entries);
    memcpy(bits + x->entries_at, x->bits, (size_t)x->n_entries * sizeof *bits);
}

/* ------------------------------------------------------------------ life */

/* The most rows of query heads that a column has. */
static uint64_t most_rows(const tess_jobs *jobs) {
    const tess_layout *layout = jobs->tiler->layout;
    uint64_t most = 0;
    for (uint32_t s = 0; s < jobs->n_sequences; s++)
        if ((uint64_t)jobs->sequences[s].q_len > most) most = (uint64_t)jobs->sequences[s].q_len;
    return most * (uint64_t)(layout->n_heads / layout->n_kv_heads);
}

tess_status tess_columns_create(tess_columns *x, const tess_jobs *jobs, uint32_t tile_keys,
                                uint32_t step_rows, bool invariant) {
    enum { INVARIANT_SHIFT = 6 }; /* steps of 64 rows, however long the longest column is */
    const tess_layout *layout = jobs->tiler->layout;
    const bool masked = layout->patterns[0].kind == TESS_HEAD_BLOCKS;
    const size_t heads = (size_t)layout->n_kv_heads, group = (size_t)layout->n_heads / heads;
    memset(x, 0, sizeof *x);
    x->runtime = jobs->runtime;
    x->jobs = jobs;
    x->tile_keys = tile_keys;
    x->step_rows = step_rows;
    x->tile_blocks =
        smaller(tile_keys / jobs->grid.block, masked ? MOST_MASKED_BLOCKS : MOST_BLOCKS);
    x->entries_at = jobs->tiler->n_entries;
    x->most = most_rows(jobs);
    if (invariant) x->order.shift = INVARIANT_SHIFT;
    x->run_start = tess_mem_alloc(x->runtime, (heads + 1) * sizeof *x->run_start, 64);
    x->residues = tess_mem_alloc(x->runtime, group * sizeof *x->residues, 64);
    if (!x->run_start || !x->residues || !tess_order_create(&x->order, x->runtime, x->most))
        return no_memory((heads + 1) * sizeof *x->run_start);
    uint32_t run = 0;
    for (uint32_t g = 0; g <= heads; g++) {
        while (run < jobs->n_runs && jobs->runs[run].kv_head < g) run++;
        x->run_start[g] = run;
    }
    return masked ? make_lists(x) : TESS_OK;
}

void tess_columns_release(tess_columns *x) {
    if (!x->runtime) return;
    const tess_layout *layout = x->jobs->tiler->layout;
    const size_t heads = (size_t)layout->n_kv_heads;
    tess_mem_free(x->runtime, x->bits, (size_t)x->n_entries * sizeof *x->bits);
    tess_mem_free(x->runtime, x->entries, (size_t)x->n_entries * sizeof *x->entries);
    tess_mem_free(x->runtime, x->list_start, (size_t)list_starts(x) * sizeof *x->list_start);
    tess_order_release(&x->order, x->runtime);
    tess_mem_free(x->runtime, x->residues, (size_t)layout->n_heads / heads * sizeof *x->residues);
    tess_mem_free(x->runtime, x->run_start, (heads + 1) * sizeof *x->run_start);
    x->runtime = NULL;
}

/* ------------------------------------------------------------------ ranges */

uint64_t tess_column_steps(const tess_tables *tables, const tess_column *column, int64_t block,
                           uint32_t tile_rows) {
    uint64_t steps = 0;
    for (uint32_t n = 0; n < column->segments; n++) {
        const tess_segment *s = &tables->segments[column->segment + n];
        const bool listed = (tables->classes[s->cls].flags & TESS_CLASS_BITS) || s->step != 0;
        const uint64_t rows = (uint64_t)s->rows * (listed ? (uint64_t)block : 1);
        steps += ((rows - 1) / tile_rows + 1) * s->heads * s->blocks;
    }
    return steps;
}
