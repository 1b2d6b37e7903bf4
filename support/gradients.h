/* SPDX-License-Identifier: Apache-2.0 */
/* The fp64 reference of backward: plain loops over all pairs with the predicate of reference.h, by
 * the formulas of tessera_backward.h and without any code of the planner. */
#ifndef TESSERA_SUPPORT_GRADIENTS_H
#define TESSERA_SUPPORT_GRADIENTS_H

#include "reference.h"

/* Inputs as contiguous tensors of the problem. lse and delta are in double, and belong to row r of
 * head h at number (token of r) * heads + h, where tokens count over the whole batch. An infinite
 * LSE: the row has no keys. */
typedef struct gradient_inputs {
    const void *q, *k, *v, *d_o;
    const double *lse, *delta;
} gradient_inputs;

/* The number of a row in lse and delta, and among the rows of Q; that of a key among the rows of K;
 * that of a row in a contiguous LSE. */
int64_t gradient_row(const problem *p, int64_t sequence, int32_t head, int64_t row);
int64_t gradient_key(const problem *p, int64_t sequence, int32_t kv_head, int64_t key);
int64_t gradient_lse_element(const problem *p, int64_t sequence, int32_t head, int64_t row);

/* Fills lse and delta from what a forward pass gave, as the contiguous tensors of the plan; d_lse
 * may be NULL. */
void gradient_rows(const problem *p, const void *o, const float *lse, const void *d_o,
                   const float *d_lse, double *lse_out, double *delta);

enum { GRADIENT_MOST = 256 }; /* elements of a head */

/*
 * One row of a gradient.
 *   exact: in double.
 *   same:  as a framework computes it in the problem's dtype: scores, their scaled values, P, dP,
 *          dS and the result are rounded to it, and sums run in float.
 *   terms: of each element the sum of squares of what is added up, where P * dP and P * Delta count
 *          one by one: what a float sum may lose where they cancel.
 */
typedef struct gradient {
    double exact[GRADIENT_MOST], same[GRADIENT_MOST], terms[GRADIENT_MOST];
} gradient;

void reference_d_q(const problem *p, const gradient_inputs *in, int64_t sequence, int32_t head,
                   int64_t row, gradient *d_q);

/* Of key `key` of the sequence, counted from its first one. */
void reference_d_kv(const problem *p, const gradient_inputs *in, int64_t sequence, int32_t kv_head,
                    int64_t key, gradient *d_k, gradient *d_v);

#endif
