/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two products of a few rows, on rows of K and V where they lie. Lanes run over elements. What
 * is loaded from a row serves all rows of Q at once, so VKEEP holds it in a register: gcc would
 * load it again for each of them, and loads would then take longer than the products.
 *
 * Elements are taken in steps. A step of bf16 is a vector of words of two elements. Where there are
 * dot products of such words it stays as it is. Elsewhere its even elements become one vector of
 * floats and its odd ones another, with one operation each. Q and O lie in that order too.
 */

#if PAIRS && defined(__AVX512BF16__)
#define DIRECT_PAIRS 1
#else
#define DIRECT_PAIRS 0
#endif

#if DIRECT_PAIRS
INLINE vf direct_dot(vf acc, vf a, vf b) {
    return (vf)_mm512_dpbf16_ps((__m512)acc, (__m512bh)a, (__m512bh)b);
}
#else
INLINE vf direct_dot(vf acc, vf a, vf b) { return a * b + acc; }
#endif

/* Elements of a step, and vectors of Q (or, without dot products, of O) that it makes. */
INLINE int32_t step_elements(const uint32_t dtype) { return dtype == TESS_BF16 ? 2 * VL : VL; }
INLINE int step_vectors(const uint32_t dtype) {
    return dtype == TESS_BF16 && !DIRECT_PAIRS ? 2 : 1;
}

/* Elements [i, i + step) of a row of n. Those past the end are zero and not read. */
INLINE void load_step(const uint32_t dtype, const char *row, int32_t i, int32_t n, vf *out) {
    const int32_t elements = step_elements(dtype);
    const size_t size = (size_t)cpu_element_size(dtype);
    const char *at = row + (size_t)i * size;
    char part[VL * 4] __attribute__((aligned(64)));
    if (i + elements > n) {
        memset(part, 0, sizeof part);
        memcpy(part, at, (size_t)(n - i) * size);
        at = part;
    }
    if (dtype == TESS_F16) {
        out[0] = vfrom_f16((const uint16_t *)(const void *)at);
        VKEEP(out[0]);
        return;
    }
#if !PAIRS
    if (dtype >= TESS_F8E4M3) {
        out[0] = load_codes(dtype, at);
        VKEEP(out[0]);
        return;
    }
#endif
    out[0] = vload_any(at);
    VKEEP(out[0]);
    if (dtype == TESS_F32 || DIRECT_PAIRS) return;
    const vu words = (vu)out[0];
    out[0] = (vf)(words << 16);
    out[1] = (vf)(words & 0xffff0000u);
}

/* Where element d lies among those of a row of Q or O, for a type of K and V. */
static int32_t direct_place_of(uint32_t dtype, int32_t d, int of_o) {
    if (dtype != TESS_BF16 || (DIRECT_PAIRS && !of_o)) return d;
    const int32_t block = d / (2 * VL) * (2 * VL), in = d - block;
    /* Interleaving the words of two keys takes 4 elements of every 8 in turn. */
    if (DIRECT_PAIRS) return block + in / 4 % 2 * VL + in / 8 * 4 + in % 4;
    return block + in % 2 * VL + in / 2;
}

/* ------------------------------------------------------------------ scores */

/* Adds the products of a step from element d on, of some keys and of all rows. */
INLINE void direct_score_step(const job_memory *m, const uint32_t dtype, const char *const *keys,
                              int32_t d, int32_t end, vf (*sum)[DIRECT_KEYS], const int rows) {
    vf k[DIRECT_KEYS][2];
    UNROLL
    for (int n = 0; n < DIRECT_KEYS; n++) load_step(dtype, keys[n], d, end, k[n]);
    const float *q = m->q + (DIRECT_PAIRS ? WORD_OF(d) : d);
    UNROLL
    for (int u = 0; u < step_vectors(dtype); u++) UNROLL
    for (int r = 0; r < rows; r++) {
        vf x = vload(q + (size_t)r * m->o_elements + u * VL);
        VKEEP(x);
        UNROLL
        for (int n = 0; n < DIRECT_KEYS; n++) {
            sum[r][n] = direct_dot(sum[r][n], k[n][u], x);
            VKEEP(sum[r][n]);
        }
    }
}

/* Scores of DIRECT_KEYS keys against all rows. Their lanes are added as far as the keys go: lane i
 * of the vector that is left has a part of the score of key i % DIRECT_KEYS. */
INLINE void direct_scores(const task *t, const uint32_t dtype, const char *const *keys, float *out,
                          const int rows) {
    const int32_t elements = step_elements(dtype), step_bytes = elements * cpu_element_size(dtype);
    vf sum[DIRECT_ROWS][DIRECT_KEYS];
    UNROLL
    for (int r = 0; r < rows; r++) UNROLL
    for (int n = 0; n < DIRECT_KEYS; n++) sum[r][n] = vset(0.0f);
    direct_ahead ahead = t->turns->ahead;
    int32_t d = 0, byte = 0;
    for (; d + elements <= t->head_dim; d += elements, byte += step_bytes) {
        if (byte % 64 == 0) direct_prefetch(t->turns, &ahead, DIRECT_KEYS);
        direct_score_step(&t->m, dtype, keys, d, d + elements, sum, rows);
    }
    t->turns->ahead = ahead;
    if (d < t->head_dim) direct_score_step(&t->m, dtype, keys, d, t->head_dim, sum, rows);
    UNROLL
    for (int r = 0; r < rows; r++)
        vstore(out + (size_t)r * DIRECT_FOLDS * VL, vfold_all(sum[r], 1, DIRECT_KEYS));
}

/* Completes the scores of the VL keys from `key` on. */
INLINE void direct_complete(const task *t, const uint32_t dtype, int32_t key, const int rows) {
    for (int r = 0; r < rows; r++) {
        vf sum[DIRECT_FOLDS];
        UNROLL
        for (int i = 0; i < DIRECT_FOLDS; i++)
            sum[i] = vload(t->folds + ((size_t)r * DIRECT_FOLDS + (size_t)i) * VL);
        vf scores = vfold_all(sum, DIRECT_KEYS, DIRECT_FOLDS);
        if (dtype >= TESS_F8E4M3) scores *= vload_any(t->located->k_scale + key);
        vstore(t->m.s + (size_t)r * CHUNK + key, scores);
    }
}

/* ------------------------------------------------------------------ values */

/* Keys whose rows of V are multiplied at once: dot products take two. */
enum { VALUE_KEYS = DIRECT_PAIRS ? 2 : 1 };

/* Stands for V of a second key that is not there. */
static const uint16_t no_value[256];

/* DIRECT_SPAN vectors of V, or fewer at the end of a row of n elements. */
INLINE void load_span(const uint32_t dtype, const char *const *rows, int32_t d, int32_t n,
                      const int full, vf *out) {
    const int vectors = dtype == TESS_BF16 ? 2 : 1;
    UNROLL
    for (int j = 0; j < DIRECT_SPAN; j += vectors) {
        const int32_t i = d + j * VL;
        if (!full && i >= n) {
            for (int u = 0; u < vectors; u++) out[j + u] = vset(0.0f);
            continue;
        }
        const int32_t end = full ? i + vectors * VL : n;
#if DIRECT_PAIRS
        vf even, odd;
        load_step(dtype, rows[0], i, end, &even);
        load_step(dtype, rows[1], i, end, &odd);
        out[j] = (vf)_mm512_unpacklo_epi16((__m512i)even, (__m512i)odd);
        out[j + 1] = (vf)_mm512_unpackhi_epi16((__m512i)even, (__m512i)odd);
#else
        load_step(dtype, rows[0], i, end, out + j);
#endif
    }
}

/* Stores the weights of VL keys from `key` on, pairs of them as a word. */
INLINE void store_weights(float *s, int32_t key, vf p) {
#if DIRECT_PAIRS
    *(__m256bh *)(void *)(s + key / 2) = _mm512_cvtneps_pbh((__m512)p);
#else
    vstore(s + key, p);
#endif
}

/* Those of VALUE_KEYS keys, in all lanes. */
INLINE vf direct_weight(const float *s, int32_t key) {
    return vset(s[DIRECT_PAIRS ? key / 2 : key]);
}

/* Adds `count` keys from `first` on to DIRECT_SPAN vectors of O. */
INLINE void direct_value_span(const task *t, const uint32_t dtype, const char *const *values,
                              int32_t first, int32_t count, int32_t d, const int full,
                              const int rows) {
    const job_memory *m = &t->m;
    const int32_t size = cpu_element_size(dtype), lines = DIRECT_SPAN * VL * VALUE_KEYS * size / 64,
                  left = (m->o_elements - d) / VL,
                  vectors = left < DIRECT_SPAN ? left : DIRECT_SPAN;
    const int prefetch = d * size % 64 == 0;
    direct_ahead ahead = t->turns->ahead;
    vf acc[DIRECT_ROWS][DIRECT_SPAN];
    UNROLL
    for (int r = 0; r < rows; r++) UNROLL
    for (int j = 0; j < DIRECT_SPAN; j++)
        acc[r][j] =
            vload(m->o + (size_t)r * m->o_elements + d + (full || j < vectors ? j : 0) * VL);
    for (int32_t key = first; key < first + count; key += VALUE_KEYS) {
        vf v[DIRECT_SPAN];
        if (prefetch) direct_prefetch(t->turns, &ahead, lines > 0 ? lines : 1);
        load_span(dtype, values + key, d, t->head_dim, full, v);
        UNROLL
        for (int j = 0; j < DIRECT_SPAN; j++) VKEEP(v[j]);
        UNROLL
        for (int r = 0; r < rows; r++) {
            vf p = direct_weight(m->s + (size_t)r * CHUNK, key);
            VKEEP(p);
            UNROLL
            for (int j = 0; j < DIRECT_SPAN; j++) {
                acc[r][j] = direct_dot(acc[r][j], v[j], p);
                VKEEP(acc[r][j]);
            }
        }
    }
    t->turns->ahead = ahead;
    /* A constant bound: an index that varies would keep the sums in memory. */
    UNROLL
    for (int r = 0; r < rows; r++) UNROLL
    for (int j = 0; j < DIRECT_SPAN; j++)
        if (full || j < vectors) vstore(m->o + (size_t)r * m->o_elements + d + j * VL, acc[r][j]);
}

/* O of all rows += P V over `count` keys from `first` on. */
INLINE void direct_values(const task *t, const uint32_t dtype, const char *const *values,
                          int32_t first, int32_t count, const int rows) {
    int32_t d = 0;
    for (; d + DIRECT_SPAN * VL <= t->head_dim; d += DIRECT_SPAN * VL)
        direct_value_span(t, dtype, values, first, count, d, 1, rows);
    if (d < t->head_dim) direct_value_span(t, dtype, values, first, count, d, 0, rows);
}
