/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of buffers, tensors and streams that do not depend on a plan. `function` begins the
 * messages, `name` is the field's; neither allocates. */
#ifndef TESSERA_CORE_TENSORS_H
#define TESSERA_CORE_TENSORS_H

#include "common.h"
#include "overlap.h"

/* A tensor's dimensions: sequences or pages, tokens, heads, and the elements of a row. */
typedef struct tess_shape {
    int64_t units, tokens; /* at least 1 */
    uint32_t heads, row;   /* likewise */
    uint32_t item;         /* bytes of an element */
} tess_shape;

/* Kind, handle and alignment of a buffer, which the message calls `name` followed by `part`. */
tess_status tess_check_buffer(const char *function, const tess_device *device, const char *name,
                              const char *part, const tess_buffer *buffer, uint64_t align);
/* Whether `bytes` from the offset on lie within the buffer and the address space. */
tess_status tess_check_room(const char *function, const char *name, const char *part,
                            const tess_buffer *buffer, uint64_t bytes);

/* Strides and buffer of a tensor, but not how far it reaches. */
tess_status tess_check_tensor(const char *function, const tess_device *device, const char *name,
                              const tess_tensor *tensor, uint32_t item);
/* Refuses strides that are no multiples of `elements`. `joined`: that of the batch is not used. */
tess_status tess_check_stride_align(const char *function, const char *name,
                                    const tess_tensor *tensor, bool joined, uint32_t elements);
/* Bytes from the first to the end of the last element of a shape; false on overflow. */
bool tess_shape_bytes(const tess_tensor *tensor, const tess_shape *shape, uint64_t *bytes);
/* Refuses strides by which two elements share a place. The bytes of the shape must not overflow. */
tess_status tess_check_apart(const char *function, const char *name, const tess_tensor *tensor,
                             const tess_shape *shape);
/* All of the above for an output that consists of its shape. */
tess_status tess_check_output(const char *function, const tess_device *device, const char *name,
                              const tess_tensor *tensor, const tess_shape *shape, uint64_t *bytes);

/* Whether so many bytes of two buffers share memory. */
bool tess_buffers_meet(const tess_buffer *a, uint64_t a_bytes, const tess_buffer *b,
                       uint64_t b_bytes);
/* Whether elements of two tensors certainly share memory. */
bool tess_tensors_meet(const tess_tensor *a, const tess_shape *a_shape, const tess_tensor *b,
                       const tess_shape *b_shape);

tess_status tess_check_stream(const char *function, const tess_stream *stream);

#endif
