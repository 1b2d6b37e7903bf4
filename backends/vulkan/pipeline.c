/* SPDX-License-Identifier: Apache-2.0 */
/* Pipelines: one for each shape and element type that a plan needed. They live as long as the
 * device; the pipeline cache keeps their code on disk between processes. */
#include <stdio.h>
#include <string.h>

#include "cache.h"
#include "inflate.h"
#include "kernels/bindings.h"
#include "spirv/append_16.h"
#include "spirv/append_32.h"
#include "spirv/append_pairs.h"
#include "spirv/backward_columns_bf16.h"
#include "spirv/backward_columns_f16.h"
#include "spirv/backward_columns_f32.h"
#include "spirv/backward_columns_pairs.h"
#include "spirv/backward_delta_bf16.h"
#include "spirv/backward_delta_f16.h"
#include "spirv/backward_delta_f32.h"
#include "spirv/backward_delta_pairs.h"
#include "spirv/backward_rows_bf16.h"
#include "spirv/backward_rows_f16.h"
#include "spirv/backward_rows_f32.h"
#include "spirv/backward_rows_pairs.h"
#include "spirv/copy_pages_16.h"
#include "spirv/copy_pages_32.h"
#include "spirv/copy_pages_pairs.h"
#include "spirv/forward_bf16.h"
#include "spirv/forward_f16.h"
#include "spirv/forward_f32.h"
#include "spirv/forward_few_bf16.h"
#include "spirv/forward_few_f16.h"
#include "spirv/forward_few_f32.h"
#include "spirv/forward_few_pairs.h"
#include "spirv/forward_pairs.h"
#include "spirv/merge_bf16.h"
#include "spirv/merge_f16.h"
#include "spirv/merge_f32.h"
#include "spirv/merge_pairs.h"
#include "spirv/merge_parts_bf16.h"
#include "spirv/merge_parts_f16.h"
#include "spirv/merge_parts_f32.h"
#include "spirv/merge_parts_pairs.h"
#include "spirv/prepare.h"
#include "vk.h"

/* SPIR-V, deflated */
typedef struct module {
    const unsigned char *code;
    size_t bytes;
} module;

#define MODULE(name) \
    { tess_vk_##name, sizeof tess_vk_##name }
/* By element type, and at last VK_PAIRS. */
#define MODULES(name) \
    { MODULE(name##_f32), MODULE(name##_f16), MODULE(name##_bf16), MODULE(name##_pairs) }
/* Of kernels that move elements: by their size. */
#define MOVING_MODULES(name) \
    { MODULE(name##_32), MODULE(name##_16), MODULE(name##_16), MODULE(name##_pairs) }

static const module forward_modules[VK_MODULES] = MODULES(forward);
static const module few_modules[VK_MODULES] = MODULES(forward_few);
static const module merge_modules[VK_MODULES] = MODULES(merge);
static const module parts_modules[VK_MODULES] = MODULES(merge_parts);
static const module append_modules[VK_MODULES] = MOVING_MODULES(append);
static const module copy_modules[VK_MODULES] = MOVING_MODULES(copy_pages);
/* By tess_backward_number. */
static const module backward_modules[TESS_BACKWARD_STAGES][VK_MODULES] = {
    MODULES(backward_delta), MODULES(backward_rows), MODULES(backward_columns)};
static const module prepare_module = MODULE(prepare);

/* ------------------------------------------------------------------ layouts */

tess_status tess_vk_layouts_create(tess_vk_device *d) {
    vk_binding bindings[TESS_BINDINGS];
    for (uint32_t n = 0; n <= d->storage_buffers; n++)
        bindings[n] =
            (vk_binding){.binding = n,
                         .kind = n == TESS_BIND_ARGS ? TVK_DESCRIPTOR_UNIFORM_BUFFER_DYNAMIC
                                                     : TVK_DESCRIPTOR_STORAGE_BUFFER,
                         .count = 1,
                         .stages = TVK_SHADER_STAGE_COMPUTE};
    const vk_set_layout_create_info set = {.type = TVK_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO,
                                           .count = d->storage_buffers + 1,
                                           .bindings = bindings};
    vk_result result = d->vk.CreateDescriptorSetLayout(d->device, &set, NULL, &d->set_layout);
    if (result != TVK_SUCCESS) {
        d->set_layout = 0;
        return tess_vk_fail(d->host, result, "vkCreateDescriptorSetLayout", "for the kernels");
    }
    const vk_pipeline_layout_create_info layout = {
        .type = TVK_TYPE_PIPELINE_LAYOUT_CREATE_INFO, .set_count = 1, .sets = &d->set_layout};
    result = d->vk.CreatePipelineLayout(d->device, &layout, NULL, &d->layout);
    if (result == TVK_SUCCESS) return TESS_OK;
    d->layout = 0;
    return tess_vk_fail(d->host, result, "vkCreatePipelineLayout", "for the kernels");
}

/* ------------------------------------------------------------------ the cache on disk */

/* Drivers check the header of the data; our key also keeps devices and drivers apart. */
static void cache_key(const tess_vk_device *d, tess_cache_key *key, char *device, size_t size) {
    const vk_properties *p = &d->found.properties;
    int used = snprintf(device, size, "%.100s ", p->name);
    for (size_t n = 0; n < sizeof p->cache_uuid; n++)
        used += snprintf(device + used, size - (size_t)used, "%02x", p->cache_uuid[n]);
    *key = (tess_cache_key){.backend = "vulkan",
                            .device = device,
                            .driver = d->driver,
                            .source = forward_modules[0].code,
                            .source_size = forward_modules[0].bytes,
                            .options = "pipeline cache"};
}

static void load_cache(tess_vk_device *d) {
    tess_cache_key key;
    char device[192];
    size_t bytes = 0;
    cache_key(d, &key, device, sizeof device);
    void *data = tess_cache_load(d->host, &key, &bytes);
    vk_pipeline_cache_create_info create = {
        .type = TVK_TYPE_PIPELINE_CACHE_CREATE_INFO, .bytes = bytes, .data = data};
    if (!data) create.bytes = 0;
    /* pipelines can be made without a cache */
    if (d->vk.CreatePipelineCache(d->device, &create, NULL, &d->cache) != TVK_SUCCESS) d->cache = 0;
    if (data) d->host->free(d->host, data, bytes);
    d->cached_bytes = bytes;
}

static void store_cache(tess_vk_device *d) {
    tess_cache_key key;
    char device[192];
    size_t bytes = 0;
    if (!d->cache || d->vk.GetPipelineCacheData(d->device, d->cache, &bytes, NULL) != TVK_SUCCESS ||
        bytes <= d->cached_bytes)
        return;
    void *data = d->host->alloc(d->host, bytes, 64);
    if (!data) return;
    size_t got = bytes;
    if (d->vk.GetPipelineCacheData(d->device, d->cache, &got, data) == TVK_SUCCESS &&
        got <= bytes) {
        cache_key(d, &key, device, sizeof device);
        tess_cache_store(d->host, &key, data, got);
        d->cached_bytes = got;
    }
    d->host->free(d->host, data, bytes);
}

/* ------------------------------------------------------------------ pipelines */

/* Specialization constants 0 to 3 of a forward module: a portable shape. Those of backward's passes
 * have tiles instead of rows, and no number of keys. Constant 4 is the type of a module of pairs.
 * Drivers pass over constants that a module lacks. */
typedef struct constants {
    uint32_t dims, rows, keys, threads, dtype;
} constants;

/* A shader whose bindings are those of the device. */
static vk_result make_shader(const tess_vk_device *d, uint32_t op, const module *m,
                             vk_handle *shader) {
    size_t bytes = 0;
    uint32_t *code = tess_inflate_new(d->host, m->code, m->bytes, "a kernel", &bytes);
    if (!code) return TVK_ERROR_OUT_OF_HOST_MEMORY;
    const vk_shader_module_create_info info = {
        .type = TVK_TYPE_SHADER_MODULE_CREATE_INFO, .bytes = bytes - 1, .code = code};
    if (d->storage_buffers != TESS_STORAGE_BUFFERS)
        tess_vk_slots_place(d->slots[tess_vk_family(op)], code, info.bytes / 4);
    const vk_result result = d->vk.CreateShaderModule(d->device, &info, NULL, shader);
    d->host->free(d->host, code, bytes);
    return result;
}

static tess_status create(tess_vk_device *d, uint32_t op, const module *m, const constants *c,
                          vk_handle *pipeline) {
    static const vk_specialization_entry entries[] = {
        {0, 0, 4}, {1, 4, 4}, {2, 8, 4}, {3, 12, 4}, {4, 16, 4}};
    const vk_specialization_info specialization = {5, entries, sizeof(constants), c};
    vk_handle shader = 0, made = 0;
    vk_result result = make_shader(d, op, m, &shader);
    if (result != TVK_SUCCESS)
        return tess_vk_fail(d->host, result, "vkCreateShaderModule", "a kernel");
    const vk_compute_pipeline_create_info info = {
        .type = TVK_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .stage = {.type = TVK_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                  .stage = TVK_SHADER_STAGE_COMPUTE,
                  .module = shader,
                  .entry = "main",
                  .specialization = &specialization},
        .layout = d->layout};
    if (!d->cache) load_cache(d);
    result = d->vk.CreateComputePipelines(d->device, d->cache, 1, &info, NULL, &made);
    d->vk.DestroyShaderModule(d->device, shader, NULL);
    if (result != TVK_SUCCESS)
        return tess_vk_fail(d->host, result, "vkCreateComputePipelines", "a kernel");
    *pipeline = made;
    store_cache(d);
    return TESS_OK;
}

/* Of modules for each type, the one that this device runs for c.dtype. */
static tess_status find(tess_vk_device *d, uint32_t op, const module *modules, constants c,
                        vk_handle *kept, vk_handle *pipeline) {
    const int pairs = c.dtype != TESS_F32 && !d->found.storage_16bit;
    pthread_mutex_lock(&d->pipeline_lock);
    const tess_status status =
        *kept ? TESS_OK : create(d, op, &modules[pairs ? VK_PAIRS : c.dtype], &c, kept);
    *pipeline = *kept;
    pthread_mutex_unlock(&d->pipeline_lock);
    return status;
}

tess_status tess_vk_forward_pipeline(tess_vk_device *d, const tess_portable_shape *s,
                                     uint32_t dtype, vk_handle *pipeline) {
    static const tess_portable_variant *const variants[VK_VARIANTS] = {
        &tess_portable, &tess_portable_small, &tess_portable_few};
    const constants c = {s->head_dim, s->rows, s->keys, s->threads, dtype};
    int variant = 0, bucket = 0;
    while (&variants[variant]->shapes[bucket] != s) {
        bucket = (bucket + 1) % TESS_PORTABLE_BUCKETS;
        variant += bucket == 0;
    }
    return find(d, TESS_OP_FORWARD, s->few ? few_modules : forward_modules, c,
                &d->forward[variant][bucket][dtype], pipeline);
}

tess_status tess_vk_merge_pipeline(tess_vk_device *d, uint32_t dtype, vk_handle *pipeline) {
    return find(d, TESS_OP_FORWARD, merge_modules, (constants){.dtype = dtype}, &d->merge[dtype],
                pipeline);
}

tess_status tess_vk_backward_pipeline(tess_vk_device *d, const tess_backward_shape *s,
                                      uint32_t dtype, uint32_t number, vk_handle *pipeline) {
    const constants c = {s->head_dim, s->tile, 0, s->threads, dtype};
    return find(d, TESS_OP_BACKWARD, backward_modules[number], c,
                &d->backward[number][s - tess_backward_shapes][dtype], pipeline);
}

tess_status tess_vk_other_pipeline(tess_vk_device *d, uint32_t op, uint32_t dtype,
                                   vk_handle *pipeline) {
    const constants c = {.dtype = dtype};
    if (op == TESS_OP_MERGE) return find(d, op, parts_modules, c, &d->merge_parts[dtype], pipeline);
    if (op == TESS_OP_PREPARE)
        return find(d, op, &prepare_module, (constants){.dtype = 0}, &d->prepare, pipeline);
    const int n = tess_paging_bits(dtype) == 16, is_append = op == TESS_OP_APPEND;
    return find(d, op, is_append ? append_modules : copy_modules, c,
                &(is_append ? d->append : d->copy_pages)[n], pipeline);
}

void tess_vk_pipelines_close(tess_vk_device *d) {
    for (int t = 0; t < VK_DTYPES; t++) {
        for (int v = 0; v < VK_VARIANTS; v++)
            for (int b = 0; b < TESS_PORTABLE_BUCKETS; b++)
                if (d->forward[v][b][t])
                    d->vk.DestroyPipeline(d->device, d->forward[v][b][t], NULL);
        if (d->merge[t]) d->vk.DestroyPipeline(d->device, d->merge[t], NULL);
        if (d->merge_parts[t]) d->vk.DestroyPipeline(d->device, d->merge_parts[t], NULL);
    }
    for (int n = 0; n < 2; n++) {
        if (d->append[n]) d->vk.DestroyPipeline(d->device, d->append[n], NULL);
        if (d->copy_pages[n]) d->vk.DestroyPipeline(d->device, d->copy_pages[n], NULL);
    }
    if (d->prepare) d->vk.DestroyPipeline(d->device, d->prepare, NULL);
    vk_handle *backward = &d->backward[0][0][0];
    for (size_t n = 0; n < sizeof d->backward / sizeof *backward; n++)
        if (backward[n]) d->vk.DestroyPipeline(d->device, backward[n], NULL);
    if (d->cache) d->vk.DestroyPipelineCache(d->device, d->cache, NULL);
    if (d->layout) d->vk.DestroyPipelineLayout(d->device, d->layout, NULL);
    if (d->set_layout) d->vk.DestroyDescriptorSetLayout(d->device, d->set_layout, NULL);
}
