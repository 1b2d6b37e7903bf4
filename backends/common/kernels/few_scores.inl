/* SPDX-License-Identifier: Apache-2.0 */
/* A stage of the kernel for few rows: adds up the products of a chunk and masks the sums. A thread
 * takes one key of its team, and TESS_AHEAD of its slices: where there are more, their sums are
 * added when they are read. A masked key's are TESS_LOWEST and zeros. */

#define TESS_MASK_SUM(n, c)                                        \
    {                                                              \
        TESS_READ_ROW(row, first_row + n);                         \
        if (!tess_is_kept(key, row, sinks, i_first)) sum.c = none; \
    }

const uint own = slice % TESS_AHEAD, share = slice / TESS_AHEAD;
const uint e = current + own * lanes + lane;
vec4 sum = VEC4_OF(0.0f);
/* Each thread begins at another slice, which spreads them over the banks. */
TESS_UNROLL for (uint n = 0u; n < TESS_AHEAD; n++) {
    const uint other = share * TESS_AHEAD + (own + n) % TESS_AHEAD;
    sum += products[own * TESS_THREADS + ((lane * TESS_SLICES + other) << shift) + row_group];
}
if (TESS_IS_MASKED(e)) {
    const float none = share == 0u ? TESS_LOWEST : 0.0f;
    TESS_READ_MASK;
    TESS_READ_KEY(key, e);
    TESS_EACH_ROW(TESS_MASK_SUM)
}
scores[slice * TESS_TEAMS + team] = sum;
