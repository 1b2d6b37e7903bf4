/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors of a launch: each tensor, the plan's tables, and the workspace. */
#include "launch.h"

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

static int is_bound(const tess_vk_part *p) {
    return p->buffer->kind != TESS_BUFFER_NONE && p->bytes;
}

/* Whether a place of attention's holds keys. In backward others take some of them: see places[] in
 * common/backward.c. */
static int is_of_keys(const tess_launch *l, uint32_t role) {
    if (role == TESS_ROLE_K || role == TESS_ROLE_V || role == TESS_ROLE_V_SCALE) return 1;
    if (l->op == TESS_OP_BACKWARD) return role == TESS_ROLE_LSE && l->stage == TESS_STAGE_COLUMNS;
    return role == TESS_ROLE_K_SCALE;
}

/* How a tensor of attention is cut. Pools have no sequences, those by slot no kv heads either, and
 * nobody needs a part of a block table. */
static void find_steps(const tess_vk_run *run, uint32_t role, tess_vk_part *p) {
    const tess_launch *l = run->launch;
    const tess_tensor *t = &l->tensor[role];
    const int keys = is_of_keys(l, role), is_pool = keys && (l->page || l->compact);
    const uint64_t heads = keys ? 1 : l->group, item = p->item;
    if (role == TESS_ROLE_BLOCK_TABLE || (is_pool && l->compact)) return;
    p->step[VK_BY_KV_HEAD] = heads * (uint64_t)t->stride_head * item;
    if (is_pool) return;
    const int has_sequences = has_batches(l, role);
    if (has_sequences) p->step[VK_BY_SEQUENCE] = (uint64_t)t->stride_batch * item;
    /* Keys of a padded batch begin at its sequences. */
    if (!keys) p->step[VK_BY_ROW] = (uint64_t)t->stride_token * item;
    if (keys && !has_sequences) p->step[VK_BY_KEY] = (uint64_t)t->stride_token * item;
    p->tokens = (uint64_t)(keys ? l->kv_tokens : l->q_tokens);
    p->token_bytes = (uint64_t)t->stride_token * item;
    p->last_bytes = ((heads - 1) * (uint64_t)t->stride_head + (uint64_t)l->head_dim) * item;
}

/* What there is of each unit, all of it in one binding range. Rows and keys are cut where they can
 * be counted in 32 bits, and where it is known how many a job may need. */
static void find_units(tess_vk_run *run) {
    const tess_launch *l = run->launch;
    const tess_vk_state *s = run->state;
    for (int n = 0; n < VK_UNITS; n++) run->units[n] = (tess_vk_unit){1, 1, 0};
    if (l->op != TESS_OP_FORWARD && l->op != TESS_OP_BACKWARD) return;
    run->units[VK_BY_SEQUENCE].all = l->batch > l->kv_batch ? l->batch : l->kv_batch;
    run->units[VK_BY_KV_HEAD].all = l->n_heads / l->group;
    const uint64_t reach = l->stage == TESS_STAGE_COLUMNS ? s->most_rows : l->kernel->tile_rows;
    if (reach && l->q_tokens > 0 && l->q_tokens < INT32_MAX)
        run->units[VK_BY_ROW] = (tess_vk_unit){(uint32_t)l->q_tokens, 0, reach};
    if (s->most_keys && l->kv_tokens > 0 && l->kv_tokens < INT32_MAX)
        run->units[VK_BY_KEY] = (tess_vk_unit){(uint32_t)l->kv_tokens, 0, s->most_keys};
    for (int n = 0; n < VK_UNITS; n++) run->units[n].bound = run->units[n].all;
}

_Static_assert(TESS_STORAGE_BUFFERS == TESS_PORTABLE_BUFFERS &&
                   TESS_BINDINGS == TESS_BIND_TENSORS + TESS_PORTABLE_TENSORS &&
                   (int)TESS_PAGING_TENSORS <= (int)TESS_PORTABLE_TENSORS,
               "each buffer of the portable kernels has a binding");

tess_status tess_vk_bind(tess_vk_run *run) {
    const tess_launch *l = run->launch;
    const tess_portable_tensor *tensors = tess_portable_tensors;
    const int is_attention = l->op == TESS_OP_FORWARD || l->op == TESS_OP_BACKWARD;
    uint32_t count = TESS_PORTABLE_TENSORS;
    if (tess_is_paging(l->op)) {
        tensors = tess_paging_tensors;
        count = TESS_PAGING_TENSORS;
    } else if (l->op == TESS_OP_PREPARE) {
        tensors = tess_prepare_tensors;
        count = TESS_PREPARE_TENSORS;
    }
    find_units(run);
    for (uint32_t n = 0; n < count; n++) {
        const tess_portable_tensor *t = &tensors[n];
        const tess_tensor *tensor = &l->tensor[t->role];
        tess_vk_part p = {.name = tess_portable_name(l, t),
                          .buffer = &tensor->buffer,
                          .bytes = l->bytes[t->role],
                          .binding = TESS_BIND_TENSORS + n,
                          .item = tess_portable_item(l, t)};
        if (!is_bound(&p)) continue;
        if (p.item == 2 && !run->device->found.storage_16bit)
            TESS_RETURN_IF_ERROR(check_pairs(run, p.name, t->role));
        if (is_attention) find_steps(run, t->role, &p);
        run->parts[run->n_parts++] = p;
    }
    const tess_vk_part own[] = {{.name = "tables of the plan",
                                 .buffer = &l->tables->device,
                                 .bytes = l->tables->device.size,
                                 .binding = TESS_BIND_TABLES,
                                 .item = 4},
                                {.name = tess_portable_workspace_name(l),
                                 .buffer = &l->workspace,
                                 .bytes = l->workspace_bytes,
                                 .binding = TESS_BIND_WORKSPACE,
                                 .item = 4}};
    for (size_t n = 0; n < sizeof own / sizeof *own; n++)
        if (is_bound(&own[n])) run->parts[run->n_parts++] = own[n];
    return tess_vk_choose_ranges(run);
}

/* Every binding needs a buffer, also those that this launch does not read: they get the tables, or
 * without a plan the first buffer that there is. The parameters of the run were bound when the plan
 * was made. */
static void write_set(const tess_vk_run *run, vk_handle set, const vk_buffer_range *ranges) {
    const tess_vk_device *d = run->device;
    vk_write_set writes[TESS_STORAGE_BUFFERS];
    uint32_t count = 0, other = TESS_BIND_TABLES;
    while (!ranges[other].buffer && other < d->storage_buffers) other++;
    for (uint32_t n = 0; n <= d->storage_buffers; n++) {
        if (n == TESS_BIND_ARGS) continue;
        writes[count++] = (vk_write_set){.type = TVK_TYPE_WRITE_DESCRIPTOR_SET,
                                         .set = set,
                                         .binding = n,
                                         .count = 1,
                                         .kind = TVK_DESCRIPTOR_STORAGE_BUFFER,
                                         .buffers = &ranges[ranges[n].buffer ? n : other]};
    }
    d->vk.UpdateDescriptorSets(d->device, count, writes, 0, NULL);
}

void tess_vk_write_sets(const tess_vk_run *run) {
    tess_vk_bound bound;
    for (uint32_t n = 0; n < run->bind_ranges; n++) {
        tess_vk_bind_range(run, n, &bound);
        write_set(run, run->resources->sets[n], bound.ranges);
    }
}
