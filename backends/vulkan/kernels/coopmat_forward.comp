/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The forward kernel on matrix units (VK_KHR_cooperative_matrix), for float16 (TESS_DTYPE 1) and
 * bfloat16 (2, with VK_KHR_shader_bfloat16). One workgroup takes one job and a subgroup
 * SUBGROUP_ROWS rows of its tile, with Q and O in matrices all the while. K and V come in stages of
 * KEYS keys, in rows that are 16 bytes longer than they need to be: neighbours begin in different
 * banks. V is loaded into registers while S is multiplied, and the next K during the softmax and
 * the products of P.
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
layout(constant_id = 2) const uint KEYS = 32u;           /* of a stage */
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
/* Keys that are listed at a time, two stages, and entries of both lists. */
const uint LISTED = 2u * KEYS, LIST = 2u * LISTED;

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
shared uvec4 kv[2u * KEYS * ROW];      /* K and V of a stage; before them, rows of Q */
shared float places[SUBGROUPS * PLACES];
TESS_SHARED_ROWS
shared float row_reference[TESS_ROWS], row_product[TESS_ROWS], row_factor[TESS_ROWS];
/* Of two lists of keys, each of two stages: where keys lie, and the fields of tess_key. Those of
 * absent pages lie at the tensor's first element. */
shared uint key_k_at[LIST], key_v_at[LIST], key_bits[LIST];
shared int key_position[LIST], key_last_block[LIST];
shared uvec4 risen_at; /* x: the first key of the last stage in which a reference rose */

#include "coopmat_masks.h"

void list_keys(uint list, uint first, uint keys, uint job, tess_tile tile, tess_key_walk walk,
               uint k_base, uint v_base) {
    for (uint e = TESS_THREAD; e < LISTED; e += TESS_THREADS) {
        const tess_key key = tess_find_key(min(first + e, keys - 1u), walk, tile);
        tess_place place;
        place.page = 0u;
        place.token = key.token;
        if (TESS_IS_CACHED) place = tess_find_place(key.token, job);
        const bool absent = place.page == TESS_ABSENT;
        const uint at = list + e;
        key_k_at[at] = k_base + place.page * args.k_batch + place.token * args.k_token;
        key_v_at[at] = v_base + place.page * args.v_batch + place.token * args.v_token;
        if (absent) key_k_at[at] = key_v_at[at] = 0u;
        key_position[at] = key.position;
        key_last_block[at] = first + e < keys && !absent ? key.last_block : TESS_INT_MIN;
        key_bits[at] = key.bits;
    }
}

/* A thread's part of a stage of K or V, on its way from memory to shared memory. What is not
 * aligned is read only when it is put there. Columns past head_dim keep the zeros that came with
 * Q. */
#define FETCH(buffer, wide, key_at, of)                                            \
    if (wide) {                                                                    \
        uint from[TURNS];                                                          \
        [[unroll]] for (uint turn = 0u; turn < TURNS; turn++)                      \
            from[turn] = key_at[(of) + own_key + turn] + own_dim;                  \
        [[unroll]] for (uint turn = 0u; turn < TURNS; turn++)                      \
            ahead[turn] = TESS_LOAD8_ALIGNED(buffer, from[turn]);                  \
    }
#define PUT(buffer, wide, key_at, of, to)                                          \
    if (has_dim && wide) {                                                         \
        [[unroll]] for (uint turn = 0u; turn < TURNS; turn++)                      \
            kv[(to) + own_place + turn * ROW] = ahead[turn];                       \
    } else if (has_dim) {                                                          \
        [[dont_unroll]] for (uint turn = 0u; turn < TURNS; turn++)                 \
            kv[(to) + own_place + turn * ROW] =                                    \
                TESS_LOAD8(buffer, key_at[(of) + own_key + turn] + own_dim);       \
    }
/* O += P V of a stage. */
#define MULTIPLY_P                                                                   \
    [[unroll]] for (uint x = 0u; x < STEPS; x++)                                     \
        [[unroll]] for (uint y = 0u; y < O_FRAGMENTS; y++) {                         \
            MATRIX_B b;                                                              \
            coopMatLoad(b, kv, (KEYS + x * K) * ROW + y * (N / 8u), ROW, ROW_MAJOR); \
            [[unroll]] for (uint t = 0u; t < ROW_FRAGMENTS; t++)                     \
                o[t * O_FRAGMENTS + y] =                                             \
                    coopMatMulAdd(p[t * STEPS + x], b, o[t * O_FRAGMENTS + y]);      \
        }

uint pack_narrow(float a, float b) {
#if TESS_DTYPE == 1
    return packFloat2x16(f16vec2(a, b));
#else
    return tess_narrow(a) | tess_narrow(b) << 16;
#endif
}

TESS_FORWARD_KERNEL {
#include "forward_begin.inl"
    const bool q_wide = TESS_IS_ALIGNED8(Q, q_base, args.q_token | args.q_head);
    const bool k_wide = TESS_IS_ALIGNED8(K, k_base, args.k_token | args.k_batch);
    const bool v_wide = TESS_IS_ALIGNED8(V, v_base, args.v_token | args.v_batch);
    const uint lane = gl_SubgroupInvocationID, subgroup = gl_SubgroupID;
    const uint first_row = subgroup * SUBGROUP_ROWS, own = subgroup * PLACES;
    const bool has_rows = first_row < used;
    const float scale_log2 = max(abs(args.scale) * TESS_LOG2E, LEAST_SCALE);
    const uint own_key = thread / UNITS * TURNS, own_place = own_key * ROW + thread % UNITS;
    const bool has_dim = thread % UNITS * 8u < head_dim;
    const uint own_dim = has_dim && !(TESS_IS_PAGED && args.pages == 0u) ? thread % UNITS * 8u : 0u;
    for (uint r = thread; r < TESS_ROWS; r += TESS_THREADS) {
        row_reference[r] = NO_REFERENCE;
        row_product[r] = 0.0;
        row_factor[r] = 1.0;
    }
    if (thread == 0u) risen_at.x = ~0u;

    MATRIX_A q[ROW_FRAGMENTS * Q_STEPS], p[ROW_FRAGMENTS * STEPS];
    MATRIX_C o[ROW_FRAGMENTS * O_FRAGMENTS], row_sum[ROW_FRAGMENTS];
    [[unroll]] for (uint n = 0u; n < ROW_FRAGMENTS * O_FRAGMENTS; n++) o[n] = MATRIX_C(0.0);
    [[unroll]] for (uint t = 0u; t < ROW_FRAGMENTS; t++) row_sum[t] = MATRIX_C(0.0);

    const uint sign = args.scale < 0.0 ? 0x80008000u : 0u; /* goes to Q */
    /* Rows of Q, where stages will lie. All loads of a thread are in flight at once. */
    if (keys > 0u) {
        for (uint r = thread / UNITS; !has_dim && r < 2u * KEYS; r += TESS_THREADS / UNITS)
            kv[r * ROW + thread % UNITS] = uvec4(0u);
        [[dont_unroll]] for (uint round = 0u; round < TESS_ROWS; round += Q_ROWS) {
            const uint r = thread / UNITS * Q_TURNS, to = r * ROW + thread % UNITS;
#define Q_AT(turn) \
    (q_base + TESS_ROW_OFFSET(q, row_head_row[round + r + turn]) + thread % UNITS * 8u)
            barrier();
            if (has_dim && q_wide) {
                uvec4 eight[Q_TURNS];
                [[unroll]] for (uint turn = 0u; turn < Q_TURNS; turn++)
                    eight[turn] = TESS_LOAD8_ALIGNED(Q, Q_AT(turn));
                [[unroll]] for (uint turn = 0u; turn < Q_TURNS; turn++)
                    kv[to + turn * ROW] = eight[turn] ^ sign;
            } else if (has_dim) {
                [[dont_unroll]] for (uint turn = 0u; turn < Q_TURNS; turn++)
                    kv[to + turn * ROW] = TESS_LOAD8(Q, Q_AT(turn)) ^ sign;
            }
            barrier();
            if (first_row >= round && first_row < round + Q_ROWS) {
                [[unroll]] for (uint t = 0u; t < ROW_FRAGMENTS; t++)
                    [[unroll]] for (uint x = 0u; x < Q_STEPS; x++)
                        coopMatLoad(q[t * Q_STEPS + x], kv,
                                    (first_row - round + t * M) * ROW + x * (K / 8u), ROW,
                                    ROW_MAJOR);
            }
        }
        find_bounds();
        list_keys(0u, 0u, keys, job, tile, walk, k_base, v_base);
    }

    uint list = 0u, first = 0u;
    uvec4 ahead[TURNS];
    barrier();
    if (keys > 0u) { FETCH(K, k_wide, key_k_at, 0u) }
    /* The inner loop ends where a reference rises: O is multiplied outside of it. Inside, products
     * alone change O, and its registers stay where they are. */
    bool rose = keys > 0u, large = false;
    [[dont_unroll]] while (rose) {
        rose = false;
        [[dont_unroll]] while (first < keys) {
            /* Nobody reads the last stage's K any more. */
            const uint end = first + KEYS;
            PUT(K, k_wide, key_k_at, list, 0u)
            barrier();
            FETCH(V, v_wide, key_v_at, list)

            bool masked = end > keys || tess_key_walk_masked(walk, first, end, args.block);
            if (TESS_IS_PAGED && !masked) {
                for (uint e = lane; e < KEYS; e += SUBGROUP)
                    masked = masked || key_last_block[list + e] == TESS_INT_MIN;
                masked = subgroupAny(masked);
            }
            /* Of this invocation's elements of S: those that are kept. Loops that a compiler might
             * not unroll leave S alone, which would not stay in registers. */
            uint kept[ROW_FRAGMENTS];
            [[unroll]] for (uint t = 0u; t < ROW_FRAGMENTS; t++) kept[t] = ~0u;
            if (masked) {
                TESS_READ_MASK;
                [[unroll]] for (uint t = 0u; t < ROW_FRAGMENTS; t++)
                    kept[t] = find_kept(own, subgroup * ROW_FRAGMENTS + t, list, sinks, i_first);
            }

            MATRIX_C s[ROW_FRAGMENTS * KEY_FRAGMENTS];
            [[unroll]] for (uint n = 0u; n < ROW_FRAGMENTS * KEY_FRAGMENTS; n++)
                s[n] = MATRIX_C(0.0);
            [[unroll]] for (uint x = 0u; x < Q_STEPS; x++) {
                [[unroll]] for (uint n = 0u; n < KEY_FRAGMENTS; n++) {
                    MATRIX_B b;
                    coopMatLoad(b, kv, n * N * ROW + x * (K / 8u), ROW, COLUMN_MAJOR);
                    [[unroll]] for (uint t = 0u; t < ROW_FRAGMENTS; t++)
                        s[t * KEY_FRAGMENTS + n] =
                            coopMatMulAdd(q[t * Q_STEPS + x], b, s[t * KEY_FRAGMENTS + n]);
                }
            }
            if (first % LISTED == 0u)
                list_keys((list + LISTED) % LIST, first + LISTED, keys, job, tile, walk, k_base,
                          v_base);
            if (masked) {
                [[unroll]] for (uint n = 0u; n < ROW_FRAGMENTS * KEY_FRAGMENTS; n++)
                    [[unroll]] for (uint i = 0u; i < s[n].length(); i++) {
                        const uint bit = n % KEY_FRAGMENTS * (M * N / SUBGROUP) + i;
                        s[n][i] = (kept[n / KEY_FRAGMENTS] >> bit & 1u) != 0u ? s[n][i] : NOT_KEPT;
                    }
            }
            MATRIX_C most[ROW_FRAGMENTS], reference[ROW_FRAGMENTS];
            bool rises = false;
            [[unroll]] for (uint t = 0u; t < ROW_FRAGMENTS; t++) {
                coopMatLoad(reference[t], row_reference, first_row + t * M, 0u, COLUMN_MAJOR);
                most[t] = s[t * KEY_FRAGMENTS];
                [[unroll]] for (uint n = 1u; n < KEY_FRAGMENTS; n++)
                    [[unroll]] for (uint i = 0u; i < most[t].length(); i++)
                        most[t][i] = max(most[t][i], s[t * KEY_FRAGMENTS + n][i]);
                [[unroll]] for (uint i = 0u; i < most[t].length(); i++)
                    rises = rises || (most[t][i] - reference[t][i]) * scale_log2 > MOST_RISE;
            }
            const bool rises_here = subgroupAny(rises);
            if (rises_here || large) {
                [[unroll]] for (uint t = 0u; t < ROW_FRAGMENTS; t++) {
                    coopMatStore(most[t], places, own, PLACE, ROW_MAJOR);
                    OWN_BARRIER
                    for (uint e = lane; e < M; e += SUBGROUP) {
                        const uint r = first_row + t * M + e;
                        float largest = TESS_LOWEST;
                        for (uint c = 0u; c < N; c++)
                            largest = max(largest, places[own + e * PLACE + c]);
                        const float rise = (largest - row_reference[r]) * scale_log2;
                        if (rise > MOST_RISE) {
                            row_factor[r] = exp2(-rise);
                            row_reference[r] = largest;
                            row_product[r] = IS_LARGE(largest) ? 0.0 : largest * scale_log2;
                        }
                        large = large || IS_LARGE(row_reference[r]);
                    }
                    OWN_BARRIER
                }
                if (rises_here) risen_at.x = first;
                large = subgroupAny(large);
                if (large) {
                    [[unroll]] for (uint n = 0u; n < ROW_FRAGMENTS * KEY_FRAGMENTS; n++) {
                        MATRIX_C score;
                        coopMatLoad(score, row_reference, first_row + n / KEY_FRAGMENTS * M, 0u,
                                    COLUMN_MAJOR);
                        [[unroll]] for (uint i = 0u; i < s[n].length(); i++)
                            s[n][i] -= IS_LARGE(score[i]) ? score[i] : 0.0;
                    }
                }
            }

            PUT(V, v_wide, key_v_at, list, KEYS * ROW)
            if (TESS_IS_PAGED && masked) { /* absent keys: V may be anything */
                for (uint turn = 0u; turn < TURNS; turn++)
                    if (key_last_block[list + own_key + turn] == TESS_INT_MIN)
                        kv[KEYS * ROW + own_place + turn * ROW] = uvec4(0u);
            }
            FETCH(K, k_wide, key_k_at, (list + KEYS) % LIST)
            barrier();
            [[unroll]] for (uint t = 0u; t < ROW_FRAGMENTS; t++) {
                MATRIX_C factor;
                coopMatLoad(reference[t], row_product, first_row + t * M, 0u, COLUMN_MAJOR);
                coopMatLoad(factor, row_factor, first_row + t * M, 0u, COLUMN_MAJOR);
                row_sum[t] = row_sum[t] * factor;
                [[unroll]] for (uint n = 0u; n < KEY_FRAGMENTS; n++) {
                    const uint at = t * KEY_FRAGMENTS + n;
                    [[unroll]] for (uint i = 0u; i < s[at].length(); i++)
                        s[at][i] = exp2(fma(s[at][i], scale_log2, -reference[t][i]));
                    row_sum[t] = row_sum[t] + s[at];
                }
            }
            if (DIRECT != 0u) {
                [[unroll]] for (uint n = 0u; n < ROW_FRAGMENTS * STEPS; n++)
                    [[unroll]] for (uint i = 0u; i < p[n].length(); i++)
                        p[n][i] = NARROW_P(s[n][i]);
            } else {
                /* A step's keys at a time. */
                [[unroll]] for (uint x = 0u; x < ROW_FRAGMENTS * STEPS; x++) {
                    [[unroll]] for (uint c = 0u; c < K / N; c++) {
                        const uint n = x * (K / N) + c;
                        MATRIX_P narrow;
                        [[unroll]] for (uint i = 0u; i < narrow.length(); i++)
#if TESS_DTYPE == 1
                            narrow[i] = float16_t(s[n][i]);
#else
                            narrow[i] = unpackFloat2x16(tess_narrow(s[n][i])).x;
#endif
                        coopMatStore(narrow, places, own + c * (N / 2u), PLACE, ROW_MAJOR);
                    }
                    OWN_BARRIER
                    coopMatLoad(p[x], places, own, PLACE, ROW_MAJOR);
                    OWN_BARRIER
                }
            }
            rose = subgroupAny(risen_at.x == first);
            first = end;
            list = (list + KEYS) % LIST;
            if (rose) break;
            MULTIPLY_P
        }
        if (!rose) break;
        [[unroll]] for (uint t = 0u; t < ROW_FRAGMENTS; t++) {
            MATRIX_C factor;
            coopMatLoad(factor, row_factor, first_row + t * M, 0u, COLUMN_MAJOR);
            [[unroll]] for (uint y = 0u; y < O_FRAGMENTS; y++)
                o[t * O_FRAGMENTS + y] = o[t * O_FRAGMENTS + y] * factor;
        }
        OWN_BARRIER
        for (uint r = lane; r < SUBGROUP_ROWS; r += SUBGROUP) row_factor[first_row + r] = 1.0;
        OWN_BARRIER
        MULTIPLY_P
    }

    /* Row sums and O go through the place of the subgroup. */
    if (!has_rows) return;
#include "forward_result.inl"
    [[unroll]] for (uint t = 0u; t < ROW_FRAGMENTS; t++) {
        coopMatStore(row_sum[t], places, own, PLACE, ROW_MAJOR);
        OWN_BARRIER
        for (uint e = lane; e < M; e += SUBGROUP) {
            float sum = 0.0;
            for (uint c = 0u; c < N; c++) sum += places[own + e * PLACE + c];
            row_factor[first_row + t * M + e] = sum;
        }
        OWN_BARRIER
    }
    for (uint r = lane; r < SUBGROUP_ROWS; r += SUBGROUP) {
        const uint in_tile = first_row + r;
        const float score = row_reference[in_tile], sum = row_factor[in_tile];
        row_factor[in_tile] = sum == 0.0 ? 0.0 : 1.0 / sum; /* NaN stays */
        if (in_tile < used && partial != TESS_NO_PARTIAL) {
            /* Exponentials are relative to a rounded product, unless that is large: the sum makes
             * up for the rounding. */
            const bool exact = IS_LARGE(score) || !(sum > 0.0);
            const float rounding = exact ? 0.0 : fma(score, scale_log2, -row_product[in_tile]);
            TESS_STORE_PARTIAL(max_base + in_tile, sum > 0.0 ? score : TESS_LOWEST);
            TESS_STORE_PARTIAL(max_base + args.partial_rows + in_tile, sum * exp2(-rounding));
        } else if (in_tile < used && (TESS_FLAGS & TESS_ARGS_LSE) != 0u) {
            TESS_STORE_LSE(lse_base + TESS_ROW_OFFSET(lse, row_head_row[in_tile]),
                           sum > 0.0 ? fma(score, abs(args.scale), log2(sum) * TESS_LN2)
                                     : TESS_MINUS_INFINITY);
        }
    }
    OWN_BARRIER
    const bool o_wide = TESS_IS_ALIGNED8(O, o_base, args.o_token | args.o_head);
    [[unroll]] for (uint t = 0u; t < ROW_FRAGMENTS; t++) {
        MATRIX_C factor;
        coopMatLoad(factor, row_factor, first_row + t * M, 0u, COLUMN_MAJOR);
        [[unroll]] for (uint y = 0u; y < O_FRAGMENTS; y++) {
            coopMatStore(o[t * O_FRAGMENTS + y] * factor, places, own, PLACE, ROW_MAJOR);
            OWN_BARRIER
            [[unroll]] for (uint turn = 0u; turn < (M * N / 8u - 1u) / SUBGROUP + 1u; turn++) {
                const uint e = min(turn * SUBGROUP + lane, M * N / 8u - 1u);
                const uint at = own + e / (N / 8u) * PLACE + e % (N / 8u) * 8u;
                const uint r = first_row + t * M + e / (N / 8u), dim = y * N + e % (N / 8u) * 8u;
                const vec4 low =
                    vec4(places[at], places[at + 1u], places[at + 2u], places[at + 3u]);
                const vec4 high =
                    vec4(places[at + 4u], places[at + 5u], places[at + 6u], places[at + 7u]);
                if (r < used && dim < head_dim) {
                    if (o_wide && partial == TESS_NO_PARTIAL) {
                        O8_[(o_base + TESS_ROW_OFFSET(o, row_head_row[r]) + dim) / 8u] =
                            uvec4(pack_narrow(low.x, low.y), pack_narrow(low.z, low.w),
                                  pack_narrow(high.x, high.y), pack_narrow(high.z, high.w));
                    } else {
                        TESS_STORE_DIMS(r, dim, low)
                        TESS_STORE_DIMS(r, dim + 4u, high)
                    }
                }
            }
            OWN_BARRIER
        }
    }
}
