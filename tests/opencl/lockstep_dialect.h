/* SPDX-License-Identifier: Apache-2.0 */
/*
 * OpenCL C's words in C++, in the place of dialect_opencl.h, for kernels whose lanes run on the
 * host in lockstep. What includes it has defined get_local_id() and __OPENCL_VERSION__, and how
 * work-items of its vendor see each other.
 */
#ifndef TESSERA_TESTS_OPENCL_LOCKSTEP_DIALECT_H
#define TESSERA_TESTS_OPENCL_LOCKSTEP_DIALECT_H

#define __global
#define __local
#define CLK_LOCAL_MEM_FENCE 0
#define barrier(fence)      __syncthreads()
#define get_group_id(n)     ((n) ? 0u : lockstep::block_index)
#define get_num_groups(n)   ((n) ? 1u : lockstep::blocks)
#define as_float(x)         __uint_as_float(x)
#ifndef as_uint
#define as_uint(x) __float_as_uint(x)
#endif

#define TESS_DIALECT_OPENCL_H
#include "words_opencl.h"

struct vec4 {
    float x, y, z, w;
};
static inline vec4 operator*(vec4 a, float b) { return {a.x * b, a.y * b, a.z * b, a.w * b}; }
#define VEC4(a, b, c, d) \
    vec4 { a, b, c, d }
#define TESS_PAGES           , const int *block_table TESS_TABLES
#define TESS_PAGES_OF_KERNEL , block_table TESS_TABLES_OF_KERNEL
#define TESS_PAGE_ID(at)     (block_table[at])
#define TESS_AND(a, b)       ((a) & (b))
#define TESS_OR(a, b)        ((a) | (b))
#define TESS_UNROLL
#define TESS_NO_UNROLL
#define TESS_UNROLL_4
#define TESS_GROUP          ((uint)get_group_id(0))
#define TESS_FLAGS          (args.flags)
#define TESS_MINUS_INFINITY (-INFINITY)
#define TESS_FORWARD_KERNEL                                                                       \
    static void forward(const ushort *Q, const ushort *K, const ushort *V, ushort *O, float *LSE, \
                        const int *block_table, const uint *tables, float *workspace,             \
                        const tess_args &args)

typedef void lockstep_forward(const ushort *, const ushort *, const ushort *, ushort *, float *,
                              const int *, const uint *, float *, const tess_args &);
/* Runs all workgroups on the buffers of a kernel, in their order. Each run has its own order of
 * threads and time of copies. */
static void lockstep_run(lockstep_forward *forward, unsigned groups, unsigned threads,
                         unsigned shared_bytes, void *const *b, const tess_args *args) {
    static unsigned runs;
    lockstep::run(groups, threads, shared_bytes, runs++, [&] {
        forward((const ushort *)b[0], (const ushort *)b[1], (const ushort *)b[2], (ushort *)b[3],
                (float *)b[4], (const int *)b[5], (const uint *)b[8], (float *)b[9], *args);
    });
}

#endif
