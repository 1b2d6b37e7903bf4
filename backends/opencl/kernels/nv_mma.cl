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

#include "forward_job.h"

#include "nv_instructions.h"

#define TESS_THREADS 128u
#define TESS_ROWS    (TESS_TILES * 64u)
#define TESS_UNITS   (TESS_DIMS / 8u)  /* of 16 bytes in a row */
#define TESS_STEPS   (TESS_DIMS / 16u) /* of 16 elements, each a product with Q */
#define TESS_SPARE   (TESS_STEPS - TESS_HELD)
#define TESS_PASS    16u                          /* rows that a workgroup copies at a time */
#define TESS_STAGE   (TESS_KEYS * TESS_DIMS * 2u) /* bytes of K or V */
#define TESS_S       (TESS_KEYS / 8u)             /* products of 8 keys, and of 8 elements of O */
#define TESS_O       (TESS_DIMS / 8u)
/* A product of score and scale that large has lost bits which the difference of scores keeps. */
#define TESS_LARGE 16384.0f
/* This stage is masked by one list while the next one waits and the third is written. */
#define TESS_LISTS 3u

TESS_STRUCT(nv_row) {
    int last, low, high; /* the causal bound, and those of the window */
    int block;           /* the query block, counted from that of the tile's first row */
};
TESS_STRUCT(nv_key) {
    int position; /* as in tess_key */
    uint kept;    /* query blocks of the tile that keep it; 0: it is not there */
};
TESS_STRUCT(nv_place) { tess_offset k, v; }; /* elements of K and V; negative: zeros */

TESS_STRUCT(nv_memory) {
    uint4 stages[2][2][TESS_KEYS * TESS_UNITS]; /* K and V of each */
    uint4 q[TESS_SPARE ? TESS_TILES * TESS_SPARE * TESS_THREADS : 1];
    nv_row rows[TESS_ROWS];
    nv_place places[2][TESS_KEYS];
    nv_key keys[TESS_LISTS][TESS_KEYS];
    uint masked[TESS_LISTS]; /* the list's stage if any of its keys needs the mask */
    uint count, job;         /* keys of the job, and where its words begin */
    int first_block, sinks;  /* the query block of the tile's first row; of a window */
    tess_offset k, v;        /* where keys are found from */
    tess_tile tile;
    tess_key_walk walk;
};

/* What a thread holds. */
TESS_STRUCT(nv_thread) {
    float s[TESS_TILES][TESS_S][4], o[TESS_TILES][TESS_O][4]; /* S, and then P; O */
    float row_max[TESS_TILES][2], row_sum[TESS_TILES][2];     /* the sum of its own keys */
    uint q[TESS_TILES][TESS_HELD][4];
};

TESS_FUNCTION bool nv_is_large(float product) {
    return product > TESS_LARGE || product < -TESS_LARGE;
}

/* Where rows begin that have 16 bytes alignment, as those have that are `strides` away. */
#define NV_IS_WIDE(first, strides) ((((uintptr_t)(first)) & 15u) == 0u && ((strides)&7) == 0)
#ifndef NV_MEMORY
#define NV_UNIT(a, b, c, d) ((uint4)((a), (b), (c), (d)))
#define NV_MEMORY(m)          \
    __local nv_memory memory; \
    __local nv_memory *const m = &memory;
#endif

/* The byte of a unit of a row in a stage. Units trade places with others of their eight, so that 8
 * rows of one column are in different banks. */
TESS_FUNCTION uint nv_unit_at(uint row, uint unit) {
    return row * (TESS_DIMS * 2u) + ((unit & ~7u) + ((unit ^ row) & 7u)) * 16u;
}
/* That of elements 16 x and on, where `own` is the lane's for x = 0. */
TESS_FUNCTION uint nv_step_at(uint own, uint x) { return (own ^ (x % 4u * 32u)) + x / 4u * 128u; }
/* The row of the tile that s[t][n][2 * r], o[t][n][2 * r] and those after them belong to. */
TESS_FUNCTION uint nv_row_of(uint t, uint r, uint lane) {
    return (TESS_THREAD / 32u * TESS_TILES + t) * 16u + r * 8u + lane / 4u;
}
/* The byte of the thread's operand of Q of a step that is not held in registers. */
TESS_FUNCTION uint nv_spare_at(uint t, uint x) {
    return ((t * TESS_SPARE + x - TESS_HELD) * TESS_THREADS + TESS_THREAD) * 16u;
}
/* Head and row of a row of the tile, as TESS_ROW_OFFSET takes them. Rows past the last are it. */
TESS_FUNCTION uint nv_head_row(uint in_tile, tess_tile tile) {
    const uint r = tess_min(in_tile, tile.packed_rows - 1u), head = r / tile.rows;
    return head << 16 | (r - head * tile.rows);
}

/* ------------------------------------------------------------------ keys */

/* Writes an entry of a stage's list. */
TESS_FUNCTION void nv_list_key(__local nv_memory *m, uint stage, uint nth TESS_PAGES) {
    const tess_key_walk walk = m->walk;
    const tess_tile tile = m->tile;
    const uint u = stage * TESS_KEYS + nth, count = m->count, list = stage % TESS_LISTS;
    const tess_key key = tess_find_key(tess_min(u, count - 1u), walk, tile TESS_TABLES_OF_KERNEL);
    /* query blocks of the tile up to the last that keeps the key */
    const tess_offset blocks = TESS_OFFSET(key.last_block) - m->first_block + 1;
    tess_place place;
    place.page = 0u;
    place.token = key.token;
    if (TESS_IS_CACHED) place = tess_find_place(key.token, m->job TESS_PAGES_OF_KERNEL);
    nv_place at;
    at.k = m->k + TESS_OFFSET(place.page) * args.k_batch + TESS_OFFSET(place.token) * args.k_token;
    at.v = m->v + TESS_OFFSET(place.page) * args.v_batch + TESS_OFFSET(place.token) * args.v_token;
    nv_key own;
    own.position = key.position;
    own.kept = blocks <= 0 ? 0u : blocks >= 32 ? key.bits : key.bits & ((1u << blocks) - 1u);
    if (u >= count || place.page == TESS_ABSENT) {
        own.kept = 0u;
        at.k = at.v = TESS_OFFSET(-1);
    }
    m->places[stage % 2u][nth] = at;
    m->keys[list][nth] = own;
    if (own.position != TESS_INT_MIN || own.kept != 0xffffffffu) m->masked[list] = stage;
}

/* Copies the keys of a stage in K or V, whose rows are `wide` where they are aligned to 16 bytes.
 * Zeros stand for what is not there, and for elements past head_dim. */
TESS_FUNCTION void nv_copy_rows(uint to, const __global ushort *from, const __local tess_offset *at,
                                uint head_dim, bool wide) {
    const uint row = TESS_THREAD / 8u, own = TESS_THREAD % 8u;
    to += nv_unit_at(row, own);
    TESS_UNROLL for (uint r = 0u; r < TESS_KEYS; r += TESS_PASS) {
        const tess_offset first = at[(r + row) * 2u];
        const __global ushort *key = from + (first < 0 ? 0 : first) + own * 8u;
        TESS_UNROLL for (uint c = 0u; c < TESS_UNITS; c += 8u) {
            const bool there = first >= 0 && (c + own) * 8u < head_dim;
            const uint place = to + r * (TESS_DIMS * 2u) + c * 16u;
            if (wide) {
                nv_copy_unit(place, key + c * 8u, there ? 16u : 0u);
            } else {
                uint x[4] = {0u, 0u, 0u, 0u};
                TESS_UNROLL for (uint i = 0u; i < 4u; i++) if (there) x[i] =
                    (uint)key[c * 8u + i * 2u] | (uint)key[c * 8u + i * 2u + 1u] << 16;
                nv_store_unit(place, x);
            }
        }
    }
}

/* ------------------------------------------------------------------ rows of Q */

/* Loads the thread's operands of Q: of the rows lane / 4 and that + 8 of each 16, elements
 * lane % 4 * 2 + {0, 1} of each 8. A scale below 0 changes the sign of scores, and so of Q;
 * exponentials are made with its magnitude. */
TESS_FUNCTION void nv_load_q(nv_thread *w, __local nv_memory *m, const __global ushort *Q,
                             tess_offset first, tess_tile tile, const tess_args args) {
    const uint lane = TESS_THREAD % 32u, sign = args.scale < 0.0f ? 0x80008000u : 0u;
    const bool even =
        (((uintptr_t)(Q + first)) & 3u) == 0u && ((args.q_token | args.q_head) & 1) == 0;
    TESS_UNROLL for (uint t = 0u; t < TESS_TILES; t++) {
        const __global ushort *rows[2];
        TESS_UNROLL for (uint r = 0u; r < 2u; r++) rows[r] =
            Q + first + TESS_ROW_OFFSET(q, nv_head_row(nv_row_of(t, r, lane), tile)) +
            lane % 4u * 2u;
        TESS_UNROLL for (uint x = 0u; x < TESS_STEPS; x++) {
            uint word[4] = {0u, 0u, 0u, 0u};
            TESS_UNROLL for (uint i = 0u; i < 4u; i++) {
                const uint dim = x * 16u + i / 2u * 8u;
                const __global ushort *pair = rows[i % 2u] + dim;
                if (dim >= args.head_dim) continue;
                word[i] = sign ^ (even ? *(const __global uint *)pair
                                       : (uint)pair[0] | (uint)pair[1] << 16);
            }
            if (x < TESS_HELD) {
                TESS_UNROLL for (uint i = 0u; i < 4u; i++) w->q[t][x < TESS_HELD ? x : 0u][i] =
                    word[i];
            } else {
                nv_store_unit(nv_shared_address(m->q) + nv_spare_at(t, x), word);
            }
        }
    }
}

/* ------------------------------------------------------------------ one stage */

TESS_FUNCTION void nv_scores(nv_thread *w, const __local nv_memory *m, uint stage) {
    const uint lane = nv_lane(), own = nv_unit_at(lane / 16u * 8u + lane % 8u, lane / 8u % 2u);
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
                nv_load_unit(rows[t], spare + nv_spare_at(t, x));
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

TESS_FUNCTION bool nv_is_kept(nv_row row, uint position, uint kept, int sinks) {
    const int p = (int)position;
    return ((kept >> row.block & 1u) != 0u) & (p <= row.last) &
           ((p < sinks) | ((p >= row.low) & (p <= row.high)));
}

/* Replaces scores that must not count by minus infinity. */
TESS_FUNCTION void nv_mask(nv_thread *w, const __local nv_memory *m, uint list) {
    const uint lane = nv_lane(), keys = nv_shared_address(&m->keys[list][lane % 4u * 2u]);
    const int sinks = m->sinks;
    TESS_UNROLL for (uint t = 0u; t < TESS_TILES; t++) TESS_UNROLL for (uint r = 0u; r < 2u; r++) {
        const nv_row row = m->rows[nv_row_of(t, r, lane)];
        TESS_UNROLL for (uint n = 0u; n < TESS_S; n++) {
            uint two[4]; /* held for all rows, keys would take more registers than there are */
            nv_load_unit(two, keys + n * 8u * (uint)sizeof(nv_key));
            TESS_UNROLL for (uint e = 0u; e < 2u;
                             e++) if (!nv_is_kept(row, two[2u * e], two[2u * e + 1u], sinks))
                w->s[t][n][2u * r + e] = TESS_MINUS_INFINITY;
        }
    }
}

/* Turns a row's scores into exponentials, each row for itself: its bits do not depend on its
 * neighbours. Returns the factor for what was summed up before. */
TESS_FUNCTION float nv_exponentiate(nv_thread *w, uint t, uint r, float scale_log2) {
    float most = w->s[t][0][2u * r], row_max = w->row_max[t][r];
    TESS_UNROLL for (uint n = 0u; n < TESS_S; n++) most =
        nv_max(most, nv_max(w->s[t][n][2u * r], w->s[t][n][2u * r + 1u]));
    most = nv_max(most, nv_exchange_float(most, 1u));
    most = nv_max(most, nv_exchange_float(most, 2u));
    /* row_max rises only when that makes a factor of more than 2^8: exponentials stay bounded, and
     * O is rarely rescaled. */
    const bool rises = nv_multiply(most - row_max, scale_log2) > 8.0f;
    const float factor = rises ? nv_exp2(nv_multiply(row_max - most, scale_log2)) : 1.0f;
    if (rises) row_max = most;
    float scaled = row_max == TESS_MINUS_INFINITY ? 0.0f : nv_multiply(row_max, scale_log2);
    if (nv_is_large(scaled)) {
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
TESS_FUNCTION void nv_softmax(nv_thread *w, float scale_log2) {
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
TESS_FUNCTION void nv_values(nv_thread *w, const __local nv_memory *m, uint stage) {
    const uint lane = nv_lane(), own = nv_unit_at(lane % 16u, lane / 16u);
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
TESS_FUNCTION void nv_divide(nv_thread *w) {
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

/* Writes row_max and row_sum of a row into a partial. Exponentials are relative to a rounded
 * product of row_max and the scale, unless that is large, and row_sum makes up for the rounding. */
TESS_FUNCTION void nv_store_sums(__global float *to, uint partial_rows, float row_max,
                                 float row_sum, float scale_log2) {
    const float product = nv_multiply(row_max, scale_log2),
                rounding = nv_is_large(product) ? 0.0f : nv_fma(row_max, scale_log2, -product);
    to[0] = row_max;
    to[partial_rows] = row_sum == 0.0f ? row_sum : row_sum * nv_exp2(-rounding);
}

TESS_FUNCTION void nv_store_partial(const nv_thread *w, const __local nv_memory *m,
                                    __global float *to, float scale_log2, const tess_args args) {
    const uint lane = TESS_THREAD % 32u, used = m->tile.packed_rows;
    TESS_UNROLL for (uint t = 0u; t < TESS_TILES; t++) TESS_UNROLL for (uint r = 0u; r < 2u; r++) {
        const uint row = nv_row_of(t, r, lane);
        if (row >= used) continue;
        __global float *own = to + TESS_OFFSET(row) * args.head_dim + lane % 4u * 2u;
        TESS_UNROLL for (uint y = 0u; y < TESS_O; y++) {
            if (y * 8u >= args.head_dim) break;
            own[y * 8u] = w->o[t][y][2u * r];
            own[y * 8u + 1u] = w->o[t][y][2u * r + 1u];
        }
        if (lane % 4u == 0u)
            nv_store_sums(to + TESS_OFFSET(args.partial_rows) * args.head_dim + row,
                          args.partial_rows, w->row_max[t][r], w->row_sum[t][r], scale_log2);
    }
}

/* The four threads that share a row turn four words each, those of 8 elements in each of theirs,
 * into 8 elements of each. */
TESS_FUNCTION void nv_turn(uint *word, uint lane) {
    TESS_UNROLL for (uint b = 0u; b < 2u; b++) TESS_UNROLL for (uint n = 0u; n < 2u; n++) {
        const uint low = b == 0u ? n * 2u : n, high = low + 1u + b;
        const bool second = (lane >> b & 1u) != 0u;
        const uint x = word[low], y = word[high], other = nv_exchange(second ? x : y, 1u + b);
        word[low] = second ? other : x;
        word[high] = second ? y : other;
    }
}

/* Writes 8 elements. */
TESS_FUNCTION void nv_write_unit(__global ushort *to, const uint *x, bool wide) {
    if (wide)
        *(__global uint4 *)to = NV_UNIT(x[0], x[1], x[2], x[3]);
    else
        TESS_UNROLL for (uint n = 0u; n < 8u; n++) to[n] = (ushort)(x[n / 2u] >> n % 2u * 16u);
}

/* Writes O and LSE, 16 bytes a thread. */
TESS_FUNCTION void nv_store(const nv_thread *w, const __local nv_memory *m, __global ushort *to,
                            __global float *lse, const tess_args args) {
    const uint lane = TESS_THREAD % 32u;
    const tess_tile tile = m->tile;
    const bool wide = (((uintptr_t)to) & 15u) == 0u && ((args.o_token | args.o_head) & 7) == 0;
    TESS_UNROLL for (uint t = 0u; t < TESS_TILES; t++) TESS_UNROLL for (uint r = 0u; r < 2u; r++) {
        const uint row = nv_row_of(t, r, lane), head_row = nv_head_row(row, tile);
        const float sum = w->row_sum[t][r];
        if ((args.flags & TESS_ARGS_LSE) != 0u && row < tile.packed_rows && lane % 4u == 0u)
            lse[TESS_ROW_OFFSET(lse, head_row)] =
                sum == 0.0f ? TESS_MINUS_INFINITY
                            : nv_fma(w->row_max[t][r], args.scale < 0.0f ? -args.scale : args.scale,
                                     nv_multiply(nv_log2(sum), TESS_LN2));
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

/* Leaves in local memory what finding keys needs, and the bounds of rows. */
TESS_FUNCTION void nv_begin(__local nv_memory *m, uint job, tess_tile tile TESS_TABLES) {
    const int first_block = tess_floor_div(tile.position, TESS_INT(args.block));
    if (TESS_THREAD == 0u) {
        const tess_origin origin = tess_find_origin(job TESS_TABLES_OF_KERNEL);
        const tess_key_walk walk = tess_read_key_walk(job, tile TESS_TABLES_OF_KERNEL);
        m->walk = walk;
        m->tile = tile;
        m->job = job;
        m->first_block = first_block;
        m->count = tess_count_keys(walk, tile TESS_TABLES_OF_KERNEL);
        m->k = TESS_FIRST_OF(k, origin.batch, origin.start, origin.head);
        m->v = TESS_FIRST_OF(v, origin.batch, origin.start, origin.head);
        m->sinks = (tile.flags & TESS_CLASS_WINDOW) != 0u
                       ? TESS_INT(TESS_WORD(tile.cls + TESS_WORD_CLASS_SINKS))
                       : TESS_INT_MAX;
        for (uint n = 0u; n < TESS_LISTS; n++) m->masked[n] = 0xffffffffu;
    }
    if (TESS_THREAD < TESS_ROWS) {
        const tess_row row =
            tess_find_row(tess_min(TESS_THREAD, tile.packed_rows - 1u), tile TESS_TABLES_OF_KERNEL);
        nv_row own;
        own.last = row.causal;
        own.low = row.window_low;
        own.high = row.window_high;
        own.block = row.block - first_block;
        m->rows[TESS_THREAD] = own;
    }
}

#define NV_COPY_STAGE(n)                                                                  \
    nv_copy_rows(nv_shared_address(m->stages[(n) % 2u][0]), K, &m->places[(n) % 2u][0].k, \
                 args.head_dim, k_wide);                                                  \
    nv_copy_rows(nv_shared_address(m->stages[(n) % 2u][1]), V, &m->places[(n) % 2u][0].v, \
                 args.head_dim, v_wide)

TESS_FORWARD_KERNEL {
    NV_MEMORY(m)
    const uint items = tess_present_items(args.items TESS_TABLES_OF_KERNEL);
    if (TESS_GROUP >= items) return;
    const uint job = tess_find_item(TESS_GROUP, true, TESS_JOB_WORDS TESS_TABLES_OF_KERNEL);
    const tess_tile tile = tess_read_tile(job TESS_TABLES_OF_KERNEL);
    const tess_offset q_start =
        TESS_WORD64(tile.sequence + TESS_WORD_SEQUENCE_Q_START) + TESS_OFFSET(tile.row);
    nv_begin(m, job, tile TESS_TABLES_OF_KERNEL);
    TESS_BARRIER;
    const uint stages = (m->count + TESS_KEYS - 1u) / TESS_KEYS;
    const float scale_log2 = nv_multiply(args.scale < 0.0f ? -args.scale : args.scale, TESS_LOG2E);
    const bool active = TESS_THREAD / 32u * TESS_TILES * 16u < tile.packed_rows;
    const bool k_wide = NV_IS_WIDE(K + m->k, args.k_batch | args.k_token),
               v_wide = NV_IS_WIDE(V + m->v, args.v_batch | args.v_token);
    if (TESS_THREAD < 2u * TESS_KEYS && TESS_THREAD / TESS_KEYS < stages)
        nv_list_key(m, TESS_THREAD / TESS_KEYS, TESS_THREAD % TESS_KEYS TESS_PAGES_OF_KERNEL);
    TESS_BARRIER;
    if (stages > 0u) { NV_COPY_STAGE(0u); }
    nv_thread w;
    TESS_UNROLL for (uint t = 0u; t < TESS_TILES; t++) {
        TESS_UNROLL for (uint y = 0u; y < TESS_O; y++) TESS_UNROLL for (uint e = 0u; e < 4u; e++)
            w.o[t][y][e] = 0.0f;
        TESS_UNROLL for (uint r = 0u; r < 2u; r++) {
            w.row_max[t][r] = TESS_MINUS_INFINITY;
            w.row_sum[t][r] = 0.0f;
        }
    }
    nv_load_q(&w, m, Q, TESS_FIRST(q, tile, q_start, tile.head), tile, args);
    for (uint i = 0u; i < stages; i++) {
        nv_copies_wait();
        TESS_BARRIER;
        if (i + 1u < stages) { NV_COPY_STAGE(i + 1u); }
        if (i + 2u < stages && TESS_THREAD / TESS_KEYS == i % (TESS_THREADS / TESS_KEYS))
            nv_list_key(m, i + 2u, TESS_THREAD % TESS_KEYS TESS_PAGES_OF_KERNEL);
        if (!active) continue;
        nv_scores(&w, m, i % 2u);
        if (m->masked[i % TESS_LISTS] == i) nv_mask(&w, m, i % TESS_LISTS);
        nv_softmax(&w, scale_log2);
        nv_values(&w, m, i % 2u);
    }
    if (!active) return;
    nv_divide(&w);
    const uint partial = TESS_WORD(m->job + TESS_WORD_JOB_PARTIAL);
    const tess_offset row =
        TESS_WORD64(m->tile.sequence + TESS_WORD_SEQUENCE_Q_START) + TESS_OFFSET(m->tile.row);
    if (partial != TESS_NO_PARTIAL)
        nv_store_partial(&w, m,
                         workspace + args.partials_at +
                             TESS_OFFSET(partial) * args.partial_rows * (args.head_dim + 2u),
                         scale_log2, args);
    else
        nv_store(&w, m, O + TESS_FIRST(o, m->tile, row, m->tile.head),
                 LSE + TESS_FIRST(lse, m->tile, row, m->tile.head), args);
}

#ifndef TESS_FORWARD_ALONE
#include "merge.inl"
#endif
