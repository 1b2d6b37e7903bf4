/* SPDX-License-Identifier: Apache-2.0 */
/* tess_copy_pages on every device: pages are copied whole, and nothing else is touched. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache.h"

enum { GUARD = 512, POOLS = 3 };

/* Pools of one shape. `gap` elements lie between the heads, and `shift` before the first one. */
typedef struct copy_case {
    const char *name;
    uint32_t dtype;
    int32_t heads, head_dim;
    int64_t page, pages, gap, shift;
} copy_case;

static const copy_case cases[] = {
    {"16 tokens, f32", TESS_F32, 2, 8, 16, 9, 0, 0},
    {"256 tokens, bf16", TESS_BF16, 3, 40, 256, 7, 0, 0},
    {"an element off, f16", TESS_F16, 2, 16, 32, 7, 0, 1},
    {"gaps of 16 bytes, f32", TESS_F32, 5, 64, 16, 7, 4, 0},
    {"gaps of an element, f16", TESS_F16, 1, 8, 16, 7, 1, 0},
    {"sequences of 5 tokens, f32", TESS_F32, 17, 24, 5, 8, 0, 0},
};
enum { CASES = sizeof cases / sizeof *cases };

typedef struct scene {
    const copy_case *x;
    tess_device *device;
    uint64_t row, page, item, bytes; /* bytes of an element, and of a buffer; the others elements */
    tess_tensor pools[POOLS];
    unsigned char *was[POOLS], *is;
    tess_copy_desc desc;
} scene;

static void create(scene *s, tess_device *device, const copy_case *x) {
    uint64_t random = 11;
    memset(s, 0, sizeof *s);
    s->x = x;
    s->device = device;
    s->item = x->dtype == TESS_F32 ? 4 : 2;
    s->row = (uint64_t)(x->head_dim + x->gap);
    s->page = (uint64_t)(x->page * x->heads) * s->row;
    s->bytes = 2 * GUARD + ((uint64_t)x->pages * s->page + (uint64_t)x->shift) * s->item;
    s->is = malloc(s->bytes);
    for (int n = 0; n < POOLS; n++) {
        s->was[n] = malloc(s->bytes);
        if (!s->is || !s->was[n]) fail_msg("out of memory");
        for (uint64_t i = 0; i < s->bytes; i++) s->was[n][i] = (unsigned char)test_random(&random);
        s->pools[n] = (tess_tensor){.buffer = test_upload(device, s->was[n], s->bytes),
                                    .stride_batch = (int64_t)s->page,
                                    .stride_token = (int64_t)(s->row * (uint64_t)x->heads),
                                    .stride_head = (int64_t)s->row};
        s->pools[n].buffer.offset = GUARD + (uint64_t)x->shift * s->item;
    }
    s->desc = (tess_copy_desc){.struct_size = sizeof s->desc,
                               .dtype = x->dtype,
                               .n_pools = POOLS,
                               .n_heads = x->heads,
                               .head_dim = x->head_dim,
                               .page = x->page,
                               .pages = x->pages,
                               .pools = s->pools};
}

static void release(scene *s) {
    for (int n = 0; n < POOLS; n++) {
        s->pools[n].buffer.offset = 0;
        assert_ok(tess_free(s->device, &s->pools[n].buffer));
        free(s->was[n]);
    }
    free(s->is);
}

/* What the pairs do to a pool, on the host. */
static void copy_on_host(const scene *s, unsigned char *pool, const int32_t (*pairs)[2],
                         int count) {
    const copy_case *x = s->x;
    const uint64_t first = GUARD + (uint64_t)x->shift * s->item;
    for (int n = 0; n < count; n++) {
        const int32_t from = pairs[n][0], to = pairs[n][1];
        if (from < 0 || from >= x->pages || to < 0 || to >= x->pages || from == to) continue;
        for (int64_t row = 0; row < x->page * x->heads; row++)
            memcpy(pool + first + ((uint64_t)to * s->page + (uint64_t)row * s->row) * s->item,
                   pool + first + ((uint64_t)from * s->page + (uint64_t)row * s->row) * s->item,
                   (uint64_t)x->head_dim * s->item);
    }
}

static void check(scene *s, const int32_t (*pairs)[2], int count, const char *what) {
    tess_buffer list =
        count ? test_upload(s->device, pairs, (uint64_t)count * sizeof *pairs) : (tess_buffer){0};
    s->desc.n_pairs = count;
    s->desc.pairs = list;
    assert_ok(tess_copy_pages(s->device, &s->desc));
    assert_ok(tess_wait(s->device, UINT64_MAX));
    assert_ok(tess_free(s->device, &list));
    for (int n = 0; n < POOLS; n++) {
        tess_buffer whole = s->pools[n].buffer;
        whole.offset = 0;
        copy_on_host(s, s->was[n], pairs, count);
        test_download(s->device, whole, s->is, s->bytes);
        for (uint64_t i = 0; i < s->bytes; i++)
            if (s->is[i] != s->was[n][i])
                fail_msg("%s, %s: byte %d of pool %d is wrong", s->x->name, what, (int)i, n);
    }
}

static void test_copies(void **state) {
    const test_target *target = *state;
    static const int32_t some[][2] = {{1, 3}, {1, 4}, {0, 6}}, one[][2] = {{6, 0}},
                         same[][2] = {{2, 2}, {5, 1}},
                         wild[][2] = {{-1, 2},        {2, -1},        {1000000, 4}, {4, 1000000},
                                      {INT32_MIN, 5}, {5, INT32_MAX}, {3, 2}};
    for (int n = 0; n < CASES; n++) {
        scene s;
        create(&s, target->device, &cases[n]);
        check(&s, NULL, 0, "no pairs");
        check(&s, some, 3, "one page to two, and another");
        check(&s, one, 1, "one pair");
        check(&s, same, 2, "a page to itself");
        check(&s, wild, 7, "ids out of range");
        release(&s);
    }
}

/* K and V of a token lie behind each other in one buffer. */
static void test_pools_interleaved(void **state) {
    const test_target *target = *state;
    scene s;
    const copy_case x = cases[0];
    create(&s, target->device, &x);
    const uint64_t first = GUARD;
    const int64_t pages = 4;
    tess_tensor pools[2] = {s.pools[2], s.pools[2]};
    for (int n = 0; n < 2; n++) {
        pools[n].buffer.offset = first + (uint64_t)n * (uint64_t)(x.heads * x.head_dim) * s.item;
        pools[n].stride_token = 2 * x.heads * x.head_dim;
        pools[n].stride_batch = 2 * (int64_t)s.page;
    }
    static const int32_t pairs[1][2] = {{3, 1}};
    tess_buffer list = test_upload(s.device, pairs, sizeof pairs);
    tess_copy_desc d = s.desc;
    d.pools = pools;
    d.n_pools = 2;
    d.pages = pages;
    d.n_pairs = 1;
    d.pairs = list;
    assert_ok(tess_copy_pages(s.device, &d));
    assert_ok(tess_wait(s.device, UINT64_MAX));
    memcpy(s.was[2] + first + 2 * s.page * s.item, s.was[2] + first + 6 * s.page * s.item,
           2 * s.page * s.item);
    tess_buffer whole = s.pools[2].buffer;
    whole.offset = 0;
    test_download(s.device, whole, s.is, s.bytes);
    assert_memory_equal(s.is, s.was[2], s.bytes);
    assert_ok(tess_free(s.device, &list));
    release(&s);
}

int main(int argc, char **argv) {
    static const serving_test all[] = {{"copies", test_copies},
                                       {"pools interleaved", test_pools_interleaved}};
    return serving_main(argc, argv, all, sizeof all / sizeof *all);
}
