/* SPDX-License-Identifier: Apache-2.0 */
/* What the suite uses of CUDA's driver, opened at run time. */
#ifndef TESSERA_BENCH_LIMITS_CUDA_H
#define TESSERA_BENCH_LIMITS_CUDA_H

#include <stddef.h>
#include <stdint.h>

/* X(name, symbol, parameters): every call returns 0 or an error. */
#define CUDA_FUNCTIONS(X)                                                                    \
    X(init, "cuInit", (unsigned))                                                            \
    X(device_get, "cuDeviceGet", (int *, int))                                               \
    X(device_uuid, "cuDeviceGetUuid", (unsigned char *, int))                                \
    X(device_pci, "cuDeviceGetPCIBusId", (char *, int, int))                                 \
    X(device_attribute, "cuDeviceGetAttribute", (int *, int, int))                           \
    X(retain, "cuDevicePrimaryCtxRetain", (void **, int))                                    \
    X(release, "cuDevicePrimaryCtxRelease_v2", (int))                                        \
    X(set_current, "cuCtxSetCurrent", (void *))                                              \
    X(alloc, "cuMemAlloc_v2", (uint64_t *, size_t))                                          \
    X(free, "cuMemFree_v2", (uint64_t))                                                      \
    X(to_device, "cuMemcpyHtoD_v2", (uint64_t, const void *, size_t))                        \
    X(to_host, "cuMemcpyDtoH_v2", (void *, uint64_t, size_t))                                \
    X(fill, "cuMemsetD32_v2", (uint64_t, unsigned, size_t))                                  \
    X(module_load, "cuModuleLoadData", (void **, const void *))                              \
    X(module_unload, "cuModuleUnload", (void *))                                             \
    X(get_function, "cuModuleGetFunction", (void **, void *, const char *))                  \
    X(launch, "cuLaunchKernel",                                                              \
      (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, \
       void **, void **))                                                                    \
    X(event_create, "cuEventCreate", (void **, unsigned))                                    \
    X(event_destroy, "cuEventDestroy_v2", (void *))                                          \
    X(event_record, "cuEventRecord", (void *, void *))                                       \
    X(event_wait, "cuEventSynchronize", (void *))                                            \
    X(event_elapsed, "cuEventElapsedTime", (float *, void *, void *))

typedef struct cuda_api {
#define CUDA_MEMBER(name, symbol, parameters) int(*name) parameters;
    CUDA_FUNCTIONS(CUDA_MEMBER)
#undef CUDA_MEMBER
} cuda_api;

/* The driver, made ready; NULL with a reason. */
const cuda_api *cuda_driver(char *why, size_t size);

/* A GPU with its primary context current on this thread, and two events. */
typedef struct cuda_gpu {
    const cuda_api *api;
    int device;
    void *context, *events[2];
    int capability; /* 90: 9.0 */
    int multiprocessors;
} cuda_gpu;
int cuda_open(cuda_gpu *g, int ordinal, char *why, size_t size);
void cuda_close(cuda_gpu *g);
/* Seconds between both events, which were recorded; NaN after a failure. */
double cuda_elapsed(cuda_gpu *g);

#endif
