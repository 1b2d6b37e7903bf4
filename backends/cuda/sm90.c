/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel for Hopper from the host's side: which problems it takes, tensor maps, and the
 * launch. */
#include <stdio.h>
#include <string.h>

#include "cuda.h"
#include "sm90_maps.h"

typedef struct instance {
    int32_t head_dim, rows;
    unsigned keys, threads, shared_bytes;
} instance;

#define INSTANCE(head_dim, keys, groups, q_stages, k_stages, v_stages)  \
    {head_dim, TESS_SM90_ROWS(groups), keys, TESS_SM90_THREADS(groups), \
     TESS_SM90_SHARED(head_dim, keys, groups, q_stages, k_stages, v_stages)},
static const instance instances[] = {TESS_SM90_INSTANCES(INSTANCE)};

enum {
    INSTANCES = sizeof instances / sizeof *instances,
    COUNTER_BYTES = 256, /* of the workspace */
    /* jobs a multiprocessor from which on handing them out one by one is worth filling the
     * counter before the launch */
    COUNTED_JOBS = 3,
};

/* The smallest one that takes a head_dim; the last takes every one that is not refused. */
static const instance *find(int32_t head_dim) {
    const instance *x = instances, *end = instances + INSTANCES;
    while (x < end && x->head_dim < head_dim) x++;
    return x < end ? x : NULL;
}

static const char *refuses(const tess_driver_device *d, const tess_kernel_key *key, char *buffer,
                           size_t size) {
    return tess_cuda_refusal(tess_cuda_hopper_refusal(d, tess_cuda_sm90_images, key, buffer, size),
                             key);
}

/* Measured on an H200. Rows that are not there cost as much as others. Where a tile holds all rows
 * that read some keys, each job reads its own from memory: a multiprocessor gets a third more than
 * its share of the bandwidth at most, and reads little between two jobs. */
static tess_kernel_costs costs_of(const tess_driver_device *d, const instance *x,
                                  const tess_kernel_key *key) {
    enum { FLOP_PER_NS = 5800, BYTES_PER_NS = 41 }; /* of a multiprocessor */
    const uint32_t bytes = 4 * x->keys * (uint32_t)key->head_dim,
                   flop = 4 * (uint32_t)x->rows * x->keys * (uint32_t)x->head_dim,
                   read_ns = bytes / BYTES_PER_NS, step_ns = flop / FLOP_PER_NS;
    const int reads = key->max_q_len <= x->rows / (int32_t)key->group;
    return (tess_kernel_costs){.workers = (uint32_t)(d->units > 0 ? d->units : 1),
                               .step_keys = x->keys,
                               .step_ns = reads && read_ns > step_ns ? read_ns : step_ns,
                               .job_ns = reads ? 8000 : 1600,
                               .merge_ns = 3200,
                               .part_ns = 150,
                               .partial_bandwidth = 1800000,
                               .bandwidth = 3900000};
}

static tess_status prepare(tess_driver_device *d, const tess_kernel_key *key, tess_kernel *kernel) {
    const instance *x = find(key->head_dim);
    const tess_kernel_costs costs = costs_of(d, x, key);
    tess_portable_tiles(x->rows, 8, &costs, kernel);
    kernel->scratch_bytes = COUNTER_BYTES;
    const char *name = key->page != 0 || key->compact != 0 ? "sm90_placed" : "sm90";
    return tess_cuda_prepare(d, key, CUDA_SM90_MODULE, &tess_cuda_sm90_images[0], name, x->head_dim,
                             x->shared_bytes, kernel);
}

/* The maps of K and V, and their steps. A stage is made of pieces of `piece` tokens; where a
 * sequence or a page does not hold as many, there is nothing to copy at once. False if there is not
 * even a map of single pieces. */
static int make_key_maps(const tess_driver_device *d, const tess_launch *l, unsigned piece,
                         unsigned pieces, tess_sm90_maps *maps, uint32_t *step) {
    const int placed = l->page != 0 || l->compact != 0;
    const uint64_t list_step = (uint64_t)l->tables->list_step * (uint64_t)l->block;
    const uint64_t steps[TESS_SM90_MAPS] = {[TESS_SM90_PIECES] = piece,
                                            [TESS_SM90_RUN] = piece,
                                            [TESS_SM90_LIST] = placed ? 0 : list_step};
    const int64_t tokens = l->page ? l->page : l->kv_tokens;
    const uint64_t batches = l->page ? (uint64_t)l->pages : l->kv_batch ? l->kv_batch : 1;
    const uint32_t heads = l->n_heads / l->group;
    for (unsigned n = 0; n < TESS_SM90_MAPS; n++) {
        const unsigned boxes = n == TESS_SM90_PIECES ? 1 : pieces;
        const int fits =
            n == TESS_SM90_PIECES || (tokens > 0 && pieces > 1 && steps[n] > 0 &&
                                      steps[n] <= (uint64_t)(tokens - 1) / (pieces - 1));
        const int made = fits &&
                         tess_cuda_make_map(d, l, &l->tensor[TESS_ROLE_K], tokens, heads, batches,
                                            piece, boxes, steps[n], &maps->k[n]) &&
                         tess_cuda_make_map(d, l, &l->tensor[TESS_ROLE_V], tokens, heads, batches,
                                            piece, boxes, steps[n], &maps->v[n]);
        step[n] = made ? (uint32_t)steps[n] : 0;
        if (!step[TESS_SM90_PIECES]) return 0;
    }
    return 1;
}

static tess_status forward(tess_driver_device *d, const tess_launch *l, void *stream) {
    const tess_driver_state *state = l->kernel->state;
    const instance *x = find(l->head_dim);
    const tess_driver_calls *c = &d->driver->call;
    const uint32_t wide = tess_cuda_wide(l);
    const uint64_t workspace = l->workspace.handle + l->workspace.offset;
    unsigned shift = 6;
    while (l->block % (1 << shift) != 0 || l->page % (1 << shift) != 0) shift--;

    tess_sm90_maps maps;
    uint32_t step[TESS_SM90_MAPS] = {0};
    memset(&maps, 0, sizeof maps);
    const int q_map = (wide & 1) && tess_cuda_make_map(d, l, &l->tensor[TESS_ROLE_Q], l->q_tokens,
                                                       l->n_heads, l->batch, 64, 1, 0, &maps.q);
    const int o_map = (wide & 4) && tess_cuda_make_map(d, l, &l->tensor[TESS_ROLE_O], l->q_tokens,
                                                       l->n_heads, l->batch, 16, 1, 0, &maps.o);
    const int kv_map =
        (wide & 2) && make_key_maps(d, l, 1u << shift, x->keys >> shift, &maps, step);

    /* A few jobs are assigned before the launch, to and fro over the workgroups, since they come
     * longest first. Of many jobs, each workgroup takes the next one when it is done. Only the
     * device knows how many jobs a step has. */
    const int counted =
        !l->tables->has_step && l->n_jobs >= (uint64_t)COUNTED_JOBS * (uint64_t)d->units;
    for (uint64_t done = 0; done < l->n_jobs;) {
        const uint64_t items = l->n_jobs - done < INT32_MAX ? l->n_jobs - done : INT32_MAX;
        tess_sm90_args args;
        CUDA_FORWARD_ARGS(&args, l, done, items);
        args.block_table = tess_driver_address(&l->tensor[TESS_ROLE_BLOCK_TABLE].buffer);
        args.counter = counted ? workspace : 0;
        args.piece_shift = shift;
        args.q_tokens = (uint32_t)l->q_tokens;
        args.kv_tokens = (uint32_t)l->kv_tokens;
        memcpy(args.step, step, sizeof step);
        args.tma = (q_map ? 1u : 0) | (kv_map ? 2u : 0) | (o_map ? 4u : 0);
        if (counted) {
            const int code = c->fill(workspace, 0, 1, stream);
            if (code != DRIVER_OK)
                return tess_driver_fail(d, "cuMemsetD32Async", "the counter of jobs", code);
        }
        const unsigned groups = items < (uint64_t)d->units ? (unsigned)items : (unsigned)d->units;
        void *parameters[] = {&maps, &args};
        TESS_RETURN_IF_ERROR(tess_driver_start(d, CUDA_SM90_MODULE, state->forward, groups,
                                               x->threads, x->shared_bytes, stream, parameters));
        done += items;
    }
    return TESS_OK;
}

const tess_driver_row tess_cuda_sm90 = {{TESS_OP_FORWARD, "sm90", 0}, refuses, prepare, forward};
