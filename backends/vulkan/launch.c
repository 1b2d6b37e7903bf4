/* SPDX-License-Identifier: Apache-2.0 */
/* A launch, step by step. Nothing here allocates on our side. A driver may do so in
 * vkUpdateDescriptorSets, while it records into command buffers made with the plan, and in
 * vkQueueSubmit. */
#include "launch.h"

/* A run of our own is split so that no submission holds a display's GPU for long. */
static void split(tess_vk_run *run) {
    const tess_vk_state *s = run->state;
    const uint64_t jobs = run->launch->n_jobs;
    run->submissions = 1;
    run->jobs = jobs;
    if (run->target.commands || s->jobs_per_submission == 0 || jobs <= s->jobs_per_submission)
        return;
    run->jobs = s->jobs_per_submission;
    if ((jobs - 1) / run->jobs + 1 > s->n_submissions)
        run->jobs = (jobs - 1) / s->n_submissions + 1;
    run->submissions = (uint32_t)((jobs - 1) / run->jobs + 1);
}

tess_status tess_vk_launch(void *device, const tess_launch *l) {
    tess_vk_device *d = device;
    tess_vk_run run = {.device = d, .launch = l, .state = l->kernel->state};
    tess_launch as;
    if (l->op == TESS_OP_MERGE) {
        tess_portable_parts(l, &as);
        run.launch = &as;
    }
    if (l->op == TESS_OP_BACKWARD) {
        tess_backward_stage(l, &as);
        run.launch = &as;
    }
    if (l->n_jobs > UINT32_MAX || l->n_merges > UINT32_MAX)
        return d->host->fail(d->host, TESS_ERROR_UNSUPPORTED,
                             "job_count: %llu jobs are more than one launch takes",
                             (unsigned long long)(l->n_jobs + l->n_merges));
    TESS_RETURN_IF_ERROR(tess_vk_read_stream(&run));
    TESS_RETURN_IF_ERROR(tess_vk_bind(&run));
    TESS_RETURN_IF_ERROR(tess_vk_resources_take(run.state, &run.index));
    run.resources = &run.state->resources[run.index];
    split(&run);
    tess_vk_write_sets(&run);
    if (!run.target.commands) return tess_vk_submit_run(&run);
    tess_vk_record(&run);
    return TESS_OK;
}
