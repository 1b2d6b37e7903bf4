/* SPDX-License-Identifier: Apache-2.0 */
/* What an application enables on its Vulkan device for kernels on matrix units. */
#ifndef TESSERA_TESTS_INTEROP_VULKAN_MATRICES_H
#define TESSERA_TESTS_INTEROP_VULKAN_MATRICES_H

#include <string.h>
#include <vulkan/vulkan.h>

#ifndef VK_KHR_cooperative_matrix /* later than some headers */
#define VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR \
    ((VkStructureType)1000506000)
typedef struct VkPhysicalDeviceCooperativeMatrixFeaturesKHR {
    VkStructureType sType;
    void *pNext;
    VkBool32 cooperativeMatrix, cooperativeMatrixRobustBufferAccess;
} VkPhysicalDeviceCooperativeMatrixFeaturesKHR;
#endif

static const char *const matrix_extensions[] = {
    "VK_KHR_cooperative_matrix", "VK_KHR_vulkan_memory_model", "VK_KHR_shader_float16_int8",
    "VK_EXT_subgroup_size_control"};
enum { MATRIX_EXTENSIONS = sizeof matrix_extensions / sizeof *matrix_extensions };

/* What the kernel on matrix units needs besides those. */
typedef struct matrix_chain {
    VkPhysicalDeviceCooperativeMatrixFeaturesKHR matrix;
    VkPhysicalDeviceVulkanMemoryModelFeatures memory;
    VkPhysicalDeviceShaderFloat16Int8Features half;
    VkPhysicalDeviceSubgroupSizeControlFeatures subgroups;
} matrix_chain;

static inline int matrices_extension(VkPhysicalDevice physical, const char *name) {
    static VkExtensionProperties all[512];
    uint32_t count = 512;
    vkEnumerateDeviceExtensionProperties(physical, NULL, &count, all);
    for (uint32_t n = 0; n < count; n++)
        if (strcmp(all[n].extensionName, name) == 0) return 1;
    return 0;
}

/* Whether the device has all of it; then the chain enables it, and `subgroups` is its end. */
static inline int matrices_find(VkPhysicalDevice physical, matrix_chain *c) {
    VkPhysicalDeviceFeatures2 features = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
                                          .pNext = c};
    *c =
        (matrix_chain){{.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR,
                        .pNext = &c->memory},
                       {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_MEMORY_MODEL_FEATURES,
                        .pNext = &c->half},
                       {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES,
                        .pNext = &c->subgroups},
                       {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES}};
    for (int n = 0; n < MATRIX_EXTENSIONS; n++)
        if (!matrices_extension(physical, matrix_extensions[n])) return 0;
    vkGetPhysicalDeviceFeatures2(physical, &features);
    return c->matrix.cooperativeMatrix && c->memory.vulkanMemoryModel && c->half.shaderFloat16 &&
           c->subgroups.subgroupSizeControl && c->subgroups.computeFullSubgroups;
}

#endif
