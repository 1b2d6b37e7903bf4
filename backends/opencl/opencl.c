/* SPDX-License-Identifier: Apache-2.0 */
/* OpenCL as a backend: opening and wrapping devices, memory, and waiting. */
#include "opencl.h"

#include <stdio.h>
#include <string.h>

#include "extra.h"
#include "functions.h"
#include "object.h"
#include "polling.h"
#include <tessera/tessera_opencl.h>

extern const tess_backend tess_opencl_backend;

/* ------------------------------------------------------------------ opening */

/* Reads the limits of the device once, so that launches need not. */
static tess_status describe(opencl_device *d, const opencl_found *found) {
    const cl_api *cl = d->cl;
    char text[4][OPENCL_TEXT];
    size_t sizes[16] = {0};
    cl_bool timeout = 0;
    const struct {
        cl_uint what;
        size_t bytes;
        void *value;
        const char *name;
    } asked[] = {
        {CL_DEVICE_MAX_COMPUTE_UNITS, sizeof d->compute_units, &d->compute_units,
         "CL_DEVICE_MAX_COMPUTE_UNITS"},
        {CL_DEVICE_MAX_CLOCK_FREQUENCY, sizeof d->clock_mhz, &d->clock_mhz,
         "CL_DEVICE_MAX_CLOCK_FREQUENCY"},
        {CL_DEVICE_LOCAL_MEM_SIZE, sizeof d->local_bytes, &d->local_bytes,
         "CL_DEVICE_LOCAL_MEM_SIZE"},
        {CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof d->most_bytes, &d->most_bytes,
         "CL_DEVICE_MAX_MEM_ALLOC_SIZE"},
        {CL_DEVICE_MAX_WORK_GROUP_SIZE, sizeof d->most_threads, &d->most_threads,
         "CL_DEVICE_MAX_WORK_GROUP_SIZE"},
        {CL_DEVICE_MAX_WORK_ITEM_SIZES, sizeof sizes, sizes, "CL_DEVICE_MAX_WORK_ITEM_SIZES"},
    };
    for (size_t n = 0; n < sizeof asked / sizeof *asked; n++) {
        const cl_int code =
            cl->clGetDeviceInfo(d->device, asked[n].what, asked[n].bytes, asked[n].value, NULL);
        if (code != CL_SUCCESS)
            return tess_opencl_fail(d->host, "clGetDeviceInfo", asked[n].name, code);
    }
    if (sizes[0] < d->most_threads) d->most_threads = sizes[0];
    d->kind = found->kind;
    const int nv = tess_opencl_has(cl, d->device, "cl_nv_device_attribute_query");
    for (cl_uint n = 0; n < 2 && nv; n++)
        d->nv[n] = (cl_uint)tess_opencl_number(
            cl, d->device, CL_DEVICE_COMPUTE_CAPABILITY_MAJOR_NV + n, sizeof(cl_uint));
    d->nv_options = tess_opencl_has(cl, d->device, "cl_nv_compiler_options");
    tess_opencl_intel_find(d);
    /* Only one vendor's devices say so; any other may drive a display. */
    const int told = nv && cl->clGetDeviceInfo(d->device, CL_DEVICE_KERNEL_EXEC_TIMEOUT_NV,
                                               sizeof timeout, &timeout, NULL) == CL_SUCCESS;
    d->time_limited = d->kind == TESS_DEVICE_GPU && (!told || timeout);
    static const cl_uint what[4] = {CL_DEVICE_NAME, CL_DEVICE_VENDOR, CL_DEVICE_VERSION,
                                    CL_DRIVER_VERSION};
    for (size_t n = 0; n < 4; n++)
        tess_opencl_text(cl, d->device, what[n], text[n], sizeof text[n]);
    d->vendor = (uint32_t)tess_opencl_number(cl, d->device, CL_DEVICE_VENDOR_ID, sizeof(cl_uint));
    char platform[256] = "";
    if (cl->clGetPlatformInfo(found->platform, CL_PLATFORM_VERSION, sizeof platform - 1, platform,
                              NULL) != CL_SUCCESS)
        platform[0] = '\0';
    snprintf(d->names[0], sizeof d->names[0], "%s / %s / %s / %u units / vendor %08x", text[0],
             text[1], text[2], (unsigned)d->compute_units, (unsigned)d->vendor);
    snprintf(d->names[1], sizeof d->names[1], "%s / %s / %s", found->platform_name, platform,
             text[3]);
    return TESS_OK;
}

/* The device itself or what it was partitioned from. */
static int is_or_belongs_to(const cl_api *cl, cl_device_id device, cl_device_id root) {
    for (int depth = 0; device && depth < 16; depth++) {
        if (device == root) return 1;
        cl_device_id parent = NULL;
        if (cl->clGetDeviceInfo(device, CL_DEVICE_PARENT_DEVICE, sizeof(cl_device_id), &parent,
                                NULL) != CL_SUCCESS)
            return 0;
        device = parent;
    }
    return 0;
}

static tess_status check_queue(const opencl_device *d, const tess_opencl_native *native) {
    const tess_host *host = d->host;
    cl_command_queue queue = native->queue;
    cl_context context = NULL;
    cl_device_id device = NULL;
    cl_bitfield properties = 0;
    cl_int code =
        d->cl->clGetCommandQueueInfo(queue, CL_QUEUE_CONTEXT, sizeof(cl_context), &context, NULL);
    if (code == CL_SUCCESS)
        code = d->cl->clGetCommandQueueInfo(queue, CL_QUEUE_DEVICE, sizeof(cl_device_id), &device,
                                            NULL);
    if (code == CL_SUCCESS)
        code = d->cl->clGetCommandQueueInfo(queue, CL_QUEUE_PROPERTIES, sizeof properties,
                                            &properties, NULL);
    if (code != CL_SUCCESS)
        return host->fail(host, TESS_ERROR_INVALID,
                          "native.queue: clGetCommandQueueInfo says %s (%d)",
                          tess_opencl_error_name(code), (int)code);
    if (context != native->context || device != native->device)
        return host->fail(host, TESS_ERROR_INVALID,
                          "native.queue: it must be of native.context and native.device");
    if (properties & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE)
        return host->fail(host, TESS_ERROR_INVALID,
                          "native.queue: it must be in order; queues that are not can be given to "
                          "a run as a stream");
    return TESS_OK;
}

/* Sets each member only after it was retained, so that drop() releases the right ones after a
 * failure. */
static tess_status retain(opencl_device *d, const tess_opencl_native *native) {
    cl_int code = d->cl->clRetainContext(native->context);
    if (code != CL_SUCCESS)
        return tess_opencl_fail(d->host, "clRetainContext", "native.context", code);
    d->context = native->context;
    code = d->cl->clRetainDevice(native->device);
    if (code != CL_SUCCESS)
        return tess_opencl_fail(d->host, "clRetainDevice", "native.device", code);
    d->device = native->device;
    d->retained = 1;
    if (!native->queue) return TESS_OK;
    code = d->cl->clRetainCommandQueue(native->queue);
    if (code != CL_SUCCESS)
        return tess_opencl_fail(d->host, "clRetainCommandQueue", "native.queue", code);
    d->queue = native->queue;
    return TESS_OK;
}

static tess_status wrap(opencl_device *d, uint32_t index, const opencl_found *found,
                        const void *structure) {
    const tess_host *host = d->host;
    tess_opencl_native native;
    cl_device_id devices[128];
    size_t bytes = 0;
    TESS_RETURN_IF_ERROR(tess_extra_read_native(host, structure, &native, sizeof native));
    if (!native.context)
        return host->fail(host, TESS_ERROR_INVALID, "native.context: must not be NULL");
    if (!native.device)
        return host->fail(host, TESS_ERROR_INVALID, "native.device: must not be NULL");
    if (!is_or_belongs_to(d->cl, native.device, found->device))
        return host->fail(host, TESS_ERROR_UNAVAILABLE, "native.device: it is not opencl:%u",
                          (unsigned)index);
    const cl_int code = d->cl->clGetContextInfo(native.context, CL_CONTEXT_DEVICES, sizeof devices,
                                                devices, &bytes);
    if (code != CL_SUCCESS)
        return host->fail(host, TESS_ERROR_INVALID, "native.context: clGetContextInfo says %s (%d)",
                          tess_opencl_error_name(code), (int)code);
    int held = 0;
    for (size_t n = 0; n < bytes / sizeof(cl_device_id) && n < 128; n++)
        held |= devices[n] == native.device;
    if (!held)
        return host->fail(host, TESS_ERROR_INVALID, "native.context: does not hold native.device");
    if (native.queue) TESS_RETURN_IF_ERROR(check_queue(d, &native));
    return retain(d, &native);
}

/* Releases what an open device holds. NULL members were never taken. */
static void drop(opencl_device *d) {
    tess_opencl_programs_release(d);
    if (d->queue) d->cl->clReleaseCommandQueue(d->queue);
    if (d->context) d->cl->clReleaseContext(d->context);
    if (d->retained) d->cl->clReleaseDevice(d->device);
    pthread_mutex_destroy(&d->building);
    tess_checks_destroy(&d->checks);
    d->host->free(d->host, d, sizeof *d);
}

static tess_status fill(opencl_device *d, uint32_t index, const opencl_found *found,
                        const void *native) {
    cl_int code = CL_SUCCESS;
    if (native) {
        TESS_RETURN_IF_ERROR(wrap(d, index, found, native));
    } else {
        const cl_context_properties properties[3] = {CL_CONTEXT_PLATFORM,
                                                     (cl_context_properties)found->platform, 0};
        d->context = d->cl->clCreateContext(properties, 1, &found->device, NULL, NULL, &code);
        if (!d->context)
            return tess_opencl_fail(d->host, "clCreateContext", "no context for the device", code);
        d->device = found->device;
    }
    /* Nothing runs in an application's context that it did not ask for. */
    d->may_check = !native || d->queue;
    if (!d->queue) {
        d->queue =
            d->cl->clCreateCommandQueue(d->context, d->device, CL_QUEUE_PROFILING_ENABLE, &code);
        if (!d->queue)
            return tess_opencl_fail(d->host, "clCreateCommandQueue", "no queue for the device",
                                    code);
    }
    return describe(d, found);
}

static tess_status tess_opencl_open(const tess_host *host, uint32_t index, const void *native,
                                    void **device) {
    char why[400];
    const cl_api *cl = tess_opencl_api(why, sizeof why);
    if (!cl) return host->fail(host, TESS_ERROR_UNAVAILABLE, "%s", why);
    opencl_found found = {.kind = TESS_DEVICE_GPU};
    TESS_RETURN_IF_ERROR(tess_opencl_find(host, cl, index, &found));
    opencl_device *d = tess_object(host, sizeof *d, "the device");
    if (!d) return TESS_ERROR_OUT_OF_MEMORY;
    d->host = host;
    d->cl = cl;
    pthread_mutex_init(&d->building, NULL);
    tess_checks_init(&d->checks);
    const tess_status status = fill(d, index, &found, native);
    if (status != TESS_OK) {
        drop(d);
        return status;
    }
    *device = d;
    return TESS_OK;
}

static void tess_opencl_close(void *device) { drop(device); }

/* A step of a range is 64 rows by one block of 64 keys at a head_dim of 256: 4 * 64 * 64 * 256
 * FLOP. A device whose kernels may be stopped by the system gets ranges of 0.2 s at the worst speed
 * that is plausible, one multiply and add in a cycle of each compute unit, which is some 20 times
 * slower than the kernel. */
static tess_status tess_opencl_query(void *device, tess_caps *caps) {
    const opencl_device *d = device;
    tess_portable_caps(TESS_BUFFER_OBJECT, tess_opencl_parallel_jobs(d), caps);
    if (!d->time_limited) return TESS_OK;
    const double rate =
        2e6 * (d->compute_units ? d->compute_units : 1) * (d->clock_mhz ? d->clock_mhz : 500);
    caps->steps_per_second = (uint64_t)(rate / (4.0 * 64 * 64 * 256)) + 1;
    caps->range_blocks = caps->steps_per_second / 5 + 1;
    return TESS_OK;
}

/* ------------------------------------------------------------------ memory */

static cl_mem mem(const tess_buffer *buffer) { return (cl_mem)(uintptr_t)buffer->handle; }

static tess_status tess_opencl_alloc(void *device, uint64_t size, tess_buffer *buffer) {
    const opencl_device *d = device;
    cl_int code = CL_SUCCESS;
    if (size > d->most_bytes || size > SIZE_MAX)
        return d->host->fail(
            d->host, TESS_ERROR_OUT_OF_MEMORY,
            "clCreateBuffer: %llu bytes are more than CL_DEVICE_MAX_MEM_ALLOC_SIZE (%llu)",
            (unsigned long long)size, (unsigned long long)d->most_bytes);
    cl_mem object = d->cl->clCreateBuffer(d->context, CL_MEM_READ_WRITE, (size_t)size, NULL, &code);
    if (!object) {
        char what[64];
        snprintf(what, sizeof what, "no buffer of %llu bytes", (unsigned long long)size);
        return tess_opencl_fail(d->host, "clCreateBuffer", what,
                                code == CL_INVALID_BUFFER_SIZE ? CL_MEM_OBJECT_ALLOCATION_FAILURE
                                                               : code);
    }
    memset(buffer, 0, sizeof *buffer);
    buffer->kind = TESS_BUFFER_OBJECT;
    buffer->handle = (uint64_t)(uintptr_t)object;
    buffer->size = size;
    return TESS_OK;
}

static tess_status tess_opencl_free(void *device, tess_buffer *buffer) {
    const opencl_device *d = device;
    const cl_int code = d->cl->clReleaseMemObject(mem(buffer));
    /* A lost device may answer so. The host's part is released all the same. */
    if (code == CL_SUCCESS || tess_opencl_status(code) == TESS_ERROR_DEVICE_LOST) return TESS_OK;
    return tess_opencl_fail(d->host, "clReleaseMemObject", "the buffer cannot be freed", code);
}

static tess_status copy_within(const opencl_device *d, const tess_buffer *to,
                               const tess_buffer *from, size_t bytes) {
    cl_event event = NULL;
    cl_int code = d->cl->clEnqueueCopyBuffer(d->queue, mem(from), mem(to), (size_t)from->offset,
                                             (size_t)to->offset, bytes, 0, NULL, &event);
    if (code != CL_SUCCESS)
        return tess_opencl_fail(d->host, "clEnqueueCopyBuffer", "the copy was not enqueued", code);
    code = d->cl->clWaitForEvents(1, &event);
    d->cl->clReleaseEvent(event);
    return code == CL_SUCCESS
               ? TESS_OK
               : tess_opencl_fail(d->host, "clWaitForEvents", "the copy failed", code);
}

static tess_status tess_opencl_copy(void *device, tess_buffer to, tess_buffer from,
                                    uint64_t bytes) {
    const opencl_device *d = device;
    if (bytes > SIZE_MAX || to.offset > SIZE_MAX || from.offset > SIZE_MAX)
        return d->host->fail(d->host, TESS_ERROR_INVALID,
                             "bytes: %llu bytes leave the address space",
                             (unsigned long long)bytes);
    if (to.kind == TESS_BUFFER_OBJECT && from.kind == TESS_BUFFER_OBJECT)
        return copy_within(d, &to, &from, (size_t)bytes);
    if (to.kind == TESS_BUFFER_HOST) {
        char *host = (char *)(uintptr_t)to.handle + to.offset;
        const cl_int code = d->cl->clEnqueueReadBuffer(d->queue, mem(&from), 1, (size_t)from.offset,
                                                       (size_t)bytes, host, 0, NULL, NULL);
        return code == CL_SUCCESS
                   ? TESS_OK
                   : tess_opencl_fail(d->host, "clEnqueueReadBuffer", "the copy failed", code);
    }
    const char *host = (const char *)(uintptr_t)from.handle + from.offset;
    const cl_int code = d->cl->clEnqueueWriteBuffer(d->queue, mem(&to), 1, (size_t)to.offset,
                                                    (size_t)bytes, host, 0, NULL, NULL);
    return code == CL_SUCCESS
               ? TESS_OK
               : tess_opencl_fail(d->host, "clEnqueueWriteBuffer", "the copy failed", code);
}

/* ------------------------------------------------------------------ waiting */

/* OpenCL has no wait with a timeout, so poll the event. */
static tess_status poll(const opencl_device *d, cl_event event, uint64_t timeout_ns) {
    const uint64_t begin = tess_polling_now();
    for (;;) {
        cl_int state = CL_COMPLETE;
        const cl_int code = d->cl->clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS,
                                                  sizeof state, &state, NULL);
        if (code != CL_SUCCESS)
            return tess_opencl_fail(d->host, "clGetEventInfo", "the state of the work is not known",
                                    code);
        if (state < 0) return tess_opencl_fail(d->host, "clGetEventInfo", "the work failed", state);
        if (state == CL_COMPLETE) return TESS_OK;
        const uint64_t waited = tess_polling_now() - begin;
        if (waited >= timeout_ns)
            return d->host->fail(d->host, TESS_ERROR_TIMEOUT,
                                 "timeout_ns: the work was not done after %llu ns",
                                 (unsigned long long)timeout_ns);
        tess_polling_nap(waited);
    }
}

static tess_status tess_opencl_wait(void *device, uint64_t timeout_ns) {
    const opencl_device *d = device;
    cl_event event = NULL;
    cl_int code = d->cl->clEnqueueMarkerWithWaitList(d->queue, 0, NULL, &event);
    if (code != CL_SUCCESS)
        return tess_opencl_fail(d->host, "clEnqueueMarkerWithWaitList", "the queue takes no marker",
                                code);
    tess_status status = TESS_OK;
    code = d->cl->clFlush(d->queue);
    if (code != CL_SUCCESS)
        status = tess_opencl_fail(d->host, "clFlush", "the queue cannot be flushed", code);
    else if (timeout_ns != UINT64_MAX)
        status = poll(d, event, timeout_ns);
    else {
        code = d->cl->clWaitForEvents(1, &event);
        if (code != CL_SUCCESS)
            status = tess_opencl_fail(d->host, "clWaitForEvents", "the work failed", code);
    }
    d->cl->clReleaseEvent(event);
    return status;
}

const tess_backend tess_opencl_backend = {TESS_BACKEND_FUNCTIONS(tess_opencl), .name = "opencl"};
