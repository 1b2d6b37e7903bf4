/* SPDX-License-Identifier: Apache-2.0 */
/* The one list of backends, best first. */
#include "../core/registry.h"

extern const tess_backend tess_cpu_backend;
extern const tess_backend tess_opencl_backend;
extern const tess_backend tess_vulkan_backend;

const tess_backend *const tess_registry[] = {&tess_cpu_backend, &tess_vulkan_backend, &tess_opencl_backend, NULL};
