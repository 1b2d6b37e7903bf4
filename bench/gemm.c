/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The libraries are called through declarations of our own. oneDNN's C interface changed between
 * versions 2 and 3: version 2 has public descriptor structures, filled by *_init functions, version
 * 3 has opaque ones. Descriptors of version 2 live in blobs that are several times their size.
 */
#include "gemm.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tessera/tessera.h>

#include "gemm_loop.h"
#include "limits/find.h"
#include "reference.h"
#include "results.h"

/* ------------------------------------------------------------------ what the libraries declare */

enum {
    ONEDNN_OK = 0,
    ONEDNN_CPU = 1,
    ONEDNN_TAG_ANY = 1,
    ONEDNN_TAG_AB = 3,
    ONEDNN_QUERY_WEIGHTS = 131,
    ONEDNN_IN_ORDER = 1
};
enum { ONEDNN_ARG_SRC = 1, ONEDNN_ARG_DST = 17, ONEDNN_ARG_WEIGHTS = 33 };
enum { ONEDNN_F16 = 1, ONEDNN_BF16 = 2, ONEDNN_F32 = 3 };
enum { CBLAS_ROW_MAJOR = 101, CBLAS_NO_TRANS = 111 };

typedef struct onednn_version {
    int major, minor, patch; /* more follows */
} onednn_version;
typedef struct onednn_arg {
    int arg;
    void *memory;
} onednn_arg;

typedef struct onednn_api {
    const onednn_version *(*version)(void);
    int (*sgemm)(char, char, int64_t, int64_t, int64_t, float, const float *, int64_t,
                 const float *, int64_t, float, float *, int64_t);
    int (*engine_create)(void **, int, size_t);
    int (*stream_create)(void **, void *, unsigned);
    int (*stream_wait)(void *);
    int (*memory_create)(void **, const void *, void *, void *);
    int (*primitive_create)(void **, const void *);
    int (*primitive_execute)(const void *, void *, int, const onednn_arg *);
    const void *(*query_md)(const void *, int, int);
    size_t (*memory_size)(const void *);
    int (*memory_destroy)(void *), (*primitive_destroy)(void *), (*primitive_desc_destroy)(void *),
        (*stream_destroy)(void *), (*engine_destroy)(void *);
    /* version 2 */
    int (*md_init)(void *, int, const int64_t *, int, int);
    int (*matmul_init)(void *, const void *, const void *, const void *, const void *);
    int (*primitive_desc_create)(void **, const void *, const void *, void *, const void *);
    /* version 3 */
    int (*md_create)(void **, int, const int64_t *, int, int);
    int (*md_destroy)(void *);
    int (*matmul_create)(void **, void *, const void *, const void *, const void *, const void *,
                         const void *);
} onednn_api;

typedef void (*sgemm_fn)(int, int, int, int, int, int, float, const float *, int, const float *,
                         int, float, float *, int);
typedef void (*bgemm_fn)(int, int, int, int, int, int, float, const uint16_t *, int,
                         const uint16_t *, int, float, float *, int);

typedef struct provider {
    const char *name;
    const char *files[5];
    int kind; /* 0 oneDNN, 1 a BLAS, 2 our own loop */
} provider;

static const provider providers[GEMM_PROVIDERS] = {
    {"oneDNN", {"libdnnl.so.3", "libdnnl.so.2", "libdnnl.so", NULL}, 0},
    {"MKL", {"libmkl_rt.so.2", "libmkl_rt.so.1", "libmkl_rt.so", NULL}, 1},
    {"OpenBLAS", {"libopenblas.so.0", "libopenblas.so", "libopenblas.0.dylib", NULL}, 1},
    {"BLIS", {"libblis.so.4", "libblis.so.3", "libblis.so", NULL}, 1},
    {"own loop", {NULL}, 2},
};

struct gemm {
    int64_t n;
    uint32_t dtype;
    int kind, checkable;
    void *library;
    void *a, *b, *c;
    size_t b_bytes;
    int c_is_float;
    char name[96], method[128];
    onednn_api dn;
    void *engine, *stream, *primitive_desc, *primitive, *memory[3];
    void *md[3]; /* of version 3, owned */
    sgemm_fn sgemm;
    bgemm_fn bgemm;
    gemm_loop *loop;
};

const char *gemm_provider_name(int p) { return providers[p].name; }
int gemm_provider_is_own(int p) { return providers[p].kind == 2; }
const char *gemm_library(const gemm *g) { return g->name; }
const char *gemm_method(const gemm *g) { return g->method; }

/* ------------------------------------------------------------------ operands */

static void *matrix(size_t bytes) {
    void *p = NULL;
    return posix_memalign(&p, 4096, bytes ? bytes : 4096) == 0 ? p : NULL;
}

/* Values in [-1, 1) from a small generator; real data keeps the multipliers as busy as a kernel's
 * data would. */
static void fill(void *data, uint32_t dtype, size_t count, uint64_t seed) {
    uint64_t s = seed * 0x9e3779b97f4a7c15u + 1;
    for (size_t i = 0; i < count; i++) {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        float f = (float)((double)(s >> 40) / (double)(1u << 23) - 1.0);
        if (dtype == TESS_F32)
            ((float *)data)[i] = f;
        else
            ((uint16_t *)data)[i] = dtype == TESS_F16 ? float_to_half(f) : float_to_bf16(f);
    }
}

static int make_operands(gemm *g) {
    size_t count = (size_t)(g->n * g->n), size = dtype_size(g->dtype);
    g->a = matrix(count * size);
    if (!g->b_bytes) g->b_bytes = count * size;
    g->b = matrix(g->b_bytes);
    g->c = matrix(count * sizeof(float));
    if (!g->a || !g->b || !g->c) return -1;
    fill(g->a, g->dtype, count, 1);
    fill(g->b, g->dtype, g->b_bytes / size, 2);
    memset(g->c, 0, count * sizeof(float));
    return 0;
}

/* ------------------------------------------------------------------ oneDNN */

static int onednn_load(gemm *g) {
    void *l = g->library;
    onednn_api *d = &g->dn;
    int ok = find_symbols(
        l, "dnnl_version", &d->version, "dnnl_sgemm", &d->sgemm, "dnnl_engine_create",
        &d->engine_create, "dnnl_stream_create", &d->stream_create, "dnnl_stream_wait",
        &d->stream_wait, "dnnl_memory_create", &d->memory_create, "dnnl_primitive_create",
        &d->primitive_create, "dnnl_primitive_execute", &d->primitive_execute,
        "dnnl_primitive_desc_query_md", &d->query_md, "dnnl_memory_desc_get_size", &d->memory_size,
        "dnnl_memory_destroy", &d->memory_destroy, "dnnl_primitive_destroy", &d->primitive_destroy,
        "dnnl_primitive_desc_destroy", &d->primitive_desc_destroy, "dnnl_stream_destroy",
        &d->stream_destroy, "dnnl_engine_destroy", &d->engine_destroy, NULL);
    if (!ok) return -1;
    int major = d->version()->major;
    if (major == 2)
        return find_symbols(l, "dnnl_memory_desc_init_by_tag", &d->md_init, "dnnl_matmul_desc_init",
                            &d->matmul_init, "dnnl_primitive_desc_create",
                            &d->primitive_desc_create, NULL)
                   ? 0
                   : -1;
    if (major == 3)
        return find_symbols(l, "dnnl_memory_desc_create_with_tag", &d->md_create,
                            "dnnl_memory_desc_destroy", &d->md_destroy,
                            "dnnl_matmul_primitive_desc_create", &d->matmul_create, NULL)
                   ? 0
                   : -1;
    return -1;
}

static int onednn_prepare(gemm *g, int variant, char *reason, size_t reason_size) {
    onednn_api *d = &g->dn;
    if (onednn_load(g) != 0)
        return snprintf(reason, reason_size, "an unknown version of oneDNN"), -1;
    const onednn_version *v = d->version();
    snprintf(g->name, sizeof g->name, "oneDNN %d.%d.%d", v->major, v->minor, v->patch);
    if (g->dtype == TESS_F32 && variant == 0) {
        snprintf(g->method, sizeof g->method, "dnnl_sgemm, row-major");
        g->kind = 3;
        g->checkable = 1;
        return make_operands(g);
    }
    if (variant > 1) return snprintf(reason, reason_size, "no further variant"), -1;
    int type = g->dtype == TESS_F32 ? ONEDNN_F32 : g->dtype == TESS_F16 ? ONEDNN_F16 : ONEDNN_BF16;
    int64_t dims[2] = {g->n, g->n};
    const int tags[3] = {ONEDNN_TAG_AB, variant ? ONEDNN_TAG_ANY : ONEDNN_TAG_AB, ONEDNN_TAG_AB};
    enum { MD_ROOM = 4096, DESC_ROOM = 16384 }; /* version 2.6 needs 696 and 2800 */
    char *blob = calloc(1, 3 * MD_ROOM + DESC_ROOM);
    if (!blob) return snprintf(reason, reason_size, "out of memory"), -1;
    const void *md[3];
    int status = d->engine_create(&g->engine, ONEDNN_CPU, 0);
    if (status == ONEDNN_OK) status = d->stream_create(&g->stream, g->engine, ONEDNN_IN_ORDER);
    for (int i = 0; i < 3 && status == ONEDNN_OK; i++) {
        if (d->md_create) {
            status = d->md_create(&g->md[i], 2, dims, type, tags[i]);
            md[i] = g->md[i];
        } else {
            status = d->md_init(blob + i * MD_ROOM, 2, dims, type, tags[i]);
            md[i] = blob + i * MD_ROOM;
        }
    }
    if (status == ONEDNN_OK) {
        if (d->matmul_create) {
            status =
                d->matmul_create(&g->primitive_desc, g->engine, md[0], md[1], NULL, md[2], NULL);
        } else {
            status = d->matmul_init(blob + 3 * MD_ROOM, md[0], md[1], NULL, md[2]);
            if (status == ONEDNN_OK)
                status = d->primitive_desc_create(&g->primitive_desc, blob + 3 * MD_ROOM, NULL,
                                                  g->engine, NULL);
        }
    }
    if (status == ONEDNN_OK) status = d->primitive_create(&g->primitive, g->primitive_desc);
    if (status == ONEDNN_OK) {
        const void *weights = d->query_md(g->primitive_desc, ONEDNN_QUERY_WEIGHTS, 0);
        if (weights) md[1] = weights;
        g->b_bytes = d->memory_size(md[1]);
        if (make_operands(g) != 0) status = -1;
        void *data[3] = {g->a, g->b, g->c};
        for (int i = 0; i < 3 && status == ONEDNN_OK; i++)
            status = d->memory_create(&g->memory[i], md[i], g->engine, data[i]);
    }
    free(blob);
    if (status != ONEDNN_OK)
        return snprintf(reason, reason_size, "%s has no %s matmul here (status %d)", g->name,
                        dtype_name(g->dtype), status),
               -1;
    snprintf(g->method, sizeof g->method, "matmul primitive, %s",
             variant ? "own layout" : "row-major");
    g->checkable = variant == 0;
    return 0;
}

static int onednn_run(gemm *g) {
    onednn_api *d = &g->dn;
    if (g->kind == 3)
        return d->sgemm('N', 'N', g->n, g->n, g->n, 1.0f, g->a, g->n, g->b, g->n, 0.0f, g->c, g->n);
    onednn_arg args[3] = {{ONEDNN_ARG_SRC, g->memory[0]},
                          {ONEDNN_ARG_WEIGHTS, g->memory[1]},
                          {ONEDNN_ARG_DST, g->memory[2]}};
    int status = d->primitive_execute(g->primitive, g->stream, 3, args);
    return status ? status : d->stream_wait(g->stream);
}

/* ------------------------------------------------------------------ BLAS */

static void blas_version(gemm *g, const char *name) {
    char *(*get_config)(void);
    char *(*blis_version)(void);
    void (*mkl_version)(char *, int);
    snprintf(g->name, sizeof g->name, "%s", name);
    if (find_symbol(g->library, "openblas_get_config", &get_config)) {
        /* "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH ..." */
        const char *config = get_config();
        const char *second = strchr(config, ' ');
        int length = second ? (int)(second + 1 - config + (ptrdiff_t)strcspn(second + 1, " "))
                            : (int)strlen(config);
        snprintf(g->name, sizeof g->name, "%.*s", length > 60 ? 60 : length, config);
    } else if (find_symbol(g->library, "bli_info_get_version_str", &blis_version)) {
        snprintf(g->name, sizeof g->name, "BLIS %.60s", blis_version());
    } else if (find_symbol(g->library, "mkl_get_version_string", &mkl_version)) {
        char text[256] = "";
        mkl_version(text, (int)sizeof text - 1);
        const char *at = strstr(text, "Version ");
        if (at) snprintf(g->name, sizeof g->name, "MKL %.*s", (int)strcspn(at + 8, " "), at + 8);
    }
}

static int blas_prepare(gemm *g, const char *name, int variant, int threads, char *reason,
                        size_t reason_size) {
    void (*set_threads)(int);
    void (*set_threads_blis)(long);
    if (variant > 0) return snprintf(reason, reason_size, "no further variant"), -1;
    blas_version(g, name);
    if (g->dtype == TESS_F32) {
        if (!find_symbol(g->library, "cblas_sgemm", &g->sgemm))
            return snprintf(reason, reason_size, "%s has no cblas_sgemm", g->name), -1;
        snprintf(g->method, sizeof g->method, "cblas_sgemm, row-major");
    } else if (g->dtype == TESS_BF16) {
        if (find_symbol(g->library, "cblas_gemm_bf16bf16f32", &g->bgemm))
            snprintf(g->method, sizeof g->method, "cblas_gemm_bf16bf16f32, row-major");
        else if (find_symbol(g->library, "cblas_sbgemm", &g->bgemm))
            snprintf(g->method, sizeof g->method, "cblas_sbgemm, row-major");
        else
            return snprintf(reason, reason_size, "%s has no bf16 product", g->name), -1;
        g->c_is_float = 1;
    } else {
        return snprintf(reason, reason_size, "%s has no f16 product", g->name), -1;
    }
    /* The environment was set before the library was opened; these calls hold where something else
     * had loaded it already. */
    if (find_symbol(g->library, "openblas_set_num_threads", &set_threads)) set_threads(threads);
    if (find_symbol(g->library, "MKL_Set_Num_Threads", &set_threads)) set_threads(threads);
    if (find_symbol(g->library, "bli_thread_set_num_threads", &set_threads_blis))
        set_threads_blis(threads);
    g->checkable = 1;
    return make_operands(g) == 0 ? 0 : (snprintf(reason, reason_size, "out of memory"), -1);
}

static int blas_run(gemm *g) {
    int n = (int)g->n;
    if (g->sgemm)
        g->sgemm(CBLAS_ROW_MAJOR, CBLAS_NO_TRANS, CBLAS_NO_TRANS, n, n, n, 1.0f, g->a, n, g->b, n,
                 0.0f, g->c, n);
    else
        g->bgemm(CBLAS_ROW_MAJOR, CBLAS_NO_TRANS, CBLAS_NO_TRANS, n, n, n, 1.0f, g->a, n, g->b, n,
                 0.0f, g->c, n);
    return 0;
}

/* ------------------------------------------------------------------ one interface */

gemm *gemm_open(int p, uint32_t dtype, int variant, int64_t n, int threads, char *reason,
                size_t reason_size) {
    gemm *g = calloc(1, sizeof *g);
    if (!g) return snprintf(reason, reason_size, "out of memory"), NULL;
    g->n = n;
    g->dtype = dtype;
    g->kind = providers[p].kind;
    if (g->kind == 2) {
        if (variant == 0) g->loop = gemm_loop_create(threads, dtype);
        if (!g->loop) {
            snprintf(reason, reason_size, "there is no loop of this type for the processor");
            gemm_close(g);
            return NULL;
        }
        snprintf(g->name, sizeof g->name, "own loop");
        snprintf(g->method, sizeof g->method, "%s micro-kernel%s", gemm_loop_name(g->loop),
                 gemm_loop_widens(g->loop) ? ", widens to f32" : "");
        return g;
    }
    for (int i = 0; providers[p].files[i] && !g->library; i++)
        g->library = dlopen(providers[p].files[i], RTLD_NOW | RTLD_LOCAL);
    if (!g->library) {
        snprintf(reason, reason_size, "%s is not installed", providers[p].files[0]);
        gemm_close(g);
        return NULL;
    }
    int status = g->kind == 0
                     ? onednn_prepare(g, variant, reason, reason_size)
                     : blas_prepare(g, providers[p].name, variant, threads, reason, reason_size);
    if (status != 0) {
        gemm_close(g);
        return NULL;
    }
    return g;
}

int gemm_run(gemm *g) {
    return g->kind == 2         ? gemm_loop_run(g->loop)
           : g->kind == 1       ? blas_run(g)
           : onednn_run(g) == 0 ? 0
                                : -1;
}

double gemm_flops(const gemm *g) {
    return g->kind == 2 ? gemm_loop_flops(g->loop)
                        : 2.0 * (double)g->n * (double)g->n * (double)g->n;
}

int gemm_check(const gemm *g) {
    if (!g->checkable) return 1;
    const int64_t at[4][2] = {{0, 0}, {g->n - 1, g->n - 1}, {g->n / 3, g->n / 2}, {1, g->n - 1}};
    double eps = g->dtype == TESS_F32 || g->c_is_float ? 1e-4
                 : g->dtype == TESS_F16                ? 2e-3
                                                       : 1.6e-2;
    for (int i = 0; i < 4; i++) {
        double sum = 0, size = 0;
        for (int64_t k = 0; k < g->n; k++) {
            double product = load_element(g->dtype, g->a, at[i][0] * g->n + k) *
                             load_element(g->dtype, g->b, k * g->n + at[i][1]);
            sum += product;
            size += fabs(product);
        }
        double got = load_element(g->c_is_float ? (uint32_t)TESS_F32 : g->dtype, g->c,
                                  at[i][0] * g->n + at[i][1]);
        if (!(fabs(got - sum) <= eps * (1 + fabs(sum)) + 1e-6 * size)) return 0;
    }
    return 1;
}

/* Libraries stay open: some keep threads whose code must not be unmapped, and the process that
 * measures ends right after. */
void gemm_close(gemm *g) {
    if (!g) return;
    for (int i = 0; i < 3; i++) {
        if (g->memory[i]) g->dn.memory_destroy(g->memory[i]);
        if (g->md[i]) g->dn.md_destroy(g->md[i]);
    }
    if (g->primitive) g->dn.primitive_destroy(g->primitive);
    if (g->primitive_desc) g->dn.primitive_desc_destroy(g->primitive_desc);
    if (g->stream) g->dn.stream_destroy(g->stream);
    if (g->engine) g->dn.engine_destroy(g->engine);
    gemm_loop_destroy(g->loop);
    free(g->a);
    free(g->b);
    free(g->c);
    free(g);
}
