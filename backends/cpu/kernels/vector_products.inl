/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two products of the body with vector multiply-adds. Both hold a block of KB (or DB) x NV
 * vectors in registers and broadcast one operand: S[key][row] = sum over words of K[key][word] *
 * Q[word][row], O[d][row] += sum over keys of V[key][d] * P[key][row]. K is packed as rows; V as
 * blocks of DB elements, [d / DB][key][DB], so that the second product reads it in order. With few
 * rows, floats are read in place.
 */

static void pack_keys(const task *t, const cpu_chunk *chunk, float *packed) {
    for (int32_t n = 0; n < chunk->n_runs; n++) {
        const cpu_run *run = &chunk->run[n];
        for (int32_t i = 0; i < run->count; i++) {
            float *out = packed + (size_t)(run->at + i) * t->m.k_pitch;
#if PAIRS
            load_words(t->launch->dtype, run->k + i * t->k_stride, t->head_dim, out);
#else
            load_key_row(t->launch->kv_dtype, run->k + i * t->k_stride,
                         run->k_scale + i * t->k_scale_stride, t->head_dim, out);
#endif
        }
    }
    /* The rest of the last group is computed, too, and ignored. */
    for (int32_t key = chunk->keys; key < round_up(chunk->keys, GROUP); key++)
        memset(packed + (size_t)key * t->m.k_pitch, 0, (size_t)t->m.words * sizeof(float));
}

#if PAIRS
/* Words hold the elements of two keys; an odd last key is paired with zero. */
static void pack_values(const task *t, const cpu_chunk *chunk, float *packed) {
    const char *before = NULL;
    for (int32_t n = 0; n < chunk->n_runs; n++) {
        const cpu_run *run = &chunk->run[n];
        for (int32_t i = 0; i < run->count; i++) {
            const int32_t key = run->at + i;
            const char *row = run->v + i * t->v_stride;
            if (key % 2 == 0) {
                before = row;
                if (key + 1 < chunk->keys) continue;
                row = NULL;
            }
            float *out = packed + (size_t)(key / 2) * DB;
            for (int32_t d = 0; d < t->head_dim; d += DB) {
                uint16_t even[DB], odd[DB] = {0};
                uint32_t both[DB];
                memcpy(even, before + 2 * d, sizeof even);
                if (row) memcpy(odd, row + 2 * d, sizeof odd);
                for (int32_t j = 0; j < DB; j++) both[j] = (uint32_t)odd[j] << 16 | even[j];
                memcpy(out + (size_t)d * (CHUNK / 2), both, sizeof both);
            }
        }
    }
}
#else
static void pack_values(const task *t, const cpu_chunk *chunk, float *packed) {
    for (int32_t n = 0; n < chunk->n_runs; n++) {
        const cpu_run *run = &chunk->run[n];
        for (int32_t i = 0; i < run->count; i++) {
            const char *row = run->v + i * t->v_stride;
            float *out = packed + (size_t)(run->at + i) * DB;
            if (t->launch->kv_dtype != TESS_F32) {
                load_key_row(t->launch->kv_dtype, row, run->v_scale + i * t->v_scale_stride,
                             t->head_dim, t->m.rows);
                row = (const char *)t->m.rows;
            }
            for (int32_t d = 0; d < t->head_dim; d += DB)
                memcpy(out + (size_t)d * CHUNK, row + 4 * d, DB * sizeof(float));
        }
    }
}
#endif

/* Multiplies KB keys with the panel, and keeps the running maximum. */
INLINE void score_block(const float *k, size_t pitch, const float *q, int32_t words, float *s,
                        vf *s_max, const int nv) {
    vf acc[KB][NV];
    UNROLL
    for (int i = 0; i < KB; i++) UNROLL
    for (int v = 0; v < nv; v++) acc[i][v] = vset(0.0f);
    for (int32_t w = 0; w < words; w += 4) {
        UNROLL
        for (int u = 0; u < 4; u++) {
            vf b[NV];
            UNROLL
            for (int v = 0; v < nv; v++) b[v] = vload(q + (size_t)(w + u) * PANEL + v * VL);
            UNROLL
            for (int i = 0; i < KB; i++) {
                const vf a = vset(k[i * pitch + (size_t)(w + u)]);
                UNROLL
                for (int v = 0; v < nv; v++) {
                    acc[i][v] = DOT(acc[i][v], a, b[v]);
                    VKEEP(acc[i][v]);
                }
            }
        }
    }
    UNROLL
    for (int i = 0; i < KB; i++) UNROLL
    for (int v = 0; v < nv; v++) {
        vstore(s + i * PANEL + v * VL, acc[i][v]);
        s_max[v] = vmax(acc[i][v], s_max[v]);
    }
}

INLINE void value_step(const float *v, const float *p, vf (*acc)[NV], const int nv) {
    vf b[NV];
    UNROLL
    for (int j = 0; j < nv; j++) b[j] = vload(p + j * VL);
    UNROLL
    for (int i = 0; i < DB; i++) {
        const vf a = vset(v[i]);
        UNROLL
        for (int j = 0; j < nv; j++) {
            acc[i][j] = DOT(acc[i][j], a, b[j]);
            VKEEP(acc[i][j]);
        }
    }
}

/* DB elements of O over all keys of the span. V of neighbouring keys is `pitch` words apart. */
INLINE void value_block(const float *v, const int64_t pitch, const float *p, int32_t words,
                        float *o, const int nv) {
    vf acc[DB][NV];
    UNROLL
    for (int i = 0; i < DB; i++) UNROLL
    for (int j = 0; j < nv; j++) acc[i][j] = vload(o + i * PANEL + j * VL);
    int32_t w = 0;
    for (; w + 4 <= words; w += 4) {
        UNROLL
        for (int u = 0; u < 4; u++)
            value_step(v + (w + u) * pitch, p + (size_t)(w + u) * PANEL, acc, nv);
    }
    for (; w < words; w++) value_step(v + w * pitch, p + (size_t)w * PANEL, acc, nv);
    UNROLL
    for (int i = 0; i < DB; i++) UNROLL
    for (int j = 0; j < nv; j++) vstore(o + i * PANEL + j * VL, acc[i][j]);
}

/* O += V P over `words` words of a span from word `first` on. */
INLINE void value_span(task *t, const panel_chunk *x, int32_t first, int32_t words, float *o,
                       const int packed, const int nv) {
    const int64_t pitch = packed ? DB : x->v_pitch, element = packed ? WORD_OF(CHUNK) : 1;
    for (int32_t d = 0; d < t->head_dim; d += DB) {
        prefetch_some(t);
        value_block(x->v + d * element + first * pitch, pitch, x->s + (size_t)first * PANEL, words,
                    o + (size_t)d * PANEL, nv);
    }
}

INLINE void attend(task *t, const panel_work *w, const int nv) {
    const job_memory *m = &t->m;
    const int32_t first_row = w->chunk->row;
    const float *q = m->q + (size_t)first_row * m->q_words;
    float *o = m->o + (size_t)first_row * m->o_elements, *sums = m->row_sum + first_row;
    for (const panel_chunk *x = w->chunk; x < w->chunk + w->n; x++) {
        vf s_max[NV], bias[NV], sum[NV];
        for (int v = 0; v < NV; v++) s_max[v] = vset(-INFINITY);
        for (int32_t key = x->span.first; key < x->span.end; key += KB) {
            prefetch_some(t);
            score_block(x->k + key * x->k_pitch, (size_t)x->k_pitch, q, m->words,
                        x->s + (size_t)key * PANEL, s_max, nv);
        }
        if (x->span.masked || x->span.end % GROUP != 0) mask_panel_chunk(t, first_row, x, s_max);
        update_row_max(t, first_row, s_max, bias, nv);
        for (int v = 0; v < nv; v++) sum[v] = vload(sums + v * VL);
        exp_scores(x->s, x->span.first, padded_end(x), vset(t->scale_log2), bias, sum, nv);
        for (int v = 0; v < nv; v++) vstore(sums + v * VL, sum[v]);
        const int32_t first = WORD_OF(x->span.first), words = WORD_OF(padded_end(x)) - first;
        if (PAIRS || x->packed)
            value_span(t, x, first, words, o, 1, nv);
        else
            value_span(t, x, first, words, o, 0, nv);
    }
}
