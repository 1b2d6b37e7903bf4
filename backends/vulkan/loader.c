/* SPDX-License-Identifier: Apache-2.0 */
/* Vulkan's loader, opened at run time, and the devices that it knows. Functions come from
 * vkGetInstanceProcAddr alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/bindings.h"
#include "library.h"
#include "vk.h"

#define VERSION(major, minor) ((uint32_t)(major) << 22 | (uint32_t)(minor) << 12)

static unsigned major_of(uint32_t version) { return version >> 22 & 127; }
static unsigned minor_of(uint32_t version) { return version >> 12 & 1023; }
static unsigned patch_of(uint32_t version) { return version & 4095; }

/* ------------------------------------------------------------------ library and instance */

vk_get_instance_proc tess_vk_library(char *why, size_t size) {
    static const char *const libraries[] = {"libvulkan.so.1", "libvulkan.so", NULL},
                             *const symbols[] = {"vkGetInstanceProcAddr", NULL};
    void (*found)(void) = NULL;
    void *library = tess_library_open(libraries, why, size);
    if (!library || !tess_library_symbols(library, symbols, &found, why, size)) return NULL;
    return (vk_get_instance_proc)found;
}

tess_status tess_vk_instance_functions(const tess_host *host, vk_get_instance_proc get,
                                       vk_instance instance, vk_api *vk) {
    const char *missing = NULL;
#define LOAD(name, result, parameters)                          \
    vk->name = (result(*) parameters)get(instance, "vk" #name); \
    if (!vk->name && !missing) missing = "vk" #name;
    VK_INSTANCE_FUNCTIONS(LOAD)
#undef LOAD
#define LOAD(name, result, parameters) vk->name = (result(*) parameters)get(instance, "vk" #name);
    VK_MATRIX_FUNCTIONS(LOAD)
#undef LOAD
    if (missing)
        return host->fail(host, TESS_ERROR_UNAVAILABLE,
                          "vkGetInstanceProcAddr: the instance has no %s; Vulkan 1.1 is needed",
                          missing);
    return TESS_OK;
}

tess_status tess_vk_connect(const tess_host *host, vk_api *vk, vk_instance *instance) {
    char why[400];
    uint32_t version = VERSION(1, 0);
    const vk_get_instance_proc get = tess_vk_library(why, sizeof why);
    if (!get) return host->fail(host, TESS_ERROR_UNAVAILABLE, "dlopen: %s", why);
    vk->CreateInstance = (vk_result(*)(const vk_instance_create_info *, const void *,
                                       vk_instance *))get(NULL, "vkCreateInstance");
    vk->EnumerateInstanceVersion =
        (vk_result(*)(uint32_t *))get(NULL, "vkEnumerateInstanceVersion");
    if (!vk->CreateInstance)
        return host->fail(host, TESS_ERROR_UNAVAILABLE,
                          "vkGetInstanceProcAddr: the library has no vkCreateInstance");
    vk_result result =
        vk->EnumerateInstanceVersion ? vk->EnumerateInstanceVersion(&version) : TVK_SUCCESS;
    if (result != TVK_SUCCESS)
        return tess_vk_fail(host, result, "vkEnumerateInstanceVersion", "no version");
    if (version < VERSION(1, 1))
        return host->fail(
            host, TESS_ERROR_UNAVAILABLE,
            "vkEnumerateInstanceVersion: the loader has Vulkan %u.%u, and 1.1 is needed",
            major_of(version), minor_of(version));
    const vk_application_info application = {
        .type = TVK_TYPE_APPLICATION_INFO, .engine = "tessera", .api_version = VERSION(1, 1)};
    const vk_instance_create_info create = {.type = TVK_TYPE_INSTANCE_CREATE_INFO,
                                            .application = &application};
    result = vk->CreateInstance(&create, NULL, instance);
    if (result == TVK_ERROR_INCOMPATIBLE_DRIVER)
        return host->fail(
            host, TESS_ERROR_UNAVAILABLE,
            "vkCreateInstance: libvulkan finds no driver (VK_ERROR_INCOMPATIBLE_DRIVER, %d)",
            result);
    if (result != TVK_SUCCESS) return tess_vk_fail(host, result, "vkCreateInstance", "no instance");
    const tess_status status = tess_vk_instance_functions(host, get, *instance, vk);
    if (status != TESS_OK && vk->DestroyInstance) vk->DestroyInstance(*instance, NULL);
    return status;
}

/* ------------------------------------------------------------------ devices */

const char *tess_vk_inspect(const vk_api *vk, vk_physical physical, tess_vk_found *found) {
    vk_queue_family families[32];
    uint32_t count = sizeof families / sizeof *families;
    memset(found, 0, sizeof *found);
    found->physical = physical;
    vk->GetPhysicalDeviceProperties(physical, &found->properties);
    if (found->properties.api_version < VERSION(1, 1)) return "its driver is older than Vulkan 1.1";
    const uint32_t buffers = found->properties.limits.max_stage_storage_buffers;
    if (buffers < VK_LEAST_BUFFERS) {
        snprintf(found->refusal, sizeof found->refusal,
                 "its maxPerStageDescriptorStorageBuffers is %u, and %d are needed", buffers,
                 VK_LEAST_BUFFERS);
        return found->refusal;
    }
    vk->GetPhysicalDeviceQueueFamilyProperties(physical, &count, families);
    int best = -1;
    for (uint32_t n = 0; n < count; n++) {
        if (!(families[n].flags & TVK_QUEUE_COMPUTE) || families[n].count == 0) continue;
        if (best < 0 || ((families[best].flags & TVK_QUEUE_GRAPHICS) &&
                         !(families[n].flags & TVK_QUEUE_GRAPHICS)))
            best = (int)n;
    }
    if (best < 0) return "it has no queue that computes";
    found->family = (uint32_t)best;
    found->timestamp_bits = families[best].timestamp_bits;
    vk_16bit_features narrow = {.type = TVK_TYPE_16BIT_STORAGE_FEATURES};
    vk_features_2 features = {.type = TVK_TYPE_FEATURES_2, .next = &narrow};
    vk->GetPhysicalDeviceFeatures2(physical, &features);
    found->storage_16bit = narrow.storage;
    return NULL;
}

tess_status tess_vk_find(const tess_host *host, const vk_api *vk, vk_instance instance,
                         uint32_t index, tess_vk_found *found) {
    vk_physical all[VK_MOST_DEVICES];
    uint32_t count = VK_MOST_DEVICES, usable = 0;
    char refused[400] = "";
    const vk_result result = vk->EnumeratePhysicalDevices(instance, &count, all);
    if (result != TVK_SUCCESS && result != TVK_INCOMPLETE) {
        if (result == TVK_ERROR_INITIALIZATION_FAILED)
            return host->fail(
                host, TESS_ERROR_UNAVAILABLE,
                "vkEnumeratePhysicalDevices: no driver starts (VK_ERROR_INITIALIZATION_FAILED, %d)",
                result);
        return tess_vk_fail(host, result, "vkEnumeratePhysicalDevices", "no devices");
    }
    for (uint32_t n = 0; n < count; n++) {
        const char *why = tess_vk_inspect(vk, all[n], found);
        if (!why && usable++ == index) return TESS_OK;
        if (!why) continue;
        const size_t used = strlen(refused);
        snprintf(refused + used, sizeof refused - used, "; %.100s: %s", found->properties.name,
                 why);
    }
    if (usable)
        return host->fail(host, TESS_ERROR_UNAVAILABLE,
                          "vulkan: there are %u devices, and none with index %u", usable, index);
    return host->fail(host, TESS_ERROR_UNAVAILABLE,
                      "vkEnumeratePhysicalDevices: no device among %u%s", count, refused);
}

/* ------------------------------------------------------------------ properties of a device */

int tess_vk_has_extension(const tess_host *host, const vk_api *vk, vk_physical physical,
                          const char *name) {
    uint32_t count = 0;
    int found = 0;
    if (vk->EnumerateDeviceExtensionProperties(physical, NULL, &count, NULL) != TVK_SUCCESS ||
        count == 0)
        return 0;
    const size_t bytes = count * sizeof(vk_extension_properties);
    vk_extension_properties *all = host->alloc(host, bytes, 64);
    if (!all) return 0;
    if (vk->EnumerateDeviceExtensionProperties(physical, NULL, &count, all) == TVK_SUCCESS)
        for (uint32_t n = 0; n < count && !found; n++) found = strcmp(all[n].name, name) == 0;
    host->free(host, all, bytes);
    return found;
}

int tess_vk_has_timeline(const tess_host *host, const vk_api *vk, const tess_vk_found *found) {
    vk_timeline_features timeline = {.type = TVK_TYPE_TIMELINE_SEMAPHORE_FEATURES};
    vk_features_2 features = {.type = TVK_TYPE_FEATURES_2, .next = &timeline};
    if (found->properties.api_version >= VERSION(1, 2) ||
        tess_vk_has_extension(host, vk, found->physical, "VK_KHR_timeline_semaphore"))
        vk->GetPhysicalDeviceFeatures2(found->physical, &features);
    return timeline.timeline != 0;
}

/* Vulkan does not report multiprocessors, but extensions of two vendors do. */
uint32_t tess_vk_compute_units(const tess_host *host, const vk_api *vk, vk_physical physical) {
    vk_sm_properties sm = {.type = TVK_TYPE_SM_BUILTINS_PROPERTIES_NV};
    vk_core_properties_amd core = {.type = TVK_TYPE_SHADER_CORE_PROPERTIES_AMD};
    vk_properties_2 properties = {.type = TVK_TYPE_PROPERTIES_2};
    if (tess_vk_has_extension(host, vk, physical, "VK_NV_shader_sm_builtins")) {
        properties.next = &sm;
        vk->GetPhysicalDeviceProperties2(physical, &properties);
        return sm.sm_count;
    }
    if (tess_vk_has_extension(host, vk, physical, "VK_AMD_shader_core_properties")) {
        properties.next = &core;
        vk->GetPhysicalDeviceProperties2(physical, &properties);
        return core.engines * core.arrays_per_engine * core.units_per_array;
    }
    return 0;
}

static const char *vendor_name(uint32_t vendor) {
    switch (vendor) {
    case 0x1002: return "AMD";
    case 0x1010: return "Imagination";
    case 0x10de: return "NVIDIA";
    case 0x13b5: return "Arm";
    case 0x144d: return "Samsung";
    case 0x14e4: return "Broadcom";
    case 0x106b: return "Apple";
    case 0x5143: return "Qualcomm";
    case 0x8086: return "Intel";
    case 0x10005: return "Mesa";
    default: return "unknown vendor";
    }
}

/* Layers from the environment change what runs, so the text names them. */
void tess_vk_driver_find(const tess_host *host, const vk_api *vk, tess_vk_found *found, char *text,
                         size_t size) {
    const vk_properties *p = &found->properties;
    vk_driver_properties driver = {.type = TVK_TYPE_DRIVER_PROPERTIES};
    if (p->api_version >= VERSION(1, 2) ||
        tess_vk_has_extension(host, vk, found->physical, "VK_KHR_driver_properties")) {
        vk_properties_2 properties = {.type = TVK_TYPE_PROPERTIES_2, .next = &driver};
        vk->GetPhysicalDeviceProperties2(found->physical, &properties);
    }
    found->driver_id = driver.id;
    if (driver.name[0])
        snprintf(text, size, "%.40s %.54s", driver.name, driver.info);
    else
        snprintf(text, size, "driver version 0x%x", p->driver_version);
    const char *layers = getenv("VK_INSTANCE_LAYERS");
    const size_t used = strlen(text);
    if (layers && *layers && used < size) snprintf(text + used, size - used, ", layers %s", layers);
}

int tess_vk_is_nvidia(const tess_vk_found *found) {
    return found->properties.vendor == VK_VENDOR_NVIDIA && found->driver_id == VK_DRIVER_NVIDIA;
}

static uint64_t local_bytes(const vk_api *vk, vk_physical physical) {
    vk_memory_properties memory;
    uint64_t bytes = 0;
    vk->GetPhysicalDeviceMemoryProperties(physical, &memory);
    for (uint32_t n = 0; n < memory.heap_count; n++)
        if (memory.heaps[n].flags & TVK_HEAP_DEVICE_LOCAL) bytes += memory.heaps[n].size;
    return bytes;
}

tess_status tess_vk_list(const tess_host *host, uint32_t index, tess_device_info *info) {
    vk_api vk;
    vk_instance instance;
    tess_vk_found found;
    memset(&vk, 0, sizeof vk);
    TESS_RETURN_IF_ERROR(tess_vk_connect(host, &vk, &instance));
    const tess_status status = tess_vk_find(host, &vk, instance, index, &found);
    if (status == TESS_OK) {
        const vk_properties *p = &found.properties;
        info->kind = p->kind == TVK_DEVICE_CPU ? TESS_DEVICE_SOFTWARE : TESS_DEVICE_GPU;
        info->compute_units = info->kind == TESS_DEVICE_SOFTWARE
                                  ? host->cpu_threads
                                  : tess_vk_compute_units(host, &vk, found.physical);
        info->memory_bytes = local_bytes(&vk, found.physical);
        snprintf(info->name, sizeof info->name, "%.127s", p->name);
        snprintf(info->arch, sizeof info->arch, "Vulkan %u.%u.%u, %s 0x%x%s",
                 major_of(p->api_version), minor_of(p->api_version), patch_of(p->api_version),
                 vendor_name(p->vendor), p->device,
                 p->kind == TVK_DEVICE_INTEGRATED_GPU ? ", integrated" : "");
        tess_vk_driver_find(host, &vk, &found, info->driver, sizeof info->driver);
    }
    vk.DestroyInstance(instance, NULL);
    return status;
}
