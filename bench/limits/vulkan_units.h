/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix units through VK_KHR_cooperative_matrix: whether a device has them, and what it takes to
 * use them. What is newer than Debian's headers is declared here. */
#ifndef TESSERA_BENCH_LIMITS_VULKAN_UNITS_H
#define TESSERA_BENCH_LIMITS_VULKAN_UNITS_H

#ifndef VK_NO_PROTOTYPES
#define VK_NO_PROTOTYPES
#endif
#include <vulkan/vulkan.h>

/* Sizes of a product, as the shader's constants. */
typedef struct vulkan_product {
    uint32_t m, n, k;
} vulkan_product;

typedef struct vulkan_units_features {
    VkStructureType type;
    void *next;
    VkBool32 bits[3]; /* the first is the one that counts, but for bf16's: type, dot, matrix */
} vulkan_units_features;

typedef struct vulkan_units {
    uint32_t lanes;             /* of a subgroup; 0: there are no matrix units */
    vulkan_product products[2]; /* of f16 and bf16, the largest; sizes of 0: none */
    const char *extensions[4];
    uint32_t n_extensions;
    vulkan_units_features matrix, bfloat16; /* the chain of a device's features */
    VkPhysicalDeviceVulkanMemoryModelFeatures memory;
    VkPhysicalDeviceSubgroupSizeControlFeatures control;
} vulkan_units;

void vulkan_units_find(vulkan_units *u, PFN_vkGetInstanceProcAddr get, VkInstance instance,
                       VkPhysicalDevice physical);
/* What a device has to be made with, or NULL. */
void *vulkan_units_chain(vulkan_units *u);
/* NULL: there is no such product. */
const vulkan_product *vulkan_units_of(const vulkan_units *u, int is_bf16);
/* Of a thread in one product. */
double vulkan_units_flop(const vulkan_units *u, const vulkan_product *p);

#endif
