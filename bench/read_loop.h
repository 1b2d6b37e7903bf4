/* SPDX-License-Identifier: Apache-2.0 */
/* Reads an array as fast as one thread can. */
#ifndef TESSERA_BENCH_READ_LOOP_H
#define TESSERA_BENCH_READ_LOOP_H

#include <stddef.h>
#include <stdint.h>

enum { READ_LOOP_UNIT = 512 }; /* bytes are a multiple of this */

/* The sum of its words of 64 bits. `from` is aligned to 64 bytes. */
uint64_t read_loop(const void *from, size_t bytes);

#endif
