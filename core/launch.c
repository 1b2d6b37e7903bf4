/* SPDX-License-Identifier: Apache-2.0 */
#include "launch.h"

#include <string.h>

tess_status tess_call_on_plan(const char *function, const tess_plan *plan, const void *desc,
                              void *read, tess_structure_id id) {
    if (!plan) return tess_handle_missing(function, "plan");
    return tess_call_on_device(function, plan->device, desc, read, id);
}

tess_status tess_call_on_device(const char *function, const tess_device *device, const void *desc,
                                void *read, tess_structure_id id) {
    TESS_RETURN_IF_ERROR(tess_device_check(device, function));
    return tess_desc_read(function, "desc", desc, read, id);
}

void tess_launch_of_plan(const tess_plan *plan, const tess_kernel *kernel,
                         const tess_stream *stream, tess_launch *l) {
    const tess_layout *layout = plan->layout;
    memset(l, 0, sizeof *l);
    l->struct_size = sizeof *l;
    l->op = plan->op;
    l->dtype = plan->dtype;
    l->kv_dtype = plan->kv_dtype;
    l->head_dim = l->value_head_dim = plan->head_dim;
    l->block = layout->pattern.block;
    l->group = (uint32_t)(layout->n_heads / layout->n_kv_heads);
    l->batch_strided = !plan->packed;
    l->batch = plan->packed ? 1 : plan->batch;
    l->n_heads = (uint32_t)layout->n_heads;
    l->q_tokens = plan->packed ? plan->q_len : plan->max_q_len;
    l->kv_tokens = plan->kv_packed ? plan->kv_len : plan->max_kv_len;
    l->page = plan->pools.page;
    l->compact = plan->pools.compact;
    l->trusted = (plan->flags & TESS_PLAN_TRUST_DEVICE) != 0;
    l->kernel = kernel;
    l->tables = &plan->tables;
    l->stream = *stream;
}

void tess_launch_of_rows(uint32_t op, uint32_t dtype, int32_t head_dim, uint32_t n_heads,
                         const tess_stream *stream, tess_launch *l) {
    static const tess_tables no_tables = {.struct_size = sizeof no_tables};
    memset(l, 0, sizeof *l);
    l->struct_size = sizeof *l;
    l->op = op;
    l->dtype = l->kv_dtype = dtype;
    l->head_dim = l->value_head_dim = head_dim;
    l->block = 1;
    l->group = l->batch_strided = l->batch = 1;
    l->n_heads = n_heads;
    l->tables = &no_tables;
    l->stream = *stream;
}

tess_status tess_launch_on(tess_device *device, const tess_launch *l) {
    return tess_device_result(device, device->backend->launch(device->native, l));
}
