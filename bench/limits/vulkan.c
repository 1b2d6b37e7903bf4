/* SPDX-License-Identifier: Apache-2.0 */
/* Loops as SPIR-V (spirv/). Without Vulkan's headers the build leaves them out. */
#include "gpu.h"

#include <stdio.h>

#if TESSERA_BENCH_VULKAN

#define VK_NO_PROTOTYPES
#include <vulkan/vulkan.h>

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "vulkan_units.h"

enum { MOST = 16, CHAINS = 8, F32_LANES = 4, F16_LANES = 2 };

/* The files of spirv/, which the build puts into the program. */
#define MODULES(X) X(copy) X(read) X(f32) X(f16) X(units_f16) X(units_bf16)
enum {
#define NUMBER(name) MODULE_##name,
    MODULES(NUMBER)
#undef NUMBER
};
#define DECLARE(name) extern const uint32_t loops_spv_##name[], loops_spv_##name##_end[];
MODULES(DECLARE)
#undef DECLARE
static const uint64_t WAIT_NS = 20000000000u;

#define INSTANCE_FUNCTIONS(X)                   \
    X(vkEnumeratePhysicalDevices)               \
    X(vkGetPhysicalDeviceProperties2)           \
    X(vkGetPhysicalDeviceFeatures2)             \
    X(vkGetPhysicalDeviceQueueFamilyProperties) \
    X(vkGetPhysicalDeviceMemoryProperties)      \
    X(vkEnumerateDeviceExtensionProperties)     \
    X(vkCreateDevice)                           \
    X(vkDestroyInstance)                        \
    X(vkGetDeviceQueue)                         \
    X(vkDestroyDevice)                          \
    X(vkCreateBuffer)                           \
    X(vkDestroyBuffer)                          \
    X(vkGetBufferMemoryRequirements)            \
    X(vkAllocateMemory)                         \
    X(vkFreeMemory)                             \
    X(vkBindBufferMemory)                       \
    X(vkCreateShaderModule)                     \
    X(vkDestroyShaderModule)                    \
    X(vkCreateDescriptorSetLayout)              \
    X(vkDestroyDescriptorSetLayout)             \
    X(vkCreatePipelineLayout)                   \
    X(vkDestroyPipelineLayout)                  \
    X(vkCreateComputePipelines)                 \
    X(vkDestroyPipeline)                        \
    X(vkCreateDescriptorPool)                   \
    X(vkDestroyDescriptorPool)                  \
    X(vkAllocateDescriptorSets)                 \
    X(vkUpdateDescriptorSets)                   \
    X(vkCreateCommandPool)                      \
    X(vkDestroyCommandPool)                     \
    X(vkAllocateCommandBuffers)                 \
    X(vkBeginCommandBuffer)                     \
    X(vkEndCommandBuffer)                       \
    X(vkResetCommandPool)                       \
    X(vkCmdBindPipeline)                        \
    X(vkCmdBindDescriptorSets)                  \
    X(vkCmdPushConstants)                       \
    X(vkCmdDispatch)                            \
    X(vkCmdFillBuffer)                          \
    X(vkCmdPipelineBarrier)                     \
    X(vkCmdResetQueryPool)                      \
    X(vkCmdWriteTimestamp)                      \
    X(vkCreateQueryPool)                        \
    X(vkDestroyQueryPool)                       \
    X(vkGetQueryPoolResults)                    \
    X(vkCreateFence)                            \
    X(vkDestroyFence)                           \
    X(vkResetFences)                            \
    X(vkWaitForFences)                          \
    X(vkQueueSubmit)

typedef struct functions {
    PFN_vkGetInstanceProcAddr get;
    PFN_vkCreateInstance vkCreateInstance;
#define MEMBER(name) PFN_##name name;
    INSTANCE_FUNCTIONS(MEMBER)
#undef MEMBER
} functions;

typedef struct loops {
    functions vk;
    VkInstance instance;
    VkPhysicalDevice physical;
    VkDevice device;
    VkQueue queue;
    uint32_t family;
    double tick; /* seconds of a timestamp's unit */
    uint32_t compute_units;
    int half;
    vulkan_units units;
    uint64_t most_bytes;
    VkDescriptorSetLayout set_layout;
    VkPipelineLayout layout;
    VkDescriptorPool sets;
    VkDescriptorSet set;
    VkCommandPool pool;
    VkCommandBuffer commands;
    VkQueryPool queries;
    VkFence fence;
    VkBuffer buffers[2];
    VkDeviceMemory memory[2];
    VkShaderModule module;
    VkPipeline pipeline;
} loops;

/* ------------------------------------------------------------------ instance and device */

static int connect(loops *l) {
    void *library = dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL), *p;
    if (!library) return -1;
    p = dlsym(library, "vkGetInstanceProcAddr");
    if (!p) return -1;
    memcpy(&l->vk.get, &p, sizeof p);
    l->vk.vkCreateInstance = (PFN_vkCreateInstance)l->vk.get(NULL, "vkCreateInstance");
    const VkApplicationInfo application = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                                           .apiVersion = VK_API_VERSION_1_1};
    const VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                       .pApplicationInfo = &application};
    if (!l->vk.vkCreateInstance || l->vk.vkCreateInstance(&info, NULL, &l->instance) != VK_SUCCESS)
        return -1;
#define FIND(name) \
    if (!(l->vk.name = (PFN_##name)l->vk.get(l->instance, #name))) return -1;
    INSTANCE_FUNCTIONS(FIND)
#undef FIND
    return 0;
}

/* The device with this name, after d->ordinal others that have it too. */
static int find(loops *l, const bench_device *d) {
    VkPhysicalDevice all[MOST];
    uint32_t n = MOST;
    int before = 0;
    const VkResult result = l->vk.vkEnumeratePhysicalDevices(l->instance, &n, all);
    if (result != VK_SUCCESS && result != VK_INCOMPLETE) return -1;
    for (uint32_t i = 0; i < n; i++) {
        VkPhysicalDeviceProperties2 p = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2};
        l->vk.vkGetPhysicalDeviceProperties2(all[i], &p);
        if (strncmp(p.properties.deviceName, d->name, sizeof d->name - 1) != 0 ||
            before++ != d->ordinal)
            continue;
        l->physical = all[i];
        l->tick = 1e-9 * (double)p.properties.limits.timestampPeriod;
        l->most_bytes = p.properties.limits.maxStorageBufferRange;
        return 0;
    }
    return -1;
}

static void disconnect(loops *l) {
    if (l->instance && l->vk.vkDestroyInstance) l->vk.vkDestroyInstance(l->instance, NULL);
}

static int has_pci(const loops *l) {
    static VkExtensionProperties all[512];
    uint32_t n = 512;
    l->vk.vkEnumerateDeviceExtensionProperties(l->physical, NULL, &n, all);
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(all[i].extensionName, VK_EXT_PCI_BUS_INFO_EXTENSION_NAME) == 0) return 1;
    return 0;
}

static void identify(bench_device *d) {
    loops l = {.instance = NULL};
    if (strcmp(d->kind, "gpu") == 0 && connect(&l) == 0 && find(&l, d) == 0) {
        VkPhysicalDevicePCIBusInfoPropertiesEXT pci = {
            .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PCI_BUS_INFO_PROPERTIES_EXT};
        const int known = has_pci(&l);
        VkPhysicalDeviceIDProperties id = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES,
                                           .pNext = known ? &pci : NULL};
        VkPhysicalDeviceProperties2 p = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                         .pNext = &id};
        l.vk.vkGetPhysicalDeviceProperties2(l.physical, &p);
        gpu_uuid_text(id.deviceUUID, d->uuid);
        if (known)
            snprintf(d->pci, sizeof d->pci, "%04x:%02x:%02x.%x", pci.pciDomain & 0xffff,
                     pci.pciBus & 0xff, pci.pciDevice & 0xff, pci.pciFunction & 0xf);
    }
    disconnect(&l);
}

static VkResult make_device(loops *l) {
    VkQueueFamilyProperties families[MOST];
    uint32_t n = MOST;
    const float priority = 1;
    l->vk.vkGetPhysicalDeviceQueueFamilyProperties(l->physical, &n, families);
    l->family = UINT32_MAX;
    for (uint32_t i = 0; i < n; i++)
        if (families[i].queueFlags & VK_QUEUE_COMPUTE_BIT && families[i].timestampValidBits &&
            l->family == UINT32_MAX)
            l->family = i;
    if (l->family == UINT32_MAX) return VK_ERROR_FEATURE_NOT_PRESENT;
    VkPhysicalDeviceShaderFloat16Int8Features narrow = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES};
    VkPhysicalDeviceProperties2 p = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2};
    VkPhysicalDeviceFeatures2 features = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2};
    l->vk.vkGetPhysicalDeviceProperties2(l->physical, &p);
    if (p.properties.apiVersion >= VK_API_VERSION_1_2) {
        features.pNext = &narrow;
        l->vk.vkGetPhysicalDeviceFeatures2(l->physical, &features);
    }
    l->half = narrow.shaderFloat16 != 0;
    narrow = (VkPhysicalDeviceShaderFloat16Int8Features){.sType = narrow.sType,
                                                         .shaderFloat16 = narrow.shaderFloat16};
    vulkan_units_find(&l->units, l->vk.get, l->instance, l->physical);
    if (l->half) narrow.pNext = vulkan_units_chain(&l->units);
    const VkDeviceQueueCreateInfo queue = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                           .queueFamilyIndex = l->family,
                                           .queueCount = 1,
                                           .pQueuePriorities = &priority};
    const VkDeviceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                     .pNext = l->half ? &narrow : NULL,
                                     .queueCreateInfoCount = 1,
                                     .pQueueCreateInfos = &queue,
                                     .enabledExtensionCount = l->half ? l->units.n_extensions : 0,
                                     .ppEnabledExtensionNames = l->units.extensions};
    const VkResult result = l->vk.vkCreateDevice(l->physical, &info, NULL, &l->device);
    if (result == VK_SUCCESS) l->vk.vkGetDeviceQueue(l->device, l->family, 0, &l->queue);
    return result;
}

/* What all loops share. */
static VkResult make_parts(loops *l) {
    const VkDescriptorSetLayoutBinding bindings[2] = {
        {0, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1, VK_SHADER_STAGE_COMPUTE_BIT, NULL},
        {1, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1, VK_SHADER_STAGE_COMPUTE_BIT, NULL}};
    const VkDescriptorSetLayoutCreateInfo set_info = {
        .sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO,
        .bindingCount = 2,
        .pBindings = bindings};
    const VkPushConstantRange constants = {VK_SHADER_STAGE_COMPUTE_BIT, 0, 4};
    const VkDescriptorPoolSize room = {VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 2};
    const VkDescriptorPoolCreateInfo pool_info = {.sType =
                                                      VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO,
                                                  .maxSets = 1,
                                                  .poolSizeCount = 1,
                                                  .pPoolSizes = &room};
    const VkCommandPoolCreateInfo commands = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                              .queueFamilyIndex = l->family};
    const VkQueryPoolCreateInfo queries = {.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO,
                                           .queryType = VK_QUERY_TYPE_TIMESTAMP,
                                           .queryCount = 2};
    const VkFenceCreateInfo fence = {.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
    const functions *vk = &l->vk;
    VkDevice d = l->device;
    VkResult result = vk->vkCreateDescriptorSetLayout(d, &set_info, NULL, &l->set_layout);
    const VkPipelineLayoutCreateInfo layout = {.sType =
                                                   VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                               .setLayoutCount = 1,
                                               .pSetLayouts = &l->set_layout,
                                               .pushConstantRangeCount = 1,
                                               .pPushConstantRanges = &constants};
    if (!result) result = vk->vkCreatePipelineLayout(d, &layout, NULL, &l->layout);
    if (!result) result = vk->vkCreateDescriptorPool(d, &pool_info, NULL, &l->sets);
    const VkDescriptorSetAllocateInfo set = {.sType =
                                                 VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO,
                                             .descriptorPool = l->sets,
                                             .descriptorSetCount = 1,
                                             .pSetLayouts = &l->set_layout};
    if (!result) result = vk->vkAllocateDescriptorSets(d, &set, &l->set);
    if (!result) result = vk->vkCreateCommandPool(d, &commands, NULL, &l->pool);
    const VkCommandBufferAllocateInfo buffer = {.sType =
                                                    VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                                .commandPool = l->pool,
                                                .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                                .commandBufferCount = 1};
    if (!result) result = vk->vkAllocateCommandBuffers(d, &buffer, &l->commands);
    if (!result) result = vk->vkCreateQueryPool(d, &queries, NULL, &l->queries);
    if (!result) result = vk->vkCreateFence(d, &fence, NULL, &l->fence);
    return result;
}

static void drop(loops *l) {
    if (l->pipeline) l->vk.vkDestroyPipeline(l->device, l->pipeline, NULL);
    if (l->module) l->vk.vkDestroyShaderModule(l->device, l->module, NULL);
    for (int i = 0; i < 2; i++) {
        if (l->buffers[i]) l->vk.vkDestroyBuffer(l->device, l->buffers[i], NULL);
        if (l->memory[i]) l->vk.vkFreeMemory(l->device, l->memory[i], NULL);
        l->buffers[i] = VK_NULL_HANDLE;
        l->memory[i] = VK_NULL_HANDLE;
    }
    l->pipeline = VK_NULL_HANDLE;
    l->module = VK_NULL_HANDLE;
}

static void close_loops(void *gpu) {
    loops *l = gpu;
    if (l->device) {
        drop(l);
#define DESTROY(kind, field) \
    if (l->field) l->vk.vkDestroy##kind(l->device, l->field, NULL);
        DESTROY(Fence, fence)
        DESTROY(QueryPool, queries)
        DESTROY(CommandPool, pool)
        DESTROY(DescriptorPool, sets)
        DESTROY(PipelineLayout, layout)
        DESTROY(DescriptorSetLayout, set_layout)
        l->vk.vkDestroyDevice(l->device, NULL);
    }
    disconnect(l);
}

static int open_loops(void *gpu, const bench_device *d, char *why, size_t size) {
    loops *l = gpu;
    l->compute_units = d->compute_units ? d->compute_units : 16;
    if (connect(l) != 0 || find(l, d) != 0)
        return snprintf(why, size, "Vulkan: %.100s is gone", d->name), -1;
    VkResult result = make_device(l);
    if (result == VK_SUCCESS) result = make_parts(l);
    if (result == VK_SUCCESS) return 0;
    snprintf(why, size, "Vulkan: error %d", (int)result);
    return -1;
}

/* ------------------------------------------------------------------ loops */

static VkResult make_buffer(loops *l, int i, uint64_t bytes) {
    const functions *vk = &l->vk;
    const VkBufferCreateInfo info = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
                                     .size = bytes,
                                     .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT |
                                              VK_BUFFER_USAGE_TRANSFER_DST_BIT};
    VkMemoryRequirements needs;
    VkPhysicalDeviceMemoryProperties has;
    VkResult result = vk->vkCreateBuffer(l->device, &info, NULL, &l->buffers[i]);
    if (result != VK_SUCCESS) return result;
    vk->vkGetBufferMemoryRequirements(l->device, l->buffers[i], &needs);
    vk->vkGetPhysicalDeviceMemoryProperties(l->physical, &has);
    uint32_t type = UINT32_MAX;
    for (uint32_t t = has.memoryTypeCount; t-- > 0;)
        if (needs.memoryTypeBits >> t & 1 &&
            has.memoryTypes[t].propertyFlags & VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT)
            type = t;
    if (type == UINT32_MAX) return VK_ERROR_OUT_OF_DEVICE_MEMORY;
    const VkMemoryAllocateInfo memory = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                         .allocationSize = needs.size,
                                         .memoryTypeIndex = type};
    result = vk->vkAllocateMemory(l->device, &memory, NULL, &l->memory[i]);
    if (result != VK_SUCCESS) return result;
    const VkDescriptorBufferInfo whole = {l->buffers[i], 0, VK_WHOLE_SIZE};
    const VkWriteDescriptorSet write = {.sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET,
                                        .dstSet = l->set,
                                        .dstBinding = (uint32_t)i,
                                        .descriptorCount = 1,
                                        .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                                        .pBufferInfo = &whole};
    result = vk->vkBindBufferMemory(l->device, l->buffers[i], l->memory[i], 0);
    if (result == VK_SUCCESS) vk->vkUpdateDescriptorSets(l->device, 1, &write, 0, NULL);
    return result;
}

static VkResult make_pipeline(loops *l, int module, const vulkan_product *product) {
    static const struct {
        const uint32_t *words, *end;
    } modules[] = {
#define ROW(name) {loops_spv_##name, loops_spv_##name##_end},
        MODULES(ROW)
#undef ROW
    };
    static const VkSpecializationMapEntry sizes[] = {{0, 0, 4}, {1, 4, 4}, {2, 8, 4}};
    const VkShaderModuleCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
        .codeSize = (size_t)((uintptr_t)modules[module].end - (uintptr_t)modules[module].words),
        .pCode = modules[module].words};
    VkResult result = l->vk.vkCreateShaderModule(l->device, &info, NULL, &l->module);
    VkPipelineShaderStageRequiredSubgroupSizeCreateInfo lanes = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO,
        .requiredSubgroupSize = l->units.lanes};
    const VkSpecializationInfo constants = {3, sizes, 12, product};
    const VkComputePipelineCreateInfo pipeline = {
        .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                  .pNext = product ? &lanes : NULL,
                  .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                  .module = l->module,
                  .pName = "main",
                  .pSpecializationInfo = product ? &constants : NULL},
        .layout = l->layout};
    if (result == VK_SUCCESS)
        result = l->vk.vkCreateComputePipelines(l->device, VK_NULL_HANDLE, 1, &pipeline, NULL,
                                                &l->pipeline);
    return result;
}

/* Commands that fill the source once, and then run the loop between two timestamps. */
static VkResult record(loops *l, int fill, uint32_t groups, uint32_t turns) {
    const functions *vk = &l->vk;
    const VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    const VkMemoryBarrier filled = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                                    .srcAccessMask = VK_ACCESS_TRANSFER_WRITE_BIT,
                                    .dstAccessMask = VK_ACCESS_SHADER_READ_BIT};
    VkResult result = vk->vkResetCommandPool(l->device, l->pool, 0);
    if (result == VK_SUCCESS) result = vk->vkBeginCommandBuffer(l->commands, &begin);
    if (result != VK_SUCCESS) return result;
    if (fill) {
        vk->vkCmdFillBuffer(l->commands, l->buffers[0], 0, VK_WHOLE_SIZE, 0x3c003c00u);
        vk->vkCmdPipelineBarrier(l->commands, VK_PIPELINE_STAGE_TRANSFER_BIT,
                                 VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, 0, 1, &filled, 0, NULL, 0,
                                 NULL);
    }
    vk->vkCmdResetQueryPool(l->commands, l->queries, 0, 2);
    vk->vkCmdBindPipeline(l->commands, VK_PIPELINE_BIND_POINT_COMPUTE, l->pipeline);
    vk->vkCmdBindDescriptorSets(l->commands, VK_PIPELINE_BIND_POINT_COMPUTE, l->layout, 0, 1,
                                &l->set, 0, NULL);
    vk->vkCmdPushConstants(l->commands, l->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, 4, &turns);
    vk->vkCmdWriteTimestamp(l->commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, l->queries, 0);
    vk->vkCmdDispatch(l->commands, groups, 1, 1);
    vk->vkCmdWriteTimestamp(l->commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, l->queries, 1);
    return vk->vkEndCommandBuffer(l->commands);
}

static double run(void *gpu) {
    loops *l = gpu;
    uint64_t ticks[2];
    const VkSubmitInfo submit = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                                 .commandBufferCount = 1,
                                 .pCommandBuffers = &l->commands};
    if (l->vk.vkResetFences(l->device, 1, &l->fence) != VK_SUCCESS ||
        l->vk.vkQueueSubmit(l->queue, 1, &submit, l->fence) != VK_SUCCESS ||
        l->vk.vkWaitForFences(l->device, 1, &l->fence, VK_TRUE, WAIT_NS) != VK_SUCCESS ||
        l->vk.vkGetQueryPoolResults(l->device, l->queries, 0, 2, sizeof ticks, ticks, 8,
                                    VK_QUERY_RESULT_64_BIT) != VK_SUCCESS)
        return NAN;
    return ticks[1] > ticks[0] ? l->tick * (double)(ticks[1] - ticks[0]) : NAN;
}

static double prepare(void *gpu, gpu_job *job) {
    static const char *const methods[] = {"uvec4, read + written bytes", "uvec4", "fma of vec4",
                                          "fma of f16vec2", "products on matrix units"};
    static const double flops[] = {0, 0, CHAINS * F32_LANES * 2, CHAINS * F16_LANES * 2};
    loops *l = gpu;
    const int moves = job->loop == GPU_COPY || job->loop == GPU_READ;
    const vulkan_product *product =
        l->half && job->loop > GPU_F32 ? vulkan_units_of(&l->units, job->loop == GPU_BF16) : NULL;
    const int module = !product                ? job->loop
                       : job->loop == GPU_BF16 ? MODULE_units_bf16
                                               : MODULE_units_f16;
    uint64_t bytes = job->bytes;
    drop(l);
    /* Where a type has no arithmetic of its own, that of f32 counts. */
    if (!product && (job->loop == GPU_BF16 || (job->loop == GPU_F16 && !l->half))) return 0;
    if (bytes > l->most_bytes) bytes = l->most_bytes / GPU_TILE * GPU_TILE;
    uint32_t groups = moves ? (uint32_t)(bytes / GPU_TILE) : l->compute_units * GPU_GROUPS_A_UNIT;
    if (groups > 65535) groups = 65535; /* what every device can launch */
    if (moves) bytes = (uint64_t)groups * GPU_TILE;
    const double flop = product ? vulkan_units_flop(&l->units, product) * CHAINS : flops[job->loop];
    VkResult result = make_pipeline(l, module, product);
    for (int i = 0; i < 2 && result == VK_SUCCESS; i++)
        result = make_buffer(l, i, moves ? bytes : 4096);
    if (result == VK_SUCCESS) result = record(l, 1, groups, (uint32_t)job->turns);
    if (result == VK_SUCCESS && isnan(run(l))) result = VK_ERROR_DEVICE_LOST;
    if (result == VK_SUCCESS) result = record(l, 0, groups, (uint32_t)job->turns);
    snprintf(job->method, sizeof job->method, "SPIR-V, %s", methods[product ? 4 : job->loop]);
    if (result == VK_SUCCESS) return gpu_work(job, bytes, groups, flop);
    snprintf(job->why, sizeof job->why, "%s: Vulkan error %d", job->method, (int)result);
    return 0;
}

const gpu_driver gpu_vulkan = {"vulkan",    sizeof(loops), identify, open_loops,
                               close_loops, prepare,       run};

#else

static void identify(bench_device *d) { (void)d; }
static int open_loops(void *gpu, const bench_device *d, char *why, size_t size) {
    (void)gpu, (void)d;
    snprintf(why, size, "built without Vulkan's headers (Debian: libvulkan-dev)");
    return -1;
}
static void close_loops(void *gpu) { (void)gpu; }
static double prepare(void *gpu, gpu_job *job) {
    (void)gpu, (void)job;
    return 0;
}
static double run(void *gpu) {
    (void)gpu;
    return 0;
}

const gpu_driver gpu_vulkan = {"vulkan", 1, identify, open_loops, close_loops, prepare, run};

#endif
