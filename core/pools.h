/* SPDX-License-Identifier: Apache-2.0 */
/* The storage groups of a plan: which kv heads share a pool of K and one of V, how many tokens of
 * it a sequence takes, and where the group's jobs begin. */
#ifndef TESSERA_CORE_POOLS_H
#define TESSERA_CORE_POOLS_H

#include "layout.h"
#include "memory_plan.h"

typedef struct tess_pool {
    uint32_t heads;                  /* kv heads */
    int64_t tokens;                  /* of the longest sequence */
    uint64_t first_job[TESS_SHARES]; /* of each share; those of a group follow each other */
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
    /* Where keys are parts: the phases (kv_slots.h) that each list is there for, n_blocks each. */
    uint32_t n_phases;
    uint32_t *phases; /* rising; NULL: those from 0 on */
    uint64_t phases_bytes;
} tess_pools;

/* Where the keys of sequences begin, in key blocks. */
typedef struct tess_part_starts {
    bool any;                       /* the device will tell, and all else is empty */
    const uint32_t *first_block;    /* [n]; NULL: 0 */
    const tess_sequence *sequences; /* [n] */
    uint32_t n;
} tess_part_starts;

/* Whether K and V have a batch dimension also where rows are packed. */
static inline bool tess_pools_cached(const tess_pools *pools) {
    return pools->compact || pools->page != 0;
}

/* Fills everything but first_job for sequences of at most max_kv_len keys; `compact` and `page` are
 * given. */
tess_status tess_pools_create(tess_pools *pools, tess_runtime *runtime, const tess_layout *layout,
                              int64_t max_kv_len, const tess_part_starts *starts);
void tess_pools_release(tess_pools *pools, tess_runtime *runtime);

/* tess_sequence.kv_start of a compact plan, for keys that begin with block `first`. */
int64_t tess_pools_kv_start(const tess_pools *pools, const tess_layout *layout, int64_t first);

/* Pages that a row of the block table needs, whatever the group. */
int64_t tess_pools_pages(const tess_pools *pools);

#endif
