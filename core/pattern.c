/* SPDX-License-Identifier: Apache-2.0 */
#include "pattern.h"

#include <string.h>

/* ------------------------------------------------------------------ sums */

/* 1 + 2 + ... + n; 0 for negative n. */
static tess_wide triangle(int64_t n) { return n <= 0 ? 0 : (tess_wide)n * ((tess_wide)n + 1) / 2; }

/* Sum of max(0, min(x + shift, limit)) over begin <= x < end, limit >= 0. */
static tess_wide sum_clamped(int64_t begin, int64_t end, int64_t shift, int64_t limit) {
    int64_t low = begin + shift, high = end + shift; /* values low .. high - 1 */
    if (high <= low) return 0;
    int64_t rise_begin = larger(low, 0), rise_end = smaller(high, limit);
    tess_wide sum = rise_end > rise_begin ? triangle(rise_end - 1) - triangle(rise_begin - 1) : 0;
    int64_t flat_begin = larger(low, limit);
    if (high > flat_begin) sum += (tess_wide)(high - flat_begin) * limit;
    return sum;
}

/* Sum of y div stride over 0 <= y <= last. */
static tess_wide sum_quotients(int64_t last, int64_t stride) {
    if (last < 0) return 0;
    int64_t whole = (last + 1) / stride, rest = (last + 1) % stride;
    return (tess_wide)stride * ((tess_wide)whole * (whole - 1) / 2) + (tess_wide)whole * rest;
}

/* Sum of tess_vertical_count(end) over 1 <= end <= last. */
static tess_wide sum_vertical(const tess_head_pattern *pattern, int64_t last) {
    const int64_t past = last - 1 - pattern->first; /* the first of the list */
    return past < 0 ? 0 : (tess_wide)(past + 1) + sum_quotients(past, pattern->stride);
}

/* ------------------------------------------------------------------ membership */

/* Bidirectional S2 counts from the query block. Written so that no query position overflows. */
static bool strided_both_kept(const tess_head_pattern *pattern, int64_t i, int64_t j) {
    /* i - j modulo stride, each term small */
    int64_t stride = pattern->stride, distance = i % stride - j % stride;
    if (i > j + pattern->local - 1) return (distance - (pattern->local - 1) % stride) % stride == 0;
    if (i < j - pattern->local_right + 1)
        return (-distance - (pattern->local_right - 1) % stride) % stride == 0;
    return true;
}

bool tess_head_keeps(const tess_head_pattern *pattern, int64_t p, int64_t t) {
    if (pattern->causal && t > p) return false;
    switch (pattern->kind) {
    case TESS_HEAD_STRIDED: {
        int64_t i = p / pattern->block, j = t / pattern->block; /* p >= t >= 0 in causal order */
        return i - j < pattern->local || j % pattern->stride == pattern->first;
    }
    case TESS_HEAD_STRIDED_BOTH:
        return strided_both_kept(pattern, floor_div(p, pattern->block), t / pattern->block);
    case TESS_HEAD_WINDOW: /* no sum with the bound of a side that has none, however far p is */
        return t < pattern->sinks ||
               ((pattern->left == TESS_UNBOUNDED || p <= t + pattern->left) &&
                (pattern->right == TESS_UNBOUNDED || p >= t - pattern->right));
    case TESS_HEAD_BLOCKS: {
        int64_t count, j = t / pattern->block;
        const uint32_t *columns =
            tess_mask_row(&pattern->rows, floor_div(p, pattern->block), &count);
        int64_t below = tess_mask_below(columns, count, j);
        return below < count && columns[below] == j;
    }
    default: return true;
    }
}

void tess_head_row(const tess_head_pattern *pattern, int64_t i, int64_t tokens, uint8_t *row) {
    int64_t block = pattern->block, n = (tokens + block - 1) / block;
    int64_t p_first = i * block, p_last = smaller(tokens, p_first + block) - 1;
    memset(row, 0, (size_t)n);
    if (pattern->kind == TESS_HEAD_BLOCKS) {
        int64_t count;
        const uint32_t *columns = tess_mask_row(&pattern->rows, i, &count);
        for (int64_t c = 0; c < count; c++) row[columns[c]] = 1;
        return;
    }
    for (int64_t j = 0; j < n; j++) {
        int64_t t_first = j * block, t_last = smaller(tokens, t_first + block) - 1;
        if (pattern->causal && t_first > p_last) break;
        if (pattern->kind == TESS_HEAD_DENSE || pattern->kind == TESS_HEAD_WINDOW) {
            /* t - p takes every value between t_first - p_last and t_last - p_first. */
            row[j] = t_first < pattern->sinks ||
                     (t_first - p_last <= pattern->right && p_first - t_last <= pattern->left);
        } else {
            /* All pairs of two blocks are alike, except that causal order masks some, this one
             * last.
             */
            row[j] = tess_head_keeps(pattern, p_last, t_first);
        }
    }
}

/* ------------------------------------------------------------------ pairs */

/* Pairs that the rows [0, end) of a causal S2 pattern keep. Row p of block i keeps p + 1 keys, less
 * the blocks below the local ones, plus those of the vertical list among them. */
static tess_wide strided_prefix(const tess_head_pattern *pattern, int64_t end) {
    if (end <= 0) return 0;
    int64_t blocks = end / pattern->block, rest = end % pattern->block;
    /* blocks below the local ones, summed over whole query blocks: 1 + ... + hidden */
    int64_t hidden = blocks - pattern->local;
    tess_wide sum = (sum_vertical(pattern, hidden) - triangle(hidden)) * pattern->block;
    int64_t start = larger(0, blocks - pattern->local + 1);
    sum += (tess_wide)rest * (tess_vertical_count(pattern, start) - start);
    return triangle(end) + sum * pattern->block;
}

/* Causal S2: the keys that one row of a query block keeps, summed over the blocks [begin, end). All
 * rows lie at `keys` or after. */
static tess_wide strided_later_rows(const tess_head_pattern *pattern, int64_t begin, int64_t end,
                                    int64_t keys) {
    const int64_t block = pattern->block, n = keys / block + (keys % block != 0);
    /* Local blocks begin at i - local + 1: before the first key, among the keys, or after them. */
    const int64_t from = begin - pattern->local + 1, to = end - pattern->local + 1,
                  low = larger(smaller(1, to), from), high = larger(smaller(n, to), low);
    const int64_t listed = tess_vertical_count(pattern, n),
                  missing = listed > tess_vertical_count(pattern, n - 1) ? n * block - keys : 0;
    const tess_wide hidden = triangle(high - 1) - triangle(low - 1) -
                             (sum_vertical(pattern, high - 1) - sum_vertical(pattern, low - 1));
    return (tess_wide)(high - from) * keys - hidden * block +
           (tess_wide)(to - high) * (listed * block - missing);
}

/* Bidirectional S2: the keys that one row of a query block keeps, summed over the blocks [begin,
 * end). */
static tess_wide strided_both_rows(const tess_head_pattern *pattern, int64_t begin, int64_t end,
                                   int64_t keys) {
    if (end <= begin) return 0;
    int64_t block = pattern->block, stride = pattern->stride, n = (keys + block - 1) / block,
            missing = n * block - keys;
    /* Local blocks: [max(0, i - local + 1), min(n, i + local_right)). The last one may be short. */
    tess_wide blocks = sum_clamped(begin, end, pattern->local_right, n) -
                       sum_clamped(begin, end, 1 - pattern->local, n);
    int64_t to_end = larger(begin, n - pattern->local_right),
            past_end = smaller(end, n + pattern->local - 1);
    tess_wide short_rows = past_end > to_end ? past_end - to_end : 0;
    /* To the left: (i - local + 1) div stride blocks, less those past the last one. */
    blocks +=
        sum_quotients(end - pattern->local, stride) - sum_quotients(begin - pattern->local, stride);
    blocks -= sum_quotients(end - pattern->local - n, stride) -
              sum_quotients(begin - pattern->local - n, stride);
    short_rows += larger(end - pattern->local - n + 1, 0) / stride -
                  larger(begin - pattern->local - n + 1, 0) / stride;
    /* To the right, with y = n - i - local_right: y div stride blocks, less those with a negative
     * index. */
    int64_t y_first = n - (end - 1) - pattern->local_right,
            y_last = n - begin - pattern->local_right;
    blocks += sum_quotients(y_last, stride) - sum_quotients(y_first - 1, stride);
    blocks -= sum_quotients(y_last - n, stride) - sum_quotients(y_first - 1 - n, stride);
    /* The last block is among them when y is a positive multiple of the stride. */
    if (y_last > 0) short_rows += y_last / stride - larger(y_first - 1, 0) / stride;
    return blocks * block - short_rows * missing;
}

typedef tess_wide (*block_rows)(const tess_head_pattern *pattern, int64_t begin, int64_t end,
                                int64_t keys);

/* Pairs of the rows [p_begin, p_end), where all rows of a query block keep equally many keys. */
static tess_wide pairs_of_rows(block_rows rows, const tess_head_pattern *pattern, int64_t p_begin,
                               int64_t p_end, int64_t keys) {
    if (p_end <= p_begin) return 0;
    int64_t block = pattern->block, i_first = floor_div(p_begin, block),
            i_last = floor_div(p_end - 1, block);
    if (i_first == i_last) return rows(pattern, i_first, i_first + 1, keys) * (p_end - p_begin);
    return rows(pattern, i_first, i_first + 1, keys) * ((i_first + 1) * block - p_begin) +
           rows(pattern, i_first + 1, i_last, keys) * block +
           rows(pattern, i_last, i_last + 1, keys) * (p_end - i_last * block);
}

/* A window keeps max(0, p - left) .. min(keys, p + right + 1), and the sinks outside of it. */
static tess_wide window_pairs(int64_t left, int64_t right, int64_t sinks, bool causal,
                              int64_t begin, int64_t end, int64_t keys) {
    if (sinks > keys) sinks = keys;
    tess_wide sum = sum_clamped(begin, end, right + 1, keys) -
                    sum_clamped(begin, end, -left, keys) + sum_clamped(begin, end, -left, sinks);
    if (!causal)
        sum += (tess_wide)(end - begin) * sinks - sum_clamped(begin, end, right + 1, sinks);
    return sum;
}

static tess_wide blocks_pairs(const tess_head_pattern *pattern, int64_t p_begin, int64_t p_end,
                              int64_t keys) {
    int64_t block = pattern->block, n = (keys + block - 1) / block;
    int64_t i_first = larger(0, floor_div(p_begin, block)),
            i_end = smaller(pattern->rows.query_blocks, floor_div(p_end - 1, block) + 1);
    tess_wide sum = 0;
    for (int64_t i = i_first; i < i_end; i++) {
        int64_t low = larger(p_begin, i * block), high = smaller(p_end, (i + 1) * block), count;
        const uint32_t *columns = tess_mask_row(&pattern->rows, i, &count);
        count = tess_mask_below(columns, count, n);
        if (count == 0) continue;
        int64_t last = columns[count - 1];
        if (pattern->causal && last == i) { /* the diagonal block: row p sees its keys up to p */
            sum += sum_clamped(low - i * block, high - i * block, 1, keys - i * block) +
                   (tess_wide)(high - low) * (count - 1) * block;
        } else {
            sum += (tess_wide)(high - low) *
                   ((count - 1) * block + smaller(keys, (last + 1) * block) - last * block);
        }
    }
    return sum;
}

tess_wide tess_head_pairs(const tess_head_pattern *pattern, int64_t p_begin, int64_t p_end,
                          int64_t keys) {
    if (p_end <= p_begin) return 0;
    switch (pattern->kind) {
    case TESS_HEAD_STRIDED:
        return strided_prefix(pattern, smaller(p_end, keys)) -
               strided_prefix(pattern, smaller(p_begin, keys)) +
               pairs_of_rows(strided_later_rows, pattern, larger(p_begin, keys), p_end, keys);
    case TESS_HEAD_STRIDED_BOTH:
        return pairs_of_rows(strided_both_rows, pattern, p_begin, p_end, keys);
    case TESS_HEAD_BLOCKS: return blocks_pairs(pattern, p_begin, p_end, keys);
    default:
        return window_pairs(pattern->left, pattern->right, pattern->sinks, pattern->causal, p_begin,
                            p_end, keys);
    }
}

tess_wide tess_head_block_pairs(const tess_head_pattern *pattern, int64_t tokens) {
    int64_t block = pattern->block, n = tokens / block + (tokens % block != 0);
    switch (pattern->kind) {
    case TESS_HEAD_STRIDED: {
        int64_t hidden = n - pattern->local;
        return triangle(n) - triangle(hidden) + sum_vertical(pattern, hidden);
    }
    case TESS_HEAD_STRIDED_BOTH: {
        tess_head_pattern unit = *pattern; /* the same pattern with one token a block */
        unit.block = 1;
        return strided_both_rows(&unit, 0, n, n);
    }
    default: {
        /* A window reaches ceil(left / block) blocks to the left, and to the right as far as the
         * last query of a block sees. */
        int64_t left = pattern->left / block + (pattern->left % block != 0),
                right = (block - 1 + pattern->right) / block;
        int64_t sinks = pattern->sinks / block + (pattern->sinks % block != 0);
        return window_pairs(left, pattern->causal ? 0 : right, sinks, pattern->causal, 0, n, n);
    }
    }
}

/* ------------------------------------------------------------------ words and checks */

/* A bound at or past 2^31 - 1 reaches every key of a plan. */
static int32_t word(int64_t tokens) { return tokens >= INT32_MAX ? INT32_MAX : (int32_t)tokens; }

void tess_class_words(const tess_head_pattern *pattern, tess_class *words) {
    memset(words, 0, sizeof *words);
    if (pattern->causal) words->flags |= TESS_CLASS_CAUSAL;
    switch (pattern->kind) {
    case TESS_HEAD_STRIDED:
        words->flags |= TESS_CLASS_LOCAL;
        words->local = (uint32_t)pattern->local;
        words->stride = (uint32_t)pattern->stride;
        words->shift = (uint32_t)((pattern->stride - pattern->first) % pattern->stride);
        break;
    case TESS_HEAD_WINDOW:
        words->flags |= TESS_CLASS_WINDOW;
        /* Where sinks end inside a block, the entry of that block needs a mask. */
        if (pattern->sinks % pattern->block != 0) words->flags |= TESS_CLASS_MASK_ENTRIES;
        words->left = word(pattern->left);
        words->right = word(pattern->right);
        words->sinks = word(pattern->sinks);
        break;
    case TESS_HEAD_BLOCKS: words->flags |= TESS_CLASS_BITS | TESS_CLASS_MASK_ENTRIES; break;
    default: break;
    }
}

static tess_status check_strided(const char *function, tess_pattern *p, int32_t heads_total) {
    const uint32_t shared = TESS_PATTERN_PER_KV_HEAD | TESS_PATTERN_HOMOGENEOUS;
    bool both = (p->flags & TESS_PATTERN_BIDIRECTIONAL) != 0;
    if (p->local < 1)
        return tess_invalid("%s: local: must be at least 1, got %d", function, (int)p->local);
    if (p->stride < 1)
        return tess_invalid("%s: stride: must be at least 1, got %d", function, (int)p->stride);
    if (p->offset < 0)
        return tess_invalid("%s: offset: must be at least 0, got %d", function, (int)p->offset);
    if (p->dense_heads < 0 || p->dense_heads > heads_total)
        return tess_invalid("%s: dense_heads: must be 0 to %d (heads_total), got %d", function,
                            (int)heads_total, (int)p->dense_heads);
    if (both && (p->flags & shared))
        return tess_invalid(
            "%s: flags: PER_KV_HEAD and HOMOGENEOUS must be 0 for a bidirectional pattern",
            function);
    if (both && p->offset != 0)
        return tess_invalid("%s: offset: must be 0 for a bidirectional pattern, got %d", function,
                            (int)p->offset);
    if (both && p->local_right < 0)
        return tess_invalid("%s: local_right: must be at least 0, got %d", function,
                            (int)p->local_right);
    if (both && p->local_right == 0) p->local_right = p->local;
    return TESS_OK;
}

static tess_status check_window(const char *function, tess_pattern *p) {
    if (p->left < -1)
        return tess_invalid("%s: left: must be at least 0, or -1 for unbounded, got %lld", function,
                            (long long)p->left);
    if (p->right < -1)
        return tess_invalid("%s: right: must be at least 0, or -1 for unbounded, got %lld",
                            function, (long long)p->right);
    TESS_RETURN_IF_ERROR(tess_check_not_negative(function, "sinks", p->sinks));
    if (!(p->flags & TESS_PATTERN_BIDIRECTIONAL)) p->right = 0;
    return TESS_OK;
}

static tess_status check_blocks(const char *function, tess_pattern *p, int32_t n_heads) {
    uint64_t size;
    if (!p->mask) return tess_invalid("%s: mask: must not be NULL", function);
    if (p->mask_heads != 1 && p->mask_heads != n_heads)
        return tess_invalid("%s: mask_heads: must be 1 or %d (n_heads), got %d", function,
                            (int)n_heads, (int)p->mask_heads);
    TESS_RETURN_IF_ERROR(
        tess_check_not_negative(function, "mask_query_blocks", p->mask_query_blocks));
    TESS_RETURN_IF_ERROR(tess_check_not_negative(function, "mask_key_blocks", p->mask_key_blocks));
    if (p->mask_query_blocks > INT32_MAX)
        return tess_unsupported("%s: mask_query_blocks: at most 2147483647, got %lld", function,
                                (long long)p->mask_query_blocks);
    if (p->mask_key_blocks > INT32_MAX)
        return tess_unsupported("%s: mask_key_blocks: at most 2147483647, got %lld", function,
                                (long long)p->mask_key_blocks);
    if (!checked_mul((uint64_t)p->mask_query_blocks * (uint64_t)p->mask_key_blocks,
                     (uint64_t)p->mask_heads, &size) ||
        size > SIZE_MAX / 2)
        return tess_invalid("%s: mask: its size overflows", function);
    /* An empty mask needs no memory, so nothing else would bound the number of its rows. */
    if (p->mask_query_blocks == 0 || p->mask_key_blocks == 0)
        p->mask_query_blocks = p->mask_key_blocks = 0;
    return TESS_OK;
}

tess_status tess_pattern_check(const char *function, tess_pattern *p, int32_t n_heads,
                               int32_t heads_total) {
    const uint32_t known =
        TESS_PATTERN_BIDIRECTIONAL | TESS_PATTERN_PER_KV_HEAD | TESS_PATTERN_HOMOGENEOUS;
    if (p->kind > TESS_PATTERN_BLOCKS)
        return tess_invalid("%s: kind: %u is no tess_pattern_kind", function, (unsigned)p->kind);
    if (p->flags & ~known)
        return tess_invalid("%s: flags: unknown bits 0x%x", function,
                            (unsigned)(p->flags & ~known));
    if (p->kind != TESS_PATTERN_S2 && (p->flags & ~(uint32_t)TESS_PATTERN_BIDIRECTIONAL))
        return tess_invalid("%s: flags: PER_KV_HEAD and HOMOGENEOUS are for S2 patterns only",
                            function);
    bool strided_both = p->kind == TESS_PATTERN_S2 && (p->flags & TESS_PATTERN_BIDIRECTIONAL);
    if (!strided_both && p->local_right != 0)
        return tess_invalid(
            "%s: local_right: must be 0 unless the pattern is S2 and bidirectional, got %d",
            function, (int)p->local_right);
    bool sized = p->kind == TESS_PATTERN_S2 || p->kind == TESS_PATTERN_BLOCKS;
    if (p->block < (sized ? 1 : 0))
        return tess_invalid("%s: block: must be at least %d, got %d", function, sized ? 1 : 0,
                            (int)p->block);
    if (p->block == 0) p->block = 64;
    /* Fields of other kinds are ignored and cleared. */
    if (p->kind != TESS_PATTERN_S2) p->local = p->stride = p->offset = p->dense_heads = 0;
    if (p->kind != TESS_PATTERN_WINDOW) p->left = p->right = p->sinks = 0;
    if (p->kind != TESS_PATTERN_BLOCKS)
        p->mask_heads = 0, p->mask_query_blocks = p->mask_key_blocks = 0, p->mask = NULL;
    switch (p->kind) {
    case TESS_PATTERN_S2: return check_strided(function, p, heads_total);
    case TESS_PATTERN_WINDOW: return check_window(function, p);
    case TESS_PATTERN_BLOCKS: return check_blocks(function, p, n_heads);
    default: return TESS_OK;
    }
}
