/* SPDX-License-Identifier: Apache-2.0 */
/* What the suite uses of OpenCL, opened at run time. */
#ifndef TESSERA_BENCH_LIMITS_OPENCL_H
#define TESSERA_BENCH_LIMITS_OPENCL_H

#include <stddef.h>
#include <stdint.h>

#include "results.h"

#define CL_FUNCTIONS(X)                                                                            \
    X(int, clGetPlatformIDs, (unsigned, void **, unsigned *))                                      \
    X(int, clGetDeviceIDs, (void *, uint64_t, unsigned, void **, unsigned *))                      \
    X(int, clGetDeviceInfo, (void *, unsigned, size_t, void *, size_t *))                          \
    X(void *, clCreateContext, (const intptr_t *, unsigned, void *const *, void *, void *, int *)) \
    X(void *, clCreateCommandQueue, (void *, void *, uint64_t, int *))                             \
    X(void *, clCreateBuffer, (void *, uint64_t, size_t, void *, int *))                           \
    X(int, clEnqueueFillBuffer,                                                                    \
      (void *, void *, const void *, size_t, size_t, size_t, unsigned, void *const *, void **))    \
    X(int, clEnqueueWriteBuffer,                                                                   \
      (void *, void *, unsigned, size_t, size_t, const void *, unsigned, void *const *, void **))  \
    X(int, clEnqueueReadBuffer,                                                                    \
      (void *, void *, unsigned, size_t, size_t, void *, unsigned, void *const *, void **))        \
    X(int, clFinish, (void *))                                                                     \
    X(void *, clCreateProgramWithSource, (void *, unsigned, const char **, const size_t *, int *)) \
    X(int, clBuildProgram, (void *, unsigned, void *const *, const char *, void *, void *))        \
    X(void *, clCreateKernel, (void *, const char *, int *))                                       \
    X(int, clSetKernelArg, (void *, unsigned, size_t, const void *))                               \
    X(int, clEnqueueNDRangeKernel,                                                                 \
      (void *, void *, unsigned, const size_t *, const size_t *, const size_t *, unsigned,         \
       void *const *, void **))                                                                    \
    X(int, clWaitForEvents, (unsigned, void *const *))                                             \
    X(int, clGetEventProfilingInfo, (void *, unsigned, size_t, void *, size_t *))                  \
    X(int, clReleaseEvent, (void *))                                                               \
    X(int, clReleaseKernel, (void *))                                                              \
    X(int, clReleaseProgram, (void *))                                                             \
    X(int, clReleaseMemObject, (void *))                                                           \
    X(int, clReleaseCommandQueue, (void *))                                                        \
    X(int, clReleaseContext, (void *))

typedef struct cl_functions {
#define CL_MEMBER(result, name, parameters) result(*name) parameters;
    CL_FUNCTIONS(CL_MEMBER)
#undef CL_MEMBER
} cl_functions;

/* The loader, or NULL with a reason. */
const cl_functions *opencl_functions(char *why, size_t size);

/* A device with a queue that measures. */
typedef struct opencl_gpu {
    const cl_functions *cl;
    void *device, *context, *queue;
} opencl_gpu;
int opencl_open(opencl_gpu *g, const bench_device *d, char *why, size_t size);
void opencl_close(opencl_gpu *g);
int opencl_has(const opencl_gpu *g, const char *extension);
enum { OPENCL_READ_WRITE = 1 };
/* Waits for a command and releases its event; its seconds on the device, NaN after a failure. */
double opencl_seconds(opencl_gpu *g, void *event);

#endif
