/* SPDX-License-Identifier: Apache-2.0 */
/* A rule: the pattern of one class of heads, with closed forms for what it keeps. A rule knows no
 * sequence and no device. */
#ifndef TESSERA_CORE_PATTERN_H
#define TESSERA_CORE_PATTERN_H

#include "checked.h"
#include "common.h"
#include "mask.h"

/* Sums of pairs: up to 2^124, since a layout may be made for 2^62 tokens. Without a 128-bit type
 * sums past 2^53 are rounded. */
#ifdef __SIZEOF_INT128__
__extension__ typedef __int128 tess_wide;
#else
typedef double tess_wide;
#endif

/* A window side without bound. Larger than every position, small enough that adding a position does
 * not overflow. */
#define TESS_UNBOUNDED (INT64_C(1) << 62)

/* Lengths of a plan stay below this, so that positions and their sums with a window side fit 32-bit
 * words of a kernel. */
#define TESS_LENGTH_END (INT64_C(2147483648) - 65536)

typedef enum tess_rule_kind {
    TESS_RULE_DENSE,
    TESS_RULE_STRIDED,      /* S2 in causal order */
    TESS_RULE_STRIDED_BOTH, /* S2, bidirectional */
    TESS_RULE_WINDOW,
    TESS_RULE_BLOCKS,
} tess_rule_kind;

typedef struct tess_rule {
    tess_rule_kind kind;
    bool causal;
    int64_t block;
    int64_t local, local_right, stride; /* STRIDED, STRIDED_BOTH */
    /* STRIDED: the first block of the vertical list, below stride */
    int64_t first;
    int64_t left, right, sinks; /* WINDOW, and DENSE as a window without bounds */
    tess_mask_rows rows;        /* BLOCKS */
} tess_rule;

/* How many blocks of the vertical list of a STRIDED rule lie below `end`. */
static inline int64_t tess_vertical_count(const tess_rule *rule, int64_t end) {
    return end <= rule->first ? 0 : (end - rule->first - 1) / rule->stride + 1;
}

/* Whether query position p keeps key t; any p, t >= 0. */
bool tess_rule_kept(const tess_rule *rule, int64_t p, int64_t t);

/* Writes row[j] = 1 if some query of block i and some key of block j are kept, positions being [0,
 * tokens), for j in [0, ceil(tokens / block)). */
void tess_rule_row(const tess_rule *rule, int64_t i, int64_t tokens, uint8_t *row);

/* Pairs kept by the queries [p_begin, p_end) among the keys [0, keys); p_end <= keys. O(1), BLOCKS
 * apart: O(query blocks). */
tess_wide tess_rule_pairs(const tess_rule *rule, int64_t p_begin, int64_t p_end, int64_t keys);

/* Pairs of blocks of which some (query, key) pair is kept, positions being [0, tokens). Not for
 * BLOCKS. */
tess_wide tess_rule_block_pairs(const tess_rule *rule, int64_t tokens);

/* The part of the rule that kernels see. */
void tess_rule_class(const tess_rule *rule, tess_class *words);

/* Checks a pattern and fills defaults in place. `n_heads` and `heads_total` are valid already. */
tess_status tess_pattern_check(const char *function, tess_pattern *pattern, int32_t n_heads,
                               int32_t heads_total);

#endif
