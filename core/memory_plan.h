/* SPDX-License-Identifier: Apache-2.0 */
/* The memory plan: sizes and places of a plan's tables and workspace. One function both counts and
 * places, so that sizes and places cannot disagree. */
#ifndef TESSERA_CORE_MEMORY_PLAN_H
#define TESSERA_CORE_MEMORY_PLAN_H

#include "common.h"

/* Kernels that a plan has at most. Each has partial results of its own. */
enum { TESS_SHARES = 3 };

typedef struct tess_partials {
    uint64_t n, rows; /* given */
    uint64_t at;      /* computed: bytes of the workspace */
} tess_partials;

typedef struct tess_memory_plan {
    /* Given. */
    uint64_t n_sequences, n_classes, n_jobs, n_merges, n_entries, n_bits, n_slots, n_kv_heads;
    uint64_t scratch_bytes, value_head_dim, workspace_align;
    /* [0: none] runs of heads and storage groups behind the tess_step_plan. Sequences, jobs, merges
     * and the ends of groups then lie in a step buffer, and what its tables say of these four are
     * places in that. */
    uint64_t n_step_runs, n_step_groups;
    uint64_t n_step_plans; /* kernels of steps; the three are there for each of them */
    /* Backward, else 0: workspace of strip_bytes for each strip and query head. */
    uint64_t n_columns, n_segments, n_strips, n_first_strips, n_strip_heads, strip_bytes;
    /* Where columns are cut, else 0: places for the sums of such columns, and bytes of each. */
    uint64_t n_sums, sum_bytes;
    /* Computed. */
    uint64_t table_bytes;
    uint64_t copy_at, copy_bytes, step_bytes; /* of the step buffer; see tess_step_head */
    uint64_t workspace_bytes;
    uint64_t strips_at, sums_at; /* bytes of the workspace */
    tess_partials partials[TESS_SHARES];
} tess_memory_plan;

/* Computes the sizes, and the offsets in `tables`. With a `base` it also sets the pointers in
 * `tables`; without one they stay as they are. False on overflow. */
bool tess_memory_settle(tess_memory_plan *memory, tess_tables *tables, void *base);

#endif
