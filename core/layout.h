/* SPDX-License-Identifier: Apache-2.0 */
/* A layout: a checked pattern, with its heads grouped into classes. Immutable once created. */
#ifndef TESSERA_CORE_LAYOUT_H
#define TESSERA_CORE_LAYOUT_H

#include "pattern.h"

/* How a kv head stores its key blocks. Blocks that may be read long after they were written keep a
 * slot of their own; the others share a ring. */
typedef struct tess_kv_store {
    /* every block without a slot of its own is read for the last time so many blocks later, the
     * query's own included */
    int64_t local;
    int64_t fixed;        /* blocks with a slot of their own */
    int64_t kept;         /* those and the last `local` ones, each counted once */
    int64_t ring;         /* slots of the ring; 0: slot = block */
    uint64_t fixed_begin; /* BLOCKS: where the list of fixed blocks begins in tess_layout.fixed */
} tess_kv_store;

struct tess_layout {
    atomic_uint refs;
    tess_runtime *runtime;
    tess_pattern pattern; /* checked, defaults filled in; `mask` is NULL */
    int32_t n_heads, n_kv_heads, head_first, heads_total;
    /* 0: not given, and heads_total makes no whole number; only patterns per kv head need it */
    int32_t kv_heads_total;
    int64_t max_tokens, max_chunk, n_blocks;

    uint32_t n_classes;
    tess_head_pattern *patterns; /* [n_classes] */
    uint32_t *class_heads;       /* [n_classes] heads of each class */
    uint16_t *head_class;        /* [n_heads] */
    uint32_t *group_start;       /* [n_kv_heads + 1] into group_classes */
    uint16_t *group_classes;     /* the distinct classes of each kv head, in order of first use */
    void *memory;                /* of the arrays above */
    uint64_t memory_bytes;

    tess_mask_set mask; /* BLOCKS */

    /* What layout_report.c and kv_slots.c found out at creation. */
    bool kv_efficient;
    uint32_t residues;
    double coverage;
    tess_kv_store *stores; /* BLOCKS: [n_kv_heads]; other kinds compute it when asked */
    uint32_t *fixed;       /* BLOCKS: blocks with a slot of their own, per kv head, rising */
    uint64_t stores_bytes, fixed_bytes;
};

void tess_layout_retain(const tess_layout *layout);
tess_status tess_layout_check(const tess_layout *layout, const char *function); /* NULL or forked */

/* Creates a layout from a descriptor that tess_desc_read has read. `mask` (BLOCKS) may be packed
 * and replaces pattern.mask. Messages begin with `function`. */
tess_status tess_layout_build(tess_runtime *runtime, const char *function,
                              const tess_layout_desc *desc, const tess_pattern *pattern,
                              const tess_mask *mask, tess_layout **layout);

/* layout_report.c: fills coverage, residues, KV-efficiency and, for BLOCKS, the storage of each kv
 * head. */
tess_status tess_layout_examine(tess_layout *layout, const char *function);

/* kv_slots.c: fills the storage of each kv head of a KV-efficient BLOCKS layout. */
tess_status tess_kv_slots_examine(tess_layout *layout, const char *function);

#endif
