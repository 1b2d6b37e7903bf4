/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forward attention for Ampere and later (sm_80): matrix products of a warp (mma), asynchronous
 * copies of 16 bytes (cp.async), one thread block of four warps for a job.
 *
 * A warp takes 16 query rows of a tile of up to 64 rows. Of a larger tile it takes two runs of 16
 * rows, 64 apart, so that each fragment of K and V serves twice as many products. S = Q K^T comes
 * out in registers, laid out as the operand P of O += P V. Q stays in shared memory; K and V come
 * in stages of 64 keys, which need not be neighbours: every key has its own place in a list
 * (sm80_keys.cuh), which is written one or two stages ahead.
 *
 * With two pipeline stages, the next one is copied while this one is multiplied. With one, V of the
 * stage is copied during S = Q K^T, and K of the next stage after it.
 */
#include "elements.cuh"
#include "fragments.cuh"
#include "key_places.cuh"
#include "sm80_args.h"
#include "sm80_keys.cuh"

namespace tess {

enum {
    KEYS = TESS_SM80_KEYS,
    THREADS = TESS_SM80_THREADS,
    /* key lists in flight: one masks this stage, one guides the copies of the next, one is being
     * written */
    LISTS = 3,
};

/* The head of shared memory; the matrices follow. */
template <int ROWS> struct alignas(128) shared_memory {
    key keys[LISTS][KEYS];
    struct {
        /* the row's position among the keys; its query block, counted from the tile's first */
        int32_t position, block;
    } rows[ROWS];
    job_words job;
    key_list list;
    const uint16_t *k, *v; /* the sequence's first key, where keys lie by position in one tensor */
    key_places places;
    uint32_t masked[LISTS][KEYS / 32];  /* nonzero: some of these 32 keys need the mask */
    static constexpr int HEADER = 3072; /* bytes before the matrices */
};

/* Writes the key list of a stage, one key for each of 64 threads. A key of an absent page becomes
 * empty. */
template <int ROWS>
__device__ __forceinline__ void list_keys(shared_memory<ROWS> *m, const tess_sm80_args *a,
                                          int stage, int list, int place) {
    const uint32_t *tables = (const uint32_t *)a->tables;
    bool masked = stage < m->list.masked_stages;
    key x = m->list.find((uint32_t)stage * KEYS + place, tables + a->common.entries_at,
                         tables + a->common.bits_at, masked);
    if (a->common.flags & TESS_ARGS_PAGED) {
        if (!m->places.row(x.token, 0)) x.token = NO_TOKEN;
        masked |= __any_sync(~0u, x.token == NO_TOKEN);
    }
    m->keys[list][place] = x;
    if (place % 32 == 0) m->masked[list][place / 32] = masked;
}

/* The mainloop of one job, which has at most TILES * 64 rows: a thread's state and its steps. */
template <typename T, int D, int ROWS, int TILES> struct mainloop {
    typedef shared_memory<ROWS> memory;
    typedef typename elements<T>::stored stored;
    typedef row_places<D * elements<T>::HALVES> places;
    enum {
        HALVES = elements<T>::HALVES,
        UNITS = places::UNITS,
        ROW = places::ROW,
        GROUP = places::GROUP,
        PASS = THREADS / GROUP, /* rows that the block copies at a time */
        STAGE = KEYS * ROW,     /* bytes of K or V */
        N = KEYS / 8,           /* fragments of S: 8 keys each */
        O = D / 8               /* fragments of O: 8 elements each */
    };

    memory *m;
    const tess_sm80_args *a;
    uint32_t q_at; /* in shared memory: Q, and after it the stages, each of K and then V */
    uint32_t thread, warp, lane;
    float s[TILES][N][4], o[TILES][O][4]; /* S, and then P; O */
    row_state<TILES> state;

    __device__ __forceinline__ uint32_t k_at(int stage) const {
        return q_at + ROWS * ROW + stage * 2 * STAGE;
    }
    __device__ __forceinline__ uint32_t v_at(int stage) const { return k_at(stage) + STAGE; }
    /* The tile's row that s[t][n] and o[t][n] hold at 2 * r and 2 * r + 1. */
    __device__ __forceinline__ int row_of(int t, int r) const {
        return t * 64 + warp * 16 + r * 8 + lane / 4;
    }

    /* ---------------------------------------------------------------- copies */

    __device__ __forceinline__ uint32_t own_place() const {
        return places::place(thread / GROUP, thread % GROUP);
    }

    /* Copies this thread's elements of one row, or zeros for a row that is not `there`. */
    __device__ __forceinline__ void copy_row(uint32_t to, const uint16_t *row, bool there,
                                             bool wide) const {
        const int unit = thread % GROUP, units = there ? a->common.head_dim * HALVES / 8 : 0;
        copy_units<UNITS, GROUP>(to, row, unit, units, wide);
    }

    /* Copies a key's row likewise. An empty key becomes zeros. */
    __device__ __forceinline__ void copy_key(uint32_t to, const uint16_t *from, int64_t stride,
                                             int32_t token, bool wide) const {
        const bool there = token != NO_TOKEN;
        copy_row(to, from + (there ? token : 0) * stride, there, wide);
    }

    /* Copies a stage of K (0) or V (1) that lies in pages or by slot. Each lane finds the row of
     * one key, and the warp shares them by shuffles. */
    __device__ __forceinline__ void copy_placed(uint32_t to, int tensor, int list) const {
        enum { WARP_ROWS = 32 / GROUP }; /* that the warp copies at a time */
        to += own_place();
        const uint32_t nth = lane % (KEYS / 4);
        const uint16_t *own = m->places.row(
            m->keys[list][nth / WARP_ROWS * PASS + warp * WARP_ROWS + nth % WARP_ROWS].token,
            tensor);
#pragma unroll 1
        for (int r = 0; r < KEYS / PASS; r++) {
            const uint16_t *row = (const uint16_t *)__shfl_sync(~0u, (unsigned long long)own,
                                                                r * WARP_ROWS + lane / GROUP);
            copy_row(to + r * PASS * ROW, row ? row : m->places.first[tensor], row != 0,
                     a->wide & 2);
        }
    }

    __device__ __forceinline__ void copy_keys(uint32_t to, const uint16_t *from, int64_t stride,
                                              int list) const {
        const key *keys = m->keys[list] + thread / GROUP;
        to += own_place();
        if (a->wide & 2) {
#pragma unroll
            for (int r = 0; r < KEYS; r += PASS)
                copy_key(to + r * ROW, from, stride, keys[r].token, true);
        } else {
#pragma unroll 1
            for (int r = 0; r < KEYS; r += PASS)
                copy_key(to + r * ROW, from, stride, keys[r].token, false);
        }
    }

    __device__ __forceinline__ void copy_k(int stage, int list) const {
        if (placed())
            copy_placed(k_at(stage), 0, list);
        else
            copy_keys(k_at(stage), m->k, a->common.k_token, list);
    }
    __device__ __forceinline__ void copy_v(int stage, int list) const {
        if (placed())
            copy_placed(v_at(stage), 1, list);
        else
            copy_keys(v_at(stage), m->v, a->common.v_token, list);
    }

    __device__ __forceinline__ void copy_q() const {
        const tess_args *c = &a->common;
        const job_words *j = &m->job;
        const uint16_t *first = (const uint16_t *)a->q + j->batch * c->q_batch +
                                (j->q_start + j->row) * c->q_token + j->head * c->q_head;
        const int32_t rows = j->rows, all = rows * j->heads;
#pragma unroll 1
        for (int r = thread / GROUP; r < TILES * 64; r += PASS)
            copy_row(q_at + places::place(r, thread % GROUP),
                     first + (r < all ? row_at(r, rows, rows == all, c->q_token, c->q_head) : 0),
                     r < all, a->wide & 1);
    }

    __device__ __forceinline__ bool placed() const {
        return a->common.flags & (TESS_ARGS_PAGED | TESS_ARGS_COMPACT);
    }

    /* ---------------------------------------------------------------- one stage */

    __device__ __forceinline__ void scores(int stage) {
        /* compute the addresses in each stage: holding all of them takes too many registers */
        const uint32_t now = lane_volatile();
        const uint32_t k = k_at(stage) + places::own_keys(now),
                       q = q_at + warp * 16 * ROW + places::own_rows(now);
        typename elements<T>::template rest<TILES, N> rest; /* sums of what is small beside s */
        clear(s);
        rest.reset();
#pragma unroll
        for (int x = 0; x < D * HALVES / 16; x++) {
            uint32_t rows[TILES][4];
#pragma unroll
            for (int t = 0; t < TILES; t++) ldmatrix(rows[t], places::step(q, x) + t * 64 * ROW);
#pragma unroll
            for (int n = 0; n < N; n += 2) {
                uint32_t keys[4];
                ldmatrix(keys, places::step(k, x) + n * 8 * ROW);
#pragma unroll
                for (int t = 0; t < TILES; t++) {
                    rest.multiply(s, t, n, rows[t], keys[0], keys[1]);
                    rest.multiply(s, t, n + 1, rows[t], keys[2], keys[3]);
                }
            }
        }
        rest.add_to(s);
    }

    /* Sets masked scores to -inf. */
    __device__ __forceinline__ void mask(int list) {
        const job_words *j = &m->job;
        const uint32_t flags = j->flags;
        const int32_t kv_len = j->kv_len, left = j->left, right = j->right, sinks = j->sinks;
        const uint32_t keys = shared_address(m->keys[list] + lane % 4 * 2);
#pragma unroll
        for (int t = 0; t < TILES; t++) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int in_tile = row_of(t, r);
                const row_bounds b = bounds_of(m->rows[in_tile].position, m->rows[in_tile].block,
                                               flags, kv_len, left, right);
                if (flags & TESS_CLASS_WINDOW)
                    mask_row<true>(t, r, keys, b, sinks);
                else
                    mask_row<false>(t, r, keys, b, 0);
            }
        }
    }

    /* Read the keys again for each row: holding them for all rows takes too many registers. */
    template <bool WINDOW>
    __device__ __forceinline__ void mask_row(int t, int r, uint32_t keys, const row_bounds &b,
                                             int32_t sinks) {
#pragma unroll
        for (int n = 0; n < N; n++) {
            const uint4 two = load_shared_volatile(keys + n * 8 * sizeof(key));
            const key x = {(int32_t)two.x, two.y}, y = {(int32_t)two.z, two.w};
            if (!(WINDOW ? b.keeps(x, sinks) : b.keeps(x))) s[t][n][2 * r] = MINUS_INFINITY;
            if (!(WINDOW ? b.keeps(y, sinks) : b.keeps(y))) s[t][n][2 * r + 1] = MINUS_INFINITY;
        }
    }

    /* O += P V, of float32. A product takes 8 keys: those of a thread's scores in its row are
     * columns lane % 4 and that + 4 of P, so V's rows of such a column are 2 * (lane % 4) and the
     * next. Tensor cores cut sums off, so a stage has sums of its own, which are then added to O.
     */
    __device__ __forceinline__ void values(int stage, f32_t) {
        enum {
            TURNS = places::GROUP / 2, /* fragments of O until the swizzle repeats */
            PART = 8                   /* fragments of O at a time */
        };
        const uint32_t now = lane_volatile(), row = now % 4 * 2, v = v_at(stage) + now / 4 % 4 * 4;
        uint32_t even[TURNS], odd[TURNS];
#pragma unroll
        for (int y = 0; y < TURNS; y++) {
            even[y] = v + places::place(row, 2 * y + now / 16);
            odd[y] = v + places::place(row + 1, 2 * y + now / 16);
        }
#pragma unroll
        for (int first = 0; first < O; first += PART) {
            float sum[TILES][PART][4];
            clear(sum);
#pragma unroll
            for (int x = 0; x < N; x++) {
                uint32_t p[TILES][4];
#pragma unroll
                for (int t = 0; t < TILES; t++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        p[t][i] = __float_as_uint(s[t][x][i / 2 + i % 2 * 2]);
#pragma unroll
                for (int y = first; y < first + PART; y++) {
                    const uint32_t at = x * 8 * ROW + y / TURNS * places::GROUP * 16,
                                   b0 = load_shared_word(even[y % TURNS] + at),
                                   b1 = load_shared_word(odd[y % TURNS] + at);
#pragma unroll
                    for (int t = 0; t < TILES; t++)
                        multiply_tf32(sum[t][y - first], sum[t][y - first], p[t], b0, b1);
                }
            }
#pragma unroll
            for (int t = 0; t < TILES; t++)
#pragma unroll
                for (int y = 0; y < PART; y++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        o[t][first + y][e] = __fadd_rn(o[t][first + y][e], sum[t][y][e]);
        }
    }

    /* O += P V */
    template <typename U> __device__ __forceinline__ void values(int stage, U) {
        const uint32_t v = v_at(stage) + places::own_rows(lane_volatile());
#pragma unroll
        for (int x = 0; x < KEYS / 16; x++) {
            uint32_t p[TILES][4];
#pragma unroll
            for (int t = 0; t < TILES; t++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    p[t][i] =
                        pack<T>(s[t][2 * x + i / 2][i % 2 * 2], s[t][2 * x + i / 2][i % 2 * 2 + 1]);
#pragma unroll
            for (int y = 0; y < O; y += 2) {
                uint32_t elements[4];
                ldmatrix_transposed(elements, places::step(v, y / 2) + x * 16 * ROW);
#pragma unroll
                for (int t = 0; t < TILES; t++) {
                    mma<T>(o[t][y], p[t], elements[0], elements[1]);
                    mma<T>(o[t][y + 1], p[t], elements[2], elements[3]);
                }
            }
        }
    }

    /* ---------------------------------------------------------------- epilogue */

    /* Divides O by row_sum. A row without keys becomes 0, whatever its registers hold. */
    __device__ __forceinline__ void divide() {
        state.reduce_sums();
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const float inverse = reciprocal(state.sum[t][r]);
#pragma unroll
                for (int y = 0; y < O; y++)
#pragma unroll
                    for (int e = 2 * r; e < 2 * r + 2; e++)
                        o[t][y][e] = state.sum[t][r] == 0 ? 0.0f : o[t][y][e] * inverse;
            }
    }

    /* Writes O and LSE of the tile, or a partial. */
    __device__ __forceinline__ void epilogue() {
        const tess_args *c = &a->common;
        const job_words *j = &m->job;
        const int32_t rows = j->rows, all = rows * j->heads, head = j->head, batch = j->batch,
                      partial = j->partial;
        const int64_t first = j->q_start + j->row;
        const bool one_head = rows == all;
        float *const partials = (float *)a->workspace + c->partials_at +
                                (uint64_t)(uint32_t)partial * c->partial_rows * (c->head_dim + 2);
        divide();
        if (partial != NO_PARTIAL || (c->flags & TESS_ARGS_LSE)) {
#pragma unroll
            for (int t = 0; t < TILES; t++)
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const float row_max = state.max[t][r], row_sum = state.sum[t][r];
                    const float ln = __fmul_rn(log2_fast(row_sum), LN_2);
                    const float lse =
                        row_sum == 0 ? MINUS_INFINITY : fmaf(row_max, fabsf(c->scale), ln);
                    const int in_tile = row_of(t, r);
                    if (lane % 4 != 0 || in_tile >= all) continue;
                    if (partial != NO_PARTIAL)
                        store_max_sum(partials + (uint64_t)c->partial_rows * c->head_dim + in_tile,
                                      row_max, row_sum);
                    else
                        ((float *)
                             a->lse)[batch * c->lse_batch + first * c->lse_token +
                                     head * c->lse_head +
                                     row_at(in_tile, rows, one_head, c->lse_token, c->lse_head)] =
                            lse;
                }
        }
        if (partial != NO_PARTIAL)
            store_partial(partials, all);
        else
            store((stored *)a->o + batch * c->o_batch + first * c->o_token + head * c->o_head, rows,
                  all, one_head);
    }

    /* Writes row_max (m) and row_sum (l) of a row into a partial. Exponentials are relative to the
     * rounded product of m and scale_log2, so l is corrected for the rounding. */
    __device__ __forceinline__ void store_max_sum(float *to, float max, float sum) const {
        to[0] = max;
        to[a->common.partial_rows] =
            sum == 0 ? sum : sum * exp2_fast(-rounding_of(max, a->scale_log2));
    }

    __device__ __forceinline__ void store_partial(float *partials, int32_t all) const {
        const int32_t head_dim = a->common.head_dim;
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int in_tile = row_of(t, r);
                if (in_tile >= all) continue;
                float *to = partials + (uint64_t)in_tile * head_dim + lane % 4 * 2;
#pragma unroll
                for (int y = 0; y < O; y++) {
                    if (8 * y >= head_dim) break;
                    *(float2 *)(to + 8 * y) = make_float2(o[t][y][2 * r], o[t][y][2 * r + 1]);
                }
            }
    }

    /* Of float32, four threads write a sector of 32 bytes. */
    __device__ __forceinline__ void store(float *first, int32_t rows, int32_t all,
                                          bool one_head) const {
        const tess_args *c = &a->common;
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int in_tile = row_of(t, r);
                if (in_tile >= all) continue;
                float *to =
                    first + row_at(in_tile, rows, one_head, c->o_token, c->o_head) + lane % 4 * 2;
#pragma unroll
                for (int y = 0; y < O; y++) {
                    if (8 * y >= (int)c->head_dim) break;
                    if (a->wide & 4) {
                        *(float2 *)(to + 8 * y) = make_float2(o[t][y][2 * r], o[t][y][2 * r + 1]);
                    } else {
                        to[8 * y] = o[t][y][2 * r];
                        to[8 * y + 1] = o[t][y][2 * r + 1];
                    }
                }
            }
    }

    /* Writes O through shared memory, so that whole rows are stored at a time. A warp reuses the
     * place of its own rows of Q. */
    __device__ __forceinline__ void store(uint16_t *first, int32_t rows, int32_t all,
                                          bool one_head) const {
        const tess_args *c = &a->common;
        __syncwarp();
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int r = 0; r < 2; r++)
#pragma unroll
                for (int y = 0; y < O; y++)
                    store_word(q_at + (t * 64 + warp * 16) * ROW +
                                   places::place(r * 8 + lane / 4, y) + lane % 4 * 4,
                               pack<T>(o[t][y][2 * r], o[t][y][2 * r + 1]));
        __syncwarp();
        const int units = (int)c->head_dim / 8;
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            const int first_row = t * 64 + warp * 16;
#pragma unroll 4
            for (int n = lane; n < 16 * UNITS; n += 32) {
                const int r = n / UNITS, unit = n % UNITS;
                if (first_row + r >= all || unit >= units) continue;
                const uint4 x = load_shared_unit(q_at + first_row * ROW + places::place(r, unit));
                uint16_t *to =
                    first + row_at(first_row + r, rows, one_head, c->o_token, c->o_head) + unit * 8;
                write_unit(to, x, a->wide & 4);
            }
        }
    }

    /* ---------------------------------------------------------------- mainloop */

    __device__ __forceinline__ void run() {
        /* the shuffle tells the compiler that the value is uniform across the warp */
        const int32_t stages = __shfl_sync(~0u, m->list.stages, 0);
        const bool two = a->stages == 2, active = warp * 16 < m->job.rows * m->job.heads;
        state.reset();
        clear(o);
        if (stages > 0) {
            copy_q();
            copy_k(0, 0);
            if (two) copy_v(0, 0);
        }
        int list = 0; /* the key list of this stage */
        for (int32_t i = 0; i < stages; i++) {
            const int next_list = list == LISTS - 1 ? 0 : list + 1, stage = two ? i & 1 : 0,
                      next_stage = two ? stage ^ 1 : 0;
            cp_async_wait_all();
            __syncthreads();
            if (!two) {
                copy_v(stage, list);
            } else if (i + 1 < stages) {
                copy_k(next_stage, next_list);
                copy_v(next_stage, next_list);
            }
            if (i + 2 < stages && thread < KEYS)
                list_keys(m, a, i + 2, next_list == LISTS - 1 ? 0 : next_list + 1, thread);
            if (active) scores(stage);
            if (!two) {
                cp_async_wait_all();
                __syncthreads();
                if (i + 1 < stages) copy_k(next_stage, next_list);
            }
            if (active) {
                if (a->common.scale < 0) negate(s);
                if (m->masked[list][0] | m->masked[list][1]) mask(list);
                state.softmax(s, o, a->scale_log2);
                values(stage, T());
            }
            list = next_list;
        }
        if (active) epilogue();
    }
};

template <typename T, int D, int ROWS, int TILES>
__device__ __forceinline__ void work(shared_memory<ROWS> *m, uint32_t matrices,
                                     const tess_sm80_args *a) {
    mainloop<T, D, ROWS, TILES> w;
    w.m = m;
    w.a = a;
    w.thread = threadIdx.x;
    w.warp = threadIdx.x / 32;
    w.lane = threadIdx.x % 32;
    w.q_at = matrices;
    w.run();
}

template <typename T, int D, int ROWS>
__device__ __forceinline__ void forward(const tess_sm80_args *a) {
    extern __shared__ __align__(128) uint8_t raw[];
    typedef shared_memory<ROWS> memory;
    static_assert(sizeof(memory) <= memory::HEADER, "the host asks for enough shared memory");
    memory *m = (memory *)raw;
    const uint32_t *tables = (const uint32_t *)a->tables;
    const int thread = threadIdx.x;
    if (blockIdx.x >= present_jobs(tables, &a->common)) {
        grid_dependency_wait();
        return;
    }
    if (thread == 0) {
        const tess_args *c = &a->common;
        job_words j;
        j.read(table_words(tables, c, blockIdx.x));
        m->job = j;
        m->list.make(&j, tables + c->entries_at, c->block, KEYS);
        m->places.make(a, &j, m->list.block_shift);
        m->k = m->places.first[0] + m->places.start * c->k_token;
        m->v = m->places.first[1] + m->places.start * c->v_token;
    }
    __syncthreads();
    grid_dependency_wait();
    grid_dependents_launch();
    const int32_t rows = m->job.rows, all = rows * m->job.heads, list = thread / KEYS;
    if (list < m->list.stages) list_keys(m, a, list, list, thread % KEYS);
    for (int r = thread; r < ROWS; r += THREADS) {
        m->rows[r].position = m->job.q_first + m->job.row + min(r, all - 1) % rows;
        m->rows[r].block = floor_div(m->rows[r].position, a->common.block) - m->list.first_block;
    }
    __syncthreads();
    const uint32_t matrices = shared_address(raw) + memory::HEADER;
    if (ROWS > 64 && all > 64)
        work<T, D, ROWS, ROWS / 64>(m, matrices, a);
    else
        work<T, D, ROWS, 1>(m, matrices, a);
}

} // namespace tess

/* Thread blocks a multiprocessor for which the compiler reserves registers. Where shared memory is
 * 100 KiB, only two fit. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
#define AT_ONCE(groups) ((groups) < 2 ? (groups) : 2)
#else
#define AT_ONCE(groups) (groups)
#endif
#define INSTANCE(T, D, ROWS, STAGES, GROUPS)                                         \
    extern "C" __global__ void __launch_bounds__(TESS_SM80_THREADS, AT_ONCE(GROUPS)) \
        tess_sm80_##T##_##D(const __grid_constant__ tess_sm80_args args) {           \
        tess::forward<tess::T##_t, D, ROWS>(&args);                                  \
    }
#define BF16(...) INSTANCE(bf16, __VA_ARGS__)
#define F16(...)  INSTANCE(f16, __VA_ARGS__)
TESS_SM80_INSTANCES(BF16)
TESS_SM80_INSTANCES(F16)
#define F32(...) INSTANCE(f32, __VA_ARGS__)
TESS_TF32_INSTANCES(F32)
