/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the device, and waiting. */
#include <string.h>

#include "polling.h"
#include "vk.h"

/* ------------------------------------------------------------------ waiting */

/* An unsignalled fence for one wait. A fence whose wait timed out is used again once it is
 * signalled. */
static tess_vk_fence *take_fence(tess_vk_device *d, vk_result *result) {
    tess_vk_fence *found = NULL;
    *result = TVK_SUCCESS;
    pthread_mutex_lock(&d->fence_lock);
    for (tess_vk_fence **at = &d->fences; *at; at = &(*at)->next) {
        if ((*at)->pending && d->vk.GetFenceStatus(d->device, (*at)->fence) != TVK_SUCCESS)
            continue;
        if (d->vk.ResetFences(d->device, 1, &(*at)->fence) != TVK_SUCCESS) continue;
        found = *at;
        *at = found->next;
        break;
    }
    pthread_mutex_unlock(&d->fence_lock);
    if (found) return found;
    const vk_fence_create_info create = {.type = TVK_TYPE_FENCE_CREATE_INFO};
    found = d->host->alloc(d->host, sizeof *found, 64);
    *result = found ? d->vk.CreateFence(d->device, &create, NULL, &found->fence)
                    : TVK_ERROR_OUT_OF_HOST_MEMORY;
    if (*result == TVK_SUCCESS) return found;
    d->host->free(d->host, found, sizeof *found);
    return NULL;
}

static void give_fence(tess_vk_device *d, tess_vk_fence *fence, int pending) {
    fence->pending = pending;
    pthread_mutex_lock(&d->fence_lock);
    fence->next = d->fences;
    d->fences = fence;
    pthread_mutex_unlock(&d->fence_lock);
}

/* A fence submitted alone is signalled after everything before it on the queue. */
vk_result tess_vk_drain(tess_vk_device *d, uint64_t timeout_ns) {
    vk_result result;
    tess_vk_fence *fence = take_fence(d, &result);
    if (!fence) return result;
    result = tess_vk_submit(d, d->queue, 0, NULL, fence->fence);
    if (result != TVK_SUCCESS) {
        give_fence(d, fence, 0);
        return result;
    }
    result = d->vk.WaitForFences(d->device, 1, &fence->fence, 1, timeout_ns);
    give_fence(d, fence, result != TVK_SUCCESS);
    return result;
}

/* A wait may fail for want of memory, and then succeed. */
enum { WAIT_ATTEMPTS = 4 };

vk_result tess_vk_wait_fence(tess_vk_device *d, vk_handle fence) {
    vk_result result = TVK_SUCCESS;
    for (int n = 0; n < WAIT_ATTEMPTS; n++) {
        result = d->vk.WaitForFences(d->device, 1, &fence, 1, VK_WAIT_LIMIT_NS);
        if (result == TVK_SUCCESS || result == TVK_ERROR_DEVICE_LOST) return result;
        if (result == TVK_TIMEOUT) break;
    }
    atomic_store(&d->stuck, 1);
    return result;
}

/* A thread that sleeps for a fence wakes up some 30 us after it: as long as a copy of 50 MiB takes.
 * A device in software needs the CPU itself. */
vk_result tess_vk_await_fence(tess_vk_device *d, vk_handle fence) {
    enum { ASKED_NS = 1000000 };
    if (d->found.properties.kind == TVK_DEVICE_CPU) return tess_vk_wait_fence(d, fence);
    const uint64_t begin = tess_polling_now();
    vk_result result;
    do {
        result = d->vk.GetFenceStatus(d->device, fence);
    } while (result == TVK_NOT_READY && tess_polling_now() - begin < ASKED_NS);
    return result == TVK_SUCCESS ? result : tess_vk_wait_fence(d, fence);
}

void tess_vk_quiesce(tess_vk_device *d) {
    vk_result result = TVK_SUCCESS;
    for (int n = 0; n < WAIT_ATTEMPTS; n++) {
        result = tess_vk_drain(d, VK_WAIT_LIMIT_NS);
        if (result == TVK_SUCCESS || result == TVK_ERROR_DEVICE_LOST) return;
        if (result == TVK_TIMEOUT) break;
    }
    atomic_store(&d->stuck, 1);
}

tess_status tess_vk_wait(void *device, uint64_t timeout_ns) {
    tess_vk_device *d = device;
    const vk_result result = tess_vk_drain(d, timeout_ns);
    return result == TVK_SUCCESS
               ? TESS_OK
               : tess_vk_fail(d->host, result, "vkWaitForFences", "waiting for the queue");
}

/* ------------------------------------------------------------------ allocation */

/* The first memory type of the mask with all flags of the first of `preferred` that some type has.
 */
static int find_type(const tess_vk_device *d, uint32_t mask, const uint32_t *preferred, int count) {
    for (int w = 0; w < count; w++)
        for (uint32_t n = 0; n < d->memory.type_count; n++)
            if ((mask >> n & 1) && (d->memory.types[n].flags & preferred[w]) == preferred[w])
                return (int)n;
    return -1;
}

void tess_vk_memory_destroy(tess_vk_device *d, tess_vk_memory *m) {
    if (m->buffer) d->vk.DestroyBuffer(d->device, m->buffer, NULL);
    if (m->memory) d->vk.FreeMemory(d->device, m->memory, NULL); /* unmaps */
    memset(m, 0, sizeof *m);
}

tess_status tess_vk_memory_create(tess_vk_device *d, uint64_t size, uint32_t usage,
                                  const uint32_t *preferred, int count, tess_vk_memory *m) {
    const tess_host *host = d->host;
    const vk_buffer_create_info create = {
        .type = TVK_TYPE_BUFFER_CREATE_INFO, .size = size, .usage = usage};
    memset(m, 0, sizeof *m);
    m->size = size;
    vk_result result = d->vk.CreateBuffer(d->device, &create, NULL, &m->buffer);
    if (result != TVK_SUCCESS) {
        m->buffer = 0;
        return tess_vk_fail(host, result, "vkCreateBuffer", "no buffer");
    }
    vk_memory_requirements need;
    d->vk.GetBufferMemoryRequirements(d->device, m->buffer, &need);
    const int type = find_type(d, need.types, preferred, count);
    const char *call = "vkAllocateMemory";
    /* More than the whole heap is not a legal request, and some drivers do not answer it with an
     * error. */
    if (type < 0 || need.size > d->memory.heaps[d->memory.types[type].heap].size)
        result = TVK_ERROR_OUT_OF_DEVICE_MEMORY;
    else {
        const vk_memory_allocate_info allocate = {.type = TVK_TYPE_MEMORY_ALLOCATE_INFO,
                                                  .size = need.size,
                                                  .memory_type = (uint32_t)type};
        result = d->vk.AllocateMemory(d->device, &allocate, NULL, &m->memory);
        if (result != TVK_SUCCESS) m->memory = 0;
    }
    if (result == TVK_SUCCESS) {
        call = "vkBindBufferMemory";
        result = d->vk.BindBufferMemory(d->device, m->buffer, m->memory, 0);
    }
    if (result == TVK_SUCCESS && (preferred[0] & TVK_MEMORY_HOST_VISIBLE) &&
        (d->memory.types[type].flags & TVK_MEMORY_HOST_COHERENT)) {
        call = "vkMapMemory";
        result = d->vk.MapMemory(d->device, m->memory, 0, need.size, 0, (void **)&m->mapped);
    }
    if (result == TVK_SUCCESS) return TESS_OK;
    tess_vk_memory_destroy(d, m);
    return tess_vk_fail(host, result, call, "memory of a buffer");
}

tess_status tess_vk_alloc(void *device, uint64_t size, tess_buffer *buffer) {
    /* A device that is the CPU shares its memory with us. Elsewhere the memory is the device's own,
     * and copies are staged. */
    static const uint32_t shared[] = {TVK_MEMORY_HOST_VISIBLE | TVK_MEMORY_HOST_COHERENT |
                                          TVK_MEMORY_HOST_CACHED,
                                      TVK_MEMORY_HOST_VISIBLE | TVK_MEMORY_HOST_COHERENT, 0};
    static const uint32_t local[] = {TVK_MEMORY_DEVICE_LOCAL, 0};
    tess_vk_device *d = device;
    tess_vk_memory *m = d->host->alloc(d->host, sizeof *m, 64);
    if (!m)
        return d->host->fail(d->host, TESS_ERROR_OUT_OF_MEMORY,
                             "vulkan: %zu bytes for an allocation", sizeof *m);
    const int cpu = d->found.properties.kind == TVK_DEVICE_CPU;
    const uint32_t usage = TVK_BUFFER_STORAGE | TVK_BUFFER_TRANSFER_SRC | TVK_BUFFER_TRANSFER_DST;
    const tess_status status =
        tess_vk_memory_create(d, size, usage, cpu ? shared : local, cpu ? 3 : 2, m);
    if (status != TESS_OK) {
        d->host->free(d->host, m, sizeof *m);
        return status;
    }
    pthread_mutex_lock(&d->memory_lock);
    m->next = d->allocations;
    d->allocations = m;
    pthread_mutex_unlock(&d->memory_lock);
    memset(buffer, 0, sizeof *buffer);
    buffer->kind = TESS_BUFFER_OBJECT;
    buffer->handle = m->buffer;
    buffer->size = size;
    return TESS_OK;
}

tess_status tess_vk_free(void *device, tess_buffer *buffer) {
    tess_vk_device *d = device;
    tess_vk_memory *found = NULL;
    pthread_mutex_lock(&d->memory_lock);
    for (tess_vk_memory **at = &d->allocations; *at; at = &(*at)->next)
        if ((*at)->buffer == buffer->handle) {
            found = *at;
            *at = found->next;
            break;
        }
    pthread_mutex_unlock(&d->memory_lock);
    if (!found)
        return d->host->fail(d->host, TESS_ERROR_INVALID,
                             "buffer.handle: no buffer that tess_alloc gave");
    if (!atomic_load(&d->stuck)) tess_vk_memory_destroy(d, found);
    d->host->free(d->host, found, sizeof *found);
    return TESS_OK;
}

/* Destroys what this file made. The device is idle, or stuck, and then only our memory goes. */
void tess_vk_memory_close(tess_vk_device *d) {
    const int alive = d->device && d->vk.DestroyDevice && !atomic_load(&d->stuck);
    while (d->allocations) {
        tess_vk_memory *m = d->allocations;
        d->allocations = m->next;
        if (alive) tess_vk_memory_destroy(d, m);
        d->host->free(d->host, m, sizeof *m);
    }
    while (d->fences) {
        tess_vk_fence *f = d->fences;
        d->fences = f->next;
        if (alive) d->vk.DestroyFence(d->device, f->fence, NULL);
        d->host->free(d->host, f, sizeof *f);
    }
}
