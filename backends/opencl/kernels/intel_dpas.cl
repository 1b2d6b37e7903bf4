/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forward attention on the matrix engines of Intel's GPUs: tess_forward with Intel's extensions to
 * OpenCL C (intel_instructions.h), and tess_merge, the portable one. One workgroup of 64 threads
 * takes one job. It finds rows, keys and places as the portable kernel does (forward_job.h).
 *
 * Given: TESS_DTYPE (1, 2: f16, bf16), TESS_LANES of a subgroup (8 or 16: the device's smallest),
 * TESS_DIMS (largest head_dim) and TESS_KEYS.
 *
 * All products are transposed: S^T = K Q^T and O^T += V^T P^T. A lane then holds a query row, whose
 * scores are in its own registers: the softmax needs no other lane, and P is an operand as it is.
 * The order of keys in a product is free, so that P pairs keys n and n + 8 of each 16.
 *
 * Local memory holds Q, and one stage of K and V: other workgroups work while this one copies.
 *     K: panels of 16 elements of all keys, so that 8 keys of a panel are one block to read.
 *     V: panels of 8 elements, so that each lane reads 16 bytes beside those of its neighbours.
 */
#include "dialect_opencl.h"

#define TESS_THREADS 64u
#define TESS_ROWS    64u
#define TESS_OWN     TESS_LANES
#define TESS_LISTS   2u /* of this stage, and of the next one */

#define MATRIX_FUNCTION static inline __attribute__((always_inline))

#include "intel_instructions.h"

#undef TESS_THREAD
#define TESS_THREAD     intel_thread()
#define MATRIX_LEAST    intel_least
#define MATRIX_MOST     intel_most
#define MATRIX_UNION    intel_union
#define MATRIX_ANY      intel_any
#define MATRIX_MULTIPLY intel_multiply
#define MATRIX_FMA      intel_fma
#define MATRIX_EXP2     intel_exp2
#define MATRIX_LOG2     intel_log2

#include "matrix_job.h"

#include "matrix_softmax.h"

#define TESS_UNITS (TESS_DIMS / 8u)  /* of 8 elements in a row: 16 bytes */
#define TESS_STEPS (TESS_DIMS / 16u) /* of 16 elements, each a product with Q */
#define TESS_S     (TESS_KEYS / 8u)  /* products of 8 keys */
/* Elements from one panel to the next. What is between them puts them into other banks. */
#define INTEL_K_PANEL (TESS_KEYS * 16u + 16u)
#define INTEL_V_PANEL (TESS_KEYS * 8u + 8u)

/* Q is there as well, each row for its own lane: O takes up to half of the registers. */
TESS_STRUCT(intel_memory) {
    uint4 k[TESS_STEPS * INTEL_K_PANEL / 8u];
    uint4 v[TESS_UNITS * INTEL_V_PANEL / 8u];
    uint4 q[TESS_UNITS * TESS_THREADS];
    matrix_job job;
};

/* What a lane holds of its row. */
TESS_STRUCT(intel_row) {
    float8 s[TESS_S], o[TESS_UNITS]; /* scores, and then P; O */
    float row_max, row_sum;
};

#ifndef INTEL_MEMORY
#define INTEL_ATTRIBUTES __attribute__((intel_reqd_sub_group_size(TESS_LANES)))
#define INTEL_MEMORY(m)          \
    __local intel_memory memory; \
    __local intel_memory *const m = &memory;
#endif
/* The components of a vector. */
#define INTEL_EACH(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)

/* ------------------------------------------------------------------ loads */

/* 8 elements, or zeros. */
MATRIX_FUNCTION uint4 intel_load_unit(const __global ushort *from, bool there, bool wide) {
    uint4 x = INTEL_UNIT(0u, 0u, 0u, 0u);
    if (there) {
        if (wide)
            x = *(const __global uint4 *)from;
        else
            x = INTEL_UNIT((uint)from[0] | (uint)from[1] << 16, (uint)from[2] | (uint)from[3] << 16,
                           (uint)from[4] | (uint)from[5] << 16,
                           (uint)from[6] | (uint)from[7] << 16);
    }
    return x;
}

/* Copies the keys of a stage. Zeros stand for what is not there, and for elements past head_dim. */
MATRIX_FUNCTION void intel_copy(__local intel_memory *m, const __global ushort *K,
                                const __global ushort *V, uint stage, uint head_dim, bool k_wide,
                                bool v_wide) {
    const uint thread = TESS_THREAD;
    __local ushort *k = (__local ushort *)m->k, *v = (__local ushort *)m->v;
    TESS_UNROLL_4 for (uint n = 0u; n < TESS_KEYS * TESS_UNITS / TESS_THREADS; n++) {
        const uint at = n * TESS_THREADS + thread, key = at / TESS_UNITS, unit = at % TESS_UNITS;
        const matrix_place place = m->job.places[stage % 2u][key];
        const bool there = place.k >= 0 && unit * 8u < head_dim;
        *(__local uint4 *)(k + unit / 2u * INTEL_K_PANEL + key * 16u + unit % 2u * 8u) =
            intel_load_unit(K + (there ? place.k : 0) + unit * 8u, there, k_wide);
        *(__local uint4 *)(v + unit * INTEL_V_PANEL + key * 8u) =
            intel_load_unit(V + (there ? place.v : 0) + unit * 8u, there, v_wide);
    }
}

/* The row of Q as columns of B. A scale below 0 changes the sign of scores, and so of Q;
 * exponentials are made with its magnitude. */
MATRIX_FUNCTION void intel_load_q(__local intel_memory *m, const __global ushort *from, bool wide,
                                  const tess_args args) {
    const uint4 sign = INTEL_UNITS(args.scale < 0.0f ? 0x80008000u : 0u);
    TESS_UNROLL for (uint n = 0u; n < TESS_UNITS; n++) m->q[n * TESS_THREADS + TESS_THREAD] =
        intel_load_unit(from + n * 8u, n * 8u < args.head_dim, wide) ^ sign;
}
MATRIX_FUNCTION int8 intel_q(const __local intel_memory *m, uint x) {
    const __local uint4 *own = m->q + x * 2u * TESS_THREADS + TESS_THREAD;
    return INTEL_WORDS(own[0], own[TESS_THREADS]);
}

/* ------------------------------------------------------------------ one stage */

MATRIX_FUNCTION void intel_scores(intel_row *w, const __local intel_memory *m) {
    const __local ushort *k = (const __local ushort *)m->k;
    TESS_UNROLL for (uint n = 0u; n < TESS_S; n++) w->s[n] = INTEL_FLOATS(0.0f);
    TESS_UNROLL for (uint x = 0u; x < TESS_STEPS; x++) {
        const int8 q = intel_q(m, x);
        TESS_UNROLL for (uint n = 0u; n < TESS_S; n++) w->s[n] =
            intel_mad(intel_load_rows(k + x * INTEL_K_PANEL + n * 128u), q, w->s[n]);
    }
}

/* Replaces scores that must not count by minus infinity. */
MATRIX_FUNCTION void intel_mask(intel_row *w, const __local matrix_job *m, uint stage) {
    const matrix_row row = m->rows[TESS_THREAD];
    const int sinks = m->source.sinks;
    const __local matrix_key *keys = m->keys[stage % TESS_LISTS];
    TESS_UNROLL for (uint n = 0u; n < TESS_S; n++) {
        const __local matrix_key *own = keys + n * 8u;
#define MASK(i)                                                    \
    if (!matrix_is_kept(row, own[i].position, own[i].kept, sinks)) \
        w->s[n].s##i = TESS_MINUS_INFINITY;
        INTEL_EACH(MASK)
#undef MASK
    }
}

/* The online softmax of a stage: S becomes P, and O is rescaled where row_max rises. */
MATRIX_FUNCTION void intel_softmax(intel_row *w, float scale_log2) {
    float most = w->row_max;
    TESS_UNROLL for (uint n = 0u; n < TESS_S; n++) {
#define MOST(i) most = fmax(most, w->s[n].s##i);
        INTEL_EACH(MOST)
#undef MOST
    }
    float row_max = w->row_max;
    const float factor = matrix_rescale(most, &row_max, scale_log2);
    float scaled = matrix_reference(row_max, scale_log2), sum = 0.0f;
    const bool large = matrix_is_large(scaled);
    const float before = large ? row_max : 0.0f;
    if (large) scaled = 0.0f;
    TESS_UNROLL for (uint n = 0u; n < TESS_S; n++) {
#define EXPONENTIATE(i)                                                               \
    w->s[n].s##i = intel_exp2(intel_fma(w->s[n].s##i - before, scale_log2, -scaled)); \
    sum += w->s[n].s##i;
        INTEL_EACH(EXPONENTIATE)
#undef EXPONENTIATE
    }
    w->row_max = row_max;
    w->row_sum = intel_fma(w->row_sum, factor, sum);
    if (!intel_any(factor != 1.0f)) return;
    TESS_UNROLL for (uint y = 0u; y < TESS_UNITS; y++) w->o[y] = w->o[y] * factor;
}

/* O^T += V^T P^T */
MATRIX_FUNCTION void intel_values(intel_row *w, const __local intel_memory *m) {
    const __local ushort *v = (const __local ushort *)m->v;
    TESS_UNROLL for (uint x = 0u; x < TESS_KEYS / 16u; x++) {
        const float8 a = w->s[2u * x], b = w->s[2u * x + 1u];
        const int8 p = INTEL_WORDS(INTEL_UNIT(intel_pack(a.s0, b.s0), intel_pack(a.s1, b.s1),
                                              intel_pack(a.s2, b.s2), intel_pack(a.s3, b.s3)),
                                   INTEL_UNIT(intel_pack(a.s4, b.s4), intel_pack(a.s5, b.s5),
                                              intel_pack(a.s6, b.s6), intel_pack(a.s7, b.s7)));
        TESS_UNROLL for (uint y = 0u; y < TESS_UNITS; y++) w->o[y] =
            intel_mad(intel_load_columns(v + y * INTEL_V_PANEL + x * 128u), p, w->o[y]);
    }
}

/* ------------------------------------------------------------------ epilogue */

MATRIX_FUNCTION void intel_store_partial(const intel_row *w, __global float *to, uint row,
                                         float scale_log2, const tess_args args) {
    __global float *own = to + TESS_OFFSET(row) * args.head_dim;
    TESS_UNROLL for (uint y = 0u; y < TESS_UNITS; y++) {
        if (y * 8u >= args.head_dim) continue;
#define STORE(i) own[y * 8u + i] = w->o[y].s##i;
        INTEL_EACH(STORE)
#undef STORE
    }
    matrix_store_sums(to + TESS_OFFSET(args.partial_rows) * args.head_dim + row, args.partial_rows,
                      w->row_max, w->row_sum, scale_log2);
}

MATRIX_FUNCTION void intel_store(const intel_row *w, __global ushort *to, bool wide,
                                 const tess_args args) {
    TESS_UNROLL for (uint y = 0u; y < TESS_UNITS; y++) {
        if (y * 8u >= args.head_dim) continue;
        const uint4 x = intel_pack_unit(w->o[y]);
        __global ushort *own = to + y * 8u;
        if (wide) {
            *(__global uint4 *)own = x;
        } else {
            own[0] = (ushort)x.x, own[1] = (ushort)(x.x >> 16);
            own[2] = (ushort)x.y, own[3] = (ushort)(x.y >> 16);
            own[4] = (ushort)x.z, own[5] = (ushort)(x.z >> 16);
            own[6] = (ushort)x.w, own[7] = (ushort)(x.w >> 16);
        }
    }
}

/* ------------------------------------------------------------------ the kernel */

INTEL_ATTRIBUTES TESS_FORWARD_KERNEL {
    INTEL_MEMORY(m)
    __local matrix_job *const own = &m->job;
    if (TESS_GROUP >= tess_present_items(args.items TESS_TABLES_OF_KERNEL)) return;
    const matrix_found found = matrix_read_job(own TESS_TABLES_OF_KERNEL);
    const tess_tile tile = found.tile;
    const uint thread = TESS_THREAD, head_row = matrix_head_row(thread, tile);
    TESS_BARRIER;
    const matrix_source source = matrix_find(found.job, tile TESS_TABLES_OF_KERNEL);
    const uint stages = (source.count + TESS_KEYS - 1u) / TESS_KEYS;
    const float scale = args.scale < 0.0f ? -args.scale : args.scale,
                scale_log2 = intel_multiply(scale, TESS_LOG2E);
    const bool active = thread / TESS_LANES * TESS_OWN < tile.packed_rows;
    const bool k_wide = MATRIX_IS_WIDE(K + source.k, args.k_batch | args.k_token),
               v_wide = MATRIX_IS_WIDE(V + source.v, args.v_batch | args.v_token);
    const __global ushort *q = Q + TESS_FIRST(q, tile, found.q_start, tile.head);
    intel_row w;
    w.row_max = TESS_MINUS_INFINITY;
    w.row_sum = 0.0f;
    TESS_UNROLL for (uint y = 0u; y < TESS_UNITS; y++) w.o[y] = INTEL_FLOATS(0.0f);
    intel_load_q(m, q + TESS_ROW_OFFSET(q, head_row), MATRIX_IS_WIDE(q, args.q_token | args.q_head),
                 args);
    matrix_begin(own, &source TESS_PAGES_OF_KERNEL);
    TESS_BARRIER;
    matrix_bound_rows(own);
    for (uint i = 0u; i < stages; i++) {
        intel_copy(m, K, V, i, args.head_dim, k_wide, v_wide);
        if (i + 1u < stages && thread < TESS_KEYS) {
            const matrix_source again = own->source;
            matrix_list_key(own, &again, i + 1u, thread TESS_PAGES_OF_KERNEL);
        }
        TESS_BARRIER;
        const uint kept = active ? matrix_keeps(own, i) : MATRIX_NONE;
        if (kept != MATRIX_NONE) {
            intel_scores(&w, m);
            if (kept != MATRIX_ALL) intel_mask(&w, own, i);
            intel_softmax(&w, scale_log2);
            intel_values(&w, m);
        }
        TESS_BARRIER;
    }
    if (thread >= tile.packed_rows) return;
    const float inverse = 1.0f / w.row_sum;
    TESS_UNROLL for (uint y = 0u; y < TESS_UNITS; y++) w.o[y] =
        w.row_sum == 0.0f ? INTEL_FLOATS(0.0f) : w.o[y] * inverse;
    const uint partial = TESS_WORD(found.job + TESS_WORD_JOB_PARTIAL);
    if (partial != TESS_NO_PARTIAL) {
        intel_store_partial(&w,
                            workspace + args.partials_at +
                                TESS_OFFSET(partial) * args.partial_rows * (args.head_dim + 2u),
                            thread, scale_log2, args);
        return;
    }
    __global ushort *o = O + TESS_FIRST(o, tile, found.q_start, tile.head);
    intel_store(&w, o + TESS_ROW_OFFSET(o, head_row), MATRIX_IS_WIDE(o, args.o_token | args.o_head),
                args);
    if ((args.flags & TESS_ARGS_LSE) != 0u)
        LSE[TESS_FIRST(lse, tile, found.q_start, tile.head) + TESS_ROW_OFFSET(lse, head_row)] =
            matrix_lse(w.row_max, w.row_sum, scale);
}

#ifndef TESS_FORWARD_ALONE
#undef TESS_THREAD
#define TESS_THREAD ((uint)get_local_id(0))
#include "merge.inl"
#endif
