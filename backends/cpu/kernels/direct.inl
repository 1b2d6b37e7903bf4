/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs of a few rows (decoding): lanes over rows would stay empty and packing would cost more than
 * the products, so K and V are read in place, once. Lanes run over elements in both products and
 * over keys in the softmax.
 */

#define DIRECT_ROWS CPU_FEW_ROWS
/* Most keys whose scores are summed together, and vectors of O of a row that are kept in registers:
 * enough sums to hide how long a product takes. */
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

enum {
    /* of V, which a task adds before another one takes its turn, in at most so many keys: O is
     * loaded and stored for them once */
    VALUE_BYTES = 4096,
    VALUE_KEYS_MAX = 32,
    AHEAD_BYTES = 16384, /* prefetched ahead of the products, at least */
    FOLDS = VL / 2,      /* most vectors of sums of VL keys */
    TASK_FLOATS = DIRECT_ROWS * (CHUNK + FOLDS * VL + VL)
};

#include "direct_products.inl"

/* Scores of row r that must not count become -inf. */
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

/* Raises row_max of row r where a score of the chunk is far above it. */
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

/* Turns the scores of row r into weights. Their sums stay in lanes until the job ends. Codes of V
 * take the scale of their row into the weight. */
INLINE void direct_softmax(const task *t, const uint32_t dtype, int32_t r) {
    const job_memory *m = &t->m;
    const vf scale_log2 = vset(t->scale_log2);
    float *s = m->s + (size_t)r * CHUNK;
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
        store_weights(s, key, dtype >= TESS_F8E4M3 ? p * vload_any(t->located->v_scale + key) : p);
    }
    vstore(t->sums + r * VL, sum);
}

static void direct_scales(const task *t, const cpu_run *run, direct_rows *rows) {
    const float unit = DIRECT_PAIRS ? 1.0f : code_scale(t->launch->kv_dtype);
    for (int32_t i = 0; i < run->count; i++) {
        float k, v;
        memcpy(&k, run->k_scale + i * t->k_scale_stride, sizeof k);
        memcpy(&v, run->v_scale + i * t->v_scale_stride, sizeof v);
        rows->k_scale[run->at + i] = k * unit;
        rows->v_scale[run->at + i] = v * unit;
    }
}

static void direct_locate(const task *t, const cpu_chunk *chunk, direct_rows *rows) {
    for (int32_t n = 0; n < chunk->n_runs; n++) {
        const cpu_run *run = &chunk->run[n];
        for (int32_t i = 0; i < run->count; i++) {
            rows->k[run->at + i] = run->k + i * t->k_stride;
            rows->v[run->at + i] = run->v + i * t->v_stride;
        }
        if (t->launch->kv_dtype >= TESS_F8E4M3) direct_scales(t, run, rows);
    }
    /* The last vector of keys is completed with any key; its scores are replaced by -inf. */
    for (int32_t key = chunk->keys; key < round_up(chunk->keys, VL); key++)
        rows->k[key] = rows->k[0];
    /* A second key whose weight is 0, and whose V must not make that NaN. */
    if (DIRECT_PAIRS && chunk->keys % 2 != 0) {
        rows->v[chunk->keys] = (const char *)no_value;
        rows->v_scale[chunk->keys] = 0.0f;
    }
}

/* Finds the next chunk of a job. */
static void direct_advance(task *t) {
    t->more = cpu_walk_next(&t->walk, &t->chunks[t->turn], CHUNK);
    if (t->more) direct_locate(t, &t->chunks[t->turn], &t->direct[t->turn]);
    t->turn ^= 1;
}

/* The chunks at hand of all tasks that have one, for a fixed number of rows and one storage type.
 * Tasks take turns every few keys: their rows mostly lie side by side. */
INLINE void direct_chunks(direct_turns *turns, const uint32_t dtype, const int rows) {
    const int32_t n_ready = turns->n_ready, keys = round_up(turns->keys, VL);
    const int32_t at_once = direct_keys(dtype);
    for (int32_t key = 0; key < keys; key += at_once)
        for (int32_t n = 0; n < n_ready; n++) {
            const task *t = turns->ready[n];
            if (key >= round_up(t->chunk->keys, VL)) continue;
            direct_scores(t, dtype, key, rows);
            if (!direct_rotated(dtype, rows) && (key + at_once) % VL == 0)
                direct_complete(t, dtype, key + at_once - VL, rows);
        }
    for (int32_t n = 0; n < n_ready; n++)
        for (int r = 0; r < rows; r++) {
            direct_mask(turns->ready[n], r);
            direct_softmax(turns->ready[n], dtype, r);
        }
    const int32_t unit = turns->value_keys;
    for (int32_t key = 0; key < turns->keys; key += unit)
        for (int32_t n = 0; n < n_ready; n++) {
            const task *t = turns->ready[n];
            const int32_t left = t->chunk->keys - key;
            if (left > 0) direct_values(t, dtype, key, left < unit ? left : unit, rows);
        }
}

/* For each type of K and V; rows of zeros complete the number of rows of what is compiled. */
static __attribute__((noinline)) void direct_bf16(direct_turns *turns, int one) {
    one ? direct_chunks(turns, TESS_BF16, 1) : direct_chunks(turns, TESS_BF16, DIRECT_ROWS);
}
#if !PAIRS
static __attribute__((noinline)) void direct_f32(direct_turns *turns, int one) {
    one ? direct_chunks(turns, TESS_F32, 1) : direct_chunks(turns, TESS_F32, DIRECT_ROWS);
}
static __attribute__((noinline)) void direct_f16(direct_turns *turns, int one) {
    one ? direct_chunks(turns, TESS_F16, 1) : direct_chunks(turns, TESS_F16, DIRECT_ROWS);
}
#endif
#if !PAIRS || DIRECT_PAIRS
static __attribute__((noinline)) void direct_e4m3(direct_turns *turns, int one) {
    one ? direct_chunks(turns, TESS_F8E4M3, 1) : direct_chunks(turns, TESS_F8E4M3, DIRECT_ROWS);
}
static __attribute__((noinline)) void direct_i8(direct_turns *turns, int one) {
    one ? direct_chunks(turns, TESS_I8, 1) : direct_chunks(turns, TESS_I8, DIRECT_ROWS);
}
#endif

static void direct_step(direct_turns *turns) {
    const int one = turns->task[0]->rows == 1;
    switch (turns->task[0]->launch->kv_dtype) {
#if !PAIRS
    case TESS_F32: direct_f32(turns, one); break;
    case TESS_F16: direct_f16(turns, one); break;
#endif
#if !PAIRS || DIRECT_PAIRS
    case TESS_F8E4M3: direct_e4m3(turns, one); break;
    case TESS_I8: direct_i8(turns, one); break;
#endif
    default: direct_bf16(turns, one); break;
    }
}

/* Gives job number n of those that take turns its part of the arrays, which hold many rows. Packed
 * K, which these jobs do not have, leaves room for what the softmax needs. */
static void direct_place(task *t, int32_t n) {
    /* K of head_dim 8 has the shortest rows */
    _Static_assert(CPU_JOBS_AT_ONCE * TASK_FLOATS <= 2 * BATCH * CHUNK * (TILES ? 16 : 32), "room");
    job_memory *m = &t->m;
    const int32_t first = n * DIRECT_ROWS;
    m->o_elements = round_up(m->o_elements, step_elements(t->launch->kv_dtype));
    m->q += (size_t)first * m->o_elements;
    m->o += (size_t)first * m->o_elements;
    m->row_max += first;
    m->row_sum += first;
    m->causal += first;
    m->low += first;
    m->high += first;
    m->block += first;
    m->s = m->k + (size_t)n * TASK_FLOATS;
    t->sums = m->s + DIRECT_ROWS * CHUNK;
    t->folds = t->sums + DIRECT_ROWS * VL;
}

/* Row r of Q in the order and the type that the products take, with the sign of the scale. */
static void direct_query(const task *t, int32_t r) {
    const job_memory *m = &t->m;
    const tess_tensor *q = &t->launch->tensor[TESS_ROLE_Q];
    const char *row = tensor_base(q) + row_offset(t, q, r) * t->esize;
    float *out = m->q + (size_t)r * m->o_elements;
    const int negative = !(t->launch->scale >= 0);
    if (DIRECT_PAIRS) {
        for (int32_t d = 0; d < t->head_dim; d += 8)
            memcpy((uint16_t *)(void *)out + direct_place_of(t->launch->kv_dtype, d, 0),
                   row + (size_t)d * 2, 16);
        for (int32_t w = 0; negative && w < m->o_elements; w += VL)
            vstore(out + w, (vf)((vu)vload(out + w) ^ 0x80008000u));
        return;
    }
    load_row(t->launch->dtype, row, t->head_dim, m->rows);
    for (int32_t d = 0; d < t->head_dim; d++)
        out[direct_place_of(t->launch->kv_dtype, d, 0)] = negative ? -m->rows[d] : m->rows[d];
}

/* Rotates the rows of Q (direct_products.inl). */
static void direct_rotate(const task *t) {
    const job_memory *m = &t->m;
    const int32_t pitch = m->o_elements;
    memcpy(m->rows, m->q, (size_t)DIRECT_ROWS * (size_t)pitch * sizeof(float));
    for (int32_t w = 0; w < pitch; w += 4)
        for (int32_t j = 0; j < DIRECT_ROWS; j++)
            memcpy(m->q + j * pitch + w, m->rows + (w / 4 + j) % DIRECT_ROWS * pitch + w,
                   4 * sizeof(float));
}

static void direct_begin(task *t, int32_t n) {
    direct_place(t, n);
    place_rows(t, DIRECT_ROWS);
    const job_memory *m = &t->m;
    memset(m->q, 0, (size_t)DIRECT_ROWS * m->o_elements * sizeof(float));
    memset(m->o, 0, (size_t)DIRECT_ROWS * m->o_elements * sizeof(float));
    memset(t->sums, 0, (size_t)DIRECT_ROWS * VL * sizeof(float));
    for (int32_t r = 0; r < DIRECT_ROWS; r++) {
        m->row_max[r] = -INFINITY;
        if (r < t->rows) direct_query(t, r);
    }
    if (direct_rotated(t->launch->kv_dtype, t->rows == 1 ? 1 : DIRECT_ROWS)) direct_rotate(t);
    cpu_walk_start(&t->walk, t->launch, t->job);
    t->turn = 0;
    direct_advance(t);
}

/* A row of O in order: words of four, where products of pairs leave them together. */
static void direct_order(const task *t, const float *o) {
    const uint32_t dtype = t->launch->kv_dtype;
    if (dtype == TESS_BF16 && !DIRECT_PAIRS) {
        for (int32_t d = 0; d < t->head_dim; d++) t->m.rows[d] = o[direct_place_of(dtype, d, 1)];
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
        /* Without keys O is 0, and so is what it is divided by. */
        const vf by = vset(sum == 0.0f ? 1.0f : sum);
        for (int32_t d = 0; d < m->o_elements; d += VL)
            vstore(o + d, sum == 0.0f ? vset(0.0f) : vload(o + d) / by);
        direct_order(t, o);
        finish_row(t, r, m->rows);
    }
}

/* Lists the rows of the chunks that come next, in the order in which they will be read. Tasks whose
 * chunk is shorter repeat their last row. */
static void direct_list(direct_turns *turns) {
    const task *ready[CPU_JOBS_AT_ONCE];
    int32_t n_ready = 0, keys = 0;
    for (int32_t n = 0; n < turns->n; n++) {
        const task *t = turns->task[n];
        if (!t->more) continue;
        ready[n_ready++] = t;
        if (t->chunks[t->turn ^ 1].keys > keys) keys = t->chunks[t->turn ^ 1].keys;
    }
    for (int side = 0; side < 2; side++) {
        for (int32_t n = 0; n < n_ready; n++) {
            const task *t = ready[n];
            const direct_rows *next = &t->direct[t->turn ^ 1];
            const char *const *rows = side ? next->v : next->k;
            const int32_t own = t->chunks[t->turn ^ 1].keys;
            uint32_t at = turns->listed + (uint32_t)n;
            for (int32_t key = 0; key < keys; key++, at += (uint32_t)n_ready)
                turns->row[at % LISTED_ROWS] = rows[key < own ? key : own - 1];
        }
        turns->listed += (uint32_t)(keys * n_ready);
    }
}

/* Tasks that have a chunk take it as the one at hand, and look for the next one. */
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

/* Asks for rows up to number `end`. The products keep this lead, a line for each that they take,
 * but where rows of padding are listed or tasks end. */
static void direct_catch_up(direct_turns *turns, uint32_t end) {
    if ((int32_t)(end - turns->listed) > 0) end = turns->listed;
    while ((int32_t)(end - turns->ahead.next) > 0) direct_prefetch(turns, &turns->ahead, 1);
}

/* All tasks, a chunk of each at a time. */
static void direct_rounds(direct_turns *turns) {
    const task *any = turns->task[0];
    const int32_t row_bytes = any->head_dim * (int32_t)any->kv_esize;
    turns->row_lines = (row_bytes + 63) / 64;
#if DIRECT_PAIRS
    if (any->launch->kv_dtype >= TESS_F8E4M3) direct_fill_table(turns, any->launch->kv_dtype);
#endif
    turns->listed = 0;
    turns->ahead = (direct_ahead){NULL, 0, 0};
    direct_list(turns);
    turns->value_keys = VALUE_BYTES / row_bytes / 4 * 4;
    if (turns->value_keys < 4) turns->value_keys = 4;
    if (turns->value_keys > VALUE_KEYS_MAX) turns->value_keys = VALUE_KEYS_MAX;
    /* What tasks take in turn lies apart by so many rows. */
    const uint32_t apart = (uint32_t)(turns->n * turns->value_keys),
                   ahead = AHEAD_BYTES / (uint32_t)row_bytes;
    for (uint32_t begin = 0;;) {
        const uint32_t next = turns->listed;
        direct_ready(turns);
        if (turns->n_ready == 0) return;
        direct_list(turns);
        direct_catch_up(turns, begin + (ahead > apart ? ahead : apart));
        direct_step(turns);
        begin = next;
    }
}
