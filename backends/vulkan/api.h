/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of Vulkan that this backend uses, declared here so that it builds on machines without
 * Vulkan's headers. Names are our own, values and layouts are Vulkan's; tests/vulkan/api.c compares
 * both with vulkan_core.h where that is found. Handles that Vulkan does not dispatch on are 64-bit
 * numbers on every machine with 64-bit pointers and on the others.
 */
#ifndef TESSERA_VULKAN_API_H
#define TESSERA_VULKAN_API_H

#include <stddef.h>
#include <stdint.h>

typedef struct VkInstance_T *vk_instance;
typedef struct VkPhysicalDevice_T *vk_physical;
typedef struct VkDevice_T *vk_device;
typedef struct VkQueue_T *vk_queue;
typedef struct VkCommandBuffer_T *vk_commands;
typedef uint64_t vk_handle; /* every other kind of object */
typedef int32_t vk_result;
typedef uint32_t vk_bool;

/* The first members of structures that Vulkan reads or writes: a type and a chain of extensions. */
#define VK_IN      \
    uint32_t type; \
    const void *next
#define VK_OUT     \
    uint32_t type; \
    void *next

/* X(name, value): the results that we test for, or name in messages. */
#define VK_RESULT_LIST(X)                    \
    X(SUCCESS, 0)                            \
    X(NOT_READY, 1)                          \
    X(TIMEOUT, 2)                            \
    X(INCOMPLETE, 5)                         \
    X(ERROR_OUT_OF_HOST_MEMORY, -1)          \
    X(ERROR_OUT_OF_DEVICE_MEMORY, -2)        \
    X(ERROR_INITIALIZATION_FAILED, -3)       \
    X(ERROR_DEVICE_LOST, -4)                 \
    X(ERROR_MEMORY_MAP_FAILED, -5)           \
    X(ERROR_LAYER_NOT_PRESENT, -6)           \
    X(ERROR_EXTENSION_NOT_PRESENT, -7)       \
    X(ERROR_FEATURE_NOT_PRESENT, -8)         \
    X(ERROR_INCOMPATIBLE_DRIVER, -9)         \
    X(ERROR_TOO_MANY_OBJECTS, -10)           \
    X(ERROR_FRAGMENTED_POOL, -12)            \
    X(ERROR_UNKNOWN, -13)                    \
    X(ERROR_OUT_OF_POOL_MEMORY, -1000069000) \
    X(ERROR_FRAGMENTATION, -1000161000)      \
    X(ERROR_INVALID_SHADER_NV, -1000012000)

enum {
#define VK_RESULT_ENUM(name, value) TVK_##name = value,
    VK_RESULT_LIST(VK_RESULT_ENUM)
#undef VK_RESULT_ENUM
};

enum { /* the first member of most structures */
       TVK_TYPE_APPLICATION_INFO = 0,
       TVK_TYPE_INSTANCE_CREATE_INFO = 1,
       TVK_TYPE_DEVICE_QUEUE_CREATE_INFO = 2,
       TVK_TYPE_DEVICE_CREATE_INFO = 3,
       TVK_TYPE_SUBMIT_INFO = 4,
       TVK_TYPE_MEMORY_ALLOCATE_INFO = 5,
       TVK_TYPE_FENCE_CREATE_INFO = 8,
       TVK_TYPE_QUERY_POOL_CREATE_INFO = 11,
       TVK_TYPE_BUFFER_CREATE_INFO = 12,
       TVK_TYPE_SHADER_MODULE_CREATE_INFO = 16,
       TVK_TYPE_PIPELINE_CACHE_CREATE_INFO = 17,
       TVK_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO = 18,
       TVK_TYPE_COMPUTE_PIPELINE_CREATE_INFO = 29,
       TVK_TYPE_PIPELINE_LAYOUT_CREATE_INFO = 30,
       TVK_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO = 32,
       TVK_TYPE_DESCRIPTOR_POOL_CREATE_INFO = 33,
       TVK_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO = 34,
       TVK_TYPE_WRITE_DESCRIPTOR_SET = 35,
       TVK_TYPE_COMMAND_POOL_CREATE_INFO = 39,
       TVK_TYPE_COMMAND_BUFFER_ALLOCATE_INFO = 40,
       TVK_TYPE_COMMAND_BUFFER_BEGIN_INFO = 42,
       TVK_TYPE_MEMORY_BARRIER = 46,
       TVK_TYPE_FEATURES_2 = 1000059000,
       TVK_TYPE_PROPERTIES_2 = 1000059001,
       TVK_TYPE_FLOAT16_INT8_FEATURES = 1000082000,
       TVK_TYPE_16BIT_STORAGE_FEATURES = 1000083000,
       TVK_TYPE_BFLOAT16_FEATURES = 1000141000,
       TVK_TYPE_SM_BUILTINS_PROPERTIES_NV = 1000154001,
       TVK_TYPE_SHADER_CORE_PROPERTIES_AMD = 1000185000,
       TVK_TYPE_DRIVER_PROPERTIES = 1000196000,
       TVK_TYPE_TIMELINE_SEMAPHORE_FEATURES = 1000207000,
       TVK_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO = 1000207003,
       TVK_TYPE_MEMORY_MODEL_FEATURES = 1000211000,
       TVK_TYPE_SUBGROUP_SIZE_PROPERTIES = 1000225000,
       TVK_TYPE_REQUIRED_SUBGROUP_SIZE = 1000225001,
       TVK_TYPE_SUBGROUP_SIZE_FEATURES = 1000225002,
       TVK_TYPE_MATRIX_FEATURES = 1000506000,
       TVK_TYPE_MATRIX_PROPERTIES = 1000506001,
};

enum {
    TVK_DEVICE_INTEGRATED_GPU = 1,
    TVK_DEVICE_DISCRETE_GPU = 2,
    TVK_DEVICE_VIRTUAL_GPU = 3,
    TVK_DEVICE_CPU = 4,
    TVK_QUEUE_GRAPHICS = 0x1,
    TVK_QUEUE_COMPUTE = 0x2,
    TVK_MEMORY_DEVICE_LOCAL = 0x1,
    TVK_MEMORY_HOST_VISIBLE = 0x2,
    TVK_MEMORY_HOST_COHERENT = 0x4,
    TVK_MEMORY_HOST_CACHED = 0x8,
    TVK_HEAP_DEVICE_LOCAL = 0x1,
    TVK_BUFFER_TRANSFER_SRC = 0x1,
    TVK_BUFFER_TRANSFER_DST = 0x2,
    TVK_BUFFER_UNIFORM = 0x10,
    TVK_BUFFER_STORAGE = 0x20,
    TVK_DESCRIPTOR_STORAGE_BUFFER = 7,
    TVK_DESCRIPTOR_UNIFORM_BUFFER_DYNAMIC = 8,
    TVK_SHADER_STAGE_COMPUTE = 0x20,
    TVK_BIND_POINT_COMPUTE = 1,
    TVK_COMMAND_POOL_RESET_BUFFER = 0x2,
    TVK_ONE_TIME_SUBMIT = 0x1,
    TVK_QUERY_TIMESTAMP = 2,
    TVK_QUERY_RESULT_64 = 0x1,
    TVK_STAGE_COMPUTE = 0x800,
    TVK_STAGE_TRANSFER = 0x1000,
    TVK_STAGE_HOST = 0x4000,
    TVK_ACCESS_UNIFORM_READ = 0x8,
    TVK_ACCESS_SHADER_READ = 0x20,
    TVK_ACCESS_SHADER_WRITE = 0x40,
    TVK_ACCESS_TRANSFER_READ = 0x800,
    TVK_ACCESS_TRANSFER_WRITE = 0x1000,
    TVK_ACCESS_HOST_READ = 0x2000,
    TVK_ACCESS_HOST_WRITE = 0x4000,
    TVK_FULL_SUBGROUPS = 0x2,
    TVK_SCOPE_SUBGROUP = 3,
    TVK_COMPONENT_FLOAT16 = 0,
    TVK_COMPONENT_FLOAT32 = 1,
    TVK_COMPONENT_BFLOAT16 = 1000141000,
};

/* ---------------------------------------------------------------- instance and physical device */

typedef struct vk_application_info {
    VK_IN;
    const char *application;
    uint32_t application_version;
    const char *engine;
    uint32_t engine_version, api_version;
} vk_application_info;

typedef struct vk_instance_create_info {
    VK_IN;
    uint32_t flags;
    const vk_application_info *application;
    uint32_t layer_count;
    const char *const *layers;
    uint32_t extension_count;
    const char *const *extensions;
} vk_instance_create_info;

typedef struct vk_extension_properties {
    char name[256];
    uint32_t version;
} vk_extension_properties;

/* Of some hundred limits, those that we ask for; the words between them are unused. */
typedef struct vk_limits {
    uint32_t unused_0[7];
    uint32_t max_storage_range, unused_1, max_allocations;
    uint32_t unused_2[9];
    uint32_t max_stage_storage_buffers;
    uint32_t unused_3[34];
    uint32_t max_shared_bytes, max_group_count[3], max_group_threads, max_group_size[3];
    uint32_t unused_4[18];
    uint64_t min_uniform_align, min_storage_align;
    uint32_t unused_5[21];
    vk_bool timestamps;
    float timestamp_period;
    uint32_t unused_6[17];
    uint64_t coherent_atom;
} vk_limits;

typedef struct vk_properties {
    uint32_t api_version, driver_version, vendor, device, kind;
    char name[256];
    uint8_t cache_uuid[16];
    vk_limits limits;
    vk_bool sparse[5];
} vk_properties;

typedef struct vk_properties_2 {
    VK_OUT;
    vk_properties core;
} vk_properties_2;

typedef struct vk_driver_properties {
    VK_OUT;
    uint32_t id;
    char name[256], info[256];
    uint8_t conformance[4];
} vk_driver_properties;

typedef struct vk_sm_properties {
    VK_OUT;
    uint32_t sm_count, warps;
} vk_sm_properties;

typedef struct vk_core_properties_amd {
    VK_OUT;
    uint32_t engines, arrays_per_engine, units_per_array, unused[11];
} vk_core_properties_amd;

typedef struct vk_features_2 {
    VK_OUT;
    vk_bool core[55];
} vk_features_2;

typedef struct vk_16bit_features {
    VK_OUT;
    vk_bool storage, uniform, push, input_output;
} vk_16bit_features;

/* Features, of which only the first ones of a structure are named that we ask for. */
typedef struct vk_float16_features {
    VK_OUT;
    vk_bool float16, unused;
} vk_float16_features;

typedef struct vk_bfloat16_features {
    VK_OUT;
    vk_bool type_, dot_product, matrix;
} vk_bfloat16_features;

typedef struct vk_memory_model_features {
    VK_OUT;
    vk_bool memory_model, unused[2];
} vk_memory_model_features;

typedef struct vk_subgroup_size_features {
    VK_OUT;
    vk_bool size_control, full_subgroups;
} vk_subgroup_size_features;

typedef struct vk_subgroup_size_properties {
    VK_OUT;
    uint32_t least, most, most_subgroups, stages;
} vk_subgroup_size_properties;

typedef struct vk_matrix_features {
    VK_OUT;
    vk_bool matrix, unused;
} vk_matrix_features;

typedef struct vk_matrix_properties {
    VK_OUT;
    uint32_t m, n, k, a, b, c, result;
    vk_bool saturates;
    uint32_t scope;
} vk_matrix_properties;

typedef struct vk_queue_family {
    uint32_t flags, count, timestamp_bits, granularity[3];
} vk_queue_family;

typedef struct vk_memory_properties {
    uint32_t type_count;
    struct {
        uint32_t flags, heap;
    } types[32];
    uint32_t heap_count;
    struct {
        uint64_t size;
        uint32_t flags;
    } heaps[16];
} vk_memory_properties;

typedef struct vk_queue_create_info {
    VK_IN;
    uint32_t flags, family, count;
    const float *priorities;
} vk_queue_create_info;

typedef struct vk_device_create_info {
    VK_IN;
    uint32_t flags, queue_count;
    const vk_queue_create_info *queues;
    uint32_t layer_count;
    const char *const *layers;
    uint32_t extension_count;
    const char *const *extensions;
    const vk_bool *features;
} vk_device_create_info;

/* ------------------------------------------------------------------ memory */

typedef struct vk_memory_requirements {
    uint64_t size, alignment;
    uint32_t types;
} vk_memory_requirements;

typedef struct vk_memory_allocate_info {
    VK_IN;
    uint64_t size;
    uint32_t memory_type;
} vk_memory_allocate_info;

typedef struct vk_buffer_create_info {
    VK_IN;
    uint32_t flags;
    uint64_t size;
    uint32_t usage, sharing, family_count;
    const uint32_t *families;
} vk_buffer_create_info;

typedef struct vk_buffer_copy {
    uint64_t source, destination, size;
} vk_buffer_copy;

/* ------------------------------------------------------------------ pipelines and descriptors */

typedef struct vk_shader_module_create_info {
    VK_IN;
    uint32_t flags;
    size_t bytes;
    const uint32_t *code;
} vk_shader_module_create_info;

typedef struct vk_pipeline_cache_create_info {
    VK_IN;
    uint32_t flags;
    size_t bytes;
    const void *data;
} vk_pipeline_cache_create_info;

typedef struct vk_specialization_entry {
    uint32_t id, offset;
    size_t size;
} vk_specialization_entry;

typedef struct vk_specialization_info {
    uint32_t count;
    const vk_specialization_entry *entries;
    size_t bytes;
    const void *data;
} vk_specialization_info;

typedef struct vk_stage_create_info {
    VK_IN;
    uint32_t flags, stage;
    vk_handle module;
    const char *entry;
    const vk_specialization_info *specialization;
} vk_stage_create_info;

typedef struct vk_required_subgroup_size {
    VK_OUT;
    uint32_t size;
} vk_required_subgroup_size;

typedef struct vk_compute_pipeline_create_info {
    VK_IN;
    uint32_t flags;
    vk_stage_create_info stage;
    vk_handle layout, base;
    int32_t base_index;
} vk_compute_pipeline_create_info;

typedef struct vk_pipeline_layout_create_info {
    VK_IN;
    uint32_t flags, set_count;
    const vk_handle *sets;
    uint32_t push_count;
    const void *pushes;
} vk_pipeline_layout_create_info;

typedef struct vk_binding {
    uint32_t binding, kind, count, stages;
    const vk_handle *samplers;
} vk_binding;

typedef struct vk_set_layout_create_info {
    VK_IN;
    uint32_t flags, count;
    const vk_binding *bindings;
} vk_set_layout_create_info;

typedef struct vk_pool_size {
    uint32_t kind, count;
} vk_pool_size;

typedef struct vk_descriptor_pool_create_info {
    VK_IN;
    uint32_t flags, max_sets, size_count;
    const vk_pool_size *sizes;
} vk_descriptor_pool_create_info;

typedef struct vk_set_allocate_info {
    VK_IN;
    vk_handle pool;
    uint32_t count;
    const vk_handle *layouts;
} vk_set_allocate_info;

typedef struct vk_buffer_range {
    vk_handle buffer;
    uint64_t offset, range;
} vk_buffer_range;

typedef struct vk_write_set {
    VK_IN;
    vk_handle set;
    uint32_t binding, element, count, kind;
    const void *images;
    const vk_buffer_range *buffers;
    const vk_handle *views;
} vk_write_set;

/* ------------------------------------------------------------------ commands */

typedef struct vk_command_pool_create_info {
    VK_IN;
    uint32_t flags, family;
} vk_command_pool_create_info;

typedef struct vk_commands_allocate_info {
    VK_IN;
    vk_handle pool;
    uint32_t level, count;
} vk_commands_allocate_info;

typedef struct vk_begin_info {
    VK_IN;
    uint32_t flags;
    const void *inheritance;
} vk_begin_info;

typedef struct vk_memory_barrier {
    VK_IN;
    uint32_t source, destination;
} vk_memory_barrier;

typedef struct vk_query_pool_create_info {
    VK_IN;
    uint32_t flags, kind, count, statistics;
} vk_query_pool_create_info;

typedef struct vk_fence_create_info {
    VK_IN;
    uint32_t flags;
} vk_fence_create_info;

typedef struct vk_submit_info {
    VK_IN;
    uint32_t wait_count;
    const vk_handle *waits;
    const uint32_t *wait_stages;
    uint32_t commands_count;
    const vk_commands *commands;
    uint32_t signal_count;
    const vk_handle *signals;
} vk_submit_info;

typedef struct vk_timeline_features {
    VK_OUT;
    vk_bool timeline;
} vk_timeline_features;

typedef struct vk_timeline_submit_info {
    VK_IN;
    uint32_t wait_count;
    const uint64_t *wait_values;
    uint32_t signal_count;
    const uint64_t *signal_values;
} vk_timeline_submit_info;

/* ------------------------------------------- functions: X(name without vk, result, parameters) */

typedef void (*vk_function)(void);
typedef vk_function (*vk_get_instance_proc)(vk_instance, const char *);

#define VK_GLOBAL_FUNCTIONS(X)                                                                   \
    X(CreateInstance, vk_result, (const vk_instance_create_info *, const void *, vk_instance *)) \
    X(EnumerateInstanceVersion, vk_result, (uint32_t *)) /* missing in 1.0 */

#define VK_INSTANCE_FUNCTIONS(X)                                                                  \
    X(DestroyInstance, void, (vk_instance, const void *))                                         \
    X(EnumeratePhysicalDevices, vk_result, (vk_instance, uint32_t *, vk_physical *))              \
    X(EnumerateDeviceExtensionProperties, vk_result,                                              \
      (vk_physical, const char *, uint32_t *, vk_extension_properties *))                         \
    X(GetPhysicalDeviceProperties, void, (vk_physical, vk_properties *))                          \
    X(GetPhysicalDeviceProperties2, void, (vk_physical, vk_properties_2 *))                       \
    X(GetPhysicalDeviceFeatures2, void, (vk_physical, vk_features_2 *))                           \
    X(GetPhysicalDeviceQueueFamilyProperties, void, (vk_physical, uint32_t *, vk_queue_family *)) \
    X(GetPhysicalDeviceMemoryProperties, void, (vk_physical, vk_memory_properties *))             \
    X(CreateDevice, vk_result,                                                                    \
      (vk_physical, const vk_device_create_info *, const void *, vk_device *))                    \
    X(GetDeviceProcAddr, vk_function, (vk_device, const char *))

#define VK_DEVICE_FUNCTIONS(X)                                                                    \
    X(DestroyDevice, void, (vk_device, const void *))                                             \
    X(GetDeviceQueue, void, (vk_device, uint32_t, uint32_t, vk_queue *))                          \
    X(QueueSubmit, vk_result, (vk_queue, uint32_t, const vk_submit_info *, vk_handle))            \
    X(AllocateMemory, vk_result,                                                                  \
      (vk_device, const vk_memory_allocate_info *, const void *, vk_handle *))                    \
    X(FreeMemory, void, (vk_device, vk_handle, const void *))                                     \
    X(MapMemory, vk_result, (vk_device, vk_handle, uint64_t, uint64_t, uint32_t, void **))        \
    X(BindBufferMemory, vk_result, (vk_device, vk_handle, vk_handle, uint64_t))                   \
    X(GetBufferMemoryRequirements, void, (vk_device, vk_handle, vk_memory_requirements *))        \
    X(CreateBuffer, vk_result,                                                                    \
      (vk_device, const vk_buffer_create_info *, const void *, vk_handle *))                      \
    X(DestroyBuffer, void, (vk_device, vk_handle, const void *))                                  \
    X(CreateFence, vk_result,                                                                     \
      (vk_device, const vk_fence_create_info *, const void *, vk_handle *))                       \
    X(DestroyFence, void, (vk_device, vk_handle, const void *))                                   \
    X(ResetFences, vk_result, (vk_device, uint32_t, const vk_handle *))                           \
    X(GetFenceStatus, vk_result, (vk_device, vk_handle))                                          \
    X(WaitForFences, vk_result, (vk_device, uint32_t, const vk_handle *, vk_bool, uint64_t))      \
    X(CreateQueryPool, vk_result,                                                                 \
      (vk_device, const vk_query_pool_create_info *, const void *, vk_handle *))                  \
    X(DestroyQueryPool, void, (vk_device, vk_handle, const void *))                               \
    X(GetQueryPoolResults, vk_result,                                                             \
      (vk_device, vk_handle, uint32_t, uint32_t, size_t, void *, uint64_t, uint32_t))             \
    X(CreateShaderModule, vk_result,                                                              \
      (vk_device, const vk_shader_module_create_info *, const void *, vk_handle *))               \
    X(DestroyShaderModule, void, (vk_device, vk_handle, const void *))                            \
    X(CreatePipelineCache, vk_result,                                                             \
      (vk_device, const vk_pipeline_cache_create_info *, const void *, vk_handle *))              \
    X(DestroyPipelineCache, void, (vk_device, vk_handle, const void *))                           \
    X(GetPipelineCacheData, vk_result, (vk_device, vk_handle, size_t *, void *))                  \
    X(CreateComputePipelines, vk_result,                                                          \
      (vk_device, vk_handle, uint32_t, const vk_compute_pipeline_create_info *, const void *,     \
       vk_handle *))                                                                              \
    X(DestroyPipeline, void, (vk_device, vk_handle, const void *))                                \
    X(CreatePipelineLayout, vk_result,                                                            \
      (vk_device, const vk_pipeline_layout_create_info *, const void *, vk_handle *))             \
    X(DestroyPipelineLayout, void, (vk_device, vk_handle, const void *))                          \
    X(CreateDescriptorSetLayout, vk_result,                                                       \
      (vk_device, const vk_set_layout_create_info *, const void *, vk_handle *))                  \
    X(DestroyDescriptorSetLayout, void, (vk_device, vk_handle, const void *))                     \
    X(CreateDescriptorPool, vk_result,                                                            \
      (vk_device, const vk_descriptor_pool_create_info *, const void *, vk_handle *))             \
    X(DestroyDescriptorPool, void, (vk_device, vk_handle, const void *))                          \
    X(AllocateDescriptorSets, vk_result, (vk_device, const vk_set_allocate_info *, vk_handle *))  \
    X(UpdateDescriptorSets, void,                                                                 \
      (vk_device, uint32_t, const vk_write_set *, uint32_t, const void *))                        \
    X(CreateCommandPool, vk_result,                                                               \
      (vk_device, const vk_command_pool_create_info *, const void *, vk_handle *))                \
    X(DestroyCommandPool, void, (vk_device, vk_handle, const void *))                             \
    X(AllocateCommandBuffers, vk_result,                                                          \
      (vk_device, const vk_commands_allocate_info *, vk_commands *))                              \
    X(BeginCommandBuffer, vk_result, (vk_commands, const vk_begin_info *))                        \
    X(EndCommandBuffer, vk_result, (vk_commands))                                                 \
    X(CmdBindPipeline, void, (vk_commands, uint32_t, vk_handle))                                  \
    X(CmdBindDescriptorSets, void,                                                                \
      (vk_commands, uint32_t, vk_handle, uint32_t, uint32_t, const vk_handle *, uint32_t,         \
       const uint32_t *))                                                                         \
    X(CmdDispatch, void, (vk_commands, uint32_t, uint32_t, uint32_t))                             \
    X(CmdPipelineBarrier, void,                                                                   \
      (vk_commands, uint32_t, uint32_t, uint32_t, uint32_t, const vk_memory_barrier *, uint32_t,  \
       const void *, uint32_t, const void *))                                                     \
    X(CmdUpdateBuffer, void, (vk_commands, vk_handle, uint64_t, uint64_t, const void *))          \
    X(CmdCopyBuffer, void, (vk_commands, vk_handle, vk_handle, uint32_t, const vk_buffer_copy *)) \
    X(CmdResetQueryPool, void, (vk_commands, vk_handle, uint32_t, uint32_t))                      \
    X(CmdWriteTimestamp, void, (vk_commands, uint32_t, vk_handle, uint32_t))

/* Of extensions; NULL where they are missing. */
#define VK_MATRIX_FUNCTIONS(X)                                    \
    X(GetPhysicalDeviceCooperativeMatrixPropertiesKHR, vk_result, \
      (vk_physical, uint32_t *, vk_matrix_properties *))

/* Of 1.2, or with KHR at the end of the name; may be missing. */
#define VK_OPTIONAL_FUNCTIONS(X) \
    X(GetSemaphoreCounterValue, vk_result, (vk_device, vk_handle, uint64_t *))

/* All functions, each under its Vulkan name without the prefix. */
typedef struct vk_api {
#define VK_MEMBER(name, result, parameters) result(*name) parameters;
    VK_GLOBAL_FUNCTIONS(VK_MEMBER)
    VK_INSTANCE_FUNCTIONS(VK_MEMBER)
    VK_DEVICE_FUNCTIONS(VK_MEMBER) VK_OPTIONAL_FUNCTIONS(VK_MEMBER) VK_MATRIX_FUNCTIONS(VK_MEMBER)
#undef VK_MEMBER
} vk_api;

#endif
