/* SPDX-License-Identifier: Apache-2.0 */
/* A stage of the forward kernel: S = Q K^T for a chunk of keys, in slices of TESS_SLICE_DIMS dims
 * that threads load into shared memory together. */

/* Loads a slice by TESS_LOAD4 (any alignment) or TESS_LOAD4_ALIGNED. Dims past the last stand for
 * the last ones; nobody uses them. */
#define TESS_LOAD_Q(load)                                                                        \
    TESS_UNROLL for (uint n = 0u; n < TESS_TURNS(TESS_Q_SIZE); n++) {                            \
        const uint e = n * TESS_THREADS + thread;                                                \
        if (TESS_INSIDE(e, TESS_Q_SIZE)) {                                                       \
            const uint at = row_head_row[e / (TESS_SLICE_DIMS / 4u)];                            \
            const uint dim = slice + tess_min(e % (TESS_SLICE_DIMS / 4u), depth / 4u - 1u) * 4u; \
            qkp[e] = load(Q, q_base + TESS_ROW_OFFSET(q, at) + TESS_OFFSET(dim));                \
        }                                                                                        \
    }

/* The group of 4 elements at `at` of token 0, of key e. */
#define TESS_LOAD_KEY(four, load, e) \
    const vec4 four = load(K, at + TESS_OFFSET(key_token[e]) * args.k_token);
/* The same where keys have pages, any of which may be absent, or are codes. */
#define TESS_LOAD_PAGED_KEY(four, load, e)                                      \
    vec4 four = VEC4(0.0f, 0.0f, 0.0f, 0.0f);                                   \
    if (key_page[e] != TESS_ABSENT) {                                           \
        const tess_offset own = at + TESS_OFFSET(key_page[e]) * args.k_batch +  \
                                TESS_OFFSET(key_token[e]) * args.k_token;       \
        if (TESS_IS_CODED) {                                                    \
            four = TESS_LOAD_CODES(K, own, TESS_SCALE_OF(k_scale, K_SCALE, e)); \
        } else if (TESS_IS_ALIGNED(K, own, 0)) {                                \
            four = TESS_LOAD4_ALIGNED(K, own);                                  \
        } else {                                                                \
            four = TESS_LOAD4(K, own);                                          \
        }                                                                       \
    }

/* Where the scales of the job's keys are found from, in tensor x: looked up again, to hold fewer
 * values where there are none. */
#define TESS_FIND_SCALES(x)                                                  \
    if (TESS_IS_CODED) {                                                     \
        const tess_origin own = tess_find_origin(job TESS_TABLES_OF_KERNEL); \
        x##_base = TESS_FIRST_OF(x, own.batch, own.start, own.head);         \
    }
/* The scale of key e of the chunk; `scales` is the buffer of x. */
#define TESS_SCALE_OF(x, scales, e)                                                \
    TESS_LOAD_SCALE(scales, x##_base + TESS_OFFSET(key_page[e]) * args.x##_batch + \
                                TESS_OFFSET(key_token[e]) * args.x##_token)

/* A thread transposes 4 keys x 4 dims. */
#define TESS_LOAD_K(unroll, load_key, load)                                                 \
    unroll for (uint n = 0u; n < TESS_TURNS(TESS_K_SIZE / 4u); n++) {                       \
        const uint e = n * TESS_THREADS + thread;                                           \
        if (TESS_INSIDE(e, TESS_K_SIZE / 4u)) {                                             \
            const uint four = e % (TESS_SLICE_DIMS / 4u), key = e / (TESS_SLICE_DIMS / 4u); \
            const tess_offset at =                                                          \
                k_base + TESS_OFFSET(slice + tess_min(four, depth / 4u - 1u) * 4u);         \
            load_key(a, load, key * 4u);                                                    \
            load_key(b, load, key * 4u + 1u);                                               \
            load_key(c, load, key * 4u + 2u);                                               \
            load_key(d, load, key * 4u + 3u);                                               \
            const uint to = TESS_Q_SIZE + four * 4u * TESS_COLUMNS + (key ^ (four & 7u));   \
            qkp[to] = VEC4(a.x, b.x, c.x, d.x);                                             \
            qkp[to + TESS_COLUMNS] = VEC4(a.y, b.y, c.y, d.y);                              \
            qkp[to + 2u * TESS_COLUMNS] = VEC4(a.z, b.z, c.z, d.z);                         \
            qkp[to + 3u * TESS_COLUMNS] = VEC4(a.w, b.w, c.w, d.w);                         \
        }                                                                                   \
    }

TESS_UNROLL for (uint n = 0u; n < TESS_THREAD_ROWS; n++) s[n] = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
for (uint slice = 0u; slice < head_dim; slice += TESS_SLICE_DIMS) {
    const uint depth = tess_min(head_dim - slice, TESS_UINT(TESS_SLICE_DIMS));
    TESS_BARRIER;
    if (q_aligned) {
        TESS_LOAD_Q(TESS_LOAD4_ALIGNED)
    } else {
        TESS_LOAD_Q(TESS_LOAD4)
    }
    if (TESS_IS_PAGED || TESS_IS_CODED) {
        tess_offset k_scale_base = TESS_OFFSET(0);
        TESS_FIND_SCALES(k_scale)
        TESS_LOAD_K(TESS_NO_UNROLL, TESS_LOAD_PAGED_KEY, 0)
    } else if (k_aligned) {
        TESS_LOAD_K(TESS_UNROLL, TESS_LOAD_KEY, TESS_LOAD4_ALIGNED)
    } else {
        TESS_LOAD_K(TESS_UNROLL, TESS_LOAD_KEY, TESS_LOAD4)
    }
    TESS_BARRIER;
    if (first_row < used && column * 4u < chunk) {
        TESS_NO_UNROLL for (uint k = 0u; k < depth; k += 4u) {
            const uint at = TESS_Q_SIZE + k * TESS_COLUMNS + (column ^ (k / 4u & 7u));
            const vec4 b0 = qkp[at], b1 = qkp[at + TESS_COLUMNS], b2 = qkp[at + 2u * TESS_COLUMNS],
                       b3 = qkp[at + 3u * TESS_COLUMNS];
            TESS_UNROLL for (uint n = 0u; n < TESS_THREAD_ROWS; n++) {
                const vec4 a = qkp[(first_row + n) * (TESS_SLICE_DIMS / 4u) + k / 4u];
                TESS_MULTIPLY_ADD(s[n], a, b0, b1, b2, b3);
            }
        }
    }
}
if (args.scale < 0.0f) { TESS_UNROLL for (uint n = 0u; n < TESS_THREAD_ROWS; n++) s[n] *= -1.0f; }
