/* SPDX-License-Identifier: Apache-2.0 */
/* A block manager: hands out the pages of a pool, shares them between sequences, and takes them
 * back. To it a page is a number. The memory behind that is the caller's: a page of K and one of V
 * in every layer that uses the table. It knows nothing of attention, positions or slots. */
#ifndef PAGES_H
#define PAGES_H

#include <stdint.h>

typedef struct pages {
    int32_t count;     /* pages of the pool */
    int32_t sequences; /* rows of the table */
    int32_t columns;   /* most pages of a sequence */
    int32_t n_free;
    int32_t *free_ids; /* [count], of which n_free are pages that nobody has */
    int32_t *users;    /* [count] sequences that have the page */
    int32_t *used;     /* [sequences] pages of each */
    int32_t *table;    /* [sequences][columns] ids; -1: no page */
} pages;

/* 0: out of memory. */
int pages_create(pages *p, int32_t count, int32_t sequences, int32_t columns);
void pages_release(pages *p);

/* Takes or gives back pages until the sequence has `wanted`; 0 gives all of them back.
 * Returns 0 and changes nothing where the pool has too few left, or the row is too short. */
int pages_resize(pages *p, int32_t sequence, int32_t wanted);

/* Gives sequence `to`, which has no pages, all those of sequence `from`. Nothing is copied. */
void pages_share(pages *p, int32_t from, int32_t to);

/* To be called before a page is written to. If other sequences have it too, this one gets a page of
 * its own in that column, and the caller copies page pair[0] to pair[1].
 * Returns 1 if there is such a copy to make, 0 if not, and -1 if the pool is full. */
int pages_own(pages *p, int32_t sequence, int32_t column, int32_t pair[2]);

#endif
