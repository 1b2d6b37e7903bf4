/* SPDX-License-Identifier: Apache-2.0 */
#include "tensors.h"

#include "checked.h"

/* ------------------------------------------------------------------ buffers */

static const char *kind_name(uint32_t kind) {
    return kind == TESS_BUFFER_NONE      ? "none"
           : kind == TESS_BUFFER_HOST    ? "host memory"
           : kind == TESS_BUFFER_POINTER ? "a device pointer"
           : kind == TESS_BUFFER_OBJECT  ? "a buffer object"
                                         : "of an unknown kind";
}

tess_status tess_check_buffer(const char *function, const tess_device *device, const char *name,
                              const char *part, const tess_buffer *buffer, uint64_t align) {
    const uint32_t wanted = device->caps.buffer_kind;
    uint64_t address = buffer->offset;
    if (buffer->reserved != 0)
        return tess_invalid("%s: %s%s.reserved: must be 0, got %u", function, name, part,
                            (unsigned)buffer->reserved);
    if (buffer->kind != wanted)
        return tess_invalid("%s: %s%s.kind: device %s takes %s, got %s", function, name, part,
                            device->info.id, kind_name(wanted), kind_name(buffer->kind));
    if (buffer->handle == 0)
        return tess_invalid("%s: %s%s.handle: must not be 0", function, name, part);
    if (wanted != TESS_BUFFER_OBJECT && !checked_add(buffer->handle, buffer->offset, &address))
        return tess_invalid("%s: %s%s.offset: overflows the address", function, name, part);
    if (address % align == 0) return TESS_OK;
    return tess_invalid("%s: %s%s: its address must be a multiple of %llu bytes", function, name,
                        part, (unsigned long long)align);
}

tess_status tess_check_room(const char *function, const char *name, const char *part,
                            const tess_buffer *buffer, uint64_t bytes) {
    uint64_t end, address;
    if (!checked_add(buffer->offset, bytes, &end) || end > INT64_MAX)
        return tess_invalid("%s: %s%s.offset: overflows, with %llu bytes after it", function, name,
                            part, (unsigned long long)bytes);
    if (buffer->size != 0 && end > buffer->size)
        return tess_invalid("%s: %s%s.size: %llu bytes are needed, got %llu", function, name, part,
                            (unsigned long long)end, (unsigned long long)buffer->size);
    if (buffer->kind == TESS_BUFFER_OBJECT || checked_add(buffer->handle, end, &address))
        return TESS_OK;
    return tess_invalid("%s: %s%s.handle: %llu bytes behind it leave the address space", function,
                        name, part, (unsigned long long)end);
}

/* ------------------------------------------------------------------ tensors */

/* The strides by name, and how many steps of each a shape has. */
typedef struct dimension {
    const char *name;
    int64_t stride, count;
} dimension;

static void list_dimensions(const tess_tensor *t, const tess_shape *s, dimension list[3]) {
    list[0] = (dimension){"stride_head", t->stride_head, s ? s->heads : 1};
    list[1] = (dimension){"stride_token", t->stride_token, s ? s->tokens : 1};
    list[2] = (dimension){"stride_batch", t->stride_batch, s ? s->units : 1};
}

tess_status tess_check_tensor(const char *function, const tess_device *device, const char *name,
                              const tess_tensor *t, uint32_t item) {
    dimension list[3];
    list_dimensions(t, NULL, list);
    for (int n = 2; n >= 0; n--)
        if (list[n].stride < 0)
            return tess_invalid("%s: %s.%s: must be at least 0, got %lld", function, name,
                                list[n].name, (long long)list[n].stride);
    return tess_check_buffer(function, device, name, ".buffer", &t->buffer, item);
}

tess_status tess_check_stride_align(const char *function, const char *name, const tess_tensor *t,
                                    bool joined, uint32_t elements) {
    dimension list[3];
    list_dimensions(t, NULL, list);
    for (int n = joined ? 1 : 2; n >= 0; n--)
        if (list[n].stride % elements != 0)
            return tess_invalid("%s: %s.%s: must be a multiple of %u elements, got %lld", function,
                                name, list[n].name, (unsigned)elements, (long long)list[n].stride);
    return TESS_OK;
}

bool tess_shape_bytes(const tess_tensor *t, const tess_shape *s, uint64_t *bytes) {
    dimension list[3];
    uint64_t last = s->row, part;
    list_dimensions(t, s, list);
    for (int n = 0; n < 3; n++)
        if (!checked_mul((uint64_t)list[n].count - 1, (uint64_t)list[n].stride, &part) ||
            !checked_add(last, part, &last))
            return false;
    return checked_mul(last, s->item, bytes) && *bytes <= INT64_MAX;
}

/* Elements lie apart when every stride, in rising order, is at least the extent of all dimensions
 * below it. */
tess_status tess_check_apart(const char *function, const char *name, const tess_tensor *t,
                             const tess_shape *s) {
    dimension list[3];
    uint64_t extent = s->row;
    list_dimensions(t, s, list);
    for (int round = 0; round < 3; round++) {
        dimension *least = NULL;
        for (int n = 0; n < 3; n++)
            if (list[n].count > 1 && (!least || list[n].stride < least->stride)) least = &list[n];
        if (!least) return TESS_OK;
        if ((uint64_t)least->stride < extent)
            return tess_invalid("%s: %s.%s: must be at least %llu to keep elements apart, got %lld",
                                function, name, least->name, (unsigned long long)extent,
                                (long long)least->stride);
        extent += (uint64_t)(least->count - 1) * (uint64_t)least->stride;
        least->count = 1;
    }
    return TESS_OK;
}

tess_status tess_check_output(const char *function, const tess_device *device, const char *name,
                              const tess_tensor *t, const tess_shape *s, uint64_t *bytes) {
    TESS_RETURN_IF_ERROR(tess_check_tensor(function, device, name, t, s->item));
    if (!tess_shape_bytes(t, s, bytes))
        return tess_invalid("%s: %s: its strides overflow 64-bit sizes", function, name);
    TESS_RETURN_IF_ERROR(tess_check_room(function, name, ".buffer", &t->buffer, *bytes));
    return tess_check_apart(function, name, t, s);
}

static tess_box box_of(const tess_tensor *t, const tess_shape *s) {
    const uint64_t base = t->buffer.kind == TESS_BUFFER_OBJECT ? 0 : t->buffer.handle;
    return (tess_box){.address = base + t->buffer.offset,
                      .row_bytes = (uint64_t)s->row * s->item,
                      .count = {s->heads, (uint64_t)s->tokens, (uint64_t)s->units},
                      .stride = {(uint64_t)t->stride_head * s->item,
                                 (uint64_t)t->stride_token * s->item,
                                 (uint64_t)t->stride_batch * s->item}};
}

bool tess_buffers_meet(const tess_buffer *a, uint64_t a_bytes, const tess_buffer *b,
                       uint64_t b_bytes) {
    const bool object = a->kind == TESS_BUFFER_OBJECT;
    const uint64_t from = (object ? 0 : a->handle) + a->offset,
                   to = (object ? 0 : b->handle) + b->offset;
    if (a_bytes == 0 || b_bytes == 0 || (object && a->handle != b->handle)) return false;
    return from < to + b_bytes && to < from + a_bytes;
}

bool tess_tensors_meet(const tess_tensor *a, const tess_shape *a_shape, const tess_tensor *b,
                       const tess_shape *b_shape) {
    if (a->buffer.kind == TESS_BUFFER_OBJECT && a->buffer.handle != b->buffer.handle) return false;
    const tess_box first = box_of(a, a_shape), second = box_of(b, b_shape);
    return tess_boxes_meet(&first, &second);
}

/* ------------------------------------------------------------------ streams */

tess_status tess_check_stream(const char *function, const tess_stream *stream) {
    if (stream->kind > TESS_STREAM_RECORD)
        return tess_invalid("%s: stream.kind: %u is no tess_stream_kind", function,
                            (unsigned)stream->kind);
    if (stream->reserved == 0) return TESS_OK;
    return tess_invalid("%s: stream.reserved: must be 0, got %u", function,
                        (unsigned)stream->reserved);
}
