/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs of a few rows (decoding): lanes over rows would stay empty and packing would cost more than
 * the products, so K and V are read in place, once. Lanes run over elements in both products and
 * over keys in the softmax; everything is in floats, whatever the storage.
 */

#define DIRECT_ROWS CPU_FEW_ROWS
#define DIRECT_SPAN 4                  /* vectors of O that are kept in registers, per row */
#define DIRECT_KEYS (VL >= 16 ? 4 : 2) /* keys whose scores are summed together */

/* Elements [i, i + VL) of a row of n; of a 16-float vector the second half may lie past the end: it
 * is zero then and not read. */
INLINE vf load_elements(uint32_t dtype, const char *row, int32_t i, int32_t n) {
    const size_t size = dtype == TESS_F32 ? 4 : dtype >= TESS_F8E4M3 ? 1 : 2;
    const char *at = row + (size_t)i * size;
#if VL > 8
    char part[VL * 4] __attribute__((aligned(64)));
    if (i + VL > n) {
        memset(part, 0, sizeof part);
        memcpy(part, at, 8 * size);
        at = part;
    }
#else
    (void)n;
#endif
#if !PAIRS
    if (dtype >= TESS_F8E4M3) return load_codes(dtype, at);
#endif
    if (dtype == TESS_F32) return vload_any(at);
    return dtype == TESS_F16 ? vfrom_f16((const uint16_t *)(const void *)at)
                             : vfrom_bf16((const uint16_t *)(const void *)at);
}

/* Asks for the next `count` rows of those that will be needed in the next turns. */
INLINE void direct_prefetch(direct_turns *turns, int32_t count, int64_t bytes) {
    for (; count > 0 && turns->next < turns->rows; count--) {
        const char *row = turns->row[turns->next++];
        for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(row + b, 0, 2);
    }
}

/* Adds the products of elements [d, d + VL) of some keys and of all rows; `end` as in
 * load_elements.
 */
INLINE void direct_products(const job_memory *m, const uint32_t dtype, const char *const *keys,
                            int32_t d, int32_t end, vf (*sum)[DIRECT_KEYS], const int rows) {
    vf k[DIRECT_KEYS];
    UNROLL
    for (int n = 0; n < DIRECT_KEYS; n++) k[n] = load_elements(dtype, keys[n], d, end);
    UNROLL
    for (int r = 0; r < rows; r++) {
        const vf q = vload(m->q + (size_t)r * m->o_elements + d);
        UNROLL
        for (int n = 0; n < DIRECT_KEYS; n++) sum[r][n] += k[n] * q;
    }
}

/* Scores of VL keys against all rows, DIRECT_KEYS at a time, so that Q is loaded once for them.
 * Sums over elements stay in lanes until all keys are there. */
INLINE void direct_scores(const task *t, const uint32_t dtype, const direct_rows *now, int32_t at,
                          const int rows) {
    const job_memory *m = &t->m;
    const char *const *keys = now->k + at;
    const int64_t bytes = (int64_t)t->head_dim * t->kv_esize;
    vf acc[DIRECT_ROWS][VL];
    for (int i = 0; i < VL; i += DIRECT_KEYS) {
        direct_prefetch(t->turns, DIRECT_KEYS, bytes);
        vf sum[DIRECT_ROWS][DIRECT_KEYS];
        UNROLL
        for (int r = 0; r < rows; r++) UNROLL
        for (int n = 0; n < DIRECT_KEYS; n++) sum[r][n] = vset(0.0f);
        int32_t d = 0;
        for (; d + VL <= t->head_dim; d += VL)
            direct_products(m, dtype, keys + i, d, d + VL, sum, rows);
        if (d < t->head_dim) direct_products(m, dtype, keys + i, d, t->head_dim, sum, rows);
        UNROLL
        for (int r = 0; r < rows; r++) UNROLL
        for (int n = 0; n < DIRECT_KEYS; n++) acc[r][i + n] = sum[r][n];
    }
    for (int r = 0; r < rows; r++) {
        vf sums = vsum_each(acc[r]);
        if (dtype >= TESS_F8E4M3) sums *= vload_any(now->k_scale + at);
        vstore(m->s + (size_t)r * CHUNK + at, sums);
    }
}

/* O of some rows += P V over the chunk, DIRECT_SPAN vectors of O at a time. */
INLINE void direct_values(const task *t, const uint32_t dtype, const char *const *values,
                          const int rows) {
    const job_memory *m = &t->m;
    const int64_t bytes = (int64_t)t->head_dim * t->kv_esize;
    for (int32_t d = 0; d < t->head_dim; d += DIRECT_SPAN * VL) {
        vf acc[DIRECT_ROWS][DIRECT_SPAN];
        const int32_t left = (t->head_dim - d + VL - 1) / VL,
                      vectors = left < DIRECT_SPAN ? left : DIRECT_SPAN;
        UNROLL
        for (int r = 0; r < rows; r++) UNROLL
        for (int j = 0; j < DIRECT_SPAN; j++)
            acc[r][j] = vload(m->o + (size_t)r * m->o_elements + d + (j < vectors ? j : 0) * VL);
        for (int32_t key = 0; key < t->chunk->keys; key++) {
            vf v[DIRECT_SPAN];
            if (d == 0) direct_prefetch(t->turns, 1, bytes);
            if (vectors == DIRECT_SPAN && d + DIRECT_SPAN * VL <= t->head_dim) {
                UNROLL
                for (int j = 0; j < DIRECT_SPAN; j++)
                    v[j] = load_elements(dtype, values[key], d + j * VL, d + (j + 1) * VL);
            } else {
                for (int j = 0; j < DIRECT_SPAN; j++)
                    v[j] = j < vectors ? load_elements(dtype, values[key], d + j * VL, t->head_dim)
                                       : vset(0.0f);
            }
            UNROLL
            for (int r = 0; r < rows; r++) {
                const vf p = vset(m->s[(size_t)r * CHUNK + key]);
                UNROLL
                for (int j = 0; j < DIRECT_SPAN; j++) acc[r][j] += p * v[j];
            }
        }
        /* A constant bound: an index that varies would keep the sums in memory. */
        UNROLL
        for (int r = 0; r < rows; r++) UNROLL
        for (int j = 0; j < DIRECT_SPAN; j++)
            if (j < vectors) vstore(m->o + (size_t)r * m->o_elements + d + j * VL, acc[r][j]);
    }
}

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

/* `v_scale`: of each key, or NULL; P is multiplied by it. */
static void direct_softmax(const task *t, int32_t r, const float *v_scale) {
    const job_memory *m = &t->m;
    float *s = m->s + (size_t)r * CHUNK;
    vf s_max = vset(-INFINITY), sum = vset(0.0f);
    for (int32_t key = 0; key < CHUNK; key += VL) s_max = vmax(vload(s + key), s_max);
    float next = -INFINITY, total = 0;
    for (int i = 0; i < VL; i++) next = s_max[i] > next ? s_max[i] : next;
    if ((next - m->row_max[r]) * t->scale_log2 > 8.0f) {
        const vf factor = vexp2(vset((m->row_max[r] - next) * t->scale_log2));
        for (int32_t d = 0; d < t->head_dim; d += VL)
            vstore(m->o + (size_t)r * m->o_elements + d,
                   vload(m->o + (size_t)r * m->o_elements + d) * factor);
        m->row_sum[r] *= factor[0];
        m->row_max[r] = next;
    }
    const vf scale_log2 = vset(t->scale_log2),
             bias = vset(m->row_max[r] == -INFINITY ? 0.0f : m->row_max[r]);
    for (int32_t key = 0; key < CHUNK; key += VL) {
        const vf p = vexp2((vload(s + key) - bias) * scale_log2);
        sum += p;
        vstore(s + key, v_scale ? p * vload_any(v_scale + key) : p);
    }
    for (int i = 0; i < VL; i++) total += sum[i];
    m->row_sum[r] += total;
}

static void direct_scales(const task *t, const cpu_run *run, direct_rows *rows) {
    const float unit = t->launch->kv_dtype == TESS_F8E4M3 ? CODE_SCALE_E4M3 : 1.0f;
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
}

/* Finds the next chunk of a job. */
static void direct_advance(task *t) {
    t->more = cpu_walk_next(&t->walk, &t->chunks[t->turn], CHUNK);
    if (t->more) direct_locate(t, &t->chunks[t->turn], &t->direct[t->turn]);
    t->turn ^= 1;
}

/* The chunk at hand of a job, for a fixed number of rows and one storage type. */
INLINE void direct_chunk(task *t, const uint32_t dtype, const int rows) {
    const direct_rows *now = &t->direct[t->turn];
    t->chunk = &t->chunks[t->turn];
    for (int32_t key = 0; key < t->chunk->keys; key += VL) direct_scores(t, dtype, now, key, rows);
    for (int r = 0; r < rows; r++) {
        direct_mask(t, r);
        direct_softmax(t, r, dtype >= TESS_F8E4M3 ? now->v_scale : NULL);
    }
    direct_values(t, dtype, now->v, rows);
}

/* For each type of K and V; rows of zeros complete the number of rows of what is compiled. */
static __attribute__((noinline)) void direct_f32(task *t) {
    t->rows == 1 ? direct_chunk(t, TESS_F32, 1) : direct_chunk(t, TESS_F32, DIRECT_ROWS);
}
static __attribute__((noinline)) void direct_f16(task *t) {
    t->rows == 1 ? direct_chunk(t, TESS_F16, 1) : direct_chunk(t, TESS_F16, DIRECT_ROWS);
}
static __attribute__((noinline)) void direct_bf16(task *t) {
    t->rows == 1 ? direct_chunk(t, TESS_BF16, 1) : direct_chunk(t, TESS_BF16, DIRECT_ROWS);
}

#if !PAIRS
static __attribute__((noinline)) void direct_e4m3(task *t) {
    t->rows == 1 ? direct_chunk(t, TESS_F8E4M3, 1) : direct_chunk(t, TESS_F8E4M3, DIRECT_ROWS);
}
static __attribute__((noinline)) void direct_i8(task *t) {
    t->rows == 1 ? direct_chunk(t, TESS_I8, 1) : direct_chunk(t, TESS_I8, DIRECT_ROWS);
}
#endif

static void direct_step(task *t) {
    switch (t->launch->kv_dtype) {
    case TESS_F32: direct_f32(t); break;
    case TESS_F16: direct_f16(t); break;
    case TESS_BF16: direct_bf16(t); break;
#if !PAIRS
    case TESS_F8E4M3: direct_e4m3(t); break;
    case TESS_I8: direct_i8(t); break;
#endif
    default: break;
    }
}

/* Gives job number n of those that take turns its part of the arrays, which hold many rows; scores
 * last for a chunk alone, and all share them. */
static void direct_place(job_memory *m, int32_t n) {
    const int32_t first = n * DIRECT_ROWS;
    m->q += (size_t)first * m->o_elements;
    m->o += (size_t)first * m->o_elements;
    m->row_max += first;
    m->row_sum += first;
    m->causal += first;
    m->low += first;
    m->high += first;
    m->block += first;
}

static void direct_begin(task *t, int32_t n) {
    direct_place(&t->m, n);
    place_rows(t, DIRECT_ROWS);
    const job_memory *m = &t->m;
    const float sign = t->launch->scale >= 0 ? 1.0f : -1.0f;
    memset(m->q, 0, (size_t)DIRECT_ROWS * m->o_elements * sizeof(float));
    memset(m->o, 0, (size_t)DIRECT_ROWS * m->o_elements * sizeof(float));
    for (int32_t r = 0; r < DIRECT_ROWS; r++) {
        m->row_max[r] = -INFINITY;
        m->row_sum[r] = 0.0f;
        if (r >= t->rows) continue;
        float *q = m->q + (size_t)r * m->o_elements;
        load_row(t->launch->dtype,
                 tensor_base(&t->launch->tensor[TESS_ROLE_Q]) +
                     row_offset(t, &t->launch->tensor[TESS_ROLE_Q], r) * t->esize,
                 t->head_dim, q);
        for (int32_t d = 0; d < t->head_dim; d++) q[d] *= sign;
    }
    cpu_walk_start(&t->walk, t->launch, t->job);
    t->turn = 0;
    direct_advance(t);
}

static void direct_end(task *t) {
    const job_memory *m = &t->m;
    for (int32_t r = 0; r < t->rows; r++) {
        const float sum = m->row_sum[r];
        float *o = m->o + (size_t)r * m->o_elements;
        for (int32_t d = 0; d < t->head_dim; d++) o[d] = sum == 0.0f ? 0.0f : o[d] / sum;
        finish_row(t, r, o);
    }
}

/* Lists the rows of the chunks that come next, in the order of memory where the jobs are heads of
 * one sequence: hardware prefetchers follow such reads, and rows of one head are often pages apart.
 */
static void direct_list(direct_turns *turns) {
    int32_t keys = 0;
    turns->rows = turns->next = 0;
    for (int32_t n = 0; n < turns->n; n++) {
        const task *t = turns->task[n];
        const int32_t own = t->more ? t->chunks[t->turn ^ 1].keys : 0;
        if (own > keys) keys = own;
    }
    for (int32_t key = 0; key < keys; key++)
        for (int side = 0; side < 2; side++)
            for (int32_t n = 0; n < turns->n; n++) {
                const task *t = turns->task[n];
                const direct_rows *next = &t->direct[t->turn ^ 1];
                if (!t->more || key >= t->chunks[t->turn ^ 1].keys) continue;
                turns->row[turns->rows++] = side ? next->v[key] : next->k[key];
            }
}

/* Jobs that are ready take turns, a chunk each. */
static void direct_rounds(direct_turns *turns) {
    const task *any = turns->task[0];
    const int64_t bytes = (int64_t)any->head_dim * any->kv_esize;
    direct_list(turns);
    direct_prefetch(turns, turns->rows, bytes);
    for (int more = 1; more;) {
        more = 0;
        /* Which of the jobs have a chunk at hand now, before they look for the next one. */
        uint32_t ready = 0;
        for (int32_t n = 0; n < turns->n; n++) {
            task *t = turns->task[n];
            if (!t->more) continue;
            ready |= 1u << n;
            direct_advance(t);
            more |= t->more;
        }
        direct_list(turns);
        for (int32_t n = 0; n < turns->n; n++)
            if (ready >> n & 1) direct_step(turns->task[n]);
        direct_prefetch(turns, turns->rows, bytes);
    }
}
