/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The floating-point mode of a worker's share of a launch: round to nearest, denormals flushed to
 * zero (as AMX and the bf16 dot products do in any case), no traps. Without it a result would
 * depend on the mode that the calling thread, one of the workers, happens to be in, and a caller
 * with traps enabled would be interrupted by a division that the kernels mean. Restoring brings the
 * caller's exception flags back too.
 */
#ifndef TESSERA_CPU_FP_MODE_H
#define TESSERA_CPU_FP_MODE_H

#include <stdint.h>

typedef struct cpu_fp_mode {
    uint64_t control, status;
} cpu_fp_mode;

#if defined(__x86_64__)
static inline cpu_fp_mode cpu_fp_enter(void) {
    const cpu_fp_mode before = {__builtin_ia32_stmxcsr(), 0};
    __builtin_ia32_ldmxcsr(0x9fc0); /* flush to zero, all exceptions masked, denormals are zero */
    return before;
}
static inline void cpu_fp_leave(cpu_fp_mode before) {
    __builtin_ia32_ldmxcsr((unsigned)before.control);
}
#elif defined(__aarch64__)
static inline cpu_fp_mode cpu_fp_enter(void) {
    cpu_fp_mode before;
    __asm__ volatile("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(before.control), "=r"(before.status));
    __asm__ volatile("msr fpcr, %0" ::"r"((uint64_t)1 << 24)); /* flush to zero */
    return before;
}
static inline void cpu_fp_leave(cpu_fp_mode before) {
    __asm__ volatile("msr fpcr, %0\n\tmsr fpsr, %1" ::"r"(before.control), "r"(before.status));
}
#else
#include <fenv.h>
static inline cpu_fp_mode cpu_fp_enter(void) {
    const cpu_fp_mode before = {(uint64_t)fegetround(), 0};
    fesetround(FE_TONEAREST);
    return before;
}
static inline void cpu_fp_leave(cpu_fp_mode before) { fesetround((int)before.control); }
#endif

#endif
