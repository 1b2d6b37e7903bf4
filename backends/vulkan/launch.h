/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One launch on its way to the device, a file for each step:
 *
 *   launch.c      the order of the steps
 *   stream.c      the application's stream -> where the commands go
 *   bind.c        tensors, tables, workspace -> descriptors
 *   bind_ranges.c how much is bound at a time, and indices within that
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

/* What binding ranges cut (bind_ranges.c), in the order in which it is tried. Rows are those with
 * which jobs begin, and keys those before which packed sequences end. */
enum { VK_BY_SEQUENCE, VK_BY_ROW, VK_BY_KEY, VK_BY_KV_HEAD, VK_UNITS };
typedef struct tess_vk_unit {
    uint32_t all, bound; /* how many there are, and how many are bound at a time */
    uint64_t reach;      /* rows and keys: what jobs need besides those that are bound */
} tess_vk_unit;

/* A buffer of a launch, and the binding that the kernels have for it. */
typedef struct tess_vk_part {
    const char *name;
    const tess_buffer *buffer;
    uint64_t bytes; /* that the launch touches */
    uint32_t binding, item;
    uint64_t step[VK_UNITS]; /* bytes from one of each unit to the next; 0: it is not cut there */
    /* Of a sequence, 0: not known. Bytes from one token to the next, and of a kv head's last. */
    uint64_t tokens, token_bytes, last_bytes;
} tess_vk_part;

/* What is bound at a time: of each unit [first, end), and by TESS_BIND_* the ranges, and the index
 * of each tensor's first element in its range (below 0 where the range begins behind it). */
typedef struct tess_vk_bound {
    uint32_t first[VK_UNITS], end[VK_UNITS];
    vk_buffer_range ranges[TESS_BINDINGS];
    tess_arg_i64 at[TESS_BINDINGS];
} tess_vk_bound;

/* The parameters of a dispatch, as dialect_glsl.h has them. */
typedef struct tess_vk_parameters {
    tess_args args;
    _Alignas(16) uint32_t bound[2 * VK_UNITS];
} tess_vk_parameters;

typedef struct tess_vk_run {
    tess_vk_device *device;
    const tess_launch *launch;
    tess_vk_state *state;
    tess_vk_target target;
    tess_vk_part parts[TESS_BINDINGS];
    uint32_t n_parts;
    tess_vk_unit units[VK_UNITS];
    uint32_t bind_ranges;
    uint32_t submissions;
    uint64_t jobs;  /* of each submission but the last */
    uint32_t index; /* of the resources */
    tess_vk_resources *resources;
} tess_vk_run;

/* stream.c */
tess_status tess_vk_read_stream(tess_vk_run *run);

/* bind.c: what a launch binds. */
tess_status tess_vk_bind(tess_vk_run *run);
void tess_vk_write_sets(const tess_vk_run *run);

/* bind_ranges.c: how much of it at a time. */
tess_status tess_vk_choose_ranges(tess_vk_run *run);
void tess_vk_bind_range(const tess_vk_run *run, uint32_t bind_range, tess_vk_bound *bound);

/* parameters.c: the forward dispatches of a binding range are numbered as the submissions are; the
 * merge is last. */
uint64_t tess_vk_submission_jobs(const tess_vk_run *run, uint32_t submission);
uint32_t tess_vk_merge_number(const tess_vk_run *run);
uint32_t tess_vk_parameters_at(const tess_vk_run *run, uint32_t bind_range, uint32_t dispatch);
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
