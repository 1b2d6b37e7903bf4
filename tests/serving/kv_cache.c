/* SPDX-License-Identifier: Apache-2.0 */
#include "kv_cache.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/elements.h"
#include "common/quantised.h"

/* A pool holds NaN where no key went, and so do rows of no sequence; an output holds no NaN, which
 * a kernel might write there. */
enum { GUARD = 512, GUARD_BYTE = 0xa5, NOT_A_NUMBER = 0xff, UNTOUCHED = 0x9d };
enum { MOST_DIM = 256 };

const char *kv_line(const kv_cache *c, const char *more) {
    static char line[640];
    const kv_problem *p = c->p;
    snprintf(line, sizeof line,
             "%s: kind=%u block=%d local=%d stride=%d dense_heads=%d left=%d sinks=%d heads=%d "
             "kv_heads=%d head_first=%d heads_total=%d head_dim=%d dtype=%u kv_dtype=%u flags=%u "
             "kv_split=%d max_chunk=%d page=%d "
             "compact=%d steps=%d head_major=%d static=%d q_len=%d max_rows=%d far=%lld batch=%d "
             "keys=%d [%s %u, %s %u]",
             more, (unsigned)p->pattern.kind, p->pattern.block, p->pattern.local, p->pattern.stride,
             p->pattern.dense_heads, (int)p->pattern.left, (int)p->pattern.sinks, p->heads,
             p->kv_heads, p->head_first, p->heads_total, p->head_dim, (unsigned)p->dtype,
             (unsigned)p->kv_dtype, (unsigned)p->flags, p->kv_split, (int)p->max_chunk,
             c->form.page, c->form.compact, c->form.steps, c->form.head_major, c->form.is_static,
             (int)c->form.q_len, (int)c->form.max_rows, (long long)c->form.far, c->batch,
             (int)c->keys, c->info.kernel, c->info.tile_rows, c->info.few_kernel,
             c->info.few_tile_rows);
    return line;
}

static int n_opened;

int kv_none_opened(void) {
    if (n_opened == 0) fprintf(stderr, "no problem was taken, so nothing was tested\n");
    return n_opened == 0;
}

int kv_repeats(int otherwise) {
    const char *given = getenv("TESSERA_TEST_REPEATS");
    const long count = given ? strtol(given, NULL, 10) : 0;
    return count > 0 ? (int)count : otherwise;
}

static void *room(uint64_t bytes) {
    void *memory = calloc(bytes ? bytes : 1, 1);
    if (!memory) fail_msg("out of memory");
    return memory;
}

/* ------------------------------------------------------------------ memory */

static kv_memory hold(tess_device *device, uint64_t bytes, int fill) {
    kv_memory m = {.bytes = bytes};
    if (bytes == 0) return m;
    unsigned char *image = room(bytes + 2 * GUARD);
    memset(image, GUARD_BYTE, bytes + 2 * GUARD);
    memset(image + GUARD, fill, bytes);
    m.buffer = test_upload(device, image, bytes + 2 * GUARD);
    m.buffer.offset = GUARD;
    m.buffer.size = GUARD + bytes;
    free(image);
    return m;
}

static void let_go(const kv_cache *c, kv_memory *m) {
    m->buffer.offset = 0;
    if (m->step)
        c->form.far_free(&m->buffer, m->step, (int64_t)(m->bytes / m->step + 1));
    else if (m->map)
        munmap(m->map, m->bytes);
    else
        assert_ok(tess_free(c->device, &m->buffer));
    memset(m, 0, sizeof *m);
}

static void check_guards(const kv_cache *c, const kv_memory *m, const char *what) {
    unsigned char guard[GUARD];
    if (m->bytes == 0 || m->buffer.offset == 0) return;
    for (int end = 0; end < 2; end++) {
        tess_buffer b = m->buffer;
        b.offset = end ? GUARD + m->bytes : 0;
        b.size = 2 * GUARD + m->bytes;
        test_download(c->device, b, guard, GUARD);
        for (int n = 0; n < GUARD; n++)
            if (guard[n] != GUARD_BYTE)
                fail_msg("%s: byte %d %s a buffer of %llu bytes was written", kv_line(c, what), n,
                         end ? "behind" : "of those before", (unsigned long long)m->bytes);
    }
}

void kv_check_guards(const kv_cache *c, const char *what) {
    check_guards(c, &c->step, what);
    for (uint32_t s = 0; s < c->n_storage; s++)
        for (int n = 0; n < 4; n++) check_guards(c, &c->pools[s].memory[n], what);
}

/* Pools that are far apart: address space on the host, and memory of a device. */
static kv_memory hold_far(const kv_cache *c, uint64_t bytes, uint64_t step) {
    kv_memory m = {.bytes = bytes};
    if (c->form.far_memory) {
        m.step = step;
        m.buffer = c->form.far_memory(m.step, (int64_t)(bytes / m.step + 1));
        return m;
    }
    if (!c->host_memory) {
        m.buffer = test_upload(c->device, NULL, bytes);
        return m;
    }
    m.map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                 -1, 0);
    if (m.map == MAP_FAILED)
        fail_msg("%llu bytes of address space cannot be mapped", (unsigned long long)bytes);
    m.buffer = tess_host_buffer(m.map, bytes);
    return m;
}

/* Who plans, and whether rows of sequences follow each other then. */
static int by_steps(const kv_cache *c) { return c->form.steps && !c->by_host; }
static int is_packed(const kv_cache *c) { return by_steps(c) || c->form.page || c->form.compact; }

/* ------------------------------------------------------------------ elements */

enum { OF_Q, OF_K, OF_V };

static uint64_t mixed(uint64_t x) {
    x ^= x >> 31;
    x *= 0x9e3779b97f4a7c15u;
    x ^= x >> 29;
    return x * 0xbf58476d1ce4e5b9u;
}

/* Eight significant bits, which every type but those of 8 bits holds. */
static float element_of(const kv_problem *p, int of, uint32_t name, int64_t token, int32_t head,
                        int32_t element) {
    if (p->rise && element == 0 && of != OF_V)
        return of == OF_Q ? 4 * sqrtf((float)p->head_dim) : token / p->rise % 2 ? 20.0f : 0.0f;
    const uint64_t x = mixed(((uint64_t)name * 8 + (uint64_t)of) * 0x10001 +
                             mixed((uint64_t)head * MOST_DIM + (uint64_t)element));
    const float f = (float)((int)(x >> 56) - 128) / 128;
    return of == OF_Q ? 4 * f : f;
}

static void fill_row(const kv_problem *p, int of, uint32_t name, int64_t token, int32_t head,
                     void *base, int64_t at) {
    for (int32_t e = 0; e < p->head_dim; e++)
        element_store(p->dtype, base, at + e, element_of(p, of, name, token, head, e));
}

static float static_scale(int v, int32_t head) {
    return (float)(1 + head % 2) / (v ? 32.0f : 64.0f);
}

void kv_row(const kv_cache *c, int v, int32_t sequence, int64_t token, int32_t head, double *row) {
    const kv_problem *p = c->p;
    float given[MOST_DIM];
    uint8_t codes[MOST_DIM];
    float scale = static_scale(v, head);
    fill_row(p, v ? OF_V : OF_K, c->names[sequence * c->keys + token], token, head, given, 0);
    if (p->kv_dtype)
        quantised_row(p->dtype, given, 0, p->head_dim, p->kv_dtype, c->form.is_static, &scale,
                      codes);
    for (int32_t e = 0; e < p->head_dim; e++)
        row[e] = p->kv_dtype ? (double)scale * element_load(p->kv_dtype, codes, e)
                             : (double)element_load(p->dtype, given, e);
}

/* ------------------------------------------------------------------ life */

static int64_t pages_of(const kv_cache *c, uint32_t storage, int64_t tokens, int32_t page) {
    int64_t n = page ? (tokens + page - 1) / page : tokens;
    if (c->form.compact) assert_ok(tess_layout_pages(c->layout, storage, tokens, page, &n));
    return n;
}

static void shape_pool(kv_cache *c, uint32_t s) {
    kv_pool *pool = &c->pools[s];
    pool->heads = c->p->kv_heads;
    for (int32_t n = 0; n < pool->heads; n++) pool->ids[n] = n;
    if (!c->form.compact) return;
    tess_storage_info info = {.struct_size = sizeof info};
    assert_ok(tess_layout_storage(c->layout, s, &info, pool->ids));
    pool->heads = (int32_t)info.n_kv_heads;
}

static void create_pool(kv_cache *c, uint32_t s) {
    kv_pool *pool = &c->pools[s];
    const kv_form *f = &c->form;
    pool->units = f->page ? c->pages : c->batch;
    pool->tokens = f->page ? f->page : pages_of(c, s, c->keys, 0);
    for (int n = 0; n < (c->p->kv_dtype ? 4 : 2); n++) {
        const int64_t dim = n < 2 ? c->p->head_dim : 1, unit = pool->tokens * pool->heads * dim;
        const uint32_t item = n < 2 ? c->kv_item : 4;
        tess_tensor *t = &pool->tensor[n];
        /* What lies between scales is four times as much, which no device need have. */
        const int is_far = f->far && (n < 2 || c->host_memory);
        t->stride_batch = is_far ? f->far : unit;
        t->stride_token = f->head_major ? dim : pool->heads * dim;
        t->stride_head = f->head_major ? pool->tokens * dim : dim;
        const uint64_t bytes = (uint64_t)((pool->units - 1) * t->stride_batch + unit) * item;
        if (n >= 2 && f->is_static) {
            float scales[KV_MOST_HEADS];
            for (int32_t h = 0; h < pool->heads; h++) scales[h] = static_scale(n - 2, pool->ids[h]);
            pool->memory[n] = hold(c->device, (uint64_t)pool->heads * 4, 0);
            assert_ok(tess_copy(c->device, pool->memory[n].buffer,
                                tess_host_buffer(scales, pool->memory[n].bytes),
                                pool->memory[n].bytes));
            t->stride_batch = t->stride_token = 0;
            t->stride_head = 1;
        } else if (is_far) {
            pool->memory[n] = hold_far(c, bytes, (uint64_t)f->far * item);
        } else {
            pool->memory[n] = hold(c->device, bytes, NOT_A_NUMBER);
        }
        t->buffer = pool->memory[n].buffer;
    }
    pool->n_free = f->page ? c->pages : 0;
    pool->free_pages = room((uint64_t)pool->n_free * sizeof *pool->free_pages);
    for (int32_t n = 0; n < pool->n_free; n++) pool->free_pages[n] = n;
}

static tess_plan_desc plan_desc(const kv_cache *c) {
    const kv_problem *p = c->p;
    return (tess_plan_desc){
        .struct_size = sizeof(tess_plan_desc),
        .flags = p->flags | TESS_PLAN_APPEND | (c->form.compact ? TESS_PLAN_COMPACT : 0u) |
                 (by_steps(c) ? TESS_PLAN_DEVICE_LENGTHS : 0u),
        .dtype = p->dtype,
        .kv_dtype = p->kv_dtype,
        .head_dim = p->head_dim,
        .batch = c->batch,
        .kv_split = p->kv_split,
        .page = c->form.page,
        .max_rows = by_steps(c) ? c->form.max_rows : 0,
    };
}

/* A plan for rows of lengths that the host knows, whose keys are those so far. */
static tess_status plan_rows(const kv_cache *c, const int64_t *rows, tess_plan **plan) {
    tess_plan_desc d = plan_desc(c);
    int64_t *cu = room(2 * ((uint64_t)c->batch + 1) * sizeof *cu), *ck = cu + c->batch + 1;
    for (int32_t b = 0; b < c->batch; b++) {
        cu[b + 1] = cu[b] + rows[b];
        ck[b + 1] = ck[b] + c->lens[b];
        if (rows[b] > d.q_len) d.q_len = rows[b];
    }
    if (is_packed(c)) {
        d.q_len = 0;
        d.cu_q_lens = cu;
        d.cu_kv_lens = ck;
    } else {
        d.kv_len = c->keys;
        d.q_lens = rows;
        d.kv_lens = c->lens;
    }
    const tess_status status = tess_plan_create(c->device, c->layout, &d, plan);
    free(cu);
    return status;
}

static tess_status plan_steps(kv_cache *c) {
    tess_plan_desc d = plan_desc(c);
    d.q_len = c->form.q_len;
    d.kv_len = c->keys;
    const tess_status status = tess_plan_create(c->device, c->layout, &d, &c->plan);
    if (status != TESS_OK) return status;
    assert_ok(tess_plan_query(c->plan, &c->info));
    c->step = hold(c->device, c->info.step_bytes, 0x77);
    c->cu_rows = test_upload(c->device, NULL, ((uint64_t)c->batch + 1) * 4);
    c->kv_lens = test_upload(c->device, NULL, (uint64_t)c->batch * 4);
    c->q_first = test_upload(c->device, NULL, (uint64_t)c->batch * 4);
    return TESS_OK;
}

int kv_open(kv_cache *c, const test_target *target, const kv_problem *p, const kv_form *form,
            int32_t batch, int64_t keys, uint64_t seed) {
    tess_runtime *runtime = test_runtime(0);
    tess_layout_desc d = test_layout_desc(&p->pattern, p->heads, p->kv_heads, p->max_tokens);
    d.max_chunk = p->max_chunk;
    d.head_first = p->head_first;
    d.heads_total = p->heads_total;
    memset(c, 0, sizeof *c);
    *c = (kv_cache){.device = target->device, .p = p, .form = *form, .batch = batch, .keys = keys};
    c->host_memory = target->host_memory;
    c->random = seed * 2 + 1;
    c->item = p->dtype == TESS_F32 ? 4 : 2;
    c->kv_item = p->kv_dtype ? 1 : c->item;
    c->info.struct_size = sizeof c->info;
    assert_ok(tess_layout_create(runtime, &d, &c->layout));
    tess_runtime_release(runtime);
    tess_layout_info about = {.struct_size = sizeof about};
    assert_ok(tess_layout_query(c->layout, &about));
    c->n_storage = form->compact ? about.n_storage : 1;
    assert_in_range(c->n_storage, 1, KV_STORAGES);
    c->lens = room((uint64_t)batch * sizeof *c->lens);
    c->seeds = room((uint64_t)batch * sizeof *c->seeds);
    c->given = room((uint64_t)batch * sizeof *c->given);
    for (int32_t b = 0; b < batch; b++) c->seeds[b] = (uint32_t)b + 1;
    tess_status status;
    if (form->steps) {
        status = plan_steps(c);
    } else {
        tess_plan *plan = NULL;
        for (int32_t b = 0; b < batch; b++) c->lens[b] = 1;
        status = plan_rows(c, c->lens, &plan);
        memset(c->lens, 0, (uint64_t)batch * sizeof *c->lens);
        tess_plan_release(plan);
    }
    if (status != TESS_OK) {
        /* A kernel that is named may refuse pages, types and sizes. */
        if (status != TESS_ERROR_UNSUPPORTED || !test_kernel_is_named())
            fail_msg("%s: %s", kv_line(c, "refused"), tess_last_error());
        free(c->lens);
        free(c->seeds);
        free(c->given);
        tess_layout_release(c->layout);
        return 0;
    }
    n_opened++;
    c->names = room((uint64_t)batch * (uint64_t)keys * sizeof *c->names);
    for (uint32_t s = 0; s < c->n_storage; s++) shape_pool(c, s);
    for (uint32_t s = 0; s < c->n_storage && form->page; s++) {
        const int64_t n = pages_of(c, s, keys, form->page);
        if (n > c->columns) c->columns = n;
    }
    if (form->page) {
        c->pages = batch * c->columns + 1 + form->spare;
        c->columns += form->spare;
    }
    const uint64_t entries = (uint64_t)(c->n_storage * batch * c->columns);
    c->table = room(entries * sizeof *c->table);
    memset(c->table, 0xff, entries * sizeof *c->table);
    c->block_table = entries ? test_upload(c->device, c->table, entries * 4) : (tess_buffer){0};
    for (uint32_t s = 0; s < c->n_storage; s++) create_pool(c, s);
    return 1;
}

void kv_close(kv_cache *c) {
    kv_check_guards(c, "at the end");
    for (uint32_t s = 0; s < c->n_storage; s++) {
        for (int n = 0; n < 4; n++) let_go(c, &c->pools[s].memory[n]);
        free(c->pools[s].free_pages);
    }
    let_go(c, &c->step);
    tess_buffer *const buffers[4] = {&c->block_table, &c->cu_rows, &c->kv_lens, &c->q_first};
    for (int n = 0; n < 4; n++) assert_ok(tess_free(c->device, buffers[n]));
    tess_plan_release(c->plan);
    tess_layout_release(c->layout);
    void *const arrays[5] = {c->lens, c->seeds, c->given, c->names, c->table};
    for (int n = 0; n < 5; n++) free(arrays[n]);
}

/* ------------------------------------------------------------------ lengths and pages */

static int32_t *entry_of(const kv_cache *c, uint32_t s, int32_t sequence, int64_t column) {
    return &c->table[(s * c->batch + sequence) * c->columns + column];
}

static void upload_table(const kv_cache *c) {
    const uint64_t bytes = (uint64_t)(c->n_storage * c->batch * c->columns) * 4;
    if (bytes)
        assert_ok(tess_copy(c->device, c->block_table, tess_host_buffer(c->table, bytes), bytes));
}

static void take_pages(kv_cache *c) {
    for (uint32_t s = 0; s < c->n_storage && c->form.page; s++)
        for (int32_t b = 0; b < c->batch; b++) {
            const int64_t n = pages_of(c, s, c->lens[b], c->form.page);
            kv_pool *pool = &c->pools[s];
            for (int64_t i = 0; i < n; i++) {
                if (*entry_of(c, s, b, i) != -1) continue;
                const int64_t pick = test_between(&c->random, 0, pool->n_free - 1);
                *entry_of(c, s, b, i) = pool->free_pages[pick];
                pool->free_pages[pick] = pool->free_pages[--pool->n_free];
            }
        }
    upload_table(c);
}

/* Where a token's row of the n-th head of a pool lies, in elements; -1: its page is a hole. */
static int64_t row_of(const kv_cache *c, uint32_t s, const tess_tensor *t, int32_t sequence,
                      int64_t token, int32_t n) {
    const int64_t block = c->p->pattern.block ? c->p->pattern.block : 64;
    int64_t unit = sequence, place = token;
    if (c->form.compact) {
        int64_t slot = 0;
        assert_ok(tess_layout_slot(c->layout, c->pools[s].ids[n], token / block, &slot));
        place = slot * block + token % block;
    }
    if (c->form.page) {
        unit = *entry_of(c, s, sequence, place / c->form.page);
        place %= c->form.page;
        if (unit < 0 || unit >= c->pages) return -1;
    }
    return unit * t->stride_batch + place * t->stride_token + n * t->stride_head;
}

/* Makes NaN of the rows from `first` to `end`, and of their scales: nobody reads them again. */
static void spoil(const kv_cache *c, int32_t sequence, int64_t first, int64_t end) {
    for (uint32_t s = 0; s < c->n_storage; s++)
        for (int n = 0; n < 4; n++) {
            const kv_memory *m = &c->pools[s].memory[n];
            const tess_tensor *t = &c->pools[s].tensor[n];
            const uint64_t item = n < 2 ? c->kv_item : 4,
                           row = n < 2 ? (uint64_t)c->p->head_dim * item : item;
            if (m->bytes == 0 || t->stride_token == 0 || c->form.far) continue;
            unsigned char *image = room(m->bytes);
            test_download(c->device, m->buffer, image, m->bytes);
            for (int64_t token = first; token < end; token++)
                for (int32_t h = 0; h < c->pools[s].heads; h++) {
                    const int64_t at = row_of(c, s, t, sequence, token, h);
                    if (at >= 0) memset(image + (uint64_t)at * item, NOT_A_NUMBER, row);
                }
            assert_ok(tess_copy(c->device, m->buffer, tess_host_buffer(image, m->bytes), m->bytes));
            free(image);
        }
}

void kv_fall(kv_cache *c, int32_t sequence, int64_t tokens) {
    if (tokens) spoil(c, sequence, tokens, c->lens[sequence]);
    c->lens[sequence] = tokens;
    c->rounds++;
    if (tokens) return;
    for (uint32_t s = 0; s < c->n_storage; s++)
        for (int64_t i = 0; i < c->columns; i++) {
            int32_t *entry = entry_of(c, s, sequence, i);
            if (*entry >= 0 && *entry < c->pages)
                c->pools[s].free_pages[c->pools[s].n_free++] = *entry;
            *entry = -1;
        }
}

void kv_set_page(kv_cache *c, uint32_t storage, int32_t sequence, int64_t column, int32_t id) {
    *entry_of(c, storage, sequence, column) = id;
    upload_table(c);
}

void kv_punch(kv_cache *c, uint32_t storage, int32_t sequence, int64_t column) {
    const int32_t none[] = {-2, INT32_MAX, INT32_MIN, (int32_t)c->pages};
    kv_set_page(c, storage, sequence, column, none[column % 4]);
}

/* ------------------------------------------------------------------ steps */

void kv_prepare(kv_cache *c, int32_t batch, const int32_t *cu_rows, const int32_t *kv_lens) {
    const tess_prepare_desc d = {.struct_size = sizeof d,
                                 .batch = (uint32_t)batch,
                                 .cu_rows = c->cu_rows,
                                 .kv_lens = c->kv_lens,
                                 .q_first = c->q_firsts ? c->q_first : (tess_buffer){0},
                                 .step = c->step.buffer};
    const uint64_t bytes = (uint64_t)batch * 4;
    assert_ok(tess_copy(c->device, c->cu_rows, tess_host_buffer(cu_rows, bytes + 4), bytes + 4));
    if (batch) assert_ok(tess_copy(c->device, c->kv_lens, tess_host_buffer(kv_lens, bytes), bytes));
    if (batch && c->q_firsts)
        assert_ok(tess_copy(c->device, c->q_first, tess_host_buffer(c->q_firsts, bytes), bytes));
    assert_ok(tess_prepare(c->plan, &d));
    assert_ok(tess_wait(c->device, UINT64_MAX));
    test_download(c->device, c->step.buffer, c->head, sizeof c->head);
    check_guards(c, &c->step, "tess_prepare");
}

static void prepare_rows(kv_cache *c, const int64_t *rows) {
    int32_t *cu = room(2 * ((uint64_t)c->batch + 1) * 4), *lens = cu + c->batch + 1;
    uint32_t wrong = 0;
    for (int32_t b = 0; b < c->batch; b++) {
        cu[b + 1] = cu[b] + (int32_t)rows[b];
        lens[b] = c->given[b] ? c->given[b] : (int32_t)c->lens[b];
        wrong += c->given[b] != 0;
    }
    kv_prepare(c, c->batch, cu, lens);
    if (c->head[TESS_STEP_CLAMPED] != wrong)
        fail_msg("%s: %u lengths were clamped, and %u are wrong", kv_line(c, "prepare"),
                 c->head[TESS_STEP_CLAMPED], wrong);
    free(cu);
}

/* ------------------------------------------------------------------ appending */

/* Fills rows of sequences, the last ones of each, where a tensor of a plan has them. */
static void fill_rows(const kv_cache *c, int of, const tess_tensor *t, const int64_t *rows,
                      void *image) {
    int64_t at = 0;
    for (int32_t b = 0; b < c->batch; b++) {
        if (!is_packed(c)) at = b * t->stride_batch;
        if (by_steps(c) && c->starts) at = c->starts[b] * t->stride_token;
        for (int64_t r = 0; r < rows[b]; r++, at += t->stride_token)
            for (int32_t h = 0; h < (of == OF_Q ? c->p->heads : c->p->kv_heads); h++) {
                const int64_t token = c->lens[b] - rows[b] + r;
                const uint32_t name = of == OF_Q ? c->seeds[b] * 65537u + (uint32_t)token
                                                 : c->names[b * c->keys + token];
                fill_row(c->p, of, name, token, h, image, at + h * t->stride_head);
            }
    }
}

static tess_buffer upload_rows(const kv_cache *c, const tess_plan *plan, tess_role role, int of,
                               const int64_t *rows, tess_tensor *t) {
    const tess_buffer none = {0};
    uint64_t bytes;
    assert_ok(tess_plan_tensor(plan, role, none, t, &bytes));
    unsigned char *image = room(bytes);
    memset(image, NOT_A_NUMBER, bytes);
    fill_rows(c, of, t, rows, image);
    t->buffer = bytes ? test_upload(c->device, image, bytes) : none;
    free(image);
    return t->buffer;
}

static void append_with(kv_cache *c, const tess_plan *plan, const int64_t *rows) {
    const tess_buffer none = {0};
    tess_tensor pools[4][KV_STORAGES] = {{{{0}, 0, 0, 0}}};
    tess_append_desc d = {.struct_size = sizeof d,
                          .k_pools = pools[0],
                          .v_pools = pools[1],
                          .step = by_steps(c) ? c->step.buffer : none,
                          .block_table = c->block_table,
                          .table_stride = c->columns,
                          .pages = c->pages};
    for (uint32_t s = 0; s < c->n_storage; s++)
        for (int n = 0; n < 4; n++) pools[n][s] = c->pools[s].tensor[n];
    if (c->p->kv_dtype) {
        d.k_scale_pools = pools[2];
        d.v_scale_pools = pools[3];
    }
    tess_buffer k = upload_rows(c, plan, TESS_ROLE_NEW_K, OF_K, rows, &d.k),
                v = upload_rows(c, plan, TESS_ROLE_NEW_V, OF_V, rows, &d.v);
    const tess_status status = tess_append(plan, &d);
    if (status != TESS_OK) fail_msg("%s: %s", kv_line(c, "append"), tess_last_error());
    assert_ok(tess_wait(c->device, UINT64_MAX));
    assert_ok(tess_free(c->device, &k));
    assert_ok(tess_free(c->device, &v));
}

void kv_append_step(kv_cache *c, const int64_t *rows) { append_with(c, c->plan, rows); }

/* Whether a step may have these rows. */
static int has_room(const kv_cache *c, const int64_t *rows) {
    int64_t all = 0;
    for (int32_t b = 0; b < c->batch; b++) {
        if (rows[b] > c->form.q_len) return 0;
        all += rows[b];
    }
    return c->form.max_rows == 0 || all <= c->form.max_rows;
}

void kv_append(kv_cache *c, const int64_t *rows) {
    const int by_host = c->by_host;
    for (int32_t b = 0; b < c->batch; b++) {
        assert_true(c->lens[b] + rows[b] <= c->keys);
        for (int64_t r = 0; r < rows[b]; r++) {
            const int64_t token = c->lens[b]++;
            c->names[b * c->keys + token] =
                (uint32_t)mixed((uint64_t)c->seeds[b] << 32 | (uint64_t)(c->rounds * 4099 + token));
        }
    }
    take_pages(c);
    tess_plan *plan = c->plan;
    c->by_host |= !has_room(c, rows);
    if (by_steps(c))
        prepare_rows(c, rows);
    else if (plan_rows(c, rows, &plan) != TESS_OK)
        fail_msg("%s: %s", kv_line(c, "append"), tess_last_error());
    append_with(c, plan, rows);
    if (plan != c->plan) tess_plan_release(plan);
    c->by_host = by_host;
    for (int32_t b = 0; b < c->batch; b++)
        if (c->given[b]) c->lens[b] -= rows[b];
}

/* ------------------------------------------------------------------ attention */

static void fetch(const kv_cache *c, const kv_memory *m, void *image) {
    assert_ok(tess_wait(c->device, UINT64_MAX));
    test_download(c->device, m->buffer, image, m->bytes);
}

/* Rows of a tensor in the order of sequences; all others must be as they were. */
static void gather(const kv_cache *c, const char *what, unsigned char *image, uint64_t bytes,
                   const tess_tensor *t, const int64_t *rows, uint64_t vector, uint64_t item,
                   unsigned char *out) {
    int64_t at = 0;
    for (int32_t b = 0; b < c->batch; b++) {
        if (!is_packed(c)) at = b * t->stride_batch;
        if (by_steps(c) && c->starts) at = c->starts[b] * t->stride_token;
        for (int64_t r = 0; r < rows[b]; r++, at += t->stride_token)
            for (int32_t h = 0; h < c->p->heads; h++, out += vector) {
                unsigned char *row = image + (uint64_t)(at + h * t->stride_head) * item;
                memcpy(out, row, vector);
                memset(row, UNTOUCHED, vector);
            }
    }
    for (uint64_t n = 0; n < bytes; n++)
        if (image[n] != UNTOUCHED)
            fail_msg("%s: byte %d of what no row has was written", kv_line(c, what), (int)n);
}

static void run_with(kv_cache *c, const tess_plan *plan, const int64_t *rows, kv_result *out) {
    const tess_buffer none = {0};
    tess_tensor pools[4][KV_STORAGES] = {{{{0}, 0, 0, 0}}};
    tess_run_desc d = {.struct_size = sizeof d,
                       .step = by_steps(c) ? c->step.buffer : none,
                       .block_table = c->block_table,
                       .table_stride = c->columns,
                       .pages = c->pages};
    tess_tensor *const one[4] = {&d.k, &d.v, &d.k_scale, &d.v_scale};
    const tess_tensor **const several[4] = {&d.k_pools, &d.v_pools, &d.k_scale_pools,
                                            &d.v_scale_pools};
    uint64_t o_bytes, lse_bytes;
    for (int n = 0; n < (c->p->kv_dtype ? 4 : 2); n++) {
        for (uint32_t s = 0; s < c->n_storage; s++) pools[n][s] = c->pools[s].tensor[n];
        if (c->n_storage > 1)
            *several[n] = pools[n];
        else
            *one[n] = pools[n][0];
    }
    assert_ok(tess_plan_query(plan, &c->info));
    assert_ok(tess_plan_tensor(plan, TESS_ROLE_O, none, &d.o, &o_bytes));
    assert_ok(tess_plan_tensor(plan, TESS_ROLE_LSE, none, &d.lse, &lse_bytes));
    tess_buffer q = upload_rows(c, plan, TESS_ROLE_Q, OF_Q, rows, &d.q);
    kv_memory o = hold(c->device, o_bytes, UNTOUCHED), lse = hold(c->device, lse_bytes, UNTOUCHED),
              work = hold(c->device, c->info.workspace_bytes, 0x5a);
    d.o.buffer = o.buffer;
    d.lse.buffer = lse.buffer;
    d.workspace = work.buffer;
    const tess_status status = tess_run(plan, &d);
    if (status != TESS_OK) fail_msg("%s: %s", kv_line(c, "run"), tess_last_error());
    *out = (kv_result){0};
    for (int32_t b = 0; b < c->batch; b++) out->rows += rows[b];
    const uint64_t row = (uint64_t)(c->p->heads * c->p->head_dim) * c->item;
    out->o_bytes = (uint64_t)out->rows * row;
    out->o = room(out->o_bytes);
    out->lse = room((uint64_t)(out->rows * c->p->heads) * sizeof *out->lse);
    unsigned char *image = room(o_bytes > lse_bytes ? o_bytes : lse_bytes);
    fetch(c, &o, image);
    gather(c, "O", image, o_bytes, &d.o, rows, (uint64_t)c->p->head_dim * c->item, c->item, out->o);
    fetch(c, &lse, image);
    gather(c, "LSE", image, lse_bytes, &d.lse, rows, sizeof(float), sizeof(float),
           (unsigned char *)out->lse);
    free(image);
    check_guards(c, &c->step, "run, the step");
    kv_memory *const all[] = {&o, &lse, &work};
    for (int n = 0; n < 3; n++) {
        check_guards(c, all[n], n == 2 ? "run, the workspace" : "run, an output");
        let_go(c, all[n]);
    }
    assert_ok(tess_free(c->device, &q));
}

void kv_attend(kv_cache *c, const int64_t *rows, kv_result *out) {
    tess_plan *plan = c->plan;
    if (by_steps(c))
        prepare_rows(c, rows);
    else if (plan_rows(c, rows, &plan) != TESS_OK)
        fail_msg("%s: %s", kv_line(c, "plan"), tess_last_error());
    run_with(c, plan, rows, out);
    if (plan != c->plan) tess_plan_release(plan);
}

void kv_run_step(kv_cache *c, const int64_t *rows, kv_result *out) {
    run_with(c, c->plan, rows, out);
}

void kv_result_free(kv_result *r) {
    free(r->o);
    free(r->lse);
    *r = (kv_result){0};
}

/* ------------------------------------------------------------------ checking */

static uint32_t float_bits(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

void kv_same(const char *what, const kv_result *a, int64_t a_row, const kv_result *b, int64_t b_row,
             int64_t rows, const kv_cache *c) {
    const uint64_t vector = (uint64_t)c->p->head_dim * c->item, heads = (uint64_t)c->p->heads;
    for (uint64_t n = 0; n < (uint64_t)rows * heads; n++) {
        const uint64_t at = (uint64_t)a_row * heads + n, other = (uint64_t)b_row * heads + n;
        if (memcmp(a->o + at * vector, b->o + other * vector, vector) != 0)
            fail_msg("%s: row %d, head %d of O has other bits", kv_line(c, what), (int)(n / heads),
                     (int)(n % heads));
        if (float_bits(a->lse[at]) != float_bits(b->lse[other]))
            fail_msg("%s: LSE of row %d, head %d is %.9g and %.9g", kv_line(c, what),
                     (int)(n / heads), (int)(n % heads), (double)a->lse[at], (double)b->lse[other]);
    }
}

void kv_same_pools(const char *what, const kv_cache *a, const kv_cache *b) {
    for (uint32_t s = 0; s < a->n_storage; s++)
        for (int n = 0; n < 4; n++) {
            const kv_memory *m = &a->pools[s].memory[n], *o = &b->pools[s].memory[n];
            unsigned char *x = room(m->bytes), *y = room(m->bytes);
            if (m->bytes) test_download(a->device, m->buffer, x, m->bytes);
            if (m->bytes) test_download(b->device, o->buffer, y, m->bytes);
            for (uint64_t at = 0; at < m->bytes; at++)
                if (x[at] != y[at])
                    fail_msg("%s: pool %d of storage group %u has other bytes from %llu on",
                             kv_line(a, what), n, s, (unsigned long long)at);
            free(x);
            free(y);
        }
}

/* Whether the page of a token is there; by slot all are. */
static int is_there(const kv_cache *c, int32_t sequence, int64_t token) {
    if (!c->form.page || c->form.compact) return 1;
    const int32_t id = *entry_of(c, 0, sequence, token / c->form.page);
    return id >= 0 && id < c->pages;
}

static void check_row(const kv_cache *c, const kv_result *r, int32_t sequence, int64_t position,
                      int32_t head, int64_t at, const char *what) {
    const kv_problem *p = c->p;
    const double tolerance = p->dtype == TESS_F32 ? 1e-5 : p->dtype == TESS_F16 ? 4e-3 : 3e-2;
    const int32_t kv_head = head / (p->heads / p->kv_heads);
    double most = -INFINITY, sum = 0, o[MOST_DIM] = {0}, row[MOST_DIM];
    float q[MOST_DIM];
    fill_row(p, OF_Q, c->seeds[sequence] * 65537u + (uint32_t)position, position, head, q, 0);
    for (int64_t t = 0; t < c->lens[sequence]; t++) {
        int kept = 0;
        assert_ok(tess_layout_kept(c->layout, head, position, t, &kept));
        if (!kept || !is_there(c, sequence, t)) continue;
        double score = 0;
        kv_row(c, 0, sequence, t, kv_head, row);
        for (int32_t e = 0; e < p->head_dim; e++)
            score += (double)element_load(p->dtype, q, e) * row[e];
        score /= sqrt((double)p->head_dim);
        const double next = fmax(most, score), keep = exp(most - next), weight = exp(score - next);
        kv_row(c, 1, sequence, t, kv_head, row);
        for (int32_t e = 0; e < p->head_dim; e++) o[e] = o[e] * keep + weight * row[e];
        sum = sum * keep + weight;
        most = next;
    }
    const double lse = sum > 0 ? most + log(sum) : -INFINITY, own = r->lse[at * p->heads + head];
    if (isinf(lse) ? own != lse : !(fabs(own - lse) <= tolerance * (1 + fabs(lse))))
        fail_msg("%s: sequence %d, position %d, head %d: LSE is %.9g and should be %.9g",
                 kv_line(c, what), sequence, (int)position, head, own, lse);
    for (int32_t e = 0; e < p->head_dim; e++) {
        const double wanted = sum > 0 ? o[e] / sum : 0,
                     got = element_load(p->dtype, r->o, (at * p->heads + head) * p->head_dim + e);
        if (!(fabs(got - wanted) <= tolerance * (1 + fabs(wanted))))
            fail_msg("%s: sequence %d, position %d, head %d, element %d is %.9g and should be %.9g",
                     kv_line(c, what), sequence, (int)position, head, e, got, wanted);
    }
}

void kv_check(const kv_cache *c, const kv_result *r, int32_t sequence, int64_t at, int64_t rows,
              int64_t stride, const char *what) {
    for (int64_t n = 0; n < rows; n += stride)
        for (int32_t head = 0; head < c->p->heads; head++)
            check_row(c, r, sequence, c->lens[sequence] - rows + n, head, at + n, what);
}
