/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The merge of partial results: one body for every language (see forward.inl). One workgroup of TESS_MERGE_THREADS threads takes one merge. Threads share out the elements
 * of O, and weigh the parts anew for each: a merge is bound by memory, and this needs neither barriers nor room.
 */
TESS_MERGE_KERNEL {
    const uint thread = TESS_THREAD, item = TESS_GROUP;
    if (item >= args.items) return;
    const uint merge = args.items_at + item * TESS_MERGE_WORDS;
    const uint sequence = args.sequences_at + TESS_WORD(merge) * TESS_SEQUENCE_WORDS;
    const uint head = TESS_WORD(merge + 1u) & 0xffffu, heads = TESS_WORD(merge + 1u) >> 16;
    const uint row = TESS_WORD(merge + 2u), rows = TESS_WORD(merge + 3u) & 0xffffu;
    const uint part = TESS_WORD(merge + 4u), parts = TESS_WORD(merge + 5u);
    const uint batch = TESS_WORD(sequence + 4u), head_dim = TESS_HEAD_DIM, used = heads * rows;
    const tess_offset place = TESS_WIDE(sequence) + TESS_OFFSET(row);
    const tess_offset o_base = args.o_at + TESS_OFFSET(batch) * args.o_batch + place * args.o_token + TESS_OFFSET(head) * args.o_head;
    const tess_offset lse_base = args.lse_at + TESS_OFFSET(batch) * args.lse_batch + place * args.lse_token + TESS_OFFSET(head) * args.lse_head;
    const tess_offset step = TESS_OFFSET(args.partial_rows) * TESS_OFFSET(head_dim + 1u);
    const tess_offset first_o = args.partials_at + TESS_OFFSET(part) * step;
    const tess_offset first_lse = first_o + TESS_OFFSET(args.partial_rows) * TESS_OFFSET(head_dim);

    for (uint e = thread; e < used * head_dim; e += TESS_MERGE_THREADS) {
        const uint r = e / head_dim, dim = e - r * head_dim, packed = r / rows, own = r - packed * rows;
        float most = TESS_LOWEST, sum = 0.0f, out1 = 0.0f;
        for (uint n = 0u; n < parts; n++) most = tess_max(most, TESS_LOAD_PARTIAL(first_lse + TESS_OFFSET(n) * step + TESS_OFFSET(r)));
        for (uint n = 0u; n < parts; n++) {
            const float lse = TESS_LOAD_PARTIAL(first_lse + TESS_OFFSET(n) * step + TESS_OFFSET(r));
            const float weight = lse > TESS_LOWEST ? tess_exp2((lse - most) * TESS_LOG2E) : 0.0f;
            sum += weight;
            out1 += weight * TESS_LOAD_PARTIAL(first_o + TESS_OFFSET(n) * step + TESS_OFFSET(e));
        }
        TESS_STORE_O(o_base + TESS_OFFSET(packed) * args.o_head + TESS_OFFSET(own) * args.o_token + TESS_OFFSET(dim), sum > 0.0f ? out1 / sum : 0.0f);
        if (dim == 0u && (TESS_FLAGS & TESS_ARGS_LSE) != 0u)
            TESS_STORE_LSE(lse_base + TESS_OFFSET(packed) * args.lse_head + TESS_OFFSET(own) * args.lse_token,
                           sum > 0.0f ? most + tess_log2(sum) * TESS_LN2 : TESS_MINUS_INFINITY);
    }
}
