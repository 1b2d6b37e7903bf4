/* SPDX-License-Identifier: Apache-2.0 */
/* A matrix that is multiplied with itself, and whether the product is right. */
#ifndef TESSERA_BENCH_LIMITS_OPERANDS_H
#define TESSERA_BENCH_LIMITS_OPERANDS_H

#include <stddef.h>
#include <stdint.h>

typedef struct operands {
    void *data; /* n rows of n elements, owned */
    int64_t n;
    uint32_t dtype;
    size_t bytes;
} operands;

/* Random values: on equal ones the units take less power and clock higher than on real data.
 * Returns -1 when out of memory. */
int operands_make(operands *o, uint32_t dtype, int64_t n);
void operands_free(operands *o);
/* Whether a few elements are right; `fetch` copies one of the product from its offset in bytes. */
int operands_check(const operands *o, int (*fetch)(void *user, void *to, uint64_t at, size_t bytes),
                   void *user);

#endif
