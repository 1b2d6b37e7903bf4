/* SPDX-License-Identifier: Apache-2.0 */
/* What headers for every language (key_walk.h) need of CUDA and HIP. Neither toolkit's headers are
 * needed: nvcc brings its own along, and clang compiles for both vendors with builtins alone. */
#ifndef TESS_LANGUAGE_CUDA_H
#define TESS_LANGUAGE_CUDA_H

#ifndef __global__
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#endif

typedef unsigned int uint;

#define TESS_FUNCTION     static inline __device__ __attribute__((always_inline))
#define TESS_STRUCT(name) struct name

#endif /* TESS_LANGUAGE_CUDA_H */
