/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA's driver API for programs that are applications of their own: opened as Tessera opens it, so
 * that they build without CUDA's headers. */
#ifndef TESSERA_TESTS_INTEROP_CUDA_DRIVER_H
#define TESSERA_TESTS_INTEROP_CUDA_DRIVER_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/testlib.h"

/* X(name, symbol, parameters) */
#define DRIVER(X)                                                                              \
    X(init, "cuInit", (unsigned))                                                              \
    X(count, "cuDeviceGetCount", (int *))                                                      \
    X(get, "cuDeviceGet", (int *, int))                                                        \
    X(context_create, "cuCtxCreate_v2", (struct CUctx_st **, unsigned, int))                   \
    X(context_destroy, "cuCtxDestroy_v2", (struct CUctx_st *))                                 \
    X(context_current, "cuCtxGetCurrent", (struct CUctx_st **))                                \
    X(push, "cuCtxPushCurrent_v2", (struct CUctx_st *))                                        \
    X(pop, "cuCtxPopCurrent_v2", (struct CUctx_st **))                                         \
    X(alloc, "cuMemAlloc_v2", (uint64_t *, size_t))                                            \
    X(free, "cuMemFree_v2", (uint64_t))                                                        \
    X(to_device, "cuMemcpyHtoDAsync_v2", (uint64_t, const void *, size_t, void *))             \
    X(to_host, "cuMemcpyDtoHAsync_v2", (void *, uint64_t, size_t, void *))                     \
    X(stream_create, "cuStreamCreate", (void **, unsigned))                                    \
    X(stream_destroy, "cuStreamDestroy_v2", (void *))                                          \
    X(stream_wait, "cuStreamSynchronize", (void *))                                            \
    X(event_create, "cuEventCreate", (void **, unsigned))                                      \
    X(event_destroy, "cuEventDestroy_v2", (void *))                                            \
    X(event_record, "cuEventRecord", (void *, void *))                                         \
    X(event_wait, "cuEventSynchronize", (void *))                                              \
    X(capture_begin, "cuStreamBeginCapture_v2", (void *, int))                                 \
    X(capture_end, "cuStreamEndCapture", (void *, void **))                                    \
    X(graph_instantiate, "cuGraphInstantiateWithFlags", (void **, void *, unsigned long long)) \
    X(graph_launch, "cuGraphLaunch", (void *, void *))                                         \
    X(graph_exec_destroy, "cuGraphExecDestroy", (void *))                                      \
    X(graph_destroy, "cuGraphDestroy", (void *))

static struct {
#define MEMBER(name, symbol, parameters) int(*name) parameters;
    DRIVER(MEMBER)
} cu;

#define CU(call)                                                               \
    do {                                                                       \
        const int cu_code = (call);                                            \
        if (cu_code != 0) fail_msg("%s gave CUDA's error %d", #call, cu_code); \
    } while (0)

enum { NON_BLOCKING = 1, CAPTURE_GLOBAL = 0 };

/* Puts the function's address into *to. 0: there is none, and a line says so. */
static inline int find_symbol(void *library, const char *symbol, void *to) {
    void *address = dlsym(library, symbol);
    memcpy(to, &address, sizeof address);
    if (!address) printf("skipped: libcuda.so.1 has no %s\n", symbol);
    return address != NULL;
}

/* How many GPUs there are; prints why there is none. */
static inline int find_driver(void) {
    int count = 0, code = 0;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        printf("skipped: %s\n", dlerror());
        return 0;
    }
#define FIND(name, symbol, parameters) \
    if (!find_symbol(library, symbol, &cu.name)) return 0;
    DRIVER(FIND)
    code = cu.init(0);
    if (code == 0) code = cu.count(&count);
    if (code != 0 || count == 0) printf("skipped: there is no CUDA device (error %d)\n", code);
    return code == 0 ? count : 0;
}

/* What a program returns that has no driver: an error where TESSERA_REQUIRE asks for one. */
static inline int left_out(void) {
    const char *require = getenv("TESSERA_REQUIRE");
    return require && strstr(require, "cuda") ? 1 : 77;
}

#endif
