/* SPDX-License-Identifier: Apache-2.0 */
/* A stand-in for libcuda.so.1: what the CUDA backend calls, and what an application of its own
 * does. */
#include <stdlib.h>
#include <string.h>

#include "fake_calls.h"

enum { INVALID_CONTEXT = 201 };

static void before_call(void) {}

static int retained[FAKE_DEVICES];

int fake_can_run(const char *image, const char *arch) {
    const int own = fake_number(arch + 3), version = fake_number(strchr(image, '_') + 1);
    if (strncmp(image, "compute_", 8) == 0) return version <= own;
    if (image[strlen(image) - 1] == 'a') return version == own;
    return version / 10 == own / 10 && version <= own;
}

static int attribute_of(int *value, int attribute, int device) {
    fake_note(" %d of device %d", attribute, device);
    if (device < 0 || device >= devices()) return INVALID_DEVICE;
    const int version = fake_number(fake_arch(device, "sm_80") + 3);
    switch (attribute) {
    case 16: *value = FAKE_UNITS; return 0;
    case 17: *value = fake.time_limited; return 0;
    case 75: *value = version / 10; return 0;
    case 76: *value = version % 10; return 0;
    default: return INVALID_VALUE;
    }
}

DEVICE_CALLS(cuInit, cuDeviceGetCount, cuDeviceGet, cuDeviceGetName, cuDeviceTotalMem_v2,
             cuDeviceGetAttribute)
CALL(cuDriverGetVersion, (int *version), *version = fake_setting("FAKE_DRIVER_VERSION", 12040))

CALL(cuDevicePrimaryCtxRetain, (fake_object * *context, int device), {
    fake_note(" %d", device);
    *context = fake_primary(device);
    fake.live[FAKE_CONTEXT]++;
    retained[device]++;
})
static int release_primary(int device) {
    fake_note(" %d", device);
    if (device < 0 || device >= FAKE_DEVICES || retained[device] == 0)
        return fake_misuse(INVALID_CONTEXT, "a primary context is released too often");
    retained[device]--;
    fake.live[FAKE_CONTEXT]--;
    return 0;
}
DESTROY(cuDevicePrimaryCtxRelease_v2, (int device), release_primary(device))
EXPORT int cuCtxPushCurrent_v2(fake_object *context);
int cuCtxPushCurrent_v2(fake_object *context) {
    int code = fake_begin_on("cuCtxPushCurrent_v2", fake_device_of(context));
    fake_note(" %s", fake_name(context));
    if (!code) code = fake_push(context);
    return fake_end(code);
}
DESTROY(cuCtxPopCurrent_v2, (fake_object * *context), fake_pop(context))
CALL(cuCtxGetDevice, (int *device), {
    if (fake_current())
        *device = fake_device_of(fake_current());
    else
        code = INVALID_CONTEXT;
})

EXPORT int cuGetErrorName(int code, const char **name);
int cuGetErrorName(int code, const char **name) {
    static const struct {
        int code;
        const char *name;
    } names[] = {{1, "CUDA_ERROR_INVALID_VALUE"},
                 {2, "CUDA_ERROR_OUT_OF_MEMORY"},
                 {3, "CUDA_ERROR_NOT_INITIALIZED"},
                 {100, "CUDA_ERROR_NO_DEVICE"},
                 {200, "CUDA_ERROR_INVALID_IMAGE"},
                 {209, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
                 {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"},
                 {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
                 {719, "CUDA_ERROR_LAUNCH_FAILED"},
                 {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"}};
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        if (names[n].code != code) continue;
        *name = names[n].name;
        return 0;
    }
    *name = NULL;
    return INVALID_VALUE;
}

MODULE_CALLS(cuModuleLoadData, cuModuleUnload, cuModuleGetFunction, cuLaunchKernel)
CALL(cuFuncLoad, (void *function), (void)function)
CALL(cuFuncSetAttribute, (void *function, int attribute, int value), {
    (void)function;
    fake_note(" %d %d", attribute, value);
})

/* Refuses what the driver's documentation tells it to refuse. */
static int encode_map(void *map, unsigned rank, uint64_t address, const uint64_t *sizes,
                      const uint64_t *strides, const unsigned *box) {
    if ((uintptr_t)map % 64 || rank < 3 || rank > 5)
        return fake_misuse(INVALID_VALUE, "a tensor map of rank %u", rank);
    if (address % 16)
        return fake_misuse(INVALID_VALUE, "a tensor map of an address that is not aligned");
    for (unsigned n = 0; n < rank; n++) {
        if (!sizes[n] || sizes[n] > 1ULL << 32 || !box[n] || box[n] > 256)
            return fake_misuse(INVALID_VALUE, "a tensor map with size %u", n);
        if (n + 1 < rank && (strides[n] % 16 || strides[n] >= 1ULL << 40))
            return fake_misuse(INVALID_VALUE, "a tensor map with stride %u", n);
    }
    if (2 * box[0] > 128)
        return fake_misuse(INVALID_VALUE,
                           "a tensor map of boxes that are wider than what is swizzled");
    memset(map, 1, 128);
    return 0;
}
CALL(cuTensorMapEncodeTiled,
     (void *map, int type, unsigned rank, uint64_t address, const uint64_t *sizes,
      const uint64_t *strides, const unsigned *box, const unsigned *steps, int interleave,
      int swizzle, int promotion, int fill),
     {
         (void)steps;
         fake_note(" %d %d %d %d %d", type, interleave, swizzle, promotion, fill);
         code = encode_map(map, rank, address, sizes, strides, box);
     })

/* CUlaunchConfig with one CUlaunchAttribute, which lets the kernel begin while earlier ones end. */
typedef struct fake_config {
    unsigned grid[3], block[3], shared;
    void *stream;
    const struct {
        unsigned id, reserved;
        int value[16];
    } * attributes;
    unsigned n_attributes;
} fake_config;
/* Only these kernels wait for earlier ones by themselves, and only in code for sm_90 and later. */
static int waits(const void *function) {
    const char *name = fake_function_name(function), *arch = fake_function_arch(function);
    return (strncmp(name, "tess_sm90_", 10) == 0 || strncmp(name, "tess_decode", 11) == 0 ||
            strncmp(name, "tess_merge_", 11) == 0 || strncmp(name, "tess_sm80_f16_", 14) == 0 ||
            strncmp(name, "tess_sm80_bf16_", 15) == 0 ||
            strncmp(name, "tess_sm80_f32_", 14) == 0) &&
           strncmp(arch, "sm_", 3) == 0 && fake_number(arch + 3) >= 90;
}

CALL(cuLaunchKernelEx, (const fake_config *config, void *function, void **parameters, void **extra),
     {
         if (extra || config->n_attributes != 1 || config->attributes->id != 6 ||
             config->attributes->value[0] != 1)
             code = fake_misuse(INVALID_VALUE, "a launch with unknown attributes");
         else if (!waits(function))
             code = fake_misuse(INVALID_VALUE, "%s for %s is launched early, but does not wait",
                                fake_function_name(function), fake_function_arch(function));
         else
             code = fake_launch(function, config->grid, config->block, config->shared,
                                config->stream, parameters);
     })

STREAM_CALLS(cuStreamCreate, cuStreamDestroy_v2, cuStreamQuery, cuStreamSynchronize)
EVENT_CALLS(cuEventCreate, cuEventDestroy_v2, cuEventRecord, cuEventSynchronize, cuEventElapsedTime,
            cuEventQuery)
MEMORY_CALLS(cuMemAlloc_v2, cuMemFree_v2, cuMemcpyHtoDAsync_v2, cuMemcpyDtoHAsync_v2,
             cuMemcpyDtoDAsync_v2, cuMemsetD32Async)

/* ------------------------------------------------------------------ what only applications call */

CALL(cuCtxCreate_v2, (fake_object * *context, unsigned flags, int device), {
    (void)flags;
    *context = fake_context_create(device);
    code = fake_push(*context);
})
CALL(cuCtxDestroy_v2, (fake_object * context), {
    if (fake_current() == context) {
        fake_object *popped;
        fake_pop(&popped);
    }
    code = fake_context_destroy(context);
})
CALL(cuCtxGetCurrent, (fake_object * *context), *context = fake_current())
CALL(cuCtxSetCurrent, (fake_object * context), fake_set_current(context))
CALL(cuMemcpyHtoD_v2, (uint64_t to, const void *from, size_t bytes), {
    code = fake_copy(to, 0, (uint64_t)(uintptr_t)from, 1, bytes, NULL);
    if (!code) code = fake_stream_wait(NULL);
})
CALL(cuMemcpyDtoH_v2, (void *to, uint64_t from, size_t bytes), {
    code = fake_copy((uint64_t)(uintptr_t)to, 1, from, 0, bytes, NULL);
    if (!code) code = fake_stream_wait(NULL);
})
CALL(cuStreamBeginCapture_v2, (void *stream, int mode), {
    (void)mode;
    code = fake_capture_begin(stream);
})
CALL(cuStreamEndCapture, (void *stream, void **graph), code = fake_capture_end(stream, graph))
/* The executable graph is the graph itself, so destroying the template does nothing. */
CALL(cuGraphInstantiateWithFlags, (void **executable, void *graph, unsigned long long flags), {
    (void)flags;
    *executable = graph;
})
CALL(cuGraphLaunch, (void *executable, void *stream), code = fake_graph_launch(executable, stream))
CALL(cuGraphDestroy, (void *graph), (void)graph)
DESTROY(cuGraphExecDestroy, (void *executable), fake_graph_destroy(executable))
