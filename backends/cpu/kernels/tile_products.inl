/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two products of the body on 16 x 16 tiles of bf16 pairs. Words pair neighbouring elements of Q and K in the first product, neighbouring keys in the second:
 *     S[key][row] = K[key][word] * Q[word][row]         with K as packed rows,
 *     O[d][row]  += V[d][word] * P[word][row]           with V transposed while packing, one kilobyte per tile: [d / 16][word / 16][16][16].
 * Tiles 0-3 accumulate 32 x 32 results; 4 and 5 hold the left operand, 6 and 7 the right one. Missing keys and elements are zero in the packed operands.
 */
#include "tiles.h"

#define ROW_BYTES  ((size_t)PANEL * sizeof(float)) /* between the rows of Q, S, P and O in a panel */
#define TILE_WORDS 256

#if PANEL != 32
#error "tile products work on panels of 32 query rows"
#endif

/* The caller's row of every key of the chunk. */
static void chunk_rows(const task *t, const char *base, int64_t stride, const char **rows) {
    for (int32_t n = 0; n < t->chunk.pieces; n++) {
        const cpu_piece *p = &t->chunk.piece[n];
        for (int32_t i = 0; i < p->count; i++) rows[p->at + i] = base + (int64_t)(p->token + i) * stride;
    }
}

static void pack_keys(task *t) {
    const memory *m = &t->m;
    const char *rows[CHUNK];
    chunk_rows(t, t->k, t->k_stride, rows);
    const size_t bytes = (size_t)t->head_dim * 2, rest = (size_t)m->words * 4 - bytes;
    for (int32_t key = 0; key < round_up(t->chunk.keys, GROUP); key++) {
        char *out = (char *)(m->k + (size_t)key * m->k_pitch);
        if (key < t->chunk.keys) {
            memcpy(out, rows[key], bytes);
            memset(out + bytes, 0, rest);
        } else {
            memset(out, 0, bytes + rest);
        }
    }
}

/* 16 words of the elements [d, d + 16) of two keys. */
INLINE void pair_rows(const char *even, const char *odd, int32_t d, int32_t head_dim, uint32_t *out) {
    uint16_t e[16] = {0}, o[16] = {0};
    const size_t bytes = (size_t)(head_dim - d < 16 ? head_dim - d : 16) * 2;
    if (even) memcpy(e, even + 2 * d, bytes);
    if (odd) memcpy(o, odd + 2 * d, bytes);
    for (int i = 0; i < 16; i++) out[i] = (uint32_t)o[i] << 16 | e[i];
}

static void pack_values(task *t) {
    const memory *m = &t->m;
    const char *rows[CHUNK];
    chunk_rows(t, t->v, t->v_stride, rows);
    for (int32_t key = t->chunk.keys; key < round_up(t->chunk.keys, GROUP); key++) rows[key] = NULL;
    for (int32_t first = 0; first < t->chunk.keys; first += 32) {
        for (int32_t d = 0; d < m->o_elements; d += 16) {
            float *tile = m->v + (size_t)(d / 16 * (CHUNK / 32) + first / 32) * TILE_WORDS;
#if VL == 16
            vf r[16];
            if (d + 16 <= t->head_dim && first + 32 <= t->chunk.keys) {
                UNROLL
                for (int i = 0; i < 16; i++) {
                    const vu even = __builtin_convertvector(*(const vh_any *)(rows[first + 2 * i] + 2 * d), vu);
                    const vu odd = __builtin_convertvector(*(const vh_any *)(rows[first + 2 * i + 1] + 2 * d), vu);
                    r[i] = (vf)(odd << 16 | even);
                }
            } else {
                uint32_t words[16] __attribute__((aligned(64)));
                for (int i = 0; i < 16; i++) {
                    if (d < t->head_dim)
                        pair_rows(rows[first + 2 * i], rows[first + 2 * i + 1], d, t->head_dim, words);
                    else
                        memset(words, 0, sizeof words);
                    r[i] = *(const vf_any *)words;
                }
            }
            vtranspose(r);
            UNROLL
            for (int i = 0; i < 16; i++) vstore(tile + i * 16, r[i]);
#else
            uint32_t words[16];
            for (int i = 0; i < 16; i++) {
                memset(words, 0, sizeof words);
                if (d < t->head_dim) pair_rows(rows[first + 2 * i], rows[first + 2 * i + 1], d, t->head_dim, words);
                for (int j = 0; j < 16; j++) memcpy(tile + j * 16 + i, &words[j], 4);
            }
#endif
        }
    }
}

INLINE void score_panel(const task *t, int32_t first_row, cpu_span span, vf *most, const int nv) {
    TILE_STATE;
    const memory *m = &t->m;
    const float *q = m->q + (size_t)first_row * m->q_words;
    const size_t k_bytes = (size_t)m->k_pitch * sizeof(float);
    const int both = nv * VL > 16; /* the second 16 rows of the panel are in use */
    for (int32_t key = span.first; key < span.end; key += 32) {
        const float *k = m->k + (size_t)key * m->k_pitch, *k_next = k + (size_t)16 * m->k_pitch;
        float *s = m->s + (size_t)key * PANEL;
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
        for (int32_t w = 0; w < m->words; w += 16) {
            TILE_LOAD(6, q + (size_t)w * PANEL, ROW_BYTES);
            TILE_LOAD(4, k + w, k_bytes);
            TILE_DOT(0, 4, 6);
            TILE_LOAD(5, k_next + w, k_bytes);
            TILE_DOT(2, 5, 6);
            if (both) {
                TILE_LOAD(7, q + (size_t)w * PANEL + 16, ROW_BYTES);
                TILE_DOT(1, 4, 7);
                TILE_DOT(3, 5, 7);
            }
        }
        TILE_STORE(0, s, ROW_BYTES);
        TILE_STORE(2, s + 16 * PANEL, ROW_BYTES);
        if (both) {
            TILE_STORE(1, s + 16, ROW_BYTES);
            TILE_STORE(3, s + 16 * PANEL + 16, ROW_BYTES);
        }
        for (int i = 0; i < 32; i++) UNROLL
        for (int v = 0; v < nv; v++) most[v] = vmax(vload(s + i * PANEL + v * VL), most[v]);
    }
}

INLINE void add_values(const task *t, int32_t first_row, cpu_span span, const int nv) {
    TILE_STATE;
    const memory *m = &t->m;
    const int both = nv * VL > 16;
    for (int32_t d = 0; d < t->head_dim; d += 32) {
        float *o = m->o + (size_t)first_row * m->o_elements + (size_t)d * PANEL, *o_next = o + 16 * PANEL;
        const float *v = m->v + (size_t)(d / 16 * (CHUNK / 32)) * TILE_WORDS, *v_next = v + CHUNK / 32 * TILE_WORDS;
        TILE_LOAD(0, o, ROW_BYTES);
        TILE_LOAD(2, o_next, ROW_BYTES);
        if (both) {
            TILE_LOAD(1, o + 16, ROW_BYTES);
            TILE_LOAD(3, o_next + 16, ROW_BYTES);
        }
        for (int32_t key = span.first; key < span.end; key += 32) {
            const float *p = m->s + (size_t)(key / 2) * PANEL;
            TILE_LOAD(6, p, ROW_BYTES);
            TILE_LOAD(4, v + (size_t)(key / 32) * TILE_WORDS, 64);
            TILE_DOT(0, 4, 6);
            TILE_LOAD(5, v_next + (size_t)(key / 32) * TILE_WORDS, 64);
            TILE_DOT(2, 5, 6);
            if (both) {
                TILE_LOAD(7, p + 16, ROW_BYTES);
                TILE_DOT(1, 4, 7);
                TILE_DOT(3, 5, 7);
            }
        }
        TILE_STORE(0, o, ROW_BYTES);
        TILE_STORE(2, o_next, ROW_BYTES);
        if (both) {
            TILE_STORE(1, o + 16, ROW_BYTES);
            TILE_STORE(3, o_next + 16, ROW_BYTES);
        }
    }
}
