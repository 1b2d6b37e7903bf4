/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor maps of the kernels for Hopper. */
#ifndef TESS_CUDA_SM90_MAPS_H
#define TESS_CUDA_SM90_MAPS_H

#include "cuda.h"
#include "kernels/sm90_args.h"

/* A map for copies of `boxes` boxes, each of 64 elements by `box_tokens` tokens and `step` tokens
 * behind the one before; what lies past an extent reads as 0. False if the driver refuses, as it
 * may for strides of 2^40 bytes. */
int tess_cuda_make_map(const tess_driver_device *d, const tess_launch *l, const tess_tensor *t,
                       int64_t tokens, uint32_t heads, uint64_t batches, unsigned box_tokens,
                       unsigned boxes, uint64_t step, tess_tensor_map *map);

#endif /* TESS_CUDA_SM90_MAPS_H */
