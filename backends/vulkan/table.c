/* SPDX-License-Identifier: Apache-2.0 */
/* The ordered table of implementations, fastest first, and the choice among them. */
#include <stdio.h>
#include <string.h>

#include "vk.h"

static const tess_portable_variant *const rows[VK_VARIANTS] = {&tess_portable,
                                                               &tess_portable_small};

enum { MOST_SLOTS = 4096, STEP_KEYS = 64 };

/* Why the device cannot run a shape, or NULL. */
static const char *shape_refusal(const tess_vk_device *d, const tess_portable_shape *s,
                                 char *buffer, size_t size) {
    const vk_limits *l = &d->found.properties.limits;
    if (s->shared_bytes > l->max_shared_bytes)
        snprintf(buffer, size, "needs %u bytes of shared memory, maxComputeSharedMemorySize is %u",
                 s->shared_bytes, l->max_shared_bytes);
    else if (s->threads > l->max_group_threads)
        snprintf(buffer, size, "needs workgroups of %u, maxComputeWorkGroupInvocations is %u",
                 s->threads, l->max_group_threads);
    else if (s->threads > l->max_group_size[0])
        snprintf(buffer, size, "needs workgroups of %u, maxComputeWorkGroupSize is %u", s->threads,
                 l->max_group_size[0]);
    else
        return NULL;
    return buffer;
}

static const char *refusal(const tess_vk_device *d, int variant, const tess_kernel_key *key,
                           char *buffer, size_t size) {
    const char *why = tess_portable_refusal(key);
    if (why) return why;
    if (key->dtype != TESS_F32 && !d->found.storage_16bit) {
        snprintf(buffer, size, "dtype %s needs the feature storageBuffer16BitAccess",
                 tess_portable_dtype(key->dtype));
        return buffer;
    }
    if (key->max_in_flight > MOST_SLOTS) {
        snprintf(buffer, size, "max_in_flight %u is more than %d", key->max_in_flight, MOST_SLOTS);
        return buffer;
    }
    return shape_refusal(d, tess_portable_find(rows[variant], key->head_dim), buffer, size);
}

static tess_status describe(const tess_vk_device *d, uint32_t index, tess_kernel_info *info) {
    char buffer[128];
    if (index >= VK_VARIANTS)
        return d->host->fail(d->host, TESS_ERROR_INVALID, "index: %u is past the last kernel",
                             index);
    const char *why = shape_refusal(d, &rows[index]->shapes[0], buffer, sizeof buffer);
    info->op = TESS_OP_FORWARD;
    info->status = why ? TESS_ERROR_UNAVAILABLE : TESS_OK;
    info->flags = 0;
    snprintf(info->name, sizeof info->name, "vulkan/%s", rows[index]->name);
    snprintf(info->reason, sizeof info->reason, "%s", why ? why : "");
    return TESS_OK;
}

/* How a launch is cut into submissions, from what a plan of this key may hold at most. */
static void find_submissions(const tess_vk_device *d, const tess_kernel_key *key,
                             uint32_t tile_rows, uint64_t *jobs_per_submission,
                             uint32_t *submissions) {
    const uint64_t limit = tess_vk_range_steps(d);
    *jobs_per_submission = 0;
    *submissions = 1;
    if (limit == 0) return;
    /* Where the key does not know the lengths (batch-invariant plans), keys are split into parts of
     * 4096. */
    const uint64_t keys = key->max_kv_len > INT32_MAX / 2 ? 4096 : (uint64_t)key->max_kv_len;
    const uint64_t steps = keys / STEP_KEYS + 1;
    *jobs_per_submission = limit / steps ? limit / steps : 1;
    const double jobs =
        (double)key->batch * key->n_heads * ((double)key->max_q_len / tile_rows + 2);
    const double wanted = jobs / (double)*jobs_per_submission + 1;
    *submissions = wanted < VK_MOST_SUBMISSIONS ? (uint32_t)wanted : VK_MOST_SUBMISSIONS;
}

/* Pipelines and slots of an accepted problem. */
static tess_status accept(tess_vk_device *d, const tess_kernel_key *key, int variant,
                          tess_kernel *kernel) {
    const tess_portable_shape *shape = tess_portable_find(rows[variant], key->head_dim);
    vk_handle forward, merge;
    tess_vk_state *state;
    uint64_t jobs_per_submission;
    uint32_t submissions;
    tess_status status = tess_vk_forward_pipeline(d, variant, (int)(shape - rows[variant]->shapes),
                                                  key->dtype, &forward);
    if (status == TESS_OK) status = tess_vk_merge_pipeline(d, key->dtype, &merge);
    if (status != TESS_OK) return status;
    find_submissions(d, key, shape->rows, &jobs_per_submission, &submissions);
    status =
        tess_vk_state_create(d, key->max_in_flight ? key->max_in_flight : 1, submissions, &state);
    if (status != TESS_OK) return status;
    state->forward = forward;
    state->merge = merge;
    state->jobs_per_submission = jobs_per_submission;
    kernel->tile_rows = shape->rows;
    kernel->tile_step = 1;
    kernel->pack_rows = shape->rows;
    kernel->scratch_bytes = 0;
    kernel->costs = tess_portable_costs(shape, tess_vk_parallel_jobs(d));
    snprintf(kernel->name, sizeof kernel->name, "%s", rows[variant]->name);
    kernel->impl = rows[variant];
    kernel->state = state;
    kernel->release = tess_vk_state_release;
    d->host->log(d->host, "dispatch", "vulkan/%s accepts: dtype %s, head_dim %d",
                 rows[variant]->name, tess_portable_dtype(key->dtype), (int)key->head_dim);
    return TESS_OK;
}

tess_status tess_vk_kernel(void *device, const tess_kernel_key *key, tess_kernel *kernel,
                           uint32_t index, tess_kernel_info *info) {
    tess_vk_device *d = device;
    if (!key) return describe(d, index, info);
    char all[600] = "";
    for (int v = 0; v < VK_VARIANTS; v++) {
        char buffer[128];
        if (key->name && strcmp(key->name, rows[v]->name) != 0) continue;
        const char *why = refusal(d, v, key, buffer, sizeof buffer);
        if (!why) return accept(d, key, v, kernel);
        const size_t used = strlen(all);
        snprintf(all + used, sizeof all - used, "%s%s: %s", used ? "; " : "", rows[v]->name, why);
        d->host->log(d->host, "dispatch", "vulkan/%s refuses: %s", rows[v]->name, why);
    }
    if (!all[0])
        return d->host->fail(d->host, TESS_ERROR_UNSUPPORTED,
                             "kernel: vulkan has no kernel named '%s'", key->name ? key->name : "");
    return d->host->fail(d->host, TESS_ERROR_UNSUPPORTED,
                         "no vulkan kernel accepts the problem: %s", all);
}
