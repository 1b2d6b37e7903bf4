/* SPDX-License-Identifier: Apache-2.0 */
/* Whether two tensors share memory, decided from addresses and strides in a bounded number of
 * steps. */
#ifndef TESSERA_CORE_OVERLAP_H
#define TESSERA_CORE_OVERLAP_H

#include <stdbool.h>
#include <stdint.h>

/* Rows of contiguous bytes, one at address + the sum of x[n] * stride[n] for every x with x[n] <
 * count[n]. */
typedef struct tess_box {
    uint64_t address;
    uint64_t row_bytes; /* at least 1 */
    uint64_t count[3];  /* each at least 1 */
    uint64_t stride[3]; /* in bytes */
} tess_box;

/* True only if some byte certainly belongs to both boxes. The search stops after a fixed number of
 * steps and then answers false. The steps suffice where neither box has gaps, and nearly always
 * where strides nest. No box may end past 2^64. */
bool tess_boxes_meet(const tess_box *a, const tess_box *b);

#endif
