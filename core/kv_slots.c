/* SPDX-License-Identifier: Apache-2.0 */
/* In which slot a kv head keeps a key block, and how much room a sequence takes. */
#include "kv_slots.h"

#include <string.h>

/* ------------------------------------------------------------------ slots */

/* How many of the blocks below `end` are fixed. For kv heads that have a ring. */
static int64_t fixed_below(const tess_layout *x, int32_t kv_head, int64_t end) {
    const tess_kv_store *store = &x->stores[kv_head];
    if (x->pattern.kind == TESS_PATTERN_WINDOW) return smaller(end, store->fixed);
    if (x->pattern.kind == TESS_PATTERN_BLOCKS)
        return store->fixed ? tess_mask_below(x->fixed + store->fixed_begin, store->fixed, end) : 0;
    int64_t below = 0;
    for (uint32_t g = x->group_start[kv_head]; g < x->group_start[kv_head + 1]; g++)
        below += tess_vertical_count(&x->patterns[x->group_classes[g]], end);
    return below;
}

/* The same of the blocks [first, end). */
static int64_t fixed_between(const tess_layout *x, int32_t kv_head, int64_t first, int64_t end) {
    return fixed_below(x, kv_head, end) - (first ? fixed_below(x, kv_head, first) : 0);
}

int64_t tess_kv_slots_taken(const tess_layout *x, int32_t kv_head, int64_t first, int64_t blocks) {
    const int64_t ring = x->stores[kv_head].ring;
    if (!ring) return blocks;
    const int64_t fixed = fixed_between(x, kv_head, first, first + blocks);
    return fixed + smaller(blocks - fixed, ring);
}

/* Of a block that is not below `first`. */
static int64_t slot_of(const tess_layout *x, int32_t kv_head, int64_t first, int64_t block) {
    const int64_t ring = x->stores[kv_head].ring;
    if (!ring) return block - first;
    const int64_t fixed = fixed_between(x, kv_head, first, block), others = block - first - fixed;
    if (others < ring) return block - first;
    if (fixed_between(x, kv_head, first, block + 1) > fixed) return ring + fixed;
    /* The block that had the place first is the first one up to which more than `turn` blocks are
     * not fixed, and its slot is its own number. */
    const int64_t turn = others % ring;
    int64_t low = first + turn, high = block;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (middle + 1 - first - fixed_between(x, kv_head, first, middle + 1) > turn)
            high = middle;
        else
            low = middle + 1;
    }
    return low - first;
}

/* ------------------------------------------------------------------ phases */

static bool has_rings(const tess_layout *x) {
    for (int32_t kv_head = 0; kv_head < x->n_kv_heads; kv_head++)
        if (x->stores[kv_head].ring) return true;
    return false;
}

/* Where the last fixed block of a window or of a caller's mask ends, in blocks. */
static int64_t fixed_end(const tess_layout *x) {
    int64_t end = 0;
    for (int32_t kv_head = 0; kv_head < x->n_kv_heads; kv_head++) {
        const tess_kv_store *store = &x->stores[kv_head];
        if (store->ring == 0 || store->fixed == 0) continue;
        const int64_t last =
            x->fixed ? x->fixed[store->fixed_begin + store->fixed - 1] : store->fixed - 1;
        end = larger(end, last + 1);
    }
    return end;
}

int64_t tess_kv_slots_phases(const tess_layout *x) {
    if (!has_rings(x)) return 1;
    const int64_t phases =
        x->pattern.kind == TESS_PATTERN_S2 ? x->pattern.stride : fixed_end(x) + 1;
    return smaller(phases, larger(x->n_blocks, 1));
}

int64_t tess_kv_slots_phase(const tess_layout *x, int64_t first) {
    const int64_t phases = tess_kv_slots_phases(x);
    if (x->pattern.kind == TESS_PATTERN_S2) return first % phases;
    return smaller(first, phases - 1);
}

/* ------------------------------------------------------------------ storage groups */

/* The end of the last token place that a kv head uses. A slot that was used before stays whole. */
static int64_t tokens_taken(const tess_layout *x, int32_t kv_head, int64_t first, int64_t tokens) {
    if (tokens == 0) return 0;
    const int64_t block = x->pattern.block, last = (tokens - 1) / block,
                  before = tess_kv_slots_taken(x, kv_head, first, last);
    return before == tess_kv_slots_taken(x, kv_head, first, last + 1)
               ? before * block
               : before * block + (tokens - last * block);
}

int64_t tess_kv_slots_tokens(const tess_layout *x, uint32_t storage, int64_t first,
                             int64_t tokens) {
    int64_t most = 0;
    for (int32_t kv_head = 0; kv_head < x->n_kv_heads; kv_head++) {
        const tess_kv_store *store = &x->stores[kv_head];
        if (store->storage == storage && store->list_head == kv_head)
            most = larger(most, tokens_taken(x, kv_head, first, tokens));
    }
    return most;
}

int64_t tess_kv_slots_most_tokens(const tess_layout *x, uint32_t storage, int64_t tokens) {
    int64_t most = 0;
    for (int64_t phase = 0; phase < tess_kv_slots_phases(x); phase++)
        most = larger(most, tess_kv_slots_tokens(x, storage, phase, tokens));
    return most;
}

/* ------------------------------------------------------------------ tables of a plan */

void tess_kv_slots_heads(const tess_layout *x, uint32_t n_entries, tess_kv_head *heads) {
    for (int32_t kv_head = 0; kv_head < x->n_kv_heads; kv_head++) {
        const tess_kv_store *store = &x->stores[kv_head];
        heads[kv_head] = (tess_kv_head){.storage = store->storage,
                                        .pool_head = store->pool_head,
                                        .slots_offset = store->list * n_entries};
    }
}

/* Sets `next` of fixed blocks to TESS_NO_BLOCK and of the others to 0, which no block takes over
 * from. */
static void mark_fixed(const tess_layout *x, int32_t kv_head, int64_t first, uint32_t n_blocks,
                       tess_slot *slots) {
    const tess_kv_store *store = &x->stores[kv_head];
    memset(slots, 0, n_blocks * sizeof *slots);
    if (x->pattern.kind == TESS_PATTERN_S2) {
        for (uint32_t g = x->group_start[kv_head]; g < x->group_start[kv_head + 1]; g++) {
            const tess_head_pattern *pattern = &x->patterns[x->group_classes[g]];
            const int64_t before = tess_vertical_count(pattern, first);
            for (int64_t j = pattern->first + before * pattern->stride - first; j < n_blocks;
                 j += pattern->stride)
                slots[j].next = TESS_NO_BLOCK;
        }
        return;
    }
    const uint32_t *list = x->fixed ? x->fixed + store->fixed_begin : NULL; /* WINDOW: the first */
    const int64_t end = fixed_below(x, kv_head, first + n_blocks);
    for (int64_t f = fixed_below(x, kv_head, first); f < end; f++)
        slots[(list ? list[f] : f) - first].next = TESS_NO_BLOCK;
}

/* One list, of a part that begins with block `first`, from which all blocks are counted. `old`
 * follows `ring` blocks that are not fixed behind the block at hand, whose place that one takes
 * over. */
static void fill_list(const tess_layout *x, int32_t kv_head, int64_t first, uint32_t n_blocks,
                      tess_slot *slots) {
    const int64_t ring = x->stores[kv_head].ring;
    if (!ring) {
        for (uint32_t j = 0; j < n_blocks; j++) slots[j] = (tess_slot){j, TESS_NO_BLOCK};
        return;
    }
    mark_fixed(x, kv_head, first, n_blocks, slots);
    uint32_t old = 0, fixed = 0;
    for (uint32_t j = 0; j < n_blocks; j++) {
        const uint32_t others = j - fixed;
        if (slots[j].next == TESS_NO_BLOCK) {
            slots[j].slot = (uint32_t)smaller(others, ring) + fixed;
            fixed++;
        } else if (others < ring) {
            slots[j].slot = j;
        } else {
            while (slots[old].next == TESS_NO_BLOCK) old++;
            slots[j].slot = slots[old].slot;
            slots[old++].next = j;
        }
    }
    for (uint32_t j = old; j < n_blocks; j++) slots[j].next = TESS_NO_BLOCK;
}

void tess_kv_slots_fill(const tess_layout *x, const uint32_t *phases, uint32_t n_phases,
                        uint32_t n_blocks, tess_slot *slots) {
    for (int32_t kv_head = 0; kv_head < x->n_kv_heads; kv_head++) {
        const tess_kv_store *store = &x->stores[kv_head];
        if (store->list_head != kv_head) continue;
        for (uint32_t n = 0; n < n_phases; n++)
            fill_list(x, kv_head, phases ? phases[n] : n, n_blocks,
                      slots + ((size_t)store->list * n_phases + n) * n_blocks);
    }
}

/* ------------------------------------------------------------------ public */

static tess_status check_kv_head(const tess_layout *x, const char *function, int32_t kv_head) {
    TESS_RETURN_IF_ERROR(tess_layout_check(x, function));
    TESS_RETURN_IF_ERROR(tess_check_index(function, "kv_head", kv_head, x->n_kv_heads));
    return TESS_OK;
}

/* kv_first, from which `tokens` tokens follow. */
static tess_status check_first(const tess_layout *x, const char *function, int64_t kv_first,
                               int64_t tokens) {
    const int64_t block = x->pattern.block;
    if (kv_first < 0 || kv_first > x->max_tokens - tokens)
        return tess_invalid("%s: kv_first: must be 0 to %lld, got %lld", function,
                            (long long)(x->max_tokens - tokens), (long long)kv_first);
    if (kv_first % block == 0) return TESS_OK;
    return tess_invalid("%s: kv_first: must be a multiple of block (%lld), got %lld", function,
                        (long long)block, (long long)kv_first);
}

tess_status tess_layout_kv(const tess_layout *x, int32_t kv_head, tess_kv_info *info) {
    static const char *const function = "tess_layout_kv";
    TESS_RETURN_IF_ERROR(check_kv_head(x, function, kv_head));
    const tess_kv_store *store = &x->stores[kv_head];
    const int64_t n = x->n_blocks, local = smaller(store->local, n);
    tess_kv_info full;
    memset(&full, 0, sizeof full);
    full.blocks = n;
    full.blocks_kept = store->ring ? local + fixed_below(x, kv_head, n - local) : n;
    full.blocks_allocated = tess_kv_slots_taken(x, kv_head, 0, n);
    full.slots_fixed = store->ring ? fixed_below(x, kv_head, n) : n;
    full.slots_ring = full.blocks_allocated - full.slots_fixed;
    return tess_info_write(function, info, &full, TESS_KV_INFO);
}

static tess_status find_slot(const tess_layout *x, const char *function, int32_t kv_head,
                             int64_t kv_first, int64_t block, int64_t *slot) {
    TESS_RETURN_IF_ERROR(check_kv_head(x, function, kv_head));
    TESS_RETURN_IF_ERROR(check_first(x, function, kv_first, 0));
    TESS_RETURN_IF_ERROR(tess_check_index(function, "block", block, x->n_blocks));
    const int64_t first = kv_first / x->pattern.block;
    if (block < first)
        return tess_invalid("%s: block: must be at least %lld, that of kv_first, got %lld",
                            function, (long long)first, (long long)block);
    if (!slot) return tess_invalid("%s: slot: must not be NULL", function);
    *slot = slot_of(x, kv_head, first, block);
    return TESS_OK;
}

tess_status tess_layout_slot(const tess_layout *x, int32_t kv_head, int64_t block, int64_t *slot) {
    return find_slot(x, "tess_layout_slot", kv_head, 0, block, slot);
}

tess_status tess_layout_part_slot(const tess_layout *x, int32_t kv_head, int64_t kv_first,
                                  int64_t block, int64_t *slot) {
    return find_slot(x, "tess_layout_part_slot", kv_head, kv_first, block, slot);
}

static tess_status check_storage(const tess_layout *x, const char *function, uint32_t storage) {
    TESS_RETURN_IF_ERROR(tess_layout_check(x, function));
    return tess_check_index(function, "storage", storage, x->n_storages);
}

tess_status tess_layout_storage(const tess_layout *x, uint32_t storage, tess_storage_info *info,
                                int32_t *kv_heads) {
    static const char *const function = "tess_layout_storage";
    TESS_RETURN_IF_ERROR(check_storage(x, function, storage));
    tess_storage_info full;
    memset(&full, 0, sizeof full);
    const tess_kv_store *store = x->stores; /* of the group's first kv head */
    while (store->storage != storage) store++;
    full.n_kv_heads = store->members;
    full.ring_slots = store->ring;
    full.stride = !store->ring ? 1 : x->pattern.kind == TESS_PATTERN_S2 ? x->pattern.stride : 0;
    full.slots_per_stride = store->ring ? store->fixed : 1;
    TESS_RETURN_IF_ERROR(tess_info_write(function, info, &full, TESS_STORAGE_INFO));
    for (int32_t kv_head = 0; kv_heads && kv_head < x->n_kv_heads; kv_head++)
        if (x->stores[kv_head].storage == storage) kv_heads[x->stores[kv_head].pool_head] = kv_head;
    return TESS_OK;
}

static tess_status check_pages(const tess_layout *x, const char *function, uint32_t storage,
                               int64_t tokens, int32_t page, const int64_t *pages) {
    TESS_RETURN_IF_ERROR(check_storage(x, function, storage));
    TESS_RETURN_IF_ERROR(tess_check_not_negative(function, "tokens", tokens));
    if (tokens > x->max_tokens)
        return tess_invalid("%s: tokens: must be at most %lld (max_tokens), got %lld", function,
                            (long long)x->max_tokens, (long long)tokens);
    if (page != 0 && page != 16 && page != 32 && page != 64 && page != 128 && page != 256)
        return tess_invalid("%s: page: must be 16, 32, 64, 128 or 256, or 0 for token places, "
                            "got %d",
                            function, (int)page);
    return pages ? TESS_OK : tess_invalid("%s: pages: must not be NULL", function);
}

tess_status tess_layout_pages(const tess_layout *x, uint32_t storage, int64_t tokens, int32_t page,
                              int64_t *pages) {
    TESS_RETURN_IF_ERROR(check_pages(x, "tess_layout_pages", storage, tokens, page, pages));
    *pages = ceil_div(tess_kv_slots_tokens(x, storage, 0, tokens), page ? page : 1);
    return TESS_OK;
}

tess_status tess_layout_part_pages(const tess_layout *x, uint32_t storage, int64_t kv_first,
                                   int64_t tokens, int32_t page, int64_t *pages) {
    static const char *const function = "tess_layout_part_pages";
    TESS_RETURN_IF_ERROR(check_pages(x, function, storage, tokens, page, pages));
    const bool any = kv_first == TESS_ANY_FIRST;
    if (!any) TESS_RETURN_IF_ERROR(check_first(x, function, kv_first, tokens));
    *pages = ceil_div(any ? tess_kv_slots_most_tokens(x, storage, tokens)
                          : tess_kv_slots_tokens(x, storage, kv_first / x->pattern.block, tokens),
                      page ? page : 1);
    return TESS_OK;
}
