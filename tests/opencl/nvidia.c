/* SPDX-License-Identifier: Apache-2.0 */
/* The device of nvidia.h. */
#include "nvidia.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"

/* Made at build time from nvidia.cl. */
extern const char tessera_nvidia_text[];

/* nvidia.cpp, compiled once for each instance. */
typedef void lockstep_fn(unsigned groups, void *const *buffers, const tess_args *args);
#define INSTANCES(X) \
    X(1, 64)         \
    X(1, 128)        \
    X(1, 256)        \
    X(2, 64)         \
    X(2, 128)        \
    X(2, 256)
#define DECLARE(dtype, dims) extern lockstep_fn nvidia_lockstep_##dtype##_##dims;
INSTANCES(DECLARE)
/* intel.cpp: type, largest head_dim, lanes of a subgroup. */
#define INTEL_INSTANCES(X) \
    X(1, 64, 8)            \
    X(1, 128, 8)           \
    X(2, 64, 8)            \
    X(2, 128, 8)           \
    X(1, 64, 16)           \
    X(1, 128, 16)          \
    X(2, 64, 16)           \
    X(2, 128, 16)
#define DECLARE_INTEL(dtype, dims, lanes) \
    extern lockstep_fn intel_lockstep_##dtype##_##dims##_##lanes;
INTEL_INSTANCES(DECLARE_INTEL)

enum { MOST = 8192, BUFFERS = 10, MOST_OPTIONS = 256, MOST_SIZES = 3 };

/* What is known of objects, each with its handle. */
typedef struct object {
    const void *handle;      /* NULL: free */
    lockstep_fn *run;        /* of programs and kernels; NULL: it runs as it is */
    unsigned threads;        /* likewise, of a workgroup */
    size_t size;             /* of buffers */
    cl_mem buffers[BUFFERS]; /* arguments of kernels */
    tess_args args;
} object;
static object objects[MOST];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Those of a handle, which may be new; the lock is held. */
static object *find(const void *handle) {
    object *empty = NULL;
    for (object *o = objects; o < objects + MOST; o++) {
        if (o->handle == handle) return o;
        if (!o->handle && !empty) empty = o;
    }
    if (!empty) {
        fprintf(stderr, "nvidia.c: more than %d objects\n", MOST);
        exit(1);
    }
    memset(empty, 0, sizeof *empty);
    empty->handle = handle;
    return empty;
}

void nvidia_release(const void *handle) {
    pthread_mutex_lock(&lock);
    if (handle) find(handle)->handle = NULL;
    pthread_mutex_unlock(&lock);
}

static const char *mode(void) {
    const char *text = getenv("LOADER_NVIDIA");
    return text ? text : "8.0";
}

/* One of Intel's instead; NULL: it is not. */
static const char *intel_mode(void) { return getenv("LOADER_INTEL"); }

static cl_int intel_device_info(cl_int code, cl_uint what, size_t size, void *value,
                                size_t *bytes) {
    static const char extensions[] =
        " cl_intel_subgroup_matrix_multiply_accumulate cl_intel_required_subgroup_size"
        " cl_intel_subgroups cl_intel_subgroups_short cl_khr_fp16"
        " cl_intel_subgroup_local_block_io cl_intel_bfloat16_conversions";
    const char *lacks = strstr(intel_mode(), "cl_");
    const size_t least = (size_t)atoi(intel_mode()), sizes[MOST_SIZES] = {32, least, 64};
    if (what == CL_DEVICE_EXTENSIONS && code == CL_SUCCESS && value &&
        strlen(value) + sizeof extensions <= size) {
        char *added = (char *)value + strlen(value);
        memcpy(added, extensions, sizeof extensions);
        char *own = lacks ? strstr(added, lacks) : NULL;
        if (own) memset(own, 'x', strlen(lacks));
    }
    if (what != CL_DEVICE_SUB_GROUP_SIZES_INTEL || size < sizeof sizes) return code;
    memcpy(value, sizes, sizeof sizes);
    if (bytes) *bytes = sizeof sizes;
    return CL_SUCCESS;
}

cl_int nvidia_device_info(cl_int code, cl_uint what, size_t size, void *value, size_t *bytes) {
    if (intel_mode()) return intel_device_info(code, what, size, value, bytes);
    static const char extension[] = " cl_nv_device_attribute_query cl_nv_compiler_options";
    unsigned version[2] = {8, 0};
    if (what == CL_DEVICE_EXTENSIONS && code == CL_SUCCESS && value &&
        strlen(value) + sizeof extension <= size)
        memcpy((char *)value + strlen(value), extension, sizeof extension);
    if (what == CL_DEVICE_VENDOR_ID && code == CL_SUCCESS && value && size == sizeof(cl_uint) &&
        !strstr(mode(), "unproved")) {
        const cl_uint nvidia = 0x10de;
        memcpy(value, &nvidia, sizeof nvidia);
    }
    if (what < CL_DEVICE_COMPUTE_CAPABILITY_MAJOR_NV || what > CL_DEVICE_KERNEL_EXEC_TIMEOUT_NV ||
        size != sizeof(cl_uint))
        return code;
    if (sscanf(mode(), "%u.%u", &version[0], &version[1]) != 2) version[0] = 8;
    const cl_uint answer = what == CL_DEVICE_KERNEL_EXEC_TIMEOUT_NV
                               ? 0
                               : version[what - CL_DEVICE_COMPUTE_CAPABILITY_MAJOR_NV];
    memcpy(value, &answer, sizeof answer);
    if (bytes) *bytes = sizeof answer;
    return CL_SUCCESS;
}

const char *nvidia_source(const char *source, size_t size) {
    /* each is in one kernel alone */
    static const char *const words[2] = {"TESS_HELD", "INTEL_MAD"};
    for (int w = 0; w < 2; w++)
        for (size_t length = strlen(words[w]), n = 0; n + length <= size; n++)
            if (memcmp(source + n, words[w], length) == 0) return tessera_nvidia_text;
    return NULL;
}

static int refuses_newer(void) { return !intel_mode() && strcmp(mode(), "refuses newer") == 0; }

/* NVIDIA's driver has a number of its own for what its assembler does not take. */
cl_int nvidia_refusal(void) { return refuses_newer() ? -9999 : CL_BUILD_PROGRAM_FAILURE; }

const char *nvidia_log(void) {
    return refuses_newer() ? "ptxas application ptx input, line 9; fatal : Unsupported .version "
                             "7.0; current version is '6.4'\n"
                           : NULL;
}

const char *nvidia_options(cl_program program, const char *options) {
    static _Thread_local char own[MOST_OPTIONS];
    unsigned dtype = 0, dims = 0, lanes = 0, threads = 128;
    lockstep_fn *run = NULL;
    if (options && strstr(options, "TESS_LANES")) {
        if (strstr(intel_mode(), "refuses")) return NULL;
        if (sscanf(strstr(options, "TESS_DTYPE"),
                   "TESS_DTYPE=%u -D TESS_LANES=%uu -D TESS_DIMS=%uu", &dtype, &lanes, &dims) != 3)
            return NULL;
        threads = 64;
#define CHOOSE_INTEL(number, most, size)                        \
    if (dtype == (number) && dims == (most) && lanes == (size)) \
        run = intel_lockstep_##number##_##most##_##size;
        INTEL_INSTANCES(CHOOSE_INTEL)
    }
    if (options && strstr(options, "TESS_HELD")) {
        if (strstr(mode(), "refuses")) return NULL;
        if (sscanf(strstr(options, "TESS_DTYPE"), "TESS_DTYPE=%u -D TESS_DIMS=%uu", &dtype,
                   &dims) != 2)
            return NULL;
#define CHOOSE(number, most) \
    if (dtype == (number) && dims == (most)) run = nvidia_lockstep_##number##_##most;
        INSTANCES(CHOOSE)
    }
    /* The last option of tiles, which PoCL does not know. */
    const char *registers = options ? strstr(options, " -cl-nv-maxrregcount=") : NULL;
    if (registers) snprintf(own, sizeof own, "%.*s", (int)(registers - options), options);
    if (run)
        snprintf(own, sizeof own,
                 "-cl-std=CL1.2 -D TESS_DTYPE=%u -D TESS_DIMS=%u -D TESS_THREADS=%u", dtype, dims,
                 threads);
    pthread_mutex_lock(&lock);
    object *own_program = find(program);
    own_program->run = run;
    own_program->threads = threads;
    pthread_mutex_unlock(&lock);
    return run || registers ? own : options;
}

void nvidia_buffer(cl_mem buffer, size_t size) {
    pthread_mutex_lock(&lock);
    find(buffer)->size = size;
    pthread_mutex_unlock(&lock);
}

void nvidia_kernel(cl_kernel kernel, cl_program program, const char *name) {
    pthread_mutex_lock(&lock);
    const object of = *find(program);
    object *own = find(kernel);
    own->run = strcmp(name, "tess_forward") == 0 ? of.run : NULL;
    own->threads = of.threads;
    pthread_mutex_unlock(&lock);
}

void nvidia_argument(cl_kernel kernel, cl_uint argument, size_t size, const void *value) {
    pthread_mutex_lock(&lock);
    object *own = find(kernel);
    if (argument < BUFFERS && size == sizeof(cl_mem))
        memcpy(&own->buffers[argument], value, size);
    else if (size == sizeof(tess_args))
        memcpy(&own->args, value, size);
    pthread_mutex_unlock(&lock);
}

/* Copies buffers out of the device or into it. One that is given twice has one copy. */
static cl_int copy(const cl_api *real, cl_command_queue queue, const cl_mem *of, void **copies,
                   int back) {
    cl_int code = CL_SUCCESS;
    for (int n = 0; n < BUFFERS && code == CL_SUCCESS; n++) {
        int same = 0;
        while (of[same] != of[n]) same++;
        const size_t size = find(of[n])->size;
        if (!back) copies[n] = same < n ? copies[same] : malloc(size);
        if (same < n) continue;
        code = back ? real->clEnqueueWriteBuffer(queue, of[n], 1, 0, size, copies[n], 0, NULL, NULL)
                    : real->clEnqueueReadBuffer(queue, of[n], 1, 0, size, copies[n], 0, NULL, NULL);
    }
    return code;
}

static cl_int run(const cl_api *real, cl_command_queue queue, const object *kernel, size_t groups) {
    void *copies[BUFFERS];
    const cl_mem *of = kernel->buffers;
    cl_int code = copy(real, queue, of, copies, 0);
    if (code == CL_SUCCESS) {
        const char *told = intel_mode() ? intel_mode() : mode();
        const unsigned left_out = strstr(told, "wrong") ? 1 : 0;
        kernel->run((unsigned)groups - left_out, copies, &kernel->args);
        code = copy(real, queue, of, copies, 1);
    }
    for (int n = 0; n < BUFFERS; n++) {
        int same = 0;
        while (of[same] != of[n]) same++;
        if (same == n) free(copies[n]);
    }
    return code;
}

cl_int nvidia_run(const cl_api *real, cl_command_queue queue, cl_kernel kernel, size_t items,
                  cl_uint n_waits, const cl_event *waits) {
    cl_event before = NULL;
    pthread_mutex_lock(&lock);
    const object *own = find(kernel);
    cl_int code = CL_SUCCESS;
    if (own->run) {
        code = real->clEnqueueMarkerWithWaitList(queue, n_waits, waits, &before);
        if (code == CL_SUCCESS) {
            code = real->clWaitForEvents(1, &before);
            real->clReleaseEvent(before);
        }
        if (code == CL_SUCCESS) code = run(real, queue, own, items / own->threads);
    }
    pthread_mutex_unlock(&lock);
    return code;
}
