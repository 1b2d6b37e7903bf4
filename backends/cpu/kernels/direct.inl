/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs of a few rows (decoding). Lanes over rows would stay empty, and packing would cost more than
 * the products. So K and V are read once, in place, and lanes run over elements in both products
 * and over keys in the softmax.
 */

/* Rows that a product takes at once. */
#define DIRECT_ROWS CPU_FEW_ROWS
/*
 * Most rows of such a job. More than DIRECT_ROWS are taken in groups of DIRECT_ROWS, which read K
 * and V of a few keys one after the other. Each group adds up sums key by key, which costs much
 * with short rows, and would convert codes once more. Tiles of bf16 have room for sixteen rows.
 */
enum { DIRECT_MOST = TILES ? 16 : 12 };
INLINE int32_t direct_most(const tess_launch *l) {
    if (l->kv_dtype > TESS_BF16) return DIRECT_ROWS;
    if (TILES || l->head_dim >= 96) return DIRECT_MOST;
    return VL == 16 ? 8 : DIRECT_ROWS;
}
/* Most keys whose scores are summed together, and vectors of a row's O that are kept in registers:
 * enough independent sums to hide the latency of a multiply-add. */
#if VL == 16 || defined(__aarch64__)
#define DIRECT_KEYS 4
#else
#define DIRECT_KEYS 2
#endif
#ifdef __aarch64__
#define DIRECT_SPAN 4
#else
#define DIRECT_SPAN 2
#endif

/*
 * Rows that the products of the group from row `first` on are compiled for. Rows of zeros complete
 * three. The last one or two rows of floats have products of their own, which take less than those
 * of four; other types would gain less.
 */
INLINE int direct_group(const task *t, int32_t first) {
    const int32_t left = t->rows - first;
    if (TILES || left > 2) return DIRECT_ROWS;
    return t->launch->kv_dtype == TESS_F32 || t->rows == 1 ? (int)left : DIRECT_ROWS;
}

/* Rows of a job, including those of zeros. */
INLINE int32_t direct_lanes(const task *t) {
    const int32_t last = (t->rows - 1) / DIRECT_ROWS * DIRECT_ROWS;
    return last + direct_group(t, last);
}

/* Stands for V of a key that is not there. */
static const uint16_t no_value[256];

#if TILES
#include "direct_tiles.inl"
enum { TASK_FLOATS = DIRECT_ROWS * (CHUNK + VL + 8) + WEIGHT_FLOATS(DIRECT_ROWS) };
#else
#include "direct_products.inl"
enum { TURN_KEYS = VL, TASK_FLOATS = DIRECT_ROWS * (CHUNK + FOLDS * VL + VL) };
_Static_assert(DIRECT_MOST / DIRECT_ROWS * TASK_FLOATS <= 2 * BATCH * CHUNK * 32, "room");
#endif

/* Sets masked scores of row r to -inf. */
static void direct_mask(const task *t, int32_t r) {
    const job_memory *m = &t->m;
    const int32_t sinks = t->cls->flags & TESS_CLASS_WINDOW ? t->cls->sinks : 0;
    float *s = m->s + (size_t)r * CHUNK;
    for (int32_t n = 0; n < t->chunk->n_runs; n++) {
        const cpu_run *run = &t->chunk->run[n];
        if (!run->masked) continue;
        const int listed = (int)(run->kept >> m->block[r]) & 1;
        for (int32_t i = 0; i < run->count; i++) {
            const int32_t token = run->token + i;
            const int in_bounds =
                token < sinks ? token <= m->causal[r] : token >= m->low[r] && token <= m->high[r];
            if (!listed || !in_bounds) s[run->at + i] = -INFINITY;
        }
    }
    for (int32_t key = t->chunk->keys; key < CHUNK; key++) s[key] = -INFINITY;
}

/* Raises row_max of row r if a score of the chunk is far above it. */
static __attribute__((noinline)) void direct_raise(const task *t, int32_t r, vf s_max) {
    const job_memory *m = &t->m;
    float next = -INFINITY;
    for (int i = 0; i < VL; i++) next = s_max[i] > next ? s_max[i] : next;
    const vf factor = vexp2(vset((m->row_max[r] - next) * t->scale_log2));
    for (int32_t d = 0; d < m->o_elements; d += VL)
        vstore(m->o + (size_t)r * m->o_elements + d,
               vload(m->o + (size_t)r * m->o_elements + d) * factor);
    vstore(t->sums + r * VL, vload(t->sums + r * VL) * factor);
    m->row_max[r] = next;
}

/* Turns the scores of row r into P. Its sums stay in lanes until the job ends. With codes, the
 * scale of a row of V is multiplied into P. */
INLINE void direct_softmax(const task *t, const uint32_t dtype, int32_t r) {
    const job_memory *m = &t->m;
    const vf scale_log2 = vset(t->scale_log2);
    const float *s = m->s + (size_t)r * CHUNK;
    vf s_max = vset(-INFINITY), sum = vload(t->sums + r * VL);
    for (int32_t key = 0; key < CHUNK; key += VL) s_max = vmax(vload(s + key), s_max);
    if (vany((s_max - vset(m->row_max[r])) * scale_log2 > vset(8.0f))) {
        direct_raise(t, r, s_max);
        sum = vload(t->sums + r * VL);
    }
    const vf bias = vset(m->row_max[r] == -INFINITY ? 0.0f : m->row_max[r]);
    for (int32_t key = 0; key < CHUNK; key += VL) {
        const vf x = (vload(s + key) - bias) * scale_log2,
                 p = DIRECT_PAIRS ? vexp2_short(x) : vexp2(x);
        sum += p;
        store_weights(t, dtype, r, key,
                      dtype >= TESS_F8E4M3 ? p * vload_any(t->located->v_scale + key) : p);
    }
    vstore(t->sums + r * VL, sum);
#if TILES
    finish_weights(t, dtype, r);
#endif
}

/* Copies `count` scales that lie `stride` bytes apart, times `unit`. */
static void copy_scales(const char *at, int64_t stride, int32_t count, float unit, float *out) {
    int32_t i = 0;
#if VL == 16 && defined(__AVX512F__)
    if (stride >= 0 && stride <= INT32_MAX / 16)
        for (; i + 16 <= count; i += 16, at += 16 * stride) {
            const __m512i lane =
                _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
            const __m512i offset = _mm512_mullo_epi32(lane, _mm512_set1_epi32((int32_t)stride));
            vstore_any(out + i, (vf)_mm512_i32gather_ps(offset, at, 1) * unit);
        }
#endif
    for (; i < count; i++, at += stride) {
        float scale;
        memcpy(&scale, at, sizeof scale);
        out[i] = scale * unit;
    }
}

static void direct_scales(const task *t, const cpu_run *run, direct_rows *rows) {
    const float unit = DIRECT_PAIRS ? 1.0f : code_scale(t->launch->kv_dtype);
    copy_scales(run->k_scale, t->k_scale_stride, run->count, unit, rows->k_scale + run->at);
    copy_scales(run->v_scale, t->v_scale_stride, run->count, unit, rows->v_scale + run->at);
}

static void direct_locate(const task *t, const cpu_chunk *chunk, direct_rows *rows) {
    rows->in_step = 0;
    for (int32_t n = 0; n < chunk->n_runs; n++) {
        const cpu_run *run = &chunk->run[n];
#if TILES
        mark_in_step(rows, run->at, run->count);
#endif
        const char *k = run->k, *v = run->v;
        const int64_t k_stride = t->k_stride, v_stride = t->v_stride;
        const int32_t at = run->at, count = run->count;
        for (int32_t i = 0; i < count; i++) rows->k[at + i] = k + i * k_stride;
        for (int32_t i = 0; i < count; i++) rows->v[at + i] = v + i * v_stride;
        if (t->launch->kv_dtype >= TESS_F8E4M3) direct_scales(t, run, rows);
    }
    /* Fill up the last keys with any key: their scores become -inf. */
    for (int32_t key = chunk->keys; key < round_up(chunk->keys, TURN_KEYS); key++)
        rows->k[key] = rows->k[0];
        /* Keys with P = 0, whose V must not turn that into NaN. */
#if TILES
    const int32_t end = round_up(chunk->keys, tile_keys(t->launch->kv_dtype));
#else
    const int32_t end = DIRECT_PAIRS ? round_up(chunk->keys, 2) : chunk->keys;
#endif
    for (int32_t key = chunk->keys; key < end; key++) rows->v[key] = (const char *)no_value;
    if (t->launch->kv_dtype >= TESS_F8E4M3)
        for (int32_t key = chunk->keys; key < (TILES ? CHUNK : end); key++)
            rows->v_scale[key] = 0.0f;
}

/* Finds the next chunk of a job. */
static void direct_advance(task *t) {
    t->more = cpu_walk_next(&t->walk, &t->chunks[t->turn], CHUNK);
    if (t->more) direct_locate(t, &t->chunks[t->turn], &t->direct[t->turn]);
    t->turn ^= 1;
}

/* Calls a product for a group: with `rows` rows, or if that is 0, with those that it has. */
#define DIRECT_GROUP(product, rows, t, first, ...)                   \
    do {                                                             \
        switch ((rows) ? (rows) : direct_group(t, first)) {          \
        case 1: product(t, __VA_ARGS__, first, 1); break;            \
        case 2: product(t, __VA_ARGS__, first, 2); break;            \
        default: product(t, __VA_ARGS__, first, DIRECT_ROWS); break; \
        }                                                            \
    } while (0)

/* Runs the current chunks of all tasks that have one, for one storage type and number of rows in
 * each group, or any number. Tasks take turns every few keys, because their rows mostly lie side by
 * side. */
INLINE void direct_chunks(direct_turns *turns, const uint32_t dtype, const int rows) {
    const int32_t n_ready = turns->n_ready, keys = round_up(turns->keys, TURN_KEYS);
    const int32_t at_once = direct_keys(dtype),
                  lanes = rows == 1 ? 1 : direct_lanes(turns->task[0]);
    for (int32_t key = 0; key < keys; key += at_once)
        for (int32_t n = 0; n < n_ready; n++) {
            const task *t = turns->ready[n];
            if (key >= round_up(t->chunk->keys, TURN_KEYS)) continue;
            for (int32_t first = 0; first < lanes; first += TILES ? lanes : DIRECT_ROWS)
                DIRECT_GROUP(direct_scores, rows, t, first, dtype, key);
        }
#if TILES
    direct_scores_end(turns, dtype);
#endif
    for (int32_t n = 0; n < n_ready; n++)
        for (int r = 0; r < lanes; r++) {
            direct_mask(turns->ready[n], r);
            direct_softmax(turns->ready[n], dtype, r);
        }
    const int32_t unit = turns->value_keys;
    for (int32_t key = 0; key < turns->keys; key += unit)
        for (int32_t n = 0; n < n_ready; n++) {
            const task *t = turns->ready[n];
            const int32_t left = t->chunk->keys - key;
            for (int32_t first = 0; first < lanes && left > 0; first += TILES ? lanes : DIRECT_ROWS)
                DIRECT_GROUP(direct_values, rows, t, first, dtype, key, left < unit ? left : unit);
        }
}

/* The instances for a type of K and V. */
#define DIRECT_TYPE(name, dtype)                                               \
    static __attribute__((noinline)) void direct_##name(direct_turns *turns) { \
        const int32_t lanes = direct_lanes(turns->task[0]);                    \
        if (!TILES && lanes == 1)                                              \
            direct_chunks(turns, dtype, 1);                                    \
        else if ((dtype) != TESS_F32 || lanes % DIRECT_ROWS == 0)              \
            direct_chunks(turns, dtype, DIRECT_ROWS);                          \
        else                                                                   \
            direct_chunks(turns, dtype, 0);                                    \
    }
DIRECT_TYPE(bf16, TESS_BF16)
#if !PAIRS
DIRECT_TYPE(f32, TESS_F32)
DIRECT_TYPE(f16, TESS_F16)
#endif
#if !PAIRS || DIRECT_PAIRS
DIRECT_TYPE(e4m3, TESS_F8E4M3)
DIRECT_TYPE(i8, TESS_I8)
#endif

static void direct_step(direct_turns *turns) {
    switch (turns->task[0]->launch->kv_dtype) {
#if !PAIRS
    case TESS_F32: direct_f32(turns); break;
    case TESS_F16: direct_f16(turns); break;
#endif
#if !PAIRS || DIRECT_PAIRS
    case TESS_F8E4M3: direct_e4m3(turns); break;
    case TESS_I8: direct_i8(turns); break;
#endif
    default: direct_bf16(turns); break;
    }
}

/* Gives the n-th job that takes turns its part of the arrays, which are large enough for many rows.
 * These jobs do not pack K, so its array holds what the softmax needs. */
static void direct_place(task *t, int32_t n) {
    /* K of head_dim 8 has the shortest rows */
    _Static_assert(CPU_JOBS_AT_ONCE * TASK_FLOATS <= 2 * BATCH * CHUNK * (TILES ? 16 : 32), "room");
    job_memory *m = &t->m;
    const int32_t lanes = direct_lanes(t), first = n * lanes;
    m->o_elements = round_up(m->o_elements, step_elements(t->launch->kv_dtype));
    m->q += (size_t)n * query_floats(t);
    m->o += (size_t)first * m->o_elements;
    m->row_max += first;
    m->row_sum += first;
    m->causal += first;
    m->low += first;
    m->high += first;
    m->block += first;
    m->s = m->k + (size_t)n * TASK_FLOATS;
    t->sums = m->s + lanes * CHUNK;
#if TILES
    t->weights = t->sums + lanes * VL;
    t->q_unit = t->weights + WEIGHT_FLOATS(lanes);
    t->weight_unit = t->q_unit + DIRECT_ROWS;
#else
    t->folds = t->sums + lanes * VL;
#endif
}

static void direct_begin(task *t, int32_t n) {
    direct_place(t, n);
    const int32_t lanes = direct_lanes(t);
    place_rows(t, lanes);
    const job_memory *m = &t->m;
    direct_queries(t);
    memset(m->o, 0, (size_t)lanes * m->o_elements * sizeof(float));
    memset(t->sums, 0, (size_t)lanes * VL * sizeof(float));
    for (int32_t r = 0; r < lanes; r++) { m->row_max[r] = -INFINITY; }
    cpu_walk_start(&t->walk, t->launch, t->job);
    t->turn = 0;
    direct_advance(t);
}

/* Restores the order of elements of a row of O, four at a time where the products leave four
 * together. */
static void direct_order(const task *t, const float *o) {
    const uint32_t dtype = t->launch->kv_dtype;
    if (dtype == TESS_BF16 && (TILES || !DIRECT_PAIRS)) {
        /* even elements of a step, then odd ones */
        const int32_t half = step_elements(dtype) / 2;
        for (int32_t d = 0; d < t->head_dim; d += 2 * half)
            for (int32_t i = 0; i < half; i++) {
                t->m.rows[d + 2 * i] = o[d + i];
                t->m.rows[d + 2 * i + 1] = o[d + half + i];
            }
        return;
    }
    for (int32_t d = 0; d < t->head_dim; d += 4)
        memcpy(t->m.rows + d, o + direct_place_of(dtype, d, 1), 4 * sizeof(float));
}

static void direct_end(task *t) {
    const job_memory *m = &t->m;
    for (int32_t r = 0; r < t->rows; r++) {
        float *o = m->o + (size_t)r * m->o_elements, sum = 0.0f;
        for (int i = 0; i < VL; i++) sum += t->sums[r * VL + i];
        m->row_sum[r] = sum;
        /* A row without keys has O = 0 and row_sum = 0: divide by 1. */
        const vf by = vset(sum == 0.0f ? 1.0f : sum);
        for (int32_t d = 0; d < m->o_elements; d += VL)
            vstore(o + d, sum == 0.0f ? vset(0.0f) : vload(o + d) / by);
        direct_order(t, o);
        finish_row(t, r, m->rows);
    }
}

/* Makes the next chunk of each task the current one, and finds the one after it. */
static void direct_ready(direct_turns *turns) {
    turns->n_ready = turns->keys = 0;
    for (int32_t n = 0; n < turns->n; n++) {
        task *t = turns->task[n];
        if (!t->more) continue;
        direct_advance(t);
        t->chunk = &t->chunks[t->turn];
        t->located = &t->direct[t->turn];
        if (t->chunk->keys > turns->keys) turns->keys = t->chunk->keys;
        turns->ready[turns->n_ready++] = t;
    }
}

/* Runs all tasks, a chunk of each at a time. */
static void direct_rounds(direct_turns *turns) {
    const task *any = turns->task[0];
    const int32_t row_bytes = any->head_dim * (int32_t)any->kv_esize;
    turns->row_lines = (row_bytes + 63) / 64;
#if DIRECT_PAIRS
    if (any->launch->kv_dtype >= TESS_F8E4M3) direct_fill_table(turns, any->launch->kv_dtype);
#endif
    turns->near = any->launch->kv_dtype == TESS_I8;
    turns->listed = turns->listed_lines = 0;
    turns->ahead = (direct_ahead){.line = NULL};
    turns->pending = NULL;
    turns->pending_c = 0;
    direct_list(turns);
    turns->value_keys = direct_value_keys(any->launch->kv_dtype, row_bytes);
    for (direct_mark begin = {0, 0};;) {
        const direct_mark next = {turns->listed, turns->listed_lines};
        direct_ready(turns);
        if (turns->n_ready == 0) return;
        direct_list(turns);
        direct_catch_up(turns, begin, row_bytes);
        direct_step(turns);
        begin = next;
    }
}
