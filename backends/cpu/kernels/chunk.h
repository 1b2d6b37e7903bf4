/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keys of a job, cut into chunks. A chunk is up to a given number of keys that are packed
 * together: one or more pieces, each a run of consecutive tokens that share one mask rule. A masked
 * piece lies inside one block.
 */
#ifndef TESSERA_CPU_CHUNK_H
#define TESSERA_CPU_CHUNK_H

#include <tessera/tessera_backend.h>

enum { CHUNK_MAX = 128 };

typedef struct cpu_piece {
    int32_t token; /* of the first key */
    int32_t count;
    int32_t at; /* the first key's place in the chunk */
    int32_t masked;
    /* masked: bit n tells whether rows of query block i_first + n may keep keys of this block */
    uint32_t kept;
} cpu_piece;

typedef struct cpu_chunk {
    int32_t keys, pieces;
    cpu_piece piece[CHUNK_MAX];
} cpu_chunk;

/* Walks the blocks of a job in order. */
typedef struct cpu_walk {
    const tess_job *job;
    const tess_class *cls;
    const uint32_t *left, *right, *left_bits, *right_bits;
    int64_t block, kv_len, i_first;
    uint64_t index, total; /* listed blocks: left entries, interval, right entries */
    int64_t done;          /* tokens of the current block or run that earlier chunks took */
} cpu_walk;

static inline int64_t cpu_floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }

static inline void cpu_walk_start(cpu_walk *w, const tess_launch *l, const tess_job *job) {
    const tess_tables *t = l->tables;
    const tess_sequence *s = &t->sequences[job->sequence];
    w->job = job;
    w->cls = &t->classes[job->cls];
    w->left = t->entries + job->left_offset;
    w->right = t->entries + job->right_offset;
    int has_bits = (w->cls->flags & TESS_CLASS_BITS) != 0;
    w->left_bits = has_bits ? t->bits + job->left_offset : NULL;
    w->right_bits = has_bits ? t->bits + job->right_offset : NULL;
    w->block = l->block;
    w->kv_len = s->kv_len;
    w->i_first = cpu_floor_div((int64_t)s->kv_len - s->q_len + job->row, l->block);
    w->index = 0;
    w->total = (uint64_t)job->left_count + job->interval_blocks + job->right_count;
    w->done = 0;
}

/* The word `kept` of a piece in block j. */
static inline uint32_t cpu_walk_kept(const cpu_walk *w, int64_t j, uint32_t bits) {
    const tess_class *c = w->cls;
    uint32_t kept = ~0u;
    if ((c->flags & TESS_CLASS_LOCAL) && (uint64_t)(j + c->shift) % c->stride != 0) {
        /* query blocks i_first .. i_first + n - 1 keep it */
        int64_t n = j + (int64_t)c->local - w->i_first;
        kept = n <= 0 ? 0 : n >= 32 ? ~0u : (1u << n) - 1;
    }
    if (c->flags & TESS_CLASS_BITS) kept &= bits;
    return kept;
}

/* Fills the next chunk of at most `limit` keys; false at the end of the job. */
static inline int cpu_walk_next(cpu_walk *w, cpu_chunk *chunk, int32_t limit) {
    const tess_job *job = w->job;
    const int32_t mask_entries = (w->cls->flags & TESS_CLASS_MASK_ENTRIES) != 0;
    chunk->keys = 0;
    chunk->pieces = 0;
    while (w->index < w->total && chunk->keys < limit) {
        uint64_t n = w->index, run = 1;
        int64_t j;
        int32_t masked = mask_entries;
        uint32_t bits = ~0u;
        if (n < job->left_count) {
            j = w->left[n];
            if (w->left_bits) bits = w->left_bits[n];
        } else if ((n -= job->left_count) < job->interval_blocks) {
            uint64_t tail = job->interval_blocks - job->mask_tail;
            masked = n < job->mask_head || n >= tail;
            if (!masked) run = tail - n; /* a run of blocks that every row keeps is one piece */
            j = (int64_t)job->interval_start + (int64_t)n;
        } else {
            n -= job->interval_blocks;
            j = w->right[n];
            if (w->right_bits) bits = w->right_bits[n];
        }
        int64_t first = j * w->block + w->done, end = (j + (int64_t)run) * w->block;
        if (end > w->kv_len) end = w->kv_len;
        int64_t count = end - first;
        if (count > limit - chunk->keys) count = limit - chunk->keys;
        cpu_piece *p = &chunk->piece[chunk->pieces++];
        p->token = (int32_t)first;
        p->count = (int32_t)count;
        p->at = chunk->keys;
        p->masked = masked;
        p->kept = masked ? cpu_walk_kept(w, j, bits) : ~0u;
        chunk->keys += (int32_t)count;
        if (first + count == end) {
            w->index += run;
            w->done = 0;
        } else {
            w->done += count;
        }
    }
    return chunk->keys > 0;
}

/* What the rows of one panel have in common, to decide about whole pieces. Bounds are inclusive
 * token positions. */
typedef struct cpu_panel_rows {
    uint32_t blocks;            /* bit n: some row lies in query block i_first + n */
    int32_t cap_min, cap_max;   /* causal bound of the rows */
    int32_t low_min, low_max;   /* window */
    int32_t high_min, high_max; /* window and causal */
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
    /* a piece that was skipped lies between first and the next piece that is not */
    int32_t gap = 0;
    for (int32_t n = 0; n < chunk->pieces; n++) {
        const cpu_piece *p = &chunk->piece[n];
        int32_t from = p->at, to = p->at + p->count, full = 1;
        if (p->masked) {
            int32_t t0 = p->token, t1 = p->token + p->count - 1;
            int32_t has_sinks = t0 < sinks;
            int32_t high = has_sinks ? r->cap_max : r->high_max;
            if (t1 > high) to = high < t0 ? from : to - (t1 - high);
            if (!has_sinks && t0 < r->low_min)
                from = t1 < r->low_min ? to : from + (r->low_min - t0);
            if ((p->kept & r->blocks) == 0 || from >= to) {
                gap = 1;
                continue;
            }
            full = (p->kept & r->blocks) == r->blocks &&
                   ((t1 <= r->high_min && t0 >= r->low_max) || (t1 < sinks && t1 <= r->cap_min));
            if (from > p->at && s.end > 0) gap = 1;
        }
        if (s.end == 0) {
            s.first = from;
            gap = 0;
        }
        s.masked |= !full || gap;
        gap = to < p->at + p->count;
        s.end = to;
    }
    return s;
}

#endif
