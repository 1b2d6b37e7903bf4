/* SPDX-License-Identifier: Apache-2.0 */
/* What the suite uses of the drivers of CUDA and HIP, which differ in little more than the names of
 * their functions: one table, opened at run time under either's names. */
#ifndef TESSERA_BENCH_LIMITS_DRIVER_H
#define TESSERA_BENCH_LIMITS_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "gpu.h"

/* X(name, of CUDA, of HIP, parameters): every call returns 0 or an error. A driver may lack those
 * without a name. Addresses are numbers, as in CUDA; HIP's pointers are passed alike. */
#define DRIVER_FUNCTIONS(X)                                                                  \
    X(init, "cuInit", "hipInit", (unsigned))                                                 \
    X(device_get, "cuDeviceGet", "hipDeviceGet", (int *, int))                               \
    X(device_uuid, "cuDeviceGetUuid", "hipDeviceGetUuid", (unsigned char *, int))            \
    X(device_pci, "cuDeviceGetPCIBusId", "hipDeviceGetPCIBusId", (char *, int, int))         \
    X(retain, "cuDevicePrimaryCtxRetain", NULL, (void **, int))                              \
    X(release, "cuDevicePrimaryCtxRelease_v2", NULL, (int))                                  \
    X(set_current, "cuCtxSetCurrent", NULL, (void *))                                        \
    X(set_device, NULL, "hipSetDevice", (int))                                               \
    X(alloc, "cuMemAlloc_v2", "hipMalloc", (uint64_t *, size_t))                             \
    X(free, "cuMemFree_v2", "hipFree", (uint64_t))                                           \
    X(to_device, "cuMemcpyHtoD_v2", "hipMemcpyHtoD", (uint64_t, const void *, size_t))       \
    X(to_host, "cuMemcpyDtoH_v2", "hipMemcpyDtoH", (void *, uint64_t, size_t))               \
    X(fill, "cuMemsetD32_v2", "hipMemsetD32", (uint64_t, unsigned, size_t))                  \
    X(module_load, "cuModuleLoadData", "hipModuleLoadData", (void **, const void *))         \
    X(module_unload, "cuModuleUnload", "hipModuleUnload", (void *))                          \
    X(get_function, "cuModuleGetFunction", "hipModuleGetFunction",                           \
      (void **, void *, const char *))                                                       \
    X(launch, "cuLaunchKernel", "hipModuleLaunchKernel",                                     \
      (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, \
       void **, void **))                                                                    \
    X(event_create, "cuEventCreate", "hipEventCreateWithFlags", (void **, unsigned))         \
    X(event_destroy, "cuEventDestroy_v2", "hipEventDestroy", (void *))                       \
    X(event_record, "cuEventRecord", "hipEventRecord", (void *, void *))                     \
    X(event_wait, "cuEventSynchronize", "hipEventSynchronize", (void *))                     \
    X(event_elapsed, "cuEventElapsedTime", "hipEventElapsedTime", (float *, void *, void *))

typedef struct driver_api {
    const char *name; /* for messages */
#define DRIVER_MEMBER(name, cuda, hip, parameters) int(*name) parameters;
    DRIVER_FUNCTIONS(DRIVER_MEMBER)
#undef DRIVER_MEMBER
} driver_api;

/* A GPU that is current on this thread, and two events. */
typedef struct driver_gpu {
    const driver_api *api;
    int device;
    void *context, *events[2];
} driver_gpu;
int driver_open(driver_gpu *g, const bench_device *d, char *why, size_t size);
void driver_close(driver_gpu *g);
/* Records the first event, calls `work` (0: done), records the second, and waits. Seconds between
 * both; NaN after a failure. */
double driver_seconds(driver_gpu *g, int (*work)(void *user), void *user);

#endif
