/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of whole pages of a cache. The kernel belongs to the device. */
#include <stdio.h>

#include "checked.h"
#include "choose.h"
#include "launch.h"
#include "tensors.h"

static const char *const in_copy = "tess_copy_pages";

static tess_status check_range(const char *field, int64_t value, int64_t least, int64_t most) {
    if (value >= least && value <= most) return TESS_OK;
    return tess_invalid("%s: %s: must be %lld to %lld, got %lld", in_copy, field, (long long)least,
                        (long long)most, (long long)value);
}

static tess_status check_numbers(const tess_copy_desc *d) {
    if (d->flags != 0)
        return tess_invalid("%s: flags: must be 0, got 0x%x", in_copy, (unsigned)d->flags);
    if (d->dtype > TESS_I8)
        return tess_invalid("%s: dtype: %u is no tess_dtype", in_copy, (unsigned)d->dtype);
    TESS_RETURN_IF_ERROR(check_range("n_heads", d->n_heads, 1, 65535));
    if (d->head_dim < 1)
        return tess_invalid("%s: head_dim: must be at least 1, got %d", in_copy, (int)d->head_dim);
    if (d->head_dim != 1 && (d->head_dim % 8 != 0 || d->head_dim > 256))
        return tess_unsupported("%s: head_dim: must be 1 or a multiple of 8 from 8 to 256, got %d",
                                in_copy, (int)d->head_dim);
    if (d->head_dim == 1 && tess_dtype_has_scales(d->dtype))
        return tess_unsupported("%s: head_dim: must be a multiple of 8 with 8 bits an element, "
                                "got 1",
                                in_copy);
    TESS_RETURN_IF_ERROR(check_range("page", d->page, 1, INT32_MAX));
    TESS_RETURN_IF_ERROR(check_range("pages", d->pages, 1, INT32_MAX));
    TESS_RETURN_IF_ERROR(check_range("n_pairs", d->n_pairs, 0, INT64_MAX));
    if (d->n_pairs > INT32_MAX / d->page)
        return tess_unsupported("%s: n_pairs: times page it must be less than 2^31, got %lld",
                                in_copy, (long long)d->n_pairs);
    TESS_RETURN_IF_ERROR(check_range("n_pools", d->n_pools, 0, TESS_DEVICE_LAUNCHES));
    if (d->n_pools > 0 && !d->pools) return tess_invalid("%s: pools: must not be NULL", in_copy);
    /* Each pool is a launch, and what `extra` waits for and signals belongs to one. */
    if (d->n_pools > 1 && d->stream.extra)
        return tess_unsupported("%s: stream.extra: must be NULL with more than one pool", in_copy);
    return tess_check_stream(in_copy, &d->stream);
}

static tess_status check_pairs(const tess_device *device, const tess_copy_desc *d,
                               tess_launch *launch) {
    const uint64_t bytes = (uint64_t)d->n_pairs * 2 * sizeof(int32_t);
    launch->tensor[TESS_ROLE_BLOCK_TABLE] =
        (tess_tensor){.buffer = d->pairs, .stride_batch = 2, .stride_token = 1};
    launch->bytes[TESS_ROLE_BLOCK_TABLE] = bytes;
    TESS_RETURN_IF_ERROR(
        tess_check_buffer(in_copy, device, "pairs", "", &d->pairs, sizeof(int32_t)));
    return tess_check_room(in_copy, "pairs", "", &d->pairs, bytes);
}

static tess_shape shape_of(const tess_copy_desc *d) {
    return (tess_shape){.units = d->pages,
                        .tokens = d->page,
                        .heads = (uint32_t)d->n_heads,
                        .row = (uint32_t)d->head_dim,
                        .item = tess_dtype_size(d->dtype)};
}

static tess_status check_pool(const tess_device *device, const tess_copy_desc *d, uint32_t n) {
    const tess_shape shape = shape_of(d), words = {d->n_pairs, 1, 1, 2, sizeof(int32_t)};
    const tess_tensor list = {.buffer = d->pairs, .stride_batch = 2};
    char name[32];
    uint64_t bytes;
    snprintf(name, sizeof name, "pools[%u]", (unsigned)n);
    const uint32_t align = tess_dtype_align(d->dtype);
    TESS_RETURN_IF_ERROR(tess_check_output(in_copy, device, name, &d->pools[n], &shape, &bytes));
    TESS_RETURN_IF_ERROR(
        tess_check_buffer(in_copy, device, name, ".buffer", &d->pools[n].buffer, align));
    TESS_RETURN_IF_ERROR(
        tess_check_stride_align(in_copy, name, &d->pools[n], false, align / shape.item));
    if (tess_tensors_meet(&d->pools[n], &shape, &list, &words))
        return tess_invalid("%s: %s: must not overlap pairs", in_copy, name);
    for (uint32_t other = 0; other < n; other++)
        if (tess_tensors_meet(&d->pools[n], &shape, &d->pools[other], &shape))
            return tess_invalid("%s: %s: must not overlap pools[%u], and elements of the two share "
                                "memory",
                                in_copy, name, (unsigned)other);
    return TESS_OK;
}

/* Kernels copy elements of 16 bits or more: codes are joined in pairs. */
static uint32_t joined(const tess_copy_desc *d) { return tess_dtype_has_scales(d->dtype) ? 2 : 1; }
static uint32_t moved_dtype(const tess_copy_desc *d) { return joined(d) > 1 ? TESS_F16 : d->dtype; }

static tess_tensor moved_pool(const tess_copy_desc *d, uint32_t n) {
    tess_tensor t = d->pools[n];
    t.stride_batch /= joined(d);
    t.stride_token /= joined(d);
    t.stride_head /= joined(d);
    return t;
}

static void fill_launch(const tess_copy_desc *d, tess_launch *l) {
    tess_launch_of_rows(TESS_OP_COPY_PAGES, moved_dtype(d), d->head_dim / (int32_t)joined(d),
                        (uint32_t)d->n_heads, &d->stream, l);
    l->page = (int32_t)d->page;
    l->pages = d->pages;
    l->n_jobs = (uint64_t)(d->n_pairs * d->page);
}

tess_status tess_copy_pages(tess_device *device, const tess_copy_desc *desc) {
    tess_copy_desc d;
    tess_launch launch;
    TESS_RETURN_IF_ERROR(tess_call_on_device(in_copy, device, desc, &d, TESS_COPY_DESC));
    TESS_RETURN_IF_ERROR(check_numbers(&d));
    const uint32_t n_pools = d.n_pairs > 0 ? d.n_pools : 0;
    fill_launch(&d, &launch);
    if (d.n_pairs > 0) TESS_RETURN_IF_ERROR(check_pairs(device, &d, &launch));
    for (uint32_t n = 0; n < n_pools; n++) TESS_RETURN_IF_ERROR(check_pool(device, &d, n));
    TESS_RETURN_IF_ERROR(
        tess_choose_for_device(device, TESS_OP_COPY_PAGES, launch.dtype, 8, &launch.kernel));
    const tess_shape shape = shape_of(&d);
    for (uint32_t n = 0; n < n_pools; n++) {
        launch.tensor[TESS_ROLE_K] = moved_pool(&d, n);
        (void)tess_shape_bytes(&d.pools[n], &shape,
                               &launch.bytes[TESS_ROLE_K]); /* it was checked */
        TESS_RETURN_IF_ERROR(tess_launch_on(device, &launch));
    }
    return TESS_OK;
}
