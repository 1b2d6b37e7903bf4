/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An application that owns its Vulkan device: Tessera records into its command buffers, submits to
 * its queue between its semaphores, and reads and writes its buffers at its offsets. Every test
 * runs on every device that the application finds.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/tessera_vulkan.h>
#include <vulkan/vulkan.h>

#include "common/testlib.h"
#include "parts.h"
#include "reference.h"
#include "vulkan_matrices.h"

enum { MOST_DEVICES = 4 };
static const uint64_t patience = UINT64_C(120000000000);

typedef struct app {
    uint32_t index; /* of the physical device */
    VkInstance instance;
    VkPhysicalDevice physical;
    VkDevice device;
    VkQueue queue, second; /* second: another one of the family, or the same */
    VkCommandPool pool;
    uint32_t family;
    int narrow, timeline; /* 16-bit storage and timeline semaphores are enabled */
    int matrices;         /* and all that the kernel on matrix units needs */
    pthread_mutex_t lock; /* of the queue */
    int locked;           /* how often */
    tessera_side t;
    void *inputs[2][3]; /* two sets of Q, K and V */
} app;

#define VK(call) assert_int_equal((call), VK_SUCCESS)

/* In float16, and in float32 for a device without storage of 16 bits. A head_dim of 72 takes the
 * wider shape of the kernel on matrix units, which software compiles for 20 s. */
#define LINE                                                                                  \
    "pattern=s2 block=16 local=2 stride=3 heads=4 kv_heads=2 q_len=70 kv_len=333 kv_split=3 " \
    "batch=2 "
static const char *const lines[2][2] = {
    {LINE "head_dim=40 dtype=f32", LINE "head_dim=40 dtype=f16"},
    {LINE "head_dim=72 dtype=f32", LINE "head_dim=72 dtype=f16"}, /* TESSERA_TEST_FULL=1 */
};

/* ------------------------------------------------------------------ the application's device */

static void make_instance(app *a) {
    const VkApplicationInfo info = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                                    .apiVersion = VK_API_VERSION_1_2};
    const VkInstanceCreateInfo create = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                         .pApplicationInfo = &info};
    VK(vkCreateInstance(&create, NULL, &a->instance));
    VkPhysicalDevice all[MOST_DEVICES];
    uint32_t count = MOST_DEVICES;
    const VkResult result = vkEnumeratePhysicalDevices(a->instance, &count, all);
    assert_true(result == VK_SUCCESS || result == VK_INCOMPLETE);
    assert_true(a->index < count);
    a->physical = all[a->index];
}

static void make_device(app *a) {
    VkQueueFamilyProperties families[16];
    uint32_t count = 16;
    vkGetPhysicalDeviceQueueFamilyProperties(a->physical, &count, families);
    for (a->family = 0;
         a->family < count && !(families[a->family].queueFlags & VK_QUEUE_COMPUTE_BIT);)
        a->family++;
    assert_true(a->family < count);
    VkPhysicalDeviceProperties properties;
    vkGetPhysicalDeviceProperties(a->physical, &properties);
    VkPhysicalDeviceTimelineSemaphoreFeatures timeline = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES};
    VkPhysicalDevice16BitStorageFeatures narrow = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES};
    VkPhysicalDeviceFeatures2 features = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
                                          .pNext = &narrow};
    if (properties.apiVersion >= VK_API_VERSION_1_2) narrow.pNext = &timeline;
    vkGetPhysicalDeviceFeatures2(a->physical, &features);
    memset(&features.features, 0, sizeof features.features);
    narrow.uniformAndStorageBuffer16BitAccess = narrow.storagePushConstant16 =
        narrow.storageInputOutput16 = VK_FALSE;
    a->narrow = narrow.storageBuffer16BitAccess;
    a->timeline = timeline.timelineSemaphore;
    matrix_chain matrices;
    a->matrices = matrices_find(a->physical, &matrices);
    if (a->matrices) {
        matrices.subgroups.pNext = narrow.pNext;
        narrow.pNext = &matrices;
    }
    const uint32_t queues = families[a->family].queueCount > 1 ? 2 : 1;
    const float priorities[2] = {1, 1};
    const VkDeviceQueueCreateInfo queue = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                           .queueFamilyIndex = a->family,
                                           .queueCount = queues,
                                           .pQueuePriorities = priorities};
    const VkDeviceCreateInfo create = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                       .pNext = &features,
                                       .queueCreateInfoCount = 1,
                                       .pQueueCreateInfos = &queue,
                                       .enabledExtensionCount = a->matrices ? MATRIX_EXTENSIONS : 0,
                                       .ppEnabledExtensionNames = matrix_extensions};
    VK(vkCreateDevice(a->physical, &create, NULL, &a->device));
    vkGetDeviceQueue(a->device, a->family, 0, &a->queue);
    vkGetDeviceQueue(a->device, a->family, queues - 1, &a->second);
    const VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                          .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT,
                                          .queueFamilyIndex = a->family};
    VK(vkCreateCommandPool(a->device, &pool, NULL, &a->pool));
}

static void take_lock(void *user) {
    app *a = user;
    pthread_mutex_lock(&a->lock);
    a->locked++;
}

static void drop_lock(void *user) { pthread_mutex_unlock(&((app *)user)->lock); }

static tess_vulkan_device native_of(app *a) {
    return (tess_vulkan_device){.struct_size = sizeof(tess_vulkan_device),
                                .features = (a->narrow ? TESS_VULKAN_STORAGE_16BIT : 0) |
                                            (a->timeline ? TESS_VULKAN_TIMELINE : 0) |
                                            (a->matrices ? TESS_VULKAN_MATRIX : 0),
                                .get_instance_proc_addr = (void (*(*)(VkInstance, const char *))(
                                    void))vkGetInstanceProcAddr,
                                .instance = a->instance,
                                .physical_device = a->physical,
                                .device = a->device,
                                .queue = a->queue,
                                .queue_family = a->family,
                                .lock_queue = take_lock,
                                .unlock_queue = drop_lock,
                                .lock_user = a};
}

static tess_status wrap(app *a, const tess_vulkan_device *native, tess_device **device) {
    char id[24];
    snprintf(id, sizeof id, "vulkan:%u", a->index);
    const tess_device_desc desc = {.struct_size = sizeof desc, .id = id, .native = native};
    return tess_device_open(a->t.runtime, &desc, device);
}

/* ------------------------------------------------------------------ problem and memory */

/* The name by which plans ask for the kernel on matrix units, where it can run. */
static const char *matrix_kernel(const app *a) { return a->matrices ? "vulkan/coopmat" : NULL; }

static int setup(void **state) {
    app *a = *state;
    pthread_mutex_init(&a->lock, NULL);
    make_instance(a);
    make_device(a);
    a->t.runtime = test_runtime(2);
    const tess_vulkan_device native = native_of(a);
    assert_ok(wrap(a, &native, &a->t.device));
    parts_prepare(&a->t, lines[test_full()][a->narrow != 0], matrix_kernel(a), 2, 1);
    for (int set = 0; set < 2; set++)
        for (int n = 0; n < 3; n++) {
            a->inputs[set][n] = malloc(a->t.parts.bytes[n]);
            assert_non_null(a->inputs[set][n]);
            fill_normal(a->t.p.dtype, a->inputs[set][n],
                        (int64_t)(a->t.parts.bytes[n] / (a->t.p.dtype == TESS_F32 ? 4 : 2)),
                        5 + (uint64_t)set, (uint32_t)n);
        }
    return 0;
}

static int teardown(void **state) {
    app *a = *state;
    const uint32_t index = a->index;
    parts_release(&a->t);
    for (int n = 0; n < 6; n++) free(a->inputs[n / 3][n % 3]);
    vkDestroyCommandPool(a->device, a->pool, NULL);
    vkDestroyDevice(a->device, NULL);
    vkDestroyInstance(a->instance, NULL);
    pthread_mutex_destroy(&a->lock);
    memset(a, 0, sizeof *a);
    a->index = index;
    return 0;
}

/* A buffer that the host sees, with everything in it. */
typedef struct job {
    VkBuffer buffer;
    VkDeviceMemory memory;
    unsigned char *mapped, *image; /* image: what was there before the run */
    uint64_t size;
    tess_run_desc run;
} job;

static void make_buffer(const app *a, uint64_t size, VkBuffer *buffer, VkDeviceMemory *memory,
                        unsigned char **mapped) {
    const VkBufferCreateInfo create = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
                                       .size = size,
                                       .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT |
                                                VK_BUFFER_USAGE_TRANSFER_SRC_BIT |
                                                VK_BUFFER_USAGE_TRANSFER_DST_BIT};
    const VkMemoryPropertyFlags wanted =
        VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    VkMemoryRequirements need;
    VkPhysicalDeviceMemoryProperties types;
    void *pointer = NULL;
    uint32_t type = 0;
    VK(vkCreateBuffer(a->device, &create, NULL, buffer));
    vkGetBufferMemoryRequirements(a->device, *buffer, &need);
    vkGetPhysicalDeviceMemoryProperties(a->physical, &types);
    while (!(need.memoryTypeBits >> type & 1) ||
           (types.memoryTypes[type].propertyFlags & wanted) != wanted)
        assert_true(++type < types.memoryTypeCount);
    const VkMemoryAllocateInfo allocate = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                           .allocationSize = need.size,
                                           .memoryTypeIndex = type};
    VK(vkAllocateMemory(a->device, &allocate, NULL, memory));
    VK(vkBindBufferMemory(a->device, *buffer, *memory, 0));
    VK(vkMapMemory(a->device, *memory, 0, VK_WHOLE_SIZE, 0, &pointer));
    *mapped = pointer;
}

/* Fresh contents with a set of inputs; outputs and workspace are NaN. */
static void job_fill(const app *a, job *j, int set) {
    parts_fill(&a->t.parts, j->image);
    for (int n = 0; n < 3; n++)
        memcpy(j->image + a->t.parts.offset[n], a->inputs[set][n], a->t.parts.bytes[n]);
    memcpy(j->mapped, j->image, j->size);
}

static void job_begin(const app *a, job *j, int set) {
    j->size = a->t.parts.size;
    j->image = malloc(j->size);
    assert_non_null(j->image);
    make_buffer(a, j->size, &j->buffer, &j->memory, &j->mapped);
    job_fill(a, j, set);
    j->run = parts_run(
        &a->t.parts, a->t.plan,
        (tess_buffer){.kind = TESS_BUFFER_OBJECT, .handle = (uint64_t)j->buffer, .size = j->size});
}

static void job_end(const app *a, job *j) {
    free(j->image);
    vkDestroyBuffer(a->device, j->buffer, NULL);
    vkFreeMemory(a->device, j->memory, NULL);
}

static int untouched(const app *a, const job *j) {
    return memcmp(j->mapped, j->image, a->t.parts.size) == 0;
}

/* The result is that of the set of inputs, and nothing around the outputs changed. */
static void job_check(const app *a, const job *j, int set) {
    parts_check_rest(&a->t.parts, j->mapped, j->image);
    parts_check_rows(&a->t.p, (void *const *)a->inputs[set], j->mapped + a->t.parts.offset[3],
                     j->mapped + a->t.parts.offset[4]);
}

/* -------------------------------------------------------------- the application's own commands */

static VkCommandBuffer begin_commands(const app *a, VkCommandBufferUsageFlags flags) {
    VkCommandBuffer commands;
    const VkCommandBufferAllocateInfo allocate = {
        .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
        .commandPool = a->pool,
        .commandBufferCount = 1};
    const VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                            .flags = flags};
    VK(vkAllocateCommandBuffers(a->device, &allocate, &commands));
    VK(vkBeginCommandBuffer(commands, &begin));
    return commands;
}

static VkFence make_fence(const app *a) {
    const VkFenceCreateInfo create = {.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
    VkFence fence;
    VK(vkCreateFence(a->device, &create, NULL, &fence));
    return fence;
}

static VkSemaphore make_semaphore(const app *a, int timeline) {
    const VkSemaphoreTypeCreateInfo type = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
                                            .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE};
    const VkSemaphoreCreateInfo create = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO,
                                          .pNext = timeline ? &type : NULL};
    VkSemaphore semaphore;
    VK(vkCreateSemaphore(a->device, &create, NULL, &semaphore));
    return semaphore;
}

/* The queue's thread of lavapipe looks at the semaphores of a submission once more after it has
 * signalled the fence, so a fence does not say that they may go. */
static void destroy_semaphore(const app *a, VkSemaphore semaphore) {
    VK(vkDeviceWaitIdle(a->device));
    vkDestroySemaphore(a->device, semaphore, NULL);
}

/* Submits with up to one semaphore on each side; values of 0 stand for binary ones. */
static void submit(app *a, VkCommandBuffer commands, VkSemaphore wait, uint64_t wait_value,
                   VkSemaphore signal, uint64_t signal_value, VkFence fence) {
    const VkPipelineStageFlags stage = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
    const VkTimelineSemaphoreSubmitInfo values = {
        .sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
        .waitSemaphoreValueCount = wait != VK_NULL_HANDLE,
        .pWaitSemaphoreValues = &wait_value,
        .signalSemaphoreValueCount = signal != VK_NULL_HANDLE,
        .pSignalSemaphoreValues = &signal_value};
    const VkSubmitInfo info = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                               .pNext = wait_value || signal_value ? &values : NULL,
                               .waitSemaphoreCount = wait != VK_NULL_HANDLE,
                               .pWaitSemaphores = &wait,
                               .pWaitDstStageMask = &stage,
                               .commandBufferCount = commands != VK_NULL_HANDLE,
                               .pCommandBuffers = &commands,
                               .signalSemaphoreCount = signal != VK_NULL_HANDLE,
                               .pSignalSemaphores = &signal};
    take_lock(a);
    const VkResult result = vkQueueSubmit(a->queue, 1, &info, fence);
    drop_lock(a);
    VK(result);
}

static void wait_fence(const app *a, VkFence fence) {
    VK(vkWaitForFences(a->device, 1, &fence, VK_TRUE, patience));
    VK(vkResetFences(a->device, 1, &fence));
}

static void execute(app *a, VkCommandBuffer commands, VkFence fence) {
    submit(a, commands, VK_NULL_HANDLE, 0, VK_NULL_HANDLE, 0, fence);
    wait_fence(a, fence);
}

/* Signals of one submission need not become visible at the same moment, so a signalled fence says
 * nothing about a semaphore. */
static void wait_semaphore(const app *a, VkSemaphore semaphore, uint64_t value) {
    const VkSemaphoreWaitInfo until = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
                                       .semaphoreCount = 1,
                                       .pSemaphores = &semaphore,
                                       .pValues = &value};
    VK(vkWaitSemaphores(a->device, &until, patience));
}

static tess_stream record_into(VkCommandBuffer commands, const tess_vulkan_record *extra) {
    return (tess_stream){
        .kind = TESS_STREAM_RECORD, .handle = (uint64_t)(uintptr_t)commands, .extra = extra};
}

static tess_stream submit_with(const tess_vulkan_submit *extra) {
    return (tess_stream){.kind = TESS_STREAM_SUBMIT, .extra = extra};
}

/* ------------------------------------------------------------------ recording */

/* One command buffer, executed three times with inputs that change in place. */
static void test_record_and_replay(void **state) {
    app *a = *state;
    job j;
    VkFence fence = make_fence(a);
    job_begin(a, &j, 0);
    VkCommandBuffer commands = begin_commands(a, 0);
    j.run.stream = record_into(commands, NULL);
    assert_ok(tess_run(a->t.plan, &j.run));
    VK(vkEndCommandBuffer(commands));
    assert_true(untouched(a, &j));
    for (int n = 0; n < 3; n++) {
        job_fill(a, &j, n % 2);
        execute(a, commands, fence);
        job_check(a, &j, n % 2);
    }
    job_end(a, &j);
    vkDestroyFence(a->device, fence, NULL);
}

/* Ranges of jobs recorded one after the other share the workspace and need no barrier of the
 * application's. */
static void test_record_ranges(void **state) {
    app *a = *state;
    job j;
    VkFence fence = make_fence(a);
    tess_plan *plan = parts_plan(&a->t.p, a->t.layout, a->t.device, matrix_kernel(a), 64);
    job_begin(a, &j, 1);
    VkCommandBuffer commands = begin_commands(a, VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT);
    j.run.stream = record_into(commands, NULL);
    for (j.run.first_job = 0; j.run.first_job < a->t.info.n_jobs;
         j.run.first_job += j.run.job_count) {
        j.run.job_count =
            a->t.info.n_jobs - j.run.first_job < 5 ? a->t.info.n_jobs - j.run.first_job : 5;
        assert_ok(tess_run(plan, &j.run));
    }
    VK(vkEndCommandBuffer(commands));
    execute(a, commands, fence);
    job_check(a, &j, 1);
    tess_plan_release(plan);
    job_end(a, &j);
    vkDestroyFence(a->device, fence, NULL);
}

/* A recording counts as a run until the event that the application named. */
static void test_record_events(void **state) {
    app *a = *state;
    job j;
    VkFence fence = make_fence(a), over = make_fence(a);
    VkSemaphore semaphore = a->timeline ? make_semaphore(a, 1) : VK_NULL_HANDLE;
    tess_plan *plan = parts_plan(&a->t.p, a->t.layout, a->t.device, matrix_kernel(a), 1);
    job_begin(a, &j, 0);
    VkCommandBuffer commands = begin_commands(a, 0), other = begin_commands(a, 0);
    tess_vulkan_record extra = {.struct_size = sizeof extra, .fence = (uint64_t)over};
    j.run.stream = record_into(commands, &extra);
    assert_ok(tess_run(plan, &j.run));
    VK(vkEndCommandBuffer(commands));
    j.run.stream = record_into(other, &extra);
    assert_error(tess_run(plan, &j.run), TESS_ERROR_BUSY, "tess_run", NULL);
    submit(a, commands, VK_NULL_HANDLE, 0, VK_NULL_HANDLE, 0, over);
    VK(vkWaitForFences(a->device, 1, &over, VK_TRUE, patience));
    job_check(a, &j, 0);
    /* A fence that is signalled already says nothing about the future. */
    assert_int_equal(tess_run(plan, &j.run), TESS_ERROR_INVALID);
    if (a->timeline) {
        extra = (tess_vulkan_record){.struct_size = sizeof extra,
                                     .semaphore = {(uint64_t)semaphore, 7}};
        job_fill(a, &j, 1);
        assert_ok(tess_run(plan, &j.run));
        VK(vkEndCommandBuffer(other));
        VkCommandBuffer third = begin_commands(a, 0);
        j.run.stream = record_into(third, NULL);
        assert_int_equal(tess_run(plan, &j.run), TESS_ERROR_BUSY);
        submit(a, other, VK_NULL_HANDLE, 0, semaphore, 6, fence);
        wait_fence(a, fence);
        job_check(a, &j, 1);
        assert_int_equal(tess_run(plan, &j.run), TESS_ERROR_BUSY);
        submit(a, other, VK_NULL_HANDLE, 0, semaphore, 7, fence);
        wait_fence(a, fence);
        wait_semaphore(a, semaphore, 7);
        assert_ok(tess_run(plan, &j.run));
        assert_int_equal(tess_run(plan, &j.run), TESS_ERROR_BUSY);
        VK(vkEndCommandBuffer(third));
        destroy_semaphore(a, semaphore);
    }
    tess_plan_release(plan);
    job_end(a, &j);
    vkDestroyFence(a->device, fence, NULL);
    vkDestroyFence(a->device, over, NULL);
}

/* Two recordings of one plan under way at the same time, on two queues where there are two, and one
 * of them again behind itself. What lies in one buffer at odd places lies in the other at even
 * ones, so neither can do with the parameters of the other. */
static void test_record_two(void **state) {
    app *a = *state, even = *a;
    app *const sides[2] = {a, &even};
    job j[2];
    VkCommandBuffer commands[2];
    VkFence fences[2];
    parts_place(&even.t.parts, a->t.plan, a->t.p.dtype == TESS_F32 ? 4 : 2, 0);
    even.queue = a->second;
    for (int n = 0; n < 2; n++) {
        fences[n] = make_fence(a);
        commands[n] = begin_commands(a, VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT);
        job_begin(sides[n], &j[n], n);
        j[n].run.stream = record_into(commands[n], NULL);
        assert_ok(tess_run(a->t.plan, &j[n].run));
        VK(vkEndCommandBuffer(commands[n]));
    }
    for (int round = 0; round < 3; round++) {
        for (int n = 0; n < 2; n++) job_fill(sides[n], &j[n], (n + round) % 2);
        for (int n = 0; n < 2; n++)
            submit(sides[n], commands[n], VK_NULL_HANDLE, 0, VK_NULL_HANDLE, 0, VK_NULL_HANDLE);
        for (int n = 0; n < 2; n++)
            submit(sides[n], commands[n], VK_NULL_HANDLE, 0, VK_NULL_HANDLE, 0, fences[n]);
        for (int n = 0; n < 2; n++) wait_fence(a, fences[n]);
        for (int n = 0; n < 2; n++) job_check(sides[n], &j[n], (n + round) % 2);
    }
    for (int n = 0; n < 2; n++) {
        job_end(a, &j[n]);
        vkDestroyFence(a->device, fences[n], NULL);
    }
}

/* ------------------------------------------------------------------ submitting */

static VkCommandBuffer copy_commands(const app *a, VkBuffer from, VkBuffer to) {
    const VkBufferCopy all = {0, 0, a->t.parts.size};
    VkCommandBuffer commands = begin_commands(a, 0);
    vkCmdCopyBuffer(commands, from, to, 1, &all);
    VK(vkEndCommandBuffer(commands));
    return commands;
}

/* The application's copy in, the run, and its copy out, chained by semaphores: of one timeline, or
 * binary ones. */
static void chained(app *a, int timeline) {
    VkBuffer in, out;
    VkDeviceMemory in_memory, out_memory;
    unsigned char *in_mapped, *out_mapped;
    job j;
    VkFence fence = make_fence(a), run_fence = make_fence(a);
    VkSemaphore first = make_semaphore(a, timeline),
                second = timeline ? first : make_semaphore(a, 0);
    job_begin(a, &j, 1);
    make_buffer(a, a->t.parts.size, &in, &in_memory, &in_mapped);
    make_buffer(a, a->t.parts.size, &out, &out_memory, &out_mapped);
    memcpy(in_mapped, j.image, a->t.parts.size);
    memset(j.mapped, 0, a->t.parts.size);
    memset(out_mapped, 0, a->t.parts.size);
    submit(a, copy_commands(a, in, j.buffer), VK_NULL_HANDLE, 0, first, timeline ? 1 : 0,
           VK_NULL_HANDLE);
    const tess_vulkan_semaphore wait = {(uint64_t)first, timeline ? 1 : 0},
                                signal = {(uint64_t)second, timeline ? 2 : 0};
    const tess_vulkan_submit extra = {.struct_size = sizeof extra,
                                      .n_waits = 1,
                                      .n_signals = 1,
                                      .waits = &wait,
                                      .signals = &signal,
                                      .fence = (uint64_t)run_fence};
    j.run.stream = submit_with(&extra);
    const int before = a->locked;
    assert_ok(tess_run(a->t.plan, &j.run));
    assert_true(a->locked > before);
    submit(a, copy_commands(a, j.buffer, out), second, timeline ? 2 : 0, VK_NULL_HANDLE, 0, fence);
    wait_fence(a, fence);
    wait_fence(a, run_fence);
    unsigned char *own = j.mapped;
    j.mapped = out_mapped;
    job_check(a, &j, 1);
    j.mapped = own;
    job_end(a, &j);
    vkDestroyBuffer(a->device, in, NULL);
    vkDestroyBuffer(a->device, out, NULL);
    vkFreeMemory(a->device, in_memory, NULL);
    vkFreeMemory(a->device, out_memory, NULL);
    destroy_semaphore(a, first);
    if (!timeline) destroy_semaphore(a, second);
    vkDestroyFence(a->device, fence, NULL);
    vkDestroyFence(a->device, run_fence, NULL);
}

static void test_timeline(void **state) {
    app *a = *state;
    if (!a->timeline) skip();
    chained(a, 1);
}

static void test_binary(void **state) { chained(*state, 0); }

/* No work starts before the semaphore is signalled; meanwhile waits time out, and no more
 * than max_in_flight runs of a plan are taken. */
static void test_waits(void **state) {
    app *a = *state;
    job j[2];
    if (!a->timeline) skip();
    VkSemaphore semaphore = make_semaphore(a, 1);
    const tess_vulkan_semaphore wait = {(uint64_t)semaphore, 1}, signal = {(uint64_t)semaphore, 2};
    const tess_vulkan_submit first = {.struct_size = sizeof first, .n_waits = 1, .waits = &wait},
                             second = {
                                 .struct_size = sizeof second, .n_signals = 1, .signals = &signal};
    job_begin(a, &j[0], 0);
    job_begin(a, &j[1], 1);
    j[0].run.stream = submit_with(&first);
    j[1].run.stream = submit_with(&second);
    assert_ok(tess_run(a->t.plan, &j[0].run));
    assert_ok(tess_run(a->t.plan, &j[1].run));
    assert_error(tess_run(a->t.plan, &j[1].run), TESS_ERROR_BUSY, "tess_run", NULL);
    assert_error(tess_wait(a->t.device, 10000000), TESS_ERROR_TIMEOUT, "tess_wait", NULL);
    assert_true(untouched(a, &j[0]) && untouched(a, &j[1]));
    const VkSemaphoreSignalInfo go = {
        .sType = VK_STRUCTURE_TYPE_SEMAPHORE_SIGNAL_INFO, .semaphore = semaphore, .value = 1};
    VK(vkSignalSemaphore(a->device, &go));
    wait_semaphore(a, semaphore, 2);
    assert_ok(tess_wait(a->t.device, patience));
    job_check(a, &j[0], 0);
    job_check(a, &j[1], 1);
    assert_ok(tess_wait(a->t.device, patience));
    job_end(a, &j[0]);
    job_end(a, &j[1]);
    destroy_semaphore(a, semaphore);
}

/* The device's own queue: in order, with the device's time, and a copy of Tessera's between the
 * application's buffers. */
static void test_default_stream(void **state) {
    app *a = *state;
    job j, copy;
    double seconds = -1;
    job_begin(a, &j, 0);
    job_begin(a, &copy, 1);
    assert_ok(tess_run(a->t.plan, &j.run));
    j.run.device_seconds = &seconds;
    assert_ok(tess_run(a->t.plan, &j.run));
    assert_true(seconds >= 0 && seconds < 100);
    const tess_buffer from = {.kind = TESS_BUFFER_OBJECT, .handle = (uint64_t)j.buffer},
                      to = {.kind = TESS_BUFFER_OBJECT, .handle = (uint64_t)copy.buffer};
    assert_ok(tess_copy(a->t.device, to, from, a->t.parts.size));
    job_check(a, &j, 0);
    assert_memory_equal(copy.mapped, j.mapped, a->t.parts.size);
    unsigned char *host = malloc(a->t.parts.size);
    assert_non_null(host);
    assert_ok(
        tess_copy(a->t.device, tess_host_buffer(host, a->t.parts.size), from, a->t.parts.size));
    assert_memory_equal(host, j.mapped, a->t.parts.size);
    memset(host, 1, a->t.parts.size);
    assert_ok(
        tess_copy(a->t.device, from, tess_host_buffer(host, a->t.parts.size), a->t.parts.size));
    assert_memory_equal(host, j.mapped, a->t.parts.size);
    free(host);
    job_end(a, &j);
    job_end(a, &copy);
}

/* ------------------------------------------------------------------ several at once */

/* The same problem on a device of Tessera's own, in its own memory. */
static void run_elsewhere(const app *a, const char *id, int set) {
    tess_device *device = NULL;
    const tess_device_desc desc = {.struct_size = sizeof desc, .id = id};
    const void *const inputs[3] = {a->inputs[set][0], a->inputs[set][1], a->inputs[set][2]};
    unsigned char *o = malloc(a->t.parts.bytes[3]), *lse = malloc(a->t.parts.bytes[4]);
    assert_true(o && lse);
    assert_ok(tess_device_open(a->t.runtime, &desc, &device));
    parts_run_elsewhere(&a->t.parts, &a->t.p, a->t.layout, device, NULL, inputs, o, lse);
    parts_check_rows(&a->t.p, (void *const *)a->inputs[set], o, lse);
    free(o);
    free(lse);
    tess_device_release(device);
}

typedef struct elsewhere {
    const app *a;
    const char *id;
    int set;
} elsewhere;

static void *run_thread(void *argument) {
    const elsewhere *e = argument;
    run_elsewhere(e->a, e->id, e->set);
    return NULL;
}

/* The wrapped device, another one of the same API, and the CPU, all in use at once. */
static void test_several_devices(void **state) {
    app *a = *state;
    job j;
    char id[24];
    pthread_t threads[3];
    snprintf(id, sizeof id, "vulkan:%u", a->index);
    elsewhere others[3] = {{a, "cpu", 0}, {a, id, 1}, {a, id, 0}};
    job_begin(a, &j, 1);
    for (int n = 0; n < 3; n++)
        assert_int_equal(pthread_create(&threads[n], NULL, run_thread, &others[n]), 0);
    for (int n = 0; n < 3; n++) {
        job_fill(a, &j, n % 2);
        assert_ok(tess_run(a->t.plan, &j.run));
        assert_ok(tess_wait(a->t.device, patience));
        job_check(a, &j, n % 2);
    }
    for (int n = 0; n < 3; n++) assert_int_equal(pthread_join(threads[n], NULL), 0);
    job_end(a, &j);
}

typedef struct runner {
    const app *a;
    job j;
    int runs;
} runner;

static void *run_often(void *argument) {
    runner *r = argument;
    while (r->runs < 10) {
        const tess_status status = tess_run(r->a->t.plan, &r->j.run);
        if (status == TESS_OK) r->runs++;
        if (status != TESS_OK && status != TESS_ERROR_BUSY) return NULL;
        if (tess_wait(r->a->t.device, patience) != TESS_OK) return NULL;
    }
    return NULL;
}

/* One plan from several threads, more than may be in flight. */
static void test_threads(void **state) {
    app *a = *state;
    runner runners[4];
    pthread_t threads[4];
    memset(runners, 0, sizeof runners);
    for (int n = 0; n < 4; n++) {
        runners[n].a = a;
        job_begin(a, &runners[n].j, n % 2);
    }
    for (int n = 0; n < 4; n++)
        assert_int_equal(pthread_create(&threads[n], NULL, run_often, &runners[n]), 0);
    for (int n = 0; n < 4; n++) assert_int_equal(pthread_join(threads[n], NULL), 0);
    for (int n = 0; n < 4; n++) {
        assert_int_equal(runners[n].runs, 10);
        job_check(a, &runners[n].j, n % 2);
        job_end(a, &runners[n].j);
    }
}

/* ------------------------------------------------------------------ refusals */

static void test_bad_natives(void **state) {
    app *a = *state;
    tess_device *device = NULL;
    tess_vulkan_device n = native_of(a);
    n.device = NULL;
    assert_int_equal(wrap(a, &n, &device), TESS_ERROR_INVALID);
    assert_error_has("native.device: ");
    n = native_of(a);
    n.features |= 1u << 20;
    assert_int_equal(wrap(a, &n, &device), TESS_ERROR_INVALID);
    n = native_of(a);
    n.queue_family = 99;
    assert_int_equal(wrap(a, &n, &device), TESS_ERROR_INVALID);
    n = native_of(a);
    n.unlock_queue = NULL;
    assert_int_equal(wrap(a, &n, &device), TESS_ERROR_INVALID);
    n = native_of(a);
    n.struct_size = 8;
    assert_int_equal(wrap(a, &n, &device), TESS_ERROR_VERSION);
    const struct {
        tess_vulkan_device known;
        uint64_t later;
    } newer = {native_of(a), 1};
    tess_vulkan_device *sized = (tess_vulkan_device *)&newer.known;
    sized->struct_size = sizeof newer;
    assert_int_equal(wrap(a, sized, &device), TESS_ERROR_VERSION);
    assert_null(device);
}

/* Without the feature, 16-bit types are read as words of two. */
static void test_without_features(void **state) {
    app *a = *state;
    tess_device *device = NULL;
    tess_plan *plan = NULL;
    tess_plan_desc desc;
    int64_t *cu = NULL;
    tess_vulkan_device n = native_of(a);
    n.features = 0;
    assert_ok(wrap(a, &n, &device));
    assert_int_equal(problem_plan_desc(&a->t.p, &desc, &cu), 0);
    desc.dtype = TESS_BF16;
    assert_ok(tess_plan_create(device, a->t.layout, &desc, &plan));
    free(cu);
    tess_plan_release(plan);
    tess_device_release(device);
}

/* The kernel on matrix units wants to be told that its features were enabled, and does not believe
 * all that it is told. */
static void test_matrix_features(void **state) {
    app *a = *state;
    tess_plan_desc desc;
    int64_t *cu = NULL;
    const uint32_t has_matrices = (uint32_t)matrices_extension(a->physical, matrix_extensions[0]);
    assert_int_equal(problem_plan_desc(&a->t.p, &desc, &cu), 0);
    desc.dtype = TESS_F16;
    desc.kernel = "vulkan/coopmat";
    for (uint32_t told = 0; told < 2 - has_matrices; told++) {
        tess_device *device = NULL;
        tess_plan *plan = NULL;
        tess_vulkan_device n = native_of(a);
        n.features &= ~(uint32_t)TESS_VULKAN_MATRIX;
        if (told) n.features |= TESS_VULKAN_MATRIX | TESS_VULKAN_MATRIX_BF16;
        assert_ok(wrap(a, &n, &device));
        assert_int_equal(tess_plan_create(device, a->t.layout, &desc, &plan),
                         TESS_ERROR_UNSUPPORTED);
        assert_error_has(told ? "the driver has no VK_KHR_cooperative_matrix"
                              : "TESS_VULKAN_MATRIX is not among native.features");
        tess_device_release(device);
    }
    free(cu);
}

/* On a device with matrix units all tests of this program run their kernel, which a plan also takes
 * by itself unless the device is software. */
static void test_matrix_plan(void **state) {
    app *a = *state;
    VkPhysicalDeviceProperties properties;
    tess_plan_info info = {.struct_size = sizeof info};
    vkGetPhysicalDeviceProperties(a->physical, &properties);
    const int is_software = properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU;
    const int is_matrix = strcmp(a->t.info.kernel, "vulkan/coopmat") == 0;
    assert_int_equal(is_matrix, a->matrices);
    tess_plan *plan = parts_plan(&a->t.p, a->t.layout, a->t.device, NULL, 1);
    assert_ok(tess_plan_query(plan, &info));
    tess_plan_release(plan);
    if (!getenv("TESSERA_KERNEL"))
        assert_int_equal(strcmp(info.kernel, "vulkan/coopmat") == 0, a->matrices && !is_software);
    printf("these tests run %s\n", a->t.info.kernel);
}

static void test_bad_streams(void **state) {
    app *a = *state;
    job j;
    double seconds;
    const tess_vulkan_semaphore nothing = {0, 0};
    job_begin(a, &j, 0);
    j.run.stream = record_into(VK_NULL_HANDLE, NULL);
    assert_int_equal(tess_run(a->t.plan, &j.run), TESS_ERROR_INVALID);
    assert_error_has("stream.handle: ");
    tess_vulkan_submit extra = {.struct_size = sizeof extra, .n_waits = 1};
    j.run.stream = submit_with(&extra);
    assert_int_equal(tess_run(a->t.plan, &j.run), TESS_ERROR_INVALID);
    extra.waits = &nothing;
    assert_int_equal(tess_run(a->t.plan, &j.run), TESS_ERROR_INVALID);
    extra.n_waits = TESS_VULKAN_MOST_SEMAPHORES + 1;
    assert_int_equal(tess_run(a->t.plan, &j.run), TESS_ERROR_UNSUPPORTED);
    extra.struct_size = 4;
    assert_int_equal(tess_run(a->t.plan, &j.run), TESS_ERROR_VERSION);
    VkCommandBuffer commands = begin_commands(a, 0);
    j.run.stream = record_into(commands, NULL);
    j.run.device_seconds = &seconds;
    assert_int_equal(tess_run(a->t.plan, &j.run), TESS_ERROR_INVALID);
    VK(vkEndCommandBuffer(commands));
    assert_true(untouched(a, &j));
    job_end(a, &j);
}

/* A tensor of which one head of one sequence spans more than a descriptor may is refused by name,
 * before anything is submitted. */
static void test_range_limit(void **state) {
    app *a = *state;
    job j;
    VkPhysicalDeviceProperties properties;
    vkGetPhysicalDeviceProperties(a->physical, &properties);
    job_begin(a, &j, 0);
    j.run.k.buffer.size = 0; /* nothing is known of it, so nothing but the limit is in the way */
    j.run.k.stride_token = (int64_t)properties.limits.maxStorageBufferRange;
    assert_int_equal(tess_run(a->t.plan, &j.run), TESS_ERROR_UNSUPPORTED);
    assert_error_has("k: ");
    assert_error_has("maxStorageBufferRange");
    assert_true(untouched(a, &j));
    job_end(a, &j);
}

/* ------------------------------------------------------------------ */

static int count_devices(void) {
    const VkApplicationInfo info = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                                    .apiVersion = VK_API_VERSION_1_2};
    const VkInstanceCreateInfo create = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                         .pApplicationInfo = &info};
    VkInstance instance;
    uint32_t count = 0;
    if (vkCreateInstance(&create, NULL, &instance) != VK_SUCCESS) return 0;
    if (vkEnumeratePhysicalDevices(instance, &count, NULL) != VK_SUCCESS) count = 0;
    vkDestroyInstance(instance, NULL);
    return count < MOST_DEVICES ? (int)count : MOST_DEVICES;
}

int main(void) {
    static app apps[MOST_DEVICES];
    int failed = 0;
    const int count = count_devices();
    const char *require = getenv("TESSERA_REQUIRE");
    if (count == 0) {
        puts("skipped: there is no Vulkan device");
        return require && strstr(require, "vulkan") ? 1 : 77;
    }
    for (int n = 0; n < count; n++) {
        app *a = &apps[n];
        a->index = (uint32_t)n;
        const struct CMUnitTest tests[] = {
            TEST_ON(a, test_record_and_replay),
            TEST_ON(a, test_record_ranges),
            TEST_ON(a, test_record_events),
            TEST_ON(a, test_record_two),
            TEST_ON(a, test_timeline),
            TEST_ON(a, test_binary),
            TEST_ON(a, test_waits),
            TEST_ON(a, test_default_stream),
            TEST_ON(a, test_several_devices),
            TEST_ON(a, test_threads),
            TEST_ON(a, test_bad_natives),
            TEST_ON(a, test_bad_streams),
            TEST_ON(a, test_without_features),
            TEST_ON(a, test_matrix_features),
            TEST_ON(a, test_matrix_plan),
            TEST_ON(a, test_range_limit),
        };
        failed += cmocka_run_group_tests(tests, NULL, NULL);
    }
    return failed != 0;
}
