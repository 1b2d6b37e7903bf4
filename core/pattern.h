/* SPDX-License-Identifier: Apache-2.0 */
/* The pattern of one class of heads, with closed forms for what it keeps. It knows no sequence and
 * no device. */
#ifndef TESSERA_CORE_PATTERN_H
#define TESSERA_CORE_PATTERN_H

#include "checked.h"
#include "common.h"
#include "mask.h"

/* Sums of pairs reach 2^124, since a layout may have 2^62 tokens. Without a 128-bit type, sums past
 * 2^53 are rounded. */
#ifdef __SIZEOF_INT128__
__extension__ typedef __int128 tess_wide;
#else
typedef double tess_wide;
#endif

/* An unbounded side of a window. It is larger than every position, and adding a position does not
 * overflow. */
#define TESS_UNBOUNDED (INT64_C(1) << 62)

/* Lengths of a plan stay below this, so that a kernel can hold positions, and their sums with a
 * side of a window, in 32 bits. */
#define TESS_LENGTH_END (INT64_C(2147483648) - 65536)

typedef enum tess_head_kind {
    TESS_HEAD_DENSE,
    TESS_HEAD_STRIDED,      /* S2 in causal order */
    TESS_HEAD_STRIDED_BOTH, /* S2, bidirectional */
    TESS_HEAD_WINDOW,
    TESS_HEAD_BLOCKS,
} tess_head_kind;

typedef struct tess_head_pattern {
    tess_head_kind kind;
    bool causal;
    int64_t block;
    int64_t local, local_right, stride; /* STRIDED, STRIDED_BOTH */
    /* STRIDED: the first block of the vertical list, below stride */
    int64_t first;
    int64_t left, right, sinks; /* WINDOW, and DENSE as a window without bounds */
    tess_mask_rows rows;        /* BLOCKS */
} tess_head_pattern;

/* How many blocks of the vertical list of a STRIDED pattern lie below `end`. */
static inline int64_t tess_vertical_count(const tess_head_pattern *pattern, int64_t end) {
    return end <= pattern->first ? 0 : (end - pattern->first - 1) / pattern->stride + 1;
}

/* Whether query position p keeps key t; any p, t >= 0. */
bool tess_head_keeps(const tess_head_pattern *pattern, int64_t p, int64_t t);

/* For positions [0, tokens): sets row[j] to 1 if some query of block i keeps some key of block j,
 * else to 0, for j in [0, ceil(tokens / block)). */
void tess_head_row(const tess_head_pattern *pattern, int64_t i, int64_t tokens, uint8_t *row);

/* Pairs kept by the queries [p_begin, p_end) among the keys [0, keys). O(1), BLOCKS apart: O(query
 * blocks). */
tess_wide tess_head_pairs(const tess_head_pattern *pattern, int64_t p_begin, int64_t p_end,
                          int64_t keys);

/* For positions [0, tokens): pairs of blocks in which some (query, key) pair is kept. Not for
 * BLOCKS. */
tess_wide tess_head_block_pairs(const tess_head_pattern *pattern, int64_t tokens);

/* The part that kernels see. */
void tess_class_words(const tess_head_pattern *pattern, tess_class *words);

/* Checks a pattern and fills in defaults. `n_heads` and `heads_total` have been checked. */
tess_status tess_pattern_check(const char *function, tess_pattern *pattern, int32_t n_heads,
                               int32_t heads_total);

#endif
