/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fused forward attention of one job: the one body that every instruction set compiles. The
 * including file defines
 *
 * KERNEL(x) the name of function x for this instruction set VL, NV floats in a vector; vectors in a
 * panel of query rows KB, DB keys and value elements in the register blocks of the two products (DB
 * divides 8) PAIRS 1 when products take pairs of bf16 (DOT(acc, a, b)), 0 when they take floats
 * TILES 1 when products run on 16 x 16 tiles (tiles.h); needs PAIRS ONE_ROW(x) optional: the name
 * of function x of the kernel that does jobs of one row of bf16
 *
 * Vector lanes run over query rows, so Q, S and O are kept transposed: Q[word][row], S[key][row],
 * O[element][row]. The softmax then runs down each lane and needs no reduction across lanes. K and
 * V of a batch of chunks are packed once and serve all panels of the tile, one after the other. Q,
 * O and S of a panel stay in the first-level cache, while packed K and V stream in from the second.
 */
#include "chunk.h"
#include "kernel.h"
#include "vector.h"

#include <math.h>

#define PANEL (VL * NV)
#ifndef CHUNK
#define CHUNK (TILES ? 128 : 64) /* keys */
#endif
#ifndef ROWS
#define ROWS (TILES ? 512 : 256) /* rows of a tile, which share packed K and V */
#endif
/* Chunks of a batch. Panels work on one batch while the next is packed; both stay in the
 * second-level cache. */
#ifndef BATCH
#define BATCH (PAIRS ? 4 : 2)
#endif

#if PAIRS
#define WORD_OF(n) ((n) / 2) /* elements to 32-bit words */
#else
#define WORD_OF(n)     (n)
#define DOT(acc, a, b) ((a) * (b) + (acc))
#endif

/* Keys are handled in groups: the first product computes whole groups, and a panel's keys begin at
 * a group. With tiles, the scores of two chunks are in flight. */
#if TILES
#define GROUP     32
#define S_BUFFERS 2
#else
#define GROUP     KB
#define S_BUFFERS 1
#endif

/* The fewest steps of a panel's products with a chunk. Each prefetches a few rows of the next
 * batch. */
#define STEPS 16

static inline int32_t round_up(int32_t n, int32_t to) { return (n + to - 1) / to * to; }

/* ------------------------------------------------------------------ scratch memory of a job */

typedef struct job_memory {
    float *q, *o, *k, *v, *s, *rows;
    float *row_max, *row_sum; /* m and l of each row; see update_row_max */
    int32_t *causal, *low, *high, *block;
    int32_t words;   /* of a packed row of Q or K */
    int32_t q_words; /* allotted per row */
    int32_t k_pitch, o_elements;
} job_memory;

/* Fewer for large heads, so that Q and O of a tile stay in the second-level cache. */
uint32_t KERNEL(rows)(int32_t head_dim) { return head_dim <= 128 ? ROWS : ROWS / 2; }

static size_t layout_memory(job_memory *m, int32_t head_dim, float *base) {
    size_t rows = KERNEL(rows)(head_dim), at = 0;
    m->words = WORD_OF(TILES ? round_up(head_dim, 32) : head_dim);
    m->q_words = round_up(m->words, 16);
    /* more than the row keeps the rows of a register block out of each other's cache sets */
    m->k_pitch = TILES ? m->words : m->q_words + 16;
    m->o_elements = round_up(head_dim, 32);
#define PART(field, count) \
    (m->field = base ? (void *)(base + at) : NULL, at += ((size_t)(count) + 15) / 16 * 16)
    PART(q, rows * (size_t)m->q_words);
    PART(o, rows * (size_t)m->o_elements);
    PART(k, 2 * BATCH * CHUNK * m->k_pitch);
    PART(v, 2 * BATCH * CHUNK * WORD_OF(m->o_elements));
    PART(s, S_BUFFERS * CHUNK * PANEL);
    PART(rows, VL * m->o_elements);
    PART(row_max, rows);
    PART(row_sum, rows);
    PART(causal, rows);
    PART(low, rows);
    PART(high, rows);
    PART(block, rows);
#undef PART
    return at * sizeof(float);
}

/* ------------------------------------------------------------------ packing */

/* One row of the caller's elements as floats. Rows hold a multiple of 8 elements; nothing past the
 * last one is read. */
INLINE void load_row(uint32_t dtype, const void *source, int32_t n, float *out) {
    int32_t i = 0;
    if (dtype == TESS_F32) {
        for (; i + VL <= n; i += VL) vstore_any(out + i, vload_any((const float *)source + i));
        if (i < n) memcpy(out + i, (const float *)source + i, 8 * sizeof(float));
    } else if (dtype == TESS_F16) {
        const uint16_t *p = source;
        for (; i + VL <= n; i += VL) vstore_any(out + i, vfrom_f16(p + i));
        for (; i < n; i++) out[i] = half_bits_to_float(p[i]);
    } else {
        const uint16_t *p = source;
        for (; i + VL <= n; i += VL) vstore_any(out + i, vfrom_bf16(p + i));
        for (; i < n; i++) {
            uint32_t u = (uint32_t)p[i] << 16;
            memcpy(out + i, &u, 4);
        }
    }
}

/* The factor for the scale of a row of K or V that makes up for how vector.h converts codes. */
INLINE float code_scale(uint32_t kv_dtype) {
    return kv_dtype == TESS_F8E4M3 ? CODE_SCALE_E4M3 : 1.0f;
}

#if !PAIRS
INLINE vf load_codes(uint32_t kv_dtype, const void *source) {
    return kv_dtype == TESS_I8 ? vfrom_i8(source) : vfrom_e4m3(source);
}

/* A row of codes of K or V, with its scale, as floats. */
INLINE void load_coded_row(uint32_t kv_dtype, const char *source, const char *scale, int32_t n,
                           float *out) {
    float factor;
    memcpy(&factor, scale, sizeof factor);
    factor *= code_scale(kv_dtype);
    int32_t i = 0;
    for (; i + VL <= n; i += VL) vstore_any(out + i, load_codes(kv_dtype, source + i) * factor);
    if (i < n) {
        char last[16] = {0};
        float floats[16];
        memcpy(last, source + i, 8);
        vstore_any(floats, load_codes(kv_dtype, last) * factor);
        memcpy(out + i, floats, 8 * sizeof(float));
    }
}

/* A row of K or V as floats. */
INLINE void load_key_row(uint32_t kv_dtype, const char *source, const char *scale, int32_t n,
                         float *out) {
    if (kv_dtype >= TESS_F8E4M3)
        load_coded_row(kv_dtype, source, scale, n, out);
    else
        load_row(kv_dtype, source, n, out);
}
#endif

/* Loads elements of Q, K and V in the form that the products take: floats, or the caller's bf16
 * unchanged. */
INLINE void load_words(uint32_t dtype, const void *source, int32_t head_dim, float *out) {
#if PAIRS
    (void)dtype;
    memcpy(out, source, (size_t)head_dim * 2);
#else
    load_row(dtype, source, head_dim, out);
#endif
}

/* The addresses of a chunk's rows in the caller's tensors, for jobs of a few rows. */
typedef struct direct_rows {
    const char *k[CHUNK], *v[CHUNK];
    float k_scale[CHUNK], v_scale[CHUNK]; /* of codes; those of E4M3 include code_scale() */
    /* with tiles: bit n is set if the 16 rows from key 16 * n on are equally far apart, in K and in
     * V */
    uint32_t in_step;
} direct_rows;

typedef struct task {
    const tess_launch *launch;
    const tess_job *job;
    const tess_class *cls;
    job_memory m;
    int32_t head_dim, rows;
    int64_t esize, kv_esize;
    int64_t k_stride, v_stride; /* bytes from one token to the next */
    int64_t k_scale_stride, v_scale_stride;
    float scale_log2; /* |scale| * log2(e): turns <q, k> into the exponent of 2 */
    /* for jobs of a few rows: the current chunk, and room for it and the next one */
    const cpu_chunk *chunk;
    cpu_chunk chunks[2];
    direct_rows direct[2];
    const direct_rows *located; /* of the current chunk */
    float *sums, *folds;        /* parts of row_sum, and of scores, in lanes */
    /* with tiles: P as an operand, and units of the digits of Q and of P */
    float *weights, *q_unit, *weight_unit;
    cpu_walk walk;
    int32_t turn, more; /* which of the two is current; whether there is a next one */
    struct direct_turns *turns;
    cpu_panel_rows panel;
    /* the rows of K and V that are packed next */
    const char *to_prefetch[2 * (BATCH + 1) * CHUNK];
    int32_t n_prefetched, n_to_prefetch, prefetch_per_step;
    uint8_t o_started[ROWS / PANEL]; /* whether O of a panel has been written */
} task;

/* The position of prefetching: the next line, the lines left of its row, and the row after it. With
 * tiles: also how many lines were prefetched, and the rest of the segment. */
typedef struct direct_ahead {
    const char *line;
    int32_t lines;
    uint32_t next, done;
    const char *row;
    int64_t stride;
    int32_t rows, row_lines;
} direct_ahead;

/* How much was listed at some point. */
typedef struct direct_mark {
    uint32_t rows, lines;
} direct_mark;

/* Rows of K or V that are equally far apart, and the cache lines of each. */
typedef struct direct_segment {
    const char *row;
    int64_t stride;
    int32_t rows, lines;
} direct_segment;

/* Jobs of a few rows that take turns on a thread, those of them that have a chunk, and a list of
 * rows of K and V to prefetch, of the current chunks and the next ones. */
enum { LISTED_ROWS = 2 * 2 * CPU_JOBS_AT_ONCE * CHUNK, LISTED_SEGMENTS = 512 };
typedef struct direct_turns {
    int32_t n, n_ready, keys; /* keys: of the longest current chunk */
    int32_t row_lines, value_keys;
    uint32_t listed, listed_lines; /* rows (with tiles: segments) and lines so far */
    direct_ahead ahead;
    int in_pairs;        /* with tiles: V as bf16 is interleaved */
    int near;            /* with tiles: rows are prefetched into the first-level cache */
    const task *pending; /* with tiles: the task and keys whose scores are not stored yet */
    int32_t pending_key, pending_c;
    task *task[CPU_JOBS_AT_ONCE], *ready[CPU_JOBS_AT_ONCE];
#if TILES
    direct_segment segment[LISTED_SEGMENTS]; /* a ring */
#else
    const char *row[LISTED_ROWS]; /* a ring */
#endif
    /* low and high bytes of each code's bf16 number (direct_codes.inl) */
    uint8_t code_low[128] __attribute__((aligned(64))), code_high[128];
} direct_turns;

/* Chunks that a panel multiplies in one go, and where they are packed. */
typedef struct key_batch {
    int32_t chunks;
    float *k, *v;
    cpu_chunk chunk[BATCH];
} key_batch;

/* The state of a job besides its arrays, and that of others that take turns with it. It lies in
 * scratch memory, too, because the thread that calls tess_run is one of the workers, and its stack
 * may be small. */
typedef struct state {
    task task, others[CPU_JOBS_AT_ONCE - 1];
    direct_turns turns;
    key_batch batches[2];
} state;

enum { STATE_BYTES = (sizeof(state) + 63) / 64 * 64 };

size_t KERNEL(scratch)(int32_t head_dim) {
    job_memory m;
    size_t bytes = STATE_BYTES + layout_memory(&m, head_dim, NULL);
#ifdef ONE_ROW
    if (bytes < ONE_ROW(scratch)(head_dim)) bytes = ONE_ROW(scratch)(head_dim);
#endif
    return bytes;
}

/* A panel's work in one chunk of the batch. */
typedef struct panel_chunk {
    int32_t row; /* the panel's first */
    const cpu_chunk *chunk;
    cpu_span span;
    const float *k, *v; /* packed, or (without tiles) the caller's rows in place */
    float *s;
    int64_t k_pitch, v_pitch; /* words from one key to the next */
    int packed;               /* whether K and V are packed: strides of the caller may be any */
} panel_chunk;

INLINE int64_t row_offset(const task *t, const tess_tensor *x, int32_t r) {
    const tess_sequence *s = &t->launch->tables->sequences[t->job->sequence];
    int64_t head = t->job->head + r / t->job->rows, row = (int64_t)t->job->row + r % t->job->rows;
    return (t->launch->batch_strided ? s->batch * x->stride_batch : 0) +
           (s->q_start + row) * x->stride_token + head * x->stride_head;
}

INLINE char *tensor_base(const tess_tensor *x) {
    return (char *)(uintptr_t)(x->buffer.handle + x->buffer.offset);
}

/* Prefetches rows of Q, or rows of O to write. Each may lie in a page of its own, and hardware
 * prefetchers do not cross pages. */
INLINE void prefetch_rows(const task *t, const tess_tensor *x, int32_t first, int32_t count,
                          const int to_write) {
    const int32_t end = first + count < t->rows ? first + count : t->rows;
    for (int32_t r = first; r < end; r++) {
        const char *row = tensor_base(x) + row_offset(t, x, r) * t->esize;
        for (int64_t b = 0; b < t->head_dim * t->esize; b += 64) {
            if (to_write)
                __builtin_prefetch(row + b, 1, 2);
            else
                __builtin_prefetch(row + b, 0, 2);
        }
    }
}

/* Packs Q of the panel that starts at packed row `first`. Lanes past the last row are zero. A
 * negative scale is moved into Q. */
static void pack_queries(task *t, int32_t first) {
    const job_memory *m = &t->m;
    const int32_t words = m->words, padded = round_up(words, VL);
    float *q = m->q + (size_t)first * m->q_words;
    for (int32_t lane = 0; lane < PANEL; lane += VL) {
        const char *source[VL];
        const int whole = PAIRS && words % VL == 0 && words == WORD_OF(t->head_dim) &&
                          first + lane + VL <= t->rows;
        for (int32_t i = 0; i < VL; i++) {
            float *row = m->rows + (size_t)i * padded;
            source[i] = (const char *)row;
            /* no padding and no conversion: transpose the caller's row in place */
            if (whole) {
                source[i] =
                    tensor_base(&t->launch->tensor[TESS_ROLE_Q]) +
                    row_offset(t, &t->launch->tensor[TESS_ROLE_Q], first + lane + i) * t->esize;
            } else if (first + lane + i < t->rows) {
                memset(row + WORD_OF(t->head_dim), 0,
                       (size_t)(padded - WORD_OF(t->head_dim)) * sizeof(float));
                load_words(t->launch->dtype,
                           tensor_base(&t->launch->tensor[TESS_ROLE_Q]) +
                               row_offset(t, &t->launch->tensor[TESS_ROLE_Q], first + lane + i) *
                                   t->esize,
                           t->head_dim, row);
            } else {
                memset(row, 0, (size_t)padded * sizeof(float));
            }
        }
        const vi sign = viset(t->launch->scale >= 0 ? 0 : PAIRS ? (int32_t)0x80008000 : INT32_MIN);
        for (int32_t w = 0; w < padded; w += VL) {
            vf r[VL];
            for (int32_t i = 0; i < VL; i++)
                r[i] = (vf)((vi)vload_any(source[i] + 4 * (size_t)w) ^ sign);
            vtranspose(r);
            for (int32_t i = 0; i < VL; i++) vstore(q + (size_t)(w + i) * PANEL + lane, r[i]);
        }
    }
}

INLINE int32_t clamp_int32(int64_t x) {
    return x < INT32_MIN ? INT32_MIN : x > INT32_MAX ? INT32_MAX : (int32_t)x;
}

/* Token bounds and query block of every packed row; lanes past the last row repeat it, so that they
 * do not widen a panel's bounds. */
static void place_rows(task *t, int32_t lanes) {
    const job_memory *m = &t->m;
    const tess_sequence *s = &t->launch->tables->sequences[t->job->sequence];
    const tess_class *c = t->cls;
    const int64_t p0 = (int64_t)s->q_first + t->job->row,
                  i_first = cpu_floor_div(p0, t->launch->block);
    for (int32_t r = 0; r < lanes; r++) {
        int64_t p = p0 + (r < t->rows ? r : t->rows - 1) % t->job->rows;
        int64_t causal = c->flags & TESS_CLASS_CAUSAL ? p : INT32_MAX, low = INT32_MIN,
                high = causal;
        if (c->flags & TESS_CLASS_WINDOW) {
            if (c->left != INT32_MAX) low = p - c->left;
            if (c->right != INT32_MAX && p + c->right < high) high = p + c->right;
        }
        m->causal[r] = clamp_int32(causal);
        m->low[r] = clamp_int32(low);
        m->high[r] = clamp_int32(high);
        m->block[r] = (int32_t)(cpu_floor_div(p, t->launch->block) - i_first);
    }
}

static void panel_bounds(task *t, int32_t first) {
    const job_memory *m = &t->m;
    cpu_panel_rows b = {0, INT32_MAX, INT32_MIN, INT32_MAX, INT32_MIN, INT32_MAX, INT32_MIN};
    for (int32_t r = first; r < first + PANEL; r++) {
        b.blocks |= 1u << m->block[r];
        if (m->causal[r] < b.causal_min) b.causal_min = m->causal[r];
        if (m->causal[r] > b.causal_max) b.causal_max = m->causal[r];
        if (m->low[r] < b.low_min) b.low_min = m->low[r];
        if (m->low[r] > b.low_max) b.low_max = m->low[r];
        if (m->high[r] < b.high_min) b.high_min = m->high[r];
        if (m->high[r] > b.high_max) b.high_max = m->high[r];
    }
    t->panel = b;
}

/*
 * Whether the products read a chunk in place. Packing only pays when many panels read what is
 * packed. Reading in place takes floats, and whole groups of keys whose rows are equally far apart.
 * Results have the same bits either way.
 */
enum { IN_PLACE_ROWS = 2 * PANEL };
INLINE int in_place(const task *t, const cpu_chunk *chunk) {
    return !PAIRS && t->launch->kv_dtype == TESS_F32 && t->rows <= IN_PLACE_ROWS &&
           chunk->n_runs == 1 && chunk->keys % GROUP == 0;
}

/*
 * The caller's rows are often pages apart. Hardware prefetchers do not follow there, and a core has
 * few cache misses in flight. So the rows of the next batch are prefetched one by one between the
 * steps of a panel's products, where they delay no other load.
 */
static void list_prefetches(task *t, const cpu_chunk *chunk) {
    for (int32_t i = 0; i < chunk->n_runs; i++) {
        const cpu_run *run = &chunk->run[i];
        for (int32_t key = 0; key < run->count; key++) {
            t->to_prefetch[t->n_to_prefetch++] = run->k + key * t->k_stride;
            t->to_prefetch[t->n_to_prefetch++] = run->v + key * t->v_stride;
        }
    }
}

INLINE void prefetch_some(task *t) {
    for (int32_t n = 0; n < t->prefetch_per_step && t->n_prefetched < t->n_to_prefetch; n++) {
        const char *row = t->to_prefetch[t->n_prefetched++];
        for (int64_t b = 0; b < t->head_dim * t->kv_esize; b += 64)
            __builtin_prefetch(row + b, 0, 2);
    }
}

/* ------------------------------------------------------------------ softmax */

/* Sets the scores of masked (row, key) pairs to -inf. */
static __attribute__((noinline)) void mask_scores(const task *t, int32_t first_row,
                                                  const panel_chunk *x) {
    const job_memory *m = &t->m;
    const int32_t sinks = t->cls->flags & TESS_CLASS_WINDOW ? t->cls->sinks : 0;
    for (int32_t n = 0; n < x->chunk->n_runs; n++) {
        const cpu_run *run = &x->chunk->run[n];
        const int32_t from = run->at > x->span.first ? run->at : x->span.first,
                      to = run->at + run->count < x->span.end ? run->at + run->count : x->span.end;
        if (!run->masked || from >= to) continue;
        for (int32_t lane = 0; lane < PANEL; lane += VL) {
            const int32_t r = first_row + lane;
            const vi causal = *(const vi *)(m->causal + r), low = *(const vi *)(m->low + r),
                     high = *(const vi *)(m->high + r);
            const vi rows =
                -(vi)(((vu)viset((int32_t)run->kept) >> *(const vu *)(m->block + r)) & 1);
            for (int32_t key = from; key < to; key++) {
                const int32_t token = run->token + key - run->at;
                const vi keep = token < sinks ? rows & (causal >= token)
                                              : rows & (low <= token) & (high >= token);
                float *s = x->s + (size_t)key * PANEL + lane;
                vstore(s, vselect(keep, vload(s), vset(-INFINITY)));
            }
        }
    }
}

/* Lanes whose largest score exceeds row_max by more than 8 in the exponent of 2. Infinity does not
 * exceed infinity. */
INLINE vi exceeds_max(const task *t, vf s_max, vf row_max) {
    return (vi)((s_max - row_max) * t->scale_log2 > 8.0f);
}

/* Raises row_max of lanes where it is too low, and rescales their O and row_sum. Other lanes get
 * the factor 1, so a lane's bits do not depend on its neighbours. */
static __attribute__((noinline)) void rescale_lanes(const task *t, int32_t first_row, int32_t lane,
                                                    vf s_max) {
    const job_memory *m = &t->m;
    const vf old_max = vload(m->row_max + first_row + lane);
    const vf new_max = vselect(exceeds_max(t, s_max, old_max), s_max, old_max);
    const vf factor =
        vselect((vi)(new_max > old_max), vexp2((old_max - new_max) * t->scale_log2), vset(1.0f));
    float *o = m->o + (size_t)first_row * m->o_elements + lane;
    for (int32_t d = 0; d < t->head_dim && t->o_started[first_row / PANEL]; d++)
        vstore(o + (size_t)d * PANEL, vload(o + (size_t)d * PANEL) * factor);
    vstore(m->row_sum + first_row + lane, vload(m->row_sum + first_row + lane) * factor);
    vstore(m->row_max + first_row + lane, new_max);
}

/*
 * Updates row_max for the scores of a chunk, and returns the bias to subtract from each of them.
 * row_max rises only when exponentials would exceed 2^8: they stay bounded, and the extra pass over
 * O is rare.
 */
INLINE void update_row_max(const task *t, int32_t first_row, const vf *s_max, vf *bias,
                           const int nv) {
    const job_memory *m = &t->m;
    for (int v = 0; v < nv; v++) {
        if (vany(exceeds_max(t, s_max[v], vload(m->row_max + first_row + v * VL))))
            rescale_lanes(t, first_row, v * VL, s_max[v]);
        const vf row_max = vload(m->row_max + first_row + v * VL);
        bias[v] = vselect((vi)(row_max == -INFINITY), vset(0.0f), row_max);
    }
}

INLINE void max_scores(const float *s, int32_t from, int32_t to, vf *s_max, const int nv) {
    for (int32_t key = from; key < to; key++) UNROLL
    for (int v = 0; v < nv; v++) s_max[v] = vmax(vload(s + (size_t)key * PANEL + v * VL), s_max[v]);
}

/* Turns the scores of keys [from, to) into 2^(scale_log2 * (s - bias)) in place and adds them up.
 * It subtracts before it multiplies: the difference is exact where it matters, however large the
 * scores are. If the second product takes pairs, words of two keys replace the scores. */
INLINE void exp_scores(float *s, int32_t from, int32_t to, vf scale_log2, const vf *bias, vf *sum,
                       const int nv) {
#if PAIRS
    for (int32_t key = from; key < to; key += 2) UNROLL
    for (int v = 0; v < nv; v++) {
        const float *in = s + (size_t)key * PANEL + v * VL;
        const vf even = vexp2_short((vload(in) - bias[v]) * scale_log2),
                 odd = vexp2_short((vload(in + PANEL) - bias[v]) * scale_log2);
        sum[v] += even;
        sum[v] += odd;
        vstore(s + (size_t)(key / 2) * PANEL + v * VL, vpair_bf16(even, odd));
    }
#else
    for (int32_t key = from; key < to; key++) UNROLL
    for (int v = 0; v < nv; v++) {
        const vf p = vexp2((vload(s + (size_t)key * PANEL + v * VL) - bias[v]) * scale_log2);
        sum[v] += p;
        vstore(s + (size_t)key * PANEL + v * VL, p);
    }
#endif
}

/* Where exponentials and the second product end. Scores past the end of the span become -inf. */
INLINE int32_t padded_end(const panel_chunk *x) {
    return round_up(x->span.end, TILES ? GROUP : 1 + PAIRS);
}

/* Masks the scores of a chunk, and updates s_max, the largest of them. */
static __attribute__((noinline)) void mask_panel_chunk(const task *t, int32_t first_row,
                                                       const panel_chunk *x, vf *s_max) {
    if (x->span.masked) mask_scores(t, first_row, x);
    for (int32_t key = x->span.end; key < padded_end(x); key++)
        for (int v = 0; v < NV; v++) vstore(x->s + (size_t)key * PANEL + v * VL, vset(-INFINITY));
    for (int v = 0; v < NV; v++) s_max[v] = vset(-INFINITY);
    max_scores(x->s, x->span.first, x->span.end, s_max, NV);
}

/* One panel and the chunks of a batch, and what its last chunk overlaps with. */
typedef struct panel_work {
    const panel_chunk *chunk;
    int32_t n;
    /* scores and first_max of the first chunk are computed already: it was `after` of the panel
     * before */
    int32_t started;
    const panel_chunk *after; /* the first chunk of the next panel, or NULL */
    vf *first_max;            /* largest scores of a chunk computed ahead */
} panel_work;

#if TILES
#include "tile_products.inl"
#else
#include "vector_products.inl"
#endif

static __attribute__((noinline)) void attend_wide(task *t, const panel_work *w) {
    attend(t, w, NV);
}
static __attribute__((noinline)) void attend_narrow(task *t, const panel_work *w) {
    attend(t, w, 1);
}

/* Finds K and V of chunk c of a batch for a panel. */
INLINE void find_keys(const task *t, const key_batch *b, int32_t c, panel_chunk *x) {
    const job_memory *m = &t->m;
    const cpu_run *run = &x->chunk->run[0];
    x->packed = !in_place(t, x->chunk);
    if (!x->packed) {
        x->k = (const float *)(const void *)run->k;
        x->v = (const float *)(const void *)run->v;
        x->k_pitch = t->k_stride / (int64_t)sizeof(float);
        x->v_pitch = t->v_stride / (int64_t)sizeof(float);
        return;
    }
    x->k = b->k + (size_t)c * CHUNK * m->k_pitch;
    x->v = b->v + (size_t)c * CHUNK * WORD_OF(m->o_elements);
    x->k_pitch = m->k_pitch;
    x->v_pitch = DB;
}

/* Lists the chunks of a batch in which some row of the panel keeps a key. Score buffers alternate,
 * also from one panel to the next. */
static int32_t list_panel_chunks(task *t, int32_t first_row, const key_batch *b, panel_chunk *list,
                                 int32_t *s_buffer) {
    const job_memory *m = &t->m;
    const int32_t sinks = t->cls->flags & TESS_CLASS_WINDOW ? t->cls->sinks : 0;
    int32_t n = 0;
    panel_bounds(t, first_row);
    for (int32_t c = 0; c < b->chunks; c++) {
        cpu_span span = cpu_panel_span(&b->chunk[c], &t->panel, sinks);
        if (span.end == 0) continue;
        if (span.first % GROUP != 0) {
            span.first -= span.first % GROUP;
            span.masked = 1;
        }
        panel_chunk *x = &list[n++];
        x->row = first_row;
        x->chunk = &b->chunk[c];
        x->span = span;
        find_keys(t, b, c, x);
        x->s = m->s + (size_t)((*s_buffer)++ % S_BUFFERS) * CHUNK * PANEL;
    }
    return n;
}

#include "epilogue.inl"

#include "direct.inl"

static void next_batch(cpu_walk *walk, key_batch *b, int32_t limit) {
    b->chunks = 0;
    while (b->chunks < limit && cpu_walk_next(walk, &b->chunk[b->chunks], CHUNK)) b->chunks++;
}

static void pack_chunk(const task *t, key_batch *b, int32_t c) {
    if (in_place(t, &b->chunk[c])) return;
    pack_keys(t, &b->chunk[c], b->k + (size_t)c * CHUNK * t->m.k_pitch);
    pack_values(t, &b->chunk[c], b->v + (size_t)c * CHUNK * WORD_OF(t->m.o_elements));
}

/* ------------------------------------------------------------------ a job */

static void task_init(state *s, task *t, const tess_launch *launch, const tess_job *job) {
    const tess_tensor *k = &launch->tensor[TESS_ROLE_K], *v = &launch->tensor[TESS_ROLE_V];
    t->launch = launch;
    t->job = job;
    t->cls = &launch->tables->classes[job->cls];
    t->head_dim = launch->head_dim;
    t->rows = (int32_t)job->rows * job->heads;
    t->esize = launch->dtype == TESS_F32 ? 4 : 2;
    t->kv_esize = cpu_element_size(launch->kv_dtype);
    t->k_stride = (int64_t)((uint64_t)k->stride_token * (uint64_t)t->kv_esize);
    t->v_stride = (int64_t)((uint64_t)v->stride_token * (uint64_t)t->kv_esize);
    t->k_scale_stride = launch->tensor[TESS_ROLE_K_SCALE].stride_token * (int64_t)sizeof(float);
    t->v_scale_stride = launch->tensor[TESS_ROLE_V_SCALE].stride_token * (int64_t)sizeof(float);
    t->scale_log2 = fabsf(launch->scale) * 1.44269504088896340736f;
    layout_memory(&t->m, t->head_dim, (float *)(void *)((char *)s + STATE_BYTES));
}

static void list_batch_prefetches(task *t, const key_batch *b) {
    for (int32_t c = 0; c < b->chunks; c++) list_prefetches(t, &b->chunk[c]);
}

/* Prefetches a job's first chunk that is read in place: K is needed at once, V later. */
static void list_first_prefetches(task *t, const cpu_run *run) {
    for (int32_t key = 0; key < run->count; key++)
        t->to_prefetch[t->n_to_prefetch++] = run->k + key * t->k_stride;
    for (int32_t key = 0; key < run->count; key++)
        t->to_prefetch[t->n_to_prefetch++] = run->v + key * t->v_stride;
}

/* Prepares the first panel: packs Q of all panels, and K and V of the first batch. */
static void begin_panels(task *t, key_batch *first, int32_t lanes) {
    const job_memory *m = &t->m;
    t->n_prefetched = t->n_to_prefetch = 0;
    t->prefetch_per_step = 2 * GROUP;
    if (first->chunks > 0 && in_place(t, &first->chunk[0])) {
        list_first_prefetches(t, &first->chunk[0].run[0]);
        prefetch_some(t);
    } else {
        list_batch_prefetches(t, first);
        while (t->n_prefetched < t->n_to_prefetch) prefetch_some(t);
    }
    for (int32_t r = 0; r < lanes; r += PANEL) {
        prefetch_rows(t, &t->launch->tensor[TESS_ROLE_Q], r + 2 * PANEL, PANEL, 0);
        pack_queries(t, r);
    }
    for (int32_t r = 0; r < lanes; r++) {
        m->row_max[r] = -INFINITY;
        m->row_sum[r] = 0.0f;
    }
    memset(t->o_started, !TILES, sizeof t->o_started);
    if (!TILES) memset(m->o, 0, (size_t)lanes * m->o_elements * sizeof(float));
    for (int32_t c = 0; c < first->chunks; c++) pack_chunk(t, first, c);
}

/* Runs all panels on one batch, and packs the next batch between them. */
static void attend_batch(task *t, const key_batch *now, key_batch *next, int32_t panels) {
    int32_t packed = 0, s_buffer = 0;
    panel_chunk list[2][BATCH];
    vf first_max[NV];
    panel_work w = {.after = NULL, .first_max = first_max};
    int32_t n_after = list_panel_chunks(t, 0, now, list[0], &s_buffer);
    list_batch_prefetches(t, next);
    t->prefetch_per_step =
        1 + (t->n_to_prefetch - t->n_prefetched) / (now->chunks * panels * STEPS);
    for (int32_t panel = 0; panel < panels; panel++) {
        const int32_t first = panel * PANEL, to = next->chunks * (panel + 1) / panels;
        panel_chunk *after = list[(panel + 1) % 2];
        w.chunk = list[panel % 2];
        w.n = n_after;
        w.started = S_BUFFERS > 1 && w.after != NULL;
        n_after =
            panel + 1 < panels ? list_panel_chunks(t, first + PANEL, now, after, &s_buffer) : 0;
        w.after = n_after > 0 && w.n > 0 ? after : NULL;
        if (w.n > 0) {
            /* overlapping panels must have one width */
            if ((S_BUFFERS > 1 ? t->rows : t->rows - first) <= VL)
                attend_narrow(t, &w);
            else
                attend_wide(t, &w);
        }
        for (; packed < to; packed++) pack_chunk(t, next, packed);
    }
    t->n_prefetched = t->n_to_prefetch = 0; /* too late to prefetch the rest: it is needed now */
}

/* Runs jobs of few rows that read the same keys of different kv heads, in turns. Bit n of the
 * result is set if job n has to be done again with V in pairs. */
static uint32_t direct_run(state *s, const tess_launch *launch, const tess_job *jobs,
                           uint32_t count, uint64_t apart, int in_pairs) {
    direct_turns *turns = &s->turns;
    uint32_t again = 0;
    turns->n = (int32_t)count;
    turns->in_pairs = in_pairs;
    for (uint32_t n = 0; n < count; n++) {
        turns->task[n] = n ? &s->others[n - 1] : &s->task;
        turns->task[n]->turns = turns;
        task_init(s, turns->task[n], launch, jobs + n * apart);
        direct_begin(turns->task[n], (int32_t)n);
    }
    direct_rounds(turns);
    for (uint32_t n = 0; n < count; n++) {
#if TILES
        if (launch->kv_dtype == TESS_BF16 && !in_pairs && direct_spoilt(turns->task[n])) {
            again |= 1u << n;
            continue;
        }
#endif
        direct_end(turns->task[n]);
    }
    return again;
}

static void direct_jobs(state *s, const tess_launch *launch, const tess_job *jobs, uint32_t count,
                        uint64_t apart) {
    const uint32_t again = direct_run(s, launch, jobs, count, apart, 0);
    for (uint32_t n = 0; n < count; n++)
        if (again >> n & 1) direct_run(s, launch, jobs + n * apart, 1, 1, 1);
}

static void panel_job(state *s, const tess_launch *launch, const tess_job *job) {
    task *t = &s->task;
    task_init(s, t, launch, job);
    place_rows(t, round_up(t->rows, PANEL));
    for (int i = 0; i < 2; i++) {
        s->batches[i].k = t->m.k + (size_t)i * BATCH * CHUNK * t->m.k_pitch;
        s->batches[i].v = t->m.v + (size_t)i * BATCH * CHUNK * WORD_OF(t->m.o_elements);
    }
    const int32_t lanes = round_up(t->rows, PANEL);
    key_batch *now = &s->batches[0], *next = &s->batches[1];
    int32_t limit = 1; /* start with short batches: nothing hides the latency of their rows */
    cpu_walk walk;
    cpu_walk_start(&walk, launch, job);
    prefetch_rows(t, &launch->tensor[TESS_ROLE_Q], 0, 2 * PANEL, 0);
    next_batch(&walk, now, limit);
    begin_panels(t, now, lanes);
    while (now->chunks > 0) {
        if (limit < BATCH) limit *= 2;
        next_batch(&walk, next, limit);
        attend_batch(t, now, next, lanes / PANEL);
        key_batch *done = now;
        now = next;
        next = done;
    }
    const int writes = job->partial == TESS_NO_PARTIAL;
    if (writes) prefetch_rows(t, &launch->tensor[TESS_ROLE_O], 0, 2 * PANEL, 1);
    for (int32_t r = 0; r < lanes; r += PANEL) {
        if (writes) prefetch_rows(t, &launch->tensor[TESS_ROLE_O], r + 2 * PANEL, PANEL, 1);
        finish_panel(t, r);
    }
}

void KERNEL(jobs)(const tess_launch *launch, const tess_job *jobs, uint32_t count, uint64_t apart,
                  void *scratch) {
    const int32_t rows = (int32_t)jobs->rows * jobs->heads;
#ifdef ONE_ROW
    if (rows == 1 && launch->kv_dtype == TESS_BF16) {
        ONE_ROW(jobs)(launch, jobs, count, apart, scratch);
        return;
    }
#endif
    if (rows <= direct_most(launch))
        direct_jobs(scratch, launch, jobs, count, apart);
    else
        for (uint32_t n = 0; n < count; n++) panel_job(scratch, launch, jobs + n * apart);
}

#include "backward.inl"
