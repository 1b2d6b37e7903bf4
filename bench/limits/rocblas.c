/* SPDX-License-Identifier: Apache-2.0 */
/* rocBLAS, of the system, of ROCm's folders, or of a Python package. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <tessera/tessera.h>

#include "find.h"
#include "gpu.h"
#include "hip.h"
#include "operands.h"

enum { NOT_TRANSPOSED = 111, TYPE_F16 = 150, TYPE_F32 = 151, TYPE_BF16 = 168, STANDARD = 0 };

struct gpu_products {
    hip_gpu gpu;
    void *handle;
    int (*destroy)(void *);
    int (*gemm)(void *, int, int, int, int, int, const void *, const void *, int, int, const void *,
                int, int, const void *, const void *, int, int, void *, int, int, int, int, int32_t,
                uint32_t);
    void *memory[3]; /* A, B, C */
    operands rows;   /* of A, which B repeats */
    char name[64];
};

static int place(gpu_products *p, uint32_t dtype, int64_t n, char *why, size_t size) {
    const hip_api *a = p->gpu.api;
    int code = operands_make(&p->rows, dtype, n) != 0 ? 2 : 0;
    for (int i = 0; i < 3 && code == 0; i++) code = a->alloc(&p->memory[i], p->rows.bytes);
    for (int i = 0; i < 2 && code == 0; i++)
        code = a->copy(p->memory[i], p->rows.data, p->rows.bytes, HIP_TO_DEVICE);
    if (code == 0) return 0;
    snprintf(why, size, "operands of a product: HIP error %d", code);
    return -1;
}

static int connect(gpu_products *p, char *why, size_t size) {
    static const char *const names[] = {"librocblas.so.5", "librocblas.so.4", "librocblas.so.3",
                                        "librocblas.so", NULL};
    static const char *const folders[] = {"$ROCM_PATH/lib", "/opt/rocm*/lib", NULL};
    const find_names rocblas = {names, "librocblas.so", NULL, folders, "_rocm_sdk_*/lib"};
    static void *library;
    int (*create)(void **);
    int (*version_of)(char *, size_t);
    char version[32] = "";
    if (!library) library = find_library(&rocblas);
    if (!library)
        return snprintf(why, size,
                        "rocBLAS was not found in the system, in ROCm's folders or in Python's "
                        "packages"),
               -1;
    if (!find_symbol(library, "rocblas_create_handle", &create) ||
        !find_symbol(library, "rocblas_destroy_handle", &p->destroy) ||
        !find_symbol(library, "rocblas_gemm_ex", &p->gemm))
        return snprintf(why, size, "an unknown version of rocBLAS"), -1;
    const int code = create(&p->handle);
    if (code != 0) return snprintf(why, size, "rocblas_create_handle: status %d", code), -1;
    if (find_symbol(library, "rocblas_get_version_string", &version_of))
        version_of(version, sizeof version);
    snprintf(p->name, sizeof p->name, "rocBLAS %.31s", version);
    return 0;
}

static void close_products(gpu_products *p) {
    if (p->handle) p->destroy(p->handle);
    for (int i = 0; i < 3; i++)
        if (p->memory[i]) p->gpu.api->free(p->memory[i]);
    if (p->gpu.api) hip_close(&p->gpu);
    operands_free(&p->rows);
    free(p);
}

static gpu_products *open_products(const bench_device *d, uint32_t dtype, int64_t n, char *why,
                                   size_t size) {
    gpu_products *p = calloc(1, sizeof *p);
    if (!p) return snprintf(why, size, "out of memory"), NULL;
    if (hip_open(&p->gpu, gpu_index(d), why, size) == 0 && place(p, dtype, n, why, size) == 0 &&
        connect(p, why, size) == 0)
        return p;
    close_products(p);
    return NULL;
}

static double run(gpu_products *p) {
    const float one = 1, zero = 0;
    const int n = (int)p->rows.n, type = p->rows.dtype == TESS_F32   ? TYPE_F32
                                         : p->rows.dtype == TESS_F16 ? TYPE_F16
                                                                     : TYPE_BF16;
    if (p->gpu.api->event_record(p->gpu.events[0], NULL) != 0 ||
        p->gemm(p->handle, NOT_TRANSPOSED, NOT_TRANSPOSED, n, n, n, &one, p->memory[1], type, n,
                p->memory[0], type, n, &zero, p->memory[2], type, n, p->memory[2], type, n,
                TYPE_F32, STANDARD, 0, 0) != 0 ||
        p->gpu.api->event_record(p->gpu.events[1], NULL) != 0)
        return NAN;
    return hip_elapsed(&p->gpu);
}

static int fetch(void *user, void *to, uint64_t at, size_t bytes) {
    gpu_products *p = user;
    return p->gpu.api->copy(to, (char *)p->memory[2] + at, bytes, HIP_TO_HOST);
}

static int check(gpu_products *p) { return operands_check(&p->rows, fetch, p); }
static const char *name(const gpu_products *p) { return p->name; }
static const char *method(const gpu_products *p) {
    return p->rows.dtype == TESS_F32 ? "rocblas_gemm_ex" : "rocblas_gemm_ex, sums in f32";
}

const gpu_library gpu_rocblas = {"hip", GPU_VENDORS, open_products, run,
                                 check, name,        method,        close_products};
