/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Included before a source of a build with TESSERA_DEVICE_CODE=few, which sees that every line of
 * it compiles and is run nowhere: a few shapes in place of all, which between them have every way
 * through the sources. With TESS_FEWEST, for an architecture beside the one that has these, only
 * what sources do for it alone matters, and one shape has that.
 */
#ifndef TESS_CUDA_FEW_CUH
#define TESS_CUDA_FEW_CUH

#include "decode_args.h"
#include "sm80_args.h"
#include "sm80_backward_args.h"
#include "sm90_args.h"

#undef TESS_SM80_INSTANCES
#undef TESS_SM80_BACKWARD_SHAPES
#undef TESS_SM80_BACKWARD_SKEWED_SHAPES
#undef TESS_SM90_INSTANCES
#undef TESS_DECODE_INSTANCES
#undef TESS_DECODE_CODED_INSTANCES

/* Three warpgroups and two, stages of 128 keys and of 64. */
#define TESS_SM90_INSTANCES(X)         X(64, 128, 3, 2, 4, 5) X(192, 64, 2, 1, 3, 4)
#define TESS_DECODE_CODED_INSTANCES(X) X(64, 16, 4)
#ifdef TESS_FEWEST
#define TESS_SM80_INSTANCES(X)              X(64, 128, 2, 3)
#define TESS_SM80_BACKWARD_SHAPES(X)        X(64, 128, 64, 8, 2, 4, 4, 2)
#define TESS_SM80_BACKWARD_SKEWED_SHAPES(X) X(64, 128, 64, 8, 2, 4, 4, 2)
#define TESS_DECODE_INSTANCES(X)            X(64, 16, 4)
#else
/* Tiles of 128 rows and of 64. */
#define TESS_SM80_INSTANCES(X)              X(96, 128, 2, 2) X(192, 64, 1, 3)
#define TESS_SM80_BACKWARD_SKEWED_SHAPES(X) X(128, 128, 64, 8, 2, 4, 4, 2)
#define TESS_DECODE_INSTANCES(X)            X(96, 16, 3) X(256, 16, 1) X(64, 32, 3)

#define TESS_SM80_BACKWARD_SHAPES(X) X(64, 128, 64, 8, 2, 4, 4, 2) X(256, 32, 32, 4, 1, 2, 1, 2)
#endif

#endif /* TESS_CUDA_FEW_CUH */
