/* SPDX-License-Identifier: Apache-2.0 */
/* The tune table that comes with the backend: rules for devices on which the order of the rows is
 * not the best (docs/tune.md). */
#include "vk.h"

/* Matrix units come first, where there are any, as they do without a rule. */
#define SMALL_FIRST " kernel=vulkan/coopmat,vulkan/portable_small,vulkan/portable "

const char tess_vk_tune[] =
    "tessera-tune 1\n"
    "# Measured on an H200 at head_dim 128: 17.2 against 14.9 TFLOP/s dense, 17.0 against 13.9 "
    "S2.\n"
    "device=*H200* arch=*NVIDIA* dtype=bf16 head_dim=65..128" SMALL_FIRST "basis=measured\n"
    "# Other NVIDIA devices, and smaller heads: the same code on much the same multiprocessors.\n"
    "# None was at hand.\n"
    "arch=*NVIDIA* dtype=bf16 head_dim=..128" SMALL_FIRST "basis=reasoned\n";
