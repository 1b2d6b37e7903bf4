/* SPDX-License-Identifier: Apache-2.0 */
/* Where the keys of a job lie in K and V: by position, or by the slot of their block, and there in
 * one tensor or in pages. */
#ifndef TESS_CUDA_KEY_PLACES_CUH
#define TESS_CUDA_KEY_PLACES_CUH

#include "decode_args.h"
#include "jobs.cuh"

namespace tess {

struct key_places {
    const uint16_t *first[2];  /* of K and of V: the job's kv head in the sequence, or in page 0 */
    int64_t token[2], page[2]; /* strides in elements */
    int64_t start;             /* the token that position 0 has there */
    const int32_t *table;      /* the sequence's page ids; NULL: no pages */
    const uint32_t *slots;     /* of the kv head's blocks, two words each; NULL: by position */
    int64_t pages;
    int32_t page_shift, block, block_shift;

    __device__ __forceinline__ void make(const tess_decode_args *a, const job_words *j,
                                         int32_t shift) {
        const tess_args *c = &a->common;
        uint32_t kv_head = j->head / (int32_t)c->group;
        slots = 0;
        if (a->kv_heads) { /* words of a tess_kv_head: storage, pool_head, slots_offset */
            const uint32_t *words = (const uint32_t *)a->kv_heads + 4 * kv_head;
            kv_head = words[1];
            slots = (const uint32_t *)a->slots + 2 * (uint64_t)words[2];
        }
        table = 0;
        page_shift = 0;
        if (a->page_shift != TESS_DECODE_NO_PAGES) {
            page_shift = (int32_t)a->page_shift;
            table = (const int32_t *)a->block_table + j->batch * a->table_stride;
        }
        const int64_t batch = table ? 0 : j->batch;
        first[0] = (const uint16_t *)a->k + batch * c->k_batch + kv_head * c->k_head;
        first[1] = (const uint16_t *)a->v + batch * c->v_batch + kv_head * c->v_head;
        token[0] = c->k_token;
        token[1] = c->v_token;
        page[0] = c->k_batch;
        page[1] = c->v_batch;
        start = slots ? 0 : j->kv_start;
        pages = a->pages;
        block = c->block;
        block_shift = shift;
    }

    /* The row of a key in K (0) or V (1); NULL where there is none. */
    __device__ __forceinline__ const uint16_t *row(int32_t t, int tensor) const {
        if (t == NO_TOKEN) return 0;
        int64_t u = start + t;
        if (slots) {
            const int32_t j = block_shift >= 0 ? t >> block_shift : t / block;
            u += (int64_t)((int32_t)slots[2 * (int64_t)j] - j) * block;
        }
        const uint16_t *from = first[tensor];
        if (table) {
            const int32_t id = table[u >> page_shift];
            if (id < 0 || id >= pages) return 0;
            from += id * page[tensor];
            u &= (1 << page_shift) - 1;
        }
        return from + u * token[tensor];
    }
};

} // namespace tess

#endif // TESS_CUDA_KEY_PLACES_CUH
