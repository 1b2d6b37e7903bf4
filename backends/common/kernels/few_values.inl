/* SPDX-License-Identifier: Apache-2.0 */
/* A stage of the kernel for few rows: O += P V for a team's keys and a thread's slice. */

#define TESS_ADD_VALUES(n, c) \
    o[2u * n] += low * p.c;   \
    o[2u * n + 1u] += high * p.c;

TESS_UNROLL for (uint n = 0u; n < TESS_AHEAD; n++) {
    const vec4 p = weights[n * TESS_TEAMS + team];
    const vec4 low = TESS_LOW4(v8[n]), high = TESS_HIGH4(v8[n]);
    TESS_EACH_ROW(TESS_ADD_VALUES)
}
