/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers in CUDA and HIP: the part of dialect_cuda.h that a C++ compiler of the host understands
 * as well, and needs of it for kernels in lockstep. */
#ifndef TESS_NUMBERS_CUDA_H
#define TESS_NUMBERS_CUDA_H

#include "args.h"
#include "language_cuda.h"
#include "words.h"

typedef long long tess_offset;

/* Of conditions, without branches. */
#define TESS_AND(a, b) ((a) & (b))
#define TESS_OR(a, b)  ((a) | (b))
#define TESS_OFFSET(x) ((tess_offset)(x))
#define TESS_INT(x)    ((int)(x))
#define TESS_UINT(x)   ((uint)(x))
#define TESS_FLOAT(x)  ((float)(x))

#endif
