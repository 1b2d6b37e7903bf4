/* SPDX-License-Identifier: Apache-2.0 */
/* Loops in OpenCL C. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "find.h"
#include "gpu.h"
#include "loops.h"
#include "opencl.h"

enum { TYPE_CPU = 1 << 1, PROFILING = 1 << 1, MOST = 16 };
enum { DEVICE_TYPE = 0x1000, COMPUTE_UNITS = 0x1002, DEVICE_NAME = 0x102B };
enum { DEVICE_EXTENSIONS = 0x1030, PROFILING_START = 0x1282, PROFILING_END = 0x1283 };
enum { DEVICE_UUID = 0x106A /* cl_khr_device_uuid */, PCI_BUS_INFO = 0x410F };
/* cl_nv_device_attribute_query */
enum { MAJOR_NV = 0x4000, PCI_BUS_NV = 0x4008, PCI_SLOT_NV = 0x4009, PCI_DOMAIN_NV = 0x400A };
enum { TOPOLOGY_AMD = 0x4037, BOARD_NAME_AMD = 0x4038 };
enum { SUBGROUP_SIZES_INTEL = 0x4108 };
#define TYPE_ALL 0xFFFFFFFFu

typedef struct loops {
    opencl_gpu gpu;
    void *program, *kernel, *memory[2];
    unsigned compute_units;
    loops_launch ready;
    int half;
    char units_option[32];
} loops;

const cl_functions *opencl_functions(char *why, size_t size) {
    static const char *const files[] = {"libOpenCL.so.1", NULL};
    static cl_functions cl;
    static int state; /* 1: works, -1: does not */
    if (state == 0) {
        void *library = find_named(files);
        state = library ? 1 : -1;
#define FIND(result, name, parameters) \
    if (state == 1 && !find_symbol(library, #name, &cl.name)) state = -1;
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
    if (!l->gpu.cl) return;
    drop(l);
    opencl_close(&l->gpu);
}

/* What the compiler is told about the device: how its matrix units are reached, where they are. */
static void describe(loops *l) {
    const cl_functions *cl = l->gpu.cl;
    size_t lanes[8] = {0}, bytes = 0;
    l->half = opencl_has(&l->gpu, "cl_khr_fp16");
    if (opencl_has(&l->gpu, "cl_nv_device_attribute_query") &&
        number(cl, l->gpu.device, MAJOR_NV) >= 8)
        snprintf(l->units_option, sizeof l->units_option, " -D LOOPS_NV");
    else if (opencl_has(&l->gpu, "cl_intel_subgroup_matrix_multiply_accumulate") &&
             cl->clGetDeviceInfo(l->gpu.device, SUBGROUP_SIZES_INTEL, sizeof lanes, lanes,
                                 &bytes) == 0 &&
             bytes && (lanes[0] == 8 || lanes[0] == 16))
        snprintf(l->units_option, sizeof l->units_option, " -D LOOPS_LANES=%d", (int)lanes[0]);
}

static int open_loops(void *gpu, const bench_device *d, char *why, size_t size) {
    loops *l = gpu;
    if (opencl_open(&l->gpu, d, why, size) != 0) return -1;
    l->compute_units = number(l->gpu.cl, l->gpu.device, COMPUTE_UNITS);
    describe(l);
    return 0;
}

/* Makes a launch ready, with its memory and arguments; 0 or OpenCL's error. */
static int place(loops *l, loops_launch next, const char *units_option) {
    const cl_functions *cl = l->gpu.cl;
    const char *text = loops_source;
    const uint32_t one = 0x3c003c00u, turns = (uint32_t)next.turns;
    char options[64];
    int code = 0;
    l->ready = next;
    snprintf(options, sizeof options, "%s%s", l->half ? "-D LOOPS_HALF" : "", units_option);
    l->program = cl->clCreateProgramWithSource(l->gpu.context, 1, &text, NULL, &code);
    if (l->program) code = cl->clBuildProgram(l->program, 1, &l->gpu.device, options, NULL, NULL);
    if (code == 0) l->kernel = cl->clCreateKernel(l->program, next.kind.name, &code);
    for (int i = 0; i < (next.moves ? 2 : 1) && code == 0; i++) {
        l->memory[i] =
            cl->clCreateBuffer(l->gpu.context, OPENCL_READ_WRITE, next.bytes, NULL, &code);
        /* Memory that was never written may not be there. */
        if (code == 0)
            code = cl->clEnqueueFillBuffer(l->gpu.queue, l->memory[i], &one, sizeof one, 0,
                                           next.bytes, 0, NULL, NULL);
    }
    if (code == 0) code = cl->clFinish(l->gpu.queue);
    if (code == 0) code = cl->clSetKernelArg(l->kernel, 0, sizeof(void *), &l->memory[0]);
    if (code != 0) return code;
    return next.moves ? cl->clSetKernelArg(l->kernel, 1, sizeof(void *), &l->memory[1])
                      : cl->clSetKernelArg(l->kernel, 1, sizeof turns, &turns);
}

static double run(void *gpu) {
    loops *l = gpu;
    const size_t group = GPU_GROUP, threads = l->ready.groups * group;
    void *event = NULL;
    const int code = l->gpu.cl->clEnqueueNDRangeKernel(l->gpu.queue, l->kernel, 1, NULL, &threads,
                                                       &group, 0, NULL, &event);
    return code == 0 ? opencl_seconds(&l->gpu, event) : NAN;
}

/* FLOP of a thread in a turn on matrix units; 0: there are none, or the compiler cannot use them.
 */
static uint32_t unit_flop(loops *l) {
    uint32_t flop = 0;
    if (place(l, loops_unit_flop, l->units_option) != 0 || isnan(run(l)) ||
        l->gpu.cl->clEnqueueReadBuffer(l->gpu.queue, l->memory[0], 1, 0, sizeof flop, &flop, 0,
                                       NULL, NULL) != 0)
        flop = 0;
    drop(l);
    return flop;
}

static double prepare(void *gpu, gpu_job *job) {
    loops *l = gpu;
    drop(l);
    const uint32_t flop = job->loop > GPU_F32 ? unit_flop(l) : 0;
    const loops_kind kind = loops_kind_of(job->loop, flop, l->half);
    if (!kind.name) return 0; /* that of f32 counts */
    const loops_launch next = loops_launch_of(job, kind, l->compute_units);
    const int code = place(l, next, flop ? l->units_option : "");
    return loops_ready(job, &next, "OpenCL C, ", "OpenCL", code);
}

const gpu_driver gpu_opencl = {"opencl",    sizeof(loops), identify, open_loops,
                               close_loops, prepare,       run};
