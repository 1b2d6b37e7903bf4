/* SPDX-License-Identifier: Apache-2.0 */
/* A stage of the forward kernel: O += P V for a chunk, in slices of TESS_SLICE_KEYS keys. */

#define TESS_LOAD_V(load)                                                                  \
    TESS_UNROLL for (uint n = 0u; n < TESS_TURNS(TESS_V_SIZE); n++) {                      \
        const uint e = n * TESS_THREADS + thread;                                          \
        if (TESS_INSIDE(e, TESS_V_SIZE)) {                                                 \
            const uint token = key_token[slice + e / (TESS_DIMS / 4u)];                    \
            const uint dim = tess_min(e % (TESS_DIMS / 4u) * 4u, head_dim - 4u);           \
            v[e] = load(V, v_base + TESS_OFFSET(token) * args.v_token + TESS_OFFSET(dim)); \
        }                                                                                  \
    }

for (uint slice = 0u; slice < chunk; slice += TESS_SLICE_KEYS) {
    const uint depth = tess_min(chunk - slice, TESS_UINT(TESS_SLICE_KEYS));
    if (TESS_IS_PAGED || TESS_IS_CODED) {
        tess_offset v_scale_base = TESS_OFFSET(0);
        TESS_FIND_SCALES(v_scale)
        TESS_NO_UNROLL for (uint n = 0u; n < TESS_TURNS(TESS_V_SIZE); n++) {
            const uint e = n * TESS_THREADS + thread;
            if (TESS_INSIDE(e, TESS_V_SIZE)) {
                const uint key = slice + e / (TESS_DIMS / 4u);
                const uint dim = tess_min(e % (TESS_DIMS / 4u) * 4u, head_dim - 4u);
                const tess_offset own = v_base + TESS_OFFSET(key_page[key]) * args.v_batch +
                                        TESS_OFFSET(key_token[key]) * args.v_token +
                                        TESS_OFFSET(dim);
                vec4 four = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
                if (key_page[key] == TESS_ABSENT) {
                    /* 0 times whatever it holds might be NaN */
                } else if (TESS_IS_CODED) {
                    four = TESS_LOAD_CODES(V, own, TESS_SCALE_OF(v_scale, V_SCALE, key));
                } else if (TESS_IS_ALIGNED(V, own, 0)) {
                    four = TESS_LOAD4_ALIGNED(V, own);
                } else {
                    four = TESS_LOAD4(V, own);
                }
                v[e] = four;
            }
        }
    } else if (v_aligned) {
        TESS_LOAD_V(TESS_LOAD4_ALIGNED)
    } else {
        TESS_LOAD_V(TESS_LOAD4)
    }
    TESS_BARRIER;
    if (first_row < used && column * 4u < head_dim) {
        TESS_NO_UNROLL for (uint k = 0u; k < depth; k += 4u) {
            vec4 p[TESS_THREAD_ROWS];
            TESS_UNROLL for (uint n = 0u; n < TESS_THREAD_ROWS; n++) p[n] =
                qkp[(first_row + n) * TESS_COLUMNS + (slice + k) / 4u];
            TESS_UNROLL for (uint d = 0u; d < TESS_THREAD_GROUPS; d++) {
                const uint at = k * (TESS_DIMS / 4u) + d * TESS_COLUMNS + column;
                const vec4 b0 = v[at], b1 = v[at + TESS_DIMS / 4u], b2 = v[at + TESS_DIMS / 2u],
                           b3 = v[at + TESS_DIMS / 4u * 3u];
                TESS_UNROLL for (uint n = 0u; n < TESS_THREAD_ROWS; n++) {
                    TESS_MULTIPLY_ADD(o[n * TESS_THREAD_GROUPS + d], p[n], b0, b1, b2, b3);
                }
            }
        }
    }
    TESS_BARRIER;
}
