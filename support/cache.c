/* SPDX-License-Identifier: Apache-2.0 */
#include "cache.h"

#include <stdlib.h>
#include <string.h>

/* Elements, and bytes, of one key of one kv head in a pool. */
static int64_t row_elements(const problem *p, cache_part part) {
    return part == CACHE_SCALES ? 1 : p->head_dim;
}
static uint64_t row_bytes(const problem *p, cache_part part) {
    return part == CACHE_SCALES ? sizeof(float) : (uint64_t)p->head_dim * problem_kv_size(p);
}

/* Token places that a sequence takes. */
static tess_status places(const cache *c, uint32_t group, int64_t b, int64_t *count) {
    const problem *p = c->problem;
    *count = problem_kv_len(p, b);
    return p->compact
               ? tess_layout_part_pages(c->layout, group, problem_kv_first(p, b), *count, 0, count)
               : TESS_OK;
}

static int64_t pages_of(const problem *p, int64_t count) {
    return count / p->page + (count % p->page != 0);
}

static tess_status describe_group(cache *c, uint32_t group) {
    const problem *p = c->problem;
    cache_group *g = &c->groups[group];
    g->kv_heads = malloc((size_t)p->kv_heads * sizeof *g->kv_heads);
    if (!g->kv_heads) return TESS_ERROR_OUT_OF_MEMORY;
    g->heads = p->kv_heads;
    for (int32_t h = 0; h < g->heads; h++) g->kv_heads[h] = h;
    if (p->compact) {
        tess_storage_info info = {.struct_size = sizeof info};
        tess_status status = tess_layout_storage(c->layout, group, &info, g->kv_heads);
        if (status != TESS_OK) return status;
        g->heads = (int32_t)info.n_kv_heads;
    }
    tess_status status = TESS_OK;
    for (int64_t b = 0; b < p->batch && status == TESS_OK; b++) {
        int64_t count;
        status = places(c, group, b, &count);
        if (count > g->tokens) g->tokens = count;
        if (p->page) g->pages += pages_of(p, count);
    }
    if (status != TESS_OK) return status;
    g->bytes =
        (uint64_t)g->heads *
        (row_bytes(p, CACHE_ELEMENTS) + (problem_has_scales(p) ? row_bytes(p, CACHE_SCALES) : 0)) *
        (uint64_t)(p->page ? g->pages * p->page : p->batch * g->tokens);
    if (g->pages > c->pages) c->pages = g->pages;
    if (p->page && pages_of(p, g->tokens) > c->table_stride)
        c->table_stride = pages_of(p, g->tokens);
    return TESS_OK;
}

static uint64_t next_random(uint64_t *state) {
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* Each page of a pool belongs to one sequence at most; which one is random. */
static tess_status fill_table(cache *c) {
    const problem *p = c->problem;
    uint64_t state = p->seed;
    int64_t *ids = malloc(((size_t)c->pages + 1) * sizeof *ids);
    if (!ids) return TESS_ERROR_OUT_OF_MEMORY;
    for (uint32_t n = 0; n < c->n_groups; n++) {
        int64_t next = 0;
        for (int64_t i = 0; i < c->pages; i++) {
            const int64_t at = (int64_t)(next_random(&state) % (uint64_t)(i + 1));
            ids[i] = ids[at];
            ids[at] = i;
        }
        for (int64_t b = 0; b < p->batch; b++) {
            int32_t *row = c->table + ((int64_t)n * p->batch + b) * c->table_stride;
            int64_t count = 0;
            places(c, n, b, &count); /* it has succeeded before */
            for (int64_t i = 0; i < c->table_stride; i++)
                row[i] = i < pages_of(p, count) ? (int32_t)ids[next++] : -1;
        }
    }
    free(ids);
    return TESS_OK;
}

static tess_status create(cache *c) {
    const problem *p = c->problem;
    c->n_groups = 1;
    if (p->compact) {
        tess_layout_info info = {.struct_size = sizeof info};
        tess_status status = tess_layout_query(c->layout, &info);
        if (status != TESS_OK) return status;
        c->n_groups = info.n_storage;
    }
    c->groups = calloc(c->n_groups, sizeof *c->groups);
    if (!c->groups) return TESS_ERROR_OUT_OF_MEMORY;
    for (uint32_t n = 0; n < c->n_groups; n++) {
        tess_status status = describe_group(c, n);
        if (status != TESS_OK) return status;
    }
    for (uint32_t n = 0; n < c->n_groups; n++) {
        cache_group *g = &c->groups[n];
        g->pool_places = (uint64_t)(p->page ? c->pages * p->page : p->batch * g->tokens);
    }
    if (!p->page) return TESS_OK;
    c->table_bytes =
        (uint64_t)c->n_groups * (uint64_t)p->batch * (uint64_t)c->table_stride * sizeof *c->table;
    c->table = malloc(c->table_bytes ? c->table_bytes : 1);
    return c->table ? fill_table(c) : TESS_ERROR_OUT_OF_MEMORY;
}

tess_status cache_create(cache *c, const problem *p, const tess_layout *layout) {
    *c = (cache){.problem = p, .layout = layout};
    tess_status status = create(c);
    if (status != TESS_OK) cache_release(c);
    return status;
}

void cache_release(cache *c) {
    for (uint32_t n = 0; c->groups && n < c->n_groups; n++) free(c->groups[n].kv_heads);
    free(c->groups);
    free(c->table);
    *c = (cache){0};
}

uint64_t cache_bytes(const cache *c) {
    uint64_t sum = 0;
    for (uint32_t n = 0; n < c->n_groups; n++) sum += 2 * c->groups[n].bytes;
    return sum;
}

uint64_t cache_pool_bytes(const cache *c, uint32_t group, cache_part part) {
    const cache_group *g = &c->groups[group];
    return g->pool_places * (uint64_t)g->heads * row_bytes(c->problem, part);
}

tess_tensor cache_pool(const cache *c, uint32_t group, cache_part part, tess_buffer buffer) {
    const cache_group *g = &c->groups[group];
    const int64_t row = row_elements(c->problem, part), token = (int64_t)g->heads * row;
    return (tess_tensor){.buffer = buffer,
                         .stride_batch = token * (c->problem->page ? c->problem->page : g->tokens),
                         .stride_token = token,
                         .stride_head = row};
}

/* One kv head of one sequence: number h of the group. */
static tess_status lay_head(const cache *c, uint32_t group, cache_part part, int64_t b, int32_t h,
                            const char *plain, char *pool) {
    const problem *p = c->problem;
    const cache_group *g = &c->groups[group];
    const uint64_t row = row_bytes(p, part), token = (uint64_t)g->heads * row,
                   from = (uint64_t)p->kv_heads * row;
    const int32_t *table =
        c->table ? c->table + ((int64_t)group * p->batch + b) * c->table_stride : NULL;
    const int64_t length = problem_kv_len(p, b);
    int64_t slot = 0;
    for (int64_t t = 0; t < length; t++) {
        int64_t at = t, page = b, size = g->tokens;
        if (p->compact && t % p->block == 0) {
            const int64_t first = problem_kv_first(p, b);
            tess_status status = tess_layout_part_slot(c->layout, g->kv_heads[h], first,
                                                       (first + t) / p->block, &slot);
            if (status != TESS_OK) return status;
        }
        if (p->compact) at = slot * p->block + t % p->block;
        if (p->page) {
            page = table[at / p->page];
            at %= p->page;
            size = p->page;
        }
        memcpy(pool + (uint64_t)(page * size + at) * token + (uint64_t)h * row,
               plain + (uint64_t)t * from + (uint64_t)g->kv_heads[h] * row, row);
    }
    return TESS_OK;
}

tess_status cache_lay(const cache *c, uint32_t group, cache_part part, const void *plain,
                      void *pool) {
    const problem *p = c->problem;
    const uint64_t token = (uint64_t)p->kv_heads * row_bytes(p, part);
    for (int64_t b = 0; b < p->batch; b++) {
        const int64_t start = p->kv_lens ? problem_kv_start(p, b) : b * p->kv_len;
        for (int32_t h = 0; h < c->groups[group].heads; h++) {
            tess_status status =
                lay_head(c, group, part, b, h, (const char *)plain + (uint64_t)start * token, pool);
            if (status != TESS_OK) return status;
        }
    }
    return TESS_OK;
}
