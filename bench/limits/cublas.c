/* SPDX-License-Identifier: Apache-2.0 */
/* cuBLAS, wherever it lies: in the system, in CUDA's folders, or in a Python package of NVIDIA's.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <tessera/tessera.h>

#include "cuda.h"
#include "find.h"
#include "gpu.h"
#include "operands.h"

enum { OP_N = 0, TYPE_F32 = 0, TYPE_F16 = 2, TYPE_BF16 = 14, COMPUTE_F32 = 68, ANY_ALGORITHM = -1 };
enum { WORKSPACE = 32 << 20 };

struct gpu_products {
    cuda_gpu gpu;
    void *handle;
    int (*destroy)(void *);
    int (*gemm)(void *, int, int, int, int, int, const void *, const void *, int, int, const void *,
                int, int, const void *, void *, int, int, int, int);
    uint64_t memory[4]; /* A, B, C, workspace */
    operands rows;      /* of A, which B repeats */
    char name[64];
};

static void *open_library(void) {
    static const char *const names[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so.11",
                                        "libcublas.so", NULL};
    static const char *const folders[] = {"$CUDA_HOME/lib64",     "$CUDA_PATH/lib64",
                                          "$CONDA_PREFIX/lib",    "/usr/local/cuda*/lib64",
                                          "/usr/local/cuda*/lib", "/usr/local/cuda*/targets/*/lib",
                                          "/opt/cuda*/lib64",     NULL};
    const find_names cublas = {names, "libcublas.so", "libcublasLt.so", folders, "nvidia/*/lib"};
    return find_library(&cublas);
}

static int place(gpu_products *p, uint32_t dtype, int64_t n, char *why, size_t size) {
    const cuda_api *a = p->gpu.api;
    int code = operands_make(&p->rows, dtype, n) != 0 ? 2 : 0;
    for (int i = 0; i < 4 && code == 0; i++)
        code = a->alloc(&p->memory[i], i < 3 ? p->rows.bytes : (size_t)WORKSPACE);
    for (int i = 0; i < 2 && code == 0; i++)
        code = a->to_device(p->memory[i], p->rows.data, p->rows.bytes);
    if (code == 0) return 0;
    snprintf(why, size, "operands of a product: CUDA error %d", code);
    return -1;
}

/* ------------------------------------------------------------------ products */

static void close_products(gpu_products *p) {
    if (p->handle) p->destroy(p->handle);
    for (int i = 0; i < 4; i++)
        if (p->memory[i]) p->gpu.api->free(p->memory[i]);
    if (p->gpu.api) cuda_close(&p->gpu);
    operands_free(&p->rows);
    free(p);
}

static int connect(gpu_products *p, char *why, size_t size) {
    static void *library;
    int (*create)(void **);
    int (*set_workspace)(void *, uint64_t, size_t);
    int (*version_of)(void *, int *);
    int version = 0, code;
    if (!library) library = open_library();
    if (!library)
        return snprintf(why, size,
                        "cuBLAS was not found in the system, in CUDA's folders or in "
                        "Python's packages"),
               -1;
    if (!find_symbol(library, "cublasCreate_v2", &create) ||
        !find_symbol(library, "cublasDestroy_v2", &p->destroy) ||
        !find_symbol(library, "cublasGetVersion_v2", &version_of) ||
        !find_symbol(library, "cublasGemmEx", &p->gemm))
        return snprintf(why, size, "an unknown version of cuBLAS"), -1;
    code = create(&p->handle);
    if (code != 0) return snprintf(why, size, "cublasCreate: status %d", code), -1;
    version_of(p->handle, &version);
    snprintf(p->name, sizeof p->name, "cuBLAS %d.%d.%d", version / 10000, version / 100 % 100,
             version % 100);
    if (find_symbol(library, "cublasSetWorkspace_v2", &set_workspace))
        set_workspace(p->handle, p->memory[3], WORKSPACE);
    return 0;
}

static gpu_products *open_products(const bench_device *d, uint32_t dtype, int64_t n, char *why,
                                   size_t size) {
    gpu_products *p = calloc(1, sizeof *p);
    if (!p) return snprintf(why, size, "out of memory"), NULL;
    if (cuda_open(&p->gpu, gpu_index(d), why, size) == 0 && place(p, dtype, n, why, size) == 0 &&
        connect(p, why, size) == 0)
        return p;
    close_products(p);
    return NULL;
}

static double run(gpu_products *p) {
    const float one = 1, zero = 0;
    const int type = p->rows.dtype == TESS_F32   ? TYPE_F32
                     : p->rows.dtype == TESS_F16 ? TYPE_F16
                                                 : TYPE_BF16,
              n = (int)p->rows.n;
    const void *a = (const void *)(uintptr_t)p->memory[0],
               *b = (const void *)(uintptr_t)p->memory[1];
    if (p->gpu.api->event_record(p->gpu.events[0], NULL) != 0 ||
        p->gemm(p->handle, OP_N, OP_N, n, n, n, &one, b, type, n, a, type, n, &zero,
                (void *)(uintptr_t)p->memory[2], type, n, COMPUTE_F32, ANY_ALGORITHM) != 0 ||
        p->gpu.api->event_record(p->gpu.events[1], NULL) != 0)
        return NAN;
    return cuda_elapsed(&p->gpu);
}

static int fetch(void *user, void *to, uint64_t at, size_t bytes) {
    gpu_products *p = user;
    return p->gpu.api->to_host(to, p->memory[2] + at, bytes);
}

static int check(gpu_products *p) { return operands_check(&p->rows, fetch, p); }

static const char *name(const gpu_products *p) { return p->name; }
static const char *method(const gpu_products *p) {
    return p->rows.dtype == TESS_F32 ? "cublasGemmEx, f32 without TF32"
                                     : "cublasGemmEx, sums in f32";
}

const gpu_library gpu_cublas = {"cuda", GPU_VENDORS, open_products, run,
                                check,  name,        method,        close_products};
