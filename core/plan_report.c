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

/* Bidirectional S2: how many blocks before `start` are read by some of `queries` consecutive query
 * blocks. `start` is the first local block of the first of them; block start - d is read when -d
 * mod stride < queries. */
static int64_t strided_both_before(const tess_head_pattern *pattern, int64_t start,
                                   int64_t queries) {
    int64_t stride = pattern->stride;
    if (queries >= stride) return start;
    return start / stride * queries + larger(0, start % stride - (stride - queries));
}

/* Keys that the rows [p0, keys) read with at least one head of the kv head. Except for BLOCKS, the
 * classes share their local keys and differ in the lists before them. */
static int64_t group_keys(const tess_layout *layout, int32_t kv_head, int64_t p0, int64_t keys) {
    int64_t block = layout->pattern.block, before = 0, start = 0;
    for (uint32_t g = layout->group_start[kv_head]; g < layout->group_start[kv_head + 1]; g++) {
        const tess_head_pattern *pattern = &layout->patterns[layout->group_classes[g]];
        int64_t i_first = floor_div(p0, block);
        switch (pattern->kind) {
        case TESS_HEAD_STRIDED:
            start = larger(0, i_first - pattern->local + 1);
            before += tess_vertical_count(pattern, start) * block;
            start *= block;
            break;
        case TESS_HEAD_STRIDED_BOTH:
            start = larger(0, i_first - pattern->local + 1);
            before =
                strided_both_before(pattern, start, (keys + block - 1) / block - i_first) * block;
            start *= block;
            break;
        case TESS_HEAD_WINDOW:
            start = larger(0, p0 - pattern->left);
            before = smaller(pattern->sinks, start);
            break;
        default: return keys;
        }
    }
    return keys - start + before;
}

/* The same for BLOCKS; `mark` has a byte for each key block. */
static int64_t masked_keys(const tess_layout *layout, int32_t kv_head, int64_t p0, int64_t keys,
                           uint8_t *mark) {
    int64_t block = layout->pattern.block, n = (keys + block - 1) / block, sum = 0;
    memset(mark, 0, (size_t)n);
    for (uint32_t g = layout->group_start[kv_head]; g < layout->group_start[kv_head + 1]; g++) {
        const tess_mask_rows *rows = &layout->patterns[layout->group_classes[g]].rows;
        for (int64_t i = larger(0, floor_div(p0, block)); i < smaller(n, rows->query_blocks); i++) {
            int64_t count;
            const uint32_t *columns = tess_mask_row(rows, i, &count);
            for (int64_t c = 0; c < count && columns[c] < n; c++) {
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

static void sequence_work(const tess_layout *layout, const tess_sequence *s, uint8_t *mark,
                          tess_work *work) {
    int64_t keys = s->kv_len, p0 = keys - s->q_len;
    bool causal = layout->patterns[0].causal;
    /* in causal order rows before the first key keep nothing */
    int64_t seen = causal ? larger(0, p0) : p0;
    memset(work, 0, sizeof *work);
    if (s->q_len == 0 || keys == 0) return;
    for (uint32_t c = 0; c < layout->n_classes; c++)
        add_product(&work->kept, (uint64_t)tess_head_pairs(&layout->patterns[c], p0, keys, keys),
                    layout->class_heads[c]);
    uint64_t pairs = (uint64_t)(keys - seen) * (uint64_t)keys;
    if (causal) pairs -= (uint64_t)(keys - seen) * (uint64_t)(keys - seen - 1) / 2;
    add_product(&work->dense, pairs, (uint64_t)layout->n_heads);
    for (int32_t g = 0; g < layout->n_kv_heads; g++)
        work->keys += (uint64_t)(mark ? masked_keys(layout, g, p0, keys, mark)
                                      : group_keys(layout, g, seen, keys));
}

static tess_status batch_work(const tess_plan *plan, const char *function, tess_plan_info *info) {
    const tess_layout *layout = plan->layout;
    tess_runtime *runtime = plan->device->runtime;
    uint64_t element = (uint64_t)plan->head_dim * tess_dtype_size(plan->dtype);
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
        if (n == 0 || s->q_len != s[-1].q_len || s->kv_len != s[-1].kv_len)
            sequence_work(layout, s, mark, &work);
        add_product(&info->kept_pairs, work.kept, 1);
        add_product(&info->dense_pairs, work.dense, 1);
        add_product(&info->bytes_min, (uint64_t)s->q_len * (uint64_t)layout->n_heads, 2 * element);
        add_product(&info->bytes_min, work.keys, 2 * element);
    }
    tess_mem_free(runtime, mark, mark_bytes);
    return TESS_OK;
}

tess_status tess_plan_query(const tess_plan *plan, tess_plan_info *info) {
    static const char *const function = "tess_plan_query";
    TESS_RETURN_IF_ERROR(tess_plan_check(plan, function));
    tess_plan_info full;
    memset(&full, 0, sizeof full);
    full.tile_rows = plan->tile_rows;
    full.n_jobs = plan->memory.n_jobs + plan->memory.n_merges;
    full.n_merge_jobs = plan->memory.n_merges;
    full.n_ranges = plan->n_ranges;
    full.workspace_bytes = plan->memory.workspace_bytes;
    full.workspace_align = plan->memory.workspace_align;
    full.host_bytes = plan->host_bytes;
    full.device_bytes = plan->tables.device.kind == TESS_BUFFER_NONE ? 0 : plan->memory.table_bytes;
    full.create_seconds = plan->create_seconds;
    full.n_storage = 1;
    memcpy(full.kernel, plan->kernel_name, sizeof full.kernel);
    TESS_RETURN_IF_ERROR(batch_work(plan, function, &full));
    full.flops = 4.0 * plan->head_dim * (double)full.kept_pairs;
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
    *job_count = plan->range_start ? plan->range_start[index + 1] - *first_job
                                   : plan->memory.n_jobs + plan->memory.n_merges;
    return TESS_OK;
}

tess_status tess_plan_tensor(const tess_plan *plan, tess_role role, tess_buffer buffer,
                             tess_tensor *tensor, uint64_t *bytes) {
    static const char *const function = "tess_plan_tensor";
    TESS_RETURN_IF_ERROR(tess_plan_check(plan, function));
    if ((unsigned)role >= TESS_ROLES_USED)
        return tess_invalid("%s: role: %u is no tess_role", function, (unsigned)role);
    if (!tensor) return tess_invalid("%s: tensor: must not be NULL", function);
    const tess_extent x = tess_role_extent(plan, role);
    const int64_t tokens = x.keys ? plan->kv_len : plan->q_len;
    /* With less than 2^31 tokens a sequence and 2^16 heads no stride can overflow, but the tokens
     * of a packed batch and the whole tensor can. */
    uint64_t row = (uint64_t)x.heads * x.row, stride, size;
    if (!checked_mul((uint64_t)tokens, row, &stride) ||
        !checked_mul(stride, plan->packed ? 1 : plan->batch, &size) ||
        !checked_mul(size, x.item, &size) || size > INT64_MAX)
        return tess_unsupported("%s: role: the tensor has 2^63 bytes or more", function);
    tensor->buffer = buffer;
    tensor->stride_batch = plan->packed ? 0 : (int64_t)stride;
    /* Numbers of a head lie side by side, vectors of a token do. */
    const bool scalar = tess_role_rows[role].scalar;
    tensor->stride_token = scalar ? 1 : (int64_t)row;
    tensor->stride_head = scalar ? tokens : x.row;
    if (bytes) *bytes = size;
    return TESS_OK;
}
