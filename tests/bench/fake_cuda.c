/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CUDA driver that the suite's limits are measured with where there is no GPU.
 * Memory is the host's, time passes by the work that is launched, and a product has just the
 * elements that somebody copies back. FAKE_GPU holds words: "broken" (libraries give no
 * handle), "wrong" (products are), "plain" (no matrix units through HIP).
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
API int cuDeviceGetPCIBusId(char *text, int size, int device) {
    snprintf(text, (size_t)size, "0000:1A:0%d.0", device % 10);
    return OK;
}
static int context;
API int cuDevicePrimaryCtxRetain(void **to, int device) {
    *to = &context;
    return device == 40 ? OK : INVALID;
}
API int cuDevicePrimaryCtxRelease_v2(int device) { return device == 40 ? OK : INVALID; }
API int cuCtxSetCurrent(void *c) { return c == &context ? OK : INVALID; }

/* ------------------------------------------------------------------ memory */

API int fake_release(void *p) {
    free(p);
    return OK;
}

API int cuMemAlloc_v2(uint64_t *to, size_t bytes) {
    void *p = malloc(bytes);
    *to = (uint64_t)(uintptr_t)p;
    return p ? OK : 2;
}
API int cuMemFree_v2(uint64_t p) { return fake_release((void *)(uintptr_t)p); }
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
API int fake_event(void **event, unsigned flags) {
    *event = calloc(1, sizeof now);
    return *event && !flags ? OK : INVALID;
}
API int fake_record(void *event, void *stream) {
    memcpy(event, &now, sizeof now);
    return stream ? INVALID : OK;
}
API int fake_elapsed(float *ms, const void *first, const void *last) {
    double begin, end;
    memcpy(&begin, first, sizeof begin);
    memcpy(&end, last, sizeof end);
    *ms = (float)(1e3 * (end - begin));
    return OK;
}
FAKE_EVENTS(cuEventCreate, cuEventDestroy_v2, cuEventRecord, cuEventSynchronize, cuEventElapsedTime,
            cuModuleUnload)

API int cuModuleLoadData(void **module, const void *text) {
    *module = strdup(text);
    return strncmp(text, ".version", 8) == 0 ? OK : INVALID;
}
API int fake_find(void **function, void *module, const char *before, const char *name) {
    char entry[80];
    snprintf(entry, sizeof entry, "%s%s(", before, name);
    const char *found = strstr(module, entry);
    *function = found ? (void *)(uintptr_t)(found + strlen(before)) : NULL;
    return found ? OK : NOT_FOUND;
}
API int cuModuleGetFunction(void **function, void *module, const char *name) {
    return fake_find(function, module, ".visible .entry ", name);
}

/* Kernels by name: how long each takes of a thread's work. */
API int fake_launch(const char *name, unsigned groups, unsigned threads, void **arguments) {
    static const struct {
        const char *name;
        double work, rate; /* of a thread, and of a turn where it multiplies */
    } kernels[] = {{"copy_loop", -128, FAKE_COPY},        {"read_loop", -64, FAKE_READ},
                   {"fma_loop", 128, FAKE_F32},           {"fma_f32", 64, FAKE_F32},
                   {"fma_f16", 32, 2 * FAKE_F32},         {"mma_", 1024, FAKE_UNITS},
                   {"units_", FAKE_UNIT_FLOP, FAKE_UNITS}};
    const uint32_t flop = fake_has("plain") ? 0 : FAKE_UNIT_FLOP;
    if (strncmp(name, "unit_flop", 9) == 0) memcpy(*(void **)arguments[0], &flop, sizeof flop);
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (strncmp(name, kernels[i].name, strlen(kernels[i].name)) == 0)
            now += (double)threads * groups / kernels[i].rate *
                   (kernels[i].work < 0 ? -kernels[i].work
                                        : kernels[i].work * *(uint32_t *)arguments[1]);
    return threads == 256 ? OK : INVALID;
}
API int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned tx, unsigned ty,
                       unsigned tz, unsigned shared, void *stream, void **arguments, void **extra) {
    return y * z * ty * tz != 1 || shared || stream || extra
               ? INVALID
               : fake_launch(function, x, tx, arguments);
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
