/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-ins' kernels of backward: plain loops over the same arguments and tables, in the C
 * walks over keys and over rows. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <tessera/tessera_column_walk.h>
#include <tessera/tessera_key_walk.h>

#include "args.h"
#include "common/elements.h"
#include "fake.h"
#include "kernels/sm80_backward_args.h"
#include "shapes.h"

enum { DELTA, ROWS, COLUMNS, SINGLE, FINISH };
enum { DTYPES = 3, DIMS = 3, PER_DTYPE = 1 + 2 * DIMS, BUFFERS = 10 };

/* The shapes of the kernel for Ampere, whose passes have numbers after those of the portable one:
 * shape by shape, rows, columns and a single pass, f16 and bf16; then by head_dim DELTA and FINISH
 * of a single pass. */
#define SM80_SHAPE(head_dim, tile, step, warps, ...) {head_dim, tile, (warps)*32},
static const struct {
    int head_dim, tile;
    unsigned threads;
} sm80_shapes[] = {TESS_SM80_BACKWARD_SHAPES(SM80_SHAPE)},
  skewed_shapes[] = {TESS_SM80_BACKWARD_SKEWED_SHAPES(SM80_SHAPE)};
enum {
    SM80_SHAPES = sizeof sm80_shapes / sizeof *sm80_shapes,
    FIRST_SM80 = DTYPES * PER_DTYPE,
    SKEWED_SHAPES = sizeof skewed_shapes / sizeof *skewed_shapes,
    FIRST_STRIPS = FIRST_SM80 + 6 * SM80_SHAPES,
    FIRST_SKEWED = FIRST_STRIPS + 4 * DIMS,
    KERNELS = FIRST_SKEWED + 2 * SKEWED_SHAPES
};

/* Where tess_portable_stage puts tensors, and the buffers behind them. */
enum { Q, K, V, D_O, FIRST_GRADIENT, D_LSE = 6, SECOND_GRADIENT, TABLES, WORKSPACE };

typedef struct kernel {
    int stage, dtype, head_dim;
    unsigned threads;
    int tile; /* of one for Ampere, -1 where it takes strips; else 0 */
} kernel;

static kernel kernel_of(int number) {
    static const int dims[DIMS] = {64, 128, 256};
    static const unsigned threads[DIMS] = {TESS_BACKWARD_THREADS_64, TESS_BACKWARD_THREADS_128,
                                           TESS_BACKWARD_THREADS_256};
    if (number >= FIRST_SKEWED) {
        const int which = number - FIRST_SKEWED;
        return (kernel){SINGLE, which % 2 ? TESS_BF16 : TESS_F16, skewed_shapes[which / 2].head_dim,
                        skewed_shapes[which / 2].threads, skewed_shapes[which / 2].tile};
    }
    if (number >= FIRST_STRIPS) {
        const int which = number - FIRST_STRIPS;
        return (kernel){which / 2 % 2 ? FINISH : DELTA, which % 2 ? TESS_BF16 : TESS_F16,
                        dims[which / 4], TESS_SM80_BACKWARD_STRIP_THREADS, -1};
    }
    if (number >= FIRST_SM80) {
        const int which = (number - FIRST_SM80) % 6, shape = (number - FIRST_SM80) / 6;
        return (kernel){ROWS + which / 2, which % 2 ? TESS_BF16 : TESS_F16,
                        sm80_shapes[shape].head_dim, sm80_shapes[shape].threads,
                        sm80_shapes[shape].tile};
    }
    const int n = number % PER_DTYPE - 1, dtype = number / PER_DTYPE;
    if (n < 0) return (kernel){DELTA, dtype, 256, TESS_STRIP_THREADS, 0};
    return (kernel){n < DIMS ? ROWS : COLUMNS, dtype, dims[n % DIMS], threads[n % DIMS], 0};
}

static void name_of(int number, char *text, size_t size) {
    static const char *const stages[] = {"delta", "rows", "columns", "single", "finish"},
                             *const dtypes[DTYPES] = {"f32", "f16", "bf16"};
    const kernel k = kernel_of(number);
    const int length =
        snprintf(text, size, "tess_%sbackward_%s_%s", k.tile ? "sm80_" : "",
                 number >= FIRST_SKEWED ? "skewed" : stages[k.stage], dtypes[k.dtype]);
    char *end = text + length;
    if (k.tile > 0)
        snprintf(end, size - (size_t)length, "_%d_%d", k.head_dim, k.tile);
    else if (k.tile || k.stage != DELTA)
        snprintf(end, size - (size_t)length, "_%d", k.head_dim);
}

int fake_backward_find(const char *name) {
    for (int n = 0; n < KERNELS; n++) {
        char text[64];
        name_of(n, text, sizeof text);
        if (strcmp(text, name) == 0) return n;
    }
    return -1;
}

int fake_backward_takes(int number, unsigned threads) {
    return threads == kernel_of(number).threads;
}

const size_t *fake_backward_parameters(int number) {
    static const size_t portable[] = {8, 8, 8, 8, 8, 8, 8, 8, 8, 8, sizeof(tess_args), 0},
                        sm80[] = {sizeof(tess_sm80_backward_args), 0};
    return number < FIRST_SM80 ? portable : sm80;
}

/* The arguments and buffers of either kind of kernel. */
static tess_args read_arguments(int number, void *const *parameters, uint64_t pointers[BUFFERS],
                                int *wants_q) {
    tess_args a;
    *wants_q = 0;
    if (number < FIRST_SM80) {
        for (int n = 0; n < BUFFERS; n++) memcpy(&pointers[n], parameters[n], 8);
        memcpy(&a, parameters[BUFFERS], sizeof a);
        return a;
    }
    tess_sm80_backward_args s;
    memcpy(&s, parameters[0], sizeof s);
    const uint64_t all[BUFFERS] = {s.q, s.k, s.v,     s.d_o,    s.out,
                                   0,   s.k, s.out_v, s.tables, s.workspace};
    memcpy(pointers, all, sizeof all);
    *wants_q = s.wants_q != 0;
    return s.common;
}

void fake_backward_describe(int number, void *const *parameters, char *text, size_t size) {
    uint64_t pointers[BUFFERS];
    int wants_q;
    const tess_args a = read_arguments(number, parameters, pointers, &wants_q);
    snprintf(text, size, " items %u from %u head_dim %u block %u group %u flags %u partial_rows %u",
             a.items, a.items_at, a.head_dim, a.block, a.group, a.flags, a.partial_rows);
}

typedef struct scene {
    tess_args a;
    uint32_t dtype;
    void *buffers[BUFFERS];
    const uint32_t *tables;
    float *workspace;
    int dims;               /* of an accumulator of dQ, where there are any; else 0 */
    const tess_sequence *s; /* of the item at hand */
    uint32_t sequence;
} scene;

static const void *table(const scene *x, uint32_t word) { return x->tables + word; }

static void begin(scene *x, uint32_t sequence) {
    x->sequence = sequence;
    x->s = (const tess_sequence *)table(x, x->a.sequences_at) + sequence;
}

/* Where element 0 of a row, or of a key, of a head is. */
#define PLACE(x, tensor, batch, token, head)                         \
    ((x)->a.tensor##_at + (int64_t)(batch) * (x)->a.tensor##_batch + \
     (token) * (x)->a.tensor##_token + (int64_t)(head) * (x)->a.tensor##_head)
#define ROW(x, tensor, row, head) PLACE(x, tensor, (x)->s->batch, (x)->s->q_start + (row), head)
#define KEY(x, tensor, key, head) PLACE(x, tensor, (x)->s->kv_batch, (x)->s->kv_start + (key), head)

static double dot(const scene *x, int a, int64_t a_at, int b, int64_t b_at) {
    return vector_dot(x->dtype, x->a.head_dim, x->buffers[a], a_at, x->buffers[b], b_at);
}

static void add(const scene *x, double *sums, double weight, int from, int64_t at) {
    vector_add(x->dtype, x->a.head_dim, sums, weight, x->buffers[from], at);
}

static void store(const scene *x, int to, int64_t at, const double *sums, double factor) {
    const uint32_t dtype = x->a.flags & TESS_ARGS_F32 ? TESS_F32 : x->dtype;
    for (uint32_t e = 0; e < x->a.head_dim; e++) {
        const double before =
            x->a.flags & TESS_ARGS_ADD ? (double)element_load(dtype, x->buffers[to], at + e) : 0;
        element_store(dtype, x->buffers[to], at + e, (float)(before + factor * sums[e]));
    }
}

/* LSE of a row; Delta is as far behind it as all LSE take. */
static float *strip_floats(const scene *x, int64_t row, int64_t head, int delta) {
    const uint32_t *first = table(x, x->a.slots_at);
    const int64_t rows = (int64_t)x->a.pages * TESS_STRIP_ROWS;
    return x->workspace + x->a.partials_at + (delta * (int64_t)x->a.page + head) * rows +
           (int64_t)first[x->sequence] * TESS_STRIP_ROWS + row;
}

/* The accumulator of dQ of a row. */
static float *accumulator(const scene *x, int64_t row, int64_t head) {
    const uint32_t *first = table(x, x->a.slots_at);
    const int64_t heads = x->a.page, strips = x->a.pages,
                  strip = (int64_t)first[x->sequence] + row / TESS_STRIP_ROWS;
    return x->workspace + x->a.partials_at + 2 * heads * strips * TESS_STRIP_ROWS +
           ((strip * heads + head) * TESS_STRIP_ROWS + row % TESS_STRIP_ROWS) * x->dims;
}

static void finish_strip(scene *x, const tess_strip *strip) {
    begin(x, strip->sequence);
    for (int64_t row = strip->row; row < strip->row + TESS_STRIP_ROWS && row < x->s->q_len; row++)
        for (uint32_t head = 0; head < x->a.page; head++) {
            double sums[256];
            for (uint32_t e = 0; e < x->a.head_dim; e++)
                sums[e] = (double)accumulator(x, row, head)[e];
            store(x, FIRST_GRADIENT, ROW(x, lse, row, head), sums, (double)x->a.scale);
        }
}

/* What stages hand on (backward_strips.h), since others of them may be the real kernels. */
static const float DEAD_LSE = 3.0e38f, LOG2_E = 1.44269504088896341f;

static void run_strip(scene *x, const tess_strip *strip) {
    begin(x, strip->sequence);
    for (int64_t row = strip->row; row < strip->row + TESS_STRIP_ROWS && row < x->s->q_len; row++)
        for (uint32_t head = 0; head < x->a.page; head++) {
            const float lse =
                element_load(TESS_F32, x->buffers[FIRST_GRADIENT], ROW(x, lse, row, head));
            double delta = 0;
            if (!isinf(lse)) delta = dot(x, Q, ROW(x, q, row, head), D_O, ROW(x, o, row, head));
            if (!isinf(lse) && x->a.flags & TESS_ARGS_D_LSE)
                delta -=
                    (double)element_load(TESS_F32, x->buffers[D_LSE], ROW(x, k_scale, row, head));
            for (int e = 0; e < x->dims; e++) accumulator(x, row, head)[e] = 0;
            *strip_floats(x, row, head, 0) = isinf(lse) ? DEAD_LSE : lse * LOG2_E;
            *strip_floats(x, row, head, 1) = (float)delta;
        }
}

/* P of a pair, and dS. */
static double pair(const scene *x, int64_t row, int64_t head, int64_t key, double *ds) {
    const double lse = (double)*strip_floats(x, row, head, 0),
                 delta = (double)*strip_floats(x, row, head, 1);
    const int64_t group = head / x->a.group;
    *ds = 0;
    if (lse >= (double)DEAD_LSE) return 0;
    const double p = exp2((double)LOG2_E * (double)x->a.scale *
                              dot(x, Q, ROW(x, q, row, head), K, KEY(x, k, key, group)) -
                          lse);
    *ds = p * (dot(x, D_O, ROW(x, o, row, head), V, KEY(x, v, key, group)) - delta);
    return p;
}

static int64_t block_of(const scene *x, int64_t position) {
    const int64_t block = x->a.block;
    return position >= 0 ? position / block : -((block - 1 - position) / block);
}

static void run_row(const scene *x, const tess_job *job, int64_t row, int64_t head) {
    const tess_class *cls = (const tess_class *)table(x, x->a.classes_at) + job->cls;
    const int64_t p = x->s->q_first + row, first = block_of(x, x->s->q_first + (int64_t)job->row);
    double sums[256] = {0}, ds;
    tess_key_run run;
    for (uint64_t i = 0; i < tess_key_blocks(job); i += run.blocks) {
        run = tess_key_run_at(job, cls, table(x, x->a.entries_at), table(x, x->a.bits_at), i);
        const int64_t begin_key = (int64_t)run.block * x->a.block,
                      end = begin_key + (int64_t)run.blocks * x->a.block;
        for (int64_t t = begin_key; t < end && t < x->s->kv_len; t++) {
            if (run.masked &&
                !tess_kept(cls, p, t, block_of(x, p), block_of(x, t), run.bits, first))
                continue;
            pair(x, row, head, t, &ds);
            add(x, sums, ds, K, KEY(x, k, t, head / x->a.group));
        }
    }
    store(x, FIRST_GRADIENT, ROW(x, lse, row, head), sums, (double)x->a.scale);
}

static void run_job(scene *x, const tess_job *job) {
    begin(x, job->sequence);
    for (int64_t head = job->head; head < job->head + job->heads; head++)
        for (int64_t row = 0; row < job->rows; row++) run_row(x, job, job->row + row, head);
}

/* Adds the rows of a run that keep key k, at position t. */
static void add_rows(const scene *x, const tess_segment *g, const tess_row_run *run, int64_t head,
                     int64_t k, int64_t t, double *d_k, double *d_v) {
    const tess_class *cls = (const tess_class *)table(x, x->a.classes_at) + g->cls;
    const int64_t m = k / x->a.block;
    double ds;
    if (m < g->first || m >= g->first + g->blocks || !(run->bits >> (m & 31) & 1)) return;
    for (int64_t row = run->row; row < run->row + (int64_t)run->rows; row++) {
        const int64_t p = x->s->q_first + row, i = block_of(x, p);
        if (run->masked && !tess_kept(cls, p, t, i, block_of(x, t), run->bits, i - (m & 31)))
            continue;
        const double weight = pair(x, row, head, t, &ds);
        add(x, d_v, weight, D_O, ROW(x, o, row, head));
        add(x, d_k, ds, Q, ROW(x, q, row, head));
        for (uint32_t e = 0; x->dims && ds != 0 && e < x->a.head_dim; e++)
            accumulator(x, row, head)[e] +=
                (float)(ds * (double)element_load(x->dtype, x->buffers[K],
                                                  KEY(x, k, t, head / x->a.group) + e));
    }
}

static void run_key(const scene *x, const tess_column *column, int64_t k) {
    const tess_segment *segments = table(x, x->a.kv_heads_at);
    const tess_class *classes = table(x, x->a.classes_at);
    const int64_t t = tess_column_key(column, x->a.block, (uint32_t)k);
    double d_k[256] = {0}, d_v[256] = {0};
    for (uint32_t n = 0; n < column->segments; n++) {
        const tess_segment *g = &segments[column->segment + n];
        tess_row_run run;
        for (uint32_t i = 0; i < g->rows; i += run.taken) {
            run = tess_row_run_at(g, &classes[g->cls], x->s, x->a.block, table(x, x->a.entries_at),
                                  table(x, x->a.bits_at), i);
            for (int64_t head = g->head; head < g->head + g->heads; head++)
                add_rows(x, g, &run, head, k, t, d_k, d_v);
        }
    }
    if (x->a.flags & TESS_ARGS_D_K)
        store(x, FIRST_GRADIENT, KEY(x, lse, t, column->kv_head), d_k, (double)x->a.scale);
    if (x->a.flags & TESS_ARGS_D_V)
        store(x, SECOND_GRADIENT, KEY(x, v_scale, t, column->kv_head), d_v, 1);
}

#if defined(FAKE_LOCKSTEP)
/* The real kernels for Ampere, compiled for the host (lockstep.h). */
void lockstep_backward(const char *name, unsigned groups, const tess_sm80_backward_args *args);

static void run_lockstep(int number, unsigned groups, const void *parameter) {
    char name[64];
    tess_sm80_backward_args args;
    memcpy(&args, parameter, sizeof args);
    tess_arg_u64 *const pointers[] = {&args.q,   &args.k,     &args.v,      &args.d_o,
                                      &args.out, &args.out_v, &args.tables, &args.workspace};
    for (size_t n = 0; n < sizeof pointers / sizeof *pointers; n++)
        *pointers[n] = (uint64_t)(uintptr_t)fake_host(*pointers[n]);
    name_of(number, name, sizeof name);
    lockstep_backward(name, groups, &args);
}
#endif

void fake_backward_run(int number, unsigned groups, void *const *parameters) {
#if defined(FAKE_LOCKSTEP)
    if (number >= FIRST_SM80) {
        run_lockstep(number, groups, parameters[0]);
        return;
    }
#endif
    const kernel k = kernel_of(number);
    scene x = {.dtype = (uint32_t)k.dtype};
    uint64_t pointers[BUFFERS];
    int wants_q;
    x.a = read_arguments(number, parameters, pointers, &wants_q);
    x.dims = wants_q && k.stage != ROWS && k.stage != COLUMNS ? k.head_dim : 0;
    for (int n = 0; n < BUFFERS; n++) x.buffers[n] = fake_host(pointers[n]);
    x.tables = x.buffers[TABLES];
    x.workspace = x.buffers[WORKSPACE];
    if (!x.tables || !x.workspace || (!x.buffers[D_O] && k.stage != FINISH)) return;
    if ((int)x.a.head_dim > k.head_dim) {
        fake_misuse(700, "the kernel for head_dim %d is given %u", k.head_dim, x.a.head_dim);
        return;
    }
    for (uint32_t n = 0; n < x.a.items && n < groups; n++) {
        const void *items = table(&x, x.a.items_at);
        if (k.stage == DELTA) {
            run_strip(&x, (const tess_strip *)items + n);
        } else if (k.stage == FINISH) {
            finish_strip(&x, (const tess_strip *)items + n);
        } else if (k.stage == ROWS) {
            run_job(&x, (const tess_job *)items + n);
        } else {
            const tess_column *column = (const tess_column *)items + n;
            begin(&x, column->sequence);
            for (int64_t key = 0; key < column->keys; key++) run_key(&x, column, key);
        }
    }
}
