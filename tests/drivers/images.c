/* SPDX-License-Identifier: Apache-2.0 */
/* Device code for the simulated drivers: the lists that a build with all compilers has, with a
 * short description in place of each image. */
#include "cuda.h"

extern const tess_driver_image tess_hip_images[];

#define IMAGE(arch) \
    { arch, (const unsigned char *)"image for " arch, (const unsigned char *)"" }
#define NONE \
    { NULL, NULL, NULL }

const tess_driver_image tess_cuda_images[] = {
    IMAGE("sm_75"),  IMAGE("sm_80"),  IMAGE("sm_86"),      IMAGE("sm_89"),      IMAGE("sm_90"),
    IMAGE("sm_100"), IMAGE("sm_120"), IMAGE("compute_75"), IMAGE("compute_70"), NONE};
const tess_driver_image tess_cuda_sm90_images[] = {IMAGE("sm_90a"), NONE};
const tess_driver_image tess_cuda_sm90_backward_images[] = {IMAGE("sm_90a"), NONE};
const tess_driver_image tess_cuda_sm80_images[] = {IMAGE("sm_80"), IMAGE("sm_90"), IMAGE("sm_100"),
                                                   IMAGE("sm_120"), NONE};
const tess_driver_image tess_cuda_decode_images[] = {IMAGE("sm_80"), IMAGE("sm_90"),
                                                     IMAGE("sm_100"), IMAGE("sm_120"), NONE};
const tess_driver_image tess_cuda_sm80_backward_images[] = {IMAGE("sm_80"), IMAGE("sm_90"),
                                                            IMAGE("sm_100"), IMAGE("sm_120"), NONE};
const tess_driver_image tess_hip_images[] = {IMAGE("gfx906"), IMAGE("gfx90a"), IMAGE("gfx1100"),
                                             NONE};
