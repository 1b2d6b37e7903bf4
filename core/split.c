/* SPDX-License-Identifier: Apache-2.0 */
#include "split.h"

#include <math.h>

/*
 * The rule that chooses parts, in whole numbers: backends/common/kernels/prepare_rule.inl is the
 * same for the lengths that only the device knows, and both find the same length where the order of
 * jobs has a bucket for each length. Its comment tells the model; docs/design.md tells why.
 */

enum {
    INVARIANT_KEYS = 4096, /* keys of a part in batch-invariant mode ... */
    SHORT_KEYS = 384,      /* ... and of the first ones of a sequence with few rows */
    BINS = 240,            /* lengths of jobs that are told apart */
    TRIALS = 256,          /* lengths of parts that are tried around the best one */
    PARTS_OF_A_WORKER = 16,
    MOST_PARTIALS = 0xffffff,
    MOST_TICKS = 1 << 25,  /* of the longest job, so that sums fit 32 bits */
    MOST_WORKERS = 1 << 20 /* so that no product overflows */
};

/* Jobs of about one length: how many, and the key blocks of the shortest and the longest. */
typedef struct bin {
    uint32_t jobs, least, most;
} bin;

/* What is known of all jobs before they are cut. */
typedef struct load {
    bin bins[BINS]; /* those with jobs, longest first */
    uint32_t n_bins;
    uint64_t jobs;
    uint32_t ticks; /* of all jobs */
    uint32_t read;  /* ticks until K and V are read */
    uint32_t most_partials;
} load;

static uint32_t fit(uint64_t x) { return x > UINT32_MAX ? UINT32_MAX : (uint32_t)x; }
static uint32_t more(uint32_t a, uint32_t b) { return a > b ? a : b; }
static uint32_t less(uint32_t a, uint32_t b) { return a < b ? a : b; }
static uint32_t divide_up(uint32_t a, uint32_t b) {
    const uint32_t whole = a / b;
    return whole + (whole * b != a);
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

/* ------------------------------------------------------------------ the model in whole numbers */

static uint32_t in_ticks(uint64_t ns, uint32_t shift) {
    const uint64_t ticks = (ns >> shift) + ((ns & ((UINT64_C(1) << shift) - 1)) != 0);
    return ticks > MOST_TICKS ? MOST_TICKS : (uint32_t)ticks;
}

tess_split_ticks tess_split_in_ticks(const tess_split_model *model, uint64_t blocks,
                                     uint32_t partial_rows) {
    const tess_kernel_costs *c = &model->costs;
    const uint64_t steps = blocks * model->block / c->step_keys + 1;
    tess_split_ticks t = {.length_step =
                              model->block < c->step_keys ? c->step_keys / model->block : 1};
    while (in_ticks(c->job_ns, t.shift) + steps * in_ticks(c->step_ns, t.shift) > MOST_TICKS &&
           t.shift < 32)
        t.shift++;
    t.step = in_ticks(c->step_ns, t.shift);
    t.job = in_ticks(c->job_ns, t.shift);
    t.merge = in_ticks(c->merge_ns, t.shift);
    t.part = in_ticks(c->part_ns, t.shift);
    /* bandwidths are in MB/s, which is bytes in a thousand ns */
    if (c->partial_bandwidth)
        t.partial =
            in_ticks(2000 * partial_rows * model->row_bytes / c->partial_bandwidth + 1, t.shift);
    if (c->bandwidth) t.read = in_ticks(64000 * model->block_bytes / c->bandwidth, t.shift);
    return t;
}

uint64_t tess_split_most_partials(const tess_split_model *model, uint32_t partial_rows,
                                  uint64_t partial_bytes) {
    const uint64_t row_floats = partial_rows + partial_rows % 2,
                   fits = row_floats ? partial_bytes / (row_floats * model->row_bytes) : 0,
                   useful = (uint64_t)PARTS_OF_A_WORKER * model->costs.workers;
    return fits < useful ? fits : useful;
}

/* ------------------------------------------------------------------ jobs by length */

/* One bin each below 8 key blocks, and then eight for each power of two. */
static uint32_t bin_of(uint32_t blocks) {
    uint32_t shift = 0;
    while (blocks >> shift >= 16) shift++;
    return 8 * shift + (blocks >> shift);
}
static uint32_t bin_start(uint32_t n) { return n < 16 ? n : (8 + n % 8) << (n / 8 - 1); }

static uint32_t job_ticks(const tess_split_model *model, const tess_split_ticks *t,
                          uint32_t blocks) {
    return t->job + divide_up(blocks * model->block, model->costs.step_keys) * t->step;
}

static uint32_t longest_of(const tess_jobs *jobs) {
    return jobs->order.n_used ? (jobs->order.n_used - 1) << jobs->order.shift : 0;
}

/* Reads the order of the counted jobs. Where its buckets are wider than a length, jobs count as the
 * shortest of theirs. */
static void find_load(const tess_split_model *model, const tess_split_ticks *t,
                      const tess_jobs *jobs, uint32_t partial_rows, load *x) {
    uint64_t ticks = 0;
    uint32_t start = UINT32_MAX; /* of the bin at hand */
    bin *to = NULL;
    x->n_bins = 0;
    x->jobs = jobs->n_jobs;
    uint64_t left = jobs->n_jobs;
    for (uint32_t b = jobs->order.n_used; b-- > 0 && left > 0;) {
        const uint32_t count = jobs->order.bucket[b], blocks = b << jobs->order.shift;
        if (count == 0) continue;
        left -= count;
        if (!to || blocks < start) {
            to = &x->bins[x->n_bins++];
            *to = (bin){.most = blocks};
            start = bin_start(bin_of(blocks));
        }
        to->jobs += count;
        to->least = blocks;
        ticks += (uint64_t)count * job_ticks(model, t, blocks);
    }
    const uint64_t blocks = jobs->n_blocks < jobs->n_read ? jobs->n_blocks : jobs->n_read;
    x->ticks = fit(ticks);
    x->read = fit((uint64_t)fit(fit(blocks) / 64 * (uint64_t)t->read) +
                  (uint64_t)(fit(blocks) % 64) * t->read / 64);
    x->most_partials = fit(model->partial_bytes
                               ? tess_split_most_partials(model, partial_rows, model->partial_bytes)
                               : MOST_PARTIALS);
}

/* ------------------------------------------------------------------ what a length costs */

/* No order of taking the jobs ends sooner. */
static uint32_t unsplit_ticks(const tess_split_model *model, const tess_split_ticks *t,
                              const load *x) {
    const uint32_t workers = model->costs.workers;
    uint32_t least = more(x->read, divide_up(x->ticks, workers)), as_long = 0;
    for (uint32_t b = 0; b < x->n_bins; b++) {
        const bin *of = &x->bins[b];
        as_long += of->jobs;
        least = more(least, job_ticks(model, t, of->most));
        least = more(least,
                     fit((uint64_t)divide_up(as_long, workers) * job_ticks(model, t, of->least)));
    }
    return least;
}

/* Parts of `length` key blocks take no longer; UINT32_MAX where there is no room for them, or where
 * it is plain that they take more than `least`. */
static uint32_t split_ticks(const tess_split_model *model, const tess_split_ticks *t, const load *x,
                            uint32_t length, uint32_t least) {
    const uint32_t workers = model->costs.workers;
    uint64_t partials = 0, cut = 0;
    uint32_t most_parts = 1;
    for (uint32_t b = 0; b < x->n_bins && x->bins[b].most > length; b++) {
        const uint32_t made = divide_up(x->bins[b].most, length);
        partials += (uint64_t)x->bins[b].jobs * made;
        cut += x->bins[b].jobs;
        most_parts = more(most_parts, made);
    }
    if (partials > x->most_partials || partials >= MOST_PARTIALS) return UINT32_MAX;
    const uint32_t merge =
        fit(t->merge + (uint64_t)fit((uint64_t)fit((uint64_t)most_parts * t->part) +
                                     fit(partials * t->partial)));
    if ((uint64_t)x->read + merge > least) return UINT32_MAX;
    const uint32_t part = job_ticks(model, t, length),
                   /* parts are equal, so they may end within a step */
        each = t->job + (model->block % model->costs.step_keys ? t->step : 0),
                   work = fit(x->ticks + (uint64_t)fit((partials - cut) * each)),
                   waves = fit((uint64_t)divide_up(fit(partials + x->jobs - cut), workers) * part),
                   spread = work == UINT32_MAX ? UINT32_MAX
                                               : fit((uint64_t)divide_up(work, workers) + part);
    return fit((uint64_t)more(less(waves, spread), x->read) + merge);
}

/* Tries `n` lengths from `first` on, `stride` apart or, where that is 0, those that begin a bin. Of
 * equal ones the longest is kept. Lengths rise. */
static void try_lengths(const tess_split_model *model, const tess_split_ticks *t, const load *x,
                        uint32_t first, uint32_t stride, uint32_t n, uint32_t *least,
                        uint32_t *found) {
    for (uint32_t c = 0; c < n; c++) {
        const uint32_t length = t->length_step * (stride ? first + c * stride : bin_start(c));
        if (length == 0) continue;
        /* Longer ones take at least one such part. */
        if ((uint64_t)job_ticks(model, t, length) + t->merge > *least) break;
        const uint32_t ticks = split_ticks(model, t, x, length, *least);
        if (ticks > *least || (ticks == *least && length < *found)) continue;
        *least = ticks;
        *found = length;
    }
}

/* ------------------------------------------------------------------ the choice */

void tess_split_choose(const tess_split_model *model, const tess_jobs *jobs,
                       tess_split_choice *choice) {
    load x;
    *choice = (tess_split_choice){.candidates = 1};
    if (jobs->n_jobs == 0 || jobs->n_jobs > UINT32_MAX) return;
    const uint32_t longest = longest_of(jobs), rows = jobs->most_rows;
    const tess_split_ticks t = tess_split_in_ticks(model, longest, rows);
    find_load(model, &t, jobs, rows, &x);
    const uint32_t unsplit = unsplit_ticks(model, &t, &x);
    choice->unsplit_ns = choice->ns = ldexp(unsplit, (int)t.shift);
    /* No split can beat evenly spread work and the merge. */
    if ((uint64_t)more(x.read, x.ticks / model->costs.workers) + t.merge >= unsplit) return;
    const uint32_t most = longest > 1 ? (longest - 1) / t.length_step : 0,
                   n_starts = bin_of(most) + 1;
    uint32_t least = UINT32_MAX, found = 0;
    try_lengths(model, &t, &x, 0, 0, n_starts, &least, &found);
    const uint32_t around = bin_of(found / t.length_step),
                   low = around > 1 ? bin_start(around - 1) + 1 : 1,
                   stride = divide_up(bin_start(around + 1) - low, TRIALS),
                   n = found == 0 || most < low ? 0 : less((most - low) / stride + 1, TRIALS);
    try_lengths(model, &t, &x, low, stride, n, &least, &found);
    choice->candidates += n_starts + n;
    if (least >= unsplit) return;
    choice->ns = ldexp(least, (int)t.shift);
    choice->length = found;
}

uint32_t tess_invariant_length(uint32_t block, bool few_rows) {
    const uint32_t keys = few_rows ? SHORT_KEYS : INVARIANT_KEYS;
    return block < keys ? keys / block : 1;
}

/* Places of partial results are as large as that of the job with most rows. */
static bool fits_room(const tess_split_model *model, const tess_jobs *jobs) {
    const uint64_t rows = jobs->partial_rows + jobs->partial_rows % 2;
    return model->partial_bytes == 0 ||
           jobs->n_partials * rows * model->row_bytes <= model->partial_bytes;
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
    /* Jobs of a bucket count as the shortest of theirs, so there may be a few parts more than room
     * for them. Longer ones are fewer, and in the end there are none. */
    for (;; choice->length += choice->length / 16 + 1) {
        jobs->split.length = choice->length;
        TESS_RETURN_IF_ERROR(tess_jobs_count(jobs));
        if (fits_room(model, jobs)) break;
    }
    if (jobs->n_merges == 0) jobs->split.length = choice->length = 0;
    return TESS_OK;
}
