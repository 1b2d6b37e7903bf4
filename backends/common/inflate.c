/* SPDX-License-Identifier: Apache-2.0 */
#include "inflate.h"

#include <string.h>

enum {
    TRAILER = 8, /* checksum and size */
    ROOT = 10,   /* codes of up to so many bits are found at once */
    LONGEST = 15,
    LITERALS = 288,
    DISTANCES = 32,
    LENGTHS = 19 /* the alphabet in which the lengths of both others are written */
};

/* Bits are taken from the lowest up. Behind the end there are zeros, and taking one is an error. */
typedef struct source {
    const unsigned char *at, *end;
    uint64_t held;
    unsigned count; /* of bits in `held` */
    int failed;
} source;

/* A Huffman code in canonical order. */
typedef struct code {
    uint16_t root[1 << ROOT]; /* by the next bits: symbol << 4 | length, or 0 for a longer code */
    uint16_t count[LONGEST + 1], symbols[LITERALS];
} code;

static void refill(source *s) {
    while (s->count <= 56 && s->at < s->end) {
        s->held |= (uint64_t)*s->at++ << s->count;
        s->count += 8;
    }
}

static void drop(source *s, unsigned bits) {
    s->failed |= bits > s->count;
    s->count = s->failed ? 0 : s->count - bits;
    s->held = s->failed ? 0 : s->held >> bits;
}

static unsigned take(source *s, unsigned bits) {
    refill(s);
    const unsigned value = (unsigned)(s->held & ((1u << bits) - 1));
    drop(s, bits);
    return value;
}

static unsigned reversed(unsigned word, unsigned bits) {
    unsigned back = 0;
    for (unsigned n = 0; n < bits; n++) back |= (word >> n & 1u) << (bits - 1 - n);
    return back;
}

/* The code whose symbol n has a word of lengths[n] bits, none where that is 0. -1: there are more
 * words than such lengths allow. */
static int make_code(code *c, const uint8_t *lengths, unsigned symbols) {
    unsigned first[LONGEST + 2], next[LONGEST + 2] = {0}, left = 1, word = 0;
    memset(c, 0, sizeof *c);
    for (unsigned n = 0; n < symbols; n++) c->count[lengths[n]]++;
    c->count[0] = 0;
    for (unsigned bits = 1; bits <= LONGEST; bits++) {
        left = 2 * left;
        if (c->count[bits] > left) return -1;
        left -= c->count[bits];
        word = 2 * (word + c->count[bits - 1]);
        first[bits] = word;
        next[bits + 1] = next[bits] + c->count[bits];
    }
    for (unsigned n = 0; n < symbols; n++) {
        const unsigned bits = lengths[n];
        if (!bits) continue;
        c->symbols[next[bits]++] = (uint16_t)n;
        if (bits <= ROOT)
            for (unsigned at = reversed(first[bits], bits); at < 1 << ROOT; at += 1u << bits)
                c->root[at] = (uint16_t)(n << 4 | bits);
        first[bits]++;
    }
    return 0;
}

/* The next symbol, with at least 48 bits left in `held` unless the source ends. */
static unsigned symbol(source *s, const code *c) {
    refill(s);
    const unsigned found = c->root[s->held & ((1 << ROOT) - 1)];
    if (found) {
        drop(s, found & 15u);
        return found >> 4;
    }
    /* Word by length: those of a length follow each other, in the order of their symbols. */
    unsigned word = 0, first = 0, before = 0;
    for (unsigned bits = 1; bits <= LONGEST; bits++) {
        word |= (unsigned)(s->held >> (bits - 1) & 1u);
        if (word < first + c->count[bits]) {
            drop(s, bits);
            return c->symbols[before + word - first];
        }
        before += c->count[bits];
        first = 2 * (first + c->count[bits]);
        word *= 2;
    }
    s->failed = 1;
    return 0;
}

typedef struct codes {
    code literals, distances;
} codes;

static int fixed_codes(codes *c) {
    uint8_t lengths[LITERALS];
    for (unsigned n = 0; n < LITERALS; n++)
        lengths[n] = n < 144 ? 8 : n < 256 ? 9 : n < 280 ? 7 : 8;
    if (make_code(&c->literals, lengths, LITERALS) != 0) return -1;
    memset(lengths, 5, DISTANCES);
    return make_code(&c->distances, lengths, DISTANCES);
}

/* Lengths of words in runs: 16 repeats the one before, 17 and 18 are runs of zeros. */
static int read_codes(source *s, codes *c) {
    static const uint8_t order[LENGTHS] = {16, 17, 18, 0, 8,  7, 9,  6, 10, 5,
                                           11, 4,  12, 3, 13, 2, 14, 1, 15};
    uint8_t lengths[LITERALS + DISTANCES] = {0};
    const unsigned literals = 257 + take(s, 5), distances = 1 + take(s, 5), used = 4 + take(s, 4);
    for (unsigned n = 0; n < used; n++) lengths[order[n]] = (uint8_t)take(s, 3);
    if (literals > LITERALS || make_code(&c->literals, lengths, LENGTHS) != 0) return -1;
    memset(lengths, 0, sizeof lengths);
    for (unsigned n = 0; n < literals + distances;) {
        const unsigned what = symbol(s, &c->literals);
        unsigned run = 1, length = what;
        if (what == 16) {
            run = 3 + take(s, 2);
            length = n ? lengths[n - 1] : 0;
        } else if (what > 16) {
            run = what == 17 ? 3 + take(s, 3) : 11 + take(s, 7);
            length = 0;
        }
        if (s->failed || n + run > literals + distances) return -1;
        memset(lengths + n, (int)length, run);
        n += run;
    }
    if (make_code(&c->literals, lengths, literals) != 0) return -1;
    return make_code(&c->distances, lengths + literals, distances);
}

/* A block of literals and copies of what is already written. Returns the new end of the output. */
static size_t block(source *s, const codes *c, unsigned char *to, size_t at, size_t size) {
    for (;;) {
        const unsigned what = symbol(s, &c->literals);
        if (what == 256 || s->failed) return at;
        if (what < 256) {
            if (at == size) break;
            to[at++] = (unsigned char)what;
            continue;
        }
        /* 8 lengths without further bits, then four each with 1, 2, ... of them; 285 is 258. */
        const unsigned n = what - 257, more = n < 8 || n == 28 ? 0 : n / 4 - 1;
        if (n > 28) break;
        size_t length = n == 28 ? 258 : n < 8 ? 3 + n : 3 + ((4 + n % 4) << more);
        length += take(s, more);
        const unsigned d = symbol(s, &c->distances), wider = d < 4 ? 0 : d / 2 - 1;
        if (d > 29) break;
        const size_t distance = (d < 4 ? 1 + d : 1 + ((2 + d % 2) << wider)) + take(s, wider);
        if (distance > at || length > size - at) break;
        if (distance >= length)
            memcpy(to + at, to + at - distance, length);
        else
            for (size_t i = 0; i < length; i++) to[at + i] = to[at + i - distance];
        at += length;
    }
    s->failed = 1;
    return at;
}

/* Bytes as they are, from the next whole byte on. */
static size_t stored(source *s, unsigned char *to, size_t at, size_t size) {
    drop(s, s->count % 8);
    const unsigned length = take(s, 16), complement = take(s, 16);
    s->failed |= (length ^ complement) != 0xffff || length > size - at;
    for (unsigned n = 0; n < length && !s->failed; n++) to[at++] = (unsigned char)take(s, 8);
    return at;
}

size_t tess_inflated_size(const unsigned char *blob, size_t size) {
    if (size < TRAILER) return 0;
    const unsigned char *b = blob + size - 4;
    return (size_t)b[0] | (size_t)b[1] << 8 | (size_t)b[2] << 16 | (size_t)b[3] << 24;
}

int tess_inflate(const unsigned char *blob, size_t size, unsigned char *to, size_t to_size) {
    if (size < TRAILER) return -1;
    source s = {.at = blob, .end = blob + size - TRAILER};
    size_t at = 0;
    for (int last = 0; !last && !s.failed;) {
        codes c;
        last = (int)take(&s, 1);
        const unsigned kind = take(&s, 2);
        if (kind == 0)
            at = stored(&s, to, at, to_size);
        else if (kind == 3 || (kind == 1 ? fixed_codes(&c) : read_codes(&s, &c)) != 0)
            return -1;
        else
            at = block(&s, &c, to, at, to_size);
    }
    return s.failed || at != to_size ? -1 : 0;
}

void *tess_inflate_new(const tess_host *host, const unsigned char *blob, size_t size,
                       const char *what, size_t *bytes) {
    *bytes = tess_inflated_size(blob, size) + 1;
    unsigned char *data = host->alloc(host, *bytes, 64);
    if (!data) {
        host->fail(host, TESS_ERROR_OUT_OF_MEMORY, "%zu bytes for %s", *bytes, what);
        return NULL;
    }
    if (tess_inflate(blob, size, data, *bytes - 1) != 0) {
        host->free(host, data, *bytes);
        host->fail(host, TESS_ERROR_CORRUPT, "%s: damaged in the library's file", what);
        return NULL;
    }
    data[*bytes - 1] = 0;
    return data;
}
