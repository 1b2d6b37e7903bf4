/* SPDX-License-Identifier: Apache-2.0 */
/* The structures of tessera_vulkan.h that come with a run: where its commands go. */
#include "extra.h"
#include "launch.h"

static tess_status read_semaphores(const tess_vk_device *d, const char *name, uint32_t count,
                                   const tess_vulkan_semaphore *from, tess_vk_semaphores *to) {
    const tess_host *host = d->host;
    to->count = count;
    if (count > TESS_VULKAN_MOST_SEMAPHORES)
        return host->fail(host, TESS_ERROR_UNSUPPORTED, "stream.extra.n_%s: %u of at most %d", name,
                          count, (int)TESS_VULKAN_MOST_SEMAPHORES);
    if (count && !from)
        return host->fail(host, TESS_ERROR_INVALID, "stream.extra.%s: must not be NULL", name);
    for (uint32_t n = 0; n < count; n++) {
        if (!from[n].semaphore)
            return host->fail(host, TESS_ERROR_INVALID,
                              "stream.extra.%s[%u].semaphore: must not be 0", name, n);
        if (from[n].value && !d->timeline)
            return host->fail(host, TESS_ERROR_UNSUPPORTED,
                              "stream.extra.%s[%u].value: the device has no timeline semaphores, "
                              "or TESS_VULKAN_TIMELINE was not given",
                              name, n);
        to->handles[n] = from[n].semaphore;
        to->values[n] = from[n].value;
    }
    return TESS_OK;
}

static tess_status read_submit(const tess_vk_device *d, const tess_stream *stream,
                               tess_vk_target *t) {
    tess_vulkan_submit submit;
    if (stream->handle) t->queue = (vk_queue)(uintptr_t)stream->handle;
    if (!stream->extra) return TESS_OK;
    TESS_RETURN_IF_ERROR(
        tess_extra_read(d->host, "stream.extra", stream->extra, &submit, sizeof submit));
    if (submit.reserved)
        return d->host->fail(d->host, TESS_ERROR_INVALID,
                             "stream.extra.reserved: must be 0, not %u", submit.reserved);
    TESS_RETURN_IF_ERROR(read_semaphores(d, "waits", submit.n_waits, submit.waits, &t->waits));
    TESS_RETURN_IF_ERROR(
        read_semaphores(d, "signals", submit.n_signals, submit.signals, &t->signals));
    t->fence = submit.fence;
    return TESS_OK;
}

static tess_status read_record(const tess_vk_device *d, const tess_launch *l, tess_vk_target *t) {
    const tess_host *host = d->host;
    if (!l->stream.handle)
        return host->fail(host, TESS_ERROR_INVALID, "stream.handle: must be a VkCommandBuffer");
    if (l->seconds)
        return host->fail(host, TESS_ERROR_INVALID,
                          "device_seconds: must be NULL, since recording does not run anything");
    t->commands = (vk_commands)(uintptr_t)l->stream.handle;
    if (!l->stream.extra) return TESS_OK;
    TESS_RETURN_IF_ERROR(
        tess_extra_read(host, "stream.extra", l->stream.extra, &t->record, sizeof t->record));
    if (t->record.reserved)
        return host->fail(host, TESS_ERROR_INVALID, "stream.extra.reserved: must be 0, not %u",
                          t->record.reserved);
    if (t->record.fence && t->record.semaphore.semaphore)
        return host->fail(host, TESS_ERROR_INVALID,
                          "stream.extra.fence: must be 0 when there is a semaphore");
    if (t->record.semaphore.semaphore && (!d->timeline || !d->vk.GetSemaphoreCounterValue))
        return host->fail(host, TESS_ERROR_UNSUPPORTED,
                          "stream.extra.semaphore: the device has no timeline semaphores, or "
                          "TESS_VULKAN_TIMELINE was not given");
    if (!t->record.fence) return TESS_OK;
    const vk_result result = d->vk.GetFenceStatus(d->device, t->record.fence);
    if (result == TVK_SUCCESS)
        return host->fail(host, TESS_ERROR_INVALID, "stream.extra.fence: is signalled already");
    return result == TVK_NOT_READY
               ? TESS_OK
               : tess_vk_fail(host, result, "vkGetFenceStatus", "stream.extra.fence");
}

tess_status tess_vk_read_stream(tess_vk_run *run) {
    const tess_vk_device *d = run->device;
    const tess_launch *l = run->launch;
    tess_vk_target *t = &run->target;
    t->queue = d->queue;
    if (l->stream.kind == TESS_STREAM_RECORD) return read_record(d, l, t);
    return l->stream.kind == TESS_STREAM_SUBMIT ? read_submit(d, &l->stream, t) : TESS_OK;
}
