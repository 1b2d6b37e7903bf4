/* SPDX-License-Identifier: Apache-2.0 */
/* What the warps of a workgroup share: workgroup memory, and the description of a job that the
 * producing warps hand to the others. */
#ifndef TESS_CUDA_SM90_TILE_CUH
#define TESS_CUDA_SM90_TILE_CUH

#include "sm90_args.h"
#include "tile.cuh"

namespace tess {

enum {
    MOST_PIECES = 16, /* of a stage */
    MOST_ROWS = 192,  /* of a tile */
    TILES = 4,        /* descriptions in flight */
    /* still to be copied when the next job is claimed, whose words take about two to arrive */
    CLAIM_STAGES = 3,
    /* warps that give a description back; consumers are done with it before the one that writes
     * results */
    TILE_READERS = 3,
};

struct piece {
    int32_t token;
    /* bit n: rows of the tile's n-th query block keep keys of it, as far as token bounds allow */
    uint32_t kept;
};

/* Blocks of a job in the order in which they are taken: those of a parted stage first, then others
 * to be masked. */
struct block_list {
    /* how many of each; twice `half` */
    int32_t half, tail, head, masked_left, masked_right, middle, left, right, all;
    uint32_t tail_start, head_start, middle_start, upper_start, lower_start; /* key blocks */
    uint32_t left_entry, masked_left_entry, right_entry, masked_right_entry;
    /* The key block, and where its bits are. */
    __device__ __forceinline__ uint32_t at(int32_t n, uint32_t *entry,
                                           const uint32_t *entries) const {
        *entry = 0;
        if (n < half) return upper_start + n;
        n -= half;
        if (n < half) return lower_start + n;
        n -= half;
        if (n < tail) return tail_start + n;
        n -= tail;
        if (n < head) return head_start + n;
        n -= head;
        if (n < masked_left) return entries[*entry = masked_left_entry + n];
        n -= masked_left;
        if (n < masked_right) return entries[*entry = masked_right_entry + n];
        n -= masked_right;
        if (n < middle) return middle_start + n;
        n -= middle;
        if (n < left) return entries[*entry = left_entry + n];
        n -= left;
        return entries[*entry = right_entry + n];
    }
};

/* What the other warps need to know of a job. */
struct tile {
    int32_t stages;        /* negative: there are no more jobs */
    int32_t masked_stages; /* from the first on */
    /* 1: keys of the first stage are 64 that only the tile's upper 64 rows keep (those with the
     * larger numbers), and 64 of the lower ones */
    int32_t parted;
    int32_t rows, heads, head, row;
    int32_t last_row;      /* of all heads */
    uint32_t rows_inverse; /* 2^20 / rows, rounded up */
    int32_t last;          /* rows behind the tile's are outside of the tensors */
    int32_t partial;
    int32_t position; /* of the tile's first row */
    int32_t kv_len, first_block;
    int32_t batch;
    uint32_t flags;
    int32_t left, right, sinks;
    int32_t block, in_block; /* tokens of a block; the first row's place in its block */
    /* 2^20 / block, rounded up; 0 for blocks that are larger than a tile, and then */
    uint32_t block_inverse;
    int32_t block_edge; /* is the first row of a second block, if there is one */
    /* pieces of a parted stage, and empty ones behind them, which make stages full */
    int32_t kv_head, lead, empty;
    uint32_t local, stride, residue;
    int64_t q_start, kv_start;
    block_list list;
};

template <int HEAD_DIM, int KEYS_OF_STAGE, int CONSUMERS, int SLOTS_OF_Q, int STAGES_OF_K,
          int STAGES_OF_V>
struct shape {
    static constexpr int D = HEAD_DIM, KEYS = KEYS_OF_STAGE, GROUPS = CONSUMERS,
                         Q_SLOTS = SLOTS_OF_Q, K_STAGES = STAGES_OF_K, V_STAGES = STAGES_OF_V;
    static constexpr int ROWS = TESS_SM90_ROWS(GROUPS);
    /* columns of 64 elements: rows of 128 bytes, which is what the copies swizzle */
    static constexpr int CHUNKS = (D + 63) / 64;
    static constexpr int WARPS = 4 * GROUPS; /* those that consume */
    /* so that pieces are written before a stage is free */
    static constexpr int PIECE_STAGES = K_STAGES < 4 ? 4 : 8;
};

template <typename X> struct alignas(1024) memory {
    static constexpr int ROWS = X::ROWS, KEYS = X::KEYS, CHUNKS = X::CHUNKS, Q_SLOTS = X::Q_SLOTS,
                         K_STAGES = X::K_STAGES, V_STAGES = X::V_STAGES;
    uint8_t q[Q_SLOTS][CHUNKS][ROWS * 128]; /* of a tile, and then its results on their way out */
    uint8_t k[K_STAGES][CHUNKS][KEYS * 128];
    uint8_t v[V_STAGES][CHUNKS][KEYS * 128];
    uint64_t q_full[Q_SLOTS], q_empty[Q_SLOTS], o_full[Q_SLOTS], k_full[K_STAGES],
        k_empty[K_STAGES], v_full[V_STAGES], v_empty[V_STAGES];
    uint64_t tile_full[TILES], tile_empty[TILES], claim; /* claim: a phase a tile */
    tile tiles[TILES];
    piece pieces[X::PIECE_STAGES][MOST_PIECES];
};

} // namespace tess

#endif // TESS_CUDA_SM90_TILE_CUH
