/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of K and V as codes of 8 bits, for every language: tess_append_desc says what a scale and a
 * code are. Whatever a device may round in its own way is done in integers here, so that all write
 * the same bytes; one product of floats is left, which all round alike.
 */
#ifndef TESS_QUANTISE_H
#define TESS_QUANTISE_H

#include "paging_args.h"

/* Bits of floats: 2^-100, 2^100, infinity, NaN. */
#define TESS_LEAST_AMAX_BITS  0x0d800000u
#define TESS_LARGE_SCALE_BITS 0x71800000u
#define TESS_INFINITY_BITS    0x7f800000u
#define TESS_NAN_BITS         0x7fc00000u

/* Bits of the float that an element of the new rows is. */
TESS_FUNCTION uint tess_widen_bits(uint element, uint flags) {
    if ((flags & TESS_PAGING_BF16) != 0u) return element << 16;
    if ((flags & TESS_PAGING_F16) == 0u) return element;
    const uint e = element >> 10 & 31u, m = element & 0x3ffu;
    uint size = ((e + 112u) << 23) | (m << 13);
    if (e == 31u) size = TESS_INFINITY_BITS | (m << 13);
    if (e == 0u) size = tess_to_bits(TESS_FLOAT(m) * 5.9604644775390625e-8f); /* 2^-24 */
    return (element & 0x8000u) << 16 | size;
}

/* Bits of 1 / x for a positive, normal x whose reciprocal is one too, to nearest even. */
TESS_FUNCTION uint tess_reciprocal_bits(uint x) {
    const uint divisor = (x & 0x7fffffu) | 0x800000u;
    /* 2^47 / divisor by long division */
    uint rest = 0x800000u, quotient = 0u;
    for (uint n = 0u; n < 25u; n++) {
        const uint fits = rest >= divisor ? 1u : 0u;
        quotient = quotient << 1 | fits;
        rest = (rest - fits * divisor) << 1;
    }
    /* A rest of a half does not occur. `rest` was doubled once too often to compare with one. */
    quotient += rest > divisor ? 1u : 0u;
    return ((253u - (x >> 23)) << 23) + (quotient - 0x800000u);
}

/* What a row is multiplied by, or 0 where its codes are 0, and the bits of its scale. */
TESS_STRUCT(tess_scaling) {
    uint scale;
    float inverse;
};

/* `amax`: bits of the largest magnitude of a row; NaN is the largest. */
TESS_FUNCTION tess_scaling tess_scaling_of(uint amax, uint flags) {
    tess_scaling x;
    x.scale = amax >= TESS_INFINITY_BITS ? TESS_NAN_BITS : 0u;
    x.inverse = 0.0f;
    if (amax >= TESS_LEAST_AMAX_BITS && amax < TESS_INFINITY_BITS) {
        /* 1 / 127 and 1 / 448 */
        x.scale = tess_to_bits(tess_from_bits(amax) * tess_from_bits((flags & TESS_PAGING_I8) != 0u
                                                                         ? 0x3c010204u
                                                                         : 0x3b124925u));
        x.inverse = tess_from_bits(tess_reciprocal_bits(x.scale));
    }
    return x;
}

/* The same for a scale that is given. */
TESS_FUNCTION tess_scaling tess_static_scaling(uint scale) {
    tess_scaling x;
    x.scale = scale;
    x.inverse = 0.0f;
    if (scale >= TESS_LEAST_AMAX_BITS && scale <= TESS_LARGE_SCALE_BITS)
        x.inverse = tess_from_bits(tess_reciprocal_bits(scale));
    return x;
}

/* The whole number nearest to a positive float of the given bits times 2^(150 - exponent); of two
 * as near, the even one. It has to be less than 2^24. */
TESS_FUNCTION uint tess_nearest_whole(uint size, uint exponent) {
    const uint shift = exponent - (size >> 23);
    if (shift > 24u) return 0u; /* less than a half */
    const uint all = (size & 0x7fffffu) | 0x800000u, whole = all >> shift,
               rest = all & ((1u << shift) - 1u), half_way = 1u << (shift - 1u);
    return whole + (rest > half_way || (rest == half_way && (whole & 1u) != 0u) ? 1u : 0u);
}

/* The code that is nearest to a number. */
TESS_FUNCTION uint tess_code_of(float number, uint flags) {
    const uint bits = tess_to_bits(number), size = bits & 0x7fffffffu;
    const bool negative = bits != size;
    if ((flags & TESS_PAGING_I8) != 0u) {
        if (size > TESS_INFINITY_BITS) return 0u;
        const uint whole = size >= 0x42fe0000u ? 127u : tess_nearest_whole(size, 150u);
        return negative ? (0u - whole) & 0xffu : whole;
    }
    uint code = 0x7fu;
    if (size < 0x3c800000u) /* below 2^-6, in steps of 2^-9 */
        code = tess_nearest_whole(size, 141u);
    else if (size < 0x43e00000u) /* below 448: the 3 highest bits of the mantissa */
        code = ((size + 0x7ffffu + (size >> 20 & 1u)) >> 20) - (120u << 3);
    else if (size <= TESS_INFINITY_BITS)
        code = 0x7eu;
    return negative && code != 0x7fu ? code | 0x80u : code;
}

#endif /* TESS_QUANTISE_H */
