/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keys of a job, cut into chunks. A chunk is up to a given number of keys that are packed
 * together. It has one or more runs of consecutive tokens whose rows of K and V are equally far
 * apart; a masked run lies inside one key block. Keys whose page is absent are in no chunk.
 */
#ifndef TESSERA_CPU_CHUNK_H
#define TESSERA_CPU_CHUNK_H

#include <tessera/tessera_key_walk.h>

enum { CHUNK_MAX = 128 };

typedef struct cpu_run {
    int32_t token; /* of the first key */
    int32_t count;
    int32_t at; /* the first key's place in the chunk */
    int32_t masked;
    uint32_t kept;                 /* masked: which query blocks keep it (cpu_walk_kept) */
    const char *k, *v;             /* the first key's rows */
    const char *k_scale, *v_scale; /* with 8-bit K and V: their scales */
} cpu_run;

typedef struct cpu_chunk {
    int32_t keys, n_runs;
    cpu_run run[CHUNK_MAX];
} cpu_chunk;

/* Where the keys of a job lie: tess_launch.page tells how to find one. Addresses are computed
 * modulo 2^64, because a job without keys may come with any strides and no memory. */
typedef struct cpu_keys {
    uint64_t k, v;             /* address of token 0, or of token 0 of page 0 */
    uint64_t k_token, v_token; /* bytes */
    uint64_t k_page, v_page;   /* likewise */
    /* The same for the scales, if `scaled`. */
    int scaled;
    uint64_t k_scale, v_scale, k_scale_token, v_scale_token, k_scale_page, v_scale_page;
    const int32_t *table;   /* the sequence's pages; NULL: contiguous */
    const tess_slot *slots; /* of its key blocks; NULL: by position */
    int64_t page, pages, kv_start;
} cpu_keys;

/* Where the next chunk of a job begins. */
typedef struct cpu_walk {
    const tess_job *job;
    const tess_tables *tables;
    const tess_class *cls;
    int64_t block, kv_len, i_first; /* i_first: query block of the tile's first row */
    uint64_t n;                     /* the key block */
    int64_t done;                   /* tokens of its run that earlier chunks took */
    cpu_keys keys;
} cpu_walk;

static inline int64_t cpu_floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }

static inline uint64_t cpu_first_row(const tess_tensor *x, uint64_t batch, int64_t token,
                                     uint64_t head, uint64_t esize) {
    return x->buffer.handle + x->buffer.offset +
           esize * (batch * (uint64_t)x->stride_batch +
                    (uint64_t)token * (uint64_t)x->stride_token + head * (uint64_t)x->stride_head);
}

static inline int32_t cpu_element_size(uint32_t dtype) {
    return dtype >= TESS_F8E4M3 ? 1 : dtype == TESS_F32 ? 4 : 2;
}

static inline void cpu_keys_start(cpu_keys *keys, const tess_launch *l, const tess_job *job) {
    const tess_sequence *s = &l->tables->sequences[job->sequence];
    const tess_tensor *k = &l->tensor[TESS_ROLE_K], *v = &l->tensor[TESS_ROLE_V],
                      *table = &l->tensor[TESS_ROLE_BLOCK_TABLE];
    const tess_tensor *k_scale = &l->tensor[TESS_ROLE_K_SCALE],
                      *v_scale = &l->tensor[TESS_ROLE_V_SCALE];
    const uint64_t esize = (uint64_t)cpu_element_size(l->kv_dtype), scale_size = sizeof(float);
    const int in_place = !l->page && !l->compact;
    uint64_t head = job->head / l->group, batch = s->kv_batch;
    *keys = (cpu_keys){.k_token = (uint64_t)k->stride_token * esize,
                       .v_token = (uint64_t)v->stride_token * esize,
                       .k_page = (uint64_t)k->stride_batch * esize,
                       .v_page = (uint64_t)v->stride_batch * esize,
                       .scaled = l->kv_dtype >= TESS_F8E4M3,
                       .k_scale_token = (uint64_t)k_scale->stride_token * scale_size,
                       .v_scale_token = (uint64_t)v_scale->stride_token * scale_size,
                       .k_scale_page = (uint64_t)k_scale->stride_batch * scale_size,
                       .v_scale_page = (uint64_t)v_scale->stride_batch * scale_size,
                       .page = l->page,
                       .pages = l->trusted ? INT64_MAX : l->pages,
                       .kv_start = s->kv_start};
    if (l->compact) {
        const tess_kv_head *own = &l->tables->kv_heads[head];
        keys->slots = l->tables->slots + own->slots_offset;
        head = own->pool_head;
    }
    if (l->page) {
        keys->table = (const int32_t *)(uintptr_t)(table->buffer.handle + table->buffer.offset) +
                      batch * (uint64_t)table->stride_batch;
        batch = 0;
    }
    const int64_t first = in_place ? s->kv_start : 0;
    keys->k = cpu_first_row(k, batch, first, head, esize);
    keys->v = cpu_first_row(v, batch, first, head, esize);
    keys->k_scale = cpu_first_row(k_scale, batch, first, head, scale_size);
    keys->v_scale = cpu_first_row(v_scale, batch, first, head, scale_size);
}

/* Finds the rows of up to `count` keys from token t of a block on that lie together, and returns
 * how many these are. r->k is NULL if their page is absent. */
static inline int32_t cpu_keys_find(const cpu_keys *keys, int64_t block, int64_t t, int32_t count,
                                    cpu_run *r) {
    uint64_t at = (uint64_t)t, page = 0;
    if (keys->slots) {
        const int64_t j = t / block, inside = t - j * block;
        at = (uint64_t)((int64_t)keys->slots[keys->kv_start + j].slot * block + inside);
        if (count > block - inside) count = (int32_t)(block - inside);
    }
    if (keys->table) {
        if (!keys->slots) at += (uint64_t)keys->kv_start;
        const int64_t inside = (int64_t)at % keys->page;
        const int32_t id = keys->table[(int64_t)at / keys->page];
        if (count > keys->page - inside) count = (int32_t)(keys->page - inside);
        r->k = r->v = NULL;
        if (id < 0 || id >= keys->pages) return count;
        at = (uint64_t)inside;
        page = (uint64_t)id;
    }
    r->k = (const char *)(uintptr_t)(keys->k + page * keys->k_page + at * keys->k_token);
    r->v = (const char *)(uintptr_t)(keys->v + page * keys->v_page + at * keys->v_token);
    if (!keys->scaled) return count;
    r->k_scale = (const char *)(uintptr_t)(keys->k_scale + page * keys->k_scale_page +
                                           at * keys->k_scale_token);
    r->v_scale = (const char *)(uintptr_t)(keys->v_scale + page * keys->v_scale_page +
                                           at * keys->v_scale_token);
    return count;
}

static inline void cpu_walk_start(cpu_walk *w, const tess_launch *l, const tess_job *job) {
    const tess_sequence *s = &l->tables->sequences[job->sequence];
    w->job = job;
    w->tables = l->tables;
    w->cls = &l->tables->classes[job->cls];
    w->block = l->block;
    w->kv_len = s->kv_len;
    w->i_first = cpu_floor_div((int64_t)s->q_first + job->row, l->block);
    w->n = 0;
    w->done = 0;
    cpu_keys_start(&w->keys, l, job);
}

/* Which query blocks of the tile keep key block j: bit n stands for i_first + n. */
static inline uint32_t cpu_walk_kept(const cpu_walk *w, int64_t j, uint32_t bits) {
    const tess_class *c = w->cls;
    uint32_t kept = bits;
    if ((c->flags & TESS_CLASS_LOCAL) && (uint64_t)(j + c->shift) % c->stride != 0) {
        /* query blocks i_first .. i_first + n - 1 keep it */
        const int64_t n = j + (int64_t)c->local - w->i_first;
        kept &= n <= 0 ? 0 : n >= 32 ? ~0u : (1u << n) - 1;
    }
    return kept;
}

/* Fills the next chunk of at most `limit` keys; false at the end of the job. */
static inline int cpu_walk_next(cpu_walk *w, cpu_chunk *chunk, int32_t limit) {
    const uint64_t blocks = tess_key_blocks(w->job);
    chunk->keys = 0;
    chunk->n_runs = 0;
    while (w->n < blocks && chunk->keys < limit) {
        const tess_key_run run =
            tess_key_run_at(w->job, w->cls, w->tables->entries, w->tables->bits, w->n);
        const int64_t first = run.block * w->block + w->done;
        int64_t end = ((int64_t)run.block + run.blocks) * w->block;
        if (end > w->kv_len) end = w->kv_len;
        const int32_t space = limit - chunk->keys;
        cpu_run *r = &chunk->run[chunk->n_runs];
        const int32_t count = cpu_keys_find(
            &w->keys, w->block, first, end - first < space ? (int32_t)(end - first) : space, r);
        if (r->k) {
            r->token = (int32_t)first;
            r->count = count;
            r->at = chunk->keys;
            r->masked = (int32_t)run.masked;
            r->kept = run.masked ? cpu_walk_kept(w, run.block, run.bits) : ~0u;
            chunk->keys += count;
            chunk->n_runs++;
        }
        w->done += count;
        if (first + count == end) {
            w->n += run.blocks;
            w->done = 0;
        }
    }
    return chunk->keys > 0;
}

/* Bounds of a panel's rows, to decide about whole runs. They are inclusive token positions. */
typedef struct cpu_panel_rows {
    uint32_t blocks;                /* bit n: some row lies in query block i_first + n */
    int32_t causal_min, causal_max; /* causal bound of the rows */
    int32_t low_min, low_max;       /* window */
    int32_t high_min, high_max;     /* window and causal */
} cpu_panel_rows;

/* The part of a chunk that a panel multiplies: keys [first, end). It is masked if some row does not
 * keep some key of it, and empty if no row keeps any. */
typedef struct cpu_span {
    int32_t first, end, masked;
} cpu_span;

/* Only the causal order bounds keys below `sinks`. */
static inline cpu_span cpu_panel_span(const cpu_chunk *chunk, const cpu_panel_rows *r,
                                      int32_t sinks) {
    cpu_span s = {0, 0, 0};
    /* nonzero: a skipped run lies behind the span so far */
    int32_t gap = 0;
    for (int32_t n = 0; n < chunk->n_runs; n++) {
        const cpu_run *run = &chunk->run[n];
        int32_t from = run->at, to = run->at + run->count, full = 1;
        if (run->masked) {
            int32_t t0 = run->token, t1 = run->token + run->count - 1;
            int32_t has_sinks = t0 < sinks;
            int32_t high = has_sinks ? r->causal_max : r->high_max;
            if (t1 > high) to = high < t0 ? from : to - (t1 - high);
            if (!has_sinks && t0 < r->low_min)
                from = t1 < r->low_min ? to : from + (r->low_min - t0);
            if ((run->kept & r->blocks) == 0 || from >= to) {
                gap = 1;
                continue;
            }
            full = (run->kept & r->blocks) == r->blocks &&
                   ((t1 <= r->high_min && t0 >= r->low_max) || (t1 < sinks && t1 <= r->causal_min));
            if (from > run->at && s.end > 0) gap = 1;
        }
        if (s.end == 0) {
            s.first = from;
            gap = 0;
        }
        s.masked |= !full || gap;
        gap = to < run->at + run->count;
        s.end = to;
    }
    return s;
}

#endif
