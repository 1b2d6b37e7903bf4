/* SPDX-License-Identifier: Apache-2.0 */
/* Enqueues the kernels of a run. OpenCL copies a kernel's arguments when it is enqueued, so the
 * set is free again right after. */
#include <stdio.h>
#include <string.h>

#include "extra.h"
#include "opencl.h"
#include <tessera/tessera_opencl.h>

/* The most workgroups of one enqueue: 32-bit devices count work-items in 32 bits. */
enum { MOST_GROUPS = 1 << 22 };

/* The queue of a run, and the events that order its kernels where the queue does not. */
typedef struct opencl_stream {
    cl_command_queue queue;
    int chained; /* each kernel waits for the event of the one before it */
    cl_uint n_waits;
    const cl_event *waits;
    cl_event first, last; /* first: only if its time is wanted */
    int timed;
} opencl_stream;

/* ------------------------------------------------------------------ streams */

static tess_status invalid(const opencl_device *d, const char *what, cl_int code) {
    return d->host->fail(d->host, TESS_ERROR_INVALID, "%s (%s, %d)", what,
                         tess_opencl_error_name(code), (int)code);
}

/* These two codes say that the handle is no queue, which is the caller's mistake; all others are
 * the driver's. */
static tess_status no_queue(const opencl_device *d, cl_int code) {
    if (code == CL_INVALID_COMMAND_QUEUE || code == CL_INVALID_VALUE)
        return invalid(d, "stream.handle: clGetCommandQueueInfo", code);
    return tess_opencl_fail(d->host, "clGetCommandQueueInfo", "stream.handle", code);
}

static tess_status read_submit(const opencl_device *d, const tess_stream *stream, opencl_stream *s,
                               cl_event **event) {
    const tess_host *host = d->host;
    tess_opencl_submit extra;
    cl_context context = NULL;
    cl_device_id device = NULL;
    if (stream->handle == 0)
        return host->fail(host, TESS_ERROR_INVALID,
                          "stream.handle: must be a cl_command_queue, not 0");
    s->queue = (cl_command_queue)(uintptr_t)stream->handle;
    cl_int code = d->cl->clGetCommandQueueInfo(s->queue, CL_QUEUE_CONTEXT, sizeof(cl_context),
                                               &context, NULL);
    if (code == CL_SUCCESS)
        code = d->cl->clGetCommandQueueInfo(s->queue, CL_QUEUE_DEVICE, sizeof(cl_device_id),
                                            &device, NULL);
    if (code != CL_SUCCESS) return no_queue(d, code);
    if (context != d->context || device != d->device)
        return host->fail(host, TESS_ERROR_INVALID,
                          "stream.handle: the queue is not of this device and its context");
    cl_bitfield properties = 0;
    code = d->cl->clGetCommandQueueInfo(s->queue, CL_QUEUE_PROPERTIES, sizeof properties,
                                        &properties, NULL);
    if (code != CL_SUCCESS) return no_queue(d, code);
    s->chained = (properties & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE) != 0;
    if (!stream->extra) return TESS_OK;
    TESS_RETURN_IF_ERROR(
        tess_extra_read(host, "stream.extra", stream->extra, &extra, sizeof extra));
    if (extra.n_waits > 0 && !extra.waits)
        return host->fail(host, TESS_ERROR_INVALID,
                          "stream.extra: waits must not be NULL with n_waits");
    s->n_waits = extra.n_waits;
    s->waits = extra.n_waits ? (const cl_event *)extra.waits : NULL;
    *event = extra.event;
    if (*event) s->chained = 1;
    return TESS_OK;
}

static tess_status read_stream(const opencl_device *d, const tess_launch *l, opencl_stream *s,
                               cl_event **event) {
    const tess_host *host = d->host;
    if (l->stream.kind == TESS_STREAM_RECORD)
        return host->fail(host, TESS_ERROR_UNSUPPORTED,
                          "stream.kind: OpenCL records no commands; use TESS_STREAM_DEFAULT or "
                          "TESS_STREAM_SUBMIT");
    s->queue = d->queue;
    if (l->stream.kind == TESS_STREAM_SUBMIT)
        TESS_RETURN_IF_ERROR(read_submit(d, &l->stream, s, event));
    if (!l->seconds) return TESS_OK;
    cl_bitfield properties = 0;
    const cl_int code = d->cl->clGetCommandQueueInfo(s->queue, CL_QUEUE_PROPERTIES,
                                                     sizeof properties, &properties, NULL);
    if (code != CL_SUCCESS)
        return tess_opencl_fail(host, "clGetCommandQueueInfo",
                                "the queue's properties are not known", code);
    if (!(properties & CL_QUEUE_PROFILING_ENABLE))
        return host->fail(host, TESS_ERROR_UNSUPPORTED,
                          "device_seconds: the queue was made without CL_QUEUE_PROFILING_ENABLE");
    s->chained = s->timed = 1;
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

/* What the kernels of an operation are given: tensors, the tables, perhaps a workspace, and then
 * arguments by value. */
typedef struct opencl_signature {
    const tess_portable_tensor *tensors;
    cl_uint n_tensors;
    int workspace;
    size_t args_bytes;
} opencl_signature;

static const opencl_signature attention = {tess_portable_tensors, TESS_PORTABLE_TENSORS, 1,
                                           sizeof(tess_args)},
                              paging = {tess_paging_tensors, TESS_PAGING_TENSORS, 0,
                                        sizeof(tess_paging_args)},
                              step = {tess_prepare_tensors, TESS_PREPARE_TENSORS, 0,
                                      sizeof(tess_args)};

static const opencl_signature *signature_of(const tess_launch *l) {
    return tess_is_paging(l->op) ? &paging : l->op == TESS_OP_PREPARE ? &step : &attention;
}

static tess_status set_buffers(const opencl_device *d, const tess_launch *l, cl_kernel kernel) {
    const opencl_signature *g = signature_of(l);
    const tess_buffer *table = &l->tensor[TESS_ROLE_BLOCK_TABLE].buffer;
    /* Every argument must be a buffer, even one that the kernel does not read. */
    const cl_mem tables =
        mem_or(&l->tables->device, mem_or(table, (cl_mem)(uintptr_t)l->workspace.handle));
    for (cl_uint n = 0; n < g->n_tensors; n++) {
        const tess_portable_tensor *t = &g->tensors[n];
        TESS_RETURN_IF_ERROR(set_buffer(d, kernel, n, mem_or(&l->tensor[t->role].buffer, tables),
                                        tess_portable_name(l, t), ".buffer"));
    }
    TESS_RETURN_IF_ERROR(set_buffer(d, kernel, g->n_tensors, tables, "tables", ""));
    if (!g->workspace) return TESS_OK;
    return set_buffer(d, kernel, g->n_tensors + 1, mem_or(&l->workspace, tables),
                      tess_portable_workspace_name(l), "");
}

/* Enqueues `groups` workgroups behind the stream's last event, which becomes theirs. */
static tess_status enqueue(const opencl_device *d, opencl_stream *s, cl_kernel kernel,
                           const opencl_signature *g, const void *args, size_t groups,
                           uint32_t threads) {
    cl_int code = d->cl->clSetKernelArg(kernel, g->n_tensors + 1 + (g->workspace ? 1u : 0u),
                                        g->args_bytes, args);
    if (code != CL_SUCCESS)
        return tess_opencl_fail(d->host, "clSetKernelArg", "the arguments are not taken", code);
    const size_t local = threads, global = groups * threads;
    const cl_event previous = s->last;
    const cl_uint n_waits = previous ? 1 : s->n_waits;
    const cl_event *waits = previous ? &previous : s->waits;
    cl_event event = NULL;
    code = d->cl->clEnqueueNDRangeKernel(s->queue, kernel, 1, NULL, &global, &local, n_waits, waits,
                                         s->chained ? &event : NULL);
    if (code == CL_INVALID_EVENT_WAIT_LIST || code == CL_INVALID_EVENT ||
        (code == CL_INVALID_CONTEXT && n_waits))
        return invalid(d, "stream.extra: waits: clEnqueueNDRangeKernel", code);
    if (code != CL_SUCCESS)
        return tess_opencl_fail(d->host, "clEnqueueNDRangeKernel", "a kernel was not enqueued",
                                code);
    if (!s->chained) return TESS_OK;
    if (s->timed && !s->first)
        s->first = event;
    else if (previous && previous != s->first)
        d->cl->clReleaseEvent(previous);
    s->last = event;
    return TESS_OK;
}

typedef void args_fn(const tess_launch *launch, uint64_t skip, uint64_t items, int base_in_handle,
                     tess_args *args);

/* `groups` workgroups take an item. */
static tess_status run_kernel(const opencl_device *d, const tess_launch *l, opencl_stream *s,
                              cl_kernel kernel, args_fn *fill, uint64_t items, uint32_t groups,
                              uint32_t threads) {
    const uint64_t most = groups < MOST_GROUPS ? MOST_GROUPS / groups : 1;
    if (items) TESS_RETURN_IF_ERROR(set_buffers(d, l, kernel));
    for (uint64_t done = 0; done < items; done += most) {
        tess_args args;
        fill(l, done, items - done < most ? items - done : most, 0, &args);
        TESS_RETURN_IF_ERROR(
            enqueue(d, s, kernel, &attention, &args, (size_t)args.items * groups, threads));
    }
    return TESS_OK;
}

static tess_status run_attention(const opencl_device *d, const tess_launch *l, opencl_stream *s,
                                 const opencl_kernel_set *set) {
    const opencl_state *state = l->kernel->state;
    TESS_RETURN_IF_ERROR(run_kernel(d, l, s, set->kernels[0], tess_portable_forward_args, l->n_jobs,
                                    1, state->threads));
    return run_kernel(d, l, s, set->kernels[1], tess_portable_merge_args, l->n_merges,
                      tess_portable_merge_groups(l), TESS_MERGE_THREADS);
}

static tess_status run_paging(const opencl_device *d, const tess_launch *l, opencl_stream *s,
                              const opencl_kernel_set *set) {
    TESS_RETURN_IF_ERROR(set_buffers(d, l, set->kernels[0]));
    for (uint64_t done = 0; done < l->n_jobs; done += MOST_GROUPS) {
        tess_paging_args args;
        const uint64_t rest = l->n_jobs - done;
        tess_paging_fill(l, done, rest < MOST_GROUPS ? rest : MOST_GROUPS, 0, &args);
        TESS_RETURN_IF_ERROR(
            enqueue(d, s, set->kernels[0], &paging, &args, args.items, TESS_PAGING_THREADS));
    }
    return TESS_OK;
}

static tess_status run_parts(const opencl_device *d, const tess_launch *l, opencl_stream *s,
                             const opencl_kernel_set *set) {
    tess_launch as;
    tess_portable_parts(l, &as);
    return run_kernel(d, &as, s, set->kernels[0], tess_portable_parts_args, l->n_jobs, 1,
                      TESS_PARTS_THREADS);
}

static tess_status run_backward(const opencl_device *d, const tess_launch *l, opencl_stream *s,
                                const opencl_kernel_set *set) {
    const opencl_state *state = l->kernel->state;
    tess_launch as;
    tess_backward_stage(l, &as);
    return run_kernel(d, &as, s, set->kernels[tess_backward_number(l->stage)], tess_backward_args,
                      l->n_jobs, 1, tess_backward_threads(state->backward, l->stage));
}

static tess_status run_prepare(const opencl_device *d, const tess_launch *l, opencl_stream *s,
                               const opencl_kernel_set *set) {
    tess_args args;
    TESS_RETURN_IF_ERROR(set_buffers(d, l, set->kernels[0]));
    tess_prepare_args(l, 0, &args);
    return enqueue(d, s, set->kernels[0], &step, &args, (size_t)l->n_jobs, TESS_PREPARE_GROUP);
}

/* ------------------------------------------------------------------ the call */

static opencl_kernel_set *take_set(opencl_state *state) {
    for (uint32_t n = 0; n < state->n_sets; n++) {
        int expected = 0;
        if (__atomic_compare_exchange_n(&state->sets[n].busy, &expected, 1, 0, __ATOMIC_ACQUIRE,
                                        __ATOMIC_RELAXED))
            return &state->sets[n];
    }
    return NULL;
}

static tess_status take_seconds(const opencl_device *d, const opencl_stream *s, double *seconds) {
    cl_ulong begin = 0, end = 0;
    cl_int code = d->cl->clWaitForEvents(1, &s->last);
    if (code != CL_SUCCESS)
        return tess_opencl_fail(d->host, "clWaitForEvents", "the work failed", code);
    code = d->cl->clGetEventProfilingInfo(s->first, CL_PROFILING_COMMAND_START, sizeof begin,
                                          &begin, NULL);
    if (code == CL_SUCCESS)
        code = d->cl->clGetEventProfilingInfo(s->last, CL_PROFILING_COMMAND_END, sizeof end, &end,
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
    opencl_stream stream;
    cl_event *event = NULL;
    memset(&stream, 0, sizeof stream);
    TESS_RETURN_IF_ERROR(read_stream(d, l, &stream, &event));
    /* Kernels index the tables by 32-bit words. */
    if (l->tables->device.size > (uint64_t)UINT32_MAX * 4)
        return host->fail(host, TESS_ERROR_UNSUPPORTED,
                          "batch: tables of %llu bytes; this backend takes 16 GiB",
                          (unsigned long long)l->tables->device.size);
    opencl_kernel_set *set = take_set(state);
    if (!set)
        return host->fail(host, TESS_ERROR_BUSY, "max_in_flight: %u runs are being enqueued",
                          (unsigned)state->n_sets);
    tess_status status = tess_is_paging(l->op)       ? run_paging(d, l, &stream, set)
                         : l->op == TESS_OP_MERGE    ? run_parts(d, l, &stream, set)
                         : l->op == TESS_OP_PREPARE  ? run_prepare(d, l, &stream, set)
                         : l->op == TESS_OP_BACKWARD ? run_backward(d, l, &stream, set)
                                                     : run_attention(d, l, &stream, set);
    __atomic_store_n(&set->busy, 0, __ATOMIC_RELEASE);
    if (status == TESS_OK && l->stream.kind == TESS_STREAM_DEFAULT) {
        const cl_int code = d->cl->clFlush(stream.queue);
        if (code != CL_SUCCESS)
            status = tess_opencl_fail(host, "clFlush", "the queue cannot be flushed", code);
    }
    if (status == TESS_OK && l->seconds) status = take_seconds(d, &stream, l->seconds);
    if (stream.first && stream.first != stream.last) d->cl->clReleaseEvent(stream.first);
    if (stream.last && status == TESS_OK && event)
        *event = stream.last;
    else if (stream.last)
        d->cl->clReleaseEvent(stream.last);
    return status;
}
