/* SPDX-License-Identifier: Apache-2.0 */
/* Binding ranges of a launch: where a tensor is larger than a binding may be, some sequences, kv
 * heads, rows and keys are bound at a time, and every dispatch comes once for each range. */
#include <string.h>

#include "launch.h"

enum { FITS, ELSEWHERE, TOO_LONG };

static int is_cut(const tess_vk_unit *u) { return u->bound < u->all; }

static uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* What of a part a binding range needs: bytes [*start, *end) from the part's offset. A range of
 * rows has the first rows of jobs, and one of keys the ends of sequences; both reach as far as a
 * job does.
 */
static void cut(const tess_vk_run *run, const tess_vk_part *p, const tess_vk_bound *b,
                uint64_t *start, uint64_t *end) {
    const tess_vk_unit *units = run->units;
    const uint64_t *step = p->step;
    const uint64_t rows = b->first[VK_BY_ROW], keys = b->first[VK_BY_KEY],
                   reach = units[VK_BY_KEY].reach;
    uint64_t tokens = p->tokens, last = p->last_bytes;
    *start = b->first[VK_BY_SEQUENCE] * step[VK_BY_SEQUENCE] +
             b->first[VK_BY_KV_HEAD] * step[VK_BY_KV_HEAD];
    *end = p->bytes - (units[VK_BY_KV_HEAD].all - b->end[VK_BY_KV_HEAD]) * step[VK_BY_KV_HEAD];
    if (step[VK_BY_ROW] && is_cut(&units[VK_BY_ROW])) {
        *start += rows * step[VK_BY_ROW];
        tokens = smaller(tokens, b->end[VK_BY_ROW] + units[VK_BY_ROW].reach);
    }
    if (step[VK_BY_KEY] && is_cut(&units[VK_BY_KEY])) {
        *start += (keys > reach ? keys - reach : 0) * step[VK_BY_KEY];
        tokens = smaller(tokens, b->end[VK_BY_KEY]);
    }
    if (tokens) last += (tokens - 1) * p->token_bytes;
    last += (b->end[VK_BY_SEQUENCE] - UINT64_C(1)) * step[VK_BY_SEQUENCE] +
            (b->end[VK_BY_KV_HEAD] - UINT64_C(1)) * step[VK_BY_KV_HEAD];
    if (p->tokens) *end = smaller(*end, last);
    if (*start < *end) return;
    /* No job of the range has anything there. */
    *start = 0;
    *end = p->item;
}

/* Extends what is bound in the part's slot by the part. Descriptors begin at multiples of an
 * alignment. `first` is what was bound there before, or NULL. */
static int cover(const tess_vk_run *run, const tess_vk_part *p, const tess_vk_bound *bound,
                 vk_buffer_range *range, const tess_vk_part *first) {
    const vk_limits *limits = &run->device->found.properties.limits;
    const uint64_t align = limits->min_storage_align > 4 ? limits->min_storage_align : 4;
    uint64_t start, end;
    if (first && range->buffer != p->buffer->handle) return ELSEWHERE;
    cut(run, p, bound, &start, &end);
    start = (p->buffer->offset + start) / align * align;
    end += p->buffer->offset;
    if (first) {
        start = range->offset < start ? range->offset : start;
        end = range->offset + range->range > end ? range->offset + range->range : end;
    }
    *range = (vk_buffer_range){p->buffer->handle, start, end - start};
    return end - start > limits->max_storage_range ? TOO_LONG : FITS;
}

static const uint8_t *slots_of(const tess_vk_run *run) {
    return run->device->slots[tess_vk_family(run->launch->op)];
}

static uint32_t ranges_of(const tess_vk_unit *u) { return (u->all - 1) / u->bound + 1; }

static void place(const tess_vk_run *run, uint32_t bind_range, tess_vk_bound *b) {
    memset(b, 0, sizeof *b);
    for (int n = 0; n < VK_UNITS; n++) {
        const tess_vk_unit *u = &run->units[n];
        const uint32_t count = ranges_of(u);
        b->first[n] = bind_range % count * u->bound;
        b->end[n] = u->all - b->first[n] < u->bound ? u->all : b->first[n] + u->bound;
        bind_range /= count;
    }
}

/* Binds all parts of a range. Where that fails, *at is the part that does not fit and *with the
 * one whose binding it shares, or NULL. */
static int bind(const tess_vk_run *run, uint32_t bind_range, tess_vk_bound *b,
                const tess_vk_part **at, const tess_vk_part **with) {
    const uint8_t *slots = slots_of(run);
    const tess_vk_part *first[TESS_BINDINGS] = {NULL};
    place(run, bind_range, b);
    for (uint32_t n = 0; n < run->n_parts; n++) {
        const tess_vk_part *p = &run->parts[n];
        const uint32_t slot = slots[p->binding];
        *at = p;
        *with = first[slot];
        const int result = cover(run, p, b, &b->ranges[slot], first[slot]);
        if (result != FITS) return result;
        if (!first[slot]) first[slot] = p;
    }
    return FITS;
}

/* What an element is away from the start of its range becomes an index, also where the range begins
 * behind the tensor: kernels count modulo 2^32. */
void tess_vk_bind_range(const tess_vk_run *run, uint32_t bind_range, tess_vk_bound *b) {
    const tess_vk_part *at, *with;
    const uint8_t *slots = slots_of(run);
    (void)bind(run, bind_range, b, &at, &with);
    for (uint32_t n = 0; n < run->n_parts; n++) {
        const tess_vk_part *p = &run->parts[n];
        const int64_t away = (int64_t)(p->buffer->offset - b->ranges[slots[p->binding]].offset);
        b->at[p->binding] = (tess_arg_i64)(away / (int64_t)p->item);
    }
}

static tess_status refuse(const tess_vk_run *run, int result, uint64_t bytes,
                          const tess_vk_part *at, const tess_vk_part *with) {
    const tess_host *host = run->device->host;
    const vk_limits *limits = &run->device->found.properties.limits;
    if (result == ELSEWHERE)
        return host->fail(host, TESS_ERROR_UNSUPPORTED,
                          "%s: must be in the VkBuffer of %s: they share a binding, since "
                          "maxPerStageDescriptorStorageBuffers is %u, and all apart are %d",
                          at->name, with->name, limits->max_stage_storage_buffers,
                          TESS_STORAGE_BUFFERS);
    return host->fail(host, TESS_ERROR_UNSUPPORTED,
                      "%s: its elements%s%s span %llu bytes, and maxStorageBufferRange is %u",
                      at->name, at->step[VK_BY_KV_HEAD] ? " of one job" : "",
                      with ? " and what shares their binding" : "", (unsigned long long)bytes,
                      limits->max_storage_range);
}

/* Halves what is bound of the unit that makes the part shortest, or with `any`, where what shares
 * its binding is too far away, of any; 0 where none is left. Below half of what a job reaches, rows
 * and keys gain nothing. */
static int halve(tess_vk_run *run, const tess_vk_part *p, int any) {
    tess_vk_unit *best = NULL;
    uint64_t most = 0;
    for (int n = 0; n < VK_UNITS; n++) {
        tess_vk_unit *u = &run->units[n];
        const uint64_t least = u->reach / 2 > 1 ? u->reach / 2 : 1;
        const uint64_t gain = u->bound / 2 * (any ? 1 : p->step[n]);
        if (u->bound <= least || gain <= most) continue;
        most = gain;
        best = u;
    }
    if (best) best->bound -= best->bound / 2;
    return best != NULL;
}

tess_status tess_vk_choose_ranges(tess_vk_run *run) {
    const uint32_t most = run->state->most_bind_ranges;
    const tess_vk_part *at = NULL, *with = NULL;
    tess_vk_bound b;
    for (;;) {
        double bind_ranges = 1;
        int result = FITS;
        for (int n = 0; n < VK_UNITS; n++) bind_ranges *= ranges_of(&run->units[n]);
        run->bind_ranges = bind_ranges <= most ? (uint32_t)bind_ranges : most;
        for (uint32_t n = 0; n < run->bind_ranges && result == FITS; n++)
            result = bind(run, n, &b, &at, &with);
        if (result == FITS && bind_ranges <= most) return TESS_OK;
        if (result == FITS)
            return run->device->host->fail(
                run->device->host, TESS_ERROR_UNSUPPORTED,
                "%s: its strides need %.0f ranges of maxStorageBufferRange (%u), and the plan has "
                "room for %u",
                run->parts[0].name, bind_ranges,
                run->device->found.properties.limits.max_storage_range, most);
        if (result == ELSEWHERE || (!halve(run, at, 0) && (!with || !halve(run, at, 1))))
            return refuse(run, result, b.ranges[slots_of(run)[at->binding]].range, at, with);
    }
}
