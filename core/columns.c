/* SPDX-License-Identifier: Apache-2.0 */
#include "columns.h"

#include "column_rows.h"
#include "spare.h"

#include <stdlib.h>
#include <string.h>

enum {
    MOST_BLOCKS = 128,       /* of a column, since a segment counts them in 8 bits */
    MOST_MASKED_BLOCKS = 32, /* of a mask, which has a bit for each */
    /* by position of their keys, for columns of short intervals, which come after all others where
     * there are turns */
    NEAR_PLACES = 8192
};

/* ------------------------------------------------------------------ columns */

/* What decides about the column's place. With turns, a kv head's columns keep the order in which
 * they are walked, and those of other heads come between as long as they are about as long. */
static uint64_t place_cost(tess_column_walk *w, const tess_column_keys *k) {
    const uint64_t cost = smaller(w->cost, w->x->most);
    if (!w->x->turns) return cost;
    if (w->upward) return (uint64_t)k->begin >> w->near_shift;
    const uint64_t before = w->x->n_columns - w->first_column;
    if (cost < w->least) w->least = cost;
    return NEAR_PLACES + (w->least > before ? w->least - before : 0);
}

static void add_column(tess_column_walk *w, const tess_column_keys *k, uint32_t n_keys) {
    tess_columns *x = w->x;
    const uint64_t before = x->n_segments;
    tess_column *columns =
        tess_column_more(w, x->columns, &x->columns_room, x->n_columns, sizeof *columns);
    if (columns) x->columns = columns;
    uint32_t *places =
        tess_column_more(w, x->places, &x->places_room, x->n_columns, sizeof *places);
    if (places) x->places = places;
    if (!columns || !places) return;
    tess_column_rows(w, k);
    if (w->cost > x->most_cost) x->most_cost = w->cost;
    *(w->upward ? &x->near_cost : &x->far_cost) += w->cost;
    places[x->n_columns] = (uint32_t)(place_cost(w, k) >> x->order.shift);
    columns[x->n_columns++] = (tess_column){.sequence = w->sequence,
                                            .kv_head = (uint16_t)w->kv_head,
                                            .keys = (uint16_t)n_keys,
                                            .key = (uint32_t)k->begin,
                                            .step = (uint32_t)(k->step * w->block),
                                            .next_key = (uint32_t)(k->next * w->block),
                                            .blocks = (uint16_t)k->blocks,
                                            .first_blocks = (uint16_t)k->first_blocks,
                                            .segment = (uint32_t)before,
                                            .segments = (uint32_t)(x->n_segments - before)};
    if (!w->upward) w->starts[1] = (uint32_t)x->n_columns;
}

/* A column of whole blocks: `first_blocks` of them from `block` on, then others from `next` on. */
static void add_blocks_column(tess_column_walk *w, int64_t block, int64_t first_blocks,
                              int64_t next, int64_t blocks, int64_t step, bool strided) {
    tess_column_keys k = {.block = block,
                          .step = step,
                          .blocks = blocks,
                          .first_blocks = first_blocks,
                          .next = next,
                          .begin = block * w->block,
                          .strided = strided};
    k.last = smaller(w->kv_len, (tess_block_of(&k, blocks - 1) + 1) * w->block) - 1;
    const int64_t missing = (tess_block_of(&k, blocks - 1) + 1) * w->block - 1 - k.last;
    add_column(w, &k, (uint32_t)(blocks * w->block - missing));
}

/* From which block on, at least, columns are read by rows that are near them alone. */
static int64_t far_end(const tess_column_walk *w) {
    int64_t end = 0;
    for (const tess_head_run *run = w->run; run < w->last_run; run++) {
        const tess_head_pattern *pattern = &w->layout->patterns[run->cls];
        const bool near =
            pattern->kind == TESS_HEAD_STRIDED ||
            (pattern->kind == TESS_HEAD_WINDOW && smaller(pattern->left, pattern->right) >= 0 &&
             larger(pattern->left, pattern->right) < TESS_UNBOUNDED);
        end = larger(end, near ? (pattern->sinks + w->block - 1) / w->block : TESS_NO_END);
    }
    return end;
}

/* Part n of a block that is larger than a column. */
static void cut_column(tess_column_walk *w, int64_t j, int64_t n) {
    const int64_t tile_keys = w->x->tile_keys, end = smaller(w->kv_len, (j + 1) * w->block),
                  t = j * w->block + n * tile_keys;
    const tess_column_keys k = {.block = j,
                                .step = 1,
                                .blocks = 1,
                                .first_blocks = 1,
                                .begin = t,
                                .last = smaller(end, t + tile_keys) - 1,
                                .strided = true};
    if (t < end) add_column(w, &k, (uint32_t)(k.last + 1 - t));
}

/* Whether rows that are near a block are all that read it. */
static bool is_near(const tess_column_walk *w, int64_t j) {
    for (const tess_head_run *run = w->run; run < w->last_run; run++) {
        const tess_head_pattern *pattern = &w->layout->patterns[run->cls];
        if (pattern->kind == TESS_HEAD_STRIDED && j % pattern->stride == pattern->first)
            return false;
    }
    return j >= far_end(w);
}

static void cut_blocks(tess_column_walk *w) {
    const int64_t parts = (w->block - 1) / w->x->tile_keys + 1;
    const bool turns = w->x->turns;
    for (int64_t j = w->first; j < w->end; j++)
        for (int64_t n = 0; n < parts && !(turns && is_near(w, j)); n++) cut_column(w, j, n);
    w->upward = true;
    for (int64_t j = w->end; turns && j-- > w->first;)
        for (int64_t n = parts; n-- > 0 && is_near(w, j);) cut_column(w, j, n);
}

/* Neighbours, cut at fixed positions: sequences share the lists of a mask. Their tiles are counted
 * from block 0, and some of the blocks of the first and of the last one may not be there. */
static void neighbours_column(tess_column_walk *w, int64_t tile) {
    const int64_t most = w->x->tile_blocks, j = larger(w->first, tile * most),
                  end = smaller(w->end, (tile + 1) * most);
    add_blocks_column(w, j, end - j, 0, end - j, 1, false);
}

static void neighbours(tess_column_walk *w) {
    const int64_t most = w->x->tile_blocks, end = (w->end - 1) / most + 1;
    int64_t tile = w->first / most;
    const int64_t far =
        w->x->turns ? larger(tile, smaller(end, (far_end(w) + most - 1) / most)) : end;
    for (; tile < far; tile++) neighbours_column(w, tile);
    w->upward = true;
    for (tile = end; tile-- > far;) neighbours_column(w, tile);
}

/* Column n of the blocks of a residue, as many as fit one; false after the last. */
static bool residue_column(tess_column_walk *w, int64_t residue, int64_t stride, int64_t n) {
    const int64_t most = w->x->tile_blocks,
                  before = w->first > residue ? (w->first - residue - 1) / stride + 1 : 0,
                  j = residue + (before + n * most) * stride;
    if (j >= w->end) return false;
    const int64_t blocks = smaller(most, (w->end - j - 1) / stride + 1);
    add_blocks_column(w, j, blocks, 0, blocks, stride, true);
    return true;
}

static void residue_columns(tess_column_walk *w, int64_t residue, int64_t stride) {
    for (int64_t n = 0; residue_column(w, residue, stride, n);) n++;
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
static void gap_columns(tess_column_walk *w, gaps *g) {
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

/* The next run from above. `end` is where the last one began, and base + residues[at] is the block
 * before the run. */
static bool gap_below(gaps *g, int64_t *first, int64_t *end) {
    while (g->begin < g->end) {
        const int64_t taken = g->base + g->residues[g->at];
        *first = larger(g->begin, taken + 1);
        *end = g->end;
        g->end = smaller(g->end, taken);
        if (g->at-- == 0) {
            g->at = g->n - 1;
            g->base -= g->stride;
        }
        if (*first < *end) return true;
    }
    return false;
}

/* The same as gap_columns from the last one to the first. */
static void gap_columns_below(tess_column_walk *w, gaps *g) {
    const int64_t most = w->x->tile_blocks;
    int64_t a = 0, b = 0;
    while (a < b || gap_below(g, &a, &b)) {
        const int64_t upper = smaller(most, b - a), next = b - upper;
        int64_t lower = 0;
        b = next;
        if (upper < most && gap_below(g, &a, &b) && next - b < most) {
            lower = smaller(most - upper, b - a);
            b -= lower;
        }
        if (lower > 0)
            add_blocks_column(w, b, lower, next, lower + upper, 1, false);
        else
            add_blocks_column(w, next, upper, 0, upper, 1, false);
        b -= most * tess_column_repeat(w, (b - a) / most);
    }
}

static int compare_residues(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The residues of the blocks that are strided for a head of the kv head, each once and in rising
 * order. */
static int64_t find_residues(tess_column_walk *w, int64_t *stride) {
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
static int64_t both_stride(const tess_column_walk *w) {
    for (const tess_head_run *run = w->run; run < w->last_run; run++) {
        const tess_head_pattern *pattern = &w->layout->patterns[run->cls];
        if (pattern->kind == TESS_HEAD_STRIDED_BOTH) return pattern->stride;
    }
    return 0;
}

/* Causal S2 with turns. Columns of long intervals walk from the end of the sequence and in order
 * of their keys, so that they are all at the same rows, one after the other. Then come those of
 * short intervals from the last key on, and upward: there the long ones have been first. */
static void turned_columns(tess_column_walk *w, int64_t n, int64_t stride) {
    const bool far = far_end(w) >= w->end;
    gaps g = {.residues = w->x->residues, .n = n, .stride = stride, .end = w->end};
    bool more = true;
    for (int64_t m = 0; more; m++) {
        more = false;
        for (int64_t r = 0; r < n; r++) more |= residue_column(w, w->x->residues[r], stride, m);
    }
    if (n == stride) return;
    g.begin = w->first;
    if (far) {
        g.base = w->first / stride * stride;
        gap_columns(w, &g);
        return;
    }
    g.base = (w->end - 1) / stride * stride;
    g.at = n - 1;
    w->upward = true;
    gap_columns_below(w, &g);
}

static void kv_head_columns(tess_column_walk *w) {
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
    if (w->x->turns) {
        turned_columns(w, n, stride);
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

tess_status tess_columns_no_memory(uint64_t bytes) {
    return tess_fail(TESS_ERROR_OUT_OF_MEMORY,
                     "tess_plan_create: no memory for %llu bytes of columns",
                     (unsigned long long)bytes);
}

/* A turn names a column in 31 bits. */
static uint64_t most_columns(const tess_columns *x) { return x->turns ? INT32_MAX : UINT32_MAX; }

static tess_status too_many(const tess_columns *x) {
    return tess_unsupported(
        "tess_plan_create: batch: its keys and heads make %llu columns or segments or more",
        (unsigned long long)most_columns(x) + 1);
}

static void begin_turns(tess_column_walk *w) {
    const uint32_t strip = w->x->step_rows;
    w->first_column = w->x->n_columns;
    w->least = UINT64_MAX;
    while (w->kv_len >> w->near_shift > NEAR_PLACES) w->near_shift++;
    for (int64_t n = 0; n < w->last_run - w->run; n++)
        tess_turn_reset(&w->x->maps[n], (uint32_t)((w->p1 - w->p0 + strip - 1) / strip));
}

/* The columns of the walk's kv head. */
static tess_status walk_head(tess_column_walk *w) {
    tess_columns *x = w->x;
    const tess_head_run *const runs = x->jobs->runs;
    w->starts[0] = w->starts[1] = (uint32_t)x->n_columns;
    if (w->first >= w->end) return TESS_OK;
    w->run = runs + x->run_start[w->kv_head];
    w->last_run = runs + x->run_start[w->kv_head + 1];
    w->upward = false;
    if (x->turns) begin_turns(w);
    kv_head_columns(w);
    TESS_RETURN_IF_ERROR(w->status);
    return x->n_columns > most_columns(x) || x->n_segments > UINT32_MAX ? too_many(x) : TESS_OK;
}

/* The columns of all kv heads of all sequences. */
static tess_status walk_heads(tess_columns *x) {
    const tess_jobs *jobs = x->jobs;
    const tess_layout *layout = jobs->tiler->layout;
    tess_column_walk w = {
        .x = x, .layout = layout, .block = layout->pattern.block, .starts = x->starts};
    for (uint32_t s = 0; s < jobs->n_sequences; s++) {
        const tess_sequence *sequence = &jobs->sequences[s];
        const tess_key_span span = tess_jobs_span(jobs, s);
        w.sequence = s;
        w.p0 = sequence->q_first;
        w.p1 = w.p0 + sequence->q_len;
        w.kv_len = span.kv_len;
        w.first = span.first;
        w.end = span.end;
        for (w.kv_head = 0; w.kv_head < (uint32_t)layout->n_kv_heads; w.kv_head++, w.starts += 2)
            TESS_RETURN_IF_ERROR(walk_head(&w));
    }
    w.starts[0] = (uint32_t)x->n_columns;
    return TESS_OK;
}

/* Refuses at once what could not be counted in reasonable time. */
static tess_status check_count(tess_columns *x) {
    const tess_jobs *jobs = x->jobs;
    const uint64_t heads = (uint64_t)jobs->tiler->layout->n_kv_heads;
    uint64_t least = 0;
    for (uint32_t s = 0; s < jobs->n_sequences; s++) {
        const tess_key_span span = tess_jobs_span(jobs, s);
        least +=
            (uint64_t)larger(0, span.kv_len - span.first * jobs->grid.block) / x->tile_keys * heads;
        if (least > most_columns(x)) return too_many(x);
    }
    x->expected = least;
    return TESS_OK;
}

tess_status tess_columns_count(tess_columns *x) {
    TESS_RETURN_IF_ERROR(check_count(x));
    return walk_heads(x);
}

uint64_t tess_columns_far(const tess_columns *x) {
    uint64_t most = 0;
    for (uint64_t head = 0; head < tess_columns_heads(x); head++) {
        const uint32_t first = x->starts[2 * head], end = x->starts[2 * head + 1];
        uint64_t far = end - first;
        for (uint32_t n = first; x->n_cut > 0 && n < end; n++)
            far -= x->places[n] == TESS_CUT_PLACE;
        if (far > most) most = far;
    }
    return most;
}

/* Where the section that begins with kv head `at` ends: after the one whose rows bring *sum to
 * `target`. */
static uint64_t section_end(const tess_columns *x, uint64_t at, uint64_t target, uint64_t *sum) {
    const tess_jobs *jobs = x->jobs;
    const uint64_t heads = (uint64_t)jobs->tiler->layout->n_kv_heads,
                   group = (uint64_t)jobs->tiler->layout->n_heads / heads;
    for (; at < tess_columns_heads(x) && *sum < target; at++)
        *sum += group * (uint64_t)jobs->sequences[at / heads].q_len;
    return at;
}

/* Columns that are placed together: of the kv heads [begin, end), the far ones, the near ones or
 * all. */
typedef struct section {
    uint64_t begin, end;
    int from, to; /* of starts: 0 to 1, 1 to 2, or 0 to 2 */
} section;

/* Past the last of the copies; without any, the list is NULL. */
static const tess_column_copies *copies_end(const tess_columns *x) {
    return x->n_copies == 0 ? x->copies : x->copies + x->n_copies;
}

/* Counts the columns of the section in the buckets. */
static void count_columns(const tess_columns *x, const section *s) {
    for (uint64_t head = s->begin; head < s->end; head++) {
        const uint32_t *starts = &x->starts[2 * head], last = starts[s->to];
        for (uint32_t n = starts[s->from]; n < last; n++)
            if (x->places[n] != TESS_CUT_PLACE) tess_order_mark(&x->order, x->places[n]);
    }
}

/* The columns of a kv head without turns, those of equal cost from the last key to the first. Those
 * of near rows walk upward from their own keys: when one comes to rows that it shares with the
 * column before it, which has higher keys, that one has left them. Where a kernel adds dQ in the
 * order of columns, as the CPU does, nobody waits then, however many work at a time. */
static void place_downward(tess_columns *x, uint32_t first, uint32_t last, tess_column *out) {
    for (uint32_t n = last; n-- > first;) {
        if (x->places[n] == TESS_CUT_PLACE) continue;
        x->places[n] = x->order.bucket[x->places[n]]++;
        out[x->places[n]] = x->columns[n];
    }
}

/* Places the columns of the section where the buckets say. *copies: no column of the section comes
 * before them; moves on. */
static void place_columns(tess_columns *x, const section *s, const tess_column_copies **copies,
                          tess_column *out) {
    uint32_t *const bucket = x->order.bucket;
    const tess_column_copies *c = *copies, *const c_end = copies_end(x);
    for (uint64_t head = s->begin; head < s->end; head++) {
        const uint32_t *starts = &x->starts[2 * head], first = starts[s->from],
                       last = starts[s->to];
        if (!x->turns) {
            place_downward(x, first, last, out);
            continue;
        }
        for (uint32_t n = first; n < last;) {
            const uint64_t next = c < c_end ? c->column : last;
            for (; n < last && n < next; n++) {
                if (x->places[n] == TESS_CUT_PLACE) continue;
                x->places[n] = bucket[x->places[n]]++;
                out[x->places[n]] = x->columns[n];
            }
            if (n < last) n = tess_column_copies_place(x, c++, bucket, out);
        }
    }
    *copies = c;
}

/* The same behind `places` columns that come before the section. Returns how many come before the
 * next one. */
static uint32_t place_section(tess_columns *x, const section *s, uint32_t places,
                              const tess_column_copies **copies, tess_column *out) {
    count_columns(x, s);
    places = tess_order_marked_places(&x->order, places);
    place_columns(x, s, copies, out);
    tess_order_unmark(&x->order);
    return places;
}

/* Rows of query heads that the last section has at least. It keeps the device busy while its
 * longest column is worked on, which begins when those of the sections before are about done. As
 * these end with a whole kv head, they may take one of its. */
static uint64_t last_section(const tess_columns *x, uint64_t total) {
    enum { PARTS = 1024 };
    const uint64_t wanted = x->parallel * x->most_cost;
    if (wanted >= x->near_cost + x->far_cost) return total;
    if (wanted <= x->near_cost) return 0;
    return total / PARTS * ((wanted - x->near_cost) * PARTS / x->far_cost) +
           total / tess_columns_heads(x);
}

/* Goes through sections of about `rows` rows of query heads, of which the last one has `least` or
 * more, and places what each has from `from` to `to`. */
static uint32_t place_sections(tess_columns *x, uint64_t rows, uint64_t least, int from, int to,
                               uint32_t places, tess_column *out) {
    /* They are columns of near rows. */
    const tess_column_copies *copies = to == 1 ? copies_end(x) : x->copies;
    uint64_t total = 0, sum = 0;
    (void)section_end(x, 0, UINT64_MAX, &total);
    const uint64_t last = rows == 0 ? total : (uint64_t)smaller(total, larger(rows, least)),
                   rest = total - last,
                   sections = rest == 0 ? 0 : smaller((rest - 1) / rows + 1, tess_columns_heads(x));
    section s = {.from = from, .to = to};
    for (uint64_t n = 1; n <= sections; n++) {
        s.end = section_end(x, s.begin, rest / sections * n + rest % sections * n / sections, &sum);
        places = place_section(x, &s, places, &copies, out);
        s.begin = s.end;
    }
    s.end = tess_columns_heads(x);
    return place_section(x, &s, places, &copies, out);
}

/* Turns name columns by their number in the table from now on. */
static void place_segments(const tess_columns *x, tess_segment *out) {
    const tess_column_copies *c = x->copies, *const c_end = copies_end(x);
    if (!x->turns && x->n_segments > 0)
        memcpy(out, x->segments, (size_t)x->n_segments * sizeof *out);
    for (uint64_t n = 0; x->turns && n < x->n_segments;) {
        const uint64_t next = c < c_end ? c->segment : x->n_segments;
        for (; n < next; n++) {
            out[n] = x->segments[n];
            out[n].step = tess_column_turn(x, out[n].step);
        }
        if (n < x->n_segments) n = tess_column_copies_segments(x, c++, out);
    }
}

void tess_columns_place(tess_columns *x, tess_column *out, tess_segment *segments) {
    uint64_t total = 0;
    (void)section_end(x, 0, UINT64_MAX, &total);
    const uint64_t least = last_section(x, total);
    const uint32_t cut = (uint32_t)(x->n_cut * x->parts);
    tess_order_begin(&x->order);
    if (x->turns && x->section_rows != 0) {
        const uint32_t far = place_sections(x, x->section_rows, least, 0, 1, cut, out);
        (void)place_sections(x, x->near_rows, 0, 1, 2, far, out);
    } else {
        (void)place_sections(x, x->section_rows, least, 0, 2, cut, out);
    }
    tess_cut_columns_place(x, out);
    place_segments(x, segments);
    tess_cut_segments_place(x, out, segments);
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
    if (!x->list_start) return tess_columns_no_memory(bytes);
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
    if (!x->entries || !x->bits)
        return tess_columns_no_memory(2 * x->n_entries * sizeof *x->entries);
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

bool tess_columns_turns(const tess_layout *layout) {
    for (uint32_t c = 0; c < layout->n_classes; c++)
        if (layout->patterns[c].kind == TESS_HEAD_STRIDED_BOTH ||
            layout->patterns[c].kind == TESS_HEAD_BLOCKS)
            return false;
    return true;
}

/* The most rows of query heads that a column has. */
static uint64_t most_rows(const tess_jobs *jobs) {
    const tess_layout *layout = jobs->tiler->layout;
    uint64_t most = 0;
    for (uint32_t s = 0; s < jobs->n_sequences; s++)
        if ((uint64_t)jobs->sequences[s].q_len > most) most = (uint64_t)jobs->sequences[s].q_len;
    return most * (uint64_t)(layout->n_heads / layout->n_kv_heads);
}

/* A map of last columns for each run of heads that a kv head may have. */
static tess_status create_maps(tess_columns *x) {
    const tess_jobs *jobs = x->jobs;
    const tess_layout *layout = jobs->tiler->layout;
    const uint64_t rows = x->most / (uint64_t)(layout->n_heads / layout->n_kv_heads);
    for (int32_t g = 0; g < layout->n_kv_heads; g++)
        if (x->run_start[g + 1] - x->run_start[g] > x->n_maps)
            x->n_maps = x->run_start[g + 1] - x->run_start[g];
    x->map_runs = (rows + x->step_rows - 1) / x->step_rows + 2;
    const uint64_t bytes = x->n_maps * x->map_runs * sizeof *x->turn_runs;
    x->maps = tess_mem_alloc(x->runtime, x->n_maps * sizeof *x->maps, 64);
    x->turn_runs = tess_mem_alloc(x->runtime, (size_t)bytes, 64);
    if (!x->maps || !x->turn_runs) return tess_columns_no_memory(bytes);
    for (uint32_t n = 0; n < x->n_maps; n++)
        x->maps[n] =
            (tess_turn_map){.runs = x->turn_runs + n * x->map_runs, .room = (uint32_t)x->map_runs};
    return TESS_OK;
}

tess_status tess_columns_create(tess_columns *x, const tess_jobs *jobs, uint32_t tile_keys,
                                uint32_t step_rows, uint32_t flags) {
    enum { INVARIANT_SHIFT = 6 }; /* steps of 64 rows, however long the longest column is */
    const bool turns = flags & TESS_COLUMNS_TURNS;
    const tess_layout *layout = jobs->tiler->layout;
    const bool masked = layout->patterns[0].kind == TESS_HEAD_BLOCKS;
    const size_t heads = (size_t)layout->n_kv_heads, group = (size_t)layout->n_heads / heads;
    memset(x, 0, sizeof *x);
    x->runtime = jobs->runtime;
    x->jobs = jobs;
    x->tile_keys = tile_keys;
    x->step_rows = step_rows;
    while (step_rows > 1 && step_rows % 2 == 0) {
        step_rows /= 2;
        x->strip_shift++;
    }
    if (step_rows > 1) x->strip_shift = 0;
    x->tile_blocks =
        smaller(tile_keys / jobs->grid.block, masked ? MOST_MASKED_BLOCKS : MOST_BLOCKS);
    x->entries_at = jobs->tiler->n_entries;
    x->most = most_rows(jobs);
    if (!turns && (flags & TESS_COLUMNS_INVARIANT)) x->order.shift = INVARIANT_SHIFT;
    x->run_start = tess_mem_alloc(x->runtime, (heads + 1) * sizeof *x->run_start, 64);
    x->residues = tess_mem_alloc(x->runtime, group * sizeof *x->residues, 64);
    if (!x->run_start || !x->residues ||
        !tess_order_create(&x->order, x->runtime, x->most + (turns ? NEAR_PLACES : 0)))
        return tess_columns_no_memory((heads + 1) * sizeof *x->run_start);
    uint32_t run = 0;
    for (uint32_t g = 0; g <= heads; g++) {
        while (run < jobs->n_runs && jobs->runs[run].kv_head < g) run++;
        x->run_start[g] = run;
    }
    x->starts =
        tess_mem_alloc(x->runtime, (size_t)(2 * tess_columns_heads(x) + 1) * sizeof *x->starts, 64);
    if (!x->starts)
        return tess_columns_no_memory((2 * tess_columns_heads(x) + 1) * sizeof *x->starts);
    x->turns = turns;
    if (turns) TESS_RETURN_IF_ERROR(create_maps(x));
    return masked ? make_lists(x) : TESS_OK;
}

void tess_columns_release(tess_columns *x) {
    if (!x->runtime) return;
    const tess_layout *layout = x->jobs->tiler->layout;
    const size_t heads = (size_t)layout->n_kv_heads;
    tess_spare_give(x->runtime, x->copies, (size_t)x->copies_room * sizeof *x->copies);
    tess_spare_give(x->runtime, x->places, (size_t)x->places_room * sizeof *x->places);
    tess_spare_give(x->runtime, x->segments, (size_t)x->segments_room * sizeof *x->segments);
    tess_spare_give(x->runtime, x->columns, (size_t)x->columns_room * sizeof *x->columns);
    tess_mem_free(x->runtime, x->cut_columns, (size_t)x->n_cut * sizeof *x->cut_columns);
    tess_mem_free(x->runtime, x->turn_runs,
                  (size_t)(x->n_maps * x->map_runs) * sizeof *x->turn_runs);
    tess_mem_free(x->runtime, x->maps, x->n_maps * sizeof *x->maps);
    tess_mem_free(x->runtime, x->bits, (size_t)x->n_entries * sizeof *x->bits);
    tess_mem_free(x->runtime, x->entries, (size_t)x->n_entries * sizeof *x->entries);
    tess_mem_free(x->runtime, x->list_start, (size_t)list_starts(x) * sizeof *x->list_start);
    tess_mem_free(x->runtime, x->starts,
                  (size_t)(2 * tess_columns_heads(x) + 1) * sizeof *x->starts);
    tess_order_release(&x->order, x->runtime);
    tess_mem_free(x->runtime, x->residues, (size_t)layout->n_heads / heads * sizeof *x->residues);
    tess_mem_free(x->runtime, x->run_start, (heads + 1) * sizeof *x->run_start);
    x->runtime = NULL;
}

/* ------------------------------------------------------------------ ranges */

uint64_t tess_column_steps(const tess_tables *tables, const tess_column *column, int64_t block,
                           uint32_t tile_rows, bool turns) {
    uint64_t steps = 0;
    for (uint32_t n = 0; n < column->segments; n++) {
        const tess_segment *s = &tables->segments[column->segment + n];
        const bool listed =
            (tables->classes[s->cls].flags & TESS_CLASS_BITS) || (!turns && s->step != 0);
        const uint64_t rows = (uint64_t)s->rows * (listed ? (uint64_t)block : 1);
        steps += ((rows - 1) / tile_rows + 1) * s->heads * s->blocks;
    }
    return steps;
}
