/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs: the tiles of all sequences and heads, cut into parts where that helps, longest first. They
 * are counted first and placed then. */
#ifndef TESSERA_CORE_JOBS_H
#define TESSERA_CORE_JOBS_H

#include "order.h"
#include "pools.h"
#include "tile.h"

_Static_assert(sizeof(tess_job) == 48, "a job is twelve 32-bit words");

/* How the keys of a job are split. At most one of max_parts and length is set. */
typedef struct tess_split {
    uint32_t max_parts; /* [0: no limit] equal parts, at most this many */
    uint32_t length;    /* [0: none] key blocks of a part */
    /* [0: `length` for all] where `length` comes from for a sequence with at most TESS_SHORT_ROWS
     * rows, whose parts grow, and for others */
    uint32_t short_length, long_length;
    bool grows;
    /* parts end at multiples of `length`, or where growing parts do; otherwise they are equal and
     * at most `length` long */
    bool fixed;
} tess_split;

/* How many parts so many key blocks make, where parts grow (TESS_SHORT_ROWS). */
static inline uint64_t tess_short_parts(uint64_t blocks, uint64_t length) {
    uint64_t before = 0, growth = TESS_SHORT_GROWTH(length);
    while (blocks > TESS_SHORT_PARTS * length) {
        blocks -= TESS_SHORT_PARTS * length;
        before += TESS_SHORT_PARTS;
        length += growth;
    }
    return before + (blocks <= length ? 1 : (blocks - 1) / length + 1);
}

/* Where such a part begins. */
static inline uint64_t tess_short_begin(uint64_t part, uint64_t length) {
    const uint64_t longer = part / TESS_SHORT_PARTS, growth = TESS_SHORT_GROWTH(length);
    return part * length +
           growth * longer *
               (TESS_SHORT_PARTS / 2 * (longer ? longer - 1 : 0) + part % TESS_SHORT_PARTS);
}

/* Consecutive query heads of one kv head and one class. */
typedef struct tess_head_run {
    uint32_t kv_head;
    uint16_t head, heads, cls;
} tess_head_run;

/* The jobs that one tile makes of one class. */
typedef struct tess_pack {
    uint32_t cls;
    uint32_t jobs;
    uint32_t heads; /* of the job with the most */
} tess_pack;

typedef struct tess_jobs {
    tess_runtime *runtime;
    tess_tiler *tiler; /* its own, or that of the jobs beside which it was made */
    tess_tiler own_tiler;
    tess_grid grid;
    uint32_t tile_rows, pack_rows;
    /* Set between create and count: jobs are made of the sequences with q_above < q_len <= q_most.
     */
    int64_t q_above, q_most;
    uint32_t share; /* of the plan, whose storage groups get their first jobs */
    const tess_sequence *sequences;
    const uint32_t *first_block; /* [n_sequences] the block of each one's first key; NULL: 0 */
    uint32_t n_sequences;
    tess_split split;

    tess_head_run *runs; /* [n_runs] in order of heads; with groups, of groups and heads */
    uint32_t n_runs;
    tess_pools *pools; /* NULL: all jobs are one group */
    tess_pack *packs;  /* [n_packs] of the classes that are being counted; room for [n_classes] */
    uint32_t *pack;    /* [n_classes] index of the pack of a class, if it has one */
    uint32_t n_packs;
    /* Where all packs are causal S2 or dense: how many jobs a tile makes of dense ones, of strided
     * ones, and of those of these whose first block is below a residue; [grid.stride], or NULL for
     * a stride that is too large. */
    bool causal;
    uint32_t dense_jobs, strided_jobs;
    uint32_t *below;
    tess_order order; /* of the counted jobs, by key blocks */

    /* What tess_jobs_count found. */
    uint64_t n_jobs, n_merges, n_partials, n_blocks;
    uint32_t most_rows;    /* rows * heads of a job */
    uint64_t n_read;       /* the key blocks of all kv heads */
    uint32_t partial_rows; /* most rows * heads of a split job */

    /* [0: one section] Set between count and place. Jobs come in sections of about equal size,
     * longest first in each. A section takes kv heads until they share at most about this many key
     * blocks, so that what is worked on at one time fits a cache. Block masks have one section. */
    uint64_t section_blocks;
} tess_jobs;

static inline tess_key_span tess_jobs_span(const tess_jobs *jobs, uint32_t sequence) {
    return tess_key_span_of(&jobs->sequences[sequence],
                            jobs->first_block ? jobs->first_block[sequence] : 0, jobs->grid.block);
}

/* The first of the tiles that a sequence's rows make. */
static inline void tess_jobs_tile(const tess_jobs *jobs, uint32_t sequence, tess_tile *tile) {
    const tess_sequence *s = &jobs->sequences[sequence];
    tess_tile_begin(&jobs->grid, s->q_first, (int64_t)s->q_first + s->q_len, tile);
}

/* The end of the runs of the kv head that begins at run `first`. */
static inline uint32_t tess_kv_head_end(const tess_jobs *jobs, uint32_t first) {
    uint32_t last = first + 1;
    while (last < jobs->n_runs && jobs->runs[last].kv_head == jobs->runs[first].kv_head) last++;
    return last;
}

/* The end of the runs of the storage group that begins at run `first`. */
uint32_t tess_jobs_group_end(const tess_jobs *jobs, uint32_t first);

/* Prepares the count: runs of heads, grid, lists. `sequences` stays the caller's and must outlive
 * the jobs, and so must `first_block`, which is set between create and count. */
tess_status tess_jobs_create(tess_jobs *jobs, tess_runtime *runtime, const tess_layout *layout,
                             const tess_sequence *sequences, uint32_t n_sequences,
                             uint32_t tile_rows, uint32_t pack_rows);
/* Prepares the count of other tiles of the same sequences. Lists are those of `first`, which must
 * outlive the jobs. */
tess_status tess_jobs_create_beside(tess_jobs *jobs, const tess_jobs *first, uint32_t tile_rows,
                                    uint32_t pack_rows);
void tess_jobs_release(tess_jobs *jobs);

static inline bool tess_jobs_has(const tess_jobs *jobs, const tess_sequence *sequence) {
    return sequence->q_len > jobs->q_above && sequence->q_len <= jobs->q_most;
}

/* Query heads of a job in a sequence of so many rows, and the most rows of a job's heads in
 * sequences of up to so many rows. */
uint64_t tess_jobs_heads(const tess_jobs *jobs, int64_t q_len);
uint32_t tess_jobs_most_rows(const tess_jobs *jobs, int64_t q_len);

/* Puts the heads in order of storage groups, whose jobs follow each other then. `pools` stays the
 * caller's and must outlive the jobs; tess_jobs_place fills the share's
 * first_job. */
void tess_jobs_group(tess_jobs *jobs, tess_pools *pools);

/* Counts jobs, merges and partials under jobs->split. To be called again after a change of the
 * split. */
tess_status tess_jobs_count(tess_jobs *jobs);

/* Writes what the last count counted. */
void tess_jobs_place(tess_jobs *jobs, tess_job *out, tess_merge *merges);

/* The cost of job `n` of those that tess_run's range counts, in key blocks. */
typedef uint64_t tess_cost_fn(const void *context, uint64_t n);

/* Cuts `total` jobs into ranges of at most `limit` key blocks, or of a single job. Returns how many
 * there are, and writes where they begin and where the last one ends, as far as `start` has room.
 */
uint64_t tess_jobs_ranges(tess_cost_fn *cost_of, const void *context, uint64_t total,
                          uint64_t limit, uint64_t *start, uint64_t room);

static inline uint64_t tess_job_blocks(const tess_job *job) {
    return (uint64_t)job->left_count + job->interval_blocks + job->right_count;
}

#endif
