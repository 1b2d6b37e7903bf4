/* SPDX-License-Identifier: Apache-2.0 */
/* tess_copy_pages: one body for every language (see forward.inl). A workgroup takes one token of
 * one pair of pages. */
TESS_COPY_PAGES_KERNEL {
    const bool present = TESS_GROUP < args.items;
    const uint item = args.first + (present ? TESS_GROUP : 0u), pair = item / args.page,
               token = item - pair * args.page;
    const tess_offset list = args.table_at + TESS_OFFSET(pair) * args.table_batch;
    const uint from = TESS_PAGING_TABLE(list), to = TESS_PAGING_TABLE(list + TESS_OFFSET(1u));
    const bool copies = present && from < args.pages && to < args.pages && from != to;
    const tess_offset first = args.k_at + TESS_OFFSET(token) * args.k_token,
                      from_page = first + TESS_OFFSET(from) * args.k_batch,
                      to_page = first + TESS_OFFSET(to) * args.k_batch;
    const bool wide = (args.flags & TESS_PAGING_WIDE) != 0u && TESS_PAGING_POOL_ALIGNED;
    const uint step = wide ? TESS_PAGING_GROUP : TESS_PAGING_LEAST, steps = args.head_dim / step;
    for (uint n = TESS_THREAD; copies && n < args.heads * steps; n += TESS_PAGING_THREADS) {
        const uint head = n / steps;
        const tess_offset at =
            TESS_OFFSET(head) * args.k_head + TESS_OFFSET((n - head * steps) * step);
        if (wide) {
            TESS_PAGING_COPY_WIDE(K, to_page + at, K, from_page + at);
        } else {
            TESS_PAGING_COPY(K, to_page + at, K, from_page + at);
        }
    }
}
