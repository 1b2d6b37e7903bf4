/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A library named like OpenCL's loader that forwards every call to the real one, counts objects
 * that are created and released, and fails the k-th call. The test puts its folder into
 * LD_LIBRARY_PATH. A release that fails releases all the same: what is left alive in the end was
 * forgotten by the backend. LOADER_PLATFORM is the version that its platforms tell.
 */
#include "loader.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cl.h"
#include "nvidia.h"

static loader_control control;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cl_api real;
static pthread_once_t once = PTHREAD_ONCE_INIT;

#define EXPORT __attribute__((visibility("default")))

/* Leaves a file behind when it is loaded, for the test that it is not. */
__attribute__((constructor)) static void loaded(void) {
    const char *path = getenv("LOADER_TRACE");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (file) fclose(file);
}

EXPORT loader_control *loader_control_get(void);
loader_control *loader_control_get(void) { return &control; }

/* By its full path the real library is another one, although its name is the same. */
static void find_real(void) {
    static const char *const names[] = {
#define NAME(result, name, parameters) #name,
        TESS_OPENCL_FUNCTIONS(NAME)
#undef NAME
    };
    void *library = dlopen(REAL_LOADER, RTLD_NOW | RTLD_LOCAL);
    void *table[sizeof names / sizeof *names];
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        table[n] = library ? dlsym(library, names[n]) : NULL;
        if (!table[n]) {
            fprintf(stderr, "%s: %s was not found\n", REAL_LOADER, names[n]);
            exit(1);
        }
    }
    memcpy(&real, table, sizeof real);
}

/* Counts a call; whether it is to fail. */
static int fails(const char *name) {
    pthread_once(&once, find_real);
    pthread_mutex_lock(&lock);
    const int call = ++control.calls,
              fail = control.fail_at &&
                     (call == control.fail_at || (control.sticky && call > control.fail_at));
    if (fail) {
        control.failures++;
        control.failed = name;
    }
    pthread_mutex_unlock(&lock);
    return fail;
}

static void count(int kind, int change) {
    pthread_mutex_lock(&lock);
    control.live[kind] += change;
    pthread_mutex_unlock(&lock);
}

/* A call that only fails or not. */
#define PLAIN(name, parameters, arguments)     \
    EXPORT cl_int name parameters;             \
    cl_int name parameters {                   \
        if (fails(#name)) return control.code; \
        return real.name arguments;            \
    }

/* A call that gives an object, and its error through the last parameter. */
#define CREATE(type, name, parameters, arguments, kind) \
    EXPORT type name parameters;                        \
    type name parameters {                              \
        if (fails(#name)) {                             \
            if (code) *code = control.code;             \
            return NULL;                                \
        }                                               \
        type object = real.name arguments;              \
        if (object) count(kind, 1);                     \
        return object;                                  \
    }

#define RETAIN(type, name, kind)                \
    EXPORT cl_int name(type object);            \
    cl_int name(type object) {                  \
        if (fails(#name)) return control.code;  \
        const cl_int code = real.name(object);  \
        if (code == CL_SUCCESS) count(kind, 1); \
        return code;                            \
    }

#define RELEASE(type, name, kind)                \
    EXPORT cl_int name(type object);             \
    cl_int name(type object) {                   \
        const int fail = fails(#name);           \
        nvidia_release(object);                  \
        const cl_int code = real.name(object);   \
        if (code == CL_SUCCESS) count(kind, -1); \
        return fail ? control.code : code;       \
    }

/* A call that may give an event through its last parameter. */
#define ENQUEUE(name, parameters, arguments)                     \
    EXPORT cl_int name parameters;                               \
    cl_int name parameters {                                     \
        if (fails(#name)) return control.code;                   \
        const cl_int code = real.name arguments;                 \
        if (code == CL_SUCCESS && event) count(LOADER_EVENT, 1); \
        return code;                                             \
    }

PLAIN(clGetPlatformIDs, (cl_uint a, cl_platform_id *b, cl_uint *c), (a, b, c))
EXPORT cl_int clGetPlatformInfo(cl_platform_id, cl_uint, size_t, void *, size_t *);
cl_int clGetPlatformInfo(cl_platform_id platform, cl_uint what, size_t size, void *to,
                         size_t *length) {
    if (fails("clGetPlatformInfo")) return control.code;
    const char *version = getenv("LOADER_PLATFORM");
    if (!version || what != CL_PLATFORM_VERSION)
        return real.clGetPlatformInfo(platform, what, size, to, length);
    if (to) snprintf(to, size, "%s", version);
    if (length) *length = strlen(version) + 1;
    return CL_SUCCESS;
}
PLAIN(clGetDeviceIDs, (cl_platform_id a, cl_bitfield b, cl_uint c, cl_device_id *d, cl_uint *e),
      (a, b, c, d, e))
PLAIN(clGetContextInfo, (cl_context a, cl_uint b, size_t c, void *d, size_t *e), (a, b, c, d, e))
PLAIN(clGetCommandQueueInfo, (cl_command_queue a, cl_uint b, size_t c, void *d, size_t *e),
      (a, b, c, d, e))
PLAIN(clGetProgramInfo, (cl_program a, cl_uint b, size_t c, void *d, size_t *e), (a, b, c, d, e))
PLAIN(clGetKernelWorkGroupInfo,
      (cl_kernel a, cl_device_id b, cl_uint c, size_t d, void *e, size_t *f), (a, b, c, d, e, f))
PLAIN(clWaitForEvents, (cl_uint a, const cl_event *b), (a, b))
PLAIN(clGetEventProfilingInfo, (cl_event a, cl_uint b, size_t c, void *d, size_t *e),
      (a, b, c, d, e))
PLAIN(clFlush, (cl_command_queue a), (a))
CREATE(cl_context, clCreateContext,
       (const cl_context_properties *a, cl_uint b, const cl_device_id *c,
        void (*d)(const char *, const void *, size_t, void *), void *e, cl_int *code),
       (a, b, c, d, e, code), LOADER_CONTEXT)
CREATE(cl_command_queue, clCreateCommandQueue,
       (cl_context a, cl_device_id b, cl_bitfield c, cl_int *code), (a, b, c, code), LOADER_QUEUE)
CREATE(cl_program, clCreateProgramWithBinary,
       (cl_context a, cl_uint b, const cl_device_id *c, const size_t *d, const unsigned char **e,
        cl_int *f, cl_int *code),
       (a, b, c, d, e, f, code), LOADER_PROGRAM)
RETAIN(cl_context, clRetainContext, LOADER_CONTEXT)
RETAIN(cl_command_queue, clRetainCommandQueue, LOADER_QUEUE)
RETAIN(cl_device_id, clRetainDevice, LOADER_DEVICE)
RELEASE(cl_context, clReleaseContext, LOADER_CONTEXT)
RELEASE(cl_command_queue, clReleaseCommandQueue, LOADER_QUEUE)
RELEASE(cl_device_id, clReleaseDevice, LOADER_DEVICE)
RELEASE(cl_mem, clReleaseMemObject, LOADER_MEM)
RELEASE(cl_program, clReleaseProgram, LOADER_PROGRAM)
RELEASE(cl_kernel, clReleaseKernel, LOADER_KERNEL)
RELEASE(cl_event, clReleaseEvent, LOADER_EVENT)
ENQUEUE(clEnqueueReadBuffer,
        (cl_command_queue a, cl_mem b, cl_bool c, size_t d, size_t e, void *f, cl_uint g,
         const cl_event *h, cl_event *event),
        (a, b, c, d, e, f, g, h, event))
ENQUEUE(clEnqueueWriteBuffer,
        (cl_command_queue a, cl_mem b, cl_bool c, size_t d, size_t e, const void *f, cl_uint g,
         const cl_event *h, cl_event *event),
        (a, b, c, d, e, f, g, h, event))
ENQUEUE(clEnqueueCopyBuffer,
        (cl_command_queue a, cl_mem b, cl_mem c, size_t d, size_t e, size_t f, cl_uint g,
         const cl_event *h, cl_event *event),
        (a, b, c, d, e, f, g, h, event))
ENQUEUE(clEnqueueMarkerWithWaitList,
        (cl_command_queue a, cl_uint b, const cl_event *c, cl_event *event), (a, b, c, event))

EXPORT cl_int clGetEventInfo(cl_event a, cl_uint b, size_t c, void *d, size_t *e);
cl_int clGetEventInfo(cl_event a, cl_uint b, size_t c, void *d, size_t *e) {
    if (fails("clGetEventInfo")) return control.code;
    const cl_int code = real.clGetEventInfo(a, b, c, d, e), shown = control.shown;
    if (code == CL_SUCCESS && shown && b == CL_EVENT_COMMAND_EXECUTION_STATUS)
        memcpy(d, &shown, sizeof shown);
    return code;
}

/* ------------------------------------------------------------------ what nvidia.h wants to see */

EXPORT cl_int clGetDeviceInfo(cl_device_id a, cl_uint b, size_t c, void *d, size_t *e);
cl_int clGetDeviceInfo(cl_device_id a, cl_uint b, size_t c, void *d, size_t *e) {
    if (fails("clGetDeviceInfo")) return control.code;
    return nvidia_device_info(real.clGetDeviceInfo(a, b, c, d, e), b, c, d, e);
}

EXPORT cl_mem clCreateBuffer(cl_context a, cl_bitfield b, size_t c, void *d, cl_int *code);
cl_mem clCreateBuffer(cl_context a, cl_bitfield b, size_t c, void *d, cl_int *code) {
    if (fails("clCreateBuffer")) {
        if (code) *code = control.code;
        return NULL;
    }
    const cl_mem object = real.clCreateBuffer(a, b, c, d, code);
    if (!object) return NULL;
    count(LOADER_MEM, 1);
    nvidia_buffer(object, c);
    return object;
}

EXPORT cl_program clCreateProgramWithSource(cl_context a, cl_uint b, const char **c,
                                            const size_t *d, cl_int *code);
cl_program clCreateProgramWithSource(cl_context a, cl_uint b, const char **c, const size_t *d,
                                     cl_int *code) {
    if (fails("clCreateProgramWithSource")) {
        if (code) *code = control.code;
        return NULL;
    }
    const char *other = nvidia_source(c[0], d[0]);
    const cl_program object = other ? real.clCreateProgramWithSource(a, 1, &other, NULL, code)
                                    : real.clCreateProgramWithSource(a, b, c, d, code);
    if (object) count(LOADER_PROGRAM, 1);
    return object;
}

EXPORT cl_int clBuildProgram(cl_program a, cl_uint b, const cl_device_id *c, const char *d,
                             void (*e)(cl_program, void *), void *f);
cl_int clBuildProgram(cl_program a, cl_uint b, const cl_device_id *c, const char *d,
                      void (*e)(cl_program, void *), void *f) {
    if (fails("clBuildProgram")) return control.code;
    const char *options = nvidia_options(a, d);
    if (options) return real.clBuildProgram(a, b, c, options, e, f);
    control.refused++;
    return nvidia_refusal();
}

EXPORT cl_int clGetProgramBuildInfo(cl_program a, cl_device_id b, cl_uint c, size_t d, void *e,
                                    size_t *f);
cl_int clGetProgramBuildInfo(cl_program a, cl_device_id b, cl_uint c, size_t d, void *e,
                             size_t *f) {
    if (fails("clGetProgramBuildInfo")) return control.code;
    const char *log = c == CL_PROGRAM_BUILD_LOG ? nvidia_log() : NULL;
    if (!log) return real.clGetProgramBuildInfo(a, b, c, d, e, f);
    if (f) *f = strlen(log) + 1;
    if (e && d) snprintf(e, d, "%s", log);
    return CL_SUCCESS;
}

EXPORT cl_kernel clCreateKernel(cl_program a, const char *b, cl_int *code);
cl_kernel clCreateKernel(cl_program a, const char *b, cl_int *code) {
    if (fails("clCreateKernel")) {
        if (code) *code = control.code;
        return NULL;
    }
    const cl_kernel object = real.clCreateKernel(a, b, code);
    if (!object) return NULL;
    count(LOADER_KERNEL, 1);
    nvidia_kernel(object, a, b);
    return object;
}

EXPORT cl_int clSetKernelArg(cl_kernel a, cl_uint b, size_t c, const void *d);
cl_int clSetKernelArg(cl_kernel a, cl_uint b, size_t c, const void *d) {
    if (fails("clSetKernelArg")) return control.code;
    nvidia_argument(a, b, c, d);
    return real.clSetKernelArg(a, b, c, d);
}

EXPORT cl_int clEnqueueNDRangeKernel(cl_command_queue a, cl_kernel b, cl_uint c, const size_t *d,
                                     const size_t *e, const size_t *f, cl_uint g, const cl_event *h,
                                     cl_event *event);
cl_int clEnqueueNDRangeKernel(cl_command_queue a, cl_kernel b, cl_uint c, const size_t *d,
                              const size_t *e, const size_t *f, cl_uint g, const cl_event *h,
                              cl_event *event) {
    if (fails("clEnqueueNDRangeKernel")) return control.code;
    cl_int code = nvidia_run(&real, a, b, e[0], g, h);
    if (code == CL_SUCCESS) code = real.clEnqueueNDRangeKernel(a, b, c, d, e, f, g, h, event);
    if (code == CL_SUCCESS && event) count(LOADER_EVENT, 1);
    return code;
}
