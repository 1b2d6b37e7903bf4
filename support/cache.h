/* SPDX-License-Identifier: Apache-2.0 */
/* Where K and V of a problem with page= or compact= lie: the pools of each storage group, and a
 * block table of random ids. Keys come in plain order and are laid at their places here, one after
 * the other, so that a block takes over the slot of the one before it as in a running server. */
#ifndef TESSERA_SUPPORT_CACHE_H
#define TESSERA_SUPPORT_CACHE_H

#include "problem.h"

typedef struct cache_group {
    int32_t heads, *kv_heads; /* their number and ids, in the order of the pool */
    int64_t tokens;           /* token places that the longest sequence takes */
    int64_t pages;            /* pages that all sequences take; 0 without pages */
    uint64_t bytes;           /* of K, and as many of V, that all sequences take, with scales */
    uint64_t pool_places;     /* of tokens in a pool, which has `pages` of the cache */
} cache_group;

typedef struct cache {
    const problem *problem;
    const tess_layout *layout;
    cache_group *groups;
    uint32_t n_groups;
    int64_t pages;        /* of every pool: what the largest group needs */
    int64_t table_stride; /* pages of the longest sequence */
    int32_t *table;       /* [n_groups][batch][table_stride]; past a sequence's pages -1 */
    uint64_t table_bytes;
} cache;

/* The ids of pages follow from the problem's seed. Problem and layout must outlive the cache, which
 * is released in every case. OUT_OF_MEMORY, or what the library answers. */
tess_status cache_create(cache *c, const problem *p, const tess_layout *layout);
void cache_release(cache *c);

/* Bytes of K and V that all sequences take, over all groups. */
uint64_t cache_bytes(const cache *c);

/* What a pool holds of each key: its elements, or where K and V have 8 bits its scale. */
typedef enum cache_part { CACHE_ELEMENTS, CACHE_SCALES } cache_part;

/* The bytes of a group's pool, and its strides at `buffer`. */
uint64_t cache_pool_bytes(const cache *c, uint32_t group, cache_part part);
tess_tensor cache_pool(const cache *c, uint32_t group, cache_part part, tess_buffer buffer);

/* Lays a part of K or V into `pool` (cache_pool_bytes): places that no key has are left as they
 * are. `plain` is [batch, kv_len, kv_heads, head_dim], or packed [tokens, kv_heads, head_dim], and
 * of scales without the last dimension. */
tess_status cache_lay(const cache *c, uint32_t group, cache_part part, const void *plain,
                      void *pool);

#endif
