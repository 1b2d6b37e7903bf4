/* SPDX-License-Identifier: Apache-2.0 */
/* CLBlast, where the system has it: products of any vendor's GPU in OpenCL C, on multiply-adds. */
#include <math.h>
#include <stdio.h>

#include <tessera/tessera.h>

#include "find.h"
#include "gpu.h"
#include "opencl.h"
#include "reference.h"

enum { ROW_MAJOR = 101, NOT_TRANSPOSED = 111 };

typedef struct clblast {
    opencl_gpu gpu;
    int (*f32)(int, int, int, size_t, size_t, size_t, float, void *, size_t, size_t, void *, size_t,
               size_t, float, void *, size_t, size_t, void **, void **);
    int (*f16)(int, int, int, size_t, size_t, size_t, uint16_t, void *, size_t, size_t, void *,
               size_t, size_t, uint16_t, void *, size_t, size_t, void **, void **);
    void *memory[3]; /* A, B, C */
    size_t n;
    uint32_t dtype;
} clblast;

static void close_products(void *user) {
    clblast *p = user;
    for (int i = 0; i < 3; i++)
        if (p->memory[i]) p->gpu.cl->clReleaseMemObject(p->memory[i]);
    if (p->gpu.cl) opencl_close(&p->gpu);
}

static int place(clblast *p, const operands *o) {
    const cl_functions *cl = p->gpu.cl;
    int code = 0;
    for (int i = 0; i < 3 && code == 0; i++)
        p->memory[i] = cl->clCreateBuffer(p->gpu.context, OPENCL_READ_WRITE, o->bytes, NULL, &code);
    for (int i = 0; i < 3 && code == 0; i++)
        code = cl->clEnqueueWriteBuffer(p->gpu.queue, p->memory[i], 1, 0, o->bytes, o->data, 0,
                                        NULL, NULL);
    return code;
}

static int open_products(void *user, const bench_device *d, const operands *o, bench_ceiling *c,
                         char *why, size_t size) {
    static const char *const names[] = {"libclblast.so.1", "libclblast.so", NULL},
                             *const folders[] = {"$CLBLAST_ROOT/lib", NULL};
    const find_names where = {names, "libclblast.so", NULL, folders, "clblast*/lib"};
    static void *library;
    clblast *p = user;
    int code = 0;
    p->n = (size_t)o->n;
    p->dtype = o->dtype;
    if (!library && !(library = find_library(&where))) {
        snprintf(why, size, "CLBlast is not installed");
    } else if (!find_symbols(library, "CLBlastSgemm", &p->f32, "CLBlastHgemm", &p->f16, NULL)) {
        snprintf(why, size, "an unknown version of CLBlast");
    } else if (opencl_open(&p->gpu, d, why, size) != 0) {
        return -1;
    } else if (o->dtype == TESS_BF16 ||
               (o->dtype == TESS_F16 && !opencl_has(&p->gpu, "cl_khr_fp16"))) {
        snprintf(why, size, "CLBlast has no products of %s here", dtype_name(o->dtype));
    } else if ((code = place(p, o)) != 0) {
        snprintf(why, size, "operands of a product: OpenCL error %d", code);
    } else {
        snprintf(c->library, sizeof c->library, "CLBlast");
        snprintf(c->method, sizeof c->method, "CLBlast%cgemm, row-major",
                 o->dtype == TESS_F32 ? 'S' : 'H');
        return 0;
    }
    return -1;
}

static double run(void *user) {
    clblast *p = user;
    void *event = NULL, **a = p->memory;
    const size_t n = p->n;
    const int code =
        p->dtype == TESS_F32
            ? p->f32(ROW_MAJOR, NOT_TRANSPOSED, NOT_TRANSPOSED, n, n, n, 1, a[0], 0, n, a[1], 0, n,
                     0, a[2], 0, n, &p->gpu.queue, &event)
            : p->f16(ROW_MAJOR, NOT_TRANSPOSED, NOT_TRANSPOSED, n, n, n, float_to_half(1), a[0], 0,
                     n, a[1], 0, n, float_to_half(0), a[2], 0, n, &p->gpu.queue, &event);
    return code == 0 && event ? opencl_seconds(&p->gpu, event) : NAN;
}

static int fetch(void *user, void *to, uint64_t at, size_t bytes) {
    clblast *p = user;
    return p->gpu.cl->clEnqueueReadBuffer(p->gpu.queue, p->memory[2], 1, at, bytes, to, 0, NULL,
                                          NULL);
}

const gpu_library gpu_clblast = {"opencl", GPU_ANYBODYS, sizeof(clblast), open_products,
                                 run,      fetch,        close_products};
