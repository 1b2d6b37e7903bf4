/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernel serves a plan. */
#ifndef TESSERA_CORE_CHOOSE_H
#define TESSERA_CORE_CHOOSE_H

#include "plan.h"

/*
 * Fills the plan's kernel, its name and tile_rows: the kernel that the descriptor or the setting
 * names, else the first that a tune table prefers and that accepts, else the first row of the
 * backend's table that accepts. The plan must know its batch. UNSUPPORTED has the reason of each
 * row that refused. On failure plan->kernel holds nothing, or what its `release` frees.
 */
tess_status tess_choose_kernel(tess_plan *plan, const tess_plan_desc *d);

#endif
