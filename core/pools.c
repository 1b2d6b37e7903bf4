/* SPDX-License-Identifier: Apache-2.0 */
#include "pools.h"

#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "kv_slots.h"

static const char *const in_create = "tess_plan_create";

static tess_status allocate(tess_pools *pools, tess_runtime *runtime, size_t heads) {
    const size_t all = ((size_t)pools->n + 1) * sizeof *pools->all,
                 kv_heads = heads * sizeof *pools->kv_heads;
    pools->bytes = all + kv_heads + heads * sizeof *pools->kv_order;
    char *memory = tess_mem_alloc(runtime, (size_t)pools->bytes, 64);
    if (!memory)
        return tess_fail(TESS_ERROR_OUT_OF_MEMORY, "%s: no memory for %u storage groups", in_create,
                         (unsigned)pools->n);
    memset(memory, 0, (size_t)pools->bytes);
    pools->memory = memory;
    pools->all = (tess_pool *)(void *)memory;
    pools->kv_heads = (tess_kv_head *)(void *)(memory + all);
    pools->kv_order = (uint32_t *)(void *)(memory + all + kv_heads);
    return TESS_OK;
}

/* Counts the heads of each group and puts them in order; `first_job` is the place of the next head
 * for a while. */
static void order_heads(tess_pools *pools, uint32_t heads) {
    uint64_t place = 0;
    for (uint32_t g = 0; g < heads; g++) pools->all[pools->kv_heads[g].storage].heads++;
    for (uint32_t s = 0; s < pools->n; s++) {
        pools->all[s].first_job[0] = place;
        place += pools->all[s].heads;
    }
    for (uint32_t g = 0; g < heads; g++)
        pools->kv_order[pools->all[pools->kv_heads[g].storage].first_job[0]++] = g;
}

/* ------------------------------------------------------------------ parts */

static int compare_phases(const void *a, const void *b) {
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Finds the phases of all parts. */
static tess_status find_phases(tess_pools *pools, tess_runtime *runtime, const tess_layout *layout,
                               const tess_part_starts *starts) {
    pools->n_phases = 1;
    if (starts->any) pools->n_phases = (uint32_t)tess_kv_slots_phases(layout);
    if (!starts->first_block || starts->n == 0) return TESS_OK;
    pools->phases_bytes = (uint64_t)starts->n * sizeof *pools->phases;
    pools->phases = pools->phases_bytes > SIZE_MAX
                        ? NULL
                        : tess_mem_alloc(runtime, (size_t)pools->phases_bytes, 64);
    if (!pools->phases)
        return tess_fail(TESS_ERROR_OUT_OF_MEMORY, "%s: kv_first: no memory for %u positions",
                         in_create, (unsigned)starts->n);
    for (uint32_t n = 0; n < starts->n; n++)
        pools->phases[n] = (uint32_t)tess_kv_slots_phase(layout, starts->first_block[n]);
    qsort(pools->phases, starts->n, sizeof *pools->phases, compare_phases);
    for (uint32_t n = 1; n < starts->n; n++)
        if (pools->phases[n] != pools->phases[pools->n_phases - 1])
            pools->phases[pools->n_phases++] = pools->phases[n];
    return TESS_OK;
}

/* The place of a phase among the plan's. */
static uint32_t place_of(const tess_pools *pools, uint32_t phase) {
    uint32_t low = 0;
    if (!pools->phases) return phase;
    for (uint32_t high = pools->n_phases; high - low > 1;) {
        const uint32_t middle = low + (high - low) / 2;
        if (pools->phases[middle] <= phase)
            low = middle;
        else
            high = middle;
    }
    return low;
}

int64_t tess_pools_kv_start(const tess_pools *pools, const tess_layout *layout, int64_t first) {
    const uint32_t place = place_of(pools, (uint32_t)tess_kv_slots_phase(layout, first));
    return (int64_t)place * pools->n_blocks - first;
}

/* Sets how many token places of each pool the parts take at most. */
static void measure_parts(tess_pools *pools, const tess_layout *layout,
                          const tess_part_starts *starts) {
    for (uint32_t n = 0; n < starts->n; n++) {
        const int64_t first = starts->first_block[n],
                      keys = starts->sequences[n].kv_len - first * layout->pattern.block;
        if (n > 0 && first == starts->first_block[n - 1] &&
            starts->sequences[n].kv_len == starts->sequences[n - 1].kv_len)
            continue;
        for (uint32_t s = 0; s < pools->n; s++)
            pools->all[s].tokens =
                larger(pools->all[s].tokens, tess_kv_slots_tokens(layout, s, first, keys));
    }
}

static tess_status size_lists(tess_pools *pools, const tess_layout *layout, int64_t n_blocks) {
    uint64_t entries;
    if (!checked_mul((uint64_t)n_blocks, pools->n_phases, &entries) || entries > INT32_MAX ||
        entries * layout->n_slot_lists > UINT32_MAX)
        return tess_unsupported("%s: flags: TESS_PLAN_COMPACT: the slots of all kv heads are 2^32 "
                                "or more%s",
                                in_create,
                                pools->n_phases > 1 ? ", since kv_first may be anywhere" : "");
    pools->n_blocks = (uint32_t)n_blocks;
    pools->n_slots = entries * layout->n_slot_lists;
    return TESS_OK;
}

/* ------------------------------------------------------------------ the whole */

tess_status tess_pools_create(tess_pools *pools, tess_runtime *runtime, const tess_layout *layout,
                              int64_t max_kv_len, const tess_part_starts *starts) {
    const uint32_t heads = (uint32_t)layout->n_kv_heads;
    pools->n = 1;
    pools->all = pools->one;
    pools->one[0] = (tess_pool){.heads = heads, .tokens = max_kv_len};
    if (!pools->compact) return TESS_OK;
    if (!layout->kv_efficient)
        return tess_invalid("%s: flags: TESS_PLAN_COMPACT needs a layout that is causal and "
                            "KV-efficient",
                            in_create);
    TESS_RETURN_IF_ERROR(find_phases(pools, runtime, layout, starts));
    TESS_RETURN_IF_ERROR(size_lists(pools, layout, ceil_div(max_kv_len, layout->pattern.block)));
    pools->n = layout->n_storages;
    TESS_RETURN_IF_ERROR(allocate(pools, runtime, heads));
    tess_kv_slots_heads(layout, pools->n_phases * pools->n_blocks, pools->kv_heads);
    order_heads(pools, heads);
    if (pools->phases) {
        measure_parts(pools, layout, starts);
        return TESS_OK;
    }
    for (uint32_t s = 0; s < pools->n; s++)
        pools->all[s].tokens = starts->any ? tess_kv_slots_most_tokens(layout, s, max_kv_len)
                                           : tess_kv_slots_tokens(layout, s, 0, max_kv_len);
    return TESS_OK;
}

void tess_pools_release(tess_pools *pools, tess_runtime *runtime) {
    tess_mem_free(runtime, pools->memory, (size_t)pools->bytes);
    tess_mem_free(runtime, pools->phases, (size_t)pools->phases_bytes);
}

int64_t tess_pools_pages(const tess_pools *pools) {
    int64_t most = 0;
    for (uint32_t s = 0; s < pools->n; s++)
        most = larger(most, ceil_div(pools->all[s].tokens, pools->page));
    return most;
}
