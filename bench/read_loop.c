/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Four streams a quarter of the array apart, each of two chains of sums: additions never wait for
 * each other, and more lines of the cache are under way than a single stream would have.
 */
#include "read_loop.h"

enum { STREAMS = 4, CHAINS = 2 * STREAMS, LANES = 8 };
typedef uint64_t vector __attribute__((vector_size(LANES * 8)));

#define DEFINE_LOOP(name, attributes)                                    \
    attributes static uint64_t name(const vector *from, size_t stream) { \
        vector sums[CHAINS] = {0};                                       \
        uint64_t sum = 0;                                                \
        for (size_t n = 0; n < stream; n += 2)                           \
            for (size_t i = 0; i < STREAMS; i++) {                       \
                sums[2 * i] += from[n + i * stream];                     \
                sums[2 * i + 1] += from[n + i * stream + 1];             \
            }                                                            \
        for (int i = 0; i < CHAINS; i++)                                 \
            for (int k = 0; k < LANES; k++) sum += sums[i][k];           \
        return sum;                                                      \
    }

#if defined(__x86_64__)
DEFINE_LOOP(loop_avx512, __attribute__((target("avx512f"))))
DEFINE_LOOP(loop_avx2, __attribute__((target("avx2"))))
#endif
DEFINE_LOOP(loop_base, )

uint64_t read_loop(const void *from, size_t bytes) {
    const size_t stream = bytes / sizeof(vector) / STREAMS;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return loop_avx512(from, stream);
    if (__builtin_cpu_supports("avx2")) return loop_avx2(from, stream);
#endif
    return loop_base(from, stream);
}
