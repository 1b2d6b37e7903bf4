/* SPDX-License-Identifier: Apache-2.0 */
#include "merged.h"

#include <stdlib.h>

/* What the parts write and the merge reads. */
typedef struct merged_parts {
    tess_tensor o, lse; /* of a part */
    uint64_t o_bytes, lse_bytes;
    tess_buffer all_o, all_lse;
} merged_parts;

static tess_buffer behind(tess_buffer buffer, uint64_t bytes) {
    buffer.offset += bytes;
    return buffer;
}

/* Runs the rows over part n of the keys. */
static void run_part(const instance *x, merged_parts *m, merged_keys keys, int64_t n,
                     int64_t parts) {
    const problem *p = x->problem;
    const int64_t q_first = p->kv_len - p->q_len;
    tess_plan *plan;
    tess_plan_desc desc;
    tess_plan_info info = {.struct_size = sizeof info};
    tess_run_desc run = {.struct_size = sizeof run, .k = x->run.k, .v = x->run.v, .q = x->run.q};
    int64_t *cu;
    assert_int_equal(problem_plan_desc(p, &desc, &cu), 0);
    desc.op = TESS_OP_FORWARD;
    desc.kv_len = keys.count;
    desc.q_first = &q_first;
    desc.kv_first = &keys.first;
    assert_ok(tess_plan_create(x->device, x->layout, &desc, &plan));
    free(cu);
    assert_ok(tess_plan_query(plan, &info));
    assert_ok(tess_plan_tensor(plan, TESS_ROLE_O, m->all_o, &m->o, &m->o_bytes));
    assert_ok(tess_plan_tensor(plan, TESS_ROLE_LSE, m->all_lse, &m->lse, &m->lse_bytes));
    if (n == 0) {
        assert_ok(tess_alloc(x->device, (uint64_t)parts * m->o_bytes, &m->all_o));
        assert_ok(tess_alloc(x->device, (uint64_t)parts * m->lse_bytes, &m->all_lse));
    }
    run.o = m->o;
    run.lse = m->lse;
    run.o.buffer = behind(m->all_o, (uint64_t)n * m->o_bytes);
    run.lse.buffer = behind(m->all_lse, (uint64_t)n * m->lse_bytes);
    run.k.buffer = behind(x->run.k.buffer, (uint64_t)(keys.first * run.k.stride_token) * 4);
    run.v.buffer = behind(x->run.v.buffer, (uint64_t)(keys.first * run.v.stride_token) * 4);
    if (info.workspace_bytes)
        assert_ok(tess_alloc(x->device, info.workspace_bytes, &run.workspace));
    assert_ok(tess_run(plan, &run));
    assert_ok(tess_wait(x->device, UINT64_MAX));
    tess_plan_release(plan);
    if (info.workspace_bytes) assert_ok(tess_free(x->device, &run.workspace));
}

void merged_forward(const instance *x, const merged_keys *keys, int64_t parts, tess_tensor *o,
                    tess_tensor *lse) {
    const problem *p = x->problem;
    merged_parts m = {.o_bytes = 0};
    assert_true(p->batch == 1 && p->dtype == TESS_F32 && parts <= MERGED_MOST);
    for (int64_t n = 0; n < parts; n++) run_part(x, &m, keys[n], n, parts);
    *o = m.o;
    *lse = m.lse;
    o->buffer = lse->buffer = (tess_buffer){0};
    assert_ok(tess_alloc(x->device, m.o_bytes, &o->buffer));
    assert_ok(tess_alloc(x->device, m.lse_bytes, &lse->buffer));
    tess_parts_desc d = {.struct_size = sizeof d,
                         .n_parts = (uint32_t)parts,
                         .n_heads = (uint32_t)p->heads,
                         .head_dim = (uint32_t)p->head_dim,
                         .dtype = TESS_F32,
                         .rows = p->q_len,
                         .o_parts = m.o,
                         .lse_parts = m.lse,
                         .o = *o,
                         .lse = *lse};
    d.o_parts.buffer = m.all_o;
    d.lse_parts.buffer = m.all_lse;
    d.o_parts.stride_batch = (int64_t)(m.o_bytes / sizeof(float));
    d.lse_parts.stride_batch = (int64_t)(m.lse_bytes / sizeof(float));
    assert_ok(tess_merge_parts(x->device, &d));
    assert_ok(tess_wait(x->device, UINT64_MAX));
    assert_ok(tess_free(x->device, &m.all_o));
    assert_ok(tess_free(x->device, &m.all_lse));
}
