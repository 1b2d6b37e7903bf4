/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tessera: gradients. tessera.h includes this header, and its general rules hold here too.
 *
 * A plan with `op = TESS_OP_BACKWARD` computes the gradients of tess_run's forward pass over the
 * same layout and batch (FlashAttention-2, arXiv 2307.08691, section 3.2, and the term of dLSE):
 *
 *     P[h, p, t]  = exp(scale * <Q[p, h, :], K[t, g, :]> - LSE[h, p])   of kept pairs, else 0
 *     Delta[h, p] = <dO[p, h, :], O[p, h, :]> - dLSE[h, p]
 *     dS[h, p, t] = P[h, p, t] * (<dO[p, h, :], V[t, g, :]> - Delta[h, p])
 *     dV[t, g, :] = sum over p, and over the query heads h of g, of P[h, p, t] * dO[p, h, :]
 *     dK[t, g, :] = scale * sum over the same of dS[h, p, t] * Q[p, h, :]
 *     dQ[p, h, :] = scale * sum over t of dS[h, p, t] * K[t, g, :]
 *
 * THE PLAN
 *
 * takes everything that a forward plan does but what belongs to a KV cache: page, kv_dtype,
 * TESS_PLAN_DEVICE_LENGTHS, TESS_PLAN_COMPACT and TESS_PLAN_APPEND are UNSUPPORTED. kv_split is 0
 * or 1, else INVALID. tile_rows is about the rows whose dQ is computed at once.
 *
 * determinism:    0: the same call gives the same bits every time, on a CPU with every number of
 *                 threads. 1: sums may be added in any order, where a kernel is faster that way.
 *                 With TESS_PLAN_BATCH_INVARIANT it must be 0. Others, and 1 in a forward plan,
 *                 are INVALID.
 * TESS_PLAN_DQ_F32, TESS_PLAN_DKV_F32:
 *                 d_q, or d_k and d_v, are float32 whatever dtype is.
 * TESS_PLAN_DQ_ADD, TESS_PLAN_DKV_ADD:
 *                 d_q, or d_k and d_v, are added to what the tensors hold. They must be float32,
 *                 by dtype or by the flags above, else INVALID.
 * q_first, kv_first:
 *                 as in forward plans: a run over a part of the keys, or of the rows, adds what
 *                 that part contributes, as long as O and LSE are those of the whole (see
 *                 tess_merge_parts). Such runs, added in float32, make the whole gradients: the
 *                 steps of a ring, and micro-batches.
 *
 * THE RUN
 *
 *     field     shape, as tess_plan_tensor fills it      type      is
 *     q, k, v   as in forward                            dtype     inputs
 *     o         as Q                                     dtype     input
 *     lse       as in forward                            float32   input
 *     d_o       as Q                                     dtype     input
 *     d_lse     as LSE                                   float32   input, or NONE: counts as 0
 *     d_q       as Q                                     dtype *   output, or NONE: not wanted
 *     d_k, d_v  as K, V                                  dtype *   outputs, or NONE: not wanted
 *
 *     * float32 by flag. At least one gradient is wanted, else INVALID.
 *
 * Inputs may have any strides, also 0 (a d_o that is the same everywhere). Strides of gradients
 * keep elements apart. A gradient shares no element with an input or with another gradient, but
 * all of them may alternate in one buffer. What a run computes of one gradient has the same bits
 * whichever others are wanted, and is not computed where that saves work.
 *
 * Every row's d_q and every key's d_k and d_v is written (or added to), also where nothing
 * contributes: it is exactly 0 for rows that keep no key, for keys that no row keeps, for the keys
 * of sequences without rows and the rows of sequences without keys. Only a batch that has neither
 * rows nor keys succeeds without a launch.
 *
 * A row whose LSE is infinite has P = 0, and contributes nothing anywhere: that is a row which
 * keeps no key (-inf), whatever its O, dO and dLSE hold, NaN too. Rows past a length, keys at or
 * past kv_len, and blocks that no row of a tile keeps are never read, as in forward. A value that
 * is not finite stays within its sequence and kv head; in d_q within its tile of rows, in d_k and
 * d_v within the keys that are worked on together.
 *
 * P comes from LSE alone, which float32 rounds: its relative error is at most about
 * (|LSE| + |scale * <q, k>|) * 2^-24, beside that of the product. Scores of 2^10 leave 13 bits.
 * Sums are float32. With 16-bit inputs a kernel may round P and dS to dtype before it multiplies
 * them.
 * Each of d_k and d_v is summed over the query heads of its kv head in float32 before it is
 * rounded to its type.
 *
 * A run of a backward plan has several launches, one after the other, so stream.extra must be NULL
 * (else UNSUPPORTED). first_job and job_count count all of their jobs in order, and tess_plan_range
 * makes ranges of all of them. Ranges of one run share a workspace, in which later ones find what
 * earlier ones left, and have the same tensors. They run once each, in rising order on one stream.
 * A kernel that adds up a gradient in a fixed order waits on the device for the jobs before its
 * own, and for ever if those are never run; with determinism 1 it may do so for d_k and d_v.
 */
#ifndef TESSERA_TESSERA_BACKWARD_H
#define TESSERA_TESSERA_BACKWARD_H

#include "tessera.h"

#ifdef __cplusplus
extern "C" {
#endif

/* tess_plan_desc.flags of backward plans; in others they are INVALID. */
enum {
    TESS_PLAN_DQ_F32 = 1u << 4,  /* d_q is float32 */
    TESS_PLAN_DKV_F32 = 1u << 5, /* d_k and d_v are float32 */
    TESS_PLAN_DQ_ADD = 1u << 6,  /* d_q is added to; float32 only */
    TESS_PLAN_DKV_ADD = 1u << 7, /* d_k and d_v are added to; float32 only */
};

#ifdef __cplusplus
}
#endif

#endif /* TESSERA_TESSERA_BACKWARD_H */
