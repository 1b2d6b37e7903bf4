/* SPDX-License-Identifier: Apache-2.0 */
/* What the warps of the kernel for Hopper share: the shape of an instance, shared memory, and the
 * description of a tile that the scheduler hands to the other warps. */
#ifndef TESS_CUDA_SM90_TILE_CUH
#define TESS_CUDA_SM90_TILE_CUH

#include "kernels/jobs.cuh"
#include "kernels/sm90_args.h"

namespace tess {

enum {
    MOST_PIECES = 16, /* of a stage */
    MOST_ROWS = 192,  /* of a tile */
    TILES = 4,        /* descriptions in flight */
    /* warps that release a description; the one that writes O does so for the consumers, too */
    TILE_READERS = 3,
};

/* Up to 64 tokens of a stage that are consecutive in memory. */
struct piece {
    int32_t token; /* the first one's position, or NO_TOKEN */
    /* bit n: rows of the tile's n-th query block keep keys of it, as far as token bounds allow */
    uint32_t kept;
};

/* The description of a tile: what the other warps need to know of a job. */
struct tile_info {
    int32_t stages;        /* negative: there are no more jobs */
    int32_t masked_stages; /* from the first on */
    /* 1: the first stage is halved. Half of its keys are kept only by the tile's upper 64 rows
     * (those with the larger numbers), the other half only by the lower ones; 64 keys each. */
    int32_t halved;
    int32_t rows, heads, head, row;
    int32_t last_row;      /* of all heads */
    uint32_t rows_inverse; /* 2^20 / rows, rounded up */
    int32_t ends_tensor;   /* rows past the tile's end are outside of the tensors */
    int32_t partial;
    int32_t position; /* of the tile's first row */
    int32_t kv_len, first_block;
    int32_t batch, kv_batch;
    uint32_t flags;
    int32_t left, right, sinks;
    int32_t block, in_block; /* tokens of a block; the first row's place in its block */
    /* 2^20 / block, rounded up; 0 for blocks that are larger than a tile */
    uint32_t block_inverse;
    int32_t block_edge; /* with such blocks: the first row of a second block, if there is one */
    int32_t kv_head;    /* in the tensors of K and V */
    /* empty pieces come behind the halved ones and fill up stages */
    int32_t halved_pieces, empty_pieces;
    uint32_t local, stride, shift;
    int64_t q_start, kv_start;
    const uint32_t *slots;      /* of the kv head's blocks; NULL: K and V lie by position */
    const int32_t *block_table; /* the sequence's page ids; NULL: no pages */
    /* Key blocks: of a halved stage `half` blocks of the upper rows, and as many of the lower ones;
     * then the others. */
    int32_t blocks, half;
    uint32_t upper_start, lower_start;
    block_order order;

    __device__ __forceinline__ uint32_t block_at(int32_t n, const uint32_t *entries,
                                                 uint32_t *entry) const {
        *entry = 0;
        if (n < half) return upper_start + n;
        n -= half;
        if (n < half) return lower_start + n;
        const block_order all = order; /* one wide load: several in turn take longer */
        return all.at(n - half, entries, entry);
    }
};

/* The constants of an instance: TESS_SM90_INSTANCES names its parameters. IS_PLACED: K and V may
 * lie in pages or by slot; without it no instruction is spent on the question. */
template <int HEAD_DIM, int STAGE_KEYS, int WARPGROUPS, int Q, int K, int V, bool IS_PLACED>
struct shape {
    static constexpr bool PLACED = IS_PLACED;
    static constexpr int D = HEAD_DIM, KEYS = STAGE_KEYS, CONSUMERS = WARPGROUPS, Q_STAGES = Q,
                         K_STAGES = K, V_STAGES = V;
    static constexpr int ROWS = TESS_SM90_ROWS(CONSUMERS);
    /* 64 columns each: rows of 128 bytes, the span of the TMA swizzle */
    static constexpr int CHUNKS = (D + 63) / 64;
    static constexpr int CONSUMER_WARPS = 4 * CONSUMERS;
    /* more than K_STAGES, so that pieces can be written before a stage is free */
    static constexpr int PIECE_STAGES = K_STAGES < 4 ? 4 : 8;
};

template <typename Shape> struct alignas(1024) shared_memory {
    static constexpr int ROWS = Shape::ROWS, KEYS = Shape::KEYS, CHUNKS = Shape::CHUNKS,
                         Q_STAGES = Shape::Q_STAGES, K_STAGES = Shape::K_STAGES,
                         V_STAGES = Shape::V_STAGES;
    uint8_t q[Q_STAGES][CHUNKS][ROWS * 128]; /* Q of a tile, and then its O until it is written */
    uint8_t k[K_STAGES][CHUNKS][KEYS * 128];
    uint8_t v[V_STAGES][CHUNKS][KEYS * 128];
    uint64_t q_full[Q_STAGES], q_empty[Q_STAGES], o_full[Q_STAGES], k_full[K_STAGES],
        k_empty[K_STAGES], v_full[V_STAGES], v_empty[V_STAGES];
    /* claim: the warp of K tells the scheduler to claim the next job, a phase a tile */
    uint64_t tile_full[TILES], tile_empty[TILES], claim;
    tile_info tiles[TILES];
    piece pieces[Shape::PIECE_STAGES][MOST_PIECES];
    /* with pages: nonzero if pieces of the stage are absent; `pieces` tells which */
    uint32_t holes[Shape::PIECE_STAGES];
};

} // namespace tess

#endif // TESS_CUDA_SM90_TILE_CUH
