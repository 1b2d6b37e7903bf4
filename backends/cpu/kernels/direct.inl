/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs of a few rows (decoding): lanes over rows would stay empty and packing would cost more than
 * the products, so K and V are read in place, once. Lanes run over elements in both products and
 * over keys in the softmax; everything is in floats, whatever the storage.
 */

#define DIRECT_ROWS 4
#define DIRECT_SPAN 4 /* vectors of O that are kept in registers, per row */

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

/* Scores of VL keys from number `at` on against all rows: sums over elements stay in lanes until
 * one transposition adds them up. */
INLINE void direct_scores(const task *t, const uint32_t dtype, const direct_rows *now, int32_t at,
                          const int rows) {
    const job_memory *m = &t->m;
    vf acc[DIRECT_ROWS][VL];
    for (int i = 0; i < VL; i++) {
        vf sum[DIRECT_ROWS];
        for (int r = 0; r < rows; r++) sum[r] = vset(0.0f);
        for (int32_t d = 0; d < t->head_dim; d += VL) {
            const vf k = load_elements(dtype, now->k[at + i], d, t->head_dim);
            UNROLL
            for (int r = 0; r < rows; r++)
                sum[r] += k * vload(m->q + (size_t)r * m->o_elements + d);
        }
        for (int r = 0; r < rows; r++) acc[r][i] = sum[r];
    }
    for (int r = 0; r < rows; r++) {
        vtranspose(acc[r]);
        for (int step = VL / 2; step > 0; step /= 2)
            for (int i = 0; i < step; i++) acc[r][i] += acc[r][i + step];
        if (dtype >= TESS_F8E4M3) acc[r][0] *= vload_any(now->k_scale + at);
        vstore(m->s + (size_t)r * CHUNK + at, acc[r][0]);
    }
}

INLINE void prefetch_row(const char *row, int64_t bytes) {
    for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(row + b, 0, 3);
}

/* O of some rows += P V over the chunk, DIRECT_SPAN vectors of O at a time. The first pass
 * prefetches the n_next rows of K that come after. */
INLINE void direct_values(const task *t, const uint32_t dtype, const char *const *values,
                          const char *const *next, int32_t n_next, const int rows) {
    const job_memory *m = &t->m;
    const int64_t bytes = (int64_t)t->head_dim * t->kv_esize;
    for (int32_t d = 0; d < t->head_dim; d += DIRECT_SPAN * VL) {
        vf acc[DIRECT_ROWS][DIRECT_SPAN];
        const int32_t left = (t->head_dim - d + VL - 1) / VL,
                      vectors = left < DIRECT_SPAN ? left : DIRECT_SPAN;
        for (int r = 0; r < rows; r++)
            for (int j = 0; j < DIRECT_SPAN; j++)
                acc[r][j] =
                    vload(m->o + (size_t)r * m->o_elements + d + (j < vectors ? j : 0) * VL);
        for (int32_t key = 0; key < t->chunk->keys; key++) {
            vf v[DIRECT_SPAN];
            if (d == 0 && key < n_next) prefetch_row(next[key], bytes);
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
        for (int r = 0; r < rows; r++)
            for (int j = 0; j < vectors; j++)
                vstore(m->o + (size_t)r * m->o_elements + d + j * VL, acc[r][j]);
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

/* All chunks of the job for a fixed number of rows and one storage type. Rows of K and V are often
 * a page apart, where no hardware prefetcher follows: V is prefetched while K is read, and K of the
 * next chunk while V is. */
INLINE void direct_chunks(task *t, const uint32_t dtype, const int rows) {
    const int64_t bytes = (int64_t)t->head_dim * t->kv_esize;
    direct_rows *both = t->direct;
    cpu_walk walk;
    cpu_walk_start(&walk, t->launch, t->job);
    int more = cpu_walk_next(&walk, &t->chunks[0], CHUNK), turn = 0;
    if (more) direct_locate(t, &t->chunks[0], &both[0]);
    while (more) {
        const direct_rows *now = &both[turn], *then = &both[turn ^ 1];
        t->chunk = &t->chunks[turn];
        turn ^= 1;
        more = cpu_walk_next(&walk, &t->chunks[turn], CHUNK);
        if (more) direct_locate(t, &t->chunks[turn], &both[turn]);
        for (int32_t key = 0; key < t->chunk->keys; key += VL) {
            for (int32_t i = key; i < key + VL && i < t->chunk->keys; i++)
                prefetch_row(now->v[i], bytes);
            direct_scores(t, dtype, now, key, rows);
        }
        for (int r = 0; r < rows; r++) {
            direct_mask(t, r);
            direct_softmax(t, r, dtype >= TESS_F8E4M3 ? now->v_scale : NULL);
        }
        direct_values(t, dtype, now->v, then->k, more ? t->chunks[turn].keys : 0, rows);
    }
}

/* For each type of K and V; rows of zeros complete the number of rows of what is compiled. */
static __attribute__((noinline)) void direct_f32(task *t) {
    t->rows == 1 ? direct_chunks(t, TESS_F32, 1) : direct_chunks(t, TESS_F32, DIRECT_ROWS);
}
static __attribute__((noinline)) void direct_f16(task *t) {
    t->rows == 1 ? direct_chunks(t, TESS_F16, 1) : direct_chunks(t, TESS_F16, DIRECT_ROWS);
}
static __attribute__((noinline)) void direct_bf16(task *t) {
    t->rows == 1 ? direct_chunks(t, TESS_BF16, 1) : direct_chunks(t, TESS_BF16, DIRECT_ROWS);
}

#if !PAIRS
static __attribute__((noinline)) void direct_e4m3(task *t) {
    t->rows == 1 ? direct_chunks(t, TESS_F8E4M3, 1) : direct_chunks(t, TESS_F8E4M3, DIRECT_ROWS);
}
static __attribute__((noinline)) void direct_i8(task *t) {
    t->rows == 1 ? direct_chunks(t, TESS_I8, 1) : direct_chunks(t, TESS_I8, DIRECT_ROWS);
}
#endif

static void direct_all_chunks(task *t) {
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

static void direct_job(task *t) {
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
    direct_all_chunks(t);
    for (int32_t r = 0; r < t->rows; r++) {
        const float sum = m->row_sum[r];
        float *o = m->o + (size_t)r * m->o_elements;
        for (int32_t d = 0; d < t->head_dim; d++) o[d] = sum == 0.0f ? 0.0f : o[d] / sum;
        finish_row(t, r, o);
    }
}
