/* SPDX-License-Identifier: Apache-2.0 */
/* A stage of the kernel for few rows: raises row_max to a team's scores, rescales row_sum and O,
 * and leaves P in shared memory, one key a thread. */

/* The scores of key n, 4 rows. */
#define TESS_READ_SCORE(score, n)                                                             \
    vec4 score = scores[(n)*TESS_TEAMS + team];                                               \
    TESS_UNROLL for (uint more = TESS_AHEAD; more < TESS_SLICES; more += TESS_AHEAD) score += \
        scores[(more + (n)) * TESS_TEAMS + team]

#define TESS_RESCALE_ROW(n, c)                                                 \
    {                                                                          \
        const float rescale = tess_exp2((row_max.c - new_max.c) * scale_log2); \
        row_sum.c *= rescale;                                                  \
        o[2u * n] *= rescale;                                                  \
        o[2u * n + 1u] *= rescale;                                             \
    }

vec4 new_max = row_max;
TESS_UNROLL for (uint n = 0u; n < TESS_AHEAD; n++) {
    TESS_READ_SCORE(score, n);
    new_max = tess_max4(new_max, score);
}
TESS_EACH_ROW(TESS_RESCALE_ROW)
row_max = new_max;
if (slice < TESS_AHEAD) {
    TESS_READ_SCORE(score, slice);
    const vec4 p = tess_exp_scores(score, row_max, scale_log2);
    weights[slice * TESS_TEAMS + team] = p;
    row_sum += p;
}
