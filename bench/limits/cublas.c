/* SPDX-License-Identifier: Apache-2.0 */
/* cuBLAS, wherever it lies: in the system, in CUDA's folders, or in a Python package of NVIDIA's.
 */
#include <dlfcn.h>
#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tessera/tessera.h>

#include "cuda.h"
#include "gpu.h"
#include "reference.h"

enum { OP_N = 0, TYPE_F32 = 0, TYPE_F16 = 2, TYPE_BF16 = 14, COMPUTE_F32 = 68, ANY_ALGORITHM = -1 };
enum { WORKSPACE = 32 << 20 };

struct gpu_products {
    cuda_gpu gpu;
    void *handle;
    int (*destroy)(void *);
    int (*gemm)(void *, int, int, int, int, int, const void *, const void *, int, int, const void *,
                int, int, const void *, void *, int, int, int, int);
    uint64_t memory[4]; /* A, B, C, workspace */
    uint16_t *rows;     /* host copy of A, which B repeats; f32 as well */
    float *rows_f32;
    int64_t n;
    uint32_t dtype;
    char name[64];
};

/* dlsym gives an object pointer; POSIX says that its bytes are those of the function pointer. */
static int symbol(void *library, const char *name, void *function) {
    void *p = dlsym(library, name);
    memcpy(function, &p, sizeof p);
    return p != NULL;
}

/* ------------------------------------------------------------------ finding it */

/* Opens the first file that a pattern names and that can be opened, its own dependency from the
 * same folder first. */
static void *open_matching(const char *pattern) {
    glob_t found;
    void *library = NULL;
    if (glob(pattern, 0, NULL, &found) != 0) return NULL;
    for (size_t i = found.gl_pathc; i-- > 0 && !library;) { /* the newest version first */
        const char *path = found.gl_pathv[i], *at = strstr(path, "libcublas.so");
        char other[1024];
        if (!at) continue;
        snprintf(other, sizeof other, "%.*slibcublasLt.so%s", (int)(at - path), path,
                 at + strlen("libcublas.so"));
        dlopen(other, RTLD_NOW | RTLD_GLOBAL);
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    globfree(&found);
    return library;
}

/* Packages of the Python that the search path names, which may be of a virtual environment. */
static void *open_of_python(const char *path) {
    void *library = NULL;
    while (path && *path && !library) {
        const size_t length = strcspn(path, ":");
        char file[512], pattern[640];
        snprintf(file, sizeof file, "%.*s/python3", (int)(length < 400 ? length : 0), path);
        if (length && access(file, X_OK) == 0) {
            snprintf(pattern, sizeof pattern,
                     "%.*s/../lib*/python3*/*-packages/nvidia/*/lib/libcublas.so.*",
                     (int)(length < 400 ? length : 0), path);
            library = open_matching(pattern);
        }
        path += length + (path[length] == ':');
    }
    return library;
}

static void *open_library(void) {
    static const char *const names[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so.11",
                                        "libcublas.so"};
    static const char *const patterns[] = {
        "/usr/local/cuda*/lib64/libcublas.so.*",
        "/usr/local/cuda*/lib/libcublas.so.*",
        "/usr/local/cuda*/targets/*/lib/libcublas.so.*",
        "/opt/cuda*/lib64/libcublas.so.*",
        "/usr/lib/python3*/*-packages/nvidia/*/lib/libcublas.so.*",
        "/usr/local/lib/python3*/*-packages/nvidia/*/lib/libcublas.so.*"};
    static const char *const folders[][2] = {
        {"CUDA_HOME", "lib64/libcublas.so.*"},
        {"CUDA_PATH", "lib64/libcublas.so.*"},
        {"VIRTUAL_ENV", "lib/python3*/*-packages/nvidia/*/lib/libcublas.so.*"},
        {"CONDA_PREFIX", "lib/libcublas.so.*"},
        {"CONDA_PREFIX", "lib/python3*/*-packages/nvidia/*/lib/libcublas.so.*"},
        {"HOME", ".local/lib/python3*/*-packages/nvidia/*/lib/libcublas.so.*"}};
    void *library = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !library; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; i < sizeof folders / sizeof *folders && !library; i++) {
        char pattern[640];
        const char *folder = getenv(folders[i][0]);
        if (!folder || strlen(folder) > 400) continue;
        snprintf(pattern, sizeof pattern, "%s/%s", folder, folders[i][1]);
        library = open_matching(pattern);
    }
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns && !library; i++)
        library = open_matching(patterns[i]);
    return library ? library : open_of_python(getenv("PATH"));
}

/* ------------------------------------------------------------------ operands */

/* Random values: on equal ones the units take less power and clock higher than on real data. */
static int make_rows(gpu_products *p) {
    const size_t count = (size_t)(p->n * p->n);
    uint64_t s = 0x9e3779b97f4a7c15u;
    if (p->dtype == TESS_F32)
        p->rows_f32 = malloc(count * sizeof *p->rows_f32);
    else
        p->rows = malloc(count * sizeof *p->rows);
    if (!p->rows && !p->rows_f32) return -1;
    for (size_t i = 0; i < count; i++) {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        const float f = (float)((int64_t)(s >> 40) - (1 << 23)) / (float)(1 << 23);
        if (p->rows_f32)
            p->rows_f32[i] = f;
        else
            p->rows[i] = p->dtype == TESS_F16 ? float_to_half(f) : float_to_bf16(f);
    }
    return 0;
}

static int place(gpu_products *p, char *why, size_t size) {
    const cuda_api *a = p->gpu.api;
    const size_t bytes = (size_t)(p->n * p->n) * (p->dtype == TESS_F32 ? 4 : 2);
    int code = make_rows(p) != 0 ? 2 : 0;
    for (int i = 0; i < 4 && code == 0; i++)
        code = a->alloc(&p->memory[i], i < 3 ? bytes : (size_t)WORKSPACE);
    for (int i = 0; i < 2 && code == 0; i++)
        code = a->to_device(p->memory[i],
                            p->rows ? (const void *)p->rows : (const void *)p->rows_f32, bytes);
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
    free(p->rows);
    free(p->rows_f32);
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
    if (!symbol(library, "cublasCreate_v2", &create) ||
        !symbol(library, "cublasDestroy_v2", &p->destroy) ||
        !symbol(library, "cublasGetVersion_v2", &version_of) ||
        !symbol(library, "cublasGemmEx", &p->gemm))
        return snprintf(why, size, "an unknown version of cuBLAS"), -1;
    code = create(&p->handle);
    if (code != 0) return snprintf(why, size, "cublasCreate: status %d", code), -1;
    version_of(p->handle, &version);
    snprintf(p->name, sizeof p->name, "cuBLAS %d.%d.%d", version / 10000, version / 100 % 100,
             version % 100);
    if (symbol(library, "cublasSetWorkspace_v2", &set_workspace))
        set_workspace(p->handle, p->memory[3], WORKSPACE);
    return 0;
}

static gpu_products *open_products(const bench_device *d, uint32_t dtype, int64_t n, char *why,
                                   size_t size) {
    gpu_products *p = calloc(1, sizeof *p);
    if (!p) return snprintf(why, size, "out of memory"), NULL;
    p->n = n;
    p->dtype = dtype;
    if (cuda_open(&p->gpu, gpu_index(d), why, size) == 0 && place(p, why, size) == 0 &&
        connect(p, why, size) == 0)
        return p;
    close_products(p);
    return NULL;
}

static double run(gpu_products *p) {
    const float one = 1, zero = 0;
    const int type = p->dtype == TESS_F32   ? TYPE_F32
                     : p->dtype == TESS_F16 ? TYPE_F16
                                            : TYPE_BF16,
              n = (int)p->n;
    const void *a = (const void *)(uintptr_t)p->memory[0],
               *b = (const void *)(uintptr_t)p->memory[1];
    if (p->gpu.api->event_record(p->gpu.events[0], NULL) != 0 ||
        p->gemm(p->handle, OP_N, OP_N, n, n, n, &one, b, type, n, a, type, n, &zero,
                (void *)(uintptr_t)p->memory[2], type, n, COMPUTE_F32, ANY_ALGORITHM) != 0 ||
        p->gpu.api->event_record(p->gpu.events[1], NULL) != 0)
        return NAN;
    return cuda_elapsed(&p->gpu);
}

/* Rows of A times columns of B, which has the same elements. */
static int check(gpu_products *p) {
    const int64_t n = p->n, at[3][2] = {{0, 0}, {n - 1, n / 3}, {n / 2, n - 1}};
    const void *rows = p->rows ? (const void *)p->rows : (const void *)p->rows_f32;
    const size_t element = p->dtype == TESS_F32 ? 4 : 2;
    const double bound = p->dtype == TESS_F32 ? 1e-4 : p->dtype == TESS_F16 ? 2e-3 : 1.6e-2;
    for (int i = 0; i < 3; i++) {
        double sum = 0;
        unsigned char got[4];
        for (int64_t k = 0; k < n; k++)
            sum += load_element(p->dtype, rows, at[i][0] * n + k) *
                   load_element(p->dtype, rows, k * n + at[i][1]);
        if (p->gpu.api->to_host(got, p->memory[2] + (uint64_t)(at[i][0] * n + at[i][1]) * element,
                                element) != 0 ||
            !(fabs(load_element(p->dtype, got, 0) - sum) <=
              bound * (1 + fabs(sum)) + 1e-6 * (double)n))
            return 0;
    }
    return 1;
}

static const char *name(const gpu_products *p) { return p->name; }
static const char *method(const gpu_products *p) {
    return p->dtype == TESS_F32 ? "cublasGemmEx, f32 without TF32" : "cublasGemmEx, sums in f32";
}

const gpu_library gpu_cublas = {"cuda", open_products, run, check, name, method, close_products};
