/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forward attention for Hopper (sm_90a): tensor memory copies, warpgroup matrix products, persistent workgroups of three warpgroups.
 *
 * The four warps of the first one produce (sm90_produce.cuh): one walks the jobs and copies Q, one K, one V, each into a ring in workgroup memory that it fills as far ahead as it is
 * deep, and one writes results. The two others consume (sm90_consume.cuh), 64 query rows each: S = Q K^T from workgroup memory, softmax in registers, O += P V with P in registers. The
 * product of the next keys is under way while a warpgroup is in its softmax, and the two take turns in issuing products, so that one multiplies while the other exponentiates.
 *
 * Keys come in stages of KEYS, made of pieces of up to 64 tokens that need not be neighbours: the order of keys does not matter to a softmax. Pieces that must be masked come first
 * (preceded by empty ones, so that stages are full), and all later stages run without any test.
 *
 * The technique of overlapping within and between warpgroups is that of FlashAttention-3 (arXiv 2407.08608).
 */
#include "sm90_consume.cuh"
#include "sm90_produce.cuh"

namespace tess {

template <typename T, int D, int KEYS, int Q_SLOTS, int K_STAGES, int V_STAGES>
__device__ __forceinline__ void forward(const tess_tensor_map *q_map, const tess_tensor_map *k_map, const tess_tensor_map *v_map,
                                        const tess_tensor_map *o_map, const tess_sm90_args *a) {
    extern __shared__ __align__(1024) uint8_t raw[];
    typedef memory<D, KEYS, Q_SLOTS, K_STAGES, V_STAGES> shared;
    static_assert(sizeof(shared) <= TESS_SM90_SHARED(D, KEYS, Q_SLOTS, K_STAGES, V_STAGES), "the host asks for enough workgroup memory");
    shared *m = (shared *)raw;
    if (threadIdx.x == 0) {
        for (int i = 0; i < TILES; i++) {
            barrier_init(&m->tile_full[i], 1);
            barrier_init(&m->tile_empty[i], TILE_READERS);
        }
        for (int i = 0; i < Q_SLOTS; i++) {
            barrier_init(&m->q_full[i], 1);
            barrier_init(&m->q_empty[i], 1);
            barrier_init(&m->o_full[i], CONSUMER_WARPS);
        }
        for (int i = 0; i < K_STAGES; i++) {
            barrier_init(&m->k_full[i], 1);
            barrier_init(&m->k_empty[i], CONSUMER_WARPS);
        }
        for (int i = 0; i < V_STAGES; i++) {
            barrier_init(&m->v_full[i], 1);
            barrier_init(&m->v_empty[i], CONSUMER_WARPS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        fence_async_proxy();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
        const tess_args *c = &a->common;
        const int32_t kind = __shfl_sync(~0u, threadIdx.x / 32, 0);
        if (kind == 0) {
            produce_tiles<D, KEYS, Q_SLOTS, K_STAGES, V_STAGES>(m, q_map, a);
        } else if (kind == 1) {
            const ring<shared::CHUNKS * KEYS * 128, K_STAGES> keys = {(uint8_t(*)[shared::CHUNKS * KEYS * 128]) m->k,
                                                                      m->k_full,
                                                                      m->k_empty,
                                                                      k_map,
                                                                      (const uint16_t *)a->k,
                                                                      c->k_batch,
                                                                      c->k_token,
                                                                      c->k_head};
            produce_stages<true, KEYS, shared::CHUNKS>(m, keys, a);
        } else if (kind == 2) {
            const ring<shared::CHUNKS * KEYS * 128, V_STAGES> values = {(uint8_t(*)[shared::CHUNKS * KEYS * 128]) m->v,
                                                                        m->v_full,
                                                                        m->v_empty,
                                                                        v_map,
                                                                        (const uint16_t *)a->v,
                                                                        c->v_batch,
                                                                        c->v_token,
                                                                        c->v_head};
            produce_stages<false, KEYS, shared::CHUNKS>(m, values, a);
        } else {
            write_results<shared::CHUNKS, Q_SLOTS>(m, o_map, a);
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
        consumer<T, D, KEYS, Q_SLOTS, K_STAGES, V_STAGES> x;
        x.m = m;
        x.a = a;
        x.group = threadIdx.x / 128 - 1;
        x.warp = threadIdx.x / 32 % 4;
        x.lane = threadIdx.x % 32;
        x.row = x.group * 64 + x.warp * 16 + x.lane / 4;
        x.scale = fabsf(a->common.scale);
        x.slope = x.scale * 1.44269504088896341f;
        x.run();
    }
}

} // namespace tess

#define INSTANCE(T, D, KEYS, Q_SLOTS, K_STAGES, V_STAGES)                                                                                            \
    extern "C" __global__ void __launch_bounds__(384, 1) tess_sm90_##T##_##D(                                                                        \
        const __grid_constant__ tess_tensor_map q_map, const __grid_constant__ tess_tensor_map k_map, const __grid_constant__ tess_tensor_map v_map, \
        const __grid_constant__ tess_tensor_map o_map, const __grid_constant__ tess_sm90_args args) {                                                \
        tess::forward<tess::T##_t, D, KEYS, Q_SLOTS, K_STAGES, V_STAGES>(&q_map, &k_map, &v_map, &o_map, &args);                                     \
    }
#define BF16(...) INSTANCE(bf16, __VA_ARGS__)
#define F16(...)  INSTANCE(f16, __VA_ARGS__)
TESS_SM90_INSTANCES(BF16)
TESS_SM90_INSTANCES(F16)
