/* SPDX-License-Identifier: Apache-2.0 */
/* What the warps of the backward kernel for Hopper share: the shape of an instance, shared memory,
 * and the descriptions of columns and steps that the scheduler hands to the other warps. */
#ifndef TESS_CUDA_SM90_TILE_BACKWARD_CUH
#define TESS_CUDA_SM90_TILE_BACKWARD_CUH

#include <tessera/tessera_job_words.h>

#include "kernels/sm90_backward_args.h"
#include "ptx.cuh"

namespace tess {

enum {
    COLUMN_KEYS = TESS_SM90_COLUMN_KEYS,
    HALF_KEYS = COLUMN_KEYS / 2, /* of a warpgroup */
    STEP_STAGES = 3,             /* of Q: dK of a step is multiplied in the next one */
    D_O_STAGES = 2,
    /* Descriptions in flight. The scheduler runs up to STEPS_AHEAD ahead of the warp that loads
     * rows, and that warp up to STEP_STAGES ahead of the consumers. The warp that adds dQ comes
     * last. */
    STEPS_AHEAD = 2,
    STEPS = 16,
    COLUMNS = 8,
    /* Stands for a lane without a piece, and for a missing key. No key has this position, and a box
     * there is outside of every tensor. */
    NO_KEY = 0x7fff0000,
};

/* The work of a step. */
enum {
    STEP_EMPTY,   /* no products, but perhaps a turn: the column has no rows, or none there */
    STEP_FULL,    /* both halves of the keys, none of them masked */
    STEP_MASKED,  /* both halves */
    STEP_HALF,    /* all pieces of one half */
    STEP_PARTIAL, /* any pieces */
    STEP_STOP,    /* there are no more columns */
};
/* The first step of the column, the last one, or a step followed by one of both halves. */
enum { STEP_FIRST = 1, STEP_LAST = 2, STEP_CHAINED = 4 };

/* What a segment says about which rows keep a key. */
struct segment_mask {
    uint32_t flags, local, stride, shift; /* of the class */
    int32_t left, right, sinks;
    uint32_t first, blocks; /* blocks of the column that the rows read */
};

/* Rows at positions [low, high] keep a key. */
struct key_rows {
    int32_t low, high;

    __device__ __forceinline__ void find(const segment_mask &x, int32_t t, uint32_t block) {
        low = INT32_MIN;
        high = INT32_MAX;
        if (x.flags & TESS_CLASS_CAUSAL) low = t;
        if (x.flags & TESS_CLASS_LOCAL) {
            const uint32_t j = (uint32_t)t / block;
            const bool strided = j % x.stride == (x.shift == 0 ? 0 : x.stride - x.shift);
            if (!strided && x.local <= (uint32_t)INT32_MAX / block - j)
                high = (int32_t)((j + x.local) * block) - 1;
        }
        if ((x.flags & TESS_CLASS_WINDOW) && t >= x.sinks) {
            if (x.left < INT32_MAX - t) high = min(high, t + x.left);
            if (x.right != INT32_MAX) low = max(low, t - x.right);
        }
    }
};

struct step_info {
    int32_t kind, ends;
    int32_t half;               /* of STEP_HALF */
    int32_t begin16, end16;     /* of STEP_PARTIAL: its pieces lie in these 16 keys each */
    int32_t row_begin, row_end; /* the step's rows that are multiplied */
    int32_t position;           /* of the first row */
    int32_t rows;               /* rows of the sequence from the first one on */
    int32_t head, batch;
    uint32_t boxed; /* a box of all rows reads nothing of another sequence */
    uint32_t bits;  /* blocks of the column that the rows read, by the caller's mask */
    uint32_t column, mask;
    uint32_t strip;                  /* its number among the strips of all heads, if has_strip */
    uint32_t has_strip, wait, leave; /* the latter two of its turn */
    int64_t token;                   /* of the first row */
};

/* The scheduler's own state, kept here to save registers. */
struct walk_info {
    uint32_t segment, end_segment, first_head, end_head, run, runs;
    uint32_t first_strip, batch, wait, leave;
    int32_t q_len, ends_tensor;
    int64_t q_start;
    uint32_t bits, mask;
};

struct column_info {
    int32_t token[COLUMN_KEYS]; /* positions, or NO_KEY */
    int32_t keys;               /* negative: there are no more columns */
    int32_t loads;              /* K and V are needed */
    int32_t kv_head, kv_batch, kv_len;
    /* Of a column that is cut: how many columns add to its sums before it, and the number of these;
     * negative: it is not cut. */
    int32_t before, sum;
    int64_t kv_start;
};

/* The address of an element of a tensor. */
__device__ __forceinline__ uint64_t element_at(const tess_sm90_tensor *t, int64_t batch,
                                               int64_t token, int64_t head, int64_t dim,
                                               uint32_t bytes) {
    return t->address +
           (uint64_t)(batch * t->batch + token * t->token + head * t->head + dim) * bytes;
}

/* The constants of an instance: TESS_SM90_BACKWARD_INSTANCES names its parameters. */
template <int HEAD_DIM, int STEP_ROWS> struct backward_shape {
    static constexpr int D = HEAD_DIM, ROWS = STEP_ROWS;
    /* 64 columns each: rows of 128 bytes, the span of the TMA swizzle */
    static constexpr int CHUNKS = D / 64, ROW_CHUNKS = ROWS / 64;
    static constexpr int KEY_BYTES = COLUMN_KEYS * 128, ROW_BYTES = ROWS * 128; /* of a chunk */
    /* Each warpgroup computes 64 x 64 of dQ: all rows of 64 dims, or 64 rows of all dims. */
    static constexpr int DQ_FLOATS = 64 * 64;
    static_assert(CHUNKS * ROW_CHUNKS == 2, "dQ is cut in two");
    /* A thread loads LSE and Delta of its rows into registers while products are in flight. At
     * head_dim 64 there is no room for them. */
    static constexpr bool LOADS_AHEAD = D > 64;

    /* Where LSE and Delta of a row lie in their stage. If they are loaded ahead, the four values
     * that a thread of a quad needs of 16 rows lie together: half as many loads as in the order of
     * the rows. */
    static __device__ __forceinline__ int place_of_row(int row) {
        if (!LOADS_AHEAD) return row;
        return row / 16 * 16 + row % 8 / 2 * 4 + row % 16 / 8 * 2 + row % 2;
    }
};

template <typename Shape> struct alignas(1024) backward_memory {
    uint8_t k[Shape::CHUNKS][Shape::KEY_BYTES];
    uint8_t v[Shape::CHUNKS][Shape::KEY_BYTES];
    uint8_t q[STEP_STAGES][Shape::CHUNKS][Shape::ROW_BYTES];
    uint8_t d_o[D_O_STAGES][Shape::CHUNKS][Shape::ROW_BYTES];
    uint8_t ds[2][Shape::ROW_CHUNKS][Shape::KEY_BYTES]; /* transposed: rows of keys */
    float dq[2][Shape::DQ_FLOATS];
    float lse[STEP_STAGES][Shape::ROWS], delta[D_O_STAGES][Shape::ROWS];
    uint64_t q_full[STEP_STAGES], q_empty[STEP_STAGES], d_o_full[D_O_STAGES], d_o_empty[D_O_STAGES];
    uint64_t k_full, v_full, k_empty, v_empty, dq_full[2], dq_empty[2];
    uint64_t column_full[COLUMNS], step_full[STEPS], step_done[STEPS];
    step_info steps[STEPS];
    segment_mask masks[STEPS];
    column_info columns[COLUMNS];
    walk_info walk;
};

} // namespace tess

#endif // TESS_CUDA_SM90_TILE_BACKWARD_CUH
