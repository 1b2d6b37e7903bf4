/* SPDX-License-Identifier: Apache-2.0 */
/* Devices: opened by index, or wrapped around the application's own. */
#include <stdio.h>
#include <string.h>

#include "extra.h"
#include "object.h"
#include "vk.h"
#include <tessera/tessera_vulkan.h>

/* ------------------------------------------------------------------ opening */

static tess_status load_device_functions(tess_vk_device *d) {
    const char *missing = NULL;
    vk_api *vk = &d->vk;
#define LOAD(name, result, parameters)                                             \
    vk->name = (result(*) parameters)vk->GetDeviceProcAddr(d->device, "vk" #name); \
    if (!vk->name && !missing) missing = "vk" #name;
    VK_DEVICE_FUNCTIONS(LOAD)
#undef LOAD
#define LOAD(name, result, parameters)                                             \
    vk->name = (result(*) parameters)vk->GetDeviceProcAddr(d->device, "vk" #name); \
    if (!vk->name)                                                                 \
        vk->name = (result(*) parameters)vk->GetDeviceProcAddr(d->device, "vk" #name "KHR");
    VK_OPTIONAL_FUNCTIONS(LOAD)
#undef LOAD
    return missing ? d->host->fail(d->host, TESS_ERROR_UNAVAILABLE,
                                   "vkGetDeviceProcAddr: the driver has no %s", missing)
                   : TESS_OK;
}

static tess_status create_device(tess_vk_device *d) {
    const float priority = 1;
    vk_16bit_features narrow = {.type = TVK_TYPE_16BIT_STORAGE_FEATURES,
                                .storage = d->found.storage_16bit};
    const vk_queue_create_info queue = {.type = TVK_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                        .family = d->found.family,
                                        .count = 1,
                                        .priorities = &priority};
    tess_vk_matrix_chain matrices;
    vk_device_create_info create = {
        .type = TVK_TYPE_DEVICE_CREATE_INFO, .next = &narrow, .queue_count = 1, .queues = &queue};
    if (!d->found.matrices.missing[0]) {
        const int bfloat16 = d->found.matrices.bfloat16 != 0;
        tess_vk_matrix_chain_make(&matrices, bfloat16);
        narrow.next = &matrices;
        create.extensions = tess_vk_matrix_extensions;
        create.extension_count = VK_MATRIX_EXTENSIONS - !bfloat16;
    }
    const vk_result result = d->vk.CreateDevice(d->found.physical, &create, NULL, &d->device);
    if (result != TVK_SUCCESS) {
        d->device = NULL;
        return tess_vk_fail(d->host, result, "vkCreateDevice", "no device");
    }
    TESS_RETURN_IF_ERROR(load_device_functions(d));
    d->vk.GetDeviceQueue(d->device, d->found.family, 0, &d->queue);
    return TESS_OK;
}

static tess_status open_index(tess_vk_device *d, uint32_t index) {
    const tess_status status = tess_vk_connect(d->host, &d->vk, &d->instance);
    if (status != TESS_OK) {
        d->instance = NULL;
        return status;
    }
    TESS_RETURN_IF_ERROR(tess_vk_find(d->host, &d->vk, d->instance, index, &d->found));
    tess_vk_matrices_find(d->host, &d->vk, &d->found);
    return create_device(d);
}

/* Checks the application's structure. */
static tess_status read_native(const tess_host *host, const void *native, tess_vulkan_device *n) {
    TESS_RETURN_IF_ERROR(tess_extra_read(host, "native", native, n, sizeof *n));
    const uint32_t known = TESS_VULKAN_STORAGE_16BIT | TESS_VULKAN_TIMELINE | TESS_VULKAN_MATRIX |
                           TESS_VULKAN_MATRIX_BF16;
    if (n->features & ~known)
        return host->fail(host, TESS_ERROR_INVALID, "native.features: unknown bits 0x%x",
                          n->features & ~known);
    if (n->reserved)
        return host->fail(host, TESS_ERROR_INVALID, "native.reserved: must be 0, not %u",
                          n->reserved);
    const char *missing = !n->instance          ? "instance"
                          : !n->physical_device ? "physical_device"
                          : !n->device          ? "device"
                          : !n->queue           ? "queue"
                                                : NULL;
    if (missing)
        return host->fail(host, TESS_ERROR_INVALID, "native.%s: must not be NULL", missing);
    if (!n->lock_queue != !n->unlock_queue)
        return host->fail(host, TESS_ERROR_INVALID,
                          "native.%s: both functions are needed, or neither",
                          n->lock_queue ? "unlock_queue" : "lock_queue");
    return TESS_OK;
}

static tess_status wrap(tess_vk_device *d, const void *native) {
    tess_vulkan_device n;
    char why[400];
    vk_queue_family families[32];
    uint32_t count = sizeof families / sizeof *families;
    TESS_RETURN_IF_ERROR(read_native(d->host, native, &n));
    d->wrapped = 1;
    const vk_get_instance_proc get =
        n.get_instance_proc_addr ? n.get_instance_proc_addr : tess_vk_library(why, sizeof why);
    if (!get) return d->host->fail(d->host, TESS_ERROR_UNAVAILABLE, "dlopen: %s", why);
    TESS_RETURN_IF_ERROR(tess_vk_instance_functions(d->host, get, n.instance, &d->vk));
    const char *refused = tess_vk_inspect(&d->vk, n.physical_device, &d->found);
    if (refused)
        return d->host->fail(d->host, TESS_ERROR_UNAVAILABLE, "native.physical_device: %s",
                             refused);
    d->vk.GetPhysicalDeviceQueueFamilyProperties(n.physical_device, &count, families);
    if (n.queue_family >= count)
        return d->host->fail(d->host, TESS_ERROR_INVALID, "native.queue_family: %u of %u",
                             n.queue_family, count);
    if (!(families[n.queue_family].flags & TVK_QUEUE_COMPUTE))
        return d->host->fail(d->host, TESS_ERROR_INVALID,
                             "native.queue_family: family %u does not compute", n.queue_family);
    d->found.family = n.queue_family;
    d->found.timestamp_bits = families[n.queue_family].timestamp_bits;
    /* Bits say what is enabled, and only what the device has can be. */
    d->found.storage_16bit &= (n.features & TESS_VULKAN_STORAGE_16BIT) != 0;
    d->timeline =
        (n.features & TESS_VULKAN_TIMELINE) && tess_vk_has_timeline(d->host, &d->vk, &d->found);
    tess_vk_matrices_find(d->host, &d->vk, &d->found);
    tess_vk_matrices *matrices = &d->found.matrices;
    matrices->bfloat16 &= (n.features & TESS_VULKAN_MATRIX_BF16) != 0;
    if (!(n.features & TESS_VULKAN_MATRIX))
        snprintf(matrices->missing, sizeof matrices->missing,
                 "TESS_VULKAN_MATRIX is not among native.features");
    d->instance = n.instance;
    d->device = n.device;
    d->queue = n.queue;
    d->lock = n.lock_queue;
    d->unlock = n.unlock_queue;
    d->lock_user = n.lock_user;
    return load_device_functions(d);
}

/* Destroys what exists so far. A stuck device keeps its Vulkan objects: they may be in use. */
static void destroy(tess_vk_device *d) {
    tess_vk_states_close(d);
    tess_vk_memory_close(d);
    if (!atomic_load(&d->stuck)) {
        if (d->device && d->vk.DestroyDevice) {
            tess_vk_copier_close(d);
            tess_vk_pipelines_close(d);
            if (!d->wrapped) d->vk.DestroyDevice(d->device, NULL);
        }
        if (d->instance && !d->wrapped) d->vk.DestroyInstance(d->instance, NULL);
    }
    pthread_mutex_destroy(&d->queue_lock);
    pthread_mutex_destroy(&d->memory_lock);
    pthread_mutex_destroy(&d->fence_lock);
    pthread_mutex_destroy(&d->spare_lock);
    pthread_mutex_destroy(&d->copy_lock);
    pthread_mutex_destroy(&d->pipeline_lock);
    tess_checks_destroy(&d->checks);
    d->host->free(d->host, d, sizeof *d);
}

tess_status tess_vk_open(const tess_host *host, uint32_t index, const void *native, void **device) {
    tess_vk_device *d = tess_object(host, sizeof *d, "the device");
    if (!d) return TESS_ERROR_OUT_OF_MEMORY;
    d->host = host;
    atomic_init(&d->stuck, 0);
    pthread_mutex_init(&d->queue_lock, NULL);
    pthread_mutex_init(&d->memory_lock, NULL);
    pthread_mutex_init(&d->fence_lock, NULL);
    pthread_mutex_init(&d->spare_lock, NULL);
    pthread_mutex_init(&d->copy_lock, NULL);
    pthread_mutex_init(&d->pipeline_lock, NULL);
    tess_checks_init(&d->checks);
    tess_status status = native ? wrap(d, native) : open_index(d, index);
    if (status == TESS_OK) {
        d->vk.GetPhysicalDeviceMemoryProperties(d->found.physical, &d->memory);
        tess_vk_driver_find(host, &d->vk, &d->found, d->driver, sizeof d->driver);
        d->units = tess_vk_compute_units(host, &d->vk, d->found.physical);
        tess_vk_slots_find(d);
        status = tess_vk_layouts_create(d);
    }
    if (status != TESS_OK) {
        destroy(d);
        return status;
    }
    *device = d;
    return TESS_OK;
}

void tess_vk_close(void *device) {
    tess_vk_device *d = device;
    tess_vk_quiesce(d);
    destroy(d);
}

/* ------------------------------------------------------------------ what it can do */

static uint64_t local_bytes(const tess_vk_device *d) {
    uint64_t most = 0;
    for (uint32_t n = 0; n < d->memory.heap_count; n++)
        if ((d->memory.heaps[n].flags & TVK_HEAP_DEVICE_LOCAL) && d->memory.heaps[n].size > most)
            most = d->memory.heaps[n].size;
    return most;
}

/* Operating systems reset a GPU that drives a display when one submission takes seconds. Vulkan
 * reports no speed, and devices differ by a factor of a hundred, so we estimate it from the kind of
 * device and its memory. A step of 64 rows and 64 keys is about 2 MFLOP; the estimates leave a
 * factor of ten to what such devices reach. */
uint64_t tess_vk_range_steps(const tess_vk_device *d) {
    const uint64_t gib = UINT64_C(1) << 30;
    if (d->found.properties.kind == TVK_DEVICE_CPU) return 0;
    if (d->found.properties.kind == TVK_DEVICE_INTEGRATED_GPU) return 4000;
    const uint64_t bytes = local_bytes(d);
    return bytes >= 40 * gib ? 2000000 : bytes >= 11 * gib ? 150000 : 40000;
}

uint32_t tess_vk_parallel_jobs(const tess_vk_device *d) {
    return d->found.properties.kind == TVK_DEVICE_CPU ? 64 : d->units ? 2 * d->units : 128;
}

tess_status tess_vk_query(void *device, tess_caps *caps) {
    const tess_vk_device *d = device;
    tess_portable_caps(TESS_BUFFER_OBJECT, tess_vk_parallel_jobs(d), caps);
    caps->workspace_align = VK_WORKSPACE_ALIGN;
    caps->range_blocks = tess_vk_range_steps(d);
    caps->steps_per_second = 5 * caps->range_blocks; /* 200 ms of them */
    /* Vulkan does not report the size of the cache. GPUs with that much memory have at least 40
     * MiB; for others we assume none. */
    if (d->found.properties.kind == TVK_DEVICE_DISCRETE_GPU && local_bytes(d) >= UINT64_C(40) << 30)
        caps->cache_bytes = UINT64_C(40) << 20;
    return TESS_OK;
}

vk_result tess_vk_submit(tess_vk_device *d, vk_queue queue, uint32_t count,
                         const vk_submit_info *submits, vk_handle fence) {
    pthread_mutex_lock(&d->queue_lock);
    if (d->lock) d->lock(d->lock_user);
    const vk_result result = d->vk.QueueSubmit(queue, count, submits, fence);
    if (d->unlock) d->unlock(d->lock_user);
    pthread_mutex_unlock(&d->queue_lock);
    return result;
}
