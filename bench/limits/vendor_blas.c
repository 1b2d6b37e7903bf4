/* SPDX-License-Identifier: Apache-2.0 */
/* The vendors' libraries for matrix products on the drivers of CUDA and HIP, wherever they lie: in
 * the system, in the vendor's folders, or in a Python package. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <tessera/tessera.h>

#include "driver.h"
#include "find.h"
#include "gpu.h"

enum { A, B, C, WORKSPACE, PARTS, WORKSPACE_BYTES = 32 << 20 };

/* Of hipBLASLt's C interface: an algorithm, and what the search says about it. */
typedef struct lt_found {
    struct {
        uint8_t data[16];
        size_t most_workspace;
    } algorithm;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
} lt_found;

typedef struct vendor_blas vendor_blas;
/* What one library does its own way. */
typedef struct vendor_calls {
    find_names where;
    const char *name, *method, *folders; /* the last two for messages */
    int types[3];                        /* by tess_dtype */
    /* Finds its functions and makes a handle; 0, a status, or -1 for an unknown version. */
    int (*connect)(vendor_blas *p, void *library, int version[3]);
    int (*product)(void *p);
    void (*disconnect)(vendor_blas *p);
} vendor_calls;

struct vendor_blas {
    const vendor_calls *calls;
    driver_gpu gpu;
    void *handle;
    int (*destroy)(void *);
    struct {
        void *parts[3]; /* descriptors */
        int (*drop[3])(void *);
        lt_found choice;
    } lt;
    union {
        int (*cublas)(void *, int, int, int, int, int, const void *, const void *, int, int,
                      const void *, int, int, const void *, void *, int, int, int, int);
        int (*rocblas)(void *, int, int, int, int, int, const void *, const void *, int, int,
                       const void *, int, int, const void *, const void *, int, int, void *, int,
                       int, int, int, int32_t, uint32_t);
        int (*hipblaslt)(void *, void *, const void *, const void *, void *, const void *, void *,
                         const void *, const void *, void *, void *, void *, const void *, void *,
                         size_t, void *);
    } gemm;
    uint64_t memory[PARTS];
    int n, type;
};

static const float one = 1, zero = 0;

static void *at(const vendor_blas *p, int part) { return (void *)(uintptr_t)p->memory[part]; }

/* ------------------------------------------------------------------ cuBLAS */

enum { CUBLAS_OP_N = 0, CUBLAS_COMPUTE_F32 = 68, CUBLAS_ANY_ALGORITHM = -1 };

static int connect_cublas(vendor_blas *p, void *library, int version[3]) {
    int (*create)(void **), (*version_of)(void *, int *), (*set_workspace)(void *, void *, size_t);
    int number = 0;
    if (!find_symbols(library, "cublasCreate_v2", &create, "cublasDestroy_v2", &p->destroy,
                      "cublasGetVersion_v2", &version_of, "cublasGemmEx", &p->gemm.cublas, NULL))
        return -1;
    const int status = create(&p->handle);
    if (status != 0) return status;
    version_of(p->handle, &number);
    version[0] = number / 10000;
    version[1] = number / 100 % 100;
    version[2] = number % 100;
    return find_symbol(library, "cublasSetWorkspace_v2", &set_workspace)
               ? set_workspace(p->handle, at(p, WORKSPACE), WORKSPACE_BYTES)
               : 0;
}

static int product_cublas(void *user) {
    const vendor_blas *p = user;
    const int n = p->n, t = p->type;
    return p->gemm.cublas(p->handle, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, at(p, B), t, n,
                          at(p, A), t, n, &zero, at(p, C), t, n, CUBLAS_COMPUTE_F32,
                          CUBLAS_ANY_ALGORITHM);
}

/* ------------------------------------------------------------------ rocBLAS */

enum { ROCBLAS_OP_N = 111, ROCBLAS_F32 = 151, ROCBLAS_STANDARD = 0 };

static int connect_rocblas(vendor_blas *p, void *library, int version[3]) {
    int (*create)(void **), (*version_of)(char *, size_t);
    char text[32] = "";
    if (!find_symbols(library, "rocblas_create_handle", &create, "rocblas_destroy_handle",
                      &p->destroy, "rocblas_get_version_string", &version_of, "rocblas_gemm_ex",
                      &p->gemm.rocblas, NULL))
        return -1;
    const int status = create(&p->handle);
    if (status == 0 && version_of(text, sizeof text) == 0)
        sscanf(text, "%d.%d.%d", &version[0], &version[1], &version[2]);
    return status;
}

static int product_rocblas(void *user) {
    const vendor_blas *p = user;
    const int n = p->n, t = p->type;
    return p->gemm.rocblas(p->handle, ROCBLAS_OP_N, ROCBLAS_OP_N, n, n, n, &one, at(p, B), t, n,
                           at(p, A), t, n, &zero, at(p, C), t, n, at(p, C), t, n, ROCBLAS_F32,
                           ROCBLAS_STANDARD, 0, 0);
}

/* ------------------------------------------------------------------ hipBLASLt */

enum { LT_COMPUTE_F32 = 2, LT_F32 = 0, LT_MOST_WORKSPACE = 1 };
enum { LT_PRODUCT, LT_LAYOUT, LT_PREFERENCE };

static int connect_hipblaslt(vendor_blas *p, void *library, int version[3]) {
    int (*create)(void **), (*version_of)(void *, int *), (*product)(void **, int, int);
    int (*layout)(void **, int, uint64_t, uint64_t, int64_t), (*preference)(void **);
    int (*set)(void *, int, const void *, size_t);
    int (*search)(void *, void *, void *, void *, void *, void *, void *, int, lt_found *, int *);
    const uint64_t most = WORKSPACE_BYTES, n = (uint64_t)p->n;
    int number = 0, count = 0;
    if (!find_symbols(library, "hipblasLtCreate", &create, "hipblasLtDestroy", &p->destroy,
                      "hipblasLtGetVersion", &version_of, "hipblasLtMatmulDescCreate", &product,
                      "hipblasLtMatmulDescDestroy", &p->lt.drop[LT_PRODUCT],
                      "hipblasLtMatrixLayoutCreate", &layout, "hipblasLtMatrixLayoutDestroy",
                      &p->lt.drop[LT_LAYOUT], "hipblasLtMatmulPreferenceCreate", &preference,
                      "hipblasLtMatmulPreferenceDestroy", &p->lt.drop[LT_PREFERENCE],
                      "hipblasLtMatmulPreferenceSetAttribute", &set,
                      "hipblasLtMatmulAlgoGetHeuristic", &search, "hipblasLtMatmul",
                      &p->gemm.hipblaslt, NULL))
        return -1;
    void **x = p->lt.parts;
    int status = create(&p->handle);
    if (status == 0) status = version_of(p->handle, &number);
    if (status == 0) status = product(&x[LT_PRODUCT], LT_COMPUTE_F32, LT_F32);
    if (status == 0) status = layout(&x[LT_LAYOUT], p->type, n, n, (int64_t)n);
    if (status == 0) status = preference(&x[LT_PREFERENCE]);
    if (status == 0) status = set(x[LT_PREFERENCE], LT_MOST_WORKSPACE, &most, sizeof most);
    if (status == 0)
        status = search(p->handle, x[LT_PRODUCT], x[LT_LAYOUT], x[LT_LAYOUT], x[LT_LAYOUT],
                        x[LT_LAYOUT], x[LT_PREFERENCE], 1, &p->lt.choice, &count);
    version[0] = number / 100000;
    version[1] = number / 100 % 1000;
    version[2] = number % 100;
    return status != 0 ? status : count == 1 ? p->lt.choice.state : -1;
}

static int product_hipblaslt(void *user) {
    const vendor_blas *p = user;
    void *const *x = p->lt.parts;
    return p->gemm.hipblaslt(p->handle, x[LT_PRODUCT], &one, at(p, B), x[LT_LAYOUT], at(p, A),
                             x[LT_LAYOUT], &zero, at(p, C), x[LT_LAYOUT], at(p, C), x[LT_LAYOUT],
                             &p->lt.choice.algorithm, at(p, WORKSPACE), WORKSPACE_BYTES, NULL);
}

static void disconnect_hipblaslt(vendor_blas *p) {
    for (int i = 0; i < 3; i++)
        if (p->lt.parts[i]) p->lt.drop[i](p->lt.parts[i]);
}

/* ------------------------------------------------------------------ all of them */

static void close_products(void *user) {
    vendor_blas *p = user;
    if (p->calls && p->calls->disconnect) p->calls->disconnect(p);
    if (p->handle) p->destroy(p->handle);
    for (int i = 0; i < PARTS; i++)
        if (p->memory[i]) p->gpu.api->free(p->memory[i]);
    if (p->gpu.api) driver_close(&p->gpu);
}

static int place(vendor_blas *p, const operands *o) {
    const driver_api *a = p->gpu.api;
    int code = 0;
    for (int i = 0; i < PARTS && code == 0; i++)
        code = a->alloc(&p->memory[i], i < WORKSPACE ? o->bytes : (size_t)WORKSPACE_BYTES);
    for (int i = A; i <= B && code == 0; i++) code = a->to_device(p->memory[i], o->data, o->bytes);
    return code;
}

static int open_products(vendor_blas *p, const vendor_calls *calls, void **library,
                         const bench_device *d, const operands *o, bench_ceiling *c, char *why,
                         size_t size) {
    int version[3] = {0};
    p->calls = calls;
    p->n = (int)o->n;
    p->type = calls->types[o->dtype];
    if (!*library) *library = find_library(&calls->where);
    if (!*library)
        return snprintf(why, size, "%s was not found in the system, in %s or in Python's packages",
                        calls->name, calls->folders),
               -1;
    if (driver_open(&p->gpu, d, why, size) != 0) return -1;
    const int code = place(p, o);
    if (code != 0)
        return snprintf(why, size, "operands of a product: %s error %d", p->gpu.api->name, code),
               -1;
    const int status = calls->connect(p, *library, version);
    if (status != 0)
        return status < 0
                   ? snprintf(why, size, "an unknown version of %s", calls->name)
                   : snprintf(why, size, "%s gives no handle: status %d", calls->name, status),
               -1;
    snprintf(c->library, sizeof c->library, "%s %d.%d.%d", calls->name, version[0], version[1],
             version[2]);
    snprintf(c->method, sizeof c->method, "%s, %s", calls->method,
             o->dtype == TESS_F32 ? "f32 alone" : "sums in f32");
    return 0;
}

static double run(void *user) {
    vendor_blas *p = user;
    return driver_seconds(&p->gpu, p->calls->product, p);
}

static int fetch(void *user, void *to, uint64_t from, size_t bytes) {
    const vendor_blas *p = user;
    return p->gpu.api->to_host(to, p->memory[C] + from, bytes);
}

/* A library's table, and the row that the suite asks. */
#define LIBRARY(name, backend, ...)                                                             \
    static int open_##name(void *p, const bench_device *d, const operands *o, bench_ceiling *c, \
                           char *why, size_t size) {                                            \
        static const vendor_calls calls = {__VA_ARGS__};                                        \
        static void *library;                                                                   \
        return open_products(p, &calls, &library, d, o, c, why, size);                          \
    }                                                                                           \
    const gpu_library gpu_##name = {backend, GPU_VENDORS, sizeof(vendor_blas), open_##name,     \
                                    run,     fetch,       close_products};

static const char *const cublas_files[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so.11",
                                           "libcublas.so", NULL};
static const char *const cuda_folders[] = {"$CUDA_HOME/lib64",     "$CUDA_PATH/lib64",
                                           "$CONDA_PREFIX/lib",    "/usr/local/cuda*/lib64",
                                           "/usr/local/cuda*/lib", "/usr/local/cuda*/targets/*/lib",
                                           "/opt/cuda*/lib64",     NULL};
LIBRARY(cublas, "cuda",
        {cublas_files, "libcublas.so", "libcublasLt.so", cuda_folders, "nvidia/*/lib"}, "cuBLAS",
        "cublasGemmEx", "CUDA's folders", {[TESS_F32] = 0, [TESS_F16] = 2, [TESS_BF16] = 14},
        connect_cublas, product_cublas, NULL)

static const char *const rocblas_files[] = {"librocblas.so.5", "librocblas.so.4", "librocblas.so.3",
                                            "librocblas.so", NULL};
LIBRARY(rocblas, "hip",
        {rocblas_files, "librocblas.so", NULL, find_rocm_folders, "_rocm_sdk_*/lib"}, "rocBLAS",
        "rocblas_gemm_ex", "ROCm's folders",
        {[TESS_F32] = 151, [TESS_F16] = 150, [TESS_BF16] = 168}, connect_rocblas, product_rocblas,
        NULL)

static const char *const hipblaslt_files[] = {"libhipblaslt.so.1", "libhipblaslt.so.0",
                                              "libhipblaslt.so", NULL};
LIBRARY(hipblaslt, "hip",
        {hipblaslt_files, "libhipblaslt.so", NULL, find_rocm_folders, "_rocm_sdk_*/lib"},
        "hipBLASLt", "hipblasLtMatmul", "ROCm's folders",
        {[TESS_F32] = 0, [TESS_F16] = 2, [TESS_BF16] = 14}, connect_hipblaslt, product_hipblaslt,
        disconnect_hipblaslt)
