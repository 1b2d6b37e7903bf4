/* SPDX-License-Identifier: Apache-2.0 */
/* Device code for the simulated drivers: the lists that a build with all compilers has, with a
 * short description in place of each image. */
#include "cuda.h"

extern const tess_driver_image tess_hip_images[];

/* Deflated (inflate.h) to one block of bytes as they are. */
typedef struct stored {
    unsigned char head[5]; /* the last block, stored; its length, and the complement of that */
    char text[24];
    unsigned char trailer[8]; /* a checksum that nobody reads, and the length */
} stored;

// clang-format off
#define ARCHS(X) \
    X(sm_75) X(sm_80) X(sm_86) X(sm_89) X(sm_90) X(sm_90a) X(sm_100) X(sm_120) \
    X(compute_75) X(compute_70) X(gfx906) X(gfx90a) X(gfx1100)
// clang-format on

#define NUMBER(arch) OF_##arch,
enum { ARCHS(NUMBER) };

#define STORED(arch) {{1, 24, 0, 255 - 24, 255}, "image for " #arch, {0, 0, 0, 0, 24, 0, 0, 0}},
static const stored images[] = {ARCHS(STORED)};

#define TEXT(arch)  #arch
#define BYTES(arch) (const unsigned char *)&images[OF_##arch]
#define IMAGE(arch) \
    { TEXT(arch), BYTES(arch), BYTES(arch) + sizeof(stored) }
#define NONE \
    { NULL, NULL, NULL }

const tess_driver_image tess_cuda_images[] = {
    IMAGE(sm_75),  IMAGE(sm_80),  IMAGE(sm_86),      IMAGE(sm_89),      IMAGE(sm_90),
    IMAGE(sm_100), IMAGE(sm_120), IMAGE(compute_75), IMAGE(compute_70), NONE};
const tess_driver_image tess_cuda_sm90_images[] = {IMAGE(sm_90a), NONE};
const tess_driver_image tess_cuda_sm90_backward_images[] = {IMAGE(sm_90a), NONE};
const tess_driver_image tess_cuda_sm80_images[] = {IMAGE(sm_80), IMAGE(sm_90), IMAGE(sm_100),
                                                   IMAGE(sm_120), NONE};
const tess_driver_image tess_cuda_decode_images[] = {IMAGE(sm_80), IMAGE(sm_90), IMAGE(sm_100),
                                                     IMAGE(sm_120), NONE};
const tess_driver_image tess_cuda_sm80_backward_images[] = {IMAGE(sm_80), IMAGE(sm_90),
                                                            IMAGE(sm_100), IMAGE(sm_120), NONE};
const tess_driver_image tess_hip_images[] = {IMAGE(gfx906), IMAGE(gfx90a), IMAGE(gfx1100), NONE};
