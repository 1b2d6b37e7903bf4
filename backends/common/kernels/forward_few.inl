/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The portable forward kernel for few rows, up to TESS_ROWS of them: decode, whose speed is that of
 * the memory. Like forward.inl, which is for tiles of many rows, it is one body for every language,
 * and one workgroup takes one job. Its stages are files of their own, which are a part of the
 * function below: few_load.inl, few_scores.inl, few_softmax.inl and few_epilogue.inl.
 *
 * Given: TESS_DTYPE, and the shape TESS_DIMS (largest head_dim), TESS_ROWS, TESS_KEYS,
 * TESS_THREADS. K and V go from memory to registers, 16 bytes a load, and are used there by one
 * thread for 4 rows. A thread has a slice of 8 dims. A team is the threads of all slices; it has 4
 * rows and every TESS_TEAMS-th key. With up to 4 rows all teams share out the keys, with up to 8
 * rows half of them, and so on: how many lanes of keys there are depends on the rows of the job.
 * Teams that read the same keys for different rows are made of neighbouring threads, whose loads
 * are one.
 *
 * A chunk is TESS_AHEAD keys for each lane. While a chunk is multiplied and its softmax taken, its
 * V is on its way, and then the next chunk's K: a thread always has loads in flight. A team runs a
 * softmax of its own, as forward.inl describes it, and so waits for nobody but itself; barriers are
 * for its shared memory. The epilogue adds up the teams.
 *
 * Numbers past the last key, absent keys and rows past the last are treated as in forward.inl.
 */

/* ----------------------------------------- sizes; FEW_SHARED in portable.c follows from them */

#define TESS_SLICES (TESS_DIMS / 8u)
#define TESS_TEAMS  (TESS_THREADS / TESS_SLICES)

#ifndef TESS_FEW_ONCE
#define TESS_FEW_ONCE

#include "forward_state.h"

/*
 * Shared memory.
 *   products  of a thread's slices of Q and its keys, 4 rows a group; then parts of O
 *   scores    sums of products, as [slice][team]
 *   weights   P, as [key of the lane][team]
 *   key_*_at  of each key of two chunks, beside its state: elements of K and V
 */
#define TESS_FEW_SHARED                                \
    TESS_SHARED(vec4, products, 8u * TESS_THREADS)     \
    TESS_SHARED(vec4, scores, TESS_THREADS)            \
    TESS_SHARED(vec4, weights, TESS_THREADS)           \
    TESS_SHARED(tess_offset, key_k_at, 2u * TESS_KEYS) \
    TESS_SHARED(tess_offset, key_v_at, 2u * TESS_KEYS) \
    TESS_SHARED_KEYS(2u * TESS_KEYS) TESS_SHARED_ROWS TESS_SHARED(uint, walk_words, 12u)

/* What finding keys needs, in shared memory: in registers it would take the place of loads. */
#define TESS_STORE_WALK                       \
    if (thread == 0u) {                       \
        walk_words[0] = walk.left_offset;     \
        walk_words[1] = walk.left_count;      \
        walk_words[2] = walk.right_offset;    \
        walk_words[3] = walk.interval_start;  \
        walk_words[4] = walk.interval_blocks; \
        walk_words[5] = walk.mask_head;       \
        walk_words[6] = walk.mask_tail;       \
        walk_words[7] = tile.flags;           \
        walk_words[8] = tile.cls;             \
    }
#define TESS_READ_WALK                                \
    tess_tile known_tile;                             \
    known_tile.flags = walk_words[7];                 \
    known_tile.cls = walk_words[8];                   \
    tess_key_walk known_walk;                         \
    known_walk.left_offset = walk_words[0];           \
    known_walk.left_count = walk_words[1];            \
    known_walk.right_offset = walk_words[2];          \
    known_walk.right_count = 0u; /* of no use here */ \
    known_walk.interval_start = walk_words[3];        \
    known_walk.interval_blocks = walk_words[4];       \
    known_walk.mask_head = walk_words[5];             \
    known_walk.mask_tail = walk_words[6];             \
    known_walk.mask_entries = (known_tile.flags & TESS_CLASS_MASK_ENTRIES) != 0u

#endif

#ifdef TESS_SHARED_OUTSIDE
TESS_FEW_SHARED
#endif

TESS_FEW_KERNEL {
#ifndef TESS_SHARED_OUTSIDE
    TESS_FEW_SHARED
#endif
#include "forward_begin.inl"
    /* Thread = ((lane * slices) + slice) * groups of 4 rows + group. */
    const uint shift = used > 8u ? 2u : used > 4u ? 1u : 0u;
    const uint row_group = thread & ((1u << shift) - 1u), slice = (thread >> shift) % TESS_SLICES,
               lane = (thread >> shift) / TESS_SLICES, lanes = TESS_TEAMS >> shift;
    const uint first_row = row_group * 4u, team = (lane << shift) + row_group;
    const uint step = lanes * TESS_AHEAD; /* keys of a chunk */
    const bool inside = slice * 8u < head_dim;
    const float scale_log2 = (args.scale < 0.0f ? -args.scale : args.scale) * TESS_LOG2E;

    TESS_EIGHT k8[TESS_AHEAD], v8[TESS_AHEAD];
    vec4 q[8], o[8]; /* q: of a dim, 4 rows; o: of a row, 4 dims twice */
    /* of 4 rows; row_sum only of the keys whose P the thread finds */
    vec4 row_max = VEC4_OF(TESS_LOWEST), row_sum = VEC4_OF(0.0f);
    TESS_UNROLL for (uint n = 0u; n < 8u; n++) {
        q[n] = VEC4_OF(0.0f);
        o[n] = VEC4_OF(0.0f);
    }
    /* Slices past head_dim stay zero. */
    TESS_UNROLL for (uint n = 0u; n < TESS_AHEAD; n++) {
        k8[n] = TESS_EIGHT_ZEROS;
        v8[n] = TESS_EIGHT_ZEROS;
    }
    TESS_STORE_WALK
    TESS_BARRIER;
#include "few_load.inl"

    uint coming = 0u; /* where the coming chunk's keys begin in their state; the other half of it is
                         the current one's */
    const uint end = keys > 0u ? keys + step : 0u;
    TESS_NO_UNROLL for (uint first = 0u; first < end; first += step) {
        const bool is_current = first > 0u, is_coming = first < keys;
        const uint current = TESS_KEYS - coming;
        if (is_coming && thread < step) {
            const uint e = coming + thread;
            TESS_READ_WALK;
            TESS_FIND_KEY(place, e, first + thread, known_walk, known_tile);
            key_k_at[e] = TESS_FIND_OFFSET(k, place);
            key_v_at[e] = TESS_FIND_OFFSET(v, place);
        }
        if (is_current) {
            if (inside) { TESS_LOAD_KEYS(v8, V, v, current) }
            TESS_MULTIPLY_KEYS
        }
        TESS_BARRIER;
        if (is_coming && inside) { TESS_LOAD_KEYS(k8, K, k, coming) }
        if (is_current) {
#include "few_scores.inl"
        }
        TESS_BARRIER;
        if (is_current) {
#include "few_softmax.inl"
        }
        TESS_BARRIER;
        if (is_current) {
#include "few_values.inl"
        }
        coming = current;
    }
#include "few_epilogue.inl"
}
