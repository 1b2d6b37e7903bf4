/* SPDX-License-Identifier: Apache-2.0 */
/* The part of tess_backend.kernel that is the same in every backend. */
#ifndef TESS_COMMON_ROW_H
#define TESS_COMMON_ROW_H

#include <stdio.h>
#include <tessera/tessera_backend.h>

/* What a row of any backend's table of kernels begins with. */
typedef struct tess_row_head {
    uint32_t op;      /* tess_op */
    const char *name; /* without the backend's */
    uint32_t flags;   /* TESS_KERNEL_ONLY_NAMED */
} tess_row_head;

/* Describes a row in *info; `why` is the reason why it refuses the key, or the device where there
 * is no key, and may lie in info->reason. Returns whether it accepts. */
static inline int tess_row_answer(const tess_row_head *row, const tess_kernel_key *key,
                                  const char *why, tess_kernel_info *info) {
    info->op = row->op;
    info->flags = row->flags;
    snprintf(info->name, sizeof info->name, "%s", row->name);
    info->status = !why ? TESS_OK : key ? TESS_ERROR_UNSUPPORTED : TESS_ERROR_UNAVAILABLE;
    if (why && why != info->reason)
        snprintf(info->reason, sizeof info->reason, "%.*s", (int)sizeof info->reason - 1, why);
    return !why;
}

#endif /* TESS_COMMON_ROW_H */
