/* SPDX-License-Identifier: Apache-2.0 */
/* Vulkan as a backend. */
#include "vk.h"

extern const tess_backend tess_vulkan_backend;

const tess_backend tess_vulkan_backend = {
    .abi = TESS_BACKEND_ABI,
    .struct_size = sizeof(tess_backend),
    .name = "vulkan",
    .list = tess_vk_list,
    .open = tess_vk_open,
    .close = tess_vk_close,
    .query = tess_vk_query,
    .kernel = tess_vk_kernel,
    .launch = tess_vk_launch,
    .alloc = tess_vk_alloc,
    .free = tess_vk_free,
    .copy = tess_vk_copy,
    .wait = tess_vk_wait,
};
