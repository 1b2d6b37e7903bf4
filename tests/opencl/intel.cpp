/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backends/opencl/kernels/intel_dpas.cl on the host: OpenCL C's words in C++, and Intel's builtins
 * as the texts of their extensions define them. A lane is a fiber of lockstep.h. Compiled once for
 * each instance, with the options that the backend gives.
 */
#include "lockstep.h"

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;

/* ------------------------------------------------------------------ vectors */

struct alignas(16) aligned_unit {
    uint x, y, z, w;
};
#define uint4 aligned_unit
static inline uint4 operator^(uint4 a, uint4 b) {
    return {a.x ^ b.x, a.y ^ b.y, a.z ^ b.z, a.w ^ b.w};
}
template <typename T> struct eight { T s0, s1, s2, s3, s4, s5, s6, s7; };
typedef eight<float> float8;
typedef eight<int> int8;
typedef eight<uint> uint8;
typedef eight<short> short8;
typedef eight<ushort> ushort8;
struct ushort2 {
    ushort x, y;
};
template <typename T, typename F> static inline T each(const T &a, const T &b, F f) {
    return {f(a.s0, b.s0), f(a.s1, b.s1), f(a.s2, b.s2), f(a.s3, b.s3),
            f(a.s4, b.s4), f(a.s5, b.s5), f(a.s6, b.s6), f(a.s7, b.s7)};
}
static inline float8 operator*(float8 a, float b) {
    return each(a, a, [=](float x, float) { return x * b; });
}
static inline uint8 operator|(uint8 a, uint8 b) {
    return each(a, b, [](uint x, uint y) { return x | y; });
}
static inline uint8 operator<<(uint8 a, int n) {
    return each(a, a, [=](uint x, uint) { return x << n; });
}
template <typename T, typename F> static inline T as(F from) {
    static_assert(sizeof(T) == sizeof(F), "as_ keeps bits");
    T to;
    memcpy(&to, &from, sizeof to);
    return to;
}
#define as_uint(x)    as<uint>(x)
#define as_uint4(x)   as<uint4>(x)
#define as_int8(x)    as<int8>(x)
#define as_short8(x)  as<short8>(x)
#define as_ushort8(x) as<ushort8>(x)
static inline uint8 convert_uint8(ushort8 a) {
    return {a.s0, a.s1, a.s2, a.s3, a.s4, a.s5, a.s6, a.s7};
}

#define INTEL_UNIT(a, b, c, d) \
    uint4 { a, b, c, d }
#define INTEL_UNITS(v) \
    uint4 { v, v, v, v }
#define INTEL_FLOATS(v) \
    float8 { v, v, v, v, v, v, v, v }
#define INTEL_PAIR(a, b) \
    float2 { a, b }
static inline int8 INTEL_WORDS(uint4 a, uint4 b) {
    return {(int)a.x, (int)a.y, (int)a.z, (int)a.w, (int)b.x, (int)b.y, (int)b.z, (int)b.w};
}

/* ------------------------------------------------------------------ builtins */

#if TESS_DTYPE == 1
typedef tess::f16_t element_type;
#else
typedef tess::bf16_t element_type;
#endif

#define __OPENCL_VERSION__ 300
/* Nothing says which work-items are a subgroup. */
#define get_local_id(n) ((lockstep::current->index * 5u + 3u) % 64u)
#include "lockstep_dialect.h"

static inline uint get_sub_group_id() { return lockstep::current->index / TESS_LANES; }
static inline uint get_sub_group_local_id() { return lockstep::current->index % TESS_LANES; }

template <typename Work> static void in_subgroup(const char *what, void *own, Work work) {
    lockstep::meet(&lockstep::warps[get_sub_group_id()], TESS_LANES, get_sub_group_local_id(), what,
                   own, work);
}
/* The values of all lanes. */
template <typename T> struct lanes { T of[TESS_LANES]; };
template <typename T> static lanes<T> gather(const char *what, T own) {
    struct {
        T own;
        lanes<T> all;
    } x = {own, {}};
    typedef decltype(x) item;
    in_subgroup(what, &x, [](void **of) {
        for (uint n = 0; n < TESS_LANES; n++)
            for (uint m = 0; m < TESS_LANES; m++) ((item *)of[n])->all.of[m] = ((item *)of[m])->own;
    });
    return x.all;
}
static int sub_group_reduce_min(int x) {
    const auto all = gather("reduce_min", x);
    return *std::min_element(all.of, all.of + TESS_LANES);
}
static int sub_group_reduce_max(int x) {
    const auto all = gather("reduce_max", x);
    return *std::max_element(all.of, all.of + TESS_LANES);
}
static int sub_group_any(int x) {
    int any = 0;
    for (const int own : gather("any", x).of) any |= own;
    return any;
}
static uint intel_sub_group_shuffle_xor(uint x, uint n) {
    return gather("shuffle_xor", x).of[get_sub_group_local_id() ^ n];
}

/* Component n of a lane is element n * size of the subgroup + lane. All give one address. */
template <typename V, typename T> static V block_read(const T *from) {
    for (const T *other : gather("block_read", from).of)
        if (other != from) lockstep::fail("block_read: lanes have different addresses");
    if ((uintptr_t)from % 4 != 0) lockstep::fail("block_read: not aligned");
    from = (const T *)lockstep::shared(tess::shared_address(from), 8 * TESS_LANES * sizeof *from) +
           get_sub_group_local_id();
    const uint n = TESS_LANES;
    return {from[0],     from[n],     from[2 * n], from[3 * n],
            from[4 * n], from[5 * n], from[6 * n], from[7 * n]};
}
static ushort8 intel_sub_group_block_read_us8(const ushort *from) {
    return block_read<ushort8>(from);
}
static uint8 intel_sub_group_block_read8(const uint *from) { return block_read<uint8>(from); }

static inline uint pack2(float2 x) { return tess::pack<element_type>(x.x, x.y); }
static inline uint4 pack8(float8 x) {
    return {pack2({x.s0, x.s1}), pack2({x.s2, x.s3}), pack2({x.s4, x.s5}), pack2({x.s6, x.s7})};
}
#define convert_half2                      pack2
#define convert_half8                      pack8
#define INTEL_NARROW                       pack8
#define intel_convert_bfloat162_as_ushort2 pack2
#define intel_convert_bfloat168_as_ushort8 pack8

/* A lane of a gives 16 / lanes columns of each row, one of b a column of 16, in words of two. */
template <typename A> static float8 mad(A a, int8 b, float8 c) {
    struct {
        A a;
        int8 b;
        float8 c;
    } own = {a, b, c};
    typedef decltype(own) item;
    in_subgroup("matrix_mad", &own, [](void **of) {
        static_assert(sizeof(A) * TESS_LANES == 8 * 16 * 2, "8 rows of 16 elements");
        float x[8][16], y[16][TESS_LANES];
        for (uint n = 0; n < TESS_LANES; n++) {
            const uint each = 16 / TESS_LANES;
            ushort elements[8 * 16 / TESS_LANES], column[16];
            memcpy(elements, &((item *)of[n])->a, sizeof elements);
            memcpy(column, &((item *)of[n])->b, sizeof column);
            for (uint m = 0; m < 8; m++)
                for (uint e = 0; e < each; e++)
                    x[m][n * each + e] = tess::element<element_type>(elements[m * each + e]);
            for (uint k = 0; k < 16; k++) y[k][n] = tess::element<element_type>(column[k]);
        }
        for (uint n = 0; n < TESS_LANES; n++) {
            float *sums = (float *)&((item *)of[n])->c;
            for (uint m = 0; m < 8; m++) {
                double sum = sums[m];
                for (uint k = 0; k < 16; k++) sum += (double)x[m][k] * y[k][n];
                sums[m] = (float)sum;
            }
        }
    });
    return own.c;
}
#define intel_sub_group_f16_f16_matrix_mad_k16   mad
#define intel_sub_group_bf16_bf16_matrix_mad_k16 mad

/* ------------------------------------------------------------------ the kernel */

#define INTEL_ATTRIBUTES
#define INTEL_MEMORY(m) \
    intel_memory *const m = (intel_memory *)lockstep::shared(0, sizeof(intel_memory));

#define TESS_FORWARD_ALONE
#include "kernels/intel_dpas.cl"

#define NAME_OF(dtype, dims, lanes) intel_lockstep_##dtype##_##dims##_##lanes
#define NAME(dtype, dims, lanes)    NAME_OF(dtype, dims, lanes)

extern "C" void NAME(TESS_DTYPE, LOCKSTEP_DIMS,
                     LOCKSTEP_LANES)(unsigned groups, void *const *buffers, const tess_args *args) {
    static_assert(sizeof(intel_memory) <= 64 << 10, "it fits the memory of a workgroup");
    lockstep_run(forward, groups, TESS_THREADS, sizeof(intel_memory), buffers, args);
}
