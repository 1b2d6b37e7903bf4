/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Included before every source in a build with TESSERA_DEVICE_CODE=few, which checks that each line
 * compiles and is never run. A few shapes stand for all, each in one type; together they reach
 * every path through the sources. TESS_FEWEST is for a further architecture: only code for that one
 * alone matters, and one shape reaches it.
 *
 * A list of shapes gets the name of the macro that makes a kernel. Pasting a prefix to that name
 * selects the shapes for it.
 */
#ifndef TESS_CUDA_FEW_CUH
#define TESS_CUDA_FEW_CUH

#include "decode_args.h"
#include "sm80_args.h"
#include "sm80_backward_args.h"
#include "sm90_args.h"
#include "sm90_backward_args.h"

#undef TESS_SM80_INSTANCES
#undef TESS_SM80_BACKWARD_SHAPES
#undef TESS_SM80_BACKWARD_SKEWED_SHAPES
#undef TESS_SM90_INSTANCES
#undef TESS_SM90_BACKWARD_INSTANCES
#undef TESS_DECODE_INSTANCES
#undef TESS_DECODE_CODED_INSTANCES

#define TESS_SM80_INSTANCES(X)              TESS_FEW_SM80_##X
#define TESS_SM80_BACKWARD_SHAPES(X)        TESS_FEW_SM80_BACKWARD_##X
#define TESS_SM80_BACKWARD_SKEWED_SHAPES(X) TESS_FEW_SM80_BACKWARD_##X
#define TESS_SM90_INSTANCES(X)              TESS_FEW_SM90_##X
#define TESS_SM90_BACKWARD_INSTANCES(X)     TESS_FEW_SM90_BACKWARD_##X
#define TESS_DECODE_INSTANCES(X)            TESS_FEW_DECODE_##X
#define TESS_DECODE_CODED_INSTANCES(X)      TESS_FEW_DECODE_##X

/* The portable kernels have one range of head_dim in each type. */
#define TESS_FEW_DIMS_f32       64
#define TESS_FEW_DIMS_f16       128
#define TESS_FEW_DIMS_bf16      256
#define TESS_FEW_DIMS_OF_(type) TESS_FEW_DIMS_##type
#define TESS_FEW_DIMS_OF(type)  TESS_FEW_DIMS_OF_(type)
#define TESS_ONLY_DIMS          TESS_FEW_DIMS_OF(TESS_DTYPE_NAME)

/* Three warpgroups and two, stages of 128 keys and of 64. */
#define TESS_FEW_SM90_BF16          BF16(64, 128, 3, 2, 4, 5)
#define TESS_FEW_SM90_F16           F16(192, 64, 2, 1, 3, 4)
#define TESS_FEW_SM90_BACKWARD_BF16 BF16(64, 128)
#define TESS_FEW_SM90_BACKWARD_F16  F16(128, 64)

/* Tiles of 128 rows, and of 64 or 32. */
#define TESS_FEW_SM80_BF16                  BF16(96, 128, 2, 2)
#define TESS_FEW_SM80_BACKWARD_BF16_ROWS    BF16_ROWS(64, 128, 64, 8, 2, 4, 4, 2)
#define TESS_FEW_SM80_BACKWARD_BF16_COLUMNS BF16_COLUMNS(64, 128, 64, 8, 2, 4, 4, 2)
#define TESS_FEW_SM80_BACKWARD_BF16_SINGLE  BF16_SINGLE(64, 128, 64, 8, 2, 4, 4, 2)
#define TESS_FEW_SM80_BACKWARD_BF16_SKEWED  BF16_SKEWED(64, 128, 64, 8, 2, 4, 4, 2)
#define TESS_FEW_DECODE_BF16                BF16(64, 32, 3, 16)
#define TESS_FEW_DECODE_E4M3_BF16           E4M3_BF16(64, 16, 4, 32)
#define TESS_FEW_DECODE_I8_BF16             I8_BF16(64, 16, 4, 32)
#ifdef TESS_FEWEST
#define TESS_FEW_SM80_F16
#define TESS_FEW_SM80_BACKWARD_F16_ROWS
#define TESS_FEW_SM80_BACKWARD_F16_COLUMNS
#define TESS_FEW_SM80_BACKWARD_F16_SINGLE
#define TESS_FEW_SM80_BACKWARD_F16_SKEWED
#define TESS_FEW_DECODE_F16
#define TESS_FEW_DECODE_E4M3_F16
#define TESS_FEW_DECODE_I8_F16
#else
#define TESS_FEW_SM80_F16                  F16(192, 64, 1, 3)
#define TESS_FEW_SM80_BACKWARD_F16_ROWS    F16_ROWS(256, 32, 32, 4, 1, 2, 1, 2)
#define TESS_FEW_SM80_BACKWARD_F16_COLUMNS F16_COLUMNS(256, 32, 32, 4, 1, 2, 1, 2)
#define TESS_FEW_SM80_BACKWARD_F16_SINGLE  F16_SINGLE(256, 32, 32, 4, 1, 2, 1, 2)
#define TESS_FEW_SM80_BACKWARD_F16_SKEWED  F16_SKEWED(128, 128, 64, 8, 2, 4, 4, 2)
#define TESS_FEW_DECODE_F16                F16(256, 16, 1, 16)
#define TESS_FEW_DECODE_E4M3_F16           E4M3_F16(128, 16, 3, 32)
#define TESS_FEW_DECODE_I8_F16             I8_F16(128, 16, 3, 32)
#endif

#endif /* TESS_CUDA_FEW_CUH */
