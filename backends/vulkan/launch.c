/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Launches: binds what the jobs touch, records, and submits or leaves that to the application.
 * Nothing here allocates on our side; what a driver does in vkUpdateDescriptorSets, while it
 * records into command buffers made with the plan, and in vkQueueSubmit is its own affair.
 */
#include <string.h>
#include <time.h>

#include "extra.h"
#include "kernels/push.h"
#include "vk.h"
#include <tessera/tessera_vulkan.h>

/* ---------------------------------------------------------------- the application's structures */

/* Semaphores of one direction, as Vulkan takes them. */
typedef struct semaphores {
    uint32_t count;
    vk_handle handles[TESS_VULKAN_MOST_SEMAPHORES];
    uint64_t values[TESS_VULKAN_MOST_SEMAPHORES];
} semaphores;

static tess_status read_semaphores(const tess_vk_device *d, const char *name, uint32_t count,
                                   const tess_vulkan_semaphore *from, semaphores *to) {
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
            return host->fail(
                host, TESS_ERROR_UNSUPPORTED,
                "stream.extra.%s[%u].value: the device was wrapped without TESS_VULKAN_TIMELINE",
                name, n);
        to->handles[n] = from[n].semaphore;
        to->values[n] = from[n].value;
    }
    return TESS_OK;
}

/* What is done with the commands of a launch. */
typedef struct errand {
    vk_queue queue;      /* to submit to, or ... */
    vk_commands outside; /* ... to record into */
    semaphores waits, signals;
    vk_handle fence;
    tess_vulkan_record record;
} errand;

static tess_status read_submit(const tess_vk_device *d, const tess_stream *stream, errand *e) {
    tess_vulkan_submit submit;
    if (stream->handle) e->queue = (vk_queue)(uintptr_t)stream->handle;
    if (!stream->extra) return TESS_OK;
    tess_status status =
        tess_extra_read(d->host, "stream.extra", stream->extra, &submit, sizeof submit);
    if (status == TESS_OK && submit.reserved)
        status = d->host->fail(d->host, TESS_ERROR_INVALID,
                               "stream.extra.reserved: must be 0, not %u", submit.reserved);
    if (status == TESS_OK)
        status = read_semaphores(d, "waits", submit.n_waits, submit.waits, &e->waits);
    if (status == TESS_OK)
        status = read_semaphores(d, "signals", submit.n_signals, submit.signals, &e->signals);
    if (status == TESS_OK) e->fence = submit.fence;
    return status;
}

static tess_status read_record(const tess_vk_device *d, const tess_launch *l, errand *e) {
    const tess_host *host = d->host;
    if (!l->stream.handle)
        return host->fail(host, TESS_ERROR_INVALID, "stream.handle: must be a VkCommandBuffer");
    if (l->seconds)
        return host->fail(host, TESS_ERROR_INVALID,
                          "device_seconds: must be NULL, since recording does not run anything");
    e->outside = (vk_commands)(uintptr_t)l->stream.handle;
    if (!l->stream.extra) return TESS_OK;
    const tess_status status =
        tess_extra_read(host, "stream.extra", l->stream.extra, &e->record, sizeof e->record);
    if (status != TESS_OK) return status;
    if (e->record.reserved)
        return host->fail(host, TESS_ERROR_INVALID, "stream.extra.reserved: must be 0, not %u",
                          e->record.reserved);
    if (e->record.fence && e->record.semaphore.semaphore)
        return host->fail(host, TESS_ERROR_INVALID,
                          "stream.extra.fence: must be 0 when there is a semaphore");
    if (e->record.semaphore.semaphore && (!d->timeline || !d->vk.GetSemaphoreCounterValue))
        return host->fail(
            host, TESS_ERROR_UNSUPPORTED,
            "stream.extra.semaphore: the device was wrapped without TESS_VULKAN_TIMELINE");
    if (!e->record.fence) return TESS_OK;
    const vk_result result = d->vk.GetFenceStatus(d->device, e->record.fence);
    if (result == TVK_SUCCESS)
        return host->fail(host, TESS_ERROR_INVALID, "stream.extra.fence: is signalled already");
    return result == TVK_NOT_READY
               ? TESS_OK
               : tess_vk_fail(host, result, "vkGetFenceStatus", "stream.extra.fence");
}

static tess_status read_stream(const tess_vk_device *d, const tess_launch *l, errand *e) {
    memset(e, 0, sizeof *e);
    e->queue = d->queue;
    if (l->stream.kind == TESS_STREAM_RECORD) return read_record(d, l, e);
    return l->stream.kind == TESS_STREAM_SUBMIT ? read_submit(d, &l->stream, e) : TESS_OK;
}

/* ------------------------------------------------------------------ binding */

/* One descriptor, and the index of the first element within it. Descriptors begin at multiples of
 * an alignment; what is left of the offset is told as index. */
static tess_status bind(const tess_vk_device *d, const char *name, const tess_buffer *buffer,
                        uint64_t bytes, uint32_t item, vk_buffer_range *range, tess_arg_i64 *at) {
    const vk_limits *limits = &d->found.properties.limits;
    const uint64_t align = limits->min_storage_align ? limits->min_storage_align : 1,
                   start = buffer->offset / align * align;
    const uint64_t rest = buffer->offset - start;
    *range = (vk_buffer_range){0, 0, 0};
    if (buffer->kind == TESS_BUFFER_NONE || bytes == 0) return TESS_OK;
    if (bytes > limits->max_storage_range || rest + bytes > limits->max_storage_range)
        return d->host->fail(d->host, TESS_ERROR_UNSUPPORTED,
                             "%s: its elements span %llu bytes, and maxStorageBufferRange is %u",
                             name, (unsigned long long)(rest + bytes), limits->max_storage_range);
    *range = (vk_buffer_range){buffer->handle, start, rest + bytes};
    *at = (tess_arg_i64)(rest / item);
    return TESS_OK;
}

typedef struct bindings {
    vk_buffer_range ranges[VK_BINDINGS];
    tess_arg_i64 q_at, k_at, v_at, o_at, lse_at, tables_at, workspace_at;
} bindings;

static tess_status bind_all(const tess_vk_device *d, const tess_launch *l, bindings *b) {
    const uint32_t item = tess_portable_element(l->dtype);
    memset(b, 0, sizeof *b);
    tess_status status = bind(d, "q", &l->tensor[TESS_ROLE_Q].buffer, l->bytes[TESS_ROLE_Q], item,
                              &b->ranges[0], &b->q_at);
    if (status == TESS_OK)
        status = bind(d, "k", &l->tensor[TESS_ROLE_K].buffer, l->bytes[TESS_ROLE_K], item,
                      &b->ranges[1], &b->k_at);
    if (status == TESS_OK)
        status = bind(d, "v", &l->tensor[TESS_ROLE_V].buffer, l->bytes[TESS_ROLE_V], item,
                      &b->ranges[2], &b->v_at);
    if (status == TESS_OK)
        status = bind(d, "o", &l->tensor[TESS_ROLE_O].buffer, l->bytes[TESS_ROLE_O], item,
                      &b->ranges[3], &b->o_at);
    if (status == TESS_OK)
        status = bind(d, "lse", &l->tensor[TESS_ROLE_LSE].buffer, l->bytes[TESS_ROLE_LSE],
                      sizeof(float), &b->ranges[4], &b->lse_at);
    if (status == TESS_OK)
        status = bind(d, "tables of the plan", &l->tables->device, l->tables->device.size, 4,
                      &b->ranges[5], &b->tables_at);
    if (status == TESS_OK)
        status = bind(d, "workspace", &l->workspace, l->workspace_bytes, sizeof(float),
                      &b->ranges[6], &b->workspace_at);
    if (status != TESS_OK) return status;
    /* Every descriptor needs a buffer, also those that this launch does not read. */
    for (int n = 0; n < VK_BINDINGS; n++)
        if (!b->ranges[n].buffer) b->ranges[n] = b->ranges[5];
    return TESS_OK;
}

static void update_set(const tess_vk_device *d, vk_handle set, const bindings *b) {
    vk_write_set writes[VK_BINDINGS];
    for (uint32_t n = 0; n < VK_BINDINGS; n++)
        writes[n] = (vk_write_set){.type = TVK_TYPE_WRITE_DESCRIPTOR_SET,
                                   .set = set,
                                   .binding = n,
                                   .count = 1,
                                   .kind = TVK_DESCRIPTOR_STORAGE_BUFFER,
                                   .buffers = &b->ranges[n]};
    d->vk.UpdateDescriptorSets(d->device, VK_BINDINGS, writes, 0, NULL);
}

/* ------------------------------------------------------------------ recording */

static void barrier(const tess_vk_device *d, vk_commands commands, uint32_t from_stages,
                    uint32_t from, uint32_t to_stages, uint32_t to) {
    const vk_memory_barrier memory = {
        .type = TVK_TYPE_MEMORY_BARRIER, .source = from, .destination = to};
    d->vk.CmdPipelineBarrier(commands, from_stages, to_stages, 0, 1, &memory, 0, NULL, 0, NULL);
}

/* Earlier runs and copies come first: they may have written what this run reads, or read what it
 * writes. */
static void begin_run(const tess_vk_device *d, vk_commands commands) {
    barrier(d, commands, TVK_STAGE_COMPUTE | TVK_STAGE_TRANSFER,
            TVK_ACCESS_SHADER_WRITE | TVK_ACCESS_TRANSFER_WRITE, TVK_STAGE_COMPUTE,
            TVK_ACCESS_SHADER_READ | TVK_ACCESS_SHADER_WRITE);
}

static void end_run(const tess_vk_device *d, vk_commands commands) {
    barrier(d, commands, TVK_STAGE_COMPUTE, TVK_ACCESS_SHADER_WRITE,
            TVK_STAGE_COMPUTE | TVK_STAGE_TRANSFER | TVK_STAGE_HOST,
            TVK_ACCESS_SHADER_READ | TVK_ACCESS_SHADER_WRITE | TVK_ACCESS_TRANSFER_READ |
                TVK_ACCESS_TRANSFER_WRITE | TVK_ACCESS_HOST_READ | TVK_ACCESS_HOST_WRITE);
}

/* Workgroups in a grid whose width the device allows, `groups` for each item. Those past the last
 * item find that out by themselves. */
static void dispatch(const tess_vk_device *d, vk_commands commands, vk_handle pipeline,
                     vk_handle set, const bindings *b, tess_args *args, uint32_t groups) {
    const uint64_t all = (uint64_t)args->items * groups;
    const uint32_t most = d->found.properties.limits.max_group_count[0],
                   width = all < most ? (uint32_t)all : most;
    args->q_at = b->q_at;
    args->k_at = b->k_at;
    args->v_at = b->v_at;
    args->o_at = b->o_at;
    args->lse_at = b->lse_at;
    args->partials_at += b->workspace_at;
    const tess_push push = tess_push_of(args);
    d->vk.CmdBindPipeline(commands, TVK_BIND_POINT_COMPUTE, pipeline);
    d->vk.CmdBindDescriptorSets(commands, TVK_BIND_POINT_COMPUTE, d->layout, 0, 1, &set, 0, NULL);
    d->vk.CmdPushConstants(commands, d->layout, TVK_SHADER_STAGE_COMPUTE, 0, sizeof push, &push);
    d->vk.CmdDispatch(commands, width, (uint32_t)((all + width - 1) / width), 1);
}

static void record_jobs(const tess_vk_device *d, vk_commands commands, const tess_launch *l,
                        vk_handle set, const bindings *b, uint64_t skip, uint64_t jobs) {
    const tess_vk_state *s = l->kernel->state;
    tess_args args;
    if (jobs == 0) return;
    tess_portable_forward_args(l, skip, jobs, 1, &args);
    dispatch(d, commands, s->forward, set, b, &args, 1);
}

static void record_merges(const tess_vk_device *d, vk_commands commands, const tess_launch *l,
                          vk_handle set, const bindings *b) {
    const tess_vk_state *s = l->kernel->state;
    tess_args args;
    if (l->n_merges == 0) return;
    if (l->n_jobs)
        barrier(d, commands, TVK_STAGE_COMPUTE, TVK_ACCESS_SHADER_WRITE, TVK_STAGE_COMPUTE,
                TVK_ACCESS_SHADER_READ | TVK_ACCESS_SHADER_WRITE);
    tess_portable_merge_args(l, 0, l->n_merges, 1, &args);
    dispatch(d, commands, s->merge, set, b, &args, tess_portable_merge_groups(l));
}

static tess_status record_outside(const tess_vk_device *d, const tess_launch *l, const errand *e,
                                  tess_vk_slot *slot, const bindings *b) {
    begin_run(d, e->outside);
    record_jobs(d, e->outside, l, slot->set, b, 0, l->n_jobs);
    record_merges(d, e->outside, l, slot->set, b);
    end_run(d, e->outside);
    slot->until_semaphore = e->record.semaphore.semaphore;
    slot->until_value = e->record.semaphore.value;
    slot->until_fence = e->record.fence;
    atomic_store(&slot->state, VK_SLOT_RECORDED);
    return TESS_OK;
}

/* ------------------------------------------------------------------ submitting */

typedef struct pieces {
    uint32_t count;
    uint64_t jobs; /* of each but the last */
} pieces;

static pieces cut(const tess_launch *l) {
    const tess_vk_state *s = l->kernel->state;
    pieces p = {1, l->n_jobs};
    if (s->jobs_per_piece == 0 || l->n_jobs <= s->jobs_per_piece) return p;
    p.jobs = s->jobs_per_piece;
    if ((l->n_jobs - 1) / p.jobs + 1 > s->n_pieces) p.jobs = (l->n_jobs - 1) / s->n_pieces + 1;
    p.count = (uint32_t)((l->n_jobs - 1) / p.jobs + 1);
    return p;
}

static vk_result record_pieces(const tess_vk_device *d, const tess_launch *l, uint32_t index,
                               const bindings *b, const pieces *p, const char **call) {
    const tess_vk_state *s = l->kernel->state;
    const tess_vk_slot *slot = &s->slots[index];
    const vk_begin_info begin = {.type = TVK_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                 .flags = TVK_ONE_TIME_SUBMIT};
    for (uint32_t n = 0; n < p->count; n++) {
        const vk_commands commands = slot->commands[n];
        const uint64_t skip = n * p->jobs;
        *call = "vkBeginCommandBuffer";
        vk_result result = d->vk.BeginCommandBuffer(commands, &begin);
        if (result != TVK_SUCCESS) return result;
        if (n == 0) {
            if (s->queries) {
                d->vk.CmdResetQueryPool(commands, s->queries, 2 * index, 2);
                d->vk.CmdWriteTimestamp(commands, TVK_STAGE_COMPUTE, s->queries, 2 * index);
            }
            begin_run(d, commands);
        }
        record_jobs(d, commands, l, slot->set, b, skip,
                    p->jobs < l->n_jobs - skip ? p->jobs : l->n_jobs - skip);
        if (n + 1 == p->count) {
            record_merges(d, commands, l, slot->set, b);
            end_run(d, commands);
            if (s->queries)
                d->vk.CmdWriteTimestamp(commands, TVK_STAGE_COMPUTE, s->queries, 2 * index + 1);
        }
        *call = "vkEndCommandBuffer";
        result = d->vk.EndCommandBuffer(commands);
        if (result != TVK_SUCCESS) return result;
    }
    return TVK_SUCCESS;
}

/* One submission for each piece, so that a display's GPU gets breaks. *begun: something was
 * submitted that the slot's fence does not cover. */
static vk_result submit_pieces(tess_vk_device *d, const errand *e, const tess_vk_slot *slot,
                               const pieces *p, int *begun) {
    uint32_t stages[TESS_VULKAN_MOST_SEMAPHORES];
    for (int n = 0; n < TESS_VULKAN_MOST_SEMAPHORES; n++) stages[n] = TVK_STAGE_COMPUTE;
    for (uint32_t n = 0; n < p->count; n++) {
        const int first = n == 0, last = n + 1 == p->count;
        const vk_timeline_submit_info values = {.type = TVK_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
                                                .wait_count = first ? e->waits.count : 0,
                                                .wait_values = e->waits.values,
                                                .signal_count = last ? e->signals.count : 0,
                                                .signal_values = e->signals.values};
        const vk_submit_info submit = {.type = TVK_TYPE_SUBMIT_INFO,
                                       .next = d->timeline ? &values : NULL,
                                       .wait_count = values.wait_count,
                                       .waits = e->waits.handles,
                                       .wait_stages = stages,
                                       .commands_count = 1,
                                       .commands = &slot->commands[n],
                                       .signal_count = values.signal_count,
                                       .signals = e->signals.handles};
        const vk_result result = tess_vk_submit(d, e->queue, 1, &submit, last ? slot->fence : 0);
        if (result != TVK_SUCCESS) return result;
        *begun = !last;
    }
    return TVK_SUCCESS;
}

static double host_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Waits for the run and tells its time: by the device's clock, or by the host's where the queue has
 * no timestamps. */
static tess_status measure(tess_vk_device *d, const tess_launch *l, uint32_t index, double begin) {
    const tess_vk_state *s = l->kernel->state;
    uint64_t ticks[2] = {0, 0};
    vk_result result = tess_vk_wait_fence(d, s->slots[index].fence);
    if (result != TVK_SUCCESS)
        return tess_vk_fail(d->host, result, "vkWaitForFences", "device_seconds");
    *l->seconds = host_seconds() - begin;
    if (!s->queries) return TESS_OK;
    result = d->vk.GetQueryPoolResults(d->device, s->queries, 2 * index, 2, sizeof ticks, ticks,
                                       sizeof *ticks, TVK_QUERY_RESULT_64);
    if (result != TVK_SUCCESS)
        return tess_vk_fail(d->host, result, "vkGetQueryPoolResults", "device_seconds");
    const uint32_t bits = d->found.timestamp_bits;
    const uint64_t mask = bits >= 64 ? UINT64_MAX : (UINT64_C(1) << bits) - 1;
    *l->seconds = 1e-9 * (double)((ticks[1] - ticks[0]) & mask) *
                  (double)d->found.properties.limits.timestamp_period;
    return TESS_OK;
}

static tess_status submit(tess_vk_device *d, const tess_launch *l, const errand *e, uint32_t index,
                          const bindings *b) {
    const tess_vk_state *s = l->kernel->state;
    tess_vk_slot *slot = &s->slots[index];
    const pieces p = cut(l);
    const char *call = NULL;
    int begun = 0;
    vk_result result = record_pieces(d, l, index, b, &p, &call);
    const double begin = l->seconds ? host_seconds() : 0;
    if (result == TVK_SUCCESS) {
        call = "vkQueueSubmit";
        result = submit_pieces(d, e, slot, &p, &begun);
    }
    if (result != TVK_SUCCESS) {
        /* What runs already has to be waited for before the slot's objects go; the fence alone
         * comes after it. */
        const int tracked =
            begun && tess_vk_submit(d, e->queue, 0, NULL, slot->fence) == TVK_SUCCESS;
        atomic_store(&slot->state, tracked ? VK_SLOT_SUBMITTED
                                   : begun ? VK_SLOT_UNTRACKED
                                           : VK_SLOT_FREE);
        return tess_vk_fail(d->host, result, call, "a run");
    }
    /* The slot's own fence is behind all of it; the application's follows alone. */
    if (e->fence) result = tess_vk_submit(d, e->queue, 0, NULL, e->fence);
    tess_status status = result == TVK_SUCCESS
                             ? TESS_OK
                             : tess_vk_fail(d->host, result, "vkQueueSubmit", "stream.extra.fence");
    if (status == TESS_OK && l->seconds) status = measure(d, l, index, begin);
    atomic_store(&slot->state, VK_SLOT_SUBMITTED);
    return status;
}

tess_status tess_vk_launch(void *device, const tess_launch *l) {
    tess_vk_device *d = device;
    errand e;
    bindings b;
    uint32_t index;
    if (l->n_jobs > UINT32_MAX || l->n_merges > UINT32_MAX)
        return d->host->fail(d->host, TESS_ERROR_UNSUPPORTED,
                             "job_count: %llu jobs are more than one launch takes",
                             (unsigned long long)(l->n_jobs + l->n_merges));
    tess_status status = read_stream(d, l, &e);
    if (status == TESS_OK) status = bind_all(d, l, &b);
    if (status == TESS_OK) status = tess_vk_slot_take(l->kernel->state, &index);
    if (status != TESS_OK) return status;
    tess_vk_slot *slot = &((tess_vk_state *)l->kernel->state)->slots[index];
    update_set(d, slot->set, &b);
    return e.outside ? record_outside(d, l, &e, slot, &b) : submit(d, l, &e, index, &b);
}
