/* SPDX-License-Identifier: Apache-2.0 */
/* A stage of coopmat_forward.comp: O += P V for a chunk. It stands in two places: in the inner
 * loop, and behind coopmat_rescale.inl for the chunk that ended this loop. */

[[unroll]] for (uint x = 0u; x < STEPS; x++) {
    [[unroll]] for (uint y = 0u; y < O_FRAGMENTS; y++) {
        MATRIX_B b;
        coopMatLoad(b, kv, (KEYS + x * K) * ROW + y * (N / 8u), ROW, ROW_MAJOR);
        [[unroll]] for (uint t = 0u; t < ROW_FRAGMENTS; t++) {
            o[t * O_FRAGMENTS + y] = coopMatMulAdd(p[t * STEPS + x], b, o[t * O_FRAGMENTS + y]);
        }
    }
}
