/* SPDX-License-Identifier: Apache-2.0 */
/* The body on bf16 storage with AMX tiles for the products and 512-bit vectors for the softmax. */
#define KERNEL(x) tess_cpu_amx_bf16_##x
#define VL        16
#define NV        2
#define KB        8
#define DB        8
#define PAIRS     1
#define TILES     1
/* For one row of Q, a tile takes as long as for eight, and longer than vectors do. */
#define ONE_ROW(x) tess_cpu_avx512_bf16_##x
#include "body.inl"

/* Tile state belongs to a thread and costs every context switch while it is in use, so it lives
 * only as long as a worker's share of a launch. */
void tess_cpu_amx_bf16_enter(void) {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config __attribute__((aligned(64)));
    memset(&config, 0, sizeof config);
    config.palette = 1;
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = 64;
        config.rows[i] = 16;
    }
    /* gcc's intrinsic tells the compiler of the first eight bytes only, and the rest would be
     * dropped as dead stores. */
    __asm__ volatile("" ::"r"(&config) : "memory");
    _tile_loadconfig(&config);
}

void tess_cpu_amx_bf16_leave(void) { _tile_release(); }
