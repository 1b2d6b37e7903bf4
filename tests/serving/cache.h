/* SPDX-License-Identifier: Apache-2.0 */
/* A KV cache as an application keeps one: pools, block tables, and pages that are handed out in
 * random order. What the library must write into it is computed here from the public description of
 * slots alone. */
#ifndef TESSERA_TESTS_SERVING_CACHE_H
#define TESSERA_TESTS_SERVING_CACHE_H

#include "common/testlib.h"

/* Most sequences, storage groups and kv heads; then tokens and pages of a sequence, and pages of a
 * pool. */
enum { CACHE_BATCH = 3, CACHE_STORAGES = 4, CACHE_HEADS = 16 };
enum { CACHE_TOKENS = 128, CACHE_COLUMNS = 16, CACHE_PAGES = 64 };

typedef struct cache_shape {
    const char *name;
    tess_pattern pattern;
    int32_t heads, kv_heads, head_dim;
    uint32_t dtype;
    int64_t max_tokens, max_chunk;
    int32_t page; /* 0: contiguous */
    int compact, packed;
    int64_t shift; /* elements before the first one of every tensor */
    int head_major;
    int hostile; /* ids of some pages are none */
    int steps;   /* one plan, whose lengths come from the device; rows are packed, caches are not */
    int32_t kv_split;
    /* The keys are parts of longer sequences: positions of their first tokens. All else here counts
     * tokens from these. */
    int64_t kv_first[CACHE_BATCH];
} cache_shape;

typedef struct cache_pool {
    tess_tensor k, v;
    int64_t heads, head_ids[CACHE_HEADS]; /* of the storage group */
    int64_t units, tokens;                /* pages, or sequences */
    uint64_t bytes;                       /* of each buffer, guards included */
    unsigned char *host, *ever;           /* as many: an image, and whether a key ever went there */
    /* of each pool head and sequence: the token that each place holds; -1: none */
    int16_t holds[CACHE_HEADS][CACHE_BATCH][CACHE_TOKENS];
} cache_pool;

typedef struct cache {
    const cache_shape *shape;
    tess_device *device;
    int software; /* the device is a GPU that is emulated */
    tess_layout *layout;
    uint32_t n_storage, item;
    cache_pool pools[CACHE_STORAGES];
    int64_t lens[CACHE_BATCH]; /* tokens so far */
    /* what makes the keys of a token differ from those of others; a fork's are its origin's */
    uint32_t name[CACHE_BATCH][CACHE_TOKENS], names;
    int32_t table[CACHE_STORAGES][CACHE_BATCH][CACHE_COLUMNS];
    int32_t free_pages[CACHE_STORAGES][CACHE_PAGES];
    int n_free[CACHE_STORAGES];
    int users[CACHE_STORAGES][CACHE_PAGES]; /* sequences that have the page */
    tess_buffer block_table;
    uint64_t random;
    tess_plan *plan; /* of steps */
    tess_buffer step, cu_rows, kv_lens, kv_first;
    /* Given to the device instead of a sequence's length, unless 0: it appends nothing then. */
    int32_t wrong[CACHE_BATCH];
} cache;

void cache_create(cache *c, tess_device *device, const cache_shape *shape);
void cache_release(cache *c);

/* Appends `chunks` tokens to the sequences, with a plan of its own or by a step. Pages that a
 * sequence shares are copied before it writes to them. */
void cache_append(cache *c, const int64_t chunks[CACHE_BATCH]);

/* Makes an empty sequence a copy of another one, which shares all of its pages. */
void cache_fork(cache *c, int from, int to);

/* Takes back all tokens of a sequence behind the first `tokens`, and pages that only they take. */
void cache_fall(cache *c, int sequence, int64_t tokens);

/* Fails the test unless every key that was not overwritten is there, bit for bit, and every byte
 * that no key ever went to is as it was. */
void cache_check(cache *c, const char *what);

/* Fills every place of the pools that holds no key with NaN: what was dropped or taken back, the
 * ends of pages, pages that belong to nobody. */
void cache_poison(cache *c);

/* Runs attention of `rows` last rows of each sequence over the cache, and over K and V without one,
 * and fails the test unless all bits are equal. */
void cache_attend(cache *c, const int64_t rows[CACHE_BATCH], const char *what);

/* Runs tests on every device, or on those of the backend that the arguments name; a second argument
 * names the only test. Their state is a test_target. */
typedef struct serving_test {
    const char *name;
    CMUnitTestFunction test;
} serving_test;
int serving_main(int argc, char **argv, const serving_test *all, int count);

#endif
