/* SPDX-License-Identifier: Apache-2.0 */
/* What this backend uses of OpenCL 1.2, declared here so that it compiles on machines without
 * OpenCL's headers. Names and values are the standard's. */
#ifndef TESS_OPENCL_CL_H
#define TESS_OPENCL_CL_H

#include <stddef.h>
#include <stdint.h>

typedef int32_t cl_int;
typedef uint32_t cl_uint;
typedef uint64_t cl_ulong;
typedef cl_uint cl_bool;
typedef cl_ulong cl_bitfield;
typedef intptr_t cl_context_properties;

typedef struct _cl_platform_id *cl_platform_id;
typedef struct _cl_device_id *cl_device_id;
typedef struct _cl_context *cl_context;
typedef struct _cl_command_queue *cl_command_queue;
typedef struct _cl_mem *cl_mem;
typedef struct _cl_program *cl_program;
typedef struct _cl_kernel *cl_kernel;
typedef struct _cl_event *cl_event;

/* X(name, value): the errors that calls used here can give. */
#define TESS_OPENCL_ERRORS(X)                            \
    X(CL_DEVICE_NOT_FOUND, -1)                           \
    X(CL_DEVICE_NOT_AVAILABLE, -2)                       \
    X(CL_COMPILER_NOT_AVAILABLE, -3)                     \
    X(CL_MEM_OBJECT_ALLOCATION_FAILURE, -4)              \
    X(CL_OUT_OF_RESOURCES, -5)                           \
    X(CL_OUT_OF_HOST_MEMORY, -6)                         \
    X(CL_PROFILING_INFO_NOT_AVAILABLE, -7)               \
    X(CL_MEM_COPY_OVERLAP, -8)                           \
    X(CL_BUILD_PROGRAM_FAILURE, -11)                     \
    X(CL_MISALIGNED_SUB_BUFFER_OFFSET, -13)              \
    X(CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST, -14) \
    X(CL_COMPILE_PROGRAM_FAILURE, -15)                   \
    X(CL_LINKER_NOT_AVAILABLE, -16)                      \
    X(CL_LINK_PROGRAM_FAILURE, -17)                      \
    X(CL_INVALID_VALUE, -30)                             \
    X(CL_INVALID_DEVICE_TYPE, -31)                       \
    X(CL_INVALID_PLATFORM, -32)                          \
    X(CL_INVALID_DEVICE, -33)                            \
    X(CL_INVALID_CONTEXT, -34)                           \
    X(CL_INVALID_QUEUE_PROPERTIES, -35)                  \
    X(CL_INVALID_COMMAND_QUEUE, -36)                     \
    X(CL_INVALID_HOST_PTR, -37)                          \
    X(CL_INVALID_MEM_OBJECT, -38)                        \
    X(CL_INVALID_BINARY, -42)                            \
    X(CL_INVALID_BUILD_OPTIONS, -43)                     \
    X(CL_INVALID_PROGRAM, -44)                           \
    X(CL_INVALID_PROGRAM_EXECUTABLE, -45)                \
    X(CL_INVALID_KERNEL_NAME, -46)                       \
    X(CL_INVALID_KERNEL_DEFINITION, -47)                 \
    X(CL_INVALID_KERNEL, -48)                            \
    X(CL_INVALID_ARG_INDEX, -49)                         \
    X(CL_INVALID_ARG_VALUE, -50)                         \
    X(CL_INVALID_ARG_SIZE, -51)                          \
    X(CL_INVALID_KERNEL_ARGS, -52)                       \
    X(CL_INVALID_WORK_DIMENSION, -53)                    \
    X(CL_INVALID_WORK_GROUP_SIZE, -54)                   \
    X(CL_INVALID_WORK_ITEM_SIZE, -55)                    \
    X(CL_INVALID_GLOBAL_OFFSET, -56)                     \
    X(CL_INVALID_EVENT_WAIT_LIST, -57)                   \
    X(CL_INVALID_EVENT, -58)                             \
    X(CL_INVALID_OPERATION, -59)                         \
    X(CL_INVALID_BUFFER_SIZE, -61)                       \
    X(CL_INVALID_GLOBAL_WORK_SIZE, -63)                  \
    X(CL_INVALID_PROPERTY, -64)                          \
    X(CL_PLATFORM_NOT_FOUND_KHR, -1001)

enum {
#define TESS_OPENCL_ERROR(name, value) name = (value),
    TESS_OPENCL_ERRORS(TESS_OPENCL_ERROR)
#undef TESS_OPENCL_ERROR
        CL_SUCCESS = 0,

    CL_DEVICE_TYPE_CPU = 1 << 1,
    CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE = 1 << 0,
    CL_QUEUE_PROFILING_ENABLE = 1 << 1,
    CL_MEM_READ_WRITE = 1 << 0,
    CL_COMPLETE = 0,
    CL_RUNNING = 1,

    CL_PLATFORM_VERSION = 0x0901,
    CL_PLATFORM_NAME = 0x0902,
    CL_DEVICE_TYPE = 0x1000,
    CL_DEVICE_VENDOR_ID = 0x1001,
    CL_DEVICE_MAX_COMPUTE_UNITS = 0x1002,
    CL_DEVICE_MAX_WORK_GROUP_SIZE = 0x1004,
    CL_DEVICE_MAX_WORK_ITEM_SIZES = 0x1005,
    CL_DEVICE_MAX_CLOCK_FREQUENCY = 0x100C,
    CL_DEVICE_MAX_MEM_ALLOC_SIZE = 0x1010,
    CL_DEVICE_GLOBAL_MEM_SIZE = 0x101F,
    CL_DEVICE_LOCAL_MEM_SIZE = 0x1023,
    CL_DEVICE_ENDIAN_LITTLE = 0x1026,
    CL_DEVICE_AVAILABLE = 0x1027,
    CL_DEVICE_COMPILER_AVAILABLE = 0x1028,
    CL_DEVICE_NAME = 0x102B,
    CL_DEVICE_VENDOR = 0x102C,
    CL_DRIVER_VERSION = 0x102D,
    CL_DEVICE_VERSION = 0x102F,
    CL_DEVICE_EXTENSIONS = 0x1030,
    CL_DEVICE_PARENT_DEVICE = 0x1042,
    CL_DEVICE_SUB_GROUP_SIZES_INTEL = 0x4108,       /* cl_intel_required_subgroup_size */
    CL_DEVICE_COMPUTE_CAPABILITY_MAJOR_NV = 0x4000, /* cl_nv_device_attribute_query */
    CL_DEVICE_COMPUTE_CAPABILITY_MINOR_NV = 0x4001,
    CL_DEVICE_KERNEL_EXEC_TIMEOUT_NV = 0x4005,
    CL_DEVICE_BOARD_NAME_AMD = 0x4038, /* cl_amd_device_attribute_query */
    CL_CONTEXT_DEVICES = 0x1081,
    CL_CONTEXT_PLATFORM = 0x1084,
    CL_QUEUE_CONTEXT = 0x1090,
    CL_QUEUE_DEVICE = 0x1091,
    CL_QUEUE_PROPERTIES = 0x1093,
    CL_PROGRAM_NUM_DEVICES = 0x1162,
    CL_PROGRAM_DEVICES = 0x1163,
    CL_PROGRAM_BINARY_SIZES = 0x1165,
    CL_PROGRAM_BINARIES = 0x1166,
    CL_PROGRAM_BUILD_LOG = 0x1183,
    CL_KERNEL_WORK_GROUP_SIZE = 0x11B0,
    CL_KERNEL_LOCAL_MEM_SIZE = 0x11B2,
    CL_EVENT_COMMAND_EXECUTION_STATUS = 0x11D3,
    CL_PROFILING_COMMAND_START = 0x1282,
    CL_PROFILING_COMMAND_END = 0x1283,
};
#define CL_DEVICE_TYPE_ALL 0xFFFFFFFFu

/* X(type of the result, name, parameters): every function used, in the order in which the loader
 * finds them. */
#define TESS_OPENCL_FUNCTIONS(X)                                                                   \
    X(cl_int, clGetPlatformIDs, (cl_uint, cl_platform_id *, cl_uint *))                            \
    X(cl_int, clGetPlatformInfo, (cl_platform_id, cl_uint, size_t, void *, size_t *))              \
    X(cl_int, clGetDeviceIDs, (cl_platform_id, cl_bitfield, cl_uint, cl_device_id *, cl_uint *))   \
    X(cl_int, clGetDeviceInfo, (cl_device_id, cl_uint, size_t, void *, size_t *))                  \
    X(cl_context, clCreateContext,                                                                 \
      (const cl_context_properties *, cl_uint, const cl_device_id *,                               \
       void (*)(const char *, const void *, size_t, void *), void *, cl_int *))                    \
    X(cl_int, clRetainContext, (cl_context))                                                       \
    X(cl_int, clReleaseContext, (cl_context))                                                      \
    X(cl_int, clGetContextInfo, (cl_context, cl_uint, size_t, void *, size_t *))                   \
    X(cl_command_queue, clCreateCommandQueue, (cl_context, cl_device_id, cl_bitfield, cl_int *))   \
    X(cl_int, clRetainCommandQueue, (cl_command_queue))                                            \
    X(cl_int, clReleaseCommandQueue, (cl_command_queue))                                           \
    X(cl_int, clGetCommandQueueInfo, (cl_command_queue, cl_uint, size_t, void *, size_t *))        \
    X(cl_int, clRetainDevice, (cl_device_id))                                                      \
    X(cl_int, clReleaseDevice, (cl_device_id))                                                     \
    X(cl_mem, clCreateBuffer, (cl_context, cl_bitfield, size_t, void *, cl_int *))                 \
    X(cl_int, clReleaseMemObject, (cl_mem))                                                        \
    X(cl_int, clEnqueueReadBuffer,                                                                 \
      (cl_command_queue, cl_mem, cl_bool, size_t, size_t, void *, cl_uint, const cl_event *,       \
       cl_event *))                                                                                \
    X(cl_int, clEnqueueWriteBuffer,                                                                \
      (cl_command_queue, cl_mem, cl_bool, size_t, size_t, const void *, cl_uint, const cl_event *, \
       cl_event *))                                                                                \
    X(cl_int, clEnqueueCopyBuffer,                                                                 \
      (cl_command_queue, cl_mem, cl_mem, size_t, size_t, size_t, cl_uint, const cl_event *,        \
       cl_event *))                                                                                \
    X(cl_program, clCreateProgramWithSource,                                                       \
      (cl_context, cl_uint, const char **, const size_t *, cl_int *))                              \
    X(cl_program, clCreateProgramWithBinary,                                                       \
      (cl_context, cl_uint, const cl_device_id *, const size_t *, const unsigned char **,          \
       cl_int *, cl_int *))                                                                        \
    X(cl_int, clBuildProgram,                                                                      \
      (cl_program, cl_uint, const cl_device_id *, const char *, void (*)(cl_program, void *),      \
       void *))                                                                                    \
    X(cl_int, clGetProgramInfo, (cl_program, cl_uint, size_t, void *, size_t *))                   \
    X(cl_int, clGetProgramBuildInfo,                                                               \
      (cl_program, cl_device_id, cl_uint, size_t, void *, size_t *))                               \
    X(cl_int, clReleaseProgram, (cl_program))                                                      \
    X(cl_kernel, clCreateKernel, (cl_program, const char *, cl_int *))                             \
    X(cl_int, clReleaseKernel, (cl_kernel))                                                        \
    X(cl_int, clSetKernelArg, (cl_kernel, cl_uint, size_t, const void *))                          \
    X(cl_int, clGetKernelWorkGroupInfo,                                                            \
      (cl_kernel, cl_device_id, cl_uint, size_t, void *, size_t *))                                \
    X(cl_int, clEnqueueNDRangeKernel,                                                              \
      (cl_command_queue, cl_kernel, cl_uint, const size_t *, const size_t *, const size_t *,       \
       cl_uint, const cl_event *, cl_event *))                                                     \
    X(cl_int, clEnqueueMarkerWithWaitList,                                                         \
      (cl_command_queue, cl_uint, const cl_event *, cl_event *))                                   \
    X(cl_int, clWaitForEvents, (cl_uint, const cl_event *))                                        \
    X(cl_int, clGetEventInfo, (cl_event, cl_uint, size_t, void *, size_t *))                       \
    X(cl_int, clGetEventProfilingInfo, (cl_event, cl_uint, size_t, void *, size_t *))              \
    X(cl_int, clReleaseEvent, (cl_event))                                                          \
    X(cl_int, clFlush, (cl_command_queue))

typedef struct cl_api {
#define TESS_OPENCL_MEMBER(result, name, parameters) result(*name) parameters;
    TESS_OPENCL_FUNCTIONS(TESS_OPENCL_MEMBER)
#undef TESS_OPENCL_MEMBER
} cl_api;

#endif /* TESS_OPENCL_CL_H */
