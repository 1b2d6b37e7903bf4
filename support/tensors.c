/* SPDX-License-Identifier: Apache-2.0 */
#include "tensors.h"

#define AT(field) #field, offsetof(tess_run_desc, field)

const run_tensor_row run_tensors[RUN_TENSORS] = {
    [TESS_ROLE_Q] = {AT(q), 0, 0},     [TESS_ROLE_K] = {AT(k), 0, 0},
    [TESS_ROLE_V] = {AT(v), 0, 0},     [TESS_ROLE_O] = {AT(o), .output = 1},
    [TESS_ROLE_LSE] = {AT(lse), 1, 1},
};
