/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the two passes of the portable backward kernel have in common. A workgroup has a tile of
 * TESS_TILE rows (backward_rows.inl) or keys (backward_columns.inl), and the other side comes by in
 * chunks of TESS_ITEMS items. Threads form a grid of TESS_GRID_COLUMNS columns, each for 4 items,
 * and lines of TESS_OWN entries of the tile. A thread keeps S and dP of its entries and items in
 * registers, and the sums of its entries and of every TESS_GRID_COLUMNS-th group of 4 dims.
 *
 * Given: the shape TESS_DIMS (largest head_dim), TESS_TILE and TESS_THREADS. A pass defines where
 * things lie: TESS_TILE_AT(x, e) for entry e of the tile in tensor x, TESS_ITEM_AT(x, e) for item e
 * of the chunk, and TESS_ITEM_COUNTS(e), without which zeros stand for the item and nothing of it
 * is read.
 */
#ifndef TESS_BACKWARD_STATE_H
#define TESS_BACKWARD_STATE_H

#include "backward_strips.h"
#include "forward_job.h"

/* ------------------------------------- sizes; shared_bytes in backward.c follows from them */

#define TESS_ITEMS        32u
#define TESS_GRID_COLUMNS (TESS_ITEMS / 4u)
#define TESS_OWN          (TESS_TILE * TESS_GRID_COLUMNS / TESS_THREADS)
#define TESS_OWN_GROUPS   (TESS_DIMS / 4u / TESS_GRID_COLUMNS) /* groups of 4 dims of a thread */
#define TESS_DEPTH        32u                 /* dims of both sides loaded at a time for S and dP */
#define TESS_SUM_ITEMS    (2048u / TESS_DIMS) /* items loaded at a time for sums */
/* Shared memory in groups of 4 floats: both sides as a slice of dims, or items for sums. */
#define TESS_TILE_SIZE   (TESS_TILE * TESS_DEPTH / 4u)
#define TESS_ITEM_SIZE   (TESS_ITEMS * TESS_DEPTH / 4u)
#define TESS_SUM_SIZE    512u
#define TESS_WEIGHT_SIZE (TESS_TILE * TESS_GRID_COLUMNS)

/*
 *   xy       the tile as [entry][dim] and items as [dim][item] of a slice, groups of 4 items
 *            swizzled as forward's are; then items as [item][dim]
 *   weights  P or dS as [entry][item]
 */
#define TESS_BACKWARD_SHARED             \
    TESS_SHARED(vec4, xy, TESS_SUM_SIZE) \
    TESS_SHARED(vec4, weights, TESS_WEIGHT_SIZE)

/* Work that the threads share: things 0 to count - 1. */
#define TESS_SHARE(e, count) for (uint e = thread; e < (count); e += TESS_THREADS)

/* The group of 4 dims at `dim` of an item. `load` is TESS_LOAD4 or TESS_LOAD4_ALIGNED. */
#define TESS_ITEM_GROUP(four, load, buffer, x, e, dim) \
    vec4 four = VEC4(0.0f, 0.0f, 0.0f, 0.0f);          \
    if (TESS_ITEM_COUNTS(e)) four = load(buffer, TESS_ITEM_AT(x, e) + TESS_OFFSET(dim))

/* Loads dims [slice, slice + depth) of the tile. Dims past the last stand for the last ones; nobody
 * uses them. */
#define TESS_LOAD_TILE(load, buffer, x)                                                  \
    TESS_SHARE(e, TESS_TILE_SIZE) {                                                      \
        const uint dim = slice + tess_min(e % (TESS_DEPTH / 4u), depth / 4u - 1u) * 4u;  \
        xy[e] = load(buffer, TESS_TILE_AT(x, e / (TESS_DEPTH / 4u)) + TESS_OFFSET(dim)); \
    }

/* Likewise of the items. */
#define TESS_LOAD_CHUNK(load, buffer, i)                                                        \
    TESS_SHARE(f, TESS_ITEM_SIZE / 4u) {                                                        \
        const uint four = f % (TESS_DEPTH / 4u), group = f / (TESS_DEPTH / 4u),                 \
                   dim = slice + tess_min(four, depth / 4u - 1u) * 4u;                          \
        TESS_ITEM_GROUP(a, load, buffer, i, group * 4u, dim);                                   \
        TESS_ITEM_GROUP(b, load, buffer, i, group * 4u + 1u, dim);                              \
        TESS_ITEM_GROUP(c, load, buffer, i, group * 4u + 2u, dim);                              \
        TESS_ITEM_GROUP(d, load, buffer, i, group * 4u + 3u, dim);                              \
        const uint to = TESS_TILE_SIZE + four * 4u * TESS_GRID_COLUMNS + (group ^ (four & 7u)); \
        xy[to] = VEC4(a.x, b.x, c.x, d.x);                                                      \
        xy[to + TESS_GRID_COLUMNS] = VEC4(a.y, b.y, c.y, d.y);                                  \
        xy[to + 2u * TESS_GRID_COLUMNS] = VEC4(a.z, b.z, c.z, d.z);                             \
        xy[to + 3u * TESS_GRID_COLUMNS] = VEC4(a.w, b.w, c.w, d.w);                             \
    }

/* One test for all loads of a thread, so that they are under way together. */
#define TESS_LOAD_SLICE(tile_buffer, t, t_aligned, item_buffer, i, i_aligned) \
    if ((t_aligned) && (i_aligned)) {                                         \
        TESS_LOAD_TILE(TESS_LOAD4_ALIGNED, tile_buffer, t)                    \
        TESS_LOAD_CHUNK(TESS_LOAD4_ALIGNED, item_buffer, i)                   \
    } else {                                                                  \
        TESS_LOAD_TILE(TESS_LOAD4, tile_buffer, t)                            \
        TESS_LOAD_CHUNK(TESS_LOAD4, item_buffer, i)                           \
    }

/* acc += a[0] * b0 + a[1] * b1 + a[2] * b2 + a[3] * b3 */
#define TESS_ADD_PRODUCTS(acc, a, b0, b1, b2, b3) \
    acc += b0 * a.x;                              \
    acc += b1 * a.y;                              \
    acc += b2 * a.z;                              \
    acc += b3 * a.w

/* The products of the slice in shared memory, added to those of earlier ones. */
#define TESS_MULTIPLY_SLICE(scores)                                                             \
    TESS_NO_UNROLL for (uint k = 0u; k < depth; k += 4u) {                                      \
        const uint at = TESS_TILE_SIZE + k * TESS_GRID_COLUMNS + (grid_column ^ (k / 4u & 7u)); \
        const vec4 b0 = xy[at], b1 = xy[at + TESS_GRID_COLUMNS],                                \
                   b2 = xy[at + 2u * TESS_GRID_COLUMNS], b3 = xy[at + 3u * TESS_GRID_COLUMNS];  \
        TESS_UNROLL for (uint n = 0u; n < TESS_OWN; n++) {                                      \
            const vec4 a = xy[(first_own + n) * (TESS_DEPTH / 4u) + k / 4u];                    \
            TESS_ADD_PRODUCTS(scores[n], a, b0, b1, b2, b3);                                    \
        }                                                                                       \
    }

/* S of the chunk from the sides `first`, and dP from `second`, which are arguments of
 * TESS_LOAD_SLICE. */
#define TESS_SCORE_CHUNK(first, second, wants_dp)                                                 \
    TESS_UNROLL for (uint n = 0u; n < TESS_OWN; n++) s[n] = dp[n] = VEC4(0.0f, 0.0f, 0.0f, 0.0f); \
    for (uint slice = 0u; slice < head_dim; slice += TESS_DEPTH) {                                \
        const uint depth = tess_min(head_dim - slice, TESS_UINT(TESS_DEPTH));                     \
        TESS_BARRIER;                                                                             \
        TESS_LOAD_SLICE first TESS_BARRIER;                                                       \
        TESS_MULTIPLY_SLICE(s)                                                                    \
        TESS_BARRIER;                                                                             \
        if (wants_dp) { TESS_LOAD_SLICE second }                                                  \
        TESS_BARRIER;                                                                             \
        if (wants_dp) { TESS_MULTIPLY_SLICE(dp) }                                                 \
    }

/* Loads items [slice, slice + TESS_SUM_ITEMS) for sums. */
#define TESS_LOAD_SOME(load, buffer, x)                                      \
    TESS_UNROLL for (uint n = 0u; n < TESS_SUM_SIZE / TESS_THREADS; n++) {   \
        const uint e = n * TESS_THREADS + thread;                            \
        const uint item = slice + e / (TESS_DIMS / 4u),                      \
                   dim = tess_min(e % (TESS_DIMS / 4u) * 4u, head_dim - 4u); \
        TESS_ITEM_GROUP(four, load, buffer, x, item, dim);                   \
        xy[e] = four;                                                        \
    }
#define TESS_LOAD_ITEMS(buffer, x, aligned)           \
    if (aligned) {                                    \
        TESS_LOAD_SOME(TESS_LOAD4_ALIGNED, buffer, x) \
    } else {                                          \
        TESS_LOAD_SOME(TESS_LOAD4, buffer, x)         \
    }

/* sums += weights * items, for the items in shared memory. */
#define TESS_ADD_ITEMS(sums)                                                                    \
    TESS_NO_UNROLL for (uint k = 0u; k < TESS_SUM_ITEMS; k += 4u) {                             \
        TESS_UNROLL for (uint g = 0u; g < TESS_OWN_GROUPS; g++) {                               \
            const uint at = k * (TESS_DIMS / 4u) + g * TESS_GRID_COLUMNS + grid_column;         \
            const vec4 b0 = xy[at], b1 = xy[at + TESS_DIMS / 4u], b2 = xy[at + TESS_DIMS / 2u], \
                       b3 = xy[at + TESS_DIMS / 4u * 3u];                                       \
            TESS_UNROLL for (uint n = 0u; n < TESS_OWN; n++) {                                  \
                const vec4 a = weights[(first_own + n) * TESS_GRID_COLUMNS + (slice + k) / 4u]; \
                TESS_ADD_PRODUCTS(sums[n * TESS_OWN_GROUPS + g], a, b0, b1, b2, b3);            \
            }                                                                                   \
        }                                                                                       \
    }

/* Stores 4 elements of a gradient as the run wants them: rounded, in float32, or added to what is
 * there. */
#define TESS_STORE_GRADIENT(buffer, at, x)                                   \
    if ((TESS_FLAGS & TESS_ARGS_F32) == 0u) {                                \
        TESS_STORE4_NARROW(buffer, at, x);                                   \
    } else if ((TESS_FLAGS & TESS_ARGS_ADD) != 0u) {                         \
        TESS_STORE4_FLOATS(buffer, at, TESS_LOAD4_FLOATS(buffer, at) + (x)); \
    } else {                                                                 \
        TESS_STORE4_FLOATS(buffer, at, x);                                   \
    }

/* Component c, one of x, y, z and w, of four items. */
#define TESS_EACH_ITEM(action) action(0u, x) action(1u, y) action(2u, z) action(3u, w)

#endif /* TESS_BACKWARD_STATE_H */
