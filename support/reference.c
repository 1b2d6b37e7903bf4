/* SPDX-License-Identifier: Apache-2.0 */
/* Nothing here is shared with the library: the predicate restates docs/patterns.md, and the
 * arithmetic is a plain loop over every key. */
#include "reference.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ------------------------------------------------------------------ the predicate */

static int64_t floor_quotient(int64_t a, int64_t b) { return a / b - (a % b < 0); }

/* How far block distance `d` lies outside the `local` blocks that start at the query's own. */
static int64_t beyond(int64_t d, int64_t local) { return d - local + 1 > 0 ? d - local + 1 : 0; }

static int s2_kept(const problem *p, int64_t head, int64_t i, int64_t j) {
    int64_t h = p->head_ids ? p->head_ids[head] : p->head_first + head, stride = p->stride;
    if (h >= (int64_t)p->heads_total - p->dense_heads) return 1;
    if (!p->causal) return (beyond(i - j, p->local) + beyond(j - i, p->local_right)) % stride == 0;
    if (i - j < p->local) return 1;
    int64_t step = stride / p->heads_total > 1 ? stride / p->heads_total : 1;
    if (p->homo) step = 0;
    int64_t g = p->per_kv_head ? h / (p->heads_total / p->kv_heads_total) : h;
    return (j + g * step + p->offset) % stride == 0;
}

static int window_kept(const problem *p, int64_t position, int64_t key) {
    if (key < p->sinks) return 1;
    /* Differences of positions fit; position - left might not. */
    if (p->left >= 0 && position - key > p->left) return 0;
    int64_t right = p->causal ? 0 : p->right;
    return right < 0 || key - position <= right;
}

static int mask_kept(const problem *p, int32_t head, int64_t i, int64_t j) {
    if (i < 0 || i >= p->mask_query_blocks || j >= p->mask_key_blocks) return 0;
    int64_t plane = p->mask_heads == 1 ? 0 : head;
    return p->mask[(plane * p->mask_query_blocks + i) * p->mask_key_blocks + j] != 0;
}

int reference_kept(const problem *p, int32_t head, int64_t position, int64_t key, int64_t kv_len) {
    if (key < 0 || key >= kv_len) return 0;
    if (p->causal && key > position) return 0;
    switch (p->pattern) {
    case TESS_PATTERN_S2:
        return s2_kept(p, head, floor_quotient(position, p->block), key / p->block);
    case TESS_PATTERN_WINDOW: return window_kept(p, position, key);
    case TESS_PATTERN_BLOCKS:
        return mask_kept(p, head, floor_quotient(position, p->block), key / p->block);
    default: return 1;
    }
}

/* ------------------------------------------------------------------ types */

static uint32_t float_bits(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static float bits_float(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

float half_to_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, magnitude = h & 0x7fff;
    /* infinity, NaN */
    if (magnitude >= 0x7c00) return bits_float(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
    if (magnitude >= 0x0400) return bits_float(sign | ((magnitude << 13) + (112u << 23)));
    float tiny = (float)magnitude * 0x1p-24f; /* subnormal or zero: exact */
    return sign ? -tiny : tiny;
}

uint16_t float_to_half(float f) {
    uint32_t bits = float_bits(f), magnitude = bits & 0x7fffffff;
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    /* NaN stays NaN */
    if (magnitude > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x1ff));
    /* rounds to 65520 or more */
    if (magnitude >= 0x477ff000) return sign | 0x7c00;
    /* below the smallest normal half */
    if (magnitude < 0x38800000) {
        /* Adding 0.5 leaves the wanted 2^-24 steps in the last bits of the sum, rounded to nearest
         * even by the addition itself. */
        return (uint16_t)(sign | (uint16_t)(float_bits(bits_float(magnitude) + 0.5f) - 0x3f000000));
    }
    return (uint16_t)(sign |
                      (uint16_t)((magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13));
}

float bf16_to_float(uint16_t h) { return bits_float((uint32_t)h << 16); }

uint16_t float_to_bf16(float f) {
    uint32_t bits = float_bits(f);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float e4m3_to_float(uint8_t code) {
    const int e = code >> 3 & 15, m = code & 7;
    const float sign = code & 0x80 ? -1.0f : 1.0f;
    if (e == 15 && m == 7) return NAN;
    if (!e) return sign * (float)m * 0x1p-9f;
    return sign * (float)(8 + m) * bits_float((uint32_t)(e - 10 + 127) << 23); /* 2^(e-10) */
}

/* By bisection: codes of positive numbers rise with them. */
uint8_t float_to_e4m3(float f) {
    const uint8_t sign = signbit(f) ? 0x80 : 0;
    uint8_t low = 0, high = 0x7e;
    f = fabsf(f);
    if (f >= 448) return sign | 0x7e;
    while (high - low > 1) {
        const uint8_t middle = (uint8_t)((low + high) / 2);
        if (e4m3_to_float(middle) <= f)
            low = middle;
        else
            high = middle;
    }
    const float down = f - e4m3_to_float(low), up = e4m3_to_float(high) - f;
    return sign | (down < up || (down == up && low % 2 == 0) ? low : high);
}

static float load_float(uint32_t dtype, const void *base, int64_t index) {
    switch (dtype) {
    case TESS_F8E4M3: return e4m3_to_float(((const uint8_t *)base)[index]);
    case TESS_I8: return ((const int8_t *)base)[index];
    case TESS_F16: return half_to_float(((const uint16_t *)base)[index]);
    case TESS_BF16: return bf16_to_float(((const uint16_t *)base)[index]);
    default: return ((const float *)base)[index];
    }
}

double load_element(uint32_t dtype, const void *base, int64_t index) {
    return load_float(dtype, base, index);
}

static float round_to(uint32_t dtype, float f) {
    switch (dtype) {
    case TESS_F16: return half_to_float(float_to_half(f));
    case TESS_BF16: return bf16_to_float(float_to_bf16(f));
    default: return f;
    }
}

/* ------------------------------------------------------------------ one row */

enum { CHUNK = 256 }; /* elements converted at once */

/* half_to_float without branches, so that a compiler makes vectors of it: the tests spend much of
 * their time here. */
static void load_halves(const uint16_t *from, int count, float *out) {
    for (int d = 0; d < count; d++) {
        const uint32_t sign = (uint32_t)(from[d] & 0x8000) << 16, magnitude = from[d] & 0x7fff;
        const uint32_t usual = (magnitude << 13) + (112u << 23);
        const uint32_t special = 0u - (magnitude >= 0x7c00), tiny = 0u - (magnitude < 0x0400);
        const uint32_t small = float_bits((float)(int32_t)magnitude * 0x1p-24f);
        out[d] = bits_float(sign | (usual & ~tiny) | (small & tiny) | (special & 0x7f800000));
    }
}

void load_elements(uint32_t dtype, const void *base, int64_t index, int count, float *out) {
    if (dtype == TESS_F32)
        memcpy(out, (const float *)base + index, (size_t)count * sizeof *out);
    else if (dtype == TESS_F16)
        load_halves((const uint16_t *)base + index, count, out);
    else if (dtype == TESS_BF16)
        for (int d = 0; d < count; d++) out[d] = bf16_to_float(((const uint16_t *)base)[index + d]);
    else
        for (int d = 0; d < count; d++) out[d] = load_float(dtype, base, index + d);
}

/* Where a row of Q and the keys of its kv head lie. */
typedef struct row_view {
    const problem *p;
    const reference_inputs *in;
    int64_t q_at, kv_at, kv_step; /* elements: of the row, of position 0, from key to key */
    int64_t position, kv_len;     /* of the row; where the keys end */
    int64_t first, end;           /* keys that can be kept at all */
    int32_t head;
    float q[CHUNK]; /* the first elements of the row, which every key meets */
} row_view;

static row_view view(const problem *p, const reference_inputs *in, int64_t sequence, int32_t head,
                     int64_t row) {
    int64_t q_token = p->q_lens ? problem_q_start(p, sequence) + row : sequence * p->q_len + row;
    int64_t kv_token = p->kv_lens ? problem_kv_start(p, sequence) : sequence * p->kv_len;
    int64_t kv_head = head / (p->heads / p->kv_heads);
    row_view v = {.p = p, .in = in, .head = head, .first = problem_kv_first(p, sequence)};
    v.q_at = (q_token * p->heads + head) * p->head_dim;
    v.kv_step = (int64_t)p->kv_heads * p->head_dim;
    v.kv_at = (kv_token - v.first) * v.kv_step + kv_head * p->head_dim;
    v.kv_len = v.first + problem_kv_len(p, sequence);
    v.position = problem_q_first(p, sequence) + row;
    v.end = p->causal && v.position + 1 < v.kv_len ? v.position + 1 : v.kv_len;
    load_elements(p->dtype, in->q, v.q_at, p->head_dim < CHUNK ? p->head_dim : CHUNK, v.q);
    return v;
}

/* Elements of the row and of a key from `at` on, and how many there are. The row's are in v->q or,
 * past its end, in `room`. */
static int load_pair(const row_view *v, int64_t key, int32_t at, float *room, const float **q,
                     float *k) {
    const int n = v->p->head_dim - at < CHUNK ? v->p->head_dim - at : CHUNK;
    if (at > 0) load_elements(v->p->dtype, v->in->q, v->q_at + at, n, room);
    *q = at > 0 ? room : v->q;
    load_elements(v->p->kv_dtype, v->in->k, v->kv_at + key * v->kv_step + at, n, k);
    return n;
}

/* The scale of a key's row: 1 where there are none. */
static float scale_of(const row_view *v, const float *scales, int64_t key) {
    return scales ? scales[(v->kv_at + key * v->kv_step) / v->p->head_dim] : 1.0f;
}

/* A key's values from element `at` on, and how many there are. */
static int load_value(const row_view *v, int64_t key, int32_t at, float *x) {
    const int n = v->p->head_dim - at < CHUNK ? v->p->head_dim - at : CHUNK;
    load_elements(v->p->kv_dtype, v->in->v, v->kv_at + key * v->kv_step + at, n, x);
    return n;
}

static double dot_double(const row_view *v, int64_t key) {
    float room[CHUNK], k[CHUNK];
    const float *q;
    double sum = 0, odd = 0; /* one sum alone would wait for each addition to end */
    for (int32_t at = 0, n; at < v->p->head_dim; at += n) {
        n = load_pair(v, key, at, room, &q, k);
        for (int d = 0; d + 1 < n; d += 2) {
            sum += (double)q[d] * k[d];
            odd += (double)q[d + 1] * k[d + 1];
        }
        if (n % 2) sum += (double)q[n - 1] * k[n - 1];
    }
    return (sum + odd) * scale_of(v, v->in->k_scale, key);
}

void reference_row(const problem *p, const reference_inputs *in, int64_t sequence, int32_t head,
                   int64_t row, double *o, double *lse) {
    row_view v = view(p, in, sequence, head, row);
    double max = -INFINITY, total = 0;
    for (int32_t d = 0; d < p->head_dim; d++) o[d] = 0;
    for (int64_t t = v.first; t < v.end; t++) {
        if (!reference_kept(p, head, v.position, t, v.kv_len)) continue;
        double s = p->scale * dot_double(&v, t);
        /* The running maximum spares a second pass over the keys; in fp64 the rescaling costs
         * nothing that matters. */
        if (s > max) {
            double shrink = exp(max - s);
            for (int32_t d = 0; d < p->head_dim; d++) o[d] *= shrink;
            total *= shrink;
            max = s;
        }
        double weight = exp(s - max);
        total += weight;
        weight *= scale_of(&v, in->v_scale, t);
        float x[CHUNK];
        for (int32_t at = 0, n; at < p->head_dim; at += n) {
            n = load_value(&v, t, at, x);
            for (int d = 0; d < n; d++) o[at + d] += weight * x[d];
        }
    }
    if (total > 0)
        for (int32_t d = 0; d < p->head_dim; d++) o[d] /= total;
    *lse = total > 0 ? max + log(total) : -INFINITY;
}

/* The score of a key as a framework computes it in the low type: products summed in float, the sum
 * and the scaled sum rounded. */
static float score_low(const row_view *v, int64_t key) {
    float room[CHUNK], k[CHUNK], sum = 0;
    const float *q;
    for (int32_t at = 0, n; at < v->p->head_dim; at += n) {
        n = load_pair(v, key, at, room, &q, k);
        for (int d = 0; d < n; d++) sum += q[d] * k[d];
    }
    sum *= scale_of(v, v->in->k_scale, key);
    return round_to(v->p->dtype, round_to(v->p->dtype, sum) * (float)v->p->scale);
}

void reference_row_same_type(const problem *p, const reference_inputs *in, int64_t sequence,
                             int32_t head, int64_t row, double *o, double *lse) {
    row_view v = view(p, in, sequence, head, row);
    float max = -INFINITY, total = 0;
    /* Scores are wanted twice; without memory they are computed twice. */
    float *scores = v.end > v.first ? malloc((size_t)(v.end - v.first) * sizeof *scores) : NULL;
    for (int64_t t = v.first; t < v.end; t++) {
        if (!reference_kept(p, head, v.position, t, v.kv_len)) continue;
        float s = score_low(&v, t);
        if (scores) scores[t - v.first] = s;
        if (s > max) max = s;
    }
    for (int32_t d = 0; d < p->head_dim; d++) o[d] = 0;
    for (int64_t t = v.first; t < v.end; t++) {
        if (!reference_kept(p, head, v.position, t, v.kv_len)) continue;
        const float s = scores ? scores[t - v.first] : score_low(&v, t);
        float weight = round_to(p->dtype, expf(round_to(p->dtype, s - max)));
        total += weight;
        weight *= scale_of(&v, in->v_scale, t);
        float x[CHUNK];
        for (int32_t at = 0, n; at < p->head_dim; at += n) {
            n = load_value(&v, t, at, x);
            for (int d = 0; d < n; d++) o[at + d] = (float)o[at + d] + weight * x[d];
        }
    }
    free(scores);
    float rounded_total = round_to(p->dtype, total);
    for (int32_t d = 0; d < p->head_dim && total > 0; d++)
        o[d] = round_to(p->dtype, round_to(p->dtype, (float)o[d]) / rounded_total);
    *lse = total > 0 ? max + logf(rounded_total) : -INFINITY;
}

/* ------------------------------------------------------------------ inputs */

static uint64_t mix(uint64_t x) { /* the finaliser of splitmix64 */
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint32_t count_bits(uint64_t x) {
    x -= x >> 1 & 0x5555555555555555u;
    x = (x & 0x3333333333333333u) + (x >> 2 & 0x3333333333333333u);
    x = (x + (x >> 4)) & 0x0f0f0f0f0f0f0f0fu;
    return (uint32_t)(x * 0x0101010101010101u >> 56);
}

/*
 * Number `index` of a stream. The sum of 64 fair bits is binomial, and adding a triangular number
 * from -1 to 1 joins its steps into a continuous density: mean 0, variance 16 + 1/6, excess
 * kurtosis -0.03, values up to 8 standard deviations. Integers until the last multiplication, so
 * every machine gets the same bits, which no library's logarithm would promise.
 */
static inline float normal_at(uint64_t base, uint64_t index) {
    uint64_t bits = mix(base + (index + 1) * 0x9e3779b97f4a7c15u);
    uint64_t smooth = mix(bits + 0x632be59bd9b4e019u);
    int64_t centred = ((int64_t)count_bits(bits) - 32) * ((int64_t)1 << 32) +
                      (int64_t)(smooth >> 32) - (int64_t)(smooth & 0xffffffffu);
    return (float)centred * 5.7906844e-11f; /* 2^-32 / sqrt(16 + 1/6) */
}

/* Numbers [first, end) of a tensor. */
typedef struct fill_part {
    uint32_t dtype;
    void *data;
    int64_t first, end;
    uint64_t base;
} fill_part;

static void *fill_numbers(void *argument) {
    const fill_part *x = argument;
    if (x->dtype == TESS_F32)
        for (int64_t i = x->first; i < x->end; i++)
            ((float *)x->data)[i] = normal_at(x->base, (uint64_t)i);
    else if (x->dtype == TESS_F16)
        for (int64_t i = x->first; i < x->end; i++)
            ((uint16_t *)x->data)[i] = float_to_half(normal_at(x->base, (uint64_t)i));
    else
        for (int64_t i = x->first; i < x->end; i++)
            ((uint16_t *)x->data)[i] = float_to_bf16(normal_at(x->base, (uint64_t)i));
    return NULL;
}

/* Each number depends on its index alone, so large tensors are filled by threads: on one, the cache
 * of a GPU would take most of the time of a benchmark. */
void fill_normal(uint32_t dtype, void *data, int64_t count, uint64_t seed, uint32_t stream) {
    enum { MOST_PARTS = 32, PART_AT_LEAST = 1 << 21 };
    fill_part parts[MOST_PARTS];
    pthread_t threads[MOST_PARTS];
    int started[MOST_PARTS] = {0};
    const int64_t wanted = count / PART_AT_LEAST + 1, cpus = sysconf(_SC_NPROCESSORS_ONLN);
    int64_t n_parts = wanted < cpus ? wanted : cpus;
    n_parts = n_parts < 1 ? 1 : n_parts > MOST_PARTS ? MOST_PARTS : n_parts;
    for (int64_t n = 0; n < n_parts; n++) {
        parts[n] = (fill_part){dtype, data, count / n_parts * n, count / n_parts * (n + 1),
                               mix(mix(seed) + stream)};
        if (n + 1 == n_parts) parts[n].end = count;
        if (n > 0) started[n] = pthread_create(&threads[n], NULL, fill_numbers, &parts[n]) == 0;
    }
    /* This thread takes the first part, and those for which there was no thread. */
    for (int64_t n = 0; n < n_parts; n++)
        if (!started[n]) fill_numbers(&parts[n]);
    for (int64_t n = 0; n < n_parts; n++)
        if (started[n]) pthread_join(threads[n], NULL);
}

void fill_codes(uint32_t dtype, void *data, float *scales, int64_t rows, int32_t elements,
                uint64_t seed, uint32_t stream) {
    const float unit = dtype == TESS_I8 ? 40.0f : 64.0f;
    const uint64_t base = mix(mix(seed) + stream);
    uint8_t *codes = data;
    for (int64_t r = 0; r < rows; r++) {
        scales[r] = (0.5f + (float)(mix(base ^ (uint64_t)r) >> 40) * 0x1p-24f) / unit;
        for (int64_t i = r * elements; i < (r + 1) * elements; i++) {
            const float x = normal_at(base, (uint64_t)i) * unit;
            codes[i] = dtype == TESS_I8 ? (uint8_t)(int8_t)lrintf(fmaxf(-128, fminf(127, x)))
                                        : float_to_e4m3(x);
        }
    }
}
