/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel that prepares steps, for CUDA and HIP. */
#include "driver.h"
#include "kernels/step_shape.h"
#include "prepare.h"

static const char *refuses(const tess_driver_device *d, const tess_kernel_key *key, char *buffer,
                           size_t size) {
    (void)key;
    return tess_driver_portable.refuses(d, NULL, buffer, size);
}

static tess_status prepare(tess_driver_device *d, const tess_kernel_key *key, tess_kernel *kernel) {
    return tess_driver_state_portable(d, key, "tess_prepare", kernel);
}

static tess_status launch(tess_driver_device *d, const tess_launch *l, void *stream) {
    const tess_driver_state *state = l->kernel->state;
    tess_driver_parameters p = {.count = 0};
    tess_args args;
    tess_driver_pass_tensors(&p, l, tess_prepare_tensors, TESS_PREPARE_TENSORS);
    tess_driver_pass(&p, &l->tables->device);
    p.all[p.count] = &args;
    tess_prepare_args(l, 1, &args);
    return tess_driver_start_plain(d, state->forward, (unsigned)l->n_jobs * TESS_STEP_SHARES,
                                   TESS_STEP_THREADS, stream, p.all);
}

const tess_driver_row tess_driver_prepare = {
    {TESS_OP_PREPARE, "prepare", 0}, refuses, prepare, launch};
