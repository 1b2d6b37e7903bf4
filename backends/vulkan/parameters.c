/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameters of the dispatches of a run. A plan has one buffer for them, in which each of its
 * max_in_flight runs has a place for the forward dispatch of each submission and one for the merge.
 * Two runs at the same time have different resources and therefore write and read different places.
 */
#include <string.h>

#include "launch.h"

_Static_assert(sizeof(tess_vk_parameters) % 4 == 0 && sizeof(tess_vk_parameters) <= 65536,
               "vkCmdUpdateBuffer takes words, and at most 64 KiB of them");
_Static_assert(sizeof(tess_paging_args) <= sizeof(tess_args),
               "the place of a dispatch is as large as either");

uint64_t tess_vk_submission_jobs(const tess_vk_run *run, uint32_t submission) {
    const uint64_t rest = run->launch->n_jobs - submission * run->jobs;
    return run->jobs < rest ? run->jobs : rest;
}

uint32_t tess_vk_merge_number(const tess_vk_run *run) { return run->state->n_submissions; }

uint32_t tess_vk_parameters_at(const tess_vk_run *run, uint32_t bind_range, uint32_t dispatch) {
    const tess_vk_state *s = run->state;
    const uint32_t places = run->index * s->most_bind_ranges + bind_range;
    return (places * (s->n_submissions + 1) + dispatch) * s->parameters_stride;
}

/* A binding range on its way to the parameters. */
typedef struct writer {
    const tess_vk_run *run;
    vk_commands commands;
    uint32_t bind_range;
    tess_vk_bound bound;
} writer;

/* Puts the indices within what is bound into arguments of either kind. */
static void set_indices(const writer *w, const tess_portable_tensor *tensors, uint32_t count,
                        void *args) {
    for (uint32_t n = 0; n < count; n++)
        memcpy((char *)args + tensors[n].at, &w->bound.at[TESS_BIND_TENSORS + n],
               sizeof *w->bound.at);
}

static void write(const writer *w, uint32_t dispatch, const void *args, size_t bytes) {
    const tess_vk_run *run = w->run;
    run->device->vk.CmdUpdateBuffer(w->commands, run->state->parameters.buffer,
                                    tess_vk_parameters_at(run, w->bind_range, dispatch), bytes,
                                    args);
}

static void write_attention(const writer *w, uint32_t dispatch, tess_vk_parameters *p) {
    set_indices(w, tess_portable_tensors, TESS_PORTABLE_TENSORS, &p->args);
    p->args.partials_at += w->bound.at[TESS_BIND_WORKSPACE];
    for (int n = 0; n < VK_UNITS; n++) {
        /* Their number may be unknown, and sequences without rows begin where the last row ends. */
        const int is_open = n != VK_BY_KV_HEAD && w->bound.end[n] == w->run->units[n].all;
        p->bound[2 * n] = w->bound.first[n];
        p->bound[2 * n + 1] = is_open ? UINT32_MAX : w->bound.end[n] - 1;
    }
    write(w, dispatch, p, sizeof *p);
}

static void write_paging(const writer *w) {
    const tess_launch *l = w->run->launch;
    tess_paging_args args;
    tess_paging_fill(l, 0, l->n_jobs, 1, &args);
    set_indices(w, tess_paging_tensors, TESS_PAGING_TENSORS, &args);
    write(w, 0, &args, sizeof args);
}

static void write_prepare(const writer *w) {
    tess_args args;
    tess_prepare_args(w->run->launch, 1, &args);
    set_indices(w, tess_prepare_tensors, TESS_PREPARE_TENSORS, &args);
    write(w, 0, &args, sizeof args);
}

static void write_parts(const writer *w) {
    tess_vk_parameters p = {0};
    tess_portable_parts_args(w->run->launch, 0, w->run->launch->n_jobs, 1, &p.args);
    write_attention(w, 0, &p);
}

static void write_range(const writer *w) {
    const tess_vk_run *run = w->run;
    const tess_launch *l = run->launch;
    tess_vk_parameters p = {0};
    for (uint32_t n = 0; n < run->submissions && l->n_jobs; n++) {
        const uint64_t jobs = tess_vk_submission_jobs(run, n);
        if (l->op == TESS_OP_BACKWARD)
            tess_backward_args(l, n * run->jobs, jobs, 1, &p.args);
        else
            tess_portable_forward_args(l, n * run->jobs, jobs, 1, &p.args);
        write_attention(w, n, &p);
    }
    if (l->n_merges == 0) return;
    tess_portable_merge_args(l, 0, l->n_merges, 1, &p.args);
    write_attention(w, tess_vk_merge_number(run), &p);
}

void tess_vk_write_parameters(const tess_vk_run *run, vk_commands commands) {
    const uint32_t op = run->launch->op;
    writer w = {.run = run, .commands = commands};
    for (; w.bind_range < run->bind_ranges; w.bind_range++) {
        tess_vk_bind_range(run, w.bind_range, &w.bound);
        if (op == TESS_OP_PREPARE)
            write_prepare(&w);
        else if (tess_is_paging(op))
            write_paging(&w);
        else if (op == TESS_OP_MERGE)
            write_parts(&w);
        else
            write_range(&w);
    }
}
