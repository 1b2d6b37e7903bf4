/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of tess_run_desc by their tess_role. */
#ifndef TESSERA_SUPPORT_TENSORS_H
#define TESSERA_SUPPORT_TENSORS_H

#include <stddef.h>
#include <tessera/tessera.h>

typedef struct run_tensor_row {
    const char *name;
    size_t at; /* of the tess_tensor in tess_run_desc */
    int output, optional;
} run_tensor_row;

enum { RUN_TENSORS = TESS_ROLE_LSE + 1 };
extern const run_tensor_row run_tensors[RUN_TENSORS];

static inline tess_tensor *run_tensor(tess_run_desc *run, int role) {
    return (tess_tensor *)(void *)((char *)run + run_tensors[role].at);
}

#endif
