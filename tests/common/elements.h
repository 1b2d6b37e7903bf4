/* SPDX-License-Identifier: Apache-2.0 */
/* Elements of all types, wherever they lie. A header alone, because stand-ins of devices are
 * linked with nothing else of the project. */
#ifndef TESSERA_TESTS_ELEMENTS_H
#define TESSERA_TESTS_ELEMENTS_H

#include <math.h>
#include <string.h>

#include <tessera/tessera.h>

/* fraction 2^exponent, both small. Most of what a stand-in of a device does is reading elements,
 * and ldexpf takes ten times as long. */
static inline float element_scaled(int fraction, int exponent) {
    const uint32_t bits = (uint32_t)(exponent + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return (float)fraction * power;
}

static inline float element_from_half(uint16_t h) {
    const int exponent = h >> 10 & 31, fraction = h & 1023;
    const float sign = h >> 15 ? -1.0f : 1.0f;
    if (exponent == 31) return fraction ? NAN : sign * INFINITY;
    return sign * (exponent ? element_scaled(fraction + 1024, exponent - 25)
                            : element_scaled(fraction, -24));
}

/* Rounds to nearest, ties to even. */
static inline uint16_t element_to_half(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    const float magnitude = fabsf(f);
    if (isnan(f)) return (uint16_t)(sign | 0x7e00);
    if (magnitude == 0) return sign;
    if (magnitude >= 65520.0f) return (uint16_t)(sign | 0x7c00);
    int exponent = 0;
    frexpf(magnitude, &exponent);
    const int unit = exponent - 11 < -24 ? -24 : exponent - 11;
    /* up to 2048 units of the last place */
    const uint32_t steps = (uint32_t)rintf(ldexpf(magnitude, -unit));
    if (unit == -24) return (uint16_t)(sign | steps);
    return (uint16_t)(sign | (uint32_t)((unit + 24) * 1024 + (int)steps));
}

/* A code of TESS_F8E4M3. */
static inline float element_from_e4m3(uint8_t code) {
    const int exponent = code >> 3 & 15, fraction = code & 7;
    const float sign = code >> 7 ? -1.0f : 1.0f;
    if ((code & 0x7f) == 0x7f) return NAN;
    return sign *
           (exponent ? element_scaled(fraction + 8, exponent - 10) : element_scaled(fraction, -9));
}

static inline float element_load(uint32_t dtype, const void *base, int64_t index) {
    float f;
    uint16_t h;
    if (dtype == TESS_I8) return ((const int8_t *)base)[index];
    if (dtype == TESS_F8E4M3) return element_from_e4m3(((const uint8_t *)base)[index]);
    if (dtype == TESS_F32) {
        memcpy(&f, (const char *)base + index * 4, sizeof f);
        return f;
    }
    memcpy(&h, (const char *)base + index * 2, sizeof h);
    if (dtype == TESS_F16) return element_from_half(h);
    const uint32_t bits = (uint32_t)h << 16;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline void element_store(uint32_t dtype, void *base, int64_t index, float f) {
    if (dtype == TESS_F32) {
        memcpy((char *)base + index * 4, &f, sizeof f);
        return;
    }
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    const uint16_t h = dtype == TESS_F16 ? element_to_half(f)
                                         : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    memcpy((char *)base + index * 2, &h, sizeof h);
}

/* Of vectors of n elements, from two indices on. */
static inline double vector_dot(uint32_t dtype, uint32_t n, const void *a, int64_t a_at,
                                const void *b, int64_t b_at) {
    double sum = 0;
    for (uint32_t e = 0; e < n; e++)
        sum += (double)element_load(dtype, a, a_at + e) * (double)element_load(dtype, b, b_at + e);
    return sum;
}

static inline void vector_add(uint32_t dtype, uint32_t n, double *sums, double weight,
                              const void *from, int64_t at) {
    for (uint32_t e = 0; e < n && weight != 0; e++)
        sums[e] += weight * (double)element_load(dtype, from, at + e);
}

#endif
