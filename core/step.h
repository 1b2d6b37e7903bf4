/* SPDX-License-Identifier: Apache-2.0 */
/* Steps: plans whose lengths come from the device. What a step has room for, and the numbers from
 * which its jobs are made (tess_step_plan). */
#ifndef TESSERA_CORE_STEP_H
#define TESSERA_CORE_STEP_H

#include "split.h"

/* Any step has at most `batch` sequences with rows, `rows` rows in all, and in a sequence at most
 * q_len rows and kv_len keys. Keys end, and rows begin, at position `positions` at most. */
typedef struct tess_step_limits {
    int64_t batch, q_len, kv_len, rows, positions;
    int64_t q_above; /* sequences have more rows than this */
} tess_step_limits;

/* The most that a step within its limits can have. */
typedef struct tess_step_room {
    uint64_t jobs, merges, partials;
    uint32_t partial_rows; /* of a job that is split */
} tess_step_room;

/* The head of a step buffer takes so many bytes. */
enum { TESS_STEP_HEAD_BYTES = 256 };

/* Fills the room, of *words everything but the places of tables, and the storage groups' first jobs
 * if jobs are in groups (tess_jobs_group). `jobs` tells the layout, the grid and the runs of heads.
 * kv_split and `invariant` are the plan's. `partial_bytes`: workspace for partial results where the
 * step chooses its parts. UNSUPPORTED: there are 2^31 jobs or more. */
tess_status tess_step_measure(const tess_jobs *jobs, const tess_step_limits *limits,
                              const tess_split_model *model, int32_t kv_split, bool invariant,
                              uint64_t partial_bytes, tess_step_room *room, tess_step_plan *words);

/* Writes the runs of heads and the storage groups: words->n_runs and n_groups of them, whose jobs
 * begin with number first_job. */
void tess_step_runs(const tess_jobs *jobs, const tess_step_plan *words, uint64_t first_job,
                    tess_step_run *runs, tess_step_group *groups);

#endif
