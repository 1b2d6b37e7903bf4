/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA as a backend: what differs from HIP (backends/common/driver.h). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda.h"
#include "extra.h"
#include <tessera/tessera_cuda.h>

extern const tess_backend tess_cuda_backend;

static const char *const libraries[] = {"libcuda.so.1", "libcuda.so", NULL};

static const char *const symbols[] = {
    "cuInit", "cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName",
    "cuDeviceTotalMem_v2", "cuDeviceGetAttribute", "cuModuleLoadData", "cuModuleUnload",
    "cuModuleGetFunction", "cuLaunchKernel", "cuStreamCreate", "cuStreamDestroy_v2",
    "cuStreamQuery", "cuStreamSynchronize", "cuEventCreate", "cuEventDestroy_v2", "cuEventRecord",
    "cuEventSynchronize", "cuEventElapsedTime", "cuEventQuery", "cuMemAlloc_v2", "cuMemFree_v2",
    "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuMemcpyDtoDAsync_v2", "cuMemsetD32Async",
    /* CUDA's own, in the order of cuda_extra */
    "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2", "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2", "cuCtxGetDevice", "cuGetErrorName", "cuFuncSetAttribute",
    "?cuTensorMapEncodeTiled", "?cuFuncLoad", "?cuLaunchKernelEx", NULL};

enum cuda_extra {
    RETAIN,
    RELEASE,
    PUSH,
    POP,
    CONTEXT_DEVICE,
    ERROR_NAME,
    LOAD = CUDA_ENCODE_TENSOR_MAP + 1,
    LAUNCH_EX,
    EXTRAS
};
_Static_assert(sizeof symbols / sizeof *symbols == TESS_DRIVER_CALLS + (int)EXTRAS + 1 &&
                   (int)EXTRAS <= (int)TESS_DRIVER_EXTRAS,
               "every symbol has its place");

/* CUdevice_attribute */
enum {
    ATTRIBUTE_UNITS = 16,
    ATTRIBUTE_TIME_LIMIT = 17,
    ATTRIBUTE_CACHE = 38,
    ATTRIBUTE_MAJOR = 75,
    ATTRIBUTE_MINOR = 76
};

#define EXTRA(driver, n, type) ((type)(driver)->extra[n])

static int enter(tess_driver_device *d, void **before) {
    (void)before; /* the driver keeps a stack */
    return EXTRA(d->driver, PUSH, int (*)(void *))(d->context);
}

static void leave(tess_driver_device *d, void *before) {
    void *popped = before;
    EXTRA(d->driver, POP, int (*)(void **))(&popped);
}

static tess_status attach_own(tess_driver_device *d, const void *structure) {
    const tess_host *host = d->host;
    tess_cuda_native native;
    int device = -1;
    TESS_RETURN_IF_ERROR(tess_extra_read_native(host, structure, &native, sizeof native));
    if (!native.context)
        return host->fail(host, TESS_ERROR_INVALID, "native.context: must not be NULL");
    d->context = native.context;
    d->borrowed = 1;
    int code = enter(d, NULL);
    if (code != DRIVER_OK) return tess_driver_fail(d, "cuCtxPushCurrent", "native.context", code);
    code = EXTRA(d->driver, CONTEXT_DEVICE, int (*)(int *))(&device);
    leave(d, NULL);
    if (code != DRIVER_OK) return tess_driver_fail(d, "cuCtxGetDevice", "native.context", code);
    if (device != d->device)
        return host->fail(host, TESS_ERROR_UNAVAILABLE,
                          "native.context: belongs to another device than id names");
    return TESS_OK;
}

static tess_status attach(tess_driver_device *d, const void *native) {
    if (native) return attach_own(d, native);
    const int code = EXTRA(d->driver, RETAIN, int (*)(void **, int))(&d->context, d->device);
    return code == DRIVER_OK ? TESS_OK
                             : tess_driver_fail(d, "cuDevicePrimaryCtxRetain", "no context", code);
}

static void detach(tess_driver_device *d) {
    if (!d->borrowed) EXTRA(d->driver, RELEASE, int (*)(int))(d->device);
}

static int arch(const tess_driver *driver, int device, char *text, size_t size) {
    int major = 0, minor = 0;
    int code = driver->call.attribute(&major, ATTRIBUTE_MAJOR, device);
    if (code == DRIVER_OK) code = driver->call.attribute(&minor, ATTRIBUTE_MINOR, device);
    snprintf(text, size, "sm_%d%d", major, minor);
    return code;
}

static int number_after(const char *text, const char *prefix) {
    const size_t length = strlen(prefix);
    return strncmp(text, prefix, length) == 0 ? (int)strtol(text + length, NULL, 10) : -1;
}

/* Machine code runs on its own version and later ones of the same major number; PTX on its own and
 * all later ones, after the driver has compiled it. */
static int image(const tess_driver_image *images, const char *text, uint32_t refused) {
    const int own = number_after(text, "sm_");
    int best = -1, best_version = -1, best_is_code = 0;
    for (int n = 0; images[n].data; n++) {
        const int code = number_after(images[n].arch, "sm_"),
                  version = code >= 0 ? code : number_after(images[n].arch, "compute_"),
                  is_code = code >= 0;
        if ((n < 32 && (refused >> n & 1u)) || version > own ||
            (is_code && version / 10 != own / 10))
            continue;
        if (is_code < best_is_code || (is_code == best_is_code && version <= best_version))
            continue;
        best = n;
        best_version = version;
        best_is_code = is_code;
    }
    return best;
}

static const char *error_name(const tess_driver *driver, int code) {
    const char *name = NULL;
    if (driver->extra[ERROR_NAME])
        EXTRA(driver, ERROR_NAME, int (*)(int, const char **))(code, &name);
    return name;
}

static void version(int number, char *text, size_t size) {
    snprintf(text, size, "CUDA %d.%d", number / 1000, number % 1000 / 10);
}

/* Since 12.2 drivers load code at a function's first launch, which a stream that is being captured
 * does not allow everywhere. Older ones have no such call. */
static int load_function(const tess_driver *driver, void *function) {
    return driver->extra[LOAD] ? EXTRA(driver, LOAD, int (*)(void *))(function) : DRIVER_OK;
}

/* CUlaunchAttribute and CUlaunchConfig */
typedef struct launch_attribute {
    unsigned id, reserved;
    int value[16];
} launch_attribute;
typedef struct launch_config {
    unsigned grid[3], block[3], shared_bytes;
    void *stream;
    launch_attribute *attributes;
    unsigned n_attributes;
} launch_config;

/* Code for sm_90 and later waits for earlier kernels by itself. Streams that are being captured
 * take such launches since 12.3. */
static int is_early(const tess_driver *driver, const char *arch) {
    return driver->extra[LAUNCH_EX] && driver->number >= 12030 && number_after(arch, "sm_") >= 90;
}

static int start(const tess_driver_device *d, void *function, unsigned groups, unsigned threads,
                 unsigned shared_bytes, void *stream, void **parameters) {
    launch_attribute early = {.id = 6 /* CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION */,
                              .value = {1}};
    const launch_config config = {{groups, 1, 1}, {threads, 1, 1}, shared_bytes, stream, &early, 1};
    return EXTRA(d->driver, LAUNCH_EX, int (*)(const launch_config *, void *, void **, void **))(
        &config, function, parameters, NULL);
}

static const tess_driver_row *const kernels[] = {&tess_cuda_decode,
                                                 &tess_cuda_sm90,
                                                 &tess_cuda_sm80,
                                                 &tess_cuda_tf32,
                                                 &tess_driver_portable,
                                                 &tess_cuda_sm90_backward,
                                                 &tess_cuda_sm80_backward,
                                                 &tess_driver_backward,
                                                 &tess_driver_append,
                                                 &tess_driver_copy_pages,
                                                 &tess_driver_merge_parts,
                                                 &tess_driver_prepare,
                                                 NULL};

static const tess_driver_vendor vendor = {
    TESS_DRIVER_VENDOR_FIELDS(cuda),
    .build_hint = "neither nvcc nor clang was found when it was built",
    .enter_call = "cuCtxPushCurrent",
    .arch_call = "cuDeviceGetAttribute",
    .is_early = is_early,
    .start = start,
    .load = load_function,
};

TESS_DRIVER_BACKEND(tess_cuda_backend, "cuda", vendor, tess_cuda_tune);
