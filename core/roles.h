/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of a run, a row for each tess_role. */
#ifndef TESSERA_CORE_ROLES_H
#define TESSERA_CORE_ROLES_H

#include "plan.h"

typedef enum tess_tokens { TESS_TOKENS_Q, TESS_TOKENS_KV } tess_tokens;

typedef struct tess_role_row {
    const char *name; /* of the field of tess_run_desc, for messages */
    size_t at;        /* of the tess_tensor in tess_run_desc */
    uint32_t ops;     /* bit n: tess_op n uses it */
    bool output, optional;
    tess_tokens tokens; /* rows and query heads, or keys and kv heads */
    bool scalar;        /* one float32 for each token and head, and not a vector of head_dim */
} tess_role_row;

enum { TESS_ROLES_USED = TESS_ROLE_LSE + 1 };
extern const tess_role_row tess_role_rows[TESS_ROLES_USED];

/* What the jobs of a plan touch of a tensor. */
typedef struct tess_extent {
    bool keys; /* lengths are kv_len */
    uint32_t heads;
    uint32_t row;  /* elements of one token and head */
    uint32_t item; /* bytes of an element */
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

/* The first tensor or buffer of the descriptor that is given and that the operation does not use in
 * this version, or NULL. */
const char *tess_role_unused(const tess_run_desc *d, uint32_t op);

#endif
