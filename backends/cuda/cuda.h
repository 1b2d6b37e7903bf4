/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the CUDA backend share. */
#ifndef TESS_CUDA_CUDA_H
#define TESS_CUDA_CUDA_H

#include "driver.h"

/* Made at build time: the portable kernels, those for Hopper, and those for Ampere and later. Lists end with data NULL and are empty in a build without nvcc. */
extern const tess_driver_image tess_cuda_images[], tess_cuda_sm90_images[], tess_cuda_sm80_images[];

/* Places among tess_driver.extra that other files use; cuda.c has the whole list. */
enum { CUDA_SET_FUNCTION_ATTRIBUTE = 6, CUDA_ENCODE_TENSOR_MAP = 7 };

/* Modules of a device, after the portable one. */
enum { CUDA_SM90_MODULE = 1, CUDA_SM80_MODULE = 2 };

extern const tess_driver_row tess_cuda_sm90, tess_cuda_sm80;

/* Which kernels are tried first on which device (docs/tune.md). */
extern const char tess_cuda_tune[];

#endif /* TESS_CUDA_CUDA_H */
