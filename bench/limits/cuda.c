/* SPDX-License-Identifier: Apache-2.0 */
/* Loops for NVIDIA's GPUs as PTX, which the driver compiles. */
#include "cuda.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"
#include "ptx.h"

enum { ATTRIBUTE_MULTIPROCESSORS = 16, ATTRIBUTE_MAJOR = 75, ATTRIBUTE_MINOR = 76 };

const cuda_api *cuda_driver(char *why, size_t size) {
    static cuda_api api;
    static int state; /* 1: works, -1: does not */
    static char reason[128];
    if (state == 0) {
        void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
        state = library ? 1 : -1;
        if (!library) snprintf(reason, sizeof reason, "libcuda.so.1 cannot be opened");
#define FIND(name, symbol, parameters)                                            \
    if (state == 1) {                                                             \
        void *p = dlsym(library, symbol);                                         \
        memcpy(&api.name, &p, sizeof p);                                          \
        if (!p) {                                                                 \
            snprintf(reason, sizeof reason, "libcuda.so.1 has no %.60s", symbol); \
            state = -1;                                                           \
        }                                                                         \
    }
        CUDA_FUNCTIONS(FIND)
#undef FIND
        const int code = state == 1 ? api.init(0) : 0;
        if (code != 0) {
            snprintf(reason, sizeof reason, "cuInit: error %d", code);
            state = -1;
        }
    }
    snprintf(why, size, "%s", reason);
    return state == 1 ? &api : NULL;
}

int cuda_open(cuda_gpu *g, int ordinal, char *why, size_t size) {
    int major = 0, minor = 0;
    memset(g, 0, sizeof *g);
    if (!(g->api = cuda_driver(why, size))) return -1;
    const cuda_api *a = g->api;
    int code = a->device_get(&g->device, ordinal);
    if (code == 0) code = a->device_attribute(&major, ATTRIBUTE_MAJOR, g->device);
    if (code == 0) code = a->device_attribute(&minor, ATTRIBUTE_MINOR, g->device);
    if (code == 0)
        code = a->device_attribute(&g->multiprocessors, ATTRIBUTE_MULTIPROCESSORS, g->device);
    if (code == 0) code = a->retain(&g->context, g->device);
    if (code == 0) code = a->set_current(g->context);
    for (int i = 0; i < 2 && code == 0; i++) code = a->event_create(&g->events[i], 0);
    g->capability = 10 * major + minor;
    if (code == 0) return 0;
    snprintf(why, size, "CUDA: error %d", code);
    cuda_close(g);
    return -1;
}

void cuda_close(cuda_gpu *g) {
    for (int i = 0; i < 2; i++)
        if (g->events[i]) g->api->event_destroy(g->events[i]);
    if (g->context) g->api->release(g->device);
    memset(g, 0, sizeof *g);
}

double cuda_elapsed(cuda_gpu *g) {
    float ms = 0;
    if (g->api->event_wait(g->events[1]) != 0 ||
        g->api->event_elapsed(&ms, g->events[0], g->events[1]) != 0)
        return NAN;
    return 1e-3 * (double)ms;
}

/* ------------------------------------------------------------------ loops */

typedef struct loops {
    cuda_gpu gpu;
    void *module, *function;
    uint64_t memory[2], bytes;
    unsigned groups;
    int turns, moves;
} loops;

static void identify(bench_device *d) {
    char why[128];
    unsigned char uuid[16];
    char pci[32] = "";
    int device;
    const cuda_api *a = cuda_driver(why, sizeof why);
    if (!a || a->device_get(&device, gpu_index(d)) != 0) return;
    if (a->device_uuid(uuid, device) == 0) gpu_uuid_text(uuid, d->uuid);
    if (a->device_pci(pci, (int)sizeof pci - 1, device) != 0) return;
    for (char *c = pci; *c; c++) *c = (char)(*c >= 'A' && *c <= 'F' ? *c + 'a' - 'A' : *c);
    snprintf(d->pci, sizeof d->pci, "%.20s", pci);
}

static void drop(loops *l) {
    const cuda_api *a = l->gpu.api;
    for (int i = 0; i < 2; i++)
        if (l->memory[i]) a->free(l->memory[i]);
    if (l->module) a->module_unload(l->module);
    l->memory[0] = l->memory[1] = 0;
    l->module = NULL;
}

static void close_loops(void *gpu) {
    loops *l = gpu;
    drop(l);
    cuda_close(&l->gpu);
    free(l);
}

static void *open_loops(const bench_device *d, char *why, size_t size) {
    loops *l = calloc(1, sizeof *l);
    if (!l) return snprintf(why, size, "out of memory"), NULL;
    if (cuda_open(&l->gpu, gpu_index(d), why, size) == 0) return l;
    free(l);
    return NULL;
}

static double prepare(void *gpu, int loop, uint64_t bytes, int turns, char *why, size_t size) {
    static const char *const names[GPU_LOOPS] = {"copy_loop", "read_loop", "fma_loop", "mma_f16",
                                                 "mma_bf16"};
    static const char *const texts[GPU_LOOPS] = {ptx_copy_loop, ptx_read_loop, ptx_fma_loop,
                                                 ptx_mma_f16, ptx_mma_bf16};
    loops *l = gpu;
    const cuda_api *a = l->gpu.api;
    const int units = loop == GPU_F16 || loop == GPU_BF16;
    drop(l);
    if (units && l->gpu.capability < 80) return 0; /* counts as f32 */
    l->moves = loop == GPU_COPY || loop == GPU_READ;
    l->turns = turns;
    l->bytes = l->moves ? bytes : 4096;
    l->groups = l->moves ? (unsigned)(bytes / GPU_TILE) : (unsigned)l->gpu.multiprocessors * 8;
    int code = a->module_load(&l->module, texts[loop]);
    if (code == 0) code = a->get_function(&l->function, l->module, names[loop]);
    for (int i = 0; i < 2 && code == 0; i++) {
        code = a->alloc(&l->memory[i], l->bytes);
        if (code == 0) code = a->fill(l->memory[i], 0x3c003c00u, l->bytes / 4);
    }
    if (code != 0) {
        snprintf(why, size, "%s: CUDA error %d", names[loop], code);
        return 0;
    }
    if (l->moves) return (loop == GPU_COPY ? 2.0 : 1.0) * (double)bytes;
    const double threads = (double)l->groups * GPU_GROUP;
    return units ? threads / 32 * turns * PTX_UNIT_PRODUCTS * (2.0 * 16 * 8 * 16)
                 : threads * turns * PTX_MULTIPLY_ADDS * 2.0;
}

static double run(void *gpu) {
    loops *l = gpu;
    const cuda_api *a = l->gpu.api;
    uint64_t from = l->memory[0], to = l->memory[1];
    uint32_t turns = (uint32_t)l->turns;
    void *moving[] = {&from, &to}, *adding[] = {&to, &turns};
    if (a->event_record(l->gpu.events[0], NULL) != 0 ||
        a->launch(l->function, l->groups, 1, 1, GPU_GROUP, 1, 1, 0, NULL,
                  l->moves ? moving : adding, NULL) != 0 ||
        a->event_record(l->gpu.events[1], NULL) != 0)
        return NAN;
    return cuda_elapsed(&l->gpu);
}

static const char *method(int loop) {
    static const char *const methods[GPU_LOOPS] = {
        "PTX, 16 bytes a thread at a time, read + written bytes",
        "PTX, 16 bytes a thread at a time", "PTX, fma.rn.f32", "PTX, mma.sync.m16n8k16",
        "PTX, mma.sync.m16n8k16"};
    return methods[loop];
}

const gpu_driver gpu_cuda = {"cuda", identify, open_loops, close_loops, prepare, run, method};
