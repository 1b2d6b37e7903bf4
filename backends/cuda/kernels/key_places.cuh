/* SPDX-License-Identifier: Apache-2.0 */
/* Where the keys of a job lie in K and V: by position, or by the slot of their block, and there in
 * one tensor or in pages. */
#ifndef TESS_CUDA_KEY_PLACES_CUH
#define TESS_CUDA_KEY_PLACES_CUH

#include "jobs.cuh"

namespace tess {

/* Where a key is: a token of its page, or of all, and the page. */
struct key_place {
    int64_t token;
    int32_t id;
    bool there;
};

/* 8-bit codes are addressed in pairs: two of them count as one element here. */
struct key_places {
    const uint16_t *first[2];  /* of K and of V: the job's kv head in the sequence, or in page 0 */
    int64_t token[2], page[2]; /* strides in elements */
    int64_t start;             /* the token at position 0 */
    const int32_t *table;      /* the sequence's page ids; NULL: no pages */
    const uint32_t *slots;     /* of the kv head's blocks; NULL: by position */
    uint32_t pages;
    int32_t page_shift, block, block_shift;

    /* `a`: what the kernel is given. `codes`: 1 where K and V are codes, else 0. */
    template <typename Args>
    __device__ __forceinline__ void make(const Args *a, const job_words *j, int32_t shift,
                                         int codes = 0) {
        const tess_args *c = &a->common;
        const uint32_t *tables = (const uint32_t *)a->tables;
        uint32_t kv_head = j->head / (int32_t)c->group;
        slots = 0;
        if (c->flags & TESS_ARGS_COMPACT) {
            const uint32_t *words = tables + c->kv_heads_at + kv_head * TESS_KV_HEAD_WORDS;
            kv_head = table_word(words + TESS_WORD_KV_HEAD_POOL_HEAD);
            slots = tables + c->slots_at +
                    ((int64_t)table_word(words + TESS_WORD_KV_HEAD_SLOTS_OFFSET) + j->kv_start) *
                        (int64_t)TESS_SLOT_WORDS;
        }
        table = 0;
        if (c->flags & TESS_ARGS_PAGED)
            table = (const int32_t *)a->block_table + j->kv_batch * c->block_table_batch;
        const int64_t batch = table ? 0 : j->kv_batch;
        first[0] = (const uint16_t *)a->k + ((batch * c->k_batch + kv_head * c->k_head) >> codes);
        first[1] = (const uint16_t *)a->v + ((batch * c->v_batch + kv_head * c->v_head) >> codes);
        token[0] = c->k_token >> codes;
        token[1] = c->v_token >> codes;
        page[0] = c->k_batch >> codes;
        page[1] = c->v_batch >> codes;
        start = slots ? 0 : j->kv_start;
        pages = c->pages;
        page_shift = 31 - __clz((int32_t)c->page);
        block = c->block;
        block_shift = shift;
    }

    /* The job's kv head in K and V. */
    template <typename Args>
    static __device__ __forceinline__ uint32_t kv_head_of(const Args *a, const job_words *j) {
        const tess_args *c = &a->common;
        const uint32_t kv_head = j->head / (int32_t)c->group;
        if (!(c->flags & TESS_ARGS_COMPACT)) return kv_head;
        return table_word((const uint32_t *)a->tables + c->kv_heads_at +
                          kv_head * TESS_KV_HEAD_WORDS + TESS_WORD_KV_HEAD_POOL_HEAD);
    }

    /* The token at position t. IN_PLACE, here and below: there are neither pages nor slots. */
    template <bool IN_PLACE = false> __device__ __forceinline__ int64_t token_of(int32_t t) const {
        int64_t u = start + t;
        if (!IN_PLACE && slots) {
            const int32_t j = block_shift >= 0 ? t >> block_shift : t / block;
            const uint32_t slot = slots[(uint64_t)j * TESS_SLOT_WORDS + TESS_WORD_SLOT_SLOT];
            u += ((int64_t)slot - j) * block;
        }
        return u;
    }

    template <bool IN_PLACE = false> __device__ __forceinline__ key_place find(int32_t t) const {
        key_place at = {token_of<IN_PLACE>(t), 0, true};
        if (!IN_PLACE && table) {
            at.id = table[at.token >> page_shift];
            at.there = (uint32_t)at.id < pages;
            at.token &= (1 << page_shift) - 1;
        }
        return at;
    }

    /* The row of a key in K (0) or V (1); NULL where there is none. */
    __device__ __forceinline__ const uint16_t *row(int32_t t, int tensor) const {
        if (t == NO_TOKEN) return 0;
        const key_place at = find(t);
        return at.there ? row(at, 0, tensor) : 0;
    }

    /* The row in K (0) or V (1) of the key `next` tokens behind a place, in the same page. */
    template <bool IN_PLACE = false>
    __device__ __forceinline__ const uint16_t *row(const key_place &at, int next,
                                                   int tensor) const {
        return first[tensor] + (!IN_PLACE && table ? at.id * page[tensor] : 0) +
               (at.token + next) * token[tensor];
    }
};

/* Where the scales of K and of V lie, likewise. */
struct scale_places {
    const float *first[2];
    int64_t token[2], page[2];

    template <typename Args>
    __device__ __forceinline__ void make(const Args *a, const key_places *places,
                                         const job_words *j) {
        const tess_args *c = &a->common;
        const uint32_t kv_head = places->kv_head_of(a, j);
        const int64_t batch = places->table ? 0 : j->kv_batch;
        first[0] = (const float *)a->k_scale + batch * c->k_scale_batch + kv_head * c->k_scale_head;
        first[1] = (const float *)a->v_scale + batch * c->v_scale_batch + kv_head * c->v_scale_head;
        token[0] = c->k_scale_token;
        token[1] = c->v_scale_token;
        page[0] = c->k_scale_batch;
        page[1] = c->v_scale_batch;
    }

    /* The scale of the key `next` tokens behind a place, in the same page. */
    __device__ __forceinline__ const float *scale(const key_places *places, const key_place &at,
                                                  int next, int tensor) const {
        return first[tensor] + (places->table ? at.id * page[tensor] : 0) +
               (at.token + next) * token[tensor];
    }
};

} // namespace tess

#endif // TESS_CUDA_KEY_PLACES_CUH
