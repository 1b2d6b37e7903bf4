/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The producer warps of the kernel for Hopper that load. One describes tiles and loads Q, one loads
 * K and one loads V, each as far ahead as its ring is deep. Tile descriptions form a ring, too, so
 * a warp goes on to the next tile without waiting for the others.
 */
#ifndef TESS_CUDA_SM90_LOAD_CUH
#define TESS_CUDA_SM90_LOAD_CUH

#include "ptx.cuh"
#include "schedule.cuh"
#include "tile.cuh"

namespace tess {

/* Copies rows to where a TMA load would put them, from row `first` of the stage on. Rows past
 * `valid` and elements past head_dim become 0. By one warp, which waits for its asynchronous copies
 * afterwards, so that all aligned rows are in flight at once. */
template <int CHUNKS>
__device__ __forceinline__ void copy_rows(uint8_t *to, uint32_t chunk_bytes, int32_t first,
                                          const uint16_t *from, int64_t stride, int32_t rows,
                                          int32_t valid, int32_t head_dim, bool wide) {
    const int lane = threadIdx.x % 32;
    for (int n = lane; n < rows * CHUNKS * 8; n += 32) {
        const int row = n / (CHUNKS * 8), unit = n % (CHUNKS * 8), in_stage = first + row;
        const bool there = row < valid && unit * 8 < head_dim;
        const uint16_t *const own = from + row * stride + unit * 8;
        uint8_t *const at =
            to + unit / 8 * chunk_bytes + in_stage * 128 + ((unit % 8) ^ (in_stage % 8)) * 16;
        if (there && wide)
            cp_async_unit(shared_address(at), own, 16);
        else
            *(uint4 *)at = there ? read_unit(own, false) : make_uint4(0, 0, 0, 0);
    }
}

/* Loads the rows of a tile into its stage of Q, once the O before them has left it. */
template <typename Shape>
__device__ __forceinline__ void load_q(shared_memory<Shape> *m, const tess_tensor_map *q_map,
                                       const tess_sm90_args *a, const job_words &j, uint32_t tile,
                                       int lane) {
    constexpr int CHUNKS = Shape::CHUNKS, ROWS = Shape::ROWS;
    const tess_args *c = &a->common;
    const int q_stage = tile % Shape::Q_STAGES;
    /* A box may reach past the sequence only where that is past the map, too: behind the last
     * sequence there may be no memory. */
    const bool boxed = (a->tma & 1) && j.heads == 1 &&
                       (j.row + ROWS <= j.q_len || (uint32_t)(j.q_start + j.q_len) == a->q_tokens);
    const int chunk = lane / Shape::CONSUMERS, first_row = lane % Shape::CONSUMERS * 64;
    const int32_t token = (int32_t)j.q_start + j.row + first_row;
    const bool copies = boxed && lane < Shape::CONSUMERS * CHUNKS;
    /* Prefetch, so that rows are in L2 by the time O has left their place. */
    if (copies) tma_prefetch(q_map, chunk * 64, token, j.head, j.batch);
    mbarrier_wait(&m->q_empty[q_stage], (tile / Shape::Q_STAGES & 1) ^ 1);
    if (boxed) {
        if (lane == 0) mbarrier_arrive_expect_tx(&m->q_full[q_stage], CHUNKS * ROWS * 128);
        __syncwarp();
        if (copies)
            tma_load(m->q[q_stage][chunk] + first_row * 128, q_map, &m->q_full[q_stage], chunk * 64,
                     token, j.head, j.batch);
    } else {
        const uint16_t *q = (const uint16_t *)a->q + j.batch * c->q_batch +
                            (j.q_start + j.row) * c->q_token + j.head * c->q_head;
        for (int32_t h = 0; h < j.heads; h++) {
            copy_rows<CHUNKS>(m->q[q_stage][0], ROWS * 128, h * j.rows, q + h * c->q_head,
                              c->q_token, j.rows, j.rows, c->head_dim, a->wide & 1);
        }
        /* Clear missing rows: garbage could make large scores, for which the softmax does more
         * work. */
        const int32_t all = j.rows * j.heads;
        copy_rows<CHUNKS>(m->q[q_stage][0], ROWS * 128, all, q, 0, ROWS - all, 0, 0, false);
        cp_async_wait_all();
        fence_async_proxy();
        __syncwarp();
        if (lane == 0) mbarrier_arrive(&m->q_full[q_stage]);
    }
}

/* The first producer warp: describes the tiles of the thread block and loads their rows of Q.
 * `words` are those of its first job; the launch has `jobs`. */
template <typename Shape>
__device__ __forceinline__ void produce_tiles(shared_memory<Shape> *m, const tess_tensor_map *q_map,
                                              const tess_sm90_args *a, uint32_t jobs,
                                              warp_words words) {
    const int lane = threadIdx.x % 32;
    uint32_t job = blockIdx.x;
    for (uint32_t tile = 0;; tile++) {
        tile_info *t = &m->tiles[tile % TILES];
        mbarrier_wait(&m->tile_empty[tile % TILES], (tile / TILES & 1) ^ 1);
        if (job >= jobs) {
            if (lane == 0) {
                t->stages = -1;
                mbarrier_arrive(&m->tile_full[tile % TILES]);
            }
            return;
        }
        job_words j;
        j.read(words);
        describe_tile<Shape>(t, j, a, lane == 0);
        if (lane == 0) mbarrier_arrive(&m->tile_full[tile % TILES]);
        if (tile == 0) grid_dependency_wait();
        load_q<Shape>(m, q_map, a, j, tile, lane);
        job = next_job<Shape>(m, a, tile, lane);
        words.read(a, job, jobs, lane);
    }
}

/* The n-th piece of a tile, and its block. Pieces of a halved stage come first, then empty ones,
 * which have no token, then the others. */
__device__ __forceinline__ piece find_piece(const tile_info *t, int32_t n, int block_pieces,
                                            int block_shift, int piece_shift,
                                            const uint32_t *entries, const uint32_t *bits,
                                            int32_t *block_of) {
    piece x = {NO_TOKEN, ~0u};
    if (n >= t->halved_pieces && (n -= t->empty_pieces) < t->halved_pieces) return x;
    const int32_t nth = block_shift >= 0 ? n >> block_shift : n / block_pieces;
    if (nth >= t->blocks) return x;
    uint32_t entry;
    const uint32_t block = t->block_at(nth, entries, &entry), flags = t->flags;
    *block_of = block;
    x.token = (int32_t)(block * (uint32_t)t->block) + ((n - nth * block_pieces) << piece_shift);
    if (x.token >= t->kv_len) x.token = NO_TOKEN;
    if ((flags & TESS_CLASS_LOCAL) && (block + t->shift) % t->stride != 0)
        x.kept = blocks_below((int32_t)block + (int32_t)t->local - t->first_block);
    if (flags & TESS_CLASS_BITS) x.kept &= bits[entry];
    return x;
}

/* A piece and where it lies: its first token in the sequence's batch of K and V, or in the page
 * that `batch` is then; NO_TOKEN where it is empty. */
struct placed_piece {
    piece x;
    int32_t at, batch;
};

/* A ring of stages in shared memory, and the tensor that it is filled from. */
template <int BYTES, int STAGES> struct kv_ring {
    uint8_t (*stages)[BYTES];
    uint64_t *full, *empty;
    const tess_tensor_map *maps; /* TESS_SM90_MAPS of them */
    const uint16_t *from;
    int64_t batch, token, head; /* strides */
};

/* The second and third producer warps, of K and of V: each walks the key blocks of every tile, and
 * loads as far ahead as its ring has stages. The warp of K tells the consumers about the pieces of
 * masked stages. */
template <typename Shape, bool OF_K, int STAGES> struct kv_loader {
    static constexpr int CHUNKS = Shape::CHUNKS, KEYS = Shape::KEYS;
    /* The next job is claimed when so many stages of a tile remain to be loaded. Its words take
     * about two stages to arrive. */
    static constexpr int CLAIM_STAGES = 3;
    typedef kv_ring<CHUNKS * KEYS * 128, STAGES> ring;

    shared_memory<Shape> *m;
    const ring &to;
    const tess_sm90_args *a;
    int lane, piece_shift, piece_tokens, stage_pieces, block_pieces, block_shift;
    /* of the tile */
    const tile_info *t;
    /* the token that placed_piece.at counts from; tensor maps have at most 2^31 tokens */
    int32_t start;
    int32_t kv_len, kv_head;
    bool ends_map;

    __device__ __forceinline__ kv_loader(shared_memory<Shape> *memory, const ring &stages,
                                         const tess_sm90_args *args)
        : m(memory), to(stages), a(args) {
        lane = threadIdx.x % 32;
        piece_shift = a->piece_shift;
        piece_tokens = 1 << piece_shift;
        stage_pieces = KEYS >> piece_shift;
        block_pieces = (int)a->common.block >> piece_shift;
        block_shift = block_pieces & (block_pieces - 1) ? -1 : 31 - __clz(block_pieces);
    }

    __device__ __forceinline__ bool paged() const {
        return Shape::PLACED && (a->common.flags & TESS_ARGS_PAGED);
    }
    /* K and V lie in pages or by slot. */
    __device__ __forceinline__ bool placed() const {
        return Shape::PLACED && (a->common.flags & (TESS_ARGS_PAGED | TESS_ARGS_COMPACT));
    }

    /* The tile's pieces from the n-th on, one in each of 32 lanes. */
    __device__ __forceinline__ placed_piece find_pieces(int32_t n) const {
        const uint32_t *tables = (const uint32_t *)a->tables;
        placed_piece p;
        int32_t block = 0;
        p.x = find_piece(t, n + lane, block_pieces, block_shift, piece_shift,
                         tables + a->common.entries_at, tables + a->common.bits_at, &block);
        p.at = p.x.token;
        p.batch = t->kv_batch;
        if (placed()) find_place(&p, block);
        return p;
    }

    /* Finds the place of a piece of that block in pages or by slot. Pieces of absent pages become
     * empty. */
    __device__ __forceinline__ void find_place(placed_piece *p, int32_t block) const {
        const uint32_t *slots = t->slots;
        if (p->x.token == NO_TOKEN) return;
        if (slots) {
            const uint32_t slot = slots[(uint64_t)block * TESS_SLOT_WORDS + TESS_WORD_SLOT_SLOT];
            p->at += ((int32_t)slot - block) * (int32_t)a->common.block;
        } else {
            p->at += (int32_t)t->kv_start;
        }
        if (!paged()) return;
        const int32_t page_shift = 31 - __clz((int32_t)a->common.page);
        p->batch = t->block_table[p->at >> page_shift];
        p->at &= (1 << page_shift) - 1;
        if ((uint32_t)p->batch >= a->common.pages) p->x.token = p->at = NO_TOKEN;
    }

    /* The map that loads a whole stage at once, or TESS_SM90_PIECES. Lanes below stage_pieces
     * `own` a piece. */
    __device__ __forceinline__ int choose_map(bool own, const placed_piece &p,
                                              uint32_t plain) const {
        const int32_t first = __shfl_sync(~0u, p.at, 0),
                      batch_of_first = __shfl_sync(~0u, p.batch, 0);
        const bool inside = __all_sync(
            ~0u, !own || (p.x.token <= kv_len - piece_tokens && p.batch == batch_of_first));
        int chosen = TESS_SM90_PIECES;
        for (int map = TESS_SM90_RUN; map < TESS_SM90_MAPS; map++) {
            const bool as_map = !own || (uint32_t)p.at == (uint32_t)first + lane * a->step[map];
            if (__all_sync(~0u, as_map && a->step[map] != 0 && inside && plain == 0)) chosen = map;
        }
        return chosen;
    }

    __device__ __forceinline__ void load_whole(int stage, int map, int32_t at,
                                               int32_t batch) const {
        if (lane == 0) {
            mbarrier_arrive_expect_tx(&to.full[stage], KEYS * 128 * CHUNKS);
            for (int chunk = 0; chunk < CHUNKS; chunk++)
                tma_load(to.stages[stage] + chunk * KEYS * 128, to.maps + map, &to.full[stage],
                         chunk * 64, start + at, kv_head, batch);
        }
        __syncwarp();
    }

    /* Loads a stage piece by piece. Pieces with a bit in `plain` are copied without TMA. */
    __device__ __forceinline__ void load_pieces(int stage, bool own, const placed_piece &own_piece,
                                                uint32_t plain) const {
        uint8_t *at = to.stages[stage];
        if (plain) {
            const uint16_t *from =
                to.from + (placed() ? 0 : t->kv_start) * to.token + kv_head * to.head;
            for (int p = 0; p < stage_pieces; p++) {
                if (!(plain >> p & 1)) continue;
                const int32_t token = __shfl_sync(~0u, own_piece.x.token, p),
                              first = __shfl_sync(~0u, own_piece.at, p),
                              batch = __shfl_sync(~0u, own_piece.batch, p);
                copy_rows<CHUNKS>(at, KEYS * 128, p * piece_tokens,
                                  from + batch * to.batch + first * to.token, to.token,
                                  piece_tokens, token == NO_TOKEN ? 0 : kv_len - token,
                                  a->common.head_dim, a->wide & 2);
            }
            cp_async_wait_all();
            fence_async_proxy();
            __syncwarp();
        }
        if (lane == 0)
            mbarrier_arrive_expect_tx(&to.full[stage],
                                      (stage_pieces - __popc(plain)) * piece_tokens * 128 * CHUNKS);
        __syncwarp();
        if (own && !(plain >> lane & 1)) {
#pragma unroll
            for (int chunk = 0; chunk < CHUNKS; chunk++)
                tma_load(at + chunk * KEYS * 128 + lane * piece_tokens * 128,
                         to.maps + TESS_SM90_PIECES, &to.full[stage], chunk * 64,
                         own_piece.at == NO_TOKEN ? NO_TOKEN : start + own_piece.at, kv_head,
                         own_piece.batch);
        }
    }

    /* Loads stage n, counted through all tiles. Its pieces are in the lanes from `first` on, modulo
     * 32. */
    __device__ __forceinline__ void load_stage(uint32_t n, int32_t first, const placed_piece &found,
                                               bool masked) const {
        const int stage = n % STAGES;
        placed_piece p; /* shuffles take the lane modulo 32 */
        p.x.token = __shfl_sync(~0u, found.x.token, first + lane);
        p.at = __shfl_sync(~0u, found.at, first + lane);
        p.batch = __shfl_sync(~0u, found.batch, first + lane);
        const bool own = lane < stage_pieces, empty = p.x.token == NO_TOKEN,
                   cut = own && !empty && p.x.token + piece_tokens > kv_len && !ends_map;
        /* pieces to copy without TMA, for example where a box would reach past the sequence's
         * end */
        const uint32_t plain = __ballot_sync(~0u, own && (!(a->tma & 2) || cut));
        const int map = choose_map(own, p, plain);
        /* This entry is free: the consumers released it with an earlier stage. */
        if (OF_K && paged()) {
            const uint32_t absent = __ballot_sync(~0u, own && empty);
            if (lane == 0) m->holes[n % Shape::PIECE_STAGES] = absent;
            masked |= absent != 0;
        }
        if (OF_K && masked) {
            p.x.kept = __shfl_sync(~0u, found.x.kept, first + lane);
            if (own) m->pieces[n % Shape::PIECE_STAGES][lane] = p.x;
            __syncwarp();
        }
        /* Keep what follows the wait short: with two stages, keys arrive barely before they are
         * needed. */
        mbarrier_wait(&to.empty[stage], (n / STAGES & 1) ^ 1);
        if (map)
            load_whole(stage, map, p.at, p.batch);
        else
            load_pieces(stage, own, p, plain);
    }

    __device__ __forceinline__ void run() {
        uint32_t n = 0;                      /* stages of all tiles */
        if (paged()) grid_dependency_wait(); /* a kernel may have written the block table */
        for (uint32_t tile = 0;; tile++) {
            t = &m->tiles[tile % TILES];
            mbarrier_wait(&m->tile_full[tile % TILES], tile / TILES & 1);
            /* the shuffle tells the compiler that the value is uniform across the warp */
            const int32_t stages = __shfl_sync(~0u, t->stages, 0);
            if (stages < 0) return;
            const int32_t masked_stages = __shfl_sync(~0u, t->masked_stages, 0);
            kv_len = t->kv_len;
            kv_head = t->kv_head;
            start = placed() ? 0 : (int32_t)t->kv_start;
            ends_map = !placed() && (uint32_t)(start + kv_len) == a->kv_tokens;
            const int32_t claim_stage = max(stages - CLAIM_STAGES, 0);
            placed_piece found; /* of 32 pieces, one in each lane */
            for (int32_t i = 0; i < stages; i++, n++) {
                const int32_t first = i * stage_pieces;
                if (OF_K && i == claim_stage && lane == 0) mbarrier_arrive(&m->claim);
                if (first % 32 == 0) found = find_pieces(first);
                if (n == 0) grid_dependency_wait();
                load_stage(n, first, found, i < masked_stages);
            }
            __syncwarp();
            if (lane == 0) mbarrier_arrive(&m->tile_empty[tile % TILES]);
        }
    }
};

} // namespace tess

#endif // TESS_CUDA_SM90_LOAD_CUH
