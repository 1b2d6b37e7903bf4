/* SPDX-License-Identifier: Apache-2.0 */
/* A caller's block mask: read from bytes or bits, kept as compressed rows. */
#ifndef TESSERA_CORE_MASK_H
#define TESSERA_CORE_MASK_H

#include "common.h"

/* [heads, query_blocks, key_blocks], with a byte for each element, or packed: a bit for each,
 * lowest bit first, in rows of whole bytes. */
typedef struct tess_mask {
    const uint8_t *data;
    bool packed;
    int64_t heads, query_blocks, key_blocks;
} tess_mask;

static inline uint64_t tess_mask_row_bytes(const tess_mask *mask) {
    return mask->packed ? ((uint64_t)mask->key_blocks + 7) / 8 : (uint64_t)mask->key_blocks;
}

static inline bool tess_mask_get(const tess_mask *mask, const uint8_t *row, int64_t j) {
    return mask->packed ? (row[j >> 3] >> (j & 7)) & 1 : row[j] != 0;
}

/* Compressed rows of one head. Row i has the rising columns columns[start[i] .. start[i + 1]).
 * Columns that no query can see are left out. */
typedef struct tess_mask_rows {
    int64_t query_blocks;
    const uint64_t *start;
    const uint32_t *columns;
} tess_mask_rows;

/* The columns of query block i, and their number; none outside the mask. */
static inline const uint32_t *tess_mask_row(const tess_mask_rows *rows, int64_t i, int64_t *count) {
    if (i < 0 || i >= rows->query_blocks) {
        *count = 0;
        return rows->columns;
    }
    *count = (int64_t)(rows->start[i + 1] - rows->start[i]);
    return rows->columns + rows->start[i];
}

/* How many of `count` rising columns lie below `end`. */
int64_t tess_mask_below(const uint32_t *columns, int64_t count, int64_t end);

/* Groups equal heads and compresses one of each group. */
typedef struct tess_mask_set {
    uint32_t n_classes;
    uint16_t *head_class; /* [heads], the caller's */
    tess_mask_rows *rows; /* [n_classes] */
    void *memory;         /* what rows points into, of `bytes` */
    uint64_t rows_bytes, bytes;
} tess_mask_set;

/* Leaves out columns that no query can see: those from n_blocks on, and in causal order those after
 * the diagonal. On failure nothing is kept. */
tess_status tess_mask_compress(tess_runtime *runtime, const char *function, const tess_mask *mask,
                               bool causal, int64_t n_blocks, tess_mask_set *set);
void tess_mask_release(tess_runtime *runtime, tess_mask_set *set);

/* Whether no column is read again once a later query block did not read it. Rows from n_blocks on
 * do not count. */
bool tess_mask_kv_efficient(const tess_mask_rows *rows, int64_t n_blocks);

#endif
