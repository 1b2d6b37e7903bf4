/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tessera inside an application that has its own CUDA context.
 *
 * A CUDA device is opened by id ("cuda:0"), on the primary context of the GPU, or around a context
 * of the application's:
 *
 *     tess_cuda_native native = {sizeof native, 0, context};
 *     tess_device_desc desc = {sizeof desc, 0, "cuda:0", &native};
 *
 * Context.   It must outlive the tess_device and belong to the GPU that `id` names (UNAVAILABLE
 *            otherwise). Every call pushes it on entry and pops it before it returns, so the
 *            calling thread's current context does not change.
 * Buffers.   TESS_BUFFER_POINTER: `handle` is a CUdeviceptr (or a pointer from cudaMalloc);
 *            `offset` bytes are added to it. Elements must be aligned to their size and to nothing
 *            more; rows whose addresses are multiples of 16 bytes are faster.
 * Streams.   TESS_STREAM_DEFAULT is a stream of the device's own, in which work runs in the order
 *            of the calls. It does not wait for the legacy default stream.
 *            TESS_STREAM_SUBMIT: `handle` is a CUstream (cudaStream_t) of the context; 0 is the
 *            legacy default stream. `extra` is NULL.
 *            TESS_STREAM_RECORD is UNSUPPORTED: capture a stream into a graph instead.
 * Graphs.    Give the stream under capture as SUBMIT. tess_run only launches kernels and fills 4
 *            bytes of the workspace, so any capture mode will do; device_seconds must be NULL. The
 *            graph refers to buffers, workspace and plan, which must outlive it.
 * Overlap.   From CUDA 12.3 on, kernels for sm_90 and later use programmatic dependent launch: they
 *            begin while earlier kernels of the stream end, and wait for these before they touch
 *            buffers, but for a step, which only tess_prepare writes. They let the next kernel
 *            begin as early. A kernel of the application's that is launched that way must wait
 *            (cudaGridDependencySynchronize) in its first thread block, and in all others before
 *            they touch what tess_run writes: ours wait for the last kernel alone. In a graph, some
 *            edges to and from such kernels are programmatic: who asks for edges asks for their
 *            data too (cuGraphGetEdges_v2).
 * Plans.     The first plan of a device loads its code. Where there is only PTX for the GPU, the
 *            driver compiles that, which takes seconds unless its own cache has it. A driver that
 *            is too old for all of the library's code makes tess_plan_create UNAVAILABLE. tess_run
 *            loads nothing.
 * Memory.    tess_alloc, tess_copy and tess_wait use the device's own stream and know nothing of
 *            the application's.
 * Errors.    CUDA's sticky errors (700, 702, 709, 710, 714 to 719 among them) are
 *            TESS_ERROR_DEVICE_LOST. CUDA's documentation asks for a new process after most of
 *            them. A new context may do; opening the device again tells.
 * Threads.   As tessera.h says. At most 8 calls with device_seconds at once; more are BUSY.
 */
#ifndef TESSERA_TESSERA_CUDA_H
#define TESSERA_TESSERA_CUDA_H

#include <tessera/tessera.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUctx_st; /* what a CUcontext points to */

typedef struct tess_cuda_native {
    uint32_t struct_size;
    uint32_t reserved; /* must be 0 */
    struct CUctx_st *context;
} tess_cuda_native;

#ifdef __cplusplus
}
#endif

#endif /* TESSERA_TESSERA_CUDA_H */
