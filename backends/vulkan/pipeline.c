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
#include "spirv/coopmat_bf16.h"
#include "spirv/coopmat_f16.h"
#include "spirv/copy_bytes.h"
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
static const module matrix_modules[VK_DTYPES] = {
    {NULL, 0}, MODULE(coopmat_f16), MODULE(coopmat_bf16)};
static const module prepare_module = MODULE(prepare);
static const module bytes_module = MODULE(copy_bytes);

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

typedef tess_vk_constants constants;

/* Of a portable shape; those of backward's passes have tiles instead of rows, and no number of
 * keys. Drivers pass over constants that a module lacks. */
static constants shape_constants(uint32_t dims, uint32_t rows, uint32_t keys, uint32_t threads,
                                 uint32_t dtype) {
    return (constants){{dims, rows, keys, threads, dtype}};
}

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

/* `subgroup`: how many invocations those of the workgroup have, and no fewer; 0: any. *call is the
 * last one, also of those that fail. */
static vk_result make(tess_vk_device *d, vk_handle layout, uint32_t op, const module *m,
                      const constants *c, uint32_t subgroup, vk_handle *pipeline,
                      const char **call) {
    vk_specialization_entry entries[VK_CONSTANTS];
    for (uint32_t n = 0; n < VK_CONSTANTS; n++)
        entries[n] = (vk_specialization_entry){n, 4 * n, sizeof *c->word};
    const vk_specialization_info specialization = {VK_CONSTANTS, entries, sizeof *c, c};
    const vk_required_subgroup_size required = {.type = TVK_TYPE_REQUIRED_SUBGROUP_SIZE,
                                                .size = subgroup};
    vk_handle shader = 0, made = 0;
    *call = "vkCreateShaderModule";
    vk_result result = make_shader(d, op, m, &shader);
    if (result != TVK_SUCCESS) return result;
    const vk_compute_pipeline_create_info info = {
        .type = TVK_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .stage = {.type = TVK_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                  .next = subgroup ? &required : NULL,
                  .flags = subgroup ? TVK_FULL_SUBGROUPS : 0,
                  .stage = TVK_SHADER_STAGE_COMPUTE,
                  .module = shader,
                  .entry = "main",
                  .specialization = &specialization},
        .layout = layout};
    if (!d->cache) load_cache(d);
    *call = "vkCreateComputePipelines";
    result = d->vk.CreateComputePipelines(d->device, d->cache, 1, &info, NULL, &made);
    d->vk.DestroyShaderModule(d->device, shader, NULL);
    if (result != TVK_SUCCESS) return result;
    *pipeline = made;
    store_cache(d);
    return TVK_SUCCESS;
}

static tess_status create(tess_vk_device *d, vk_handle layout, uint32_t op, const module *m,
                          const constants *c, vk_handle *pipeline) {
    const char *call;
    const vk_result result = make(d, layout, op, m, c, 0, pipeline, &call);
    return result == TVK_SUCCESS ? TESS_OK : tess_vk_fail(d->host, result, call, "a kernel");
}

/* Of modules for each type, the one that this device runs for c.dtype. */
static tess_status find(tess_vk_device *d, uint32_t op, const module *modules, constants c,
                        vk_handle *kept, vk_handle *pipeline) {
    const uint32_t dtype = c.word[4];
    const int pairs = dtype != TESS_F32 && !d->found.storage_16bit;
    pthread_mutex_lock(&d->pipeline_lock);
    const tess_status status =
        *kept ? TESS_OK : create(d, d->layout, op, &modules[pairs ? VK_PAIRS : dtype], &c, kept);
    *pipeline = *kept;
    pthread_mutex_unlock(&d->pipeline_lock);
    return status;
}

tess_status tess_vk_forward_pipeline(tess_vk_device *d, const tess_portable_shape *s,
                                     uint32_t dtype, vk_handle *pipeline) {
    static const tess_portable_variant *const variants[VK_VARIANTS] = {
        &tess_portable, &tess_portable_tall, &tess_portable_small, &tess_portable_few};
    const constants c = shape_constants(s->head_dim, s->rows, s->keys, s->threads, dtype);
    int variant = 0, bucket = 0;
    while (&variants[variant]->shapes[bucket] != s) {
        bucket = (bucket + 1) % TESS_PORTABLE_BUCKETS;
        variant += bucket == 0;
    }
    return find(d, TESS_OP_FORWARD, s->few ? few_modules : forward_modules, c,
                &d->forward[variant][bucket][dtype], pipeline);
}

/* How often the driver may refuse the kernel before it is not asked again, which takes a second.
 * Some results speak of the code, and stay. Others may have a cause that passes: a later plan tries
 * once more. Lack of memory and a lost device are no refusals. */
static int most_refusals(vk_result result) {
    switch (result) {
    case TVK_ERROR_INVALID_SHADER_NV:
    case TVK_ERROR_FEATURE_NOT_PRESENT:
    case TVK_ERROR_EXTENSION_NOT_PRESENT:
    case TVK_ERROR_INCOMPATIBLE_DRIVER: return 1;
    default: return tess_vk_status(result) == TESS_ERROR_NATIVE ? 2 : 0;
    }
}

tess_status tess_vk_matrix_pipeline(tess_vk_device *d, uint32_t shape, uint32_t dtype,
                                    const constants *c, vk_handle *pipeline) {
    vk_handle *kept = &d->coopmat[shape][dtype];
    tess_vk_refusal *refusal = &d->coopmat_refusal[shape][dtype];
    vk_result result = TVK_SUCCESS;
    const char *call = "";
    pthread_mutex_lock(&d->pipeline_lock);
    if (refusal->count && refusal->count >= most_refusals(refusal->result))
        result = refusal->result;
    else if (!*kept)
        result = make(d, d->layout, TESS_OP_FORWARD, &matrix_modules[dtype], c,
                      d->found.matrices.subgroup, kept, &call);
    if (call[0] && result != TVK_SUCCESS && most_refusals(result) > 0) {
        refusal->result = result;
        refusal->count++;
    }
    *pipeline = *kept;
    pthread_mutex_unlock(&d->pipeline_lock);
    if (result == TVK_SUCCESS) return TESS_OK;
    if (most_refusals(result) == 0) return tess_vk_fail(d->host, result, call, "a kernel");
    return d->host->fail(d->host, TESS_ERROR_UNSUPPORTED,
                         "the driver does not compile the kernel (%s)",
                         tess_vk_result_name(result));
}

void tess_vk_matrix_code(void *device, uint32_t row, uint32_t dtype, tess_cache_key *key,
                         char *text, size_t size) {
    (void)row; /* there is one */
    cache_key(device, key, text, size);
    key->source = matrix_modules[dtype].code;
    key->source_size = matrix_modules[dtype].bytes;
}

tess_status tess_vk_merge_pipeline(tess_vk_device *d, uint32_t dtype, vk_handle *pipeline) {
    return find(d, TESS_OP_FORWARD, merge_modules, shape_constants(0, 0, 0, 0, dtype),
                &d->merge[dtype], pipeline);
}

tess_status tess_vk_backward_pipeline(tess_vk_device *d, const tess_backward_shape *s,
                                      uint32_t dtype, uint32_t number, vk_handle *pipeline) {
    const constants c = shape_constants(s->head_dim, s->tile, 0, s->threads, dtype);
    return find(d, TESS_OP_BACKWARD, backward_modules[number], c,
                &d->backward[number][s - tess_backward_shapes][dtype], pipeline);
}

tess_status tess_vk_copy_pipeline(tess_vk_device *d, vk_handle layout, vk_handle *pipeline) {
    static const constants none;
    pthread_mutex_lock(&d->pipeline_lock);
    const tess_status status = create(d, layout, TESS_OP_FORWARD, &bytes_module, &none, pipeline);
    pthread_mutex_unlock(&d->pipeline_lock);
    return status;
}

tess_status tess_vk_other_pipeline(tess_vk_device *d, uint32_t op, uint32_t dtype,
                                   vk_handle *pipeline) {
    const constants c = shape_constants(0, 0, 0, 0, dtype);
    if (op == TESS_OP_MERGE) return find(d, op, parts_modules, c, &d->merge_parts[dtype], pipeline);
    if (op == TESS_OP_PREPARE)
        return find(d, op, &prepare_module, shape_constants(0, 0, 0, 0, 0), &d->prepare, pipeline);
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
    vk_handle *coopmat = &d->coopmat[0][0];
    for (size_t n = 0; n < sizeof d->coopmat / sizeof *coopmat; n++)
        if (coopmat[n]) d->vk.DestroyPipeline(d->device, coopmat[n], NULL);
    if (d->cache) d->vk.DestroyPipelineCache(d->device, d->cache, NULL);
    if (d->layout) d->vk.DestroyPipelineLayout(d->device, d->layout, NULL);
    if (d->set_layout) d->vk.DestroyDescriptorSetLayout(d->device, d->set_layout, NULL);
}
