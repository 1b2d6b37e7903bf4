/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys that are spread over parts, on every device: each part has a cache of its own, in place, in
 * pages, by slot or both, which tess_append fills from all rows of the sequences, a chunk at a
 * time. Lengths and positions come from the device, then from the host. What the parts give is
 * merged, and must be plain attention over all keys, in double.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache.h"
#include "reference.h"

enum {
    BATCH = 2,
    MOST_WAYS = 8,
    MOST_SEQUENCES = BATCH * MOST_WAYS,
    TOKENS = 420, /* most of a sequence */
    CHUNK = 96,   /* rows of a sequence that are appended at a time */
    ROWS = 3,     /* that attend, of each sequence */
    MOST_STORAGES = 2,
    MOST_KV_HEADS = 4
};

typedef struct part_case {
    const char *line; /* of a problem: pattern and heads */
    int32_t page;
    int compact, kv_split;
} part_case;

static const part_case cases[] = {
    {"pattern=dense block=16 heads=4 kv_heads=2 head_dim=16", 0, 0, 0},
    {"pattern=s2 block=16 local=2 stride=5 heads=4 kv_heads=2 head_dim=16", 16, 0, 2},
    {"pattern=s2 block=16 local=2 stride=5 heads=4 kv_heads=2 head_dim=16", 0, 1, 0},
    {"pattern=s2 block=8 local=3 stride=4 dense_heads=1 heads=4 kv_heads=4 head_dim=24 dtype=f16",
     32, 1, 3},
    {"pattern=s2 block=32 local=1 stride=3 heads=8 kv_heads=2 head_dim=64 dtype=bf16", 64, 1, 0},
    {"pattern=window left=60 right=0 sinks=40 block=16 heads=2 kv_heads=1 head_dim=8", 16, 1, 2},
};
enum { CASES = sizeof cases / sizeof *cases };

/* K and V of a storage group: a page, or a sequence, has `tokens` tokens. */
typedef struct pool {
    int64_t heads, tokens;
    tess_tensor k, v;
} pool;

typedef struct scene {
    const test_target *target;
    const part_case *x;
    problem p;
    tess_layout *layout;
    uint32_t item, n_storage, ways, n;                  /* n: sequences, the parts of BATCH ones */
    int64_t lens[BATCH];                                /* of the whole sequences */
    int64_t first[MOST_SEQUENCES], end[MOST_SEQUENCES]; /* positions of each part's keys */
    void *q, *k, *v;                                    /* [BATCH][ROWS, TOKENS][heads][head_dim] */
    tess_plan *plan;
    tess_plan_info info;
    pool pools[MOST_STORAGES];
    int64_t columns;
    tess_buffer table, step, cu_rows, kv_lens, q_first, kv_first, work;
} scene;

static void *room(uint64_t bytes) {
    void *memory = malloc(bytes ? bytes : 1);
    if (!memory) fail_msg("out of memory");
    return memory;
}

static tess_buffer send(const scene *s, const void *from, uint64_t bytes) {
    return test_upload(s->target->device, from, bytes);
}

static void let_go(const scene *s, tess_buffer *buffer) {
    buffer->offset = 0;
    assert_ok(tess_free(s->target->device, buffer));
}

/* ------------------------------------------------------------------ the scene */

/* Cuts each sequence at multiples of a block; parts may have no keys. Sequence number part * BATCH
 * + b of the batch is a part of sequence b. */
static void cut(scene *s, uint64_t *random) {
    const int64_t block = s->p.block;
    for (int b = 0; b < BATCH; b++) {
        int64_t at[MOST_WAYS + 1] = {0};
        s->lens[b] = test_between(random, TOKENS / 2, TOKENS);
        for (uint32_t n = 1; n < s->ways; n++)
            at[n] = test_between(random, 0, s->lens[b] / block) * block;
        for (uint32_t n = 1; n < s->ways; n++)
            for (uint32_t m = n; m > 1 && at[m] < at[m - 1]; m--) {
                const int64_t x = at[m];
                at[m] = at[m - 1];
                at[m - 1] = x;
            }
        at[s->ways] = s->lens[b];
        for (uint32_t n = 0; n < s->ways; n++) {
            s->first[n * BATCH + (uint32_t)b] = at[n];
            s->end[n * BATCH + (uint32_t)b] = at[n + 1];
        }
    }
}

static tess_plan_desc plan_desc(const scene *s) {
    return (tess_plan_desc){.struct_size = sizeof(tess_plan_desc),
                            .flags = TESS_PLAN_APPEND | (s->x->compact ? TESS_PLAN_COMPACT : 0),
                            .dtype = s->p.dtype,
                            .head_dim = s->p.head_dim,
                            .batch = s->n,
                            .kv_split = s->x->kv_split,
                            .page = s->x->page};
}

/* Token places that a part takes at most. */
static int64_t most_places(const scene *s, uint32_t g) {
    int64_t most = TOKENS;
    if (s->x->compact)
        assert_ok(tess_layout_part_pages(s->layout, g, TESS_ANY_FIRST, TOKENS, 0, &most));
    return most;
}

static void make_pools(scene *s) {
    for (uint32_t g = 0; g < s->n_storage && s->x->page; g++) {
        const int64_t columns = (most_places(s, g) + s->x->page - 1) / s->x->page;
        if (columns > s->columns) s->columns = columns;
    }
    const uint64_t row = (uint64_t)s->p.head_dim * s->item;
    for (uint32_t g = 0; g < s->n_storage; g++) {
        pool *p = &s->pools[g];
        tess_storage_info info = {.struct_size = sizeof info};
        int32_t ids[MOST_KV_HEADS];
        p->heads = s->p.kv_heads;
        if (s->x->compact) {
            assert_ok(tess_layout_storage(s->layout, g, &info, ids));
            p->heads = info.n_kv_heads;
        }
        p->tokens = s->x->page ? s->x->page : most_places(s, g);
        p->k.stride_head = s->p.head_dim;
        p->k.stride_token = p->heads * s->p.head_dim;
        p->k.stride_batch = p->tokens * p->k.stride_token;
        p->v = p->k;
        const uint64_t units = s->x->page ? (uint64_t)(s->n * (uint32_t)s->columns) : s->n,
                       bytes = units * (uint64_t)(p->tokens * p->heads) * row;
        void *nan = room(bytes);
        memset(nan, 0xff, bytes);
        p->k.buffer = send(s, nan, bytes);
        p->v.buffer = send(s, nan, bytes);
        free(nan);
    }
}

/* Every sequence gets every page that it could ever need, dealt out in turns. */
static void make_table(scene *s) {
    if (!s->x->page) return;
    const uint64_t count = (uint64_t)s->n_storage * s->n * (uint64_t)s->columns;
    int32_t *table = room(count * sizeof *table);
    for (uint64_t n = 0; n < count; n++)
        table[n] = (int32_t)(n % (uint64_t)s->columns * s->n + n / (uint64_t)s->columns % s->n);
    s->table = send(s, table, count * sizeof *table);
    free(table);
}

static int n_created; /* scenes that a kernel took */

/* False: the kernel refuses the plan. */
static int create(scene *s, const test_target *target, const part_case *x, uint32_t ways,
                  uint64_t *random) {
    char line[256], error[256];
    memset(s, 0, sizeof *s);
    s->target = target;
    s->x = x;
    s->ways = ways;
    s->n = ways * BATCH;
    /* the layout's max_chunk and max_tokens */
    snprintf(line, sizeof line, "%s q_len=%d kv_len=%d", x->line, CHUNK, 2 * TOKENS);
    if (problem_parse(&s->p, line, error, sizeof error) != 0) fail_msg("%s", error);
    s->item = s->p.dtype == TESS_F32 ? 4 : 2;
    cut(s, random);
    tess_runtime *runtime = test_runtime(0);
    assert_ok(problem_layout(&s->p, runtime, &s->layout));
    tess_runtime_release(runtime);
    tess_plan_desc d = plan_desc(s);
    d.flags |= TESS_PLAN_DEVICE_LENGTHS | TESS_PLAN_DEVICE_PARTS;
    d.q_len = CHUNK;
    d.kv_len = TOKENS;
    const tess_status status = tess_plan_create(target->device, s->layout, &d, &s->plan);
    /* a kernel that the setting names may not take the case */
    if (status == TESS_ERROR_UNSUPPORTED && test_kernel_is_named()) {
        tess_layout_release(s->layout);
        problem_free(&s->p);
        return 0;
    }
    assert_ok(status);
    n_created++;
    s->info.struct_size = sizeof s->info;
    assert_ok(tess_plan_query(s->plan, &s->info));
    s->n_storage = s->info.n_storage;
    assert_in_range(s->n_storage, 1, MOST_STORAGES);
    make_pools(s);
    make_table(s);
    const int64_t q = BATCH * ROWS * s->p.heads * s->p.head_dim,
                  kv = BATCH * TOKENS * s->p.kv_heads * s->p.head_dim;
    s->q = room((uint64_t)q * s->item);
    s->k = room((uint64_t)kv * s->item);
    s->v = room((uint64_t)kv * s->item);
    fill_normal(s->p.dtype, s->q, q, 5, 0);
    fill_normal(s->p.dtype, s->k, kv, 5, 1);
    fill_normal(s->p.dtype, s->v, kv, 5, 2);
    s->step = send(s, NULL, s->info.step_bytes);
    s->cu_rows = send(s, NULL, (MOST_SEQUENCES + 1) * sizeof(int32_t));
    s->kv_lens = send(s, NULL, MOST_SEQUENCES * sizeof(int32_t));
    s->q_first = send(s, NULL, MOST_SEQUENCES * sizeof(int32_t));
    s->kv_first = send(s, NULL, MOST_SEQUENCES * sizeof(int32_t));
    if (s->info.workspace_bytes) s->work = send(s, NULL, s->info.workspace_bytes);
    return 1;
}

static void release(scene *s) {
    tess_buffer *const all[] = {&s->table,   &s->step,     &s->cu_rows, &s->kv_lens,
                                &s->q_first, &s->kv_first, &s->work};
    for (size_t n = 0; n < sizeof all / sizeof *all; n++) let_go(s, all[n]);
    for (uint32_t g = 0; g < s->n_storage; g++) {
        let_go(s, &s->pools[g].k.buffer);
        let_go(s, &s->pools[g].v.buffer);
    }
    tess_plan_release(s->plan);
    tess_layout_release(s->layout);
    problem_free(&s->p);
    free(s->q);
    free(s->k);
    free(s->v);
}

/* ------------------------------------------------------------------ steps */

/* A step's lengths and positions, as the device reads them. */
typedef struct lengths {
    int32_t cu_rows[MOST_SEQUENCES + 1], kv_lens[MOST_SEQUENCES], q_first[MOST_SEQUENCES],
        kv_first[MOST_SEQUENCES];
} lengths;

static void copy_in(const scene *s, tess_buffer to, const void *from, uint64_t bytes) {
    assert_ok(tess_copy(s->target->device, to, tess_host_buffer(from, bytes), bytes));
}

/* Prepares a step. Returns how many of its values were out of range. */
static uint32_t prepare(const scene *s, const lengths *l) {
    uint32_t head[8];
    copy_in(s, s->cu_rows, l->cu_rows, sizeof l->cu_rows);
    copy_in(s, s->kv_lens, l->kv_lens, sizeof l->kv_lens);
    copy_in(s, s->q_first, l->q_first, sizeof l->q_first);
    copy_in(s, s->kv_first, l->kv_first, sizeof l->kv_first);
    const tess_prepare_desc d = {.struct_size = sizeof d,
                                 .batch = s->n,
                                 .cu_rows = s->cu_rows,
                                 .kv_lens = s->kv_lens,
                                 .q_first = s->q_first,
                                 .kv_first = s->kv_first,
                                 .step = s->step};
    assert_ok(tess_prepare(s->plan, &d));
    assert_ok(tess_wait(s->target->device, UINT64_MAX));
    test_download(s->target->device, s->step, head, sizeof head);
    return head[TESS_STEP_CLAMPED];
}

/* Where rows [at, at + count) of a whole sequence are keys of a part: what it has of them then. */
static lengths chunk_at(const scene *s, int64_t at) {
    lengths l;
    memset(&l, 0, sizeof l);
    for (uint32_t n = 0; n < s->n; n++) {
        const int64_t whole = s->lens[n % BATCH];
        int64_t end = at + CHUNK < whole ? at + CHUNK : whole;
        l.cu_rows[n + 1] = l.cu_rows[n] + (int32_t)(end > at ? end - at : 0);
        if (end > s->end[n]) end = s->end[n];
        l.kv_lens[n] = (int32_t)(end > s->first[n] ? end - s->first[n] : 0);
        l.q_first[n] = (int32_t)at;
        l.kv_first[n] = (int32_t)s->first[n];
    }
    return l;
}

static tess_append_desc append_desc(const scene *s, tess_tensor *k, tess_tensor *v) {
    tess_append_desc d = {.struct_size = sizeof d, .k_pools = k, .v_pools = v, .step = s->step};
    for (uint32_t g = 0; g < s->n_storage; g++) {
        k[g] = s->pools[g].k;
        v[g] = s->pools[g].v;
    }
    d.block_table = s->table;
    d.table_stride = s->x->page ? s->columns : 0;
    d.pages = s->x->page ? s->columns * s->n : 0;
    return d;
}

/* Appends a chunk of all sequences to all of their parts: each takes what is its own. */
static void append(const scene *s, int64_t at) {
    tess_tensor k_pools[MOST_STORAGES], v_pools[MOST_STORAGES];
    const lengths l = chunk_at(s, at);
    const uint64_t token = (uint64_t)(s->p.kv_heads * s->p.head_dim) * s->item,
                   bytes = (uint64_t)s->n * CHUNK * token;
    tess_append_desc d = append_desc(s, k_pools, v_pools);
    char *rows = room(bytes);
    assert_int_equal(0, prepare(s, &l));
    for (int v = 0; v < 2; v++) {
        tess_tensor *to = v ? &d.v : &d.k;
        memset(rows, 0xff, bytes);
        for (uint32_t n = 0; n < s->n; n++)
            memcpy(rows + (uint64_t)l.cu_rows[n] * token,
                   (char *)(v ? s->v : s->k) + (uint64_t)(n % BATCH * TOKENS + at) * token,
                   (uint64_t)(l.cu_rows[n + 1] - l.cu_rows[n]) * token);
        const tess_buffer buffer = send(s, rows, bytes);
        assert_ok(
            tess_plan_tensor(s->plan, v ? TESS_ROLE_NEW_V : TESS_ROLE_NEW_K, buffer, to, NULL));
    }
    assert_ok(tess_append(s->plan, &d));
    assert_ok(tess_wait(s->target->device, UINT64_MAX));
    let_go(s, &d.k.buffer);
    let_go(s, &d.v.buffer);
    free(rows);
}

/* The last rows of each sequence, against each of its parts. */
static lengths last_rows(const scene *s) {
    lengths l = chunk_at(s, TOKENS);
    for (uint32_t n = 0; n < s->n; n++) {
        l.cu_rows[n + 1] = l.cu_rows[n] + ROWS;
        l.q_first[n] = (int32_t)s->lens[n % BATCH] - ROWS;
        l.kv_lens[n] = (int32_t)(s->end[n] - s->first[n]);
    }
    return l;
}

/* ------------------------------------------------------------------ attention */

/* O and LSE of all parts: [part][sequence, row][head]([element]). */
typedef struct results {
    tess_tensor o, lse;
    uint64_t o_bytes, lse_bytes;
} results;

static tess_run_desc run_desc(const scene *s, const tess_plan *plan, const tess_tensor *k,
                              const tess_tensor *v, results *r) {
    const uint64_t own = (uint64_t)(BATCH * ROWS * s->p.heads * s->p.head_dim) * s->item;
    tess_run_desc d = {.struct_size = sizeof d};
    uint64_t q_bytes;
    const tess_buffer none = {0};
    assert_ok(tess_plan_tensor(plan, TESS_ROLE_Q, none, &d.q, &q_bytes));
    assert_ok(tess_plan_tensor(plan, TESS_ROLE_O, none, &r->o, &r->o_bytes));
    assert_ok(tess_plan_tensor(plan, TESS_ROLE_LSE, none, &r->lse, &r->lse_bytes));
    char *q = calloc(q_bytes, 1);
    if (!q) fail_msg("out of memory");
    for (uint32_t part = 0; part < s->ways; part++) memcpy(q + part * own, s->q, own);
    d.q.buffer = send(s, q, q_bytes);
    free(q);
    r->o.buffer = send(s, NULL, r->o_bytes);
    r->lse.buffer = send(s, NULL, r->lse_bytes);
    d.o = r->o;
    d.lse = r->lse;
    if (s->n_storage == 1) {
        d.k = k[0];
        d.v = v[0];
    } else {
        d.k_pools = k;
        d.v_pools = v;
    }
    d.block_table = s->table;
    d.table_stride = s->x->page ? s->columns : 0;
    d.pages = s->x->page ? s->columns * s->n : 0;
    return d;
}

static void run(const scene *s, const tess_plan *plan, int has_step, tess_buffer work, results *r) {
    tess_tensor k[MOST_STORAGES], v[MOST_STORAGES];
    for (uint32_t g = 0; g < s->n_storage; g++) {
        k[g] = s->pools[g].k;
        v[g] = s->pools[g].v;
    }
    tess_run_desc d = run_desc(s, plan, k, v, r);
    d.workspace = work;
    if (has_step) d.step = s->step;
    assert_ok(tess_run(plan, &d));
    assert_ok(tess_wait(s->target->device, UINT64_MAX));
    let_go(s, &d.q.buffer);
}

/* A plan whose lengths the host knows, if it can be of the same kernel. */
static tess_plan *host_plan(const scene *s, const lengths *l, tess_plan_info *info) {
    int64_t cu_q[MOST_SEQUENCES + 1] = {0}, cu_kv[MOST_SEQUENCES + 1] = {0},
                                  q_first[MOST_SEQUENCES], kv_first[MOST_SEQUENCES];
    tess_plan_desc d = plan_desc(s);
    tess_plan *plan = NULL;
    for (uint32_t n = 0; n < s->n; n++) {
        cu_q[n + 1] = l->cu_rows[n + 1];
        cu_kv[n + 1] = cu_kv[n] + l->kv_lens[n];
        q_first[n] = l->q_first[n];
        kv_first[n] = l->kv_first[n];
    }
    d.cu_q_lens = cu_q;
    d.cu_kv_lens = cu_kv;
    d.q_first = q_first;
    d.kv_first = kv_first;
    d.kernel = s->info.kernel;
    tess_status status = tess_plan_create(s->target->device, s->layout, &d, &plan);
    if (status == TESS_ERROR_UNSUPPORTED) { /* a step's kernel may be for more rows than these */
        d.kernel = NULL;
        status = tess_plan_create(s->target->device, s->layout, &d, &plan);
    }
    assert_ok(status);
    info->struct_size = sizeof *info;
    assert_ok(tess_plan_query(plan, info));
    return plan;
}

/* One row of one head over all keys of its sequence, and whether they are what was merged. */
static void check_row(const scene *s, int b, int64_t row, int32_t head, const void *o, float lse) {
    const problem *p = &s->p;
    const double digits = p->dtype == TESS_F32 ? 1e-5 : p->dtype == TESS_F16 ? 0x1p-8 : 0x1p-5;
    const int64_t position = s->lens[b] - ROWS + row, at = (b * ROWS + row) * p->heads + head,
                  kv_head = head / (p->heads / p->kv_heads);
    double weights[TOKENS], most = -INFINITY, sum = 0;
    for (int64_t t = 0; t < s->lens[b]; t++) {
        const int64_t k = ((b * TOKENS + t) * p->kv_heads + kv_head) * p->head_dim;
        weights[t] = -INFINITY;
        if (!reference_kept(p, head, position, t, s->lens[b])) continue;
        weights[t] = 0;
        for (int e = 0; e < p->head_dim; e++)
            weights[t] += load_element(p->dtype, s->q, at * p->head_dim + e) *
                          load_element(p->dtype, s->k, k + e) / sqrt((double)p->head_dim);
        if (weights[t] > most) most = weights[t];
    }
    for (int64_t t = 0; t < s->lens[b]; t++)
        sum += weights[t] = weights[t] == -INFINITY ? 0 : exp(weights[t] - most);
    for (int e = 0; e < p->head_dim; e++) {
        double want = 0;
        for (int64_t t = 0; t < s->lens[b]; t++)
            want += weights[t] / sum *
                    load_element(p->dtype, s->v,
                                 ((b * TOKENS + t) * p->kv_heads + kv_head) * p->head_dim + e);
        const double got = load_element(p->dtype, o, at * p->head_dim + e);
        if (!(fabs(got - want) <= digits * (1 + fabs(want))))
            fail_msg("%s %s, %u ways: sequence %d, row %d, head %d, element %d: %g, not %g",
                     s->target->id, s->x->line, s->ways, b, (int)row, head, e, got, want);
    }
    const double want = most + log(sum);
    if (!(fabs((double)lse - want) <= digits * (1 + fabs(want))))
        fail_msg("%s %s, %u ways: LSE of sequence %d, row %d, head %d: %g, not %g", s->target->id,
                 s->x->line, s->ways, b, (int)row, head, (double)lse, want);
}

/* Merges the parts and compares. */
static void check_merged(const scene *s, const results *r) {
    const problem *p = &s->p;
    const int64_t rows = BATCH * ROWS;
    results m;
    tess_parts_desc d = {.struct_size = sizeof d,
                         .n_parts = s->ways,
                         .n_heads = (uint32_t)p->heads,
                         .head_dim = (uint32_t)p->head_dim,
                         .dtype = p->dtype,
                         .rows = rows,
                         .o_parts = r->o,
                         .lse_parts = r->lse};
    d.o_parts.stride_batch = rows * r->o.stride_token;
    d.lse_parts.stride_batch = rows * r->lse.stride_token;
    m.o_bytes = (uint64_t)(rows * p->heads * p->head_dim) * s->item;
    m.lse_bytes = (uint64_t)(rows * p->heads) * sizeof(float);
    d.o = r->o;
    d.lse = (tess_tensor){.stride_token = p->heads, .stride_head = 1};
    d.o.buffer = send(s, NULL, m.o_bytes);
    d.lse.buffer = send(s, NULL, m.lse_bytes);
    assert_ok(tess_merge_parts(s->target->device, &d));
    assert_ok(tess_wait(s->target->device, UINT64_MAX));
    void *o = room(m.o_bytes);
    float *lse = room(m.lse_bytes);
    test_download(s->target->device, d.o.buffer, o, m.o_bytes);
    test_download(s->target->device, d.lse.buffer, lse, m.lse_bytes);
    for (int b = 0; b < BATCH; b++)
        for (int64_t row = 0; row < ROWS; row++)
            for (int32_t head = 0; head < p->heads; head++)
                check_row(s, b, row, head, o, lse[(b * ROWS + row) * p->heads + head]);
    let_go(s, &d.o.buffer);
    let_go(s, &d.lse.buffer);
    free(o);
    free(lse);
}

static void let_results_go(const scene *s, results *r) {
    let_go(s, &r->o.buffer);
    let_go(s, &r->lse.buffer);
}

/* The bits of two results, as far as rows go. */
static int same_bits(const scene *s, const results *a, const results *b) {
    const uint64_t bytes =
        (uint64_t)(s->n * ROWS) * (uint64_t)(s->p.heads * s->p.head_dim) * s->item;
    void *x = room(a->o_bytes), *y = room(b->o_bytes);
    test_download(s->target->device, a->o.buffer, x, a->o_bytes);
    test_download(s->target->device, b->o.buffer, y, b->o_bytes);
    const int same = memcmp(x, y, bytes) == 0;
    free(x);
    free(y);
    return same;
}

/* ------------------------------------------------------------------ the tests */

static void spread(const test_target *target, const part_case *x, uint32_t ways, uint64_t *random) {
    scene s;
    results device, host;
    tess_plan_info info;
    if (!create(&s, target, x, ways, random)) return;
    for (int64_t at = 0; at < TOKENS; at += CHUNK) append(&s, at);
    const lengths l = last_rows(&s);
    assert_int_equal(0, prepare(&s, &l));
    run(&s, s.plan, 1, s.work, &device);
    check_merged(&s, &device);
    /* In place, the keys of packed rows would follow each other: merge_parts.c has such plans. */
    if (x->page || x->compact) {
        tess_plan *plan = host_plan(&s, &l, &info);
        tess_buffer work = {0};
        if (info.workspace_bytes) work = send(&s, NULL, info.workspace_bytes);
        run(&s, plan, 0, work, &host);
        check_merged(&s, &host);
        const int alike = strcmp(info.kernel, s.info.kernel) == 0 &&
                          strcmp(info.few_kernel, s.info.few_kernel) == 0 &&
                          info.tile_rows == s.info.tile_rows &&
                          info.few_tile_rows == s.info.few_tile_rows;
        if (alike && x->kv_split && !same_bits(&s, &device, &host))
            fail_msg("%s %s: other bits than with lengths on the host", target->id, x->line);
        let_results_go(&s, &host);
        let_go(&s, &work);
        tess_plan_release(plan);
    }
    let_results_go(&s, &device);
    release(&s);
}

static void test_spread(void **state) {
    const test_target *target = *state;
    uint64_t random = 41;
    for (int n = 0; n < CASES; n++)
        for (uint32_t ways = 2; ways <= MOST_WAYS; ways *= 2) {
            /* a device that is emulated compiles for seconds for each type: float32, by slot */
            if (target->software && !test_full() && (n != 2 || ways != 4)) continue;
            spread(target, &cases[n], ways, &random);
        }
}

/* Positions of first keys that are out of range, or no multiple of a block, count as the nearest
 * legal ones below, are counted, and such a part appends nothing. */
static void test_hostile(void **state) {
    const test_target *target = *state;
    uint64_t random = 43;
    scene s;
    results right, wrong;
    for (int n = 1; n < CASES; n++) {
        if (target->software && !test_full() && n != 2) continue;
        if (!create(&s, target, &cases[n], 2, &random)) continue;
        const int32_t block = s.p.block, keys = 3 * block - 1,
                      last = (2 * TOKENS - keys) / block * block;
        const int32_t given[2 * BATCH] = {-1, block + 1, INT32_MAX, INT32_MIN},
                                legal[2 * BATCH] = {0, block, last, 0};
        for (uint32_t b = 0; b < s.n; b++) {
            s.first[b] = legal[b];
            s.end[b] = legal[b] + keys;
        }
        lengths l = last_rows(&s);
        for (int64_t at = 0; at < TOKENS; at += CHUNK) append(&s, at);
        assert_int_equal(0, prepare(&s, &l));
        run(&s, s.plan, 1, s.work, &right);
        memcpy(l.kv_first, given, sizeof given);
        assert_int_equal(4, prepare(&s, &l));
        run(&s, s.plan, 1, s.work, &wrong);
        assert_true(same_bits(&s, &right, &wrong));
        /* New rows that are NaN would show in what is read then. */
        tess_tensor k[MOST_STORAGES], v[MOST_STORAGES];
        tess_append_desc d = append_desc(&s, k, v);
        const uint64_t bytes =
            (uint64_t)s.n * CHUNK * (uint64_t)(s.p.kv_heads * s.p.head_dim) * s.item;
        void *rows = room(bytes);
        memset(rows, 0xff, bytes);
        const tess_buffer buffer = send(&s, rows, bytes);
        for (uint32_t b = 0; b < s.n; b++) l.q_first[b] = legal[b] + 2 * block - ROWS;
        assert_int_equal(4, prepare(&s, &l));
        assert_ok(tess_plan_tensor(s.plan, TESS_ROLE_NEW_K, buffer, &d.k, NULL));
        d.v = d.k;
        assert_ok(tess_append(s.plan, &d));
        let_results_go(&s, &wrong);
        memcpy(l.kv_first, legal, sizeof legal);
        for (uint32_t b = 0; b < s.n; b++) l.q_first[b] = (int32_t)s.lens[b % BATCH] - ROWS;
        assert_int_equal(0, prepare(&s, &l));
        run(&s, s.plan, 1, s.work, &wrong);
        assert_true(same_bits(&s, &right, &wrong));
        let_results_go(&s, &right);
        let_results_go(&s, &wrong);
        let_go(&s, &d.k.buffer);
        free(rows);
        release(&s);
    }
}

/* In every other place a value from 0 to `most`, else any other. */
static int32_t hostile_value(uint64_t *random, int32_t most) {
    const int32_t ends[] = {INT32_MIN, INT32_MIN + 1, -1, most + 1, INT32_MAX - 1, INT32_MAX};
    const int64_t n = test_between(random, 0, 13);
    if (n < 6) return ends[n];
    return (int32_t)(n < 7 ? test_between(random, INT32_MIN, INT32_MAX)
                           : test_between(random, 0, most));
}

static int32_t nearest(int32_t x, int32_t most) { return x < 0 ? 0 : x > most ? most : x; }

/* Random lengths and positions, most of them no legal ones: the bits of the nearest legal ones, and
 * the number of those that were not. */
static void test_random_hostile(void **state) {
    const test_target *target = *state;
    uint64_t random = 47;
    scene s;
    results right, wrong;
    for (int n = 1; n < CASES; n++) {
        if (target->software && !test_full() && n != 2) continue;
        if (!create(&s, target, &cases[n], 2, &random)) continue;
        const int32_t block = s.p.block, end = 2 * TOKENS;
        for (int64_t at = 0; at < TOKENS; at += CHUNK) append(&s, at);
        for (int round = 0; round < (target->software ? 2 : 8); round++) {
            lengths given = last_rows(&s), legal = given;
            uint32_t changed = 0;
            for (uint32_t b = 0; b < s.n; b++) {
                given.kv_lens[b] = hostile_value(&random, TOKENS);
                given.kv_first[b] = hostile_value(&random, end);
                given.q_first[b] = hostile_value(&random, end);
                legal.kv_lens[b] = nearest(given.kv_lens[b], TOKENS);
                legal.kv_first[b] =
                    nearest(given.kv_first[b], end - legal.kv_lens[b]) / block * block;
                legal.q_first[b] = nearest(given.q_first[b], end);
                changed += (given.kv_lens[b] != legal.kv_lens[b]) +
                           (given.kv_first[b] != legal.kv_first[b]) +
                           (given.q_first[b] != legal.q_first[b]);
            }
            assert_int_equal(0, prepare(&s, &legal));
            run(&s, s.plan, 1, s.work, &right);
            assert_int_equal(changed, prepare(&s, &given));
            run(&s, s.plan, 1, s.work, &wrong);
            assert_true(same_bits(&s, &right, &wrong));
            let_results_go(&s, &right);
            let_results_go(&s, &wrong);
        }
        release(&s);
    }
}

int main(int argc, char **argv) {
    static const serving_test all[] = {{"keys in parts", test_spread},
                                       {"hostile positions", test_hostile},
                                       {"random hostile positions", test_random_hostile}};
    const int status = serving_main(argc, argv, all, sizeof all / sizeof *all);
    if (status == 0 && n_created == 0) fprintf(stderr, "no case was taken\n");
    return status ? status : n_created == 0;
}
