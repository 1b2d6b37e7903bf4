/* SPDX-License-Identifier: Apache-2.0 */
/* The storage groups of a plan: which kv heads share a pool of K and one of V, how many tokens of
 * it a sequence takes, and where the group's jobs begin. */
#ifndef TESSERA_CORE_POOLS_H
#define TESSERA_CORE_POOLS_H

#include "layout.h"

typedef struct tess_pool {
    uint32_t heads;     /* kv heads */
    int64_t tokens;     /* of the longest sequence */
    uint64_t first_job; /* those of a group follow each other */
} tess_pool;

typedef struct tess_pools {
    bool compact;
    int32_t page;   /* tokens; 0: contiguous */
    uint32_t n;     /* storage groups; 1 unless compact */
    tess_pool *all; /* [n + 1] the last one has first_job only */
    tess_pool one[2];
    /* Compact: */
    tess_kv_head *kv_heads; /* [n_kv_heads] */
    uint32_t *kv_order;     /* [n_kv_heads] the kv heads of each group, one group after the other */
    void *memory;           /* of all three arrays */
    uint64_t bytes;
    uint32_t n_blocks; /* key blocks of the longest sequence, which each list of slots has */
    uint64_t n_slots;  /* of all lists */
} tess_pools;

/* Whether K and V have a batch dimension also where rows are packed. */
static inline bool tess_pools_cached(const tess_pools *pools) {
    return pools->compact || pools->page != 0;
}

/* Fills everything but first_job for sequences of at most max_kv_len keys; `compact` and `page` are
 * given. */
tess_status tess_pools_create(tess_pools *pools, tess_runtime *runtime, const tess_layout *layout,
                              int64_t max_kv_len);
void tess_pools_release(tess_pools *pools, tess_runtime *runtime);

/* Pages that a row of the block table needs, whatever the group. */
int64_t tess_pools_pages(const tess_pools *pools);

#endif
