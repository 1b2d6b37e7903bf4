/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of a run: where they lie in tess_run_desc, what they hold, and which operations use
 * them. */
#include "roles.h"

#define AT(field) #field, offsetof(tess_run_desc, field)

enum {
    FORWARD = 1u << TESS_OP_FORWARD,
    BACKWARD = 1u << TESS_OP_BACKWARD,
    BOTH = FORWARD | BACKWARD
};

const tess_role_row tess_role_rows[TESS_ROLES_USED] = {
    [TESS_ROLE_Q] = {AT(q), BOTH, .tokens = TESS_TOKENS_Q},
    [TESS_ROLE_K] = {AT(k), BOTH, .tokens = TESS_TOKENS_KV},
    [TESS_ROLE_V] = {AT(v), BOTH, .tokens = TESS_TOKENS_KV},
    [TESS_ROLE_O] = {AT(o), BOTH, .tokens = TESS_TOKENS_Q, .outputs = FORWARD},
    [TESS_ROLE_LSE] = {AT(lse), BOTH, .tokens = TESS_TOKENS_Q, .outputs = FORWARD,
                       .optional = FORWARD, .scalar = true},
    [TESS_ROLE_K_SCALE] = {AT(k_scale), FORWARD, .tokens = TESS_TOKENS_KV, .scalar = true,
                           .by_token = true},
    [TESS_ROLE_V_SCALE] = {AT(v_scale), FORWARD, .tokens = TESS_TOKENS_KV, .scalar = true,
                           .by_token = true},
    [TESS_ROLE_D_O] = {AT(d_o), BACKWARD, .tokens = TESS_TOKENS_Q},
    [TESS_ROLE_D_Q] = {AT(d_q), BACKWARD, .tokens = TESS_TOKENS_Q, .outputs = BACKWARD,
                       .optional = BACKWARD, .wide = TESS_PLAN_DQ_F32},
    [TESS_ROLE_D_K] = {AT(d_k), BACKWARD, .tokens = TESS_TOKENS_KV, .outputs = BACKWARD,
                       .optional = BACKWARD, .wide = TESS_PLAN_DKV_F32},
    [TESS_ROLE_D_V] = {AT(d_v), BACKWARD, .tokens = TESS_TOKENS_KV, .outputs = BACKWARD,
                       .optional = BACKWARD, .wide = TESS_PLAN_DKV_F32},
    [TESS_ROLE_D_LSE] = {AT(d_lse), BACKWARD, .tokens = TESS_TOKENS_Q, .optional = BACKWARD,
                         .scalar = true},
};
_Static_assert((int)TESS_ROLES_USED <= (int)TESS_ROLES, "a launch has a place for every role");

tess_extent tess_role_extent(const tess_plan *plan, uint32_t role, uint32_t storage) {
    const tess_role_row *row = &tess_role_rows[role];
    const bool keys = row->tokens == TESS_TOKENS_KV;
    const uint32_t dtype = row->scalar || (plan->flags & row->wide) ? TESS_F32
                           : keys                                   ? plan->kv_dtype
                                                                    : plan->dtype;
    return (tess_extent){.keys = keys,
                         .heads = keys ? plan->pools.all[storage].heads
                                       : (uint32_t)plan->layout->n_heads,
                         .row = row->scalar ? 1 : (uint32_t)plan->head_dim,
                         .item = tess_dtype_size(dtype),
                         .align = tess_dtype_align(dtype)};
}

/* ------------------------------------------------------------------ later versions */

/* Buffers and tensors that no operation uses yet. A tensor begins with its buffer. */
static const struct {
    const char *name;
    size_t at;
} later[] = {{AT(sink_logits)}, {AT(q_lens)}, {AT(kv_lens)}};
_Static_assert(offsetof(tess_tensor, buffer) == 0, "the place of a tensor is that of its buffer");

static bool is_given(const tess_run_desc *d, size_t at) {
    const tess_buffer *buffer = (const tess_buffer *)(const void *)((const char *)d + at);
    return buffer->kind != TESS_BUFFER_NONE;
}

const char *tess_role_later(const tess_run_desc *d) {
    for (size_t n = 0; n < sizeof later / sizeof *later; n++)
        if (is_given(d, later[n].at)) return later[n].name;
    return NULL;
}

const char *tess_role_unused(const tess_run_desc *d, uint32_t op) {
    for (uint32_t role = 0; role < TESS_ROLES_USED; role++)
        if (tess_role_rows[role].name && !tess_role_serves(role, op) &&
            is_given(d, tess_role_rows[role].at))
            return tess_role_rows[role].name;
    return NULL;
}
