/* SPDX-License-Identifier: Apache-2.0 */
/* The tune table that comes with the backend. Rules stand here for devices whose best kernel is
 * known or can be told from what they are; all others, and what a rule's kernels refuse, keep the
 * order of the rows. A kernel that a build does not have is passed over. */
#include "cuda.h"

const char tess_cuda_tune[] =
    "tessera-tune 1\n"
    "# H200 class: the kernel for few rows where it is meant for them, or else the kernel on wgmma "
    "and tensor maps. Measured on an H200 by tessera tune and bench/peers_decode.py: faster than "
    "others, or within the spread.\n"
    "arch=sm_90 dtype=f16,bf16 kernel=cuda/decode,cuda/sm90 basis=measured\n"
    "# A100 class: mma.sync with asynchronous copies is what these tensor cores are made for. No "
    "such device was at hand.\n"
    "arch=sm_80 dtype=f16,bf16 kernel=cuda/decode,cuda/sm80,cuda/portable basis=reasoned\n"
    "# Ada class: the same instructions, with less memory in a multiprocessor. No such device was "
    "at hand.\n"
    "arch=sm_89 dtype=f16,bf16 kernel=cuda/decode,cuda/sm80,cuda/portable basis=reasoned\n";
