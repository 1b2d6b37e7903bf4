/* SPDX-License-Identifier: Apache-2.0 */
/* Loops for AMD's GPUs in HIP C++, which ROCm's run-time compiler compiles. */
#include "hip.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "find.h"
#include "gpu.h"

enum { CHAINS = 8, F32_LANES = 4, F16_LANES = 2, GROUPS_A_UNIT = 8 };

/* A thread moves vectors a group apart. Sums are stored only if they have a value that they never
 * have: the loop must not be left out. */
static const char source[] =
    "#include <hip/hip_fp16.h>\n"
    "extern \"C\" __global__ void copy_loop(const uint4 *from, uint4 *to) {\n"
    "    size_t at = (size_t)blockIdx.x * 1024 + threadIdx.x;\n"
    "    uint4 a = from[at], b = from[at + 256], c = from[at + 512], d = from[at + 768];\n"
    "    to[at] = a; to[at + 256] = b; to[at + 512] = c; to[at + 768] = d;\n"
    "}\n"
    "static __device__ unsigned mix(uint4 v) { return v.x ^ v.y ^ v.z ^ v.w; }\n"
    "extern \"C\" __global__ void read_loop(const uint4 *from, uint4 *to) {\n"
    "    size_t at = (size_t)blockIdx.x * 1024 + threadIdx.x;\n"
    "    unsigned x = mix(from[at]) ^ mix(from[at + 256]) ^ mix(from[at + 512]) ^\n"
    "                 mix(from[at + 768]);\n"
    "    if (x == 0x9e3779b9u) to[at].x = x;\n"
    "}\n"
    "extern \"C\" __global__ void fma_f32(float *to, unsigned turns) {\n"
    "    float x = threadIdx.x, y = 0.999f, a[32], sum = 0;\n"
    "    for (int i = 0; i < 32; i++) a[i] = x + i;\n"
    "    for (unsigned n = 0; n < turns; n++)\n"
    "#pragma unroll\n"
    "        for (int i = 0; i < 32; i++) a[i] = fmaf(a[i], y, x);\n"
    "    for (int i = 0; i < 32; i++) sum += a[i];\n"
    "    if (sum == 1.2345f) to[0] = sum;\n"
    "}\n"
    "extern \"C\" __global__ void fma_f16(float *to, unsigned turns) {\n"
    "    __half2 x = __float2half2_rn(threadIdx.x), y = __float2half2_rn(0.999f), a[8];\n"
    "    for (int i = 0; i < 8; i++) a[i] = __hadd2(x, __float2half2_rn(i));\n"
    "    for (unsigned n = 0; n < turns; n++)\n"
    "#pragma unroll\n"
    "        for (int i = 0; i < 8; i++) a[i] = __hfma2(a[i], y, x);\n"
    "    for (int i = 1; i < 8; i++) a[0] = __hadd2(a[0], a[i]);\n"
    "    if (__low2float(a[0]) == 1.2345f) to[0] = 1;\n"
    "}\n";

/* ------------------------------------------------------------------ the driver */

static const hip_api *hip_runtime(char *why, size_t size) {
    static const char *const names[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5",
                                        "libamdhip64.so", NULL};
    static hip_api api;
    static int state; /* 1: works, -1: does not */
    if (state == 0) {
        void *library = NULL;
        for (int i = 0; names[i] && !library; i++)
            library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        state = library ? 1 : -1;
#define FIND(name, symbol, parameters) \
    if (state == 1 && !find_symbol(library, symbol, &api.name)) state = -1;
        HIP_FUNCTIONS(FIND)
#undef FIND
        if (state == 1 && api.init(0) != 0) state = -1;
    }
    if (state == 1) return &api;
    snprintf(why, size, "libamdhip64.so cannot be used");
    return NULL;
}

int hip_open(hip_gpu *g, int ordinal, char *why, size_t size) {
    memset(g, 0, sizeof *g);
    if (!(g->api = hip_runtime(why, size))) return -1;
    int code = g->api->set_device(ordinal);
    for (int i = 0; i < 2 && code == 0; i++) code = g->api->event_create(&g->events[i]);
    if (code == 0) return 0;
    snprintf(why, size, "HIP: error %d", code);
    hip_close(g);
    return -1;
}

void hip_close(hip_gpu *g) {
    for (int i = 0; i < 2; i++)
        if (g->events[i]) g->api->event_destroy(g->events[i]);
    memset(g, 0, sizeof *g);
}

double hip_elapsed(hip_gpu *g) {
    float ms = 0;
    if (g->api->event_wait(g->events[1]) != 0 ||
        g->api->event_elapsed(&ms, g->events[0], g->events[1]) != 0)
        return NAN;
    return 1e-3 * (double)ms;
}

static void identify(bench_device *d) {
    char why[128];
    unsigned char uuid[16];
    char pci[32] = "";
    const hip_api *a = hip_runtime(why, sizeof why);
    if (!a) return;
    if (a->device_uuid(uuid, gpu_index(d)) == 0) gpu_uuid_text(uuid, d->uuid);
    if (a->device_pci(pci, (int)sizeof pci - 1, gpu_index(d)) == 0)
        snprintf(d->pci, sizeof d->pci, "%.20s", pci);
}

/* ------------------------------------------------------------------ the compiler */

typedef struct compiler {
    int (*create)(void **, const char *, const char *, int, const char **, const char **);
    int (*compile)(void *, int, const char **);
    int (*code_size)(void *, size_t *);
    int (*code)(void *, char *);
    int (*destroy)(void **);
} compiler;

static int find_compiler(compiler *c) {
    static const char *const names[] = {"libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so.5",
                                        "libhiprtc.so", NULL};
    static const char *const folders[] = {"$ROCM_PATH/lib", "/opt/rocm*/lib", NULL};
    const find_names hiprtc = {names, "libhiprtc.so", NULL, folders, "_rocm_sdk_*/lib"};
    void *l = find_library(&hiprtc);
    return l && find_symbol(l, "hiprtcCreateProgram", &c->create) &&
           find_symbol(l, "hiprtcCompileProgram", &c->compile) &&
           find_symbol(l, "hiprtcGetCodeSize", &c->code_size) &&
           find_symbol(l, "hiprtcGetCode", &c->code) &&
           find_symbol(l, "hiprtcDestroyProgram", &c->destroy);
}

/* Machine code of all loops for the current GPU, or NULL with a reason. */
static char *compile(char *why, size_t size) {
    compiler c;
    void *program = NULL;
    size_t bytes = 0;
    char *code = NULL;
    if (!find_compiler(&c)) {
        snprintf(why, size, "libhiprtc.so cannot be used");
        return NULL;
    }
    int status = c.create(&program, source, "loops.hip", 0, NULL, NULL);
    if (status == 0) status = c.compile(program, 0, NULL);
    if (status == 0) status = c.code_size(program, &bytes);
    if (status == 0 && (code = malloc(bytes))) status = c.code(program, code);
    if (program) c.destroy(&program);
    if (status == 0 && code) return code;
    snprintf(why, size, "hiprtc: error %d", status);
    free(code);
    return NULL;
}

/* ------------------------------------------------------------------ loops */

typedef struct loops {
    hip_gpu gpu;
    char *code;
    void *module, *function, *memory[2];
    unsigned groups, units;
    int turns, moves;
} loops;

static void drop(loops *l) {
    for (int i = 0; i < 2; i++)
        if (l->memory[i]) l->gpu.api->free(l->memory[i]);
    if (l->module) l->gpu.api->module_unload(l->module);
    l->memory[0] = l->memory[1] = l->module = NULL;
}

static void close_loops(void *gpu) {
    loops *l = gpu;
    drop(l);
    hip_close(&l->gpu);
    free(l->code);
    free(l);
}

static void *open_loops(const bench_device *d, char *why, size_t size) {
    loops *l = calloc(1, sizeof *l);
    if (!l) return snprintf(why, size, "out of memory"), NULL;
    l->units = d->compute_units ? d->compute_units : 64;
    if (hip_open(&l->gpu, gpu_index(d), why, size) != 0) {
        free(l);
        return NULL;
    }
    if ((l->code = compile(why, size))) return l;
    close_loops(l);
    return NULL;
}

static double prepare(void *gpu, int loop, uint64_t bytes, int turns, char *why, size_t size) {
    static const char *const names[] = {"copy_loop", "read_loop", "fma_f32", "fma_f16"};
    loops *l = gpu;
    const hip_api *a = l->gpu.api;
    drop(l);
    if (loop == GPU_BF16) return 0; /* that of f32 counts */
    l->moves = loop == GPU_COPY || loop == GPU_READ;
    l->turns = turns;
    l->groups = l->moves ? (unsigned)(bytes / GPU_TILE) : l->units * GROUPS_A_UNIT;
    int code = a->module_load(&l->module, l->code);
    if (code == 0) code = a->get_function(&l->function, l->module, names[loop]);
    for (int i = 0; i < 2 && code == 0; i++) {
        code = a->alloc(&l->memory[i], l->moves ? bytes : 4096);
        if (code == 0) code = a->fill(l->memory[i], 0x3c, l->moves ? bytes : 4096);
    }
    if (code != 0) {
        snprintf(why, size, "%s: HIP error %d", names[loop], code);
        return 0;
    }
    if (l->moves) return (loop == GPU_COPY ? 2.0 : 1.0) * (double)bytes;
    return (double)l->groups * GPU_GROUP * turns * CHAINS *
           (loop == GPU_F16 ? F16_LANES : F32_LANES) * 2.0;
}

static double run(void *gpu) {
    loops *l = gpu;
    const hip_api *a = l->gpu.api;
    void *from = l->memory[0], *to = l->memory[1];
    uint32_t turns = (uint32_t)l->turns;
    void *moving[] = {&from, &to}, *adding[] = {&to, &turns};
    if (a->event_record(l->gpu.events[0], NULL) != 0 ||
        a->launch(l->function, l->groups, 1, 1, GPU_GROUP, 1, 1, 0, NULL,
                  l->moves ? moving : adding, NULL) != 0 ||
        a->event_record(l->gpu.events[1], NULL) != 0)
        return NAN;
    return hip_elapsed(&l->gpu);
}

static const char *method(int loop) {
    static const char *const methods[GPU_LOOPS] = {"HIP, uint4, read + written bytes", "HIP, uint4",
                                                   "HIP, fmaf", "HIP, __hfma2", ""};
    return methods[loop];
}

const gpu_driver gpu_hip = {"hip", identify, open_loops, close_loops, prepare, run, method};
