/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in's kernels of backward for Hopper: plain loops over the same arguments and tables,
 * which take the columns in their order and look whether each one's turn has come. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <tessera/tessera_column_walk.h>
#include <tessera/tessera_turns.h>

#include "common/elements.h"
#include "fake.h"
#include "kernels/sm90_backward_args.h"
#include "lockstep_schedule.h"

/* COLUMNS_DQ and COLUMNS_DKV compute only a part of the gradients. */
enum { DELTA, FINISH, COLUMNS, COLUMNS_DQ, COLUMNS_DKV, STAGES, DTYPES = 2, MOST_DIM = 128 };

#define SHAPE(head_dim, rows) {head_dim, rows},
static const struct { int head_dim, rows; } shapes[] = {TESS_SM90_BACKWARD_INSTANCES(SHAPE)};
enum { SHAPES = sizeof shapes / sizeof *shapes };
_Static_assert((int)FAKE_BACKWARD_SM90_KERNELS == DTYPES * SHAPES * STAGES,
               "every kernel has a number");

int fake_backward_sm90_find(const char *name) {
    static const char *const stages[STAGES] = {"delta", "finish", "columns", "columns_dq",
                                               "columns_dkv"},
                             *const dtypes[DTYPES] = {"f16", "bf16"};
    for (int n = 0; n < FAKE_BACKWARD_SM90_KERNELS; n++) {
        char text[64];
        snprintf(text, sizeof text, "tess_sm90_%s_%s_%d", stages[n % STAGES],
                 dtypes[n / STAGES % DTYPES], shapes[n / STAGES / DTYPES].head_dim);
        if (strcmp(text, name) == 0) return n;
    }
    return -1;
}

int fake_backward_sm90_takes(int number, unsigned threads) {
    static const unsigned all[STAGES] = {TESS_SM90_DELTA_THREADS, TESS_SM90_FINISH_THREADS,
                                         TESS_SM90_COLUMN_THREADS, TESS_SM90_COLUMN_THREADS,
                                         TESS_SM90_COLUMN_THREADS};
    return threads == all[number % STAGES];
}

const size_t *fake_backward_sm90_parameters(int number) {
    static const size_t columns[] = {sizeof(tess_sm90_backward_maps),
                                     sizeof(tess_sm90_backward_args), 0},
                        strips[] = {sizeof(tess_sm90_backward_args), 0};
    return number % STAGES >= COLUMNS ? columns : strips;
}

static tess_sm90_backward_args read_args(int number, void *const *parameters) {
    tess_sm90_backward_args a;
    memcpy(&a, parameters[number % STAGES >= COLUMNS], sizeof a);
    return a;
}

void fake_backward_sm90_describe(int number, void *const *parameters, char *text, size_t size) {
    const tess_sm90_backward_args a = read_args(number, parameters);
    snprintf(text, size, " items %u from %u head_dim %u block %u group %u turns %d wide %u tma %u",
             a.items, a.items_at, a.head_dim, a.block, a.group, a.turns != 0, a.wide, a.tma);
}

/* ------------------------------------------------------------------ where things are */

typedef struct scene {
    tess_sm90_backward_args a;
    uint32_t dtype;
    int64_t strip_rows;
    void *at[TESS_SM90_TENSORS];
    const uint32_t *tables;
    float *rows, *accumulators, *sums;
    uint32_t *turns, *sum_turns;
    const tess_sequence *s; /* of the item at hand */
    int64_t first_strip;
} scene;

static const void *table(const scene *x, uint32_t word) { return x->tables + word; }

static void begin(scene *x, uint32_t sequence) {
    const uint32_t *first = table(x, x->a.first_strips_at);
    x->s = (const tess_sequence *)table(x, x->a.sequences_at) + sequence;
    x->first_strip = first[sequence];
}

static int64_t place(const scene *x, int tensor, int64_t batch, int64_t token, int64_t head) {
    const tess_sm90_tensor *t = &x->a.tensor[tensor];
    return batch * t->batch + token * t->token + head * t->head;
}
static int64_t row_place(const scene *x, int tensor, int64_t row, int64_t head) {
    return place(x, tensor, x->s->batch, x->s->q_start + row, head);
}
static int64_t key_place(const scene *x, int tensor, int64_t key, int64_t head) {
    return place(x, tensor, x->s->kv_batch, x->s->kv_start + key, head);
}

/* A strip's number among those of all heads, and LSE of a row, behind which Delta is. */
static int64_t strip_of(const scene *x, int64_t row, int64_t head) {
    return head * x->a.strips + x->first_strip + row / x->strip_rows;
}
static float *lse_of(const scene *x, int64_t row, int64_t head) {
    return x->rows + strip_of(x, row, head) * 2 * x->strip_rows + row % x->strip_rows;
}
static float *accumulator(const scene *x, int64_t row, int64_t head, int64_t dims) {
    return x->accumulators + (strip_of(x, row, head) * x->strip_rows + row % x->strip_rows) * dims;
}

static double dot(const scene *x, int a, int64_t a_at, int b, int64_t b_at) {
    return vector_dot(x->dtype, x->a.head_dim, x->at[a], a_at, x->at[b], b_at);
}

static void add(const scene *x, double *sums, double weight, int from, int64_t at) {
    vector_add(x->dtype, x->a.head_dim, sums, weight, x->at[from], at);
}

static void store(const scene *x, int to, uint32_t kind, int64_t at, uint32_t e, double value) {
    const uint32_t dtype = x->a.f32 & kind ? TESS_F32 : x->dtype;
    const double before = x->a.add & kind ? (double)element_load(dtype, x->at[to], at + e) : 0;
    element_store(dtype, x->at[to], at + e, (float)(before + value));
}

/* ------------------------------------------------------------------ strips */

static void run_delta(const scene *x, const tess_strip *strip, int64_t head, int64_t dims) {
    if (x->turns) x->turns[strip_of(x, strip->row, head)] = 0;
    for (int64_t row = strip->row; row < strip->row + x->strip_rows; row++) {
        float *lse = lse_of(x, row, head);
        double delta = 0;
        memset(accumulator(x, row, head, dims), 0, (size_t)dims * sizeof(float));
        *lse = INFINITY;
        if (row < x->s->q_len)
            *lse = element_load(TESS_F32, x->at[TESS_SM90_LSE],
                                row_place(x, TESS_SM90_LSE, row, head));
        if (!isinf(*lse)) {
            delta = dot(x, TESS_SM90_O, row_place(x, TESS_SM90_O, row, head), TESS_SM90_D_O,
                        row_place(x, TESS_SM90_D_O, row, head));
            if (x->at[TESS_SM90_D_LSE])
                delta -= (double)element_load(TESS_F32, x->at[TESS_SM90_D_LSE],
                                              row_place(x, TESS_SM90_D_LSE, row, head));
        }
        lse[x->strip_rows] = (float)delta;
    }
}

static void run_finish(const scene *x, const tess_strip *strip, int64_t head, int64_t dims) {
    for (int64_t row = strip->row; row < strip->row + x->strip_rows && row < x->s->q_len; row++)
        for (uint32_t e = 0; e < x->a.head_dim; e++)
            store(x, TESS_SM90_D_Q, TESS_SM90_DQ, row_place(x, TESS_SM90_D_Q, row, head), e,
                  (double)x->a.scale * (double)accumulator(x, row, head, dims)[e]);
}

/* ------------------------------------------------------------------ columns */

typedef struct key_sums {
    double d_k[MOST_DIM], d_v[MOST_DIM];
} key_sums;

static void add_pair(const scene *x, int64_t row, int64_t head, int64_t t, int64_t dims,
                     key_sums *sums) {
    const int64_t kv_head = head / x->a.group;
    const float *lse = lse_of(x, row, head);
    double d_q[MOST_DIM] = {0};
    if (isinf(*lse)) return;
    const double p = exp((double)x->a.scale * dot(x, TESS_SM90_Q,
                                                  row_place(x, TESS_SM90_Q, row, head), TESS_SM90_K,
                                                  key_place(x, TESS_SM90_K, t, kv_head)) -
                         (double)*lse),
                 ds = p * (dot(x, TESS_SM90_D_O, row_place(x, TESS_SM90_D_O, row, head),
                               TESS_SM90_V, key_place(x, TESS_SM90_V, t, kv_head)) -
                           (double)lse[x->strip_rows]);
    add(x, sums->d_v, p, TESS_SM90_D_O, row_place(x, TESS_SM90_D_O, row, head));
    add(x, sums->d_k, ds, TESS_SM90_Q, row_place(x, TESS_SM90_Q, row, head));
    add(x, d_q, ds, TESS_SM90_K, key_place(x, TESS_SM90_K, t, kv_head));
    for (uint32_t e = 0; e < x->a.head_dim; e++)
        accumulator(x, row, head, dims)[e] += (float)d_q[e];
}

static void clear_column(key_sums *sums) { memset(sums, 0, TESS_SM90_COLUMN_KEYS * sizeof *sums); }

/* How many columns add to the sums of a column before it; -1: it is not cut. */
static int32_t before(const scene *x, uint32_t number) {
    const uint32_t same = number / x->a.parts;
    if (number >= x->a.cut_columns) return -1;
    return (int32_t)(same / x->a.n_sums * x->a.parts + number % x->a.parts);
}

/* Adds what a column has to the columns before it that have the same keys, as add_up() of
 * mainloop_backward.cuh does. True for the last of them. */
static int add_up(const scene *x, const tess_column *column, uint32_t number, int64_t dims,
                  key_sums *sums) {
    if (before(x, number) < 0) return 1;
    const uint32_t part = number % x->a.parts, place = number / x->a.parts % x->a.n_sums;
    for (int half = 0; half < 2; half++) {
        uint32_t *turn = &x->sum_turns[2 * place + half];
        if (*turn != (uint32_t)before(x, number))
            fake_misuse(700, "part %u of key %u comes as number %u", part, column->key, *turn);
        ++*turn;
    }
    for (int64_t k = 0; k < column->keys; k++) {
        float *d_v = x->sums + ((int64_t)place * TESS_SM90_COLUMN_KEYS + k) * 2 * dims,
              *d_k = d_v + dims;
        for (int64_t e = 0; e < dims; e++) {
            if (part > 0) {
                sums[k].d_v[e] += (double)d_v[e];
                sums[k].d_k[e] += (double)d_k[e];
            }
            d_v[e] = (float)sums[k].d_v[e];
            d_k[e] = (float)sums[k].d_k[e];
        }
    }
    return part + 1 == x->a.parts;
}

static void store_column(const scene *x, const tess_column *column, uint32_t number, int64_t dims,
                         key_sums *sums) {
    if (!add_up(x, column, number, dims, sums)) return;
    for (int64_t k = 0; k < column->keys; k++) {
        const int64_t t = tess_column_key(column, x->a.block, (uint32_t)k);
        for (uint32_t e = 0; e < x->a.head_dim; e++) {
            if (x->at[TESS_SM90_D_K])
                store(x, TESS_SM90_D_K, TESS_SM90_DKV,
                      key_place(x, TESS_SM90_D_K, t, column->kv_head), e,
                      (double)x->a.scale * sums[k].d_k[e]);
            if (x->at[TESS_SM90_D_V])
                store(x, TESS_SM90_D_V, TESS_SM90_DKV,
                      key_place(x, TESS_SM90_D_V, t, column->kv_head), e, sums[k].d_v[e]);
        }
    }
}

static uint32_t leave_of(const scene *x, uint32_t number) {
    return tess_turn_leave(tess_turn_column(number, x->a.cut_columns / x->a.parts, x->a.parts));
}

static void take_turn(const scene *x, int64_t strip, uint32_t wait, uint32_t number) {
    uint32_t *word = &x->turns[strip];
    if (*word != wait)
        fake_misuse(700, "column %u comes after %u where it should after %u", number, *word, wait);
    *word = leave_of(x, number);
}

#if defined(FAKE_LOCKSTEP)
/* ------------------------------------------------------------------ steps of the real scheduler */

typedef struct stepper {
    scene *x;
    int64_t dims;
    key_sums sums[TESS_SM90_COLUMN_KEYS];
} stepper;

static void visit_step(void *context, const lockstep_step *step) {
    stepper *s = (stepper *)context;
    scene *x = s->x;
    const tess_column *column = (const tess_column *)table(x, x->a.items_at) + step->column;
    const uint32_t number = x->a.first_item + step->column;
    begin(x, column->sequence);
    const int64_t row = (int64_t)step->position - x->s->q_first;
    if (step->first) clear_column(s->sums);
    if (step->has_strip &&
        (row < 0 || row % x->strip_rows != 0 || strip_of(x, row, step->head) != step->strip ||
         step->token != x->s->q_start + row || step->batch != (int64_t)x->s->batch))
        fake_misuse(700, "column %u: a step of strip %u begins at row %d", step->column,
                    step->strip, (int)row);
    if (step->has_strip && x->turns && x->at[TESS_SM90_D_Q])
        take_turn(x, step->strip, step->wait, number);
    if (step->has_strip && x->turns && step->leave != leave_of(x, number))
        fake_misuse(700, "column %u leaves as %u", step->column, step->leave);
    for (int64_t k = 0; k < TESS_SM90_COLUMN_KEYS; k++)
        for (int64_t i = step->from[k]; i < step->to[k]; i++)
            add_pair(x, row + i, step->head, tess_column_key(column, x->a.block, (uint32_t)k),
                     s->dims, &s->sums[k]);
    if (step->before != before(x, number))
        fake_misuse(700, "column %u: %d add before", step->column, step->before);
    if (step->last) store_column(x, column, number, s->dims, s->sums);
}

static void run_columns(scene *x, int64_t dims) {
    static stepper s;
    tess_sm90_backward_args host = x->a;
    host.tables = (uint64_t)(uintptr_t)x->tables;
    s.x = x;
    s.dims = dims;
    lockstep_schedule(&host, (int)dims, visit_step, &s);
}

#else
/* ------------------------------------------------------------------ plain loops */

static int64_t block_of(const scene *x, int64_t position) {
    const int64_t block = x->a.block;
    return position >= 0 ? position / block : -((block - 1 - position) / block);
}

static void add_segment(const scene *x, const tess_segment *g, const tess_column *column,
                        int64_t dims, key_sums *sums) {
    const tess_class *cls = (const tess_class *)table(x, x->a.classes_at) + g->cls;
    tess_segment plain = *g;
    tess_row_run run;
    if (x->a.turns) plain.step = 0;
    for (uint32_t i = 0; i < g->rows; i += run.taken) {
        run = tess_row_run_at(&plain, cls, x->s, x->a.block, table(x, x->a.entries_at),
                              table(x, x->a.bits_at), i);
        for (int64_t k = 0; k < column->keys; k++) {
            const int64_t m = k / x->a.block, t = tess_column_key(column, x->a.block, (uint32_t)k);
            if (m < g->first || m >= g->first + g->blocks || !(run.bits >> (m & 31) & 1)) continue;
            for (int64_t row = run.row; row < run.row + (int64_t)run.rows; row++) {
                const int64_t p = x->s->q_first + row, n = block_of(x, p);
                if (run.masked && !tess_kept(cls, p, t, n, block_of(x, t), run.bits, n - (m & 31)))
                    continue;
                for (int64_t head = g->head; head < g->head + g->heads; head++)
                    add_pair(x, row, head, t, dims, &sums[k]);
            }
        }
    }
}

/* Takes the column's turn at each strip of a segment. */
static void take_turns(const scene *x, const tess_segment *g, uint32_t number) {
    const tess_turn turn = tess_turn_of(g, (uint32_t)x->strip_rows);
    for (uint32_t m = 0; m < turn.strips; m++) {
        const tess_turn_rows at = tess_turn_rows_at(g, (uint32_t)x->strip_rows, m);
        for (int64_t head = g->head; head < g->head + g->heads; head++)
            take_turn(x, strip_of(x, at.row, head), turn.wait, number);
    }
}

static void run_column(const scene *x, const tess_column *column, uint32_t number, int64_t dims) {
    static key_sums sums[TESS_SM90_COLUMN_KEYS];
    clear_column(sums);
    for (uint32_t n = 0; n < column->segments; n++) {
        const tess_segment *g =
            (const tess_segment *)table(x, x->a.segments_at) + column->segment + n;
        if (x->turns && x->at[TESS_SM90_D_Q]) take_turns(x, g, number);
        add_segment(x, g, column, dims, sums);
    }
    store_column(x, column, number, dims, sums);
}

static void run_columns(scene *x, int64_t dims) {
    for (uint32_t n = 0; n < x->a.items; n++) {
        const tess_column *column = (const tess_column *)table(x, x->a.items_at) + n;
        begin(x, column->sequence);
        run_column(x, column, x->a.first_item + n, dims);
    }
}
#endif

/* ------------------------------------------------------------------ kernels */

/* A kernel writes no gradient but those that it is for, and has to be the one for those that the
 * run wants. */
static void look_at_wanted(const scene *x, int stage) {
    const int queries = x->at[TESS_SM90_D_Q] != NULL,
              keys = x->at[TESS_SM90_D_K] != NULL || x->at[TESS_SM90_D_V] != NULL;
    if (stage != (queries && keys ? COLUMNS : queries ? COLUMNS_DQ : COLUMNS_DKV))
        fake_misuse(700, "a kernel of columns for other gradients than the run wants");
}

void fake_backward_sm90_run(int number, unsigned groups, void *const *parameters) {
    scene x = {.a = read_args(number, parameters)};
    const int stage = number % STAGES, dims = shapes[number / STAGES / DTYPES].head_dim;
    x.dtype = number / STAGES % DTYPES ? TESS_BF16 : TESS_F16;
    x.strip_rows = shapes[number / STAGES / DTYPES].rows;
    for (int n = 0; n < TESS_SM90_TENSORS; n++)
        if (x.a.tensor[n].address) x.at[n] = fake_host(x.a.tensor[n].address);
    x.tables = fake_host(x.a.tables);
    x.rows = fake_host(x.a.rows);
    x.accumulators = fake_host(x.a.accumulators);
    x.turns = x.a.turns ? fake_host(x.a.turns) : NULL;
    x.sum_turns = x.a.cut_columns > 0 ? fake_host(x.a.sum_turns) : NULL;
    x.sums = x.a.cut_columns > 0 ? fake_host(x.a.sums) : NULL;
    if (!x.tables || !x.rows || !x.accumulators) return;
    if (x.a.parts == 0 || x.a.group % x.a.parts != 0 || x.a.cut_columns % x.a.parts != 0) {
        fake_misuse(700, "%u columns are cut, %u of the same keys", x.a.cut_columns, x.a.parts);
        return;
    }
    if ((int)x.a.head_dim > dims) {
        fake_misuse(700, "the kernel for head_dim %d is given %u", dims, x.a.head_dim);
        return;
    }
    if (stage >= COLUMNS) {
        look_at_wanted(&x, stage);
        const uint32_t *counter = fake_host(x.a.counter);
        if (counter && *counter != 0) fake_misuse(700, "the counter of columns is not 0");
        run_columns(&x, dims);
        return;
    }
    if (groups != x.a.items * x.a.heads) fake_misuse(700, "a strip of a head has no workgroup");
    for (uint32_t n = 0; n < x.a.items * x.a.heads; n++) {
        const tess_strip *strip = (const tess_strip *)table(&x, x.a.items_at) + n / x.a.heads;
        begin(&x, strip->sequence);
        if (stage == DELTA)
            run_delta(&x, strip, n % x.a.heads, dims);
        else
            run_finish(&x, strip, n % x.a.heads, dims);
    }
}
