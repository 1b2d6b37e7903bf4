/* SPDX-License-Identifier: Apache-2.0 */
/* What tess_append must make of a row where K and V have 8 bits: the formula of tess_append_desc
 * word by word, in floats, with codes found by looking at all of them. */
#ifndef TESSERA_TESTS_QUANTISED_H
#define TESSERA_TESTS_QUANTISED_H

#include "elements.h"

/* The code whose number is nearest; of two as near, the even one. */
static inline uint8_t quantised_code(uint32_t kv_dtype, float x) {
    uint8_t best = 0;
    float least = INFINITY;
    if (isnan(x)) return kv_dtype == TESS_F8E4M3 ? 0x7f : 0;
    const float most = kv_dtype == TESS_F8E4M3 ? 448.0f : 127.0f, bounded = x > most    ? most
                                                                            : x < -most ? -most
                                                                                        : x;
    for (int n = 0; n < 256; n++) {
        const uint8_t code = (uint8_t)n;
        const float number = kv_dtype == TESS_I8 ? (float)(int8_t)code : element_from_e4m3(code);
        if (isnan(number) || n == (kv_dtype == TESS_I8 ? 0x80 : 256)) continue;
        if (kv_dtype == TESS_F8E4M3 && !signbit(number) != !signbit(bounded)) continue;
        /* Neighbours differ by far less than 24 bits, so differences are exact. */
        const float distance = fabsf(number - bounded);
        if (distance < least || (distance == least && code % 2 == 0)) {
            best = code;
            least = distance;
        }
    }
    return best;
}

/* Writes the codes of `count` elements from `at` on; *scale is read if it is static. */
static inline void quantised_row(uint32_t dtype, const void *base, int64_t at, int count,
                                 uint32_t kv_dtype, int is_static, float *scale, uint8_t *codes) {
    float amax = 0;
    int finite = 1;
    for (int d = 0; d < count; d++) {
        const float x = element_load(dtype, base, at + d);
        finite &= isfinite(x) != 0;
        if (fabsf(x) > amax) amax = fabsf(x);
    }
    if (!is_static)
        *scale = !finite            ? NAN
                 : amax < 0x1p-100f ? 0
                                    : amax * (kv_dtype == TESS_I8 ? 1.0f / 127 : 1.0f / 448);
    const int has_codes = *scale >= 0x1p-109f && *scale <= (is_static ? 0x1p100f : INFINITY) &&
                          (!is_static || *scale >= 0x1p-100f);
    for (int d = 0; d < count; d++)
        codes[d] = has_codes
                       ? quantised_code(kv_dtype, element_load(dtype, base, at + d) * (1 / *scale))
                       : 0;
}

#endif
