/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of a run: where they lie in tess_run_desc, what they hold, and which operations use
 * them. */
#include "roles.h"

#define AT(field) #field, offsetof(tess_run_desc, field)

enum { FORWARD = 1u << TESS_OP_FORWARD };

const tess_role_row tess_role_rows[TESS_ROLES_USED] = {
    [TESS_ROLE_Q] = {AT(q), FORWARD, .tokens = TESS_TOKENS_Q},
    [TESS_ROLE_K] = {AT(k), FORWARD, .tokens = TESS_TOKENS_KV},
    [TESS_ROLE_V] = {AT(v), FORWARD, .tokens = TESS_TOKENS_KV},
    [TESS_ROLE_O] = {AT(o), FORWARD, .tokens = TESS_TOKENS_Q, .output = true},
    [TESS_ROLE_LSE] = {AT(lse), FORWARD, .tokens = TESS_TOKENS_Q, .output = true, .optional = true,
                       .scalar = true},
    [TESS_ROLE_K_SCALE] = {AT(k_scale), FORWARD, .tokens = TESS_TOKENS_KV, .scalar = true,
                           .by_token = true},
    [TESS_ROLE_V_SCALE] = {AT(v_scale), FORWARD, .tokens = TESS_TOKENS_KV, .scalar = true,
                           .by_token = true},
};
_Static_assert((int)TESS_ROLES_USED <= (int)TESS_ROLES, "a launch has a place for every role");

tess_extent tess_role_extent(const tess_plan *plan, uint32_t role, uint32_t storage) {
    const tess_role_row *row = &tess_role_rows[role];
    const bool keys = row->tokens == TESS_TOKENS_KV;
    const uint32_t dtype = row->scalar ? TESS_F32 : keys ? plan->kv_dtype : plan->dtype;
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
} later[] = {{AT(sink_logits)}, {AT(q_lens)}, {AT(kv_lens)}, {AT(d_o)},
             {AT(d_q)},         {AT(d_k)},    {AT(d_v)},     {AT(d_lse)}};
_Static_assert(offsetof(tess_tensor, buffer) == 0, "the place of a tensor is that of its buffer");

static bool is_given(const tess_run_desc *d, size_t at) {
    const tess_buffer *buffer = (const tess_buffer *)(const void *)((const char *)d + at);
    return buffer->kind != TESS_BUFFER_NONE;
}

const char *tess_role_unused(const tess_run_desc *d, uint32_t op) {
    for (size_t n = 0; n < sizeof later / sizeof *later; n++)
        if (is_given(d, later[n].at)) return later[n].name;
    for (uint32_t role = 0; role < TESS_ROLES_USED; role++)
        if (tess_role_rows[role].name && !tess_role_serves(role, op) &&
            is_given(d, tess_role_rows[role].at))
            return tess_role_rows[role].name;
    return NULL;
}
