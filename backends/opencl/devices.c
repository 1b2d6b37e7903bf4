/* SPDX-License-Identifier: Apache-2.0 */
/* Finding the loader of OpenCL, its platforms and their devices. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "library.h"
#include "opencl.h"

enum { MOST_PLATFORMS = 32, MOST_DEVICES = 128, MOST_WHY = 400 };

/* ------------------------------------------------------------------ loader */

const cl_api *tess_opencl_api(char *why, size_t size) {
    static const char *const libraries[] = {"libOpenCL.so.1", "libOpenCL.so", NULL};
    static const char *const names[] = {
#define NAME(result, name, parameters) #name,
        TESS_OPENCL_FUNCTIONS(NAME)
#undef NAME
            NULL};
    enum { COUNT = sizeof names / sizeof *names - 1 };
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static cl_api api;
    static int loaded;
    _Static_assert(sizeof api == COUNT * sizeof(void (*)(void)),
                   "cl_api holds one pointer for each name");
    pthread_mutex_lock(&lock);
    if (!loaded) {
        void (*table[COUNT])(void);
        void *library = tess_library_open(libraries, why, size);
        if (library && tess_library_symbols(library, names, table, why, size)) {
            memcpy(&api, table, sizeof api);
            loaded = 1;
        }
    }
    const int ready = loaded;
    pthread_mutex_unlock(&lock);
    return ready ? &api : NULL;
}

/* ------------------------------------------------------------------ errors */

const char *tess_opencl_error_name(cl_int code) {
    switch (code) {
#define CASE(name, value) \
    case value: return #name;
        TESS_OPENCL_ERRORS(CASE)
#undef CASE
    default: return "an error without a name";
    }
}

tess_status tess_opencl_status(cl_int code) {
    switch (code) {
    case CL_SUCCESS: return TESS_OK;
    case CL_OUT_OF_RESOURCES:
    case CL_OUT_OF_HOST_MEMORY:
    case CL_MEM_OBJECT_ALLOCATION_FAILURE: return TESS_ERROR_OUT_OF_MEMORY;
    /* queues are checked before they are used, so a bad one means that the context is lost */
    case CL_INVALID_COMMAND_QUEUE:
    case CL_DEVICE_NOT_AVAILABLE: return TESS_ERROR_DEVICE_LOST;
    default: return TESS_ERROR_NATIVE;
    }
}

tess_status tess_opencl_fail(const tess_host *host, const char *call, const char *what,
                             cl_int code) {
    return host->fail(host, tess_opencl_status(code), "%s: %s (%s, %d)", call, what,
                      tess_opencl_error_name(code), (int)code);
}

/* ------------------------------------------------------------------ properties */

void tess_opencl_text(const cl_api *cl, cl_device_id device, cl_uint what, char *text,
                      size_t size) {
    char full[1024] = "";
    size_t length = 0;
    text[0] = '\0';
    if (cl->clGetDeviceInfo(device, what, sizeof full - 1, full, &length) != CL_SUCCESS) return;
    const char *begin = full + strspn(full, " ");
    for (size_t end = strlen(begin); end > 0 && begin[end - 1] == ' '; end--)
        full[begin - full + (ptrdiff_t)end - 1] = '\0';
    snprintf(text, size, "%s", begin);
}

int tess_opencl_has(const cl_api *cl, cl_device_id device, const char *extension) {
    char all[8192] = "";
    const size_t length = strlen(extension);
    if (cl->clGetDeviceInfo(device, CL_DEVICE_EXTENSIONS, sizeof all - 1, all, NULL) != CL_SUCCESS)
        return 0;
    for (const char *at = all; (at = strstr(at, extension)) != NULL; at += length)
        if ((at == all || at[-1] == ' ') && (at[length] == ' ' || at[length] == '\0')) return 1;
    return 0;
}

uint64_t tess_opencl_number(const cl_api *cl, cl_device_id device, cl_uint what, size_t bytes) {
    uint64_t wide = 0;
    uint32_t narrow = 0;
    void *value = bytes == sizeof narrow ? (void *)&narrow : (void *)&wide;
    if (cl->clGetDeviceInfo(device, what, bytes, value, NULL) != CL_SUCCESS) return 0;
    return bytes == sizeof narrow ? narrow : wide;
}

static void platform_text(const cl_api *cl, cl_platform_id platform, cl_uint what, char *text,
                          size_t size) {
    char full[1024] = "";
    if (cl->clGetPlatformInfo(platform, what, sizeof full - 1, full, NULL) != CL_SUCCESS)
        full[0] = '\0';
    snprintf(text, size, "%s", full);
}

/* ------------------------------------------------------------------ enumeration */

/* Why a device cannot be used at all, or NULL. */
static const char *unfit(const cl_api *cl, cl_platform_id platform, cl_device_id device) {
    char version[OPENCL_TEXT], full[4 * OPENCL_TEXT];
    /* "OpenCL 3.0 PoCL 6.0+debian  Linux, None+Asserts, RELOC, SPIR-V, LLVM 18.1.8, ..." */
    platform_text(cl, platform, CL_PLATFORM_VERSION, full, sizeof full);
    if (strstr(full, "PoCL 6.") && strstr(full, "LLVM 18."))
        return "PoCL 6 with LLVM 18 may end the process when it compiles a kernel";
    tess_opencl_text(cl, device, CL_DEVICE_VERSION, version, sizeof version);
    char *end = version;
    const long major = strncmp(version, "OpenCL ", 7) == 0 ? strtol(version + 7, &end, 10) : 0,
               minor = *end == '.' ? strtol(end + 1, NULL, 10) : 0;
    if (major < 1 || (major == 1 && minor < 2)) return "its OpenCL is older than 1.2";
    if (!tess_opencl_number(cl, device, CL_DEVICE_AVAILABLE, sizeof(cl_bool)))
        return "it is not available";
    if (!tess_opencl_number(cl, device, CL_DEVICE_COMPILER_AVAILABLE, sizeof(cl_bool)))
        return "its driver has no compiler";
    if (!tess_opencl_number(cl, device, CL_DEVICE_ENDIAN_LITTLE, sizeof(cl_bool)))
        return "it is big-endian";
    return NULL;
}

/* GPUs first, then by the platform's name, since loaders list platforms in the order of files in a
 * folder, then in the platform's order. */
static int comes_before(const opencl_found *a, const opencl_found *b) {
    if (a->kind != b->kind) return a->kind == TESS_DEVICE_GPU;
    return strcmp(a->platform_name, b->platform_name) < 0;
}

static void insert(opencl_found *list, uint32_t count, const opencl_found *item) {
    uint32_t at = count;
    for (; at > 0 && comes_before(item, &list[at - 1]); at--) list[at] = list[at - 1];
    list[at] = *item;
}

/* Adds the devices of one platform. `why` gets the reason for each that is left out. */
static uint32_t add_platform(const tess_host *host, const cl_api *cl, cl_platform_id platform,
                             opencl_found *list, uint32_t count, char *why) {
    cl_device_id devices[MOST_DEVICES];
    cl_uint n_devices = 0;
    opencl_found item = {.platform = platform};
    platform_text(cl, platform, CL_PLATFORM_NAME, item.platform_name, sizeof item.platform_name);
    const cl_int code =
        cl->clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, MOST_DEVICES, devices, &n_devices);
    if (code != CL_SUCCESS) {
        const size_t used = strlen(why);
        snprintf(why + used, MOST_WHY - used, "; platform %s: %s", item.platform_name,
                 code == CL_DEVICE_NOT_FOUND ? "no device" : tess_opencl_error_name(code));
        return count;
    }
    for (cl_uint n = 0; n < n_devices && n < MOST_DEVICES && count < MOST_DEVICES; n++) {
        const char *reason = unfit(cl, platform, devices[n]);
        item.device = devices[n];
        if (reason) {
            char name[OPENCL_TEXT];
            const size_t used = strlen(why);
            tess_opencl_text(cl, devices[n], CL_DEVICE_NAME, name, sizeof name);
            snprintf(why + used, MOST_WHY - used, "; %s: %s", name, reason);
            host->log(host, "device", "%s is left out: %s", name, reason);
            continue;
        }
        const uint64_t type =
            tess_opencl_number(cl, devices[n], CL_DEVICE_TYPE, sizeof(cl_bitfield));
        item.kind = type & CL_DEVICE_TYPE_CPU ? TESS_DEVICE_SOFTWARE : TESS_DEVICE_GPU;
        insert(list, count++, &item);
    }
    return count;
}

tess_status tess_opencl_find(const tess_host *host, const cl_api *cl, uint32_t index,
                             opencl_found *found) {
    cl_platform_id platforms[MOST_PLATFORMS];
    cl_uint n_platforms = 0;
    opencl_found list[MOST_DEVICES];
    uint32_t count = 0;
    char why[MOST_WHY] = "";
    const cl_int code = cl->clGetPlatformIDs(MOST_PLATFORMS, platforms, &n_platforms);
    if (code == CL_PLATFORM_NOT_FOUND_KHR || (code == CL_SUCCESS && n_platforms == 0))
        return host->fail(host, TESS_ERROR_UNAVAILABLE,
                          "clGetPlatformIDs: no platform: the OpenCL loader is here, but no driver "
                          "is installed for it");
    if (code != CL_SUCCESS)
        return tess_opencl_fail(host, "clGetPlatformIDs", "platforms cannot be listed", code);
    for (cl_uint n = 0; n < n_platforms && n < MOST_PLATFORMS; n++)
        count = add_platform(host, cl, platforms[n], list, count, why);
    if (index < count) {
        *found = list[index];
        return TESS_OK;
    }
    if (count > 0)
        return host->fail(host, TESS_ERROR_UNAVAILABLE, "opencl: there are %u devices",
                          (unsigned)count);
    return host->fail(host, TESS_ERROR_UNAVAILABLE, "clGetDeviceIDs: no device%s", why);
}

tess_status tess_opencl_list(const tess_host *host, uint32_t index, tess_device_info *info) {
    char why[400];
    const cl_api *cl = tess_opencl_api(why, sizeof why);
    if (!cl) return host->fail(host, TESS_ERROR_UNAVAILABLE, "%s", why);
    opencl_found found = {.kind = TESS_DEVICE_GPU};
    TESS_RETURN_IF_ERROR(tess_opencl_find(host, cl, index, &found));
    char driver[OPENCL_TEXT];
    info->kind = found.kind;
    info->compute_units = (uint32_t)tess_opencl_number(
        cl, found.device, CL_DEVICE_MAX_COMPUTE_UNITS, sizeof(cl_uint));
    info->memory_bytes =
        tess_opencl_number(cl, found.device, CL_DEVICE_GLOBAL_MEM_SIZE, sizeof(cl_ulong));
    /* Some drivers give a code name as the name, and the name of the board elsewhere. */
    info->name[0] = '\0';
    if (tess_opencl_has(cl, found.device, "cl_amd_device_attribute_query"))
        tess_opencl_text(cl, found.device, CL_DEVICE_BOARD_NAME_AMD, info->name, sizeof info->name);
    if (!info->name[0])
        tess_opencl_text(cl, found.device, CL_DEVICE_NAME, info->name, sizeof info->name);
    tess_opencl_text(cl, found.device, CL_DEVICE_VERSION, info->arch, sizeof info->arch);
    tess_opencl_text(cl, found.device, CL_DRIVER_VERSION, driver, sizeof driver);
    snprintf(info->driver, sizeof info->driver, "%.50s %.44s", found.platform_name, driver);
    return TESS_OK;
}
