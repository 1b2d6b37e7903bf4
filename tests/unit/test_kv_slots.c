/* SPDX-License-Identifier: Apache-2.0 */
/* Where key blocks lie in a compact cache: thousands of random patterns, appended to and rolled
 * back at random, and every placement, table and number of pages by brute force. */
#include "fixtures/planner.h"

#include "kv_slots.h"

enum { MOST_TOKENS = 90 };

static int64_t slot_of(const tess_layout *layout, int32_t kv_head, int64_t block) {
    int64_t slot = -1;
    assert_int_equal(TESS_OK, tess_layout_slot(layout, kv_head, block, &slot));
    return slot;
}

static int64_t part_slot_of(const tess_layout *layout, int32_t kv_head, int64_t first,
                            int64_t block) {
    int64_t slot = -1;
    assert_int_equal(TESS_OK, tess_layout_part_slot(layout, kv_head, first * layout->pattern.block,
                                                    block, &slot));
    return slot;
}

static tess_storage_info storage_of(const tess_layout *layout, uint32_t storage) {
    tess_storage_info info = {.struct_size = sizeof info};
    assert_int_equal(TESS_OK, tess_layout_storage(layout, storage, &info, NULL));
    return info;
}

static int64_t pages_of(const tess_layout *layout, uint32_t storage, int64_t tokens, int32_t page) {
    int64_t pages = -1;
    assert_int_equal(TESS_OK, tess_layout_pages(layout, storage, tokens, page, &pages));
    return pages;
}

static uint32_t storages_of(const tess_layout *layout) {
    tess_layout_info info = {.struct_size = sizeof info};
    assert_int_equal(TESS_OK, tess_layout_query(layout, &info));
    return info.n_storage;
}

/* ------------------------------------------------------------------ known values */

static void assert_blocks(const tess_layout *layout, int32_t kv_head, int64_t kept, int64_t fixed,
                          int64_t ring) {
    tess_kv_info info = {.struct_size = sizeof info};
    assert_int_equal(TESS_OK, tess_layout_kv(layout, kv_head, &info));
    assert_int_equal(kept, info.blocks_kept);
    assert_int_equal(fixed, info.slots_fixed);
    assert_int_equal(ring, info.slots_ring);
    assert_int_equal(fixed + ring, info.blocks_allocated);
}

/* 128k tokens, 512 at once: what two models of the literature keep of 2,048 blocks a head. */
static void test_figures(void **state) {
    (void)state;
    tess_pattern p = s2_pattern(64, 8, 16, 0);
    p.flags = TESS_PATTERN_PER_KV_HEAD;
    tess_layout *layout = make_chunked_layout(runtime, &p, 64, 16, 131072, 512);
    assert_int_equal(1, storages_of(layout));
    assert_int_equal(16, layout->n_slot_lists);
    tess_storage_info info = storage_of(layout, 0);
    assert_int_equal(16, info.n_kv_heads);
    assert_int_equal(15, info.ring_slots);
    assert_int_equal(16, info.stride);
    assert_int_equal(1, info.slots_per_stride);
    /* Every sixteenth block, the last eight, and for half of the kv heads one that is both. */
    for (int32_t g = 0; g < 16; g++)
        assert_blocks(layout, g, 8 + (g == 0 || g > 8 ? 128 : 127), 128, 15);
    for (int32_t page = 16; page <= 256; page *= 2)
        assert_int_equal((143 * 64 + page - 1) / page, pages_of(layout, 0, 131072, page));
    tess_layout_release(layout);

    p = s2_pattern(64, 16, 8, 1); /* Phi-3-small */
    layout = make_chunked_layout(runtime, &p, 32, 8, 131072, 512);
    assert_int_equal(1, storages_of(layout));
    assert_int_equal(2, layout->n_slot_lists);
    for (int32_t g = 0; g < 8; g++) assert_blocks(layout, g, 1024 + 8, 1024, 12);
    assert_int_equal(1036, pages_of(layout, 0, 131072, 64));
    tess_layout_release(layout);
}

/* The dense heads of a sparse layer have a pool of their own, whichever kv heads they are. */
static void test_groups_of_a_hybrid(void **state) {
    (void)state;
    tess_pattern p = s2_pattern(16, 4, 8, 0);
    p.dense_heads = 3; /* the last one of kv head 2, and both of kv head 3 */
    tess_layout *layout = make_chunked_layout(runtime, &p, 8, 4, 4096, 16);
    int32_t heads[2] = {-1, -1};
    tess_storage_info info = {.struct_size = sizeof info};
    assert_int_equal(2, storages_of(layout));
    assert_int_equal(TESS_OK, tess_layout_storage(layout, 0, &info, heads));
    assert_true(info.n_kv_heads == 2 && heads[0] == 0 && heads[1] == 1);
    assert_true(info.stride == 8 && info.slots_per_stride == 2);
    assert_int_equal(TESS_OK, tess_layout_storage(layout, 1, &info, heads));
    assert_true(info.n_kv_heads == 2 && heads[0] == 2 && heads[1] == 3);
    assert_true(info.ring_slots == 0 && info.stride == 1 && info.slots_per_stride == 1);
    assert_int_equal(4096 / 16, pages_of(layout, 1, 4096, 16));
    tess_layout_release(layout);
    /* Heads that take all residues together are as good as dense. */
    p.dense_heads = 0;
    p.stride = 4;
    layout = make_chunked_layout(runtime, &p, 16, 4, 4096, 16);
    assert_int_equal(1, storages_of(layout));
    assert_int_equal(1, layout->n_slot_lists);
    assert_int_equal(0, storage_of(layout, 0).ring_slots);
    tess_layout_release(layout);
    /* The sinks of a window are fixed. */
    p = (tess_pattern){.struct_size = sizeof p, .kind = TESS_PATTERN_WINDOW, .block = 16};
    p.left = 100;
    p.sinks = 20;
    layout = make_chunked_layout(runtime, &p, 16, 4, 4096, 33);
    info = storage_of(layout, 0);
    assert_true(info.n_kv_heads == 4 && info.ring_slots == 8 + 3);
    assert_true(info.stride == 0 && info.slots_per_stride == 2);
    assert_blocks(layout, 3, 8 + 2, 2, 11);
    tess_layout_release(layout);
}

/* ------------------------------------------------------------------ random patterns */

/* Which blocks the query at each position sees, for one kv head. */
static bool seen[MOST_TOKENS][MOST_TOKENS];

static void look(const spec *x, int32_t kv_head) {
    const int64_t tokens = x->layout.max_tokens, block = block_size(x);
    const int32_t group = x->layout.n_heads / x->layout.n_kv_heads;
    memset(seen, 0, sizeof seen);
    for (int64_t p = 0; p < tokens; p++) {
        for (int64_t t = 0; t <= p; t++) {
            for (int32_t h = kv_head * group; h < (kv_head + 1) * group && !seen[p][t / block]; h++)
                seen[p][t / block] = formula_kept(x, h, p, t);
        }
    }
}

/* A cache of one kv head: which block each slot holds, and the longest that the sequence was. */
typedef struct cache {
    const spec *x;
    int64_t block, length, longest;
    int64_t first;              /* block, of the part that is kept */
    int64_t slot[MOST_TOKENS];  /* of each block */
    int64_t holds[MOST_TOKENS]; /* each slot */
} cache;

static void ask(const cache *c, int64_t position) {
    for (int64_t j = c->first; position >= 0 && j <= position / c->block; j++) {
        if (seen[position][j] && c->holds[c->slot[j]] != j)
            fail_msg("%s: longest %lld, query %lld: block %lld is gone", spec_text(c->x),
                     (long long)c->longest, (long long)position, (long long)j);
    }
}

/* Appends and then asks for all rows that were appended. */
static void append(cache *c, int64_t tokens) {
    const int64_t first = c->length;
    for (int64_t j = first / c->block; j * c->block < first + tokens; j++) c->holds[c->slot[j]] = j;
    c->length = first + tokens;
    if (c->length > c->longest) c->longest = c->length;
    for (int64_t p = first; p < c->length; p++) ask(c, p);
}

/* A generation with steps of 1 to max_chunk tokens. Lengths fall by as many at times, and the last
 * row that is left is asked for again. */
static void play(const spec *x, const tess_layout *layout, int32_t kv_head, int64_t first,
                 uint64_t *seed) {
    const int64_t chunk = x->layout.max_chunk ? x->layout.max_chunk : 1,
                  tokens = x->layout.max_tokens;
    cache c = {.x = x, .block = block_size(x), .first = first};
    c.length = c.longest = first * c.block;
    for (int64_t j = first; j * c.block < tokens; j++) {
        c.slot[j] = first ? part_slot_of(layout, kv_head, first, j) : slot_of(layout, kv_head, j);
        c.holds[j - first] = -1;
    }
    for (int step = 0; step < 200 && c.length < tokens; step++) {
        if (test_between(seed, 0, 3) == 0) {
            const int64_t from = first * c.block,
                          least = c.longest - chunk > from ? c.longest - chunk : from;
            c.length = test_between(seed, least, c.length);
            ask(&c, c.length - 1);
        }
        const int64_t most = tokens - c.length < chunk ? tokens - c.length : chunk;
        append(&c, test_between(seed, 0, 1) ? most : test_between(seed, 1, most));
    }
    /* As far back as may be, once more. */
    if (c.longest - chunk > first * c.block) ask(&c, c.longest - chunk - 1);
}

/* slot = block at first, every slot is used before the next one is, and the numbers that the layout
 * reports are those of its slots. */
static void check_places(const spec *x, const tess_layout *layout, int32_t kv_head) {
    tess_kv_info info = {.struct_size = sizeof info};
    assert_int_equal(TESS_OK, tess_layout_kv(layout, kv_head, &info));
    int64_t taken = 0, ring = layout->stores[kv_head].ring;
    for (int64_t j = 0; j < info.blocks; j++) {
        const int64_t slot = slot_of(layout, kv_head, j);
        if (slot > taken || (slot != j && j < ring))
            fail_msg("%s: block %lld has slot %lld", spec_text(x), (long long)j, (long long)slot);
        taken += slot == taken;
        assert_int_equal(taken, tess_kv_slots_taken(layout, kv_head, 0, j + 1));
    }
    assert_int_equal(taken, info.blocks_allocated);
    assert_int_equal(taken, info.slots_fixed + info.slots_ring);
    assert_true(info.blocks_kept <= info.blocks && info.slots_ring <= (ring ? ring : 0));
    if (!layout->kv_efficient) assert_true(taken == info.blocks && info.blocks_kept == info.blocks);
}

/* S2: the ring is as short as the promise lets it be. A block is strided if a query far behind it
 * sees it. */
static void check_ring(const spec *x, const tess_layout *layout, int32_t kv_head) {
    const tess_pattern *p = &x->pattern;
    if (p->kind != TESS_PATTERN_S2 || (p->flags & TESS_PATTERN_BIDIRECTIONAL)) return;
    const int64_t chunk = x->layout.max_chunk ? x->layout.max_chunk : 1,
                  w = p->local + (chunk + p->block - 1) / p->block;
    const int32_t group = x->layout.n_heads / x->layout.n_kv_heads;
    int64_t fewest = w;
    for (int64_t start = 0; start < p->stride; start++) {
        int64_t strided = 0;
        for (int64_t j = start; j < start + w; j++) {
            bool any = false;
            for (int32_t h = kv_head * group; h < (kv_head + 1) * group && !any; h++)
                any = formula_kept(x, h, (j + p->local) * p->block, j * p->block);
            strided += any;
        }
        if (strided < fewest) fewest = strided;
    }
    if (layout->stores[kv_head].ring != w - fewest)
        fail_msg("%s: kv head %d: ring %lld, wanted %lld", spec_text(x), kv_head,
                 (long long)layout->stores[kv_head].ring, (long long)(w - fewest));
}

/* The tables of a plan say what tess_layout_slot says, and which block comes next. */
static void check_tables(const spec *x, const tess_layout *layout, uint32_t n) {
    tess_kv_head *heads = malloc((size_t)x->layout.n_kv_heads * sizeof *heads);
    tess_slot *slots = malloc(((size_t)layout->n_slot_lists * n + 1) * sizeof *slots);
    assert_true(heads && slots);
    tess_slot *end = slots + (size_t)layout->n_slot_lists * n;
    *end = (tess_slot){77, 78};
    tess_kv_slots_heads(layout, n, heads);
    tess_kv_slots_fill(layout, NULL, 1, n, slots);
    assert_true(end->slot == 77 && end->next == 78);
    for (int32_t g = 0; g < x->layout.n_kv_heads; g++) {
        const tess_slot *list = slots + heads[g].slots_offset;
        int32_t ids[3];
        tess_storage_info info = {.struct_size = sizeof info};
        assert_true(heads[g].slots_offset % (n ? n : 1) == 0 && list + n <= end);
        assert_int_equal(TESS_OK, tess_layout_storage(layout, heads[g].storage, &info, ids));
        assert_in_range(heads[g].pool_head, 0, info.n_kv_heads - 1);
        assert_int_equal(g, ids[heads[g].pool_head]);
        assert_int_equal(0, heads[g].reserved);
        for (uint32_t j = 0; j < n; j++) {
            uint32_t next = j + 1;
            while (next < n && list[next].slot != list[j].slot) next++;
            if (list[j].slot != slot_of(layout, g, j) ||
                list[j].next != (next < n ? next : TESS_NO_BLOCK))
                fail_msg("%s: block %u: slot %u, next %u", spec_text(x), j, list[j].slot,
                         list[j].next);
        }
    }
    free(heads);
    free(slots);
}

/* Pages are those up to the last place that a token of a kv head of the group ever had. */
static void check_pages(const spec *x, const tess_layout *layout) {
    const int64_t block = block_size(x);
    const uint32_t n = storages_of(layout);
    uint32_t members = 0;
    for (uint32_t s = 0; s < n; s++) {
        int32_t heads[3];
        tess_storage_info info = {.struct_size = sizeof info};
        assert_int_equal(TESS_OK, tess_layout_storage(layout, s, &info, heads));
        members += info.n_kv_heads;
        int64_t places = 0;
        for (int64_t tokens = 0; tokens <= x->layout.max_tokens; tokens++) {
            for (uint32_t m = 0; m < info.n_kv_heads && tokens > 0; m++) {
                const int64_t t = tokens - 1,
                              place = slot_of(layout, heads[m], t / block) * block + t % block;
                if (place >= places) places = place + 1;
            }
            assert_int_equal(places, pages_of(layout, s, tokens, 0));
            for (int32_t page = 16; page <= 256; page *= 2)
                assert_int_equal((places + page - 1) / page, pages_of(layout, s, tokens, page));
        }
        for (uint32_t m = 0; m < info.n_kv_heads; m++) {
            assert_true(m == 0 || heads[m] > heads[m - 1]);
            assert_int_equal(info.ring_slots, layout->stores[heads[m]].ring);
        }
    }
    assert_int_equal(x->layout.n_kv_heads, members);
    tess_storage_info info = {.struct_size = sizeof info};
    assert_error(tess_layout_storage(layout, n, &info, NULL), TESS_ERROR_INVALID,
                 "tess_layout_storage", "storage");
}

/* The same of a part that begins with block `first`: slots are used one after the other and are
 * block numbers until the ring is full, tables of its phase say the same, and pages are those up to
 * the last place. */
static void check_part(const spec *x, const tess_layout *layout, int64_t first, uint32_t n) {
    const int64_t block = block_size(x), tokens = x->layout.max_tokens - first * block;
    const uint32_t phase = (uint32_t)tess_kv_slots_phase(layout, first);
    tess_slot *slots = malloc(((size_t)layout->n_slot_lists * n + 1) * sizeof *slots);
    int64_t pages, most, *places = calloc(layout->n_storages, sizeof *places);
    assert_true(slots && places && phase < tess_kv_slots_phases(layout));
    tess_kv_slots_fill(layout, &phase, 1, n, slots);
    for (int32_t g = 0; g < x->layout.n_kv_heads; g++) {
        const tess_slot *list = slots + (size_t)layout->stores[g].list * n;
        int64_t taken = 0, *end = &places[layout->stores[g].storage];
        for (uint32_t j = 0; j < n; j++) {
            const int64_t slot = part_slot_of(layout, g, first, first + j),
                          rest = tokens - j * block < block ? tokens - j * block : block;
            uint32_t next = j + 1;
            while (next < n && list[next].slot != list[j].slot) next++;
            if (slot > taken || slot != list[j].slot || (slot != j && j < layout->stores[g].ring) ||
                list[j].next != (next < n ? next : TESS_NO_BLOCK))
                fail_msg("%s: part from block %lld: block %u: slot %lld, %u, next %u", spec_text(x),
                         (long long)first, j, (long long)slot, list[j].slot, list[j].next);
            taken += slot == taken;
            if (slot * block + rest > *end) *end = slot * block + rest;
            assert_int_equal(taken, tess_kv_slots_taken(layout, g, first, j + 1));
        }
    }
    for (uint32_t s = 0; s < layout->n_storages; s++) {
        assert_int_equal(TESS_OK,
                         tess_layout_part_pages(layout, s, first * block, tokens, 16, &pages));
        assert_int_equal((places[s] + 15) / 16, pages);
        assert_int_equal(TESS_OK,
                         tess_layout_part_pages(layout, s, TESS_ANY_FIRST, tokens, 16, &most));
        assert_true(most >= pages);
    }
    free(slots);
    free(places);
}

/* A layout for more tokens has the same slots. */
static void check_longer(spec *x, const tess_layout *layout, int64_t blocks) {
    if (x->pattern.kind == TESS_PATTERN_BLOCKS) return;
    x->layout.max_tokens = 2 * x->layout.max_tokens + 500;
    tess_layout *longer = spec_layout(x, runtime);
    assert_int_equal(storages_of(layout), storages_of(longer));
    for (int32_t g = 0; g < x->layout.n_kv_heads; g++) {
        for (int64_t j = 0; j < blocks; j++)
            assert_int_equal(slot_of(layout, g, j), slot_of(longer, g, j));
    }
    tess_layout_release(longer);
}

static int dropped; /* how many heads need not keep every block */

static void check_slots(spec *x, tess_layout *layout, uint64_t *seed) {
    const int64_t tokens = x->layout.max_tokens, block = block_size(x),
                  blocks = (tokens + block - 1) / block,
                  first = test_between(seed, 0, tokens / block);
    check_part(x, layout, first, (uint32_t)(blocks - first));
    for (int32_t g = 0; g < x->layout.n_kv_heads; g++) {
        check_places(x, layout, g);
        check_ring(x, layout, g);
        dropped += tess_kv_slots_taken(layout, g, 0, blocks) < blocks;
        if (x->pattern.flags & TESS_PATTERN_BIDIRECTIONAL) continue;
        look(x, g);
        if (first < blocks) play(x, layout, g, first, seed);
        for (int round = 0; round < 3; round++) play(x, layout, g, 0, seed);
    }
    check_tables(x, layout, (uint32_t)blocks);
    check_pages(x, layout);
    check_longer(x, layout, blocks);
}

static void test_random_patterns(void **state) {
    (void)state;
    dropped = 0;
    with_random_layouts(13, 8000, MOST_TOKENS, check_slots);
    assert_true(dropped > 500);
}

/* A query one token further back would miss a block: the promise is as wide as the header says and
 * no wider. */
static void test_promise_is_tight(void **state) {
    (void)state;
    spec x;
    memset(&x, 0, sizeof x);
    x.pattern = s2_pattern(4, 2, 9, 0);
    x.layout = (tess_layout_desc){.struct_size = sizeof x.layout,
                                  .n_heads = 1,
                                  .n_kv_heads = 1,
                                  .max_tokens = MOST_TOKENS,
                                  .max_chunk = 4};
    tess_layout *layout = spec_layout(&x, runtime);
    assert_int_equal(3, layout->stores[0].ring);
    look(&x, 0);
    bool missed = false;
    for (int64_t longest = 20; longest < MOST_TOKENS; longest++) {
        const int64_t p = longest - 1 - x.layout.max_chunk - 1; /* one too far */
        for (int64_t j = 0; j <= p / 4; j++) {
            for (int64_t later = j + 1; later <= (longest - 1) / 4; later++)
                missed =
                    missed || (seen[p][j] && slot_of(layout, 0, later) == slot_of(layout, 0, j));
        }
    }
    assert_true(missed);
    tess_layout_release(layout);
}

/* A key block of a mask that is read for long gets a slot of its own where that keeps the ring
 * short, and none where it does not. */
static void test_fewest_slots(void **state) {
    (void)state;
    enum { BLOCKS = 20 };
    uint8_t mask[BLOCKS][BLOCKS] = {{0}};
    for (int i = 0; i < BLOCKS; i++) mask[i][0] = mask[i][i] = 1;
    for (int wide = 0; wide < 2; wide++) {
        const tess_pattern p = mask_pattern(8, &mask[0][0], 1, BLOCKS, BLOCKS);
        tess_layout *layout = make_layout(runtime, &p, 1, 1, 8 * BLOCKS);
        /* the blocks that all rows read back to, and the one being written */
        assert_blocks(layout, 0, wide ? 5 : 2, 1, wide ? 4 + 1 : 1 + 1);
        /* Parts behind the only fixed block have equal slots, however long the layout is. */
        assert_int_equal(2, tess_kv_slots_phases(layout));
        assert_int_equal(1, tess_kv_slots_phase(layout, BLOCKS - 1));
        tess_layout_release(layout);
        /* Now every row reads four blocks back. */
        for (int i = 0; i < BLOCKS; i++)
            for (int j = i < 3 ? 0 : i - 3; j <= i; j++) mask[i][j] = 1;
    }
}

/* kv heads with equal masks share a list, whichever others come before them. */
static void test_equal_masks(void **state) {
    (void)state;
    enum { BLOCKS = 24, HEADS = 5 };
    static const int kinds[HEADS] = {0, 1, 1, 0, 2};
    static uint8_t mask[HEADS][BLOCKS][BLOCKS];
    for (int h = 0; h < HEADS; h++) {
        for (int i = 0; i < BLOCKS; i++)
            for (int j = 0; j <= i; j++) mask[h][i][j] = i - j < 2 || j % 5 == kinds[h];
    }
    const tess_pattern p = mask_pattern(8, &mask[0][0][0], HEADS, BLOCKS, BLOCKS);
    tess_layout *layout = make_layout(runtime, &p, HEADS, HEADS, 8 * BLOCKS);
    assert_int_equal(3, layout->n_slot_lists);
    for (int32_t g = 0; g < HEADS; g++) {
        for (int64_t j = 0; j < BLOCKS; j++) {
            /* Fixed blocks have places of their own, and only they. The last two are never fixed:
             * no row that would read them later is left. */
            const bool fixed = j % 5 == kinds[g] && j < BLOCKS - 2;
            int sharers = 0;
            for (int64_t other = 0; other < BLOCKS; other++)
                sharers += slot_of(layout, g, other) == slot_of(layout, g, j);
            assert_int_equal(fixed, sharers == 1);
        }
    }
    tess_layout_release(layout);
}

/* ------------------------------------------------------------------ sizes */

/* Lengths and numbers of heads at their ends: nothing overflows, and nothing takes time in
 * proportion to more than heads. */
static void test_large(void **state) {
    (void)state;
    const int64_t most = (int64_t)INT32_MAX * INT32_MAX;
    tess_pattern p = s2_pattern(INT32_MAX, INT32_MAX, INT32_MAX, 0);
    tess_layout *layout = make_chunked_layout(runtime, &p, 7, 7, most, INT64_MAX);
    assert_int_equal(INT32_MAX - 1, slot_of(layout, 6, INT32_MAX - 1));
    assert_int_equal(most, pages_of(layout, 0, most, 0));
    tess_layout_release(layout);
    p = s2_pattern(1, 1, INT32_MAX, 1); /* the last block is strided for all heads */
    p.flags = TESS_PATTERN_HOMOGENEOUS;
    layout = make_chunked_layout(runtime, &p, 2, 2, INT32_MAX, 1);
    assert_int_equal(0, slot_of(layout, 1, INT32_MAX - 3));
    assert_int_equal(2, slot_of(layout, 1, INT32_MAX - 1));
    assert_int_equal(3, pages_of(layout, 0, INT32_MAX, 0));
    tess_layout_release(layout);
    p = (tess_pattern){.struct_size = sizeof p, .kind = TESS_PATTERN_WINDOW, .block = 1};
    p.left = INT64_MAX / 2 - 1;
    p.sinks = INT64_MAX;
    layout = make_chunked_layout(runtime, &p, 1, 1, INT32_MAX, INT64_MAX);
    assert_int_equal(INT32_MAX, pages_of(layout, 0, INT32_MAX, 0));
    tess_layout_release(layout);
    /* As many kv heads as there can be, and one with as many classes. */
    for (int one = 0; one < 2; one++) {
        p = s2_pattern(1, 1, 2 * 65535, 0);
        layout = make_chunked_layout(runtime, &p, 65535, one ? 1 : 65535, 1000000, 1);
        assert_int_equal(one ? 1 : 65535, layout->n_slot_lists);
        assert_int_equal(1, storages_of(layout));
        assert_int_equal(one ? 1 : 2, storage_of(layout, 0).ring_slots);
        assert_int_equal(one ? 65535 : 1, storage_of(layout, 0).slots_per_stride);
        tess_layout_release(layout);
    }
}

int main(void) {
    return RUN_TESTS_BETWEEN(runtime_setup, runtime_teardown, TEST(test_figures),
                             TEST(test_groups_of_a_hybrid), TEST(test_random_patterns),
                             TEST(test_promise_is_tight), TEST(test_fewest_slots),
                             TEST(test_equal_masks), TEST(test_large));
}
