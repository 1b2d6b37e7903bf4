/* SPDX-License-Identifier: Apache-2.0 */
/* Preparing a step: the buffers are checked, and the backend's kernel turns lengths into jobs. And
 * the tables of a step, for what uses it. Nothing here allocates. */
#include "launch.h"
#include "step.h"
#include "tensors.h"

static const char *const in_prepare = "tess_prepare";

static tess_status check_desc(const tess_plan *plan, const tess_prepare_desc *d) {
    if (!plan->steps)
        return tess_invalid("%s: plan: it was made without TESS_PLAN_DEVICE_LENGTHS", in_prepare);
    if (d->batch > plan->batch)
        return tess_invalid("%s: batch: must be at most the plan's (%u), got %u", in_prepare,
                            (unsigned)plan->batch, (unsigned)d->batch);
    if (d->kv_first.kind != TESS_BUFFER_NONE && !(plan->flags & TESS_PLAN_DEVICE_PARTS))
        return tess_invalid("%s: kv_first: must be of kind NONE, since the plan was made without "
                            "TESS_PLAN_DEVICE_PARTS",
                            in_prepare);
    return tess_check_stream(in_prepare, &d->stream);
}

/* Checks one buffer of `bytes` and gives it its place in the launch. */
static tess_status take(const tess_plan *plan, const char *name, const tess_buffer *buffer,
                        uint64_t align, uint64_t bytes, uint32_t role, tess_launch *l) {
    if (bytes == 0) return TESS_OK;
    TESS_RETURN_IF_ERROR(tess_check_buffer(in_prepare, plan->device, name, "", buffer, align));
    TESS_RETURN_IF_ERROR(tess_check_room(in_prepare, name, "", buffer, bytes));
    l->tensor[role].buffer = *buffer;
    l->bytes[role] = bytes;
    return TESS_OK;
}

static tess_status check_apart(const tess_launch *l, const char *name, uint32_t role) {
    if (!tess_buffers_meet(&l->tensor[TESS_ROLE_STEP].buffer, l->bytes[TESS_ROLE_STEP],
                           &l->tensor[role].buffer, l->bytes[role]))
        return TESS_OK;
    return tess_invalid("%s: step: must not overlap %s", in_prepare, name);
}

tess_status tess_prepare(const tess_plan *plan, const tess_prepare_desc *desc) {
    tess_prepare_desc d;
    tess_launch launch;
    TESS_RETURN_IF_ERROR(tess_call_on_plan(in_prepare, plan, desc, &d, TESS_PREPARE_DESC));
    TESS_RETURN_IF_ERROR(check_desc(plan, &d));
    tess_launch_of_plan(plan, &plan->prepare, &d.stream, &launch);
    launch.op = TESS_OP_PREPARE;
    launch.batch = d.batch;
    launch.n_jobs = (uint64_t)plan->pools.n * plan->n_shares;
    const uint64_t word = sizeof(int32_t), cu_bytes = d.batch ? word * (d.batch + UINT64_C(1)) : 0;
    TESS_RETURN_IF_ERROR(
        take(plan, "cu_rows", &d.cu_rows, word, cu_bytes, TESS_ROLE_CU_ROWS, &launch));
    TESS_RETURN_IF_ERROR(
        take(plan, "kv_lens", &d.kv_lens, word, word * d.batch, TESS_ROLE_KV_LENS, &launch));
    if (d.q_first.kind != TESS_BUFFER_NONE)
        TESS_RETURN_IF_ERROR(
            take(plan, "q_first", &d.q_first, word, word * d.batch, TESS_ROLE_Q_FIRST, &launch));
    if (d.kv_first.kind != TESS_BUFFER_NONE)
        TESS_RETURN_IF_ERROR(
            take(plan, "kv_first", &d.kv_first, word, word * d.batch, TESS_ROLE_KV_FIRST, &launch));
    TESS_RETURN_IF_ERROR(take(plan, "step", &d.step, TESS_STEP_HEAD_BYTES, plan->memory.step_bytes,
                              TESS_ROLE_STEP, &launch));
    TESS_RETURN_IF_ERROR(check_apart(&launch, "cu_rows", TESS_ROLE_CU_ROWS));
    TESS_RETURN_IF_ERROR(check_apart(&launch, "kv_lens", TESS_ROLE_KV_LENS));
    TESS_RETURN_IF_ERROR(check_apart(&launch, "q_first", TESS_ROLE_Q_FIRST));
    TESS_RETURN_IF_ERROR(check_apart(&launch, "kv_first", TESS_ROLE_KV_FIRST));
    return tess_launch_on(plan->device, &launch);
}

/* ------------------------------------------------------------------ using a step */

tess_status tess_step_tables(const char *function, const tess_plan *plan, const tess_buffer *step,
                             tess_tables *t) {
    const tess_memory_plan *memory = &plan->memory;
    TESS_RETURN_IF_ERROR(
        tess_check_buffer(function, plan->device, "step", "", step, TESS_STEP_HEAD_BYTES));
    TESS_RETURN_IF_ERROR(tess_check_room(function, "step", "", step, memory->step_bytes));
    *t = plan->tables;
    t->has_step = 1;
    if (plan->device->caps.host_memory) {
        const char *base = (const char *)(uintptr_t)(step->handle + step->offset);
        t->step = (const tess_step_head *)(const void *)base;
        t->sequences = (const tess_sequence *)(const void *)(base + t->sequences_at);
        t->jobs = (const tess_job *)(const void *)(base + t->jobs_at);
        t->merges = (const tess_merge *)(const void *)(base + t->merges_at);
        t->step_ends = (const uint32_t *)(const void *)(base + t->step_ends_at);
        for (uint32_t n = 0; n < plan->n_shares; n++) {
            const char *head = base + (size_t)n * TESS_STEP_HEAD_BYTES;
            if (((const tess_step_head *)(const void *)head)->plan != t->step_plan->id)
                return tess_invalid("%s: step: tess_prepare has not written it for this plan",
                                    function);
        }
        return TESS_OK;
    }
    /* An offset within a buffer object becomes one of the tables. */
    const uint64_t at = step->kind == TESS_BUFFER_OBJECT ? step->offset : 0;
    t->device = *step;
    t->device.offset -= at;
    t->device.size = step->offset + memory->step_bytes;
    t->step_at = at;
    t->sequences_at += at;
    t->jobs_at += at;
    t->merges_at += at;
    t->step_ends_at += at;
    t->classes_at += at + memory->copy_at;
    t->entries_at += at + memory->copy_at;
    t->bits_at += at + memory->copy_at;
    t->slots_at += at + memory->copy_at;
    t->kv_heads_at += at + memory->copy_at;
    return TESS_OK;
}

void tess_step_of_share(const tess_plan *plan, uint32_t n, tess_tables *t) {
    const uint64_t ends = (uint64_t)n * plan->pools.n;
    t->step_at += (uint64_t)n * TESS_STEP_HEAD_BYTES;
    t->step_ends_at += ends * sizeof *t->step_ends;
    if (!t->step) return;
    t->step = (const tess_step_head *)(const void *)((const char *)t->step +
                                                     (size_t)n * TESS_STEP_HEAD_BYTES);
    t->step_ends += ends;
}
