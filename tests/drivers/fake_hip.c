/* SPDX-License-Identifier: Apache-2.0 */
/* A stand-in for libamdhip64.so.6: what the HIP backend calls. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"

#define EXPORT __attribute__((visibility("default")))

enum { INVALID_VALUE = 1, NOT_INITIALIZED = 3, INVALID_DEVICE = 101 };

#define CALL(name, parameters, ...)   \
    EXPORT int name parameters;       \
    int name parameters {             \
        current_device();             \
        int code = fake_begin(#name); \
        if (!code) { __VA_ARGS__; }   \
        return fake_end(code);        \
    }

/* A call that destroys: it does so even if it has to fail. */
#define DESTROY(name, parameters, action)    \
    EXPORT int name parameters;              \
    int name parameters {                    \
        current_device();                    \
        const int fail = fake_begin(#name);  \
        const int code = action;             \
        return fake_end(fail ? fail : code); \
    }

static int started;

EXPORT fake_get_fn fake_get;
const fake_exports *fake_get(void) { return &fake_table; }

static int devices(void) { return fake_setting("FAKE_DRIVER_DEVICES", FAKE_DEVICES); }

/* Every thread begins with device 0. */
static int current_device(void) {
    if (!fake_current()) fake_set_current(fake_primary(0));
    return fake_device_of(fake_current());
}

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

CALL(hipInit, (unsigned flags), {
    (void)flags;
    code = fake_setting("FAKE_DRIVER_INIT", 0);
    started = !code;
})
CALL(hipDriverGetVersion, (int *version), *version = 60443483)
CALL(hipGetDeviceCount, (int *count), {
    *count = devices();
    code = started ? 0 : NOT_INITIALIZED;
})
CALL(hipDeviceGet, (int *device, int index), {
    fake_note(" %d", index);
    *device = index;
    code = index < devices() ? 0 : INVALID_DEVICE;
})
CALL(hipDeviceGetName, (char *name, int size, int device), {
    fake_note(" %d", device);
    snprintf(name, (size_t)size, "Pretended GPU %d", device);
})
CALL(hipDeviceTotalMem, (size_t * bytes, int device), {
    fake_note(" %d", device);
    *bytes = (size_t)1 << 30;
})
CALL(hipDeviceGetAttribute, (int *value, int attribute, int device),
     code = attribute_of(value, attribute, device))
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

CALL(hipModuleLoadData, (void **module, const void *image), code = fake_module_load(module, image))
DESTROY(hipModuleUnload, (void *module), fake_module_unload(module))
CALL(hipModuleGetFunction, (void **function, void *module, const char *name),
     code = fake_module_function(function, module, name))
CALL(hipModuleLaunchKernel,
     (void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
      unsigned shared, void *stream, void **parameters, void **extra),
     {
         const unsigned grid[3] = {gx, gy, gz};
         const unsigned block[3] = {bx, by, bz};
         code =
             extra ? INVALID_VALUE : fake_launch(function, grid, block, shared, stream, parameters);
     })
CALL(hipStreamCreateWithFlags, (void **stream, unsigned flags), {
    fake_note(" %u", flags);
    code = fake_stream_create(stream);
})
DESTROY(hipStreamDestroy, (void *stream), fake_stream_destroy(stream))
CALL(hipStreamQuery, (void *stream), code = fake_stream_query(stream))
CALL(hipStreamSynchronize, (void *stream), code = fake_stream_wait(stream))
CALL(hipEventCreateWithFlags, (void **event, unsigned flags), {
    fake_note(" %u", flags);
    code = fake_event_create(event);
})
DESTROY(hipEventDestroy, (void *event), fake_event_destroy(event))
CALL(hipEventRecord, (void *event, void *stream), code = fake_event_record(event, stream))
CALL(hipEventSynchronize, (void *event), code = fake_event_wait(event))
CALL(hipEventElapsedTime, (float *milliseconds, void *first, void *last),
     code = fake_event_time(milliseconds, first, last))
CALL(hipMalloc, (uint64_t * pointer, size_t bytes), code = fake_alloc(pointer, bytes))
DESTROY(hipFree, (uint64_t pointer), fake_free(pointer))
CALL(hipMemcpyHtoDAsync, (uint64_t to, const void *from, size_t bytes, void *stream),
     code = fake_copy(to, 0, (uint64_t)(uintptr_t)from, 1, bytes, stream))
CALL(hipMemcpyDtoHAsync, (void *to, uint64_t from, size_t bytes, void *stream),
     code = fake_copy((uint64_t)(uintptr_t)to, 1, from, 0, bytes, stream))
CALL(hipMemcpyDtoDAsync, (uint64_t to, uint64_t from, size_t bytes, void *stream),
     code = fake_copy(to, 0, from, 0, bytes, stream))
CALL(hipMemsetD32Async, (uint64_t to, unsigned value, size_t words, void *stream),
     code = fake_fill(to, value, words, stream))
