/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel for few rows on the host, for the simulated driver. */
#include "lockstep.h"

#include "kernels/decode.cu"

/* Each run has its own order of threads and time of copies. */
extern "C" void lockstep_decode(int dtype, int kv_dtype, int head_dim, unsigned rows,
                                unsigned groups, const tess_decode_args *args) {
    static unsigned runs;
    const unsigned seed = runs++;
#define RUN(T, number, codes, name, element, D, ROWS, MOST, KEYS)                            \
    if (dtype == (number) && kv_dtype == (codes) && head_dim == (D) && rows == (ROWS))       \
        lockstep::run(groups, 32 * args->warps,                                              \
                      TESS_DECODE_SHARED(D, ROWS, TESS_DECODE_WARPS * (MOST), KEYS, element, \
                                         args->warps, args->stages),                         \
                      seed, [&] { tess_decode##ROWS##name##T##_##D(*args); });
#define RUN_F16(...)       RUN(f16, 1, 0, _, 2, __VA_ARGS__)
#define RUN_BF16(...)      RUN(bf16, 2, 0, _, 2, __VA_ARGS__)
#define RUN_E4M3_F16(...)  RUN(f16, 1, 3, _e4m3_, 1, __VA_ARGS__)
#define RUN_E4M3_BF16(...) RUN(bf16, 2, 3, _e4m3_, 1, __VA_ARGS__)
#define RUN_I8_F16(...)    RUN(f16, 1, 4, _i8_, 1, __VA_ARGS__)
#define RUN_I8_BF16(...)   RUN(bf16, 2, 4, _i8_, 1, __VA_ARGS__)
    TESS_DECODE_INSTANCES(RUN_F16)
    TESS_DECODE_INSTANCES(RUN_BF16)
    TESS_DECODE_CODED_INSTANCES(RUN_E4M3_F16)
    TESS_DECODE_CODED_INSTANCES(RUN_E4M3_BF16)
    TESS_DECODE_CODED_INSTANCES(RUN_I8_F16)
    TESS_DECODE_CODED_INSTANCES(RUN_I8_BF16)
}

extern "C" void lockstep_decode_merge(int dtype, unsigned groups, const tess_decode_args *args) {
    static unsigned runs;
    lockstep::run(groups, TESS_DECODE_MERGE_THREADS, TESS_DECODE_MERGE_SHARED, runs++, [&] {
        if (dtype == 1)
            tess_decode_merge_f16(*args);
        else
            tess_decode_merge_bf16(*args);
    });
}
