/* SPDX-License-Identifier: Apache-2.0 */
/* What a plan reports: work and traffic in closed form, ranges of jobs, and the tensors that fit
 * it. */
#include <string.h>

#include "roles.h"

/* ------------------------------------------------------------------ work and traffic */

/* Sums that stop at the largest value instead of wrapping. */
static void add_product(uint64_t *sum, uint64_t a, uint64_t b) {
    uint64_t product;
    if (!checked_mul(a, b, &product) || !checked_add(*sum, product, sum)) *sum = UINT64_MAX;
}

/* The rows of a sequence that can see keys, and the keys: positions [p0, p1) and [first, end). */
typedef struct tess_seen {
    int64_t p0, p1, first, end;
} tess_seen;

/* Bidirectional S2: how many of the `blocks` blocks next to the local ones on one side are read by
 * some of `queries` consecutive query blocks. The d-th of them is where -d mod stride < queries. */
static int64_t strided_both_beside(const tess_head_pattern *pattern, int64_t blocks,
                                   int64_t queries) {
    int64_t stride = pattern->stride;
    if (blocks <= 0) return 0;
    if (queries >= stride) return blocks;
    return blocks / stride * queries + larger(0, blocks % stride - (stride - queries));
}

/* Key blocks below `end` that the rows read with at least one head of an S2 kv head. Its classes
 * share their local blocks and differ in the lists before them. */
static int64_t strided_blocks(const tess_layout *layout, int32_t kv_head, const tess_seen *rows,
                              int64_t end) {
    const int64_t block = layout->pattern.block, i_first = floor_div(rows->p0, block),
                  i_last = floor_div(rows->p1 - 1, block);
    int64_t sum = 0, start = 0, after = i_last + 1;
    for (uint32_t g = layout->group_start[kv_head]; g < layout->group_start[kv_head + 1]; g++) {
        const tess_head_pattern *pattern = &layout->patterns[layout->group_classes[g]];
        start = larger(0, i_first - pattern->local + 1);
        if (pattern->kind == TESS_HEAD_STRIDED) {
            sum += tess_vertical_count(pattern, smaller(start, end));
            continue;
        }
        const int64_t queries = i_last - i_first + 1;
        after = larger(0, i_last + pattern->local_right);
        sum += strided_both_beside(pattern, start, queries) -
               strided_both_beside(pattern, start - end, queries) +
               strided_both_beside(pattern, end - after, queries);
    }
    return sum + larger(0, smaller(after, end) - start);
}

/* Keys below `end` that the rows read with at least one head of the kv head. Not for BLOCKS. */
static int64_t group_keys(const tess_layout *layout, int32_t kv_head, const tess_seen *rows,
                          int64_t end) {
    const uint32_t group = layout->group_start[kv_head];
    const int64_t block = layout->pattern.block;
    const tess_head_pattern *pattern = &layout->patterns[layout->group_classes[group]];
    if (pattern->causal) end = smaller(end, rows->p1);
    if (pattern->kind == TESS_HEAD_WINDOW) {
        const int64_t low = smaller(end, larger(0, rows->p0 - pattern->left)),
                      high = larger(low, smaller(end, rows->p1 + pattern->right)),
                      sinks = smaller(pattern->sinks, end);
        return high - low + smaller(sinks, low) + larger(0, sinks - high);
    }
    for (uint32_t g = group; g < layout->group_start[kv_head + 1]; g++)
        if (layout->patterns[layout->group_classes[g]].kind == TESS_HEAD_DENSE) return end;
    const int64_t whole = strided_blocks(layout, kv_head, rows, end / block);
    return whole * block +
           (strided_blocks(layout, kv_head, rows, end / block + 1) - whole) * (end % block);
}

/* The same for BLOCKS, of the keys from rows->first on; `mark` has a byte for each key block. */
static int64_t masked_keys(const tess_layout *layout, int32_t kv_head, const tess_seen *rows,
                           uint8_t *mark) {
    const int64_t block = layout->pattern.block,
                  keys = layout->patterns[0].causal ? smaller(rows->end, rows->p1) : rows->end,
                  first = rows->first / block, n = (keys + block - 1) / block,
                  i_end = (rows->p1 - 1) / block + 1;
    int64_t sum = 0;
    memset(mark, 0, (size_t)larger(n, 0));
    for (uint32_t g = layout->group_start[kv_head]; g < layout->group_start[kv_head + 1]; g++) {
        const tess_mask_rows *mask = &layout->patterns[layout->group_classes[g]].rows;
        for (int64_t i = larger(0, floor_div(rows->p0, block));
             i < smaller(i_end, mask->query_blocks); i++) {
            int64_t count;
            const uint32_t *columns = tess_mask_row(mask, i, &count);
            for (int64_t c = tess_mask_below(columns, count, first); c < count && columns[c] < n;
                 c++) {
                sum += mark[columns[c]]
                           ? 0
                           : smaller(keys, ((int64_t)columns[c] + 1) * block) - columns[c] * block;
                mark[columns[c]] = 1;
            }
        }
    }
    return sum;
}

typedef struct tess_work {
    uint64_t kept, dense, keys;
} tess_work;

/* Pairs that the rows keep of their keys. */
static uint64_t kept_pairs(const tess_head_pattern *pattern, const tess_seen *rows) {
    const tess_wide pairs = tess_head_pairs(pattern, rows->p0, rows->p1, rows->end);
    if (rows->first == 0) return (uint64_t)pairs;
    return (uint64_t)(pairs - tess_head_pairs(pattern, rows->p0, rows->p1, rows->first));
}

/* Keys that the rows read with at least one head of the kv head. */
static int64_t read_keys(const tess_layout *layout, int32_t kv_head, const tess_seen *rows,
                         uint8_t *mark) {
    if (mark) return masked_keys(layout, kv_head, rows, mark);
    const int64_t keys = group_keys(layout, kv_head, rows, rows->end);
    return rows->first == 0 ? keys : keys - group_keys(layout, kv_head, rows, rows->first);
}

static void sequence_work(const tess_plan *plan, uint32_t n, uint8_t *mark, tess_work *work) {
    const tess_layout *layout = plan->layout;
    const tess_sequence *s = &plan->sequences[n];
    const bool causal = layout->patterns[0].causal;
    tess_seen rows = {.p0 = s->q_first,
                      .p1 = (int64_t)s->q_first + s->q_len,
                      .first = tess_plan_kv_first(plan, n),
                      .end = s->kv_len};
    const tess_head_pattern dense = {.kind = TESS_HEAD_DENSE,
                                     .causal = causal,
                                     .left = TESS_UNBOUNDED,
                                     .right = causal ? 0 : TESS_UNBOUNDED};
    memset(work, 0, sizeof *work);
    /* in causal order rows before the first key keep nothing */
    if (causal) rows.p0 = larger(0, rows.p0);
    if (rows.p1 <= rows.p0 || rows.end == rows.first) return;
    for (uint32_t c = 0; c < layout->n_classes; c++)
        add_product(&work->kept, kept_pairs(&layout->patterns[c], &rows), layout->class_heads[c]);
    add_product(&work->dense, kept_pairs(&dense, &rows), (uint64_t)layout->n_heads);
    for (int32_t g = 0; g < layout->n_kv_heads; g++)
        work->keys += (uint64_t)read_keys(layout, g, &rows, mark);
}

/* Whether sequence n makes the work of the one before it. */
static bool same_work(const tess_plan *plan, uint32_t n) {
    const tess_sequence *s = &plan->sequences[n];
    return n > 0 && s->q_len == s[-1].q_len && s->kv_len == s[-1].kv_len &&
           s->q_first == s[-1].q_first &&
           tess_plan_kv_first(plan, n) == tess_plan_kv_first(plan, n - 1);
}

/* Of one row, or key, and head. */
static uint64_t gradient_bytes(const tess_plan *plan, uint32_t role) {
    const tess_extent x = tess_role_extent(plan, role, 0);
    return (uint64_t)x.row * x.item;
}

static tess_status batch_work(const tess_plan *plan, const char *function, tess_plan_info *info) {
    const tess_layout *layout = plan->layout;
    tess_runtime *runtime = plan->device->runtime;
    const uint64_t element = (uint64_t)plan->head_dim * tess_dtype_size(plan->dtype);
    const bool backward = plan->op == TESS_OP_BACKWARD;
    size_t mark_bytes = 0;
    uint8_t *mark = NULL;
    if (layout->pattern.kind == TESS_PATTERN_BLOCKS) {
        mark_bytes = (size_t)layout->n_blocks + 1;
        mark = tess_mem_alloc(runtime, mark_bytes, 64);
        if (!mark)
            return tess_fail(TESS_ERROR_OUT_OF_MEMORY, "%s: no memory for %lld key blocks",
                             function, (long long)layout->n_blocks);
    }
    tess_work work;
    for (uint32_t n = 0; n < plan->n_sequences; n++) {
        const tess_sequence *s = &plan->sequences[n];
        if (!same_work(plan, n)) sequence_work(plan, n, mark, &work);
        add_product(&info->kept_pairs, work.kept, 1);
        add_product(&info->dense_pairs, work.dense, 1);
        add_product(&info->bytes_min, (uint64_t)s->q_len * (uint64_t)layout->n_heads,
                    backward ? 3 * element + gradient_bytes(plan, TESS_ROLE_D_Q) : 2 * element);
        add_product(&info->bytes_min, work.keys, 2 * tess_plan_key_bytes(plan));
        if (backward)
            add_product(&info->bytes_min,
                        (uint64_t)tess_plan_keys(plan, n) * (uint64_t)layout->n_kv_heads,
                        2 * gradient_bytes(plan, TESS_ROLE_D_K));
    }
    tess_mem_free(runtime, mark, mark_bytes);
    return TESS_OK;
}

tess_status tess_plan_query(const tess_plan *plan, tess_plan_info *info) {
    static const char *const function = "tess_plan_query";
    TESS_RETURN_IF_ERROR(tess_plan_check(plan, function));
    tess_plan_info full;
    memset(&full, 0, sizeof full);
    const tess_share *last = &plan->shares[plan->n_shares - 1];
    const bool backward = plan->op == TESS_OP_BACKWARD;
    full.tile_rows = last->tile_rows;
    full.n_jobs = tess_plan_jobs(plan);
    full.n_merge_jobs = plan->memory.n_merges;
    full.n_ranges = plan->n_ranges;
    full.workspace_bytes = plan->memory.workspace_bytes;
    full.workspace_align = plan->memory.workspace_align;
    full.host_bytes = plan->host_bytes;
    full.device_bytes = plan->tables.device.kind == TESS_BUFFER_NONE ? 0 : plan->memory.table_bytes;
    full.create_seconds = plan->create_seconds;
    full.n_storage = plan->pools.n;
    full.step_bytes = plan->memory.step_bytes;
    memcpy(full.kernel, last->kernel_name, sizeof full.kernel);
    if (plan->n_shares > 1) {
        full.few_tile_rows = plan->shares[0].tile_rows;
        memcpy(full.few_kernel, plan->shares[0].kernel_name, sizeof full.few_kernel);
    }
    TESS_RETURN_IF_ERROR(batch_work(plan, function, &full));
    full.flops = (backward ? 10.0 : 4.0) * plan->head_dim * (double)full.kept_pairs;
    if (backward) {
        full.n_columns = plan->memory.n_columns;
        full.tile_keys = last->kernel.tile_keys;
    }
    return tess_info_write(function, info, &full, TESS_PLAN_INFO);
}

/* ------------------------------------------------------------------ ranges and tensors */

tess_status tess_plan_range(const tess_plan *plan, uint64_t index, uint64_t *first_job,
                            uint64_t *job_count) {
    static const char *const function = "tess_plan_range";
    TESS_RETURN_IF_ERROR(tess_plan_check(plan, function));
    if (index >= plan->n_ranges)
        return tess_invalid("%s: index: %llu is past the last range, there are %llu", function,
                            (unsigned long long)index, (unsigned long long)plan->n_ranges);
    if (!first_job) return tess_invalid("%s: first_job: must not be NULL", function);
    if (!job_count) return tess_invalid("%s: job_count: must not be NULL", function);
    *first_job = plan->range_start ? plan->range_start[index] : 0;
    *job_count =
        plan->range_start ? plan->range_start[index + 1] - *first_job : tess_plan_jobs(plan);
    return TESS_OK;
}

/* A contiguous tensor of `batches` times `tokens` tokens. `joined`: the batch has no stride. */
static tess_status fill_tensor(const char *function, const char *field, const tess_role_row *row,
                               const tess_extent *x, int64_t batches, int64_t tokens, bool joined,
                               tess_tensor *tensor, uint64_t *bytes) {
    /* With less than 2^31 tokens a sequence and 2^16 heads no stride can overflow, but the tokens
     * of a packed batch and the whole tensor can. */
    uint64_t elements = (uint64_t)x->heads * x->row, stride, size;
    if (!checked_mul((uint64_t)tokens, elements, &stride) ||
        !checked_mul(stride, (uint64_t)batches, &size) || !checked_mul(size, x->item, &size) ||
        size > INT64_MAX)
        return tess_unsupported("%s: %s: the tensor has 2^63 bytes or more", function, field);
    tensor->stride_batch = joined ? 0 : (int64_t)stride;
    /* Numbers of a head lie side by side; vectors of a token do, and their scales. */
    const bool by_head = row->scalar && !row->by_token;
    tensor->stride_token = by_head ? 1 : (int64_t)elements;
    tensor->stride_head = by_head ? tokens : x->row;
    if (bytes) *bytes = size;
    return TESS_OK;
}

static tess_status table_tensor(const tess_plan *plan, const char *function, tess_tensor *tensor,
                                uint64_t *bytes) {
    if (!plan->pools.page)
        return tess_invalid("%s: role: a plan without pages has no block table", function);
    const int64_t stride = tess_pools_pages(&plan->pools);
    uint64_t size;
    if (!checked_mul((uint64_t)stride * sizeof(int32_t), (uint64_t)plan->pools.n * plan->batch,
                     &size) ||
        size > INT64_MAX)
        return tess_unsupported("%s: role: the block table has 2^63 bytes or more", function);
    tensor->stride_batch = stride;
    tensor->stride_token = 1;
    tensor->stride_head = 0;
    if (bytes) *bytes = size;
    return TESS_OK;
}

static bool is_scale(tess_role role) {
    return role == TESS_ROLE_K_SCALE || role == TESS_ROLE_V_SCALE;
}

static tess_status check_scale_role(const tess_plan *plan, const char *function, tess_role role) {
    if (!is_scale(role) || tess_dtype_has_scales(plan->kv_dtype)) return TESS_OK;
    return tess_invalid("%s: role: K and V of this plan have no scales", function);
}

tess_status tess_plan_tensor(const tess_plan *plan, tess_role role, tess_buffer buffer,
                             tess_tensor *tensor, uint64_t *bytes) {
    static const char *const function = "tess_plan_tensor";
    TESS_RETURN_IF_ERROR(tess_plan_check(plan, function));
    const bool is_new = role == TESS_ROLE_NEW_K || role == TESS_ROLE_NEW_V;
    const bool gradient = role >= TESS_ROLE_D_O && role <= TESS_ROLE_D_LSE;
    if (gradient && plan->op != TESS_OP_BACKWARD)
        return tess_invalid("%s: role: %u is of backward plans", function, (unsigned)role);
    if ((unsigned)role > TESS_ROLE_BLOCK_TABLE && !is_new && !is_scale(role) && !gradient)
        return tess_invalid("%s: role: %u is no tess_role", function, (unsigned)role);
    TESS_RETURN_IF_ERROR(check_scale_role(plan, function, role));
    if (!tensor) return tess_invalid("%s: tensor: must not be NULL", function);
    tess_tensor t = {.buffer = buffer};
    if (role == TESS_ROLE_BLOCK_TABLE) {
        TESS_RETURN_IF_ERROR(table_tensor(plan, function, &t, bytes));
    } else if (is_new) {
        /* New keys have tokens as Q has, and heads as the layout has kv heads. */
        tess_extent x = tess_role_extent(plan, TESS_ROLE_K, 0);
        x.heads = (uint32_t)plan->layout->n_kv_heads;
        x.item = tess_dtype_size(plan->dtype);
        TESS_RETURN_IF_ERROR(fill_tensor(function, "role", &tess_role_rows[TESS_ROLE_K], &x,
                                         plan->packed ? 1 : plan->batch, plan->q_len, plan->packed,
                                         &t, bytes));
    } else {
        const tess_role_row *row = &tess_role_rows[role];
        const bool keys = row->tokens == TESS_TOKENS_KV;
        const tess_pools *pools = &plan->pools;
        if (keys && (pools->page || pools->n > 1))
            return tess_invalid("%s: role: K and V of this plan lie in pools: tess_plan_pool",
                                function);
        const tess_extent x = tess_role_extent(plan, role, 0);
        const bool joined = keys ? plan->kv_packed && !tess_pools_cached(pools) : plan->packed;
        TESS_RETURN_IF_ERROR(fill_tensor(function, "role", row, &x, joined ? 1 : plan->batch,
                                         !keys            ? plan->q_len
                                         : pools->compact ? pools->all[0].tokens
                                                          : plan->kv_len,
                                         joined, &t, bytes));
    }
    *tensor = t;
    return TESS_OK;
}

tess_status tess_plan_pool(const tess_plan *plan, tess_role role, uint32_t storage, int64_t pages,
                           tess_buffer buffer, tess_tensor *tensor, uint64_t *bytes) {
    static const char *const function = "tess_plan_pool";
    TESS_RETURN_IF_ERROR(tess_plan_check(plan, function));
    const tess_pools *pools = &plan->pools;
    if (role != TESS_ROLE_K && role != TESS_ROLE_V && !is_scale(role))
        return tess_invalid("%s: role: must be K, V or a scale of these, got %u", function,
                            (unsigned)role);
    TESS_RETURN_IF_ERROR(check_scale_role(plan, function, role));
    if (storage >= pools->n)
        return tess_invalid("%s: storage: must be less than %u, got %u", function,
                            (unsigned)pools->n, (unsigned)storage);
    if (pools->page ? pages < 0 || pages > INT32_MAX : pages != 0)
        return tess_invalid("%s: pages: must be %s, got %lld", function,
                            pools->page ? "0 to 2147483647" : "0, since the plan has none",
                            (long long)pages);
    if (!tensor) return tess_invalid("%s: tensor: must not be NULL", function);
    if (!tess_pools_cached(pools)) return tess_plan_tensor(plan, role, buffer, tensor, bytes);
    const tess_extent x = tess_role_extent(plan, role, storage);
    tess_tensor t = {.buffer = buffer};
    TESS_RETURN_IF_ERROR(fill_tensor(function, pools->page ? "pages" : "storage",
                                     &tess_role_rows[role], &x, pools->page ? pages : plan->batch,
                                     pools->page ? pools->page : pools->all[storage].tokens, false,
                                     &t, bytes));
    *tensor = t;
    return TESS_OK;
}
