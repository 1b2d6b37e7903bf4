/* SPDX-License-Identifier: Apache-2.0 */
/* The last stage of coopmat_forward.comp: divides O by row_sum and stores it, one matrix after
 * another, through the subgroup's place in shared memory. */

const bool o_wide = TESS_IS_ALIGNED8(O, o_base, args.o_token | args.o_head);
[[unroll]] for (uint t = 0u; t < ROW_FRAGMENTS; t++) {
    MATRIX_C factor;
    coopMatLoad(factor, row_factor, first_row + t * M, 0u, COLUMN_MAJOR);
    [[unroll]] for (uint y = 0u; y < O_FRAGMENTS; y++) {
        coopMatStore(o[t * O_FRAGMENTS + y] * factor, places, own, PLACE, ROW_MAJOR);
        OWN_BARRIER
        /* An invocation stores 8 elements of a row in a turn. */
        [[unroll]] for (uint turn = 0u; turn < (M * N / 8u - 1u) / SUBGROUP + 1u; turn++) {
            const uint e = min(turn * SUBGROUP + lane, M * N / 8u - 1u);
            const uint at = own + e / (N / 8u) * PLACE + e % (N / 8u) * 8u;
            const uint r = first_row + t * M + e / (N / 8u), dim = y * N + e % (N / 8u) * 8u;
            const vec4 low = vec4(places[at], places[at + 1u], places[at + 2u], places[at + 3u]);
            const vec4 high =
                vec4(places[at + 4u], places[at + 5u], places[at + 6u], places[at + 7u]);
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
        OWN_BARRIER
    }
}
