/* SPDX-License-Identifier: Apache-2.0 */
#include "order.h"

#include <string.h>

#include "jobs.h"

/* Buckets are exact up to this many key blocks, and steps of equal size beyond. */
enum { MAX_BUCKETS = 16384 };

/* ------------------------------------------------------------------ the counting sort */

static size_t mark_bytes(const tess_order *order) {
    return (order->n_buckets / 64 + (size_t)1) * sizeof *order->marks;
}

bool tess_order_create(tess_order *order, tess_runtime *runtime, uint64_t most_blocks) {
    if (order->shift == 0)
        while (most_blocks >> order->shift >= MAX_BUCKETS) order->shift++;
    order->n_buckets = (uint32_t)(most_blocks >> order->shift) + 1;
    order->bucket = tess_mem_alloc(runtime, order->n_buckets * sizeof *order->bucket, 64);
    order->marks = tess_mem_alloc(runtime, mark_bytes(order), 64);
    if (order->marks) memset(order->marks, 0, mark_bytes(order));
    return order->bucket != NULL && order->marks != NULL;
}

void tess_order_release(tess_order *order, tess_runtime *runtime) {
    tess_mem_free(runtime, order->marks, mark_bytes(order));
    tess_mem_free(runtime, order->bucket, order->n_buckets * sizeof *order->bucket);
    order->bucket = NULL;
    order->marks = NULL;
}

void tess_order_begin(tess_order *order) {
    order->n_used = order->n_buckets;
    tess_order_again(order);
}

void tess_order_end(tess_order *order) {
    while (order->n_used > 0 && order->bucket[order->n_used - 1] == 0) order->n_used--;
}

void tess_order_again(tess_order *order) {
    memset(order->bucket, 0, order->n_used * sizeof *order->bucket);
}

uint32_t tess_order_places(tess_order *order, uint32_t at) {
    for (uint32_t b = order->n_used; b-- > 0;) {
        const uint32_t count = order->bucket[b];
        order->bucket[b] = at;
        at += count;
    }
    return at;
}

/* The highest bucket of a word of marks. */
static uint32_t highest(uint32_t word, uint64_t marks) {
    return word * 64 + 63 - (uint32_t)__builtin_clzll(marks);
}

uint32_t tess_order_marked_places(tess_order *order, uint32_t at) {
    for (uint32_t word = order->n_used / 64 + 1; word-- > 0;)
        for (uint64_t left = order->marks[word], bit; left != 0; left ^= bit) {
            const uint32_t b = highest(word, left), count = order->bucket[b];
            bit = UINT64_C(1) << b % 64;
            order->bucket[b] = at;
            at += count;
        }
    return at;
}

void tess_order_unmark(tess_order *order) {
    for (uint32_t word = 0; word <= order->n_used / 64; word++) {
        for (uint64_t left = order->marks[word], bit; left != 0; left ^= bit) {
            const uint32_t b = highest(word, left);
            bit = UINT64_C(1) << b % 64;
            order->bucket[b] = 0;
        }
        order->marks[word] = 0;
    }
}

/* ------------------------------------------------------------------ sections */

/* Key blocks that the last row reads of the kv head whose runs are [first, last): about what its
 * tiles share at any time. */
static uint64_t shared_blocks(const tess_jobs *jobs, uint32_t s, uint32_t first, uint32_t last) {
    const tess_key_span span = tess_jobs_span(jobs, s);
    const int64_t end = (int64_t)jobs->sequences[s].q_first + jobs->sequences[s].q_len;
    uint64_t sum = 0;
    tess_tile tile;
    if (span.end == span.first) return 0;
    tess_tile_begin(&jobs->grid, end - 1, end, &tile);
    for (uint32_t r = first; r < last; r++) {
        tess_keys keys;
        tess_tile_keys(jobs->tiler, jobs->runs[r].cls, &tile, &span, &keys);
        sum += tess_keys_blocks(&keys);
    }
    return smaller(sum, (uint64_t)(span.end - span.first));
}

/* Where the section that begins at `at` ends: after the kv head whose shared blocks bring *sum to
 * `target`. */
static tess_cursor section_end(const tess_sections *sections, tess_cursor at, uint64_t target,
                               uint64_t *sum) {
    const tess_jobs *jobs = sections->jobs;
    while (at.sequence < jobs->n_sequences) {
        const tess_sequence *sequence = &jobs->sequences[at.sequence];
        while (tess_jobs_has(jobs, sequence) && at.run < sections->last) {
            const uint32_t last = tess_kv_head_end(jobs, at.run);
            if (*sum >= target) return at;
            *sum += shared_blocks(jobs, at.sequence, at.run, last);
            at.run = last;
        }
        at.sequence++;
        at.run = sections->first;
    }
    return at;
}

/* section / count of the total, which is less than 2^63 / count: a job has 2^32 key blocks at most,
 * and there are 2^32 jobs. */
static uint64_t section_target(uint64_t total, uint64_t section, uint64_t count) {
    return total / count * section + total % count * section / count;
}

void tess_sections_start(tess_sections *sections, const tess_jobs *jobs, uint32_t first_run,
                         uint32_t last_run) {
    *sections =
        (tess_sections){.jobs = jobs, .first = first_run, .last = last_run, .end = {0, first_run}};
    /* The rows of a block mask have to be joined before it can be counted, which is worth doing
     * once only. */
    if (jobs->section_blocks == 0 || jobs->tiler->layout->patterns[0].kind == TESS_HEAD_BLOCKS)
        return;
    /* Sections are about equal: a small one at the end would begin its longest jobs when the device
     * has little else left to do. */
    (void)section_end(sections, sections->end, UINT64_MAX, &sections->total);
    sections->count = sections->total == 0 ? 1 : (sections->total - 1) / jobs->section_blocks + 1;
}

bool tess_sections_next(tess_sections *sections) {
    const tess_jobs *jobs = sections->jobs;
    sections->begin = sections->end;
    while (sections->begin.sequence < jobs->n_sequences) {
        sections->section++;
        sections->end = (tess_cursor){jobs->n_sequences, sections->first};
        if (sections->section < sections->count)
            sections->end =
                section_end(sections, sections->begin,
                            section_target(sections->total, sections->section, sections->count),
                            &sections->sum);
        /* The section is empty where the kv head before it was large enough for two. */
        if (sections->end.sequence != sections->begin.sequence ||
            sections->end.run != sections->begin.run)
            return true;
    }
    return false;
}
