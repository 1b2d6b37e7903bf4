/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two products of the body on 16 x 16 tiles of bf16 pairs. Words pair neighbouring elements of
 * Q and K in the first product, neighbouring keys in the second:
 *     S[key][row] = K[key][word] * Q[word][row]         with K as packed rows,
 *     O[d][row]  += V[d][word] * P[word][row]           with V transposed while packing, one
 * kilobyte per tile: [d / 16][word / 16][16][16]. Tiles 0-3 accumulate 32 x 32 results; 4 and 5
 * hold the left operand, 6 and 7 the right one. Missing keys and elements are zero in the packed
 * operands.
 */
#include "tiles.h"

/* Between the rows of Q, S, P and O in a panel. */
#define ROW_BYTES  ((size_t)PANEL * sizeof(float))
#define TILE_WORDS 256

#if PANEL != 32
#error "tile products work on panels of 32 query rows"
#endif

/* Lists the caller's row of K or V for every key of the chunk. */
INLINE void chunk_rows(const cpu_chunk *chunk, int64_t stride, const int of_v, const char **rows) {
    for (int32_t n = 0; n < chunk->n_runs; n++) {
        const cpu_run *run = &chunk->run[n];
        for (int32_t i = 0; i < run->count; i++)
            rows[run->at + i] = (of_v ? run->v : run->k) + i * stride;
    }
}

static void pack_keys(const task *t, const cpu_chunk *chunk, float *packed) {
    const job_memory *m = &t->m;
    const char *rows[CHUNK];
    chunk_rows(chunk, t->k_stride, 0, rows);
    const int32_t words = WORD_OF(t->head_dim);
    for (int32_t key = 0; key < round_up(chunk->keys, GROUP); key++) {
        float *out = packed + (size_t)key * m->k_pitch;
        int32_t w = 0;
        if (key < chunk->keys) {
            for (; w + VL <= words; w += VL) vstore(out + w, vload_any(rows[key] + 4 * (size_t)w));
            if (w < words) memcpy(out + w, rows[key] + 4 * (size_t)w, (size_t)(words - w) * 4);
            w = words;
        }
        if (w < m->words) memset(out + w, 0, (size_t)(m->words - w) * sizeof(float));
    }
}

/* 16 words of the elements [d, d + 16) of two keys. */
INLINE void pair_rows(const char *even, const char *odd, int32_t d, int32_t head_dim,
                      uint32_t *out) {
    uint16_t e[16] = {0}, o[16] = {0};
    const size_t bytes = (size_t)(head_dim - d < 16 ? head_dim - d : 16) * 2;
    if (even) memcpy(e, even + 2 * d, bytes);
    if (odd) memcpy(o, odd + 2 * d, bytes);
    for (int i = 0; i < 16; i++) out[i] = (uint32_t)o[i] << 16 | e[i];
}

#if VL == 16
/*
 * Two tiles of V: 32 elements of 32 keys, all there. Within 128-bit lanes, words of two keys come
 * out in the order of elements 0-3 | 8-11 | 16-19 | 24-27 and 4-7 | 12-15 | 20-23 | 28-31; since
 * elements are the rows of the transposed tiles, only the places where rows are stored know of it.
 */
INLINE void pack_value_tiles(const char *const *rows, int32_t d, float *tile, float *tile_next) {
    UNROLL
    for (int half = 0; half < 2; half++) {
        vf r[16];
        UNROLL
        for (int i = 0; i < 16; i++) {
            const __m512i even = (__m512i)vload_any(rows[2 * i] + 2 * d),
                          odd = (__m512i)vload_any(rows[2 * i + 1] + 2 * d);
            r[i] = (vf)(half ? _mm512_unpackhi_epi16(even, odd) : _mm512_unpacklo_epi16(even, odd));
        }
        vtranspose(r);
        UNROLL
        for (int i = 0; i < 16; i++)
            vstore((i < 8 ? tile : tile_next) + (i / 4 % 2 * 8 + half * 4 + i % 4) * 16, r[i]);
    }
}
#endif

/* The rows of `keys` keys as left operands of the second product; rows of the last group that are
 * not there are NULL. */
INLINE void pack_value_rows(const job_memory *m, int32_t head_dim, const char *const *rows,
                            int32_t keys, float *packed) {
    for (int32_t first = 0; first < keys; first += 32) {
        for (int32_t d = 0; d < m->o_elements; d += 16) {
            float *tile = packed + (size_t)(d / 16 * (CHUNK / 32) + first / 32) * TILE_WORDS;
#if VL == 16
            if (d % 32 == 0 && d + 32 <= head_dim && first + 32 <= keys) {
                pack_value_tiles(rows + first, d, tile, tile + (CHUNK / 32) * TILE_WORDS);
                d += 16;
                continue;
            }
#endif
            uint32_t words[16];
            for (int i = 0; i < 16; i++) {
                memset(words, 0, sizeof words);
                if (d < head_dim)
                    pair_rows(rows[first + 2 * i], rows[first + 2 * i + 1], d, head_dim, words);
                for (int j = 0; j < 16; j++) memcpy(tile + j * 16 + i, &words[j], 4);
            }
        }
    }
}

static void pack_values(const task *t, const cpu_chunk *chunk, float *packed) {
    const char *rows[CHUNK];
    chunk_rows(chunk, t->v_stride, 1, rows);
    for (int32_t key = chunk->keys; key < round_up(chunk->keys, GROUP); key++) rows[key] = NULL;
    pack_value_rows(&t->m, t->head_dim, rows, chunk->keys, packed);
}

/* Computes the exponentials of `now` (if any) while tiles compute the scores of `next` (if any).
 * Slices of the one alternate with steps of the other: the vector units are free while tiles
 * multiply, and the processor's window of instructions holds no more than a slice. */
INLINE void softmax_and_scores(task *t, const panel_chunk *now, const panel_chunk *next,
                               const vf *bias, const int nv) {
    TILE_STATE;
    const job_memory *m = &t->m;
    const int both = nv * VL > 16; /* the second 16 rows of the panel are in use */
    const vf scale_log2 = vset(t->scale_log2);
    vf sum[NV];
    int32_t at = 0, end = 0, slice = 0;
    if (now) {
        for (int v = 0; v < nv; v++) sum[v] = vload(m->row_sum + now->row + v * VL);
        at = now->span.first;
        end = padded_end(now);
    }
    if (next) {
        const float *q = m->q + (size_t)next->row * m->q_words;
        const size_t k_bytes = (size_t)m->k_pitch * sizeof(float);
        const int32_t steps = (padded_end(next) - next->span.first) / 32 * (m->words / 16);
        slice = ((end - at) / 2 + steps - 1) / steps * 2;
        for (int32_t key = next->span.first; key < next->span.end; key += 32) {
            const float *k = next->k + (size_t)key * m->k_pitch,
                        *k_next = k + (size_t)16 * m->k_pitch;
            float *s = next->s + (size_t)key * PANEL;
            TILE_ZERO(0);
            TILE_ZERO(1);
            TILE_ZERO(2);
            TILE_ZERO(3);
            for (int32_t w = 0; w < m->words; w += 16) {
                TILE_LOAD(6, q + (size_t)w * PANEL, ROW_BYTES);
                TILE_LOAD_ONCE(4, k + w, k_bytes);
                TILE_LOAD_ONCE(5, k_next + w, k_bytes);
                if (both) TILE_LOAD(7, q + (size_t)w * PANEL + 16, ROW_BYTES);
                TILE_DOT(0, 4, 6);
                TILE_DOT(2, 5, 6);
                if (both) {
                    TILE_DOT(1, 4, 7);
                    TILE_DOT(3, 5, 7);
                }
                const int32_t to = at + slice < end ? at + slice : end;
                prefetch_some(t);
                if (at < to) exp_scores(now->s, at, to, scale_log2, bias, sum, nv);
                at = to;
            }
            TILE_STORE(0, s, ROW_BYTES);
            TILE_STORE(2, s + 16 * PANEL, ROW_BYTES);
            if (both) {
                TILE_STORE(1, s + 16, ROW_BYTES);
                TILE_STORE(3, s + 16 * PANEL + 16, ROW_BYTES);
            }
        }
    }
    if (now) {
        exp_scores(now->s, at, end, scale_log2, bias, sum, nv);
        for (int v = 0; v < nv; v++) vstore(m->row_sum + now->row + v * VL, sum[v]);
    }
}

/* O += V P of `now` on tiles, while the vector units find the largest scores of `next` (if any). */
INLINE void values_and_max(task *t, const panel_chunk *now, const panel_chunk *next, vf *s_max,
                           const int nv) {
    TILE_STATE;
    const job_memory *m = &t->m;
    const int both = nv * VL > 16;
    const int32_t steps =
        (padded_end(now) - now->span.first) / 32 * (round_up(t->head_dim, 32) / 32);
    int32_t at = 0, end = 0, slice;
    if (next) {
        at = next->span.first;
        end = next->span.end;
    }
    slice = (end - at + steps - 1) / steps;
    for (int v = 0; v < nv; v++) s_max[v] = vset(-INFINITY);
    const int o_started = t->o_started[now->row / PANEL];
    t->o_started[now->row / PANEL] = 1;
    for (int32_t d = 0; d < t->head_dim; d += 32) {
        float *o = m->o + (size_t)now->row * m->o_elements + (size_t)d * PANEL,
              *o_next = o + 16 * PANEL;
        const float *v = now->v + (size_t)(d / 16 * (CHUNK / 32)) * TILE_WORDS,
                    *v_next = v + CHUNK / 32 * TILE_WORDS;
        if (o_started) {
            TILE_LOAD(0, o, ROW_BYTES);
            TILE_LOAD(2, o_next, ROW_BYTES);
            if (both) {
                TILE_LOAD(1, o + 16, ROW_BYTES);
                TILE_LOAD(3, o_next + 16, ROW_BYTES);
            }
        } else {
            TILE_ZERO(0);
            TILE_ZERO(1);
            TILE_ZERO(2);
            TILE_ZERO(3);
        }
        for (int32_t key = now->span.first; key < now->span.end; key += 32) {
            const float *p = now->s + (size_t)(key / 2) * PANEL;
            TILE_LOAD(6, p, ROW_BYTES);
            TILE_LOAD_ONCE(4, v + (size_t)(key / 32) * TILE_WORDS, 64);
            TILE_LOAD_ONCE(5, v_next + (size_t)(key / 32) * TILE_WORDS, 64);
            if (both) TILE_LOAD(7, p + 16, ROW_BYTES);
            TILE_DOT(0, 4, 6);
            TILE_DOT(2, 5, 6);
            if (both) {
                TILE_DOT(1, 4, 7);
                TILE_DOT(3, 5, 7);
            }
            const int32_t to = at + slice < end ? at + slice : end;
            prefetch_some(t);
            if (at < to) max_scores(next->s, at, to, s_max, nv);
            at = to;
        }
        TILE_STORE(0, o, ROW_BYTES);
        TILE_STORE(2, o_next, ROW_BYTES);
        if (both) {
            TILE_STORE(1, o + 16, ROW_BYTES);
            TILE_STORE(3, o_next + 16, ROW_BYTES);
        }
    }
}

/* Chunks overlap, from one panel to the next as well: while one is in its softmax, the scores of
 * the next are computed. */
INLINE void attend(task *t, const panel_work *w, const int nv) {
    vf s_max[NV], bias[NV];
    for (int v = 0; v < NV; v++) {
        s_max[v] = w->started ? w->first_max[v] : vset(-INFINITY);
        bias[v] = vset(0.0f);
    }
    if (!w->started) {
        softmax_and_scores(t, NULL, w->chunk, bias, nv);
        max_scores(w->chunk->s, w->chunk->span.first, w->chunk->span.end, s_max, nv);
    }
    for (const panel_chunk *x = w->chunk, *end = w->chunk + w->n; x < end; x++) {
        const panel_chunk *next = x + 1 < end ? x + 1 : w->after;
        if (x->span.masked || x->span.end % GROUP != 0) mask_panel_chunk(t, x->row, x, s_max);
        update_row_max(t, x->row, s_max, bias, nv);
        softmax_and_scores(t, x, next, bias, nv);
        values_and_max(t, x, next, s_max, nv);
    }
    for (int v = 0; v < NV; v++) w->first_max[v] = s_max[v];
}
