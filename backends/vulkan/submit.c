/* SPDX-License-Identifier: Apache-2.0 */
/* Runs that we submit ourselves: their command buffers, their submissions, and the time that
 * the device took. */
#include <time.h>

#include "launch.h"

/* Timestamps around the run go into the first and the last command buffer. */
static vk_result record_submission(const tess_vk_run *run, uint32_t n, const char **call) {
    static const vk_begin_info begin = {.type = TVK_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                        .flags = TVK_ONE_TIME_SUBMIT};
    const tess_vk_device *d = run->device;
    const vk_handle queries = run->state->queries;
    const vk_commands commands = run->resources->commands[n];
    *call = "vkBeginCommandBuffer";
    const vk_result result = d->vk.BeginCommandBuffer(commands, &begin);
    if (result != TVK_SUCCESS) return result;
    if (n == 0) {
        if (queries) {
            d->vk.CmdResetQueryPool(commands, queries, 2 * run->index, 2);
            d->vk.CmdWriteTimestamp(commands, TVK_STAGE_COMPUTE, queries, 2 * run->index);
        }
        tess_vk_record_begin(run, commands);
    }
    tess_vk_record_jobs(run, commands, n);
    if (n + 1 == run->submissions) {
        tess_vk_record_end(run, commands);
        if (queries)
            d->vk.CmdWriteTimestamp(commands, TVK_STAGE_COMPUTE, queries, 2 * run->index + 1);
    }
    *call = "vkEndCommandBuffer";
    return d->vk.EndCommandBuffer(commands);
}

/* The first submission waits, the last one signals. */
static vk_result submit(const tess_vk_run *run, uint32_t n) {
    uint32_t stages[TESS_VULKAN_MOST_SEMAPHORES];
    tess_vk_device *d = run->device;
    const tess_vk_target *t = &run->target;
    const int first = n == 0, last = n + 1 == run->submissions;
    for (int s = 0; s < TESS_VULKAN_MOST_SEMAPHORES; s++) stages[s] = TVK_STAGE_COMPUTE;
    const vk_timeline_submit_info values = {.type = TVK_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
                                            .wait_count = first ? t->waits.count : 0,
                                            .wait_values = t->waits.values,
                                            .signal_count = last ? t->signals.count : 0,
                                            .signal_values = t->signals.values};
    const vk_submit_info info = {.type = TVK_TYPE_SUBMIT_INFO,
                                 .next = d->timeline ? &values : NULL,
                                 .wait_count = values.wait_count,
                                 .waits = t->waits.handles,
                                 .wait_stages = stages,
                                 .commands_count = 1,
                                 .commands = &run->resources->commands[n],
                                 .signal_count = values.signal_count,
                                 .signals = t->signals.handles};
    return tess_vk_submit(d, t->queue, 1, &info, last ? run->resources->fence : 0);
}

static double host_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Waits for the run and tells its time: by the device's clock, or by the host's where the queue has
 * no timestamps. */
static tess_status measure(const tess_vk_run *run, double begin) {
    tess_vk_device *d = run->device;
    const vk_handle queries = run->state->queries;
    double *seconds = run->launch->seconds;
    uint64_t ticks[2] = {0, 0};
    vk_result result = tess_vk_wait_fence(d, run->resources->fence);
    if (result != TVK_SUCCESS)
        return tess_vk_fail(d->host, result, "vkWaitForFences", "device_seconds");
    *seconds = host_seconds() - begin;
    if (!queries) return TESS_OK;
    result = d->vk.GetQueryPoolResults(d->device, queries, 2 * run->index, 2, sizeof ticks, ticks,
                                       sizeof *ticks, TVK_QUERY_RESULT_64);
    if (result != TVK_SUCCESS)
        return tess_vk_fail(d->host, result, "vkGetQueryPoolResults", "device_seconds");
    const uint32_t bits = d->found.timestamp_bits;
    const uint64_t mask = bits >= 64 ? UINT64_MAX : (UINT64_C(1) << bits) - 1;
    *seconds = 1e-9 * (double)((ticks[1] - ticks[0]) & mask) *
               (double)d->found.properties.limits.timestamp_period;
    return TESS_OK;
}

/* What runs already has to end before its resources go: a fence submitted alone comes after
 * it. */
static tess_status give_up(const tess_vk_run *run, uint32_t submitted, vk_result result,
                           const char *call) {
    tess_vk_device *d = run->device;
    int state = VK_RESOURCES_FREE;
    if (submitted) {
        const vk_result alone =
            tess_vk_submit(d, run->target.queue, 0, NULL, run->resources->fence);
        state = alone == TVK_SUCCESS ? VK_RESOURCES_SUBMITTED : VK_RESOURCES_UNTRACKED;
    }
    atomic_store(&run->resources->state, state);
    return tess_vk_fail(d->host, result, call, "a run");
}

tess_status tess_vk_submit_run(const tess_vk_run *run) {
    tess_vk_device *d = run->device;
    const char *call = NULL;
    vk_result result = TVK_SUCCESS;
    for (uint32_t n = 0; n < run->submissions && result == TVK_SUCCESS; n++)
        result = record_submission(run, n, &call);
    if (result != TVK_SUCCESS) return give_up(run, 0, result, call);
    const double begin = run->launch->seconds ? host_seconds() : 0;
    for (uint32_t n = 0; n < run->submissions; n++)
        if ((result = submit(run, n)) != TVK_SUCCESS)
            return give_up(run, n, result, "vkQueueSubmit");
    /* The run's own fence is behind all of it; the application's follows alone. */
    const vk_handle fence = run->target.fence;
    if (fence) result = tess_vk_submit(d, run->target.queue, 0, NULL, fence);
    tess_status status = result == TVK_SUCCESS
                             ? TESS_OK
                             : tess_vk_fail(d->host, result, "vkQueueSubmit", "stream.extra.fence");
    if (status == TESS_OK && run->launch->seconds) status = measure(run, begin);
    atomic_store(&run->resources->state, VK_RESOURCES_SUBMITTED);
    return status;
}
