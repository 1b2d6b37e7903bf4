/* SPDX-License-Identifier: Apache-2.0 */
/* Loops in OpenCL C. */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"
#include "opencl.h"

enum {
    TYPE_CPU = 1 << 1,
    PROFILING = 1 << 1,
    DEVICE_TYPE = 0x1000,
    COMPUTE_UNITS = 0x1002,
    DEVICE_NAME = 0x102B,
    DEVICE_EXTENSIONS = 0x1030,
    BOARD_NAME_AMD = 0x4038,
    DEVICE_UUID = 0x106A,  /* cl_khr_device_uuid */
    PCI_BUS_INFO = 0x410F, /* cl_khr_pci_bus_info */
    PCI_BUS_NV = 0x4008,   /* cl_nv_device_attribute_query */
    PCI_SLOT_NV = 0x4009,
    PCI_DOMAIN_NV = 0x400A,
    TOPOLOGY_AMD = 0x4037,
    PROFILING_START = 0x1282,
    PROFILING_END = 0x1283,
    MOST = 16
};
#define TYPE_ALL 0xFFFFFFFFu

/* A thread moves vectors a group apart. Sums are stored only if they have a value that they never
 * have: the loop must not be left out. SCALAR is float or half. */
static const char source[] =
    "#define VECTORS 4u\n"
    "#define BASE (get_group_id(0) * (get_local_size(0) * VECTORS) + get_local_id(0))\n"
    "kernel void copy_loop(global const uint4 *from, global uint4 *to) {\n"
    "    size_t at = BASE, step = get_local_size(0);\n"
    "    uint4 a = from[at], b = from[at + step], c = from[at + 2 * step], d = from[at + 3 * "
    "step];\n"
    "    to[at] = a; to[at + step] = b; to[at + 2 * step] = c; to[at + 3 * step] = d;\n"
    "}\n"
    "kernel void read_loop(global const uint4 *from, global uint4 *to) {\n"
    "    size_t at = BASE, step = get_local_size(0);\n"
    "    uint4 x = from[at] ^ from[at + step] ^ from[at + 2 * step] ^ from[at + 3 * step];\n"
    "    if ((x.x ^ x.y ^ x.z ^ x.w) == 0x9e3779b9u) to[at] = x;\n"
    "}\n"
    "#ifdef TAKE_HALF\n"
    "#pragma OPENCL EXTENSION cl_khr_fp16 : enable\n"
    "#define SCALAR half2\n"
    "#else\n"
    "#define SCALAR float4\n"
    "#endif\n"
    "kernel void add_loop(global SCALAR *to, uint turns) {\n"
    "    SCALAR x = (SCALAR)(get_local_id(0)), y = (SCALAR)(0.999f);\n"
    "    SCALAR a = x, b = x + y, c = y, d = -x, e = -y, f = x - y, g = x * y, h = y * y;\n"
    "    for (uint n = 0; n < turns; n++) {\n"
    "        a = fma(a, y, x); b = fma(b, y, x); c = fma(c, y, x); d = fma(d, y, x);\n"
    "        e = fma(e, y, x); f = fma(f, y, x); g = fma(g, y, x); h = fma(h, y, x);\n"
    "    }\n"
    "    a += b + c + d + e + f + g + h;\n"
    "    if (a.x == (SCALAR)(1.2345f).x) to[0] = a;\n"
    "}\n";
enum { CHAINS = 8, F32_LANES = 4, F16_LANES = 2 };

typedef struct loops {
    opencl_gpu gpu;
    void *program, *kernel, *memory[2];
    unsigned units;
    size_t threads;
} loops;

const cl_functions *opencl_functions(char *why, size_t size) {
    static cl_functions cl;
    static int state; /* 1: works, -1: does not */
    if (state == 0) {
        void *library = dlopen("libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL);
        state = library ? 1 : -1;
#define FIND(result, name, parameters)   \
    if (state == 1) {                    \
        void *p = dlsym(library, #name); \
        memcpy(&cl.name, &p, sizeof p);  \
        if (!p) state = -1;              \
    }
        CL_FUNCTIONS(FIND)
#undef FIND
    }
    if (state == 1) return &cl;
    snprintf(why, size, "libOpenCL.so.1 cannot be used");
    return NULL;
}

/* ------------------------------------------------------------------ the device */

static unsigned number(const cl_functions *cl, void *device, unsigned what) {
    uint64_t value = 0;
    return cl->clGetDeviceInfo(device, what, sizeof value, &value, NULL) == 0 ? (unsigned)value : 0;
}

static int has(const cl_functions *cl, void *device, const char *extension) {
    char text[8192] = "";
    return cl->clGetDeviceInfo(device, DEVICE_EXTENSIONS, sizeof text - 1, text, NULL) == 0 &&
           strstr(text, extension) != NULL;
}

static int is_named(const cl_functions *cl, void *device, const char *name) {
    char text[256] = "";
    const unsigned keys[] = {BOARD_NAME_AMD, DEVICE_NAME};
    for (int i = 0; i < 2; i++)
        if ((i || has(cl, device, "cl_amd_device_attribute_query")) &&
            cl->clGetDeviceInfo(device, keys[i], sizeof text - 1, text, NULL) == 0 &&
            strncmp(text, name, sizeof((bench_device *)0)->name - 1) == 0)
            return 1;
    return 0;
}

/* The device with this name and kind, after d->ordinal others that have them too. The order among
 * those is that of the loader. */
static void *find(const cl_functions *cl, const bench_device *d) {
    void *platforms[MOST], *devices[MOST];
    unsigned n_platforms = 0, n = 0;
    int before = 0;
    if (cl->clGetPlatformIDs(MOST, platforms, &n_platforms) != 0) return NULL;
    for (unsigned p = 0; p < n_platforms && p < MOST; p++) {
        if (cl->clGetDeviceIDs(platforms[p], TYPE_ALL, MOST, devices, &n) != 0) continue;
        for (unsigned i = 0; i < n && i < MOST; i++) {
            const int software = (number(cl, devices[i], DEVICE_TYPE) & TYPE_CPU) != 0;
            if (software == (strcmp(d->kind, "gpu") != 0) && is_named(cl, devices[i], d->name) &&
                before++ == d->ordinal)
                return devices[i];
        }
    }
    return NULL;
}

static void identify(bench_device *d) {
    char why[64];
    unsigned char uuid[16], topology[24];
    unsigned pci[4];
    const cl_functions *cl = opencl_functions(why, sizeof why);
    void *device = cl && strcmp(d->kind, "gpu") == 0 ? find(cl, d) : NULL;
    if (!device) return;
    if (has(cl, device, "cl_khr_device_uuid") &&
        cl->clGetDeviceInfo(device, DEVICE_UUID, sizeof uuid, uuid, NULL) == 0)
        gpu_uuid_text(uuid, d->uuid);
    if (has(cl, device, "cl_khr_pci_bus_info") &&
        cl->clGetDeviceInfo(device, PCI_BUS_INFO, sizeof pci, pci, NULL) == 0)
        snprintf(d->pci, sizeof d->pci, "%04x:%02x:%02x.%x", pci[0] & 0xffff, pci[1] & 0xff,
                 pci[2] & 0xff, pci[3] & 0xf);
    else if (has(cl, device, "cl_nv_device_attribute_query"))
        snprintf(d->pci, sizeof d->pci, "%04x:%02x:%02x.0",
                 number(cl, device, PCI_DOMAIN_NV) & 0xffff, number(cl, device, PCI_BUS_NV) & 0xff,
                 number(cl, device, PCI_SLOT_NV) & 0xff);
    else if (has(cl, device, "cl_amd_device_attribute_query") &&
             cl->clGetDeviceInfo(device, TOPOLOGY_AMD, sizeof topology, topology, NULL) == 0)
        snprintf(d->pci, sizeof d->pci, "0000:%02x:%02x.%x", topology[21], topology[22],
                 topology[23] & 0xfu);
}

void opencl_close(opencl_gpu *g) {
    if (g->queue) g->cl->clReleaseCommandQueue(g->queue);
    if (g->context) g->cl->clReleaseContext(g->context);
    memset(g, 0, sizeof *g);
}

int opencl_open(opencl_gpu *g, const bench_device *d, char *why, size_t size) {
    int code = 0;
    memset(g, 0, sizeof *g);
    if (!(g->cl = opencl_functions(why, size))) return -1;
    if (!(g->device = find(g->cl, d)))
        return snprintf(why, size, "OpenCL: %.100s is gone", d->name), -1;
    g->context = g->cl->clCreateContext(NULL, 1, &g->device, NULL, NULL, &code);
    if (g->context) g->queue = g->cl->clCreateCommandQueue(g->context, g->device, PROFILING, &code);
    if (g->queue) return 0;
    snprintf(why, size, "OpenCL: error %d", code);
    opencl_close(g);
    return -1;
}

int opencl_has(const opencl_gpu *g, const char *extension) {
    return has(g->cl, g->device, extension);
}

double opencl_seconds(opencl_gpu *g, void *event) {
    uint64_t start = 0, end = 0;
    int code = g->cl->clWaitForEvents(1, &event);
    if (code == 0)
        code = g->cl->clGetEventProfilingInfo(event, PROFILING_START, sizeof start, &start, NULL);
    if (code == 0)
        code = g->cl->clGetEventProfilingInfo(event, PROFILING_END, sizeof end, &end, NULL);
    g->cl->clReleaseEvent(event);
    return code == 0 && end > start ? 1e-9 * (double)(end - start) : NAN;
}

/* ------------------------------------------------------------------ loops */

static void drop(loops *l) {
    for (int i = 0; i < 2; i++)
        if (l->memory[i]) l->gpu.cl->clReleaseMemObject(l->memory[i]);
    if (l->kernel) l->gpu.cl->clReleaseKernel(l->kernel);
    if (l->program) l->gpu.cl->clReleaseProgram(l->program);
    l->memory[0] = l->memory[1] = l->kernel = l->program = NULL;
}

static void close_loops(void *gpu) {
    loops *l = gpu;
    drop(l);
    opencl_close(&l->gpu);
    free(l);
}

static void *open_loops(const bench_device *d, char *why, size_t size) {
    loops *l = calloc(1, sizeof *l);
    if (!l) return snprintf(why, size, "out of memory"), NULL;
    if (opencl_open(&l->gpu, d, why, size) != 0) {
        free(l);
        return NULL;
    }
    l->units = number(l->gpu.cl, l->gpu.device, COMPUTE_UNITS);
    return l;
}

static int build(loops *l, const char *name, const char *options) {
    const char *text = source;
    int code = 0;
    l->program = l->gpu.cl->clCreateProgramWithSource(l->gpu.context, 1, &text, NULL, &code);
    if (l->program)
        code = l->gpu.cl->clBuildProgram(l->program, 1, &l->gpu.device, options, NULL, NULL);
    if (code == 0) l->kernel = l->gpu.cl->clCreateKernel(l->program, name, &code);
    return code;
}

static double prepare(void *gpu, int loop, uint64_t bytes, int turns, char *why, size_t size) {
    static const char *const names[] = {"copy_loop", "read_loop", "add_loop", "add_loop"};
    loops *l = gpu;
    const cl_functions *cl = l->gpu.cl;
    const int moves = loop == GPU_COPY || loop == GPU_READ, half = loop == GPU_F16;
    const unsigned count = (unsigned)turns;
    drop(l);
    /* Where a type has no arithmetic of its own, that of f32 counts. */
    if (loop == GPU_BF16 || (half && !opencl_has(&l->gpu, "cl_khr_fp16"))) return 0;
    int code = build(l, names[loop], half ? "-D TAKE_HALF" : "");
    for (int i = 0; i < (moves ? 2 : 1) && code == 0; i++) {
        const uint32_t one = 0x3c003c00u;
        const size_t room = moves ? bytes : 4096;
        l->memory[i] = cl->clCreateBuffer(l->gpu.context, OPENCL_READ_WRITE, room, NULL, &code);
        /* Memory that was never written may not be there. */
        if (code == 0)
            code = cl->clEnqueueFillBuffer(l->gpu.queue, l->memory[i], &one, sizeof one, 0, room, 0,
                                           NULL, NULL);
    }
    if (code == 0) code = cl->clFinish(l->gpu.queue);
    if (code == 0) code = cl->clSetKernelArg(l->kernel, 0, sizeof(void *), &l->memory[0]);
    if (code == 0)
        code = moves ? cl->clSetKernelArg(l->kernel, 1, sizeof(void *), &l->memory[1])
                     : cl->clSetKernelArg(l->kernel, 1, sizeof count, &count);
    if (code != 0) {
        snprintf(why, size, "%s: OpenCL error %d", names[loop], code);
        return 0;
    }
    l->threads = moves ? bytes / (GPU_VECTORS * 16) : (size_t)l->units * 8 * GPU_GROUP;
    if (moves) return (loop == GPU_COPY ? 2.0 : 1.0) * (double)bytes;
    return (double)l->threads * turns * CHAINS * (half ? F16_LANES : F32_LANES) * 2.0;
}

static double run(void *gpu) {
    loops *l = gpu;
    const size_t group = GPU_GROUP;
    void *event = NULL;
    const int code = l->gpu.cl->clEnqueueNDRangeKernel(l->gpu.queue, l->kernel, 1, NULL,
                                                       &l->threads, &group, 0, NULL, &event);
    return code == 0 ? opencl_seconds(&l->gpu, event) : NAN;
}

static const char *method(int loop) {
    static const char *const methods[GPU_LOOPS] = {"OpenCL C, uint4, read + written bytes",
                                                   "OpenCL C, uint4", "OpenCL C, fma of float4",
                                                   "OpenCL C, fma of half2", ""};
    return methods[loop];
}

const gpu_driver gpu_opencl = {"opencl", identify, open_loops, close_loops, prepare, run, method};
