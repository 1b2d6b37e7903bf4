/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of tess_run_desc: those of forward by their tess_role, then those of backward. */
#ifndef TESSERA_SUPPORT_TENSORS_H
#define TESSERA_SUPPORT_TENSORS_H

#include <stddef.h>
#include <tessera/tessera.h>

enum { RUN_D_O = TESS_ROLE_LSE + 1, RUN_D_LSE, RUN_D_Q, RUN_D_K, RUN_D_V, RUN_TENSORS };

/* Bits of tess_op: in which operations it is read, is written, and must be there. */
typedef struct run_tensor_row {
    const char *name; /* of an option or a file */
    size_t at;        /* of the tess_tensor in tess_run_desc */
    tess_role role;
    unsigned inputs, outputs, required;
} run_tensor_row;

extern const run_tensor_row run_tensors[RUN_TENSORS];

static inline tess_tensor *run_tensor(tess_run_desc *run, int row) {
    return (tess_tensor *)(void *)((char *)run + run_tensors[row].at);
}

#endif
