/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel for few rows on the host, for the simulated driver. */
#include "lockstep.h"

#include "kernels/decode.cu"

/* Each run has its own order of threads and time of copies. */
extern "C" void lockstep_decode(int dtype, int head_dim, unsigned rows, unsigned groups,
                                const tess_decode_args *args) {
    static unsigned runs;
    const unsigned seed = runs++;
#define RUN(T, number, D, ROWS, MOST)                                                           \
    if (dtype == (number) && head_dim == (D) && rows == (ROWS))                                 \
        lockstep::run(                                                                          \
            groups, 32 * args->warps,                                                           \
            TESS_DECODE_SHARED(D, ROWS, TESS_DECODE_WARPS * (MOST), args->warps, args->stages), \
            seed, [&] { tess_decode##ROWS##_##T##_##D(*args); });
#define RUN_F16(D, ROWS, MOST)  RUN(f16, 1, D, ROWS, MOST)
#define RUN_BF16(D, ROWS, MOST) RUN(bf16, 2, D, ROWS, MOST)
    TESS_DECODE_INSTANCES(RUN_F16)
    TESS_DECODE_INSTANCES(RUN_BF16)
}
