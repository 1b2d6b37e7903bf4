/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The backward kernel for Ampere and later (sm_80): matrix products of a warp (mma) and
 * asynchronous copies of 16 bytes (cp.async), in two passes or a single one.
 * tess_sm80_backward_<rows|columns|single|skewed>_<f16|bf16>_<largest head_dim>_<tile>, and
 * tess_sm80_backward_<delta|finish>_<f16|bf16>_<largest head_dim> of a single pass.
 */
#include "dialect_cuda.h"

#include "sm80_backward_columns.cuh"
#include "sm80_backward_rows.cuh"

namespace tess {

template <template <typename> class Side, int HEADER, typename Pass>
__device__ __forceinline__ void backward(const tess_sm80_backward_args *args) {
    extern __shared__ __align__(128) uint8_t raw[];
    Side<Pass> side;
    side.begin(args, shared_address(raw) + HEADER);
    side.m = (typename Side<Pass>::memory *)raw;
    side.run();
}

} // namespace tess

#define PASS(T, D, TILE, STEP, WARPS, ...) \
    tess::backward_pass<tess::T##_t, D, TILE, STEP, WARPS, __VA_ARGS__>
#define KERNEL(NAME, HEADER, T, D, TILE, STEP, WARPS, ...)                                     \
    extern "C" __global__ void __launch_bounds__(WARPS * 32)                                   \
        tess_sm80_backward_##NAME##_##T##_##D##_##TILE(                                        \
            const __grid_constant__ tess_sm80_backward_args args) {                            \
        tess::backward<tess::NAME##_pass, HEADER, PASS(T, D, TILE, STEP, WARPS, __VA_ARGS__)>( \
            &args);                                                                            \
    }
#define BF16_ROWS(...)    KERNEL(rows, TESS_SM80_BACKWARD_ROWS_HEADER, bf16, __VA_ARGS__)
#define BF16_COLUMNS(...) KERNEL(columns, TESS_SM80_BACKWARD_COLUMNS_HEADER, bf16, __VA_ARGS__)
#define F16_ROWS(...)     KERNEL(rows, TESS_SM80_BACKWARD_ROWS_HEADER, f16, __VA_ARGS__)
#define F16_COLUMNS(...)  KERNEL(columns, TESS_SM80_BACKWARD_COLUMNS_HEADER, f16, __VA_ARGS__)
#define BF16_SINGLE(...)  KERNEL(single, TESS_SM80_BACKWARD_COLUMNS_HEADER, bf16, __VA_ARGS__)
#define F16_SINGLE(...)   KERNEL(single, TESS_SM80_BACKWARD_COLUMNS_HEADER, f16, __VA_ARGS__)
#define BF16_SKEWED(...)  KERNEL(skewed, TESS_SM80_BACKWARD_SKEWED_HEADER, bf16, __VA_ARGS__)
#define F16_SKEWED(...)   KERNEL(skewed, TESS_SM80_BACKWARD_SKEWED_HEADER, f16, __VA_ARGS__)
TESS_SM80_BACKWARD_SHAPES(BF16_ROWS)
TESS_SM80_BACKWARD_SHAPES(BF16_COLUMNS)
TESS_SM80_BACKWARD_SHAPES(F16_ROWS)
TESS_SM80_BACKWARD_SHAPES(F16_COLUMNS)
TESS_SM80_BACKWARD_SHAPES(BF16_SINGLE)
TESS_SM80_BACKWARD_SHAPES(F16_SINGLE)
TESS_SM80_BACKWARD_SKEWED_SHAPES(BF16_SKEWED)
TESS_SM80_BACKWARD_SKEWED_SHAPES(F16_SKEWED)

#define STRIPS(NAME, T, D)                                                         \
    extern "C" __global__ void __launch_bounds__(TESS_SM80_BACKWARD_STRIP_THREADS) \
        tess_sm80_backward_##NAME##_##T##_##D(                                     \
            const __grid_constant__ tess_sm80_backward_args args) {                \
        tess::NAME##_stage<tess::T##_t, D>::run(&args);                            \
    }
#define STRIP_STAGES(D) \
    STRIPS(delta, bf16, D) STRIPS(delta, f16, D) STRIPS(finish, bf16, D) STRIPS(finish, f16, D)
STRIP_STAGES(64)
STRIP_STAGES(128)
STRIP_STAGES(256)
