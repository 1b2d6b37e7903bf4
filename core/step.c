/* SPDX-License-Identifier: Apache-2.0 */
#include "step.h"

#include <string.h>

enum { MOST_JOBS = INT32_MAX };

/* ------------------------------------------------------------------ room */

/* Tiles of at most `rows` rows in at most `batch` sequences of at most `q_len` rows each, wherever
 * their positions are. A row more than one begins a second tile, if a tile ends between the two;
 * after that it takes the rows of the shortest tile of a cell to begin another. */
static uint64_t most_tiles(const tess_grid *grid, const tess_step_limits *x) {
    const uint64_t n = (uint64_t)smaller(x->batch, x->rows), q_len = (uint64_t)x->q_len;
    if (n == 0 || q_len == 0) return 0;
    const uint64_t last = (uint64_t)(grid->unit % grid->step),
                   shortest = last ? last : (uint64_t)grid->step,
                   extra = (uint64_t)smaller((uint64_t)x->rows, n * q_len) - n,
                   seconds = (uint64_t)smaller(n, extra),
                   of_one = 1 + (q_len > 1 ? 1 + (q_len - 2) / shortest : 0);
    return (uint64_t)smaller(n + seconds + (extra - seconds) / shortest, n * of_one);
}

/* Consecutive runs of heads: those of a storage group, or all. */
typedef struct run_range {
    uint32_t first, end;
} run_range;

/* Jobs of sequences within the limits, none of which is split. Longer sequences pack fewer heads,
 * and all count as the longest. */
static uint64_t most_jobs(const tess_jobs *jobs, const tess_step_limits *x, run_range runs) {
    if (x->q_len == 0) return 0;
    const uint64_t heads = tess_jobs_heads(jobs, x->q_len);
    uint64_t of_tile = 0;
    for (uint32_t r = runs.first; r < runs.end; r++)
        of_tile += (jobs->runs[r].heads - 1) / heads + 1;
    return most_tiles(&jobs->grid, x) * of_tile;
}

static uint64_t parts_of(uint64_t blocks, uint64_t length) {
    return blocks == 0 ? 1 : (blocks - 1) / length + 1;
}

/* All jobs have `parts` parts, or are whole with one. */
static void add_parts(tess_step_room *room, uint64_t jobs, uint64_t parts) {
    room->jobs += jobs * parts;
    if (parts < 2) return;
    room->merges += jobs;
    room->partials += jobs * parts;
}

/* Batch-invariant parts are cut at distances that depend on a sequence's own rows. */
static void fixed_room(const tess_jobs *jobs, const tess_step_limits *x, run_range runs,
                       uint64_t blocks, const tess_step_plan *words, tess_step_room *room) {
    tess_step_limits few = *x;
    few.q_len = smaller(x->q_len, TESS_SHORT_ROWS);
    if (x->q_above < few.q_len)
        add_parts(room, most_jobs(jobs, &few, runs), tess_short_parts(blocks, words->short_length));
    if (x->q_len > TESS_SHORT_ROWS)
        add_parts(room, most_jobs(jobs, x, runs), parts_of(blocks, words->long_length));
}

/* Parts of all jobs where the step chooses them. */
static uint64_t chosen_parts(const tess_split_model *model, uint64_t whole, uint64_t blocks,
                             uint32_t partial_rows, uint64_t partial_bytes) {
    const uint64_t most = tess_split_most_partials(model, partial_rows, partial_bytes),
                   parts = (uint64_t)smaller((int64_t)most, (int64_t)(whole * blocks));
    return parts < 2 ? 0 : parts;
}

/* Adds the room for the jobs of a storage group. `chosen`: parts where the step chooses them. */
static void add_group(const tess_jobs *jobs, const tess_step_limits *x, run_range runs,
                      uint64_t blocks, uint64_t chosen, const tess_step_plan *words,
                      tess_step_room *room) {
    const uint64_t whole = most_jobs(jobs, x, runs);
    if (words->max_parts)
        add_parts(room, whole, blocks == 0 ? 1 : (uint64_t)smaller(blocks, words->max_parts));
    else if (words->short_length)
        fixed_room(jobs, x, runs, blocks, words, room);
    else {
        const uint64_t parts = (uint64_t)smaller(chosen, whole * blocks);
        /* Where anything is split, there is a job whose parts take its place. */
        room->jobs += whole + (parts ? parts - 1 : 0);
    }
}

static void set_costs(const tess_split_model *model, uint64_t blocks, uint32_t partial_rows,
                      tess_step_plan *words) {
    const tess_split_ticks t = tess_split_in_ticks(model, blocks, partial_rows);
    words->workers = model->costs.workers;
    words->step_keys = model->costs.step_keys;
    words->length_step = t.length_step;
    words->step_ticks = t.step;
    words->job_ticks = t.job;
    words->merge_ticks = t.merge;
    words->part_ticks = t.part;
    words->partial_ticks = t.partial;
    words->read_ticks = t.read;
}

/* ------------------------------------------------------------------ the whole */

static void set_grid(const tess_jobs *jobs, const tess_step_limits *x, tess_step_plan *words) {
    words->batch = (uint32_t)x->batch;
    words->q_len = (uint32_t)x->q_len;
    words->kv_len = (uint32_t)x->kv_len;
    words->rows = (uint32_t)x->rows;
    words->positions = (uint32_t)x->positions;
    words->block = (uint32_t)jobs->grid.block;
    words->cell = (uint32_t)jobs->grid.unit;
    words->tile = (uint32_t)jobs->grid.step;
    words->from_end = jobs->grid.from_end;
    words->pack_rows = smaller(jobs->tile_rows, jobs->pack_rows);
    words->n_kv_heads = (uint32_t)jobs->tiler->layout->n_kv_heads;
    words->n_runs = jobs->n_runs;
    words->n_groups = jobs->pools ? jobs->pools->n : 1;
    words->q_most = words->q_len;
}

tess_status tess_step_measure(const tess_jobs *jobs, const tess_step_limits *limits,
                              const tess_split_model *model, int32_t kv_split, bool invariant,
                              uint64_t partial_bytes, tess_step_room *room, tess_step_plan *words) {
    const uint64_t blocks = (uint64_t)ceil_div(limits->kv_len, jobs->grid.block),
                   whole = most_jobs(jobs, limits, (run_range){0, jobs->n_runs});
    memset(room, 0, sizeof *room);
    memset(words, 0, sizeof *words);
    set_grid(jobs, limits, words);
    room->partial_rows = tess_jobs_most_rows(jobs, limits->q_len);
    set_costs(model, blocks, room->partial_rows, words);
    if (kv_split > 1) {
        words->max_parts = (uint32_t)kv_split;
    } else if (kv_split == 0 && invariant) {
        words->short_length = tess_invariant_length(model->block, true);
        words->long_length = tess_invariant_length(model->block, false);
    } else if (kv_split == 0 && blocks > words->length_step) {
        room->partials = chosen_parts(model, whole, blocks, room->partial_rows, partial_bytes);
        room->merges = (uint64_t)smaller(room->partials / 2, whole);
        words->chooses = room->partials != 0;
    }
    const uint64_t chosen = room->partials;
    for (uint32_t first = 0, end, g = 0; first < jobs->n_runs; first = end, g++) {
        end = tess_jobs_group_end(jobs, first);
        if (jobs->pools) jobs->pools->all[g].first_job[jobs->share] = room->jobs;
        add_group(jobs, limits, (run_range){first, end}, blocks, chosen, words, room);
    }
    if (jobs->pools) jobs->pools->all[jobs->pools->n].first_job[jobs->share] = room->jobs;
    if (room->partials == 0) room->partial_rows = 0;
    if (room->jobs > MOST_JOBS || room->partials > MOST_JOBS)
        return tess_unsupported(
            "tess_plan_create: max_rows: steps of its rows, heads and parts can have 2^31 jobs "
            "or more");
    words->most_jobs = (uint32_t)room->jobs;
    words->most_merges = (uint32_t)room->merges;
    words->most_partials = (uint32_t)room->partials;
    return TESS_OK;
}

void tess_step_runs(const tess_jobs *jobs, const tess_step_plan *words, uint64_t first_job,
                    tess_step_run *runs, tess_step_group *groups) {
    const tess_pool *pools = jobs->pools ? jobs->pools->all : NULL;
    for (uint32_t r = 0; r < jobs->n_runs; r++) {
        const tess_head_run *run = &jobs->runs[r];
        runs[r] = (tess_step_run){.head = run->head,
                                  .heads = run->heads,
                                  .cls = run->cls,
                                  .entries = jobs->tiler->list[run->cls]};
    }
    for (uint32_t g = 0, first = 0; g < words->n_groups; g++) {
        const uint32_t end = tess_jobs_group_end(jobs, first);
        const uint64_t from = pools ? pools[g].first_job[jobs->share] : 0,
                       to = pools ? pools[g + 1].first_job[jobs->share] : words->most_jobs;
        groups[g] =
            (tess_step_group){first, end, (uint32_t)(first_job + from), (uint32_t)(first_job + to)};
        first = end;
    }
}
