/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The products of backward. Keys stay in lanes, in panels, and rows come as items, in chunks:
 * S[item][lane] = Y[item][word] * X[word][lane] and dP likewise A[d][lane] += W[d][item] *
 * P[item][lane] dK and dV D[item][d] = P[item][word] * Z[word][d] dQ, words of keys: the first
 * product again X and A lie as Q and O do in forward, Y as packed K, W as packed V. Z is K with a
 * panel of elements in lanes.
 */

/* Stands for a missing row. */
static const char zero_row[256 * sizeof(float)];

/* Where a panel has no more keys than half of its lanes, products take half of its vectors. Tiles
 * are not halved. */
enum { HALF = NV > 1 ? NV / 2 : 1 };
_Static_assert(WORD_OF(HALF *VL) % 4 == 0, "the first product takes four words at a time");

/* The lanes of the panel at `key` that are packed, multiplied and stored, of a column with so many
 * keys. */
INLINE int32_t panel_lanes(int32_t key, int32_t keys) {
    return TILES || keys - key > HALF * VL ? PANEL : HALF * VL;
}

/* Words from one item to the next in dS of all lanes. The padding keeps the rows of a register
 * block out of each other's cache sets. */
INLINE size_t ds_pitch(size_t lanes) { return WORD_OF(lanes) + 16; }

/* Stores VL elements in the form that the first product takes. */
INLINE void store_operands(float *out, vf x) {
#if PAIRS && VL == 16 && defined(__AVX512BF16__)
    const __m256i words = (__m256i)_mm512_cvtneps_pbh((__m512)x);
    memcpy(out, &words, sizeof words);
#elif PAIRS
    vto_bf16((uint16_t *)(void *)out, x);
#else
    vstore(out, x);
#endif
}

/* The rows of a panel of keys as the right operand of dQ's product. `apart`: floats from one panel
 * of elements to the next. */
static void pack_pairs_of_keys(const job_memory *m, uint32_t dtype, int32_t head_dim,
                               const char *const *rows, int32_t lanes, float *packed,
                               size_t apart) {
    float *row = m->rows;
    memset(row + head_dim, 0, (size_t)(m->o_elements - head_dim) * sizeof(float));
    for (int32_t i = 0; i < lanes; i += 1 + PAIRS) {
#if PAIRS
        (void)dtype;
        for (int32_t d = 0; d < head_dim; d += 8) {
            uint16_t even[8], odd[8];
            uint32_t both[8];
            memcpy(even, rows[i] + 2 * d, sizeof even);
            memcpy(odd, rows[i + 1] + 2 * d, sizeof odd);
            for (int32_t j = 0; j < 8; j++) both[j] = (uint32_t)odd[j] << 16 | even[j];
            memcpy(row + d, both, sizeof both);
        }
#else
        load_row(dtype, rows[i], head_dim, row);
#endif
        for (int32_t d = 0; d < m->o_elements; d += PANEL)
            memcpy(packed + (size_t)(d / PANEL) * apart + (size_t)WORD_OF(i) * PANEL, row + d,
                   PANEL * sizeof(float));
    }
}

/* Packs a row as left operand of the first product. */
INLINE void pack_row(const job_memory *m, uint32_t dtype, int32_t head_dim, const char *row,
                     float *packed) {
    const int32_t words = WORD_OF(head_dim);
    int32_t w = 0;
    if (PAIRS) {
        for (; w + VL <= words; w += VL) vstore(packed + w, vload_any(row + 4 * (size_t)w));
        for (; w < words; w += 4) /* rows hold a multiple of 8 elements */
            memcpy(packed + w, row + 4 * (size_t)w, 16);
    } else {
        load_row(dtype, row, head_dim, packed);
    }
    if (words < m->words) memset(packed + words, 0, (size_t)(m->words - words) * sizeof(float));
}

/* Elements of dK or dV that a step of their products takes. */
#define SUM_ELEMENTS (TILES ? 32 : DB)

/* A step of a product ends: prefetches some of what the chunk has to. */
static void prefetch_few(backward *b);

#if TILES
static void pack_columns(const job_memory *m, int32_t head_dim, const char *const *rows,
                         int32_t items, float *packed) {
    pack_value_rows(m, head_dim, rows, round_up(items, GROUP), packed);
}

/* Multiplies 32 items with the panel. */
INLINE void score_tiles(const float *y, size_t y_pitch, const float *x, int32_t words, float *s) {
    TILE_STATE;
    const size_t pitch = y_pitch * sizeof(float);
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
    for (int32_t w = 0; w < words; w += 16) {
        TILE_LOAD(6, x + (size_t)w * PANEL, ROW_BYTES);
        TILE_LOAD(7, x + (size_t)w * PANEL + 16, ROW_BYTES);
        TILE_LOAD_ONCE(4, y + w, pitch);
        TILE_LOAD_ONCE(5, y + 16 * y_pitch + w, pitch);
        TILE_DOT(0, 4, 6);
        TILE_DOT(1, 4, 7);
        TILE_DOT(2, 5, 6);
        TILE_DOT(3, 5, 7);
    }
    TILE_STORE(0, s, ROW_BYTES);
    TILE_STORE(1, s + 16, ROW_BYTES);
    TILE_STORE(2, s + 16 * PANEL, ROW_BYTES);
    TILE_STORE(3, s + 16 * PANEL + 16, ROW_BYTES);
}

/* 32 elements of the panel's sums over the items [from, to). */
INLINE void sum_tiles(const float *w, const float *p, int32_t from, int32_t to, float *sums) {
    TILE_STATE;
    const float *next = w + CHUNK / 32 * TILE_WORDS;
    TILE_LOAD(0, sums, ROW_BYTES);
    TILE_LOAD(1, sums + 16, ROW_BYTES);
    TILE_LOAD(2, sums + 16 * PANEL, ROW_BYTES);
    TILE_LOAD(3, sums + 16 * PANEL + 16, ROW_BYTES);
    for (int32_t i = from; i < to; i += 32) {
        TILE_LOAD(6, p + (size_t)(i / 2) * PANEL, ROW_BYTES);
        TILE_LOAD(7, p + (size_t)(i / 2) * PANEL + 16, ROW_BYTES);
        TILE_LOAD_ONCE(4, w + (size_t)(i / 32) * TILE_WORDS, 64);
        TILE_LOAD_ONCE(5, next + (size_t)(i / 32) * TILE_WORDS, 64);
        TILE_DOT(0, 4, 6);
        TILE_DOT(1, 4, 7);
        TILE_DOT(2, 5, 6);
        TILE_DOT(3, 5, 7);
    }
    TILE_STORE(0, sums, ROW_BYTES);
    TILE_STORE(1, sums + 16, ROW_BYTES);
    TILE_STORE(2, sums + 16 * PANEL, ROW_BYTES);
    TILE_STORE(3, sums + 16 * PANEL + 16, ROW_BYTES);
}

static void score_items(const float *y, size_t pitch, const float *x, int32_t words, int32_t from,
                        int32_t to, float *s, int32_t lanes, backward *b) {
    (void)lanes;
    for (int32_t i = from; i < to; i += GROUP) {
        score_tiles(y + (size_t)i * pitch, pitch, x, words, s + (size_t)i * PANEL);
        prefetch_few(b);
    }
}

static void sum_items(const float *w, const float *p, int32_t from, int32_t to, int32_t head_dim,
                      float *sums, int32_t lanes, backward *b) {
    (void)lanes;
    for (int32_t d = 0; d < head_dim; d += SUM_ELEMENTS) {
        sum_tiles(w + (size_t)(d / 16 * (CHUNK / 32)) * TILE_WORDS, p, from, to,
                  sums + (size_t)d * PANEL);
        prefetch_few(b);
    }
}
#else
/* Rows as blocks of DB elements, [d / DB][item][DB], so that a product reads them in order; with
 * pairs, words hold the elements of two rows. Rows are packed ones. */
static void pack_columns(const job_memory *m, int32_t head_dim, const char *const *rows,
                         int32_t items, float *packed) {
    (void)m;
#if PAIRS
    for (int32_t i = 0; i < items; i += 2) {
        float *out = packed + (size_t)(i / 2) * DB;
        for (int32_t d = 0; d < head_dim; d += DB) {
            uint16_t even[DB], odd[DB];
            uint32_t both[DB];
            memcpy(even, rows[i] + 2 * d, sizeof even);
            memcpy(odd, rows[i + 1] + 2 * d, sizeof odd);
            for (int32_t j = 0; j < DB; j++) both[j] = (uint32_t)odd[j] << 16 | even[j];
            memcpy(out + (size_t)d * (CHUNK / 2), both, sizeof both);
        }
    }
#else
    for (int32_t i = 0; i < items; i++) {
        const float *row = (const void *)rows[i];
        float *out = packed + (size_t)i * DB;
        for (int32_t d = 0; d < head_dim; d += DB)
            memcpy(out + (size_t)d * CHUNK, row + d, DB * sizeof(float));
    }
#endif
}

INLINE void score_groups(const float *y, size_t pitch, const float *x, int32_t words, int32_t from,
                         int32_t to, float *s, backward *b, const int nv) {
    vf most[NV];
    for (int v = 0; v < NV; v++) most[v] = vset(0.0f);
    for (int32_t i = from; i < to; i += GROUP) {
        score_block(y + (size_t)i * pitch, pitch, x, words, s + (size_t)i * PANEL, most, nv);
        prefetch_few(b);
    }
}

static void score_items(const float *y, size_t pitch, const float *x, int32_t words, int32_t from,
                        int32_t to, float *s, int32_t lanes, backward *b) {
    if (lanes > HALF * VL)
        score_groups(y, pitch, x, words, from, to, s, b, NV);
    else
        score_groups(y, pitch, x, words, from, to, s, b, HALF);
}

INLINE void sum_blocks(const float *w, const float *p, int32_t from, int32_t to, int32_t head_dim,
                       float *sums, backward *b, const int nv) {
    const int32_t first = WORD_OF(from), words = WORD_OF(to) - first;
    for (int32_t d = 0; d < head_dim; d += SUM_ELEMENTS) {
        value_block(w + (size_t)d * WORD_OF(CHUNK) + (size_t)first * DB, DB,
                    p + (size_t)first * PANEL, words, sums + (size_t)d * PANEL, nv);
        prefetch_few(b);
    }
}

static void sum_items(const float *w, const float *p, int32_t from, int32_t to, int32_t head_dim,
                      float *sums, int32_t lanes, backward *b) {
    if (lanes > HALF * VL)
        sum_blocks(w, p, from, to, head_dim, sums, b, NV);
    else
        sum_blocks(w, p, from, to, head_dim, sums, b, HALF);
}
#endif
