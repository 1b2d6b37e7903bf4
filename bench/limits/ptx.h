/* SPDX-License-Identifier: Apache-2.0 */
/* Loops for NVIDIA's GPUs as PTX, which the driver compiles. */
#ifndef TESSERA_BENCH_LIMITS_PTX_H
#define TESSERA_BENCH_LIMITS_PTX_H

#include "loops.h"

/* `capability`: 90 for 9.0. */
loops_kind ptx_kind_of(int loop, int capability);
/* The text of a loop, which the caller frees; NULL when out of memory. */
char *ptx_loop(int loop);

#endif
