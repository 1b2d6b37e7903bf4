/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels that write a cache, for CUDA and HIP. */
#include <stdio.h>

#include "driver.h"
#include "paging.h"

/* The most workgroups of a launch: HIP counts threads in 32 bits. */
enum { MOST_GROUPS = 1 << 24 };

static const char *refuses(const tess_driver_device *d, const tess_kernel_key *key, char *buffer,
                           size_t size) {
    const char *why = tess_driver_portable.refuses(d, NULL, buffer, size);
    return why || !key ? why : tess_paging_refusal(key);
}

static tess_status prepare(tess_driver_device *d, const tess_kernel_key *key, tess_kernel *kernel) {
    char name[64];
    snprintf(name, sizeof name, "tess_%s_%u", key->op == TESS_OP_APPEND ? "append" : "copy_pages",
             (unsigned)tess_paging_bits(key->dtype));
    return tess_driver_state_portable(d, key, name, kernel);
}

static tess_status launch(tess_driver_device *d, const tess_launch *l, void *stream) {
    const tess_driver_state *state = l->kernel->state;
    tess_driver_parameters p = {.count = 0};
    if (l->op == TESS_OP_APPEND) {
        tess_driver_pass_tensors(&p, l, tess_paging_tensors, TESS_PAGING_TENSORS);
        tess_driver_pass(&p, &l->tables->device);
    } else {
        tess_driver_pass(&p, &l->tensor[TESS_ROLE_K].buffer);
        tess_driver_pass(&p, &l->tensor[TESS_ROLE_BLOCK_TABLE].buffer);
    }
    for (uint64_t done = 0; done < l->n_jobs; done += MOST_GROUPS) {
        tess_paging_args args;
        const uint64_t items = l->n_jobs - done < MOST_GROUPS ? l->n_jobs - done : MOST_GROUPS;
        tess_paging_fill(l, done, items, 1, &args);
        p.all[p.count] = &args;
        TESS_RETURN_IF_ERROR(tess_driver_start_plain(d, state->forward, (unsigned)items,
                                                     TESS_PAGING_THREADS, stream, p.all));
    }
    return TESS_OK;
}

const tess_driver_row tess_driver_append = {
    {TESS_OP_APPEND, "append", 0}, refuses, prepare, launch};
const tess_driver_row tess_driver_copy_pages = {
    {TESS_OP_COPY_PAGES, "copy_pages", 0}, refuses, prepare, launch};
