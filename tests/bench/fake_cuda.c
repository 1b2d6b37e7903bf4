/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CUDA driver that the suite's limits are measured with where there is no GPU.
 * Memory is the host's, time passes by the work that is launched, and a product has just the
 * elements that somebody copies back. FAKE_GPU holds words: "old" (compute capability 7.0),
 * "broken" (no handle of cuBLAS), "wrong" (products are).
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_cuda.h"

/* Found by name alone. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#define API __attribute__((visibility("default")))

API int fake_has(const char *word) {
    const char *words = getenv("FAKE_GPU");
    return words && strstr(words, word) != NULL;
}

enum { OK = 0, INVALID = 1, NO_DEVICE = 101, NOT_FOUND = 500 };

API int cuInit(unsigned flags) { return flags ? INVALID : OK; }
API int cuDeviceGet(int *device, int ordinal) {
    *device = 40 + ordinal;
    return ordinal == 0 ? OK : NO_DEVICE;
}
API int cuDeviceGetUuid(unsigned char *uuid, int device) {
    for (int i = 0; i < 16; i++) uuid[i] = (unsigned char)(16 * i + device % 10);
    return OK;
}
API int fake_pci(char *text, int size, int device) {
    snprintf(text, (size_t)size, "0000:1A:0%d.0", device % 10);
    return OK;
}
API int cuDeviceGetPCIBusId(char *text, int size, int device) {
    return fake_pci(text, size, device);
}
API int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 16 ? 10 : attribute == 75 ? (fake_has("old") ? 7 : 9) : 0;
    return device == 40 ? OK : INVALID;
}
static int context;
API int cuDevicePrimaryCtxRetain(void **to, int device) {
    *to = &context;
    return device == 40 ? OK : INVALID;
}
API int cuDevicePrimaryCtxRelease_v2(int device) { return device == 40 ? OK : INVALID; }
API int cuCtxSetCurrent(void *c) { return c == &context ? OK : INVALID; }

/* ------------------------------------------------------------------ memory */

API int cuMemAlloc_v2(uint64_t *to, size_t bytes) {
    void *p = malloc(bytes);
    *to = (uint64_t)(uintptr_t)p;
    return p ? OK : 2;
}
API int cuMemFree_v2(uint64_t p) {
    free((void *)(uintptr_t)p);
    return OK;
}
API int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes) {
    memcpy((void *)(uintptr_t)to, from, bytes);
    return OK;
}
API int cuMemsetD32_v2(uint64_t to, unsigned value, size_t count) {
    for (size_t i = 0; i < count && i < 4; i++) ((unsigned *)(uintptr_t)to)[i] = value;
    return OK;
}

/* ------------------------------------------------------------------ products */

/* The last one, in the order of columns. */
static struct {
    const void *a, *b;
    char *c;
    int n, type;
} product;

static double element(const void *data, size_t at) {
    if (product.type == 0) return (double)((const float *)data)[at];
    const uint16_t bits = ((const uint16_t *)data)[at];
    if (product.type == 14) {
        const uint32_t wide = (uint32_t)bits << 16;
        float f;
        memcpy(&f, &wide, sizeof f);
        return (double)f;
    }
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double value = exponent ? (1024 + fraction) / 1024.0 : fraction / 512.0;
    for (int e = exponent; e < 15; e++) value /= 2;
    for (int e = exponent; e > 15; e--) value *= 2;
    return bits >> 15 ? -value : value;
}

/* Rounded towards zero, which the suite's tolerance allows. */
static void store(char *to, double value) {
    const float f = (float)value;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    uint16_t narrow = (uint16_t)(bits >> 16);
    if (product.type == 2) {
        const int exponent = (int)(bits >> 23 & 255) - 127;
        narrow =
            (uint16_t)((bits >> 16 & 0x8000) |
                       (exponent < -14 ? 0u
                                       : (uint32_t)(exponent + 15) << 10 | (bits >> 13 & 1023)));
    }
    memcpy(to, product.type == 0 ? (const void *)&f : (const void *)&narrow,
           product.type == 0 ? sizeof f : sizeof narrow);
}

API int fake_fetch(void *to, const void *from, size_t bytes) {
    char *p = (char *)(uintptr_t)from;
    const size_t size = product.type == 0 ? 4 : 2, n = (size_t)product.n;
    if (product.c && p >= product.c && p < product.c + n * n * size) {
        const size_t at = (size_t)(p - product.c) / size, row = at % n, column = at / n;
        double sum = fake_has("wrong") ? 1e3 : 0;
        for (size_t k = 0; k < n; k++)
            sum += element(product.a, row + k * n) * element(product.b, k + column * n);
        store(p, sum);
    }
    memcpy(to, p, bytes);
    return OK;
}

API int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) {
    return fake_fetch(to, (const void *)(uintptr_t)from, bytes);
}

/* ------------------------------------------------------------------ time and kernels */

static double now;
API double fake_now(void) { return now; }
API void fake_pass(double seconds) { now += seconds; }
API int cuEventCreate(void **event, unsigned flags) {
    *event = calloc(1, sizeof(double));
    return flags ? INVALID : OK;
}
API int cuEventDestroy_v2(void *event) {
    free(event);
    return OK;
}
API int cuEventRecord(void *event, void *stream) {
    *(double *)event = now;
    return stream ? INVALID : OK;
}
API int cuEventSynchronize(void *event) { return event ? OK : INVALID; }
API int cuEventElapsedTime(float *ms, void *first, void *last) {
    *ms = (float)(1e3 * (*(double *)last - *(double *)first));
    return OK;
}

API int cuModuleLoadData(void **module, const void *text) {
    *module = strdup(text);
    return strncmp(text, ".version", 8) == 0 ? OK : INVALID;
}
API int cuModuleUnload(void *module) {
    free(module);
    return OK;
}
API int cuModuleGetFunction(void **function, void *module, const char *name) {
    char entry[80];
    snprintf(entry, sizeof entry, ".visible .entry %s(", name);
    *function = strstr(module, entry);
    return *function ? OK : NOT_FOUND;
}
API int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned tx, unsigned ty,
                       unsigned tz, unsigned shared, void *stream, void **arguments, void **extra) {
    const char *name = strchr((const char *)function + 10, ' ') + 1;
    if (y != 1 || z != 1 || tx != 256 || ty != 1 || tz != 1 || shared || stream || extra)
        return INVALID;
    const double threads = 256.0 * x;
    if (strncmp(name, "copy_loop", 9) == 0)
        now += threads * 64 * 2 / FAKE_COPY;
    else if (strncmp(name, "read_loop", 9) == 0)
        now += threads * 64 / FAKE_READ;
    else if (strncmp(name, "fma_loop", 8) == 0)
        now += threads * 64 * 2 * *(uint32_t *)arguments[1] / FAKE_F32;
    else
        now += threads / 32 * 8 * 4096 * *(uint32_t *)arguments[1] / FAKE_UNITS;
    return OK;
}

/* What cuBLAS would have launched. */
API void fake_product(const void *a, const void *b, void *c, int n, int type) {
    product.a = a;
    product.b = b;
    product.c = c;
    product.n = n;
    product.type = type;
    /* f16 is so fast that larger products are taken, the others are not. */
    now += 2.0 * n * n * n / (type == 2 ? FAKE_F16 : type == 0 ? FAKE_F32 : FAKE_BF16);
}
