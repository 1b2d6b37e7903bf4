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
