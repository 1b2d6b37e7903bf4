/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products by whatever library the machine has, opened at run time; no header or link-time
 * dependency of any of them is needed. */
#ifndef TESSERA_BENCH_GEMM_H
#define TESSERA_BENCH_GEMM_H

#include <stddef.h>
#include <stdint.h>

enum { GEMM_PROVIDERS = 5 }; /* the last one is the suite's own loop */

/* A library made ready for n x n x n products of one dtype. */
typedef struct gemm gemm;

/* Name of a provider's first library file, for messages. */
const char *gemm_provider_name(int provider);
int gemm_provider_is_own(int provider);

/* Opens the provider and prepares variant `variant` (0, 1, ... : libraries that can keep the second
 * operand in a layout of their own have two). NULL with a reason when the library is missing or
 * cannot do it. Environment variables for threads must have been set before. */
gemm *gemm_open(int provider, uint32_t dtype, int variant, int64_t n, int threads, char *reason,
                size_t reason_size);
const char *gemm_library(const gemm *g); /* "oneDNN 2.6.3" */
const char *gemm_method(const gemm *g);
int gemm_run(gemm *g);            /* 0, or -1 when the library reports a failure */
double gemm_flops(const gemm *g); /* of one gemm_run */
/* Whether a few elements of the product are right; operands in a layout of the library's own cannot
 * be checked and count as right. */
int gemm_check(const gemm *g);
void gemm_close(gemm *g);

#endif
