/* SPDX-License-Identifier: Apache-2.0 */
#include "pools.h"

#include <string.h>

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
        pools->all[s].first_job = place;
        place += pools->all[s].heads;
    }
    for (uint32_t g = 0; g < heads; g++)
        pools->kv_order[pools->all[pools->kv_heads[g].storage].first_job++] = g;
}

tess_status tess_pools_create(tess_pools *pools, tess_runtime *runtime, const tess_layout *layout,
                              int64_t max_kv_len) {
    const uint32_t heads = (uint32_t)layout->n_kv_heads;
    pools->n = 1;
    pools->all = pools->one;
    pools->one[0] = (tess_pool){.heads = heads, .tokens = max_kv_len};
    if (!pools->compact) return TESS_OK;
    if (!layout->kv_efficient)
        return tess_invalid("%s: flags: TESS_PLAN_COMPACT needs a layout that is causal and "
                            "KV-efficient",
                            in_create);
    const int64_t n_blocks = ceil_div(max_kv_len, layout->pattern.block);
    pools->n_slots = (uint64_t)layout->n_slot_lists * (uint64_t)n_blocks;
    if (pools->n_slots > UINT32_MAX)
        return tess_unsupported("%s: flags: TESS_PLAN_COMPACT: the slots of all kv heads are 2^32 "
                                "or more",
                                in_create);
    pools->n_blocks = (uint32_t)n_blocks;
    pools->n = layout->n_storages;
    TESS_RETURN_IF_ERROR(allocate(pools, runtime, heads));
    tess_kv_slots_heads(layout, pools->n_blocks, pools->kv_heads);
    order_heads(pools, heads);
    for (uint32_t s = 0; s < pools->n; s++)
        pools->all[s].tokens = tess_kv_slots_tokens(layout, s, max_kv_len);
    return TESS_OK;
}

void tess_pools_release(tess_pools *pools, tess_runtime *runtime) {
    tess_mem_free(runtime, pools->memory, (size_t)pools->bytes);
}

int64_t tess_pools_pages(const tess_pools *pools) {
    int64_t most = 0;
    for (uint32_t s = 0; s < pools->n; s++)
        most = larger(most, ceil_div(pools->all[s].tokens, pools->page));
    return most;
}
