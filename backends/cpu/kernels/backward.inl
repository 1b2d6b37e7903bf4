/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Backward, in one pass over the pairs. The keys of a column stay in lanes, transposed, with their
 * sums of dK and dV, while rows come in chunks of items (backward_products.inl). dS of a chunk is
 * kept for all keys of the column and multiplied with K once more. The result is added to
 * accumulators of dQ, which the columns of a kv head do in the order of their jobs (turns.h).
 *
 * The first stage writes LSE in base 2 and Delta of each row and head to the workspace, and clears
 * the accumulators. An LSE of +inf makes P exactly 0. The last stage turns accumulators into dQ.
 */
#include <tessera/tessera_column_walk.h>

#include "backward_products.inl"
#include "turns.h"

/* Keys of a column: their operands and sums stay in the second-level cache. */
#ifndef LANES
#define LANES 256
#endif

uint32_t KERNEL(backward_lanes)(int32_t head_dim) { return head_dim <= 128 ? LANES : LANES / 2; }

enum { PREFETCHES = 4 }; /* for each panel of a chunk: see prefetch_few */

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

/* The arrays of a job, beside those of job_memory, which forward's functions use. */
typedef struct backward_memory {
    float *x[BOTH], *sums[BOTH];    /* of keys, in lanes */
    float *keys;                    /* K once more, with elements in lanes: [d][word][PANEL] */
    float *y[BOTH], *columns[BOTH]; /* of rows, which are items */
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
    const char *rows[BOTH][CHUNK];
    float *accumulators[CHUNK]; /* of dQ; NULL: of a row that keeps no key */
    const tess_column *column;
    const tess_segment *segment;
    lane_bounds bounds;
    panel_keys common[LANES / PANEL];
    cpu_span span[LANES / PANEL];
    item_run run[CHUNK];
    int32_t items, n_runs;
    /* The next rows of Q and dO; how many of them, and of the current accumulators, are prefetched
     * already; and how many to prefetch after each product. */
    const char *ahead[BOTH];
    int64_t ahead_stride[BOTH];
    int32_t n_ahead, n_prefetched, n_touched, at_once;
    uint64_t later;           /* where the segments after this one begin, as a turn counts */
    uint16_t infinite[LANES]; /* keys with an element that is not finite */
    int32_t n_infinite;
} backward;

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

/* ------------------------------------------------------------------ what rows need */

/* Where LSE, or Delta, of a strip's first row lies. */
static float *strip_floats(const tess_launch *l, int of_delta, uint32_t head, uint64_t strip) {
    float *base = (float *)(uintptr_t)(l->workspace.handle + l->workspace.offset + l->strips_at);
    const uint64_t rows = (uint64_t)l->n_strips * CPU_STRIP_ROWS;
    return base + ((of_delta ? l->n_heads : 0) + (uint64_t)head) * rows + strip * CPU_STRIP_ROWS;
}

/* The accumulator of dQ of a strip's first row. */
static float *strip_accumulators(const tess_launch *l, uint32_t head, uint64_t strip) {
    const uint64_t rows = (uint64_t)l->n_strips * CPU_STRIP_ROWS;
    return strip_floats(l, 0, 2 * (uint32_t)l->n_heads, 0) +
           (head * rows + strip * CPU_STRIP_ROWS) * (uint64_t)cpu_accumulator_floats(l->head_dim);
}

static int is_wanted(const tess_launch *l, uint32_t role) {
    return l->tensor[role].buffer.kind != TESS_BUFFER_NONE;
}

/* The offset of a row in a tensor with the layout of Q, in elements. */
INLINE int64_t q_offset(const tess_launch *l, const tess_sequence *s, const tess_tensor *x,
                        int64_t row, int64_t head) {
    return (l->batch_strided ? s->batch * x->stride_batch : 0) +
           (s->q_start + row) * x->stride_token + head * x->stride_head;
}

INLINE int64_t kv_offset(const tess_launch *l, const tess_sequence *s, const tess_tensor *x,
                         int64_t key, int64_t head) {
    return (l->batch_strided ? s->kv_batch * x->stride_batch : 0) +
           (s->kv_start + key) * x->stride_token + head * x->stride_head;
}

static float dot_rows(uint32_t dtype, const void *a, const void *b, int32_t n, float *room) {
    float *other = room + round_up(n, VL);
    vf sum = vset(0.0f);
    if (n % VL) {
        memset(room + n - n % VL, 0, VL * sizeof(float));
        memset(other + n - n % VL, 0, VL * sizeof(float));
    }
    load_row(dtype, a, n, room);
    load_row(dtype, b, n, other);
    for (int32_t i = 0; i < n; i += VL) sum += vload(room + i) * vload(other + i);
    double total = 0;
    for (int i = 0; i < VL; i++) total += sum[i];
    return (float)total;
}

static void strip_job(backward *b, uint64_t n) {
    const tess_launch *l = b->t.launch;
    const tess_strip *strip = &l->tables->strips[n];
    const tess_sequence *s = &l->tables->sequences[strip->sequence];
    const tess_tensor *lse = &l->tensor[TESS_ROLE_LSE], *d_lse = &l->tensor[TESS_ROLE_D_LSE],
                      *o = &l->tensor[TESS_ROLE_O], *d_o = &l->tensor[TESS_ROLE_D_O];
    const int64_t left = (int64_t)s->q_len - strip->row,
                  rows = left < CPU_STRIP_ROWS ? left : CPU_STRIP_ROWS;
    for (uint32_t head = 0; head < l->n_heads; head++) {
        float *lse_out = strip_floats(l, 0, head, n), *delta = strip_floats(l, 1, head, n);
        if (is_wanted(l, TESS_ROLE_D_Q))
            memset(strip_accumulators(l, head, n), 0,
                   (size_t)rows * (size_t)cpu_accumulator_floats(l->head_dim) * sizeof(float));
        for (int64_t r = 0; r < rows; r++) {
            const int64_t row = strip->row + r;
            const float x = ((const float *)tensor_base(lse))[q_offset(l, s, lse, row, head)];
            lse_out[r] = INFINITY;
            delta[r] = 0;
            if (isinf(x)) continue; /* the other tensors of such a row may hold anything */
            lse_out[r] = x * 1.44269504088896340736f;
            delta[r] =
                dot_rows(l->dtype, tensor_base(o) + q_offset(l, s, o, row, head) * b->t.esize,
                         tensor_base(d_o) + q_offset(l, s, d_o, row, head) * b->t.esize,
                         l->head_dim, b->at.x[FIRST]);
            if (d_lse->buffer.kind != TESS_BUFFER_NONE)
                delta[r] -= ((const float *)tensor_base(d_lse))[q_offset(l, s, d_lse, row, head)];
        }
    }
}

/* LSE and Delta of a row of the launch. */
INLINE void row_numbers(const tess_launch *l, uint32_t sequence, uint32_t head, uint32_t row,
                        float *lse, float *delta) {
    const uint64_t strip = (uint64_t)l->tables->first_strips[sequence] + row / CPU_STRIP_ROWS;
    *lse = strip_floats(l, 0, head, strip)[row % CPU_STRIP_ROWS];
    *delta = strip_floats(l, 1, head, strip)[row % CPU_STRIP_ROWS];
}

/* ------------------------------------------------------------------ lanes */

/* Transposes rows into the panel that begins at lane `first`. With `negate` and a negative scale,
 * they are negated. */
static void pack_lanes(const backward *b, const char *const *rows, int negate, float *x) {
    const job_memory *m = &b->t.m;
    const int32_t words = WORD_OF(b->t.head_dim), padded = round_up(m->words, VL);
    const vi sign = viset(!negate ? 0 : PAIRS ? (int32_t)0x80008000 : INT32_MIN);
    for (int32_t lane = 0; lane < PANEL; lane += VL) {
        for (int32_t i = 0; i < VL; i++) {
            float *row = m->rows + (size_t)i * padded;
            memset(row + words, 0, (size_t)(padded - words) * sizeof(float));
            load_words(b->t.launch->dtype, rows[lane + i], b->t.head_dim, row);
        }
        for (int32_t w = 0; w < padded; w += VL) {
            vf r[VL];
            for (int32_t i = 0; i < VL; i++)
                r[i] = (vf)((vi)vload(m->rows + (size_t)i * padded + w) ^ sign);
            vtranspose(r);
            for (int32_t i = 0; i < VL; i++) vstore(x + (size_t)(w + i) * PANEL + lane, r[i]);
        }
    }
}

/* Writes a row of a gradient in the type that the caller asks for, or adds to it. */
static void store_gradient(const tess_launch *l, uint32_t is_f32, uint32_t adds, char *out,
                           float *row) {
    const uint32_t dtype = l->gradients & is_f32 ? TESS_F32 : l->dtype;
    if (l->gradients & adds) {
        /* rows hold a multiple of 8 elements */
        float before[8];
        for (int32_t d = 0; d < l->head_dim; d += 8) {
            memcpy(before, out + 4 * (size_t)d, sizeof before);
            for (int32_t i = 0; i < 8; i++) row[d + i] += before[i];
        }
    }
    store_row(dtype, out, row, l->head_dim);
}

/* Transposes the sums of a panel back, multiplies them, and stores the rows that are not NULL. */
static void store_lanes(const backward *b, const float *sums, float factor, uint32_t is_f32,
                        uint32_t adds, char *const *out) {
    const task *t = &b->t;
    const int32_t padded = round_up(t->head_dim, VL);
    for (int32_t lane = 0; lane < PANEL; lane += VL) {
        for (int32_t d = 0; d < padded; d += VL) {
            vf r[VL];
            for (int32_t i = 0; i < VL; i++)
                r[i] = vload(sums + (size_t)(d + i) * PANEL + lane) * factor;
            vtranspose(r);
            for (int32_t i = 0; i < VL; i++) vstore(t->m.rows + (size_t)i * padded + d, r[i]);
        }
        for (int32_t i = 0; i < VL; i++)
            if (out[lane + i])
                store_gradient(t->launch, is_f32, adds, out[lane + i],
                               t->m.rows + (size_t)i * padded);
    }
}

static int64_t gradient_size(const tess_launch *l, uint32_t is_f32) {
    return l->dtype == TESS_F32 || l->gradients & is_f32 ? 4 : 2;
}

/* ------------------------------------------------------------------ dQ from its accumulators */

static void finish_job(backward *b, uint64_t n) {
    const tess_launch *l = b->t.launch;
    const tess_strip *strip = &l->tables->strips[n];
    const tess_sequence *s = &l->tables->sequences[strip->sequence];
    const tess_tensor *d_q = &l->tensor[TESS_ROLE_D_Q];
    const int64_t left = (int64_t)s->q_len - strip->row,
                  rows = left < CPU_STRIP_ROWS ? left : CPU_STRIP_ROWS,
                  size = gradient_size(l, TESS_PLAN_DQ_F32);
    for (uint32_t head = 0; head < l->n_heads; head++) {
        const float *sums = strip_accumulators(l, head, n);
        for (int64_t r = 0; r < rows; r++, sums += cpu_accumulator_floats(l->head_dim)) {
            float *row = b->t.m.rows;
            for (int32_t d = 0; d < l->head_dim; d += VL)
                vstore(row + d, vload_any(sums + d) * l->scale);
            store_gradient(l, TESS_PLAN_DQ_F32, TESS_PLAN_DQ_ADD,
                           tensor_base(d_q) + q_offset(l, s, d_q, strip->row + r, head) * size,
                           row);
        }
    }
}

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

static void pack_items(const backward *b, int which, int as_rows, int as_columns) {
    const job_memory *m = &b->t.m;
    const int32_t items = round_up(b->items, GROUP);
    if (as_rows || !PAIRS)
        pack_rows(m, b->t.launch->dtype, b->t.head_dim, b->rows[which], items, b->at.y[which]);
    if (as_columns)
        pack_columns(m, b->t.head_dim, b->rows[which], b->at.y[which], items, b->at.columns[which]);
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
        const int64_t t = tess_column_key(b->column, block, (uint32_t)k), j = t / block;
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

static panel_keys common_of(const backward *b, int32_t first) {
    const lane_bounds *at = &b->bounds;
    panel_keys x = {0, 1, INT32_MAX, INT32_MIN, INT32_MAX, INT32_MIN};
    for (int32_t k = first; k < first + PANEL; k++) {
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
static void mask_items(const backward *b, int32_t first_key, const cpu_span *span) {
    for (int32_t n = 0; n < b->n_runs; n++) {
        const item_run *run = &b->run[n];
        const int32_t from = run->at > span->first ? run->at : span->first,
                      to = run->at + run->count < span->end ? run->at + run->count : span->end;
        for (int32_t lane = 0; lane < PANEL && from < to; lane += VL) {
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
INLINE void key_pairs(const backward *b, int32_t key, int32_t from, int32_t to, const int wants_ds,
                      const int wants_dq) {
    const vf scale = vset(b->t.scale_log2);
    for (int32_t i = from; i < to; i += 1 + PAIRS) UNROLL
    for (int v = 0; v < NV; v++) {
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

/*
 * Prefetches, between products, a few of the next rows and of the accumulators that this chunk will
 * need. The caller's rows are often pages apart, and hardware prefetchers do not follow
 * (list_prefetches). With many heads, accumulators come from memory, too.
 */
static void prefetch_few(backward *b) {
    const int32_t row_bytes = b->t.head_dim * (int32_t)b->t.esize;
    for (int32_t i = 0; i < b->at_once && b->n_prefetched < b->n_ahead; i++, b->n_prefetched++)
        for (int n = FIRST; n < BOTH; n++) {
            const char *row = b->ahead[n] + b->n_prefetched * b->ahead_stride[n];
            for (int32_t at = 0; at < row_bytes; at += 64) __builtin_prefetch(row + at, 0, 2);
        }
    for (int32_t i = 0; i < b->at_once && b->n_touched < b->items; i++, b->n_touched++) {
        const float *sums = b->accumulators[b->n_touched];
        for (int32_t d = 0; sums && d < b->t.head_dim; d += 16) __builtin_prefetch(sums + d, 1, 2);
    }
}

/* Multiplies a panel of keys with the gathered rows: all products but that of dQ. */
static void panel_chunk_of_rows(backward *b, int32_t key, const cpu_span *span, int d_q) {
    const task *t = &b->t;
    const job_memory *m = &t->m;
    const int d_k = is_wanted(t->launch, TESS_ROLE_D_K), d_v = is_wanted(t->launch, TESS_ROLE_D_V);
    const int32_t padded = round_up(span->end, GROUP),
                  end = round_up(span->end, TILES ? GROUP : 1 + PAIRS);
    score_items(b->at.y[FIRST], (size_t)m->k_pitch, b->at.x[FIRST] + (size_t)key * m->q_words,
                m->words, span->first, span->end, b->at.s);
    prefetch_few(b);
    if (d_k || d_q)
        score_items(b->at.y[SECOND], (size_t)m->k_pitch, b->at.x[SECOND] + (size_t)key * m->q_words,
                    m->words, span->first, span->end, b->at.dp);
    prefetch_few(b);
    if (span->masked) mask_items(b, key, span);
    pad_scores(b, span->end);
    if (d_q)
        key_pairs(b, key, span->first, padded, 1, 1);
    else if (d_k)
        key_pairs(b, key, span->first, padded, 1, 0);
    else
        key_pairs(b, key, span->first, padded, 0, 0);
    if (d_k)
        sum_items(b->at.columns[FIRST], b->at.dp, span->first, end, t->head_dim,
                  b->at.sums[FIRST] + (size_t)key * m->o_elements);
    prefetch_few(b);
    if (d_v)
        sum_items(b->at.columns[SECOND], b->at.s, span->first, end, t->head_dim,
                  b->at.sums[SECOND] + (size_t)key * m->o_elements);
    prefetch_few(b);
}

/* Clears dS of items that keep none of the panel's keys. */
static void clear_ds(const backward *b, int32_t key, int32_t from, int32_t to) {
    for (int32_t i = from; i < to; i++)
        memset(b->at.ds + (size_t)i * b->ds_pitch + WORD_OF(key), 0,
               WORD_OF(PANEL) * sizeof(float));
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

/* Adds dS K of the keys [first_key, end_key) to the accumulators of the items. */
static void add_rows(backward *b, uint64_t end, int32_t first_key, int32_t end_key,
                     const cpu_span *items) {
    const job_memory *m = &b->t.m;
    const int32_t first_word = WORD_OF(first_key), words = WORD_OF(end_key) - first_word,
                  all_words = WORD_OF(b->lanes);
    for (int32_t d = 0; d < m->o_elements; d += PANEL)
        score_items(b->at.ds + first_word, (size_t)b->ds_pitch,
                    b->at.keys + (size_t)d * all_words + (size_t)first_word * PANEL, words,
                    items->first, items->end, b->at.dq + (size_t)d * CHUNK);
    if (b->n_infinite) spoil_rows(b, first_key, end_key, items);
    if (b->turn) tess_cpu_turn_wait(b->turn, end);
    for (int32_t i = items->first; i < items->end; i++) {
        float *sums = b->accumulators[i];
        for (int32_t d = 0; sums && d < b->t.head_dim; d += PANEL) {
            const float *dq = b->at.dq + (size_t)(d / PANEL * CHUNK + i) * PANEL;
            for (int32_t at = 0; at < PANEL && d + at < b->t.head_dim; at += VL)
                vstore_any(sums + d + at, vload_any(sums + d + at) + vload(dq + at));
        }
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
        end_key = key + PANEL;
        if (span.first < items.first) items.first = span.first;
        if (span.end > items.end) items.end = span.end;
    }
    if (end_key > 0) {
        pack_items(b, FIRST, 1, d_k);
        pack_items(b, SECOND, d_k || d_q, is_wanted(l, TESS_ROLE_D_V));
    }
    b->n_touched = d_q ? 0 : b->items;
    b->at_once = CHUNK * PANEL / PREFETCHES / (end_key - first_key + 1) + 1;
    for (int32_t key = first_key; key < end_key; key += PANEL) {
        const cpu_span *span = &b->span[key / PANEL];
        const int32_t padded = round_up(span->end, GROUP), all = round_up(items.end, GROUP);
        if (d_q) {
            clear_ds(b, key, items.first, span->end ? span->first : items.first);
            clear_ds(b, key, span->end ? padded : items.first, all);
        }
        if (span->end) panel_chunk_of_rows(b, key, span, d_q);
    }
    if (d_q && end_key > 0) add_rows(b, end, first_key, end_key, &items);
    b->items = b->n_runs = 0;
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
    b->ahead_stride[FIRST] = q->stride_token * b->t.esize;
    b->ahead_stride[SECOND] = d_o->stride_token * b->t.esize;
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
        b->n_ahead = count + more < CHUNK ? count + more : CHUNK;
        b->n_prefetched = 0;
        b->ahead[FIRST] = tensor_base(q) + q_offset(l, s, q, row, head) * b->t.esize;
        b->ahead[SECOND] = tensor_base(d_o) + q_offset(l, s, d_o, row, head) * b->t.esize;
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
    b->n_ahead = 0;
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

/* The rows of a panel's keys in K, V or a gradient of these; `none` for missing keys. */
static void find_panel(const backward *b, uint32_t role, int32_t first, int64_t esize, char *none,
                       char **rows) {
    const tess_launch *l = b->t.launch;
    const tess_column *c = b->column;
    const tess_sequence *s = &l->tables->sequences[c->sequence];
    const tess_tensor *x = &l->tensor[role];
    for (int32_t i = 0; i < PANEL; i++) {
        rows[i] = none;
        if (first + i >= c->keys) continue;
        const int64_t key = tess_column_key(c, (uint32_t)l->block, (uint32_t)(first + i));
        rows[i] = tensor_base(x) + kv_offset(l, s, x, key, c->kv_head) * esize;
    }
}

static void finish_keys(const backward *b, int which, uint32_t role, float factor) {
    const tess_launch *l = b->t.launch;
    const int64_t size = gradient_size(l, TESS_PLAN_DKV_F32);
    char *out[PANEL], *next[PANEL];
    if (!is_wanted(l, role)) return;
    for (int32_t key = 0; key < b->lanes; key += PANEL) {
        find_panel(b, role, key, size, NULL, out);
        find_panel(b, role, key + PANEL, size, NULL, next);
        for (int32_t i = 0; i < PANEL && next[i]; i++)
            for (int64_t at = 0; at < b->t.head_dim * size; at += 64)
                __builtin_prefetch(next[i] + at, 1, 2);
        store_lanes(b, b->at.sums[which] + (size_t)key * b->t.m.o_elements, factor,
                    TESS_PLAN_DKV_F32, TESS_PLAN_DKV_ADD, out);
    }
}

/* Finds the keys of a panel with an element that is not finite. dQ's product gets zeros for them:
 * see spoil_rows. */
static void find_infinite(backward *b, int32_t key, int32_t count, char *zero, char **rows) {
    const job_memory *m = &b->t.m;
    const int32_t padded = round_up(b->t.head_dim, VL);
    for (int32_t i = 0; i < PANEL && i < count; i++) {
        vf sum = vset(0.0f);
        memset(m->rows + padded - VL, 0, VL * sizeof(float));
        load_row(b->t.launch->dtype, rows[i], b->t.head_dim, m->rows);
        for (int32_t d = 0; d < padded; d += VL) sum += vload(m->rows + d) * 0.0f;
        if (vany((vi)(sum != sum))) { /* NOLINT(misc-redundant-expression): true where it is NaN */
            b->infinite[b->n_infinite++] = (uint16_t)(key + i);
            rows[i] = zero;
        }
    }
}

static void column_job(backward *b, const tess_column *column) {
    const tess_launch *l = b->t.launch;
    task *t = &b->t;
    const size_t floats = (size_t)round_up(column->keys, PANEL) * t->m.o_elements;
    char zero[sizeof zero_row] = {0}, *rows[PANEL];
    b->column = column;
    b->lanes = round_up(column->keys, PANEL);
    b->items = b->n_runs = 0;
    b->ds_pitch = (int32_t)ds_pitch((size_t)b->lanes);
    b->n_infinite = 0;
    b->bounds = (lane_bounds){t->m.low, t->m.high, t->m.block};
    if (b->turn) tess_cpu_turn_done(b->turn, first_of_segments(b, 0));
    for (int32_t key = 0; key < b->lanes && column->segments; key += PANEL) {
        find_panel(b, TESS_ROLE_K, key, t->esize, zero, rows);
        pack_lanes(b, (const char *const *)rows, l->scale < 0,
                   b->at.x[FIRST] + (size_t)key * t->m.q_words);
        if (is_wanted(l, TESS_ROLE_D_Q)) {
            find_infinite(b, key, column->keys - key, zero, rows);
            pack_pairs_of_keys(&t->m, l->dtype, t->head_dim, (const char *const *)rows,
                               b->at.keys + (size_t)WORD_OF(key) * PANEL,
                               (size_t)WORD_OF(b->lanes) * PANEL);
        }
        find_panel(b, TESS_ROLE_V, key, t->esize, zero, rows);
        pack_lanes(b, (const char *const *)rows, 0, b->at.x[SECOND] + (size_t)key * t->m.q_words);
    }
    for (int n = FIRST; n < BOTH; n++) memset(b->at.sums[n], 0, floats * sizeof(float));
    for (uint32_t n = 0; n < column->segments; n++) {
        b->segment = &l->tables->segments[column->segment + n];
        t->cls = &l->tables->classes[b->segment->cls];
        b->later = first_of_segments(b, n + 1);
        place_keys(b);
        for (int32_t key = 0; key < b->lanes; key += PANEL)
            b->common[key / PANEL] = common_of(b, key);
        for (uint32_t head = 0; head < b->segment->heads; head++)
            segment_rows(b, b->segment->head + head);
    }
    finish_keys(b, FIRST, TESS_ROLE_D_K, l->scale);
    finish_keys(b, SECOND, TESS_ROLE_D_V, 1.0f);
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
