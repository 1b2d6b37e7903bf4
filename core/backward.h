/* SPDX-License-Identifier: Apache-2.0 */
/* What plans of gradients have beside those of forward: stages, strips and columns. */
#ifndef TESSERA_CORE_BACKWARD_H
#define TESSERA_CORE_BACKWARD_H

#include "columns.h"
#include "plan.h"

/* All of TESS_PLAN_DQ_F32 and so on. */
enum {
    TESS_PLAN_GRADIENTS =
        TESS_PLAN_DQ_F32 | TESS_PLAN_DKV_F32 | TESS_PLAN_DQ_ADD | TESS_PLAN_DKV_ADD
};

/* Refuses fields that a plan of the descriptor's op must not have. */
tess_status tess_backward_check(const tess_plan_desc *d);

/* Refuses what a kernel from outside the tree may have got wrong. */
tess_status tess_backward_check_kernel(const tess_plan *plan, const char *name,
                                       const tess_kernel *kernel);

/* Counts strips and columns for the memory plan. *columns is zero before, and to be released by the
 * caller. `jobs` are counted. */
tess_status tess_backward_count(tess_plan *plan, const tess_jobs *jobs, tess_columns *columns);
/* Writes them into the plan's tables. */
void tess_backward_place(tess_plan *plan, tess_columns *columns);

/* The cost of job `n` of all stages, in (row tile, key block) steps. Tables must be on the host. */
uint64_t tess_backward_steps(const tess_plan *plan, uint64_t n);

#endif
