/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layouts as bytes: the descriptor in fixed little-endian fields, a caller's mask as bits, and a
 * checksum against damage. Reading builds the layout anew from the descriptor, so hostile bytes can
 * do no more than a descriptor could, and their length bounds its size. A layout has one form:
 * bytes that would make a layout, but that the layout would not be written as, are refused. A list
 * is written only where head_first cannot say it, so that readers of version 1 refuse only what
 * they cannot do.
 *
 *     offset  bytes  field
 *          0      8  "TESSLAY" and a zero
 *          8      4  format version: 2 with a list of head ids, else 1
 *         12      4  kind
 *         16      4  flags
 *         20      4  block
 *         24     20  local, local_right, stride, offset, dense_heads
 *         44     24  left, right, sinks
 *         68     20  n_heads, n_kv_heads, head_first, heads_total, kv_heads_total
 *         88     16  max_tokens, max_chunk
 *        104     20  mask_heads (4), mask_query_blocks (8), mask_key_blocks (8)
 *        124      -  format version 2: the head ids, 4 bytes each; head_first is 0
 *          -      -  the mask's rows, each in whole bytes, lowest bit first, unused bits zero
 *        end      8  FNV-1a 64 of everything before
 */
#include <string.h>

#include "layout.h"

enum { VERSION_PLAIN = 1, VERSION_IDS = 2, HEADER_BYTES = 124, CHECKSUM_BYTES = 8, ID_BYTES = 4 };

static const unsigned char magic[8] = "TESSLAY";

/* ------------------------------------------------------------------ fields */

static void put(unsigned char **at, uint64_t value, int bytes) {
    for (int n = 0; n < bytes; n++) *(*at)++ = (unsigned char)(value >> (8 * n));
}

static uint64_t get(const unsigned char **at, int bytes) {
    uint64_t value = 0;
    for (int n = 0; n < bytes; n++) value |= (uint64_t) * (*at)++ << (8 * n);
    return value;
}

static int32_t get_int(const unsigned char **at) { return (int32_t)(uint32_t)get(at, 4); }
static int64_t get_long(const unsigned char **at) { return (int64_t)get(at, 8); }

static uint64_t checksum(const unsigned char *data, size_t size) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t n = 0; n < size; n++) hash = (hash ^ data[n]) * UINT64_C(0x100000001b3);
    return hash;
}

/* ------------------------------------------------------------------ writing */

static void put_mask(const tess_layout *x, int64_t heads, unsigned char *at) {
    size_t row_bytes = ((size_t)x->pattern.mask_key_blocks + 7) / 8;
    for (int64_t h = 0; h < heads; h++) {
        const tess_mask_rows *rows = &x->patterns[x->head_class[h]].rows;
        for (int64_t i = 0; i < rows->query_blocks; i++, at += row_bytes) {
            int64_t count;
            const uint32_t *columns = tess_mask_row(rows, i, &count);
            memset(at, 0, row_bytes);
            for (int64_t c = 0; c < count; c++)
                at[columns[c] >> 3] |= (unsigned char)(1u << (columns[c] & 7));
        }
    }
}

/* How many masks are written: heads with equal masks share one. */
static int64_t masks_written(const tess_layout *x) {
    return x->pattern.kind != TESS_PATTERN_BLOCKS ? 0 : x->n_classes == 1 ? 1 : x->n_heads;
}

static size_t ids_bytes(const tess_layout *x) {
    return x->head_ids ? (size_t)x->n_heads * ID_BYTES : 0;
}

static void put_ids(const tess_layout *x, unsigned char *at) {
    for (int32_t h = 0; x->head_ids && h < x->n_heads; h++)
        put(&at, (uint32_t)x->head_ids[h], ID_BYTES);
}

/* Writes what comes before the ids and the mask. */
static void put_header(const tess_layout *x, unsigned char *at) {
    const tess_pattern *p = &x->pattern;
    bool blocks = p->kind == TESS_PATTERN_BLOCKS;
    memcpy(at, magic, sizeof magic);
    at += sizeof magic;
    put(&at, x->head_ids ? VERSION_IDS : VERSION_PLAIN, 4);
    put(&at, p->kind, 4);
    put(&at, p->flags, 4);
    put(&at, (uint32_t)p->block, 4);
    put(&at, (uint32_t)p->local, 4);
    put(&at, (uint32_t)p->local_right, 4);
    put(&at, (uint32_t)p->stride, 4);
    put(&at, (uint32_t)p->offset, 4);
    put(&at, (uint32_t)p->dense_heads, 4);
    put(&at, (uint64_t)p->left, 8);
    put(&at, (uint64_t)p->right, 8);
    put(&at, (uint64_t)p->sinks, 8);
    put(&at, (uint32_t)x->n_heads, 4);
    put(&at, (uint32_t)x->n_kv_heads, 4);
    put(&at, (uint32_t)x->head_first, 4);
    put(&at, (uint32_t)x->heads_total, 4);
    put(&at, (uint32_t)x->kv_heads_total, 4);
    put(&at, (uint64_t)x->max_tokens, 8);
    put(&at, (uint64_t)x->max_chunk, 8);
    put(&at, (uint64_t)masks_written(x), 4);
    put(&at, blocks ? (uint64_t)p->mask_query_blocks : 0, 8);
    put(&at, blocks ? (uint64_t)p->mask_key_blocks : 0, 8);
}

tess_status tess_layout_serialize(const tess_layout *x, void *data, size_t *size) {
    static const char *const function = "tess_layout_serialize";
    TESS_RETURN_IF_ERROR(tess_layout_check(x, function));
    if (!size) return tess_invalid("%s: size: must not be NULL", function);
    const tess_pattern *p = &x->pattern;
    /* This cannot overflow: creation has read a mask of at least this size. */
    const int64_t masks = masks_written(x);
    uint64_t row_bytes = ((uint64_t)p->mask_key_blocks + 7) / 8,
             mask_bytes = (uint64_t)masks * (uint64_t)p->mask_query_blocks * row_bytes;
    uint64_t needed = mask_bytes + ids_bytes(x) + HEADER_BYTES + CHECKSUM_BYTES;
    size_t capacity = *size;
    *size = (size_t)needed;
    if (!data) return TESS_OK;
    if (capacity < needed)
        return tess_invalid("%s: size: %llu bytes are needed, got %llu", function,
                            (unsigned long long)needed, (unsigned long long)capacity);
    unsigned char *at = data;
    put_header(x, at);
    at += HEADER_BYTES;
    put_ids(x, at);
    at += ids_bytes(x);
    put_mask(x, masks, at);
    at += mask_bytes;
    put(&at, checksum(data, (size_t)(needed - CHECKSUM_BYTES)), 8);
    return TESS_OK;
}

/* ------------------------------------------------------------------ reading */

static tess_status corrupt(const char *function, const char *what) {
    return tess_fail(TESS_ERROR_CORRUPT, "%s: data: %s", function, what);
}

/* Checks that the mask fills exactly the bytes that are left, and sets no bit past a row's end. */
static tess_status check_mask(const char *function, const tess_mask *mask, uint64_t left) {
    uint64_t row_bytes = tess_mask_row_bytes(mask), rows, bytes;
    if (mask->heads < 1 || mask->heads > 65535 || mask->query_blocks < 0 || mask->key_blocks < 0 ||
        !mask->query_blocks != !mask->key_blocks ||
        !checked_mul((uint64_t)mask->heads, (uint64_t)mask->query_blocks, &rows) ||
        !checked_mul(rows, row_bytes, &bytes) || bytes != left)
        return corrupt(function, "its length does not fit the mask it holds");
    unsigned unused = (unsigned)(row_bytes * 8 - (uint64_t)mask->key_blocks);
    for (uint64_t row = 0; row < rows; row++) {
        if (mask->data[(row + 1) * row_bytes - 1] >> (8 - unused))
            return corrupt(function, "an unused bit of the mask is set");
    }
    return TESS_OK;
}

static void read_header(const unsigned char *at, tess_layout_desc *d, tess_pattern *p,
                        tess_mask *mask) {
    memset(d, 0, sizeof *d);
    memset(p, 0, sizeof *p);
    d->struct_size = sizeof *d;
    p->struct_size = sizeof *p;
    p->kind = (uint32_t)get(&at, 4);
    p->flags = (uint32_t)get(&at, 4);
    p->block = get_int(&at);
    p->local = get_int(&at);
    p->local_right = get_int(&at);
    p->stride = get_int(&at);
    p->offset = get_int(&at);
    p->dense_heads = get_int(&at);
    p->left = get_long(&at);
    p->right = get_long(&at);
    p->sinks = get_long(&at);
    d->n_heads = get_int(&at);
    d->n_kv_heads = get_int(&at);
    d->head_first = get_int(&at);
    d->heads_total = get_int(&at);
    d->kv_heads_total = get_int(&at);
    d->max_tokens = get_long(&at);
    d->max_chunk = get_long(&at);
    p->mask_heads = get_int(&at);
    p->mask_query_blocks = get_long(&at);
    p->mask_key_blocks = get_long(&at);
    mask->data = at;
    mask->packed = true;
    mask->heads = p->mask_heads;
    mask->query_blocks = p->mask_query_blocks;
    mask->key_blocks = p->mask_key_blocks;
}

/* Reads the list that follows the header, and moves *at behind it. *ids is NULL where there is none
 * and is freed by the caller. */
static tess_status read_ids(tess_runtime *runtime, const char *function, int32_t n_heads,
                            const unsigned char **at, uint64_t left, int32_t **ids) {
    if (n_heads < 1 || n_heads > 65535 || left < (uint64_t)n_heads * ID_BYTES)
        return corrupt(function, "its length does not fit the head ids it holds");
    *ids = tess_mem_alloc(runtime, (size_t)n_heads * sizeof **ids, 64);
    if (!*ids)
        return tess_fail(TESS_ERROR_OUT_OF_MEMORY, "%s: no memory for %d head ids", function,
                         (int)n_heads);
    for (int32_t h = 0; h < n_heads; h++) (*ids)[h] = get_int(at);
    return TESS_OK;
}

/* Whether the mask holds exactly the bits that the layout would write. Needs no memory for a second
 * mask. */
static bool same_mask(const tess_layout *x, const unsigned char *at) {
    size_t row_bytes = ((size_t)x->pattern.mask_key_blocks + 7) / 8;
    for (int64_t h = 0; h < masks_written(x); h++) {
        const tess_mask_rows *rows = &x->patterns[x->head_class[h]].rows;
        for (int64_t i = 0; i < rows->query_blocks; i++, at += row_bytes) {
            int64_t count, set = 0;
            const uint32_t *columns = tess_mask_row(rows, i, &count);
            for (size_t n = 0; n < row_bytes; n++) set += __builtin_popcount(at[n]);
            if (set != count) return false;
            for (int64_t c = 0; c < count; c++) {
                if (!(at[columns[c] >> 3] >> (columns[c] & 7) & 1)) return false;
            }
        }
    }
    return true;
}

/* Checks that the layout made from these bytes would be written as the same bytes. */
static tess_status check_unique(const char *function, const tess_layout *made,
                                const unsigned char *data) {
    unsigned char header[HEADER_BYTES];
    size_t at = 0;
    put_header(made, header);
    while (at < HEADER_BYTES && header[at] == data[at]) at++;
    if (at < HEADER_BYTES)
        return tess_fail(TESS_ERROR_CORRUPT,
                         "%s: data: the field of byte %u is not as this layout is written, which "
                         "has one form only",
                         function, (unsigned)at);
    return same_mask(made, data + HEADER_BYTES + ids_bytes(made))
               ? TESS_OK
               : corrupt(function, "a bit of the mask is set that no query can use");
}

/* Makes a layout from the bytes of a header and the `left` ones between it and the checksum. */
static tess_status make(tess_runtime *runtime, const char *function, const unsigned char *data,
                        uint64_t left, tess_layout_desc *d, tess_pattern *p, tess_mask *mask,
                        tess_layout **made) {
    const bool blocks = p->kind == TESS_PATTERN_BLOCKS;
    if (!blocks && left != 0) return corrupt(function, "it is longer than its fields say");
    if (blocks) TESS_RETURN_IF_ERROR(check_mask(function, mask, left));
    p->mask = blocks ? mask->data : NULL;
    tess_status status = tess_layout_build(runtime, function, d, p, mask, made);
    /* Serializing never writes what creation refuses. The message stays, because it names the
     * field. */
    if (status != TESS_OK)
        return status == TESS_ERROR_INVALID || status == TESS_ERROR_UNSUPPORTED ? TESS_ERROR_CORRUPT
                                                                                : status;
    status = check_unique(function, *made, data);
    if (status != TESS_OK) tess_layout_release(*made);
    return status;
}

tess_status tess_layout_deserialize(tess_runtime *runtime, const void *data, size_t size,
                                    tess_layout **layout) {
    static const char *const function = "tess_layout_deserialize";
    TESS_RETURN_IF_ERROR(tess_runtime_check(runtime, function));
    if (!data) return tess_invalid("%s: data: must not be NULL", function);
    if (!layout) return tess_invalid("%s: layout: must not be NULL", function);
    const unsigned char *at = data;
    if (size < sizeof magic || memcmp(at, magic, sizeof magic) != 0)
        return corrupt(function, "it does not begin like a layout");
    if (size < HEADER_BYTES + CHECKSUM_BYTES) return corrupt(function, "it is truncated");
    at += sizeof magic;
    uint64_t version = get(&at, 4);
    if (version != VERSION_PLAIN && version != VERSION_IDS)
        return tess_fail(TESS_ERROR_VERSION,
                         "%s: data: format version %u, this library reads %d and %d", function,
                         (unsigned)version, VERSION_PLAIN, VERSION_IDS);
#ifndef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION /* a fuzzer does not guess checksums */
    const unsigned char *sum = (const unsigned char *)data + size - CHECKSUM_BYTES;
    if (get(&sum, 8) != checksum(data, size - CHECKSUM_BYTES))
        return corrupt(function, "its checksum is wrong");
#endif
    tess_layout_desc d;
    tess_pattern p;
    tess_mask mask;
    uint64_t left = size - HEADER_BYTES - CHECKSUM_BYTES;
    read_header(at, &d, &p, &mask);
    int32_t *ids = NULL;
    const size_t n_ids = version == VERSION_IDS ? (size_t)d.n_heads : 0;
    if (version == VERSION_IDS) {
        TESS_RETURN_IF_ERROR(read_ids(runtime, function, d.n_heads, &mask.data, left, &ids));
        left -= n_ids * ID_BYTES;
        d.head_ids = ids;
    }
    tess_layout *made;
    const tess_status status = make(runtime, function, data, left, &d, &p, &mask, &made);
    tess_mem_free(runtime, ids, n_ids * sizeof *ids);
    if (status == TESS_OK) *layout = made;
    return status;
}
