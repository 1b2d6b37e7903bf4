/* SPDX-License-Identifier: Apache-2.0 */
#include "jobs.h"

#include <string.h>

enum { MOST_RESIDUES = 256 }; /* that are gone through for each group of packs */

static uint32_t clamp(int64_t x, uint32_t high) {
    return x < 0 ? 0 : x > high ? high : (uint32_t)x;
}

/* ------------------------------------------------------------------ splitting */

static uint64_t split_parts(const tess_split *split, uint64_t blocks) {
    if (split->grows) return tess_short_parts(blocks, split->length);
    if (split->length) return blocks <= split->length ? 1 : (blocks - 1) / split->length + 1;
    if (split->max_parts) return blocks == 0 ? 1 : smaller(split->max_parts, blocks);
    return 1;
}

/* Takes the length of parts that belongs to a sequence's own rows. */
static void split_for(tess_split *split, const tess_sequence *sequence) {
    if (split->long_length == 0) return;
    split->grows = sequence->q_len <= (int32_t)TESS_SHORT_ROWS;
    split->length = split->grows ? split->short_length : split->long_length;
}

/* Where part `part` of `parts` begins among the job's key blocks. */
static uint64_t split_begin(const tess_split *split, uint64_t blocks, uint64_t parts,
                            uint64_t part) {
    if (!split->fixed) return blocks * part / parts;
    return (uint64_t)smaller(blocks, split->grows ? tess_short_begin(part, split->length)
                                                  : part * split->length);
}

/* The key blocks [begin, end) of `whole`: of each slice, of the interval, and of its masked ends.
 */
static void split_keys(const tess_keys *whole, uint64_t begin, uint64_t end, tess_keys *part) {
    int64_t first = (int64_t)begin, last = (int64_t)end, interval = whole->left_count,
            right = interval + whole->interval_blocks;
    uint32_t a = clamp(first, whole->left_count), b = clamp(last, whole->left_count);
    *part = *whole;
    part->left_offset = whole->left_offset + a;
    part->left_count = b - a;
    a = clamp(first - interval, whole->interval_blocks);
    b = clamp(last - interval, whole->interval_blocks);
    part->interval_start = whole->interval_start + a;
    part->interval_blocks = b - a;
    part->mask_head = clamp((int64_t)whole->mask_head - a, b - a);
    part->mask_tail = clamp((int64_t)b - (whole->interval_blocks - whole->mask_tail), b - a);
    a = clamp(first - right, whole->right_count);
    b = clamp(last - right, whole->right_count);
    part->right_offset = whole->right_offset + a;
    part->right_count = b - a;
}

/* ------------------------------------------------------------------ heads */

/* `kv_order`: the kv heads in their order, or NULL for that of their numbers. */
static void find_runs(const tess_layout *layout, const uint32_t *kv_order, tess_head_run *runs,
                      uint32_t *n_runs) {
    const uint32_t group = (uint32_t)(layout->n_heads / layout->n_kv_heads);
    uint32_t n = 0;
    for (uint32_t at = 0; at < (uint32_t)layout->n_kv_heads; at++) {
        const uint32_t kv_head = kv_order ? kv_order[at] : at, first = kv_head * group;
        for (uint32_t h = first; h < first + group; h++) {
            if (h != first && layout->head_class[h] == layout->head_class[h - 1]) {
                runs[n - 1].heads++;
                continue;
            }
            runs[n].kv_head = kv_head;
            runs[n].head = (uint16_t)h;
            runs[n].heads = 1;
            runs[n].cls = layout->head_class[h];
            n++;
        }
    }
    *n_runs = n;
}

uint32_t tess_jobs_group_end(const tess_jobs *jobs, uint32_t first) {
    uint32_t last = first;
    if (!jobs->pools) return jobs->n_runs;
    const tess_kv_head *heads = jobs->pools->kv_heads;
    const uint32_t storage = heads[jobs->runs[first].kv_head].storage;
    while (last < jobs->n_runs && heads[jobs->runs[last].kv_head].storage == storage) last++;
    return last;
}

/* Every tile of the sequence must have room for the rows of all heads of a job. */
uint64_t tess_jobs_heads(const tess_jobs *jobs, int64_t q_len) {
    const uint64_t rows = (uint64_t)smaller(q_len, jobs->grid.step),
                   heads = (uint64_t)smaller(jobs->tile_rows, jobs->pack_rows) / rows;
    return heads == 0 ? 1 : heads;
}

static uint32_t heads_of_job(const tess_jobs *jobs, const tess_sequence *sequence) {
    return (uint32_t)tess_jobs_heads(jobs, sequence->q_len);
}

uint32_t tess_jobs_most_rows(const tess_jobs *jobs, int64_t q_len) {
    uint64_t run = 1, most = 0;
    for (uint32_t r = 0; r < jobs->n_runs; r++) run = (uint64_t)larger(run, jobs->runs[r].heads);
    for (int64_t rows = 1; rows <= smaller(q_len, jobs->grid.step); rows++)
        most = (uint64_t)larger((int64_t)most,
                                rows * smaller((int64_t)run, (int64_t)tess_jobs_heads(jobs, rows)));
    return (uint32_t)most;
}

/* ------------------------------------------------------------------ life */

static size_t below_bytes(const tess_jobs *jobs) {
    return (size_t)(jobs->grid.stride + 1) * sizeof *jobs->below;
}

static tess_status allocate(tess_jobs *jobs, const tess_layout *layout, uint64_t most_blocks) {
    size_t heads = (size_t)layout->n_heads;
    jobs->runs = tess_mem_alloc(jobs->runtime, heads * sizeof *jobs->runs, 64);
    jobs->packs = tess_mem_alloc(jobs->runtime, layout->n_classes * sizeof *jobs->packs, 64);
    jobs->pack = tess_mem_alloc(jobs->runtime, layout->n_classes * sizeof *jobs->pack, 64);
    jobs->below = jobs->grid.stride <= MOST_RESIDUES
                      ? tess_mem_alloc(jobs->runtime, below_bytes(jobs), 64)
                      : NULL;
    if (!jobs->runs || !jobs->packs || !jobs->pack ||
        (jobs->grid.stride <= MOST_RESIDUES && !jobs->below) ||
        !tess_order_create(&jobs->order, jobs->runtime, most_blocks))
        return tess_fail(TESS_ERROR_OUT_OF_MEMORY,
                         "tess_plan_create: no memory to sort jobs of %llu key blocks",
                         (unsigned long long)most_blocks);
    return TESS_OK;
}

/* What needs no tiler. */
static void begin(tess_jobs *jobs, tess_runtime *runtime, const tess_layout *layout,
                  const tess_sequence *sequences, uint32_t n_sequences, uint32_t tile_rows,
                  uint32_t pack_rows) {
    memset(jobs, 0, sizeof *jobs);
    jobs->runtime = runtime;
    jobs->tiler = &jobs->own_tiler;
    jobs->tile_rows = tile_rows;
    jobs->pack_rows = pack_rows;
    jobs->sequences = sequences;
    jobs->n_sequences = n_sequences;
    jobs->q_most = TESS_LENGTH_END;
    tess_grid_set(&jobs->grid, layout, tile_rows);
}

/* What needs one. */
static tess_status begin_count(tess_jobs *jobs) {
    TESS_RETURN_IF_ERROR(allocate(jobs, jobs->tiler->layout, (uint64_t)jobs->tiler->n_blocks));
    find_runs(jobs->tiler->layout, NULL, jobs->runs, &jobs->n_runs);
    return TESS_OK;
}

tess_status tess_jobs_create(tess_jobs *jobs, tess_runtime *runtime, const tess_layout *layout,
                             const tess_sequence *sequences, uint32_t n_sequences,
                             uint32_t tile_rows, uint32_t pack_rows) {
    int64_t max_keys = 0;
    begin(jobs, runtime, layout, sequences, n_sequences, tile_rows, pack_rows);
    for (uint32_t s = 0; s < n_sequences; s++)
        if (sequences[s].q_len != 0 && sequences[s].kv_len > max_keys)
            max_keys = sequences[s].kv_len;
    TESS_RETURN_IF_ERROR(tess_tiler_create(jobs->tiler, runtime, layout, max_keys));
    return begin_count(jobs);
}

tess_status tess_jobs_create_beside(tess_jobs *jobs, const tess_jobs *first, uint32_t tile_rows,
                                    uint32_t pack_rows) {
    begin(jobs, first->runtime, first->tiler->layout, first->sequences, first->n_sequences,
          tile_rows, pack_rows);
    jobs->tiler = first->tiler;
    return begin_count(jobs);
}

void tess_jobs_group(tess_jobs *jobs, tess_pools *pools) {
    if (!pools->compact) return;
    jobs->pools = pools;
    find_runs(jobs->tiler->layout, pools->kv_order, jobs->runs, &jobs->n_runs);
}

void tess_jobs_release(tess_jobs *jobs) {
    if (!jobs->runtime) return;
    if (jobs->tiler->layout) {
        const tess_layout *layout = jobs->tiler->layout;
        size_t heads = (size_t)layout->n_heads;
        tess_order_release(&jobs->order, jobs->runtime);
        tess_mem_free(jobs->runtime, jobs->below, below_bytes(jobs));
        tess_mem_free(jobs->runtime, jobs->pack, layout->n_classes * sizeof *jobs->pack);
        tess_mem_free(jobs->runtime, jobs->packs, layout->n_classes * sizeof *jobs->packs);
        tess_mem_free(jobs->runtime, jobs->runs, heads * sizeof *jobs->runs);
    }
    tess_tiler_release(&jobs->own_tiler);
    jobs->runtime = NULL;
}

/* ------------------------------------------------------------------ counting */

/* Adds `times` jobs of `blocks` key blocks each, or their parts. False: these make 2^32 jobs or
 * more. */
static bool count_job(tess_jobs *jobs, uint64_t blocks, uint64_t times, uint32_t rows) {
    uint64_t parts = split_parts(&jobs->split, blocks);
    jobs->n_blocks += blocks * times;
    jobs->n_jobs += parts * times;
    if (parts == 1) {
        *tess_order_bucket(&jobs->order, blocks) += (uint32_t)times;
        return true;
    }
    jobs->n_merges += times;
    jobs->n_partials += parts * times;
    if (rows > jobs->partial_rows) jobs->partial_rows = rows;
    if (jobs->n_jobs + jobs->n_merges > UINT32_MAX) return false;
    if (jobs->split.fixed) {
        for (uint64_t part = 0, at = 0, next; part < parts; part++, at = next) {
            next = split_begin(&jobs->split, blocks, parts, part + 1);
            *tess_order_bucket(&jobs->order, next - at) += (uint32_t)times;
        }
        return true;
    }
    /* Parts differ by at most one. */
    const uint64_t size = blocks / parts, longer = blocks % parts;
    *tess_order_bucket(&jobs->order, size) += (uint32_t)((parts - longer) * times);
    if (longer) *tess_order_bucket(&jobs->order, size + 1) += (uint32_t)(longer * times);
    return true;
}

/* Adds up the packs, where key blocks of all of them follow from where the tile is and from the
 * residue of a class. */
static void sum_packs(tess_jobs *jobs) {
    uint32_t sum = 0;
    jobs->causal = jobs->below && jobs->n_packs > 1;
    if (!jobs->causal) return;
    memset(jobs->below, 0, below_bytes(jobs));
    jobs->dense_jobs = jobs->strided_jobs = 0;
    for (uint32_t n = 0; n < jobs->n_packs; n++) {
        const tess_pack *pack = &jobs->packs[n];
        const tess_head_pattern *pattern = &jobs->tiler->layout->patterns[pack->cls];
        const bool strided = pattern->kind == TESS_HEAD_STRIDED;
        if (!pattern->causal || (!strided && pattern->kind != TESS_HEAD_DENSE)) {
            jobs->causal = false;
            return;
        }
        *(strided ? &jobs->strided_jobs : &jobs->dense_jobs) += pack->jobs;
        if (strided) jobs->below[pattern->first + 1] += pack->jobs;
    }
    for (int64_t residue = 0; residue <= jobs->grid.stride; residue++)
        sum = jobs->below[residue] += sum;
}

/* The jobs that one tile makes of each class in the runs [first, last), with at most `heads` heads
 * a job. */
static void count_packs(tess_jobs *jobs, uint32_t heads, uint32_t first, uint32_t last) {
    memset(jobs->pack, 0xff, jobs->tiler->layout->n_classes * sizeof *jobs->pack);
    jobs->n_packs = 0;
    for (uint32_t r = first; r < last; r++) {
        const tess_head_run *run = &jobs->runs[r];
        const uint32_t most = (uint32_t)smaller(heads, run->heads);
        if (jobs->pack[run->cls] == UINT32_MAX) {
            jobs->pack[run->cls] = jobs->n_packs;
            jobs->packs[jobs->n_packs++] = (tess_pack){.cls = run->cls};
        }
        tess_pack *pack = &jobs->packs[jobs->pack[run->cls]];
        pack->jobs += (run->heads - 1) / heads + 1;
        if (most > pack->heads) pack->heads = most;
    }
    sum_packs(jobs);
}

/* Without a split only lengths matter, and the sums stay in registers. A section often has a single
 * class, which is then looked up once. */
static void count_causal(tess_jobs *jobs, tess_tile tile, tess_causal causal) {
    const uint32_t times = jobs->packs[0].jobs, shift = jobs->order.shift;
    uint32_t *const bucket = jobs->order.bucket;
    uint64_t n_jobs = 0, n_blocks = 0;
    do {
        const uint64_t blocks = tess_causal_blocks(&causal, &tile);
        bucket[blocks >> shift] += times;
        n_blocks += blocks;
        n_jobs++;
    } while (tess_tile_next(&jobs->grid, &tile));
    jobs->n_jobs += n_jobs * times;
    jobs->n_blocks += n_blocks * times;
}

/* The same for all packs at once: strided ones read as many key blocks, and those one more whose
 * next strided block lies before the local ones. */
static void count_packs_causal(tess_jobs *jobs, tess_tile tile) {
    const uint32_t shift = jobs->order.shift, dense = jobs->dense_jobs,
                   strided = jobs->strided_jobs;
    uint32_t *const bucket = jobs->order.bucket;
    uint64_t n_jobs = 0, n_blocks = 0;
    do {
        const uint64_t all = (uint64_t)(tile.i_last + 1),
                       blocks = all + (uint64_t)(tile.quotient - tile.start);
        const uint32_t more = jobs->below[tile.rest];
        if (dense) bucket[all >> shift] += dense;
        if (more) bucket[(blocks + 1) >> shift] += more;
        if (more < strided) bucket[blocks >> shift] += strided - more;
        n_blocks += all * dense + blocks * strided + more;
        n_jobs += dense + strided;
    } while (tess_tile_next(&jobs->grid, &tile));
    jobs->n_jobs += n_jobs;
    jobs->n_blocks += n_blocks;
}

static void count_whole(tess_jobs *jobs, tess_tile tile, const tess_key_span *span) {
    const tess_pack *const end = jobs->packs + jobs->n_packs;
    uint32_t *const bucket = jobs->order.bucket;
    const uint32_t shift = jobs->order.shift;
    uint64_t n_jobs = 0, n_blocks = 0;
    tess_causal causal;
    if (jobs->n_packs == 1 &&
        tess_tiler_causal(jobs->tiler, jobs->packs[0].cls, &tile, span, &causal)) {
        count_causal(jobs, tile, causal);
        return;
    }
    if (jobs->causal && span->whole && tile.first >= 0) {
        count_packs_causal(jobs, tile);
        return;
    }
    do {
        for (const tess_pack *pack = jobs->packs; pack < end; pack++) {
            const uint64_t blocks = tess_tile_blocks(jobs->tiler, pack->cls, &tile, span);
            bucket[blocks >> shift] += pack->jobs;
            n_blocks += blocks * pack->jobs;
            n_jobs += pack->jobs;
        }
    } while (tess_tile_next(&jobs->grid, &tile));
    jobs->n_jobs += n_jobs;
    jobs->n_blocks += n_blocks;
}

static tess_status count_parts(tess_jobs *jobs, tess_tile tile, const tess_key_span *span) {
    do {
        const uint32_t rows = (uint32_t)(tile.last - tile.first + 1);
        for (uint32_t n = 0; n < jobs->n_packs; n++) {
            const tess_pack *pack = &jobs->packs[n];
            if (!count_job(jobs, tess_tile_blocks(jobs->tiler, pack->cls, &tile, span), pack->jobs,
                           rows * pack->heads))
                return tess_unsupported(
                    "tess_plan_create: kv_split: its parts make 2^32 jobs or more");
        }
    } while (tess_tile_next(&jobs->grid, &tile));
    return TESS_OK;
}

/* BLOCKS: joins the rows of the mask that the jobs read. */
static tess_status join_rows_of(tess_jobs *jobs, tess_tile tile) {
    do {
        for (uint32_t n = 0; n < jobs->n_packs; n++) {
            TESS_RETURN_IF_ERROR(tess_tiler_join(jobs->tiler, jobs->packs[n].cls, &tile));
        }
    } while (tess_tile_next(&jobs->grid, &tile));
    return TESS_OK;
}

/* `joined`: the rows of a mask are joined already. */
static tess_status count_sequence(tess_jobs *jobs, uint32_t s, bool joined) {
    const tess_layout *layout = jobs->tiler->layout;
    const tess_key_span span = tess_jobs_span(jobs, s);
    tess_tile begin;
    split_for(&jobs->split, &jobs->sequences[s]);
    tess_jobs_tile(jobs, s, &begin);
    if (layout->patterns[0].kind == TESS_HEAD_BLOCKS && !joined)
        TESS_RETURN_IF_ERROR(join_rows_of(jobs, begin));
    if (jobs->split.length || jobs->split.max_parts)
        TESS_RETURN_IF_ERROR(count_parts(jobs, begin, &span));
    else
        count_whole(jobs, begin, &span);
    jobs->n_read += (uint64_t)((span.end - span.first) * layout->n_kv_heads);
    return TESS_OK;
}

/* Refuses batches whose jobs could not be numbered, without a split. */
static tess_status check_count(const tess_jobs *jobs) {
    const uint64_t heads = (uint64_t)jobs->tiler->layout->n_heads;
    uint64_t bound = 0;
    for (uint32_t s = 0; s < jobs->n_sequences; s++) {
        if (!tess_jobs_has(jobs, &jobs->sequences[s])) continue;
        bound += tess_grid_tiles(&jobs->grid, jobs->sequences[s].q_len) * heads;
        if (bound > UINT32_MAX)
            return tess_unsupported(
                "tess_plan_create: batch: its rows and heads make 2^32 jobs or more");
    }
    return TESS_OK;
}

tess_status tess_jobs_count(tess_jobs *jobs) {
    uint32_t packed = 0, most_heads = 0; /* of a job; as far as there are any */
    TESS_RETURN_IF_ERROR(check_count(jobs));
    jobs->n_jobs = jobs->n_merges = jobs->n_partials = jobs->n_blocks = jobs->n_read = 0;
    jobs->most_rows = 0;
    jobs->partial_rows = 0;
    tess_order_begin(&jobs->order);
    for (uint32_t s = 0; s < jobs->n_sequences; s++) {
        const tess_sequence *sequence = &jobs->sequences[s];
        if (!tess_jobs_has(jobs, sequence)) continue;
        uint32_t heads = heads_of_job(jobs, sequence);
        if (heads != packed) {
            count_packs(jobs, heads, 0, jobs->n_runs);
            most_heads = 0;
            for (uint32_t n = 0; n < jobs->n_packs; n++)
                most_heads = (uint32_t)larger(most_heads, jobs->packs[n].heads);
        }
        packed = heads;
        jobs->most_rows = (uint32_t)larger(jobs->most_rows,
                                           smaller(sequence->q_len, jobs->grid.step) * most_heads);
        TESS_RETURN_IF_ERROR(count_sequence(jobs, s, false));
    }
    tess_order_end(&jobs->order);
    return TESS_OK;
}

/* ------------------------------------------------------------------ placing */

typedef struct placing {
    tess_job *jobs;
    tess_merge *merges;
    uint64_t n_merges, n_partials;
} placing;

/* What the jobs of one tile have in common. */
typedef struct placed_tile {
    uint32_t sequence, row;
    uint16_t rows, cls;
} placed_tile;

/* Writes each field to its place. Copying a job whose fields were just written would stall on store
 * forwarding. */
static void write_job(tess_job *job, const placed_tile *tile, uint32_t head, uint32_t heads,
                      const tess_keys *keys, uint32_t partial) {
    job->sequence = tile->sequence;
    job->head = (uint16_t)head;
    job->heads = (uint16_t)heads;
    job->row = tile->row;
    job->rows = tile->rows;
    job->cls = tile->cls;
    job->left_offset = keys->left_offset;
    job->left_count = keys->left_count;
    job->right_offset = keys->right_offset;
    job->right_count = keys->right_count;
    job->interval_start = keys->interval_start;
    job->interval_blocks = keys->interval_blocks;
    job->mask_head = (uint16_t)keys->mask_head;
    job->mask_tail = (uint16_t)keys->mask_tail;
    job->partial = partial;
}

/* Writes the parts of a job and their merge. */
static void place_parts(tess_jobs *jobs, placing *place, const placed_tile *tile, uint32_t head,
                        uint32_t heads, const tess_keys *keys, uint64_t parts) {
    uint64_t blocks = tess_keys_blocks(keys);
    tess_merge *merge = &place->merges[place->n_merges++];
    merge->sequence = tile->sequence;
    merge->head = (uint16_t)head;
    merge->heads = (uint16_t)heads;
    merge->row = tile->row;
    merge->rows = tile->rows;
    merge->reserved = 0;
    merge->partial = (uint32_t)place->n_partials;
    merge->parts = (uint32_t)parts;
    for (uint64_t part = 0; part < parts; part++) {
        uint64_t begin = split_begin(&jobs->split, blocks, parts, part),
                 end = split_begin(&jobs->split, blocks, parts, part + 1);
        tess_keys of_part;
        split_keys(keys, begin, end, &of_part);
        write_job(&place->jobs[(*tess_order_bucket(&jobs->order, end - begin))++], tile, head,
                  heads, &of_part, (uint32_t)place->n_partials++);
    }
}

/* Places the jobs that one tile makes of one run of heads, without a split. */
static inline void place_run(tess_job *out, uint32_t *bucket, const placed_tile *at,
                             const tess_head_run *run, uint32_t heads, const tess_keys *keys) {
    uint32_t head = run->head, left = run->heads, n = *bucket;
    for (; left > heads; left -= heads, head += heads)
        write_job(&out[n++], at, head, heads, keys, TESS_NO_PARTIAL);
    write_job(&out[n++], at, head, left, keys, TESS_NO_PARTIAL);
    *bucket = n;
}

/* Places the jobs of one kv head, whose runs are [first, last), without a split. `tile` is the
 * sequence's first. */
static void place_whole(tess_jobs *jobs, tess_job *out, uint32_t s, tess_tile tile, uint32_t first,
                        uint32_t last, uint32_t heads) {
    const tess_key_span span = tess_jobs_span(jobs, s);
    const int64_t p0 = tile.first;
    const tess_head_run *const end = jobs->runs + last;
    uint32_t *const bucket = jobs->order.bucket;
    const uint32_t shift = jobs->order.shift;
    const tess_grid grid = jobs->grid;
    tess_causal causal;
    tess_keys keys;
    if (last - first == 1 &&
        tess_tiler_causal(jobs->tiler, jobs->runs[first].cls, &tile, &span, &causal)) {
        const tess_head_run run = jobs->runs[first];
        do {
            const placed_tile at = {s, (uint32_t)(tile.first - p0),
                                    (uint16_t)(tile.last - tile.first + 1), run.cls};
            tess_causal_keys(&causal, &tile, span.kv_len, &keys);
            place_run(out, &bucket[tess_keys_blocks(&keys) >> shift], &at, &run, heads, &keys);
        } while (tess_tile_next(&grid, &tile));
        return;
    }
    do {
        for (const tess_head_run *run = jobs->runs + first; run < end; run++) {
            const placed_tile at = {s, (uint32_t)(tile.first - p0),
                                    (uint16_t)(tile.last - tile.first + 1), run->cls};
            tess_tile_keys(jobs->tiler, run->cls, &tile, &span, &keys);
            place_run(out, &bucket[tess_keys_blocks(&keys) >> shift], &at, run, heads, &keys);
        }
    } while (tess_tile_next(&grid, &tile));
}

/* The same with a split; some jobs may be too short for it. */
static void place_split(tess_jobs *jobs, placing *place, uint32_t s, tess_tile tile, uint32_t first,
                        uint32_t last, uint32_t heads) {
    const tess_key_span span = tess_jobs_span(jobs, s);
    const int64_t p0 = tile.first;
    do {
        for (uint32_t r = first; r < last; r++) {
            const tess_head_run *run = &jobs->runs[r];
            const placed_tile at = {s, (uint32_t)(tile.first - p0),
                                    (uint16_t)(tile.last - tile.first + 1), run->cls};
            tess_keys keys;
            tess_tile_keys(jobs->tiler, run->cls, &tile, &span, &keys);
            const uint64_t blocks = tess_keys_blocks(&keys),
                           parts = split_parts(&jobs->split, blocks);
            for (uint32_t done = 0; done < run->heads; done += heads) {
                const uint32_t head = run->head + done,
                               count = (uint32_t)smaller(heads, run->heads - done);
                if (parts == 1)
                    write_job(&place->jobs[(*tess_order_bucket(&jobs->order, blocks))++], &at, head,
                              count, &keys, TESS_NO_PARTIAL);
                else
                    place_parts(jobs, place, &at, head, count, &keys, parts);
            }
        }
    } while (tess_tile_next(&jobs->grid, &tile));
}

/* The runs of sequence s that belong to the section. */
static void section_runs(const tess_sections *x, uint32_t s, uint32_t *first, uint32_t *last) {
    *first = s == x->begin.sequence ? x->begin.run : x->first;
    *last = s == x->end.sequence ? x->end.run : x->last;
}

/* Counts the jobs of a section into the buckets. This cannot fail, because counting all of them has
 * succeeded. */
static void count_section(tess_jobs *jobs, const tess_sections *x) {
    const tess_jobs totals = *jobs;
    jobs->n_jobs = jobs->n_merges = jobs->n_partials = jobs->n_blocks = 0;
    tess_order_again(&jobs->order);
    for (uint32_t s = x->begin.sequence; s <= x->end.sequence && s < jobs->n_sequences; s++) {
        uint32_t first, last;
        section_runs(x, s, &first, &last);
        if (!tess_jobs_has(jobs, &jobs->sequences[s]) || first == last) continue;
        count_packs(jobs, heads_of_job(jobs, &jobs->sequences[s]), first, last);
        (void)count_sequence(jobs, s, true);
    }
    *jobs = totals;
}

static void place_section(tess_jobs *jobs, placing *place, const tess_sections *x) {
    for (uint32_t s = x->begin.sequence; s <= x->end.sequence && s < jobs->n_sequences; s++) {
        uint32_t first, last;
        section_runs(x, s, &first, &last);
        const tess_sequence *sequence = &jobs->sequences[s];
        if (!tess_jobs_has(jobs, sequence)) continue;
        const uint32_t heads = heads_of_job(jobs, sequence);
        tess_tile tile;
        split_for(&jobs->split, sequence);
        tess_jobs_tile(jobs, s, &tile);
        for (uint32_t run = first, next; run < last; run = next) {
            next = tess_kv_head_end(jobs, run);
            if (jobs->split.length || jobs->split.max_parts)
                place_split(jobs, place, s, tile, run, next, heads);
            else
                place_whole(jobs, place->jobs, s, tile, run, next, heads);
        }
    }
}

void tess_jobs_place(tess_jobs *jobs, tess_job *out, tess_merge *merges) {
    placing place = {out, merges, 0, 0};
    tess_sections sections;
    uint32_t at = 0, group = 0;
    for (uint32_t first = 0, last; first < jobs->n_runs; first = last) {
        last = tess_jobs_group_end(jobs, first);
        if (jobs->pools) jobs->pools->all[group++].first_job[jobs->share] = at;
        tess_sections_start(&sections, jobs, first, last);
        while (tess_sections_next(&sections)) {
            /* Without groups and sections, the buckets hold what the last count left there. */
            if (sections.count != 0 || last - first != jobs->n_runs) count_section(jobs, &sections);
            at = tess_order_places(&jobs->order, at);
            place_section(jobs, &place, &sections);
        }
    }
    if (jobs->pools) jobs->pools->all[group].first_job[jobs->share] = at;
}

/* ------------------------------------------------------------------ ranges */

uint64_t tess_jobs_ranges(tess_cost_fn *cost_of, const void *context, uint64_t total,
                          uint64_t limit, uint64_t *start, uint64_t room) {
    uint64_t n = 0, sum = 0;
    for (uint64_t job = 0; job < total; job++) {
        uint64_t cost = cost_of(context, job);
        if (cost == 0) cost = 1;
        if (job == 0 || sum + cost > limit) {
            if (n < room) start[n] = job;
            n++;
            sum = 0;
        }
        sum += cost;
    }
    if (n < room) start[n] = total;
    return n;
}
