/* SPDX-License-Identifier: Apache-2.0 */
/* tess_append on every device: whatever the chunks in which tokens come, the cache holds the keys
 * that can still be seen, and nothing else was touched. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache.h"

/* Kernels for full tiles read blocks of 8 and more, and 16-bit types alone: `append_wide` is this
 * program with such blocks, and such types in all steps. */
#ifdef APPEND_WIDE
enum { BLOCK = 8, STEP_DTYPE = TESS_BF16 };
#else
enum { BLOCK = 4, STEP_DTYPE = TESS_F32 };
#endif
enum { TOKENS = 96, LOCAL = 2, STRIDE = 4, CHUNK = 2 * BLOCK + 1 };

/* What is left out is filled in below. */
#define SHAPE(title, type, ...) \
    { .name = (title), .dtype = (type), __VA_ARGS__ }
#define DENSE_HEAD    .pattern.dense_heads = 1
#define BLOCKS_OF_5   .pattern.block = 5
#define PAGES(tokens) .page = (tokens)
#define COMPACT       .compact = 1
#define PARTS(...)    .kv_first = {__VA_ARGS__}
static const cache_shape listed[] = {
    SHAPE("contiguous f32", TESS_F32, .page = 0),
    SHAPE("contiguous bf16, an element off, heads apart", TESS_BF16, .shift = 1, .head_major = 1),
    SHAPE("contiguous f16, packed", TESS_F16, .packed = 1),
    SHAPE("contiguous f32, more elements than threads", TESS_F32, .heads = 16, .head_dim = 24),
    SHAPE("pages of 16, f32", TESS_F32, PAGES(16)),
    SHAPE("pages of 32, packed, an element off, bf16", TESS_BF16, PAGES(32), .shift = 1,
          .packed = 1),
    SHAPE("compact, f32", TESS_F32, COMPACT),
    SHAPE("compact, packed, a dense head, f16", TESS_F16, COMPACT, DENSE_HEAD, .packed = 1),
    SHAPE("compact, pages of 16, a dense head, bf16", TESS_BF16, COMPACT, PAGES(16), DENSE_HEAD,
          .head_major = 1),
    /* A page holds parts of blocks, and a block lies in parts of pages. */
    SHAPE("compact, pages of 16, blocks of 5, packed, f32", TESS_F32, COMPACT, PAGES(16),
          BLOCKS_OF_5, .packed = 1),
    SHAPE("pages of 16, ids out of range, f16", TESS_F16, PAGES(16), .hostile = 1),
    SHAPE("compact, pages of 32, ids out of range, a dense head, f32", TESS_F32, COMPACT, PAGES(32),
          DENSE_HEAD, .hostile = 1),
    SHAPE("steps, contiguous", STEP_DTYPE, .steps = 1),
    SHAPE("steps, pages of 16, ids out of range, bf16", TESS_BF16, PAGES(16), .steps = 1,
          .hostile = 1),
    SHAPE("steps, pages of 32, parts, f16", TESS_F16, PAGES(32), .steps = 1, .kv_split = 3),
    SHAPE("steps, compact", STEP_DTYPE, COMPACT, .steps = 1),
    SHAPE("steps, compact, pages of 16, a dense head, parts", STEP_DTYPE, COMPACT, PAGES(16),
          DENSE_HEAD, .steps = 1, .kv_split = 3),
    /* Six heads of different residues. */
    SHAPE("steps, compact, pages of 32, blocks of 5, f16", TESS_F16, COMPACT, PAGES(32),
          BLOCKS_OF_5, DENSE_HEAD, .steps = 1, .heads = 6),
    /* Parts of the keys, which begin at any place among the fixed blocks. */
    SHAPE("parts, contiguous, f32", TESS_F32, PARTS(BLOCK, 0, 7 * BLOCK)),
    SHAPE("parts, packed, pages of 16, f16", TESS_F16, PAGES(16), PARTS(0, 3 * BLOCK, 9 * BLOCK),
          .packed = 1),
    SHAPE("parts, compact, bf16", TESS_BF16, COMPACT, PARTS(BLOCK, 2 * BLOCK, 3 * BLOCK)),
    SHAPE("parts, compact, pages of 16, a dense head, f32", TESS_F32, COMPACT, PAGES(16),
          DENSE_HEAD, PARTS(6 * BLOCK, 0, 5 * BLOCK)),
    SHAPE("steps, parts, contiguous", STEP_DTYPE, PARTS(8 * BLOCK, BLOCK, 0), .steps = 1),
    SHAPE("steps, parts, compact", STEP_DTYPE, COMPACT, PARTS(3 * BLOCK, 0, 5 * BLOCK), .steps = 1),
    SHAPE("steps, parts, compact, pages of 32, blocks of 5, f16", TESS_F16, COMPACT, PAGES(32),
          BLOCKS_OF_5, DENSE_HEAD, PARTS(35, 5, 40), .steps = 1, .heads = 6),
};

enum { SHAPES = sizeof listed / sizeof *listed };

static void list_shapes(cache_shape shapes[SHAPES]) {
    for (int n = 0; n < SHAPES; n++) {
        cache_shape *shape = &shapes[n];
        *shape = listed[n];
        shape->pattern = listed[n].pattern.block ? test_s2_pattern(5, 1, 3)
                                                 : test_s2_pattern(BLOCK, LOCAL, STRIDE);
        shape->pattern.dense_heads = listed[n].pattern.dense_heads;
        shape->kv_heads = shape->heads ? shape->heads : 2;
        if (!shape->heads) shape->heads = 4;
        if (!shape->head_dim) shape->head_dim = 8;
        shape->packed |= shape->steps; /* one plan for all lengths */
        shape->max_tokens = TOKENS;
        shape->max_chunk = CHUNK;
    }
}

/* What the sequences take of the pools is what tess_layout_pages says. */
static void check_used(const cache *c) {
    for (uint32_t s = 0; s < c->n_storage && c->shape->page && !c->shape->hostile; s++) {
        int64_t sum = 0;
        for (int b = 0; b < CACHE_BATCH; b++) {
            int64_t pages = (c->lens[b] + c->shape->page - 1) / c->shape->page;
            if (c->shape->compact)
                assert_ok(tess_layout_part_pages(c->layout, s, c->shape->kv_first[b], c->lens[b],
                                                 c->shape->page, &pages));
            sum += pages;
        }
        assert_int_equal(CACHE_PAGES - c->n_free[s], sum);
    }
}

/* Sequences grow by as many tokens a step; the first begins later than the others, and the last
 * ends before. */
static void grow(cache *c, int64_t step, int64_t longest, const char *what) {
    for (int64_t n = 0;; n++) {
        int64_t chunks[CACHE_BATCH], all = 0;
        for (int b = 0; b < CACHE_BATCH; b++) {
            const int64_t left = longest - b * 13 - c->lens[b];
            chunks[b] = n < b ? 0 : left < step ? left : step;
            if (chunks[b] < 0) chunks[b] = 0;
            all += chunks[b];
        }
        if (all == 0 && n >= CACHE_BATCH) return;
        cache_append(c, chunks);
        cache_check(c, what);
        check_used(c);
    }
}

/* Whether a kernel that the setting names may not take the shape's elements. */
static int is_left_out(const cache_shape *shape) {
    return shape->dtype == TESS_F32 && test_kernel_is_named();
}

static void for_each_shape(void **state, void (*test)(cache *c)) {
    const test_target *target = *state;
    cache_shape shapes[SHAPES];
    list_shapes(shapes);
    for (int n = 0; n < SHAPES; n++) {
        cache c;
        if (is_left_out(&shapes[n])) continue;
        /* One of the two at a time, and the other one under a sanitizer. */
        if (target->software && !test_full() && (n + target->turn + test_sanitized()) % 2) continue;
        cache_create(&c, target->device, &shapes[n]);
        test(&c);
        cache_release(&c);
    }
}

/* One-shot prefill, with more tokens at once than max_chunk, and single tokens behind it. */
static void prefill(cache *c) {
    const int64_t chunks[CACHE_BATCH] = {61, 0, 38};
    cache_append(c, chunks);
    cache_check(c, "after the prefill");
    grow(c, 1, 80, "one token after the prefill");
}

static void test_prefill(void **state) { for_each_shape(state, prefill); }

/* Chunks of every size from one token to two blocks and one more: every wrap of the ring, every
 * beginning of a chunk within a block, every length of the last page. Where that takes long, each
 * shape of cache has a quarter of the sizes. */
static void test_chunks(void **state) {
    const test_target *target = *state;
    cache_shape shapes[SHAPES];
    list_shapes(shapes);
    const int apart = (target->software || test_sanitized()) && !test_full() ? 4 : 1;
    for (int n = 0; n < SHAPES; n++)
        for (int64_t step = 1 + n % apart; step <= CHUNK && !is_left_out(&shapes[n]);
             step += apart) {
            cache c;
            char what[64];
            snprintf(what, sizeof what, "chunks of %d", (int)step);
            cache_create(&c, target->device, &shapes[n]);
            grow(&c, step, TOKENS, what);
            cache_release(&c);
        }
}

/* Chunks of random sizes, none among them. */
static void mixed(cache *c) {
    uint64_t random = 3;
    for (int n = 0; n < 24; n++) {
        int64_t chunks[CACHE_BATCH];
        for (int b = 0; b < CACHE_BATCH; b++) {
            const int64_t left = TOKENS - c->lens[b];
            chunks[b] = test_between(&random, 0, 3) ? test_between(&random, 0, CHUNK) : 0;
            if (chunks[b] > left) chunks[b] = left;
        }
        cache_append(c, chunks);
        cache_check(c, "chunks of random sizes");
    }
}

static void test_mixed(void **state) { for_each_shape(state, mixed); }

/* Attention over the cache, of which only what can still be seen is no NaN, and over K and V
 * without one. */
static void attention(cache *c) {
    const int64_t first[CACHE_BATCH] = {57, 30, 1}, next[CACHE_BATCH] = {9, 0, 5},
                  token[CACHE_BATCH] = {1, 1, 1};
    if (c->shape->hostile) return; /* without these keys, results are others */
    cache_append(c, first);
    for (int n = 0; n < 4; n++) {
        const int64_t *rows = n % 2 ? token : next;
        cache_append(c, rows);
        cache_poison(c);
        cache_attend(c, rows, n % 2 ? "one row" : "a chunk");
        cache_attend(c, token, "the last row");
    }
}

static void test_attention(void **state) { for_each_shape(state, attention); }

/* Only sequences that begin at one position can share pages. */
static int begin_alike(const cache_shape *s) {
    return s->kv_first[0] == s->kv_first[1] && s->kv_first[1] == s->kv_first[2];
}

/* A fork goes on apart from its origin, and so does a fork of the fork. */
static void fork_twice(cache *c) {
    const int64_t first[CACHE_BATCH] = {43, 0, 0}, both[CACHE_BATCH] = {7, 3, 0},
                  all[CACHE_BATCH] = {9, 9, 8};
    if (c->shape->page == 0 || c->shape->hostile || !begin_alike(c->shape)) return;
    cache_append(c, first);
    cache_fork(c, 0, 1);
    cache_check(c, "a fork");
    cache_append(c, both);
    cache_check(c, "a fork and its origin");
    cache_fork(c, 1, 2);
    for (int n = 0; n < 3; n++) cache_append(c, all);
    cache_check(c, "two forks and their origin");
    cache_poison(c);
    cache_attend(c, all, "two forks and their origin");
}

static void test_forks(void **state) { for_each_shape(state, fork_twice); }

/* Whether every row that is asked for finds its keys, in what is left of the cache. */
static void ask(cache *c, const int64_t rows[CACHE_BATCH], const char *what) {
    if (c->shape->hostile) return;
    cache_poison(c);
    cache_attend(c, rows, what);
}

/* Sequences grow, and fall by as much as max_chunk below the longest that they were. The last rows
 * that are left still find their keys, and so do those that are appended then. */
static void fall(cache *c) {
    const int steps = c->software ? 4 : test_sanitized() ? 12 : 24;
    const int64_t token[CACHE_BATCH] = {1, 1, 1}, first[CACHE_BATCH] = {11, 1, 30};
    uint64_t random = 17;
    int64_t longest[CACHE_BATCH];
    /* Such a cache is laid out anew for all sequences, without a place for what is no key. */
    if (c->shape->packed && !c->shape->page && !c->shape->compact && !c->shape->steps) return;
    cache_append(c, first);
    memcpy(longest, first, sizeof longest);
    for (int n = 0; n < steps; n++) {
        int64_t chunks[CACHE_BATCH];
        for (int b = 0; b < CACHE_BATCH; b++) {
            const int64_t least = longest[b] > CHUNK ? longest[b] - CHUNK : 1;
            if (n % 3 == b)
                cache_fall(c, b, n % 2 ? least : test_between(&random, least, c->lens[b]));
            const int64_t left = TOKENS - c->lens[b];
            chunks[b] = test_between(&random, n % 3 == b, CHUNK);
            if (chunks[b] > left) chunks[b] = left;
        }
        ask(c, token, "after a fall");
        cache_append(c, chunks);
        cache_check(c, "a chunk after a fall");
        ask(c, chunks, "a chunk after a fall");
        for (int b = 0; b < CACHE_BATCH; b++)
            if (c->lens[b] > longest[b]) longest[b] = c->lens[b];
    }
}

static void test_falls(void **state) { for_each_shape(state, fall); }

/* Pages go from sequence to sequence with the keys that are in them. */
static void recycle(cache *c) {
    const int64_t first[CACHE_BATCH] = {70, 41, 0}, next[CACHE_BATCH] = {0, 3, 50},
                  last[CACHE_BATCH] = {9, 7, 1}, token[CACHE_BATCH] = {1, 1, 1};
    if (c->shape->page == 0 || c->shape->hostile || !begin_alike(c->shape)) return;
    cache_append(c, first);
    cache_fall(c, 0, 0);
    cache_append(c, next);
    cache_attend(c, c->shape->compact ? token : next, "a sequence in the pages of another");
    cache_fork(c, 2, 0);
    cache_fall(c, 2, 0);
    cache_fall(c, 1, 33);
    cache_append(c, last);
    cache_check(c, "pages of a sequence that ended behind its fork");
    cache_attend(c, token, "pages of a sequence that ended behind its fork");
}

static void test_recycled(void **state) { for_each_shape(state, recycle); }

/* A batch of no sequences, and sequences without rows or keys. */
static void nothing(cache *c) {
    const int64_t none[CACHE_BATCH] = {0}, one[CACHE_BATCH] = {0, 1, 0};
    cache_append(c, none);
    cache_check(c, "nothing");
    cache_attend(c, none, "nothing");
    cache_append(c, one);
    cache_check(c, "one key");
    if (!c->shape->hostile) cache_attend(c, one, "one key");
}

static void test_nothing(void **state) { for_each_shape(state, nothing); }

/* ------------------------------------------------------------------ steps */

/* One plan from the first token to the last: attention at every length, so at every border of a
 * page, a block, a ring and a part. Sequences end on the way, and others take their place, in pages
 * that had others' keys; at times no sequence has rows. */
static void generation(cache *c) {
    const char *given = getenv("TESSERA_TEST_EVERY");
    const int every = given && atoi(given) > 0 ? atoi(given)
                      : !c->software           ? 1
                      : test_sanitized()       ? 27
                                               : 9;
    const int64_t none[CACHE_BATCH] = {0};
    if (!c->shape->steps || c->shape->hostile) return;
    /* of parts, those that lie by slot alone are enough for so many steps */
    if (!begin_alike(c->shape) && (c->shape->page || !c->shape->compact)) return;
    for (int n = 0; n < TOKENS + 40; n++) {
        int64_t rows[CACHE_BATCH];
        for (int b = 0; b < CACHE_BATCH; b++) {
            if (c->lens[b] == TOKENS - 20 * b) cache_fall(c, b, 0);
            rows[b] = n % 17 == 5 * b ? 0 : n % 11 == b && c->lens[b] < 60 ? CHUNK : 1;
            if (rows[b] > TOKENS - 20 * b - c->lens[b]) rows[b] = 1;
        }
        cache_append(c, n % 29 == 28 ? none : rows);
        if (n % every != 0) continue;
        cache_check(c, "generation");
        cache_poison(c);
        cache_attend(c, n % 29 == 28 ? none : rows, "generation");
    }
}

static void test_generation(void **state) { for_each_shape(state, generation); }

/* A sequence whose length is none, or more than the plan takes, appends nothing, and the others
 * what they should. */
static void wrong_lengths(cache *c) {
    static const int32_t wrong[] = {-1, INT32_MIN, INT32_MAX, TOKENS + 1};
    const int64_t chunks[CACHE_BATCH] = {5, 1, 3};
    if (!c->shape->steps) return;
    for (int n = 0; n < 8; n++) {
        c->wrong[n % CACHE_BATCH] = wrong[n % 4];
        cache_append(c, chunks);
        c->wrong[n % CACHE_BATCH] = 0;
        cache_check(c, "a wrong length");
    }
}

static void test_wrong_lengths(void **state) { for_each_shape(state, wrong_lengths); }

/* ------------------------------------------------------------------ */

int main(int argc, char **argv) {
    static const serving_test all[] = {{"prefill", test_prefill},
                                       {"chunks", test_chunks},
                                       {"mixed", test_mixed},
                                       {"attention", test_attention},
                                       {"forks", test_forks},
                                       {"falls", test_falls},
                                       {"recycled pages", test_recycled},
                                       {"nothing", test_nothing},
                                       {"generation", test_generation},
                                       {"wrong lengths", test_wrong_lengths}};
    return serving_main(argc, argv, all, sizeof all / sizeof *all);
}
