/* SPDX-License-Identifier: Apache-2.0 */
/* A stand-in for libamdhip64.so.6: what the HIP backend calls. */
#include <stdlib.h>
#include <string.h>

#include "fake_calls.h"

/* Every thread begins with device 0. */
static int current_device(void) {
    if (!fake_current()) fake_set_current(fake_primary(0));
    return fake_device_of(fake_current());
}

static void before_call(void) { current_device(); }

int fake_can_run(const char *image, const char *arch) { return strcmp(image, arch) == 0; }

static int attribute_of(int *value, int attribute, int device) {
    fake_note(" %d of device %d", attribute, device);
    if (device < 0 || device >= devices()) return INVALID_DEVICE;
    switch (attribute) {
    case 63: *value = FAKE_UNITS; return 0;
    case 18: *value = fake.time_limited; return 0;
    default: return INVALID_VALUE;
    }
}

DEVICE_CALLS(hipInit, hipGetDeviceCount, hipDeviceGet, hipDeviceGetName, hipDeviceTotalMem,
             hipDeviceGetAttribute)
CALL(hipDriverGetVersion, (int *version), *version = 60443483)
/* The name stands where HIP 6 has it, after a text that looks similar; features follow the name. */
CALL(hipGetDevicePropertiesR0600, (char *properties, int device), {
    fake_note(" %d", device);
    memset(properties, 0, 1472);
    snprintf(properties, 256, "Graphics of gfx");
    snprintf(properties + 1160, 256, "%s:sramecc+:xnack-", fake_arch(device, "gfx90a"));
})

EXPORT int hipGetDevice(int *device);
int hipGetDevice(int *device) {
    const int code = fake_begin_on("hipGetDevice", -1);
    *device = current_device();
    return fake_end(code);
}

EXPORT int hipSetDevice(int device);
int hipSetDevice(int device) {
    int code = fake_begin_on("hipSetDevice", device);
    fake_note(" %d", device);
    if (!code && (device < 0 || device >= devices())) code = INVALID_DEVICE;
    if (!code) fake_set_current(fake_primary(device));
    return fake_end(code);
}

EXPORT const char *hipGetErrorName(int code);
const char *hipGetErrorName(int code) {
    switch (code) {
    case 1: return "hipErrorInvalidValue";
    case 2: return "hipErrorOutOfMemory";
    case 3: return "hipErrorNotInitialized";
    case 100: return "hipErrorNoDevice";
    case 200: return "hipErrorInvalidImage";
    case 209: return "hipErrorNoBinaryForGpu";
    case 700: return "hipErrorIllegalAddress";
    case 719: return "hipErrorLaunchFailure";
    default: return "hipErrorUnknown";
    }
}

MODULE_CALLS(hipModuleLoadData, hipModuleUnload, hipModuleGetFunction, hipModuleLaunchKernel)
STREAM_CALLS(hipStreamCreateWithFlags, hipStreamDestroy, hipStreamQuery, hipStreamSynchronize)
EVENT_CALLS(hipEventCreateWithFlags, hipEventDestroy, hipEventRecord, hipEventSynchronize,
            hipEventElapsedTime, hipEventQuery)
MEMORY_CALLS(hipMalloc, hipFree, hipMemcpyHtoDAsync, hipMemcpyDtoHAsync, hipMemcpyDtoDAsync,
             hipMemsetD32Async)
