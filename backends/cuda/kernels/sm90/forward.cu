/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forward attention for Hopper (sm_90a): tensor memory copies (TMA), warpgroup matrix products
 * (wgmma), persistent thread blocks of specialised warps. Each part of the kernel has its file:
 *
 *   schedule.cuh          warp 0: reads jobs, describes tiles, claims the next job
 *   load.cuh              warps 0, 1, 2: Q, K and V, each into a ring in shared memory that it
 *                         fills as far ahead as it is deep
 *   mainloop_forward.cuh  the other warpgroups, 64 query rows each: S = Q K^T, O += P V
 *   mask.cuh, softmax.cuh what these do with S in registers
 *   epilogue.cuh          O, LSE and partials; warp 3 writes O
 *
 * While a warpgroup is in its softmax, its product with the next keys is in flight. Warpgroups take
 * turns in issuing products, so that one multiplies while the other exponentiates.
 *
 * Keys come in stages of KEYS. A stage is made of pieces of up to 64 tokens, which need not be
 * neighbours, since a softmax allows any order of keys. Pieces that need a mask come first, after
 * empty ones that fill up the first stage. All later stages run without any test.
 *
 * Of two query blocks of 64 rows, the lower one does not keep the last keys of the upper one. With
 * a local window, the upper one does not keep the first keys of the lower one either. Then these
 * keys share the first stage: it is halved, and each warpgroup takes its own half.
 *
 * A stage is loaded with one copy for each 64 columns if its pieces are neighbours, or entries of
 * one list at the list's step. Any other stage is loaded piece by piece. With K and V in pages or
 * by slot, a piece lies in one page and one slot. A piece in an absent page is masked, and zeros
 * are loaded in its place.
 *
 * The technique of overlapping within and between warpgroups is that of FlashAttention-3 (arXiv
 * 2407.08608).
 */
#include "load.cuh"
#include "mainloop_forward.cuh"

namespace tess {

/* By one thread. */
template <typename Shape> __device__ __forceinline__ void init_barriers(shared_memory<Shape> *m) {
    mbarrier_init(&m->claim, 1);
    for (int i = 0; i < TILES; i++) {
        mbarrier_init(&m->tile_full[i], 1);
        mbarrier_init(&m->tile_empty[i], TILE_READERS);
    }
    for (int i = 0; i < Shape::Q_STAGES; i++) {
        mbarrier_init(&m->q_full[i], 1);
        mbarrier_init(&m->q_empty[i], 1);
        mbarrier_init(&m->o_full[i], Shape::CONSUMER_WARPS);
    }
    for (int i = 0; i < Shape::K_STAGES; i++) {
        mbarrier_init(&m->k_full[i], 1);
        mbarrier_init(&m->k_empty[i], Shape::CONSUMER_WARPS);
    }
    for (int i = 0; i < Shape::V_STAGES; i++) {
        mbarrier_init(&m->v_full[i], 1);
        mbarrier_init(&m->v_empty[i], Shape::CONSUMER_WARPS);
    }
    mbarrier_init_fence();
    fence_async_proxy();
}

/* Prefetches the tensor maps that a producer warp uses. By one thread of each. */
__device__ __forceinline__ void prefetch_maps(const tess_sm90_maps *maps, const tess_sm90_args *a,
                                              int32_t warp) {
    if (warp == 3) {
        prefetch_tensor_map(&maps->q);
        prefetch_tensor_map(&maps->o);
    } else {
        for (int map = 0; map < TESS_SM90_MAPS; map++)
            if (a->step[map]) prefetch_tensor_map(warp == 1 ? &maps->k[map] : &maps->v[map]);
    }
}

/* `first` holds the words of the thread block's first job, in warp 0; the launch has `jobs`. */
template <typename Shape>
__device__ __forceinline__ void produce(shared_memory<Shape> *m, const tess_sm90_maps *maps,
                                        const tess_sm90_args *a, int32_t warp, uint32_t jobs,
                                        const warp_words &first) {
    constexpr int BYTES = Shape::CHUNKS * Shape::KEYS * 128, K_STAGES = Shape::K_STAGES,
                  V_STAGES = Shape::V_STAGES;
    const tess_args *c = &a->common;
    if (warp == 0) {
        produce_tiles<Shape>(m, &maps->q, a, jobs, first);
    } else if (warp == 1) {
        const kv_ring<BYTES, K_STAGES> keys = {
            (uint8_t(*)[BYTES])m->k, m->k_full,  m->k_empty, maps->k,
            (const uint16_t *)a->k,  c->k_batch, c->k_token, c->k_head};
        kv_loader<Shape, true, K_STAGES>(m, keys, a).run();
    } else if (warp == 2) {
        const kv_ring<BYTES, V_STAGES> values = {
            (uint8_t(*)[BYTES])m->v, m->v_full,  m->v_empty, maps->v,
            (const uint16_t *)a->v,  c->v_batch, c->v_token, c->v_head};
        kv_loader<Shape, false, V_STAGES>(m, values, a).run();
    } else {
        write_o<Shape>(m, &maps->o, a);
    }
}

template <typename T, typename Shape>
__device__ __forceinline__ void consume(shared_memory<Shape> *m, const tess_sm90_args *a,
                                        int32_t warp) {
    mainloop_forward<T, Shape> x;
    x.m = m;
    x.a = a;
    x.at.warpgroup = warp / 4 - 1;
    x.at.warp = warp % 4;
    x.at.lane = threadIdx.x % 32;
    x.at.row = x.at.warpgroup * 64 + x.at.warp * 16 + x.at.lane / 4;
    x.scale = fabsf(a->common.scale);
    x.softmax.scale_log2 = x.scale * LOG2_E;
    x.run();
}

template <typename T, typename Shape>
__device__ __forceinline__ void forward(const tess_sm90_maps *maps, const tess_sm90_args *a) {
    extern __shared__ __align__(1024) uint8_t raw[];
    static_assert(sizeof(shared_memory<Shape>) <=
                      TESS_SM90_SHARED(Shape::D, Shape::KEYS, Shape::CONSUMERS, Shape::Q_STAGES,
                                       Shape::K_STAGES, Shape::V_STAGES),
                  "the host asks for enough shared memory");
    shared_memory<Shape> *m = (shared_memory<Shape> *)raw;
    const int32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    /* A kernel wrote the step's tables. Thread blocks that find no job in them leave at once. */
    const bool step = a->common.flags & TESS_ARGS_STEP;
    if (step) {
        grid_dependents_launch();
        grid_dependency_wait();
    }
    const uint32_t jobs = present_jobs((const uint32_t *)a->tables, &a->common);
    if (step && blockIdx.x >= jobs) return;
    warp_words first;
    if (warp == 0)
        first.read(a, blockIdx.x, jobs, threadIdx.x % 32); /* early: it takes a while */
    else if (warp < 4 && threadIdx.x % 32 == 0)
        prefetch_maps(maps, a, warp);
    if (threadIdx.x == 128) init_barriers(m);
    __syncthreads();
    /* Divides 65,536 registers anew, less those left over when the compiler divides them by all
     * threads. */
    if (threadIdx.x < 128) {
        registers_decrease<Shape::CONSUMERS == 2 ? 56 : 32>();
        produce(m, maps, a, warp, jobs, first);
    } else {
        registers_increase<Shape::CONSUMERS == 2 ? 224 : 160>();
        consume<T, Shape>(m, a, warp);
    }
}

} // namespace tess

#define KERNEL(NAME, PLACED, T, D, KEYS, GROUPS, Q_STAGES, K_STAGES, V_STAGES)                    \
    extern "C" __global__ void __launch_bounds__(TESS_SM90_THREADS(GROUPS), 1)                    \
        tess_##NAME##_##T##_##D(const __grid_constant__ tess_sm90_maps maps,                      \
                                const __grid_constant__ tess_sm90_args args) {                    \
        tess::forward<tess::T##_t,                                                                \
                      tess::shape<D, KEYS, GROUPS, Q_STAGES, K_STAGES, V_STAGES, PLACED>>(&maps,  \
                                                                                          &args); \
    }
#define INSTANCE(...)                \
    KERNEL(sm90, false, __VA_ARGS__) \
    KERNEL(sm90_placed, true, __VA_ARGS__)
#define BF16(...) INSTANCE(bf16, __VA_ARGS__)
#define F16(...)  INSTANCE(f16, __VA_ARGS__)
TESS_SM90_INSTANCES(BF16)
TESS_SM90_INSTANCES(F16)
