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

enum { OK = 0, INVALID = 1 };

API int hipInit(unsigned flags) { return flags ? INVALID : OK; }
API int hipDeviceGet(int *device, int ordinal) { return (*device = ordinal) == 0 ? OK : INVALID; }
API int hipSetDevice(int device) { return device == 0 ? OK : INVALID; }
API int hipDeviceGetUuid(unsigned char *uuid, int device) {
    memset(uuid, 0x11, 16);
    return device == 0 ? OK : INVALID;
}
API int hipDeviceGetPCIBusId(char *text, int size, int device) {
    return snprintf(text, (size_t)size, "0000:1b:00.%d", device) > 0 ? OK : INVALID;
}
API int hipMalloc(void **to, size_t bytes) { return (*to = malloc(bytes)) ? OK : 2; }
API int hipFree(void *p) { return fake_release(p); }
API int hipMemsetD32(void *to, int value, size_t count) {
    return count && memcpy(to, &value, sizeof value) ? OK : INVALID;
}
API int hipMemcpyHtoD(void *to, const void *from, size_t bytes) {
    return memcpy(to, from, bytes) ? OK : INVALID;
}
API int hipMemcpyDtoH(void *to, const void *from, size_t bytes) {
    return fake_fetch(to, from, bytes);
}
FAKE_EVENTS(hipEventCreateWithFlags, hipEventDestroy, hipEventRecord, hipEventSynchronize,
            hipEventElapsedTime, hipModuleUnload)

API int hipModuleLoadData(void **module, const void *code) {
    return (*module = strdup(code)) ? OK : 2;
}
/* Source stands for code. Kernels that macros make are not to be found in it. */
API int hipModuleGetFunction(void **function, void *module, const char *name) {
    static const char *const made[] = {"fma_f32(", "fma_f16(", "units_f16(", "units_bf16("};
    for (int i = 0; i < 4; i++)
        if (strncmp(made[i], name, strlen(name)) == 0 && strstr(module, name))
            return fake_find(function, (void *)(uintptr_t)made[i], "", name);
    return fake_find(function, module, "KERNEL void ", name);
}
API int hipModuleLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned tx,
                              unsigned ty, unsigned tz, unsigned shared, void *stream,
                              void **arguments, void **extra) {
    return y * z * ty * tz != 1 || shared || stream || extra
               ? INVALID
               : fake_launch(function, x, tx, arguments);
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

/* ------------------------------------------------------------------ hipBLASLt */

/* A layout is what it was made of. */
typedef struct layout {
    int type;
    uint64_t rows, columns;
    int64_t stride;
} layout;
/* What the search writes first of all, and the product wants to see. */
static const unsigned char algorithm[16] = "an algorithm";

API int hipblasLtCreate(void **to) { return rocblas_create_handle(to); }
API int hipblasLtDestroy(void *h) { return rocblas_destroy_handle(h); }
API int hipblasLtGetVersion(void *h, int *version) {
    *version = 100203;
    return h == &handle ? OK : INVALID;
}
API int hipblasLtMatmulDescCreate(void **to, int compute, int scale) {
    return (*to = malloc(1)) && compute == 2 && scale == 0 ? OK : INVALID;
}
API int hipblasLtMatmulDescDestroy(void *p) { return fake_release(p); }
API int hipblasLtMatrixLayoutCreate(void **to, int type, uint64_t rows, uint64_t columns,
                                    int64_t stride) {
    layout *l = malloc(sizeof *l);
    if (l) *l = (layout){type, rows, columns, stride};
    return (*to = l) ? OK : INVALID;
}
API int hipblasLtMatrixLayoutDestroy(void *p) { return fake_release(p); }
API int hipblasLtMatmulPreferenceCreate(void **to) { return (*to = malloc(1)) ? OK : INVALID; }
API int hipblasLtMatmulPreferenceDestroy(void *p) { return fake_release(p); }
API int hipblasLtMatmulPreferenceSetAttribute(void *p, int what, const void *value, size_t bytes) {
    return p && what == 1 && value && bytes == 8 ? OK : INVALID;
}
API int hipblasLtMatmulAlgoGetHeuristic(void *h, void *product, const layout *a, const layout *b,
                                        const layout *c, const layout *d, void *preference,
                                        int most, void *results, int *count) {
    if (h != &handle || !product || !preference || most != 1 || a != b || c != d) return INVALID;
    memset(results, 0, 56);
    memcpy(results, algorithm, sizeof algorithm);
    *count = !fake_has("unsearched");
    return OK;
}
API int hipblasLtMatmul(void *h, void *product, const float *alpha, const void *a, const layout *la,
                        const void *b, const layout *lb, const float *beta, const void *c,
                        const layout *lc, void *d, const layout *ld, const void *chosen,
                        void *workspace, size_t bytes, void *stream) {
    if (h != &handle || !product || *alpha != 1 || *beta != 0 || c != d || la != lb || lc != ld ||
        la->rows != la->columns || la->stride != (int64_t)la->rows || !workspace || !bytes ||
        memcmp(chosen, algorithm, sizeof algorithm) != 0 || stream)
        return INVALID;
    fake_product(a, b, d, (int)la->rows, la->type);
    return OK;
}
