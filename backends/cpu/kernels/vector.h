/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Vectors of VL floats on top of the compilers' vector extension, with intrinsics only where the
 * extension does not reach the right instruction. The file that includes this defines VL (4, 8 or
 * 16) to fit the instruction set that it is compiled for.
 */
#ifndef TESSERA_CPU_VECTOR_H
#define TESSERA_CPU_VECTOR_H

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#define INLINE static inline __attribute__((always_inline))

/* Unrolls the loop that follows, whose bounds are constants, so that arrays of vectors become
 * registers. */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* Pins a value to a register at this point. Without it gcc moves multiply-adds of a register block
 * past each other and runs out of registers. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__SSE__)
#define VKEEP(x) __asm__("" : "+v"(x))
#elif defined(__GNUC__) && !defined(__clang__) && defined(__aarch64__)
#define VKEEP(x) __asm__("" : "+w"(x))
#else
#define VKEEP(x) (void)0
#endif

typedef float vf __attribute__((vector_size(VL * 4)));
typedef int32_t vi __attribute__((vector_size(VL * 4)));
typedef uint32_t vu __attribute__((vector_size(VL * 4)));
/* for memory of the caller, aligned to elements of any type only */
typedef float vf_any __attribute__((vector_size(VL * 4), aligned(2), may_alias));
typedef uint16_t vh __attribute__((vector_size(VL * 2)));
typedef uint16_t vh_any __attribute__((vector_size(VL * 2), aligned(2), may_alias));

INLINE vf vload(const float *p) { return *(const vf *)p; }
INLINE void vstore(float *p, vf v) { *(vf *)p = v; }
INLINE vf vload_any(const void *p) { return *(const vf_any *)p; }
INLINE void vstore_any(void *p, vf v) { *(vf_any *)p = v; }
/* Stores past the caches, at a multiple of the vector's size. vstream_end comes before others see
 * it. STREAMS: there are such stores. */
#if VL == 16 && defined(__AVX512F__)
#define STREAMS 1
INLINE void vstream(void *p, vf v) { _mm512_stream_ps(p, (__m512)v); }
INLINE void vstream_end(void) { _mm_sfence(); }
#elif VL == 8 && defined(__AVX__)
#define STREAMS 1
INLINE void vstream(void *p, vf v) { _mm256_stream_ps(p, (__m256)v); }
INLINE void vstream_end(void) { _mm_sfence(); }
#else
#define STREAMS 0
INLINE void vstream(void *p, vf v) { *(vf *)p = v; }
INLINE void vstream_end(void) {}
#endif
INLINE vf vset(float x) { return x - (vf){0}; }
INLINE vi viset(int32_t x) { return x - (vi){0}; }
INLINE vf vselect(vi mask, vf a, vf b) { return (vf)((mask & (vi)a) | (~mask & (vi)b)); }

/* The larger of two; `b` when either is NaN (aarch64: NaN), so a NaN given as `b` survives
 * everywhere. */
INLINE vf vmax(vf a, vf b) {
#if VL == 16 && defined(__AVX512F__)
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif VL == 8 && defined(__AVX__)
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#elif VL == 4 && defined(__SSE__)
    return (vf)_mm_max_ps((__m128)a, (__m128)b);
#elif VL == 4 && defined(__aarch64__)
    return (vf)vmaxq_f32((float32x4_t)a, (float32x4_t)b);
#else
    return vselect((vi)(a > b), a, b);
#endif
}

INLINE int vany(vi mask) {
#if VL == 16 && defined(__AVX512DQ__)
    return _mm512_movepi32_mask((__m512i)mask) != 0;
#elif VL == 8 && defined(__AVX__)
    return _mm256_movemask_ps((__m256)mask) != 0;
#elif VL == 4 && defined(__SSE__)
    return _mm_movemask_ps((__m128)mask) != 0;
#else
    int32_t any = 0;
    for (int i = 0; i < VL; i++) any |= mask[i];
    return any != 0;
#endif
}

/*
 * 2^x for x <= about 100. Round to the nearest integer by adding 1.5 * 2^23 + 127: the low bits
 * then hold the biased exponent. Degree 5 on [-1/2, 1/2], relative error 2.2e-7. Everything at or
 * below -127 gives exactly 0 (biased exponent 0), -inf included, and never a denormal; NaN gives
 * NaN.
 */
INLINE vf vexp2(vf x) {
    const vf magic = vset(12582912.0f + 127.0f);
    x = vmax(vset(-127.0f), x);
    vf t = x + magic;
    vf f = x - (t - magic);
    vf p = vset(0x1.5c08e6p-10f);
    p = p * f + vset(0x1.3d0c52p-7f);
    p = p * f + vset(0x1.c6b6e4p-5f);
    p = p * f + vset(0x1.ebf918p-3f);
    p = p * f + vset(0x1.62e428p-1f);
    p = p * f + vset(0x1.000002p+0f);
    return p * (vf)((vu)t << 23);
}

/* The same for results that are rounded to bf16: relative error 2.7e-6. With AVX-512, [0, 1) is
 * left of x, and the power of two is exact; tiny results may be denormal. */
INLINE vf vexp2_short(vf x) {
#if VL == 16 && defined(__AVX512DQ__)
    const vf f = (vf)_mm512_reduce_ps((__m512)x, 1); /* x - floor(x) */
    vf p = vset(0x1.bb7cd4p-7f);
    p = p * f + vset(0x1.aa13f0p-5f);
    p = p * f + vset(0x1.ee798ap-3f);
    p = p * f + vset(0x1.62d166p-1f);
    p = p * f + vset(0x1.00002cp+0f);
    return (vf)_mm512_scalef_ps((__m512)p, (__m512)x);
#else
    return vexp2(x);
#endif
}

/* Element conversions. bf16 and f16 round to nearest even; a NaN stays a NaN. */
INLINE vf vfrom_bf16(const uint16_t *p) {
#if VL == 16 && defined(__AVX512F__)
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return (vf)_mm512_slli_epi32(wide, 16);
#elif VL == 8 && defined(__AVX2__)
    return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16);
#else
    return (vf)(__builtin_convertvector(*(const vh_any *)p, vu) << 16);
#endif
}
INLINE void vto_bf16(uint16_t *p, vf v) {
    vu u = (vu)v;
    vu r = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    vu nan = (u >> 16) | 0x40;
    vi ordered = (vi)(v == v); /* NOLINT(misc-redundant-expression): false where v is NaN */
    r = (vu)(((vi)r & ordered) | ((vi)nan & ~ordered));
    *(vh_any *)p = __builtin_convertvector(r, vh);
}

/* Words of two bf16, `even` in the low half. */
INLINE vf vpair_bf16(vf even, vf odd) {
#if VL == 16 && defined(__AVX512BF16__)
    __m512i halves = (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even);
    const __m512i index =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return (vf)_mm512_permutexvar_epi16(index, halves);
#else
    vu e = (vu)even, o = (vu)odd;
    e = (e + 0x7fff + ((e >> 16) & 1)) >> 16;
    o = (o + 0x7fff + ((o >> 16) & 1)) & 0xffff0000u;
    return (vf)(e | o);
#endif
}

/* The same for results, which may be NaN and stay so. */
INLINE vf vpair_results(vf even, vf odd) {
    const vf pair = vpair_bf16(even, odd);
#if VL == 16 && defined(__AVX512BF16__)
    return pair;
#else
    /* True where it is NaN. NOLINTNEXTLINE(misc-redundant-expression) */
    const vi even_nan = (vi)(even != even), odd_nan = (vi)(odd != odd);
    return (vf)((vu)pair | ((vu)even_nan & 0x7fc0u) | ((vu)odd_nan & 0x7fc00000u));
#endif
}

static inline float half_bits_to_float(uint16_t h) {
    union {
        uint32_t u;
        float f;
    } x = {((uint32_t)(h & 0x7fff) << 13) + (112u << 23)};
    if ((h & 0x7c00) == 0)
        /* denormal or zero; no denormal f32 on the way, whatever the rounding mode says of them */
        x.f = (float)(h & 0x3ff) * 0x1p-24f;
    if ((h & 0x7c00) == 0x7c00) x.u |= 0x7f800000u;
    x.u |= (uint32_t)(h & 0x8000) << 16;
    return x.f;
}
static inline uint16_t float_to_half_bits(float f) {
    union {
        float f;
        uint32_t u;
    } x = {f};
    uint32_t sign = (x.u >> 16) & 0x8000u, a = x.u & 0x7fffffffu;
    if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((a >> 13) & 0x1ffu));
    if (a >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* rounds to 65536 or more */
    /* denormal f16: let the addition round at 2^-24 */
    if (a < 0x38800000u) {
        x.u = a;
        x.f += 0.5f;
        return (uint16_t)(sign | (x.u - 0x3f000000u));
    }
    a += 0xfffu + ((a >> 13) & 1u);
    return (uint16_t)(sign | ((a - 0x38000000u) >> 13));
}
INLINE vf vfrom_f16(const uint16_t *p) {
#if VL == 16 && defined(__AVX512F__)
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
#elif VL == 8 && defined(__F16C__)
    return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
#elif VL == 4 && defined(__aarch64__)
    return (vf)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
#else
    vf v = {0};
    for (int i = 0; i < VL; i++) {
        uint16_t h;
        memcpy(&h, (const char *)p + 2 * i, 2);
        v[i] = half_bits_to_float(h);
    }
    return v;
#endif
}
INLINE void vto_f16(uint16_t *p, vf v) {
#if VL == 16 && defined(__AVX512F__)
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
#elif VL == 8 && defined(__F16C__)
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
#elif VL == 4 && defined(__aarch64__)
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)v)));
#else
    for (int i = 0; i < VL; i++) {
        uint16_t h = float_to_half_bits(v[i]);
        memcpy((char *)p + 2 * i, &h, 2);
    }
#endif
}

/* Conversion of 8-bit codes. The bits of an E4M3 code, moved to their places in a float16, make its
 * number divided by CODE_SCALE_E4M3, denormal codes included; the scale of the row makes up for it.
 * Only NaN has to be set apart. */
#define CODE_SCALE_E4M3 256.0f
typedef uint8_t vb __attribute__((vector_size(VL)));
typedef int8_t vc __attribute__((vector_size(VL)));

INLINE vf vfrom_i8(const void *p) {
#if VL == 16 && defined(__AVX512F__)
    return (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p)));
#elif VL == 8 && defined(__AVX2__)
    return (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p)));
#else
    vc codes;
    memcpy(&codes, p, VL);
    return __builtin_convertvector(__builtin_convertvector(codes, vi), vf);
#endif
}

INLINE vf vfrom_e4m3(const void *p) {
#if VL == 16 && defined(__AVX512BW__) && defined(__AVX512VL__)
    const __m128i codes = _mm_loadu_si128(p);
    const __m128i low = _mm_set1_epi8(0x7f);
    const __mmask16 numbers = _mm_cmpneq_epi8_mask(_mm_and_si128(codes, low), low);
    const __m256i halves = _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7),
                                            _mm256_set1_epi16((short)0xbf80));
    return (vf)_mm512_mask_cvtph_ps(_mm512_set1_ps(__builtin_nanf("")), numbers, halves);
#elif VL == 8 && defined(__AVX2__) && defined(__F16C__)
    const __m128i codes = _mm_cvtepi8_epi16(_mm_loadl_epi64(p));
    const __m128i low = _mm_set1_epi16(0x7f);
    const __m128i none = _mm_cmpeq_epi16(_mm_and_si128(codes, low), low);
    const __m128i halves = _mm_and_si128(_mm_slli_epi16(codes, 7), _mm_set1_epi16((short)0xbf80));
    return (vf)_mm256_cvtph_ps(_mm_or_si128(halves, _mm_and_si128(none, _mm_set1_epi16(0x7e00))));
#else
    vb codes;
    memcpy(&codes, p, VL);
    const vu all = __builtin_convertvector(codes, vu), size = all & 0x7f;
    /* A denormal code is the difference of two normal numbers. */
    const vu tiny = (vu)(size < 8) & (1u << 23);
    const vf number =
        (vf)((size << 20) + (112u << 23) + tiny) - (vf)((vu)(size < 8) & (113u << 23));
    const vu none = (vu)(size == 0x7f) & 0x7fc00000u;
    return (vf)((vu)number | (all & 0x80) << 24 | none);
#endif
}

/* The two halves of a and b interleaved: a0 b0 a1 b1 ... */
#if VL == 16
#define vzip_low(a, b) \
    __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define vzip_high(a, b) \
    __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#elif VL == 8
#define vzip_low(a, b)  __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define vzip_high(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#else
#define vzip_low(a, b)  __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define vzip_high(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#endif

/* Transposes VL x VL words: log2(VL) perfect shuffles of the rows. */
INLINE void vtranspose(vf *r) {
    vf s[VL];
    for (int stage = 1; stage < VL; stage *= 2) {
        for (int i = 0; i < VL / 2; i++) {
            s[2 * i] = vzip_low(r[i], r[i + VL / 2]);
            s[2 * i + 1] = vzip_high(r[i], r[i + VL / 2]);
        }
        for (int i = 0; i < VL; i++) r[i] = s[i];
    }
}

/* f(i, half) of each lane. */
#if VL == 16
#define VLANES(f, half)                                                                         \
    f(0, half), f(1, half), f(2, half), f(3, half), f(4, half), f(5, half), f(6, half),         \
        f(7, half), f(8, half), f(9, half), f(10, half), f(11, half), f(12, half), f(13, half), \
        f(14, half), f(15, half)
#elif VL == 8
#define VLANES(f, half) \
    f(0, half), f(1, half), f(2, half), f(3, half), f(4, half), f(5, half), f(6, half), f(7, half)
#else
#define VLANES(f, half) f(0, half), f(1, half), f(2, half), f(3, half)
#endif
#define VOF_BOTH(i, half) ((i) & (half) ? (i) + VL : (i))
#define VACROSS(i, half)  ((i) ^ (half))

/* Adds the lanes of `a` that lie `half` apart, and those of `b`. The sums of `a` come to lanes
 * whose number has no bit `half`, those of `b` to the others. Two blends and a shuffle of one
 * vector are cheaper than two shuffles of two. */
INLINE vf vfold(vf a, vf b, const int half) {
#define VFOLD(half)                                                                \
    do {                                                                           \
        const vf own = __builtin_shufflevector(a, b, VLANES(VOF_BOTH, half)),      \
                 other = __builtin_shufflevector(b, a, VLANES(VOF_BOTH, half));    \
        return own + __builtin_shufflevector(other, other, VLANES(VACROSS, half)); \
    } while (0)
#if VL == 16
    if (half == 8) VFOLD(8);
#endif
#if VL >= 8
    if (half == 4) VFOLD(4);
#endif
    if (half == 2) VFOLD(2);
    VFOLD(1);
#undef VFOLD
}

/* Folds 1, 2, 4 or 8 vectors into one: lanes that lie `half` apart are added first, then those
 * twice as far apart. With a half of 1, the sums of x[i] are in the lanes whose number is i modulo
 * `count`. */
INLINE vf vfold_all(const vf *x, const int half, const int count) {
    if (count == 1) return x[0];
    if (count == 2) return vfold(x[0], x[1], half);
    const vf low = vfold(vfold(x[0], x[1], half), vfold(x[2], x[3], half), 2 * half);
    if (count == 4) return low;
    return vfold(low, vfold(vfold(x[4], x[5], half), vfold(x[6], x[7], half), 2 * half), 4 * half);
}

#endif
