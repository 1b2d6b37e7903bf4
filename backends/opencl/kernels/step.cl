/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel that prepares steps in OpenCL C 1.2: tess_prepare, a program of its own. */
#include "args.h"
#include "words.h"

#define TESS_FUNCTION static inline
#define TESS_STRUCT(name)     \
    typedef struct name name; \
    struct name
#define TESS_TABLES           , const __global uint *tables, const tess_args args
#define TESS_TABLES_OF_KERNEL , tables, args
#define TESS_STEP             , __global uint *step
#define TESS_STEP_OF_KERNEL   , step
#define TESS_INT(x)           ((int)(x))
#define TESS_UINT(x)          ((uint)(x))
#define TESS_THREAD           ((uint)get_local_id(0))
#define TESS_GROUP            ((uint)get_group_id(0))
#define TESS_BARRIER          barrier(CLK_LOCAL_MEM_FENCE)
#define TESS_SHARED(t, n, c)  __local t n[c];
#define TESS_WORD(at)         (tables[at])
#if defined(__x86_64__) || defined(__i386__) || defined(__aarch64__) || defined(__riscv)
#define TESS_LOOP_ENTERS(first) (first) /* see dialect_opencl.h */
#else
#define TESS_LOOP_ENTERS(first) false
#endif

TESS_FUNCTION uint tess_min(uint a, uint b) { return min(a, b); }

#define TESS_PREPARE_THREADS     256u
#define TESS_ADD_SHARED(to, x)   atomic_add(&(to), (x))
#define TESS_MOST_SHARED(to, x)  atomic_max(&(to), (x))
#define TESS_LEAST_SHARED(to, x) atomic_min(&(to), (x))
#define TESS_CU_ROWS(n)          (cu_rows[args.q_at + (n)])
#define TESS_KV_LENS(n)          (kv_lens_in[args.k_at + (n)])
#define TESS_STORE_STEP(at, x)   (step[args.o_at + (at)] = (x))
#define TESS_PREPARE_KERNEL                                                                       \
    __kernel __attribute__((reqd_work_group_size(TESS_PREPARE_THREADS, 1, 1))) void tess_prepare( \
        const __global int *cu_rows, const __global int *kv_lens_in, __global uint *step,         \
        const __global uint *tables, const tess_args args)

#include "prepare.inl"
