/* SPDX-License-Identifier: Apache-2.0 */
#include "check_problem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { HEADS = TESS_CHECK_HEADS, KV_HEADS = TESS_CHECK_KV_HEADS, GROUP = HEADS / KV_HEADS };
enum { BLOCK = TESS_CHECK_BLOCK, LOCAL = TESS_CHECK_LOCAL, STRIDE = TESS_CHECK_STRIDE };
enum { ROWS = TESS_CHECK_ROWS, KEYS = TESS_CHECK_KEYS, TOKENS = TESS_CHECK_TOKENS };
enum { FIRST = KEYS - ROWS /* position of row 0 */ };
enum { ENTRIES = (TOKENS / BLOCK + STRIDE - 1) / STRIDE, ALIGN = 256 };
enum { SPARSE, DENSE, CLASSES };

void tess_check_key(uint32_t dtype, int32_t dims, tess_kernel_key *key) {
    *key = (tess_kernel_key){.struct_size = sizeof *key,
                             .op = TESS_OP_FORWARD,
                             .dtype = dtype,
                             .kv_dtype = dtype,
                             .head_dim = dims,
                             .value_head_dim = dims,
                             .block = BLOCK,
                             .class_flags = TESS_CLASS_CAUSAL | TESS_CLASS_LOCAL,
                             .has_entries = 1,
                             .max_q_len = ROWS,
                             .max_kv_len = KEYS,
                             .kv_keys = KEYS,
                             .group = GROUP,
                             .n_heads = HEADS,
                             .batch = 1,
                             .head_classes = KV_HEADS,
                             .max_in_flight = 1};
}

/* ------------------------------------------------------------------ jobs */

/* Counts jobs and merges, and places them unless the pointers are NULL. */
typedef struct list {
    tess_job *jobs;
    tess_merge *merges;
    uint64_t n_jobs, n_merges;
    uint32_t partials;
} list;

static void add_job(list *l, const tess_job *job) {
    if (l->jobs) l->jobs[l->n_jobs] = *job;
    l->n_jobs++;
}

/* The part of the interval from block `begin` to `end`, of which the last `masked` are. */
static void add_part(list *l, const tess_job *whole, uint32_t begin, uint32_t end,
                     uint32_t masked) {
    tess_job part = *whole;
    part.interval_start = begin;
    part.interval_blocks = end - begin;
    part.mask_tail = (uint16_t)masked;
    part.partial = l->partials++;
    add_job(l, &part);
}

/* Rows of a tile of the kernel whose heads have at most `most` rows together. */
static uint32_t tile_rows(const tess_kernel *k, uint32_t most) {
    const uint32_t rows = most < ROWS ? most : ROWS;
    return rows < k->tile_step ? rows : rows - rows % k->tile_step;
}

static void add_sparse(list *l, const tess_kernel *k, uint16_t head) {
    const uint32_t rows = tile_rows(k, k->tile_rows);
    for (uint32_t row = 0; row < ROWS; row += rows) {
        const uint32_t n = rows < ROWS - row ? rows : ROWS - row;
        const uint32_t first = (FIRST + row) / BLOCK, last = (FIRST + row + n - 1) / BLOCK,
                       start = first + 1 > LOCAL ? first + 1 - LOCAL : 0;
        add_job(l, &(tess_job){.head = head,
                               .heads = 1,
                               .row = row,
                               .rows = (uint16_t)n,
                               .cls = SPARSE,
                               .left_count = (start + STRIDE - 1) / STRIDE,
                               .interval_start = start,
                               .interval_blocks = last + 1 - start,
                               .mask_tail = (uint16_t)(last + 1 - start),
                               .partial = TESS_NO_PARTIAL});
    }
}

static void add_dense(list *l, const tess_kernel *k, uint16_t head, uint16_t heads) {
    const uint32_t most = heads > 1 && k->pack_rows < k->tile_rows ? k->pack_rows : k->tile_rows,
                   rows = tile_rows(k, most / heads);
    for (uint32_t row = 0; row < ROWS; row += rows) {
        const uint32_t n = rows < ROWS - row ? rows : ROWS - row;
        const uint32_t end = (FIRST + row + n - 1) / BLOCK + 1, full = (FIRST + row + 1) / BLOCK;
        tess_job job = {.head = head,
                        .heads = heads,
                        .row = row,
                        .rows = (uint16_t)n,
                        .cls = DENSE,
                        .interval_blocks = end,
                        .mask_tail = (uint16_t)(end - full),
                        .partial = TESS_NO_PARTIAL};
        if (row + n < ROWS) {
            add_job(l, &job);
            continue;
        }
        const tess_merge merge = {.head = head,
                                  .heads = heads,
                                  .row = row,
                                  .rows = (uint16_t)n,
                                  .partial = l->partials,
                                  .parts = 2};
        if (l->merges) l->merges[l->n_merges] = merge;
        l->n_merges++;
        add_part(l, &job, 0, full / 2, 0);
        add_part(l, &job, full / 2, end, end - full);
    }
}

static void add_all(list *l, const tess_kernel *k) {
    const uint16_t heads = k->pack_rows >= GROUP && k->tile_rows >= GROUP ? GROUP : 1;
    for (uint16_t head = 0; head < GROUP; head++) add_sparse(l, k, head);
    for (uint16_t head = GROUP; head < HEADS; head = (uint16_t)(head + heads))
        add_dense(l, k, head, heads);
}

/* ------------------------------------------------------------------ the buffer */

static uint64_t place(tess_check_problem *p, uint64_t bytes) {
    const uint64_t at = p->bytes;
    p->bytes = (at + bytes + ALIGN - 1) / ALIGN * ALIGN;
    return at;
}

void tess_check_lay_out(uint32_t dtype, int32_t dims, const tess_kernel *const *kernels,
                        tess_check_problem *p) {
    const uint64_t row = 2 * (uint64_t)dims;
    list l = {0};
    memset(p, 0, sizeof *p);
    p->dtype = dtype;
    p->dims = dims;
    for (int n = 0; n < TESS_CHECK_KERNELS; n++) {
        const tess_kernel *k = p->runs[n].kernel = kernels[n];
        const uint32_t rows = k->tile_rows + k->tile_rows % 2;
        l.partials = 0;
        p->runs[n].first_job = l.n_jobs;
        p->runs[n].first_merge = l.n_merges;
        add_all(&l, k);
        p->runs[n].n_jobs = l.n_jobs - p->runs[n].first_job;
        p->runs[n].n_merges = l.n_merges - p->runs[n].first_merge;
        p->runs[n].partial_rows = rows;
        p->runs[n].partials_at = (k->scratch_bytes + ALIGN - 1) / ALIGN * ALIGN;
        const uint64_t workspace =
            p->runs[n].partials_at + sizeof(float) * l.partials * rows * ((uint64_t)dims + 2);
        if (workspace > p->workspace_bytes) p->workspace_bytes = workspace;
    }
    p->jobs_at = place(p, l.n_jobs * sizeof(tess_job));
    p->merges_at = place(p, l.n_merges * sizeof(tess_merge));
    p->sequences_at = place(p, sizeof(tess_sequence));
    p->classes_at = place(p, CLASSES * sizeof(tess_class));
    p->entries_at = place(p, ENTRIES * sizeof(uint32_t));
    p->tables_bytes = p->bytes;
    p->q_at = place(p, row * ROWS * HEADS);
    p->k_at = place(p, row * TOKENS * KV_HEADS);
    p->v_at = place(p, row * TOKENS * KV_HEADS);
    for (int n = 0; n < TESS_CHECK_KERNELS; n++) {
        p->runs[n].o_at = place(p, row * ROWS * HEADS);
        p->runs[n].lse_at = place(p, sizeof(float) * ROWS * HEADS);
    }
    p->workspace_at = place(p, p->workspace_bytes);
}

typedef union number {
    float value;
    uint32_t bits;
} number;

static uint32_t bits_of(float value) { return (number){.value = value}.bits; }

static float value_of(uint32_t bits) { return (number){.bits = bits}.value; }

/* Nearly unit-normal, a sum of four, and a multiple of 1/32, which both types hold. */
static uint16_t element(uint32_t dtype, uint32_t stream, uint64_t index) {
    uint64_t x = (index + 1) * UINT64_C(0x9e3779b97f4a7c15) + stream;
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    x ^= x >> 31;
    const int sum = (int)((x & 0xffff) + (x >> 16 & 0xffff) + (x >> 32 & 0xffff) + (x >> 48));
    const uint32_t bits = bits_of((float)((sum - 2 * 0xffff) * 55 / 0x10000) / 32);
    if (dtype == TESS_BF16 || bits == 0) return (uint16_t)(bits >> 16);
    return (uint16_t)((bits >> 16 & 0x8000) | (((bits & 0x7fffffff) - (112u << 23)) >> 13));
}

static void fill_rows(const tess_check_problem *p, void *to, uint64_t rows, uint64_t kept,
                      uint32_t stream) {
    enum { NAN_16 = 0x7fff };
    uint16_t *at = to;
    const uint64_t dims = (uint64_t)p->dims;
    for (uint64_t n = 0; n < rows * dims; n++)
        at[n] = n < kept * dims ? element(p->dtype, stream, n) : NAN_16;
}

void tess_check_fill(const tess_check_problem *p, void *image) {
    char *to = image;
    list l = {.jobs = (tess_job *)(void *)(to + p->jobs_at),
              .merges = (tess_merge *)(void *)(to + p->merges_at)};
    memset(to, 0, p->tables_bytes);
    memset(to + p->tables_bytes, 0xff, p->bytes - p->tables_bytes); /* NaN of every type */
    for (int n = 0; n < TESS_CHECK_KERNELS; n++) {
        l.partials = 0;
        add_all(&l, p->runs[n].kernel);
    }
    *(tess_sequence *)(void *)(to + p->sequences_at) =
        (tess_sequence){.q_len = ROWS, .kv_len = KEYS, .q_first = FIRST};
    tess_class *classes = (tess_class *)(void *)(to + p->classes_at);
    classes[SPARSE] = (tess_class){.flags = TESS_CLASS_CAUSAL | TESS_CLASS_LOCAL,
                                   .local = LOCAL,
                                   .stride = STRIDE,
                                   .list_count = ENTRIES};
    classes[DENSE] = (tess_class){.flags = TESS_CLASS_CAUSAL};
    uint32_t *entries = (uint32_t *)(void *)(to + p->entries_at);
    for (uint32_t n = 0; n < ENTRIES; n++) entries[n] = n * STRIDE;
    fill_rows(p, to + p->q_at, ROWS * HEADS, ROWS * HEADS, 1);
    fill_rows(p, to + p->k_at, TOKENS * KV_HEADS, KEYS * KV_HEADS, 2);
    fill_rows(p, to + p->v_at, TOKENS * KV_HEADS, KEYS * KV_HEADS, 3);
}

/* ------------------------------------------------------------------ the run */

static void set_tensor(tess_launch *l, uint32_t role, const tess_buffer *buffer, uint64_t at,
                       uint64_t tokens, uint64_t heads, uint64_t elements, uint64_t size) {
    tess_tensor *t = &l->tensor[role];
    t->buffer = *buffer;
    t->buffer.offset = at;
    t->stride_token = (int64_t)(heads * elements);
    t->stride_head = (int64_t)elements;
    t->stride_batch = (int64_t)(tokens * heads * elements);
    l->bytes[role] = tokens * heads * elements * size;
}

static void set_tables(const tess_check_problem *p, const tess_buffer *buffer, tess_tables *t) {
    memset(t, 0, sizeof *t);
    t->struct_size = sizeof *t;
    t->list_step = STRIDE;
    t->jobs_at = p->jobs_at;
    t->merges_at = p->merges_at;
    t->sequences_at = p->sequences_at;
    t->classes_at = p->classes_at;
    t->entries_at = p->entries_at;
    if (buffer->kind != TESS_BUFFER_HOST) {
        t->device = *buffer;
        t->device.size = p->tables_bytes;
        return;
    }
    char *at = (char *)(uintptr_t)buffer->handle;
    t->jobs = (const tess_job *)(void *)(at + p->jobs_at);
    t->merges = (const tess_merge *)(void *)(at + p->merges_at);
    t->sequences = (const tess_sequence *)(void *)(at + p->sequences_at);
    t->classes = (const tess_class *)(void *)(at + p->classes_at);
    t->entries = (const uint32_t *)(void *)(at + p->entries_at);
}

void tess_check_launch(const tess_check_problem *p, int which, const tess_buffer *buffer,
                       tess_tables *tables, tess_launch *l) {
    const uint64_t dims = (uint64_t)p->dims;
    set_tables(p, buffer, tables);
    *l = (tess_launch){.struct_size = sizeof *l,
                       .op = TESS_OP_FORWARD,
                       .dtype = p->dtype,
                       .kv_dtype = p->dtype,
                       .head_dim = p->dims,
                       .value_head_dim = p->dims,
                       .block = BLOCK,
                       .group = GROUP,
                       .batch_strided = 1,
                       .scale = 1 / sqrtf((float)p->dims),
                       .batch = 1,
                       .kv_batch = 1,
                       .n_heads = HEADS,
                       .q_tokens = ROWS,
                       .kv_tokens = TOKENS,
                       .n_sequences = 1,
                       .tables = tables};
    l->kernel = p->runs[which].kernel;
    l->first_job = p->runs[which].first_job;
    l->n_jobs = p->runs[which].n_jobs;
    l->first_merge = p->runs[which].first_merge;
    l->n_merges = p->runs[which].n_merges;
    l->partial_rows = p->runs[which].partial_rows;
    l->partials_at = p->runs[which].partials_at;
    l->workspace = *buffer;
    l->workspace.offset = p->workspace_at;
    l->workspace_bytes = p->workspace_bytes;
    set_tensor(l, TESS_ROLE_Q, buffer, p->q_at, ROWS, HEADS, dims, 2);
    set_tensor(l, TESS_ROLE_K, buffer, p->k_at, TOKENS, KV_HEADS, dims, 2);
    set_tensor(l, TESS_ROLE_V, buffer, p->v_at, TOKENS, KV_HEADS, dims, 2);
    set_tensor(l, TESS_ROLE_O, buffer, p->runs[which].o_at, ROWS, HEADS, dims, 2);
    set_tensor(l, TESS_ROLE_LSE, buffer, p->runs[which].lse_at, ROWS, HEADS, 1, sizeof(float));
}

/* ------------------------------------------------------------------ the comparison */

/* 2 max |same - ref| + 2 max |((r + 0.3) - 0.3) - r|, computed by unit_self_check. */
double tess_check_allowed(uint32_t dtype, int32_t dims) {
    static const double f16[] = {0.00268, 0.00371, 0.0026}, bf16[] = {0.0269, 0.0266, 0.0197};
    const int bucket = dims <= 64 ? 0 : dims <= 128 ? 1 : 2;
    return dtype == TESS_F16 ? f16[bucket] : bf16[bucket];
}

static float wide(uint32_t dtype, uint16_t bits) {
    if (dtype == TESS_BF16) return value_of((uint32_t)bits << 16);
    const uint32_t sign = (uint32_t)(bits & 0x8000) << 16, magnitude = bits & 0x7fffu;
    if (magnitude >= 0x7c00) return value_of(sign | 0x7f800000u | magnitude << 13);
    return value_of(sign | bits_of(value_of(magnitude << 13) * 0x1p112f));
}

/* Differences that no comparison finds small, as of NaN, are the largest. */
static void keep_worst(double got, double wanted, double *worst) {
    const double difference = fabs(got - wanted);
    if (!(difference <= *worst)) *worst = isfinite(difference) ? difference : INFINITY;
}

int tess_check_compare(const tess_check_problem *p, const void *image, char *why, size_t size) {
    const char *at = image;
    const double allowed = tess_check_allowed(p->dtype, p->dims), lse_allowed = 1e-4;
    double o_worst = 0, lse_worst = 0;
    const uint16_t *o[TESS_CHECK_KERNELS];
    const float *lse[TESS_CHECK_KERNELS];
    for (int n = 0; n < TESS_CHECK_KERNELS; n++) {
        o[n] = (const uint16_t *)(const void *)(at + p->runs[n].o_at);
        lse[n] = (const float *)(const void *)(at + p->runs[n].lse_at);
    }
    for (int64_t n = 0; n < (int64_t)ROWS * HEADS * p->dims; n++)
        keep_worst((double)wide(p->dtype, o[TESS_CHECK_SUBJECT][n]),
                   (double)wide(p->dtype, o[TESS_CHECK_REFERENCE][n]), &o_worst);
    for (int n = 0; n < ROWS * HEADS; n++) {
        const double wanted = (double)lse[TESS_CHECK_REFERENCE][n],
                     scale = fabs(wanted) > 1 ? fabs(wanted) : 1;
        keep_worst((double)lse[TESS_CHECK_SUBJECT][n] / scale, wanted / scale, &lse_worst);
    }
    if (o_worst <= allowed && lse_worst <= lse_allowed) {
        snprintf(why, size, "O differs by %.2g of %.2g, LSE by %.2g of %.2g", o_worst, allowed,
                 lse_worst, lse_allowed);
        return 1;
    }
    if (o_worst <= allowed)
        snprintf(why, size, "LSE is off by %.2g, not %.2g", lse_worst, lse_allowed);
    else
        snprintf(why, size, "O is off by %.2g, not %.2g", o_worst, allowed);
    return 0;
}
