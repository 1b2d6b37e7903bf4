/* SPDX-License-Identifier: Apache-2.0 */
/* The backward kernel for Ampere and later on the host, for the simulated driver. */
#include "lockstep.h"

/* What headers for every language need: the part of dialect_cuda.h that they use here. */
#define TESS_DIALECT_CUDA_H
#include "numbers_cuda.h"

#define TESS_TABLES           , const uint *tables, const tess_args &args
#define TESS_TABLES_OF_KERNEL , tables, args
#define TESS_PAGES            , const int *block_table TESS_TABLES
#define TESS_PAGE_ID(at)      (block_table[at])
#define TESS_WORD(at)         (tables[at])
#define TESS_WORD64(at) \
    ((tess_offset)((unsigned long long)tables[at] | (unsigned long long)tables[(at) + 1u] << 32))
#define TESS_FLAGS (args.flags)

struct vec4 {
    float x, y, z, w;
};
#define VEC4(a, b, c, d) (vec4{(a), (b), (c), (d)})
static inline vec4 operator*(vec4 a, float b) { return VEC4(a.x * b, a.y * b, a.z * b, a.w * b); }
static inline float tess_from_bits(uint bits) { return __uint_as_float(bits); }
static inline uint tess_to_bits(float x) { return __float_as_uint(x); }
static inline uint tess_min(uint a, uint b) { return a < b ? a : b; }

#include "kernels/sm80_backward.cu"

/* Each run has its own order of threads and time of copies. */
extern "C" void lockstep_backward(const char *name, unsigned groups,
                                  const tess_sm80_backward_args *args) {
    static unsigned runs;
    const unsigned seed = runs++;
#define RUN(kernel, threads, bytes) \
    if (strcmp(name, #kernel) == 0) \
        lockstep::run(groups, threads, bytes, seed, [&] { kernel(*args); });
#define RUN_PASS(NAME, BYTES, T, D, TILE, STEP, WARPS, STAGES)      \
    RUN(tess_sm80_backward_##NAME##_##T##_##D##_##TILE, (WARPS)*32, \
        TESS_SM80_BACKWARD_##BYTES##_SHARED(D, TILE, STEP, STAGES))
#define RUN_STRIPS(T, D)                                                         \
    RUN(tess_sm80_backward_delta_##T##_##D, TESS_SM80_BACKWARD_STRIP_THREADS, 0) \
    RUN(tess_sm80_backward_finish_##T##_##D, TESS_SM80_BACKWARD_STRIP_THREADS, 0)
#define RUN_SHAPE(D, TILE, STEP, WARPS, STAGES, ...)               \
    RUN_PASS(rows, ROWS, f16, D, TILE, STEP, WARPS, STAGES)        \
    RUN_PASS(rows, ROWS, bf16, D, TILE, STEP, WARPS, STAGES)       \
    RUN_PASS(columns, COLUMNS, f16, D, TILE, STEP, WARPS, STAGES)  \
    RUN_PASS(columns, COLUMNS, bf16, D, TILE, STEP, WARPS, STAGES) \
    RUN_PASS(single, COLUMNS, f16, D, TILE, STEP, WARPS, STAGES)   \
    RUN_PASS(single, COLUMNS, bf16, D, TILE, STEP, WARPS, STAGES)
#define RUN_SKEWED(D, TILE, STEP, WARPS, STAGES, ...)           \
    RUN_PASS(skewed, SKEWED, f16, D, TILE, STEP, WARPS, STAGES) \
    RUN_PASS(skewed, SKEWED, bf16, D, TILE, STEP, WARPS, STAGES)
    TESS_SM80_BACKWARD_SHAPES(RUN_SHAPE)
    TESS_SM80_BACKWARD_SKEWED_SHAPES(RUN_SKEWED)
    RUN_STRIPS(f16, 64)
    RUN_STRIPS(f16, 128)
    RUN_STRIPS(f16, 256)
    RUN_STRIPS(bf16, 64)
    RUN_STRIPS(bf16, 128)
    RUN_STRIPS(bf16, 256)
}
