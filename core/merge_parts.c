/* SPDX-License-Identifier: Apache-2.0 */
/* Merges results over parts of the keys. The kernel belongs to the device. */
#include "checked.h"
#include "choose.h"
#include "launch.h"
#include "tensors.h"

static const char *const in_merge = "tess_merge_parts";

/* ------------------------------------------------------------------ checks */

static tess_status check_count(const char *field, uint32_t value) {
    if (value >= 1 && value <= 65535) return TESS_OK;
    return tess_invalid("%s: %s: must be 1 to 65535, got %u", in_merge, field, (unsigned)value);
}

static tess_status check_numbers(const tess_parts_desc *d) {
    if (d->flags != 0)
        return tess_invalid("%s: flags: must be 0, got 0x%x", in_merge, (unsigned)d->flags);
    TESS_RETURN_IF_ERROR(check_count("n_parts", d->n_parts));
    TESS_RETURN_IF_ERROR(check_count("n_heads", d->n_heads));
    if (d->head_dim < 1) return tess_invalid("%s: head_dim: must be at least 1, got 0", in_merge);
    if (d->head_dim % 8 != 0 || d->head_dim > 256)
        return tess_unsupported("%s: head_dim: must be a multiple of 8 from 8 to 256, got %u",
                                in_merge, (unsigned)d->head_dim);
    if (d->dtype > TESS_BF16)
        return tess_invalid("%s: dtype: %u is no tess_dtype", in_merge, (unsigned)d->dtype);
    if (d->rows < 0)
        return tess_invalid("%s: rows: must be at least 0, got %lld", in_merge, (long long)d->rows);
    if (d->rows > INT32_MAX / (int64_t)d->n_heads)
        return tess_unsupported("%s: rows: times n_heads it must be less than 2^31, got %lld",
                                in_merge, (long long)d->rows);
    return tess_check_stream(in_merge, &d->stream);
}

/* One of the four tensors, in the order in which they are checked. */
typedef struct part_tensor {
    const char *name;
    uint32_t role;
    bool output;
    const tess_tensor *tensor;
    tess_shape shape;
} part_tensor;

enum { TENSORS = 4 };

static void list_tensors(const tess_parts_desc *d, part_tensor list[TENSORS]) {
    const tess_shape vectors = {.units = 1,
                                .tokens = d->rows,
                                .heads = d->n_heads,
                                .row = d->head_dim,
                                .item = d->dtype == TESS_F32 ? 4 : 2},
                     scalars = {1, d->rows, d->n_heads, 1, sizeof(float)};
    list[0] = (part_tensor){"o_parts", TESS_ROLE_O_PARTS, false, &d->o_parts, vectors};
    list[1] = (part_tensor){"lse_parts", TESS_ROLE_LSE_PARTS, false, &d->lse_parts, scalars};
    list[2] = (part_tensor){"o", TESS_ROLE_O, true, &d->o, vectors};
    list[3] = (part_tensor){"lse", TESS_ROLE_LSE, true, &d->lse, scalars};
    list[0].shape.units = list[1].shape.units = d->n_parts;
}

static tess_status check_input(const tess_device *device, const part_tensor *t, uint64_t *bytes) {
    TESS_RETURN_IF_ERROR(tess_check_tensor(in_merge, device, t->name, t->tensor, t->shape.item));
    if (!tess_shape_bytes(t->tensor, &t->shape, bytes))
        return tess_invalid("%s: %s: its strides overflow 64-bit sizes", in_merge, t->name);
    return tess_check_room(in_merge, t->name, ".buffer", &t->tensor->buffer, *bytes);
}

/* Checks the tensors and fills the launch's table of them. */
static tess_status check_tensors(const tess_device *device, const tess_parts_desc *d,
                                 tess_launch *l) {
    part_tensor list[TENSORS];
    list_tensors(d, list);
    const int count = d->lse.buffer.kind == TESS_BUFFER_NONE ? TENSORS - 1 : TENSORS;
    for (int n = 0; n < count; n++) {
        const part_tensor *t = &list[n];
        l->tensor[t->role] = *t->tensor;
        TESS_RETURN_IF_ERROR(t->output ? tess_check_output(in_merge, device, t->name, t->tensor,
                                                           &t->shape, &l->bytes[t->role])
                                       : check_input(device, t, &l->bytes[t->role]));
        for (int other = 0; t->output && other < n; other++)
            if (tess_tensors_meet(t->tensor, &t->shape, list[other].tensor, &list[other].shape))
                return tess_invalid(
                    "%s: %s: must not overlap %s, and elements of the two share memory", in_merge,
                    t->name, list[other].name);
    }
    return TESS_OK;
}

/* ------------------------------------------------------------------ the call */

static void fill_launch(const tess_parts_desc *d, tess_launch *l) {
    tess_launch_of_rows(TESS_OP_MERGE, d->dtype, (int32_t)d->head_dim, d->n_heads, &d->stream, l);
    l->batch = d->n_parts;
    l->q_tokens = d->rows;
    l->n_jobs = (uint64_t)d->rows * d->n_heads;
}

tess_status tess_merge_parts(tess_device *device, const tess_parts_desc *desc) {
    tess_parts_desc d;
    tess_launch launch;
    TESS_RETURN_IF_ERROR(tess_call_on_device(in_merge, device, desc, &d, TESS_PARTS_DESC));
    TESS_RETURN_IF_ERROR(check_numbers(&d));
    fill_launch(&d, &launch);
    if (d.rows > 0) TESS_RETURN_IF_ERROR(check_tensors(device, &d, &launch));
    TESS_RETURN_IF_ERROR(tess_choose_for_device(device, TESS_OP_MERGE, d.dtype, (int32_t)d.head_dim,
                                                &launch.kernel));
    return d.rows > 0 ? tess_launch_on(device, &launch) : TESS_OK;
}
