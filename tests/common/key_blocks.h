/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of one row in double precision, key by key, as simulated devices compute it. */
#ifndef TESSERA_TESTS_COMMON_KEY_BLOCKS_H
#define TESSERA_TESTS_COMMON_KEY_BLOCKS_H

#include <math.h>
#include <tessera/tessera_key_walk.h>

/* Calls `add` for every key block of a job, in the order of its walk. `masked`: the block has keys
 * that the row may not see. */
typedef void add_block_fn(void *row, int64_t block, uint32_t bits, int masked);
static inline void key_blocks(const tess_job *job, const tess_class *cls, const uint32_t *entries,
                              const uint32_t *bits, add_block_fn *add, void *row) {
    tess_key_run run;
    for (uint64_t i = 0; i < tess_key_blocks(job); i += run.blocks) {
        run = tess_key_run_at(job, cls, entries, bits, i);
        for (int64_t b = 0; b < run.blocks; b++) add(row, run.block + b, run.bits, (int)run.masked);
    }
}

/* The softmax of a row so far: row_max, row_sum, and O before it is divided. */
typedef struct row_softmax {
    double most, sum, o[256];
} row_softmax;

/* Rescales for a further score, and returns the weight with which the row of V is to be added. */
static inline double softmax_weigh(row_softmax *r, double score, double scale, int head_dim) {
    const double most = fmax(score, r->most), keep = exp(scale * (r->most - most)),
                 weight = exp(scale * (score - most));
    r->sum = r->sum * keep + weight;
    r->most = most;
    for (int e = 0; e < head_dim; e++) r->o[e] *= keep;
    return weight;
}

/* Divides O and returns the row's LSE. */
static inline double softmax_end(row_softmax *r, double scale, int head_dim) {
    for (int e = 0; e < head_dim; e++) r->o[e] = r->sum > 0 ? r->o[e] / r->sum : 0;
    return r->sum > 0 ? scale * r->most + log(r->sum) : -INFINITY;
}

#endif
