/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel that prepares steps (prepare.inl) for Vulkan. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "args.h"
#include "bindings.h"
#include "words.h"

#define TESS_FUNCTION
#define TESS_STRUCT(name) struct name
/* Tables, arguments, the step and the place of its plan are global. */
#define TESS_TABLES
#define TESS_TABLES_OF_KERNEL
#define TESS_OF_PLAN
#define TESS_PLAN_OF_KERNEL
#define TESS_SET_PLAN plan_at
#define TESS_STEP
#define TESS_STEP_OF_KERNEL
#define TESS_INT(x)  int(x)
#define TESS_UINT(x) uint(x)
#define TESS_THREAD  gl_LocalInvocationIndex
#define TESS_GROUP   gl_WorkGroupID.x
#define TESS_BARRIER barrier()
#define TESS_SHARED_OUTSIDE
#define TESS_SHARED(t, n, c)    shared t n[c];
#define TESS_WORD(at)           tables_[at]
#define TESS_LOOP_ENTERS(first) false
#define tess_min(a, b)          min(a, b)

layout(set = 0, binding = TESS_BIND_ARGS, std140) uniform tess_args_block { tess_args args; };
layout(set = 0, binding = TESS_BIND_CU_ROWS) readonly buffer tess_cu_rows { int cu_rows_[]; };
layout(set = 0, binding = TESS_BIND_KV_LENS) readonly buffer tess_kv_lens { int kv_lens_[]; };
layout(set = 0, binding = TESS_BIND_Q_FIRST) readonly buffer tess_q_first { int q_first_[]; };
layout(set = 0, binding = TESS_BIND_KV_FIRST) readonly buffer tess_kv_first { int kv_first_[]; };
layout(set = 0, binding = TESS_BIND_STEP) writeonly buffer tess_step { uint step_[]; };
layout(set = 0, binding = TESS_BIND_TABLES) readonly buffer tess_tables { uint tables_[]; };

#define TESS_PREPARE_THREADS     256u
#define TESS_PREPARE_SHARES      1u
#define TESS_ADD_SHARED(to, x)   atomicAdd(to, x)
#define TESS_MOST_SHARED(to, x)  atomicMax(to, x)
#define TESS_LEAST_SHARED(to, x) atomicMin(to, x)
#define TESS_CU_ROWS(n)          cu_rows_[args.q_at + (n)]
#define TESS_KV_LENS(n)          kv_lens_[args.k_at + (n)]
#define TESS_Q_FIRST(n)          q_first_[args.v_at + (n)]
#define TESS_KV_FIRST(n)         kv_first_[args.lse_at + (n)]
#define TESS_STORE_STEP(at, x)   step_[args.o_at + (at)] = (x)
#define TESS_HIGH_PRODUCT(a, b)  tess_high_product(a, b)
#define TESS_PREPARE_KERNEL      void main()

uint plan_at;

uint tess_high_product(uint a, uint b) {
    uint high, low;
    umulExtended(a, b, high, low);
    return high;
}

layout(local_size_x = 256) in;

#include "prepare.inl"
