/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The producing warps of the kernel for Hopper. One describes jobs and copies Q, one copies K and
 * one V, each as far ahead as its ring is deep, and one writes results. Descriptions are rings too,
 * so a warp is in the next job as soon as it is done with the last.
 */
#ifndef TESS_CUDA_SM90_PRODUCE_CUH
#define TESS_CUDA_SM90_PRODUCE_CUH

#include "sm90_ptx.cuh"
#include "sm90_tile.cuh"

namespace tess {

/* Copies rows by plain loads to where a copy of a box would have put them, from row `first` of the
 * stage on; rows past `valid`, and elements past head_dim, become 0. By one warp. */
template <int CHUNKS>
__device__ __forceinline__ void copy_rows(uint8_t *to, uint32_t chunk_bytes, int32_t first,
                                          const uint16_t *from, int64_t stride, int32_t rows,
                                          int32_t valid, int32_t head_dim, bool wide) {
    const int lane = threadIdx.x % 32;
    for (int n = lane; n < rows * CHUNKS * 8; n += 32) {
        const int row = n / (CHUNKS * 8), unit = n % (CHUNKS * 8), in_stage = first + row;
        uint4 x = make_uint4(0, 0, 0, 0);
        if (row < valid && unit * 8 < head_dim) x = read_unit(from + row * stride + unit * 8, wide);
        *(uint4 *)(to + unit / 8 * chunk_bytes + in_stage * 128 +
                   ((unit % 8) ^ (in_stage % 8)) * 16) = x;
    }
}

/* A job and its sequence and class, one word in each lane. */
struct description {
    uint32_t job, sequence, cls;

    __device__ __forceinline__ void read(const tess_sm90_args *a, uint32_t index, int lane) {
        const uint32_t *tables = (const uint32_t *)a->tables;
        const tess_args *c = &a->common;
        job = index < c->items && lane < 12 ? tables[c->items_at + (uint64_t)index * 12 + lane] : 0;
        const uint32_t which_sequence = job_word(0), which_class = job_word(3) >> 16;
        sequence = lane < 10 ? tables[c->sequences_at + (uint64_t)which_sequence * 10 + lane] : 0;
        cls = lane < 12 ? tables[c->classes_at + which_class * 12 + lane] : 0;
    }
    __device__ __forceinline__ uint32_t job_word(int n) const { return __shfl_sync(~0u, job, n); }
    __device__ __forceinline__ uint32_t sequence_word(int n) const {
        return __shfl_sync(~0u, sequence, n);
    }
    __device__ __forceinline__ uint32_t class_word(int n) const { return __shfl_sync(~0u, cls, n); }
};

/* The n-th piece of a tile: those of a parted stage, then empty ones, which have no token, then the
 * others. */
__device__ __forceinline__ piece find_piece(const tile *t, int32_t n, int block_pieces,
                                            int block_shift, int piece_shift,
                                            const uint32_t *entries, const uint32_t *bits) {
    piece x = {NO_TOKEN, ~0u};
    if (n >= t->lead && (n -= t->empty) < t->lead) return x;
    const int32_t nth = block_shift >= 0 ? n >> block_shift : n / block_pieces;
    const block_list &list = t->list;
    if (nth >= list.all) return x;
    uint32_t entry;
    const uint32_t block = list.at(nth, &entry, entries), flags = t->flags;
    x.token = (int32_t)(block * (uint32_t)t->block) + ((n - nth * block_pieces) << piece_shift);
    if (x.token >= t->kv_len) x.token = NO_TOKEN;
    if ((flags & CLASS_LOCAL) && (block + t->residue) % t->stride != 0) {
        /* query blocks below it keep the block */
        const int32_t blocks = (int32_t)block + (int32_t)t->local - t->first_block;
        x.kept = blocks <= 0 ? 0 : blocks >= 32 ? ~0u : (1u << blocks) - 1;
    }
    if (flags & CLASS_BITS) x.kept &= bits[entry];
    return x;
}

/* How many blocks at the end of the interval only the upper 64 rows of a tile keep, if as many at
 * its beginning are kept by the others only: 64 tokens each; else 0. Each warpgroup then has half
 * of the work of a stage that holds them all. */
template <typename X>
__device__ __forceinline__ int32_t find_half(const description &d, const tess_sm90_args *a,
                                             int32_t rows, int32_t heads, int32_t position,
                                             int32_t first_block, int32_t head_blocks,
                                             int32_t tail_blocks) {
    const int32_t block = a->common.block, start = d.job_word(8), interval = d.job_word(9),
                  left = d.class_word(4), sinks = d.class_word(6);
    const uint32_t flags = d.class_word(0), local = d.class_word(1), stride = d.class_word(2),
                   residue = d.class_word(3);
    if (X::KEYS != 128 || X::GROUPS != 2 || heads != 1 || rows != X::ROWS || position % 64 != 0 ||
        block > 64 || 64 % block != 0)
        return 0;
    const int32_t half = 64 / block;
    if (interval * block <= X::KEYS) return 0; /* a tile has other stages */
    if (!(flags & CLASS_CAUSAL) || (flags & CLASS_BITS) || head_blocks < half ||
        tail_blocks < half || start + interval != first_block + 2 * half)
        return 0;
    if (flags & CLASS_LOCAL) { /* no vertical block among those at the beginning */
        const uint32_t after = (start + residue) % stride;
        return (uint32_t)start + local == (uint32_t)first_block + 1 && after != 0 &&
                       after + half <= stride
                   ? half
                   : 0;
    }
    if (!(flags & CLASS_WINDOW) || left == 0x7fffffff) return 0;
    return (int64_t)(start + half) * block <= (int64_t)position + 64 - left &&
                   start * block >= sinks
               ? half
               : 0;
}

/* The first producing warp: describes the jobs of this workgroup, of which it is given the first,
 * and copies their rows of Q. */
template <typename X>
__device__ __forceinline__ void produce_tiles(memory<X> *m, const tess_tensor_map *q_map,
                                              const tess_sm90_args *a, description d) {
    constexpr int CHUNKS = X::CHUNKS, ROWS = X::ROWS, Q_SLOTS = X::Q_SLOTS;
    const int lane = threadIdx.x % 32;
    const uint32_t *tables = (const uint32_t *)a->tables, *entries = tables + a->common.entries_at;
    const tess_args *c = &a->common;
    const int stage_pieces = X::KEYS >> a->piece_shift,
              block_pieces = (int)c->block >> a->piece_shift;
    uint32_t job_index = blockIdx.x;
    for (uint32_t taken = 0;; taken++) {
        tile *t = &m->tiles[taken % TILES];
        barrier_wait(&m->tile_empty[taken % TILES], (taken / TILES & 1) ^ 1);
        if (job_index >= c->items) {
            if (lane == 0) {
                t->stages = -1;
                barrier_arrive(&m->tile_full[taken % TILES]);
            }
            return;
        }
        const uint32_t w1 = d.job_word(1), w3 = d.job_word(3), w10 = d.job_word(10);
        const int32_t head = w1 & 0xffff, heads = w1 >> 16, row = d.job_word(2), rows = w3 & 0xffff;
        const int32_t batch = d.sequence_word(4), q_len = d.sequence_word(5),
                      kv_len = d.sequence_word(6);
        const int64_t q_start = (int64_t)((uint64_t)d.sequence_word(1) << 32 | d.sequence_word(0));
        const int64_t kv_start = (int64_t)((uint64_t)d.sequence_word(3) << 32 | d.sequence_word(2));
        const uint32_t flags = d.class_word(0), local = d.class_word(1), stride = d.class_word(2),
                       residue = d.class_word(3);
        const int32_t partial = d.job_word(11), window_left = d.class_word(4),
                      window_right = d.class_word(5), sinks = d.class_word(6);
        const int32_t position = kv_len - q_len + row;
        const int32_t interval_start = d.job_word(8), interval = d.job_word(9),
                      left = d.job_word(5), right = d.job_word(7);
        const uint32_t left_offset = d.job_word(4), right_offset = d.job_word(6);
        /* the block that ends early, if any */
        const uint32_t last_block = kv_len % (int32_t)c->block ? kv_len / c->block : ~0u;
        const int32_t head_blocks = w10 & 0xffff;
        int32_t tail_blocks = w10 >> 16;
        if (interval > 0 && tail_blocks == 0 && head_blocks < interval &&
            interval_start + interval - 1 == (int32_t)last_block)
            tail_blocks = 1;
        const bool all = flags & CLASS_MASK_ENTRIES, ends_early = last_block != ~0u,
                   ends_map = (uint32_t)(q_start + q_len) == a->q_tokens;
        const int32_t masked_left =
            all ? left : left > 0 && ends_early && entries[left_offset + left - 1] == last_block;
        const int32_t masked_right =
            all ? right
                : right > 0 && ends_early && entries[right_offset + right - 1] == last_block;
        const int32_t first_block = floor_div(position, c->block);
        const int32_t half =
            find_half<X>(d, a, rows, heads, position, first_block, head_blocks, tail_blocks);
        const int32_t masked =
            (tail_blocks + head_blocks + masked_left + masked_right - 2 * half) * block_pieces;
        const int32_t total = (interval + left + right) * block_pieces;
        /* At least one, if need be of empty pieces, so that a tile without keys is no special
         * case. */
        const int32_t stages = max((total + stage_pieces - 1) / stage_pieces, 1),
                      empty = stages * stage_pieces - total;
        if (lane == 0) {
            t->stages = stages;
            t->masked_stages = (half > 0) + (empty + masked + stage_pieces - 1) / stage_pieces;
            t->rows = rows;
            t->last_row = rows * heads - 1;
            t->rows_inverse = (0xfffff + rows) / rows;
            t->heads = heads;
            t->head = head;
            t->row = row;
            t->last = row + rows == q_len && ends_map;
            t->partial = partial;
            t->position = position;
            t->kv_len = kv_len;
            t->parted = half > 0;
            t->first_block = first_block;
            t->in_block = position - first_block * (int32_t)c->block;
            t->block_inverse = c->block < MOST_ROWS ? (0xfffffu + c->block) / c->block : 0;
            t->block_edge = c->block < MOST_ROWS ? MOST_ROWS : (int32_t)c->block - t->in_block;
            t->batch = batch;
            t->flags = flags;
            t->left = window_left;
            t->right = window_right;
            t->sinks = flags & CLASS_WINDOW ? sinks : 0;
            t->block = c->block;
            t->kv_head = head / c->group;
            t->lead = half > 0 ? stage_pieces : 0;
            t->empty = empty;
            /* more than there are blocks, and its sum with one is no overflow */
            t->local = min(local, 1u << 30);
            t->stride = stride;
            t->residue = residue;
            t->q_start = q_start;
            t->kv_start = kv_start;
            block_list &list = t->list;
            list.head = head_blocks - half;
            list.tail = tail_blocks - half;
            list.half = half;
            list.upper_start = interval_start + interval - half;
            list.lower_start = interval_start;
            list.right = right - masked_right;
            list.masked_left = masked_left;
            list.masked_right = masked_right;
            list.middle = interval - head_blocks - tail_blocks;
            list.left = left - masked_left;
            list.all = interval + left + right;
            list.tail_start = interval_start + interval - tail_blocks;
            list.head_start = interval_start + half;
            list.middle_start = interval_start + head_blocks;
            list.left_entry = left_offset;
            list.masked_left_entry = left_offset + left - masked_left;
            list.right_entry = right_offset;
            list.masked_right_entry = right_offset + right - masked_right;
            barrier_arrive(&m->tile_full[taken % TILES]);
        }
        if (taken == 0) dependencies_wait();
        const int slot = taken % Q_SLOTS;
        /* A box that reaches past the sequence is read only where that is past the map too: behind
         * the last sequence there may be no memory. */
        const bool boxed = (a->tma & 1) && heads == 1 && (row + ROWS <= q_len || ends_map);
        const int chunk = lane / X::GROUPS, rows64 = lane % X::GROUPS * 64;
        const int32_t token = (int32_t)q_start + row + rows64;
        const bool copies = boxed && lane < X::GROUPS * CHUNKS;
        /* Rows are in the cache by the time that the results in their place are written. */
        if (copies) prefetch_boxes(q_map, chunk * 64, token, head, batch);
        barrier_wait(&m->q_empty[slot], (taken / Q_SLOTS & 1) ^ 1);
        if (boxed) {
            if (lane == 0) barrier_expect(&m->q_full[slot], CHUNKS * ROWS * 128);
            __syncwarp();
            if (copies)
                copy_boxes(m->q[slot][chunk] + rows64 * 128, q_map, &m->q_full[slot], chunk * 64,
                           token, head, batch);
        } else {
            const uint16_t *q = (const uint16_t *)a->q + batch * c->q_batch +
                                (q_start + row) * c->q_token + head * c->q_head;
            for (int32_t h = 0; h < heads; h++) {
                copy_rows<CHUNKS>(m->q[slot][0], ROWS * 128, h * rows, q + h * c->q_head,
                                  c->q_token, rows, rows, c->head_dim, a->wide & 1);
            }
            fence_async_proxy();
            __syncwarp();
            if (lane == 0) barrier_arrive(&m->q_full[slot]);
        }
        /* Jobs are claimed late, since a workgroup that holds jobs it cannot begin yet leaves
         * others idle at the end: when the last keys of this one are about to be copied, there is
         * just enough time to read what the next one asks for. */
        if (a->counter) {
            barrier_wait(&m->claim, taken & 1);
            if (lane == 0) job_index = atomicAdd((uint32_t *)a->counter, 1u) + gridDim.x;
            job_index = __shfl_sync(~0u, job_index, 0);
        } else {
            const uint32_t round = taken + 1;
            job_index = round * gridDim.x + (round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
        }
        d.read(a, job_index, lane);
    }
}

/* A ring of stages in workgroup memory, and the tensor that it is filled from. */
template <int BYTES, int STAGES> struct ring {
    uint8_t (*stages)[BYTES];
    uint64_t *full, *empty;
    const tess_tensor_map *maps; /* TESS_SM90_MAPS of them */
    const uint16_t *from;
    int64_t batch, token, head; /* strides */
};

/* The producing warps of K and of V: each walks the lists of key blocks, and copies as far ahead as
 * there are stages. */
template <typename X, bool KEEPS_PIECES, int STAGES>
__device__ __forceinline__ void produce_stages(memory<X> *m,
                                               const ring<X::CHUNKS * X::KEYS * 128, STAGES> &to,
                                               const tess_sm90_args *a) {
    constexpr int CHUNKS = X::CHUNKS, KEYS = X::KEYS, PIECE_STAGES = X::PIECE_STAGES;
    const int lane = threadIdx.x % 32;
    const tess_args *c = &a->common;
    const uint32_t *tables = (const uint32_t *)a->tables;
    const int piece_shift = a->piece_shift, piece_tokens = 1 << piece_shift,
              stage_pieces = KEYS >> piece_shift;
    const int block_pieces = (int)c->block >> piece_shift,
              block_shift = block_pieces & (block_pieces - 1) ? -1 : 31 - __clz(block_pieces);
    const bool maps = a->tma & 2;
    uint32_t n = 0;
    for (uint32_t taken = 0;; taken++) {
        const tile *t = &m->tiles[taken % TILES];
        barrier_wait(&m->tile_full[taken % TILES], taken / TILES & 1);
        /* the same for all, and the compiler shall know it */
        const int32_t stages = __shfl_sync(~0u, t->stages, 0);
        if (stages < 0) return;
        const int32_t masked_stages = __shfl_sync(~0u, t->masked_stages, 0), kv_len = t->kv_len,
                      batch = t->batch, kv_head = t->kv_head;
        /* of tensor maps, which have no more tokens */
        const int32_t kv_start = (int32_t)t->kv_start;
        const bool ends_map = (uint32_t)(kv_start + kv_len) == a->kv_tokens;
        const int32_t claim_stage = max(stages - CLAIM_STAGES, 0);
        piece found; /* of 32 pieces, one in each lane */
        for (int32_t i = 0; i < stages; i++, n++) {
            const int32_t first = i * stage_pieces;
            if (KEEPS_PIECES && i == claim_stage && lane == 0) barrier_arrive(&m->claim);
            if (first % 32 == 0)
                found = find_piece(t, first + lane, block_pieces, block_shift, piece_shift,
                                   tables + c->entries_at, tables + c->bits_at);
            if (n == 0) dependencies_wait();
            const int32_t token = __shfl_sync(~0u, found.token, first + lane); /* modulo 32 */
            const bool own = lane < stage_pieces,
                       cut = own && token != NO_TOKEN && token + piece_tokens > kv_len && !ends_map;
            const uint32_t plain =
                /* pieces that plain loads have to copy, since a box would reach past the
                 * sequence's end */
                __ballot_sync(~0u, own && (!maps || cut));
            const int32_t token_of_first = __shfl_sync(~0u, token, 0);
            const bool inside = __all_sync(~0u, !own || token <= kv_len - piece_tokens);
            int together = TESS_SM90_PIECES;
            for (int map = TESS_SM90_RUN; map < TESS_SM90_MAPS; map++) {
                const bool as_map =
                    !own || (uint32_t)token == (uint32_t)token_of_first + lane * a->step[map];
                if (__all_sync(~0u, as_map && a->step[map] != 0 && inside && plain == 0))
                    together = map;
            }
            const int stage = n % STAGES;
            uint8_t *at = to.stages[stage];
            /* a place that was given back with an earlier stage */
            if (KEEPS_PIECES && i < masked_stages) {
                const uint32_t kept = __shfl_sync(~0u, found.kept, first + lane);
                if (own) m->pieces[n % PIECE_STAGES][lane] = {token, kept};
                __syncwarp();
            }
            /* What follows the wait is short: with two stages, keys arrive little before their
             * turn. */
            barrier_wait(&to.empty[stage], (n / STAGES & 1) ^ 1);
            if (together) {
                if (lane == 0) {
                    barrier_expect(&to.full[stage], KEYS * 128 * CHUNKS);
                    for (int chunk = 0; chunk < CHUNKS; chunk++)
                        copy_boxes(at + chunk * KEYS * 128, to.maps + together, &to.full[stage],
                                   chunk * 64, kv_start + token, kv_head, batch);
                }
                __syncwarp();
                continue;
            }
            if (plain) {
                const uint16_t *from =
                    to.from + batch * to.batch + t->kv_start * to.token + kv_head * to.head;
                for (int p = 0; p < stage_pieces; p++) {
                    if (!(plain >> p & 1)) continue;
                    const int32_t x = __shfl_sync(~0u, token, p);
                    copy_rows<CHUNKS>(at, KEYS * 128, p * piece_tokens, from + x * to.token,
                                      to.token, piece_tokens, x == NO_TOKEN ? 0 : kv_len - x,
                                      c->head_dim, a->wide & 2);
                }
                fence_async_proxy();
                __syncwarp();
            }
            if (lane == 0)
                barrier_expect(&to.full[stage],
                               (stage_pieces - __popc(plain)) * piece_tokens * 128 * CHUNKS);
            __syncwarp();
            if (own && !(plain >> lane & 1)) {
#pragma unroll
                for (int chunk = 0; chunk < CHUNKS; chunk++)
                    copy_boxes(at + chunk * KEYS * 128 + lane * piece_tokens * 128,
                               to.maps + TESS_SM90_PIECES, &to.full[stage], chunk * 64,
                               token == NO_TOKEN ? NO_TOKEN : kv_start + token, kv_head, batch);
            }
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(&m->tile_empty[taken % TILES]);
    }
}

/* The fourth producing warp writes results out of workgroup memory, and gives the slots of their
 * tiles back. */
template <typename X>
__device__ __forceinline__ void write_results(memory<X> *m, const tess_tensor_map *o_map,
                                              const tess_sm90_args *a) {
    constexpr int CHUNKS = X::CHUNKS, ROWS = X::ROWS, Q_SLOTS = X::Q_SLOTS;
    /* rows of a box; lanes of a row */
    constexpr int GROUP = 16, LANES = CHUNKS * 8 < 32 ? CHUNKS * 8 : 32;
    const tess_args *c = &a->common;
    const int lane = threadIdx.x % 32, units = (int)c->head_dim / 8, unit = lane % LANES;
    dependencies_wait();
    dependents_begin();
    for (uint32_t taken = 0;; taken++) {
        const tile *t = &m->tiles[taken % TILES];
        barrier_wait(&m->tile_full[taken % TILES], taken / TILES & 1);
        if (__shfl_sync(~0u, t->stages, 0) < 0) break;
        const int slot = taken % Q_SLOTS;
        const int32_t rows = t->rows, head = t->head, batch = t->batch;
        const int32_t all = __shfl_sync(~0u, t->partial == NO_PARTIAL ? rows * t->heads : 0, 0);
        const int64_t first = t->q_start + t->row;
        const bool one_head = t->heads == 1;
        /* Rows past the end are left out of a box where they are outside of the tensor. */
        const bool boxed = (a->tma & 4) && one_head && lane < ROWS / GROUP && lane * GROUP < all &&
                           (lane * GROUP + GROUP <= all || t->last);
        const uint32_t boxes = __ballot_sync(~0u, boxed);
        barrier_wait(&m->o_full[slot], taken / Q_SLOTS & 1);
        if (boxed) {
#pragma unroll
            for (int chunk = 0; chunk < CHUNKS; chunk++)
                copy_boxes_out(o_map, m->q[slot][chunk] + lane * GROUP * 128, chunk * 64,
                               (int32_t)first + lane * GROUP, head, batch);
            copies_out_commit();
        }
        /* The next tile of Q waits for this slot: do not look at rows that boxes hold anyway. */
        const int32_t from = boxes == (1u << (all + GROUP - 1) / GROUP) - 1 ? all : lane / LANES;
        uint16_t *const o =
            (uint16_t *)a->o + batch * c->o_batch + first * c->o_token + head * c->o_head;
        for (int in_tile = from; in_tile < all; in_tile += 32 / LANES) {
            if ((boxes >> in_tile / GROUP & 1) || unit >= units) continue;
            const uint4 x = *(const uint4 *)(m->q[slot][unit / 8] + in_tile * 128 +
                                             ((unit % 8) ^ (in_tile % 8)) * 16);
            uint16_t *to = o + row_at(in_tile, rows, one_head, c->o_token, c->o_head) + unit * 8;
            write_unit(to, x, a->wide & 4);
        }
        copies_out_read();
        fence_async_proxy(); /* the next tile of Q is copied over what plain loads have read */
        __syncwarp();
        if (lane == 0) {
            barrier_arrive(&m->q_empty[slot]);
            barrier_arrive(&m->tile_empty[taken % TILES]);
        }
    }
    copies_out_done();
}
} // namespace tess

#endif // TESS_CUDA_SM90_PRODUCE_CUH
