/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors of a launch: each tensor, the plan's tables, and the workspace. */
#include "launch.h"

/* Descriptors begin at multiples of an alignment; the rest of the offset becomes an index. */
static tess_status bind(tess_vk_run *run, uint32_t binding, const char *name,
                        const tess_buffer *buffer, uint64_t bytes, uint32_t item) {
    const tess_vk_device *d = run->device;
    const vk_limits *limits = &d->found.properties.limits;
    const uint64_t align = limits->min_storage_align ? limits->min_storage_align : 1,
                   start = buffer->offset / align * align;
    const uint64_t rest = buffer->offset - start;
    if (buffer->kind == TESS_BUFFER_NONE || bytes == 0) return TESS_OK;
    if (bytes > limits->max_storage_range || rest + bytes > limits->max_storage_range)
        return d->host->fail(d->host, TESS_ERROR_UNSUPPORTED,
                             "%s: its elements span %llu bytes, and maxStorageBufferRange is %u",
                             name, (unsigned long long)(rest + bytes), limits->max_storage_range);
    run->ranges[binding] = (vk_buffer_range){buffer->handle, start, rest + bytes};
    run->at[binding] = (tess_arg_i64)(rest / item);
    return TESS_OK;
}

/* Without 16-bit access kernels move words of two elements, so rows begin at whole words. */
static tess_status check_pairs(const tess_vk_run *run, const char *name, const tess_tensor *t) {
    const tess_vk_device *d = run->device;
    const struct {
        const char *name;
        uint64_t value, step;
    } places[] = {{"buffer.offset", t->buffer.offset, 4},
                  {"stride_batch", (uint64_t)t->stride_batch, 2},
                  {"stride_token", (uint64_t)t->stride_token, 2},
                  {"stride_head", (uint64_t)t->stride_head, 2}};
    for (size_t n = 0; n < sizeof places / sizeof *places; n++)
        if (places[n].value % places[n].step)
            return d->host->fail(d->host, TESS_ERROR_UNSUPPORTED,
                                 "%s.%s: must be a multiple of %llu without "
                                 "storageBuffer16BitAccess, got %llu",
                                 name, places[n].name, (unsigned long long)places[n].step,
                                 (unsigned long long)places[n].value);
    return TESS_OK;
}

_Static_assert(TESS_STORAGE_BUFFERS == TESS_PORTABLE_BUFFERS &&
                   TESS_BINDINGS == TESS_BIND_TENSORS + TESS_PORTABLE_TENSORS &&
                   (int)TESS_PAGING_TENSORS <= (int)TESS_PORTABLE_TENSORS,
               "each buffer of the portable kernels has a binding");

tess_status tess_vk_bind(tess_vk_run *run) {
    const tess_launch *l = run->launch;
    const tess_portable_tensor *tensors = tess_portable_tensors;
    uint32_t count = TESS_PORTABLE_TENSORS;
    if (tess_is_paging(l->op)) {
        tensors = tess_paging_tensors;
        count = TESS_PAGING_TENSORS;
    } else if (l->op == TESS_OP_PREPARE) {
        tensors = tess_prepare_tensors;
        count = TESS_PREPARE_TENSORS;
    }
    for (uint32_t n = 0; n < count; n++) {
        const tess_portable_tensor *t = &tensors[n];
        const uint32_t item = tess_portable_item(l, t);
        const tess_tensor *tensor = &l->tensor[t->role];
        const char *name = tess_portable_name(l, t);
        if (item == 2 && !run->device->found.storage_16bit && l->bytes[t->role])
            TESS_RETURN_IF_ERROR(check_pairs(run, name, tensor));
        TESS_RETURN_IF_ERROR(
            bind(run, TESS_BIND_TENSORS + n, name, &tensor->buffer, l->bytes[t->role], item));
    }
    TESS_RETURN_IF_ERROR(bind(run, TESS_BIND_TABLES, "tables of the plan", &l->tables->device,
                              l->tables->device.size, 4));
    return bind(run, TESS_BIND_WORKSPACE, tess_portable_workspace_name(l), &l->workspace,
                l->workspace_bytes, 4);
}

/* Every binding needs a buffer, also those that this launch does not read: they get the tables, or
 * without a plan the first buffer that there is. The parameters of the run were bound when the plan
 * was made. */
void tess_vk_write_set(const tess_vk_run *run) {
    const tess_vk_device *d = run->device;
    vk_write_set writes[TESS_STORAGE_BUFFERS];
    uint32_t count = 0, other = TESS_BIND_TABLES;
    while (!run->ranges[other].buffer && other + 1 < TESS_BINDINGS) other++;
    for (uint32_t n = 0; n < TESS_BINDINGS; n++) {
        if (n == TESS_BIND_ARGS) continue;
        writes[count++] =
            (vk_write_set){.type = TVK_TYPE_WRITE_DESCRIPTOR_SET,
                           .set = run->resources->set,
                           .binding = n,
                           .count = 1,
                           .kind = TVK_DESCRIPTOR_STORAGE_BUFFER,
                           .buffers = &run->ranges[run->ranges[n].buffer ? n : other]};
    }
    d->vk.UpdateDescriptorSets(d->device, count, writes, 0, NULL);
}
