/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two products of a few rows on tiles. Rows of K are the left operand of the first product.
 * They already have the layout of a tile in memory, so they are loaded from there, 16 keys and 64
 * bytes at a time. The columns of its right operand are rows of Q. In the second product P is the
 * left operand and V, also straight from memory, the right one. A word of V has two elements of one
 * key, so a row of Q has two rows of P, for even and for odd elements. Rows of codes are
 * interleaved first, two keys as bf16 or four as bytes.
 *
 * int8 codes are multiplied as bytes. The other operand is then an integer, too: 22 bits and a sign
 * for Q, 30 bits for P, cut into digits of 8 bits with rows or columns of their own. Each row of Q
 * has a unit, and each row of P one for each chunk: keys that a row does not keep must not cost it
 * bits. Sums of products of digits are exact.
 */

#define DIRECT_PAIRS 1

enum {
    TILE_GROUP = 16,            /* rows of a tile */
    TURN_KEYS = 2 * TILE_GROUP, /* keys whose scores are summed together */
    VALUE_TILES = 2,            /* tiles of weights whose keys are added to O together */
    AHEAD_LINES = 576,          /* prefetched ahead of the products */
    NEAR_LINES = 256,           /* the same for int8, into the first level */
    DIGITS = 3,
    /* bits below the leading one of a row's largest number */
    QUERY_BITS = 21,
    WEIGHT_BITS = 29,
};
/* Floats of P of TILE_GROUP keys, each paired with a zero, and of all P of a job. A tile has eight
 * rows of pairs. More rows have two tiles for the same keys, HALF_FLOATS apart. A tile always reads
 * 16 rows: those past its own belong to the next keys. */
#define HALF_ROWS          8
#define PAIR_FLOATS(lanes) (2 * ((lanes) < HALF_ROWS ? (lanes) : HALF_ROWS) * 16)
#define HALF_FLOATS        (CHUNK / TILE_GROUP * TILE_WORDS)
#define WEIGHT_FLOATS(lanes) \
    ((lanes) > HALF_ROWS     \
         ? 2 * HALF_FLOATS   \
         : CHUNK / TILE_GROUP * PAIR_FLOATS(lanes) + TILE_WORDS - PAIR_FLOATS(lanes))

INLINE int is_codes(const uint32_t dtype) { return dtype >= TESS_F8E4M3; }

/* Elements of a row of V that are interleaved at once, and keys of a tile of P. */
INLINE int32_t step_elements(const uint32_t dtype) { return is_codes(dtype) ? 64 : 32; }
INLINE int32_t tile_keys(const uint32_t dtype) { return dtype == TESS_I8 ? 64 : 32; }

/* Tiles of a row of Q: 32 bf16 or 64 digits each. */
INLINE int32_t query_tiles(const uint32_t dtype, int32_t head_dim) {
    return round_up(head_dim, step_elements(dtype)) / (dtype == TESS_I8 ? 64 : 32);
}

/* Memory that the tasks of a thread share: tiles of V, of K and of results. */
INLINE float *value_stage(const task *t) { return t->m.v; }
INLINE float *key_stage(const task *t) { return t->m.v + 32 * round_up(t->head_dim, 64); }
INLINE float *results(const task *t) { return key_stage(t) + 4 * TILE_WORDS; }

/* The place of element d in a row of K (of_o: of O), in the products' order. */
static int32_t direct_place_of(uint32_t dtype, int32_t d, int of_o) {
    const int32_t elements = step_elements(dtype), in = d % elements, block = d - in;
    if (of_o && !is_codes(dtype)) return block + in % 2 * 16 + in / 2;
    if (VL != 16 || (!of_o && dtype != TESS_F8E4M3)) return d;
    /* Interleaving stays within quarters of a vector. */
    const int32_t quarter = in / 16, of = in % 16;
    return of_o ? block + of / 4 * VL + quarter * 4 + of % 4
                : block + of / 8 * 2 * VL + quarter * 8 + of % 8;
}

#include "direct_codes.inl"

/* Keys whose scores are summed together, and keys of V that a task adds before the next task takes
 * its turn. */
INLINE int direct_keys(const uint32_t dtype) {
    (void)dtype;
    return TURN_KEYS;
}
INLINE int32_t direct_value_keys(uint32_t dtype, int32_t row_bytes) {
    (void)row_bytes;
    return dtype == TESS_BF16 ? TURN_KEYS : VALUE_TILES * tile_keys(dtype);
}

/* Floats of Q of a task. */
INLINE size_t query_floats(const task *t) {
    return (size_t)query_tiles(t->launch->kv_dtype, t->head_dim) * TILE_WORDS;
}

/* Marks the groups that lie inside a run. */
INLINE void mark_in_step(direct_rows *rows, int32_t at, int32_t count) {
    for (int32_t n = (at + TILE_GROUP - 1) / TILE_GROUP; (n + 1) * TILE_GROUP <= at + count; n++)
        rows->in_step |= 1u << n;
}

/* ------------------------------------------------------------------ loads */

/* Prefetches `lines` lines, up to four. int8 takes longer to multiply than to read: it is loaded
 * from the first level then, which takes less than from the second. */
INLINE void prefetch_lines(const char *line, const int lines, int near) {
    UNROLL
    for (int n = 0; n < lines; n++) {
        if (near)
            __builtin_prefetch(line + 64 * n, 0, 3);
        else
            __builtin_prefetch(line + 64 * n, 0, 2);
    }
}

/* Prefetches the next `count` lines of what is listed, or up to three more. */
INLINE void direct_prefetch(direct_turns *turns, int32_t count) {
    direct_ahead *ahead = &turns->ahead;
    const char *line = ahead->line;
    int32_t lines = ahead->lines, done = 0;
    while (done < count) {
        if (lines == 0) {
            if (ahead->rows == 0) {
                if (ahead->next == turns->listed) break;
                const direct_segment *s = &turns->segment[ahead->next++ % LISTED_SEGMENTS];
                ahead->row = s->row;
                ahead->stride = s->stride;
                ahead->rows = s->rows;
                ahead->row_lines = s->lines;
            }
            line = ahead->row;
            lines = ahead->row_lines;
            if (--ahead->rows > 0) ahead->row += ahead->stride;
        }
        const int at_once = lines % 4 == 0 ? 4 : 1;
        if (at_once == 4)
            prefetch_lines(line, 4, turns->near);
        else
            prefetch_lines(line, 1, turns->near);
        line += 64 * at_once;
        lines -= at_once;
        done += at_once;
    }
    ahead->line = line;
    ahead->lines = lines;
    ahead->done += (uint32_t)done;
}

/* Lists rows of a run. If they continue the last segment, which has rows of the kv head before,
 * they join it. */
INLINE void list_segment(direct_turns *turns, uint32_t first, const char *row, int64_t stride,
                         int32_t rows) {
    direct_segment *s = &turns->segment[(turns->listed - 1) % LISTED_SEGMENTS];
    /* too many segments: these rows are not prefetched */
    if (turns->listed - turns->ahead.next >= LISTED_SEGMENTS) return;
    turns->listed_lines += (uint32_t)(rows * turns->row_lines);
    if (turns->listed != first && s->stride == stride && s->rows == rows &&
        s->row + 64 * (int64_t)s->lines == row) {
        s->lines += turns->row_lines;
        return;
    }
    turns->segment[turns->listed++ % LISTED_SEGMENTS] =
        (direct_segment){row, stride, rows, turns->row_lines};
}

/* Lists the rows of the next chunks in about the order in which they are read, which is about that
 * of memory: some keys of all tasks, then the next keys. */
static void direct_list(direct_turns *turns) {
    for (int side = 0; side < 2; side++)
        for (int32_t key = 0; key < CHUNK; key += TURN_KEYS) {
            const uint32_t first = turns->listed;
            for (int32_t n = 0; n < turns->n; n++) {
                const task *t = turns->task[n];
                if (!t->more) continue;
                const cpu_chunk *chunk = &t->chunks[t->turn ^ 1];
                const int64_t stride = side ? t->v_stride : t->k_stride;
                for (int32_t i = 0; i < chunk->n_runs; i++) {
                    const cpu_run *run = &chunk->run[i];
                    const int32_t from = run->at > key ? run->at : key, end = run->at + run->count,
                                  to = end < key + TURN_KEYS ? end : key + TURN_KEYS;
                    if (run->at >= key + TURN_KEYS) break;
                    if (from < to)
                        list_segment(turns, first,
                                     (side ? run->v : run->k) + (from - run->at) * stride, stride,
                                     to - from);
                }
            }
        }
}

#if VL == 16
/* Loads 64 bytes of a row of `bytes`, from byte `at` on. Bytes past its end are 0 and not read. */
INLINE __m512i load_part(const char *row, int32_t at, int32_t bytes) {
    if (at + 64 <= bytes) return _mm512_loadu_si512(row + at);
    return _mm512_maskz_loadu_epi8(((__mmask64)1 << (bytes - at)) - 1, row + at);
}
#else
INLINE void load_part(const char *row, int32_t at, int32_t bytes, void *out) {
    memset(out, 0, 64);
    memcpy(out, row + at, (size_t)(at + 64 <= bytes ? 64 : bytes - at));
}
#endif

/* 64 bytes of each row of K or V of 16 keys from `key` on: in place if they are equally far apart
 * and whole, else as a copy. */
INLINE const void *row_tile(const task *t, const char *const *rows, int64_t row_stride, int32_t key,
                            int32_t at, float *copy, size_t *stride) {
    const int32_t bytes = t->head_dim * (int32_t)t->kv_esize;
    rows += key;
    if (at + 64 <= bytes && (t->located->in_step >> (key / TILE_GROUP) & 1)) {
        *stride = (size_t)row_stride;
        return rows[0] + at;
    }
    for (int i = 0; i < TILE_GROUP; i++) {
#if VL == 16
        _mm512_store_si512(copy + (size_t)i * 16, load_part(rows[i], at, bytes));
#else
        load_part(rows[i], at, bytes, copy + (size_t)i * 16);
#endif
    }
    *stride = 64;
    return copy;
}

/* The bf16 numbers of 64 codes of E4M3 of 16 rows of K, as two tiles. */
INLINE void key_codes(const task *t, int32_t key, int32_t at, float *out) {
    const char *const *rows = t->located->k + key;
    for (int i = 0; i < TILE_GROUP; i++) {
        float *first = out + (size_t)i * 16;
#if VL == 16
        vf words[2];
        direct_words_of(t->turns, TESS_F8E4M3, load_part(rows[i], at, t->head_dim), words);
        vstore(first, words[0]);
        vstore(first + TILE_WORDS, words[1]);
#else
        uint8_t codes[64];
        load_part(rows[i], at, t->head_dim, codes);
        for (int32_t d = 0; d < 64; d++)
            ((uint16_t *)(void *)(first + d / 32 * TILE_WORDS))[d % 32] =
                direct_word_of(t->turns, codes[d]);
#endif
    }
}

/* The row of a tile of V for word n of its keys, which matches the place of P's digits. */
INLINE int32_t value_row(const uint32_t dtype, int32_t n) {
    return VL == 16 && dtype == TESS_I8 ? n % 4 * 4 + n / 4 : n;
}

/* Interleaves a step of V of the two or four keys that share a word. The result is row `out` of
 * consecutive tiles. `whole`: the rows do not end within the step. */
INLINE void value_words(const task *t, const uint32_t dtype, const char *const *rows, int32_t d,
                        const int whole, float *out) {
    const int32_t at = d * cpu_element_size(dtype),
                  bytes = whole ? at + 64 : t->head_dim * cpu_element_size(dtype);
    const int n_tiles = step_elements(dtype) / 16;
#if VL == 16
    vf words[4];
    const __m512i a = load_part(rows[0], at, bytes), b = load_part(rows[1], at, bytes);
    if (dtype == TESS_BF16) {
        const vu low = (vu)viset(0xffff), even = (vu)a, odd = (vu)b;
        words[0] = (vf)((even & low) | odd << 16);
        words[1] = (vf)(even >> 16 | (odd & ~low));
    } else if (dtype == TESS_F8E4M3) {
        direct_words_of(t->turns, dtype, _mm512_unpacklo_epi8(a, b), words);
        direct_words_of(t->turns, dtype, _mm512_unpackhi_epi8(a, b), words + 2);
    } else {
        const __m512i x = load_part(rows[2], at, bytes), y = load_part(rows[3], at, bytes),
                      ab = _mm512_unpacklo_epi8(a, b), ab_high = _mm512_unpackhi_epi8(a, b),
                      xy = _mm512_unpacklo_epi8(x, y), xy_high = _mm512_unpackhi_epi8(x, y);
        words[0] = (vf)_mm512_unpacklo_epi16(ab, xy);
        words[1] = (vf)_mm512_unpackhi_epi16(ab, xy);
        words[2] = (vf)_mm512_unpacklo_epi16(ab_high, xy_high);
        words[3] = (vf)_mm512_unpackhi_epi16(ab_high, xy_high);
    }
    for (int i = 0; i < n_tiles; i++) vstore(out + (size_t)i * TILE_WORDS, words[i]);
#else
    uint8_t part[4][64];
    for (int n = 0; n < (dtype == TESS_I8 ? 4 : 2); n++) load_part(rows[n], at, bytes, part[n]);
    for (int i = 0; i < 16 * n_tiles; i++) {
        uint16_t pair[2];
        void *word = out + (size_t)(i / 16) * TILE_WORDS + i % 16;
        if (dtype == TESS_I8) {
            for (int n = 0; n < 4; n++) ((uint8_t *)word)[n] = part[n][i];
            continue;
        }
        for (int n = 0; n < 2; n++) {
            memcpy(&pair[n], part[n] + (size_t)(4 * (i % 16) + 2 * (i / 16)) % 64, 2);
            if (dtype == TESS_F8E4M3) pair[n] = direct_word_of(t->turns, part[n][i]);
        }
        memcpy(word, pair, sizeof pair);
    }
#endif
}

/* Interleaves a step of V of the keys of a tile from `first` on. */
INLINE void stage_values(const task *t, const uint32_t dtype, int32_t first, int32_t d,
                         const int whole, float *out) {
    enum { AT_ONCE = 4 }; /* words whose keys are interleaved between two prefetches */
    const int32_t of_word = tile_keys(dtype) / 16, lines = AT_ONCE * of_word;
    const char *const *rows = t->located->v + first;
    for (int32_t word = 0; word < 16; word += AT_ONCE) {
        UNROLL
        for (int32_t n = 0; n < AT_ONCE; n++, rows += of_word)
            value_words(t, dtype, rows, d, whole, out + value_row(dtype, word + n) * 16);
        direct_prefetch(t->turns, lines);
    }
}

/* Prefetches ahead of the chunk whose lines are listed from `begin` on. With a longer lead,
 * products wait when a job begins. */
static void direct_catch_up(direct_turns *turns, direct_mark begin, int32_t row_bytes) {
    const uint32_t ahead = turns->near ? NEAR_LINES : AHEAD_LINES;
    const int32_t count = (int32_t)(begin.lines + ahead - turns->ahead.done);
    (void)row_bytes;
    if (count > 0) direct_prefetch(turns, count);
}

/* ------------------------------------------------------------------ digits */

/* The unit in which numbers up to the one with these bits have at most 1 + `bits` bits, and its
 * inverse. The unit is NaN if that number is not finite, so that products with it are NaN. */
INLINE float digits_unit(uint32_t largest, const int32_t bits, float *inverse) {
    int32_t exponent = (int32_t)(largest >> 23);
    float unit;
    if (exponent <= bits) exponent = bits + 1;
    const uint32_t unit_bits = exponent == 255 ? 0x7fc00000u : (uint32_t)(exponent - bits) << 23,
                   inverse_bits = (uint32_t)(254 + bits - exponent) << 23;
    memcpy(&unit, &unit_bits, sizeof unit);
    memcpy(inverse, &inverse_bits, sizeof *inverse);
    return unit;
}

/* The largest |P| of a row, as bits. */
INLINE uint32_t largest_weight(const float *s) {
#if VL == 16
    vi largest = viset(0);
    for (int32_t key = 0; key < CHUNK; key += VL)
        largest = (vi)_mm512_max_epi32((__m512i)largest,
                                       (__m512i)((vi)vload(s + key) & viset(0x7fffffff)));
    return (uint32_t)_mm512_reduce_max_epi32((__m512i)largest);
#else
    uint32_t largest = 0;
    for (int32_t key = 0; key < CHUNK; key++) {
        uint32_t size;
        memcpy(&size, s + key, sizeof size);
        size &= 0x7fffffffu;
        if (size > largest) largest = size;
    }
    return largest;
#endif
}

/* The four digits of each of these numbers, as bytes: the lowest one first. */
INLINE vi digits_of(vf x) {
    const vi carry = viset(0x808080);
#if VL == 16
    return (vi)((vi)_mm512_cvtps_epi32((__m512)x) + carry) ^ carry;
#else
    vi n;
    for (int i = 0; i < VL; i++) n[i] = x[i] == x[i] ? (int32_t)lrintf(x[i]) : 0;
    return (n + carry) ^ carry;
#endif
}

/* Turns P of row r, which lies in the place of its scores, into digits in the rows of the tiles. */
INLINE void finish_weights(const task *t, const uint32_t dtype, int32_t r) {
    direct_prefetch(t->turns, CHUNK / 4 / direct_lanes(t) * t->turns->row_lines);
    const float *s = t->m.s + (size_t)r * CHUNK;
    float inverse;
    if (dtype != TESS_I8) return;
    t->weight_unit[r] = digits_unit(largest_weight(s), WEIGHT_BITS, &inverse);
    for (int32_t key = 0; key < CHUNK; key += 64) {
        int8_t *out = (int8_t *)(void *)(t->weights + key / 64 * TILE_WORDS + r * 16);
#if VL == 16
        const __m512i planes = _mm512_broadcast_i32x4(
            _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
        __m512i x[4];
        UNROLL
        for (int j = 0; j < 4; j++)
            x[j] =
                _mm512_shuffle_epi8((__m512i)digits_of(vload(s + key + j * 16) * inverse), planes);
        const __m512i a = _mm512_unpacklo_epi32(x[0], x[1]), b = _mm512_unpackhi_epi32(x[0], x[1]),
                      c = _mm512_unpacklo_epi32(x[2], x[3]), d = _mm512_unpackhi_epi32(x[2], x[3]);
        _mm512_store_si512(out, _mm512_unpacklo_epi64(a, c));
        _mm512_store_si512(out + 256, _mm512_unpackhi_epi64(a, c));
        _mm512_store_si512(out + 512, _mm512_unpacklo_epi64(b, d));
        _mm512_store_si512(out + 768, _mm512_unpackhi_epi64(b, d));
#else
        for (int32_t i = 0; i < 64; i += VL) {
            const vi digits = digits_of(vload(s + key + i) * inverse);
            for (int32_t e = 0; e < VL; e++)
                for (int n = 0; n < 4; n++)
                    out[n * 256 + i + e] = (int8_t)((uint32_t)digits[e] >> 8 * n & 0xff);
        }
#endif
    }
}

/* Row r of Q as a column of its tiles, or one for each digit, with the sign of the scale. */
static void direct_query(const task *t, int32_t r) {
    const uint32_t dtype = t->launch->kv_dtype;
    const tess_tensor *q = &t->launch->tensor[TESS_ROLE_Q];
    const char *row = tensor_base(q) + row_offset(t, q, r) * t->esize;
    const uint32_t sign = t->launch->scale >= 0 ? 0 : 0x80008000u;
    uint32_t words[128] = {0}, *out = (uint32_t *)(void *)t->m.q + r, largest = 0;
    memcpy(words, row, (size_t)t->head_dim * 2);
    if (dtype == TESS_BF16) {
        for (int32_t w = 0; w < t->head_dim / 2; w++) out[w * 16] = words[w] ^ sign;
        return;
    }
    for (int32_t w = 0; w < t->head_dim / 2; w++) {
        const uint32_t low = words[w] & 0x7fffu, high = words[w] >> 16 & 0x7fffu;
        words[w] ^= sign;
        if (dtype != TESS_I8) out[direct_place_of(dtype, 2 * w, 0) / 2 * 16] = words[w];
        if (low > largest) largest = low;
        if (high > largest) largest = high;
    }
    if (dtype != TESS_I8) return;
    float inverse;
    t->q_unit[r] = digits_unit(largest << 16, QUERY_BITS, &inverse);
    for (int32_t d = 0; d < t->head_dim; d += VL, out += 4 * VL) {
        const vi digits = digits_of(vfrom_bf16((const uint16_t *)words + d) * inverse);
        for (int32_t i = 0; i < VL / 4; i++)
            for (int32_t n = 0; n < DIGITS; n++) {
                uint32_t word = 0;
                for (int32_t e = 0; e < 4; e++)
                    word |= ((uint32_t)digits[4 * i + e] >> 8 * n & 0xff) << 8 * e;
                out[i * 16 + n * DIRECT_ROWS] = word;
            }
    }
}

/* Prepares Q of a task. Unused rows and columns are zero. */
static void direct_queries(const task *t) {
    memset(t->m.q, 0, query_floats(t) * sizeof(float));
    memset(t->weights, 0,
           ((size_t)WEIGHT_FLOATS(direct_lanes(t)) + 2 * DIRECT_ROWS) * sizeof(float));
    for (int32_t r = 0; r < t->rows; r++) direct_query(t, r);
}

/* ------------------------------------------------------------------ scores */

/* Stores the scores of 16 keys from `key` on, which are rows of `c`, for the rows of Q from `first`
 * on. */
INLINE void store_scores(const task *t, const uint32_t dtype, int32_t key, int32_t first,
                         const float *c) {
    float *s = t->m.s + (size_t)first * CHUNK + key;
    c += first;
#if VL == 16
#define QUARTERS(at)                                                                              \
    _mm512_inserti32x4(_mm512_inserti32x4(_mm512_inserti32x4(_mm512_castsi128_si512(QUARTER(at)), \
                                                             QUARTER((at) + 64), 1),              \
                                          QUARTER((at) + 128), 2),                                \
                       QUARTER((at) + 192), 3)
#define QUARTER(at) _mm_load_si128((const __m128i *)(const void *)(at))
    __m512 x[4];
    for (int j = 0; j < 4; j++) {
        const float *at = c + j * 16;
        if (dtype == TESS_I8) {
            const vf low = (vf)_mm512_cvtepi32_ps(QUARTERS(at)),
                     middle = (vf)_mm512_cvtepi32_ps(QUARTERS(at + DIRECT_ROWS)),
                     high = (vf)_mm512_cvtepi32_ps(QUARTERS(at + 2 * DIRECT_ROWS));
            x[j] = (__m512)(low + middle * vset(0x1p8f) + high * vset(0x1p16f)) *
                   _mm512_broadcast_f32x4(_mm_loadu_ps(t->q_unit));
        } else
            x[j] = (__m512)QUARTERS(at);
    }
#undef QUARTER
#undef QUARTERS
    const __m512d a = (__m512d)_mm512_unpacklo_ps(x[0], x[1]),
                  b = (__m512d)_mm512_unpackhi_ps(x[0], x[1]),
                  e = (__m512d)_mm512_unpacklo_ps(x[2], x[3]),
                  f = (__m512d)_mm512_unpackhi_ps(x[2], x[3]);
    vf row[4] = {(vf)_mm512_unpacklo_pd(a, e), (vf)_mm512_unpackhi_pd(a, e),
                 (vf)_mm512_unpacklo_pd(b, f), (vf)_mm512_unpackhi_pd(b, f)};
    const vf scale = is_codes(dtype) ? vload_any(t->located->k_scale + key) : vset(1.0f);
    for (int r = 0; r < DIRECT_ROWS; r++)
        vstore(s + (size_t)r * CHUNK, is_codes(dtype) ? row[r] * scale : row[r]);
#else
    for (int i = 0; i < TILE_GROUP; i++)
        for (int r = 0; r < DIRECT_ROWS; r++) {
            float x = c[i * 16 + r];
            if (dtype == TESS_I8) {
                int32_t digit[DIGITS];
                for (int n = 0; n < DIGITS; n++)
                    memcpy(&digit[n], c + i * 16 + n * DIRECT_ROWS + r, sizeof digit[n]);
                x = (float)(digit[0] + 256 * (double)digit[1] + 65536 * (double)digit[2]) *
                    t->q_unit[r];
            }
            s[r * CHUNK + i] = is_codes(dtype) ? x * t->located->k_scale[key + i] : x;
        }
#endif
}

/* Stores the scores of the turn before. Those of this turn would stall: a load has to wait for what
 * a tile has just stored. */
INLINE void direct_scores_end(direct_turns *turns, const uint32_t dtype) {
    const task *t = turns->pending;
    const int32_t key = turns->pending_key;
    if (!t) return;
    const float *c = results(t) + turns->pending_c * TILE_WORDS;
    for (int32_t first = 0; first < direct_lanes(t); first += DIRECT_ROWS) {
        store_scores(t, dtype, key, first, c);
        store_scores(t, dtype, key + TILE_GROUP, first, c + TILE_WORDS);
    }
    turns->pending = NULL;
}

/* Scores of TURN_KEYS keys against all rows. */
INLINE void direct_scores(const task *t, const uint32_t dtype, int32_t key, int32_t first,
                          const int rows) {
    TILE_STATE;
    (void)first, (void)rows;
    const int32_t n_tiles = query_tiles(dtype, t->head_dim),
                  lines = TURN_KEYS * 3 / 4 * t->turns->row_lines, ahead = lines / n_tiles;
    const float *q = t->m.q;
    direct_turns *turns = t->turns;
    const int32_t of_c = turns->pending_c ^ 2;
    float *stage = key_stage(t), *c = results(t) + of_c * TILE_WORDS;
    TILE_ZERO(0);
    TILE_ZERO(1);
    for (int32_t n = 0; n < n_tiles; n++, q += TILE_WORDS) {
        size_t low_stride = 64, high_stride = 64;
        const void *low = stage + n % 2 * TILE_WORDS, *high = stage + (2 + n % 2) * TILE_WORDS;
        if (dtype != TESS_F8E4M3) {
            const char *const *keys = t->located->k;
            low = row_tile(t, keys, t->k_stride, key, n * 64, stage, &low_stride);
            high = row_tile(t, keys, t->k_stride, key + TILE_GROUP, n * 64, stage + TILE_WORDS,
                            &high_stride);
        } else if (n % 2 == 0) {
            key_codes(t, key, n * 32, stage);
            key_codes(t, key + TILE_GROUP, n * 32, stage + (size_t)2 * TILE_WORDS);
        }
        TILE_FENCE;
        TILE_LOAD(4, q, 64);
        TILE_LOAD(2, low, low_stride);
        TILE_LOAD(3, high, high_stride);
        if (dtype == TESS_I8) {
            TILE_DOT_CODES(0, 2, 4);
            TILE_DOT_CODES(1, 3, 4);
        } else {
            TILE_DOT(0, 2, 4);
            TILE_DOT(1, 3, 4);
        }
        direct_prefetch(turns, ahead);
    }
    TILE_STORE(0, c, 64);
    TILE_STORE(1, c + TILE_WORDS, 64);
    TILE_FENCE;
    direct_scores_end(turns, dtype);
    turns->pending = t;
    turns->pending_key = key;
    turns->pending_c = of_c;
}

/* ------------------------------------------------------------------ values */

/* Whether words of V hold elements of two keys. Otherwise they are loaded from memory as they
 * are, two elements of one key, and each element of P makes two words, with a zero before or
 * behind it. That takes half of the time. But if an element is not finite, 0 times it makes its
 * neighbour NaN. */
INLINE int in_pairs(const task *t, const uint32_t dtype) {
    return dtype != TESS_BF16 || t->turns->in_pairs;
}

/* Stores P of row r from `key` on: as bf16 in the tiles, or in the place of the scores until the
 * largest one is known. */
INLINE void store_weights(const task *t, const uint32_t dtype, int32_t r, int32_t key, vf p) {
    if (dtype == TESS_I8) {
        vstore(t->m.s + (size_t)r * CHUNK + key, p);
        return;
    }
    uint16_t *out = (uint16_t *)(void *)(t->weights + key / 32 * TILE_WORDS + r * 16) + key % 32;
    float *pairs = t->weights + r / HALF_ROWS * HALF_FLOATS +
                   key / TILE_GROUP * PAIR_FLOATS(direct_lanes(t)) + 2 * (r % HALF_ROWS) * 16 +
                   key % TILE_GROUP;
#if VL == 16
    const __m256bh words = _mm512_cvtneps_pbh((__m512)p);
    if (in_pairs(t, dtype)) {
        *(__m256bh *)(void *)out = words;
        return;
    }
    const vu low = (vu)_mm512_cvtepu16_epi32((__m256i)words);
#else
    uint16_t words[VL];
    vu low = {0};
    vto_bf16(words, p);
    for (int i = 0; i < VL; i++) low[i] = words[i];
    if (in_pairs(t, dtype)) {
        memcpy(out, words, sizeof words);
        return;
    }
#endif
    vstore(pairs, (vf)low);
    vstore(pairs + 16, (vf)(low << 16));
}

/* Adds a tile of results to 16 elements of O from place d on. */
INLINE void add_results(const task *t, const uint32_t dtype, const float *c, int32_t d) {
    for (int r = 0; r < direct_lanes(t); r++)
        for (int i = 0; i < 16; i += VL) {
            float *o = t->m.o + (size_t)r * t->m.o_elements + d + i;
            vf sum = vload(c + r * 16 + i);
            if (dtype == TESS_I8) {
                const float *at = c + r * 16 + i;
                const vi low = (vi)vload(at) + ((vi)vload(at + 64) << 8),
                         high = (vi)vload(at + 128) + ((vi)vload(at + 192) << 8);
                sum = (__builtin_convertvector(low, vf) +
                       __builtin_convertvector(high, vf) * vset(0x1p16f)) *
                      t->weight_unit[r];
            }
            vstore(o, vload(o) + sum);
        }
}

/* Adds tiles n and n + 1 of results, which lie in one half of `c` or the other in turn. */
INLINE void add_two(const task *t, const uint32_t dtype, const float *c, int32_t n) {
    add_results(t, dtype, c + n % 4 * TILE_WORDS, n * 16);
    add_results(t, dtype, c + (n % 4 + 1) * TILE_WORDS, n * 16 + 16);
}

/* O of all rows += P V over the keys from `first` on, at most VALUE_TILES tiles of them. Rows past
 * the last key are zero. */
INLINE void values_in_pairs(const task *t, const uint32_t dtype, int32_t first, int32_t count) {
    TILE_STATE;
    const int32_t elements = step_elements(dtype), of_tile = tile_keys(dtype),
                  step_tiles = elements / 16, out_tiles = t->m.o_elements / 16;
    const int both = count > of_tile;
    float *stage = value_stage(t), *c = results(t);
    const float *weights = t->weights + (size_t)(first / of_tile) * TILE_WORDS;
    TILE_FENCE;
    TILE_LOAD(6, weights, 64);
    if (both) TILE_LOAD(7, weights + TILE_WORDS, 64);
#define VALUE_DOT(to, from, by)           \
    do {                                  \
        if (dtype == TESS_I8)             \
            TILE_DOT_CODES(to, by, from); \
        else                              \
            TILE_DOT(to, by, from);       \
    } while (0)
    for (int32_t n = 0; n < out_tiles; n += 2) {
        const int32_t d = n * 16, whole = d + elements <= t->head_dim;
        const float *v = stage + (size_t)(n % step_tiles) * TILE_WORDS;
        for (int i = 0; i < 1 + both && n % step_tiles == 0; i++) {
            float *to = stage + (size_t)(i * step_tiles) * TILE_WORDS;
            if (whole)
                stage_values(t, dtype, first + i * of_tile, d, 1, to);
            else
                stage_values(t, dtype, first + i * of_tile, d, 0, to);
        }
        TILE_FENCE;
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_LOAD(2, v, 64);
        VALUE_DOT(0, 2, 6);
        TILE_LOAD(3, v + TILE_WORDS, 64);
        VALUE_DOT(1, 3, 6);
        if (both) {
            v += (size_t)step_tiles * TILE_WORDS;
            TILE_LOAD(4, v, 64);
            VALUE_DOT(0, 4, 7);
            TILE_LOAD(5, v + TILE_WORDS, 64);
            VALUE_DOT(1, 5, 7);
        }
        float *out = c + n % 4 * TILE_WORDS;
        TILE_STORE(0, out, 64);
        TILE_STORE(1, out + TILE_WORDS, 64);
        TILE_FENCE;
        if (n > 0) add_two(t, dtype, c, n - 2);
    }
    add_two(t, dtype, c, out_tiles - 2);
#undef VALUE_DOT
}

/* The same with rows of V in place, for the rows of Q from `row` on that a tile has. It takes four
 * vectors of V at a time, whose results stay in tiles. The first rows of Q read V from memory. */
INLINE void values_in_place(const task *t, int32_t first, int32_t count, int32_t row) {
    TILE_STATE;
    const int32_t vectors = t->m.o_elements / 32, lanes = direct_lanes(t),
                  own = lanes - row < HALF_ROWS ? lanes - row : HALF_ROWS,
                  ahead = row == 0 ? TILE_GROUP * t->turns->row_lines / vectors : 0;
    const float *weights = t->weights + row / HALF_ROWS * HALF_FLOATS;
    float *copy = key_stage(t), *c = results(t);
#define VALUE_STEP(i, by)                                                             \
    if (i < n) {                                                                      \
        size_t stride;                                                                \
        const void *v = row_tile(t, t->located->v, t->v_stride, key, (at + (i)) * 64, \
                                 copy + (i)*TILE_WORDS, &stride);                     \
        TILE_FENCE;                                                                   \
        TILE_LOAD(by, v, stride);                                                     \
        TILE_DOT(i, 4, by);                                                           \
        direct_prefetch(t->turns, ahead);                                             \
    }
    for (int32_t at = 0; at < vectors; at += 4) {
        const int32_t n = vectors - at < 4 ? vectors - at : 4;
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
        for (int32_t key = first; key < first + count; key += TILE_GROUP) {
            TILE_LOAD(4, weights + key / TILE_GROUP * PAIR_FLOATS(lanes), 64);
            VALUE_STEP(0, 5)
            VALUE_STEP(1, 6)
            VALUE_STEP(2, 7)
            VALUE_STEP(3, 5)
        }
        TILE_STORE(0, c, 64);
        TILE_STORE(1, c + TILE_WORDS, 64);
        TILE_STORE(2, c + 2 * TILE_WORDS, 64);
        TILE_STORE(3, c + 3 * TILE_WORDS, 64);
        TILE_FENCE;
        for (int32_t i = 0; i < n; i++)
            for (int r = 0; r < 2 * own; r++)
                for (int e = 0; e < 16; e += VL) {
                    float *o = t->m.o + (size_t)(row + r / 2) * t->m.o_elements + (at + i) * 32 +
                               r % 2 * 16 + e;
                    vstore(o, vload(o) + vload(c + i * TILE_WORDS + r * 16 + e));
                }
    }
#undef VALUE_STEP
}

INLINE void direct_values(const task *t, const uint32_t dtype, int32_t begin, int32_t count,
                          int32_t first, const int rows) {
    (void)first, (void)rows;
    if (!in_pairs(t, dtype)) {
        for (int32_t row = 0; row < direct_lanes(t); row += HALF_ROWS)
            values_in_place(t, begin, count, row);
        return;
    }
    const int32_t at_once = VALUE_TILES * tile_keys(dtype);
    for (int32_t n = 0; n < count; n += at_once)
        values_in_pairs(t, dtype, begin + n, count - n < at_once ? count - n : at_once);
}

/* Whether an element of O is not finite. Then an element of V may be the reason, and the job has to
 * be done again in pairs. */
static int direct_spoilt(const task *t) {
    const int32_t n = t->rows * t->m.o_elements;
    vi any = viset(0);
    for (int32_t i = 0; i < n; i += VL)
        any |= (vi)(((vu)vload(t->m.o + i) & 0x7f800000u) == 0x7f800000u);
    return vany(any);
}
