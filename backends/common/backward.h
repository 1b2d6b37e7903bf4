/* SPDX-License-Identifier: Apache-2.0 */
/* The portable kernels of backward from the host's side: two passes, of which every stage takes the
 * buffers and arguments of attention. */
#ifndef TESS_COMMON_BACKWARD_H
#define TESS_COMMON_BACKWARD_H

#include "portable.h"

enum { TESS_BACKWARD_STAGES = 3 }; /* DELTA, ROWS and COLUMNS, each a kernel */

typedef struct tess_backward_shape {
    uint32_t head_dim; /* largest that it takes: 64, 128 or 256 */
    uint32_t tile, threads;
    uint32_t shared_bytes;
} tess_backward_shape;

extern const tess_backward_shape tess_backward_shapes[TESS_PORTABLE_BUCKETS];

/* The smallest shape for a head_dim that tess_portable_refusal does not refuse. */
const tess_backward_shape *tess_backward_find(int32_t head_dim);

/* Fills what the kernels of a shape say of themselves. */
void tess_backward_describe(const tess_backward_shape *shape, tess_kernel *kernel);

/* Which kernel a stage is, below TESS_BACKWARD_STAGES, and the threads of its workgroups. */
static inline uint32_t tess_backward_number(uint32_t stage) { return stage >> 1; }
uint32_t tess_backward_threads(const tess_backward_shape *shape, uint32_t stage);

/* A launch of a stage as its kernel sees it: its tensors in the places of attention's. */
void tess_backward_stage(const tess_launch *launch, tess_launch *as_attention);
/* The arguments for `items` jobs of such a launch from first_job + skip on. */
void tess_backward_args(const tess_launch *as_attention, uint64_t skip, uint64_t items,
                        int base_in_handle, tess_args *args);

#endif /* TESS_COMMON_BACKWARD_H */
