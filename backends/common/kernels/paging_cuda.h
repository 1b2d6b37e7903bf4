/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels that write a cache need of CUDA and HIP, beside the dialect. */
#ifndef TESS_PAGING_CUDA_H
#define TESS_PAGING_CUDA_H

#include "dialect_cuda.h"
#include "paging_args.h"

struct alignas(16) tess_wide {
    uint words[4];
};

/* Elements have no meaning here but their size. */
#define TESS_PAGING_GROUP                     (16u / (uint)sizeof(TESS_UNIT))
#define TESS_PAGING_BUFFERS_ALIGNED           true /* the host has looked at the addresses */
#define TESS_PAGING_POOL_ALIGNED              true
#define TESS_PAGING_TABLE(at)                 (table_words[at])
#define TESS_PAGING_COPY(to, at, from, place) (to[at] = from[place])
#define TESS_PAGING_LOAD(from, place)         ((uint)from[place])
#define TESS_PAGING_SCALE(scales, at)         (scales[at])
#define TESS_PAGING_STORE_CODES(to, at, word) (*(uint *)((unsigned char *)(to) + (at)) = (word))
#define TESS_PAGING_COPY_WIDE(to, at, from, place) \
    (*(tess_wide *)(to + (at)) = *(const tess_wide *)(from + (place)))

#define TESS_PAGING_NAME_(kernel, bits) tess_##kernel##_##bits
#define TESS_PAGING_NAME(kernel, bits)  TESS_PAGING_NAME_(kernel, bits)
#define TESS_APPEND_KERNEL                                                                  \
    extern "C" __global__ TESS_BOUNDS(TESS_PAGING_THREADS) void TESS_PAGING_NAME(           \
        append, TESS_BITS)(const TESS_UNIT *__restrict__ NEW_K,                             \
                           const TESS_UNIT *__restrict__ NEW_V, TESS_UNIT *__restrict__ K,  \
                           TESS_UNIT *__restrict__ V, const uint *__restrict__ table_words, \
                           uint *__restrict__ K_SCALE, uint *__restrict__ V_SCALE,          \
                           const uint *__restrict__ tables, const tess_paging_args args)
#define TESS_COPY_PAGES_KERNEL                                                      \
    extern "C" __global__ TESS_BOUNDS(TESS_PAGING_THREADS) void TESS_PAGING_NAME(   \
        copy_pages, TESS_BITS)(TESS_UNIT * K, const uint *__restrict__ table_words, \
                               const tess_paging_args args)

#endif /* TESS_PAGING_CUDA_H */
