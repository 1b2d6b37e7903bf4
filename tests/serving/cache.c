/* SPDX-License-Identifier: Apache-2.0 */
#include "cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 512, UNTOUCHED = 0xff, MOST_ROWS = 128 /* of a step */ };

/* ------------------------------------------------------------------ places */

static int is_in_parts(const cache_shape *s) {
    for (int b = 0; b < CACHE_BATCH; b++)
        if (s->kv_first[b]) return 1;
    return 0;
}

static int64_t slot_of(const cache *c, int64_t sequence, int64_t head, int64_t block) {
    const int64_t first = c->shape->kv_first[sequence];
    int64_t slot = block;
    if (c->shape->compact && is_in_parts(c->shape))
        assert_ok(tess_layout_part_slot(c->layout, (int32_t)head, first,
                                        first / c->shape->pattern.block + block, &slot));
    else if (c->shape->compact)
        assert_ok(tess_layout_slot(c->layout, (int32_t)head, block, &slot));
    return slot;
}

/* Whether block `block` of a kv head still has its place in a sequence of that length. */
static int is_last(const cache *c, int64_t sequence, int64_t head, int64_t block, int64_t tokens) {
    const int64_t last = (tokens - 1) / c->shape->pattern.block,
                  slot = slot_of(c, sequence, head, block);
    for (int64_t later = block + 1; later <= last && c->shape->compact; later++)
        if (slot_of(c, sequence, head, later) == slot) return 0;
    return 1;
}

static int64_t place_of(const cache *c, int64_t sequence, int64_t head, int64_t token) {
    const int64_t block = c->shape->pattern.block;
    return slot_of(c, sequence, head, token / block) * block + token % block;
}

/* Tokens of a pool that a sequence of that length takes; TESS_ANY_FIRST: at most. */
static int64_t places_for(const cache *c, uint32_t storage, int64_t sequence, int64_t tokens) {
    const int64_t first = sequence < 0 ? TESS_ANY_FIRST : c->shape->kv_first[sequence];
    int64_t most = tokens;
    if (c->shape->compact && is_in_parts(c->shape))
        assert_ok(tess_layout_part_pages(c->layout, storage, first, tokens, 0, &most));
    else if (c->shape->compact)
        assert_ok(tess_layout_pages(c->layout, storage, tokens, 0, &most));
    return most;
}

/* Whether the keys of all sequences follow each other in one dimension. */
static int is_joined(const cache_shape *s) {
    return s->packed && !s->page && !s->compact && !s->steps;
}

static int64_t packed_start(const cache *c, int64_t sequence) {
    int64_t start = 0;
    for (int64_t b = 0; b < sequence; b++) start += c->lens[b];
    return start;
}

/* The index of an element in a pool, or -1 if its page is absent. */
static int64_t index_of(const cache *c, uint32_t storage, const tess_tensor *t, int64_t sequence,
                        int64_t place, int64_t pool_head) {
    int64_t unit = sequence, token = place;
    if (c->shape->page) {
        unit = c->table[storage][sequence][place / c->shape->page];
        token = place % c->shape->page;
        if (unit < 0 || unit >= CACHE_PAGES) return -1;
    } else if (is_joined(c->shape)) {
        unit = 0;
        token += packed_start(c, sequence);
    }
    return unit * t->stride_batch + token * t->stride_token + pool_head * t->stride_head;
}

/* ------------------------------------------------------------------ life */

static tess_tensor tensor_of(const cache *c, const cache_pool *p) {
    const int64_t dim = c->shape->head_dim;
    tess_tensor t = {.stride_batch = p->tokens * p->heads * dim,
                     .stride_token = p->heads * dim,
                     .stride_head = dim};
    if (c->shape->head_major) {
        t.stride_token = dim;
        t.stride_head = p->tokens * dim;
    }
    return t;
}

static void create_pool(cache *c, uint32_t storage) {
    cache_pool *p = &c->pools[storage];
    const cache_shape *s = c->shape;
    if (s->compact) {
        int32_t ids[CACHE_HEADS];
        tess_storage_info info = {.struct_size = sizeof info};
        assert_ok(tess_layout_storage(c->layout, storage, &info, ids));
        p->heads = info.n_kv_heads;
        for (int64_t n = 0; n < p->heads; n++) p->head_ids[n] = ids[n];
    } else {
        p->heads = s->kv_heads;
        for (int64_t n = 0; n < p->heads; n++) p->head_ids[n] = n;
    }
    p->tokens = s->page ? s->page : places_for(c, storage, TESS_ANY_FIRST, s->max_tokens);
    p->units = s->page ? CACHE_PAGES : CACHE_BATCH;
    p->bytes = 2 * GUARD + (uint64_t)s->shift * c->item +
               (uint64_t)(p->units * p->tokens * p->heads * s->head_dim) * c->item;
    p->host = malloc(p->bytes);
    p->ever = calloc(p->bytes, 1);
    if (!p->host || !p->ever) fail_msg("out of memory");
    memset(p->host, UNTOUCHED, p->bytes);
    memset(p->holds, 0xff, sizeof p->holds);
    p->k = p->v = tensor_of(c, p);
    p->k.buffer = test_upload(c->device, p->host, p->bytes);
    p->v.buffer = test_upload(c->device, p->host, p->bytes);
    p->k.buffer.offset = p->v.buffer.offset = GUARD + (uint64_t)s->shift * c->item;
    for (int n = 0; n < CACHE_PAGES; n++) c->free_pages[storage][n] = n;
    c->n_free[storage] = CACHE_PAGES;
}

static tess_plan *make_plan(const cache *c, const int64_t *chunks, int cached, const char *kernel);

static void create_steps(cache *c) {
    tess_plan_info info = {.struct_size = sizeof info};
    const int64_t none[CACHE_BATCH] = {0};
    c->plan = make_plan(c, none, 1, NULL);
    assert_ok(tess_plan_query(c->plan, &info));
    c->step = test_upload(c->device, NULL, info.step_bytes);
    c->cu_rows = test_upload(c->device, NULL, (CACHE_BATCH + 1) * sizeof(int32_t));
    c->kv_lens = test_upload(c->device, NULL, CACHE_BATCH * sizeof(int32_t));
    if (!is_in_parts(c->shape)) return;
    int32_t first[CACHE_BATCH];
    for (int b = 0; b < CACHE_BATCH; b++) first[b] = (int32_t)c->shape->kv_first[b];
    c->kv_first = test_upload(c->device, first, sizeof first);
}

void cache_create(cache *c, tess_device *device, const cache_shape *shape) {
    memset(c, 0, sizeof *c);
    c->shape = shape;
    c->device = device;
    c->item = shape->dtype == TESS_F32 ? 4 : 2;
    c->random = 7;
    tess_device_info about = {.struct_size = sizeof about};
    assert_ok(tess_device_query(device, &about));
    c->software = about.kind == TESS_DEVICE_SOFTWARE;
    tess_runtime *runtime = test_runtime(0);
    int64_t most = 0; /* of the positions at which parts begin */
    for (int b = 0; b < CACHE_BATCH; b++)
        if (shape->kv_first[b] > most) most = shape->kv_first[b];
    tess_layout_desc d =
        test_layout_desc(&shape->pattern, shape->heads, shape->kv_heads, most + shape->max_tokens);
    d.max_chunk = shape->max_chunk;
    assert_ok(tess_layout_create(runtime, &d, &c->layout));
    tess_runtime_release(runtime);
    tess_layout_info info = {.struct_size = sizeof info};
    assert_ok(tess_layout_query(c->layout, &info));
    c->n_storage = shape->compact ? info.n_storage : 1;
    assert_in_range(c->n_storage, 1, CACHE_STORAGES);
    memset(c->table, 0xff, sizeof c->table);
    for (uint32_t s = 0; s < c->n_storage; s++) create_pool(c, s);
    if (shape->page) c->block_table = test_upload(device, c->table, sizeof c->table);
    if (shape->steps) create_steps(c);
}

void cache_release(cache *c) {
    for (uint32_t s = 0; s < c->n_storage; s++) {
        c->pools[s].k.buffer.offset = c->pools[s].v.buffer.offset = 0;
        assert_ok(tess_free(c->device, &c->pools[s].k.buffer));
        assert_ok(tess_free(c->device, &c->pools[s].v.buffer));
        free(c->pools[s].host);
        free(c->pools[s].ever);
    }
    assert_ok(tess_free(c->device, &c->step));
    assert_ok(tess_free(c->device, &c->cu_rows));
    assert_ok(tess_free(c->device, &c->kv_lens));
    assert_ok(tess_free(c->device, &c->kv_first));
    tess_plan_release(c->plan);
    assert_ok(tess_free(c->device, &c->block_table));
    tess_layout_release(c->layout);
}

/* ------------------------------------------------------------------ appending */

/* The element that test data has at a token of a sequence; `v`: of V, else of K. */
static uint32_t mark_of(const cache *c, int v, int64_t sequence, int64_t token, int64_t head,
                        int64_t element) {
    uint64_t x = (uint64_t)(((int64_t)c->name[sequence][token] * 67 + head) * 257 + element) * 2 +
                 (uint64_t)v + 1;
    x *= 0x9e3779b97f4a7c15u;
    /* never a byte of what was there before, and a number in every type */
    return (uint32_t)(x >> 33) & (c->item == 4 ? 0x3f7f7f7fu : 0x3f7fu);
}

static void put(const cache *c, unsigned char *at, uint32_t mark) {
    const uint16_t half = (uint16_t)mark;
    if (c->item == 4)
        memcpy(at, &mark, 4);
    else
        memcpy(at, &half, 2);
}

/* Keys of all sequences, `chunks` of them from `firsts` on: padded to the longest chunk, or
 * packed. There is room for `least` rows. */
static unsigned char *keys_from(const cache *c, int v, const int64_t *firsts, const int64_t *chunks,
                                int64_t longest, int64_t least, uint64_t *bytes) {
    const cache_shape *s = c->shape;
    const int64_t row = s->kv_heads * s->head_dim;
    int64_t rows = 0;
    for (int b = 0; b < CACHE_BATCH; b++) rows += s->packed ? chunks[b] : longest;
    if (rows < least) rows = least;
    *bytes = (uint64_t)(s->shift + rows * row) * c->item;
    unsigned char *all = malloc(*bytes ? *bytes : 1);
    if (!all) fail_msg("out of memory");
    memset(all, UNTOUCHED, *bytes);
    int64_t at = s->shift;
    for (int b = 0; b < CACHE_BATCH; b++) {
        for (int64_t r = 0; r < chunks[b]; r++)
            for (int64_t n = 0; n < row; n++)
                put(c, all + (uint64_t)(at + r * row + n) * c->item,
                    mark_of(c, v, b, firsts[b] + r, n / s->head_dim, n % s->head_dim));
        at += (s->packed ? chunks[b] : longest) * row;
    }
    return all;
}

static int32_t take_page(cache *c, uint32_t s) {
    const int pick = (int)test_between(&c->random, 0, c->n_free[s] - 1);
    const int32_t page = c->free_pages[s][pick];
    c->free_pages[s][pick] = c->free_pages[s][--c->n_free[s]];
    c->users[s][page] = 1;
    return page;
}

static void give_page(cache *c, uint32_t s, int32_t page) {
    if (page >= 0 && page < CACHE_PAGES && --c->users[s][page] == 0)
        c->free_pages[s][c->n_free[s]++] = page;
}

static void take_pages(cache *c) {
    for (uint32_t s = 0; s < c->n_storage; s++)
        for (int b = 0; b < CACHE_BATCH; b++) {
            const int64_t places = places_for(c, s, b, c->lens[b]), page = c->shape->page;
            for (int64_t n = 0; n * page < places; n++) {
                static const int32_t none[CACHE_STORAGES] = {INT32_MAX, -1, CACHE_PAGES, INT32_MIN};
                if (c->table[s][b][n] == -1)
                    c->table[s][b][n] =
                        c->shape->hostile && b == 1 && n == 1 ? none[s] : take_page(c, s);
            }
        }
}

static void copy_pages(const cache *c, uint32_t s, int32_t (*pairs)[2], int64_t count) {
    const cache_pool *p = &c->pools[s];
    const tess_tensor pools[2] = {p->k, p->v};
    const uint64_t bytes = (uint64_t)p->k.stride_batch * c->item,
                   first = GUARD + (uint64_t)c->shape->shift * c->item;
    tess_buffer list = test_upload(c->device, pairs, (uint64_t)count * sizeof *pairs);
    const tess_copy_desc d = {.struct_size = sizeof d,
                              .dtype = c->shape->dtype,
                              .n_pools = 2,
                              .n_heads = (int32_t)p->heads,
                              .head_dim = c->shape->head_dim,
                              .page = c->shape->page,
                              .pages = CACHE_PAGES,
                              .n_pairs = count,
                              .pools = pools,
                              .pairs = list};
    assert_ok(tess_copy_pages(c->device, &d));
    assert_ok(tess_wait(c->device, UINT64_MAX));
    assert_ok(tess_free(c->device, &list));
    for (int64_t n = 0; n < count; n++)
        memcpy(p->ever + first + (uint64_t)pairs[n][1] * bytes,
               p->ever + first + (uint64_t)pairs[n][0] * bytes, bytes);
}

/* Gives every sequence pages of its own where it is going to write. */
static void own_pages(cache *c, uint32_t s, const int64_t *firsts) {
    int32_t pairs[CACHE_PAGES][2];
    int64_t count = 0;
    for (int b = 0; b < CACHE_BATCH; b++)
        for (int64_t n = 0; n < c->pools[s].heads; n++)
            for (int64_t t = firsts[b]; t < c->lens[b]; t++) {
                int32_t *entry =
                    &c->table[s][b][place_of(c, b, c->pools[s].head_ids[n], t) / c->shape->page];
                if (*entry < 0 || *entry >= CACHE_PAGES || c->users[s][*entry] == 1) continue;
                pairs[count][0] = *entry;
                give_page(c, s, *entry);
                pairs[count++][1] = *entry = take_page(c, s);
            }
    if (count > 0) copy_pages(c, s, pairs, count);
}

static void upload_table(const cache *c) {
    if (c->shape->page)
        assert_ok(tess_copy(c->device, c->block_table, tess_host_buffer(c->table, sizeof c->table),
                            sizeof c->table));
}

void cache_fork(cache *c, int from, int to) {
    c->lens[to] = c->lens[from];
    memcpy(c->name[to], c->name[from], sizeof c->name[to]);
    for (uint32_t s = 0; s < c->n_storage; s++) {
        cache_pool *p = &c->pools[s];
        for (int n = 0; n < CACHE_HEADS; n++)
            memcpy(p->holds[n][to], p->holds[n][from], sizeof p->holds[n][to]);
        for (int n = 0; n < CACHE_COLUMNS && c->table[s][from][n] >= 0; n++) {
            c->table[s][to][n] = c->table[s][from][n];
            c->users[s][c->table[s][to][n]]++;
        }
    }
    upload_table(c);
}

void cache_fall(cache *c, int sequence, int64_t tokens) {
    c->lens[sequence] = tokens;
    for (uint32_t s = 0; s < c->n_storage; s++) {
        for (int n = 0; n < CACHE_HEADS; n++)
            for (int place = 0; place < CACHE_TOKENS; place++) {
                int16_t *token = &c->pools[s].holds[n][sequence][place];
                if (*token >= tokens) *token = -1;
            }
        const int64_t places = places_for(c, s, sequence, tokens);
        for (int64_t n = 0; n < CACHE_COLUMNS && c->shape->page; n++)
            if (n * c->shape->page >= places && c->table[s][sequence][n] != -1) {
                give_page(c, s, c->table[s][sequence][n]);
                c->table[s][sequence][n] = -1;
            }
    }
    upload_table(c);
}

/* Where the new keys of a pool head go, and what is overwritten there. */
static void note_keys(const cache *c, uint32_t storage, int64_t n, const int64_t *firsts) {
    cache_pool *p = (cache_pool *)&c->pools[storage];
    const int64_t head = p->head_ids[n], block = c->shape->pattern.block;
    for (int b = 0; b < CACHE_BATCH; b++)
        for (int64_t t = 0; t < c->lens[b]; t++) {
            const int64_t place = place_of(c, b, head, t),
                          at = index_of(c, storage, &p->k, b, place, n);
            if (t >= firsts[b] && !c->wrong[b] && is_last(c, b, head, t / block, c->lens[b]))
                p->holds[n][b][place] = (int16_t)t;
            if (at >= 0 && p->holds[n][b][place] == t)
                memset(p->ever + GUARD + (uint64_t)(c->shape->shift + at) * c->item, 1,
                       (size_t)c->shape->head_dim * c->item);
        }
}

/* `cached`: of the cache, else of K and V without one, on `kernel`. */
static tess_plan *make_plan(const cache *c, const int64_t *chunks, int cached, const char *kernel) {
    const cache_shape *s = c->shape;
    int64_t cu_q[CACHE_BATCH + 1] = {0}, cu_kv[CACHE_BATCH + 1] = {0};
    tess_plan_desc d = {.struct_size = sizeof d,
                        .flags =
                            cached ? TESS_PLAN_APPEND | (s->compact ? TESS_PLAN_COMPACT : 0) : 0,
                        .dtype = s->dtype,
                        .head_dim = s->head_dim,
                        .batch = CACHE_BATCH,
                        .max_in_flight = 1,
                        .kernel = kernel,
                        .page = cached ? s->page : 0};
    for (int b = 0; b < CACHE_BATCH; b++) {
        cu_q[b + 1] = cu_q[b] + chunks[b];
        cu_kv[b + 1] = cu_kv[b] + c->lens[b];
    }
    if (s->packed) {
        d.cu_q_lens = cu_q;
        d.cu_kv_lens = cu_kv;
    } else {
        d.q_lens = chunks;
        d.kv_lens = c->lens;
    }
    tess_plan *plan = NULL;
    if (is_in_parts(s)) d.kv_first = s->kv_first;
    if (s->steps) {
        d.kv_split = s->kv_split;
        d.flags |= s->kv_split ? 0 : TESS_PLAN_BATCH_INVARIANT;
    }
    if (s->steps && cached) {
        d.flags |= TESS_PLAN_DEVICE_LENGTHS | (d.kv_first ? TESS_PLAN_DEVICE_PARTS : 0);
        d.cu_q_lens = d.cu_kv_lens = d.kv_first = NULL;
        d.q_len = d.kv_len = s->max_tokens;
        d.max_rows = MOST_ROWS;
    }
    assert_ok(tess_plan_create(c->device, c->layout, &d, &plan));
    return plan;
}

/* A packed cache without pages is laid out anew as sequences grow. */
static void relocate(cache *c, const int64_t *chunks) {
    const cache_shape *s = c->shape;
    if (!is_joined(s)) return;
    cache_pool *p = &c->pools[0];
    const uint64_t row = (uint64_t)(s->kv_heads * s->head_dim) * c->item,
                   first = GUARD + (uint64_t)s->shift * c->item;
    for (int v = 0; v < 2; v++) {
        tess_buffer whole = v ? p->v.buffer : p->k.buffer;
        unsigned char *to = malloc(p->bytes);
        if (!to) fail_msg("out of memory");
        whole.offset = 0;
        test_download(c->device, whole, p->host, p->bytes);
        memset(to, UNTOUCHED, p->bytes);
        uint64_t from = first, at = first;
        for (int b = 0; b < CACHE_BATCH; b++) {
            memcpy(to + at, p->host + from, (uint64_t)c->lens[b] * row);
            from += (uint64_t)c->lens[b] * row;
            at += (uint64_t)(c->lens[b] + chunks[b]) * row;
        }
        memset(p->ever, 0, p->bytes); /* note_keys notes all keys */
        assert_ok(tess_copy(c->device, whole, tess_host_buffer(to, p->bytes), p->bytes));
        free(to);
    }
}

/* Lengths of the step: `rows` last rows of each sequence. */
static void prepare(cache *c, const int64_t *rows) {
    int32_t cu_rows[CACHE_BATCH + 1] = {0}, kv_lens[CACHE_BATCH], n_wrong = 0;
    uint32_t head[4];
    for (int b = 0; b < CACHE_BATCH; b++) {
        cu_rows[b + 1] = cu_rows[b] + (int32_t)rows[b];
        kv_lens[b] = c->wrong[b] ? c->wrong[b] : (int32_t)c->lens[b];
        n_wrong += c->wrong[b] != 0;
    }
    assert_ok(tess_copy(c->device, c->cu_rows, tess_host_buffer(cu_rows, sizeof cu_rows),
                        sizeof cu_rows));
    assert_ok(tess_copy(c->device, c->kv_lens, tess_host_buffer(kv_lens, sizeof kv_lens),
                        sizeof kv_lens));
    const tess_prepare_desc d = {.struct_size = sizeof d,
                                 .batch = CACHE_BATCH,
                                 .cu_rows = c->cu_rows,
                                 .kv_lens = c->kv_lens,
                                 .kv_first = c->kv_first,
                                 .step = c->step};
    assert_ok(tess_prepare(c->plan, &d));
    assert_ok(tess_wait(c->device, UINT64_MAX));
    test_download(c->device, c->step, head, sizeof head);
    assert_int_equal(n_wrong, head[TESS_STEP_CLAMPED]);
}

/* A plan for so many rows, or the plan of steps once a step is prepared. */
static tess_plan *take_plan(cache *c, const int64_t *rows) {
    if (!c->shape->steps) return make_plan(c, rows, 1, NULL);
    prepare(c, rows);
    return c->plan;
}

static void give_plan(const cache *c, tess_plan *plan) {
    if (!c->shape->steps) tess_plan_release(plan);
}

void cache_append(cache *c, const int64_t chunks[CACHE_BATCH]) {
    tess_tensor k_pools[CACHE_STORAGES], v_pools[CACHE_STORAGES];
    tess_append_desc d = {.struct_size = sizeof d, .k_pools = k_pools, .v_pools = v_pools};
    tess_tensor *const news[2] = {&d.k, &d.v};
    int64_t longest = 0, firsts[CACHE_BATCH];
    for (int b = 0; b < CACHE_BATCH; b++) {
        if (chunks[b] > longest) longest = chunks[b];
        firsts[b] = c->lens[b];
        for (int64_t n = 0; n < chunks[b]; n++) c->name[b][firsts[b] + n] = ++c->names;
    }
    const tess_buffer none = {0};
    relocate(c, chunks);
    for (int v = 0; v < 2; v++) {
        uint64_t bytes;
        unsigned char *rows =
            keys_from(c, v, firsts, chunks, longest, c->shape->steps ? MOST_ROWS : 0, &bytes);
        news[v]->buffer = longest || c->shape->steps ? test_upload(c->device, rows, bytes) : none;
        news[v]->buffer.offset = (uint64_t)c->shape->shift * c->item;
        free(rows);
    }
    for (int b = 0; b < CACHE_BATCH; b++) c->lens[b] += chunks[b];
    if (c->shape->page) {
        take_pages(c);
        for (uint32_t s = 0; s < c->n_storage; s++) own_pages(c, s, firsts);
        upload_table(c);
        d.block_table = c->block_table;
        d.table_stride = CACHE_COLUMNS;
        d.pages = CACHE_PAGES;
    }
    tess_plan *plan = take_plan(c, chunks);
    d.step = c->step;
    for (int v = 0; v < 2; v++) {
        tess_tensor strides;
        assert_ok(tess_plan_tensor(plan, v ? TESS_ROLE_NEW_V : TESS_ROLE_NEW_K, news[v]->buffer,
                                   &strides, NULL));
        *news[v] = strides;
    }
    for (uint32_t s = 0; s < c->n_storage; s++) {
        k_pools[s] = c->pools[s].k;
        v_pools[s] = c->pools[s].v;
        for (int64_t n = 0; n < c->pools[s].heads; n++) note_keys(c, s, n, firsts);
    }
    assert_ok(tess_append(plan, &d));
    assert_ok(tess_wait(c->device, UINT64_MAX));
    for (int v = 0; v < 2; v++) {
        news[v]->buffer.offset = 0;
        assert_ok(tess_free(c->device, &news[v]->buffer));
    }
    for (int b = 0; b < CACHE_BATCH; b++)
        if (c->wrong[b]) c->lens[b] -= chunks[b];
    give_plan(c, plan);
}

/* ------------------------------------------------------------------ checking */

/* Compares the keys of one kv head with what they were. */
static void check_head(const cache *c, const char *what, uint32_t storage, int v, int64_t n) {
    const cache_shape *s = c->shape;
    const cache_pool *p = &c->pools[storage];
    const int64_t head = p->head_ids[n];
    for (int64_t b = 0; b < CACHE_BATCH; b++)
        for (int64_t place = 0; place < CACHE_TOKENS; place++) {
            const int64_t t = p->holds[n][b][place];
            if (t < 0) continue;
            const int64_t at = index_of(c, storage, &p->k, b, place, n);
            const uint64_t byte = GUARD + (uint64_t)(s->shift + at) * c->item;
            if (at < 0) continue;
            for (int64_t e = 0; e < s->head_dim; e++) {
                unsigned char wanted[4];
                put(c, wanted, mark_of(c, v, b, t, head, e));
                if (memcmp(wanted, p->host + byte + (uint64_t)e * c->item, c->item) != 0)
                    fail_msg("%s, %s: %s of sequence %d, token %d, kv head %d, element %d is wrong",
                             s->name, what, v ? "V" : "K", (int)b, (int)t, (int)head, (int)e);
            }
        }
}

void cache_check(cache *c, const char *what) {
    for (uint32_t s = 0; s < c->n_storage; s++)
        for (int v = 0; v < 2; v++) {
            cache_pool *p = &c->pools[s];
            tess_buffer whole = v ? p->v.buffer : p->k.buffer;
            whole.offset = 0;
            test_download(c->device, whole, p->host, p->bytes);
            for (int64_t n = 0; n < p->heads; n++) check_head(c, what, s, v, n);
            for (uint64_t n = 0; n < p->bytes; n++)
                if (!p->ever[n] && p->host[n] != UNTOUCHED)
                    fail_msg("%s, %s: byte %d of a pool that no key goes to was written",
                             c->shape->name, what, (int)n);
        }
}

/* ------------------------------------------------------------------ attention */

static void keep_head(const cache *c, uint32_t storage, const cache_pool *p, int64_t n,
                      unsigned char *keep) {
    const cache_shape *s = c->shape;
    for (int64_t b = 0; b < CACHE_BATCH; b++)
        for (int64_t place = 0; place < CACHE_TOKENS; place++) {
            if (p->holds[n][b][place] < 0) continue;
            const int64_t at = index_of(c, storage, &p->k, b, place, n);
            if (at < 0) continue;
            memset(keep + GUARD + (uint64_t)(s->shift + at) * c->item, 1,
                   (size_t)s->head_dim * c->item);
        }
}

void cache_poison(cache *c) {
    for (uint32_t s = 0; s < c->n_storage; s++) {
        cache_pool *p = &c->pools[s];
        unsigned char *keep = calloc(p->bytes, 1);
        if (!keep) fail_msg("out of memory");
        for (int64_t n = 0; n < p->heads; n++) keep_head(c, s, p, n, keep);
        for (int v = 0; v < 2; v++) {
            tess_buffer whole = v ? p->v.buffer : p->k.buffer;
            whole.offset = 0;
            test_download(c->device, whole, p->host, p->bytes);
            for (uint64_t n = 0; n < p->bytes; n++)
                if (!keep[n]) p->host[n] = UNTOUCHED;
            assert_ok(tess_copy(c->device, whole, tess_host_buffer(p->host, p->bytes), p->bytes));
        }
        free(keep);
    }
}

/* Runs a plan on what `run` has of K and V, and gives the bytes of O. */
static unsigned char *attend(const cache *c, const tess_plan *plan, tess_run_desc *run,
                             uint64_t *o_bytes) {
    tess_plan_info info = {.struct_size = sizeof info};
    uint64_t q_bytes, random = 5;
    tess_buffer none = {0};
    assert_ok(tess_plan_query(plan, &info));
    assert_ok(tess_plan_tensor(plan, TESS_ROLE_Q, none, &run->q, &q_bytes));
    assert_ok(tess_plan_tensor(plan, TESS_ROLE_O, none, &run->o, o_bytes));
    unsigned char *q = malloc(q_bytes), *o = malloc(*o_bytes);
    if (!q || !o) fail_msg("out of memory");
    for (uint64_t n = 0; n < q_bytes / c->item; n++)
        put(c, q + n * c->item,
            (uint32_t)test_random(&random) & (c->item == 4 ? 0xbf7f7f7fu : 0xbf7fu));
    memset(o, 0, *o_bytes);
    run->q.buffer = test_upload(c->device, q, q_bytes);
    run->o.buffer = test_upload(c->device, o, *o_bytes);
    if (info.workspace_bytes) run->workspace = test_upload(c->device, NULL, info.workspace_bytes);
    assert_ok(tess_run(plan, run));
    assert_ok(tess_wait(c->device, UINT64_MAX));
    test_download(c->device, run->o.buffer, o, *o_bytes);
    assert_ok(tess_free(c->device, &run->q.buffer));
    assert_ok(tess_free(c->device, &run->o.buffer));
    assert_ok(tess_free(c->device, &run->workspace));
    free(q);
    return o;
}

void cache_attend(cache *c, const int64_t rows[CACHE_BATCH], const char *what) {
    tess_tensor k_pools[CACHE_STORAGES], v_pools[CACHE_STORAGES];
    tess_run_desc cached = {.struct_size = sizeof cached}, plain = {.struct_size = sizeof plain};
    tess_tensor *const kv[2] = {&plain.k, &plain.v};
    const int64_t zeros[CACHE_BATCH] = {0};
    tess_plan_info info = {.struct_size = sizeof info}, again = info;
    int64_t longest = 0;
    uint64_t bytes, got_bytes;
    for (int b = 0; b < CACHE_BATCH; b++)
        if (c->lens[b] > longest) longest = c->lens[b];
    for (uint32_t s = 0; s < c->n_storage; s++) {
        k_pools[s] = c->pools[s].k;
        v_pools[s] = c->pools[s].v;
    }
    if (c->n_storage == 1) {
        cached.k = k_pools[0];
        cached.v = v_pools[0];
    } else {
        cached.k_pools = k_pools;
        cached.v_pools = v_pools;
    }
    if (c->shape->page) {
        cached.block_table = c->block_table;
        cached.table_stride = CACHE_COLUMNS;
        cached.pages = CACHE_PAGES;
    }
    tess_plan *plan = take_plan(c, rows);
    cached.step = c->step;
    assert_ok(tess_plan_query(plan, &info));
    unsigned char *got = attend(c, plan, &cached, &got_bytes);
    give_plan(c, plan);

    /* The same kernels: those of a plan that has two come without a name. */
    plan = make_plan(c, rows, 0, info.few_kernel[0] ? NULL : info.kernel);
    assert_ok(tess_plan_query(plan, &again));
    /* A step has kernels for all lengths that it may have, and this plan for those that it has. */
    const int few = strcmp(again.kernel, info.few_kernel) == 0;
    if (!few) assert_string_equal(info.kernel, again.kernel);
    if (again.few_kernel[0]) assert_string_equal(info.few_kernel, again.few_kernel);
    for (int v = 0; v < 2; v++) {
        unsigned char *keys = keys_from(c, v, zeros, c->lens, longest, 0, &bytes);
        const tess_buffer buffer = test_upload(c->device, keys, bytes);
        assert_ok(tess_plan_tensor(plan, v ? TESS_ROLE_V : TESS_ROLE_K, buffer, kv[v], NULL));
        kv[v]->buffer.offset = (uint64_t)c->shape->shift * c->item;
        free(keys);
    }
    unsigned char *wanted = attend(c, plan, &plain, &bytes);
    for (uint64_t n = bytes; n < got_bytes; n++) assert_int_equal(0, got[n]); /* no row's */
    tess_plan_release(plan);
    for (int v = 0; v < 2; v++) {
        kv[v]->buffer.offset = 0;
        assert_ok(tess_free(c->device, &kv[v]->buffer));
    }
    /* Where a tile ends decides which keys parts have, and a kernel's tile may follow q_len, which
     * is a capacity in one of the plans. Without parts of such jobs the bits are the same. */
    const uint32_t tile_rows = few ? info.few_tile_rows : info.tile_rows;
    const int alike = tile_rows == again.tile_rows &&
                      (!again.few_kernel[0] || info.few_tile_rows == again.few_tile_rows),
              comparable = !c->shape->kv_split || alike;
    if (comparable && memcmp(got, wanted, bytes) != 0)
        fail_msg("%s, %s: attention over the cache differs", c->shape->name, what);
    free(got);
    free(wanted);
}

/* ------------------------------------------------------------------ the program */

int serving_main(int argc, char **argv, const serving_test *all, int n_tests) {
    enum { MOST = 256 };
    static struct CMUnitTest tests[MOST];
    static char titles[MOST][96];
    test_targets targets;
    const int absent = test_targets_open(&targets, argc > 1 ? argv[1] : NULL, 0);
    if (absent != 0) return absent;
    size_t count = 0;
    for (int t = 0; t < targets.count; t++)
        for (int n = 0; n < n_tests && count < MOST; n++) {
            if (argc > 2 && strcmp(argv[2], all[n].name) != 0) continue;
            snprintf(titles[count], sizeof titles[0], "%s [%s]", all[n].name, targets.items[t].id);
            tests[count] =
                (struct CMUnitTest){titles[count], all[n].test, NULL, NULL, &targets.items[t]};
            count++;
        }
    if (count == 0) fprintf(stderr, "there is no test %s\n", argc > 2 ? argv[2] : "");
    const int failed =
        count == 0 || _cmocka_run_group_tests("serving", tests, count, NULL, NULL) != 0;
    test_targets_close(&targets);
    return failed;
}
