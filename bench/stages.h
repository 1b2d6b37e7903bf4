/* SPDX-License-Identifier: Apache-2.0 */
/* Where the time of a run of the suite goes: one clock, which is always in one stage. */
#ifndef TESSERA_BENCH_STAGES_H
#define TESSERA_BENCH_STAGES_H

/* Names as result files have them. */
// clang-format off
#define BENCH_STAGES(X)                                                    \
    X(REST, rest)         /* devices opened, results told, memory freed */ \
    X(LIMITS, limits)     /* what the device shows by itself */            \
    X(PLANS, plans)       /* layouts, plans, compilation */                \
    X(INPUTS, inputs)     /* tensors made and brought to the device */     \
    X(FIRST, first_runs)                                                   \
    X(CHECKS, checks)     /* against the reference */                      \
    X(LAYERS, layers)     /* of decode: copies, time on the host */        \
    X(WARM_UP, warm_up)                                                    \
    X(ROUNDS, rounds)     /* what results are medians of */                \
    X(ENERGY, energy)                                                      \
    X(PEERS, peers)                                                        \
    X(PLANNING, planning) /* the table of plans */
// clang-format on

typedef enum bench_stage {
#define STAGE(upper, lower) STAGE_##upper,
    BENCH_STAGES(STAGE)
#undef STAGE
        N_STAGES
} bench_stage;

/* Enters a stage and returns the one before, to be entered again afterwards. */
bench_stage stage_enter(bench_stage next);
/* From now on seconds are added to `to`, with one number a stage; NULL: nowhere. The stage is
 * STAGE_REST then. */
void stages_of(double *to);
/* "rest", "limits", ...; a name in result files. */
const char *stage_name(int stage);

#endif
