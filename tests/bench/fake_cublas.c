/* SPDX-License-Identifier: Apache-2.0 */
/* A cuBLAS on the driver of fake_cuda.c. The word "broken" in FAKE_GPU: it gives no handle. */
#include <stddef.h>

#include "fake_cuda.h"

/* Found by name alone. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#define API __attribute__((visibility("default")))

enum { OK = 0, INVALID = 7 };

static int handle;
API int cublasCreate_v2(void **to) {
    *to = &handle;
    return fake_has("broken") ? 1 : OK;
}
API int cublasDestroy_v2(void *h) { return h == &handle ? OK : INVALID; }
API int cublasGetVersion_v2(void *h, int *version) {
    *version = 130102;
    return h == &handle ? OK : INVALID;
}
API int cublasSetWorkspace_v2(void *h, void *memory, size_t bytes) {
    return h == &handle && memory && bytes ? OK : INVALID;
}
API int cublasGemmEx(void *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a,
                     int a_type, int lda, const void *b, int b_type, int ldb, const void *beta,
                     void *c, int c_type, int ldc, int compute, int algorithm) {
    if (h != &handle || ta || tb || m != n || k != n || lda != n || ldb != n || ldc != n ||
        a_type != b_type || c_type != a_type || compute != 68 || algorithm != -1 ||
        *(const float *)alpha != 1 || *(const float *)beta != 0)
        return INVALID;
    fake_product(a, b, c, n, a_type);
    return OK;
}
