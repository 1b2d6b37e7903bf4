/* SPDX-License-Identifier: Apache-2.0 */
#include "plan.h"

#include <math.h>
#include <string.h>
#include <time.h>

#include "backward.h"
#include "choose.h"
#include "kv_slots.h"
#include "spare.h"
#include "split.h"
#include "step.h"
#include "tensors.h"

static const char *const in_create = "tess_plan_create";

enum {
    SECTION_JOBS = 4 /* for each job that the device runs at a time */
};

/* ------------------------------------------------------------------ checks */

/* Fields that later versions will give a meaning to. */
static tess_status check_later(const tess_plan_desc *d) {
    if (d->kv_dtype > TESS_I8)
        return tess_invalid("%s: kv_dtype: %u is no tess_dtype", in_create, (unsigned)d->kv_dtype);
    if (d->kv_dtype != 0 && d->kv_dtype != d->dtype && !tess_dtype_has_scales(d->kv_dtype))
        return tess_unsupported("%s: kv_dtype: must be dtype (%u), TESS_F8E4M3 or TESS_I8, got %u",
                                in_create, (unsigned)d->dtype, (unsigned)d->kv_dtype);
    return TESS_OK;
}

static tess_status check_numbers(const tess_plan_desc *d) {
    const uint32_t known = TESS_PLAN_BATCH_INVARIANT | TESS_PLAN_DEVICE_LENGTHS |
                           TESS_PLAN_COMPACT | TESS_PLAN_APPEND | TESS_PLAN_GRADIENTS |
                           TESS_PLAN_TRUST_DEVICE | TESS_PLAN_DEVICE_PARTS;
    if (d->flags & ~known)
        return tess_invalid("%s: flags: unknown bits 0x%x", in_create, (unsigned)d->flags);
    if ((d->flags & TESS_PLAN_DEVICE_PARTS) && !(d->flags & TESS_PLAN_DEVICE_LENGTHS))
        return tess_invalid("%s: flags: TESS_PLAN_DEVICE_PARTS needs TESS_PLAN_DEVICE_LENGTHS",
                            in_create);
    if (d->op > TESS_OP_BACKWARD)
        return tess_invalid("%s: op: %u is no tess_op of plans", in_create, (unsigned)d->op);
    if (d->dtype > TESS_BF16)
        return tess_invalid("%s: dtype: %u is no tess_dtype of Q and O", in_create,
                            (unsigned)d->dtype);
    if (d->head_dim < 1)
        return tess_invalid("%s: head_dim: must be at least 1, got %d", in_create,
                            (int)d->head_dim);
    if (d->head_dim % 8 != 0 || d->head_dim > 256)
        return tess_unsupported("%s: head_dim: must be a multiple of 8 from 8 to 256, got %d",
                                in_create, (int)d->head_dim);
    if (d->value_head_dim < 0)
        return tess_invalid("%s: value_head_dim: must be at least 0, got %d", in_create,
                            (int)d->value_head_dim);
    if (d->value_head_dim != 0 && d->value_head_dim != d->head_dim)
        return tess_unsupported("%s: value_head_dim: must be head_dim (%d) in this version, got %d",
                                in_create, (int)d->head_dim, (int)d->value_head_dim);
    if (!isfinite(d->scale)) return tess_invalid("%s: scale: must be finite", in_create);
    if (d->scale != 0 && (fabsf(d->scale) < 0x1p-120f || fabsf(d->scale) > 0x1p120f))
        return tess_unsupported(
            "%s: scale: must be 0 or between 2^-120 and 2^120 in magnitude, got %g", in_create,
            (double)d->scale);
    if (!isfinite(d->softcap)) return tess_invalid("%s: softcap: must be finite", in_create);
    if (d->softcap != 0)
        return tess_unsupported("%s: softcap: must be 0 in this version", in_create);
    if (d->kv_split < 0)
        return tess_invalid("%s: kv_split: must be at least 0, got %d", in_create,
                            (int)d->kv_split);
    if (d->tile_rows < 0)
        return tess_invalid("%s: tile_rows: must be at least 0, got %d", in_create,
                            (int)d->tile_rows);
    TESS_RETURN_IF_ERROR(tess_backward_check(d));
    return check_later(d);
}

static tess_status check_page(const tess_plan_desc *d) {
    switch (d->page) {
    case 0:
    case 16:
    case 32:
    case 64:
    case 128:
    case 256: return TESS_OK;
    default:
        return tess_invalid("%s: page: must be 0, 16, 32, 64, 128 or 256, got %d", in_create,
                            (int)d->page);
    }
}

/* ------------------------------------------------------------------ jobs and tables */

/* The partial results of a plan or a step that decides by itself fit 24 MiB, together with a GPU
 * kernel's few words of scratch memory and alignment. That of a CPU grows with its threads. It does
 * not count, or results would have other bits with another number of threads. */
#define MOST_PARTIAL_BYTES ((UINT64_C(24) << 20) - 4352)

/* The kernel for the longest sequences, whose partial results have most rows, gets half of it. */
static uint64_t partial_bytes_of(const tess_plan *plan, const tess_share *share) {
    const uint64_t others = plan->n_shares - 1, is_last = share == &plan->shares[others];
    return MOST_PARTIAL_BYTES / (others == 0 ? 1 : is_last ? 2 : 2 * others);
}

static tess_split_model split_model(const tess_plan *plan, const tess_share *share) {
    const uint32_t block = (uint32_t)plan->layout->pattern.block;
    return (tess_split_model){
        .costs = tess_split_costs(&share->kernel.costs, plan->device->caps.parallel_jobs),
        .block = block,
        .block_bytes = 2 * block * tess_plan_key_bytes(plan),
        .row_bytes = ((uint64_t)plan->head_dim + 2) * sizeof(float),
        .partial_bytes = partial_bytes_of(plan, share)};
}

static tess_status count_jobs(const tess_plan *plan, const tess_share *share,
                              const tess_plan_desc *d, int32_t kv_split, tess_jobs *jobs) {
    const tess_device *device = plan->device;
    const tess_split_model model = split_model(plan, share);
    tess_split_choice choice;
    TESS_RETURN_IF_ERROR(tess_split_count(
        &model, kv_split, (d->flags & TESS_PLAN_BATCH_INVARIANT) != 0, jobs, &choice));
    if (choice.candidates == 0 || !tess_log_wanted(device->runtime, "plan")) return TESS_OK;
    if (choice.length == 0)
        tess_log(device->runtime, "plan",
                 "split: none, %.1f us on %u workers is the least of %u candidates",
                 1e-3 * choice.ns, (unsigned)model.costs.workers, (unsigned)choice.candidates);
    else
        tess_log(device->runtime, "plan",
                 "split: parts of %u key blocks, %.1f us on %u workers is the least of %u "
                 "candidates; unsplit %.1f us",
                 (unsigned)choice.length, 1e-3 * choice.ns, (unsigned)model.costs.workers,
                 (unsigned)choice.candidates, 1e-3 * choice.unsplit_ns);
    return TESS_OK;
}

/* How many key blocks fit half of the device's cache; 0 where there are so few jobs that longest
 * first balances better. */
static uint64_t section_blocks(const tess_plan *plan, const tess_jobs *jobs) {
    const tess_caps *caps = &plan->device->caps;
    if (caps->cache_bytes == 0 || jobs->n_jobs < SECTION_JOBS * (uint64_t)caps->parallel_jobs)
        return 0;
    const uint64_t block = 2 * (uint64_t)plan->layout->pattern.block * tess_plan_key_bytes(plan);
    const uint64_t blocks = caps->cache_bytes / 2 / block;
    return blocks ? blocks : 1;
}

/* The most key blocks of one range of tess_plan_range; 0: no limit. */
static uint64_t range_limit(const tess_plan *plan, const tess_plan_desc *d) {
    const tess_caps *caps = &plan->device->caps;
    if (d->time_limit_us == 0 || caps->steps_per_second == 0) return caps->range_blocks;
    double blocks = (double)d->time_limit_us * 1e-6 * (double)caps->steps_per_second;
    return blocks < 1 ? 1 : blocks > 1e18 ? (uint64_t)1e18 : (uint64_t)blocks;
}

static uint64_t cost_of(const void *context, uint64_t n) {
    const tess_plan *plan = context;
    if (plan->op == TESS_OP_BACKWARD) return tess_backward_steps(plan, n);
    const uint64_t n_jobs = plan->memory.n_jobs;
    return n < n_jobs ? tess_job_blocks(&plan->tables.jobs[n])
                      : plan->tables.merges[n - n_jobs].parts;
}

static tess_status find_ranges(tess_plan *plan, uint64_t limit) {
    const uint64_t total = tess_plan_jobs(plan);
    plan->n_ranges = total ? 1 : 0;
    if (limit == 0 || plan->n_ranges == 0) return TESS_OK;
    /* Mostly there are few, and one walk over the jobs is enough. */
    uint64_t few[64];
    const uint64_t room = sizeof few / sizeof *few,
                   n = tess_jobs_ranges(cost_of, plan, total, limit, few, room);
    if (n == 1) return TESS_OK;
    size_t bytes = (size_t)(n + 1) * sizeof *plan->range_start;
    plan->range_start = tess_mem_alloc(plan->device->runtime, bytes, 64);
    if (!plan->range_start)
        return tess_fail(TESS_ERROR_OUT_OF_MEMORY, "%s: no memory for %llu ranges", in_create,
                         (unsigned long long)n);
    plan->host_bytes += bytes;
    plan->n_ranges = n;
    if (n < room)
        memcpy(plan->range_start, few, bytes);
    else
        (void)tess_jobs_ranges(cost_of, plan, total, limit, plan->range_start, n + 1);
    return TESS_OK;
}

/* The host's tables. Where the device reads them they live as long as the plan. */
static void free_tables(tess_plan *plan) {
    tess_runtime *runtime = plan->device->runtime;
    const size_t bytes = (size_t)plan->memory.table_bytes;
    if (plan->device->caps.host_memory)
        tess_mem_free(runtime, plan->table_memory, bytes);
    else
        tess_spare_give(runtime, plan->table_memory, bytes);
}

/* Moves the tables to the device and frees the host's copy. */
static tess_status upload(tess_plan *plan) {
    tess_device *device = plan->device;
    uint64_t bytes = plan->memory.table_bytes;
    tess_status status =
        tess_device_result(device, tess_table_take(device, bytes, &plan->tables.device));
    if (status != TESS_OK) {
        memset(&plan->tables.device, 0, sizeof plan->tables.device);
        return status;
    }
    status = tess_device_result(
        device, device->backend->copy(device->native, plan->tables.device,
                                      tess_host_buffer(plan->table_memory, bytes), bytes));
    free_tables(plan);
    plan->table_memory = NULL;
    plan->host_bytes -= bytes;
    plan->tables.sequences = NULL;
    plan->tables.classes = NULL;
    plan->tables.jobs = NULL;
    plan->tables.merges = NULL;
    plan->tables.entries = plan->tables.bits = NULL;
    plan->tables.slots = NULL;
    plan->tables.kv_heads = NULL;
    plan->tables.columns = NULL;
    plan->tables.segments = NULL;
    plan->tables.strips = NULL;
    plan->tables.first_strips = NULL;
    plan->tables.step_plan = NULL;
    return status;
}

/* The memory plan sizes and places the tables; those that no length changes are filled here. The
 * numbers of sequences, jobs, merges, partial results, columns and strips are set. `columns` have
 * `more` entries beside those of the jobs. */
static tess_status place_tables(tess_plan *plan, const tess_jobs *jobs, uint64_t more) {
    tess_runtime *runtime = plan->device->runtime;
    const tess_layout *layout = plan->layout;
    tess_memory_plan *memory = &plan->memory;
    uint64_t align = plan->device->caps.workspace_align;
    memory->n_classes = layout->n_classes;
    memory->n_entries = jobs->tiler->n_entries + more;
    memory->n_bits = layout->pattern.kind == TESS_PATTERN_BLOCKS ? memory->n_entries : 0;
    if (plan->pools.compact) {
        memory->n_slots = plan->pools.n_slots;
        memory->n_kv_heads = (uint64_t)layout->n_kv_heads;
    }
    /* Kernels run one after the other. */
    for (uint32_t n = 0; n < plan->n_shares && tess_plan_jobs(plan); n++) {
        const uint64_t scratch = plan->shares[n].kernel.scratch_bytes;
        if (scratch > memory->scratch_bytes) memory->scratch_bytes = scratch;
    }
    memory->value_head_dim = (uint64_t)plan->head_dim;
    memory->workspace_align = align < 64 ? 64 : align;
    if (!tess_memory_settle(memory, &plan->tables, NULL) || memory->table_bytes > SIZE_MAX ||
        memory->workspace_bytes > INT64_MAX)
        return tess_unsupported("%s: batch: its tables or its workspace do not fit 64-bit sizes",
                                in_create);
    plan->table_memory = plan->device->caps.host_memory
                             ? tess_mem_alloc(runtime, (size_t)memory->table_bytes, 256)
                             : tess_spare_take(runtime, (size_t)memory->table_bytes);
    if (!plan->table_memory)
        return tess_fail(TESS_ERROR_OUT_OF_MEMORY, "%s: no memory for tables of %llu bytes",
                         in_create, (unsigned long long)memory->table_bytes);
    plan->host_bytes += memory->table_bytes;
    tess_memory_settle(memory, &plan->tables, plan->table_memory);
    plan->tables.list_step = (uint32_t)jobs->grid.stride;
    tess_class *classes = (tess_class *)plan->tables.classes;
    for (uint32_t c = 0; c < layout->n_classes; c++) tess_tiler_class(jobs->tiler, c, &classes[c]);
    tess_tiler_entries(jobs->tiler, (uint32_t *)plan->tables.entries,
                       (uint32_t *)plan->tables.bits);
    if (plan->pools.compact) {
        memcpy((void *)plan->tables.kv_heads, plan->pools.kv_heads,
               (size_t)memory->n_kv_heads * sizeof *plan->tables.kv_heads);
        tess_kv_slots_fill(layout, plan->pools.phases, plan->pools.n_phases, plan->pools.n_blocks,
                           (tess_slot *)plan->tables.slots);
    }
    return TESS_OK;
}

/* The sequences as kernels see them: by slot and for tess_append, parts say where they begin. */
static void place_sequences(const tess_plan *plan) {
    tess_sequence *to = (tess_sequence *)plan->tables.sequences;
    if (plan->n_sequences == 0) return;
    memcpy(to, plan->sequences, (size_t)plan->sequences_bytes);
    for (uint32_t n = 0; n < plan->n_sequences && plan->first_block; n++) {
        const uint32_t first = plan->first_block[n];
        if (plan->pools.compact)
            to[n].kv_start = tess_pools_kv_start(&plan->pools, plan->layout, first);
        if (plan->flags & TESS_PLAN_APPEND) to[n].flags = TESS_SEQUENCE_FIRST(first);
    }
}

/* An even number of rows, so that each partial starts on 16 bytes. */
static tess_partials partials_of(uint64_t n, uint32_t rows) {
    return (tess_partials){.n = n, .rows = rows + rows % 2};
}

/* `jobs`: those of each share; `columns`: of a backward plan, else zero. */
static tess_status make_tables(tess_plan *plan, const tess_plan_desc *d, tess_jobs *jobs,
                               tess_columns *columns) {
    tess_memory_plan *memory = &plan->memory;
    memory->n_sequences = plan->n_sequences;
    for (uint32_t n = 0; n < plan->n_shares; n++) {
        tess_share *share = &plan->shares[n];
        share->first_job = memory->n_jobs;
        share->first_merge = memory->n_merges;
        share->n_jobs = jobs[n].n_jobs;
        share->n_merges = jobs[n].n_merges;
        memory->n_jobs += share->n_jobs;
        memory->n_merges += share->n_merges;
        memory->partials[n] = partials_of(jobs[n].n_partials, jobs[n].partial_rows);
    }
    TESS_RETURN_IF_ERROR(place_tables(plan, jobs, columns->n_entries));
    place_sequences(plan);
    for (uint32_t n = 0; n < plan->n_shares; n++) {
        jobs[n].section_blocks = section_blocks(plan, &jobs[n]);
        tess_jobs_place(&jobs[n], (tess_job *)plan->tables.jobs + plan->shares[n].first_job,
                        (tess_merge *)plan->tables.merges + plan->shares[n].first_merge);
    }
    if (plan->op == TESS_OP_BACKWARD) tess_backward_place(plan, columns);
    TESS_RETURN_IF_ERROR(find_ranges(plan, range_limit(plan, d)));
    return plan->device->caps.host_memory ? TESS_OK : upload(plan);
}

/* Begins the jobs of share n, beside those of the first one. */
static tess_status begin_jobs(tess_plan *plan, uint32_t n, const tess_sequence *sequences,
                              uint32_t n_sequences, tess_jobs *all) {
    const tess_share *share = &plan->shares[n];
    tess_jobs *jobs = &all[n];
    const uint32_t pack_rows = share->kernel.pack_rows;
    TESS_RETURN_IF_ERROR(n == 0
                             ? tess_jobs_create(jobs, plan->device->runtime, plan->layout,
                                                sequences, n_sequences, share->tile_rows, pack_rows)
                             : tess_jobs_create_beside(jobs, all, share->tile_rows, pack_rows));
    jobs->share = n;
    jobs->q_above = share->above;
    jobs->q_most = share->most;
    jobs->first_block = plan->first_block;
    tess_jobs_group(jobs, &plan->pools);
    if (!(plan->flags & TESS_PLAN_BATCH_INVARIANT))
        tess_grid_count_from_end(&jobs->grid, plan->layout, share->tile_rows);
    return TESS_OK;
}

static tess_status cut_jobs(tess_plan *plan, uint32_t n, const tess_plan_desc *d, int32_t kv_split,
                            tess_jobs *all) {
    TESS_RETURN_IF_ERROR(begin_jobs(plan, n, plan->sequences, plan->n_sequences, all));
    return count_jobs(plan, &plan->shares[n], d, kv_split, &all[n]);
}

/* Short tiles finish sooner where jobs are too short to split and leave workers idle, as long as
 * all of them run at a time. Where keys are split, full tiles read K and V fewer times. */
static bool suits_short_tiles(const tess_plan *plan, const tess_share *share,
                              const tess_plan_desc *d, const tess_jobs *jobs) {
    const uint32_t rows = share->kernel.short_rows,
                   workers =
                       tess_split_costs(&share->kernel.costs, plan->device->caps.parallel_jobs)
                           .workers;
    if (rows == 0 || rows >= share->tile_rows || d->tile_rows != 0 || d->kv_split != 0 ||
        (d->flags & TESS_PLAN_BATCH_INVARIANT) != 0)
        return false;
    return jobs->n_merges == 0 && jobs->n_jobs * ((share->tile_rows - 1) / rows + 1) <= workers;
}

static tess_status make_jobs(tess_plan *plan, const tess_plan_desc *d) {
    tess_jobs jobs[TESS_SHARES] = {{0}};
    tess_columns columns = {0};
    tess_status status = TESS_OK;
    const bool backward = plan->op == TESS_OP_BACKWARD;
    const int32_t kv_split = backward ? 1 : d->kv_split;
    if (backward && !(plan->shares[0].kernel.stages & TESS_STAGE_ROWS)) plan->shares[0].most = 0;
    for (uint32_t n = 0; n < plan->n_shares && status == TESS_OK; n++) {
        tess_share *share = &plan->shares[n];
        status = cut_jobs(plan, n, d, kv_split, jobs);
        if (status != TESS_OK || !suits_short_tiles(plan, share, d, &jobs[n])) continue;
        tess_jobs_release(&jobs[n]);
        share->tile_rows = share->kernel.short_rows;
        status = cut_jobs(plan, n, d, 1, jobs);
    }
    if (status == TESS_OK && backward) status = tess_backward_count(plan, jobs, &columns);
    if (status == TESS_OK) status = make_tables(plan, d, jobs, &columns);
    tess_columns_release(&columns);
    for (uint32_t n = TESS_SHARES; n-- > 0;) tess_jobs_release(&jobs[n]);
    return status;
}

/* ------------------------------------------------------------------ steps */

/* Writes what the steps of share n are made from, in words of the tables and of the step buffer.
 * What all shares read is copied with the first one. */
static void set_step_plan(tess_plan *plan, uint32_t n, const tess_jobs *jobs,
                          tess_step_plan *words) {
    const tess_tables *t = &plan->tables;
    const tess_share *share = &plan->shares[n];
    char *place = (char *)(uintptr_t)t->step_plan + n * t->step_plan_bytes;
    tess_step_plan *to = (tess_step_plan *)(void *)place;
    words->sequences_at = (uint32_t)(t->sequences_at / 4);
    words->jobs_at = (uint32_t)(t->jobs_at / 4);
    words->merges_at = (uint32_t)((t->merges_at + share->first_merge * sizeof(tess_merge)) / 4);
    words->copy_to = (uint32_t)(plan->memory.copy_at / 4);
    words->copy_words = n == 0 ? (uint32_t)(plan->memory.copy_bytes / 4) : 0;
    words->ends_at = (uint32_t)(t->step_ends_at / 4) + n * words->n_groups;
    words->head_at = n * TESS_STEP_HEAD_BYTES / 4;
    words->first_merge = (uint32_t)share->first_merge;
    if (plan->pools.compact) {
        words->slot_blocks = plan->pools.n_blocks;
        words->phases = plan->pools.n_phases;
        words->phases_wrap = plan->layout->pattern.kind == TESS_PATTERN_S2;
    }
    *to = *words;
    tess_step_run *runs = (tess_step_run *)(to + 1);
    tess_step_runs(jobs, words, share->first_job, runs,
                   (tess_step_group *)(void *)(runs + words->n_runs));
}

/* Where the keys of a step may end, and the first row of a sequence may be. */
static int64_t positions_of(const tess_plan *plan) {
    return (plan->flags & TESS_PLAN_DEVICE_PARTS) ? plan->layout->max_tokens : plan->max_kv_len;
}

/* Measures the room of share n, which follows that of the shares before. */
static tess_status measure_share(tess_plan *plan, uint32_t n, const tess_plan_desc *d,
                                 const tess_jobs *jobs, tess_step_plan *words) {
    tess_share *share = &plan->shares[n];
    const tess_step_limits limits = {d->batch,           smaller(d->q_len, share->most),
                                     d->kv_len,          plan->q_len,
                                     positions_of(plan), share->above};
    const tess_split_model model = split_model(plan, share);
    tess_memory_plan *memory = &plan->memory;
    tess_step_room room;
    TESS_RETURN_IF_ERROR(tess_step_measure(jobs, &limits, &model, d->kv_split,
                                           (d->flags & TESS_PLAN_BATCH_INVARIANT) != 0,
                                           model.partial_bytes, &room, words));
    words->q_len = (uint32_t)d->q_len;
    words->q_above = (uint32_t)share->above;
    words->q_most = (uint32_t)smaller(d->q_len, share->most);
    share->first_job = memory->n_jobs;
    share->first_merge = memory->n_merges;
    share->n_jobs = room.jobs;
    share->n_merges = room.merges;
    memory->n_jobs += room.jobs;
    memory->n_merges += room.merges;
    memory->partials[n] = partials_of(room.partials, room.partial_rows);
    if (memory->n_jobs > INT32_MAX)
        return tess_unsupported("%s: max_rows: steps of its rows, heads and parts can have 2^31 "
                                "jobs or more",
                                in_create);
    return TESS_OK;
}

static tess_status make_step_tables(tess_plan *plan, const tess_plan_desc *d,
                                    const tess_jobs *jobs) {
    static atomic_uint last;
    tess_memory_plan *memory = &plan->memory;
    tess_step_plan words[TESS_SHARES];
    memset(words, 0, sizeof words);
    for (uint32_t n = 0; n < plan->n_shares; n++)
        TESS_RETURN_IF_ERROR(measure_share(plan, n, d, &jobs[n], &words[n]));
    memory->n_step_plans = plan->n_shares;
    memory->n_step_runs = jobs->n_runs;
    memory->n_step_groups = words[0].n_groups;
    memory->n_sequences = plan->batch;
    TESS_RETURN_IF_ERROR(place_tables(plan, jobs, 0));
    if (memory->step_bytes > (uint64_t)UINT32_MAX * 4)
        return tess_unsupported("%s: max_rows: a step of %llu bytes; 16 GiB are the most",
                                in_create, (unsigned long long)memory->step_bytes);
    const uint32_t id = atomic_fetch_add(&last, 1) + 1;
    for (uint32_t n = 0; n < plan->n_shares; n++) {
        words[n].id = id;
        set_step_plan(plan, n, &jobs[n], &words[n]);
    }
    plan->n_ranges = memory->n_jobs ? 1 : 0;
    return plan->device->caps.host_memory ? TESS_OK : upload(plan);
}

static tess_status check_steps(const tess_plan *plan, const tess_plan_desc *d) {
    const tess_layout *layout = plan->layout;
    enum { MOST_PARTS = 4096 };
    if (!(plan->device->caps.features & TESS_FEATURE_STEPS))
        return tess_unsupported("%s: flags: TESS_PLAN_DEVICE_LENGTHS: the backend %s has no steps",
                                in_create, plan->device->backend->name);
    if (layout->pattern.kind == TESS_PATTERN_BLOCKS)
        return tess_unsupported(
            "%s: flags: TESS_PLAN_DEVICE_LENGTHS: a mask (TESS_PATTERN_BLOCKS) needs lengths on "
            "the host",
            in_create);
    if (!layout->patterns[0].causal)
        return tess_unsupported(
            "%s: flags: TESS_PLAN_DEVICE_LENGTHS: a TESS_PATTERN_BIDIRECTIONAL layout needs "
            "lengths on the host",
            in_create);
    if (d->kv_split > MOST_PARTS)
        return tess_unsupported(
            "%s: kv_split: must be at most %d with TESS_PLAN_DEVICE_LENGTHS, got %d", in_create,
            (int)MOST_PARTS, (int)d->kv_split);
    return TESS_OK;
}

/* Positions of rows and of cells around them have to fit 32 bits. */
static tess_status check_positions(const tess_plan *plan, const tess_plan_desc *d,
                                   const tess_grid *grid) {
    const int64_t most = INT32_MAX - positions_of(plan) - 2 * grid->unit;
    if (d->q_len < most) return TESS_OK;
    return tess_unsupported("%s: q_len: must be less than %lld with these keys and blocks and "
                            "TESS_PLAN_DEVICE_LENGTHS, got %lld",
                            in_create, (long long)most, (long long)d->q_len);
}

/* A plan whose lengths come from the device. One sequence of its capacities stands for all where
 * lists are written and heads are grouped. */
static tess_status make_steps(tess_plan *plan, const tess_plan_desc *d) {
    const tess_sequence longest = {.q_len = (int32_t)d->q_len,
                                   .kv_len = (int32_t)positions_of(plan),
                                   .q_first = (int32_t)(positions_of(plan) - d->q_len)};
    const tess_kernel_key key = {.struct_size = sizeof key,
                                 .op = TESS_OP_PREPARE,
                                 .head_dim = plan->head_dim,
                                 .value_head_dim = plan->head_dim,
                                 .block = plan->layout->pattern.block,
                                 .batch = plan->batch,
                                 .max_in_flight = d->max_in_flight ? d->max_in_flight : 4};
    tess_jobs jobs[TESS_SHARES] = {{0}};
    tess_status status = tess_choose_op(plan->device, &key, &plan->prepare);
    for (uint32_t n = 0; n < plan->n_shares && status == TESS_OK; n++) {
        status = begin_jobs(plan, n, &longest, 1, jobs);
        if (status == TESS_OK) status = check_positions(plan, d, &jobs[n].grid);
    }
    if (status == TESS_OK) status = make_step_tables(plan, d, jobs);
    for (uint32_t n = TESS_SHARES; n-- > 0;) tess_jobs_release(&jobs[n]);
    return status;
}

/* ------------------------------------------------------------------ life */

/* `stream`: the one that its runs lie on; NULL: they may lie anywhere. */
static void destroy(tess_plan *plan, const tess_stream *stream) {
    tess_device *device = plan->device;
    tess_runtime *runtime = device->runtime;
    if (!tess_runtime_forked(runtime)) {
        for (uint32_t n = 0; n < TESS_SHARES; n++) {
            tess_kernel *kernel = &plan->shares[n].kernel;
            if (kernel->release) kernel->release(kernel);
        }
        if (plan->append.release) plan->append.release(&plan->append);
        if (plan->prepare.release) plan->prepare.release(&plan->prepare);
        /* A lost device may refuse this, and nothing more can be done here. */
        if (plan->tables.device.kind != TESS_BUFFER_NONE &&
            !(stream && tess_table_keep(device, stream, &plan->tables.device)))
            (void)device->backend->free(device->native, &plan->tables.device);
    }
    tess_mem_free(runtime, plan->range_start,
                  (size_t)(plan->n_ranges + 1) * sizeof *plan->range_start);
    free_tables(plan);
    tess_mem_free(runtime, plan->sequences, (size_t)plan->sequences_bytes);
    tess_mem_free(runtime, plan->first_block, (size_t)plan->first_block_bytes);
    tess_pools_release(&plan->pools, runtime);
    tess_layout_release(plan->layout);
    tess_mem_free(runtime, plan, sizeof *plan);
    tess_device_release(device);
}

/* Refuses what the backend would misread. */
static tess_status check_features(const tess_device *device, const tess_plan_desc *d) {
    const uint32_t features = device->caps.features;
    if (d->op == TESS_OP_BACKWARD && !(features & TESS_FEATURE_BACKWARD))
        return tess_unsupported("%s: op: the backend %s has no kernels of TESS_OP_BACKWARD",
                                in_create, device->backend->name);
    if ((d->q_first || d->kv_first) && !(features & TESS_FEATURE_POSITIONS))
        return tess_unsupported("%s: %s: the backend %s does not read positions", in_create,
                                d->q_first ? "q_first" : "kv_first", device->backend->name);
    const bool placed = (d->flags & (TESS_PLAN_COMPACT | TESS_PLAN_APPEND)) != 0,
               device_parts = (d->flags & TESS_PLAN_DEVICE_PARTS) != 0;
    if (((d->kv_first && placed) || device_parts) && !(features & TESS_FEATURE_PARTS))
        return tess_unsupported("%s: %s: the backend %s keeps no parts of the keys", in_create,
                                device_parts ? "flags: TESS_PLAN_DEVICE_PARTS" : "kv_first",
                                device->backend->name);
    if ((d->page || (d->flags & TESS_PLAN_COMPACT)) && !(features & TESS_FEATURE_PAGES))
        return tess_unsupported("%s: %s: the backend %s reads K and V neither in pages nor by slot",
                                in_create, d->page ? "page" : "flags: TESS_PLAN_COMPACT",
                                device->backend->name);
    if (tess_dtype_has_scales(d->kv_dtype) && !(features & TESS_FEATURE_KV_8BIT))
        return tess_unsupported("%s: kv_dtype: the backend %s does not read K and V of 8 bits",
                                in_create, device->backend->name);
    return TESS_OK;
}

static tess_status fill(tess_plan *plan, const tess_plan_desc *d) {
    plan->flags = d->flags;
    plan->op = d->op;
    plan->dtype = d->dtype;
    plan->determinism = d->determinism;
    plan->kv_dtype = d->kv_dtype ? d->kv_dtype : d->dtype;
    plan->head_dim = d->head_dim;
    plan->scale = d->scale != 0 ? d->scale : (float)(1 / sqrt((double)d->head_dim));
    plan->steps = (d->flags & TESS_PLAN_DEVICE_LENGTHS) != 0;
    plan->kv_packed = d->cu_q_lens != NULL;
    plan->packed = plan->kv_packed || plan->steps;
    plan->host_bytes = sizeof *plan;
    plan->batch = (uint32_t)d->batch;
    plan->pools.page = d->page;
    plan->pools.compact = (d->flags & TESS_PLAN_COMPACT) != 0;
    if (plan->steps) TESS_RETURN_IF_ERROR(check_steps(plan, d));
    TESS_RETURN_IF_ERROR(tess_batch_read(plan, d));
    const tess_part_starts starts = {.any = (d->flags & TESS_PLAN_DEVICE_PARTS) != 0,
                                     .first_block = plan->first_block,
                                     .sequences = plan->sequences,
                                     .n = plan->n_sequences};
    TESS_RETURN_IF_ERROR(tess_pools_create(&plan->pools, plan->device->runtime, plan->layout,
                                           plan->max_kv_len, &starts));
    plan->host_bytes += plan->pools.bytes + plan->pools.phases_bytes;
    TESS_RETURN_IF_ERROR(tess_choose_kernel(plan, d));
    TESS_RETURN_IF_ERROR(tess_choose_append(plan, d));
    return plan->steps ? make_steps(plan, d) : make_jobs(plan, d);
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* The last share's kernel is the plan's. */
static void log_plan(const tess_plan *plan) {
    tess_runtime *runtime = plan->device->runtime;
    const tess_share *last = &plan->shares[plan->n_shares - 1];
    tess_log(runtime, "plan",
             "plan: %s, tiles of %u rows, %llu jobs, %llu merges, %llu bytes of workspace, made in "
             "%.3f ms",
             last->kernel_name, (unsigned)last->tile_rows, (unsigned long long)plan->memory.n_jobs,
             (unsigned long long)plan->memory.n_merges,
             (unsigned long long)plan->memory.workspace_bytes, 1e3 * plan->create_seconds);
    for (const tess_share *share = plan->shares; share < last; share++)
        tess_log(runtime, "plan",
                 "plan: %s serves q_len of %lld to %lld, tiles of %u rows, %llu of the jobs, %llu "
                 "of the merges",
                 share->kernel_name, (long long)share->above + 1, (long long)share->most,
                 (unsigned)share->tile_rows, (unsigned long long)share->n_jobs,
                 (unsigned long long)share->n_merges);
}

tess_status tess_plan_create(tess_device *device, const tess_layout *layout,
                             const tess_plan_desc *desc, tess_plan **plan) {
    double begin = seconds();
    tess_plan_desc d;
    TESS_RETURN_IF_ERROR(tess_device_check(device, in_create));
    if (!layout) return tess_invalid("%s: layout: must not be NULL", in_create);
    TESS_RETURN_IF_ERROR(tess_layout_check(layout, in_create));
    if (!plan) return tess_invalid("%s: plan: must not be NULL", in_create);
    TESS_RETURN_IF_ERROR(tess_desc_read(in_create, "desc", desc, &d, TESS_PLAN_DESC));
    TESS_RETURN_IF_ERROR(check_numbers(&d));
    TESS_RETURN_IF_ERROR(check_page(&d));
    TESS_RETURN_IF_ERROR(tess_batch_check(&d));
    TESS_RETURN_IF_ERROR(check_features(device, &d));
    tess_plan *x = tess_mem_alloc(device->runtime, sizeof *x, 64);
    if (!x) return tess_fail(TESS_ERROR_OUT_OF_MEMORY, "%s: no memory for the plan", in_create);
    memset(x, 0, sizeof *x);
    tess_device_retain(device);
    tess_layout_retain(layout);
    x->device = device;
    x->layout = (tess_layout *)layout;
    const tess_status status = fill(x, &d);
    if (status != TESS_OK) {
        destroy(x, NULL);
        return status;
    }
    x->create_seconds = seconds() - begin;
    log_plan(x);
    /* This is legal, since servers have such steps, but also an easy mistake, since 0 is the
     * default of batch. */
    if (d.batch == 0 && d.q_len > 0)
        tess_log(device->runtime, "plan",
                 "plan: batch is 0, so nothing is computed although q_len is %lld",
                 (long long)d.q_len);
    *plan = x;
    return TESS_OK;
}

void tess_plan_release(tess_plan *plan) {
    if (plan) destroy(plan, NULL);
}

tess_status tess_plan_release_after(tess_plan *plan, const tess_stream *stream) {
    static const char *const function = "tess_plan_release_after";
    static const tess_stream own = {.kind = TESS_STREAM_DEFAULT};
    if (!plan) return TESS_OK;
    if (!stream) stream = &own;
    TESS_RETURN_IF_ERROR(tess_check_stream(function, stream));
    if (stream->kind == TESS_STREAM_RECORD)
        return tess_invalid("%s: stream.kind: must not be TESS_STREAM_RECORD", function);
    if (stream->extra) return tess_invalid("%s: stream.extra: must be NULL", function);
    destroy(plan, stream);
    return TESS_OK;
}

tess_status tess_plan_check(const tess_plan *plan, const char *function) {
    return plan ? tess_runtime_check(plan->device->runtime, function)
                : tess_handle_missing(function, "plan");
}
