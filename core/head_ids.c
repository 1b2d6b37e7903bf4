/* SPDX-License-Identifier: Apache-2.0 */
#include "head_ids.h"

#include <string.h>

bool tess_head_ids_follow(const int32_t *ids, int32_t n_heads) {
    for (int32_t h = 1; h < n_heads; h++)
        if (ids[h] - ids[h - 1] != 1) return false;
    return true;
}

/* Ids in range, and the query heads of each kv head in one group of the model. */
static tess_status check_groups(const tess_layout *x, const char *function, const int32_t *ids) {
    const int32_t here = x->n_heads / x->n_kv_heads, model = x->heads_total / x->kv_heads_total;
    for (int32_t h = 0; h < x->n_heads; h++) {
        const int32_t first = ids[h - h % here];
        if (ids[h] < 0 || ids[h] >= x->heads_total)
            return tess_invalid("%s: head_ids: must be 0 to %d (heads_total - 1), got %d for head "
                                "%d",
                                function, (int)x->heads_total - 1, (int)ids[h], (int)h);
        if (ids[h] / model != first / model)
            return tess_invalid(
                "%s: head_ids: head %d has id %d, which is not of the group of %d query heads that "
                "id %d of its kv head (%d) is of",
                function, (int)h, (int)ids[h], (int)model, (int)first, (int)(h / here));
    }
    return TESS_OK;
}

/* No id stands twice. Open addressing in a table with at least twice as many elements as heads, of
 * which one holds a head plus 1. */
static tess_status check_distinct(const char *function, const int32_t *ids, int32_t n_heads,
                                  uint32_t *table, uint64_t table_size) {
    for (int32_t h = 0; h < n_heads; h++) {
        uint64_t at = ((uint64_t)ids[h] * UINT64_C(0x9e3779b97f4a7c15) >> 32) & (table_size - 1);
        for (; table[at] != 0; at = (at + 1) & (table_size - 1))
            if (ids[table[at] - 1] == ids[h])
                return tess_invalid("%s: head_ids: heads %u and %d both have id %d", function,
                                    (unsigned)table[at] - 1, (int)h, (int)ids[h]);
        table[at] = (uint32_t)h + 1;
    }
    return TESS_OK;
}

tess_status tess_head_ids_check(const tess_layout *x, const char *function, const int32_t *ids) {
    TESS_RETURN_IF_ERROR(check_groups(x, function, ids));
    size_t table_size = 2;
    while (table_size < 2 * (size_t)x->n_heads) table_size *= 2;
    const size_t bytes = table_size * sizeof(uint32_t);
    uint32_t *table = tess_mem_alloc(x->runtime, bytes, 64);
    if (!table)
        return tess_fail(TESS_ERROR_OUT_OF_MEMORY, "%s: head_ids: no memory to compare %d ids",
                         function, (int)x->n_heads);
    memset(table, 0, bytes);
    const tess_status status = check_distinct(function, ids, x->n_heads, table, table_size);
    tess_mem_free(x->runtime, table, bytes);
    return status;
}
