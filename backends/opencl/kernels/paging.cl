/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels that write a cache in OpenCL C 1.2: tess_append and tess_copy_pages, in a program of
 * their own for each size of elements: TESS_BITS is 16 or 32. */
#include "paging_args.h"
#include "words_opencl.h"

#define TESS_GROUP ((uint)get_group_id(0))

/* Elements have no meaning here but their size, unless they become codes. */
#if TESS_BITS == 16
typedef ushort tess_unit;
#define TESS_PAGING_GROUP 8u
#else
typedef uint tess_unit;
#define TESS_PAGING_GROUP 4u
#endif

/* The host knows offsets, but not where a buffer begins. */
#define TESS_MISALIGNED(buffer)  ((uintptr_t)(buffer)&15u)
#define TESS_PAGING_POOL_ALIGNED (TESS_MISALIGNED(K) == 0u)
#define TESS_PAGING_BUFFERS_ALIGNED                                      \
    ((TESS_MISALIGNED(K) | TESS_MISALIGNED(V) | TESS_MISALIGNED(NEW_K) | \
      TESS_MISALIGNED(NEW_V)) == 0u)
#define TESS_PAGING_TABLE(at)                 (table_words[at])
#define TESS_PAGING_COPY(to, at, from, place) ((to)[at] = (from)[place])
#define TESS_PAGING_LOAD(from, place)         ((uint)(from)[place])
#define TESS_PAGING_SCALE(scales, at)         ((scales)[at])
#define TESS_PAGING_STORE_CODES(to, at, word) \
    (*(__global uint *)((__global uchar *)(to) + (at)) = (word))
#define TESS_PAGING_COPY_WIDE(to, at, from, place) \
    (*(__global uint4 *)((to) + (at)) = *(const __global uint4 *)((from) + (place)))

#define TESS_PAGING_KERNEL __kernel __attribute__((reqd_work_group_size(TESS_PAGING_THREADS, 1, 1)))
#define TESS_APPEND_KERNEL                                                                       \
    TESS_PAGING_KERNEL void tess_append(                                                         \
        const __global tess_unit *NEW_K, const __global tess_unit *NEW_V, __global tess_unit *K, \
        __global tess_unit *V, const __global uint *table_words, __global uint *K_SCALE,         \
        __global uint *V_SCALE, const __global uint *tables, const tess_paging_args args)
/* The same arguments in the same places, of which it uses a few. */
#define TESS_COPY_PAGES_KERNEL                                                                   \
    TESS_PAGING_KERNEL void tess_copy_pages(                                                     \
        const __global tess_unit *NEW_K, const __global tess_unit *NEW_V, __global tess_unit *K, \
        __global tess_unit *V, const __global uint *table_words, __global uint *K_SCALE,         \
        __global uint *V_SCALE, const __global uint *tables, const tess_paging_args args)

#include "append.inl"

#include "copy_pages.inl"
