/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The forward mainloop of the kernel for Hopper: a consumer warpgroup computes its 64 query rows of
 * each tile.
 *
 * While the warpgroup is in the softmax of a stage, the tensor cores compute S = Q K^T of the next
 * one, and behind it O += P V of the stage before. Warpgroups issue in turns: each waits at its own
 * named barrier, and arrives at that of the next warpgroup.
 */
#ifndef TESS_CUDA_SM90_MAINLOOP_FORWARD_CUH
#define TESS_CUDA_SM90_MAINLOOP_FORWARD_CUH

#include "epilogue.cuh"
#include "mask.cuh"
#include "ptx.cuh"
#include "softmax.cuh"
#include "tile.cuh"
#include "wgmma.cuh"

namespace tess {

template <typename T, typename Shape> struct mainloop_forward {
    enum {
        D = Shape::D,
        KEYS = Shape::KEYS,
        ROWS = Shape::ROWS,
        Q_STAGES = Shape::Q_STAGES,
        K_STAGES = Shape::K_STAGES,
        V_STAGES = Shape::V_STAGES,
        /* With room for two tiles of Q, a tile's first product is issued before O of the last tile
         * is stored, to keep the tensor cores busy meanwhile. */
        OVERLAPS_EPILOGUE = Q_STAGES > 1,
        /* tiles may begin with a halved stage */
        HALVES = KEYS == 128 && Shape::CONSUMERS == 2
    };

    shared_memory<Shape> *m;
    const tess_sm90_args *a;
    consumer_place at;
    float scale; /* |scale| */
    softmax_state softmax;
    score_mask mask;
    float s[KEYS / 2], o[D / 2]; /* S, and then P; O */
    uint32_t p[KEYS / 16][4];    /* P as the operand A of the second product */
    bool keys_ready;             /* a test has shown that the next stage of K is full */
    /* of the tile: stages that need a mask; whether its first stage is halved; whether it has a
     * window */
    int32_t masked_stages;
    bool halved, window;

    /* ---------------------------------------------------------------- products */

    /* Compute operand addresses ahead of a product, and make them uniform by a shuffle: then
     * issuing the product takes few instructions. */
    __device__ __forceinline__ uint32_t q_operand(uint32_t tile) const {
        return __shfl_sync(~0u, descriptor_low(q_rows(tile % Q_STAGES), 16), 0);
    }
    __device__ __forceinline__ uint32_t k_operand(uint32_t stage, int first_key = 0) const {
        return __shfl_sync(~0u, descriptor_low(m->k[stage % K_STAGES][0] + first_key * 128, 16), 0);
    }
    __device__ __forceinline__ const uint8_t *q_rows(int q_stage) const {
        return m->q[q_stage][0] + at.warpgroup * 64 * 128;
    }

    __device__ __forceinline__ void issue_qk(uint32_t q, uint32_t k) { /* S = Q K^T */
        warpgroup_arrive();
#pragma unroll
        for (int x = 0; x < (D + 15) / 16; x++)
            wgmma<T, KEYS>::template ss<K_MAJOR>(
                s, matrix_descriptor(q + (x / 4 * ROWS * 128 + x % 4 * 32 >> 4)),
                matrix_descriptor(k + (x / 4 * KEYS * 128 + x % 4 * 32 >> 4)), x > 0);
        warpgroup_commit();
    }

    /* O += P V, or O = P V for the first keys of a tile. HALF: the warpgroup's own half of a halved
     * stage. */
    template <bool HALF> __device__ __forceinline__ void issue_pv(uint32_t stage, bool first) {
        const uint32_t v = descriptor_low(
            m->v[stage % V_STAGES][0] + (HALF ? (1 - at.warpgroup) * 64 * 128 : 0), KEYS * 128);
        warpgroup_arrive();
#pragma unroll
        for (int x = 0; x < KEYS / (HALF ? 32 : 16); x++)
            wgmma<T, D>::rs(o, p[x], matrix_descriptor(v + (x * 16 * 128 >> 4)), x > 0 || !first);
        warpgroup_commit();
    }

    /* The first key of the product: in a halved stage, where the warpgroup's own half begins. The
     * other half of S is unused then. */
    __device__ __forceinline__ int first_key() const {
        return halved ? (1 - at.warpgroup) * 64 : 0;
    }

    /* Rounds P. In registers it is laid out as operand A already. */
    template <int COUNT> __device__ __forceinline__ void round_p() {
#pragma unroll
        for (int x = 0; x < COUNT / 16; x++) {
#pragma unroll
            for (int y = 0; y < 4; y++) p[x][y] = pack<T>(s[8 * x + 2 * y], s[8 * x + 2 * y + 1]);
        }
    }

    /* ---------------------------------------------------------------- barriers */

    __device__ __forceinline__ void wait_turn() { named_barrier_sync(1 + at.warpgroup); }
    __device__ __forceinline__ void give_turn() {
        named_barrier_arrive(1 + (at.warpgroup + 1) % Shape::CONSUMERS);
    }
    __device__ __forceinline__ void wait_keys(uint32_t stage) {
        if (!keys_ready) mbarrier_wait(&m->k_full[stage % K_STAGES], stage / K_STAGES & 1);
    }
    __device__ __forceinline__ void test_keys(uint32_t stage) {
        keys_ready = mbarrier_test(&m->k_full[stage % K_STAGES], stage / K_STAGES & 1);
    }
    __device__ __forceinline__ void wait_values(uint32_t stage) {
        mbarrier_wait(&m->v_full[stage % V_STAGES], stage / V_STAGES & 1);
    }
    __device__ __forceinline__ void release_keys(uint32_t stage) {
        if (at.lane == 0) mbarrier_arrive(&m->k_empty[stage % K_STAGES]);
    }
    __device__ __forceinline__ void release_values(uint32_t stage) {
        if (at.lane == 0) mbarrier_arrive(&m->v_empty[stage % V_STAGES]);
    }

    /* Waits for the description of a tile. Returns its number of stages, negative if there is no
     * tile. */
    __device__ __forceinline__ int32_t wait_tile(uint32_t tile) {
        mbarrier_wait(&m->tile_full[tile % TILES], tile / TILES & 1);
        const tile_info *t = &m->tiles[tile % TILES];
        masked_stages = t->masked_stages;
        halved = HALVES && __shfl_sync(~0u, t->halved, 0);
        window = __shfl_sync(~0u, t->flags & TESS_CLASS_WINDOW, 0);
        /* the shuffle tells the compiler that the value is uniform across the warp */
        return __shfl_sync(~0u, t->stages, 0);
    }

    /* Marks the i-th stage of a tile as masked if some of its keys lie in absent pages. The keys
     * have arrived, and earlier stages are done. `stage` is its number among all tiles' stages. */
    __device__ __forceinline__ void mask_hole(int32_t i, uint32_t stage) {
        if (Shape::PLACED && (a->common.flags & TESS_ARGS_PAGED) &&
            __shfl_sync(~0u, m->holes[stage % Shape::PIECE_STAGES], 0))
            masked_stages = max(masked_stages, i + 1);
    }

    /* Waits for a tile's rows and its first keys, and finds their mask. */
    __device__ __forceinline__ void wait_first_keys(uint32_t tile, uint32_t stage) {
        const tile_info *t = &m->tiles[tile % TILES];
        mbarrier_wait(&m->q_full[tile % Q_STAGES], tile / Q_STAGES & 1);
        wait_keys(stage);
        mask_hole(0, stage);
        if (halved)
            find_mask<64>(t, stage, first_key());
        else if (masked_stages > 0)
            find_mask<KEYS>(t, stage, 0);
    }

    /* ---------------------------------------------------------------- softmax of a stage */

    /* Finds the mask of COUNT scores, from a key of the stage on. */
    template <int COUNT>
    __device__ __forceinline__ void find_mask(const tile_info *t, uint32_t stage, int first_key) {
        const piece *pieces =
            m->pieces[stage % Shape::PIECE_STAGES] + (first_key >> a->piece_shift);
        if (window)
            mask.find<COUNT, true>(pieces, t, a->piece_shift, at.row);
        else
            mask.find<COUNT, false>(pieces, t, a->piece_shift, at.row);
    }

    /* Negates scores for a negative scale: the softmax uses its magnitude. */
    template <int N> __device__ __forceinline__ void apply_sign(float (&scores)[N]) const {
        if (a->common.scale < 0) {
#pragma unroll
            for (int x = 0; x < N; x++) scores[x] = -scores[x];
        }
    }

    /* Computes the scores of some rows again, a warp on its own, because exponentials have replaced
     * them. */
    __device__ __forceinline__ void recompute_scores(const bool (&rows)[2], const uint8_t *q,
                                                     uint32_t stage) {
        const uint32_t q_at = shared_address(q + at.warp * 16 * 128),
                       k_at = shared_address(m->k[stage % K_STAGES][0]);
        const int q_row = at.lane % 16, k_row = at.lane % 8 + at.lane / 16 * 8;
#pragma unroll
        for (int keys = 0; keys < KEYS / 16; keys++) {
            float c[2][4] = {};
#pragma unroll 1
            for (int x = 0; x < (D + 15) / 16; x++) {
                uint32_t qs[4], ks[4];
                ldmatrix(qs, q_at + x / 4 * ROWS * 128 + q_row * 128 +
                                 ((x % 4 * 2 + at.lane / 16) ^ q_row % 8) * 16);
                ldmatrix(ks, k_at + x / 4 * KEYS * 128 + (keys * 16 + k_row) * 128 +
                                 ((x % 4 * 2 + at.lane / 8 % 2) ^ k_row % 8) * 16);
                mma<T>(c[0], qs, ks[0], ks[1]);
                mma<T>(c[1], qs, ks[2], ks[3]);
            }
#pragma unroll
            for (int e = 0; e < 8; e++)
                if (rows[e / 2 % 2])
                    s[8 * keys + e] = a->common.scale < 0 ? -c[e / 4][e % 4] : c[e / 4][e % 4];
        }
    }

    __device__ __forceinline__ void softmax_stage(const uint8_t *q, bool masked, uint32_t stage) {
        float stage_sum[2];
        apply_sign(s);
        if (masked) mask.apply(s);
        softmax.update_max(s);
        softmax.exponentiate(s, stage_sum);
        if (softmax.overflows(stage_sum))
            softmax.rescale_overflow(s, stage_sum, [&](const bool(&rows)[2]) {
                recompute_scores(rows, q, stage);
                if (masked) mask.apply_to_rows(s, rows);
            });
        release_keys(stage);
        softmax.add(stage_sum);
    }

    /* The softmax of a halved stage: scores of the warpgroup's own half are the first half of S. */
    __device__ __forceinline__ void softmax_half(uint32_t stage) {
        float(&half)[32] = reinterpret_cast<float(&)[32]>(s);
        apply_sign(half);
        mask.apply(half);
        release_keys(stage); /* these scores are never computed again */
        softmax.first_max(half);
        softmax.exponentiate_first(half);
    }

    /* ---------------------------------------------------------------- stages and tiles */

    /* Issues S of a tile's first stage. */
    __device__ __forceinline__ void issue_first_qk(uint32_t tile, uint32_t stage) {
        wait_first_keys(tile, stage);
        wait_turn();
        issue_qk(q_operand(tile), k_operand(stage, first_key()));
        give_turn();
    }

    /* The softmax of a tile's first stage. */
    __device__ __forceinline__ void first_stage(uint32_t tile, uint32_t stage) {
        warpgroup_wait<0>();
        register_fence(s);
        test_keys(stage + 1);
        if (halved) {
            softmax_half(stage);
            round_p<KEYS / 2>();
        } else {
            softmax_stage(q_rows(tile % Q_STAGES), masked_stages > 0, stage);
            round_p<KEYS>();
        }
    }

    /* The i-th stage of a tile, after its first one: S of this stage, and O += P V of the stage
     * before, which is number `stage` among all tiles' stages. */
    template <bool HALF>
    __device__ __forceinline__ void next_stage(uint32_t tile, uint32_t q, int32_t i,
                                               uint32_t stage) {
        const tile_info *t = &m->tiles[tile % TILES];
        const uint32_t k = k_operand(stage + 1);
        wait_keys(stage + 1);
        wait_turn();
        issue_qk(q, k);
        mask_hole(i, stage + 1);
        /* Finding masks takes about as long as a product. Two warpgroups wait less for each other
         * if it comes before the second product; three do if the second product need not wait for
         * it. */
        if (Shape::CONSUMERS == 2 && i < masked_stages) find_mask<KEYS>(t, stage + 1, 0);
        wait_values(stage);
        issue_pv<HALF>(stage, i == 1);
        give_turn();
        if (Shape::CONSUMERS > 2 && i < masked_stages) find_mask<KEYS>(t, stage + 1, 0);
        warpgroup_wait<1>();
        register_fence(s);
        test_keys(stage + 2);
        softmax_stage(q_rows(tile % Q_STAGES), i < masked_stages, stage + 1);
        warpgroup_wait<0>();
        register_fence(o);
        release_values(stage);
        if (softmax.rescale) softmax.rescale_o(o);
        round_p<KEYS>();
    }

    /* O += P V of a tile's last stage and its epilogue, overlapped with S of the next tile's first
     * stage. It gives the turn away before that, because waiting for the next tile takes longer
     * than the product in flight. Returns the stages of the next tile. */
    __device__ __forceinline__ int32_t end_tile_overlapped(uint32_t tile, uint32_t stage,
                                                           bool first) {
        const tile_info *t = &m->tiles[tile % TILES];
        wait_turn();
        issue_pv<false>(stage, first);
        give_turn();
        const int32_t stages = wait_tile(tile + 1);
        if (stages >= 0) wait_first_keys(tile + 1, stage + 1);
        /* after the last tile this is a dummy product: the compiler needs one on every path */
        const uint32_t q = q_operand(tile + 1), k = k_operand(stage + 1, first_key());
        issue_qk(q, k);
        warpgroup_wait<1>();
        register_fence(o);
        release_values(stage);
        store_o(tile);
        warpgroup_wait<0>();
        register_fence(s);
        store_lse(t, tile);
        return stages;
    }

    /* The same without overlap, where there is room for one tile of Q only. */
    __device__ __forceinline__ int32_t end_tile(uint32_t tile, uint32_t stage, bool first) {
        issue_pv<false>(stage, first);
        warpgroup_wait<0>();
        register_fence(o);
        release_values(stage);
        store_o(tile);
        store_lse(&m->tiles[tile % TILES], tile);
        return wait_tile(tile + 1);
    }

    __device__ __forceinline__ void store_o(uint32_t tile) {
        epilogue<T, Shape>::store_o_shared(m, tile % Q_STAGES, at, softmax.row_sum, o);
    }
    /* Also hands the tile to the warp that writes O. */
    __device__ __forceinline__ void store_lse(const tile_info *t, uint32_t tile) {
        epilogue<T, Shape>::store_lse(a, t, at, scale, softmax, o);
        __syncwarp();
        if (at.lane == 0) mbarrier_arrive(&m->o_full[tile % Q_STAGES]);
    }

    __device__ __forceinline__ void run() {
        grid_dependency_wait();
        uint32_t stage = 0; /* counted through all tiles */
        keys_ready = false;
        if (at.warpgroup == Shape::CONSUMERS - 1) give_turn();
        int32_t stages = wait_tile(0);
        if (stages < 0) return;
        if (OVERLAPS_EPILOGUE) issue_first_qk(0, stage);
        for (uint32_t tile = 0;; tile++) {
            softmax.reset();
            if (!OVERLAPS_EPILOGUE) issue_first_qk(tile, stage);
            first_stage(tile, stage);
            const uint32_t q = q_operand(tile);
            int32_t i = 1;
            if (halved) next_stage<true>(tile, q, i++, stage++);
            for (; i < stages; i++, stage++) next_stage<false>(tile, q, i, stage);
            const bool first = stages == 1;
            wait_values(stage);
            softmax.reduce_sum();
            stages = OVERLAPS_EPILOGUE ? end_tile_overlapped(tile, stage, first)
                                       : end_tile(tile, stage, first);
            if (stages < 0) return;
            stage++;
        }
    }
};

} // namespace tess

#endif // TESS_CUDA_SM90_MAINLOOP_FORWARD_CUH
