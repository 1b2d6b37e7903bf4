/* SPDX-License-Identifier: Apache-2.0 */
#include "split.h"

#include <math.h>

/*
 * The model: workers take jobs longest first. A job costs a fixed time, and a time for each step of
 * its keys. A run takes as long as its last worker, and at least as long as reading K and V from
 * memory. Parts add a merge and the traffic of their partial results, which are written once and
 * read once.
 *
 * Only part lengths that fill whole waves are weighed: for 1, 2, 3 ... waves of the workers, the
 * shortest length whose parts fit. A length in between leaves more workers idle in its last wave.
 * Where few jobs would have many parts each, which take long to merge, an eighth, a quarter and
 * half of a wave are weighed too.
 */

enum {
    MOST_CANDIDATES = 32,
    INVARIANT_KEYS = 4096,  /* keys of a part in batch-invariant mode ... */
    SHORT_KEYS = 384,       /* ... and of the first ones of a sequence with few rows */
    BINS = 64,              /* lengths of jobs that are told apart */
    LOADS = 2 * BINS,       /* the parts of a job have at most two lengths */
    LEVELS = LOADS + 1,     /* of workers with equal work; each load adds at most one */
    MOST_STEPS = 1 << 12,   /* of handing out jobs, for one candidate */
    MOST_WORKERS = 1 << 20, /* so that no product overflows */
    MOST_JOBS = 1 << 30     /* twice as many are still below 2^32 */
};

/* Jobs of about one length. */
typedef struct bin {
    uint64_t blocks, jobs;
} bin;

/* Jobs, or parts of jobs, that cost the same. */
typedef struct load {
    double ns;
    uint64_t jobs;
} load;

/* Workers that have the same work so far. */
typedef struct level {
    double ns;
    uint64_t workers;
} level;

/* One way to split: its loads, longest first, and the terms of the model. */
typedef struct candidate {
    load loads[LOADS];
    uint32_t n_loads;
    double work_ns;  /* of all jobs together */
    double merge_ns; /* the partials' traffic included; 0: unsplit */
    double partial_bytes;
} candidate;

static double at_least(double a, double b) { return a > b ? a : b; }
static uint64_t parts_of(uint64_t blocks, uint64_t length) {
    return length == 0 || blocks <= length ? 1 : (blocks - 1) / length + 1;
}

tess_kernel_costs tess_split_costs(const tess_kernel_costs *costs, uint32_t parallel_jobs) {
    /* Parts of fewer than 512 keys gain nothing on any device we know. */
    const tess_kernel_costs guess = {.workers = parallel_jobs,
                                     .step_keys = 512,
                                     .step_ns = 100000,
                                     .job_ns = 5000,
                                     .merge_ns = 20000};
    tess_kernel_costs complete = costs->workers ? *costs : guess;
    if (complete.workers > MOST_WORKERS) complete.workers = MOST_WORKERS;
    if (complete.workers == 0) complete.workers = 1;
    if (complete.step_keys == 0) complete.step_keys = 1;
    return complete;
}

/* ------------------------------------------------------------------ jobs by length */

/* The lengths of the counted jobs, longest first. Where there are more than BINS lengths,
 * neighbours share a bin and count as their mean. */
static uint32_t find_bins(const tess_jobs *jobs, bin *bins) {
    uint32_t distinct = 0, low = 0, high = 0, n = 0, current = UINT32_MAX;
    for (uint32_t b = 0; b < jobs->order.n_buckets; b++) {
        if (jobs->order.bucket[b] == 0) continue;
        if (distinct++ == 0) low = b;
        high = b;
    }
    if (distinct == 0) return 0;
    const uint32_t width = distinct <= BINS ? 1 : (high - low) / BINS + 1;
    for (uint32_t b = high + 1; b-- > low;) {
        const uint32_t count = jobs->order.bucket[b];
        if (count == 0) continue;
        if ((high - b) / width != current) {
            current = (high - b) / width;
            bins[n++] = (bin){0, 0};
        }
        bins[n - 1].blocks += count * ((uint64_t)b << jobs->order.shift);
        bins[n - 1].jobs += count;
    }
    for (uint32_t b = 0; b < n; b++) bins[b].blocks /= bins[b].jobs;
    return n;
}

static uint64_t count_parts(const bin *bins, uint32_t n_bins, uint64_t length) {
    uint64_t sum = 0;
    for (uint32_t b = 0; b < n_bins; b++) sum += bins[b].jobs * parts_of(bins[b].blocks, length);
    return sum;
}

/* The shortest length of at least `least` that makes at most `most` parts; that of the longest job
 * if none does. */
static uint64_t shortest_length(const bin *bins, uint32_t n_bins, uint64_t least, uint64_t most) {
    uint64_t low = least, high = bins[0].blocks > least ? bins[0].blocks : least;
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        if (count_parts(bins, n_bins, middle) <= most)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* ------------------------------------------------------------------ what a candidate costs */

static double job_ns(const tess_split_model *model, uint64_t blocks) {
    const tess_kernel_costs *costs = &model->costs;
    const uint64_t steps = (blocks * model->block + costs->step_keys - 1) / costs->step_keys;
    return (double)costs->job_ns + (double)steps * costs->step_ns;
}

/* Parts of jobs of different lengths mix, so each load is inserted from the end. */
static void add_load(candidate *c, double ns, uint64_t jobs) {
    if (jobs == 0) return;
    uint32_t at = c->n_loads++;
    for (; at > 0 && c->loads[at - 1].ns < ns; at--) c->loads[at] = c->loads[at - 1];
    c->loads[at] = (load){ns, jobs};
    c->work_ns += ns * (double)jobs;
}

static void find_loads(const tess_split_model *model, const bin *bins, uint32_t n_bins,
                       uint64_t length, double rows, candidate *c) {
    uint64_t partials = 0, most_parts = 0;
    c->n_loads = 0;
    c->work_ns = c->merge_ns = 0;
    for (uint32_t b = 0; b < n_bins; b++) {
        const uint64_t parts = parts_of(bins[b].blocks, length), size = bins[b].blocks / parts,
                       longer = bins[b].blocks % parts;
        if (longer) add_load(c, job_ns(model, size + 1), longer * bins[b].jobs);
        add_load(c, job_ns(model, size), (parts - longer) * bins[b].jobs);
        if (parts > 1) partials += parts * bins[b].jobs;
        if (parts > most_parts) most_parts = parts;
    }
    c->partial_bytes = (double)partials * rows * (double)model->row_bytes;
    if (partials == 0) return;
    c->merge_ns = model->costs.merge_ns + (double)most_parts * model->costs.part_ns;
    if (model->costs.partial_bandwidth == 0) return;
    c->merge_ns += 2e3 * c->partial_bytes / model->costs.partial_bandwidth;
}

static void add_level(level *levels, uint32_t *n, double ns, uint64_t workers) {
    uint32_t at = 0, end = *n;
    while (at < end && levels[at].ns > ns) at++;
    if (at < end && levels[at].ns == ns) {
        levels[at].workers += workers;
        return;
    }
    for (uint32_t i = end; i > at; i--) levels[i] = levels[i - 1];
    levels[at] = (level){ns, workers};
    *n = end + 1;
}

/* Makes all workers one level that shares the work so far, and `ns` more, evenly. The level ends no
 * earlier than the last worker does now. */
static void even_out(level *levels, uint32_t *n, double ns, uint32_t workers) {
    double sum = ns;
    for (uint32_t i = 0; i < *n; i++) sum += levels[i].ns * (double)levels[i].workers;
    levels[0] = (level){at_least(levels[0].ns, sum / workers), workers};
    *n = 1;
}

/* When the last worker finishes, if each job, longest first, goes to the worker that is free first.
 * Workers with equal work form a level, most work first, and take equal jobs together. Levels may
 * overtake each other job by job without ever meeting. So after MOST_STEPS steps the rest counts as
 * spread evenly, which is wrong by less than a job. */
static double makespan(const candidate *c, uint32_t workers) {
    level levels[LEVELS + 1] = {{0, workers}};
    uint32_t n = 1, steps = 0;
    for (uint32_t l = 0; l < c->n_loads; l++) {
        const double ns = c->loads[l].ns;
        uint64_t left = c->loads[l].jobs;
        if (ns <= 0) continue;
        while (left > 0) {
            if (steps++ >= MOST_STEPS) {
                even_out(levels, &n, (double)left * ns, workers);
                break;
            }
            const level low = levels[n - 1];
            /* every worker takes one, again and again */
            if (left >= workers && levels[0].ns - low.ns <= ns) {
                for (uint32_t i = 0; i < n; i++) levels[i].ns += (double)(left / workers) * ns;
                left %= workers;
                continue;
            }
            /* How many jobs each worker of the lowest level takes before the level is no longer the
             * lowest. */
            uint64_t rounds = left / low.workers;
            const double gap = n > 1 ? (levels[n - 2].ns - low.ns) / ns + 1 : (double)rounds;
            if (gap < (double)rounds) rounds = (uint64_t)gap;
            if (rounds > 0) {
                n--;
                add_level(levels, &n, low.ns + (double)rounds * ns, low.workers);
                left -= rounds * low.workers;
            } else {
                levels[n - 1].workers -= left;
                add_level(levels, &n, low.ns + ns, left);
                left = 0;
            }
        }
    }
    return levels[0].ns;
}

/* ------------------------------------------------------------------ the choice */

void tess_split_choose(const tess_split_model *model, const tess_jobs *jobs,
                       tess_split_choice *choice) {
    const tess_kernel_costs *costs = &model->costs;
    bin bins[BINS];
    candidate c;
    const uint32_t n_bins = find_bins(jobs, bins);
    *choice = (tess_split_choice){.candidates = 1};
    if (n_bins == 0 || jobs->n_jobs >= MOST_JOBS) return;
    const double rows = (double)jobs->n_rows / (double)jobs->n_jobs;
    const double read_ns = costs->bandwidth ? 1e3 * (double)jobs->n_read *
                                                  (double)model->block_bytes / costs->bandwidth
                                            : 0;
    const double most_bytes = model->partial_bytes ? (double)model->partial_bytes : INFINITY;
    find_loads(model, bins, n_bins, 0, rows, &c);
    choice->unsplit_ns = choice->ns = at_least(read_ns, makespan(&c, costs->workers));
    /* No split can beat evenly spread work plus the merge. */
    if (at_least(read_ns, c.work_ns / costs->workers) + costs->merge_ns >= choice->ns) return;
    const uint64_t least = model->block < costs->step_keys ? costs->step_keys / model->block : 1;
    uint64_t last = bins[0].blocks, waves = jobs->n_jobs / costs->workers + 1;
    uint32_t halves = 3; /* the wave is halved so often; 0: whole waves */
    while (halves > 0 && costs->workers >> halves <= jobs->n_jobs) halves--;
    for (uint32_t tried = 1; tried < MOST_CANDIDATES && last > least; tried++) {
        const uint64_t most = halves > 0 ? costs->workers >> halves-- : costs->workers * waves++;
        const uint64_t length = shortest_length(bins, n_bins, least, most);
        if (length >= last) continue;
        last = length;
        find_loads(model, bins, n_bins, length, rows, &c);
        choice->candidates++;
        /* More waves mean more work and more partials. Once these alone cost too much, they do for
         * all further waves. */
        if (at_least(read_ns, c.work_ns / costs->workers) + c.merge_ns >= choice->ns) return;
        const double ns = at_least(read_ns, makespan(&c, costs->workers)) + c.merge_ns;
        if (ns >= choice->ns || c.partial_bytes > most_bytes) continue;
        choice->ns = ns;
        choice->length = (uint32_t)length;
    }
}

uint32_t tess_invariant_length(uint32_t block, bool few_rows) {
    const uint32_t keys = few_rows ? SHORT_KEYS : INVARIANT_KEYS;
    return block < keys ? keys / block : 1;
}

tess_status tess_split_count(const tess_split_model *model, int32_t kv_split, bool invariant,
                             tess_jobs *jobs, tess_split_choice *choice) {
    *choice = (tess_split_choice){0};
    if (kv_split > 1) jobs->split.max_parts = (uint32_t)kv_split;
    if (kv_split == 0 && invariant) {
        jobs->split.long_length = tess_invariant_length(model->block, false);
        jobs->split.short_length = tess_invariant_length(model->block, true);
        jobs->split.fixed = true;
    }
    TESS_RETURN_IF_ERROR(tess_jobs_count(jobs));
    if (kv_split != 0 || invariant || jobs->n_jobs == 0) return TESS_OK;
    tess_split_choose(model, jobs, choice);
    if (choice->length == 0) return TESS_OK;
    jobs->split.length = choice->length;
    TESS_RETURN_IF_ERROR(tess_jobs_count(jobs));
    /* Places of partial results are as large as that of the job with most rows. */
    if (model->partial_bytes == 0 ||
        jobs->n_partials * jobs->partial_rows * model->row_bytes <= model->partial_bytes)
        return TESS_OK;
    jobs->split.length = 0;
    choice->length = 0;
    choice->ns = choice->unsplit_ns;
    return tess_jobs_count(jobs);
}
