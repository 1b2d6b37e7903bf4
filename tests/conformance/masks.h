/* SPDX-License-Identifier: Apache-2.0 */
/* Block masks for tests, made when they are needed. */
#ifndef TESSERA_TESTS_CONFORMANCE_MASKS_H
#define TESSERA_TESTS_CONFORMANCE_MASKS_H

#include <stdint.h>

/* Fills mask[heads][n_blocks][n_blocks] from `seed`. `efficient`: a key block, once a later query
 * block does not read it, is not read by any still later one; otherwise the bits are independent,
 * about seven a row. */
void mask_fill(uint8_t *mask, int efficient, int heads, int64_t n_blocks, uint64_t seed);

/* The same into a .npy file of booleans. Returns 0, or -1 with a line on standard error. */
int mask_write(const char *path, int efficient, int heads, int64_t n_blocks, uint64_t seed);

#endif
