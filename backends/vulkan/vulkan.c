/* SPDX-License-Identifier: Apache-2.0 */
/* Vulkan as a backend. */
#include "functions.h"
#include "vk.h"

extern const tess_backend tess_vulkan_backend;

const tess_backend tess_vulkan_backend = {TESS_BACKEND_FUNCTIONS(tess_vk), .name = "vulkan"};
