/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One launch on its way to the device, a file for each step:
 *
 *   launch.c      the order of the steps
 *   stream.c      the application's stream -> where the commands go
 *   bind.c        tensors, tables, workspace -> descriptors, and indices within them
 *   parameters.c  dispatches -> tess_args in the run's parameters
 *   record.c      commands of a run: parameters, barriers, dispatches
 *   submit.c      command buffers of the run -> the queue; device_seconds
 */
#ifndef TESSERA_VULKAN_LAUNCH_H
#define TESSERA_VULKAN_LAUNCH_H

#include "kernels/bindings.h"
#include "vk.h"
#include <tessera/tessera_vulkan.h>

/* Semaphores of one direction, as vkQueueSubmit takes them. */
typedef struct tess_vk_semaphores {
    uint32_t count;
    vk_handle handles[TESS_VULKAN_MOST_SEMAPHORES];
    uint64_t values[TESS_VULKAN_MOST_SEMAPHORES];
} tess_vk_semaphores;

/* Where the commands of a launch go. */
typedef struct tess_vk_target {
    vk_queue queue;       /* submitted to this queue, or ... */
    vk_commands commands; /* ... recorded into this command buffer of the application's */
    tess_vk_semaphores waits, signals;
    vk_handle fence;
    tess_vulkan_record record;
} tess_vk_target;

typedef struct tess_vk_run {
    tess_vk_device *device;
    const tess_launch *launch;
    tess_vk_state *state;
    tess_vk_target target;
    /* By TESS_BIND_*: what is bound, and the index of the first element in it. */
    vk_buffer_range ranges[TESS_BINDINGS];
    tess_arg_i64 at[TESS_BINDINGS];
    uint32_t submissions;
    uint64_t jobs;  /* of each submission but the last */
    uint32_t index; /* of the resources */
    tess_vk_resources *resources;
} tess_vk_run;

/* stream.c */
tess_status tess_vk_read_stream(tess_vk_run *run);

/* bind.c */
tess_status tess_vk_bind(tess_vk_run *run);
void tess_vk_write_set(const tess_vk_run *run);

/* parameters.c: the forward dispatches are numbered as the submissions are; the merge is last. */
uint64_t tess_vk_submission_jobs(const tess_vk_run *run, uint32_t submission);
uint32_t tess_vk_merge_number(const tess_vk_run *run);
uint32_t tess_vk_parameters_at(const tess_vk_run *run, uint32_t dispatch);
void tess_vk_write_parameters(const tess_vk_run *run, vk_commands commands);

/* record.c: a run is its begin, the jobs of each submission, and its end. */
void tess_vk_record_begin(const tess_vk_run *run, vk_commands commands);
void tess_vk_record_jobs(const tess_vk_run *run, vk_commands commands, uint32_t submission);
void tess_vk_record_end(const tess_vk_run *run, vk_commands commands);
/* All of it into the application's command buffer. */
void tess_vk_record(const tess_vk_run *run);

/* submit.c */
tess_status tess_vk_submit_run(const tess_vk_run *run);

#endif
