/* SPDX-License-Identifier: Apache-2.0 */
#include "block_table.h"

#include "checked.h"
#include "tensors.h"

static tess_status check_none(const char *function, const tess_block_table *t) {
    if (t->buffer.kind != TESS_BUFFER_NONE)
        return tess_invalid("%s: block_table.kind: must be none, since the plan has no pages",
                            function);
    if (t->stride != 0)
        return tess_invalid("%s: table_stride: must be 0, since the plan has no pages, got %lld",
                            function, (long long)t->stride);
    if (t->pages != 0)
        return tess_invalid("%s: pages: must be 0, since the plan has none, got %lld", function,
                            (long long)t->pages);
    return TESS_OK;
}

tess_status tess_block_table_check(const char *function, const tess_plan *plan,
                                   const tess_block_table *t, uint64_t *bytes) {
    const int64_t needed = plan->pools.page ? tess_pools_pages(&plan->pools) : 0;
    *bytes = 0;
    if (!plan->pools.page) return check_none(function, t);
    if (plan->kv_last < 0 && t->buffer.kind == TESS_BUFFER_NONE) return TESS_OK;
    if (t->pages < 1 || t->pages > INT32_MAX)
        return tess_invalid("%s: pages: must be 1 to 2147483647, got %lld", function,
                            (long long)t->pages);
    if (t->stride < needed)
        return tess_invalid("%s: table_stride: a sequence has up to %lld pages, got %lld", function,
                            (long long)needed, (long long)t->stride);
    TESS_RETURN_IF_ERROR(
        tess_check_buffer(function, plan->device, "block_table", "", &t->buffer, sizeof(int32_t)));
    /* Behind the last row there may be nothing. */
    if (!checked_mul((uint64_t)plan->pools.n * plan->batch - 1, (uint64_t)t->stride, bytes) ||
        !checked_add(*bytes, (uint64_t)needed, bytes) ||
        !checked_mul(*bytes, sizeof(int32_t), bytes) || *bytes > INT64_MAX)
        return tess_invalid("%s: table_stride: overflows 64-bit sizes, got %lld", function,
                            (long long)t->stride);
    return tess_check_room(function, "block_table", "", &t->buffer, *bytes);
}

void tess_block_table_take(const tess_plan *plan, const tess_block_table *table, uint32_t storage,
                           tess_launch *l) {
    const tess_pool *pool = &plan->pools.all[storage];
    const uint64_t row = (uint64_t)table->stride * sizeof(int32_t);
    tess_tensor *t = &l->tensor[TESS_ROLE_BLOCK_TABLE];
    *t = (tess_tensor){.buffer = table->buffer, .stride_batch = table->stride};
    if (pool->tokens == 0) return;
    t->buffer.offset += row * plan->batch * storage;
    l->bytes[TESS_ROLE_BLOCK_TABLE] =
        row * (plan->batch - 1) +
        (uint64_t)ceil_div(pool->tokens, plan->pools.page) * sizeof(int32_t);
}
