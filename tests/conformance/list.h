/* SPDX-License-Identifier: Apache-2.0 */
/* The conformance list: problem lines that cover every value and every pair of values of the
 * parameters once, and random problems. */
#ifndef TESSERA_TESTS_CONFORMANCE_LIST_H
#define TESSERA_TESTS_CONFORMANCE_LIST_H

#include <stddef.h>
#include <stdint.h>

enum {
    LIST_MOST = 500,
    LIST_LINE = 4096,
};

/* The most FLOP that a problem of the list takes: software devices have to run it as well. */
#define LIST_FLOPS 2147483648.0

typedef struct problem_list {
    int count;
    char (*lines)[LIST_LINE];
    double *flops;      /* at most, of each line; NULL: not known */
    int64_t pairs;      /* pairs of values that mean something together */
    int64_t covered;    /* of these */
    int64_t infeasible; /* of these: no problem below LIST_FLOPS has both */
} problem_list;

/* Builds the list, always the same one. Block masks are written to `folder`, which must exist.
 * Returns 0, or -1 with a line on standard error. */
int list_build(problem_list *list, const char *folder);
void list_free(problem_list *list);

/* Random problem `index` of `seed`; a mask is written to `folder`. Returns 0, or -1 with a line on
 * standard error. */
int list_random(uint64_t seed, uint64_t index, const char *folder, char line[LIST_LINE]);

#endif
