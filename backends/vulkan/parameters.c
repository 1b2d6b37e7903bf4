/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameters of the dispatches of a run. A plan has one buffer for them, in which each of its
 * max_in_flight runs has a place for the forward dispatch of each submission and one for the merge.
 * Two runs at the same time have different resources and therefore write and read different places.
 */
#include <string.h>

#include "launch.h"

_Static_assert(sizeof(tess_args) % 4 == 0 && sizeof(tess_args) <= 65536,
               "vkCmdUpdateBuffer takes words, and at most 64 KiB of them");
_Static_assert(sizeof(tess_paging_args) <= sizeof(tess_args),
               "the place of a dispatch is as large as either");

uint64_t tess_vk_submission_jobs(const tess_vk_run *run, uint32_t submission) {
    const uint64_t rest = run->launch->n_jobs - submission * run->jobs;
    return run->jobs < rest ? run->jobs : rest;
}

uint32_t tess_vk_merge_number(const tess_vk_run *run) { return run->state->n_submissions; }

uint32_t tess_vk_parameters_at(const tess_vk_run *run, uint32_t dispatch) {
    const tess_vk_state *s = run->state;
    return (run->index * (s->n_submissions + 1) + dispatch) * s->parameters_stride;
}

/* Puts the indices within what is bound into arguments of either kind. */
static void set_indices(const tess_vk_run *run, const tess_portable_tensor *tensors, uint32_t count,
                        void *args) {
    for (uint32_t n = 0; n < count; n++)
        memcpy((char *)args + tensors[n].at, &run->at[TESS_BIND_TENSORS + n], sizeof *run->at);
}

static void write(const tess_vk_run *run, vk_commands commands, uint32_t dispatch, const void *args,
                  size_t bytes) {
    run->device->vk.CmdUpdateBuffer(commands, run->state->parameters.buffer,
                                    tess_vk_parameters_at(run, dispatch), bytes, args);
}

static void write_attention(const tess_vk_run *run, vk_commands commands, uint32_t dispatch,
                            tess_args *args) {
    set_indices(run, tess_portable_tensors, TESS_PORTABLE_TENSORS, args);
    args->partials_at += run->at[TESS_BIND_WORKSPACE];
    write(run, commands, dispatch, args, sizeof *args);
}

static void write_paging(const tess_vk_run *run, vk_commands commands) {
    tess_paging_args args;
    tess_paging_fill(run->launch, 0, run->launch->n_jobs, 1, &args);
    set_indices(run, tess_paging_tensors, TESS_PAGING_TENSORS, &args);
    write(run, commands, 0, &args, sizeof args);
}

void tess_vk_write_parameters(const tess_vk_run *run, vk_commands commands) {
    const tess_launch *l = run->launch;
    tess_args args;
    if (l->op == TESS_OP_PREPARE) {
        tess_prepare_args(l, 1, &args);
        set_indices(run, tess_prepare_tensors, TESS_PREPARE_TENSORS, &args);
        write(run, commands, 0, &args, sizeof args);
        return;
    }
    if (tess_is_paging(l->op)) {
        write_paging(run, commands);
        return;
    }
    if (l->op == TESS_OP_MERGE) {
        tess_portable_parts_args(l, 0, l->n_jobs, 1, &args);
        write_attention(run, commands, 0, &args);
        return;
    }
    for (uint32_t n = 0; n < run->submissions && l->n_jobs; n++) {
        const uint64_t jobs = tess_vk_submission_jobs(run, n);
        if (l->op == TESS_OP_BACKWARD)
            tess_backward_args(l, n * run->jobs, jobs, 1, &args);
        else
            tess_portable_forward_args(l, n * run->jobs, jobs, 1, &args);
        write_attention(run, commands, n, &args);
    }
    if (l->n_merges == 0) return;
    tess_portable_merge_args(l, 0, l->n_merges, 1, &args);
    write_attention(run, commands, tess_vk_merge_number(run), &args);
}
