/* SPDX-License-Identifier: Apache-2.0 */
/*
 * 8-bit codes as words of two bf16, for dot products of such words. bf16 holds the number of every
 * code exactly. A table has the two bytes of 128 numbers, for the low 7 bits of an E4M3 code or the
 * magnitude of an int8. The sign comes from the code.
 */

/* The table of a storage type; entry 0 of int8 is that of -128. */
static void direct_fill_table(direct_turns *turns, uint32_t dtype) {
    for (uint32_t n = 0; n < 128; n++) {
        float x = (float)(n == 0 ? 128 : n);
        uint32_t bits = (n << 20) + (120u << 23); /* of E4M3 with an exponent */
        if (dtype == TESS_F8E4M3 && n < 8) x = (float)n * 0x1p-9f;
        if (dtype == TESS_I8 || n < 8) memcpy(&bits, &x, sizeof bits);
        if (dtype == TESS_F8E4M3 && n == 127) bits = 0x7fc00000u;
        turns->code_low[n] = (uint8_t)(bits >> 16);
        turns->code_high[n] = (uint8_t)(bits >> 24);
    }
}

#if VL == 16
/* Looks up the low 7 bits of each index in a table of bytes; bytes without a bit in `mask` become
 * 0. This needs AVX-512 VBMI, which not all processors with AVX-512 BF16 have, so the kernel takes
 * codes only where it is present. */
INLINE __m512i direct_look_up(const uint8_t *table, __m512i index, __mmask64 mask) {
    const __m512i low = _mm512_load_si512(table), high = _mm512_load_si512(table + 64);
    __asm__("vpermi2b %2, %1, %0 %{%3%}%{z%}" : "+v"(index) : "v"(low), "v"(high), "Yk"(mask));
    return index;
}

/* The words of 64 codes: the first 8 codes of each quarter, and the others. */
INLINE void direct_words_of(const direct_turns *turns, const uint32_t dtype, __m512i codes,
                            vf *out) {
    const __mmask64 all = ~(__mmask64)0;
    const __m512i size = dtype == TESS_I8 ? _mm512_abs_epi8(codes) : codes,
                  low = direct_look_up(turns->code_low, size, all),
                  high =
                      direct_look_up(turns->code_high, size,
                                     dtype == TESS_I8 ? _mm512_test_epi8_mask(codes, codes) : all),
                  /* the sign bit from the code, the rest from the table */
        top = _mm512_ternarylogic_epi32(codes, high, _mm512_set1_epi8(-128), 0xec);
    out[0] = (vf)_mm512_unpacklo_epi8(low, top);
    out[1] = (vf)_mm512_unpackhi_epi8(low, top);
}

#else
/* The bf16 number of an E4M3 code. */
INLINE uint16_t direct_word_of(const direct_turns *turns, uint8_t code) {
    const uint32_t sign = code & 0x80u, n = code & 0x7fu;
    return (uint16_t)((turns->code_high[n] | sign) << 8 | turns->code_low[n]);
}
#endif

#if !TILES
/* 64 codes from element i on of a row of n; those past the end are 0 and not read. */
INLINE __m512i direct_load_codes(const char *row, int32_t i, int32_t n, const int whole) {
    if (whole) return _mm512_loadu_si512(row + i);
    return _mm512_maskz_loadu_epi8(((__mmask64)1 << (n - i)) - 1, row + i);
}

/* Words of the codes of two keys, for four vectors of O. */
INLINE void direct_pair_codes(const direct_turns *turns, const uint32_t dtype,
                              const char *const *rows, int32_t i, int32_t n, const int whole,
                              vf *out) {
    const __m512i even = direct_load_codes(rows[0], i, n, whole),
                  odd = direct_load_codes(rows[1], i, n, whole);
    direct_words_of(turns, dtype, _mm512_unpacklo_epi8(even, odd), out);
    direct_words_of(turns, dtype, _mm512_unpackhi_epi8(even, odd), out + 2);
}
#endif
