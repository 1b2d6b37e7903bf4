/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device that passes for one of NVIDIA's: a real device with other answers, whose forward kernel
 * for tensor cores runs on the host, lanes in lockstep. The loader of the tests asks these before
 * and after it forwards a call. LOADER_NVIDIA in the environment says what the device is:
 * "8.0" and so on, or "refuses" for one of 8.0 whose compiler takes no PTX, and "refuses newer" for
 * one that takes PTX of earlier versions than the kernel's alone. With "unproved" behind
 * the number it is of another vendor, on whose devices the kernel has not run, and with "wrong" as
 * well its last workgroup does nothing. With LOADER_INTEL it passes for one of Intel's, and that is
 * the size of its smallest subgroups. What may follow is "refuses" or "wrong" as above, or the name
 * of an extension that the device does not have.
 */
#ifndef TESSERA_TESTS_OPENCL_NVIDIA_H
#define TESSERA_TESTS_OPENCL_NVIDIA_H

#include "cl.h"

#ifdef LOADER_NVIDIA
/* Changes what clGetDeviceInfo has answered with `code`; returns the new code. */
cl_int nvidia_device_info(cl_int code, cl_uint what, size_t size, void *value, size_t *bytes);
/* The text that is compiled in place of a program's; NULL: its own. */
const char *nvidia_source(const char *source, size_t size);
/* Takes note of the options of a program; those for the text above, NULL where the compiler is to
 * refuse it. */
const char *nvidia_options(cl_program program, const char *options);
/* What it gives then. */
cl_int nvidia_refusal(void);
/* What such a compiler has to say; NULL: the log of the real one. */
const char *nvidia_log(void);
void nvidia_buffer(cl_mem buffer, size_t size);
void nvidia_release(const void *object);
void nvidia_kernel(cl_kernel kernel, cl_program program, const char *name);
void nvidia_argument(cl_kernel kernel, cl_uint n, size_t size, const void *value);
/* Runs the kernel if it is that for tensor cores, after all that was enqueued. */
cl_int nvidia_run(const cl_api *real, cl_command_queue queue, cl_kernel kernel, size_t items,
                  cl_uint n_waits, const cl_event *waits);
#else
static inline cl_int nvidia_device_info(cl_int code, cl_uint what, size_t size, void *value,
                                        size_t *bytes) {
    (void)what, (void)size, (void)value, (void)bytes;
    return code;
}
static inline const char *nvidia_source(const char *source, size_t size) {
    (void)source, (void)size;
    return NULL;
}
static inline const char *nvidia_options(cl_program program, const char *options) {
    (void)program;
    return options;
}
static inline cl_int nvidia_refusal(void) { return CL_BUILD_PROGRAM_FAILURE; }
static inline const char *nvidia_log(void) { return NULL; }
static inline void nvidia_buffer(cl_mem buffer, size_t size) { (void)buffer, (void)size; }
static inline void nvidia_release(const void *object) { (void)object; }
static inline void nvidia_kernel(cl_kernel kernel, cl_program program, const char *name) {
    (void)kernel, (void)program, (void)name;
}
static inline void nvidia_argument(cl_kernel kernel, cl_uint n, size_t size, const void *value) {
    (void)kernel, (void)n, (void)size, (void)value;
}
static inline cl_int nvidia_run(const cl_api *real, cl_command_queue queue, cl_kernel kernel,
                                size_t items, cl_uint n_waits, const cl_event *waits) {
    (void)real, (void)queue, (void)kernel, (void)items, (void)n_waits, (void)waits;
    return CL_SUCCESS;
}
#endif

#endif
