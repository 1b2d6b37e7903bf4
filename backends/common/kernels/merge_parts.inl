/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tess_merge_parts: one body for every language (see forward.inl). A workgroup merges one vector: a
 * row of one head. Each thread has 4 of its elements, and all find the weights by themselves, which
 * needs no barrier. O of the parts comes as Q, their LSE as the workspace, and where these lie in
 * the arguments of Q and K, whose batch is the part: see tess_portable_parts.
 */
TESS_PARTS_KERNEL {
    const bool present = TESS_GROUP < args.items;
    const uint item = args.items_at + (present ? TESS_GROUP : 0u), row = item / args.group,
               head = item - row * args.group, e = TESS_THREAD * 4u, parts = args.partial_rows;
    const bool writes = present && e < args.head_dim;
    const tess_offset first_lse = args.partials_at + TESS_OFFSET(row) * args.k_token +
                                  TESS_OFFSET(head) * args.k_head,
                      first_o = args.q_at + TESS_OFFSET(row) * args.q_token +
                                TESS_OFFSET(head) * args.q_head + TESS_OFFSET(writes ? e : 0u);
    const bool aligned = TESS_IS_ALIGNED(Q, first_o, args.q_batch | args.q_token | args.q_head);
    float row_max = TESS_MINUS_INFINITY, row_sum = 0.0f;
    for (uint n = 0u; n < parts; n++)
        row_max = tess_max(row_max, TESS_LOAD_PARTIAL(first_lse + TESS_OFFSET(n) * args.k_batch));
    vec4 o = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
    for (uint n = 0u; n < parts; n++) {
        const float lse = TESS_LOAD_PARTIAL(first_lse + TESS_OFFSET(n) * args.k_batch);
        /* A part that saw no key has no weight, whatever its O is. */
        if (lse != TESS_MINUS_INFINITY) {
            const float weight = tess_exp2((lse - row_max) * TESS_LOG2E);
            const tess_offset at = first_o + TESS_OFFSET(n) * args.q_batch;
            row_sum += weight;
            o += (aligned ? TESS_LOAD4_ALIGNED(Q, at) : TESS_LOAD4(Q, at)) * weight;
        }
    }
    if (writes) {
        TESS_STORE4_O(args.o_at + TESS_OFFSET(row) * args.o_token +
                          TESS_OFFSET(head) * args.o_head + TESS_OFFSET(e),
                      o * (row_sum != 0.0f ? 1.0f / row_sum : 0.0f));
        if (e == 0u && (TESS_FLAGS & TESS_ARGS_LSE) != 0u)
            TESS_STORE_LSE(
                args.lse_at + TESS_OFFSET(row) * args.lse_token + TESS_OFFSET(head) * args.lse_head,
                row_sum != 0.0f ? row_max + tess_log2(row_sum) * TESS_LN2 : TESS_MINUS_INFINITY);
    }
}
