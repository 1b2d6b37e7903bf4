/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel for Ampere and later on the host, for the simulated driver: float32 alone. */
#include "lockstep.h"

/* The kernel for few rows has other things of these names. */
#define shared_memory sm80_memory
#define mainloop      sm80_mainloop
#define forward       sm80_forward
#include "kernels/sm80.cu"

/* Each run has its own order of threads and time of copies. */
extern "C" void lockstep_tf32(int head_dim, unsigned groups, const tess_sm80_args *args) {
    static unsigned runs;
    const unsigned seed = runs++;
#define RUN(D, ROWS, ...)                                                                       \
    if (head_dim == (D))                                                                        \
        lockstep::run(groups, TESS_SM80_THREADS, TESS_TF32_SHARED(D, ROWS, args->stages), seed, \
                      [&] { tess_sm80_f32_##D(*args); });
    TESS_TF32_INSTANCES(RUN)
}
