/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies, on the queue and waited for. Those to and from host memory go through a staging buffer.
 * Within the device vkCmdCopyBuffer does it. NVIDIA's driver leaves that to a copy engine, which
 * moves 0.76 TB/s on an H200, a fifth of what its memory does, whichever the queue family; there a
 * kernel copies large blocks of our own allocations.
 */
#include <string.h>

#include "kernels/copy_shape.h"
#include "vk.h"

enum {
    STAGING_BYTES = 8 << 20,
    LEAST_BY_KERNEL = 1 << 20,
};
/* Of one dispatch, which takes 8 ms at 1 TB/s. */
#define MOST_BY_KERNEL (UINT64_C(1) << 32)

/* ------------------------------------------------------------------ what copies need */

/* The first copy creates the staging buffer and the command buffer. */
static tess_status make_copier(tess_vk_device *d) {
    static const uint32_t cached[] = {TVK_MEMORY_HOST_VISIBLE | TVK_MEMORY_HOST_COHERENT |
                                          TVK_MEMORY_HOST_CACHED,
                                      TVK_MEMORY_HOST_VISIBLE | TVK_MEMORY_HOST_COHERENT};
    const vk_command_pool_create_info pool = {.type = TVK_TYPE_COMMAND_POOL_CREATE_INFO,
                                              .flags = TVK_COMMAND_POOL_RESET_BUFFER,
                                              .family = d->found.family};
    const vk_fence_create_info fence = {.type = TVK_TYPE_FENCE_CREATE_INFO};
    tess_vk_copier *c = &d->copier;
    vk_result result = TVK_SUCCESS;
    const char *call = "vkCreateCommandPool";
    if (!c->pool &&
        (result = d->vk.CreateCommandPool(d->device, &pool, NULL, &c->pool)) != TVK_SUCCESS)
        c->pool = 0;
    if (result == TVK_SUCCESS && !c->commands) {
        const vk_commands_allocate_info allocate = {
            .type = TVK_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, .pool = c->pool, .count = 1};
        call = "vkAllocateCommandBuffers";
        if ((result = d->vk.AllocateCommandBuffers(d->device, &allocate, &c->commands)) !=
            TVK_SUCCESS)
            c->commands = NULL;
    }
    if (result == TVK_SUCCESS && !c->fence) {
        call = "vkCreateFence";
        if ((result = d->vk.CreateFence(d->device, &fence, NULL, &c->fence)) != TVK_SUCCESS)
            c->fence = 0;
    }
    if (result != TVK_SUCCESS) return tess_vk_fail(d->host, result, call, "for copies");
    if (c->staging.buffer) return TESS_OK;
    return tess_vk_memory_create(d, STAGING_BYTES,
                                 TVK_BUFFER_TRANSFER_SRC | TVK_BUFFER_TRANSFER_DST, cached, 2,
                                 &c->staging);
}

/* The kernel's bindings: kernels/copy_bytes.comp. */
static vk_result make_set(tess_vk_device *d, const char **call) {
    static const vk_binding bindings[] = {{.binding = TESS_BIND_TABLES,
                                           .kind = TVK_DESCRIPTOR_STORAGE_BUFFER,
                                           .count = 1,
                                           .stages = TVK_SHADER_STAGE_COMPUTE},
                                          {.binding = TESS_BIND_WORKSPACE,
                                           .kind = TVK_DESCRIPTOR_STORAGE_BUFFER,
                                           .count = 1,
                                           .stages = TVK_SHADER_STAGE_COMPUTE}};
    static const vk_pool_size size = {TVK_DESCRIPTOR_STORAGE_BUFFER, 2};
    const vk_set_layout_create_info layout = {
        .type = TVK_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO, .count = 2, .bindings = bindings};
    const vk_descriptor_pool_create_info pool = {.type = TVK_TYPE_DESCRIPTOR_POOL_CREATE_INFO,
                                                 .max_sets = 1,
                                                 .size_count = 1,
                                                 .sizes = &size};
    tess_vk_copier *c = &d->copier;
    vk_result result = TVK_SUCCESS;
    *call = "vkCreateDescriptorSetLayout";
    if (!c->set_layout && (result = d->vk.CreateDescriptorSetLayout(d->device, &layout, NULL,
                                                                    &c->set_layout)) != TVK_SUCCESS)
        c->set_layout = 0;
    if (result != TVK_SUCCESS) return result;
    const vk_pipeline_layout_create_info pipelines = {
        .type = TVK_TYPE_PIPELINE_LAYOUT_CREATE_INFO, .set_count = 1, .sets = &c->set_layout};
    *call = "vkCreatePipelineLayout";
    if (!c->layout && (result = d->vk.CreatePipelineLayout(d->device, &pipelines, NULL,
                                                           &c->layout)) != TVK_SUCCESS)
        c->layout = 0;
    if (result != TVK_SUCCESS) return result;
    *call = "vkCreateDescriptorPool";
    if (!c->sets &&
        (result = d->vk.CreateDescriptorPool(d->device, &pool, NULL, &c->sets)) != TVK_SUCCESS)
        c->sets = 0;
    if (result != TVK_SUCCESS || c->set) return result;
    const vk_set_allocate_info set = {.type = TVK_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO,
                                      .pool = c->sets,
                                      .count = 1,
                                      .layouts = &c->set_layout};
    *call = "vkAllocateDescriptorSets";
    if ((result = d->vk.AllocateDescriptorSets(d->device, &set, &c->set)) != TVK_SUCCESS)
        c->set = 0;
    return result;
}

/* The first copy by a kernel creates it. */
static tess_status make_kernel(tess_vk_device *d) {
    const char *call = NULL;
    if (d->copier.pipeline) return TESS_OK;
    const vk_result result = make_set(d, &call);
    if (result != TVK_SUCCESS) return tess_vk_fail(d->host, result, call, "for copies");
    return tess_vk_copy_pipeline(d, d->copier.layout, &d->copier.pipeline);
}

void tess_vk_copier_close(tess_vk_device *d) {
    tess_vk_copier *c = &d->copier;
    tess_vk_memory_destroy(d, &c->staging);
    if (c->fence) d->vk.DestroyFence(d->device, c->fence, NULL);
    if (c->pool) d->vk.DestroyCommandPool(d->device, c->pool, NULL);
    if (c->pipeline) d->vk.DestroyPipeline(d->device, c->pipeline, NULL);
    if (c->sets) d->vk.DestroyDescriptorPool(d->device, c->sets, NULL);
    if (c->layout) d->vk.DestroyPipelineLayout(d->device, c->layout, NULL);
    if (c->set_layout) d->vk.DestroyDescriptorSetLayout(d->device, c->set_layout, NULL);
}

/* ------------------------------------------------------------------ one transfer */

typedef struct transfer {
    vk_handle source, destination;
    uint64_t from, to, bytes;
    uint64_t by_kernel; /* bytes that the kernel copies, a multiple of 16; the others follow */
} transfer;

static void record_kernel(tess_vk_device *d, const transfer *p) {
    const tess_vk_copier *c = &d->copier;
    const uint64_t groups = (p->by_kernel - 1) / TESS_COPY_BYTES + 1;
    const uint32_t most = d->found.properties.limits.max_group_count[0],
                   width = groups < most ? (uint32_t)groups : most;
    const vk_buffer_range ranges[] = {{p->source, p->from, p->by_kernel},
                                      {p->destination, p->to, p->by_kernel}};
    vk_write_set writes[2];
    for (uint32_t n = 0; n < 2; n++)
        writes[n] = (vk_write_set){.type = TVK_TYPE_WRITE_DESCRIPTOR_SET,
                                   .set = c->set,
                                   .binding = TESS_BIND_TABLES + n,
                                   .count = 1,
                                   .kind = TVK_DESCRIPTOR_STORAGE_BUFFER,
                                   .buffers = &ranges[n]};
    d->vk.UpdateDescriptorSets(d->device, 2, writes, 0, NULL);
    d->vk.CmdBindPipeline(c->commands, TVK_BIND_POINT_COMPUTE, c->pipeline);
    d->vk.CmdBindDescriptorSets(c->commands, TVK_BIND_POINT_COMPUTE, c->layout, 0, 1, &c->set, 0,
                                NULL);
    d->vk.CmdDispatch(c->commands, width, (uint32_t)((groups + width - 1) / width), 1);
}

static void record(tess_vk_device *d, const transfer *p) {
    static const vk_memory_barrier before = {
        .type = TVK_TYPE_MEMORY_BARRIER,
        .source = TVK_ACCESS_SHADER_WRITE | TVK_ACCESS_TRANSFER_WRITE,
        .destination = TVK_ACCESS_TRANSFER_READ | TVK_ACCESS_TRANSFER_WRITE |
                       TVK_ACCESS_SHADER_READ | TVK_ACCESS_SHADER_WRITE};
    static const vk_memory_barrier after = {
        .type = TVK_TYPE_MEMORY_BARRIER,
        .source = TVK_ACCESS_TRANSFER_WRITE | TVK_ACCESS_SHADER_WRITE,
        .destination = TVK_ACCESS_HOST_READ | TVK_ACCESS_SHADER_READ};
    const uint32_t stages = TVK_STAGE_COMPUTE | TVK_STAGE_TRANSFER;
    const vk_commands commands = d->copier.commands;
    const vk_buffer_copy rest = {p->from + p->by_kernel, p->to + p->by_kernel,
                                 p->bytes - p->by_kernel};
    d->vk.CmdPipelineBarrier(commands, stages, stages, 0, 1, &before, 0, NULL, 0, NULL);
    if (p->by_kernel) record_kernel(d, p);
    if (rest.size) d->vk.CmdCopyBuffer(commands, p->source, p->destination, 1, &rest);
    d->vk.CmdPipelineBarrier(commands, stages, TVK_STAGE_HOST | TVK_STAGE_COMPUTE, 0, 1, &after, 0,
                             NULL, 0, NULL);
}

/* Copies on the queue and waits. */
static tess_status copy_once(tess_vk_device *d, const transfer *p) {
    const vk_begin_info begin = {.type = TVK_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                 .flags = TVK_ONE_TIME_SUBMIT};
    tess_vk_copier *c = &d->copier;
    const vk_submit_info submit = {
        .type = TVK_TYPE_SUBMIT_INFO, .commands_count = 1, .commands = &c->commands};
    const char *call = "vkBeginCommandBuffer";
    vk_result result = d->vk.BeginCommandBuffer(c->commands, &begin);
    if (result == TVK_SUCCESS) {
        record(d, p);
        call = "vkEndCommandBuffer";
        result = d->vk.EndCommandBuffer(c->commands);
    }
    if (result == TVK_SUCCESS) {
        /* Reset before the submission: no failure may leave the fence signalled for the next. */
        call = "vkResetFences";
        result = d->vk.ResetFences(d->device, 1, &c->fence);
    }
    if (result == TVK_SUCCESS) {
        call = "vkQueueSubmit";
        result = tess_vk_submit(d, d->queue, 1, &submit, c->fence);
    }
    if (result == TVK_SUCCESS) {
        call = "vkWaitForFences";
        result = tess_vk_await_fence(d, c->fence);
    }
    return result == TVK_SUCCESS ? TESS_OK : tess_vk_fail(d->host, result, call, "copying");
}

/* ------------------------------------------------------------------ whole copies */

/* Whether the buffer is of tess_alloc: the application's own may lack the usage. */
static int is_ours(tess_vk_device *d, vk_handle buffer) {
    int found = 0;
    pthread_mutex_lock(&d->memory_lock);
    for (const tess_vk_memory *m = d->allocations; m && !found; m = m->next)
        found = m->buffer == buffer;
    pthread_mutex_unlock(&d->memory_lock);
    return found;
}

/* Bytes that one dispatch of the kernel may copy; 0: it does not serve these buffers. */
static uint64_t kernel_bytes(tess_vk_device *d, const tess_buffer *destination,
                             const tess_buffer *source, uint64_t bytes) {
    const vk_limits *limits = &d->found.properties.limits;
    const uint64_t align = limits->min_storage_align > 16 ? limits->min_storage_align : 16,
                   range = limits->max_storage_range,
                   most = range < MOST_BY_KERNEL ? range : MOST_BY_KERNEL;
    if (d->found.properties.vendor != VK_VENDOR_NVIDIA || bytes < LEAST_BY_KERNEL ||
        (source->offset | destination->offset) % align || !is_ours(d, source->handle) ||
        !is_ours(d, destination->handle))
        return 0;
    return most / align * align;
}

static tess_status copy_within(tess_vk_device *d, const tess_buffer *destination,
                               const tess_buffer *source, uint64_t bytes) {
    const uint64_t most = kernel_bytes(d, destination, source, bytes);
    transfer p = {
        source->handle, destination->handle, source->offset, destination->offset, bytes, 0};
    if (most == 0) return copy_once(d, &p);
    TESS_RETURN_IF_ERROR(make_kernel(d));
    for (uint64_t done = 0; done < bytes; done += p.bytes) {
        p.from = source->offset + done;
        p.to = destination->offset + done;
        p.bytes = bytes - done < most ? bytes - done : most;
        p.by_kernel = p.bytes / 16 * 16;
        TESS_RETURN_IF_ERROR(copy_once(d, &p));
    }
    return TESS_OK;
}

/* Where the host sees a buffer: host memory, or a mapped allocation of ours; NULL elsewhere. */
static char *host_view(tess_vk_device *d, const tess_buffer *buffer) {
    char *found = NULL;
    if (buffer->kind == TESS_BUFFER_HOST) return (char *)(uintptr_t)buffer->handle + buffer->offset;
    pthread_mutex_lock(&d->memory_lock);
    for (const tess_vk_memory *m = d->allocations; m && !found; m = m->next)
        if (m->buffer == buffer->handle && m->mapped) found = m->mapped + buffer->offset;
    pthread_mutex_unlock(&d->memory_lock);
    return found;
}

static tess_status copy_staged(tess_vk_device *d, const tess_buffer *destination,
                               const tess_buffer *source, uint64_t bytes) {
    const int up = source->kind == TESS_BUFFER_HOST, down = destination->kind == TESS_BUFFER_HOST;
    const tess_vk_memory *staging = &d->copier.staging;
    if (!up && !down) return copy_within(d, destination, source, bytes);
    for (uint64_t done = 0; done < bytes;) {
        const uint64_t chunk = bytes - done < STAGING_BYTES ? bytes - done : STAGING_BYTES;
        if (up) {
            const transfer p = {
                staging->buffer, destination->handle, 0, destination->offset + done, chunk, 0};
            memcpy(staging->mapped, (const char *)(uintptr_t)source->handle + source->offset + done,
                   (size_t)chunk);
            TESS_RETURN_IF_ERROR(copy_once(d, &p));
        } else {
            const transfer p = {
                source->handle, staging->buffer, source->offset + done, 0, chunk, 0};
            TESS_RETURN_IF_ERROR(copy_once(d, &p));
            memcpy((char *)(uintptr_t)destination->handle + destination->offset + done,
                   staging->mapped, (size_t)chunk);
        }
        done += chunk;
    }
    return TESS_OK;
}

tess_status tess_vk_copy(void *device, tess_buffer destination, tess_buffer source,
                         uint64_t bytes) {
    tess_vk_device *d = device;
    if (atomic_load(&d->stuck))
        return d->host->fail(d->host, TESS_ERROR_NATIVE,
                             "vkWaitForFences: the device did not answer in an earlier call");
    char *to = host_view(d, &destination);
    const char *from = host_view(d, &source);
    if (to && from) {
        const vk_result result = tess_vk_drain(d, VK_WAIT_LIMIT_NS);
        if (result != TVK_SUCCESS)
            return tess_vk_fail(d->host, result, "vkWaitForFences", "before a copy");
        memcpy(to, from, (size_t)bytes);
        return TESS_OK;
    }
    pthread_mutex_lock(&d->copy_lock);
    tess_status status = make_copier(d);
    if (status == TESS_OK) status = copy_staged(d, &destination, &source, bytes);
    pthread_mutex_unlock(&d->copy_lock);
    return status;
}
