/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tessera: serving from a KV cache (docs/serving.md). tessera.h includes this header, and
 * its general rules hold here too.
 *
 * The cache is no object of the library's: it is memory of the application's, in tensors that the
 * descriptors of tess_run and of these functions name.
 *
 *     tess_layout_kv, tess_layout_slot
 *                       which key blocks a compact cache keeps, and where
 *     tess_layout_storage, tess_layout_pages
 *                       which kv heads share pools, and how many pages a length takes
 *     tess_layout_part_slot, tess_layout_part_pages
 *                       the same of a cache that keeps a part of the keys
 *     tess_append       writes the new keys of a step, before tess_run reads the cache
 *     tess_copy_pages   forks, snapshots, defragmentation
 *     tess_merge_parts  one result of several runs over parts of the keys
 */
#ifndef TESSERA_TESSERA_SERVING_H
#define TESSERA_TESSERA_SERVING_H

#include "tessera.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A compact KV cache keeps of each kv head only the blocks that one of its query heads can still
 * see. A *slot* is the place of one block of one kv head in it.
 *
 * Some blocks stay for good, the *fixed* ones: those that are strided for some query head of the kv
 * head (S2), and those of the sinks (WINDOW). The others are read for the last time within `local`
 * blocks, and share a *ring* of slots. Of the blocks below j let s be fixed and n not. Then the
 * slot of block j is
 *
 *     min(n, ring) + s                                           if j is fixed
 *     that of block number n mod ring among those not fixed      if not
 *     ring = w - (the fewest fixed blocks among any w in a row)
 *     w    = local + ceil(max_chunk / block)
 *     local of a window is ceil(left / block) + 1
 *
 * So slot = block until the ring is full, no slot is unused, and a longer sequence only adds slots.
 * None of this depends on max_tokens. Everything is fixed, and slot = block, for kv heads with a
 * dense head or with heads of all residues, and in layouts that are not KV-efficient. For a
 * KV-efficient mask of the caller's (BLOCKS) the layout chooses `local`, and with it which blocks
 * are fixed, so that fixed slots and ring are fewest together; ring = w then.
 *
 * The ring promises: a query at position p finds all of its keys as long as no key past position
 * p + max_chunk was ever written. So a sequence may take max_chunk tokens at once, and kv_len may
 * fall by max_chunk below the longest that it was, as drafts are rejected. One token more is the
 * caller's fault, and nothing tells: the library keeps no state of a cache.
 */

/*
 * blocks_kept:      the fixed blocks and the last `local` ones, each counted once: what some query
 *                   head can still see at the end.
 * blocks_allocated: the slots that max_tokens tokens take, at most `blocks`.
 */
typedef struct tess_kv_info {
    uint32_t struct_size;
    uint32_t reserved;        /* 0 */
    int64_t blocks;           /* ceil(max_tokens / block) */
    int64_t blocks_kept;      /* fixed blocks and the last local ones */
    int64_t blocks_allocated; /* slots: slots_fixed + slots_ring */
    int64_t slots_fixed;      /* slots that are never reused */
    int64_t slots_ring;       /* slots of the ring that max_tokens fill */
} tess_kv_info;

/* KV storage that one kv head needs for max_tokens tokens when blocks that no head can see again
 * are dropped.
 * INVALID: kv_head out of range. */
TESS_API tess_status tess_layout_kv(const tess_layout *layout, int32_t kv_head, tess_kv_info *info);

/* The slot in which kv head `kv_head` keeps key block `block`.
 * INVALID: out of range. */
TESS_API tess_status tess_layout_slot(const tess_layout *layout, int32_t kv_head, int64_t block,
                                      int64_t *slot);

/*
 * kv heads with equal rings and equally many fixed blocks make a *storage group*. They share a pool
 * [token place, kv head of the group, element] and its block tables: heads differ in which block a
 * slot holds and hardly in how many slots they take. A slot is `block` token places in a row, so
 * token t of a kv head lies at place slot(t div block) * block + t mod block. Dense heads among
 * sparse ones make a group of their own.
 *
 * Once the ring is full, a sequence takes ring_slots slots, and slots_per_stride for every `stride`
 * blocks.
 */
typedef struct tess_storage_info {
    uint32_t struct_size;
    uint32_t n_kv_heads;      /* of the group, at least 1 */
    int64_t ring_slots;       /* slots of the ring; 0: slot = block */
    int64_t stride;           /* blocks; 0: slots_per_stride counts all fixed slots there are */
    int64_t slots_per_stride; /* fixed slots of `stride` blocks in a row */
} tess_storage_info;

/* Describes storage group `storage`, below tess_layout_info.n_storage. Groups are in the order of
 * their first kv heads. kv_heads, if not NULL, gets the n_kv_heads ids of the group in rising
 * order, which is their order in the pool.
 * INVALID: out of range. */
TESS_API tess_status tess_layout_storage(const tess_layout *layout, uint32_t storage,
                                         tess_storage_info *info, int32_t *kv_heads);

/* The pages of `page` tokens (16, 32, 64, 128 or 256) that a sequence of `tokens` tokens takes from
 * the group's pool: the table needs as many entries, and a page holds page * n_kv_heads * head_dim
 * elements of K and as many of V. Never falls as tokens rise. With page = 0, *pages is the number
 * of token places instead, for a cache without pages.
 * INVALID: out of range, or tokens above max_tokens. */
TESS_API tess_status tess_layout_pages(const tess_layout *layout, uint32_t storage, int64_t tokens,
                                       int32_t page, int64_t *pages);

/*
 * A cache may keep a part of a sequence's keys: those from position kv_first on, a multiple of the
 * pattern's block, as ranks do that share a long sequence (kv_first of tess_plan_desc and
 * tess_prepare_desc). A compact one then counts blocks from the part's first one: in the rule above
 * s and n are the fixed and other blocks below j less those below that one, and the places of
 * earlier blocks do not exist. So the part's slots begin at 0 too, slot = block less the first
 * block until the ring is full, no slot is unused, and the ring promises the same. How many slots
 * some tokens take depends on kv_first, since fixed blocks come at equal steps and not at once.
 *
 * tess_layout_part_slot
 *           the slot in which such a cache keeps key block `block`, counted from position 0.
 * tess_layout_part_pages
 *           what tess_layout_pages answers, for `tokens` tokens from kv_first on. TESS_ANY_FIRST
 *           as kv_first: the most that any part of so many tokens takes, which block tables of a
 *           plan with TESS_PLAN_DEVICE_PARTS have room for, and a COMPACT pool without pages.
 * INVALID: out of range, kv_first that is no multiple of block, a block before it, tokens that end
 *   past max_tokens.
 */
enum { TESS_ANY_FIRST = -1 };
TESS_API tess_status tess_layout_part_slot(const tess_layout *layout, int32_t kv_head,
                                           int64_t kv_first, int64_t block, int64_t *slot);
TESS_API tess_status tess_layout_part_pages(const tess_layout *layout, uint32_t storage,
                                            int64_t kv_first, int64_t tokens, int32_t page,
                                            int64_t *pages);

/* What tess_plan_tensor does, for K or V of a storage group, or for their scales, which have no
 * head_dim:
 *
 *     with pages      [pages, page, kv heads of the group, head_dim]
 *     COMPACT         [batch, tokens, kv heads of the group, head_dim], where `tokens` is what
 *                     tess_layout_pages answers for the longest sequence without pages
 *
 * `pages` is 0 where the plan has none. Any other strides serve tess_run as well, such as
 * [pages, kv heads, page, head_dim].
 * INVALID: the role is none of them; a storage group that there is not; pages. */
TESS_API tess_status tess_plan_pool(const tess_plan *plan, tess_role role, uint32_t storage,
                                    int64_t pages, tess_buffer buffer, tess_tensor *tensor,
                                    uint64_t *bytes);

/*
 * K and V of 8 bits: with TESS_F8E4M3 or TESS_I8 as tess_plan_desc.kv_dtype, K and V are codes with
 * a float32 scale for each token and kv head:
 *
 *     K[b, t, g, :] = k_scale[b, t, g] * number of the code       and V likewise
 *
 * A code of TESS_I8 is the number -128 to 127. A code of TESS_F8E4M3 (OCP 8-bit Floating Point
 * Specification, OFP8, revision 1.0) is a sign s, 4 bits e and 3 bits m, from the highest bit down:
 *
 *     (-1)^s * 2^(e - 7) * (1 + m / 8)    if e > 0
 *     (-1)^s * 2^-6 * m / 8               if e = 0
 *
 * but 0x7f and 0xff are NaN; there is no infinity, and 448 is the largest number. Addresses and
 * strides of K and V are multiples of 8 bytes then.
 *
 * Scales, of at most 2^100 in magnitude, are tensors [batch, token, kv head], addressed as the rows
 * of K and V are: in pages [pages, page, kv head]. Strides may be 0: with stride_batch and
 * stride_token 0 there is one scale for each kv head. tess_run takes k_scale and v_scale, or where
 * n_storage is above 1, one of each for every storage group: k_scale_pools and v_scale_pools. In
 * other plans they are of kind NONE, and NULL. What tess_run promises of a V that is not finite
 * holds for its scale.
 */

/*
 * k, v:         the new rows, laid out as the plan's rows are but with the kv heads:
 *               [batch, q_len, n_kv_heads, head_dim], packed [tokens, n_kv_heads, head_dim].
 *               tess_plan_tensor fills the strides for TESS_ROLE_NEW_K and TESS_ROLE_NEW_V.
 * k_pools, v_pools:
 *               the tensors of the cache, that is K and V of tess_run: one of each for every
 *               storage group, [pages, page, heads of the group, head_dim] where the plan has
 *               pages, else [batch, tokens, heads of the group, head_dim].
 * k_scale_pools, v_scale_pools:
 *               where K and V have 8 bits, the scales of the cache, one tensor of each for every
 *               storage group, [pages, page, heads of the group] or [batch, tokens, heads of the
 *               group]; else NULL. They are written, unless stride_token is 0: see below.
 * block_table, table_stride, pages:
 *               as in tess_run_desc.
 */
typedef struct tess_append_desc {
    uint32_t struct_size;
    uint32_t flags;                   /* must be 0 */
    tess_tensor k, v;                 /* inputs: the new rows */
    tess_tensor k_scale;              /* must be of kind NONE in this version */
    tess_tensor v_scale;              /* likewise */
    const tess_tensor *k_pools;       /* [n_storage] outputs */
    const tess_tensor *v_pools;       /* [n_storage] outputs */
    tess_buffer step;                 /* of a plan with device lengths; else of kind NONE */
    tess_buffer block_table;          /* [kind NONE: where page is 0] int32 */
    int64_t table_stride, pages;      /* 0 where page is 0 */
    tess_stream stream;               /* [0: the device's own queue] */
    const tess_tensor *k_scale_pools; /* [NULL: K is of dtype] [n_storage] float32 */
    const tess_tensor *v_scale_pools; /* [NULL: V is of dtype] [n_storage] float32 */
} tess_append_desc;

/*
 * Writes the new K and V of a step into the cache, at the places from which tess_run with the same
 * plan reads them. It goes before tess_run, on the same stream. kv_len counts the new rows too: row
 * r of a sequence becomes the key at its position (kv_len - q_len + r, or q_first + r). A row at a
 * position outside [0, kv_len) is no key and is dropped. Where the keys are a part of a sequence's,
 * they are at the positions [kv_first, kv_first + kv_len) instead: a rank may be given all new rows
 * with q_first, and keeps its own.
 *
 * In a compact cache a key block takes the place of one that no head will read again. A row whose
 * block gives its place up to a later block that the sequence already has is therefore dropped
 * rather than written: what a head can still see is never overwritten by an older row, and no place
 * is written twice, however many rows are appended at once. What tess_run reads does not depend on
 * how rows were divided into calls.
 *
 * A row is dropped whose page has an id outside [0, pages), or none since the row of the table is
 * too short: nothing outside the pools is ever written. Two sequences that share a page must not
 * append to it: copy it before (tess_copy_pages).
 *
 * Where K and V have 8 bits, each row of each kv head is quantised by itself, so codes and scales
 * do not depend on how rows were divided into calls. In float32, with every operation rounded to
 * nearest even, and largest = 448 for TESS_F8E4M3 and 127 for TESS_I8:
 *
 *     amax  = the largest magnitude of the row
 *     scale = amax * (1 / largest)
 *     code  = x * (1 / scale), to the nearest code; of two as near, the even one
 *
 * Codes beyond the largest become the largest: -128 is never written. A row with amax below 2^-100
 * has codes and a scale of 0. A row with an element that is infinite or NaN has codes of 0 and a
 * scale of NaN, which makes NaN of every result that reads it. All devices write the same bytes.
 *
 * A tensor of scales with stride_token 0 is static: its scales are read and not written. Codes are
 * computed from them as above, so what is too large saturates, and NaN becomes the code 0x7f or, of
 * TESS_I8, 0. Such a scale must lie within 2^-100 and 2^100; rows whose scale does not have codes
 * of 0.
 *
 * A plan with TESS_PLAN_DEVICE_LENGTHS appends the rows of a step, which are packed: k and v have
 * max_rows tokens, and the step says how many of them there are. A sequence any length of which was
 * out of range (tess_prepare) appends nothing.
 *
 * Elements that no row is written to keep their bytes. Nothing is allocated, compiled or waited
 * for, as in tess_run, and the call can be captured. It counts against the plan's max_in_flight. A
 * batch or q_len of 0 succeeds without a launch.
 *
 * INVALID: names the field: a plan without TESS_PLAN_APPEND, a tensor or buffer as in tess_run,
 *   pools that overlap each other or the new rows, a step of a plan without device lengths.
 * UNSUPPORTED: k_scale or v_scale is given, 2^31 rows or more, stream.extra of a plan with several
 *   storage groups, or the stream's kind is not the device's.
 * BUSY. DEVICE_LOST. NATIVE. */
TESS_API tess_status tess_append(const tess_plan *plan, const tess_append_desc *desc);

/*
 * pools: tensors of one shape, [pages, page, n_heads, head_dim], whose stride_batch is the page:
 *        K and V of a storage group, of one layer or of many. Pools of scales are copied by a call
 *        of their own, with a head_dim of 1.
 * page:  any number of tokens. So a contiguous cache can be copied too, a sequence at a time.
 * pairs: int32 [n_pairs][2] on the device: the page to copy from, and the page to copy to.
 */
typedef struct tess_copy_desc {
    uint32_t struct_size;
    uint32_t flags;           /* must be 0 */
    uint32_t dtype;           /* tess_dtype of the pools; that of scales is TESS_F32 */
    uint32_t n_pools;         /* 0 to 32 */
    int32_t n_heads;          /* of a pool, 1 to 65535 */
    int32_t head_dim;         /* elements of a head: 8, 16, ... 256; 1 for scales */
    int64_t page;             /* tokens; at least 1 */
    int64_t pages;            /* of each pool; 1 to 2^31 - 1 */
    int64_t n_pairs;          /* 0 is legal: see below */
    const tess_tensor *pools; /* [n_pools] */
    tess_buffer pairs;        /* [kind NONE: where n_pairs is 0] */
    tess_stream stream;       /* [0: the device's own queue] */
} tess_copy_desc;

/*
 * Copies whole pages within each pool, for forks, snapshots and defragmentation. A pair with an id
 * outside [0, pages) is dropped. A page that is copied to must be in the list once, and no page may
 * be copied both from and to: the pairs are copied in no order. That is the caller's duty, since
 * the list is on the device.
 *
 * The first call on a device for a dtype makes the kernel ready: it may allocate and compile, also
 * with n_pairs 0. Later ones do not, and can be captured. Copies within 32 pools may be under way
 * on a device for each dtype; those of 8 bits count with TESS_F16.
 *
 * INVALID: names the field. UNSUPPORTED: head_dim, n_pairs * page of 2^31 or more, stream.extra
 *   with more than one pool, or the stream's kind is not the device's. OUT_OF_MEMORY. BUSY.
 *   DEVICE_LOST. NATIVE. */
TESS_API tess_status tess_copy_pages(tess_device *device, const tess_copy_desc *desc);

/*
 * The tensors are those of a packed batch: [row, head, element], and no element in LSE. Parts lie
 * in one tensor each, whose stride_batch is the part.
 */
typedef struct tess_parts_desc {
    uint32_t struct_size;
    uint32_t flags;        /* must be 0 */
    uint32_t n_parts;      /* 1 to 65535 */
    uint32_t n_heads;      /* 1 to 65535 */
    uint32_t head_dim;     /* elements of a head: 8, 16, ... 256 */
    uint32_t dtype;        /* tess_dtype of o_parts and o; LSE is float32 */
    int64_t rows;          /* of each part and of the results; 0 is legal: see below */
    tess_tensor o_parts;   /* input */
    tess_tensor lse_parts; /* input */
    tess_tensor o;         /* output; stride_batch is not used */
    tess_tensor lse;       /* [kind NONE: not wanted] output; stride_batch is not used */
    tess_stream stream;    /* [0: the device's own queue] */
} tess_parts_desc;

/*
 * Merges results of the same rows over different keys into the result over all of them:
 *
 *     LSE = ln(sum over parts of exp(LSE_n))     O = sum over parts of exp(LSE_n - LSE) * O_n
 *
 * Each part is what tess_run gave for a part of the keys (kv_first and q_first in tess_plan_desc),
 * LSE included: keys that are spread over devices, or a prefix that several sequences share. Which
 * key is in which part does not matter, as long as it is in one. A part with LSE = -inf contributes
 * nothing, whatever its O holds; where all are, O = 0 and LSE = -inf. An LSE of NaN or +inf makes
 * the row NaN.
 *
 * Parts are added in rising order in float32, so the same call gives the same bits every time. They
 * are those of rounded O and LSE, hence near, and not equal to, those of a run over all keys.
 *
 * The first call on a device for a dtype makes the kernel ready: it may allocate and compile, also
 * with 0 rows. Later ones do not, and can be captured. 64 merges may be under way on a device for
 * each dtype.
 *
 * INVALID: names the field: a number, a tensor or buffer as in tess_run, o or lse that overlaps an
 *   input or the other one.
 * UNSUPPORTED: head_dim, 2^31 rows * n_heads or more, or the stream's kind is not the device's.
 * OUT_OF_MEMORY. BUSY. DEVICE_LOST. NATIVE. */
TESS_API tess_status tess_merge_parts(tess_device *device, const tess_parts_desc *desc);

/* --------------------------------------------------------------------------------------- steps */

/*
 * A plan with TESS_PLAN_DEVICE_LENGTHS serves steps of any lengths up to its capacities: batch is
 * the most sequences, q_len the most rows and kv_len the most keys of each, and max_rows the most
 * rows of all together. Before it runs, tess_prepare reads a step's lengths from device memory and
 * writes a step buffer. Neither call needs to know the lengths on the host, so both can be captured
 * into a graph and replayed. The rows of a step are packed: Q, O and LSE are those of a packed
 * batch of max_rows tokens. K and V have a sequence each: [batch, kv_len, n_kv_heads, head_dim], or
 * they lie in pages, by slot, or both, as in any other plan. Block tables have rows for the
 * capacity. With TESS_PLAN_APPEND, tess_append takes the step too: a whole generation needs one
 * plan.
 *
 * kv_split works as in other plans, except that with 0 every step decides by itself, from its own
 * lengths. Its workspace is at most 24 MiB then, beside the scratch memory of a CPU's threads.
 * Given equal lengths, all devices cut a step into the same parts if their kernels have the same
 * costs, and so does a plan whose lengths the host knows, if its kernel, that kernel's costs and
 * its tiles are the same. A kernel's costs may follow from the capacities. With kv_split 0 the
 * longest sequence must have q_len rows, too: the room for partial results is measured by the
 * capacity's. And no sequence may have 16,384 key blocks or more, which the host counts in coarser
 * steps.
 *
 * q_lens, kv_lens, cu_q_lens, cu_kv_lens, q_first and kv_first are INVALID: lengths come with the
 * step. A plan with TESS_PLAN_DEVICE_PARTS has slots and lists for parts that begin anywhere below
 * the layout's max_tokens: of a compact S2 layout `stride` times the slots, in every step buffer.
 * UNSUPPORTED: BLOCKS, since the rows of a mask are joined for the tiles of known lengths;
 * BIDIRECTIONAL, since K and V are a cache that grows, in which no key follows the last row;
 * kv_split above 4096; a kernel or a backend that does not read steps.
 */

/*
 * The lengths of a step of a plan with TESS_PLAN_DEVICE_LENGTHS, in device memory.
 *
 * batch:    sequences of the step, at most the plan's. Graphs are captured with the plan's batch;
 *           sequences without rows then fill it up and cost nothing.
 * cu_rows:  [batch + 1] int32: rows cu_rows[b] to cu_rows[b + 1] of Q and O are those of sequence
 *           b. The first is 0, and none falls.
 * kv_lens:  [batch] int32: keys of each sequence, those of this step's rows included.
 * q_first:  [batch] int32: the position of each sequence's first row. Without it the last row is at
 *           the position of the last key.
 * kv_first: [batch] int32: the position of each sequence's first key, a multiple of the pattern's
 *           block, for a plan with TESS_PLAN_DEVICE_PARTS. kv_lens then counts keys from there on,
 *           which end at max_tokens at most.
 * step:     step_bytes after its offset, aligned to 256 bytes. Contents do not matter before.
 */
typedef struct tess_prepare_desc {
    uint32_t struct_size;
    uint32_t batch;
    tess_buffer cu_rows;  /* int32 */
    tess_buffer kv_lens;  /* int32 */
    tess_buffer q_first;  /* [kind NONE: see above] int32 */
    tess_buffer kv_first; /* [kind NONE: 0] int32 */
    tess_buffer step;     /* output */
    tess_stream stream;   /* [0: the device's own queue] */
} tess_prepare_desc;

/* What a step buffer begins with, for callers that want to look: uint32 each. Where a plan has
 * several kernels, jobs and merges are those of the first one, which is for the fewest rows. */
enum {
    TESS_STEP_JOBS = 0,    /* jobs of the step */
    TESS_STEP_MERGES = 1,  /* merges of the step */
    TESS_STEP_CLAMPED = 3, /* lengths that were out of range */
};

/*
 * Prepares a step: turns lengths in device memory into jobs, for every tess_append and tess_run
 * with that step that follows on the stream. One small kernel, which all layers of a layout can
 * share. Never allocates, compiles or synchronises, as tess_run. A plan may have any number of
 * steps at once, on any streams, each with a buffer of its own. Nothing else may write to that, not
 * even a copy of a step: kernels may read it ahead of other work on the stream. A step stays as it
 * is until the next tess_prepare: a run with one that was prepared for earlier lengths computes
 * these. After an error it has to be prepared again. A step is used with the plan that it was
 * prepared for. On devices with host memory another plan's is INVALID for tess_run and tess_append;
 * elsewhere it is the caller's duty.
 *
 * The lengths are not trusted. One that is negative or above its capacity counts as the nearest
 * legal one, and a bound of cu_rows that falls as the largest before it. q_first is at most the
 * plan's kv_len, or with DEVICE_PARTS the layout's max_tokens. kv_first is at most max_tokens less
 * the keys, and counts as the multiple of a block at or below. TESS_STEP_CLAMPED of the step counts
 * the sequences' bounds, lengths and positions that were changed. Such a sequence appends nothing,
 * since its rows have other positions than was meant. A plan with TESS_PLAN_TRUST_DEVICE takes all
 * of them as they are and counts nothing: what is out of range then makes wild accesses.
 * INVALID: names the field; the plan has no DEVICE_LENGTHS; kv_first without DEVICE_PARTS.
 * BUSY. DEVICE_LOST. NATIVE.
 */
TESS_API tess_status tess_prepare(const tess_plan *plan, const tess_prepare_desc *desc);

#ifdef __cplusplus
}
#endif

#endif /* TESSERA_TESSERA_SERVING_H */
