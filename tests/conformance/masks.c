/* SPDX-License-Identifier: Apache-2.0 */
#include "masks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "npy.h"

static uint64_t mix(uint64_t z) {
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

void mask_fill(uint8_t *mask, int efficient, int heads, int64_t n_blocks, uint64_t seed) {
    const uint64_t base = mix(seed);
    const uint64_t share = n_blocks < 14 ? 500 : (uint64_t)(7000 / n_blocks);
    memset(mask, 0, (size_t)heads * (size_t)n_blocks * (size_t)n_blocks);
    for (int64_t h = 0; h < heads; h++) {
        uint8_t *head = mask + h * n_blocks * n_blocks;
        for (int64_t j = 0; j < n_blocks; j++) {
            if (efficient) {
                /* Query blocks [first, last] read key block j. Some key blocks are read by no one,
                 * and some also by earlier query blocks. */
                const uint64_t r = mix(base + (uint64_t)(h * n_blocks + j));
                const int64_t first = j - (int64_t)(r % 3), last = j + (int64_t)(r / 3 % 8) - 1;
                for (int64_t i = first < 0 ? 0 : first; i <= last && i < n_blocks; i++)
                    head[i * n_blocks + j] = 1;
                continue;
            }
            for (int64_t i = 0; i < n_blocks; i++)
                head[i * n_blocks + j] =
                    mix(base + (uint64_t)((h * n_blocks + i) * n_blocks + j)) % 1000 < share;
        }
    }
}

int mask_write(const char *path, int efficient, int heads, int64_t n_blocks, uint64_t seed) {
    const int64_t shape[3] = {heads, n_blocks, n_blocks};
    char error[256];
    uint8_t *mask = malloc((size_t)heads * (size_t)n_blocks * (size_t)n_blocks);
    if (!mask) {
        fprintf(stderr, "out of memory\n");
        return -1;
    }
    mask_fill(mask, efficient, heads, n_blocks, seed);
    const int result = npy_write(path, NPY_BOOL, 3, shape, mask, error, sizeof error);
    if (result != 0) fprintf(stderr, "%s\n", error);
    free(mask);
    return result;
}
