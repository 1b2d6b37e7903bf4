/* SPDX-License-Identifier: Apache-2.0 */
/* Running a plan: every tensor is checked against what the jobs will touch, then the backend is
 * called, once for each storage group. Nothing here allocates. */
#include <stdio.h>

#include "backward.h"
#include "block_table.h"
#include "launch.h"
#include "overlap.h"
#include "roles.h"
#include "tensors.h"

static const char *const in_run = "tess_run";

/* ------------------------------------------------------------------ tensors */

/* What is being checked: a launch and the storage group of its K and V. */
typedef struct place {
    const tess_launch *launch;
    uint32_t storage;
} place;

/* `unused`: that of the batch dimension is. */
static tess_status check_strides(const char *name, const tess_tensor *t, bool unused) {
    if (!unused && t->stride_batch < 0)
        return tess_invalid("%s: %s.stride_batch: must be at least 0, got %lld", in_run, name,
                            (long long)t->stride_batch);
    if (t->stride_token < 0)
        return tess_invalid("%s: %s.stride_token: must be at least 0, got %lld", in_run, name,
                            (long long)t->stride_token);
    if (t->stride_head < 0)
        return tess_invalid("%s: %s.stride_head: must be at least 0, got %lld", in_run, name,
                            (long long)t->stride_head);
    return TESS_OK;
}

/* The element index of the last token of the last batch entry, or false on overflow. */
static bool last_of(const tess_tensor *t, uint64_t batches, uint64_t tokens, uint64_t *last) {
    uint64_t batch_part, token_part;
    return checked_mul(batches - 1, (uint64_t)t->stride_batch, &batch_part) &&
           checked_mul(tokens - 1, (uint64_t)t->stride_token, &token_part) &&
           checked_add(batch_part, token_part, last);
}

/* Whether the sequences of a tensor follow each other in its token dimension. */
static bool is_joined(const tess_plan *plan, bool keys) {
    return keys ? plan->kv_packed && !tess_pools_cached(&plan->pools) : plan->packed;
}

/* The largest element index of (batch, token), or false on overflow. Where lengths differ, every
 * sequence is looked at. */
static bool last_token(const tess_plan *plan, const place *at, const tess_tensor *t, bool keys,
                       uint64_t *last) {
    const tess_pools *pools = &plan->pools;
    *last = 0;
    if (keys && pools->page)
        return last_of(t, (uint64_t)at->launch->pages, (uint64_t)pools->page, last);
    if (is_joined(plan, keys))
        return checked_mul((uint64_t)(keys ? plan->kv_len : plan->q_len) - 1,
                           (uint64_t)t->stride_token, last);
    if (plan->steps) /* keys, up to the capacities */
        return last_of(t, (uint64_t)plan->kv_last + 1,
                       (uint64_t)(pools->compact ? pools->all[at->storage].tokens : plan->kv_len),
                       last);
    for (uint32_t n = plan->equal_lengths ? plan->n_sequences - 1 : 0; n < plan->n_sequences; n++) {
        const tess_sequence *s = &plan->sequences[n];
        uint64_t tokens = (uint64_t)(keys ? tess_plan_keys(plan, n) : s->q_len), end;
        if (tokens == 0) continue;
        /* A sequence by slot has room for as many tokens as the longest. */
        if (keys && pools->compact) tokens = (uint64_t)pools->all[at->storage].tokens;
        if (!last_of(t, (uint64_t)(keys ? s->kv_batch : s->batch) + 1, tokens, &end)) return false;
        if (end > *last) *last = end;
    }
    return true;
}

static tess_status check_extent(const tess_plan *plan, const place *at, const char *name,
                                const tess_tensor *t, const tess_extent *x, uint64_t *touched) {
    uint64_t last, head_part, bytes;
    if (!last_token(plan, at, t, x->keys, &last) ||
        !checked_mul(x->heads - 1, (uint64_t)t->stride_head, &head_part) ||
        !checked_add(last, head_part, &last) || !checked_add(last, x->row, &last) ||
        !checked_mul(last, x->item, &bytes) || bytes > INT64_MAX)
        return tess_invalid("%s: %s: its strides overflow 64-bit sizes", in_run, name);
    *touched = bytes;
    return tess_check_room(in_run, name, ".buffer", &t->buffer, bytes);
}

/* Elements lie apart when every stride, in rising order, is at least the extent of all dimensions
 * below it. */
static tess_status check_apart(const tess_plan *plan, const char *name, const tess_tensor *t,
                               const tess_extent *x) {
    int64_t strides[3] = {t->stride_head, t->stride_token, t->stride_batch};
    const bool joined = is_joined(plan, x->keys);
    const int64_t all = x->keys ? plan->kv_len : plan->q_len,
                  longest = x->keys ? plan->max_kv_len : plan->max_q_len,
                  last = x->keys ? plan->kv_last : plan->q_last;
    int64_t counts[3] = {x->heads, joined ? all : longest, joined ? 1 : last + 1};
    static const char *const names[3] = {"stride_head", "stride_token", "stride_batch"};
    uint64_t extent = x->row;
    bool used[3] = {counts[0] < 2, counts[1] < 2, counts[2] < 2};
    for (;;) {
        int next = -1;
        for (int n = 0; n < 3; n++) {
            if (!used[n] && (next < 0 || strides[n] < strides[next])) next = n;
        }
        if (next < 0) return TESS_OK;
        if ((uint64_t)strides[next] < extent)
            return tess_invalid("%s: %s.%s: must be at least %llu to keep elements apart, got %lld",
                                in_run, name, names[next], (unsigned long long)extent,
                                (long long)strides[next]);
        /* No overflow: check_extent found each product to be below 2^63 bytes, and an element has
         * two at least. */
        extent += (uint64_t)(counts[next] - 1) * (uint64_t)strides[next];
        used[next] = true;
    }
}

enum { MOST_NAME = 32 };

/* A tensor as the descriptor has it; `text` is room for the name of a pool. */
static const char *name_of(const tess_plan *plan, const place *at, uint32_t role, char *text) {
    const tess_role_row *row = &tess_role_rows[role];
    if (plan->pools.n == 1 || row->tokens != TESS_TOKENS_KV) return row->name;
    snprintf(text, MOST_NAME, "%s_pools[%u]", row->name, (unsigned)at->storage);
    return text;
}

/* Checks one tensor by itself. *touched stays 0 where the jobs read nothing of it. */
static tess_status check_tensor(const tess_plan *plan, const place *at, const char *name,
                                uint32_t role, const tess_tensor *t, uint64_t *touched) {
    const tess_extent x = tess_role_extent(plan, role, at->storage);
    TESS_RETURN_IF_ERROR(check_strides(name, t, is_joined(plan, x.keys)));
    /* Without keys, or without rows, there may be no memory for them. */
    const bool empty = x.keys ? plan->kv_last < 0 : plan->q_last < 0;
    if (empty && t->buffer.kind == TESS_BUFFER_NONE) return TESS_OK;
    TESS_RETURN_IF_ERROR(
        tess_check_buffer(in_run, plan->device, name, ".buffer", &t->buffer, x.align));
    TESS_RETURN_IF_ERROR(
        tess_check_stride_align(in_run, name, t, is_joined(plan, x.keys), x.align / x.item));
    if (empty) return TESS_OK;
    TESS_RETURN_IF_ERROR(check_extent(plan, at, name, t, &x, touched));
    return tess_role_written(role, plan->op) ? check_apart(plan, name, t, &x) : TESS_OK;
}

/* ------------------------------------------------------------------ overlaps */

/* Address of a tensor's first byte; within a buffer object, its offset. */
static uint64_t place_of(const tess_buffer *b) {
    return b->kind == TESS_BUFFER_OBJECT ? b->offset : b->handle + b->offset;
}

/* Not a tensor but so many bytes. */
static bool is_bytes(uint32_t role) {
    return role == TESS_ROLE_BLOCK_TABLE || role == TESS_ROLE_STEP;
}

/* Every page counts as touched, and the slots of as many tokens. */
static tess_box box_of(const tess_plan *plan, const place *at, uint32_t role,
                       const tess_touched *part) {
    const tess_tensor *t = &at->launch->tensor[role];
    const uint64_t start = place_of(&t->buffer);
    if (is_bytes(role))
        return (tess_box){
            .address = start, .row_bytes = at->launch->bytes[role], .count = {1, 1, 1}};
    const tess_extent x = tess_role_extent(plan, role, at->storage);
    const uint64_t token = (uint64_t)t->stride_token * x.item,
                   batch = (uint64_t)t->stride_batch * x.item;
    int64_t first = x.keys ? part->kv_start : part->q_start,
            tokens = x.keys ? part->kv_len : part->q_len;
    uint64_t entry = x.keys ? part->kv_batch : part->batch,
             entries = x.keys ? part->kv_batches : part->batches;
    if (x.keys && plan->pools.compact)
        tokens = smaller(tokens, plan->pools.all[at->storage].tokens);
    if (x.keys && plan->pools.page) {
        first = 0;
        tokens = plan->pools.page;
        entry = 0;
        entries = (uint64_t)at->launch->pages;
    }
    return (tess_box){.address = start + entry * batch + (uint64_t)first * token,
                      .row_bytes = (uint64_t)x.row * x.item,
                      .count = {x.heads, (uint64_t)tokens, entries},
                      .stride = {(uint64_t)t->stride_head * x.item, token, batch}};
}

static bool of_keys(uint32_t role) {
    return role == TESS_ROLE_BLOCK_TABLE || tess_role_rows[role].tokens == TESS_TOKENS_KV;
}

/* Whether an element of a tensor that the jobs touch lies within `bytes`, one run of memory. Where
 * lengths differ, plan->touched leaves out some sequences, so each of them is looked at. That is
 * rare: callers see first whether the whole tensor reaches there. */
static bool touches(const tess_plan *plan, const place *at, uint32_t role, const tess_box *bytes) {
    const bool keys = of_keys(role), each = !plan->steps && !plan->equal_lengths;
    const uint32_t count = each ? plan->n_sequences : plan->n_touched;
    for (uint32_t n = 0; n < count; n++) {
        const tess_touched part = each ? tess_touched_by(plan, n) : plan->touched[n];
        if ((keys ? part.kv_len : part.q_len) == 0) continue;
        const tess_box box = box_of(plan, at, role, &part);
        if (tess_boxes_meet(&box, bytes)) return true;
    }
    return false;
}

/* Whether an element of tensor `a` lies within another, or within the bytes of `b`. Tensors that
 * are not given share nothing. */
static bool share_memory(const tess_plan *plan, const place *at, uint32_t a, uint32_t b) {
    const tess_launch *l = at->launch;
    const tess_tensor *s = &l->tensor[a], *t = &l->tensor[b];
    if (s->buffer.kind == TESS_BUFFER_OBJECT && s->buffer.handle != t->buffer.handle) return false;
    uint64_t from = place_of(&s->buffer), to = place_of(&t->buffer);
    if (l->bytes[a] == 0 || l->bytes[b] == 0 || from >= to + l->bytes[b] ||
        to >= from + l->bytes[a])
        return false;
    if (is_bytes(b)) {
        const tess_box bytes = box_of(plan, at, b, NULL);
        return touches(plan, at, a, &bytes);
    }
    const bool keys = of_keys(a) || of_keys(b), rows = !of_keys(a) || !of_keys(b);
    for (uint32_t n = 0; n < plan->n_touched; n++) {
        const tess_touched *part = &plan->touched[n];
        if ((keys && part->kv_len == 0) || (rows && part->q_len == 0)) continue;
        tess_box first = box_of(plan, at, a, part), second = box_of(plan, at, b, part);
        if (tess_boxes_meet(&first, &second)) return true;
    }
    return false;
}

/* Checks outputs against inputs and against each other. Parts of one buffer may alternate. */
static tess_status check_overlaps(const tess_plan *plan, const place *at) {
    for (uint32_t out = 0; out < TESS_ROLES_USED; out++) {
        if (!tess_role_written(out, plan->op)) continue;
        for (uint32_t other = 0; other < TESS_ROLES_USED; other++) {
            if (!tess_role_serves(other, plan->op)) continue;
            /* a pair is seen once */
            if (other >= out && tess_role_written(other, plan->op)) continue;
            char text[MOST_NAME];
            if (share_memory(plan, at, out, other))
                return tess_invalid(
                    "%s: %s: must not overlap %s, and elements of the two share memory", in_run,
                    tess_role_rows[out].name, name_of(plan, at, other, text));
        }
        if (share_memory(plan, at, out, TESS_ROLE_BLOCK_TABLE))
            return tess_invalid("%s: %s: must not overlap block_table", in_run,
                                tess_role_rows[out].name);
        if (share_memory(plan, at, out, TESS_ROLE_STEP))
            return tess_invalid("%s: %s: must not overlap step", in_run, tess_role_rows[out].name);
    }
    return TESS_OK;
}

/* Whether an element of a tensor lies within the workspace, which may lie between its rows. */
static bool is_in_workspace(const tess_plan *plan, const place *at, uint32_t role,
                            const tess_box *workspace) {
    const uint64_t from = place_of(&at->launch->tensor[role].buffer),
                   bytes = at->launch->bytes[role];
    if (from >= workspace->address + workspace->row_bytes || workspace->address >= from + bytes)
        return false;
    return touches(plan, at, role, workspace);
}

/* Kernels write the workspace while they read the inputs, and after they have written outputs. */
static tess_status check_beside_workspace(const tess_plan *plan, const place *at,
                                          const tess_buffer *w) {
    const tess_box box = {
        .address = place_of(w), .row_bytes = plan->memory.workspace_bytes, .count = {1, 1, 1}};
    if (w->kind != plan->device->caps.buffer_kind || box.row_bytes == 0) return TESS_OK;
    for (uint32_t role = 0; role < TESS_ROLES_USED; role++) {
        const tess_buffer *buffer = &at->launch->tensor[role].buffer;
        const bool table = role == TESS_ROLE_BLOCK_TABLE;
        char text[MOST_NAME];
        if (!(table || tess_role_serves(role, plan->op)) || at->launch->bytes[role] == 0) continue;
        if (w->kind == TESS_BUFFER_OBJECT && w->handle != buffer->handle) continue;
        if (is_in_workspace(plan, at, role, &box))
            return tess_invalid(
                "%s: workspace: must not overlap %s, and elements of the two share memory", in_run,
                table ? "block_table" : name_of(plan, at, role, text));
    }
    return TESS_OK;
}

/* ------------------------------------------------------------------ the cache */

/* The tensor of a role; of K and V, the storage group's. NULL: pools that are not there. */
static const tess_tensor *tensor_of(const tess_plan *plan, const tess_run_desc *d, uint32_t role,
                                    uint32_t storage) {
    const tess_tensor *pools = role == TESS_ROLE_K         ? d->k_pools
                               : role == TESS_ROLE_V       ? d->v_pools
                               : role == TESS_ROLE_K_SCALE ? d->k_scale_pools
                                                           : d->v_scale_pools;
    if (plan->pools.n == 1 || tess_role_rows[role].tokens != TESS_TOKENS_KV)
        return tess_role_tensor(d, role);
    return pools ? &pools[storage] : NULL;
}

/* `field` is k, v, or a scale of these, `pools` is k_pools and so on. */
static tess_status check_pools(const tess_plan *plan, const char *field, const tess_tensor *one,
                               const tess_tensor *pools) {
    if (plan->pools.n == 1) {
        if (!pools) return TESS_OK;
        return tess_invalid("%s: %s_pools: must be NULL, since the plan has one storage group",
                            in_run, field);
    }
    if (one->buffer.kind != TESS_BUFFER_NONE)
        return tess_invalid("%s: %s: must be of kind NONE, since each storage group has a pool in "
                            "%s_pools",
                            in_run, field, field);
    if (!pools && plan->kv_last >= 0)
        return tess_invalid("%s: %s_pools: must be given, since the plan has %u storage groups",
                            in_run, field, (unsigned)plan->pools.n);
    return TESS_OK;
}

/* `field` and its pools where K and V have no scales. */
static tess_status check_needless(const char *field, const tess_tensor *one,
                                  const tess_tensor *pools) {
    if (one->buffer.kind == TESS_BUFFER_NONE && !pools) return TESS_OK;
    return tess_invalid("%s: %s%s: must be %s, since the plan's kv_dtype has no scales", in_run,
                        field, pools ? "_pools" : "", pools ? "NULL" : "of kind NONE");
}

static tess_status check_all_pools(const tess_plan *plan, const tess_run_desc *d) {
    TESS_RETURN_IF_ERROR(check_pools(plan, "k", &d->k, d->k_pools));
    TESS_RETURN_IF_ERROR(check_pools(plan, "v", &d->v, d->v_pools));
    if (!tess_dtype_has_scales(plan->kv_dtype)) {
        TESS_RETURN_IF_ERROR(check_needless("k_scale", &d->k_scale, d->k_scale_pools));
        return check_needless("v_scale", &d->v_scale, d->v_scale_pools);
    }
    TESS_RETURN_IF_ERROR(check_pools(plan, "k_scale", &d->k_scale, d->k_scale_pools));
    return check_pools(plan, "v_scale", &d->v_scale, d->v_scale_pools);
}

static tess_block_table table_of(const tess_run_desc *d) {
    return (tess_block_table){d->block_table, d->table_stride, d->pages};
}

/* Checks K, V, their scales and the block table of a storage group and makes them the launch's. */
static tess_status take_group(const tess_plan *plan, const tess_run_desc *d, uint32_t storage,
                              tess_launch *l) {
    static const tess_tensor none;
    const place at = {l, storage};
    const uint32_t *roles, count = tess_key_roles(plan, &roles);
    for (uint32_t n = 0; n < count; n++) {
        const uint32_t role = roles[n];
        const tess_tensor *t = tensor_of(plan, d, role, storage);
        char text[MOST_NAME];
        l->tensor[role] = t ? *t : none;
        l->bytes[role] = 0;
        if (tess_role_optional(role, plan->op) && l->tensor[role].buffer.kind == TESS_BUFFER_NONE)
            continue;
        TESS_RETURN_IF_ERROR(check_tensor(plan, &at, name_of(plan, &at, role, text), role,
                                          &l->tensor[role], &l->bytes[role]));
    }
    const tess_block_table table = table_of(d);
    if (plan->pools.page) tess_block_table_take(plan, &table, storage, l);
    TESS_RETURN_IF_ERROR(check_overlaps(plan, &at));
    return check_beside_workspace(plan, &at, &d->workspace);
}

/* Checks every tensor of the operation. The launch gets those of the last storage group. */
static tess_status check_tensors(const tess_plan *plan, const tess_run_desc *d, tess_launch *l) {
    TESS_RETURN_IF_ERROR(check_all_pools(plan, d));
    const tess_block_table table = table_of(d);
    uint64_t table_bytes;
    TESS_RETURN_IF_ERROR(tess_block_table_check(in_run, plan, &table, &table_bytes));
    const place at = {l, 0};
    l->pages = d->pages;
    for (uint32_t role = 0; role < TESS_ROLES_USED; role++) {
        if (!tess_role_serves(role, plan->op) || tess_role_rows[role].tokens == TESS_TOKENS_KV)
            continue;
        const tess_tensor *t = tess_role_tensor(d, role);
        l->tensor[role] = *t;
        if (tess_role_optional(role, plan->op) && t->buffer.kind == TESS_BUFFER_NONE) continue;
        TESS_RETURN_IF_ERROR(
            check_tensor(plan, &at, tess_role_rows[role].name, role, t, &l->bytes[role]));
    }
    for (uint32_t s = 0; s < plan->pools.n; s++) TESS_RETURN_IF_ERROR(take_group(plan, d, s, l));
    return TESS_OK;
}

static tess_status check_workspace(const tess_plan *plan, const tess_buffer *workspace,
                                   const tess_buffer *step) {
    uint64_t bytes = plan->memory.workspace_bytes;
    if (bytes == 0) return TESS_OK;
    TESS_RETURN_IF_ERROR(tess_check_buffer(in_run, plan->device, "workspace", "", workspace,
                                           plan->memory.workspace_align));
    TESS_RETURN_IF_ERROR(tess_check_room(in_run, "workspace", "", workspace, bytes));
    if (plan->steps && tess_buffers_meet(workspace, bytes, step, plan->memory.step_bytes))
        return tess_invalid("%s: workspace: must not overlap step", in_run);
    return TESS_OK;
}

/* ------------------------------------------------------------------ the call */

static bool is_given(const tess_tensor *t) { return t->buffer.kind != TESS_BUFFER_NONE; }

static tess_status check_reserved(const tess_plan *plan, const tess_run_desc *d) {
    if (d->flags != 0)
        return tess_invalid("%s: flags: must be 0, got 0x%x", in_run, (unsigned)d->flags);
    const bool backward = plan->op == TESS_OP_BACKWARD;
    const char *unused = tess_role_later(d);
    if (unused)
        return tess_unsupported("%s: %s: must be of kind NONE in this version", in_run, unused);
    unused = tess_role_unused(d, plan->op);
    if (unused)
        return tess_invalid("%s: %s: must be of kind NONE for a %s plan", in_run, unused,
                            backward ? "backward" : "forward");
    if (backward && !is_given(&d->d_q) && !is_given(&d->d_k) && !is_given(&d->d_v))
        return tess_invalid("%s: d_q: one of d_q, d_k and d_v at least must be given", in_run);
    if (!plan->steps && d->step.kind != TESS_BUFFER_NONE)
        return tess_invalid(
            "%s: step: must be of kind NONE, since the plan has no TESS_PLAN_DEVICE_LENGTHS",
            in_run);
    TESS_RETURN_IF_ERROR(tess_check_stream(in_run, &d->stream));
    /* Its signals would come once for each of them. */
    if (d->stream.extra && plan->pools.n > 1)
        return tess_unsupported("%s: stream.extra: must be NULL for a plan with %u storage groups",
                                in_run, (unsigned)plan->pools.n);
    if (d->stream.extra && plan->n_shares > 1)
        return tess_unsupported("%s: stream.extra: must be NULL for a plan with %u kernels", in_run,
                                (unsigned)plan->n_shares);
    if (d->stream.extra && backward)
        return tess_unsupported("%s: stream.extra: must be NULL for a backward plan", in_run);
    return TESS_OK;
}

/* Splits the range of jobs and merges into one of each. In backward plans it is all jobs. */
static tess_status set_range(const tess_plan *plan, const tess_run_desc *d, tess_launch *launch) {
    const uint64_t total = tess_plan_jobs(plan), jobs = total - plan->memory.n_merges;
    if (d->first_job >= total)
        return tess_invalid("%s: first_job: must be less than %llu, got %llu", in_run,
                            (unsigned long long)total, (unsigned long long)d->first_job);
    if (d->job_count > total - d->first_job)
        return tess_invalid("%s: job_count: at most %llu from first_job on, got %llu", in_run,
                            (unsigned long long)(total - d->first_job),
                            (unsigned long long)d->job_count);
    uint64_t end = d->job_count ? d->first_job + d->job_count : total;
    launch->first_job = d->first_job < jobs ? d->first_job : jobs;
    launch->n_jobs = (end < jobs ? end : jobs) - launch->first_job;
    launch->first_merge = d->first_job > jobs ? d->first_job - jobs : 0;
    launch->n_merges = end > jobs ? end - jobs - launch->first_merge : 0;
    return TESS_OK;
}

/* A launch for each storage group that has jobs in the range; the merges come with the last group.
 */
static tess_status launch_groups(const tess_plan *plan, const tess_run_desc *d, uint32_t share,
                                 tess_launch *l) {
    const uint64_t begin = l->first_job, end = begin + l->n_jobs, merges = l->n_merges,
                   first = plan->shares[share].first_job;
    double sum = 0;
    for (uint32_t s = 0; s < plan->pools.n; s++) {
        const tess_pool *pool = &plan->pools.all[s];
        const uint64_t from = first + pool[0].first_job[share],
                       next = first + pool[1].first_job[share], to = next < end ? next : end;
        l->first_job = from > begin ? from : begin;
        l->n_jobs = l->first_job < to ? to - l->first_job : 0;
        l->n_merges = s + 1 < plan->pools.n ? 0 : merges;
        l->storage = s;
        if (l->n_jobs == 0 && l->n_merges == 0) continue;
        TESS_RETURN_IF_ERROR(take_group(plan, d, s, l));
        TESS_RETURN_IF_ERROR(tess_launch_on(plan->device, l));
        if (l->seconds) sum += *l->seconds;
    }
    if (l->seconds) *l->seconds = sum;
    return TESS_OK;
}

/* `n` jobs or merges from number `first` on. */
typedef struct span {
    uint64_t first, n;
} span;

static span common(span a, span b) {
    const uint64_t first = a.first > b.first ? a.first : b.first,
                   end = a.first + a.n < b.first + b.n ? a.first + a.n : b.first + b.n;
    return (span){first, first < end ? end - first : 0};
}

/* A launch for each kernel that has jobs or merges in the range, or one for each storage group. */
static tess_status launch_shares(const tess_plan *plan, const tess_run_desc *d, tess_launch *l) {
    const span jobs = {l->first_job, l->n_jobs}, merges = {l->first_merge, l->n_merges};
    const tess_tables *tables = l->tables;
    tess_tables own_tables;
    double sum = 0;
    for (uint32_t n = 0; n < plan->n_shares; n++) {
        const tess_share *share = &plan->shares[n];
        const span own = common(jobs, (span){share->first_job, share->n_jobs}),
                   own_merges = common(merges, (span){share->first_merge, share->n_merges});
        if (own.n == 0 && own_merges.n == 0) continue;
        l->first_job = own.first;
        l->n_jobs = own.n;
        l->first_merge = own_merges.first;
        l->n_merges = own_merges.n;
        l->kernel = &share->kernel;
        l->partials_at = plan->memory.partials[n].at;
        l->partial_rows = (uint32_t)plan->memory.partials[n].rows;
        if (plan->steps && n > 0) {
            own_tables = *tables;
            tess_step_of_share(plan, n, &own_tables);
            l->tables = &own_tables;
        }
        TESS_RETURN_IF_ERROR(plan->pools.n > 1 ? launch_groups(plan, d, n, l)
                                               : tess_launch_on(plan->device, l));
        if (l->seconds) sum += *l->seconds;
    }
    if (l->seconds) *l->seconds = sum;
    return TESS_OK;
}

/* Whether a stage of a backward plan has something to do for the gradients that are wanted. */
static bool is_needed(const tess_plan *plan, const tess_launch *l, uint32_t stage) {
    const bool rows = is_given(&l->tensor[TESS_ROLE_D_Q]),
               keys = is_given(&l->tensor[TESS_ROLE_D_K]) || is_given(&l->tensor[TESS_ROLE_D_V]),
               two_passes = plan->shares[0].kernel.stages & TESS_STAGE_ROWS;
    if (stage == TESS_STAGE_ROWS || stage == TESS_STAGE_FINISH) return rows;
    return stage != TESS_STAGE_COLUMNS || keys || !two_passes;
}

/* A launch for each stage that has jobs in the range. */
static tess_status launch_stages(const tess_plan *plan, tess_launch *l) {
    const span jobs = {l->first_job, l->n_jobs};
    double sum = 0;
    l->gradients = plan->flags & TESS_PLAN_GRADIENTS;
    l->n_strips = (uint32_t)plan->memory.n_strips;
    l->n_columns = (uint32_t)plan->memory.n_columns;
    l->strips_at = plan->memory.strips_at;
    l->column_parts = plan->column_parts;
    l->sums_at = plan->memory.sums_at;
    l->n_sums = plan->memory.n_sums;
    l->n_cut_columns = plan->n_cut_columns;
    uint64_t first = 0;
    for (uint32_t n = 0; n < TESS_STAGES; n++) {
        const span own = common(jobs, (span){first, tess_plan_stage(plan, n)});
        l->stage = 1u << n;
        l->first_job = own.first - first;
        l->n_jobs = own.n;
        first += tess_plan_stage(plan, n);
        if (own.n == 0 || !is_needed(plan, l, l->stage)) continue;
        TESS_RETURN_IF_ERROR(tess_launch_on(plan->device, l));
        if (l->seconds) sum += *l->seconds;
    }
    if (l->seconds) *l->seconds = sum;
    return TESS_OK;
}

tess_status tess_run(const tess_plan *plan, const tess_run_desc *desc) {
    tess_run_desc d;
    tess_launch launch;
    tess_tables of_step;
    TESS_RETURN_IF_ERROR(tess_call_on_plan(in_run, plan, desc, &d, TESS_RUN_DESC));
    TESS_RETURN_IF_ERROR(check_reserved(plan, &d));
    if (tess_plan_jobs(plan) == 0) {
        if (d.device_seconds) *d.device_seconds = 0;
        return TESS_OK;
    }
    tess_launch_of_plan(plan, &plan->shares[0].kernel, &d.stream, &launch);
    TESS_RETURN_IF_ERROR(set_range(plan, &d, &launch));
    if (plan->steps) {
        TESS_RETURN_IF_ERROR(tess_step_tables(in_run, plan, &d.step, &of_step));
        launch.tables = &of_step;
        launch.tensor[TESS_ROLE_STEP].buffer = d.step;
        launch.bytes[TESS_ROLE_STEP] = plan->memory.step_bytes;
    }
    TESS_RETURN_IF_ERROR(check_tensors(plan, &d, &launch));
    TESS_RETURN_IF_ERROR(check_workspace(plan, &d.workspace, &d.step));
    launch.scale = plan->scale;
    launch.workspace = d.workspace;
    launch.workspace_bytes = plan->memory.workspace_bytes;
    launch.kv_batch = plan->kv_packed && !tess_pools_cached(&plan->pools) ? 0 : plan->batch;
    launch.seconds = d.device_seconds;
    return plan->op == TESS_OP_BACKWARD ? launch_stages(plan, &launch)
                                        : launch_shares(plan, &d, &launch);
}
