/* SPDX-License-Identifier: Apache-2.0 */
/* The order of jobs: sections whose keys fit a cache, and in each of them the longest jobs first,
 * by a counting sort. */
#ifndef TESSERA_CORE_ORDER_H
#define TESSERA_CORE_ORDER_H

#include "common.h"

/* ------------------------------------------------------------------ the counting sort */

typedef struct tess_order {
    /* [n_buckets] by key blocks >> shift: counts, then where the next job goes */
    uint32_t *bucket;
    uint32_t n_buckets, shift;
    uint32_t n_used; /* the buckets from here on are empty since tess_order_end */
    uint64_t *marks; /* a bit for each bucket that tess_order_mark has counted in */
} tess_order;

/* Room to sort jobs of up to `most_blocks` key blocks; false without memory. *order is zero before
 * but for its shift, which is kept where it is given. */
bool tess_order_create(tess_order *order, tess_runtime *runtime, uint64_t most_blocks);
void tess_order_release(tess_order *order, tess_runtime *runtime);

/* Called before and after a count of all jobs: empties all buckets, then notes which ones are in
 * use. */
void tess_order_begin(tess_order *order);
void tess_order_end(tess_order *order);
/* Empties those in use, to count some of the same jobs again. */
void tess_order_again(tess_order *order);

/* Turns counts into places, longest jobs first, from `at` on. Returns the place after the last. */
uint32_t tess_order_places(tess_order *order, uint32_t at);

/* The same for a few of the jobs, which use few buckets: the time is theirs, however many buckets
 * there are. All buckets are empty before the first mark, and empty again after the call of
 * tess_order_unmark that ends with the last one. */
static inline void tess_order_mark(const tess_order *order, uint32_t bucket) {
    order->bucket[bucket]++;
    order->marks[bucket / 64] |= UINT64_C(1) << bucket % 64;
}
uint32_t tess_order_marked_places(tess_order *order, uint32_t at);
void tess_order_unmark(tess_order *order);

static inline uint32_t *tess_order_bucket(const tess_order *order, uint64_t blocks) {
    return &order->bucket[blocks >> order->shift];
}

/* ------------------------------------------------------------------ sections */

struct tess_jobs;

/* A place in the order of sequences and, within one, of runs of heads. */
typedef struct tess_cursor {
    uint32_t sequence, run;
} tess_cursor;

/* A walk over the sections of jobs that were counted, of some consecutive runs of heads. */
typedef struct tess_sections {
    const struct tess_jobs *jobs;
    uint64_t count;         /* 0: all jobs are one section, as they were counted */
    uint64_t section;       /* number of the current one, from 1 on */
    uint64_t total;         /* shared key blocks of all kv heads ... */
    uint64_t sum;           /* ... and of those up to `end` */
    uint32_t first, last;   /* runs of heads that the walk is about */
    tess_cursor begin, end; /* of the current section */
} tess_sections;

void tess_sections_start(tess_sections *sections, const struct tess_jobs *jobs, uint32_t first_run,
                         uint32_t last_run);
/* Goes to the next section, at first to the first one; false after the last. */
bool tess_sections_next(tess_sections *sections);

#endif
