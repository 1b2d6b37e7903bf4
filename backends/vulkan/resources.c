/* SPDX-License-Identifier: Apache-2.0 */
/* What the launches of a plan need: a descriptor set, parameters, command buffers, a fence and two
 * timestamps each, made with the plan and used again and again. */
#include <string.h>

#include "launch.h"

/* Allocates the state, the resources of its runs and their command buffers as one block. */
static tess_vk_state *layout_state(tess_vk_device *d, uint32_t max_in_flight, uint32_t submissions,
                                   uint32_t bind_ranges) {
    const size_t bytes =
        sizeof(tess_vk_state) +
        max_in_flight * (sizeof(tess_vk_resources) + bind_ranges * sizeof(vk_handle) +
                         submissions * sizeof(vk_commands));
    tess_vk_state *s = d->host->alloc(d->host, bytes, 64);
    if (!s) return NULL;
    memset(s, 0, bytes);
    s->device = d;
    s->bytes = bytes;
    s->max_in_flight = max_in_flight;
    s->n_submissions = submissions;
    s->most_bind_ranges = bind_ranges;
    s->resources = (tess_vk_resources *)(s + 1);
    vk_handle *sets = (vk_handle *)(s->resources + max_in_flight);
    vk_commands *commands = (vk_commands *)(sets + (size_t)max_in_flight * bind_ranges);
    for (uint32_t n = 0; n < max_in_flight; n++) {
        atomic_init(&s->resources[n].state, VK_RESOURCES_FREE);
        s->resources[n].sets = sets + (size_t)n * bind_ranges;
        s->resources[n].commands = commands + (size_t)n * submissions;
    }
    return s;
}

static vk_result make_pool(tess_vk_state *s, const char **call) {
    const tess_vk_device *d = s->device;
    const uint32_t sets = s->max_in_flight * s->most_bind_ranges;
    const vk_pool_size sizes[] = {{TVK_DESCRIPTOR_STORAGE_BUFFER, TESS_STORAGE_BUFFERS * sets},
                                  {TVK_DESCRIPTOR_UNIFORM_BUFFER_DYNAMIC, sets}};
    const vk_descriptor_pool_create_info pool = {.type = TVK_TYPE_DESCRIPTOR_POOL_CREATE_INFO,
                                                 .max_sets = sets,
                                                 .size_count = 2,
                                                 .sizes = sizes};
    *call = "vkCreateDescriptorPool";
    vk_result result = d->vk.CreateDescriptorPool(d->device, &pool, NULL, &s->descriptor_pool);
    if (result != TVK_SUCCESS) {
        s->descriptor_pool = 0;
        return result;
    }
    if (d->found.timestamp_bits) {
        const vk_query_pool_create_info queries = {.type = TVK_TYPE_QUERY_POOL_CREATE_INFO,
                                                   .kind = TVK_QUERY_TIMESTAMP,
                                                   .count = 2 * s->max_in_flight};
        *call = "vkCreateQueryPool";
        result = d->vk.CreateQueryPool(d->device, &queries, NULL, &s->queries);
        if (result != TVK_SUCCESS) s->queries = 0;
    }
    return result;
}

/* Parameters of every dispatch that all runs may have under way: in each binding range one for each
 * submission, and one for the merge. The offset of a place is a dynamic offset, hence the
 * alignment; a uniform block ends at a multiple of 16. */
static tess_status make_parameters(tess_vk_state *s) {
    static const uint32_t local[] = {TVK_MEMORY_DEVICE_LOCAL, 0};
    tess_vk_device *d = s->device;
    const uint64_t align = d->found.properties.limits.min_uniform_align;
    const uint32_t step = align > 16 ? (uint32_t)align : 16;
    s->parameters_stride = ((uint32_t)sizeof(tess_vk_parameters) + step - 1) / step * step;
    const uint64_t places =
        (uint64_t)s->max_in_flight * s->most_bind_ranges * (s->n_submissions + 1);
    return tess_vk_memory_create(d, places * s->parameters_stride,
                                 TVK_BUFFER_UNIFORM | TVK_BUFFER_TRANSFER_DST, local, 2,
                                 &s->parameters);
}

static void bind_parameters(const tess_vk_state *s, vk_handle set) {
    const vk_buffer_range range = {s->parameters.buffer, 0, s->parameters_stride};
    const vk_write_set write = {.type = TVK_TYPE_WRITE_DESCRIPTOR_SET,
                                .set = set,
                                .binding = TESS_BIND_ARGS,
                                .count = 1,
                                .kind = TVK_DESCRIPTOR_UNIFORM_BUFFER_DYNAMIC,
                                .buffers = &range};
    s->device->vk.UpdateDescriptorSets(s->device->device, 1, &write, 0, NULL);
}

/* Two threads must not record into command buffers of one pool, so each run has its own. */
static vk_result make_resources(const tess_vk_state *s, tess_vk_resources *r, const char **call) {
    const tess_vk_device *d = s->device;
    const vk_set_allocate_info set = {.type = TVK_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO,
                                      .pool = s->descriptor_pool,
                                      .count = 1,
                                      .layouts = &d->set_layout};
    const vk_command_pool_create_info pool = {.type = TVK_TYPE_COMMAND_POOL_CREATE_INFO,
                                              .flags = TVK_COMMAND_POOL_RESET_BUFFER,
                                              .family = d->found.family};
    const vk_fence_create_info fence = {.type = TVK_TYPE_FENCE_CREATE_INFO};
    *call = "vkAllocateDescriptorSets";
    vk_result result = TVK_SUCCESS;
    for (uint32_t n = 0; n < s->most_bind_ranges; n++) {
        result = d->vk.AllocateDescriptorSets(d->device, &set, &r->sets[n]);
        if (result != TVK_SUCCESS) return result;
        bind_parameters(s, r->sets[n]);
    }
    *call = "vkCreateFence";
    if ((result = d->vk.CreateFence(d->device, &fence, NULL, &r->fence)) != TVK_SUCCESS) {
        r->fence = 0;
        return result;
    }
    *call = "vkCreateCommandPool";
    if ((result = d->vk.CreateCommandPool(d->device, &pool, NULL, &r->pool)) != TVK_SUCCESS) {
        r->pool = 0;
        return result;
    }
    const vk_commands_allocate_info commands = {
        .type = TVK_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, .pool = r->pool, .count = s->n_submissions};
    *call = "vkAllocateCommandBuffers";
    return d->vk.AllocateCommandBuffers(d->device, &commands, r->commands);
}

static void destroy(tess_vk_state *s) {
    tess_vk_device *d = s->device;
    if (!atomic_load(&d->stuck)) {
        for (uint32_t n = 0; n < s->max_in_flight; n++) {
            if (s->resources[n].pool)
                d->vk.DestroyCommandPool(d->device, s->resources[n].pool, NULL);
            if (s->resources[n].fence) d->vk.DestroyFence(d->device, s->resources[n].fence, NULL);
        }
        if (s->queries) d->vk.DestroyQueryPool(d->device, s->queries, NULL);
        if (s->descriptor_pool) d->vk.DestroyDescriptorPool(d->device, s->descriptor_pool, NULL);
        tess_vk_memory_destroy(d, &s->parameters);
    }
    d->host->free(d->host, s, s->bytes);
}

/* A server makes a plan for each batch, and 4 runs of 64 submissions take longer to make than all
 * else of a plan. So the device keeps the resources of the last plans, whose runs have ended. */
static tess_vk_state *take_spare(tess_vk_device *d, uint32_t max_in_flight, uint32_t submissions,
                                 uint32_t bind_ranges) {
    tess_vk_state *found = NULL;
    pthread_mutex_lock(&d->spare_lock);
    for (int n = 0; n < VK_SPARE_STATES && !found; n++) {
        tess_vk_state *s = d->spare_states[n];
        if (!s || s->max_in_flight != max_in_flight || s->n_submissions != submissions ||
            s->most_bind_ranges != bind_ranges)
            continue;
        found = s;
        d->spare_states[n] = NULL;
    }
    pthread_mutex_unlock(&d->spare_lock);
    return found;
}

/* Returns the state that has to go for this one. */
static tess_vk_state *keep_spare(tess_vk_state *s) {
    tess_vk_device *d = s->device;
    s->forward = s->merge = 0;
    memset(s->stages, 0, sizeof s->stages);
    s->jobs_per_submission = 0;
    s->most_rows = s->most_keys = 0;
    pthread_mutex_lock(&d->spare_lock);
    tess_vk_state *last = d->spare_states[VK_SPARE_STATES - 1];
    memmove(d->spare_states + 1, d->spare_states, (VK_SPARE_STATES - 1) * sizeof *d->spare_states);
    d->spare_states[0] = s;
    pthread_mutex_unlock(&d->spare_lock);
    return last;
}

void tess_vk_states_close(tess_vk_device *d) {
    for (int n = 0; n < VK_SPARE_STATES; n++)
        if (d->spare_states[n]) destroy(d->spare_states[n]);
}

tess_status tess_vk_state_create(tess_vk_device *d, uint32_t max_in_flight, uint32_t submissions,
                                 uint32_t bind_ranges, tess_vk_state **state) {
    const char *call = NULL;
    if ((*state = take_spare(d, max_in_flight, submissions, bind_ranges)) != NULL) return TESS_OK;
    tess_vk_state *s = layout_state(d, max_in_flight, submissions, bind_ranges);
    if (!s)
        return d->host->fail(d->host, TESS_ERROR_OUT_OF_MEMORY, "vulkan: no memory for %u runs",
                             max_in_flight);
    const tess_status status = make_parameters(s);
    if (status != TESS_OK) {
        destroy(s);
        return status;
    }
    vk_result result = make_pool(s, &call);
    for (uint32_t n = 0; n < max_in_flight && result == TVK_SUCCESS; n++)
        result = make_resources(s, &s->resources[n], &call);
    if (result == TVK_SUCCESS) {
        *state = s;
        return TESS_OK;
    }
    destroy(s);
    return tess_vk_fail(d->host, result, call, "max_in_flight runs of a plan");
}

/* The plan frees its tables after this, so no run may be under way any more. */
void tess_vk_state_release(tess_kernel *kernel) {
    tess_vk_state *s = kernel->state;
    if (!s) return;
    int untracked = 0, idle = !atomic_load(&s->device->stuck);
    for (uint32_t n = 0; n < s->max_in_flight; n++) {
        const int state = atomic_load(&s->resources[n].state);
        if (state == VK_RESOURCES_SUBMITTED)
            idle &= tess_vk_wait_fence(s->device, s->resources[n].fence) == TVK_SUCCESS;
        else
            idle &= state == VK_RESOURCES_FREE;
        untracked |= state == VK_RESOURCES_UNTRACKED;
    }
    if (untracked) tess_vk_quiesce(s->device);
    if (idle) s = keep_spare(s);
    if (s) destroy(s);
    kernel->state = NULL;
}

/* SUCCESS if the run that took the resources has ended, NOT_READY if it has not. */
static vk_result finished(const tess_vk_device *d, const tess_vk_resources *r, int state) {
    uint64_t value = 0;
    if (state == VK_RESOURCES_SUBMITTED) return d->vk.GetFenceStatus(d->device, r->fence);
    if (r->until_fence) return d->vk.GetFenceStatus(d->device, r->until_fence);
    if (!r->until_semaphore) return TVK_NOT_READY;
    const vk_result result = d->vk.GetSemaphoreCounterValue(d->device, r->until_semaphore, &value);
    return result == TVK_SUCCESS && value < r->until_value ? TVK_NOT_READY : result;
}

tess_status tess_vk_resources_take(tess_vk_state *s, uint32_t *index) {
    const tess_vk_device *d = s->device;
    vk_result failure = TVK_NOT_READY;
    for (uint32_t n = 0; n < s->max_in_flight; n++) {
        tess_vk_resources *r = &s->resources[n];
        int state = atomic_load(&r->state);
        if (state == VK_RESOURCES_TAKEN || state == VK_RESOURCES_UNTRACKED ||
            !atomic_compare_exchange_strong(&r->state, &state, VK_RESOURCES_TAKEN))
            continue;
        vk_result result = state == VK_RESOURCES_FREE ? TVK_SUCCESS : finished(d, r, state);
        if (result == TVK_SUCCESS && state == VK_RESOURCES_SUBMITTED)
            result = d->vk.ResetFences(d->device, 1, &r->fence);
        if (result == TVK_SUCCESS) {
            *index = n;
            return TESS_OK;
        }
        atomic_store(&r->state, state);
        if (result != TVK_NOT_READY) failure = result;
    }
    if (failure != TVK_NOT_READY)
        return tess_vk_fail(d->host, failure, "vkGetFenceStatus", "of an earlier run");
    return d->host->fail(d->host, TESS_ERROR_BUSY,
                         "max_in_flight: all %u runs of the plan are under way", s->max_in_flight);
}
