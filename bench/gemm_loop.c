/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An outer-product micro-kernel like the inner loop of any BLAS: a few rows of A against two
 * vectors of B, sums in registers from the first repetition to the last, operands in the first
 * cache. The tile is as large as the registers of each instruction set allow, so the rate is close
 * to what the multipliers can do.
 */
#include "gemm_loop.h"

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "gemm_loop_bf16.h"
#include "machine.h"

enum { DEPTH = 128, REPEAT = 40000, MAX_ROWS = 12, MAX_COLUMNS = 32 };

typedef float vector16 __attribute__((vector_size(64)));
typedef float vector8 __attribute__((vector_size(32)));
typedef float vector4 __attribute__((vector_size(16)));

typedef struct panel {
    float a[DEPTH * MAX_ROWS] __attribute__((aligned(64)));
    float b[DEPTH * MAX_COLUMNS] __attribute__((aligned(64)));
    float c[MAX_ROWS * MAX_COLUMNS] __attribute__((aligned(64)));
    uint16_t narrow[GEMM_BF16_BYTES / 2] __attribute__((aligned(64)));
} panel;

/* Defines a kernel of ROWS x 2 vectors. One body for all instruction sets; only the vector's width
 * and the number of rows differ. */
#define DEFINE_KERNEL(name, attributes, vector, ROWS)                                \
    attributes static void name(panel *p, int repeat) {                              \
        enum { LANES = sizeof(vector) / sizeof(float) };                             \
        vector sum[ROWS][2];                                                         \
        for (int i = 0; i < (ROWS); i++) sum[i][0] = sum[i][1] = (vector){0};        \
        for (int r = 0; r < repeat; r++) {                                           \
            for (int k = 0; k < DEPTH; k++) {                                        \
                vector b0 = *(const vector *)(p->b + (size_t)k * 2 * LANES);         \
                vector b1 = *(const vector *)(p->b + (size_t)k * 2 * LANES + LANES); \
                for (int i = 0; i < (ROWS); i++) {                                   \
                    float a = p->a[k * (ROWS) + i];                                  \
                    sum[i][0] += a * b0;                                             \
                    sum[i][1] += a * b1;                                             \
                }                                                                    \
            }                                                                        \
        }                                                                            \
        for (int i = 0; i < (ROWS); i++) {                                           \
            *(vector *)(p->c + (size_t)i * 2 * LANES) = sum[i][0];                   \
            *(vector *)(p->c + (size_t)i * 2 * LANES + LANES) = sum[i][1];           \
        }                                                                            \
        __asm__ volatile("" : : "r"(p) : "memory"); /* all sums are wanted  */       \
    }

#if defined(__x86_64__)
DEFINE_KERNEL(kernel_avx512, __attribute__((target("avx512f"))), vector16, 12)
DEFINE_KERNEL(kernel_avx2, __attribute__((target("avx2,fma"))), vector8, 6)
DEFINE_KERNEL(kernel_base, , vector4, 6)
#else
DEFINE_KERNEL(kernel_base, , vector4, 12)
#endif

typedef struct variant {
    void (*run)(panel *, int);
    int rows, columns;
    const char *name;
} variant;

struct gemm_loop {
    int threads, is_bf16;
    variant v;
    panel *panels;
};

static variant choose(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return (variant){kernel_avx512, 12, 32, "AVX-512"};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return (variant){kernel_avx2, 6, 16, "AVX2"};
    return (variant){kernel_base, 6, 8, "128-bit vectors"};
#else
    return (variant){kernel_base, 12, 8, "128-bit vectors"};
#endif
}

gemm_loop *gemm_loop_create(int threads, int is_bf16) {
    gemm_loop *loop = is_bf16 && gemm_bf16_flops() == 0 ? NULL : calloc(1, sizeof *loop);
    if (!loop) return NULL;
    loop->is_bf16 = is_bf16;
    loop->threads = threads < 1 ? 1 : threads;
    loop->v = choose();
    void *panels = NULL;
    if (posix_memalign(&panels, 64, (size_t)loop->threads * sizeof(panel)) != 0) {
        free(loop);
        return NULL;
    }
    loop->panels = panels;
    for (int t = 0; t < loop->threads; t++) {
        for (int i = 0; i < DEPTH * MAX_ROWS; i++)
            loop->panels[t].a[i] = (float)((i * 37 + t) % 101) / 101.0f - 0.5f;
        for (int i = 0; i < DEPTH * MAX_COLUMNS; i++)
            loop->panels[t].b[i] = (float)((i * 53 + t) % 97) / 97.0f - 0.5f;
        for (int i = 0; i < GEMM_BF16_BYTES / 2; i++) /* from 0.5 to 2 */
            loop->panels[t].narrow[i] = (uint16_t)(0x3f00 + (i * 53 + t) % 251);
    }
    return loop;
}

const char *gemm_loop_name(const gemm_loop *loop) {
    return loop->is_bf16 ? gemm_bf16_name() : loop->v.name;
}

double gemm_loop_flops(const gemm_loop *loop) {
    if (loop->is_bf16) return gemm_bf16_flops() * (double)REPEAT * loop->threads;
    return 2.0 * loop->v.rows * loop->v.columns * DEPTH * (double)REPEAT * loop->threads;
}

typedef struct work {
    const gemm_loop *loop;
    panel *panel;
} work;

static void *thread_main(void *argument) {
    const work *w = argument;
    if (w->loop->is_bf16)
        gemm_bf16_run(w->panel->narrow, REPEAT);
    else
        w->loop->v.run(w->panel, REPEAT);
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
