/* SPDX-License-Identifier: Apache-2.0 */
/* Enqueuing the kernels of a run. OpenCL copies the arguments of a kernel while it is enqueued, so
 * a slot is free again as soon as that is done. */
#include <stdio.h>
#include <string.h>

#include "extra.h"
#include "opencl.h"
#include <tessera/tessera_opencl.h>

/* More workgroups than this are given to the device in parts: 32-bit devices count work-items in 32
 * bits. */
enum { MOST_GROUPS = 1 << 22 };

/* Where the kernels go, and what they wait for. Each waits for the one before it wherever the queue
 * itself may not keep the order. */
typedef struct opencl_way {
    cl_command_queue queue;
    int chained; /* each kernel waits for the one before it and gives an event */
    cl_uint n_waits;
    const cl_event *waits;
    cl_event first, last; /* first: only if its time is wanted */
    int wants_first;
} opencl_way;

/* ------------------------------------------------------------------ streams */

static tess_status invalid(const opencl_device *d, const char *what, cl_int code) {
    return d->host->fail(d->host, TESS_ERROR_INVALID, "%s (%s, %d)", what,
                         tess_opencl_error_name(code), (int)code);
}

/* Only what says that the handle is no queue is the caller's mistake. */
static tess_status no_queue(const opencl_device *d, cl_int code) {
    if (code == CL_INVALID_COMMAND_QUEUE || code == CL_INVALID_VALUE)
        return invalid(d, "stream.handle: clGetCommandQueueInfo", code);
    return tess_opencl_fail(d->host, "clGetCommandQueueInfo", "stream.handle", code);
}

static tess_status submit_way(const opencl_device *d, const tess_stream *stream, opencl_way *way,
                              cl_event **event) {
    const tess_host *host = d->host;
    tess_opencl_submit extra;
    cl_context context = NULL;
    cl_device_id device = NULL;
    if (stream->handle == 0)
        return host->fail(host, TESS_ERROR_INVALID,
                          "stream.handle: must be a cl_command_queue, not 0");
    way->queue = (cl_command_queue)(uintptr_t)stream->handle;
    cl_int code = d->cl->clGetCommandQueueInfo(way->queue, CL_QUEUE_CONTEXT, sizeof(cl_context),
                                               &context, NULL);
    if (code == CL_SUCCESS)
        code = d->cl->clGetCommandQueueInfo(way->queue, CL_QUEUE_DEVICE, sizeof(cl_device_id),
                                            &device, NULL);
    if (code != CL_SUCCESS) return no_queue(d, code);
    if (context != d->context || device != d->device)
        return host->fail(host, TESS_ERROR_INVALID,
                          "stream.handle: the queue is not of this device and its context");
    cl_bitfield properties = 0;
    code = d->cl->clGetCommandQueueInfo(way->queue, CL_QUEUE_PROPERTIES, sizeof properties,
                                        &properties, NULL);
    if (code != CL_SUCCESS) return no_queue(d, code);
    way->chained = (properties & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE) != 0;
    if (!stream->extra) return TESS_OK;
    const tess_status status =
        tess_extra_read(host, "stream.extra", stream->extra, &extra, sizeof extra);
    if (status != TESS_OK) return status;
    if (extra.n_waits > 0 && !extra.waits)
        return host->fail(host, TESS_ERROR_INVALID,
                          "stream.extra: waits must not be NULL with n_waits");
    way->n_waits = extra.n_waits;
    way->waits = extra.n_waits ? (const cl_event *)extra.waits : NULL;
    *event = extra.event;
    if (*event) way->chained = 1;
    return TESS_OK;
}

static tess_status find_way(const opencl_device *d, const tess_launch *l, opencl_way *way,
                            cl_event **event) {
    const tess_host *host = d->host;
    if (l->stream.kind == TESS_STREAM_RECORD)
        return host->fail(host, TESS_ERROR_UNSUPPORTED,
                          "stream.kind: OpenCL records no commands; use TESS_STREAM_DEFAULT or "
                          "TESS_STREAM_SUBMIT");
    way->queue = d->queue;
    if (l->stream.kind == TESS_STREAM_SUBMIT) {
        const tess_status status = submit_way(d, &l->stream, way, event);
        if (status != TESS_OK) return status;
    }
    if (!l->seconds) return TESS_OK;
    cl_bitfield properties = 0;
    const cl_int code = d->cl->clGetCommandQueueInfo(way->queue, CL_QUEUE_PROPERTIES,
                                                     sizeof properties, &properties, NULL);
    if (code != CL_SUCCESS)
        return tess_opencl_fail(host, "clGetCommandQueueInfo",
                                "the queue's properties are not known", code);
    if (!(properties & CL_QUEUE_PROFILING_ENABLE))
        return host->fail(host, TESS_ERROR_UNSUPPORTED,
                          "device_seconds: the queue was made without CL_QUEUE_PROFILING_ENABLE");
    way->chained = way->wants_first = 1;
    return TESS_OK;
}

/* ------------------------------------------------------------------ kernels */

static cl_mem mem_or(const tess_buffer *buffer, cl_mem other) {
    return buffer->kind == TESS_BUFFER_NONE ? other : (cl_mem)(uintptr_t)buffer->handle;
}

/* Messages call the argument `name` followed by `part`. */
static tess_status set_buffer(const opencl_device *d, cl_kernel kernel, cl_uint n, cl_mem buffer,
                              const char *name, const char *part) {
    char what[64];
    const cl_int code = d->cl->clSetKernelArg(kernel, n, sizeof(cl_mem), &buffer);
    if (code == CL_SUCCESS) return TESS_OK;
    snprintf(what, sizeof what, "%s%s: clSetKernelArg", name, part);
    if (code == CL_INVALID_MEM_OBJECT || code == CL_INVALID_ARG_VALUE)
        return invalid(d, what, code);
    return tess_opencl_fail(d->host, "clSetKernelArg", what, code);
}

static tess_status set_buffers(const opencl_device *d, const tess_launch *l, cl_kernel kernel) {
    /* An argument that is not used still has to be a buffer. */
    const cl_mem tables = (cl_mem)(uintptr_t)l->tables->device.handle;
    tess_status status = TESS_OK;
    for (cl_uint n = 0; n < TESS_PORTABLE_TENSORS && status == TESS_OK; n++) {
        const tess_portable_tensor *t = &tess_portable_tensors[n];
        status = set_buffer(d, kernel, n, mem_or(&l->tensor[t->role].buffer, tables), t->name,
                            ".buffer");
    }
    if (status == TESS_OK)
        status = set_buffer(d, kernel, TESS_PORTABLE_TENSORS, tables, "tables", "");
    if (status != TESS_OK) return status;
    return set_buffer(d, kernel, TESS_PORTABLE_TENSORS + 1, mem_or(&l->workspace, tables),
                      "workspace", "");
}

/* Enqueues `groups` workgroups, after what `way` says, and moves its events on. */
static tess_status enqueue(const opencl_device *d, opencl_way *way, cl_kernel kernel,
                           const tess_args *args, size_t groups, uint32_t threads) {
    cl_int code = d->cl->clSetKernelArg(kernel, TESS_PORTABLE_BUFFERS, sizeof *args, args);
    if (code != CL_SUCCESS)
        return tess_opencl_fail(d->host, "clSetKernelArg", "the arguments are not taken", code);
    const size_t local = threads, global = groups * threads;
    const cl_event previous = way->last;
    const cl_uint n_waits = previous ? 1 : way->n_waits;
    const cl_event *waits = previous ? &previous : way->waits;
    cl_event event = NULL;
    code = d->cl->clEnqueueNDRangeKernel(way->queue, kernel, 1, NULL, &global, &local, n_waits,
                                         waits, way->chained ? &event : NULL);
    if (code == CL_INVALID_EVENT_WAIT_LIST || code == CL_INVALID_EVENT ||
        (code == CL_INVALID_CONTEXT && n_waits))
        return invalid(d, "stream.extra: waits: clEnqueueNDRangeKernel", code);
    if (code != CL_SUCCESS)
        return tess_opencl_fail(d->host, "clEnqueueNDRangeKernel", "a kernel was not enqueued",
                                code);
    if (!way->chained) return TESS_OK;
    if (way->wants_first && !way->first)
        way->first = event;
    else if (previous && previous != way->first)
        d->cl->clReleaseEvent(previous);
    way->last = event;
    return TESS_OK;
}

typedef void args_fn(const tess_launch *launch, uint64_t skip, uint64_t items, int base_in_handle,
                     tess_args *args);

/* `groups` workgroups take an item. */
static tess_status run_kernel(const opencl_device *d, const tess_launch *l, opencl_way *way,
                              cl_kernel kernel, args_fn *fill, uint64_t items, uint32_t groups,
                              uint32_t threads) {
    const uint64_t most = groups < MOST_GROUPS ? MOST_GROUPS / groups : 1;
    tess_status status = items ? set_buffers(d, l, kernel) : TESS_OK;
    for (uint64_t done = 0; done < items && status == TESS_OK; done += most) {
        tess_args args;
        fill(l, done, items - done < most ? items - done : most, 0, &args);
        status = enqueue(d, way, kernel, &args, (size_t)args.items * groups, threads);
    }
    return status;
}

/* ------------------------------------------------------------------ the call */

static opencl_slot *take_slot(opencl_state *state) {
    for (uint32_t n = 0; n < state->slots; n++) {
        int expected = 0;
        if (__atomic_compare_exchange_n(&state->slot[n].busy, &expected, 1, 0, __ATOMIC_ACQUIRE,
                                        __ATOMIC_RELAXED))
            return &state->slot[n];
    }
    return NULL;
}

static tess_status take_seconds(const opencl_device *d, const opencl_way *way, double *seconds) {
    cl_ulong begin = 0, end = 0;
    cl_int code = d->cl->clWaitForEvents(1, &way->last);
    if (code != CL_SUCCESS)
        return tess_opencl_fail(d->host, "clWaitForEvents", "the work failed", code);
    code = d->cl->clGetEventProfilingInfo(way->first, CL_PROFILING_COMMAND_START, sizeof begin,
                                          &begin, NULL);
    if (code == CL_SUCCESS)
        code = d->cl->clGetEventProfilingInfo(way->last, CL_PROFILING_COMMAND_END, sizeof end, &end,
                                              NULL);
    if (code != CL_SUCCESS)
        return tess_opencl_fail(d->host, "clGetEventProfilingInfo", "the kernels have no times",
                                code);
    *seconds = end > begin ? 1e-9 * (double)(end - begin) : 0;
    return TESS_OK;
}

tess_status tess_opencl_launch(void *device, const tess_launch *l) {
    const opencl_device *d = device;
    const tess_host *host = d->host;
    opencl_state *state = l->kernel->state;
    opencl_way way;
    cl_event *event = NULL;
    memset(&way, 0, sizeof way);
    tess_status status = find_way(d, l, &way, &event);
    if (status != TESS_OK) return status;
    /* Kernels count the words of the tables in 32 bits. */
    if (l->tables->device.size > (uint64_t)UINT32_MAX * 4)
        return host->fail(host, TESS_ERROR_UNSUPPORTED,
                          "batch: tables of %llu bytes; this backend takes 16 GiB",
                          (unsigned long long)l->tables->device.size);
    opencl_slot *slot = take_slot(state);
    if (!slot)
        return host->fail(host, TESS_ERROR_BUSY, "max_in_flight: %u runs are being enqueued",
                          (unsigned)state->slots);
    status = run_kernel(d, l, &way, slot->forward, tess_portable_forward_args, l->n_jobs, 1,
                        state->threads);
    if (status == TESS_OK)
        status = run_kernel(d, l, &way, slot->merge, tess_portable_merge_args, l->n_merges,
                            tess_portable_merge_groups(l), TESS_MERGE_THREADS);
    __atomic_store_n(&slot->busy, 0, __ATOMIC_RELEASE);
    if (status == TESS_OK && l->stream.kind == TESS_STREAM_DEFAULT) {
        const cl_int code = d->cl->clFlush(way.queue);
        if (code != CL_SUCCESS)
            status = tess_opencl_fail(host, "clFlush", "the queue cannot be flushed", code);
    }
    if (status == TESS_OK && l->seconds) status = take_seconds(d, &way, l->seconds);
    if (way.first && way.first != way.last) d->cl->clReleaseEvent(way.first);
    if (way.last && status == TESS_OK && event)
        *event = way.last;
    else if (way.last)
        d->cl->clReleaseEvent(way.last);
    return status;
}
