/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory, copies and waiting, for applications that do not use the driver themselves.
 * Arguments are checked here; the backend does the work. */
#include "checked.h"
#include "common.h"

tess_status tess_alloc(tess_device *device, uint64_t size, tess_buffer *buffer) {
    static const char function[] = "tess_alloc";
    TESS_RETURN_IF_ERROR(tess_device_check(device, function));
    if (buffer == NULL) return tess_invalid("%s: buffer: must not be NULL", function);
    tess_buffer made = {.kind = TESS_BUFFER_NONE};
    if (size > INT64_MAX)
        return tess_fail(TESS_ERROR_OUT_OF_MEMORY,
                         "%s: size: %llu bytes are more than any device has", function,
                         (unsigned long long)size);
    if (size != 0)
        TESS_RETURN_IF_ERROR(
            tess_device_result(device, device->backend->alloc(device->native, size, &made)));
    *buffer = made;
    return TESS_OK;
}

tess_status tess_free(tess_device *device, tess_buffer *buffer) {
    static const char function[] = "tess_free";
    /* Memory of a lost device can still be freed. */
    TESS_RETURN_IF_ERROR(tess_device_handle(device, function));
    if (buffer == NULL) return tess_invalid("%s: buffer: must not be NULL", function);
    if (buffer->kind == TESS_BUFFER_NONE) return TESS_OK;
    if (buffer->kind != device->caps.buffer_kind)
        return tess_invalid("%s: buffer.kind: %u, but %s allocates buffers of kind %u", function,
                            buffer->kind, device->info.id, device->caps.buffer_kind);
    if (buffer->reserved != 0)
        return tess_invalid("%s: buffer.reserved: must be 0, not %u", function, buffer->reserved);
    if (buffer->handle == 0) return tess_invalid("%s: buffer.handle: must not be 0", function);
    tess_buffer given = *buffer;
    TESS_RETURN_IF_ERROR(tess_device_result(device, device->backend->free(device->native, &given)));
    *buffer = (tess_buffer){.kind = TESS_BUFFER_NONE};
    return TESS_OK;
}

/* Checks one side of a copy: the kind, and that `bytes` from the offset on lie within the buffer,
 * as far as its size is known. */
static tess_status side_check(const tess_device *device, const char *side,
                              const tess_buffer *buffer, uint64_t bytes) {
    static const char function[] = "tess_copy";
    uint64_t end, address;
    if (buffer->reserved != 0)
        return tess_invalid("%s: %s.reserved: must be 0, not %u", function, side, buffer->reserved);
    if (buffer->kind == TESS_BUFFER_NONE && bytes == 0) return TESS_OK;
    if (buffer->kind != TESS_BUFFER_HOST && buffer->kind != device->caps.buffer_kind)
        return tess_invalid(
            "%s: %s.kind: %u, but %s copies between buffers of kind %u and host memory (kind %u)",
            function, side, buffer->kind, device->info.id, device->caps.buffer_kind,
            TESS_BUFFER_HOST);
    if (buffer->handle == 0 && bytes != 0)
        return tess_invalid("%s: %s.handle: must not be 0", function, side);
    if (!checked_add(buffer->offset, bytes, &end))
        return tess_invalid("%s: %s.offset: %llu and %llu bytes do not fit 64 bits", function, side,
                            (unsigned long long)buffer->offset, (unsigned long long)bytes);
    if (buffer->size != 0 && end > buffer->size)
        return tess_invalid("%s: %s.size: the copy ends at byte %llu of %llu", function, side,
                            (unsigned long long)end, (unsigned long long)buffer->size);
    bool is_address = buffer->kind != TESS_BUFFER_OBJECT;
    if (is_address && (!checked_add(buffer->handle, end, &address) ||
                       (buffer->kind == TESS_BUFFER_HOST && address > UINTPTR_MAX)))
        return tess_invalid("%s: %s.offset: %llu bytes past the handle leave the address space",
                            function, side, (unsigned long long)end);
    return TESS_OK;
}

static bool overlap(const tess_buffer *a, const tess_buffer *b, uint64_t bytes) {
    if (a->kind != b->kind) return false;
    if (a->kind == TESS_BUFFER_OBJECT && a->handle != b->handle) return false;
    uint64_t a_start = a->offset, b_start = b->offset;
    if (a->kind != TESS_BUFFER_OBJECT) a_start += a->handle, b_start += b->handle;
    return a_start < b_start ? b_start - a_start < bytes : a_start - b_start < bytes;
}

tess_status tess_copy(tess_device *device, tess_buffer destination, tess_buffer source,
                      uint64_t bytes) {
    static const char function[] = "tess_copy";
    TESS_RETURN_IF_ERROR(tess_device_check(device, function));
    TESS_RETURN_IF_ERROR(side_check(device, "destination", &destination, bytes));
    TESS_RETURN_IF_ERROR(side_check(device, "source", &source, bytes));
    if (bytes == 0) return TESS_OK;
    if (destination.kind == TESS_BUFFER_HOST && source.kind == TESS_BUFFER_HOST &&
        device->caps.buffer_kind != TESS_BUFFER_HOST)
        return tess_invalid("%s: source.kind: both buffers are host memory, and neither is of %s",
                            function, device->info.id);
    if (overlap(&destination, &source, bytes))
        return tess_invalid("%s: source: overlaps the destination", function);
    return tess_device_result(device,
                              device->backend->copy(device->native, destination, source, bytes));
}

tess_status tess_wait(tess_device *device, uint64_t timeout_ns) {
    TESS_RETURN_IF_ERROR(tess_device_check(device, "tess_wait"));
    return tess_device_result(device, device->backend->wait(device->native, timeout_ns));
}
