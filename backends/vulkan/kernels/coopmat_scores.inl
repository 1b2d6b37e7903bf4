/* SPDX-License-Identifier: Apache-2.0 */
/* A stage of coopmat_forward.comp: S = Q K^T for a chunk, not scaled yet, with NOT_KEPT in place of
 * scores that a mask drops. Leaves the matrices s, and `masked`. */

/* Some key of the chunk is masked for some row, is past the last one, or is absent. */
bool masked = end > keys || tess_key_walk_masked(walk, first, end, args.block);
if (TESS_IS_PAGED && !masked) {
    for (uint e = lane; e < KEYS; e += SUBGROUP) {
        masked = masked || key_last_block[list + e] == TESS_INT_MIN;
    }
    masked = subgroupAny(masked);
}
/* A bit for each element of S that this invocation holds: whether it is kept. The bits are found
 * before S exists, since S would not stay in registers across a loop that a compiler might not
 * unroll. */
uint kept[ROW_FRAGMENTS];
[[unroll]] for (uint t = 0u; t < ROW_FRAGMENTS; t++) kept[t] = ~0u;
if (masked) {
    TESS_READ_MASK;
    [[unroll]] for (uint t = 0u; t < ROW_FRAGMENTS; t++) {
        kept[t] = find_kept(own, subgroup * ROW_FRAGMENTS + t, list, sinks, i_first);
    }
}

MATRIX_C s[ROW_FRAGMENTS * KEY_FRAGMENTS];
[[unroll]] for (uint n = 0u; n < ROW_FRAGMENTS * KEY_FRAGMENTS; n++) s[n] = MATRIX_C(0.0);
[[unroll]] for (uint x = 0u; x < Q_STEPS; x++) {
    [[unroll]] for (uint n = 0u; n < KEY_FRAGMENTS; n++) {
        MATRIX_B b;
        coopMatLoad(b, kv, n * N * ROW + x * (K / 8u), ROW, COLUMN_MAJOR);
        [[unroll]] for (uint t = 0u; t < ROW_FRAGMENTS; t++) {
            s[t * KEY_FRAGMENTS + n] =
                coopMatMulAdd(q[t * Q_STEPS + x], b, s[t * KEY_FRAGMENTS + n]);
        }
    }
}

/* The next two chunks are listed here, where nobody waits for the list. */
if (first % LISTED == 0u && first + LISTED < keys) {
    list_keys((list + LISTED) % LIST, first + LISTED, keys, job, tile, walk, k_base, v_base);
}
if (masked) {
    [[unroll]] for (uint n = 0u; n < ROW_FRAGMENTS * KEY_FRAGMENTS; n++) {
        [[unroll]] for (uint i = 0u; i < s[n].length(); i++) {
            const uint bit = n % KEY_FRAGMENTS * (M * N / SUBGROUP) + i;
            s[n][i] = (kept[n / KEY_FRAGMENTS] >> bit & 1u) != 0u ? s[n][i] : NOT_KEPT;
        }
    }
}
