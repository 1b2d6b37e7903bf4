/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel that prepares steps, for CUDA and HIP. */
#include "driver.h"
#include "prepare.h"

static const char *refuses(const tess_driver_device *d, const tess_kernel_key *key, char *buffer,
                           size_t size) {
    (void)key;
    return tess_driver_portable.refuses(d, NULL, buffer, size);
}

static tess_status prepare(tess_driver_device *d, const tess_kernel_key *key, tess_kernel *kernel) {
    tess_driver_state *state = NULL;
    const tess_status status =
        tess_driver_state_create(d, key, 0, d->driver->vendor->images, "tess_prepare", &state);
    kernel->state = state;
    return status;
}

static tess_status launch(tess_driver_device *d, const tess_launch *l, void *stream) {
    const tess_driver_state *state = l->kernel->state;
    uint64_t buffers[TESS_PREPARE_BUFFERS];
    void *parameters[TESS_PREPARE_BUFFERS + 1];
    tess_args args;
    for (int n = 0; n < TESS_PREPARE_TENSORS; n++)
        buffers[n] = tess_driver_address(&l->tensor[tess_prepare_tensors[n].role].buffer);
    buffers[TESS_PREPARE_TENSORS] = tess_driver_address(&l->tables->device);
    for (int n = 0; n < TESS_PREPARE_BUFFERS; n++) parameters[n] = &buffers[n];
    parameters[TESS_PREPARE_BUFFERS] = &args;
    tess_prepare_args(l, 1, &args);
    return tess_driver_start_plain(d, state->forward, (unsigned)l->n_jobs, TESS_PREPARE_GROUP,
                                   stream, parameters);
}

const tess_driver_row tess_driver_prepare = {
    {TESS_OP_PREPARE, "prepare", 0}, refuses, prepare, launch};
