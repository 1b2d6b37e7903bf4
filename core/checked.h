/* SPDX-License-Identifier: Apache-2.0 */
/* 64-bit arithmetic that reports overflow. Each function returns false on overflow and leaves *out
 * undefined. */
#ifndef TESSERA_CORE_CHECKED_H
#define TESSERA_CORE_CHECKED_H

#include <stdbool.h>
#include <stdint.h>

static inline bool checked_add(uint64_t a, uint64_t b, uint64_t *out) {
    return !__builtin_add_overflow(a, b, out);
}
static inline bool checked_mul(uint64_t a, uint64_t b, uint64_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool checked_align(uint64_t a, uint64_t alignment, uint64_t *out) {
    if (!checked_add(a, alignment - 1, out)) return false;
    *out &= ~(alignment - 1);
    return true;
}
static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }
/* of a >= 0 */
static inline int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

#endif
