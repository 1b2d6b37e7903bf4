/* SPDX-License-Identifier: Apache-2.0 */
/* HIP as a backend: what differs from CUDA (backends/common/driver.h). */
#include <stdio.h>
#include <string.h>

#include "driver.h"

extern const tess_backend tess_hip_backend;
extern const tess_driver_image tess_hip_images[];

static const char *const libraries[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5",
                                        "libamdhip64.so", NULL};

static const char *const symbols[] = {
    "hipInit", "hipDriverGetVersion", "hipGetDeviceCount", "hipDeviceGet", "hipDeviceGetName",
    "hipDeviceTotalMem", "hipDeviceGetAttribute", "hipModuleLoadData", "hipModuleUnload",
    "hipModuleGetFunction", "hipModuleLaunchKernel", "hipStreamCreateWithFlags", "hipStreamDestroy",
    "hipStreamQuery", "hipStreamSynchronize", "hipEventCreateWithFlags", "hipEventDestroy",
    "hipEventRecord", "hipEventSynchronize", "hipEventElapsedTime", "hipEventQuery", "hipMalloc",
    "hipFree", "hipMemcpyHtoDAsync", "hipMemcpyDtoHAsync", "hipMemcpyDtoDAsync",
    "hipMemsetD32Async",
    /* HIP's own, in the order of hip_extra */
    "hipSetDevice", "hipGetDevice", "hipGetErrorName", "?hipGetDevicePropertiesR0600",
    "?hipGetDeviceProperties", NULL};

enum hip_extra { SET_DEVICE, GET_DEVICE, ERROR_NAME, PROPERTIES, OLD_PROPERTIES, EXTRAS };
_Static_assert(sizeof symbols / sizeof *symbols == TESS_DRIVER_CALLS + (int)EXTRAS + 1 &&
                   (int)EXTRAS <= (int)TESS_DRIVER_EXTRAS,
               "every symbol has its place");

/* hipDeviceAttribute_t */
enum { ATTRIBUTE_TIME_LIMIT = 18, ATTRIBUTE_CACHE = 19, ATTRIBUTE_UNITS = 63 };

#define EXTRA(driver, n, type) ((type)(driver)->extra[n])

/* A thread has a current device, not a stack of contexts. */
static int enter(tess_driver_device *d, void **before) {
    int current = 0;
    const int code = EXTRA(d->driver, GET_DEVICE, int (*)(int *))(&current);
    if (code != DRIVER_OK) return code;
    *before = (void *)(intptr_t)current;
    return EXTRA(d->driver, SET_DEVICE, int (*)(int))(d->device);
}

static void leave(tess_driver_device *d, void *before) {
    EXTRA(d->driver, SET_DEVICE, int (*)(int))((int)(intptr_t)before);
}

static tess_status attach(tess_driver_device *d, const void *native) {
    if (native)
        return d->host->fail(
            d->host, TESS_ERROR_INVALID,
            "native: HIP has one context a device, so there is nothing to wrap; it must be NULL");
    return TESS_OK;
}

static void detach(tess_driver_device *d) { (void)d; }

/* The instruction set's name lies in a structure whose layout differs between HIP versions, so
 * search for "gfx" and what may follow it. */
static int arch(const tess_driver *driver, int device, char *text, size_t size) {
    static const char allowed[] = "0123456789abcdefghijklmnopqrstuvwxyz";
    enum { PROPERTIES_BYTES = 16384 }; /* ten times what any version has */
    char properties[PROPERTIES_BYTES];
    int (*const get)(void *, int) = EXTRA(
        driver, driver->extra[PROPERTIES] ? PROPERTIES : OLD_PROPERTIES, int (*)(void *, int));
    snprintf(text, size, "unknown");
    if (!get) return DRIVER_OK;
    memset(properties, 0, sizeof properties);
    const int code = get(properties, device);
    if (code != DRIVER_OK) return code;
    for (size_t n = 0; n + 32 < sizeof properties; n++) {
        if (memcmp(properties + n, "gfx", 3) != 0) continue;
        const size_t length = 3 + strspn(properties + n + 3, allowed);
        if (length < 6 || length > 16) continue;
        snprintf(text, size, "%.*s", (int)length, properties + n);
        break;
    }
    return DRIVER_OK;
}

static int image(const tess_driver_image *images, const char *text, uint32_t refused) {
    for (int n = 0; images[n].data; n++)
        if (!(n < 32 && (refused >> n & 1u)) && strcmp(images[n].arch, text) == 0) return n;
    return -1;
}

static const char *error_name(const tess_driver *driver, int code) {
    return driver->extra[ERROR_NAME] ? EXTRA(driver, ERROR_NAME, const char *(*)(int))(code) : NULL;
}

/* HIP_VERSION since HIP 5; before, a build number. */
static void version(int number, char *text, size_t size) {
    if (number >= 10000000)
        snprintf(text, size, "HIP %d.%d.%d", number / 10000000, number / 100000 % 100,
                 number % 100000);
    else
        snprintf(text, size, "HIP build %d", number);
}

static const tess_driver_row *const kernels[] = {&tess_driver_portable,
                                                 &tess_driver_backward,
                                                 &tess_driver_append,
                                                 &tess_driver_copy_pages,
                                                 &tess_driver_merge_parts,
                                                 &tess_driver_prepare,
                                                 NULL};

static const tess_driver_vendor vendor = {
    TESS_DRIVER_VENDOR_FIELDS(hip),
    .build_hint = "clang 17 or newer and lld were not found when it was built",
    .enter_call = "hipSetDevice",
    .arch_call = "hipGetDeviceProperties",
};

TESS_DRIVER_BACKEND(tess_hip_backend, "hip", vendor, NULL);
