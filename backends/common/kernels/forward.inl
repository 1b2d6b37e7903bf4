/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The portable forward kernel: one body for every language, in the dialect that the including file
 * has chosen (dialect_*.h). One workgroup takes one job. Its stages are files of their own, which
 * are a part of the function below: forward_scores.inl, forward_softmax.inl, forward_values.inl and
 * forward_epilogue.inl. OpenCL C 1.2 and GLSL cannot hand arrays in registers to a function.
 *
 * Given: TESS_DTYPE, and the shape TESS_DIMS (largest head_dim), TESS_ROWS, TESS_KEYS,
 * TESS_THREADS, constants when the kernel is compiled or specialised. Threads form a grid of
 * TESS_COLUMNS columns, each for 4 keys of a chunk, and lines of TESS_THREAD_ROWS rows, 4 or 8. A
 * thread keeps the scores of its rows and keys in registers, and the outputs of its rows and of
 * every TESS_COLUMNS-th group of 4 dims. Unrolling turns every index into these arrays into a
 * constant.
 *
 * The keys of a job are numbered through in the order of its key blocks (key_walk.h). A chunk is
 * TESS_KEYS such numbers, whatever blocks they come from, so that small blocks are glued and large
 * ones cut. Threads look up one key each. Numbers past the end stand for the last key, and rows
 * past the tile's for its last row: nothing else needs a test when it is loaded, and nothing
 * outside of the listed blocks is ever read. Such keys count as masked; such rows are not stored.
 * Keys whose page is absent count as masked too, and zeros stand for their K and V. Codes of 8 bits
 * become numbers as they are loaded.
 *
 * Softmax runs in base 2, on scores that are not scaled yet: differences of two scores are exact
 * where it matters, however large both are, and only a difference is multiplied by the scale.
 * TESS_LOWEST stands for minus infinity, so that no test depends on how a compiler treats
 * infinities; a score at or below it counts 0.
 */

/* ----------------------------------------- sizes; shared_bytes in portable.c follows from them */

#define TESS_COLUMNS       (TESS_KEYS / 4u)
#define TESS_THREAD_ROWS   (TESS_ROWS * TESS_COLUMNS / TESS_THREADS)
#define TESS_THREAD_GROUPS (TESS_DIMS / 4u / TESS_COLUMNS)   /* groups of 4 dims of a thread */
#define TESS_SLICE_DIMS    (TESS_ROWS >= 32u ? 32u : 16u)    /* dims of Q and K loaded at a time */
#define TESS_SLICE_KEYS    (TESS_COLUMNS * 128u / TESS_DIMS) /* keys of V loaded at a time */
/* Shared memory of each operand, in groups of 4 floats. */
#define TESS_Q_SIZE (TESS_ROWS * TESS_SLICE_DIMS / 4u)
#define TESS_K_SIZE (TESS_KEYS * TESS_SLICE_DIMS / 4u)
#define TESS_P_SIZE (TESS_ROWS * TESS_COLUMNS)
#define TESS_QKP_SIZE \
    (TESS_Q_SIZE + TESS_K_SIZE > TESS_P_SIZE ? TESS_Q_SIZE + TESS_K_SIZE : TESS_P_SIZE)
#define TESS_V_SIZE (TESS_SLICE_KEYS * TESS_DIMS / 4u)

#ifndef TESS_FORWARD_ONCE
#define TESS_FORWARD_ONCE

#include "forward_state.h"

/*
 * Shared memory.
 *   qkp     Q as [row][dim] and K as [dim][key] of one slice; then P as [row][key]. Groups of 4
 *           keys of a dim are swizzled (exclusive or with the group of 4 dims), which spreads the
 *           transposing stores over the banks.
 *   v       V as [key][dim]
 *   reduce  what columns tell each other about rows, as [column][row]
 *   key_token  of each key of the chunk, beside its state
 */
#define TESS_FORWARD_SHARED                                 \
    TESS_SHARED(vec4, qkp, TESS_QKP_SIZE)                   \
    TESS_SHARED(vec4, v, TESS_V_SIZE)                       \
    TESS_SHARED(vec4, reduce, TESS_ROWS *TESS_COLUMNS / 4u) \
    TESS_SHARED(uint, key_token, TESS_KEYS)                 \
    TESS_SHARED_KEYS(TESS_KEYS) TESS_SHARED_ROWS

#endif

#ifdef TESS_SHARED_OUTSIDE
TESS_FORWARD_SHARED
#endif

/* Work that the threads share: `count` things, of which a thread takes the thing number n *
 * TESS_THREADS + thread in its n-th turn. */
#define TESS_TURNS(count)     (((count) + TESS_THREADS - 1u) / TESS_THREADS)
#define TESS_INSIDE(e, count) ((count) % TESS_THREADS == 0u || (e) < (count))

TESS_FORWARD_KERNEL {
#ifndef TESS_SHARED_OUTSIDE
    TESS_FORWARD_SHARED
#endif
#include "forward_begin.inl"
    const bool q_aligned = TESS_IS_ALIGNED(Q, q_base, args.q_token | args.q_head);
    const bool k_aligned = TESS_IS_ALIGNED(K, k_base, args.k_token);
    const bool v_aligned = TESS_IS_ALIGNED(V, v_base, args.v_token);

    const uint column = thread % TESS_COLUMNS, first_row = thread / TESS_COLUMNS * TESS_THREAD_ROWS;
    const float scale_log2 = (args.scale < 0.0f ? -args.scale : args.scale) * TESS_LOG2E;
    vec4 s[TESS_THREAD_ROWS], o[TESS_THREAD_ROWS * TESS_THREAD_GROUPS];
    /* of each row; row_sum only of this thread's keys */
    vec4 row_max[TESS_THREAD_ROWS / 4u], row_sum[TESS_THREAD_ROWS / 4u];
    TESS_UNROLL for (uint n = 0u; n < TESS_THREAD_ROWS * TESS_THREAD_GROUPS; n++) o[n] =
        VEC4(0.0f, 0.0f, 0.0f, 0.0f);
    TESS_UNROLL for (uint g = 0u; g < TESS_THREAD_ROWS / 4u; g++) {
        row_max[g] = VEC4(TESS_LOWEST, TESS_LOWEST, TESS_LOWEST, TESS_LOWEST);
        row_sum[g] = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
    }

    for (uint first = 0u; first < keys; first += TESS_KEYS) {
        const uint chunk = tess_min(keys - first, TESS_UINT(TESS_KEYS)), end = first + TESS_KEYS;
        const bool masked = end > keys || tess_key_walk_masked(walk, first, end, args.block);

        /* The last use of these tables was before the latest barrier. */
        for (uint e = thread; e < TESS_KEYS; e += TESS_THREADS) {
            TESS_FIND_KEY(place, e, first + e, walk, tile);
            key_token[e] = place.token;
        }
#include "forward_scores.inl"
#include "forward_softmax.inl"
#include "forward_values.inl"
    }
#include "forward_epilogue.inl"
}
