/* SPDX-License-Identifier: Apache-2.0 */
/* ROCm's run-time compiler. */
#ifndef TESSERA_BENCH_LIMITS_HIPRTC_H
#define TESSERA_BENCH_LIMITS_HIPRTC_H

#include <stddef.h>

/* Machine code for the current GPU, which the caller frees, or NULL with a reason. */
char *hiprtc_compile(const char *source, char *why, size_t size);

#endif
