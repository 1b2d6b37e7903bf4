/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The merge of partial results: one body for every language (see forward.inl). A workgroup of
 * TESS_MERGE_THREADS threads takes TESS_MERGE_ROWS rows of one merge.
 *
 * Threads first share out parts: TESS_MERGE_PARTS of them for each row look for the highest
 * reference, and then weigh as many parts at a time, each once. In between they share out elements,
 * 4 at a time, and add up the parts in rising order. The rows of a workgroup lie one behind the
 * other in a partial result, so that these are also TESS_MERGE_ROWS * head_dim floats in one piece,
 * and thread t takes the groups of 4 number t, t + TESS_MERGE_THREADS, ...
 */
#define TESS_MERGE_SHARED                                            \
    TESS_SHARED(float, part_most, TESS_MERGE_ROWS *TESS_MERGE_PARTS) \
    TESS_SHARED(float, part_weight, TESS_MERGE_ROWS *TESS_MERGE_PARTS)

#ifdef TESS_SHARED_OUTSIDE
TESS_MERGE_SHARED
#endif

/* Groups of 4 elements of a thread: TESS_MERGE_ROWS * 256 / 4 / TESS_MERGE_THREADS. */
#define TESS_MERGE_GROUPS 4u

TESS_MERGE_KERNEL {
#ifndef TESS_SHARED_OUTSIDE
    TESS_MERGE_SHARED
#endif
    const uint thread = TESS_THREAD,
               groups = (args.partial_rows + TESS_MERGE_ROWS - 1u) / TESS_MERGE_ROWS;
    /* Workgroups past the last merge read that one's words and then find no rows. */
    const bool present = TESS_GROUP / groups < args.items;
    const uint merge =
        args.items_at + (present ? TESS_GROUP / groups : args.items - 1u) * TESS_MERGE_WORDS;
    const uint sequence = args.sequences_at + TESS_WORD(merge) * TESS_SEQUENCE_WORDS;
    const uint head = TESS_WORD(merge + 1u) & 0xffffu, heads = TESS_WORD(merge + 1u) >> 16;
    const uint row = TESS_WORD(merge + 2u), rows = TESS_WORD(merge + 3u) & 0xffffu;
    const uint part = TESS_WORD(merge + 4u), parts = present ? TESS_WORD(merge + 5u) : 0u;
    const uint batch = TESS_WORD(sequence + 4u), head_dim = TESS_HEAD_DIM;
    const uint first_row = TESS_GROUP % groups * TESS_MERGE_ROWS,
               used = present ? heads * rows : 0u;
    const tess_offset place = TESS_WIDE(sequence) + TESS_OFFSET(row);
    const tess_offset o_base = args.o_at + TESS_OFFSET(batch) * args.o_batch +
                               place * args.o_token + TESS_OFFSET(head) * args.o_head;
    const tess_offset lse_base = args.lse_at + TESS_OFFSET(batch) * args.lse_batch +
                                 place * args.lse_token + TESS_OFFSET(head) * args.lse_head;
    const tess_offset step = TESS_OFFSET(args.partial_rows) * TESS_OFFSET(head_dim + 2u);
    const tess_offset first_o = args.partials_at + TESS_OFFSET(part) * step;
    const tess_offset first_most = first_o + TESS_OFFSET(args.partial_rows) * TESS_OFFSET(head_dim);
    const tess_offset first_sum = first_most + TESS_OFFSET(args.partial_rows);
    const float scale_log2 = (args.scale < 0.0f ? -args.scale : args.scale) * TESS_LOG2E;

    /* The highest reference of each row. A part without keys has one at or below TESS_LOWEST, and a
     * sum of 0. */
    const uint line = thread / TESS_MERGE_PARTS, lane = thread % TESS_MERGE_PARTS,
               own_row = first_row + line;
    const bool weighs = own_row < used;
    float most = TESS_LOWEST;
    TESS_DEPENDENCIES_WAIT; /* nothing before this reads what another kernel writes */
    if (weighs) {
        for (uint n = lane; n < parts; n += TESS_MERGE_PARTS)
            most = tess_max(
                most, TESS_LOAD_PARTIAL(first_most + TESS_OFFSET(n) * step + TESS_OFFSET(own_row)));
    }
    part_most[thread] = most;
    TESS_BARRIER;
    TESS_UNROLL for (uint n = 0u; n < TESS_MERGE_PARTS; n++) most =
        tess_max(most, part_most[line * TESS_MERGE_PARTS + n]);
    TESS_BARRIER;
    if (lane == 0u) part_most[line] = most; /* of the row from here on */

    vec4 o[TESS_MERGE_GROUPS];
    float sum[TESS_MERGE_GROUPS];
    TESS_UNROLL for (uint g = 0u; g < TESS_MERGE_GROUPS; g++) {
        o[g] = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
        sum[g] = 0.0f;
    }
    for (uint first = 0u; TESS_LOOP_ENTERS(first == 0u) || first < parts;
         first += TESS_MERGE_PARTS) {
        float weight = 0.0f;
        if (weighs && first + lane < parts) {
            const tess_offset at = TESS_OFFSET(first + lane) * step + TESS_OFFSET(own_row);
            const float part_sum = TESS_LOAD_PARTIAL(first_sum + at);
            /* The references may be infinitely far apart where a sum is 0. */
            if (part_sum != 0.0f)
                weight =
                    part_sum * tess_exp2((TESS_LOAD_PARTIAL(first_most + at) - most) * scale_log2);
        }
        part_weight[thread] = weight;
        TESS_BARRIER;
        const uint count = tess_least(parts - first, TESS_UINT(TESS_MERGE_PARTS));
        TESS_UNROLL for (uint g = 0u; g < TESS_MERGE_GROUPS; g++) {
            const uint e = (g * TESS_MERGE_THREADS + thread) * 4u, r = e / head_dim;
            if (r < TESS_MERGE_ROWS && first_row + r < used) {
                const tess_offset from =
                    first_o + TESS_OFFSET(first) * step + TESS_OFFSET(first_row * head_dim + e);
                TESS_UNROLL_SOME for (uint n = 0u; n < count; n++) {
                    const float w = part_weight[r * TESS_MERGE_PARTS + n];
                    o[g] += TESS_LOAD4_PARTIAL(from + TESS_OFFSET(n) * step) * w;
                    sum[g] += w;
                }
            }
        }
        TESS_BARRIER;
    }

    TESS_UNROLL for (uint g = 0u; g < TESS_MERGE_GROUPS; g++) {
        const uint e = (g * TESS_MERGE_THREADS + thread) * 4u, r = e / head_dim,
                   dim = e - r * head_dim;
        if (r < TESS_MERGE_ROWS && first_row + r < used) {
            const uint packed = (first_row + r) / rows, own = first_row + r - packed * rows;
            const vec4 out4 = o[g] * (sum[g] != 0.0f ? 1.0f / sum[g] : 0.0f);
            TESS_STORE4_O(o_base + TESS_OFFSET(packed) * args.o_head +
                              TESS_OFFSET(own) * args.o_token + TESS_OFFSET(dim),
                          out4);
            if (dim == 0u && (TESS_FLAGS & TESS_ARGS_LSE) != 0u)
                TESS_STORE_LSE(lse_base + TESS_OFFSET(packed) * args.lse_head +
                                   TESS_OFFSET(own) * args.lse_token,
                               sum[g] != 0.0f
                                   ? (part_most[r] * scale_log2 + tess_log2(sum[g])) * TESS_LN2
                                   : TESS_MINUS_INFINITY);
        }
    }
}
#undef TESS_MERGE_SHARED
#undef TESS_MERGE_GROUPS
