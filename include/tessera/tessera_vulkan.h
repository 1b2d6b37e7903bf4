/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tessera on the application's own Vulkan device: how to wrap it and its buffers, and both ways to
 * run: recorded into the application's command buffers, or submitted to its queue with semaphores.
 *
 * Needs none of Vulkan's headers. Handles are declared forward; those that are numbers on some
 * machines (VkBuffer, VkSemaphore, VkFence) travel as uint64_t: `(uint64_t)buffer`.
 *
 * Buffers.   TESS_BUFFER_OBJECT: `handle` is a VkBuffer that was created with
 *            VK_BUFFER_USAGE_STORAGE_BUFFER_BIT, and with the TRANSFER bits where tess_copy shall
 *            reach it. Its sharing mode is CONCURRENT, or EXCLUSIVE and owned by the queue family.
 *            `offset` is free down to one element; without storageBuffer16BitAccess, tensors of 16
 *            bits begin at a multiple of 4 bytes and have even strides, or are UNSUPPORTED. What a
 *            job of a plan touches (K and V of one kv head of one sequence, or of one kv head in a
 *            pool of pages) must fit maxStorageBufferRange, counted from a multiple of
 *            minStorageBufferOffsetAlignment, and 2^32 elements: UNSUPPORTED otherwise, with the
 *            tensor and the limit in the message. Larger tensors are bound part by part.
 * Device.    Vulkan 1.1 with compute. Where maxPerStageDescriptorStorageBuffers is below 10, some
 *            tensors share a binding: they must be in one VkBuffer, and together fit the limit
 *            above, or are UNSUPPORTED with both names. At 4, which every device has, these are
 *            Q, O, LSE, dO, dQ and dK; K, V, dV, scales and the block table; new K and V; O and LSE
 *            of tess_merge_parts with its parts of O; and what tess_prepare reads. An application
 *            with one VkBuffer never meets the rule. At 8, only the block table and scales share.
 */
#ifndef TESSERA_TESSERA_VULKAN_H
#define TESSERA_TESSERA_VULKAN_H

#include "tessera.h"

#ifdef __cplusplus
extern "C" {
#endif

struct VkInstance_T;
struct VkPhysicalDevice_T;
struct VkDevice_T;
struct VkQueue_T;

/* Features and extensions that the application enabled on the device. Vulkan does not let anyone
 * else find out; a bit for what the device does not have counts as absent. Without STORAGE_16BIT
 * float16 and bfloat16 move as words of two, at even places; without TIMELINE semaphores have no
 * values; without MATRIX there is no kernel on matrix units. */
enum {
    TESS_VULKAN_STORAGE_16BIT = 1u << 0, /* storageBuffer16BitAccess */
    TESS_VULKAN_TIMELINE = 1u << 1,      /* timelineSemaphore */
    /* cooperativeMatrix, vulkanMemoryModel, shaderFloat16, subgroupSizeControl and
     * computeFullSubgroups; and with MATRIX_BF16 shaderBFloat16Type and
     * shaderBFloat16CooperativeMatrix. Their extensions, too, where they are not of the version. */
    TESS_VULKAN_MATRIX = 1u << 2,
    TESS_VULKAN_MATRIX_BF16 = 1u << 3,
};

/*
 * What tess_device_desc.native points to, with id "vulkan" or "vulkan:0". Instance and device must
 * be of Vulkan 1.1 or later and outlive the tess_device, which destroys neither.
 *
 * get_instance_proc_addr: vkGetInstanceProcAddr, cast to this type; NULL: that of libvulkan.
 *     Everything else is asked from it.
 * lock_queue, unlock_queue: Vulkan wants every submission to a queue synchronised. Tessera submits
 *     in tess_run (stream DEFAULT or SUBMIT), tess_copy, tess_wait, tess_plan_create,
 *     tess_plan_release and tess_device_release, and lets its own threads wait for each other. An
 *     application that submits to the same queue from another thread meanwhile gives the two
 *     functions that take and drop its lock. Both or neither.
 */
typedef struct tess_vulkan_device {
    uint32_t struct_size;
    uint32_t features; /* TESS_VULKAN_* */
    void (*(*get_instance_proc_addr)(struct VkInstance_T *instance, const char *name))(void);
    struct VkInstance_T *instance;
    struct VkPhysicalDevice_T *physical_device;
    struct VkDevice_T *device;
    struct VkQueue_T *queue;          /* of a family with compute; the device's default stream */
    uint32_t queue_family;            /* of `queue` */
    uint32_t reserved;                /* must be 0 */
    void (*lock_queue)(void *user);   /* [NULL: no other thread submits to `queue`] */
    void (*unlock_queue)(void *user); /* [NULL: likewise] */
    void *lock_user;                  /* handed to both */
} tess_vulkan_device;

/*
 * TESS_STREAM_DEFAULT: the device's queue.
 *
 *   Runs are ordered among each other and with tess_copy. No semaphores.
 *
 * TESS_STREAM_SUBMIT: `handle` is 0 or a VkQueue of the same family; `extra` is NULL or a
 * tess_vulkan_submit.
 *
 *   The run waits for `waits` before its first work, and signals `signals` and `fence` after its
 *   last. It sees memory written before the waits; whoever waits for the signals sees what it
 *   wrote. tess_wait covers the device's own queue only.
 *   A plan runs max_in_flight times at once; until one of these is done, tess_run submits nothing
 *   and returns BUSY. After an error nothing was signalled, and part of the work may run.
 *
 * TESS_STREAM_RECORD: `handle` is a VkCommandBuffer in the recording state, outside of render
 * passes, that goes to a queue of the same family; `extra` is NULL or a tess_vulkan_record.
 *
 *   tess_run records, in this order: an update of its own parameters; a barrier after
 *   earlier work in compute shaders and transfers; a compute pipeline and descriptors (what the
 *   application had bound to COMPUTE is lost); dispatches, with a barrier before merging where keys
 *   are split; a barrier after which compute shaders, transfers and the host (behind a fence) see O
 *   and LSE. Runs and copies that follow each other therefore need no barrier of the application's;
 *   other stages do. device_seconds must be NULL.
 *   The command buffer may be executed any number of times, not at the same time as itself, with
 *   new contents in the same buffers. It must not be pending when the plan is released.
 *   It counts as one of the plan's max_in_flight runs (it keeps a descriptor set and parameters)
 *   until the event in `extra`; with neither semaphore nor fence, until the plan is released:
 *   record as often as max_in_flight says, and execute as often as you like. Recordings of one plan
 *   that differ in outputs and workspace may be executed at the same time, also on different
 *   queues.
 *   Keep a submission to a display's GPU short with the job ranges of tess_plan_range.
 */
typedef struct tess_vulkan_semaphore {
    uint64_t semaphore; /* VkSemaphore */
    uint64_t value;     /* of a timeline semaphore; 0 for a binary one */
} tess_vulkan_semaphore;

enum { TESS_VULKAN_MOST_SEMAPHORES = 16 };

typedef struct tess_vulkan_submit {
    uint32_t struct_size;
    uint32_t n_waits, n_signals;                  /* at most TESS_VULKAN_MOST_SEMAPHORES each */
    uint32_t reserved;                            /* must be 0 */
    const tess_vulkan_semaphore *waits, *signals; /* n_waits and n_signals of them */
    uint64_t fence;                               /* [0: none] VkFence, unsignalled */
} tess_vulkan_submit;

/* The event after which the last execution of the recorded commands is over, so that tess_run may
 * use their descriptor set again. At most one of the two. The object must live until tess_run
 * noticed it; the simplest is to keep it as long as the plan. */
typedef struct tess_vulkan_record {
    uint32_t struct_size;
    uint32_t reserved;               /* must be 0 */
    tess_vulkan_semaphore semaphore; /* [0: none] a timeline semaphore that reaches `value` then */
    uint64_t fence;                  /* [0: none] a VkFence, unsignalled now and signalled then */
} tess_vulkan_record;

#ifdef __cplusplus
}
#endif

#endif /* TESSERA_TESSERA_VULKAN_H */
