/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Backward, in one pass over the pairs. The keys of a column stay in lanes, transposed, with their
 * sums of dK and dV, while rows come in chunks of items (backward_products.inl). dS of a chunk is
 * kept for all keys of the column and multiplied with K once more. The result is added to
 * accumulators of dQ, which the columns of a kv head do in the order of their jobs (turns.h).
 *
 * Strips of rows are prepared before and finished after (backward_strips.inl). The keys of a column
 * are packed and their gradients stored by backward_keys.inl.
 */
#include <tessera/tessera_column_walk.h>

#include "turns.h"

/* Keys of a column: their operands and sums stay in the second-level cache. The more there are, the
 * fewer times rows and their sums come from memory, which products of tiles wait for. Processors
 * with tiles have twice as much of that cache as others. */
#define LANES (TILES ? 512 : 256)

uint32_t KERNEL(backward_lanes)(int32_t head_dim) { return head_dim <= 128 ? LANES : LANES / 2; }

/* Which operand of a product: Q or K is the first, dO or V the second. */
enum { FIRST, SECOND, BOTH };

/* Which rows keep the key of a lane, by position. */
typedef struct lane_bounds {
    int32_t *low, *high, *block; /* block: its bit in a segment's words */
} lane_bounds;

typedef struct item_run {
    int32_t position, count; /* of rows */
    int32_t at;              /* the first one's place in the chunk */
    uint32_t bits;           /* blocks of the column that they read */
} item_run;

/* What the lanes of a panel have in common. */
typedef struct panel_keys {
    uint32_t blocks;
    int32_t all; /* every lane belongs to the segment */
    int32_t low_min, low_max, high_min, high_max;
} panel_keys;

/*
 * What a chunk prefetches, a few rows between the steps of its products: a core has few cache
 * misses in flight, and waits where more are asked for. The caller's rows are often pages apart,
 * where hardware prefetchers do not follow. With many heads, accumulators come from memory, too.
 */
typedef struct ahead_rows {
    const char *first[BOTH]; /* the next rows of Q and dO */
    int64_t stride[BOTH];
    int32_t rows, n_rows;   /* of these, there are, are prefetched already; likewise: */
    int32_t items, n_items; /* accumulators of the chunk */
    int32_t keys, n_keys;   /* rows of dK and dV, near the end of a column */
    int32_t at_once;        /* after each step */
} ahead_rows;

/* Rows that are packed already. A row is when this many more are prefetched. Packing them at once
 * keeps them: rows that are a power of two apart share a few sets of the caches. */
enum { ROWS_AHEAD = 32 };
INLINE int32_t ahead_packed(const ahead_rows *ahead) {
    return ahead->n_rows > ROWS_AHEAD ? ahead->n_rows - ROWS_AHEAD : 0;
}

/* The arrays of a job, beside those of job_memory, which forward's functions use. */
typedef struct backward_memory {
    float *x[BOTH], *sums[BOTH];    /* of keys, in lanes */
    float *keys;                    /* K once more, with elements in lanes: [d][word][PANEL] */
    float *y[BOTH], *columns[BOTH]; /* of rows, which are items */
    float *y_next[BOTH];            /* y of the next chunk */
    float *s, *dp;
    float *ds; /* of rows and all keys */
    float *dq; /* what the chunk adds: [d][item][PANEL] */
    float *lse, *delta;
} backward_memory;

typedef struct backward {
    task t; /* launch and class, for forward's functions */
    backward_memory at;
    cpu_turn *turn; /* NULL: no other worker adds to dQ */
    int32_t lanes, ds_pitch;
    int32_t key[LANES]; /* positions of the column's keys */
    const char *rows[BOTH][CHUNK];
    float *accumulators[CHUNK]; /* of dQ; NULL: of a row that keeps no key */
    const tess_column *column;
    const tess_segment *segment;
    lane_bounds bounds;
    panel_keys common[LANES / PANEL], upper[LANES / PANEL]; /* of all lanes; of the upper half */
    cpu_span span[LANES / PANEL];
    item_run run[CHUNK];
    int32_t items, n_runs;
    int32_t packed; /* items whose rows are packed already */
    ahead_rows ahead;
    int32_t streams;          /* see may_stream */
    int32_t is_last;          /* of the column's segments and heads */
    uint64_t later;           /* where the segments after this one begin, as a turn counts */
    uint16_t infinite[LANES]; /* keys with an element that is not finite */
    int32_t n_infinite;
} backward;

#include "backward_products.inl"

enum { BACKWARD_BYTES = (sizeof(backward) + 63) / 64 * 64 };

static size_t layout_backward(backward_memory *b, job_memory *m, int32_t head_dim, float *base) {
    const size_t lanes = KERNEL(backward_lanes)(head_dim);
    size_t at = 0;
    m->words = WORD_OF(TILES ? round_up(head_dim, 32) : head_dim);
    m->q_words = round_up(m->words, 16);
    m->k_pitch = TILES ? m->words : m->q_words + 16;
    m->o_elements = round_up(head_dim, 32);
    const size_t most = m->o_elements > m->q_words ? m->o_elements : m->q_words;
#define PART(field, count) \
    (field = base ? (void *)(base + at) : NULL, at += ((size_t)(count) + 15) / 16 * 16)
    for (int n = FIRST; n < BOTH; n++) {
        PART(b->x[n], lanes * (size_t)m->q_words);
        PART(b->sums[n], lanes * (size_t)m->o_elements);
        PART(b->y[n], (size_t)CHUNK * m->k_pitch);
        PART(b->y_next[n], (size_t)CHUNK * m->k_pitch);
        PART(b->columns[n], (size_t)CHUNK * WORD_OF(m->o_elements));
    }
    PART(b->keys, WORD_OF(lanes) * (size_t)m->o_elements);
    PART(b->s, CHUNK * PANEL);
    PART(b->dp, CHUNK * PANEL);
    PART(b->ds, CHUNK * ds_pitch(lanes));
    PART(b->dq, CHUNK * (size_t)m->o_elements);
    PART(m->rows, VL * most);
    PART(b->lse, CHUNK);
    PART(b->delta, CHUNK);
    PART(m->low, lanes);
    PART(m->high, lanes);
    PART(m->block, lanes);
#undef PART
    return at * sizeof(float);
}

size_t KERNEL(backward_scratch)(int32_t head_dim) {
    backward_memory at;
    job_memory m;
    return CPU_TURN_BYTES + BACKWARD_BYTES + layout_backward(&at, &m, head_dim, NULL);
}

static backward *begin_backward(const tess_launch *launch, void *scratch) {
    backward *b = (void *)((char *)scratch + CPU_TURN_BYTES);
    task *t = &b->t;
    t->launch = launch;
    t->head_dim = launch->head_dim;
    t->esize = launch->dtype == TESS_F32 ? 4 : 2;
    t->scale_log2 = fabsf(launch->scale) * 1.44269504088896340736f;
    layout_backward(&b->at, &t->m, launch->head_dim, (float *)(void *)((char *)b + BACKWARD_BYTES));
    return b;
}

#include "backward_strips.inl"

#include "backward_keys.inl" /* needs what is above */

/* ------------------------------------------------------------------ a chunk of rows */

/* Makes items past the end of a span, for which P is computed too, contribute nothing, whatever
 * their V and dO hold. */
static void pad_scores(const backward *b, int32_t end) {
    for (int32_t i = end; i < round_up(end, GROUP); i++)
        for (int v = 0; v < NV; v++) {
            vstore(b->at.s + (size_t)i * PANEL + v * VL, vset(-INFINITY));
            vstore(b->at.dp + (size_t)i * PANEL + v * VL, vset(0.0f));
        }
}

/* Packs the items. The first ones were packed while the chunk before was multiplied. */
static void pack_items(backward *b, int which, int as_columns) {
    const job_memory *m = &b->t.m;
    const int32_t items = round_up(b->items, GROUP);
    const char *rows[CHUNK];
    float *y = b->at.y[which];
    for (int32_t i = 0; i < items; i++) {
        float *row = y + (size_t)i * m->k_pitch;
        if (i >= b->packed)
            pack_row(m, b->t.launch->dtype, b->t.head_dim, b->rows[which][i], row);
        else if (b->rows[which][i] == zero_row)
            memset(row, 0, (size_t)m->words * sizeof *row);
        rows[i] = (const char *)row;
    }
    if (as_columns) pack_columns(m, b->t.head_dim, rows, items, b->at.columns[which]);
}

/* The rows that keep the key of each lane: those at positions [low, high], if its block's bit is
 * set in the word of the rows. Lanes outside of the segment have none. */
static void place_keys(backward *b) {
    const tess_launch *l = b->t.launch;
    const tess_segment *g = b->segment;
    const tess_class *c = b->t.cls;
    const uint32_t block = (uint32_t)l->block;
    for (int32_t k = 0; k < b->lanes; k++) {
        const uint32_t m = (uint32_t)k / block;
        int64_t low = INT32_MIN, high = INT32_MAX;
        b->bounds.block[k] = c->flags & TESS_CLASS_BITS ? (int32_t)m : 0;
        if (k >= b->column->keys || m < g->first || m >= (uint32_t)g->first + g->blocks) {
            b->bounds.block[k] = 0;
            b->bounds.low[k] = INT32_MAX;
            b->bounds.high[k] = INT32_MIN;
            continue;
        }
        const int64_t t = b->key[k], j = t / block;
        if (c->flags & TESS_CLASS_CAUSAL) low = t;
        if (c->flags & TESS_CLASS_LOCAL && (uint64_t)(j + c->shift) % c->stride != 0)
            high = (j + (int64_t)c->local) * block - 1;
        if (c->flags & TESS_CLASS_WINDOW && t >= c->sinks) {
            if (c->left != INT32_MAX && t + c->left < high) high = t + c->left;
            if (c->right != INT32_MAX && t - c->right > low) low = t - c->right;
        }
        b->bounds.low[k] = clamp_int32(low);
        b->bounds.high[k] = clamp_int32(high);
    }
}

static panel_keys common_of(const backward *b, int32_t first, int32_t end) {
    const lane_bounds *at = &b->bounds;
    panel_keys x = {0, 1, INT32_MAX, INT32_MIN, INT32_MAX, INT32_MIN};
    for (int32_t k = first; k < end; k++) {
        if (at->low[k] > at->high[k]) {
            x.all = 0;
            continue;
        }
        x.blocks |= 1u << at->block[k];
        if (at->low[k] < x.low_min) x.low_min = at->low[k];
        if (at->low[k] > x.low_max) x.low_max = at->low[k];
        if (at->high[k] < x.high_min) x.high_min = at->high[k];
        if (at->high[k] > x.high_max) x.high_max = at->high[k];
    }
    return x;
}

/* The items of the chunk that keep some lane's key; masked if some pair among them is not kept. */
static cpu_span span_of(const backward *b, const panel_keys *x) {
    cpu_span s = {0, 0, 0};
    for (int32_t n = 0; n < b->n_runs; n++) {
        const item_run *run = &b->run[n];
        const int64_t p0 = run->position, p1 = p0 + run->count - 1,
                      from = p0 < x->low_min ? x->low_min : p0,
                      to = p1 > x->high_max ? x->high_max : p1;
        if ((run->bits & x->blocks) == 0 || from > to) continue;
        const int32_t at = run->at + (int32_t)(from - p0), end = run->at + (int32_t)(to - p0) + 1;
        if (s.end == 0)
            s.first = at;
        else if (at != s.end)
            s.masked = 1;
        if (!x->all || (run->bits & x->blocks) != x->blocks || from < x->low_max ||
            to > x->high_min)
            s.masked = 1;
        s.end = end;
    }
    if (s.end && s.first % GROUP != 0) {
        s.first -= s.first % GROUP;
        s.masked = 1;
    }
    return s;
}

/* Sets the scores of masked pairs to -inf, and dP to 0: V of a key that no row reads may hold
 * anything. */
static void mask_items(const backward *b, int32_t first_key, int32_t lanes, const cpu_span *span) {
    for (int32_t n = 0; n < b->n_runs; n++) {
        const item_run *run = &b->run[n];
        const int32_t from = run->at > span->first ? run->at : span->first,
                      to = run->at + run->count < span->end ? run->at + run->count : span->end;
        for (int32_t lane = 0; lane < lanes && from < to; lane += VL) {
            const int32_t k = first_key + lane;
            const vi low = *(const vi *)(b->bounds.low + k),
                     high = *(const vi *)(b->bounds.high + k);
            const vi keys =
                -(vi)(((vu)viset((int32_t)run->bits) >> *(const vu *)(b->bounds.block + k)) & 1);
            for (int32_t i = from; i < to; i++) {
                const int32_t p = run->position + i - run->at;
                const vi keep = keys & (low <= p) & (high >= p);
                float *s = b->at.s + (size_t)i * PANEL + lane,
                      *dp = b->at.dp + (size_t)i * PANEL + lane;
                vstore(s, vselect(keep, vload(s), vset(-INFINITY)));
                vstore(dp, vselect(keep, vload(dp), vset(0.0f)));
            }
        }
    }
}

/* Replaces S by P and dP by dS, in pairs of items if the products take pairs. If dQ is wanted, dS
 * is also stored beside that of other keys. */
INLINE void key_pairs(const backward *b, int32_t key, int32_t from, int32_t to, int32_t lanes,
                      const int wants_ds, const int wants_dq) {
    const vf scale = vset(b->t.scale_log2);
    for (int32_t i = from; i < to; i += 1 + PAIRS) UNROLL
    for (int v = 0; v < NV; v++) {
        if (v * VL >= lanes) break;
        vf p[1 + PAIRS], ds[1 + PAIRS];
        UNROLL
        for (int n = 0; n < 1 + PAIRS; n++) {
            const size_t at = (size_t)(i + n) * PANEL + v * VL;
            p[n] = vexp2(vload(b->at.s + at) * scale - vset(b->at.lse[i + n]));
            if (wants_ds) ds[n] = p[n] * (vload(b->at.dp + at) - vset(b->at.delta[i + n]));
            if (wants_dq)
                store_operands(b->at.ds + (size_t)(i + n) * b->ds_pitch + WORD_OF(key + v * VL),
                               ds[n]);
        }
        const size_t at = (size_t)(i / (1 + PAIRS)) * PANEL + v * VL;
#if PAIRS
        vstore(b->at.s + at, vpair_results(p[0], p[1]));
        if (wants_ds) vstore(b->at.dp + at, vpair_results(ds[0], ds[1]));
#else
        vstore(b->at.s + at, p[0]);
        if (wants_ds) vstore(b->at.dp + at, ds[0]);
#endif
    }
}

/* Multiplies some lanes of a panel of keys with the items of `span`: all products but that of dQ.
 */
static void multiply_items(backward *b, int32_t key, int32_t lanes, const cpu_span *span, int d_q) {
    const task *t = &b->t;
    const job_memory *m = &t->m;
    const int d_k = is_wanted(t->launch, TESS_ROLE_D_K), d_v = is_wanted(t->launch, TESS_ROLE_D_V);
    const int32_t padded = round_up(span->end, GROUP),
                  end = round_up(span->end, TILES ? GROUP : 1 + PAIRS);
    score_items(b->at.y[FIRST], (size_t)m->k_pitch, b->at.x[FIRST] + (size_t)key * m->q_words,
                m->words, span->first, span->end, b->at.s, lanes, b);
    if (d_k || d_q)
        score_items(b->at.y[SECOND], (size_t)m->k_pitch, b->at.x[SECOND] + (size_t)key * m->q_words,
                    m->words, span->first, span->end, b->at.dp, lanes, b);
    if (span->masked) mask_items(b, key, lanes, span);
    pad_scores(b, span->end);
    if (d_q)
        key_pairs(b, key, span->first, padded, lanes, 1, 1);
    else if (d_k)
        key_pairs(b, key, span->first, padded, lanes, 1, 0);
    else
        key_pairs(b, key, span->first, padded, lanes, 0, 0);
    if (d_k)
        sum_items(b->at.columns[FIRST], b->at.dp, span->first, end, t->head_dim,
                  b->at.sums[FIRST] + (size_t)key * m->o_elements, lanes, b);
    if (d_v)
        sum_items(b->at.columns[SECOND], b->at.s, span->first, end, t->head_dim,
                  b->at.sums[SECOND] + (size_t)key * m->o_elements, lanes, b);
}

/* Clears dS of `keys` keys from `key` on, and of the items [from, to). */
static void clear_ds(const backward *b, int32_t key, int32_t keys, int32_t from, int32_t to) {
    for (int32_t i = from; i < to; i++)
        memset(b->at.ds + (size_t)i * b->ds_pitch + WORD_OF(key), 0,
               (size_t)WORD_OF(keys) * sizeof(float));
}

/* The same for all lanes of the panel that hold keys. On the diagonal, the first items keep keys of
 * its lower half alone. */
static void multiply_panel(backward *b, int32_t key, const cpu_span *span, int d_q) {
    const int32_t lanes = panel_lanes(key, b->column->keys), half = HALF * VL;
    cpu_span rest = *span;
    if (!TILES && span->masked && lanes > half) {
        const cpu_span upper = span_of(b, &b->upper[key / PANEL]);
        if (upper.end == span->end && upper.first > span->first) {
            const cpu_span lower = {span->first, upper.first, 1};
            multiply_items(b, key, half, &lower, d_q);
            if (d_q) clear_ds(b, key + half, lanes - half, lower.first, lower.end);
            rest.first = upper.first;
        }
    }
    multiply_items(b, key, lanes, &rest, d_q);
}

/* Spreads what the chunk prefetches over the steps of its products. */
static void spread_prefetches(backward *b, int32_t keys, const cpu_span *items) {
    ahead_rows *ahead = &b->ahead;
    const int32_t groups = round_up(items->end - items->first, GROUP) / GROUP,
                  blocks = round_up(b->t.head_dim, SUM_ELEMENTS) / SUM_ELEMENTS,
                  steps = keys / PANEL * 2 * (groups + blocks) + 1;
    ahead->items = is_wanted(b->t.launch, TESS_ROLE_D_Q) ? b->items : 0;
    ahead->n_rows = ahead->n_items = 0;
    ahead->at_once = (ahead->rows + ahead->items + ahead->keys - ahead->n_keys + steps - 1) / steps;
}

/* Makes dQ of rows NaN that keep a key with an element that is not finite. Other rows have dS = 0
 * there, and 0 times that element would be NaN. */
static void spoil_rows(const backward *b, int32_t first_key, int32_t end_key,
                       const cpu_span *items) {
    for (int32_t n = 0; n < b->n_infinite; n++) {
        const int32_t key = b->infinite[n];
        if (key < first_key || key >= end_key) continue;
        for (int32_t i = items->first; i < items->end; i++) {
            const float *ds = b->at.ds + (size_t)i * b->ds_pitch;
#if PAIRS
            const int is_zero = (((const uint16_t *)(const void *)ds)[key] & 0x7fff) == 0;
#else
            const int is_zero = ds[key] == 0;
#endif
            for (int32_t d = 0; d < b->t.head_dim && !is_zero; d++)
                b->at.dq[(size_t)(d / PANEL * CHUNK + i) * PANEL + d % PANEL] = NAN;
        }
    }
}

/* Adds item i of dQ to its accumulator, or stores it there. */
INLINE void add_row(const backward *b, int32_t i, float *sums, const int adds) {
    for (int32_t d = 0; d < b->t.head_dim; d += PANEL) {
        const float *dq = b->at.dq + (size_t)(d / PANEL * CHUNK + i) * PANEL;
        for (int32_t at = 0; at < PANEL && d + at < b->t.head_dim; at += VL)
            vstore_any(sums + d + at,
                       (adds ? vload_any(sums + d + at) : vset(0.0f)) + vload(dq + at));
    }
}

/* Multiplies dS of the items [from, to) with K of the keys [first_key, end_key). */
static void multiply_ds(backward *b, int32_t first_key, int32_t end_key, int32_t from, int32_t to) {
    const int32_t first_word = WORD_OF(first_key), words = WORD_OF(end_key) - first_word,
                  all_words = WORD_OF(b->lanes);
    for (int32_t d = 0; d < b->t.m.o_elements; d += PANEL)
        score_items(b->at.ds + first_word, (size_t)b->ds_pitch,
                    b->at.keys + (size_t)d * all_words + (size_t)first_word * PANEL, words, from,
                    to, b->at.dq + (size_t)d * CHUNK, PANEL, b);
}

/* The panels of keys that some of the GROUP items from `item` on keep, [*first, *end). */
static void panels_of(const backward *b, int32_t item, int32_t *first, int32_t *end) {
    *first = b->lanes / PANEL;
    *end = 0;
    for (int32_t n = 0; n < b->lanes / PANEL; n++) {
        const cpu_span *span = &b->span[n];
        if (span->end <= item || span->first >= item + GROUP) continue;
        if (*first > n) *first = n;
        *end = n + 1;
    }
}

/* The product for dQ: of each item with the panels between the first and the last that it keeps. */
static void multiply_kept_ds(backward *b, const cpu_span *items) {
    const int32_t keys = b->column->keys, all = round_up(items->end, GROUP);
    for (int32_t from = items->first, to; from < all; from = to) {
        int32_t first, end, next_first, next_end;
        panels_of(b, from, &first, &end);
        for (to = from + GROUP; to < all; to += GROUP) {
            panels_of(b, to, &next_first, &next_end);
            if (next_first != first || next_end != end) break;
        }
        const int32_t last = (end - 1) * PANEL;
        multiply_ds(b, first * PANEL, end > 0 ? last + panel_lanes(last, keys) : first * PANEL,
                    from, to);
    }
}

/* Adds dS K to the accumulators of the items. */
static void add_rows(backward *b, uint64_t end, int32_t first_key, int32_t end_key,
                     const cpu_span *items) {
    multiply_kept_ds(b, items);
    if (b->n_infinite) spoil_rows(b, first_key, end_key, items);
    if (b->turn) tess_cpu_turn_wait(b->turn, end);
    for (int32_t i = items->first; i < items->end; i++) {
        float *sums = b->accumulators[i];
        if (!sums) continue;
        if (is_untouched(sums))
            add_row(b, i, sums, 0);
        else
            add_row(b, i, sums, 1);
    }
}

/* Multiplies all panels of keys with the gathered rows, which end at `end`. */
static void column_chunk(backward *b, uint64_t end) {
    const tess_launch *l = b->t.launch;
    const int d_q = is_wanted(l, TESS_ROLE_D_Q), d_k = is_wanted(l, TESS_ROLE_D_K);
    int32_t first_key = b->lanes, end_key = 0;
    cpu_span items = {CHUNK, 0, 0};
    if (b->items == 0) return;
    for (int32_t i = b->items; i < round_up(b->items, GROUP); i++) {
        b->rows[FIRST][i] = b->rows[SECOND][i] = zero_row;
        b->accumulators[i] = NULL;
        b->at.lse[i] = INFINITY;
        b->at.delta[i] = 0;
    }
    for (int32_t key = 0; key < b->lanes; key += PANEL) {
        const cpu_span span = b->span[key / PANEL] = span_of(b, &b->common[key / PANEL]);
        if (span.end == 0) continue;
        if (first_key > key) first_key = key;
        end_key = key + panel_lanes(key, b->column->keys);
        if (span.first < items.first) items.first = span.first;
        if (span.end > items.end) items.end = span.end;
    }
    if (end_key > 0) {
        pack_items(b, FIRST, d_k);
        pack_items(b, SECOND, is_wanted(l, TESS_ROLE_D_V));
        spread_prefetches(b, round_up(end_key - first_key, PANEL), &items);
    }
    for (int32_t key = first_key; key < end_key; key += PANEL) {
        const cpu_span *span = &b->span[key / PANEL];
        const int32_t padded = round_up(span->end, GROUP), all = round_up(items.end, GROUP);
        if (d_q) {
            clear_ds(b, key, PANEL, items.first, span->end ? span->first : items.first);
            clear_ds(b, key, PANEL, span->end ? padded : items.first, all);
        }
        if (span->end) multiply_panel(b, key, span, d_q);
    }
    if (d_q && end_key > 0) add_rows(b, end, first_key, end_key, &items);
    b->items = b->n_runs = b->packed = 0;
    if (end_key == 0) return;
    /* What is packed of the next chunk lies in the other half. */
    b->packed = ahead_packed(&b->ahead);
    for (int n = FIRST; n < BOTH; n++) {
        float *y = b->at.y[n];
        b->at.y[n] = b->at.y_next[n];
        b->at.y_next[n] = y;
    }
}

/* Finishes the chunk, whose last row is before `row`. The segment's rows of the head before `next`
 * are done then. */
static void end_chunk(backward *b, uint32_t head, int32_t row, int32_t next) {
    const uint64_t at = cpu_turn_at(head, next);
    column_chunk(b, cpu_turn_at(head, row));
    if (b->turn) tess_cpu_turn_done(b->turn, at < b->later ? at : b->later);
}

/* Adds rows [row, row + count) of a head to the chunk, and finishes the chunk when it is full. */
static void gather_rows(backward *b, uint32_t head, int32_t row, int32_t count, int32_t more,
                        uint32_t bits) {
    const size_t floats = (size_t)cpu_accumulator_floats(b->t.head_dim);
    const tess_launch *l = b->t.launch;
    const uint32_t sequence = b->column->sequence;
    const tess_sequence *s = &l->tables->sequences[sequence];
    const tess_tensor *q = &l->tensor[TESS_ROLE_Q], *d_o = &l->tensor[TESS_ROLE_D_O];
    float *accumulators = strip_accumulators(l, head, l->tables->first_strips[sequence]);
    b->ahead.stride[FIRST] = q->stride_token * b->t.esize;
    b->ahead.stride[SECOND] = d_o->stride_token * b->t.esize;
    while (count > 0) {
        const int32_t space = CHUNK - b->items, n = count < space ? count : space;
        b->run[b->n_runs++] =
            (item_run){.position = s->q_first + row, .count = n, .at = b->items, .bits = bits};
        for (int32_t i = 0; i < n; i++) {
            const int32_t at = b->items + i;
            row_numbers(l, sequence, head, (uint32_t)(row + i), &b->at.lse[at], &b->at.delta[at]);
            const int is_dead = b->at.lse[at] == INFINITY;
            b->accumulators[at] = is_dead ? NULL : accumulators + (size_t)(row + i) * floats;
            b->rows[FIRST][at] =
                is_dead ? zero_row : tensor_base(q) + q_offset(l, s, q, row + i, head) * b->t.esize;
            b->rows[SECOND][at] =
                is_dead ? zero_row
                        : tensor_base(d_o) + q_offset(l, s, d_o, row + i, head) * b->t.esize;
        }
        b->items += n;
        row += n;
        count -= n;
        if (b->items < CHUNK) continue;
        b->ahead.rows = count + more < CHUNK ? count + more : CHUNK;
        if (b->is_last && count + more < 2 * CHUNK && !b->streams) b->ahead.keys = b->column->keys;
        b->ahead.first[FIRST] = tensor_base(q) + q_offset(l, s, q, row, head) * b->t.esize;
        b->ahead.first[SECOND] = tensor_base(d_o) + q_offset(l, s, d_o, row, head) * b->t.esize;
        end_chunk(b, head, row, row);
    }
}

/* Whether the segment's rows are consecutive. */
static int is_interval(const backward *b, const tess_segment *g) {
    return g->step == 0 && !(b->t.launch->tables->classes[g->cls].flags & TESS_CLASS_BITS);
}

static void segment_rows(backward *b, uint32_t head) {
    const tess_tables *tables = b->t.launch->tables;
    const tess_segment *g = b->segment;
    int32_t end = 0;
    for (uint32_t n = 0; n < g->rows;) {
        const tess_row_run run =
            tess_row_run_at(g, b->t.cls, &tables->sequences[b->column->sequence],
                            (uint32_t)b->t.launch->block, tables->entries, tables->bits, n);
        n += run.taken;
        gather_rows(b, head, run.row, (int32_t)run.rows,
                    is_interval(b, g) ? (int32_t)(g->rows - n) : 0, run.bits);
        end = run.row + (int32_t)run.rows;
    }
    b->ahead.rows = 0;
    end_chunk(b, head, end, INT32_MAX);
}

/* The first row of all segments from number n on. */
static uint64_t first_of_segments(const backward *b, uint32_t n) {
    uint64_t first = UINT64_MAX;
    for (; n < b->column->segments; n++) {
        const tess_segment *g = &b->t.launch->tables->segments[b->column->segment + n];
        const uint64_t at = cpu_turn_at(g->head, is_interval(b, g) ? g->row : 0);
        if (at < first) first = at;
    }
    return first;
}

static void column_job(backward *b, const tess_column *column) {
    const tess_launch *l = b->t.launch;
    task *t = &b->t;
    const size_t floats = (size_t)round_up(column->keys, PANEL) * t->m.o_elements;
    b->column = column;
    b->lanes = round_up(column->keys, PANEL);
    b->items = b->n_runs = b->packed = 0;
    b->ahead.keys = b->ahead.n_keys = 0;
    b->ds_pitch = (int32_t)ds_pitch((size_t)b->lanes);
    b->n_infinite = 0;
    b->bounds = (lane_bounds){t->m.low, t->m.high, t->m.block};
    if (b->turn) tess_cpu_turn_done(b->turn, first_of_segments(b, 0));
    list_keys(b);
    b->streams = may_stream(l, TESS_ROLE_D_K, TESS_ROLE_D_V, TESS_PLAN_DKV_F32, TESS_PLAN_DKV_ADD);
    if (column->segments) pack_keys_of_column(b);
    for (int n = FIRST; n < BOTH; n++) memset(b->at.sums[n], 0, floats * sizeof(float));
    for (uint32_t n = 0; n < column->segments; n++) {
        b->segment = &l->tables->segments[column->segment + n];
        t->cls = &l->tables->classes[b->segment->cls];
        b->later = first_of_segments(b, n + 1);
        place_keys(b);
        for (int32_t key = 0; key < b->lanes; key += PANEL) {
            b->common[key / PANEL] = common_of(b, key, key + PANEL);
            if (!TILES) b->upper[key / PANEL] = common_of(b, key + HALF * VL, key + PANEL);
        }
        for (uint32_t head = 0; head < b->segment->heads; head++) {
            b->is_last = n + 1 == column->segments && head + 1 == b->segment->heads;
            segment_rows(b, b->segment->head + head);
        }
    }
    finish_keys(b);
}

/* ------------------------------------------------------------------ a job */

void KERNEL(backward_job)(const tess_launch *launch, uint64_t n, void *scratch, cpu_turn *turn) {
    backward *b = begin_backward(launch, scratch);
    b->turn = turn;
    switch (launch->stage) {
    case TESS_STAGE_DELTA: strip_job(b, n); break;
    case TESS_STAGE_FINISH: finish_job(b, n); break;
    default: column_job(b, &launch->tables->columns[n]); break;
    }
}
