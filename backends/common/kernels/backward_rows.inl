/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The portable backward kernel's pass over rows, which makes dQ: a workgroup takes one of forward's
 * jobs, whose rows are its tile, and the keys come by in chunks (backward_state.h). dO comes as O,
 * and dQ is stored to LSE: tess_portable_stage. Numbers past the last key stand for it and count as
 * masked; entries past the tile's rows stand for its last row and are not stored.
 */
#include "backward_state.h"

#define TESS_TILE_AT(x, e)  (x##_base + TESS_ROW_OFFSET(x, row_head_row[e]))
#define TESS_ITEM_AT(x, e)  (x##_base + TESS_OFFSET(key_token[e]) * args.x##_token)
#define TESS_ITEM_COUNTS(e) true

/* dS of entry first_own + n and of one item. */
#define TESS_ROW_PAIR(i, c)                                                                       \
    {                                                                                             \
        bool kept = live;                                                                         \
        if (masked) {                                                                             \
            tess_key key;                                                                         \
            key.position = key_position[grid_column * 4u + i];                                    \
            key.last_block = key_last_block[grid_column * 4u + i];                                \
            key.bits = key_bits[grid_column * 4u + i];                                            \
            kept = TESS_AND(live, tess_is_kept(key, row, sinks, i_first));                        \
        }                                                                                         \
        ds.c =                                                                                    \
            kept ? tess_exp2(s[n].c * scale_log2 - row_lse[r]) * (dp[n].c - row_delta[r]) : 0.0f; \
    }

#define TESS_ROWS_SHARED                         \
    TESS_BACKWARD_SHARED                         \
    TESS_SHARED(uint, row_head_row, TESS_TILE)   \
    TESS_SHARED(int, row_causal, TESS_TILE)      \
    TESS_SHARED(int, row_window_low, TESS_TILE)  \
    TESS_SHARED(int, row_window_high, TESS_TILE) \
    TESS_SHARED(int, row_block, TESS_TILE)       \
    TESS_SHARED(float, row_lse, TESS_TILE)       \
    TESS_SHARED(float, row_delta, TESS_TILE)     \
    TESS_SHARED(uint, key_token, TESS_ITEMS)     \
    TESS_SHARED(int, key_position, TESS_ITEMS)   \
    TESS_SHARED(int, key_last_block, TESS_ITEMS) \
    TESS_SHARED(uint, key_bits, TESS_ITEMS)

#ifdef TESS_SHARED_OUTSIDE
TESS_ROWS_SHARED
#endif

TESS_BACKWARD_ROWS_KERNEL {
#ifndef TESS_SHARED_OUTSIDE
    TESS_ROWS_SHARED
#endif
    const uint thread = TESS_THREAD;
    const bool present = TESS_GROUP < args.items;
    TESS_LEAVE_UNLESS(present);
    const uint job = args.items_at + (present ? TESS_GROUP : 0u) * TESS_JOB_WORDS;
    const tess_tile tile = tess_read_tile(job TESS_TABLES_OF_KERNEL);
    TESS_LEAVE_UNLESS_BOUND(tile.sequence, tile.row, tile.head / args.group)
    const tess_key_walk walk = tess_read_key_walk(job, tile TESS_TABLES_OF_KERNEL);
    const uint used = present ? tile.packed_rows : 0u,
               keys = tess_count_keys(walk, tile TESS_TABLES_OF_KERNEL) * TESS_UINT(present);
    const tess_offset q_start =
        TESS_WORD64(tile.sequence + TESS_WORD_SEQUENCE_Q_START) + TESS_OFFSET(tile.row);
    const tess_offset kv_start = TESS_WORD64(tile.sequence + TESS_WORD_SEQUENCE_KV_START);
    const uint kv_batch = TESS_WORD(tile.sequence + TESS_WORD_SEQUENCE_KV_BATCH),
               kv_head = tile.head / args.group, head_dim = TESS_HEAD_DIM;
    const tess_offset q_base = TESS_FIRST(q, tile, q_start, tile.head),
                      o_base = TESS_FIRST(o, tile, q_start, tile.head),
                      k_base = TESS_FIRST_OF(k, kv_batch, kv_start, kv_head),
                      v_base = TESS_FIRST_OF(v, kv_batch, kv_start, kv_head);
    const bool q_aligned = TESS_IS_ALIGNED(Q, q_base, args.q_token | args.q_head),
               o_aligned = TESS_IS_ALIGNED(O, o_base, args.o_token | args.o_head),
               k_aligned = TESS_IS_ALIGNED(K, k_base, args.k_token),
               v_aligned = TESS_IS_ALIGNED(V, v_base, args.v_token);
    TESS_SHARE(r, TESS_TILE) {
        const tess_row row =
            tess_find_row(tess_min(r, tile.packed_rows - 1u), tile TESS_TABLES_OF_KERNEL);
        const tess_offset at = tess_strip_at(
            TESS_WORD(job + TESS_WORD_JOB_SEQUENCE), tile.head + TESS_HIGH_HALF(row.head_row),
            tile.row + TESS_LOW_HALF(row.head_row) TESS_TABLES_OF_KERNEL);
        row_head_row[r] = row.head_row;
        row_causal[r] = row.causal;
        row_window_low[r] = row.window_low;
        row_window_high[r] = row.window_high;
        row_block[r] = row.block;
        row_lse[r] = TESS_LOAD_PARTIAL(at);
        row_delta[r] = TESS_LOAD_PARTIAL(at + TESS_TO_DELTA);
    }
    const uint grid_column = thread % TESS_GRID_COLUMNS,
               first_own = thread / TESS_GRID_COLUMNS * TESS_OWN;
    const float scale_log2 = args.scale * TESS_LOG2E;
    const int i_first = tess_floor_div(tile.position, TESS_INT(args.block)),
              sinks = (tile.flags & TESS_CLASS_WINDOW) != 0u
                          ? TESS_INT(TESS_WORD(tile.cls + TESS_WORD_CLASS_SINKS))
                          : TESS_INT_MAX;
    vec4 sums[TESS_OWN * TESS_OWN_GROUPS];
    TESS_UNROLL for (uint n = 0u; n < TESS_OWN * TESS_OWN_GROUPS; n++) sums[n] =
        VEC4(0.0f, 0.0f, 0.0f, 0.0f);

    for (uint first = 0u; first < keys; first += TESS_ITEMS) {
        const uint end = first + TESS_ITEMS;
        const bool masked = end > keys || tess_key_walk_masked(walk, first, end, args.block);
        /* The last use of these tables was before the latest barrier. */
        TESS_SHARE(e, TESS_ITEMS) {
            const tess_key key =
                tess_find_key(tess_min(first + e, keys - 1u), walk, tile TESS_TABLES_OF_KERNEL);
            key_token[e] = key.token;
            key_position[e] = key.position;
            key_last_block[e] = first + e < keys ? key.last_block : TESS_INT_MIN;
            key_bits[e] = key.bits;
        }
        vec4 s[TESS_OWN], dp[TESS_OWN];
        TESS_SCORE_CHUNK((Q, q, q_aligned, K, k, k_aligned), (O, o, o_aligned, V, v, v_aligned),
                         true)
        TESS_UNROLL for (uint n = 0u; n < TESS_OWN; n++) {
            const uint r = first_own + n;
            const bool live = row_lse[r] != TESS_DEAD_LSE;
            vec4 ds;
            tess_row row;
            row.causal = row_causal[r];
            row.window_low = row_window_low[r];
            row.window_high = row_window_high[r];
            row.block = row_block[r];
            TESS_EACH_ITEM(TESS_ROW_PAIR)
            weights[r * TESS_GRID_COLUMNS + grid_column] = ds;
        }
        for (uint slice = 0u; slice < TESS_ITEMS; slice += TESS_SUM_ITEMS) {
            TESS_BARRIER;
            TESS_LOAD_ITEMS(K, k, k_aligned)
            TESS_BARRIER;
            TESS_ADD_ITEMS(sums)
        }
        TESS_BARRIER;
    }

    const tess_offset lse_base = TESS_FIRST(lse, tile, q_start, tile.head);
    TESS_BARRIER;
    TESS_UNROLL for (uint n = 0u; n < TESS_OWN; n++) {
        const uint r = first_own + n;
        const tess_offset at = TESS_TILE_AT(lse, r);
        TESS_UNROLL for (uint g = 0u; g < TESS_OWN_GROUPS; g++) {
            const uint dim = (g * TESS_GRID_COLUMNS + grid_column) * 4u;
            const vec4 four = sums[n * TESS_OWN_GROUPS + g] * args.scale;
            if (r < used && dim < head_dim) {
                TESS_STORE_GRADIENT(LSE, at + TESS_OFFSET(dim), four)
            }
        }
    }
}

#undef TESS_TILE_AT
#undef TESS_ITEM_AT
#undef TESS_ITEM_COUNTS
