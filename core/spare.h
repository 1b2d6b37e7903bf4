/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Large blocks of host memory that live while a plan is made. The runtime keeps a few of them for
 * the next plan: a fresh block costs a page fault for every 4 KiB, which is more than what a plan
 * writes into it.
 */
#ifndef TESSERA_CORE_SPARE_H
#define TESSERA_CORE_SPARE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "common.h"

enum {
    TESS_SPARE_BLOCKS = 8,       /* those of two plans at a time */
    TESS_SPARE_LEAST = 256 << 10 /* bytes of a block that is worth keeping */
};
#define TESS_SPARE_MOST ((size_t)64 << 20) /* bytes that are kept while no plan is made */

typedef struct tess_spare_block {
    void *memory; /* NULL: the place is free, or about to be filled where it is taken */
    size_t bytes;
    bool taken;
} tess_spare_block;

typedef struct tess_spares {
    pthread_mutex_t lock;
    tess_spare_block blocks[TESS_SPARE_BLOCKS];
} tess_spares;

/* Frees what is kept. `forked`: the lock is of the parent. */
void tess_spare_release(tess_spares *spares, tess_runtime *runtime, bool forked);

/* As tess_mem_alloc, at an alignment of 256; the memory holds anything. */
void *tess_spare_take(tess_runtime *runtime, size_t size);
/* As tess_mem_free, with the size that was asked for. */
void tess_spare_give(tess_runtime *runtime, void *memory, size_t size);

#endif
