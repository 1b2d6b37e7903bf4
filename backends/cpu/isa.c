/* SPDX-License-Identifier: Apache-2.0 */
/* What the processor can do and the system lets this process use: CPUID for the first, XGETBV (and
 * a permission, for AMX) for the second. */
#include "cpu.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Of arch_prctl: which extended states the system can give, ask for one, and the one of AMX. */
enum { GET_SUPPORTED_STATES = 0x1021, REQUEST_STATE = 0x1023, TILE_DATA = 18 };

static struct {
    int avx2, avx512, avx512_bf16, avx512_vbmi, amx, amx_int8;
    const char *amx_reason;
} found;

static uint64_t enabled_state(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static void probe(void) {
    uint32_t a, b, c, d, b7, c7, d7, a71 = 0;
    uint64_t states = 0;
    found.amx_reason = "the processor has no AMX";
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return;
    const int fma = (c & bit_FMA) && (c & bit_F16C) && (c & bit_AVX);
    const uint64_t state = enabled_state();
    const int ymm = (state & 0x6) == 0x6, zmm = (state & 0xe6) == 0xe6,
              tiles = (state & 0x60000) == 0x60000;
    if (!__get_cpuid_count(7, 0, &a, &b7, &c7, &d7)) return;
    if (a >= 1) __get_cpuid_count(7, 1, &a71, &b, &c, &d);
    const uint32_t wide = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    found.avx2 = fma && ymm && (b7 & bit_AVX2);
    found.avx512 = found.avx2 && zmm && (b7 & wide) == wide;
    found.avx512_bf16 = found.avx512 && (a71 & (1u << 5));
    found.avx512_vbmi = found.avx512 && (c7 & (1u << 1));
    if ((d7 & (1u << 24)) && (d7 & (1u << 22))) {
        if (!found.avx512_bf16)
            found.amx_reason = "the processor has AMX without AVX-512 BF16";
        else if (!tiles)
            found.amx_reason = "the system does not enable AMX tiles";
        else if (syscall(SYS_arch_prctl, GET_SUPPORTED_STATES, &states) != 0 ||
                 !(states >> TILE_DATA & 1))
            found.amx_reason = "the system does not give AMX tiles to processes (arch_prctl)";
        else
            found.amx = 1;
    }
    found.amx_int8 = found.amx && (d7 & (1u << 25));
}

int tess_cpu_isa_usable(enum cpu_isa isa, const char **reason) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, probe);
    switch (isa) {
    case CPU_ISA_ANY: return 1;
    case CPU_ISA_AVX2: *reason = "the processor has no AVX2 with FMA and F16C"; return found.avx2;
    case CPU_ISA_AVX512:
        *reason = "the processor has no AVX-512 F, BW, DQ and VL";
        return found.avx512;
    case CPU_ISA_AVX512_BF16:
        *reason = "the processor has no AVX-512 BF16";
        return found.avx512_bf16;
    case CPU_ISA_AVX512_VBMI:
        *reason = "the processor has no AVX-512 VBMI";
        return found.avx512_vbmi;
    case CPU_ISA_AMX_BF16: *reason = found.amx_reason; return found.amx;
    case CPU_ISA_AMX_INT8: *reason = "the processor has no AMX-INT8"; return found.amx_int8;
    case CPU_ISA_NEON: break;
    }
    *reason = "not built for this processor";
    return 0;
}

int tess_cpu_isa_request(enum cpu_isa isa, const char **reason) {
    if (isa != CPU_ISA_AMX_BF16 || syscall(SYS_arch_prctl, REQUEST_STATE, TILE_DATA) == 0) return 1;
    *reason = "the system refuses the use of AMX tiles (arch_prctl)";
    return 0;
}
#else
int tess_cpu_isa_request(enum cpu_isa isa, const char **reason) {
    (void)isa;
    (void)reason;
    return 1;
}

int tess_cpu_isa_usable(enum cpu_isa isa, const char **reason) {
    *reason = "not built for this processor";
#if defined(__aarch64__)
    return isa == CPU_ISA_ANY || isa == CPU_ISA_NEON; /* NEON is part of the architecture */
#else
    return isa == CPU_ISA_ANY;
#endif
}
#endif

void tess_cpu_isa_list(char *text, size_t size) {
    static const struct {
        enum cpu_isa isa;
        const char *name;
    } names[] = {{CPU_ISA_AVX2, "avx2"},
                 {CPU_ISA_AVX512, "avx512"},
                 {CPU_ISA_AVX512_BF16, "avx512_bf16"},
                 {CPU_ISA_AMX_BF16, "amx_bf16"},
                 {CPU_ISA_NEON, "neon"}};
#if defined(__x86_64__)
    snprintf(text, size, "x86-64");
#elif defined(__aarch64__)
    snprintf(text, size, "aarch64");
#else
    snprintf(text, size, "generic");
#endif
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *reason;
        const size_t used = strlen(text);
        if (tess_cpu_isa_usable(names[i].isa, &reason))
            snprintf(text + used, size - used, " %s", names[i].name);
    }
}

void tess_cpu_model_name(char *text, size_t size) {
    snprintf(text, size, "CPU");
    FILE *f = fopen("/proc/cpuinfo", "re");
    if (!f) return;
    char line[256];
    while (fgets(line, sizeof line, f)) {
        char *value = strchr(line, ':');
        if (!value || (strncmp(line, "model name", 10) != 0 && strncmp(line, "Model", 5) != 0))
            continue;
        for (value++; *value == ' ';) value++;
        value[strcspn(value, "\n")] = 0;
        if (*value) snprintf(text, size, "%s", value);
        break;
    }
    fclose(f);
}
