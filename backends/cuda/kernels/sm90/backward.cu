/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients for Hopper (sm_90a) in a single pass: five products for each pair of rows and keys that
 * is kept. Three kernels for the stages DELTA, COLUMNS and FINISH:
 *
 *   strips_backward.cuh    DELTA and FINISH, a thread block for each strip of a query head
 *   schedule_backward.cuh  COLUMNS, warp 0: the steps of each column
 *   load_backward.cuh      warp 1: Q and dO of each step; warp 2: K and V of each column; warp 3:
 *                          adds dQ of a step to its accumulators
 *   mainloop_backward.cuh  the other warpgroups, 64 keys each: all products
 *   epilogue_backward.cuh  dK and dV out of registers, and dQ in FINISH
 *
 * The tiles and the roles of the warps are those of FlashAttention-3 (arXiv 2407.08608).
 */
#include "load_backward.cuh"
#include "mainloop_backward.cuh"
#include "strips_backward.cuh"

namespace tess {

/* By one thread. */
template <typename Shape>
__device__ __forceinline__ void init_backward_barriers(backward_memory<Shape> *m) {
    enum { WARPS = 8 /* of consumers */ };
    for (int i = 0; i < STEP_STAGES; i++) {
        mbarrier_init(&m->q_full[i], 1);
        mbarrier_init(&m->q_empty[i], WARPS);
    }
    for (int i = 0; i < D_O_STAGES; i++) {
        mbarrier_init(&m->d_o_full[i], 1);
        mbarrier_init(&m->d_o_empty[i], WARPS);
    }
    mbarrier_init(&m->k_full, 1);
    mbarrier_init(&m->v_full, 1);
    mbarrier_init(&m->k_empty, WARPS);
    mbarrier_init(&m->v_empty, WARPS);
    for (int i = 0; i < 2; i++) {
        mbarrier_init(&m->dq_full[i], WARPS / 2);
        mbarrier_init(&m->dq_empty[i], 1);
    }
    for (int i = 0; i < COLUMNS; i++) mbarrier_init(&m->column_full[i], 1);
    for (int i = 0; i < STEPS; i++) {
        mbarrier_init(&m->step_full[i], 1);
        mbarrier_init(&m->step_done[i], 1);
    }
    mbarrier_init_fence();
    fence_async_proxy();
}

/* WANTED: which gradients the run wants, TESS_SM90_DQ or TESS_SM90_DKV or both. */
template <typename T, typename Shape, unsigned WANTED>
__device__ __forceinline__ void columns(const tess_sm90_backward_maps *maps,
                                        const tess_sm90_backward_args *a) {
    extern __shared__ __align__(1024) uint8_t raw[];
    static_assert(sizeof(backward_memory<Shape>) <=
                      TESS_SM90_BACKWARD_SHARED(Shape::D, Shape::ROWS),
                  "the host asks for enough shared memory");
    backward_memory<Shape> *m = (backward_memory<Shape> *)raw;
    const int32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    if (threadIdx.x == 128) init_backward_barriers(m);
    __syncthreads();
    grid_dependency_wait();
    if (threadIdx.x < 128) {
        registers_decrease<24>();
        if (warp == 0) {
            scheduler<Shape> x;
            x.m = m;
            x.a = a;
            x.lane = lane;
            x.run();
        } else if (warp == 1) {
            row_loader<Shape> x = {m, maps, a, lane};
            x.run();
        } else if (warp == 2) {
            load_keys<Shape>(m, maps, a, lane);
        } else if (WANTED & TESS_SM90_DQ) {
            add_dq<Shape>(m, a, lane);
        }
    } else {
        registers_increase<240>();
        mainloop_backward<T, Shape, WANTED> x;
        x.m = m;
        x.a = a;
        x.warpgroup = warp / 4 - 1;
        x.warp = warp % 4;
        x.lane = lane;
        x.scale_log2 = a->scale * LOG2_E;
        x.run();
    }
}

} // namespace tess

#define KERNEL(stage, T, D, threads) \
    extern "C" __global__ void __launch_bounds__(threads, 1) tess_sm90_##stage##_##T##_##D
#define COLUMNS_KERNEL(stage, T, D, ROWS, wanted)                                        \
    KERNEL(stage, T, D, TESS_SM90_COLUMN_THREADS)                                        \
    (const __grid_constant__ tess_sm90_backward_maps maps,                               \
     const __grid_constant__ tess_sm90_backward_args args) {                             \
        tess::columns<tess::T##_t, tess::backward_shape<D, ROWS>, wanted>(&maps, &args); \
    }
#define INSTANCE(T, D, ROWS)                                                   \
    KERNEL(delta, T, D, TESS_SM90_DELTA_THREADS)                               \
    (const __grid_constant__ tess_sm90_backward_args args) {                   \
        tess::strip_delta<tess::T##_t, tess::backward_shape<D, ROWS>>(&args);  \
    }                                                                          \
    COLUMNS_KERNEL(columns, T, D, ROWS, TESS_SM90_DQ | TESS_SM90_DKV)          \
    COLUMNS_KERNEL(columns_dq, T, D, ROWS, TESS_SM90_DQ)                       \
    COLUMNS_KERNEL(columns_dkv, T, D, ROWS, TESS_SM90_DKV)                     \
    KERNEL(finish, T, D, TESS_SM90_FINISH_THREADS)                             \
    (const __grid_constant__ tess_sm90_backward_args args) {                   \
        tess::strip_finish<tess::T##_t, tess::backward_shape<D, ROWS>>(&args); \
    }
#define BF16(...) INSTANCE(bf16, __VA_ARGS__)
#define F16(...)  INSTANCE(f16, __VA_ARGS__)
TESS_SM90_BACKWARD_INSTANCES(BF16)
TESS_SM90_BACKWARD_INSTANCES(F16)
