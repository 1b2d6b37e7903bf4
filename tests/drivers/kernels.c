/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels of the stand-ins compute: a plain loop that reads the same arguments and tables
 * as the real ones. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "common/elements.h"
#include "common/key_blocks.h"
#include "common/partials.h"
#include "fake.h"
#include "kernels/decode_args.h"
#include "kernels/sm80_args.h"
#include "kernels/sm90_args.h"
#include "shapes.h"

enum {
    FORWARD,
    FORWARD_FEW,
    MERGE,
    SM90,
    SM80,
    MERGE_PARTS,
    DECODE_MERGE,
    DECODE,
    SM90_PLACED,
    BACKWARD,
    PARTS = 3,
    DTYPES = 3,
    MERGE_GROUP = 128,
    PARTS_GROUP = 64
};

typedef struct kernel {
    int kind, dtype, head_dim;
    unsigned threads, rows; /* rows: of a tile, where the name has them */
    int kv_dtype;           /* codes of 8 bits, where the name has them */
} kernel;

static const char *const dtypes[DTYPES] = {"f32", "f16", "bf16"};
static const int portable_dims[] = {64, 128, 256}, fast_dims[] = {64, 96, 128, 192, 256};
#define THREADS_OF(head_dim, keys, groups, ...) TESS_SM90_THREADS(groups),
static const unsigned sm90_threads[] = {TESS_SM90_INSTANCES(THREADS_OF)};
#define SHAPE_WITH(head_dim, rows, groups, codes) \
    {head_dim, rows, 32 * TESS_DECODE_WARPS * (groups), codes},
#define SHAPE_OF(head_dim, rows, groups, keys) SHAPE_WITH(head_dim, rows, groups, 0)
#define E4M3_OF(head_dim, rows, groups, keys)  SHAPE_WITH(head_dim, rows, groups, TESS_F8E4M3)
#define I8_OF(head_dim, rows, groups, keys)    SHAPE_WITH(head_dim, rows, groups, TESS_I8)
static const struct {
    int head_dim;
    unsigned rows, most_threads;
    int kv_dtype;
} decode_shapes[] = {TESS_DECODE_INSTANCES(SHAPE_OF) TESS_DECODE_CODED_INSTANCES(E4M3_OF)
                         TESS_DECODE_CODED_INSTANCES(I8_OF)};
static const unsigned portable_threads[] = {TESS_THREADS_64, TESS_THREADS_128, TESS_THREADS_256};
static const unsigned few_threads[] = {TESS_FEW_THREADS_64, TESS_FEW_THREADS_128,
                                       TESS_FEW_THREADS_256};

enum {
    PORTABLE_DIMS = sizeof portable_dims / sizeof *portable_dims,
    FAST_DIMS = sizeof fast_dims / sizeof *fast_dims,
    DECODE_SHAPES = sizeof decode_shapes / sizeof *decode_shapes
};

/* Kernels are numbered: dtype, then kind and head_dim; those of paging.c are behind them. */
enum {
    FIRST_MERGE = 2 * PORTABLE_DIMS,
    PER_DTYPE = FIRST_MERGE + 3 + 3 * FAST_DIMS + DECODE_SHAPES,
    FIRST_PAGING = DTYPES * PER_DTYPE,
    PREPARE = FIRST_PAGING + FAKE_PAGING_KERNELS,
    FIRST_BACKWARD_SM90,
    FIRST_BACKWARD = FIRST_BACKWARD_SM90 + FAKE_BACKWARD_SM90_KERNELS
};

static kernel kernel_of(int number) {
    const int dtype = number / PER_DTYPE, n = number % PER_DTYPE;
    if (number >= FIRST_BACKWARD_SM90) return (kernel){BACKWARD, 0, 0, 0, 0, 0};
    if (n < PORTABLE_DIMS)
        return (kernel){FORWARD, dtype, portable_dims[n], portable_threads[n], 0, 0};
    const int few = n - PORTABLE_DIMS, merge = n - FIRST_MERGE;
    if (few < PORTABLE_DIMS)
        return (kernel){FORWARD_FEW, dtype, portable_dims[few], few_threads[few], 0, 0};
    if (merge == 0) return (kernel){MERGE, dtype, 0, MERGE_GROUP, 0, 0};
    if (merge == 1) return (kernel){MERGE_PARTS, dtype, 0, PARTS_GROUP, 0, 0};
    if (merge == 2) return (kernel){DECODE_MERGE, dtype, 0, TESS_DECODE_MERGE_THREADS, 0, 0};
    const int fast = merge - 3, shape = fast - 3 * FAST_DIMS;
    if (shape >= 0)
        return (kernel){DECODE,
                        dtype,
                        decode_shapes[shape].head_dim,
                        decode_shapes[shape].most_threads,
                        decode_shapes[shape].rows,
                        decode_shapes[shape].kv_dtype};
    const int dim = fast_dims[fast % FAST_DIMS];
    if (fast / FAST_DIMS == 1) return (kernel){SM80, dtype, dim, TESS_SM80_THREADS, 0, 0};
    return (kernel){fast < FAST_DIMS ? SM90 : SM90_PLACED, dtype, dim,
                    sm90_threads[fast % FAST_DIMS],        0,     0};
}

static int is_sm90(int kind) { return kind == SM90 || kind == SM90_PLACED; }

int fake_kernel_find(const char *name) {
    for (int n = 0; n < DTYPES * PER_DTYPE; n++) {
        static const char *const kinds[] = {"forward",      "forward_few", "merge",
                                            "sm90",         "sm80",        "merge_parts",
                                            "decode_merge", "decode",      "sm90_placed"};
        const kernel k = kernel_of(n);
        char text[64], rows[16] = "";
        const int fast = is_sm90(k.kind) || k.kind == SM80 || k.kind == DECODE;
        if ((fast || k.kind == DECODE_MERGE) && k.dtype == TESS_F32 &&
            !(k.kind == SM80 && (k.head_dim == 64 || k.head_dim == 128)))
            continue;
        if (k.rows) snprintf(rows, sizeof rows, "%u", k.rows);
        const char *codes = k.kv_dtype == 0 ? "" : k.kv_dtype == TESS_I8 ? "_i8" : "_e4m3";
        const int length = snprintf(text, sizeof text, "tess_%s%s%s_%s", kinds[k.kind], rows, codes,
                                    dtypes[k.dtype]);
        if (k.kind == FORWARD || k.kind == FORWARD_FEW || fast)
            snprintf(text + length, sizeof text - (size_t)length, "_%d", k.head_dim);
        if (strcmp(text, name) == 0) return n;
    }
    if (strcmp(name, "tess_prepare") == 0) return PREPARE;
    const int backward = fake_backward_find(name);
    if (backward >= 0) return FIRST_BACKWARD + backward;
    const int hopper = fake_backward_sm90_find(name);
    if (hopper >= 0) return FIRST_BACKWARD_SM90 + hopper;
    const int paging = fake_paging_find(name);
    return paging < 0 ? -1 : FIRST_PAGING + paging;
}

const size_t *fake_kernel_parameters(int number) {
    static const size_t portable[] = {8, 8, 8, 8, 8, 8, 8, 8, 8, 8, sizeof(tess_args), 0},
                        sm90[] = {sizeof(tess_sm90_maps), sizeof(tess_sm90_args), 0},
                        sm80[] = {sizeof(tess_sm80_args), 0},
                        decode[] = {sizeof(tess_decode_args), 0};
    if (number >= FIRST_BACKWARD) return fake_backward_parameters(number - FIRST_BACKWARD);
    if (number >= FIRST_BACKWARD_SM90)
        return fake_backward_sm90_parameters(number - FIRST_BACKWARD_SM90);
    if (number == PREPARE) return fake_prepare_parameters;
    if (number >= FIRST_PAGING) return fake_paging_parameters(number - FIRST_PAGING);
    const int kind = kernel_of(number).kind;
    if (kind == DECODE || kind == DECODE_MERGE) return decode;
    return is_sm90(kind) ? sm90 : kind == SM80 ? sm80 : portable;
}

int fake_kernel_takes(int number, unsigned threads) {
    if (number >= FIRST_BACKWARD) return fake_backward_takes(number - FIRST_BACKWARD, threads);
    if (number >= FIRST_BACKWARD_SM90)
        return fake_backward_sm90_takes(number - FIRST_BACKWARD_SM90, threads);
    if (number == PREPARE) return threads == FAKE_PREPARE_THREADS;
    if (number >= FIRST_PAGING) return threads == FAKE_PAGING_THREADS;
    const kernel k = kernel_of(number);
    if (k.kind == DECODE) return threads > 0 && threads % 32 == 0 && threads <= k.threads;
    return threads == k.threads;
}

/* The arguments of either kind of kernel. */
typedef struct arguments {
    tess_args a;
    /* Q, K, V, O, LSE, block table, tables, workspace, scales of K and V */
    uint64_t pointers[10];
    uint64_t counter;
    int dtype;
    double scale; /* the size of the scale */
} arguments;

/* What tess_sm80_args and tess_decode_args have in common. */
#define READ_ARGUMENTS(x, type, parameter, table)                                        \
    do {                                                                                 \
        type s;                                                                          \
        memcpy(&s, parameter, sizeof s);                                                 \
        const uint64_t p[8] = {s.q, s.k, s.v, s.o, s.lse, table, s.tables, s.workspace}; \
        memcpy((x)->pointers, p, sizeof p);                                              \
        (x)->a = s.common;                                                               \
        (x)->scale = (double)s.scale_log2 * log(2);                                      \
    } while (0)

/* Of float32 the strides count halves of elements. */
static void count_elements(tess_args *a) {
    tess_arg_i64 *const strides[] = {&a->q_batch, &a->q_token, &a->q_head,
                                     &a->k_batch, &a->k_token, &a->k_head,
                                     &a->v_batch, &a->v_token, &a->v_head};
    for (size_t n = 0; n < sizeof strides / sizeof *strides; n++) *strides[n] /= 2;
}

static arguments read_arguments(int number, void *const *parameters) {
    arguments x = {.dtype = kernel_of(number).dtype};
    if (is_sm90(kernel_of(number).kind)) {
        tess_sm90_args s;
        memcpy(&s, parameters[1], sizeof s);
        const uint64_t pointers[8] = {s.q,   s.k,           s.v,      s.o,
                                      s.lse, s.block_table, s.tables, s.workspace};
        memcpy(x.pointers, pointers, sizeof pointers);
        x.a = s.common;
        x.counter = s.counter;
    } else if (kernel_of(number).kind == SM80) {
        READ_ARGUMENTS(&x, tess_sm80_args, parameters[0], s.block_table);
        if (x.dtype == TESS_F32) count_elements(&x.a);
        return x;
    } else if (kernel_of(number).kind == DECODE || kernel_of(number).kind == DECODE_MERGE) {
        READ_ARGUMENTS(&x, tess_decode_args, parameters[0], s.block_table);
        tess_decode_args decode;
        memcpy(&decode, parameters[0], sizeof decode);
        x.pointers[8] = decode.k_scale;
        x.pointers[9] = decode.v_scale;
        return x;
    } else {
        static const int places[10] = {0, 1, 2, 3, 4, 5, 8, 9, 6, 7};
        for (int n = 0; n < 10; n++) memcpy(&x.pointers[places[n]], parameters[n], 8);
        memcpy(&x.a, parameters[10], sizeof x.a);
    }
    x.scale = fabs((double)x.a.scale);
    return x;
}

static uint32_t kv_dtype_of(const arguments *x) {
    return x->a.flags & TESS_ARGS_E4M3 ? TESS_F8E4M3
           : x->a.flags & TESS_ARGS_I8 ? TESS_I8
                                       : (uint32_t)x->dtype;
}

void fake_kernel_describe(int number, void *const *parameters, char *text, size_t size) {
    if (number == PREPARE) {
        fake_prepare_describe(parameters, text, size);
        return;
    }
    if (number >= FIRST_BACKWARD) {
        fake_backward_describe(number - FIRST_BACKWARD, parameters, text, size);
        return;
    }
    if (number >= FIRST_BACKWARD_SM90) {
        fake_backward_sm90_describe(number - FIRST_BACKWARD_SM90, parameters, text, size);
        return;
    }
    if (number >= FIRST_PAGING) {
        fake_paging_describe(number - FIRST_PAGING, parameters, text, size);
        return;
    }
    const arguments x = read_arguments(number, parameters);
    const tess_args *a = &x.a;
    snprintf(text, size, " items %u from %u head_dim %u block %u group %u flags %u partial_rows %u",
             a->items, a->items_at, a->head_dim, a->block, a->group, a->flags, a->partial_rows);
}

/* ------------------------------------------------------------------ attention */

typedef struct buffers {
    const tess_args *a;
    double scale; /* its size, as the kernel itself is told */
    int dtype;
    const void *q, *k, *v;
    void *o;
    float *lse;
    const int32_t *block_table;
    const uint32_t *tables;
    float *workspace;
    const float *k_scale, *v_scale;
    uint32_t kv_dtype;
} buffers;

typedef struct row {
    const buffers *b;
    const tess_sequence *sequence;
    const tess_class *cls;
    int64_t position, first_block, kv_head;
    float q[256];
    row_softmax softmax;
} row;

static int64_t block_of(int64_t token, int64_t block) {
    return token >= 0 ? token / block : -((block - 1 - token) / block);
}

/* Where the row of a key lies in K and V, and what its elements are multiplied by. */
typedef struct key {
    int64_t k, v;
    double k_scale, v_scale;
} key;

/* Finds key t of block j; false where its page is none. */
static int find_key(const row *r, int64_t j, int64_t t, key *found) {
    const buffers *b = r->b;
    const tess_args *a = b->a;
    const tess_sequence *s = r->sequence;
    int64_t head = r->kv_head, at = s->kv_start + t, page = s->kv_batch;
    if (a->flags & TESS_ARGS_COMPACT) {
        const tess_kv_head *own =
            (const tess_kv_head *)(const void *)(b->tables + a->kv_heads_at) + head;
        const tess_slot *slots = (const tess_slot *)(const void *)(b->tables + a->slots_at);
        head = own->pool_head;
        at = (int64_t)slots[own->slots_offset + s->kv_start + j].slot * a->block + t % a->block;
    }
    if (a->flags & TESS_ARGS_PAGED) {
        page =
            b->block_table[a->block_table_at + s->kv_batch * a->block_table_batch + at / a->page];
        at %= a->page;
        if (page < 0 || page >= (int64_t)a->pages) return 0;
    }
    found->k = a->k_at + page * a->k_batch + at * a->k_token + head * a->k_head;
    found->v = a->v_at + page * a->v_batch + at * a->v_token + head * a->v_head;
    found->k_scale = found->v_scale = 1;
    if ((int)b->kv_dtype == b->dtype) return 1;
    found->k_scale = (double)b->k_scale[a->k_scale_at + page * a->k_scale_batch +
                                        at * a->k_scale_token + head * a->k_scale_head];
    found->v_scale = (double)b->v_scale[a->v_scale_at + page * a->v_scale_batch +
                                        at * a->v_scale_token + head * a->v_scale_head];
    return 1;
}

static void add_block(void *state, int64_t j, uint32_t bits, int masked) {
    row *r = state;
    const buffers *b = r->b;
    const tess_args *a = b->a;
    const tess_sequence *s = r->sequence;
    for (int64_t t = j * a->block; t < (j + 1) * a->block && t < s->kv_len; t++) {
        if (masked && !tess_kept(r->cls, r->position, t, block_of(r->position, a->block), j, bits,
                                 r->first_block))
            continue;
        key found;
        if (!find_key(r, j, t, &found)) continue;
        double score = 0;
        for (uint32_t e = 0; e < a->head_dim; e++)
            score += (double)r->q[e] * element_load(b->kv_dtype, b->k, found.k + e) * found.k_scale;
        if (a->scale < 0) score = -score;
        const double weight = softmax_weigh(&r->softmax, score, b->scale, (int)a->head_dim);
        for (uint32_t e = 0; e < a->head_dim; e++)
            r->softmax.o[e] +=
                weight * element_load(b->kv_dtype, b->v, found.v + e) * found.v_scale;
    }
}

static float *partial_at(const buffers *b, uint32_t partial) {
    return partial_of(b->workspace + b->a->partials_at, partial, b->a->partial_rows,
                      (int)b->a->head_dim);
}

static void write_row(const buffers *b, const tess_sequence *s, int64_t token, int64_t head,
                      const double *o, double lse) {
    const tess_args *a = b->a;
    const int64_t at =
        a->o_at + s->batch * a->o_batch + (s->q_start + token) * a->o_token + head * a->o_head;
    for (uint32_t e = 0; e < a->head_dim; e++)
        element_store((uint32_t)b->dtype, b->o, at + e, (float)o[e]);
    if (a->flags & TESS_ARGS_LSE)
        b->lse[a->lse_at + s->batch * a->lse_batch + (s->q_start + token) * a->lse_token +
               head * a->lse_head] = (float)lse;
}

static void forward_row(const buffers *b, const tess_job *job, int64_t pack, int64_t n) {
    const tess_args *a = b->a;
    const uint32_t *entries = b->tables + a->entries_at, *bits = b->tables + a->bits_at;
    row r = {.b = b, .softmax.most = -INFINITY};
    r.sequence = (const tess_sequence *)(const void *)(b->tables + a->sequences_at) + job->sequence;
    r.cls = (const tess_class *)(const void *)(b->tables + a->classes_at) + job->cls;
    const tess_sequence *s = r.sequence;
    const int64_t head = job->head + pack, first = (int64_t)s->q_first + job->row;
    r.kv_head = head / a->group;
    r.position = first + n;
    r.first_block = block_of(first, a->block);
    const int64_t q = a->q_at + s->batch * a->q_batch + (s->q_start + job->row + n) * a->q_token +
                      head * a->q_head;
    for (uint32_t e = 0; e < a->head_dim; e++)
        r.q[e] = element_load((uint32_t)b->dtype, b->q, q + e);
    key_blocks(job, r.cls, entries, bits, add_block, &r);
    const double lse = softmax_end(&r.softmax, b->scale, (int)a->head_dim);
    if (job->partial == TESS_NO_PARTIAL)
        write_row(b, s, job->row + n, head, r.softmax.o, lse);
    else
        partial_write(partial_at(b, job->partial), a->partial_rows, (int)a->head_dim,
                      pack * job->rows + n, &r.softmax);
}

static void merge_row(const buffers *b, const tess_merge *merge, int64_t pack, int64_t n) {
    const tess_args *a = b->a;
    const tess_sequence *s =
        (const tess_sequence *)(const void *)(b->tables + a->sequences_at) + merge->sequence;
    double o[256];
    const double lse = partials_merge(partial_at(b, merge->partial), merge->parts, a->partial_rows,
                                      (int)a->head_dim, pack * merge->rows + n, b->scale, o);
    write_row(b, s, merge->row + n, merge->head + pack, o, lse);
}

/* The arguments are those of attention: O of the parts is Q, and their LSE the workspace. */
static void merge_parts(const buffers *b, uint32_t item) {
    const tess_args *a = b->a;
    const int64_t token = item / a->group, head = item % a->group,
                  first = a->partials_at + token * a->k_token + head * a->k_head;
    double most = -INFINITY, sum = 0, o[256] = {0};
    for (int64_t n = 0; n < (int64_t)a->partial_rows; n++)
        most = fmax(most, (double)b->workspace[first + n * a->k_batch]);
    for (int64_t n = 0; n < (int64_t)a->partial_rows; n++) {
        const double lse = (double)b->workspace[first + n * a->k_batch],
                     weight = lse == -INFINITY ? 0 : exp(lse - most);
        const int64_t at = a->q_at + n * a->q_batch + token * a->q_token + head * a->q_head;
        sum += weight;
        for (uint32_t e = 0; e < a->head_dim && weight > 0; e++)
            o[e] += weight * element_load((uint32_t)b->dtype, b->q, at + e);
    }
    for (uint32_t e = 0; e < a->head_dim; e++)
        element_store((uint32_t)b->dtype, b->o, a->o_at + token * a->o_token + head * a->o_head + e,
                      sum > 0 ? (float)(o[e] / sum) : 0);
    if (a->flags & TESS_ARGS_LSE)
        b->lse[a->lse_at + token * a->lse_token + head * a->lse_head] =
            sum > 0 ? (float)(most + log(sum)) : -INFINITY;
}

#if defined(FAKE_LOCKSTEP)
/* The real kernels for few rows, compiled for the host (lockstep.h). */
void lockstep_decode(int dtype, int kv_dtype, int head_dim, unsigned rows, unsigned groups,
                     const tess_decode_args *args);
void lockstep_decode_merge(int dtype, unsigned groups, const tess_decode_args *args);

static void run_lockstep(kernel k, unsigned groups, const void *parameter) {
    tess_decode_args args;
    memcpy(&args, parameter, sizeof args);
    tess_arg_u64 *const pointers[] = {
        &args.q,           &args.k,      &args.v,         &args.o,       &args.lse,
        &args.block_table, &args.tables, &args.workspace, &args.k_scale, &args.v_scale};
    for (size_t n = 0; n < sizeof pointers / sizeof *pointers; n++)
        *pointers[n] = (uint64_t)(uintptr_t)fake_host(*pointers[n]);
    if (k.kind == DECODE_MERGE)
        lockstep_decode_merge(k.dtype, groups, &args);
    else
        lockstep_decode(k.dtype, k.kv_dtype, k.head_dim, k.rows, groups, &args);
}

/* And that for Ampere and later, for float32, if FAKE_DRIVER_TF32 is set: it takes minutes where
 * problems are larger, and a plain loop has other bits, so the size of a launch may not decide. */
void lockstep_tf32(int head_dim, unsigned groups, const tess_sm80_args *args);

static void run_tf32(kernel k, unsigned groups, const void *parameter) {
    tess_sm80_args args;
    memcpy(&args, parameter, sizeof args);
    tess_arg_u64 *const pointers[] = {&args.q,   &args.k,           &args.v,      &args.o,
                                      &args.lse, &args.block_table, &args.tables, &args.workspace};
    for (size_t n = 0; n < sizeof pointers / sizeof *pointers; n++)
        *pointers[n] = (uint64_t)(uintptr_t)fake_host(*pointers[n]);
    lockstep_tf32(k.head_dim, groups, &args);
}
#endif

void fake_kernel_run(int number, unsigned groups, void *const *parameters) {
    if (number >= FIRST_BACKWARD) {
        fake_backward_run(number - FIRST_BACKWARD, groups, parameters);
        return;
    }
    if (number >= FIRST_BACKWARD_SM90) {
        fake_backward_sm90_run(number - FIRST_BACKWARD_SM90, groups, parameters);
        return;
    }
    if (number == PREPARE) {
        fake_prepare_run(groups, parameters);
        return;
    }
    if (number >= FIRST_PAGING) {
        fake_paging_run(number - FIRST_PAGING, groups, parameters);
        return;
    }
    const kernel k = kernel_of(number);
#if defined(FAKE_LOCKSTEP)
    if (k.kind == SM80 && k.dtype == TESS_F32 && getenv("FAKE_DRIVER_TF32")) {
        run_tf32(k, groups, parameters[0]);
        return;
    }
    if (k.kind == DECODE || k.kind == DECODE_MERGE) {
        run_lockstep(k, groups, parameters[0]);
        return;
    }
#endif
    const arguments x = read_arguments(number, parameters);
    const buffers b = {&x.a,
                       x.scale,
                       x.dtype,
                       fake_host(x.pointers[0]),
                       fake_host(x.pointers[1]),
                       fake_host(x.pointers[2]),
                       fake_host(x.pointers[3]),
                       fake_host(x.pointers[4]),
                       fake_host(x.pointers[5]),
                       fake_host(x.pointers[6]),
                       fake_host(x.pointers[7]),
                       fake_host(x.pointers[8]),
                       fake_host(x.pointers[9]),
                       kv_dtype_of(&x)};
    if (k.kind == MERGE_PARTS) {
        for (uint32_t n = 0; n < x.a.items && n < groups; n++) merge_parts(&b, x.a.items_at + n);
        return;
    }
    if (!b.tables || !b.o) return;
    const int merges = k.kind == MERGE || k.kind == DECODE_MERGE;
    if (!merges && (int)x.a.head_dim > k.head_dim) {
        fake_misuse(700, "the kernel for head_dim %d is given %u", k.head_dim, x.a.head_dim);
        return;
    }
    if (k.kind == SM90 && x.a.flags & (TESS_ARGS_PAGED | TESS_ARGS_COMPACT)) {
        fake_misuse(700, "a kernel that reads neither pages nor slots is given them");
        return;
    }
    /* Thread blocks on Hopper, or for few rows or a merge in a step, share out what there is;
     * others take one each. */
    const int in_step = (x.a.flags & TESS_ARGS_STEP) != 0,
              deals = is_sm90(k.kind) || k.kind == DECODE_MERGE ||
                      ((k.kind == DECODE || k.kind == MERGE) && in_step);
    unsigned items = deals || x.a.items < groups ? x.a.items : groups;
    if (in_step) {
        const uint32_t all = b.tables[x.a.count_at],
                       behind = all > x.a.first_item ? all - x.a.first_item : 0;
        if (items > behind) items = behind;
    }
    const uint32_t *counter = fake_host(x.counter);
    if (counter && *counter != 0) fake_misuse(700, "the counter of jobs is not 0");
    for (unsigned i = 0; i < items; i++) {
        const void *item =
            b.tables + x.a.items_at + i * (merges ? sizeof(tess_merge) : sizeof(tess_job)) / 4;
        const tess_job *job = item;
        const tess_merge *merge = item;
        const int heads = merges ? merge->heads : job->heads,
                  rows = merges ? merge->rows : job->rows;
        for (int pack = 0; pack < heads; pack++)
            for (int n = 0; n < rows; n++)
                merges ? merge_row(&b, merge, pack, n) : forward_row(&b, job, pack, n);
    }
}
