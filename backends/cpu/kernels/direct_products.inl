/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two products of a few rows, on rows of K and V in place. Lanes run over elements. A load from
 * K or V serves all rows of Q, so VKEEP holds it in a register: gcc would load it again for each
 * row, and loads would then take longer than the products.
 *
 * Elements are taken in steps. A step of bf16 is a vector of words of two elements. It stays so
 * where the processor has dot products of such words. Elsewhere its even elements become one vector
 * of floats and its odd ones another, with one operation each. Q and O have that order, too.
 */

enum {
    AHEAD_BYTES = 16384, /* prefetched ahead of the products, at least */
    FOLDS = VL / 2       /* most vectors of sums of VL keys */
};

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

/* Elements of a step, the vectors of Q that it is multiplied with, and its vectors of O. */
INLINE int32_t step_elements(const uint32_t dtype) {
    if (DIRECT_PAIRS && dtype >= TESS_F8E4M3) return 4 * VL;
    return dtype == TESS_BF16 ? 2 * VL : VL;
}
INLINE int step_vectors(const uint32_t dtype) {
    return step_elements(dtype) / (DIRECT_PAIRS ? 2 * VL : VL);
}
INLINE int step_outputs(const uint32_t dtype) { return step_elements(dtype) / VL; }

#if DIRECT_PAIRS
#include "direct_codes.inl"
#endif

/* Loads the first `words` words of a vector; the others are zero and not read. A copy through the
 * stack would cost more than the products, because a load waits there until shorter stores have
 * reached the cache. */
INLINE vf load_some(const char *at, int32_t words) {
#if VL == 16 && defined(__AVX512F__)
    return (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << words) - 1), at);
#elif VL == 8 && defined(__AVX__)
    (void)words; /* 4: rows hold a multiple of 8 elements */
    return (vf)_mm256_zextps128_ps256(_mm_loadu_ps((const float *)(const void *)at));
#else
    vf part = {0};
    memcpy(&part, at, (size_t)words * sizeof(float));
    return part;
#endif
}

/* Loads a vector of f16 or of codes as floats. The last one of a row may be half a vector. */
INLINE vf load_converted(const uint32_t dtype, const char *at, const int whole) {
#if VL == 16 && defined(__AVX512F__)
    __m128i half;
    char copy[32];
    if (!whole) {
        half = dtype == TESS_F16 ? _mm_loadu_si128((const __m128i *)(const void *)at)
                                 : _mm_loadl_epi64((const __m128i *)(const void *)at);
        *(__m256i_u *)(void *)copy = _mm256_zextsi128_si256(half);
        at = copy;
    }
#else
    (void)dtype, (void)whole; /* rows hold a multiple of 8 elements */
#endif
#if !PAIRS
    if (dtype >= TESS_F8E4M3) return load_codes(dtype, at);
#endif
    return vfrom_f16((const uint16_t *)(const void *)at);
}

/* Loads a step from element i on of a row of n elements. Elements past the end are zero and not
 * read. `whole`: there are none. */
INLINE void load_step(const uint32_t dtype, const char *row, int32_t i, int32_t n, const int whole,
                      vf *out) {
    const int32_t size = cpu_element_size(dtype);
    const char *at = row + (size_t)i * (size_t)size;
    if (dtype != TESS_F32 && dtype != TESS_BF16)
        out[0] = load_converted(dtype, at, whole);
    else
        out[0] = whole ? vload_any(at) : load_some(at, (n - i) * size / 4);
    VKEEP(out[0]);
    if (dtype != TESS_BF16 || DIRECT_PAIRS) return;
    const vu words = (vu)out[0];
    out[0] = (vf)(words << 16);
    out[1] = (vf)(words & 0xffff0000u);
}

/* The place of element d in a row of Q or O, for a type of K and V. */
static int32_t direct_place_of(uint32_t dtype, int32_t d, int of_o) {
    const int32_t elements = step_elements(dtype), in = d % elements, block = d - in;
    if (DIRECT_PAIRS && dtype >= TESS_F8E4M3) {
        /* Of the 16 elements of a quarter, a vector of Q has 8 and one of O has 4. */
        const int32_t quarter = in / 16, of = in % 16;
        return of_o ? block + of / 4 * VL + quarter * 4 + of % 4
                    : block + of / 8 * 2 * VL + quarter * 8 + of % 8;
    }
    if (dtype != TESS_BF16 || (DIRECT_PAIRS && !of_o)) return d;
    /* Interleaving the words of two keys takes 4 elements of every 8 in turn. */
    if (DIRECT_PAIRS) return block + in / 4 % 2 * VL + in / 8 * 4 + in % 4;
    return block + in % 2 * VL + in / 2;
}

/* ------------------------------------------------------------------ scores */

/* Prefetches the next `count` cache lines of rows, in the order in which they will be needed. That
 * is nearly the order of memory and a little ahead of the products, so that hardware prefetchers
 * follow: they keep more misses in flight than a core may. */
INLINE void direct_prefetch(const direct_turns *turns, direct_ahead *ahead, const int count) {
    if (ahead->lines >= count) {
        UNROLL
        for (int i = 0; i < count; i++) __builtin_prefetch(ahead->line + 64 * i, 0, 2);
        ahead->line += 64 * count;
        ahead->lines -= count;
        return;
    }
    for (int n = 0; n < count; n++) {
        if (ahead->lines == 0) {
            if (ahead->next == turns->listed) return;
            ahead->line = turns->row[ahead->next++ % LISTED_ROWS];
            ahead->lines = turns->row_lines;
        }
        __builtin_prefetch(ahead->line, 0, 2);
        ahead->line += 64;
        ahead->lines--;
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

/* Keys whose scores are summed together. Long rows leave few sums to add at the end, and with more
 * keys reads would leave the order of memory. */
INLINE int direct_keys(const uint32_t dtype) {
    return VL == 16 && dtype == TESS_F32 ? 2 : DIRECT_KEYS;
}
INLINE int direct_rotated(const uint32_t dtype, const int rows) {
    (void)dtype;
    return VL == 16 && rows == 4;
}

/*
 * Products leave sums of several keys and rows in lanes, which must be added. With vectors of 16
 * lanes and four rows, Q is rotated: quarter i of vector j of Q comes from row (i + j) % 4. So it
 * is enough to rotate a key's sums back and add them: the quarters of the result are rows.
 */
#if VL == 16
INLINE vf direct_turn_back(vf (*sum)[DIRECT_KEYS], const int key) {
    const vf x0 = sum[0][key], x1 = sum[1][key], x2 = sum[2][key], x3 = sum[3][key];
    const vf even = x0 + (vf)_mm512_shuffle_f32x4((__m512)x2, (__m512)x2, 0x4e),
             odd = x1 + (vf)_mm512_shuffle_f32x4((__m512)x3, (__m512)x3, 0x4e);
    return even + (vf)_mm512_shuffle_f32x4((__m512)odd, (__m512)odd, 0x93);
}

/* Stores the scores of the two or four keys that are summed together. */
INLINE void direct_store_scores(const task *t, const uint32_t dtype, int32_t key, int32_t first,
                                vf (*sum)[DIRECT_KEYS]) {
    const int keys = direct_keys(dtype);
    vf all[DIRECT_KEYS];
    UNROLL
    for (int n = 0; n < keys; n++) all[n] = direct_turn_back(sum, n);
    vf scores = vfold_all(all, 1, keys);
    if (keys == 2) scores += (vf)_mm512_permute_ps((__m512)scores, 0x4e);
    if (dtype >= TESS_F8E4M3)
        scores *= (vf)_mm512_broadcast_f32x4(_mm_loadu_ps(t->located->k_scale + key));
    const __m128 row[4] = {
        _mm512_castps512_ps128((__m512)scores), _mm512_extractf32x4_ps((__m512)scores, 1),
        _mm512_extractf32x4_ps((__m512)scores, 2), _mm512_extractf32x4_ps((__m512)scores, 3)};
    UNROLL
    for (int r = 0; r < 4; r++)
        memcpy(t->m.s + (first + r) * CHUNK + key, &row[r], (size_t)keys * sizeof(float));
}
#else
INLINE void direct_store_scores(const task *t, const uint32_t dtype, int32_t key, int32_t first,
                                vf (*sum)[DIRECT_KEYS]) {
    (void)t, (void)dtype, (void)key, (void)first, (void)sum;
}
#endif

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

/* Rotates the rows of Q of the group from row `first` on. */
static void direct_rotate(const task *t, int32_t first) {
    const job_memory *m = &t->m;
    const int32_t pitch = m->o_elements;
    float *q = m->q + (size_t)first * (size_t)pitch;
    memcpy(m->rows, q, (size_t)DIRECT_ROWS * (size_t)pitch * sizeof(float));
    for (int32_t w = 0; w < pitch; w += 4)
        for (int32_t j = 0; j < DIRECT_ROWS; j++)
            memcpy(q + j * pitch + w, m->rows + (w / 4 + j) % DIRECT_ROWS * pitch + w,
                   4 * sizeof(float));
}

/* Prepares Q of a task, completed by rows of zeros. */
static void direct_queries(const task *t) {
    const int32_t lanes = direct_lanes(t);
    memset(t->m.q, 0, (size_t)lanes * t->m.o_elements * sizeof(float));
    for (int32_t r = 0; r < t->rows; r++) direct_query(t, r);
    for (int32_t first = 0; first < lanes; first += DIRECT_ROWS)
        if (direct_rotated(t->launch->kv_dtype, direct_group(t, first))) direct_rotate(t, first);
}

/* Adds the products of a step from element d on, of some keys and of a group's rows. */
INLINE void direct_score_step(const task *t, const uint32_t dtype, const char *const *keys,
                              int32_t d, int32_t end, const int whole, vf (*sum)[DIRECT_KEYS],
                              int32_t first, const int rows) {
    const job_memory *m = &t->m;
    vf k[DIRECT_KEYS][2];
    UNROLL
    for (int n = 0; n < direct_keys(dtype); n++) {
#if DIRECT_PAIRS
        if (dtype >= TESS_F8E4M3) {
            direct_words_of(t->turns, dtype, direct_load_codes(keys[n], d, end, whole), k[n]);
            continue;
        }
#endif
        load_step(dtype, keys[n], d, end, whole, k[n]);
    }
    const float *q = m->q + (size_t)first * (size_t)m->o_elements + (DIRECT_PAIRS ? WORD_OF(d) : d);
    UNROLL
    for (int u = 0; u < step_vectors(dtype); u++) UNROLL
    for (int r = 0; r < rows; r++) {
        vf x = vload(q + (size_t)r * m->o_elements + u * VL);
        VKEEP(x);
        UNROLL
        for (int n = 0; n < direct_keys(dtype); n++) {
            sum[r][n] = direct_dot(sum[r][n], k[n][u], x);
            VKEEP(sum[r][n]);
        }
    }
}

/* Scores of DIRECT_KEYS keys against the group's rows from row `first` on. Lanes are added until
 * lane i of one vector has a part of the score of key i % DIRECT_KEYS. The first group reads K from
 * memory, so it prefetches. */
INLINE void direct_sums(const task *t, const uint32_t dtype, int32_t key, int32_t first,
                        const int rows) {
    const int32_t elements = step_elements(dtype), step_bytes = elements * cpu_element_size(dtype),
                  end = t->head_dim;
    direct_ahead ahead = t->turns->ahead;
    const char *keys[DIRECT_KEYS];
    vf sum[DIRECT_ROWS][DIRECT_KEYS];
    UNROLL
    for (int n = 0; n < direct_keys(dtype); n++) keys[n] = t->located->k[key + n];
    UNROLL
    for (int r = 0; r < rows; r++) UNROLL
    for (int n = 0; n < direct_keys(dtype); n++) sum[r][n] = vset(0.0f);
    int32_t d = 0, byte = 0;
    for (; d + elements <= end; d += elements, byte += step_bytes) {
        if (first == 0 && byte % 64 == 0) direct_prefetch(t->turns, &ahead, direct_keys(dtype));
        direct_score_step(t, dtype, keys, d, end, 1, sum, first, rows);
    }
    if (d < end) {
        if (first == 0 && byte % 64 == 0) direct_prefetch(t->turns, &ahead, direct_keys(dtype));
        direct_score_step(t, dtype, keys, d, end, 0, sum, first, rows);
    }
    t->turns->ahead = ahead;
    if (direct_rotated(dtype, rows)) {
        direct_store_scores(t, dtype, key, first, sum);
        return;
    }
    float *out = t->folds + (size_t)first * FOLDS * VL + key % VL / direct_keys(dtype) * VL;
    UNROLL
    for (int r = 0; r < rows; r++)
        vstore(out + (size_t)r * FOLDS * VL, vfold_all(sum[r], 1, direct_keys(dtype)));
}

/* Completes the scores of the VL keys from `key` on, of the group's rows. */
INLINE void direct_complete(const task *t, const uint32_t dtype, int32_t key, int32_t first,
                            const int rows) {
    for (int r = 0; r < rows; r++) {
        vf sum[FOLDS];
        for (int i = 0; i < VL / direct_keys(dtype); i++)
            sum[i] = vload(t->folds + ((size_t)(first + r) * FOLDS + (size_t)i) * VL);
        vf scores = vfold_all(sum, direct_keys(dtype), VL / direct_keys(dtype));
        if (dtype >= TESS_F8E4M3) scores *= vload_any(t->located->k_scale + key);
        vstore(t->m.s + (size_t)(first + r) * CHUNK + key, scores);
    }
}

/* Scores of the next few keys against the group's rows. */
INLINE void direct_scores(const task *t, const uint32_t dtype, int32_t key, int32_t first,
                          const int rows) {
    const int32_t next = key + direct_keys(dtype);
    direct_sums(t, dtype, key, first, rows);
    if (!direct_rotated(dtype, rows) && next % VL == 0)
        direct_complete(t, dtype, next - VL, first, rows);
}

/* ------------------------------------------------------------------ values */

/* Keys whose rows of V are multiplied at once: dot products take two. */
enum { VALUE_KEYS = DIRECT_PAIRS ? 2 : 1 };

/* Loads `vectors` vectors of V from element d on. */
INLINE void load_span(const task *t, const uint32_t dtype, const char *const *rows, int32_t d,
                      const int vectors, const int whole, vf *out) {
    const int32_t n = t->head_dim;
    UNROLL
    for (int j = 0; j < vectors; j += step_outputs(dtype)) {
        const int32_t i = d + j * VL;
#if DIRECT_PAIRS
        vf even, odd;
        if (dtype >= TESS_F8E4M3) {
            direct_pair_codes(t->turns, dtype, rows, i, n, whole, out + j);
            continue;
        }
        load_step(dtype, rows[0], i, n, whole, &even);
        load_step(dtype, rows[1], i, n, whole, &odd);
        out[j] = (vf)_mm512_unpacklo_epi16((__m512i)even, (__m512i)odd);
        out[j + 1] = (vf)_mm512_unpackhi_epi16((__m512i)even, (__m512i)odd);
#else
        load_step(dtype, rows[0], i, n, whole, out + j);
#endif
    }
}

/* Stores P of row r for VL keys from `key` on; pairs become one word. */
INLINE void store_weights(const task *t, const uint32_t dtype, int32_t r, int32_t key, vf p) {
    float *s = t->m.s + (size_t)r * CHUNK;
    (void)dtype;
#if DIRECT_PAIRS
    *(__m256bh *)(void *)(s + key / 2) = _mm512_cvtneps_pbh((__m512)p);
#else
    vstore(s + key, p);
#endif
}

/* P of VALUE_KEYS keys, in all lanes. */
INLINE vf direct_weight(const float *s, int32_t key) {
    return vset(s[DIRECT_PAIRS ? key / 2 : key]);
}

/* Adds `count` keys from `begin` on to `vectors` vectors of O from element d on, for the group's
 * rows from row `first` on. */
INLINE void direct_value_span(const task *t, const uint32_t dtype, int32_t begin, int32_t count,
                              int32_t d, const int vectors, const int whole, int32_t first,
                              const int rows) {
    const job_memory *m = &t->m;
    const char *const *values = t->located->v;
    const int32_t size = cpu_element_size(dtype), lines = vectors * VL * VALUE_KEYS * size / 64;
    const int prefetch = first == 0 && d * size % 64 == 0;
    float *o = m->o + (size_t)first * (size_t)m->o_elements + d;
    const float *s = m->s + (size_t)first * CHUNK;
    direct_ahead ahead = t->turns->ahead;
    vf acc[DIRECT_ROWS][4];
    UNROLL
    for (int r = 0; r < rows; r++) UNROLL
    for (int j = 0; j < vectors; j++) acc[r][j] = vload(o + (size_t)r * m->o_elements + j * VL);
    for (int32_t key = begin; key < begin + count; key += VALUE_KEYS) {
        vf v[4];
        if (prefetch) direct_prefetch(t->turns, &ahead, lines > 0 ? lines : 1);
        load_span(t, dtype, values + key, d, vectors, whole, v);
        UNROLL
        for (int j = 0; j < vectors; j++) VKEEP(v[j]);
        UNROLL
        for (int r = 0; r < rows; r++) {
            vf p = direct_weight(s + (size_t)r * CHUNK, key);
            VKEEP(p);
            UNROLL
            for (int j = 0; j < vectors; j++) {
                acc[r][j] = direct_dot(acc[r][j], v[j], p);
                VKEEP(acc[r][j]);
            }
        }
    }
    t->turns->ahead = ahead;
    UNROLL
    for (int r = 0; r < rows; r++) UNROLL
    for (int j = 0; j < vectors; j++) vstore(o + (size_t)r * m->o_elements + j * VL, acc[r][j]);
}

/* O of the group's rows += P V over `count` keys from `begin` on. */
INLINE void direct_values(const task *t, const uint32_t dtype, int32_t begin, int32_t count,
                          int32_t first, const int rows) {
    const int32_t step = step_elements(dtype), end = t->head_dim;
    const int of_step = step_outputs(dtype), span = of_step > DIRECT_SPAN ? of_step : DIRECT_SPAN;
    int32_t d = 0;
    for (; d + span * VL <= end; d += span * VL)
        direct_value_span(t, dtype, begin, count, d, span, 1, first, rows);
    if (span > of_step)
        for (; d + step <= end; d += step)
            direct_value_span(t, dtype, begin, count, d, of_step, 1, first, rows);
    if (d < end) direct_value_span(t, dtype, begin, count, d, of_step, 0, first, rows);
}

/* Keys of V that a task adds before the next task takes its turn: 4 KiB, for which O is loaded and
 * stored once. */
static int32_t direct_value_keys(uint32_t dtype, int32_t row_bytes) {
    const int32_t keys = 4096 / row_bytes / 4 * 4;
    (void)dtype;
    return keys < 4 ? 4 : keys > 32 ? 32 : keys;
}

/* Floats of Q of a task. */
INLINE size_t query_floats(const task *t) { return (size_t)DIRECT_ROWS * t->m.o_elements; }

/* Prefetches so that the lead is AHEAD_BYTES before the chunk whose rows are listed from `begin`
 * on. The products keep the lead, a line for each that they take, except where padding is listed or
 * tasks end. */
static void direct_catch_up(direct_turns *turns, direct_mark begin, int32_t row_bytes) {
    /* rows that one round of all tasks takes */
    const uint32_t apart = (uint32_t)(turns->n * turns->value_keys),
                   ahead = AHEAD_BYTES / (uint32_t)row_bytes;
    uint32_t end = begin.rows + (ahead > apart ? ahead : apart);
    if ((int32_t)(end - turns->listed) > 0) end = turns->listed;
    while ((int32_t)(end - turns->ahead.next) > 0) direct_prefetch(turns, &turns->ahead, 1);
}
