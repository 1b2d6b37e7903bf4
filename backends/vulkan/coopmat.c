/* SPDX-License-Identifier: Apache-2.0 */
/* The forward kernel on matrix units (kernels/coopmat_forward.comp): what it needs of a device, and
 * its shapes. */
#include <stdio.h>
#include <string.h>

#include "vk.h"

const char *const tess_vk_matrix_extensions[VK_MATRIX_EXTENSIONS] = {
    "VK_KHR_cooperative_matrix", "VK_KHR_vulkan_memory_model", "VK_KHR_shader_float16_int8",
    "VK_EXT_subgroup_size_control", "VK_KHR_shader_bfloat16"};

void tess_vk_matrix_chain_make(tess_vk_matrix_chain *c, int bfloat16) {
    c->matrix = (vk_matrix_features){TVK_TYPE_MATRIX_FEATURES, &c->memory, 1, 0};
    c->memory = (vk_memory_model_features){TVK_TYPE_MEMORY_MODEL_FEATURES, &c->half, 1, {0}};
    c->half = (vk_float16_features){TVK_TYPE_FLOAT16_INT8_FEATURES, &c->subgroups, 1, 0};
    c->subgroups = (vk_subgroup_size_features){TVK_TYPE_SUBGROUP_SIZE_FEATURES, NULL, 1, 1};
    c->bfloat16 = (vk_bfloat16_features){TVK_TYPE_BFLOAT16_FEATURES, NULL, 1, 0, 1};
    if (bfloat16) c->subgroups.next = &c->bfloat16;
}

/* The sizes of a product that the kernel is made for. P comes to an operand by whole results. */
static int takes(const vk_matrix_properties *p, uint32_t type) {
    const uint32_t result = TVK_COMPONENT_FLOAT32, k = p->k;
    return (p->m == 8 || p->m == 16) && (p->n == 8 || p->n == 16) && (k == 8 || k == 16) &&
           p->n <= k && p->a == type && p->b == type && p->c == result && p->result == result &&
           p->scope == TVK_SCOPE_SUBGROUP;
}

static void find_products(const vk_api *vk, tess_vk_found *found) {
    enum { MOST = 128 };
    uint32_t count = MOST;
    vk_matrix_properties all[MOST];
    for (int n = 0; n < MOST; n++)
        all[n] = (vk_matrix_properties){.type = TVK_TYPE_MATRIX_PROPERTIES};
    if (!vk->GetPhysicalDeviceCooperativeMatrixPropertiesKHR ||
        vk->GetPhysicalDeviceCooperativeMatrixPropertiesKHR(found->physical, &count, all) < 0)
        count = 0;
    for (uint32_t t = TESS_F16; t <= TESS_BF16; t++)
        for (uint32_t n = 0, most = 0; n < count; n++) {
            const uint32_t size = all[n].m * all[n].n * all[n].k;
            const uint32_t type = t == TESS_F16 ? TVK_COMPONENT_FLOAT16 : TVK_COMPONENT_BFLOAT16;
            if (!takes(&all[n], type) || size <= most) continue;
            most = size;
            memcpy(&found->matrices.product[t], &all[n].m, sizeof found->matrices.product[t]);
        }
}

void tess_vk_matrices_find(const tess_host *host, const vk_api *vk, tess_vk_found *found) {
    tess_vk_matrices *m = &found->matrices;
    int there[VK_MATRIX_EXTENSIONS];
    memset(m, 0, sizeof *m);
    for (int n = VK_MATRIX_EXTENSIONS - 1; n >= 0; n--) {
        there[n] = tess_vk_has_extension(host, vk, found->physical, tess_vk_matrix_extensions[n]);
        if (!there[n] && n < VK_MATRIX_EXTENSIONS - 1)
            snprintf(m->missing, sizeof m->missing, "the driver has no %s",
                     tess_vk_matrix_extensions[n]);
    }
    if (m->missing[0]) return;
    tess_vk_matrix_chain c;
    tess_vk_matrix_chain_make(&c, there[VK_MATRIX_EXTENSIONS - 1]);
    vk_features_2 features = {.type = TVK_TYPE_FEATURES_2, .next = &c};
    vk->GetPhysicalDeviceFeatures2(found->physical, &features);
    vk_subgroup_size_properties sizes = {.type = TVK_TYPE_SUBGROUP_SIZE_PROPERTIES};
    vk_properties_2 properties = {.type = TVK_TYPE_PROPERTIES_2, .next = &sizes};
    vk->GetPhysicalDeviceProperties2(found->physical, &properties);
    const char *missing = !c.matrix.matrix                             ? "cooperativeMatrix"
                          : !c.memory.memory_model                     ? "vulkanMemoryModel"
                          : !c.half.float16                            ? "shaderFloat16"
                          : !c.subgroups.size_control                  ? "subgroupSizeControl"
                          : !c.subgroups.full_subgroups                ? "computeFullSubgroups"
                          : !(sizes.stages & TVK_SHADER_STAGE_COMPUTE) ? "subgroup size of compute"
                                                                       : NULL;
    if (missing) snprintf(m->missing, sizeof m->missing, "the driver has no %s", missing);
    m->bfloat16 = there[VK_MATRIX_EXTENSIONS - 1] && c.bfloat16.type_ && c.bfloat16.matrix;
    m->subgroup = sizes.least; /* with the most registers for each invocation */
    if (!m->missing[0]) find_products(vk, found);
}

enum { SUBGROUPS = 4, LEAST_KEYS = 16, BITS = 32 }; /* BITS: of an invocation, one for each score */
static uint32_t shared_bytes(const tess_portable_shape *s, uint32_t m, uint32_t n) {
    enum { LISTS = 4 * 20, ROW = 32, BOUNDS = 32, RISEN = 16, LATER = 48 };
    const uint32_t kv = s->keys * 2 * (2 * s->head_dim + 16), o = SUBGROUPS * m * (4 * n + 16);
    return (kv > o ? kv : o) + s->keys * LISTS + s->rows * ROW + s->rows / m * BOUNDS +
           4 * SUBGROUPS * m * (n + 4) + RISEN + LATER;
}

/* Measured on an H200; elsewhere what RADV has registers for, and lavapipe compiles fast. */
void tess_vk_matrix_shape(const tess_vk_device *d, const tess_kernel_key *key,
                          tess_portable_shape *s) {
    const tess_vk_matrices *x = &d->found.matrices;
    const uint32_t m = x->product[key->dtype].m, n = x->product[key->dtype].n;
    const int is_cpu = d->found.properties.kind == TVK_DEVICE_CPU, is_small = key->head_dim <= 64;
    const int is_nvidia = tess_vk_is_nvidia(&d->found);
    *s = (tess_portable_shape){.head_dim = is_small ? 64 : VK_MATRIX_DIMS,
                               .rows = SUBGROUPS * m * (is_small && is_nvidia ? 2 : 1),
                               .keys = is_nvidia ? 64 : LEAST_KEYS << (is_small && !is_cpu),
                               .threads = SUBGROUPS * x->subgroup};
    while (s->keys > LEAST_KEYS &&
           (shared_bytes(s, m, n) > d->found.properties.limits.max_shared_bytes ||
            m * s->keys > BITS * x->subgroup))
        s->keys /= 2;
    s->shared_bytes = shared_bytes(s, m, n);
}

tess_status tess_vk_matrix_prepare(tess_vk_device *d, const tess_kernel_key *key,
                                   const tess_portable_shape *s, vk_handle *pipeline) {
    const tess_vk_matrices *x = &d->found.matrices;
    const uint32_t subgroups = s->threads / x->subgroup, m = x->product[key->dtype].m,
                   n = x->product[key->dtype].n, k = x->product[key->dtype].k;
    /* NVIDIA documents the fragments of its products, A of 16 x 16 is laid out as C is, and its own
     * compiler keeps to that. */
    const int direct = tess_vk_is_nvidia(&d->found) && m * n * k == 16 * 16 * 16;
    const tess_vk_constants c = {{s->head_dim, subgroups, s->keys, s->threads,
                                  s->rows / subgroups / m, m, n, k, x->subgroup,
                                  d->found.properties.kind == TVK_DEVICE_CPU, direct}};
    return tess_vk_matrix_pipeline(d, s->head_dim == VK_MATRIX_DIMS, key->dtype, &c, pipeline);
}
