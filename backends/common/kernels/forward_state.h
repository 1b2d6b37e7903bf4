/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of rows and of keys that both forward kernels keep in shared memory.
 *   row_*   of each row of the tile, the fields of tess_row
 *   key_*   of each key of a chunk, the fields of tess_key, and where it lies
 */
#ifndef TESS_FORWARD_STATE_H
#define TESS_FORWARD_STATE_H

#include "forward_job.h"

#define TESS_SHARED_ROWS                         \
    TESS_SHARED(uint, row_head_row, TESS_ROWS)   \
    TESS_SHARED(int, row_causal, TESS_ROWS)      \
    TESS_SHARED(int, row_window_low, TESS_ROWS)  \
    TESS_SHARED(int, row_window_high, TESS_ROWS) \
    TESS_SHARED(int, row_block, TESS_ROWS)
#define TESS_SHARED_KEYS(count)             \
    TESS_SHARED(uint, key_page, count)      \
    TESS_SHARED(int, key_position, count)   \
    TESS_SHARED(int, key_last_block, count) \
    TESS_SHARED(uint, key_bits, count)

#define TESS_READ_ROW(row, r)             \
    tess_row row;                         \
    row.causal = row_causal[r];           \
    row.window_low = row_window_low[r];   \
    row.window_high = row_window_high[r]; \
    row.block = row_block[r]
#define TESS_READ_KEY(key, e)           \
    tess_key key;                       \
    key.position = key_position[e];     \
    key.last_block = key_last_block[e]; \
    key.bits = key_bits[e]
/* Whether a row might not keep the key. */
#define TESS_IS_MASKED(e)                                                    \
    (key_last_block[e] != TESS_INT_MAX || key_position[e] != TESS_INT_MIN || \
     key_bits[e] != 0xffffffffu)
#define TESS_IS_ABSENT(e) (key_page[e] == TESS_ABSENT)
/* Where an absent key lies: no offset, since strides are not negative. */
#define TESS_NOWHERE TESS_OFFSET(-1)

/* Finds key number u of the job for entry e of the state, and where it lies. Numbers past the end
 * stand for the last key, but like those whose page is absent count as masked. */
#define TESS_FIND_KEY(place, e, u, walk_, tile_)                                              \
    const tess_key key_##place =                                                              \
        tess_find_key(tess_min(u, keys - 1u), walk_, tile_ TESS_TABLES_OF_KERNEL);            \
    tess_place place;                                                                         \
    place.page = 0u;                                                                          \
    place.token = key_##place.token;                                                          \
    if (TESS_IS_CACHED) place = tess_find_place(key_##place.token, job TESS_PAGES_OF_KERNEL); \
    key_page[e] = place.page;                                                                 \
    key_position[e] = key_##place.position;                                                   \
    key_last_block[e] =                                                                       \
        (u) < keys && place.page != TESS_ABSENT ? key_##place.last_block : TESS_INT_MIN;      \
    key_bits[e] = key_##place.bits

/* What the mask compares besides, for a stage that masks. */
#define TESS_READ_MASK                                                            \
    const int i_first = tess_floor_div(tile.position, TESS_INT(args.block));      \
    const int sinks = (tile.flags & TESS_CLASS_WINDOW) != 0u                      \
                          ? TESS_INT(TESS_WORD(tile.cls + TESS_WORD_CLASS_SINKS)) \
                          : TESS_INT_MAX

/* The job's partial, or TESS_NO_PARTIAL. A kernel that has registers left reads it early. */
#ifndef TESS_PARTIAL_OF_JOB
#define TESS_PARTIAL_OF_JOB TESS_WORD(job + TESS_WORD_JOB_PARTIAL)
#endif

/* Row n of a group of 4, whose values in vectors of rows are the component c. */
#define TESS_EACH_ROW(action) action(0u, x) action(1u, y) action(2u, z) action(3u, w)

/* acc += a[0] * b0 + a[1] * b1 + a[2] * b2 + a[3] * b3 */
#define TESS_MULTIPLY_ADD(acc, a, b0, b1, b2, b3) \
    acc += b0 * a.x;                              \
    acc += b1 * a.y;                              \
    acc += b2 * a.z;                              \
    acc += b3 * a.w

/* Stores what a job knows of row r beside O: its maximum and sum, or its LSE. */
#define TESS_STORE_SUMS(r, row_max, row_sum)                                                     \
    if (partial != TESS_NO_PARTIAL) {                                                            \
        TESS_STORE_PARTIAL(max_base + TESS_OFFSET(r), row_max);                                  \
        TESS_STORE_PARTIAL(max_base + TESS_OFFSET(args.partial_rows) + TESS_OFFSET(r), row_sum); \
    } else if ((TESS_FLAGS & TESS_ARGS_LSE) != 0u)                                               \
        TESS_STORE_LSE(lse_base + TESS_ROW_OFFSET(lse, row_head_row[r]),                         \
                       row_sum > 0.0f ? (row_max * scale_log2 + tess_log2(row_sum)) * TESS_LN2   \
                                      : TESS_MINUS_INFINITY);

/* Stores 4 dims of row r, from `dim` on. */
#define TESS_STORE_DIMS(r, dim, four)                                                         \
    if (partial != TESS_NO_PARTIAL) {                                                         \
        TESS_STORE4_PARTIAL(                                                                  \
            partial_base + TESS_OFFSET(r) * TESS_OFFSET(head_dim) + TESS_OFFSET(dim), four);  \
    } else {                                                                                  \
        TESS_STORE4_O(o_base + TESS_ROW_OFFSET(o, row_head_row[r]) + TESS_OFFSET(dim), four); \
    }

#endif /* TESS_FORWARD_STATE_H */
