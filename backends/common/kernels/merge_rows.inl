/* SPDX-License-Identifier: Apache-2.0 */
/* In merge.inl: merges the rows of a workgroup from first_row on. */
/* row_max of each row. That of a part without keys is at or below TESS_LOWEST, and its sum is
 * 0. */
const uint line = thread / TESS_MERGE_PARTS, lane = thread % TESS_MERGE_PARTS,
           own_row = first_row + line;
const bool weighs = own_row < used;
/* part_max_0 and part_sum_0 are of the first part of this thread. */
float row_max = TESS_LOWEST, part_max_0 = TESS_LOWEST, part_sum_0 = 0.0f;
TESS_DEPENDENCIES_WAIT; /* nothing before this reads what another kernel writes */
if (weighs && lane < parts) {
    const tess_offset at = TESS_OFFSET(lane) * step + TESS_OFFSET(own_row);
    part_max_0 = TESS_LOAD_PARTIAL(first_max + at);
    part_sum_0 = TESS_LOAD_PARTIAL(first_sum + at);
    row_max = tess_max(row_max, part_max_0);
    for (uint n = lane + TESS_MERGE_PARTS; n < parts; n += TESS_MERGE_PARTS)
        row_max = tess_max(row_max, TESS_ROW_MAX_OF(n));
}
part_max[thread] = row_max;
TESS_BARRIER;
TESS_UNROLL for (uint n = 0u; n < TESS_MERGE_PARTS; n++) row_max =
    tess_max(row_max, part_max[line * TESS_MERGE_PARTS + n]);
TESS_BARRIER;
if (lane == 0u) part_max[line] = row_max; /* of the row from here on */

vec4 o[TESS_MERGE_GROUPS];
float row_sum[TESS_MERGE_GROUPS];
TESS_UNROLL for (uint g = 0u; g < TESS_MERGE_GROUPS; g++) {
    o[g] = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
    row_sum[g] = 0.0f;
}
for (uint first = 0u; TESS_LOOP_ENTERS(first == 0u) || first < parts; first += TESS_MERGE_PARTS) {
    float weight = 0.0f;
    if (weighs && first + lane < parts) {
        float max_ = part_max_0, sum = part_sum_0;
        if (first != 0u) {
            const tess_offset at = TESS_OFFSET(first + lane) * step + TESS_OFFSET(own_row);
            max_ = TESS_LOAD_PARTIAL(first_max + at);
            sum = TESS_LOAD_PARTIAL(first_sum + at);
        }
        /* Where the sum is 0, the difference may be infinite. */
        if (sum != 0.0f) weight = sum * tess_exp2((max_ - row_max) * scale_log2);
    }
    part_weight[thread] = weight;
    TESS_BARRIER;
    const uint count = tess_min(parts - first, TESS_UINT(TESS_MERGE_PARTS));
    TESS_UNROLL for (uint g = 0u; g < TESS_MERGE_GROUPS; g++) {
        const uint e = (g * TESS_MERGE_THREADS + thread) * 4u, r = e / head_dim;
        if (r < TESS_MERGE_ROWS && first_row + r < used) {
            const tess_offset from =
                first_o + TESS_OFFSET(first) * step + TESS_OFFSET(first_row * head_dim + e);
            for (uint n = 0u; n < count; n += TESS_MERGE_AHEAD) {
                vec4 x[TESS_MERGE_AHEAD];
                TESS_UNROLL for (uint i = 0u; i < TESS_MERGE_AHEAD; i++) {
                    x[i] = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
                    if (n + i < count) x[i] = TESS_LOAD4_PARTIAL(from + TESS_OFFSET(n + i) * step);
                }
                /* the weights of parts past the last one are 0 */
                TESS_UNROLL for (uint i = 0u; i < TESS_MERGE_AHEAD; i++) {
                    const float w = part_weight[r * TESS_MERGE_PARTS + n + i];
                    o[g] += x[i] * w;
                    row_sum[g] += w;
                }
            }
        }
    }
    TESS_BARRIER;
}

TESS_UNROLL for (uint g = 0u; g < TESS_MERGE_GROUPS; g++) {
    const uint e = (g * TESS_MERGE_THREADS + thread) * 4u, r = e / head_dim, dim = e - r * head_dim;
    if (r < TESS_MERGE_ROWS && first_row + r < used) {
        const uint packed = (first_row + r) / merge.rows, own = first_row + r - packed * merge.rows;
        const vec4 out4 = o[g] * (row_sum[g] != 0.0f ? 1.0f / row_sum[g] : 0.0f);
        TESS_STORE4_O(TESS_MERGED_AT(o) + TESS_OFFSET(dim), out4);
        if (dim == 0u && (TESS_FLAGS & TESS_ARGS_LSE) != 0u)
            TESS_STORE_LSE(TESS_MERGED_AT(lse),
                           row_sum[g] != 0.0f
                               ? (part_max[r] * scale_log2 + tess_log2(row_sum[g])) * TESS_LN2
                               : TESS_MINUS_INFINITY);
    }
}
