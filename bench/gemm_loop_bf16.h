/* SPDX-License-Identifier: Apache-2.0 */
/* Products of bf16 with sums in f32, in the registers that a processor has for them. */
#ifndef TESSERA_BENCH_GEMM_LOOP_BF16_H
#define TESSERA_BENCH_GEMM_LOOP_BF16_H

enum { GEMM_BF16_BYTES = 24 << 10 }; /* of operands, aligned to 64 bytes */

/* FLOP of one repetition; 0: the processor has no such products. */
double gemm_bf16_flops(void);
const char *gemm_bf16_name(void);
/* Any thread may call it. */
void gemm_bf16_run(void *operands, int repeat);

#endif
