/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forward attention on the tensor cores of NVIDIA's GPUs from compute capability 8.0 on:
 * tess_forward in OpenCL C with PTX inside (nv_instructions.h), and tess_merge, the portable one.
 * One workgroup of four warps takes one job. It finds rows, keys and places as the portable kernel
 * does (forward_job.h).
 *
 * Given: TESS_DTYPE (1, 2: f16, bf16) and the shape TESS_DIMS (largest head_dim), TESS_TILES,
 * TESS_KEYS and TESS_HELD. A warp takes TESS_TILES times 16 query rows, so that what it reads of K
 * and V serves as many products. S = Q K^T comes out in registers, laid out as the operand P of O
 * += P V.
 *
 * OpenCL gives a workgroup 48 KiB of local memory. Two stages of TESS_KEYS keys, K and V, take 32
 * of them: all of the next stage is copied while this one is worked on. Q has no place there, so
 * each thread loads its operands of Q from global memory once. It holds those of the first
 * TESS_HELD steps of 16 elements in registers, and those of the others in local memory of its own.
 *
 * A stage is TESS_KEYS keys of the job, numbered through its key blocks, which need not be
 * neighbours: each has an entry in a list, which is written two stages ahead.
 */
#include "dialect_opencl.h"

#define TESS_THREADS 128u
#define TESS_LANES   32u
#define TESS_ROWS    (TESS_TILES * 64u)
#define TESS_OWN     (TESS_TILES * 16u)
#define TESS_LISTS   3u /* of this stage, of the next one, and one that is written */

#define MATRIX_FUNCTION static inline __attribute__((always_inline))

#include "nv_instructions.h"

#define MATRIX_LEAST    nv_least
#define MATRIX_MOST     nv_most
#define MATRIX_UNION    nv_union
#define MATRIX_ANY      nv_any
#define MATRIX_MULTIPLY nv_multiply
#define MATRIX_FMA      nv_fma
#define MATRIX_EXP2     nv_exp2
#define MATRIX_LOG2     nv_log2

#include "matrix_job.h"

#include "matrix_softmax.h"

#define TESS_UNITS (TESS_DIMS / 8u)  /* of 16 bytes in a row */
#define TESS_STEPS (TESS_DIMS / 16u) /* of 16 elements, each a product with Q */
#define TESS_SPARE (TESS_STEPS - TESS_HELD)
#define TESS_PASS  16u              /* rows that a workgroup copies at a time */
#define TESS_S     (TESS_KEYS / 8u) /* products of 8 keys, and of 8 elements of O */
#define TESS_O     (TESS_DIMS / 8u)

TESS_STRUCT(nv_memory) {
    uint4 stages[2][2][TESS_KEYS * TESS_UNITS]; /* K and V of each */
    uint4 q[TESS_SPARE ? TESS_TILES * TESS_SPARE * TESS_THREADS : 1];
    matrix_job job;
};

/* What a thread holds. */
TESS_STRUCT(nv_thread) {
    float s[TESS_TILES][TESS_S][4], o[TESS_TILES][TESS_O][4]; /* S, and then P; O */
    float row_max[TESS_TILES][2], row_sum[TESS_TILES][2];     /* the sum of its own keys */
    uint q[TESS_TILES][TESS_HELD][4];
};

#ifndef NV_MEMORY
#define NV_UNIT(a, b, c, d) ((uint4)((a), (b), (c), (d)))
#define NV_MEMORY(m)          \
    __local nv_memory memory; \
    __local nv_memory *const m = &memory;
#endif

/* The byte of a unit of a row in a stage. Units trade places with others of their eight, so that 8
 * rows of one column are in different banks. */
MATRIX_FUNCTION uint nv_unit_at(uint row, uint unit) {
    return row * (TESS_DIMS * 2u) + ((unit & ~7u) + ((unit ^ row) & 7u)) * 16u;
}
/* That of elements 16 x and on, where `own` is the lane's for x = 0. */
MATRIX_FUNCTION uint nv_step_at(uint own, uint x) { return (own ^ (x % 4u * 32u)) + x / 4u * 128u; }
/* The row of the tile that s[t][n][2 * r], o[t][n][2 * r] and those after them belong to. */
MATRIX_FUNCTION uint nv_row_of(uint t, uint r, uint thread) {
    return (thread / 32u * TESS_TILES + t) * 16u + r * 8u + thread % 32u / 4u;
}
/* The byte of the thread's operand of Q of a step that is not held in registers. */
MATRIX_FUNCTION uint nv_spare_at(uint t, uint x, uint thread) {
    return ((t * TESS_SPARE + x - TESS_HELD) * TESS_THREADS + thread) * 16u;
}
/* Two elements that are aligned to one. */
MATRIX_FUNCTION uint nv_pair(const __global ushort *from) {
    return (uint)from[0] | (uint)from[1] << 16;
}

/* Copies the keys of a stage in K or V, whose rows are `wide` where they are aligned to 16 bytes.
 * Zeros stand for what is not there, and for elements past head_dim. */
MATRIX_FUNCTION void nv_copy_rows(uint to, const __global ushort *from,
                                  const __local tess_offset *at, uint head_dim, bool wide,
                                  uint thread) {
    const uint row = thread / 8u, own = thread % 8u;
    to += nv_unit_at(row, own);
    if (wide) {
        TESS_UNROLL for (uint r = 0u; r < TESS_KEYS; r += TESS_PASS) {
            const tess_offset first = at[(r + row) * 2u];
            const __global ushort *key = from + (first < 0 ? 0 : first) + own * 8u;
            TESS_UNROLL for (uint c = 0u; c < TESS_UNITS; c += 8u)
                nv_copy_unit(to + r * (TESS_DIMS * 2u) + c * 16u, key + c * 8u,
                             first >= 0 && (c + own) * 8u < head_dim ? 16u : 0u);
        }
        return;
    }
    TESS_NO_UNROLL for (uint r = 0u; r < TESS_KEYS; r += TESS_PASS) {
        const tess_offset first = at[(r + row) * 2u];
        const __global ushort *key = from + (first < 0 ? 0 : first) + own * 8u;
        TESS_NO_UNROLL for (uint c = 0u; c < TESS_UNITS; c += 8u) {
            const bool there = first >= 0 && (c + own) * 8u < head_dim;
            uint x[4];
            TESS_UNROLL for (uint i = 0u; i < 4u; i++) x[i] =
                there ? nv_pair(key + c * 8u + i * 2u) : 0u;
            nv_store_unit(to + r * (TESS_DIMS * 2u) + c * 16u, x);
        }
    }
}

/* ------------------------------------------------------------------ rows of Q */

/* The first element of word n of a row's operands, or one that is there in its place. */
#define NV_DIM(n) \
    ((n) / 4u * 16u + (n) % 4u / 2u * 8u < args.head_dim ? (n) / 4u * 16u + (n) % 4u / 2u * 8u : 0u)

TESS_STRUCT(nv_operands) { uint word[TESS_TILES][TESS_STEPS][4]; };

/* Loads the thread's operands of Q: of the rows lane / 4 and that + 8 of each 16, elements
 * lane % 4 * 2 + {0, 1} of each 8. All loads come before what is done with any of them. */
MATRIX_FUNCTION void nv_load_q(nv_operands *q, const __global ushort *Q, tess_offset first,
                               tess_tile tile, const tess_args args) {
    const uint thread = TESS_THREAD, lane = thread % 32u;
    const bool even =
        (((uintptr_t)(Q + first)) & 3u) == 0u && ((args.q_token | args.q_head) & 1) == 0;
    TESS_UNROLL for (uint t = 0u; t < TESS_TILES; t++) TESS_UNROLL for (uint r = 0u; r < 2u; r++) {
        const __global ushort *row =
            Q + first + TESS_ROW_OFFSET(q, matrix_head_row(nv_row_of(t, r, thread), tile)) +
            lane % 4u * 2u;
        if (even) {
            TESS_UNROLL for (uint n = r; n < TESS_STEPS * 4u; n += 2u) q->word[t][n / 4u][n % 4u] =
                *(const __global uint *)(row + NV_DIM(n));
        } else {
            TESS_UNROLL for (uint n = r; n < TESS_STEPS * 4u; n += 2u) q->word[t][n / 4u][n % 4u] =
                nv_pair(row + NV_DIM(n));
        }
    }
}

/* Puts them where products find them. A scale below 0 changes the sign of scores, and so of Q;
 * exponentials are made with its magnitude. */
MATRIX_FUNCTION void nv_keep_q(nv_thread *w, __local nv_memory *m, nv_operands *q,
                               const tess_args args) {
    const uint sign = args.scale < 0.0f ? 0x80008000u : 0u;
    TESS_UNROLL for (uint t = 0u; t < TESS_TILES; t++)
        TESS_UNROLL for (uint x = 0u; x < TESS_STEPS; x++) {
        uint *const word = q->word[t][x];
        TESS_UNROLL for (uint i = 0u; i < 4u; i++) word[i] =
            x * 16u + i / 2u * 8u < args.head_dim ? word[i] ^ sign : 0u;
        if (x >= TESS_HELD) {
            nv_store_unit(nv_shared_address(m->q) + nv_spare_at(t, x, TESS_THREAD), word);
        } else {
            TESS_UNROLL for (uint i = 0u; i < 4u; i++) w->q[t][x < TESS_HELD ? x : 0u][i] = word[i];
        }
    }
}

/* ------------------------------------------------------------------ one stage */

MATRIX_FUNCTION void nv_scores(nv_thread *w, const __local nv_memory *m, uint stage, uint thread) {
    const uint lane = thread % 32u, own = nv_unit_at(lane / 16u * 8u + lane % 8u, lane / 8u % 2u);
    const uint k = nv_shared_address(m->stages[stage][0]), spare = nv_shared_address(m->q);
    TESS_UNROLL for (uint t = 0u; t < TESS_TILES; t++)
        TESS_UNROLL for (uint n = 0u; n < TESS_S; n++) TESS_UNROLL for (uint e = 0u; e < 4u; e++)
            w->s[t][n][e] = 0.0f;
    TESS_UNROLL for (uint x = 0u; x < TESS_STEPS; x++) {
        uint rows[TESS_TILES][4];
        TESS_UNROLL for (uint t = 0u; t < TESS_TILES; t++) {
            if (x < TESS_HELD) {
                TESS_UNROLL for (uint i = 0u; i < 4u; i++) rows[t][i] =
                    w->q[t][x < TESS_HELD ? x : 0u][i];
            } else {
                nv_load_unit(rows[t], spare + nv_spare_at(t, x, thread));
            }
        }
        TESS_UNROLL for (uint n = 0u; n < TESS_S; n += 2u) {
            uint keys[4];
            nv_ldmatrix(keys, k + nv_step_at(own, x) + n * 8u * (TESS_DIMS * 2u));
            TESS_UNROLL for (uint t = 0u; t < TESS_TILES; t++) {
                nv_mma(w->s[t][n], rows[t], keys[0], keys[1]);
                nv_mma(w->s[t][n + 1u], rows[t], keys[2], keys[3]);
            }
        }
    }
}

/* Replaces scores that must not count by minus infinity: of a span, those outside of a row's
 * window. One comparison tests both sides, since differences below 0 are large without a sign. */
MATRIX_FUNCTION void nv_mask_span(nv_thread *w, const __local matrix_job *m, uint stage,
                                  uint thread) {
    const uint first = TESS_UINT(m->keys[stage % TESS_LISTS][0].position) + thread % 4u * 2u;
    TESS_UNROLL for (uint t = 0u; t < TESS_TILES; t++) TESS_UNROLL for (uint r = 0u; r < 2u; r++) {
        const __local matrix_row *row = &m->rows[nv_row_of(t, r, thread)];
        const uint low = TESS_UINT(row->low), most = TESS_UINT(row->high) - low, at = first - low;
        TESS_UNROLL for (uint n = 0u; n < TESS_S; n++)
            TESS_UNROLL for (uint e = 0u; e < 2u; e++) if (at + n * 8u + e > most)
                w->s[t][n][2u * r + e] = TESS_MINUS_INFINITY;
    }
}

/* The same of any keys. */
MATRIX_FUNCTION void nv_mask(nv_thread *w, const __local matrix_job *m, uint stage, uint thread) {
    const uint keys = nv_shared_address(&m->keys[stage % TESS_LISTS][thread % 4u * 2u]);
    const int sinks = m->source.sinks;
    TESS_UNROLL for (uint t = 0u; t < TESS_TILES; t++) TESS_UNROLL for (uint r = 0u; r < 2u; r++) {
        const matrix_row row = m->rows[nv_row_of(t, r, thread)];
        TESS_UNROLL for (uint n = 0u; n < TESS_S; n++) {
            uint two[4]; /* held for all rows, keys would take more registers than there are */
            nv_load_unit(two, keys + n * 8u * (uint)sizeof(matrix_key));
            TESS_UNROLL for (uint e = 0u; e < 2u;
                             e++) if (!matrix_is_kept(row, TESS_INT(two[2u * e]), two[2u * e + 1u],
                                                      sinks)) w->s[t][n][2u * r + e] =
                TESS_MINUS_INFINITY;
        }
    }
}

/* Turns a row's scores into exponentials. Returns the factor for what was summed up before. */
MATRIX_FUNCTION float nv_exponentiate(nv_thread *w, uint t, uint r, float scale_log2) {
    float most = w->s[t][0][2u * r], row_max = w->row_max[t][r];
    TESS_UNROLL for (uint n = 0u; n < TESS_S; n++) most =
        nv_max(most, nv_max(w->s[t][n][2u * r], w->s[t][n][2u * r + 1u]));
    most = nv_max(most, nv_exchange_float(most, 1u));
    most = nv_max(most, nv_exchange_float(most, 2u));
    const float factor = matrix_rescale(most, &row_max, scale_log2);
    float scaled = matrix_reference(row_max, scale_log2);
    if (matrix_is_large(scaled)) {
        TESS_UNROLL for (uint n = 0u; n < TESS_S; n++) TESS_UNROLL for (uint e = 0u; e < 2u; e++)
            w->s[t][n][2u * r + e] -= row_max;
        scaled = 0.0f;
    }
    float sum = nv_multiply(w->row_sum[t][r], factor);
    TESS_UNROLL for (uint n = 0u; n < TESS_S; n++) {
        const float a = nv_exp2(nv_fma(w->s[t][n][2u * r], scale_log2, -scaled)),
                    b = nv_exp2(nv_fma(w->s[t][n][2u * r + 1u], scale_log2, -scaled));
        w->s[t][n][2u * r] = a;
        w->s[t][n][2u * r + 1u] = b;
        sum = nv_add(sum, nv_add(a, b));
    }
    w->row_max[t][r] = row_max;
    w->row_sum[t][r] = sum;
    return factor;
}

/* The online softmax of a stage: S becomes P, and O is rescaled where row_max rises. */
MATRIX_FUNCTION void nv_softmax(nv_thread *w, float scale_log2) {
    TESS_UNROLL for (uint t = 0u; t < TESS_TILES; t++) {
        const float a = nv_exponentiate(w, t, 0u, scale_log2),
                    b = nv_exponentiate(w, t, 1u, scale_log2);
        if (!nv_any(a != 1.0f || b != 1.0f)) continue;
        TESS_UNROLL for (uint y = 0u; y < TESS_O; y++) {
            w->o[t][y][0] *= a;
            w->o[t][y][1] *= a;
            w->o[t][y][2] *= b;
            w->o[t][y][3] *= b;
        }
    }
}

/* O += P V */
MATRIX_FUNCTION void nv_values(nv_thread *w, const __local nv_memory *m, uint stage, uint thread) {
    const uint lane = thread % 32u, own = nv_unit_at(lane % 16u, lane / 16u);
    const uint v = nv_shared_address(m->stages[stage][1]);
    TESS_UNROLL for (uint x = 0u; x < TESS_KEYS / 16u; x++) {
        uint p[TESS_TILES][4];
        TESS_UNROLL for (uint t = 0u; t < TESS_TILES; t++)
            TESS_UNROLL for (uint i = 0u; i < 4u; i++) p[t][i] = nv_pack(
                w->s[t][2u * x + i / 2u][i % 2u * 2u], w->s[t][2u * x + i / 2u][i % 2u * 2u + 1u]);
        TESS_UNROLL for (uint y = 0u; y < TESS_O; y += 2u) {
            uint elements[4];
            nv_ldmatrix_transposed(elements,
                                   v + nv_step_at(own, y / 2u) + x * 16u * (TESS_DIMS * 2u));
            TESS_UNROLL for (uint t = 0u; t < TESS_TILES; t++) {
                nv_mma(w->o[t][y], p[t], elements[0], elements[1]);
                nv_mma(w->o[t][y + 1u], p[t], elements[2], elements[3]);
            }
        }
    }
}

/* ------------------------------------------------------------------ epilogue */

/* Adds the sums of the four threads that share a row, and divides O by them. A row that has seen no
 * key is 0, whatever its registers hold. */
MATRIX_FUNCTION void nv_divide(nv_thread *w) {
    TESS_UNROLL for (uint t = 0u; t < TESS_TILES; t++) TESS_UNROLL for (uint r = 0u; r < 2u; r++) {
        float sum = w->row_sum[t][r];
        sum = nv_add(sum, nv_exchange_float(sum, 1u));
        sum = nv_add(sum, nv_exchange_float(sum, 2u));
        w->row_sum[t][r] = sum;
        const float inverse = nv_reciprocal(sum);
        TESS_UNROLL for (uint y = 0u; y < TESS_O; y++)
            TESS_UNROLL for (uint e = 2u * r; e < 2u * r + 2u; e++)
                w->o[t][y][e] = sum == 0.0f ? 0.0f : w->o[t][y][e] * inverse;
    }
}

MATRIX_FUNCTION void nv_store_partial(const nv_thread *w, const __local matrix_job *m,
                                      __global float *to, float scale_log2, const tess_args args) {
    const uint thread = TESS_THREAD, lane = thread % 32u, used = m->source.tile.packed_rows;
    TESS_UNROLL for (uint t = 0u; t < TESS_TILES; t++) TESS_UNROLL for (uint r = 0u; r < 2u; r++) {
        const uint row = nv_row_of(t, r, thread);
        if (row >= used) continue;
        __global float *own = to + TESS_OFFSET(row) * args.head_dim + lane % 4u * 2u;
        TESS_UNROLL for (uint y = 0u; y < TESS_O; y++) {
            if (y * 8u >= args.head_dim) break;
            own[y * 8u] = w->o[t][y][2u * r];
            own[y * 8u + 1u] = w->o[t][y][2u * r + 1u];
        }
        if (lane % 4u == 0u)
            matrix_store_sums(to + TESS_OFFSET(args.partial_rows) * args.head_dim + row,
                              args.partial_rows, w->row_max[t][r], w->row_sum[t][r], scale_log2);
    }
}

/* The four threads that share a row turn four words each, those of 8 elements in each of theirs,
 * into 8 elements of each. */
MATRIX_FUNCTION void nv_turn(uint *word, uint lane) {
    TESS_UNROLL for (uint b = 0u; b < 2u; b++) TESS_UNROLL for (uint n = 0u; n < 2u; n++) {
        const uint low = b == 0u ? n * 2u : n, high = low + 1u + b;
        const bool second = (lane >> b & 1u) != 0u;
        const uint x = word[low], y = word[high], other = nv_exchange(second ? x : y, 1u + b);
        word[low] = second ? other : x;
        word[high] = second ? y : other;
    }
}

/* Writes 8 elements. */
MATRIX_FUNCTION void nv_write_unit(__global ushort *to, const uint *x, bool wide) {
    if (wide)
        *(__global uint4 *)to = NV_UNIT(x[0], x[1], x[2], x[3]);
    else
        TESS_UNROLL for (uint n = 0u; n < 8u; n++) to[n] = (ushort)(x[n / 2u] >> n % 2u * 16u);
}

/* Writes O and LSE, 16 bytes a thread. */
MATRIX_FUNCTION void nv_store(const nv_thread *w, const __local matrix_job *m, __global ushort *to,
                              __global float *lse, const tess_args args) {
    const uint thread = TESS_THREAD, lane = thread % 32u;
    const tess_tile tile = m->source.tile;
    const bool wide = (((uintptr_t)to) & 15u) == 0u && ((args.o_token | args.o_head) & 7) == 0;
    TESS_UNROLL for (uint t = 0u; t < TESS_TILES; t++) TESS_UNROLL for (uint r = 0u; r < 2u; r++) {
        const uint row = nv_row_of(t, r, thread), head_row = matrix_head_row(row, tile);
        const float sum = w->row_sum[t][r];
        if ((args.flags & TESS_ARGS_LSE) != 0u && row < tile.packed_rows && lane % 4u == 0u)
            lse[TESS_ROW_OFFSET(lse, head_row)] =
                matrix_lse(w->row_max[t][r], sum, args.scale < 0.0f ? -args.scale : args.scale);
        TESS_UNROLL for (uint y = 0u; y < TESS_O; y += 4u) {
            uint x[4];
            TESS_UNROLL for (uint i = 0u; i < 4u; i++) x[i] =
                nv_pack(w->o[t][y + i][2u * r], w->o[t][y + i][2u * r + 1u]);
            nv_turn(x, lane);
            const uint dim = (y + lane % 4u) * 8u;
            if (row >= tile.packed_rows || dim >= args.head_dim) continue;
            nv_write_unit(to + TESS_ROW_OFFSET(o, head_row) + dim, x, wide);
        }
    }
}

/* ------------------------------------------------------------------ the kernel */

#define NV_COPY_STAGE(n, thread)                                                            \
    nv_copy_rows(nv_shared_address(m->stages[(n) % 2u][0]), K, &own->places[(n) % 2u][0].k, \
                 args.head_dim, k_wide, thread);                                            \
    nv_copy_rows(nv_shared_address(m->stages[(n) % 2u][1]), V, &own->places[(n) % 2u][0].v, \
                 args.head_dim, v_wide, thread)

TESS_FORWARD_KERNEL {
    NV_MEMORY(m)
    __local matrix_job *const own = &m->job;
    if (TESS_GROUP >= tess_present_items(args.items TESS_TABLES_OF_KERNEL)) return;
    const matrix_found found = matrix_read_job(own TESS_TABLES_OF_KERNEL);
    const tess_tile tile = found.tile;
    TESS_BARRIER;
    /* Q is on its way while keys are found. */
    nv_operands q;
    nv_load_q(&q, Q, TESS_FIRST(q, tile, found.q_start, tile.head), tile, args);
    const matrix_source source = matrix_find(found.job, tile TESS_TABLES_OF_KERNEL);
    const uint stages = (source.count + TESS_KEYS - 1u) / TESS_KEYS;
    const float scale_log2 = nv_multiply(args.scale < 0.0f ? -args.scale : args.scale, TESS_LOG2E);
    const bool active = TESS_THREAD / 32u * TESS_TILES * 16u < tile.packed_rows;
    const bool k_wide = MATRIX_IS_WIDE(K + source.k, args.k_batch | args.k_token),
               v_wide = MATRIX_IS_WIDE(V + source.v, args.v_batch | args.v_token);
    matrix_begin(own, &source TESS_PAGES_OF_KERNEL);
    TESS_BARRIER;
    if (stages > 0u) { NV_COPY_STAGE(0u, TESS_THREAD); }
    matrix_bound_rows(own);
    nv_thread w;
    TESS_UNROLL for (uint t = 0u; t < TESS_TILES; t++) {
        TESS_UNROLL for (uint y = 0u; y < TESS_O; y++) TESS_UNROLL for (uint e = 0u; e < 4u; e++)
            w.o[t][y][e] = 0.0f;
        TESS_UNROLL for (uint r = 0u; r < 2u; r++) {
            w.row_max[t][r] = TESS_MINUS_INFINITY;
            w.row_sum[t][r] = 0.0f;
        }
    }
    nv_keep_q(&w, m, &q, args);
    for (uint i = 0u; i < stages; i++) {
        /* what is computed from it is not kept from one stage to the next: all of it together would
         * take too many registers */
        const uint thread = nv_thread_now();
        nv_copies_wait();
        TESS_BARRIER;
        if (i + 1u < stages) { NV_COPY_STAGE(i + 1u, thread); }
        if (i + 2u < stages && TESS_THREAD / TESS_KEYS == i % (TESS_THREADS / TESS_KEYS)) {
            const matrix_source again = own->source;
            matrix_list_key(own, &again, i + 2u, TESS_THREAD % TESS_KEYS TESS_PAGES_OF_KERNEL);
        }
        if (!active) continue;
        const uint kept = matrix_keeps(own, i);
        if (kept == MATRIX_NONE) continue;
        nv_scores(&w, m, i % 2u, thread);
        if (kept == MATRIX_SPAN) nv_mask_span(&w, own, i, thread);
        if (kept == MATRIX_SOME) nv_mask(&w, own, i, thread);
        nv_softmax(&w, scale_log2);
        nv_values(&w, m, i % 2u, thread);
    }
    if (!active) return;
    nv_divide(&w);
    const uint partial = TESS_WORD(own->source.job + TESS_WORD_JOB_PARTIAL);
    const tess_offset row = TESS_WORD64(own->source.tile.sequence + TESS_WORD_SEQUENCE_Q_START) +
                            TESS_OFFSET(own->source.tile.row);
    if (partial != TESS_NO_PARTIAL)
        nv_store_partial(&w, own,
                         workspace + args.partials_at +
                             TESS_OFFSET(partial) * args.partial_rows * (args.head_dim + 2u),
                         scale_log2, args);
    else
        nv_store(&w, own, O + TESS_FIRST(o, own->source.tile, row, own->source.tile.head),
                 LSE + TESS_FIRST(lse, own->source.tile, row, own->source.tile.head), args);
}

#ifndef TESS_FORWARD_ALONE
#include "merge.inl"
#endif
