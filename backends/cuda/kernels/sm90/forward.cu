/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forward attention for Hopper (sm_90a): tensor memory copies, warpgroup matrix products,
 * persistent workgroups of three warpgroups.
 *
 * The four warps of the first one produce (sm90_produce.cuh): one walks the jobs and copies Q, one
 * K, one V, each into a ring in shared memory that it fills as far ahead as it is deep, and one
 * writes results. The two others consume (sm90_consume.cuh), 64 query rows each: S = Q K^T from
 * shared memory, softmax in registers, O += P V with P in registers. The product of the next
 * keys is under way while a warpgroup is in its softmax, and the two take turns in issuing
 * products, so that one multiplies while the other exponentiates.
 *
 * Keys come in stages of KEYS, made of pieces of up to 64 tokens that need not be neighbours: the
 * order of keys does not matter to a softmax. Pieces that must be masked come first (preceded by
 * empty ones, so that stages are full), and all later stages run without any test.
 *
 * Of two query blocks of 64 rows, one does not keep the last keys of the other, and of a local
 * window not its first ones. Where both are so, the two meet in the first stage, of which each
 * warpgroup takes its half.
 *
 * A stage whose pieces are neighbours, or entries of one list at the list's step, is one copy for
 * 64 columns; of others each piece is.
 *
 * The technique of overlapping within and between warpgroups is that of FlashAttention-3 (arXiv
 * 2407.08608).
 */
#include "load.cuh"
#include "mainloop_forward.cuh"

namespace tess {

template <typename T, typename Shape>
__device__ __forceinline__ void forward(const tess_sm90_maps *maps, const tess_sm90_args *a) {
    constexpr int Q_SLOTS = Shape::Q_SLOTS, K_STAGES = Shape::K_STAGES, V_STAGES = Shape::V_STAGES,
                  BYTES = Shape::CHUNKS * Shape::KEYS * 128;
    extern __shared__ __align__(1024) uint8_t raw[];
    static_assert(sizeof(shared_memory<Shape>) <= TESS_SM90_SHARED(Shape::D, Shape::KEYS,
                                                                   Shape::CONSUMERS, Q_SLOTS,
                                                                   K_STAGES, V_STAGES),
                  "the host asks for enough shared memory");
    shared_memory<Shape> *m = (shared_memory<Shape> *)raw;
    const int32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    warp_words first;
    if (warp == 0) {
        first.read(a, blockIdx.x, threadIdx.x % 32); /* which takes a while */
    } else if (warp < 4 && threadIdx.x % 32 == 0) {
        if (warp == 3) {
            prefetch_tensor_map(&maps->q);
            prefetch_tensor_map(&maps->o);
        } else {
            for (int map = 0; map < TESS_SM90_MAPS; map++)
                if (a->step[map]) prefetch_tensor_map(warp == 1 ? &maps->k[map] : &maps->v[map]);
        }
    }
    if (threadIdx.x == 128) {
        mbarrier_init(&m->claim, 1);
        for (int i = 0; i < TILES; i++) {
            mbarrier_init(&m->tile_full[i], 1);
            mbarrier_init(&m->tile_empty[i], TILE_READERS);
        }
        for (int i = 0; i < Q_SLOTS; i++) {
            mbarrier_init(&m->q_full[i], 1);
            mbarrier_init(&m->q_empty[i], 1);
            mbarrier_init(&m->o_full[i], Shape::CONSUMER_WARPS);
        }
        for (int i = 0; i < K_STAGES; i++) {
            mbarrier_init(&m->k_full[i], 1);
            mbarrier_init(&m->k_empty[i], Shape::CONSUMER_WARPS);
        }
        for (int i = 0; i < V_STAGES; i++) {
            mbarrier_init(&m->v_full[i], 1);
            mbarrier_init(&m->v_empty[i], Shape::CONSUMER_WARPS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        fence_async_proxy();
    }
    __syncthreads();
    /* Of 65,536 registers, less what the compiler leaves over when it divides them by all
     * threads. */
    if (threadIdx.x < 128) {
        if (Shape::CONSUMERS == 2)
            asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
        else
            asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
        const tess_args *c = &a->common;
        if (warp == 0) {
            produce_tiles<Shape>(m, &maps->q, a, first);
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
            write_results<Shape>(m, &maps->o, a);
        }
    } else {
        if (Shape::CONSUMERS == 2)
            asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
        else
            asm volatile("setmaxnreg.inc.sync.aligned.u32 160;");
        mainloop_forward<T, Shape> x;
        x.m = m;
        x.a = a;
        x.at.warpgroup = warp / 4 - 1;
        x.at.warp = warp % 4;
        x.at.lane = threadIdx.x % 32;
        x.at.row = x.at.warpgroup * 64 + x.at.warp * 16 + x.at.lane / 4;
        x.scale = fabsf(a->common.scale);
        x.softmax.scale_log2 = x.scale * 1.44269504088896341f;
        x.run();
    }
}

} // namespace tess

#define INSTANCE(T, D, KEYS, GROUPS, Q_SLOTS, K_STAGES, V_STAGES)                              \
    extern "C" __global__ void __launch_bounds__(TESS_SM90_THREADS(GROUPS), 1)                 \
        tess_sm90_##T##_##D(const __grid_constant__ tess_sm90_maps maps,                       \
                            const __grid_constant__ tess_sm90_args args) {                     \
        tess::forward<tess::T##_t, tess::shape<D, KEYS, GROUPS, Q_SLOTS, K_STAGES, V_STAGES>>( \
            &maps, &args);                                                                     \
    }
#define BF16(...) INSTANCE(bf16, __VA_ARGS__)
#define F16(...)  INSTANCE(f16, __VA_ARGS__)
TESS_SM90_INSTANCES(BF16)
TESS_SM90_INSTANCES(F16)
