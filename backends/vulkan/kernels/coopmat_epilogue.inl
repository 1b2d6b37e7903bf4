/* SPDX-License-Identifier: Apache-2.0 */
/* The last stage of coopmat_forward.comp: divides O by row_sum and stores it. As many matrices at
 * once as fit go through the shared memory of K and V, each subgroup's through a part of its own.
 * So one loop stores whole rows. A copy of it for each matrix was a third of the kernel's code. */

const bool o_wide = TESS_IS_ALIGNED8(O, o_base, args.o_token | args.o_head);
barrier(); /* V has been read */
[[unroll]] for (uint n = 0u; n < ROW_FRAGMENTS * O_FRAGMENTS; n += O_GROUP) {
    const uint t = n / O_FRAGMENTS, place = subgroup * (M * O_ROW);
    MATRIX_C factor;
    coopMatLoad(factor, row_factor, first_row + t * M, 0u, COLUMN_MAJOR);
    [[unroll]] for (uint y = 0u; y < O_GROUP; y++) {
        coopMatStore(o[n + y] * factor, kv, place + y * (N / 4u), O_ROW, ROW_MAJOR);
    }
    OWN_BARRIER
    /* An invocation stores 8 elements of a row in a turn, and two turns at once. Those that have
     * none left store the last ones again. */
    [[dont_unroll]] for (uint from = 0u; from < M * O_UNITS; from += 2u * SUBGROUP) {
        [[unroll]] for (uint turn = 0u; turn < 2u; turn++) {
            const uint e = min(from + turn * SUBGROUP + lane, M * O_UNITS - 1u);
            const uint at = place + e / O_UNITS * O_ROW + e % O_UNITS * 2u;
            const uint r = first_row + t * M + e / O_UNITS;
            const uint dim = n % O_FRAGMENTS * N + e % O_UNITS * 8u;
            const vec4 low = uintBitsToFloat(kv[at]), high = uintBitsToFloat(kv[at + 1u]);
            if (r < used && dim < head_dim) {
                if (o_wide && partial == TESS_NO_PARTIAL) {
                    O8_[(o_base + TESS_ROW_OFFSET(o, row_head_row[r]) + dim) / 8u] =
                        uvec4(pack_narrow(low.x, low.y), pack_narrow(low.z, low.w),
                              pack_narrow(high.x, high.y), pack_narrow(high.z, high.w));
                } else {
                    TESS_STORE_DIMS(r, dim, low)
                    TESS_STORE_DIMS(r, dim + 4u, high)
                }
            }
        }
    }
    OWN_BARRIER
}
