/* SPDX-License-Identifier: Apache-2.0 */
#include "gemm_loop_bf16.h"

#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__) && defined(__linux__)

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

/* AMX: 2 x 2 tiles of sums, each of 16 x 16 in f32, and operands of 16 rows of 64 bytes. */
enum { STEPS = 6, TILE = 1024, TILE_PRODUCT = 2 * 16 * 16 * 32 };
/* AVX-512: rows of A, each number against two vectors of B. */
enum { ROWS = 12, DEPTH = 128, LANES = 16 };

__attribute__((target("amx-tile,amx-bf16"))) static void run_amx(char *x, int repeat) {
    static const struct {
        uint8_t palette, start, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } shape = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
    _tile_loadconfig(&shape);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int r = 0; r < repeat; r++) {
        for (int k = 0; k < STEPS; k++) {
            const char *at = x + (ptrdiff_t)k * 4 * TILE;
            _tile_loadd(4, at, 64);
            _tile_loadd(5, at + TILE, 64);
            _tile_loadd(6, at + 2 * TILE, 64);
            _tile_loadd(7, at + 3 * TILE, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        __asm__ volatile("" : : "r"(x) : "memory"); /* each repetition is real work */
    }
    _tile_release();
}

__attribute__((target("avx512f,avx512bf16"))) static void run_avx512(char *x, int repeat) {
    __m512 sum[ROWS][2];
    for (int i = 0; i < ROWS; i++) sum[i][0] = sum[i][1] = _mm512_setzero_ps();
    for (int r = 0; r < repeat; r++) {
        for (int k = 0; k < DEPTH; k++) {
            const char *b = x + (ptrdiff_t)k * 128;
            const __m512bh b0 = (__m512bh)_mm512_load_si512(b),
                           b1 = (__m512bh)_mm512_load_si512(b + 64);
            const int *a = (const int *)(const void *)(x + (ptrdiff_t)k * ROWS * 4);
            for (int i = 0; i < ROWS; i++) {
                const __m512bh pair = (__m512bh)_mm512_set1_epi32(a[i]);
                sum[i][0] = _mm512_dpbf16_ps(sum[i][0], pair, b0);
                sum[i][1] = _mm512_dpbf16_ps(sum[i][1], pair, b1);
            }
        }
        __asm__ volatile("" : : "r"(x) : "memory");
    }
    for (int i = 0; i < ROWS; i++) {
        _mm512_store_ps(x + DEPTH * 128 + i * 128, sum[i][0]);
        _mm512_store_ps(x + DEPTH * 128 + i * 128 + 64, sum[i][1]);
    }
    __asm__ volatile("" : : "r"(x) : "memory");
}

static int has_amx(void) {
    enum { REQUEST = 0x1023, TILE_DATA = 18 };
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 22 & 1) || !(d >> 24 & 1)) return 0;
    return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0; /* the system gives it on request */
}

/* 2: AMX, 1: AVX-512, 0: neither. */
static int kind(void) {
    static int found = -1;
    unsigned a = 0, b, c, d;
    if (found >= 0) return found;
    const int vectors =
        __builtin_cpu_supports("avx512f") && __get_cpuid_count(7, 1, &a, &b, &c, &d);
    return found = has_amx() ? 2 : vectors && a >> 5 & 1;
}

const char *gemm_bf16_name(void) { return kind() == 2 ? "AMX" : "AVX-512 BF16"; }

double gemm_bf16_flops(void) {
    return kind() == 2 ? (double)STEPS * 4 * TILE_PRODUCT : kind() * 4.0 * ROWS * 2 * LANES * DEPTH;
}

void gemm_bf16_run(void *operands, int repeat) {
    if (kind() == 2)
        run_amx(operands, repeat);
    else
        run_avx512(operands, repeat);
}

#else

const char *gemm_bf16_name(void) { return ""; }
double gemm_bf16_flops(void) { return 0; }
void gemm_bf16_run(void *operands, int repeat) { (void)operands, (void)repeat; }

#endif
