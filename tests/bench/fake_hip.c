/* SPDX-License-Identifier: Apache-2.0 */
/* HIP on the driver of fake_cuda.c. Compiled code is a list of the kernels that it has. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_cuda.h"

/* Found by name alone. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#define API __attribute__((visibility("default")))

enum { OK = 0, INVALID = 1, NOT_FOUND = 500 };

API int hipInit(unsigned flags) { return flags ? INVALID : OK; }
API int hipSetDevice(int device) { return device == 0 ? OK : INVALID; }
API int hipDeviceGetUuid(unsigned char *uuid, int device) {
    memset(uuid, 0x11, 16);
    return device == 0 ? OK : INVALID;
}
API int hipDeviceGetPCIBusId(char *text, int size, int device) {
    return fake_pci(text, size, device);
}
API int hipMalloc(void **to, size_t bytes) { return (*to = malloc(bytes)) ? OK : 2; }
API int hipFree(void *p) {
    free(p);
    return OK;
}
API int hipMemset(void *to, int value, size_t bytes) {
    memset(to, value, bytes < 64 ? bytes : 64);
    return OK;
}
API int hipMemcpy(void *to, const void *from, size_t bytes, int kind) {
    if (kind == 2) return fake_fetch(to, from, bytes);
    memcpy(to, from, bytes);
    return kind == 1 ? OK : INVALID;
}
API int hipEventCreate(void **event) { return (*event = calloc(1, sizeof(double))) ? OK : 2; }
API int hipEventDestroy(void *event) {
    free(event);
    return OK;
}
API int hipEventRecord(void *event, void *stream) {
    *(double *)event = fake_now();
    return stream ? INVALID : OK;
}
API int hipEventSynchronize(void *event) { return event ? OK : INVALID; }
API int hipEventElapsedTime(float *ms, void *first, void *last) {
    *ms = (float)(1e3 * (*(double *)last - *(double *)first));
    return OK;
}

API int hipModuleLoadData(void **module, const void *code) {
    *module = strdup(code);
    return *module ? OK : 2;
}
API int hipModuleUnload(void *module) {
    free(module);
    return OK;
}
API int hipModuleGetFunction(void **function, void *module, const char *name) {
    char entry[80];
    snprintf(entry, sizeof entry, "__global__ void %s(", name);
    *function = strstr(module, entry);
    return *function ? OK : NOT_FOUND;
}
API int hipModuleLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned tx,
                              unsigned ty, unsigned tz, unsigned shared, void *stream,
                              void **arguments, void **extra) {
    const char *name = (const char *)function + strlen("__global__ void ");
    if (y != 1 || z != 1 || tx != 256 || ty != 1 || tz != 1 || shared || stream || extra)
        return INVALID;
    const double threads = 256.0 * x;
    if (strncmp(name, "copy_loop", 9) == 0)
        fake_pass(threads * 64 * 2 / FAKE_COPY);
    else if (strncmp(name, "read_loop", 9) == 0)
        fake_pass(threads * 64 / FAKE_READ);
    else
        fake_pass(threads * 32 * 2 * *(uint32_t *)arguments[1] /
                  (strncmp(name, "fma_f32", 7) == 0 ? FAKE_F32 : 2 * FAKE_UNITS));
    return OK;
}

/* ------------------------------------------------------------------ the compiler */

API int hiprtcCreateProgram(void **program, const char *source, const char *name, int headers,
                            const char **texts, const char **names) {
    *program = strdup(source);
    return name && !headers && !texts && !names ? OK : INVALID;
}
API int hiprtcCompileProgram(void *program, int n, const char **options) {
    return program && !n && !options ? OK : INVALID;
}
API int hiprtcGetCodeSize(void *program, size_t *bytes) {
    *bytes = strlen(program) + 1;
    return OK;
}
API int hiprtcGetCode(void *program, char *code) {
    strcpy(code, program);
    return OK;
}
API int hiprtcDestroyProgram(void **program) {
    free(*program);
    return OK;
}

/* ------------------------------------------------------------------ rocBLAS */

static int handle;
API int rocblas_create_handle(void **to) {
    *to = &handle;
    return fake_has("broken") ? 1 : OK;
}
API int rocblas_destroy_handle(void *h) { return h == &handle ? OK : INVALID; }
API int rocblas_get_version_string(char *text, size_t size) {
    snprintf(text, size, "4.2.0");
    return OK;
}
API int rocblas_gemm_ex(void *h, int ta, int tb, int m, int n, int k, const void *alpha,
                        const void *a, int a_type, int lda, const void *b, int b_type, int ldb,
                        const void *beta, const void *c, int c_type, int ldc, void *d, int d_type,
                        int ldd, int compute, int algorithm, int32_t solution, uint32_t flags) {
    if (h != &handle || ta != 111 || tb != 111 || m != n || k != n || lda != n || ldb != n ||
        ldc != n || ldd != n || a_type != b_type || c_type != a_type || d_type != a_type ||
        compute != 151 || algorithm || solution || flags || c != d || *(const float *)alpha != 1 ||
        *(const float *)beta != 0)
        return INVALID;
    fake_product(a, b, d, n, a_type == 150 ? 2 : a_type == 151 ? 0 : 14);
    return OK;
}
