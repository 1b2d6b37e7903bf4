/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The portable backward kernel's pass over columns, which makes dK and dV: the keys of a column are
 * the tile, and the rows of its segments come by in chunks, segment by segment and head by head
 * (backward_state.h, backward_columns.h). dO comes as O, and dK and dV are stored to LSE and
 * V_SCALE: tess_portable_stage. Rows that do not exist or contribute nothing are not read. Entries
 * past the column's keys stand for its last key and are not stored.
 */
#include "backward_columns.h"
#include "backward_state.h"

#define TESS_TILE_AT(x, e)  (x##_base + TESS_OFFSET(key_token[e]) * args.x##_token)
#define TESS_ITEM_AT(x, e)  (x##_base + TESS_OFFSET(row_number[e]) * args.x##_token)
#define TESS_ITEM_COUNTS(e) (row_lse[e] != TESS_DEAD_LSE)

/* P and dS of entry first_own + n and of one item. */
#define TESS_COLUMN_PAIR(i, c)                                                         \
    {                                                                                  \
        const uint e = grid_column * 4u + i;                                           \
        const bool inside = TESS_AND(row_position[e] >= low, row_position[e] <= high), \
                   kept = TESS_AND(TESS_AND(TESS_ITEM_COUNTS(e), inside),              \
                                   ((row_bits[e] >> bit) & 1u) != 0u);                 \
        const float p = kept ? tess_exp2(s[n].c * scale_log2 - row_lse[e]) : 0.0f;     \
        s[n].c = p;                                                                    \
        dp[n].c = kept ? p * (dp[n].c - row_delta[e]) : 0.0f;                          \
    }

/* Adds weights times the rows of a tensor to sums. */
#define TESS_ADD_ROWS(of, buffer, x, aligned, sums, wanted)                 \
    TESS_UNROLL for (uint n = 0u; n < TESS_OWN; n++)                        \
        weights[(first_own + n) * TESS_GRID_COLUMNS + grid_column] = of[n]; \
    for (uint slice = 0u; slice < TESS_ITEMS; slice += TESS_SUM_ITEMS) {    \
        TESS_BARRIER;                                                       \
        if (wanted) { TESS_LOAD_ITEMS(buffer, x, aligned) }                 \
        TESS_BARRIER;                                                       \
        if (wanted) { TESS_ADD_ITEMS(sums) }                                \
    }                                                                       \
    TESS_BARRIER;

#define TESS_STORE_KEYS(buffer, x, sums, factor, wanted)                            \
    TESS_UNROLL for (uint n = 0u; n < TESS_OWN; n++) {                              \
        const uint e = first_own + n;                                               \
        const tess_offset x##_base = TESS_FIRST_OF(x, kv_batch, kv_start, kv_head), \
                          at = TESS_TILE_AT(x, e);                                  \
        TESS_UNROLL for (uint g = 0u; g < TESS_OWN_GROUPS; g++) {                   \
            const uint dim = (g * TESS_GRID_COLUMNS + grid_column) * 4u;            \
            const vec4 four = sums[n * TESS_OWN_GROUPS + g] * (factor);             \
            if ((wanted) && e < used && dim < head_dim) {                           \
                TESS_STORE_GRADIENT(buffer, at + TESS_OFFSET(dim), four)            \
            }                                                                       \
        }                                                                           \
    }

#define TESS_COLUMNS_SHARED                    \
    TESS_BACKWARD_SHARED                       \
    TESS_SHARED(uint, key_token, TESS_TILE)    \
    TESS_SHARED(int, key_low, TESS_TILE)       \
    TESS_SHARED(int, key_high, TESS_TILE)      \
    TESS_SHARED(uint, key_bit, TESS_TILE)      \
    TESS_SHARED(uint, row_number, TESS_ITEMS)  \
    TESS_SHARED(int, row_position, TESS_ITEMS) \
    TESS_SHARED(uint, row_bits, TESS_ITEMS)    \
    TESS_SHARED(float, row_lse, TESS_ITEMS)    \
    TESS_SHARED(float, row_delta, TESS_ITEMS)

#ifdef TESS_SHARED_OUTSIDE
TESS_COLUMNS_SHARED
#endif

TESS_BACKWARD_COLUMNS_KERNEL {
#ifndef TESS_SHARED_OUTSIDE
    TESS_COLUMNS_SHARED
#endif
    const uint thread = TESS_THREAD;
    const bool present = TESS_GROUP < args.items;
    TESS_LEAVE_UNLESS(present);
    const uint column = args.items_at + (present ? TESS_GROUP : 0u) * TESS_COLUMN_WORDS,
               number = TESS_WORD(column + TESS_WORD_COLUMN_SEQUENCE),
               sequence = args.sequences_at + number * TESS_SEQUENCE_WORDS,
               kv_head = TESS_LOW_HALF(TESS_WORD(column + TESS_WORD_COLUMN_KV_HEAD)),
               keys = TESS_HIGH_HALF(TESS_WORD(column + TESS_WORD_COLUMN_KEYS)),
               used = present ? keys : 0u, head_dim = TESS_HEAD_DIM,
               batch = TESS_WORD(sequence + TESS_WORD_SEQUENCE_BATCH),
               kv_batch = TESS_WORD(sequence + TESS_WORD_SEQUENCE_KV_BATCH),
               first_segment = TESS_WORD(column + TESS_WORD_COLUMN_SEGMENT),
               segments = TESS_WORD(column + TESS_WORD_COLUMN_SEGMENTS) * TESS_UINT(present);
    TESS_LEAVE_UNLESS_BOUND(sequence, 0u, kv_head)
    const int q_first = TESS_INT(TESS_WORD(sequence + TESS_WORD_SEQUENCE_Q_FIRST)),
              q_len = TESS_INT(TESS_WORD(sequence + TESS_WORD_SEQUENCE_Q_LEN));
    const tess_offset q_start = TESS_WORD64(sequence + TESS_WORD_SEQUENCE_Q_START),
                      kv_start = TESS_WORD64(sequence + TESS_WORD_SEQUENCE_KV_START),
                      k_base = TESS_FIRST_OF(k, kv_batch, kv_start, kv_head),
                      v_base = TESS_FIRST_OF(v, kv_batch, kv_start, kv_head);
    const bool q_aligned = TESS_IS_ALIGNED(Q, TESS_FIRST_OF(q, batch, q_start, 0u),
                                           args.q_token | args.q_head),
               o_aligned = TESS_IS_ALIGNED(O, TESS_FIRST_OF(o, batch, q_start, 0u),
                                           args.o_token | args.o_head),
               k_aligned = TESS_IS_ALIGNED(K, k_base, args.k_token),
               v_aligned = TESS_IS_ALIGNED(V, v_base, args.v_token),
               d_k = (TESS_FLAGS & TESS_ARGS_D_K) != 0u, d_v = (TESS_FLAGS & TESS_ARGS_D_V) != 0u;
    const uint grid_column = thread % TESS_GRID_COLUMNS,
               first_own = thread / TESS_GRID_COLUMNS * TESS_OWN;
    const float scale_log2 = args.scale * TESS_LOG2E;
    vec4 sums_k[TESS_OWN * TESS_OWN_GROUPS], sums_v[TESS_OWN * TESS_OWN_GROUPS];
    TESS_UNROLL for (uint n = 0u; n < TESS_OWN * TESS_OWN_GROUPS; n++) sums_k[n] = sums_v[n] =
        VEC4(0.0f, 0.0f, 0.0f, 0.0f);
    TESS_SHARE(e, TESS_TILE)
    key_token[e] = tess_column_token(column, tess_min(e, keys - 1u) TESS_TABLES_OF_KERNEL);
    TESS_BARRIER;

    uint segment = 0u, head = 0u, first = 0u;
    while (segment < segments) {
        const tess_rows rows =
            tess_read_rows(TESS_ARGS_SEGMENTS +
                           (first_segment + segment) * TESS_SEGMENT_WORDS TESS_TABLES_OF_KERNEL);
        const tess_offset q_base = TESS_FIRST_OF(q, batch, q_start, rows.head + head),
                          o_base = TESS_FIRST_OF(o, batch, q_start, rows.head + head);
        /* The last use of these tables was before the latest barrier. */
        TESS_SHARE(e, TESS_ITEMS) {
            const tess_column_row found =
                tess_find_column_row(first + e, rows, q_first, q_len TESS_TABLES_OF_KERNEL);
            row_number[e] = found.row < 0 ? 0u : TESS_UINT(found.row);
            row_position[e] = q_first + found.row;
            row_bits[e] = found.bits;
            row_lse[e] = TESS_DEAD_LSE;
            row_delta[e] = 0.0f;
            if (found.row >= 0) {
                const tess_offset at = tess_strip_at(number, rows.head + head,
                                                     TESS_UINT(found.row) TESS_TABLES_OF_KERNEL);
                row_lse[e] = TESS_LOAD_PARTIAL(at);
                row_delta[e] = TESS_LOAD_PARTIAL(at + TESS_TO_DELTA);
            }
        }
        TESS_SHARE(k, TESS_TILE) {
            const tess_key_bounds found =
                tess_find_bounds(tess_min(k, keys - 1u), key_token[k], rows TESS_TABLES_OF_KERNEL);
            key_low[k] = found.low;
            key_high[k] = found.high;
            key_bit[k] = found.bit;
        }
        vec4 s[TESS_OWN], dp[TESS_OWN];
        TESS_SCORE_CHUNK((K, k, k_aligned, Q, q, q_aligned), (V, v, v_aligned, O, o, o_aligned),
                         d_k)
        TESS_UNROLL for (uint n = 0u; n < TESS_OWN; n++) {
            const int low = key_low[first_own + n], high = key_high[first_own + n];
            const uint bit = key_bit[first_own + n];
            TESS_EACH_ITEM(TESS_COLUMN_PAIR)
        }
        TESS_ADD_ROWS(s, O, o, o_aligned, sums_v, d_v)
        TESS_ADD_ROWS(dp, Q, q, q_aligned, sums_k, d_k)
        first += TESS_ITEMS;
        if (first >= rows.count) {
            first = 0u;
            head++;
        }
        if (head >= rows.heads) {
            head = 0u;
            segment++;
        }
    }
    TESS_STORE_KEYS(LSE, lse, sums_k, args.scale, d_k)
    TESS_STORE_KEYS(V_SCALE, v_scale, sums_v, 1.0f, d_v)
}

#undef TESS_TILE_AT
#undef TESS_ITEM_AT
#undef TESS_ITEM_COUNTS
