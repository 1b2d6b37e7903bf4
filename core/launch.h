/* SPDX-License-Identifier: Apache-2.0 */
/* What all calls that launch a kernel have in common: how they begin, what a launch takes over from
 * a plan or, without one, from the rows it is about, and how the backend's answer becomes the
 * call's. Nothing here allocates. */
#ifndef TESSERA_CORE_LAUNCH_H
#define TESSERA_CORE_LAUNCH_H

#include "plan.h"
#include "structures.h"

/* The beginning of a call: the plan's device, or the device, works, and *read becomes the
 * descriptor. */
tess_status tess_call_on_plan(const char *function, const tess_plan *plan, const void *desc,
                              void *read, tess_structure_id id);
tess_status tess_call_on_device(const char *function, const tess_device *device, const void *desc,
                                void *read, tess_structure_id id);

/* Clears the launch and fills what follows from the plan alone, whatever the operation. */
void tess_launch_of_plan(const tess_plan *plan, const tess_kernel *kernel,
                         const tess_stream *stream, tess_launch *l);

/* Clears the launch and fills that of an operation without a plan: rows of so many elements in
 * n_heads heads. Its kernel comes from tess_choose_for_device. */
void tess_launch_of_rows(uint32_t op, uint32_t dtype, int32_t head_dim, uint32_t n_heads,
                         const tess_stream *stream, tess_launch *l);

/* Hands the launch to the device's backend. */
tess_status tess_launch_on(tess_device *device, const tess_launch *l);

#endif
