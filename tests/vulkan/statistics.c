/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stands in for libvulkan.so.1 and forwards everything to the real one (TESSERA_TEST_VULKAN names
 * it), but asks the driver what became of each compute pipeline
 * (VK_KHR_pipeline_executable_properties) and prints a line for each to stderr. By hand, with any
 * program:
 *
 *   LD_LIBRARY_PATH=build/release/tests/vulkan/statistics TESSERA_CACHE_DIR=/dev/null \
 *   TESSERA_TEST_VULKAN=/usr/lib/x86_64-linux-gnu/libvulkan.so.1 \
 *   build/release/cli/tessera plan heads=8 q_len=4096 head_dim=128 dtype=f16 pattern=dense
 * --backend vulkan
 */
#define VK_NO_PROTOTYPES
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vulkan/vulkan_core.h>

enum { MOST_EXTENSIONS = 32, MOST_EXECUTABLES = 4, MOST_STATISTICS = 64 };

static PFN_vkGetInstanceProcAddr real_get;
static PFN_vkGetDeviceProcAddr real_get_device;
static PFN_vkCreateDevice real_create_device;
static PFN_vkCreateShaderModule real_create_module;
static PFN_vkCreateComputePipelines real_create_pipelines;
static PFN_vkGetPipelineExecutablePropertiesKHR get_executables; /* NULL: no extension */
static PFN_vkGetPipelineExecutableStatisticsKHR get_statistics;
static VkInstance instance_now;
static size_t module_words;     /* of the latest module, which the next pipeline is made of */
static const char *module_uses; /* what it uses of the hardware */

static int has_extension(VkPhysicalDevice physical) {
    const PFN_vkEnumerateDeviceExtensionProperties enumerate =
        (PFN_vkEnumerateDeviceExtensionProperties)real_get(instance_now,
                                                           "vkEnumerateDeviceExtensionProperties");
    uint32_t count = 0;
    int found = 0;
    if (!enumerate || enumerate(physical, NULL, &count, NULL) != VK_SUCCESS) return 0;
    VkExtensionProperties *all = calloc(count ? count : 1, sizeof *all);
    if (all && enumerate(physical, NULL, &count, all) == VK_SUCCESS)
        for (uint32_t n = 0; n < count; n++)
            found |= strcmp(all[n].extensionName,
                            VK_KHR_PIPELINE_EXECUTABLE_PROPERTIES_EXTENSION_NAME) == 0;
    free(all);
    return found;
}

/* The device with the extension enabled, too. */
static VKAPI_ATTR VkResult VKAPI_CALL create_device(VkPhysicalDevice physical,
                                                    const VkDeviceCreateInfo *info,
                                                    const VkAllocationCallbacks *allocator,
                                                    VkDevice *device) {
    VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR features = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_EXECUTABLE_PROPERTIES_FEATURES_KHR,
        .pNext = (void *)info->pNext,
        .pipelineExecutableInfo = VK_TRUE};
    const char *names[MOST_EXTENSIONS + 1];
    VkDeviceCreateInfo own = *info;
    get_executables = NULL;
    if (info->enabledExtensionCount > MOST_EXTENSIONS || !has_extension(physical)) {
        fputs("pipelines: the driver has no VK_KHR_pipeline_executable_properties\n", stderr);
        return real_create_device(physical, info, allocator, device);
    }
    for (uint32_t n = 0; n < info->enabledExtensionCount; n++)
        names[n] = info->ppEnabledExtensionNames[n];
    names[own.enabledExtensionCount++] = VK_KHR_PIPELINE_EXECUTABLE_PROPERTIES_EXTENSION_NAME;
    own.ppEnabledExtensionNames = names;
    own.pNext = &features;
    const VkResult result = real_create_device(physical, &own, allocator, device);
    if (result != VK_SUCCESS) return result;
    get_executables = (PFN_vkGetPipelineExecutablePropertiesKHR)real_get_device(
        *device, "vkGetPipelineExecutablePropertiesKHR");
    get_statistics = (PFN_vkGetPipelineExecutableStatisticsKHR)real_get_device(
        *device, "vkGetPipelineExecutableStatisticsKHR");
    return result;
}

/* The words of a module begin with its capabilities. */
static VKAPI_ATTR VkResult VKAPI_CALL create_module(VkDevice device,
                                                    const VkShaderModuleCreateInfo *info,
                                                    const VkAllocationCallbacks *allocator,
                                                    VkShaderModule *module) {
    enum { OP_CAPABILITY = 2 << 16 | 17, COOPERATIVE_MATRIX = 6022, HEADER = 5 };
    module_words = info->codeSize / 4;
    module_uses = "";
    for (size_t n = HEADER; n + 1 < module_words && info->pCode[n] == OP_CAPABILITY; n += 2)
        if (info->pCode[n + 1] == COOPERATIVE_MATRIX) module_uses = " on matrix units";
    return real_create_module(device, info, allocator, module);
}

static void print_statistic(const VkPipelineExecutableStatisticKHR *s) {
    switch (s->format) {
    case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_BOOL32_KHR:
        fprintf(stderr, "; %s %s", s->name, s->value.b32 ? "yes" : "no");
        break;
    case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_INT64_KHR:
        fprintf(stderr, "; %s %" PRId64, s->name, s->value.i64);
        break;
    case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_UINT64_KHR:
        fprintf(stderr, "; %s %" PRIu64, s->name, s->value.u64);
        break;
    default: fprintf(stderr, "; %s %g", s->name, s->value.f64); break;
    }
}

static void print_executables(VkDevice device, VkPipeline pipeline) {
    const VkPipelineInfoKHR info = {.sType = VK_STRUCTURE_TYPE_PIPELINE_INFO_KHR,
                                    .pipeline = pipeline};
    static VkPipelineExecutablePropertiesKHR executables[MOST_EXECUTABLES];
    static VkPipelineExecutableStatisticKHR statistics[MOST_STATISTICS];
    uint32_t count = MOST_EXECUTABLES;
    for (uint32_t n = 0; n < count; n++)
        executables[n] = (VkPipelineExecutablePropertiesKHR){
            .sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_PROPERTIES_KHR};
    if (get_executables(device, &info, &count, executables) < 0) count = 0;
    for (uint32_t n = 0; n < count; n++) {
        const VkPipelineExecutableInfoKHR one = {.sType =
                                                     VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INFO_KHR,
                                                 .pipeline = pipeline,
                                                 .executableIndex = n};
        uint32_t found = MOST_STATISTICS;
        for (uint32_t i = 0; i < found; i++)
            statistics[i] = (VkPipelineExecutableStatisticKHR){
                .sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_STATISTIC_KHR};
        if (get_statistics(device, &one, &found, statistics) < 0) found = 0;
        fprintf(stderr, "; %s of subgroups of %u", executables[n].name,
                executables[n].subgroupSize);
        for (uint32_t i = 0; i < found; i++) print_statistic(&statistics[i]);
    }
}

static VKAPI_ATTR VkResult VKAPI_CALL create_pipelines(VkDevice device, VkPipelineCache cache,
                                                       uint32_t count,
                                                       const VkComputePipelineCreateInfo *infos,
                                                       const VkAllocationCallbacks *allocator,
                                                       VkPipeline *pipelines) {
    VkComputePipelineCreateInfo own = *infos; /* nobody makes several at once */
    if (!get_executables || count != 1)
        return real_create_pipelines(device, cache, count, infos, allocator, pipelines);
    own.flags |= VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR;
    const VkResult result = real_create_pipelines(device, cache, 1, &own, allocator, pipelines);
    if (result != VK_SUCCESS) return result;
    const VkSpecializationInfo *constants = infos->stage.pSpecializationInfo;
    fprintf(stderr, "pipeline of %zu words%s, constants", module_words, module_uses);
    for (size_t n = 0; constants && n < constants->dataSize / 4; n++)
        fprintf(stderr, " %" PRIu32, ((const uint32_t *)constants->pData)[n]);
    print_executables(device, *pipelines);
    fputc('\n', stderr);
    return result;
}

static PFN_vkVoidFunction intercept(const char *name, PFN_vkVoidFunction found);

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL get_device(VkDevice device, const char *name) {
    return intercept(name, real_get_device(device, name));
}

static PFN_vkVoidFunction intercept(const char *name, PFN_vkVoidFunction found) {
#define TAKE(function, real, own)               \
    if (found && strcmp(name, function) == 0) { \
        memcpy(&(real), &found, sizeof found);  \
        return (PFN_vkVoidFunction)(own);       \
    }
    TAKE("vkGetDeviceProcAddr", real_get_device, get_device)
    TAKE("vkCreateDevice", real_create_device, create_device)
    TAKE("vkCreateShaderModule", real_create_module, create_module)
    TAKE("vkCreateComputePipelines", real_create_pipelines, create_pipelines)
#undef TAKE
    return found;
}

__attribute__((visibility("default"))) VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL
vkGetInstanceProcAddr(VkInstance instance, const char *name);
__attribute__((visibility("default"))) VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL
vkGetInstanceProcAddr(VkInstance instance, const char *name) {
    if (!real_get) {
        const char *path = getenv("TESSERA_TEST_VULKAN");
        void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
        void *symbol = library ? dlsym(library, "vkGetInstanceProcAddr") : NULL;
        if (!symbol) return NULL;
        memcpy(&real_get, &symbol, sizeof symbol);
    }
    if (instance) instance_now = instance;
    return intercept(name, real_get(instance, name));
}
