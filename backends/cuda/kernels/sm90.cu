/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forward attention for Hopper (sm_90a): tensor memory copies, warpgroup matrix products, persistent workgroups of three warpgroups.
 *
 * The first warpgroup produces: one warp walks the jobs, and for each the list of its key blocks, and copies Q, K and V into rings in workgroup memory, running ahead
 * into the next job. The two others consume, 64 query rows each: S = Q K^T from workgroup memory, softmax in registers, O += P V with P in registers. The product
 * of the next keys is under way while a warpgroup is in its softmax, and the two take turns in issuing products, so that one multiplies while the other exponentiates.
 *
 * Keys come in stages of KEYS, made of pieces of up to 64 tokens that need not be neighbours: the order of keys does not matter to a softmax. Pieces that must be masked come first
 * (preceded by empty ones, so that stages are full), and all later stages run without any test.
 *
 * The technique of overlapping within and between warpgroups is that of FlashAttention-3 (arXiv 2407.08608).
 */
#include "sm90_args.h"
#include "types.cuh"
#include "wgmma.cuh"

struct alignas(64) tess_tensor_map {
    uint64_t words[16];
};

namespace tess {

enum {
    ROWS = 128,    /* of a tile */
    THREADS = 384, /* one producing warpgroup and two consuming ones */
    CONSUMER_WARPS = 8,
    MOST_PIECES = 16, /* of a stage */
    NO_PARTIAL = -1,
    NO_TOKEN = 0x7fff0000, /* token of an empty piece; past every length */
};

enum { CLASS_CAUSAL = 1, CLASS_LOCAL = 2, CLASS_WINDOW = 4, CLASS_BITS = 8, CLASS_MASK_ENTRIES = 16 };

/* What consumers need to know of a job. */
struct tile {
    int32_t stages; /* negative: there are no more jobs */
    int32_t masked_stages;
    int32_t rows, heads, head, row;
    int32_t last; /* rows behind the tile's are outside of the tensors */
    int32_t partial;
    int32_t position; /* of the tile's first row */
    int32_t kv_len, first_block;
    int32_t batch;
    uint32_t flags;
    int32_t left, right, sinks;
    int32_t block;
    int64_t q_start;
};

struct piece {
    int32_t token;
    uint32_t kept; /* bit n: rows of the tile's n-th query block keep keys of it, as far as token bounds allow */
};

/* Blocks of a job in the order in which they are taken: those to be masked first. */
struct block_list {
    int32_t tail, head, masked_left, masked_right, middle, left; /* how many of each */
    uint32_t tail_start, head_start, middle_start;               /* key blocks */
    uint32_t left_entry, masked_left_entry, right_entry, masked_right_entry;
    /* The key block, and where its bits are. */
    __device__ __forceinline__ uint32_t at(int32_t n, uint32_t *entry, const uint32_t *entries) const {
        *entry = 0;
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
        return entries[*entry = right_entry + (n - left)];
    }
};

template <int D, int KEYS, int Q_SLOTS, int K_STAGES, int V_STAGES> struct alignas(1024) memory {
    static constexpr int CHUNKS = (D + 63) / 64; /* columns of 64 elements: rows of 128 bytes, which is what the copies swizzle */
    uint8_t q[Q_SLOTS][CHUNKS][ROWS * 128];      /* of a tile, and then its results on their way out */
    uint8_t k[K_STAGES][CHUNKS][KEYS * 128];
    uint8_t v[V_STAGES][CHUNKS][KEYS * 128];
    uint64_t q_full[Q_SLOTS], q_empty[Q_SLOTS], k_full[K_STAGES], k_empty[K_STAGES], v_full[V_STAGES], v_empty[V_STAGES];
    tile tiles[Q_SLOTS];
    piece pieces[K_STAGES][MOST_PIECES];
    block_list list; /* of the producing warp */
};

/* ------------------------------------------------------------------ instructions */

__device__ __forceinline__ uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void barrier_init(uint64_t *b, uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(count));
}
__device__ __forceinline__ void barrier_arrive(uint64_t *b) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
__device__ __forceinline__ void barrier_expect(uint64_t *b, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint64_t *b, uint32_t parity) {
    asm volatile("{\n.reg .pred done;\n"
                 "again:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n}" ::"r"(shared_address(b)),
                 "r"(parity)
                 : "memory");
}

__device__ __forceinline__ void copy_box(void *to, const tess_tensor_map *map, uint64_t *full, int32_t element, int32_t token, int32_t head,
                                         int32_t batch) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared_address(to)),
        "l"(map), "r"(shared_address(full)), "r"(element), "r"(token), "r"(head), "r"(batch)
        : "memory");
}

/* The other way, to where the tensor has rows and elements. By one thread, which waits for its own copies: until they have read workgroup memory, or until they are done. */
__device__ __forceinline__ void copy_box_out(const tess_tensor_map *map, const void *from, int32_t element, int32_t token, int32_t head, int32_t batch) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map), "r"(shared_address(from)),
                 "r"(element), "r"(token), "r"(head), "r"(batch)
                 : "memory");
}
__device__ __forceinline__ void copies_out_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ __forceinline__ void copies_out_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ __forceinline__ void copies_out_done() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ __forceinline__ void products_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }

/* Products write registers behind the compiler's back: nothing that reads them may move above the wait. */
template <int N> __device__ __forceinline__ void keep_below(float (&r)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(r[i])::"memory");
}

__device__ __forceinline__ void turn_wait(int turn) { asm volatile("bar.sync %0, 256;" ::"r"(turn) : "memory"); }
__device__ __forceinline__ void turn_give(int turn) { asm volatile("bar.arrive %0, 256;" ::"r"(turn) : "memory"); }

__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float natural_log(float x) {
    float y;
    asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y * 0.69314718055994531f;
}

template <typename T> __device__ __forceinline__ uint32_t pack(float low, float high);
template <> __device__ __forceinline__ uint32_t pack<bf16_t>(float low, float high) {
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
template <> __device__ __forceinline__ uint32_t pack<f16_t>(float low, float high) {
    uint32_t r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

/* A matrix in workgroup memory with rows of 128 bytes, swizzled. K-major: `leading` is not used. N-major: bytes from one 64 columns to the next. */
__device__ __forceinline__ uint64_t matrix(const void *at, uint32_t leading) {
    uint64_t d = (uint64_t)((shared_address(at) & 0x3ffff) >> 4);
    d |= (uint64_t)(leading >> 4) << 16;
    d |= (uint64_t)(1024 >> 4) << 32; /* from 8 rows to the next 8 */
    d |= (uint64_t)1 << 62;           /* swizzled over 128 bytes */
    return d;
}

/* ------------------------------------------------------------------ the producing warp */

/* One 16-byte unit of a row that may be aligned to its elements only. */
__device__ __forceinline__ uint4 load_unit(const uint16_t *p, bool wide) {
    if (wide) return *(const uint4 *)p;
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; i++) w[i] = (uint32_t)p[2 * i] | (uint32_t)p[2 * i + 1] << 16;
    return make_uint4(w[0], w[1], w[2], w[3]);
}

/* Copies rows by plain loads to where a copy of a box would have put them; rows past `valid`, and elements past head_dim, become 0. By one warp. */
template <int CHUNKS>
__device__ __noinline__ void copy_rows(uint8_t *to, uint32_t chunk_bytes, const uint16_t *from, int64_t stride, int32_t rows, int32_t valid,
                                       int32_t head_dim, bool wide) {
    const int lane = threadIdx.x % 32;
    for (int n = lane; n < rows * CHUNKS * 8; n += 32) {
        const int row = n / (CHUNKS * 8), unit = n % (CHUNKS * 8);
        uint4 x = make_uint4(0, 0, 0, 0);
        if (row < valid && unit * 8 < head_dim) x = load_unit(from + row * stride + unit * 8, wide);
        uint8_t *at = to + unit / 8 * chunk_bytes + row * 128 + ((unit % 8) ^ (row % 8)) * 16;
        *(uint4 *)at = x;
    }
}

/* A job and its sequence and class, one word in each lane. */
struct description {
    uint32_t job, sequence, cls;

    __device__ __forceinline__ void read_job(const uint32_t *tables, const tess_args *c, uint32_t index, int lane) {
        job = index < c->items && lane < 12 ? tables[c->items_at + (uint64_t)index * 12 + lane] : 0;
    }
    __device__ __forceinline__ void read_rest(const uint32_t *tables, const tess_args *c, int lane) {
        const uint32_t which_sequence = job_word(0), which_class = job_word(3) >> 16;
        sequence = lane < 10 ? tables[c->sequences_at + (uint64_t)which_sequence * 10 + lane] : 0;
        cls = lane < 12 ? tables[c->classes_at + which_class * 12 + lane] : 0;
    }
    __device__ __forceinline__ uint32_t job_word(int n) const { return __shfl_sync(~0u, job, n); }
    __device__ __forceinline__ uint32_t sequence_word(int n) const { return __shfl_sync(~0u, sequence, n); }
    __device__ __forceinline__ uint32_t class_word(int n) const { return __shfl_sync(~0u, cls, n); }
};

__device__ __forceinline__ int32_t floor_div(int32_t a, int32_t b) { return a / b - (a % b < 0); }

template <int D, int KEYS, int Q_SLOTS, int K_STAGES, int V_STAGES>
__device__ __forceinline__ void produce(memory<D, KEYS, Q_SLOTS, K_STAGES, V_STAGES> *m, const tess_tensor_map *q_map, const tess_tensor_map *k_map,
                                        const tess_tensor_map *v_map, const tess_sm90_args *a) {
    constexpr int CHUNKS = memory<D, KEYS, Q_SLOTS, K_STAGES, V_STAGES>::CHUNKS;
    const int lane = threadIdx.x % 32;
    const uint32_t *tables = (const uint32_t *)a->tables;
    const tess_args *c = &a->common;
    const int piece_shift = a->piece_shift, piece_tokens = 1 << piece_shift, stage_pieces = KEYS >> piece_shift;
    const int block_pieces = (int)c->block >> piece_shift, block_shift = block_pieces & (block_pieces - 1) ? -1 : 31 - __clz(block_pieces);
    const bool kv_maps = a->tma & 2;
    uint32_t job_index = blockIdx.x, taken = 0, loaded = 0;
    description d;
    d.read_job(tables, c, job_index, lane);
    d.read_rest(tables, c, lane);
    for (;; taken++) {
        const int slot = taken % Q_SLOTS;
        const bool more = job_index < c->items;
        barrier_wait(&m->q_empty[slot], (taken / Q_SLOTS & 1) ^ 1);
        tile *t = &m->tiles[slot];
        if (!more) {
            if (lane == 0) {
                t->stages = -1;
                barrier_arrive(&m->q_full[slot]);
            }
            return;
        }
        const uint32_t w1 = d.job_word(1), w3 = d.job_word(3), w10 = d.job_word(10);
        const int32_t head = w1 & 0xffff, heads = w1 >> 16, row = d.job_word(2), rows = w3 & 0xffff;
        const int32_t batch = d.sequence_word(4), q_len = d.sequence_word(5), kv_len = d.sequence_word(6);
        const int64_t q_start = (int64_t)((uint64_t)d.sequence_word(1) << 32 | d.sequence_word(0));
        const int64_t kv_start = (int64_t)((uint64_t)d.sequence_word(3) << 32 | d.sequence_word(2));
        const uint32_t flags = d.class_word(0), local = d.class_word(1), stride = d.class_word(2), residue = d.class_word(3);
        const int32_t d_partial = d.job_word(11), window_left = d.class_word(4), window_right = d.class_word(5), sinks = d.class_word(6);
        const int32_t position = kv_len - q_len + row, first_block = floor_div(position, c->block);
        const int32_t kv_head = head / c->group;

        const uint32_t *entries = tables + c->entries_at;
        const int32_t interval_start = d.job_word(8), interval = d.job_word(9), left = d.job_word(5), right = d.job_word(7);
        const uint32_t left_offset = d.job_word(4), right_offset = d.job_word(6);
        const uint32_t last_block = kv_len % (int32_t)c->block ? kv_len / c->block : ~0u; /* the block that ends early, if any */
        const int32_t head_blocks = w10 & 0xffff;
        int32_t tail_blocks = w10 >> 16;
        if (interval > 0 && tail_blocks == 0 && head_blocks < interval && interval_start + interval - 1 == (int32_t)last_block) tail_blocks = 1;
        const bool all = flags & CLASS_MASK_ENTRIES, ends_early = last_block != ~0u;
        const int32_t masked_left = all ? left : left > 0 && ends_early && entries[left_offset + left - 1] == last_block;
        const int32_t masked_right = all ? right : right > 0 && ends_early && entries[right_offset + right - 1] == last_block;
        if (lane == 0) {
            block_list &list = m->list;
            list.head = head_blocks;
            list.tail = tail_blocks;
            list.masked_left = masked_left;
            list.masked_right = masked_right;
            list.middle = interval - head_blocks - tail_blocks;
            list.left = left - masked_left;
            list.tail_start = interval_start + interval - tail_blocks;
            list.head_start = interval_start;
            list.middle_start = interval_start + head_blocks;
            list.left_entry = left_offset;
            list.masked_left_entry = left_offset + left - masked_left;
            list.right_entry = right_offset;
            list.masked_right_entry = right_offset + right - masked_right;
        }
        __syncwarp();

        const int32_t masked = (tail_blocks + head_blocks + masked_left + masked_right) * block_pieces;
        const int32_t total = (interval + left + right) * block_pieces;
        /* At least one, if need be of empty pieces, so that a tile without keys is no special case. */
        const int32_t stages = max((total + stage_pieces - 1) / stage_pieces, 1), empty = stages * stage_pieces - total;
        const int32_t masked_stages = (empty + masked + stage_pieces - 1) / stage_pieces;

        if (lane == 0) {
            t->stages = stages;
            t->masked_stages = masked_stages;
            t->rows = rows;
            t->heads = heads;
            t->head = head;
            t->row = row;
            t->partial = d_partial;
            t->position = position;
            t->kv_len = kv_len;
            t->first_block = first_block;
            t->batch = batch;
            t->flags = flags;
            t->left = window_left;
            t->right = window_right;
            t->sinks = flags & CLASS_WINDOW ? sinks : 0;
            t->block = c->block;
            t->q_start = q_start;
            t->last = row + rows == q_len && (uint32_t)(q_start + q_len) == a->q_tokens;
        }
        /* A box that reaches past the sequence is read only where that is past the map too: behind the last sequence there may be no memory. */
        const bool q_map_used = (a->tma & 1) && heads == 1 && (row + ROWS <= q_len || (uint32_t)(q_start + q_len) == a->q_tokens);
        if (!q_map_used) {
            const uint16_t *q = (const uint16_t *)a->q + batch * c->q_batch + (q_start + row) * c->q_token;
            for (int32_t h = 0; h < heads; h++) {
                /* Swizzling looks at the row's number in the tile, so heads are copied row by row where they do not begin at a multiple of 8. */
                if (h * rows % 8 == 0) {
                    copy_rows<CHUNKS>(m->q[slot][0] + h * rows * 128, ROWS * 128, q + (head + h) * c->q_head, c->q_token, rows, rows, c->head_dim,
                                      a->wide & 1);
                } else {
                    for (int32_t r = 0; r < rows; r++) {
                        const int32_t in = h * rows + r;
                        for (int unit = lane; unit < CHUNKS * 8; unit += 32) {
                            uint4 x = make_uint4(0, 0, 0, 0);
                            if (unit * 8 < (int)c->head_dim) x = load_unit(q + (head + h) * c->q_head + r * c->q_token + unit * 8, a->wide & 1);
                            *(uint4 *)(m->q[slot][unit / 8] + in * 128 + ((unit % 8) ^ (in % 8)) * 16) = x;
                        }
                    }
                }
            }
            fence_async_proxy();
        }
        __syncwarp();
        if (q_map_used) {
            if (lane == 0) barrier_expect(&m->q_full[slot], CHUNKS * ROWS * 128);
            __syncwarp();
            if (lane < 2 * CHUNKS)
                copy_box(m->q[slot][lane / 2] + lane % 2 * 64 * 128, q_map, &m->q_full[slot], lane / 2 * 64, (int32_t)q_start + row + lane % 2 * 64,
                         head, batch);
        } else if (lane == 0) {
            barrier_arrive(&m->q_full[slot]);
        }

        /* The next job's number, and then its words, are on their way while this job's keys are copied. */
        uint32_t next = 0;
        if (a->counter) {
            if (lane == 0) next = atomicAdd((uint32_t *)a->counter, 1u) + gridDim.x;
        } else {
            const uint32_t round = taken + 1;
            next = round * gridDim.x + (round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
        }

        /* Values follow one stage behind the keys, which is the order in which they are consumed. */
        int32_t token = NO_TOKEN, token_before = NO_TOKEN;
        uint32_t plain = 0, plain_before = 0; /* pieces that plain loads have to copy, since a box would reach past the sequence's end */
        bool cut = false, cut_before = false;
        /* The piece of this lane in stage i. It is found one stage ahead, since that may wait for memory. */
        auto find_piece = [&](int32_t i) {
            piece x = {NO_TOKEN, ~0u};
            const int32_t p = i * stage_pieces + lane - empty;
            if (lane >= stage_pieces || i >= stages || p < 0) return x;
            const int32_t nth = block_shift >= 0 ? p >> block_shift : p / block_pieces;
            uint32_t entry;
            const uint32_t block = m->list.at(nth, &entry, tables + c->entries_at);
            x.token = (int32_t)(block * c->block) + ((p - nth * block_pieces) << piece_shift);
            if (x.token >= kv_len) x.token = NO_TOKEN;
            if (i >= masked_stages) return x;
            if ((flags & CLASS_LOCAL) && (block + residue) % stride != 0) {
                const int32_t blocks = (int32_t)block + (int32_t)local - first_block; /* query blocks below it keep the block */
                x.kept = blocks <= 0 ? 0 : blocks >= 32 ? ~0u : (1u << blocks) - 1;
            }
            if (flags & CLASS_BITS) x.kept &= tables[c->bits_at + entry];
            return x;
        };
        piece ahead = find_piece(0);
        const bool ends_map = (uint32_t)(kv_start + kv_len) == a->kv_tokens;
        for (int32_t i = 0; i <= stages; i++) {
            if (i < stages) {
                const uint32_t n = loaded + i;
                const int stage = n % K_STAGES;
                token = ahead.token;
                plain = __ballot_sync(~0u, cut = token != NO_TOKEN && token + piece_tokens > kv_len && !ends_map);
                barrier_wait(&m->k_empty[stage], (n / K_STAGES & 1) ^ 1);
                if (i < masked_stages && lane < stage_pieces) { m->pieces[stage][lane] = ahead; }
                if (plain || !kv_maps) {
                    for (int p = 0; p < stage_pieces; p++) {
                        if (kv_maps && !(plain >> p & 1)) continue;
                        const int32_t at = __shfl_sync(~0u, token, p);
                        const uint16_t *k = (const uint16_t *)a->k + batch * c->k_batch + (kv_start + at) * c->k_token + kv_head * c->k_head;
                        copy_rows<CHUNKS>(m->k[stage][0] + p * piece_tokens * 128, KEYS * 128, k, c->k_token, piece_tokens,
                                          at == NO_TOKEN ? 0 : kv_len - at, c->head_dim, a->wide & 2);
                    }
                    fence_async_proxy();
                }
                __syncwarp();
                const int boxes = kv_maps ? stage_pieces - __popc(plain) : 0;
                if (lane == 0) barrier_expect(&m->k_full[stage], boxes * piece_tokens * 128 * CHUNKS);
                __syncwarp();
                if (kv_maps && lane < stage_pieces && !cut) {
#pragma unroll
                    for (int chunk = 0; chunk < CHUNKS; chunk++)
                        copy_box(m->k[stage][chunk] + lane * piece_tokens * 128, k_map, &m->k_full[stage], chunk * 64,
                                 token == NO_TOKEN ? NO_TOKEN : (int32_t)kv_start + token, kv_head, batch);
                }
            }
            ahead = find_piece(i + 1);
            if (i > 0) {
                const uint32_t n = loaded + i - 1;
                const int stage = n % V_STAGES;
                barrier_wait(&m->v_empty[stage], (n / V_STAGES & 1) ^ 1);
                if (plain_before || !kv_maps) {
                    for (int p = 0; p < stage_pieces; p++) {
                        if (kv_maps && !(plain_before >> p & 1)) continue;
                        const int32_t at = __shfl_sync(~0u, token_before, p);
                        const uint16_t *v = (const uint16_t *)a->v + batch * c->v_batch + (kv_start + at) * c->v_token + kv_head * c->v_head;
                        copy_rows<CHUNKS>(m->v[stage][0] + p * piece_tokens * 128, KEYS * 128, v, c->v_token, piece_tokens,
                                          at == NO_TOKEN ? 0 : kv_len - at, c->head_dim, a->wide & 2);
                    }
                    fence_async_proxy();
                }
                __syncwarp();
                const int boxes = kv_maps ? stage_pieces - __popc(plain_before) : 0;
                if (lane == 0) barrier_expect(&m->v_full[stage], boxes * piece_tokens * 128 * CHUNKS);
                __syncwarp();
                if (kv_maps && lane < stage_pieces && !cut_before) {
#pragma unroll
                    for (int chunk = 0; chunk < CHUNKS; chunk++)
                        copy_box(m->v[stage][chunk] + lane * piece_tokens * 128, v_map, &m->v_full[stage], chunk * 64,
                                 token_before == NO_TOKEN ? NO_TOKEN : (int32_t)kv_start + token_before, kv_head, batch);
                }
            }
            token_before = token;
            plain_before = plain;
            cut_before = cut;
            if (i == 1) {
                job_index = __shfl_sync(~0u, next, 0);
                d.read_job(tables, c, job_index, lane);
            }
            if (i == min(stages, 2)) d.read_rest(tables, c, lane);
        }
        loaded += stages;
    }
}

/* ------------------------------------------------------------------ the consuming warpgroups */

/* Replaces scores that must not count by -inf. Thread layout of an accumulator: rows lane / 4 and that + 8 of the warp's 16, columns 8 n + lane % 4 * 2 + {0, 1}. */
template <int KEYS> __device__ __forceinline__ void mask(float (&s)[KEYS / 2], const piece *pieces, const tile *t, int piece_shift, int row) {
    const int column = threadIdx.x % 4 * 2, last = t->rows * t->heads - 1, piece_mask = (1 << piece_shift) - 1;
    int32_t cap[2], low[2], high[2];
    int shift[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int in_tile = min(row + 8 * r, last), p = t->position + in_tile % t->rows;
        cap[r] = t->flags & CLASS_CAUSAL ? min(p, t->kv_len - 1) : t->kv_len - 1;
        low[r] = 0;
        high[r] = cap[r];
        if (t->flags & CLASS_WINDOW) {
            if (t->left != 0x7fffffff) low[r] = (int32_t)max((long long)p - t->left, 0ll);
            if (t->right != 0x7fffffff) high[r] = (int32_t)min((long long)cap[r], (long long)p + t->right);
        }
        cap[r] = max(cap[r], -1); /* rows before the first key */
        high[r] = max(high[r], -1);
        shift[r] = floor_div(p, t->block) - t->first_block;
    }
    if (!(t->flags & CLASS_WINDOW)) { /* one bound a row, which moves with the columns of a piece */
        int32_t below[2] = {-1, -1};
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
            if ((8 * n & piece_mask) == 0) {
                const piece x = pieces[8 * n >> piece_shift];
#pragma unroll
                for (int r = 0; r < 2; r++) below[r] = x.kept >> shift[r] & 1 ? high[r] - x.token - column : -1;
            } else {
                below[0] -= 8;
                below[1] -= 8;
            }
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (below[e / 2] < e % 2) s[4 * n + e] = __int_as_float(0xff800000);
        }
        return;
    }
    const int32_t sinks = t->sinks;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) {
        const piece x = pieces[8 * n >> piece_shift];
        const int32_t token = x.token + (8 * n & piece_mask) + column;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const bool sink = token < sinks; /* an odd number of sinks ends between the two columns; the second one is then looked at below */
            const int32_t above = (sink ? 0 : low[r]) - token, below = (x.kept >> shift[r] & 1) ? (sink ? cap[r] : high[r]) - token : -1;
            if (above > 0 || below < 0) s[4 * n + 2 * r] = __int_as_float(0xff800000);
            const int32_t above_next = token + 1 < sinks ? 0 : low[r] - token;
            const int32_t below_next = (x.kept >> shift[r] & 1) ? (token + 1 < sinks ? cap[r] : high[r]) - token : -1;
            if (above_next > 1 || below_next < 1) s[4 * n + 2 * r + 1] = __int_as_float(0xff800000);
        }
    }
}

#define MINUS_INFINITY __int_as_float(0xff800000)

/* One of the two consuming warpgroups: what a thread holds, and the steps that it takes. */
template <typename T, int D, int KEYS, int Q_SLOTS, int K_STAGES, int V_STAGES> struct consumer {
    typedef memory<D, KEYS, Q_SLOTS, K_STAGES, V_STAGES> shared;
    enum { CHUNKS = shared::CHUNKS, S = KEYS / 2, O = D / 2, PRIMES = Q_SLOTS > 1, COLUMN = ROWS * 128 };

    shared *m;
    const tess_tensor_map *o_map;
    const tess_sm90_args *a;
    int group, warp, lane, row;      /* row: the thread's first one in the tile, the other is 8 below */
    float scale, slope;              /* of the scores; the same in exponents of 2 */
    float s[S], o[O];                /* scores and then exponentials; results */
    uint32_t p[KEYS / 16][4];        /* exponentials as the operand of the second product */
    float top[2], sum[2], factor[2]; /* of the two rows: the score that exponentials are relative to, their sum, and what O has to be multiplied by */

    __device__ __forceinline__ void issue_scores(const uint8_t *q_rows, uint32_t n) { /* S = Q K^T */
        const uint64_t q = matrix(q_rows, 16), k = matrix(m->k[n % K_STAGES][0], 16);
        products_begin();
#pragma unroll
        for (int x = 0; x < (D + 15) / 16; x++)
            wgmma<T, KEYS>::ss(s, q + (x / 4 * ROWS * 128 + x % 4 * 32 >> 4), k + (x / 4 * KEYS * 128 + x % 4 * 32 >> 4), x > 0);
        products_commit();
    }

    __device__ __forceinline__ void issue_values(uint32_t n, bool first) { /* O += P V, or = for the first keys of a tile */
        const uint64_t v = matrix(m->v[n % V_STAGES][0], KEYS * 128);
        products_begin();
#pragma unroll
        for (int x = 0; x < KEYS / 16; x++) wgmma<T, D>::rs(o, p[x], v + (x * 16 * 128 >> 4), x > 0 || !first);
        products_commit();
    }

    __device__ __forceinline__ const uint8_t *q_rows(int slot) const { return m->q[slot][0] + group * 64 * 128; }

    /* Turns scores into exponentials. */
    __device__ __forceinline__ void softmax(const tile *t, bool masked, uint32_t n) {
        if (a->common.scale < 0) {
#pragma unroll
            for (int x = 0; x < S; x++) s[x] = -s[x];
        }
        if (masked) mask<KEYS>(s, m->pieces[n % K_STAGES], t, a->piece_shift, row);
        __syncwarp();
        if (lane == 0) barrier_arrive(&m->k_empty[n % K_STAGES]);
        float most[2] = {s[0], s[2]}, bias[2];
#pragma unroll
        for (int x = 0; x < S; x += 4) {
            most[0] = fmaxf(most[0], fmaxf(s[x], s[x + 1]));
            most[1] = fmaxf(most[1], fmaxf(s[x + 2], s[x + 3]));
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 1));
            most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 2));
            /* The reference follows the largest score only when that makes a factor of more than 2^8: exponentials stay bounded, and O is rarely multiplied. */
            const bool rises = (most[r] - top[r]) * slope > 8.0f;
            factor[r] = rises ? exp2_fast((top[r] - most[r]) * slope) : 1.0f;
            if (rises) top[r] = most[r];
            bias[r] = top[r] == MINUS_INFINITY ? 0.0f : top[r] * slope;
            sum[r] *= factor[r];
        }
        if (fabsf(bias[0]) > 0x1p14f || fabsf(bias[1]) > 0x1p14f) { /* a product that large has lost bits which the difference keeps */
            float above[2];
#pragma unroll
            for (int r = 0; r < 2; r++) { /* each row for itself: its bits must not depend on its neighbour, which may be no row at all */
                const bool large = fabsf(bias[r]) > 0x1p14f;
                above[r] = large ? top[r] : 0.0f;
                if (large) bias[r] = 0;
            }
#pragma unroll
            for (int x = 0; x < S; x++) s[x] -= above[x / 2 % 2];
        }
#pragma unroll
        for (int x = 0; x < S; x += 4) {
            s[x] = exp2_fast(fmaf(s[x], slope, -bias[0]));
            s[x + 1] = exp2_fast(fmaf(s[x + 1], slope, -bias[0]));
            s[x + 2] = exp2_fast(fmaf(s[x + 2], slope, -bias[1]));
            s[x + 3] = exp2_fast(fmaf(s[x + 3], slope, -bias[1]));
            sum[0] += s[x] + s[x + 1];
            sum[1] += s[x + 2] + s[x + 3];
        }
    }

    /* The compiler likes to wait for products before it exponentiates, and then nothing overlaps. It does not move a wait above what depends on the sums; that they are negative
     * never happens. */
    __device__ __forceinline__ void exponentials_first() const {
        if (sum[0] < 0 || sum[1] < 0) asm volatile("nanosleep.u32 0;");
    }

    __device__ __forceinline__ void scale_results() {
        if (!__any_sync(~0u, factor[0] != 1.0f || factor[1] != 1.0f)) return;
#pragma unroll
        for (int x = 0; x < O; x++) o[x] *= factor[x / 2 % 2];
    }

    __device__ __forceinline__ void to_operand() {
#pragma unroll
        for (int x = 0; x < KEYS / 16; x++) {
#pragma unroll
            for (int y = 0; y < 4; y++) p[x][y] = pack<T>(s[8 * x + 2 * y], s[8 * x + 2 * y + 1]);
        }
    }

    /* Where row `in_tile` of the tile lies in a tensor with the given strides, from the tile's first row and head on. */
    static __device__ __forceinline__ int64_t row_at(int in_tile, int32_t rows, bool one_head, int64_t token, int64_t head) {
        const int h = one_head ? 0 : in_tile / rows;
        return (in_tile - h * rows) * token + h * head;
    }

    /* Divides O by the sums and lays it out in workgroup memory, a warp's 16 rows for itself, in the place of the same rows of Q. Without branches, since the next tile's first product is under way. */
    __device__ __forceinline__ void stage_results(int slot) {
        float inverse[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
            sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
            inverse[r] = reciprocal(sum[r]);
        }
        /* A row that has seen no key is 0, whatever its registers hold. */
#pragma unroll
        for (int x = 0; x < O; x++) o[x] = sum[x / 2 % 2] == 0 ? 0.0f : o[x] * inverse[x / 2 % 2];
        uint8_t *staged = staged_rows(slot);
        const int matrix_row = lane % 16; /* of the 8 x 8 matrices that this lane addresses */
#pragma unroll
        for (int x = 0; x < D / 16; x++) {
            const int unit = 2 * x + lane / 16;
            const uint32_t at = shared_address(staged + unit / 8 * COLUMN + matrix_row * 128 + ((unit % 8) ^ (matrix_row % 8)) * 16);
            asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(pack<T>(o[8 * x], o[8 * x + 1])),
                         "r"(pack<T>(o[8 * x + 2], o[8 * x + 3])), "r"(pack<T>(o[8 * x + 4], o[8 * x + 5])), "r"(pack<T>(o[8 * x + 6], o[8 * x + 7]))
                         : "memory");
        }
        fence_async_proxy();
        __syncwarp();
    }

    __device__ __forceinline__ uint8_t *staged_rows(int slot) const {
        return m->q[slot][0] + (group * 64 + warp * 16) * 128;
    }

    /* Writes O and LSE of the tile to the caller, or into a partial result. */
    __device__ __forceinline__ void finish(const tile *t, int slot) {
        const tess_args *c = &a->common;
        const int32_t rows = t->rows, all = rows * t->heads, partial = t->partial, head = t->head, batch = t->batch, last = t->last;
        const int64_t first = t->q_start + t->row;
        const bool one_head = t->heads == 1;
        float *const partials = (float *)a->workspace + c->partials_at + (uint64_t)(uint32_t)partial * c->partial_rows * (c->head_dim + 1);
        if (partial != NO_PARTIAL || (c->flags & TESS_ARGS_LSE)) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const float lse = sum[r] == 0 ? MINUS_INFINITY : top[r] * scale + natural_log(sum[r]);
                const int in_tile = row + 8 * r;
                if (lane % 4 != 0 || in_tile >= all) continue;
                if (partial != NO_PARTIAL)
                    partials[(uint64_t)c->partial_rows * c->head_dim + in_tile] = lse;
                else
                    ((float *)a->lse)[batch * c->lse_batch + first * c->lse_token + head * c->lse_head +
                                      row_at(in_tile, rows, one_head, c->lse_token, c->lse_head)] = lse;
            }
        }
        const int first_row = group * 64 + warp * 16;
        if (partial != NO_PARTIAL) {
            store_partial(partials, all);
        } else if ((a->tma & 4) && one_head && (first_row + 16 <= all || last)) {
            /* Boxes of 16 rows, of which rows past the end are left out: they are outside of the tensor. */
            if (lane == 0 && first_row < all) {
#pragma unroll
                for (int chunk = 0; chunk < CHUNKS; chunk++)
                    copy_box_out(o_map, staged_rows(slot) + chunk * COLUMN, chunk * 64, (int32_t)first + first_row, head, batch);
                copies_out_commit();
            }
        } else {
            store(slot, rows, all, one_head, batch * c->o_batch + first * c->o_token + head * c->o_head);
        }
    }

    /* Gives the slot of Q back when its results have left it. */
    __device__ __forceinline__ void release(int slot) const {
        fence_async_proxy(); /* the next tile of Q is copied over what plain loads have read */
        __syncwarp();
        if (lane != 0) return;
        copies_out_read();
        barrier_arrive(&m->q_empty[slot]);
    }

    __device__ __forceinline__ void store_partial(float *partials, int32_t all) const {
        const uint32_t head_dim = a->common.head_dim;
#pragma unroll
        for (int x = 0; x < O; x += 2) {
            const int element = x / 4 * 8 + lane % 4 * 2, in_tile = row + x / 2 % 2 * 8;
            if (element >= (int)head_dim || in_tile >= all) continue;
            float *to = partials + (uint64_t)in_tile * head_dim + element;
            to[0] = o[x];
            to[1] = o[x + 1];
        }
    }

    /* Whole rows at a time, out of workgroup memory. */
    __device__ __forceinline__ void store(int slot, int32_t rows, int32_t all, bool one_head, int64_t o_base) const {
        constexpr int LANES = CHUNKS * 8 < 32 ? CHUNKS * 8 : 32; /* of a row */
        const tess_args *c = &a->common;
        const uint8_t *staged = staged_rows(slot);
        const int units = (int)c->head_dim / 8, first_row = group * 64 + warp * 16, unit = lane % LANES;
#pragma unroll 4
        for (int r = lane / LANES; r < 16; r += 32 / LANES) {
            if (first_row + r >= all || unit >= units) continue;
            const uint4 x = *(const uint4 *)(staged + unit / 8 * COLUMN + r * 128 + ((unit % 8) ^ (r % 8)) * 16);
            uint16_t *to = (uint16_t *)a->o + o_base + row_at(first_row + r, rows, one_head, c->o_token, c->o_head) + unit * 8;
            if (a->wide & 4) {
                *(uint4 *)to = x;
            } else {
                const uint32_t w[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
                for (int e = 0; e < 8; e++) to[e] = (uint16_t)(w[e / 2] >> (e % 2 * 16));
            }
        }
        __syncwarp();
    }

    /* Waits for the description and Q of a tile; its number of stages, negative if there is none. */
    __device__ __forceinline__ int32_t next_tile(uint32_t taken) {
        barrier_wait(&m->q_full[taken % Q_SLOTS], taken / Q_SLOTS & 1);
        return __shfl_sync(~0u, m->tiles[taken % Q_SLOTS].stages, 0); /* the same for all, and the compiler shall know it */
    }

    /* Waits for the first keys of a tile and issues its first product. */
    __device__ __forceinline__ void begin(uint32_t taken, uint32_t n) {
        barrier_wait(&m->k_full[n % K_STAGES], n / K_STAGES & 1);
        issue_scores(q_rows(taken % Q_SLOTS), n);
    }

    /* All tiles. Where there is room for two tiles of Q, the first product of a tile is issued before the results of the one before are stored, so that storing leaves the tensor
     * cores busy. */
    __device__ __forceinline__ void run() {
        const int own_turn = 1 + group, other_turn = 2 - group;
        uint32_t n = 0, taken = 0; /* stages and tiles so far */
        if (group == 1) turn_give(1);
        int32_t stages = next_tile(0);
        if (stages < 0) return;
        if (PRIMES) {
            turn_wait(own_turn);
            begin(0, n);
            turn_give(other_turn);
        }
        for (;;) {
            const int slot = taken % Q_SLOTS;
            const tile *t = &m->tiles[slot];
            const int32_t masked_stages = t->masked_stages;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                top[r] = MINUS_INFINITY;
                sum[r] = 0;
            }
            if (!PRIMES) {
                turn_wait(own_turn);
                begin(taken, n);
                turn_give(other_turn);
            }
            products_wait<0>();
            keep_below(s);
            softmax(t, masked_stages > 0, n);
            to_operand();
            if (PRIMES && taken > 0) release((taken - 1) % Q_SLOTS);
            for (int32_t i = 1; i < stages; i++, n++) {
                barrier_wait(&m->k_full[(n + 1) % K_STAGES], (n + 1) / K_STAGES & 1);
                turn_wait(own_turn);
                issue_scores(q_rows(slot), n + 1);
                barrier_wait(&m->v_full[n % V_STAGES], n / V_STAGES & 1);
                issue_values(n, i == 1);
                turn_give(other_turn);
                products_wait<1>();
                keep_below(s);
                softmax(t, i < masked_stages, n + 1);
                exponentials_first();
                products_wait<0>();
                keep_below(o);
                if (lane == 0) barrier_arrive(&m->v_empty[n % V_STAGES]);
                scale_results();
                to_operand();
            }
            const bool first = stages == 1;
            barrier_wait(&m->v_full[n % V_STAGES], n / V_STAGES & 1);
            taken++;
            if (PRIMES) {
                stages = next_tile(taken);
                if (stages < 0) {
                    last_values(t, slot, n, first);
                    copies_out_done();
                    return;
                }
                turn_wait(own_turn);
                issue_values(n, first);
                begin(taken, n + 1);
                turn_give(other_turn);
                products_wait<1>();
                keep_below(o);
                if (lane == 0) barrier_arrive(&m->v_empty[n % V_STAGES]);
                stage_results(slot);
                products_wait<0>();
                keep_below(s);
                finish(t, slot);
            } else {
                last_values(t, slot, n, first);
                release(slot);
                stages = next_tile(taken);
                if (stages < 0) {
                    copies_out_done();
                    return;
                }
            }
            n++;
        }
    }

    /* The end of a tile that no product of the next one overlaps with. */
    __device__ __forceinline__ void last_values(const tile *t, int slot, uint32_t n, bool first) {
        issue_values(n, first);
        products_wait<0>();
        keep_below(o);
        if (lane == 0) barrier_arrive(&m->v_empty[n % V_STAGES]);
        stage_results(slot);
        finish(t, slot);
    }
};

template <typename T, int D, int KEYS, int Q_SLOTS, int K_STAGES, int V_STAGES>
__device__ __forceinline__ void forward(const tess_tensor_map *q_map, const tess_tensor_map *k_map, const tess_tensor_map *v_map,
                                        const tess_tensor_map *o_map, const tess_sm90_args *a) {
    extern __shared__ __align__(1024) uint8_t raw[];
    typedef memory<D, KEYS, Q_SLOTS, K_STAGES, V_STAGES> shared;
    static_assert(sizeof(shared) <= TESS_SM90_SHARED(D, KEYS, Q_SLOTS, K_STAGES, V_STAGES), "the host asks for enough workgroup memory");
    shared *m = (shared *)raw;
    if (threadIdx.x == 0) {
        for (int i = 0; i < Q_SLOTS; i++) {
            barrier_init(&m->q_full[i], 1);
            barrier_init(&m->q_empty[i], CONSUMER_WARPS);
        }
        for (int i = 0; i < K_STAGES; i++) {
            barrier_init(&m->k_full[i], 1);
            barrier_init(&m->k_empty[i], CONSUMER_WARPS);
        }
        for (int i = 0; i < V_STAGES; i++) {
            barrier_init(&m->v_full[i], 1);
            barrier_init(&m->v_empty[i], CONSUMER_WARPS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        fence_async_proxy();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
        if (threadIdx.x < 32) produce<D, KEYS, Q_SLOTS, K_STAGES, V_STAGES>(m, q_map, k_map, v_map, a);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
        consumer<T, D, KEYS, Q_SLOTS, K_STAGES, V_STAGES> x;
        x.m = m;
        x.o_map = o_map;
        x.a = a;
        x.group = threadIdx.x / 128 - 1;
        x.warp = threadIdx.x / 32 % 4;
        x.lane = threadIdx.x % 32;
        x.row = x.group * 64 + x.warp * 16 + x.lane / 4;
        x.scale = fabsf(a->common.scale);
        x.slope = x.scale * 1.44269504088896341f;
        x.run();
    }
}

} // namespace tess

#define INSTANCE(T, D, KEYS, Q_SLOTS, K_STAGES, V_STAGES)                                                                           \
    extern "C" __global__ void __launch_bounds__(384, 1)                                                                  \
        tess_sm90_##T##_##D(const __grid_constant__ tess_tensor_map q_map, const __grid_constant__ tess_tensor_map k_map, \
                            const __grid_constant__ tess_tensor_map v_map, const __grid_constant__ tess_tensor_map o_map, \
                            const __grid_constant__ tess_sm90_args args) {                                                \
        tess::forward<tess::T##_t, D, KEYS, Q_SLOTS, K_STAGES, V_STAGES>(&q_map, &k_map, &v_map, &o_map, &args);                      \
    }
#define BF16(...) INSTANCE(bf16, __VA_ARGS__)
#define F16(...)  INSTANCE(f16, __VA_ARGS__)
TESS_SM90_INSTANCES(BF16)
TESS_SM90_INSTANCES(F16)
