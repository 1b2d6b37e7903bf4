/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An outer-product micro-kernel like the inner loop of any BLAS: a few rows of A against two
 * vectors of B, sums in registers from the first repetition to the last, operands in the first
 * cache. The tile is as large as the registers of each instruction set allow, so the rate is close
 * to what the multipliers can do. Operands of 16 bits that the multipliers do not take are widened
 * to f32 on the way, as kernels do.
 */
#include "gemm_loop.h"

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <tessera/tessera.h>

#include "gemm_loop_bf16.h"
#include "machine.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

enum { DEPTH = 128, REPEAT = 40000, MAX_ROWS = 12, MAX_COLUMNS = 32 };

typedef float vector16 __attribute__((vector_size(64)));
typedef float vector8 __attribute__((vector_size(32)));
typedef float vector4 __attribute__((vector_size(16)));

typedef struct panel {
    float a[DEPTH * MAX_ROWS] __attribute__((aligned(64)));
    float b[DEPTH * MAX_COLUMNS] __attribute__((aligned(64)));
    float c[MAX_ROWS * MAX_COLUMNS] __attribute__((aligned(64)));
    uint16_t narrow[GEMM_BF16_BYTES / 2] __attribute__((aligned(64))); /* b in 16 bits */
} panel;
_Static_assert(DEPTH *MAX_COLUMNS <= GEMM_BF16_BYTES / 2, "room for b");

/* Defines a kernel of ROWS x 2 vectors. One body for all instruction sets; only the vector's width,
 * the number of rows and how B is loaded differ. */
#define DEFINE_KERNEL(name, attributes, vector, ROWS, LOAD)                    \
    attributes static void name(panel *p, int repeat) {                        \
        enum { LANES = sizeof(vector) / sizeof(float) };                       \
        vector sum[ROWS][2];                                                   \
        for (int i = 0; i < (ROWS); i++) sum[i][0] = sum[i][1] = (vector){0};  \
        for (int r = 0; r < repeat; r++) {                                     \
            for (int k = 0; k < DEPTH; k++) {                                  \
                vector b0 = LOAD(vector, p, (size_t)k * 2 * LANES);            \
                vector b1 = LOAD(vector, p, (size_t)k * 2 * LANES + LANES);    \
                for (int i = 0; i < (ROWS); i++) {                             \
                    float a = p->a[k * (ROWS) + i];                            \
                    sum[i][0] += a * b0;                                       \
                    sum[i][1] += a * b1;                                       \
                }                                                              \
            }                                                                  \
        }                                                                      \
        for (int i = 0; i < (ROWS); i++) {                                     \
            *(vector *)(p->c + (size_t)i * 2 * LANES) = sum[i][0];             \
            *(vector *)(p->c + (size_t)i * 2 * LANES + LANES) = sum[i][1];     \
        }                                                                      \
        __asm__ volatile("" : : "r"(p) : "memory"); /* all sums are wanted  */ \
    }

#define LOAD_F32(vector, p, at) (*(const vector *)((p)->b + (at)))

#if defined(__x86_64__)
#define AVX512             __attribute__((target("avx512f")))
#define AVX2               __attribute__((target("avx2,fma,f16c")))
#define HALF256(p, at)     _mm256_load_si256((const __m256i *)((p)->narrow + (at)))
#define HALF128(p, at)     _mm_load_si128((const __m128i *)((p)->narrow + (at)))
#define F16_512(v, p, at)  ((v)_mm512_cvtph_ps(HALF256(p, at)))
#define F16_256(v, p, at)  ((v)_mm256_cvtph_ps(HALF128(p, at)))
#define BF16_512(v, p, at) ((v)_mm512_slli_epi32(_mm512_cvtepu16_epi32(HALF256(p, at)), 16))
#define BF16_256(v, p, at) ((v)_mm256_slli_epi32(_mm256_cvtepu16_epi32(HALF128(p, at)), 16))
DEFINE_KERNEL(avx512_f32, AVX512, vector16, 12, LOAD_F32)
DEFINE_KERNEL(avx512_f16, AVX512, vector16, 12, F16_512)
DEFINE_KERNEL(avx512_bf16, AVX512, vector16, 12, BF16_512)
DEFINE_KERNEL(avx2_f32, AVX2, vector8, 6, LOAD_F32)
DEFINE_KERNEL(avx2_f16, AVX2, vector8, 6, F16_256)
DEFINE_KERNEL(avx2_bf16, AVX2, vector8, 6, BF16_256)
DEFINE_KERNEL(base_f32, , vector4, 6, LOAD_F32)
#elif defined(__aarch64__)
#define HALF64(p, at)      vld1_u16((p)->narrow + (at))
#define F16_128(v, p, at)  ((v)vcvt_f32_f16(vreinterpret_f16_u16(HALF64(p, at))))
#define BF16_128(v, p, at) ((v)vshll_n_u16(HALF64(p, at), 16))
DEFINE_KERNEL(base_f32, , vector4, 12, LOAD_F32)
DEFINE_KERNEL(base_f16, , vector4, 12, F16_128)
DEFINE_KERNEL(base_bf16, , vector4, 12, BF16_128)
#else
DEFINE_KERNEL(base_f32, , vector4, 12, LOAD_F32)
#endif

typedef struct variant {
    void (*run[3])(panel *, int); /* by type; NULL: not there */
    int rows, columns;
    const char *name;
} variant;

struct gemm_loop {
    int threads;
    uint32_t dtype;
    int units; /* whether the processor multiplies the type itself */
    variant v;
    panel *panels;
};

static variant choose(void) {
#if defined(__x86_64__)
    static const variant wide = {{avx512_f32, avx512_f16, avx512_bf16}, 12, 32, "AVX-512"};
    static const variant half = {{avx2_f32, avx2_f16, avx2_bf16}, 6, 16, "AVX2"};
    if (__builtin_cpu_supports("avx512f")) return wide;
    /* Whatever has AVX2 has F16C, which clang 14 cannot ask for. */
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return half;
    return (variant){{base_f32}, 6, 8, "128-bit vectors"};
#elif defined(__aarch64__)
    return (variant){{base_f32, base_f16, base_bf16}, 12, 8, "128-bit vectors"};
#else
    return (variant){{base_f32}, 12, 8, "128-bit vectors"};
#endif
}

gemm_loop *gemm_loop_create(int threads, uint32_t dtype) {
    const variant v = choose();
    const int units = dtype == TESS_BF16 && gemm_bf16_flops() > 0;
    gemm_loop *loop = units || v.run[dtype] ? calloc(1, sizeof *loop) : NULL;
    if (!loop) return NULL;
    loop->dtype = dtype;
    loop->units = units;
    loop->threads = threads < 1 ? 1 : threads;
    loop->v = v;
    void *panels = NULL;
    if (posix_memalign(&panels, 64, (size_t)loop->threads * sizeof(panel)) != 0) {
        free(loop);
        return NULL;
    }
    loop->panels = panels;
    /* 16-bit numbers from 0.5 to 2 */
    const int half = dtype == TESS_F16 ? 0x3800 : 0x3f00, steps = dtype == TESS_F16 ? 2047 : 251;
    for (int t = 0; t < loop->threads; t++) {
        for (int i = 0; i < DEPTH * MAX_ROWS; i++)
            loop->panels[t].a[i] = (float)((i * 37 + t) % 101) / 101.0f - 0.5f;
        for (int i = 0; i < DEPTH * MAX_COLUMNS; i++)
            loop->panels[t].b[i] = (float)((i * 53 + t) % 97) / 97.0f - 0.5f;
        for (int i = 0; i < GEMM_BF16_BYTES / 2; i++)
            loop->panels[t].narrow[i] = (uint16_t)(half + (i * 53 + t) % steps);
    }
    return loop;
}

const char *gemm_loop_name(const gemm_loop *loop) {
    return loop->units ? gemm_bf16_name() : loop->v.name;
}

int gemm_loop_widens(const gemm_loop *loop) { return !loop->units && loop->dtype != TESS_F32; }

double gemm_loop_flops(const gemm_loop *loop) {
    if (loop->units) return gemm_bf16_flops() * (double)REPEAT * loop->threads;
    return 2.0 * loop->v.rows * loop->v.columns * DEPTH * (double)REPEAT * loop->threads;
}

typedef struct work {
    const gemm_loop *loop;
    panel *panel;
} work;

static void *thread_main(void *argument) {
    const work *w = argument;
    if (w->loop->units)
        gemm_bf16_run(w->panel->narrow, REPEAT);
    else
        w->loop->v.run[w->loop->dtype](w->panel, REPEAT);
    return NULL;
}

int gemm_loop_run(gemm_loop *loop) {
    pthread_t *threads = calloc((size_t)loop->threads, sizeof *threads);
    work *works = calloc((size_t)loop->threads, sizeof *works);
    int started = 0, failed = !threads || !works;
    for (int t = 0; t < loop->threads && !failed; t++) {
        works[t] = (work){loop, &loop->panels[t]};
        failed = machine_thread(&threads[t], t, thread_main, &works[t]) != 0;
        started += !failed;
    }
    for (int t = 0; t < started; t++) pthread_join(threads[t], NULL);
    free(threads);
    free(works);
    return failed ? -1 : 0;
}

void gemm_loop_destroy(gemm_loop *loop) {
    if (!loop) return;
    free(loop->panels);
    free(loop);
}
