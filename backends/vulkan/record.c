/* SPDX-License-Identifier: Apache-2.0 */
/* The commands of a run: parameters, barriers, dispatches. */
#include "launch.h"

static void barrier(const tess_vk_device *d, vk_commands commands, uint32_t from_stages,
                    uint32_t from, uint32_t to_stages, uint32_t to) {
    const vk_memory_barrier memory = {
        .type = TVK_TYPE_MEMORY_BARRIER, .source = from, .destination = to};
    d->vk.CmdPipelineBarrier(commands, from_stages, to_stages, 0, 1, &memory, 0, NULL, 0, NULL);
}

/* Earlier runs and copies come first: they may have written what this run reads, or read what it
 * writes. The same barrier lets the dispatches see their parameters. */
void tess_vk_record_begin(const tess_vk_run *run, vk_commands commands) {
    const tess_vk_device *d = run->device;
    /* Nothing reads the parameters of a run that has ended. But the application may execute its
     * commands again after a wait of the compute stage alone, and the update must wait as well. */
    if (run->target.commands) barrier(d, commands, TVK_STAGE_COMPUTE, 0, TVK_STAGE_TRANSFER, 0);
    tess_vk_write_parameters(run, commands);
    barrier(d, commands, TVK_STAGE_COMPUTE | TVK_STAGE_TRANSFER,
            TVK_ACCESS_SHADER_WRITE | TVK_ACCESS_TRANSFER_WRITE, TVK_STAGE_COMPUTE,
            TVK_ACCESS_UNIFORM_READ | TVK_ACCESS_SHADER_READ | TVK_ACCESS_SHADER_WRITE);
}

/* Workgroups in a grid whose width the device allows. Those past the last item find that out by
 * themselves. */
static void dispatch(const tess_vk_run *run, vk_commands commands, vk_handle pipeline,
                     uint32_t bind_range, uint32_t number, uint64_t groups) {
    const tess_vk_device *d = run->device;
    const uint32_t most = d->found.properties.limits.max_group_count[0],
                   width = groups < most ? (uint32_t)groups : most,
                   parameters = tess_vk_parameters_at(run, bind_range, number);
    d->vk.CmdBindPipeline(commands, TVK_BIND_POINT_COMPUTE, pipeline);
    d->vk.CmdBindDescriptorSets(commands, TVK_BIND_POINT_COMPUTE, d->layout, 0, 1,
                                &run->resources->sets[bind_range], 1, &parameters);
    d->vk.CmdDispatch(commands, width, (uint32_t)((groups + width - 1) / width), 1);
}

void tess_vk_record_jobs(const tess_vk_run *run, vk_commands commands, uint32_t submission) {
    const uint64_t jobs = tess_vk_submission_jobs(run, submission);
    const tess_launch *l = run->launch;
    const vk_handle pipeline = l->op == TESS_OP_BACKWARD
                                   ? run->state->stages[tess_backward_number(l->stage)]
                                   : run->state->forward;
    for (uint32_t w = 0; jobs && w < run->bind_ranges; w++)
        dispatch(run, commands, pipeline, w, submission, jobs);
}

void tess_vk_record_end(const tess_vk_run *run, vk_commands commands) {
    const tess_vk_device *d = run->device;
    const tess_launch *l = run->launch;
    if (l->n_merges && l->n_jobs) /* the merge reads partials */
        barrier(d, commands, TVK_STAGE_COMPUTE, TVK_ACCESS_SHADER_WRITE, TVK_STAGE_COMPUTE,
                TVK_ACCESS_SHADER_READ | TVK_ACCESS_SHADER_WRITE);
    for (uint32_t w = 0; l->n_merges && w < run->bind_ranges; w++)
        dispatch(run, commands, run->state->merge, w, tess_vk_merge_number(run),
                 l->n_merges * tess_portable_merge_groups(l));
    barrier(d, commands, TVK_STAGE_COMPUTE, TVK_ACCESS_SHADER_WRITE,
            TVK_STAGE_COMPUTE | TVK_STAGE_TRANSFER | TVK_STAGE_HOST,
            TVK_ACCESS_SHADER_READ | TVK_ACCESS_SHADER_WRITE | TVK_ACCESS_TRANSFER_READ |
                TVK_ACCESS_TRANSFER_WRITE | TVK_ACCESS_HOST_READ | TVK_ACCESS_HOST_WRITE);
}

void tess_vk_record(const tess_vk_run *run) {
    const tess_vk_target *t = &run->target;
    tess_vk_record_begin(run, t->commands);
    tess_vk_record_jobs(run, t->commands, 0);
    tess_vk_record_end(run, t->commands);
    run->resources->until_semaphore = t->record.semaphore.semaphore;
    run->resources->until_value = t->record.semaphore.value;
    run->resources->until_fence = t->record.fence;
    atomic_store(&run->resources->state, VK_RESOURCES_RECORDED);
}
