/* SPDX-License-Identifier: Apache-2.0 */
/* The one list of backends, best first. Software devices rank below the CPU wherever their backend
 * stands. */
#include "../core/registry.h"

extern const tess_backend tess_cuda_backend;
extern const tess_backend tess_hip_backend;
extern const tess_backend tess_vulkan_backend;
extern const tess_backend tess_opencl_backend;
extern const tess_backend tess_cpu_backend;

const tess_registered tess_registry[] = {
    {&tess_cuda_backend, true},   {&tess_hip_backend, true},  {&tess_vulkan_backend, true},
    {&tess_opencl_backend, true}, {&tess_cpu_backend, false}, {NULL, false},
};
