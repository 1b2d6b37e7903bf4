/* SPDX-License-Identifier: Apache-2.0 */
/* A stage of coopmat_forward.comp: which rows, keys and dims are this thread's and its subgroup's,
 * and the softmax before the first key. Leaves the matrices q and p undefined, o and row_sum 0. */

/* Whether 16 bytes may be loaded at once. */
const bool q_wide = TESS_IS_ALIGNED8(Q, q_base, args.q_token | args.q_head);
const bool k_wide = TESS_IS_ALIGNED8(K, k_base, args.k_token | args.k_batch);
const bool v_wide = TESS_IS_ALIGNED8(V, v_base, args.v_token | args.v_batch);

/* The subgroup takes SUBGROUP_ROWS rows from first_row, and the words of `places` from own. */
const uint lane = gl_SubgroupInvocationID, subgroup = gl_SubgroupID;
const uint first_row = subgroup * SUBGROUP_ROWS, own = subgroup * PLACES;
/* The sign of the scale goes to Q. */
const float scale_log2 = max(abs(args.scale) * TESS_LOG2E, LEAST_SCALE);

/* The thread copies TURNS keys from own_key of K and V, and 8 dims of each. Where it has none, or
 * where there is no page at all, it reads the first dims, and nobody uses them. */
const uint own_key = thread / UNITS * TURNS, own_place = own_key * ROW + thread % UNITS;
const bool has_dim = thread % UNITS * 8u < head_dim;
const uint own_dim = has_dim && !(TESS_IS_PAGED && args.pages == 0u) ? thread % UNITS * 8u : 0u;

/* The words of a job that begins when this one ends come to the cache, which is three times as fast
 * as memory. They are stored below, since a compiler would leave out a load without use. */
const uint later = min(TESS_GROUP + JOBS_AHEAD, items - 1u) * TESS_JOB_WORDS + thread;
uint later_word = 0u;
if (thread < TESS_JOB_WORDS && present) later_word = TESS_WORD(args.items_at + later);
/* Read here, since at the end it would have to come from memory again. */
const uint early_partial = TESS_WORD(job + TESS_WORD_JOB_PARTIAL);

for (uint r = thread; r < TESS_ROWS; r += TESS_THREADS) {
    row_reference[r] = NO_REFERENCE;
    row_product[r] = 0.0;
    row_factor[r] = 1.0;
}
if (thread == 0u) risen_at.x = ~0u;

MATRIX_A q[ROW_FRAGMENTS * Q_STEPS], p[ROW_FRAGMENTS * STEPS];
MATRIX_C o[ROW_FRAGMENTS * O_FRAGMENTS], row_sum[ROW_FRAGMENTS];
[[unroll]] for (uint n = 0u; n < ROW_FRAGMENTS * O_FRAGMENTS; n++) o[n] = MATRIX_C(0.0);
[[unroll]] for (uint t = 0u; t < ROW_FRAGMENTS; t++) row_sum[t] = MATRIX_C(0.0);
