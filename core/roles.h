/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of a run, a row for each tess_role. */
#ifndef TESSERA_CORE_ROLES_H
#define TESSERA_CORE_ROLES_H

#include "plan.h"

typedef enum tess_tokens { TESS_TOKENS_Q, TESS_TOKENS_KV } tess_tokens;

typedef struct tess_role_row {
    const char *name;   /* of the field of tess_run_desc, for messages */
    size_t at;          /* of the tess_tensor in tess_run_desc */
    uint32_t ops;       /* bit n: tess_op n uses it */
    uint32_t outputs;   /* likewise: it is written, not read */
    uint32_t optional;  /* likewise: it may be of kind NONE */
    tess_tokens tokens; /* rows and query heads, or keys and kv heads */
    bool scalar;        /* one float32 for each token and head, and not a vector of head_dim */
    bool by_token;      /* in a contiguous tensor, those of a token lie side by side */
    uint32_t wide;      /* the plan's flag by which it is float32 */
} tess_role_row;

/* Roles that are no tensors of a run have no name. */
enum { TESS_ROLES_USED = TESS_ROLE_D_LSE + 1 };
extern const tess_role_row tess_role_rows[TESS_ROLES_USED];

/* What the jobs of a plan touch of a tensor. */
typedef struct tess_extent {
    bool keys; /* lengths are kv_len */
    uint32_t heads;
    uint32_t row;   /* elements of one token and head */
    uint32_t item;  /* bytes of an element */
    uint32_t align; /* of the address and the strides, in bytes */
} tess_extent;

/* `storage`: the group of K and V. */
tess_extent tess_role_extent(const tess_plan *plan, uint32_t role, uint32_t storage);

static inline const tess_tensor *tess_role_tensor(const tess_run_desc *d, uint32_t role) {
    return (const tess_tensor *)(const void *)((const char *)d + tess_role_rows[role].at);
}

/* Whether an operation uses a tensor. */
static inline bool tess_role_serves(uint32_t role, uint32_t op) {
    return (tess_role_rows[role].ops >> op & 1) != 0;
}

static inline bool tess_role_written(uint32_t role, uint32_t op) {
    return (tess_role_rows[role].outputs >> op & 1) != 0;
}
static inline bool tess_role_optional(uint32_t role, uint32_t op) {
    return (tess_role_rows[role].optional >> op & 1) != 0;
}

/* The tensors of keys that the operations of a plan use: K and V, and their scales if they have
 * some, or their gradients. */
static inline uint32_t tess_key_roles(const tess_plan *plan, const uint32_t **roles) {
    static const uint32_t all[] = {TESS_ROLE_K, TESS_ROLE_V, TESS_ROLE_K_SCALE, TESS_ROLE_V_SCALE};
    static const uint32_t gradients[] = {TESS_ROLE_K, TESS_ROLE_V, TESS_ROLE_D_K, TESS_ROLE_D_V};
    *roles = plan->op == TESS_OP_BACKWARD ? gradients : all;
    if (plan->op == TESS_OP_BACKWARD) return 4;
    return tess_dtype_has_scales(plan->kv_dtype) ? 4 : 2;
}

/* The first tensor or buffer of the descriptor that is given and that no operation uses in this
 * version, or NULL; and the first tensor that is of another operation. */
const char *tess_role_later(const tess_run_desc *d);
const char *tess_role_unused(const tess_run_desc *d, uint32_t op);

#endif
