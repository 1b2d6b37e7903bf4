/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The few tile operations that the bf16 tile products need: eight tiles of 16 rows of 16 32-bit
 * words. With SOFT_TILES they are plain C, so that the products run, and are tested, on every
 * processor. A function that uses tiles begins with TILE_STATE and keeps nothing in them past its
 * end.
 */
#ifndef TESSERA_CPU_TILES_H
#define TESSERA_CPU_TILES_H

#include <stdint.h>
#include <string.h>

#if SOFT_TILES

typedef struct soft_tile {
    uint32_t word[16][16];
} soft_tile;

static inline float soft_float(uint32_t bits) {
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static inline void soft_load(soft_tile *tile, const void *from, size_t stride) {
    for (int row = 0; row < 16; row++)
        memcpy(tile->word[row], (const char *)from + row * stride, 64);
}
static inline void soft_store(const soft_tile *tile, void *to, size_t stride) {
    for (int row = 0; row < 16; row++) memcpy((char *)to + row * stride, tile->word[row], 64);
}
/* c[m][n] += sum over words k of both halves of a[m][k] times those of b[k][n], in float. */
static inline void soft_dot(soft_tile *c, const soft_tile *a, const soft_tile *b) {
    for (int m = 0; m < 16; m++) {
        float sum[16];
        memcpy(sum, c->word[m], 64);
        for (int k = 0; k < 16; k++) {
            const float even = soft_float(a->word[m][k] << 16),
                        odd = soft_float(a->word[m][k] & 0xffff0000u);
            for (int n = 0; n < 16; n++) {
                sum[n] += even * soft_float(b->word[k][n] << 16);
                sum[n] += odd * soft_float(b->word[k][n] & 0xffff0000u);
            }
        }
        memcpy(c->word[m], sum, 64);
    }
}

/* The same on the four signed bytes of each word, in int32. */
static inline void soft_dot_codes(soft_tile *c, const soft_tile *a, const soft_tile *b) {
    for (int m = 0; m < 16; m++)
        for (int k = 0; k < 16; k++) {
            int8_t left[4], right[4];
            memcpy(left, &a->word[m][k], 4);
            for (int n = 0; n < 16; n++) {
                memcpy(right, &b->word[k][n], 4);
                for (int i = 0; i < 4; i++)
                    c->word[m][n] += (uint32_t)((int32_t)left[i] * right[i]);
            }
        }
}

#define TILE_STATE                soft_tile tiles[8]
#define TILE_FENCE                (void)0
#define TILE_ZERO(n)              memset(&tiles[n], 0, sizeof tiles[n])
#define TILE_LOAD(n, at, stride)  soft_load(&tiles[n], at, stride)
#define TILE_LOAD_ONCE            TILE_LOAD
#define TILE_STORE(n, at, stride) soft_store(&tiles[n], at, stride)
#define TILE_DOT(c, a, b)         soft_dot(&tiles[c], &tiles[a], &tiles[b])
#define TILE_DOT_CODES(c, a, b)   soft_dot_codes(&tiles[c], &tiles[a], &tiles[b])

#else

#include <immintrin.h>

/* gcc does not treat a tile load as a read of memory. Stores before the function must not sink
 * below its loads. */
#define TILE_STATE               __asm__ volatile("" ::: "memory")
#define TILE_FENCE               TILE_STATE /* orders vector stores before tile loads */
#define TILE_ZERO(n)             _tile_zero(n)
#define TILE_LOAD(n, at, stride) _tile_loadd(n, at, stride)
#define TILE_LOAD_ONCE \
    _tile_stream_loadd /* a streaming load evicts less from the first-level cache */
#define TILE_STORE(n, at, stride) _tile_stored(n, at, stride)
#define TILE_DOT(c, a, b)         _tile_dpbf16ps(c, a, b)
#define TILE_DOT_CODES(c, a, b)   _tile_dpbssd(c, a, b)

#endif

#endif
