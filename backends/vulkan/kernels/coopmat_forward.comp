/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The forward kernel on matrix units (VK_KHR_cooperative_matrix), for float16 (TESS_DTYPE 1) and
 * bfloat16 (2, with VK_KHR_shader_bfloat16). One workgroup takes one job and a subgroup
 * SUBGROUP_ROWS rows of its tile, with Q and O in matrices all the while. K and V come in chunks of
 * KEYS keys, in rows that are 16 bytes longer than they need to be: neighbours begin in different
 * banks. V is loaded into registers while S is multiplied, and the next K during the softmax and
 * the products of P.
 *
 * Its stages are files of their own, which are a part of the function below, since GLSL cannot hand
 * arrays in registers to a function:
 *   coopmat_begin.inl      what is this thread's and its subgroup's; O and row sums are 0
 *   coopmat_queries.inl    Q, from memory to matrices; the first keys are on their way
 *   coopmat_scores.inl     S = Q K^T of a chunk, and its masks (coopmat_masks.h)
 *   coopmat_reference.inl  the reference of the exponentials rises where scores exceed it
 *   coopmat_softmax.inl    exponentials, row sums, and P as an operand
 *   coopmat_values.inl     O += P V of a chunk
 *   coopmat_rescale.inl    O, where the reference rose
 *   coopmat_sums.inl       row sums over columns; LSE, or the row's part of a partial
 *   coopmat_epilogue.inl   O, from matrices to memory
 * coopmat_keys.h finds the keys of chunks, and copies K and V.
 *
 * Nobody says which elements of a matrix an invocation holds, so whatever the softmax does is done
 * to all elements alike:
 *   - the exponentials' reference, one score a row, and its product with the scale are matrices
 *     whose columns are all the same: a column loaded with stride 0;
 *   - row sums are added up element by element, and over columns only at the end;
 *   - row maxima are compared with the reference element by element. Only where one exceeds it by
 *     2^8, which is rare, maxima go through shared memory, and the reference of these rows rises.
 * P becomes an operand in registers where results and operands are laid out alike (DIRECT), and
 * elsewhere through shared memory. What a subgroup keeps there is of its own rows, behind barriers
 * of its own.
 */
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_vote : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#define TESS_FEW 1 /* for loads of 8 elements */
#include "bindings.h"
#include "dialect_glsl.h"
#if TESS_DTYPE == 2
#extension GL_EXT_bfloat16 : require
#define NARROW bfloat16_t
#else
#define NARROW float16_t
#endif

layout(constant_id = 0) const uint DIMS = 64u;           /* largest head_dim */
layout(constant_id = 1) const uint SUBGROUPS = 4u;       /* of the workgroup */
layout(constant_id = 2) const uint KEYS = 32u;           /* of a chunk */
layout(constant_id = 3) const uint TESS_THREADS = 32u;
layout(constant_id = 4) const uint ROW_FRAGMENTS = 1u;   /* of a subgroup */
layout(constant_id = 5) const uint M = 8u;               /* a product is M x K by K x N */
layout(constant_id = 6) const uint N = 8u;
layout(constant_id = 7) const uint K = 8u;
layout(constant_id = 8) const uint SUBGROUP = 8u;        /* invocations */
layout(constant_id = 9) const uint LOCKSTEP = 0u;        /* 1: those of a subgroup never part */
layout(constant_id = 10) const uint DIRECT = 0u;         /* 1: A is laid out as C is */
layout(local_size_x_id = 3) in;

const uint SUBGROUP_ROWS = ROW_FRAGMENTS * M;
const uint TESS_ROWS = SUBGROUPS * SUBGROUP_ROWS;
const uint UNITS = DIMS / 8u, ROW = UNITS + 1u;         /* of 16 bytes: in a row, and to the next */
const uint KEY_FRAGMENTS = KEYS / N, STEPS = KEYS / K;  /* of S; of P as an operand */
const uint Q_STEPS = DIMS / K, O_FRAGMENTS = DIMS / N;
const uint PLACE = N + 4u;                              /* words of a row in a subgroup's place */
const uint PLACES = M * PLACE;                          /* one fragment's at a time */
/* A thread copies a column of 8 elements of TURNS keys that follow each other, in K or V. */
const uint TURNS = KEYS * UNITS / TESS_THREADS;
const uint Q_ROWS = 2u * KEYS < TESS_ROWS ? 2u * KEYS : TESS_ROWS; /* of Q, at a time */
const uint Q_TURNS = Q_ROWS * UNITS / TESS_THREADS;
/* Matrices of O that go through the place of K and V at once: as many as fit, and at least one. */
#define O_UNITS_OF(n) (SUBGROUPS * M * ((n) * N / 4u + 1u)) /* of 16 bytes */
#define O_FIT(n)      (O_UNITS_OF(n) <= 2u * KEYS * ROW)
const uint O_GROUP = O_FIT(O_FRAGMENTS)        ? O_FRAGMENTS
                     : O_FIT(O_FRAGMENTS / 2u) ? O_FRAGMENTS / 2u
                     : O_FIT(O_FRAGMENTS / 4u) ? O_FRAGMENTS / 4u
                                               : 1u;
const uint O_UNITS = O_GROUP * N / 8u, O_ROW = 2u * O_UNITS + 1u;
/* Keys that are listed at a time, two chunks, and entries of both lists. */
const uint LISTED = 2u * KEYS, LIST = 2u * LISTED;

/* The number, which a compiler does not know: NVIDIA's unrolls loops that it should not, and the
 * ways for unaligned tensors were an eighth of the code. */
#define ROLLED(count) ((count) * min(args.head_dim, 1u))

/* A job that begins about when this one ends: an H200 runs 264 at a time. */
const uint JOBS_AHEAD = 300u;

#define TESS_PARTIAL_OF_JOB early_partial
#include "forward_state.h"

#define MATRIX_A coopmat<NARROW, gl_ScopeSubgroup, M, K, gl_MatrixUseA>
#define MATRIX_B coopmat<NARROW, gl_ScopeSubgroup, K, N, gl_MatrixUseB>
#define MATRIX_C coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>
/* Rounds to nearest: what a conversion to bfloat16 does is up to the driver, and one cuts off. */
#if TESS_DTYPE == 2
#define NARROW_P(x) bfloat16_t(uintBitsToFloat(floatBitsToUint(x) + 0x8000u & 0xffff0000u))
#else
#define NARROW_P(x) float16_t(x)
#endif
/* 16 bits of any type, on their way to shared memory. */
#define MATRIX_P coopmat<float16_t, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>
#define ROW_MAJOR    gl_CooperativeMatrixLayoutRowMajor
#define COLUMN_MAJOR gl_CooperativeMatrixLayoutColumnMajor

/* The reference of a row without keys, and the score of a key that is not kept. Both are finite,
 * and far from all others even when a small scale brings them together. */
#define NO_REFERENCE (-1.0e36)
#define NOT_KEPT     (-1.0e37)
#define LEAST_SCALE  1.0e-12
#define MOST_RISE    8.0 /* log2 */
/* A product of score and scale that is so large has lost bits which a difference of scores keeps:
 * exponentials are then of that, and the product counts as 0. */
#define IS_LARGE(score) (abs((score) * scale_log2) > 16384.0 && (score) != NO_REFERENCE)

/* Between accesses to a subgroup's place. lavapipe, whose subgroups run in lockstep, takes
 * subgroupBarrier() for a barrier of the workgroup. */
#define OWN_BARRIER                                                        \
    if (LOCKSTEP != 0u) {                                                  \
        subgroupMemoryBarrierShared();                                     \
    } else {                                                               \
        subgroupBarrier();                                                 \
    }

layout(set = 0, binding = TESS_BIND_O) writeonly buffer tess_o8 { uvec4 O8_[]; };

/* Matrices are loaded from multiples of 16 bytes. So is the size of each of these variables, since
 * a driver may put one behind the other. */
/* K and V of a chunk; before them, rows of Q, and behind them, of O. */
shared uvec4 kv[O_FIT(O_GROUP) ? 2u * KEYS * ROW : O_UNITS_OF(O_GROUP)];
shared float places[SUBGROUPS * PLACES];
TESS_SHARED_ROWS
shared float row_reference[TESS_ROWS], row_product[TESS_ROWS], row_factor[TESS_ROWS];
/* Of two lists of keys, each of two chunks: where keys lie, and the fields of tess_key. Those of
 * absent pages lie at the tensor's first element. */
shared uint key_k_at[LIST], key_v_at[LIST], key_bits[LIST];
shared int key_position[LIST], key_last_block[LIST];
shared uint later_words[TESS_JOB_WORDS]; /* nobody reads them: coopmat_begin.inl */
shared uvec4 risen_at; /* x: the first key of the last chunk in which a reference rose */

#include "coopmat_masks.h"
#include "coopmat_keys.h"

uint pack_narrow(float a, float b) {
#if TESS_DTYPE == 1
    return packFloat2x16(f16vec2(a, b));
#else
    return tess_narrow(a) | tess_narrow(b) << 16;
#endif
}

TESS_FORWARD_KERNEL {
#include "forward_begin.inl"
#include "coopmat_begin.inl"
#include "coopmat_queries.inl"
    uint list = 0u, first = 0u;
    barrier();
    /* The inner loop ends where a reference rises: O is multiplied outside of it. Inside, products
     * alone change O, and its registers stay where they are. */
    bool rose = keys > 0u, large = false;
    [[dont_unroll]] while (rose) {
        rose = false;
        [[dont_unroll]] while (first < keys) {
            /* Nobody reads the last chunk's K any more. */
            const uint end = first + KEYS;
            PUT(K, k_wide, key_k_at, list, 0u)
            barrier();
            FETCH(V, v_wide, key_v_at, list)
#include "coopmat_scores.inl"
#include "coopmat_reference.inl"
            PUT(V, v_wide, key_v_at, list, KEYS * ROW)
            if (TESS_IS_PAGED && masked) { /* absent keys: V may be anything */
                for (uint turn = 0u; turn < TURNS; turn++)
                    if (key_last_block[list + own_key + turn] == TESS_INT_MIN)
                        kv[KEYS * ROW + own_place + turn * ROW] = uvec4(0u);
            }
            /* Behind the last chunk no key is listed, and that chunk comes again. */
            FETCH(K, k_wide, key_k_at, end < keys ? (list + KEYS) % LIST : list)
            barrier();
#include "coopmat_softmax.inl"
            rose = subgroupAny(risen_at.x == first);
            first = end;
            list = (list + KEYS) % LIST;
            if (rose) break;
#include "coopmat_values.inl"
        }
        if (!rose) break;
#include "coopmat_rescale.inl"
#include "coopmat_values.inl"
    }

#include "forward_result.inl"
#include "coopmat_sums.inl"
#include "coopmat_epilogue.inl"
}
