/* SPDX-License-Identifier: Apache-2.0 */
/* What all kernels in OpenCL C 1.2 are written with: attention (dialect_opencl.h), the kernels that
 * write a cache, and the one that prepares steps. */
#ifndef TESS_WORDS_OPENCL_H
#define TESS_WORDS_OPENCL_H

#include "args.h"
#include "words.h"

#if defined(__x86_64__) || defined(__i386__) || defined(__aarch64__) || defined(__riscv)
#define TESS_ON_CPU
#endif

typedef long tess_offset;

#define TESS_FUNCTION static inline
#define TESS_STRUCT(name)     \
    typedef struct name name; \
    struct name
/* What a function is handed behind its other arguments to read the tables. */
#define TESS_TABLES           , const __global uint *tables, const tess_args args
#define TESS_TABLES_OF_KERNEL , tables, args
#define TESS_OFFSET(x)        ((tess_offset)(x))
#define TESS_INT(x)           ((int)(x))
#define TESS_UINT(x)          ((uint)(x))
#define TESS_FLOAT(x)         ((float)(x))
#define TESS_THREAD           ((uint)get_local_id(0))
#define TESS_BARRIER          barrier(CLK_LOCAL_MEM_FENCE)
#define TESS_SHARED(t, n, c)  __local t n[c];
#define TESS_WORD(at)         (tables[at])
#define TESS_WORD64(at)       ((long)((ulong)tables[at] | (ulong)tables[(at) + 1u] << 32))

#ifdef TESS_ON_CPU
/* Enter a loop with barriers even where it has nothing to do. PoCL takes barriers in a loop that
 * may run no iteration for conditional ones, and the code it clones for those can meet a table of
 * uniform values which outlives the values' addresses: with PoCL 5.0 (LLVM 16), all work-items then
 * used the last one's index into shared memory. A condition around barriers that may as well hold
 * is made to: PoCL compiles all that follows it twice. So is one before them if a work-item alone
 * decides it: PoCL 5.0 meets paths without an entry, and aborts the process. */
#define TESS_LOOP_ENTERS(first) (first)
/* A condition that was found before a barrier is found again: with PoCL 7.1 (LLVM 21), it may hold
 * for all work-items behind one. */
#define TESS_FOUND(before, again) (again)
#else
#define TESS_LOOP_ENTERS(first) false
#endif

TESS_FUNCTION float tess_from_bits(uint bits) { return as_float(bits); }
TESS_FUNCTION uint tess_to_bits(float x) { return as_uint(x); }
TESS_FUNCTION uint tess_min(uint a, uint b) { return min(a, b); }

#endif /* TESS_WORDS_OPENCL_H */
