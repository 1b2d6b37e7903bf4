/* SPDX-License-Identifier: Apache-2.0 */
/* The fp64 reference: a plain loop over all keys with its own predicate of the pattern, written
 * from the formulas of docs/patterns.md and without any code of the planner. */
#ifndef TESSERA_SUPPORT_REFERENCE_H
#define TESSERA_SUPPORT_REFERENCE_H

#include "problem.h"

/* Whether head `head` of the problem keeps (query position p, key position t) in a sequence whose
 * keys end at kv_len. */
int reference_kept(const problem *p, int32_t head, int64_t position, int64_t key, int64_t kv_len);

/* Host arrays as the contiguous tensors of tess_plan_tensor, dtype of the problem; scales where K
 * and V have some. */
typedef struct reference_inputs {
    const void *q, *k, *v;
    const float *k_scale, *v_scale;
} reference_inputs;

/* One row: o[head_dim] and *lse in double. */
void reference_row(const problem *p, const reference_inputs *in, int64_t sequence, int32_t head,
                   int64_t row, double *o, double *lse);

/* The same row computed plainly with every intermediate rounded to the problem's dtype (f32: float
 * arithmetic), for the tolerance rule. */
void reference_row_same_type(const problem *p, const reference_inputs *in, int64_t sequence,
                             int32_t head, int64_t row, double *o, double *lse);

/* Conversions, round to nearest even. */
float half_to_float(uint16_t h);
uint16_t float_to_half(float f);
float bf16_to_float(uint16_t h);
uint16_t float_to_bf16(float f);
double load_element(uint32_t dtype, const void *base, int64_t index);
/* As many elements from `index` on, in float. */
void load_elements(uint32_t dtype, const void *base, int64_t index, int count, float *out);
/* The number of a code of TESS_F8E4M3, and the code of the number that is nearest (no NaN). */
float e4m3_to_float(uint8_t code);
uint8_t float_to_e4m3(float f);

/* Fills `count` elements of `dtype` with unit-normal numbers (rounded to dtype) that depend on
 * (seed, stream, index) only. */
void fill_normal(uint32_t dtype, void *data, int64_t count, uint64_t seed, uint32_t stream);

/* Fills rows of codes and their scales such that the numbers are nearly unit-normal, and scales
 * differ from row to row. */
void fill_codes(uint32_t dtype, void *data, float *scales, int64_t rows, int32_t elements,
                uint64_t seed, uint32_t stream);

#endif
