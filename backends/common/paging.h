/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels that write a cache (TESS_OP_APPEND, TESS_OP_COPY_PAGES) from the host's side. Shared
 * by all GPU backends. */
#ifndef TESS_COMMON_PAGING_H
#define TESS_COMMON_PAGING_H

#include "paging_args.h"
#include "portable.h"

/* Their tensors, in the order of their buffers; the tables of the plan follow. A copy has the pool
 * (K) and the list of pairs (the block table) alone. */
enum { TESS_PAGING_TENSORS = 7, TESS_PAGING_BUFFERS = TESS_PAGING_TENSORS + 1 };
extern const tess_portable_tensor tess_paging_tensors[TESS_PAGING_TENSORS];

static inline int tess_is_paging(uint32_t op) {
    return op == TESS_OP_APPEND || op == TESS_OP_COPY_PAGES;
}

/* Why the kernels do not take the problem, or NULL. */
const char *tess_paging_refusal(const tess_kernel_key *key);

/* Kernels that move elements know only their size: 16 or 32 bits. */
static inline uint32_t tess_paging_bits(uint32_t dtype) { return 8 * tess_portable_element(dtype); }

/* The arguments for `items` rows or tokens from launch->first_job + skip on: see
 * tess_portable_forward_args. */
void tess_paging_fill(const tess_launch *launch, uint64_t skip, uint64_t items, int base_in_handle,
                      tess_paging_args *args);

#endif /* TESS_COMMON_PAGING_H */
