/* SPDX-License-Identifier: Apache-2.0 */
/* Writing a cache: the new rows of a plan's sequences. As in tess_run, all that the caller gives is
 * checked and nothing is allocated. */
#include <stdio.h>

#include "block_table.h"
#include "checked.h"
#include "launch.h"
#include "tensors.h"

static const char *const in_append = "tess_append";

/* ------------------------------------------------------------------ tensors */

/* A tensor of the call: new rows, or a pool of a storage group. */
typedef struct view {
    const tess_tensor *tensor;
    const char *field;
    uint32_t role;
    bool keys, output;
    uint32_t storage;
} view;

static view rows_of(const tess_append_desc *d, bool is_v) {
    return (view){.tensor = is_v ? &d->v : &d->k,
                  .field = is_v ? "v" : "k",
                  .role = is_v ? TESS_ROLE_NEW_V : TESS_ROLE_NEW_K};
}

/* Kinds of pools: K, V, and their scales if they have some. */
enum { MOST_KINDS = 4 };

static uint32_t kinds_of(const tess_plan *plan) {
    return tess_dtype_has_scales(plan->kv_dtype) ? MOST_KINDS : 2;
}

/* Scales that all tokens share are given, and not written. */
static view pool_of(const tess_append_desc *d, uint32_t kind, uint32_t storage) {
    const struct {
        const tess_tensor *pools;
        const char *field;
        uint32_t role;
    } kinds[MOST_KINDS] = {{d->k_pools, "k_pools", TESS_ROLE_K},
                           {d->v_pools, "v_pools", TESS_ROLE_V},
                           {d->k_scale_pools, "k_scale_pools", TESS_ROLE_K_SCALE},
                           {d->v_scale_pools, "v_scale_pools", TESS_ROLE_V_SCALE}};
    const tess_tensor *t = &kinds[kind].pools[storage];
    return (view){
        t, kinds[kind].field, kinds[kind].role, true, kind < 2 || t->stride_token != 0, storage};
}

static uint32_t dtype_of(const tess_plan *plan, const view *x) {
    if (x->role == TESS_ROLE_K_SCALE || x->role == TESS_ROLE_V_SCALE) return TESS_F32;
    return x->keys ? plan->kv_dtype : plan->dtype;
}

enum { NAME_BYTES = 32 };

static const char *name_of(const view *x, char text[NAME_BYTES]) {
    if (!x->keys) return x->field;
    snprintf(text, NAME_BYTES, "%s[%u]", x->field, (unsigned)x->storage);
    return text;
}

static tess_shape shape_of(const tess_plan *plan, const view *x, int64_t units, int64_t tokens) {
    const bool scales = x->role == TESS_ROLE_K_SCALE || x->role == TESS_ROLE_V_SCALE;
    return (tess_shape){.units = units,
                        .tokens = tokens,
                        .heads = x->keys ? plan->pools.all[x->storage].heads
                                         : (uint32_t)plan->layout->n_kv_heads,
                        .row = scales ? 1 : (uint32_t)plan->head_dim,
                        .item = tess_dtype_size(dtype_of(plan, x))};
}

/* The tensor up to the end of what any step has in it, where it has no pages. */
static tess_shape shape_of_steps(const tess_plan *plan, const view *x) {
    if (!x->keys) return shape_of(plan, x, 1, plan->q_len);
    return shape_of(plan, x, plan->batch,
                    plan->pools.compact ? plan->pools.all[x->storage].tokens : plan->kv_len);
}

/* The tensor up to the end of a sequence's rows, or of its keys where it has no pages. By slot all
 * sequences have room for the longest. */
static tess_shape shape_up_to(const tess_plan *plan, const view *x, const tess_sequence *s) {
    if (!x->keys) return shape_of(plan, x, (int64_t)s->batch + 1, s->q_start + s->q_len);
    return shape_of(plan, x, (int64_t)s->kv_batch + 1,
                    plan->pools.compact ? plan->pools.all[x->storage].tokens
                                        : s->kv_start + s->kv_len);
}

/* All of a pool, as far as strides are concerned. */
static tess_shape pool_shape(const tess_plan *plan, const view *x, const tess_append_desc *d) {
    const tess_pools *pools = &plan->pools;
    if (pools->page) return shape_of(plan, x, d->pages, pools->page);
    if (pools->compact) return shape_of(plan, x, plan->batch, pools->all[x->storage].tokens);
    return shape_of(plan, x, plan->kv_packed ? 1 : plan->kv_last + 1, plan->kv_len);
}

/* Makes *bytes at least what the shape takes of the tensor. */
static tess_status reach(const view *x, const tess_shape *shape, uint64_t *bytes) {
    char text[NAME_BYTES];
    uint64_t end;
    if (!tess_shape_bytes(x->tensor, shape, &end))
        return tess_invalid("%s: %s: its strides overflow 64-bit sizes", in_append,
                            name_of(x, text));
    if (end > *bytes) *bytes = end;
    return TESS_OK;
}

static tess_status check_one(const tess_plan *plan, const view *x) {
    char text[NAME_BYTES];
    const char *name = name_of(x, text);
    const uint32_t dtype = dtype_of(plan, x), align = tess_dtype_align(dtype);
    TESS_RETURN_IF_ERROR(tess_check_tensor(in_append, plan->device, name, x->tensor, align));
    return tess_check_stride_align(in_append, name, x->tensor, !x->keys && plan->packed,
                                   align / tess_dtype_size(dtype));
}

/* Checks strides and buffer, and that the buffer holds what every sequence has in it. Where lengths
 * are equal the last sequence reaches furthest. */
static tess_status check_spans(const tess_plan *plan, const view *x, uint64_t *bytes) {
    char text[NAME_BYTES];
    const char *name = name_of(x, text);
    TESS_RETURN_IF_ERROR(check_one(plan, x));
    *bytes = 0;
    for (uint32_t n = plan->equal_lengths ? plan->n_sequences - 1 : 0; n < plan->n_sequences; n++) {
        const tess_shape shape = shape_up_to(plan, x, &plan->sequences[n]);
        if (x->keys && tess_plan_keys(plan, n) == 0) continue;
        TESS_RETURN_IF_ERROR(reach(x, &shape, bytes));
    }
    if (plan->steps) {
        const tess_shape shape = shape_of_steps(plan, x);
        TESS_RETURN_IF_ERROR(reach(x, &shape, bytes));
    }
    return tess_check_room(in_append, name, ".buffer", &x->tensor->buffer, *bytes);
}

static tess_status check_pool(const tess_plan *plan, const tess_append_desc *d, const view *x,
                              uint64_t *bytes) {
    char text[NAME_BYTES];
    const tess_shape shape = pool_shape(plan, x, d);
    const char *name = name_of(x, text);
    if (plan->pools.page) {
        *bytes = 0;
        TESS_RETURN_IF_ERROR(check_one(plan, x));
        TESS_RETURN_IF_ERROR(reach(x, &shape, bytes));
        TESS_RETURN_IF_ERROR(
            tess_check_room(in_append, name, ".buffer", &x->tensor->buffer, *bytes));
    } else {
        TESS_RETURN_IF_ERROR(check_spans(plan, x, bytes));
    }
    return x->output ? tess_check_apart(in_append, name, x->tensor, &shape) : TESS_OK;
}

/* ------------------------------------------------------------------ overlaps */

/* The part of a tensor that `part` certainly touches: a tensor that begins with it, and its shape.
 * Every page counts as touched. */
static tess_shape touched_by(const tess_plan *plan, const tess_append_desc *d, const view *x,
                             const tess_touched *part, tess_tensor *tensor) {
    int64_t unit = part->batch, token = part->q_start;
    tess_shape shape = shape_of(plan, x, part->batches, part->q_len);
    if (x->keys && plan->pools.page) {
        unit = token = 0;
        shape = pool_shape(plan, x, d);
    } else if (x->keys) {
        unit = part->kv_batch;
        token = plan->pools.compact ? 0 : part->kv_start;
        shape = shape_of(plan, x, part->kv_batches,
                         plan->pools.compact ? plan->pools.all[x->storage].tokens : part->kv_len);
    }
    *tensor = *x->tensor;
    tensor->buffer.offset +=
        (uint64_t)(unit * tensor->stride_batch + token * tensor->stride_token) * shape.item;
    return shape;
}

static bool share_memory(const tess_plan *plan, const tess_append_desc *d, const view *a,
                         const view *b) {
    for (uint32_t n = 0; n < plan->n_touched; n++) {
        const tess_touched *part = &plan->touched[n];
        tess_tensor first, second;
        if (part->kv_len == 0) continue;
        const tess_shape x = touched_by(plan, d, a, part, &first),
                         y = touched_by(plan, d, b, part, &second);
        if (tess_tensors_meet(&first, &x, &second, &y)) return true;
    }
    return false;
}

/* Pools that are written must not share memory with each other, with anything that is read, or with
 * the block table. `number`: of the pool, in the order of storage groups. */
static tess_status check_overlaps(const tess_plan *plan, const tess_append_desc *d,
                                  uint64_t table_bytes, uint32_t number) {
    const uint32_t kinds = kinds_of(plan), all = kinds * plan->pools.n;
    const view pool_view = pool_of(d, number % kinds, number / kinds), *const out = &pool_view;
    char text[NAME_BYTES], other_text[NAME_BYTES];
    const tess_tensor table = {.buffer = d->block_table};
    const tess_shape words = {1, 1, 1, (uint32_t)smaller((int64_t)table_bytes / 4, UINT32_MAX), 4};
    const tess_shape pool = pool_shape(plan, out, d);
    for (uint32_t n = 0; n < all + 2; n++) {
        const view other = n < all ? pool_of(d, n % kinds, n / kinds) : rows_of(d, n - all);
        /* A pair is seen once. */
        if (n == number || (n < number && other.output)) continue;
        if (share_memory(plan, d, out, &other))
            return tess_invalid("%s: %s: must not overlap %s, and elements of the two share memory",
                                in_append, name_of(out, text), name_of(&other, other_text));
    }
    if (words.row > 0 && tess_tensors_meet(out->tensor, &pool, &table, &words))
        return tess_invalid("%s: %s: must not overlap block_table", in_append, name_of(out, text));
    const tess_tensor step = {.buffer = d->step};
    const tess_shape bytes = {
        1, 1, 1, (uint32_t)smaller((int64_t)plan->memory.step_bytes / 4, UINT32_MAX), 4};
    if (plan->steps && tess_tensors_meet(out->tensor, &pool, &step, &bytes))
        return tess_invalid("%s: %s: must not overlap step", in_append, name_of(out, text));
    return TESS_OK;
}

/* ------------------------------------------------------------------ the call */

static tess_block_table table_of(const tess_append_desc *d) {
    return (tess_block_table){d->block_table, d->table_stride, d->pages};
}

static tess_status check_scales(const tess_plan *plan, const char *field,
                                const tess_tensor *pools) {
    const bool needed = tess_dtype_has_scales(plan->kv_dtype);
    if (needed == (pools != NULL)) return TESS_OK;
    return tess_invalid("%s: %s: must %sbe NULL, since the plan's kv_dtype has %sscales", in_append,
                        field, needed ? "not " : "", needed ? "" : "no ");
}

static tess_status check_fields(const tess_plan *plan, const tess_append_desc *d) {
    const struct {
        const char *name;
        uint32_t kind;
    } later[] = {{"k_scale", d->k_scale.buffer.kind}, {"v_scale", d->v_scale.buffer.kind}};
    if (d->flags != 0)
        return tess_invalid("%s: flags: must be 0, got 0x%x", in_append, (unsigned)d->flags);
    if (!(plan->flags & TESS_PLAN_APPEND))
        return tess_invalid("%s: plan: was made without TESS_PLAN_APPEND", in_append);
    for (size_t n = 0; n < sizeof later / sizeof *later; n++)
        if (later[n].kind != TESS_BUFFER_NONE)
            return tess_unsupported("%s: %s: must be of kind NONE in this version", in_append,
                                    later[n].name);
    if (!plan->steps && d->step.kind != TESS_BUFFER_NONE)
        return tess_invalid(
            "%s: step: must be of kind NONE, since the plan has no TESS_PLAN_DEVICE_LENGTHS",
            in_append);
    if (!d->k_pools) return tess_invalid("%s: k_pools: must not be NULL", in_append);
    if (!d->v_pools) return tess_invalid("%s: v_pools: must not be NULL", in_append);
    TESS_RETURN_IF_ERROR(check_scales(plan, "k_scale_pools", d->k_scale_pools));
    TESS_RETURN_IF_ERROR(check_scales(plan, "v_scale_pools", d->v_scale_pools));
    /* Each storage group is a launch, and what `extra` waits for and signals belongs to one. */
    if (d->stream.extra && plan->pools.n > 1)
        return tess_unsupported("%s: stream.extra: must be NULL for a plan with %u storage groups",
                                in_append, (unsigned)plan->pools.n);
    return tess_check_stream(in_append, &d->stream);
}

static void fill_launch(const tess_plan *plan, const tess_append_desc *d, const tess_tables *tables,
                        tess_launch *l) {
    tess_launch_of_plan(plan, &plan->append, &d->stream, l);
    l->op = TESS_OP_APPEND;
    l->tables = tables;
    l->pages = d->pages;
    l->n_sequences = plan->steps ? plan->batch : plan->n_sequences;
    l->n_jobs = (uint64_t)l->q_tokens * (plan->packed ? 1 : plan->n_sequences);
    l->tensor[TESS_ROLE_NEW_K] = d->k;
    l->tensor[TESS_ROLE_NEW_V] = d->v;
}

/* Makes a storage group's pools and part of the block table those of the launch. */
static tess_status take_group(const tess_plan *plan, const tess_append_desc *d, uint32_t storage,
                              tess_launch *l) {
    l->storage = storage;
    for (uint32_t kind = 0; kind < kinds_of(plan); kind++) {
        const view pool = pool_of(d, kind, storage);
        l->tensor[pool.role] = *pool.tensor;
        TESS_RETURN_IF_ERROR(check_pool(plan, d, &pool, &l->bytes[pool.role]));
    }
    const tess_block_table table = table_of(d);
    if (plan->pools.page) tess_block_table_take(plan, &table, storage, l);
    return TESS_OK;
}

static tess_status check_tensors(const tess_plan *plan, const tess_append_desc *d,
                                 uint64_t table_bytes, tess_launch *l) {
    const view k = rows_of(d, false), v = rows_of(d, true);
    TESS_RETURN_IF_ERROR(check_spans(plan, &k, &l->bytes[TESS_ROLE_NEW_K]));
    TESS_RETURN_IF_ERROR(check_spans(plan, &v, &l->bytes[TESS_ROLE_NEW_V]));
    for (uint32_t s = 0; s < plan->pools.n; s++) TESS_RETURN_IF_ERROR(take_group(plan, d, s, l));
    const uint32_t kinds = kinds_of(plan);
    for (uint32_t n = 0; n < kinds * plan->pools.n; n++) {
        if (!pool_of(d, n % kinds, n / kinds).output) continue;
        TESS_RETURN_IF_ERROR(check_overlaps(plan, d, table_bytes, n));
    }
    return TESS_OK;
}

tess_status tess_append(const tess_plan *plan, const tess_append_desc *desc) {
    tess_append_desc d;
    TESS_RETURN_IF_ERROR(tess_call_on_plan(in_append, plan, desc, &d, TESS_APPEND_DESC));
    TESS_RETURN_IF_ERROR(check_fields(plan, &d));
    const tess_block_table table = table_of(&d);
    uint64_t table_bytes;
    TESS_RETURN_IF_ERROR(tess_block_table_check(in_append, plan, &table, &table_bytes));
    /* Without keys nothing is written, and there may be no memory. */
    if ((!plan->steps && plan->n_sequences == 0) || plan->kv_last < 0) return TESS_OK;
    tess_tables of_step;
    if (plan->steps) TESS_RETURN_IF_ERROR(tess_step_tables(in_append, plan, &d.step, &of_step));
    tess_launch launch;
    fill_launch(plan, &d, plan->steps ? &of_step : &plan->tables, &launch);
    if (launch.n_jobs > INT32_MAX)
        return tess_unsupported("%s: plan: %llu rows are 2^31 or more", in_append,
                                (unsigned long long)launch.n_jobs);
    TESS_RETURN_IF_ERROR(check_tensors(plan, &d, table_bytes, &launch));
    for (uint32_t s = 0; s < plan->pools.n; s++) {
        TESS_RETURN_IF_ERROR(take_group(plan, &d, s, &launch));
        TESS_RETURN_IF_ERROR(tess_launch_on(plan->device, &launch));
    }
    return TESS_OK;
}
