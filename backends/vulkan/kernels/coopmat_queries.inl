/* SPDX-License-Identifier: Apache-2.0 */
/* A stage of coopmat_forward.comp: lists the first two chunks and loads Q into the matrices q. Rows
 * of Q go through the shared memory of K and V, Q_ROWS in a round. The first chunk's K is asked for
 * right behind the first rows of Q, so that both are on their way at once. */

/* The element at which this thread loads Q for a turn of a round. */
#define Q_AT(turn) \
    (q_base + TESS_ROW_OFFSET(q, row_head_row[round + r + turn]) + thread % UNITS * 8u)

const uint sign = args.scale < 0.0 ? 0x80008000u : 0u; /* of two elements */
uvec4 ahead[TURNS];
if (keys > 0u) {
    list_keys(0u, 0u, keys, job, tile, walk, k_base, v_base);
    /* Columns past head_dim are zeros, and stay so when K and V come. */
    for (uint r = thread / UNITS; !has_dim && r < 2u * KEYS; r += TESS_THREADS / UNITS)
        kv[r * ROW + thread % UNITS] = uvec4(0u);
    [[dont_unroll]] for (uint round = 0u; round < TESS_ROWS; round += Q_ROWS) {
        const uint r = thread / UNITS * Q_TURNS, to = r * ROW + thread % UNITS;
        uvec4 eight[Q_TURNS];
        barrier();
        if (q_wide) {
            /* All loads of a thread are in flight at once. */
            [[unroll]] for (uint turn = 0u; turn < Q_TURNS; turn++) {
                eight[turn] = TESS_LOAD8_ALIGNED(Q, has_dim ? Q_AT(turn) : q_base);
            }
        }
        if (round == 0u) {
            FETCH(K, k_wide, key_k_at, 0u)
            find_bounds();
            if (thread < TESS_JOB_WORDS) later_words[thread] = later_word;
        }
        if (has_dim && q_wide) {
            [[unroll]] for (uint turn = 0u; turn < Q_TURNS; turn++) {
                kv[to + turn * ROW] = eight[turn] ^ sign;
            }
        } else if (has_dim) {
            [[dont_unroll]] for (uint turn = 0u; turn < ROLLED(Q_TURNS); turn++) {
                kv[to + turn * ROW] = TESS_LOAD8(Q, Q_AT(turn)) ^ sign;
            }
        }
        barrier();
        if (first_row >= round && first_row < round + Q_ROWS) {
            [[unroll]] for (uint t = 0u; t < ROW_FRAGMENTS; t++) {
                [[unroll]] for (uint x = 0u; x < Q_STEPS; x++) {
                    coopMatLoad(q[t * Q_STEPS + x], kv,
                                (first_row - round + t * M) * ROW + x * (K / 8u), ROW, ROW_MAJOR);
                }
            }
        }
    }
}
