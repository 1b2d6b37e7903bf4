/* SPDX-License-Identifier: Apache-2.0 */
/* Whether two tensors share memory, decided from addresses and strides in a bounded number of
 * steps. */
#ifndef TESSERA_CORE_OVERLAP_H
#define TESSERA_CORE_OVERLAP_H

#include <stdbool.h>
#include <stdint.h>

/* Rows of contiguous bytes: one at address + sum of x[n] * stride[n] for every x with x[n] <
 * count[n]. */
typedef struct tess_box {
    uint64_t address;
    uint64_t row_bytes; /* at least 1 */
    uint64_t count[3];  /* each at least 1 */
    uint64_t stride[3]; /* in bytes */
} tess_box;

/* True only if some byte certainly belongs to both boxes. The search for one has a fixed number of
 * steps, which suffices when neither box has gaps, and nearly always when strides nest; when they
 * run out, the answer is false. The end of neither box may pass 2^64. */
bool tess_boxes_meet(const tess_box *a, const tess_box *b);

#endif
