/* SPDX-License-Identifier: Apache-2.0 */
/* The suite's own multiply-add loops: the ceiling of last resort, for types that no installed
 * library for matrix products has. */
#ifndef TESSERA_BENCH_GEMM_LOOP_H
#define TESSERA_BENCH_GEMM_LOOP_H

#include <stdint.h>

typedef struct gemm_loop gemm_loop;

/* Of a type, TESS_F32 and so on; NULL when there is no loop of it here, or out of memory. */
gemm_loop *gemm_loop_create(int threads, uint32_t dtype);
/* Whether operands are widened to f32, since the processor multiplies nothing else. */
int gemm_loop_widens(const gemm_loop *loop);
const char *gemm_loop_name(const gemm_loop *loop); /* the instruction set that it uses */
double gemm_loop_flops(const gemm_loop *loop);     /* of one run, all threads */
int gemm_loop_run(gemm_loop *loop);                /* 0, or -1 when a thread could not be started */
void gemm_loop_destroy(gemm_loop *loop);

#endif
