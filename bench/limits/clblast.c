/* SPDX-License-Identifier: Apache-2.0 */
/* CLBlast, where the system has it: products of any vendor's GPU in OpenCL C, on multiply-adds. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <tessera/tessera.h>

#include "find.h"
#include "gpu.h"
#include "opencl.h"
#include "operands.h"
#include "reference.h"

enum { ROW_MAJOR = 101, NOT_TRANSPOSED = 111 };

struct gpu_products {
    opencl_gpu gpu;
    int (*f32)(int, int, int, size_t, size_t, size_t, float, void *, size_t, size_t, void *, size_t,
               size_t, float, void *, size_t, size_t, void **, void **);
    int (*f16)(int, int, int, size_t, size_t, size_t, uint16_t, void *, size_t, size_t, void *,
               size_t, size_t, uint16_t, void *, size_t, size_t, void **, void **);
    void *memory[3]; /* A, B, C */
    operands rows;   /* of A, which B repeats */
};

static void close_products(gpu_products *p) {
    for (int i = 0; i < 3; i++)
        if (p->memory[i]) p->gpu.cl->clReleaseMemObject(p->memory[i]);
    if (p->gpu.cl) opencl_close(&p->gpu);
    operands_free(&p->rows);
    free(p);
}

static int place(gpu_products *p, uint32_t dtype, int64_t n, char *why, size_t size) {
    const cl_functions *cl = p->gpu.cl;
    int code = operands_make(&p->rows, dtype, n) != 0 ? -6 : 0;
    for (int i = 0; i < 3 && code == 0; i++)
        p->memory[i] =
            cl->clCreateBuffer(p->gpu.context, OPENCL_READ_WRITE, p->rows.bytes, NULL, &code);
    for (int i = 0; i < 3 && code == 0; i++)
        code = cl->clEnqueueWriteBuffer(p->gpu.queue, p->memory[i], 1, 0, p->rows.bytes,
                                        p->rows.data, 0, NULL, NULL);
    if (code == 0) return 0;
    snprintf(why, size, "operands of a product: OpenCL error %d", code);
    return -1;
}

static gpu_products *open_products(const bench_device *d, uint32_t dtype, int64_t n, char *why,
                                   size_t size) {
    static const char *const names[] = {"libclblast.so.1", "libclblast.so", NULL},
                             *const folders[] = {"$CLBLAST_ROOT/lib", NULL};
    const find_names clblast = {names, "libclblast.so", NULL, folders, "clblast*/lib"};
    static void *library;
    if (!library) library = find_library(&clblast);
    if (!library) return snprintf(why, size, "CLBlast is not installed"), NULL;
    gpu_products *p = calloc(1, sizeof *p);
    if (!p) return snprintf(why, size, "out of memory"), NULL;
    int good = find_symbol(library, "CLBlastSgemm", &p->f32) &&
               find_symbol(library, "CLBlastHgemm", &p->f16);
    if (!good) snprintf(why, size, "an unknown version of CLBlast");
    good = good && opencl_open(&p->gpu, d, why, size) == 0;
    if (good &&
        (dtype == TESS_BF16 || (dtype == TESS_F16 && !opencl_has(&p->gpu, "cl_khr_fp16")))) {
        snprintf(why, size, "CLBlast has no products of %s here", dtype_name(dtype));
        good = 0;
    }
    if (good && place(p, dtype, n, why, size) == 0) return p;
    close_products(p);
    return NULL;
}

static double run(gpu_products *p) {
    void *event = NULL;
    void **a = p->memory;
    const size_t n = (size_t)p->rows.n;
    const int code =
        p->rows.dtype == TESS_F32
            ? p->f32(ROW_MAJOR, NOT_TRANSPOSED, NOT_TRANSPOSED, n, n, n, 1, a[0], 0, n, a[1], 0, n,
                     0, a[2], 0, n, &p->gpu.queue, &event)
            : p->f16(ROW_MAJOR, NOT_TRANSPOSED, NOT_TRANSPOSED, n, n, n, float_to_half(1), a[0], 0,
                     n, a[1], 0, n, float_to_half(0), a[2], 0, n, &p->gpu.queue, &event);
    return code == 0 && event ? opencl_seconds(&p->gpu, event) : NAN;
}

static int fetch(void *user, void *to, uint64_t at, size_t bytes) {
    gpu_products *p = user;
    return p->gpu.cl->clEnqueueReadBuffer(p->gpu.queue, p->memory[2], 1, at, bytes, to, 0, NULL,
                                          NULL);
}

static int check(gpu_products *p) { return operands_check(&p->rows, fetch, p); }
static const char *name(const gpu_products *p) {
    (void)p;
    return "CLBlast";
}
static const char *method(const gpu_products *p) {
    return p->rows.dtype == TESS_F32 ? "CLBlastSgemm, row-major" : "CLBlastHgemm, row-major";
}

const gpu_library gpu_clblast = {"opencl", GPU_ANYBODYS, open_products, run,
                                 check,    name,         method,        close_products};
