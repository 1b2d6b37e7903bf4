/* SPDX-License-Identifier: Apache-2.0 */
/* A plan: a layout and a batch bound to a device. Immutable after creation. */
#ifndef TESSERA_CORE_PLAN_H
#define TESSERA_CORE_PLAN_H

#include "jobs.h"
#include "memory_plan.h"
#include "pools.h"

/* What one kernel serves of a plan: the sequences of a range of q_len. Its jobs follow those of
 * the share before, and so do its merges; its partial results have a shape of their own. */
typedef struct tess_share {
    tess_kernel kernel;
    char kernel_name[64]; /* "backend/kernel" */
    uint32_t tile_rows;
    int64_t above, most; /* it has the sequences with above < q_len <= most */
    uint64_t first_job, first_merge, n_jobs, n_merges;
} tess_share;

/* A box of rows and keys, all of which the jobs read or write. */
typedef struct tess_touched {
    uint32_t batch, batches; /* first index of the batch dimension, and how many */
    int64_t q_start, q_len;
    uint32_t kv_batch, kv_batches; /* likewise of K and V */
    int64_t kv_start, kv_len;
} tess_touched;

struct tess_plan {
    tess_device *device;
    tess_layout *layout;
    uint32_t flags, op, dtype;
    uint32_t kv_dtype; /* of K and V; has scales if tess_dtype_has_scales */
    uint32_t determinism;
    int32_t head_dim;
    float scale;
    bool packed, kv_packed; /* of Q, O and LSE; of K and V */
    bool steps;             /* lengths come from the device, and those below are capacities */
    uint32_t batch;
    tess_pools pools;
    /* padded: rows and keys of one sequence in a contiguous tensor; packed: of the whole batch, but
     * keys of one sequence where K and V have a batch dimension (tess_pools_cached) */
    int64_t q_len, kv_len;
    int64_t max_q_len, max_kv_len; /* rows and keys of the longest sequence */
    int64_t all_keys;              /* of the sequences that have rows; 0 where steps */
    /* padded: the last sequence with rows, and the last one with rows and keys (backward: with
     * keys); -1: none */
    int64_t q_last, kv_last;
    /* padded, with no lengths but q_len and kv_len, and no positions */
    bool equal_lengths;
    /* for the check of overlaps; where lengths differ they do not cover everything */
    tess_touched touched[3];
    uint32_t n_touched;
    tess_share shares[TESS_SHARES]; /* fewest rows first */
    uint32_t n_shares;
    tess_kernel append;  /* of tess_append, with TESS_PLAN_APPEND */
    tess_kernel prepare; /* of steps */

    /* [n_sequences] the sequences that have rows or, in backward plans, keys; always in host memory
     */
    tess_sequence *sequences;
    uint32_t n_sequences;
    uint64_t sequences_bytes;
    uint32_t *first_block; /* [n_sequences] the key block of each one's first key; NULL: 0 */
    uint64_t first_block_bytes;
    tess_tables tables;
    tess_memory_plan memory;
    uint32_t column_parts;  /* backward: [1: none] into which long columns are cut, */
    uint64_t n_cut_columns; /* and how many of them are */
    void *table_memory;     /* NULL where the tables are in device memory */
    uint64_t *range_start;  /* [n_ranges + 1]; NULL: one range, or none without jobs */
    uint64_t n_ranges;
    uint64_t host_bytes;
    double create_seconds;
};

tess_status tess_plan_check(const tess_plan *plan, const char *function); /* NULL or forked */

/* How many jobs stage TESS_STAGE_... = 1 << n of a backward plan has. */
static inline uint64_t tess_plan_stage(const tess_plan *plan, uint32_t n) {
    const uint64_t jobs[TESS_STAGES] = {plan->memory.n_strips, plan->memory.n_jobs,
                                        plan->memory.n_columns, plan->memory.n_strips};
    return (plan->shares[0].kernel.stages >> n & 1) ? jobs[n] : 0;
}

/* All jobs that a run has, in their order: attention jobs and merges, or those of all stages. */
static inline uint64_t tess_plan_jobs(const tess_plan *plan) {
    uint64_t sum = 0;
    if (plan->op != TESS_OP_BACKWARD) return plan->memory.n_jobs + plan->memory.n_merges;
    for (uint32_t n = 0; n < TESS_STAGES; n++) sum += tess_plan_stage(plan, n);
    return sum;
}

/* The longest q_len of the sequences with above < q_len <= most; 0: there is none. A step may have
 * any up to its capacity. */
static inline int64_t tess_plan_longest(const tess_plan *plan, int64_t above, int64_t most) {
    int64_t longest = 0;
    if (plan->max_q_len <= most) return plan->max_q_len > above ? plan->max_q_len : 0;
    if (plan->steps) return most > above ? most : 0;
    for (uint32_t n = 0; n < plan->n_sequences; n++) {
        const int64_t q_len = plan->sequences[n].q_len;
        if (q_len > above && q_len <= most && q_len > longest) longest = q_len;
    }
    return longest;
}

/* batch.c: refuses lengths and combinations of length arrays that no batch can have. */
tess_status tess_batch_check(const tess_plan_desc *desc);
/* batch.c: reads the lengths of a batch that was checked, and fills the plan's sequences and what
 * follows from them. */
tess_status tess_batch_read(tess_plan *plan, const tess_plan_desc *desc);
/* batch.c: the rows and keys of sequence n, of a plan that knows its lengths. */
tess_touched tess_touched_by(const tess_plan *plan, uint32_t n);

/* prepare.c: the tables of a step: those of the plan, but with what tess_prepare writes, and on a
 * device with copies of all others beside that. */
tess_status tess_step_tables(const char *function, const tess_plan *plan, const tess_buffer *step,
                             tess_tables *tables);
/* prepare.c: makes these tables, which are those of the first share, those of share n. */
void tess_step_of_share(const tess_plan *plan, uint32_t n, tess_tables *tables);

/* Of sequence n: the position of its first key, and how many keys it has in memory. */
static inline int64_t tess_plan_kv_first(const tess_plan *plan, uint32_t n) {
    return plan->first_block ? plan->first_block[n] * (int64_t)plan->layout->pattern.block : 0;
}
static inline int64_t tess_plan_keys(const tess_plan *plan, uint32_t n) {
    return plan->sequences[n].kv_len - tess_plan_kv_first(plan, n);
}

/* Whether elements are codes of 8 bits with a scale for each row. */
static inline bool tess_dtype_has_scales(uint32_t dtype) { return dtype >= TESS_F8E4M3; }
static inline uint32_t tess_dtype_size(uint32_t dtype) {
    return dtype == TESS_F32 ? 4 : tess_dtype_has_scales(dtype) ? 1 : 2;
}
/* What the address and the strides of a tensor are multiples of, in bytes: rows of codes consist of
 * groups of 8. */
static inline uint32_t tess_dtype_align(uint32_t dtype) {
    return tess_dtype_has_scales(dtype) ? 8 : tess_dtype_size(dtype);
}

/* Bytes of K, or of V, of one key and kv head. */
static inline uint64_t tess_plan_key_bytes(const tess_plan *plan) {
    return (uint64_t)plan->head_dim * tess_dtype_size(plan->kv_dtype) +
           (tess_dtype_has_scales(plan->kv_dtype) ? sizeof(float) : 0);
}

#endif
