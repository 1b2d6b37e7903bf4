/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors of a launch: each tensor, the plan's tables, and the workspace. */
#include "launch.h"

/* A buffer of a launch, and the binding that the kernels have for it. */
typedef struct part {
    const char *name;
    const tess_buffer *buffer;
    uint64_t bytes; /* that the launch touches */
    uint32_t binding, item;
} part;

/* Extends what is bound in the part's slot by the part. Descriptors begin at multiples of an
 * alignment. `first` is what was bound there before, or NULL. */
static tess_status cover(tess_vk_run *run, const part *p, vk_buffer_range *range,
                         const part *first) {
    const tess_vk_device *d = run->device;
    const vk_limits *limits = &d->found.properties.limits;
    const uint64_t align = limits->min_storage_align > 4 ? limits->min_storage_align : 4;
    const uint32_t most = limits->max_storage_range;
    const int alone = !first || p->bytes > most;
    uint64_t start = p->buffer->offset / align * align, end = p->buffer->offset + p->bytes;
    if (first && range->buffer != p->buffer->handle)
        return d->host->fail(d->host, TESS_ERROR_UNSUPPORTED,
                             "%s: must be in the VkBuffer of %s: they share a binding, since "
                             "maxPerStageDescriptorStorageBuffers is %u, and all apart are %d",
                             p->name, first->name, limits->max_stage_storage_buffers,
                             TESS_STORAGE_BUFFERS);
    if (!alone) {
        start = range->offset < start ? range->offset : start;
        end = range->offset + range->range > end ? range->offset + range->range : end;
    }
    if (p->bytes > most || end - start > most)
        return d->host->fail(d->host, TESS_ERROR_UNSUPPORTED,
                             "%s: its elements%s span %llu bytes, and maxStorageBufferRange is %u",
                             p->name, alone ? "" : " and what shares their binding",
                             (unsigned long long)(end - start), most);
    *range = (vk_buffer_range){p->buffer->handle, start, end - start};
    return TESS_OK;
}

/* Binds all parts; what an element is away from the start of its range becomes an index. */
static tess_status bind(tess_vk_run *run, const part *parts, uint32_t count) {
    const uint8_t *slots = run->device->slots[tess_vk_family(run->launch->op)];
    const part *first[TESS_BINDINGS] = {NULL};
    for (uint32_t n = 0; n < count; n++) {
        const uint32_t slot = slots[parts[n].binding];
        TESS_RETURN_IF_ERROR(cover(run, &parts[n], &run->ranges[slot], first[slot]));
        if (!first[slot]) first[slot] = &parts[n];
    }
    for (uint32_t n = 0; n < count; n++)
        run->at[parts[n].binding] =
            (tess_arg_i64)((parts[n].buffer->offset - run->ranges[slots[parts[n].binding]].offset) /
                           parts[n].item);
    return TESS_OK;
}

/* Whether the stride between batch entries of a tensor is used. */
static int has_batches(const tess_launch *l, uint32_t role) {
    const int is_pool = tess_is_paging(l->op) && (role == TESS_ROLE_K || role == TESS_ROLE_V);
    return is_pool || tess_portable_has_batches(l, role);
}

/* Without 16-bit access kernels move words of two elements, so rows begin at whole words. */
static tess_status check_pairs(const tess_vk_run *run, const char *name, uint32_t role) {
    const tess_vk_device *d = run->device;
    const tess_tensor *t = &run->launch->tensor[role];
    const struct {
        const char *name;
        uint64_t value, step;
    } places[] = {
        {"buffer.offset", t->buffer.offset, 4},
        {"stride_token", (uint64_t)t->stride_token, 2},
        {"stride_head", (uint64_t)t->stride_head, 2},
        {"stride_batch", has_batches(run->launch, role) ? (uint64_t)t->stride_batch : 0, 2}};
    for (size_t n = 0; n < sizeof places / sizeof *places; n++)
        if (places[n].value % places[n].step)
            return d->host->fail(d->host, TESS_ERROR_UNSUPPORTED,
                                 "%s.%s: must be a multiple of %llu without "
                                 "storageBuffer16BitAccess, got %llu",
                                 name, places[n].name, (unsigned long long)places[n].step,
                                 (unsigned long long)places[n].value);
    return TESS_OK;
}

static int is_bound(const part *p) { return p->buffer->kind != TESS_BUFFER_NONE && p->bytes; }

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
    part parts[TESS_BINDINGS];
    uint32_t n_parts = 0;
    for (uint32_t n = 0; n < count; n++) {
        const tess_portable_tensor *t = &tensors[n];
        const tess_tensor *tensor = &l->tensor[t->role];
        const part p = {tess_portable_name(l, t), &tensor->buffer, l->bytes[t->role],
                        TESS_BIND_TENSORS + n, tess_portable_item(l, t)};
        if (!is_bound(&p)) continue;
        if (p.item == 2 && !run->device->found.storage_16bit)
            TESS_RETURN_IF_ERROR(check_pairs(run, p.name, t->role));
        parts[n_parts++] = p;
    }
    const part own[] = {
        {"tables of the plan", &l->tables->device, l->tables->device.size, TESS_BIND_TABLES, 4},
        {tess_portable_workspace_name(l), &l->workspace, l->workspace_bytes, TESS_BIND_WORKSPACE,
         4}};
    for (size_t n = 0; n < sizeof own / sizeof *own; n++)
        if (is_bound(&own[n])) parts[n_parts++] = own[n];
    return bind(run, parts, n_parts);
}

/* Every binding needs a buffer, also those that this launch does not read: they get the tables, or
 * without a plan the first buffer that there is. The parameters of the run were bound when the plan
 * was made. */
void tess_vk_write_set(const tess_vk_run *run) {
    const tess_vk_device *d = run->device;
    vk_write_set writes[TESS_STORAGE_BUFFERS];
    uint32_t count = 0, other = TESS_BIND_TABLES;
    while (!run->ranges[other].buffer && other < d->storage_buffers) other++;
    for (uint32_t n = 0; n <= d->storage_buffers; n++) {
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
