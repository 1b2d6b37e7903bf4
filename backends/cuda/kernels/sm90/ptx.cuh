/* SPDX-License-Identifier: Apache-2.0 */
/* Instructions of Hopper that CUDA C++ has no expression for, one function each: mbarriers, tensor
 * memory copies (TMA), named barriers, registers of a warpgroup. */
#ifndef TESS_CUDA_SM90_PTX_CUH
#define TESS_CUDA_SM90_PTX_CUH

#include "kernels/mma.cuh"

namespace tess {

__device__ __forceinline__ void mbarrier_init(uint64_t *b, uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(count));
}
/* Makes initialised mbarriers visible to asynchronous copies, too. */
__device__ __forceinline__ void mbarrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void mbarrier_arrive(uint64_t *b) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint64_t *b, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)),
                 "r"(bytes)
                 : "memory");
}
/* In a build for tests (TESS_DELAYS), one wait of eight begins up to 4 us late. This provokes
 * orders of warps and thread blocks that are rare otherwise. */
__device__ __forceinline__ void delay() {
#ifdef TESS_DELAYS
    uint32_t now;
    asm volatile("mov.u32 %0, %clock;" : "=r"(now));
    const uint32_t warp = blockIdx.x * 32 + threadIdx.x / 32,
                   random = (now ^ warp * 0x85157af5) * 0x9e3779b9;
    if (random >> 29 == 0) __nanosleep(random >> 8 & 4095);
#endif
}
__device__ __forceinline__ void mbarrier_wait(uint64_t *b, uint32_t parity) {
    delay();
    asm volatile("{\n.reg .pred done;\n"
                 "again:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n}" ::"r"(shared_address(b)),
                 "r"(parity)
                 : "memory");
}

__device__ __forceinline__ bool mbarrier_test(uint64_t *b, uint32_t parity) {
    uint32_t done;
    asm volatile("{\n.reg .pred done;\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, done;\n}"
                 : "=r"(done)
                 : "r"(shared_address(b)), "r"(parity)
                 : "memory");
    return done;
}

__device__ __forceinline__ void prefetch_tensor_map(const void *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* Loads a box, or several at the map's distance, to consecutive places in shared memory. Their
 * bytes complete the mbarrier `full`. */
__device__ __forceinline__ void tma_load(void *to, const void *map, uint64_t *full, int32_t element,
                                         int32_t token, int32_t head, int32_t batch) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(shared_address(to)),
                 "l"(map), "r"(shared_address(full)), "r"(element), "r"(token), "r"(0), "r"(head),
                 "r"(batch)
                 : "memory");
}

/* Prefetches into L2 what tma_load() would load. */
__device__ __forceinline__ void tma_prefetch(const void *map, int32_t element, int32_t token,
                                             int32_t head, int32_t batch) {
    asm volatile(
        "cp.async.bulk.prefetch.tensor.5d.L2.global [%0, {%1, %2, %3, %4, %5}];" ::"l"(map),
        "r"(element), "r"(token), "r"(0), "r"(head), "r"(batch)
        : "memory");
}

/* Stores a box; rows and elements outside of the tensor are left out. The thread that stores also
 * commits, and waits for its own stores: until they have read shared memory, or until they are
 * done. */
__device__ __forceinline__ void tma_store(const void *map, const void *from, int32_t element,
                                          int32_t token, int32_t head, int32_t batch) {
    asm volatile(
        "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::
            "l"(map),
        "r"(shared_address(from)), "r"(element), "r"(token), "r"(0), "r"(head), "r"(batch)
        : "memory");
}
__device__ __forceinline__ void tma_store_commit() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
__device__ __forceinline__ void tma_store_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ __forceinline__ void tma_store_wait() {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/* Adds floats in shared memory to floats in global memory, in the same order, both on 16-byte
 * boundaries. Commit it and wait for it as for stores. */
__device__ __forceinline__ void bulk_add(float *to, const float *from, uint32_t bytes) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(
                     __cvta_generic_to_global(to)),
                 "r"(shared_address(from)), "r"(bytes)
                 : "memory");
}

/* Orders plain accesses to any memory with those of asynchronous copies. */
__device__ __forceinline__ void fence_proxies() { asm volatile("fence.proxy.async;" ::: "memory"); }

__device__ __forceinline__ void fence_async_proxy() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* A word in global memory by which thread blocks tell each other that something is in memory. */
__device__ __forceinline__ uint32_t load_acquire(const uint32_t *word) {
    uint32_t now;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(word) : "memory");
    return now;
}
__device__ __forceinline__ void store_release(uint32_t *word, uint32_t value) {
    asm volatile("fence.acq_rel.gpu;\nst.relaxed.gpu.global.u32 [%0], %1;" ::"l"(word), "r"(value)
                 : "memory");
}

/* A named barrier of two warpgroups: one waits for the arrival of the other. */
template <int THREADS = 256> __device__ __forceinline__ void named_barrier_sync(int barrier) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(THREADS) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int barrier) {
    asm volatile("bar.arrive %0, 256;" ::"r"(barrier) : "memory");
}

/* Sets the registers of a thread from here on, for all warps of a warpgroup. */
template <int N> __device__ __forceinline__ void registers_decrease() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> __device__ __forceinline__ void registers_increase() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

/* Stores four 8 x 8 matrices of 16-bit elements. Each lane gives the address of a row of 16 bytes:
 * lanes 0 to 7 those of the first matrix, and so on. */
__device__ __forceinline__ void stmatrix(void *row, uint32_t a, uint32_t b, uint32_t c,
                                         uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     shared_address(row)),
                 "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

} // namespace tess

#endif // TESS_CUDA_SM90_PTX_CUH
