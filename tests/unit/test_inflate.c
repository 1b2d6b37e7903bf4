/* SPDX-License-Identifier: Apache-2.0 */
/* Deflated kernels: each kind of block, and streams that are cut short or damaged. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/testlib.h"
#include "inflate.h"

/* What `gzip -9` makes without its header of 10 bytes: the words below, once with a code of its own
 * and once, of a few bytes, with the fixed one; and a stored block. */
static const unsigned char dynamic_words[] = {
    237, 87,  75,  150, 35,  49,  8,   59,  209, 28,  10,  1,   174, 202, 116, 247, 253, 183, 3,
    18,  118, 205, 50,  189, 79,  189, 151, 188, 138, 205, 207, 88,  2,   98,  6,   152, 57,  172,
    190, 225, 182, 156, 191, 235, 225, 114, 152, 173, 218, 185, 3,   185, 172, 69,  90,  198, 210,
    156, 34,  222, 63,  75,  228, 213, 47,  217, 187, 1,   180, 30,  90,  34,  242, 152, 49,  233,
    150, 27,  160, 236, 92,  104, 119, 217, 90,  90,  47,  229, 178, 219, 90,  192, 118, 97,  163,
    199, 112, 192, 157, 9,   210, 47,  175, 45,  45,  67,  175, 10,  57,  232, 45,  39,  48,  46,
    223, 166, 29,  167, 1,   106, 181, 161, 114, 231, 203, 115, 188, 131, 39,  242, 214, 171, 68,
    180, 48,  104, 98,  193, 105, 198, 157, 161, 26,  66,  17,  199, 5,   166, 70,  193, 105, 63,
    20,  111, 189, 150, 109, 208, 128, 99,  142, 143, 215, 61,  73,  46,  177, 87,  42,  27,  140,
    157, 2,   193, 136, 172, 18,  184, 156, 161, 232, 52,  181, 246, 205, 236, 151, 223, 114, 24,
    43,  204, 47,  153, 116, 38,  107, 217, 75,  113, 50,  121, 225, 81,  142, 195, 38,  169, 20,
    98,  198, 235, 82,  107, 67,  87,  82,  103, 171, 221, 63,  159, 231, 237, 167, 239, 38,  162,
    161, 66,  232, 42,  175, 4,   66,  242, 114, 175, 47,  221, 21,  47,  173, 73,  0,   222, 191,
    81,  71,  48,  238, 187, 113, 194, 113, 46,  182, 76,  68,  95,  205, 77,  152, 196, 44,  66,
    32,  243, 21,  77,  19,  33,  107, 84,  244, 190, 86,  41,  46,  90,  79,  237, 16,  225, 24,
    24,  150, 250, 213, 224, 36,  16,  7,   132, 243, 208, 69,  140, 224, 24,  221, 100, 70,  30,
    215, 118, 81,  253, 26,  114, 123, 191, 213, 242, 215, 28,  195, 195, 142, 201, 44,  2,   29,
    243, 54,  212, 36,  24,  11,  165, 76,  3,   193, 183, 16,  79,  49,  233, 8,   250, 249, 41,
    28,  139, 109, 27,  172, 226, 45,  65,  141, 66,  113, 155, 174, 28,  132, 13,  243, 115, 178,
    62,  249, 196, 80,  30,  94,  25,  105, 206, 59,  161, 79,  134, 223, 94,  161, 37,  34,  221,
    254, 59,  41,  40,  55,  193, 174, 240, 93,  47,  196, 83,  74,  148, 149, 181, 89,  251, 65,
    253, 47,  248, 65,  112, 46,  102, 113, 205, 213, 12,  38,  34,  131, 69,  183, 75,  61,  14,
    82,  166, 80,  218, 181, 88,  144, 147, 45,  4,   42,  202, 194, 81,  184, 31,  88,  17,  41,
    49,  37,  46,  241, 216, 24,  44,  238, 182, 0,   113, 178, 57,  208, 22,  87,  96,  170, 243,
    18,  196, 104, 50,  58,  68,  54,  161, 122, 93,  187, 41,  117, 244, 93,  132, 85,  175, 91,
    192, 187, 217, 217, 212, 119, 87,  165, 134, 244, 13,  127, 247, 81,  94,  106, 62,  110, 59,
    238, 84,  17,  16,  212, 132, 60,  174, 52,  111, 213, 67,  118, 35,  43,  81,  50,  118, 249,
    102, 119, 179, 176, 98,  136, 227, 245, 148, 10,  203, 40,  233, 111, 209, 203, 119, 246, 244,
    137, 166, 97,  249, 243, 134, 173, 15,  51,  78,  254, 217, 186, 82,  237, 15,  211, 246, 216,
    220, 144, 93,  126, 36,  127, 251, 78,  163, 150, 166, 15,  14,  41,  61,  213, 68,  170, 51,
    77,  19,  47,  55,  241, 65,  253, 251, 79,  248, 41,  114, 204, 100, 87,  193, 165, 130, 59,
    37,  106, 202, 181, 107, 50,  121, 58,  1,   132, 251, 42,  248, 41,  41,  208, 214, 76,  69,
    51,  255, 44,  54,  29,  23,  126, 76,  120, 156, 130, 230, 115, 163, 187, 11,  213, 12,  18,
    68,  190, 19,  36,  172, 152, 54,  131, 13,  215, 39,  148, 167, 99,  108, 87,  209, 47,  42,
    150, 16,  9,   236, 193, 178, 39,  236, 212, 112, 12,  59,  113, 154, 66,  79,  74,  222, 48,
    76,  114, 107, 55,  51,  15,  236, 115, 238, 129, 169, 73,  214, 76,  129, 6,   184, 46,  250,
    93,  64,  56,  84,  206, 151, 199, 110, 190, 212, 190, 119, 34,  212, 90,  227, 204, 98,  187,
    37,  62,  253, 47,  166, 99,  136, 150, 62,  83,  101, 101, 20,  113, 70,  76,  59,  195, 32,
    102, 204, 218, 169, 84,  127, 7,   148, 221, 180, 61,  132, 245, 165, 92,  74,  211, 61,  141,
    164, 143, 244, 65,  253, 251, 143, 125, 254, 127, 188, 253, 255, 227, 31,  14,  195, 149, 161,
    172, 13,  0,   0,
};
static const unsigned char fixed_words[] = {
    203, 78, 173, 44, 86, 200, 70, 33, 0, 24, 172, 28, 196, 19, 0, 0, 0,
};
static const unsigned char stored_words[] = {1,   5, 0, 250, 255, 't', 'i', 'l', 'e',
                                             's', 0, 0, 0,   0,   5,   0,   0,   0};

/* Far copies, runs of one byte, and letters seldom enough for words of more than ten bits. */
static size_t write_words(unsigned char *to) {
    size_t at = 0;
    uint32_t seed = 1;
    for (int n = 0; n < 2000; n++) {
        seed = seed * 1664525u + 1013904223u;
        uint32_t letter = 0;
        while (letter < 18 && seed >> (31 - letter) & 1u) letter++;
        to[at++] = (unsigned char)('a' + letter);
        if (n % 500 == 499)
            for (int i = 0; i < 300; i++) to[at++] = '-';
    }
    memcpy(to + at, to, 300);
    return at + 300;
}

static void check(const unsigned char *blob, size_t size, const unsigned char *words,
                  size_t count) {
    assert_int_equal(tess_inflated_size(blob, size), count);
    unsigned char *to = malloc(count + 1);
    assert_non_null(to);
    to[count] = 42;
    assert_int_equal(tess_inflate(blob, size, to, count), 0);
    assert_memory_equal(to, words, count);
    assert_int_equal(to[count], 42);
    /* one byte less and one more than there are */
    assert_int_equal(tess_inflate(blob, size, to, count - 1), -1);
    assert_int_equal(tess_inflate(blob, size, to, count + 1), -1);
    assert_int_equal(to[count], 42);
    free(to);
}

static void test_blocks(void **state) {
    (void)state;
    unsigned char words[4000];
    check(stored_words, sizeof stored_words, (const unsigned char *)"tiles", 5);
    check(fixed_words, sizeof fixed_words, (const unsigned char *)"keys keys keys keys", 19);
    check(dynamic_words, sizeof dynamic_words, words, write_words(words));
}

/* Copies of exact size, so that a sanitizer sees a byte read or written past them. */
static void damaged(const unsigned char *blob, size_t size, size_t at, unsigned flip) {
    const size_t count = tess_inflated_size(dynamic_words, sizeof dynamic_words);
    unsigned char *copy = malloc(size), *to = malloc(count);
    assert_non_null(copy);
    assert_non_null(to);
    memcpy(copy, blob, size);
    if (flip) copy[at] ^= (unsigned char)flip;
    const int result = tess_inflate(copy, size, to, count);
    if (!flip) assert_int_equal(result, -1);
    free(copy);
    free(to);
}

static void test_damage(void **state) {
    (void)state;
    assert_int_equal(tess_inflated_size(stored_words, 7), 0);
    for (size_t size = 0; size < sizeof dynamic_words; size++) damaged(dynamic_words, size, 0, 0);
    for (size_t at = 0; at < sizeof dynamic_words; at++)
        for (unsigned bit = 0; bit < 8; bit++)
            damaged(dynamic_words, sizeof dynamic_words, at, 1u << bit);
    for (size_t at = 0; at < sizeof fixed_words; at++)
        for (unsigned bit = 0; bit < 8; bit++)
            damaged(fixed_words, sizeof fixed_words, at, 1u << bit);
}

int main(void) { return RUN_TESTS(TEST(test_blocks), TEST(test_damage)); }
