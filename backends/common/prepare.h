/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel that prepares steps (TESS_OP_PREPARE) from the host's side: its buffers and arguments
 * for GPU backends, and its body as a C function. */
#ifndef TESS_COMMON_PREPARE_H
#define TESS_COMMON_PREPARE_H

#include "portable.h"

/* `tables` are the plan's, of which `args` holds where the first of `plans` tess_step_plan is
 * (items_at), how far the next one is from it (first_item), how many storage groups each has
 * (group), where the classes are (classes_at), and how many sequences the step has (items).
 * `cu_rows` has one number more than kv_lens; q_first is read with TESS_ARGS_FIRST alone, kv_first
 * with TESS_ARGS_PARTS. `step` is the step buffer. */
void tess_prepare_on_host(const tess_args *args, uint32_t plans, const uint32_t *tables,
                          const int32_t *cu_rows, const int32_t *kv_lens, const int32_t *q_first,
                          const int32_t *kv_first, uint32_t *step);
/* The same, of workgroup `number` alone. */
void tess_prepare_group(const tess_args *args, uint32_t number, const uint32_t *tables,
                        const int32_t *cu_rows, const int32_t *kv_lens, const int32_t *q_first,
                        const int32_t *kv_first, uint32_t *step);

/* Its tensors, in the order of their buffers; the tables of the plan follow. It has a workgroup for
 * each storage group of each kernel, tess_launch.n_jobs of them; for CUDA and HIP see
 * kernels/step_shape.h. */
enum { TESS_PREPARE_TENSORS = 5, TESS_PREPARE_BUFFERS = TESS_PREPARE_TENSORS + 1 };
enum { TESS_PREPARE_GROUP = 256, TESS_PREPARE_SHARED_BYTES = 16384 };
extern const tess_portable_tensor tess_prepare_tensors[TESS_PREPARE_TENSORS];

/* Its arguments: see tess_portable_forward_args. */
void tess_prepare_args(const tess_launch *launch, int base_in_handle, tess_args *args);

#endif /* TESS_COMMON_PREPARE_H */
