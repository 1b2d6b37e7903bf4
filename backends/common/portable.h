/* SPDX-License-Identifier: Apache-2.0 */
/* The portable kernels from the host's side: their instances, which problems they take, and their
 * arguments. Shared by all GPU backends. */
#ifndef TESS_COMMON_PORTABLE_H
#define TESS_COMMON_PORTABLE_H

#include "args.h"
#include <tessera/tessera_backend.h>

enum { TESS_PORTABLE_BUCKETS = 3 };

/* One compiled shape of a forward kernel. A workgroup of `threads` takes one job of at most `rows`
 * rows, `keys` keys at a time. */
typedef struct tess_portable_shape {
    uint32_t head_dim; /* largest that it takes: 64, 128 or 256 */
    uint32_t rows, keys, threads;
    uint32_t shared_bytes; /* of workgroup memory that it needs */
    uint32_t few;          /* 1: of the kernel for few rows, forward_few.inl */
} tess_portable_shape;

typedef struct tess_portable_variant {
    tess_portable_shape shapes[TESS_PORTABLE_BUCKETS]; /* rising head_dim */
} tess_portable_variant;

/* Of tiles: for most devices; the same but for head_dims up to 64, where tiles have twice the rows;
 * and what fits 16 KiB of workgroup memory. Of few rows: fits as well. */
extern const tess_portable_variant tess_portable, tess_portable_tall, tess_portable_small,
    tess_portable_few;

/* The tensors that the portable kernels take, in the order of their first buffers; the tables and
 * the workspace follow. */
typedef struct tess_portable_tensor {
    uint32_t role; /* tess_role */
    const char *name;
    uint32_t element; /* bytes; 0: of the launch's dtype, or of its kv_dtype */
    size_t at;        /* in tess_args: the index of the first element ... */
    size_t strides;   /* ... and the three strides */
} tess_portable_tensor;

enum { TESS_PORTABLE_TENSORS = 8, TESS_PORTABLE_BUFFERS = TESS_PORTABLE_TENSORS + 2 };
extern const tess_portable_tensor tess_portable_tensors[TESS_PORTABLE_TENSORS];

/* Of a workgroup of the merge kernel: its threads, the rows of one merge that it takes, and its
 * workgroup memory (two floats a thread). */
enum { TESS_MERGE_THREADS = 128, TESS_MERGE_ROWS = 4, TESS_MERGE_SHARED_BYTES = 1024 };

/* Fills what a device is that runs these kernels and those beside them (paging.h, prepare.h), and
 * clears the rest. */
void tess_portable_caps(uint32_t buffer_kind, uint32_t parallel_jobs, tess_caps *caps);

/* Why no portable kernel takes the problem, or NULL. */
const char *tess_portable_refusal(const tess_kernel_key *key);

/* The smallest shape for a head_dim; NULL past the last. */
const tess_portable_shape *tess_portable_find(const tess_portable_variant *variant,
                                              int32_t head_dim);

/* The shape that runs a problem: of few rows if the longest sequence's fit, else of `tiles`. Those
 * of few rows read no codes, and batch-invariant plans have the same tiles for every length. */
const tess_portable_shape *tess_portable_choose(const tess_portable_variant *tiles,
                                                const tess_kernel_key *key);

/* Fills what a kernel says of itself: tiles of so many rows, which may be cut to a multiple of
 * tile_step, for which the heads of a group are packed. */
void tess_portable_tiles(uint32_t rows, uint32_t tile_step, const tess_kernel_costs *costs,
                         tess_kernel *kernel);
/* Fills tiles and costs of a kernel that runs the key in a shape, on a device that runs `workers`
 * workgroups for tiles at a time. Devices differ in speed by more than shapes do; the rates are
 * those of a fast device, where splitting keys pays least. */
void tess_portable_describe(const tess_portable_shape *shape, const tess_kernel_key *key,
                            uint32_t workers, tess_kernel *kernel);

/* Whether a tensor of attention has a batch dimension; elsewhere its stride is not used. */
int tess_portable_has_batches(const tess_launch *launch, uint32_t role);

/* "f32", "f16", "bf16", and bytes of an element. */
const char *tess_portable_dtype(uint32_t dtype);
uint32_t tess_portable_element(uint32_t dtype);
/* Whether elements are codes of 8 bits. */
static inline int tess_portable_has_codes(uint32_t dtype) {
    return dtype == TESS_F8E4M3 || dtype == TESS_I8;
}
/* What page ids must be below: of a trusted launch, nothing that one could be. */
static inline tess_arg_u32 tess_portable_pages(const tess_launch *l) {
    return l->trusted && l->pages > 0 ? UINT32_MAX : (tess_arg_u32)l->pages;
}
/* Bytes of an element of a tensor of a launch. */
uint32_t tess_portable_item(const tess_launch *launch, const tess_portable_tensor *tensor);
/* The same of a stage of backward (backward.h). */
uint32_t tess_backward_item(const tess_launch *launch, const tess_portable_tensor *tensor);

/* The arguments for `items` records from number `first` on of the table at byte `table_at`, as the
 * functions below have them. */
void tess_portable_args(const tess_launch *launch, int base_in_handle, uint64_t table_at,
                        uint64_t first, size_t record, uint64_t items, tess_args *args);

/* The arguments for `items` jobs from launch->first_job + skip on. The *_at fields hold the
 * elements of buffer.offset, or 0 with `base_in_handle`, for backends that add the offset to the
 * address. */
void tess_portable_forward_args(const tess_launch *launch, uint64_t skip, uint64_t items,
                                int base_in_handle, tess_args *args);
/* Workgroups of the merge kernel for each merge of a launch. */
uint32_t tess_portable_merge_groups(const tess_launch *launch);
void tess_portable_merge_args(const tess_launch *launch, uint64_t skip, uint64_t items,
                              int base_in_handle, tess_args *args);

/* Threads of a workgroup of the kernel that merges parts of keys, which merges one vector. */
enum { TESS_PARTS_THREADS = 64 };

/* A TESS_OP_MERGE as its kernel sees it, which takes the buffers and arguments of attention: O of
 * the parts is Q, and their LSE the workspace, which has the strides of K. */
void tess_portable_parts(const tess_launch *launch, tess_launch *as_attention);
/* What messages call a tensor and the workspace of either launch. */
const char *tess_portable_name(const tess_launch *launch, const tess_portable_tensor *tensor);
static inline const char *tess_portable_workspace_name(const tess_launch *l) {
    return l->op == TESS_OP_MERGE ? "lse_parts" : "workspace";
}
/* The arguments for `items` vectors of such a launch from first_job + skip on. */
void tess_portable_parts_args(const tess_launch *as_attention, uint64_t skip, uint64_t items,
                              int base_in_handle, tess_args *args);

#endif /* TESS_COMMON_PORTABLE_H */
