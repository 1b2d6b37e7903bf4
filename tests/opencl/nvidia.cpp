/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backends/opencl/kernels/nv_mma.cl on the host: OpenCL C's words in C++, and its instructions as
 * lockstep.h has them. Compiled once for each instance, with the options that the backend gives.
 */
#include "lockstep.h"

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;

#define __OPENCL_VERSION__  120
#define get_local_id(n)     (lockstep::current->index)
#define NV_UNIT(a, b, c, d) make_uint4(a, b, c, d)
#define NV_MEMORY(m)        nv_memory *const m = (nv_memory *)lockstep::shared(0, sizeof *m);

#include "lockstep_dialect.h"

/* In the place of nv_instructions.h. */
#define TESS_OPENCL_NV_INSTRUCTIONS_H
#if TESS_DTYPE == 1
typedef tess::f16_t element_type;
#else
typedef tess::bf16_t element_type;
#endif
static uint nv_shared_address(const void *p) { return tess::shared_address(p); }
static uint nv_thread_now() { return lockstep::current->index; }
/* The device ends a kernel that reads 16 bytes from elsewhere, and the host does not mind. */
static uint whole_unit(uint at) {
    if (at % 16 != 0) {
        fprintf(stderr, "nvidia.cpp: byte %u of shared memory is no multiple of 16\n", at);
        abort();
    }
    return at;
}
static void nv_copy_unit(uint to, const ushort *from, uint bytes) {
    tess::cp_async_unit(whole_unit(to), from, (int)bytes);
}
static void nv_copies_wait() { tess::cp_async_wait_all(); }
static void nv_store_unit(uint to, const uint *x) {
    tess::store_unit(whole_unit(to), make_uint4(x[0], x[1], x[2], x[3]));
}
static void nv_load_unit(uint *x, uint from) {
    memcpy(x, lockstep::shared(whole_unit(from), 16), 16);
}
static void nv_ldmatrix(uint *m, uint at) { tess::ldmatrix(*(uint32_t(*)[4])m, whole_unit(at)); }
static void nv_ldmatrix_transposed(uint *m, uint at) {
    tess::ldmatrix_transposed(*(uint32_t(*)[4])m, whole_unit(at));
}
static void nv_mma(float *c, const uint *a, uint b0, uint b1) {
    tess::mma<element_type>(*(float(*)[4])c, *(const uint32_t(*)[4])a, b0, b1);
}
static uint nv_pack(float low, float high) { return tess::pack<element_type>(low, high); }
static uint nv_exchange(uint x, uint mask) { return __shfl_xor_sync(~0u, x, (int)mask); }
static float nv_exchange_float(float x, uint mask) { return __shfl_xor_sync(~0u, x, (int)mask); }
static bool nv_any(bool x) { return __any_sync(~0u, x); }
template <typename T, typename F> static T nv_all(T x, F f) {
    T all[32];
    for (int n = 0; n < 32; n++) all[n] = lockstep::shuffle(x, (unsigned)n);
    for (int n = 1; n < 32; n++) all[0] = f(all[0], all[n]);
    return all[0];
}
static int nv_least(int x) {
    return nv_all(x, [](int a, int b) { return min(a, b); });
}
static int nv_most(int x) {
    return nv_all(x, [](int a, int b) { return max(a, b); });
}
static uint nv_union(uint x) {
    return nv_all(x, [](uint a, uint b) { return a | b; });
}
static float nv_max(float a, float b) { return fmaxf(a, b); }
static float nv_add(float a, float b) { return a + b; }
static float nv_multiply(float a, float b) { return a * b; }
static float nv_fma(float a, float b, float c) { return fmaf(a, b, c); }
static float nv_exp2(float x) { return tess::exp2_fast(x); }
static float nv_log2(float x) { return tess::log2_fast(x); }
static float nv_reciprocal(float x) { return tess::reciprocal(x); }

#define TESS_FORWARD_ALONE
#include "kernels/nv_mma.cl"

#define NAME_OF(dtype, dims) nvidia_lockstep_##dtype##_##dims
#define NAME(dtype, dims)    NAME_OF(dtype, dims)

extern "C" void NAME(TESS_DTYPE, LOCKSTEP_DIMS)(unsigned groups, void *const *buffers,
                                                const tess_args *args) {
    static_assert(sizeof(nv_memory) <= 48 << 10, "it fits the memory of a workgroup");
    lockstep_run(forward, groups, TESS_THREADS, sizeof(nv_memory), buffers, args);
}
