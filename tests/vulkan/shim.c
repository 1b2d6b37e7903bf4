/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stands in for libvulkan.so.1: forwards to the real one (TESSERA_TEST_VULKAN names it), lets the
 * call of a given number fail, and counts objects that live. Only what Tessera uses is intercepted.
 */
#include "shim.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api.h"
#include "inflate.h"
#include "shapes.h"
#include "spirv/forward_f16.h"

enum kind {
    INSTANCE,
    DEVICE,
    MEMORY,
    BUFFER,
    FENCE,
    QUERIES,
    SHADER,
    CACHE,
    PIPELINE,
    LAYOUT,
    SET_LAYOUT,
    DESCRIPTORS,
    COMMANDS,
    KINDS
};
static const char *const kind_names[KINDS] = {
    "instances",   "devices",          "memory objects",  "buffers",   "fences",
    "query pools", "shaders",          "pipeline caches", "pipelines", "pipeline layouts",
    "set layouts", "descriptor pools", "command pools"};

static vk_api real;
static vk_get_instance_proc real_get;
static atomic_long calls, failures, live[KINDS];
static long fail_at;
static int sticky, code;
static char failed_name[64];
static int kind;                        /* of device to pretend; 0: the truth */
static uint32_t width;                  /* most workgroups in a row of the grid; 0: the truth */
static uint32_t range;                  /* bytes of a binding; 0: the truth */
static uint32_t buffers;                /* storage buffers of a stage; 0: the truth */
static uint32_t vendor;                 /* of the device to pretend; 0: the truth */
static uint32_t driver;                 /* of the device to pretend; 0: the truth */
static int wide_only;                   /* buffers have no elements of 16 bits */
static uint32_t shared;                 /* bytes of workgroup memory; 0: the truth */
static uint32_t threads;                /* of a workgroup; 0: the truth */
static vk_matrix_properties matrices;   /* the only size to pretend; m = 0: the truth */
static char without[64];                /* ... but this extension or feature is missing */
static int stand_in = SHIM_NO_STAND_IN; /* what the kernel on matrices is */
static vk_result refusal = TVK_ERROR_UNKNOWN; /* what gives the code of one that does not compile */
static vk_handle stand_in_shader;             /* the latest one, and its pipelines */
static vk_handle stand_in_pipelines[8];
static atomic_long stand_in_runs;     /* dispatches of these */
static atomic_long modules;           /* of the kernel on matrices */
static int (*may_submit)(void);       /* NULL: nobody is asked */
static atomic_long unwanted;          /* submissions for which it said no */
static _Thread_local vk_handle bound; /* the pipeline of what is recorded now */
static long dispatches;
static long submits, rows; /* submissions; dispatches of several rows of workgroups */
static long signalled;     /* submissions with a fence that is signalled already */
static size_t cache_bytes; /* that the last pipeline cache began with */

void shim_pretend(int device_kind, unsigned most_groups) {
    kind = device_kind;
    width = most_groups;
}
void shim_pretend_buffers(unsigned most) { buffers = most; }
void shim_pretend_range(unsigned bytes) { range = bytes; }
long shim_dispatches(void) { return dispatches; }
void shim_pretend_wide_only(int is) { wide_only = is; }
void shim_pretend_vendor(unsigned number) { vendor = number; }
void shim_pretend_driver(unsigned number) { driver = number; }
void shim_pretend_shared(unsigned bytes) { shared = bytes; }
void shim_pretend_threads(unsigned most) { threads = most; }
void shim_pretend_matrices(unsigned m, unsigned n, unsigned k, unsigned result, const char *lacks) {
    matrices = (vk_matrix_properties){.type = TVK_TYPE_MATRIX_PROPERTIES};
    matrices.m = m, matrices.n = n, matrices.k = k;
    matrices.a = matrices.b = TVK_COMPONENT_FLOAT16;
    matrices.c = matrices.result = result;
    matrices.scope = TVK_SCOPE_SUBGROUP;
    snprintf(without, sizeof without, "%s", lacks ? lacks : "");
}
void shim_pretend_kernel(int which) { stand_in = which; }
void shim_pretend_refusal(int result) { refusal = result ? result : TVK_ERROR_UNKNOWN; }
long shim_kernel_runs(void) { return atomic_load(&stand_in_runs); }
long shim_kernel_modules(void) { return atomic_load(&modules); }
void shim_watch(int (*may)(void)) { may_submit = may; }
long shim_unwanted(void) { return atomic_load(&unwanted); }
long shim_submits(void) { return submits; }
long shim_rows(void) { return rows; }
long shim_signalled(void) { return signalled; }
size_t shim_cache_bytes(void) { return cache_bytes; }

void shim_reset(long at, int stays, int result) {
    fail_at = at;
    sticky = stays;
    code = result;
    failed_name[0] = '\0';
    atomic_store(&calls, 0);
    atomic_store(&failures, 0);
}

long shim_calls(void) { return atomic_load(&calls); }
long shim_failures(void) { return atomic_load(&failures); }
const char *shim_failed(void) { return failed_name; }

long shim_live(char *text, size_t size) {
    long sum = 0;
    text[0] = '\0';
    for (int n = 0; n < KINDS; n++) {
        const long count = atomic_load(&live[n]);
        const size_t used = strlen(text);
        if (count)
            snprintf(text + used, size - used, "%s%ld %s", used ? ", " : "", count, kind_names[n]);
        sum += labs(count);
    }
    return sum;
}

static vk_device device_now;
static vk_result (*real_wait_idle)(vk_device device);

static int fails(const char *name) {
    const long call = atomic_fetch_add(&calls, 1) + 1;
    if (!fail_at || call < fail_at || (call > fail_at && !sticky)) return 0;
    if (atomic_fetch_add(&failures, 1) == 0)
        snprintf(failed_name, sizeof failed_name, "vk%s", name);
    /* nothing runs any more on a lost device */
    if (code == TVK_ERROR_DEVICE_LOST && device_now) real_wait_idle(device_now);
    return 1;
}

#define FORWARD(name, parameters, arguments) \
    static vk_result shim_##name parameters { return fails(#name) ? code : real.name arguments; }
/* Nobody may rely on what a failing call leaves in its output, so that is no handle. */
#define CREATE(name, kind, parameters, arguments)                           \
    static vk_result shim_##name parameters {                               \
        const vk_result result = fails(#name) ? code : real.name arguments; \
        if (result == TVK_SUCCESS)                                          \
            atomic_fetch_add(&live[kind], 1);                               \
        else                                                                \
            memset(out, 0xff, sizeof *out);                                 \
        return result;                                                      \
    }
#define DESTROY(name, kind)                                                              \
    static void shim_##name(vk_device device, vk_handle object, const void *allocator) { \
        if (object) atomic_fetch_sub(&live[kind], 1);                                    \
        real.name(device, object, allocator);                                            \
    }

FORWARD(EnumerateInstanceVersion, (uint32_t * version), (version))
CREATE(CreateInstance, INSTANCE,
       (const vk_instance_create_info *info, const void *allocator, vk_instance *out),
       (info, allocator, out))
FORWARD(EnumeratePhysicalDevices, (vk_instance instance, uint32_t *count, vk_physical *out),
        (instance, count, out))
/* What comes with matrices, after what the device has. */
static vk_result shim_EnumerateDeviceExtensionProperties(vk_physical physical, const char *layer,
                                                         uint32_t *count,
                                                         vk_extension_properties *out) {
    static const char *const names[] = {"VK_KHR_cooperative_matrix", "VK_KHR_vulkan_memory_model",
                                        "VK_KHR_shader_float16_int8",
                                        "VK_EXT_subgroup_size_control"};
    enum { NAMES = sizeof names / sizeof *names };
    if (fails("EnumerateDeviceExtensionProperties")) return code;
    uint32_t own = *count, used = 0;
    const vk_result result =
        real.EnumerateDeviceExtensionProperties(physical, layer, &own, matrices.m ? NULL : out);
    if (!matrices.m || result != TVK_SUCCESS) {
        *count = own;
        return result;
    }
    /* Nothing else that it has is of interest. */
    for (int n = 0; n < NAMES && out; n++)
        if (strcmp(names[n], without) != 0)
            snprintf(out[used++].name, sizeof out->name, "%s", names[n]);
    *count = out ? used : NAMES;
    return TVK_SUCCESS;
}
static vk_result shim_GetPhysicalDeviceCooperativeMatrixPropertiesKHR(vk_physical physical,
                                                                      uint32_t *count,
                                                                      vk_matrix_properties *out) {
    if (!matrices.m)
        return real.GetPhysicalDeviceCooperativeMatrixPropertiesKHR(physical, count, out);
    *count = 1;
    *out = matrices;
    return TVK_SUCCESS;
}
static vk_result real_create_device(vk_physical physical, const vk_device_create_info *info,
                                    const void *allocator, vk_device *out) {
    if (!matrices.m) return real.CreateDevice(physical, info, allocator, out);
    vk_device_create_info own = *info;
    vk_16bit_features narrow = *(const vk_16bit_features *)info->next;
    narrow.next = NULL;
    own.next = &narrow;
    own.extension_count = 0;
    return real.CreateDevice(physical, &own, allocator, out);
}
static vk_result shim_CreateDevice(vk_physical physical, const vk_device_create_info *info,
                                   const void *allocator, vk_device *out) {
    const vk_result result =
        fails("CreateDevice") ? code : real_create_device(physical, info, allocator, out);
    if (result != TVK_SUCCESS) {
        memset(out, 0xff, sizeof *out);
        return result;
    }
    atomic_fetch_add(&live[DEVICE], 1);
    device_now = *out;
    real_wait_idle =
        (vk_result(*)(vk_device))real.GetDeviceProcAddr(device_now, "vkDeviceWaitIdle");
    return result;
}
static vk_result shim_QueueSubmit(vk_queue queue, uint32_t count, const vk_submit_info *infos,
                                  vk_handle fence) {
    submits += count;
    if (may_submit && !may_submit()) atomic_fetch_add(&unwanted, 1);
    /* A fence has to be reset before it is given to the queue again. */
    if (fence && real.GetFenceStatus(device_now, fence) == TVK_SUCCESS) signalled++;
    return fails("QueueSubmit") ? code : real.QueueSubmit(queue, count, infos, fence);
}
static int is_stand_in(vk_handle pipeline) {
    for (size_t n = 0; n < sizeof stand_in_pipelines / sizeof *stand_in_pipelines; n++)
        if (pipeline && stand_in_pipelines[n] == pipeline) return 1;
    return 0;
}
static void shim_CmdBindPipeline(vk_commands commands, uint32_t point, vk_handle pipeline) {
    bound = pipeline;
    real.CmdBindPipeline(commands, point, pipeline);
}
static void shim_CmdDispatch(vk_commands commands, uint32_t x, uint32_t y, uint32_t z) {
    rows += y > 1;
    dispatches++;
    if (is_stand_in(bound)) {
        atomic_fetch_add(&stand_in_runs, 1);
        if (stand_in == SHIM_DOES_NOTHING) return;
        if (stand_in == SHIM_LEAVES_JOBS_OUT) x--;
    }
    real.CmdDispatch(commands, x, y, z);
}
static void shim_GetPhysicalDeviceProperties(vk_physical physical, vk_properties *out) {
    real.GetPhysicalDeviceProperties(physical, out);
    if (kind) out->kind = (uint32_t)kind;
    if (vendor) out->vendor = vendor;
    if (buffers) out->limits.max_stage_storage_buffers = buffers;
    if (range) out->limits.max_storage_range = range;
    if (width) out->limits.max_group_count[0] = width;
    if (shared) out->limits.max_shared_bytes = shared;
    if (threads) out->limits.max_group_threads = out->limits.max_group_size[0] = threads;
}
static void shim_GetPhysicalDeviceProperties2(vk_physical physical, vk_properties_2 *out) {
    real.GetPhysicalDeviceProperties2(physical, out);
    vk_subgroup_size_properties *sizes = out->next;
    if (matrices.m && sizes && sizes->type == TVK_TYPE_SUBGROUP_SIZE_PROPERTIES) {
        sizes->least = 8;
        sizes->stages = TVK_SHADER_STAGE_COMPUTE;
    }
    vk_driver_properties *properties = out->next;
    if (driver && properties && properties->type == TVK_TYPE_DRIVER_PROPERTIES)
        properties->id = driver;
}
static vk_bool lacks(const char *name) { return strcmp(without, name) == 0; }
static void shim_GetPhysicalDeviceFeatures2(vk_physical physical, vk_features_2 *out) {
    real.GetPhysicalDeviceFeatures2(physical, out);
    vk_16bit_features *narrow = out->next;
    if (wide_only && narrow && narrow->type == TVK_TYPE_16BIT_STORAGE_FEATURES) narrow->storage = 0;
    for (vk_features_2 *each = out->next; each; each = each->next) {
        void *one = each;
        if (each->type == TVK_TYPE_TIMELINE_SEMAPHORE_FEATURES && lacks("timelineSemaphore"))
            ((vk_timeline_features *)one)->timeline = 0;
        if (!matrices.m) continue;
        if (each->type == TVK_TYPE_MATRIX_FEATURES)
            ((vk_matrix_features *)one)->matrix = !lacks("cooperativeMatrix");
        if (each->type == TVK_TYPE_MEMORY_MODEL_FEATURES)
            ((vk_memory_model_features *)one)->memory_model = !lacks("vulkanMemoryModel");
        if (each->type == TVK_TYPE_FLOAT16_INT8_FEATURES)
            ((vk_float16_features *)one)->float16 = !lacks("shaderFloat16");
        if (each->type == TVK_TYPE_SUBGROUP_SIZE_FEATURES) {
            ((vk_subgroup_size_features *)one)->size_control = !lacks("subgroupSizeControl");
            ((vk_subgroup_size_features *)one)->full_subgroups = !lacks("computeFullSubgroups");
        }
    }
}
CREATE(AllocateMemory, MEMORY,
       (vk_device device, const vk_memory_allocate_info *info, const void *allocator,
        vk_handle *out),
       (device, info, allocator, out))
FORWARD(MapMemory,
        (vk_device device, vk_handle memory, uint64_t offset, uint64_t size, uint32_t flags,
         void **out),
        (device, memory, offset, size, flags, out))
FORWARD(BindBufferMemory, (vk_device device, vk_handle buffer, vk_handle memory, uint64_t offset),
        (device, buffer, memory, offset))
CREATE(CreateBuffer, BUFFER,
       (vk_device device, const vk_buffer_create_info *info, const void *allocator, vk_handle *out),
       (device, info, allocator, out))
CREATE(CreateFence, FENCE,
       (vk_device device, const vk_fence_create_info *info, const void *allocator, vk_handle *out),
       (device, info, allocator, out))
FORWARD(ResetFences, (vk_device device, uint32_t count, const vk_handle *fences),
        (device, count, fences))
/* How often somebody asks before a fence is signalled is chance, and no call that counts. */
static vk_result shim_GetFenceStatus(vk_device device, vk_handle fence) {
    const vk_result result = real.GetFenceStatus(device, fence);
    return result != TVK_NOT_READY && fails("GetFenceStatus") ? code : result;
}
FORWARD(WaitForFences,
        (vk_device device, uint32_t count, const vk_handle *fences, vk_bool all, uint64_t timeout),
        (device, count, fences, all, timeout))
CREATE(CreateQueryPool, QUERIES,
       (vk_device device, const vk_query_pool_create_info *info, const void *allocator,
        vk_handle *out),
       (device, info, allocator, out))
FORWARD(GetQueryPoolResults,
        (vk_device device, vk_handle pool, uint32_t first, uint32_t count, size_t size, void *data,
         uint64_t stride, uint32_t flags),
        (device, pool, first, count, size, data, stride, flags))
/* The words of a module that needs cooperative matrices hold OpCapability of them. */
static int needs_matrices(const vk_shader_module_create_info *info) {
    enum { OP_CAPABILITY = 2 << 16 | 17, COOPERATIVE_MATRIX = 6022, HEADER = 5 };
    for (size_t n = HEADER; n + 1 < info->bytes / 4 && info->code[n] == OP_CAPABILITY; n += 2)
        if (info->code[n + 1] == COOPERATIVE_MATRIX) return 1;
    return 0;
}
/* The portable kernel for float16. */
static vk_result make_stand_in(vk_device device, const void *allocator, vk_handle *out) {
    const size_t bytes = tess_inflated_size(tess_vk_forward_f16, sizeof tess_vk_forward_f16);
    uint32_t *words = malloc(bytes);
    vk_result result = TVK_ERROR_OUT_OF_HOST_MEMORY;
    const vk_shader_module_create_info info = {
        .type = TVK_TYPE_SHADER_MODULE_CREATE_INFO, .bytes = bytes, .code = words};
    if (words && tess_inflate(tess_vk_forward_f16, sizeof tess_vk_forward_f16,
                              (unsigned char *)words, bytes) == 0)
        result = real.CreateShaderModule(device, &info, allocator, out);
    free(words);
    if (result == TVK_SUCCESS) stand_in_shader = *out;
    return result;
}
static vk_result shim_CreateShaderModule(vk_device device, const vk_shader_module_create_info *info,
                                         const void *allocator, vk_handle *out) {
    const int matrix = matrices.m && needs_matrices(info);
    vk_result result = refusal;
    if (matrix) atomic_fetch_add(&modules, 1);
    if (fails("CreateShaderModule"))
        result = code;
    else if (matrix && stand_in != SHIM_NO_STAND_IN)
        result = make_stand_in(device, allocator, out);
    else if (!matrix)
        result = real.CreateShaderModule(device, info, allocator, out);
    if (result == TVK_SUCCESS)
        atomic_fetch_add(&live[SHADER], 1);
    else
        memset(out, 0xff, sizeof *out);
    return result;
}
static vk_result shim_CreatePipelineCache(vk_device device,
                                          const vk_pipeline_cache_create_info *info,
                                          const void *allocator, vk_handle *out) {
    const vk_result result = fails("CreatePipelineCache")
                                 ? code
                                 : real.CreatePipelineCache(device, info, allocator, out);
    if (result == TVK_SUCCESS)
        atomic_fetch_add(&live[CACHE], 1);
    else
        memset(out, 0xff, sizeof *out);
    cache_bytes = info->bytes;
    return result;
}
FORWARD(GetPipelineCacheData, (vk_device device, vk_handle cache, size_t *size, void *data),
        (device, cache, size, data))
/* Kernels for a head_dim of 128 and products of 16 x 16 have tiles of 64 rows, as the portable one
 * has that stands in for them. */
static vk_result create_pipeline(vk_device device, vk_handle cache,
                                 const vk_compute_pipeline_create_info *info, const void *allocator,
                                 vk_handle *out) {
    static const uint32_t words[] = {128, TESS_ROWS_128, TESS_KEYS_128, TESS_THREADS_128, 1};
    enum { WORDS = sizeof words / sizeof *words };
    vk_specialization_entry entries[WORDS];
    for (uint32_t n = 0; n < WORDS; n++)
        entries[n] = (vk_specialization_entry){n, 4 * n, sizeof *words};
    const vk_specialization_info constants = {WORDS, entries, sizeof words, words};
    vk_compute_pipeline_create_info own = *info;
    if (!stand_in_shader || info->stage.module != stand_in_shader)
        return real.CreateComputePipelines(device, cache, 1, info, allocator, out);
    own.stage.next = NULL;
    own.stage.flags = 0;
    own.stage.specialization = &constants;
    const vk_result result = real.CreateComputePipelines(device, cache, 1, &own, allocator, out);
    int n = 0;
    while (stand_in_pipelines[n]) n++;
    if (result == TVK_SUCCESS) stand_in_pipelines[n] = *out;
    return result;
}
static vk_result shim_CreateComputePipelines(vk_device device, vk_handle cache, uint32_t count,
                                             const vk_compute_pipeline_create_info *infos,
                                             const void *allocator, vk_handle *out) {
    vk_result result = fails("CreateComputePipelines") ? code : TVK_SUCCESS;
    if (result == TVK_SUCCESS)
        result = count == 1 ? create_pipeline(device, cache, infos, allocator, out)
                            : TVK_ERROR_UNKNOWN; /* nobody makes several at once */
    if (result == TVK_SUCCESS)
        atomic_fetch_add(&live[PIPELINE], 1);
    else
        memset(out, 0xff, sizeof *out);
    return result;
}
CREATE(CreatePipelineLayout, LAYOUT,
       (vk_device device, const vk_pipeline_layout_create_info *info, const void *allocator,
        vk_handle *out),
       (device, info, allocator, out))
CREATE(CreateDescriptorSetLayout, SET_LAYOUT,
       (vk_device device, const vk_set_layout_create_info *info, const void *allocator,
        vk_handle *out),
       (device, info, allocator, out))
CREATE(CreateDescriptorPool, DESCRIPTORS,
       (vk_device device, const vk_descriptor_pool_create_info *info, const void *allocator,
        vk_handle *out),
       (device, info, allocator, out))
FORWARD(AllocateDescriptorSets,
        (vk_device device, const vk_set_allocate_info *info, vk_handle *out), (device, info, out))
CREATE(CreateCommandPool, COMMANDS,
       (vk_device device, const vk_command_pool_create_info *info, const void *allocator,
        vk_handle *out),
       (device, info, allocator, out))
FORWARD(AllocateCommandBuffers,
        (vk_device device, const vk_commands_allocate_info *info, vk_commands *out),
        (device, info, out))
FORWARD(BeginCommandBuffer, (vk_commands commands, const vk_begin_info *info), (commands, info))
FORWARD(EndCommandBuffer, (vk_commands commands), (commands))

DESTROY(FreeMemory, MEMORY)
DESTROY(DestroyBuffer, BUFFER)
DESTROY(DestroyFence, FENCE)
DESTROY(DestroyQueryPool, QUERIES)
static void shim_DestroyShaderModule(vk_device device, vk_handle object, const void *allocator) {
    if (object == stand_in_shader) stand_in_shader = 0; /* the next one may have its handle */
    if (object) atomic_fetch_sub(&live[SHADER], 1);
    real.DestroyShaderModule(device, object, allocator);
}
DESTROY(DestroyPipelineCache, CACHE)
static void shim_DestroyPipeline(vk_device device, vk_handle object, const void *allocator) {
    for (size_t n = 0; n < sizeof stand_in_pipelines / sizeof *stand_in_pipelines; n++)
        if (stand_in_pipelines[n] == object) stand_in_pipelines[n] = 0;
    if (object) atomic_fetch_sub(&live[PIPELINE], 1);
    real.DestroyPipeline(device, object, allocator);
}
DESTROY(DestroyPipelineLayout, LAYOUT)
DESTROY(DestroyDescriptorSetLayout, SET_LAYOUT)
DESTROY(DestroyDescriptorPool, DESCRIPTORS)
DESTROY(DestroyCommandPool, COMMANDS)

static void shim_DestroyDevice(vk_device device, const void *allocator) {
    atomic_fetch_sub(&live[DEVICE], 1);
    device_now = NULL;
    real.DestroyDevice(device, allocator);
}

static void shim_DestroyInstance(vk_instance instance, const void *allocator) {
    atomic_fetch_sub(&live[INSTANCE], 1);
    real.DestroyInstance(instance, allocator);
}

static vk_function shim_GetDeviceProcAddr(vk_device device, const char *name);

/* The intercepting function for a real one, which is noted. */
static vk_function intercept(const char *name, vk_function found) {
    static const char of_matrices[] = "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR";
    if (!found && !(matrices.m && strcmp(name, of_matrices) == 0)) return NULL;
#define TAKE(function)                                      \
    if (strcmp(name, "vk" #function) == 0) {                \
        memcpy(&real.function, &found, sizeof found);       \
        vk_function own;                                    \
        void *address = (void *)(uintptr_t)shim_##function; \
        memcpy(&own, &address, sizeof own);                 \
        return own;                                         \
    }
    TAKE(EnumerateInstanceVersion)
    TAKE(CreateInstance)
    TAKE(DestroyInstance)
    TAKE(EnumeratePhysicalDevices)
    TAKE(EnumerateDeviceExtensionProperties)
    TAKE(CreateDevice)
    TAKE(GetDeviceProcAddr)
    TAKE(DestroyDevice)
    TAKE(QueueSubmit)
    TAKE(CmdBindPipeline)
    TAKE(CmdDispatch)
    TAKE(GetPhysicalDeviceProperties)
    TAKE(GetPhysicalDeviceProperties2)
    TAKE(GetPhysicalDeviceCooperativeMatrixPropertiesKHR)
    TAKE(GetPhysicalDeviceFeatures2)
    TAKE(AllocateMemory)
    TAKE(FreeMemory)
    TAKE(MapMemory)
    TAKE(BindBufferMemory)
    TAKE(CreateBuffer)
    TAKE(DestroyBuffer)
    TAKE(CreateFence)
    TAKE(DestroyFence)
    TAKE(ResetFences)
    TAKE(GetFenceStatus)
    TAKE(WaitForFences)
    TAKE(CreateQueryPool)
    TAKE(DestroyQueryPool)
    TAKE(GetQueryPoolResults)
    TAKE(CreateShaderModule)
    TAKE(DestroyShaderModule)
    TAKE(CreatePipelineCache)
    TAKE(DestroyPipelineCache)
    TAKE(GetPipelineCacheData)
    TAKE(CreateComputePipelines)
    TAKE(DestroyPipeline)
    TAKE(CreatePipelineLayout)
    TAKE(DestroyPipelineLayout)
    TAKE(CreateDescriptorSetLayout)
    TAKE(DestroyDescriptorSetLayout)
    TAKE(CreateDescriptorPool)
    TAKE(DestroyDescriptorPool)
    TAKE(AllocateDescriptorSets)
    TAKE(CreateCommandPool)
    TAKE(DestroyCommandPool)
    TAKE(AllocateCommandBuffers)
    TAKE(BeginCommandBuffer)
    TAKE(EndCommandBuffer)
    return found;
}

static vk_function shim_GetDeviceProcAddr(vk_device device, const char *name) {
    return intercept(name, real.GetDeviceProcAddr(device, name));
}

/* Programs that know nothing of this library have limits lowered by their environment. */
static void read_limits(void) {
    static const struct {
        const char *name;
        uint32_t *limit;
    } limits[] = {{"buffers=", &buffers}, {"range=", &range},   {"shared=", &shared},
                  {"threads=", &threads}, {"vendor=", &vendor}, {"driver=", &driver}};
    const char *text = getenv("TESSERA_TEST_VULKAN_LIMITS");
    if (!text) return;
    if (strstr(text, "16bit=0")) wide_only = 1;
    for (size_t n = 0; n < sizeof limits / sizeof *limits; n++) {
        const char *at = strstr(text, limits[n].name);
        if (at) *limits[n].limit = (uint32_t)strtoul(at + strlen(limits[n].name), NULL, 10);
    }
}

/* An instance that nobody destroys keeps the drivers loaded. Otherwise every life cycle loads all
 * of them again, with their compilers. */
static void keep_drivers(void) {
    const vk_instance_create_info info = {.type = TVK_TYPE_INSTANCE_CREATE_INFO};
    vk_result (*create)(const vk_instance_create_info *, const void *, vk_instance *);
    vk_instance kept;
    const vk_function found = real_get(NULL, "vkCreateInstance");
    if (!found) return;
    memcpy(&create, &found, sizeof create);
    create(&info, NULL, &kept);
}

SHIM_API vk_function vkGetInstanceProcAddr(vk_instance instance, const char *name) {
    if (!real_get) {
        const char *path = getenv("TESSERA_TEST_VULKAN");
        void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
        void *symbol = library ? dlsym(library, "vkGetInstanceProcAddr") : NULL;
        if (!symbol) return NULL;
        memcpy(&real_get, &symbol, sizeof symbol);
        read_limits();
        keep_drivers();
    }
    return intercept(name, real_get(instance, name));
}
