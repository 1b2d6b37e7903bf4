/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Warpgroup matrix products of Hopper: D[64][N] (+)= A[64][16] B[16][N], float accumulators, 16-bit
 * operands. Inline assembly knows no arrays, so the registers of every shape are spelled out. `ss`:
 * A and B from shared memory; `rs`: A from registers. B of `ss` is K-major (keys of the first
 * product) or N-major (values of the second one); A of `ss` is K-major unless it is M-major, which
 * has the number of N_MAJOR; B of `rs` is N-major. accumulate 0 overwrites D.
 */
#ifndef TESS_CUDA_WGMMA_CUH
#define TESS_CUDA_WGMMA_CUH

#include "kernels/mma.cuh"

namespace tess {

__device__ __forceinline__ void warpgroup_arrive() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void warpgroup_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N> __device__ __forceinline__ void warpgroup_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* A register fence. Products write registers behind the compiler's back: nothing that reads them
 * may move above the wait. */
template <int N> __device__ __forceinline__ void register_fence(float (&r)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(r[i])::"memory");
}

/* The low word of a matrix descriptor, for a swizzled matrix in shared memory with rows of 128
 * bytes. `leading` is for N-major matrices: the bytes from 64 columns to the next 64. A matrix that
 * begins `bytes` further on has a descriptor that is bytes / 16 larger. */
__device__ __forceinline__ uint32_t descriptor_low(const void *at, uint32_t leading) {
    return (shared_address(at) & 0x3ffff) >> 4 | leading >> 4 << 16;
}
__device__ __forceinline__ uint64_t matrix_descriptor(uint32_t low) {
    return (uint64_t)(1024 >> 4 /* from 8 rows to the next 8 */ |
                      1u << 30 /* swizzled over 128 bytes */)
               << 32 |
           low;
}

enum { K_MAJOR = 0, N_MAJOR = 1 };

template <typename T, int N> struct wgmma;

#define REGISTERS_32                                                         \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define REGISTERS_48  \
    REGISTERS_32 ", " \
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define REGISTERS_64  \
    REGISTERS_48 ", " \
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define REGISTERS_96                                                                   \
    REGISTERS_64                                                                       \
    ", "                                                                               \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define REGISTERS_128                                                                             \
    REGISTERS_96 ", "                                                                             \
                 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, "     \
                 "%109, %110, %111, "                                                             \
                 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, " \
                 "%125, %126, %127"

#define FLOATS_8(i)                                                                             \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define FLOATS_32  FLOATS_8(0), FLOATS_8(8), FLOATS_8(16), FLOATS_8(24)
#define FLOATS_48  FLOATS_32, FLOATS_8(32), FLOATS_8(40)
#define FLOATS_64  FLOATS_48, FLOATS_8(48), FLOATS_8(56)
#define FLOATS_96  FLOATS_64, FLOATS_8(64), FLOATS_8(72), FLOATS_8(80), FLOATS_8(88)
#define FLOATS_128 FLOATS_96, FLOATS_8(96), FLOATS_8(104), FLOATS_8(112), FLOATS_8(120)

/* The numbers behind `count` registers are those of the operands that follow the accumulators. */
#define SHAPE(type, name, n, count, i0, i1, i2, i3, i4, i5)                                       \
    template <> struct wgmma<type, n> {                                                           \
        template <int B_MAJOR, int A_MAJOR = K_MAJOR>                                             \
        static __device__ __forceinline__ void ss(float (&d)[count], uint64_t a, uint64_t b,      \
                                                  int accumulate) {                               \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #i2 ", 0;\n"                        \
                         "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." name "." name          \
                         " {" REGISTERS_##count "}, %" #i0 ", %" #i1 ", p, 1, 1, %" #i3 ", %" #i4 \
                                                ";\n}"                                            \
                         : FLOATS_##count                                                         \
                         : "l"(a), "l"(b), "r"(accumulate), "n"(A_MAJOR), "n"(B_MAJOR));          \
        }                                                                                         \
        static __device__ __forceinline__ void rs(float (&d)[count], const uint32_t (&a)[4],      \
                                                  uint64_t b, int accumulate) {                   \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #i5 ", 0;\n"                        \
                         "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." name "." name          \
                         " {" REGISTERS_##count "}, {%" #i0 ", %" #i1 ", %" #i2 ", %" #i3         \
                                                "}, %" #i4 ", p, 1, 1, 1;\n}"                     \
                         : FLOATS_##count                                                         \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));  \
        }                                                                                         \
    };
#define SHAPES(n, count, ...)                    \
    SHAPE(bf16_t, "bf16", n, count, __VA_ARGS__) \
    SHAPE(f16_t, "f16", n, count, __VA_ARGS__)
SHAPES(64, 32, 32, 33, 34, 35, 36, 37)
SHAPES(96, 48, 48, 49, 50, 51, 52, 53)
SHAPES(128, 64, 64, 65, 66, 67, 68, 69)
SHAPES(192, 96, 96, 97, 98, 99, 100, 101)
SHAPES(256, 128, 128, 129, 130, 131, 132, 133)

#undef SHAPES
#undef SHAPE
#undef FLOATS_8
#undef FLOATS_32
#undef FLOATS_48
#undef FLOATS_64
#undef FLOATS_96
#undef FLOATS_128
#undef REGISTERS_32
#undef REGISTERS_48
#undef REGISTERS_64
#undef REGISTERS_96
#undef REGISTERS_128

} // namespace tess

#endif // TESS_CUDA_WGMMA_CUH
