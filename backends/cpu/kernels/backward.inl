/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Backward, in two passes over the pairs: dQ by tiles of rows, dK and dV by columns of keys. Either
 * way the tile stands still in lanes, transposed, and the other side comes by in chunks of items
 * (backward_products.inl). A first stage leaves two numbers of each row and head in the workspace:
 * LSE in exponents of 2, and Delta. An LSE of +inf makes P exactly 0.
 */
#include <tessera/tessera_column_walk.h>

#include "backward_products.inl"

/* Lanes of a tile: its operands and sums stay in the second-level cache. */
#ifndef LANES
#define LANES 256
#endif

uint32_t KERNEL(backward_lanes)(int32_t head_dim) { return head_dim <= 128 ? LANES : LANES / 2; }

/* A row or key of the caller's is a row of x, or of y: Q and dO in the one, K and V in the other.
 */
enum { FIRST, SECOND, BOTH };

/* Which rows keep the key of a lane, by position; or which keys, in forward's way (task.m). */
typedef struct lane_bounds {
    int32_t *low, *high, *block; /* block: its bit in a segment's words */
} lane_bounds;

typedef struct item_run {
    int32_t position, count; /* of rows */
    int32_t at;              /* the first one's place in the chunk */
    uint32_t bits;           /* blocks of the column that they read */
} item_run;

typedef struct backward {
    task t; /* launch, job, class and the bounds of rows in lanes */
    int32_t lanes;
    float *x[BOTH], *sums[BOTH];    /* of lanes */
    float *y[BOTH], *columns[BOTH]; /* of items */
    float *s, *dp;
    float *lse, *delta; /* of rows, which are lanes or items */
    const char *rows[BOTH][CHUNK];
    cpu_chunk chunk;
    /* of columns */
    const tess_column *column;
    const tess_segment *segment;
    lane_bounds bounds;
    item_run run[CHUNK];
    int32_t items, n_runs;
} backward;

enum { BACKWARD_BYTES = (sizeof(backward) + 63) / 64 * 64 };

static size_t layout_backward(backward *b, int32_t head_dim, float *base) {
    const size_t lanes = KERNEL(backward_lanes)(head_dim);
    job_memory *m = &b->t.m;
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
    PART(b->s, CHUNK * PANEL);
    PART(b->dp, CHUNK * PANEL);
    PART(m->rows, VL * most);
    PART(b->lse, lanes > CHUNK ? lanes : CHUNK);
    PART(b->delta, lanes > CHUNK ? lanes : CHUNK);
    PART(m->causal, lanes);
    PART(m->low, lanes);
    PART(m->high, lanes);
    PART(m->block, lanes);
#undef PART
    return at * sizeof(float);
}

size_t KERNEL(backward_scratch)(int32_t head_dim) {
    backward b;
    return BACKWARD_BYTES + layout_backward(&b, head_dim, NULL);
}

static backward *begin_backward(const tess_launch *launch, void *scratch) {
    backward *b = scratch;
    task *t = &b->t;
    t->launch = launch;
    t->head_dim = launch->head_dim;
    t->esize = launch->dtype == TESS_F32 ? 4 : 2;
    t->kv_esize = t->esize;
    t->k_stride =
        (int64_t)((uint64_t)launch->tensor[TESS_ROLE_K].stride_token * (uint64_t)t->esize);
    t->v_stride =
        (int64_t)((uint64_t)launch->tensor[TESS_ROLE_V].stride_token * (uint64_t)t->esize);
    t->scale_log2 = fabsf(launch->scale) * 1.44269504088896340736f;
    layout_backward(b, launch->head_dim, (float *)(void *)((char *)scratch + BACKWARD_BYTES));
    return b;
}

/* ------------------------------------------------------------------ what rows need */

/* Where LSE, or Delta, of a strip's first row lies. */
static float *strip_floats(const tess_launch *l, int of_delta, uint32_t head, uint64_t strip) {
    float *base = (float *)(uintptr_t)(l->workspace.handle + l->workspace.offset + l->strips_at);
    const uint64_t rows = (uint64_t)l->n_strips * CPU_STRIP_ROWS;
    return base + ((of_delta ? l->n_heads : 0) + (uint64_t)head) * rows + strip * CPU_STRIP_ROWS;
}

/* The element of a tensor that is addressed as Q is, in elements. */
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
        for (int64_t r = 0; r < rows; r++) {
            const int64_t row = strip->row + r;
            const float x = ((const float *)tensor_base(lse))[q_offset(l, s, lse, row, head)];
            lse_out[r] = INFINITY;
            delta[r] = 0;
            if (isinf(x)) continue; /* what else belongs to such a row may be anything */
            lse_out[r] = x * 1.44269504088896340736f;
            delta[r] =
                dot_rows(l->dtype, tensor_base(o) + q_offset(l, s, o, row, head) * b->t.esize,
                         tensor_base(d_o) + q_offset(l, s, d_o, row, head) * b->t.esize,
                         l->head_dim, b->x[FIRST]);
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

/* Transposes rows into the panel that begins at lane `first`. Those of a negative scale are
 * negated where that is asked for. */
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

/* A row of a gradient as the caller wants it. */
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

/* ------------------------------------------------------------------ dQ */

/* dS of rows in lanes over dP, from S. */
static void row_pairs(const backward *b, int32_t first_row, int32_t from, int32_t to) {
    const vf scale = vset(b->t.scale_log2);
    vf lse[NV], delta[NV];
    vi dead[NV];
    for (int v = 0; v < NV; v++) {
        lse[v] = vload(b->lse + first_row + v * VL);
        delta[v] = vload(b->delta + first_row + v * VL);
        dead[v] = (vi)(lse[v] == INFINITY);
    }
    for (int32_t i = from; i < to; i += 1 + PAIRS) UNROLL
    for (int v = 0; v < NV; v++) {
        vf ds[1 + PAIRS];
        UNROLL
        for (int n = 0; n < 1 + PAIRS; n++) {
            const size_t at = (size_t)(i + n) * PANEL + v * VL;
            const vf p = vexp2(vload(b->s + at) * scale - lse[v]);
            ds[n] = vselect(dead[v], vset(0.0f), p * (vload(b->dp + at) - delta[v]));
        }
#if PAIRS
        vstore(b->dp + (size_t)(i / 2) * PANEL + v * VL, vpair_results(ds[0], ds[1]));
#else
        vstore(b->dp + (size_t)i * PANEL + v * VL, ds[0]);
#endif
    }
}

/* Scores of items past the end of a span, up to which P is computed, count for nothing. */
static int32_t pad_scores(const backward *b, int32_t end) {
    const int32_t padded = round_up(end, TILES ? GROUP : 1 + PAIRS);
    for (int32_t i = end; i < padded; i++)
        for (int v = 0; v < NV; v++) vstore(b->s + (size_t)i * PANEL + v * VL, vset(-INFINITY));
    return padded;
}

static void pack_items(const backward *b, int which, int32_t items, int as_rows, int as_columns) {
    const job_memory *m = &b->t.m;
    if (as_rows || !PAIRS)
        pack_rows(m, b->t.launch->dtype, b->t.head_dim, b->rows[which], items, b->y[which]);
    if (as_columns)
        pack_columns(m, b->t.head_dim, b->rows[which], b->y[which], items, b->columns[which]);
}

static void find_keys(backward *b) {
    const cpu_chunk *chunk = &b->chunk;
    for (int32_t n = 0; n < chunk->n_runs; n++)
        for (int32_t i = 0; i < chunk->run[n].count; i++) {
            b->rows[FIRST][chunk->run[n].at + i] = chunk->run[n].k + i * b->t.k_stride;
            b->rows[SECOND][chunk->run[n].at + i] = chunk->run[n].v + i * b->t.v_stride;
        }
    for (int32_t i = chunk->keys; i < round_up(chunk->keys, GROUP); i++)
        b->rows[FIRST][i] = b->rows[SECOND][i] = zero_row;
}

/* All panels against the keys of the chunk. */
static void row_chunk(backward *b) {
    task *t = &b->t;
    const job_memory *m = &t->m;
    const int32_t sinks = t->cls->flags & TESS_CLASS_WINDOW ? t->cls->sinks : 0;
    find_keys(b);
    pack_items(b, FIRST, b->chunk.keys, 1, 1);
    pack_items(b, SECOND, b->chunk.keys, 1, 0);
    for (int32_t row = 0; row < t->rows; row += PANEL) {
        panel_bounds(t, row);
        panel_chunk x = {.row = row, .chunk = &b->chunk, .s = b->s};
        x.span = cpu_panel_span(&b->chunk, &t->panel, sinks);
        if (x.span.end == 0) continue;
        if (x.span.first % GROUP != 0) {
            x.span.first -= x.span.first % GROUP;
            x.span.masked = 1;
        }
        score_items(m, b->y[FIRST], b->x[FIRST] + (size_t)row * m->q_words, x.span.first,
                    x.span.end, b->s);
        score_items(m, b->y[SECOND], b->x[SECOND] + (size_t)row * m->q_words, x.span.first,
                    x.span.end, b->dp);
        if (x.span.masked) mask_scores(t, row, &x);
        const int32_t end = pad_scores(b, x.span.end);
        row_pairs(b, row, x.span.first, end);
        sum_items(b->columns[FIRST], b->dp, x.span.first, end, t->head_dim,
                  b->sums[FIRST] + (size_t)row * m->o_elements);
    }
}

/* Rows of a panel of a tile, of Q and dO; those of rows without keys are not looked at. */
static void begin_rows(backward *b, int32_t first) {
    const task *t = &b->t;
    const tess_launch *l = t->launch;
    const tess_tensor *q = &l->tensor[TESS_ROLE_Q], *d_o = &l->tensor[TESS_ROLE_D_O];
    const char *rows[BOTH][PANEL];
    for (int32_t i = 0; i < PANEL; i++) {
        const int32_t r = first + i;
        rows[FIRST][i] = rows[SECOND][i] = zero_row;
        b->lse[r] = INFINITY;
        b->delta[r] = 0;
        if (r >= t->rows) continue;
        row_numbers(l, t->job->sequence, t->job->head + (uint32_t)(r / t->job->rows),
                    t->job->row + (uint32_t)(r % t->job->rows), &b->lse[r], &b->delta[r]);
        if (b->lse[r] == INFINITY) continue;
        rows[FIRST][i] = tensor_base(q) + row_offset(t, q, r) * t->esize;
        rows[SECOND][i] = tensor_base(d_o) + row_offset(t, d_o, r) * t->esize;
    }
    pack_lanes(b, rows[FIRST], l->scale < 0, b->x[FIRST] + (size_t)first * t->m.q_words);
    pack_lanes(b, rows[SECOND], 0, b->x[SECOND] + (size_t)first * t->m.q_words);
}

static void finish_rows(const backward *b, int32_t first) {
    const task *t = &b->t;
    const tess_tensor *d_q = &t->launch->tensor[TESS_ROLE_D_Q];
    char *out[PANEL];
    for (int32_t i = 0; i < PANEL; i++)
        out[i] = first + i < t->rows
                     ? tensor_base(d_q) + row_offset(t, d_q, first + i) *
                                              gradient_size(t->launch, TESS_PLAN_DQ_F32)
                     : NULL;
    store_lanes(b, b->sums[FIRST] + (size_t)first * t->m.o_elements, t->launch->scale,
                TESS_PLAN_DQ_F32, TESS_PLAN_DQ_ADD, out);
}

static void row_job(backward *b, const tess_job *job) {
    task *t = &b->t;
    t->job = job;
    t->cls = &t->launch->tables->classes[job->cls];
    t->rows = (int32_t)job->rows * job->heads;
    b->lanes = round_up(t->rows, PANEL);
    place_rows(t, b->lanes);
    for (int32_t row = 0; row < b->lanes; row += PANEL) begin_rows(b, row);
    memset(b->sums[FIRST], 0, (size_t)b->lanes * t->m.o_elements * sizeof(float));
    cpu_walk_start(&t->walk, t->launch, job);
    while (cpu_walk_next(&t->walk, &b->chunk, CHUNK)) row_chunk(b);
    for (int32_t row = 0; row < b->lanes; row += PANEL) finish_rows(b, row);
}

/* ------------------------------------------------------------------ dK and dV */

/* The rows that keep the key of each lane: those at positions [low, high], if its block's bit is
 * set in the word of the rows. Lanes that are not of the segment have none. */
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

/* What the lanes of a panel have in common. */
typedef struct panel_keys {
    uint32_t blocks;
    int32_t all; /* every lane is of the segment */
    int32_t low_min, low_max, high_min, high_max;
} panel_keys;

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

/* The part of the chunk that some lane of the panel keeps; masked if some pair of it must not
 * count. */
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

/* Replaces the scores of pairs that must not count by -inf. */
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
                float *s = b->s + (size_t)i * PANEL + lane;
                vstore(s, vselect(keep, vload(s), vset(-INFINITY)));
            }
        }
    }
}

/* P over S and dS over dP, of rows as items. */
static void key_pairs(const backward *b, int32_t from, int32_t to, const int wants_ds) {
    const vf scale = vset(b->t.scale_log2);
    for (int32_t i = from; i < to; i += 1 + PAIRS) UNROLL
    for (int v = 0; v < NV; v++) {
        vf p[1 + PAIRS], ds[1 + PAIRS];
        UNROLL
        for (int n = 0; n < 1 + PAIRS; n++) {
            const size_t at = (size_t)(i + n) * PANEL + v * VL;
            p[n] = vexp2(vload(b->s + at) * scale - vset(b->lse[i + n]));
            if (wants_ds) ds[n] = p[n] * (vload(b->dp + at) - vset(b->delta[i + n]));
        }
        const size_t at = (size_t)(i / (1 + PAIRS)) * PANEL + v * VL;
#if PAIRS
        vstore(b->s + at, vpair_results(p[0], p[1]));
        if (wants_ds) vstore(b->dp + at, vpair_results(ds[0], ds[1]));
#else
        vstore(b->s + at, p[0]);
        if (wants_ds) vstore(b->dp + at, ds[0]);
#endif
    }
}

static int is_wanted(const tess_launch *l, uint32_t role) {
    return l->tensor[role].buffer.kind != TESS_BUFFER_NONE;
}

/* All panels of keys against the rows that are gathered. */
static void column_chunk(backward *b) {
    const task *t = &b->t;
    const job_memory *m = &t->m;
    const int d_k = is_wanted(t->launch, TESS_ROLE_D_K), d_v = is_wanted(t->launch, TESS_ROLE_D_V);
    if (b->items == 0) return;
    for (int32_t i = b->items; i < round_up(b->items, GROUP); i++) {
        b->rows[FIRST][i] = b->rows[SECOND][i] = zero_row;
        b->lse[i] = INFINITY;
        b->delta[i] = 0;
    }
    pack_items(b, FIRST, b->items, 1, d_k);
    pack_items(b, SECOND, b->items, d_k, d_v);
    for (int32_t key = 0; key < b->lanes; key += PANEL) {
        const panel_keys common = common_of(b, key);
        const cpu_span span = span_of(b, &common);
        if (span.end == 0) continue;
        score_items(m, b->y[FIRST], b->x[FIRST] + (size_t)key * m->q_words, span.first, span.end,
                    b->s);
        if (d_k)
            score_items(m, b->y[SECOND], b->x[SECOND] + (size_t)key * m->q_words, span.first,
                        span.end, b->dp);
        if (span.masked) mask_items(b, key, &span);
        const int32_t end = pad_scores(b, span.end);
        if (d_k)
            key_pairs(b, span.first, end, 1);
        else
            key_pairs(b, span.first, end, 0);
        if (d_k)
            sum_items(b->columns[FIRST], b->dp, span.first, end, t->head_dim,
                      b->sums[FIRST] + (size_t)key * m->o_elements);
        if (d_v)
            sum_items(b->columns[SECOND], b->s, span.first, end, t->head_dim,
                      b->sums[SECOND] + (size_t)key * m->o_elements);
    }
    b->items = b->n_runs = 0;
}

/* Adds rows [row, row + count) of a head to the chunk, which is worked off when it is full. */
static void gather_rows(backward *b, uint32_t head, int32_t row, int32_t count, uint32_t bits) {
    const tess_launch *l = b->t.launch;
    const uint32_t sequence = b->column->sequence;
    const tess_sequence *s = &l->tables->sequences[sequence];
    const tess_tensor *q = &l->tensor[TESS_ROLE_Q], *d_o = &l->tensor[TESS_ROLE_D_O];
    while (count > 0) {
        const int32_t space = CHUNK - b->items, n = count < space ? count : space;
        b->run[b->n_runs++] =
            (item_run){.position = s->q_first + row, .count = n, .at = b->items, .bits = bits};
        for (int32_t i = 0; i < n; i++) {
            const int32_t at = b->items + i;
            row_numbers(l, sequence, head, (uint32_t)(row + i), &b->lse[at], &b->delta[at]);
            const int is_dead = b->lse[at] == INFINITY;
            b->rows[FIRST][at] =
                is_dead ? zero_row : tensor_base(q) + q_offset(l, s, q, row + i, head) * b->t.esize;
            b->rows[SECOND][at] =
                is_dead ? zero_row
                        : tensor_base(d_o) + q_offset(l, s, d_o, row + i, head) * b->t.esize;
        }
        b->items += n;
        row += n;
        count -= n;
        if (b->items == CHUNK) column_chunk(b);
    }
}

static void segment_rows(backward *b, uint32_t head) {
    const tess_tables *tables = b->t.launch->tables;
    const tess_segment *g = b->segment;
    for (uint32_t n = 0; n < g->rows;) {
        const tess_row_run run =
            tess_row_run_at(g, b->t.cls, &tables->sequences[b->column->sequence],
                            (uint32_t)b->t.launch->block, tables->entries, tables->bits, n);
        gather_rows(b, head, run.row, (int32_t)run.rows, run.bits);
        n += run.taken;
    }
    column_chunk(b);
}

/* The rows of K, V or of their gradients of a panel of keys; `none` where there are none. */
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
    char *out[PANEL];
    if (!is_wanted(l, role)) return;
    for (int32_t key = 0; key < b->lanes; key += PANEL) {
        find_panel(b, role, key, gradient_size(l, TESS_PLAN_DKV_F32), NULL, out);
        store_lanes(b, b->sums[which] + (size_t)key * b->t.m.o_elements, factor, TESS_PLAN_DKV_F32,
                    TESS_PLAN_DKV_ADD, out);
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
    b->bounds = (lane_bounds){t->m.low, t->m.high, t->m.block};
    for (int32_t key = 0; key < b->lanes && column->segments; key += PANEL) {
        find_panel(b, TESS_ROLE_K, key, t->esize, zero, rows);
        pack_lanes(b, (const char *const *)rows, l->scale < 0,
                   b->x[FIRST] + (size_t)key * t->m.q_words);
        find_panel(b, TESS_ROLE_V, key, t->esize, zero, rows);
        pack_lanes(b, (const char *const *)rows, 0, b->x[SECOND] + (size_t)key * t->m.q_words);
    }
    for (int n = FIRST; n < BOTH; n++) memset(b->sums[n], 0, floats * sizeof(float));
    for (uint32_t n = 0; n < column->segments; n++) {
        b->segment = &l->tables->segments[column->segment + n];
        t->cls = &l->tables->classes[b->segment->cls];
        place_keys(b);
        for (uint32_t head = 0; head < b->segment->heads; head++)
            segment_rows(b, b->segment->head + head);
    }
    finish_keys(b, FIRST, TESS_ROLE_D_K, l->scale);
    finish_keys(b, SECOND, TESS_ROLE_D_V, 1.0f);
}

/* ------------------------------------------------------------------ a job */

void KERNEL(backward_job)(const tess_launch *launch, uint64_t n, void *scratch) {
    backward *b = begin_backward(launch, scratch);
    switch (launch->stage) {
    case TESS_STAGE_DELTA: strip_job(b, n); break;
    case TESS_STAGE_ROWS: row_job(b, &launch->tables->jobs[n]); break;
    default: column_job(b, &launch->tables->columns[n]); break;
    }
}
