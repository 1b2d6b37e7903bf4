/* SPDX-License-Identifier: Apache-2.0 */
/* Split-KV: whether the keys of a job are cut into parts, and how long the parts are. */
#ifndef TESSERA_CORE_SPLIT_H
#define TESSERA_CORE_SPLIT_H

#include "jobs.h"

/* What the choice depends on besides the jobs. */
typedef struct tess_split_model {
    tess_kernel_costs costs; /* complete: see tess_split_costs */
    uint32_t block;          /* keys of a key block */
    uint64_t block_bytes;    /* of K and V, of one kv head */
    uint64_t row_bytes;      /* of a row of a partial result */
    uint64_t partial_bytes;  /* [0: no limit] of all partial results, where the model chooses */
} tess_split_model;

typedef struct tess_split_choice {
    uint32_t length;     /* key blocks of a part; 0: unsplit */
    uint32_t candidates; /* how many were weighed, unsplit included */
    double unsplit_ns;   /* predicted time of a run without parts */
    double ns;           /* predicted time with the chosen length */
} tess_split_choice;

/* The costs in ticks of 2^shift ns, so that those of a run fit 32 bits. */
typedef struct tess_split_ticks {
    uint32_t shift;
    uint32_t length_step; /* parts have a multiple of this many key blocks */
    uint32_t step, job, merge, part;
    uint32_t partial; /* writing and reading a partial result */
    uint32_t read;    /* of K and V of 64 key blocks */
} tess_split_ticks;

/* Of jobs with at most so many key blocks, and partial results of so many rows. */
tess_split_ticks tess_split_in_ticks(const tess_split_model *model, uint64_t blocks,
                                     uint32_t partial_rows);

/* Partial results where the model chooses them: as many as fit the workspace, and are of use. */
uint64_t tess_split_most_partials(const tess_split_model *model, uint32_t partial_rows,
                                  uint64_t partial_bytes);

/* The kernel's costs; a guess where it states none (workers == 0). */
tess_kernel_costs tess_split_costs(const tess_kernel_costs *costs, uint32_t parallel_jobs);

/* Key blocks of a part in batch-invariant mode: the first ones of sequences with few rows, or all
 * of others. */
uint32_t tess_invariant_length(uint32_t block, bool few_rows);

/* Counts the jobs under the split that the plan asks for. kv_split == 0 lets the model choose; in
 * batch-invariant mode parts then have a fixed length. `choice` has 0 candidates where the model
 * did not choose. */
tess_status tess_split_count(const tess_split_model *model, int32_t kv_split, bool invariant,
                             tess_jobs *jobs, tess_split_choice *choice);

/* Chooses a split for jobs that were counted without one. Reads only the counts. */
void tess_split_choose(const tess_split_model *model, const tess_jobs *jobs,
                       tess_split_choice *choice);

#endif
