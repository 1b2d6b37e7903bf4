/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tess_append: one body for every language (see forward.inl). A workgroup takes one new row of one
 * sequence, and its threads share out the kv heads and their elements, in groups of 16 bytes where
 * all rows are aligned. The host wants 64-bit addresses; all positions fit 32 bits.
 */
#ifndef TESS_APPEND_ONCE
#define TESS_APPEND_ONCE

#include "quantise.h"

/* Element d of a row as the bits of a float. */
#define TESS_NEW_BITS(rows, row, d) \
    tess_widen_bits(TESS_PAGING_LOAD(rows, (row) + TESS_OFFSET(d)), args.flags)

/* Writes TESS_PAGING_RUN codes of the row at `row`, from element e on, to `to`. Each thread finds
 * the scale of the whole row by itself, and one of them writes it. */
#define TESS_QUANTISE(rows, row, pool, to, scales, scale_at, is_static)                    \
    {                                                                                      \
        uint amax = 0u;                                                                    \
        for (uint d = 0u; d < args.head_dim && !(is_static); d++) {                        \
            const uint size = TESS_NEW_BITS(rows, row, d) & 0x7fffffffu;                   \
            amax = size > amax ? size : amax;                                              \
        }                                                                                  \
        tess_scaling scaling = tess_scaling_of(amax, args.flags);                          \
        if (is_static) scaling = tess_static_scaling(TESS_PAGING_SCALE(scales, scale_at)); \
        if (!(is_static) && e == 0u) TESS_PAGING_SCALE(scales, scale_at) = scaling.scale;  \
        for (uint w = 0u; w < TESS_PAGING_RUN; w += 4u) {                                  \
            uint word = 0u;                                                                \
            for (uint c = 0u; c < 4u && scaling.inverse != 0.0f; c++)                      \
                word |= tess_code_of(tess_from_bits(TESS_NEW_BITS(rows, row, e + w + c)) * \
                                         scaling.inverse,                                  \
                                     args.flags)                                           \
                        << (8u * c);                                                       \
            TESS_PAGING_STORE_CODES(pool, (to) + TESS_OFFSET(w), word);                    \
        }                                                                                  \
    }

/* Where the rows of sequence n begin. */
#define TESS_START(n) \
    TESS_WORD(args.sequences_at + (n)*TESS_SEQUENCE_WORDS + TESS_WORD_SEQUENCE_Q_START)
/* A field of the row's sequence. */
#define TESS_OF_SEQUENCE(field) TESS_WORD(sequence + TESS_WORD_SEQUENCE_##field)
/* Where a tensor of the cache has the row's token and kv head. */
#define TESS_IN_CACHE(tensor)                                                      \
    (args.tensor##_at + unit * args.tensor##_batch + token * args.tensor##_token + \
     to_head * args.tensor##_head)

#endif

TESS_APPEND_KERNEL {
    /* Workgroups past the last row look at that one and then write nothing. */
    const bool in_launch = TESS_GROUP < args.items, of_step = (args.flags & TESS_PAGING_STEP) != 0u;
    const uint row = args.first + (in_launch ? TESS_GROUP : args.items - 1u);
    const bool present =
        in_launch && (!of_step || row < TESS_WORD(args.step_at + TESS_WORD_STEP_ROWS));
    const uint n_sequences =
        of_step ? TESS_WORD(args.step_at + TESS_WORD_STEP_SEQUENCES) : args.n_sequences;

    /* Its sequence. Padded, each has as many items; packed, it is the last one that begins at or
     * before the row. */
    uint low = 0u;
    if (args.sequence_rows != 0u) {
        low = row / args.sequence_rows;
    } else if (present) {
        /* Where every sequence has one row it is the one of the row's number: loads that wait for
         * each other are what a search takes its time for. */
        const uint guess = row < n_sequences ? row : 0u;
        if (TESS_START(guess) <= row && (guess + 1u == n_sequences || TESS_START(guess + 1u) > row))
            low = guess;
        else
            for (uint high = n_sequences; high - low > 1u;) {
                const uint middle = low + (high - low) / 2u;
                if (TESS_START(middle) <= row)
                    low = middle;
                else
                    high = middle;
            }
    }
    const uint sequence = args.sequences_at + low * TESS_SEQUENCE_WORDS;
    const uint r =
        args.sequence_rows != 0u ? row - low * args.sequence_rows : row - TESS_OF_SEQUENCE(Q_START);
    const int kv_len = TESS_INT(TESS_OF_SEQUENCE(KV_LEN));
    const int position = TESS_INT(TESS_OF_SEQUENCE(Q_FIRST) + r);
    const uint flags = TESS_OF_SEQUENCE(FLAGS), first_block = TESS_SEQUENCE_FIRST_BLOCK(flags);
    const bool is_own = present && r < TESS_OF_SEQUENCE(Q_LEN) && position >= 0 &&
                        position < kv_len && (flags & TESS_SEQUENCE_NO_APPEND) == 0u;
    const uint t = is_own ? TESS_UINT(position) : 0u, block = t / args.block,
               last_block = TESS_UINT(kv_len - 1) / args.block - first_block; /* from that one on */
    const bool is_key = is_own && block >= first_block;

    const tess_offset batch = TESS_OFFSET(TESS_OF_SEQUENCE(BATCH)),
                      kv_batch = TESS_OFFSET(TESS_OF_SEQUENCE(KV_BATCH)),
                      kv_start = TESS_WORD64(sequence + TESS_WORD_SEQUENCE_KV_START),
                      q = TESS_WORD64(sequence + TESS_WORD_SEQUENCE_Q_START) + TESS_OFFSET(r);
    const tess_offset new_k = args.new_k_at + batch * args.new_k_batch + q * args.new_k_token,
                      new_v = args.new_v_at + batch * args.new_v_batch + q * args.new_v_token,
                      table = args.table_at + kv_batch * args.table_batch;
    const bool wide = (args.flags & TESS_PAGING_WIDE) != 0u && TESS_PAGING_BUFFERS_ALIGNED;
    const bool codes = (args.flags & TESS_PAGING_CODES) != 0u;
    const uint step = codes  ? TESS_PAGING_RUN
                      : wide ? TESS_PAGING_GROUP
                             : TESS_PAGING_LEAST,
               steps = args.head_dim / step;
    for (uint n = TESS_THREAD; is_key && n < args.heads * steps; n += TESS_PAGING_THREADS) {
        const uint g = n / steps, e = (n - g * steps) * step;
        uint head = g;
        tess_offset u = kv_start + TESS_OFFSET(t);
        bool keep = true;
        if ((args.flags & TESS_PAGING_COMPACT) != 0u) {
            const uint kv_head = args.kv_heads_at + g * TESS_KV_HEAD_WORDS;
            const uint slot = args.slots_at + (TESS_WORD(kv_head + TESS_WORD_KV_HEAD_SLOTS_OFFSET) +
                                               TESS_OF_SEQUENCE(KV_START) + block) *
                                                  TESS_SLOT_WORDS;
            /* Otherwise a later block has the place, and its rows may be of this launch. */
            keep = TESS_WORD(kv_head + TESS_WORD_KV_HEAD_STORAGE) == args.storage &&
                   TESS_WORD(slot + TESS_WORD_SLOT_NEXT) > last_block;
            head = TESS_WORD(kv_head + TESS_WORD_KV_HEAD_POOL_HEAD);
            u = TESS_OFFSET(TESS_WORD(slot + TESS_WORD_SLOT_SLOT) * args.block +
                            (t - block * args.block));
        }
        tess_offset unit = kv_batch, token = u;
        if (args.page != 0u) {
            const uint column = TESS_UINT(u) / args.page;
            keep = keep && column < args.columns;
            const uint id = keep ? TESS_PAGING_TABLE(table + TESS_OFFSET(column)) : 0u;
            keep = keep && id < args.pages;
            unit = TESS_OFFSET(id);
            token = TESS_OFFSET(TESS_UINT(u) - column * args.page);
        }
        const tess_offset from_head = TESS_OFFSET(g), to_head = TESS_OFFSET(head);
        if (keep) {
            const tess_offset from_k = new_k + from_head * args.new_k_head + TESS_OFFSET(e),
                              from_v = new_v + from_head * args.new_v_head + TESS_OFFSET(e);
            const tess_offset to_k = TESS_IN_CACHE(k) + TESS_OFFSET(e),
                              to_v = TESS_IN_CACHE(v) + TESS_OFFSET(e);
            if (codes) {
                const tess_offset k_scale = TESS_IN_CACHE(k_scale),
                                  v_scale = TESS_IN_CACHE(v_scale);
                TESS_QUANTISE(NEW_K, from_k - TESS_OFFSET(e), K, to_k, K_SCALE, k_scale,
                              (args.flags & TESS_PAGING_STATIC_K) != 0u)
                TESS_QUANTISE(NEW_V, from_v - TESS_OFFSET(e), V, to_v, V_SCALE, v_scale,
                              (args.flags & TESS_PAGING_STATIC_V) != 0u)
            } else if (wide) {
                TESS_PAGING_COPY_WIDE(K, to_k, NEW_K, from_k);
                TESS_PAGING_COPY_WIDE(V, to_v, NEW_V, from_v);
            } else {
                TESS_PAGING_COPY(K, to_k, NEW_K, from_k);
                TESS_PAGING_COPY(V, to_v, NEW_V, from_v);
            }
        }
    }
}
