/* SPDX-License-Identifier: Apache-2.0 */
#include "memory_plan.h"

#include "checked.h"
#include "step.h"

enum {
    TABLE_ALIGN = 256,
    /* the tess_step_plan is as large as so many of the runs that follow it */
    STEP_PLAN_RUNS = sizeof(tess_step_plan) / sizeof(tess_step_run)
};
_Static_assert(STEP_PLAN_RUNS * sizeof(tess_step_run) == sizeof(tess_step_plan), "whole runs");
_Static_assert(sizeof(tess_step_group) == sizeof(tess_step_run), "groups follow the runs");
_Static_assert((int)TABLE_ALIGN == (int)TESS_STEP_HEAD_BYTES, "sequences follow the head");

/* Gives `count` items of `size` bytes the next aligned place. */
static bool settle(uint64_t *end, uint64_t count, uint64_t size, uint64_t *at) {
    uint64_t bytes;
    *at = *end;
    return checked_mul(count, size, &bytes) && checked_add(*end, bytes, end) &&
           checked_align(*end, TABLE_ALIGN, end);
}

/* A partial has `rows` rows of O, then as many row_max and row_sum. */
static bool settle_partials(tess_memory_plan *memory, tess_partials *partials) {
    uint64_t floats, bytes;
    partials->at = memory->workspace_bytes;
    if (partials->n == 0) return true;
    return checked_align(memory->workspace_bytes, memory->workspace_align, &partials->at) &&
           checked_mul(partials->rows, memory->value_head_dim + 2, &floats) &&
           checked_mul(floats, sizeof(float), &bytes) && checked_mul(bytes, partials->n, &bytes) &&
           checked_add(partials->at, bytes, &memory->workspace_bytes);
}

/* `count` items of `size` bytes behind what the workspace has already. */
static bool settle_behind(tess_memory_plan *memory, uint64_t count, uint64_t size, uint64_t *at) {
    uint64_t bytes;
    *at = memory->workspace_bytes;
    if (count == 0) return true;
    return checked_align(memory->workspace_bytes, memory->workspace_align, at) &&
           checked_mul(count, size, &bytes) && checked_add(*at, bytes, &memory->workspace_bytes);
}

/* Each query head has strip_bytes of every strip; then what columns with the same keys add up. */
static bool settle_gradients(tess_memory_plan *memory) {
    uint64_t strips;
    return checked_mul(memory->n_strips, memory->n_strip_heads, &strips) &&
           settle_behind(memory, strips, memory->strip_bytes, &memory->strips_at) &&
           settle_behind(memory, memory->n_sums, memory->sum_bytes, &memory->sums_at);
}

bool tess_memory_settle(tess_memory_plan *memory, tess_tables *t, void *base) {
    uint64_t end = 0, step_end = memory->n_step_plans * TABLE_ALIGN;
    const bool steps = memory->n_step_runs != 0;
    const uint64_t behind = STEP_PLAN_RUNS + memory->n_step_runs + memory->n_step_groups;
    uint64_t *const varying = steps ? &step_end : &end;
    bool fits = settle(varying, memory->n_sequences, sizeof *t->sequences, &t->sequences_at) &&
                settle(&end, memory->n_classes, sizeof *t->classes, &t->classes_at) &&
                settle(varying, memory->n_jobs, sizeof *t->jobs, &t->jobs_at) &&
                settle(varying, memory->n_merges, sizeof *t->merges, &t->merges_at) &&
                settle(varying, memory->n_step_plans * memory->n_step_groups, sizeof *t->step_ends,
                       &t->step_ends_at) &&
                settle(&end, memory->n_entries, sizeof *t->entries, &t->entries_at) &&
                settle(&end, memory->n_bits, sizeof *t->bits, &t->bits_at) &&
                settle(&end, memory->n_slots, sizeof *t->slots, &t->slots_at) &&
                settle(&end, memory->n_kv_heads, sizeof *t->kv_heads, &t->kv_heads_at) &&
                settle(&end, memory->n_columns, sizeof *t->columns, &t->columns_at) &&
                settle(&end, memory->n_segments, sizeof *t->segments, &t->segments_at) &&
                settle(&end, memory->n_strips, sizeof *t->strips, &t->strips_at) &&
                settle(&end, memory->n_first_strips, sizeof *t->first_strips, &t->first_strips_at);
    memory->copy_bytes = memory->copy_at = memory->step_bytes = t->step_plan_at = 0;
    if (steps) {
        t->n_step_plans = (uint32_t)memory->n_step_plans;
        t->step_plan_bytes = behind * sizeof(tess_step_run);
        fits = fits &&
               settle(&end, memory->n_step_plans * behind, sizeof(tess_step_run), &t->step_plan_at);
        memory->copy_bytes = end;
        fits = fits && settle(&step_end, end, 1, &memory->copy_at);
        memory->step_bytes = step_end;
    }
    t->struct_size = sizeof *t;
    if (base) {
        char *place = base;
        t->step_plan = steps ? (const tess_step_plan *)(place + t->step_plan_at) : NULL;
        t->sequences = steps ? NULL : (const tess_sequence *)(place + t->sequences_at);
        t->classes = (const tess_class *)(place + t->classes_at);
        t->jobs = steps ? NULL : (const tess_job *)(place + t->jobs_at);
        t->merges = steps ? NULL : (const tess_merge *)(place + t->merges_at);
        t->entries = (const uint32_t *)(place + t->entries_at);
        t->bits = (const uint32_t *)(place + t->bits_at);
        t->slots = (const tess_slot *)(place + t->slots_at);
        t->kv_heads = (const tess_kv_head *)(place + t->kv_heads_at);
        t->columns = (const tess_column *)(place + t->columns_at);
        t->segments = (const tess_segment *)(place + t->segments_at);
        t->strips = (const tess_strip *)(place + t->strips_at);
        t->first_strips = (const uint32_t *)(place + t->first_strips_at);
    }
    memory->table_bytes = end;
    memory->workspace_bytes = memory->scratch_bytes;
    fits = fits && settle_gradients(memory);
    for (uint32_t n = 0; n < TESS_SHARES; n++)
        fits = fits && settle_partials(memory, &memory->partials[n]);
    return fits;
}
