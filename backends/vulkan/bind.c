/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors of a launch: each tensor, the plan's tables, and the workspace. */
#include <string.h>

#include "launch.h"

enum { FITS, ELSEWHERE, TOO_LONG };

/* What of a part a window needs: bytes [*start, *end) from the part's offset. */
static void cut(const tess_vk_run *run, const tess_vk_part *p, const tess_vk_bound *b,
                uint64_t *start, uint64_t *end) {
    *start = b->first_batch * p->batch_step + b->first_kv_head * p->head_step;
    *end = p->bytes - (run->kv_heads - b->end_kv_head) * p->head_step;
    const uint64_t last =
        (b->end_batch - 1) * p->batch_step + (b->end_kv_head - 1) * p->head_step + p->own_bytes;
    if (p->batch_step && last < *end) *end = last;
    if (*start < *end) return;
    /* No sequence of the window has rows there. */
    *start = 0;
    *end = p->item;
}

/* Extends what is bound in the part's slot by the part. Descriptors begin at multiples of an
 * alignment. `first` is what was bound there before, or NULL. */
static int cover(const tess_vk_run *run, const tess_vk_part *p, const tess_vk_bound *bound,
                 vk_buffer_range *range, const tess_vk_part *first) {
    const vk_limits *limits = &run->device->found.properties.limits;
    const uint64_t align = limits->min_storage_align > 4 ? limits->min_storage_align : 4;
    uint64_t start, end;
    if (first && range->buffer != p->buffer->handle) return ELSEWHERE;
    cut(run, p, bound, &start, &end);
    start = (p->buffer->offset + start) / align * align;
    end += p->buffer->offset;
    if (first) {
        start = range->offset < start ? range->offset : start;
        end = range->offset + range->range > end ? range->offset + range->range : end;
    }
    *range = (vk_buffer_range){p->buffer->handle, start, end - start};
    return end - start > limits->max_storage_range ? TOO_LONG : FITS;
}

static const uint8_t *slots_of(const tess_vk_run *run) {
    return run->device->slots[tess_vk_family(run->launch->op)];
}

static void place_window(const tess_vk_run *run, uint32_t window, tess_vk_bound *b) {
    const uint32_t rows = (run->batches - 1) / run->window_batches + 1;
    memset(b, 0, sizeof *b);
    b->first_batch = window % rows * run->window_batches;
    b->end_batch = b->first_batch + run->window_batches;
    b->first_kv_head = window / rows * run->window_kv_heads;
    b->end_kv_head = b->first_kv_head + run->window_kv_heads;
    if (b->end_batch > run->batches) b->end_batch = run->batches;
    if (b->end_kv_head > run->kv_heads) b->end_kv_head = run->kv_heads;
}

/* Binds all parts of a window. Where that fails, *at is the part that does not fit and *with the
 * one whose binding it shares, or NULL. */
static int bind(const tess_vk_run *run, uint32_t window, tess_vk_bound *b, const tess_vk_part **at,
                const tess_vk_part **with) {
    const uint8_t *slots = slots_of(run);
    const tess_vk_part *first[TESS_BINDINGS] = {NULL};
    place_window(run, window, b);
    for (uint32_t n = 0; n < run->n_parts; n++) {
        const tess_vk_part *p = &run->parts[n];
        const uint32_t slot = slots[p->binding];
        *at = p;
        *with = first[slot];
        const int result = cover(run, p, b, &b->ranges[slot], first[slot]);
        if (result != FITS) return result;
        if (!first[slot]) first[slot] = p;
    }
    return FITS;
}

/* What an element is away from the start of its range becomes an index, also where the range begins
 * behind the tensor: kernels count modulo 2^32. */
void tess_vk_bind_window(const tess_vk_run *run, uint32_t window, tess_vk_bound *b) {
    const tess_vk_part *at, *with;
    const uint8_t *slots = slots_of(run);
    (void)bind(run, window, b, &at, &with);
    for (uint32_t n = 0; n < run->n_parts; n++) {
        const tess_vk_part *p = &run->parts[n];
        const int64_t away = (int64_t)(p->buffer->offset - b->ranges[slots[p->binding]].offset);
        b->at[p->binding] = (tess_arg_i64)(away / (int64_t)p->item);
    }
}

static tess_status refuse(const tess_vk_run *run, int result, uint64_t bytes,
                          const tess_vk_part *at, const tess_vk_part *with) {
    const tess_host *host = run->device->host;
    const vk_limits *limits = &run->device->found.properties.limits;
    if (result == ELSEWHERE)
        return host->fail(host, TESS_ERROR_UNSUPPORTED,
                          "%s: must be in the VkBuffer of %s: they share a binding, since "
                          "maxPerStageDescriptorStorageBuffers is %u, and all apart are %d",
                          at->name, with->name, limits->max_stage_storage_buffers,
                          TESS_STORAGE_BUFFERS);
    return host->fail(host, TESS_ERROR_UNSUPPORTED,
                      "%s: its elements%s%s span %llu bytes, and maxStorageBufferRange is %u",
                      at->name,
                      at->batch_step  ? " of one sequence and kv head"
                      : at->head_step ? " of one kv head"
                                      : "",
                      with ? " and what shares their binding" : "", (unsigned long long)bytes,
                      limits->max_storage_range);
}

/* Cuts sequences and then kv heads in halves until each window fits. */
static tess_status choose_windows(tess_vk_run *run) {
    const tess_vk_part *at = NULL, *with = NULL;
    tess_vk_bound b;
    for (;;) {
        const uint64_t windows = ((run->batches - 1) / run->window_batches + UINT64_C(1)) *
                                 ((run->kv_heads - 1) / run->window_kv_heads + 1);
        int result = FITS;
        run->windows = windows < UINT32_MAX ? (uint32_t)windows : UINT32_MAX;
        for (uint32_t n = 0; n < run->windows && result == FITS; n++)
            result = bind(run, n, &b, &at, &with);
        if (result == FITS) break;
        if (result == TOO_LONG && run->window_batches > 1)
            run->window_batches -= run->window_batches / 2;
        else if (result == TOO_LONG && run->window_kv_heads > 1)
            run->window_kv_heads -= run->window_kv_heads / 2;
        else
            return refuse(run, result, b.ranges[slots_of(run)[at->binding]].range, at, with);
    }
    if (run->windows <= run->state->most_windows) return TESS_OK;
    return run->device->host->fail(
        run->device->host, TESS_ERROR_UNSUPPORTED,
        "%s: its strides need %u ranges of maxStorageBufferRange (%u), and the plan has room for "
        "%u",
        run->parts[0].name, run->windows, run->device->found.properties.limits.max_storage_range,
        run->state->most_windows);
}

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
    p->head_step = heads * (uint64_t)t->stride_head * item;
    if (is_pool || !has_batches(l, role)) return;
    const uint64_t tokens = (uint64_t)(keys ? l->kv_tokens : l->q_tokens);
    p->batch_step = (uint64_t)t->stride_batch * item;
    p->own_bytes = ((tokens ? tokens - 1 : 0) * (uint64_t)t->stride_token +
                    (heads - 1) * (uint64_t)t->stride_head + (uint64_t)l->head_dim) *
                   item;
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
    run->batches = run->kv_heads = 1;
    if (is_attention) {
        run->batches = l->batch > l->kv_batch ? l->batch : l->kv_batch;
        run->kv_heads = l->n_heads / l->group;
    }
    run->window_batches = run->batches;
    run->window_kv_heads = run->kv_heads;
    for (uint32_t n = 0; n < count; n++) {
        const tess_portable_tensor *t = &tensors[n];
        const tess_tensor *tensor = &l->tensor[t->role];
        tess_vk_part p = {tess_portable_name(l, t),
                          &tensor->buffer,
                          l->bytes[t->role],
                          TESS_BIND_TENSORS + n,
                          tess_portable_item(l, t),
                          0,
                          0,
                          0};
        if (!is_bound(&p)) continue;
        if (p.item == 2 && !run->device->found.storage_16bit)
            TESS_RETURN_IF_ERROR(check_pairs(run, p.name, t->role));
        if (is_attention) find_steps(run, t->role, &p);
        run->parts[run->n_parts++] = p;
    }
    const tess_vk_part own[] = {{"tables of the plan", &l->tables->device, l->tables->device.size,
                                 TESS_BIND_TABLES, 4, 0, 0, 0},
                                {tess_portable_workspace_name(l), &l->workspace, l->workspace_bytes,
                                 TESS_BIND_WORKSPACE, 4, 0, 0, 0}};
    for (size_t n = 0; n < sizeof own / sizeof *own; n++)
        if (is_bound(&own[n])) run->parts[run->n_parts++] = own[n];
    return choose_windows(run);
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
    for (uint32_t n = 0; n < run->windows; n++) {
        tess_vk_bind_window(run, n, &bound);
        write_set(run, run->resources->sets[n], bound.ranges);
    }
}
