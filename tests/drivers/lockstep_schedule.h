/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler of Hopper's backward kernel on the host: which steps it makes of columns. */
#ifndef TESSERA_TESTS_LOCKSTEP_SCHEDULE_H
#define TESSERA_TESTS_LOCKSTEP_SCHEDULE_H

#include <stdint.h>

#include "kernels/sm90_backward_args.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lockstep_step {
    uint32_t column;     /* of the launch */
    int32_t first, last; /* step of the column */
    int32_t empty;       /* no products */
    int32_t before;      /* columns that add to its sums; -1: there is nothing to add up */
    int32_t has_strip;   /* the three below, and a turn if there are any */
    uint32_t strip, wait, leave;
    int32_t head, batch;
    int32_t position; /* of the step's first row */
    int64_t token;
    /* The rows of the sequence that keep key k are [from[k], to[k]). */
    int32_t from[TESS_SM90_COLUMN_KEYS], to[TESS_SM90_COLUMN_KEYS];
} lockstep_step;

/* Calls `visit` with each step of the launch, whose addresses are the host's. */
void lockstep_schedule(const tess_sm90_backward_args *args, int head_dim,
                       void (*visit)(void *context, const lockstep_step *step), void *context);

#ifdef __cplusplus
}
#endif

#endif
