/* SPDX-License-Identifier: Apache-2.0 */
/* The backend's own declarations of Vulkan against Vulkan's: values, sizes and offsets. Whatever
 * differs does not compile. */
#define VK_NO_PROTOTYPES
#include <stdio.h>
#include <vulkan/vulkan_core.h>

#include "api.h"

#define SAME(a, b, what)      _Static_assert((a) == (b), what)
#define SIZE(own, theirs)     SAME(sizeof(own), sizeof(theirs), #theirs)
#define AT(own, x, theirs, y) SAME(offsetof(own, x), offsetof(theirs, y), #theirs "." #y)
#define TYPE(own, theirs)     SAME((int)TVK_TYPE_##own, (int)VK_STRUCTURE_TYPE_##theirs, #theirs)
#define VALUE(own, theirs)    SAME((uint32_t)TVK_##own, (uint32_t)VK_##theirs, #theirs)

#define RESULT(name, value) SAME(value, VK_##name, #name);
VK_RESULT_LIST(RESULT)

/* Each name exists in Vulkan, or PFN_vk would not. */
#define EXISTS(name, result, parameters) \
    SAME(sizeof(((vk_api *)0)->name), sizeof(PFN_vk##name), #name);
#define ALL(X) \
    VK_GLOBAL_FUNCTIONS(X) VK_INSTANCE_FUNCTIONS(X) VK_DEVICE_FUNCTIONS(X) VK_OPTIONAL_FUNCTIONS(X)
ALL(EXISTS)

TYPE(APPLICATION_INFO, APPLICATION_INFO);
TYPE(INSTANCE_CREATE_INFO, INSTANCE_CREATE_INFO);
TYPE(DEVICE_QUEUE_CREATE_INFO, DEVICE_QUEUE_CREATE_INFO);
TYPE(DEVICE_CREATE_INFO, DEVICE_CREATE_INFO);
TYPE(SUBMIT_INFO, SUBMIT_INFO);
TYPE(MEMORY_ALLOCATE_INFO, MEMORY_ALLOCATE_INFO);
TYPE(FENCE_CREATE_INFO, FENCE_CREATE_INFO);
TYPE(QUERY_POOL_CREATE_INFO, QUERY_POOL_CREATE_INFO);
TYPE(BUFFER_CREATE_INFO, BUFFER_CREATE_INFO);
TYPE(SHADER_MODULE_CREATE_INFO, SHADER_MODULE_CREATE_INFO);
TYPE(PIPELINE_CACHE_CREATE_INFO, PIPELINE_CACHE_CREATE_INFO);
TYPE(PIPELINE_SHADER_STAGE_CREATE_INFO, PIPELINE_SHADER_STAGE_CREATE_INFO);
TYPE(COMPUTE_PIPELINE_CREATE_INFO, COMPUTE_PIPELINE_CREATE_INFO);
TYPE(PIPELINE_LAYOUT_CREATE_INFO, PIPELINE_LAYOUT_CREATE_INFO);
TYPE(DESCRIPTOR_SET_LAYOUT_CREATE_INFO, DESCRIPTOR_SET_LAYOUT_CREATE_INFO);
TYPE(DESCRIPTOR_POOL_CREATE_INFO, DESCRIPTOR_POOL_CREATE_INFO);
TYPE(DESCRIPTOR_SET_ALLOCATE_INFO, DESCRIPTOR_SET_ALLOCATE_INFO);
TYPE(WRITE_DESCRIPTOR_SET, WRITE_DESCRIPTOR_SET);
TYPE(COMMAND_POOL_CREATE_INFO, COMMAND_POOL_CREATE_INFO);
TYPE(COMMAND_BUFFER_ALLOCATE_INFO, COMMAND_BUFFER_ALLOCATE_INFO);
TYPE(COMMAND_BUFFER_BEGIN_INFO, COMMAND_BUFFER_BEGIN_INFO);
TYPE(MEMORY_BARRIER, MEMORY_BARRIER);
TYPE(FEATURES_2, PHYSICAL_DEVICE_FEATURES_2);
TYPE(PROPERTIES_2, PHYSICAL_DEVICE_PROPERTIES_2);
TYPE(16BIT_STORAGE_FEATURES, PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES);
TYPE(SM_BUILTINS_PROPERTIES_NV, PHYSICAL_DEVICE_SHADER_SM_BUILTINS_PROPERTIES_NV);
TYPE(SHADER_CORE_PROPERTIES_AMD, PHYSICAL_DEVICE_SHADER_CORE_PROPERTIES_AMD);
TYPE(DRIVER_PROPERTIES, PHYSICAL_DEVICE_DRIVER_PROPERTIES);
TYPE(TIMELINE_SEMAPHORE_SUBMIT_INFO, TIMELINE_SEMAPHORE_SUBMIT_INFO);

VALUE(DEVICE_INTEGRATED_GPU, PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU);
VALUE(DEVICE_DISCRETE_GPU, PHYSICAL_DEVICE_TYPE_DISCRETE_GPU);
VALUE(DEVICE_VIRTUAL_GPU, PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU);
VALUE(DEVICE_CPU, PHYSICAL_DEVICE_TYPE_CPU);
VALUE(QUEUE_GRAPHICS, QUEUE_GRAPHICS_BIT);
VALUE(QUEUE_COMPUTE, QUEUE_COMPUTE_BIT);
VALUE(MEMORY_DEVICE_LOCAL, MEMORY_PROPERTY_DEVICE_LOCAL_BIT);
VALUE(MEMORY_HOST_VISIBLE, MEMORY_PROPERTY_HOST_VISIBLE_BIT);
VALUE(MEMORY_HOST_COHERENT, MEMORY_PROPERTY_HOST_COHERENT_BIT);
VALUE(MEMORY_HOST_CACHED, MEMORY_PROPERTY_HOST_CACHED_BIT);
VALUE(HEAP_DEVICE_LOCAL, MEMORY_HEAP_DEVICE_LOCAL_BIT);
VALUE(BUFFER_TRANSFER_SRC, BUFFER_USAGE_TRANSFER_SRC_BIT);
VALUE(BUFFER_TRANSFER_DST, BUFFER_USAGE_TRANSFER_DST_BIT);
VALUE(BUFFER_UNIFORM, BUFFER_USAGE_UNIFORM_BUFFER_BIT);
VALUE(BUFFER_STORAGE, BUFFER_USAGE_STORAGE_BUFFER_BIT);
VALUE(DESCRIPTOR_STORAGE_BUFFER, DESCRIPTOR_TYPE_STORAGE_BUFFER);
VALUE(DESCRIPTOR_UNIFORM_BUFFER_DYNAMIC, DESCRIPTOR_TYPE_UNIFORM_BUFFER_DYNAMIC);
VALUE(SHADER_STAGE_COMPUTE, SHADER_STAGE_COMPUTE_BIT);
VALUE(BIND_POINT_COMPUTE, PIPELINE_BIND_POINT_COMPUTE);
VALUE(COMMAND_POOL_RESET_BUFFER, COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT);
VALUE(ONE_TIME_SUBMIT, COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT);
VALUE(QUERY_TIMESTAMP, QUERY_TYPE_TIMESTAMP);
VALUE(QUERY_RESULT_64, QUERY_RESULT_64_BIT);
VALUE(STAGE_COMPUTE, PIPELINE_STAGE_COMPUTE_SHADER_BIT);
VALUE(STAGE_TRANSFER, PIPELINE_STAGE_TRANSFER_BIT);
VALUE(STAGE_HOST, PIPELINE_STAGE_HOST_BIT);
VALUE(ACCESS_UNIFORM_READ, ACCESS_UNIFORM_READ_BIT);
VALUE(ACCESS_SHADER_READ, ACCESS_SHADER_READ_BIT);
VALUE(ACCESS_SHADER_WRITE, ACCESS_SHADER_WRITE_BIT);
VALUE(ACCESS_TRANSFER_READ, ACCESS_TRANSFER_READ_BIT);
VALUE(ACCESS_TRANSFER_WRITE, ACCESS_TRANSFER_WRITE_BIT);
VALUE(ACCESS_HOST_READ, ACCESS_HOST_READ_BIT);
VALUE(ACCESS_HOST_WRITE, ACCESS_HOST_WRITE_BIT);

SIZE(vk_application_info, VkApplicationInfo);
AT(vk_application_info, api_version, VkApplicationInfo, apiVersion);
SIZE(vk_instance_create_info, VkInstanceCreateInfo);
AT(vk_instance_create_info, extensions, VkInstanceCreateInfo, ppEnabledExtensionNames);
SIZE(vk_extension_properties, VkExtensionProperties);
AT(vk_extension_properties, version, VkExtensionProperties, specVersion);
SIZE(vk_limits, VkPhysicalDeviceLimits);
AT(vk_limits, max_storage_range, VkPhysicalDeviceLimits, maxStorageBufferRange);
AT(vk_limits, max_allocations, VkPhysicalDeviceLimits, maxMemoryAllocationCount);
AT(vk_limits, max_stage_storage_buffers, VkPhysicalDeviceLimits,
   maxPerStageDescriptorStorageBuffers);
AT(vk_limits, max_shared_bytes, VkPhysicalDeviceLimits, maxComputeSharedMemorySize);
AT(vk_limits, max_group_count, VkPhysicalDeviceLimits, maxComputeWorkGroupCount);
AT(vk_limits, max_group_threads, VkPhysicalDeviceLimits, maxComputeWorkGroupInvocations);
AT(vk_limits, max_group_size, VkPhysicalDeviceLimits, maxComputeWorkGroupSize);
AT(vk_limits, min_uniform_align, VkPhysicalDeviceLimits, minUniformBufferOffsetAlignment);
AT(vk_limits, min_storage_align, VkPhysicalDeviceLimits, minStorageBufferOffsetAlignment);
AT(vk_limits, timestamps, VkPhysicalDeviceLimits, timestampComputeAndGraphics);
AT(vk_limits, timestamp_period, VkPhysicalDeviceLimits, timestampPeriod);
AT(vk_limits, coherent_atom, VkPhysicalDeviceLimits, nonCoherentAtomSize);
SIZE(vk_properties, VkPhysicalDeviceProperties);
AT(vk_properties, kind, VkPhysicalDeviceProperties, deviceType);
AT(vk_properties, name, VkPhysicalDeviceProperties, deviceName);
AT(vk_properties, cache_uuid, VkPhysicalDeviceProperties, pipelineCacheUUID);
AT(vk_properties, limits, VkPhysicalDeviceProperties, limits);
SIZE(vk_properties_2, VkPhysicalDeviceProperties2);
SIZE(vk_driver_properties, VkPhysicalDeviceDriverProperties);
AT(vk_driver_properties, info, VkPhysicalDeviceDriverProperties, driverInfo);
SIZE(vk_sm_properties, VkPhysicalDeviceShaderSMBuiltinsPropertiesNV);
AT(vk_sm_properties, sm_count, VkPhysicalDeviceShaderSMBuiltinsPropertiesNV, shaderSMCount);
SIZE(vk_core_properties_amd, VkPhysicalDeviceShaderCorePropertiesAMD);
AT(vk_core_properties_amd, units_per_array, VkPhysicalDeviceShaderCorePropertiesAMD,
   computeUnitsPerShaderArray);
SIZE(vk_features_2, VkPhysicalDeviceFeatures2);
SIZE(vk_16bit_features, VkPhysicalDevice16BitStorageFeatures);
AT(vk_16bit_features, storage, VkPhysicalDevice16BitStorageFeatures, storageBuffer16BitAccess);
SIZE(vk_queue_family, VkQueueFamilyProperties);
AT(vk_queue_family, timestamp_bits, VkQueueFamilyProperties, timestampValidBits);
SIZE(vk_memory_properties, VkPhysicalDeviceMemoryProperties);
AT(vk_memory_properties, heap_count, VkPhysicalDeviceMemoryProperties, memoryHeapCount);
AT(vk_memory_properties, heaps, VkPhysicalDeviceMemoryProperties, memoryHeaps);
AT(vk_memory_properties, types[1].heap, VkPhysicalDeviceMemoryProperties, memoryTypes[1].heapIndex);
SIZE(vk_queue_create_info, VkDeviceQueueCreateInfo);
AT(vk_queue_create_info, priorities, VkDeviceQueueCreateInfo, pQueuePriorities);
SIZE(vk_device_create_info, VkDeviceCreateInfo);
AT(vk_device_create_info, queues, VkDeviceCreateInfo, pQueueCreateInfos);
AT(vk_device_create_info, features, VkDeviceCreateInfo, pEnabledFeatures);
SIZE(vk_memory_requirements, VkMemoryRequirements);
AT(vk_memory_requirements, types, VkMemoryRequirements, memoryTypeBits);
SIZE(vk_memory_allocate_info, VkMemoryAllocateInfo);
AT(vk_memory_allocate_info, memory_type, VkMemoryAllocateInfo, memoryTypeIndex);
SIZE(vk_buffer_create_info, VkBufferCreateInfo);
AT(vk_buffer_create_info, usage, VkBufferCreateInfo, usage);
SIZE(vk_buffer_copy, VkBufferCopy);
AT(vk_buffer_copy, destination, VkBufferCopy, dstOffset);
SIZE(vk_shader_module_create_info, VkShaderModuleCreateInfo);
AT(vk_shader_module_create_info, bytes, VkShaderModuleCreateInfo, codeSize);
SIZE(vk_pipeline_cache_create_info, VkPipelineCacheCreateInfo);
AT(vk_pipeline_cache_create_info, data, VkPipelineCacheCreateInfo, pInitialData);
SIZE(vk_specialization_entry, VkSpecializationMapEntry);
SIZE(vk_specialization_info, VkSpecializationInfo);
AT(vk_specialization_info, data, VkSpecializationInfo, pData);
SIZE(vk_stage_create_info, VkPipelineShaderStageCreateInfo);
AT(vk_stage_create_info, module, VkPipelineShaderStageCreateInfo, module);
SIZE(vk_compute_pipeline_create_info, VkComputePipelineCreateInfo);
AT(vk_compute_pipeline_create_info, layout, VkComputePipelineCreateInfo, layout);
SIZE(vk_pipeline_layout_create_info, VkPipelineLayoutCreateInfo);
AT(vk_pipeline_layout_create_info, pushes, VkPipelineLayoutCreateInfo, pPushConstantRanges);
SIZE(vk_binding, VkDescriptorSetLayoutBinding);
AT(vk_binding, stages, VkDescriptorSetLayoutBinding, stageFlags);
SIZE(vk_set_layout_create_info, VkDescriptorSetLayoutCreateInfo);
AT(vk_set_layout_create_info, bindings, VkDescriptorSetLayoutCreateInfo, pBindings);
SIZE(vk_pool_size, VkDescriptorPoolSize);
SIZE(vk_descriptor_pool_create_info, VkDescriptorPoolCreateInfo);
AT(vk_descriptor_pool_create_info, max_sets, VkDescriptorPoolCreateInfo, maxSets);
SIZE(vk_set_allocate_info, VkDescriptorSetAllocateInfo);
AT(vk_set_allocate_info, layouts, VkDescriptorSetAllocateInfo, pSetLayouts);
SIZE(vk_buffer_range, VkDescriptorBufferInfo);
SIZE(vk_write_set, VkWriteDescriptorSet);
AT(vk_write_set, kind, VkWriteDescriptorSet, descriptorType);
AT(vk_write_set, buffers, VkWriteDescriptorSet, pBufferInfo);
SIZE(vk_command_pool_create_info, VkCommandPoolCreateInfo);
AT(vk_command_pool_create_info, family, VkCommandPoolCreateInfo, queueFamilyIndex);
SIZE(vk_commands_allocate_info, VkCommandBufferAllocateInfo);
AT(vk_commands_allocate_info, count, VkCommandBufferAllocateInfo, commandBufferCount);
SIZE(vk_begin_info, VkCommandBufferBeginInfo);
SIZE(vk_memory_barrier, VkMemoryBarrier);
AT(vk_memory_barrier, source, VkMemoryBarrier, srcAccessMask);
SIZE(vk_query_pool_create_info, VkQueryPoolCreateInfo);
AT(vk_query_pool_create_info, kind, VkQueryPoolCreateInfo, queryType);
SIZE(vk_fence_create_info, VkFenceCreateInfo);
SIZE(vk_submit_info, VkSubmitInfo);
AT(vk_submit_info, wait_stages, VkSubmitInfo, pWaitDstStageMask);
AT(vk_submit_info, commands, VkSubmitInfo, pCommandBuffers);
AT(vk_submit_info, signals, VkSubmitInfo, pSignalSemaphores);
SIZE(vk_timeline_submit_info, VkTimelineSemaphoreSubmitInfo);
AT(vk_timeline_submit_info, wait_values, VkTimelineSemaphoreSubmitInfo, pWaitSemaphoreValues);
AT(vk_timeline_submit_info, signal_values, VkTimelineSemaphoreSubmitInfo, pSignalSemaphoreValues);

TYPE(FLOAT16_INT8_FEATURES, PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES);
TYPE(MEMORY_MODEL_FEATURES, PHYSICAL_DEVICE_VULKAN_MEMORY_MODEL_FEATURES);
TYPE(SUBGROUP_SIZE_FEATURES, PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES);
TYPE(SUBGROUP_SIZE_PROPERTIES, PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES);
TYPE(REQUIRED_SUBGROUP_SIZE, PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO);
VALUE(FULL_SUBGROUPS, PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT);
SIZE(vk_float16_features, VkPhysicalDeviceShaderFloat16Int8Features);
AT(vk_float16_features, float16, VkPhysicalDeviceShaderFloat16Int8Features, shaderFloat16);
SIZE(vk_memory_model_features, VkPhysicalDeviceVulkanMemoryModelFeatures);
AT(vk_memory_model_features, memory_model, VkPhysicalDeviceVulkanMemoryModelFeatures,
   vulkanMemoryModel);
SIZE(vk_subgroup_size_features, VkPhysicalDeviceSubgroupSizeControlFeatures);
AT(vk_subgroup_size_features, full_subgroups, VkPhysicalDeviceSubgroupSizeControlFeatures,
   computeFullSubgroups);
SIZE(vk_subgroup_size_properties, VkPhysicalDeviceSubgroupSizeControlProperties);
AT(vk_subgroup_size_properties, stages, VkPhysicalDeviceSubgroupSizeControlProperties,
   requiredSubgroupSizeStages);
SIZE(vk_required_subgroup_size, VkPipelineShaderStageRequiredSubgroupSizeCreateInfo);

/* Later than some headers. */
#ifdef VK_KHR_cooperative_matrix
VK_MATRIX_FUNCTIONS(EXISTS)
TYPE(MATRIX_FEATURES, PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR);
TYPE(MATRIX_PROPERTIES, COOPERATIVE_MATRIX_PROPERTIES_KHR);
VALUE(SCOPE_SUBGROUP, SCOPE_SUBGROUP_KHR);
VALUE(COMPONENT_FLOAT16, COMPONENT_TYPE_FLOAT16_KHR);
VALUE(COMPONENT_FLOAT32, COMPONENT_TYPE_FLOAT32_KHR);
SIZE(vk_matrix_features, VkPhysicalDeviceCooperativeMatrixFeaturesKHR);
AT(vk_matrix_features, matrix, VkPhysicalDeviceCooperativeMatrixFeaturesKHR, cooperativeMatrix);
SIZE(vk_matrix_properties, VkCooperativeMatrixPropertiesKHR);
AT(vk_matrix_properties, result, VkCooperativeMatrixPropertiesKHR, ResultType);
AT(vk_matrix_properties, scope, VkCooperativeMatrixPropertiesKHR, scope);
#endif
#ifdef VK_KHR_shader_bfloat16
TYPE(BFLOAT16_FEATURES, PHYSICAL_DEVICE_SHADER_BFLOAT16_FEATURES_KHR);
VALUE(COMPONENT_BFLOAT16, COMPONENT_TYPE_BFLOAT16_KHR);
SIZE(vk_bfloat16_features, VkPhysicalDeviceShaderBfloat16FeaturesKHR);
AT(vk_bfloat16_features, matrix, VkPhysicalDeviceShaderBfloat16FeaturesKHR,
   shaderBFloat16CooperativeMatrix);
#endif

int main(void) {
    puts("the declarations agree with vulkan_core.h");
    return 0;
}
