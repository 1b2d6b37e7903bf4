/* SPDX-License-Identifier: Apache-2.0 */
/* A layout: a checked pattern, with its heads grouped into classes. Immutable once created. */
#ifndef TESSERA_CORE_LAYOUT_H
#define TESSERA_CORE_LAYOUT_H

#include "pattern.h"

/* How a kv head stores its key blocks. Blocks that may be read long after they were written are
 * fixed: they keep a slot of their own. The others share a ring (kv_slots.h). */
typedef struct tess_kv_store {
    /* every block that is not fixed is read for the last time so many blocks later, the query's own
     * included */
    int64_t local;
    int64_t ring;         /* slots of the ring; 0: slot = block */
    int64_t fixed;        /* fixed blocks: S2 of every `stride` in a row, others in all */
    uint64_t fixed_begin; /* BLOCKS: where the list of fixed blocks begins in tess_layout.fixed */
    uint32_t list;        /* of slots, which kv heads with equal fixed blocks share */
    int32_t list_head;    /* the first kv head that has it */
    uint32_t storage;     /* group of kv heads with equal `ring` and `fixed`, which share a pool */
    uint32_t pool_head;   /* its head among those of the group */
    uint32_t members;     /* of the group's first kv head: kv heads of the group */
} tess_kv_store;

struct tess_layout {
    atomic_uint refs;
    tess_runtime *runtime;
    tess_pattern pattern; /* checked, defaults filled in; `mask` is NULL */
    int32_t n_heads, n_kv_heads, head_first, heads_total;
    /* 0: not given, and heads_total makes no whole number; only patterns per kv head need it */
    int32_t kv_heads_total;
    int64_t max_tokens, max_chunk, n_blocks;
    /* [NULL: head_first + 0, 1, ...] never that: such a list is read as its head_first */
    int32_t *head_ids;

    uint32_t n_classes;
    tess_head_pattern *patterns; /* [n_classes] */
    uint32_t *class_heads;       /* [n_classes] heads of each class */
    uint16_t *head_class;        /* [n_heads] */
    uint32_t *group_start;       /* [n_kv_heads + 1] into group_classes */
    /* The distinct classes of each kv head: in order of first use, or with head_ids by falling
     * residue, which is the same but for where it begins. */
    uint16_t *group_classes;
    void *memory; /* of the arrays above */
    uint64_t memory_bytes;

    tess_mask_set mask; /* BLOCKS */

    /* What layout_report.c and kv_examine.c found out at creation. */
    bool kv_efficient;
    uint32_t residues;
    double coverage;
    uint32_t n_slot_lists, n_storages;
    tess_kv_store *stores; /* [n_kv_heads] */
    uint32_t *fixed;       /* BLOCKS: the fixed blocks of each list of slots, rising */
    uint64_t stores_bytes, fixed_bytes;
};

void tess_layout_retain(const tess_layout *layout);
tess_status tess_layout_check(const tess_layout *layout, const char *function); /* NULL or forked */

/* Creates a layout from a descriptor that tess_desc_read has read. `mask` (BLOCKS) may be packed
 * and replaces pattern.mask. Messages begin with `function`. */
tess_status tess_layout_build(tess_runtime *runtime, const char *function,
                              const tess_layout_desc *desc, const tess_pattern *pattern,
                              const tess_mask *mask, tess_layout **layout);

/* layout_report.c: fills coverage, residues, KV-efficiency and the storage of each kv head. */
tess_status tess_layout_examine(tess_layout *layout, const char *function);

#endif
