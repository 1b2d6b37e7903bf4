/* SPDX-License-Identifier: Apache-2.0 */
/* What the suite uses of HIP, opened at run time. */
#ifndef TESSERA_BENCH_LIMITS_HIP_H
#define TESSERA_BENCH_LIMITS_HIP_H

#include <stddef.h>
#include <stdint.h>

/* X(name, symbol, parameters): every call returns 0 or an error. */
#define HIP_FUNCTIONS(X)                                                                     \
    X(init, "hipInit", (unsigned))                                                           \
    X(set_device, "hipSetDevice", (int))                                                     \
    X(device_uuid, "hipDeviceGetUuid", (unsigned char *, int))                               \
    X(device_pci, "hipDeviceGetPCIBusId", (char *, int, int))                                \
    X(alloc, "hipMalloc", (void **, size_t))                                                 \
    X(free, "hipFree", (void *))                                                             \
    X(copy, "hipMemcpy", (void *, const void *, size_t, int))                                \
    X(fill, "hipMemset", (void *, int, size_t))                                              \
    X(module_load, "hipModuleLoadData", (void **, const void *))                             \
    X(module_unload, "hipModuleUnload", (void *))                                            \
    X(get_function, "hipModuleGetFunction", (void **, void *, const char *))                 \
    X(launch, "hipModuleLaunchKernel",                                                       \
      (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, \
       void **, void **))                                                                    \
    X(event_create, "hipEventCreate", (void **))                                             \
    X(event_destroy, "hipEventDestroy", (void *))                                            \
    X(event_record, "hipEventRecord", (void *, void *))                                      \
    X(event_wait, "hipEventSynchronize", (void *))                                           \
    X(event_elapsed, "hipEventElapsedTime", (float *, void *, void *))

enum { HIP_TO_DEVICE = 1, HIP_TO_HOST = 2 };

typedef struct hip_api {
#define HIP_MEMBER(name, symbol, parameters) int(*name) parameters;
    HIP_FUNCTIONS(HIP_MEMBER)
#undef HIP_MEMBER
} hip_api;

/* A GPU that is current on this thread, and two events. */
typedef struct hip_gpu {
    const hip_api *api;
    void *events[2];
} hip_gpu;
int hip_open(hip_gpu *g, int ordinal, char *why, size_t size);
void hip_close(hip_gpu *g);
/* Seconds between both events, which were recorded; NaN after a failure. */
double hip_elapsed(hip_gpu *g);

#endif
