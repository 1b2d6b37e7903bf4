/* SPDX-License-Identifier: Apache-2.0 */
/* The tile scheduler of the kernel for Hopper: reads jobs, describes their tiles to the other
 * warps, and claims the next ones. By one warp. */
#ifndef TESS_CUDA_SM90_SCHEDULE_CUH
#define TESS_CUDA_SM90_SCHEDULE_CUH

#include "ptx.cuh"
#include "tile.cuh"

namespace tess {

/* The words of a job, of its sequence and of its class, one of each in every lane. */
struct warp_words {
    uint32_t job_word, sequence_word, class_word;

    /* `jobs`: how many the launch has. */
    __device__ __forceinline__ void read(const tess_sm90_args *a, uint32_t index, uint32_t jobs,
                                         uint32_t lane) {
        const uint32_t *tables = (const uint32_t *)a->tables;
        const tess_args *c = &a->common;
        job_word = index < jobs && lane < TESS_JOB_WORDS
                       ? tables[c->items_at + (uint64_t)index * TESS_JOB_WORDS + lane]
                       : 0;
        const uint32_t which_sequence = job(TESS_WORD_JOB_SEQUENCE),
                       which_class = TESS_HIGH_HALF(job(TESS_WORD_JOB_CLS));
        sequence_word =
            lane < TESS_SEQUENCE_WORDS
                ? tables[c->sequences_at + (uint64_t)which_sequence * TESS_SEQUENCE_WORDS + lane]
                : 0;
        class_word = lane < TESS_CLASS_WORDS
                         ? tables[c->classes_at + which_class * TESS_CLASS_WORDS + lane]
                         : 0;
    }
    __device__ __forceinline__ uint32_t job(uint32_t n) const {
        return __shfl_sync(~0u, job_word, n);
    }
    __device__ __forceinline__ uint32_t sequence(uint32_t n) const {
        return __shfl_sync(~0u, sequence_word, n);
    }
    __device__ __forceinline__ uint32_t cls(uint32_t n) const {
        return __shfl_sync(~0u, class_word, n);
    }
};

/* The blocks of each half of a halved stage, or 0 if the tile cannot have one. It can if only the
 * upper 64 rows keep the last 64 tokens of the interval, and only the lower rows keep the first 64.
 * One stage then holds all of these, and each warpgroup does half of its work. */
template <typename Shape>
__device__ __forceinline__ int32_t halved_blocks(const job_words &j, int32_t block,
                                                 int32_t position, int32_t first_block) {
    const int32_t start = j.walk.interval_start, interval = j.walk.interval_blocks,
                  mask_head = j.walk.mask_head, mask_tail = j.walk.mask_tail;
    if (Shape::KEYS != 128 || Shape::CONSUMERS != 2 || j.heads != 1 || j.rows != Shape::ROWS ||
        position % 64 != 0 || block > 64 || 64 % block != 0)
        return 0;
    const int32_t half = 64 / block;
    if (interval * block <= Shape::KEYS) return 0; /* a tile must have other stages, too */
    if (!(j.flags & TESS_CLASS_CAUSAL) || (j.flags & TESS_CLASS_BITS) || mask_head < half ||
        mask_tail < half || start + interval != first_block + 2 * half)
        return 0;
    if (j.flags & TESS_CLASS_LOCAL) { /* no vertical block may be among the first ones */
        const uint32_t after = (start + j.shift) % j.stride;
        return (uint32_t)start + j.local == (uint32_t)first_block + 1 && after != 0 &&
                       after + half <= j.stride
                   ? half
                   : 0;
    }
    if (!(j.flags & TESS_CLASS_WINDOW) || j.left == 0x7fffffff) return 0;
    return (int64_t)(start + half) * block <= (int64_t)position + 64 - j.left &&
                   start * block >= j.sinks
               ? half
               : 0;
}

/* The key blocks of a tile: twice `half` of them in a halved stage, and the others in `order`. */
struct tile_blocks {
    int32_t half;
    block_order order;
};

template <typename Shape>
__device__ __forceinline__ tile_blocks find_blocks(job_words j, const uint32_t *entries,
                                                   int32_t block, int32_t position,
                                                   int32_t first_block) {
    tess_key_walk &w = j.walk;
    /* a block that kv_len cuts short needs a mask wherever it is listed */
    const uint32_t last_block = j.kv_len % block ? j.kv_len / block : ~0u;
    const bool ends_early = last_block != ~0u;
    if (w.interval_blocks > 0 && w.mask_tail == 0 && w.mask_head < w.interval_blocks &&
        w.interval_start + w.interval_blocks - 1 == last_block)
        w.mask_tail = 1;
    tile_blocks x;
    x.order.masked_left = w.mask_entries
                              ? w.left_count
                              : w.left_count > 0 && ends_early &&
                                    entries[w.left_offset + w.left_count - 1] == last_block;
    x.order.masked_right = w.mask_entries
                               ? w.right_count
                               : w.right_count > 0 && ends_early &&
                                     entries[w.right_offset + w.right_count - 1] == last_block;
    x.half = halved_blocks<Shape>(j, block, position, first_block);
    w.interval_start += x.half;
    w.interval_blocks -= 2 * x.half;
    w.mask_head -= x.half;
    w.mask_tail -= x.half;
    x.order.walk = w;
    return x;
}

/* Where K and V of a tile lie, if they are in pages or by slot. */
__device__ __forceinline__ void describe_places(tile_info *t, const job_words &j,
                                                const tess_sm90_args *a) {
    const tess_args *c = &a->common;
    if (c->flags & TESS_ARGS_PAGED)
        t->block_table =
            (const int32_t *)a->block_table + (int64_t)j.kv_batch * c->block_table_batch;
    if (!(c->flags & TESS_ARGS_COMPACT)) return;
    const uint32_t *tables = (const uint32_t *)a->tables,
                   *words = tables + c->kv_heads_at + (uint32_t)t->kv_head * TESS_KV_HEAD_WORDS;
    t->kv_head = words[TESS_WORD_KV_HEAD_POOL_HEAD];
    t->slots =
        tables + c->slots_at +
        ((int64_t)words[TESS_WORD_KV_HEAD_SLOTS_OFFSET] + j.kv_start) * (int64_t)TESS_SLOT_WORDS;
}

/* Describes the tile of a job. Only the lane that `writes` stores it. */
template <typename Shape>
__device__ __forceinline__ void describe_tile(tile_info *t, const job_words &j,
                                              const tess_sm90_args *a, bool writes) {
    const tess_args *c = &a->common;
    const int32_t block = c->block, position = j.q_first + j.row,
                  first_block = floor_div(position, c->block);
    const tile_blocks keys = find_blocks<Shape>(j, (const uint32_t *)a->tables + c->entries_at,
                                                block, position, first_block);
    const int stage_pieces = Shape::KEYS >> a->piece_shift, block_pieces = block >> a->piece_shift;
    /* Make at least one stage, if need be of empty pieces: then a tile without keys is no special
     * case. */
    const int32_t all_blocks = tess_key_blocks(j.walk), pieces = all_blocks * block_pieces,
                  stages = max((pieces + stage_pieces - 1) / stage_pieces, 1),
                  empty = stages * stage_pieces - pieces;
    if (!writes) return;
    t->stages = stages;
    t->masked_stages =
        (keys.half > 0) +
        (empty + (int32_t)keys.order.masked() * block_pieces + stage_pieces - 1) / stage_pieces;
    t->halved = keys.half > 0;
    t->rows = j.rows;
    t->heads = j.heads;
    t->head = j.head;
    t->row = j.row;
    t->last_row = j.rows * j.heads - 1;
    t->rows_inverse = (0xfffff + j.rows) / j.rows;
    t->ends_tensor = j.row + j.rows == j.q_len && (uint32_t)(j.q_start + j.q_len) == a->q_tokens;
    t->partial = j.partial;
    t->position = position;
    t->kv_len = j.kv_len;
    t->first_block = first_block;
    t->batch = j.batch;
    t->kv_batch = j.kv_batch;
    t->flags = j.flags;
    t->left = j.left;
    t->right = j.right;
    t->sinks = j.flags & TESS_CLASS_WINDOW ? j.sinks : 0;
    t->block = block;
    t->in_block = position - first_block * block;
    t->block_inverse = c->block < MOST_ROWS ? (0xfffffu + c->block) / c->block : 0;
    t->block_edge = c->block < MOST_ROWS ? MOST_ROWS : block - t->in_block;
    t->kv_head = j.head / c->group;
    t->slots = 0;
    t->block_table = 0;
    t->halved_pieces = keys.half > 0 ? stage_pieces : 0;
    t->empty_pieces = empty;
    /* the bound exceeds all blocks, and added to one of them it does not overflow */
    t->local = min(j.local, 1u << 30);
    t->stride = j.stride;
    t->shift = j.shift;
    t->q_start = j.q_start;
    t->kv_start = j.kv_start;
    t->blocks = all_blocks;
    t->half = keys.half;
    t->upper_start = j.walk.interval_start + j.walk.interval_blocks - keys.half;
    t->lower_start = j.walk.interval_start;
    t->order = keys.order;
    if (Shape::PLACED) describe_places(t, j, a);
}

/* The job of the tile behind `tile`, the latest of this thread block. Jobs are claimed late,
 * because a block that holds jobs it cannot begin yet leaves others idle at the end. When the last
 * keys of a job are about to be loaded, there is just enough time to read the words of the next
 * one. */
template <typename Shape>
__device__ __forceinline__ uint32_t next_job(shared_memory<Shape> *m, const tess_sm90_args *a,
                                             uint32_t tile, int lane) {
    if (a->counter) {
        uint32_t index;
        mbarrier_wait(&m->claim, tile & 1);
        if (lane == 0) index = atomicAdd((uint32_t *)a->counter, 1u) + gridDim.x;
        return __shfl_sync(~0u, index, 0);
    }
    /* deal to and fro, since jobs come longest first */
    const uint32_t round = tile + 1;
    return round * gridDim.x + (round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
}

} // namespace tess

#endif // TESS_CUDA_SM90_SCHEDULE_CUH
