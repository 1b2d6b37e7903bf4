/* SPDX-License-Identifier: Apache-2.0 */
#include "backward.h"

static const char *const in_create = "tess_plan_create";

enum {
    MOST_TILE = 4096,
    SECTION_COLUMNS = 4, /* for each job that the device runs at a time */
    /* Columns of a kv head at a time, where they take turns. The more, the more of them share rows
     * in the cache; but each begins a step or two after the one before it. */
    LEAST_TURN_COLUMNS = 8,
    MOST_TURN_COLUMNS = 64,
    TURN_STRIPS = 16, /* of the longest sequence for each of them */
    /* of sums: leaves room for the words of turns in the 8 MiB that few columns may take more */
    MOST_SUM_BYTES = 15 << 19
};

/* ------------------------------------------------------------------ checks */

static tess_status check_forward(const tess_plan_desc *d) {
    if (d->flags & TESS_PLAN_GRADIENTS)
        return tess_invalid("%s: flags: bits 0x%x are of backward plans", in_create,
                            (unsigned)(d->flags & TESS_PLAN_GRADIENTS));
    if (d->determinism != 0)
        return tess_invalid("%s: determinism: must be 0 for a forward plan, got %u", in_create,
                            (unsigned)d->determinism);
    return TESS_OK;
}

/* What belongs to a KV cache. */
static tess_status check_cache(const tess_plan_desc *d) {
    static const struct {
        uint32_t flag;
        const char *name;
    } flags[] = {{TESS_PLAN_DEVICE_LENGTHS, "TESS_PLAN_DEVICE_LENGTHS"},
                 {TESS_PLAN_COMPACT, "TESS_PLAN_COMPACT"},
                 {TESS_PLAN_APPEND, "TESS_PLAN_APPEND"}};
    for (size_t n = 0; n < sizeof flags / sizeof *flags; n++)
        if (d->flags & flags[n].flag)
            return tess_unsupported("%s: flags: %s: not of a backward plan", in_create,
                                    flags[n].name);
    if (d->page != 0)
        return tess_unsupported("%s: page: must be 0 for a backward plan, got %d", in_create,
                                (int)d->page);
    if (d->kv_dtype != 0 && d->kv_dtype != d->dtype)
        return tess_unsupported("%s: kv_dtype: must be dtype for a backward plan, got %u",
                                in_create, (unsigned)d->kv_dtype);
    return TESS_OK;
}

/* Only float32 gradients are added to: two roundings to 16 bits would lose what ring steps and
 * micro-batches sum up. */
static tess_status check_adding(const tess_plan_desc *d, uint32_t add, uint32_t wide,
                                const char *names) {
    if (!(d->flags & add) || (d->flags & wide) || d->dtype == TESS_F32) return TESS_OK;
    return tess_invalid("%s: flags: TESS_PLAN_%s_ADD: needs float32, that is TESS_PLAN_%s_F32",
                        in_create, names, names);
}

tess_status tess_backward_check(const tess_plan_desc *d) {
    if (d->op != TESS_OP_BACKWARD) return check_forward(d);
    if (d->determinism > 1)
        return tess_invalid("%s: determinism: must be 0 or 1, got %u", in_create,
                            (unsigned)d->determinism);
    if (d->determinism != 0 && (d->flags & TESS_PLAN_BATCH_INVARIANT))
        return tess_invalid("%s: determinism: must be 0 with TESS_PLAN_BATCH_INVARIANT, got %u",
                            in_create, (unsigned)d->determinism);
    if (d->kv_split > 1)
        return tess_invalid("%s: kv_split: must be 0 or 1 for a backward plan, got %d", in_create,
                            (int)d->kv_split);
    TESS_RETURN_IF_ERROR(check_adding(d, TESS_PLAN_DQ_ADD, TESS_PLAN_DQ_F32, "DQ"));
    TESS_RETURN_IF_ERROR(check_adding(d, TESS_PLAN_DKV_ADD, TESS_PLAN_DKV_F32, "DKV"));
    return check_cache(d);
}

tess_status tess_backward_check_kernel(const tess_plan *plan, const char *name,
                                       const tess_kernel *kernel) {
    const char *backend = plan->device->backend->name;
    const uint32_t two = TESS_STAGE_DELTA | TESS_STAGE_ROWS | TESS_STAGE_COLUMNS,
                   one = TESS_STAGE_DELTA | TESS_STAGE_COLUMNS | TESS_STAGE_FINISH;
    const struct {
        const char *field;
        uint32_t value;
    } sizes[] = {{"tile_keys", kernel->tile_keys},
                 {"step_rows", kernel->step_rows},
                 {"strip_rows", kernel->strip_rows}};
    if (kernel->stages != two && kernel->stages != one)
        return tess_fail(TESS_ERROR_NATIVE,
                         "%s: %s: kernel %s has stages 0x%x, those of neither one nor two passes",
                         in_create, backend, name, (unsigned)kernel->stages);
    for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++)
        if (sizes[n].value < 1 || sizes[n].value > MOST_TILE)
            return tess_fail(TESS_ERROR_NATIVE, "%s: %s: kernel %s has a %s of %u, not 1 to %d",
                             in_create, backend, name, sizes[n].field, (unsigned)sizes[n].value,
                             (int)MOST_TILE);
    if (kernel->turns &&
        (kernel->turns != 1 || kernel->stages != one || kernel->step_rows != kernel->strip_rows ||
         !tess_columns_turns(plan->layout)))
        return tess_fail(TESS_ERROR_NATIVE,
                         "%s: %s: kernel %s has turns, which are for a single pass with step_rows "
                         "of strip_rows, and for keys with turns",
                         in_create, backend, name);
    return TESS_OK;
}

/* ------------------------------------------------------------------ tables */

static uint64_t strips_of(const tess_sequence *sequence, uint32_t strip_rows) {
    return ((uint64_t)sequence->q_len + strip_rows - 1) / strip_rows;
}

/* How many rows of query heads a section has: those of as many kv heads as it takes for about
 * `columns` of the columns that run at a time to belong to each. */
static uint64_t turn_rows(const tess_plan *plan, const tess_columns *x, uint64_t columns) {
    const tess_jobs *jobs = x->jobs;
    const uint64_t kv_heads = jobs->n_sequences * (uint64_t)plan->layout->n_kv_heads;
    uint64_t rows = 0;
    for (uint32_t s = 0; s < jobs->n_sequences; s++) rows += (uint64_t)jobs->sequences[s].q_len;
    rows *= (uint64_t)plan->layout->n_heads;
    return kv_heads == 0 ? 0 : rows / kv_heads * (plan->device->caps.parallel_jobs / columns + 1);
}

/* How many of a kv head's columns are to run at a time: more of them where they are long, and fewer
 * where its heads have several patterns, since columns then wait for each other in several places.
 */
static uint64_t turn_columns(const tess_columns *x) {
    uint64_t rows = 0;
    for (uint32_t s = 0; s < x->jobs->n_sequences; s++)
        rows = larger(rows, (uint64_t)x->jobs->sequences[s].q_len);
    return larger(LEAST_TURN_COLUMNS,
                  smaller(MOST_TURN_COLUMNS, rows / x->step_rows / TURN_STRIPS) / x->n_maps);
}

/* Sections of rows of query heads whose Q and dO, and accumulators of dQ, fit half of the device's
 * cache; none where there are so few columns that longest first balances better. */
static void set_sections(const tess_plan *plan, tess_columns *x) {
    const tess_caps *caps = &plan->device->caps;
    const bool one_pass = plan->shares[0].kernel.stages & TESS_STAGE_FINISH;
    const uint64_t elements = (uint64_t)plan->head_dim,
                   bytes = elements *
                           (2 * tess_dtype_size(plan->dtype) + (one_pass ? sizeof(float) : 0)),
                   rows = larger(1, caps->cache_bytes / 2 / bytes);
    x->parallel = caps->parallel_jobs;
    if (caps->cache_bytes == 0 || x->n_columns < SECTION_COLUMNS * x->parallel) return;
    x->section_rows = x->near_rows = rows;
    if (!x->turns) return;
    /* Few columns of a kv head run together in any case. With those of other heads between them,
     * each would begin later, and find less in the cache of what the one before has used. */
    const uint64_t together = turn_columns(x), far = tess_columns_far(x);
    x->section_rows = larger(rows, turn_rows(plan, x, far > together ? together : UINT64_MAX));
    x->near_rows = larger(rows, turn_rows(plan, x, LEAST_TURN_COLUMNS));
}

/* How many columns' sums there may be a place for. */
static uint64_t most_sums(const tess_plan *plan) {
    return (uint64_t)larger(1, MOST_SUM_BYTES / plan->shares[0].kernel.sum_bytes);
}

/* A way to cut long columns. */
typedef struct cut {
    uint64_t head_parts, row_parts;
    uint64_t least; /* rows of query heads; columns of more are cut */
    uint64_t time;  /* of a run, in rows of query heads */
} cut;

/* A multiprocessor's share of all columns, in rows of query heads, and how many columns have more
 * rows than a share, a half, a quarter and an eighth of it. */
enum { BOUNDS = 4 };
typedef struct lengths {
    uint64_t share, longer[BOUNDS];
} lengths;

/*
 * What a run takes with columns cut, if that is less. Columns that are not cut may begin last, when
 * some multiprocessors have nothing else to do: a run takes half of the longest one longer. About
 * to end, the parts of a column wait for each other, and exchange sums in about the time of
 * EXCHANGE_STEPS steps each. There are at most as many of them as the root of the longest column's
 * steps; and so many that the columns that run at a time find places for their sums, and half as
 * many more: where one is taken, a column waits until another one ends.
 */
static void try_parts(const tess_plan *plan, const tess_columns *x, const lengths *all,
                      uint64_t head_parts, uint64_t row_parts, cut *best) {
    enum { EXCHANGE_STEPS = 3 };
    const uint64_t workers = plan->device->caps.parallel_jobs, parts = head_parts * row_parts,
                   exchange = (uint64_t)EXCHANGE_STEPS * x->step_rows, places = most_sums(plan),
                   chain = x->most_cost / parts + parts * exchange;
    if (parts * parts > x->most_cost / x->step_rows) return;
    for (int n = 0; n < BOUNDS && all->share >> n > 0; n++) {
        const uint64_t sums = all->longer[n] * parts * parts / 2 * exchange / workers,
                       least = all->share >> n,
                       time = (uint64_t)larger(all->share + sums + least / 2, chain);
        if (all->longer[n] > places && 2 * parts * places < 3 * workers) continue;
        if (time < best->time) *best = (cut){head_parts, row_parts, least, time};
    }
}

/*
 * One column for all rows and query heads of some keys is least work. But where a device has few
 * columns, it waits for the longest one: those of a single kv head of 8,192 tokens are 64, and
 * strided keys of S2 with a large stride are few as well. Then long columns are cut: by query heads
 * first, whose parts are at the same rows at a time, and by rows where that is not enough. Results
 * of a batch-invariant plan must not depend on how many columns there are.
 */
static cut choose_cut(const tess_plan *plan, const tess_columns *x) {
    enum { MOST_ROW_PARTS = 64 };
    const tess_layout *layout = plan->layout;
    const bool one_run = x->jobs->n_runs == (uint32_t)layout->n_kv_heads;
    const uint64_t group = one_run ? (uint64_t)(layout->n_heads / layout->n_kv_heads) : 1;
    lengths all = {.share = (x->near_cost + x->far_cost) / plan->device->caps.parallel_jobs};
    cut best = {1, 1, 0, (uint64_t)larger(all.share, x->most_cost)};
    if (plan->shares[0].kernel.sum_bytes == 0 || (plan->flags & TESS_PLAN_BATCH_INVARIANT) ||
        x->most_cost <= all.share)
        return best;
    for (int n = 0; n < BOUNDS; n++) all.longer[n] = tess_columns_longer(x, all.share >> n);
    for (uint64_t n = 2; n <= group; n++)
        if (group % n == 0) try_parts(plan, x, &all, n, 1, &best);
    for (uint64_t n = 2; n <= MOST_ROW_PARTS && tess_columns_turns(layout); n *= 2)
        try_parts(plan, x, &all, group, n, &best);
    return best;
}

static tess_status cut_columns(tess_plan *plan, tess_columns *x) {
    const cut best = choose_cut(plan, x);
    plan->column_parts = 1;
    if (best.least == 0) return TESS_OK;
    TESS_RETURN_IF_ERROR(
        tess_columns_cut(x, (uint32_t)best.head_parts, (uint32_t)best.row_parts, best.least));
    if (x->n_cut == 0) return TESS_OK;
    plan->column_parts = x->parts;
    plan->n_cut_columns = x->n_cut;
    plan->memory.n_sums = (uint64_t)smaller(x->n_cut, most_sums(plan));
    plan->memory.sum_bytes = plan->shares[0].kernel.sum_bytes;
    return TESS_OK;
}

tess_status tess_backward_count(tess_plan *plan, const tess_jobs *jobs, tess_columns *columns) {
    const tess_kernel *kernel = &plan->shares[0].kernel;
    tess_memory_plan *memory = &plan->memory;
    uint64_t strips = 0;
    TESS_RETURN_IF_ERROR(tess_columns_create(
        columns, jobs, kernel->tile_keys, kernel->step_rows,
        (kernel->turns ? TESS_COLUMNS_TURNS : 0) |
            (plan->flags & TESS_PLAN_BATCH_INVARIANT ? TESS_COLUMNS_INVARIANT : 0)));
    TESS_RETURN_IF_ERROR(tess_columns_count(columns));
    TESS_RETURN_IF_ERROR(cut_columns(plan, columns));
    set_sections(plan, columns);
    for (uint32_t n = 0; n < plan->n_sequences; n++)
        strips += strips_of(&plan->sequences[n], kernel->strip_rows);
    if (strips > UINT32_MAX)
        return tess_unsupported("%s: batch: its rows make 2^32 strips or more", in_create);
    memory->n_columns = columns->n_columns + columns->more_columns;
    memory->n_segments = columns->n_segments + columns->more_segments;
    memory->n_strips = strips;
    memory->n_first_strips = plan->n_sequences;
    memory->n_strip_heads = (uint64_t)plan->layout->n_heads;
    memory->strip_bytes = kernel->strip_bytes;
    return TESS_OK;
}

void tess_backward_place(tess_plan *plan, tess_columns *columns) {
    const uint32_t strip_rows = plan->shares[0].kernel.strip_rows;
    tess_strip *strips = (tess_strip *)plan->tables.strips;
    uint32_t *first = (uint32_t *)plan->tables.first_strips, at = 0;
    for (uint32_t s = 0; s < plan->n_sequences; s++) {
        first[s] = at;
        for (uint64_t n = 0; n < strips_of(&plan->sequences[s], strip_rows); n++)
            strips[at++] = (tess_strip){s, (uint32_t)n * strip_rows};
    }
    tess_columns_entries(columns, (uint32_t *)plan->tables.entries, (uint32_t *)plan->tables.bits);
    tess_columns_place(columns, (tess_column *)plan->tables.columns,
                       (tess_segment *)plan->tables.segments);
}

/* ------------------------------------------------------------------ costs */

uint64_t tess_backward_steps(const tess_plan *plan, uint64_t n) {
    const tess_share *share = &plan->shares[0];
    uint32_t stage = 0;
    for (; n >= tess_plan_stage(plan, stage); stage++) n -= tess_plan_stage(plan, stage);
    switch (1u << stage) {
    /* three products for each pair, where forward has two, and four in columns */
    case TESS_STAGE_ROWS: return 2 * tess_job_blocks(&plan->tables.jobs[n]);
    case TESS_STAGE_COLUMNS:
        return 2 * tess_column_steps(&plan->tables, &plan->tables.columns[n],
                                     plan->layout->pattern.block, share->tile_rows,
                                     share->kernel.turns != 0);
    default: /* bound by memory, a little for each head */
        return 1 + (uint64_t)plan->layout->n_heads * share->kernel.strip_rows / 1024;
    }
}
