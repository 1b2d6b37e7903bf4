/* SPDX-License-Identifier: Apache-2.0 */
/* Names that the kernels for tensor cores share. */
#ifndef TESS_CUDA_TYPES_CUH
#define TESS_CUDA_TYPES_CUH

#include <stdint.h>

namespace tess {

/* Storage types, told apart by name only. */
struct bf16_t {};
struct f16_t {};
struct f32_t {};
/* Codes of 8 bits, of K and V only. */
struct e4m3_t {};
struct i8_t {};

} // namespace tess

#endif // TESS_CUDA_TYPES_CUH
