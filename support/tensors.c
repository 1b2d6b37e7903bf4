/* SPDX-License-Identifier: Apache-2.0 */
#include "tensors.h"

#define AT(field) offsetof(tess_run_desc, field)

enum { FWD = 1u << TESS_OP_FORWARD, BWD = 1u << TESS_OP_BACKWARD };

const run_tensor_row run_tensors[RUN_TENSORS] = {
    [TESS_ROLE_Q] = {"q", AT(q), TESS_ROLE_Q, .inputs = FWD | BWD, .required = FWD | BWD},
    [TESS_ROLE_K] = {"k", AT(k), TESS_ROLE_K, .inputs = FWD | BWD, .required = FWD | BWD},
    [TESS_ROLE_V] = {"v", AT(v), TESS_ROLE_V, .inputs = FWD | BWD, .required = FWD | BWD},
    [TESS_ROLE_O] = {"o", AT(o), TESS_ROLE_O, .inputs = BWD, .outputs = FWD, .required = FWD},
    [TESS_ROLE_LSE] = {"lse", AT(lse), TESS_ROLE_LSE, .inputs = BWD, .outputs = FWD},
    [RUN_D_O] = {"do", AT(d_o), TESS_ROLE_D_O, .inputs = BWD, .required = BWD},
    [RUN_D_LSE] = {"dlse", AT(d_lse), TESS_ROLE_D_LSE, .inputs = BWD},
    [RUN_D_Q] = {"dq", AT(d_q), TESS_ROLE_D_Q, .outputs = BWD},
    [RUN_D_K] = {"dk", AT(d_k), TESS_ROLE_D_K, .outputs = BWD},
    [RUN_D_V] = {"dv", AT(d_v), TESS_ROLE_D_V, .outputs = BWD},
};
