/* SPDX-License-Identifier: Apache-2.0 */
/* Instructions of Hopper that the language has no words for: barriers, tensor memory copies,
 * warpgroup products, and their kin. */
#ifndef TESS_CUDA_SM90_PTX_CUH
#define TESS_CUDA_SM90_PTX_CUH

#include "mma.cuh"

namespace tess {

/*
 * The host launches the kernel before earlier ones in the stream have ended
 * (tess_driver_vendor.start). The first thread of each role that touches memory of the application
 * waits for them; until then only the plan's tables are read, which are older. The next kernel in
 * the stream may begin as early, once everything before this one has ended.
 */
__device__ __forceinline__ void dependencies_wait() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}
__device__ __forceinline__ void dependents_begin() {
    asm volatile("griddepcontrol.launch_dependents;");
}

__device__ __forceinline__ void barrier_init(uint64_t *b, uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(count));
}
__device__ __forceinline__ void barrier_arrive(uint64_t *b) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
__device__ __forceinline__ void barrier_expect(uint64_t *b, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)),
                 "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void barrier_wait(uint64_t *b, uint32_t parity) {
    asm volatile("{\n.reg .pred done;\n"
                 "again:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n}" ::"r"(shared_address(b)),
                 "r"(parity)
                 : "memory");
}

__device__ __forceinline__ bool barrier_passed(uint64_t *b, uint32_t parity) {
    uint32_t done;
    asm volatile("{\n.reg .pred done;\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, done;\n}"
                 : "=r"(done)
                 : "r"(shared_address(b)), "r"(parity)
                 : "memory");
    return done;
}

__device__ __forceinline__ void prefetch_map(const void *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* Copies a box, or several at the map's distance from each other, which follow each other in
 * workgroup memory. */
__device__ __forceinline__ void copy_boxes(void *to, const void *map, uint64_t *full,
                                           int32_t element, int32_t token, int32_t head,
                                           int32_t batch) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(shared_address(to)),
                 "l"(map), "r"(shared_address(full)), "r"(element), "r"(token), "r"(0), "r"(head),
                 "r"(batch)
                 : "memory");
}

/* Brings what copy_boxes() would copy into the L2 cache. */
__device__ __forceinline__ void prefetch_boxes(const void *map, int32_t element, int32_t token,
                                               int32_t head, int32_t batch) {
    asm volatile(
        "cp.async.bulk.prefetch.tensor.5d.L2.global [%0, {%1, %2, %3, %4, %5}];" ::"l"(map),
        "r"(element), "r"(token), "r"(0), "r"(head), "r"(batch)
        : "memory");
}

/* The other way, to where the tensor has rows and elements. By one thread, which waits for its own
 * copies: until they have read workgroup memory, or until they are done. */
__device__ __forceinline__ void copy_boxes_out(const void *map, const void *from, int32_t element,
                                               int32_t token, int32_t head, int32_t batch) {
    asm volatile(
        "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::
            "l"(map),
        "r"(shared_address(from)), "r"(element), "r"(token), "r"(0), "r"(head), "r"(batch)
        : "memory");
}
__device__ __forceinline__ void copies_out_commit() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
__device__ __forceinline__ void copies_out_read() {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ __forceinline__ void copies_out_done() {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

__device__ __forceinline__ void fence_async_proxy() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void products_begin() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void products_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N> __device__ __forceinline__ void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* Products write registers behind the compiler's back: nothing that reads them may move above the
 * wait. */
template <int N> __device__ __forceinline__ void keep_below(float (&r)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(r[i])::"memory");
}

__device__ __forceinline__ void turn_wait(int turn) {
    asm volatile("bar.sync %0, 256;" ::"r"(turn) : "memory");
}
__device__ __forceinline__ void turn_give(int turn) {
    asm volatile("bar.arrive %0, 256;" ::"r"(turn) : "memory");
}

/* Four 8 x 8 matrices of 16-bit elements, a row of 16 bytes at each lane's address: lanes 0 to 7
 * those of the first matrix, and so on. */
__device__ __forceinline__ void store_matrices(void *row, uint32_t a, uint32_t b, uint32_t c,
                                               uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     shared_address(row)),
                 "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}
/* A matrix in workgroup memory with rows of 128 bytes, swizzled: the low word of its description.
 * K-major: `leading` is not used. N-major: bytes from one 64 columns to the next. Matrices that
 * begin `bytes` behind it have bytes / 16 more. */
__device__ __forceinline__ uint32_t matrix(const void *at, uint32_t leading) {
    return (shared_address(at) & 0x3ffff) >> 4 | leading >> 4 << 16;
}
__device__ __forceinline__ uint64_t description_of(uint32_t matrix) {
    return (uint64_t)(1024 >> 4 /* from 8 rows to the next 8 */ |
                      1u << 30 /* swizzled over 128 bytes */)
               << 32 |
           matrix;
}

} // namespace tess

#endif // TESS_CUDA_SM90_PTX_CUH
