/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keys of a job, cut into chunks. A chunk is up to a given number of keys that are packed
 * together. It has one or more runs of consecutive tokens; a masked run lies inside one key block.
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
    uint32_t kept; /* masked: which query blocks keep it (cpu_walk_kept) */
} cpu_run;

typedef struct cpu_chunk {
    int32_t keys, n_runs;
    cpu_run run[CHUNK_MAX];
} cpu_chunk;

/* Where the next chunk of a job begins. */
typedef struct cpu_walk {
    const tess_job *job;
    const tess_tables *tables;
    const tess_class *cls;
    int64_t block, kv_len, i_first; /* i_first: query block of the tile's first row */
    uint64_t n;                     /* the key block */
    int64_t done;                   /* tokens of its run that earlier chunks took */
} cpu_walk;

static inline int64_t cpu_floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }

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
        const int32_t count = end - first < space ? (int32_t)(end - first) : space;
        cpu_run *r = &chunk->run[chunk->n_runs++];
        r->token = (int32_t)first;
        r->count = count;
        r->at = chunk->keys;
        r->masked = (int32_t)run.masked;
        r->kept = run.masked ? cpu_walk_kept(w, run.block, run.bits) : ~0u;
        chunk->keys += count;
        w->done += count;
        if (first + count == end) {
            w->n += run.blocks;
            w->done = 0;
        }
    }
    return chunk->keys > 0;
}

/* What the rows of one panel have in common, to decide about whole runs. Bounds are inclusive
 * token positions. */
typedef struct cpu_panel_rows {
    uint32_t blocks;                /* bit n: some row lies in query block i_first + n */
    int32_t causal_min, causal_max; /* causal bound of the rows */
    int32_t low_min, low_max;       /* window */
    int32_t high_min, high_max;     /* window and causal */
} cpu_panel_rows;

/* The part of a chunk that a panel works on: keys [first, end), masked if some (row, key) of it
 * must not count. Empty if no row keeps any key. */
typedef struct cpu_span {
    int32_t first, end, masked;
} cpu_span;

/* `sinks`: keys below it are bounded by the causal order alone. */
static inline cpu_span cpu_panel_span(const cpu_chunk *chunk, const cpu_panel_rows *r,
                                      int32_t sinks) {
    cpu_span s = {0, 0, 0};
    /* a run that was skipped lies between first and the next one that is not */
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
