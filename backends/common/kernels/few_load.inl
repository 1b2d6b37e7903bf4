/* SPDX-License-Identifier: Apache-2.0 */
/* A stage of the kernel for few rows: loads the slice of Q, and says how those of K and V are
 * loaded and multiplied. */

#define TESS_LOAD_Q_ROW(n, c)                                                             \
    {                                                                                     \
        const tess_offset at = q_slice + TESS_ROW_OFFSET(q, row_head_row[first_row + n]); \
        TESS_EIGHT eight;                                                                 \
        if (q_aligned) {                                                                  \
            eight = TESS_LOAD8_ALIGNED(Q, at);                                            \
        } else {                                                                          \
            eight = TESS_LOAD8(Q, at);                                                    \
        }                                                                                 \
        const vec4 low = TESS_LOW4(eight) * sign, high = TESS_HIGH4(eight) * sign;        \
        q[0].c = low.x;                                                                   \
        q[1].c = low.y;                                                                   \
        q[2].c = low.z;                                                                   \
        q[3].c = low.w;                                                                   \
        q[4].c = high.x;                                                                  \
        q[5].c = high.y;                                                                  \
        q[6].c = high.z;                                                                  \
        q[7].c = high.w;                                                                  \
    }

/* Where a key lies in tensor x, from the head's first element on. */
#define TESS_FIND_OFFSET(x, place) \
    (place.page == TESS_ABSENT     \
         ? TESS_NOWHERE            \
         : TESS_OFFSET(place.page) * args.x##_batch + TESS_OFFSET(place.token) * args.x##_token)

/* Tensor x, which is X, of the chunk whose state begins at `chunk`. Nothing is read of absent keys,
 * which only pages have: where there are none, the loads need no branches. */
#define TESS_LOAD_PRESENT(to, X, x, load)                              \
    TESS_UNROLL for (uint n = 0u; n < TESS_AHEAD; n++) {               \
        to[n] = TESS_EIGHT_ZEROS;                                      \
        if (at[n] != TESS_NOWHERE) to[n] = load(X, x##_slice + at[n]); \
    }
#define TESS_LOAD_KEYS(to, X, x, chunk)                                \
    {                                                                  \
        tess_offset at[TESS_AHEAD];                                    \
        TESS_UNROLL for (uint n = 0u; n < TESS_AHEAD; n++) at[n] =     \
            key_##x##_at[(chunk) + n * lanes + lane];                  \
        if (x##_aligned && !TESS_IS_PAGED) {                           \
            TESS_UNROLL for (uint n = 0u; n < TESS_AHEAD; n++) to[n] = \
                TESS_LOAD8_ALIGNED(X, x##_slice + at[n]);              \
        } else if (x##_aligned) {                                      \
            TESS_LOAD_PRESENT(to, X, x, TESS_LOAD8_ALIGNED)            \
        } else {                                                       \
            TESS_LOAD_PRESENT(to, X, x, TESS_LOAD8)                    \
        }                                                              \
    }

#define TESS_MULTIPLY_KEYS                                           \
    TESS_UNROLL for (uint n = 0u; n < TESS_AHEAD; n++) {             \
        const vec4 low = TESS_LOW4(k8[n]), high = TESS_HIGH4(k8[n]); \
        vec4 sum = q[0] * low.x;                                     \
        sum += q[1] * low.y;                                         \
        sum += q[2] * low.z;                                         \
        sum += q[3] * low.w;                                         \
        TESS_MULTIPLY_ADD(sum, high, q[4], q[5], q[6], q[7]);        \
        products[n * TESS_THREADS + thread] = sum;                   \
    }

const tess_offset q_slice = q_base + TESS_OFFSET(slice * 8u),
                  k_slice = k_base + TESS_OFFSET(slice * 8u),
                  v_slice = v_base + TESS_OFFSET(slice * 8u);
const bool q_aligned = TESS_IS_ALIGNED8(Q, q_slice, args.q_token | args.q_head);
const bool k_aligned =
    TESS_IS_ALIGNED8(K, k_slice, args.k_token | (TESS_IS_PAGED ? args.k_batch : TESS_OFFSET(0)));
const bool v_aligned =
    TESS_IS_ALIGNED8(V, v_slice, args.v_token | (TESS_IS_PAGED ? args.v_batch : TESS_OFFSET(0)));
const float sign = args.scale < 0.0f ? -1.0f : 1.0f;
if (keys > 0u && inside) { TESS_EACH_ROW(TESS_LOAD_Q_ROW) }
