/* SPDX-License-Identifier: Apache-2.0 */
#include "prepare.h"

#include <stddef.h>
#include <string.h>

#include "kernels/dialect_c.h"
#include "kernels/prepare.inl"
#undef args

void tess_prepare_on_host(const tess_args *args, uint32_t plans, const uint32_t *tables,
                          const int32_t *cu_rows, const int32_t *kv_lens, const int32_t *q_first,
                          const int32_t *kv_first, uint32_t *step) {
    for (uint32_t n = 0; n < plans * args->group * TESS_PREPARE_SHARES; n++)
        tess_prepare_group(args, n, tables, cu_rows, kv_lens, q_first, kv_first, step);
}

#define TENSOR(role, name, field)                                     \
    {                                                                 \
        role, name, sizeof(int32_t), offsetof(tess_args, field##_at), \
            offsetof(tess_args, field##_batch)                        \
    }

const tess_portable_tensor tess_prepare_tensors[TESS_PREPARE_TENSORS] = {
    TENSOR(TESS_ROLE_CU_ROWS, "cu_rows", q), TENSOR(TESS_ROLE_KV_LENS, "kv_lens", k),
    TENSOR(TESS_ROLE_STEP, "step", o), TENSOR(TESS_ROLE_Q_FIRST, "q_first", v),
    TENSOR(TESS_ROLE_KV_FIRST, "kv_first", lse)};

void tess_prepare_args(const tess_launch *l, int base_in_handle, tess_args *a) {
    memset(a, 0, sizeof *a);
    for (size_t n = 0; n < TESS_PREPARE_TENSORS; n++) {
        const tess_portable_tensor *t = &tess_prepare_tensors[n];
        const tess_arg_i64 at = (tess_arg_i64)(l->tensor[t->role].buffer.offset / t->element);
        if (!base_in_handle) memcpy((char *)a + t->at, &at, sizeof at);
    }
    a->items = l->batch;
    if (l->tensor[TESS_ROLE_Q_FIRST].buffer.kind != TESS_BUFFER_NONE) a->flags |= TESS_ARGS_FIRST;
    if (l->tensor[TESS_ROLE_KV_FIRST].buffer.kind != TESS_BUFFER_NONE) a->flags |= TESS_ARGS_PARTS;
    if (l->trusted) a->flags |= TESS_ARGS_TRUST;
    a->classes_at = (tess_arg_u32)(l->tables->classes_at / 4);
    a->items_at = (tess_arg_u32)(l->tables->step_plan_at / 4);
    a->first_item = (tess_arg_u32)(l->tables->step_plan_bytes / 4);
    a->group = (tess_arg_u32)(l->n_jobs / l->tables->n_step_plans);
}
