/* SPDX-License-Identifier: Apache-2.0 */
#if TESSERA_BENCH_VULKAN

#include "vulkan_units.h"

#include <string.h>

/* VK_KHR_cooperative_matrix and VK_KHR_shader_bfloat16. */
enum { MATRIX_FEATURES = 1000506000, MATRIX_PROPERTIES = 1000506001, BFLOAT16 = 1000141000 };
enum { COMPONENT_F16 = 0, COMPONENT_F32 = 1, SCOPE_SUBGROUP = 3, MOST = 128 };
typedef struct matrix_properties {
    VkStructureType type;
    void *next;
    uint32_t m, n, k, a, b, c, result;
    VkBool32 saturates;
    uint32_t scope;
} matrix_properties;
typedef VkResult (*list_products)(VkPhysicalDevice, uint32_t *, matrix_properties *);

static const char *const names[] = {"VK_KHR_cooperative_matrix", "VK_KHR_vulkan_memory_model",
                                    "VK_EXT_subgroup_size_control", "VK_KHR_shader_bfloat16"};
enum { REQUIRED = 3, ALL = 4 };

/* The largest product of a type with sums in f32. */
static vulkan_product largest(const matrix_properties *all, uint32_t count, uint32_t component) {
    vulkan_product best = {0, 0, 0};
    for (uint32_t i = 0; i < count; i++)
        if (all[i].a == component && all[i].b == component && all[i].c == COMPONENT_F32 &&
            all[i].result == COMPONENT_F32 && all[i].scope == SCOPE_SUBGROUP &&
            all[i].m * all[i].n * all[i].k > best.m * best.n * best.k)
            best = (vulkan_product){all[i].m, all[i].n, all[i].k};
    return best;
}

static uint32_t extensions(vulkan_units *u, PFN_vkEnumerateDeviceExtensionProperties list,
                           VkPhysicalDevice physical) {
    static VkExtensionProperties all[512];
    uint32_t n = 512;
    if (list(physical, NULL, &n, all) < 0) return 0;
    for (uint32_t k = 0; k < ALL; k++)
        for (uint32_t i = 0; i < n; i++)
            if (strcmp(all[i].extensionName, names[k]) == 0 && u->n_extensions == k)
                u->extensions[u->n_extensions++] = names[k];
    return u->n_extensions;
}

/* Features as a device has them, or as it is to be made with. */
static void chain(vulkan_units *u) {
    const int has_bf16 = u->n_extensions == ALL;
    u->matrix = (vulkan_units_features){(VkStructureType)MATRIX_FEATURES, &u->memory, {1, 0, 0}};
    u->memory = (VkPhysicalDeviceVulkanMemoryModelFeatures){
        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_MEMORY_MODEL_FEATURES, &u->control, 1, 0, 0};
    u->control = (VkPhysicalDeviceSubgroupSizeControlFeatures){
        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES,
        has_bf16 ? &u->bfloat16 : NULL, 1, 0};
    u->bfloat16 = (vulkan_units_features){(VkStructureType)BFLOAT16, NULL, {1, 0, 1}};
}

void vulkan_units_find(vulkan_units *u, PFN_vkGetInstanceProcAddr get, VkInstance instance,
                       VkPhysicalDevice physical) {
#define FIND(type, name) type name = (type)get(instance, #name)
    FIND(PFN_vkEnumerateDeviceExtensionProperties, vkEnumerateDeviceExtensionProperties);
    FIND(PFN_vkGetPhysicalDeviceFeatures2, vkGetPhysicalDeviceFeatures2);
    FIND(PFN_vkGetPhysicalDeviceProperties2, vkGetPhysicalDeviceProperties2);
    FIND(list_products, vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR);
#undef FIND
    matrix_properties all[MOST];
    uint32_t count = MOST;
    memset(u, 0, sizeof *u);
    if (!vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR ||
        extensions(u, vkEnumerateDeviceExtensionProperties, physical) < REQUIRED)
        return;
    chain(u);
    VkPhysicalDeviceFeatures2 features = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
                                          .pNext = &u->matrix};
    vkGetPhysicalDeviceFeatures2(physical, &features);
    VkPhysicalDeviceSubgroupSizeControlProperties lanes = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES};
    VkPhysicalDeviceProperties2 properties = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                              .pNext = &lanes};
    vkGetPhysicalDeviceProperties2(physical, &properties);
    if (!u->matrix.bits[0] || !u->memory.vulkanMemoryModel || !u->control.subgroupSizeControl ||
        !(lanes.requiredSubgroupSizeStages & VK_SHADER_STAGE_COMPUTE_BIT))
        return;
    for (int i = 0; i < MOST; i++)
        all[i] = (matrix_properties){.type = (VkStructureType)MATRIX_PROPERTIES};
    if (vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR(physical, &count, all) < 0) return;
    u->lanes = lanes.minSubgroupSize;
    u->products[0] = largest(all, count, COMPONENT_F16);
    if (u->n_extensions == ALL && u->bfloat16.bits[0] && u->bfloat16.bits[2])
        u->products[1] = largest(all, count, BFLOAT16);
    else
        u->n_extensions = REQUIRED;
    chain(u);
}

void *vulkan_units_chain(vulkan_units *u) {
    if (u->lanes) return &u->matrix;
    u->n_extensions = 0;
    return NULL;
}

const vulkan_product *vulkan_units_of(const vulkan_units *u, int is_bf16) {
    const vulkan_product *p = &u->products[is_bf16 != 0];
    return u->lanes && p->m ? p : NULL;
}

double vulkan_units_flop(const vulkan_units *u, const vulkan_product *p) {
    return 2.0 * p->m * p->n * p->k / (double)u->lanes;
}

#else
typedef int vulkan_units_are_left_out;
#endif
