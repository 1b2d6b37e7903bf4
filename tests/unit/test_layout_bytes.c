/* SPDX-License-Identifier: Apache-2.0 */
/* Serialised layouts: they come back equal, the format does not change, and no damaged bytes give a
 * layout that creation would have refused. */
#include "fixtures/planner.h"

#include "layout.h"

static unsigned char *to_bytes(const tess_layout *layout, size_t *size) {
    *size = 0;
    assert_int_equal(TESS_OK, tess_layout_serialize(layout, NULL, size));
    unsigned char *data = malloc(*size);
    assert_non_null(data);
    assert_int_equal(TESS_OK, tess_layout_serialize(layout, data, size));
    return data;
}

/* FNV-1a over all but the last eight bytes, into these. */
static void seal(unsigned char *data, size_t size) {
    uint64_t sum = UINT64_C(14695981039346656037);
    for (size_t n = 0; n < size - 8; n++) sum = (sum ^ data[n]) * UINT64_C(1099511628211);
    for (int n = 0; n < 8; n++) data[size - 8 + (size_t)n] = (unsigned char)(sum >> (8 * n));
}

/* With another byte at `at`, and the checksum of that, the bytes are refused for `field`. */
static void assert_corrupt(unsigned char *data, size_t size, size_t at, unsigned char byte,
                           const char *field) {
    tess_layout *back = NULL;
    data[at] = byte;
    seal(data, size);
    assert_error(tess_layout_deserialize(runtime, data, size, &back), TESS_ERROR_CORRUPT,
                 "tess_layout_deserialize", field);
    assert_null(back);
}

/* This many heads of a model from head_first on. */
static tess_layout_desc slice_of(const tess_pattern *p, int32_t heads, int32_t kv_heads,
                                 int32_t head_first, int64_t tokens) {
    return (tess_layout_desc){.struct_size = sizeof(tess_layout_desc),
                              .pattern = p,
                              .n_heads = heads,
                              .n_kv_heads = kv_heads,
                              .head_first = head_first,
                              .max_tokens = tokens};
}

static void assert_same(const spec *x, const tess_layout *a, const tess_layout *b) {
    tess_layout_info ia = {.struct_size = sizeof ia}, ib = {.struct_size = sizeof ib};
    assert_int_equal(TESS_OK, tess_layout_query(a, &ia));
    assert_int_equal(TESS_OK, tess_layout_query(b, &ib));
    assert_memory_equal(&ia, &ib, sizeof ia);
    for (int32_t g = 0; g < x->layout.n_kv_heads; g++) {
        tess_kv_info ka = {.struct_size = sizeof ka}, kb = {.struct_size = sizeof kb};
        assert_int_equal(TESS_OK, tess_layout_kv(a, g, &ka));
        assert_int_equal(TESS_OK, tess_layout_kv(b, g, &kb));
        assert_memory_equal(&ka, &kb, sizeof ka);
    }
    uint8_t row_a[128], row_b[128];
    assert_true(ia.n_blocks <= 128);
    for (int32_t h = 0; h < x->layout.n_heads; h++) {
        for (int64_t i = 0; i < ia.n_blocks; i++) {
            assert_int_equal(TESS_OK, tess_layout_row(a, h, i, row_a, 128));
            assert_int_equal(TESS_OK, tess_layout_row(b, h, i, row_b, 128));
            assert_memory_equal(row_a, row_b, (size_t)ia.n_blocks);
        }
    }
}

/* The bytes of a layout, from which the same layout and the same bytes are made. */
static unsigned char *round_trip(const spec *x, tess_layout *layout, size_t *size) {
    tess_layout *back = NULL;
    size_t again_size;
    unsigned char *data = to_bytes(layout, size);
    if (tess_layout_deserialize(runtime, data, *size, &back) != TESS_OK)
        fail_msg("%s: %s", spec_text(x), tess_last_error());
    assert_same(x, layout, back);
    unsigned char *again = to_bytes(back, &again_size);
    assert_int_equal(*size, again_size);
    assert_memory_equal(data, again, again_size);
    free(again);
    tess_layout_release(back);
    return data;
}

static void make_round_trip(spec *x, tess_layout *layout, uint64_t *seed) {
    (void)seed;
    size_t size;
    free(round_trip(x, layout, &size));
}

static void test_round_trip(void **state) {
    (void)state;
    with_random_layouts(21, 3000, 100, make_round_trip);
}

/* Little endian, as the format is on every machine. */
#define U32(x) (x) & 0xff, (x) >> 8 & 0xff, (x) >> 16 & 0xff, (x) >> 24 & 0xff
#define U64(x) U32(x), 0, 0, 0, 0

/* The bytes of one layout, written out: they are the same on every machine and in every later
 * version. */
static void test_format(void **state) {
    (void)state;
    static const unsigned char wanted[] = {
        'T', 'E', 'S', 'S', 'L', 'A', 'Y', 0, /* magic */
        U32(1),                               /* version */
        U32(3), U32(1), U32(16),              /* kind, flags, block */
        U32(0), U32(0), U32(0), U32(0),       /* local, local_right, stride, offset */
        U32(0),                               /* dense_heads */
        U64(0), U64(0), U64(0),               /* left, right, sinks */
        U32(2), U32(1), U32(2), U32(4),       /* n_heads, n_kv_heads, head_first, heads_total */
        U32(2),                               /* kv_heads_total */
        U64(300), U64(5),                     /* max_tokens, max_chunk */
        U32(2), U64(2), U64(9),               /* mask_heads, mask_query_blocks, mask_key_blocks */
        /* two heads of two rows of nine bits */
        0x03, 0x01, 0x00, 0x00, 0x02, 0x00, 0xff, 0x01};
    const uint8_t mask[36] = {1, 9, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                              0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    tess_pattern p = {.struct_size = sizeof p,
                      .kind = TESS_PATTERN_BLOCKS,
                      .flags = TESS_PATTERN_BIDIRECTIONAL,
                      .block = 16,
                      .mask = mask};
    p.mask_heads = 2;
    p.mask_query_blocks = 2;
    p.mask_key_blocks = 9;
    tess_layout_desc d = slice_of(&p, 2, 1, 2, 300);
    d.max_chunk = 5;
    tess_layout *layout = NULL;
    assert_int_equal(TESS_OK, tess_layout_create(runtime, &d, &layout));
    size_t size;
    unsigned char *data = to_bytes(layout, &size), sum[8];
    assert_int_equal(sizeof wanted + 8, size);
    assert_memory_equal(wanted, data, sizeof wanted);
    memcpy(sum, data + sizeof wanted, 8);
    seal(data, size);
    assert_memory_equal(sum, data + sizeof wanted, 8);
    free(data);
    tess_layout_release(layout);
}

/* A slice of a model whose kv heads do not come out whole: nothing but a pattern per kv head needs
 * their number, so bytes may leave it open. */
static void test_uneven_slice(void **state) {
    (void)state;
    tess_pattern p = {.struct_size = sizeof p};
    tess_layout_desc d = slice_of(&p, 4, 2, 3, 100);
    const spec x = {.pattern = p, .layout = d};
    tess_layout *layout = NULL, *back = NULL;
    size_t size;
    assert_int_equal(TESS_OK, tess_layout_create(runtime, &d, &layout));
    unsigned char *data = round_trip(&x, layout, &size);
    /* Where the number has a default, 0 would be a second way to write the same layout. */
    data[80] = 8; /* heads_total */
    seal(data, size);
    assert_error(tess_layout_deserialize(runtime, data, size, &back), TESS_ERROR_CORRUPT,
                 "tess_layout_deserialize", "data");
    assert_null(back);
    data[84] = 4; /* kv_heads_total */
    seal(data, size);
    if (tess_layout_deserialize(runtime, data, size, &back) != TESS_OK)
        fail_msg("%s", tess_last_error());
    tess_layout_release(back);
    free(data);
    tess_layout_release(layout);
}

/* A list of head ids: format version 2 with the ids behind the header, and only where head_first
 * cannot say it. The bytes of a list that rises by 1 are those of head_first. */
static void test_head_ids(void **state) {
    (void)state;
    static const int32_t follow[] = {2, 3, 4, 5}, listed[] = {5, 4, 0x01020304, 0x01020305};
    const tess_pattern p = {.struct_size = sizeof p};
    tess_layout_desc d = slice_of(&p, 4, 2, 2, 300);
    d.heads_total = 0x02000000;
    tess_layout *first = NULL, *list = NULL, *back = NULL;
    size_t size, list_size;
    assert_int_equal(TESS_OK, tess_layout_create(runtime, &d, &first));
    d.head_first = 0;
    d.head_ids = follow;
    assert_int_equal(TESS_OK, tess_layout_create(runtime, &d, &list));
    unsigned char *plain = to_bytes(first, &size), *data = to_bytes(list, &list_size);
    assert_int_equal(size, list_size);
    assert_int_equal(1, data[8]);
    assert_memory_equal(plain, data, size);
    free(data);
    tess_layout_release(list);
    d.head_ids = listed;
    assert_int_equal(TESS_OK, tess_layout_create(runtime, &d, &list));
    data = to_bytes(list, &list_size);
    assert_int_equal(size + 16, list_size);
    static const unsigned char wanted[] = {5, 0, 0, 0, 4, 0, 0, 0, 4, 3, 2, 1, 5, 3, 2, 1};
    plain[8] = 2;  /* the version, which readers of version 1 refuse */
    plain[76] = 0; /* head_first */
    assert_memory_equal(plain, data, 124);
    assert_memory_equal(wanted, data + 124, sizeof wanted);
    assert_int_equal(TESS_OK, tess_layout_deserialize(runtime, data, list_size, &back));
    tess_layout_release(back);
    back = NULL;
    /* Cut short anywhere, with another id, and with another number of heads. */
    static const struct {
        size_t at;
        unsigned char value;
        const char *field;
    } damage[] = {
        {8, 1, "data"},         /* a list where there can be none */
        {68, 0, "data"},        /* no heads */
        {68, 6, "data"},        /* more heads than ids */
        {68, 2, "data"},        /* fewer */
        {76, 2, "head_first"},  /* beside a list */
        {124, 4, "head_ids"},   /* twice */
        {124, 6, "head_ids"},   /* of another group */
        {135, 0x7f, "head_ids"} /* past the model's */
    };
    unsigned char copy[200];
    for (size_t n = 0; n < sizeof damage / sizeof *damage; n++) {
        memcpy(copy, data, list_size);
        assert_corrupt(copy, list_size, damage[n].at, damage[n].value, damage[n].field);
    }
    for (size_t n = 132; n < list_size; n++) {
        memcpy(copy, data, n);
        assert_corrupt(copy, n, 0, data[0], "data");
    }
    /* A list that head_first can say is never written. */
    memcpy(copy, data, list_size);
    for (unsigned char h = 0; h < 4; h++) {
        memset(copy + 124 + 4 * h, 0, 4);
        copy[124 + 4 * h] = h;
    }
    seal(copy, list_size);
    assert_error(tess_layout_deserialize(runtime, copy, list_size, &back), TESS_ERROR_CORRUPT,
                 "tess_layout_deserialize", "data");
    assert_error_has("the field of byte 8");
    assert_null(back);
    free(plain);
    free(data);
    tess_layout_release(first);
    tess_layout_release(list);
}

static void test_arguments(void **state) {
    (void)state;
    const tess_pattern p = {.struct_size = sizeof p};
    tess_layout *layout = make_layout(runtime, &p, 2, 1, 300), *back = NULL;
    size_t size;
    unsigned char *data = to_bytes(layout, &size);
    size_t little = size - 1;
    assert_error(tess_layout_serialize(layout, data, &little), TESS_ERROR_INVALID,
                 "tess_layout_serialize", "size");
    assert_int_equal(size, little);
    assert_error(tess_layout_serialize(NULL, data, &size), TESS_ERROR_INVALID,
                 "tess_layout_serialize", "layout");
    assert_error(tess_layout_serialize(layout, data, NULL), TESS_ERROR_INVALID,
                 "tess_layout_serialize", "size");
    assert_int_equal(TESS_ERROR_INVALID, tess_layout_deserialize(NULL, data, size, &back));
    assert_error(tess_layout_deserialize(runtime, NULL, size, &back), TESS_ERROR_INVALID,
                 "tess_layout_deserialize", "data");
    assert_error(tess_layout_deserialize(runtime, data, size, NULL), TESS_ERROR_INVALID,
                 "tess_layout_deserialize", "layout");
    /* Every shorter length, and longer ones. */
    for (size_t n = 0; n < size; n++)
        assert_error(tess_layout_deserialize(runtime, data, n, &back), TESS_ERROR_CORRUPT,
                     "tess_layout_deserialize", "data");
    unsigned char longer[200] = {0};
    memcpy(longer, data, size);
    for (size_t n = size + 1; n <= sizeof longer; n++) {
        assert_error(tess_layout_deserialize(runtime, longer, n, &back), TESS_ERROR_CORRUPT,
                     "tess_layout_deserialize", "data");
        unsigned char sealed[200];
        memcpy(sealed, longer, n);
        seal(sealed, n);
        assert_error(tess_layout_deserialize(runtime, sealed, n, &back), TESS_ERROR_CORRUPT,
                     "tess_layout_deserialize", "data");
    }
    /* Every changed byte is found; the version is told apart from damage. */
    for (size_t n = 0; n < size; n++) {
        for (int bit = 0; bit < 8; bit++) {
            data[n] ^= (unsigned char)(1 << bit);
            tess_status wanted = n >= 8 && n < 12 ? TESS_ERROR_VERSION : TESS_ERROR_CORRUPT;
            assert_error(tess_layout_deserialize(runtime, data, size, &back), wanted,
                         "tess_layout_deserialize", "data");
            data[n] ^= (unsigned char)(1 << bit);
        }
    }
    assert_null(back);
    free(data);
    tess_layout_release(layout);
}

/* Sealed bytes with one field changed: what creation refuses is corrupt, and names the field. */
static void test_fields(void **state) {
    (void)state;
    static const struct {
        size_t at;
        unsigned char value;
        const char *field;
    } list[] = {
        {12, 9, "kind"},           {16, 0x80, "flags"},
        {23, 0x80, "block"},       {24, 0, "local"},
        {28, 1, "local_right"},    {32, 0, "stride"},
        {39, 0x80, "offset"},      {40, 3, "dense_heads"},
        {44, 1, "data"},           {52, 1, "data"},
        {60, 1, "data"},           {68, 0, "n_heads"},
        {72, 0, "n_kv_heads"},     {79, 0x80, "head_first"},
        {80, 1, "heads_total"},    {84, 0, "data"},
        {80, 0, "data"},           {88 + 7, 0x80, "max_tokens"},
        {88 + 5, 1, "max_tokens"}, {96 + 7, 0x80, "max_chunk"},
        {96, 0, "data"},           {104, 1, "data"},
        {108, 1, "data"},          {116, 1, "data"},
        {12, 0, "data"},           {20, 0, "block"},
        {12, 3, "data"},
    };
    const tess_pattern p = s2_pattern(16, 2, 4, 0);
    tess_layout *layout = make_layout(runtime, &p, 2, 1, 300);
    size_t size;
    unsigned char *data = to_bytes(layout, &size), copy[200];
    for (size_t n = 0; n < sizeof list / sizeof *list; n++) {
        memcpy(copy, data, size);
        assert_corrupt(copy, size, list[n].at, list[n].value, list[n].field);
    }
    free(data);
    tess_layout_release(layout);
}

/* Forms that mean a layout and that nobody writes: one form each is accepted. */
static void test_other_forms(void **state) {
    (void)state;
    static const uint8_t mask[] = {1, 0, 0, 1, 1, 0, /* as many again */ 1, 0, 0, 1, 1, 0};
    const struct {
        tess_pattern pattern;
        size_t at;
        unsigned char value; /* of another form */
    } list[] = {
        /* local_right */
        {{.kind = TESS_PATTERN_S2,
          .flags = TESS_PATTERN_BIDIRECTIONAL,
          .block = 16,
          .local = 2,
          .stride = 4},
         28,
         0},
        /* right, in causal order */
        {{.kind = TESS_PATTERN_WINDOW, .left = 9}, 52, 7},
        {mask_pattern(16, mask, 1, 2, 3), 124, 3},
        {mask_pattern(16, mask, 1, 0, 3), 116, 3},
    };
    for (size_t n = 0; n < sizeof list / sizeof *list; n++) {
        tess_pattern p = list[n].pattern;
        p.struct_size = sizeof p;
        tess_layout *layout = make_layout(runtime, &p, 2, 1, 300), *back = NULL;
        size_t size;
        unsigned char *data = to_bytes(layout, &size);
        if (tess_layout_deserialize(runtime, data, size, &back) != TESS_OK)
            fail_msg("form %d: %s", (int)n, tess_last_error());
        tess_layout_release(back);
        back = NULL;
        assert_int_not_equal(data[list[n].at], list[n].value);
        data[list[n].at] = list[n].value;
        seal(data, size);
        assert_error(tess_layout_deserialize(runtime, data, size, &back), TESS_ERROR_CORRUPT,
                     "tess_layout_deserialize", "data");
        assert_null(back);
        free(data);
        tess_layout_release(layout);
    }
    /* Equal masks of two heads, written twice. */
    const tess_pattern p = mask_pattern(16, mask, 2, 2, 3);
    tess_layout *layout = make_layout(runtime, &p, 2, 1, 300), *back = NULL;
    size_t size;
    unsigned char *data = to_bytes(layout, &size), twice[200];
    assert_int_equal(1, data[104]);
    memcpy(twice, data, size - 8);
    memcpy(twice + size - 8, data + 124, 2);
    twice[104] = 2;
    seal(twice, size + 2);
    assert_error(tess_layout_deserialize(runtime, twice, size + 2, &back), TESS_ERROR_CORRUPT,
                 "tess_layout_deserialize", "data");
    free(data);
    tess_layout_release(layout);
}

/* The last byte of a mask's row has bits that stand for no block: one that is set is refused, in
 * every row. */
static void test_unused_bits(void **state) {
    (void)state;
    static const uint8_t mask[2 * 3 * 11];
    const tess_pattern p = {.struct_size = sizeof p,
                            .kind = TESS_PATTERN_BLOCKS,
                            .flags = TESS_PATTERN_BIDIRECTIONAL,
                            .block = 8,
                            .mask = mask,
                            .mask_heads = 1,
                            .mask_query_blocks = 6,
                            .mask_key_blocks = 11};
    tess_layout *layout = make_layout(runtime, &p, 2, 1, 88), *back = NULL;
    size_t size;
    unsigned char *data = to_bytes(layout, &size);
    assert_int_equal(size, 124 + 6 * 2 + 8);
    for (size_t row = 0; row < 6; row++) {
        unsigned char *last = &data[124 + row * 2 + 1];
        for (int bit = 0; bit < 8; bit++) {
            *last = (unsigned char)(1u << bit);
            seal(data, size);
            const tess_status status = tess_layout_deserialize(runtime, data, size, &back);
            if (bit < 3) { /* blocks 8, 9 and 10 */
                assert_int_equal(TESS_OK, status);
                tess_layout_release(back);
            } else {
                assert_error(status, TESS_ERROR_CORRUPT, "tess_layout_deserialize", "data");
                assert_error_has("unused bit");
            }
        }
        *last = 0;
    }
    free(data);
    tess_layout_release(layout);
}

/* How much memory a layout may take in proportion to the bytes that it is read from, whatever they
 * say. */
static void use(tess_layout *layout, uint64_t *seed) {
    tess_layout_info info = {.struct_size = sizeof info};
    tess_kv_info kv = {.struct_size = sizeof kv};
    assert_int_equal(TESS_OK, tess_layout_query(layout, &info));
    assert_true(info.coverage >= 0 && info.coverage <= 1 && info.kept_share >= 0 &&
                info.kept_share <= 1);
    int32_t g = (int32_t)test_between(seed, 0, info.n_kv_heads - 1),
            h = (int32_t)test_between(seed, 0, info.n_heads - 1);
    assert_int_equal(TESS_OK, tess_layout_kv(layout, g, &kv));
    assert_true(kv.blocks_kept <= kv.blocks && kv.blocks_allocated <= kv.blocks);
    if (info.max_tokens > 0) {
        int kept = -1;
        int64_t slot = -1, block = test_between(seed, 0, info.n_blocks - 1);
        assert_int_equal(TESS_OK,
                         tess_layout_kept(layout, h, (int64_t)test_random(seed),
                                          test_between(seed, 0, info.max_tokens - 1), &kept));
        assert_int_equal(TESS_OK, tess_layout_slot(layout, g, block, &slot));
        assert_true(slot >= 0 && slot < kv.blocks_allocated);
        uint8_t row[128];
        if (info.n_blocks <= 128)
            assert_int_equal(TESS_OK, tess_layout_row(layout, h, block, row, 128));
        else
            assert_int_equal(TESS_ERROR_INVALID, tess_layout_row(layout, h, block, row, 128));
    }
}

static void test_mutations(void **state) {
    (void)state;
    const char *setting = getenv("TESS_TEST_MUTATIONS");
    long count = setting ? strtol(setting, NULL, 10) : 100000, accepted = 0, done = 0;
    uint64_t seed = 22;
    while (done < count) {
        spec x;
        size_t size;
        spec_random(&x, &seed, 200);
        tess_layout *layout = spec_layout(&x, runtime), *back = NULL;
        unsigned char *data = to_bytes(layout, &size), *copy = malloc(size + 16);
        assert_non_null(copy);
        for (int m = 0; m < 40; m++, done++) {
            size_t length = size;
            memcpy(copy, data, size);
            for (int64_t changes = test_between(&seed, 1, 4); changes > 0; changes--) {
                /* Most of the bytes of a large mask are alike; the header's are not. */
                size_t at = (size_t)test_between(
                    &seed, 8, test_between(&seed, 0, 2) ? 123 : (int64_t)size - 1);
                switch (test_between(&seed, 0, 4)) {
                case 0: copy[at] ^= (unsigned char)(1u << test_between(&seed, 0, 7)); break;
                case 1: copy[at] = (unsigned char)test_random(&seed); break;
                case 2: copy[at] = test_between(&seed, 0, 1) ? 0xff : 0x7f; break;
                case 3: copy[at] = (unsigned char)test_between(&seed, 0, 3); break;
                default: copy[at]++; break;
                }
            }
            if (test_between(&seed, 0, 9) == 0) {
                length = (size_t)test_between(&seed, 0, (int64_t)size + 16);
                if (length > size) memset(copy + size, 0x5a, length - size);
            }
            bool sealed = test_between(&seed, 0, 3) != 0 && length >= 8;
            if (sealed) seal(copy, length);
            /* A copy of exact size, so that the sanitizers see any byte that is read past it. */
            unsigned char *exact = malloc(length ? length : 1);
            assert_non_null(exact);
            memcpy(exact, copy, length);
            uint64_t live = heap.live, before = heap.bytes;
            heap.peak = heap.bytes;
            tess_status status = tess_layout_deserialize(runtime, exact, length, &back);
            /* Heads cost a fixed price each, and there are at most 65535 of them whatever the
             * length. */
            assert_true(heap.peak - before < (1u << 24) + 64 * length);
            if (status == TESS_OK) {
                /* What is read is written as the same bytes. */
                size_t again_size;
                unsigned char *again = to_bytes(back, &again_size);
                assert_int_equal(length, again_size);
                assert_memory_equal(exact, again, length);
                free(again);
                use(back, &seed);
                tess_layout_release(back);
                accepted++;
            } else {
                assert_true(status == TESS_ERROR_CORRUPT || status == TESS_ERROR_VERSION);
            }
            assert_int_equal(live, heap.live);
            free(exact);
            back = NULL;
        }
        free(copy);
        free(data);
        tess_layout_release(layout);
        spec_free(&x);
    }
    assert_true(accepted > count / 100); /* the mutations do reach the inside */
}

static void let_memory_fail(spec *x, tess_layout *layout, uint64_t *seed) {
    (void)x, (void)seed;
    size_t size;
    tess_layout *back = NULL;
    unsigned char *data = to_bytes(layout, &size);
    for (uint64_t k = 1;; k++) {
        uint64_t live = heap.live;
        heap.calls = 0;
        heap.fail_at = k;
        tess_status status = tess_layout_deserialize(runtime, data, size, &back);
        heap.fail_at = 0;
        if (status == TESS_OK) break;
        assert_int_equal(TESS_ERROR_OUT_OF_MEMORY, status);
        assert_int_equal(live, heap.live);
    }
    tess_layout_release(back);
    free(data);
}

static void test_failing_memory(void **state) {
    (void)state;
    with_random_layouts(23, 20, 80, let_memory_fail);
}

int main(void) {
    return RUN_TESTS_BETWEEN(runtime_setup, runtime_teardown, TEST(test_round_trip),
                             TEST(test_format), TEST(test_head_ids), TEST(test_arguments),
                             TEST(test_fields), TEST(test_unused_bits), TEST(test_uneven_slice),
                             TEST(test_other_forms), TEST(test_mutations),
                             TEST(test_failing_memory));
}
