/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forward attention for Hopper (sm_90a): tensor memory copies, warpgroup matrix products,
 * persistent workgroups of three warpgroups.
 *
 * The four warps of the first one produce (sm90_produce.cuh): one walks the jobs and copies Q, one
 * K, one V, each into a ring in workgroup memory that it fills as far ahead as it is deep, and one
 * writes results. The two others consume (sm90_consume.cuh), 64 query rows each: S = Q K^T from
 * workgroup memory, softmax in registers, O += P V with P in registers. The product of the next
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
#include "sm90_consume.cuh"
#include "sm90_produce.cuh"

namespace tess {

template <typename T, typename X>
__device__ __forceinline__ void forward(const tess_sm90_maps *maps, const tess_sm90_args *a) {
    constexpr int Q_SLOTS = X::Q_SLOTS, K_STAGES = X::K_STAGES, V_STAGES = X::V_STAGES,
                  BYTES = X::CHUNKS * X::KEYS * 128;
    extern __shared__ __align__(1024) uint8_t raw[];
    static_assert(sizeof(memory<X>) <=
                      TESS_SM90_SHARED(X::D, X::KEYS, X::GROUPS, Q_SLOTS, K_STAGES, V_STAGES),
                  "the host asks for enough workgroup memory");
    memory<X> *m = (memory<X> *)raw;
    const int32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    description first;
    if (warp == 0) {
        first.read(a, blockIdx.x, threadIdx.x % 32); /* which takes a while */
    } else if (warp < 4 && threadIdx.x % 32 == 0) {
        if (warp == 3) {
            prefetch_map(&maps->q);
            prefetch_map(&maps->o);
        } else {
            for (int map = 0; map < TESS_SM90_MAPS; map++)
                if (a->step[map]) prefetch_map(warp == 1 ? &maps->k[map] : &maps->v[map]);
        }
    }
    if (threadIdx.x == 128) {
        barrier_init(&m->claim, 1);
        for (int i = 0; i < TILES; i++) {
            barrier_init(&m->tile_full[i], 1);
            barrier_init(&m->tile_empty[i], TILE_READERS);
        }
        for (int i = 0; i < Q_SLOTS; i++) {
            barrier_init(&m->q_full[i], 1);
            barrier_init(&m->q_empty[i], 1);
            barrier_init(&m->o_full[i], X::WARPS);
        }
        for (int i = 0; i < K_STAGES; i++) {
            barrier_init(&m->k_full[i], 1);
            barrier_init(&m->k_empty[i], X::WARPS);
        }
        for (int i = 0; i < V_STAGES; i++) {
            barrier_init(&m->v_full[i], 1);
            barrier_init(&m->v_empty[i], X::WARPS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        fence_async_proxy();
    }
    __syncthreads();
    /* Of 65,536 registers, less what the compiler leaves over when it divides them by all
     * threads. */
    if (threadIdx.x < 128) {
        if (X::GROUPS == 2)
            asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
        else
            asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
        const tess_args *c = &a->common;
        if (warp == 0) {
            produce_tiles<X>(m, &maps->q, a, first);
        } else if (warp == 1) {
            const ring<BYTES, K_STAGES> keys = {
                (uint8_t(*)[BYTES])m->k, m->k_full,  m->k_empty, maps->k,
                (const uint16_t *)a->k,  c->k_batch, c->k_token, c->k_head};
            produce_stages<X, true>(m, keys, a);
        } else if (warp == 2) {
            const ring<BYTES, V_STAGES> values = {
                (uint8_t(*)[BYTES])m->v, m->v_full,  m->v_empty, maps->v,
                (const uint16_t *)a->v,  c->v_batch, c->v_token, c->v_head};
            produce_stages<X, false>(m, values, a);
        } else {
            write_results<X>(m, &maps->o, a);
        }
    } else {
        if (X::GROUPS == 2)
            asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
        else
            asm volatile("setmaxnreg.inc.sync.aligned.u32 160;");
        consumer<T, X> x;
        x.m = m;
        x.a = a;
        x.group = warp / 4 - 1;
        x.warp = warp % 4;
        x.lane = threadIdx.x % 32;
        x.row = x.group * 64 + x.warp * 16 + x.lane / 4;
        x.scale = fabsf(a->common.scale);
        x.slope = x.scale * 1.44269504088896341f;
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
