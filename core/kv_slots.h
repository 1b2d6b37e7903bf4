/* SPDX-License-Identifier: Apache-2.0 */
/* Where the key blocks of each kv head lie in a compact KV cache, and which kv heads share one
 * pool. */
#ifndef TESSERA_CORE_KV_SLOTS_H
#define TESSERA_CORE_KV_SLOTS_H

#include "layout.h"

/*
 * Of the blocks below j let s be fixed and n not. A fixed block has slot min(n, ring) + s for good.
 * Another one takes the place of block number n mod ring among those that are not fixed. So slot =
 * block until the ring is full, and a longer sequence only adds slots.
 *
 * The ring holds what is not fixed among any `local` + ceil(max_chunk / block) blocks in a row.
 * Those are the blocks that a query at position p reads, and all blocks up to that of position
 * p + max_chunk. A query therefore finds its keys as long as no key past p + max_chunk was ever
 * written.
 *
 * Of a part of a sequence's keys, which begins with block `first`, only the blocks from there on
 * are counted, and slots begin at 0. What a ring holds does not depend on where it begins. So
 * slots depend on which of the part's blocks are fixed: parts with equal *phases* have equal ones.
 * Of S2 the phase is first modulo the stride, of a window how many blocks of sinks come before, and
 * of a caller's mask `first` itself, as far as the block after the last fixed one.
 */

/* kv_examine.c: fills n_slot_lists, n_storages and the store of each kv head. */
tess_status tess_kv_slots_examine(tess_layout *layout, const char *function);

/* Slots that `blocks` blocks of a kv head take, the first of them block `first`. */
int64_t tess_kv_slots_taken(const tess_layout *layout, int32_t kv_head, int64_t first,
                            int64_t blocks);

/* Token places that so many tokens take in a storage group's pool, the first of them that of block
 * `first`, or wherever the part begins. Never falls as tokens rise. */
int64_t tess_kv_slots_tokens(const tess_layout *layout, uint32_t storage, int64_t first,
                             int64_t tokens);
int64_t tess_kv_slots_most_tokens(const tess_layout *layout, uint32_t storage, int64_t tokens);

/* How many phases there are, and that of a part; a part that begins with the block of the phase's
 * number has it. */
int64_t tess_kv_slots_phases(const tess_layout *layout);
int64_t tess_kv_slots_phase(const tess_layout *layout, int64_t first);

/* Fills the two tables of a compact plan: heads[n_kv_heads], and the lists of slots, each of
 * n_entries = n_phases * n_blocks: n_blocks for each phase, in which blocks are counted from the
 * part's first one. phases NULL: those from 0 on. slots[n_slot_lists * n_entries]; the caller has
 * checked that this stays below 2^32. O(n_entries) for each list. */
void tess_kv_slots_heads(const tess_layout *layout, uint32_t n_entries, tess_kv_head *heads);
void tess_kv_slots_fill(const tess_layout *layout, const uint32_t *phases, uint32_t n_phases,
                        uint32_t n_blocks, tess_slot *slots);

#endif
