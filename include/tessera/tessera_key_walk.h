/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tessera: the key blocks of a job in their order, for kernels in C. A kernel asks for one run of
 * blocks after the other:
 *
 *     for (uint64_t n = 0; n < tess_key_blocks(job);) {
 *         const tess_key_run run = tess_key_run_at(job, cls, entries, bits, n);
 *         ... keys [run.block * block, min((run.block + run.blocks) * block, kv_len)) ...
 *         n += run.blocks;
 *     }
 */
#ifndef TESSERA_TESSERA_KEY_WALK_H
#define TESSERA_TESSERA_KEY_WALK_H

#include "tessera_backend.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tess_key_run {
    uint32_t block;  /* the first key block */
    uint32_t blocks; /* more than 1 in the part of the interval that needs no mask */
    uint32_t masked; /* 1: a row sees the keys that tess_kept says; 0: every key */
    uint32_t bits;   /* for tess_kept; all ones where the class has none */
} tess_key_run;

/* Key blocks of the job: left entries, interval, right entries. */
static inline uint64_t tess_key_blocks(const tess_job *job) {
    return (uint64_t)job->left_count + job->interval_blocks + job->right_count;
}

/* The run that starts with block n of the job, n < tess_key_blocks(job). `cls` is the job's class;
 * `entries` and `bits` are the tables. */
static inline tess_key_run tess_key_run_at(const tess_job *job, const tess_class *cls,
                                           const uint32_t *entries, const uint32_t *bits,
                                           uint64_t n) {
    tess_key_run run = {0, 1, 0, 0xffffffffu};
    const uint64_t inside = n - job->left_count; /* of the interval, if not before it */
    if (n >= job->left_count && inside < job->interval_blocks) {
        const uint32_t tail = job->interval_blocks - job->mask_tail;
        run.block = job->interval_start + (uint32_t)inside;
        run.masked = inside < job->mask_head || inside >= tail;
        if (!run.masked) run.blocks = tail - (uint32_t)inside;
        return run;
    }
    const uint64_t entry = n < job->left_count ? job->left_offset + n
                                               : job->right_offset + inside - job->interval_blocks;
    run.block = entries[entry];
    run.masked = (cls->flags & TESS_CLASS_MASK_ENTRIES) != 0;
    if (cls->flags & TESS_CLASS_BITS) run.bits = bits[entry];
    return run;
}

#ifdef __cplusplus
}
#endif

#endif /* TESSERA_TESSERA_KEY_WALK_H */
