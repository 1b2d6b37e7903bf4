/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel that prepares steps in OpenCL C 1.2: tess_prepare, a program of its own. */
#include "words_opencl.h"

#define TESS_GROUP               ((uint)get_group_id(0))
#define TESS_STEP                , __global uint *step
#define TESS_STEP_OF_KERNEL      , step
#define TESS_PREPARE_THREADS     256u
#define TESS_PREPARE_SHARES      1u
#define TESS_ADD_SHARED(to, x)   atomic_add(&(to), (x))
#define TESS_MOST_SHARED(to, x)  atomic_max(&(to), (x))
#define TESS_LEAST_SHARED(to, x) atomic_min(&(to), (x))
#define TESS_CU_ROWS(n)          (cu_rows[args.q_at + (n)])
#define TESS_KV_LENS(n)          (kv_lens_in[args.k_at + (n)])
#define TESS_Q_FIRST(n)          (q_first_in[args.v_at + (n)])
#define TESS_KV_FIRST(n)         (kv_first_in[args.lse_at + (n)])
#define TESS_STORE_STEP(at, x)   (step[args.o_at + (at)] = (x))
#define TESS_HIGH_PRODUCT(a, b)  mul_hi((uint)(a), (uint)(b))
#define TESS_PREPARE_KERNEL                                                                       \
    __kernel __attribute__((reqd_work_group_size(TESS_PREPARE_THREADS, 1, 1))) void tess_prepare( \
        const __global int *cu_rows, const __global int *kv_lens_in, __global uint *step,         \
        const __global int *q_first_in, const __global int *kv_first_in,                          \
        const __global uint *tables, const tess_args args)

#include "prepare.inl"
