/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tessera on the application's own OpenCL objects. Include it with or without <CL/cl.h>; its types
 * are only named here.
 *
 *     tess_opencl_native native = {sizeof native};
 *     native.context = context;
 *     native.device = device;
 *     tess_device_desc desc = {sizeof desc, 0, "opencl:0", &native};
 *
 * Buffers.   TESS_BUFFER_OBJECT: `handle` is (uint64_t)(uintptr_t)mem of a cl_mem of that context,
 *            with any `offset` that is aligned to the element.
 * Streams.   TESS_STREAM_DEFAULT is the wrapped queue, or else one that the library made.
 *            TESS_STREAM_SUBMIT enqueues on any queue of that context and device, in order or not:
 *            `handle` is (uint64_t)(uintptr_t)queue, `extra` is NULL or a tess_opencl_submit. The
 *            library does not flush such a queue.
 *            TESS_STREAM_RECORD is UNSUPPORTED: OpenCL has no recording of commands.
 * Plans.     Kernels are compiled when a plan needs them and kept on disk
 *            (tess_runtime_desc.cache_dir). Some drivers, PoCL among them, finish the work when a
 *            kernel is first enqueued, so a plan's first tess_run may take long.
 * Time.      tess_run_desc.device_seconds needs a queue with CL_QUEUE_PROFILING_ENABLE, which the
 *            library's own has, and is UNSUPPORTED on others.
 */
#ifndef TESSERA_TESSERA_OPENCL_H
#define TESSERA_TESSERA_OPENCL_H

#include "tessera.h"

#ifdef __cplusplus
extern "C" {
#endif

struct _cl_context;       /* *cl_context */
struct _cl_device_id;     /* *cl_device_id */
struct _cl_command_queue; /* *cl_command_queue */
struct _cl_event;         /* *cl_event */

/* For tess_device_desc.native. Context, device and queue are retained as long as the tess_device
 * lives.
 * device: the one that tess_device_desc.id names, or a sub-device of it.
 * queue:  of that context and device, in order; becomes TESS_STREAM_DEFAULT. */
typedef struct tess_opencl_native {
    uint32_t struct_size;
    uint32_t reserved;               /* must be 0 */
    struct _cl_context *context;     /* holds the device, and possibly others */
    struct _cl_device_id *device;    /* of that context */
    struct _cl_command_queue *queue; /* [NULL: the library makes one] */
} tess_opencl_native;

/* For tess_stream.extra with TESS_STREAM_SUBMIT.
 * waits: what has to be done before the first kernel starts.
 * event: gets the event of the last kernel, which the caller releases. A run that has no jobs, or
 *        that fails, leaves it as it was. */
typedef struct tess_opencl_submit {
    uint32_t struct_size;
    uint32_t n_waits;               /* entries of `waits` */
    struct _cl_event *const *waits; /* [NULL with n_waits 0] */
    struct _cl_event **event;       /* [NULL: not wanted] */
} tess_opencl_submit;

#ifdef __cplusplus
}
#endif

#endif /* TESSERA_TESSERA_OPENCL_H */
