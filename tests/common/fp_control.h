/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The register that controls floating point in the calling thread, and values that a caller may
 * have put there. fegetround does not do: glibc answers it on x86 from the x87 control word, which
 * no kernel touches.
 */
#ifndef TESSERA_TESTS_FP_CONTROL_H
#define TESSERA_TESTS_FP_CONTROL_H

#include <stdint.h>

#if defined(__SSE__)
/* MXCSR. The six lowest bits are flags that any operation raises, and so not part of a mode. */
#define FP_CONTROL_BITS 0xffc0u
static const uint64_t fp_control_odd[] = {
    0x1f80 | 0x4000,          /* upward */
    0x1f80 | 0x2000 | 0x8000, /* downward, results flushed to zero */
    0x1f80 | 0x6000 | 0x0040, /* towards zero, operands flushed to zero */
    /* downward, traps of everything but inexact results */
    (0x1f80 & ~0x0f80) | 0x2000,
    /* upward, both flushes, traps of divisions by zero and denormals */
    (0x1f80 & ~0x0300) | 0x4000 | 0x8000 | 0x0040,
};
static inline uint64_t fp_control_read(void) { return __builtin_ia32_stmxcsr() & FP_CONTROL_BITS; }
static inline void fp_control_write(uint64_t value) { __builtin_ia32_ldmxcsr((unsigned)value); }
#elif defined(__aarch64__)
/* FPCR. Traps are left out: most processors have none, and read their bits as zero. */
static const uint64_t fp_control_odd[] = {
    (uint64_t)1 << 22,                     /* upward */
    (uint64_t)2 << 22 | (uint64_t)1 << 24, /* downward, flushed to zero */
    (uint64_t)3 << 22 | (uint64_t)1 << 25, /* towards zero, one NaN for all */
};
static inline uint64_t fp_control_read(void) {
    uint64_t value;
    __asm__ volatile("mrs %0, fpcr" : "=r"(value));
    return value;
}
static inline void fp_control_write(uint64_t value) {
    __asm__ volatile("msr fpcr, %0" ::"r"(value) : "memory");
}
#else
#include <fenv.h>
static const uint64_t fp_control_odd[] = {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
static inline uint64_t fp_control_read(void) { return (uint64_t)fegetround(); }
static inline void fp_control_write(uint64_t value) { fesetround((int)value); }
#endif

enum { FP_CONTROL_ODD = sizeof fp_control_odd / sizeof *fp_control_odd };

#endif
