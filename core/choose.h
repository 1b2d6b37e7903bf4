/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernel serves a plan. */
#ifndef TESSERA_CORE_CHOOSE_H
#define TESSERA_CORE_CHOOSE_H

#include "plan.h"

/*
 * Fills the kernels of the plan's shares, their names, rows and tile_rows: the kernel that the
 * descriptor or the setting names, else the first that a tune table prefers and that accepts, else
 * the first row of the backend's table that accepts. A kernel that is meant for few rows gets the
 * sequences that have so few, and the walk goes on for the others. The plan must know its batch.
 * UNSUPPORTED has the reason of each row that refused. On failure the kernel of a share holds
 * nothing, or what its `release` frees.
 */
tess_status tess_choose_kernel(tess_plan *plan, const tess_plan_desc *d);

/* Takes the first row of the key's operation that accepts. No setting names a kernel for the
 * operations beside those of plans. */
tess_status tess_choose_op(tess_device *device, const tess_kernel_key *key, tess_kernel *kernel);

/* Fills plan->append, the kernel that writes the plan's cache, if the descriptor asks for one. */
tess_status tess_choose_append(tess_plan *plan, const tess_plan_desc *d);

/* The device's own kernel of an operation without a plan, made ready on first use. It may have
 * TESS_DEVICE_LAUNCHES launches under way. */
enum { TESS_DEVICE_LAUNCHES = 32 };
tess_status tess_choose_for_device(tess_device *device, uint32_t op, uint32_t dtype,
                                   int32_t head_dim, const tess_kernel **kernel);

#endif
